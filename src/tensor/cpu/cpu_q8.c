/* cpu_q8.c - packs 8-bit weights, and reads rows of packed ones. */
#include "tensor/cpu/q8.h"

#include <errno.h>
#include <string.h>

const struct quant_kernels *const q8_all_kernels[] = {
#if defined(__x86_64__)
    &q8_kernels_amx,      &q8_kernels_vnni,
    &q8_kernels_avx512,   &q8_kernels_avx2,
#endif
    &q8_kernels_portable, NULL,
};

/* --- packing: done once, at load -------------------------------------------------------------- */

struct q8_pack_job {
    const struct quant_kernels *kernels;
    struct weight *w;
    int64_t row;
    const float *src;
    atomic_bool refused;
};

static void pack_rows(void *arg, int64_t begin, int64_t end)
{
    struct q8_pack_job *job = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = job->row + i;
        if (!job->kernels->pack_row(quant_panel_at(job->w, row), (int)(row % PANEL),
                                    job->src + i * job->w->k, job->w->k))
            atomic_store(&job->refused, true);
    }
}

int cpu_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows)
{
    CHECK(w->k <= MATMUL_MAX_K && w->mem.bytes >= cpu_quant_bytes(w->dtype, w->n, w->k));
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    struct q8_pack_job job = {
        .kernels = quant_kernels_of(q8_all_kernels, s), .w = w, .row = row, .src = src};
    rows_run(s, n_rows, n_rows * w->k, pack_rows, &job);
    return atomic_load(&job.refused) ? -ERANGE : 0;
}

/* Sets out [n] to elements [k, k + n) of a row, all inside one block of 32. */
static void read_block(const struct weight *w, int64_t row, int64_t k, int64_t n,
                       float *out)
{
    int64_t kb = k / MATMUL_K_BLOCK * MATMUL_K_BLOCK, b = (k - kb) / Q8_BLOCK,
            column = row % PANEL;
    const uint8_t *at = quant_panel_at(w, row) + q8_offset(kb);
    const int8_t *q = (const int8_t *)at + b * Q8_BLOCK_BYTES;
    uint16_t d;
    memcpy(&d,
           at + quant_blocks_at(kb, w->k) * Q8_BLOCK_BYTES + b * Q8_SCALE_BYTES +
               2 * column,
           sizeof d);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)q[(i / 4 * PANEL + column) * 4 + i % 4] * f16_to_f32(d);
}

int cpu_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids)
{
    const struct cpu_kernels *kernels = cpu_kernels_of(s);
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        for (int64_t k = 0; k < w->k; k += Q8_BLOCK) {
            int64_t n = MIN(w->k - k, Q8_BLOCK);
            float piece[Q8_BLOCK];
            read_block(w, ids[i], k, n, piece);
            kernels->scale_row((char *)row_ptr(out, i) + (size_t)k * dtype_bytes(out.dtype),
                               out.dtype, piece, DTYPE_F32, n, 1.0f);
        }
    }
    return stream_enter(s);
}
