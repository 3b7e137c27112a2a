/* lookup.c - finds chains, pins them, and condemns damaged chunks.
 *
 * A hit pins its node: none of its extents is freed before the last release. The tables of
 * records are loaded while a chunk is pinned and dropped afterwards (they are most of a chunk's
 * metadata). Deeper chunks are marked as used before their parents, so among chunks of one
 * context the deepest is always the least recently used. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "store/store_impl.h"

void store_note_use(struct store *s, const struct chunk_node *n)
{
    if (s->index == NULL || s->read_only || s->n_touched == STORE_MAX_TOUCHED)
        return;
    for (const struct extent *x = n->extents; x != NULL; x = x->next) {
        if (x->state != EXTENT_LIVE)
            continue;
        /* the array doubles at each power of two */
        if ((s->n_touched & (s->n_touched - 1)) == 0)
            s->touched = xrealloc(s->touched, (s->n_touched == 0 ? 1 : 2 * s->n_touched) *
                                                  sizeof s->touched[0]);
        s->touched[s->n_touched++] = (struct store_touch){
            .id = x->id,
            .use = {.tick = n->place.used_at,
                    .used_wall_s = n->place.used_time,
                    .ttl_s = n->ttl_s,
                    .is_dropped = n->place.is_dropped}};
        return; /* the use of a chunk is written to the row of one extent only */
    }
}

void store_touch_node(struct store *s, struct chunk_node *n, const struct store_use *use)
{
    catalog_touch(&s->catalog, n, (uint32_t)clock_wall_s(), use);
    tier_touch(s->tier, n);
    store_note_use(s, n);
}

void store_unload_node(struct store *s, struct chunk_node *n)
{
    if (n->n_pins > 0 || s->index == NULL)
        return;
    for (struct extent *x = n->extents; x != NULL; x = x->next) {
        if (x->state == EXTENT_PENDING)
            continue;
        free(x->records);
        x->records = NULL;
    }
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

void store_release(struct store *s, struct store_hit *hits, int n)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        if (hits[i].impl != NULL)
            store_unpin(s, hits[i].impl);
        hits[i].impl = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- condemning ------------------------------------------------------------------------------- */

void store_condemn_node(struct store *s, struct chunk_node *n, const char *reason)
{
    if (n->n_live == 0)
        return;
    struct store_reason *r = &s->reasons[s->n_reasons++ % STORE_MAX_REASONS];
    r->key = n->key;
    snprintf(r->text, sizeof r->text, "%s", reason);
    if (n->n_guarded > 0)
        store_guarantee_broken(s, n->n_guarded, reason);
    s->n_corrupt++;
    s->evictions[STORE_EVICT_DAMAGED]++;
    n->n_pins++;
    tier_forget_node(s->tier, n);
    catalog_kill(&s->catalog, n);
    store_unpin(s, n);
}

void store_condemn(struct store *s, const struct store_hit *hit, const char *reason)
{
    pthread_mutex_lock(&s->lock);
    store_condemn_node(s, hit->impl, reason);
    pthread_mutex_unlock(&s->lock);
}

/* --- record tables ---------------------------------------------------------------------------- */

int store_read_header(struct store *s, const struct extent *x, void *block,
                      struct chunk_header *out, struct err *err)
{
    int rc = s->media->ops->read(s->media, x->device, x->segment, x->offset, block,
                                 CHUNK_HEADER_BYTES, err);
    if (rc == 0)
        rc = chunk_header_decode(block, out, err);
    if (rc != 0)
        return rc;
    if (memcmp(out->uuid, s->uuid, sizeof s->uuid) != 0 || out->id != x->id ||
        out->device != x->device || out->segment != x->segment ||
        out->offset != x->offset || out->n_bytes != extent_bytes(x) ||
        out->n_records != x->n_records ||
        memcmp(out->key.b, x->node->key.b, sizeof out->key.b) != 0)
        return err_set(err, ERR_CORRUPT, "an extent's header is not that of its index row");
    return 0;
}

int store_load_records(struct store *s, const struct extent *x, struct chunk_record *out,
                       struct err *err)
{
    int rc = ERR_CORRUPT;
    if (s->index != NULL) {
        pthread_mutex_lock(&s->index_lock);
        rc = index_records(s->index, x->id, x->n_records, extent_bytes(x), out, err);
        pthread_mutex_unlock(&s->index_lock);
    }
    if (rc == 0)
        return 0;
    struct chunk_header *h = xmalloc(sizeof *h);
    void *block = mem_map(CHUNK_HEADER_BYTES);
    rc = block == NULL ? err_set(err, -ENOMEM, "no memory for a header")
                       : store_read_header(s, x, block, h, err);
    if (rc == 0)
        memcpy(out, h->records, h->n_records * sizeof out[0]);
    if (block != NULL)
        mem_unmap(block, CHUNK_HEADER_BYTES);
    free(h);
    return rc;
}

int store_load_node(struct store *s, struct chunk_node *n, struct err *err)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct extent *x = n->extents;
        while (x != NULL && (x->records != NULL || x->state != EXTENT_LIVE))
            x = x->next;
        pthread_mutex_unlock(&s->lock);
        if (x == NULL)
            return 0;
        /* x stays valid: its node is pinned, and its place does not change. */
        struct chunk_record *records = xmalloc(x->n_records * sizeof records[0]);
        int rc = store_load_records(s, x, records, err);
        pthread_mutex_lock(&s->lock);
        if (rc == 0 && x->records == NULL) {
            x->records = records;
            records = NULL;
        }
        pthread_mutex_unlock(&s->lock);
        free(records);
        if (rc != 0)
            return rc;
    }
}

/* --- lookup ----------------------------------------------------------------------------------- */

/* Returns the newest reason of the key; NULL if there is none. */
static const struct store_reason *reason_of(const struct store *s, const struct sha256 *key)
{
    for (uint32_t i = 0; i < STORE_MAX_REASONS && i < s->n_reasons; i++) {
        const struct store_reason *r =
            &s->reasons[(s->n_reasons - 1 - i) % STORE_MAX_REASONS];
        if (r->text[0] != 0 && memcmp(r->key.b, key->b, sizeof key->b) == 0)
            return r;
    }
    return NULL;
}

bool store_was_damaged(struct store *s, const struct sha256 *key)
{
    pthread_mutex_lock(&s->lock);
    const struct chunk_node *n = catalog_find(&s->catalog, key);
    bool damaged = (n == NULL || n->n_live == 0) && reason_of(s, key) != NULL;
    pthread_mutex_unlock(&s->lock);
    return damaged;
}

void store_forget_reasons(struct store *s, const struct sha256 *key)
{
    for (uint32_t i = 0; i < STORE_MAX_REASONS && i < s->n_reasons; i++)
        if (memcmp(s->reasons[i].key.b, key->b, sizeof key->b) == 0)
            s->reasons[i].text[0] = 0;
    store_forget_eviction(s, key);
}

static const char *const miss_names[STORE_MISSES] = {
    [STORE_MISS_ABSENT] = "absent",           [STORE_MISS_EVICTED] = "evicted",
    [STORE_MISS_UNCOMMITTED] = "uncommitted", [STORE_MISS_DAMAGED] = "damaged",
    [STORE_MISS_UNREADABLE] = "unreadable",   [STORE_MISS_OTHER_STATE] = "other_state",
};

const char *store_miss_name(enum store_miss why)
{
    return miss_names[why];
}

/* [lock] Returns the reason why this key is missing. */
static enum store_miss why_missing(const struct store *s, const struct sha256 *key,
                                   bool is_first, char *why, size_t why_bytes)
{
    const struct store_reason *r = reason_of(s, key);
    const struct chunk_node *n = catalog_find(&s->catalog, key);
    if (r != NULL) {
        snprintf(why, why_bytes, "damaged (%s)", r->text);
        return STORE_MISS_DAMAGED;
    }
    if (n != NULL && n->n_pending > 0) {
        snprintf(why, why_bytes, STORE_WHY_UNCOMMITTED);
        return STORE_MISS_UNCOMMITTED;
    }
    if (store_was_evicted(s, key)) {
        snprintf(why, why_bytes, "evicted");
        return STORE_MISS_EVICTED;
    }
    if (is_first && s->has_expected && s->catalog.n_chunks > 0 &&
        !catalog_knows(&s->catalog, &s->expected)) {
        char hex[65] = "";
        for (uint32_t i = 0; i < s->catalog.n_fingerprints; i++)
            if (s->catalog.fingerprints[i].n_nodes > 0)
                sha256_hex(&s->catalog.fingerprints[i].value, hex);
        snprintf(why, why_bytes, "state of another model or build (fingerprint %.8s..)",
                 hex);
        return STORE_MISS_OTHER_STATE;
    }
    snprintf(why, why_bytes, STORE_WHY_ABSENT);
    return STORE_MISS_ABSENT;
}

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

bool store_pin(struct store *s, const struct sha256 *key, struct store_hit *hit)
{
    pthread_mutex_lock(&s->lock);
    struct chunk_node *n = catalog_find(&s->catalog, key);
    bool found = n != NULL && n->n_live > 0 && !n->doomed;
    if (found)
        *hit = store_pin_node(s, n);
    pthread_mutex_unlock(&s->lock);
    return found;
}

int store_load(struct store *s, const struct store_hit *hit, struct err *err)
{
    return store_load_node(s, hit->impl, err);
}

int store_count(struct store *s, const struct sha256 *keys, int n)
{
    int i = 0;
    pthread_mutex_lock(&s->lock);
    for (; i < n; i++) {
        const struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        if (node == NULL || node->n_live == 0 || node->doomed)
            break;
    }
    pthread_mutex_unlock(&s->lock);
    return i;
}

struct store_hit store_hold(struct store *s, const struct store_hit *held)
{
    CHECK(held->impl != NULL);
    pthread_mutex_lock(&s->lock);
    (void)store_pin_node(s, held->impl);
    pthread_mutex_unlock(&s->lock);
    return *held; /* the copy has the records that the first look-up found */
}

bool store_hits_stand(struct store *s, const struct store_hit *hits, int n)
{
    bool stand = true;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        const struct chunk_node *node = hits[i].impl;
        stand = stand && node->n_live > 0 && !node->doomed;
    }
    pthread_mutex_unlock(&s->lock);
    return stand;
}

/* [lock] Pins the longest stored beginning of keys[0..n). Returns its length. */
static int chain_pin(struct store *s, const struct sha256 *keys, int n,
                     struct store_hit *hits, enum store_miss *miss, char *why,
                     size_t why_bytes)
{
    int i = 0;
    for (; i < n; i++) {
        struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        if (node == NULL || node->n_live == 0 || node->doomed) {
            *miss = why_missing(s, &keys[i], i == 0, why, why_bytes);
            break;
        }
        hits[i] = store_pin_node(s, node);
    }
    if (i == n)
        snprintf(why, why_bytes, "complete");
    return i;
}

int store_lookup(struct store *s, const struct sha256 *keys, int n, struct store_hit *hits,
                 int *n_hits, char *why, size_t why_bytes, struct err *err)
{
    return store_lookup_for(s, NULL, keys, n, hits, n_hits, why, why_bytes, err);
}

int store_lookup_for(struct store *s, const struct store_use *use,
                     const struct sha256 *keys, int n, struct store_hit *hits, int *n_hits,
                     char *why, size_t why_bytes, struct err *err)
{
    (void)err; /* any error is a miss with a reason */
    char unused[1];
    if (why == NULL) {
        why = unused;
        why_bytes = sizeof unused;
    }
    pthread_mutex_lock(&s->lock);
    enum store_miss miss = STORE_MISS_ABSENT;
    int n_pinned = chain_pin(s, keys, n, hits, &miss, why, why_bytes);
    pthread_mutex_unlock(&s->lock);

    int n_good = 0;
    struct err fault = {0};
    while (n_good < n_pinned && store_load_node(s, hits[n_good].impl, &fault) == 0)
        n_good++;

    pthread_mutex_lock(&s->lock);
    if (n_good < n_pinned) {
        miss = STORE_MISS_UNREADABLE;
        snprintf(why, why_bytes, "header unreadable (%s)", fault.msg);
        if (fault.code == ERR_CORRUPT || fault.code == ERR_FORMAT)
            store_condemn_node(s, hits[n_good].impl, "header unreadable");
        for (int i = n_good; i < n_pinned; i++) {
            store_unpin(s, hits[i].impl);
            hits[i].impl = NULL;
        }
    }
    for (int i = n_good - 1; i >= 0; i--) {
        store_touch_node(s, hits[i].impl, use);
        store_note_headers(s, hits[i].impl);
    }
    s->n_hits += (uint64_t)n_good;
    s->misses[miss] += (uint64_t)(n - n_good);
    pthread_mutex_unlock(&s->lock);
    *n_hits = n_good;
    return 0;
}

bool store_find_partial(struct store *s, const struct sha256 *parent, const int32_t *tokens,
                        int n_tokens, struct sha256 *key, int *n_found)
{
    CHECK(n_tokens < STORE_CHUNK_TOKENS);
    bool found = false;
    for (int i = n_tokens; i >= 1 && !found; i--) {
        *key = store_partial_key(parent, tokens, i);
        *n_found = i;
        pthread_mutex_lock(&s->lock);
        const struct chunk_node *n = catalog_find(&s->catalog, key);
        found = n != NULL && n->n_live > 0 && !n->doomed;
        bool none = s->catalog.n_partial == 0;
        pthread_mutex_unlock(&s->lock);
        if (none)
            break;
    }
    return found;
}

/* --- samples ---------------------------------------------------------------------------------- */

/* Returns whether a chunk may be sampled. continued: whether other chunks must continue it. A chunk
 * that is continued cannot be evicted anyway, so pinning it keeps fewer other chunks from
 * eviction. */
static bool is_sample(const struct store *s, const struct chunk_node *n,
                      const struct sha256 *fingerprint, bool continued)
{
    const struct sha256 *of = &s->catalog.fingerprints[n->fingerprint_idx].value;
    return n->n_live > 0 && !n->doomed && n->n_tokens == STORE_CHUNK_TOKENS &&
           (n->n_children > 0) == continued &&
           memcmp(of->b, fingerprint->b, sizeof of->b) == 0;
}

/* [lock] Adds hits to hits[0..n_pinned), up to n. Returns the new number of hits. */
static int sample_pin(struct store *s, const struct sha256 *fingerprint, bool continued,
                      struct store_hit *hits, int n_pinned, int n)
{
    const struct catalog *c = &s->catalog;
    for (uint64_t i = 0; i < c->n_buckets && n_pinned < n; i++)
        for (struct chunk_node *x = c->buckets[i]; x != NULL && n_pinned < n; x = x->next)
            if (is_sample(s, x, fingerprint, continued))
                hits[n_pinned++] = store_pin_node(s, x);
    return n_pinned;
}

int store_sample(struct store *s, const struct sha256 *fingerprint, int n,
                 struct store_hit *hits)
{
    int n_good = 0;
    pthread_mutex_lock(&s->lock);
    int n_pinned = sample_pin(s, fingerprint, true, hits, 0, n);
    n_pinned = sample_pin(s, fingerprint, false, hits, n_pinned, n);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n_pinned; i++) {
        struct err unused;
        if (store_load_node(s, hits[i].impl, &unused) == 0)
            hits[n_good++] = hits[i];
        else
            store_release(s, &hits[i], 1);
    }
    return n_good;
}

void store_expect(struct store *s, const struct sha256 *fingerprint)
{
    pthread_mutex_lock(&s->lock);
    s->has_expected = fingerprint != NULL;
    if (fingerprint != NULL)
        s->expected = *fingerprint;
    pthread_mutex_unlock(&s->lock);
}
