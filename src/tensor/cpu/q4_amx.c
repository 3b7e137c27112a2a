/* q4_amx.c - kernels for weights in blocks with AMX, for many rows; few rows use VNNI's kernels.
 *
 * A tile multiplies 16 rows by 16 columns over a block of 32, or with q6_k over half a block.  The
 * sums are the same integers as those of the other kernels. */
#include "tensor/cpu/q4.h"

#include "tensor/cpu/amx.h"
#include "tensor/cpu/vec_avx512.h"

#define Q4_NAME  "amx"
#define Q4_TABLE q4_kernels_amx
#define Q4_RUNS  (q4_kernels_vnni.runs_here() && amx_runs_here())

#define I_SUMS_16 false
static inline __m512i i_dot4_512(__m512i sum, __m512i w, __m512i x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
static inline __m512i i_dot2_512(__m512i sum, __m512i w, __m512i z)
{
    return _mm512_dpwssd_epi32(sum, w, z);
}

#include "tensor/cpu/vec_nib_avx512.h"
#undef Q4_STRIPS
#define Q4_STRIPS 16 /* more rows have more than one tile */

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q4.h"

/* A strip of x, which lies in L2, is read once for GROUP panels, which stay in L1. */
enum { STRIP = 16, GROUP = 4 };

/* A k-block of one panel. */
struct panel {
    uint8_t w[KB / 4][PANEL][4];
    float d[QUANT_PER_K_BLOCK][PANEL], m[QUANT_PER_K_BLOCK][PANEL];
};

/* A group of panels, and the sums of two blocks, as integers; for q6_k of their four halves. */
struct scratch {
    struct panel panel[GROUP];
    int32_t sums[2][STRIP][PANEL], high[2][STRIP][PANEL]; /* of even blocks, of odd ones */
};
_Static_assert(sizeof(struct scratch) <= QUANT_SCRATCH, "scratch of a thread");

/* Configures the tiles. 0 and 1, alternately: sums; 2: 16 rows of x; 3: a block of weights or half
 * of one, 4 numbers per lane. */
static void tiles_configure(int weights)
{
    struct amx_config c = {.palette = 1,
                           .bytes = {64, 64, (uint16_t)weights, 64},
                           .rows = {STRIP, STRIP, STRIP, (uint8_t)(weights / 4)}};
    amx_configure(&c);
}

/* Sets sums [16][16] to the products over one block of 32, or over half a block. */
#define TILES_MULTIPLY(SUM)                                                                \
    static inline void tiles_multiply_##SUM(void *sums, const uint8_t *x,                  \
                                            const uint8_t *w)                              \
    {                                                                                      \
        _tile_zero(SUM);                                                                   \
        _tile_loadd(2, x, Q4_ROW_BYTES);                                                   \
        _tile_loadd(3, w, PANEL * 4);                                                      \
        _tile_dpbsud(SUM, 2, 3);                                                           \
        _tile_stored(SUM, sums, PANEL * 4);                                                \
    }
TILES_MULTIPLY(0)
TILES_MULTIPLY(1)
#undef TILES_MULTIPLY

/* Adds block b, whose products' sums are `sums`, to acc; f: row 0 of the k-block. */
INLINE void strip_add(v16 acc[STRIP], enum dtype t, const int32_t (*sums)[PANEL],
                      const struct panel *p, const float *f, int b)
{
    v16 d = v_load(p->d[b]), m = v_load(p->m[b]);
    _Pragma("GCC unroll 16") for (int r = 0; r < STRIP; r++, f += Q4_ROW_BYTES / 4)
    {
        i_part s = _mm512_add_epi32(_mm512_loadu_si512(sums[r]), start_of(t, f, b));
        acc[r] = add_block(t, acc[r], s, f, b, d, m);
    }
}

/* Returns the bits of the sum of x (q - 32) over half a block. */
INLINE v16 half_add(const int32_t *sums, const float *h)
{
    return i_bits(_mm512_add_epi32(_mm512_loadu_si512(sums), i_set4(h)));
}

/* Adds block b of q6_k to acc.  f points to row 0 of the k-block. */
INLINE void strip_add6(v16 acc[STRIP], const int32_t (*low)[PANEL],
                       const int32_t (*high)[PANEL], const struct panel *p, const float *f,
                       int b)
{
    v16 s = v_load(p->d[b]), t = v_load(p->m[b]);
    _Pragma("GCC unroll 16") for (int r = 0; r < STRIP; r++)
    {
        const float *of_row = f + r * (Q4_ROW_BYTES / 4);
        v16 first = half_add(low[r], of_row + Q4_H + 2 * b),
            second = half_add(high[r], of_row + Q4_H + 2 * b + 1);
        acc[r] = add_sum(add_sum(acc[r], first, of_row, b, s), second, of_row, b, t);
    }
}

/* Computes the sums of block b; of q6_k those of its halves.  odd: b % 2, a constant. */
INLINE void block_multiply(enum dtype t, struct scratch *s, int odd, const uint8_t *x,
                           const uint8_t *w, int b)
{
    x += b * Q4_BLOCK;
    w += b * Q4_BLOCK * PANEL;
    if (odd && t != DTYPE_Q6_K)
        tiles_multiply_1(s->sums[1], x, w);
    else
        tiles_multiply_0(s->sums[odd], x, w);
    if (t == DTYPE_Q6_K)
        tiles_multiply_1(s->high[odd], x + 16, w + 16 * PANEL);
}

INLINE void block_add(enum dtype t, v16 acc[STRIP], const struct scratch *s, int odd,
                      const struct panel *p, const float *f, int b)
{
    if (t == DTYPE_Q6_K)
        strip_add6(acc, s->sums[odd], s->high[odd], p, f, b);
    else
        strip_add(acc, t, s->sums[odd], p, f, b);
}

/* Adds the k-block's sums of one strip of rows by one panel to acc [16].  The sums of a block are
 * added while the next one is multiplied, because a tile's result takes some 50 cycles. */
INLINE void strip_sums(enum dtype t, v16 acc[STRIP], struct scratch *s,
                       const struct panel *p, const uint8_t *x, int n_blocks)
{
    const float *f = (const float *)(const void *)x;
    const uint8_t *w = p->w[0][0];
    block_multiply(t, s, 0, x, w, 0);
    for (int b = 1; b < n_blocks; b += 2) {
        block_multiply(t, s, 1, x, w, b);
        block_add(t, acc, s, 0, p, f, b - 1);
        if (b + 1 < n_blocks)
            block_multiply(t, s, 0, x, w, b + 1);
        block_add(t, acc, s, 1, p, f, b);
    }
    if (n_blocks % 2 == 1)
        block_add(t, acc, s, 0, p, f, n_blocks - 1);
}

/* Multiplies rows [r0, r0 + n) by one panel, and adds this k-block's sums to those in C. */
static void strip(const struct quant_tile *t, struct scratch *s, int64_t k, int panel,
                  int r0, int n)
{
    int64_t col = (int64_t)panel * PANEL, cols = t->n_cols - col;
    float *c = t->c + r0 * t->ldc;
    v16 acc[STRIP], sums[STRIP];
    for (int r = 0; r < STRIP; r++)
        sums[r] = v_zero();
    if (k > 0 && n == STRIP && cols >= PANEL) {
        _Pragma("GCC unroll 16") for (int r = 0; r < STRIP; r++)
            acc[r] = v_load(c + r * t->ldc + col);
    } else {
        for (int r = 0; r < STRIP; r++)
            acc[r] = k == 0 || r >= n ? v_zero()
                                      : v_load_upto(c + r * t->ldc, DTYPE_F32, col, cols);
    }
    const uint8_t *x = (const uint8_t *)(t->x + k * t->x_rows + (int64_t)r0 * KB);
    int n_blocks = quant_blocks_at(k, t->k);
    OF_WIDENED(t->dtype, strip_sums, sums, s, &s->panel[panel % GROUP], x, n_blocks);
    _Pragma("GCC unroll 16") for (int r = 0; r < STRIP; r++)
    {
        const float *f = (const float *)(const void *)(x + r * Q4_ROW_BYTES);
        if (t->dtype == DTYPE_Q4_K)
            sums[r] = add_minimums(sums[r], f, s->panel[panel % GROUP].m[0], PANEL);
        acc[r] = add_k_block(acc[r], sums[r], f);
    }
    v16 bias = t->bias != NULL && k + KB >= t->k
                   ? v_load_upto(t->bias, DTYPE_F32, col, cols)
                   : v_zero();
    bool adds = t->bias != NULL && k + KB >= t->k;
    for (int r = 0; r < n; r++)
        v_store_upto(c + r * t->ldc, DTYPE_F32, col, cols,
                     adds ? v_add(acc[r], bias) : acc[r]);
}

static void widen_group(const struct quant_tile *t, struct scratch *s, int64_t k, int first,
                        int n)
{
    for (int i = 0; i < n; i++) {
        struct panel *p = &s->panel[i];
        const uint8_t *w = t->w + (size_t)(first + i) * t->panel_bytes;
        const uint8_t *from = w + q4_offset(t->dtype, k);
        int n_blocks = quant_blocks_at(k, t->k);
        widen_any(t->dtype, from, n_blocks, p->w[0][0], sizeof p->w[0], p->d[0], p->m[0],
                  PANEL);
    }
}

/* A group of panels is widened once, and all strips use it.  If the last strip has fewer rows, the
 * tile also reads the scratch memory after them, and the extra rows' sums are dropped. */
static void blocked_amx(const struct quant_tile *t)
{
    struct scratch *s = t->scratch;
    tiles_configure(t->dtype == DTYPE_Q6_K ? Q4_BLOCK / 2 : Q4_BLOCK);
    for (int64_t k = 0; k < t->k; k += KB) {
        for (int first = 0; first < t->n_panels; first += GROUP) {
            int n = MIN(t->n_panels - first, GROUP);
            widen_group(t, s, k, first, n);
            for (int r0 = 0; r0 < t->m; r0 += STRIP)
                for (int i = 0; i < n; i++)
                    strip(t, s, k, first + i, r0, MIN(t->m - r0, STRIP));
        }
    }
    _tile_release();
}

static void few(const struct quant_tile *t)
{
    q4_kernels_vnni.direct(t);
}

static void few_stream(const struct quant_tile *t)
{
    q4_kernels_vnni.direct_stream(t);
}

#define Q4_BLOCKED    blocked_amx
#define Q4_FEW        few
#define Q4_FEW_STREAM few_stream
#include "tensor/cpu/kern_q4_table.h"
