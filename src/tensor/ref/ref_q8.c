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

/* Returns the sum of a row's k-block of n numbers at k. */
static float k_block(const struct weight *w, int64_t row, int64_t k, int64_t n,
                     const struct ref_rounded *r)
{
    float sum = 0;
    for (int64_t at = 0; at < n; at += Q8_BLOCK) {
        const struct block *b = block_at(w, row, (k + at) / Q8_BLOCK);
        int32_t s = 0;
        for (int i = 0; i < Q8_BLOCK; i++)
            s += r->x[at + i] * b->q[i];
        sum = fmaf((float)s * r->step[at / Q8_BLOCK], f16_to_f32(b->d), sum);
    }
    return sum;
}

int ref_q8_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias)
{
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; j < c.cols; j++)
            mat_set(c, i, j, 0);
        for (int64_t k = 0; k < w->k; k += MATMUL_K_BLOCK) {
            int64_t n = MIN(w->k - k, MATMUL_K_BLOCK);
            float part[MATMUL_K_BLOCK];
            struct ref_rounded r;
            for (int64_t at = 0; at < n; at++)
                part[at] = mat_get(a, i, k + at);
            ref_round(part, n, &r);
            for (int64_t j = 0; j < c.cols; j++)
                mat_set(c, i, j, fmaf(k_block(w, j, k, n, &r), r.e, mat_get(c, i, j)));
        }
        for (int64_t j = 0; bias != NULL && j < c.cols; j++)
            mat_set(c, i, j, mat_get(c, i, j) + bias[j]);
    }
    return stream_enter(s);
}
