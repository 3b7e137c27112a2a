/* q8.h - products with 8-bit weights; private to src/tensor/cpu.
 *
 *   cpu_q8.c     the operations: checks, rounding of activations, how work is cut over threads
 *   kern_q8*.h   the loops, written once over v16 and i16x2
 *   vec_int_*.h  i16x2: 16 lanes of two 16-bit numbers each, and their exact products
 *   q8_*.c       compiles kern_q8.h for one instruction set into one `struct q8_kernels`
 *
 * Sums of integers are exact in any order, so that all instruction sets give the same bits whatever
 * width they multiply at (ops.h has the arithmetic).
 *
 * Packed weights: panels of 16 columns (rows of W).  A panel is a sequence of k-blocks, each
 *
 *     [n_blocks][8 groups][16 columns][4 numbers]  8 bits: 4 neighbours in k share a 32-bit lane
 *     [n_blocks][16 columns]                       the scales, f16
 *
 * where n_blocks is 8, less in the last one; what lies behind k is zero.  A panel begins at a line of
 * 64 bytes.
 *
 * Rounded activations: [k-blocks][rows][256] 16-bit numbers, in each group of four the order 0 2 1 3:
 * sign-extending the even and the odd bytes of a lane of weights gives the pairs (0, 2) and (1, 3). */
#ifndef TENSOR_Q8_H
#define TENSOR_Q8_H

#include "tensor/cpu/cpu.h"

#define Q8_PER_K_BLOCK (MATMUL_K_BLOCK / Q8_BLOCK)
#define Q8_GROUPS      (Q8_BLOCK / 4)
#define Q8_BLOCK_BYTES (Q8_BLOCK * PANEL)
#define Q8_SCALE_BYTES (2 * PANEL)

/* One tile of a product: m rows by n_panels panels. */
struct q8_tile {
    const int16_t *x; /* row r of k-block b at x[(b * x_rows + r) * 256] */
    const float *e;   /* and its scale at e[b * x_rows + r] */
    int64_t x_rows;
    int m;
    int64_t k;
    const uint8_t *w; /* first panel */
    size_t panel_bytes;
    int n_panels;
    float *c; /* first element of the tile */
    int64_t ldc;
    int64_t n_cols;    /* those that exist: at most n_panels * 16 */
    const float *bias; /* of the first column, or NULL */
    void *scratch;     /* Q8_SCRATCH bytes, of this thread */
};

/* Two panels of a k-block widened, its scales, and a narrow edge of C summed aside. */
#define Q8_SCRATCH                                                                         \
    (2 * (MATMUL_K_BLOCK * PANEL * 2 + Q8_PER_K_BLOCK * PANEL * 4) +                       \
     (TILE_ROWS + 1) * 2 * PANEL * 4)

struct q8_kernels {
    const char *name;
    bool (*runs_here)(void);
    int direct_rows; /* up to here `direct` is used, above `blocked` */

    void (*direct)(const struct q8_tile *t);
    void (*blocked)(const struct q8_tile *t);
    /* x and e of one row of k numbers, in the form that each of the two reads; k-blocks are x_step and
     * e_step elements apart. */
    void (*round_direct)(const float *a, int64_t k, int16_t *x, int64_t x_step, float *e,
                         int64_t e_step);
    void (*round_blocked)(const float *a, int64_t k, int16_t *x, int64_t x_step, float *e,
                          int64_t e_step);
    /* One row of W into its lane of a panel, from row-major f32. False: it cannot be held. */
    bool (*pack_row)(uint8_t *panel, int column, const float *w, int64_t k);
};

extern const struct q8_kernels q8_kernels_portable;
#if defined(__x86_64__)
extern const struct q8_kernels q8_kernels_avx2;
extern const struct q8_kernels q8_kernels_avx512;
extern const struct q8_kernels q8_kernels_vnni;
extern const struct q8_kernels q8_kernels_amx;
#endif
/* Every table, best first, ended by NULL. */
extern const struct q8_kernels *const q8_all_kernels[];

static inline int64_t q8_blocks_of(int64_t k)
{
    return (k + Q8_BLOCK - 1) / Q8_BLOCK;
}
static inline size_t q8_panel_bytes(int64_t k)
{
    size_t bytes = (size_t)q8_blocks_of(k) * (Q8_BLOCK_BYTES + Q8_SCALE_BYTES);
    return (bytes + 63) / 64 * 64;
}
/* Where the k-block at k (a multiple of 256) begins in its panel. */
static inline size_t q8_offset(int64_t k)
{
    return (size_t)(k / Q8_BLOCK) * (Q8_BLOCK_BYTES + Q8_SCALE_BYTES);
}
/* Blocks of 32 in the k-block at k. */
static inline int q8_blocks_at(int64_t k, int64_t all)
{
    int64_t left = q8_blocks_of(all - k);
    return (int)(left < Q8_PER_K_BLOCK ? left : Q8_PER_K_BLOCK);
}

/* --- the operations of ops.h, for weights of DTYPE_Q8 ------------------------------------------- */

size_t cpu_q8_bytes(int64_t n, int64_t k);
int cpu_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows);
int cpu_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids);
int cpu_q8_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias);
/* With given kernels, for tests: the best of the device's instruction set are the default. */
int q8_matmul_by(const struct q8_kernels *kernels, struct stream *s, struct mat c,
                 struct mat a, const struct weight *w, const float *bias);

#endif
