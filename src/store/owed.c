/* owed.c - erasures that wait because the store cannot be written.
 *
 * A store cannot be written if it was opened for reading only (a full or denied disk), or if a
 * device has failed since. An erase then returns an error, but it is not forgotten:
 *
 *   1. the chunks leave the catalog, so that no lookup of this process finds them again
 *   2. they are noted in the file `erase.owed` in the first directory, if that can be written
 *   3. the next open for writing erases the chunks that the file names, and then removes the file,
 *      before anything is appended; a read-only open does step 1 alone
 *
 * The file is a row of entries of 64 bytes (docs/STORE_FORMAT.md), each with a checksum: a torn
 * entry at its end, or a damaged one, is skipped. It needs a few blocks, for which the reserve
 * is given up on a full disk.
 *
 * A full disk under a store that can save is another case: the rows of the erased chunks wait
 * for the next commit that finds room (commit.c). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plural.h"
#include "io/io.h"
#include "io/io_erase.h"
#include "store/store_impl.h"

enum { ENTRY_BYTES = 64, READ_ENTRIES = 1024 };
enum entry_kind { ENTRY_CHUNK = 1, ENTRY_OWNER = 2 };

struct entry {
    enum entry_kind kind;
    uint64_t owner;
    struct sha256 key;
};

static void entry_encode(const struct seal *seal, const struct entry *e,
                         uint8_t out[ENTRY_BYTES])
{
    memset(out, 0, ENTRY_BYTES);
    put_u32(out + 8, (uint32_t)e->kind);
    put_u64(out + 16, e->owner);
    memcpy(out + 24, e->key.b, sizeof e->key.b);
    seal_page(seal, PAGE_OWED, 0, out + 16, ENTRY_BYTES - 16);
    put_u64(out, checksum64(out + 8, ENTRY_BYTES - 8));
}

/* Decodes an entry. Returns false if it is damaged, or of a kind that this build does not know. */
static bool entry_decode(const struct seal *seal, const uint8_t in[ENTRY_BYTES],
                         struct entry *out)
{
    uint8_t open[ENTRY_BYTES];
    uint32_t kind = get_u32(in + 8);
    if (get_u64(in) != checksum64(in + 8, ENTRY_BYTES - 8) || kind < ENTRY_CHUNK ||
        kind > ENTRY_OWNER)
        return false;
    in = memcpy(open, in, sizeof open);
    seal_page_open(seal, PAGE_OWED, 0, open + 16, ENTRY_BYTES - 16);
    *out = (struct entry){.kind = (enum entry_kind)kind, .owner = get_u64(in + 16)};
    memcpy(out->key.b, in + 24, sizeof out->key.b);
    return true;
}

/* --- the list in memory ----------------------------------------------------------------------- */

static void owed_add(struct store_owed *o, const struct entry *e)
{
    o->entries = xgrow(o->entries, o->n, ENTRY_BYTES);
    entry_encode(o->seal, e, o->entries + (size_t)o->n++ * ENTRY_BYTES);
}

static bool owes_owner(const struct store_owed *o, uint64_t owner)
{
    struct entry e;
    for (uint32_t i = 0; i < o->n; i++)
        if (entry_decode(o->seal, o->entries + (size_t)i * ENTRY_BYTES, &e) &&
            e.kind == ENTRY_OWNER && e.owner == owner)
            return true;
    return false;
}

/* --- the file --------------------------------------------------------------------------------- */

static char *owed_path(const struct store *s)
{
    return home_path(s->home.dirs[0], STORE_OWED_FILE);
}

/* Appends the entries behind the first n_noted to the file, and syncs it and its name. */
static int note_once(struct store *s, const char *path, struct err *err)
{
    struct store_owed *o = &s->erasing.owed;
    size_t at = (size_t)o->n_noted * ENTRY_BYTES;
    int rc = io_write_durably(s->home.io, path, IO_CREATE, o->entries + at,
                              (o->n - o->n_noted) * (size_t)ENTRY_BYTES, at, err);
    return rc == 0 ? io_dir_sync(s->home.io, s->home.dirs[0], err) : rc;
}

/* [erase_lock] Writes the entries that the file does not have yet, durably. */
static int note(struct store *s, struct err *err)
{
    if (s->erasing.owed.n_noted == s->erasing.owed.n)
        return 0;
    char *path = owed_path(s);
    int rc = note_once(s, path, err);
    if (rc == -ENOSPC && home_release_reserve(s->home.io, s->home.dirs[0]))
        rc = note_once(s, path, err);
    free(path);
    if (rc == 0)
        s->erasing.owed.n_noted = s->erasing.owed.n;
    return rc;
}

/* --- noting an erasure ------------------------------------------------------------------------ */

void store_owe(struct store *s, const struct sha256 *taken, int n, const uint64_t *owner,
               struct store_erased *out)
{
    struct err why = {0};
    *out = (struct store_erased){.n_shared = out->n_shared, .n_owed = (uint64_t)n};
    if (owner != NULL && !owes_owner(&s->erasing.owed, *owner))
        owed_add(&s->erasing.owed, &(struct entry){.kind = ENTRY_OWNER, .owner = *owner});
    for (int i = 0; owner == NULL && i < n; i++)
        owed_add(&s->erasing.owed, &(struct entry){.kind = ENTRY_CHUNK, .key = taken[i]});
    out->is_noted = note(s, &why) == 0;
    if (!out->is_noted)
        snprintf(out->not_noted_because, sizeof out->not_noted_because, "%.190s", why.msg);
}

/* [lock] Returns whether an uncommitted chunk was erased while it was written. */
static bool has_doomed_append(const struct store *s)
{
    const struct extent *x = s->ledger.pending;
    while (x != NULL && !x->node->doomed)
        x = x->pending_next;
    return x != NULL;
}

/* [erase_lock] Finishes erasures that a full disk stopped, and erasures of chunks that were in use.
 * Uncommitted appends are committed first, so that the second commit can drop their rows. */
static int settle_erases(struct store *s, bool commits_appends, struct err *err)
{
    unsigned what = STORE_COMMIT_RESERVE | STORE_COMMIT_PINS;
    int rc = 0;
    if (s->erasing.owes_remains || commits_appends)
        rc = store_commit_run(s, what | STORE_COMMIT_PENDING, err);
    if (rc == 0)
        rc = store_commit_run(s, what, err);
    if (rc == 0)
        rc = store_wipe(s, err);
    if (rc == 0 && s->erasing.owes_remains)
        rc = store_wipe_remains(s, err);
    s->erasing.owes_remains = s->erasing.owes_remains && rc != 0;
    return rc;
}

int store_settle(struct store *s, struct err *err)
{
    int rc = 0;
    if (s->ledger.index == NULL || s->home.is_beside)
        return 0;
    store_check_headers(s);
    if (s->media->ops->rest != NULL)
        s->media->ops->rest(s->media);
    pthread_mutex_lock(&s->erasing.erase_lock);
    if (store_is_unwritable(s)) {
        rc = note(s, err);
    } else {
        pthread_mutex_lock(&s->lock);
        bool is_doomed = has_doomed_append(s);
        bool wanted = is_doomed || s->space.freeing != NULL || s->space.wiping != NULL ||
                      s->erasing.owes_remains;
        pthread_mutex_unlock(&s->lock);
        if (wanted)
            rc = settle_erases(s, is_doomed, err);
    }
    pthread_mutex_unlock(&s->erasing.erase_lock);
    return rc;
}

/* --- at open ---------------------------------------------------------------------------------- */

/* Reads all entries of the file into the list in memory. */
static int file_read(struct store *s, const char *path, struct err *err)
{
    struct store_owed *o = &s->erasing.owed;
    struct io_file *f = NULL;
    uint8_t *block = xmalloc((size_t)READ_ENTRIES * ENTRY_BYTES);
    size_t got;
    struct entry e;
    int rc = io_file_open(s->home.io, path, IO_READ_ONLY, &f, err);
    do {
        if (rc == 0)
            rc = io_file_pread_some(f, block, (size_t)READ_ENTRIES * ENTRY_BYTES,
                                    (uint64_t)o->n_noted * ENTRY_BYTES, &got, err);
        for (size_t i = 0; rc == 0 && i < got / ENTRY_BYTES; i++) {
            /* A bad entry becomes the erasure of a key that no chunk has. */
            if (!entry_decode(s->home.seal, block + i * ENTRY_BYTES, &e))
                e = (struct entry){.kind = ENTRY_CHUNK};
            owed_add(o, &e);
            o->n_noted++;
        }
    } while (rc == 0 && got == (size_t)READ_ENTRIES * ENTRY_BYTES);
    io_file_close(f);
    free(block);
    return rc;
}

/* Keys of an owner's chunks, parents first. */
struct owned {
    uint64_t owner;
    struct sha256 *keys;
    size_t n, cap;
};

static int owned_add(void *arg, const struct store_entry *e)
{
    struct owned *o = arg;
    if (e->owner != o->owner)
        return 0;
    GROW(o->keys, o->n, o->cap);
    o->keys[o->n++] = e->key;
    return 0;
}

int store_owned_keys(struct store *s, uint64_t owner, struct sha256 **keys, int *n,
                     struct err *err)
{
    struct owned o = {.owner = owner};
    int rc = store_each_appended(s, owned_add, &o, err);
    *keys = o.keys;
    *n = (int)o.n;
    return rc;
}

/* Takes the chunks that an entry names off the catalog, and erases the key of an owner. */
static int entry_apply(struct store *s, const struct entry *e, struct err *err)
{
    struct store_erased gone = {0};
    struct sha256 *keys = NULL;
    int n = 0, rc = 0;
    if (e->kind == ENTRY_OWNER)
        rc = store_owned_keys(s, e->owner, &keys, &n, err);
    pthread_mutex_lock(&s->lock);
    if (e->kind == ENTRY_CHUNK)
        store_take_chain(s, &e->key, 1, false, NULL, &gone);
    else if (rc == 0)
        store_take_chain(s, keys, n, true, NULL, &gone);
    pthread_mutex_unlock(&s->lock);
    free(keys);
    if (rc == 0 && e->kind == ENTRY_OWNER && !s->home.read_only)
        rc = owner_keys_erase(s->home.owners, e->owner, err);
    return rc;
}

int store_load_owed(struct store *s, struct err *err)
{
    struct store_owed *o = &s->erasing.owed;
    struct entry e;
    char *path = owed_path(s);
    int rc = io_exists(s->home.io, path) ? file_read(s, path, err) : 0;
    for (uint32_t i = 0; rc == 0 && i < o->n; i++)
        if (entry_decode(o->seal, o->entries + (size_t)i * ENTRY_BYTES, &e))
            rc = entry_apply(s, &e, err);
    free(path);
    return rc;
}

/* The file is removed last: if an open is cut off, the next one begins again. Nothing may be
 * appended before the file is gone for good, or the next open would erase the appended chunks,
 * too. */
int store_pay_owed(struct store *s, struct err *err)
{
    struct store_owed *o = &s->erasing.owed;
    char *path = owed_path(s);
    int rc = 0;
    if (s->home.read_only || s->ledger.index == NULL || !io_exists(s->home.io, path)) {
        free(path);
        return 0;
    }
    rc = store_mark_remains(s, err);
    if (rc == 0)
        rc = store_commit_wiped(s, STORE_COMMIT_FRESH | STORE_COMMIT_RESERVE, err);
    if (rc == 0)
        rc = io_erase(s->home.io, path, err);
    if (rc == 0)
        rc = io_dir_sync(s->home.io, s->home.dirs[0], err);
    free(path);
    if (rc != 0)
        return rc;
    log_info("%u erasure%s that had waited for the store to be writable: done", o->n,
             plural(o->n));
    o->n = o->n_noted = 0;
    return 0;
}
