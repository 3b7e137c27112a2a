/* quant.h - products with quantised weights: the parts that blocks (q4.h) and bf16r (bf16r.h)
 * share; private to src/tensor/cpu.
 *
 *   cpu_quant.c        how a product is cut over threads and tiles
 *   cpu_q8.c, cpu_q4.c packing, and rows of packed weights
 *   kern_q*.h          the loops, written once over v16 and vectors of integers
 *   vec_nib_*.h        16 lanes of four 8-bit numbers each, and their exact products
 *   q4_*.c             compile the loops for one instruction set into one `struct quant_kernels`
 *
 * Sums of integers are exact in any order, so all instruction sets give the same bits at every
 * width (ops.h has the arithmetic).
 *
 * Packed weights are panels of 16 columns (rows of W).  A panel begins at a line of 64 bytes. */
#ifndef TENSOR_QUANT_H
#define TENSOR_QUANT_H

#include "tensor/cpu/cpu.h"

#define QUANT_PER_K_BLOCK (MATMUL_K_BLOCK / Q8_BLOCK)

/* One tile of a product: m rows by n_panels panels. */
struct quant_tile {
    const int16_t *x; /* row r of k-block b is at x[(b * x_rows + r) * 256] */
    int64_t x_rows;
    int m;
    int64_t k;
    enum dtype dtype; /* type of the weights */
    const uint8_t *w; /* address of the first panel of weights */
    size_t panel_bytes;
    bool fetch_into_l2; /* result of cpu_fetches_into_l2 */
    int n_panels;
    /* While a block is read, `direct` prefetches fetch_lines lines for each panel: those of block i
     * begin i * fetch_lines lines after the address that lies `ahead` bytes further on.
     * 0 lines: a fixed distance ahead. */
    size_t ahead, fetch_lines;
    float *c; /* first element of the tile */
    int64_t ldc;
    int64_t n_cols;    /* columns that exist: at most n_panels * 16 */
    const float *bias; /* bias of the first column, or NULL */
    void *scratch;     /* QUANT_SCRATCH bytes of this thread */
};

/* Rows that are rounded at once, and rows of one tile at most.  A k-block of them is 320 KiB and
 * stays in L2.  Widening a panel takes the time of 15 to 30 rows, so a tile has as many rows as
 * possible (docs/perf/2026-11-29.md). */
#define QUANT_ROWS 640
/* Columns of one tile of many rows, at most.  All of them use a k-block of the rows before the next
 * one is read: the rounded rows of a whole product are often larger than L2. */
#define TILE_COLS (16 * PANEL)

/* Bytes for two panels of a widened k-block with its scales, for the sums of a tile, and for the
 * bias of a narrow edge. */
#define QUANT_SCRATCH                                                                      \
    (2 * PANEL * (MATMUL_K_BLOCK + 2 * QUANT_PER_K_BLOCK * 4 + 4) +                        \
     (QUANT_ROWS * TILE_COLS + 2 * PANEL) * 4)

struct quant_kernels {
    const char *name;
    bool (*runs_here)(void);
    int direct_rows; /* rows that `direct` takes at most */
    /* Products of at most this many rows use `direct`, in strips, and larger ones
     * `blocked`.  0: direct_rows.  Not for q6_k. */
    int strip_rows;

    void (*direct)(const struct quant_tile *t);
    /* Computes the same as `direct`, but reads one panel after another; it is used if
     * cpu_reads_one_stream() is true. NULL: `direct` is always used. */
    void (*direct_stream)(const struct quant_tile *t);
    void (*blocked)(const struct quant_tile *t);
    /* Rounds one row of k numbers to x; k-blocks are x_step elements apart. */
    void (*round_row)(const float *a, int64_t k, int16_t *x, int64_t x_step);
};

/* All tables, the best first. NULL ends each list. */
extern const struct quant_kernels *const q4_all_kernels[];

static inline int64_t panels_of(int64_t n)
{
    return (n + PANEL - 1) / PANEL;
}
static inline int64_t quant_blocks_of(int64_t k)
{
    return (k + Q8_BLOCK - 1) / Q8_BLOCK;
}
/* Returns the number of blocks of 32 in the k-block at k. */
static inline int quant_blocks_at(int64_t k, int64_t all)
{
    int64_t left = quant_blocks_of(all - k);
    return (int)MIN(left, QUANT_PER_K_BLOCK);
}
size_t quant_panel_bytes(enum dtype t, int64_t k);

/* Returns the panel that has a row of W. */
static inline uint8_t *quant_panel_at(const struct weight *w, int64_t row)
{
    return (uint8_t *)w->mem.ptr +
           (size_t)(row / PANEL) * quant_panel_bytes(w->dtype, w->k);
}

/* Implement ops.weight_bytes and ops.matmul for quantised weights. */
size_t cpu_quant_bytes(enum dtype t, int64_t n, int64_t k);
int cpu_quant_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                     const float *bias);
/* Returns whether two weights round activations alike, so that matmul_many can round them once. */
bool quant_alike(enum dtype a, enum dtype b);
/* Implements ops.matmul_many for weights that are quant_alike. */
int cpu_quant_matmul_many(struct stream *s, struct mat a, const struct product *p, int n);
/* Computes the product with the given kernels, for tests. Normally the best kernels of the device's
 * instruction set are used. */
int quant_matmul_by(const struct quant_kernels *kernels, struct stream *s, struct mat c,
                    struct mat a, const struct weight *w, const float *bias);
/* Returns the best table of `all` that this CPU can run and the device's instruction set includes.
 */
const struct quant_kernels *quant_kernels_of(const struct quant_kernels *const *all,
                                             const struct stream *s);

#endif
