/* restore_race.c - a restore whose reads hang or crawl: the state of its reads, recomputation
 * that races them, and ending without them.
 *
 *   reads        [K8 ][K9 ]. . . . . . . . . . . . . . . . . [K10]         late: staging only
 *   compute lane      [k8][k9]    [R0 .. R10 of rows 0..511][R0 .. R10 of rows 512..]
 *                             ^ silent: a race                                       ^ done
 *
 * A race makes all layers up to the last missing one a recomputed prefix and begins with the
 * first row. Its pieces take rows through all these layers, so chunks before n_raced are
 * complete, and the I/O thread no longer reads them. Rows from there on may come from either
 * lane.
 *
 * Everything here belongs to the compute lane. */
#include <stdio.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "restore/restore_impl.h"

/* --- the state of the reads ------------------------------------------------------------------- */

/* Returns whether arrived records may be used beside recomputed rows: windows want rows of their
 * own, and a recurrent state advances once. */
static bool may_race(const struct restore *r)
{
    const struct model_config *c = &r->rr->o.model->cfg;
    return c->sliding_window == 0 && !config_is_hybrid(c);
}

/* [lock] Returns the time at which the wait for a read began; 0: no read is due. */
static int64_t waits_since(struct restore *r)
{
    const struct restore_pipeline *rr = r->rr;
    if (rr->n_in_flight > 0)
        return MAX(rr->t_heard, r->t_start);
    /* No slot is free: the compute lane has all of them. */
    if (rr->free.first == NULL || !restore_reads_remain(r))
        return 0;
    /* Nothing is in flight: the I/O thread is busy with other work of the store. */
    return MAX(rr->t_heard, r->t_start);
}

void restore_reads_of(struct restore *r, struct restore_reads *out)
{
    struct restore_pipeline *rr = r->rr;
    int64_t now = clock_now_ns();
    pthread_mutex_lock(&rr->lock);
    bool is_running = r->state == RESTORE_RUNNING;
    bool remain = r->n_in_flight > 0 || restore_reads_remain(r);
    int64_t since = is_running && remain ? waits_since(r) : 0;
    int n_left = r->n_groups - r->n_read;
    *out = (struct restore_reads){.elapsed_ns = is_running ? now - r->t_start : 0,
                                  .silent_ns = since != 0 ? now - since : 0,
                                  .n_read = r->n_read,
                                  .n_left = !remain      ? 0
                                            : n_left > 0 ? n_left
                                                         : 1,
                                  .can_race = may_race(r),
                                  .is_idle = rr->ready.first == NULL && rr->n_mine == 0 &&
                                             rr->n_leaving == 0,
                                  .is_raced = r->out.raced_layers > 0};
    pthread_mutex_unlock(&rr->lock);
    out->is_idle = out->is_idle && !restore_recompute_remains(r);
}

/* --- a race ----------------------------------------------------------------------------------- */

/* Returns the last layer that is not in the cache for every chunk, or -1. */
static int last_missing(const struct restore *r)
{
    int last = -1;
    for (int i = 0; i < r->n_order; i++)
        if (r->layer_left[r->order[i]] > 0 && r->order[i] > last)
            last = r->order[i];
    return last;
}

bool restore_race(struct restore *r)
{
    int last = last_missing(r), first = r->job.first_chunk;
    if (r->state != RESTORE_RUNNING || r->out.raced_layers > 0 || r->is_stopped ||
        !may_race(r) || last < 0 || shared_load(&r->n_good) <= first ||
        restore_recompute_remains(r))
        return false;
    if (r->rr->recomputing == r) /* the piece lies behind a chunk that was lost meanwhile */
        restore_drop_piece(r->rr);
    /* With fault_lock held, no chunk is lost while the race begins. A chunk that was lost before
     * has lowered n_good. */
    pthread_mutex_lock(&r->fault_lock);
    r->out.raced_layers = r->n_recompute = last + 1;
    r->re.row = first * STORE_CHUNK_TOKENS;
    shared_store(&r->n_raced, first);
    shared_store(&r->is_raced, 1);
    pthread_mutex_unlock(&r->fault_lock);
    return true;
}

void restore_race_pieces_end(struct restore *r, int n_tokens)
{
    if (r->out.raced_layers == 0)
        return;
    int n = r->re.row >= n_tokens ? r->job.n_chunks : r->re.row / STORE_CHUNK_TOKENS;
    shared_store(&r->n_raced, n);
}

int restore_race_row(const struct restore *r)
{
    const struct restore_pipeline *rr = r->rr;
    if (r->out.raced_layers == 0)
        return 0;
    bool keeps_out = rr->check != NULL && rr->recomputing == r;
    return r->re.row + (keeps_out ? rr->pass.o.n_rows : 0);
}

/* --- ending a restore before its reads -------------------------------------------------------- */

void restore_stop(struct restore *r, const char *why)
{
    int first = r->job.first_chunk;
    if (r->state != RESTORE_RUNNING || r->is_stopped)
        return;
    pthread_mutex_lock(&r->fault_lock);
    int n = shared_load(&r->n_raced), n_good = shared_load(&r->n_good);
    n = MAX(n, first);
    shared_store(&r->n_good, MIN(n, n_good));
    snprintf(r->out.fault, sizeof r->out.fault, "%s", why);
    r->is_stopped = true;
    pthread_mutex_unlock(&r->fault_lock);
}
