/* ref_q4.c - 4-bit and 6-bit weights as files have them, and the matrix product with them in the
 * order of ops.h.
 *
 * A weight is an array [n][k / block] of the blocks of q4_blocks.h. */
#include "tensor/q4_blocks.h"
#include "tensor/ref/ref.h"

#include <math.h>
#include <string.h>

static const uint8_t *row_at(const struct weight *w, int64_t row)
{
    return (const uint8_t *)w->mem.ptr + (size_t)row * q4_row_bytes(w->dtype, w->k);
}

size_t ref_q4_bytes(enum dtype t, int64_t n, int64_t k)
{
    CHECK(k % q4_block_weights(t) == 0);
    return (size_t)n * q4_row_bytes(t, k);
}

int ref_q4_pack(struct stream *s, struct weight *w, int64_t row, const void *src,
                int64_t n_rows)
{
    size_t bytes = q4_row_bytes(w->dtype, w->k);
    memcpy((uint8_t *)w->mem.ptr + (size_t)row * bytes, src, (size_t)n_rows * bytes);
    return stream_enter(s);
}

int ref_q4_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids)
{
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        for (int64_t k = 0; k < w->k; k += Q4_BLOCK) {
            float piece[Q4_BLOCK];
            q4_part_decode(w->dtype, row_at(w, ids[i]), k / Q4_BLOCK, piece);
            for (int j = 0; j < Q4_BLOCK; j++)
                mat_set(out, i, k + j, piece[j]);
        }
    }
    return stream_enter(s);
}

/* Returns the largest magnitude, or an infinity if a number is none or 2^110 or more in size. */
static float largest_of(const float *a, int64_t n)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fabsf(a[i]) < 0x1p110f ? fmaxf(largest, fabsf(a[i])) : INFINITY;
    return largest;
}

void ref_round(const float *a, int64_t n, struct ref_rounded *r)
{
    float largest = largest_of(a, n);
    memset(r, 0, sizeof *r);
    for (int64_t k = 0; k < n; k += Q4_BLOCK) {
        int64_t end = MIN(k + Q4_BLOCK, n);
        float top = largest_of(a + k, end - k), step = 1;
        for (int i = 0; i < Q4_MOST_HALVED && largest * (step / 2) >= top; i++)
            step /= 2;
        r->step[k / Q4_BLOCK] = step;
        for (int64_t i = k; i < end && largest >= 0x1p-100f && !isinf(largest); i++)
            r->x[i] = (int32_t)rintf(a[i] * (127.0f / largest / step));
    }
    r->e = isinf(largest) ? NAN : largest < 0x1p-100f ? 0 : largest / 127.0f;
}

int ref_round_rest(struct stream *s, struct mat out, struct mat a)
{
    check_same_shape(out, a);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t k = 0; k < a.cols; k++) {
            int64_t first = k - k % MATMUL_K_BLOCK, at = k - first;
            struct ref_rounded r;
            ref_round((const float *)a.data + i * a.ld + first,
                      MIN(a.cols - first, MATMUL_K_BLOCK), &r);
            float kept = (float)r.x[at] * r.step[at / Q4_BLOCK] * r.e;
            mat_set(out, i, k, mat_get(a, i, k) - kept);
        }
    return stream_enter(s);
}

/* Returns the sum of x q over numbers [from, from + n) of a block. */
static float sum_of(enum dtype t, const struct q4_part *p, const int32_t *x, int from,
                    int n)
{
    const int8_t *values = q4_values(t);
    int32_t s = 0;
    for (int i = from; i < from + n; i++) {
        int q = q4_part_q(p, i);
        s += x[i] * (t == DTYPE_Q4_0   ? q - 8
                     : t == DTYPE_Q6_K ? q - 32
                     : values != NULL  ? values[q]
                                       : q);
    }
    return (float)s;
}

/* Returns z of a block. */
static float sum_of_x(const struct ref_rounded *r, int64_t b)
{
    float sum = 0;
    for (int i = 0; i < Q4_BLOCK; i++)
        sum += (float)r->x[b * Q4_BLOCK + i];
    return rintf(8 * sum * r->step[b]) / 8;
}

/* Returns the product of block b of a k-block, plus `sum`; of q4_k without its minimum. */
static float add_block(enum dtype t, const struct q4_part *p, const struct ref_rounded *r,
                       int64_t b, float sum)
{
    const int32_t *x = r->x + b * Q4_BLOCK;
    float step = r->step[b], d, m;
    if (t == DTYPE_Q6_K) {
        d = f16_to_f32(p->d);
        sum = fmaf(sum_of(t, p, x, 0, 16) * step, d * (float)(int8_t)p->s, sum);
        return fmaf(sum_of(t, p, x, 16, 16) * step, d * (float)(int8_t)p->t, sum);
    }
    q4_part_scales(t, p, &d, &m);
    sum = fmaf(sum_of(t, p, x, 0, Q4_BLOCK) * step, d, sum);
    return t == DTYPE_Q4_1 ? fmaf(sum_of_x(r, b), m, sum) : sum;
}

static float row_product(const struct weight *w, int64_t row, const struct ref_rounded *r)
{
    float acc = 0;
    for (int64_t k = 0; k < w->k; k += MATMUL_K_BLOCK, r++) {
        float sum = 0, minimums = 0;
        struct q4_part p = {0};
        for (int64_t b = 0; b < MIN(w->k - k, MATMUL_K_BLOCK) / Q4_BLOCK; b++) {
            p = q4_part_read(w->dtype, row_at(w, row), k / Q4_BLOCK + b);
            sum = add_block(w->dtype, &p, r, b, sum);
            minimums += (float)p.t * sum_of_x(r, b);
        }
        if (w->dtype == DTYPE_Q4_K)
            sum = fmaf(minimums, -f16_to_f32(p.m), sum);
        acc = fmaf(sum, r->e, acc);
    }
    return acc;
}

int ref_q4_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias)
{
    struct ref_rounded r[MATMUL_MAX_K / MATMUL_K_BLOCK];
    CHECK(w->k <= MATMUL_MAX_K);
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t k = 0; k < w->k; k += MATMUL_K_BLOCK)
            ref_round((const float *)a.data + i * a.ld + k, MIN(w->k - k, MATMUL_K_BLOCK),
                      &r[k / MATMUL_K_BLOCK]);
        for (int64_t j = 0; j < c.cols; j++) {
            float y = row_product(w, j, r);
            mat_set(c, i, j, bias != NULL ? y + bias[j] : y);
        }
    }
    return stream_enter(s);
}
