/* mixed_layer.c - a mini-batch's way through one layer: brings its blocks over the link,
 * projects ACT blocks, and takes the layer's results to their places. See mixed.h. */
#include "engine/mixed_impl.h"

#include "base/minmax.h"

static int scratch_index(const struct mixed_seq *q, int block)
{
    return -1 - q->where[block];
}

/* Brings over the link the mini-batch's part of the bytes that stand for weights. */
static int load_weights(struct mixed *x, const struct mixed_mini *m)
{
    size_t n = (size_t)x->n_minis, i = (size_t)(m - x->minis);
    size_t begin = x->o.weights_bytes * i / n, end = x->o.weights_bytes * (i + 1) / n;
    if (begin == end)
        return 0;
    return stream_copy(x->link, (uint8_t *)x->weights.ptr + begin,
                       (const uint8_t *)x->weights_host.ptr + begin, end - begin);
}

/* Brings the host blocks of a mini-batch into a buffer. */
int mixed_load(struct mixed *x, const struct mixed_mini *m, int layer, int buffer)
{
    const struct places *p = &x->places;
    TRY(event_wait(x->link, x->done[buffer]));
    TRY(load_weights(x, m));
    for (int i = m->first_seq; i < m->end_seq; i++) {
        const struct seq *s = x->batch->seqs[i];
        const struct mixed_seq *q = &x->seqs[i];
        for (int k = 0; k < q->first; k++) {
            int32_t block = s->table.blocks[k];
            enum places_class c = places_class_of(p, block);
            if (c == PLACES_KV_HOST) {
                int32_t to = places_scratch(p, layer, buffer, scratch_index(q, k));
                TRY(stream_copy(x->link, places_view(p, layer, to),
                                places_kv_host(p, layer, block), p->kv_bytes));
                x->stats.up_bytes += p->kv_bytes;
            } else if (c == PLACES_ACT_HOST) {
                TRY(stream_copy(x->link, places_staging(p, buffer, scratch_index(q, k)),
                                places_act(p, layer, block), p->act_bytes));
                x->stats.up_bytes += p->act_bytes;
            }
        }
    }
    return event_record(x->link, x->loaded[buffer]);
}

/* Loads the next mini-batch: of this layer, or the first one of the next layer. */
int mixed_load_next(struct mixed *x, int layer, int buffer)
{
    bool is_last = x->now + 1 == x->n_minis;
    if (is_last && layer + 1 == x->model->cfg.n_layers)
        return 0;
    return mixed_load(x, &x->minis[is_last ? 0 : x->now + 1], is_last ? layer + 1 : layer,
                      buffer);
}

void mixed_set_tables(struct mixed *x, const struct mixed_mini *m, int layer, int buffer)
{
    for (int i = m->first_seq; i < m->end_seq; i++) {
        struct mixed_seq *q = &x->seqs[i];
        for (int k = 0; k < q->n_blocks; k++)
            q->number[k] = q->where[k] >= 0 ? q->where[k]
                                            : places_scratch(&x->places, layer, buffer,
                                                             scratch_index(q, k));
    }
}

/* Projects ACT blocks [at, at + n) of the mini-batch. Their rows are staged. */
int mixed_project_some(struct mixed *x, const struct mixed_act *acts, int layer, int buffer,
                       int at, int n)
{
    const struct model *model = x->model;
    int n_rows = n * KV_BLOCK_TOKENS;
    struct mat h = mat_of(places_staging(&x->places, buffer, at), model->dtype, n_rows,
                          model->cfg.n_embd);
    struct mat kv_rows = mat_rows(x->kv_rows, 0, n_rows);
    x->seq_row[0] = 0;
    for (int j = 0; j < n; j++) {
        const struct mixed_act *a = &acts[at + j];
        for (int i = 0; i < KV_BLOCK_TOKENS; i++)
            x->pos[j * KV_BLOCK_TOKENS + i] = a->block * KV_BLOCK_TOKENS + i;
        x->tables[j] = x->seqs[a->seq].number;
        x->seq_row[j + 1] = (j + 1) * KV_BLOCK_TOKENS;
    }
    struct ragged r = {.n_rows = n_rows,
                       .n_seqs = n,
                       .pos = x->pos,
                       .seq_row = x->seq_row,
                       .tables = x->tables,
                       .id = ragged_new_id()};
    TRY(model_kv_project(model, x->work, x->stream, layer, h, kv_rows));
    return model_kv_fill(model, x->stream, layer, &x->places.layers[layer], kv_rows, &r);
}

int mixed_project(struct mixed *x, const struct mixed_mini *m, int layer, int buffer)
{
    const struct places *p = &x->places;
    for (int j = 0; j < m->n_act; j++) {
        const struct mixed_act *a = &x->acts[m->first_act + j];
        int32_t block = x->batch->seqs[a->seq]->table.blocks[a->block];
        if (places_class_of(p, block) == PLACES_ACT_DEVICE)
            TRY(stream_copy(x->stream, places_staging(p, buffer, j),
                            places_act(p, layer, block), p->act_bytes));
    }
    for (int at = 0, n; at < m->n_act; at += n) {
        n = MIN(m->n_act - at, x->project_blocks);
        TRY(mixed_project_some(x, x->acts + m->first_act, layer, buffer, at, n));
    }
    x->stats.n_projected += (uint64_t)m->n_act;
    return 0;
}

/* Stores block k of sequence i, of which this step has computed rows. */
static int store_block(struct mixed *x, int i, int k, int layer)
{
    const struct places *p = &x->places;
    const struct seq *s = x->batch->seqs[i];
    const struct mixed_seq *q = &x->seqs[i];
    int32_t block = s->table.blocks[k];
    enum places_class c = places_class_of(p, block);
    bool finished = is_finished(s, k);
    if (c == PLACES_KV_HOST && finished) {
        x->stats.down_bytes += p->kv_bytes;
        TRY(stream_copy(x->stream, places_kv_host(p, layer, block),
                        places_view(p, layer, q->number[k]), p->kv_bytes));
    }
    if (is_act(c)) {
        int from = MAX(s->n_done, k * KV_BLOCK_TOKENS);
        int to = finished ? (k + 1) * KV_BLOCK_TOKENS : s->n_done + s->n_rows;
        size_t row = p->act_bytes / KV_BLOCK_TOKENS, bytes = (size_t)(to - from) * row;
        struct mat hidden = mat_rows(zigzag_input(x->zigzag, layer),
                                     s->row + (from - s->n_done), to - from);
        x->stats.down_bytes += c == PLACES_ACT_HOST ? bytes : 0;
        TRY(stream_copy(x->stream,
                        (uint8_t *)places_act(p, layer, block) +
                            (size_t)(from % KV_BLOCK_TOKENS) * row,
                        hidden.data, bytes));
    }
    if (finished || q->where[k] >= 0)
        return 0;
    return stream_copy(x->stream, places_view(p, layer, places_tail(p, s->table.tail - 1)),
                       places_view(p, layer, q->number[k]), p->kv_bytes);
}

int mixed_store(struct mixed *x, const struct mixed_mini *m, int layer)
{
    for (int i = m->first_seq; i < m->end_seq; i++) {
        const struct mixed_seq *q = &x->seqs[i];
        for (int k = q->first; k < q->n_blocks; k++)
            if (class_at(x, x->batch->seqs[i], k) != PLACES_KV_DEVICE)
                TRY(store_block(x, i, k, layer));
    }
    return 0;
}
