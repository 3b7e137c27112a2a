/* test_copies.c - copies in DRAM under the seeded interleaver (turns.h): chunks are read, fetched and erased
 * at once, while the tier's thread makes room.
 *
 * Checked with each seed: a record that is served has the right bytes until its reader lets go of it;
 * when an erasure has returned and nobody used its chunks, the arena holds no byte of them; the books
 * are right at the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/step.h"
#include "io/io_sim.h"
#include "store/store_impl.h"
#include "tests/state/turns.h"
#include "tests/store/storetest.h"

enum { SEEDS = 150, ROUNDS = 6, N_CTX = 4, N_CHUNKS = 6, ARENA = 1 << 20 };

void shared_test_turn(void)
{
    turns_shared();
}

static uint8_t *arena;

static void *arena_get(void *arg, size_t bytes)
{
    (void)arg;
    return arena = mem_map(bytes);
}

static void arena_put(void *arg, void *p, size_t bytes)
{
    (void)arg;
    mem_unmap(p, bytes);
}

struct world {
    uint64_t seed;
    struct io *io;
    struct store *s;
    bool quits;
    uint64_t n_dram, n_erased, n_busy, n_promoted, n_demoted;
};

static struct st_ctx ctx_of(uint64_t n)
{
    return (struct st_ctx){.base = 1 + n % N_CTX, .own = 1};
}

static void save(struct world *w, uint64_t n)
{
    struct st_ctx c = ctx_of(n);
    struct err err = {0};
    if (st_save(w->s, &st_small, &c, N_CHUNKS, ST_BOTH, &err) != 0)
        turns_fail("saving fails: %s", err.msg);
}

/* Whether any record of the chunk begins somewhere in the arena. */
static bool arena_has(const struct sha256 *key)
{
    uint8_t want[32];
    for (int l = 0; l < st_small.n_layers; l++)
        for (int k = 0; k < STORE_KINDS; k++) {
            st_fill(key, l, (enum store_kind)k, want, sizeof want);
            for (size_t at = 0; at < ARENA; at += STORE_ALIGN)
                if (memcmp(arena + at, want, sizeof want) == 0)
                    return true;
        }
    return false;
}

static void *read_main(void *arg)
{
    struct world *w = arg;
    struct rng r = {.s = w->seed ^ 0x7265};
    while (!w->quits) {
        struct st_ctx c = ctx_of(rng_u64(&r));
        struct st_result got;
        struct err err = {0};
        if (st_read_dram(w->s, &st_small, &c, N_CHUNKS, &got, &err) != 0)
            turns_fail("reading fails: %s", err.msg);
        if (got.n_wrong + got.n_corrupt + got.n_unread > 0)
            turns_fail("a record is wrong");
        w->n_dram += (uint64_t)got.n_dram;
        clock_sleep_ns((int64_t)rng_below(&r, 1000000));
    }
    return NULL;
}

static void *fetch_main(void *arg)
{
    struct world *w = arg;
    struct rng r = {.s = w->seed ^ 0x6665};
    struct store_fetcher *f;
    struct err err = {0};
    if (store_fetcher_open(w->s, &f, &err) != 0)
        turns_fail("no fetcher: %s", err.msg);
    while (!w->quits) {
        struct sha256 keys[N_CHUNKS];
        struct st_ctx c = ctx_of(rng_u64(&r));
        st_keys(&c, N_CHUNKS, keys);
        store_fetch_want(w->s, &r, keys, N_CHUNKS, rng_below(&r, 9));
        for (int i = 0; i < 10; i++)
            if (store_fetch_step(f) == STORE_FETCH_IN_FLIGHT)
                store_fetch_wait(f, 100000);
        store_fetch_want_end(w->s, &r);
        clock_sleep_ns((int64_t)rng_below(&r, 1000000));
    }
    store_fetcher_close(f);
    return NULL;
}

/* Erases a context, and saves another one meanwhile absent. */
static void erase_one(struct world *w, struct rng *r)
{
    struct sha256 keys[N_CHUNKS];
    struct store_erased out;
    struct err err = {0};
    uint64_t n = rng_u64(r);
    struct st_ctx c = ctx_of(n);
    st_keys(&c, N_CHUNKS, keys);
    if (store_erase(w->s, keys, N_CHUNKS, &out, &err) != 0)
        turns_fail("erasing fails: %s", err.msg);
    w->n_erased += out.n_chunks;
    w->n_busy += out.n_busy > 0;
    for (int i = 0; i < N_CHUNKS && out.n_busy == 0; i++)
        if (arena_has(&keys[i]))
            turns_fail("chunk %d is erased, and its bytes are in the arena", i);
    if (rng_below(r, 2) == 0)
        save(w, n);
}

static void world_main(void *arg)
{
    struct world *w = arg;
    static const char *const dirs[] = {"/store"};
    struct rng r = {.s = w->seed};
    struct err err = {0};
    pthread_t reader, fetcher;
    struct store_opts so = {.io = w->io,
                            .dirs = dirs,
                            .n_dirs = 1,
                            .segment_bytes = 1 << 20,
                            .dram_bytes = ARENA,
                            .memory = {arena_get, arena_put, NULL}};
    if (store_open(&so, &w->s, &err) != 0)
        turns_fail("opening fails: %s", err.msg);
    for (uint64_t n = 0; n < N_CTX; n++)
        save(w, n);
    pthread_create(&reader, NULL, read_main, w);
    pthread_create(&fetcher, NULL, fetch_main, w);
    for (int i = 0; i < ROUNDS; i++) {
        erase_one(w, &r);
        clock_sleep_ns((int64_t)rng_below(&r, 2000000));
    }
    w->quits = true;
    pthread_join(reader, NULL);
    pthread_join(fetcher, NULL);
    if (!store_audit(w->s))
        turns_fail("the books are wrong");
    struct store_dram d;
    store_dram_stats(w->s, &d);
    w->n_promoted += d.n_promoted;
    w->n_demoted += d.n_demoted;
    store_close(w->s);
}

static void nothing_erased_stays_and_nothing_read_changes(void **state)
{
    (void)state;
    struct world w = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct err err = {0};
        w.seed = seed;
        w.quits = false;
        assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = seed}, &w.io, &err), 0);
        turns_run(&(struct turns_opts){.seed = seed}, world_main, &w, NULL);
        io_close(w.io);
    }
    printf("served from DRAM %llu, erased %llu, busy %llu, fetched %llu, demoted %llu\n",
           (unsigned long long)w.n_dram, (unsigned long long)w.n_erased,
           (unsigned long long)w.n_busy, (unsigned long long)w.n_promoted,
           (unsigned long long)w.n_demoted);
    assert_true(w.n_dram > 0 && w.n_erased > 0 && w.n_busy > 0);
    assert_true(w.n_promoted > 0 && w.n_demoted > 0);
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    printf("# skipped: all threads run in one, where the thread sanitizer sees nothing\n");
    return 0;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_erased_stays_and_nothing_read_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
