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
#include "base/mem.h"
#include "store/store_impl.h"

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
        rc = chunk_header_open(s->home.seal, s->home.owners, block, out, err);
    if (rc != 0)
        return rc;
    if (memcmp(out->uuid, s->home.uuid, sizeof s->home.uuid) != 0 || out->id != x->id ||
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
    if (s->ledger.index != NULL) {
        pthread_mutex_lock(&s->ledger.index_lock);
        rc = index_records(s->ledger.index, x->id, x->n_records, extent_bytes(x), out, err);
        pthread_mutex_unlock(&s->ledger.index_lock);
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

/* --- headers of chunks that are served ----------------------------------------------------------
 *
 * Restoring reads records, not headers, so damage in a header alone would stay unnoticed until the
 * index is lost: a rebuild drops the chunk. Lookups note the chunks that they find, each once since
 * open. store_settle reads their headers and condemns damaged chunks. The next request of that
 * context computes the chunk again, and the saver then checks all that is stored behind it. */

/* [lock] Notes the chunk for store_check_headers, unless it was noted before or the list is
 * full. */
static void store_note_headers(struct store *s, struct chunk_node *n)
{
    if (n->has_header_noted || !s->ledger.takes_notes || s->n_headers == STORE_MAX_HEADERS)
        return;
    if (s->headers == NULL)
        s->headers = mem_try(STORE_MAX_HEADERS * sizeof s->headers[0]);
    if (s->headers == NULL)
        return;
    n->has_header_noted = true;
    s->headers[s->n_headers++] = n->key;
}

/* --- lookup ----------------------------------------------------------------------------------- */

bool store_was_damaged(struct store *s, const struct sha256 *key)
{
    pthread_mutex_lock(&s->lock);
    const struct chunk_node *n = catalog_find(&s->catalog, key);
    bool damaged = (n == NULL || n->n_live == 0) && whys_damaged(&s->whys, key) != NULL;
    pthread_mutex_unlock(&s->lock);
    return damaged;
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
    const char *damage = whys_damaged(&s->whys, key);
    const struct chunk_node *n = catalog_find(&s->catalog, key);
    if (damage != NULL) {
        snprintf(why, why_bytes, "damaged (%s)", damage);
        return STORE_MISS_DAMAGED;
    }
    if (n != NULL && n->n_pending > 0) {
        snprintf(why, why_bytes, STORE_WHY_UNCOMMITTED);
        return STORE_MISS_UNCOMMITTED;
    }
    if (whys_evicted(&s->whys, key)) {
        snprintf(why, why_bytes, "evicted");
        return STORE_MISS_EVICTED;
    }
    if (is_first && s->whys.has_expected && s->catalog.n_chunks > 0 &&
        !catalog_knows(&s->catalog, &s->whys.expected)) {
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

bool store_pin(struct store *s, const struct sha256 *key, struct store_hit *hit)
{
    pthread_mutex_lock(&s->lock);
    struct chunk_node *n = catalog_find(&s->catalog, key);
    bool found = n != NULL && n->n_live > 0 && !n->doomed;
    if (found && hit != NULL)
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

/* [lock] Pins the longest stored beginning of keys[0..n) into hits[]. Returns its length. If it is
 * shorter than n, *miss and why[] get the reason; else only why[] is set. */
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

/* [lock] Adds the bytes to be read for each kind of record to hit->bytes. The chunk's records are
 * loaded. */
static void note_bytes(const struct store *s, struct store_hit *hit)
{
    const struct chunk_node *node = hit->impl;
    for (const struct extent *x = node->extents; x != NULL; x = x->next) {
        const struct io_file *file = s->media->ops->file(s->media, x->device, x->segment);
        for (int i = 0; x->state == EXTENT_LIVE && i < x->n_records; i++) {
            const struct chunk_record *r = &x->records[i];
            uint64_t offset = x->offset + r->offset;
            hit->bytes[r->kind] += (uint32_t)media_sectors(file, r->n_bytes, &offset);
        }
    }
}

bool store_has_unpacked(struct store *s, const struct store_hit *hit)
{
    const uint32_t block = STORE_ALIGN + (s->home.seal != NULL ? SEAL_BYTES : 0);
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (const struct extent *x = ((struct chunk_node *)hit->impl)->extents; x != NULL;
         x = x->next)
        for (int i = 0; x->state == EXTENT_LIVE && x->records != NULL && i < x->n_records;
             i++)
            found |= !x->records[i].is_packed && x->records[i].n_bytes > block;
    pthread_mutex_unlock(&s->lock);
    return found;
}

int store_lookup(struct store *s, const struct store_use *use, const struct sha256 *keys,
                 int n, struct store_hit *hits, char *why, size_t why_bytes)
{
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
        note_bytes(s, &hits[i]);
        store_touch_node(s, hits[i].impl, use);
        store_note_headers(s, hits[i].impl);
    }
    s->counts.n_hits += (uint64_t)n_good;
    s->counts.misses[miss] += (uint64_t)(n - n_good);
    pthread_mutex_unlock(&s->lock);
    return n_good;
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

const struct extent *store_extent_nth(struct store *s, const struct store_hit *hit, int n)
{
    const struct chunk_node *node = hit->impl;
    const struct extent *x;
    pthread_mutex_lock(&s->lock);
    for (x = node->extents; x != NULL; x = x->next)
        if (x->state == EXTENT_LIVE && n-- == 0)
            break;
    pthread_mutex_unlock(&s->lock);
    return x;
}

/* Reads the headers of a chunk's extents, and condemns the chunk if one is damaged. A read error of
 * the device is no damage: it will show when the chunk is read. */
static void headers_check(struct store *s, const struct store_hit *hit, void *block,
                          struct chunk_header *h)
{
    const struct extent *x;
    for (int i = 0; (x = store_extent_nth(s, hit, i)) != NULL; i++) {
        struct err why = {0};
        char reason[96];
        int rc = store_read_header(s, x, block, h, &why);
        if (rc != ERR_CORRUPT && rc != ERR_FORMAT)
            continue;
        snprintf(reason, sizeof reason, "its header: %.80s", why.msg);
        store_condemn(s, hit, reason);
        return;
    }
}

/* Takes the newest key that store_note_headers has noted. Returns false if there is none. Takes
 * lock. */
static bool headers_take(struct store *s, struct sha256 *key)
{
    pthread_mutex_lock(&s->lock);
    bool found = s->n_headers > 0;
    if (found)
        *key = s->headers[--s->n_headers];
    pthread_mutex_unlock(&s->lock);
    return found;
}

void store_check_headers(struct store *s)
{
    enum { AT_ONCE = 256 };
    struct sha256 key;
    struct store_hit hit;
    void *block = mem_map(CHUNK_HEADER_BYTES);
    struct chunk_header *h = mem_try(sizeof *h);
    for (int i = 0; i < AT_ONCE && block != NULL && h != NULL && headers_take(s, &key);
         i++) {
        if (!store_pin(s, &key, &hit))
            continue; /* the chunk has gone meanwhile */
        headers_check(s, &hit, block, h);
        store_release(s, &hit, 1);
    }
    if (block != NULL)
        mem_unmap(block, CHUNK_HEADER_BYTES);
    free(h);
}

/* --- samples ---------------------------------------------------------------------------------- */

/* Returns whether a chunk may be sampled: a full one with this fingerprint. `continued` true: only
 * chunks that others continue. False: only leaves. */
static bool is_sample(const struct store *s, const struct chunk_node *n,
                      const struct sha256 *fingerprint, bool continued)
{
    const struct sha256 *of = &s->catalog.fingerprints[n->fingerprint_idx].value;
    return n->n_live > 0 && !n->doomed && n->n_tokens == STORE_CHUNK_TOKENS &&
           (n->n_children > 0) == continued &&
           memcmp(of->b, fingerprint->b, sizeof of->b) == 0;
}

/* [lock] Pins chunks that is_sample accepts and adds them behind the n_pinned hits, until there are
 * n. Returns the new number of hits. */
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
    /* Continued chunks come first: a pin on a leaf would keep its whole context from eviction. */
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
    s->whys.has_expected = fingerprint != NULL;
    if (fingerprint != NULL)
        s->whys.expected = *fingerprint;
    pthread_mutex_unlock(&s->lock);
}
