/* shape.h - the shape checks of ops.h, shared by the backends; private to src/tensor.
 *
 * A wrong shape is a bug of the caller, so these assert. */
#ifndef TENSOR_SHAPE_H
#define TENSOR_SHAPE_H

#include "base/check.h"
#include "base/minmax.h"
#include "tensor/device.h"
#include "tensor/ops.h"
#include "tensor/q4_blocks.h"

static inline void check_mat(struct mat a)
{
    CHECK(a.rows >= 0 && a.cols >= 0 && (a.ld >= a.cols || a.rows <= 1));
    CHECK((unsigned)a.dtype <= DTYPE_BF16 && (a.data != NULL || a.rows * a.cols == 0));
}

/* Checks a table of embed: a matrix, or rows of 4-bit or 6-bit blocks. */
static inline void check_table(struct mat a)
{
    if (dtype_has_blocks(a.dtype))
        CHECK(a.data != NULL && a.cols % q4_block_weights(a.dtype) == 0);
    else
        check_mat(a);
}

static inline void check_same_shape(struct mat a, struct mat b)
{
    check_mat(a);
    check_mat(b);
    CHECK(a.rows == b.rows && a.cols == b.cols);
}

static inline void check_f32(struct mat a)
{
    check_mat(a);
    CHECK(a.dtype == DTYPE_F32);
}

static inline void check_weight_pack(const struct weight *w, int64_t row, int64_t n_rows)
{
    CHECK(row >= 0 && n_rows >= 0 && row + n_rows <= w->n && w->k > 0);
}

static inline void check_matmul(struct mat c, struct mat a, const struct weight *w)
{
    check_f32(c);
    check_f32(a);
    CHECK(c.rows == a.rows && c.cols == w->n && a.cols == w->k);
}

static inline void check_act_mul(struct mat out, struct mat gate_up)
{
    check_f32(out);
    check_f32(gate_up);
    CHECK(out.rows == gate_up.rows && gate_up.cols == 2 * out.cols);
}

static inline void check_ragged(const struct ragged *r, int64_t n_rows)
{
    CHECK(r->n_rows == n_rows && r->n_seqs >= 0);
    CHECK(r->n_seqs == 0 || (r->seq_row[0] == 0 && r->seq_row[r->n_seqs] == r->n_rows));
}

static inline void check_rope(const struct rope *rope, int d_head, const struct ragged *r)
{
    CHECK(rope->d_rot >= 0 && rope->d_rot <= d_head && rope->d_rot % 2 == 0);
    for (int i = 0; rope->d_rot > 0 && i < r->n_rows; i++)
        CHECK(r->pos[i] >= 0 && r->pos[i] < rope->max_pos);
}

static inline void check_kv_load(const struct kv_layer *kv, const struct kv_chunks *c,
                                 const struct rope *rope)
{
    CHECK(c->n >= 0 && c->pos0 >= 0 && c->pos0 % KV_BLOCK_TOKENS == 0);
    CHECK(rope->d_rot == 0 || (rope->d_rot <= kv->d_head &&
                               c->pos0 + (int64_t)c->n * KV_BLOCK_TOKENS <= rope->max_pos));
}

/* Returns whether rows have K alone, which is V before RoPE (kv_fill). */
static inline bool kv_rows_are_one(int n_kv, int d_head, struct mat rows)
{
    return rows.cols == (int64_t)n_kv * d_head;
}

static inline void check_kv_rows(const struct kv_layer *kv, struct mat rows,
                                 const struct ragged *r)
{
    check_mat(rows);
    check_ragged(r, rows.rows);
    CHECK(rows.dtype == kv->dtype &&
          (kv_rows_are_one(kv->n_kv, kv->d_head, rows) ||
           (rows.cols % 2 == 0 && rows.cols >= (int64_t)2 * kv->n_kv * kv->d_head)));
}

/* Checks the arguments of attention. Returns the number of query heads. */
static inline int check_attention(struct mat out, struct mat q, const struct kv_layer *kv,
                                  const struct ragged *r)
{
    check_f32(out);
    check_f32(q);
    check_same_shape(out, q);
    check_ragged(r, q.rows);
    CHECK(kv->d_head % 2 == 0 && q.cols % kv->d_head == 0 &&
          q.cols / kv->d_head % kv->n_kv == 0);
    return (int)(q.cols / kv->d_head);
}

/* The state of sequence s in a recurrent layer, and its parts. */
static inline uint8_t *delta_state(const struct kv_layer *states, const struct ragged *r,
                                   int s)
{
    int32_t i = r->states != NULL ? r->states[s] : s;
    return states->blocks + (size_t)i * states->block_stride;
}
static inline int delta_n_ahead(const struct ragged *r, int s)
{
    return r->ahead != NULL ? r->ahead[s] : 0;
}
/* Returns how many kept inputs of sequence s count: its first row stands behind them. */
static inline int delta_n_counting(const struct kv_layer *states, const struct ragged *r,
                                   int s)
{
    int32_t pos = r->pos[r->seq_row[s]];
    return pos == 0 ? 0 : (int)(pos - *delta_n_seen(delta_state(states, r, s)));
}
static inline float *delta_inputs(uint8_t *state)
{
    return (float *)(void *)(state + DELTA_HEADER);
}
static inline float *delta_head(const struct delta_rule *d, uint8_t *state, int head)
{
    return delta_inputs(state) + (d->n_conv - 1) * delta_channels(d) +
           (int64_t)head * d->d_k * d->d_v;
}

/* Checks the arguments of delta_net: each sequence begins, or goes on where its state stands. */
static inline void check_delta(struct mat out, struct mat in, const struct delta_rule *d,
                               const struct kv_layer *states, const struct ragged *r)
{
    check_f32(in);
    check_ragged(r, in.rows);
    CHECK(d->n_v % d->n_k == 0 && d->d_k % 16 == 0 && d->d_v % 16 == 0 &&
          d->d_k <= DELTA_MAX_WIDTH && d->d_v <= DELTA_MAX_WIDTH && d->n_conv > 1 &&
          d->n_conv <= DELTA_MAX_CONV);
    CHECK(in.cols == delta_in_cols(d));
    CHECK(states->block_stride >= delta_state_bytes(d));
    if (out.data != NULL)
        check_f32(out);
    CHECK(out.data == NULL ||
          (out.rows == in.rows && out.cols == (int64_t)d->n_v * d->d_v));
    for (int s = 0; s < r->n_seqs; s++) {
        int first = r->seq_row[s], n = r->seq_row[s + 1] - first;
        int ahead = delta_n_ahead(r, s);
        if (n == 0)
            continue;
        int counting = delta_n_counting(states, r, s);
        CHECK(counting == 0 ||
              (counting > 0 && counting <= *delta_n_kept(delta_state(states, r, s)) &&
               counting <= DELTA_AHEAD));
        CHECK(ahead == 0 || (ahead > 0 && ahead <= MIN(n, DELTA_AHEAD) &&
                             states->block_stride >= delta_room_bytes(d)));
        CHECK(r->pos[first + n - 1] == r->pos[first] + n - 1);
    }
}

/* Counts the rows as seen, and those ahead as kept. */
static inline void delta_advance(const struct kv_layer *states, const struct ragged *r)
{
    for (int s = 0; s < r->n_seqs; s++) {
        uint8_t *state = delta_state(states, r, s);
        int ahead = delta_n_ahead(r, s);
        if (r->seq_row[s + 1] == r->seq_row[s])
            continue;
        *delta_n_seen(state) = r->pos[r->seq_row[s + 1] - 1] + 1 - ahead;
        *delta_n_kept(state) = ahead;
    }
}

/* Checks checksum's arguments. No copy stream can run it; the device reads 16 bytes at a time. */
static inline void check_checksum(const struct stream *s, const void *first, size_t stride,
                                  int n)
{
    CHECK(s->kind != STREAM_COPY && n >= 0);
    CHECK((uintptr_t)first % 16 == 0 && (stride % 16 == 0 || n <= 1));
}

static inline void check_sample(struct mat logits, const struct sample_row *rows)
{
    check_f32(logits);
    CHECK(logits.rows == 0 || (logits.cols > 0 && logits.cols <= SAMPLE_MAX_COLS));
    for (int64_t i = 0; i < logits.rows; i++)
        CHECK(rows[i].draw >= 0 && rows[i].draw < 1);
}

#endif
