/* cuda_q8.c - 8-bit weights on a GPU: the host rounds them, at load (k_q8.cu computes with them).
 */
#include "cuda/cuda.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tensor/q8_blocks.h"

size_t cuda_q8_bytes(int64_t n, int64_t k)
{
    return (size_t)(n * q8_blocks(k)) * (Q8_BLOCK + sizeof(uint16_t));
}

struct gpu_q8 cuda_q8(const struct weight *w)
{
    int64_t blocks = q8_blocks(w->k);
    const int8_t *q = w->mem.ptr;
    return (struct gpu_q8){
        .q = q,
        .d = (const uint16_t *)(const void *)(q + w->n * blocks * Q8_BLOCK),
        .n_blocks = (int)blocks};
}

struct pack_job {
    const float *src; /* [n_rows][k] */
    int8_t *q;        /* [n_rows][blocks][32] */
    uint16_t *d;      /* [n_rows][blocks] */
    int64_t n_rows, k;
    atomic_bool refused;
};

static void pack_share(void *arg, int thread_idx, int n_threads)
{
    struct pack_job *j = arg;
    long begin, end;
    int64_t blocks = q8_blocks(j->k);
    pool_share((long)j->n_rows, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = i * blocks + b, k = b * Q8_BLOCK,
                    n = j->k - k < Q8_BLOCK ? j->k - k : Q8_BLOCK;
            if (!q8_round(j->src + i * j->k + k, n, &j->d[at], j->q + at * Q8_BLOCK))
                atomic_store(&j->refused, true);
        }
}

/* Copies packed rows up and waits, so that their memory on the host can be freed. */
static int send(struct stream *s, const struct weight *w, int64_t row,
                const struct pack_job *j)
{
    size_t blocks = (size_t)q8_blocks(w->k), n = (size_t)j->n_rows * blocks;
    uint8_t *q = (uint8_t *)w->mem.ptr + (size_t)row * blocks * Q8_BLOCK;
    uint8_t *d = (uint8_t *)w->mem.ptr + (size_t)w->n * blocks * Q8_BLOCK +
                 (size_t)row * blocks * sizeof *j->d;
    int rc = stream_copy(s, q, j->q, n * Q8_BLOCK);
    if (rc == 0)
        rc = stream_copy(s, d, j->d, n * sizeof *j->d);
    return rc == 0 ? stream_sync(s) : rc;
}

int cuda_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                 int64_t n_rows)
{
    size_t n = (size_t)(n_rows * q8_blocks(w->k));
    CHECK(w->k <= MATMUL_MAX_K);
    if (n == 0)
        return atomic_load(&s->code);
    struct pack_job j = {.src = src,
                         .q = mem_try(n * Q8_BLOCK),
                         .d = mem_try(n * sizeof *j.d),
                         .n_rows = n_rows,
                         .k = w->k};
    int rc = j.q == NULL || j.d == NULL ? -ENOMEM : 0;
    if (rc == 0)
        pool_run(s->device->pool, pack_share, &j);
    if (rc == 0)
        rc = atomic_load(&j.refused) ? -ERANGE : send(s, w, row, &j);
    free(j.q);
    free(j.d);
    return rc;
}
