/* ref_kv.c - rotary positions, and the only code that writes and reads KV blocks. */
#include "tensor/ref/ref.h"

/* Rotates one head at x[0..d_head): element i with element i + d_rot / 2. */
static void rotate_head(float *x, const struct rope *rope, int32_t pos)
{
    int half = rope->d_rot / 2;
    for (int i = 0; i < half; i++) {
        float c = rope->cos[(int64_t)pos * half + i],
              sn = rope->sin[(int64_t)pos * half + i];
        float x1 = x[i], x2 = x[i + half];
        x[i] = x1 * c - x2 * sn;
        x[i + half] = x2 * c + x1 * sn;
    }
}

int ref_rope(struct stream *s, struct mat q, int d_head, const struct rope *rope,
             const struct ragged *r)
{
    check_f32(q);
    check_ragged(r, q.rows);
    check_rope(rope, d_head, r);
    for (int64_t i = 0; i < q.rows; i++)
        for (int64_t h = 0; h < q.cols; h += d_head)
            rotate_head((float *)q.data + i * q.ld + h, rope, r->pos[i]);
    return stream_enter(s);
}

static void fill_row(const struct kv_layer *kv, struct mat rows, const struct rope *rope,
                     const struct ragged *r, int seq, int row)
{
    int32_t pos = r->pos[row];
    uint8_t *block = kv_block(kv, r, seq, pos);
    int64_t v_at = kv_rows_are_one(kv->n_kv, kv->d_head, rows) ? 0 : rows.cols / 2;
    CHECK(kv->d_head <= ATTENTION_MAX_D_HEAD);
    for (int h = 0; h < kv->n_kv; h++) {
        float k[ATTENTION_MAX_D_HEAD];
        for (int d = 0; d < kv->d_head; d++)
            k[d] = mat_get(rows, row, h * kv->d_head + d);
        rotate_head(k, rope, pos);
        for (int d = 0; d < kv->d_head; d++) {
            elem_store(block, kv->dtype, k_index(kv, h, d, pos), k[d]);
            elem_store(block, kv->dtype, v_index(kv, h, d, pos),
                       mat_get(rows, row, v_at + h * kv->d_head + d));
        }
    }
}

int ref_kv_fill(struct stream *s, const struct kv_layer *kv, struct mat rows,
                const struct rope *rope, const struct ragged *r)
{
    check_kv_rows(kv, rows, r);
    check_rope(rope, kv->d_head, r);
    for (int q = 0; q < r->n_seqs; q++)
        for (int row = r->seq_row[q]; row < r->seq_row[q + 1]; row++)
            fill_row(kv, rows, rope, r, q, row);
    return stream_enter(s);
}

/* v_at: bytes from the chunk's K to its V; of_v: the chunk has V alone. */
static void load_chunk(const struct kv_layer *kv, int32_t block, const uint8_t *chunk,
                       size_t v_at, bool of_v, const struct rope *rope, int32_t pos0)
{
    uint8_t *to = kv->blocks + (size_t)block * kv->block_stride;
    for (int32_t pos = pos0; pos < pos0 + KV_BLOCK_TOKENS; pos++) {
        for (int h = 0; h < kv->n_kv; h++) {
            float k[ATTENTION_MAX_D_HEAD];
            for (int d = 0; d < kv->d_head; d++)
                k[d] = elem_load(chunk, kv->dtype,
                                 of_v ? v_index(kv, h, d, pos) - v_index(kv, 0, 0, 0)
                                      : k_index(kv, h, d, pos));
            rotate_head(k, rope, pos);
            for (int d = 0; d < kv->d_head; d++) {
                elem_store(to, kv->dtype, k_index(kv, h, d, pos), k[d]);
                elem_store(to, kv->dtype, v_index(kv, h, d, pos),
                           elem_load(chunk + v_at, kv->dtype,
                                     v_index(kv, h, d, pos) - v_index(kv, 0, 0, 0)));
            }
        }
    }
}

int ref_kv_load(struct stream *s, const struct kv_layer *kv, const struct kv_chunks *c,
                const struct rope *rope)
{
    check_kv_load(kv, c, rope);
    for (int i = 0; i < c->n; i++)
        load_chunk(kv, c->blocks[i], (const uint8_t *)c->first + (size_t)i * c->stride,
                   c->v_is_k ? 0 : kv_chunks_v_at(kv, c), c->v_is_k, rope,
                   c->pos0 + i * KV_BLOCK_TOKENS);
    return stream_enter(s);
}

static void read_row(const struct kv_layer *kv, struct mat out, const struct ragged *r,
                     int seq, int row)
{
    int32_t pos = r->pos[row];
    const uint8_t *block = kv_block(kv, r, seq, pos);
    for (int h = 0; h < kv->n_kv; h++) {
        for (int d = 0; d < kv->d_head; d++) {
            mat_set(out, row, h * kv->d_head + d,
                    elem_load(block, kv->dtype, k_index(kv, h, d, pos)));
            mat_set(out, row, out.cols / 2 + h * kv->d_head + d,
                    elem_load(block, kv->dtype, v_index(kv, h, d, pos)));
        }
    }
}

int ref_kv_read(struct stream *s, struct mat out, const struct kv_layer *kv,
                const struct ragged *r)
{
    check_kv_rows(kv, out, r);
    for (int q = 0; q < r->n_seqs; q++)
        for (int row = r->seq_row[q]; row < r->seq_row[q + 1]; row++)
            read_row(kv, out, r, q, row);
    return stream_enter(s);
}
