/* test_tier.c - copies of chunks in DRAM: what makes them, which reads they serve, and that a copy
 * never outlives its chunk on the disk. test_lives runs the same tier under a seed. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/store_impl.h"
#include "tests/base/strict_store.h"

/* A chunk's records of both kinds take 60 KiB of the arena: 16 chunks stay in 1 MiB. */
enum { N = 4, ARENA = 1 << 20, COPY = 61440, STAY = 16, RECORDS = 6 };
static const struct st_shape plain = {
    .n_layers = 3, .n_bytes = {5000, 9001}, .is_plain = true};

/* The arena of the one open store. */
static uint8_t *arena;

static void *arena_get(void *arg, size_t bytes)
{
    (void)arg;
    return arena = mem_map(bytes);
}

/* Number of blocks that were not zero when the arena was freed. */
static int n_left;

static void arena_put(void *arg, void *p, size_t bytes)
{
    (void)arg;
    n_left = 0;
    for (size_t at = 0; at < bytes; at += STORE_ALIGN)
        n_left += *((const uint8_t *)p + at) != 0;
    mem_unmap(p, bytes);
}

static struct store *open_with(struct st_place *p, uint64_t dram_bytes)
{
    p->opts.dram_bytes = dram_bytes;
    p->opts.memory = (struct store_memory){arena_get, arena_put, NULL};
    return st_open(p);
}

/* The disk of the test that runs. */
static struct st_place place;

static struct store *begin(void)
{
    assert_true(st_place_open(&place, "sim", 1));
    return open_with(&place, ARENA);
}

static void end(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    tier_settle(s->tier);
    pthread_mutex_unlock(&s->lock);
    assert_true(store_audit(s));
    store_close(s);
    st_place_close(&place);
}

/* Returns the tier's counts when the tier's thread has done all its work. */
static struct store_dram settled(struct store *s)
{
    struct store_stats st;
    pthread_mutex_lock(&s->lock);
    tier_settle(s->tier);
    pthread_mutex_unlock(&s->lock);
    assert_true(store_audit(s));
    store_stats(s, &st);
    return st.dram;
}

static void save(struct store *s, const struct st_ctx *c, int n)
{
    struct err err = {0};
    for (int i = 0; i < n; i++) {
        if (st_append(s, &plain, c, i, ST_BOTH, &err) != 0)
            fail_msg("%s", err.msg);
        (void)settled(s); /* waits until the tier has room for the next chunk */
    }
    assert_int_equal(store_commit(s, &err), 0);
}

/* Reads n chunks of a context, and checks every byte. Returns how many records came from DRAM. */
static int read_dram(struct store *s, const struct st_ctx *c, int n)
{
    struct st_result r;
    assert_int_equal(st_read_dram(s, &plain, c, n, &r, NULL), 0);
    assert_int_equal(r.n_found, n);
    assert_int_equal(r.n_records, n * RECORDS);
    return r.n_dram;
}

static bool is_copied(struct store *s, const struct sha256 *key)
{
    pthread_mutex_lock(&s->lock);
    const struct chunk_node *n = catalog_find(&s->catalog, key);
    bool copied = n != NULL && n->copied != NULL;
    pthread_mutex_unlock(&s->lock);
    return copied;
}

/* Returns how many chunks of a context have copies. Checks that these are the first chunks. */
static int n_copied(struct store *s, const struct st_ctx *c, int n)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    int n_first = 0;
    st_keys(c, n, keys);
    while (n_first < n && is_copied(s, &keys[n_first]))
        n_first++;
    for (int i = n_first; i < n; i++)
        assert_false(is_copied(s, &keys[i]));
    return n_first;
}

/* Returns whether the arena contains the beginning of a record of this chunk. */
static bool arena_has(const struct sha256 *key)
{
    uint8_t want[64];
    st_fill(key, 0, STORE_KV, want, sizeof want);
    for (size_t at = 0; at + sizeof want <= ARENA; at += STORE_ALIGN)
        if (memcmp(arena + at, want, sizeof want) == 0)
            return true;
    return false;
}

static bool arena_is_zero(void)
{
    for (size_t at = 0; at < ARENA; at++)
        if (arena[at] != 0)
            return false;
    return true;
}

/* --- where copies come from ------------------------------------------------------------------- */

TEST(written_chunks_are_read_from_dram)
{
    struct store_stats st;
    struct st_ctx c = {.base = 1, .own = 1};
    struct st_result r;
    struct store *s = begin();
    for (int i = 0; i < N; i++)
        assert_int_equal(st_append(s, &plain, &c, i, ST_BOTH, NULL), 0);
    assert_int_equal(st_read_dram(s, &plain, &c, N, &r, NULL), 0);
    assert_int_equal(r.n_found, 0); /* chunks are visible only after the commit */
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(read_dram(s, &c, N), N * RECORDS);
    store_stats(s, &st);
    assert_int_equal(st.read_bytes, 0); /* the disk was not read */
    assert_int_equal(st.dram.n_reads, N * RECORDS);
    assert_int_equal(st.dram.n_written, N);
    assert_int_equal(st.dram.used_bytes, N * COPY);
    /* Readers of other kinds read the disk, because they measure or check it. */
    assert_int_equal(st_read(s, &plain, &c, N, &r, NULL), 0);
    assert_int_equal(r.n_records, N * RECORDS);
    assert_int_equal(r.n_dram, 0);
    end(s);
}

/* A copy has its records as they lie in the extent, also where they share blocks. */
TEST(packed_records_are_read_from_dram)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct st_result r;
    struct store *s = begin();
    assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_read_dram(s, &st_small, &c, N, &r, NULL), 0);
    assert_int_equal(r.n_records, N * RECORDS);
    assert_int_equal(r.n_dram, N * RECORDS);
    assert_in_range(st_stats(s).dram.used_bytes, N * 3 * (5000 + 9001), N * COPY - 1);
    end(s);
}

TEST(records_that_are_added_have_copies_of_their_own)
{
    struct st_ctx c = {.base = 1, .own = 1};
    assert_true(st_place_open(&place, "sim", 3));
    struct store *s = open_with(&place, ARENA);
    assert_int_equal(st_save(s, &plain, &c, N, ST_H, NULL), 0);
    assert_int_equal(st_save(s, &plain, &c, N, ST_KV, NULL), 0);
    assert_int_equal(read_dram(s, &c, N), N * RECORDS);
    struct store_dram d = settled(s);
    assert_int_equal(d.n_chunks, N);
    /* one per record, although the store has three devices and used two appends */
    assert_int_equal(d.n_written, N * RECORDS);
    end(s);
}

TEST(a_restart_begins_without_copies)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct store *s = begin();
    save(s, &c, N);
    store_close(s);
    s = open_with(&place, ARENA);
    assert_int_equal(read_dram(s, &c, N), 0);
    assert_true(arena_is_zero());
    end(s);
}

/* Closing with a full arena returns at once: the arena is freed and neither zeroed nor written
 * anywhere. */
TEST(closing_does_not_touch_the_arena)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct store *s = begin();
    save(s, &c, STAY);
    uint64_t n_ops = io_sim_count(place.io, IO_SIM_AT_OP);
    store_close(s);
    assert_true(n_left > STAY * RECORDS);
    /* only the closing of the index does I/O */
    assert_true(io_sim_count(place.io, IO_SIM_AT_OP) - n_ops < STAY);
    st_place_close(&place);
}

TEST(a_write_that_fails_leaves_no_copy)
{
    struct err err = {0};
    struct st_ctx c = {.base = 1, .own = 1};
    struct store *s = begin();
    struct io_sim_fault fault = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE, .count = 1};
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    assert_int_not_equal(st_append(s, &plain, &c, 0, ST_BOTH, &err), 0);
    assert_int_equal(settled(s).used_bytes, 0);
    assert_true(arena_is_zero());
    io_sim_fault_clear(place.io);
    save(s, &c, N);
    /* A chunk that cannot be committed any more is removed from DRAM, too. */
    struct st_ctx other = {.base = 2, .own = 2};
    assert_int_equal(st_append(s, &plain, &other, 0, ST_BOTH, &err), 0);
    fault = (struct io_sim_fault){.kind = IO_SIM_FAIL, .on = IO_SIM_ON_SYNC, .count = 1};
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    assert_int_not_equal(store_commit(s, &err), 0);
    io_sim_fault_clear(place.io);
    assert_int_equal(settled(s).used_bytes, N * COPY);
    assert_int_equal(read_dram(s, &c, N), N * RECORDS);
    end(s);
}

/* --- a full arena ----------------------------------------------------------------------------- */

TEST(a_full_arena_keeps_a_sixteenth_free)
{
    struct st_ctx c[3];
    struct store *s = begin();
    for (int i = 0; i < 3; i++) {
        c[i] = (struct st_ctx){.base = (uint64_t)i + 1, .own = 1};
        save(s, &c[i], 7);
    }
    struct store_dram d = settled(s);
    assert_true(d.used_bytes <= ARENA - ARENA / 16);
    assert_int_equal(d.n_chunks, STAY);
    assert_int_equal(d.n_demoted, 21 - STAY);
    assert_int_equal(d.n_full, 0); /* no chunk had to wait for room */
    /* The two contexts used last keep all copies. The first context has lost the copies of its last
     * chunks. */
    assert_int_equal(n_copied(s, &c[0], 7), 2);
    assert_int_equal(n_copied(s, &c[1], 7), 7);
    assert_int_equal(n_copied(s, &c[2], 7), 7);
    for (int i = 0; i < 3; i++) /* the disk has the records whose copies were dropped */
        assert_int_equal(read_dram(s, &c[i], 7), i == 0 ? 2 * RECORDS : 7 * RECORDS);
    end(s);
}

/* The first context was used last, so the second loses the copies of its last chunks. */
TEST(copies_that_were_used_last_stay)
{
    struct st_ctx c[3];
    struct store *s = begin();
    for (int i = 0; i < 3; i++) {
        c[i] = (struct st_ctx){.base = (uint64_t)i + 1, .own = 1};
        if (i == 2)
            (void)read_dram(s, &c[0], 7);
        save(s, &c[i], 7);
    }
    assert_int_equal(n_copied(s, &c[0], 7), 7);
    assert_int_equal(n_copied(s, &c[1], 7), 2);
    end(s);
}

/* Waiting requests need the oldest context. Policies that look ahead keep its copies. */
TEST(copies_for_waiting_requests_stay)
{
    struct st_ctx c[3];
    struct sha256 keys[7];
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.policy = PLACEMENT_ATTENTIONSTORE;
    struct store *s = open_with(&place, ARENA);
    for (int i = 0; i < 3; i++)
        c[i] = (struct st_ctx){.base = (uint64_t)i + 1, .own = 1};
    save(s, &c[0], 7);
    st_keys(&c[0], 7, keys);
    assert_int_equal(store_expect_use(s, keys, 7, 1), 7);
    save(s, &c[1], 7);
    save(s, &c[2], 7);
    assert_int_equal(n_copied(s, &c[0], 7), 7);
    assert_int_equal(n_copied(s, &c[1], 7), 2);
    /* No request waits for the first context any more, and the other contexts were used later. */
    store_expect_use_no_more(s, keys, 7, 1);
    save(s, &(struct st_ctx){.base = 9, .own = 9}, 2);
    assert_int_equal(n_copied(s, &c[0], 7), 5);
    end(s);
}

/* A hint says when the oldest context is used next. The policy `ours` keeps its copies. */
TEST(copies_with_a_hint_stay)
{
    static const struct store_use hint = {.reuse_in_s = 3600};
    for (int hinted = 0; hinted < 2; hinted++) {
        struct st_ctx c[3];
        struct sha256 keys[7];
        struct store_hit hits[7];
        assert_true(st_place_open(&place, "sim", 1));
        place.opts.policy = PLACEMENT_OURS;
        struct store *s = open_with(&place, ARENA);
        for (int i = 0; i < 3; i++)
            c[i] = (struct st_ctx){.base = (uint64_t)i + 1, .own = 1};
        save(s, &c[0], 7);
        st_keys(&c[0], 7, keys);
        int n_hits = store_lookup(s, hinted ? &hint : NULL, keys, 7, hits, NULL, 0);
        store_release(s, hits, n_hits);
        save(s, &c[1], 7);
        save(s, &c[2], 7);
        assert_int_equal(n_copied(s, &c[0], 7), hinted ? 7 : 2);
        assert_int_equal(n_copied(s, &c[1], 7), hinted ? 2 : 7);
        end(s);
    }
}

/* Tells the store whether the caller holds the chunks of a context in its own memory. */
static void hold(struct store *s, const struct st_ctx *c, int n, bool is_held)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    struct store_held changes[ST_MAX_CHUNKS];
    st_keys(c, n, keys);
    for (int i = 0; i < n; i++)
        changes[i] = (struct store_held){store_chunk_name(&keys[i]), is_held};
    while (!store_tell_held(s, changes, n)) /* fails while another thread has the lock */
        sched_yield();
}

/* Copies of chunks that the caller holds itself are evicted first, even if they were used last. It
 * does not matter whether the copies were made before or after the chunks were held. */
TEST(what_the_caller_holds_goes_first)
{
    for (int before = 0; before < 2; before++) {
        struct st_ctx c[3];
        struct store *s = begin();
        for (int i = 0; i < 3; i++)
            c[i] = (struct st_ctx){.base = (uint64_t)i + 1, .own = 1};
        save(s, &c[0], 7);
        if (before)
            hold(s, &c[1], 7, true);
        save(s, &c[1], 7);
        if (!before)
            hold(s, &c[1], 7, true);
        /* the copies stay while there is room */
        assert_int_equal(n_copied(s, &c[1], 7), 7);
        save(s, &c[2], 7);
        assert_int_equal(n_copied(s, &c[0], 7), 7);
        assert_int_equal(n_copied(s, &c[1], 7), 2);
        assert_int_equal(n_copied(s, &c[2], 7), 7);
        /* The caller no longer holds the second context, so its copies count like others: the first
         * context was used least recently. */
        hold(s, &c[1], 7, false);
        save(s, &(struct st_ctx){.base = 9, .own = 9}, 2);
        assert_int_equal(n_copied(s, &c[0], 7), 5);
        assert_int_equal(n_copied(s, &c[1], 7), 2);
        end(s);
    }
}

/* Two of the caller's blocks have the same state. After one of them is released, the chunk still
 * counts as held. */
TEST(a_chunk_that_is_held_twice_is_let_go_twice)
{
    struct st_ctx c = {.base = 1, .own = 1}, other = {.base = 2, .own = 2};
    struct store *s = begin();
    save(s, &c, 7);
    save(s, &other, 7);
    hold(s, &other, 7, true);
    hold(s, &other, 7, true);
    hold(s, &other, 7, false);
    save(s, &(struct st_ctx){.base = 3, .own = 3}, 5);
    assert_int_equal(n_copied(s, &c, 7), 7);
    assert_int_equal(n_copied(s, &other, 7), 4);
    end(s);
}

/* A chunk that its owner dropped is evicted first, in DRAM as in the store. A use ends that. */
TEST(a_chunk_that_is_used_again_is_not_dropped_any_more)
{
    struct st_ctx c = {.base = 1, .own = 1}, other = {.base = 2, .own = 2};
    struct sha256 keys[7];
    struct store *s = begin();
    save(s, &other, 7);
    save(s, &c, 7);
    st_keys(&c, 7, keys);
    store_drop(s, keys, 7);
    (void)read_dram(s, &c, 7);
    save(s, &(struct st_ctx){.base = 3, .own = 3}, 5);
    assert_int_equal(n_copied(s, &c, 7), 7);
    assert_int_equal(n_copied(s, &other, 7), 4);
    end(s);
}

TEST(a_chunk_that_is_read_is_not_dropped)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct sha256 key;
    struct store_hit hit;
    struct store_reader *r;
    struct store *s = begin();
    save(s, &c, 1);
    st_keys(&c, 1, &key);
    int n_done;
    assert_int_equal(store_lookup(s, NULL, &key, 1, &hit, NULL, 0), 1);
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, NULL), 0);
    store_reader_use_dram(r);
    struct store_read read = {.hit = &hit, .layer = 0, .kind = STORE_KV}, *one = &read,
                      *done;
    store_reader_submit(r, &one, 1);
    assert_int_equal(store_reader_wait(r, &done, 1, &n_done, NULL), 0);
    assert_int_equal(n_done, 1);
    for (uint64_t i = 0; i < 3; i++) /* saves three times what the arena holds */
        save(s, &(struct st_ctx){.base = 10 + i, .own = 1}, STAY);
    assert_true(is_copied(s, &key));
    assert_int_equal(store_read_check(&read, NULL), 0);
    store_read_release(&read);
    save(s, &(struct st_ctx){.base = 20, .own = 1}, STAY);
    assert_false(is_copied(s, &key));
    store_reader_close(r);
    store_release(s, &hit, 1);
    end(s);
}

/* Half of the arena is free, but in small holes. The tier's thread joins them into one hole that is
 * large enough. */
TEST(free_room_in_small_holes_is_joined)
{
    struct sha256 key;
    struct store_erased out;
    struct store *s = begin();
    for (uint64_t i = 0; i < 40; i++) { /* a copy takes 24 KiB */
        struct st_ctx c = {.base = i + 1, .own = 1};
        assert_int_equal(st_save(s, &plain, &c, 1, ST_H, NULL), 0);
        (void)settled(s);
    }
    for (uint64_t i = 0; i < 40; i += 2) {
        struct st_ctx c = {.base = i + 1, .own = 1};
        st_keys(&c, 1, &key);
        assert_int_equal(store_erase(s, &key, 1, &out, NULL), 0);
    }
    struct st_ctx first = {.base = 100, .own = 1}, second = {.base = 101, .own = 1};
    assert_true(settled(s).used_bytes < ARENA / 2);
    save(s, &first, 1); /* teaches the tier the size of a copy */
    save(s, &second, 1);
    save(s, &(struct st_ctx){.base = 102, .own = 1}, 1);
    assert_int_equal(n_copied(s, &second, 1), 1);
    assert_true(settled(s).n_demoted > 0);
    end(s);
}

TEST(a_chunk_that_is_too_large_has_no_copy)
{
    struct err err = {0};
    const struct st_shape large = {.n_layers = 3, .n_bytes = {5000, 20000}};
    struct st_ctx c = {.base = 1, .own = 1};
    struct st_result r;
    struct store *s = begin();
    assert_int_equal(st_save(s, &large, &c, N, ST_BOTH, &err), 0);
    assert_int_equal(st_read_dram(s, &large, &c, N, &r, &err), 0);
    assert_int_equal(r.n_records, N * RECORDS);
    assert_int_equal(r.n_dram, 0);
    assert_int_equal(settled(s).n_full, N);
    end(s);
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.dram_bytes = STORE_MIN_DRAM - 1;
    assert_int_equal(store_open(&place.opts, &s, &err), ERR_USAGE);
    st_place_close(&place);
}

/* --- reading ahead ---------------------------------------------------------------------------- */

enum { LONG = 7 };

/* Opens a store with contexts on its disk and no copies in DRAM. */
static struct store *begin_cold(struct st_ctx *c, int n)
{
    struct store *s = st_begin(&place, "sim", 1);
    for (int i = 0; i < n; i++) {
        c[i] = (struct st_ctx){.base = (uint64_t)i + 1, .own = 1};
        assert_int_equal(st_save(s, &plain, &c[i], LONG, ST_BOTH, NULL), 0);
    }
    store_close(s);
    return open_with(&place, ARENA);
}

static struct store_fetcher *fetcher(struct store *s)
{
    struct store_fetcher *f;
    assert_int_equal(store_fetcher_open(s, &f, NULL), 0);
    assert_non_null(f);
    return f;
}

static void want(struct store *s, const struct st_ctx *c, int n, uint64_t turn)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    st_keys(c, n, keys);
    (void)store_expect_use(s, keys, n, turn);
    store_fetch_want(s, c, keys, n, turn);
}

static void want_end(struct store *s, const struct st_ctx *c, int n, uint64_t turn)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    st_keys(c, n, keys);
    store_expect_use_no_more(s, keys, n, turn);
    store_fetch_want_end(s, c);
}

/* Fetches until nothing is left to fetch, and lets the tier's thread finish its work. */
static void fetch_all(struct store *s, struct store_fetcher *f)
{
    for (int n_idle = 0; n_idle < 2;) {
        enum store_fetch did = store_fetch_step(f);
        if (did == STORE_FETCH_IN_FLIGHT)
            store_fetch_wait(f, 1000000);
        bool is_idle = did == STORE_FETCH_NONE || did == STORE_FETCH_NO_ROOM;
        (void)(is_idle ? settled(s) : (struct store_dram){0});
        n_idle = is_idle ? n_idle + 1 : 0;
    }
}

TEST(what_waits_is_fetched)
{
    struct st_ctx c[2];
    struct store *s = begin_cold(c, 2);
    struct store_fetcher *f = fetcher(s);
    assert_int_equal(store_fetch_step(f), STORE_FETCH_NONE);
    want(s, &c[1], LONG, 5);
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[1], LONG), LONG);
    assert_int_equal(n_copied(s, &c[0], LONG), 0);
    struct store_dram d = settled(s);
    assert_int_equal(d.n_promoted, LONG);
    assert_int_equal(d.promoted_bytes, LONG * COPY);
    assert_int_equal(st_stats(s).read_bytes, LONG * COPY); /* read from the disk */
    assert_int_equal(read_dram(s, &c[1], LONG), LONG * RECORDS);
    assert_int_equal(st_stats(s).read_bytes, LONG * COPY);
    want_end(s, &c[1], LONG, 5);
    assert_int_equal(settled(s).n_unused, 0);
    store_fetcher_close(f);
    end(s);
}

static double price(struct store *s, const struct st_ctx *c, int n)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    st_keys(c, n, keys);
    return store_fetch_price_s(s, keys, n);
}

/* Providing memory takes time, which a fetch must pay for. Memory that is provided ahead costs
 * nothing, nor do existing copies, nor memory from the caller's own functions. */
TEST(memory_that_is_not_provided_has_a_price)
{
    enum { PART = 4 }; /* a fetch needs at least so many chunks */
    struct st_ctx c[2];
    struct store *s = begin_cold(c, 2);
    assert_true(price(s, &c[0], LONG) == 0);
    store_close(s);

    place.opts.memory = (struct store_memory){NULL, NULL, NULL};
    place.opts.dram_bytes = 8 << 20;
    place.opts.dram_ahead_bytes = LONG * COPY; /* room for one context */
    s = st_open(&place);
    want(s, &c[1], LONG, 5);
    /* waits until pages are provided and the time of that is measured */
    while (price(s, &c[0], LONG) == 0)
        sched_yield();
    want_end(s, &c[1], LONG, 5);
    assert_true(price(s, &c[0], LONG) == 0);
    want(s, &c[1], PART, 5);
    double part = price(s, &c[0], LONG);
    assert_true(part > 0);
    want(s, &c[1], LONG, 5);
    double whole = price(s, &c[0], LONG);
    assert_true(fabs(whole / part - (double)LONG / PART) < 0.01);

    struct store_fetcher *f = fetcher(s);
    want_end(s, &c[1], LONG, 5);
    want(s, &c[0], LONG, 6);
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[0], LONG), LONG);
    assert_true(price(s, &c[0], LONG) == 0);
    store_fetcher_close(f);
    end(s);
}

/* 192 tokens are too few for a fetch, as a whole context and as a part of a longer one. */
TEST(little_is_not_fetched)
{
    struct st_ctx c[1];
    struct sha256 keys[LONG];
    struct store *s = begin_cold(c, 1);
    struct store_fetcher *f = fetcher(s);
    want(s, &c[0], 3, 1);
    fetch_all(s, f);
    assert_int_equal(settled(s).n_promoted, 0);
    want_end(s, &c[0], 3, 1);
    want(s, &c[0], 4, 1);
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[0], LONG), 4);
    want_end(s, &c[0], 4, 1);
    want(s, &c[0], LONG, 1);
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[0], LONG), 4);
    /* A fetch does not wait for a chunk that is not stored: the context ends there. */
    st_keys(&(struct st_ctx){.base = 77, .own = 1}, LONG, keys);
    store_fetch_want(s, keys, keys, LONG, 0);
    assert_int_equal(store_fetch_step(f), STORE_FETCH_NONE);
    store_fetcher_close(f);
    end(s);
}

/* A chunk that the caller holds in its own memory is not fetched. The chunks after it are. */
TEST(what_the_caller_holds_is_not_fetched)
{
    struct st_ctx c[1];
    struct sha256 keys[LONG];
    struct store *s = begin_cold(c, 1);
    struct store_fetcher *f = fetcher(s);
    hold(s, &c[0], 3, true);
    want(s, &c[0], LONG, 1);
    fetch_all(s, f);
    st_keys(&c[0], LONG, keys);
    for (int i = 0; i < LONG; i++)
        assert_int_equal(is_copied(s, &keys[i]), i >= 3);
    want_end(s, &c[0], LONG, 1);
    hold(s, &c[0], 3, false);
    want(s, &c[0], LONG, 1); /* three chunks are too few for a fetch */
    fetch_all(s, f);
    assert_int_equal(settled(s).n_promoted, LONG - 3);
    store_fetcher_close(f);
    end(s);
}

/* Three contexts of seven chunks wait, and the arena has room for sixteen. The last context in the
 * queue gets the remaining room. It takes none from the others, in whatever order they are
 * announced. */
TEST(earlier_turns_come_first)
{
    struct st_ctx c[3];
    struct store *s = begin_cold(c, 3);
    struct store_fetcher *f = fetcher(s);
    want(s, &c[2], LONG, 30);
    /* the fetch begins while only the last context is announced */
    assert_int_equal(store_fetch_step(f), STORE_FETCH_WORKED);
    want(s, &c[0], LONG, 10);
    want(s, &c[1], LONG, 20);
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[0], LONG), LONG);
    assert_int_equal(n_copied(s, &c[1], LONG), LONG);
    assert_int_equal(n_copied(s, &c[2], LONG), STAY - 2 * LONG);
    assert_int_equal(settled(s).n_full, 0);
    /* One request is cancelled, and a new one comes that is served first. The request that is
     * served last gives up its copies. */
    want_end(s, &c[1], LONG, 20);
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[2], LONG), LONG);
    assert_int_equal(n_copied(s, &c[0], LONG), LONG);
    assert_int_equal(n_copied(s, &c[1], LONG), STAY - 2 * LONG);
    want(s, &c[1], LONG, 5);
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[1], LONG), LONG);
    assert_int_equal(n_copied(s, &c[0], LONG), LONG);
    assert_int_equal(n_copied(s, &c[2], LONG), STAY - 2 * LONG);
    assert_true(settled(s).n_unused > 0);
    store_fetcher_close(f);
    end(s);
}

/* The policy does not know that a waiting request needs these copies, so it may drop one. A dropped
 * copy is not fetched again for the same request; otherwise fetching and dropping would alternate
 * for ever. */
TEST(a_chunk_is_fetched_once_for_a_request)
{
    struct st_ctx c[3];
    struct sha256 keys[LONG];
    struct store *s = begin_cold(c, 3);
    struct store_fetcher *f = fetcher(s);
    for (int i = 0; i < 3; i++) { /* the policy's window has no room for these requests */
        st_keys(&c[i], LONG, keys);
        store_fetch_want(s, &c[i], keys, LONG, (uint64_t)i);
    }
    fetch_all(s, f);
    struct store_dram d = settled(s);
    assert_int_equal(d.n_promoted, 3 * LONG);
    assert_int_equal(d.n_demoted, 3 * LONG - STAY);
    store_fetcher_close(f);
    end(s);
}

static void settle(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    tier_settle(s->tier);
    pthread_mutex_unlock(&s->lock);
}

/* The copy of a chunk that is being written cannot be evicted. So the last request in the queue
 * loses a copy instead. No request needs the written chunk, so afterwards the lost copy is fetched
 * again and takes the place of the written chunk's copy. */
TEST(a_copy_that_a_write_pushed_out_is_fetched_again)
{
    enum { REST = STAY - 2 * LONG };
    struct st_ctx c[3], new = {.base = 50, .own = 1};
    struct store *s = begin_cold(c, 3);
    struct store_fetcher *f = fetcher(s);
    for (int i = 0; i < 3; i++)
        want(s, &c[i], LONG, 10 * (uint64_t)(i + 1));
    fetch_all(s, f);
    assert_int_equal(n_copied(s, &c[2], LONG), REST);
    st_while_written = settle;
    save(s, &new, 1);
    assert_int_equal(n_copied(s, &c[2], LONG), REST - 1);
    assert_int_equal(n_copied(s, &new, 1), 1);
    fetch_all(s, f);
    for (int i = 0; i < 3; i++)
        assert_int_equal(n_copied(s, &c[i], LONG), i < 2 ? LONG : REST);
    assert_int_equal(n_copied(s, &new, 1), 0);
    store_fetcher_close(f);
    end(s);
}

/* Flips bytes of a context's chunk on the medium. */
static void flip_on_disk(struct st_place *p, struct store *s, const struct sha256 *key)
{
    char path[400];
    pthread_mutex_lock(&s->lock);
    const struct extent *x = catalog_find(&s->catalog, key)->extents;
    uint64_t offset = x->offset + CHUNK_HEADER_BYTES + 10;
    snprintf(path, sizeof path, "%s/seg-%06u.hc", p->dirs[0], x->segment);
    pthread_mutex_unlock(&s->lock);
    assert_int_equal(io_sim_flip(p->io, path, offset, 3), 0);
}

/* A chunk with wrong bytes is condemned once: no fetch tries it again. */
TEST(a_damaged_chunk_is_condemned_once)
{
    struct st_ctx c[1];
    struct sha256 keys[LONG];
    struct store_stats st;
    struct store *s = begin_cold(c, 1);
    struct store_fetcher *f = fetcher(s);
    st_keys(&c[0], LONG, keys);
    flip_on_disk(&place, s, &keys[5]);
    for (int i = 0; i < 3; i++) {
        want(s, &c[0], LONG, 1);
        fetch_all(s, f);
        want_end(s, &c[0], LONG, 1);
    }
    store_stats(s, &st);
    assert_int_equal(st.n_corrupt, 1);
    assert_int_equal(st.n_checksum_failures, 1);
    assert_int_equal(st.dram.n_promoted, 5);
    assert_true(store_was_damaged(s, &keys[5]));
    assert_int_equal(n_copied(s, &c[0], LONG), 5);
    assert_false(arena_has(&keys[5]));
    store_fetcher_close(f);
    end(s);
}

/* The disk hangs or fails. No chunk is condemned, the chunks stay on the disk, and nothing more is
 * fetched for this request. */
TEST(a_disk_that_hangs_ends_the_fetch)
{
    const enum io_sim_fault_kind kinds[] = {IO_SIM_STUCK, IO_SIM_FAIL};
    for (int i = 0; i < 2; i++) {
        struct st_ctx c[1];
        struct store_stats st;
        struct store *s = begin_cold(c, 1);
        s->home.stuck_ns = 1000000;
        struct store_fetcher *f = fetcher(s);
        struct io_sim_fault fault = {
            .kind = kinds[i], .on = IO_SIM_ON_READ, .path = "seg", .skip = 2, .count = 1};
        assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
        want(s, &c[0], LONG, 1);
        fetch_all(s, f);
        store_stats(s, &st);
        assert_int_equal(st.n_corrupt, 0);
        assert_int_equal(st.n_read_failures, 1);
        assert_int_equal(n_copied(s, &c[0], LONG), 2);
        io_sim_fault_clear(place.io);
        assert_int_equal(store_fetch_step(f), STORE_FETCH_NONE);
        assert_int_equal(read_dram(s, &c[0], LONG), 2 * RECORDS);
        want_end(s, &c[0], LONG, 1);
        want(s, &c[0], LONG, 1); /* the next request fetches again */
        fetch_all(s, f);
        assert_int_equal(n_copied(s, &c[0], LONG), LONG);
        store_fetcher_close(f);
        end(s);
    }
}

/* A chunk is erased or condemned while it is being fetched, or its fetcher is closed. No copy of
 * the chunk stays. */
TEST(what_goes_while_it_is_fetched_leaves_nothing)
{
    for (int how = 0; how < 3; how++) {
        struct st_ctx c[1];
        struct sha256 keys[LONG];
        struct store_erased out;
        struct store_hit hit;
        struct store *s = begin_cold(c, 1);
        struct store_fetcher *f = fetcher(s);
        st_keys(&c[0], LONG, keys);
        want(s, &c[0], LONG, 1);
        /* chunk 0 is being fetched */
        assert_int_equal(store_fetch_step(f), STORE_FETCH_WORKED);
        if (how == 0) {
            assert_int_equal(store_erase(s, keys, LONG, &out, NULL), 0);
            assert_int_equal(out.n_busy, 1);
        } else if (how == 1) {
            assert_true(store_pin(s, &keys[0], &hit));
            store_condemn(s, &hit, "for the test");
            store_release(s, &hit, 1);
        } else { /* the fetcher is closed in the middle of the fetch */
            store_fetcher_close(f);
            f = NULL;
            want_end(s, &c[0], LONG, 1);
        }
        if (f != NULL)
            fetch_all(s, f);
        assert_int_equal(settled(s).n_promoted, 0);
        assert_int_equal(settled(s).used_bytes, 0);
        assert_true(arena_is_zero());
        store_fetcher_close(f);
        end(s);
    }
}

TEST(two_fetchers_share_the_work)
{
    struct st_ctx c[1];
    struct store *s = begin_cold(c, 1);
    struct store_fetcher *f = fetcher(s), *g = fetcher(s);
    want(s, &c[0], LONG, 1);
    for (int i = 0; i < 20; i++) {
        (void)store_fetch_step(f);
        (void)store_fetch_step(g);
    }
    fetch_all(s, f);
    fetch_all(s, g);
    assert_int_equal(settled(s).n_promoted, LONG); /* each chunk is fetched once */
    assert_int_equal(n_copied(s, &c[0], LONG), LONG);
    store_fetcher_close(f);
    store_fetcher_close(g);
    end(s);
}

/* --- copies end with their chunks ------------------------------------------------------------- */

TEST(erasing_reaches_the_copy)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct sha256 keys[STAY];
    struct store_erased out;
    struct store *s = begin();
    save(s, &c, STAY);
    st_keys(&c, STAY, keys);
    assert_true(arena_has(&keys[0]) && arena_has(&keys[STAY - 1]));
    assert_int_equal(store_erase(s, keys, STAY, &out, NULL), 0);
    assert_int_equal(out.n_chunks, STAY);
    assert_true(arena_is_zero()); /* when the call returns, not some time later */
    assert_int_equal(settled(s).used_bytes, 0);
    end(s);
}

/* A chunk is erased while a reader holds its copy. The copy's bytes stay until the reader has
 * released them. */
TEST(erasing_waits_for_readers)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct sha256 key;
    struct store_hit hit;
    struct store_erased out;
    struct store_reader *r;
    struct store *s = begin();
    save(s, &c, 1);
    st_keys(&c, 1, &key);
    int n_done;
    assert_int_equal(store_lookup(s, NULL, &key, 1, &hit, NULL, 0), 1);
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, NULL), 0);
    store_reader_use_dram(r);
    struct store_read read = {.hit = &hit, .layer = 1, .kind = STORE_KV}, *one = &read,
                      *done;
    store_reader_submit(r, &one, 1);
    assert_int_equal(store_reader_wait(r, &done, 1, &n_done, NULL), 0);
    assert_int_equal(store_erase(s, &key, 1, &out, NULL), 0);
    assert_int_equal(out.n_busy, 1);
    assert_false(is_copied(s, &key));
    assert_int_equal(settled(s).used_bytes, COPY);
    assert_int_equal(store_read_check(&read, NULL), 0);
    store_read_release(&read);
    assert_int_equal(settled(s).used_bytes, 0);
    assert_true(arena_is_zero());
    store_reader_close(r);
    store_release(s, &hit, 1);
    end(s);
}

TEST(condemning_reaches_the_copy)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct sha256 keys[N];
    struct store_hit hit;
    struct store *s = begin();
    save(s, &c, N);
    st_keys(&c, N, keys);
    assert_true(store_pin(s, &keys[N - 1], &hit));
    store_condemn(s, &hit, "for the test");
    /* the copy is gone although a sequence still holds the chunk */
    assert_int_equal(settled(s).used_bytes, (N - 1) * COPY);
    store_release(s, &hit, 1);
    assert_int_equal(settled(s).used_bytes, (N - 1) * COPY);
    assert_false(arena_has(&keys[N - 1]));
    end(s);
}

TEST(quota_cap_and_idle_eviction_reach_the_copy)
{
    struct st_ctx a = {.base = 1, .own = 1}, b = {.base = 2, .own = 2};
    struct sha256 keys[N];
    uint64_t n_chunks;
    struct store *s = begin();
    save(s, &a, N);
    st_keys(&a, N, keys);
    store_set_quota(s, store_owner(NULL), N * (COPY + CHUNK_HEADER_BYTES));
    save(s, &b, 2);
    assert_int_equal(settled(s).n_chunks, N);
    assert_int_equal(n_copied(s, &a, N), N - 2);
    assert_false(arena_has(&keys[N - 1]));
    assert_int_equal(store_evict_idle(s, clock_wall_s() + 10, &n_chunks, NULL), 0);
    assert_int_equal(n_chunks, N);
    assert_int_equal(settled(s).used_bytes, 0);
    assert_true(arena_is_zero());
    end(s);
}

/* Chunks whose time to live has passed leave no bytes in DRAM. */
TEST(expiry_reaches_the_copy)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct sha256 keys[N];
    uint64_t n_chunks;
    struct store *s = begin();
    save(s, &c, N);
    st_keys(&c, N, keys);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < N; i++) { /* used 20 s ago, with a time to live of 10 s */
        struct chunk_node *n = catalog_find(&s->catalog, &keys[i]);
        n->place.used_time = (uint32_t)clock_wall_s() - 20;
        catalog_set_ttl(&s->catalog, n, 10);
    }
    pthread_mutex_unlock(&s->lock);
    assert_true(arena_has(&keys[0]));
    assert_int_equal(store_evict_expired(s, &n_chunks, NULL), 0);
    assert_int_equal(n_chunks, N);
    assert_int_equal(settled(s).used_bytes, 0);
    assert_true(arena_is_zero());
    end(s);
}

/* A chunk whose parent is gone cannot be reached. gc removes it, and removes its copy before it
 * returns. */
TEST(gc_reaches_the_copy)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct sha256 keys[N];
    struct store_hit hit;
    uint64_t freed;
    struct store *s = begin();
    save(s, &c, N);
    st_keys(&c, N, keys);
    assert_true(store_pin(s, &keys[0], &hit));
    store_condemn(s, &hit, "for the test");
    store_release(s, &hit, 1);
    assert_int_equal(store_gc(s, &freed, NULL), 0);
    assert_true(arena_is_zero());
    assert_int_equal(settled(s).n_chunks, 0);
    end(s);
}

/* A full chunk supersedes a partial one. The commit removes the copy of the partial chunk, even if
 * a sequence still holds the chunk. */
TEST(superseding_reaches_the_copy)
{
    for (int is_held = 0; is_held < 2; is_held++) {
        struct st_ctx c = {.base = 1, .own = 1};
        struct sha256 keys[2];
        struct store_hit hit;
        uint8_t bytes[700];
        struct store_record record = {.kind = STORE_KV, .bytes = bytes, .n_bytes = 700};
        struct store_chunk part = {.fingerprint = st_fingerprint(c.model),
                                   .chunk_idx = 1,
                                   .n_tokens = 20,
                                   .records = &record,
                                   .n_records = 1,
                                   .yields = true};
        struct store *s = begin();
        save(s, &c, 1);
        st_keys(&c, 2, keys);
        st_tokens(&c, 1, part.tokens);
        part.parent = keys[0];
        part.key = store_partial_key(&part.parent, part.tokens, 20);
        st_fill(&part.key, 0, STORE_KV, bytes, sizeof bytes);
        assert_int_equal(store_append(s, &part, NULL), 0);
        assert_int_equal(store_commit(s, NULL), 0);
        assert_true(is_copied(s, &part.key) && arena_has(&part.key));
        assert_true(store_pin(s, &part.key, &hit));
        if (!is_held)
            store_release(s, &hit, 1);
        struct store_chunk full = part;
        full.key = keys[1];
        full.n_tokens = STORE_CHUNK_TOKENS;
        full.yields = false;
        full.supersedes = &part.key;
        assert_int_equal(store_append(s, &full, NULL), 0);
        assert_true(is_copied(s, &part.key)); /* stays until the full chunk is durable */
        assert_int_equal(store_commit(s, NULL), 0);
        assert_false(is_copied(s, &part.key));
        assert_int_equal(settled(s).n_chunks, 2);
        if (is_held)
            store_release(s, &hit, 1);
        end(s);
    }
}

/* --- damage ----------------------------------------------------------------------------------- */

/* A bit flips in DRAM: the copy is dropped, and the chunk on the disk stays. */
TEST(a_damaged_copy_condemns_nothing)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct st_result r;
    struct store_stats st;
    struct store *s = begin();
    save(s, &c, N);
    arena[100] ^= 4;
    assert_int_equal(st_read_dram(s, &plain, &c, N, &r, NULL), 0);
    assert_int_equal(r.n_unread, 1);
    assert_int_equal(r.n_corrupt, 0);
    assert_int_equal(r.n_wrong, 0);
    store_stats(s, &st);
    assert_int_equal(st.n_checksum_failures, 1);
    assert_int_equal(st.n_corrupt, 0);
    assert_int_equal(settled(s).n_chunks, N - 1);
    /* the other records came from the disk */
    assert_int_equal(read_dram(s, &c, N), (N - 1) * RECORDS);
    end(s);
}

/* bytes of the largest mapping that succeeds */
static size_t most_bytes;
static int n_denied;

static void *scarce_get(void *arg, size_t bytes)
{
    n_denied += bytes > most_bytes;
    return bytes > most_bytes ? NULL : arena_get(arg, bytes);
}

/* Memory is scarce. Copies that the user asked for then give an error. By default the arena becomes
 * smaller, or there is none. */
TEST(copies_take_less_where_memory_is_scarce)
{
    const struct {
        size_t most;
        uint64_t got;
        int n_denied;
    } cases[] = {{256 << 20, 256 << 20, 0},
                 {255 << 20, 128 << 20, 1},
                 {64 << 20, 64 << 20, 2},
                 {63 << 20, 0, 3}};
    struct err err = {0};
    struct st_ctx c = {.base = 1, .own = 1};
    struct store *s = NULL;
    for (int i = 0; i < 4; i++) {
        assert_true(st_place_open(&place, "sim", 1));
        place.opts.dram_bytes = 256 << 20;
        place.opts.memory = (struct store_memory){scarce_get, arena_put, NULL};
        most_bytes = cases[i].most;
        n_denied = 0;
        int rc = store_open(&place.opts, &s, &err);
        assert_int_equal(rc, cases[i].n_denied > 0 ? -ENOMEM : 0);
        if (rc == 0)
            store_close(s);
        n_denied = 0;
        place.opts.dram_optional = true;
        s = st_open(&place);
        assert_int_equal(n_denied, cases[i].n_denied);
        assert_int_equal(st_stats(s).dram.cap_bytes, cases[i].got);
        save(s, &c, N);
        assert_int_equal(read_dram(s, &c, N), cases[i].got > 0 ? N * RECORDS : 0);
        end(s);
    }
}

int main(void)
{
    strict_store_allows_waits = true;
    return unit_run(NULL, NULL);
}
