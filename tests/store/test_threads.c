/* test_threads.c - several threads on one store: savers of the same contexts, readers and a
 * maintainer.
 *
 * Equal chunks are stored once, nothing wrong is read, and the audit agrees at the end.  The test
 * is also meant for VARIANT=tsan. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/rng.h"
#include "io/io.h"
#include "storetest.h"

/* liburing maps its rings by raw system calls, which the thread sanitizer does not see: a ring
 * at the address of an earlier thread's ring looks like a race. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:io_uring_\n";
}

enum { N_CTX = 6, N_CHUNKS = 5, N_ROUNDS = 60 };

/* All chunks take the same bytes, however many appends their records came in. */
static const struct st_shape shape = {
    .n_layers = 3, .n_bytes = {5000, 9001}, .is_plain = true};

struct shared {
    struct store *s;
    atomic_int n_wrong, n_failed, n_read, n_full;
    atomic_bool stop;
};

struct thread {
    struct shared *sh;
    pthread_t id;
    uint64_t seed;
};

static struct st_ctx ctx_of(uint64_t n)
{
    return (struct st_ctx){.base = 1, .own = n % N_CTX, .branch = 2};
}

static void *saver(void *arg)
{
    struct thread *t = arg;
    struct rng r = {t->seed};
    for (int i = 0; i < N_ROUNDS; i++) {
        struct st_ctx c = ctx_of(rng_u64(&r));
        struct err err = {0};
        int rc = st_save(t->sh->s, &shape, &c, 1 + (int)rng_below(&r, N_CHUNKS),
                         1 + (int)rng_below(&r, 3), &err);
        if (rc == ERR_LIMIT)
            t->sh->n_full++;
        else if (rc != 0)
            t->sh->n_failed++;
    }
    return NULL;
}

static void *reader(void *arg)
{
    struct thread *t = arg;
    struct rng r = {t->seed};
    while (!t->sh->stop) {
        struct st_ctx c = ctx_of(rng_u64(&r));
        struct st_result result;
        struct err err = {0};
        if (st_read_dram(t->sh->s, &shape, &c, N_CHUNKS, &result, &err) != 0)
            t->sh->n_failed++;
        t->sh->n_wrong += result.n_wrong + result.n_corrupt + result.n_unread;
        t->sh->n_read += result.n_records;
    }
    return NULL;
}

/* Announces waiting requests for one of the two threads that read ahead. Without a DRAM tier the
 * thread does nothing. */
static void *fetcher(void *arg)
{
    struct thread *t = arg;
    struct rng r = {t->seed};
    struct store_fetcher *f;
    struct err err = {0};
    if (store_fetcher_open(t->sh->s, &f, &err) != 0)
        t->sh->n_failed++;
    while (f != NULL && !t->sh->stop) {
        struct sha256 keys[N_CHUNKS];
        struct st_ctx c = ctx_of(rng_u64(&r));
        st_keys(&c, N_CHUNKS, keys);
        store_fetch_want(t->sh->s, t, keys, N_CHUNKS, rng_below(&r, 10));
        for (int i = 0; i < 20; i++)
            if (store_fetch_step(f) == STORE_FETCH_IN_FLIGHT)
                store_fetch_wait(f, 100000);
        store_fetch_want_end(t->sh->s, t);
    }
    store_fetcher_close(f);
    return NULL;
}

static void *maintainer(void *arg)
{
    struct thread *t = arg;
    struct rng r = {t->seed};
    while (!t->sh->stop) {
        struct sha256 keys[N_CHUNKS];
        struct store_hit hits[N_CHUNKS];
        struct store_stats st;
        struct store_verify v;
        struct err err = {0};
        uint64_t freed;
        int n_hits, rc = 0;
        struct st_ctx c = ctx_of(rng_u64(&r));
        st_keys(&c, N_CHUNKS, keys);
        store_stats(t->sh->s, &st);
        if (st.cap_bytes != 0 && st.used_bytes > st.cap_bytes)
            t->sh->n_failed++;
        switch (rng_below(&r, 8)) {
        case 0:
            n_hits = store_lookup(t->sh->s, NULL, keys, N_CHUNKS, hits, NULL, 0);
            if (n_hits > 0)
                store_condemn(t->sh->s, &hits[n_hits - 1], "a test");
            store_release(t->sh->s, hits, n_hits);
            break;
        case 1:
            rc = store_gc(t->sh->s, &freed, &err);
            break;
        case 2:
            rc = store_verify(t->sh->s, &v, NULL, NULL, NULL, &err);
            t->sh->n_wrong += (int)v.n_bad;
            break;
        case 3: {
            struct store_erased e;
            int from = (int)rng_below(&r, N_CHUNKS);
            rc = store_erase(t->sh->s, &keys[from], N_CHUNKS - from, &e, &err);
            break;
        }
        case 4:
            rc = store_pin_until(t->sh->s, keys, N_CHUNKS, clock_wall_s() + 100, &err);
            if (rc == 0)
                rc = store_unpin_keys(t->sh->s, keys + 1, N_CHUNKS - 1, &err);
            break;
        default:
            rc = store_commit(t->sh->s, &err);
        }
        if (rc != 0)
            t->sh->n_failed++;
    }
    return NULL;
}

static void together(const char *kind, uint64_t cap_bytes, uint64_t dram_bytes)
{
    enum { N_SAVERS = 3, N_READERS = 2, N_FETCHERS = 2 };
    enum { N_OTHERS = N_SAVERS + N_READERS, N = N_OTHERS + 1 + N_FETCHERS };
    struct st_place p;
    if (!st_place_open(&p, kind, strcmp(kind, "dram") == 0 ? 1 : 2))
        skip();
    p.opts.cap_bytes = cap_bytes;
    p.opts.dram_bytes = dram_bytes;
    struct shared sh = {.s = st_open(&p)};
    struct thread threads[N];
    for (int i = 0; i < N; i++) {
        threads[i] = (struct thread){.sh = &sh, .seed = (uint64_t)i};
        void *(*body)(void *) = i < N_SAVERS   ? saver
                                : i < N_OTHERS ? reader
                                : i > N_OTHERS ? fetcher
                                               : maintainer;
        assert_int_equal(pthread_create(&threads[i].id, NULL, body, &threads[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        for (int ms = 0; i == N_SAVERS && sh.n_read == 0 && ms < 20000; ms++)
            clock_sleep_ns(1000000); /* the savers may finish before a reader has begun */
        if (i == N_SAVERS)
            sh.stop = true;
        pthread_join(threads[i].id, NULL);
    }
    assert_int_equal(sh.n_failed, 0);
    assert_int_equal(sh.n_wrong, 0);
    assert_true(sh.n_read > 0);
    assert_true(store_audit(sh.s));
    /* Without a cap everything fits. After one more save every record is there exactly once. */
    if (cap_bytes == 0) {
        struct store_stats st;
        for (uint64_t i = 0; i < N_CTX; i++) {
            struct st_ctx c = ctx_of(i);
            assert_int_equal(st_save(sh.s, &shape, &c, N_CHUNKS, ST_BOTH, NULL), 0);
        }
        store_stats(sh.s, &st);
        uint64_t n_chunks = 2 + N_CTX * (N_CHUNKS - 2), record_bytes = 3 * (8192 + 12288);
        assert_int_equal(st.n_chunks, n_chunks);
        assert_int_equal(st.used_bytes - st.freeing_bytes - st.n_extents * 4096,
                         n_chunks * record_bytes);
    }
    store_close(sh.s);
    st_place_close(&p);
}

TEST(dram)
{
    together("dram", 0, 0);
}

TEST(sim)
{
    together("sim", 0, 0);
}

/* The arena holds 16 of the 20 chunks. */
TEST(sim_with_copies)
{
    together("sim", 0, 1 << 20);
}

TEST(sim_with_cap)
{
    together("sim", 16 * 70000, 0);
}

TEST(uring)
{
    together("uring", 0, 1 << 20);
}
