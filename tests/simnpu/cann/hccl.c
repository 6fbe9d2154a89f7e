/* Which calls of HCCL are there, and what does each ask of the ranks? Each becomes a task on its stream. */
#include <stdlib.h>
#include <string.h>
#include "hccl.h"

typedef struct { int32_t kind; void *buffer; uint64_t count; int32_t type; uint32_t peer; } message_t; /* HCCL's own */
typedef struct { operation_t *operation; stream_t *stream; } grouped_t;

/* ---- from a call to a task --------------------------------------------------------------------------------------- */
static _Thread_local struct { int depth; grouped_t *call; size_t count, room; } group;

static hccl_result to_stream(operation_t *op, stream_t *stream) {
  aclError error = issue(stream, (task_t){.kind = COLLECTIVE, .operation = op});
  drop_operation(op);
  return error ? HCCL_RUNTIME : HCCL_OK;
}

static hccl_result launch(operation_t *op, handle s) {
  if (!group.depth) return to_stream(op, stream_of(s));
  if (group.count == group.room)
    group.call = realloc(group.call, (group.room = group.room ? 2 * group.room : 8) * sizeof *group.call);
  group.call[group.count++] = (grouped_t){op, stream_of(s)};
  return HCCL_OK;
}

static hccl_result verdict_on(const communicator_t *c, const call_t *call) {
  size_t width = size_of_type(call->type);
  if (!c || !width || (uint32_t)call->root >= c->ranks) return HCCL_PARAMETER;
  if (fails(name_of_kind(call->kind))) return HCCL_RUNTIME;
  bool reducing = call->kind == ALL_REDUCE || call->kind == REDUCE || call->kind == REDUCE_SCATTER;
  if (reducing && !reduces(call->type, call->reduction)) return HCCL_UNSUPPORTED;
  return call->count > (most_bytes - MOST_RANKS * sizeof(uint64_t)) / width / c->ranks ? HCCL_MEMORY : HCCL_OK;
}

static operation_t *make(communicator_t *c, call_t call, const void *from, void *to) {
  operation_t *op = calloc(1, sizeof *op);
  *op = (operation_t){.communicator = c, .call = call, .send = from, .receive = to, .holders = 1};
  c->holders++;
  return op;
}

static hccl_result collective(handle communicator, call_t call, const void *from, void *to, handle stream) {
  LOCKED;
  communicator_t *c = communicator_of(communicator);
  hccl_result refused = verdict_on(c, &call);
  return refused ? refused : launch(make(c, call, from, to), stream);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */
hccl_result HcclAllReduce(void *from, void *to, uint64_t count, int type, int reduction, handle c, handle stream) {
  return collective(c, (call_t){ALL_REDUCE, type, reduction, 0, count}, from, to, stream);
}
hccl_result HcclReduce(void *from, void *to, uint64_t count, int type, int reduction, uint32_t root, handle c,
                       handle stream) {
  return collective(c, (call_t){REDUCE, type, reduction, (int32_t)root, count}, from, to, stream);
}
hccl_result HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root, handle c, handle stream) {
  return collective(c, (call_t){BROADCAST, type, 0, (int32_t)root, count}, buffer, buffer, stream);
}
hccl_result HcclAllGather(void *from, void *to, uint64_t count, int type, handle c, handle stream) {
  return collective(c, (call_t){ALL_GATHER, type, 0, 0, count}, from, to, stream);
}
hccl_result HcclReduceScatter(void *from, void *to, uint64_t count, int type, int reduction, handle c, handle stream) {
  return collective(c, (call_t){REDUCE_SCATTER, type, reduction, 0, count}, from, to, stream);
}
hccl_result HcclScatter(void *from, void *to, uint64_t count, int type, uint32_t root, handle c, handle stream) {
  return collective(c, (call_t){SCATTER, type, 0, (int32_t)root, count}, from, to, stream);
}
hccl_result HcclBarrier(handle c, handle stream) {
  return collective(c, (call_t){.kind = BARRIER}, NULL, NULL, stream);
}

/* Parts in elements, as HCCL has them, to bytes: four lists, one after the other. */
static uint64_t *in_bytes(const uint64_t *parts[4], uint32_t ranks, size_t width) {
  uint64_t *bytes = calloc(4 * ranks, sizeof *bytes);
  for (uint32_t i = 0; i < 4 * ranks; i++) bytes[i] = parts[i / ranks][i % ranks] * width;
  return bytes;
}

static hccl_result exchange(handle communicator, call_t call, const void *from, void *to, const uint64_t *parts[4],
                            handle stream) {
  communicator_t *c = communicator_of(communicator);
  hccl_result refused = verdict_on(c, &call);
  if (refused) return refused;
  uint64_t total = 0;
  for (uint32_t q = 0; q < c->ranks; q++) total += parts[0][q];
  if (total > (most_bytes - MOST_RANKS * sizeof total) / size_of_type(call.type)) return HCCL_MEMORY;
  operation_t *op = make(c, call, from, to);
  op->bytes = in_bytes(parts, c->ranks, size_of_type(call.type));
  return launch(op, stream);
}

hccl_result HcclAlltoAllV(const void *from, const void *send_counts, const void *send_offsets, int type,
                          const void *to, const void *receive_counts, const void *receive_offsets, int receive_type,
                          handle c, handle stream) {
  const uint64_t *parts[4] = {send_counts, send_offsets, receive_counts, receive_offsets};
  LOCKED;
  if (type != receive_type) return HCCL_PARAMETER;
  return exchange(c, (call_t){.kind = ALL_TO_ALL_V, .type = type}, from, (void *)to, parts, stream);
}
hccl_result HcclAlltoAll(const void *from, uint64_t count, int type, const void *to, uint64_t receive_count,
                         int receive_type, handle c, handle stream) {
  uint64_t counts[MOST_RANKS], offsets[MOST_RANKS];
  const uint64_t *parts[4] = {counts, offsets, counts, offsets};
  for (uint32_t q = 0; q < MOST_RANKS; q++) counts[q] = count, offsets[q] = q * count;
  LOCKED;
  if (type != receive_type || count != receive_count) return HCCL_PARAMETER;
  return exchange(c, (call_t){ALL_TO_ALL, type, 0, 0, count}, from, (void *)to, parts, stream);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
static hccl_result messages(handle communicator, const item_t *item, size_t count, handle stream) {
  communicator_t *c = communicator_of(communicator);
  for (size_t i = 0; i < count; i++) {
    hccl_result refused = verdict_on(c, &item[i].call);
    if (refused || (uint32_t)item[i].call.root == c->rank) return refused ? refused : HCCL_PARAMETER;
  }
  operation_t *op = make(c, (call_t){.kind = BATCH}, NULL, NULL);
  op->item = malloc(count * sizeof *item);
  memcpy(op->item, item, count * sizeof *item);
  op->items = count;
  return launch(op, stream);
}

hccl_result HcclSend(void *from, uint64_t count, int type, uint32_t to, handle c, handle stream) {
  LOCKED;
  return messages(c, &(item_t){.call = {SEND, type, 0, (int32_t)to, count}, .buffer = from}, 1, stream);
}
hccl_result HcclRecv(void *to, uint64_t count, int type, uint32_t from, handle c, handle stream) {
  LOCKED;
  return messages(c, &(item_t){.call = {RECEIVE, type, 0, (int32_t)from, count}, .buffer = to}, 1, stream);
}
hccl_result HcclBatchSendRecv(const message_t *message, uint32_t count, handle c, handle stream) {
  LOCKED;
  if (!count || !communicator_of(c)) return HCCL_PARAMETER;
  item_t *item = calloc(count, sizeof *item);
  for (uint32_t i = 0; i < count; i++) {
    const message_t *m = &message[i];
    item[i] = (item_t){.call = {m->kind ? RECEIVE : SEND, m->type, 0, (int32_t)m->peer, m->count}, .buffer = m->buffer};
  }
  hccl_result result = messages(c, item, count, stream);
  free(item);
  return result;
}

/* ---- groups: messages between a start and its end are under way together ----------------------------------------- */
static bool merge(grouped_t *into, grouped_t *from) {
  operation_t *a = into->operation, *b = from->operation;
  if (into->stream != from->stream || a->communicator != b->communicator || !a->items || !b->items) return false;
  a->item = realloc(a->item, (a->items + b->items) * sizeof *a->item);
  memcpy(a->item + a->items, b->item, b->items * sizeof *b->item);
  a->items += b->items;
  drop_operation(b);
  return true;
}

hccl_result HcclGroupStart(void) { group.depth++; return HCCL_OK; }
hccl_result HcclGroupEnd(void) {
  LOCKED;
  if (!group.depth) return HCCL_PARAMETER;
  if (--group.depth) return HCCL_OK;
  hccl_result result = HCCL_OK;
  size_t kept = 0;
  for (size_t i = 0; i < group.count; i++)
    if (!kept || !merge(&group.call[kept - 1], &group.call[i])) group.call[kept++] = group.call[i];
  for (size_t i = 0; i < kept; i++) {
    hccl_result failed = to_stream(group.call[i].operation, group.call[i].stream);
    if (failed) result = failed;
  }
  group.count = 0;
  return result;
}
