/* test_guarantee.c - guaranteed chunks. Nothing evicts them. A guarantee that cannot be given is
 * refused, and the message gives the numbers. Only a caller ends a guarantee; every other end is
 * counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "sim/io_sim.h"
#include "storetest.h"

enum { N = 4, HOUR_S = 3600 };

static struct st_ctx context(uint64_t number)
{
    return (struct st_ctx){.base = number, .own = number};
}

static int guarantee(struct store *s, const struct st_ctx *c, struct store_guaranteed *g,
                     struct err *err)
{
    struct sha256 keys[N];
    st_keys(c, N, keys);
    return store_guarantee(s, keys, N, clock_wall_s() + HOUR_S, g, err);
}

static void must_guarantee(struct store *s, const struct st_ctx *c)
{
    struct err err = {0};
    if (guarantee(s, c, NULL, &err) != 0)
        fail_msg("%s", err.msg);
}

static void crowd(struct store *s, const char *salt)
{
    for (uint64_t i = 100; i < 120; i++) {
        struct st_ctx c = {.base = i, .own = i, .salt = salt};
        st_must_save(s, &c, N);
    }
}

/* The disk of the test that runs. */
static struct st_place place;

/* The cap, idle times and gc spare a guaranteed context, before and after a restart.  When the
 * guarantee ends the context can be evicted. */
static void nothing_evicts(const char *kind)
{
    struct st_ctx kept = context(1);
    struct sha256 keys[N];
    uint64_t n_idle, freed;
    if (!st_place_open(&place, kind, 1))
        return;
    place.opts.cap_bytes = 4 * st_context_bytes(N);
    struct store *s = st_open(&place);
    st_must_save(s, &kept, N);
    must_guarantee(s, &kept);
    for (int round = 0; round < 2; round++) {
        crowd(s, NULL);
        assert_int_equal(store_evict_idle(s, clock_wall_s() + HOUR_S, &n_idle, NULL), 0);
        assert_true(n_idle > 0);
        assert_int_equal(store_gc(s, &freed, NULL), 0);
        struct store_stats st = st_stats(s);
        assert_true(st.n_guarantees == 1 && st.guaranteed_bytes == st_context_bytes(N));
        assert_true(st.evictions[STORE_EVICT_CAP] > 0 && st.n_guarantees_broken == 0);
        assert_int_equal(st_n_found(s, &kept, N), N);
        assert_true(store_audit(s));
        if (place.io == NULL)
            break;
        store_close(s);
        s = st_open(&place);
    }
    st_keys(&kept, N, keys);
    assert_int_equal(store_unpin_keys(s, keys, N, NULL), 0);
    crowd(s, NULL);
    assert_true(st_n_found(s, &kept, N) < N);
    assert_true(st_stats(s).guaranteed_bytes == 0);
    st_close(s, &place);
}

TEST(nothing_evicts_a_guaranteed_chunk)
{
    nothing_evicts("dram");
    nothing_evicts("pread");
    nothing_evicts("sim");
}

/* If only guaranteed chunks are stored, a new chunk is refused. (An ordinary pin would give
 * way.) */
TEST(nothing_is_saved_in_its_place)
{
    for (int of_owner = 0; of_owner < 2; of_owner++) {
        struct st_place p;
        struct err err = {0};
        struct st_ctx kept = context(1), held = context(2), more = context(3);
        struct sha256 keys[N];
        struct store_hit hit;
        uint64_t bound = 2 * st_context_bytes(N), n_idle;
        assert_true(st_place_open(&p, "sim", 1));
        p.opts.cap_bytes = of_owner ? 0 : bound;
        p.opts.quota_bytes = of_owner ? bound : 0;
        struct store *s = st_open(&p);
        st_must_save(s, &kept, N);
        must_guarantee(s, &kept);
        st_must_save(s, &held, N);
        st_keys(&held, N, keys);
        assert_true(store_pin(s, &keys[N - 1], &hit));
        assert_int_equal(st_save(s, &st_small, &more, 1, ST_BOTH, &err), ERR_LIMIT);
        assert_non_null(strstr(err.msg, "guaranteed"));
        assert_int_equal(store_evict_idle(s, clock_wall_s() + HOUR_S, &n_idle, &err), 0);
        assert_int_equal(st_n_found(s, &kept, N), N);
        assert_true(st_stats(s).n_evicted == 0 && store_audit(s));
        store_release(s, &hit, 1);
        st_must_save(s, &more, N);
        assert_int_equal(st_n_found(s, &kept, N), N);
        st_close(s, &p);
    }
}

/* An owner's quota evicts only those chunks of the owner that are not guaranteed. */
TEST(a_quota_passes_over_it)
{
    struct st_ctx kept = {.base = 1, .own = 1, .salt = "alice"};
    struct st_ctx again = {.base = 2, .own = 2, .salt = "alice"};
    struct err err = {0};
    struct store_guaranteed g;
    uint64_t each = st_context_bytes(N);
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.quota_bytes = 2 * each;
    struct store *s = st_open(&place);
    st_must_save(s, &kept, N);
    must_guarantee(s, &kept);
    crowd(s, "alice");
    assert_int_equal(st_n_found(s, &kept, N), N);
    /* The quota has room for two contexts. Guaranteeing both would take more than three quarters of
     * the quota. */
    st_must_save(s, &again, N);
    assert_int_equal(guarantee(s, &again, &g, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "owner"));
    assert_true(g.owner_bytes == 2 * each && g.owner_limit_bytes == 2 * each / 4 * 3);
    assert_true(st_stats(s).guaranteed_bytes == each);
    st_close(s, &place);
}

/* Without cap and quota, store_opts bounds how much an owner may guarantee. */
TEST(an_owner_has_a_bound)
{
    struct st_ctx a = {.base = 1, .own = 1, .salt = "a"},
                  b = {.base = 2, .own = 2, .salt = "a"},
                  other = {.base = 3, .own = 3, .salt = "b"};
    struct err err = {0};
    assert_true(st_place_open(&place, "dram", 1));
    place.opts.guarantee_bytes = st_context_bytes(N);
    struct store *s = st_open(&place);
    st_must_save(s, &a, N);
    st_must_save(s, &b, N);
    st_must_save(s, &other, N);
    must_guarantee(s, &a);
    assert_int_equal(guarantee(s, &b, NULL, &err), ERR_LIMIT);
    must_guarantee(s, &other);
    st_close(s, &place);
}

/* Of an owner's quota, or else of the quota of all owners, three quarters may be guaranteed, and
 * never more than the bound of store_opts. */
TEST(the_least_bound_of_an_owner_counts)
{
    const uint64_t each = st_context_bytes(N);
    const struct {
        uint64_t all_quota, own_quota, bound, want;
    } cases[] = {
        {40 * each, 0, 0, 30 * each},        {40 * each, 0, 2 * each, 2 * each},
        {4 * each, 0, 20 * each, 3 * each},  {40 * each, 8 * each, 0, 6 * each},
        {4 * each, 40 * each, 0, 30 * each},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct st_ctx a = {.base = 1, .own = 1, .salt = "a"};
        struct store_guaranteed g;
        assert_true(st_place_open(&place, "dram", 1));
        place.opts.quota_bytes = cases[i].all_quota;
        place.opts.guarantee_bytes = cases[i].bound;
        struct store *s = st_open(&place);
        store_set_quota(s, store_owner("a"), cases[i].own_quota);
        st_must_save(s, &a, N);
        assert_int_equal(guarantee(s, &a, &g, NULL), 0);
        assert_true(g.owner_limit_bytes == cases[i].want);
        st_close(s, &place);
    }
}

/* At most three quarters of the cap may be guaranteed.  A refusal gives the numbers and changes
 * nothing. */
TEST(too_much_is_refused)
{
    struct err err = {0};
    struct store_guaranteed g;
    char sums[64];
    uint64_t each = st_context_bytes(N);
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 4 * each;
    struct store *s = st_open(&place);
    for (uint64_t i = 1; i <= 4; i++) {
        struct st_ctx c = context(i);
        st_must_save(s, &c, N);
        if (i < 4)
            must_guarantee(s, &c);
    }
    struct st_ctx last = context(4);
    struct store_stats before = st_stats(s);
    assert_true(before.guarantee_limit_bytes == 3 * each);
    assert_int_equal(guarantee(s, &last, &g, &err), ERR_LIMIT);
    snprintf(sums, sizeof sums, "%llu bytes and the %llu", (unsigned long long)each,
             (unsigned long long)(3 * each));
    if (strstr(err.msg, sums) == NULL)
        fail_msg("no \"%s\" in: %s", sums, err.msg);
    assert_true(g.n_bytes == each && g.all_bytes == 4 * each && g.limit_bytes == 3 * each);
    assert_true(st_stats(s).n_pins == before.n_pins &&
                st_stats(s).guaranteed_bytes == 3 * each);
    crowd(s, NULL); /* the rest of the cap suffices for further contexts */
    assert_true(st_n_found(s, &last, N) < N);
    for (uint64_t i = 1; i <= 3; i++) {
        struct st_ctx c = context(i);
        assert_int_equal(st_n_found(s, &c, N), N);
    }
    st_close(s, &place);
}

TEST(what_is_not_stored_is_refused)
{
    struct err err = {0};
    struct st_ctx c = context(1);
    struct store *s = st_begin(&place, "sim", 1);
    assert_int_equal(guarantee(s, &c, NULL, &err), ERR_NOT_FOUND);
    for (int i = 0; i < N; i++) /* the chunks are appended and not committed */
        assert_int_equal(st_append(s, &st_small, &c, i, ST_BOTH, &err), 0);
    assert_int_equal(guarantee(s, &c, NULL, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "4 of its 4 chunks"));
    assert_int_equal(store_commit(s, &err), 0);
    must_guarantee(s, &c);
    st_close(s, &place);
}

/* Chunks that two guaranteed contexts share count once, and stay while one of the two guarantees
 * holds. */
TEST(shared_chunks_count_once)
{
    struct sha256 keys[N];
    struct st_ctx a = {.base = 1, .own = 1, .branch = 2},
                  b = {.base = 1, .own = 2, .branch = 2};
    uint64_t each = st_context_bytes(N);
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 4 * each;
    struct store *s = st_open(&place);
    st_must_save(s, &a, N);
    st_must_save(s, &b, N);
    must_guarantee(s, &a);
    must_guarantee(s, &b);
    assert_true(st_stats(s).guaranteed_bytes == each + each / 2);
    st_keys(&a, N, keys);
    assert_int_equal(store_unpin_keys(s, keys, N, NULL), 0);
    assert_true(st_stats(s).guaranteed_bytes == each);
    crowd(s, NULL);
    assert_int_equal(st_n_found(s, &b, N), N);
    assert_int_equal(st_n_found(s, &a, N), 2);
    st_close(s, &place);
}

/* An ordinary pin does not weaken a guarantee. It stays when a guarantee on the same context is
 * refused. */
TEST(ordinary_pins_stand_beside)
{
    struct err err = {0};
    struct sha256 keys[N];
    struct st_ctx c = context(1);
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 2 * st_context_bytes(N);
    struct store *s = st_open(&place);
    st_must_save(s, &c, N);
    st_keys(&c, N, keys);
    must_guarantee(s, &c);
    assert_int_equal(store_pin_until(s, keys, N, clock_wall_s() + 1, &err), 0);
    assert_true(st_stats(s).n_guarantees == 1);
    crowd(s, NULL);
    assert_int_equal(st_n_found(s, &c, N), N);
    store_close(s);
    place.opts.guarantee_bytes = 1;
    s = st_open(&place);
    struct st_ctx other = {.base = 2, .own = 2, .salt = "other"};
    st_must_save(s, &other, N);
    st_keys(&other, N, keys);
    assert_int_equal(store_pin_until(s, keys + N - 1, 1, clock_wall_s() + HOUR_S, &err), 0);
    uint64_t n_pins = st_stats(s).n_pins;
    assert_int_equal(guarantee(s, &other, NULL, &err), ERR_LIMIT);
    assert_true(st_stats(s).n_pins == n_pins && st_stats(s).n_guarantees == 1);
    st_close(s, &place);
}

TEST(a_lower_cap_does_not_open)
{
    struct err err = {0};
    struct store *s;
    struct st_ctx a = context(1), b = context(2);
    uint64_t each = st_context_bytes(N);
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 4 * each;
    s = st_open(&place);
    st_must_save(s, &a, N);
    st_must_save(s, &b, N);
    must_guarantee(s, &a);
    store_close(s);
    place.opts.cap_bytes = each - 1;
    assert_int_equal(store_open(&place.opts, &s, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "guaranteed"));
    place.opts.cap_bytes = each;
    s = st_open(&place);
    assert_int_equal(st_n_found(s, &a, N), N); /* the attempt evicted nothing */
    st_close(s, &place);
}

/* Damage breaks a guarantee, and is counted.  Saved again, the state is guaranteed again. */
TEST(damage_is_counted)
{
    struct store_hit hit;
    struct sha256 keys[N];
    struct st_ctx c = context(1);
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 4 * st_context_bytes(N);
    struct store *s = st_open(&place);
    st_must_save(s, &c, N);
    must_guarantee(s, &c);
    st_keys(&c, N, keys);
    assert_true(store_pin(s, &keys[1], &hit));
    store_condemn(s, &hit, "a test");
    store_release(s, &hit, 1);
    assert_true(st_stats(s).n_guarantees_broken == 1);
    assert_int_equal(st_n_found(s, &c, N), 1);
    assert_true(store_audit(s));
    st_must_save(s, &c, N);
    crowd(s, NULL);
    assert_int_equal(st_n_found(s, &c, N), N);
    st_close(s, &place);
}

/* Power fails at every operation of the disk. A guarantee that was acknowledged survives and
 * holds. */
TEST(it_survives_power)
{
    bool crashed = true;
    for (uint64_t at = 1; crashed; at++) {
        struct st_place p;
        struct err err = {0};
        struct st_ctx kept = context(1);
        assert_true(st_place_open(&p, "sim", 1));
        p.opts.cap_bytes = 4 * st_context_bytes(N);
        struct store *s = st_open(&p);
        st_must_save(s, &kept, N);
        io_sim_crash_at(p.io, IO_SIM_AT_OP, at);
        int rc = guarantee(s, &kept, NULL, &err);
        /* a failed guarantee is undone */
        assert_true(st_stats(s).n_guarantees == (rc == 0));
        assert_true(store_audit(s));
        crashed = io_sim_crashed(p.io);
        if (!crashed)
            io_sim_crash(p.io);
        store_close(s);
        io_sim_restart(p.io);
        s = st_open(&p);
        if (rc == 0) {
            assert_true(st_stats(s).n_guarantees == 1);
            crowd(s, NULL);
            assert_int_equal(st_n_found(s, &kept, N), N);
        }
        st_close(s, &p);
    }
}
