/* kern_quant.h - shared by the loops for 8-bit and 4-bit weights: rounding of activations, and
 * storing the sums of few rows. */
#ifndef TENSOR_KERN_QUANT_H
#define TENSOR_KERN_QUANT_H

#define KB         MATMUL_K_BLOCK
#define WIDE_MAX   4
#define EACH_ROW   _Pragma("GCC unroll 8") for (int r = 0; r < n_rows; r++)
#define EACH_PANEL _Pragma("GCC unroll 4") for (int j = 0; j < n_panels; j++)
/* Prefetch distance, as in kern_matmul.h. It is not a power of two: 2 and 4 KiB were up to a tenth
 * slower than smaller or larger distances (docs/perf/). More than 4 rows prefetch otherwise. */
#define FETCH_BYTES(n_rows) ((n_rows) <= 2 ? 3072 : 4352)

/* --- rounding -------------------------------------------------------------------------------- */

static uint32_t abs_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u & 0x7fffffff;
}

static float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Returns the bits of the largest magnitude. Magnitudes are ordered like their bits; infinity and
 * NaN come last. */
static uint32_t largest_bits(const float *a, int64_t n)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = abs_bits(a[i]);
        top = MAX(u, top);
    }
    return top;
}

/* --- few rows -------------------------------------------------------------------------------- */

/* Returns the offset to prefetch in every panel while offset `at` is read: a distance further on
 * in the same panel or, past its end, at the beginning of the panel that is read next.  Panels are
 * read n_panels at a time, so the next one is n_panels further on.  After a tile's last panels it
 * lies in the next tile, which the same thread takes next (struct stretches). */
INLINE size_t fetch_offset(const struct quant_tile *t, size_t at, int n_rows, int n_panels)
{
    at += FETCH_BYTES(n_rows);
    return at < t->panel_bytes ? at : at + (size_t)(n_panels - 1) * t->panel_bytes;
}

/* Prefetches a strip's share of the panels that all strips read next (quant.h). */
INLINE void next_fetch(const struct quant_tile *t, const uint8_t *const *panel,
                       size_t block, int n_panels)
{
    size_t at = t->ahead + 64 * block * t->fetch_lines;
    for (size_t i = 0; i < t->fetch_lines; i++)
        EACH_PANEL __builtin_prefetch(panel[j] + at + 64 * i, 0, 2);
}

/* Prefetches for kernels that read one panel after another, which is one stream of memory.  Call it
 * before each block b of the k-block at `at`, which has n_blocks.  At every STREAM_BLOCKS-th block
 * it prefetches the lines of at most STREAM_BLOCKS blocks, STREAM_BYTES ahead, with a line of
 * scales per block while there are scales.  `lines`: lines of a block's numbers; scale_lines: lines
 * of a whole k-block's scales.  On Zen 5 bursts of four blocks reach 0.93 to 0.98 of the bandwidth
 * of a plain read; prefetched block by block, the same lines reach 0.85 to 0.9
 * (docs/perf/2026-11-24.md). */
#define STREAM_BLOCKS 4
#define STREAM_BYTES  4736
INLINE void stream_fetch(const uint8_t *at, size_t b, size_t n_blocks, size_t lines,
                         size_t scale_lines)
{
    size_t end = MIN(b + STREAM_BLOCKS, n_blocks);
    if (b % STREAM_BLOCKS != 0)
        return;
    size_t from = b * lines + MIN(b, scale_lines), to = end * lines + MIN(end, scale_lines);
    for (size_t i = from; i < to; i++)
        __builtin_prefetch(at + STREAM_BYTES + 64 * i, 0, 3);
}

/* Writes the sums (+ bias) to C at panel p; columns that do not exist are dropped. */
static void direct_store(const struct quant_tile *t, int p, const float *sums, int n_panels)
{
    for (int j = 0; j < n_panels; j++) {
        int64_t col = (int64_t)(p + j) * PANEL, n = t->n_cols - col;
        for (int r = 0; n > 0 && r < t->m; r++) {
            v16 y = v_load(sums + (r * n_panels + j) * PANEL);
            if (t->bias != NULL)
                y = v_add(y, v_load_upto(t->bias, DTYPE_F32, col, n));
            v_store_upto(t->c + r * t->ldc, DTYPE_F32, col, n, y);
        }
    }
}

#endif
