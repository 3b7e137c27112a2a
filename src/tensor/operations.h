/* operations.h - the names of a host backend's operations, once for `cpu` and `ref`.
 *
 * OPERATIONS_DECLARE(NAME) declares NAME_matmul and so on.  OPERATIONS_TABLE(NAME, MORE) puts them
 * into a table; MORE initialises the operations that only this backend has.  ops.h says what they
 * do. */
#ifndef TENSOR_OPERATIONS_H
#define TENSOR_OPERATIONS_H

#include "tensor/ops.h"

/* clang-format off */
#define OPERATIONS_DECLARE(name)                                                                  \
    size_t name##_weight_bytes(enum dtype t, int64_t n, int64_t k);                               \
    int name##_weight_pack(struct stream *s, struct weight *w, int64_t row, const void *src,      \
                           int64_t n_rows);                                                       \
    int name##_weight_rows(struct stream *s, struct mat out, const struct weight *w,              \
                           const int32_t *ids);                                                   \
    int name##_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,       \
                      const float *bias);                                                         \
    int name##_round_rest(struct stream *s, struct mat out, struct mat a);                        \
    int name##_embed(struct stream *s, struct mat out, struct mat table, const int32_t *ids,      \
                     float scale);                                                                \
    int name##_rmsnorm(struct stream *s, struct mat out, struct mat x, const float *w,            \
                       float eps);                                                                \
    int name##_layernorm(struct stream *s, struct mat out, struct mat x, const float *w,          \
                         const float *b, float eps);                                              \
    int name##_head_norm(struct stream *s, struct mat x, int d_head, const float *w, float eps);  \
    int name##_convert(struct stream *s, struct mat out, struct mat x);                           \
    int name##_add(struct stream *s, struct mat out, struct mat a, struct mat b);                 \
    int name##_act_mul(struct stream *s, struct mat out, struct mat gate_up,                      \
                       enum activation act);                                                      \
    int name##_act(struct stream *s, struct mat x, enum activation act);                          \
    int name##_all_finite(struct stream *s, struct mat x, bool *finite);                          \
    int name##_rope(struct stream *s, struct mat q, int d_head, const struct rope *rope,          \
                    const struct ragged *r);                                                      \
    int name##_kv_fill(struct stream *s, const struct kv_layer *kv, struct mat rows,              \
                       const struct rope *rope, const struct ragged *r);                          \
    int name##_kv_load(struct stream *s, const struct kv_layer *kv,                               \
                       const struct kv_chunks *chunks, const struct rope *rope);                  \
    int name##_kv_read(struct stream *s, struct mat out, const struct kv_layer *kv,               \
                       const struct ragged *r);                                                   \
    int name##_attention(struct stream *s, struct mat out, struct mat q,                          \
                         const struct kv_layer *kv, const struct ragged *r,                       \
                         const struct attention_rule *rule);                                      \
    int name##_delta_net(struct stream *s, struct mat out, struct mat in,                         \
                         const struct delta_rule *d, const struct kv_layer *states,               \
                         const struct ragged *r);                                                 \
    int name##_sample(struct stream *s, int32_t *ids, struct mat logits,                          \
                      const struct sample_row *rows);

/* kv_pack works on host memory on every device.  The host's fused operations run as two, and
 * checksum is that of base/hash.h (host.c). */
#define OPERATIONS_TABLE(name, ...)          \
    {                                        \
        .weight_bytes = name##_weight_bytes, \
        .weight_pack = name##_weight_pack,   \
        .weight_rows = name##_weight_rows,   \
        .embed = name##_embed,               \
        .rmsnorm = name##_rmsnorm,           \
        .layernorm = name##_layernorm,       \
        .head_norm = name##_head_norm,       \
        .matmul = name##_matmul,             \
        .round_rest = name##_round_rest,     \
        .convert = name##_convert,           \
        .add = name##_add,                   \
        .act_mul = name##_act_mul,           \
        .act = name##_act,                   \
        .all_finite = name##_all_finite,     \
        .rope = name##_rope,                 \
        .kv_fill = name##_kv_fill,           \
        .kv_load = name##_kv_load,           \
        .kv_pack = host_kv_pack,             \
        .add_norm = host_add_norm,           \
        .rope_kv_fill = host_rope_kv_fill,   \
        .kv_read = name##_kv_read,           \
        .attention = name##_attention,       \
        .delta_net = name##_delta_net,       \
        .sample = name##_sample,             \
        .checksum = host_checksum,           \
        __VA_ARGS__                          \
    }
/* clang-format on */

#endif
