/* restore_up.c - from pinned staging to the device, where that has memory of its own (paper section 5).
 *
 *   copy stream    [ layer n ][ layer n+1 ][ layer n+2 ] ...
 *   compute stream            [ layer n   ][ layer n+1 ] ...     loaded (K and V) or projected (H)
 *
 * A group's slot has a twin in device memory, on each stage; what goes up lies on the stage that has the layer,
 * whose own bus brings it there, beside the other stages'.  Its records go up on the copy stream, the compute stream
 * waits for them by an event, and a second event says when the compute is done: only then does the
 * group go back to the I/O thread.  So nobody waits for the device, but for when too many groups are
 * leaving; the host meanwhile checks what has arrived next.
 *
 * Where memory is unified nothing of this exists: records are used where they were read to. */
#include "base/check.h"
#include "base/clock.h"
#include "state/restore_impl.h"

int restore_up_create(struct restorer *rr, struct err *err)
{
    struct device *d = rr->o.model->dev;
    if (d->unified)
        return 0;
    int rc = stages_alloc(d, (size_t)rr->n_slots * rr->slot_bytes, rr->twins, err);
    if (rc == 0)
        rc = stream_create(d, STREAM_COPY, &rr->up, err);
    for (int i = 0; rc == 0 && i < rr->n_slots; i++) {
        struct group *g = &rr->groups[i];
        rc = event_create(d, &g->is_up, err);
        if (rc == 0)
            rc = event_create(d, &g->is_done, err);
    }
    return rc == 0 ? 0 : err_wrap(err, "device staging for restores");
}

void restore_up_destroy(struct restorer *rr)
{
    for (int i = 0; rr->groups != NULL && i < rr->n_slots; i++) {
        event_destroy(rr->groups[i].is_up);
        event_destroy(rr->groups[i].is_done);
    }
    stream_destroy(rr->up);
    stages_free(rr->o.model->dev, rr->twins);
}

void restore_up_place(const struct restorer *rr, struct group *g)
{
    const struct buf *twins = &rr->twins[model_stage(rr->o.model, g->layer)];
    if (rr->up != NULL)
        g->twin = (uint8_t *)twins->ptr + (size_t)(g - rr->groups) * rr->slot_bytes;
}

const uint8_t *restore_record(const struct restorer *rr, const struct group *g, int i)
{
    return g->twin != NULL ? g->twin + (size_t)i * rr->record_room[g->kind]
                           : g->reads[i].bytes;
}

/* n records, the last of which may be partial, that lie behind one another.  Every rank of a stage needs hidden states
 * whole; of K and V, where they are laid out by heads, its own. */
static int copy_up(struct restorer *rr, struct group *g, int first, int n)
{
    size_t room = rr->record_room[g->kind], bytes = rr->record_bytes[g->kind];
    const struct store_read *read = &g->reads[first], *last = &read[n - 1];
    uint8_t *to = g->twin + (size_t)first * room;
    int n_by_heads = g->kind != STORE_KV ? 0 : last->n_bytes == bytes ? n : n - 1, rc = 0;
    if (n_by_heads > 0)
        rc = kv_chunks_up(rr->up, to, read->bytes, n_by_heads, room, bytes);
    if (rc != 0 || n_by_heads == n)
        return rc;
    return stream_copy(rr->up, to + (size_t)n_by_heads * room, read[n_by_heads].bytes,
                       (size_t)(n - n_by_heads - 1) * room + last->n_bytes);
}

/* Records that were read to their slot lie as in the twin, gaps included, and go up as one; those of a
 * store in memory lie anywhere. */
int restore_up(struct restorer *rr, struct group *g, int first, int end)
{
    size_t room = rr->record_room[g->kind];
    int rc = 0;
    for (int i = first, n; g->twin != NULL && rc == 0 && i < end; i += n) {
        const uint8_t *from = g->reads[i].bytes;
        n = 1;
        while (i + n < end && g->reads[i + n].bytes == from + (size_t)n * room)
            n++;
        rc = copy_up(rr, g, i, n);
    }
    if (g->twin == NULL || first >= end || rc != 0)
        return rc;
    rc = event_record(rr->up, g->is_up);
    return rc == 0 ? event_wait(rr->o.stream, g->is_up) : rc;
}

/* What was queued for g may have failed: a device that refuses to mark its end is waited for. */
void restore_leave(struct restorer *rr, struct group *g)
{
    g->t_left = clock_now_ns();
    g->end_rc = event_record(rr->o.stream, g->is_done);
    group_put(&rr->leaving, g);
    rr->n_leaving++;
}

/* The oldest that is leaving: its time on the device counts from when the one before it was done. */
static void await_first(struct restorer *rr)
{
    struct group *g = group_get(&rr->leaving);
    struct restore *r = g->run;
    int rc = g->end_rc != 0 ? g->end_rc : event_sync(g->is_done);
    if (g->end_rc != 0) {
        (void)stream_sync(rr->up);
        (void)stream_sync(rr->o.stream);
    }
    rr->n_leaving--;
    int64_t now = clock_now_ns();
    int64_t from = g->t_left > rr->t_last_done ? g->t_left : rr->t_last_done;
    rr->t_last_done = now;
    restore_trace_add(&r->compute_trace, from, now, g->layer,
                      g->kind == STORE_HIDDEN ? 'H' : 'K');
    r->out.compute_ns += now - from;
    if (rc != 0)
        restore_fail(r, rc, stream_fault(rr->o.stream));
    pthread_mutex_lock(&rr->lock);
    restore_group_done(rr, g);
    pthread_mutex_unlock(&rr->lock);
}

void restore_settle(struct restorer *rr, int max_leaving)
{
    while (rr->n_leaving > max_leaving)
        await_first(rr);
}
