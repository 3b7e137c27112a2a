/* restore_up.c - from pinned staging up to a device that has memory of its own (paper section
 * 5).
 *
 *   copy stream    [ layer n ][ layer n+1 ][ layer n+2 ] ...
 *   compute stream            [ layer n   ][ layer n+1 ] ...     loaded (K and V) or projected (H)
 *
 * A group's slot has a twin in device memory on each stage. Records go up to the stage that has
 * their layer, over that stage's own bus, beside the other stages. They go up on the copy
 * stream; the compute stream waits for them by an event. A second event marks the end of the
 * compute: only then does the group go back to the I/O thread. So the host waits for the device
 * only when too many groups are leaving.
 *
 * A third stream computes the checksums of the copied records, beside the projections (a
 * checksum is a chain, which leaves most of a GPU idle), and brings them down. When a group has
 * left, they are compared. A bad record is lost as it would be on the host. Its results are not
 * used, since its layer counts only after the comparison. So each byte of a record crosses host
 * memory once, and costs no processor time. With several ranks each rank's copy is a share of
 * the whole, so the host checks before a group goes up.
 *
 * Where memory is unified none of this exists: records are used where they were read to. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "base/step.h"
#include "restore/restore_impl.h"
#include "save/saver.h"
#include "tensor/ops.h"

bool restore_checks_on_device(const struct device *d)
{
    return !d->unified && d->n_ranks == 1 && d->checksums != CHECKSUMS_HOST;
}

static int check_choice(const struct device *d, struct err *err)
{
    return d->checksums != CHECKSUMS_DEVICE || restore_checks_on_device(d)
               ? 0
               : err_set(
                     err, ERR_USAGE,
                     "--checksums device: needs a device with memory of its own, and one "
                     "rank");
}

size_t restore_sums_bytes(const struct device *d, int n_slots)
{
    return restore_checks_on_device(d) ? (size_t)n_slots * GROUP * sizeof(uint64_t) : 0;
}

static int create_check(struct restore_pipeline *rr, struct err *err)
{
    struct device *d = rr->o.model->dev;
    size_t bytes = restore_sums_bytes(d, rr->n_slots);
    if (bytes == 0)
        return 0;
    int rc = stages_alloc(d, bytes, rr->sums, err);
    if (rc == 0)
        rc = buf_alloc(d, MEM_PINNED, bytes, &rr->sums_host, err);
    if (rc == 0)
        rc = stream_create(d, STREAM_INLINE, &rr->check, err);
    for (int i = 0; rc == 0 && i < rr->n_slots; i++)
        rc = event_create(d, &rr->groups[i].is_checked, err);
    return rc;
}

int restore_up_create(struct restore_pipeline *rr, struct err *err)
{
    struct device *d = rr->o.model->dev;
    int rc = check_choice(d, err);
    if (d->unified || rc != 0)
        return rc;
    rc = stages_alloc(d, (size_t)rr->n_slots * rr->slot_bytes, rr->twins, err);
    if (rc == 0)
        rc = stream_create(d, STREAM_COPY, &rr->up, err);
    for (int i = 0; rc == 0 && i < rr->n_slots; i++) {
        struct group *g = &rr->groups[i];
        rc = event_create(d, &g->is_up, err);
        if (rc == 0)
            rc = event_create(d, &g->is_done, err);
    }
    if (rc == 0)
        rc = create_check(rr, err);
    return rc == 0 ? 0 : err_wrap(err, "device staging for restores");
}

void restore_up_destroy(struct restore_pipeline *rr)
{
    for (int i = 0; rr->groups != NULL && i < rr->n_slots; i++) {
        event_destroy(rr->groups[i].is_up);
        event_destroy(rr->groups[i].is_done);
        event_destroy(rr->groups[i].is_checked);
    }
    stream_destroy(rr->up);
    stream_destroy(rr->check);
    stages_free(rr->o.model->dev, rr->twins);
    stages_free(rr->o.model->dev, rr->sums);
    buf_free(rr->o.model->dev, &rr->sums_host);
}

const char *restore_up_fault(const struct restore_pipeline *rr)
{
    const char *up = rr->up != NULL ? stream_fault(rr->up) : "";
    return up[0] != 0 || rr->check == NULL ? up : stream_fault(rr->check);
}

/* Recovers the copy and checksum streams. If the device is lost, the compute stream reports it. */
void restore_up_recover(struct restore_pipeline *rr)
{
    if (rr->up != NULL && stream_fault(rr->up)[0] != 0)
        (void)stream_recover(rr->up);
    if (rr->check != NULL && stream_fault(rr->check)[0] != 0)
        (void)stream_recover(rr->check);
}

void restore_up_place(const struct restore_pipeline *rr, struct group *g)
{
    const struct buf *twins = &rr->twins[model_stage(rr->o.model, g->layer)];
    if (rr->up != NULL)
        g->twin = (uint8_t *)twins->ptr + (size_t)(g - rr->groups) * rr->slot_bytes;
}

const uint8_t *restore_record(const struct restore_pipeline *rr, const struct group *g,
                              int i)
{
    return g->twin != NULL ? g->twin + (size_t)i * rr->record_room[g->kind]
                           : g->reads[i].bytes;
}

/* Returns how many records from i on lie behind one another as in the twin, gaps included. If the
 * records were read to the slot, all are adjacent. Records of a store in memory lie anywhere. */
static int adjacent(const struct restore_pipeline *rr, const struct group *g, int i,
                    int end)
{
    size_t room = rr->record_room[g->kind];
    int n = 1;
    while (i + n < end && g->reads[i + n].bytes == g->reads[i].bytes + (size_t)n * room)
        n++;
    return n;
}

static int copy_to_one(struct restore_pipeline *rr, struct group *g, int first, int end)
{
    size_t room = rr->record_room[g->kind];
    struct copy_part parts[GROUP];
    int n_parts = 0;
    for (int i = first, n; i < end; i += n) {
        n = adjacent(rr, g, i, end);
        parts[n_parts++] = (struct copy_part){.dst = g->twin + (size_t)i * room,
                                              .src = g->reads[i].bytes,
                                              .bytes = (size_t)(n - 1) * room +
                                                       g->reads[i + n - 1].n_bytes};
    }
    return stream_copy_all(rr->up, parts, n_parts);
}

/* Copies n records up that lie behind one another; the last may be partial. Every rank of a
 * stage needs hidden states whole. Of K and V that are laid out by heads it needs its own heads
 * only. */
static int run_to_ranks(struct restore_pipeline *rr, struct group *g, int first, int n)
{
    size_t room = rr->record_room[g->kind],
           bytes = record_bytes(rr->o.model, g->layer, g->kind);
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

static int copy_to_ranks(struct restore_pipeline *rr, struct group *g, int first, int end)
{
    int rc = 0;
    for (int i = first, n; i < end && rc == 0; i += n) {
        n = adjacent(rr, g, i, end);
        rc = run_to_ranks(rr, g, i, n);
    }
    return rc;
}

static uint64_t *sums_of(const struct restore_pipeline *rr, const struct group *g)
{
    return (uint64_t *)rr->sums_host.ptr + (g - rr->groups) * GROUP;
}

static uint64_t *device_sums_of(const struct restore_pipeline *rr, const struct group *g)
{
    const struct buf *there = &rr->sums[model_stage(rr->o.model, g->layer)];
    return (uint64_t *)there->ptr + (g - rr->groups) * GROUP;
}

/* Queues the checksums of chunks [first, end) of g, behind their copy up. */
static int queue_sums(struct restore_pipeline *rr, struct group *g, int first, int end)
{
    uint32_t n_bytes[GROUP];
    for (int i = first; i < end; i++)
        n_bytes[i - first] = g->reads[i].n_bytes;
    int rc = g->is_direct ? 0 : event_wait(rr->check, g->is_up);
    if (rc != 0)
        return rc;
    return rr->o.model->dev->ops->checksum(rr->check, device_sums_of(rr, g) + first,
                                           restore_record(rr, g, first),
                                           rr->record_room[g->kind], n_bytes, end - first);
}

int restore_up(struct restore_pipeline *rr, struct group *g, int first, int end)
{
    if (g->twin == NULL || first >= end)
        return 0;
    if (g->is_direct)
        return rr->check != NULL ? queue_sums(rr, g, first, end) : 0;
    int rc = rr->o.model->dev->n_ranks == 1 ? copy_to_one(rr, g, first, end)
                                            : copy_to_ranks(rr, g, first, end);
    if (rc == 0)
        rc = event_record(rr->up, g->is_up);
    if (rc == 0)
        rc = event_wait(rr->o.stream, g->is_up);
    return rc == 0 && rr->check != NULL ? queue_sums(rr, g, first, end) : rc;
}

/* Lets g leave even if work queued for it has failed. If the device refuses to mark the work's end,
 * waits for the device. */
void restore_leave(struct restore_pipeline *rr, struct group *g)
{
    g->t_left = clock_now_ns();
    g->end_rc = event_record(rr->o.stream, g->is_done);
    if (rr->check != NULL) {
        int rc = stream_copy(rr->check, sums_of(rr, g), device_sums_of(rr, g),
                             (size_t)g->n_chunks * sizeof(uint64_t));
        if (rc == 0)
            rc = event_record(rr->check, g->is_checked);
        g->end_rc = g->end_rc != 0 ? g->end_rc : rc;
    }
    group_put(&rr->leaving, g);
    rr->n_leaving++;
}

/* Waits until the device is done with g. */
static int await_end(struct restore_pipeline *rr, struct group *g)
{
    int rc = g->end_rc;
    if (rc == 0 && rr->check != NULL)
        rc = event_sync(g->is_checked);
    if (rc == 0)
        rc = event_sync(g->is_done);
    if (g->end_rc != 0) {
        (void)stream_sync(rr->up);
        (void)stream_sync(rr->o.stream);
        if (rr->check != NULL)
            (void)stream_sync(rr->check);
    }
    return rc;
}

/* Compares the device's checksums of g with the stored ones. The device is done with g, and has
 * checked all chunks before n_good. */
static void judge(struct restore_pipeline *rr, struct group *g)
{
    struct restore *r = g->run;
    for (int i = 0; i < g->n_chunks; i++) {
        struct err e = {0};
        if (g->first_chunk + i >= shared_load(&r->n_good))
            break;
        /* A failed read brought no record up.  It was counted as lost before, but a restore that
         * races with recomputation does not lower n_good for it. */
        if (g->reads[i].status != 0)
            continue;
        int rc = store_read_judge(&g->reads[i], sums_of(rr, g)[i], &e);
        if (rc != 0)
            restore_lose_chunk(r, g->first_chunk + i, rc, e.msg);
    }
}

int64_t restore_count_compute(struct restore *r, int64_t from)
{
    struct restore_pipeline *rr = r->rr;
    from = MAX(from, rr->t_counted);
    rr->t_counted = clock_now_ns();
    r->out.compute_ns += rr->t_counted - from;
    return from;
}

/* Waits for the oldest leaving group, judges its checksums, counts it for its layer and frees it.
 * Its time on the device begins when the device has done the work that was queued before it. */
static void await_first(struct restore_pipeline *rr)
{
    struct group *g = group_get(&rr->leaving);
    struct restore *r = g->run;
    int rc = await_end(rr, g);
    rr->n_leaving--;
    int64_t from = restore_count_compute(r, g->t_left);
    restore_trace_add(&r->compute_trace, from, rr->t_counted, g->layer,
                      g->kind == STORE_HIDDEN ? 'H' : 'K');
    if (rc != 0) {
        const char *own = restore_up_fault(rr);
        restore_fail(r, rc, own[0] != 0 ? own : stream_fault(rr->o.stream));
        restore_up_recover(rr);
    } else if (rr->check != NULL) {
        judge(rr, g);
    }
    r->layer_left[g->layer] -= g->n_chunks;
    pthread_mutex_lock(&rr->lock);
    restore_group_done(rr, g);
    pthread_mutex_unlock(&rr->lock);
}

void restore_settle(struct restore_pipeline *rr, int max_leaving)
{
    while (rr->n_leaving > max_leaving)
        await_first(rr);
}
