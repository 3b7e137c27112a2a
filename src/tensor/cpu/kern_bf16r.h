/* kern_bf16r.h - rounding, and the loops of the product of bf16 weights with rounded activations,
 * written once over v16.  The including file defines v_pairs, v_flush, v_fma_flush, and
 * flushing_begin and flushing_end.  Between these two calls subnormal numbers count as zero.
 *
 * The steps are those of AMX's instruction (ops.h), which sums even and odd k apart. */
#ifndef TENSOR_KERN_BF16R_H
#define TENSOR_KERN_BF16R_H

#define KB         MATMUL_K_BLOCK
#define STRIP_MOST 4
#define EACH_ROW   _Pragma("GCC unroll 4") for (int r = 0; r < n_rows; r++)

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Writes one row of x, and zeros after its k numbers. */
static void round_row(const float *a, int64_t k, int16_t *x, int64_t x_step)
{
    for (int64_t i = 0; i < k; i += KB, x += x_step) {
        int64_t n = MIN(k - i, KB);
        for (int64_t j = 0; j < n; j++)
            x[j] = (int16_t)to_bf16(a[i + j]);
        memset(x + n, 0, (size_t)(KB - n) * sizeof *x);
    }
}

static void add_bias(const struct quant_tile *t)
{
    for (int r = 0; r < t->m && t->bias != NULL; r++)
        for (int64_t j = 0; j < t->n_cols; j++)
            t->c[r * t->ldc + j] += t->bias[j];
}

#ifndef BF16R_TILES

INLINE v16 v_set_bf16(int16_t x)
{
    uint32_t u = (uint32_t)(uint16_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return v_set1(f);
}

/* Adds a block of 32 to acc[r]. */
INLINE void strip_block(v16 acc[STRIP_MOST], const int16_t *x, const uint8_t *w, int n_rows)
{
    v16 even[STRIP_MOST], odd[STRIP_MOST];
    EACH_ROW even[r] = odd[r] = v_zero();
    for (int p = 0; p < BF16R_BLOCK / 2; p++) {
        v16 w0, w1;
        v_pairs(w + p * PANEL * 4, &w0, &w1);
        EACH_ROW
        {
            v16 x0 = v_flush(v_set_bf16(x[r * KB + 2 * p])),
                x1 = v_flush(v_set_bf16(x[r * KB + 2 * p + 1]));
            even[r] = v_fma_flush(x0, w0, even[r]);
            odd[r] = v_fma_flush(x1, w1, odd[r]);
        }
    }
    EACH_ROW acc[r] = v_flush(v_add(acc[r], v_flush(v_add(even[r], odd[r]))));
}

/* Computes rows [r0, r0 + n_rows) of one panel. */
INLINE void strip(const struct quant_tile *t, int panel, int r0, int n_rows)
{
    const uint8_t *w = t->w + (size_t)panel * t->panel_bytes;
    int64_t col = (int64_t)panel * PANEL, n = t->n_cols - col;
    v16 acc[STRIP_MOST];
    EACH_ROW acc[r] = v_zero();
    for (int64_t k = 0; k < t->k; k += BF16R_BLOCK, w += BF16R_BLOCK_BYTES)
        strip_block(acc, t->x + (k / KB * t->x_rows + r0) * KB + k % KB, w, n_rows);
    EACH_ROW v_store_upto(t->c + (r0 + r) * t->ldc, DTYPE_F32, col, n, acc[r]);
}

static __attribute__((noinline)) void multiply_flushed(const struct quant_tile *t)
{
    for (int p = 0; p < t->n_panels; p++) {
        int r0 = 0;
        for (; r0 + STRIP_MOST <= t->m; r0 += STRIP_MOST)
            strip(t, p, r0, STRIP_MOST);
        for (; r0 < t->m; r0++)
            strip(t, p, r0, 1);
    }
}

static void multiply(const struct quant_tile *t)
{
    unsigned before = flushing_begin();
    multiply_flushed(t);
    flushing_end(before);
    add_bias(t);
}

const struct quant_kernels BF16R_TABLE = {
    .name = BF16R_NAME,
    .runs_here = runs_here,
    .direct_rows = 16,
    .direct = multiply,
    .blocked = multiply,
    .round_row = round_row,
};

#endif
#endif
