/* test_plan.c - plans by mode, forced plans, the numbers of the HCache paper, and ranges with
 * different records. */
#include "tests/unit.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "restore/pipeline.h"
#include "restore/plan.h"
#include "sim/machines.h"

static const struct platform_shape shapes[] = {
    {"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, true, 2, 1, 1, 0, 0, 0, 0},
    {"llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000, true, 2, 1, 1, 0, 0, 0, 0},
    {"opt-30b", 48, 7168, 56, 56, 128, 28672, 50272, false, 2, 1, 1, 0, 0, 0, 0},
    {"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, true, 2, 1, 1, 0, 0, 0, 0},
};
enum { LLAMA_7B, LLAMA_13B, OPT_30B, LLAMA3_8B };

static struct plan_layer layer[PLAN_MAX_LAYERS];
static double prefill_s[PLAN_MAX_LAYERS];
static struct platform platform;
static struct plan plan;
static struct err e;

static struct plan_request request(const char *machine, int shape, int64_t n, int64_t n_new)
{
    struct plan_request q;
    if (machine_platform(machine, &shapes[shape], &platform, &e) != 0)
        fail_msg("%s", e.msg);
    plan_request_from_platform(&platform, 0, n, n_new, layer, prefill_s, &q);
    return q;
}

static void make(struct plan_request *q, const char *mode)
{
    if (plan_mode_parse(mode, q, &e) != 0 || plan_make(q, &plan, &e) != 0)
        fail_msg("%s: %s", mode, e.msg);
}

static void expect_error(struct plan_request *q, const char *mode, int code,
                         const char *want)
{
    int rc = plan_mode_parse(mode, q, &e);
    if (rc == 0)
        rc = plan_make(q, &plan, &e);
    if (rc != code || strstr(e.msg, want) == NULL)
        fail_msg("%s: %s '%s', not '%s'", mode, err_name(rc), rc ? e.msg : "", want);
}

/* ---- the paper ---- */

TEST(test_table_3)
{
    struct plan_request q = request("a100-4ssd", LLAMA_7B, 1024, 0);
    make(&q, "paper");
    assert_int_equal(plan.n_h, 31);
    assert_int_equal(plan.n_k, 1);
    /* The paper's table counts one byte per element: 132 and 256 KiB. */
    assert_true(plan.stored_bytes_per_token + platform.h_bytes == 2 * 132 * 1024);
    make(&q, "kv");
    assert_true(plan.stored_bytes_per_token == 2 * 256 * 1024);

    q = request("a100-4ssd", LLAMA_13B, 1024, 0);
    make(&q, "paper");
    assert_int_equal(plan.n_h, 36);
    assert_int_equal(plan.n_k, 4);
    /* 36 layers H and 4 layers KV are 220 KiB; the paper's table prints 210. */
    assert_true(plan.stored_bytes_per_token + platform.h_bytes == 2 * 220 * 1024);

    q = request("a100x4-4ssd", OPT_30B, 1024, 0);
    make(&q, "paper");
    assert_int_equal(plan.n_h, 40);
    assert_int_equal(plan.n_r, 8);
    assert_true(plan.stored_bytes_per_token == 2 * 280 * 1024);
}

/* The built-in platforms are not calibrated with this section. */
TEST(test_section_6_3_2)
{
    struct plan_request q = request("a100-1ssd", LLAMA_13B, 1024, 0);
    make(&q, "paper");
    assert_int_equal(plan.n_h, 31);
    assert_int_equal(plan.n_r, 9);
    double paper = plan.predicted_s;
    make(&q, "auto");
    assert_true(plan.predicted_s <= paper);
}

/* The paper says: "with long histories the scheduler falls back to HCache only" (6.2.3). So plans
 * of long histories recompute no layers. */
TEST(test_long_history_recomputes_less)
{
    struct plan_request q = request("a100-1ssd", LLAMA_7B, 1024, 0);
    make(&q, "auto");
    int r = plan.n_r;
    assert_true(r > 1);
    q = request("a100-1ssd", LLAMA_7B, 16384, 0);
    make(&q, "auto");
    assert_true(plan.n_r < r);
}

/* ---- grouped queries ---- */

TEST(test_gqa)
{
    struct plan_request q = request("a100-1ssd", LLAMA3_8B, 4096, 0);
    make(&q, "auto");
    assert_int_equal(plan.n_h, 0);
    assert_true(plan.n_r >= 1 && plan.n_k > 0);
    assert_non_null(strstr(plan.reason, "(hidden states have 2x the bytes)"));
    /* The mode that mixes K and V with a recomputed prefix finds the same plan as `auto`. */
    struct plan kv_re;
    q.mode = PLAN_KV_RECOMPUTE;
    assert_int_equal(plan_make(&q, &kv_re, &e), 0);
    assert_string_equal(kv_re.method, plan.method);
}

/* ---- small hand-made pipelines ---- */

static struct plan_request by_hand(int n, struct plan_layer l)
{
    for (int i = 0; i < n; i++)
        layer[i] = l;
    layer[0].h_free = true;
    return (struct plan_request){.n_layers = n, .layer = layer};
}

static const struct plan_layer plain = {.io_h_s = 1,
                                        .io_kv_s = 2,
                                        .comp_h_s = 1,
                                        .comp_kv_s = 0.1,
                                        .comp_tok_s = 6,
                                        .comp_tok_last_s = 1,
                                        .h_bytes = 1,
                                        .kv_bytes = 2,
                                        .has_h = true,
                                        .has_kv = true,
                                        .can_recompute = true};

TEST(test_costs_of_forced_plans)
{
    struct plan_request q = by_hand(4, plain);
    make(&q, "recompute"); /* three whole layers and a projection */
    assert_true(fabs(plan.predicted_s - 19) < 1e-12);
    make(&q, "kv");
    assert_true(fabs(plan.predicted_s - 8.1) < 1e-12);
    make(&q, "hidden"); /* three reads and the last projection; layer 0 needs no read */
    assert_true(fabs(plan.predicted_s - 4) < 1e-12);
    assert_string_equal(plan.method, "HHHH");
    make(&q, "RHHH");
    assert_true(fabs(plan.predicted_s - 4) < 1e-12);
    make(&q, "RHHK");
    assert_string_equal(plan.method, "RHHK");
    assert_true(fabs(plan.predicted_s - 4.1) < 1e-12);
    make(&q, "RKHK");
    assert_int_equal(plan.n_k, 2);
    assert_int_equal(plan.n_io, 3);
    /* H is read first, because compute can hide its projection */
    assert_int_equal(plan.io_order[0], 2);
    make(&q, "auto");
    assert_string_equal(plan.method, "RHHH");
    assert_true(plan.exact);
    assert_true(fabs(plan.stored_bytes_per_token - 3) < 1e-12);
    assert_true(fabs(plan.bubble) < 1e-12); /* compute is never idle */
}

TEST(test_latency_head_and_prefill)
{
    struct plan_request q = by_hand(4, plain);
    const double p[4] = {2, 2, 2, 2};
    q.io_latency_s = 0.5;
    q.prefill_s = p;
    q.head_s = 0.25;
    /* reads end at 3 s and arrive at 3.5 s; the projections end at 4.5 s; 4 * 2 s of prefill and
     * the head follow */
    make(&q, "RHHH");
    assert_true(fabs(plan.restore_s - 4.5) < 1e-12);
    assert_true(fabs(plan.predicted_s - 12.75) < 1e-12);
    q.fused = true; /* compute never waits: 4 projections, 4 prefills, the head */
    make(&q, "RHHH");
    assert_true(fabs(plan.predicted_s - 12.25) < 1e-12);
}

TEST(test_overlap_slows)
{
    struct plan_request q = by_hand(4, plain);
    /* both lanes share one core, so each slows the other by 2 */
    q.io_overlap = q.comp_overlap = 2;
    make(&q, "RHHH"); /* overlap gains nothing: 3 reads and 4 projections */
    assert_true(fabs(plan.predicted_s - 7) < 1e-12);
}

TEST(test_auto_uses_what_is_there)
{
    struct plan_request q = by_hand(6, plain);
    layer[4].has_kv = false;
    layer[5].has_h = false;
    make(&q, "auto");
    assert_int_equal(plan.method[4], 'H');
    assert_int_equal(plan.method[5], 'K');
    /* without a record of layer 2, layers 0 to 2 are recomputed */
    layer[2].has_h = layer[2].has_kv = false;
    make(&q, "auto");
    assert_string_equal(plan.method, "RRRKHK");
    layer[1].can_recompute = false;
    expect_error(&q, "auto", ERR_NOT_FOUND, "layer 2 has no usable record");
}

TEST(test_truncated_context)
{
    struct plan_request q = by_hand(4, plain);
    for (int i = 0; i < 4; i++)
        layer[i].can_recompute = false;
    /* layer 0 is projected from the embedding rows, which need no record */
    make(&q, "auto");
    assert_string_equal(plan.method, "RHHH");
    expect_error(&q, "recompute", ERR_NOT_FOUND, "layer 0 cannot be recomputed");
}

TEST(test_budget)
{
    struct plan_request q = by_hand(4, plain);
    q.budget_bytes_per_token = 1;
    make(&q, "auto");
    assert_string_equal(plan.method, "RRRH");
    assert_true(plan.stored_bytes_per_token <= 1);
    layer[1].can_recompute = false;
    expect_error(&q, "auto", ERR_NOT_FOUND, "no plan stores at most 1 bytes");
}

/* A mixture must be predicted to gain more than the root of the doubt. */
TEST(test_a_single_method_wins_a_doubtful_gain)
{
    const struct {
        double mixture_s, single_s, spread;
        bool single;
    } cases[] = {
        {1, 0.999, 0, true},     {1, 1, 0, false},       {1, 1.001, 0, false},
        {1, 1.001, 1, false},    {1, 1.09, 1.21, true},  {1, 1.11, 1.21, false},
        {1, 1.19, 1.44, true},   {1, 1.21, 1.44, false}, {1e-4, 1.09e-4, 1.21, true},
        {1, INFINITY, 2, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(
            plan_prefers_single(cases[i].mixture_s, cases[i].single_s, cases[i].spread),
            cases[i].single);
}

/* Three reads of hidden states take 3 s, and their projections with layer 0's take 4 s. KV takes
 * io_s + 0.1 s without a mixture. */
TEST(test_auto_passes_a_doubtful_mixture)
{
    int n_passed = 0, n_mixed = 0;
    for (double io_s = 0.5; io_s < 2; io_s += 0.01) {
        struct plan_request q = by_hand(6, plain);
        for (int i = 0; i < 6; i++)
            layer[i].io_kv_s = io_s;
        struct plan mixture, kv, hidden;
        make(&q, "auto");
        mixture = plan;
        make(&q, "kv");
        kv = plan;
        make(&q, "RHHHHH");
        hidden = plan;
        q.spread = 1.21;
        make(&q, "auto");
        double single_s = fmin(kv.predicted_s, hidden.predicted_s);
        if (single_s >= 1.1 * mixture.predicted_s) {
            assert_string_equal(plan.method, mixture.method);
            assert_true(plan.passed_gain_s == 0);
            n_mixed++;
            continue;
        }
        /* H of layer 0 is reported as R, which is the same work. */
        assert_string_equal(plan.method, single_s == kv.predicted_s ? "KKKKKK" : "RHHHHH");
        assert_true(fabs(plan.passed_gain_s - (single_s - mixture.predicted_s)) < 1e-9);
        assert_true((plan.passed_gain_s > 0) ==
                    (strstr(plan.reason, "would gain") != NULL));
        n_passed += plan.passed_gain_s > 0;
        /* Baselines are what they are. */
        make(&q, "kv+recompute");
        struct plan doubted = plan;
        q.spread = 0;
        make(&q, "kv+recompute");
        assert_string_equal(plan.method, doubted.method);
        /* A single method that stores too much does not win. */
        q.spread = 1.21;
        q.budget_bytes_per_token = kv.stored_bytes_per_token - 1;
        make(&q, "auto");
        assert_true(plan.stored_bytes_per_token <= q.budget_bytes_per_token);
    }
    assert_true(n_passed > 10 && n_mixed > 10);
}

TEST(test_bad_requests_are_named)
{
    struct plan_request q = by_hand(4, plain);
    layer[3].has_h = false;
    layer[2].has_kv = false;
    expect_error(&q, "RHHKKKKKKKKK", ERR_USAGE, "12 letters for 4 layers");
    expect_error(&q, "HRHH", ERR_USAGE, "layer 1 is R after H at layer 0");
    expect_error(&q, "RRR", ERR_USAGE, "3 letters for 4 layers");
    expect_error(&q, "fastest", ERR_USAGE, "'fastest': neither a method");
    expect_error(&q, "", ERR_USAGE, "neither");
    expect_error(&q, "r1,h3", ERR_USAGE, "neither");
    expect_error(&q, "RHHk", ERR_USAGE, "neither");
    q.spread = 0.5;
    expect_error(&q, "auto", ERR_USAGE, "spread is 0.5");
    q.spread = 0;
    layer[1].io_kv_s = NAN;
    expect_error(&q, "auto", ERR_USAGE, "layer 1: io_kv_s is not a number");
    layer[1].io_kv_s = -1;
    expect_error(&q, "auto", ERR_USAGE, "layer 1: io_kv_s is negative");
    layer[1].has_kv = false; /* layer 0 needs no record */
    make(&q, "auto");
    layer[2].comp_tok_s = INFINITY;
    expect_error(&q, "auto", ERR_USAGE, "layer 2: comp_tok_s is infinite");
    layer[2].comp_tok_s = 6;
    q.io_overlap = 0.5;
    expect_error(&q, "auto", ERR_USAGE, "io_overlap is 0.5, less than 1");
    q.io_overlap = 0;
    q.head_s = NAN;
    expect_error(&q, "auto", ERR_USAGE, "head_s is not a number");
    q.n_layers = 257;
    expect_error(&q, "auto", ERR_USAGE, "257 layers");
}

/* Each cost of each layer must be a number of at least 0, if the layer has the method that the cost
 * belongs to. The message names the layer, the cost and the fault. */
TEST(test_bad_costs_are_named)
{
    enum { L = 3 };
    static const struct {
        const char *name;
        size_t at;
        char method; /* the method that uses it: H, K, R */
    } costs[] = {{"io_h_s", offsetof(struct plan_layer, io_h_s), 'H'},
                 {"up_h_s", offsetof(struct plan_layer, up_h_s), 'H'},
                 {"comp_h_s", offsetof(struct plan_layer, comp_h_s), 'H'},
                 {"h_bytes", offsetof(struct plan_layer, h_bytes), 'H'},
                 {"io_kv_s", offsetof(struct plan_layer, io_kv_s), 'K'},
                 {"up_kv_s", offsetof(struct plan_layer, up_kv_s), 'K'},
                 {"comp_kv_s", offsetof(struct plan_layer, comp_kv_s), 'K'},
                 {"kv_bytes", offsetof(struct plan_layer, kv_bytes), 'K'},
                 {"comp_tok_s", offsetof(struct plan_layer, comp_tok_s), 'R'},
                 {"comp_tok_last_s", offsetof(struct plan_layer, comp_tok_last_s), 'R'}};
    static const struct {
        double value;
        const char *why;
    } bad[] = {{-1e-9, "negative"}, {INFINITY, "infinite"}, {NAN, "not a number"}};
    const struct plan_layer good = {.io_h_s = 1,
                                    .io_kv_s = 2,
                                    .comp_h_s = 1,
                                    .comp_kv_s = 1,
                                    .comp_tok_s = 9,
                                    .comp_tok_last_s = 9,
                                    .has_h = true,
                                    .has_kv = true,
                                    .can_recompute = true};
    struct plan_request q = {.n_layers = L, .layer = layer};
    char want[80];
    for (size_t c = 0; c < sizeof costs / sizeof *costs; c++)
        for (int how = 0; how < L * 3 * 2; how++) {
            int i = how / 6;
            bool is_used = how % 2;
            struct plan_layer *l = &layer[i];
            for (int k = 0; k < L; k++)
                layer[k] = good;
            *(double *)(void *)((char *)l + costs[c].at) = bad[how / 2 % 3].value;
            l->has_h = is_used || costs[c].method != 'H';
            l->has_kv = is_used || costs[c].method != 'K';
            l->can_recompute = is_used || costs[c].method != 'R';
            assert_int_equal(plan_make(&q, &plan, &e), is_used ? ERR_USAGE : 0);
            snprintf(want, sizeof want, "plan request: layer %d: %s is %s", i,
                     costs[c].name, bad[how / 2 % 3].why);
            if (is_used)
                assert_string_equal(e.msg, want);
        }
    /* A free layer 0 reads nothing, and is projected. */
    layer[L - 1] = good;
    layer[0].h_free = true;
    layer[0].io_h_s = layer[0].up_h_s = layer[0].comp_h_s = NAN;
    assert_int_equal(plan_make(&q, &plan, &e), 0);
    layer[0].can_recompute = false;
    layer[0].comp_tok_last_s = -1;
    expect_error(&q, "auto", ERR_USAGE, "layer 0: comp_tok_last_s is negative");
    layer[0].comp_tok_last_s = 1;
    layer[1].h_free = true;
    expect_error(&q, "auto", ERR_USAGE, "layer 1: only layer 0 can be h_free");
    layer[1].h_free = false;
    q.prefill_s = prefill_s;
    for (int i = 0; i < L; i++) {
        prefill_s[0] = prefill_s[1] = prefill_s[2] = 1;
        prefill_s[i] = -1;
        snprintf(want, sizeof want, "layer %d: prefill_s is negative", i);
        expect_error(&q, "auto", ERR_USAGE, want);
    }
    prefill_s[L - 1] = 0;
    assert_int_equal(plan_make(&q, &plan, &e), 0);
}

/* In every plan a layer computes after its read, and the work of a lane never overlaps itself. */
TEST(test_lanes_are_consistent)
{
    static struct pipeline lanes;
    const char *modes[] = {"auto",
                           "hidden",
                           "kv",
                           "recompute",
                           "kv+recompute",
                           "paper",
                           "RRRRRHHHHHHHHHHHHHHHHHHHHKKKKKKK"};
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        struct plan_request q = request("a30-2ssd", LLAMA_7B, 2000, 100);
        q.fused = m % 2;
        make(&q, modes[m]);
        pipeline_simulate(&q, &plan, &lanes);
        double free_s[2] = {0, 0}, arrived[2][PLAN_MAX_LAYERS] = {{0}};
        for (int i = 0; i < lanes.n_items; i++) {
            const struct pipe_item *x = &lanes.item[i];
            int lane = x->lane != PIPE_IO;
            assert_true(x->start_s >= free_s[lane] - 1e-12 && x->end_s >= x->start_s);
            free_s[lane] = x->end_s;
            if (x->lane == PIPE_IO)
                arrived[x->method == 'K'][x->layer] = x->end_s + q.io_latency_s;
            if (x->lane == PIPE_RESTORE && (x->method == 'H' || x->method == 'K'))
                assert_true(x->start_s >= arrived[x->method == 'K'][x->layer] - 1e-12);
        }
        assert_true(fabs(fmax(free_s[0], free_s[1]) - plan.predicted_s) < 1e-12);
    }
}

/* ---- ranges ---- */

TEST(test_range_methods)
{
    assert_int_equal(plan_range_method('H', PLAN_HAS_H | PLAN_HAS_KV), 'H');
    assert_int_equal(plan_range_method('H', PLAN_HAS_KV), 'K');
    assert_int_equal(plan_range_method('K', PLAN_HAS_H), 'H');
    assert_int_equal(plan_range_method('K', 0), 0);
    assert_int_equal(plan_range_method('R', 0), 'R');
}

static int best_prefix(const struct plan_range *range, int n, const char *mode,
                       int64_t n_new)
{
    struct plan_request q = {.n_layers = platform.n_layers};
    int used = -1;
    if (plan_mode_parse(mode, &q, &e) != 0)
        fail_msg("%s", e.msg);
    int rc = plan_best_prefix(&platform, range, n, n_new, true, layer, prefill_s, &q, &plan,
                              &used, &e);
    return rc != 0 ? rc : used;
}

TEST(test_ranges)
{
    request("a100-4ssd", LLAMA_7B, 1024, 0);
    uint8_t only_h[32], only_kv[32], none[32] = {0};
    memset(only_h, PLAN_HAS_H, sizeof only_h);
    memset(only_kv, PLAN_HAS_KV, sizeof only_kv);
    /* The first range was saved as hidden states, the second as KV: both are used. */
    const struct plan_range mixed[] = {{.n_tokens = 1024, .mask = only_h},
                                       {.n_tokens = 1024, .mask = only_kv}};
    assert_int_equal(best_prefix(mixed, 2, "auto", 64), 2);
    assert_int_equal(plan.n_layers, 32);
    /* Nothing after a range without records can be restored. */
    const struct plan_range hole[] = {{.n_tokens = 1024, .mask = only_h},
                                      {.n_tokens = 64, .mask = none},
                                      {.n_tokens = 1024, .mask = only_kv}};
    assert_int_equal(best_prefix(hole, 3, "auto", 64), 1);
    /* If a layer of a range has no record, the plan recomputes up to that layer, or uses less of
     * the chain. */
    only_kv[31] = 0;
    assert_int_equal(best_prefix(mixed, 2, "auto", 64), 1);
    only_kv[31] = PLAN_HAS_KV;
    only_kv[1] = 0; /* recomputing layers 0 and 1 is cheaper than prefilling 1024 tokens */
    assert_int_equal(best_prefix(mixed, 2, "auto", 64), 2);
    assert_memory_equal(plan.method, "RR", 2);
    assert_int_equal(best_prefix(hole, 0, "auto", 64), 0);
}

TEST(test_ranges_forced)
{
    request("a100-4ssd", LLAMA_7B, 1024, 0);
    uint8_t only_h[32], both[32];
    memset(only_h, PLAN_HAS_H, sizeof only_h);
    memset(both, PLAN_HAS_H | PLAN_HAS_KV, sizeof both);
    struct plan_range range[] = {{.n_tokens = 128, .mask = only_h}};
    assert_int_equal(best_prefix(range, 1, "kv", 1), 1);
    assert_int_equal(plan.n_h, 32);
    assert_int_equal(best_prefix(range, 1, "hidden", 1), 1);
    assert_int_equal(best_prefix(range, 1, "recompute", 1), 1);
    /* If the store is slower than computing, auto restores the range by recomputation. Forced plans
     * are followed. */
    platform.tier[0].bytes_per_s = 1e3;
    range[0].mask = both;
    assert_int_equal(best_prefix(range, 1, "auto", 1), 1);
    assert_int_equal(plan.n_r, 32);
    assert_int_equal(best_prefix(range, 1, "kv", 1), 1);
    assert_int_equal(plan.n_k, 32);
}

/* Beside decodes a restore gets a few percent of the compute. So the best plan reads the most and
 * computes the least. */
TEST(test_beside_decodes)
{
    request("a100-4ssd", LLAMA_7B, 1024, 0);
    uint8_t both[32];
    memset(both, PLAN_HAS_H | PLAN_HAS_KV, sizeof both);
    struct plan_range range = {.n_tokens = 1024, .mask = both};
    struct plan_request q = {.n_layers = 32}, slowed = {.n_layers = 32, .comp_slow = 33};
    double alone_s[2];
    int used;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(plan_best_prefix(&platform, &range, 1, 64, true, layer, prefill_s,
                                          i == 0 ? &q : &slowed, &plan, &used, &e),
                         0);
        assert_int_equal(used, 1);
        alone_s[i] = plan.predicted_s;
        assert_int_equal(plan.n_h > 0, i == 0);
    }
    assert_true(plan.n_k >= 31); /* layer 0 needs no record */
    assert_true(alone_s[1] > alone_s[0]);
    /* If decodes slow prefill, too, restoring gains more. */
    platform.tier[0].bytes_per_s = platform.kv_bytes * 32 * 1024 / 1.0;
    struct plan_request kv = {.n_layers = 32, .mode = PLAN_KV};
    assert_int_equal(plan_best_prefix(&platform, &range, 1, 64, true, layer, prefill_s, &kv,
                                      &plan, &used, &e),
                     0);
    double kv_s = plan.predicted_s;
    for (int factor = 1; factor <= 1000; factor *= 1000) {
        struct plan_request r = {.n_layers = 32, .comp_slow = 33, .prefill_slow = factor};
        assert_int_equal(plan_best_prefix(&platform, &range, 1, 64, true, layer, prefill_s,
                                          &r, &plan, &used, &e),
                         0);
        /* Reading takes one second, and so does a prefill that decodes slow by 1000. */
        assert_int_equal(used, factor > 1);
        assert_true(used == 0 || plan.predicted_s >= kv_s);
    }
}
