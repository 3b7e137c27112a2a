/* cpu_bf16r.c - packs bf16 weights for rounded activations, and reads rows of packed ones. */
#include "tensor/cpu/bf16r.h"

#include <string.h>

const struct quant_kernels *const bf16r_all_kernels[] = {
#if defined(__x86_64__)
    &bf16r_kernels_amx,      &bf16r_kernels_avx512,
    &bf16r_kernels_avx2,
#endif
    &bf16r_kernels_portable, NULL,
};

/* Returns the address of element k of a row. */
static uint16_t *element_at(const struct weight *w, int64_t row, int64_t k)
{
    return (uint16_t *)(void *)quant_panel_at(w, row) + (k / 2 * PANEL + row % PANEL) * 2 +
           k % 2;
}

struct pack_job {
    struct weight *w;
    int64_t row;
    const uint16_t *src;
};

static void pack_rows(void *arg, int64_t begin, int64_t end)
{
    struct pack_job *job = arg;
    int64_t k = job->w->k;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < k; j++)
            *element_at(job->w, job->row + i, j) = job->src[i * k + j];
}

int cpu_bf16r_pack(struct stream *s, struct weight *w, int64_t row, const uint16_t *src,
                   int64_t n_rows)
{
    CHECK(w->k <= MATMUL_MAX_K && w->mem.bytes >= cpu_quant_bytes(w->dtype, w->n, w->k));
    int rc = stream_enter(s);
    if (rc == 0) {
        struct pack_job job = {w, row, src};
        rows_run(s, n_rows, n_rows * w->k, pack_rows, &job);
    }
    return rc;
}

int cpu_bf16r_rows(struct stream *s, struct mat out, const struct weight *w,
                   const int32_t *ids)
{
    const struct cpu_kernels *kernels = cpu_kernels_of(s);
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        for (int64_t k = 0; k < w->k; k += BF16R_BLOCK) {
            uint16_t piece[BF16R_BLOCK];
            int64_t n = MIN(w->k - k, BF16R_BLOCK);
            for (int64_t j = 0; j < n; j++)
                piece[j] = *element_at(w, ids[i], k + j);
            kernels->scale_row((char *)row_ptr(out, i) + (size_t)k * dtype_bytes(out.dtype),
                               out.dtype, piece, DTYPE_BF16, n, 1.0f);
        }
    }
    return stream_enter(s);
}
