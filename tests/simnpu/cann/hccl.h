/* What the files of the simulated HCCL share: its numbers, a communicator, and a call under way.
 *
 * Order of the files: numbers (elements, reductions) -> communicators (who belongs together) -> meeting (how a call
 * advances) -> hccl (the calls themselves). The tasks that carry calls are those of sim.h. */
#ifndef SIM_HCCL_H
#define SIM_HCCL_H
#include <stdatomic.h>
#include <sys/types.h>
#include "sim.h"

typedef int hccl_result;
enum { /* HCCL's own numbers, as are those of types and reductions */
  HCCL_OK = 0,
  HCCL_PARAMETER = 1,
  HCCL_MEMORY = 3,
  HCCL_UNSUPPORTED = 5,
  HCCL_TIMEOUT = 9,
  HCCL_RUNTIME = 15,
  HCCL_REMOTE = 21,
};
enum { MOST_RANKS = 32, NAME_BYTES = 128, WHY_BYTES = 640 };

typedef enum {
  ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SCATTER, ALL_TO_ALL, ALL_TO_ALL_V, BARRIER,
  SEND, RECEIVE, BATCH
} call_kind_t;
typedef struct { /* what all ranks must say alike; for SEND and RECEIVE root is the peer */
  int32_t kind, type, reduction, root;
  uint64_t count;
} call_t;

typedef struct {
  _Atomic pid_t pid;
  _Atomic bool left, busy;       /* has destroyed the communicator; is in the call `now` */
  _Atomic uint64_t posted, done; /* the last collective it came to, and the last whose values it took from all others */
  call_t call[2], now;           /* call: of the collective `posted` and the one before, by parity */
} member_t;
typedef struct { _Atomic uint64_t sent, taken; call_t call; } channel_t;
typedef struct { /* at the start of the memory that the ranks of a communicator share; the values come after it */
  _Atomic uint32_t ranks, joined, broken; /* broken: 0 no, 1 being written, 2 yes, and `why` can be read */
  char why[WHY_BYTES];
  member_t member[MOST_RANKS];
  channel_t channel[MOST_RANKS * MOST_RANKS]; /* from rank a to rank b: at a * ranks + b */
} board_t;

typedef enum { NEW, SENT, TAKEN } item_state_t;
typedef struct { call_t call; void *buffer; item_state_t state; uint64_t ticket; } item_t;
typedef struct communicator communicator_t;
struct operation {
  communicator_t *communicator;
  call_t call;
  const void *send;
  void *receive;
  uint64_t *bytes;    /* ALL_TO_ALL(_V): how many go to each rank, from which offset; come from each rank, to which */
  item_t *item;       /* BATCH: its messages */
  size_t items;
  int holders;
};
typedef struct {
  operation_t *operation; /* NULL: the communicator is idle on this rank */
  const void *owner;      /* the stream or replay that runs it */
  uint64_t number;        /* which collective of the communicator it is */
  double since;
  bool posted, failed;
} flight_t;
struct communicator {
  board_t *board;
  size_t mapped, reserved;
  uint32_t rank, ranks;
  char name[NAME_BYTES];
  int process[MOST_RANKS]; /* of the others: descriptors that tell when they end; -1 where there is none */
  uint64_t number;
  flight_t flight;
  int holders;             /* the handle and every operation */
  bool destroyed;
  communicator_t *next;
};

#pragma GCC visibility push(hidden)
size_t size_of_type(int type);                                    /* numbers.c */
const char *name_of_type(int type);
const char *name_of_reduction(int reduction);
bool reduces(int type, int reduction);
void reduce_into(int type, int reduction, void *to, const void *from, uint64_t count);

communicator_t *all_communicators(void);                          /* communicators.c */
communicator_t *communicator_of(handle communicator);
void drop_communicator(communicator_t *communicator);
char *mailbox(const communicator_t *communicator, uint32_t rank, uint64_t number);
channel_t *channel(const communicator_t *communicator, uint32_t from, uint32_t to);
char *message(const communicator_t *communicator, uint32_t from, uint32_t to);
bool is_dead(const communicator_t *communicator, uint32_t rank);
double seconds(void);
double rank_timeout(void);
extern const size_t most_bytes;

const char *name_of_kind(int kind);                               /* meeting.c */
#pragma GCC visibility pop
#endif
