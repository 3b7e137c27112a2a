/* ref_attention.c - attention over the paged cache, one row and one head at a time.
 *
 * The online softmax (running maximum m, running sum l, running output o) makes the result of a row
 * depend on the fixed key blocks alone. */
#include "base/minmax.h"
#include "tensor/ref/ref.h"

#include <math.h>

struct row_state {
    float q[ATTENTION_MAX_D_HEAD]; /* times the scale */
    float m, lanes[REF_LANES];     /* maximum and sum */
    float o[ATTENTION_MAX_D_HEAD];
};

/* Keys [begin, end) of the sequence, all inside one block. */
struct key_range {
    const uint8_t *block;
    int head;
    int32_t begin, end;
};

static float round_bf16(float f)
{
    return bf16_to_f32(f32_to_bf16(f));
}

/* Returns 2^x as ops.h has it for bf16 state. */
static float exp2_rough(float x)
{
    float n = rintf(x), r = x - n;
    float p = fmaf(fmaf(EXP2_ROUGH_3, r, EXP2_ROUGH_2), r, EXP2_ROUGH_1);
    return x < -125 ? 0 : ldexpf(fmaf(p, r, 1), (int)n);
}

struct term {
    float x, y;
};

/* Adds step i of a chain to acc, or of bf16 state the pair that ends with it. */
static float chain_add(float acc, enum dtype t, int i, const struct term *at)
{
    if (t != DTYPE_BF16)
        return fmaf(at[i].x, at[i].y, acc);
    if (i % 2 == 0)
        return acc;
    acc = ref_fma_flushed(ref_flush(at[i].x), ref_flush(at[i].y), ref_flush(acc));
    return ref_fma_flushed(ref_flush(at[i - 1].x), ref_flush(at[i - 1].y), acc);
}

static void block_scores(float *score, const struct row_state *row,
                         const struct kv_layer *kv, struct key_range keys, float cap)
{
    for (int32_t p = keys.begin; p < keys.end; p++) {
        struct term term[ATTENTION_MAX_D_HEAD];
        float dot = 0;
        for (int d = 0; d < kv->d_head; d++)
            term[d] = (struct term){
                row->q[d], elem_load(keys.block, kv->dtype, k_index(kv, keys.head, d, p))};
        for (int d = 0; d < kv->d_head; d++)
            dot = chain_add(dot, kv->dtype, d, term);
        score[p % KV_BLOCK_TOKENS] = cap > 0 ? cap * tanhf(dot / cap) : dot;
    }
}

/* Adds the keys of one block that the row sees to the row's state. */
static void attend_block(struct row_state *row, const struct kv_layer *kv,
                         struct key_range keys, float cap)
{
    const bool rounds = kv->dtype == DTYPE_BF16;
    float p[KV_BLOCK_TOKENS], m_old = row->m;
    int j0 = keys.begin % KV_BLOCK_TOKENS, j1 = j0 + (keys.end - keys.begin);
    block_scores(p, row, kv, keys, cap);

    for (int j = j0; j < j1; j++)
        row->m = fmaxf(row->m, p[j]);
    if (row->m > m_old) { /* from -infinity in the first block */
        float shrink = rounds ? exp2_rough(m_old - row->m) : expf(m_old - row->m);
        for (int i = 0; i < REF_LANES; i++)
            row->lanes[i] *= shrink;
        for (int d = 0; d < kv->d_head; d++)
            row->o[d] *= shrink;
    }
    for (int j = j0; j < j1; j++) {
        p[j] = rounds ? exp2_rough(p[j] - row->m) : expf(p[j] - row->m);
        row->lanes[j % REF_LANES] = row->lanes[j % REF_LANES] + p[j];
    }
    for (int d = 0; d < kv->d_head; d++) {
        struct term term[KV_BLOCK_TOKENS] = {{0}};
        for (int j = j0; j < j1; j++)
            term[j] = (struct term){
                rounds ? round_bf16(p[j]) : p[j],
                elem_load(keys.block, kv->dtype, v_index(kv, keys.head, d, j))};
        for (int j = j0; j < (j1 + 1) / 2 * 2; j++)
            if (rounds || j < j1)
                row->o[d] = chain_add(row->o[d], kv->dtype, j, term);
    }
}

static void attend_row(float *out, const float *q, const struct kv_layer *kv, int head,
                       const int32_t *table, struct attention_keys all,
                       const struct attention_rule *rule, const float *sink)
{
    const bool rounds = kv->dtype == DTYPE_BF16;
    const float unit = rounds ? LOG2_E : 1, scale = rule->scale * unit;
    struct row_state row = {.m = sink != NULL ? *sink * unit : -INFINITY,
                            .lanes = {sink != NULL}};
    for (int d = 0; d < kv->d_head; d++)
        row.q[d] = rounds ? round_bf16(q[d] * scale) : q[d] * scale;
    while (all.begin < all.end) {
        int32_t b = all.begin / KV_BLOCK_TOKENS, block_end = (b + 1) * KV_BLOCK_TOKENS;
        struct key_range keys = {kv->blocks + (size_t)table[b] * kv->block_stride, head,
                                 all.begin, MIN(block_end, all.end)};
        attend_block(&row, kv, keys, rule->cap * unit);
        all.begin = keys.end;
    }
    float inverse = 1.0f / ref_lanes_sum(row.lanes);
    for (int d = 0; d < kv->d_head; d++)
        out[d] = row.o[d] * inverse;
}

int ref_attention(struct stream *s, struct mat out, struct mat q, const struct kv_layer *kv,
                  const struct ragged *r, const struct attention_rule *rule)
{
    int n_heads = check_attention(out, q, kv, r), group = n_heads / kv->n_kv;
    CHECK(kv->d_head <= ATTENTION_MAX_D_HEAD);
    for (int seq = 0; seq < r->n_seqs; seq++) {
        for (int row = r->seq_row[seq]; row < r->seq_row[seq + 1]; row++) {
            struct attention_keys keys = attention_keys(rule, r->pos[row],
                                                        r->pos[r->seq_row[seq + 1] - 1]);
            for (int h = 0; h < n_heads; h++)
                attend_row((float *)out.data + row * out.ld + h * kv->d_head,
                           (const float *)q.data + row * q.ld + h * kv->d_head, kv,
                           h / group, r->tables[seq], keys, rule,
                           rule->sinks != NULL ? &rule->sinks[h] : NULL);
        }
    }
    return stream_enter(s);
}
