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
    uint8_t *s, *t; /* the block's own s and t, for q4_k and q6_k; iq4_xs has no t */
};

/* Returns the bytes of a scale: f16, or the exponent of mxfp4. */
static size_t scale_bytes(enum dtype t)
{
    return t == DTYPE_MXFP4 ? 1 : 2;
}

/* Returns where a block of a row lies in its panel: its numbers and its scales (q4.h). */
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
        p.scale = scales + of_block + scale_bytes(w->dtype) * (size_t)column;
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
        memcpy(p.scale, &part.d, scale_bytes(w->dtype)); /* its low byte first */
        if (q4_shared_bytes(w->dtype) > 0)
            *p.s = part.s;
        if (q4_shared_bytes(w->dtype) > 0 && w->dtype != DTYPE_IQ4_XS)
            *p.t = part.t;
        if (w->dtype == DTYPE_Q4_K)
            part.m ^= 0x8000; /* flips the sign: the kernels add -M * t */
        for (int h = 0; h < 2 && w->dtype == DTYPE_Q6_K; h++)
            memcpy(p.numbers + (4 + h) * Q4_QUARTER_BYTES, part.high[h], 4);
        if (q4_has_minimum(w->dtype))
            memcpy(p.minimum, &part.m, 2);
    }
}

/* --- whole panels ------------------------------------------------------------------------------
 *
 * The rows of a panel are packed together: words of 4 bytes of all 16 rows become lines of 64
 * bytes, and the bits of a line move in whole vectors.  (One row at a time wrote 4 bytes of each
 * line; packing was five times slower.)  Loops of 16 have a fixed length, so that the compiler
 * vectorizes them. */

/* A line of words, one of each row. */
typedef uint32_t line[PANEL];

static const uint32_t LOW4 = 0x0f0f0f0f, LOW2 = 0x03030303;

/* Reads n words of each row, from rows that are `stride` bytes apart. */
static void lines_read(line *out, int n, const uint8_t *src, size_t stride)
{
    for (int c = 0; c < PANEL; c++, src += stride)
        for (int i = 0; i < n; i++)
            memcpy(&out[i][c], src + 4 * i, 4);
}

/* Writes the four quarters of a block of 32 numbers per row. Each byte of the eight lines of `from`
 * has the low 4 bits of one number: in its low half if shift is 0, in its high half if shift is 4.
 * Quarter v has those of line v in its low halves, and those of line v + 4 in its high halves. */
static void write_quarters(uint8_t *numbers, line *from, int shift)
{
    for (int v = 0; v < 4; v++) {
        line out;
        for (int c = 0; c < PANEL; c++)
            out[c] = (from[v][c] >> shift & LOW4) | (from[v + 4][c] >> shift & LOW4) << 4;
        memcpy(numbers + v * Q4_QUARTER_BYTES, out, sizeof out);
    }
}

/* Packs one block of 32 weights of 16 rows of q4_0, q4_1, mxfp4 or iq4_nl. */
static void pack_small(enum dtype t, const struct place *p, const uint8_t *src,
                       size_t stride)
{
    size_t head = q4_block_bytes(t) - 16, of_scale = scale_bytes(t);
    line q[4];
    lines_read(q, 4, src + head, stride);
    memcpy(p->numbers, q, sizeof q);
    for (int c = 0; c < PANEL; c++, src += stride) {
        memcpy(p->scale + of_scale * (size_t)c, src, of_scale);
        if (t == DTYPE_Q4_1)
            memcpy(p->minimum + 2 * c, src + 2, 2);
    }
}

/* Writes s and t of the eight parts of a block of q4_k, of one column. The masks work on four parts
 * at a time. */
static void write_scales_k(const struct place *p, int c, const uint8_t *src)
{
    uint32_t w[3], of[2][2];
    const uint32_t low6 = 0x3f3f3f3f;
    memcpy(w, src, sizeof w);
    for (int i = 0; i < 2; i++) {
        of[i][0] = w[i] & low6;
        of[i][1] = (w[2] >> 4 * i & LOW4) | (w[i] >> 6 & LOW2) << 4;
    }
    uint8_t s[8], t[8];
    memcpy(s, of[0], sizeof s);
    memcpy(t, of[1], sizeof t);
    for (int j = 0; j < 8; j++) {
        p->s[2 * PANEL * j + c] = s[j];
        p->t[2 * PANEL * j + c] = t[j];
    }
}

/* Packs one block of 256 weights of 16 rows of q4_k. */
static void pack_k4(const struct place *p, const uint8_t *src, size_t stride)
{
    for (int j = 0; j < 4; j++) {
        line q[8];
        lines_read(q, 8, src + 16 + 32 * j, stride);
        write_quarters(p->numbers + 2 * j * Q4_BLOCK_BYTES, q, 0);
        write_quarters(p->numbers + (2 * j + 1) * Q4_BLOCK_BYTES, q, 4);
    }
    for (int c = 0; c < PANEL; c++, src += stride) {
        memcpy(p->scale + 2 * c, src, 2);
        memcpy(p->minimum + 2 * c, src + 2, 2);
        p->minimum[2 * c + 1] ^= 0x80; /* flips the sign: the kernels add -M * t */
        write_scales_k(p, c, src + 4);
    }
}

/* Packs one block of 256 weights of 16 rows of q6_k. */
static void pack_k6(const struct place *p, const uint8_t *src, size_t stride)
{
    const size_t block = q4_number_bytes(DTYPE_Q6_K);
    for (int half = 0; half < 2; half++) {
        line low[16], high[8];
        lines_read(low, 16, src + 64 * half, stride);
        lines_read(high, 8, src + 128 + 32 * half, stride);
        for (int j = 0; j < 4; j++) { /* part 4 * half + j */
            uint8_t *at = p->numbers + (size_t)(4 * half + j) * block;
            write_quarters(at, low + 8 * (j % 2), j / 2 * 4);
            for (int h = 0; h < 2; h++) {
                line out = {0};
                for (int v = 0; v < 4; v++)
                    for (int c = 0; c < PANEL; c++)
                        out[c] |= (high[4 * h + v][c] >> 2 * j & LOW2) << 2 * v;
                memcpy(at + (4 + h) * Q4_QUARTER_BYTES, out, sizeof out);
            }
        }
    }
    for (int c = 0; c < PANEL; c++, src += stride) {
        memcpy(p->scale + 2 * c, src + 208, 2);
        for (int j = 0; j < 8; j++) {
            p->s[2 * PANEL * j + c] = src[192 + 2 * j];
            p->t[2 * PANEL * j + c] = src[193 + 2 * j];
        }
    }
}

/* Packs one block of 256 weights of 16 rows of iq4_xs. */
static void pack_xs(const struct place *p, const uint8_t *src, size_t stride)
{
    for (int j = 0; j < 8; j++) {
        line q[4];
        lines_read(q, 4, src + 8 + 16 * j, stride);
        memcpy(p->numbers + (size_t)j * Q4_BLOCK_BYTES, q, sizeof q);
    }
    for (int c = 0; c < PANEL; c++, src += stride) {
        memcpy(p->scale + 2 * c, src, 2);
        for (int j = 0; j < 8; j++)
            p->s[PANEL * j + c] = (uint8_t)q4_xs_scale(src, j);
    }
}

/* Packs the 16 rows of the panel that begins with `row`. */
static void pack_panel(const struct weight *w, int64_t row, const uint8_t *src)
{
    enum dtype t = w->dtype;
    size_t stride = q4_row_bytes(t, w->k);
    int64_t step = q4_block_weights(t) / Q4_BLOCK;
    for (int64_t b = 0; b < w->k / Q4_BLOCK; b += step, src += q4_block_bytes(t)) {
        struct place p = place_of(w, row, b);
        if (t == DTYPE_Q4_K)
            pack_k4(&p, src, stride);
        else if (t == DTYPE_Q6_K)
            pack_k6(&p, src, stride);
        else if (t == DTYPE_IQ4_XS)
            pack_xs(&p, src, stride);
        else
            pack_small(t, &p, src, stride);
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
    for (int64_t i = begin, n; i < end; i += n) {
        int64_t row = job->row + i;
        const uint8_t *src = job->src + (size_t)i * bytes;
        n = row % PANEL == 0 && end - i >= PANEL ? PANEL : 1;
        if (n == PANEL)
            pack_panel(job->w, row, src);
        else
            pack_row(job->w, row, src);
    }
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
    memcpy(&part.d, p.scale, scale_bytes(w->dtype));
    if (q4_has_minimum(w->dtype))
        memcpy(&part.m, p.minimum, 2);
    if (q4_shared_bytes(w->dtype) > 0)
        part.s = *p.s;
    if (q4_shared_bytes(w->dtype) > 0 && w->dtype != DTYPE_IQ4_XS)
        part.t = *p.t;
    if (w->dtype == DTYPE_Q4_K)
        part.m ^= 0x8000;
    for (int h = 0; h < 2 && w->dtype == DTYPE_Q6_K; h++)
        memcpy(part.high[h], p.numbers + (4 + h) * Q4_QUARTER_BYTES, 4);
    for (int v = 0; v < 4; v++)
        memcpy(part.q + 4 * v, p.numbers + v * Q4_QUARTER_BYTES, 4);
    q4_part_values(w->dtype, &part, out);
}

struct rows_job {
    const struct cpu_kernels *kernels;
    struct mat out;
    const struct weight *w;
    const int32_t *ids;
};

static void read_rows(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        CHECK(j->ids[i] >= 0 && j->ids[i] < j->w->n);
        for (int64_t k = 0; k < j->w->k; k += Q4_BLOCK) {
            float piece[Q4_BLOCK];
            read_block(j->w, j->ids[i], k / Q4_BLOCK, piece);
            j->kernels->scale_row((char *)row_ptr(j->out, i) +
                                      (size_t)k * dtype_bytes(j->out.dtype),
                                  j->out.dtype, piece, DTYPE_F32, Q4_BLOCK, 1.0f);
        }
    }
}

int cpu_q4_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids)
{
    int rc = stream_enter(s);
    if (rc == 0) {
        struct rows_job job = {cpu_kernels_of(s), out, w, ids};
        rows_run(s, out.rows, out.rows * w->k, read_rows, &job);
    }
    return rc;
}
