/* pool.h - the compute workers: fork-join over a fixed set of threads.
 *
 * pool_run divides a job into n shares, one per thread: it calls fn(arg, i, n) once for every i in
 * [0, n), with i = 0 on the calling thread, and returns when all calls have returned.  Shares may
 * run one after another on one thread (the caller takes those that no worker has begun), so fn must
 * not wait for another share.  Idle workers block after a short bounded spin; a pool that only
 * spins becomes very slow when other programs use the cores.  A pool runs one pool_run at a time; a
 * second caller waits.  The division of work never changes results: kernels split rows or columns,
 * never sums.
 *
 * Between jobs only the caller works, and at a job's end the first threads to finish wait for the
 * last.  A waiting thread leaves the memory idle: pool_expect tells it what the next job reads, and
 * it brings the beginning of its own share into its caches. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stddef.h>

#include "base/err.h"

struct pool;

typedef void pool_fn(void *arg, int thread_idx, int n_threads);

/* Creates the workers. n_threads >= 1 includes the calling thread. Returns -EAGAIN if the system
 * grants no more threads. */
int pool_create(int n_threads, struct pool **out, struct err *err);
void pool_destroy(struct pool *p); /* joins the workers; NULL is allowed */
/* returns the number of threads; p NULL counts as 1 */
int pool_threads(const struct pool *p);
/* p NULL: all shares run on this thread */
void pool_run(struct pool *p, pool_fn *fn, void *arg);

/* n_bytes of memory. */
struct pool_range {
    const void *at;
    size_t n_bytes;
};

enum { POOL_RANGES = 3 };

/* Announces n <= POOL_RANGES ranges that the jobs after the next one read, in this order.  Each
 * thread reads an equal share.  Threads that wait prefetch their shares, from the start of the next
 * job on.  A wrong announcement costs time and nothing else, even if the memory no longer exists.
 * p NULL is allowed. */
void pool_expect(struct pool *p, const struct pool_range *range, int n);

/* Computes thread i's range [*begin, *end) of [0, n_items), in multiples of `unit`. */
void pool_share(long n_items, long unit, int thread_idx, int n_threads, long *begin,
                long *end);

#endif
