/* Where is device memory, and how much of it is there? Device memory is host memory. */
#include <stdlib.h>
#include <string.h>
#include "sim.h"

/* In front of each block: its size. The payload stays aligned as the device's is. */
enum { HEADER = 512, NEVER_WRITTEN = 0xA5, FREED = 0x5A };
typedef struct block { size_t bytes; struct block *next; } block_t;

static size_t live, peak, reserved, device_bytes = (size_t)64 << 30;
/* Freed blocks stay readable for a while: a graph that outlives its memory shows 0x5A instead of ending the process. */
static const size_t quarantine_most = (size_t)64 << 20;
static block_t *oldest, *newest;
static size_t quarantined;

void sim_set_memory(size_t bytes) { LOCKED; device_bytes = bytes; }
size_t sim_memory(void) { LOCKED; return device_bytes; }
size_t sim_live_bytes(void) { LOCKED; return live; }
size_t sim_reserved_bytes(void) { LOCKED; return reserved; }
size_t sim_peak_bytes(void) { LOCKED; return peak; }
void sim_reset_peak(void) { LOCKED; peak = live; }

static bool fits(size_t bytes) { return bytes <= device_bytes && live + reserved <= device_bytes - bytes; }

/* Memory that is taken from the device and never touched: the buffers of communicators. */
bool reserve_memory(size_t bytes) { return fits(bytes) && (reserved += bytes, true); }
void release_memory(size_t bytes) { reserved -= bytes; }

static aclError allocate(void **p, size_t bytes) {
  LOCKED;
  if (fails("aclrtMalloc") || !fits(bytes)) return ERROR_NO_MEMORY;
  void *raw;
  size_t room = (bytes + HEADER - 1) / HEADER * HEADER + HEADER;
  if (posix_memalign(&raw, HEADER, room)) return ERROR_NO_MEMORY;
  *(block_t *)raw = (block_t){.bytes = bytes};
  *p = (char *)raw + HEADER;
  if (!null_device) memset(*p, NEVER_WRITTEN, room - HEADER);
  if ((live += bytes) > peak) peak = live;
  return OK;
}

static void quarantine(block_t *block) {
  if (newest) newest->next = block;
  else oldest = block;
  newest = block;
  quarantined += block->bytes;
  while (quarantined > quarantine_most && oldest != newest) { /* the last one freed always stays */
    block_t *gone = oldest;
    oldest = gone->next;
    quarantined -= gone->bytes;
    free(gone);
  }
}

aclError aclrtMalloc(void **p, size_t bytes, int policy) { return allocate(p, bytes); }
aclError aclrtMallocAlign32(void **p, size_t bytes, int policy) { return allocate(p, bytes); }
aclError aclrtFree(void *p) {
  if (!p) return OK;
  LOCKED;
  block_t *block = (block_t *)((char *)p - HEADER);
  live -= block->bytes;
  if (!null_device) memset(p, FREED, block->bytes);
  quarantine(block);
  return OK;
}
aclError aclrtMallocHost(void **p, size_t bytes) { return (*p = malloc(bytes)) ? OK : ERROR_NO_MEMORY; }
aclError aclrtFreeHost(void *p) { free(p); return OK; }
aclError aclrtGetMemInfo(int attribute, size_t *free_bytes, size_t *total) {
  LOCKED;
  *total = device_bytes, *free_bytes = fits(0) ? device_bytes - live - reserved : 0;
  return OK;
}

/* The calls that do not go to a stream: a capture forbids them, unless its mode is relaxed. */
aclError aclrtMemcpy(void *dst, size_t room, const void *src, size_t bytes, int kind) {
  LOCKED;
  aclError verdict = unsafe_call();
  if (verdict == OK && !null_device) memmove(dst, src, bytes);
  return verdict;
}
aclError aclrtMemset(void *dst, size_t room, int32_t value, size_t bytes) {
  LOCKED;
  aclError verdict = unsafe_call();
  if (verdict == OK) memset(dst, value, bytes);
  return verdict;
}
aclError aclrtMemcpyAsync(void *dst, size_t room, const void *src, size_t bytes, int kind, handle stream) {
  LOCKED;
  return issue(stream_of(stream), (task_t){.kind = COPY, .dst = dst, .src = src, .bytes = bytes});
}
aclError aclrtMemsetAsync(void *dst, size_t room, int32_t value, size_t bytes, handle stream) {
  LOCKED;
  return issue(stream_of(stream), (task_t){.kind = FILL, .dst = dst, .value = value, .bytes = bytes});
}
