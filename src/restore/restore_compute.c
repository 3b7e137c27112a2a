/* restore_compute.c - the compute lane of a restore pipeline: from staging into the KV cache,
 * and recomputation.
 *
 * A work item is a part of the arrived groups, or one layer of one piece of the recomputed
 * prefix. Recomputation goes depth first: a piece of at most a batch's rows passes all R layers
 * before the next piece begins, so its hidden states need the memory of one piece only. The cut
 * of the rows never changes their bits. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "base/step.h"
#include "pack/pack.h"
#include "restore/restore_impl.h"
#include "save/saver.h"

enum { BY_R, BY_H, BY_K };

/* The smallest piece of work: below 16 rows a GEMM takes hardly less time. */
enum { MIN_ROWS = 16 };

/* --- how much fits a budget ------------------------------------------------------------------- */

/* Returns how many rows fit the budget by the method's recent rate: a multiple of `unit`, or `max`
 * if all of them fit. Returns 0 if the rate is unknown. */
static int rows_for(const struct restore_pipeline *rr, int method, int64_t budget_ns,
                    int unit, int max)
{
    if (budget_ns == RESTORE_NO_LIMIT)
        return max;
    double per_row = rr->row_ns[method];
    double n = per_row > 0 && budget_ns > 0 ? (double)budget_ns / per_row : 0;
    int rows = n < max ? (int)n / unit * unit : max;
    return MIN(rows, max);
}

/* Updates the rate of a method. The rate is an average over some tens of items, since it drifts
 * with the machine's load. An item at more than twice the rate met a stall (this thread or a worker
 * lost its core) and counts as twice the rate. So the rate follows a lasting change, and one stall
 * of milliseconds neither shrinks the items behind it nor is charged to them. */
static void learn(struct restore_pipeline *rr, int method, int64_t ns, int rows)
{
    double *rate = &rr->row_ns[method], per_row = rows > 0 ? (double)ns / rows : 0;
    rr->cost_ns = ns;
    if (rows == 0)
        return;
    if (*rate > 0 && per_row > 2 * *rate) {
        per_row = 2 * *rate;
        rr->cost_ns = (int64_t)(per_row * rows);
    }
    *rate += (per_row - *rate) / (*rate > 0 ? 16 : 1);
}

int64_t restore_pipeline_cost_ns(const struct restore_pipeline *rr)
{
    return rr->cost_ns;
}

/* --- rows of the one sequence that is being restored ------------------------------------------ */

struct one_seq {
    struct ragged r;
    int32_t seq_row[2], state;
    const int32_t *tables[1];
};

static const struct ragged *rows_of(const struct restore *r, struct one_seq *q, int row,
                                    int n)
{
    q->seq_row[0] = 0;
    q->seq_row[1] = n;
    q->tables[0] = r->job.table->blocks;
    q->state = kv_table_state(r->job.table);
    q->r = (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = r->rr->pos + row,
                           .seq_row = q->seq_row,
                           .tables = q->tables,
                           .states = &q->state,
                           .id = ragged_new_id()};
    return &q->r;
}

static int replay(struct restore *r, int layer, int row, struct mat hidden)
{
    struct one_seq q;
    struct restore_pipeline *rr = r->rr;
    struct stream *s = rr->o.stream;
    struct kv_layer kv = kv_pool_layer(rr->o.pool, layer);
    struct mat kv_rows = model_kv_rows(rr->o.model, layer, rr->kv_rows[kv.stage],
                                       hidden.rows);
    return model_replay(rr->o.model, rr->o.work, s, layer, hidden, kv_rows, &kv,
                        rows_of(r, &q, row, (int)hidden.rows));
}

void restore_fail(struct restore *r, int rc, const char *why)
{
    if (r->rc == 0)
        snprintf(r->why, sizeof r->why, "%s", why);
    r->rc = rc;
    restore_give_up(r, "compute failed");
}

/* Fails r with the message of the stream that failed. If it is a stream of the pipeline itself,
 * waits for the groups in flight and lets the stream continue. */
static void fail(struct restore *r, int rc)
{
    struct restore_pipeline *rr = r->rr;
    const char *own = restore_up_fault(rr);
    restore_fail(r, rc, own[0] != 0 ? own : stream_fault(rr->o.stream));
    if (own[0] != 0) {
        restore_settle(rr, 0);
        restore_up_recover(rr);
    }
}

/* --- arrived groups --------------------------------------------------------------------------- */

/* The part of a group that one work item does. It checks chunks [first, first + n), or queues
 * their check, and loads them if they are K and V. It projects rows up to project_to. */
struct part {
    struct group *g;
    int first, n;
    int project_to;
};

struct item {
    struct restore *r;
    struct part parts[MAX_MINE];
    int n_parts, n_chunks, n_rows;
    bool has_snapshot; /* its time says nothing about rows */
    atomic_int rc;
};

static int group_rows(const struct group *g)
{
    return restore_tokens(g->run, g->first_chunk + g->n_chunks) -
           g->first_chunk * STORE_CHUNK_TOKENS;
}

static bool group_is_done(const struct group *g)
{
    return g->n_taken == g->n_chunks &&
           (g->kind == STORE_KV || g->n_projected == group_rows(g));
}

/* Adds as much of a group as the budget allows, in whole chunks (K and V) or rows (hidden states),
 * but at least one unit to an empty item. Returns false if the budget is used up. */
static bool add_part(struct item *a, struct group *g, int64_t *budget_ns)
{
    const struct restore_pipeline *rr = a->r->rr;
    bool hidden = g->kind == STORE_HIDDEN;
    int method = hidden ? BY_H : BY_K, unit = hidden ? MIN_ROWS : STORE_CHUNK_TOKENS;
    int begin = hidden ? g->n_projected : g->n_taken * STORE_CHUNK_TOKENS;
    int n = g->is_snapshot ? group_rows(g)
                           : rows_for(rr, method, *budget_ns, unit, group_rows(g) - begin);
    if (n == 0 && a->n_parts > 0)
        return false;
    n = n > 0 ? n : unit;
    n = MIN(n, group_rows(g) - begin);
    int n_taken = (begin + n + STORE_CHUNK_TOKENS - 1) / STORE_CHUNK_TOKENS;
    struct part *p = &a->parts[a->n_parts++];
    *p = (struct part){.g = g, .first = g->n_taken, .n = n_taken - g->n_taken};
    p->project_to = hidden ? begin + n : 0;
    a->n_chunks += p->n;
    a->n_rows += g->is_snapshot ? 0 : n;
    a->has_snapshot |= g->is_snapshot;
    if (*budget_ns != RESTORE_NO_LIMIT)
        *budget_ns -= (int64_t)(n * rr->row_ns[method]);
    return true;
}

/* Unpacks a record whose packed bytes were checked to its place in the slot. From then on the read
 * is that of a plain record. */
static int unpack(const struct restore_pipeline *rr, struct store_read *read,
                  size_t n_bytes, int thread_idx, struct err *err)
{
    const uint8_t *packed = read->bytes;
    if (store_read_is_in_dst(read))
        packed = memcpy(rr->unpack + (size_t)thread_idx * rr->unpack_room, packed,
                        MIN(read->n_bytes, rr->unpack_room));
    if (!pack_undo(packed, read->n_bytes, read->dst, n_bytes))
        return err_set(err, ERR_CORRUPT, "a packed record does not hold %zu bytes",
                       n_bytes);
    read->bytes = read->dst;
    read->n_bytes = (uint32_t)n_bytes;
    read->is_packed = false;
    if (rr->check != NULL) /* the device compares it after the copy */
        read->checksum = checksum64(read->bytes, n_bytes);
    return 0;
}

/* Returns whether the record of a snapshot is good. Unpacks it. A bad one loses the snapshot. */
static bool check_snapshot(struct restore *r, struct group *g, int thread_idx)
{
    struct store_read *read = &g->reads[0];
    size_t n_bytes = model_state_bytes(&r->rr->o.model->cfg);
    struct err e = {0};
    int rc = read->status;
    if (rc == 0)
        rc = store_read_check(read, &e);
    if (rc == 0 && read->is_packed)
        rc = unpack(r->rr, read, n_bytes, thread_idx, &e);
    if (rc == 0 && (read->n_bytes != n_bytes ||
                    model_state_seen(read->bytes) != restore_tokens(r, g->first_chunk + 1)))
        rc = err_set(&e, ERR_CORRUPT, "a snapshot is not that of its chunk");
    if (rc != 0)
        restore_lose_snapshot(r, rc, e.msg[0] != 0 ? e.msg : err_name(rc));
    return rc == 0;
}

/* Puts a layer's state in its place. */
static void put_state(struct restore *r, const struct group *g)
{
    struct kv_layer kv = kv_pool_layer(r->rr->o.pool, g->layer);
    memcpy(kv.blocks + (size_t)kv_table_state(r->job.table) * kv.block_stride,
           g->reads[0].bytes, model_state_bytes(&r->rr->o.model->cfg));
}

/* Returns whether one record is good, and unpacks it. Leaves the checksum out if the device
 * computes it. A bad record loses its chunk and all chunks behind it. */
static bool check_record(struct restore *r, struct group *g, int i, int thread_idx)
{
    struct store_read *read = &g->reads[i];
    struct err e = {0};
    int rc = read->status;
    if (g->is_snapshot)
        return check_snapshot(r, g, thread_idx);
    if (rc == 0 && g->is_direct && r->rr->check == NULL) {
        rc = store_read_judge(read, g->from[i].sum, &e);
        read->n_bytes = (uint32_t)g->from[i].n_bytes;
        read->is_packed = read->is_sealed = false;
    } else if (rc == 0 && (r->rr->check == NULL || read->is_packed || read->is_sealed))
        rc = store_read_check(read, &e);
    size_t n_bytes = group_record_bytes(r->rr, g, i);
    if (rc == 0 && read->is_packed)
        rc = unpack(r->rr, read, n_bytes, thread_idx, &e);
    if (rc == 0 && read->n_bytes != n_bytes)
        rc = err_set(&e, ERR_CORRUPT, "a record has %u bytes instead of %zu", read->n_bytes,
                     n_bytes);
    else if (rc == ERR_MISMATCH)
        rc = err_set(&e, ERR_CORRUPT, "a record has more than %zu bytes", n_bytes);
    if (rc != 0)
        restore_lose_chunk(r, g->first_chunk + i, rc, e.msg[0] != 0 ? e.msg : err_name(rc));
    return rc == 0;
}

/* Fills the block from a partial chunk, whose K and V are plain rows, not laid out as a block.
 * (The view is only read, so casting const away is safe.) */
static int fill_partial(struct restore *r, const struct group *g, int i, struct stream *s)
{
    struct one_seq q;
    const struct model *m = r->rr->o.model;
    const uint8_t *record = restore_record(r->rr, g, i);
    struct kv_layer kv = kv_pool_layer(r->rr->o.pool, g->layer);
    int n = g->reads[i].hit->n_tokens;
    struct mat rows = mat_of((void *)(uintptr_t)record, m->dtype, n,
                             config_kv_width(&m->cfg, g->layer));
    return model_kv_fill(m, s, g->layer, &kv, rows,
                         rows_of(r, &q, (g->first_chunk + i) * STORE_CHUNK_TOKENS, n));
}

/* Loads chunks [first, end) of a group, whose records lie behind one another, in one call; a
 * partial chunk takes a second one. */
static int load_chunks(struct restore *r, const struct group *g, int first, int end,
                       struct stream *s)
{
    struct kv_layer kv = kv_pool_layer(r->rr->o.pool, g->layer);
    int last = end - 1, chunk = g->first_chunk + first, rc = 0;
    bool partial = end > first && g->reads[last].hit->n_tokens < STORE_CHUNK_TOKENS;
    struct kv_chunks whole = {.first = restore_record(r->rr, g, first),
                              .stride = r->rr->record_room[g->kind],
                              .blocks = r->job.table->blocks + chunk,
                              .n = (partial ? last : end) - first,
                              .pos0 = chunk * STORE_CHUNK_TOKENS};
    if (whole.n > 0)
        rc = model_kv_load(r->rr->o.model, s, g->layer, &kv, &whole);
    return rc == 0 && partial ? fill_partial(r, g, last, s) : rc;
}

/* Checks one chunk. K and V that are used in place enter the KV cache at once, while this core's
 * cache still has them. */
static void take_chunk(struct item *a, struct group *g, int i, int thread_idx)
{
    struct restore *r = a->r;
    struct stream *s = r->rr->inline_streams[thread_idx];
    int chunk = g->first_chunk + i;
    if (chunk >= shared_load(&r->n_good) || chunk < shared_load(&r->n_raced) ||
        !check_record(r, g, i, thread_idx) || g->kind != STORE_KV || g->twin != NULL)
        return;
    int rc = load_chunks(r, g, i, i + 1, s);
    if (rc != 0)
        shared_store(&a->rc, rc);
}

static void item_share(void *arg, int thread_idx, int n_threads)
{
    struct item *a = arg;
    long begin, end, first = 0;
    pool_share(a->n_chunks, 1, thread_idx, n_threads, &begin, &end);
    for (int p = 0; p < a->n_parts; first += a->parts[p++].n) {
        const struct part *part = &a->parts[p];
        long from = begin - MIN(begin, first);
        for (long i = from; i < part->n && first + i < end; i++)
            take_chunk(a, part->g, part->first + (int)i, thread_idx);
    }
}

/* Returns a view of hidden states [row, row + n) of a group. (The view is only read, so casting
 * const away is safe.) */
static struct mat hidden_rows(const struct restore_pipeline *rr, const struct group *g,
                              int row, int n)
{
    const struct model *m = rr->o.model;
    const uint8_t *bytes = restore_record(rr, g, row / STORE_CHUNK_TOKENS) +
                           (size_t)(row % STORE_CHUNK_TOKENS) * model_hidden_bytes(m);
    return mat_of((void *)(uintptr_t)bytes, m->dtype, n, m->cfg.n_embd);
}

/* Returns how many rows from `row` on, before `end`, lie behind one another. Records may have
 * gaps between them. */
static int adjacent_rows(const struct restore_pipeline *rr, const struct group *g, int row,
                         int end)
{
    int i = row / STORE_CHUNK_TOKENS;
    int to = (i + 1) * STORE_CHUNK_TOKENS;
    for (; to < end; i++, to += STORE_CHUNK_TOKENS) {
        if (restore_record(rr, g, i + 1) !=
            restore_record(rr, g, i) + record_bytes(rr->o.model, g->layer, STORE_HIDDEN))
            break;
    }
    return MIN(to, end) - row;
}

/* Returns the first row of a group that may be used. After a failed read in a race no row may be
 * used, and the result lies behind the group's last row. */
static int first_wanted_row(const struct restore *r, const struct group *g)
{
    int row = restore_race_row(r) - g->first_chunk * STORE_CHUNK_TOKENS;
    return MAX(row, 0);
}

/* In a race: notes that the records of g's rows before `first` were not used. */
static void note_kept_out(struct restore *r, const struct group *g, int first)
{
    int begin = g->first_chunk * STORE_CHUNK_TOKENS;
    int end = begin + MIN(first, group_rows(g));
    if (first > 0 && end > r->re.kept_out)
        r->re.kept_out = end;
}

/* Returns the chunk behind the last one that may be used; 0 after a failed read in a race. */
static int end_of_wanted(struct restore *r)
{
    return shared_load(&r->has_lost_reads) == 0 ? shared_load(&r->n_good) : 0;
}

/* Projects records that lie behind one another as one matrix (a GEMM of 512 rows), others one by
 * one: the bits are the same. Leaves out rows behind a chunk that was lost. */
static int project_part(struct restore *r, const struct part *p)
{
    const struct group *g = p->g;
    if (shared_load(&r->has_lost_snapshot) != 0 && r->snapshot_chunk >= 0)
        return 0; /* the restore begins again */
    if (g->is_snapshot) {
        if (g->first_chunk < end_of_wanted(r))
            put_state(r, g);
        return 0;
    }
    int rc = 0, end = (end_of_wanted(r) - g->first_chunk) * STORE_CHUNK_TOKENS;
    int first = first_wanted_row(r, g);
    note_kept_out(r, g, first);
    first = MAX(first, g->n_projected);
    end = MIN(end, p->project_to);
    for (int row = first, n; rc == 0 && row < end; row += n) {
        n = adjacent_rows(r->rr, g, row, end);
        rc = replay(r, g->layer, g->first_chunk * STORE_CHUNK_TOKENS + row,
                    hidden_rows(r->rr, g, row, n));
    }
    return rc;
}

/* On a device with memory of its own: copies the good records of a part up, and loads K and V
 * from there into the cache. */
static int bring_up(struct restore *r, const struct part *p)
{
    int end = shared_load(&r->n_good) - p->g->first_chunk;
    end = MIN(end, p->first + p->n);
    int rc = restore_up(r->rr, p->g, p->first, end);
    int first = (first_wanted_row(r, p->g) + STORE_CHUNK_TOKENS - 1) / STORE_CHUNK_TOKENS;
    if (p->g->kind == STORE_KV)
        note_kept_out(r, p->g, first * STORE_CHUNK_TOKENS);
    first = MAX(first, p->first);
    bool loads = p->g->kind == STORE_KV && first < end &&
                 shared_load(&r->has_lost_reads) == 0;
    return rc == 0 && loads ? load_chunks(r, p->g, first, end, r->rr->o.stream) : rc;
}

/* Gives back the groups of mine[] that are done. They count for their layers now, or when the
 * device is done with them. */
static void give_back(struct restore_pipeline *rr)
{
    int n = 0;
    pthread_mutex_lock(&rr->lock);
    for (int i = 0; i < rr->n_mine; i++) {
        struct group *g = rr->mine[i];
        if (!group_is_done(g)) {
            rr->mine[n++] = g;
            continue;
        }
        if (g->twin != NULL) {
            restore_leave(rr, g);
            continue;
        }
        g->run->layer_left[g->layer] -= g->n_chunks;
        restore_group_done(rr, g);
    }
    pthread_mutex_unlock(&rr->lock);
    rr->n_mine = n;
}

/* Shares an item's time among its groups, by their chunks. */
static void trace_item(struct item *a, int64_t t0, int64_t ns)
{
    int done = 0;
    for (int i = 0; i < a->n_parts && a->n_chunks > 0; i++) {
        const struct part *p = &a->parts[i];
        int64_t from = t0 + ns * done / a->n_chunks;
        done += p->n;
        restore_trace_add(&a->r->compute_trace, from, t0 + ns * done / a->n_chunks,
                          p->g->layer, p->g->kind == STORE_HIDDEN ? 'H' : 'K');
    }
}

/* Does one item: the first group of mine[], and the others of the same restore and kind. */
static void work_arrived(struct restore_pipeline *rr, int64_t budget_ns)
{
    const struct group *first = rr->mine[0];
    struct restore *r = first->run;
    struct item a = {.r = r};
    int64_t t0 = clock_now_ns();
    int method = first->kind == STORE_HIDDEN ? BY_H : BY_K;
    for (int i = 0; i < rr->n_mine; i++) {
        struct group *g = rr->mine[i];
        if (g->run != r || g->kind != first->kind)
            continue;
        if (!add_part(&a, g, &budget_ns))
            break;
    }
    if (a.n_chunks > 1 && rr->check == NULL)
        pool_run(rr->o.model->dev->pool, item_share, &a);
    else
        item_share(&a, 0, 1);
    int rc = shared_load(&a.rc);
    for (int i = 0; i < a.n_parts; i++) {
        struct part *p = &a.parts[i];
        p->g->n_taken += p->n;
        if (rc == 0 && p->g->twin != NULL)
            rc = bring_up(r, p);
        if (rc == 0 && p->g->kind == STORE_HIDDEN)
            rc = project_part(r, p);
        p->g->n_projected = p->project_to;
    }
    if (rc != 0)
        fail(r, rc);
    r->rows_by_method[method] += a.n_rows;
    if (rr->up == NULL) {
        int64_t ns = clock_now_ns() - t0;
        trace_item(&a, t0, ns);
        r->out.compute_ns += ns;
    }
    give_back(rr); /* the groups belong to the I/O thread again */
    if (rr->up != NULL) {
        /* Within a budget the item's time includes the device's. Without a budget the item is only
         * queued, as far ahead as slots can be spared. */
        restore_settle(rr, budget_ns == RESTORE_NO_LIMIT ? rr->n_slots / 2 : 0);
    }
    if (rr->up == NULL || budget_ns != RESTORE_NO_LIMIT)
        learn(rr, method, clock_now_ns() - t0, a.has_snapshot ? 0 : a.n_rows);
}

/* --- recomputation ---------------------------------------------------------------------------- */

static int good_tokens(const struct restore *r)
{
    return restore_tokens(r, shared_load(&r->n_good));
}

bool restore_recompute_remains(const struct restore *r)
{
    return r->state == RESTORE_RUNNING && r->n_recompute > 0 &&
           r->re.row < good_tokens(r) && !restore_must_rewind(r);
}

/* Returns the rows of the next piece and sets its last layer. With a sliding window a layer is
 * wanted from its start[] on only. A piece ends where the next layer's start lies, so that all its
 * rows pass the same layers. */
static int piece_rows(struct restore *r)
{
    int end = r->re.row + model_work_rows(r->rr->o.work), l = 0;
    end = MIN(end, good_tokens(r));
    while (l < r->n_recompute - 1 && r->start[l + 1] * STORE_CHUNK_TOKENS <= r->re.row)
        l++;
    r->re.last = l;
    if (l < r->n_recompute - 1 && r->start[l + 1] * STORE_CHUNK_TOKENS < end)
        end = r->start[l + 1] * STORE_CHUNK_TOKENS;
    return end - r->re.row;
}

static void begin_piece(struct restore_pipeline *rr, struct restore *r, int64_t budget_ns)
{
    int left = piece_rows(r);
    int n = rows_for(rr, BY_R, budget_ns, MIN_ROWS, left);
    n = n > 0 ? n : MIN(left, MIN_ROWS);
    rr->recomputing = r;
    model_pass_begin(&rr->pass,
                     &(struct model_pass_opts){.model = rr->o.model,
                                               .work = rr->o.work,
                                               .stream = rr->o.stream,
                                               .n_rows = n,
                                               .ids = r->job.tokens + r->re.row,
                                               .x = &rr->x,
                                               .kv = kv_pool_layers(rr->o.pool)});
}

/* Takes the present piece through one layer. In the last layer only K and V are computed. */
static int recompute_layer(struct restore *r)
{
    struct restore_pipeline *rr = r->rr;
    struct one_seq q;
    int l = rr->pass.layer, n = rr->pass.o.n_rows;
    const struct ragged *rows = rows_of(r, &q, r->re.row, n);
    if (l < r->re.last)
        return model_pass_layer(&rr->pass, rows);
    const struct kv_layer *kv = &rr->pass.o.kv[l];
    struct mat kv_rows = model_kv_rows(rr->o.model, l, rr->kv_rows[kv->stage], n);
    int rc = model_pass_kv(&rr->pass, rows, kv_rows);
    if (rc != 0 || config_is_recurrent(&rr->o.model->cfg, l))
        return rc;
    return model_kv_fill(rr->o.model, rr->o.stream, l, kv, kv_rows, rows);
}

/* Accounts the layers up to `layer` that were queued since the last wait for the device. Each
 * gets an equal share of the time. */
static void account_recomputed(struct restore *r, int layer, int n_rows)
{
    struct restore_pipeline *rr = r->rr;
    int n = rr->re_queued;
    int64_t t0 = rr->t_re_queued, ns = clock_now_ns() - t0;
    for (int i = 0; i < n; i++)
        restore_trace_add(&r->compute_trace, t0 + ns * i / n, t0 + ns * (i + 1) / n,
                          layer - n + 1 + i, 'R');
    learn(rr, BY_R, ns / n, n_rows);
    rr->re_queued = 0;
}

/* Recomputes one layer of a piece. If the device has memory of its own and no decode waits, the
 * layers of a piece are queued one behind the other, and waited for at its end. */
static void work_recompute(struct restore_pipeline *rr, struct restore *r,
                           int64_t budget_ns)
{
    int64_t t0 = clock_now_ns();
    if (rr->recomputing == NULL)
        begin_piece(rr, r, budget_ns);
    int n = rr->pass.o.n_rows, layer = rr->pass.layer;
    bool is_last = layer == r->re.last;
    int rc = recompute_layer(r);
    bool waits = rr->up == NULL || budget_ns != RESTORE_NO_LIMIT || is_last;
    if (rr->re_queued++ == 0)
        rr->t_re_queued = t0;
    if (rc == 0 && waits)
        rc = stream_sync(rr->o.stream);
    if (is_last)
        r->re.row += n;
    if (is_last || rc != 0) {
        model_pass_end(&rr->pass);
        rr->recomputing = NULL;
        restore_race_pieces_end(r, good_tokens(r));
    }
    if (rc != 0)
        fail(r, rc);
    if (waits || rc != 0)
        account_recomputed(r, layer, n);
    r->rows_by_method[BY_R] += n;
    (void)restore_count_compute(r, t0);
}

/* Returns whether the recomputed layers wait for their states (restore.n_late). */
static bool waits_for_states(const struct restore *r)
{
    bool waits = false;
    for (int l = 0; l < r->n_late; l++)
        waits = waits || r->layer_left[l] > 0;
    return waits;
}

/* Returns the restore whose piece is under way, else the oldest one with something left, else
 * NULL. */
static struct restore *next_recompute(struct restore_pipeline *rr)
{
    if (rr->recomputing != NULL)
        return rr->recomputing;
    struct restore *r = rr->runs;
    while (r != NULL && (!restore_recompute_remains(r) || waits_for_states(r)))
        r = r->next;
    return r;
}

/* --- the compute lane ------------------------------------------------------------------------- */

bool restore_pipeline_work(struct restore_pipeline *rr, int64_t budget_ns)
{
    pthread_mutex_lock(&rr->lock);
    rr->n_seen = rr->n_news;
    int n_chunks = 0;
    for (int i = 0; i < rr->n_mine; i++)
        n_chunks += rr->mine[i]->n_chunks;
    while (rr->n_mine < MAX_MINE && n_chunks < MINE_CHUNKS && rr->ready.first != NULL) {
        rr->mine[rr->n_mine] = group_get(&rr->ready);
        n_chunks += rr->mine[rr->n_mine++]->n_chunks;
    }
    struct restore *r = rr->n_mine == 0 ? next_recompute(rr) : NULL;
    pthread_mutex_unlock(&rr->lock);
    if (rr->n_mine > 0)
        work_arrived(rr, budget_ns);
    else if (r != NULL)
        work_recompute(rr, r, budget_ns);
    else if (rr->n_leaving > 0)
        restore_settle(rr, rr->n_leaving - 1);
    else
        return false;
    return true;
}

void restore_drop_piece(struct restore_pipeline *rr)
{
    model_pass_end(&rr->pass);
    rr->recomputing = NULL;
    rr->re_queued = 0;
}

void restore_drop_work(struct restore_pipeline *rr, struct restore *r)
{
    int n = 0;
    restore_settle(rr, 0); /* the device may still read the groups that are given back */
    pthread_mutex_lock(&rr->lock);
    for (int i = 0; i < rr->n_mine; i++) {
        if (rr->mine[i]->run == r)
            restore_group_done(rr, rr->mine[i]);
        else
            rr->mine[n++] = rr->mine[i];
    }
    pthread_mutex_unlock(&rr->lock);
    rr->n_mine = n;
    if (rr->recomputing == r)
        restore_drop_piece(rr);
}
