/* cpu_q4.c - packs 4-bit and 6-bit weights, and reads rows of packed ones. */
#include "tensor/cpu/q4.h"

#include <string.h>

#include "tensor/q4_blocks.h"

const struct quant_kernels *const q4_all_kernels[] = {
#if defined(__x86_64__)
    &q4_kernels_amx,      &q4_kernels_vnni,
    &q4_kernels_avx512,   &q4_kernels_avx2,
#endif
    &q4_kernels_portable, NULL,
};

/* Addresses of the parts of one block of one column. */
struct place {
    uint8_t *numbers; /* 4 bytes in each quarter, and for q6_k in each half */
    /* f16; for q4_k and q6_k the addresses of D and M, which several blocks share. */
    uint8_t *scale, *minimum;
    uint8_t *s, *t; /* the block's own s and t, for q4_k and q6_k */
};

static bool has_minimum(enum dtype t)
{
    return t == DTYPE_Q4_1 || t == DTYPE_Q4_K;
}

static struct place place_of(const struct weight *w, int64_t row, int64_t block)
{
    int64_t kb = block * Q4_BLOCK / MATMUL_K_BLOCK * MATMUL_K_BLOCK,
            b = block - kb / Q4_BLOCK, column = row % PANEL;
    uint8_t *at = quant_panel_at(w, row) + q4_offset(w->dtype, kb);
    uint8_t *scales = at + (size_t)quant_blocks_at(kb, w->k) * q4_number_bytes(w->dtype);
    size_t of_block = (size_t)b * q4_scale_bytes(w->dtype);
    struct place p = {.numbers = at + (size_t)b * q4_number_bytes(w->dtype) + 4 * column};
    if (q4_shared_bytes(w->dtype) > 0) {
        p.scale = scales + 2 * column;
        p.s = scales + q4_shared_bytes(w->dtype) + of_block + column;
        p.t = p.s + PANEL;
    } else {
        p.scale = scales + of_block + 2 * column;
    }
    p.minimum = p.scale + 2 * PANEL;
    return p;
}

static void pack_row(const struct weight *w, int64_t row, const uint8_t *src)
{
    for (int64_t b = 0; b < w->k / Q4_BLOCK; b++) {
        struct q4_part part = q4_part_read(w->dtype, src, b);
        struct place p = place_of(w, row, b);
        for (int v = 0; v < 4; v++)
            memcpy(p.numbers + v * Q4_QUARTER_BYTES, part.q + 4 * v, 4);
        memcpy(p.scale, &part.d, 2);
        if (q4_shared_bytes(w->dtype) > 0) {
            *p.s = part.s;
            *p.t = part.t;
        }
        if (w->dtype == DTYPE_Q4_K)
            part.m ^= 0x8000; /* flips the sign: the kernels add -M * t */
        for (int h = 0; h < 2 && w->dtype == DTYPE_Q6_K; h++)
            memcpy(p.numbers + (4 + h) * Q4_QUARTER_BYTES, part.high[h], 4);
        if (has_minimum(w->dtype))
            memcpy(p.minimum, &part.m, 2);
    }
}

struct pack_job {
    struct weight *w;
    int64_t row;
    const uint8_t *src;
};

static void pack_rows(void *arg, int64_t begin, int64_t end)
{
    struct pack_job *job = arg;
    size_t bytes = q4_row_bytes(job->w->dtype, job->w->k);
    for (int64_t i = begin; i < end; i++)
        pack_row(job->w, job->row + i, job->src + (size_t)i * bytes);
}

int cpu_q4_pack(struct stream *s, struct weight *w, int64_t row, const uint8_t *src,
                int64_t n_rows)
{
    CHECK(w->k <= MATMUL_MAX_K && w->k % q4_block_weights(w->dtype) == 0);
    CHECK(w->mem.bytes >= cpu_quant_bytes(w->dtype, w->n, w->k));
    int rc = stream_enter(s);
    if (rc == 0) {
        struct pack_job job = {w, row, src};
        rows_run(s, n_rows, n_rows * w->k, pack_rows, &job);
    }
    return rc;
}

/* Sets out [32] to one block of a row. */
static void read_block(const struct weight *w, int64_t row, int64_t block, float *out)
{
    struct place p = place_of(w, row, block);
    struct q4_part part = {0};
    memcpy(&part.d, p.scale, 2);
    if (has_minimum(w->dtype))
        memcpy(&part.m, p.minimum, 2);
    if (q4_shared_bytes(w->dtype) > 0) {
        part.s = *p.s;
        part.t = *p.t;
    }
    if (w->dtype == DTYPE_Q4_K)
        part.m ^= 0x8000;
    for (int h = 0; h < 2 && w->dtype == DTYPE_Q6_K; h++)
        memcpy(part.high[h], p.numbers + (4 + h) * Q4_QUARTER_BYTES, 4);
    for (int v = 0; v < 4; v++)
        memcpy(part.q + 4 * v, p.numbers + v * Q4_QUARTER_BYTES, 4);
    for (int i = 0; i < Q4_BLOCK; i++)
        out[i] = q4_part_value(w->dtype, &part, i);
}

int cpu_q4_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids)
{
    const struct cpu_kernels *kernels = cpu_kernels_of(s);
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        for (int64_t k = 0; k < w->k; k += Q4_BLOCK) {
            float piece[Q4_BLOCK];
            read_block(w, ids[i], k / Q4_BLOCK, piece);
            kernels->scale_row((char *)row_ptr(out, i) + (size_t)k * dtype_bytes(out.dtype),
                               out.dtype, piece, DTYPE_F32, Q4_BLOCK, 1.0f);
        }
    }
    return stream_enter(s);
}
