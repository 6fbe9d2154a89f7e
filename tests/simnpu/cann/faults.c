/* What does the device refuse, and what does it say? Limits on streams and events, failures that a test asks for. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "sim.h"

/* The model of a device's resources: a stream or event takes one from its creation to its destruction. A capture takes
 * one stream for each queue it has (the stream it began on and every stream that joined it), and one event for each
 * record in it, from the moment they are captured until the graph is destroyed: on the device the graph's queues are
 * hardware streams of their own. */
enum { FAULTS = 16, NAME = 64, TEXT = 1024 };
static struct { char name[NAME]; long after, times; } faults[FAULTS];
static size_t streams, events, stream_limit = 2048, event_limit = 65536;

size_t sim_live_streams(void) { LOCKED; return streams; }
size_t sim_live_events(void) { LOCKED; return events; }

void sim_set_limits(size_t most_streams, size_t most_events) {
  LOCKED;
  stream_limit = most_streams, event_limit = most_events;
}

aclError take_stream(void) { return streams < stream_limit ? (streams++, OK) : ERROR_NO_STREAM; }
aclError take_event(void) { return events < event_limit ? (events++, OK) : ERROR_NO_EVENT; }
void give_streams(size_t count) { streams -= count; }
void give_events(size_t count) { events -= count; }

/* Let the nth next call of `function` fail, and the ones after it, `times` in all. 1 when there is no room for it. */
int sim_fail(const char *function, long nth, long times) {
  LOCKED;
  for (int i = 0; i < FAULTS; i++) {
    if (faults[i].times) continue;
    strncpy(faults[i].name, function, NAME - 1);
    faults[i].after = nth - 1, faults[i].times = times;
    return 0;
  }
  return 1;
}

void sim_fail_never(void) { LOCKED; memset(faults, 0, sizeof faults); }

bool fails(const char *function) {
  for (int i = 0; i < FAULTS; i++) {
    if (!faults[i].times || strcmp(faults[i].name, function)) continue;
    if (faults[i].after) { faults[i].after--; continue; }
    faults[i].times--;
    return true;
  }
  return false;
}

/* The newest text waits until it is asked for. */
static char noted[TEXT];
void note_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(noted, sizeof noted, format, arguments);
  va_end(arguments);
}

const char *aclGetRecentErrMsg(void) {
  static _Thread_local char given[TEXT];
  LOCKED;
  memcpy(given, noted, sizeof given);
  noted[0] = 0;
  return given;
}
