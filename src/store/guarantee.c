/* guarantee.c - guarantees, the pins that are never broken: decides whether one can be promised,
 * and counts guaranteed bytes.
 *
 * A guaranteed chunk is no candidate for eviction (catalog.h), and neither are the chunks before
 * it, which are no leaves. So a promise holds as long as the guaranteed bytes fit under every
 * bound. These bytes are counted as extents come and go, and a promise is made only while they stay
 * below a share of each bound. The rest of the room is for state that running requests save.
 *
 * Invariant: only store_unpin_keys, store_erase and the end of its time end a guarantee. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/store_impl.h"

/* Share of a bound that may be guaranteed, in quarters. If all of a store were guaranteed, it could
 * not save anything new. */
enum { SHARE_QUARTERS = 3 };

uint64_t store_guarantee_limit(uint64_t cap_bytes)
{
    return cap_bytes / 4 * SHARE_QUARTERS;
}

/* Returns the lesser of two bounds; 0 means no bound. */
static uint64_t least(uint64_t x, uint64_t y)
{
    return MIN(x - 1, y - 1) + 1; /* 0 wraps to the greatest number */
}

static uint64_t owner_limit(const struct store *s, const struct catalog_owner *o)
{
    uint64_t quota = o->quota_bytes != 0 ? o->quota_bytes : s->space.quota_bytes;
    return least(store_guarantee_limit(quota), s->space.guarantee_bytes);
}

int store_check_guarantees(const struct store *s, struct err *err)
{
    uint64_t all = s->catalog.guaranteed_bytes;
    if (s->space.cap_bytes == 0 || all <= s->space.cap_bytes)
        return 0;
    return err_set(
        err, ERR_LIMIT,
        "the store's cap of %llu bytes is below the %llu bytes that are guaranteed "
        "in it: raise the cap, or end guarantees with `hcache store unpin`",
        (unsigned long long)s->space.cap_bytes, (unsigned long long)all);
}

/* [lock] Returns 0 if all chunks of keys[0..n) are stored, else ERR_NOT_FOUND. */
static int check_stored(const struct store *s, const struct sha256 *keys, int n,
                        struct err *err)
{
    int n_missing = 0, n_pending = 0, first = 0;
    for (int i = n; i-- > 0;) {
        const struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        if (node != NULL && node->n_live > 0 && !node->doomed)
            continue;
        n_missing++;
        n_pending += node != NULL && node->n_pending > 0;
        first = i;
    }
    if (n > 0 && n_missing == 0)
        return 0;
    return err_set(
        err, ERR_NOT_FOUND,
        "the state cannot be guaranteed: %d of its %d chunks of %d tokens are not "
        "stored, the first is number %d; %d of them are being written",
        n_missing, n, STORE_CHUNK_TOKENS, first, n_pending);
}

/* [lock] Returns the lasting pin of a chunk. If it has none, until_wall_s is 0. */
static struct index_pin pin_of(const struct store *s, const struct chunk_node *n)
{
    return (struct index_pin){
        .key = n->key,
        .until_wall_s = n->pin_at != 0 ? s->catalog.pins[n->pin_at - 1].until_wall_s : 0,
        .is_guaranteed = n->is_guaranteed};
}

/* [lock] Guarantees those chunks of keys[] that no other chunk of keys[] continues. The other
 * chunks stay as well, because they are no leaves. before[] receives the former pins of the
 * guaranteed chunks. Returns their number. */
static int ends_set(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                    struct index_pin *before)
{
    int n_ends = 0;
    const struct chunk_node *after = NULL;
    for (int i = n; i-- > 0;) {
        struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        bool is_continued = after != NULL && after->parent == node;
        after = node;
        if (is_continued)
            continue;
        before[n_ends++] = pin_of(s, node);
        (void)store_set_pin(s, &(struct index_pin){node->key, until_wall_s, true});
    }
    return n_ends;
}

/* [lock] Restores the former pins of before[]. */
static void ends_undo(struct store *s, const struct index_pin *before, int n)
{
    for (int i = 0; i < n; i++) {
        struct chunk_node *node = catalog_find(&s->catalog, &before[i].key);
        if (before[i].until_wall_s != 0)
            (void)store_set_pin(s, &before[i]);
        else if (node != NULL)
            catalog_unpin(&s->catalog, node);
    }
}

/* [lock] Has the next commit write the present pins of the keys in before[]. */
static void ends_note(struct store *s, const struct index_pin *before, int n)
{
    for (int i = 0; i < n; i++) {
        const struct chunk_node *node = catalog_find(&s->catalog, &before[i].key);
        struct index_pin now = {.key = before[i].key};
        if (node != NULL)
            now = pin_of(s, node);
        ledger_note_pin(&s->ledger, &now);
    }
}

/* [lock] Fills *g with the guaranteed bytes after the change, and their limits. Returns ERR_LIMIT
 * if a sum of bytes exceeds its limit. */
static int check_sums(const struct store *s, const struct catalog_owner *o,
                      struct store_guaranteed *g, struct err *err)
{
    g->all_bytes = s->catalog.guaranteed_bytes;
    g->owner_bytes = o->guaranteed_bytes;
    g->limit_bytes = store_guarantee_limit(s->space.cap_bytes);
    g->owner_limit_bytes = owner_limit(s, o);
    bool is_all = g->limit_bytes != 0 && g->all_bytes > g->limit_bytes;
    bool is_owner = g->owner_limit_bytes != 0 && g->owner_bytes > g->owner_limit_bytes;
    if (!is_all && !is_owner)
        return 0;
    uint64_t sum = is_all ? g->all_bytes : g->owner_bytes,
             limit = is_all ? g->limit_bytes : g->owner_limit_bytes;
    return err_set(err, ERR_LIMIT,
                   "the state cannot be guaranteed: its %llu bytes and the %llu that are "
                   "guaranteed %sare more than the %llu that may be",
                   (unsigned long long)g->n_bytes, (unsigned long long)(sum - g->n_bytes),
                   is_all ? "" : "to this owner ", (unsigned long long)limit);
}

/* [lock] Guarantees the chain, or refuses and changes nothing. */
static int promise(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                   struct index_pin *before, int *n_ends, struct store_guaranteed *g,
                   struct err *err)
{
    int rc = store_can_save(s, err);
    store_expire_pins(s);
    if (rc == 0 && until_wall_s <= clock_wall_s())
        rc = err_set(err, ERR_USAGE, "a guarantee must end in the future");
    if (rc == 0)
        rc = check_stored(s, keys, n, err);
    if (rc == 0)
        rc = space_check_pins(&s->space, &s->catalog, (uint32_t)n, err);
    if (rc != 0)
        return rc;
    uint64_t former_bytes = s->catalog.guaranteed_bytes;
    uint16_t owner_idx = catalog_find(&s->catalog, &keys[0])->owner_idx;
    *n_ends = ends_set(s, keys, n, until_wall_s, before);
    g->n_bytes = s->catalog.guaranteed_bytes - former_bytes;
    rc = check_sums(s, &s->catalog.owners[owner_idx], g, err);
    if (rc == 0)
        ends_note(s, before, *n_ends);
    else
        ends_undo(s, before, *n_ends);
    return rc;
}

int store_guarantee(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                    struct store_guaranteed *out, struct err *err)
{
    struct store_guaranteed g = {0};
    struct index_pin *before = xcalloc((size_t)n + 1, sizeof before[0]);
    int n_ends = 0;
    pthread_mutex_lock(&s->lock);
    int rc = promise(s, keys, n, until_wall_s, before, &n_ends, &g, err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0) {
        rc = store_commit_run(s, STORE_COMMIT_PINS | STORE_COMMIT_FRESH, err);
        if (rc != 0) {
            pthread_mutex_lock(&s->lock);
            ends_undo(s, before, n_ends);
            ends_note(s, before, n_ends);
            pthread_mutex_unlock(&s->lock);
        }
    }
    free(before);
    if (out != NULL)
        *out = g;
    return rc;
}
