/* Who belongs to a communicator, where do its ranks meet, and are they alive?
 *
 * The ranks of a communicator are processes of one machine that map one anonymous file: the rank that makes the root
 * info creates it, the others open it by that rank's process and descriptor. So nothing is left of it when all are
 * gone, however they went. The file is large and sparse: only what was written takes memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "hccl.h"

enum { ROOT_MAGIC = 0x51AC0DE5, PAGE = 4096, DEFAULT_BUFFER = 200, BUFFER_NOT_SET = -1 };
typedef struct { uint32_t magic; pid_t pid; int descriptor; uint32_t serial; } root_info_t;
typedef struct { char head[24]; int32_t buffer_size, deterministic; char name[NAME_BYTES]; } config_t; /* its start */

const size_t most_bytes = (size_t)1 << 30; /* that a rank can post at once */
static communicator_t *communicators;
static uint32_t next_serial = 1;
static double timeout = 30;

communicator_t *all_communicators(void) { return communicators; }
void sim_set_timeout(double limit) { LOCKED; timeout = limit; }
double sim_timeout(void) { LOCKED; return timeout; }
double rank_timeout(void) { return timeout; }
double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the shared memory ------------------------------------------------------------------------------------------- */
static size_t values_start(void) { return (sizeof(board_t) + PAGE - 1) / PAGE * PAGE; }
static char *room(const communicator_t *c, size_t index) {
  return (char *)c->board + values_start() + index * most_bytes;
}
static size_t shared_bytes(uint32_t ranks) { return values_start() + (size_t)(2 * ranks + ranks * ranks) * most_bytes; }

char *mailbox(const communicator_t *c, uint32_t rank, uint64_t number) { return room(c, 2 * rank + (number & 1)); }
char *message(const communicator_t *c, uint32_t from, uint32_t to) {
  return room(c, 2 * c->ranks + from * c->ranks + to);
}
channel_t *channel(const communicator_t *c, uint32_t from, uint32_t to) {
  return &c->board->channel[from * c->ranks + to];
}

static board_t *map(const root_info_t *root, size_t bytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", root->pid, root->descriptor);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return NULL;
  void *memory = MAP_FAILED;
  if (!ftruncate(file, (off_t)bytes))
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (memory == MAP_FAILED) return NULL;
  madvise(memory, bytes, MADV_DONTDUMP); /* a process that aborts would write all of it */
  return memory;
}

/* ---- life and death ---------------------------------------------------------------------------------------------- */
static int watch(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

bool is_dead(const communicator_t *c, uint32_t rank) { /* a process that ended is dead before its parent knows */
  struct pollfd end = {.fd = c->process[rank], .events = POLLIN};
  if (end.fd >= 0) return poll(&end, 1, 0) == 1;
  pid_t pid = c->board->member[rank].pid;
  return pid && kill(pid, 0) && errno == ESRCH;
}

void drop_communicator(communicator_t *c) {
  if (--c->holders) return;
  communicator_t **link = &communicators;
  while (*link != c) link = &(*link)->next;
  *link = c->next;
  for (uint32_t q = 0; q < c->ranks; q++) if (c->process[q] >= 0) close(c->process[q]);
  munmap(c->board, c->mapped);
  free(c);
}

communicator_t *communicator_of(handle wanted) {
  for (communicator_t *c = communicators; c; c = c->next) if (c == wanted && !c->destroyed) return c;
  return NULL;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */
hccl_result HcclGetRootInfo(void *result) {
  root_info_t root = {.magic = ROOT_MAGIC, .pid = getpid(), .descriptor = memfd_create("simhccl", MFD_CLOEXEC)};
  if (root.descriptor < 0) return HCCL_MEMORY;
  LOCKED;
  root.serial = next_serial++;
  memcpy(result, &root, sizeof root);
  return HCCL_OK;
}

static const char *enrol(communicator_t *c) { /* why this rank cannot be one of these; NULL when it is */
  uint32_t before = 0;
  if (!atomic_compare_exchange_strong(&c->board->ranks, &before, c->ranks) && before != c->ranks)
    return "another rank of it says that it has another number of ranks";
  pid_t nobody = 0;
  if (!atomic_compare_exchange_strong(&c->board->member[c->rank].pid, &nobody, getpid()))
    return "another process has this rank already";
  c->board->joined++;
  return NULL;
}

static bool all_joined(communicator_t *c) { /* the lock is not held: the others may be long in coming */
  double since = seconds(), limit = sim_timeout();
  while (c->board->joined < c->ranks) {
    if (seconds() - since > limit) return false;
    usleep(200);
  }
  for (uint32_t q = 0; q < c->ranks; q++) if (q != c->rank) c->process[q] = watch(c->board->member[q].pid);
  return true;
}

static hccl_result refuse(communicator_t *c, hccl_result result, const char *why) {
  note_error("communicator %s, rank %u of %u: %s", c->name, c->rank, c->ranks, why);
  if (c->board) munmap(c->board, c->mapped);
  free(c);
  return result;
}

static hccl_result join(communicator_t *c, const root_info_t *root) {
  if (!(c->board = map(root, c->mapped)))
    return refuse(c, HCCL_MEMORY, "the process that made its root info is gone, or no memory can be shared with it");
  const char *misfit = enrol(c);
  if (misfit) return refuse(c, HCCL_PARAMETER, misfit);
  char why[96];
  snprintf(why, sizeof why, "%.0f s passed before all ranks had joined", sim_timeout());
  if (!all_joined(c)) return refuse(c, HCCL_TIMEOUT, why);
  if (root->pid == getpid()) close(root->descriptor);
  return HCCL_OK;
}

/* A device's communicator takes memory for what it sends and for what comes, at its start. */
static size_t buffers(const config_t *config) {
  const char *environment = getenv("HCCL_BUFFSIZE");
  long size = config && config->buffer_size != BUFFER_NOT_SET ? config->buffer_size
              : environment ? atol(environment) : DEFAULT_BUFFER;
  return 2 * (size_t)size * 1024 * 1024;
}

hccl_result HcclCommInitRootInfoConfig(uint32_t ranks, const void *info, uint32_t rank, const void *given,
                                       handle *result) {
  const config_t *config = given;
  root_info_t root;
  memcpy(&root, info, sizeof root);
  if (root.magic != ROOT_MAGIC || !ranks || ranks > MOST_RANKS || rank >= ranks) return HCCL_PARAMETER;
  communicator_t *c = calloc(1, sizeof *c);
  *c = (communicator_t){.rank = rank, .ranks = ranks, .mapped = shared_bytes(ranks), .holders = 1,
                        .reserved = buffers(config)};
  memset(c->process, -1, sizeof c->process);
  snprintf(c->name, sizeof c->name, "%d.%u", root.pid, root.serial);
  if (config && config->name[0]) snprintf(c->name, sizeof c->name, "%.*s", NAME_BYTES - 1, config->name);
  lock_sim();
  aclError refused = fails("HcclCommInitRootInfoConfig") ? ERROR_INTERNAL : unsafe_call();
  bool taken = !refused && reserve_memory(c->reserved);
  unlock_sim();
  if (refused) return refuse(c, HCCL_RUNTIME, "it cannot be made now; in a capture it has to be there before");
  if (!taken) return refuse(c, HCCL_MEMORY, "the device has no memory left for its buffers (HCCL_BUFFSIZE)");
  size_t reserved = c->reserved;
  hccl_result joined = join(c, &root);
  LOCKED;
  if (joined) { release_memory(reserved); return joined; }
  c->next = communicators, communicators = c;
  *result = c;
  return HCCL_OK;
}
hccl_result HcclCommInitRootInfo(uint32_t ranks, const void *info, uint32_t rank, handle *result) {
  return HcclCommInitRootInfoConfig(ranks, info, rank, NULL, result);
}

/* ---- what it is, and its end ------------------------------------------------------------------------------------- */
hccl_result HcclCommDestroy(handle wanted) {
  LOCKED;
  communicator_t *c = communicator_of(wanted);
  if (!c) return HCCL_PARAMETER;
  abandon_operations(c);
  c->destroyed = true;
  c->board->member[c->rank].left = true;
  release_memory(c->reserved);
  drop_communicator(c);
  return HCCL_OK;
}
hccl_result HcclGetCommName(handle wanted, char *name) {
  LOCKED;
  communicator_t *c = communicator_of(wanted);
  if (!c) return HCCL_PARAMETER;
  memcpy(name, c->name, NAME_BYTES);
  return HCCL_OK;
}
hccl_result HcclGetRankSize(handle wanted, uint32_t *ranks) {
  LOCKED;
  communicator_t *c = communicator_of(wanted);
  if (!c) return HCCL_PARAMETER;
  *ranks = c->ranks;
  return HCCL_OK;
}
hccl_result HcclGetRankId(handle wanted, uint32_t *rank) {
  LOCKED;
  communicator_t *c = communicator_of(wanted);
  if (!c) return HCCL_PARAMETER;
  *rank = c->rank;
  return HCCL_OK;
}
/* A device's tells of broken links alone: what fails otherwise, a synchronisation tells. */
hccl_result HcclGetCommAsyncError(handle wanted, hccl_result *error) {
  LOCKED;
  if (!communicator_of(wanted)) return HCCL_PARAMETER;
  *error = fails("HcclGetCommAsyncError") ? HCCL_REMOTE : HCCL_OK;
  return HCCL_OK;
}
uint32_t HcclGetCommConfigCapability(void) { return 3; } /* buffer size, deterministic, name */
handle sim_communicator(const char *name) { /* by its name, as kernels that meet other ranks find it; NULL: none */
  LOCKED;
  for (communicator_t *c = communicators; c; c = c->next)
    if (!c->destroyed && !strncmp(c->name, name, NAME_BYTES)) return c;
  return NULL;
}
size_t sim_communicators(void) {
  LOCKED;
  size_t count = 0;
  for (communicator_t *c = communicators; c; c = c->next) count += !c->destroyed;
  return count;
}
