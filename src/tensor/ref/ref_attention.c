/* ref_attention.c - attention over the paged cache, one row and one head at a time.
 *
 * The online softmax (running maximum m, running sum l, running output o) makes the result of a row
 * depend on the fixed key blocks alone. */
#include "base/minmax.h"
#include "tensor/ref/ref.h"

#include <math.h>

struct row_state {
    float m, l;
    float o[ATTENTION_MAX_D_HEAD];
};

/* Keys [begin, end) of the sequence, all inside one block. */
struct key_range {
    const uint8_t *block;
    int head;
    int32_t begin, end;
};

static void block_scores(float *score, const float *q, const struct kv_layer *kv,
                         struct key_range keys, const struct attention_rule *rule)
{
    for (int32_t p = keys.begin; p < keys.end; p++) {
        float dot = 0;
        for (int d = 0; d < kv->d_head; d++)
            dot = fmaf(q[d], elem_load(keys.block, kv->dtype, k_index(kv, keys.head, d, p)),
                       dot);
        float s = dot * rule->scale;
        score[p % KV_BLOCK_TOKENS] = rule->cap > 0 ? rule->cap * tanhf(s / rule->cap) : s;
    }
}

static void attend_block(struct row_state *row, const float *q, const struct kv_layer *kv,
                         struct key_range keys, const struct attention_rule *rule)
{
    float p[KV_BLOCK_TOKENS], lanes[REF_LANES] = {0};
    int j0 = keys.begin % KV_BLOCK_TOKENS, j1 = j0 + (keys.end - keys.begin);
    block_scores(p, q, kv, keys, rule);

    float m_new = row->m;
    for (int j = j0; j < j1; j++)
        m_new = fmaxf(m_new, p[j]);
    for (int j = j0; j < j1; j++) {
        p[j] = expf(p[j] - m_new);
        lanes[j % REF_LANES] = lanes[j % REF_LANES] + p[j];
    }
    float shrink = expf(row->m - m_new); /* 0 in the first block, when m is -infinity */
    row->l = fmaf(row->l, shrink, ref_lanes_sum(lanes));
    row->m = m_new;
    for (int d = 0; d < kv->d_head; d++) {
        float o = row->o[d] * shrink;
        for (int32_t pos = keys.begin; pos < keys.end; pos++)
            o = fmaf(p[pos % KV_BLOCK_TOKENS],
                     elem_load(keys.block, kv->dtype, v_index(kv, keys.head, d, pos)), o);
        row->o[d] = o;
    }
}

static void attend_row(float *out, const float *q, const struct kv_layer *kv, int head,
                       const int32_t *table, struct attention_keys all,
                       const struct attention_rule *rule, const float *sink)
{
    struct row_state row = {.m = sink != NULL ? *sink : -INFINITY, .l = sink != NULL};
    while (all.begin < all.end) {
        int32_t b = all.begin / KV_BLOCK_TOKENS, block_end = (b + 1) * KV_BLOCK_TOKENS;
        struct key_range keys = {kv->blocks + (size_t)table[b] * kv->block_stride, head,
                                 all.begin, MIN(block_end, all.end)};
        attend_block(&row, q, kv, keys, rule);
        all.begin = keys.end;
    }
    float inverse = 1.0f / row.l;
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
