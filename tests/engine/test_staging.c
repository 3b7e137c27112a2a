/* test_staging.c - waiting sequences read ahead before they have their place. The state that was
 * read is used bit for bit, or its memory is given back. */
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "engine/engine_impl.h"
#include "engine/staging.h"
#include "restore/restore_impl.h"
#include "store/store_impl.h"
#include "tests/engine/waiting.h"

static void open_with(struct stack *k, struct io *disk, const char *prefetch,
                      uint64_t dram_bytes)
{
    et_open(k, &(struct stack_opts){.io = disk,
                                    .user.store = et_dirs,
                                    .user.n_store = 2,
                                    .user.staging_bytes = 4 << 20,
                                    .user.dram_bytes = dram_bytes,
                                    .user.prefetch = prefetch});
    wt_slow_disk(k);
}

static struct restore_pipeline *pipeline(struct stack *k)
{
    return k->engine->restores.pipeline;
}

static const struct engine_stats *stats(const struct stack *k)
{
    return &k->engine->shared.stats;
}

/* Returns the number of free slots of staging memory. */
static int n_free(struct stack *k)
{
    struct restore_pipeline *rr = pipeline(k);
    int n = 0;
    pthread_mutex_lock(&rr->lock);
    for (const struct group *g = rr->free.first; g != NULL; g = g->next)
        n++;
    pthread_mutex_unlock(&rr->lock);
    return n;
}

static void await_all_free(struct stack *k)
{
    while (n_free(k) < pipeline(k)->n_slots)
        clock_sleep_ns(100000);
}

static uint64_t bytes_read(struct seq *s)
{
    struct restore_result r;
    struct err err = {0};
    assert_non_null(s->restore);
    assert_int_equal(restore_result_of(s->restore, &r, &err), 0);
    return r.read_bytes;
}

static bool is_staged(const struct seq *s)
{
    return s->phase == PHASE_WAIT && s->restore != NULL && s->n_planned > 0;
}

/* Makes steps until s is staged: one step begins its look-up, a later step its reads. */
static void stage(struct stack *k, struct seq *s)
{
    while (!is_staged(s)) {
        assert_int_equal(s->phase, PHASE_WAIT);
        while (s->restore != NULL && restore_found(s->restore) == NULL)
            clock_sleep_ns(100000);
        wt_step(k);
    }
}

/* Returns whether s has read ahead as much as it may. n_hanging of its groups need not have
 * arrived. */
static bool has_read(struct stack *k, const struct seq *s, int n_hanging)
{
    struct restore_pipeline *rr = pipeline(k);
    pthread_mutex_lock(&rr->lock);
    struct restore *r = s->restore;
    bool wants_more = r->stage_left > 0 && restore_reads_remain(r);
    bool done = !wants_more && rr->n_in_flight <= n_hanging;
    pthread_mutex_unlock(&rr->lock);
    return done;
}

static bool has_parked(struct stack *k, const struct seq *s, int n_groups)
{
    int n = 0;
    pthread_mutex_lock(&pipeline(k)->lock);
    for (const struct group *g = s->restore->parked.first; g != NULL; g = g->next)
        n++;
    pthread_mutex_unlock(&pipeline(k)->lock);
    return n >= n_groups;
}

/* Stages s, and waits until it has read ahead. */
static void await_staged(struct stack *k, struct seq *s)
{
    stage(k, s);
    while (!has_read(k, s, 0))
        clock_sleep_ns(100000);
    assert_true(bytes_read(s) > 0);
}

struct lab {
    struct io *disk;
    struct stack k;
    struct et_run want, got;
    struct seq *first, *s;
};

/* Opens the lab. One request decodes. The request with the stored prompt waits for its place and is
 * staged. */
static void lab_open(struct lab *l)
{
    l->disk = wt_disk(&l->want);
    open_with(&l->k, l->disk, NULL, 0);
    l->first = wt_occupy(&l->k);
    l->s = wt_add(&l->k, wt_prompt, WT_PROMPT, 8);
    await_staged(&l->k, l->s);
}

static void lab_close(struct lab *l)
{
    assert_null(pipeline(&l->k)->runs);
    await_all_free(&l->k);
    stack_close(&l->k);
    io_close(l->disk);
}

static void what_was_read_ahead_is_used(void **state)
{
    struct lab l;
    lab_open(&l);
    assert_int_equal(l.s->table.n_blocks, 0);
    assert_true(n_free(&l.k) < pipeline(&l.k)->n_slots);
    wt_run(&l.k, l.first, &l.got);
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(l.got.n_cached, WT_CHUNKS * 64);
    assert_true(l.got.restore.staged_bytes > 0);
    assert_true(l.got.restore.staged_bytes <= l.got.restore.read_bytes);
    assert_int_equal(stats(&l.k)->n_staged, 1);
    assert_int_equal(stats(&l.k)->n_staged_used, 1);
    et_same(&l.want, &l.got, "staged, then placed");
    /* The reads of s ran beside decodes, so they show nothing about the disk's speed. */
    assert_int_equal(l.k.platform.tier[0].correction.n_observed, 0);
    assert_int_equal(l.k.platform.kv_correction.n_observed, 0);
    lab_close(&l);
}

/* What is read ahead follows from a prediction: the time of the plan's reads and compute, of the
 * new tokens, and of a restore that reads nothing ahead. */
static void the_prediction_is_that_of_the_plan(void **state)
{
    struct lab l;
    lab_open(&l);
    const struct platform *p = &l.k.platform;
    const struct plan *plan = &l.s->out.plan;
    const struct read_ahead *a = &l.s->staging.ahead;
    int n_old = l.s->n_planned * 64,
        n_reads = plan->n_h + plan->n_k - (plan->method[0] == 'H');
    double new_s = p->n_layers * platform_prefill_s(p, n_old, WT_PROMPT - n_old),
           load_s = 0;
    for (int i = 0; i < p->n_layers; i++)
        if (plan->method[i] == 'K' || (plan->method[i] == 'H' && i > 0))
            load_s += platform_io_s(p, 0, n_old,
                                    plan->method[i] == 'K' ? RECORD_KV : RECORD_HIDDEN);
    assert_true(n_reads > 0 && n_old == WT_CHUNKS * 64);
    assert_int_equal(l.s->staging.first, 0);
    assert_true(l.s->staging.is_decided && !l.s->staging.is_placed);
    assert_true(a->load_s == load_s && load_s > 0);
    assert_true(a->prefill_s == new_s && new_s > 0);
    assert_true(a->compute_s == plan->comp_busy_s && a->compute_s >= new_s);
    assert_true(a->alone_s > a->compute_s);
    assert_true(l.s->staging.bytes ==
                (uint64_t)(plan->stored_bytes_per_token * (double)n_old));
    wt_run(&l.k, l.first, &l.got);
    wt_run(&l.k, l.s, &l.got);
    lab_close(&l);
}

/* Nothing is staged with --prefetch off, or if the store has copies in DRAM, which then serve as
 * the read buffer. */
static void nothing_is_staged_where_it_is_not_wanted(void **state)
{
    static const struct {
        const char *prefetch;
        uint64_t dram_bytes;
    } cases[] = {{"off", 0}, {"on", 32 << 20}};
    struct et_run want, got;
    struct io *disk = wt_disk(&want);
    for (int i = 0; i < 2; i++) {
        struct stack k;
        open_with(&k, disk, cases[i].prefetch, cases[i].dram_bytes);
        struct seq *first = wt_occupy(&k), *s = wt_add(&k, wt_prompt, WT_PROMPT, 8);
        while (first->phase != PHASE_DONE) {
            wt_step(&k);
            assert_true(s->phase != PHASE_WAIT || s->restore == NULL);
        }
        wt_run(&k, s, &got);
        assert_int_equal(stats(&k)->n_staged, 0);
        assert_int_equal(got.restore.staged_bytes, 0);
        et_same(&want, &got, "nothing is staged");
        engine_remove(k.engine, first);
        stack_close(&k);
    }
    io_close(disk);
}

static void a_cancelled_request_gives_back_what_it_has(void **state)
{
    struct lab l;
    lab_open(&l);
    engine_remove(l.k.engine, l.s);
    await_all_free(&l.k);
    l.s = wt_add(&l.k, wt_prompt, WT_PROMPT, 8);
    await_staged(&l.k, l.s);
    l.s->req->deadline_ns = clock_now_ns() - 1; /* the request times out while it waits */
    wt_step(&l.k);
    assert_int_equal(l.s->phase, PHASE_DONE);
    assert_null(l.s->restore);
    engine_remove(l.k.engine, l.s);
    wt_run(&l.k, l.first, &l.got);
    lab_close(&l);
}

/* Erases all chunks while the staged restore uses some. Nothing is saved meanwhile. */
static void erase_all(struct lab *l)
{
    struct store_erased e;
    struct err err = {0};
    assert_int_equal(saver_flush(l->k.saver, &err), 0);
    assert_int_equal(store_erase_owner(l->k.store, store_owner(NULL), &e, &err), 0);
    assert_true(e.n_busy >= WT_CHUNKS);
}

static bool is_gone(struct lab *l)
{
    struct store *s = l->k.store;
    pthread_mutex_lock(&s->lock);
    const struct chunk_node *n = catalog_find(&s->catalog, &l->s->view.keys[WT_CHUNKS - 1]);
    bool gone = n == NULL || n->extents == NULL;
    pthread_mutex_unlock(&s->lock);
    return gone;
}

/* In the step after an erasure the staged restore no longer holds the erased chunks, and they do
 * not come back. */
static void erased_chunks_are_not_used(void **state)
{
    struct lab l;
    lab_open(&l);
    erase_all(&l);
    assert_false(is_gone(&l));
    wt_step(&l.k);
    assert_false(is_staged(l.s));
    assert_true(is_gone(&l));
    wt_run(&l.k, l.first, &l.got);
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(l.got.n_cached, 0);
    et_same(&l.want, &l.got, "erased while staged");
    lab_close(&l);

    /* The context is erased in the same step in which the sequence gets its place. */
    lab_open(&l);
    engine_remove(l.k.engine, l.first);
    erase_all(&l);
    wt_step(&l.k);
    assert_int_not_equal(l.s->phase, PHASE_WAIT);
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(l.got.n_cached, 0);
    assert_int_equal(stats(&l.k)->n_staged_used, 0);
    et_same(&l.want, &l.got, "erased when the place came");
    lab_close(&l);
}

/* A record that was read ahead is damaged. When the request gets its place, the record's chunk is
 * lost and computed. */
static void damage_is_found_when_the_place_comes(void **state)
{
    struct lab l;
    l.disk = wt_disk(&l.want);
    open_with(&l.k, l.disk, NULL, 0);
    l.first = wt_occupy(&l.k);
    struct io_sim_fault flip = {
        .kind = IO_SIM_READ_FLIP, .on = IO_SIM_ON_READ, .path = "seg-", .count = 1};
    assert_int_equal(io_sim_fault_add(l.disk, &flip), 0);
    l.s = wt_add(&l.k, wt_prompt, WT_PROMPT, 8);
    await_staged(&l.k, l.s);
    wt_run(&l.k, l.first, &l.got);
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(stats(&l.k)->n_staged_used, 1);
    assert_true(l.got.n_cached < WT_CHUNKS * 64);
    et_same(&l.want, &l.got, "staged and damaged");
    lab_close(&l);
}

/* The last two groups hang. When the request gets its place, it does not wait for these groups. */
static void hanging_reads_are_not_waited_for(void **state)
{
    struct lab l;
    l.disk = wt_disk(&l.want);
    open_with(&l.k, l.disk, NULL, 0);
    l.first = wt_occupy(&l.k);
    struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg-", .skip = 2 * WT_CHUNKS};
    assert_int_equal(io_sim_fault_add(l.disk, &stuck), 0);
    l.s = wt_add(&l.k, wt_prompt, WT_PROMPT, 8);
    stage(&l.k, l.s);
    while (!has_read(&l.k, l.s, 2))
        clock_sleep_ns(100000);
    wt_run(&l.k, l.first, &l.got);
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(stats(&l.k)->n_staged_used, 1);
    assert_true(l.got.stall != STALL_NONE || l.got.n_cached < WT_CHUNKS * 64);
    et_same(&l.want, &l.got, "staged reads hang");
    io_sim_fault_clear(l.disk);
    io_sim_unstick(l.disk);
    lab_close(&l);
}

static struct seq *add_ranked(struct stack *k, const int32_t *tokens, int priority)
{
    struct seq *s;
    struct err err = {0};
    struct et_ask a = {
        .prompt = tokens, .n_prompt = WT_PROMPT, .max_tokens = 8, .save = "kv"};
    struct request *q = et_request(k, &a);
    q->ask.priority = priority;
    assert_int_equal(et_submit(k->engine, q, &s, &err), 0);
    return s;
}

/* The two waiting requests of the best ranks are staged. A request that drops below the second rank
 * gives its slots back. */
static void the_next_two_are_staged(void **state)
{
    enum { N = 3 };
    static int32_t prompts[N][WT_PROMPT];
    struct io *disk = et_disk(1, 0);
    struct stack k;
    struct et_run want[N], got;
    struct seq *s[N];
    et_prompt(wt_others, WT_OTHERS, 2);
    et_open(&k, &(struct stack_opts){.io = disk, .user.store = et_dirs, .user.n_store = 2});
    for (int i = 0; i < N; i++) {
        et_prompt(prompts[i], WT_PROMPT, 10 + (uint64_t)i);
        const struct et_ask a = {
            .prompt = prompts[i], .n_prompt = WT_PROMPT, .max_tokens = 8, .save = "kv"};
        assert_int_equal(et_run(&k, &a, &want[i]), 0);
    }
    stack_close(&k);
    open_with(&k, disk, NULL, 0);
    struct seq *first = wt_occupy(&k);
    for (int i = 0; i < 2; i++)
        s[i] = add_ranked(&k, prompts[i], 10);
    await_staged(&k, s[0]);
    await_staged(&k, s[1]);
    assert_int_equal(first->phase, PHASE_DECODE);
    s[2] = add_ranked(&k, prompts[2], 5);
    wt_step(&k);
    assert_true(is_staged(s[0]));
    assert_null(s[1]->restore);
    wt_run(&k, first, &got);
    for (int i = N; i-- > 0;) {
        wt_run(&k, s[i], &got);
        assert_int_equal(got.n_cached, WT_CHUNKS * 64);
        et_same(&want[i], &got, "one of three that wait");
    }
    await_all_free(&k);
    stack_close(&k);
    io_close(disk);
}

/* While s is staged, another request brings the same context to the device. So s gives the staged
 * state back. */
static void what_the_device_has_is_not_restored(void **state)
{
    struct lab l;
    lab_open(&l);
    struct seq *better = add_ranked(&l.k, wt_prompt, -100); /* preempts the first request */
    wt_run(&l.k, better, &l.got);
    et_same(&l.want, &l.got, "the better rank");
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(l.got.n_device, WT_PROMPT - 1);
    assert_int_equal(l.got.restore.staged_bytes, 0);
    et_same(&l.want, &l.got, "from the device");
    wt_run(&l.k, l.first, &l.got);
    lab_close(&l);
}

/* The device had the first chunks when the restore was planned, and has lost them when the place
 * comes. */
static void what_the_device_has_lost_is_restored(void **state)
{
    enum { N_SHARED = 3 * 64 + 8, N_LARGE = 1000 };
    static int32_t large[N_LARGE];
    struct lab l;
    l.disk = wt_disk(&l.want);
    et_prompt(large, N_LARGE, 9);
    et_open(&l.k, &(struct stack_opts){.io = l.disk,
                                       .user.store = et_dirs,
                                       .user.n_store = 2,
                                       .user.staging_bytes = 4 << 20,
                                       .user.kv_tokens = 1024});
    wt_slow_disk(&l.k);
    struct seq *shared = wt_add(&l.k, wt_prompt, N_SHARED, 1);
    wt_run(&l.k, shared, &l.got);
    l.first = wt_occupy(&l.k);
    l.s = wt_add(&l.k, wt_prompt, WT_PROMPT, 8);
    await_staged(&l.k, l.s);
    assert_int_equal(l.s->staging.first, 3);
    struct et_ask a = {.prompt = large, .n_prompt = N_LARGE, .max_tokens = 1};
    struct request *q = et_request(&l.k, &a);
    struct seq *better;
    struct err err = {0};
    q->ask.priority = -100; /* preempts the first request and takes all blocks */
    assert_int_equal(et_submit(l.k.engine, q, &better, &err), 0);
    wt_run(&l.k, better, &l.got);
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(l.got.n_device, 0);
    assert_int_equal(l.got.n_cached, WT_CHUNKS * 64);
    assert_int_equal(stats(&l.k)->n_staged_used, 0);
    et_same(&l.want, &l.got, "behind blocks that are gone");
    wt_run(&l.k, l.first, &l.got);
    lab_close(&l);
}

/* Two of the four staging slots stay free, however much of the staged context is left to read. */
static void slots_stay_free_for_restores_with_a_place(void **state)
{
    struct lab l;
    l.disk = wt_disk(&l.want);
    et_open(&l.k, &(struct stack_opts){.io = l.disk,
                                       .user.store = et_dirs,
                                       .user.n_store = 2,
                                       .user.staging_bytes = 1 << 20});
    wt_slow_disk(&l.k);
    assert_int_equal(pipeline(&l.k)->n_slots, 4);
    l.first = wt_occupy(&l.k);
    l.s = wt_add(&l.k, wt_prompt, WT_PROMPT, 8);
    stage(&l.k, l.s);
    while (n_free(&l.k) > 2 || !has_parked(&l.k, l.s, 2))
        clock_sleep_ns(100000);
    pthread_mutex_lock(&pipeline(&l.k)->lock);
    assert_false(restore_may_stage(pipeline(&l.k)));
    assert_true(l.s->restore->stage_left > 0 && restore_reads_remain(l.s->restore));
    pthread_mutex_unlock(&pipeline(&l.k)->lock);
    wt_run(&l.k, l.first, &l.got);
    wt_run(&l.k, l.s, &l.got);
    assert_int_equal(l.got.n_cached, WT_CHUNKS * 64);
    et_same(&l.want, &l.got, "half of it was staged");
    lab_close(&l);
}

/* A request waits for another waiting request with the same beginning, whose blocks it will share
 * on the device. So it is not staged. */
static void a_request_that_will_share_blocks_is_not_staged(void **state)
{
    struct lab l;
    lab_open(&l);
    struct seq *second = wt_add(&l.k, wt_prompt, WT_PROMPT, 8);
    wt_step(&l.k);
    wt_step(&l.k);
    assert_true(second->staging.is_decided);
    assert_null(second->restore);
    wt_run(&l.k, l.first, &l.got);
    wt_run(&l.k, l.s, &l.got);
    wt_run(&l.k, second, &l.got);
    assert_int_equal(l.got.n_device, WT_PROMPT - 1);
    et_same(&l.want, &l.got, "behind one with the same beginning");
    lab_close(&l);
}

int main(int argc, char **argv)
{
    et_only(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_read_ahead_is_used),
        cmocka_unit_test(the_prediction_is_that_of_the_plan),
        cmocka_unit_test(nothing_is_staged_where_it_is_not_wanted),
        cmocka_unit_test(a_cancelled_request_gives_back_what_it_has),
        cmocka_unit_test(erased_chunks_are_not_used),
        cmocka_unit_test(damage_is_found_when_the_place_comes),
        cmocka_unit_test(hanging_reads_are_not_waited_for),
        cmocka_unit_test(the_next_two_are_staged),
        cmocka_unit_test(what_the_device_has_is_not_restored),
        cmocka_unit_test(what_the_device_has_lost_is_restored),
        cmocka_unit_test(slots_stay_free_for_restores_with_a_place),
        cmocka_unit_test(a_request_that_will_share_blocks_is_not_staged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
