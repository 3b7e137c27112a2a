/* test_ranges.c - a function that takes keys[0..n) or hits[0..n) looks at these only.
 *
 * The keys lie in the middle of a larger array.  The one before them and the one behind them would
 * both change the result. */
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 5 };

static const struct st_ctx one = {.base = 1, .own = 1}, two = {.base = 2, .own = 2},
                           three = {.base = 3, .own = 3};
static struct st_place place;
static struct err err;

/* Opens a store with three contexts of five chunks each. */
static struct store *store_make(const char *kind)
{
    assert_true(st_place_open(&place, kind, 1));
    place.opts.policy = PLACEMENT_OURS;
    if (strcmp(kind, "dram") != 0)
        place.opts.dram_bytes = 16 << 20;
    struct store *s = st_open(&place);
    st_must_save(s, &one, N);
    st_must_save(s, &two, N);
    st_must_save(s, &three, N);
    return s;
}

static void store_end(struct store *s)
{
    assert_true(store_audit(s));
    store_close(s);
    st_place_close(&place);
}

static struct chunk_node *node_of(struct store *s, const struct sha256 *key)
{
    return catalog_find(&s->catalog, key);
}

TEST(lookups)
{
    struct store *s = store_make("sim");
    struct sha256 keys[N];
    struct store_hit hits[N + 1];
    bool in_dram[N + 1];
    int n_hits = -1;
    st_keys(&one, N, keys);
    for (int n = 0; n <= N; n++) {
        memset(hits, 0, sizeof hits);
        struct store_stats before = st_stats(s);
        assert_int_equal(store_count(s, keys, n), n);
        n_hits = store_lookup(s, NULL, keys, n, hits, NULL, 0);
        assert_int_equal(n_hits, n);
        struct store_stats after = st_stats(s);
        assert_int_equal(after.n_hits - before.n_hits, n);
        assert_int_equal(after.n_misses, before.n_misses);
        for (int i = 0; i <= N; i++)
            assert_int_equal(hits[i].impl != NULL, i < n);
        for (int i = 0; i < N; i++)
            assert_int_equal(node_of(s, &keys[i])->n_pins, i < n);
        memset(in_dram, true, sizeof in_dram);
        store_in_dram(s, hits, n, in_dram);
        for (int i = n; i <= N; i++)
            assert_true(in_dram[i]);
        /* the hit behind those that are released stays */
        int n_freed = n > 0 ? n - 1 : 0;
        store_release(s, hits, n_freed);
        for (int i = 0; i < N; i++)
            assert_int_equal(node_of(s, &keys[i])->n_pins, i >= n_freed && i < n);
        store_release(s, hits, n);
        assert_int_equal(node_of(s, &keys[N - 1])->n_pins, 0);
    }
    store_end(s);
}

/* A chunk behind those that are asked for is damaged. */
TEST(hits_that_stand)
{
    struct store *s = store_make("dram");
    struct sha256 keys[N];
    struct store_hit hits[N];
    st_keys(&one, N, keys);
    int n_hits = store_lookup(s, NULL, keys, N, hits, NULL, 0);
    store_condemn(s, &hits[3], "a test says so");
    assert_int_equal(store_count(s, keys, N), 3);
    store_release(s, hits, n_hits);
    store_end(s);
}

static int count_pin(void *arg, const struct store_pinned *pin)
{
    struct sha256 *keys = arg;
    for (int i = 0; i < N; i++)
        if (memcmp(keys[i].b, pin->key.b, sizeof pin->key.b) == 0)
            return pin->is_stored && !pin->is_guaranteed ? 0 : -1;
    return -2;
}

static void must_be_pinned(struct store *s, const struct sha256 *keys, unsigned pinned)
{
    unsigned n = 0;
    for (int i = 0; i < N; i++) {
        assert_int_equal(node_of(s, &keys[i])->pin_at != 0, pinned >> i & 1);
        n += pinned >> i & 1;
    }
    assert_int_equal(st_stats(s).n_pins, n);
    assert_int_equal(store_each_pin(s, count_pin, (void *)(uintptr_t)keys), 0);
}

TEST(pins)
{
    struct store *s = store_make("sim");
    struct sha256 keys[N];
    int64_t until = clock_wall_s() + 1000;
    st_keys(&one, N, keys);
    assert_int_equal(store_pin_until(s, &keys[1], 3, until, &err), 0);
    must_be_pinned(s, keys, 0x0e);
    assert_int_equal(store_pin_until(s, &keys[4], 0, until, &err), 0);
    must_be_pinned(s, keys, 0x0e);
    assert_int_equal(store_unpin_keys(s, &keys[2], 1, &err), 0);
    must_be_pinned(s, keys, 0x0a);
    assert_int_equal(store_unpin_keys(s, &keys[1], 0, &err), 0);
    must_be_pinned(s, keys, 0x0a);
    assert_int_equal(store_pin_until(s, keys, N, until, &err), 0);
    assert_int_equal(store_unpin_keys(s, &keys[1], 3, &err), 0);
    must_be_pinned(s, keys, 0x11);
    store_close(s);
    s = st_open(&place);
    must_be_pinned(s, keys, 0x11);
    store_end(s);
}

/* The keys around the chain name a chunk that is not stored, then chunks of other contexts. */
TEST(guarantees)
{
    struct store *s = store_make("sim");
    struct sha256 keys[N + 2], others[2][N];
    struct store_guaranteed g;
    int64_t until = clock_wall_s() + 1000;
    st_keys(&one, N, &keys[1]);
    st_keys(&two, N, others[0]);
    st_keys(&three, N, others[1]);
    for (int round = 0; round < 2; round++) {
        keys[0] = keys[N + 1] = (struct sha256){{77}};
        if (round == 1) {
            keys[0] = others[0][N - 1];
            keys[N + 1] = others[1][N - 1];
        }
        assert_int_equal(store_guarantee(s, &keys[1], N, until, &g, &err), 0);
        assert_int_equal(g.n_bytes, st_context_bytes(N));
        assert_int_equal(g.all_bytes, st_context_bytes(N));
        assert_int_equal(g.owner_bytes, st_context_bytes(N));
        struct store_stats st = st_stats(s);
        assert_int_equal(st.n_guarantees, 1);
        assert_int_equal(st.n_pins, 1);
        assert_int_equal(st.guaranteed_bytes, st_context_bytes(N));
        assert_int_equal(store_unpin_keys(s, &keys[1], N, &err), 0);
        assert_int_equal(st_stats(s).n_guarantees, 0);
    }
    /* the beginning of a chain */
    assert_int_equal(store_guarantee(s, &keys[1], 2, until, &g, &err), 0);
    assert_int_equal(g.n_bytes, st_context_bytes(2));
    assert_true(node_of(s, &keys[2])->is_guaranteed &&
                !node_of(s, &keys[3])->is_guaranteed);
    assert_int_equal(store_guarantee(s, keys, 0, until, &g, &err), ERR_NOT_FOUND);
    store_end(s);
}

TEST(drops)
{
    struct store *s = store_make("sim");
    struct sha256 keys[N];
    st_keys(&one, N, keys);
    store_drop(s, &keys[1], 3);
    for (int i = 0; i < N; i++)
        assert_int_equal(node_of(s, &keys[i])->place.is_dropped, i >= 1 && i <= 3);
    store_end(s);
}

/* Returns the turns at which the chunks are needed, one decimal digit each; 0: not needed. */
static int turns(struct store *s, const struct sha256 *keys)
{
    int said = 0;
    for (int i = 0; i < N; i++) {
        uint64_t turn = placement_window_turn(s->catalog.window,
                                              node_of(s, &keys[i])->place.id);
        said = 10 * said + (turn == PLACEMENT_NO_TURN ? 0 : (int)turn);
    }
    return said;
}

TEST(expected_uses)
{
    struct store *s = store_make("sim");
    struct sha256 keys[N];
    st_keys(&one, N, keys);
    assert_int_equal(store_expect_use(s, &keys[1], 3, 7), 3);
    assert_int_equal(turns(s, keys), 7770);
    assert_int_equal(store_expect_use(s, &keys[2], 3, 5), 3);
    assert_int_equal(turns(s, keys), 7555);
    store_expect_use_no_more(s, &keys[2], 3, 5);
    assert_int_equal(turns(s, keys), 7770);
    store_expect_use_no_more(s, &keys[1], 1, 7);
    assert_int_equal(turns(s, keys), 770);
    store_expect_use_no_more(s, &keys[2], 2, 7);
    assert_int_equal(turns(s, keys), 0);
    assert_int_equal(s->catalog.window->n_used, 0);
    store_end(s);
}

TEST(erasures)
{
    struct store *s = store_make("sim");
    struct sha256 keys[N];
    struct store_erased e;
    st_keys(&one, N, keys);
    assert_int_equal(store_erase(s, &keys[1], 3, &e, &err), 0); /* chunk 4 continues them */
    assert_int_equal(e.n_chunks, 0);
    assert_int_equal(e.n_shared, 3);
    assert_int_equal(st_n_found(s, &one, N), N);
    assert_int_equal(store_erase(s, &keys[4], 1, &e, &err), 0);
    assert_int_equal(e.n_chunks, 1);
    assert_int_equal(e.n_bytes, st_context_bytes(1));
    assert_int_equal(st_n_found(s, &one, N), 4);
    assert_int_equal(store_erase(s, &keys[2], 2, &e, &err), 0);
    assert_int_equal(e.n_chunks, 2);
    assert_int_equal(e.n_bytes, st_context_bytes(2));
    assert_int_equal(e.n_shared + e.n_busy + e.n_owed, 0);
    assert_int_equal(st_n_found(s, &one, N), 2);
    assert_int_equal(store_erase(s, &keys[1], 0, &e, &err), 0);
    assert_int_equal(st_n_found(s, &one, N), 2);
    assert_int_equal(st_n_found(s, &two, N), N);
    assert_int_equal(st_stats(s).n_chunks, 2 + 2 * N);
    store_end(s);
}

/* Erasing an owner adds up what each of its contexts has lost. One context is in use. */
TEST(an_owner_in_sum)
{
    const struct st_ctx mine[] = {{.base = 4, .own = 4, .salt = "x"},
                                  {.base = 5, .own = 5, .salt = "x"},
                                  {.base = 6, .own = 6, .salt = "x"}};
    struct store *s = store_make("sim");
    struct sha256 keys[N];
    struct store_hit hit;
    struct store_erased e;
    for (int i = 0; i < 3; i++)
        st_must_save(s, &mine[i], 2 + i);
    st_keys(&mine[2], 4, keys);
    assert_true(store_pin(s, &keys[3], &hit));
    assert_int_equal(store_erase_owner(s, store_owner("x"), &e, &err), 0);
    assert_int_equal(e.n_chunks, 5);
    assert_int_equal(e.n_bytes, st_context_bytes(5));
    assert_int_equal(e.n_busy, 4);
    assert_int_equal(e.n_shared + e.n_owed, 0);
    assert_int_equal(st_stats(s).n_chunks, 3 * N + 4);
    assert_int_equal(st_n_found(s, &mine[2], 4), 0);
    store_release(s, &hit, 1);
    assert_int_equal(store_settle(s, &err), 0);
    assert_int_equal(st_stats(s).n_chunks, 3 * N);
    assert_int_equal(st_stats(s).used_bytes, st_context_bytes(3 * N));
    assert_int_equal(store_erase_owner(s, store_owner("nobody"), &e, &err), 0);
    assert_int_equal(e.n_chunks + e.n_bytes + e.n_busy + e.n_shared + e.n_owed, 0);
    assert_int_equal(st_n_found(s, &one, N), N);
    store_end(s);
}

/* A sample has full chunks of the model, first those that others continue, and is no use of
 * them. */
TEST(samples)
{
    struct store *s = store_make("sim");
    struct st_ctx foreign = {.base = 9, .own = 9, .model = 5};
    struct sha256 f = st_fingerprint(one.model), other = st_fingerprint(5);
    struct store_hit hits[3 * N + 2];
    enum { ALL = 3 * N, INNER = 3 * (N - 1) };
    st_must_save(s, &foreign, 2);
    for (int n = 0; n <= ALL + 1; n++) {
        memset(hits, 0, sizeof hits);
        struct store_stats before = st_stats(s);
        uint64_t tick = s->catalog.tick;
        int n_sampled = store_sample(s, &f, n, hits);
        assert_int_equal(n_sampled, n < ALL ? n : ALL);
        for (int i = 0; i < n_sampled; i++) {
            const struct chunk_node *x = hits[i].impl;
            assert_int_equal(x->n_children > 0, i < INNER);
            assert_int_equal(x->n_pins, 1);
            assert_true(x->extents->records != NULL);
        }
        assert_null(hits[n_sampled].impl);
        store_release(s, hits, n_sampled);
        struct store_stats after = st_stats(s);
        assert_true(after.n_hits == before.n_hits && after.n_misses == before.n_misses &&
                    s->catalog.tick == tick);
    }
    assert_int_equal(store_sample(s, &other, ALL, hits), 2);
    store_release(s, hits, 2);
    store_end(s);
}
