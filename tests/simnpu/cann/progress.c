/* Who runs what waited for another rank, while this process's own threads do other things?
 *
 * A device needs no host to get on. Here work runs in the threads that issue it; what such a thread has left behind a
 * call of HCCL, this thread goes on with. It begins with the first such call, and sleeps while there is none. */
#include "sim.h"

static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;

static void *get_on(void *unused) {
  LOCKED;
  for (;;) {
    while (!operations_under_way()) pthread_cond_wait(&begun, global_lock());
    wait_a_moment();
    pump();
  }
  return unused;
}

void notice_operation(void) {
  static bool started;
  pthread_t thread;
  pthread_cond_signal(&begun);
  if (!started && !pthread_create(&thread, NULL, get_on, NULL)) started = true, pthread_detach(thread);
}
