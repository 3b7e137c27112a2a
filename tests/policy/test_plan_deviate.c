/* test_plan_deviate.c - a forced plan follows its letters as far as the records allow, and names
 * every difference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "policy/plan.h"

enum { N = 6, H = PLAN_HAS_H, K = PLAN_HAS_KV, B = H | K };

static const struct platform_shape shape = {"six", N,     1024, 16, 16, 64,
                                            2816,  32000, true, 2,  1,  1};
static struct platform platform;
static struct plan_layer layer[N];
static double prefill_s[N];
static struct plan plan;
static struct err e;

struct range_of {
    int n_tokens;
    uint8_t mask[N];
};

/* Returns the number of ranges that the plan uses, or the error. */
static int best(const char *mode, bool may_deviate, const struct range_of *r, int n,
                struct plan_window window)
{
    struct plan_range range[4];
    struct plan_request q = {
        .n_layers = N, .may_deviate = may_deviate, .window = window, .fused = true};
    int used = -1;
    for (int i = 0; i < n; i++)
        range[i] = (struct plan_range){.n_tokens = r[i].n_tokens, .mask = r[i].mask};
    assert_int_equal(platform_builtin("a100-4ssd", &shape, &platform, &e), 0);
    assert_int_equal(plan_mode_parse(mode, &q, &e), 0);
    int rc = plan_best_prefix(&platform, range, n, 10, true, layer, prefill_s, &q, &plan,
                              &used, &e);
    return rc != 0 ? rc : used;
}

/* Checks the plan and its deviation for one range of 640 tokens. */
static void expect(const char *mode, const uint8_t mask[N], const char *method,
                   const char *deviation)
{
    struct range_of r = {.n_tokens = 640};
    struct plan_window none = {0};
    memcpy(r.mask, mask, N);
    assert_int_equal(best(mode, true, &r, 1, none), 1);
    assert_string_equal(plan.method, method);
    assert_string_equal(plan.deviation, deviation);
    int counts[3] = {0};
    for (int i = 0; i < N; i++)
        counts[method[i] == 'R' ? 0 : method[i] == 'H' ? 1 : 2]++;
    assert_int_equal(plan.n_r, counts[0]);
    assert_int_equal(plan.n_h, counts[1]);
    assert_int_equal(plan.n_k, counts[2]);
    /* A plan that must not deviate is refused exactly if it would have to deviate. */
    int rc = best(mode, false, &r, 1, none);
    assert_int_equal(rc, deviation[0] != 0 ? ERR_NOT_FOUND : 1);
}

static void the_other_kind_stands_in(void **state)
{
    (void)state;
    expect("kv", (uint8_t[N]){H, H, H, H, H, H}, "HHHHHH",
           "6 layers (the first is 0) without KV: their hidden states are used");
    expect("hidden", (uint8_t[N]){B, K, B, B, K, B}, "HKHHKH",
           "2 layers (the first is 1) without hidden states: their KV is used");
    expect(
        "r2,h2,k2", (uint8_t[N]){0, 0, K, H, H, K}, "RRKHHK",
        "1 layer (the first is 4) without KV: their hidden states are used; 1 layer (the "
        "first is 2) without hidden states: their KV is used");
}

static void layers_without_records_are_recomputed(void **state)
{
    (void)state;
    expect("kv", (uint8_t[N]){0, K, K, K, K, K}, "RKKKKK",
           "layer 0 without KV: it is recomputed");
    expect("hidden", (uint8_t[N]){H, H, 0, H, H, H}, "RRRHHH",
           "layer 2 without records: layers 0 to 2 are recomputed");
    expect(
        "r1,h1,k4", (uint8_t[N]){0, H, K, 0, H, K}, "RRRRHK",
        "layer 3 without records: layers 0 to 3 are recomputed; 1 layer (the first is 4) "
        "without KV: their hidden states are used");
    expect("HHHKKK", (uint8_t[N]){B, B, B, B, B, 0}, "RRRRRR",
           "layer 5 without records: layers 0 to 5 are recomputed");
}

static void what_can_be_carried_out_is_not_touched(void **state)
{
    (void)state;
    expect("kv", (uint8_t[N]){K, K, K, K, K, K}, "KKKKKK", "");
    /* layer 0 needs no record */
    expect("hidden", (uint8_t[N]){0, H, B, H, H, H}, "HHHHHH", "");
    expect("r2,h2,k2", (uint8_t[N]){0, 0, H, H, K, K}, "RRHHKK", "");
    expect("recompute", (uint8_t[N]){0, 0, 0, 0, 0, 0}, "RRRRRR", "");
}

/* A plan whose letters are invalid is an error, even if it may deviate. */
static void bad_plans_are_refused(void **state)
{
    (void)state;
    struct range_of r = {64, {B, B, B, B, B, B}};
    struct plan_window none = {0};
    assert_int_equal(best("HRHHHH", true, &r, 1, none), ERR_USAGE);
    assert_int_equal(best("r1,h1", true, &r, 1, none), ERR_USAGE);
    assert_int_equal(best("HHHHH", true, &r, 1, none), ERR_USAGE);
}

static void ranges_tell_what_the_letters_do_not(void **state)
{
    (void)state;
    struct plan_window none = {0};
    struct range_of mixed[] = {{128, {K, K, K, K, K, K}}, {64, {H, H, H, H, H, H}}};
    assert_int_equal(best("kv", true, mixed, 2, none), 2);
    assert_string_equal(plan.method, "KKKKKK");
    assert_string_equal(plan.deviation,
                        "64 of 192 tokens have only the other kind of some layers");
    /* A range that would need further recomputed layers is left to prefill. */
    struct range_of hole[] = {{128, {K, K, K, K, K, K}}, {64, {K, K, 0, K, K, K}}};
    assert_int_equal(best("kv", true, hole, 2, none), 1);
    assert_string_equal(plan.method, "KKKKKK");
    assert_string_equal(plan.deviation,
                        "the last 64 of 192 stored tokens lack records: they are computed");
    /* The first range decides how many layers are recomputed. */
    struct range_of first[] = {
        {128, {K, 0, K, K, K, K}}, {64, {0, 0, K, K, K, K}}, {64, {K, K, 0, K, K, K}}};
    assert_int_equal(best("kv", true, first, 3, none), 2);
    assert_string_equal(plan.method, "RRKKKK");
    assert_int_equal(plan.n_r_added, 2);
    assert_non_null(strstr(plan.deviation, "layers 0 to 1 are recomputed; the last 64"));
    /* Records before the window are not read, so their kind causes no deviation. */
    struct plan_window w = {.layer = 0, .tokens = 64};
    struct range_of before[] = {{128, {H, H, H, H, H, H}}, {128, {K, K, K, K, K, K}}};
    assert_int_equal(best("kv", true, before, 2, w), 2);
    assert_string_equal(plan.deviation, "");
    assert_int_equal(best("kv", true, before, 2, none), 2);
    assert_string_not_equal(plan.deviation, "");
}

static void auto_never_deviates(void **state)
{
    (void)state;
    struct range_of r[] = {{128, {K, H, B, K, 0, K}}, {64, {H, K, B, 0, K, H}}};
    assert_true(best("auto", true, r, 2, (struct plan_window){0}) >= 0);
    assert_string_equal(plan.deviation, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_other_kind_stands_in),
        cmocka_unit_test(layers_without_records_are_recomputed),
        cmocka_unit_test(what_can_be_carried_out_is_not_touched),
        cmocka_unit_test(bad_plans_are_refused),
        cmocka_unit_test(ranges_tell_what_the_letters_do_not),
        cmocka_unit_test(auto_never_deviates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
