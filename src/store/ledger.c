/* ledger.c - see ledger.h. */
#include "store/ledger.h"

#include <stdlib.h>

#include "base/mem.h"

void ledger_init(struct ledger *l)
{
    *l = (struct ledger){.next_id = 1, .id_limit = UINT64_MAX};
    l->pending_end = &l->pending;
    pthread_mutex_init(&l->index_lock, NULL);
}

void ledger_deinit(struct ledger *l)
{
    free(l->touched);
    free(l->pin_changes);
    free(l->supersedes);
    index_close(l->index);
    free(l->path);
    pthread_mutex_destroy(&l->index_lock);
}

/* --- appended extents ------------------------------------------------------------------------- */

void ledger_add(struct ledger *l, struct extent *x)
{
    l->pending_bytes += extent_bytes(x);
    l->n_pending++;
    x->pending_next = NULL;
    *l->pending_end = x;
    l->pending_end = &x->pending_next;
}

struct extent *ledger_take_pending(struct ledger *l)
{
    struct extent *list = l->pending;
    l->pending = NULL;
    l->pending_end = &l->pending;
    return list;
}

void ledger_return_pending(struct ledger *l, struct extent *list)
{
    struct extent *last = list;
    if (list == NULL)
        return;
    while (last->pending_next != NULL)
        last = last->pending_next;
    last->pending_next = l->pending;
    if (l->pending == NULL)
        l->pending_end = &last->pending_next;
    l->pending = list;
}

void ledger_supersede(struct ledger *l, const struct extent *x, const struct sha256 *key)
{
    l->supersedes = xgrow(l->supersedes, l->n_supersedes, sizeof l->supersedes[0]);
    l->supersedes[l->n_supersedes++] = (struct ledger_supersede){x, *key};
}

bool ledger_superseded(struct ledger *l, const struct extent *x, struct sha256 *key)
{
    for (uint32_t i = l->n_supersedes; i-- > 0;) {
        if (l->supersedes[i].by != x)
            continue;
        *key = l->supersedes[i].key;
        l->supersedes[i] = l->supersedes[--l->n_supersedes];
        return true;
    }
    return false;
}

/* --- uses and pins ---------------------------------------------------------------------------- */

void ledger_note_use(struct ledger *l, const struct chunk_node *n)
{
    const struct extent *x = n->extents;
    while (x != NULL && x->state != EXTENT_LIVE)
        x = x->next;
    if (!l->takes_notes || x == NULL || l->n_touched == LEDGER_MAX_TOUCHED)
        return;
    /* The use of a chunk is written to the row of one extent only. */
    l->touched = xgrow(l->touched, l->n_touched, sizeof l->touched[0]);
    l->touched[l->n_touched++] = (struct ledger_touch){
        .id = x->id,
        .use = {.tick = n->place.used_at,
                .used_wall_s = n->place.used_time,
                .ttl_s = n->ttl_s,
                .is_dropped = n->place.is_dropped}};
}

void ledger_note_pin(struct ledger *l, const struct index_pin *pin)
{
    if (!l->takes_notes)
        return;
    l->pin_changes = xgrow(l->pin_changes, l->n_pin_changes, sizeof l->pin_changes[0]);
    l->pin_changes[l->n_pin_changes++] = *pin;
}
