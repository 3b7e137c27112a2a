/* q8_amx.c - kernels for 8-bit weights with AMX, for many rows; few rows use VNNI's kernels.
 *
 * A tile multiplies 16 rows by 16 columns over a block of 32, in 8-bit numbers.  Activations have
 * 16 bits: each is split into two bytes, x = 256 h + l with l unsigned, and multiplied twice.  The
 * sums are the same integers as those of the other kernels. */
#include "tensor/cpu/q8.h"

#include "tensor/cpu/amx.h"
#include "tensor/cpu/vec_avx512.h"

#define Q8_NAME  "amx"
#define Q8_TABLE q8_kernels_amx
#define Q8_RUNS  (q8_kernels_vnni.runs_here() && amx_runs_here())

static inline __m512i i_dot_512(__m512i sum, __m512i a, __m512i b)
{
    return _mm512_dpwssd_epi32(sum, a, b);
}

#include "tensor/cpu/vec_int_avx512.h"

#include "tensor/cpu/kern_math.h"

#include "tensor/cpu/kern_q8.h"

enum { STRIP = 16 };

/* Rounds a row; each k-block is 256 bytes h, then 256 bytes l, in order of k. */
static void round_row_split(const float *a, int64_t k, int16_t *x, int64_t x_step, float *e,
                            int64_t e_step)
{
    for (int64_t i = 0; i < k; i += KB) {
        int16_t both[KB];
        uint8_t *h = (uint8_t *)x, *l = h + KB;
        *e = round_numbers(a + i, (int)MIN(k - i, KB), both);
        for (int j = 0; j < KB; j++) {
            h[j] = (uint8_t)(both[j] >> 8);
            l[j] = (uint8_t)both[j];
        }
        x += x_step;
        e += e_step;
    }
}

/* Configures the tiles. 0 and 1, alternating with 5 and 6: sums; 2 and 3: h and l of 16 rows; 4: a
 * block of weights, 4 numbers per lane. */
static void tiles_configure(void)
{
    struct amx_config c = {.palette = 1,
                           .bytes = {64, 64, Q8_BLOCK, Q8_BLOCK, 64, 64, 64},
                           .rows = {STRIP, STRIP, STRIP, STRIP, Q8_GROUPS, STRIP, STRIP}};
    amx_configure(&c);
}

/* Sets sums [2][16][16] to the products of h and of l with the weights, over one block of 32. */
#define TILES_MULTIPLY(H, L)                                                               \
    static inline void tiles_multiply_##H(int32_t *sums, const uint8_t *x,                 \
                                          const uint8_t *w)                                \
    {                                                                                      \
        _tile_zero(H);                                                                     \
        _tile_zero(L);                                                                     \
        _tile_loadd(2, x, 2 * KB);                                                         \
        _tile_loadd(3, x + KB, 2 * KB);                                                    \
        _tile_loadd(4, w, PANEL * 4);                                                      \
        _tile_dpbssd(H, 2, 4);                                                             \
        _tile_dpbusd(L, 3, 4);                                                             \
        _tile_stored(H, sums, PANEL * 4);                                                  \
        _tile_stored(L, sums + STRIP * PANEL, PANEL * 4);                                  \
    }
TILES_MULTIPLY(0, 1)
TILES_MULTIPLY(5, 6)
#undef TILES_MULTIPLY

/* Adds the block's sums times its scales to p. */
INLINE void strip_add(v16 p[STRIP], const int32_t *sums, const uint8_t *scales)
{
    v16 d = v_load_f16((const uint16_t *)scales);
    _Pragma("GCC unroll 16") for (int r = 0; r < STRIP; r++)
    {
        i32 h = i_load(sums + r * PANEL), l = i_load(sums + (STRIP + r) * PANEL);
        p[r] = v_fma(i_float(_mm512_add_epi32(_mm512_slli_epi32(h, 8), l)), d, p[r]);
    }
}

/* Sets p [16] to the k-block's sums of one strip of rows by one panel.  The sums of a block are
 * added while the next one is multiplied, because a tile's result takes some 50 cycles. */
INLINE void strip_sums(v16 p[STRIP], int32_t *scratch, const uint8_t *x, const uint8_t *w,
                       int n_blocks)
{
    const uint8_t *scales = w + n_blocks * Q8_BLOCK_BYTES;
    int32_t *even = scratch, *odd = scratch + 2 * STRIP * PANEL;
    for (int r = 0; r < STRIP; r++)
        p[r] = v_zero();
    tiles_multiply_0(even, x, w);
    for (int b = 1; b < n_blocks; b += 2) {
        tiles_multiply_5(odd, x + b * Q8_BLOCK, w + b * Q8_BLOCK_BYTES);
        strip_add(p, even, scales + (b - 1) * Q8_SCALE_BYTES);
        if (b + 1 < n_blocks)
            tiles_multiply_0(even, x + (b + 1) * Q8_BLOCK, w + (b + 1) * Q8_BLOCK_BYTES);
        strip_add(p, odd, scales + b * Q8_SCALE_BYTES);
    }
    if (n_blocks % 2 == 1)
        strip_add(p, even, scales + (n_blocks - 1) * Q8_SCALE_BYTES);
}

/* Prefetches the lines that strip_store will write: C of many rows does not stay in the cache, and
 * no hardware prefetcher predicts lines that are ldc apart (docs/perf/). */
INLINE void strip_ask(const struct quant_tile *t, int panel, int r0, int n)
{
    for (int r = r0; r < r0 + n; r++)
        __builtin_prefetch(t->c + r * t->ldc + (int64_t)panel * PANEL, 1);
}

/* Adds p to rows [r0, r0 + n) of C, in the columns of one panel that exist. */
static void strip_store(const struct quant_tile *t, const v16 *p, int64_t k, int panel,
                        int r0, int n)
{
    int64_t col = (int64_t)panel * PANEL, cols = t->n_cols - col;
    const float *e = t->e + k / KB * t->x_rows + r0;
    for (int r = 0; r < n; r++) {
        float *c = t->c + (r0 + r) * t->ldc;
        v16 y = k == 0 ? v_zero() : v_load_upto(c, DTYPE_F32, col, cols);
        y = v_fma(p[r], v_set1(e[r]), y);
        if (t->bias != NULL && k + KB >= t->k)
            y = v_add(y, v_load_upto(t->bias, DTYPE_F32, col, cols));
        v_store_upto(c, DTYPE_F32, col, cols, y);
    }
}

/* A strip of x stays in L1 while all panels use it.  If the last strip has fewer rows, the tile
 * also reads the scratch memory after them, and the extra rows' sums are dropped. */
static void blocked_amx(const struct quant_tile *t)
{
    int32_t *scratch = t->scratch;
    _Static_assert(4 * STRIP * PANEL * sizeof *scratch <= QUANT_SCRATCH,
                   "scratch of a thread");
    tiles_configure();
    for (int64_t k = 0; k < t->k; k += KB) {
        int n_blocks = quant_blocks_at(k, t->k);
        const uint8_t *x = (const uint8_t *)(t->x + k * t->x_rows);
        for (int r0 = 0; r0 < t->m; r0 += STRIP) {
            int n = MIN(t->m - r0, STRIP);
            for (int panel = 0; panel < t->n_panels; panel++) {
                const uint8_t *w = t->w + (size_t)panel * t->panel_bytes + q8_offset(k);
                v16 p[STRIP];
                strip_ask(t, panel, r0, n);
                strip_sums(p, scratch, x + r0 * 2 * KB, w, n_blocks);
                strip_store(t, p, k, panel, r0, n);
            }
        }
    }
    _tile_release();
}

#define Q8_BLOCKED       blocked_amx
#define Q8_ROUND_BLOCKED round_row_split
#include "tensor/cpu/kern_q8_table.h"
