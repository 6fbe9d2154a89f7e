/* What does a capture record, who belongs to it, and how does it end?
 *
 * A capture begins on one stream. A stream that waits for an event recorded in it joins it, with a queue of its own,
 * until the capture ends: then every stream leaves. Ending fails when a stream that joined was not waited for again by
 * the stream it began on, or when something forbidden happened meanwhile (synchronising, unsafe calls, foreign events).
 * After a failed end nothing of the capture is left. */
#include <stdlib.h>
#include "sim.h"

static model_t *models; /* all that are alive */
static uint32_t next_model = 1;
static uint64_t next_serial = 1;
static size_t graphs;
static _Thread_local int thread_mode = MODE_GLOBAL;

size_t sim_live_graphs(void) { LOCKED; return graphs; }

model_t *capture_by_serial(uint64_t serial) {
  for (model_t *m = models; m; m = m->next)
    if (serial && m->serial == serial && m->capturing) return m;
  return NULL;
}

bool any_capture(void) {
  for (model_t *m = models; m; m = m->next) if (m->capturing) return true;
  return false;
}

void invalidate(model_t *model) { model->invalid = true; }

/* "global" forbids unsafe calls in every thread, "thread_local" in its own; a thread may exempt itself for a moment. */
aclError unsafe_call(void) {
  aclError verdict = OK;
  for (model_t *m = models; m; m = m->next) {
    bool own = pthread_equal(m->owner, pthread_self());
    if (!m->capturing || m->mode == MODE_RELAXED || thread_mode == MODE_RELAXED) continue;
    if (own || (m->mode == MODE_GLOBAL && thread_mode == MODE_GLOBAL)) invalidate(m), verdict = ERROR_CAPTURE_MODE;
  }
  return verdict;
}

/* ---- beginning, joining, recording ------------------------------------------------------------------------------- */
aclError join_capture(stream_t *stream, model_t *model) {
  aclError refused = take_stream();
  if (refused) { invalidate(model); return refused; }
  stream->capture = model;
  stream->queue = model->queues++;
  return OK;
}

aclError aclmdlRICaptureBegin(handle s, int mode) {
  LOCKED;
  stream_t *stream = stream_of(s);
  if (fails("aclmdlRICaptureBegin")) return ERROR_INTERNAL;
  if (stream->capture || stream->update) return ERROR_STREAM_CAPTURED;
  model_t *model = calloc(1, sizeof *model);
  *model = (model_t){.id = next_model++, .serial = next_serial++, .mode = mode, .owner = pthread_self(),
                     .origin = stream, .capturing = true, .holders = 1, .next = models};
  models = model, graphs++;
  aclError refused = join_capture(stream, model);
  if (refused) model->capturing = false, graphs--, drop_model(model);
  return refused;
}

static aclError add_to_group(group_t *group, kind_t kind, size_t place) {
  if (kind > FILL) return ERROR_TASK_GROUP;
  if (group->count == group->room)
    group->place = realloc(group->place, (group->room = group->room ? 2 * group->room : 8) * sizeof *group->place);
  group->place[group->count++] = place;
  return OK;
}

static uint64_t after_last_collective(const model_t *model, const operation_t *operation) {
  for (size_t i = model->tasks.count; i--;) {
    const task_t *task = &model->tasks.task[i];
    if (task->kind == COLLECTIVE && same_communicator(task->operation, operation)) return i + 1;
  }
  return 0;
}

aclError capture_task(stream_t *stream, task_t task) {
  model_t *model = stream->capture;
  if (model->invalid) return ERROR_INVALIDATED;
  task.queue = stream->queue;
  if (task.kind == COLLECTIVE) task.id = after_last_collective(model, task.operation);
  size_t place = add_task(&model->tasks, task);
  aclError error = stream->group ? add_to_group(stream->group, task.kind, place) : OK;
  if (error) invalidate(model);
  return error;
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */
static void leave_all(model_t *model) {
  for (stream_t *s = all_streams(); s; s = s->next)
    if (s->capture == model) s->capture = NULL, s->queue = 0, s->group = NULL;
  model->capturing = false;
}

/* Is all that other queues did ordered before the end of queue 0? Backwards: how far its end reaches into each. */
static bool joined(const model_t *model) {
  size_t *reach = calloc(model->queues, sizeof *reach); /* tasks at places below it are ordered before the end */
  bool all = true;
  reach[0] = model->tasks.count;
  for (size_t i = model->tasks.count; i-- && all;) {
    const task_t *task = &model->tasks.task[i];
    if (i < reach[task->queue] && task->kind == WAIT && !task->event) {
      size_t *other = &reach[model->tasks.task[task->id].queue];
      if (*other <= task->id) *other = task->id + 1;
    }
    if (i >= reach[task->queue] && task->kind != RECORD) all = false; /* a record that nobody waits for is no work */
  }
  free(reach);
  return all;
}

static void index_queues(model_t *model) {
  model->first = calloc(model->queues + 1, sizeof *model->first);
  model->place = calloc(model->tasks.count + 1, sizeof *model->place);
  for (size_t i = 0; i < model->tasks.count; i++) model->first[model->tasks.task[i].queue + 1]++;
  for (uint32_t q = 0; q < model->queues; q++) model->first[q + 1] += model->first[q];
  size_t *next = calloc(model->queues, sizeof *next);
  for (size_t i = 0; i < model->tasks.count; i++) {
    uint32_t q = model->tasks.task[i].queue;
    model->place[model->first[q] + next[q]++] = i;
  }
  free(next);
}

static aclError verdict_on(const model_t *model, bool group_open) {
  if (fails("aclmdlRICaptureEnd")) return ERROR_INTERNAL;
  if (model->invalid) return ERROR_INVALIDATED;
  if (group_open) return ERROR_TASK_GROUP;
  return joined(model) ? OK : ERROR_UNJOINED;
}

static bool group_open_in(const model_t *model) {
  for (stream_t *s = all_streams(); s; s = s->next) if (s->capture == model && s->group) return true;
  return false;
}

aclError aclmdlRICaptureEnd(handle s, handle *result) {
  LOCKED;
  model_t *model = stream_of(s)->capture;
  *result = NULL;
  if (!model) return ERROR_NOT_CAPTURED;
  if (model->origin != stream_of(s)) return ERROR_UNMATCHED;
  aclError error = verdict_on(model, group_open_in(model));
  leave_all(model);
  if (error) { graphs--, drop_model(model); return error; }
  index_queues(model);
  *result = model;
  return OK;
}

aclError aclmdlRICaptureGetInfo(handle s, int *status, handle *model) {
  LOCKED;
  model_t *m = stream_of(s)->capture;
  *status = !m ? CAPTURE_NONE : m->invalid ? CAPTURE_INVALIDATED : CAPTURE_ACTIVE;
  if (model) *model = m;
  return OK;
}
aclError aclmdlRICaptureThreadExchangeMode(int *mode) {
  int before = thread_mode;
  thread_mode = *mode, *mode = before;
  return OK;
}
aclError aclmdlRIGetId(handle m, uint32_t *id) { *id = ((model_t *)m)->id; return OK; }

/* ---- task groups: launches whose host arguments can be replaced -------------------------------------------------- */
aclError aclmdlRICaptureTaskGrpBegin(handle s) {
  LOCKED;
  stream_t *stream = stream_of(s);
  if (!stream->capture) return ERROR_NOT_CAPTURED;
  if (stream->group) return ERROR_TASK_GROUP;
  group_t *group = calloc(1, sizeof *group);
  *group = (group_t){.model = stream->capture, .next = stream->capture->groups};
  stream->group = stream->capture->groups = group;
  return OK;
}
aclError aclmdlRICaptureTaskGrpEnd(handle s, handle *result) {
  LOCKED;
  stream_t *stream = stream_of(s);
  if (!stream->capture) return ERROR_NOT_CAPTURED;
  if (!stream->group) return ERROR_TASK_GROUP;
  *result = stream->group;
  stream->group = NULL;
  return OK;
}

static bool group_alive(const group_t *group) { /* its graph may be gone */
  for (model_t *m = models; m; m = m->next)
    for (group_t *g = m->groups; g; g = g->next) if (g == group) return !m->capturing;
  return false;
}

/* An update collects the launches issued on its stream; the stream then puts them in the place of the group's, when it
 * gets there. A replay that has passed the group already keeps the old ones: only an external event orders the two. */
aclError aclmdlRICaptureTaskUpdateBegin(handle s, handle group) {
  LOCKED;
  stream_t *stream = stream_of(s);
  if (stream->capture || stream->update) return ERROR_STREAM_CAPTURED;
  if (!group_alive(group)) return ERROR_TASK_GROUP;
  stream->update = calloc(1, sizeof *stream->update);
  stream->update->group = group;
  stream->update->group->model->holders++;
  return OK;
}
aclError collect_update(stream_t *stream, task_t task) {
  if (task.kind > FILL) return ERROR_TASK_GROUP;
  add_task(&stream->update->tasks, task);
  return OK;
}
aclError aclmdlRICaptureTaskUpdateEnd(handle s) {
  LOCKED;
  stream_t *stream = stream_of(s);
  update_t *update = stream->update;
  if (!update) return ERROR_TASK_GROUP;
  stream->update = NULL;
  if (update->tasks.count != update->group->count) { drop_update(update); return ERROR_TASK_GROUP; }
  return issue(stream, (task_t){.kind = UPDATE, .update = update});
}

void apply_update(update_t *update) {
  tasks_t *tasks = &update->group->model->tasks;
  for (size_t i = 0; i < update->tasks.count; i++) {
    task_t *old = &tasks->task[update->group->place[i]], replaced = *old;
    *old = update->tasks.task[i];
    old->queue = replaced.queue;
    update->tasks.task[i] = replaced; /* dropped with the update */
  }
}

void drop_update(update_t *update) {
  if (!update) return;
  drop_tasks(&update->tasks, 0);
  drop_model(update->group->model);
  free(update);
}

/* ---- the end of a graph ------------------------------------------------------------------------------------------ */
void drop_model(model_t *model) {
  if (--model->holders) return;
  model_t **link = &models;
  while (*link != model) link = &(*link)->next;
  *link = model->next;
  for (group_t *group = model->groups, *next; group; group = next) {
    next = group->next;
    free(group->place), free(group);
  }
  give_streams(model->queues), give_events(model->events);
  drop_tasks(&model->tasks, 0);
  free(model->first), free(model->place), free(model);
}

aclError aclmdlRIDestroy(handle m) {
  LOCKED;
  model_t *model = m;
  if (!model || model->capturing) return ERROR_PARAMETER;
  graphs--;
  drop_model(model);
  return OK;
}
