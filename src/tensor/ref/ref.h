/* ref.h - element access for the reference operations; private to src/tensor/ref.
 *
 * The reference is the judge: plain C, one element after another, in exactly the order that ops.h
 * prescribes.  It never trades clarity for speed. */
#ifndef TENSOR_REF_H
#define TENSOR_REF_H

#include "tensor/device.h"
#include "tensor/ops.h"
#include "tensor/shape.h"

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

/* The contract's order of a sum: 16 lanes, added pairwise. */
#define REF_LANES 16
float ref_lanes_sum(float lanes[REF_LANES]);

/* Where element (position pos of sequence s, head, dim) lies: in elements from the block's start. */
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

size_t ref_weight_bytes(enum dtype t, int64_t n, int64_t k);
int ref_weight_pack(struct stream *s, struct weight *w, int64_t row, const void *src,
                    int64_t n_rows);
int ref_weight_rows(struct stream *s, struct mat out, const struct weight *w,
                    const int32_t *ids);
int ref_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
               const float *bias);

/* Of w->dtype q8: what the four above are then. */
size_t ref_q8_bytes(int64_t n, int64_t k);
int ref_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows);
int ref_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids);
int ref_q8_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias);

int ref_embed(struct stream *s, struct mat out, struct mat table, const int32_t *ids,
              float scale);
int ref_rmsnorm(struct stream *s, struct mat out, struct mat x, const float *w, float eps);
int ref_layernorm(struct stream *s, struct mat out, struct mat x, const float *w,
                  const float *b, float eps);
int ref_head_norm(struct stream *s, struct mat x, int d_head, const float *w, float eps);
int ref_convert(struct stream *s, struct mat out, struct mat x);
int ref_add(struct stream *s, struct mat out, struct mat a, struct mat b);
int ref_act_mul(struct stream *s, struct mat out, struct mat gate_up, enum activation act);
int ref_act(struct stream *s, struct mat x, enum activation act);
int ref_all_finite(struct stream *s, struct mat x, bool *finite);

int ref_rope(struct stream *s, struct mat q, int d_head, const struct rope *rope,
             const struct ragged *r);
int ref_kv_load(struct stream *s, const struct kv_layer *kv, int32_t block,
                const void *chunk, const struct rope *rope, int32_t pos0);
int ref_kv_fill(struct stream *s, const struct kv_layer *kv, struct mat rows,
                const struct rope *rope, const struct ragged *r);
int ref_kv_read(struct stream *s, struct mat out, const struct kv_layer *kv,
                const struct ragged *r);
int ref_attention(struct stream *s, struct mat out, struct mat q, const struct kv_layer *kv,
                  const struct ragged *r, float scale, int window);

#endif
