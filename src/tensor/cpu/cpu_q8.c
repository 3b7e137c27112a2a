/* cpu_q8.c - packs 8-bit weights, reads rows of them, and computes what rounding leaves out. */
#include "tensor/cpu/q4.h"

#include "tensor/q8_blocks.h"

#include <errno.h>
#include <string.h>

/* --- packing: done once, at load -------------------------------------------------------------- */

/* Addresses of block b of a row: 4 bytes in each of Q8_BLOCK / 4 lines, and an f16. */
struct place {
    uint8_t *numbers, *scale;
};

static struct place place_of(const struct weight *w, int64_t row, int64_t block)
{
    int64_t kb = block * Q8_BLOCK / MATMUL_K_BLOCK * MATMUL_K_BLOCK,
            b = block - kb / Q8_BLOCK, column = row % PANEL;
    size_t bytes = q4_number_bytes(DTYPE_Q8), of_scale = q4_scale_bytes(DTYPE_Q8);
    uint8_t *at = quant_panel_at(w, row) + q4_offset(DTYPE_Q8, kb);
    return (struct place){at + (size_t)b * bytes + 4 * column,
                          at + (size_t)quant_blocks_at(kb, w->k) * bytes +
                              (size_t)b * of_scale + 2 * column};
}

static void block_write(struct place p, uint16_t d, const void *q)
{
    memcpy(p.scale, &d, sizeof d);
    for (int g = 0; g < Q8_BLOCK / 4; g++)
        memcpy(p.numbers + g * 4 * PANEL, (const uint8_t *)q + 4 * g, 4);
}

struct pack_job {
    struct weight *w;
    int64_t row;
    const void *src;
    atomic_bool refused;
};

static void pack_rows(void *arg, int64_t begin, int64_t end)
{
    struct pack_job *job = arg;
    int64_t k = job->w->k;
    for (int64_t i = begin; i < end; i++)
        for (int64_t b = 0; b < quant_blocks_of(k); b++) {
            const float *from = (const float *)job->src + i * k + b * Q8_BLOCK;
            int8_t q[Q8_BLOCK];
            uint16_t d;
            if (!q8_round(from, MIN(k - b * Q8_BLOCK, Q8_BLOCK), &d, q))
                atomic_store(&job->refused, true);
            block_write(place_of(job->w, job->row + i, b), d, q);
        }
}

/* Runs fn over rows [row, row + n_rows). Returns -ERANGE if 8 bits cannot hold a number. */
static int pack(struct stream *s, rows_fn *fn, struct weight *w, int64_t row,
                const void *src, int64_t n_rows)
{
    CHECK(w->k <= MATMUL_MAX_K && w->mem.bytes >= cpu_quant_bytes(w->dtype, w->n, w->k));
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    struct pack_job job = {.w = w, .row = row, .src = src};
    rows_run(s, n_rows, n_rows * w->k, fn, &job);
    return atomic_load(&job.refused) ? -ERANGE : 0;
}

int cpu_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows)
{
    return pack(s, pack_rows, w, row, src, n_rows);
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

/* Packs rows panel by panel, block by block: the rows of a panel share lines of memory. */
static void pack_block_rows(void *arg, int64_t begin, int64_t end)
{
    struct pack_job *job = arg;
    size_t bytes = (size_t)(job->w->k / Q8_BLOCK) * Q8_0_BYTES;
    for (int64_t i = begin, n; i < end; i += n) {
        n = MIN(end - i, PANEL - (job->row + i) % PANEL);
        for (size_t b = 0; b < bytes; b += Q8_0_BYTES)
            for (int64_t c = i; c < i + n; c++) {
                uint8_t made[Q8_0_BYTES];
                const uint8_t *block = (const uint8_t *)job->src + (size_t)c * bytes + b;
                uint16_t d;
                if (!is_exact(block)) {
                    if (!round_block(block, made))
                        atomic_store(&job->refused, true);
                    block = made;
                }
                memcpy(&d, block, sizeof d);
                block_write(place_of(job->w, job->row + c, (int64_t)(b / Q8_0_BYTES)), d,
                            block + 2);
            }
    }
}

int cpu_q8_pack_blocks(struct stream *s, struct weight *w, int64_t row, const uint8_t *src,
                       int64_t n_rows)
{
    CHECK(w->dtype == DTYPE_Q8 && w->k % Q8_BLOCK == 0);
    CHECK(row >= 0 && row + n_rows <= w->n);
    return pack(s, pack_block_rows, w, row, src, n_rows);
}

/* --- what rounding leaves out ----------------------------------------------------------------- */

struct rest_job {
    const struct quant_kernels *kernels;
    struct mat out, a;
};

/* Sets out [n] to the rest of one k-block; n <= MATMUL_K_BLOCK. */
static void rest_of(const struct quant_kernels *kernels, float *out, const float *a,
                    int64_t n)
{
    _Alignas(64) float at[Q4_ROW_BYTES / sizeof(float)];
    kernels->round_row(a, n, (int16_t *)(void *)at, 0);
    for (int64_t i = 0; i < n; i++) {
        /* a base is 1.5 * 2^23 times its block's step */
        float step = at[Q4_BASES + i / Q4_BLOCK] / 0x1.8p23f;
        out[i] = a[i] - (float)((const int8_t *)at)[i] * step * at[Q4_E];
    }
}

static void rest_rows(void *arg, int64_t begin, int64_t end)
{
    const struct rest_job *job = arg;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < job->a.cols; k += MATMUL_K_BLOCK)
            rest_of(job->kernels, (float *)row_ptr(job->out, i) + k,
                    (const float *)row_ptr(job->a, i) + k,
                    MIN(job->a.cols - k, MATMUL_K_BLOCK));
}

int cpu_round_rest(struct stream *s, struct mat out, struct mat a)
{
    check_same_shape(out, a);
    check_f32(out);
    check_f32(a);
    int rc = stream_enter(s);
    if (rc == 0) {
        struct rest_job job = {quant_kernels_of(q4_all_kernels, s), out, a};
        rows_run(s, a.rows, a.rows * a.cols, rest_rows, &job);
    }
    return rc;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Sets out [n] to the first n elements of a block. */
static void read_block(struct place p, int64_t n, float *out)
{
    uint16_t d;
    memcpy(&d, p.scale, sizeof d);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(int8_t)p.numbers[i / 4 * 4 * PANEL + i % 4] * f16_to_f32(d);
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
            read_block(place_of(w, ids[i], k / Q8_BLOCK), n, piece);
            kernels->scale_row((char *)row_ptr(out, i) + (size_t)k * dtype_bytes(out.dtype),
                               out.dtype, piece, DTYPE_F32, n, 1.0f);
        }
    }
    return stream_enter(s);
}
