/* mixed.c - see mixed.h: memory, mini-batches, and the calls of a pass.
 *
 * lay_out decides once a step which blocks a mini-batch reads and writes. Each layer then loads,
 * projects and stores the same blocks (mixed_layer.c). */
#include "engine/mixed_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/step.h"
#include "model/pass.h"
#include "engine/hybrid_share.h"

enum {
    /* 512 rows: products of this many rows are near their best speed on a CPU. */
    PROJECT_BLOCKS = 8,
};
/* Size of one buffer, unless a context needs more. */
#define BUFFER_BYTES ((size_t)64 << 20)

/* --- memory ----------------------------------------------------------------------------------- */

static int blocks_of(int64_t n_tokens)
{
    return (int)((n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
}

void mixed_places(const struct mixed_opts *o, const struct model *m, int max_seqs,
                  struct places_opts *out)
{
    int context = blocks_of(m->max_ctx) + 1, all = 0;
    size_t kv = KV_BLOCK_TOKENS * model_kv_bytes(m, 0);
    for (int c = 0; c < PLACES_CLASSES; c++)
        all += o->n[c];
    int n = o->buffer_blocks;
    if (n == 0)
        n = (int)(BUFFER_BYTES / kv) < all ? (int)(BUFFER_BYTES / kv) : all;
    n = MAX(n, context);
    *out = (struct places_opts){.n_layers = m->cfg.n_layers,
                                .n_kv = model_rank_kv_heads(m, 0),
                                .d_head = m->cfg.d_head,
                                .n_embd = m->cfg.n_embd,
                                .dtype = m->dtype,
                                .n_tails = max_seqs,
                                .n_scratch = n};
    memcpy(out->n, o->n, sizeof out->n);
    if (o->n[PLACES_ACT_DEVICE] + o->n[PLACES_ACT_HOST] > 0)
        out->n_staging = n;
}

static int reserve(struct mixed *x, struct err *err)
{
    const struct model *m = x->model;
    struct places_opts po;
    int rows = model_work_rows(x->work);
    x->project_blocks = rows / KV_BLOCK_TOKENS < PROJECT_BLOCKS ? rows / KV_BLOCK_TOKENS
                                                                : PROJECT_BLOCKS;
    CHECK(x->project_blocks > 0);
    rows = x->project_blocks * KV_BLOCK_TOKENS;
    mixed_places(&x->o, m, x->max_seqs, &po);
    int rc = places_init(&x->places, m->dev, &po, err);
    if (rc == 0 && po.n_staging > 0)
        rc = buf_alloc(m->dev, MEM_DEVICE, (size_t)rows * model_kv_bytes(m, 0), &x->kv_mem,
                       err);
    if (rc == 0)
        rc = stream_create(m->dev, STREAM_COPY, &x->link, err);
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = event_create(m->dev, &x->loaded[i], err);
        if (rc == 0)
            rc = event_create(m->dev, &x->done[i], err);
    }
    if (rc == 0 && x->o.link_bytes_per_s > 0)
        rc = stream_throttle(x->link, x->o.link_bytes_per_s, err);
    if (rc == 0 && x->o.weights_bytes > 0)
        rc = buf_alloc(m->dev, MEM_PINNED, x->o.weights_bytes, &x->weights_host, err);
    if (rc == 0 && x->o.weights_bytes > 0)
        rc = buf_alloc(m->dev, MEM_DEVICE, x->o.weights_bytes, &x->weights, err);
    x->kv_rows = model_kv_rows(m, 0, x->kv_mem.ptr, rows);
    x->pos = xcalloc((size_t)rows, sizeof *x->pos);
    x->seq_row = xcalloc((size_t)x->project_blocks + 1, sizeof *x->seq_row);
    x->tables = xcalloc((size_t)x->project_blocks, sizeof *x->tables);
    return rc;
}

/* Gives each place its share of ACT blocks. A sequence's place is the number of its tail, so the
 * first sequences of a job are the first mini-batch. */
static void share_out(struct mixed *x)
{
    const struct hybrid_machine *m = &x->o.machine;
    const struct hybrid_split *s = &x->o.split;
    if (!s->fits || m->n_requests != x->max_seqs)
        return;
    x->share = xcalloc((size_t)x->max_seqs, sizeof *x->share);
    hybrid_share_requests(m, s, x->share);
    x->share_blocks = (double)(s->act_device + s->act_host + s->kv_device + s->kv_host) /
                      x->max_seqs;
}

int mixed_init(struct mixed *x, const struct mixed_opts *o, const struct model *m,
               struct model_work *work, struct stream *s, struct zigzag *z, int max_seqs,
               struct err *err)
{
    size_t n = (size_t)max_seqs, per_seq = (size_t)blocks_of(m->max_ctx) + 1;
    *x = (struct mixed){0};
    if (m->dev->n_stages > 1 || m->dev->n_ranks > 1)
        return err_set(err, ERR_UNSUPPORTED,
                       "a hybrid cache works on one device, without parallel ranks or "
                       "stages");
    x->o = *o;
    x->model = m;
    x->work = work;
    x->stream = s;
    x->zigzag = z;
    x->max_seqs = max_seqs;
    x->seqs = xcalloc(n, sizeof *x->seqs);
    x->minis = xcalloc(n, sizeof *x->minis);
    x->acts = xcalloc(n * per_seq, sizeof *x->acts);
    x->numbers = xcalloc(2 * n * per_seq, sizeof *x->numbers);
    x->requests = xcalloc(n, sizeof *x->requests);
    x->bins = xcalloc(n, sizeof *x->bins);
    x->of = xcalloc(n, sizeof *x->of);
    x->order = xcalloc(n, sizeof *x->order);
    for (size_t i = 0; i < n; i++) {
        x->seqs[i].where = x->numbers + 2 * i * per_seq;
        x->seqs[i].number = x->seqs[i].where + per_seq;
    }
    share_out(x);
    return reserve(x, err);
}

void mixed_deinit(struct mixed *x)
{
    if (x->model == NULL)
        return;
    if (x->link != NULL)
        stream_destroy(x->link);
    for (int i = 0; i < 2; i++) {
        if (x->loaded[i] != NULL)
            event_destroy(x->loaded[i]);
        if (x->done[i] != NULL)
            event_destroy(x->done[i]);
    }
    places_deinit(&x->places);
    buf_free(x->model->dev, &x->kv_mem);
    buf_free(x->model->dev, &x->weights_host);
    buf_free(x->model->dev, &x->weights);
    free(x->seqs);
    free(x->minis);
    free(x->acts);
    free(x->numbers);
    free(x->share);
    free(x->pos);
    free(x->seq_row);
    free((void *)x->tables);
    free(x->requests);
    free(x->bins);
    free(x->of);
    free(x->order);
    *x = (struct mixed){0};
}

/* --- which block is next ---------------------------------------------------------------------- */

/* Returns the classes to try for the next block: the ratio's type first, then the other type. */
static const int *order_by_ratio(void *arg, const struct kv_table *t)
{
    static const int act_first[] = {PLACES_ACT_DEVICE, PLACES_ACT_HOST, PLACES_KV_DEVICE,
                                    PLACES_KV_HOST};
    static const int kv_first[] = {PLACES_KV_DEVICE, PLACES_KV_HOST, PLACES_ACT_DEVICE,
                                   PLACES_ACT_HOST};
    const struct mixed *x = arg;
    double act_share = x->o.act_share, kv_share = x->o.kv_share;
    int n_act = 0;
    for (int i = 0; i < t->n_blocks; i++)
        n_act += is_act(places_class_of(&x->places, t->blocks[i]));
    if (x->share != NULL && t->tail > 0) {
        act_share = (double)x->share[t->tail - 1];
        kv_share = fmax(x->share_blocks - act_share, 0);
    }
    return hybrid_next_is_act(act_share, kv_share, n_act, t->n_blocks - n_act) ? act_first
                                                                               : kv_first;
}

struct kv_pool_numbers mixed_numbers(struct mixed *x)
{
    _Static_assert((int)PLACES_CLASSES == (int)KV_POOL_CLASSES, "a class each");
    struct kv_pool_numbers n = {.order = order_by_ratio, .arg = x, .n_tails = x->max_seqs};
    memcpy(n.n, x->o.n, sizeof n.n);
    if (x->o.order != NULL) {
        n.order = x->o.order;
        n.arg = x->o.order_arg;
    }
    return n;
}

/* --- mini-batches ----------------------------------------------------------------------------- */

static int first_block(const struct seq *s)
{
    return s->n_done / KV_BLOCK_TOKENS;
}

static int n_blocks_seen(const struct seq *s)
{
    return blocks_of(s->n_done + s->n_rows);
}

/* Returns whether the sequence's tail holds rows of the block that the first row belongs to. */
static bool begins_in_tail(const struct mixed *x, const struct seq *s)
{
    return s->n_done % KV_BLOCK_TOKENS != 0 &&
           class_at(x, s, first_block(s)) != PLACES_KV_DEVICE;
}

/* Returns the place where the step writes its rows of a block; -1: a scratch block. */
static int32_t written_place(const struct mixed *x, const struct seq *s, int block)
{
    bool in_tail = begins_in_tail(x, s);
    if (class_at(x, s, block) == PLACES_KV_DEVICE)
        return places_device(&x->places, s->table.blocks[block]);
    if (block == first_block(s) ? in_tail || !is_finished(s, block)
                                : !in_tail && !is_finished(s, block))
        return places_tail(&x->places, s->table.tail - 1);
    return -1;
}

/* Returns how many scratch blocks a sequence needs: for ACT and host KV blocks that it reads,
 * and for blocks that it writes. */
static int count_scratch(const struct mixed *x, const struct seq *s,
                         struct minibatch_request *r)
{
    *r = (struct minibatch_request){0};
    for (int i = 0; i < first_block(s); i++) {
        enum places_class c = class_at(x, s, i);
        r->n_act += is_act(c);
        r->n_kv += c == PLACES_KV_HOST;
    }
    for (int i = first_block(s); i < n_blocks_seen(s); i++)
        r->n_written += written_place(x, s, i) < 0;
    return (int)(r->n_act + r->n_kv + r->n_written);
}

/* Assigns the sequences to mini-batches: fills x->of. */
static void form(struct mixed *x, const struct step_batch *b)
{
    const struct places_opts *po = &x->places.o;
    struct hybrid_machine m = x->o.machine;
    for (int i = 0; i < b->n_seqs; i++)
        (void)count_scratch(x, b->seqs[i], &x->requests[i]);
    /* ACT and KV blocks share the scratch blocks. ACT blocks are staged first. */
    const struct minibatch_room room = {.n_act = po->n_staging, .n_blocks = po->n_scratch};
    if (m.kv_bytes == 0) {
        m.kv_bytes = (double)x->places.kv_bytes;
        m.act_bytes = (double)x->places.act_bytes;
        m.link.b_s = 1 / m.kv_bytes;
        m.project.b_s = 1;
    }
    minibatch_form(&m, &room, x->requests, b->n_seqs, x->o.packing, x->of, x->bins);
}

/* Adds the batch's sequences anew, mini-batch by mini-batch. */
static void reorder(struct mixed *x, struct step_batch *b)
{
    int n = b->n_seqs, k = 0;
    for (int bin = 0; k < n; bin++)
        for (int i = 0; i < n; i++)
            if (x->of[i] == bin)
                x->order[k++] = (struct mixed_order){b->seqs[i], b->seqs[i]->n_rows, bin};
    step_batch_clear(b);
    for (int i = 0; i < n; i++)
        step_batch_add(b, x->order[i].s, x->order[i].n_rows);
}

/* Cuts a mini-batch that the policy has formed into smaller ones if its written blocks or rows do
 * not fit. */
static void cut_minis(struct mixed *x, const struct step_batch *b)
{
    const struct places_opts *po = &x->places.o;
    int scratch = 0, n_act = 0, rows = 0;
    x->n_minis = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        const struct seq *s = b->seqs[i];
        struct minibatch_request r;
        int n = count_scratch(x, s, &r);
        bool is_new = i == 0 || x->order[i].bin != x->order[i - 1].bin ||
                      scratch + n > po->n_scratch || n_act + (int)r.n_act > po->n_staging ||
                      rows + s->n_rows > x->zigzag->piece_rows;
        if (is_new) {
            x->minis[x->n_minis++] = (struct mixed_mini){.first_seq = i,
                                                         .first_row = s->row};
            scratch = n_act = rows = 0;
        }
        scratch += n;
        n_act += (int)r.n_act;
        rows += s->n_rows;
        CHECK(scratch <= po->n_scratch && n_act <= po->n_staging);
        x->minis[x->n_minis - 1].end_seq = i + 1;
    }
}

/* --- where a mini-batch's blocks lie ---------------------------------------------------------- */

/* Gives scratch blocks to the blocks that are only read: to ACT blocks, which are also listed in
 * x->acts, if `acts` is true, else to KV blocks on the host. */
static void lay_out_read(struct mixed *x, struct mixed_mini *m, bool acts)
{
    for (int i = m->first_seq; i < m->end_seq; i++) {
        const struct seq *s = x->batch->seqs[i];
        struct mixed_seq *q = &x->seqs[i];
        for (int k = 0; k < q->first; k++) {
            enum places_class c = class_at(x, s, k);
            if (c == PLACES_KV_DEVICE)
                q->where[k] = places_device(&x->places, s->table.blocks[k]);
            else if (is_act(c) == acts)
                q->where[k] = -1 - m->n_scratch++;
            if (is_act(c) && acts)
                x->acts[x->n_acts++] = (struct mixed_act){i, k};
        }
    }
}

static void lay_out_written(struct mixed *x, struct mixed_mini *m)
{
    for (int i = m->first_seq; i < m->end_seq; i++) {
        struct mixed_seq *q = &x->seqs[i];
        for (int k = q->first; k < q->n_blocks; k++) {
            int32_t place = written_place(x, x->batch->seqs[i], k);
            q->where[k] = place >= 0 ? place : -1 - m->n_scratch++;
        }
    }
}

static void lay_out(struct mixed *x, struct mixed_mini *m)
{
    m->first_act = x->n_acts;
    lay_out_read(x, m, true);
    m->n_act = x->n_acts - m->first_act;
    lay_out_read(x, m, false);
    lay_out_written(x, m);
}

void mixed_arrange(struct mixed *x, struct step_batch *b)
{
    x->batch = b;
    x->n_acts = x->now = 0;
    x->turn = 0;
    form(x, b);
    reorder(x, b);
    cut_minis(x, b);
    for (int i = 0; i < b->n_seqs; i++) {
        const struct seq *s = b->seqs[i];
        x->seqs[i].first = first_block(s);
        x->seqs[i].n_blocks = n_blocks_seen(s);
        b->tables[i] = x->seqs[i].number;
    }
    zigzag_clear(x->zigzag);
    for (int k = 0; k < x->n_minis; k++) {
        struct mixed_mini *m = &x->minis[k];
        const struct seq *last = b->seqs[m->end_seq - 1];
        lay_out(x, m);
        m->first_piece = x->zigzag->n_pieces;
        zigzag_add(x->zigzag, b, m->first_row, last->row + last->n_rows);
        m->end_piece = x->zigzag->n_pieces;
    }
    x->stats.n_steps++;
    x->stats.n_minibatches += (uint64_t)x->n_minis;
}

/* --- the calls of a pass ---------------------------------------------------------------------- */

int mixed_before(void *arg, int layer, int piece)
{
    struct mixed *x = arg;
    const struct mixed_mini *m = &x->minis[x->now];
    int buffer = (int)(x->turn & 1);
    if (piece == m->first_piece) {
        if (x->turn == 0)
            TRY(mixed_load(x, m, layer, buffer));
        TRY(mixed_load_next(x, layer, 1 - buffer));
        TRY(event_wait(x->stream, x->loaded[buffer]));
        mixed_set_tables(x, m, layer, buffer);
        TRY(mixed_project(x, m, layer, buffer));
    }
    /* Each layer has other block tables, and a new id makes the device upload them. */
    x->zigzag->pieces[piece].r.id = ragged_new_id();
    return 0;
}

int mixed_behind(void *arg, int layer, int piece)
{
    struct mixed *x = arg;
    const struct mixed_mini *m = &x->minis[x->now];
    if (piece + 1 < m->end_piece)
        return 0;
    TRY(mixed_store(x, m, layer));
    TRY(event_record(x->stream, x->done[x->turn & 1]));
    x->turn++;
    x->now = x->now + 1 == x->n_minis ? 0 : x->now + 1;
    return 0;
}

int mixed_end(struct mixed *x, int rc)
{
    int link = stream_sync(x->link);
    if (link != 0)
        (void)stream_recover(x->link);
    return rc != 0 ? rc : link;
}
