/* test_ttl.c - times to live: a chunk expires a given time after its last use.  A shared chunk has
 * the longest time of its users.  Times survive restarts. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/rng.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 4, HOUR_S = 3600 };

static struct st_ctx context(uint64_t number)
{
    return (struct st_ctx){.base = number, .own = number, .branch = 2};
}

static int n_stored(struct store *s, const struct st_ctx *c)
{
    struct sha256 keys[N];
    int n = 0;
    st_keys(c, N, keys);
    for (struct store_hit hit; n < N && store_pin(s, &keys[n], &hit); n++)
        store_release(s, &hit, 1);
    return n;
}

/* Uses a context with this time to live. Saves the chunks that are missing. */
static void use(struct store *s, const struct st_ctx *c, uint32_t ttl_s)
{
    struct err err = {0};
    struct store_hit hits[N];
    struct sha256 keys[N];
    struct store_use u = {.ttl_s = ttl_s};
    struct store_chunk chunk = {.fingerprint = st_fingerprint(c->model), .use = u};
    st_keys(c, N, keys);
    int n_hits = store_lookup(s, &u, keys, N, hits, NULL, 0);
    chunk.parent = n_hits > 0 ? keys[n_hits - 1]
                              : store_root_key(&chunk.fingerprint, c->salt);
    for (int i = n_hits; i < N; i++) {
        uint8_t bytes[700];
        struct store_record record = {
            .kind = STORE_KV, .bytes = bytes, .n_bytes = sizeof bytes};
        chunk.records = &record;
        chunk.n_records = 1;
        chunk.key = keys[i];
        chunk.chunk_idx = (uint32_t)i;
        st_tokens(c, i, chunk.tokens);
        st_fill(&keys[i], 0, STORE_KV, bytes, sizeof bytes);
        if (store_append(s, &chunk, &err) != 0)
            fail_msg("%s", err.msg);
        chunk.parent = keys[i];
    }
    store_release(s, hits, n_hits);
    assert_int_equal(store_commit(s, &err), 0);
}

/* Makes all chunks look as if they had been used by_s seconds earlier. */
static void age(struct store *s, uint32_t by_s)
{
    struct catalog *c = &s->catalog;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next) {
            n->place.used_time -= n->place.used_time > by_s ? by_s : 0;
            if (n->ttl_s > 0)
                expiry_set(&c->expiry, n, n->place.used_time + n->ttl_s);
        }
}

static uint64_t expire(struct store *s)
{
    uint64_t n = 0;
    assert_int_equal(store_evict_expired(s, &n, NULL), 0);
    assert_true(store_audit(s));
    return n;
}

static void chunks_expire(const char *kind)
{
    struct st_place p;
    struct store_stats st;
    struct st_ctx brief = context(1), lasting = context(2);
    if (!st_place_open(&p, kind, 1))
        return;
    struct store *s = st_open(&p);
    use(s, &brief, 1000);
    use(s, &lasting, 0);
    assert_int_equal(expire(s), 0);
    age(s, 600);
    use(s, &brief, 1000); /* a use restarts the time */
    age(s, 600);
    assert_int_equal(expire(s), 0);
    age(s, 600);
    assert_int_equal(expire(s), N);
    store_stats(s, &st);
    assert_int_equal(st.evictions[STORE_EVICT_EXPIRED], N);
    assert_int_equal(st.n_expiring, 0);
    assert_true(n_stored(s, &brief) == 0 && n_stored(s, &lasting) == N);
    st_close(s, &p);
}

TEST(chunks_expire_everywhere)
{
    chunks_expire("dram");
    chunks_expire("sim");
}

/* Two contexts share their first two chunks. A shared chunk has the longest time to live of its
 * users. A user without a time to live counts as the longest. */
TEST(shared_chunks_have_the_longest_time)
{
    static const struct {
        uint32_t first, second;
        int n_left;
    } cases[] = {
        {1000, 10000, 2}, {10000, 1000, 2}, {1000, 0, 2}, {0, 1000, 2}, {1000, 1000, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct st_place p;
        struct st_ctx a = {.base = 1, .own = 1, .branch = 2},
                      b = {.base = 1, .own = 2, .branch = 2};
        struct store *s = st_begin(&p, "sim", 1);
        use(s, &a, cases[i].first);
        use(s, &b, cases[i].second);
        const struct st_ctx *brief = cases[i].first == 1000 ? &a : &b;
        age(s, 5000);
        expire(s);
        assert_int_equal(n_stored(s, brief), cases[i].n_left);
        st_close(s, &p);
    }
}

/* A pinned, guaranteed or used chunk does not expire until this protection has ended. */
TEST(what_is_kept_does_not_expire)
{
    struct st_place p;
    struct sha256 keys[N];
    struct store_hit hit;
    struct st_ctx c = context(1);
    struct store *s = st_begin(&p, "sim", 1);
    use(s, &c, 1000);
    st_keys(&c, N, keys);
    age(s, 5000);
    /* this pin protects the chunks up to the middle; the two after them expire */
    assert_true(store_pin(s, &keys[1], &hit));
    assert_int_equal(expire(s), 2);
    store_release(s, &hit, 1);
    use(s, &c, 1000);
    assert_int_equal(store_guarantee(s, keys, N, clock_wall_s() + HOUR_S, NULL, NULL), 0);
    age(s, 5000);
    assert_int_equal(expire(s), 0);
    assert_int_equal(store_unpin_keys(s, keys, N, NULL), 0);
    age(s, 5000); /* makes the next check of these chunks due now */
    assert_int_equal(expire(s), N);
    st_close(s, &p);
}

/* The index has each chunk's time to live and last use. Chunks that have expired meanwhile are
 * removed when the store is opened. */
TEST(it_survives_a_restart)
{
    struct st_place p;
    struct store_stats st;
    struct st_ctx c = context(1), other = context(2), forever = context(3);
    struct store *s = st_begin(&p, "sim", 1);
    use(s, &c, HOUR_S);
    use(s, &other, 1);
    use(s, &forever, 5);
    use(s, &forever, 0);
    store_close(s);
    s = st_open(&p);
    store_stats(s, &st);
    /* a second may have passed, so some chunks may have expired */
    assert_true(st.n_expiring == N || st.n_expiring == 2 * N);
    age(s, 10);
    expire(s);
    store_stats(s, &st);
    assert_int_equal(st.n_expiring, N);
    assert_true(n_stored(s, &c) == N && n_stored(s, &other) == 0 &&
                n_stored(s, &forever) == N);
    age(s, 2 * HOUR_S);
    assert_int_equal(expire(s), N);
    st_close(s, &p);
}

/* If room is needed, expired chunks are evicted before all others. */
TEST(expired_chunks_go_first)
{
    struct st_place p;
    struct store_stats st;
    struct st_ctx old = context(1), brief = context(2), more = context(3);
    struct store *s = st_begin(&p, "sim", 1);
    use(s, &old, 0);
    store_stats(s, &st);
    uint64_t each = st.used_bytes;
    store_close(s);
    p.opts.cap_bytes = 2 * each;
    s = st_open(&p);
    use(s, &brief, 1000);
    age(s, 5000);
    use(s, &more, 0);
    store_stats(s, &st);
    /* has no time to live and stays, although it is the least recently used */
    assert_int_equal(n_stored(s, &old), N);
    assert_true(st.evictions[STORE_EVICT_EXPIRED] == N &&
                st.evictions[STORE_EVICT_CAP] == 0);
    st_close(s, &p);
}

/* Compares the heap with a scan while entries are added, moved and removed at random. */
TEST(the_heap_is_in_order)
{
    enum { NODES = 200, OPS = 20000 };
    static struct chunk_node node[NODES];
    uint32_t at_s[NODES] = {0};
    struct expiry x = {0};
    struct rng r = {7};
    for (int i = 0; i < OPS; i++) {
        uint64_t k = rng_below(&r, NODES);
        at_s[k] = rng_below(&r, 3) == 0 ? 0 : 1 + (uint32_t)rng_below(&r, 1000);
        if (at_s[k] == 0)
            expiry_clear(&x, &node[k]);
        else
            expiry_set(&x, &node[k], at_s[k]);
        uint32_t least = UINT32_MAX, n = 0;
        for (int j = 0; j < NODES; j++) {
            n += at_s[j] != 0;
            least = at_s[j] != 0 && at_s[j] < least ? at_s[j] : least;
        }
        assert_int_equal(x.n, n);
        if (n > 0)
            assert_int_equal(expiry_first(&x)->at_s, least);
    }
    expiry_deinit(&x);
}
