/* bench_plan.c - `hcache bench plan`: the processor time of planning a restore. A step of the
 * engine waits for planning (restore/plan_cut.c).
 *
 * Chains are made up. Each range was saved under one of a few policies, or each of its layers has
 * other records, which is the worst case. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/option_tables.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "restore/plan.h"

struct plan_bench_args {
    int layers, plans;
    struct opt_list ranges;
};

static const struct opt options[] = {
    {"layers", OPT(struct plan_bench_args, layers), .arg = "N", .def = "80", .min = 1,
     .max = PLAN_MAX_LAYERS, .help = "layers of the model"},
    {"ranges", OPT(struct plan_bench_args, ranges), .arg = "N[,N...]", .def = "1,16,64,256",
     .help = "ranges of chunks with equal records in the stored history"},
    {"plans", OPT(struct plan_bench_args, plans), .arg = "N", .def = "100", .min = 1,
     .max = 100000, .help = "plans per row"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench plan",
    .summary = "Measures the processor time of planning a restore, by how many ranges of "
               "different records the stored history has.",
    .options = options,
    .examples = "  hcache bench plan --layers 32 --ranges 1,300\n",
    .values_bytes = sizeof(struct plan_bench_args),
};
const struct opt_cmd *const options_of_bench_plan = &cmd;

enum { MOST_RANGES = 4096, RANGE_TOKENS = 256 };

/* Makes a machine on which reading hidden states takes about as long as projecting them. */
static void fill_platform(struct platform *p, int n_layers)
{
    platform_init(p);
    p->n_layers = n_layers;
    p->n_ranks = p->n_stages = 1;
    p->h_bytes = 2048;
    p->kv_bytes = 4096;
    p->c_tok.b_s = 1.2e-4;
    p->c_h.b_s = 2e-5;
    p->c_kv.b_s = 1e-6;
    p->io_overlap = 1.2;
    p->comp_overlap = 1.1;
    p->n_tiers = 1;
    p->tier[0].bytes_per_s = 1e8;
}

static void fill_ranges(struct rng *r, bool all_differ, int n_layers, int n,
                        struct plan_range *range, uint8_t *mask)
{
    for (int g = 0; g < n; g++) {
        uint8_t *m = mask + (size_t)g * (size_t)n_layers;
        int boundary = (int)rng_below(r, 4) * n_layers / 4;
        for (int l = 0; l < n_layers; l++)
            m[l] = all_differ     ? (uint8_t)(1 + rng_below(r, 3))
                   : l < boundary ? PLAN_HAS_H | PLAN_HAS_KV
                                  : PLAN_HAS_KV;
        range[g] = (struct plan_range){.n_tokens = RANGE_TOKENS, .mask = m};
    }
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Measures one row: a chain of n_ranges ranges. */
static int measure(const struct plan_bench_args *a, int n_ranges, bool all_differ,
                   struct err *err)
{
    struct rng r = {1};
    struct platform platform;
    struct plan_layer layer[PLAN_MAX_LAYERS];
    double prefill_s[PLAN_MAX_LAYERS], *took_s = xcalloc((size_t)a->plans, sizeof *took_s);
    struct plan_range *range = xcalloc((size_t)n_ranges, sizeof *range);
    uint8_t *mask = xcalloc((size_t)n_ranges, (size_t)a->layers);
    int rc = 0, n_used;
    fill_platform(&platform, a->layers);
    for (int i = 0; rc == 0 && i < a->plans; i++) {
        struct plan plan;
        struct plan_request req = {.n_layers = a->layers, .fused = i % 2};
        fill_ranges(&r, all_differ, a->layers, n_ranges, range, mask);
        double start = cpu_s();
        rc = plan_best_prefix(&platform, range, n_ranges, 100, true, layer, prefill_s, &req,
                              &plan, &n_used, err);
        took_s[i] = cpu_s() - start;
    }
    if (rc == 0)
        printf("%7d  %-11s  %8.3f  %8.3f\n", n_ranges,
               all_differ ? "all differ" : "4 policies",
               1e3 * bench_median(took_s, a->plans),
               1e3 * bench_quantile(took_s, a->plans, 0.99));
    free(took_s);
    free(range);
    free(mask);
    return rc;
}

int bench_plan(int argc, char **argv)
{
    struct plan_bench_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code, rc = 0, n;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    printf("# %d layers, %d plans a row, processor time in ms\n", a.layers, a.plans);
    printf("%7s  %-11s  %8s  %8s\n", "ranges", "layers", "median", "99 %");
    for (int i = 0; rc == 0 && i < a.ranges.n; i++) {
        rc = bench_number("ranges", a.ranges.items[i], 1, MOST_RANGES, &n, &err);
        for (int row = 0; rc == 0 && row < 2; row++)
            rc = measure(&a, n, row == 1, &err);
    }
    opt_end(parsed);
    return bench_end("plan", rc, &err);
}
