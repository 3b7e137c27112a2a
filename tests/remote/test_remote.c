/* test_remote.c - two servers whose stores share chunks through a Redis: which chunks are written,
 * fetched and refused, and the counters. The Redis is sim/fake_redis.h. Each server has a
 * store in memory. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "tests/base/niceness.h"
#include "tests/remote/remotetest.h"

#define SECOND ((int64_t)1000000000)

/* A Redis, and one or two servers that use it. */
struct servers {
    struct fake_redis *f;
    struct rt_server a, b;
};

static int set_up_one(void **state)
{
    struct servers *x = *state = xcalloc(1, sizeof *x);
    x->f = fake_redis_start();
    rt_open(&x->a, x->f);
    return 0;
}

static int set_up_two(void **state)
{
    int rc = set_up_one(state);
    struct servers *x = *state;
    rt_open(&x->b, x->f);
    return rc;
}

static int tear_down(void **state)
{
    struct servers *x = *state;
    rt_close(&x->a);
    if (x->b.store != NULL)
        rt_close(&x->b);
    fake_redis_stop(x->f);
    free(x);
    return 0;
}

/* --- writing and fetching --------------------------------------------------------------------- */

/* A chunk lives for its own time, but at most for the remote's. Offering a chunk that the remote
 * has, or that the store lacks, writes nothing. */
TEST_WITH(offers_are_written_once, set_up_one, tear_down)
{
    struct servers *x = *state;
    static const uint32_t ttl_s[] = {0, 50, RT_TTL_S, RT_TTL_S + 1};
    static const int64_t lives_s[] = {RT_TTL_S, 50, RT_TTL_S, RT_TTL_S};
    assert_true(remote_wants(x->a.remote, REMOTE_WHEN_COMMITTED));
    assert_false(remote_wants(x->a.remote, REMOTE_WHEN_USED));
    assert_false(remote_wants(NULL, REMOTE_WHEN_COMMITTED));
    st_must_save(x->a.store, &rt_context, RT_CHUNKS);
    uint64_t n_bytes = 0;
    for (int i = 0; i < RT_CHUNKS; i++) {
        int64_t lives;
        remote_offer(x->a.remote, &rt_keys[i], ttl_s[i]);
        WAIT_FOR(rt_stats(&x->a).n_written == (uint64_t)i + 1);
        n_bytes += fake_redis_value(x->f, rt_names[i], &lives);
        /* the time to live is set when the write is confirmed */
        WAIT_FOR(fake_redis_value(x->f, rt_names[i], &lives) > 0 && lives == lives_s[i]);
        assert_int_equal(rt_stats(&x->a).written_bytes, n_bytes);
    }
    assert_int_equal(fake_redis_count(x->f, "SET"), RT_CHUNKS);
    rt_offer(&x->a, RT_CHUNKS, 0);
    WAIT_FOR(rt_stats(&x->a).n_known == RT_CHUNKS);
    assert_int_equal(fake_redis_count(x->f, "SET"), RT_CHUNKS);
    struct st_ctx other = {.base = 77, .own = 78};
    struct sha256 missing;
    st_keys(&other, 1, &missing);
    remote_offer(x->a.remote, &missing, 0);
    WAIT_FOR(rt_stats(&x->a).n_gone == 1);
    remote_offer(NULL, &missing, 0);
    WAIT_FOR(rt_stats(&x->a).n_queued == 0);
    struct remote_stats st = rt_stats(&x->a);
    assert_int_equal(st.n_written, RT_CHUNKS);
    assert_int_equal(st.n_dropped + st.n_refused + st.n_failures, 0);
    assert_ptr_equal(strstr(st.url, fake_redis_url(x->f)), st.url);
    assert_true(st.is_up);
    assert_string_equal(st.why_down, "");
}

/* A chain is fetched up to its first missing chunk, in two round trips. Its chunks are then in the
 * store. */
TEST_WITH(a_chain_is_fetched_up_to_a_gap, set_up_two, tear_down)
{
    struct servers *x = *state;
    rt_write(&x->a, x->f, RT_CHUNKS - 1);
    struct remote_fetched out = rt_fetch(&x->b, RT_CHUNKS);
    uint64_t n_bytes = 0;
    int64_t lives;
    for (int i = 0; i < RT_CHUNKS - 1; i++) {
        n_bytes += fake_redis_value(x->f, rt_names[i], &lives);
        /* the request's time to live, which is shorter than the chunk's */
        WAIT_FOR(fake_redis_value(x->f, rt_names[i], &lives) > 0 && lives == 30);
    }
    assert_int_equal(out.n_chunks, RT_CHUNKS - 1);
    assert_int_equal(out.n_bytes, n_bytes);
    assert_int_equal(out.why, REMOTE_MISS_ABSENT);
    assert_string_equal(out.text, "the remote does not have it");
    assert_int_equal(st_n_right(x->b.store, &rt_context, RT_CHUNKS), RT_CHUNKS - 1);
    assert_int_equal(fake_redis_count(x->f, "GETEX"), RT_CHUNKS - 1);
    struct remote_stats st = rt_stats(&x->b);
    assert_int_equal(st.n_fetches, 1);
    assert_int_equal(st.n_fetched, RT_CHUNKS - 1);
    assert_int_equal(st.fetched_bytes, n_bytes);
    assert_int_equal(st.n_round_trips, 2);
    assert_int_equal(st.misses[REMOTE_MISS_ABSENT], 1);
    assert_true(st.pace.latency_s > 0 && st.pace.bytes_per_s > 0);
    assert_int_equal(st.n_written, 0);
    /* All chunks have come, so no miss is reported. A chunk without a time to live of its own gets
     * the remote's. */
    st_must_save(x->a.store, &rt_context, RT_CHUNKS);
    remote_offer(x->a.remote, &rt_keys[RT_CHUNKS - 1], 0);
    WAIT_FOR(rt_stats(&x->a).n_written == RT_CHUNKS);
    out = rt_fetch_with(&x->b,
                        (struct remote_want){.keys = rt_keys + RT_CHUNKS - 1, .n = 1});
    assert_int_equal(out.n_chunks, 1);
    assert_int_equal(out.why, REMOTE_MISS_NONE);
    assert_string_equal(out.text, "");
    WAIT_FOR(fake_redis_value(x->f, rt_names[RT_CHUNKS - 1], &lives) > 0 &&
             lives == RT_TTL_S);
    assert_int_equal(st_n_right(x->b.store, &rt_context, RT_CHUNKS), RT_CHUNKS);
    assert_int_equal(rt_stats(&x->b).misses[REMOTE_MISS_ABSENT], 1);
}

/* --- values that are wrong -------------------------------------------------------------------- */

/* Replaces chunk 1 in the Redis by the first chunk of another context. */
static void put_other(struct fake_redis *f, const struct st_ctx *c)
{
    struct st_place p;
    struct sha256 key;
    struct parcel parcel = {0};
    struct store_reader *r;
    struct store *s = st_begin(&p, "dram", 1);
    st_must_save(s, c, 1);
    st_keys(c, 1, &key);
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, NULL), 0);
    assert_int_equal(parcel_read(s, r, &key, &parcel, NULL), 0);
    fake_redis_put(f, rt_names[1], parcel.bytes, parcel.n_bytes);
    parcel_deinit(&parcel);
    store_reader_close(r);
    store_close(s);
    st_place_close(&p);
}

static void flip(struct fake_redis *f)
{
    size_t n = fake_redis_value(f, rt_names[1], NULL);
    uint8_t *bytes = xmalloc(n);
    fake_redis_get(f, rt_names[1], bytes);
    bytes[CHUNK_HEADER_BYTES + 10] ^= 1; /* a byte of the first record */
    fake_redis_put(f, rt_names[1], bytes, n);
    free(bytes);
}

/* A wrong value ends the chain before it. It is removed, so that a server that has the chunk writes
 * it again. */
TEST(a_wrong_value_is_removed)
{
    static const char *const texts[] = {"checksum", "it has another key"};
    for (int i = 0; i < 2; i++) {
        struct fake_redis *f = fake_redis_start();
        struct rt_server a, b;
        rt_open(&a, f);
        rt_open(&b, f);
        rt_write(&a, f, RT_CHUNKS);
        if (i == 0)
            flip(f);
        else
            put_other(f, &(struct st_ctx){.base = 9, .own = 9});
        struct remote_fetched out = rt_fetch(&b, RT_CHUNKS);
        assert_int_equal(out.n_chunks, 1);
        assert_int_equal(out.n_bytes, fake_redis_value(f, rt_names[0], NULL));
        assert_int_equal(out.why, REMOTE_MISS_WRONG);
        assert_ptr_equal(strstr(out.text, "the remote gave a wrong chunk: "), out.text);
        if (strstr(out.text, texts[i]) == NULL)
            fail_msg("%s", out.text);
        WAIT_FOR(fake_redis_value(f, rt_names[1], NULL) == 0);
        assert_int_equal(fake_redis_count(f, "UNLINK"), 1);
        assert_int_equal(rt_stats(&b).misses[REMOTE_MISS_WRONG], 1);
        assert_int_equal(st_n_right(b.store, &rt_context, RT_CHUNKS), 1);
        remote_offer(a.remote, &rt_keys[1], 0);
        WAIT_FOR(rt_stats(&a).n_written == RT_CHUNKS + 1);
        out = rt_fetch(&b, RT_CHUNKS);
        assert_int_equal(out.n_chunks, RT_CHUNKS);
        assert_int_equal(st_n_right(b.store, &rt_context, RT_CHUNKS), RT_CHUNKS);
        rt_close(&a);
        rt_close(&b);
        fake_redis_stop(f);
    }
}

/* A chunk of another model or another salt has another key. So only a lying remote returns it for a
 * wanted key. */
TEST_WITH(a_chunk_of_others_is_wrong, set_up_two, tear_down)
{
    struct servers *x = *state;
    struct sha256 key;
    struct st_ctx salted = {.base = 3, .own = 3, .salt = "tenant"};
    st_must_save(x->a.store, &salted, 1);
    st_keys(&salted, 1, &key);
    remote_offer(x->a.remote, &key, 0);
    WAIT_FOR(rt_stats(&x->a).n_written == 1);
    struct remote_want want = {.keys = &key, .n = 1}; /* the owner is 0 */
    struct remote_fetched out = rt_fetch_with(&x->b, want);
    assert_int_equal(out.why, REMOTE_MISS_WRONG);
    assert_non_null(strstr(out.text, "it belongs to another salt"));
    struct st_ctx other = {.base = 3, .own = 3, .model = 1};
    struct sha256 of_other;
    char name[NAME_BYTES];
    st_keys(&other, 1, &of_other);
    st_must_save(x->a.store, &other, 1);
    remote_offer(x->a.remote, &of_other, 0);
    name_chunk(&x->a.remote->names, &of_other, name);
    WAIT_FOR(fake_redis_value(x->f, name, NULL) > 0);
    out = rt_fetch_with(&x->b, (struct remote_want){.keys = &of_other, .n = 1});
    assert_int_equal(out.why, REMOTE_MISS_WRONG);
    assert_non_null(strstr(out.text, "it is state of another model or build"));
    assert_int_equal(st_stats(x->b.store).n_chunks, 0);
}

/* Servers of another secret, or of none, find nothing, and are told why. */
TEST_WITH(servers_of_another_secret_are_named, set_up_two, tear_down)
{
    struct servers *x = *state;
    struct rt_server c;
    assert_int_equal(rt_fetch(&x->b, RT_CHUNKS).why, REMOTE_MISS_ABSENT);
    rt_open_with(&c, x->f, "dram", 0, &(struct remote_opts){.key = (uint8_t[32]){1}});
    st_must_save(x->a.store, &rt_context, 1);
    rt_offer(&x->a, 1, 0);
    WAIT_FOR(atomic_load(&x->b.remote->has_other_secrets) &&
             atomic_load(&c.remote->has_other_secrets) && rt_stats(&x->a).n_written == 1);
    struct remote_fetched out = rt_fetch(&c, RT_CHUNKS);
    assert_int_equal(out.why, REMOTE_MISS_SECRET);
    assert_non_null(strstr(out.text, "another --store-key"));
    assert_int_equal(rt_stats(&c).misses[REMOTE_MISS_SECRET], 1);
    out = rt_fetch(&x->b, RT_CHUNKS); /* it finds what servers like it have written */
    assert_int_equal(out.n_chunks, 1);
    assert_int_equal(out.why, REMOTE_MISS_ABSENT);
    rt_close(&c);
}

/* A value whose size is impossible for a chunk is not fetched. */
TEST_WITH(sizes_that_are_no_chunks, set_up_one, tear_down)
{
    struct servers *x = *state;
    rt_write(&x->a, x->f, RT_CHUNKS);
    size_t n = fake_redis_value(x->f, rt_names[0], NULL);
    uint8_t *bytes = xcalloc(1, n + STORE_ALIGN);
    const size_t sizes[] = {0, 1, CHUNK_HEADER_BYTES, n - 1, n + STORE_ALIGN};
    rt_open_with(&x->b, x->f, "dram", 0, &(struct remote_opts){.max_chunk_bytes = n - 1});
    assert_int_equal(rt_fetch(&x->b, 1).n_chunks, 0);
    remote_allow(x->b.remote, n); /* a model with larger chunks is loaded */
    remote_allow(x->b.remote, 1);
    for (int i = 0; i < 5; i++) {
        fake_redis_put(x->f, rt_names[1], bytes, sizes[i]);
        uint64_t before = fake_redis_count(x->f, "GETEX");
        struct remote_fetched out = rt_fetch(&x->b, RT_CHUNKS);
        assert_int_equal(out.n_chunks, 1);
        assert_int_equal(out.why, REMOTE_MISS_ABSENT);
        assert_int_equal(fake_redis_count(x->f, "GETEX"), before + 1);
    }
    free(bytes);
}

/* Chunks that cannot be made durable are not fetched, and the reason is told. */
TEST_WITH(a_store_that_cannot_commit_takes_nothing, set_up_one, tear_down)
{
    struct servers *x = *state;
    rt_write(&x->a, x->f, RT_CHUNKS);
    rt_open_with(&x->b, x->f, "sim", 0, &(struct remote_opts){0});
    struct io_sim_fault no_sync = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_SYNC};
    assert_int_equal(io_sim_fault_add(x->b.place.io, &no_sync), 0);
    struct remote_fetched out = rt_fetch(&x->b, RT_CHUNKS);
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(out.n_bytes, 0);
    assert_int_equal(out.why, REMOTE_MISS_STORE);
    assert_true(out.text[0] != 0);
    assert_int_equal(rt_stats(&x->b).misses[REMOTE_MISS_STORE], 1);
    io_sim_fault_clear(x->b.place.io);
}

/* A store without room takes the chunks that fit. */
TEST_WITH(a_full_store_takes_what_fits, set_up_one, tear_down)
{
    struct servers *x = *state;
    rt_write(&x->a, x->f, RT_CHUNKS);
    rt_open_with(&x->b, x->f, "dram", st_context_bytes(3) - 1, &(struct remote_opts){0});
    struct remote_fetched out = rt_fetch(&x->b, RT_CHUNKS);
    assert_int_equal(out.n_chunks, 2);
    assert_int_equal(out.why, REMOTE_MISS_STORE);
    assert_true(out.text[0] != 0);
    assert_int_equal(rt_stats(&x->b).misses[REMOTE_MISS_STORE], 1);
    assert_int_equal(st_n_right(x->b.store, &rt_context, RT_CHUNKS), 2);
}

/* More offers than are settled together: each is settled once. */
TEST_WITH(many_offers_are_settled, set_up_one, tear_down)
{
    enum { MANY = 150 };
    struct servers *x = *state;
    for (int i = 0; i < MANY; i++) { /* the store lacks these chunks */
        struct sha256 k = {{9}};
        put_u32(k.b + 4, (uint32_t)i);
        remote_offer(x->a.remote, &k, 0);
    }
    WAIT_FOR(rt_stats(&x->a).n_queued == 0);
    struct remote_stats st = rt_stats(&x->a);
    assert_int_equal(st.n_gone, MANY);
    assert_int_equal(st.n_dropped + st.n_written + st.n_known + st.n_failures, 0);
    assert_int_equal(fake_redis_count(x->f, "STRLEN"), MANY);
}

/* A process that ends at once still writes what it has offered. */
TEST(offers_are_written_before_the_end)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a;
    rt_open(&a, f);
    WAIT_FOR(rt_stats(&a).is_up);
    st_must_save(a.store, &rt_context, RT_CHUNKS);
    rt_offer(&a, RT_CHUNKS, 0);
    rt_close(&a);
    for (int i = 0; i < RT_CHUNKS; i++)
        assert_true(fake_redis_value(f, rt_names[i], NULL) > 0);
    fake_redis_stop(f);
}

/* --- trouble ---------------------------------------------------------------------------------- */

/* A chunk that the Redis refuses is dropped and counted. After a rest the next chunks are
 * written. */
TEST_WITH(a_full_remote_refuses_one_chunk, set_up_one, tear_down)
{
    struct servers *x = *state;
    fake_redis_trouble(x->f, "SET", FAKE_REFUSES, 1);
    st_must_save(x->a.store, &rt_context, RT_CHUNKS);
    rt_offer(&x->a, RT_CHUNKS, 0);
    WAIT_FOR(rt_stats(&x->a).n_written == RT_CHUNKS - 1 && rt_stats(&x->a).n_queued == 0);
    struct remote_stats st = rt_stats(&x->a);
    assert_int_equal(st.n_refused, 1);
    assert_int_equal(st.n_failures, 1);
    assert_int_equal(st.n_dropped, 0);
    assert_int_equal(fake_redis_value(x->f, rt_names[0], NULL), 0);
    for (int i = 1; i < RT_CHUNKS; i++)
        assert_true(fake_redis_value(x->f, rt_names[i], NULL) > 0);
}

/* When a connection fails, the offered chunks wait for the next one. A chunk with which three
 * connections fail is dropped. */
TEST_WITH(a_chunk_that_ends_connections_is_dropped, set_up_one, tear_down)
{
    struct servers *x = *state;
    fake_redis_trouble(x->f, "SET", FAKE_DROPS, 2);
    st_must_save(x->a.store, &rt_context, RT_CHUNKS);
    remote_offer(x->a.remote, &rt_keys[0], 0);
    WAIT_FOR(rt_stats(&x->a).n_written == 1);
    assert_int_equal(fake_redis_count(x->f, "SET"), 3);
    struct remote_stats st = rt_stats(&x->a);
    assert_int_equal(st.n_failures, 2);
    assert_int_equal(st.n_dropped, 0);
    fake_redis_trouble(x->f, "SET", FAKE_DROPS, 3);
    rt_offer(&x->a, 3, 0); /* chunk 0 is known to be in the Redis */
    WAIT_FOR(rt_stats(&x->a).n_written == 2);
    st = rt_stats(&x->a);
    assert_int_equal(st.n_dropped, 1);
    assert_int_equal(st.n_failures, 5);
    assert_int_equal(fake_redis_value(x->f, rt_names[1], NULL), 0);
    assert_true(fake_redis_value(x->f, rt_names[2], NULL) > 0);
}

/* While the remote cannot be reached, nothing is fetched and no request waits. */
TEST(a_remote_that_is_gone_rests)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a;
    char why[200], url[64];
    rt_open(&a, f);
    WAIT_FOR(rt_stats(&a).is_up);
    remote_on_erased(a.remote, NULL, NULL);
    remote_close(a.remote);
    snprintf(url, sizeof url, "%s", fake_redis_url(f));
    fake_redis_stop(f);
    rt_join(&a, &(struct remote_opts){.url = url});
    struct remote_want want = {
        .keys = rt_keys, .n = 1, .fingerprint = st_fingerprint(0), .done = rt_done};
    WAIT_FOR(strstr(rt_stats(&a).why_down, "Connection refused") != NULL);
    assert_null(remote_fetch_begin(a.remote, &want, why, sizeof why));
    assert_ptr_equal(strstr(why, "the remote cannot be reached: "), why);
    struct remote_stats st = rt_stats(&a);
    assert_int_equal(st.n_fetches, 1);
    assert_int_equal(st.misses[REMOTE_MISS_RESTING], 1);
    assert_false(st.is_up);
    rt_offer(&a, RT_CHUNKS, 0);
    assert_int_equal(rt_stats(&a).n_queued, RT_CHUNKS);
    rt_close(&a);
}

/* Waits until the remote can be reached, and begins a fetch of all chunks. */
static struct remote_fetch *begin(struct rt_server *s, struct rt_waiter *w)
{
    struct remote_want want = {.keys = rt_keys,
                               .n = RT_CHUNKS,
                               .fingerprint = st_fingerprint(0),
                               .done = rt_done,
                               .arg = w};
    struct remote_fetch *f = NULL;
    char why[200];
    atomic_store(&w->n_done, 0);
    WAIT_FOR((f = remote_fetch_begin(s->remote, &want, why, sizeof why)) != NULL);
    return f;
}

/* A fetch is given up when the remote stays silent for the limit, when it closes the connection, or
 * when the request ends. Later the same chunks are fetched. */
TEST(a_fetch_is_given_up)
{
    static const struct {
        enum fake_trouble trouble;
        enum remote_miss why;
        int64_t stuck_ns;
    } cases[] = {{FAKE_WITHHOLDS, REMOTE_MISS_SILENT, SECOND},
                 {FAKE_DROPS, REMOTE_MISS_FAILED, LONG_NS},
                 {FAKE_WITHHOLDS, REMOTE_MISS_CANCELLED, LONG_NS}};
    for (int i = 0; i < 3; i++) {
        struct fake_redis *f = fake_redis_start();
        struct rt_server a, b = {0};
        struct rt_waiter w = {0};
        struct remote_fetched out = {0};
        rt_open(&a, f);
        rt_write(&a, f, RT_CHUNKS);
        rt_open_with(&b, f, "dram", 0,
                     &(struct remote_opts){.stuck_ns = cases[i].stuck_ns});
        fake_redis_trouble(f, "GETEX", cases[i].trouble, 1);
        /* on a busy machine a fetch may end before its GETEX; then another one is begun */
        while (fake_redis_count(f, "GETEX") == 0) {
            struct remote_fetch *one = begin(&b, &w);
            WAIT_FOR(fake_redis_count(f, "GETEX") > 0 || atomic_load(&w.n_done) > 0);
            if (cases[i].why == REMOTE_MISS_CANCELLED)
                remote_fetch_cancel(one);
            WAIT_FOR(atomic_load(&w.n_done) > 0);
            remote_fetch_end(one, &out);
        }
        assert_int_equal(out.why, cases[i].why);
        assert_int_equal(out.n_chunks, 0);
        assert_int_equal(out.n_bytes, 0);
        assert_true(out.text[0] != 0);
        struct remote_stats st = rt_stats(&b);
        assert_true(st.misses[cases[i].why] > 0);
        assert_int_equal(st.n_fetched, 0);
        assert_int_equal(st.n_failures > 0, cases[i].why != REMOTE_MISS_CANCELLED);
        fake_redis_answer(f);
        while (out.n_chunks < RT_CHUNKS) {
            struct remote_fetch *one = begin(&b, &w);
            WAIT_FOR(atomic_load(&w.n_done) > 0);
            remote_fetch_end(one, &out);
        }
        assert_int_equal(st_n_right(b.store, &rt_context, RT_CHUNKS), RT_CHUNKS);
        rt_close(&a);
        rt_close(&b);
        fake_redis_stop(f);
    }
}

/* A fetch that waits behind another one ends when its request ends, and not when the other does. */
TEST_WITH(a_waiting_fetch_ends_by_itself, set_up_two, tear_down)
{
    struct servers *x = *state;
    struct rt_waiter first = {0}, second = {0}, third = {0}, fourth = {0};
    struct remote_fetched out;
    char why[200];
    rt_write(&x->a, x->f, RT_CHUNKS);
    fake_redis_trouble(x->f, "GETEX", FAKE_WITHHOLDS, 1);
    struct remote_fetch *one = begin(&x->b, &first);
    WAIT_FOR(fake_redis_count(x->f, "GETEX") > 0);
    struct remote_fetch *two = begin(&x->b, &second), *three = begin(&x->b, &third);
    remote_fetch_cancel(three);
    WAIT_FOR(atomic_load(&third.n_done) == 1);
    assert_int_equal(atomic_load(&first.n_done) + atomic_load(&second.n_done), 0);
    remote_fetch_end(three, &out);
    assert_int_equal(out.why, REMOTE_MISS_CANCELLED);
    assert_string_equal(out.text, "the request has ended");
    remote_fetch_cancel(two);
    WAIT_FOR(atomic_load(&second.n_done) == 1);
    assert_int_equal(atomic_load(&first.n_done), 0);
    remote_fetch_end(two, &out);
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(rt_stats(&x->b).misses[REMOTE_MISS_CANCELLED], 2);
    /* recomputing takes so little that no remote is waited for */
    struct remote_want cheap = {.keys = rt_keys,
                                .n = RT_CHUNKS,
                                .fingerprint = st_fingerprint(0),
                                .recompute_s = 0.001,
                                .done = rt_done,
                                .arg = &fourth};
    struct remote_fetch *four = remote_fetch_begin(x->b.remote, &cheap, why, sizeof why);
    assert_non_null(four);
    WAIT_FOR(atomic_load(&fourth.n_done) == 1);
    assert_int_equal(atomic_load(&first.n_done), 0);
    remote_fetch_end(four, &out);
    assert_true(out.why == REMOTE_MISS_SILENT || out.why == REMOTE_MISS_SLOW);
    fake_redis_answer(x->f);
    WAIT_FOR(atomic_load(&first.n_done) == 1);
    remote_fetch_end(one, &out);
    assert_int_equal(out.why, REMOTE_MISS_FAILED);
}

/* A remote that sends a value byte by byte is never silent, but recomputing is faster. */
TEST_WITH(a_crawling_remote_is_given_up, set_up_two, tear_down)
{
    struct servers *x = *state;
    rt_write(&x->a, x->f, RT_CHUNKS);
    fake_redis_trouble(x->f, "GETEX", FAKE_DRIPS, 1);
    struct remote_fetched out = rt_fetch_with(
        &x->b, (struct remote_want){.keys = rt_keys, .n = RT_CHUNKS, .recompute_s = 10});
    assert_int_equal(out.n_chunks, 0);
    /* on a busy machine the bytes may stop for too long */
    assert_true(out.why == REMOTE_MISS_SLOW || out.why == REMOTE_MISS_SILENT);
    if (out.why == REMOTE_MISS_SLOW)
        assert_string_equal(out.text, "the remote is slower than recomputing");
}

/* An idle connection is probed, so a remote that fails is known before a request needs it. */
TEST_WITH(an_idle_remote_is_probed, set_up_one, tear_down)
{
    struct servers *x = *state;
    WAIT_FOR(rt_stats(&x->a).is_up);
    fake_redis_trouble(x->f, "PING", FAKE_REFUSES, INT_MAX);
    WAIT_FOR(!rt_stats(&x->a).is_up);
    WAIT_FOR(strstr(rt_stats(&x->a).why_down, "the remote refuses: OOM no room") != NULL);
    assert_true(rt_stats(&x->a).n_failures > 0);
    fake_redis_answer(x->f);
    WAIT_FOR(rt_stats(&x->a).is_up);
}

/* The writer leaves the processors to decodes. */
TEST_WITH(the_writer_steps_back, set_up_one, tear_down)
{
    (void)state; /* its server runs */
    int own = getpriority(PRIO_PROCESS, 0), want = own < 10 ? 10 : own;
    WAIT_FOR(threads_at_nice(want) > 0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
}

/* A fetch that is predicted to take longer than recomputing does not begin. */
TEST_WITH(a_dear_remote_is_not_asked_for_chunks, set_up_two, tear_down)
{
    struct servers *x = *state;
    rt_write(&x->a, x->f, RT_CHUNKS);
    assert_int_equal(rt_fetch(&x->b, 1).n_chunks, 1); /* from now on the pace is known */
    uint64_t n = fake_redis_count(x->f, "GETEX");
    /* Restoring the fetched chunks would take longer than recomputing them. */
    struct remote_want want = {
        .keys = rt_keys, .n = RT_CHUNKS, .recompute_s = 1000, .restore_s = 2000};
    struct remote_fetched out = rt_fetch_with(&x->b, want);
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(out.why, REMOTE_MISS_SLOW);
    assert_string_equal(out.text, "recomputing is faster than the remote");
    assert_int_equal(fake_redis_count(x->f, "GETEX"), n);
    assert_int_equal(rt_stats(&x->b).misses[REMOTE_MISS_SLOW], 1);
}

/* --- options ---------------------------------------------------------------------------------- */

TEST(names_and_options)
{
    static const char *const misses[REMOTE_MISSES] = {
        "none", "absent", "other_key", "resting", "silent",
        "slow", "failed", "wrong",     "store",   "cancelled"};
    struct err err = {0};
    struct remote *r = NULL;
    for (int i = 0; i < REMOTE_MISSES; i++)
        assert_string_equal(remote_miss_name((enum remote_miss)i), misses[i]);
    assert_string_equal(remote_when_names[REMOTE_WHEN_COMMITTED], "always");
    assert_string_equal(remote_when_names[REMOTE_WHEN_ENDED], "idle");
    assert_string_equal(remote_when_names[REMOTE_WHEN_USED], "use");
    const struct remote_opts o = {.url = "redis://h", .ca_file = "ca.pem"};
    assert_int_equal(remote_open(&o, &r, &err), ERR_USAGE);
    assert_string_equal(err.msg,
                        "--remote-ca, --remote-cert and --remote-key need rediss://");
    assert_null(r);
}

int main(void)
{
    return unit_run(rt_begin, NULL);
}
