/* test_copies.c - copies in DRAM under the seeded interleaver (turns.h).
 *
 * Chunks are read, fetched by two fetchers, superseded and erased concurrently, while the tier's
 * thread makes room in a full arena. In a third of the worlds bits flip on the disk; in another
 * third reads hang.
 *
 * Each seed checks the following:
 * - A record that is served has the right bytes until its reader releases it.
 * - Without trouble every record is served.
 * - After an erasure of chunks that were not in use, the arena holds none of their bytes.
 * - No copy of a superseded chunk is found.
 * - A damaged chunk is condemned once, and no other chunk is.
 * - At the end the tier's counts agree with its content. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include <pthread.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/step.h"
#include "sim/io_sim.h"
#include "store/store_impl.h"
#include "tests/restore/turns.h"
#include "tests/store/storetest.h"

enum { SEEDS = 150, ROUNDS = 6, N_CTX = 4, N_CHUNKS = 6, ARENA = 1 << 20 };
enum trouble { NONE, DAMAGE, HANGS, TROUBLES };

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
    enum trouble trouble;
    int n_fetchers;
    uint64_t n_flips; /* number of bits that were flipped in this world */
    uint64_t n_condemned, n_failed, n_superseded;
    uint64_t n_dram, n_erased, n_busy, n_promoted, n_demoted, n_told;
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

/* Returns whether any record of the chunk begins anywhere in the arena. */
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
        bool none_lost = got.n_corrupt == 0 && (got.n_unread == 0 || w->trouble != NONE);
        if (got.n_wrong > 0 || (!none_lost && w->trouble != DAMAGE))
            turns_fail("a record is wrong");
        w->n_failed += (uint64_t)got.n_unread;
        w->n_dram += (uint64_t)got.n_dram;
        clock_sleep_ns((int64_t)rng_below(&r, 1000000));
    }
    return NULL;
}

static void *fetch_main(void *arg)
{
    struct world *w = arg;
    struct rng r = {.s = w->seed ^ 0x6665 ^ (uint64_t)w->n_fetchers++};
    struct store_fetcher *f;
    struct err err = {0};
    if (store_fetcher_open(w->s, &f, &err) != 0)
        turns_fail("no fetcher: %s", err.msg);
    while (!w->quits) {
        struct sha256 keys[N_CHUNKS];
        struct st_ctx c = ctx_of(rng_u64(&r));
        st_keys(&c, N_CHUNKS, keys);
        store_fetch_want(w->s, &r, keys, N_CHUNKS, rng_below(&r, 9));
        struct store_held held = {store_chunk_name(&keys[rng_below(&r, N_CHUNKS)]),
                                  rng_below(&r, 2) == 0};
        w->n_told += store_tell_held(w->s, &held, 1);
        for (int i = 0; i < 10; i++)
            if (store_fetch_step(f) == STORE_FETCH_IN_FLIGHT)
                store_fetch_wait(f, 100000);
        store_fetch_want_end(w->s, &r);
        clock_sleep_ns((int64_t)rng_below(&r, 1000000));
    }
    store_fetcher_close(f);
    return NULL;
}

/* Erases a context and saves another context that was absent. */
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

/* Flips a bit of a stored chunk. */
static void damage_one(struct world *w, struct rng *r)
{
    struct sha256 keys[N_CHUNKS];
    struct st_ctx c = ctx_of(rng_u64(r));
    char path[64] = "";
    uint64_t offset = 0;
    st_keys(&c, N_CHUNKS, keys);
    pthread_mutex_lock(&w->s->lock);
    const struct chunk_node *n = catalog_find(&w->s->catalog,
                                              &keys[rng_below(r, N_CHUNKS)]);
    if (n != NULL && n->n_live > 0) {
        const struct extent *x = n->extents;
        offset = x->offset + CHUNK_HEADER_BYTES + rng_below(r, 400);
        snprintf(path, sizeof path, "/store/seg-%06u.hc", x->segment);
    }
    pthread_mutex_unlock(&w->s->lock);
    if (path[0] != 0 && io_sim_flip(w->io, path, offset, 2) == 0)
        w->n_flips++;
}

/* Makes some of the next reads of chunks hang. */
static void hang_some(struct world *w, struct rng *r)
{
    struct io_sim_fault fault = {.kind = IO_SIM_STUCK,
                                 .on = IO_SIM_ON_READ,
                                 .path = "seg",
                                 .skip = rng_below(r, 8),
                                 .count = 1 + rng_below(r, 3)};
    (void)io_sim_fault_add(w->io, &fault);
}

/* Replaces a context's partial chunk with the full one. */
static void supersede_one(struct world *w, int round)
{
    struct st_ctx c = {.base = 100 + (uint64_t)round, .own = 1};
    struct sha256 keys[2];
    struct err err = {0};
    uint8_t bytes[700];
    struct store_record record = {.kind = STORE_KV, .bytes = bytes, .n_bytes = 700};
    struct store_chunk part = {.fingerprint = st_fingerprint(c.model),
                               .chunk_idx = 1,
                               .n_tokens = 20,
                               .records = &record,
                               .n_records = 1,
                               .yields = true};
    st_keys(&c, 2, keys);
    st_tokens(&c, 1, part.tokens);
    part.parent = keys[0];
    part.key = store_partial_key(&part.parent, part.tokens, 20);
    st_fill(&part.key, 0, STORE_KV, bytes, sizeof bytes);
    struct store_chunk full = part;
    full.key = keys[1];
    full.n_tokens = STORE_CHUNK_TOKENS;
    full.yields = false;
    full.supersedes = &part.key;
    if (st_save(w->s, &st_small, &c, 1, ST_BOTH, &err) != 0 ||
        store_append(w->s, &part, &err) != 0 || store_commit(w->s, &err) != 0 ||
        store_append(w->s, &full, &err) != 0 || store_commit(w->s, &err) != 0)
        turns_fail("superseding fails: %s", err.msg);
    pthread_mutex_lock(&w->s->lock);
    const struct chunk_node *n = catalog_find(&w->s->catalog, &part.key);
    if (n != NULL && (n->copied != NULL || n->n_live > 0))
        turns_fail("a superseded chunk is still found");
    pthread_mutex_unlock(&w->s->lock);
    w->n_superseded++;
}

static void make_trouble(struct world *w, struct rng *r)
{
    if (w->trouble == DAMAGE)
        damage_one(w, r);
    else if (w->trouble == HANGS)
        hang_some(w, r);
}

static void take_counts(struct world *w)
{
    struct store_stats st;
    store_stats(w->s, &st);
    w->n_promoted += st.dram.n_promoted;
    w->n_demoted += st.dram.n_demoted;
    w->n_condemned += st.n_corrupt;
    if (st.n_corrupt > w->n_flips)
        turns_fail("%llu chunks are condemned after %llu flips",
                   (unsigned long long)st.n_corrupt, (unsigned long long)w->n_flips);
}

static void world_main(void *arg)
{
    struct world *w = arg;
    static const char *const dirs[] = {"/store"};
    struct rng r = {.s = w->seed};
    struct err err = {0};
    pthread_t reader, fetchers[2];
    struct store_opts so = {.io = w->io,
                            .dirs = dirs,
                            .n_dirs = 1,
                            .segment_bytes = 1 << 20,
                            .dram_bytes = ARENA,
                            .stuck_ns = 3000000,
                            .memory = {arena_get, arena_put, NULL}};
    if (store_open(&so, &w->s, &err) != 0)
        turns_fail("opening fails: %s", err.msg);
    for (uint64_t n = 0; n < N_CTX; n++)
        save(w, n);
    pthread_create(&reader, NULL, read_main, w);
    for (int i = 0; i < 2; i++)
        pthread_create(&fetchers[i], NULL, fetch_main, w);
    for (int i = 0; i < ROUNDS; i++) {
        make_trouble(w, &r);
        erase_one(w, &r);
        if (rng_below(&r, 3) == 0)
            supersede_one(w, i);
        clock_sleep_ns((int64_t)rng_below(&r, 2000000));
    }
    w->quits = true;
    pthread_join(reader, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(fetchers[i], NULL);
    if (!store_audit(w->s))
        turns_fail("the books are wrong");
    take_counts(w);
    store_close(w->s);
}

TEST(nothing_erased_stays_and_nothing_read_changes)
{
    struct world w = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct err err = {0};
        w.seed = seed;
        w.quits = false;
        w.trouble = (enum trouble)(seed % TROUBLES);
        w.n_flips = 0;
        w.n_fetchers = 0;
        assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = seed}, &w.io, &err), 0);
        turns_run(&(struct turns_opts){.seed = seed}, world_main, &w, NULL);
        io_close(w.io);
    }
    printf("served from DRAM %llu, erased %llu, busy %llu, fetched %llu, demoted %llu, "
           "superseded %llu, condemned %llu, failed %llu\n",
           (unsigned long long)w.n_dram, (unsigned long long)w.n_erased,
           (unsigned long long)w.n_busy, (unsigned long long)w.n_promoted,
           (unsigned long long)w.n_demoted, (unsigned long long)w.n_superseded,
           (unsigned long long)w.n_condemned, (unsigned long long)w.n_failed);
    assert_true(w.n_dram > 0 && w.n_erased > 0 && w.n_busy > 0);
    assert_true(w.n_promoted > 0 && w.n_demoted > 0 && w.n_told > 0);
    assert_true(w.n_superseded > 0 && w.n_condemned > 0 && w.n_failed > 0);
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP all threads run in one, where the thread sanitizer sees nothing\n");
    return 0;
#endif
    return unit_run(NULL, NULL);
}
