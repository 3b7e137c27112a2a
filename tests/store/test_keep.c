/* test_keep.c - what eviction must respect: lasting pins, quotas and partial chunks. Also the
 * counts of all of these. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 4 };

/* --- lasting pins ----------------------------------------------------------------------------- */

static int pin_count(void *arg, const struct store_pinned *p)
{
    int *n = arg;
    *n += p->is_stored ? 1 : 100;
    return 0;
}

/* The disk of the test that runs. */
static struct st_place place;

static void pins_last(const char *kind)
{
    struct sha256 keys[N];
    struct st_ctx kept = {.base = 1, .own = 1};
    int n_pins = 0;
    if (!st_place_open(&place, kind, 1))
        return;
    bool lasts = place.io != NULL;
    place.opts.cap_bytes = 3 * st_context_bytes(N);
    struct store *s = st_open(&place);
    st_keys(&kept, N, keys);
    int64_t until = clock_wall_s() + 3600;
    /* a pin may come before its context is stored */
    assert_int_equal(store_pin_until(s, keys, N, until, NULL), 0);
    assert_int_equal(store_each_pin(s, pin_count, &n_pins), 0);
    assert_int_equal(n_pins, 400);
    st_must_save(s, &kept, N);
    if (lasts) {
        store_close(s);
        s = st_open(&place);
    }
    n_pins = 0;
    store_each_pin(s, pin_count, &n_pins);
    assert_int_equal(n_pins, N);
    for (uint64_t i = 10; i < 20; i++)
        st_must_save(s, &(struct st_ctx){.base = i, .own = i}, N);
    assert_int_equal(st_n_found(s, &kept, N), N);
    /* The cap bounds everything. If all chunks are pinned, the oldest pinned chunks are evicted,
     * and counted. */
    struct store_stats st;
    store_stats(s, &st);
    assert_true(st.n_evicted_pinned == 0 && st.evictions[STORE_EVICT_CAP] > 0);
    for (uint64_t i = 30; i < 34; i++) {
        struct st_ctx c = {.base = i, .own = i};
        st_keys(&c, N, keys);
        assert_int_equal(store_pin_until(s, keys, N, until, NULL), 0);
        st_must_save(s, &c, N);
    }
    store_stats(s, &st);
    assert_true(st.n_evicted_pinned > 0 && st.used_bytes <= st.cap_bytes);
    assert_true(st_n_found(s, &kept, N) < N &&
                st_n_found(s, &(struct st_ctx){.base = 33, .own = 33}, N) == N);
    assert_true(store_audit(s));
    /* A caller ends this pin. */
    st_keys(&(struct st_ctx){.base = 33, .own = 33}, N, keys);
    assert_int_equal(store_unpin_keys(s, keys, N, NULL), 0);
    struct store_stats after;
    store_stats(s, &after);
    assert_int_equal(st.n_pins - after.n_pins, N);
    if (lasts) {
        store_close(s);
        s = st_open(&place);
        store_stats(s, &after);
        assert_int_equal(st.n_pins - after.n_pins, N);
    }
    st_close(s, &place);
}

TEST(pins_last_everywhere)
{
    pins_last("dram");
    pins_last("pread");
    pins_last("sim");
}

/* Chunks that store_sample has pinned stay until they are released. A save still finds room: it
 * evicts the last chunks of contexts. */
TEST(a_sample_leaves_room)
{
    enum { CONTEXTS = 8, SAMPLE = CONTEXTS * (N - 1) };
    struct store_hit hits[SAMPLE];
    struct sha256 model = st_fingerprint(0);
    struct st_ctx last = {.base = 20, .own = 20};
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = CONTEXTS * st_context_bytes(N);
    struct store *s = st_open(&place);
    for (uint64_t i = 1; i <= CONTEXTS; i++)
        st_must_save(s, &(struct st_ctx){.base = i, .own = i}, N);
    assert_int_equal(store_sample(s, &model, SAMPLE, hits), SAMPLE);
    st_must_save(s, &last, N);
    assert_int_equal(st_n_found(s, &last, N), N);
    store_release(s, hits, SAMPLE);
    st_close(s, &place);
}

TEST(pins_run_out)
{
    struct sha256 keys[N];
    struct st_ctx kept = {.base = 1, .own = 1};
    struct store_stats st;
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 3 * st_context_bytes(N);
    struct store *s = st_open(&place);
    st_must_save(s, &kept, N);
    st_keys(&kept, N, keys);
    assert_int_equal(store_pin_until(s, keys, N, clock_wall_s() - 1, NULL), 0);
    store_stats(s, &st);
    assert_int_equal(st.n_pins, 0);
    assert_int_equal(store_pin_until(s, keys, N, clock_wall_s() + 3600, NULL), 0);
    store_stats(s, &st);
    assert_int_equal(st.n_pins, N);
    int64_t until_wall_s = clock_wall_s() + 1;
    assert_int_equal(store_pin_until(s, keys, N, until_wall_s, NULL), 0);
    while (clock_wall_s() < until_wall_s)
        clock_sleep_ns((int64_t)10 * 1000 * 1000);
    for (uint64_t i = 10; i < 14; i++)
        st_must_save(s, &(struct st_ctx){.base = i, .own = i}, N);
    assert_true(st_n_found(s, &kept, N) < N);
    store_stats(s, &st);
    assert_true(st.n_pins == 0 && st.n_evicted_pinned == 0);
    store_close(s);
    s = st_open(&place);
    store_stats(s, &st);
    assert_int_equal(st.n_pins, 0);
    st_close(s, &place);
}

/* --- pins that have run out ------------------------------------------------------------------- */

/* Makes all lasting pins look as if their time had come. */
static void run_out(struct store *s)
{
    for (uint32_t i = 0; i < s->catalog.n_pins; i++)
        s->catalog.pins[i].until_wall_s = 1;
    s->next_expiry_wall_s = 1;
}

static void pin_all(struct store *s, const struct st_ctx *c)
{
    struct sha256 keys[N];
    struct err err = {0};
    st_keys(c, N, keys);
    if (store_pin_until(s, keys, N, clock_wall_s() + 3600, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Everything that asks for pins ends those that have run out first: no number counts them, and they
 * protect nothing. */
TEST(what_has_run_out_counts_no_more)
{
    enum { GUARANTEE, PIN, IDLE, LIST, CAP, QUOTA, EXPIRED, WAYS };
    const struct st_ctx a = {.base = 1, .own = 1, .salt = "q"},
                        b = {.base = 2, .own = 2, .salt = "q"},
                        c = {.base = 3, .own = 3, .salt = "q"};
    for (int way = 0; way < WAYS; way++) {
        struct st_place p;
        struct sha256 keys[N];
        uint64_t n_gone = 0;
        int n_pins = 0;
        assert_true(st_place_open(&p, "sim", 1));
        p.opts.cap_bytes = way == CAP ? 2 * st_context_bytes(N) : 64 << 20;
        p.opts.quota_bytes = way == QUOTA ? 2 * st_context_bytes(N) : 0;
        p.opts.guarantee_bytes = st_context_bytes(N);
        struct store *s = st_open(&p);
        st_must_save(s, &a, N);
        st_must_save(s, &b, N);
        st_keys(&a, N, keys);
        if (way == GUARANTEE)
            assert_int_equal(store_guarantee(s, keys, N, clock_wall_s() + 3600, NULL, NULL),
                             0);
        else
            pin_all(s, &a);
        if (way == PIN)
            s->space.index_cap_bytes = N * 1024; /* no more pins than these */
        if (way == EXPIRED)
            for (int i = 0; i < N; i++) {
                struct chunk_node *n = catalog_find(&s->catalog, &keys[i]);
                n->place.used_time -= 1000;
                catalog_set_ttl(&s->catalog, n, 10);
            }
        run_out(s);
        st_keys(&b, N, keys);
        if (way == GUARANTEE) /* for as many bytes as the owner may guarantee */
            assert_int_equal(store_guarantee(s, keys, N, clock_wall_s() + 3600, NULL, NULL),
                             0);
        else if (way == PIN)
            pin_all(s, &b);
        else if (way == IDLE)
            assert_int_equal(store_evict_idle(s, clock_wall_s() + 1000, &n_gone, NULL), 0);
        else if (way == LIST)
            assert_int_equal(store_each_pin(s, pin_count, &n_pins), 0);
        else if (way == EXPIRED)
            assert_int_equal(store_evict_expired(s, &n_gone, NULL), 0);
        else
            st_must_save(s, &c, 1);
        assert_int_equal(st_stats(s).n_pins, way == GUARANTEE ? 1 : way == PIN ? N : 0);
        assert_int_equal(n_gone, way == IDLE ? 2 * N : way == EXPIRED ? N : 0);
        assert_int_equal(n_pins, 0);
        /* the least recently used chunk goes, which was pinned before */
        bool is_short = way == CAP || way == QUOTA, is_gone = way == IDLE || way == EXPIRED;
        assert_int_equal(st_n_found(s, &a, N), is_short ? N - 1 : is_gone ? 0 : N);
        assert_int_equal(st_n_found(s, &b, N), way == IDLE ? 0 : N);
        assert_int_equal(st_stats(s).n_evicted_pinned, 0);
        st_close(s, &p);
    }
}

/* An acknowledged pin survives any crash. */
TEST(pins_survive_power)
{
    for (uint64_t at = 1;; at++) {
        struct err err = {0};
        struct sha256 keys[N];
        struct st_ctx kept = {.base = 1, .own = 1};
        struct store_stats st;
        struct store *s = st_begin(&place, "sim", 1);
        st_must_save(s, &kept, N);
        st_keys(&kept, N, keys);
        io_sim_crash_at(place.io, IO_SIM_AT_OP, at);
        int rc = store_pin_until(s, keys, N, clock_wall_s() + 3600, &err);
        bool crashed = st_power_fails(&place, &s);
        store_stats(s, &st);
        assert_true(st.n_pins == N || (rc != 0 && st.n_pins == 0));
        assert_int_equal(st_n_found(s, &kept, N), N);
        st_close(s, &place);
        if (!crashed)
            return;
    }
}

/* --- quotas ----------------------------------------------------------------------------------- */

struct uses {
    uint64_t owner, used_bytes, n_chunks;
};

static int use_take(void *arg, const struct store_owner_use *u)
{
    struct uses *want = arg;
    if (u->owner == want->owner) {
        want->used_bytes = u->used_bytes;
        want->n_chunks = u->n_chunks;
        assert_true(u->quota_bytes == 0 || u->used_bytes <= u->quota_bytes);
    }
    return 0;
}

static struct uses use_of(struct store *s, const char *salt)
{
    struct uses u = {.owner = store_owner(salt)};
    store_each_owner(s, use_take, &u);
    return u;
}

static void quotas_bound(const char *kind)
{
    struct err err = {0};
    struct store_stats st;
    uint64_t each = st_context_bytes(N);
    if (!st_place_open(&place, kind, 1))
        return;
    place.opts.quota_bytes = 2 * each;
    struct store *s = st_open(&place);
    struct st_ctx quiet = {.base = 1, .own = 1, .salt = "quiet"};
    st_must_save(s, &quiet, N);
    store_set_quota(s, store_owner("vip"), 5 * each);
    for (uint64_t i = 10; i < 20; i++) {
        st_must_save(s, &(struct st_ctx){.base = i, .own = i, .salt = "noisy"}, N);
        st_must_save(s, &(struct st_ctx){.base = i, .own = i, .salt = "vip"}, N);
        /* an owner without a salt */
        st_must_save(s, &(struct st_ctx){.base = i, .own = i}, N);
    }
    assert_true(use_of(s, "noisy").used_bytes == 2 * each);
    assert_true(use_of(s, "vip").used_bytes == 5 * each);
    assert_true(use_of(s, NULL).used_bytes == 2 * each);
    /* one owner's saves never evict another owner's chunks */
    assert_int_equal(st_n_found(s, &quiet, N), N);
    assert_int_equal(
        st_n_found(s, &(struct st_ctx){.base = 19, .own = 19, .salt = "noisy"}, N), N);
    store_stats(s, &st);
    assert_true(st.evictions[STORE_EVICT_QUOTA] > 0 && st.evictions[STORE_EVICT_CAP] == 0);
    assert_true(store_audit(s));
    /* after a restart owners are known: they are stored with their chunks */
    if (place.io != NULL) {
        store_close(s);
        s = st_open(&place);
        store_set_quota(s, store_owner("vip"), 5 * each);
        assert_true(use_of(s, "vip").used_bytes == 5 * each);
        store_close(s);
        char path[600];
        snprintf(path, sizeof path, "%s/index.db", place.dirs[0]);
        assert_int_equal(io_unlink(place.io, path, NULL), 0);
        /* chunks that a rebuild finds must not be evicted before all are counted */
        place.opts.quota_bytes = 0;
        s = st_open(&place);
        assert_true(use_of(s, "quiet").used_bytes == each);
        assert_true(use_of(s, "vip").used_bytes >= 5 * each);
    }
    /* A chunk that cannot fit into its owner's quota is refused, and nothing is evicted for it. */
    store_set_quota(s, store_owner("tiny"), 4096);
    struct st_ctx tiny = {.base = 50, .own = 50, .salt = "tiny"};
    assert_int_equal(st_append(s, &st_small, &tiny, 0, ST_BOTH, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "quota"));
    st_close(s, &place);
}

TEST(quotas_bound_everywhere)
{
    quotas_bound("dram");
    quotas_bound("sim");
}

/* --- partial chunks --------------------------------------------------------------------------- */

static int append_part(struct store *s, const struct st_ctx *c, int chunk, int n_tokens,
                       bool yields, const struct sha256 *supersedes, struct sha256 *key)
{
    struct sha256 keys[N];
    struct err err = {0};
    uint8_t bytes[700];
    struct store_record record = {
        .kind = STORE_KV, .bytes = bytes, .n_bytes = sizeof bytes};
    struct store_chunk sc = {.fingerprint = st_fingerprint(c->model),
                             .chunk_idx = (uint32_t)chunk,
                             .n_tokens = n_tokens,
                             .records = &record,
                             .n_records = 1,
                             .yields = yields,
                             .supersedes = supersedes};
    st_keys(c, N, keys);
    sc.parent = keys[chunk - 1];
    st_tokens(c, chunk, sc.tokens);
    *key = sc.key = store_partial_key(&sc.parent, sc.tokens, n_tokens);
    st_fill(key, 0, STORE_KV, bytes, sizeof bytes);
    return store_append(s, &sc, &err);
}

static int append_partial(struct store *s, const struct st_ctx *c, int chunk, int n_tokens,
                          const struct sha256 *supersedes, struct sha256 *key)
{
    return append_part(s, c, chunk, n_tokens, n_tokens < STORE_CHUNK_TOKENS, supersedes,
                       key);
}

enum reopen { GOES_ON, REOPENED, REBUILT };

static struct store *opened_again(struct st_place *p, struct store *s, enum reopen how)
{
    char path[600];
    if (p->io == NULL || how == GOES_ON)
        return s;
    store_close(s);
    snprintf(path, sizeof path, "%s/index.db", p->dirs[0]);
    if (how == REBUILT)
        assert_int_equal(io_unlink(p->io, path, NULL), 0);
    return st_open(p);
}

static void partial_chunks(const char *kind, enum reopen how)
{
    struct st_ctx c = {.base = 1, .own = 1};
    struct sha256 keys[N], tail[2], found;
    struct store_hit hits[3];
    struct store_stats st;
    int32_t tokens[STORE_CHUNK_TOKENS];
    int n_tokens;
    if (!st_place_open(&place, kind, 1))
        return;
    struct store *s = st_open(&place);
    st_keys(&c, N, keys);
    st_tokens(&c, 2, tokens);
    assert_false(store_find_partial(s, &keys[1], tokens, 63, &found, &n_tokens));
    assert_int_equal(st_save(s, &st_small, &c, 2, ST_BOTH, NULL), 0);
    assert_int_equal(append_partial(s, &c, 2, 17, NULL, &tail[0]), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_true(store_find_partial(s, &keys[1], tokens, 63, &found, &n_tokens));
    assert_int_equal(n_tokens, 17);
    assert_memory_equal(found.b, tail[0].b, sizeof found.b);
    assert_false(store_find_partial(s, &keys[1], tokens, 16, &found, &n_tokens));
    tokens[3] ^= 1; /* other tokens give another key */
    assert_false(store_find_partial(s, &keys[1], tokens, 63, &found, &n_tokens));
    tokens[3] ^= 1;
    /* A longer partial chunk supersedes it, and the full chunk supersedes that one, across
     * restarts. */
    assert_int_equal(append_partial(s, &c, 2, 40, &tail[0], &tail[1]), 0);
    assert_true(store_find_partial(s, &keys[1], tokens, 39, &found, &n_tokens));
    assert_int_equal(store_commit(s, NULL), 0);
    assert_true(store_find_partial(s, &keys[1], tokens, 63, &found, &n_tokens));
    assert_int_equal(n_tokens, 40);
    assert_false(store_find_partial(s, &keys[1], tokens, 39, &found, &n_tokens));
    assert_int_equal(store_commit(s, NULL), 0);
    s = opened_again(&place, s, how);
    struct sha256 chain[3] = {keys[0], keys[1], tail[1]};
    assert_int_equal(store_lookup(s, NULL, chain, 3, hits, NULL, 0), 3);
    assert_int_equal(hits[1].n_tokens, 64);
    assert_int_equal(hits[2].n_tokens, 40);
    store_release(s, hits, 3);
    store_stats(s, &st);
    assert_true(st.n_partial >= 1);
    int rc = append_partial(s, &c, 2, 64, &tail[1], &found);
    assert_int_equal(rc, 0);
    /* a partial chunk of 64 tokens has the key of the full chunk */
    assert_memory_equal(found.b, keys[2].b, sizeof found.b);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_false(store_find_partial(s, &keys[1], tokens, 63, &found, &n_tokens) &&
                 n_tokens == 40);
    store_stats(s, &st);
    assert_true(st.evictions[STORE_EVICT_SUPERSEDED] >= 1);
    st_close(s, &place);
}

TEST(partial_chunks_everywhere)
{
    partial_chunks("dram", GOES_ON);
    for (enum reopen how = GOES_ON; how <= REBUILT; how++) {
        partial_chunks("pread", how);
        partial_chunks("sim", how);
    }
}

static int find_tail(struct store *s, const struct st_ctx *c)
{
    struct sha256 keys[N], found;
    int32_t tokens[STORE_CHUNK_TOKENS];
    int n_tokens = 0;
    st_keys(c, N, keys);
    st_tokens(c, 2, tokens);
    return store_find_partial(s, &keys[1], tokens, 63, &found, &n_tokens) ? n_tokens : 0;
}

/* A partial chunk is stored twice, by two requests. It is superseded only if both requests let it
 * yield; otherwise other contexts may continue it, and it stays. The order of the two does not
 * matter, nor does a restart. */
TEST(a_partial_chunk_that_others_may_continue_stays)
{
    struct st_ctx c = {.base = 1, .own = 1};
    for (enum reopen how = GOES_ON; how <= REBUILT; how++) {
        /* Bit 0 of `who`: the first request lets its chunk yield. Bit 1: the second request does.
         * */
        for (int who = 0; who < 4; who++) {
            struct sha256 tail, unused;
            struct store *s = st_begin(&place, "sim", 1);
            assert_int_equal(st_save(s, &st_small, &c, 2, ST_BOTH, NULL), 0);
            assert_int_equal(append_part(s, &c, 2, 17, (who & 1) != 0, NULL, &tail), 0);
            assert_int_equal(store_commit(s, NULL), 0);
            s = opened_again(&place, s, how);
            assert_int_equal(append_part(s, &c, 2, 17, (who & 2) != 0, NULL, &tail), 0);
            assert_int_equal(store_commit(s, NULL), 0);
            assert_int_equal(find_tail(s, &c), 17);
            assert_int_equal(append_partial(s, &c, 2, 64, &tail, &unused), 0);
            assert_int_equal(store_commit(s, NULL), 0);
            assert_int_equal(find_tail(s, &c), who == 3 ? 0 : 17);
            st_close(s, &place);
        }
    }
}

/* Several partial chunks are superseded in one commit, each by its own chunk. A held partial chunk
 * can be read until it is released. Naming a chunk that is not partial supersedes nothing. */
TEST(superseded_together)
{
    enum { TAILS = 4 };
    struct sha256 keys[TAILS][N], tail[TAILS], longer[TAILS], never = {{1}}, unused;
    struct store_hit held, hit;
    struct store *s = st_begin(&place, "sim", 2);
    struct st_ctx c[TAILS];
    for (uint64_t i = 0; i < TAILS; i++) {
        c[i] = (struct st_ctx){.base = 50 + i, .own = i};
        st_keys(&c[i], N, keys[i]);
        assert_int_equal(st_save(s, &st_small, &c[i], 2, ST_BOTH, NULL), 0);
        assert_int_equal(append_partial(s, &c[i], 2, 17, NULL, &tail[i]), 0);
        assert_false(store_pin(s, &tail[i], &hit)); /* not committed, so it is not found */
    }
    assert_false(store_pin(s, &never, &hit));
    assert_int_equal(store_commit(s, NULL), 0);
    assert_true(store_pin(s, &tail[3], &held));
    for (int i = 0; i < TAILS; i++)
        assert_int_equal(append_partial(s, &c[i], 2, 40, &tail[i], &longer[i]), 0);
    assert_int_equal(append_partial(s, &c[0], 2, 41, &never, &unused), 0);
    assert_int_equal(append_partial(s, &c[0], 2, 42, &keys[0][1], &unused), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    for (int i = 0; i < TAILS; i++) {
        assert_false(store_pin(s, &tail[i], &hit));
        assert_true(store_pin(s, &longer[i], &hit));
        store_release(s, &hit, 1);
        assert_true(store_pin(s, &keys[i][1], &hit)); /* full chunks stay */
        store_release(s, &hit, 1);
    }
    assert_true(store_audit(s));
    store_release(s, &held, 1);
    /* The superseding chunk is stored already, so the partial chunk is removed at once. */
    assert_int_equal(append_partial(s, &c[0], 2, 41, &longer[0], &unused), 0);
    assert_false(store_pin(s, &longer[0], &hit));
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_true(store_audit(s));
    store_close(s);
    s = st_open(&place); /* the partial chunk stays removed after a restart */
    for (int i = 0; i < TAILS; i++)
        assert_false(store_pin(s, &tail[i], &hit));
    assert_true(store_pin(s, &longer[1], &hit));
    store_release(s, &hit, 1);
    st_close(s, &place);
}

static int count_owner(void *arg, const struct store_owner_use *u)
{
    (void)u;
    return ++*(int *)arg == 2 ? 7 : 0;
}

/* A quota below one chunk refuses the chunk and evicts nothing. The list of owners ends when the
 * caller's array is full. */
TEST(quota_under_one_chunk)
{
    struct err err = {0};
    struct store_stats before, after;
    int n = 0;
    struct store *s = st_begin(&place, "sim", 1);
    struct st_ctx mine = {.base = 1, .own = 1, .salt = "mine"},
                  more = {.base = 2, .own = 2, .salt = "mine"};
    st_must_save(s, &mine, N);
    store_stats(s, &before);
    store_set_quota(s, store_owner("mine"), 4096);
    assert_int_equal(st_append(s, &st_small, &more, 0, ST_BOTH, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "owner's quota of 4096"));
    store_stats(s, &after);
    assert_int_equal(after.n_chunks, before.n_chunks);
    assert_int_equal(st_n_found(s, &mine, N), N);
    store_set_quota(s, store_owner("mine"), 0);
    assert_int_equal(st_append(s, &st_small, &more, 0, ST_BOTH, &err), 0);

    /* an owner with neither chunks nor a quota */
    store_set_quota(s, store_owner("nobody yet"), 0);
    assert_int_equal(store_each_owner(s, count_owner, &n), 0);
    assert_int_equal(n, 1);
    store_set_quota(s, store_owner("somebody"), 1 << 20);
    store_set_quota(s, store_owner("somebody else"), 1 << 20);
    n = 0;
    assert_int_equal(store_each_owner(s, count_owner, &n), 7);
    assert_int_equal(n, 2);
    st_close(s, &place);
}

/* --- room ------------------------------------------------------------------------------------- */

/* A chunk that needs room evicts a 64th of the cap beyond it, if this is at least four times its
 * size. */
TEST(the_low_watermark)
{
    static const struct st_shape one = {.n_layers = 1, .n_bytes = {100, 100}};
    static const uint64_t fits[] = {255, 256, 257, 320}, n_gone[] = {1, 5, 6, 6};
    for (int i = 0; i < 4; i++) {
        assert_true(st_place_open(&place, "dram", 1));
        place.opts.cap_bytes = fits[i] * 8192;
        struct store *s = st_open(&place);
        for (uint64_t k = 0; k < fits[i]; k++) {
            struct st_ctx c = {.base = 1000 + k, .own = k};
            assert_int_equal(st_save(s, &one, &c, 1, ST_KV, NULL), 0);
        }
        assert_int_equal(st_stats(s).n_evicted, 0);
        assert_int_equal(st_stats(s).used_bytes, st_stats(s).cap_bytes);
        struct st_ctx more = {.base = 1, .own = 1};
        assert_int_equal(st_save(s, &one, &more, 1, ST_KV, NULL), 0);
        assert_int_equal(st_stats(s).evictions[STORE_EVICT_CAP], n_gone[i]);
        assert_int_equal(st_stats(s).used_bytes, (fits[i] + 1 - n_gone[i]) * 8192);
        st_close(s, &place);
    }
}

/* A chunk that finds no room is refused with the numbers. */
TEST(what_a_full_store_says)
{
    enum { IN_USE, GUARANTEED, WAITING, WAYS };
    const struct st_ctx a = {.base = 1, .own = 1, .salt = "q"},
                        b = {.base = 2, .own = 2, .salt = "q"};
    unsigned long long one = st_context_bytes(1), all = 4 * one;
    for (int of_owner = 0; of_owner < 2; of_owner++)
        for (int way = 0; way < WAYS; way++) {
            struct err err = {0};
            struct sha256 keys[N];
            struct store_hit hit;
            char want[300], in_use[100];
            assert_true(st_place_open(&place, "dram", 1));
            place.opts.policy = PLACEMENT_OURS;
            place.opts.cap_bytes = of_owner ? 64 << 20 : all;
            place.opts.quota_bytes = of_owner ? all : 0;
            struct store *s = st_open(&place);
            st_keys(&a, 4, keys);
            st_must_save(s, &a, way == GUARANTEED ? 3 : 4);
            if (way == GUARANTEED) {
                assert_int_equal(store_guarantee(s, keys, 3, INT64_MAX / 4, NULL, &err), 0);
                st_must_save(s, &a, 4);
            }
            if (way == WAITING)
                assert_int_equal(store_expect_use(s, keys, 4, 1), 4);
            else
                assert_true(store_pin(s, &keys[3], &hit));
            st_may_be_refused = way == WAITING;
            int rc = st_append(s, &st_small, &b, 0, ST_BOTH, &err);
            st_may_be_refused = false;
            assert_int_equal(rc, way == WAITING ? ERR_BUSY : ERR_LIMIT);
            snprintf(in_use, sizeof in_use, "%llu are in use (%llu guaranteed) and %s", all,
                     way == GUARANTEED ? 3 * one : 0,
                     of_owner ? "none of them can be evicted" : "nothing can be evicted");
            snprintf(want, sizeof want, "%llu bytes do not fit %s of %llu: %s", one,
                     of_owner ? "into the owner's quota" : "under the store's cap", all,
                     way == WAITING ? "waiting requests need the other chunks sooner"
                                    : in_use);
            assert_string_equal(err.msg, want);
            assert_int_equal(st_stats(s).n_evicted, 0);
            if (way == WAITING)
                store_expect_use_no_more(s, keys, 4, 1);
            else
                store_release(s, &hit, 1);
            assert_int_equal(st_append(s, &st_small, &b, 0, ST_BOTH, &err), 0);
            assert_int_equal(st_stats(s).n_evicted, 1);
            st_close(s, &place);
        }
}

/* The cap is the high watermark and the low one is a 64th below it: one append in several makes
 * room for those that follow.  The space in use never exceeds the cap. */
TEST(watermarks)
{
    enum { FITS = 300 }; /* chunks of one small record on one device: two blocks each */
    static const struct st_shape one = {.n_layers = 1, .n_bytes = {100, 100}};
    struct store_stats st;
    uint64_t n_evicted = 0, most = 0, n_rounds = 0;
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = FITS * 8192;
    struct store *s = st_open(&place);
    for (uint64_t i = 0; i < FITS + 40; i++) {
        struct st_ctx c = {.base = 1000 + i, .own = i};
        assert_int_equal(st_save(s, &one, &c, 1, ST_KV, NULL), 0);
        store_stats(s, &st);
        assert_true(st.used_bytes <= st.cap_bytes);
        uint64_t now = st.evictions[STORE_EVICT_CAP] - n_evicted;
        n_evicted += now;
        n_rounds += now > 0;
        most = now > most ? now : most;
        if (i < FITS)
            assert_int_equal(n_evicted, 0); /* not before the store is full */
    }
    assert_true(most >= FITS / 64 && most <= FITS / 64 + 2);
    assert_true(n_evicted >= 40 && n_rounds <= 40 / (FITS / 64) + 1);
    st_close(s, &place);
}

/* A chunk whose parent is gone cannot be found, so gc removes it. Shared chunks stay. */
TEST(orphans_are_swept)
{
    struct store_stats st;
    struct sha256 keys[N];
    struct store_hit hit;
    uint64_t freed;
    struct st_ctx c = {.base = 1, .own = 1, .branch = 1},
                  sibling = {.base = 1, .own = 2, .branch = 1};
    struct store *s = st_begin(&place, "sim", 2);
    st_must_save(s, &c, N);
    st_must_save(s, &sibling, N);
    st_keys(&c, N, keys);
    assert_true(store_pin(s, &keys[1], &hit));
    store_condemn(s, &hit, "for the test");
    store_release(s, &hit, 1);
    assert_int_equal(st_n_found(s, &c, N), 1);
    assert_int_equal(store_gc(s, &freed, NULL), 0);
    store_stats(s, &st);
    assert_int_equal(st.evictions[STORE_EVICT_ORPHAN], N - 2);
    /* the shared chunk and the other context's own chunks */
    assert_int_equal(st.n_chunks, N);
    assert_true(store_audit(s));
    assert_int_equal(st_n_found(s, &c, N), 1);
    assert_int_equal(st_n_found(s, &sibling, N), N);
    store_close(s);
    s = st_open(&place);
    assert_int_equal(st_n_found(s, &sibling, N), N);
    st_must_save(s, &c, N);
    assert_int_equal(st_n_found(s, &c, N), N);
    st_close(s, &place);
}

/* --- counting --------------------------------------------------------------------------------- */

/* Stores in `why` the reason for which a lookup of the context stops before its end. */
static void why_of(struct store *s, const struct st_ctx *a, char why[128])
{
    struct sha256 keys[N];
    struct store_hit hits[N];
    st_keys(a, N, keys);
    int n = store_lookup(s, NULL, keys, N, hits, why, 128);
    store_release(s, hits, n);
}

static void condemned(struct store *s, const struct st_ctx *a, const char *reason)
{
    struct sha256 keys[N];
    struct store_hit hit;
    st_keys(a, N, keys);
    assert_true(store_pin(s, &keys[N - 1], &hit));
    store_condemn(s, &hit, reason);
    store_release(s, &hit, 1);
}

/* A miss gives the latest reason. Damage or an eviction that has been repaired since is not
 * mentioned. */
TEST(reasons_are_the_newest)
{
    struct store_erased e;
    struct sha256 keys[N];
    struct st_ctx a = {.base = 1, .own = 1};
    char why[128];
    struct store *s = st_begin(&place, "sim", 1);
    st_must_save(s, &a, N);
    condemned(s, &a, "first");
    why_of(s, &a, why);
    assert_string_equal(why, "damaged (first)");
    st_must_save(s, &a, N); /* saving again repairs the damage */
    why_of(s, &a, why);
    assert_string_equal(why, "complete");
    condemned(s, &a, "second");
    why_of(s, &a, why);
    assert_string_equal(why, "damaged (second)");
    st_must_save(s, &a, N);
    st_keys(&a, N, keys);
    assert_int_equal(store_erase(s, keys, N, &e, NULL), 0);
    why_of(s, &a, why);
    assert_string_equal(why, "not stored"); /* the chunk was undamaged when it was erased */
    st_must_save(s, &a, N);
    store_close(s);
    place.opts.cap_bytes = 3 * st_context_bytes(N);
    s = st_open(&place);
    for (uint64_t i = 10; i < 15; i++)
        st_must_save(s, &(struct st_ctx){.base = i, .own = i}, N);
    why_of(s, &a, why);
    assert_string_equal(why, "evicted");
    st_must_save(s, &a, N);
    assert_int_equal(store_erase(s, keys, N, &e, NULL), 0);
    why_of(s, &a, why);
    assert_string_equal(why, "not stored");
    st_close(s, &place);
}

/* A lookup tells an evicted chunk from one that was never stored, whatever has evicted it. Chunks
 * that gc has freed count as not stored. */
TEST(every_eviction_is_remembered)
{
    static const enum store_evict ways[] = {STORE_EVICT_CAP, STORE_EVICT_QUOTA,
                                            STORE_EVICT_IDLE, STORE_EVICT_EXPIRED,
                                            STORE_EVICT_ORPHAN};
    const struct st_ctx a = {.base = 1, .own = 1, .salt = "q"},
                        b = {.base = 2, .own = 2, .salt = "q"};
    for (int i = 0; i < 5; i++) {
        struct st_place p;
        struct sha256 keys[N];
        struct store_hit hit;
        uint64_t n_gone = 0;
        char why[128];
        assert_true(st_place_open(&p, "sim", 1));
        p.opts.cap_bytes = ways[i] == STORE_EVICT_CAP ? st_context_bytes(N) : 0;
        p.opts.quota_bytes = ways[i] == STORE_EVICT_QUOTA ? st_context_bytes(N) : 0;
        struct store *s = st_open(&p);
        st_must_save(s, &a, N);
        st_keys(&a, N, keys);
        struct chunk_node *n = catalog_find(&s->catalog, &keys[N - 1]);
        if (ways[i] == STORE_EVICT_EXPIRED) {
            n->place.used_time -= 1000;
            catalog_set_ttl(&s->catalog, n, 10);
            assert_int_equal(store_evict_expired(s, &n_gone, NULL), 0);
        } else if (ways[i] == STORE_EVICT_IDLE) {
            n->place.used_time -= 1000;
            assert_int_equal(store_evict_idle(s, clock_wall_s() - 500, &n_gone, NULL), 0);
        } else if (ways[i] == STORE_EVICT_ORPHAN) {
            assert_true(store_pin(s, &keys[N - 2], &hit));
            store_condemn(s, &hit, "a test says so");
            store_release(s, &hit, 1);
            assert_int_equal(store_gc(s, &n_gone, NULL), 0);
            assert_int_equal(st_append(s, &st_small, &a, N - 2, ST_BOTH, NULL), 0);
            assert_int_equal(store_commit(s, NULL), 0);
        } else {
            st_must_save(s, &b, 1);
        }
        assert_int_equal(st_stats(s).evictions[ways[i]], 1);
        why_of(s, &a, why);
        assert_string_equal(why, ways[i] == STORE_EVICT_ORPHAN ? "not stored" : "evicted");
        assert_int_equal(st_n_found(s, &a, N), N - 1);
        st_close(s, &p);
    }
}

TEST(misses_have_reasons)
{
    struct sha256 keys[N];
    struct store_hit hit;
    struct store_stats st;
    char why[128];
    assert_true(st_place_open(&place, "sim", 1));
    place.opts.cap_bytes = 3 * st_context_bytes(N);
    struct store *s = st_open(&place);
    struct st_ctx a = {.base = 1, .own = 1}, pending = {.base = 2, .own = 2};
    st_must_save(s, &a, N);
    assert_int_equal(st_n_found(s, &(struct st_ctx){.base = 9, .own = 9}, N), 0);
    assert_int_equal(st_append(s, &st_small, &pending, 0, ST_BOTH, NULL), 0);
    assert_int_equal(st_n_found(s, &pending, N), 0);
    st_keys(&a, N, keys);
    assert_true(store_pin(s, &keys[3], &hit));
    store_condemn(s, &hit, "for the test");
    store_release(s, &hit, 1);
    assert_int_equal(st_n_found(s, &a, N), 3);
    for (uint64_t i = 10; i < 15; i++)
        st_must_save(s, &(struct st_ctx){.base = i, .own = i}, N);
    assert_int_equal(store_lookup(s, NULL, keys, 3, &hit, why, sizeof why), 0);
    assert_string_equal(why, "evicted");
    struct sha256 other = st_fingerprint(77);
    store_expect(s, &other);
    assert_int_equal(st_n_found(s, &(struct st_ctx){.base = 8, .own = 8, .model = 77}, N),
                     0);
    store_stats(s, &st);
    assert_int_equal(st.misses[STORE_MISS_ABSENT], N);
    assert_int_equal(st.misses[STORE_MISS_UNCOMMITTED], N);
    assert_int_equal(st.misses[STORE_MISS_DAMAGED], 1);
    assert_int_equal(st.misses[STORE_MISS_EVICTED], 3);
    assert_int_equal(st.misses[STORE_MISS_OTHER_STATE], N);
    uint64_t sum = 0;
    for (int i = 0; i < STORE_MISSES; i++)
        sum += st.misses[i];
    assert_true(sum == st.n_misses);
    assert_true(st.n_corrupt == 1 && st.evictions[STORE_EVICT_DAMAGED] == 1);
    assert_string_equal(st.tier, "disk");
    assert_true(st.device_bytes[0] == st.used_bytes);
    st_close(s, &place);
}

TEST(failures_are_counted)
{
    struct err err = {0};
    struct store_stats st;
    struct st_result r;
    struct st_ctx c = {.base = 1, .own = 1};
    struct store *s = st_begin(&place, "sim", 1);
    st_must_save(s, &c, N);
    struct io_sim_fault flip = {.kind = IO_SIM_READ_FLIP, .path = "seg-", .count = 1};
    io_sim_fault_add(place.io, &flip);
    for (int i = 0; i < 20 && st_read(s, &st_small, &c, N, &r, &err) == 0; i++) {
        store_stats(s, &st);
        if (st.n_checksum_failures > 0)
            break;
        io_sim_fault_add(place.io,
                         &flip); /* the flip hit padding, so no record is damaged */
    }
    assert_int_equal(st.n_checksum_failures, 1);
    struct io_sim_fault bad = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg-", .count = 1};
    io_sim_fault_clear(place.io);
    c.own = c.base = 2;
    st_must_save(s, &c, N);
    io_sim_fault_add(place.io, &bad);
    assert_int_equal(st_read(s, &st_small, &c, N, &r, &err), 0);
    store_stats(s, &st);
    assert_int_equal(st.n_read_failures, 1);
    st_close(s, &place);
}
