/* kern_q4.h - rounding, and the inner loops of the product with weights in blocks for few rows:
 * weights are widened in registers, several panels (streams of memory) at a time. */
#ifndef TENSOR_KERN_Q4_H
#define TENSOR_KERN_Q4_H

#include "tensor/cpu/kern_quant.h"
#include "tensor/q4_blocks.h"

/* --- rounding -------------------------------------------------------------------------------- */

/* A k-block whose largest magnitude is below 2^-100 counts as zero; from 2^110 on, as infinite. */
#define LEAST_BITS 0x0d800000u
#define MOST_BITS  0x76800000u

/* Sets sums [16] to the sums of the 16 halves of blocks x [256]: products with ones, in fours. */
INLINE void half_sums(const int8_t *x, int32_t *sums)
{
    static const uint8_t ones[4] = {1, 1, 1, 1};
    static const int32_t zero = 0;
    float bits[4][16];
    int32_t fours[16][4];
    for (int i = 0; i < 4; i++) {
        i8x4 four = i_load4(x + 64 * i);
        i_half_sum s = i_half_dot(i_half_begin(i_set4(&zero)), i_set4(ones), four, 1);
        v_store(bits[i], i_half_end(s));
    }
    memcpy(fours, bits, sizeof fours);
    for (int i = 0; i < 16; i++)
        sums[i] = fours[i][0] + fours[i][1] + fours[i][2] + fours[i][3];
}

/* Writes the factors of a rounded k-block to its row (q4.h).  The numbers of block b count steps of
 * 2^-halved[b]. */
INLINE void round_factors(float *at, const uint32_t *halved)
{
    int32_t base[QUANT_PER_K_BLOCK], zero[QUANT_PER_K_BLOCK], h[2 * QUANT_PER_K_BLOCK],
        twelve[QUANT_PER_K_BLOCK], of_128[QUANT_PER_K_BLOCK], half[2 * QUANT_PER_K_BLOCK];
    int16_t pairs[QUANT_PER_K_BLOCK];
    half_sums((const int8_t *)at, half);
    for (int b = 0; b < QUANT_PER_K_BLOCK; b++) {
        int32_t sum = half[2 * b] + half[2 * b + 1];
        /* Adding 1.5 * 2^23 rounds to a whole number, and stays exact. */
        float eighths = (float)sum * float_of_bits((130 - halved[b]) << 23) + 0x1.8p23f;
        at[Q4_Z + b] = (eighths - 0x1.8p23f) / 8;
        pairs[b] = (int16_t)(eighths - 0x1.8p23f);
        base[b] = Q4_BASE_BITS - (int32_t)(halved[b] << 23);
        zero[b] = base[b] - 8 * sum;
        twelve[b] = base[b] - 12 * sum;
        of_128[b] = base[b] - 128 * sum;
    }
    for (int i = 0; i < 2 * QUANT_PER_K_BLOCK; i++)
        h[i] = base[i / 2] - 32 * half[i];
    memcpy(at + Q4_BASES, base, sizeof base);
    memcpy(at + Q4_ZERO, zero, sizeof zero);
    memcpy(at + Q4_H, h, sizeof h);
    memcpy(at + Q4_TWELVE, twelve, sizeof twelve);
    memcpy(at + Q4_HALF, of_128, sizeof of_128);
    memcpy(at + Q4_PAIRS, pairs, sizeof pairs);
}

/* Rounds a k-block of a row.  The bits of a magnitude that is halved i times are lower by i << 23,
 * so a difference of bits tells how often the largest one can be halved.  The next k-block is
 * prefetched. */
static void round_k_block(const float *a, int n_blocks, float *at)
{
    uint32_t top[QUANT_PER_K_BLOCK] = {0}, halved[QUANT_PER_K_BLOCK] = {0}, largest = 0;
    for (int b = 0; b < n_blocks; b++) {
        __builtin_prefetch(a + KB + b * Q4_BLOCK, 0, 3);
        __builtin_prefetch(a + KB + b * Q4_BLOCK + PANEL, 0, 3);
        top[b] = largest_bits(a + b * Q4_BLOCK, Q4_BLOCK);
        largest = MAX(largest, top[b]);
    }
    if (largest < LEAST_BITS || largest >= MOST_BITS) {
        memset(at, 0, KB);
        at[Q4_E] = largest >= MOST_BITS ? float_of_bits(0x7fc00000) : 0;
        round_factors(at, halved);
        return;
    }
    uint32_t scale = abs_bits(127.0f / float_of_bits(largest));
    at[Q4_E] = float_of_bits(largest) / 127.0f;
    for (int b = 0; b < QUANT_PER_K_BLOCK; b++)
        halved[b] = MIN((largest - top[b]) >> 23, Q4_MOST_HALVED);
    for (int i = 0; i < 2 * n_blocks; i++)
        i_store_bytes((int8_t *)at + i * 16,
                      v_mul(v_load(a + i * 16),
                            v_set1(float_of_bits(scale + (halved[i / 2] << 23)))));
    round_factors(at, halved);
}

/* Rounds a k-block of n numbers; its last block is filled up with zeros. */
static void round_part(const float *a, int64_t n, float *at)
{
    float part[KB] = {0};
    memcpy(part, a, (size_t)n * sizeof *part);
    round_k_block(part, quant_blocks_at(0, n), at);
}

/* Rounds one row of activations. */
static void round_row(const float *a, int64_t k, int16_t *x, int64_t x_step)
{
    for (int64_t i = 0; i < k; i += KB, x += x_step) {
        float *at = (float *)(void *)x;
        if (k - i < KB)
            memset(at, 0, KB);
        if (k - i >= KB || k % Q4_BLOCK == 0)
            round_k_block(a + i, quant_blocks_at(i, k), at);
        else
            round_part(a + i, k - i, at);
    }
}

/* --- scales ---------------------------------------------------------------------------------- */

/* Sets d and m of block b of 16 columns; `scales` is the start of the k-block's scales.  For q6_k d
 * and m are D s of the two halves, and for q4_k m is t.  Types without a minimum have an m of
 * zero. */
INLINE void block_scales(enum dtype t, const uint8_t *scales, int b, v16 *d, v16 *m)
{
    const uint8_t *at = scales + q4_shared_bytes(t) + (size_t)b * q4_scale_bytes(t);
    if (t == DTYPE_Q6_K) {
        v16 top = v_load_f16((const uint16_t *)scales);
        *d = v_mul(top, v_load_i8(at));
        *m = v_mul(top, v_load_i8(at + PANEL));
        return;
    }
    if (t == DTYPE_Q4_K) {
        *d = v_mul(v_load_f16((const uint16_t *)scales), v_load_u8(at));
        *m = v_load_u8(at + PANEL);
        return;
    }
    if (t == DTYPE_IQ4_XS)
        *d = v_mul(v_load_f16((const uint16_t *)scales), v_load_i8(at));
    else
        *d = t == DTYPE_MXFP4 ? v_load_power(at) : v_load_f16((const uint16_t *)at);
    *m = t == DTYPE_Q4_1 ? v_load_f16((const uint16_t *)at + PANEL) : v_zero();
}

/* Sets m to the t of each column, two blocks in a word, and to -M / 8, `f_step` floats apart. */
INLINE void widen_minimums(const uint8_t *scales, float *m, size_t f_step)
{
    const uint8_t *t = scales + q4_shared_bytes(DTYPE_Q4_K) + PANEL;
    const size_t step = q4_scale_bytes(DTYPE_Q4_K);
    for (int i = 0; i < QUANT_PER_K_BLOCK / 2; i++, t += 2 * step, m += f_step) {
        uint32_t two[PANEL];
        for (size_t c = 0; c < PANEL; c++)
            two[c] = t[c] | (uint32_t)t[c + step] << 16;
        memcpy(m, two, sizeof two);
    }
    v_store(m, v_mul(v_load_f16((const uint16_t *)scales + PANEL), v_set1(0.125f)));
}

/* Adds the minimums of a k-block of q4_k to a row's sum.  widen_minimums has set m. */
INLINE v16 add_minimums(v16 acc, const float *f, const float *m, size_t f_step)
{
    static const int32_t zero = 0;
    i_start sum = i_start_at(&zero);
    _Pragma("GCC unroll 4") for (int i = 0; i < QUANT_PER_K_BLOCK / 2; i++)
        sum = i_pairs(sum, m + (size_t)i * f_step, f + Q4_PAIRS + i);
    return v_fma(i_floats(sum), v_load(m + QUANT_PER_K_BLOCK / 2 * f_step), acc);
}

/* --- few rows -------------------------------------------------------------------------------- */

/* Returns whether widened numbers have 8 bits. Their products are too large for sums of 16 bits. */
INLINE bool has_bytes(enum dtype t)
{
    return t == DTYPE_Q8 || t == DTYPE_IQ4_NL || t == DTYPE_IQ4_XS;
}

/* Returns what the sum of block b of a row begins at; f: the row's k-block. */
INLINE i_start start_of(enum dtype t, const float *f, int b)
{
    return i_start_at(f + b +
                      (has_bytes(t) && I_BYTE_BIAS != 0 ? Q4_HALF
                       : t == DTYPE_Q4_0                ? Q4_ZERO
                       : t == DTYPE_MXFP4               ? Q4_TWELVE
                                                        : Q4_BASES));
}

/* The sum of integers of a block. */
INLINE i_part sum_begin(enum dtype t, const float *f, int b)
{
    return has_bytes(t) ? start_of(t, f, b) : i_begin(start_of(t, f, b));
}
INLINE i_part sum_dot(enum dtype t, i_part sum, i8x4 w, i8x4 x)
{
    return has_bytes(t) ? i_byte_dot(sum, w, x) : i_dot4(sum, w, x);
}
/* Returns the bits of the sum as floats. */
INLINE v16 sum_end(enum dtype t, i_part sum, const float *f, int b)
{
    return has_bytes(t) ? i_bits(sum) : i_end(sum, start_of(t, f, b));
}

/* Adds a sum of block b of a row, of which `bits` are the bits, times d to acc. */
INLINE v16 add_sum(v16 acc, v16 bits, const float *f, int b, v16 d)
{
    return v_fma(v_sub(bits, v_set1(f[Q4_BASES + b])), d, acc);
}

/* Adds block b of a row times its weights to acc; sum: the sum of integers. */
INLINE v16 add_block(enum dtype t, v16 acc, i_part sum, const float *f, int b, v16 d, v16 m)
{
    acc = add_sum(acc, sum_end(t, sum, f, b), f, b, d);
    return t == DTYPE_Q4_1 ? v_fma(v_set1(f[Q4_Z + b]), m, acc) : acc;
}

/* Adds the sum of a row's k-block to acc. */
INLINE v16 add_k_block(v16 acc, v16 sum, const float *f)
{
    return v_fma(sum, v_set1(f[Q4_E]), acc);
}

/* Splits 64 bytes into their low and their high halves. For mxfp4 these become v(q) + 12, and for
 * iq4_nl and iq4_xs numbers of 8 bits. q8 has no halves: the two are the group at p and the group
 * that is four further on. */
INLINE void split(enum dtype t, const uint8_t *p, i8x4 *low, i8x4 *high)
{
    static const uint8_t values[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                       12, 11, 10, 9,  8,  6,  4,  0};
    static const uint8_t above_128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
    if (t == DTYPE_Q8) {
        *low = i_bytes(p);
        *high = i_bytes(p + Q4_BLOCK_BYTES);
        return;
    }
    i_nibbles(p, low, high);
    if (q4_values(t) != NULL) {
        const uint8_t *table = t == DTYPE_MXFP4   ? values
                               : I_BYTE_BIAS == 0 ? (const uint8_t *)q4_iq4_values
                                                  : above_128;
        *low = i_table(table, *low);
        *high = i_table(table, *high);
    }
}

/* Returns the bits of a half's sum as floats: h + q . x. */
INLINE v16 half_sum(const i8x4 q[4], const uint8_t *x, const float *h)
{
    i_half_sum s = i_half_begin(i_set4(h));
    for (int v = 0; v < 4; v++)
        s = i_half_dot(s, q[v], i_set4(x + 4 * v), v);
    return i_half_end(s);
}

/* Sets s[r][j] to the sums of block b of 32.  f is the first row's k-block; a row has Q4_ROW_BYTES,
 * its numbers and then its factors.  w[j] are block b's numbers in panel j. */
INLINE void direct_block(i_part (*s)[WIDE_MAX], enum dtype t, const float *f, int b,
                         const uint8_t *const *w, int n_rows, int n_panels)
{
    const uint8_t *x = (const uint8_t *)f + b * Q4_BLOCK;
    EACH_ROW EACH_PANEL s[r][j] = sum_begin(t, f + r * (Q4_ROW_BYTES / 4), b);
    _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++)
    {
        i8x4 low[WIDE_MAX], high[WIDE_MAX];
        EACH_PANEL split(t, w[j] + v * Q4_QUARTER_BYTES, &low[j], &high[j]);
        EACH_ROW
        {
            i8x4 x0 = i_set4(x + r * Q4_ROW_BYTES + 4 * v),
                 x1 = i_set4(x + r * Q4_ROW_BYTES + 16 + 4 * v);
            EACH_PANEL s[r][j] = sum_dot(t, sum_dot(t, s[r][j], low[j], x0), high[j], x1);
        }
    }
}

/* Adds block b of mxfp4, of every panel, to acc[r][j].  Its sums of 32 exceed 16 bits. */
INLINE void direct_wide(v16 (*acc)[WIDE_MAX], const float *f, int b,
                        const uint8_t *const *w, const v16 *d, int n_rows, int n_panels)
{
    const uint8_t *x = (const uint8_t *)f + b * Q4_BLOCK;
    i_half_sum s[Q4_DIRECT][WIDE_MAX];
    EACH_ROW EACH_PANEL s[r][j] = i_half_begin(
        i_set4(f + r * (Q4_ROW_BYTES / 4) + Q4_TWELVE + b));
    _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++)
    {
        i8x4 low[WIDE_MAX], high[WIDE_MAX];
        EACH_PANEL split(DTYPE_MXFP4, w[j] + v * Q4_QUARTER_BYTES, &low[j], &high[j]);
        EACH_ROW
        {
            i8x4 x0 = i_set4(x + r * Q4_ROW_BYTES + 4 * v),
                 x1 = i_set4(x + r * Q4_ROW_BYTES + 16 + 4 * v);
            EACH_PANEL s[r][j] = i_half_dot(i_half_dot(s[r][j], low[j], x0, 0), high[j], x1,
                                            1);
        }
    }
    EACH_ROW EACH_PANEL acc[r][j] = add_sum(acc[r][j], i_half_end(s[r][j]),
                                            f + r * (Q4_ROW_BYTES / 4), b, d[j]);
}

/* Prefetches ahead of block b of the k-block at offset `at` of each panel: lines of numbers, and in
 * the first blocks also a line of scales. */
INLINE void direct_fetch(const struct quant_tile *t, enum dtype dtype,
                         const uint8_t *const *panel, size_t at, int b, int n_blocks,
                         int n_rows, int n_panels, bool stream)
{
    const size_t scale_lines = (8 * q4_scale_bytes(dtype) + q4_shared_bytes(dtype)) / 64,
                 bytes = q4_number_bytes(dtype);
    if (stream) {
        stream_fetch(panel[0] + at, (size_t)b, (size_t)n_blocks, bytes / 64, scale_lines);
        return;
    }
    size_t numbers = fetch_offset(t, at + (size_t)b * bytes, n_rows, n_panels);
    EACH_PANEL
    {
        _Pragma("GCC unroll 8") for (size_t i = 0; i < bytes; i += 64)
            fetch_line(t->fetch_into_l2, panel[j] + numbers + i);
    }
    if ((size_t)b < scale_lines) {
        size_t scales = fetch_offset(t, at + 8 * bytes + (size_t)b * 64, n_rows, n_panels);
        EACH_PANEL fetch_line(t->fetch_into_l2, panel[j] + scales);
    }
}

/* Adds block b of q6_k, of every panel, to acc[r][j].  x: the rows' k-block; w: the block's
 * numbers; scales: the offset of the k-block's scales.  The panels are taken one after another,
 * because the registers do not suffice for all. */
INLINE void direct_block6(v16 (*acc)[WIDE_MAX], const float *x, const uint8_t *const *w,
                          const uint8_t *const *panel, size_t scales, int b, int n_rows,
                          int n_panels)
{
    EACH_PANEL
    {
        v16 d, m;
        i8x4 q[2][4];
        block_scales(DTYPE_Q6_K, panel[j] + scales, b, &d, &m);
        i_sixes(w[j], 0, q[0]);
        i_sixes(w[j], 1, q[1]);
        EACH_ROW
        {
            const float *f = x + r * (Q4_ROW_BYTES / 4), *h = f + Q4_H + 2 * b;
            const uint8_t *at = (const uint8_t *)f + b * Q4_BLOCK;
            acc[r][j] = add_sum(acc[r][j], half_sum(q[0], at, h), f, b, d);
            acc[r][j] = add_sum(acc[r][j], half_sum(q[1], at + 16, h + 1), f, b, m);
        }
    }
}

/* Adds the minimums of a k-block of q4_k with these scales to acc[r][j].  The sums are exact. */
INLINE void direct_minimums(v16 (*acc)[WIDE_MAX], const float *f, const uint8_t *scales,
                            int j, int n_rows)
{
    v16 sum[Q4_DIRECT], d, t;
    if (I_PAIRS) {
        float m[(QUANT_PER_K_BLOCK / 2 + 1) * PANEL];
        widen_minimums(scales, m, PANEL);
        EACH_ROW acc[r][j] = add_minimums(acc[r][j], f + r * (Q4_ROW_BYTES / 4), m, PANEL);
        return;
    }
    EACH_ROW sum[r] = v_zero();
    for (int b = 0; b < QUANT_PER_K_BLOCK; b++) {
        block_scales(DTYPE_Q4_K, scales, b, &d, &t);
        EACH_ROW sum[r] = v_fma(v_set1(f[r * (Q4_ROW_BYTES / 4) + Q4_Z + b]), t, sum[r]);
    }
    v16 m = v_load_f16((const uint16_t *)scales + PANEL);
    EACH_ROW acc[r][j] = v_fma(sum[r], m, acc[r][j]);
}

/* Adds the k-block at k to acc[r][j]. */
INLINE void direct_k_block(v16 (*acc)[WIDE_MAX], const struct quant_tile *t,
                           enum dtype dtype, const uint8_t *const *panel, int64_t k,
                           int n_rows, int n_panels, bool stream)
{
    const int n_blocks = quant_blocks_at(k, t->k);
    const float *x = (const float *)(const void *)(t->x + k * t->x_rows);
    const size_t at = q4_offset(dtype, k),
                 scales = at + (size_t)n_blocks * q4_number_bytes(dtype);
    i_part s[Q4_DIRECT][WIDE_MAX];
    v16 part[Q4_DIRECT][WIDE_MAX];
    EACH_ROW EACH_PANEL part[r][j] = v_zero();
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *w[WIDE_MAX];
        if (!stream && t->fetch_lines > 0)
            next_fetch(t, panel, (size_t)(k / Q4_BLOCK + b), n_panels);
        else
            direct_fetch(t, dtype, panel, at, b, n_blocks, n_rows, n_panels, stream);
        EACH_PANEL w[j] = panel[j] + at + (size_t)b * q4_number_bytes(dtype);
        if (dtype == DTYPE_Q6_K) {
            direct_block6(part, x, w, panel, scales, b, n_rows, n_panels);
            continue;
        }
        v16 d[WIDE_MAX], m[WIDE_MAX];
        if (dtype == DTYPE_MXFP4) {
            EACH_PANEL block_scales(dtype, panel[j] + scales, b, &d[j], &m[j]);
            direct_wide(part, x, b, w, d, n_rows, n_panels);
            continue;
        }
        direct_block(s, dtype, x, b, w, n_rows, n_panels);
        EACH_PANEL
        {
            block_scales(dtype, panel[j] + scales, b, &d[j], &m[j]);
            EACH_ROW part[r][j] = add_block(dtype, part[r][j], s[r][j],
                                            x + r * (Q4_ROW_BYTES / 4), b, d[j], m[j]);
        }
    }
    if (dtype == DTYPE_Q4_K)
        EACH_PANEL direct_minimums(part, x, panel[j] + scales, j, n_rows);
    EACH_ROW EACH_PANEL acc[r][j] = add_k_block(acc[r][j], part[r][j],
                                                x + r * (Q4_ROW_BYTES / 4));
}

/* Processes panels [p, p + n_panels); a panel beyond the tile's end is replaced by the last one,
 * and its sums are dropped. */
INLINE void direct_panels(const struct quant_tile *t, enum dtype dtype, int p, int n_rows,
                          int n_panels, bool stream)
{
    const uint8_t *panel[WIDE_MAX];
    v16 acc[Q4_DIRECT][WIDE_MAX];
    EACH_PANEL panel[j] = t->w + (size_t)(p + j < t->n_panels ? p + j : t->n_panels - 1) *
                                     t->panel_bytes;
    EACH_ROW EACH_PANEL acc[r][j] = v_zero();
    for (int64_t k = 0; k < t->k; k += KB)
        direct_k_block(acc, t, dtype, panel, k, n_rows, n_panels, stream);
    float sums[Q4_DIRECT * WIDE_MAX * PANEL];
    EACH_ROW EACH_PANEL v_store(sums + (r * n_panels + j) * PANEL, acc[r][j]);
    direct_store(t, p, sums, n_panels);
}

#define DIRECT(T, R, WIDE)                                                                 \
    static void direct_##T##_##R(const struct quant_tile *t)                               \
    {                                                                                      \
        for (int p = 0; p < t->n_panels; p += WIDE)                                        \
            direct_panels(t, DTYPE_##T, p, R, WIDE, false);                                \
    }                                                                                      \
    static void stream_##T##_##R(const struct quant_tile *t)                               \
    {                                                                                      \
        for (int p = 0; p < t->n_panels; p++)                                              \
            direct_panels(t, DTYPE_##T, p, R, 1, true);                                    \
    }
#if Q4_DIRECT == 1
#define DIRECT_ROWS(T, WIDE_7) DIRECT(T, 1, 1)
#define FROM_2(HOW, T)
#else
#define DIRECT_4(T)                                                                        \
    DIRECT(T, 1, Q4_WIDE_1)                                                                \
    DIRECT(T, 2, Q4_WIDE_2)                                                                \
    DIRECT(T, 3, Q4_WIDE_4)                                                                \
    DIRECT(T, 4, Q4_WIDE_4)
#define FROM_2(HOW, T) , HOW##_##T##_2, HOW##_##T##_3, HOW##_##T##_4 FROM_5(HOW, T)
#if Q4_DIRECT == 8
#define DIRECT_ROWS(T, WIDE_7)                                                             \
    DIRECT_4(T)                                                                            \
    DIRECT(T, 5, 2)                                                                        \
    DIRECT(T, 6, 2)                                                                        \
    DIRECT(T, 7, WIDE_7)                                                                   \
    DIRECT(T, 8, WIDE_7)
#define FROM_5(HOW, T) , HOW##_##T##_5, HOW##_##T##_6, HOW##_##T##_7, HOW##_##T##_8
#else
#define DIRECT_ROWS(T, WIDE_7) DIRECT_4(T)
#define FROM_5(HOW, T)
#endif
#endif
DIRECT_ROWS(Q8, 2)
DIRECT_ROWS(Q4_0, 2)
DIRECT_ROWS(Q4_1, 1)
DIRECT_ROWS(Q4_K, 1)
DIRECT_ROWS(Q6_K, 1)
DIRECT_ROWS(MXFP4, 1)
DIRECT_ROWS(IQ4_NL, 1)
DIRECT_ROWS(IQ4_XS, 1)
#undef DIRECT_ROWS
#undef DIRECT

#define OF_TYPE(HOW, T)                                                                    \
    {                                                                                      \
        HOW##_##T##_1 FROM_2(HOW, T)                                                       \
    }
#define BY_TYPE(HOW)                                                                       \
    {                                                                                      \
        OF_TYPE(HOW, Q8), OF_TYPE(HOW, Q4_0), OF_TYPE(HOW, Q4_1), OF_TYPE(HOW, Q4_K),      \
            OF_TYPE(HOW, Q6_K), OF_TYPE(HOW, MXFP4), OF_TYPE(HOW, IQ4_NL),                 \
            OF_TYPE(HOW, IQ4_XS)                                                           \
    }

/* The kernels with AMX use those of VNNI for few rows. */
__attribute__((unused)) static void direct(const struct quant_tile *t)
{
    static void (*const by_type[][Q4_DIRECT])(const struct quant_tile *t) = BY_TYPE(direct);
    by_type[t->dtype - DTYPE_Q8][t->m - 1](t);
}

__attribute__((unused)) static void direct_stream(const struct quant_tile *t)
{
    static void (*const by_type[][Q4_DIRECT])(const struct quant_tile *t) = BY_TYPE(stream);
    by_type[t->dtype - DTYPE_Q8][t->m - 1](t);
}
#undef BY_TYPE
#undef OF_TYPE

/* --- many rows: a k-block of one panel widened ------------------------------------------------ */

/* Calls F with a type that is constant and has the same widened blocks as t: q8 stands for iq4_nl
 * and iq4_xs, too. */
#define OF_WIDENED(t, F, ...)                                                              \
    ((t) == DTYPE_Q4_0    ? F(DTYPE_Q4_0, __VA_ARGS__)                                     \
     : (t) == DTYPE_Q4_1  ? F(DTYPE_Q4_1, __VA_ARGS__)                                     \
     : (t) == DTYPE_Q4_K  ? F(DTYPE_Q4_K, __VA_ARGS__)                                     \
     : (t) == DTYPE_Q6_K  ? F(DTYPE_Q6_K, __VA_ARGS__)                                     \
     : (t) == DTYPE_MXFP4 ? F(DTYPE_MXFP4, __VA_ARGS__)                                    \
                          : F(DTYPE_Q8, __VA_ARGS__))

/* Widens a panel's k-block. w gets the groups, `step` bytes apart, in order of k. d and m get the
 * scales and minimums of the blocks, `f_step` floats apart (block_scales). For q4_k, add_minimums
 * reads m. */
INLINE void widen_panel(enum dtype t, const uint8_t *from, int n_blocks, uint8_t *w,
                        size_t step, float *d, float *m, size_t f_step)
{
    const uint8_t *scales = from + (size_t)n_blocks * q4_number_bytes(t);
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *numbers = from + (size_t)b * q4_number_bytes(t);
        for (int half = 0; half < 2 && t == DTYPE_Q6_K; half++) {
            i8x4 q[4];
            i_sixes(numbers, half, q);
            for (int v = 0; v < 4; v++)
                i_store4(w + (size_t)(b * 8 + half * 4 + v) * step, q[v]);
        }
        for (int v = 0; v < 4 && t != DTYPE_Q6_K; v++) {
            i8x4 low, high;
            split(t, numbers + v * Q4_QUARTER_BYTES, &low, &high);
            i_store4(w + (size_t)(b * 8 + v) * step, low);
            i_store4(w + (size_t)(b * 8 + v + 4) * step, high);
        }
        v16 of_d, of_m;
        block_scales(t, scales, b, &of_d, &of_m);
        v_store(d + (size_t)b * f_step, of_d);
        if (t != DTYPE_Q4_K)
            v_store(m + (size_t)b * f_step, of_m);
    }
    if (t == DTYPE_Q4_K)
        widen_minimums(scales, m, f_step);
}

static void widen_any(enum dtype t, const uint8_t *from, int n_blocks, uint8_t *w,
                      size_t step, float *d, float *m, size_t f_step)
{
    if (t == DTYPE_IQ4_NL)
        widen_panel(DTYPE_IQ4_NL, from, n_blocks, w, step, d, m, f_step);
    else if (t == DTYPE_IQ4_XS)
        widen_panel(DTYPE_IQ4_XS, from, n_blocks, w, step, d, m, f_step);
    else
        OF_WIDENED(t, widen_panel, from, n_blocks, w, step, d, m, f_step);
}

#endif
