/* test_damage.c - damage at rest: bit flips, truncations, swapped records, lost and misdirected
 * writes.
 *
 * A damaged record is a miss with a reason.  Wrong bytes are never served.  Damage to metadata
 * loses nothing.
 *
 * HCACHE_FLIPS=N tries N flips per kind of file instead of a few hundred, and 2 N in the data.
 * HCACHE_CAMPAIGN_OUT=FILE receives the counts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sim/io_sim.h"
#include "store/bugs.h"
#include "store/chunk.h"
#include "damage.h"

static enum store_bug bug;

enum store_bug store_test_bug(void)
{
    return bug;
}

static uint64_t n_data_bits, n_cuts, n_swaps;

static uint64_t n_flips(void)
{
    const char *text = getenv("HCACHE_FLIPS");
    return text != NULL ? strtoull(text, NULL, 10) : 300;
}

static void flip_metadata(const struct st_place *p, const char *path)
{
    struct rng r = {77};
    uint64_t size = damage_size(p->io, path), n = n_flips();
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = rng_below(&r, size);
        damage_flip(p, path, at, (unsigned)rng_below(&r, 8));
    }
    print_message("%s: %llu flips, nothing lost\n", path, (unsigned long long)n);
}

/* The disk of the test that runs. */
static struct st_place place;

TEST(metadata_flips)
{
    damage_place(&place);
    flip_metadata(&place, "/st/d0/superblock");
    flip_metadata(&place, "/st/d0/index.db");
    st_place_close(&place);
}

/* Flips in the WAL that a crash left may hide commits, but never bring wrong data. */
TEST(wal_flips)
{
    struct rng r = {78};
    assert_true(st_place_open(&place, "sim", 2));
    place.opts.cap_bytes = 80 * 4096;
    struct store *s = st_open(&place);
    /* more saves, so that old rows in the log describe space that newer extents use */
    for (int i = 0; i < 6; i++) {
        struct st_ctx other = {50, (uint64_t)i, 0, 0, NULL};
        assert_int_equal(st_save(s, &st_small, &other, 1, ST_BOTH, NULL), 0);
    }
    assert_int_equal(st_save(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, ST_BOTH, NULL), 0);
    uint64_t n = n_flips(), n_less = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct io *io = damage_copy(&place, i);
        uint64_t at = rng_below(&r, damage_size(io, "/st/d0/index.db-wal"));
        assert_int_equal(io_sim_flip(io, "/st/d0/index.db-wal", at, (unsigned)(i % 8)), 0);
        damage_counts.n_meta_bits++;
        struct damage_seen seen = damage_look(&place, io);
        assert_int_equal(seen.n_wrong, 0);
        n_less += seen.n_found < DAMAGE_CHUNKS + 2;
        io_close(io);
    }
    store_close(s);
    print_message("WAL: %llu flips, %llu hid something, 0 wrong\n", (unsigned long long)n,
                  (unsigned long long)n_less);
    st_place_close(&place);
}

/* Flips bits in segments: in headers, whose facts the index has, too, and in records, which their
 * checksums protect. */
static uint64_t flip_data(const struct st_place *p, uint64_t n, uint64_t *n_refused)
{
    struct rng r = {79};
    uint64_t n_wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        char path[64];
        struct io *io = damage_copy(p, i);
        snprintf(path, sizeof path, "/st/d%llu/seg-000000.hc",
                 (unsigned long long)rng_below(&r, 2));
        uint64_t at = rng_below(&r, damage_size(io, path));
        assert_int_equal(io_sim_flip(io, path, at, (unsigned)(i % 8)), 0);
        n_data_bits += bug == STORE_BUG_NONE;
        struct damage_seen seen = damage_look(p, io);
        assert_true(seen.opened);
        n_wrong += (uint64_t)seen.n_wrong;
        *n_refused += seen.n_corrupt > 0;
        if (bug == STORE_BUG_NONE) {
            /* the damaged chunk may belong to both contexts */
            assert_true(seen.n_corrupt <= 2);
            if (seen.n_corrupt == 0)
                assert_int_equal(seen.n_records, 2 * DAMAGE_CHUNKS * 6);
        }
        io_close(io);
    }
    return n_wrong;
}

TEST(data_flips)
{
    uint64_t n_refused = 0, n = 2 * n_flips();
    damage_place(&place);
    assert_int_equal(flip_data(&place, n, &n_refused), 0);
    print_message(
        "segments: %llu flips, %llu refused, the rest in headers and padding, 0 wrong\n",
        (unsigned long long)n, (unsigned long long)n_refused);
    assert_true(n_refused > n / 3);

    bug = STORE_BUG_NO_CHECK;
    n_refused = 0;
    uint64_t n_wrong = flip_data(&place, 50, &n_refused);
    bug = STORE_BUG_NONE;
    print_message("a checksum unchecked: caught, %llu wrong records\n",
                  (unsigned long long)n_wrong);
    assert_true(n_wrong > 0);
    st_place_close(&place);
}

/* number of records that verify has reported as damaged */
static int n_reports;
static void report(void *arg, const char *what)
{
    (void)arg, (void)what;
    n_reports++;
}

TEST(verify_finds_flips)
{
    struct rng r = {80};
    damage_place(&place);
    for (uint64_t i = 0; i < 40; i++) {
        struct store_opts opts = place.opts;
        struct store_verify v;
        struct store *s;
        opts.io = damage_copy(&place, i);
        /* Device 1's segment begins with an extent: header, then records of 5000
         * bytes in two blocks. */
        bool in_record = i % 2 == 0;
        uint64_t at = in_record ? 4096 + rng_below(&r, 5000) : rng_below(&r, 4096);
        assert_int_equal(
            io_sim_flip(opts.io, "/st/d1/seg-000000.hc", at, (unsigned)(i % 8)), 0);
        assert_int_equal(store_open(&opts, &s, NULL), 0);
        n_reports = 0;
        assert_int_equal(store_verify(s, &v, report, NULL, NULL, NULL), 0);
        assert_int_equal(v.n_bad, 1);
        assert_int_equal(n_reports, 1);
        assert_int_equal(store_verify(s, &v, report, NULL, NULL, NULL), 0);
        assert_int_equal(v.n_bad, 0); /* already condemned by the first verify */
        store_close(s);
        io_close(opts.io);
    }
    st_place_close(&place);
}

static struct io_file *file_of(struct io *io, const char *path)
{
    struct io_file *f;
    assert_int_equal(io_file_open(io, path, 0, &f, NULL), 0);
    return f;
}

/* Truncates every file at each block. */
TEST(truncations)
{
    static const char *const paths[] = {"/st/d0/index.db", "/st/d0/seg-000000.hc",
                                        "/st/d1/seg-000000.hc"};
    damage_place(&place);
    for (int i = 0; i < 3; i++) {
        uint64_t size = damage_size(place.io, paths[i]);
        for (uint64_t end = 0; end < size; end += end % 4096 == 0 ? 4095 : 1) {
            struct io *io = damage_copy(&place, end);
            struct io_file *f = file_of(io, paths[i]);
            assert_int_equal(io_file_truncate(f, end, NULL), 0);
            io_file_close(f);
            struct damage_seen seen = damage_look(&place, io);
            if (!seen.opened)
                fail_msg("%s cut at %llu: %s", paths[i], (unsigned long long)end,
                         seen.err.msg);
            assert_int_equal(seen.n_wrong, 0);
            n_cuts++;
            if (i == 0)
                /* the index is rebuilt, and all records are found */
                assert_int_equal(seen.n_records, 2 * DAMAGE_CHUNKS * 6);
            io_close(io);
        }
    }
    st_place_close(&place);
}

/* Swaps two ranges of equal length in one file. */
static struct damage_seen swapped(const struct st_place *p, uint64_t a_at, uint64_t b_at,
                                  size_t n)
{
    uint8_t *a = mem_map(n), *b = mem_map(n);
    struct io *io = damage_copy(p, a_at ^ b_at);
    struct io_file *f = file_of(io, "/st/d0/seg-000000.hc");
    assert_int_equal(io_file_pread(f, a, n, a_at, NULL), 0);
    assert_int_equal(io_file_pread(f, b, n, b_at, NULL), 0);
    assert_int_equal(io_file_pwrite(f, b, n, a_at, NULL), 0);
    assert_int_equal(io_file_pwrite(f, a, n, b_at, NULL), 0);
    io_file_close(f);
    struct damage_seen seen = damage_look(p, io);
    assert_true(seen.opened);
    assert_int_equal(seen.n_wrong, 0);
    n_swaps++;
    io_close(io);
    mem_unmap(a, n);
    mem_unmap(b, n);
    return seen;
}

/* Swaps records within an extent, and any two blocks of the file. */
TEST(swaps)
{
    struct st_place p;
    damage_place(&p);
    assert_true(swapped(&p, 4096, 4096 + 8192, 8192).n_corrupt >= 2);
    uint64_t n_blocks = damage_size(p.io, "/st/d0/seg-000000.hc") / 4096;
    for (uint64_t i = 0; i < n_blocks; i++)
        for (uint64_t j = i + 1; j < n_blocks && j < i + 12; j++)
            swapped(&p, 4096 * i, 4096 * j, 4096);
    st_place_close(&p);
}

/* A device reports success and writes nothing, or writes to another place. */
TEST(lost_and_misdirected_writes)
{
    uint64_t n_hits = 0;
    int n_corrupt = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct err err = {0};
        struct store *s = st_begin(&place, "sim", 2);
        struct io_sim_fault fault = {.kind = seed % 2 == 0 ? IO_SIM_LOST
                                                           : IO_SIM_MISDIRECTED,
                                     .on = IO_SIM_ON_WRITE,
                                     .path = seed % 4 < 2 ? "seg-" : NULL,
                                     .skip = seed % 7,
                                     .count = 1};
        assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
        (void)st_save(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, ST_BOTH, &err);
        store_close(s);
        n_hits += io_sim_fault_hits(place.io);
        io_sim_fault_clear(place.io);
        struct damage_seen seen = damage_look(&place, place.io);
        assert_int_equal(seen.n_wrong, 0);
        n_corrupt += seen.n_corrupt;
        st_place_close(&place);
    }
    print_message("%llu lost or misdirected writes: %d records refused, 0 wrong\n",
                  (unsigned long long)n_hits, n_corrupt);
    assert_true(n_hits >= 90 && n_corrupt > 0);
}

/* A read returns one wrong bit, once. The record is refused. When the chunk is appended again, it
 * is right. */
TEST(read_flips)
{
    struct st_result r;
    damage_place(&place);
    struct store *s = st_open(&place);
    struct io_sim_fault fault = {
        .kind = IO_SIM_READ_FLIP, .on = IO_SIM_ON_READ, .path = "seg-", .count = 1};
    /* A flip in the padding of a record's last block does no harm, so it condemns nothing. */
    int n_corrupt = 0;
    for (int i = 0; i < 10 && n_corrupt == 0; i++) {
        assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
        assert_int_equal(st_read(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, &r, NULL), 0);
        assert_int_equal(r.n_wrong, 0);
        n_corrupt += r.n_corrupt;
        io_sim_fault_clear(place.io);
    }
    assert_int_equal(n_corrupt, 1);
    assert_int_equal(st_save(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, ST_BOTH, NULL), 0);
    assert_int_equal(st_read(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, &r, NULL), 0);
    assert_int_equal(r.n_records, DAMAGE_CHUNKS * 6);
    st_close(s, &place);
}

int main(void)
{
    int n_bad = unit_run(NULL, NULL);
    st_place_key = st_key;
    n_bad += unit_run(NULL, NULL);
    const struct damage_line lines[] = {
        {"bits flipped in metadata", damage_counts.n_meta_bits},
        {"bits flipped in data", n_data_bits},
        {"files cut short", n_cuts},
        {"blocks or records swapped", n_swaps},
        {"wrong bytes served", damage_counts.n_wrong}};
    damage_report(lines, 5);
    return n_bad;
}
