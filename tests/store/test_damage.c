/* Damage at rest: bit flips, truncations, swapped records, lost and misdirected writes.  What is
 * damaged is a miss with a reason; wrong bytes are never served; damage to metadata loses nothing.
 *
 * HCACHE_FLIPS=N tries N flips per kind of file instead of a few hundred, and 2 N in the data;
 * HCACHE_CAMPAIGN_OUT=FILE receives the counts. */
#include <errno.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io_sim.h"
#include "store/bugs.h"
#include "store/chunk.h"
#include "storetest.h"

static enum store_bug bug;

enum store_bug store_test_bug(void)
{
    return bug;
}

static uint64_t n_meta_bits, n_data_bits, n_cuts, n_swaps, n_served_wrong;

enum { N_CHUNKS = 4 };
static const struct st_ctx ctx = {1, 2, 2, 0, NULL}, sibling = {1, 3, 2, 0, NULL};

static uint64_t n_flips(void)
{
    const char *text = getenv("HCACHE_FLIPS");
    return text != NULL ? strtoull(text, NULL, 10) : 300;
}

/* A store with two contexts, closed and at rest on two directories. */
static void place_fill(struct st_place *p)
{
    struct err err = {0};
    assert_true(st_place_open(p, "sim", 2));
    struct store *s = st_open(p);
    uint64_t freed;
    assert_int_equal(st_save(s, &st_small, &ctx, N_CHUNKS, ST_BOTH, &err), 0);
    assert_int_equal(st_save(s, &st_small, &sibling, N_CHUNKS, ST_BOTH, &err), 0);
    assert_int_equal(store_gc(s, &freed, &err), 0);
    store_close(s);
}

/* Another disk with the same content. */
static struct io *copy_of(const struct st_place *p, uint64_t seed)
{
    struct io *io = NULL;
    struct err err = {0};
    if (io_sim_fork(p->io, seed, &io, &err) != 0)
        fail_msg("%s", err.msg);
    return io;
}

struct seen {
    bool opened;
    int n_found, n_records, n_wrong, n_corrupt, n_unread;
    struct err err;
};

/* Opens the store on `io` and reads both contexts, twice: what is damaged must stay away. */
static struct seen look(const struct st_place *p, struct io *io)
{
    struct seen seen = {0};
    struct store_opts opts = p->opts;
    struct store *s = NULL;
    opts.io = io;
    if (store_open(&opts, &s, &seen.err) != 0)
        return seen;
    seen.opened = true;
    for (int i = 0; i < 2; i++) {
        struct st_result a, b;
        struct err err = {0};
        if (st_read(s, &st_small, &ctx, N_CHUNKS, &a, &err) != 0 ||
            st_read(s, &st_small, &sibling, N_CHUNKS, &b, &err) != 0)
            fail_msg("%s", err.msg);
        seen.n_wrong += a.n_wrong + b.n_wrong;
        seen.n_corrupt += a.n_corrupt + b.n_corrupt;
        seen.n_unread += a.n_unread + b.n_unread;
        seen.n_found = a.n_found + b.n_found;
        seen.n_records = a.n_records + b.n_records;
    }
    n_served_wrong += (uint64_t)seen.n_wrong * (bug == STORE_BUG_NONE);
    assert_int_equal(store_commit(s, &seen.err), 0);
    store_close(s);
    return seen;
}

static uint64_t size_of(struct io *io, const char *path)
{
    struct io_stat st;
    assert_int_equal(io_stat(io, path, &st, NULL), 0);
    return st.size_bytes;
}

/* Flips one bit of metadata in a copy: nothing may be lost by it. */
static void flip_harmless(const struct st_place *p, const char *path, uint64_t at,
                          unsigned bit)
{
    struct io *io = copy_of(p, at);
    assert_int_equal(io_sim_flip(io, path, at, bit), 0);
    n_meta_bits++;
    struct seen seen = look(p, io);
    assert_int_equal(seen.n_wrong + seen.n_unread + seen.n_corrupt, 0);
    if (!seen.opened)
        fail_msg("%s, byte %llu bit %u: %s", path, (unsigned long long)at, bit,
                 seen.err.msg);
    if (seen.n_records != 2 * N_CHUNKS * 6)
        fail_msg("%s, byte %llu bit %u: %d records left", path, (unsigned long long)at, bit,
                 seen.n_records);
    io_close(io);
}

static void flip_metadata(const struct st_place *p, const char *path)
{
    struct rng r = {77};
    uint64_t size = size_of(p->io, path), n = n_flips();
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = rng_below(&r, size);
        flip_harmless(p, path, at, (unsigned)rng_below(&r, 8));
    }
    print_message("%s: %llu flips, nothing lost\n", path, (unsigned long long)n);
}

static void metadata_flips(void **state)
{
    (void)state;
    struct st_place p;
    place_fill(&p);
    flip_metadata(&p, "/st/d0/superblock");
    flip_metadata(&p, "/st/d0/index.db");
    st_place_close(&p);
}

/* Where these bytes are in a file of the place. */
static uint64_t place_of(const struct st_place *p, const char *path, const void *what,
                         size_t n)
{
    struct io_file *f;
    uint64_t size = size_of(p->io, path);
    uint8_t *all = xmalloc(size);
    assert_int_equal(io_file_open(p->io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, all, size, 0, NULL), 0);
    io_file_close(f);
    const uint8_t *at = memmem(all, size, what, n);
    assert_non_null(at);
    uint64_t offset = (uint64_t)(at - all);
    free(all);
    return offset;
}

/* Every bit of one of each structure of the index: meta.row, extent.row, record.tab; and of what a header
 * says. (Every bit of a header and a superblock as such: test_parts.) */
static void every_bit_of_the_structures(void **state)
{
    (void)state;
    static const char index[] = "/st/d0/index.db", segment[] = "/st/d0/seg-000000.hc";
    struct st_place p;
    struct sha256 keys[N_CHUNKS];
    uint8_t uuid[16], header[4096];
    struct io_file *f;
    place_fill(&p);
    st_keys(&ctx, N_CHUNKS, keys);
    assert_int_equal(io_file_open(p.io, "/st/d0/superblock", IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, uuid, sizeof uuid, 24, NULL), 0);
    io_file_close(f);
    assert_int_equal(io_file_open(p.io, segment, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, header, sizeof header, 0, NULL), 0);
    io_file_close(f);
    size_t table_bytes = (size_t)(header[74] + 256 * header[75]) * 14;
    const struct {
        const char *path;
        uint64_t at, n;
    } parts[] = {
        {index, place_of(&p, index, uuid, sizeof uuid) - 16, 64},
        {index, place_of(&p, index, keys[1].b, sizeof keys[1].b) - 40, 184},
        {index, place_of(&p, index, header + 512, table_bytes), table_bytes + 8},
        {segment, 0, 512 + table_bytes},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        for (uint64_t bit = 0; bit < 8 * parts[i].n; bit++)
            flip_harmless(&p, parts[i].path, parts[i].at + bit / 8, (unsigned)(bit % 8));
    st_place_close(&p);
}

/* A wipe.row in the index: 40 bytes that begin with the checksum of the rest. */
static uint64_t wipe_row(const struct st_place *p)
{
    static const char path[] = "/st/d0/index.db";
    struct io_file *f;
    uint64_t size = size_of(p->io, path), at = 0;
    uint8_t *all = xmalloc(size);
    assert_int_equal(io_file_open(p->io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, all, size, 0, NULL), 0);
    io_file_close(f);
    while (at + 40 <= size && get_u64(all + at) != checksum64(all + at + 8, 32))
        at++;
    free(all);
    assert_true(at + 40 <= size);
    return at;
}

/* Every bit of a place that is still to be wiped: nothing but what was erased may be hurt, and that may come
 * back, but not wrong. */
static void every_bit_of_a_wipe(void **state)
{
    (void)state;
    struct st_place p;
    struct sha256 key;
    struct store_erased e;
    struct err err = {0};
    struct st_ctx victim = {9, 9, 0, 0, NULL};
    place_fill(&p);
    struct store *s = st_open(&p);
    assert_int_equal(st_save(s, &st_small, &victim, 1, ST_BOTH, &err), 0);
    st_keys(&victim, 1, &key);
    struct io_sim_fault bad = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_SPACE, .path = "seg-"};
    io_sim_fault_add(p.io, &bad);
    assert_int_equal(store_erase(s, &key, 1, &e, &err), -EIO);
    io_sim_fault_clear(p.io);
    store_close(s);
    uint64_t at = wipe_row(&p);
    for (unsigned bit = 0; bit < 8 * 40; bit++)
        flip_harmless(&p, "/st/d0/index.db", at + bit / 8, bit % 8);
    st_place_close(&p);
}

/* A WAL that a crash left behind: a flip may hide commits, but never brings wrong data. */
static void wal_flips(void **state)
{
    (void)state;
    struct st_place p;
    struct err err = {0};
    struct rng r = {78};
    assert_true(st_place_open(&p, "sim", 2));
    p.opts.cap_bytes = 80 * 4096;
    struct store *s = st_open(&p);
    for (int i = 0; i < 6; i++) { /* old rows name space that newer extents now have */
        struct st_ctx other = {50, (uint64_t)i, 0, 0, NULL};
        assert_int_equal(st_save(s, &st_small, &other, 1, ST_BOTH, &err), 0);
    }
    assert_int_equal(st_save(s, &st_small, &ctx, N_CHUNKS, ST_BOTH, &err), 0);
    uint64_t n = n_flips(), n_less = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct io *io = copy_of(&p, i);
        uint64_t at = rng_below(&r, size_of(io, "/st/d0/index.db-wal"));
        assert_int_equal(io_sim_flip(io, "/st/d0/index.db-wal", at, (unsigned)(i % 8)), 0);
        n_meta_bits++;
        struct seen seen = look(&p, io);
        assert_int_equal(seen.n_wrong, 0);
        n_less += seen.n_found < N_CHUNKS + 2;
        io_close(io);
    }
    store_close(s);
    print_message("WAL: %llu flips, %llu hid something, 0 wrong\n", (unsigned long long)n,
                  (unsigned long long)n_less);
    st_place_close(&p);
}

/* Flips in segments: headers (the index knows better) and records (refused by their checksums). */
static uint64_t flip_data(const struct st_place *p, uint64_t n, uint64_t *n_refused)
{
    struct rng r = {79};
    uint64_t n_wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        char path[64];
        struct io *io = copy_of(p, i);
        snprintf(path, sizeof path, "/st/d%llu/seg-000000.hc",
                 (unsigned long long)rng_below(&r, 2));
        uint64_t at = rng_below(&r, size_of(io, path));
        assert_int_equal(io_sim_flip(io, path, at, (unsigned)(i % 8)), 0);
        n_data_bits += bug == STORE_BUG_NONE;
        struct seen seen = look(p, io);
        assert_true(seen.opened);
        n_wrong += (uint64_t)seen.n_wrong;
        *n_refused += seen.n_corrupt > 0;
        if (bug == STORE_BUG_NONE) {
            assert_true(seen.n_corrupt <= 2); /* both contexts may share the chunk */
            if (seen.n_corrupt == 0)
                assert_int_equal(seen.n_records, 2 * N_CHUNKS * 6);
        }
        io_close(io);
    }
    return n_wrong;
}

static void data_flips(void **state)
{
    (void)state;
    struct st_place p;
    uint64_t n_refused = 0, n = 2 * n_flips();
    place_fill(&p);
    assert_int_equal(flip_data(&p, n, &n_refused), 0);
    print_message(
        "segments: %llu flips, %llu refused, the rest in headers and padding, 0 wrong\n",
        (unsigned long long)n, (unsigned long long)n_refused);
    assert_true(n_refused > n / 3);

    bug = STORE_BUG_NO_CHECK;
    n_refused = 0;
    uint64_t n_wrong = flip_data(&p, 50, &n_refused);
    bug = STORE_BUG_NONE;
    print_message("a checksum unchecked: caught, %llu wrong records\n",
                  (unsigned long long)n_wrong);
    assert_true(n_wrong > 0);
    st_place_close(&p);
}

/* verify finds every flipped record, and what it finds is gone afterwards. */
static int n_reports;
static void report(void *arg, const char *what)
{
    (void)arg, (void)what;
    n_reports++;
}

static void verify_finds_flips(void **state)
{
    (void)state;
    struct st_place p;
    struct rng r = {80};
    place_fill(&p);
    for (uint64_t i = 0; i < 40; i++) {
        struct store_opts opts = p.opts;
        struct store_verify v;
        struct store *s;
        struct err err = {0};
        opts.io = copy_of(&p, i);
        /* Device 1's segment begins with an extent: header, then records of 5000 bytes in two blocks. */
        bool in_record = i % 2 == 0;
        uint64_t at = in_record ? 4096 + rng_below(&r, 5000) : rng_below(&r, 4096);
        assert_int_equal(
            io_sim_flip(opts.io, "/st/d1/seg-000000.hc", at, (unsigned)(i % 8)), 0);
        assert_int_equal(store_open(&opts, &s, &err), 0);
        n_reports = 0;
        assert_int_equal(store_verify(s, &v, report, NULL, NULL, &err), 0);
        assert_int_equal(v.n_bad, 1);
        assert_int_equal(n_reports, 1);
        assert_int_equal(store_verify(s, &v, report, NULL, NULL, &err), 0);
        assert_int_equal(v.n_bad, 0); /* condemned */
        store_close(s);
        io_close(opts.io);
    }
    st_place_close(&p);
}

static struct io_file *file_of(struct io *io, const char *path)
{
    struct io_file *f;
    assert_int_equal(io_file_open(io, path, 0, &f, NULL), 0);
    return f;
}

/* Every truncation at a block, of every file. */
static void truncations(void **state)
{
    (void)state;
    static const char *const paths[] = {"/st/d0/index.db", "/st/d0/seg-000000.hc",
                                        "/st/d1/seg-000000.hc"};
    struct st_place p;
    place_fill(&p);
    for (int i = 0; i < 3; i++) {
        uint64_t size = size_of(p.io, paths[i]);
        for (uint64_t end = 0; end < size; end += end % 4096 == 0 ? 4095 : 1) {
            struct io *io = copy_of(&p, end);
            struct io_file *f = file_of(io, paths[i]);
            assert_int_equal(io_file_truncate(f, end, NULL), 0);
            io_file_close(f);
            struct seen seen = look(&p, io);
            if (!seen.opened)
                fail_msg("%s cut at %llu: %s", paths[i], (unsigned long long)end,
                         seen.err.msg);
            assert_int_equal(seen.n_wrong, 0);
            n_cuts++;
            if (i == 0)
                assert_int_equal(seen.n_records, 2 * N_CHUNKS * 6); /* rebuilt */
            io_close(io);
        }
    }
    st_place_close(&p);
}

/* Two stretches of equal length in one file change places. */
static struct seen swapped(const struct st_place *p, uint64_t a_at, uint64_t b_at, size_t n)
{
    uint8_t *a = mem_map(n), *b = mem_map(n);
    struct io *io = copy_of(p, a_at ^ b_at);
    struct io_file *f = file_of(io, "/st/d0/seg-000000.hc");
    assert_int_equal(io_file_pread(f, a, n, a_at, NULL), 0);
    assert_int_equal(io_file_pread(f, b, n, b_at, NULL), 0);
    assert_int_equal(io_file_pwrite(f, b, n, a_at, NULL), 0);
    assert_int_equal(io_file_pwrite(f, a, n, b_at, NULL), 0);
    io_file_close(f);
    struct seen seen = look(p, io);
    assert_true(seen.opened);
    assert_int_equal(seen.n_wrong, 0);
    n_swaps++;
    io_close(io);
    mem_unmap(a, n);
    mem_unmap(b, n);
    return seen;
}

/* Records within an extent, and every two blocks of the file: misplaced, whatever they are. */
static void swaps(void **state)
{
    (void)state;
    struct st_place p;
    place_fill(&p);
    assert_true(swapped(&p, 4096, 4096 + 8192, 8192).n_corrupt >= 2);
    uint64_t n_blocks = size_of(p.io, "/st/d0/seg-000000.hc") / 4096;
    for (uint64_t i = 0; i < n_blocks; i++)
        for (uint64_t j = i + 1; j < n_blocks && j < i + 12; j++)
            swapped(&p, 4096 * i, 4096 * j, 4096);
    st_place_close(&p);
}

/* A device that says yes and writes nothing, or elsewhere. */
static void lost_and_misdirected_writes(void **state)
{
    (void)state;
    uint64_t n_hits = 0;
    int n_corrupt = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct st_place p;
        struct err err = {0};
        assert_true(st_place_open(&p, "sim", 2));
        struct store *s = st_open(&p);
        struct io_sim_fault fault = {.kind = seed % 2 == 0 ? IO_SIM_LOST
                                                           : IO_SIM_MISDIRECTED,
                                     .on = IO_SIM_ON_WRITE,
                                     .path = seed % 4 < 2 ? "seg-" : NULL,
                                     .skip = seed % 7,
                                     .count = 1};
        assert_int_equal(io_sim_fault_add(p.io, &fault), 0);
        (void)st_save(s, &st_small, &ctx, N_CHUNKS, ST_BOTH, &err);
        store_close(s);
        n_hits += io_sim_fault_hits(p.io);
        io_sim_fault_clear(p.io);
        struct seen seen = look(&p, p.io);
        assert_int_equal(seen.n_wrong, 0);
        n_corrupt += seen.n_corrupt;
        st_place_close(&p);
    }
    print_message("%llu lost or misdirected writes: %d records refused, 0 wrong\n",
                  (unsigned long long)n_hits, n_corrupt);
    assert_true(n_hits >= 90 && n_corrupt > 0);
}

/* A read that returns one wrong bit, once: refused, and the chunk is right when appended again. */
static void read_flips(void **state)
{
    (void)state;
    struct st_place p;
    struct st_result r;
    struct err err = {0};
    place_fill(&p);
    struct store *s = st_open(&p);
    struct io_sim_fault fault = {
        .kind = IO_SIM_READ_FLIP, .on = IO_SIM_ON_READ, .path = "seg-", .count = 1};
    /* A flip may fall into the padding of a record's last block, where it does no harm. */
    int n_corrupt = 0;
    for (int i = 0; i < 10 && n_corrupt == 0; i++) {
        assert_int_equal(io_sim_fault_add(p.io, &fault), 0);
        assert_int_equal(st_read(s, &st_small, &ctx, N_CHUNKS, &r, &err), 0);
        assert_int_equal(r.n_wrong, 0);
        n_corrupt += r.n_corrupt;
        io_sim_fault_clear(p.io);
    }
    assert_int_equal(n_corrupt, 1);
    assert_int_equal(st_save(s, &st_small, &ctx, N_CHUNKS, ST_BOTH, &err), 0);
    assert_int_equal(st_read(s, &st_small, &ctx, N_CHUNKS, &r, &err), 0);
    assert_int_equal(r.n_records, N_CHUNKS * 6);
    store_close(s);
    st_place_close(&p);
}

static void counts_write(void)
{
    const char *path = getenv("HCACHE_CAMPAIGN_OUT");
    FILE *f = path != NULL && *path != 0 ? fopen(path, "w") : stdout;
    if (f == NULL)
        return;
    fprintf(f, "bits flipped in metadata: %llu\nbits flipped in data: %llu\n",
            (unsigned long long)n_meta_bits, (unsigned long long)n_data_bits);
    fprintf(f, "files cut short: %llu\nblocks or records swapped: %llu\n",
            (unsigned long long)n_cuts, (unsigned long long)n_swaps);
    fprintf(f, "wrong bytes served: %llu\n", (unsigned long long)n_served_wrong);
    if (f != stdout)
        fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_flips),
        cmocka_unit_test(wal_flips),
        cmocka_unit_test(data_flips),
        cmocka_unit_test(verify_finds_flips),
        cmocka_unit_test(truncations),
        cmocka_unit_test(swaps),
        cmocka_unit_test(read_flips),
        cmocka_unit_test(lost_and_misdirected_writes),
        cmocka_unit_test(every_bit_of_the_structures),
        cmocka_unit_test(every_bit_of_a_wipe),
    };
    int n_bad = cmocka_run_group_tests(tests, NULL, NULL);
    counts_write();
    return n_bad;
}
