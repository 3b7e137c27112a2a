/* store.c - life cycle: open, close, statistics, listing.
 *
 * The rest of the store is in the files that store_impl.h lists. */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/io.h"
#include "store/store_impl.h"

static struct store *store_new(const struct store_opts *opts)
{
    struct store *s = xcalloc(1, sizeof *s);
    s->home = (struct home){
        .io = opts->io,
        .read_only = opts->read_only,
        .stuck_ns = opts->stuck_ns > 0 ? opts->stuck_ns : STORE_STUCK_NS,
    };
    ledger_init(&s->ledger);
    s->ledger.is_fresh = opts->io != NULL;
    s->ledger.takes_notes = opts->io != NULL && !opts->read_only;
    s->erasing.marks.epoch = 1;
    pthread_mutex_init(&s->erasing.erase_lock, NULL);
    pthread_mutex_init(&s->erasing.wipe_lock, NULL);
    pthread_mutex_init(&s->commit_lock, NULL);
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
    space_deinit(&s->space);
    free(s->erasing.owed.entries);
    erasures_deinit(&s->erasing.marks);
    free(s->headers);
    ledger_deinit(&s->ledger);
    if (s->media != NULL)
        s->media->ops->close(s->media);
    home_deinit(&s->home);
    pthread_cond_destroy(&s->writer_left);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->commit_lock);
    pthread_mutex_destroy(&s->erasing.wipe_lock);
    pthread_mutex_destroy(&s->erasing.erase_lock);
    free(s);
}

/* Evicts down to the cap, which may be lower than before. On a full disk the eviction waits for the
 * next append, which makes room or is refused. */
static int store_shrink(struct store *s, struct err *err)
{
    if (s->home.read_only)
        return 0;
    pthread_mutex_lock(&s->lock);
    store_expire_pins(s);
    int rc = store_check_guarantees(s, err);
    if (rc == 0)
        rc = store_make_room(s, 0, NULL, err);
    pthread_mutex_unlock(&s->lock);
    return rc == -ENOSPC ? 0 : rc;
}

/* Smallest arena of a tier that the user has not asked for. */
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
    if (opts->dram_bytes == 0 || s->ledger.index == NULL || s->home.read_only)
        return 0;
    if (opts->dram_bytes < STORE_MIN_DRAM)
        return err_set(err, ERR_USAGE,
                       "a DRAM tier of %llu bytes is too small: the least is %d",
                       (unsigned long long)opts->dram_bytes, STORE_MIN_DRAM);
    int rc = tier_open(&o, &s->tier, err);
    while (rc == -ENOMEM && opts->dram_optional) {
        o.bytes /= 2; /* below the least size the store opens without a tier */
        rc = o.bytes >= LEAST_OPTIONAL_DRAM ? tier_open(&o, &s->tier, err) : 0;
    }
    return rc;
}

static int open_once(const struct store_opts *opts, struct store **out, struct err *err)
{
    struct store *s = store_new(opts);
    int rc = space_bound(&s->space, opts, err);
    if (rc == 0 && opts->segment_bytes % STORE_ALIGN != 0)
        rc = err_set(err, ERR_USAGE, "segments must be whole blocks of %d bytes",
                     STORE_ALIGN);
    if (rc == 0 && s->home.io != NULL)
        rc = store_recover(s, opts, err);
    else if (rc == 0) {
        s->media = dram_open(
            opts->segment_bytes != 0 ? opts->segment_bytes : STORE_SEGMENT_BYTES, opts);
        space_begin(&s->space, 1, s->media->segment_bytes);
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
    uint64_t n_expired;
    if (!opts->read_only) /* after a failure a later call evicts them */
        (void)store_evict_expired(s, &n_expired, NULL);
    store_cut_to_cap(s);
    home_fill_reserve(&s->home, s->space.cap_bytes);
    *out = s;
    return 0;
}

/* Opening may need space, for example to rebuild the index. On a full disk the reserve is released,
 * which is enough for a small index. A mismatch may mean that several processes made the store:
 * then all their directories are tried. */
int store_open(const struct store_opts *opts, struct store **out, struct err *err)
{
    struct store_opts all = *opts;
    char *names[STORE_MAX_DEVICES] = {0};
    int rc = opts->n_processes > 1 ? store_all_dirs(&all, names, err) : 0;
    if (rc == 0)
        rc = open_once(&all, out, err);
    if (rc == ERR_MISMATCH && opts->n_processes <= 1) {
        int code = store_all_dirs(&all, names, err);
        bool has_more = code == 0 && all.n_dirs > opts->n_dirs;
        rc = has_more ? open_once(&all, out, err) : code != 0 ? code : rc;
    }
    if (rc == -ENOSPC && opts->io != NULL && !opts->read_only &&
        home_release_reserve(opts->io, opts->dirs[0]))
        rc = open_once(&all, out, err);
    for (int i = 0; i < STORE_MAX_DEVICES; i++)
        free(names[i]);
    return rc;
}

const char *store_beside(const struct store *s)
{
    return !s->home.is_beside       ? NULL
           : s->home.holder[0] != 0 ? s->home.holder
                                    : "another process";
}

void store_close(struct store *s)
{
    if (s == NULL)
        return;
    /* An error of this commit is ignored: it would only lose times of last use. */
    if (!s->home.read_only && s->saving_err.code == 0)
        (void)store_commit_run(s, STORE_COMMIT_TOUCHED | STORE_COMMIT_PINS, NULL);
    store_free(s);
}

void store_stats(struct store *s, struct store_stats *out)
{
    struct media *m = s->media;
    pthread_mutex_lock(&s->lock);
    *out = (struct store_stats){
        .tier = s->ledger.index != NULL ? "disk" : "dram",
        .n_chunks = s->catalog.n_chunks,
        .n_partial = s->catalog.n_partial,
        .n_pins = s->catalog.n_pins,
        .n_expiring = s->catalog.expiry.n,
        .n_guarantees = s->catalog.n_guaranteed,
        .guaranteed_bytes = s->catalog.guaranteed_bytes,
        .guarantee_limit_bytes = store_guarantee_limit(s->space.cap_bytes),
        .n_guarantees_broken = s->counts.n_guarantees_broken,
        .pending_bytes = s->ledger.pending_bytes,
        .freeing_bytes = s->space.freeing_bytes + s->space.wiping_bytes,
        .n_evicted_pinned = s->counts.n_evicted_pinned,
        .n_checksum_failures = s->counts.n_checksum_failures,
        .n_read_failures = s->counts.n_read_failures,
        .used_bytes = s->space.used_bytes,
        .cap_bytes = s->space.cap_bytes,
        .files_cap_bytes = s->space.files_cap_bytes,
        .appended_bytes = s->counts.appended_bytes,
        .read_bytes = s->counts.read_bytes,
        .n_hits = s->counts.n_hits,
        .n_corrupt = s->counts.n_corrupt,
        .n_devices = m->n_devices,
        .n_extents = s->catalog.n_live,
        .saving_fault = s->saving_err.code,
    };
    tier_stats(s->tier, &out->dram);
    memcpy(out->misses, s->counts.misses, sizeof out->misses);
    memcpy(out->evictions, s->counts.evictions, sizeof out->evictions);
    for (int i = 0; i < STORE_MISSES; i++)
        out->n_misses += s->counts.misses[i];
    for (int i = 0; i <= STORE_EVICT_SUPERSEDED; i++)
        out->n_evicted += s->counts.evictions[i];
    for (int d = 0; d < m->n_devices; d++)
        out->device_bytes[d] = s->space.alloc[d].used_bytes;
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

bool store_audit(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    bool good = catalog_audit(&s->catalog) && tier_audit(s->tier, &s->catalog) &&
                space_audit(&s->space, s->media->n_devices, catalog_bytes(&s->catalog)) &&
                (s->space.cap_bytes == 0 || s->home.read_only ||
                 s->space.used_bytes <= s->space.cap_bytes);
    pthread_mutex_unlock(&s->lock);
    return good;
}
