/* cpu_q8.c - packs 8-bit weights, and reads rows of packed ones. */
#include "tensor/cpu/q8.h"

#include "tensor/q8_blocks.h"

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

/* --- packing blocks of q8_0 ---------------------------------------------------------------------
 *
 * A block whose largest number is 127 in size, as quantising programs make them, is already what
 * rounding its decoded numbers would give, and only moves.  Others are rounded anew. */

enum { Q8_0_BYTES = 2 + Q8_BLOCK };

/* Returns whether a block can be moved as it is. */
static bool is_exact(const uint8_t *block)
{
    uint8_t has_127 = 0, has_128 = 0;
    uint16_t d;
    memcpy(&d, block, sizeof d);
    for (int i = 0; i < Q8_BLOCK; i++) {
        uint8_t q = block[2 + i];
        has_127 |= (uint8_t)((q == 127) | (q == 129));
        has_128 |= (uint8_t)(q == 128);
    }
    return has_127 != 0 && has_128 == 0 && d > 0 && d < 0x7c00;
}

/* Makes the block that holds the decoded numbers. Returns false if 8 bits cannot hold them. */
static bool round_block(const uint8_t *block, uint8_t out[Q8_0_BYTES])
{
    uint16_t d;
    float w[Q8_BLOCK];
    memcpy(&d, block, sizeof d);
    for (int i = 0; i < Q8_BLOCK; i++)
        w[i] = f16_to_f32(d) * (float)(int8_t)block[2 + i];
    bool fits = q8_round(w, Q8_BLOCK, &d, (int8_t *)out + 2);
    memcpy(out, &d, sizeof d);
    return fits;
}

struct blocks_job {
    struct weight *w;
    int64_t row;
    const uint8_t *src;
    atomic_bool refused;
};

/* Packs n rows of one panel, the first in column c0. */
static bool pack_blocks(const struct weight *w, uint8_t *panel, int c0, int n,
                        const uint8_t *src)
{
    size_t stride = (size_t)(w->k / Q8_BLOCK) * Q8_0_BYTES;
    bool fits = true;
    for (int64_t b = 0; b < w->k / Q8_BLOCK; b++, src += Q8_0_BYTES) {
        int64_t kb = b * Q8_BLOCK / MATMUL_K_BLOCK * MATMUL_K_BLOCK, i = b - kb / Q8_BLOCK;
        uint8_t *at = panel + q8_offset(kb), *numbers = at + i * Q8_BLOCK_BYTES;
        uint8_t *scales = at + quant_blocks_at(kb, w->k) * Q8_BLOCK_BYTES +
                          i * Q8_SCALE_BYTES;
        for (int c = 0; c < n; c++) {
            uint8_t made[Q8_0_BYTES];
            const uint8_t *block = src + (size_t)c * stride;
            if (!is_exact(block)) {
                fits &= round_block(block, made);
                block = made;
            }
            memcpy(scales + 2 * (c0 + c), block, 2);
            for (int g = 0; g < Q8_GROUPS; g++)
                memcpy(numbers + 4 * (g * PANEL + c0 + c), block + 2 + 4 * g, 4);
        }
    }
    return fits;
}

static void pack_block_rows(void *arg, int64_t begin, int64_t end)
{
    struct blocks_job *job = arg;
    size_t bytes = (size_t)(job->w->k / Q8_BLOCK) * Q8_0_BYTES;
    for (int64_t i = begin, n; i < end; i += n) {
        int64_t row = job->row + i;
        n = MIN(end - i, PANEL - row % PANEL);
        if (!pack_blocks(job->w, quant_panel_at(job->w, row), (int)(row % PANEL), (int)n,
                         job->src + (size_t)i * bytes))
            atomic_store(&job->refused, true);
    }
}

int cpu_q8_pack_blocks(struct stream *s, struct weight *w, int64_t row, const uint8_t *src,
                       int64_t n_rows)
{
    CHECK(w->dtype == DTYPE_Q8 && w->k <= MATMUL_MAX_K && w->k % Q8_BLOCK == 0);
    CHECK(row >= 0 && row + n_rows <= w->n);
    CHECK(w->mem.bytes >= cpu_quant_bytes(w->dtype, w->n, w->k));
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    struct blocks_job job = {.w = w, .row = row, .src = src};
    rows_run(s, n_rows, n_rows * w->k, pack_block_rows, &job);
    return atomic_load(&job.refused) ? -ERANGE : 0;
}

/* --- rows ------------------------------------------------------------------------------------- */

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
