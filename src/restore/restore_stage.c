/* restore_stage.c - staged restores: reads that are made before the context has its blocks
 * (AttentionStore, section 3.2.1, the read buffer).
 *
 *   restore_found --> restore_stage --> (reads are parked) --> restore_place --> as any other
 *
 * Restores with a place have first use of staging memory. So staged restores
 * - read only while no restore with a place has reads left, and STAGED_READS groups at a time: a
 *   restore that gets its place waits for no more reads than these;
 * - leave a quarter of the slots free, and at least KEPT_SLOTS. */
#include "base/check.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "restore/restore_impl.h"

enum { STAGED_READS = 2, KEPT_SLOTS = 2 };

void restore_stage(struct restore *r, const struct restore_job *job, uint64_t bytes)
{
    struct restore_pipeline *rr = r->rr;
    CHECK(job->table == NULL && r->owns_hits);
    restore_set_job(r, job);
    /* The time of reads ahead of the place says nothing about later reads. */
    r->may_replan = false;
    pthread_mutex_lock(&rr->lock);
    CHECK(r->state == RESTORE_FOUND);
    r->state = RESTORE_STAGED;
    r->stage_left = bytes;
    restore_tell_io(rr);
    pthread_mutex_unlock(&rr->lock);
}

bool restore_stands(const struct restore *r)
{
    return store_hits_stand(r->rr->o.store, r->found.hits, r->found.n_hits);
}

/* The restore's time begins now: during the reads made ahead the sequence waited for its place. */
void restore_place(struct restore *r, const struct kv_table *table)
{
    struct restore_pipeline *rr = r->rr;
    pthread_mutex_lock(&rr->lock);
    CHECK(r->state == RESTORE_STAGED);
    r->job.table = table;
    r->t_start = clock_now_ns();
    r->io_ns = 0;
    r->io_since = r->t_start;
    r->io_trace.n = 0;
    r->staged_bytes = r->read_bytes;
    r->state = RESTORE_RUNNING;
    for (struct group *g; (g = group_get(&r->parked)) != NULL;)
        restore_hand_over(rr, g);
    restore_tell_io(rr);
    rr->n_news++;
    pthread_cond_signal(&rr->for_compute);
    pthread_mutex_unlock(&rr->lock);
}

int restore_stage_groups(const struct restore_pipeline *r)
{
    int kept = MAX(r->n_slots / 4, KEPT_SLOTS);
    return r->n_slots - kept;
}

/* [lock] Returns how many slots staged restores have. */
static int count_slots(const struct restore_pipeline *rr)
{
    int n = 0;
    for (const struct restore *r = rr->runs; r != NULL; r = r->next)
        n += r->state == RESTORE_STAGED ? r->n_out : 0;
    return n;
}

bool restore_may_stage(const struct restore_pipeline *rr)
{
    return rr->n_in_flight < STAGED_READS && count_slots(rr) < restore_stage_groups(rr);
}

void restore_stage_takes(struct restore *r, const struct group *g)
{
    uint64_t bytes = (uint64_t)g->n_chunks * r->rr->record_room[g->kind];
    if (r->state == RESTORE_STAGED)
        r->stage_left -= MIN(bytes, r->stage_left);
}
