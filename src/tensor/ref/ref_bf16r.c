/* ref_bf16r.c - the product of bf16 weights with rounded activations in the order of ops.h.
 *
 * A weight lies as [n][k] bf16. */
#include "tensor/ref/ref.h"

enum { BLOCK = 32 };

/* Returns the sum over one block of 32; a block that k cuts short is filled up with zeros. */
static float block_sum(struct mat a, int64_t i, const struct weight *w, int64_t j,
                       int64_t k0)
{
    float sum[2] = {0};
    for (int64_t k = k0; k < k0 + BLOCK; k++) {
        bool there = k < w->k;
        float x = there ? ref_flush(bf16_to_f32(f32_to_bf16(mat_get(a, i, k)))) : 0,
              y = there ? ref_flush(elem_load(w->mem.ptr, DTYPE_BF16, j * w->k + k)) : 0;
        sum[k % 2] = ref_fma_flushed(x, y, sum[k % 2]);
    }
    return ref_flush(sum[0] + sum[1]);
}

int ref_bf16r_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                     const float *bias)
{
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; j < c.cols; j++) {
            float acc = 0;
            for (int64_t k = 0; k < w->k; k += BLOCK)
                acc = ref_flush(acc + block_sum(a, i, w, j, k));
            mat_set(c, i, j, bias != NULL ? acc + bias[j] : acc);
        }
    }
    return stream_enter(s);
}
