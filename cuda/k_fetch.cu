/* k_fetch.cu - a kernel that reads small data of the host.
 *
 * A copy from host memory, however small, waits in the copy engine behind all copies that other
 * streams have queued before, and its stream waits with it: milliseconds, during a restore.  A
 * kernel reads pinned memory directly. */
#include "cuda/device.cuh"
#include "cuda/launch.h"

enum { THREADS = 256, MOST_BLOCKS = 128 };

/* volatile: values that an earlier kernel left in a cache for these addresses are not used. */
static __global__ void fetch_words(uint32_t *to, const volatile uint32_t *from, unsigned n)
{
    await_stream();
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
        to[i] = from[i];
}

void gpu_fetch(cudaStream_t s, void *to, const void *from, size_t n_bytes)
{
    unsigned n = (unsigned)((n_bytes + 3) / 4), blocks = (n + THREADS - 1) / THREADS;
    LAUNCH(fetch_words, blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, THREADS, 0, s,
           (uint32_t *)to, (const volatile uint32_t *)from, n);
}
