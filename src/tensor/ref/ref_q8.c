/* ref_q8.c - 8-bit weights, and the matrix product with them in the order of ops.h.
 *
 * A weight is an array [n][blocks] of struct block: a scale, then numbers. */
#include "base/minmax.h"
#include "tensor/ref/ref.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "tensor/q8_blocks.h"

struct block {
    uint16_t d; /* the scale, an f16 */
    int8_t q[Q8_BLOCK];
};

static struct block *block_at(const struct weight *w, int64_t row, int64_t block)
{
    return (struct block *)w->mem.ptr + row * q8_blocks(w->k) + block;
}

size_t ref_q8_bytes(int64_t n, int64_t k)
{
    return (size_t)(n * q8_blocks(k)) * sizeof(struct block);
}

/* --- rounding ------------------------------------------------------------------------------- */

/* Rounds one k-block of a row of A to x [256]. Returns e. */
static float round_activations(int32_t *x, struct mat a, int64_t row, int64_t k0, int64_t n)
{
    float largest = 0;
    memset(x, 0, MATMUL_K_BLOCK * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(mat_get(a, row, k0 + i)))
            return NAN;
        largest = fmaxf(largest, fabsf(mat_get(a, row, k0 + i)));
    }
    if (largest < 0x1p-100f)
        return 0;
    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)rintf(mat_get(a, row, k0 + i) * (32767.0f / largest));
    return largest / 32767.0f;
}

/* --- the operations --------------------------------------------------------------------------- */

int ref_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows)
{
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t k = 0; k < w->k; k += Q8_BLOCK) {
            int64_t n = MIN(w->k - k, Q8_BLOCK);
            struct block *b = block_at(w, row + i, k / Q8_BLOCK);
            if (!q8_round(src + i * w->k + k, n, &b->d, b->q))
                return -ERANGE;
        }
    }
    return stream_enter(s);
}

int ref_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids)
{
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        for (int64_t j = 0; j < w->k; j++) {
            const struct block *b = block_at(w, ids[i], j / Q8_BLOCK);
            mat_set(out, i, j, (float)b->q[j % Q8_BLOCK] * f16_to_f32(b->d));
        }
    }
    return stream_enter(s);
}

/* Returns the sum p (ops.h) of the k-block that begins at k0. */
static float block_sum(const int32_t *x, const struct weight *w, int64_t j, int64_t k0)
{
    float p = 0;
    for (int64_t k = 0; k < MATMUL_K_BLOCK && k0 + k < w->k; k += Q8_BLOCK) {
        const struct block *b = block_at(w, j, (k0 + k) / Q8_BLOCK);
        int32_t s = 0;
        for (int i = 0; i < Q8_BLOCK; i++)
            s += x[k + i] * b->q[i];
        p = fmaf((float)s, f16_to_f32(b->d), p);
    }
    return p;
}

int ref_q8_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias)
{
    int32_t x[MATMUL_K_BLOCK];
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; j < c.cols; j++)
            mat_set(c, i, j, 0);
        for (int64_t k = 0; k < w->k; k += MATMUL_K_BLOCK) {
            int64_t n = MIN(w->k - k, MATMUL_K_BLOCK);
            float e = round_activations(x, a, i, k, n);
            for (int64_t j = 0; j < c.cols; j++)
                mat_set(c, i, j, fmaf(block_sum(x, w, j, k), e, mat_get(c, i, j)));
        }
        for (int64_t j = 0; bias != NULL && j < c.cols; j++)
            mat_set(c, i, j, mat_get(c, i, j) + bias[j]);
    }
    return stream_enter(s);
}
