/* test_open.c - opening an existing store: locks, directories that do not belong together,
 * versions, a lost index; and failing devices: full, failing syncs, failing reads. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"

static const struct st_ctx ctx = {1, 2, 2, 0, NULL};

/* Opens a store that must not open; the message must contain `text`. */
static void saved(struct store *s, int n)
{
    struct err err = {0};
    if (st_save(s, &st_small, &ctx, n, ST_BOTH, &err) != 0)
        fail_msg("%s", err.msg);
}

static void readable(struct store *s, int n, int n_want)
{
    struct st_result r;
    assert_int_equal(st_read(s, &st_small, &ctx, n, &r, NULL), 0);
    assert_int_equal(r.n_found, n_want);
    assert_int_equal(r.n_records, 6 * n_want);
    assert_int_equal(r.n_wrong + r.n_corrupt + r.n_unread, 0);
}

/* The disk of the test that runs. */
static struct st_place place;

/* --- locks ------------------------------------------------------------------------------------ */

TEST(one_at_a_time)
{
    struct store *s = st_begin(&place, "pread", 2);
    saved(s, 2);
    st_refused(&place.opts, ERR_BUSY, "in use by another process");
    /* The child runs twice: it inherits every descriptor, and its end must not release the lock. */
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct store *mine = NULL;
            struct store_opts opts = place.opts;
            struct err err = {0};
            opts.io = io_pread_open();
            int rc = store_open(&opts, &mine, &err);
            _exit(rc == ERR_BUSY ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        saved(s, 2 + i); /* and the parent continues */
    }
    readable(s, 2, 2);
    store_close(s);
    s = st_open(&place);
    readable(s, 2, 2);
    st_close(s, &place);
}

TEST(modes_are_private)
{
    struct stat st;
    assert_true(st_place_open(&place, "pread", 3));
    char other[400];
    struct io_file *f;
    /* an empty directory that existed before */
    assert_int_equal(mkdir(place.dir[1], 0755) | chmod(place.dir[1], 0755), 0);
    /* a directory with another user's file */
    assert_int_equal(mkdir(place.dir[2], 0755) | chmod(place.dir[2], 0755), 0);
    snprintf(other, sizeof other, "%s/other", place.dir[2]);
    assert_int_equal(io_file_open(place.io, other, IO_CREATE, &f, NULL), 0);
    io_file_close(f);
    struct store *s = st_open(&place);
    saved(s, 3);
    for (int i = 0; i < 3; i++) {
        struct io_names names;
        assert_int_equal(stat(place.dir[i], &st), 0);
        assert_int_equal(st.st_mode & 0777, i < 2 ? 0700 : 0755);
        assert_int_equal(io_list(place.io, place.dir[i], &names, NULL), 0);
        assert_true(names.n >= 2);
        for (size_t j = 0; j < names.n; j++) {
            char path[600];
            snprintf(path, sizeof path, "%s/%s", place.dir[i], names.name[j]);
            assert_int_equal(stat(path, &st), 0);
            assert_int_equal(st.st_mode & 0777, 0600);
        }
        io_names_free(&names);
    }
    st_close(s, &place);
}

/* Returns whether a file contains the bytes. */
static bool stands_in(struct io *io, const char *path, const void *what, size_t n)
{
    struct io_file *f;
    uint64_t size;
    assert_int_equal(io_file_open(io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_size(f, &size, NULL), 0);
    uint8_t *all = xmalloc(size + 1);
    assert_int_equal(io_file_pread(f, all, size, 0, NULL), 0);
    io_file_close(f);
    bool found = memmem(all, size, what, n) != NULL;
    free(all);
    return found;
}

/* Token ids of a prompt are in the headers of extents and in no other file. */
TEST(index_tells_no_prompt)
{
    int32_t tokens[STORE_CHUNK_TOKENS];
    uint8_t bytes[4 * 4];
    struct store *s = st_begin(&place, "pread", 1);
    saved(s, 3);
    for (int chunk = 0; chunk < 3; chunk++) {
        struct io_names names;
        int n_files = 0;
        st_tokens(&ctx, chunk, tokens);
        for (int i = 0; i < 4; i++) /* four equal token ids in a row are no coincidence */
            put_u32(bytes + 4 * i, (uint32_t)tokens[20 + i]);
        assert_int_equal(io_list(place.io, place.dir[0], &names, NULL), 0);
        for (size_t j = 0; j < names.n; j++) {
            char path[600];
            snprintf(path, sizeof path, "%s/%s", place.dir[0], names.name[j]);
            bool is_segment = strncmp(names.name[j], "seg-", 4) == 0;
            n_files += !is_segment;
            if (stands_in(place.io, path, bytes, sizeof bytes) != is_segment)
                fail_msg("%s: tokens of chunk %d", path, chunk);
        }
        assert_true(n_files >= 3); /* superblock, index, its log or the lock */
        io_names_free(&names);
    }
    st_close(s, &place);
}

/* --- directories ------------------------------------------------------------------------------ */

TEST(directories_must_match)
{
    struct st_place p, q;
    assert_true(st_place_open(&p, "pread", 3));
    assert_true(st_place_open(&q, "pread", 3));
    struct store *s = st_open(&p);
    saved(s, 3);
    store_close(s);
    s = st_open(&q);
    saved(s, 3);
    store_close(s);

    struct store_opts opts = p.opts;
    const char *swapped[] = {p.dirs[1], p.dirs[0], p.dirs[2]};
    opts.dirs = swapped;
    st_refused(&opts, ERR_MISMATCH, "the order matters");
    opts.dirs = p.dirs;
    opts.n_dirs = 2;
    st_refused(&opts, ERR_MISMATCH, "one of 3 directories");
    opts.n_dirs = 3;
    const char *mixed[] = {p.dirs[0], q.dirs[1], p.dirs[2]};
    opts.dirs = mixed;
    st_refused(&opts, ERR_MISMATCH, "another store");
    const char *twice[] = {p.dirs[0], p.dirs[0], p.dirs[2]};
    opts.dirs = twice;
    st_refused(&opts, ERR_USAGE, "given twice");
    char fresh[400];
    snprintf(fresh, sizeof fresh, "%s/fresh", p.root);
    const char *missing[] = {p.dirs[0], p.dirs[1], fresh};
    opts.dirs = missing;
    st_refused(&opts, ERR_MISMATCH, "has no superblock");
    assert_false(io_exists(p.io, fresh));
    const char *more[] = {fresh, p.dirs[0], p.dirs[1], p.dirs[2]};
    opts.dirs = more;
    opts.n_dirs = 4;
    st_refused(&opts, ERR_MISMATCH, "one of 3 directories");
    assert_false(io_exists(p.io, fresh));
    const char *new_twice[] = {fresh, fresh};
    opts.dirs = new_twice;
    opts.n_dirs = 2;
    st_refused(&opts, ERR_USAGE, "given twice");
    assert_false(io_exists(p.io, fresh));
    char below[420];
    snprintf(below, sizeof below, "%s/a/b", fresh);
    const char *cannot_be[] = {below, "/proc/hcache-cannot-be-here"};
    opts.dirs = cannot_be;
    st_refused(&opts, -ENOENT, "mkdir /proc/hcache-cannot-be-here");
    /* nor did it leave the parent directory of the first one */
    assert_false(io_exists(p.io, fresh));
    char long_name[800];
    snprintf(long_name, sizeof long_name, "%s/a/%0300d", fresh, 0);
    const char *too_long[] = {long_name};
    opts.dirs = too_long;
    opts.n_dirs = 1;
    st_refused(&opts, -ENAMETOOLONG, "File name too long");
    assert_false(io_exists(p.io, fresh));
    opts = p.opts;
    opts.n_dirs = 0;
    st_refused(&opts, ERR_USAGE, "1 to 16 directories");
    opts = p.opts;
    opts.segment_bytes = 1000;
    st_refused(&opts, ERR_USAGE, "whole blocks");

    opts = p.opts;
    opts.read_only = true;
    const char *empty[] = {q.root, p.dirs[1], p.dirs[2]};
    opts.dirs = empty;
    st_refused(&opts, ERR_MISMATCH, "has no superblock");
    const char *nothing[] = {"build/no-such-store", p.dirs[1], p.dirs[2]};
    opts.dirs = nothing;
    st_refused(&opts, ERR_NOT_FOUND, "there is no store in");

    char file[400];
    snprintf(file, sizeof file, "%s/superblock", p.dirs[0]);
    const char *files[] = {file, p.dirs[1], p.dirs[2]};
    opts.dirs = files;
    st_refused(&opts, -ENOTDIR, "is a file; a store is a folder");

    s = st_open(&p); /* the refused openings changed nothing on the disk */
    readable(s, 3, 3);
    st_close(s, &p);
    st_place_close(&q);
}

TEST(unwritable)
{
    struct io_sim_fault fault = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_NAME, .code = -EROFS};
    assert_true(st_place_open(&place, "sim", 1));
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    st_refused(&place.opts, -EROFS, "");
    io_sim_fault_clear(place.io);
    struct store *s = st_open(&place);
    saved(s, 1);
    st_close(s, &place);
}

/* Writes n bytes at an offset of a file without the store. */
static void poke(struct io *io, const char *path, uint64_t offset, const void *bytes,
                 size_t n)
{
    struct io_file *f;
    assert_int_equal(io_file_open(io, path, 0, &f, NULL), 0);
    assert_int_equal(io_file_pwrite(f, bytes, n, offset, NULL), 0);
    io_file_close(f);
}

TEST(future_version)
{
    struct io_file *f;
    uint8_t bytes[8192];
    char path[400];
    struct store *s = st_begin(&place, "pread", 1);
    saved(s, 1);
    store_close(s);
    snprintf(path, sizeof path, "%s/superblock", place.dir[0]);
    assert_int_equal(io_file_open(place.io, path, 0, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, bytes, sizeof bytes, 0, NULL), 0);
    io_file_close(f);
    for (int copy = 0; copy < 2; copy++) {
        uint8_t *b = bytes + 4096 * copy;
        put_u32(b + 8, 9);
        put_u64(b + 16, 0);
        put_u64(b + 16, checksum64(b, 4096));
    }
    poke(place.io, path, 0, bytes, sizeof bytes);
    st_refused(&place.opts, ERR_UNSUPPORTED, "format version 9");
    st_place_close(&place);
}

static void superblock_spoil(struct io *io, const char *dir)
{
    uint8_t bytes[8192];
    char path[400];
    memset(bytes, 0x5a, sizeof bytes);
    snprintf(path, sizeof path, "%s/superblock", dir);
    poke(io, path, 0, bytes, sizeof bytes);
}

static void superblock_lose(struct io *io, const char *dir)
{
    char path[400];
    snprintf(path, sizeof path, "%s/superblock", dir);
    assert_int_equal(io_unlink(io, path, NULL), 0);
}

static void count_report(void *arg, const char *what)
{
    *(int *)arg += strstr(what, "superblock") != NULL;
}

/* Superblocks are lost, or both of their copies are damaged. Their content is restored from the
 * other directory or from the index. The extents show that the directory is the right one. */
TEST(superblocks_are_found_again)
{
    for (int i = 0; i < 6; i++) {
        int which = 1 + i % 3;
        struct store_verify v;
        int n_told = 0;
        assert_true(st_place_open(&place, which % 2 != 0 ? "sim" : "pread", 2));
        struct store *s = st_open(&place);
        saved(s, 4);
        store_close(s);
        for (int d = 0; d < 2; d++)
            if ((which >> d & 1) != 0)
                (i < 3 ? superblock_spoil : superblock_lose)(place.io, place.dir[d]);
        place.opts.read_only = true;
        s = st_open(&place);
        assert_int_equal(store_verify(s, &v, count_report, NULL, &n_told, NULL), 0);
        assert_int_equal(n_told, which == 3 ? 2 : 1);
        store_close(s);
        place.opts.read_only = false;
        for (int again = 0; again < 2; again++) {
            s = st_open(&place);
            n_told = 0;
            assert_int_equal(store_verify(s, &v, count_report, NULL, &n_told, NULL), 0);
            assert_int_equal(n_told, 0);
            readable(s, 4, 4);
            assert_true(store_audit(s));
            store_close(s);
        }
        st_place_close(&place);
    }
}

/* Superblocks are lost, and one read or opening of a file fails. The store reports that the disk
 * fails, not that the store is damaged. The next opening finds everything. */
TEST(a_failing_disk_is_not_a_damaged_store)
{
    for (int which = 1; which <= 3; which++) {
        bool has_hit = true, has_failed = false;
        for (uint64_t n = 0; has_hit; n++) {
            struct err err = {0};
            struct store *s = st_begin(&place, "sim", 2);
            saved(s, 4);
            store_close(s);
            for (int d = 0; d < 2; d++)
                if ((which >> d & 1) != 0)
                    superblock_lose(place.io, place.dir[d]);
            struct io_sim_fault f = {.kind = IO_SIM_FAIL,
                                     .on = IO_SIM_ON_READ | IO_SIM_ON_OPEN,
                                     .code = -EIO,
                                     .skip = n,
                                     .count = 1};
            assert_int_equal(io_sim_fault_add(place.io, &f), 0);
            s = NULL;
            int rc = store_open(&place.opts, &s, &err);
            has_hit = io_sim_fault_hits(place.io) > 0;
            has_failed = has_failed || rc != 0;
            if (rc == ERR_CORRUPT || rc == ERR_MISMATCH || rc == ERR_NOT_FOUND)
                fail_msg("operation %d fails: %s", (int)n, err.msg);
            store_close(s);
            io_sim_fault_clear(place.io);
            s = st_open(&place);
            readable(s, 4, 4);
            st_close(s, &place);
        }
        assert_true(has_failed);
    }
}

/* A superblock is not guessed. If no other file has its content, or the directory belongs to
 * another store, the store is refused. */
TEST(superblocks_not_guessed)
{
    struct st_place p, q;
    char path[400];
    struct st_place *const both[] = {&p, &q};
    for (int i = 0; i < 2; i++) {
        assert_true(st_place_open(both[i], "pread", 2));
        struct store *s = st_open(both[i]);
        saved(s, 4);
        store_close(s);
    }
    superblock_spoil(q.io, q.dir[1]);
    const char *const mixed[] = {p.dir[0], q.dir[1]};
    const char *const *own = p.opts.dirs;
    p.opts.dirs = mixed;
    st_refused(&p.opts, ERR_CORRUPT, "superblock");
    p.opts.dirs = own;
    superblock_spoil(p.io, p.dir[0]);
    superblock_spoil(p.io, p.dir[1]);
    snprintf(path, sizeof path, "%s/index.db", p.dir[0]);
    poke(p.io, path, 0, "no database, but text", 21);
    st_refused(&p.opts, ERR_CORRUPT, "superblock");
    st_place_close(&p);
    st_place_close(&q);
}

/* --- the index -------------------------------------------------------------------------------- */

TEST(index_is_rebuilt)
{
    static const char *const kinds[] = {"pread", "sim"};
    for (int k = 0; k < 2; k++) {
        char path[400];
        uint8_t garbage[5000];
        memset(garbage, 0xa5, sizeof garbage);
        assert_true(st_place_open(&place, kinds[k], 2));
        struct store *s = st_open(&place);
        saved(s, 4);
        store_close(s);
        snprintf(path, sizeof path, "%s/index.db", place.dir[0]);

        assert_int_equal(io_unlink(place.io, path, NULL), 0);
        place.opts.read_only = true;
        st_refused(&place.opts, ERR_CORRUPT, "must be rebuilt");
        place.opts.read_only = false;
        s = st_open(&place);
        readable(s, 4, 4);
        assert_true(store_audit(s));
        store_close(s);

        poke(place.io, path, 0, garbage, sizeof garbage);
        s = st_open(&place);
        readable(s, 4, 4);
        saved(s, 5); /* saving works as before the fault */
        store_close(s);
        s = st_open(&place);
        readable(s, 5, 5);
        st_close(s, &place);
    }
}

struct said {
    int n;
    char last[400];
};

static void said_add(void *arg, const char *what)
{
    struct said *said = arg;
    said->n++;
    snprintf(said->last, sizeof said->last, "%s", what);
}

/* Chunks whose file is cut or gone are dropped at opening, and verify reports them. */
TEST(verify_sees_cut_files)
{
    struct store *s = st_begin(&place, "sim", 2);
    saved(s, 4);
    store_close(s);
    place.opts.read_only = true;
    for (int gone = 0; gone < 2; gone++) {
        struct io_file *f;
        struct said said = {0};
        struct store_verify v;
        struct store_stats st;
        if (gone)
            assert_int_equal(io_unlink(place.io, "/st/d1/seg-000000.hc", NULL), 0);
        assert_int_equal(io_file_open(place.io, "/st/d0/seg-000000.hc", 0, &f, NULL), 0);
        if (!gone) /* the last block of one chunk lies past the file's end */
            assert_int_equal(io_file_truncate(f, 3 * 4096, NULL), 0);
        io_file_close(f);
        s = st_open(&place);
        store_stats(s, &st);
        assert_int_equal(store_verify(s, &v, said_add, NULL, &said, NULL), 0);
        assert_true(v.n_bad >= st.n_corrupt && v.n_bad == (uint64_t)said.n);
        /* counted by extent: each chunk has two */
        assert_int_equal(st.n_corrupt, gone ? 8 : 4);
        /* all four chunks still have records on the other device */
        assert_int_equal(v.n_chunks, gone ? 0 : 4);
        assert_non_null(strstr(said.last, "missing or too short"));
        store_close(s);
    }
    place.opts.read_only = false;
    s = st_open(&place); /* the chunks can be stored again */
    saved(s, 4);
    readable(s, 4, 4);
    struct store_verify v;
    assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, NULL), 0);
    assert_int_equal(v.n_bad, 0);
    st_close(s, &place);
}

/* Headers of evicted chunks whose space is partly reused do no harm to a rebuild. */
TEST(rebuild_over_stale_headers)
{
    struct err err = {0};
    struct st_shape big = {.n_layers = 3, .n_bytes = {30000, 50000}}, small = st_small;
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 2 << 20;
    struct store *s = st_open(&place);
    for (int i = 0; i < 60; i++) {
        struct st_ctx c = {100, (uint64_t)i, 0, 0, NULL};
        const struct st_shape *shape = i % 3 == 0 ? &small : &big;
        if (st_save(s, shape, &c, 1 + i % 2, ST_BOTH, &err) != 0)
            fail_msg("%s", err.msg);
    }
    struct store_stats before, after;
    store_stats(s, &before);
    store_close(s);
    assert_int_equal(io_unlink(place.io, "/st/d0/index.db", NULL), 0);
    uint64_t cap_bytes = place.opts.cap_bytes;
    place.opts.cap_bytes = 0;
    s = st_open(&place);
    store_stats(s, &after);
    /* The rebuilt index has all chunks of the lost one, and some evicted ones. */
    assert_true(after.n_chunks >= before.n_chunks);
    assert_true(store_audit(s));
    for (int i = 0; i < 60; i++) {
        struct st_ctx c = {100, (uint64_t)i, 0, 0, NULL};
        struct st_result r;
        assert_int_equal(st_read(s, i % 3 == 0 ? &small : &big, &c, 2, &r, &err), 0);
        assert_int_equal(r.n_wrong + r.n_corrupt + r.n_unread, 0);
    }
    store_close(s);
    place.opts.cap_bytes = cap_bytes;
    s = st_open(&place);
    store_stats(s, &after);
    assert_true(after.used_bytes <= cap_bytes);
    st_close(s, &place);
}

/* Removes a file if it exists. gc may have folded the log. */
static int unlink_if_there(struct io *io, const char *path)
{
    int rc = io_unlink(io, path, NULL);
    return rc == -ENOENT ? 0 : rc;
}

/* Writing and creating fail on this medium. */
static const struct io_sim_fault read_only_medium = {
    .kind = IO_SIM_FAIL,
    .on = IO_SIM_ON_WRITE | IO_SIM_ON_SYNC | IO_SIM_ON_DIR_SYNC | IO_SIM_ON_NAME |
          IO_SIM_ON_SPACE,
    .code = -EROFS};

/* Opening for reading changes nothing, works on a read-only medium, and several readers can be open
 * together. */
static void reads_and_changes_nothing(const struct st_place *q, int n_want)
{
    struct store_verify v;
    uint64_t before = io_sim_digest(q->io);
    assert_int_equal(io_sim_fault_add(q->io, &read_only_medium), 0);
    struct store *s = st_open(q), *beside = st_open(q);
    readable(s, n_want, n_want);
    readable(beside, n_want, n_want);
    assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, NULL), 0);
    assert_int_equal(v.n_bad, 0);
    struct store_opts writing = q->opts;
    writing.read_only = false;
    io_sim_fault_clear(q->io);
    st_refused(&writing, ERR_BUSY, "in use by another process");
    store_close(beside);
    store_close(s);
    assert_true(io_sim_digest(q->io) == before);
}

/* A store whose last commits a crash left in the WAL can be read without being changed; so can a
 * closed store, which has no WAL. */
TEST(only_read)
{
    struct store *s = st_begin(&place, "sim", 2);
    saved(s, 3);
    struct st_place q = place;
    assert_int_equal(io_sim_fork(place.io, 1, &q.io, NULL), 0);
    q.opts.io = q.io;
    q.opts.read_only = true;
    assert_true(io_exists(q.io, "/st/d0/index.db-wal"));
    for (int i = 0; i < 2; i++)
        reads_and_changes_nothing(&q, 3);
    q.opts.read_only = false;
    struct store *copy = st_open(&q);
    saved(copy, 4);
    readable(copy, 4, 4);
    uint64_t freed_bytes;
    assert_int_equal(store_gc(copy, &freed_bytes, NULL), 0);
    store_close(copy);
    assert_int_equal(unlink_if_there(q.io, "/st/d0/index.db-wal"), 0);
    q.opts.read_only = true;
    reads_and_changes_nothing(&q, 4);
    io_close(q.io);
    st_close(s, &place);
}

/* A store may have more segments than the soft limit of open files allows. */
TEST(many_segments)
{
    struct rlimit old, low;
    struct st_shape big = {.n_layers = 1, .n_bytes = {50000, 1}};
    assert_true(st_place_open(&place, "pread", 1));
    place.opts.segment_bytes =
        1 << 16; /* so small that each chunk has a segment of its own */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = 24;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct store *s = st_open(&place);
    for (int i = 0; i < 40; i++)
        assert_int_equal(st_append(s, &big, &ctx, i, ST_H, NULL), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    store_close(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    s = st_open(&place);
    struct st_result r;
    assert_int_equal(st_read(s, &big, &ctx, 40, &r, NULL), 0);
    assert_int_equal(r.n_records, 40);
    store_close(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    st_place_close(&place);
}

/* --- failing devices -------------------------------------------------------------------------- */

TEST(full_disk)
{
    struct err err = {0};
    struct store_stats st;
    memset(&place, 0, sizeof place);
    assert_true(st_place_open(&place, "sim", 1));
    io_close(place.io);
    assert_int_equal(
        io_sim_open(&(struct io_sim_opts){.seed = 3, .capacity_bytes = 1 << 20}, &place.io,
                    &err),
        0);
    place.opts.io = place.io;
    place.opts.segment_bytes = 64 << 10;
    struct store *s = st_open(&place);
    int n = 0, rc = 0;
    for (; n < ST_MAX_CHUNKS && rc == 0; n++) {
        rc = st_append(s, &st_small, &ctx, n, ST_BOTH, &err);
        if (rc == 0)
            rc = store_commit(s, &err);
    }
    assert_int_equal(rc, -ENOSPC);
    assert_true(n > 4);
    readable(s, n + 1, n - 1); /* all earlier chunks, and no part of this one */
    assert_true(store_audit(s));
    store_stats(s, &st);
    assert_int_equal(st.n_chunks, (uint64_t)n - 1);
    store_close(s);
    s = st_open(&place); /* a full disk does not prevent opening */
    readable(s, n, n - 1);
    st_close(s, &place);
}

/* A disk that is full below the cap acts as a lower cap: the least recently used chunks are evicted
 * and the new one is stored.  Chunks have two sizes, so that not every hole fits. */
TEST(full_disk_evicts)
{
    enum { CONTEXTS = 90 };
    static const struct st_shape shapes[] = {{.n_layers = 2, .n_bytes = {300000, 700000}},
                                             {.n_layers = 2, .n_bytes = {500000, 1100000}}};
    for (int n_devices = 1; n_devices <= 2; n_devices++) {
        struct err err = {0};
        struct store_stats st;
        assert_true(st_place_open(&place, "sim", n_devices));
        io_close(place.io);
        struct io_sim_opts o = {.seed = 5, .capacity_bytes = 64 << 20};
        assert_int_equal(io_sim_open(&o, &place.io, &err), 0);
        place.opts.io = place.io;
        place.opts.segment_bytes = 16 << 20;
        place.opts.cap_bytes = 1u << 30;
        struct store *s = st_open(&place);
        for (uint64_t i = 0; i < CONTEXTS; i++) {
            struct st_ctx c = {.base = 100 + i, .own = i};
            struct st_result r;
            const struct st_shape *shape = &shapes[i % 3 == 0];
            assert_int_equal(st_append(s, shape, &c, 0, ST_BOTH, &err), 0);
            assert_int_equal(store_commit(s, &err), 0);
            assert_int_equal(st_read(s, shape, &c, 1, &r, &err), 0);
            assert_true(r.n_found == 1 && r.n_wrong + r.n_corrupt + r.n_unread == 0);
        }
        assert_true(store_audit(s));
        store_stats(s, &st);
        assert_true(st.evictions[STORE_EVICT_SPACE] > 50 && st.n_chunks >= 10);
        assert_true(st.n_chunks + st.evictions[STORE_EVICT_SPACE] == CONTEXTS);
        store_close(s);
        place.opts.cap_bytes = 0; /* no cap: nothing is evicted */
        s = st_open(&place);
        struct st_ctx c = {.base = 1, .own = 1};
        int rc = 0;
        for (int n = 0; n < 20 && rc == 0; n++)
            rc = st_append(s, &shapes[1], &c, n, ST_BOTH, &err);
        assert_int_equal(rc, -ENOSPC);
        assert_non_null(strstr(err.msg, "No space left on device"));
        assert_int_equal(store_commit(s, &err), 0);
        uint64_t n_chunks = st.n_chunks;
        store_stats(s, &st);
        assert_true(st.n_evicted == 0 && st.n_chunks >= n_chunks && store_audit(s));
        st_close(s, &place);
    }
}

/* The disk is full when the index is written: the commit can be repeated. */
TEST(full_disk_under_index)
{
    struct err err = {0};
    struct io_sim_fault fault = {.kind = IO_SIM_FAIL,
                                 .on = IO_SIM_ON_WRITE,
                                 .path = "index.db-wal",
                                 .code = -ENOSPC};
    struct store *s = st_begin(&place, "sim", 1);
    saved(s, 2);
    assert_int_equal(st_append(s, &st_small, &ctx, 2, ST_BOTH, &err), 0);
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    assert_int_equal(store_commit(s, &err), -ENOSPC);
    readable(s, 3, 2);
    assert_int_equal(store_commit(s, &err), -ENOSPC);
    io_sim_fault_clear(place.io);
    assert_int_equal(store_commit(s, &err), 0);
    readable(s, 3, 3);
    st_close(s, &place);
}

/* Returns a new store with two chunks, after a failed commit of a third. */
static struct store *open_and_fail(struct st_place *p, const struct io_sim_fault *fault)
{
    struct err err = {0};
    struct store *s = st_begin(p, "sim", 1);
    saved(s, 2);
    assert_int_equal(st_append(s, &st_small, &ctx, 2, ST_BOTH, &err), 0);
    assert_int_equal(io_sim_fault_add(p->io, fault), 0);
    assert_int_not_equal(store_commit(s, &err), 0);
    return s;
}

TEST(failed_sync_is_final)
{
    static const struct {
        enum io_sim_fault_kind kind;
        const char *path;
    } cases[] = {{IO_SIM_FAIL, "seg-"},
                 {IO_SIM_SYNC_LIES, "seg-"},
                 {IO_SIM_FAIL, "index.db-wal"},
                 {IO_SIM_SYNC_LIES, "index.db-wal"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        struct store_stats st;
        struct io_sim_fault fault = {
            .kind = cases[i].kind, .on = IO_SIM_ON_SYNC, .path = cases[i].path, .count = 1};
        struct store *s = open_and_fail(&place, &fault);
        readable(s, 3, 2);
        /* The device works again, but does not report what it has lost. */
        assert_int_not_equal(store_commit(s, &err), 0);
        assert_int_not_equal(st_append(s, &st_small, &ctx, 2, ST_BOTH, &err), 0);
        assert_non_null(strstr(err.msg, "saving is off"));
        store_stats(s, &st);
        assert_int_not_equal(st.saving_fault, 0);
        readable(s, 3, 2);
        assert_true(store_audit(s));
        store_close(s);
        io_sim_crash(place.io);
        io_sim_restart(place.io);
        s = st_open(&place);
        struct st_result r;
        assert_int_equal(st_read(s, &st_small, &ctx, 3, &r, &err), 0);
        assert_true(r.n_found >= 2 && r.n_records == 6 * r.n_found && r.n_corrupt == 0);
        saved(s, 3);
        readable(s, 3, 3);
        st_close(s, &place);
    }
}

/* Chunks found at opening may be in the system's caches only, after a commit that failed or was
 * killed.  A commit with nothing new reports that they are durable, so it must have made them so.
 */
TEST(what_is_found_is_made_durable)
{
    struct err err = {0};
    struct io_sim_fault fault = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_SYNC, .path = "index.db-wal", .code = -EIO};
    struct store *s = open_and_fail(&place, &fault);
    store_close(s);
    s = st_open(&place);
    readable(s, 3, 3); /* visible */
    assert_int_equal(st_append(s, &st_small, &ctx, 2, ST_BOTH, &err), 0);
    assert_int_not_equal(store_commit(s, &err), 0); /* but still not durable */
    store_close(s);
    io_sim_fault_clear(place.io);
    s = st_open(&place);
    readable(s, 3, 3);
    assert_int_equal(store_commit(s, &err), 0);
    store_close(s);
    struct io *disk = place.io;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        assert_int_equal(io_sim_fork(disk, seed, &place.opts.io, &err), 0);
        s = st_open(&place);
        readable(s, 3, 3);
        store_close(s);
        io_close(place.opts.io);
    }
    place.opts.io = disk;
    st_place_close(&place);
}

/* A damaged SQLite header says that the index is read-only: opening sees nothing wrong, the first
 * commit does, and the next opening rebuilds the index. */
TEST(unwritable_index_is_damage)
{
    struct err err = {0};
    /* the offset in SQLite's header; a value above 2 means read-only */
    enum { WRITE_VERSION = 18 };
    struct store *s = st_begin(&place, "sim", 1);
    saved(s, 2);
    store_close(s);
    assert_int_equal(io_sim_flip(place.io, "/st/d0/index.db", WRITE_VERSION, 6), 0);
    s = st_open(&place);
    readable(s, 2, 2);
    assert_int_equal(store_commit(s, &err), ERR_CORRUPT);
    store_close(s);
    s = st_open(&place);
    readable(s, 2, 2);
    saved(s, 3);
    readable(s, 3, 3);
    st_close(s, &place);
}

TEST(failed_reads_are_misses)
{
    struct st_result r;
    struct io_sim_fault fault = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg-", .count = 1, .skip = 2};
    struct store *s = st_begin(&place, "sim", 1);
    saved(s, 3);
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    assert_int_equal(st_read(s, &st_small, &ctx, 3, &r, NULL), 0);
    assert_int_equal(r.n_unread, 1);
    assert_int_equal(r.n_records, 3 * 6 - 1);
    io_sim_fault_clear(place.io);
    readable(s, 3, 3); /* a device error condemns nothing */
    st_close(s, &place);
}

/* A device stops answering: reads become misses within the time limit, an append fails within it,
 * and both work again when the device answers. */
TEST(stuck_device)
{
    struct st_result r;
    struct err err = {0};
    struct store_stats st;
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.stuck_ns = 2000000;
    struct store *s = st_open(&place);
    assert_int_equal(st_save(s, &st_small, &ctx, 4, ST_BOTH, &err), 0);
    struct io_sim_fault stuck = {.kind = IO_SIM_STUCK, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(place.io, &stuck), 0);
    assert_int_equal(st_read(s, &st_small, &ctx, 4, &r, &err), 0);
    assert_int_equal(r.n_unread, 4 * 6);
    store_stats(s, &st);
    assert_int_equal(st.n_read_failures, 4 * 6);
    struct st_ctx other = {77, 77, 0, 0, NULL};
    assert_int_equal(st_append(s, &st_small, &other, 0, ST_BOTH, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.msg, "does not answer"));
    assert_true(store_audit(s));
    io_sim_fault_clear(place.io);
    assert_int_equal(st_read(s, &st_small, &ctx, 4, &r, &err), 0);
    assert_int_equal(r.n_records, 4 * 6);
    assert_int_equal(st_save(s, &st_small, &other, 4, ST_BOTH, &err), 0);
    st_close(s, &place);
}

/* --- memory that the caller lends --------------------------------------------------------------
 */

struct lender {
    int n_lent, n_at_most;
};

static void *lend(void *arg, size_t bytes)
{
    struct lender *l = arg;
    return l->n_lent < l->n_at_most ? l->n_lent++, aligned_alloc(4096, bytes) : NULL;
}

static void take_back(void *arg, void *p, size_t bytes)
{
    (void)bytes;
    ((struct lender *)arg)->n_lent--;
    free(p);
}

TEST(segments_are_lent)
{
    enum { N = 6, SEGMENT = 128 << 10 };
    struct lender l = {.n_at_most = 100};
    const struct st_ctx c = {.base = 1, .own = 2, .model = 3};
    struct store_opts o = {.segment_bytes = SEGMENT, .memory = {lend, take_back, &l}};
    struct store *s;
    struct st_result r;
    struct err err = {0};
    assert_int_equal(store_open(&o, &s, &err), 0);
    assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, &err), 0);
    assert_int_equal(st_read(s, &st_small, &c, N, &r, &err), 0);
    assert_int_equal(r.n_found, N);
    assert_int_equal(r.n_wrong + r.n_corrupt + r.n_unread, 0);
    assert_true(l.n_lent > 1);
    l.n_at_most = l.n_lent; /* the lender gives no more */
    int rc = 0;
    for (uint64_t i = 10; rc == 0 && i < 100; i++) {
        const struct st_ctx more = {.base = i, .own = i, .model = 3};
        rc = st_save(s, &st_small, &more, N, ST_BOTH, &err);
    }
    assert_int_equal(rc, -ENOMEM);
    assert_non_null(strstr(err.msg, "no memory for another"));
    store_close(s);
    assert_int_equal(l.n_lent, 0);
}

/* The file system's quota is used up: under a cap the oldest chunks are evicted, otherwise the
 * append fails.  The store keeps working. */
TEST(a_used_up_quota_is_a_full_disk)
{
    static const unsigned on[] = {IO_SIM_ON_SPACE, IO_SIM_ON_WRITE, IO_SIM_ON_NAME};
    for (int i = 0; i < 6; i++) {
        struct err err = {0};
        struct store_stats st;
        struct io_sim_fault fault = {.kind = IO_SIM_FAIL,
                                     .on = on[i / 2],
                                     .path = "seg-",
                                     .count = 2,
                                     .code = -EDQUOT};
        assert_true(st_place_open(&place, "sim", 1));
        bool capped = i % 2 == 0;
        place.opts.cap_bytes = capped ? 1 << 20 : 0;
        place.opts.segment_bytes = 1 << 16; /* a new file every few chunks */
        struct store *s = st_open(&place);
        saved(s, 4);
        assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
        struct st_ctx other = {70, 71, 0, 0, NULL};
        int rc = 0;
        for (int n = 0; n < 4 && rc == 0; n++)
            rc = st_append(s, &st_small, &other, n, ST_BOTH, &err);
        assert_int_equal(rc, capped ? 0 : -ENOSPC);
        if (!capped)
            assert_non_null(strstr(err.msg, "quota"));
        io_sim_fault_clear(place.io);
        assert_int_equal(st_save(s, &st_small, &other, 4, ST_BOTH, &err), 0);
        store_stats(s, &st);
        assert_int_equal(st.saving_fault, 0);
        assert_true((st.evictions[STORE_EVICT_SPACE] > 0) == capped);
        st_close(s, &place);
    }
}
