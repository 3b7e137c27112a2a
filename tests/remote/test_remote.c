/* test_remote.c - two servers whose stores share chunks through a Redis: which chunks are written,
 * fetched and refused, and the counters. The Redis is tests/remote/fake_redis.h. Each server has a
 * store in memory. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "remote/remote_impl.h"
#include "tests/base/niceness.h"
#include "tests/remote/fake_redis.h"
#include "tests/store/storetest.h"

enum { N = 4, TTL_S = 1000, PATIENCE_S = 300 };
#define SECOND  ((int64_t)1000000000)
#define LONG_NS (600 * SECOND)

static const struct st_ctx context = {.base = 5, .own = 6};
static struct sha256 keys[N];
static char names[N][NAME_BYTES];

/* --- servers ---------------------------------------------------------------------------------- */

struct server {
    struct st_place place;
    struct store *store;
    struct remote *remote;
    atomic_int n_erased; /* number of calls of on_erased */
};

static void on_erased(void *arg)
{
    atomic_fetch_add(&((struct server *)arg)->n_erased, 1);
}

static void join_as(struct server *s, const struct remote_opts *o)
{
    struct err err = {0};
    struct remote_opts all = *o;
    all.store = s->store;
    all.fingerprint = st_fingerprint(0);
    all.ttl_s = TTL_S;
    /* so that a busy machine cannot end a fetch */
    all.stuck_ns = all.stuck_ns > 0 ? all.stuck_ns : LONG_NS;
    all.max_chunk_bytes = all.max_chunk_bytes > 0 ? all.max_chunk_bytes : 1 << 20;
    if (remote_open(&all, &s->remote, &err) != 0)
        fail_msg("%s", err.msg);
    remote_on_erased(s->remote, on_erased, s);
}

static void server_open(struct server *s, struct fake_redis *f)
{
    *s = (struct server){0};
    assert_true(st_place_open(&s->place, "dram", 1));
    s->store = st_open(&s->place);
    join_as(s, &(struct remote_opts){.url = fake_redis_url(f)});
}

static void server_close(struct server *s)
{
    remote_on_erased(s->remote, NULL, NULL);
    remote_close(s->remote);
    store_close(s->store);
    st_place_close(&s->place);
}

static struct remote_stats stats_of(struct server *s)
{
    struct remote_stats st;
    remote_stats(s->remote, &st);
    return st;
}

/* Waits until the condition holds. An alarm ends a program that waits too long. */
#define WAIT_FOR(condition)                                                                \
    do {                                                                                   \
        while (!(condition))                                                               \
            usleep(1000);                                                                  \
    } while (0)

static void offer_all(struct server *s, int n, uint32_t ttl_s)
{
    for (int i = 0; i < n; i++)
        remote_offer(s->remote, &keys[i], ttl_s);
}

/* Has a server save n chunks and write them to the Redis. */
static void write_all(struct server *s, struct fake_redis *f, int n)
{
    uint64_t before = stats_of(s).n_written;
    st_must_save(s->store, &context, n);
    offer_all(s, n, 0);
    WAIT_FOR(stats_of(s).n_written == before + (uint64_t)n);
    int64_t lives;
    for (int i = 0; i < n; i++) /* waits until all writes are confirmed */
        WAIT_FOR(fake_redis_value(f, names[i], &lives) > 0 && lives == TTL_S);
}

/* --- fetches ---------------------------------------------------------------------------------- */

struct waiter {
    atomic_int n_done;
};

static void done(void *arg)
{
    atomic_fetch_add(&((struct waiter *)arg)->n_done, 1);
}

static struct remote_fetched fetch_with(struct server *s, struct remote_want want)
{
    struct waiter w = {0};
    struct remote_fetched out;
    char why[200] = "";
    want.done = done;
    want.arg = &w;
    int64_t t0 = clock_now_ns();
    struct remote_fetch *f = NULL;
    WAIT_FOR(stats_of(s).is_up);
    WAIT_FOR((f = remote_fetch_begin(s->remote, &want, why, sizeof why)) != NULL);
    WAIT_FOR(atomic_load(&w.n_done) > 0);
    assert_true(remote_fetch_heard_ns(f) >= t0 &&
                remote_fetch_heard_ns(f) <= clock_now_ns());
    remote_fetch_end(f, &out);
    assert_int_equal(atomic_load(&w.n_done), 1);
    return out;
}

static struct remote_fetched fetch(struct server *s, int n)
{
    return fetch_with(s, (struct remote_want){.keys = keys, .n = n, .use.ttl_s = 30});
}

/* --- writing and fetching --------------------------------------------------------------------- */

/* A chunk lives for its own time, but at most for the remote's. Offering a chunk that the remote
 * has, or that the store lacks, writes nothing. */
static void offers_are_written_once(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    static const uint32_t ttl_s[] = {0, 50, TTL_S, TTL_S + 1};
    static const int64_t lives_s[] = {TTL_S, 50, TTL_S, TTL_S};
    server_open(&a, f);
    assert_true(remote_wants(a.remote, REMOTE_WHEN_COMMITTED));
    assert_false(remote_wants(a.remote, REMOTE_WHEN_USED));
    assert_false(remote_wants(NULL, REMOTE_WHEN_COMMITTED));
    st_must_save(a.store, &context, N);
    uint64_t n_bytes = 0;
    for (int i = 0; i < N; i++) {
        int64_t lives;
        remote_offer(a.remote, &keys[i], ttl_s[i]);
        WAIT_FOR(stats_of(&a).n_written == (uint64_t)i + 1);
        n_bytes += fake_redis_value(f, names[i], &lives);
        /* the time to live is set when the write is confirmed */
        WAIT_FOR(fake_redis_value(f, names[i], &lives) > 0 && lives == lives_s[i]);
        assert_int_equal(stats_of(&a).written_bytes, n_bytes);
    }
    assert_int_equal(fake_redis_count(f, "SET"), N);
    offer_all(&a, N, 0);
    WAIT_FOR(stats_of(&a).n_known == N);
    assert_int_equal(fake_redis_count(f, "SET"), N);
    struct st_ctx other = {.base = 77, .own = 78};
    struct sha256 missing;
    st_keys(&other, 1, &missing);
    remote_offer(a.remote, &missing, 0);
    WAIT_FOR(stats_of(&a).n_gone == 1);
    remote_offer(NULL, &missing, 0);
    WAIT_FOR(stats_of(&a).n_queued == 0);
    struct remote_stats st = stats_of(&a);
    assert_int_equal(st.n_written, N);
    assert_int_equal(st.n_dropped + st.n_refused + st.n_failures, 0);
    assert_ptr_equal(strstr(st.url, fake_redis_url(f)), st.url);
    assert_true(st.is_up);
    assert_string_equal(st.why_down, "");
    server_close(&a);
    fake_redis_stop(f);
}

/* A chain is fetched up to its first missing chunk, in two round trips. Its chunks are then in the
 * store. */
static void a_chain_is_fetched_up_to_a_gap(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    server_open(&a, f);
    server_open(&b, f);
    write_all(&a, f, N - 1);
    struct remote_fetched out = fetch(&b, N);
    uint64_t n_bytes = 0;
    int64_t lives;
    for (int i = 0; i < N - 1; i++) {
        n_bytes += fake_redis_value(f, names[i], &lives);
        /* the request's time to live, which is shorter than the chunk's */
        WAIT_FOR(fake_redis_value(f, names[i], &lives) > 0 && lives == 30);
    }
    assert_int_equal(out.n_chunks, N - 1);
    assert_int_equal(out.n_bytes, n_bytes);
    assert_int_equal(out.why, REMOTE_MISS_ABSENT);
    assert_string_equal(out.text, "the remote does not have it");
    assert_int_equal(st_n_right(b.store, &context, N), N - 1);
    assert_int_equal(fake_redis_count(f, "GETEX"), N - 1);
    struct remote_stats st = stats_of(&b);
    assert_int_equal(st.n_fetches, 1);
    assert_int_equal(st.n_fetched, N - 1);
    assert_int_equal(st.fetched_bytes, n_bytes);
    assert_int_equal(st.n_round_trips, 2);
    assert_int_equal(st.misses[REMOTE_MISS_ABSENT], 1);
    assert_true(st.pace.latency_s > 0 && st.pace.bytes_per_s > 0);
    assert_int_equal(st.n_written, 0);
    /* All chunks have come, so no miss is reported. A chunk without a time to live of its own gets
     * the remote's. */
    st_must_save(a.store, &context, N);
    remote_offer(a.remote, &keys[N - 1], 0);
    WAIT_FOR(stats_of(&a).n_written == N);
    out = fetch_with(&b, (struct remote_want){.keys = keys + N - 1, .n = 1});
    assert_int_equal(out.n_chunks, 1);
    assert_int_equal(out.why, REMOTE_MISS_NONE);
    assert_string_equal(out.text, "");
    WAIT_FOR(fake_redis_value(f, names[N - 1], &lives) > 0 && lives == TTL_S);
    assert_int_equal(st_n_right(b.store, &context, N), N);
    assert_int_equal(stats_of(&b).misses[REMOTE_MISS_ABSENT], 1);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* --- values that are wrong -------------------------------------------------------------------- */

/* Replaces chunk 1 in the Redis by the first chunk of another context. */
static void put_other(struct fake_redis *f, const struct st_ctx *c)
{
    struct st_place p;
    struct sha256 key;
    struct parcel parcel = {0};
    struct store_reader *r;
    struct err err = {0};
    assert_true(st_place_open(&p, "dram", 1));
    struct store *s = st_open(&p);
    st_must_save(s, c, 1);
    st_keys(c, 1, &key);
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, &err), 0);
    assert_int_equal(parcel_read(s, r, &key, &parcel, &err), 0);
    fake_redis_put(f, names[1], parcel.bytes, parcel.n_bytes);
    parcel_deinit(&parcel);
    store_reader_close(r);
    store_close(s);
    st_place_close(&p);
}

static void flip(struct fake_redis *f)
{
    size_t n = fake_redis_value(f, names[1], NULL);
    uint8_t *bytes = xmalloc(n);
    fake_redis_get(f, names[1], bytes);
    bytes[CHUNK_HEADER_BYTES + 10] ^= 1; /* a byte of the first record */
    fake_redis_put(f, names[1], bytes, n);
    free(bytes);
}

/* A wrong value ends the chain before it. It is removed, so that a server that has the chunk writes
 * it again. */
static void a_wrong_value_is_removed(void **state)
{
    (void)state;
    static const char *const texts[] = {"checksum", "it has another key"};
    for (int i = 0; i < 2; i++) {
        struct fake_redis *f = fake_redis_start();
        struct server a, b;
        server_open(&a, f);
        server_open(&b, f);
        write_all(&a, f, N);
        if (i == 0)
            flip(f);
        else
            put_other(f, &(struct st_ctx){.base = 9, .own = 9});
        struct remote_fetched out = fetch(&b, N);
        assert_int_equal(out.n_chunks, 1);
        assert_int_equal(out.n_bytes, fake_redis_value(f, names[0], NULL));
        assert_int_equal(out.why, REMOTE_MISS_WRONG);
        assert_ptr_equal(strstr(out.text, "the remote gave a wrong chunk: "), out.text);
        if (strstr(out.text, texts[i]) == NULL)
            fail_msg("%s", out.text);
        WAIT_FOR(fake_redis_value(f, names[1], NULL) == 0);
        assert_int_equal(fake_redis_count(f, "UNLINK"), 1);
        assert_int_equal(stats_of(&b).misses[REMOTE_MISS_WRONG], 1);
        assert_int_equal(st_n_right(b.store, &context, N), 1);
        remote_offer(a.remote, &keys[1], 0);
        WAIT_FOR(stats_of(&a).n_written == N + 1);
        out = fetch(&b, N);
        assert_int_equal(out.n_chunks, N);
        assert_int_equal(st_n_right(b.store, &context, N), N);
        server_close(&a);
        server_close(&b);
        fake_redis_stop(f);
    }
}

/* A chunk of another model or another salt has another key. So only a lying remote returns it for a
 * wanted key. */
static void a_chunk_of_others_is_wrong(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    struct sha256 key;
    struct st_ctx salted = {.base = 3, .own = 3, .salt = "tenant"};
    server_open(&a, f);
    server_open(&b, f);
    st_must_save(a.store, &salted, 1);
    st_keys(&salted, 1, &key);
    remote_offer(a.remote, &key, 0);
    WAIT_FOR(stats_of(&a).n_written == 1);
    struct remote_want want = {.keys = &key, .n = 1}; /* the owner is 0 */
    struct remote_fetched out = fetch_with(&b, want);
    assert_int_equal(out.why, REMOTE_MISS_WRONG);
    assert_non_null(strstr(out.text, "it belongs to another salt"));
    struct st_ctx other = {.base = 3, .own = 3, .model = 1};
    struct sha256 of_other;
    char name[NAME_BYTES];
    st_keys(&other, 1, &of_other);
    st_must_save(a.store, &other, 1);
    remote_offer(a.remote, &of_other, 0);
    name_chunk(&of_other, name);
    WAIT_FOR(fake_redis_value(f, name, NULL) > 0);
    out = fetch_with(&b, (struct remote_want){.keys = &of_other, .n = 1});
    assert_int_equal(out.why, REMOTE_MISS_WRONG);
    assert_non_null(strstr(out.text, "it is state of another model or build"));
    assert_int_equal(st_stats(b.store).n_chunks, 0);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* A value whose size is impossible for a chunk is not fetched. */
static void sizes_that_are_no_chunks(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    server_open(&a, f);
    write_all(&a, f, N);
    size_t n = fake_redis_value(f, names[0], NULL);
    uint8_t *bytes = xcalloc(1, n + STORE_ALIGN);
    const size_t sizes[] = {0, 1, CHUNK_HEADER_BYTES, n - 1, n + STORE_ALIGN};
    b = (struct server){0};
    assert_true(st_place_open(&b.place, "dram", 1));
    b.store = st_open(&b.place);
    join_as(&b, &(struct remote_opts){.url = fake_redis_url(f), .max_chunk_bytes = n});
    for (int i = 0; i < 5; i++) {
        fake_redis_put(f, names[1], bytes, sizes[i]);
        uint64_t before = fake_redis_count(f, "GETEX");
        struct remote_fetched out = fetch(&b, N);
        assert_int_equal(out.n_chunks, 1);
        assert_int_equal(out.why, REMOTE_MISS_ABSENT);
        assert_int_equal(fake_redis_count(f, "GETEX"), before + 1);
    }
    free(bytes);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* A store without room takes the chunks that fit. */
static void a_full_store_takes_what_fits(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b = {0};
    server_open(&a, f);
    write_all(&a, f, N);
    assert_true(st_place_open(&b.place, "dram", 1));
    b.place.opts.cap_bytes = st_context_bytes(3) - 1;
    b.store = st_open(&b.place);
    join_as(&b, &(struct remote_opts){.url = fake_redis_url(f)});
    struct remote_fetched out = fetch(&b, N);
    assert_int_equal(out.n_chunks, 2);
    assert_int_equal(out.why, REMOTE_MISS_STORE);
    assert_true(out.text[0] != 0);
    assert_int_equal(stats_of(&b).misses[REMOTE_MISS_STORE], 1);
    assert_int_equal(st_n_right(b.store, &context, N), 2);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* More offers than are settled together: each is settled once. */
static void many_offers_are_settled(void **state)
{
    (void)state;
    enum { MANY = 150 };
    struct fake_redis *f = fake_redis_start();
    struct server a;
    server_open(&a, f);
    for (int i = 0; i < MANY; i++) { /* the store lacks these chunks */
        struct sha256 k = {{9}};
        put_u32(k.b + 4, (uint32_t)i);
        remote_offer(a.remote, &k, 0);
    }
    WAIT_FOR(stats_of(&a).n_queued == 0);
    struct remote_stats st = stats_of(&a);
    assert_int_equal(st.n_gone, MANY);
    assert_int_equal(st.n_dropped + st.n_written + st.n_known + st.n_failures, 0);
    assert_int_equal(fake_redis_count(f, "STRLEN"), MANY);
    server_close(&a);
    fake_redis_stop(f);
}

/* A process that ends at once still writes what it has offered. */
static void offers_are_written_before_the_end(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    server_open(&a, f);
    WAIT_FOR(stats_of(&a).is_up);
    st_must_save(a.store, &context, N);
    offer_all(&a, N, 0);
    server_close(&a);
    for (int i = 0; i < N; i++)
        assert_true(fake_redis_value(f, names[i], NULL) > 0);
    fake_redis_stop(f);
}

/* --- trouble ---------------------------------------------------------------------------------- */

/* A chunk that the Redis refuses is dropped and counted. After a rest the next chunks are
 * written. */
static void a_full_remote_refuses_one_chunk(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    server_open(&a, f);
    fake_redis_trouble(f, "SET", FAKE_REFUSES, 1);
    st_must_save(a.store, &context, N);
    offer_all(&a, N, 0);
    WAIT_FOR(stats_of(&a).n_written == N - 1 && stats_of(&a).n_queued == 0);
    struct remote_stats st = stats_of(&a);
    assert_int_equal(st.n_refused, 1);
    assert_int_equal(st.n_failures, 1);
    assert_int_equal(st.n_dropped, 0);
    assert_int_equal(fake_redis_value(f, names[0], NULL), 0);
    for (int i = 1; i < N; i++)
        assert_true(fake_redis_value(f, names[i], NULL) > 0);
    server_close(&a);
    fake_redis_stop(f);
}

/* When a connection fails, the offered chunks wait for the next one. A chunk with which three
 * connections fail is dropped. */
static void a_chunk_that_ends_connections_is_dropped(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    server_open(&a, f);
    fake_redis_trouble(f, "SET", FAKE_DROPS, 2);
    st_must_save(a.store, &context, N);
    remote_offer(a.remote, &keys[0], 0);
    WAIT_FOR(stats_of(&a).n_written == 1);
    assert_int_equal(fake_redis_count(f, "SET"), 3);
    struct remote_stats st = stats_of(&a);
    assert_int_equal(st.n_failures, 2);
    assert_int_equal(st.n_dropped, 0);
    fake_redis_trouble(f, "SET", FAKE_DROPS, 3);
    offer_all(&a, 3, 0); /* chunk 0 is known to be in the Redis */
    WAIT_FOR(stats_of(&a).n_written == 2);
    st = stats_of(&a);
    assert_int_equal(st.n_dropped, 1);
    assert_int_equal(st.n_failures, 5);
    assert_int_equal(fake_redis_value(f, names[1], NULL), 0);
    assert_true(fake_redis_value(f, names[2], NULL) > 0);
    server_close(&a);
    fake_redis_stop(f);
}

/* While the remote cannot be reached, nothing is fetched and no request waits. */
static void a_remote_that_is_gone_rests(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    char why[200], url[64];
    server_open(&a, f);
    WAIT_FOR(stats_of(&a).is_up);
    remote_on_erased(a.remote, NULL, NULL);
    remote_close(a.remote);
    snprintf(url, sizeof url, "%s", fake_redis_url(f));
    fake_redis_stop(f);
    join_as(&a, &(struct remote_opts){.url = url});
    struct remote_want want = {.keys = keys, .n = 1, .done = done};
    WAIT_FOR(strstr(stats_of(&a).why_down, "Connection refused") != NULL);
    assert_null(remote_fetch_begin(a.remote, &want, why, sizeof why));
    assert_ptr_equal(strstr(why, "the remote cannot be reached: "), why);
    struct remote_stats st = stats_of(&a);
    assert_int_equal(st.n_fetches, 1);
    assert_int_equal(st.misses[REMOTE_MISS_RESTING], 1);
    assert_false(st.is_up);
    offer_all(&a, N, 0);
    assert_int_equal(stats_of(&a).n_queued, N);
    server_close(&a);
}

/* Waits until the remote can be reached, and begins a fetch of all chunks. */
static struct remote_fetch *begin(struct server *s, struct waiter *w)
{
    struct remote_want want = {.keys = keys, .n = N, .done = done, .arg = w};
    struct remote_fetch *f = NULL;
    char why[200];
    atomic_store(&w->n_done, 0);
    WAIT_FOR((f = remote_fetch_begin(s->remote, &want, why, sizeof why)) != NULL);
    return f;
}

/* A fetch is given up when the remote stays silent for the limit, when it closes the connection, or
 * when the request ends. Later the same chunks are fetched. */
static void a_fetch_is_given_up(void **state)
{
    (void)state;
    static const struct {
        enum fake_trouble trouble;
        enum remote_miss why;
        int64_t stuck_ns;
    } cases[] = {{FAKE_WITHHOLDS, REMOTE_MISS_SILENT, SECOND},
                 {FAKE_DROPS, REMOTE_MISS_FAILED, LONG_NS},
                 {FAKE_WITHHOLDS, REMOTE_MISS_CANCELLED, LONG_NS}};
    for (int i = 0; i < 3; i++) {
        struct fake_redis *f = fake_redis_start();
        struct server a, b = {0};
        struct waiter w = {0};
        struct remote_fetched out = {0};
        server_open(&a, f);
        write_all(&a, f, N);
        assert_true(st_place_open(&b.place, "dram", 1));
        b.store = st_open(&b.place);
        join_as(&b, &(struct remote_opts){.url = fake_redis_url(f),
                                          .stuck_ns = cases[i].stuck_ns});
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
        struct remote_stats st = stats_of(&b);
        assert_true(st.misses[cases[i].why] > 0);
        assert_int_equal(st.n_fetched, 0);
        assert_int_equal(st.n_failures > 0, cases[i].why != REMOTE_MISS_CANCELLED);
        fake_redis_answer(f);
        while (out.n_chunks < N) {
            struct remote_fetch *one = begin(&b, &w);
            WAIT_FOR(atomic_load(&w.n_done) > 0);
            remote_fetch_end(one, &out);
        }
        assert_int_equal(st_n_right(b.store, &context, N), N);
        server_close(&a);
        server_close(&b);
        fake_redis_stop(f);
    }
}

/* A fetch that waits behind another one ends when its request ends, and not when the other does. */
static void a_waiting_fetch_ends_by_itself(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    struct waiter first = {0}, second = {0}, third = {0}, fourth = {0};
    struct remote_fetched out;
    char why[200];
    server_open(&a, f);
    server_open(&b, f);
    write_all(&a, f, N);
    fake_redis_trouble(f, "GETEX", FAKE_WITHHOLDS, 1);
    struct remote_fetch *one = begin(&b, &first);
    WAIT_FOR(fake_redis_count(f, "GETEX") > 0);
    struct remote_fetch *two = begin(&b, &second), *three = begin(&b, &third);
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
    assert_int_equal(stats_of(&b).misses[REMOTE_MISS_CANCELLED], 2);
    /* recomputing takes so little that no remote is waited for */
    struct remote_want cheap = {
        .keys = keys, .n = N, .recompute_s = 0.001, .done = done, .arg = &fourth};
    struct remote_fetch *four = remote_fetch_begin(b.remote, &cheap, why, sizeof why);
    assert_non_null(four);
    WAIT_FOR(atomic_load(&fourth.n_done) == 1);
    assert_int_equal(atomic_load(&first.n_done), 0);
    remote_fetch_end(four, &out);
    assert_true(out.why == REMOTE_MISS_SILENT || out.why == REMOTE_MISS_SLOW);
    fake_redis_answer(f);
    WAIT_FOR(atomic_load(&first.n_done) == 1);
    remote_fetch_end(one, &out);
    assert_int_equal(out.why, REMOTE_MISS_FAILED);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* A remote that sends a value byte by byte is never silent, but recomputing is faster. */
static void a_crawling_remote_is_given_up(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    server_open(&a, f);
    server_open(&b, f);
    write_all(&a, f, N);
    fake_redis_trouble(f, "GETEX", FAKE_DRIPS, 1);
    struct remote_fetched out = fetch_with(
        &b, (struct remote_want){.keys = keys, .n = N, .recompute_s = 10});
    assert_int_equal(out.n_chunks, 0);
    /* on a busy machine the bytes may stop for too long */
    assert_true(out.why == REMOTE_MISS_SLOW || out.why == REMOTE_MISS_SILENT);
    if (out.why == REMOTE_MISS_SLOW)
        assert_string_equal(out.text, "the remote is slower than recomputing");
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* An idle connection is probed, so a remote that fails is known before a request needs it. */
static void an_idle_remote_is_probed(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    server_open(&a, f);
    WAIT_FOR(stats_of(&a).is_up);
    fake_redis_trouble(f, "PING", FAKE_REFUSES, INT_MAX);
    WAIT_FOR(!stats_of(&a).is_up);
    WAIT_FOR(strstr(stats_of(&a).why_down, "the remote refuses: OOM no room") != NULL);
    assert_true(stats_of(&a).n_failures > 0);
    fake_redis_answer(f);
    WAIT_FOR(stats_of(&a).is_up);
    server_close(&a);
    fake_redis_stop(f);
}

/* The writer leaves the processors to decodes. */
static void the_writer_steps_back(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    int own = getpriority(PRIO_PROCESS, 0), want = own < 10 ? 10 : own;
    server_open(&a, f);
    WAIT_FOR(threads_at_nice(want) > 0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
    server_close(&a);
    fake_redis_stop(f);
}

/* A fetch that is predicted to take longer than recomputing does not begin. */
static void a_dear_remote_is_not_asked_for_chunks(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    server_open(&a, f);
    server_open(&b, f);
    write_all(&a, f, N);
    assert_int_equal(fetch(&b, 1).n_chunks, 1); /* from now on the pace is known */
    uint64_t n = fake_redis_count(f, "GETEX");
    /* Restoring the fetched chunks would take longer than recomputing them. */
    struct remote_want want = {
        .keys = keys, .n = N, .recompute_s = 1000, .restore_s = 2000};
    struct remote_fetched out = fetch_with(&b, want);
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(out.why, REMOTE_MISS_SLOW);
    assert_string_equal(out.text, "recomputing is faster than the remote");
    assert_int_equal(fake_redis_count(f, "GETEX"), n);
    assert_int_equal(stats_of(&b).misses[REMOTE_MISS_SLOW], 1);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* --- erasures --------------------------------------------------------------------------------- */

static void erase(struct server *s, int first, int n)
{
    struct store_erased gone = {0};
    struct err err = {0};
    remote_erase_begin(s->remote);
    assert_int_equal(store_erase(s->store, keys + first, n, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, n);
    remote_erase_end(s->remote, NULL, NULL, 0);
}

/* One server erases the end of a chain. The chunks are deleted in the Redis, then in every other
 * server. For a while they are not fetched, even if another server writes them again. */
static void an_erasure_reaches_every_server(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    char why[200];
    server_open(&a, f);
    server_open(&b, f);
    write_all(&a, f, N);
    assert_int_equal(fetch(&b, N).n_chunks, N);
    uint8_t *bytes = xmalloc(fake_redis_value(f, names[3], NULL));
    size_t n = fake_redis_value(f, names[3], NULL);
    fake_redis_get(f, names[3], bytes);
    WAIT_FOR(stats_of(&a).is_up);
    fake_redis_trouble(f, "XADD", FAKE_REFUSES, INT_MAX);
    erase(&a, 2, 2);
    /* Until the erasure is published, nothing is fetched. */
    struct remote_want want = {.keys = keys, .n = 1, .done = done};
    assert_null(remote_fetch_begin(a.remote, &want, why, sizeof why));
    assert_string_equal(why, "an erasure is on its way to the remote");
    assert_int_equal(stats_of(&a).n_unpublished, 1);
    fake_redis_answer(f);
    WAIT_FOR(stats_of(&a).n_unpublished == 0);
    assert_int_equal(fake_redis_n_added(f), 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(fake_redis_value(f, names[i], NULL) > 0, i < 2);
    WAIT_FOR(st_n_found(b.store, &context, N) == 2);
    WAIT_FOR(atomic_load(&b.n_erased) == 1);
    /* a server does not report its own erasure to itself */
    assert_int_equal(atomic_load(&a.n_erased), 0);
    WAIT_FOR(stats_of(&a).n_erasures_everywhere == 1 &&
             stats_of(&b).n_erasures_everywhere == 1);
    assert_int_equal(fake_redis_n_fields(f), 2);
    struct remote_stats st = stats_of(&b);
    assert_int_equal(st.n_servers, 2);
    assert_int_equal(st.n_erasures, 1);
    assert_int_equal(st.n_unpublished, 0);
    assert_true(remote_is_current(a.remote) && remote_is_current(b.remote));
    assert_true(remote_is_current(NULL));
    /* any value will do, because it is not fetched */
    fake_redis_put(f, names[2], bytes, n);
    fake_redis_put(f, names[3], bytes, n);
    struct remote_fetched out = fetch_with(&b,
                                           (struct remote_want){.keys = keys + 3, .n = 1});
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(out.why, REMOTE_MISS_ABSENT);
    assert_string_equal(out.text, "the remote's copy was erased a moment ago");
    assert_int_equal(st_n_found(b.store, &context, N), 2);
    free(bytes);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* All chunks of an owner are erased, and no others, although the names of chunks do not contain
 * their owner. */
static void an_owners_chunks_are_found_and_erased(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    struct st_ctx salted = {.base = 3, .own = 3, .salt = "tenant"};
    struct sha256 own[2];
    char name[2][NAME_BYTES];
    uint64_t owner = store_owner("tenant");
    struct store_erased gone = {0};
    struct err err = {0};
    server_open(&a, f);
    server_open(&b, f);
    write_all(&a, f, N);
    st_must_save(a.store, &salted, 2);
    st_must_save(b.store, &salted, 2);
    st_must_save(b.store, &context, N);
    st_keys(&salted, 2, own);
    for (int i = 0; i < 2; i++) {
        name_chunk(&own[i], name[i]);
        remote_offer(a.remote, &own[i], 0);
    }
    WAIT_FOR(stats_of(&a).n_written == N + 2);
    fake_redis_put(f, "hcache:1:chunk:short", "too short", 9);
    remote_erase_begin(a.remote);
    assert_int_equal(store_erase_owner(a.store, owner, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, 2);
    remote_erase_end(a.remote, &owner, NULL, 0);
    WAIT_FOR(stats_of(&a).n_unpublished == 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fake_redis_value(f, name[i], NULL), 0);
    for (int i = 0; i < N; i++)
        assert_true(fake_redis_value(f, names[i], NULL) > 0);
    /* the list has one entry for the owner, and none for the owner's chunks */
    assert_int_equal(fake_redis_n_added(f), 1);
    assert_int_equal(fake_redis_count(f, "SCAN"), 2);
    WAIT_FOR(st_n_found(b.store, &salted, 2) == 0);
    assert_int_equal(st_n_found(b.store, &context, N), N);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* An erasure has at most 1,024 keys, so a larger one is several entries. */
static void a_large_erasure_is_several_entries(void **state)
{
    (void)state;
    enum { MANY = ERASURE_MAX_KEYS + 3 };
    struct fake_redis *f = fake_redis_start();
    struct server a;
    struct sha256 *all = xcalloc(MANY, sizeof *all);
    for (int i = 0; i < MANY; i++)
        put_u32(all[i].b, (uint32_t)i + 1);
    server_open(&a, f);
    WAIT_FOR(stats_of(&a).is_up);
    remote_erase_begin(a.remote);
    remote_erase_end(a.remote, NULL, all, MANY);
    WAIT_FOR(stats_of(&a).n_unpublished == 0);
    assert_int_equal(fake_redis_n_added(f), 2);
    assert_int_equal(fake_redis_count(f, "XADD"), 2);
    assert_int_equal(fake_redis_count(f, "UNLINK"), MANY);
    remote_erase_begin(a.remote);
    remote_erase_end(a.remote, NULL, all, ERASURE_MAX_KEYS);
    WAIT_FOR(stats_of(&a).n_unpublished == 0);
    assert_int_equal(fake_redis_n_added(f), 3);
    remote_erase_begin(a.remote); /* nothing is erased, so nothing is published */
    remote_erase_end(a.remote, NULL, NULL, 0);
    assert_int_equal(stats_of(&a).n_unpublished, 0);
    free(all);
    server_close(&a);
    fake_redis_stop(f);
}

/* A text is erased with all that continues it, here and on other servers. The chunks before it
 * stay, and may be fetched again. */
static void an_erased_text_is_gone_everywhere(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    struct store_erased gone = {0};
    struct err err = {0};
    server_open(&a, f);
    server_open(&b, f);
    write_all(&a, f, N);
    assert_int_equal(fetch(&b, N).n_chunks, N);
    /* The text ends within chunk 2, and chunk 3 continues that chunk. */
    struct sha256 text[3] = {keys[0], keys[1]};
    int32_t tokens[STORE_CHUNK_TOKENS];
    st_tokens(&context, 2, tokens);
    text[2] = store_partial_key(&keys[1], tokens, 20);
    remote_erase_begin(a.remote);
    assert_int_equal(store_erase_continuing(a.store, text, 3, &gone, &err), 0);
    remote_erase_end_text(a.remote, text, 3);
    assert_int_equal(gone.n_chunks, 2);
    WAIT_FOR(stats_of(&a).n_unpublished == 0);
    /* the text, and the chunks that were taken away */
    assert_int_equal(fake_redis_n_added(f), 2);
    for (int i = 0; i < N; i++)
        assert_int_equal(fake_redis_value(f, names[i], NULL) > 0, i < 2);
    WAIT_FOR(st_n_found(b.store, &context, N) == 2);
    WAIT_FOR(stats_of(&b).n_erasures == 2);
    assert_true(atomic_load(&b.n_erased) > 0);
    assert_int_equal(st_n_right(a.store, &context, N), 2);
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* Another server erases a text of which this server alone has a continuation. The continuation is
 * erased here and in the Redis, and is not fetched again. */
static void a_continuation_of_an_erased_text_is_banned(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    struct sha256 text[3] = {keys[0], keys[1]};
    int32_t tokens[STORE_CHUNK_TOKENS];
    uint8_t entry[200];
    struct erasure e = {.server = 1, .is_text = true, .n = 3, .keys = text};
    st_tokens(&context, 2, tokens);
    text[2] = store_partial_key(&keys[1], tokens, 20);
    server_open(&a, f);
    write_all(&a, f, N);
    size_t n = fake_redis_value(f, names[2], NULL);
    uint8_t *bytes = xmalloc(n);
    fake_redis_get(f, names[2], bytes);
    erasure_encode(&e, entry);
    fake_redis_add(f, entry, erasure_bytes(3));
    WAIT_FOR(stats_of(&a).n_erasures == 1);
    assert_int_equal(st_n_found(a.store, &context, N), 2);
    assert_int_equal(atomic_load(&a.n_erased), 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(fake_redis_value(f, names[i], NULL) > 0, i < 2);
    assert_int_equal(fake_redis_count(f, "UNLINK"), 2);
    fake_redis_put(f, names[2], bytes, n); /* a server that has not read the erasure */
    struct remote_fetched out = fetch_with(&a,
                                           (struct remote_want){.keys = keys + 2, .n = 1});
    assert_int_equal(out.n_chunks, 0);
    assert_string_equal(out.text, "the remote's copy was erased a moment ago");
    free(bytes);
    server_close(&a);
    fake_redis_stop(f);
}

/* A server bans the chunks that others have erased in the minute before it was opened: a server
 * that has not read the erasure may write them again. */
static void a_new_server_bans_what_was_erased_lately(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a, b;
    uint8_t entry[200];
    int64_t now_ms = clock_wall_s() * 1000;
    server_open(&a, f);
    write_all(&a, f, N);
    /* Chunk 0 was erased long ago. The others were erased lately, the last one in an entry that one
     * answer has no room for. */
    for (int i = 0; i < 20; i++) {
        struct sha256 k = i == 0    ? keys[0]
                          : i == 19 ? keys[3]
                                    : (struct sha256){{(uint8_t)i}};
        struct erasure e = {.server = 1, .n = 1, .keys = &k};
        erasure_encode(&e, entry);
        fake_redis_add_at(f, now_ms - (i == 0 ? 120000 : 30000 - i), entry,
                          erasure_bytes(1));
    }
    WAIT_FOR(stats_of(&a).n_erasures == 20);
    st_must_save(a.store, &context, N);
    offer_all(&a, N, 0); /* it has removed chunks 0 and 3 from the Redis */
    for (int i = 0; i < N; i++)
        WAIT_FOR(fake_redis_value(f, names[i], NULL) > 0);
    server_open(&b, f);
    struct remote_fetched out = fetch_with(&b, (struct remote_want){.keys = keys, .n = 1});
    assert_int_equal(out.n_chunks, 1);
    out = fetch_with(&b, (struct remote_want){.keys = keys + 3, .n = 1});
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(out.why, REMOTE_MISS_ABSENT);
    assert_string_equal(out.text, "the remote's copy was erased a moment ago");
    server_close(&a);
    server_close(&b);
    fake_redis_stop(f);
}

/* --- a server that was away ------------------------------------------------------------------- */

/* A server with a store and a file of its position in the list of erasures leaves, and comes back
 * later. */
static void leave(struct server *s)
{
    remote_on_erased(s->remote, NULL, NULL);
    remote_close(s->remote);
    s->remote = NULL;
}

static void come_back(struct server *s, struct fake_redis *f, const char *place)
{
    join_as(s, &(struct remote_opts){.url = fake_redis_url(f), .place_dir = place});
    WAIT_FOR(remote_is_current(s->remote));
}

static void place_is(const char *dir, const char *want)
{
    char path[300], text[64] = "";
    struct stat st;
    snprintf(path, sizeof path, "%s/remote.erasures", dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, want);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void put_erasure(struct fake_redis *f, const struct sha256 *key)
{
    uint8_t entry[200];
    struct sha256 k = *key;
    struct erasure e = {.server = 1, .n = 1, .keys = &k};
    assert_true(erasure_bytes(1) <= sizeof entry);
    erasure_encode(&e, entry);
    fake_redis_add(f, entry, erasure_bytes(1));
}

/* A server that comes back first drops the chunks that others erased while it was away. It
 * continues after the last entry that it has read, and skips bad entries. If the stream has lost
 * entries that the server has not read, the server drops all its state. If the stream is a new one,
 * the server reads it from the beginning. */
static void a_server_catches_up(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES];
    struct fake_redis *f = fake_redis_start();
    struct server b = {0};
    struct sha256 nobody = {{7}};
    tempdir_make(dir, "remote");
    assert_true(st_place_open(&b.place, "dram", 1));
    b.store = st_open(&b.place);
    st_must_save(b.store, &context, N);
    for (int i = 0; i < 3; i++)
        put_erasure(f, &nobody);
    /* At its first visit a server with a store that is not empty reads older entries, too. It is
     * not current until it has read them. */
    fake_redis_trouble(f, "XINFO", FAKE_REFUSES, INT_MAX);
    join_as(&b, &(struct remote_opts){.url = fake_redis_url(f), .place_dir = dir});
    WAIT_FOR(fake_redis_count(f, "XINFO") > 0);
    assert_false(remote_is_current(b.remote));
    fake_redis_answer(f);
    WAIT_FOR(remote_is_current(b.remote));
    assert_int_equal(stats_of(&b).n_erasures, 3);
    assert_int_equal(st_n_found(b.store, &context, N), N);
    assert_int_equal(atomic_load(&b.n_erased), 0);
    leave(&b);
    place_is(dir, "3 3-0\n");

    fake_redis_add(f, "not an erasure", 14);
    put_erasure(f, &keys[3]);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &context, N), N - 1);
    assert_int_equal(stats_of(&b).n_erasures, 5);
    leave(&b);
    place_is(dir, "5 5-0\n");

    /* The stream may lose entries that the server has read. */
    for (int i = 0; i < 20; i++) /* more entries than one answer has */
        put_erasure(f, &nobody);
    fake_redis_trim(f, 21);
    put_erasure(f, &keys[2]);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &context, N), N - 2);
    assert_int_equal(stats_of(&b).n_erasures, 26);
    leave(&b);
    place_is(dir, "26 26-0\n");

    /* A new stream that has lost no entry. */
    fake_redis_forget(f);
    put_erasure(f, &keys[1]);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &context, N), 1);
    assert_int_equal(stats_of(&b).n_erasures, 1);
    leave(&b);

    /* The stream has lost two entries that the server has not read. */
    put_erasure(f, &nobody);
    put_erasure(f, &nobody);
    put_erasure(f, &nobody);
    fake_redis_trim(f, 1);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &context, N), 0);
    assert_int_equal(stats_of(&b).n_erasures, 4);
    server_close(&b);
    tempdir_remove(dir);
    fake_redis_stop(f);
}

/* A server with an empty store need not read the stream. It counts another server only if that
 * server has reported lately. */
static void an_empty_store_skips_the_stream(void **state)
{
    (void)state;
    struct fake_redis *f = fake_redis_start();
    struct server a;
    char now[64], lately[64], old[64];
    for (int i = 0; i < 30; i++)
        put_erasure(f, &keys[0]);
    snprintf(now, sizeof now, "12 %lld", (long long)clock_wall_s());
    snprintf(lately, sizeof lately, "13 %lld", (long long)clock_wall_s() - 10);
    snprintf(old, sizeof old, "3 %lld", (long long)clock_wall_s() - 40);
    fake_redis_set_field(f, "0000000000000001", now);
    fake_redis_set_field(f, "0000000000000002", old);
    fake_redis_set_field(f, "0000000000000003", "no number");
    fake_redis_set_field(f, "0000000000000004", lately);
    server_open(&a, f);
    assert_true(remote_is_current(a.remote));
    WAIT_FOR(stats_of(&a).n_servers > 0);
    struct remote_stats st = stats_of(&a);
    assert_int_equal(st.n_erasures, 30);
    assert_int_equal(st.n_erasures_everywhere, 12);
    assert_int_equal(st.n_servers, 3);
    assert_int_equal(fake_redis_count(f, "UNLINK"), 0);
    server_close(&a);
    fake_redis_stop(f);
}

/* --- options ---------------------------------------------------------------------------------- */

static void names_and_options(void **state)
{
    (void)state;
    static const char *const misses[REMOTE_MISSES] = {"none",   "absent", "resting",
                                                      "silent", "slow",   "failed",
                                                      "wrong",  "store",  "cancelled"};
    static const struct {
        const char *text;
        enum remote_when when;
    } whens[] = {{NULL, REMOTE_WHEN_COMMITTED},
                 {"always", REMOTE_WHEN_COMMITTED},
                 {"idle", REMOTE_WHEN_ENDED},
                 {"use", REMOTE_WHEN_USED}};
    enum remote_when when;
    struct err err = {0};
    struct remote *r = NULL;
    for (int i = 0; i < REMOTE_MISSES; i++)
        assert_string_equal(remote_miss_name((enum remote_miss)i), misses[i]);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(remote_when_parse(whens[i].text, &when, &err), 0);
        assert_int_equal(when, whens[i].when);
    }
    assert_int_equal(remote_when_parse("never", &when, &err), ERR_USAGE);
    assert_string_equal(err.msg, "remote-write: 'never' is none of idle, use, always");
    const struct remote_opts o = {.url = "redis://h", .ca_file = "ca.pem"};
    assert_int_equal(remote_open(&o, &r, &err), ERR_USAGE);
    assert_string_equal(err.msg,
                        "--remote-ca, --remote-cert and --remote-key need rediss://");
    assert_null(r);
}

static int prepare(void **state)
{
    (void)state;
    alarm(PATIENCE_S);
    st_keys(&context, N, keys);
    for (int i = 0; i < N; i++)
        name_chunk(&keys[i], names[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offers_are_written_once),
        cmocka_unit_test(a_chain_is_fetched_up_to_a_gap),
        cmocka_unit_test(a_wrong_value_is_removed),
        cmocka_unit_test(a_chunk_of_others_is_wrong),
        cmocka_unit_test(sizes_that_are_no_chunks),
        cmocka_unit_test(a_full_store_takes_what_fits),
        cmocka_unit_test(many_offers_are_settled),
        cmocka_unit_test(offers_are_written_before_the_end),
        cmocka_unit_test(a_full_remote_refuses_one_chunk),
        cmocka_unit_test(a_chunk_that_ends_connections_is_dropped),
        cmocka_unit_test(a_remote_that_is_gone_rests),
        cmocka_unit_test(a_fetch_is_given_up),
        cmocka_unit_test(a_waiting_fetch_ends_by_itself),
        cmocka_unit_test(a_crawling_remote_is_given_up),
        cmocka_unit_test(an_idle_remote_is_probed),
        cmocka_unit_test(the_writer_steps_back),
        cmocka_unit_test(a_dear_remote_is_not_asked_for_chunks),
        cmocka_unit_test(an_erasure_reaches_every_server),
        cmocka_unit_test(an_owners_chunks_are_found_and_erased),
        cmocka_unit_test(a_large_erasure_is_several_entries),
        cmocka_unit_test(an_erased_text_is_gone_everywhere),
        cmocka_unit_test(a_continuation_of_an_erased_text_is_banned),
        cmocka_unit_test(a_new_server_bans_what_was_erased_lately),
        cmocka_unit_test(a_server_catches_up),
        cmocka_unit_test(an_empty_store_skips_the_stream),
        cmocka_unit_test(names_and_options),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
