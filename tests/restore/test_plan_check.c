/* test_plan_check.c - a forced plan follows its letters as far as the records allow. */

#include "tests/unit.h"
#include <string.h>

#include "restore/plan.h"
#include "sim/machines.h"

enum { N = 6, H = PLAN_HAS_H, K = PLAN_HAS_KV, B = H | K };

static const struct platform_shape shape = {"six", N, 1024, 16, 16, 64, 2816, 32000,
                                            true,  2, 1,    1,  0,  0,  0,    0};
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
static int best(const char *mode, const struct range_of *r, int n,
                struct plan_window window)
{
    struct plan_range range[4];
    struct plan_request q = {.n_layers = N, .window = window, .fused = true};
    int used = -1;
    for (int i = 0; i < n; i++)
        range[i] = (struct plan_range){.n_tokens = r[i].n_tokens, .mask = r[i].mask};
    assert_int_equal(machine_platform("a100-4ssd", &shape, &platform, &e), 0);
    assert_int_equal(plan_mode_parse(mode, &q, &e), 0);
    int rc = plan_best_prefix(&platform, range, n, 10, true, layer, prefill_s, &q, &plan,
                              &used, &e);
    return rc != 0 ? rc : used;
}

/* Checks the plan for one range of 640 tokens. */
static void expect(const char *mode, const uint8_t mask[N], const char *method, int n_added)
{
    struct range_of r = {.n_tokens = 640};
    memcpy(r.mask, mask, N);
    assert_int_equal(best(mode, &r, 1, (struct plan_window){0}), 1);
    assert_string_equal(plan.method, method);
    assert_int_equal(plan.n_r_added, n_added);
    int counts[3] = {0};
    for (int i = 0; i < N; i++)
        counts[method[i] == 'R' ? 0 : method[i] == 'H' ? 1 : 2]++;
    assert_int_equal(plan.n_r, counts[0]);
    assert_int_equal(plan.n_h, counts[1]);
    assert_int_equal(plan.n_k, counts[2]);
}

TEST(the_other_kind_stands_in)
{
    expect("kv", (uint8_t[N]){H, H, H, H, H, H}, "HHHHHH", 0);
    expect("hidden", (uint8_t[N]){B, K, B, B, K, B}, "HKHHKH", 0);
    expect("RRHHKK", (uint8_t[N]){0, 0, K, H, H, K}, "RRKHHK", 0);
}

TEST(layers_without_records_are_recomputed)
{
    expect("kv", (uint8_t[N]){0, K, K, K, K, K}, "RKKKKK", 1);
    expect("hidden", (uint8_t[N]){H, H, 0, H, H, H}, "RRRHHH", 3);
    expect("RHKKKK", (uint8_t[N]){0, H, K, 0, H, K}, "RRRRHK", 3);
    expect("HHHKKK", (uint8_t[N]){B, B, B, B, B, 0}, "RRRRRR", 6);
}

TEST(what_can_be_carried_out_is_not_touched)
{
    expect("kv", (uint8_t[N]){K, K, K, K, K, K}, "KKKKKK", 0);
    /* layer 0 needs no record */
    expect("hidden", (uint8_t[N]){0, H, B, H, H, H}, "HHHHHH", 0);
    expect("RRHHKK", (uint8_t[N]){0, 0, H, H, K, K}, "RRHHKK", 0);
    expect("recompute", (uint8_t[N]){0, 0, 0, 0, 0, 0}, "RRRRRR", 0);
}

TEST(bad_plans_are_refused)
{
    struct range_of r = {64, {B, B, B, B, B, B}};
    struct plan_window none = {0};
    assert_int_equal(best("HRHHHH", &r, 1, none), ERR_USAGE);
    assert_int_equal(best("RH", &r, 1, none), ERR_USAGE);
    assert_int_equal(best("HHHHH", &r, 1, none), ERR_USAGE);
}

/* A layer without records whose lower layers cannot be recomputed is named. */
TEST(what_cannot_be_recomputed_is_refused)
{
    struct plan_layer l[2] = {{.has_kv = true}, {.has_kv = false}};
    struct plan_request q = {.n_layers = 2, .layer = l, .mode = PLAN_KV};
    assert_int_equal(plan_make(&q, &plan, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "layer 1 is K, but the store has no KV"));
    q.mode = PLAN_HIDDEN;
    assert_int_equal(plan_make(&q, &plan, &e), ERR_NOT_FOUND);
}

TEST(a_forced_plan_uses_the_ranges_that_suit_it)
{
    struct plan_window none = {0};
    struct range_of mixed[] = {{128, {K, K, K, K, K, K}}, {64, {H, H, H, H, H, H}}};
    assert_int_equal(best("kv", mixed, 2, none), 2);
    assert_string_equal(plan.method, "KKKKKK");
    /* A range that would need further recomputed layers is left to prefill. */
    struct range_of hole[] = {{128, {K, K, K, K, K, K}}, {64, {K, K, 0, K, K, K}}};
    assert_int_equal(best("kv", hole, 2, none), 1);
    assert_string_equal(plan.method, "KKKKKK");
    /* The first range decides how many layers are recomputed. */
    struct range_of first[] = {
        {128, {K, 0, K, K, K, K}}, {64, {0, 0, K, K, K, K}}, {64, {K, K, 0, K, K, K}}};
    assert_int_equal(best("kv", first, 3, none), 2);
    assert_string_equal(plan.method, "RRKKKK");
    assert_int_equal(plan.n_r_added, 2);
    /* Records before the window are not read. */
    struct plan_window w = {layer_set_run(0, PLAN_MAX_LAYERS), 64};
    struct range_of before[] = {{128, {H, H, H, H, H, H}}, {128, {K, K, K, K, K, K}}};
    assert_int_equal(best("kv", before, 2, w), 2);
}
