/* restore_io.c - the I/O thread of a restore pipeline: looks up, reads in the plan's order,
 * hands groups on.
 *
 * It serves restores in the order of their beginning: look-ups first, then reads of the oldest
 * restore that has any left, as far as slots are free. If no restore wants the disk, it fetches
 * state that waiting requests need into the store's DRAM tier. restore_io_step does one of these
 * and never waits. restore_io_wait sleeps on a reader while reads are in flight, else on for_io.
 * The compute lane never waits for this thread.
 *
 * Chunks that the local store lacks are fetched from the remote while their look-up waits:
 *
 *     I/O thread       look-up ends early -> restore_remote_begin;  other look-ups and reads go on
 *     remote's reader  fetches into the store -> fetch_done: the I/O thread looks up again
 *
 * The chunks already found stay pinned meanwhile, so that the fetched ones can be reached. If a
 * restore ends before its fetch, the last of the two frees it. */
#include "restore/restore_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "restore/profile.h"
#include "save/snapshots.h"
#include "save/bugs.h"
#include "save/saver.h"

/* --- news for the I/O thread; what ends with a group, and with a restore ---------------------- */

/* [lock] Ends the I/O thread's wait for the disk. */
static void wake_io(struct restore_pipeline *rr)
{
    if (rr->waits_for_disk)
        io_alarm_ring(&rr->alarm);
    rr->waits_for_disk = false;
}

void restore_tell_io(struct restore_pipeline *rr)
{
    rr->n_io_news++;
    pthread_cond_signal(&rr->for_io);
    wake_io(rr);
}

void restore_group_done(struct restore_pipeline *rr, struct group *g)
{
    for (int i = 0; i < g->n_chunks; i++)
        store_read_release(&g->reads[i]);
    g->run->n_out--;
    g->run = NULL;
    rr->n_io_news++;
    pthread_cond_signal(&rr->for_io);
    if (rr->free.first == NULL) /* the I/O thread may be waiting for a free slot */
        wake_io(rr);
    group_put(&rr->free, g);
}

void restore_free(struct restore *r)
{
    struct remote_fetched unused;
    if (r->fetch != NULL)
        remote_fetch_end(r->fetch, &unused);
    if (r->owns_hits)
        store_release(r->rr->o.store, r->hits, r->found.n_hits);
    store_release(r->rr->o.store, &r->snapshot, 1);
    pthread_mutex_destroy(&r->fault_lock);
    free(r->sources);
    free(r->takes_kv);
    free(r->tokens);
    free(r->hits);
    free(r->keys);
    free(r);
}

/* --- chunks that the remote has --------------------------------------------------------------- */

/* The remote calls it on its own thread when the fetch has ended. Frees a restore that was ended
 * before and has nothing else in flight. */
static void fetch_done(void *arg)
{
    struct restore *r = arg;
    struct restore_pipeline *rr = r->rr;
    pthread_mutex_lock(&rr->lock);
    r->is_fetching = false;
    r->t_heard = clock_now_ns();
    r->n_in_flight--;
    bool is_last = r->state == RESTORE_ABANDONED && r->n_in_flight == 0;
    if (!is_last)
        rr->n_fetches--;
    restore_tell_io(rr);
    pthread_mutex_unlock(&rr->lock);
    if (!is_last)
        return;
    restore_free(r);
    pthread_mutex_lock(&rr->lock);
    rr->n_fetches--; /* the pipeline is not freed while n_fetches is above 0 */
    restore_tell_io(rr);
    pthread_mutex_unlock(&rr->lock);
}

/* Returns whether to ask the remote for the chunks that a look-up did not find. */
static bool is_wanted(const struct restore *r)
{
    const struct restore_found *f = &r->found;
    int n_have = r->want.n_have / STORE_CHUNK_TOKENS;
    return r->rr->o.remote != NULL && f->n_hits < r->n_keys && f->n_hits >= n_have &&
           strcmp(f->why, STORE_WHY_UNCOMMITTED) != 0;
}

/* Appends to found.why the reason why the remote cannot provide the chunks either. Appends nothing
 * if the remote has no reason, or simply lacks the chunks. */
static void tell_why(struct restore *r, enum remote_miss why, const char *text)
{
    struct restore_found *f = &r->found;
    size_t n = strlen(f->why);
    if (why != REMOTE_MISS_NONE && why != REMOTE_MISS_ABSENT)
        snprintf(f->why + n, sizeof f->why - n, "; %s", text);
}

/* Sets the prices of the chunks to fetch, those behind the first n_hits: the times to compute them
 * and to restore them. While moved tokens are missing, computing is a replay of all stairs. */
static void price(const struct restore *r, struct remote_want *w)
{
    const struct restore_want *want = &r->want;
    int n_have = want->n_have / STORE_CHUNK_TOKENS, n_all = r->n_keys - n_have;
    int n_hits = r->found.n_hits, n_moved = want->n_moved;
    double share = (double)(n_hits - n_have) / n_all;
    bool is_replay = n_have < n_moved;
    if (want->recompute_s <= 0)
        w->recompute_s = 0;
    else if (is_replay)
        w->recompute_s = remote_replay_s(want->recompute_s, want->stair_s, n_hits - n_moved,
                                         r->n_keys - n_moved);
    else
        w->recompute_s = remote_rest_s(want->recompute_s, want->recompute_half_s, share);
    w->restore_s = want->restore_s * (1 - share);
}

bool restore_remote_begin(struct restore *r)
{
    struct restore_pipeline *rr = r->rr;
    const struct restore_found *f = &r->found;
    char why[160] = "";
    if (!is_wanted(r))
        return false;
    struct remote_want w = {.keys = r->keys + 1 + f->n_hits,
                            .n = r->n_keys - f->n_hits,
                            .fingerprint = rr->o.fingerprint,
                            .owner = r->want.owner,
                            .use = r->want.use,
                            .done = fetch_done,
                            .arg = r};
    price(r, &w);
    pthread_mutex_lock(&rr->lock); /* so that fetch_done finds r->fetch set */
    if (r->state == RESTORE_FINDING)
        r->fetch = remote_fetch_begin(rr->o.remote, &w, why, sizeof why);
    bool waits = r->fetch != NULL;
    if (waits) {
        r->is_fetching = true;
        r->n_in_flight++;
        rr->n_fetches++;
    }
    pthread_mutex_unlock(&rr->lock);
    if (why[0] != 0)
        tell_why(r, REMOTE_MISS_RESTING, why);
    return waits;
}

void restore_remote_take(struct restore *r)
{
    struct restore_found *f = &r->found;
    struct remote_fetched got;
    int n_more = 0;
    remote_fetch_end(r->fetch, &got);
    r->fetch = NULL;
    if (got.n_chunks > 0)
        n_more = store_lookup(r->rr->o.store, &r->want.use, r->keys + 1 + f->n_hits,
                              r->n_keys - f->n_hits, r->hits + f->n_hits, f->why,
                              sizeof f->why);
    f->n_hits += n_more;
    f->n_remote = MIN(n_more, got.n_chunks);
    if (f->n_hits < r->n_keys)
        tell_why(r, got.why, got.text);
}

void restore_remote_offer(struct restore *r)
{
    struct remote *remote = r->rr->o.remote;
    if (!remote_wants(remote, REMOTE_WHEN_USED))
        return;
    for (int i = 0; i < r->found.n_hits && r->hits[i].n_tokens == STORE_CHUNK_TOKENS; i++)
        remote_offer(remote, &r->hits[i].key, r->want.use.ttl_s);
}

int64_t restore_heard_ns(struct restore *r)
{
    pthread_mutex_lock(&r->rr->lock);
    int64_t t = r->is_fetching ? remote_fetch_heard_ns(r->fetch) : r->t_heard;
    pthread_mutex_unlock(&r->rr->lock);
    return t;
}

/* --- the I/O thread --------------------------------------------------------------------------- */

/* A fetch that found no room tries again after this long. */
enum { ROOM_WAIT_NS = 20000000 };
/* Chunks that are read to measure the store ahead of the first restore. */
enum { SAMPLE_CHUNKS = 32 };

/* The thread waits this long for a disk that does not answer; news wake it earlier. */
enum { DISK_WAIT_NS = 100000000 };
/* The device's reader of files cannot be woken by news, so the thread waits at most this long for
 * it. */
enum { LISTEN_NS = 5000000 };

/* Issuing reads and taking their results takes this thread microseconds at a time. With the usual
 * slice of milliseconds it waits for a whole slice of each thread that computes, and no read is in
 * flight meanwhile. */
enum { SLICE_NS = 100000 };

/* [lock] Wakes the compute lane. */
static void tell_compute(struct restore_pipeline *rr)
{
    rr->n_news++;
    pthread_cond_signal(&rr->for_compute);
}

/* --- looking up ------------------------------------------------------------------------------- */

/* Looks for a partial chunk behind the full ones, and adds it to the hits. In a truncated context
 * it looks only behind the moved chunks: a chunk of the same key before them would belong to
 * another context. */
static void find_tail(struct restore *r)
{
    struct store *store = r->rr->o.store;
    struct restore_found *f = &r->found;
    bool is_first = r->want.n_moved > 0 && f->n_hits == r->want.n_moved;
    const struct sha256 *parent = is_first ? &r->want.stair : &r->keys[f->n_hits];
    if (f->n_hits < r->want.n_moved)
        return;
    int first = f->n_hits * STORE_CHUNK_TOKENS, left = r->want.n_tokens - first;
    int n = MIN(left + r->want.has_next, STORE_CHUNK_TOKENS - 1), n_found = 0;
    struct sha256 key;
    if (left > 0 &&
        store_find_partial(store, parent, r->want.tokens + first, n, &key, &n_found) &&
        store_lookup(store, &r->want.use, &key, 1, &r->hits[f->n_hits], NULL, 0) == 1) {
        f->n_hits++;
        f->n_beyond = MAX(n_found - left, 0);
    }
}

/* Measures the store's speed on these chunks, and sets rr->tier and rr->has_tier. */
static int measure(struct restore_pipeline *rr, const struct store_hit *hits, int n,
                   struct err *err)
{
    struct platform p;
    platform_init(&p);
    int rc = profile_io(&p, rr->o.model, rr->o.store, hits, n, err);
    if (rc == 0)
        rr->tier = p.tier[0];
    rr->has_tier = rc == 0;
    return rc;
}

/* [lock, released meanwhile] Measures the store ahead of the first restore, at most once. If
 * nothing is stored yet, or it cannot be read, the first hits are measured later. Returns whether
 * the lock was released. */
static bool measure_ahead(struct restore_pipeline *rr)
{
    struct store_hit hits[SAMPLE_CHUNKS];
    if (!rr->wants_measure)
        return false;
    rr->wants_measure = false;
    pthread_mutex_unlock(&rr->lock);
    struct err unused;
    int n = store_sample(rr->o.store, &rr->o.fingerprint, SAMPLE_CHUNKS, hits);
    if (n > 0 && !rr->has_tier)
        (void)measure(rr, hits, n, &unused);
    store_release(rr->o.store, hits, n);
    pthread_mutex_lock(&rr->lock);
    return true;
}

/* Returns the index of the first differing token if the chain ends at a chunk that was never
 * stored; else -1. */
static int differs_at(const struct restore *r, int n_full)
{
    int first = n_full * STORE_CHUNK_TOKENS;
    if (n_full == r->n_keys || r->want.n_moved > 0 ||
        strcmp(r->found.why, STORE_WHY_ABSENT) != 0)
        return -1;
    int same = store_differs_at(r->rr->o.store, &r->keys[n_full], r->want.tokens + first,
                                r->want.n_tokens - first);
    return same < 0 ? -1 : first + same;
}

/* Finds the full chunks. Returns false if the remote is asked for missing ones first. */
static bool find_full(struct restore *r)
{
    struct restore_found *f = &r->found;
    if (r->fetch != NULL) {
        restore_remote_take(r);
        return true;
    }
    if (!remote_is_current(r->rr->o.remote)) {
        f->err.code = err_set(&f->err, ERR_BUSY,
                              "saved state is not used yet: the remote, which knows what "
                              "other servers have erased, was not reached since the start");
        return true;
    }
    f->n_hits = store_lookup(r->rr->o.store, &r->want.use, r->keys + 1, r->n_keys, r->hits,
                             f->why, sizeof f->why);
    restore_remote_offer(r);
    return !restore_remote_begin(r);
}

/* Leaves out the last hits if windows that tokens behind them see were dropped. */
static void cut_to_windows(struct restore *r)
{
    struct restore_found *f = &r->found;
    const struct model_config *c = &r->rr->o.model->cfg;
    int n = f->n_hits;
    int64_t n_tokens = (int64_t)n * STORE_CHUNK_TOKENS - f->n_beyond;
    if (n > 0)
        n_tokens += r->hits[n - 1].n_tokens - STORE_CHUNK_TOKENS;
    int m = save_resumable(c, &r->want.saved, r->hits, n,
                           r->want.n_have / STORE_CHUNK_TOKENS, n_tokens);
    if (m == n)
        return;
    store_release(r->rr->o.store, r->hits + m, n - m);
    f->n_hits = m;
    f->n_beyond = 0;
    f->n_remote = MAX(0, f->n_remote - (n - m));
    snprintf(f->why, sizeof f->why, SAVE_WHY_WINDOWS, (int)n_tokens, (int)c->sliding_window,
             m * STORE_CHUNK_TOKENS);
}

/* Returns whether a snapshot stands behind hit n - 1 with the state of every recurrent layer. */
static bool has_snapshot(const struct restore *r, int n, struct sha256 *key)
{
    const struct model_config *c = &r->rr->o.model->cfg;
    struct store_hit hit = {0};
    *key = store_state_key(&r->hits[n - 1].key);
    bool has = store_pin(r->rr->o.store, key, &hit);
    for (int l = 0; has && l < c->n_layers; l++)
        has = !config_is_recurrent(c, l) || store_mask_has(&hit.mask, l, STORE_HIDDEN);
    store_release(r->rr->o.store, &hit, 1);
    return has;
}

/* Finds the last snapshot behind the hits, and pins it in r->snapshot. Drops the snapshots that
 * stand too near to others for their age: the store evicts them first. */
static void find_snapshot(struct restore *r)
{
    struct store *store = r->rr->o.store;
    struct restore_found *f = &r->found;
    struct sha256 keys[SNAPSHOT_MOST];
    int64_t at[SNAPSHOT_MOST];
    bool drop[SNAPSHOT_MOST];
    int first = SNAPSHOT_MOST;
    int end = config_is_hybrid(&r->rr->o.model->cfg) ? f->n_hits : 0, last = 0;
    for (int n = end; n > 0 && first > 0; n--) {
        if (!has_snapshot(r, n, &keys[first - 1]))
            continue;
        first--;
        at[first] = (int64_t)(n - 1) * STORE_CHUNK_TOKENS + r->hits[n - 1].n_tokens;
        last = MAX(last, n);
    }
    if (last == 0)
        return;
    snapshot_thin(at + first, SNAPSHOT_MOST - first, at[SNAPSHOT_MOST - 1], drop + first);
    for (int i = first; i < SNAPSHOT_MOST; i++)
        if (drop[i])
            store_drop(store, &keys[i], 1);
    bool has = store_lookup(store, &r->want.use, &keys[SNAPSHOT_MOST - 1], 1, &r->snapshot,
                            NULL, 0) == 1;
    f->n_snapshot = has ? last : 0;
    if (has)
        f->snapshot_share = save_stored_share(&r->snapshot, STORE_HIDDEN, true,
                                              r->rr->o.model);
}

/* Runs the look-up. Measures the store's speed on the full chunks if the caller wants it and it is
 * unknown. Returns false if the look-up must run again after the remote has answered. */
static bool find(struct restore *r)
{
    struct restore_pipeline *rr = r->rr;
    struct restore_found *f = &r->found;
    if (!find_full(r))
        return false;
    int n_full = f->n_hits;
    f->differs_at = f->err.code == 0 ? differs_at(r, n_full) : -1;
    /* A tail alone does not measure the store's speed, so it is not looked up while the speed is
     * unknown. */
    if (f->err.code == 0 && (n_full > 0 || rr->has_tier || !r->want.measure_io))
        find_tail(r);
    if (f->err.code == 0 && n_full > 0 && r->want.measure_io && !rr->has_tier)
        f->err.code = measure(rr, r->hits, n_full, &f->err);
    f->measured = r->want.measure_io && rr->has_tier;
    f->tier = rr->tier;
    if (f->err.code != 0) { /* no record can be read, or none may be used yet */
        store_release(rr->o.store, r->hits, f->n_hits);
        f->n_hits = 0;
    }
    cut_to_windows(r);
    find_snapshot(r);
    f->hits = r->hits;
    return true;
}

/* --- the next read ---------------------------------------------------------------------------- */

/* Chunks [first, end) are still to be read. Other threads may raise `first` and lower `end` at any
 * moment. So the caller loads both once, and uses the same values to test whether reads remain and
 * to cut the group. Otherwise a group could be empty, and the restore would never finish. */
struct good_chunks {
    int first, end;
};

static bool reads_remain(const struct restore *r, struct good_chunks good)
{
    if (r->state != RESTORE_RUNNING || good.end <= r->job.first_chunk ||
        good.first >= good.end || restore_must_rewind(r))
        return false;
    if (r->next_layer >= r->n_order)
        return false;
    int end = restore_read_end(r, r->order[r->next_layer], good.end);
    return r->next_layer + (r->next_chunk < end ? 0 : 1) < r->n_order;
}

static struct good_chunks load_good(struct restore *r)
{
    struct good_chunks good = {.first = shared_load(&r->n_raced)};
    if (shared_load(&r->has_lost_reads) == 0)
        good.end = shared_load(&r->n_good);
    return good;
}

bool restore_reads_remain(struct restore *r)
{
    return reads_remain(r, load_good(r));
}

/* [lock] Takes the next run of good chunks of one layer and kind into g. At least one run must be
 * left. */
static void next_group(struct restore *r, struct group *g, struct good_chunks good)
{
    int c = r->next_chunk;
    if (c >= restore_read_end(r, r->order[r->next_layer], good.end)) { /* the next layer */
        r->next_layer++;
        c = r->start[r->order[r->next_layer]];
    }
    c = MAX(c, good.first);
    g->run = r;
    g->layer = r->order[r->next_layer];
    g->first_chunk = c;
    int end = restore_read_end(r, g->layer, good.end);
    char how = restore_method_of(r, g->layer, c);
    while (c < end && c - g->first_chunk < GROUP &&
           restore_method_of(r, g->layer, c) == how)
        c++;
    g->n_chunks = g->n_left = c - g->first_chunk;
    CHECK(g->n_chunks > 0);
    g->n_taken = g->n_projected = 0;
    g->kind = how == 'K' ? STORE_KV : STORE_HIDDEN;
    g->is_snapshot = how == 'S';
    restore_up_place(r->rr, g);
    r->next_chunk = c;
}

/* [lock] Takes a group to be read. Returns NULL if no slot is free or no restore has reads left. */
static struct group *take_group(struct restore_pipeline *rr)
{
    struct good_chunks good = {0};
    struct restore *r = rr->runs; /* the oldest that has reads left */
    while (r != NULL && !reads_remain(r, good = load_good(r)))
        r = r->next;
    struct group *g = r != NULL ? group_get(&rr->free) : NULL;
    if (g == NULL)
        return NULL;
    if (state_has_bug(STATE_BUG_TWO_READS))
        good.end = shared_load(&r->n_good);
    next_group(r, g, good);
    r->n_out++;
    g->t_issued = clock_now_ns();
    if (rr->n_in_flight++ == 0)
        rr->t_heard = g->t_issued;
    if (r->n_in_flight++ == 0)
        r->io_since = g->t_issued;
    return g;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Submits the reads of g: straight into device memory if may_be_direct and the device can, else
 * through the reader, which is opened if there is none. */
static int submit(struct restore_pipeline *rr, struct group *g, bool may_be_direct,
                  struct err *err)
{
    struct store_read *reads[GROUP];
    size_t room = g->is_snapshot ? rr->slot_bytes : rr->record_room[g->kind];
    for (int i = 0; i < g->n_chunks; i++) {
        const struct store_hit *hit = g->is_snapshot
                                          ? &g->run->snapshot
                                          : &g->run->job.hits[g->first_chunk + i];
        g->reads[i] = (struct store_read){.hit = hit,
                                          .layer = g->layer,
                                          .kind = g->kind,
                                          .dst = g->slot + (size_t)i * room,
                                          .dst_bytes = room,
                                          .user = g};
        reads[i] = &g->reads[i];
    }
    if (may_be_direct && restore_direct_submit(rr, g))
        return 0;
    g->is_direct = false;
    int rc = rr->reader == NULL ? restore_open_reader(rr, err) : 0;
    if (rc == 0)
        store_reader_submit(rr->reader, reads, g->n_chunks);
    return rc;
}

/* [lock] Counts a complete read. */
static void count_read(struct restore *r, int chunk, const struct store_read *read)
{
    if (read->status != 0)
        return;
    r->read_bytes += read->n_bytes;
    r->dram_bytes += read->copy != NULL ? read->n_bytes : 0;
    r->page_cache_bytes += read->was_cached ? read->n_bytes : 0;
    r->sources[chunk] |= read->copy != NULL ? SOURCE_DRAM : SOURCE_STORE;
}

/* [lock] Notes that the I/O thread is done with a group. Returns the group's restore if it is to be
 * freed now, else NULL. */
static struct restore *group_arrived(struct restore_pipeline *rr, struct group *g)
{
    struct restore *r = g->run;
    rr->n_in_flight--;
    int64_t now = clock_now_ns();
    rr->t_heard = now;
    r->n_read++;
    if (--r->n_in_flight == 0)
        r->io_ns += now - r->io_since;
    restore_trace_add(&r->io_trace, g->t_issued, now, g->layer,
                      g->kind == STORE_HIDDEN ? 'H' : 'K');
    for (int i = 0; i < g->n_chunks; i++)
        count_read(r, g->first_chunk + i, &g->reads[i]);
    for (int i = 0; g->is_direct && i < g->n_chunks; i++)
        r->direct_bytes += g->reads[i].status == 0 ? g->reads[i].n_bytes : 0;
    if (r->state != RESTORE_ABANDONED) {
        restore_hand_over(rr, g);
        tell_compute(rr);
        return NULL;
    }
    restore_group_done(rr, g);
    return r->n_in_flight == 0 ? r : NULL;
}

static void arrived(struct restore_pipeline *rr, struct group *g)
{
    pthread_mutex_lock(&rr->lock);
    struct restore *finished = group_arrived(rr, g);
    pthread_mutex_unlock(&rr->lock);
    if (finished != NULL)
        restore_free(finished);
}

/* Collects a group that the device's reader has read, and sets *found to whether there was one. If
 * the group must be read in the ordinary way, submits it again. */
static int collect_direct(struct restore_pipeline *rr, bool *found, struct err *err)
{
    bool again;
    struct group *g = restore_direct_collect(rr, &again);
    *found = g != NULL;
    if (g != NULL && again)
        return submit(rr, g, false, err);
    if (g != NULL) {
        g->n_left = 0;
        arrived(rr, g);
    }
    return 0;
}

/* Collects complete reads, and sets *found to whether there were any. A group whose reads are all
 * complete goes to the compute lane. */
static int collect(struct restore_pipeline *rr, bool *found, struct err *err)
{
    struct store_read *done[2 * GROUP];
    int n = 0;
    int rc = collect_direct(rr, found, err);
    if (rc == 0 && rr->reader != NULL)
        rc = store_reader_poll(rr->reader, done, 2 * GROUP, &n, err);
    for (int i = 0; i < n; i++) {
        struct group *g = done[i]->user;
        if (--g->n_left == 0)
            arrived(rr, g);
    }
    *found = *found || n > 0;
    return rc;
}

/* Handles a fault of the whole reader. No single chunk is to blame, but no read in flight is known
 * to be complete, so the restores of these reads use none of them. Reads in flight are waited for;
 * the next read opens a new reader. */
static void fail_all(struct restore_pipeline *rr, const struct err *why)
{
    store_reader_close(rr->reader);
    rr->reader = NULL;
    char text[160];
    snprintf(text, sizeof text, "reading: %.130s", why->msg);
    pthread_mutex_lock(&rr->lock);
    for (int i = 0; i < rr->n_slots; i++) {
        struct group *g = &rr->groups[i];
        if (g->run == NULL || g->n_left == 0 || g->is_direct)
            continue;
        for (int j = 0; j < g->n_chunks; j++) /* no record of the group was checked */
            g->reads[j].status = ERR_CRASHED;
        g->n_left = 0;
        restore_give_up(g->run, text);
        struct restore *finished = group_arrived(rr, g);
        if (finished != NULL)
            restore_free(finished);
    }
    pthread_mutex_unlock(&rr->lock);
}

/* --- the step, and the thread ----------------------------------------------------------------- */

/* [lock, released meanwhile] Does the next look-up. Returns false if there is none. */
static bool find_next(struct restore_pipeline *rr)
{
    struct restore *r = rr->runs;
    while (r != NULL && (r->state != RESTORE_FINDING || r->is_fetching))
        r = r->next;
    if (r == NULL)
        return false;
    r->n_in_flight++; /* keeps the restore alive during the look-up */
    pthread_mutex_unlock(&rr->lock);
    bool found = find(r);
    pthread_mutex_lock(&rr->lock);
    r->n_in_flight--;
    if (r->state == RESTORE_ABANDONED) {
        if (r->n_in_flight == 0)
            restore_free(r);
    } else if (found) {
        r->state = RESTORE_FOUND;
        tell_compute(rr);
    }
    return true;
}

/* Does a piece of a fetch; called while no restore wants the disk. */
static enum step fetch(struct restore_pipeline *rr)
{
    bool worked = rr->fetcher != NULL &&
                  store_fetch_step(rr->fetcher) == STORE_FETCH_WORKED;
    return worked ? STEP_WORKED : STEP_WAITS;
}

enum step restore_io_step(struct restore_pipeline *rr)
{
    struct err err = {0};
    pthread_mutex_lock(&rr->lock);
    rr->n_io_seen = rr->n_io_news;
    bool in_flight = rr->n_in_flight > 0, ends = rr->quit && !in_flight;
    bool worked = !ends && find_next(rr);
    /* The look-up above and the measurement share one hold of the lock. So at most the first
     * restore can be looked up before the measurement. */
    worked = (!ends && measure_ahead(rr)) || worked;
    struct group *g = ends || worked ? NULL : take_group(rr);
    pthread_mutex_unlock(&rr->lock);
    if (ends)
        return STEP_ENDED;
    if (worked)
        return STEP_WORKED;
    if (g == NULL && !in_flight)
        return fetch(rr);
    int rc = g != NULL ? submit(rr, g, true, &err) : collect(rr, &worked, &err);
    if (rc != 0)
        fail_all(rr, &err);
    return g != NULL || worked || rc != 0 ? STEP_WORKED : STEP_WAITS;
}

/* [lock, released meanwhile] Sleeps until there may be news. Staging memory that no restore has
 * used for a time is given back. */
static void wait_for_news(struct restore_pipeline *rr)
{
    bool may_rest = rr->o.rest_ns > 0 && rr->reader != NULL && rr->runs == NULL;
    if (!may_rest) {
        pthread_cond_wait(&rr->for_io, &rr->lock);
    } else if (clock_cond_wait(&rr->for_io, &rr->lock, rr->o.rest_ns) &&
               rr->n_io_news == rr->n_io_seen) {
        pthread_mutex_unlock(&rr->lock); /* only this thread gives slots to restores */
        restore_rest(rr);
        pthread_mutex_lock(&rr->lock);
    }
}

void restore_io_wait(struct restore_pipeline *rr)
{
    struct err err = {0};
    pthread_mutex_lock(&rr->lock);
    bool in_flight = rr->n_in_flight > 0;
    if (state_has_bug(STATE_BUG_LOST_NEWS))
        rr->n_io_seen = rr->n_io_news;
    bool fetches = rr->fetcher != NULL && store_fetch_in_flight(rr->fetcher);
    bool has_news = rr->n_io_news != rr->n_io_seen;
    bool lacks_room = rr->fetcher != NULL && store_fetch_lacks_room(rr->fetcher);
    if (!in_flight && !fetches && !has_news && lacks_room)
        /* no event tells that room in DRAM became free */
        (void)clock_cond_wait(&rr->for_io, &rr->lock, ROOM_WAIT_NS);
    if (!in_flight && !fetches && !lacks_room && !has_news)
        wait_for_news(rr);
    rr->waits_for_disk = (in_flight || fetches) && !has_news;
    pthread_mutex_unlock(&rr->lock);
    if (has_news || (!in_flight && !fetches))
        return;
    if (!in_flight)
        store_fetch_wait(rr->fetcher, DISK_WAIT_NS);
    else if (rr->n_direct > 0)
        restore_direct_wait(rr, LISTEN_NS);
    else if (store_reader_await(rr->reader, DISK_WAIT_NS, &err) != 0)
        fail_all(rr, &err);
}

void *restore_io_main(void *pipeline)
{
    enum step did;
    thread_wake_soon(SLICE_NS);
    while ((did = restore_io_step(pipeline)) != STEP_ENDED) {
        if (did == STEP_WAITS)
            restore_io_wait(pipeline);
    }
    return NULL;
}
