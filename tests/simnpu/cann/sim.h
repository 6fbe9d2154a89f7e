/* What the files of the simulated CANN share: the types, the lock, and who calls whom.
 *
 * Order of the files: faults (what is refused) -> memory -> tasks (one unit of work) -> streams (queues of tasks)
 * -> capture (tasks into a model) -> replay (a model through its queues) -> device (fixed answers). Calls of HCCL are
 * tasks too: hccl.h names their files; progress runs what has waited for other ranks.
 */
#ifndef SIM_H
#define SIM_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int aclError;
typedef void *handle;
typedef void (*host_fn)(void *);

enum { /* CANN's own numbers, so that torch_npu prints its own texts */
  OK = 0,
  ERROR_PARAMETER = 107000,
  ERROR_NO_DEVICE = 107002,
  ERROR_CAPTURE_DEPENDENCY = 107024,
  ERROR_UNJOINED = 107025,
  ERROR_STREAM_CAPTURED = 107027,
  ERROR_EVENT_CAPTURED = 107028,
  ERROR_NOT_CAPTURED = 107029,
  ERROR_CAPTURE_MODE = 107030,
  ERROR_TASK_GROUP = 107033,
  ERROR_UNMATCHED = 107036,
  ERROR_NO_MEMORY = 207001,
  ERROR_NO_EVENT = 207007,
  ERROR_NO_STREAM = 207008,
  ERROR_INTERNAL = 507000,
  ERROR_KERNEL = 507015,
  ERROR_COLLECTIVE = 507018,
  ERROR_STREAM_TIMEOUT = 507046,
  ERROR_EVENT_TIMEOUT = 507047,
  ERROR_INVALIDATED = 507903,
};
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };
enum { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };

typedef struct model model_t;
typedef struct group group_t;
typedef struct run run_t;
typedef struct update update_t;
typedef struct operation operation_t;

typedef struct event {
  uint64_t issued, completed; /* records handed out and records that have run: a wait is for the last one issued */
  uint64_t capture;           /* serial of the capture that recorded it last; 0: none */
  size_t record;              /* its RECORD's place in that capture */
  bool destroyed;
  int tasks;                  /* tasks that still point here: the struct outlives the handle for them */
} event_t;

/* Work, by rising kind: what a task group may hold (up to FILL), what executes (up to WRITE), what only orders. */
typedef enum { KERNEL, COPY, FILL, HOST, COLLECTIVE, WRITE, RECORD, WAIT, AWAIT, REPLAY, UPDATE } kind_t;
typedef struct {
  kind_t kind;
  uint32_t queue; /* captured tasks: which of the model's queues */
  uint64_t id;    /* KERNEL: its number; RECORD and WAIT of a stream: the ticket; captured WAIT: place of the RECORD;
                     WRITE and AWAIT: the value in device memory; captured COLLECTIVE: 1 + the place of the one
                     before it of its communicator, 0 for the first */
  void *dst;
  const void *src;
  size_t bytes;
  int value;      /* FILL: the byte; AWAIT: how to compare */
  host_fn fn;
  event_t *event; /* NULL for an event that lives within one capture */
  run_t *run;
  update_t *update;
  operation_t *operation;
} task_t;

typedef struct { task_t *task; size_t count, room; } tasks_t;

typedef struct stream {
  int id;
  tasks_t waiting;   /* issued and not run: empty unless an event blocks it or another thread executes */
  size_t head;
  bool busy;         /* its head is running, with the lock released */
  aclError error;    /* of an asynchronous task: the next synchronisation returns it */
  model_t *capture;  /* the capture it has joined */
  uint32_t queue;    /* its queue there */
  group_t *group;    /* the task group open on it */
  update_t *update;  /* the update open on it */
  struct stream *next;
} stream_t;

struct group { model_t *model; size_t *place; size_t count, room; group_t *next; };
struct update { group_t *group; tasks_t tasks; };
struct model {
  tasks_t tasks;
  uint32_t queues, id;
  uint64_t serial;
  bool capturing, invalid;
  int mode;
  pthread_t owner;
  stream_t *origin;
  size_t events, *place, *first; /* queue q runs tasks place[first[q]] .. place[first[q + 1] - 1] */
  group_t *groups;
  int holders;                   /* the handle and every run or update under way */
  model_t *next;
};

#pragma GCC visibility push(hidden) /* what follows is for these files alone */
/* One lock for all state. It is never held while a kernel or a callback runs, because those take Python's lock. */
void lock_sim(void);
void unlock_sim(void);
pthread_mutex_t *global_lock(void);
void unlock_guard(char *unused);
#define LOCKED __attribute__((cleanup(unlock_guard), unused)) char guard = (lock_sim(), 0)

bool fails(const char *function);                    /* faults.c */
void note_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
aclError take_stream(void);
aclError take_event(void);
void give_streams(size_t count);
void give_events(size_t count);

bool reserve_memory(size_t bytes);                   /* memory.c: what no call of aclrtMalloc asked for */
void release_memory(size_t bytes);

size_t add_task(tasks_t *list, task_t task);         /* tasks.c */
aclError execute(const task_t *task);
bool value_holds(const task_t *await);
void drop_task(task_t *task);
void drop_tasks(tasks_t *list, size_t first);
void drop_event(event_t *event);
extern bool null_device;

stream_t *stream_of(handle stream);                  /* streams.c */
stream_t *all_streams(void);
aclError issue(stream_t *stream, task_t task);
bool stream_pending(const stream_t *stream);
void pump(void);
void wait_a_moment(void);

model_t *capture_by_serial(uint64_t serial);         /* capture.c */
aclError join_capture(stream_t *stream, model_t *model);
aclError capture_task(stream_t *stream, task_t task);
aclError collect_update(stream_t *stream, task_t task);
void apply_update(update_t *update);
void drop_update(update_t *update);
void invalidate(model_t *model);
bool any_capture(void);
aclError unsafe_call(void);                          /* the verdict on a call that captures forbid */
void drop_model(model_t *model);

typedef enum { MOVED, BLOCKED, DONE } progress_t;
progress_t advance(run_t *run, aclError *error);     /* replay.c */
void drop_run(run_t *run);

bool same_communicator(const operation_t *a, const operation_t *b); /* meeting.c */
bool operation_can_begin(const operation_t *operation);
bool operation_begun(const operation_t *operation, const void *owner);
bool operation_ready(const operation_t *operation);
void begin_operation(operation_t *operation, const void *owner);
aclError finish_operation(const operation_t *operation);
void abandon_operations(const void *owner);
void drop_operation(operation_t *operation);
void hold_operation(operation_t *operation);
bool operations_under_way(void);

void notice_operation(void);                         /* progress.c */
#pragma GCC visibility pop
#endif
