/* ref.c - the reference device: host memory and the naive operations. */
#include "tensor/ref/ref.h"

static const struct ops ref_ops = {
    .weight_bytes = ref_weight_bytes,
    .weight_pack = ref_weight_pack,
    .weight_rows = ref_weight_rows,
    .embed = ref_embed,
    .rmsnorm = ref_rmsnorm,
    .layernorm = ref_layernorm,
    .head_norm = ref_head_norm,
    .matmul = ref_matmul,
    .convert = ref_convert,
    .add = ref_add,
    .act_mul = ref_act_mul,
    .act = ref_act,
    .all_finite = ref_all_finite,
    .rope = ref_rope,
    .kv_fill = ref_kv_fill,
    .kv_load = ref_kv_load,
    .kv_pack = host_kv_pack,
    .kv_read = ref_kv_read,
    .attention = ref_attention,
};

int ref_device_open(struct pool *pool, struct device **out, struct err *err)
{
    return host_device_open("ref", &ref_ops, "reference", 4096, pool, out, err);
}
