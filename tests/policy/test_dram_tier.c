/* The platform's tier for copies in DRAM, and mixed contexts: a prefix in DRAM, a tail on the disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "policy/dram_tier.h"
#include "policy/plan.h"

enum { LAYERS = 8 };

/* A machine that reads K and V at 1 GB/s from its disk. */
static struct platform machine(void)
{
    struct platform p;
    platform_init(&p);
    p.n_layers = LAYERS;
    p.h_bytes = 1024;
    p.kv_bytes = 2048;
    p.c_tok.b_s = 1e-5;
    p.c_h.b_s = 2e-6;
    p.c_kv.b_s = 1e-7;
    p.n_tiers = 1;
    p.tier[0] = (struct platform_tier){
        .name = "ssd", .latency_s = 1e-3, .bytes_per_s = 1e9};
    return p;
}

static void the_tier_is_added_once(void **state)
{
    (void)state;
    struct platform p = machine();
    struct err err = {0};
    assert_int_equal(dram_tier(&p), 1);
    assert_int_equal(dram_tier(&p), 1);
    assert_int_equal(p.n_tiers, 2);
    assert_int_equal(platform_validate(&p, &err), 0);
    assert_string_equal(p.tier[0].name, "ssd");
    /* One that was measured is taken, wherever it stands; tier 0 is never it. */
    p.n_tiers = 3;
    p.tier[2] = p.tier[1];
    snprintf(p.tier[1].name, sizeof p.tier[1].name, "other");
    assert_int_equal(dram_tier(&p), 2);
    struct platform none = machine();
    none.n_tiers = 0;
    assert_int_equal(dram_tier(&none), 0);
    struct platform full = machine();
    full.n_tiers = PLATFORM_TIERS_MAX;
    assert_int_equal(dram_tier(&full), 0);
}

/* Seconds to restore n_dram tokens from DRAM and the others from the disk, by keys and values. */
static double mixed_s(const struct platform *p, int64_t n_dram, int64_t n_disk)
{
    uint8_t mask[LAYERS];
    memset(mask, PLAN_HAS_KV, sizeof mask);
    struct plan_range ranges[2] = {{.n_tokens = n_dram, .tier = 1, .mask = mask},
                                   {.n_tokens = n_disk, .tier = 0, .mask = mask}};
    struct plan_layer layer[LAYERS];
    double prefill_s[LAYERS];
    struct plan_request req = {.n_layers = LAYERS, .mode = PLAN_KV};
    struct plan plan;
    struct err err = {0};
    int first = n_dram == 0, n = (n_dram > 0) + (n_disk > 0), n_used = 0;
    assert_int_equal(plan_best_prefix(p, ranges + first, n, 1, true, layer, prefill_s, &req,
                                      &plan, &n_used, &err),
                     0);
    assert_int_equal(n_used, n);
    return plan.restore_s;
}

/* Only what lies on the disk waits for it, and pays its latency, wherever the disk's range stands. */
static void a_mixed_context_waits_for_its_disk_part(void **state)
{
    (void)state;
    struct platform p = machine();
    (void)dram_tier(&p);
    double all = mixed_s(&p, 0, 4096), none = mixed_s(&p, 4096, 0);
    double half = mixed_s(&p, 2048, 2048);
    double read_s = 2048.0 * 2048 * LAYERS / 1e9; /* of half of the tokens */
    assert_true(all > 2 * read_s && all < 2 * read_s * 1.1 + 2e-3);
    assert_true(half > read_s + 1e-3 && half < read_s * 1.1 + 2e-3);
    assert_true(none < 4096 * 1e-7 * LAYERS * 1.2);
}

static void a_fast_disk_is_not_read_ahead_from(void **state)
{
    (void)state;
    struct platform p = machine();
    assert_true(dram_tier_gains(&p, 2048));
    p.tier[0].bytes_per_s = 1e12; /* compute is the bottleneck */
    assert_false(dram_tier_gains(&p, 2048));
    p.n_tiers = 0;
    assert_false(dram_tier_gains(&p, 2048));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tier_is_added_once),
        cmocka_unit_test(a_mixed_context_waits_for_its_disk_part),
        cmocka_unit_test(a_fast_disk_is_not_read_ahead_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
