/* kern_q8.h - rounding, and the inner loops of the product with 8-bit weights for few rows: weights
 * are widened in registers, several panels (streams of memory) at a time. */
#ifndef TENSOR_KERN_Q8_H
#define TENSOR_KERN_Q8_H

#include "tensor/cpu/kern_quant.h"

/* 1.5 * 2^23: after adding it, the low bits hold the whole number, rounded to nearest even. */
#define ROUNDER      12582912.0f
#define ROUNDER_BITS 0x4b400000

static int32_t whole(float f)
{
    int32_t i;
    f += ROUNDER;
    memcpy(&i, &f, sizeof i);
    return i - ROUNDER_BITS;
}

/* Rounds n numbers to x [256], in order of k, and fills the rest with zeros. Returns e. */
static float round_numbers(const float *a, int n, int16_t *x)
{
    uint32_t top = largest_bits(a, n);
    float largest = float_of_bits(top), scale = 32767.0f / largest;
    memset(x, 0, KB * sizeof *x);
    if (top >= INFINITY_BITS)
        return float_of_bits(0x7fc00000);
    if (largest < 0x1p-100f)
        return 0;
    for (int i = 0; i < n; i++)
        x[i] = (int16_t)whole(a[i] * scale);
    return largest / 32767.0f;
}

static float round_block(const float *a, int n, int16_t *x)
{
    int16_t straight[KB];
    float e = round_numbers(a, n, straight);
    for (int i = 0; i < KB; i += 4) { /* order 0 2 1 3 in each group of four: see q8.h */
        x[i] = straight[i];
        x[i + 1] = straight[i + 2];
        x[i + 2] = straight[i + 1];
        x[i + 3] = straight[i + 3];
    }
    return e;
}

static void round_row(const float *a, int64_t k, int16_t *x, int64_t x_step, float *e,
                      int64_t e_step)
{
    for (int64_t i = 0; i < k; i += KB) {
        int n = (int)MIN(k - i, KB);
        *e = round_block(a + i, n, x);
        x += x_step;
        e += e_step;
    }
}

/* Rounds one block of a row of W to q and its scale *d16. */
static bool round_weights(const float *w, int n, int8_t q[Q8_BLOCK], uint16_t *d16)
{
    uint32_t top = largest_bits(w, n);
    memset(q, 0, Q8_BLOCK);
    *d16 = 0;
    if (top == 0)
        return true;
    float want = float_of_bits(top) / 127.0f;
    *d16 = f32_to_f16(want);
    *d16 = (uint16_t)(*d16 + (f16_to_f32(*d16) < want));
    float d = f16_to_f32(*d16);
    if (abs_bits(d) >= INFINITY_BITS)
        return false;
    for (int i = 0; i < n; i++)
        q[i] = (int8_t)whole(w[i] / d);
    return true;
}

static bool pack_row(uint8_t *panel, int column, const float *w, int64_t k)
{
    for (int64_t i = 0; i < k; i += Q8_BLOCK) {
        int64_t kb = i / KB * KB, b = (i - kb) / Q8_BLOCK;
        uint8_t *at = panel + q8_offset(kb);
        uint8_t *scales = at + quant_blocks_at(kb, k) * Q8_BLOCK_BYTES;
        int8_t q[Q8_BLOCK];
        uint16_t d;
        if (!round_weights(w + i, (int)MIN(k - i, Q8_BLOCK), q, &d))
            return false;
        for (int g = 0; g < Q8_GROUPS; g++)
            memcpy(at + b * Q8_BLOCK_BYTES + (g * PANEL + column) * 4, q + 4 * g, 4);
        memcpy(scales + b * Q8_SCALE_BYTES + 2 * column, &d, sizeof d);
    }
    return true;
}

/* --- few rows -------------------------------------------------------------------------------- */

/* Sets s[r][j] to the exact sums over one block of 32.  `fetch`: for each panel an address to
 * prefetch; NULL: nothing is prefetched. */
INLINE void direct_block(i32 (*s)[WIDE_MAX], const int16_t *x, const uint8_t *const *w,
                         const uint8_t *const *fetch, bool into_l2, int n_rows,
                         int n_panels)
{
    EACH_ROW EACH_PANEL s[r][j] = i_zero();
    for (int g = 0; g < Q8_GROUPS; g++) {
        i16x2 even[WIDE_MAX], odd[WIDE_MAX];
        if (fetch != NULL)
            EACH_PANEL fetch_line(into_l2, fetch[j] + g * PANEL * 4);
        EACH_PANEL i_widen(w[j] + g * PANEL * 4, &even[j], &odd[j]);
        EACH_ROW
        {
            i16x2 x0 = i_set1(x + r * KB + 4 * g), x1 = i_set1(x + r * KB + 4 * g + 2);
            EACH_PANEL s[r][j] = i_dot(i_dot(s[r][j], even[j], x0), odd[j], x1);
        }
    }
}

/* Adds the k-block at k to acc[r][j]. */
INLINE void direct_k_block(v16 (*acc)[WIDE_MAX], const struct quant_tile *t,
                           const uint8_t *const *panel, int64_t k, int n_rows, int n_panels,
                           bool stream)
{
    int n_blocks = quant_blocks_at(k, t->k);
    const int16_t *x = t->x + k * t->x_rows;
    const float *e = t->e + k / KB * t->x_rows;
    const uint8_t *w[WIDE_MAX], *scales[WIDE_MAX];
    v16 p[Q8_DIRECT][WIDE_MAX];
    i32 s[Q8_DIRECT][WIDE_MAX];
    EACH_PANEL w[j] = panel[j] + q8_offset(k);
    EACH_PANEL scales[j] = w[j] + n_blocks * Q8_BLOCK_BYTES;
    EACH_ROW EACH_PANEL p[r][j] = v_zero();
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *fetch[WIDE_MAX];
        size_t ahead = fetch_offset(t, q8_offset(k) + (size_t)b * Q8_BLOCK_BYTES, n_rows,
                                    n_panels);
        EACH_PANEL fetch[j] = panel[j] + ahead;
        if (stream)
            stream_fetch(panel[0] + q8_offset(k), (size_t)b, (size_t)n_blocks,
                         Q8_BLOCK_BYTES / 64, QUANT_PER_K_BLOCK * Q8_SCALE_BYTES / 64);
        direct_block(s, x + b * Q8_BLOCK, w, stream ? NULL : fetch, t->fetch_into_l2,
                     n_rows, n_panels);
        EACH_PANEL
        {
            v16 d = v_load_f16((const uint16_t *)(scales[j] + b * Q8_SCALE_BYTES));
            EACH_ROW p[r][j] = v_fma(i_float(s[r][j]), d, p[r][j]);
            w[j] += Q8_BLOCK_BYTES;
        }
    }
    EACH_ROW EACH_PANEL acc[r][j] = v_fma(p[r][j], v_set1(e[r]), acc[r][j]);
}

/* Processes panels [p, p + n_panels); a panel beyond the tile's end is replaced by the last one,
 * and its sums are dropped. */
INLINE void direct_panels(const struct quant_tile *t, int p, int n_rows, int n_panels,
                          bool stream)
{
    const uint8_t *panel[WIDE_MAX];
    v16 acc[Q8_DIRECT][WIDE_MAX];
    EACH_PANEL panel[j] = t->w + (size_t)(p + j < t->n_panels ? p + j : t->n_panels - 1) *
                                     t->panel_bytes;
    EACH_ROW EACH_PANEL acc[r][j] = v_zero();
    for (int64_t k = 0; k < t->k; k += KB)
        direct_k_block(acc, t, panel, k, n_rows, n_panels, stream);
    float sums[Q8_DIRECT * WIDE_MAX * PANEL];
    EACH_ROW EACH_PANEL v_store(sums + (r * n_panels + j) * PANEL, acc[r][j]);
    direct_store(t, p, sums, n_panels);
}

#define DIRECT(R, WIDE)                                                                    \
    static void direct_##R(const struct quant_tile *t)                                     \
    {                                                                                      \
        for (int p = 0; p < t->n_panels; p += WIDE)                                        \
            direct_panels(t, p, R, WIDE, false);                                           \
    }                                                                                      \
    static void stream_##R(const struct quant_tile *t)                                     \
    {                                                                                      \
        for (int p = 0; p < t->n_panels; p++)                                              \
            direct_panels(t, p, R, 1, true);                                               \
    }
DIRECT(1, Q8_WIDE_1)
DIRECT(2, Q8_WIDE_2)
DIRECT(3, Q8_WIDE_4)
DIRECT(4, Q8_WIDE_4)
#if Q8_DIRECT == 8
DIRECT(5, 1)
DIRECT(6, 1)
DIRECT(7, 1)
DIRECT(8, 1)
#define OF_ROWS(HOW)                                                                       \
    {                                                                                      \
        HOW##_1, HOW##_2, HOW##_3, HOW##_4, HOW##_5, HOW##_6, HOW##_7, HOW##_8             \
    }
#else
#define OF_ROWS(HOW)                                                                       \
    {                                                                                      \
        HOW##_1, HOW##_2, HOW##_3, HOW##_4                                                 \
    }
#endif
#undef DIRECT

static void direct(const struct quant_tile *t)
{
    static void (*const by_rows[])(const struct quant_tile *t) = OF_ROWS(direct);
    by_rows[t->m - 1](t);
}

static void direct_stream(const struct quant_tile *t)
{
    static void (*const by_rows[])(const struct quant_tile *t) = OF_ROWS(stream);
    by_rows[t->m - 1](t);
}
#undef OF_ROWS

#endif
