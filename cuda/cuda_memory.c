/* cuda_memory.c - a GPU's memory: one allocation of the planned size, and the pieces cut from it.
 *
 * Before cuda_memory_reserve, and if the plan has no room (buffers of a benchmark), each piece is
 * requested from the driver; if there is no room, the log says so.  Freed memory may be taken again
 * at once, so the device is synchronised first.  That is cheap enough, because pieces come and go
 * only when an engine starts or ends. */
#include "cuda/cuda.h"

#include <errno.h>
#include <stdint.h>

#include "base/log.h"

void cuda_memory_init(struct cuda_memory *m)
{
    *m = (struct cuda_memory){0};
    pthread_mutex_init(&m->lock, NULL);
}

void cuda_memory_deinit(struct cuda_memory *m)
{
    cudaFree(m->base);
    carve_deinit(&m->carve);
    pthread_mutex_destroy(&m->lock);
}

cudaError_t cuda_memory_reserve(struct cuda_memory *m, size_t bytes)
{
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, bytes);
    if (e != cudaSuccess)
        return e;
    pthread_mutex_lock(&m->lock);
    m->base = p;
    carve_init(&m->carve, bytes);
    pthread_mutex_unlock(&m->lock);
    return cudaSuccess;
}

cudaError_t cuda_memory_take(struct cuda_memory *m, size_t bytes, void **out)
{
    size_t at = 0;
    pthread_mutex_lock(&m->lock);
    bool planned = m->base != NULL, fits = planned && carve_take(&m->carve, bytes, &at);
    pthread_mutex_unlock(&m->lock);
    *out = fits ? m->base + at : NULL;
    if (fits)
        return cudaSuccess;
    if (planned)
        log_info("device cuda: allocating %zu bytes more than the planned memory", bytes);
    return cudaMalloc(out, bytes);
}

static bool is_planned(const struct cuda_memory *m, const void *p)
{
    uintptr_t at = (uintptr_t)p, base = (uintptr_t)m->base;
    return m->base != NULL && at >= base && at - base < m->carve.bytes;
}

void cuda_memory_give(struct cuda_memory *m, void *p)
{
    if (p == NULL)
        return;
    if (!is_planned(m, p)) {
        cudaFree(p);
        return;
    }
    (void)cudaDeviceSynchronize();
    pthread_mutex_lock(&m->lock);
    bool was_taken = carve_give(&m->carve, (size_t)((uint8_t *)p - m->base));
    pthread_mutex_unlock(&m->lock);
    CHECK(was_taken);
}

size_t cuda_memory_unused(struct cuda_memory *m)
{
    pthread_mutex_lock(&m->lock);
    size_t bytes = carve_unused(&m->carve);
    pthread_mutex_unlock(&m->lock);
    return bytes;
}
