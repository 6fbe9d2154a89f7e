/* What is one unit of work, how does it run, and what does it hold? */
#include <stdlib.h>
#include <string.h>
#include "sim.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
void lock_sim(void) { pthread_mutex_lock(&mutex); }
void unlock_sim(void) { pthread_mutex_unlock(&mutex); }
void unlock_guard(char *unused) { unlock_sim(); }
pthread_mutex_t *global_lock(void) { return &mutex; }

/* Kernels live in Python and are known here by number. Python forgets those that it reads from `released`: calling
 * into Python when a graph dies would need its lock in the middle of a destructor. */
static int (*run_kernel)(uint64_t id);
static uint64_t *released;
static size_t released_count, released_room, launches;
bool null_device;

void sim_set_runner(int (*runner)(uint64_t id)) { LOCKED; run_kernel = runner; }
void sim_set_null(int on) { LOCKED; null_device = on; }
size_t sim_launches(void) { LOCKED; return launches; }
size_t sim_take_released(uint64_t *ids, size_t most) {
  LOCKED;
  size_t n = released_count < most ? released_count : most;
  if (n) memcpy(ids, released + (released_count -= n), n * sizeof *ids);
  return n;
}

static void release_kernel(uint64_t id) {
  if (released_count == released_room)
    released = realloc(released, (released_room = released_room ? 2 * released_room : 256) * sizeof *released);
  released[released_count++] = id;
}

size_t add_task(tasks_t *list, task_t task) {
  if (list->count == list->room)
    list->task = realloc(list->task, (list->room = list->room ? 2 * list->room : 32) * sizeof task);
  if (task.event) task.event->tasks++;
  if (task.operation) hold_operation(task.operation);
  list->task[list->count] = task;
  return list->count++;
}

void drop_event(event_t *event) {
  if (event->destroyed && !event->tasks) free(event);
}

void drop_task(task_t *task) {
  if (task->kind == KERNEL) release_kernel(task->id);
  if (task->event) task->event->tasks--, drop_event(task->event);
  if (task->run) drop_run(task->run);
  if (task->update) drop_update(task->update);
  if (task->operation) drop_operation(task->operation);
}

void drop_tasks(tasks_t *list, size_t first) {
  for (size_t i = first; i < list->count; i++) drop_task(&list->task[i]);
  free(list->task);
  *list = (tasks_t){0};
}

/* The part of a task that takes time. Called with the lock held; lets it go while the work runs. */
aclError execute(const task_t *task) {
  if (null_device && task->kind != HOST) return OK;
  if (task->kind == KERNEL) launches++;
  int failed = 0;
  if (task->kind == WRITE) return *(uint64_t *)task->dst = task->id, OK;
  if (task->kind == COLLECTIVE) return finish_operation(task->operation);
  unlock_sim();
  if (task->kind == COPY) memmove(task->dst, task->src, task->bytes);
  if (task->kind == FILL) memset(task->dst, task->value, task->bytes);
  if (task->kind == HOST) task->fn(task->dst);
  if (task->kind == KERNEL) failed = run_kernel(task->id);
  lock_sim();
  return failed ? ERROR_KERNEL : OK;
}

/* Has another stream written what an AWAIT waits for? torch_npu's external events are such values. */
bool value_holds(const task_t *await) {
  enum { AT_LEAST, EQUAL, ANY_BIT, NOT_ALL_BITS };
  uint64_t found = *(const uint64_t *)await->dst, wanted = await->id;
  if (null_device) return true;
  if (await->value == AT_LEAST) return found >= wanted;
  if (await->value == EQUAL) return found == wanted;
  return await->value == ANY_BIT ? (found & wanted) != 0 : (found | wanted) != UINT64_MAX;
}
