/* bf16r_amx.c - the kernels of bf16r.h with AMX: a tile multiplies 16 rows by 16 columns over a
 * block of 32, and keeps the sums.
 *
 * Few rows are multiplied by four panels at a time, with tiles that have exactly these rows.  Many
 * rows are multiplied in strips of 32 rows by two panels, one k-block after another, which keeps
 * the weights in L1; the sums stay in C. */
#include "tensor/cpu/bf16r.h"

#include "tensor/cpu/amx.h"
#include "tensor/cpu/vec_avx512.h"

#define BF16R_TILES

#include "tensor/cpu/kern_math.h"

#include "tensor/cpu/kern_bf16r.h"

enum { STRIP = 32, WIDE = 4, AHEAD_BYTES = 5 * BF16R_BLOCK_BYTES, ROW_BYTES = KB * 2 };

static bool runs_here(void)
{
    enum { AMX_BF16 = 1 << 22 };
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           amx_runs_here() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (d & AMX_BF16) != 0;
}

/* Configures the tiles: 0 to 3 for sums of n_rows rows, 4 and 5 for x, 6 and 7 for weights. */
static void tiles_configure(int n_rows)
{
    uint8_t n = (uint8_t)n_rows;
    struct amx_config c = {.palette = 1,
                           .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                           .rows = {n, n, n, n, n, n, 16, 16}};
    amx_configure(&c);
}

/* --- few rows -------------------------------------------------------------------------------- */

static void fetch_block(const struct quant_tile *t, const uint8_t *panel, const uint8_t *at)
{
    const uint8_t *ahead = at + AHEAD_BYTES;
    if (ahead >= panel + t->panel_bytes)
        ahead += (WIDE - 1) * t->panel_bytes; /* the panel that few_panels reads next */
    for (int i = 0; i < BF16R_BLOCK_BYTES; i += 64)
        __builtin_prefetch(ahead + i);
}

/* Computes sums [m][4][16] of panels [p, p + 4). The last panel stands in for panels past the end.
 */
static void few_panels(const struct quant_tile *t, int p, float *sums)
{
    const uint8_t *w[WIDE];
    for (int j = 0; j < WIDE; j++)
        w[j] = t->w + (size_t)MIN(p + j, t->n_panels - 1) * t->panel_bytes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0, at = 0; k < t->k; k += BF16R_BLOCK, at += BF16R_BLOCK_BYTES) {
        for (int j = 0; j < WIDE; j++)
            fetch_block(t, w[j], w[j] + at);
        _tile_loadd(4, t->x + k / KB * t->x_rows * KB + k % KB, ROW_BYTES);
        _tile_loadd(6, w[0] + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w[1] + at, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, w[2] + at, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, w[3] + at, 64);
        _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, sums, WIDE * 64);
    _tile_stored(1, sums + PANEL, WIDE * 64);
    _tile_stored(2, sums + 2 * PANEL, WIDE * 64);
    _tile_stored(3, sums + 3 * PANEL, WIDE * 64);
}

static void direct_amx(const struct quant_tile *t)
{
    float *sums = t->scratch;
    tiles_configure(t->m);
    for (int p = 0; p < t->n_panels; p += WIDE) {
        int64_t col = (int64_t)p * PANEL, n = t->n_cols - col;
        n = MIN(n, WIDE * PANEL);
        few_panels(t, p, sums);
        for (int r = 0; r < t->m; r++)
            memcpy(t->c + r * t->ldc + col, sums + r * WIDE * PANEL,
                   (size_t)n * sizeof *sums);
    }
    _tile_release();
    add_bias(t);
}

/* --- many rows ------------------------------------------------------------------------------- */

/* Adds the k-block of 32 rows x by two panels to c [32][2][16], whose rows are ldc floats apart. */
static void strip_block(float *c, int64_t ldc, bool first, const int16_t *x,
                        const uint8_t *w0, const uint8_t *w1, int n_blocks)
{
    size_t step = (size_t)ldc * sizeof *c;
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, step);
        _tile_loadd(1, c + PANEL, step);
        _tile_loadd(2, c + 16 * ldc, step);
        _tile_loadd(3, c + 16 * ldc + PANEL, step);
    }
    for (int b = 0; b < n_blocks; b++) {
        _tile_loadd(4, x + b * BF16R_BLOCK, ROW_BYTES);
        _tile_loadd(6, w0 + b * BF16R_BLOCK_BYTES, 64);
        _tile_loadd(7, w1 + b * BF16R_BLOCK_BYTES, 64);
        _tile_loadd(5, x + 16 * KB + b * BF16R_BLOCK, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, step);
    _tile_stored(1, c + PANEL, step);
    _tile_stored(2, c + 16 * ldc, step);
    _tile_stored(3, c + 16 * ldc + PANEL, step);
}

/* Like strip_block, for the edge of C, which has fewer rows or columns: it works in a buffer of 32
 * rows. Rows of x past the tile's end are read too, because the stream's scratch memory goes on
 * there; their sums are dropped. */
static void strip_edge(const struct quant_tile *t, float *c, int n_rows, int64_t n_cols,
                       bool first, const int16_t *x, const uint8_t *w0, const uint8_t *w1,
                       int n_blocks)
{
    float *aside = t->scratch;
    for (int r = 0; r < n_rows && !first; r++)
        memcpy(aside + r * 2 * PANEL, c + r * t->ldc, (size_t)n_cols * sizeof *c);
    strip_block(aside, 2 * PANEL, first, x, w0, w1, n_blocks);
    for (int r = 0; r < n_rows; r++)
        memcpy(c + r * t->ldc, aside + r * 2 * PANEL, (size_t)n_cols * sizeof *c);
}

/* Computes two panels, or the last one twice, of the k-block at k. */
static void panels_block(const struct quant_tile *t, int p, int64_t k)
{
    int64_t col = (int64_t)p * PANEL, n_cols = t->n_cols - col;
    int n_blocks = bf16r_blocks_at(k, t->k);
    size_t at = (size_t)(k / BF16R_BLOCK) * BF16R_BLOCK_BYTES;
    const uint8_t *w0 = t->w + (size_t)p * t->panel_bytes + at,
                  *w1 = p + 1 < t->n_panels ? w0 + t->panel_bytes : w0;
    n_cols = MIN(n_cols, 2 * PANEL);
    for (int r0 = 0; r0 < t->m; r0 += STRIP) {
        int n_rows = MIN(t->m - r0, STRIP);
        const int16_t *x = t->x + k * t->x_rows + (int64_t)r0 * KB;
        float *c = t->c + r0 * t->ldc + col;
        if (n_rows == STRIP && n_cols == 2 * PANEL)
            strip_block(c, t->ldc, k == 0, x, w0, w1, n_blocks);
        else
            strip_edge(t, c, n_rows, n_cols, k == 0, x, w0, w1, n_blocks);
    }
}

static void blocked_amx(const struct quant_tile *t)
{
    tiles_configure(16);
    for (int64_t k = 0; k < t->k; k += KB)
        for (int p = 0; p < t->n_panels; p += 2)
            panels_block(t, p, k);
    _tile_release();
    add_bias(t);
}

const struct quant_kernels bf16r_kernels_amx = {
    .name = "amx",
    .runs_here = runs_here,
    .direct_rows = 16,
    .direct = direct_amx,
    .blocked = blocked_amx,
    .round_row = round_row,
};
