/* In which order does a graph run?
 *
 * Each stream of the capture is a queue of its own; only events order queues against each other. sim_set_schedule picks
 * one of the orders that the events allow, so that a missing wait shows as a wrong number. A replay that meets
 * a value nobody has written yet (an external event) stops there, and goes on from there once it is written.
 * A call of HCCL is two steps, each in its own place of the order: it begins, which posts its values, and it ends,
 * once all ranks have begun it. Calls of one communicator keep the order of capture, on all ranks alike. */
#include <stdlib.h>
#include "sim.h"

struct run {
  model_t *model;
  size_t *head;    /* per queue: how many of its tasks have run */
  bool *recorded;  /* per task: a RECORD or COLLECTIVE that has run */
  uint32_t *ready; /* the queues to choose from */
  size_t left;
  uint64_t seed, state;
};
static uint64_t schedule_seed;

void sim_set_schedule(uint64_t seed) { LOCKED; schedule_seed = seed; } /* 0: the order of capture */

static uint64_t draw(uint64_t *state) { /* splitmix64 */
  uint64_t z = *state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

static size_t place_of(const run_t *run, uint32_t queue) {
  return run->model->place[run->model->first[queue] + run->head[queue]];
}

static bool collective_ready(const run_t *run, const task_t *task) {
  if (operation_begun(task->operation, run)) return operation_ready(task->operation);
  return operation_can_begin(task->operation) && (!task->id || run->recorded[task->id - 1]);
}

static bool is_ready(const run_t *run, uint32_t queue) {
  const model_t *model = run->model;
  if (model->first[queue] + run->head[queue] == model->first[queue + 1]) return false;
  const task_t *task = &model->tasks.task[place_of(run, queue)];
  if (task->kind == AWAIT) return value_holds(task);
  if (task->kind == COLLECTIVE) return collective_ready(run, task);
  return task->kind != WAIT || run->recorded[task->id];
}

/* The queue to go on with; -1 when each is at its end or waits. */
static int64_t choose(run_t *run) {
  uint32_t count = 0, earliest = 0;
  for (uint32_t q = 0; q < run->model->queues; q++) {
    if (!is_ready(run, q)) continue;
    if (!count || place_of(run, q) < place_of(run, earliest)) earliest = q;
    run->ready[count++] = q;
  }
  if (!count) return -1;
  return run->seed ? run->ready[draw(&run->state) % count] : earliest;
}

static aclError perform(run_t *run, size_t place) {
  task_t task = run->model->tasks.task[place];
  if (task.kind == RECORD || task.kind == COLLECTIVE) run->recorded[place] = true;
  return task.kind <= WRITE ? execute(&task) : OK;
}

static bool begins(const run_t *run, size_t place) {
  const task_t *task = &run->model->tasks.task[place];
  if (task->kind != COLLECTIVE || operation_begun(task->operation, run)) return false;
  begin_operation(task->operation, run);
  return true;
}

/* Run as far as possible. A kernel that fails ends the replay. */
progress_t advance(run_t *run, aclError *error) {
  progress_t progress = BLOCKED;
  while (run->left) {
    int64_t queue = choose(run);
    if (queue < 0) return progress;
    progress = MOVED;
    if (begins(run, place_of(run, queue))) continue;
    *error = perform(run, place_of(run, queue));
    run->head[queue]++, run->left--;
    if (*error) return DONE;
  }
  return DONE;
}

void drop_run(run_t *run) {
  abandon_operations(run);
  drop_model(run->model);
  free(run->head), free(run->recorded), free(run->ready), free(run);
}

aclError aclmdlRIExecuteAsync(handle m, handle s) {
  LOCKED;
  model_t *model = m;
  stream_t *stream = stream_of(s);
  if (fails("aclmdlRIExecuteAsync")) return ERROR_INTERNAL;
  if (stream->capture) { invalidate(stream->capture); return ERROR_STREAM_CAPTURED; }
  if (stream->update) return ERROR_TASK_GROUP;
  if (null_device) return OK;
  run_t *run = malloc(sizeof *run);
  *run = (run_t){.model = model, .left = model->tasks.count, .seed = schedule_seed, .state = schedule_seed,
                 .head = calloc(model->queues, sizeof *run->head), .ready = calloc(model->queues, sizeof *run->ready),
                 .recorded = calloc(model->tasks.count + 1, sizeof *run->recorded)};
  model->holders++;
  return issue(stream, (task_t){.kind = REPLAY, .run = run});
}
