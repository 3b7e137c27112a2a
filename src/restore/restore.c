/* restore.c - see restore.h and restore_impl.h: life cycle of the restore pipeline
 * and of a restore. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "base/step.h"
#include "base/thread.h"
#include "save/snapshots.h"
#include "save/saver.h"
#include "restore/restore_impl.h"

/* --- lists of groups -------------------------------------------------------------------------- */

void group_put(struct group_list *l, struct group *g)
{
    g->next = NULL;
    if (l->first == NULL)
        l->first = g;
    else
        l->last->next = g;
    l->last = g;
}

struct group *group_get(struct group_list *l)
{
    struct group *g = l->first;
    if (g != NULL)
        l->first = g->next;
    return g;
}

/* --- the restore pipeline --------------------------------------------------------------------- */

int restore_open_reader(struct restore_pipeline *rr, struct err *err)
{
    int rc = store_reader_open(rr->o.store, rr->n_slots * GROUP, rr->staging.ptr,
                               rr->staging.bytes, &rr->reader, err);
    if (rc != 0)
        return rc;
    store_reader_use_dram(rr->reader);
    if (rr->o.model->dev->unified) /* the host checks records before anything reads them */
        store_reader_use_page_cache(rr->reader);
    store_reader_listen(rr->reader, &rr->alarm);
    return 0;
}

/* Returns the bytes of a slot, which holds a group of records of either kind, or one state. s NULL
 * means a store that is not encrypted. */
static size_t slot_bytes(const struct model *m, const struct store *s)
{
    size_t hidden = store_read_room(s, record_most_bytes(m, STORE_HIDDEN));
    size_t kv = store_read_room(s, record_most_bytes(m, STORE_KV));
    return MAX(GROUP * MAX(hidden, kv), store_read_room(s, model_state_bytes(&m->cfg)));
}

static int n_slots(size_t slot, size_t staging_bytes)
{
    size_t n = staging_bytes / slot;
    return (int)MIN(MAX(n, 3), MAX_SLOTS);
}

static size_t scratch_bytes(const struct model *m, int max_rows)
{
    return (size_t)max_rows * (model_most_kv_bytes(m) + model_hidden_bytes(m));
}

size_t restore_pipeline_device_bytes(const struct model *m, int max_rows,
                                     size_t staging_bytes)
{
    size_t slot = slot_bytes(m, NULL);
    int n = n_slots(slot, staging_bytes);
    return m->dev->unified ? 0
                           : (size_t)n * slot + scratch_bytes(m, max_rows) +
                                 restore_sums_bytes(m->dev, n);
}

static int reserve_staging(struct restore_pipeline *r, struct err *err)
{
    r->slot_bytes = slot_bytes(r->o.model, r->o.store);
    r->n_slots = n_slots(r->slot_bytes, r->o.staging_bytes);
    int rc = buf_alloc(r->o.model->dev, MEM_PINNED, (size_t)r->n_slots * r->slot_bytes,
                       &r->staging, err);
    if (rc != 0)
        return err_wrap(err, "staging for restores");
    r->groups = xcalloc((size_t)r->n_slots, sizeof *r->groups);
    for (int i = 0; i < r->n_slots; i++) {
        r->groups[i].slot = (uint8_t *)r->staging.ptr + (size_t)i * r->slot_bytes;
        group_put(&r->free, &r->groups[i]);
    }
    struct store_stats st;
    store_stats(r->o.store, &st);
    if (r->o.model->dev->unified && (r->o.rest_ns > 0 || st.used_bytes == 0))
        return 0; /* the first restore takes the page faults */
    memset(r->staging.ptr, 0, r->staging.bytes);
    return restore_open_reader(r, err);
}

void restore_rest(struct restore_pipeline *rr)
{
    store_reader_close(rr->reader); /* it has registered the memory */
    rr->reader = NULL;
    mem_give_back(rr->staging.ptr, rr->staging.bytes);
}

/* Most bytes of the KV pool that are provided before the first restore. */
#define FIRST_BYTES ((size_t)256 << 20)

/* The memory of the first blocks. */
struct first_blocks {
    uint8_t *at;
    size_t n_bytes;
};

static void provide_share(void *arg, int thread_idx, int n_threads)
{
    const struct first_blocks *f = arg;
    const long huge_page = 2 << 20;
    long begin, end;
    pool_share((long)f->n_bytes, huge_page, thread_idx, n_threads, &begin, &end);
    mem_provide(f->at + begin, (size_t)(end - begin));
}

/* Has the system provide the blocks that the first restores use: the first ones of the pool, as
 * many as chunks are stored.  At the first restore their memory would cost 0.3 to 1.7 ns a byte.  A
 * pool on a GPU has its memory; the pool of one model of several gets it later. */
static void provide_first_blocks(const struct restore_pipeline *r)
{
    const struct kv_layer *layers = kv_pool_layers(r->o.pool);
    struct store_stats st;
    int l = 0;
    if (layers == NULL || !r->o.model->dev->unified || r->o.rest_ns > 0)
        return;
    while (config_is_recurrent(&r->o.model->cfg, l)) /* it has states, not blocks */
        l++;
    store_stats(r->o.store, &st);
    size_t n = (size_t)MIN((uint64_t)kv_pool_n_blocks(r->o.pool), st.n_chunks);
    struct first_blocks f = {layers[l].blocks,
                             MIN(n * layers[l].block_stride, FIRST_BYTES)};
    if (f.n_bytes > 0)
        pool_run(r->o.model->dev->pool, provide_share, &f);
}

static int reserve_scratch(struct restore_pipeline *r, struct err *err)
{
    const struct model *m = r->o.model;
    int rows = model_work_rows(r->o.work);
    size_t kv = (size_t)rows * model_most_kv_bytes(m);
    int rc = stages_alloc(m->dev, scratch_bytes(m, rows), r->scratch, err);
    if (rc != 0)
        return err_wrap(err, "scratch for restores");
    r->x.n = 1;
    for (int k = 0; k < m->dev->n_stages; k++) {
        uint8_t *p = r->scratch[k].ptr;
        r->kv_rows[k] = p;
        r->x.x[k][0] = mat_of(p + kv, m->dtype, rows, m->cfg.n_embd);
    }
    r->pos = xmalloc((size_t)r->o.max_tokens * sizeof *r->pos);
    for (int i = 0; i < r->o.max_tokens; i++)
        r->pos[i] = i;
    return 0;
}

static int reserve_streams(struct restore_pipeline *r, struct err *err)
{
    int n = pool_threads(r->o.model->dev->pool), rc = 0;
    r->inline_streams = xcalloc((size_t)n, sizeof *r->inline_streams);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = stream_create(r->o.model->dev, STREAM_INLINE, &r->inline_streams[i], err);
    r->unpack_room = MAX(r->record_room[STORE_HIDDEN], r->record_room[STORE_KV]);
    r->unpack_room = MAX(r->unpack_room, model_state_bytes(&r->o.model->cfg));
    r->unpack = xmalloc((size_t)n * r->unpack_room);
    return rc;
}

static int start_thread(struct restore_pipeline *r, struct err *err)
{
    int rc = thread_create(&r->io, restore_io_main, r);
    r->has_thread = rc == 0;
    return rc == 0 ? 0
                   : err_set(err, -rc, "no thread for reading the store: %s", strerror(rc));
}

static void init_locks(struct restore_pipeline *r)
{
    pthread_mutex_init(&r->lock, NULL);
    clock_cond_init(&r->for_io);
    clock_cond_init(&r->for_compute);
}

static void deinit_locks(struct restore_pipeline *r)
{
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->for_io);
    pthread_cond_destroy(&r->for_compute);
}

int restore_pipeline_create(const struct restore_pipeline_opts *o,
                            struct restore_pipeline **out, struct err *err)
{
    CHECK(model_work_rows(o->work) >= GROUP_ROWS);
    CHECK(config_n_keeping(&o->model->cfg) <= STORE_MAX_LAYERS);
    struct restore_pipeline *r = xcalloc(1, sizeof *r);
    r->o = *o;
    init_locks(r);
    int rc = io_alarm_init(&r->alarm, err);
    if (rc != 0) {
        deinit_locks(r);
        free(r);
        return rc;
    }
    for (int k = 0; k < STORE_KINDS; k++) {
        r->record_room[k] = store_read_room(
            o->store, record_most_bytes(o->model, (enum store_kind)k));
    }
    rc = reserve_staging(r, err);
    if (rc == 0)
        rc = restore_up_create(r, err);
    if (rc == 0)
        rc = restore_direct_open(r, err);
    if (rc == 0 && o->fetches)
        rc = store_fetcher_open(o->store, &r->fetcher, err);
    if (rc == 0 && r->fetcher != NULL)
        store_fetch_listen(r->fetcher, &r->alarm);
    if (rc == 0)
        rc = reserve_scratch(r, err);
    if (rc == 0)
        rc = reserve_streams(r, err);
    if (rc == 0) {
        provide_first_blocks(r);
        rc = start_thread(r, err);
    }
    if (rc != 0) {
        restore_pipeline_destroy(r);
        return rc;
    }
    *out = r;
    return 0;
}

static void stop_thread(struct restore_pipeline *r)
{
    if (!r->has_thread)
        return;
    pthread_mutex_lock(&r->lock);
    r->quit = true;
    restore_tell_io(r);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->io, NULL);
    pthread_mutex_lock(&r->lock);
    while (r->n_fetches > 0) /* the fetches are cancelled, so the remote ends them soon */
        pthread_cond_wait(&r->for_io, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

void restore_pipeline_destroy(struct restore_pipeline *r)
{
    if (r == NULL)
        return;
    CHECK(r->runs == NULL);
    stop_thread(r);
    store_reader_close(r->reader);
    store_fetcher_close(r->fetcher);
    restore_direct_close(r);
    for (int i = 0; r->inline_streams != NULL && i < pool_threads(r->o.model->dev->pool);
         i++)
        stream_destroy(r->inline_streams[i]);
    free(r->inline_streams);
    restore_up_destroy(r);
    free(r->groups);
    free(r->unpack);
    buf_free(r->o.model->dev, &r->staging);
    stages_free(r->o.model->dev, r->scratch);
    free(r->pos);
    io_alarm_deinit(&r->alarm);
    deinit_locks(r);
    free(r);
}

void restore_pipeline_measure(struct restore_pipeline *r)
{
    pthread_mutex_lock(&r->lock);
    r->wants_measure = true;
    restore_tell_io(r);
    pthread_mutex_unlock(&r->lock);
}

bool restore_pipeline_fetches(const struct restore_pipeline *r)
{
    return r->fetcher != NULL;
}

void restore_pipeline_want(struct restore_pipeline *r, const void *id,
                           const struct sha256 *keys, int n, uint64_t turn)
{
    if (r->fetcher == NULL)
        return;
    store_fetch_want(r->o.store, id, keys, n, turn);
    pthread_mutex_lock(&r->lock);
    restore_tell_io(r);
    pthread_mutex_unlock(&r->lock);
}

void restore_pipeline_want_end(struct restore_pipeline *r, const void *id)
{
    if (r->fetcher == NULL)
        return;
    store_fetch_want_end(r->o.store, id);
    pthread_mutex_lock(&r->lock);
    restore_tell_io(r);
    pthread_mutex_unlock(&r->lock);
}

size_t restore_pipeline_bytes(const struct restore_pipeline *r)
{
    size_t bytes = r->staging.bytes;
    for (int k = 0; k < r->o.model->dev->n_stages; k++)
        bytes += r->twins[k].bytes + r->scratch[k].bytes + r->sums[k].bytes;
    return bytes;
}

bool restore_pipeline_wait(struct restore_pipeline *rr, int64_t timeout_ns)
{
    int64_t t0 = clock_now_ns();
    bool is_late = false;
    pthread_mutex_lock(&rr->lock);
    while (rr->n_news == rr->n_seen && !is_late)
        is_late = clock_cond_wait_until(&rr->for_compute, &rr->lock, t0 + timeout_ns);
    bool news = rr->n_news != rr->n_seen;
    int64_t ns = clock_now_ns() - t0;
    for (struct restore *r = rr->runs; r != NULL; r = r->next)
        r->out.wait_ns += r->state == RESTORE_RUNNING ? ns : 0;
    pthread_mutex_unlock(&rr->lock);
    return news;
}

/* --- the job ---------------------------------------------------------------------------------- */

/* Returns whether a failed read or check means that the bytes on the medium are damaged. A
 * passing failure (no memory, no power) leaves them to the next restore. */
static bool is_damage(int rc)
{
    return rc == ERR_CORRUPT || rc == -EIO || rc == -ENODATA;
}

void restore_lose_chunk(struct restore *r, int chunk, int rc, const char *why)
{
    pthread_mutex_lock(&r->fault_lock);
    bool is_raced = shared_load(&r->is_raced) != 0;
    if (is_raced)
        shared_store(&r->has_lost_reads, 1);
    if (chunk < shared_load(&r->n_good)) {
        if (!is_raced) {
            shared_store(&r->n_good, chunk);
            snprintf(r->out.fault, sizeof r->out.fault, "chunk %d: %s", chunk, why);
        }
        if (is_damage(rc))
            store_condemn(r->rr->o.store, &r->job.hits[chunk], why);
    }
    pthread_mutex_unlock(&r->fault_lock);
}

void restore_lose_snapshot(struct restore *r, int rc, const char *why)
{
    pthread_mutex_lock(&r->fault_lock);
    if (shared_load(&r->has_lost_snapshot) == 0) {
        shared_store(&r->has_lost_snapshot, 1);
        if (is_damage(rc))
            store_condemn(r->rr->o.store, &r->snapshot, why);
    }
    pthread_mutex_unlock(&r->fault_lock);
}

void restore_give_up(struct restore *r, const char *why)
{
    pthread_mutex_lock(&r->fault_lock);
    if (shared_load(&r->is_raced) != 0 && r->rc == 0) {
        shared_store(&r->has_lost_reads, 1);
    } else {
        shared_store(&r->n_good, r->job.first_chunk);
        snprintf(r->out.fault, sizeof r->out.fault, "%s", why);
    }
    pthread_mutex_unlock(&r->fault_lock);
}

static uint8_t chunk_mask(const struct store_hit *h, int layer)
{
    return (uint8_t)((store_mask_has(&h->mask, layer, STORE_HIDDEN) ? PLAN_HAS_H : 0) |
                     (store_mask_has(&h->mask, layer, STORE_KV) ? PLAN_HAS_KV : 0));
}

char restore_method_of(const struct restore *r, int layer, int chunk)
{
    uint8_t mask = chunk_mask(&r->job.hits[chunk], layer);
    if (chunk == r->snapshot_chunk && restore_has_snapshot(r, layer))
        return 'S';
    if (r->takes_kv != NULL && r->takes_kv[chunk] && (mask & PLAN_HAS_KV))
        mask = PLAN_HAS_KV;
    char how = plan_range_method(r->job.plan->method[layer], mask);
    return how == 'H' || how == 'K' ? how : 0;
}

static int count_recomputed(const struct plan *p)
{
    int n = 0;
    while (n < p->n_layers && p->method[n] == 'R')
        n++;
    /* Layer 0's hidden states are embedding rows: restoring it "from hidden" is recomputing it. */
    return n == 0 && p->method[0] == 'H' ? 1 : n;
}

/* Returns the chunk that holds the first position that tokens from pos on see in layer l. */
static int first_seen(const struct restore *r, int l, int pos)
{
    int w = config_window(&r->rr->o.model->cfg, l);
    return MAX(w > 0 ? window_first_chunk(pos, w) : 0, r->job.first_chunk);
}

/* Sets snapshot_chunk. Recurrent layers take no states from the snapshot if none was found, if it
 * was lost, or if the job ends before it. */
static void choose_snapshot(struct restore *r)
{
    bool has = r->owns_hits && r->snapshot.impl != NULL &&
               r->found.n_snapshot <= r->job.n_chunks &&
               shared_load(&r->has_lost_snapshot) == 0;
    r->snapshot_chunk = has ? r->found.n_snapshot - 1 : -1;
}

/* Finds the first wanted chunk of each layer: the first chunk to which tokens behind the job's last
 * chunk attend. A recomputed layer also gives the layer above its input, from that layer's first
 * wanted chunk on. So a recomputed layer needs one window more of its own K and V. */
static void find_starts(struct restore *r)
{
    int n_layers = r->job.plan->n_layers, n_tokens = restore_tokens(r, r->job.n_chunks);
    for (int l = n_layers - 1; l >= 0; l--) {
        r->start[l] = first_seen(r, l, n_tokens);
        if (restore_has_snapshot(r, l))
            r->start[l] = r->snapshot_chunk;
        if (l >= r->n_recompute - 1 || restore_has_snapshot(r, l))
            continue;
        int wanted = first_seen(r, l, r->start[l + 1] * STORE_CHUNK_TOKENS);
        r->start[l] = MIN(wanted, r->start[l]);
    }
}

bool restore_must_rewind(const struct restore *r)
{
    const struct model_config *c = &r->rr->o.model->cfg;
    int n_good = shared_load(&r->n_good);
    if (r->snapshot_chunk >= 0 && shared_load(&r->has_lost_snapshot) != 0)
        return n_good > r->job.first_chunk;
    return (c->sliding_window > 0 || config_is_hybrid(c)) && n_good > r->job.first_chunk &&
           n_good < r->job.n_chunks;
}

/* Chooses the snapshot and finds the first wanted chunk of each layer. Sets the cursors of reads
 * and of recomputation to these chunks. Late layers (n_late) read only the snapshot's states, so
 * without a snapshot none of their chunks are read. */
static void set_cursors(struct restore *r)
{
    choose_snapshot(r);
    find_starts(r);
    bool is_late = r->n_late > 0 && r->snapshot_chunk >= 0;
    for (int l = 0; l < r->job.plan->n_layers; l++)
        r->n_handed[l] = r->start[l];
    r->next_layer = is_late ? 0 : r->n_late;
    for (int i = 0; i < r->n_order; i++) {
        int l = r->order[i];
        r->layer_left[l] = i < r->next_layer
                               ? 0
                               : restore_read_end(r, l, r->job.n_chunks) - r->start[l];
    }
    r->next_chunk = r->next_layer < r->n_order ? r->start[r->order[r->next_layer]] : 0;
    r->re.row = r->n_recompute > 0 ? (r->start[0] + is_late) * STORE_CHUNK_TOKENS : 0;
}

/* Sets the order of reads: late layers (n_late), then the plan's order, then the layers that the
 * plan does not name. Other recomputed layers are not read. */
static void make_order(struct restore *r)
{
    const struct plan *p = r->job.plan;
    bool done[STORE_MAX_LAYERS] = {false};
    for (int i = 0; i < r->n_recompute; i++) {
        done[i] = true;
        if (i < r->n_late)
            r->order[r->n_order++] = (int16_t)i;
    }
    for (int i = 0; i < p->n_io + p->n_layers; i++) {
        int layer = i < p->n_io ? p->io_order[i] : i - p->n_io;
        if (done[layer])
            continue;
        done[layer] = true;
        r->order[r->n_order++] = (int16_t)layer;
    }
}

/* Leaves the first chunk without a usable record, and all behind it, to prefill. */
static void check_records(struct restore *r)
{
    for (int c = r->job.first_chunk; c < r->job.n_chunks; c++) {
        for (int i = r->n_late; i < r->n_order; i++) {
            if (c >= r->start[r->order[i]] && restore_method_of(r, r->order[i], c) == 0) {
                restore_lose_chunk(r, c, ERR_NOT_FOUND, "no record that the plan can use");
                return;
            }
        }
    }
}

/* --- one restore ------------------------------------------------------------------------------ */

/* Creates a restore and adds it at the end of the list. want is NULL for restore_run, whose job
 * brings the chunks. */
static struct restore *begin(struct restore_pipeline *rr, const struct restore_want *want,
                             enum restore_state state)
{
    struct restore *r = xcalloc(1, sizeof *r);
    r->rr = rr;
    r->state = state;
    r->owns_hits = want != NULL;
    pthread_mutex_init(&r->fault_lock, NULL);
    if (want != NULL) {
        size_t n = (size_t)want->n_tokens / STORE_CHUNK_TOKENS;
        /* The look-up may outlive the restore and the caller's tokens. */
        size_t n_copied = (size_t)want->n_tokens + want->has_next;
        r->tokens = xmalloc(n_copied * sizeof *r->tokens);
        memcpy(r->tokens, want->tokens, n_copied * sizeof *r->tokens);
        r->want = *want;
        r->want.tokens = r->tokens;
        r->n_keys = (int)n;
        r->keys = xmalloc((n + 1) * sizeof *r->keys);
        r->keys[0] = *want->root;
        if (n > 0)
            memcpy(r->keys + 1, want->keys, n * sizeof *r->keys);
        r->hits = xcalloc(n + 1, sizeof *r->hits);
    }
    pthread_mutex_lock(&rr->lock);
    struct restore **last = &rr->runs;
    while (*last != NULL)
        last = &(*last)->next;
    *last = r;
    restore_tell_io(rr);
    pthread_mutex_unlock(&rr->lock);
    return r;
}

struct restore *restore_find(struct restore_pipeline *rr, const struct restore_want *want)
{
    CHECK(want->n_tokens > 0);
    return begin(rr, want, RESTORE_FINDING);
}

const struct restore_found *restore_found(const struct restore *r)
{
    pthread_mutex_lock(&r->rr->lock);
    bool found = r->state != RESTORE_FINDING;
    pthread_mutex_unlock(&r->rr->lock);
    return found ? &r->found : NULL;
}

/* [lock] Takes the group that begins with this chunk of the layer out of r->early. Returns NULL if
 * the group has not come. */
static struct group *take_early(struct restore *r, int layer, int chunk)
{
    struct group_list all = r->early;
    struct group *found = NULL;
    r->early = (struct group_list){0};
    for (struct group *g; (g = group_get(&all)) != NULL;) {
        if (g->layer == layer && g->first_chunk == chunk)
            found = g;
        else
            group_put(&r->early, g);
    }
    return found;
}

void restore_hand_over(struct restore_pipeline *rr, struct group *g)
{
    struct restore *r = g->run;
    int l = g->layer;
    if (!config_is_recurrent(&rr->o.model->cfg, l)) {
        group_put(&rr->ready, g);
        return;
    }
    group_put(&r->early, g);
    while ((g = take_early(r, l, r->n_handed[l])) != NULL) {
        r->n_handed[l] += g->n_chunks;
        group_put(&rr->ready, g);
    }
}

/* Counts the reads of the plan, as if every chunk of a layer had one kind. */
static int count_groups(const struct restore *r)
{
    int n = 0;
    for (int i = r->n_late; i < r->n_order; i++)
        n += (r->job.n_chunks - r->start[r->order[i]] + GROUP - 1) / GROUP;
    return n;
}

void restore_set_job(struct restore *r, const struct restore_job *job)
{
    struct restore_pipeline *rr = r->rr;
    CHECK(job->first_chunk >= 0 && job->n_chunks > job->first_chunk &&
          job->n_chunks * STORE_CHUNK_TOKENS <= rr->o.max_tokens);
    CHECK(job->plan->n_layers == config_n_keeping(&rr->o.model->cfg));
    CHECK(!r->owns_hits || job->n_chunks <= r->found.n_hits);
    CHECK(job->first_chunk == 0 || !config_is_hybrid(&rr->o.model->cfg));
    r->job = *job;
    if (r->owns_hits)
        r->job.hits = r->hits;
    r->t_start = clock_now_ns();
    shared_store(&r->n_good, job->n_chunks);
    r->sources = xcalloc((size_t)job->n_chunks, sizeof *r->sources);
    if (job->takes_kv != NULL) {
        r->takes_kv = xcalloc((size_t)job->n_chunks, sizeof *r->takes_kv);
        memcpy(r->takes_kv + job->first_chunk, job->takes_kv,
               (size_t)(job->n_chunks - job->first_chunk) * sizeof *r->takes_kv);
    }
    r->n_recompute = count_recomputed(job->plan);
    r->n_asked = job->n_chunks;
    r->n_late = r->n_recompute;
    for (int l = 0; l < r->n_recompute; l++)
        if (!config_is_recurrent(&rr->o.model->cfg, l))
            r->n_late = 0;
    make_order(r);
    set_cursors(r);
    r->n_groups = count_groups(r);
    check_records(r);
}

void restore_start(struct restore *r, const struct restore_job *job)
{
    struct restore_pipeline *rr = r->rr;
    restore_set_job(r, job);
    pthread_mutex_lock(&rr->lock);
    CHECK(r->state == RESTORE_FOUND);
    r->state = RESTORE_RUNNING;
    restore_tell_io(rr);
    pthread_mutex_unlock(&rr->lock);
}

/* Begins again with n_chunks chunks and their own windows: a chunk was lost, and no work is
 * under way. */
static void rewind_to(struct restore *r, int n_chunks)
{
    struct restore_pipeline *rr = r->rr;
    if (rr->recomputing == r)
        restore_drop_piece(rr);
    pthread_mutex_lock(&rr->lock);
    r->job.n_chunks = n_chunks;
    set_cursors(r);
    check_records(r);
    restore_tell_io(rr);
    pthread_mutex_unlock(&rr->lock);
}

/* Returns whether a race is over: the last row is recomputed, or the last group has come back
 * and the rows that were kept out of such a group (invariant 5) are recomputed. Sets out.won. */
static bool race_is_over(struct restore *r, bool reads_done)
{
    bool lacks_rows = r->re.row < r->re.kept_out;
    r->out.won = !restore_recompute_remains(r);
    return r->out.won ||
           (reads_done && !lacks_rows && shared_load(&r->has_lost_reads) == 0);
}

bool restore_is_done(struct restore *r)
{
    pthread_mutex_lock(&r->rr->lock);
    bool done = r->state == RESTORE_RUNNING && r->n_out == 0 && !restore_reads_remain(r);
    pthread_mutex_unlock(&r->rr->lock);
    if (r->is_stopped)
        return true;
    if (r->out.raced_layers > 0)
        return race_is_over(r, done);
    if (!done || restore_recompute_remains(r))
        return false;
    if (!restore_must_rewind(r))
        return true;
    rewind_to(r, shared_load(&r->n_good));
    return false;
}

int restore_layers_ready(const struct restore *r)
{
    int n = 0;
    if (r->state != RESTORE_RUNNING || shared_load(&r->n_good) < r->n_asked ||
        shared_load(&r->has_lost_snapshot) != 0 || r->out.raced_layers > 0 ||
        restore_recompute_remains(r))
        return 0;
    while (n < r->job.plan->n_layers && r->layer_left[n] == 0)
        n++;
    return n;
}

/* [lock] Takes a restore out of the list and gives back its arrived groups. */
static void unlink_restore(struct restore_pipeline *rr, struct restore *r)
{
    struct restore **p = &rr->runs;
    while (*p != r)
        p = &(*p)->next;
    *p = r->next;
    for (struct group *g; (g = group_get(&r->early)) != NULL;)
        restore_group_done(rr, g);
    struct group_list ready = rr->ready;
    rr->ready = (struct group_list){0};
    for (struct group *g; (g = group_get(&ready)) != NULL;) {
        if (g->run == r)
            restore_group_done(rr, g);
        else
            group_put(&rr->ready, g);
    }
}

void restore_trace_of(struct restore *r, struct restore_trace *io,
                      struct restore_trace *compute, int64_t *t_start)
{
    pthread_mutex_lock(&r->rr->lock);
    *io = r->io_trace;
    pthread_mutex_unlock(&r->rr->lock);
    *compute = r->compute_trace;
    *t_start = r->t_start;
}

double restore_bubble(const struct restore_result *r, int64_t makespan_ns)
{
    int64_t compute_ns = r->compute_ns + r->prefill_ns;
    int64_t busier_ns = MAX(r->io_ns, compute_ns);
    return busier_ns < makespan_ns ? 1 - (double)busier_ns / (double)makespan_ns : 0;
}

/* [lock] Returns the tokens of the first n chunks whose records all came from copies in DRAM. */
static int dram_tokens(const struct restore *r, int n)
{
    int tokens = 0;
    for (int c = r->job.first_chunk; r->sources != NULL && c < n; c++)
        tokens += r->sources[c] == SOURCE_DRAM ? r->job.hits[c].n_tokens : 0;
    return tokens;
}

/* [lock] Divides the first n chunks into the result's parts. */
static void fill_parts(const struct restore *r, int n, struct restore_result *out)
{
    out->n_parts = 0;
    for (int c = r->job.first_chunk; r->sources != NULL && c < n; c++) {
        bool from_dram = (r->sources[c] & SOURCE_DRAM) != 0;
        bool from_store = (r->sources[c] & SOURCE_STORE) != 0;
        struct restore_part *p = &out->part[out->n_parts > 0 ? out->n_parts - 1 : 0];
        bool is_alike = p->from_dram == from_dram && p->from_store == from_store;
        if (out->n_parts == 0 || (!is_alike && out->n_parts < RESTORE_PARTS)) {
            p = &out->part[out->n_parts++];
            *p = (struct restore_part){0};
        }
        p->n_tokens += r->job.hits[c].n_tokens;
        p->from_dram = p->from_dram || from_dram;
        p->from_store = p->from_store || from_store;
    }
}

int restore_result_of(struct restore *r, struct restore_result *out, struct err *err)
{
    pthread_mutex_lock(&r->rr->lock);
    *out = r->out;
    out->read_bytes = r->read_bytes;
    out->direct_bytes = r->direct_bytes;
    out->dram_bytes = r->dram_bytes;
    out->page_cache_bytes = r->page_cache_bytes;
    out->dram_tokens = dram_tokens(r, shared_load(&r->n_good));
    fill_parts(r, shared_load(&r->n_good), out);
    out->io_ns = r->io_ns;
    pthread_mutex_unlock(&r->rr->lock);
    out->n_chunks = shared_load(&r->n_good);
    out->has_lost_snapshot = shared_load(&r->has_lost_snapshot) != 0;
    out->n_tokens = restore_tokens(r, out->n_chunks);
    out->total_ns = r->t_start != 0 ? clock_now_ns() - r->t_start : 0;
    out->first_token = 0;
    for (int l = 0; r->t_start != 0 && l < r->job.plan->n_layers; l++) {
        int first = r->start[l] > r->job.first_chunk ? r->start[l] * STORE_CHUNK_TOKENS : 0;
        if (!config_is_recurrent(&r->rr->o.model->cfg, l))
            out->first_token = MAX(first, out->first_token);
        else if (restore_has_snapshot(r, l) && out->n_chunks > r->snapshot_chunk)
            out->snapshot_tokens = restore_tokens(r, r->snapshot_chunk + 1);
    }
    out->bubble = restore_bubble(out, out->total_ns);
    for (int i = 0; i < 3; i++)
        out->n_by_method[i] = (int)(r->rows_by_method[i] / STORE_CHUNK_TOKENS);
    if (r->rc != 0)
        return err_set(err, r->rc, "restoring: compute failed: %s %s", err_name(r->rc),
                       r->why);
    return 0;
}

void restore_end(struct restore *r)
{
    struct restore_pipeline *rr = r->rr;
    restore_drop_work(rr, r);
    pthread_mutex_lock(&rr->lock);
    unlink_restore(rr, r);
    if (r->is_fetching)
        remote_fetch_cancel(r->fetch);
    bool in_flight = r->n_in_flight > 0;
    CHECK(!in_flight || r->owns_hits);
    if (in_flight)
        r->state = RESTORE_ABANDONED;
    pthread_mutex_unlock(&rr->lock);
    if (!in_flight)
        restore_free(r);
}

int restore_run(struct restore_pipeline *rr, const struct restore_job *job,
                struct restore_result *out, struct err *err)
{
    struct restore *r = begin(rr, NULL, RESTORE_FOUND);
    restore_start(r, job);
    while (!restore_is_done(r)) {
        if (!restore_pipeline_work(rr, RESTORE_NO_LIMIT))
            restore_pipeline_wait(rr, 1000000000);
    }
    int rc = restore_result_of(r, out, err);
    restore_end(r);
    return rc;
}
