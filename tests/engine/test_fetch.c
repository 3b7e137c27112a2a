/* test_fetch.c - chunks of waiting requests are read ahead into DRAM, and restored from there bit
 * for bit. */
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "engine/seq.h"
#include "restore/dram_tier.h"
#include "store/chain.h"
#include "store/store_impl.h"
#include "tests/engine/waiting.h"

static const int32_t *const prompt = wt_prompt;

/* Makes the platform predict that recomputation takes minutes. With less, a thread that waits for a
 * processor looks like a disk that hangs: recomputation then races the reads, and may win. The disk
 * is slow in proportion: otherwise the prefill of new tokens would hide its reads, and reading
 * ahead would gain nothing. */
static void slow_compute(struct stack *k)
{
    et_platform(&k->platform, 1, 1e-6, 1e-7, 1e4);
}

static void open_cold(struct stack *k, struct io *disk, const char *prefetch)
{
    et_open(k, &(struct stack_opts){.io = disk,
                                    .user.store = et_dirs,
                                    .user.n_store = 2,
                                    .user.dram_bytes = 32 << 20,
                                    .user.prefetch = prefetch});
    slow_compute(k);
}

static int n_wants(const struct stack *k)
{
    pthread_mutex_lock(&k->store->lock);
    int n = k->store->wants.n;
    pthread_mutex_unlock(&k->store->lock);
    return n;
}

static uint64_t n_promoted(const struct stack *k)
{
    struct store_dram d;
    store_dram_stats(k->store, &d);
    return d.n_promoted;
}

TEST(a_waiting_request_is_restored_from_dram)
{
    struct stack k;
    struct et_run want, got;
    struct io *disk = wt_disk(&want);
    open_cold(&k, disk, NULL);
    struct seq *first = wt_occupy(&k);
    struct seq *s = wt_add(&k, prompt, WT_PROMPT, 8);
    wt_step(&k);
    assert_int_equal(s->phase, PHASE_WAIT);
    /* Fetches go on although the engine makes no step. Each chunk has two extents. */
    while (n_promoted(&k) < 2 * WT_CHUNKS)
        clock_sleep_ns(1000000);
    assert_int_equal(n_wants(&k), 1);
    while (s->phase == PHASE_WAIT)
        wt_step(&k);
    assert_int_equal(n_wants(&k), 0); /* the request restores now, so it no longer waits */
    wt_run(&k, s, &got);
    assert_int_equal(got.n_cached, WT_CHUNKS * 64);
    assert_int_equal(got.restore.dram_tokens, WT_CHUNKS * 64);
    assert_int_equal(got.restore.dram_bytes, got.restore.read_bytes);
    et_same(&want, &got, "fetched, and restored from DRAM");
    wt_run(&k, first, &got);
    stack_close(&k);
    io_close(disk);
}

/* Nothing is fetched with --prefetch off, for requests that were cancelled, and for state in the KV
 * pool. */
TEST(only_what_is_needed_is_fetched)
{
    struct stack k;
    struct et_run want, got;
    struct io *disk = wt_disk(&want);
    open_cold(&k, disk, "off");
    struct seq *first = wt_occupy(&k);
    struct seq *s = wt_add(&k, prompt, WT_PROMPT, 8);
    wt_step(&k);
    assert_int_equal(s->phase, PHASE_WAIT);
    assert_int_equal(n_wants(&k), 0);
    wt_run(&k, first, &got);
    wt_run(&k, s, &got);
    et_same(&want, &got, "nothing is fetched");
    assert_int_equal(n_promoted(&k), 0);
    stack_close(&k);

    open_cold(&k, disk, "on");
    first = wt_occupy(&k);
    s = wt_add(&k, prompt, WT_PROMPT, 8);
    wt_step(&k);
    assert_int_equal(n_wants(&k), 1);
    engine_remove(k.engine, s); /* cancelled */
    assert_int_equal(n_wants(&k), 0);
    wt_run(&k, first, &got);
    s = wt_add(&k, prompt, WT_PROMPT, 8);
    wt_run(&k, s, &got); /* leaves its blocks in the KV pool */
    first = wt_occupy(&k);
    s = wt_add(&k, prompt, WT_PROMPT, 8);
    wt_step(&k);
    assert_int_equal(s->phase, PHASE_WAIT);
    assert_int_equal(n_wants(&k), 0);
    wt_run(&k, first, &got);
    wt_run(&k, s, &got);
    assert_int_equal(got.n_device, WT_PROMPT - 1);
    stack_close(&k);
    io_close(disk);
}

/* The arena has room for one context. When the first request computes, its copies make room for
 * those of the second request, even if nothing else happens. */
TEST(room_is_used_again_at_once)
{
    struct stack k;
    struct et_run want, got;
    struct io *disk = wt_disk(&want);
    static int32_t second[WT_PROMPT];
    const struct et_ask ask = {
        .prompt = second, .n_prompt = WT_PROMPT, .max_tokens = 8, .save = "kv"};
    et_prompt(second, WT_PROMPT, 3);
    const struct stack_opts o = {
        .io = disk, .user.store = et_dirs, .user.n_store = 2, .user.dram_bytes = 1 << 20};
    et_open(&k, &(struct stack_opts){.io = disk, .user.store = et_dirs, .user.n_store = 2});
    assert_int_equal(et_run(&k, &ask, &got), 0);
    stack_close(&k);

    et_open(&k, &o);
    slow_compute(&k);
    struct seq *first = wt_occupy(&k);
    struct seq *p = wt_add(&k, prompt, WT_PROMPT, 8), *q = wt_add(&k, second, WT_PROMPT, 8);
    wt_step(&k);
    while (n_promoted(&k) < 2 * WT_CHUNKS)
        clock_sleep_ns(1000000);
    wt_run(&k, first, &got);
    while (p->phase != PHASE_DECODE)
        wt_step(&k);
    assert_int_equal(q->phase, PHASE_WAIT);
    while (n_promoted(&k) < 4 * WT_CHUNKS)
        clock_sleep_ns(1000000);
    wt_run(&k, p, &got);
    et_same(&want, &got, "the first");
    wt_run(&k, q, &got);
    assert_int_equal(got.n_cached, WT_CHUNKS * 64);
    stack_close(&k);
    io_close(disk);
}

/* Nothing is read ahead for a request whose new tokens take longer to compute than its state takes
 * to load: they hide the load. */
TEST(a_long_prompt_is_not_read_ahead_for)
{
    static int32_t longer[WT_PROMPT + 400];
    struct stack k;
    struct et_run want, got;
    struct io *disk = wt_disk(&want);
    open_cold(&k, disk, NULL);
    et_platform(&k.platform, 1e-3, 1e-6, 1e-7, 1e7);
    et_prompt(longer, WT_PROMPT + 400, 5);
    memcpy(longer, prompt, sizeof wt_prompt);
    struct seq *first = wt_occupy(&k);
    struct seq *s = wt_add(&k, longer, WT_PROMPT + 400, 4);
    wt_step(&k);
    assert_int_equal(s->phase, PHASE_WAIT);
    assert_int_equal(n_wants(&k), 0);
    /* the same history with few new tokens */
    struct seq *q = wt_add(&k, prompt, WT_PROMPT, 4);
    wt_step(&k);
    assert_int_equal(q->phase, PHASE_WAIT);
    assert_int_equal(n_wants(&k), 1);
    wt_run(&k, first, &got);
    wt_run(&k, s, &got);
    wt_run(&k, q, &got);
    stack_close(&k);
    io_close(disk);
}

/* A request at the head of the queue never waits for a fetch of a later one: while a restore has
 * reads in flight, here one that hangs, no fetch begins. */
TEST(restores_come_before_fetches)
{
    struct stack k;
    struct et_run want, got;
    struct store_dram d;
    static int32_t second[WT_PROMPT];
    struct io *disk = wt_disk(&want);
    const struct et_ask ask = {
        .prompt = second, .n_prompt = WT_PROMPT, .max_tokens = 8, .save = "kv"};
    et_prompt(second, WT_PROMPT, 3);
    et_open(&k, &(struct stack_opts){.io = disk, .user.store = et_dirs, .user.n_store = 2});
    assert_int_equal(et_run(&k, &ask, &got), 0);
    stack_close(&k);

    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.max_sequences = 1,
                                     .user.dram_bytes = 32 << 20});
    wt_slow_disk(&k);
    struct seq *p = wt_add(&k, prompt, WT_PROMPT, 8);
    const struct io_sim_fault fault = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg", .count = 1};
    assert_int_equal(io_sim_fault_add(disk, &fault), 0);
    while (p->phase != PHASE_RESTORE || io_sim_fault_count(disk, IO_SIM_STUCK, 0) == 0)
        wt_step(&k);
    struct seq *q = wt_add(&k, second, WT_PROMPT, 8);
    wt_step(&k);
    assert_int_equal(q->phase, PHASE_WAIT);
    assert_int_equal(n_wants(&k), 1);
    clock_sleep_ns(50000000); /* a fetch takes less than a millisecond */
    store_dram_stats(k.store, &d);
    assert_int_equal(d.used_bytes, 0); /* a fetch takes its room when it begins */
    io_sim_fault_clear(disk);
    wt_run(&k, p, &got);
    et_same(&want, &got, "the first");
    wt_run(&k, q, &got);
    stack_close(&k);
    io_close(disk);
}

/* Opens a stack whose disk is faster than the system provides memory. ahead_bytes is the part of
 * the copies' memory that is provided ahead; 0: all of it. */
static void open_priced(struct stack *k, struct io *disk, uint64_t ahead_bytes)
{
    et_open(k, &(struct stack_opts){.io = disk,
                                    .user.store = et_dirs,
                                    .user.n_store = 2,
                                    .user.dram_bytes = 32 << 20,
                                    .dram_ahead_bytes = ahead_bytes});
    et_platform(&k->platform, 1e-9, 1e-12, 1e-12, 1e12);
}

static double price_of_prompt(const struct stack *k)
{
    struct chain c;
    chain_init(&c, &k->fingerprint, NULL);
    chain_extend(&c, prompt, WT_PROMPT);
    double price_s = store_fetch_price_s(k->store, c.keys, WT_CHUNKS);
    chain_deinit(&c);
    return price_s;
}

/* A fetch may need memory that the system has to provide first. It is not made if that costs more
 * time than the fetch saves. */
TEST(a_fetch_that_costs_more_than_it_saves_is_not_made)
{
    struct stack k;
    struct et_run want, got;
    struct io *disk = wt_disk(&want);
    for (int is_cold = 0; is_cold < 2; is_cold++) {
        open_priced(&k, disk, is_cold ? 4096 : 0);
        /* waits until the time of providing a page is known */
        while (is_cold && price_of_prompt(&k) == 0)
            clock_sleep_ns(1000000);
        assert_int_equal(price_of_prompt(&k) > 0, is_cold);
        struct seq *first = wt_occupy(&k);
        struct seq *s = wt_add(&k, prompt, WT_PROMPT, 8);
        wt_step(&k);
        assert_int_equal(s->phase, PHASE_WAIT);
        assert_int_equal(n_wants(&k), is_cold ? 0 : 1);
        wt_run(&k, s, &got);
        assert_int_equal(got.n_cached, WT_CHUNKS * 64);
        et_same(&want, &got, "fetched or not");
        wt_run(&k, first, &got);
        stack_close(&k);
    }
    io_close(disk);
}

/* Returns the number of the prompt's chunks that the store believes to be in the KV pool. */
static int n_held(struct stack *k)
{
    struct chain c;
    int n = 0;
    chain_init(&c, &k->fingerprint, NULL);
    chain_extend(&c, prompt, WT_PROMPT);
    pthread_mutex_lock(&k->store->lock);
    for (int i = 0; i < WT_CHUNKS; i++) {
        const struct chunk_node *node = catalog_find(&k->store->catalog, &c.keys[i]);
        n += node != NULL && tier_is_held(k->store->tier, node);
    }
    pthread_mutex_unlock(&k->store->lock);
    chain_deinit(&c);
    return n;
}

/* The store learns which chunks the KV pool holds. A chunk is held from the time that its block is
 * known there until the block is reused. */
TEST(the_store_knows_what_the_pool_holds)
{
    struct stack k;
    struct et_run want, got;
    struct io *disk = wt_disk(&want);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.kv_tokens = 1024,
                                     .user.dram_bytes = 32 << 20});
    assert_int_equal(n_held(&k), 0);
    struct seq *s = wt_add(&k, prompt, WT_PROMPT, 8);
    wt_run(&k, s, &got);
    et_same(&want, &got, "restored");
    s = wt_add(&k, wt_others, WT_OTHERS, 8); /* the pool has room for both contexts */
    wt_step(&k);
    assert_int_equal(n_held(&k), WT_CHUNKS);
    wt_run(&k, s, &got);
    assert_int_equal(n_held(&k), WT_CHUNKS);
    static int32_t third[1000];
    et_prompt(third, 1000, 9);
    s = wt_add(&k, third, 1000, 8); /* this context takes all blocks of the pool */
    while (s->phase != PHASE_DECODE)
        wt_step(&k);
    wt_step(&k);
    assert_int_equal(n_held(&k), 0);
    wt_run(&k, s, &got);
    stack_close(&k);
    io_close(disk);
}

/* --- plans ------------------------------------------------------------------------------------ */

/* Drops the copies of chunks [from, WT_CHUNKS) of the prompt. */
static void drop_copies(struct stack *k, int from)
{
    struct chain c;
    chain_init(&c, &k->fingerprint, NULL);
    chain_extend(&c, prompt, WT_PROMPT);
    pthread_mutex_lock(&k->store->lock);
    for (int i = WT_CHUNKS; i-- > from;)
        tier_forget_node(k->store->tier, catalog_find(&k->store->catalog, &c.keys[i]));
    pthread_mutex_unlock(&k->store->lock);
    chain_deinit(&c);
}

/* If the disk is slower than recomputing, exactly the chunks in DRAM are restored. */
TEST(plans_price_chunks_by_where_they_lie)
{
    struct stack k;
    struct et_run want, got;
    const struct et_ask ask = {
        .prompt = prompt, .n_prompt = WT_PROMPT, .max_tokens = 8, .save = "kv"};
    struct io *disk = et_disk(1, 0);
    et_prompt(wt_prompt, WT_PROMPT, 1);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.no_reuse = true,
                                     .user.dram_bytes = 32 << 20});
    et_platform(&k.platform, 1e-5, 1e-6, 1e-6, 1e5);
    assert_int_equal(et_run(&k, &ask, &want), 0);
    assert_int_equal(want.n_cached, 0);
    for (int n = WT_CHUNKS; n >= 0; n -= n == WT_CHUNKS ? 4 : 3) {
        drop_copies(&k, n);
        assert_int_equal(et_run(&k, &ask, &got), 0);
        assert_int_equal(got.restore.dram_tokens, n * 64);
        assert_int_equal(got.restore.dram_bytes, got.restore.read_bytes);
        if (n > 0)
            assert_int_equal(got.n_cached, n * 64);
        else /* all layers are recomputed */
            assert_string_equal(got.plan.method, "RRRR");
        et_same(&want, &got, "a part is restored from DRAM");
    }
    /* shows that the disk is slow enough for reading ahead to pay */
    assert_true(dram_tier_gains(&k.platform, WT_PROMPT, 1, 0));
    et_platform(&k.platform, 1e-5, 1e-6, 1e-6, 1e12);
    assert_false(dram_tier_gains(&k.platform, WT_PROMPT, 1, 0));
    stack_close(&k);
    io_close(disk);
}

/* On a disk that reads hidden states faster than keys and values, chunks in DRAM are still restored
 * as keys and values. */
TEST(each_tier_has_its_own_letter)
{
    enum { N_LAYERS = 4, IN_DRAM = 3 };
    struct stack k;
    struct et_run want, got;
    const struct et_ask ask = {
        .prompt = prompt, .n_prompt = WT_PROMPT, .max_tokens = 8, .save = "both"};
    struct io *disk = et_disk(1, 0);
    et_prompt(wt_prompt, WT_PROMPT, 1);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.no_reuse = true,
                                     .user.dram_bytes = 32 << 20});
    et_platform(&k.platform, 1e-3, 1e-6, 1e-7, 1e6);
    assert_int_equal(et_run(&k, &ask, &want), 0);
    assert_int_equal(et_run(&k, &ask, &got), 0); /* all chunks are in DRAM */
    assert_int_equal(got.restore.n_by_method[1], 0);
    assert_int_equal(got.restore.n_by_method[2], WT_CHUNKS * N_LAYERS);
    drop_copies(&k, IN_DRAM);
    assert_int_equal(et_run(&k, &ask, &got), 0);
    /* numbers of layers by the methods for the disk */
    int n_h = got.plan.n_h, n_k = got.plan.n_k;
    assert_true(n_h > 0);
    assert_int_equal(got.n_cached, WT_CHUNKS * 64);
    assert_int_equal(got.restore.n_by_method[1], (WT_CHUNKS - IN_DRAM) * n_h);
    assert_int_equal(got.restore.n_by_method[2],
                     IN_DRAM * (n_h + n_k) + (WT_CHUNKS - IN_DRAM) * n_k);
    assert_int_equal(got.restore.dram_tokens, IN_DRAM * 64);
    et_same(&want, &got, "keys and values from DRAM, hidden states from the disk");
    /* A forced plan is followed even in DRAM. */
    struct et_ask forced = ask;
    forced.plan = "hidden";
    assert_int_equal(et_run(&k, &forced, &got), 0);
    assert_int_equal(got.restore.n_by_method[2], 0);
    et_same(&want, &got, "hidden states from both tiers");
    stack_close(&k);
    io_close(disk);
}
