/* ref_matmul.c - weights as stored, [n][k], and the matrix product in the order of ops.h. */
#include "base/minmax.h"
#include "tensor/ref/ref.h"

#include <math.h>
#include <string.h>

size_t ref_weight_bytes(enum dtype t, int64_t n, int64_t k)
{
    if (t == DTYPE_Q8)
        return ref_q8_bytes(n, k);
    if (dtype_has_blocks(t))
        return ref_q4_bytes(t, n, k);
    return (size_t)n * (size_t)k * dtype_bytes(t);
}

int ref_weight_pack(struct stream *s, struct weight *w, int64_t row, const void *src,
                    int64_t n_rows)
{
    check_weight_pack(w, row, n_rows);
    if (w->dtype == DTYPE_Q8)
        return ref_q8_pack(s, w, row, src, n_rows);
    if (dtype_has_blocks(w->dtype))
        return ref_q4_pack(s, w, row, src, n_rows);
    size_t row_bytes = (size_t)w->k * dtype_bytes(w->dtype);
    memcpy((char *)w->mem.ptr + (size_t)row * row_bytes, src, (size_t)n_rows * row_bytes);
    return stream_enter(s);
}

static enum dtype element_type(const struct weight *w)
{
    return w->dtype == DTYPE_BF16R ? DTYPE_BF16 : w->dtype;
}

int ref_weight_rows(struct stream *s, struct mat out, const struct weight *w,
                    const int32_t *ids)
{
    CHECK(out.cols == w->k);
    if (w->dtype == DTYPE_Q8)
        return ref_q8_rows(s, out, w, ids);
    if (dtype_has_blocks(w->dtype))
        return ref_q4_rows(s, out, w, ids);
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        for (int64_t j = 0; j < w->k; j++)
            mat_set(out, i, j, elem_load(w->mem.ptr, element_type(w), ids[i] * w->k + j));
    }
    return stream_enter(s);
}

/* Returns the partial sum over one k-block. */
static float block_dot(struct mat a, int64_t i, const struct weight *w, int64_t j,
                       int64_t k0)
{
    int64_t k1 = MIN(k0 + MATMUL_K_BLOCK, w->k);
    float p = 0;
    for (int64_t k = k0; k < k1; k++)
        p = fmaf(mat_get(a, i, k), elem_load(w->mem.ptr, w->dtype, j * w->k + k), p);
    return p;
}

int ref_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
               const float *bias)
{
    check_matmul(c, a, w);
    if (w->dtype == DTYPE_Q8)
        return ref_q8_matmul(s, c, a, w, bias);
    if (dtype_has_blocks(w->dtype))
        return ref_q4_matmul(s, c, a, w, bias);
    if (w->dtype == DTYPE_BF16R)
        return ref_bf16r_matmul(s, c, a, w, bias);
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; j < c.cols; j++) {
            float acc = block_dot(a, i, w, j, 0);
            for (int64_t k = MATMUL_K_BLOCK; k < w->k; k += MATMUL_K_BLOCK)
                acc = acc + block_dot(a, i, w, j, k);
            mat_set(c, i, j, bias != NULL ? acc + bias[j] : acc);
        }
    }
    return stream_enter(s);
}
