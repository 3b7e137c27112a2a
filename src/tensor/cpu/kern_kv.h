/* kern_kv.h - from rows of K and V, as they are stored, to one head of a KV block.
 *
 * K is rotated token by token into a small buffer (it stays in L1), then transposed into
 * [d_head][64]; 16 aligned tokens at a time where there are so many.  V is copied. */
#ifndef TENSOR_KERN_KV_H
#define TENSOR_KERN_KV_H

/* out[0..d_head) = round_T(rotated k[0..d_head)) */
INLINE void rotate_row(void *out, const void *k, enum dtype t, const float *cos,
                       const float *sin, int half, int d_head)
{
    for (int i = 0; i < half; i += 16) {
        int n = half - i;
        v16 c = v_load_upto(cos, DTYPE_F32, i, n), s = v_load_upto(sin, DTYPE_F32, i, n);
        v16 x1 = v_load_upto(k, t, i, n), x2 = v_load_upto(k, t, i + half, n);
        v_store_upto(out, t, i, n, v_sub(v_mul(x1, c), v_mul(x2, s)));
        v_store_upto(out, t, i + half, n, v_add(v_mul(x2, c), v_mul(x1, s)));
    }
    size_t done = (size_t)(2 * half) * dtype_bytes(t);
    memcpy((char *)out + done, (const char *)k + done, (size_t)d_head * dtype_bytes(t) - done);
}

INLINE void scatter_row(uint8_t *k_block, const void *row, enum dtype t, int d_head, int token)
{
    for (int d = 0; d < d_head; d++) {
        if (t == DTYPE_F32)
            ((uint32_t *)k_block)[d * KV_BLOCK_TOKENS + token] = ((const uint32_t *)row)[d];
        else
            ((uint16_t *)k_block)[d * KV_BLOCK_TOKENS + token] = ((const uint16_t *)row)[d];
    }
}

/* 16 tokens from `rows` [16][d_head] to tokens [token, token + 16) of the block. */
INLINE void transpose_rows(uint8_t *k_block, const void *rows, enum dtype t, int d_head,
                           int token)
{
    int d = 0;
    if (t != DTYPE_F32)
        for (; d + 16 <= d_head; d += 16)
            transpose16_u16((uint16_t *)k_block + d * KV_BLOCK_TOKENS + token, KV_BLOCK_TOKENS,
                            (const uint16_t *)rows + d, d_head);
    for (; d < d_head; d++)
        for (int i = 0; i < 16; i++) {
            if (t == DTYPE_F32)
                ((uint32_t *)k_block)[d * KV_BLOCK_TOKENS + token + i] =
                    ((const uint32_t *)rows)[i * d_head + d];
            else
                ((uint16_t *)k_block)[d * KV_BLOCK_TOKENS + token + i] =
                    ((const uint16_t *)rows)[i * d_head + d];
        }
}

INLINE void kv_fill_t(const struct kv_run *run, enum dtype t)
{
    _Alignas(64) char rotated[16 * MAX_D_HEAD * 4];
    size_t head_bytes = (size_t)run->d_head * dtype_bytes(t);
    for (int i = 0; i < run->n;) {
        int token = run->t0 + i;
        int n = token % 16 == 0 && run->n - i >= 16 ? 16 : 1;
        for (int j = 0; j < n; j++) {
            size_t row = (size_t)(i + j);
            rotate_row(rotated + (size_t)j * head_bytes, run->k_rows + row * run->row_bytes, t,
                       run->cos + row * (size_t)run->half, run->sin + row * (size_t)run->half,
                       run->half, run->d_head);
            memcpy(run->v + (size_t)(token + j) * head_bytes, run->v_rows + row * run->row_bytes,
                   head_bytes);
        }
        if (n == 16)
            transpose_rows(run->k, rotated, t, run->d_head, token);
        else
            scatter_row(run->k, rotated, t, run->d_head, token);
        i += n;
    }
}

static void kv_fill(const struct kv_run *run)
{
    FOR_DTYPE(run->dtype, t, kv_fill_t(run, (enum dtype)t));
}

#endif
