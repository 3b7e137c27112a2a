/* ref.h - element access for the reference operations; private to src/tensor/ref.
 *
 * The reference judges the other backends.  It is plain C, one element after another, in exactly
 * the order that ops.h prescribes, and never trades clarity for speed. */
#ifndef TENSOR_REF_H
#define TENSOR_REF_H

#include <math.h>

#include "tensor/device.h"
#include "tensor/operations.h"
#include "tensor/shape.h"

/* Raise this version whenever an operation gives other bits (tensor.h: device.numerics_version). */
#define REF_NUMERICS_VERSION 2

static inline float elem_load(const void *p, enum dtype t, int64_t i)
{
    if (t == DTYPE_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == DTYPE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static inline void elem_store(void *p, enum dtype t, int64_t i, float f)
{
    if (t == DTYPE_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = t == DTYPE_F16 ? f32_to_f16(f) : f32_to_bf16(f);
}

static inline float mat_get(struct mat a, int64_t row, int64_t col)
{
    return elem_load(a.data, a.dtype, row * a.ld + col);
}

static inline void mat_set(struct mat a, int64_t row, int64_t col, float f)
{
    elem_store(a.data, a.dtype, row * a.ld + col, f);
}

/* Returns the sum of 16 lanes, added pairwise in the order of ops.h. */
#define REF_LANES 16
float ref_lanes_sum(float lanes[REF_LANES]);

/* kv_block returns the block of position pos of sequence s; k_index and v_index return the offset
 * of an element, in elements from the block's start. */
static inline uint8_t *kv_block(const struct kv_layer *kv, const struct ragged *r, int s,
                                int32_t pos)
{
    return kv->blocks + (size_t)r->tables[s][pos / KV_BLOCK_TOKENS] * kv->block_stride;
}
static inline int64_t k_index(const struct kv_layer *kv, int head, int dim, int32_t pos)
{
    return ((int64_t)head * kv->d_head + dim) * KV_BLOCK_TOKENS + pos % KV_BLOCK_TOKENS;
}
static inline int64_t v_index(const struct kv_layer *kv, int head, int dim, int32_t pos)
{
    int64_t k_elements = (int64_t)kv->n_kv * kv->d_head * KV_BLOCK_TOKENS;
    return k_elements +
           ((int64_t)head * KV_BLOCK_TOKENS + pos % KV_BLOCK_TOKENS) * kv->d_head + dim;
}

OPERATIONS_DECLARE(ref)

/* Implement weight_bytes, weight_pack, weight_rows and matmul for weights of dtype q8. */
size_t ref_q8_bytes(int64_t n, int64_t k);
int ref_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows);
int ref_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids);
int ref_q8_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias);

/* Implement the same operations for 4-bit and 6-bit weights. */
/* A k-block of a row of A, rounded (ops.h). */
struct ref_rounded {
    int32_t x[MATMUL_K_BLOCK];
    float step[MATMUL_K_BLOCK / Q4_BLOCK]; /* 2^-i of each block */
    float e;
};
/* Rounds the k-block that n <= 256 numbers are; x beyond them is 0. */
void ref_round(const float *a, int64_t n, struct ref_rounded *r);
size_t ref_q4_bytes(enum dtype t, int64_t n, int64_t k);
int ref_q4_pack(struct stream *s, struct weight *w, int64_t row, const void *src,
                int64_t n_rows);
int ref_q4_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids);
int ref_q4_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias);

/* Return f, or fma(x, y, acc), or a zero of the same sign if that is subnormal. */
static inline float ref_flush(float f)
{
    return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f;
}

/* A result just below 2^-126 counts as subnormal although fmaf rounds it up to 2^-126, because the
 * instruction rounds to 24 bits before it checks. Scaled by 2^64, fmaf rounds to 24 bits as well.
 * Neither the scaled smaller factor nor the scaled acc can overflow. */
static inline float ref_fma_flushed(float x, float y, float acc)
{
    float r = fmaf(x, y, acc);
    if (fabsf(r) != 0x1p-126f)
        return ref_flush(r);
    float low = fabsf(x) < fabsf(y) ? x : y, high = fabsf(x) < fabsf(y) ? y : x;
    return fabsf(fmaf(low * 0x1p64f, high, acc * 0x1p64f)) < 0x1p-62f ? copysignf(0, r) : r;
}

/* Implements matmul for weights of dtype bf16r. */
int ref_bf16r_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                     const float *bias);

#endif
