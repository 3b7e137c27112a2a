/* test_victims.c - which chunks a store under a cap evicts; store/placement.h has the rules. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "sim/cache.h"
#include "store/store_impl.h"
#include "tests/store/storetest.h"
#include "tests/base/strict_store.h"

/* One record of one block: with its header a chunk takes two blocks of 4 KiB. */
static const struct st_shape shape = {1, {4096, 0}, false};
enum { CHUNK_BYTES = 2 * STORE_ALIGN };

static struct store *open_store(enum placement_kind policy, int n_chunks)
{
    struct store_opts o = {.cap_bytes = (uint64_t)n_chunks * CHUNK_BYTES,
                           .segment_bytes = 1 << 20,
                           .policy = policy};
    struct store *s;
    struct err err = {0};
    if (store_open(&o, &s, &err) != 0)
        fail_msg("%s", err.msg);
    return s;
}

static struct st_ctx context(uint64_t own)
{
    return (struct st_ctx){.base = 1, .own = own, .model = 1};
}

static void save(struct store *s, uint64_t own, int n)
{
    struct st_ctx c = context(own);
    struct err err = {0};
    if (st_save(s, &shape, &c, n, ST_H, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Returns whether the store has a chunk.  Does not count as a use. */
static bool has(struct store *s, uint64_t own, int chunk)
{
    struct st_ctx c = context(own);
    struct sha256 keys[ST_MAX_CHUNKS];
    struct store_hit hit;
    st_keys(&c, chunk + 1, keys);
    bool found = store_pin(s, &keys[chunk], &hit);
    if (found)
        store_release(s, &hit, 1);
    return found;
}

/* Stores contexts 1 to 3 of one chunk each, announces a request for `wanted` (0: none), and stores
 * context 4.  Returns the context that was evicted. */
static uint64_t gone_for_the_fourth(enum placement_kind policy, uint64_t wanted)
{
    struct store *s = open_store(policy, 3);
    struct sha256 key;
    uint64_t gone = 0;
    for (uint64_t own = 1; own <= 3; own++)
        save(s, own, 1);
    if (wanted != 0) {
        struct st_ctx c = context(wanted);
        st_keys(&c, 1, &key);
        store_expect_use(s, &key, 1, 7);
    }
    save(s, 4, 1);
    for (uint64_t own = 1; own <= 4; own++)
        if (!has(s, own, 0)) {
            assert_int_equal(gone, 0);
            gone = own;
        }
    /* the request has ended, so its chunk is the oldest again and is evicted */
    if (wanted != 0) {
        store_expect_use_no_more(s, &key, 1, 7);
        save(s, 5, 1);
        assert_false(has(s, wanted, 0));
    }
    store_close(s);
    return gone;
}

TEST(a_waiting_request_keeps_its_chunks)
{
    assert_int_equal(gone_for_the_fourth(PLACEMENT_LRU, 0), 1);
    /* LRU does not look ahead */
    assert_int_equal(gone_for_the_fourth(PLACEMENT_LRU, 1), 1);
    assert_int_equal(gone_for_the_fourth(PLACEMENT_ATTENTIONSTORE, 0), 1);
    assert_int_equal(gone_for_the_fourth(PLACEMENT_ATTENTIONSTORE, 1), 2);
    assert_int_equal(gone_for_the_fourth(PLACEMENT_OURS, 1), 2);
}

/* If waiting requests need all state, the state of the last request is evicted first. */
TEST(the_tail_of_the_queue_goes_first)
{
    struct store *s = open_store(PLACEMENT_ATTENTIONSTORE, 3);
    for (uint64_t own = 1; own <= 3; own++) {
        struct st_ctx c = context(own);
        struct sha256 key;
        save(s, own, 1);
        st_keys(&c, 1, &key);
        assert_int_equal(store_expect_use(s, &key, 1, 10 + own), 1);
    }
    save(s, 4, 1);
    assert_true(has(s, 1, 0) && has(s, 2, 0) && !has(s, 3, 0) && has(s, 4, 0));
    save(s, 5, 1); /* no request waits for context 4 */
    assert_true(has(s, 1, 0) && has(s, 2, 0) && !has(s, 4, 0) && has(s, 5, 0));
    store_close(s);
}

/* Waiting requests need all stored chunks. Under the policy `ours` a new chunk that no request
 * needs evicts none of them, unless it must be stored. A new chunk that is needed sooner does evict
 * one. */
TEST(a_newcomer_does_not_push_out_what_is_needed_sooner)
{
    static const struct {
        enum placement_kind policy;
        bool may_be_refused;
        /* turn of the request that needs the new chunk; 0: no request does */
        uint64_t turn;
        bool is_stored;
    } cases[] = {
        {PLACEMENT_OURS, true, 0, false},          {PLACEMENT_OURS, true, 20, false},
        {PLACEMENT_OURS, true, 5, true},           {PLACEMENT_OURS, false, 0, true},
        {PLACEMENT_ATTENTIONSTORE, true, 0, true}, {PLACEMENT_LRU, true, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct store *s = open_store(cases[i].policy, 3);
        struct st_ctx c = context(4);
        struct sha256 key;
        struct err err = {0};
        int n_left = 0;
        for (uint64_t own = 1; own <= 3; own++) {
            struct st_ctx waits = context(own);
            save(s, own, 1);
            st_keys(&waits, 1, &key);
            store_expect_use(s, &key, 1, 10 + own);
        }
        st_keys(&c, 1, &key);
        if (cases[i].turn != 0)
            store_expect_use(s, &key, 1, cases[i].turn);
        st_may_be_refused = cases[i].may_be_refused;
        int rc = st_append(s, &shape, &c, 0, ST_H, &err);
        st_may_be_refused = false;
        assert_int_equal(rc, cases[i].is_stored ? 0 : ERR_BUSY);
        assert_true(rc == 0 || strstr(err.msg, "waiting requests need") != NULL);
        assert_int_equal(store_commit(s, &err), 0);
        for (uint64_t own = 1; own <= 3; own++)
            n_left += has(s, own, 0);
        assert_int_equal(n_left, cases[i].is_stored ? 2 : 3);
        store_close(s);
    }
}

/* A dropped chunk is evicted before all other chunks, unless it was used since the drop. */
TEST(a_dropped_chunk_goes_first)
{
    for (int used = 0; used < 2; used++) {
        struct store *s = open_store(PLACEMENT_LRU, 3);
        struct st_ctx c = context(3);
        struct sha256 key;
        for (uint64_t own = 1; own <= 3; own++)
            save(s, own, 1);
        st_keys(&c, 1, &key);
        store_drop(s, &key, 1);
        if (used) {
            struct store_hit hit;
            assert_int_equal(store_lookup(s, NULL, &key, 1, &hit, NULL, 0), 1);
            store_release(s, &hit, 1);
        }
        save(s, 4, 1);
        assert_int_equal(has(s, 3, 0), used);
        assert_int_equal(has(s, 1, 0), !used);
        store_close(s);
    }
}

/* The seconds that a chunk saves count per byte. Two contexts have the same hint. The chunk with
 * half of the bytes is worth its room. The other chunk is not, although it was used later. */
TEST(what_saves_more_for_each_byte_stays)
{
    enum { WAIT_S = 1000 };
    /* its record and header take four blocks */
    static const struct st_shape large = {1, {3 * 4096, 0}, false};
    struct store *s = open_store(PLACEMENT_OURS, 20);
    const struct placement_price price = {.token_s = 1, .chunk_bytes = CHUNK_BYTES};
    const struct store_use use = {.reuse_in_s = WAIT_S};
    struct sha256 key[2];
    store_set_price(s, &price);
    /* the price: seconds saved, per second of holding, at which a use is just worth the room */
    s->catalog.learn->price = 0.75 / WAIT_S;
    for (int i = 0; i < 2; i++) {
        struct st_ctx c = context((uint64_t)(1 + i));
        struct store_hit hit;
        assert_int_equal(st_save(s, i == 0 ? &shape : &large, &c, 1, ST_H, NULL), 0);
        st_keys(&c, 1, &key[i]);
        int n = store_lookup(s, &use, &key[i], 1, &hit, NULL, 0);
        assert_int_equal(n, 1);
        store_release(s, &hit, n);
    }
    const struct chunk_node *small = catalog_find(&s->catalog, &key[0]);
    assert_int_equal(small->place.worth, 2 * WAIT_S);
    assert_int_equal(catalog_find(&s->catalog, &key[1])->place.worth, 0);
    assert_memory_equal(&catalog_victim(&s->catalog)->key, &key[1], sizeof key[1]);
    store_close(s);
}

/* Saves three contexts of one chunk each in a store on a disk, drops the newest, uses it again if
 * `used`, and opens the store again.  Returns the first victim's number. */
static uint64_t first_victim_after_a_restart(bool used)
{
    struct st_place p;
    struct store_hit hit;
    struct sha256 keys[3];
    uint64_t first = 0;
    int n = 0;
    struct store *s = st_begin(&p, "sim", 1);
    for (uint64_t own = 1; own <= 3; own++) {
        struct st_ctx c = context(own);
        save(s, own, 1);
        st_keys(&c, 1, &keys[own - 1]);
    }
    store_drop(s, &keys[2], 1);
    if (used) {
        n = store_lookup(s, NULL, &keys[2], 1, &hit, NULL, 0);
        assert_int_equal(n, 1);
        store_release(s, &hit, n);
    }
    store_close(s);
    s = st_open(&p);
    const struct chunk_node *victim = catalog_victim(&s->catalog);
    assert_non_null(victim);
    for (uint64_t own = 1; own <= 3; own++)
        if (memcmp(&victim->key, &keys[own - 1], sizeof victim->key) == 0)
            first = own;
    assert_int_equal(victim->place.is_dropped, !used);
    st_close(s, &p);
    return first;
}

/* A drop lasts until its chunk is removed or used, across a restart, too. */
TEST(a_drop_survives_a_restart)
{
    assert_int_equal(first_victim_after_a_restart(false), 3);
    assert_int_equal(first_victim_after_a_restart(true), 1);
}

/* --- the simulator ---------------------------------------------------------------------------- */

enum { CONTEXTS = 5, DEPTH = 5, OPS = 40 };

/* The simulator and the store, kept side by side.  Contexts share their first `branch` chunks and
 * the corresponding block numbers. */
struct twin {
    struct store *store;
    struct cache cache;
    struct placement_window window;
    struct placement_upcoming place[256];
    struct placement_wait wait_of[127];
    struct st_ctx ctx[CONTEXTS];
    struct sha256 keys[CONTEXTS][DEPTH];
    uint64_t turn[CONTEXTS]; /* turn of the context's waiting request; 0: none waits */
    int n_expected[CONTEXTS];
    struct store_hit held[CONTEXTS]; /* the held chunk; impl is NULL if none is held */
    uint32_t held_block[CONTEXTS];
    bool looks;
};

static uint32_t block_of(const struct twin *t, int c, int chunk)
{
    return (uint32_t)(chunk < t->ctx[c].branch ? chunk : (c + 1) * DEPTH + chunk);
}

static void twin_begin(struct twin *t, enum placement_kind policy, struct rng *r)
{
    uint32_t n = 3 + (uint32_t)rng_below(r, 8);
    memset(t, 0, sizeof *t);
    t->store = open_store(policy, (int)n);
    placement_window_init(&t->window, t->place, 256, t->wait_of, 127);
    t->looks = placement_looks_ahead(policy);
    struct cache_opts o = {.n_blocks = (CONTEXTS + 1) * DEPTH,
                           .n_tiers = 1,
                           .max_blocks = {n},
                           .policy = policy,
                           .refuses = true,
                           .window = &t->window};
    cache_init(&t->cache, &o);
    int branch = (int)rng_below(r, 3);
    for (int c = 0; c < CONTEXTS; c++) {
        t->ctx[c] = (struct st_ctx){
            .base = 1, .own = (uint64_t)c, .branch = branch, .model = 1};
        st_keys(&t->ctx[c], DEPTH, t->keys[c]);
    }
}

/* Uses the stored chunks of a context and stores the next one. */
static void twin_use(struct twin *t, int c, uint32_t now)
{
    struct store_hit hits[DEPTH];
    struct placement_use use = {.time = now};
    int n_hits, n = 0;
    n_hits = store_lookup(t->store, NULL, t->keys[c], DEPTH, hits, NULL, 0);
    while (n < DEPTH && cache_has(&t->cache, block_of(t, c, n)))
        cache_touch(&t->cache, block_of(t, c, n++), &use);
    assert_int_equal(n_hits, n);
    if (n > 0)
        cache_pin(&t->cache, block_of(t, c, n - 1));
    if (n < DEPTH) {
        uint32_t parent = n > 0 ? block_of(t, c, n - 1) : CACHE_NONE;
        bool is_added = cache_add(&t->cache, block_of(t, c, n), parent, &use);
        st_may_be_refused = true;
        int rc = st_append(t->store, &shape, &t->ctx[c], n, ST_H, NULL);
        st_may_be_refused = false;
        int refused = placement_victim(&t->cache.part[0]) != NULL ? ERR_BUSY : ERR_LIMIT;
        assert_int_equal(rc, is_added ? 0 : refused);
        assert_int_equal(store_commit(t->store, NULL), 0);
        if (is_added)
            cache_unpin(&t->cache, block_of(t, c, n));
    }
    if (n > 0)
        cache_unpin(&t->cache, block_of(t, c, n - 1));
    store_release(t->store, hits, n_hits);
}

/* Announces a request for a context at this turn. If a request for the context waits already, ends
 * that request instead. */
static void twin_expect(struct twin *t, int c, uint64_t turn)
{
    bool joins = t->turn[c] == 0;
    turn = joins ? turn : t->turn[c];
    for (int i = 0; i < DEPTH && t->looks; i++) {
        uint64_t id = 1 + (uint64_t)block_of(t, c, i);
        assert_true(joins ? placement_window_add(&t->window, id, turn)
                          : placement_window_remove(&t->window, id, turn));
        cache_review(&t->cache, block_of(t, c, i));
    }
    if (joins)
        t->n_expected[c] = store_expect_use(t->store, t->keys[c], DEPTH, turn);
    else
        store_expect_use_no_more(t->store, t->keys[c], t->n_expected[c], turn);
    assert_int_equal(t->n_expected[c], t->looks ? DEPTH : 0);
    t->turn[c] = joins ? turn : 0;
}

/* Pins a stored chunk of a context, or releases it if the context has a pinned chunk already. A
 * pinned chunk may not be evicted. */
static void twin_hold(struct twin *t, int c, int chunk)
{
    if (t->held[c].impl != NULL) {
        store_release(t->store, &t->held[c], 1);
        cache_unpin(&t->cache, t->held_block[c]);
    } else if (cache_has(&t->cache, block_of(t, c, chunk))) {
        assert_true(store_pin(t->store, &t->keys[c][chunk], &t->held[c]));
        t->held_block[c] = block_of(t, c, chunk);
        cache_pin(&t->cache, t->held_block[c]);
    }
}

/* Looks without pinning, because pins and releases would change the order of the store's leaves. */
static bool is_stored(const struct twin *t, int c, int chunk)
{
    const struct chunk_node *n = catalog_find(&t->store->catalog, &t->keys[c][chunk]);
    return n != NULL && n->n_live > 0;
}

/* Simulator and store hold the same chunks after each step of a random history, under every policy.
 */
TEST(simulator_and_store_choose_the_same_victims)
{
    const char *text = getenv("HCACHE_TEST_HISTORIES");
    int n = text != NULL ? atoi(text) : 1500;
    uint64_t n_evicted = 0;
    static struct twin t;
    for (int h = 0; h < n; h++) {
        struct rng r = {(uint64_t)h};
        twin_begin(&t, (enum placement_kind)(h % PLACEMENT_BELADY), &r);
        for (int op = 0; op < OPS; op++) {
            int c = (int)rng_below(&r, CONTEXTS);
            uint64_t what = rng_below(&r, 8);
            if (what < 2)
                twin_expect(&t, c, 1 + rng_below(&r, 100));
            else if (what == 2)
                twin_hold(&t, c, (int)rng_below(&r, DEPTH));
            else
                twin_use(&t, c, (uint32_t)op);
            for (int k = 0; k < CONTEXTS; k++)
                for (int i = 0; i < DEPTH; i++) {
                    bool found = is_stored(&t, k, i);
                    if (found != cache_has(&t.cache, block_of(&t, k, i)))
                        fail_msg("history %d (%s), step %d: chunk %d of %d is %s", h,
                                 placement_names[h % PLACEMENT_BELADY], op, i, k,
                                 found ? "stored only" : "simulated only");
                }
        }
        assert_true(cache_audit(&t.cache) && store_audit(t.store));
        for (int c = 0; c < CONTEXTS; c++)
            if (t.held[c].impl != NULL)
                twin_hold(&t, c, 0);
        n_evicted += t.cache.n_evicted;
        cache_deinit(&t.cache);
        store_close(t.store);
    }
    print_message("%d histories, %llu victims\n", n, (unsigned long long)n_evicted);
    assert_true(n_evicted > (uint64_t)n);
}

int main(void)
{
    strict_store_allows_waits = true;
    return unit_run(NULL, NULL);
}
