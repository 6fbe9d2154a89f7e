/* How does a call of HCCL advance, when do its ranks agree, and when is it given up?
 *
 * A call begins when its stream gets to it: the rank posts its values. It can end when all ranks have posted theirs,
 * and takes what it needs from them. A rank's values stay until all have taken them, so it can be one collective
 * ahead of the slowest. A message is posted likewise, and sending ends when it is taken: HCCL buffers none. On one rank
 * a communicator is in one call at a time. What is wrong (ranks that disagree, one that died, left or does not come)
 * is written on the board once, and ends every call of the communicator that waits or begins from then on. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hccl.h"

enum { DESCRIPTION = 160, WRITING = 1, WRITTEN = 2 };
static size_t under_way, collectives, bytes_sent;

bool operations_under_way(void) { return under_way > 0; }
size_t sim_collectives(void) { LOCKED; return collectives; }
size_t sim_collective_bytes(void) { LOCKED; return bytes_sent; }

/* ---- words ------------------------------------------------------------------------------------------------------- */
const char *name_of_kind(int kind) {
  static const char *names[] = {"HcclAllReduce", "HcclReduce", "HcclBroadcast", "HcclAllGather", "HcclReduceScatter",
                                "HcclScatter", "HcclAlltoAll", "HcclAlltoAllV", "HcclBarrier", "HcclSend", "HcclRecv",
                                "HcclBatchSendRecv"};
  return names[kind];
}

static const char *describe(const call_t *call, char *text) {
  int length = snprintf(text, DESCRIPTION, "%s", name_of_kind(call->kind));
  char *rest = text + length;
  size_t left = DESCRIPTION - (size_t)length;
  if (call->kind == ALL_TO_ALL_V) snprintf(rest, left, " of %s", name_of_type(call->type));
  if (call->kind >= ALL_TO_ALL_V && call->kind != SEND && call->kind != RECEIVE) return text;
  length += snprintf(rest, left, " of %lu %s", (unsigned long)call->count, name_of_type(call->type));
  rest = text + length, left = DESCRIPTION - (size_t)length;
  if (call->kind == ALL_REDUCE || call->kind == REDUCE || call->kind == REDUCE_SCATTER)
    length += snprintf(rest, left, ", %s", name_of_reduction(call->reduction));
  rest = text + length, left = DESCRIPTION - (size_t)length;
  if (call->kind == REDUCE || call->kind == SEND) snprintf(rest, left, " to rank %d", call->root);
  if (call->kind == BROADCAST || call->kind == SCATTER || call->kind == RECEIVE)
    snprintf(rest, left, " from rank %d", call->root);
  return text;
}

/* ---- giving up --------------------------------------------------------------------------------------------------- */
static void read_board(communicator_t *c) {
  c->flight.failed = true;
  note_error("%s", c->board->why);
}

/* Always true: a call that failed is over. The first rank to find something wrong says so for all. */
__attribute__((format(printf, 2, 3))) static bool fail(communicator_t *c, const char *format, ...) {
  uint32_t before = 0;
  if (atomic_compare_exchange_strong(&c->board->broken, &before, WRITING)) {
    int length = snprintf(c->board->why, WHY_BYTES, "communicator %s of %u ranks: ", c->name, c->ranks);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->board->why + length, WHY_BYTES - (size_t)length, format, arguments);
    va_end(arguments);
    c->board->broken = WRITTEN;
  }
  for (int patience = 1 << 24; c->board->broken != WRITTEN && patience; patience--) {} /* its writer may have died */
  read_board(c);
  return true;
}

static bool fail_late(communicator_t *c, uint32_t rank) {
  char ours[DESCRIPTION], theirs[DESCRIPTION];
  const member_t *other = &c->board->member[rank];
  return fail(c, "rank %u waited %.1f s for rank %u in %s, while rank %u %s%s", c->rank, seconds() - c->flight.since,
              rank, describe(&c->flight.operation->call, ours), rank, other->busy ? "is in " : "is in no call of HCCL",
              other->busy ? describe(&other->now, theirs) : "");
}

/* Must this rank wait for that one no longer? `gone` was read before what the other rank has posted. */
static bool given_up(communicator_t *c, uint32_t rank, bool gone) {
  char ours[DESCRIPTION];
  const member_t *other = &c->board->member[rank];
  if (c->board->broken == WRITTEN) return read_board(c), true;
  if (gone)
    return fail(c, "rank %u (process %d) %s; rank %u waits for it in %s", rank, other->pid,
                other->left ? "has destroyed the communicator" : "has died", c->rank,
                describe(&c->flight.operation->call, ours));
  return seconds() - c->flight.since > rank_timeout() && fail_late(c, rank);
}

static bool is_gone(const communicator_t *c, uint32_t rank) {
  return rank != c->rank && (c->board->member[rank].left || is_dead(c, rank));
}

/* ---- collectives: what each rank posts --------------------------------------------------------------------------- */
static uint64_t sum(const uint64_t *values, uint32_t count) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < count; i++) total += values[i];
  return total;
}
static bool scatters(int kind) { return kind == ALL_TO_ALL || kind == ALL_TO_ALL_V; }

static size_t posted_bytes(const operation_t *op) {
  const call_t *call = &op->call;
  const communicator_t *c = op->communicator;
  size_t bytes = call->count * size_of_type(call->type);
  if (call->kind == BARRIER) return 0;
  if (scatters(call->kind)) return sum(op->bytes, c->ranks);
  if ((call->kind == BROADCAST || call->kind == SCATTER) && (uint32_t)call->root != c->rank) return 0;
  return call->kind == REDUCE_SCATTER || call->kind == SCATTER ? bytes * c->ranks : bytes;
}

static void post(communicator_t *c) {
  const operation_t *op = c->flight.operation;
  member_t *self = &c->board->member[c->rank];
  char *box = mailbox(c, c->rank, c->flight.number);
  if (scatters(op->call.kind)) {
    const uint64_t *length = op->bytes, *offset = op->bytes + c->ranks;
    memcpy(box, length, c->ranks * sizeof *length);
    box += c->ranks * sizeof *length;
    for (uint32_t q = 0; q < c->ranks; box += length[q++])
      if (length[q]) memcpy(box, (const char *)op->send + offset[q], length[q]);
  } else if (posted_bytes(op)) {
    memcpy(box, op->send, posted_bytes(op));
  }
  self->call[c->flight.number & 1] = op->call;
  self->posted = c->flight.number;
  c->flight.posted = true;
}

/* ---- collectives: what each rank takes --------------------------------------------------------------------------- */
static void reduce(const communicator_t *c, size_t offset) {
  const operation_t *op = c->flight.operation;
  size_t bytes = op->call.count * size_of_type(op->call.type);
  if (!bytes) return;
  for (uint32_t q = 0; q < c->ranks; q++) {
    const char *theirs = mailbox(c, q, c->flight.number) + offset;
    if (q) reduce_into(op->call.type, op->call.reduction, op->receive, theirs, op->call.count);
    else memcpy(op->receive, theirs, bytes);
  }
}

static void take_parts(const communicator_t *c) {
  const operation_t *op = c->flight.operation;
  const uint64_t *length = op->bytes + 2 * c->ranks, *offset = op->bytes + 3 * c->ranks;
  for (uint32_t q = 0; q < c->ranks; q++) {
    const char *box = mailbox(c, q, c->flight.number);
    const uint64_t *sent = (const uint64_t *)box;
    box += c->ranks * sizeof *sent + sum(sent, c->rank);
    if (length[q]) memcpy((char *)op->receive + offset[q], box, length[q]);
  }
}

static void take(const communicator_t *c) {
  const operation_t *op = c->flight.operation;
  const call_t *call = &op->call;
  size_t bytes = call->count * size_of_type(call->type);
  bool root = (uint32_t)call->root == c->rank;
  if (call->kind == ALL_REDUCE || (call->kind == REDUCE && root)) reduce(c, 0);
  if (call->kind == REDUCE_SCATTER) reduce(c, c->rank * bytes);
  if (scatters(call->kind)) take_parts(c);
  if (!bytes) return;
  if (call->kind == ALL_GATHER)
    for (uint32_t q = 0; q < c->ranks; q++)
      memcpy((char *)op->receive + q * bytes, mailbox(c, q, c->flight.number), bytes);
  if (call->kind == BROADCAST && !root)
    memcpy(op->receive, mailbox(c, (uint32_t)call->root, c->flight.number), bytes);
  if (call->kind == SCATTER)
    memcpy(op->receive, mailbox(c, (uint32_t)call->root, c->flight.number) + c->rank * bytes, bytes);
}

/* ---- collectives: do the ranks agree? ---------------------------------------------------------------------------- */
static bool same_call(const call_t *a, const call_t *b) {
  return a->kind == b->kind && a->type == b->type && a->reduction == b->reduction && a->root == b->root &&
         a->count == b->count;
}

static bool parts_differ(communicator_t *c) {
  uint32_t n = c->ranks;
  for (uint32_t q = 0; q < n; q++) {
    uint64_t sent = ((const uint64_t *)mailbox(c, q, c->flight.number))[c->rank];
    uint64_t expected = c->flight.operation->bytes[2 * n + q];
    if (sent != expected)
      return fail(c, "in %s rank %u sends %lu bytes to rank %u, which expects %lu from it",
                  name_of_kind(c->flight.operation->call.kind), q, (unsigned long)sent, c->rank,
                  (unsigned long)expected);
  }
  return false;
}

/* All have posted: every rank compares all calls with those of rank 0, and so finds the same. */
static bool differ(communicator_t *c) {
  size_t parity = c->flight.number & 1;
  const call_t *first = &c->board->member[0].call[parity];
  char ours[DESCRIPTION], theirs[DESCRIPTION];
  for (uint32_t q = 1; q < c->ranks; q++) {
    const call_t *other = &c->board->member[q].call[parity];
    if (!same_call(first, other))
      return fail(c, "its collective %lu is %s on rank 0 and %s on rank %u", (unsigned long)c->flight.number,
                  describe(first, ours), describe(other, theirs), q);
  }
  return scatters(first->kind) && parts_differ(c);
}

static bool may_post(communicator_t *c) { /* are the values of two collectives ago with all that wanted them? */
  for (uint32_t q = 0; q < c->ranks; q++) {
    if (c->board->member[q].done + 2 >= c->flight.number) continue;
    bool gone = is_gone(c, q);
    if (c->board->member[q].done + 2 < c->flight.number) return given_up(c, q, gone), false;
  }
  return true;
}

static bool all_posted(communicator_t *c) {
  if (!c->flight.posted && may_post(c)) post(c);
  if (c->flight.failed || !c->flight.posted) return c->flight.failed;
  for (uint32_t q = 0; q < c->ranks; q++) {
    if (c->board->member[q].posted >= c->flight.number) continue;
    bool gone = is_gone(c, q);
    if (c->board->member[q].posted < c->flight.number) return given_up(c, q, gone);
  }
  differ(c);
  return true;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
static bool same_way(const item_t *a, const item_t *b) {
  return a->call.kind == b->call.kind && a->call.root == b->call.root;
}

static void send(communicator_t *c, item_t *item) {
  uint32_t peer = (uint32_t)item->call.root;
  channel_t *way = channel(c, c->rank, peer);
  size_t bytes = item->call.count * size_of_type(item->call.type);
  if (item->state == NEW && way->sent == way->taken) {
    if (bytes) memcpy(message(c, c->rank, peer), item->buffer, bytes);
    way->call = item->call;
    item->ticket = ++way->sent;
    item->state = SENT;
    bytes_sent += bytes;
  }
  if (item->state == SENT && way->taken >= item->ticket) item->state = TAKEN;
}

static void receive(communicator_t *c, item_t *item) {
  uint32_t peer = (uint32_t)item->call.root;
  channel_t *way = channel(c, peer, c->rank);
  char ours[DESCRIPTION], theirs[DESCRIPTION];
  size_t bytes = item->call.count * size_of_type(item->call.type);
  if (way->sent == way->taken) return;
  if (way->call.type != item->call.type || way->call.count != item->call.count) {
    fail(c, "a message from rank %u to rank %u is %s there and %s here", peer, c->rank, describe(&way->call, theirs),
         describe(&item->call, ours));
    return;
  }
  if (bytes) memcpy(item->buffer, message(c, peer, c->rank), bytes);
  way->taken++;
  item->state = TAKEN;
}

static bool is_behind_another(const operation_t *op, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (op->item[i].state != TAKEN && same_way(&op->item[i], &op->item[index])) return true;
  return false;
}

static bool all_taken(communicator_t *c) {
  operation_t *op = c->flight.operation;
  for (size_t i = 0; i < op->items; i++) {
    item_t *item = &op->item[i];
    if (item->state == TAKEN) continue;
    bool gone = is_gone(c, (uint32_t)item->call.root);
    if (!is_behind_another(op, i)) item->call.kind == SEND ? send(c, item) : receive(c, item);
    if (c->flight.failed || (item->state != TAKEN && given_up(c, (uint32_t)item->call.root, gone))) return true;
  }
  for (size_t i = 0; i < op->items; i++) if (op->item[i].state != TAKEN) return false;
  return true;
}

/* ---- a call from its beginning to its end ------------------------------------------------------------------------ */
bool same_communicator(const operation_t *a, const operation_t *b) { return a->communicator == b->communicator; }
bool operation_begun(const operation_t *op, const void *owner) {
  return op->communicator->flight.operation == op && op->communicator->flight.owner == owner;
}
bool operation_can_begin(const operation_t *op) { return !op->communicator->flight.operation; }

bool operation_ready(const operation_t *op) {
  communicator_t *c = op->communicator;
  if (c->flight.failed) return true;
  return op->call.kind == BATCH ? all_taken(c) : all_posted(c);
}

void begin_operation(operation_t *op, const void *owner) {
  communicator_t *c = op->communicator;
  c->flight = (flight_t){.operation = op, .owner = owner, .since = seconds()};
  if (op->call.kind != BATCH) c->flight.number = ++c->number;
  for (size_t i = 0; i < op->items; i++) op->item[i].state = NEW;
  c->board->member[c->rank].now = op->items == 1 ? op->item[0].call : op->call;
  c->board->member[c->rank].busy = true;
  under_way++;
  notice_operation();
  if (c->destroyed) fail(c, "rank %u has destroyed it, and a graph that it has kept calls it", c->rank);
  else if (c->board->broken == WRITTEN) read_board(c);
  else operation_ready(op);
}

static void end_flight(communicator_t *c) {
  c->board->member[c->rank].busy = false;
  c->flight = (flight_t){0};
  under_way--;
}

aclError finish_operation(const operation_t *op) {
  communicator_t *c = op->communicator;
  aclError error = c->flight.failed ? ERROR_COLLECTIVE : OK;
  if (!error && op->call.kind != BATCH) {
    take(c);
    c->board->member[c->rank].done = c->flight.number;
    bytes_sent += posted_bytes(op);
  }
  if (!error) collectives++;
  end_flight(c);
  return error;
}

/* Its stream, its replay or its communicator ends before it. */
void abandon_operations(const void *owner) {
  for (communicator_t *c = all_communicators(); c; c = c->next) {
    char call[DESCRIPTION];
    if (!c->flight.operation || (c->flight.owner != owner && (const void *)c != owner)) continue;
    if (!c->flight.failed) fail(c, "rank %u gave up %s", c->rank, describe(&c->flight.operation->call, call));
    end_flight(c);
  }
}

void hold_operation(operation_t *op) { op->holders++; }

void drop_operation(operation_t *op) {
  if (--op->holders) return;
  drop_communicator(op->communicator);
  free(op->bytes), free(op->item), free(op);
}
