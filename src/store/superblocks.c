/* superblocks.c - the superblocks of a store's directories: read, compared, repaired,
 * first written.
 *
 * A store exists once its index or a segment exists. Before that, a crash left at most some
 * superblocks, and creation simply continues. If a superblock is lost, or both its copies are
 * damaged, its content is taken from another directory or the index. An extent's header proves that
 * the directory is the right one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/io.h"
#include "store/store_impl.h"
#include "store/superblock.h"

enum sb_state { SB_GOOD, SB_MISSING, SB_DAMAGED };

struct sb_found {
    enum sb_state state;
    /* index of the only damaged copy; -1: both are intact, or both are damaged */
    int bad_copy;
    bool found_elsewhere;
    struct superblock sb;
    struct err err;
};

/* Reads a superblock and the state of its copies into *out. A missing or damaged superblock is no
 * error. Returns ERR_UNSUPPORTED if another version wrote it, or the error of the device. */
static int superblock_read(struct io *io, const char *dir, struct sb_found *out,
                           struct err *err)
{
    uint8_t bytes[SUPERBLOCK_FILE_BYTES];
    char *path = home_path(dir, "superblock");
    size_t got;
    *out = (struct sb_found){.state = SB_MISSING, .bad_copy = -1};
    int rc = io_read_head(io, path, bytes, sizeof bytes, &got, err);
    free(path);
    if (rc != 0 || got == 0)
        return rc;
    int code = superblock_decode(bytes, &out->sb, &out->err);
    out->state = code == 0 ? SB_GOOD : SB_DAMAGED;
    out->bad_copy = superblock_bad_copy(bytes);
    return code == ERR_UNSUPPORTED ? err_set(err, code, "%s: %s", dir, out->err.msg) : 0;
}

static int superblock_write(struct io *io, const char *dir, const struct superblock *sb,
                            struct err *err)
{
    uint8_t bytes[SUPERBLOCK_FILE_BYTES];
    char *path = home_path(dir, "superblock");
    superblock_encode(sb, bytes);
    int rc = io_write_durably(io, path, IO_CREATE, bytes, sizeof bytes, 0, err);
    if (rc == 0)
        rc = io_dir_sync(io, dir, err);
    free(path);
    return rc;
}

/* Makes the seal of the store that sb describes, if there is a key; else returns NULL. */
static struct seal *seal_of(const struct store_opts *opts, const struct superblock *sb)
{
    return opts->key != NULL ? seal_new(opts->key, sb->uuid, sizeof sb->uuid) : NULL;
}

/* --- recovering a superblock ------------------------------------------------------------------ */

/* Sets *told to true if a segment file holds an extent of this directory of this store; else leaves
 * it unchanged. Returns 0 or the error of the device. */
static int segment_tells(struct io *io, const char *path, const struct superblock *sb,
                         const struct seal *seal, struct owner_keys *owners, bool *told,
                         struct err *err)
{
    enum { STEP = 256 * CHUNK_HEADER_BYTES };
    struct io_file *file;
    uint8_t *bytes = xmalloc(STEP);
    struct chunk_header *h = xmalloc(sizeof *h);
    size_t got = STEP;
    int rc = io_file_open(io, path, IO_READ_ONLY, &file, err);
    for (uint64_t at = 0; rc == 0 && !*told && got == STEP; at += STEP) {
        rc = io_file_pread_some(file, bytes, STEP, at, &got, err);
        for (size_t i = 0; rc == 0 && !*told && i + CHUNK_HEADER_BYTES <= got;
             i += CHUNK_HEADER_BYTES)
            *told = chunk_header_open(seal, owners, bytes + i, h, NULL) == 0 &&
                    h->offset == at + i && h->device == sb->device &&
                    memcmp(h->uuid, sb->uuid, sizeof h->uuid) == 0;
    }
    io_file_close(file);
    free(h);
    free(bytes);
    return rc;
}

/* Sets *told to true if a segment in the directory proves that it is the one which sb describes;
 * else leaves it unchanged. */
static int segments_tell(const struct store_opts *opts, const char *dir,
                         const struct superblock *sb, bool *told, struct err *err)
{
    struct io_names names;
    int rc = io_list(opts->io, dir, &names, err);
    if (rc != 0)
        return rc;
    struct seal *seal = sb->mark != 0 ? seal_of(opts, sb) : NULL;
    struct owner_keys *owners = NULL;
    if (seal != NULL)
        rc = owner_keys_open(opts->io, opts->dirs[0], seal, sb->uuid, sizeof sb->uuid, true,
                             &owners, err);
    for (size_t i = 0; rc == 0 && i < names.n && !*told; i++) {
        if (strncmp(names.name[i], "seg-", 4) != 0)
            continue;
        char *path = home_path(dir, names.name[i]);
        rc = segment_tells(opts->io, path, sb, seal, owners, told, err);
        free(path);
    }
    owner_keys_close(owners);
    seal_free(seal);
    io_names_free(&names);
    return rc;
}

/* Sets *told to whether the directory holds a sound index. If so, *out gets the superblock that the
 * index implies, without the device's number. */
static int index_tells(struct io *io, const char *dir, struct superblock *out, bool *told,
                       struct err *err)
{
    struct index *ix = NULL;
    struct index_meta meta;
    struct err why = {0};
    char *path = home_path(dir, "index.db");
    int rc = index_open(io, path, true, &ix, &meta, &why);
    index_close(ix);
    free(path);
    *told = rc == 0;
    if (rc == ERR_NOT_FOUND || rc == ERR_CORRUPT)
        return 0;
    if (rc != 0)
        return err_set(err, rc, "%s", why.msg);
    *out = (struct superblock){.n_devices = meta.n_devices,
                               .segment_bytes = meta.segment_bytes,
                               .mark = meta.mark};
    memcpy(out->uuid, meta.uuid, sizeof out->uuid);
    return 0;
}

/* Recovers the superblock of directory i into *found, in memory only. Leaves *found unchanged if
 * nothing proves that the directory belongs to the store. The index lies in directory 0, and proves
 * that directory; the segments' headers prove the others. `good`: a superblock of another
 * directory, or NULL. Returns 0 or the error of the device. */
static int superblock_find(const struct store_opts *opts, int i,
                           const struct superblock *good, struct sb_found *found,
                           struct err *err)
{
    struct superblock sb = {0};
    bool known = false, belongs = false;
    int rc = 0;
    if (i == 0 || good == NULL)
        rc = index_tells(opts->io, opts->dirs[0], &sb, &known, err);
    belongs = known && i == 0;
    if (!known && good != NULL) {
        sb = *good;
        known = true;
    }
    sb.device = (uint32_t)i;
    if (rc == 0 && known && !belongs)
        rc = segments_tell(opts, opts->dirs[i], &sb, &belongs, err);
    if (rc == 0 && belongs) {
        found->state = SB_GOOD;
        found->sb = sb;
        found->found_elsewhere = true;
    }
    return rc;
}

/* Recovers lost and damaged superblocks in found[]. The disk stays unchanged. Those that nothing
 * proves keep their state. Returns 0 or the error of the device. */
static int superblocks_find(const struct store_opts *opts, struct sb_found *found,
                            struct err *err)
{
    const struct superblock *good = NULL;
    int rc = 0;
    for (int i = 0; i < opts->n_dirs && good == NULL; i++)
        good = found[i].state == SB_GOOD ? &found[i].sb : NULL;
    for (int i = 0; i < opts->n_dirs && rc == 0; i++)
        if (found[i].state != SB_GOOD)
            rc = superblock_find(opts, i, good, &found[i], err);
    return rc;
}

/* --- a store's directories -------------------------------------------------------------------- */

/* Sets *out to true if the directory holds an index or segments; else leaves it unchanged. Returns
 * 0 or the error of the device. */
static int note_data(struct io *io, const char *dir, bool *out, struct err *err)
{
    struct io_names names;
    int rc = io_list(io, dir, &names, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < names.n; i++)
        if (strncmp(names.name[i], "seg-", 4) == 0 ||
            strcmp(names.name[i], "index.db") == 0)
            *out = true;
    io_names_free(&names);
    return 0;
}

/* Checks that all good superblocks agree with each other and with their directories. Returns 0 and
 * sets *good to one of them, or to NULL if there is none. */
static int superblocks_agree(const struct store_opts *opts, const struct sb_found *found,
                             const struct superblock **good, struct err *err)
{
    *good = NULL;
    for (int i = 0; i < opts->n_dirs; i++) {
        const struct superblock *sb = &found[i].sb;
        if (found[i].state != SB_GOOD)
            continue;
        if (sb->n_devices != (uint32_t)opts->n_dirs)
            return err_set(err, ERR_MISMATCH,
                           "%s is one of %u directories of a store, but %d were given; a "
                           "store of several processes needs as many again",
                           opts->dirs[i], sb->n_devices, opts->n_dirs);
        if (*good != NULL && memcmp((*good)->uuid, sb->uuid, sizeof sb->uuid) != 0)
            return err_set(err, ERR_MISMATCH,
                           "%s belongs to another store than the directories "
                           "before it",
                           opts->dirs[i]);
        if (sb->device != (uint32_t)i)
            return err_set(
                err, ERR_MISMATCH,
                "%s is directory %u of its store, but was given as directory %d: "
                "the order matters",
                opts->dirs[i], sb->device + 1, i + 1);
        if (*good != NULL &&
            ((*good)->segment_bytes != sb->segment_bytes || (*good)->mark != sb->mark))
            return err_set(err, ERR_CORRUPT, "%s: its superblock contradicts the others",
                           opts->dirs[i]);
        *good = sb;
    }
    return 0;
}

/* Makes an empty folder private, like the folders that the store makes. A folder with other files
 * belongs to the user (/tmp, a home) and stays unchanged; the store's files are private by
 * themselves. */
static void dir_make_private(struct io *io, const char *dir)
{
    struct io_names names;
    struct err why = {0};
    bool ours = true;
    int rc = io_list(io, dir, &names, &why);
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        ours = ours && (strcmp(names.name[i], "lock") == 0 ||
                        strcmp(names.name[i], "superblock") == 0);
    if (rc == 0)
        io_names_free(&names);
    if (rc == 0 && ours)
        rc = io_make_private(io, dir, &why);
    if (rc != 0)
        log_warn("%s may be open to others: %s", dir, why.msg);
}

/* Writes all superblocks of a store that is being made: with the content of `like`, or with a new
 * uuid if it is NULL. Existing ones are written again, because the process that wrote them may have
 * been killed before the sync. *out gets the last one. */
static int superblocks_write(const struct store_opts *opts, const struct superblock *like,
                             struct superblock *out, struct err *err)
{
    int rc = 0;
    *out = (struct superblock){.n_devices = (uint32_t)opts->n_dirs,
                               .segment_bytes = opts->segment_bytes != 0
                                                    ? opts->segment_bytes
                                                    : STORE_SEGMENT_BYTES};
    if (like != NULL)
        *out = *like;
    else
        rc = io_random(opts->io, out->uuid, sizeof out->uuid, err);
    struct seal *seal = seal_of(opts, out);
    out->mark = seal_mark(seal);
    seal_free(seal);
    for (int i = 0; i < opts->n_dirs && rc == 0; i++) {
        out->device = (uint32_t)i;
        dir_make_private(opts->io, opts->dirs[i]);
        rc = superblock_write(opts->io, opts->dirs[i], out, err);
    }
    return rc;
}

int store_check_superblocks(struct store *s, void (*report)(void *arg, const char *what),
                            void *arg, uint64_t *n_bad, struct err *err)
{
    for (int i = 0; i < s->home.n_dirs; i++) {
        uint8_t bytes[SUPERBLOCK_FILE_BYTES], want[SUPERBLOCK_FILE_BYTES];
        struct superblock sb = {.device = (uint32_t)i,
                                .n_devices = (uint32_t)s->home.n_dirs,
                                .segment_bytes = s->media->segment_bytes,
                                .mark = seal_mark(s->home.seal)};
        char *path = home_path(s->home.dirs[i], "superblock");
        size_t got;
        memcpy(sb.uuid, s->home.uuid, sizeof sb.uuid);
        superblock_encode(&sb, want);
        int rc = io_read_head(s->home.io, path, bytes, sizeof bytes, &got, err);
        free(path);
        if (rc != 0)
            return rc;
        if (memcmp(bytes, want, sizeof bytes) == 0)
            continue;
        char what[256];
        snprintf(what, sizeof what, "%s/superblock: one or both copies are damaged",
                 s->home.dirs[i]);
        report(arg, what);
        (*n_bad)++;
    }
    return 0;
}

/* Writes one copy durably, and leaves the other one alone. So one copy is intact at any moment. */
static int superblock_copy_write(struct io *io, const char *dir,
                                 const struct superblock *sb, int copy, struct err *err)
{
    uint8_t bytes[SUPERBLOCK_FILE_BYTES];
    char *path = home_path(dir, "superblock");
    superblock_encode(sb, bytes);
    int rc = io_write_durably(io, path, 0, bytes, SUPERBLOCK_BYTES,
                              (uint64_t)copy * SUPERBLOCK_BYTES, err);
    free(path);
    return rc;
}

/* Writes lost or damaged superblocks and copies again, because a directory that loses its last
 * intact copy may cost much of the store. A write that fails is logged, and the store opens all the
 * same. */
static void superblocks_mend(const struct store_opts *opts, const struct sb_found *found)
{
    for (int i = 0; i < opts->n_dirs; i++) {
        const struct sb_found *f = &found[i];
        const char *dir = opts->dirs[i];
        const char *what = f->found_elsewhere ? "the superblock, lost or damaged,"
                                              : "a copy of the superblock, damaged,";
        struct err why = {0};
        if (!f->found_elsewhere && f->bad_copy < 0)
            continue;
        int rc = f->found_elsewhere
                     ? superblock_write(opts->io, dir, &f->sb, &why)
                     : superblock_copy_write(opts->io, dir, &f->sb, f->bad_copy, &why);
        if (rc == 0)
            log_info("%s: %s was written again", dir, what);
        else
            log_warn("%s: %s could not be repaired (%s)", dir, what, why.msg);
    }
}

static int no_superblock(const char *dir, struct err *err)
{
    return err_set(err, ERR_MISMATCH,
                   "%s has no superblock, but there is saved state: a "
                   "directory of the store is missing or another one was given",
                   dir);
}

/* Returns 0 if opts->key is the store's key, or if both are absent; else ERR_MISMATCH. */
static int key_fits(const struct store_opts *opts, const struct superblock *sb,
                    struct err *err)
{
    struct seal *seal = seal_of(opts, sb);
    uint64_t mark = seal_mark(seal);
    seal_free(seal);
    if (mark == sb->mark)
        return 0;
    return err_set(err, ERR_MISMATCH, "the store in %s %s", opts->dirs[0],
                   sb->mark == 0 ? "is not encrypted: open it without --store-key, or give "
                                   "an empty folder"
                   : mark == 0
                       ? "is encrypted: give its key (--store-key or HCACHE_STORE_KEY)"
                       : "is encrypted with another key than that of --store-key");
}

int store_check_dirs(const struct store_opts *opts, struct err *err)
{
    struct sb_found found[STORE_MAX_DEVICES] = {0};
    const struct superblock *unused;
    bool has_data = false;
    int absent = -1;
    for (int i = 0; i < opts->n_dirs; i++) {
        int rc = 0;
        if (io_exists(opts->io, opts->dirs[i])) {
            rc = superblock_read(opts->io, opts->dirs[i], &found[i], err);
            (void)note_data(opts->io, opts->dirs[i], &has_data, NULL);
        } else {
            found[i].state = SB_MISSING;
            absent = i;
        }
        if (rc == ERR_UNSUPPORTED)
            return rc;
        if (rc != 0)
            found[i].state = SB_MISSING;
    }
    int rc = superblocks_agree(opts, found, &unused, err);
    return rc == 0 && absent >= 0 && has_data ? no_superblock(opts->dirs[absent], err) : rc;
}

/* Decides about a directory without a good superblock. Returns an error if any directory holds
 * state, or if a store may only be read. Returns 0 if the store does not exist yet and may be
 * made. */
static int refuse_bad(const struct store_opts *opts, const char *dir, enum sb_state state,
                      bool has_data, struct err *err)
{
    if (has_data && state == SB_DAMAGED)
        return err_set(
            err, ERR_CORRUPT,
            "%s: both copies of the superblock are damaged and cannot be recovered, so the "
            "state there cannot be used; empty the directory to begin anew",
            dir);
    if (has_data)
        return no_superblock(dir, err);
    if (opts->read_only)
        return err_set(err, ERR_NOT_FOUND, "there is no store in %s", dir);
    return 0;
}

int store_open_superblocks(const struct store_opts *opts, struct superblock *out,
                           struct err *err)
{
    struct sb_found found[STORE_MAX_DEVICES] = {0};
    const struct superblock *good;
    bool has_data = false; /* whether any directory holds state */
    for (int i = 0; i < opts->n_dirs; i++) {
        int rc = superblock_read(opts->io, opts->dirs[i], &found[i], err);
        if (rc == 0)
            rc = note_data(opts->io, opts->dirs[i], &has_data, err);
        if (rc != 0)
            return rc;
    }
    int rc = superblocks_find(opts, found, err); /* in memory; superblocks_mend writes */
    if (rc == 0)
        rc = superblocks_agree(opts, found, &good, err);
    for (int i = 0; i < opts->n_dirs && rc == 0; i++)
        if (found[i].state != SB_GOOD)
            rc = refuse_bad(opts, opts->dirs[i], found[i].state, has_data, err);
    if (rc != 0)
        return rc;
    if (!has_data && !opts->read_only)
        return superblocks_write(opts, good, out, err);
    *out = found[0].sb;
    rc = key_fits(opts, out, err);
    if (rc == 0 && !opts->read_only)
        superblocks_mend(opts, found);
    return rc;
}

/* m counts the given directories, which are those of process 0, and n those of all processes. */
int store_all_dirs(struct store_opts *opts, char *names[STORE_MAX_DEVICES], struct err *err)
{
    struct sb_found first = {.state = SB_MISSING};
    int m = opts->n_dirs, n = m * opts->n_processes;
    if (m < 1 || superblock_read(opts->io, opts->dirs[0], &first, NULL) != 0)
        return 0;
    bool is_old = first.state == SB_GOOD;
    if (is_old)
        n = (int)first.sb.n_devices;
    if (n <= m || n % m != 0)
        return 0;
    int missing = 0, n_missing = 0;
    for (int i = 0; i < n && n <= STORE_MAX_DEVICES; i++) {
        const char *dir = opts->dirs[i % m];
        names[i] = i < m ? xstrdup(dir) : xasprintf("%s/" STORE_RANK "%d", dir, i / m);
        if (is_old && !io_exists(opts->io, names[i])) {
            missing = i;
            n_missing++;
        }
    }
    /* If no other directory is here, the store may be one process's, with several directories. */
    if (n_missing == n - m && opts->n_processes <= 1)
        return 0;
    if (n_missing > 0)
        return err_set(err, -EREMOTE,
                       "the store in %s has a share at each of %d processes, and %s is "
                       "not here: start as many on the same machines, or give another "
                       "folder",
                       opts->dirs[0], n / m, names[missing]);
    opts->dirs = (const char *const *)names;
    opts->n_dirs = n;
    return 0;
}
