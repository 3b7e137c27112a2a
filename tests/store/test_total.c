/* test_total.c - the cap bounds all files of a store: segments, superblocks, index, log and reserve
 * together stay below it after every commit.  docs/STORE_FORMAT.md has the shares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/home.h"
#include "store/index.h"
#include "store/space.h"

enum { N = 6, N_CONTEXTS = 400, CAP = 4 << 20 };

/* One record per chunk, so that the index's rows are large beside the extents. */
static const struct st_shape tiny = {1, {[STORE_HIDDEN] = 100, [STORE_KV] = 0}, false};

struct files {
    uint64_t all, segments, index, log, reserve;
};

static void add_file(struct files *f, const char *name, const struct io_stat *st)
{
    uint64_t n = st->allocated_bytes > st->size_bytes ? st->allocated_bytes
                                                      : st->size_bytes;
    f->all += n;
    f->segments += strncmp(name, "seg-", 4) == 0 ? n : 0;
    f->index += strcmp(name, "index.db") == 0 ? n : 0;
    f->log += strcmp(name, "index.db-wal") == 0 ? n : 0;
    f->reserve += strcmp(name, HOME_RESERVE_FILE) == 0 ? n : 0;
}

static struct files files_of(const struct st_place *p)
{
    struct files f = {0};
    for (int d = 0; d < p->opts.n_dirs; d++) {
        struct io_names names;
        assert_int_equal(io_list(p->io, p->dirs[d], &names, NULL), 0);
        for (size_t i = 0; i < names.n; i++) {
            struct io_stat st;
            char path[600];
            snprintf(path, sizeof path, "%s/%s", p->dirs[d], names.name[i]);
            assert_int_equal(io_stat(p->io, path, &st, NULL), 0);
            add_file(&f, names.name[i], &st);
        }
        io_names_free(&names);
    }
    return f;
}

static void most_of(struct files *most, const struct files *f)
{
    most->all = f->all > most->all ? f->all : most->all;
    most->segments = f->segments > most->segments ? f->segments : most->segments;
    most->index = f->index > most->index ? f->index : most->index;
    most->log = f->log > most->log ? f->log : most->log;
    most->reserve = f->reserve > most->reserve ? f->reserve : most->reserve;
}

static struct st_ctx ctx_of(int i)
{
    return (struct st_ctx){.base = 100 + (uint64_t)i, .own = 100 + (uint64_t)i};
}

/* Pins some contexts and erases others. These calls add rows to the index without making room for
 * them first. */
static void pin_and_erase(struct store *s, int i, int n)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    struct store_erased gone;
    struct st_ctx pinned = ctx_of(i), erased = ctx_of(i - 3);
    st_keys(&pinned, n, keys);
    /* some contexts may have been evicted, which is no error */
    (void)store_pin_until(s, keys, n, clock_wall_s() + 3600, NULL);
    st_keys(&erased, n, keys);
    assert_int_equal(store_erase(s, keys, n, &gone, NULL), 0);
}

static struct files filled(const struct st_place *p, const struct st_shape *shape, int n,
                           int kinds, struct store_stats *st)
{
    struct err err = {0};
    struct files most = {0};
    struct store *s = st_open(p);
    for (int i = 0; i < N_CONTEXTS; i++) {
        const struct st_ctx c = ctx_of(i);
        if (st_save(s, shape, &c, n, kinds, &err) != 0)
            fail_msg("context %d: %s", i, err.msg);
        if (i % 4 == 3)
            pin_and_erase(s, i, n);
        struct files f = files_of(p);
        if (f.all > p->opts.files_cap_bytes)
            fail_msg("after context %d: %llu in segments, %llu index, %llu log, %llu all",
                     i, (unsigned long long)f.segments, (unsigned long long)f.index,
                     (unsigned long long)f.log, (unsigned long long)f.all);
        most_of(&most, &f);
    }
    store_stats(s, st);
    assert_true(store_audit(s));
    assert_true(st->evictions[STORE_EVICT_CAP] > 0 &&
                st->evictions[STORE_EVICT_SPACE] == 0);
    print_message("at most: segments %llu, index %llu, log %llu, all %llu; %llu extents\n",
                  (unsigned long long)most.segments, (unsigned long long)most.index,
                  (unsigned long long)most.log, (unsigned long long)most.all,
                  (unsigned long long)st->n_extents);
    store_close(s);
    return most;
}

TEST(everything_is_bounded)
{
    for (int n_dirs = 1; n_dirs <= 3; n_dirs += 2) {
        struct st_place p;
        struct store_stats st;
        assert_true(st_place_open(&p, "sim", n_dirs));
        p.opts.files_cap_bytes = CAP;
        struct files most = filled(&p, &st_small, N, ST_BOTH, &st);
        /* the other files take less than a quarter of the cap, ... */
        assert_true(st.cap_bytes > CAP / 4 * 3);
        /* ... and most of the cap is used by extents */
        assert_true(st.used_bytes > CAP / 2);
        assert_true(most.log > 8 * (uint64_t)INDEX_PAGE_BYTES); /* the log was folded */
        st_place_close(&p);
    }
}

/* Extents of 8 KiB: the index reaches its share before the segments reach theirs. */
TEST(small_extents_are_bounded_by_the_index)
{
    struct st_place p;
    struct store_stats st;
    assert_true(st_place_open(&p, "sim", 1));
    p.opts.files_cap_bytes = CAP;
    struct files most = filled(&p, &tiny, 3 * N, ST_H, &st);
    assert_true(most.index <= (64 << 10) + CAP / 128);
    assert_true(most.segments < st.cap_bytes); /* shows that the index was the limit */
    assert_true(st.n_extents > 100);
    st_place_close(&p);
}

/* A store that is opened again knows how full its index is, even if it was not closed. */
TEST(it_holds_after_opening_again)
{
    struct st_place p;
    assert_true(st_place_open(&p, "sim", 1));
    p.opts.files_cap_bytes = CAP;
    for (int i = 0; i < N_CONTEXTS; i++) {
        const struct st_ctx c = ctx_of(i);
        struct store *s = st_open(&p);
        assert_int_equal(st_save(s, &tiny, &c, 3 * N, ST_H, NULL), 0);
        assert_true(files_of(&p).all <= CAP);
        store_close(s);
        assert_true(files_of(&p).all <= CAP);
    }
    st_place_close(&p);
}

TEST(a_cap_that_leaves_nothing_is_refused)
{
    struct st_place p;
    struct store *s;
    struct err err = {0};
    assert_true(st_place_open(&p, "sim", 1));
    p.opts.files_cap_bytes = 192 << 10;
    assert_int_equal(store_open(&p.opts, &s, &err), ERR_USAGE);
    assert_non_null(
        strstr(err.msg, "a cap of 196608 bytes on the store's files is too small"));
    p.opts.files_cap_bytes = 256 << 10;
    s = st_open(&p);
    const struct st_ctx c = ctx_of(1);
    /* saving one chunk leaves some room */
    assert_int_equal(st_save(s, &tiny, &c, 1, ST_H, &err), 0);
    assert_true(files_of(&p).all <= p.opts.files_cap_bytes);
    st_close(s, &p);
}

/* The shares of a bound on all files, as space.h describes them. The numbers were added up by
 * hand. */
TEST(shares_of_a_cap)
{
    static struct space s;
    static const struct {
        uint64_t cap;
        int n_dirs;
        uint32_t log_frames;
        uint64_t index_bytes, left;
    } cases[] = {
        {1 << 20, 1, 8, 73728, 811008},          {1000001, 1, 8, 73728, 765952},
        {4718592, 1, 9, 102400, 4304896},        {16 << 20, 1, 32, 196608, 15704064},
        {1 << 30, 2, 1000, 8454144, 1051586560}, {207847, 1, 8, 69632, 8192},
    };
    struct io *io = (struct io *)&s; /* not used */
    struct err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct store_opts o = {
            .io = io, .n_dirs = cases[i].n_dirs, .files_cap_bytes = cases[i].cap};
        static const int64_t beside[] = {0, -4096, 4096};
        for (int k = 0; k < 3; k++) { /* a bound on extents may be lower */
            memset(&s, 0, sizeof s);
            o.cap_bytes = k == 0 ? 0 : (uint64_t)((int64_t)cases[i].left + beside[k]);
            assert_int_equal(space_bound(&s, &o, &err), 0);
            assert_int_equal(s.files_cap_bytes, cases[i].cap);
            assert_int_equal(s.log_frames, cases[i].log_frames);
            assert_int_equal(s.index_cap_bytes, cases[i].index_bytes);
            assert_int_equal(s.cap_bytes, cases[i].left - (k == 1 ? 4096 : 0));
        }
    }
    struct store_opts o = {.io = io, .n_dirs = 1, .files_cap_bytes = 207846};
    assert_int_equal(space_bound(&s, &o, &err), ERR_USAGE);
    assert_non_null(
        strstr(err.msg, "a cap of 207846 bytes on the store's files is too small"));
    assert_non_null(strstr(err.msg, "may take 199655"));
    for (int i = 0; i < 3; i++) { /* no bound on files */
        memset(&s, 0, sizeof s);
        o = (struct store_opts){.io = i == 0 ? NULL : io,
                                .n_dirs = 1,
                                .read_only = i == 1,
                                .files_cap_bytes = i == 2 ? 0 : 1 << 20,
                                .cap_bytes = 77};
        assert_int_equal(space_bound(&s, &o, &err), 0);
        assert_true(s.cap_bytes == 77 && s.files_cap_bytes == 0 && s.log_frames == 0 &&
                    s.index_cap_bytes == 0);
    }
}

/* Pins and rows in the index's share, at the last number that fits and at the next one. */
TEST(the_share_of_the_index)
{
    static struct space s;
    static struct catalog cat;
    struct err err = {0};
    uint64_t index_bytes = 0;
    memset(&s, 0, sizeof s);
    memset(&cat, 0, sizeof cat);
    assert_int_equal(space_check_pins(&s, &cat, STORE_MAX_PINS, &err), 0);
    assert_int_equal(space_check_pins(&s, &cat, STORE_MAX_PINS + 1, &err), ERR_LIMIT);
    assert_string_equal(err.msg,
                        "there may be at most 1048576 pins; end some of them first");
    assert_true(space_index_has_room(&s, &cat, index_bytes, 1, UINT32_MAX));
    s.index_cap_bytes = ((uint64_t)STORE_MAX_PINS + 1) * 1024;
    assert_int_equal(space_check_pins(&s, &cat, STORE_MAX_PINS, &err), 0);
    s.index_cap_bytes = 73728;
    cat.n_pins = 70;
    assert_int_equal(space_check_pins(&s, &cat, 2, &err), 0);
    assert_int_equal(space_check_pins(&s, &cat, 3, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "at most 72 pins under the store's cap"));
    cat.n_live = 10;
    /* 4 extents of 320 bytes, 5 blocks of 28, 14 extents of 160 and 2 pins of 96 */
    index_bytes = 73728 - 3852;
    assert_true(space_index_has_room(&s, &cat, index_bytes, 4, 8192 + 12288));
    assert_false(space_index_has_room(&s, &cat, index_bytes, 4, 8192 + 12288 + 4096));
    index_bytes++;
    assert_false(space_index_has_room(&s, &cat, index_bytes, 4, 8192 + 12288));
    cat.n_pins = 80; /* more pins than a lower cap allows */
    assert_int_equal(space_check_pins(&s, &cat, 0, &err), ERR_LIMIT);
    index_bytes = 73728 - 3660;
    assert_true(space_index_has_room(&s, &cat, index_bytes, 4, 8192 + 12288));
    index_bytes++;
    assert_false(space_index_has_room(&s, &cat, index_bytes, 4, 8192 + 12288));
}
