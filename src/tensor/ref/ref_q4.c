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

void ref_round_block(const float *a, int32_t *x, float *e, float *z)
{
    float largest = 0;
    int32_t sum = 0;
    bool finite = true;
    for (int i = 0; i < Q4_BLOCK; i++) {
        finite = finite && isfinite(a[i]);
        largest = fmaxf(largest, fabsf(a[i]));
        x[i] = 0;
    }
    finite = finite && largest < 0x1p110f;
    *e = finite ? 0 : NAN;
    if (finite && largest >= 0x1p-100f) {
        uint32_t bits;
        *e = largest / 127.0f;
        memcpy(&bits, e, sizeof bits);
        bits &= ~3u; /* 22 significant bits */
        memcpy(e, &bits, sizeof bits);
        for (int i = 0; i < Q4_BLOCK; i++)
            sum += x[i] = (int32_t)rintf(a[i] * (127.0f / largest));
    }
    *z = (float)sum * *e;
}

/* Returns acc plus the product of a block of q6_k. */
static float add_k6(const struct q4_part *p, const int32_t *x, float e, float acc)
{
    int32_t s = 0;
    for (int i = 0; i < Q4_BLOCK; i++)
        s += (int8_t)(i < 16 ? p->s : p->t) * x[i] * (q4_part_q(p, i) - 32);
    return fmaf((float)s * e, f16_to_f32(p->d), acc);
}

static float row_product(const struct weight *w, int64_t row, const int32_t *x,
                         const float *e, const float *z)
{
    const int8_t *values = q4_values(w->dtype);
    float acc = 0;
    for (int64_t b = 0; b < w->k / Q4_BLOCK; b++) {
        struct q4_part p = q4_part_read(w->dtype, row_at(w, row), b);
        float d, m;
        int32_t s = 0;
        if (w->dtype == DTYPE_Q6_K) {
            acc = add_k6(&p, x + b * Q4_BLOCK, e[b], acc);
            continue;
        }
        q4_part_scales(w->dtype, &p, &d, &m);
        for (int i = 0; i < Q4_BLOCK; i++) {
            int q = q4_part_q(&p, i);
            s += x[b * Q4_BLOCK + i] * (w->dtype == DTYPE_Q4_0 ? q - 8
                                        : values != NULL       ? values[q]
                                                               : q);
        }
        acc = fmaf((float)s * e[b], d, acc);
        if (q4_has_minimum(w->dtype))
            acc = fmaf(z[b], m, acc);
    }
    return acc;
}

int ref_q4_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias)
{
    int32_t x[MATMUL_MAX_K];
    float e[MATMUL_MAX_K / Q4_BLOCK], z[MATMUL_MAX_K / Q4_BLOCK];
    CHECK(w->k <= MATMUL_MAX_K);
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t k = 0; k < w->k; k += Q4_BLOCK)
            ref_round_block((const float *)a.data + i * a.ld + k, x + k, &e[k / Q4_BLOCK],
                            &z[k / Q4_BLOCK]);
        for (int64_t j = 0; j < c.cols; j++) {
            float y = row_product(w, j, x, e, z);
            mat_set(c, i, j, bias != NULL ? y + bias[j] : y);
        }
    }
    return stream_enter(s);
}
