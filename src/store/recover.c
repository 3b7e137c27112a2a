/* recover.c - from directories to an open store.
 *
 *   1. make the directories, lock the first one
 *   2. read all superblocks; write the missing ones of a store that was never finished
 *      (superblocks.c)
 *   3. open the segment files
 *   4. open the index; if it is missing or in doubt, rebuild it from the extents' headers
 *   5. make a node for each chunk and claim each extent's space; space that no row names is free
 *
 * No input is trusted: two rows that claim the same bytes put the whole index in doubt. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/process.h"
#include "io/io.h"
#include "store/store_impl.h"
#include "store/superblock.h"

#define MIN_SEGMENT_BYTES (1ull << 16)
#define MAX_STEP_BYTES    (64ull << 20)
#define MAX_RESERVE       (1ull << 24)

/* --- lock ------------------------------------------------------------------------------------- */

/* Refuses two names of one folder (a link, a trailing slash, a bind mount): they would make two
 * devices that overwrite each other. Names of folders that do not exist yet are compared as
 * texts. */
static int dirs_differ(const struct store_opts *opts, struct err *err)
{
    struct io_stat st[STORE_MAX_DEVICES];
    bool known[STORE_MAX_DEVICES];
    for (int i = 0; i < opts->n_dirs; i++) {
        known[i] = io_stat(opts->io, opts->dirs[i], &st[i], NULL) == 0;
        for (int j = 0; j < i; j++) {
            if (strcmp(opts->dirs[i], opts->dirs[j]) == 0)
                return err_set(err, ERR_USAGE, "%s is given twice", opts->dirs[i]);
            if (known[i] && known[j] && st[i].device == st[j].device &&
                st[i].inode == st[j].inode)
                return err_set(err, ERR_USAGE,
                               "%s and %s are the same folder; give each device once",
                               opts->dirs[j], opts->dirs[i]);
        }
    }
    return 0;
}

/* Refuses folders of other users: the owner of a folder can replace every file in it. */
static int dirs_are_ours(const struct store_opts *opts, struct err *err)
{
    struct io_stat st;
    for (int i = 0; i < opts->n_dirs; i++)
        if (io_stat(opts->io, opts->dirs[i], &st, NULL) == 0 && st.is_foreign)
            return err_set(err, -EPERM,
                           "%s belongs to another user, who could replace the files of a "
                           "store there; give a folder of your own",
                           opts->dirs[i]);
    return 0;
}

static int dirs_exist(const struct store_opts *opts, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < opts->n_dirs && rc == 0; i++) {
        struct io_stat st;
        rc = io_stat(opts->io, opts->dirs[i], &st, err);
        if (rc == -ENOENT)
            rc = err_set(err, ERR_NOT_FOUND, "there is no store in %s", opts->dirs[i]);
        else if (rc == 0 && !st.is_dir)
            rc = err_set(err, -ENOTDIR, "%s is a file; a store is a folder", opts->dirs[i]);
    }
    return rc;
}

/* Makes all folders or none: a refused store leaves no folders behind. */
static int dirs_make(const struct store_opts *opts, struct err *err)
{
    int n_made[STORE_MAX_DEVICES], n = 0, rc = dirs_are_ours(opts, err);
    if (rc == 0)
        rc = store_check_dirs(opts, err);
    for (; n < opts->n_dirs && rc == 0; n++)
        rc = io_mkdirs(opts->io, opts->dirs[n], &n_made[n], err);
    if (rc == 0)
        rc = dirs_differ(opts, err);
    while (rc != 0 && n-- > 0)
        io_rmdirs(opts->io, opts->dirs[n], n_made[n]);
    return rc;
}

static void note_holder(struct store *s, const char *lock_path)
{
    struct io_stat st;
    if (io_stat(s->home.io, lock_path, &st, NULL) != 0 ||
        !process_with_file(st.device, st.inode, s->home.holder, sizeof s->home.holder))
        s->home.holder[0] = 0;
}

/* Returns ERR_BUSY with a message that names the process which holds the lock. */
static int busy_err(struct store *s, struct err *err)
{
    return err_set(
        err, ERR_BUSY,
        "the store in %s is in use by another process: %s. If it is a server, use its "
        "API (/v1/cache/..., /v1/conversations) or hcache run -i --url URL. Otherwise stop "
        "that process first",
        s->home.dirs[0],
        s->home.holder[0] != 0 ? s->home.holder : "it cannot be identified");
}

/* Takes the lock. The lock is on a file of its own, since it must be held before any other file
 * exists. Read-only users share the lock, which works even on a medium that cannot be written. If
 * another process writes the store, a read-only open returns 0 without the lock, and sets
 * is_beside. */
static int lock_take(struct store *s, const struct store_opts *opts, struct err *err)
{
    char *path = home_path(opts->dirs[0], "lock");
    unsigned flags = opts->read_only ? IO_READ_ONLY : IO_CREATE;
    int rc = io_file_open(opts->io, path, flags, &s->home.lock_file, err);
    if (rc == 0)
        rc = io_file_lock(s->home.lock_file, err);
    /* A read-only open of a missing store goes on: reading the superblocks gives a better
     * message. */
    if (rc == -ENOENT)
        rc = 0;
    if (rc == ERR_BUSY) {
        io_file_close(s->home.lock_file);
        s->home.lock_file = NULL;
        note_holder(s, path);
        rc = opts->read_only ? 0 : busy_err(s, err);
        s->home.is_beside = rc == 0;
    }
    free(path);
    return rc;
}

/* --- the index -------------------------------------------------------------------------------- */

static struct extent *extent_of(const struct index_row *row)
{
    struct extent *x = xcalloc(1, sizeof *x);
    x->id = row->id;
    x->offset = row->offset;
    x->segment = row->segment;
    x->n_blocks = row->n_blocks;
    x->n_records = row->n_records;
    x->device = (uint8_t)row->device;
    x->state = EXTENT_LIVE;
    return x;
}

bool store_row_is_in_file(const struct store *s, const struct index_row *row)
{
    uint64_t end = row->offset + (uint64_t)row->n_blocks * STORE_ALIGN;
    return s->media->ops->segment_size(s->media, row->device, row->segment) >= end;
}

/* Enters one row of the index. A row that cannot be right ends the load with ERR_CORRUPT. The store
 * stays consistent for any content. */
static int row_enter(void *arg, const struct index_row *row)
{
    struct store *s = arg;
    uint64_t n_bytes = (uint64_t)row->n_blocks * STORE_ALIGN;
    struct chunk_node *n;
    int rc = alloc_claim(&s->space.alloc[row->device], row->segment, row->offset, n_bytes);
    if (rc != 0)
        return rc;
    struct chunk_id id = {&row->key,      &row->parent,       &row->fingerprint, row->owner,
                          row->chunk_idx, (int)row->n_tokens, row->yields};
    rc = catalog_add(&s->catalog, &id, &n);
    if (rc != 0)
        return ERR_CORRUPT;
    s->space.used_bytes += n_bytes;
    bool is_last_use = row->tick > n->place.used_at;
    /* the tick has no checksum, and a wrong one must not make the counter wrap */
    if (row->tick < UINT64_MAX / 2)
        catalog_used_at(&s->catalog, n, row->tick, row->used_wall_s);
    if (row->is_dropped && row->tick == n->place.used_at)
        catalog_drop(&s->catalog, n);
    catalog_attach(&s->catalog, n, extent_of(row), &row->mask);
    if (is_last_use)
        catalog_set_ttl(&s->catalog, n, row->ttl_s);
    if (!store_row_is_in_file(s, row))
        store_condemn_node(s, n, STORE_NOT_IN_FILE);
    return 0;
}

/* Number of rows between reading a row and entering it into the catalog. A million chunks are a
 * million random places in memory. A row's places are prefetched when the row is read, and are in
 * the cache when it is entered. */
enum { ROWS_AHEAD = 16 };

struct loader {
    struct store *s;
    struct index_row row[ROWS_AHEAD];
    uint64_t n_seen, n_entered;
};

static int loader_enter(struct loader *l)
{
    return row_enter(l->s, &l->row[l->n_entered++ % ROWS_AHEAD]);
}

static int loader_see(void *arg, const struct index_row *row)
{
    struct loader *l = arg;
    const struct catalog *c = &l->s->catalog;
    l->row[l->n_seen++ % ROWS_AHEAD] = *row;
    catalog_prefetch_chain(c, &row->key);
    catalog_prefetch_chain(c, &row->parent);
    const struct index_row *half = &l->row[(l->n_seen + ROWS_AHEAD / 2) % ROWS_AHEAD];
    catalog_prefetch_node(c, &half->key);
    catalog_prefetch_node(c, &half->parent);
    return l->n_seen - l->n_entered == ROWS_AHEAD ? loader_enter(l) : 0;
}

/* Loads all rows of the index into catalog and allocators. */
static int rows_load(struct store *s, struct err *err)
{
    struct loader l = {.s = s};
    uint64_t n_rows = index_n_rows(
        s->ledger.index); /* a hint: a wrong number costs only memory */
    catalog_reserve(&s->catalog, MIN(n_rows, MAX_RESERVE));
    int rc = index_load(s->ledger.index, loader_see, &l, err);
    while (rc == 0 && l.n_entered < l.n_seen)
        rc = loader_enter(&l);
    return rc;
}

/* Forgets all that was loaded from a doubtful index, and closes it. */
static void load_undo(struct store *s)
{
    space_begin(&s->space, s->media->n_devices, s->media->segment_bytes);
    s->counts.n_corrupt = 0;
    s->counts.evictions[STORE_EVICT_DAMAGED] = 0;
    s->whys.n_reasons = 0;
    enum placement_kind policy = s->catalog.policy.kind;
    bool has_window = s->catalog.window != NULL;
    catalog_deinit(&s->catalog);
    catalog_init(&s->catalog, policy, has_window);
    index_close(s->ledger.index);
    s->ledger.index = NULL;
}

/* Enters the rows, places to be wiped and pins of the open index into the store's parts. */
static int index_enter(struct store *s, struct err *err)
{
    struct err why = {0};
    int rc = rows_load(s, &why);
    if (rc == 0)
        rc = store_load_wipes(s, &why);
    if (rc == 0)
        rc = store_load_pins(s, &why);
    if (rc == ERR_CORRUPT && why.msg[0] == 0)
        err_set(&why, rc, "index %s: two rows contradict each other", s->ledger.path);
    if (rc != 0)
        err_set(err, rc, "%s", why.msg);
    return rc;
}

static int index_match(const struct store *s, const struct index_meta *meta,
                       struct err *err)
{
    if (memcmp(meta->uuid, s->home.uuid, sizeof s->home.uuid) != 0 ||
        meta->n_devices != (uint32_t)s->media->n_devices ||
        meta->segment_bytes != s->media->segment_bytes ||
        meta->mark != seal_mark(s->home.seal))
        return err_set(err, ERR_MISMATCH,
                       "%s is the index of another store; remove it to have it rebuilt",
                       s->ledger.path);
    return 0;
}

static int index_find(struct store *s, struct index_meta *meta, struct err *err)
{
    return s->home.is_beside
               ? index_open_beside(s->home.io, s->ledger.path, &s->ledger.index, meta, err)
               : index_open(s->home.io, s->ledger.path, s->home.read_only, &s->ledger.index,
                            meta, err);
}

/* Opens the index and enters its content. A missing or damaged index is rebuilt first; a read-only
 * open reports it instead. */
static int index_recover(struct store *s, const char *dir, struct err *err)
{
    struct index_meta meta;
    char *marker = home_path(dir, "index.rebuild");
    bool rebuilding = io_exists(s->home.io, marker);
    free(marker);
    struct err why = {0};
    int rc = rebuilding ? ERR_CORRUPT : index_find(s, &meta, &why);
    if (rc == 0) {
        rc = index_match(s, &meta, &why);
        s->ledger.next_id = s->ledger.id_limit = meta.next_id;
        index_use_seal(s->ledger.index, s->home.seal);
    }
    if (rc == 0)
        rc = index_enter(s, &why);
    if (rc != ERR_CORRUPT && rc != ERR_NOT_FOUND) {
        if (rc != 0)
            err_set(err, rc, "%s", why.msg);
        return rc;
    }
    load_undo(s);
    if (s->home.read_only)
        return err_set(
            err, ERR_CORRUPT,
            "the index in %s must be rebuilt, which run, serve and store gc do (%s)", dir,
            rebuilding ? "a rebuild was begun" : why.msg);
    s->ledger.was_rebuilt = rc == ERR_CORRUPT;
    meta = (struct index_meta){.n_devices = (uint32_t)s->media->n_devices,
                               .segment_bytes = s->media->segment_bytes,
                               .next_id = 1,
                               .mark = seal_mark(s->home.seal)};
    memcpy(meta.uuid, s->home.uuid, sizeof meta.uuid);
    rc = store_rebuild(s, dir, &meta, err);
    if (rc == 0)
        rc = index_enter(s, err);
    return rc;
}

/* --- recovery --------------------------------------------------------------------------------- */

static uint64_t max_step_of(uint64_t cap_bytes)
{
    if (cap_bytes == 0 || cap_bytes / 8 > MAX_STEP_BYTES)
        return MAX_STEP_BYTES;
    return round_up(cap_bytes / 8, STORE_ALIGN);
}

int store_recover(struct store *s, const struct store_opts *opts, struct err *err)
{
    struct superblock sb = {0};
    if (opts->n_dirs < 1 || opts->n_dirs > STORE_MAX_DEVICES)
        return err_set(err, ERR_USAGE, "a store has 1 to %d directories, not %d",
                       STORE_MAX_DEVICES, opts->n_dirs);
    if (opts->segment_bytes != 0 && (opts->segment_bytes < MIN_SEGMENT_BYTES ||
                                     opts->segment_bytes > SUPERBLOCK_MAX_SEGMENT_BYTES))
        return err_set(err, ERR_USAGE, "segments of %llu bytes are not possible",
                       (unsigned long long)opts->segment_bytes);
    for (; s->home.n_dirs < opts->n_dirs; s->home.n_dirs++)
        s->home.dirs[s->home.n_dirs] = xstrdup(opts->dirs[s->home.n_dirs]);
    int rc = dirs_differ(opts, err);
    if (rc == 0)
        rc = opts->read_only ? dirs_exist(opts, err) : dirs_make(opts, err);
    if (rc == 0)
        rc = lock_take(s, opts, err);
    if (rc == 0)
        rc = store_open_superblocks(opts, &sb, err);
    if (rc != 0)
        return rc;
    memcpy(s->home.uuid, sb.uuid, sizeof s->home.uuid);
    if (opts->key != NULL)
        s->home.seal = seal_new(opts->key, sb.uuid, sizeof sb.uuid);
    s->erasing.owed.seal = s->home.seal;
    if (s->home.seal != NULL)
        rc = owner_keys_open(s->home.io, s->home.dirs[0], s->home.seal, sb.uuid,
                             sizeof sb.uuid, opts->read_only, &s->home.owners, err);
    if (rc != 0)
        return rc;
    struct files_opts fo = {
        .io = opts->io,
        .dirs = opts->dirs,
        .n_dirs = opts->n_dirs,
        .segment_bytes = sb.segment_bytes,
        .max_step_bytes = max_step_of(s->space.cap_bytes),
        .max_bytes = s->space.cap_bytes,
        .read_only = opts->read_only,
        .no_direct = opts->no_direct,
        .stuck_ns = s->home.stuck_ns,
        .seal = s->home.seal,
        .owners = s->home.owners,
    };
    rc = files_open(&fo, &s->media, err);
    if (rc != 0)
        return rc;
    space_begin(&s->space, opts->n_dirs, sb.segment_bytes);
    s->ledger.path = home_path(opts->dirs[0], "index.db");
    rc = index_recover(s, opts->dirs[0], err);
    if (rc == 0 && s->space.log_frames > 0)
        rc = index_limit_log(s->ledger.index, s->space.log_frames, err);
    if (rc == 0) {
        s->ledger.index_bytes = index_live_bytes(s->ledger.index);
        store_soil_all(s);
        home_note_files(&s->home);
        rc = store_load_owed(s, err);
    }
    return rc;
}
