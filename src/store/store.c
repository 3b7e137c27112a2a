/* store.c - life cycle: open, close, statistics, listing.
 *
 * The rest of the store is in the files that store_impl.h lists. */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "io/io.h"
#include "store/store_impl.h"

char *store_path(const char *dir, const char *name)
{
    return xasprintf("%s/%s", dir, name);
}

static struct store *store_new(const struct store_opts *opts)
{
    struct store *s = xcalloc(1, sizeof *s);
    s->io = opts->io;
    s->quota_bytes = opts->quota_bytes;
    s->guarantee_bytes = opts->guarantee_bytes;
    s->stuck_ns = opts->stuck_ns > 0 ? opts->stuck_ns : STORE_STUCK_NS;
    s->read_only = opts->read_only;
    s->is_fresh = opts->io != NULL;
    s->next_id = 1;
    s->erasures.epoch = 1;
    s->id_limit = UINT64_MAX;
    s->pending_end = &s->pending;
    pthread_mutex_init(&s->erase_lock, NULL);
    pthread_mutex_init(&s->wipe_lock, NULL);
    pthread_mutex_init(&s->commit_lock, NULL);
    pthread_mutex_init(&s->index_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->writer_left, NULL);
    catalog_init(&s->catalog, opts->policy, opts->dram_bytes > 0);
    return s;
}

/* Frees a store, also one that was opened halfway. */
static void store_free(struct store *s)
{
    store_free_wants(s);
    tier_close(s->tier, &s->catalog);
    s->tier = NULL;
    catalog_deinit(&s->catalog);
    store_free_list(s->freeing);
    store_free_list(s->wiping);
    for (int i = 0; i < STORE_MAX_DEVICES; i++)
        alloc_deinit(&s->alloc[i]);
    free(s->touched);
    free(s->pin_changes);
    free(s->supersedes);
    free(s->owed.entries);
    erasures_deinit(&s->erasures);
    free(s->headers);
    index_close(s->index);
    if (s->media != NULL)
        s->media->ops->close(s->media);
    io_file_close(s->lock_file);
    free(s->index_path);
    for (int i = 0; i < s->n_dirs; i++)
        free(s->dirs[i]);
    pthread_cond_destroy(&s->writer_left);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->index_lock);
    pthread_mutex_destroy(&s->commit_lock);
    pthread_mutex_destroy(&s->wipe_lock);
    pthread_mutex_destroy(&s->erase_lock);
    free(s);
}

/* Evicts down to the cap, which may be lower than before. On a full disk the eviction waits for the
 * next append, which makes room or is refused. */
static int store_shrink(struct store *s, struct err *err)
{
    if (s->read_only)
        return 0;
    pthread_mutex_lock(&s->lock);
    store_expire_pins(s);
    int rc = store_check_guarantees(s, err);
    if (rc == 0)
        rc = store_make_room(s, 0, NULL, err);
    pthread_mutex_unlock(&s->lock);
    return rc == -ENOSPC ? 0 : rc;
}

/* Smallest arena of a tier that the user has not asked for. A smaller one is not worth its
 * memory. */
#define LEAST_OPTIONAL_DRAM ((uint64_t)64 << 20)

static int open_tier(struct store *s, const struct store_opts *opts, struct err *err)
{
    struct tier_opts o = {.bytes = opts->dram_bytes,
                          .memory = opts->memory,
                          .ahead_bytes = opts->dram_ahead_bytes,
                          .policy = opts->policy == PLACEMENT_OURS
                                        ? PLACEMENT_OURS
                                        : PLACEMENT_ATTENTIONSTORE,
                          .window = s->catalog.window,
                          .wants = &s->wants,
                          .lock = &s->lock};
    if (opts->dram_bytes == 0 || s->index == NULL || s->read_only)
        return 0;
    if (opts->dram_bytes < STORE_MIN_DRAM)
        return err_set(err, ERR_USAGE,
                       "a DRAM tier of %llu bytes is too small: the least is %d",
                       (unsigned long long)opts->dram_bytes, STORE_MIN_DRAM);
    int rc = tier_open(&o, &s->tier, err);
    while (rc == -ENOMEM && opts->dram_optional) {
        o.bytes /= 2;
        rc = o.bytes >= LEAST_OPTIONAL_DRAM ? tier_open(&o, &s->tier, err) : 0;
    }
    return rc;
}

static int open_once(const struct store_opts *opts, struct store **out, struct err *err)
{
    struct store *s = store_new(opts);
    int rc = store_cap_share(s, opts, err);
    if (rc == 0 && opts->segment_bytes % STORE_ALIGN != 0)
        rc = err_set(err, ERR_USAGE, "segments must be whole blocks of %d bytes",
                     STORE_ALIGN);
    if (rc == 0 && s->io != NULL)
        rc = store_recover(s, opts, err);
    else if (rc == 0) {
        s->media = dram_open(
            opts->segment_bytes != 0 ? opts->segment_bytes : STORE_SEGMENT_BYTES, opts);
        alloc_init(&s->alloc[0], s->media->segment_bytes);
    }
    if (rc == 0)
        rc = store_shrink(s, err);
    if (rc == 0)
        rc = store_pay_owed(s, err);
    if (rc == 0)
        rc = open_tier(s, opts, err);
    if (rc == 0)
        store_finish_erase(s);
    if (rc != 0) {
        store_free(s);
        return rc;
    }
    store_expire_at_open(s);
    store_cut_to_cap(s);
    store_fill_reserve(s);
    *out = s;
    return 0;
}

/* Opening may need space, for example to rebuild the index. On a full disk the reserve is released,
 * which is enough for a small index. */
int store_open(const struct store_opts *opts, struct store **out, struct err *err)
{
    int rc = open_once(opts, out, err);
    if (rc == -ENOSPC && opts->io != NULL && !opts->read_only &&
        store_release_reserve(opts->io, opts->dirs[0]))
        rc = open_once(opts, out, err);
    return rc;
}

const char *store_beside(const struct store *s)
{
    return !s->is_beside ? NULL : s->holder[0] != 0 ? s->holder : "another process";
}

void store_close(struct store *s)
{
    if (s == NULL)
        return;
    /* An error of this commit is ignored: it would only lose times of last use. */
    if (!s->read_only && s->saving_err.code == 0)
        (void)store_commit_run(s, STORE_COMMIT_TOUCHED | STORE_COMMIT_PINS, NULL);
    store_free(s);
}

void store_stats(struct store *s, struct store_stats *out)
{
    struct media *m = s->media;
    pthread_mutex_lock(&s->lock);
    *out = (struct store_stats){
        .tier = s->index != NULL ? "disk" : "dram",
        .n_chunks = s->catalog.n_chunks,
        .n_partial = s->catalog.n_partial,
        .n_pins = s->catalog.n_pins,
        .n_expiring = s->catalog.expiry.n,
        .n_guarantees = s->catalog.n_guaranteed,
        .guaranteed_bytes = s->catalog.guaranteed_bytes,
        .guarantee_limit_bytes = store_guarantee_limit(s->cap_bytes),
        .n_guarantees_broken = s->n_guarantees_broken,
        .pending_bytes = s->pending_bytes,
        .freeing_bytes = s->freeing_bytes + s->wiping_bytes,
        .n_evicted_pinned = s->n_evicted_pinned,
        .n_checksum_failures = s->n_checksum_failures,
        .n_read_failures = s->n_read_failures,
        .used_bytes = s->used_bytes,
        .cap_bytes = s->cap_bytes,
        .files_cap_bytes = s->files_cap_bytes,
        .appended_bytes = s->appended_bytes,
        .read_bytes = s->read_bytes,
        .n_hits = s->n_hits,
        .n_corrupt = s->n_corrupt,
        .n_devices = m->n_devices,
        .n_extents = s->catalog.n_live,
        .saving_fault = s->saving_err.code,
    };
    tier_stats(s->tier, &out->dram);
    memcpy(out->misses, s->misses, sizeof out->misses);
    memcpy(out->evictions, s->evictions, sizeof out->evictions);
    for (int i = 0; i < STORE_MISSES; i++)
        out->n_misses += s->misses[i];
    for (int i = 0; i <= STORE_EVICT_SUPERSEDED; i++)
        out->n_evicted += s->evictions[i];
    for (int d = 0; d < m->n_devices; d++)
        out->device_bytes[d] = s->alloc[d].used_bytes;
    for (int d = 0; d < m->n_devices; d++)
        for (uint32_t i = 0; i < m->ops->n_segments(m, d); i++)
            out->file_bytes += m->ops->segment_size(m, d, i);
    pthread_mutex_unlock(&s->lock);
}

void store_dram_stats(struct store *s, struct store_dram *out)
{
    pthread_mutex_lock(&s->lock);
    tier_stats(s->tier, out);
    pthread_mutex_unlock(&s->lock);
}

bool store_await_dram(struct store *s, int64_t timeout_ns, uint64_t *n_bytes)
{
    return tier_await_memory(s->tier, timeout_ns, n_bytes);
}

static const char *const evict_names[STORE_EVICTS] = {
    [STORE_EVICT_CAP] = "cap",
    [STORE_EVICT_SPACE] = "disk_full",
    [STORE_EVICT_QUOTA] = "quota",
    [STORE_EVICT_IDLE] = "idle",
    [STORE_EVICT_EXPIRED] = "expired",
    [STORE_EVICT_ORPHAN] = "orphan",
    [STORE_EVICT_SUPERSEDED] = "superseded",
    [STORE_EVICT_ERASED] = "erased",
    [STORE_EVICT_DAMAGED] = "damaged",
};

const char *store_evict_name(enum store_evict why)
{
    return evict_names[why];
}

static uint64_t list_bytes(const struct extent *list)
{
    uint64_t n_bytes = 0;
    for (const struct extent *x = list; x != NULL; x = x->next)
        n_bytes += extent_bytes(x);
    return n_bytes;
}

bool store_audit(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    bool good = catalog_audit(&s->catalog) && tier_audit(s->tier, &s->catalog);
    uint64_t used_bytes = 0, freeing_bytes = list_bytes(s->freeing),
             wiping_bytes = list_bytes(s->wiping);
    for (int d = 0; d < s->media->n_devices; d++) {
        good = good && alloc_audit(&s->alloc[d]);
        used_bytes += s->alloc[d].used_bytes;
    }
    good = good && used_bytes == s->used_bytes && freeing_bytes == s->freeing_bytes &&
           wiping_bytes == s->wiping_bytes &&
           catalog_bytes(&s->catalog) + freeing_bytes + wiping_bytes == used_bytes &&
           (s->cap_bytes == 0 || s->read_only || used_bytes <= s->cap_bytes);
    pthread_mutex_unlock(&s->lock);
    return good;
}

/* --- listing ---------------------------------------------------------------------------------- */

/* A chunk that is listed, and its entry in the listing. */
struct leaf {
    struct chunk_node *node;
    struct store_entry entry;
};

static int by_parent(const void *a, const void *b)
{
    const struct leaf *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->node->parent, q = (uintptr_t)y->node->parent;
    if (p != q)
        return p < q ? -1 : 1;
    return memcmp(x->node->key.b, y->node->key.b, sizeof x->node->key.b);
}

static struct store_entry entry_of(const struct store *s, const struct chunk_node *n)
{
    struct store_entry e = {
        .key = n->key,
        .fingerprint = s->catalog.fingerprints[n->fingerprint_idx].value,
        .owner = s->catalog.owners[n->owner_idx].tag,
        .chunk_idx = n->chunk_idx,
        .n_tokens = n->n_tokens,
        .mask = n->mask,
        .used_wall_s = n->place.used_time,
        .tick = n->place.used_at,
        .pinned_until_wall_s = n->pin_at != 0 ? s->catalog.pins[n->pin_at - 1].until_wall_s
                                              : 0,
        .expires_wall_s = n->ttl_s > 0 ? (int64_t)n->place.used_time + n->ttl_s : 0,
        .is_guaranteed = n->n_guarded > 0,
    };
    if (n->parent != NULL)
        e.parent = n->parent->key;
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        if (x->state == EXTENT_LIVE)
            e.bytes += extent_bytes(x);
    return e;
}

/* Returns whether a chunk is listed. with_pending: chunks whose extents are all uncommitted are
 * listed, too. */
static bool is_listed(const struct chunk_node *n, bool with_pending)
{
    return !n->doomed && (n->n_live > 0 || (with_pending && n->n_pending > 0));
}

/* [lock] Returns how many chunks are listed. */
static uint64_t count_listed(const struct catalog *c, bool with_pending)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (const struct chunk_node *node = c->buckets[i]; node != NULL; node = node->next)
            n += is_listed(node, with_pending);
    return n;
}

/* [lock] Returns the listed chunks, sorted by the addresses of their parents; NULL if there is no
 * memory. */
static struct leaf *leaves_take(struct store *s, bool with_pending, uint64_t *n_out)
{
    const struct catalog *c = &s->catalog;
    struct leaf *leaves = mem_try((count_listed(c, with_pending) + 1) * sizeof leaves[0]);
    uint64_t n = 0;
    *n_out = 0;
    if (leaves == NULL)
        return NULL;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (struct chunk_node *node = c->buckets[i]; node != NULL; node = node->next)
            if (is_listed(node, with_pending))
                leaves[n++] = (struct leaf){node, entry_of(s, node)};
    qsort(leaves, n, sizeof leaves[0], by_parent);
    *n_out = n;
    return leaves;
}

/* Returns the index of the first leaf whose parent has this or a higher address. */
static uint64_t children_begin(const struct leaf *leaves, uint64_t n,
                               const struct chunk_node *parent)
{
    uint64_t lo = 0, hi = n;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)leaves[mid].node->parent < (uintptr_t)parent)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Computes the order of listing: depth first, so that a chain stands together. `order` has room for
 * n numbers, and behind them for n more, which are used as a stack. Returns the number of listed
 * chunks. */
static uint64_t leaves_order(const struct leaf *leaves, uint64_t n, bool with_pending,
                             uint64_t *order)
{
    uint64_t *stack = order + n;
    uint64_t n_order = 0, n_stack = 0;
    for (uint64_t i = n; i-- > 0;)
        if (leaves[i].node->parent == NULL ||
            !is_listed(leaves[i].node->parent, with_pending))
            stack[n_stack++] = i;
    while (n_stack > 0) {
        uint64_t i = stack[--n_stack];
        order[n_order++] = i;
        const struct chunk_node *node = leaves[i].node;
        for (uint64_t j = children_begin(leaves, n, node);
             j < n && leaves[j].node->parent == node; j++)
            stack[n_stack++] = j;
    }
    return n_order;
}

static int each(struct store *s, bool with_pending,
                int (*fn)(void *arg, const struct store_entry *e), void *arg,
                struct err *err)
{
    uint64_t n, n_order = 0;
    pthread_mutex_lock(&s->lock);
    struct leaf *leaves = leaves_take(s, with_pending, &n);
    uint64_t *order = mem_try((2 * n + 1) * sizeof order[0]);
    int rc = 0;
    if (leaves == NULL || order == NULL)
        rc = err_set(err, -ENOMEM, "no memory to list %llu chunks",
                     (unsigned long long)s->catalog.n_chunks);
    else
        n_order = leaves_order(leaves, n, with_pending, order);
    pthread_mutex_unlock(&s->lock);
    for (uint64_t i = 0; i < n_order && rc == 0; i++)
        rc = fn(arg, &leaves[order[i]].entry);
    free(order);
    free(leaves);
    return rc;
}

int store_each(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
               void *arg, struct err *err)
{
    return each(s, false, fn, arg, err);
}

int store_each_appended(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
                        void *arg, struct err *err)
{
    return each(s, true, fn, arg, err);
}
