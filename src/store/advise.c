/* advise.c - see advise.h. */
#include "store/advise.h"

#include <string.h>

#include "store/store_impl.h"

enum { HOUR_S = 3600, DAY_S = 24 * HOUR_S };
/* Hash buckets that are visited under one hold of the store's lock, so others wait briefly. */
enum { BUCKETS_AT_ONCE = 4096 };

static const struct store_advice rows[STORE_ADVICES] = {{"hour", HOUR_S, 0, 0},
                                                        {"day", DAY_S, 0, 0},
                                                        {"week", 7 * DAY_S, 0, 0},
                                                        {"30 days", 30 * DAY_S, 0, 0},
                                                        {"all time", 0, 0, 0}};

static bool is_stored(const struct chunk_node *n)
{
    return n->n_live > 0 && !n->doomed;
}

/* [lock] Returns whether the chunk is the end of a context: no stored chunk continues it. */
static bool is_end(const struct chunk_node *n)
{
    const struct chunk_node *child = n->child;
    while (child != NULL && !is_stored(child))
        child = child->older;
    return child == NULL;
}

/* [lock] Returns the bytes of the chunk's LIVE extents. */
static uint64_t bytes_of(const struct chunk_node *n)
{
    uint64_t n_bytes = 0;
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        n_bytes += x->state == EXTENT_LIVE ? extent_bytes(x) : 0;
    return n_bytes;
}

/* [lock] Adds the chunk to every row whose time contains the chunk's last use. */
static void count(const struct chunk_node *n, int64_t now_s,
                  struct store_advice out[STORE_ADVICES])
{
    bool end = is_end(n);
    uint64_t n_bytes = bytes_of(n);
    for (int i = 0; i < STORE_ADVICES; i++) {
        if (out[i].seconds > 0 && (int64_t)n->place.used_time < now_s - out[i].seconds)
            continue;
        out[i].contexts += end;
        out[i].bytes += n_bytes;
    }
}

void store_advise(struct store *s, int64_t now_wall_s,
                  struct store_advice out[STORE_ADVICES])
{
    const struct catalog *c = &s->catalog;
    uint64_t n_buckets = UINT64_MAX, at = 0;
    do {
        pthread_mutex_lock(&s->lock);
        if (c->n_buckets != n_buckets) { /* the walk begins, or the catalog has grown */
            n_buckets = c->n_buckets;
            at = 0;
            memcpy(out, rows, sizeof rows);
        }
        for (int i = 0; i < BUCKETS_AT_ONCE && at < n_buckets; i++, at++)
            for (const struct chunk_node *n = c->buckets[at]; n != NULL; n = n->next)
                if (is_stored(n))
                    count(n, now_wall_s, out);
        pthread_mutex_unlock(&s->lock);
    } while (at < n_buckets);
}
