/* evict.c - makes room under the cap, on a full disk, and in an owner's quota.
 * store/placement.h chooses the leaf that is evicted first.
 *
 * A leaf is a chunk that no stored chunk continues. Chunks that are pinned, being written, or not
 * yet committed are never evicted. An evicted chunk is a miss at once. Its space is free only when
 * the index no longer names it, durably. A lasting pin only moves a leaf behind all leaves without
 * one: the bounds hold at all times. Guaranteed chunks (guarantee.c) are never candidates. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/store_impl.h"

void store_drop(struct store *s, const struct sha256 *keys, int n)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        if (node == NULL)
            continue;
        catalog_drop(&s->catalog, node);
        ledger_note_use(&s->ledger, node);
        tier_review(s->tier, node);
    }
    pthread_mutex_unlock(&s->lock);
}

/* [lock] Evicts a leaf. Also erases a doomed parent that only this leaf kept. */
static void victim_evict(struct store *s, struct chunk_node *n, enum store_evict why)
{
    struct chunk_node *waits = store_doomed_above(n);
    /* The policy learns only from victims that it chose. */
    if (why != STORE_EVICT_IDLE && why != STORE_EVICT_EXPIRED)
        catalog_evicted(&s->catalog, n);
    store_evict_node(s, n, why);
    store_settle_doomed(s, waits);
}

/* --- times to live ---------------------------------------------------------------------------- */

/* Returns the seconds until an expired chunk that cannot be evicted yet is examined again. */
static uint32_t retry_of(uint32_t ttl_s)
{
    enum { LEAST_S = 5 };
    return MAX(ttl_s / 16, LEAST_S);
}

/* [lock] Evicts an expired node. Its parent is examined next, because it may have expired, too. */
static void expired_evict(struct store *s, struct chunk_node *n, uint32_t now_s)
{
    struct chunk_node *parent = n->parent;
    if (parent != NULL && parent->n_live > 0 && parent->ttl_s > 0)
        expiry_set(&s->catalog.expiry, parent, now_s);
    victim_evict(s, n, STORE_EVICT_EXPIRED);
}

/* [lock] Looks at up to 256 chunks that may have expired, so that other threads do not wait long.
 * Evicts the expired ones, and adds their number to *n_gone. Returns true if none is left to look
 * at. */
static bool expire_some(struct store *s, uint64_t *n_gone)
{
    int most = 256;
    uint32_t now_s = (uint32_t)clock_wall_s();
    struct expiry *x = &s->catalog.expiry;
    const struct expiry_entry *first;
    while ((first = expiry_first(x)) != NULL && first->at_s <= now_s) {
        struct chunk_node *n = first->node;
        uint32_t due_s = n->place.used_time + n->ttl_s;
        if (most-- == 0)
            return false;
        if (due_s > now_s) {
            expiry_set(x, n, due_s);
        } else if (n->place.slot == 0 || n->place.is_kept) {
            expiry_set(x, n, now_s + retry_of(n->ttl_s));
        } else {
            expired_evict(s, n, now_s);
            ++*n_gone;
        }
    }
    return true;
}

int store_evict_expired(struct store *s, uint64_t *n_chunks, struct err *err)
{
    bool is_done = false;
    int rc = 0;
    *n_chunks = 0;
    while (rc == 0 && !is_done) {
        pthread_mutex_lock(&s->lock);
        store_expire_pins(s);
        if (expiry_first(&s->catalog.expiry) != NULL)
            rc = store_can_save(s, err);
        if (rc == 0)
            is_done = expire_some(s, n_chunks);
        pthread_mutex_unlock(&s->lock);
    }
    if (rc == 0 && *n_chunks > 0)
        rc = store_commit_run(s, 0, err);
    return rc != 0 || *n_chunks == 0 ? rc : store_wipe(s, err);
}

/* --- room ------------------------------------------------------------------------------------- */

/* [lock] Evicts some expired chunks, then the policy's victims, until `want_bytes` are on their way
 * to be free or nothing can be evicted. newcomer: the chunk that wants the room, if it may be
 * refused; else NULL. */
static void evict(struct store *s, uint64_t want_bytes, enum store_evict why,
                  const struct sha256 *newcomer)
{
    struct chunk_node *n;
    uint64_t n_gone = 0;
    store_expire_pins(s);
    (void)expire_some(s, &n_gone);
    while (s->space.freeing_bytes + s->space.wiping_bytes < want_bytes &&
           (n = catalog_victim(&s->catalog)) != NULL &&
           catalog_admits(&s->catalog, n, newcomer))
        victim_evict(s, n, why);
}

enum { IDLE_AT_ONCE = 256 }; /* bounds the time that other threads wait */

/* [lock] Evicts up to IDLE_AT_ONCE idle chunks. Returns their number. */
static int evict_some_idle(struct store *s, uint32_t before_wall_s)
{
    struct chunk_node *leaves[IDLE_AT_ONCE];
    store_expire_pins(s);
    int n = catalog_idle(&s->catalog, before_wall_s, leaves, IDLE_AT_ONCE);
    for (int i = 0; i < n; i++)
        victim_evict(s, leaves[i], STORE_EVICT_IDLE);
    return n;
}

int store_evict_idle(struct store *s, int64_t before_wall_s, uint64_t *n_chunks,
                     struct err *err)
{
    uint32_t before = before_wall_s < 0            ? 0
                      : before_wall_s > UINT32_MAX ? UINT32_MAX
                                                   : (uint32_t)before_wall_s;
    int n, rc = 0;
    *n_chunks = 0;
    do { /* repeats, because the parents of evicted chunks are leaves now */
        pthread_mutex_lock(&s->lock);
        rc = store_can_save(s, err);
        n = rc == 0 ? evict_some_idle(s, before) : 0;
        *n_chunks += (uint64_t)n;
        pthread_mutex_unlock(&s->lock);
    } while (n > 0);
    if (rc == 0 && *n_chunks > 0)
        rc = store_commit_run(s, 0, err);
    return rc != 0 || *n_chunks == 0 ? rc : store_wipe(s, err);
}

void store_set_price(struct store *s, const struct placement_price *price)
{
    pthread_mutex_lock(&s->lock);
    s->catalog.price = *price;
    pthread_mutex_unlock(&s->lock);
}

void store_set_step(struct store *s, uint64_t turns)
{
    pthread_mutex_lock(&s->lock);
    if (s->catalog.window != NULL)
        s->catalog.window->step = turns;
    pthread_mutex_unlock(&s->lock);
}

int store_expect_use(struct store *s, const struct sha256 *keys, int n, uint64_t turn)
{
    pthread_mutex_lock(&s->lock);
    int n_known = 0;
    for (; n_known < n && catalog_expect(&s->catalog, &keys[n_known], turn); n_known++)
        tier_review(s->tier, catalog_find(&s->catalog, &keys[n_known]));
    pthread_mutex_unlock(&s->lock);
    return n_known;
}

void store_expect_use_no_more(struct store *s, const struct sha256 *keys, int n,
                              uint64_t turn)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        catalog_expect_no_more(&s->catalog, &keys[i], turn);
        tier_review(s->tier, catalog_find(&s->catalog, &keys[i]));
    }
    pthread_mutex_unlock(&s->lock);
}

static uint64_t quota_of(const struct store *s, const struct catalog_owner *o)
{
    return o->quota_bytes != 0 ? o->quota_bytes : s->space.quota_bytes;
}

int store_make_owner_room(struct store *s, uint16_t owner_idx, uint64_t n_bytes,
                          const struct sha256 *newcomer, struct err *err)
{
    const struct catalog *c = &s->catalog;
    uint64_t quota = quota_of(s, &c->owners[owner_idx]);
    struct chunk_node *n;
    if (quota == 0)
        return 0;
    store_expire_pins(s);
    while ((n_bytes > quota || c->owners[owner_idx].used_bytes > quota - n_bytes) &&
           n_bytes <= quota && (n = catalog_victim_of(c, owner_idx)) != NULL &&
           catalog_admits(c, n, newcomer))
        victim_evict(s, n, STORE_EVICT_QUOTA);
    uint64_t used = c->owners[owner_idx].used_bytes;
    if (n_bytes <= quota && used <= quota - n_bytes)
        return 0;
    if (n_bytes <= quota && catalog_victim_of(c, owner_idx) != NULL)
        return err_set(
            err, ERR_BUSY,
            "%llu bytes do not fit into the owner's quota of %llu: waiting requests "
            "need the other chunks sooner",
            (unsigned long long)n_bytes, (unsigned long long)quota);
    return err_set(err, ERR_LIMIT,
                   "%llu bytes do not fit into the owner's quota of %llu: %llu are in use "
                   "(%llu guaranteed) and none of them can be evicted",
                   (unsigned long long)n_bytes, (unsigned long long)quota,
                   (unsigned long long)used,
                   (unsigned long long)c->owners[owner_idx].guaranteed_bytes);
}

void store_set_quota(struct store *s, uint64_t owner, uint64_t quota_bytes)
{
    uint16_t idx;
    pthread_mutex_lock(&s->lock);
    if (catalog_owner(&s->catalog, owner, &idx) == 0)
        s->catalog.owners[idx].quota_bytes = quota_bytes;
    pthread_mutex_unlock(&s->lock);
}

int store_each_owner(struct store *s, int (*fn)(void *arg, const struct store_owner_use *u),
                     void *arg)
{
    pthread_mutex_lock(&s->lock);
    uint32_t n = s->catalog.n_owners;
    struct store_owner_use *uses = xmalloc((n + 1) * sizeof uses[0]);
    for (uint32_t i = 0; i < n; i++) {
        const struct catalog_owner *o = &s->catalog.owners[i];
        uses[i] = (struct store_owner_use){.owner = o->tag,
                                           .used_bytes = o->used_bytes,
                                           .quota_bytes = quota_of(s, o),
                                           .guaranteed_bytes = o->guaranteed_bytes,
                                           .n_chunks = o->n_chunks};
    }
    pthread_mutex_unlock(&s->lock);
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (uses[i].used_bytes > 0 || uses[i].quota_bytes > 0)
            rc = fn(arg, &uses[i]);
    free(uses);
    return rc;
}

/* [lock] Implements STORE_BUG_EARLY_REUSE: frees bytes that the index still names. */
static void reuse_early(struct store *s)
{
    for (struct extent *x = s->space.freeing; x != NULL; x = x->next) {
        if (x->n_blocks == 0)
            continue;
        alloc_give(&s->space.alloc[x->device], x->segment, x->offset, extent_bytes(x));
        s->space.used_bytes -= extent_bytes(x);
        s->space.freeing_bytes -= extent_bytes(x);
        x->n_blocks = 0;
    }
}

/* [lock, dropped meanwhile] Frees the space of evicted chunks: the index drops their rows, and
 * their bytes are wiped if they must be. If another thread is doing this, waits for it. */
static int evicted_free(struct store *s, struct err *err)
{
    pthread_mutex_unlock(&s->lock);
    int rc = store_commit_run(s, 0, err);
    if (rc == 0)
        rc = store_wipe_some(s, err);
    pthread_mutex_lock(&s->lock);
    return rc;
}

/* [lock] Returns whether space is on its way to be free. Another thread may be freeing it: that
 * thread's commit has emptied the lists, and the bytes are counted until the commit ends. */
static bool is_freeing(const struct store *s)
{
    return s->space.freeing_bytes > 0 || s->space.wiping_bytes > 0;
}

/* [lock] Returns the error for n_bytes without room after everything evictable was evicted. */
static int no_room(const struct store *s, uint64_t n_bytes, struct err *err)
{
    if (catalog_victim(&s->catalog) != NULL)
        return err_set(err, ERR_BUSY,
                       "%llu bytes do not fit under the store's cap of %llu: waiting "
                       "requests need the other chunks sooner",
                       (unsigned long long)n_bytes, (unsigned long long)s->space.cap_bytes);
    if (n_bytes <= s->space.cap_bytes &&
        s->space.used_bytes <= s->space.cap_bytes - n_bytes)
        return err_set(
            err, ERR_LIMIT,
            "the index of %llu extents fills its share of the store's cap of %llu "
            "bytes, and nothing can be evicted",
            (unsigned long long)s->catalog.n_live,
            (unsigned long long)s->space.files_cap_bytes);
    return err_set(err, ERR_LIMIT,
                   "%llu bytes do not fit under the store's cap of %llu: %llu are in use "
                   "(%llu guaranteed) and nothing can be evicted",
                   (unsigned long long)n_bytes, (unsigned long long)s->space.cap_bytes,
                   (unsigned long long)s->space.used_bytes,
                   (unsigned long long)s->catalog.guaranteed_bytes);
}

/* [lock] Returns whether the index stays in its share if a chunk of n_bytes in all is appended. */
static bool index_has_room(const struct store *s, uint64_t n_bytes)
{
    const struct ledger *l = &s->ledger;
    return space_index_has_room(&s->space, &s->catalog, l->index_bytes,
                                l->n_pending + (uint64_t)store_most_extents(s),
                                l->pending_bytes + n_bytes);
}

/* [lock] Evicts a 16th of the used bytes. Evicting fewer might free no page of the index, because
 * the rows of small extents share pages. */
static void evict_for_index(struct store *s, const struct sha256 *newcomer)
{
    uint64_t leaving = s->space.freeing_bytes + s->space.wiping_bytes;
    evict(s, leaving + s->space.used_bytes / 16 + 1, STORE_EVICT_CAP, newcomer);
}

int store_make_room(struct store *s, uint64_t n_bytes, const struct sha256 *newcomer,
                    struct err *err)
{
    if (s->space.cap_bytes == 0)
        return 0;
    while (n_bytes > s->space.cap_bytes ||
           s->space.used_bytes > s->space.cap_bytes - n_bytes ||
           !index_has_room(s, n_bytes)) {
        uint64_t limit = n_bytes > s->space.cap_bytes ? UINT64_MAX
                                                      : s->space.cap_bytes - n_bytes;
        uint64_t over = s->space.used_bytes - MIN(s->space.used_bytes, limit);
        /* Each round of evicting costs an fsync of the index, so a large store makes room for
         * several chunks at once. */
        uint64_t slack = s->space.cap_bytes / 64;
        if (over > 0)
            evict(s, over, STORE_EVICT_CAP, newcomer);
        if (over > 0 && n_bytes > 0 && slack >= 4 * n_bytes)
            evict(s, over + slack, STORE_EVICT_CAP, newcomer);
        if (!index_has_room(s, n_bytes))
            evict_for_index(s, newcomer);
        if (!is_freeing(s))
            return no_room(s, n_bytes, err);
        if (store_has_bug(STORE_BUG_EARLY_REUSE) && s->space.freeing_bytes > 0) {
            reuse_early(s);
            continue;
        }
        int rc = evicted_free(s, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Space becomes free when the index drops the rows. That costs an fsync and may itself fail on a
 * disk without a free block. Then the next append or commit tries again. */
bool store_make_space(struct store *s, uint64_t n_bytes, enum store_evict why,
                      const struct sha256 *newcomer)
{
    struct err err;
    if (s->space.cap_bytes == 0)
        return false;
    uint64_t slack = s->space.used_bytes / 64;
    evict(s, MAX(n_bytes, slack), why, newcomer);
    if (!is_freeing(s))
        return false;
    return evicted_free(s, &err) == 0;
}
