/* test_files.c - the store's files. The cap bounds the files and not only the extents. A directory
 * that is removed under a running store is noticed. A single chunk can be verified. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "io/io.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 6 };

static uint64_t file_bytes(struct store *s)
{
    struct store_stats st;
    store_stats(s, &st);
    return st.file_bytes;
}

/* Saves and removes chunks of several sizes, so that free space has holes. */
static void churn(struct store *s, uint64_t cap)
{
    static const int kinds[] = {ST_BOTH, ST_H, ST_KV};
    struct err err = {0};
    for (uint64_t i = 0; i < 120; i++) {
        struct st_ctx c = {.base = 100 + i, .own = 100 + i};
        for (int chunk = 0; chunk < 1 + (int)(i * 7 % N); chunk++) {
            int rc = st_append(s, &st_small, &c, chunk, kinds[(i + (uint64_t)chunk) % 3],
                               &err);
            if (rc != 0)
                fail_msg("context %llu: %s", (unsigned long long)i, err.msg);
            assert_true(file_bytes(s) <= cap);
        }
        assert_int_equal(store_commit(s, &err), 0);
    }
}

/* The disk of the test that runs. */
static struct st_place place;

TEST(the_cap_bounds_the_files)
{
    for (int n_dirs = 1; n_dirs <= 3; n_dirs += 2) {
        struct store_stats st;
        assert_true(st_place_open(&place, "pread", n_dirs));
        place.opts.cap_bytes = 1 << 20;
        struct store *s = st_open(&place);
        churn(s, place.opts.cap_bytes);
        store_stats(s, &st);
        assert_true(st.evictions[STORE_EVICT_CAP] > 0 &&
                    st.evictions[STORE_EVICT_SPACE] == 0);
        assert_true(st.used_bytes > place.opts.cap_bytes / 2); /* most of the cap is used */
        st_close(s, &place);
    }
}

/* Files that grew under an earlier build or without a cap are cut when the store is opened. */
TEST(a_lower_cap_cuts_files)
{
    struct store *s = st_begin(&place, "pread", 1);
    for (uint64_t i = 0; i < 12; i++) {
        struct st_ctx c = {.base = i, .own = i};
        assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, NULL), 0);
    }
    struct store_stats st;
    store_stats(s, &st);
    assert_true(st.file_bytes > st.used_bytes); /* space is allocated ahead */
    store_close(s);
    place.opts.cap_bytes = st.file_bytes; /* files of just the cap stay as they are */
    s = st_open(&place);
    assert_int_equal(file_bytes(s), st.file_bytes);
    store_close(s);
    place.opts.cap_bytes = st.used_bytes;
    s = st_open(&place);
    assert_true(file_bytes(s) <= place.opts.cap_bytes);
    st_close(s, &place);
}

TEST(removed_under_way)
{
    static const struct st_ctx a = {.base = 1, .own = 1}, b = {.base = 2, .own = 2};
    for (int how = 0; how < 3; how++) {
        struct err err = {0};
        struct store_stats st;
        char moved[400], path[600];
        struct store *s = st_begin(&place, "pread", 2);
        assert_int_equal(st_save(s, &st_small, &a, N, ST_BOTH, &err), 0);
        snprintf(moved, sizeof moved, "%s/moved", place.root);
        snprintf(path, sizeof path, "%s/%s", place.dirs[how == 2 ? 1 : 0],
                 how == 0 ? "index.db" : "superblock");
        if (how == 1)
            assert_int_equal(io_rename(place.io, place.dirs[0], moved, &err), 0);
        else
            assert_int_equal(io_unlink(place.io, path, &err), 0);
        assert_int_equal(st_save(s, &st_small, &b, N, ST_BOTH, &err), -ENOENT);
        assert_non_null(strstr(err.msg, "was removed or replaced"));
        store_stats(s, &st);
        assert_int_equal(st.saving_fault, -ENOENT);
        struct st_result r; /* an open file can still be read */
        assert_int_equal(st_read(s, &st_small, &a, N, &r, &err), 0);
        assert_int_equal(r.n_found, N);
        assert_int_equal(r.n_wrong + r.n_corrupt, 0);
        st_close(s, &place);
    }
}

static int n_chunks_beside(const struct st_place *p, const struct st_ctx *c, int *n_found)
{
    struct store_opts opts = p->opts;
    struct store *s = NULL;
    struct store_stats st;
    struct store_verify v;
    struct st_result r;
    struct err err = {0};
    opts.read_only = true;
    if (store_open(&opts, &s, &err) != 0)
        fail_msg("%s", err.msg);
    assert_non_null(store_beside(s));
    store_stats(s, &st);
    assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, &err), 0);
    assert_int_equal(v.n_bad, 0);
    assert_int_equal(st_read(s, &st_small, c, N, &r, &err), 0);
    assert_int_equal(r.n_wrong + r.n_corrupt, 0);
    *n_found = r.n_found;
    store_close(s);
    return (int)st.n_chunks;
}

/* A second process opens the store for reading. It reads what is committed, while the first writes
 * and folds the index's log, and it changes nothing. */
TEST(read_beside_a_writer)
{
    static const char *const kinds[] = {"pread", "sim"};
    for (int k = 0; k < 2; k++) {
        struct err err = {0};
        int n_found;
        assert_true(st_place_open(&place, kinds[k], 2));
        struct store *s = st_open(&place);
        /* enough saves for the log to start again several times */
        for (uint64_t i = 0; i < 60; i++) {
            struct st_ctx c = {.base = i, .own = i};
            assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, &err), 0);
            if (i % 10 == 9) {
                assert_int_equal(n_chunks_beside(&place, &c, &n_found), (int)(i + 1) * N);
                assert_int_equal(n_found, N);
            }
        }
        assert_int_equal(st_save(s, &st_small, &(struct st_ctx){.base = 99, .own = 99}, N,
                                 ST_BOTH, &err),
                         0);
        st_close(s, &place);
    }
}

/* An index of several MiB is copied in parts, and so is its log. */
TEST(read_beside_a_large_index)
{
    enum { CONTEXTS = 160, CHUNKS = 60, MIB = 1 << 20 };
    static const struct st_shape one = {.n_layers = 1, .n_bytes = {100, 100}};
    struct store_stats st;
    struct store *s, *beside;
    s = st_begin(&place, "sim", 1);
    for (int in_log = 0; in_log < 2; in_log++) {
        struct io_stat index, log;
        for (uint64_t i = 0; i < CONTEXTS / 2; i++) {
            struct st_ctx c = {.base = 1 + i, .own = 1 + i, .model = (uint64_t)in_log};
            for (int k = 0; k < CHUNKS; k++)
                assert_int_equal(st_append(s, &one, &c, k, ST_KV, NULL), 0);
        }
        assert_int_equal(store_commit(s, NULL), 0);
        if (in_log == 0) { /* closing folds the log */
            store_close(s);
            assert_int_equal(io_stat(place.io, "/st/d0/index.db", &index, NULL), 0);
            assert_true(index.size_bytes > MIB);
            s = st_open(&place);
            continue;
        }
        assert_int_equal(io_stat(place.io, "/st/d0/index.db-wal", &log, NULL), 0);
        assert_true(log.size_bytes > MIB);
    }
    place.opts.read_only = true;
    beside = st_open(&place);
    assert_non_null(store_beside(beside));
    store_stats(beside, &st);
    assert_int_equal(st.n_chunks, CONTEXTS * CHUNKS);
    assert_int_equal(
        st_n_found(beside, &(struct st_ctx){.base = 40, .own = 40, .model = 1}, CHUNKS),
        CHUNKS);
    store_close(beside);
    st_close(s, &place);
}

/* The message for a store in use names the process that uses it. */
TEST(the_holder_is_named)
{
    struct store *s = NULL;
    struct err err = {0};
    int ready[2], done[2];
    char byte, want[32];
    assert_true(st_place_open(&place, "pread", 1));
    assert_int_equal(pipe(ready) | pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        s = st_open(&place);
        (void)!write(ready[1], "x", 1);
        (void)!read(done[0], &byte, 1);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(store_open(&place.opts, &s, &err), ERR_BUSY);
    snprintf(want, sizeof want, "process %ld (", (long)child);
    if (strstr(err.msg, want) == NULL || strstr(err.msg, "test_files") == NULL)
        fail_msg("%s", err.msg);
    assert_int_equal(write(done[1], "x", 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
    st_place_close(&place);
}

/* --- the files themselves, without a store above them ----------------------------------------- */

enum { BLOCK = STORE_ALIGN, DISK_BYTES = 32 << 20, DISK_RESERVE = DISK_BYTES / 16 };

static struct media *files_again(struct st_place *p, uint64_t max_step_bytes,
                                 uint64_t max_bytes)
{
    struct media *m = NULL;
    struct files_opts o = {.io = p->io,
                           .dirs = p->dirs,
                           .n_dirs = 2,
                           .segment_bytes = 1 << 20,
                           .max_step_bytes = max_step_bytes,
                           .max_bytes = max_bytes,
                           .stuck_ns = INT64_MAX};
    assert_int_equal(files_open(&o, &m, NULL), 0);
    return m;
}

/* Opens the files of two folders on a simulated disk of 32 MiB. */
static struct media *media_open(struct st_place *p, uint64_t max_step_bytes,
                                uint64_t max_bytes)
{
    struct io_sim_opts disk = {.seed = 1, .capacity_bytes = DISK_BYTES};
    assert_true(st_place_open(p, "sim", 2));
    io_close(p->io);
    assert_int_equal(io_sim_open(&disk, &p->io, NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(io_mkdirs(p->io, p->dirs[i], NULL, NULL), 0);
    return files_again(p, max_step_bytes, max_bytes);
}

static void media_end(struct st_place *p, struct media *m)
{
    m->ops->close(m);
    st_place_close(p);
}

/* Writes an extent of n_blocks blocks that ends at end_bytes. */
static int put(struct media *m, int device, uint32_t segment, uint64_t end_bytes,
               int n_blocks, struct err *err)
{
    static uint8_t bytes[8 * BLOCK];
    memset(bytes, 'x', sizeof bytes);
    struct store_record r = {
        .kind = STORE_KV, .bytes = bytes, .n_bytes = (uint32_t)(n_blocks - 1) * BLOCK};
    const struct store_record *from[] = {&r};
    struct chunk_header h = {.device = (uint16_t)device,
                             .segment = segment,
                             .offset = end_bytes - (uint64_t)n_blocks * BLOCK,
                             .n_records = 1,
                             .n_tokens = 1};
    h.records[0] = (struct chunk_record){.kind = STORE_KV, .n_bytes = r.n_bytes};
    h.n_bytes = chunk_layout(h.records, 1);
    return m->ops->write(m, &h, from, NULL, err);
}

static uint64_t size_of(const struct st_place *p, struct media *m, int device,
                        uint32_t segment)
{
    struct io_stat st = {0};
    char path[400];
    snprintf(path, sizeof path, "%s/seg-%06u.hc", p->dirs[device], segment);
    if (io_stat(p->io, path, &st, NULL) != 0)
        st.size_bytes = 0;
    assert_int_equal(m->ops->segment_size(m, device, segment), st.size_bytes);
    return st.size_bytes;
}

/* A file grows by a quarter of its length beyond the written bytes, by a step at most, and not
 * beyond the length of a segment. */
TEST(files_grow_in_steps)
{
    static const struct {
        uint64_t end_kib, size_kib;
    } writes[] = {{16, 20},   {20, 20},   {24, 32},   {32, 32},    {36, 48},
                  {512, 576}, {900, 964}, {964, 964}, {968, 1024}, {1024, 1024}};
    struct media *m = media_open(&place, 64 << 10, 0);
    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        assert_int_equal(put(m, 0, 0, writes[i].end_kib << 10, 2, NULL), 0);
        assert_int_equal(size_of(&place, m, 0, 0), writes[i].size_kib << 10);
    }
    assert_int_equal(m->ops->n_segments(m, 0), 1);
    assert_int_equal(m->ops->n_segments(m, 1), 0);
    media_end(&place, m);
}

/* The files of all folders together stay within their bound. */
TEST(files_stay_within_their_bound)
{
    struct err err = {0};
    enum { KIB = 1024 };
    struct media *m = media_open(&place, 64 << 10, 200 * KIB + 1000);
    assert_int_equal(put(m, 0, 0, 80 * KIB, 2, &err), 0);
    assert_int_equal(size_of(&place, m, 0, 0), 100 * KIB);
    assert_int_equal(put(m, 1, 2, 88 * KIB, 2, &err), 0);
    assert_int_equal(size_of(&place, m, 1, 2),
                     100 * KIB); /* a part of the step: 12 of 24 KiB */
    assert_int_equal(put(m, 0, 0, 104 * KIB, 2, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "would exceed its cap of 205800 bytes"));
    assert_int_equal(size_of(&place, m, 0, 0), 100 * KIB);
    assert_int_equal(put(m, 0, 0, 100 * KIB, 2, &err), 0);
    assert_int_equal(m->ops->cut(m, 1, 2, 96 * KIB, &err), 0);
    assert_int_equal(put(m, 0, 0, 104 * KIB, 2, &err), 0); /* exactly what is left */
    assert_int_equal(size_of(&place, m, 0, 0), 104 * KIB);
    assert_int_equal(put(m, 0, 1, 8 * KIB, 2, &err), ERR_LIMIT);
    m->ops->close(m);
    struct io_file *f; /* a crash can leave a file's end anywhere */
    char path[400];
    snprintf(path, sizeof path, "%s/seg-000000.hc", place.dirs[0]);
    assert_int_equal(io_file_open(place.io, path, 0, &f, &err), 0);
    assert_int_equal(io_file_truncate(f, 104 * KIB - 500, &err), 0);
    io_file_close(f);
    m = files_again(&place, 64 << 10, 200 * KIB + 1000);
    assert_int_equal(put(m, 0, 0, 104 * KIB, 2, &err), 0);
    assert_int_equal(size_of(&place, m, 0, 0), 104 * KIB);
    media_end(&place, m);
}

/* Takes space until so many bytes are free. */
static void leave(const struct st_place *p, uint64_t free_bytes)
{
    struct io_file *f;
    uint64_t now, total;
    assert_int_equal(io_file_open(p->io, "/ballast", IO_CREATE, &f, NULL), 0);
    assert_int_equal(io_space(p->io, "/", &now, &total, NULL), 0);
    assert_int_equal(io_file_allocate(f, 0, now - free_bytes, NULL), 0);
    io_file_close(f);
}

/* The index's device keeps a sixteenth of a small disk free, the others nothing. */
TEST(files_leave_room_for_the_index)
{
    static const struct {
        uint64_t free_bytes;
        int device, code;
        uint64_t size_bytes;
    } cases[] = {
        {DISK_RESERVE + 5 * BLOCK, 0, 0, 5 * BLOCK},
        {DISK_RESERVE + 4 * BLOCK, 0, 0, 4 * BLOCK}, /* without the step */
        {DISK_RESERVE + 3 * BLOCK, 0, -ENOSPC, 0},
        {DISK_RESERVE - BLOCK, 0, -ENOSPC, 0},
        {5 * BLOCK, 1, 0, 5 * BLOCK},
        {4 * BLOCK, 1, 0, 4 * BLOCK},
        {3 * BLOCK, 1, -ENOSPC, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        struct media *m = media_open(&place, 64 << 10, 0);
        leave(&place, cases[i].free_bytes);
        assert_int_equal(put(m, cases[i].device, 0, 4 * BLOCK, 4, &err), cases[i].code);
        assert_int_equal(size_of(&place, m, cases[i].device, 0), cases[i].size_bytes);
        if (i == 2)
            assert_string_equal(err.msg,
                                "/st/d0: No space left on device: 2060 KiB are free, "
                                "and 2048 are kept for the index");
        media_end(&place, m);
    }
}

/* A file system that cannot reserve space, or has none for a whole step. */
TEST(files_that_cannot_be_reserved)
{
    static const struct {
        int fault;
        uint64_t count;
        int code;
        uint64_t size_bytes;
    } cases[] = {
        {-EOPNOTSUPP, 1, 0, 4 * BLOCK},
        {-EOPNOTSUPP, 2, 0, 4 * BLOCK},
        {-ENOSPC, 1, 0, 4 * BLOCK},
        {-ENOSPC, 2, -ENOSPC, 0},
        {-EIO, 1, -EIO, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        struct io_sim_fault fault = {.kind = IO_SIM_FAIL,
                                     .on = IO_SIM_ON_SPACE,
                                     .code = cases[i].fault,
                                     .count = cases[i].count};
        struct media *m = media_open(&place, 64 << 10, 0);
        assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
        assert_int_equal(put(m, 0, 0, 4 * BLOCK, 4, &err), cases[i].code);
        assert_int_equal(size_of(&place, m, 0, 0), cases[i].size_bytes);
        media_end(&place, m);
    }
}

/* Returns how many files and folders a sync writes. */
static uint64_t n_synced(const struct st_place *p, struct media *m)
{
    uint64_t before = io_sim_count(p->io, IO_SIM_AT_BARRIER);
    assert_int_equal(m->ops->sync(m, NULL), 0);
    return io_sim_count(p->io, IO_SIM_AT_BARRIER) - before;
}

TEST(what_has_changed_is_synced_once)
{
    struct err err = {0};
    struct media *m = media_open(&place, 64 << 10, 0);
    assert_int_equal(n_synced(&place, m), 2); /* a killed process may have left names */
    assert_int_equal(n_synced(&place, m), 0);
    assert_int_equal(put(m, 0, 0, 4 * BLOCK, 2, &err), 0);
    assert_int_equal(put(m, 1, 3, 4 * BLOCK, 2, &err), 0);
    assert_int_equal(n_synced(&place, m), 4);
    assert_int_equal(put(m, 1, 3, 2 * BLOCK, 2, &err), 0);
    assert_int_equal(n_synced(&place, m), 1);
    assert_int_equal(m->ops->wipe(m, 0, 0, 0, BLOCK, &err), 0);
    assert_int_equal(n_synced(&place, m), 1);
    assert_int_equal(m->ops->cut(m, 0, 0, 3 * BLOCK, &err), 0);
    assert_int_equal(n_synced(&place, m), 1);
    assert_int_equal(m->ops->cut(m, 0, 0, 3 * BLOCK, &err), 0); /* has this length */
    assert_int_equal(m->ops->cut(m, 0, 0, 4 * BLOCK, &err), 0);
    assert_int_equal(m->ops->cut(m, 0, 7, 0, &err), 0); /* there is no such segment */
    assert_int_equal(m->ops->wipe(m, 0, 7, 0, BLOCK, &err), 0);
    assert_int_equal(m->ops->wipe(m, 0, 0, 3 * BLOCK, 5 * BLOCK, &err), 0);
    assert_int_equal(m->ops->wipe(m, 0, 0, BLOCK, BLOCK, &err), 0);
    assert_int_equal(n_synced(&place, m), 0);
    assert_int_equal(size_of(&place, m, 0, 0), 3 * BLOCK);
    assert_int_equal(m->ops->cut(m, 0, 0, 0, &err), 0);
    assert_int_equal(size_of(&place, m, 0, 0), 0);
    assert_int_equal(n_synced(&place, m), 1); /* the folder */
    /* a failed sync of a folder is tried again; a file stays failed (io.h) */
    struct io_sim_fault fault = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_DIR_SYNC, .code = -EIO, .count = 1};
    assert_int_equal(put(m, 0, 1, 4 * BLOCK, 2, &err), 0);
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    assert_int_equal(m->ops->sync(m, &err), -EIO);
    assert_int_equal(n_synced(&place, m), 1);
    io_sim_fault_clear(place.io);
    fault.on = IO_SIM_ON_SYNC;
    assert_int_equal(put(m, 0, 1, 4 * BLOCK, 2, &err), 0);
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(m->ops->sync(m, &err), -EIO);
    media_end(&place, m);
}

/* Wiping reaches to the file's end, and no other byte. */
TEST(only_the_range_is_wiped)
{
    static const struct {
        uint64_t begin, end;
    } ranges[] = {{1, 2}, {3, 4}, {4, 9}, {4, 5}, {5, 9}};
    uint8_t *in = mem_map(5 * BLOCK), *want = mem_map(5 * BLOCK);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        struct err err = {0};
        struct media *m = media_open(&place, 64 << 10, 0);
        uint64_t begin = ranges[i].begin * BLOCK, end = ranges[i].end * BLOCK;
        assert_int_equal(put(m, 0, 0, 5 * BLOCK, 5, &err), 0);
        assert_int_equal(m->ops->cut(m, 0, 0, 5 * BLOCK, &err), 0);
        assert_int_equal(m->ops->read(m, 0, 0, 0, want, 5 * BLOCK, &err), 0);
        assert_int_equal(want[5 * BLOCK - 1], 'x');
        if (begin < 5 * BLOCK)
            memset(want + begin, 0, (end < 5 * BLOCK ? end : 5 * BLOCK) - begin);
        assert_int_equal(m->ops->wipe(m, 0, 0, begin, end, &err), 0);
        assert_int_equal(m->ops->read(m, 0, 0, 0, in, 5 * BLOCK, &err), 0);
        assert_memory_equal(in, want, 5 * BLOCK);
        assert_int_equal(size_of(&place, m, 0, 0), 5 * BLOCK);
        assert_int_equal(m->ops->read(m, 0, 0, 4 * BLOCK, in, 2 * BLOCK, &err), -ENODATA);
        assert_null(m->ops->at(m, 0, 0, 0));
        media_end(&place, m);
    }
    mem_unmap(in, 5 * BLOCK);
    mem_unmap(want, 5 * BLOCK);
}

/* Only files with the names of segments are opened. */
TEST(names_of_segments)
{
    static const char *const names[] = {
        "seg-000003.hc",  "seg-4.hc",       "seg-0000005.hc",
        "seg-000006.hcx", "seg-000007",     "seg-1048577.hc",
        "xseg-000008.hc", "seg-000009.hc~", "seg--00010.hc"};
    struct media *m = media_open(&place, 64 << 10, 0);
    m->ops->close(m);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[400];
        struct io_file *f;
        snprintf(path, sizeof path, "%s/%s", place.dirs[1], names[i]);
        assert_int_equal(io_file_open(place.io, path, IO_CREATE, &f, NULL), 0);
        assert_int_equal(io_file_truncate(f, 3 * BLOCK, NULL), 0);
        io_file_close(f);
    }
    struct files_opts o = {
        .io = place.io, .dirs = place.dirs, .n_dirs = 2, .segment_bytes = 1 << 20};
    assert_int_equal(files_open(&o, &m, NULL), 0);
    assert_int_equal(m->ops->n_segments(m, 0), 0);
    assert_int_equal(m->ops->n_segments(m, 1), 4);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(m->ops->segment_size(m, 1, i), i == 3 ? 3 * BLOCK : 0);
    media_end(&place, m);
}
