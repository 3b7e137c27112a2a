/* test_platform.c - platforms: their text form, its validation, and the built-in machines. */
#include "tests/unit.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "restore/plan.h"
#include "restore/platform.h"
#include "sim/machines.h"

static const struct platform_shape llama_7b = {.name = "llama-2-7b",
                                               .n_layers = 32,
                                               .d_model = 4096,
                                               .n_heads = 32,
                                               .n_kv_heads = 32,
                                               .d_head = 128,
                                               .d_ffn = 11008,
                                               .n_vocab = 32000,
                                               .gated_ffn = true,
                                               .elem_bytes = 2};

static struct platform sample(void)
{
    struct platform p;
    assert_int_equal(machine_platform("a100-4ssd", &llama_7b, &p, NULL), 0);
    p.n_tiers = 2;
    strcpy(p.tier[1].name, "remote");
    p.tier[1].latency_s = 1.0 / 3;
    p.tier[1].bytes_per_s = 1e9 / 7;
    return p;
}

TEST(test_round_trip)
{
    struct platform p = sample(), q;
    char text[PLATFORM_FORMAT_MAX];
    struct err e;
    int n = platform_format(&p, text, sizeof text);
    assert_int_equal(n, strlen(text));
    if (platform_parse(text, (size_t)n, &q, &e) != 0)
        fail_msg("%s", e.msg);
    char again[PLATFORM_FORMAT_MAX];
    platform_format(&q, again, sizeof again);
    assert_string_equal(text, again);
    assert_true(p.tier[1].bytes_per_s == q.tier[1].bytes_per_s);
    assert_true(p.c_tok.c_s == q.c_tok.c_s);
    /* A buffer that is too small still gives the full length. */
    assert_int_equal(platform_format(&p, again, 10), n);
    assert_int_equal(strlen(again), 9);
}

TEST(test_largest_fits)
{
    struct platform p = sample();
    memset(p.machine, 'm', sizeof p.machine - 1);
    memset(p.model, 'm', sizeof p.model - 1);
    p.c_tok.c_s = -1.2345678901234567e-300;
    p.n_tiers = PLATFORM_TIERS_MAX;
    for (int i = 0; i < p.n_tiers; i++) {
        memset(p.tier[i].name, 't', sizeof p.tier[i].name - 1);
        p.tier[i].bytes_per_s = 1.2345678901234567e+300;
    }
    char text[PLATFORM_FORMAT_MAX];
    assert_true(platform_format(&p, text, sizeof text) < PLATFORM_FORMAT_MAX);
    p = sample();
    for (int i = p.n_tiers; i < PLATFORM_TIERS_MAX; i++)
        p.tier[i] = p.tier[0];
    p.n_tiers = PLATFORM_TIERS_MAX;
    for (int i = 0; i < p.n_tiers; i++)
        snprintf(p.tier[i].name, sizeof p.tier[i].name, "t%d", i);
    assert_int_equal(platform_validate(&p, NULL), 0);
    p.n_tiers++;
    assert_int_equal(platform_validate(&p, NULL), ERR_FORMAT);
}

static void expect_invalid(struct platform p, const char *want)
{
    struct err e = {0};
    assert_int_equal(platform_validate(&p, &e), ERR_FORMAT);
    if (strstr(e.msg, want) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, want);
}

TEST(test_nonsense_is_named)
{
    struct platform p;
    assert_int_equal(platform_validate((p = sample(), &p), NULL), 0);
#define BAD(change, want) (p = sample(), change, expect_invalid(p, want))
    BAD(p.c_h.b_s = 0, "c_h_b_s is zero");
    BAD(p.c_tok.b_s = -1, "c_tok_b_s is negative");
    BAD(p.c_tok.a_s = NAN, "c_tok_a_s is not a number");
    BAD(p.c_kv.b_s = INFINITY, "c_kv_b_s is infinite");
    BAD(p.io_overlap = 0.5, "io_overlap is 0.5, at least 1");
    BAD(p.comp_overlap = NAN, "comp_overlap is not a number");
    BAD(p.n_layers = 0, "n_layers is 0");
    BAD(p.n_tiers = -1, "n_tiers is -1");
    BAD(p.n_tiers = 9, "n_tiers is 9");
    BAD(p.tile_tokens = 0, "tile_tokens is 0");
    BAD(p.tier[1].bytes_per_s = 0, "tier1_bytes_per_s is zero");
    BAD(p.tier[0].latency_s = -1, "tier0_latency_s is negative");
    BAD(strcpy(p.machine, "two\nlines"), "machine contains a control character");
    BAD(strcpy(p.commit, "x "), "commit begins or ends with a space");
#undef BAD
}

/* Parses the sample's text with `from` replaced by `to`, and checks the error. */
static void expect_parse_error(const char *from, const char *to, const char *want)
{
    struct platform p = sample();
    char text[PLATFORM_FORMAT_MAX], changed[PLATFORM_FORMAT_MAX * 2];
    platform_format(&p, text, sizeof text);
    char *at = strstr(text, from);
    assert_non_null(at);
    int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                     at + strlen(from));
    struct err e = {0};
    assert_int_equal(platform_parse(changed, (size_t)n, &p, &e), ERR_FORMAT);
    if (strstr(e.msg, want) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, want);
}

TEST(test_bad_text)
{
    expect_parse_error("n_layers = 32", "n_layers = many", "line 5: n_layers = 'many'");
    expect_parse_error("n_layers = 32", "n_layers = 2.5", "is not a count");
    expect_parse_error("n_layers = 32", "n_layers = 99999999999", "is not a count");
    expect_parse_error("n_layers = 32", "n_layers = 1000000001", "is not a count");
    expect_parse_error("n_layers = 32", "n_layers = 9223372036854775808", "is not a count");
    expect_parse_error("n_layers = 32", "n_layers = 1e308", "is not a count");
    expect_parse_error("n_layers = 32", "n_layers = inf", "n_layers");
    expect_parse_error("n_layers = 32", "n_layers = nan", "n_layers");
    expect_parse_error("n_layers = 32", "n_layers =", "n_layers needs a number");
    expect_parse_error("n_layers = 32\n", "", "n_layers is missing");
    expect_parse_error("n_layers = 32", "n_layers = 32\nn_layers = 32", "a second time");
    expect_parse_error("n_layers = 32", "n_layers 32", "line 5 is not `key = value`");
    expect_parse_error("n_layers = 32", "n_layers = 32\nspeed = 3", "unknown key 'speed'");
    expect_parse_error("n_tiers = 2", "n_tiers = 1", "tier1_name, but n_tiers is 1");
    expect_parse_error("n_tiers = 2", "n_tiers = 3", "tier2_name is missing");
    expect_parse_error("head_s = ", "head_s = nan #", "is not a number");
    expect_parse_error("io_overlap = 1", "io_overlap = nan", "io_overlap is not a number");
    expect_parse_error("io_overlap = 1", "io_overlap = -2", "io_overlap is negative");
}

TEST(test_comments_and_blanks)
{
    struct platform p = sample(), q;
    char text[PLATFORM_FORMAT_MAX], more[PLATFORM_FORMAT_MAX * 2];
    platform_format(&p, text, sizeof text);
    int n = snprintf(more, sizeof more, "# a profile\r\n\n   \t\n%s# no newline at the end",
                     text);
    assert_int_equal(platform_parse(more, (size_t)n, &q, NULL), 0);
}

/* A text with any byte changed gives a valid platform or is refused. */
TEST(test_flipped_bytes)
{
    struct platform p = sample();
    char text[PLATFORM_FORMAT_MAX];
    int n = platform_format(&p, text, sizeof text);
    struct rng r = {1};
    for (int t = 0; t < 20000; t++) {
        char c[PLATFORM_FORMAT_MAX];
        memcpy(c, text, (size_t)n);
        for (int k = 0; k < 3; k++)
            c[rng_below(&r, (uint64_t)n)] = (char)rng_below(&r, 256);
        struct err e = {0};
        if (platform_parse(c, rng_below(&r, (uint64_t)n) + 1, &p, &e) != 0)
            assert_true(e.msg[0] != 0);
        else
            assert_int_equal(platform_validate(&p, NULL), 0);
    }
}

TEST(test_check)
{
    struct platform p = sample();
    struct err e;
    assert_int_equal(platform_check(&p, "a100-4ssd", "llama-2-7b", &e), 0);
    assert_int_equal(platform_check(&p, "laptop", "llama-2-7b", &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "another machine: 'a100-4ssd', this is 'laptop'"));
    assert_int_equal(platform_check(&p, "a100-4ssd", "opt", &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "another model"));
}

TEST(test_costs)
{
    struct platform p;
    platform_init(&p);
    p.c_tok = (struct cost_curve){1, 2, 0.5};
    p.c_h = (struct cost_curve){0, 3, 0};
    assert_true(platform_tok_s(&p, 0) == 0);
    assert_true(platform_tok_s(&p, 10) == 1 + 20 + 50);
    p.tile_tokens = 8; /* GEMM computes whole tiles, attention does not */
    assert_true(platform_tok_s(&p, 10) == 1 + 32 + 50);
    assert_true(platform_h_s(&p, 8) == 24);
    assert_true(platform_h_s(&p, 9) == 48);
    /* Two prefills of parts of a prompt cost as much as one, except for a second fixed cost. */
    p.tile_tokens = 1;
    double parts = platform_prefill_s(&p, 0, 6) + platform_prefill_s(&p, 6, 4);
    assert_true(fabs(parts - 1 - platform_tok_s(&p, 10)) < 1e-12);
}

/* Each cost has the terms that its comment in the header names, corrected by what was observed. The
 * numbers are powers of two, so the sums are exact. */
TEST(test_costs_of_reading_and_of_the_bus)
{
    struct platform p;
    platform_init(&p);
    p.h_bytes = 512;
    p.kv_bytes = 1024;
    p.n_tiers = 2;
    p.tier[0] = (struct platform_tier){.name = "dram", .bytes_per_s = 4096, .request_s = 2};
    p.tier[1] = (struct platform_tier){.name = "ssd",
                                       .bytes_per_s = 1024,
                                       .up_bytes_per_s = 2048,
                                       .gather_bytes_per_s = 512};
    assert_true(platform_read_s(&p, 0, 128, RECORD_HIDDEN) == 2 * 2 + 16);
    assert_true(platform_read_s(&p, 0, 128, RECORD_KV) == 2 * 2 + 32);
    p.tier[0].correction.log2 = 1;
    assert_true(platform_read_s(&p, 0, 128, RECORD_KV) == 2 * (2 * 2 + 32));
    assert_true(platform_up_s(&p, 0, 128, RECORD_KV) == 0);
    assert_true(platform_io_s(&p, 0, 128, RECORD_KV) == 2 * (2 * 2 + 32));
    /* After the bus, hidden states are also gathered by the ranks; K and V are not. */
    assert_true(platform_up_s(&p, 1, 128, RECORD_KV) == 64);
    assert_true(platform_up_s(&p, 1, 128, RECORD_HIDDEN) == 32 + 128);
    assert_true(platform_io_s(&p, 1, 128, RECORD_KV) == 128);
    assert_true(platform_io_s(&p, 1, 128, RECORD_HIDDEN) == 160);
    assert_true(platform_io_bytes_per_s(&p, 0) == 4096);
    assert_true(platform_io_bytes_per_s(&p, 1) == 1 / (1.0 / 2048 + 1.0 / 512));
    assert_true(platform_is_store_bound(&p, 0) && !platform_is_store_bound(&p, 1));
    p.tier[1].gather_bytes_per_s = 0;
    assert_true(platform_is_store_bound(&p, 1));
    /* if store and bus are equally fast, the store counts as the bound */
    p.tier[1].up_bytes_per_s = 1024;
    assert_true(platform_is_store_bound(&p, 1));
    assert_true(platform_tier_in_place(&p.tier[0]) && !platform_tier_in_place(&p.tier[1]));
    p.tier[0].up_bytes_per_s = 1;
    assert_false(platform_tier_in_place(&p.tier[0]));
}

/* Packed records are read in less time and unpacked by the compute lane, whose speed observed loads
 * correct. */
TEST(test_costs_of_packed_records)
{
    struct platform p;
    platform_init(&p);
    p.h_bytes = 512;
    p.kv_bytes = 1024;
    p.c_h.b_s = p.c_kv.b_s = 0.5;
    p.n_tiers = 1;
    p.tier[0] = (struct platform_tier){
        .bytes_per_s = 1024, .up_bytes_per_s = 512, .request_s = 2};
    assert_true(platform_stored_read_s(&p, 0, 128, RECORD_KV, 0.5) == 2 * 2 + 64);
    assert_true(platform_unpack_s(&p, 4096) == 0);
    p.unpack_bytes_per_s = 2048;
    assert_true(platform_unpack_s(&p, 4096) == 2);
    struct plan_layer l;
    p.packed_share = 0.5;
    p.n_layers = 1;
    plan_layers_uniform(&p, 0, 128, 1, &l);
    assert_true(l.io_kv_s == 256 &&
                l.io_h_s == 128); /* the bus, which takes unpacked bytes, is slower */
    assert_true(l.comp_h_s == 64 + 32 && l.comp_kv_s == 64 + 64);
    assert_true(l.comp_tok_last_s == 64); /* it is computed from tokens */
    assert_true(l.h_bytes == 256 && l.kv_bytes == 512);
    p.tier[0].up_bytes_per_s = 0;
    plan_layers_uniform(&p, 0, 128, 1, &l);
    assert_true(l.io_kv_s == 2 * 2 + 64);
    p.unseal_bytes_per_s =
        1024; /* of an encrypted store: of the bytes as they are stored */
    plan_layers_uniform(&p, 0, 128, 1, &l);
    assert_true(l.comp_h_s == 64 + 32 + 32 && l.comp_kv_s == 64 + 64 + 64);
    assert_true(l.comp_tok_last_s == 64);
    p.kv_correction.log2 = 1;
    assert_true(platform_unpack_s(&p, 4096) == 4 && platform_unseal_s(&p, 4096) == 8);
}

/* Observed products correct only the costs of products, and observed loads only the costs of
 * loading. */
TEST(test_corrections_have_their_costs)
{
    struct platform p;
    platform_init(&p);
    p.c_tok = (struct cost_curve){1, 2, 0.5};
    p.c_h = (struct cost_curve){2, 4, 0};
    p.c_kv = (struct cost_curve){1, 2, 0.25};
    p.embed_s = 0.5;
    p.head_s = 8;
    assert_true(cost_curve_at(&p.c_kv, 0) == 0);
    assert_true(cost_curve_at(&p.c_kv, 4) == 1 + 8 + 4);
    assert_true(platform_ends_s(&p, 4) == 10);
    p.gemm_correction.log2 = 1;
    assert_true(platform_tok_s(&p, 4) == 2 * (1 + 8 + 8));
    assert_true(platform_h_s(&p, 4) == 2 * (2 + 16));
    assert_true(platform_ends_s(&p, 4) == 20);
    assert_true(platform_prefill_s(&p, 2, 4) == 2 * (1 + 8 + 8 + 2 * 0.5 * 2 * 4));
    assert_true(platform_kv_s(&p, 4) == 13);
    platform_slow_compute(&p, 4);
    assert_true(platform_kv_s(&p, 4) == 4 * 13);
    assert_true(platform_ends_s(&p, 4) == 80);
    p.gemm_correction.log2 = 0;
    p.piece_tokens = 3; /* each piece has its fixed part */
    p.h_piece_tokens = 2;
    assert_true(platform_tok_s(&p, 4) == 2 * 1 + 8 + 8);
    assert_true(platform_h_s(&p, 4) == 2 * 2 + 16);
}

/* Layers that are streamed from a disk take at least the disk's time for each piece of a pass,
 * whether the pass recomputes or prefills. Restores from hidden states and from K and V read no
 * streamed weights. So a plan that recomputed with resident weights reads state instead. */
TEST(test_streamed_weights_make_recomputation_dear)
{
    struct platform p;
    struct plan_layer layer[8];
    double prefill_s[8];
    struct plan_request req;
    struct plan plan;
    struct err e = {0};
    platform_init(&p);
    p.n_layers = 8;
    p.h_bytes = p.kv_bytes = 1000;
    p.c_tok = (struct cost_curve){.b_s = 1e-6};
    p.c_h = (struct cost_curve){.b_s = 2e-7};
    p.c_kv = (struct cost_curve){.b_s = 1e-8};
    p.n_tiers = 1;
    p.tier[0] = (struct platform_tier){.name = "ssd", .bytes_per_s = 2e8};
    p.piece_tokens = 512;
    double kv_s = platform_kv_s(&p, 1000), h_s = platform_h_s(&p, 1000);
    plan_request_from_platform(&p, 0, 1000, 0, layer, prefill_s, &req);
    assert_int_equal(plan_make(&req, &plan, &e), 0);
    assert_true(plan.n_r >= 4); /* recomputing a layer takes 1 ms, reading one 5 ms */
    p.weights_s = 0.25;
    assert_true(platform_tok_s(&p, 1000) == 0.5); /* the pass has two pieces */
    assert_true(platform_tok_s(&p, 512) == 0.25);
    assert_true(platform_prefill_s(&p, 1000, 1) == 0.25);
    assert_true(platform_tok_s(&p, 0) == 0);
    assert_true(platform_kv_s(&p, 1000) == kv_s && platform_h_s(&p, 1000) == h_s);
    p.weights_s = 1e-6; /* reading weights is hidden by longer compute */
    assert_true(platform_tok_s(&p, 1000) == 1e-3);
    p.weights_s = 0.25;
    plan_request_from_platform(&p, 0, 1000, 0, layer, prefill_s, &req);
    assert_int_equal(plan_make(&req, &plan, &e), 0);
    assert_true(plan.n_r <= 1); /* layer 0 alone needs no read */
}

TEST(test_builtin)
{
    struct platform p;
    struct err e;
    static const char *const machines[] = {"a100", "a30", "4090", "l20", "h800", "a100x4"};
    static const char *const stores[] = {"dram", "1ssd", "2ssd", "3ssd", "4ssd"};
    for (int i = 0; i < 6 * 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s-%s", machines[i / 5], stores[i % 5]);
        if (machine_platform(name, &llama_7b, &p, &e) != 0)
            fail_msg("%s", e.msg);
        assert_string_equal(p.machine, name);
    }
    assert_int_equal(machine_platform("a100", &llama_7b, &p, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "h800"));
    struct platform_shape bad = llama_7b;
    bad.d_head = 0;
    assert_int_equal(machine_platform("a100-dram", &bad, &p, &e), ERR_USAGE);
    assert_non_null(strstr(e.msg, "d_head"));
}

/* The built-in platforms are calibrated with the paper: four SSDs read 26 GB/s, and I/O and compute
 * balance at 24 and 21 GB/s. */
TEST(test_balance_points)
{
    struct platform p;
    struct platform_shape llama_13b = llama_7b;
    llama_13b.d_model = 5120, llama_13b.n_heads = llama_13b.n_kv_heads = 40;
    machine_platform("a100-4ssd", &llama_7b, &p, NULL);
    assert_true(fabs(platform_io_bytes_per_s(&p, 0) - 26e9) < 1);
    assert_true(fabs(platform_balance_bytes_per_s(&p, 1024) - 24e9) < 1e6);
    machine_platform("a100-1ssd", &llama_13b, &p, NULL);
    assert_true(fabs(platform_io_bytes_per_s(&p, 0) - 6.9e9) < 1);
    assert_true(fabs(platform_balance_bytes_per_s(&p, 1024) - 21e9) < 1e6);
    /* Section 6.2.3: from 1K to 16K tokens the recomputation of a 7B model becomes 28 % slower per
     * token. */
    machine_platform("a100-4ssd", &llama_7b, &p, NULL);
    double drop = 1 - platform_tok_s(&p, 1024) * 16 / platform_tok_s(&p, 16384);
    assert_true(fabs(drop - 0.28) < 0.005);
}

/* Two concurrent restores take twice as long by every method. A throttle slows reading only. */
TEST(test_shared_and_throttled)
{
    struct platform p = sample(), half = platform_shared(&p, 0.5, 0.5), slow = p;
    assert_true(fabs(platform_h_s(&half, 640) / platform_h_s(&p, 640) - 2) < 1e-9);
    assert_true(fabs(platform_tok_s(&half, 640) / platform_tok_s(&p, 640) - 2) < 1e-9);
    assert_true(fabs(platform_kv_s(&half, 640) / platform_kv_s(&p, 640) - 2) < 1e-9);
    assert_true(fabs(platform_prefill_s(&half, 64, 64) / platform_prefill_s(&p, 64, 64) -
                     2) < 1e-9);
    for (int t = 0; t < 2; t++)
        assert_true(fabs(platform_io_s(&half, t, 640, RECORD_KV) /
                             platform_io_s(&p, t, 640, RECORD_KV) -
                         2) < 1e-9);
    slow.io_overlap = 1.4;
    slow.comp_overlap = 1.2;
    platform_throttle(&slow, 0, p.tier[0].bytes_per_s * 2);
    assert_string_equal(slow.tier[0].name, p.tier[0].name);
    platform_throttle(&slow, 0, p.tier[0].bytes_per_s / 10);
    assert_string_equal(slow.tier[0].name, "throttled");
    assert_true(slow.tier[0].bytes_per_s == p.tier[0].bytes_per_s / 10);
    assert_true(fabs(slow.io_overlap - 1.04) < 1e-9 &&
                fabs(slow.comp_overlap - 1.02) < 1e-9);
    assert_true(slow.tier[1].bytes_per_s == p.tier[1].bytes_per_s);
    assert_true(platform_h_s(&slow, 640) == platform_h_s(&p, 640));
}

/* Until the store's speed is measured, a throttle counts as its speed. Without a throttle the speed
 * is unknown. */
TEST(test_a_throttle_is_the_speed_of_an_unmeasured_store)
{
    struct platform p = sample(), same = p;
    p.n_tiers = 0;
    platform_throttle(&p, 0, 0);
    assert_int_equal(p.n_tiers, 0);
    platform_throttle(&p, 0, 1e6);
    assert_int_equal(p.n_tiers, 1);
    assert_true(p.tier[0].bytes_per_s == 1e6 && p.tier[0].latency_s == 0 &&
                p.tier[0].correction.n_observed == 0);
    /* A server without a store measures nothing: its platform must not look measured. */
    struct platform unmeasured = {0};
    platform_throttle(&unmeasured, 0, 1e6);
    assert_int_equal(unmeasured.n_tiers, 0);
    struct platform unlimited = same;
    platform_throttle(&unlimited, 0, 0);
    assert_true(unlimited.tier[0].bytes_per_s == same.tier[0].bytes_per_s);
    assert_true(unlimited.io_overlap == same.io_overlap);
}
