/* nodes.c - what becomes of a chunk in the catalog: it is used, pinned, condemned, evicted,
 * superseded, erased or doomed. Only here a node loses extents.
 *
 * All functions are called with the store's lock held. None of them reads, writes or commits: the
 * extents that leave a node are listed in space.h, and changes of rows in ledger.h, until the next
 * commit (commit.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plural.h"
#include "store/store_impl.h"

/* --- uses ------------------------------------------------------------------------------------- */

void store_touch_node(struct store *s, struct chunk_node *n, const struct store_use *use)
{
    catalog_touch(&s->catalog, n, (uint32_t)clock_wall_s(), use);
    tier_touch(s->tier, n);
    ledger_note_use(&s->ledger, n);
}

/* --- extents ---------------------------------------------------------------------------------- */

void store_free_extent(struct store *s, struct extent *x)
{
    tier_forget(s->tier, x);
    catalog_detach(&s->catalog, x);
    space_leave(&s->space, x);
}

void store_unload_node(struct store *s, struct chunk_node *n)
{
    if (n->n_pins > 0 || s->ledger.index == NULL)
        return;
    for (struct extent *x = n->extents; x != NULL; x = x->next) {
        if (x->state == EXTENT_PENDING)
            continue;
        free(x->records);
        x->records = NULL;
    }
}

/* --- eviction --------------------------------------------------------------------------------- */

void store_evict_node(struct store *s, struct chunk_node *n, enum store_evict why)
{
    /* These reasons take good chunks away. A later miss of the chunk then says that it was
     * evicted. */
    bool was_good = why == STORE_EVICT_CAP || why == STORE_EVICT_SPACE ||
                    why == STORE_EVICT_QUOTA || why == STORE_EVICT_IDLE ||
                    why == STORE_EVICT_EXPIRED;
    if (was_good)
        whys_note_eviction(&s->whys, &n->key);
    s->counts.evictions[why]++;
    s->counts.n_evicted_pinned += was_good && n->pin_at != 0;
    /* A time to live is a promise to forget. Other evicted bytes stay in free space until the next
     * erase. */
    if (why == STORE_EVICT_IDLE || why == STORE_EVICT_EXPIRED)
        for (struct extent *x = n->extents; x != NULL; x = x->next)
            x->wipe = 1;
    n->n_pins++; /* keeps the node while its extents are freed */
    while (n->extents != NULL)
        store_free_extent(s, n->extents);
    n->n_pins--;
    catalog_settle(&s->catalog, n);
}

void store_drop_superseded(struct store *s, const struct sha256 *key)
{
    struct chunk_node *n = catalog_find(&s->catalog, key);
    if (n == NULL || n->n_live == 0 || !n->yields || n->n_children > 0 ||
        n->n_pending > 0 || n->has_writer || n->is_guaranteed)
        return;
    catalog_unpin(&s->catalog, n);
    if (n->n_pins == 0) {
        store_evict_node(s, n, STORE_EVICT_SUPERSEDED);
        return;
    }
    /* The chunk is a miss from now on. Its holders, for example a sequence that continues it,
     * can still read it; the last release frees its space. */
    s->counts.evictions[STORE_EVICT_SUPERSEDED]++;
    tier_forget_node(s->tier, n);
    catalog_kill(&s->catalog, n);
}

/* --- erasing ---------------------------------------------------------------------------------- */

static bool in_use(const struct chunk_node *n)
{
    return n->n_pins > 0 || n->n_pending > 0 || n->has_writer;
}

/* [lock] Ends the node's lasting pin. The node may be freed. */
static void pin_end(struct store *s, struct chunk_node *n)
{
    if (n->pin_at == 0)
        return;
    ledger_note_pin(&s->ledger, &(struct index_pin){.key = n->key});
    catalog_unpin(&s->catalog, n);
}

/* [lock] Takes away an unused node's extents, to be wiped. The node may be freed. */
static void node_erase(struct store *s, struct chunk_node *n)
{
    for (struct extent *x = n->extents; x != NULL; x = x->next)
        x->wipe = 1;
    n->doomed = false;
    n->n_pins++; /* a damaged chunk has no extents that keep its node while the pin ends */
    pin_end(s, n);
    n->n_pins--;
    store_evict_node(s, n, STORE_EVICT_ERASED);
}

/* Erases a node that is in use, or that other chunks continue: lookups miss it from now on, and its
 * bytes are wiped by the first commit after its last use. */
static void doom(struct store *s, struct chunk_node *n)
{
    CHECK(in_use(n) || n->n_children > 0);
    n->doomed = true;
    tier_forget_node(s->tier, n);
    /* The pin ends now. Otherwise a damaged chunk's node may be freed later, and its pin would stay
     * behind. */
    pin_end(s, n);
}

/* A damaged node between n and the returned one has no extents left, and is freed with n. */
struct chunk_node *store_doomed_above(const struct chunk_node *n)
{
    struct chunk_node *up = n->parent;
    while (up != NULL && up->doomed && up->extents == NULL && !in_use(up))
        up = up->parent;
    return up != NULL && up->doomed ? up : NULL;
}

void store_settle_doomed(struct store *s, struct chunk_node *n)
{
    while (n != NULL && n->doomed && !in_use(n) && n->n_children == 0) {
        struct chunk_node *up = store_doomed_above(n);
        node_erase(s, n);
        n = up;
    }
}

int store_doom_writing(struct store *s)
{
    int n = 0;
    for (struct store_writing *w = s->erasing.writing; w != NULL; w = w->next)
        if (erasures_concern(&s->erasing.marks, w->chunk)) {
            doom(s, w->node);
            n++;
        }
    return n;
}

/* [lock] Returns whether a chunk that is neither erased nor `snapshot` continues the node. */
static bool is_continued(const struct chunk_node *n, const struct chunk_node *snapshot)
{
    for (const struct chunk_node *c = n->child; c != NULL; c = c->older)
        if (!c->doomed && c != snapshot)
            return true;
    return false;
}

/* Returns whether the node has a chunk to take away. A chunk that is being written has no extents
 * yet. */
static bool has_chunk(const struct chunk_node *n)
{
    return n != NULL && (n->extents != NULL || n->has_writer);
}

/* [lock] Takes one chunk off the catalog, or dooms it. */
static void take_node(struct store *s, struct chunk_node *node, struct store_erased *out)
{
    if (node->n_children > 0 || in_use(node)) {
        doom(s, node);
        out->n_busy++;
        return;
    }
    for (const struct extent *x = node->extents; x != NULL; x = x->next)
        out->n_bytes += extent_bytes(x);
    out->n_chunks++;
    struct chunk_node *up = store_doomed_above(node);
    node_erase(s, node);
    store_settle_doomed(s, up);
}

int store_take_chain(struct store *s, const struct sha256 *keys, int n, bool is_all,
                     struct sha256 *taken, struct store_erased *out)
{
    int n_taken = 0;
    for (int i = n; i-- > 0;) {
        const struct sha256 of_states = store_state_key(&keys[i]);
        struct chunk_node *snapshot = catalog_find(&s->catalog, &of_states);
        struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        if (!is_all && has_chunk(node) && is_continued(node, snapshot)) {
            out->n_shared += (uint64_t)i + 1;
            return n_taken;
        }
        if (has_chunk(snapshot)) {
            if (taken != NULL)
                taken[n_taken] = of_states;
            n_taken++;
            take_node(s, snapshot, out);
            node = catalog_find(&s->catalog, &keys[i]);
        }
        if (!has_chunk(node)) {
            if (node != NULL)
                pin_end(s, node);
            continue;
        }
        if (taken != NULL)
            taken[n_taken] = keys[i];
        n_taken++;
        take_node(s, node, out);
    }
    return n_taken;
}

/* --- records that are dropped alone ----------------------------------------------------------- */

void store_keep_apart(struct store *s, const struct sha256 *fingerprint,
                      const struct layer_set *layers)
{
    pthread_mutex_lock(&s->lock);
    s->apart.of = *fingerprint;
    s->apart.layers = *layers;
    pthread_mutex_unlock(&s->lock);
}

/* Returns whether an extent's records are loaded and all belong to these layers. */
static bool is_of(const struct extent *x, const struct layer_set *layers)
{
    bool is = x->records != NULL;
    for (int i = 0; is && i < x->n_records; i++)
        is = layer_set_has(layers, x->records[i].layer);
    return is;
}

uint64_t store_drop_records(struct store *s, const struct store_hit *hit,
                            const struct layer_set *layers)
{
    struct chunk_node *n = hit->impl;
    uint64_t n_bytes = 0;
    pthread_mutex_lock(&s->lock);
    bool may = n->n_pending == 0 && !n->has_writer && !n->doomed && n->n_guarded == 0;
    for (struct extent *x = n->extents; may && x != NULL; x = x->next) {
        if (x->state != EXTENT_LIVE || n->n_live == 1 || !is_of(x, layers))
            continue;
        x->wipe |= n->ttl_s != 0; /* a time to live is a promise to forget */
        n_bytes += extent_bytes(x);
        tier_forget(s->tier, x);
        catalog_retire(&s->catalog, x, true);
    }
    pthread_mutex_unlock(&s->lock);
    return n_bytes;
}

static bool is_full(const struct chunk_node *n)
{
    return n->n_live > 0 && !n->doomed && n->n_tokens == STORE_CHUNK_TOKENS;
}

struct store_link *store_chain_of(struct store *s, const struct sha256 *last, int *n)
{
    pthread_mutex_lock(&s->lock);
    const struct chunk_node *node = catalog_find(&s->catalog, last);
    int i = *n = node != NULL && is_full(node) ? (int)node->chunk_idx + 1 : 0;
    struct store_link *links = xcalloc((size_t)i + 1, sizeof *links);
    for (; i > 0 && node != NULL && is_full(node); node = node->parent) {
        int n_next = 0;
        for (const struct chunk_node *c = node->child; c != NULL && n_next < 2;
             c = c->older)
            n_next += is_full(c);
        links[--i] = (struct store_link){.key = node->key,
                                         .mask = node->mask,
                                         .is_branch = n_next > 1,
                                         .is_pinned = node->pin_at != 0};
    }
    pthread_mutex_unlock(&s->lock);
    if (*n > 0 && i == 0)
        return links;
    free(links);
    *n = 0;
    return NULL;
}

/* --- pins and damage -------------------------------------------------------------------------- */

struct store_hit store_pin_node(struct store *s, struct chunk_node *n)
{
    n->n_pins++;
    catalog_settle(&s->catalog, n);
    return (struct store_hit){.key = n->key,
                              .chunk_idx = n->chunk_idx,
                              .n_tokens = n->n_tokens,
                              .mask = n->mask,
                              .impl = n};
}

void store_unpin(struct store *s, struct chunk_node *n)
{
    CHECK(n->n_pins > 0);
    if (n->n_pins == 1) {
        for (struct extent *x = n->extents, *next; x != NULL; x = next) {
            next = x->next;
            x->wipe |= n->doomed;
            if (x->state == EXTENT_DEAD)
                store_free_extent(s, x);
        }
    }
    n->n_pins--;
    store_unload_node(s, n);
    if (n->doomed) {
        store_settle_doomed(s, n);
    } else {
        struct chunk_node *waits = store_doomed_above(n);
        /* a damaged n is freed here, if nothing else keeps it */
        catalog_settle(&s->catalog, n);
        store_settle_doomed(s, waits);
    }
}

void store_guarantee_broken(struct store *s, uint32_t n, const char *reason)
{
    s->counts.n_guarantees_broken += n;
    log_warn("damage (%s) breaks %u guarantee%s of saved state, which is computed again",
             reason, n, plural(n));
}

void store_condemn_node(struct store *s, struct chunk_node *n, const char *reason)
{
    if (n->n_live == 0)
        return;
    whys_note_damage(&s->whys, &n->key, reason);
    if (n->n_guarded > 0)
        store_guarantee_broken(s, n->n_guarded, reason);
    s->counts.n_corrupt++;
    s->counts.evictions[STORE_EVICT_DAMAGED]++;
    n->n_pins++;
    tier_forget_node(s->tier, n);
    catalog_kill(&s->catalog, n);
    store_unpin(s, n);
}
