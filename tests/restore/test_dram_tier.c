/* The platform's tier for copies in DRAM, and mixed contexts: a prefix in DRAM, the rest on the
 * disk. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "base/err.h"
#include "base/rng.h"
#include "restore/dram_tier.h"
#include "restore/plan.h"
#include "restore/save_kinds.h"

enum { LAYERS = 8 };

/* Makes a machine that reads K and V at 1 GB/s from its disk. */
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

TEST(the_tier_is_added_once)
{
    struct platform p = machine();
    assert_int_equal(dram_tier(&p), 1);
    assert_int_equal(dram_tier(&p), 1);
    assert_int_equal(p.n_tiers, 2);
    assert_int_equal(platform_validate(&p, NULL), 0);
    assert_string_equal(p.tier[0].name, "ssd");
    /* A tier that was measured as DRAM's is used, whatever its index (not 0). */
    p.n_tiers = 3;
    p.tier[2] = p.tier[1];
    snprintf(p.tier[1].name, sizeof p.tier[1].name, "other");
    assert_int_equal(dram_tier(&p), 2);
    /* The store itself is never the tier of copies. Copies come up to a device as the store's
     * records do. */
    struct platform store = machine();
    snprintf(store.tier[0].name, sizeof store.tier[0].name, "dram");
    store.tier[0].up_bytes_per_s = 3e9;
    store.tier[0].gather_bytes_per_s = 5e9;
    assert_int_equal(dram_tier(&store), 1);
    assert_true(store.tier[1].up_bytes_per_s == 3e9);
    assert_true(store.tier[1].gather_bytes_per_s == 5e9);
    struct platform none = machine();
    none.n_tiers = 0;
    assert_int_equal(dram_tier(&none), 0);
    struct platform full = machine();
    full.n_tiers = PLATFORM_TIERS_MAX;
    assert_int_equal(dram_tier(&full), 0);
}

/* Returns seconds to restore n_dram tokens from DRAM and n_disk tokens from the disk, by keys and
 * values. */
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
    int first = n_dram == 0, n = (n_dram > 0) + (n_disk > 0), n_used = 0;
    assert_int_equal(plan_best_prefix(p, ranges + first, n, 1, true, layer, prefill_s, &req,
                                      &plan, &n_used, NULL),
                     0);
    assert_int_equal(n_used, n);
    return plan.restore_s;
}

/* Only tokens on the disk take the disk's time and latency, whether their range comes first or
 * last. */
TEST(a_mixed_context_waits_for_its_disk_part)
{
    struct platform p = machine();
    (void)dram_tier(&p);
    double all = mixed_s(&p, 0, 4096), none = mixed_s(&p, 4096, 0);
    double half = mixed_s(&p, 2048, 2048);
    double read_s = 2048.0 * 2048 * LAYERS / 1e9; /* time to read half of the tokens */
    assert_true(all > 2 * read_s && all < 2 * read_s * 1.1 + 2e-3);
    assert_true(half > read_s + 1e-3 && half < read_s * 1.1 + 2e-3);
    assert_true(none < 4096 * 1e-7 * LAYERS * 1.2);
}

/* --- a letter for each tier ------------------------------------------------------------------- */

enum { SAMPLES = 1000, MOST_LAYERS = 80 };

/* Draws a number from lo to hi, uniform in its logarithm. */
static double log_uniform(struct rng *r, double lo, double hi)
{
    return lo * pow(hi / lo, rng_unit(r));
}

/* A context whose prefix is in DRAM and whose tail is on the disk. */
struct mixed {
    struct platform platform;
    int64_t n_dram, n_disk, n_new;
    uint8_t stored[MOST_LAYERS]; /* kinds of each layer */
};

/* Draws a model with or without grouped heads, and a disk that reads hidden states at an eighth to
 * eight times the speed of projecting them. */
static void draw(struct rng *r, const char *save, struct mixed *x)
{
    struct platform *p = &x->platform;
    int64_t n = 64 * (int64_t)log_uniform(r, 8, 256);
    platform_init(p);
    p->n_layers = 12 + (int)rng_below(r, MOST_LAYERS - 11);
    p->h_bytes = 1024 * (double)(1 + rng_below(r, 8));
    p->kv_bytes = p->h_bytes * (rng_below(r, 4) == 0 ? 1 : 2);
    p->c_h.b_s = log_uniform(r, 2e-7, 2e-5);
    p->c_tok.b_s = p->c_h.b_s * (4 + 4 * rng_unit(r));
    p->c_kv.b_s = p->c_h.b_s * (0.02 + 0.1 * rng_unit(r));
    p->n_tiers = 1;
    p->tier[0] = (struct platform_tier){.name = "ssd",
                                        .latency_s = 1e-4,
                                        .bytes_per_s = p->h_bytes / p->c_h.b_s *
                                                       log_uniform(r, 0.125, 8)};
    (void)dram_tier(p);
    x->n_dram = 64 * (1 + (int64_t)rng_below(r, (uint64_t)(n / 64 - 1)));
    x->n_disk = n - x->n_dram;
    x->n_new = 1 + (int64_t)rng_below(r, 512);
    struct save_kinds_from from = {.n_layers = p->n_layers,
                                   .h_bytes = p->h_bytes,
                                   .kv_bytes = p->kv_bytes,
                                   .platform = p,
                                   .max_tokens = 16384};
    assert_int_equal(save_kinds_choose(save, &from, x->stored, NULL), 0);
}

/* Returns seconds until everything is restored and the new tokens are prefilled, with one letter
 * per layer for both tiers, or one for each tier. State in DRAM needs no reading, so its best
 * letter is K, which takes the least compute, wherever it has keys and values. A layer that has
 * only keys and values uses them under every letter. */
static double mixed_time_s(const struct mixed *x, bool each)
{
    uint8_t in_dram[MOST_LAYERS];
    for (int l = 0; l < x->platform.n_layers; l++)
        in_dram[l] = each && (x->stored[l] & PLAN_HAS_KV) ? PLAN_HAS_KV : x->stored[l];
    struct plan_range ranges[2] = {{.n_tokens = x->n_dram, .tier = 1, .mask = in_dram},
                                   {.n_tokens = x->n_disk, .tier = 0, .mask = x->stored}};
    struct plan_layer layer[MOST_LAYERS];
    double prefill_s[MOST_LAYERS];
    struct plan_request req = {.n_layers = x->platform.n_layers, .fused = true};
    struct plan plan;
    int n_used = 0;
    assert_int_equal(plan_best_prefix(&x->platform, ranges, 2, x->n_new, true, layer,
                                      prefill_s, &req, &plan, &n_used, NULL),
                     0);
    return plan.predicted_s;
}

/* Returns the mean share of the time that a letter for each tier saves, over contexts saved under
 * `save`. *most gets the largest share. */
static double mean_gain(const char *save, double *most)
{
    struct rng r = {.s = 25};
    double sum = 0;
    *most = 0;
    for (int i = 0; i < SAMPLES; i++) {
        static struct mixed x;
        draw(&r, save, &x);
        double one = mixed_time_s(&x, false), each = mixed_time_s(&x, true);
        double gain = each < one ? 1 - each / one : 0;
        sum += gain;
        *most = gain > *most ? gain : *most;
    }
    return sum / SAMPLES;
}

/* If both kinds are saved, a letter for each tier gains more than 3 %. So each tier gets its own
 * letter (make_ranges of the engine). Where costs grow with the tokens alone, `--save auto` saves
 * one kind per layer, which leaves no choice. */
TEST(a_letter_for_each_tier_pays)
{
    double most;
    double both = mean_gain("both", &most);
    printf("both kinds saved: mean gain %.2f %%, most %.1f %%\n", both * 100, most * 100);
    assert_true(both > 0.03);
    double chosen = mean_gain("auto", &most);
    printf("kinds as auto saves: mean gain %.2f %%, most %.1f %%\n", chosen * 100,
           most * 100);
}

TEST(a_fast_disk_is_not_read_ahead_from)
{
    struct platform p = machine();
    assert_true(dram_tier_gains(&p, 2048, 1, 0));
    p.tier[0].bytes_per_s = 1e12; /* reading is so fast that compute is the bottleneck */
    assert_false(dram_tier_gains(&p, 2048, 1, 0));
    p.n_tiers = 0;
    assert_false(dram_tier_gains(&p, 2048, 1, 0));
}

/* A fetch to DRAM must gain more than it costs: the memory that it fills takes processor time from
 * others. */
TEST(a_fetch_that_costs_more_than_it_gains_is_not_made)
{
    struct platform p = machine();
    double load_s = LAYERS * platform_io_s(&p, 0, 2048, RECORD_KV);
    assert_true(dram_tier_gains(&p, 2048, 1, load_s / 4));
    assert_false(dram_tier_gains(&p, 2048, 1, load_s));
    p.tier[0].bytes_per_s /= 8; /* on a disk with an eighth of the speed the fetch pays */
    assert_true(dram_tier_gains(&p, 2048, 1, load_s));
}

/* The gain is the time of the best kind from the disk minus that of the best kind in DRAM. It must
 * be more than a part of the time in DRAM and the price together. */
TEST(the_gain_is_that_of_the_best_kinds)
{
    /* the seconds per token of projecting, loading and computing: each kind is best in turn */
    static const double costs[][3] = {
        {2e-6, 1e-7, 1e-5}, {1e-8, 1e-7, 1e-5}, {5e-7, 5e-7, 1e-6}, {1e-7, 3e-6, 1e-6}};
    enum { N = 2048, N_NEW = 40 };
    for (int i = 0; i < 4; i++) {
        struct platform p = machine();
        p.c_h.b_s = costs[i][0];
        p.c_kv.b_s = costs[i][1];
        p.c_tok = (struct cost_curve){.b_s = costs[i][2], .c_s = 1e-9};
        double new_s = platform_prefill_s(&p, N, N_NEW);
        double comp[] = {platform_h_s(&p, N) + new_s, platform_kv_s(&p, N) + new_s};
        double disk = INFINITY;
        for (int kind = 0; kind < 2; kind++) {
            double io = platform_io_s(&p, 0, N, kind == 0 ? RECORD_HIDDEN : RECORD_KV);
            disk = fmin(disk, fmax(LAYERS * io + comp[kind], io + LAYERS * comp[kind]));
        }
        double dram = LAYERS * fmin(comp[0], comp[1]), most = disk - dram - dram / 32;
        assert_true(most > 0);
        assert_true(dram_tier_gains(&p, N, N_NEW, most * 0.999));
        assert_false(dram_tier_gains(&p, N, N_NEW, most * 1.001));
    }
}

/* Prefill of a long prompt takes longer than loading its state, and hides the load. So a fetch
 * gains nothing. */
TEST(a_long_prompt_hides_its_load)
{
    struct platform p = machine();
    double load_s = platform_io_s(&p, 0, 2048, RECORD_HIDDEN);
    assert_true(platform_prefill_s(&p, 2048, 64) < load_s);
    assert_true(dram_tier_gains(&p, 2048, 64, 0));
    assert_true(platform_prefill_s(&p, 2048, 4096) > 5 * load_s);
    assert_false(dram_tier_gains(&p, 2048, 4096, 0));
}
