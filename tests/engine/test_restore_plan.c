/* test_restore_plan.c - the chunks, kinds and costs that a sequence hands to the planner, and the
 * job that it makes of the plan. The chunks are made up, and nothing is read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "engine/engine_impl.h"
#include "engine/restoring.h"
#include "engine/stairs.h"
#include "engine/view.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

enum {
    N_LAYERS = 4,
    N_CHUNKS = 6,
    N_LAST = 20, /* tokens of a partial chunk */
    N_PROMPT = 64 * N_CHUNKS + 30,
    H = PLAN_HAS_H,
    K = PLAN_HAS_KV,
    B = H | K,
};

static const struct truncation small = {.context = 256, .step = 64, .keep = 64};

/* A waiting sequence, and the chunks that its look-up has found. */
struct lab {
    struct stack k;
    struct restore_phase *g;
    struct platform *p;
    struct seq *s;
    struct store_hit hits[N_CHUNKS];
    struct chunk_node nodes[N_CHUNKS];
    struct restore_found f;
};

static struct seq *add(struct lab *l, const struct et_ask *ask)
{
    return et_add_prompt(&l->k, ask, N_PROMPT);
}

/* kinds: the kinds of records of each chunk in all layers. */
static void find(struct lab *l, const uint8_t *kinds, int n)
{
    l->f = (struct restore_found){.hits = l->hits, .n_hits = n};
    for (int c = 0; c < n; c++) {
        l->nodes[c] = (struct chunk_node){0};
        l->hits[c] = (struct store_hit){.n_tokens = 64, .impl = &l->nodes[c]};
        for (int i = 0; i < N_LAYERS; i++) {
            if (kinds[c] & H)
                store_mask_add(&l->hits[c].mask, i, STORE_HIDDEN);
            if (kinds[c] & K)
                store_mask_add(&l->hits[c].mask, i, STORE_KV);
        }
    }
}

static void lab_open(struct lab *l, uint64_t dram_bytes, const struct et_ask *ask)
{
    static const uint8_t all[N_CHUNKS] = {B, B, B, B, B, B};
    *l = (struct lab){0};
    et_open(&l->k, &(struct stack_opts){.user.store_in_memory = dram_bytes == 0,
                                        .user.store = dram_bytes > 0 ? et_dirs : NULL,
                                        .user.n_store = dram_bytes > 0 ? 2 : 0,
                                        .io = dram_bytes > 0 ? et_disk(1, 0) : NULL,
                                        .user.dram_bytes = dram_bytes,
                                        .user.save_buffer_bytes = 4 << 20});
    assert_int_equal(l->k.model->cfg.n_layers, N_LAYERS);
    l->g = &l->k.engine->restores;
    l->p = &l->k.platform;
    et_platform(l->p, 1e-4, 2e-6, 1e-7, 1e9);
    l->s = add(l, ask);
    find(l, all, N_CHUNKS);
}

static void lab_close(struct lab *l, struct io *disk)
{
    engine_remove(l->k.engine, l->s);
    stack_close(&l->k);
    if (disk != NULL)
        io_close(disk);
}

/* --- the speed of the store ------------------------------------------------------------------- */

/* The store is measured if its speed is unknown, unless a throttle bounds it. */
TEST(an_unknown_speed_is_measured)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    assert_false(restore_plan_must_measure(l.g));
    l.p->n_tiers = 0;
    assert_true(restore_plan_must_measure(l.g));
    l.g->o.throttle_bytes_per_s = 1000;
    assert_false(restore_plan_must_measure(l.g));
    l.g->o.throttle_bytes_per_s = 0;
    lab_close(&l, NULL);
}

/* The speed that a look-up has measured is taken over if none is known. A throttle bounds it. */
TEST(a_measured_speed_is_taken_over)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    l.f.measured = true;
    l.f.tier = (struct platform_tier){.bytes_per_s = 7e6};
    restore_plan_measured(l.g, &l.f);
    assert_true(l.p->tier[0].bytes_per_s == 1e9); /* it was known */
    l.p->n_tiers = 0;
    l.f.measured = false;
    restore_plan_measured(l.g, &l.f);
    assert_int_equal(l.p->n_tiers, 0);
    l.f.measured = true;
    restore_plan_measured(l.g, &l.f);
    assert_int_equal(l.p->n_tiers, 1);
    assert_true(l.p->tier[0].bytes_per_s == 7e6);
    l.g->o.throttle_bytes_per_s = 1000000;
    restore_plan_measured(l.g, &l.f);
    assert_true(l.p->tier[0].bytes_per_s == 1e6);
    l.g->o.throttle_bytes_per_s = 0;
    lab_close(&l, NULL);
}

/* --- the chunks ------------------------------------------------------------------------------- */

TEST(only_the_last_chunk_may_be_partial)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    l.hits[N_CHUNKS - 1].n_tokens = N_LAST;
    assert_int_equal(restore_plan_tokens(&l.f, 0), 0);
    assert_int_equal(restore_plan_tokens(&l.f, 1), 64);
    assert_int_equal(restore_plan_tokens(&l.f, N_CHUNKS), (N_CHUNKS - 1) * 64 + N_LAST);
    lab_close(&l, NULL);
}

/* A partial chunk without the records that are to be saved is computed again. */
TEST(a_partial_chunk_without_wanted_records_is_left_out)
{
    static const uint8_t kv_last[] = {B, B, K};
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){.save = "both"});
    struct saver *saver = l.s->shared->saver;
    find(&l, kv_last, 3);
    assert_int_equal(restore_plan_usable(l.s, &l.f), 3);
    l.hits[2].n_tokens = 63;
    assert_int_equal(restore_plan_usable(l.s, &l.f), 2);
    l.s->shared->saver = NULL; /* nothing is saved */
    assert_int_equal(restore_plan_usable(l.s, &l.f), 3);
    l.s->shared->saver = saver;
    find(&l, (const uint8_t[]){K, B}, 2);
    l.hits[1].n_tokens = 1;
    assert_int_equal(restore_plan_usable(l.s, &l.f), 2);
    l.f.n_hits = 0;
    assert_int_equal(restore_plan_usable(l.s, &l.f), 0);
    lab_close(&l, NULL);
}

/* --- ranges ----------------------------------------------------------------------------------- */

static int make_beside(struct lab *l, int first, bool beside_decodes)
{
    int n = -1;
    memset(l->g->ranges, 0, N_CHUNKS * sizeof *l->g->ranges);
    l->s->out.plan = (struct plan){0};
    l->s->out.err = (struct err){0};
    if (restore_plan_make(l->g, l->s, &l->f, first, beside_decodes, &n) != 0)
        assert_int_not_equal(l->s->out.err.code, 0);
    return n;
}

static int make(struct lab *l, int first)
{
    return make_beside(l, first, false);
}

static void expect_range(const struct lab *l, int i, int64_t n_tokens, int tier,
                         const char *kinds)
{
    const struct plan_range *r = &l->g->ranges[i];
    assert_int_equal(r->n_tokens, n_tokens);
    assert_int_equal(r->tier, tier);
    for (int c = 0; n_tokens > 0 && c < N_LAYERS; c++)
        assert_int_equal("-HKB"[r->mask[c] & B], kinds[c]);
}

/* Neighbouring chunks with the same records in the same tier are one range. */
TEST(equal_neighbours_are_one_range)
{
    static const uint8_t kinds[] = {B, B, K, K, H};
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){.plan = "kv"});
    find(&l, kinds, 5);
    l.hits[1].mask.has[STORE_HIDDEN][0] &= ~(uint64_t)4; /* layer 2 */
    l.hits[4].n_tokens = N_LAST;
    assert_int_equal(make(&l, 0), 5);
    expect_range(&l, 0, 64, 0, "BBBB");
    expect_range(&l, 1, 64, 0, "BBKB");
    expect_range(&l, 2, 128, 0, "KKKK");
    expect_range(&l, 3, N_LAST, 0, "HHHH");
    expect_range(&l, 4, 0, 0, "");
    assert_int_equal(l.p->n_tiers, 1); /* no copy was found, so there is no second tier */
    /* The first two chunks are on the device. */
    assert_int_equal(make(&l, 2), 5);
    expect_range(&l, 0, 128, 0, "KKKK");
    expect_range(&l, 1, N_LAST, 0, "HHHH");
    expect_range(&l, 2, 0, 0, "");
    lab_close(&l, NULL);
}

/* Packed chunks form ranges of their own. A range has the share of bytes that packing left. */
TEST(packed_neighbours_are_one_range)
{
    static const uint8_t kinds[] = {K, K, K, B};
    static const double left[] = {1, 0.5, 0.25, 0.75};
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){.plan = "kv"});
    find(&l, kinds, 4);
    for (int c = 0; c < 4; c++) {
        double bytes = (double)round_up(record_bytes(l.k.model, 0, STORE_KV), STORE_ALIGN);
        l.hits[c].bytes[STORE_KV] = (uint32_t)(left[c] * N_LAYERS * bytes);
    }
    l.hits[3].bytes[STORE_HIDDEN] = l.hits[3].bytes[STORE_KV];
    (void)make(&l, 0);
    expect_range(&l, 0, 64, 0, "KKKK");
    expect_range(&l, 1, 128, 0, "KKKK");
    expect_range(&l, 2, 64, 0, "BBBB");
    assert_true(l.g->ranges[0].share[RECORD_KV] == 1);
    assert_true(l.g->ranges[1].share[RECORD_KV] == 0.375);
    assert_true(l.g->ranges[1].share[RECORD_HIDDEN] == 1);
    assert_true(l.g->ranges[2].share[RECORD_KV] == 0.75);
    assert_true(l.g->ranges[2].share[RECORD_HIDDEN] > 0.75);
    lab_close(&l, NULL);
}

/* Chunks in DRAM are ranges of their own. Of two kinds, keys and values are used, except for a
 * forced plan. */
TEST(copies_in_dram_are_another_tier)
{
    static const uint8_t kinds[] = {B, B, B, H};
    struct lab l;
    lab_open(&l, 32 << 20, &(struct et_ask){0});
    struct io *disk = l.k.io;
    find(&l, kinds, 4);
    l.nodes[1].n_live = l.nodes[3].n_live = 1; /* live, and no extent without a copy */
    assert_int_equal(make(&l, 0), 4);
    expect_range(&l, 0, 64, 0, "BBBB");
    expect_range(&l, 1, 64, 1, "KKKK");
    expect_range(&l, 2, 64, 0, "BBBB");
    expect_range(&l, 3, 64, 1, "HHHH");
    assert_int_equal(l.s->expected.tier, 0);
    struct restore_job job = restore_plan_job(l.g, l.s, 0);
    assert_ptr_equal(job.takes_kv, l.g->in_dram);
    assert_true(!job.takes_kv[0] && job.takes_kv[1] && !job.takes_kv[2] && job.takes_kv[3]);
    /* A restore teaches what reads of copies take only if all of its chunks are copied. */
    for (int c = 0; c < 4; c++)
        l.nodes[c].n_live = 1;
    assert_int_equal(make(&l, 0), 4);
    expect_range(&l, 0, 192, 1, "KKKK");
    assert_int_equal(l.s->expected.tier, 1);
    l.nodes[3].n_live = 0;
    assert_int_equal(make(&l, 0), 4);
    assert_int_equal(l.s->expected.tier, 0);
    lab_close(&l, disk);

    lab_open(&l, 32 << 20, &(struct et_ask){.plan = "hidden"});
    disk = l.k.io;
    l.nodes[1].n_live = 1;
    assert_int_equal(make(&l, 0), N_CHUNKS);
    expect_range(&l, 1, 64, 1, "BBBB");
    lab_close(&l, disk);
}

/* Makes s see its last tokens only. */
static void truncate(struct lab *l)
{
    int cut = (int)truncation_cut(&small, N_PROMPT - 1);
    view_set(&l->s->view, &l->s->chain, l->s->tokens, l->s->n_tokens, cut);
    assert_true(l->s->view.cut > 0 && view_moved(&l->s->view) == 192);
}

/* The moved chunks of a truncated context are one range. A layer has the kinds that all chunks
 * have; if there is none, each chunk uses its own. */
TEST(moved_chunks_are_one_range)
{
    static const uint8_t kinds[] = {B, B, K};
    struct lab l;
    lab_open(&l, 32 << 20, &(struct et_ask){.save = "kv", .truncation = small});
    struct io *disk = l.k.io;
    truncate(&l);
    find(&l, kinds, 3);
    l.hits[0].mask.has[STORE_KV][0] &= ~(uint64_t)2; /* layer 1: H, B, K */
    l.hits[1].mask.has[STORE_KV][0] &= ~(uint64_t)8; /* layer 3: B, nothing, K */
    l.hits[1].mask.has[STORE_HIDDEN][0] &= ~(uint64_t)8;
    l.hits[0].mask.has[STORE_KV][0] &= ~(uint64_t)4; /* layer 2: H, B, B */
    store_mask_add(&l.hits[2].mask, 2, STORE_HIDDEN);
    for (int c = 0; c < 3; c++)
        l.nodes[c].n_live = 1;
    assert_int_equal(make(&l, 0), 0);
    expect_range(&l, 0, 192, 1, "KBH-");
    expect_range(&l, 1, 0, 0, "");
    store_mask_add(&l.hits[1].mask, 3, STORE_KV);
    assert_int_equal(make(&l, 0), 3);
    expect_range(&l, 0, 192, 1, "KBHK");
    assert_int_equal(l.s->expected.tier, 1);
    l.nodes[1].n_live = 0; /* one chunk on the disk puts the range there */
    assert_int_equal(make(&l, 0), 3);
    expect_range(&l, 0, 192, 0, "KBHK");
    assert_int_equal(l.s->expected.tier, 0);
    struct restore_job job = restore_plan_job(l.g, l.s, 0);
    assert_null(job.takes_kv);
    assert_ptr_equal(job.tokens, l.s->view.tokens);
    assert_ptr_not_equal(job.tokens, l.s->tokens);
    l.hits[2].n_tokens = N_LAST; /* chunks on the device are no part of the range */
    assert_int_equal(make(&l, 1), 3);
    expect_range(&l, 0, 64 + N_LAST, 0, "KKBK");
    lab_close(&l, disk);
}

/* --- the request ------------------------------------------------------------------------------ */

/* Fails unless the sequence's plan, and what its restore is to teach, are those of this request. */
static void expect_plan(struct lab *l, struct plan_request req, int64_t n_new,
                        bool can_recompute)
{
    struct plan_layer layer[N_LAYERS];
    double prefill_s[N_LAYERS];
    struct plan plan;
    struct err err = {0};
    int n_used, n_ranges = 0;
    while (n_ranges < N_CHUNKS && l->g->ranges[n_ranges].n_tokens > 0)
        n_ranges++;
    req.n_layers = N_LAYERS;
    req.fused_tokens = l->g->o.max_rows;
    assert_int_equal(plan_best_prefix(l->p, l->g->ranges, n_ranges, n_new, can_recompute,
                                      layer, prefill_s, &req, &plan, &n_used, &err),
                     0);
    assert_true(n_used > 0);
    assert_memory_equal(&l->s->out.plan, &plan, sizeof plan);
    struct correction_expected e = correction_expect(l->p, 0, &req, &plan);
    assert_memory_equal(&l->s->expected, &e, sizeof e);
}

/* The planner gets the number of new tokens, how many of them are fused, and whether others decode
 * meanwhile. */
TEST(the_planner_gets_the_request)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    int64_t n_new = N_PROMPT - 64 * N_CHUNKS;
    struct plan_request req = {.fused = true};
    l.p->c_tok.a_s = 1e-4; /* a batch costs more than its rows */
    l.p->head_s = 1e-3;
    l.p->embed_s = 1e-5;
    assert_int_equal(make(&l, 0), N_CHUNKS);
    expect_plan(&l, req, n_new, true);
    double alone_s = l.s->out.plan.predicted_s;
    l.s->req->restore_first = true;
    req.fused = false;
    assert_int_equal(make(&l, 0), N_CHUNKS);
    expect_plan(&l, req, n_new, true);
    assert_true(l.s->out.plan.predicted_s > alone_s);
    l.s->req->restore_first = false;
    req.fused = true;
    l.g->o.max_rows = 16; /* the others follow in batches of their own */
    assert_int_equal(make(&l, 0), N_CHUNKS);
    expect_plan(&l, req, n_new, true);
    assert_true(l.s->out.plan.predicted_s > alone_s);
    l.f.n_hits = 3; /* fewer chunks leave more new tokens */
    assert_int_equal(make(&l, 0), 3);
    expect_plan(&l, req, N_PROMPT - 3 * 64, true);
    l.f.n_hits = N_CHUNKS;
    beside_slow(&req);
    assert_int_equal(make_beside(&l, 0, true), N_CHUNKS);
    expect_plan(&l, req, n_new, true);
    assert_true(l.s->expected.restore_s == 0); /* it teaches nothing */
    lab_close(&l, NULL);
}

/* A model with a sliding window has fewer tokens to restore in its upper layers. */
TEST(the_planner_gets_the_window)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){.plan = "kv"});
    struct model_config *c = &l.k.model->cfg;
    c->windowed = layer_set_run(2, c->n_layers);
    struct plan_request req = {
        .fused = true, .mode = PLAN_KV, .window = {c->windowed, 128}};
    c->sliding_window = 128;
    assert_int_equal(make(&l, 0), N_CHUNKS);
    expect_plan(&l, req, N_PROMPT - 64 * N_CHUNKS, true);
    double windowed_s = l.s->out.plan.io_busy_s;
    c->sliding_window = 0;
    assert_int_equal(make(&l, 0), N_CHUNKS);
    assert_true(windowed_s < l.s->out.plan.io_busy_s);
    lab_close(&l, NULL);
}

/* The lanes of the first restore are predicted. Those of later restores are not. */
TEST(the_first_restore_is_predicted)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    l.s->has_first = true;
    assert_int_equal(make(&l, 0), N_CHUNKS);
    assert_int_equal(l.s->out.r.predicted.n, 0);
    l.s->has_first = false;
    assert_int_equal(make(&l, 0), N_CHUNKS);
    assert_true(l.s->out.r.predicted.n > 0);
    lab_close(&l, NULL);
}

/* Prefill that is faster than any restore restores nothing. */
TEST(nothing_is_restored_if_prefill_is_faster)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    et_platform(l.p, 1e-9, 2e-6, 1e-7, 1e3);
    assert_int_equal(make(&l, 2), 0);
    assert_int_equal(l.s->out.err.code, 0);
    assert_int_equal(l.s->out.r.predicted.n, 0);
    lab_close(&l, NULL);
}

/* --- plans that lack records ------------------------------------------------------------------ */

/* The tokens behind a truncation cannot be recomputed. If a forced plan lacks records there, the
 * best plan takes its place. If that lacks records, too, nothing is restored. */
TEST(a_truncated_context_is_restored_another_way)
{
    static const uint8_t kinds[] = {K, K, K};
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){.save = "kv", .plan = "RRHK", .truncation = small});
    truncate(&l);
    find(&l, kinds, 3);
    int64_t n_new = l.s->view.n_tokens - 192;
    assert_int_equal(make(&l, 0), 3);
    assert_int_equal(l.s->out.err.code, 0);
    assert_string_equal(l.s->out.plan.method, "KKKK");
    expect_plan(&l, (struct plan_request){.fused = true}, n_new, false);
    find(&l, (const uint8_t[]){K, 0, K}, 3);
    assert_int_equal(make(&l, 0), 0);
    assert_int_equal(l.s->out.err.code, 0);
    lab_close(&l, NULL);
}

/* --- prices, and the job ---------------------------------------------------------------------- */

/* The price of computing the tokens is that of those that are not done. A forced plan has none. */
TEST(the_price_is_that_of_the_rest)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    l.p->c_tok.c_s = 1e-7;
    assert_true(restore_plan_price_s(l.g, l.s, 300) ==
                N_LAYERS * platform_prefill_s(l.p, 0, 300));
    l.s->n_done = 128;
    assert_true(restore_plan_price_s(l.g, l.s, 300) ==
                N_LAYERS * platform_prefill_s(l.p, 128, 172));
    l.s->n_done = 0;
    et_set_plan(l.s, "auto");
    assert_true(restore_plan_price_s(l.g, l.s, 300) > 0);
    et_set_plan(l.s, "kv");
    assert_true(restore_plan_price_s(l.g, l.s, 300) == 0);
    lab_close(&l, NULL);
}

/* A view whose moved tokens are missing has the price of a replay of all stairs, if the sequence
 * may replay. A replay that is faster than the plan is chosen. */
TEST(a_missing_view_has_the_price_of_a_replay)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){.save = "kv", .truncation = small});
    truncate(&l);
    struct plan *plan = &l.s->out.plan;
    int n_view = l.s->view.n_tokens;
    double replay_s = staircase_price_s(l.p, &small, 0, N_PROMPT);
    assert_true(restore_plan_price_s(l.g, l.s, n_view) == replay_s);
    assert_true(restore_plan_price_s(l.g, l.s, 128) ==
                staircase_price_s(l.p, &small, 0, view_token(&l.s->view, 128)));
    plan->restore_s = replay_s / 2;
    plan->predicted_s = replay_s * 1.01;
    assert_true(restore_plan_is_slower(l.g, l.s));
    plan->restore_s = replay_s * 2;
    plan->predicted_s = replay_s * 0.99;
    assert_false(restore_plan_is_slower(l.g, l.s));
    plan->predicted_s = replay_s * 1.01;
    l.s->shared->n_carrying = 1; /* another sequence replays */
    assert_true(restore_plan_price_s(l.g, l.s, n_view) == 0);
    assert_false(restore_plan_is_slower(l.g, l.s));
    l.s->shared->n_carrying = 0;
    l.s->n_done = 192; /* the device has the moved tokens */
    assert_true(restore_plan_price_s(l.g, l.s, n_view) ==
                N_LAYERS * platform_prefill_s(l.p, 192, n_view - 192));
    assert_false(restore_plan_is_slower(l.g, l.s));
    l.s->n_done = 0;
    lab_close(&l, NULL);
}

/* A forced plan is carried out unchanged. Another one uses keys and values from DRAM. */
TEST(the_job_is_the_plan)
{
    struct lab l;
    lab_open(&l, 0, &(struct et_ask){0});
    l.s->n_planned = 5;
    struct restore_job j = restore_plan_job(l.g, l.s, 2);
    assert_int_equal(j.n_chunks, 5);
    assert_int_equal(j.first_chunk, 2);
    assert_ptr_equal(j.tokens, l.s->view.tokens);
    assert_ptr_equal(j.plan, &l.s->out.plan);
    assert_ptr_equal(j.takes_kv, l.g->in_dram);
    et_set_plan(l.s, "kv");
    assert_true(seq_is_forced(l.s));
    j = restore_plan_job(l.g, l.s, 0);
    assert_null(j.takes_kv);
    et_set_plan(l.s, "auto");
    assert_false(seq_is_forced(l.s));
    lab_close(&l, NULL);
}
