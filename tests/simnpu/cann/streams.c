/* In which order does work outside a graph run, and what do events wait for?
 *
 * A stream runs what it is given at once, in the thread that gives it. It waits only where the device would: behind a
 * value that nobody has written (a replay that met an external event, and all that follows it), and in a call of HCCL
 * for other ranks. One thread executes at a time; what other threads issue meanwhile is left to it. To synchronise
 * with work that nothing can release any more is an error here; a device would hang. */
#include <stdlib.h>
#include <time.h>
#include "sim.h"

static stream_t default_stream, *streams = &default_stream;
static int next_stream = 1;
static bool executing;
static aclError device_error; /* of a call of HCCL: the next synchronisation with anything returns it */
static pthread_t executor;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;

stream_t *stream_of(handle stream) { return stream ? stream : &default_stream; }
stream_t *all_streams(void) { return streams; }
bool stream_pending(const stream_t *stream) { return stream->head < stream->waiting.count; }

/* ---- execution --------------------------------------------------------------------------------------------------- */
static bool is_ready(const task_t *task, const stream_t *stream) {
  if (task->kind == AWAIT) return value_holds(task);
  if (task->kind == COLLECTIVE && !null_device)
    return operation_begun(task->operation, stream) ? operation_ready(task->operation)
                                                    : operation_can_begin(task->operation);
  return task->kind != WAIT || task->event->completed >= task->id;
}

static void complete(const task_t *task) {
  event_t *event = task->event;
  if (task->kind == RECORD && event->completed < task->id) event->completed = task->id;
  if (task->kind == UPDATE) apply_update(task->update);
}

static progress_t run_head(stream_t *stream) {
  task_t task = stream->waiting.task[stream->head]; /* a copy: others may append while the lock is released */
  aclError error = OK;
  progress_t progress = DONE;
  if (!is_ready(&task, stream)) return BLOCKED;
  if (task.kind == COLLECTIVE && !null_device && !operation_begun(task.operation, stream))
    return begin_operation(task.operation, stream), MOVED;
  stream->busy = true;
  if (task.kind == REPLAY) progress = advance(task.run, &error);
  else if (task.kind <= WRITE) error = execute(&task);
  else complete(&task);
  stream->busy = false;
  if (error == ERROR_COLLECTIVE) device_error = error;
  else if (error && !stream->error) stream->error = error;
  return progress;
}

static bool step(stream_t *stream) {
  if (!stream_pending(stream) || stream->busy) return false;
  progress_t progress = run_head(stream);
  if (progress != DONE) return progress == MOVED;
  drop_task(&stream->waiting.task[stream->head++]);
  if (!stream_pending(stream)) stream->head = stream->waiting.count = 0;
  return true;
}

/* Run everything that can run. Leaves it to the executing thread if there is one (it may be this one, in a kernel). */
void pump(void) {
  if (executing) return;
  executing = true, executor = pthread_self();
  for (bool moved = true; moved;) {
    moved = false;
    for (stream_t *s = streams; s && !moved; s = s->next) moved = step(s); /* the list may change while a task runs */
  }
  executing = false;
  pthread_cond_broadcast(&idle);
}

aclError issue(stream_t *stream, task_t task) {
  if (stream->update) return collect_update(stream, task);
  if (stream->capture) return capture_task(stream, task);
  add_task(&stream->waiting, task);
  pump();
  return OK;
}

/* Kernels are Python: one that another thread runs needs the interpreter's lock, and some functions of torch_npu
 * (empty_cache) come here holding it, since a device needs no lock of its host's to get on. */
static struct { int (*is_held)(void); void *(*release)(void); void (*take)(void *thread); } interpreter;
void sim_set_interpreter(int (*is_held)(void), void *(*release)(void), void (*take)(void *thread)) {
  LOCKED;
  interpreter.is_held = is_held, interpreter.release = release, interpreter.take = take;
}

/* Let other threads and other ranks get on, until a thread that executes has nothing left to run. */
void wait_a_moment(void) {
  enum { MOMENT = 100000, SECOND = 1000000000 }; /* nanoseconds */
  void *thread = interpreter.is_held && interpreter.is_held() ? interpreter.release() : NULL;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += MOMENT;
  if (until.tv_nsec >= SECOND) until.tv_sec++, until.tv_nsec -= SECOND;
  pthread_cond_timedwait(&idle, global_lock(), &until);
  if (!thread) return;
  unlock_sim(); /* who holds the interpreter's lock may be waiting for this one */
  interpreter.take(thread);
  lock_sim();
}

static bool others_execute(void) { return executing && !pthread_equal(executor, pthread_self()); }

/* Can what waits here still come, from another thread or another rank? Waits a moment for it. */
static bool may_come(void) {
  if (!others_execute() && !operations_under_way()) return false;
  wait_a_moment();
  pump();
  return true;
}

static aclError take_device_error(void) {
  aclError error = device_error;
  device_error = OK;
  return error;
}

static aclError settle(stream_t *stream, aclError timeout) {
  if (stream->capture) { invalidate(stream->capture); return ERROR_STREAM_CAPTURED; }
  pump();
  while (stream_pending(stream) && may_come()) {}
  aclError error = stream_pending(stream) ? timeout : stream->error;
  stream->error = OK;
  return error ? error : take_device_error();
}

static aclError settle_all(void) {
  aclError first = any_capture() ? unsafe_call() : OK;
  for (stream_t *s = streams; s; s = s->next) {
    aclError error = s->capture ? ERROR_STREAM_CAPTURED : settle(s, ERROR_STREAM_TIMEOUT);
    if (s->capture) invalidate(s->capture);
    if (error && !first) first = error;
  }
  return first;
}

/* ---- what the simulator offers beyond CANN ----------------------------------------------------------------------- */
enum { RAN = 0, QUEUED = 1 };
int sim_launch(handle s, uint64_t kernel) { /* RAN, QUEUED (captured, part of an update, or blocked), or an error */
  LOCKED;
  stream_t *stream = stream_of(s);
  if (fails("sim_launch")) return ERROR_INTERNAL;
  bool deferred = stream->capture || stream->update;
  aclError error = issue(stream, (task_t){.kind = KERNEL, .id = kernel});
  if (error || deferred || stream_pending(stream)) return error ? error : QUEUED;
  error = stream->error, stream->error = OK;
  return error;
}

int sim_defers(handle s) { /* would a kernel issued now run later than now? */
  LOCKED;
  stream_t *stream = stream_of(s);
  return stream->capture || stream->update || stream_pending(stream);
}

size_t sim_pending(void) {
  LOCKED;
  size_t count = 0;
  for (stream_t *s = streams; s; s = s->next) count += s->waiting.count - s->head;
  return count;
}

static void forget(stream_t *stream) {
  abandon_operations(stream);
  drop_tasks(&stream->waiting, stream->head);
  stream->head = 0, stream->error = OK;
}

void sim_abandon(void) { /* forget all blocked work, as a device does that is reset after a deadlock */
  LOCKED;
  for (stream_t *s = streams; s; s = s->next) if (!s->busy) forget(s);
}

void sim_finish(void) { /* before the process ends: no kernel runs after it */
  LOCKED;
  for (stream_t *s = streams; s; s = s->next) while (stream_pending(s) && may_come()) {}
  for (stream_t *s = streams; s; s = s->next) if (!s->busy) forget(s);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */
aclError aclrtCreateStream(handle *result) {
  LOCKED;
  if (fails("aclrtCreateStream")) return ERROR_INTERNAL;
  aclError refused = take_stream();
  if (refused) return refused;
  stream_t *stream = calloc(1, sizeof *stream), **end = &streams;
  stream->id = next_stream++;
  while (*end) end = &(*end)->next;
  *result = *end = stream;
  return OK;
}
aclError aclrtCreateStreamWithConfig(handle *s, uint32_t priority, uint32_t flag) { return aclrtCreateStream(s); }

aclError aclrtDestroyStreamForce(handle s) {
  LOCKED;
  stream_t *stream = s, **link = &streams;
  if (!stream) return ERROR_PARAMETER;
  if (stream->capture) invalidate(stream->capture);
  while (*link && *link != stream) link = &(*link)->next;
  if (!*link) return ERROR_PARAMETER;
  *link = stream->next;
  if (stream->capture && stream->capture->origin == stream) stream->capture->origin = NULL;
  forget(stream);
  drop_update(stream->update);
  free(stream);
  give_streams(1);
  return OK;
}
aclError aclrtDestroyStream(handle s) { return aclrtDestroyStreamForce(s); }

aclError aclrtSynchronizeStream(handle s) { LOCKED; return settle(stream_of(s), ERROR_STREAM_TIMEOUT); }
aclError aclrtSynchronizeStreamWithTimeout(handle s, int32_t ms) { return aclrtSynchronizeStream(s); }
aclError aclrtSynchronizeDevice(void) { LOCKED; return settle_all(); }
aclError aclrtSynchronizeDeviceWithTimeout(int32_t ms) { return aclrtSynchronizeDevice(); }
aclError aclrtStreamQuery(handle s, int *status) {
  LOCKED;
  stream_t *stream = stream_of(s);
  if (stream->capture) { invalidate(stream->capture); return ERROR_STREAM_CAPTURED; }
  *status = stream_pending(stream) ? 1 : 0;
  return OK;
}
aclError aclrtStreamGetId(handle s, int32_t *id) { *id = stream_of(s)->id; return OK; }

aclError aclrtLaunchHostFunc(handle s, host_fn fn, void *data) {
  LOCKED;
  return issue(stream_of(s), (task_t){.kind = HOST, .fn = fn, .dst = data});
}
aclError aclrtLaunchCallback(host_fn fn, void *data, int block, handle s) { return aclrtLaunchHostFunc(s, fn, data); }

/* ---- events ------------------------------------------------------------------------------------------------------ */
aclError aclrtCreateEventWithFlag(handle *result, uint32_t flags) {
  LOCKED;
  if (fails("aclrtCreateEvent")) return ERROR_INTERNAL;
  aclError refused = take_event();
  if (refused) return refused;
  *result = calloc(1, sizeof(event_t));
  return OK;
}
aclError aclrtCreateEventExWithFlag(handle *e, uint32_t flags) { return aclrtCreateEventWithFlag(e, flags); }
aclError aclrtCreateEvent(handle *e) { return aclrtCreateEventWithFlag(e, 0); }
aclError aclrtDestroyEvent(handle e) {
  LOCKED;
  event_t *event = e;
  if (!event || event->destroyed) return ERROR_PARAMETER;
  event->destroyed = true;
  give_events(1);
  drop_event(event);
  return OK;
}

aclError aclrtRecordEvent(handle e, handle s) {
  LOCKED;
  event_t *event = e;
  stream_t *stream = stream_of(s);
  if (stream->capture && !stream->update) {
    model_t *model = stream->capture;
    aclError refused = take_event();
    if (refused) { invalidate(model); return refused; }
    model->events++;
    event->capture = model->serial, event->record = model->tasks.count;
    return issue(stream, (task_t){.kind = RECORD});
  }
  event->capture = 0;
  return issue(stream, (task_t){.kind = RECORD, .event = event, .id = ++event->issued});
}

/* Waiting for an event of a capture joins the stream to it. A capture cannot wait for work that it does not hold, and
 * work outside cannot wait for an event that exists only within a graph. */
aclError aclrtStreamWaitEvent(handle s, handle e) {
  LOCKED;
  event_t *event = e;
  stream_t *stream = stream_of(s);
  if (!event->capture && !stream->capture)
    return event->issued ? issue(stream, (task_t){.kind = WAIT, .event = event, .id = event->issued}) : OK;
  if (!event->capture && !event->issued) return OK;
  model_t *model = capture_by_serial(event->capture);
  if (!model && event->capture && !stream->capture) return ERROR_EVENT_CAPTURED;
  if (!model || (stream->capture && stream->capture != model)) {
    if (stream->capture) invalidate(stream->capture);
    if (model) invalidate(model);
    return ERROR_CAPTURE_DEPENDENCY;
  }
  aclError refused = stream->capture ? OK : join_capture(stream, model);
  return refused ? refused : issue(stream, (task_t){.kind = WAIT, .id = event->record});
}

/* Values in device memory order streams against each other in and out of graphs: torch_npu makes an external event of
 * one, which waits for 1 and writes 0, and is recorded by writing 1. */
aclError aclrtValueWrite(void *address, uint64_t value, uint32_t flag, handle s) {
  LOCKED;
  return issue(stream_of(s), (task_t){.kind = WRITE, .dst = address, .id = value});
}
aclError aclrtValueWait(void *address, uint64_t value, uint32_t comparison, handle s) {
  LOCKED;
  return issue(stream_of(s), (task_t){.kind = AWAIT, .dst = address, .id = value, .value = (int)comparison});
}

static bool event_pending(const event_t *event) { return event->completed < event->issued; }
aclError aclrtQueryEventStatus(handle e, int *status) {
  LOCKED;
  if (((event_t *)e)->capture) return ERROR_EVENT_CAPTURED;
  *status = event_pending(e) ? 0 : 1;
  return OK;
}
aclError aclrtQueryEventWaitStatus(handle e, int *status) { *status = 1; return OK; }
aclError aclrtSynchronizeEvent(handle e) {
  LOCKED;
  if (((event_t *)e)->capture) return ERROR_EVENT_CAPTURED;
  pump();
  while (event_pending(e) && may_come()) {}
  return event_pending(e) ? ERROR_EVENT_TIMEOUT : take_device_error();
}
aclError aclrtEventElapsedTime(float *ms, handle a, handle b) { *ms = 0; return OK; }
