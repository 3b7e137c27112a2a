/* kern_kv.h - converts rows of K and V, as they are stored, to a KV block.
 *
 * The source is read token by token, as one stream of memory (reading head by head, in pieces of
 * 128 bytes 4 KiB apart, ran at 1.6 GB/s).  K of a group of aligned tokens is rotated into a small
 * buffer, then transposed into [d_head][64]; V is copied. */
#ifndef TENSOR_KERN_KV_H
#define TENSOR_KERN_KV_H

/* Computes out[0..d_head) = round_T(rotated k[0..d_head)). */
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
    memcpy((char *)out + done, (const char *)k + done,
           (size_t)d_head * dtype_bytes(t) - done);
}

/* Writes one token to the block, element by element, for runs that are not a whole group. */
INLINE void scatter_row(uint8_t *k_block, const void *row, enum dtype t, int d_head,
                        int token)
{
    for (int d = 0; d < d_head; d++) {
        if (t == DTYPE_F32)
            ((uint32_t *)k_block)[d * KV_BLOCK_TOKENS + token] = ((const uint32_t *)row)[d];
        else
            ((uint16_t *)k_block)[d * KV_BLOCK_TOKENS + token] = ((const uint16_t *)row)[d];
    }
}

INLINE void put_lines(void *dst, const void *src, size_t n, bool is_cached)
{
    if (is_cached)
        memcpy(dst, src, n);
    else
        stream_lines(dst, src, n);
}

/* Transposes KV_GROUP tokens from `rows` [KV_GROUP][d_head] to tokens [token, token + KV_GROUP) of
 * the block, 16 dimensions at a time through a buffer, so that whole cache lines bypass the caches.
 */
INLINE void transpose_group(uint8_t *k_block, const void *rows, enum dtype t, int d_head,
                            int token, bool is_cached)
{
    _Alignas(64) uint16_t lines[16 * KV_GROUP];
    int d = 0;
    if (t != DTYPE_F32)
        for (; d + 16 <= d_head; d += 16) {
            for (int i = 0; i < KV_GROUP; i += 16)
                transpose16_u16(lines + i, KV_GROUP,
                                (const uint16_t *)rows + i * d_head + d, d_head);
            for (int j = 0; j < 16; j++)
                put_lines((uint16_t *)k_block + (d + j) * KV_BLOCK_TOKENS + token,
                          lines + j * KV_GROUP, KV_GROUP * sizeof lines[0], is_cached);
        }
    for (int i = 0; i < KV_GROUP; i++)
        for (int e = d; e < d_head; e++) {
            if (t == DTYPE_F32)
                ((uint32_t *)k_block)[e * KV_BLOCK_TOKENS + token + i] =
                    ((const uint32_t *)rows)[i * d_head + e];
            else
                ((uint16_t *)k_block)[e * KV_BLOCK_TOKENS + token + i] =
                    ((const uint16_t *)rows)[i * d_head + e];
        }
}

/* Handles K and V of one token, all heads of the run: writes the rotated K to rotated[head][slot],
 * and copies V to its place in the block. */
INLINE void token_rows(const struct kv_run *run, enum dtype t, int i, char *rotated,
                       int slots, int slot)
{
    size_t head_bytes = (size_t)run->d_head * dtype_bytes(t),
           row = (size_t)i * run->row_bytes;
    const float *cos = run->cos + (int64_t)i * run->half,
                *sin = run->sin + (int64_t)i * run->half;
    for (size_t h = 0; h < (size_t)run->n_heads; h++) {
        for (size_t b = 0; b < head_bytes; b += 64) {
            size_t ahead = row + 2 * run->row_bytes + h * head_bytes + b;
            __builtin_prefetch(run->k_rows + ahead, 0, 3);
            __builtin_prefetch(run->v_rows + ahead, 0, 3);
        }
        rotate_row(rotated + (h * (size_t)slots + (size_t)slot) * head_bytes,
                   run->k_rows + row + h * head_bytes, t, cos, sin, run->half, run->d_head);
    }
    for (size_t h = 0; h < (size_t)run->n_heads; h++)
        put_lines(run->v + (h * KV_BLOCK_TOKENS + (size_t)(run->t0 + i)) * head_bytes,
                  run->v_rows + row + h * head_bytes, head_bytes, run->is_cached);
}

INLINE void kv_fill_t(const struct kv_run *run, enum dtype t)
{
    char *rotated = run->scratch;
    size_t head_bytes = (size_t)run->d_head * dtype_bytes(t);
    for (int i = 0; i < run->n;) {
        int token = run->t0 + i;
        int n = token % KV_GROUP == 0 && run->n - i >= KV_GROUP ? KV_GROUP : 1;
        for (int j = 0; j < n; j++)
            token_rows(run, t, i + j, rotated, n, j);
        for (int h = 0; h < run->n_heads; h++) {
            uint8_t *k = run->k + (size_t)h * head_bytes * KV_BLOCK_TOKENS;
            const char *rows = rotated + (size_t)(h * n) * head_bytes;
            if (n == KV_GROUP)
                transpose_group(k, rows, t, run->d_head, token, run->is_cached);
            else
                scatter_row(k, rows, t, run->d_head, token);
        }
        i += n;
    }
    stream_end();
}

static void kv_fill(const struct kv_run *run)
{
    FOR_DTYPE(run->dtype, t, kv_fill_t(run, (enum dtype)t));
}

/* Loads a chunk into a block. A vector's lanes are neighbouring tokens, so there is one cosine per
 * lane and no transpose. The result is written in the order of the source, past the caches. */
INLINE void kv_load_t(const struct kv_chunk *c, enum dtype t)
{
    size_t line = KV_BLOCK_TOKENS * dtype_bytes(t), head_bytes = (size_t)c->d_head * line;
    size_t rotated = 2 * (size_t)c->half * line;
    _Alignas(64) uint8_t lo[KV_BLOCK_TOKENS * 4], hi[KV_BLOCK_TOKENS * 4];
    for (int h = 0; h < c->n_kv; h++) {
        const uint8_t *k = c->chunk + (size_t)h * head_bytes;
        uint8_t *out = c->block + (size_t)h * head_bytes;
        for (int i = 0; i < c->half; i++) {
            const uint8_t *k1 = k + (size_t)i * line, *k2 = k1 + (size_t)c->half * line;
            for (int j = 0; j < KV_BLOCK_TOKENS; j += 16) {
                v16 cs = v_load(c->cos + i * KV_BLOCK_TOKENS + j);
                v16 sn = v_load(c->sin + i * KV_BLOCK_TOKENS + j);
                v16 x1 = v_load_t(k1, t, j), x2 = v_load_t(k2, t, j);
                v_store_t(lo, t, j, v_sub(v_mul(x1, cs), v_mul(x2, sn)));
                v_store_t(hi, t, j, v_add(v_mul(x2, cs), v_mul(x1, sn)));
            }
            stream_lines(out + (size_t)i * line, lo, line);
            stream_lines(out + (size_t)(i + c->half) * line, hi, line);
        }
        stream_lines(out + rotated, k + rotated, head_bytes - rotated);
    }
    size_t all_heads = (size_t)c->n_kv * head_bytes;
    stream_lines(c->block + all_heads, c->v, all_heads);
    stream_end();
}

static void kv_load(const struct kv_chunk *c)
{
    FOR_DTYPE(c->dtype, t, kv_load_t(c, (enum dtype)t));
}

#endif
