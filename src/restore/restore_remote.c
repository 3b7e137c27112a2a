/* restore_remote.c - fetches the chunks of a context that the local store lacks, while its
 * look-up waits.
 *
 *     I/O thread       look-up ends early -> remote_fetch_begin;  other look-ups and reads go on
 *     remote's reader  fetches into the store -> fetch_done: the I/O thread looks up again
 *
 * The chunks already found stay pinned meanwhile, so that the fetched ones can be reached. If a
 * restore ends before its fetch, the last of the two frees it. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "restore/restore_impl.h"

/* Runs on the remote's thread. */
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
    return r->rr->o.remote != NULL && f->err.code == 0 && f->n_hits < r->n_keys &&
           f->n_hits >= n_have && strcmp(f->why, STORE_WHY_UNCOMMITTED) != 0;
}

/* Adds the reason why the remote cannot provide the chunks either. */
static void tell_why(struct restore *r, enum remote_miss why, const char *text)
{
    struct restore_found *f = &r->found;
    size_t n = strlen(f->why);
    if (why != REMOTE_MISS_NONE && why != REMOTE_MISS_ABSENT)
        snprintf(f->why + n, sizeof f->why - n, "; %s", text);
}

/* Sets the prices of the chunks to fetch: those behind the first n_hits. */
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
        f->err.code = store_lookup_for(
            r->rr->o.store, &r->want.use, r->keys + 1 + f->n_hits, r->n_keys - f->n_hits,
            r->hits + f->n_hits, &n_more, f->why, sizeof f->why, &f->err);
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
