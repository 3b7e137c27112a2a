/* read_ahead.c - see read_ahead.h. */
#include "store/read_ahead.h"

#include <stddef.h>

#include "base/check.h"

void read_ahead_add(struct read_ahead_queue *l, struct read_ahead_want *w)
{
    struct read_ahead_want **link = &l->first;
    if (l->last != NULL && l->last->turn <= w->turn)
        link = &l->last->next;
    while (*link != NULL && (*link)->turn <= w->turn)
        link = &(*link)->next;
    w->next = *link;
    *link = w;
    if (w->next == NULL)
        l->last = w;
    l->n++;
}

void read_ahead_remove(struct read_ahead_queue *l, struct read_ahead_want *w)
{
    struct read_ahead_want **link = &l->first, *before = NULL;
    while (*link != w) {
        CHECK(*link != NULL);
        before = *link;
        link = &before->next;
    }
    *link = w->next;
    if (l->last == w)
        l->last = before;
    l->n--;
}

/* Returns the want's first chunk that is worth a fetch, or -1. If a want that has begun has no more
 * chunk on the disk, w->at moves on, so the chunks before are not looked at again. */
static int chunk_next(const struct read_ahead_view *v, struct read_ahead_want *w)
{
    int first = -1, n_disk = 0, least = w->has_begun ? 1 : v->least, i = w->at;
    for (; i < w->n && n_disk < least; i++) {
        enum read_ahead_place place = v->place(v->arg, w, i);
        if (place == READ_AHEAD_NOWHERE)
            break;
        n_disk += place == READ_AHEAD_DISK;
        if (place == READ_AHEAD_DISK && first < 0)
            first = i;
    }
    if (n_disk >= least)
        return first;
    if (w->has_begun)
        w->at = i;
    return -1;
}

/* Returns whether a fetch for this turn may take the room. Chunks that earlier turns need are not
 * dropped for it. */
static bool may_take(const struct read_ahead_room *r, uint64_t turn)
{
    if (r->n_bytes <= r->free_bytes)
        return true;
    return r->victim != NULL &&
           (r->victim->rank < PLACEMENT_UPCOMING || ~r->victim->order > turn);
}

/* Notes that wants were looked at again up to w; NULL: all were. */
static void seen(struct read_ahead_queue *l, const struct read_ahead_want *w)
{
    if (w == NULL)
        l->dropped_turn = PLACEMENT_NO_TURN;
    else if (l->dropped_turn <= w->turn)
        l->dropped_turn = w->turn + 1;
}

enum read_ahead_next read_ahead_choose(struct read_ahead_queue *l,
                                       const struct read_ahead_view *v,
                                       struct read_ahead_want **w, int *at)
{
    enum read_ahead_next next = READ_AHEAD_NONE;
    for (*w = l->first; *w != NULL; *w = (*w)->next) {
        if ((*w)->turn >= l->dropped_turn)
            (*w)->at = 0;
        *at = (*w)->has_failed ? -1 : chunk_next(v, *w);
        if (*at < 0)
            continue;
        struct read_ahead_room r = v->room(v->arg, *w, *at);
        (*w)->has_failed = r.n_bytes > r.most_bytes;
        if (!(*w)->has_failed)
            next = may_take(&r, (*w)->turn) ? READ_AHEAD_FETCH : READ_AHEAD_NO_ROOM;
        if (next != READ_AHEAD_NONE)
            break;
    }
    seen(l, *w);
    return next;
}

void read_ahead_begin(struct read_ahead_want *w, int at)
{
    CHECK(at >= w->at && at < w->n);
    w->has_begun = true;
    w->at = at;
}

void read_ahead_end(struct read_ahead_want *w, bool is_good, bool is_whole)
{
    CHECK(!is_whole || w->at < w->n);
    w->has_failed |= !is_good;
    w->at += is_good && is_whole;
}

void read_ahead_dropped(struct read_ahead_queue *l, const struct placement_item *victim)
{
    if (victim->rank == PLACEMENT_UPCOMING && ~victim->order < l->dropped_turn)
        l->dropped_turn = ~victim->order;
}
