/* erase.c - erases chunks so that no readable remains are left.
 *
 *   1. uncommitted appends are committed, so that every extent of the chunks has a row
 *   2. a marker says that free space must be wiped (wipe.c)
 *   3. lock: the chunks are taken off the catalog; their extents are marked to be wiped
 *   4. one index transaction: rows dropped, their places entered into `wipe`
 *   5. the places are overwritten with zeros, synced, and then punched
 *   6. one index transaction: the places leave `wipe`; their space may be used again
 *   7. free space that may hold older bytes is wiped in the same way; the marker is removed
 *   8. the index's log, which still has the dropped rows, is folded into the database, overwritten
 *      and cut
 *   9. the chunks' copies in DRAM, which step 3 has taken away, are zeroed
 *
 * A crash before step 4 leaves the chunks as they were. A crash after step 4 leaves them absent,
 * and the next open continues with step 5. A chunk in use is doomed: it is missing for lookups, and
 * step 3 happens when its last user leaves. So is a chunk that is being written. Chunks that come
 * later, of requests that began before the erasure, are refused (erasures.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/store_impl.h"

/* --- taking chunks away ----------------------------------------------------------------------- */

/* The chunks that one erase takes off the catalog. */
struct taking {
    struct sha256 *keys;
    int n;
    bool is_done; /* chain_take has run */
    /* true in an owner's erase: a chunk is taken even if other chunks continue it */
    bool is_all;
};

/* [lock] Takes the chunks of keys[0..n) off the catalog, sets their marks, and dooms the chunks
 * that are being written. */
static void chain_take(struct store *s, const struct sha256 *keys, int n, struct taking *t,
                       struct store_erased *out)
{
    t->n = store_take_chain(s, keys, n, t->is_all, t->keys, out);
    t->is_done = true;
    int n_kept = (int)out->n_shared;
    if (!t->is_all) /* for an owner's erase store_erase_owner has set the mark already */
        erasures_mark_keys(&s->erasing.marks, ERASURE_KEY, keys + n_kept, n - n_kept);
    /* chunks of keys[] that are being written are in n_busy already */
    (void)store_doom_writing(s);
}

/* [erase_lock] Does steps 1 to 8. After an error t->is_done tells whether the chunks have left the
 * catalog. */
static int erase_now(struct store *s, const struct sha256 *keys, int n, struct taking *t,
                     struct store_erased *out, struct err *err)
{
    int rc = store_commit_run(
        s, STORE_COMMIT_PENDING | STORE_COMMIT_FRESH | STORE_COMMIT_RESERVE, err);
    if (rc == 0)
        rc = store_mark_remains(s, err);
    if (rc == 0) {
        pthread_mutex_lock(&s->lock);
        rc = store_can_save(s, err);
        if (rc == 0)
            chain_take(s, keys, n, t, out);
        pthread_mutex_unlock(&s->lock);
    }
    if (rc == 0)
        rc = store_commit_wiped(s, STORE_COMMIT_PINS | STORE_COMMIT_RESERVE, err);
    if (rc == 0)
        rc = store_fold_log(s, err);
    if (rc == 0)
        home_fill_reserve(&s->home, s->space.cap_bytes);
    return rc;
}

/* [erase_lock] Notes that the disk is too full to finish an erasure. The chunks have left the
 * catalog, and store_settle does the rest. */
static void wait_for_room(struct store *s, const struct taking *t, struct store_erased *out)
{
    s->erasing.owes_remains = true;
    *out = (struct store_erased){.n_shared = out->n_shared,
                                 .n_busy = out->n_busy,
                                 .n_owed = (uint64_t)t->n - out->n_busy};
}

/* Erases keys[0..n). If that fails, notes what is still owed. `owner` is the owner of all keys[] in
 * an owner's erase; else NULL. */
static int erase_or_owe(struct store *s, const struct sha256 *keys, int n,
                        const uint64_t *owner, struct store_erased *out, struct err *err)
{
    struct taking t = {.keys = xmalloc((2 * (size_t)n + 1) * sizeof t.keys[0]),
                       .is_all = owner != NULL};
    *out = (struct store_erased){0};
    pthread_mutex_lock(&s->erasing.erase_lock);
    int rc = erase_now(s, keys, n, &t, out, err);
    bool is_unwritable = rc != 0 && store_is_unwritable(s);
    /* The chunks leave the catalog at once, even if wiping them must wait. */
    if (is_unwritable || rc == -ENOSPC) {
        pthread_mutex_lock(&s->lock);
        if (!t.is_done)
            chain_take(s, keys, n, &t, out);
        pthread_mutex_unlock(&s->lock);
    }
    if (is_unwritable)
        store_owe(s, t.keys, t.n, owner, out);
    else if (rc == -ENOSPC)
        wait_for_room(s, &t, out);
    if (t.n > 0 && s->erasing.on_erased != NULL)
        s->erasing.on_erased(s->erasing.on_erased_arg, t.keys, t.n);
    pthread_mutex_lock(&s->lock);
    tier_wait_zeroed(s->tier);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_unlock(&s->erasing.erase_lock);
    free(t.keys);
    return rc;
}

void store_on_erased(struct store *s,
                     void (*fn)(void *arg, const struct sha256 *keys, int n), void *arg)
{
    pthread_mutex_lock(&s->erasing.erase_lock);
    s->erasing.on_erased = fn;
    s->erasing.on_erased_arg = arg;
    pthread_mutex_unlock(&s->erasing.erase_lock);
}

uint64_t store_epoch(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t epoch = s->erasing.marks.epoch;
    pthread_mutex_unlock(&s->lock);
    return epoch;
}

void store_refuse_former(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    erasures_mark_all(&s->erasing.marks);
    (void)store_doom_writing(s);
    pthread_mutex_unlock(&s->lock);
}

int store_erase(struct store *s, const struct sha256 *keys, int n, struct store_erased *out,
                struct err *err)
{
    return erase_or_owe(s, keys, n, NULL, out, err);
}

static void erased_add(struct store_erased *sum, const struct store_erased *part)
{
    sum->n_chunks += part->n_chunks;
    sum->n_bytes += part->n_bytes;
    sum->n_shared += part->n_shared;
    sum->n_busy += part->n_busy;
    sum->n_owed += part->n_owed;
    sum->is_noted = part->is_noted;
    memcpy(sum->not_noted_because, part->not_noted_because, sizeof sum->not_noted_because);
}

int store_erase_owner(struct store *s, uint64_t owner, struct store_erased *out,
                      struct err *err)
{
    enum { ROUNDS = 4 }; /* chunks that are appended meanwhile need another round */
    int rc = 0, n = 1;
    *out = (struct store_erased){0};
    /* The mark is set before the chunks are listed, so that no chunk of an earlier request is
     * missed. */
    pthread_mutex_lock(&s->lock);
    erasures_mark_owner(&s->erasing.marks, owner);
    uint64_t n_writing = (uint64_t)store_doom_writing(s);
    pthread_mutex_unlock(&s->lock);
    for (int round = 0; rc == 0 && n > 0 && round < ROUNDS; round++) {
        struct store_erased part = {0};
        struct sha256 *keys;
        rc = store_owned_keys(s, owner, &keys, &n, err);
        if (rc == 0 && (n > 0 || round == 0))
            rc = erase_or_owe(s, keys, n, &owner, &part, err);
        free(keys);
        erased_add(out, &part);
    }
    out->n_busy += n_writing;
    /* The key goes last. So an erase that is cut off leaves chunks that can still be decrypted. */
    return rc == 0 ? owner_keys_erase(s->home.owners, owner, err) : rc;
}
