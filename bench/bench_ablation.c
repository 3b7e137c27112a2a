/* bench_ablation.c - `hcache bench ablation`: the HCache paper's sensitivity and ablation figures
 * on this machine, beside the paper's numbers.
 *
 * This machine is not a GPU server, so each platform of the paper is scaled: the store is throttled
 * until projecting and reading a hidden state take times in the same ratio as on that platform with
 * that model (restore_lab.h).  The pipeline is the real one.  Results that cannot be run here
 * (other GPUs) are computed from platform models and labelled so. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "opt/opt.h"
#include "apps/option_tables.h"
#include "bench/bench.h"
#include "bench/report.h"
#include "bench/restore_lab.h"
#include "bench/save_figure.h"
#include "restore/profile.h"
#include "sim/machines.h"

struct ablation_args {
    struct bench_common common; /* must be the first member */
    const char *csv, *html, *save_csv;
    struct opt_list lengths, figures;
    int rounds, tokens;
};

static const struct opt options[] = {
    BENCH_OPT_STORE,
    {"tokens", OPT(struct ablation_args, tokens), .arg = "N", .def = "1024", .min = 64,
     .max = 1000000, .help = "history length of all figures but that over lengths"},
    {"lengths", OPT(struct ablation_args, lengths), .arg = "N[,N...]",
     .def = "256,512,1024,2048,4096", .help = "history lengths of the figure over lengths"},
    {"rounds", OPT(struct ablation_args, rounds), .arg = "N", .def = "3", .min = 1,
     .max = 50,
     .help = "rounds, in which the methods take turns; recompute runs in the first only"},
    BENCH_OPT_DEVICE,
    BENCH_OPT_DTYPE,
    BENCH_OPT_THREADS,
    BENCH_OPT_PARALLEL,
    BENCH_OPT_BATCH,
    {"figures", OPT(struct ablation_args, figures), .arg = "F[,F...]",
     .def = "11ac,11df,11gi,6.1.3,12,14",
     .help = "the figures to make, so that a run can be made in pieces"},
    {"save-csv", OPT(struct ablation_args, save_csv), .arg = "FILE",
     .help = "a file written by hcache bench save --csv, for figure 14"},
    {"csv", OPT(struct ablation_args, csv), .arg = "FILE", .def = "ablation.csv",
     .help = "every number"},
    {"html", OPT(struct ablation_args, html), .arg = "FILE", .def = "ablation.html",
     .help = "the report"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench ablation",
    .summary =
        "Repeats the figures 11, 12 and 14 of the HCache paper at this machine's scale: "
        "CSV and an HTML report, the paper's numbers beside ours.",
    .positionals = bench_positionals,
    .options = options,
    .examples = "  hcache bench ablation --html report.html --csv report.csv\n",
    .values_bytes = sizeof(struct ablation_args),
};
const struct opt_cmd *const options_of_bench_ablation = &cmd;

enum { MAX_POINTS = 16 }; /* largest number of points in a figure */

struct ablation {
    const struct ablation_args *a;
    struct lab lab;
    struct report r;
    FILE *csv;
    struct save_figure saving; /* the table that was read from --save-csv */
    int lengths[MAX_POINTS], longest;
};

/* --- the methods of the paper ----------------------------------------------------------------- */

enum method { KV, RECOMPUTE, HIDDEN, HYBRID, HCACHE, N_METHODS };

/* Names of the methods in `hcache plan` and in the paper. */
static const struct {
    const char *mode, *name;
} methods[N_METHODS] = {[KV] = {"kv", "KV offload"},
                        [RECOMPUTE] = {"recompute", "recompute"},
                        [HIDDEN] = {"hidden", "HCache-O"},
                        [HYBRID] = {"kv+recompute", "naive hybrid"},
                        [HCACHE] = {"auto", "HCache (auto)"}};

/* One setting: a time per method, in ms; NAN: not run. */
struct point {
    double ms[N_METHODS];
    struct plan plan[N_METHODS];
};

static void write_csv(struct ablation *b, const char *figure, const char *kind,
                      const char *setting, int tokens, const struct point *p)
{
    for (int m = 0; m < N_METHODS; m++)
        if (isfinite(p->ms[m]))
            fprintf(b->csv, "%s,%s,%s,%d,%s,%.1f,%.3f,%.3f,%.1f,%s,%.0f\n", figure, kind,
                    setting, tokens, methods[m].mode, b->lab.throttle_bytes_per_s * 1e-6,
                    p->plan[m].restore_s * 1e3, p->ms[m], tokens / p->ms[m] * 1e3,
                    p->plan[m].method, p->plan[m].stored_bytes_per_token);
    fflush(b->csv);
}

/* Measures every method with the store's present throttle. */
static int measure_point(struct ablation *b, int tokens, struct point *p, struct err *err)
{
    enum { MAX = 64 };
    double ms[N_METHODS][MAX];
    int n_chunks = tokens / STORE_CHUNK_TOKENS, n[N_METHODS] = {0}, rc = 0;
    for (int round = 0; rc == 0 && round < b->a->rounds; round++)
        for (int m = 0; rc == 0 && m < N_METHODS; m++) {
            struct plan_request req;
            struct restore_result r = {0};
            if (m == RECOMPUTE && round > 0)
                continue;
            rc = lab_plan(&b->lab, methods[m].mode, n_chunks, &req, &p->plan[m], err);
            if (rc == 0)
                rc = lab_restore(&b->lab, n_chunks, &p->plan[m], &r, err);
            ms[m][n[m]++] = (double)r.total_ns * 1e-6;
        }
    for (int m = 0; rc == 0 && m < N_METHODS; m++)
        p->ms[m] = bench_median(ms[m], n[m]);
    return rc;
}

/* Measures every method as on a platform NAME:SHAPE of hcache plan, and prints a line. If this
 * store is too slow to imitate the platform's, no method gets a time. */
static int measure_as(struct ablation *b, const char *figure, const char *as, int tokens,
                      struct point *p, struct err *err)
{
    double bytes_per_s, ratio;
    lab_throttle(&b->lab, 0);
    int rc = lab_scale(&b->lab, as, &bytes_per_s, &ratio, err);
    if (rc != 0)
        return rc;
    if (bytes_per_s > b->lab.platform.tier[0].bytes_per_s) {
        memset(p, 0, sizeof *p);
        for (int m = 0; m < N_METHODS; m++)
            p->ms[m] = NAN;
        report_text(&b->r,
                    "%s is left out: this store reads %.1f MB/s, but %.1f are needed.", as,
                    b->lab.platform.tier[0].bytes_per_s * 1e-6, bytes_per_s * 1e-6);
        printf("%-4s %-24s left out: this store is too slow\n", figure, as);
        return 0;
    }
    lab_throttle(&b->lab, bytes_per_s);
    rc = measure_point(b, tokens, p, err);
    if (rc != 0)
        return rc;
    write_csv(b, figure, "measured", as, tokens, p);
    printf("%-4s %-24s %5d tokens, storage throttled to %6.1f MB/s:", figure, as, tokens,
           bytes_per_s * 1e-6);
    for (int m = 0; m < N_METHODS; m++)
        printf(" %s %.1f ms%s", methods[m].name, p->ms[m], m < N_METHODS - 1 ? "," : "\n");
    fflush(stdout);
    return 0;
}

/* Computes every method's time on a platform from the platform's model alone; nothing is
 * measured. */
static int model_point(struct ablation *b, const char *figure, const char *platform,
                       const char *shape, int tokens, struct point *p, struct err *err)
{
    struct model_config c;
    struct platform pl;
    static struct plan_layer layer[STORE_MAX_LAYERS];
    char setting[64];
    int rc = config_shape(&c, shape, err);
    if (rc != 0)
        return rc;
    struct platform_shape s = profile_shape(shape, &c, 2);
    rc = machine_platform(platform, &s, &pl, err);
    for (int m = 0; rc == 0 && m < N_METHODS; m++) {
        struct plan_request req;
        plan_request_from_platform(&pl, 0, tokens, 0, layer, NULL, &req);
        rc = plan_mode_parse(methods[m].mode, &req, err);
        if (rc == 0)
            rc = plan_make(&req, &p->plan[m], err);
        p->ms[m] = p->plan[m].restore_s * 1e3;
    }
    lab_throttle(&b->lab, 0);
    snprintf(setting, sizeof setting, "%s:%s", platform, shape);
    if (rc == 0)
        write_csv(b, figure, "modelled", setting, tokens, p);
    return rc;
}

/* --- plots ------------------------------------------------------------------------------------ */

/* Plots the speed of restoring by method for each setting. */
static void plot(struct ablation *b, const char *title, const char *const *names,
                 const struct point *p, int n, int tokens)
{
    struct report_bars bars = {.title = title,
                               .unit = "restored tokens per second, in thousands",
                               .n_groups = n,
                               .n_series = N_METHODS};
    for (int m = 0; m < N_METHODS; m++)
        bars.series[m] = methods[m].name;
    for (int g = 0; g < n; g++) {
        bars.group[g] = names[g];
        for (int m = 0; m < N_METHODS; m++)
            bars.value[g][m] = tokens / p[g].ms[m];
    }
    report_bars(&b->r, &bars);
}

/* Tabulates how much faster HCache is than every other method, one row per setting. */
static void tabulate(struct ablation *b, const char *const *names, const struct point *p,
                     int n)
{
    report_table_begin(&b->r, "auto is faster than\tKV offload\trecompute\tHCache-O\tnaive "
                              "hybrid\tits plan\tstored less than KV");
    for (int g = 0; g < n; g++) {
        if (!isfinite(p[g].ms[HCACHE]))
            continue;
        double own = p[g].ms[HCACHE], bytes = p[g].plan[HCACHE].stored_bytes_per_token;
        double all = p[g].plan[KV].stored_bytes_per_token;
        report_row(&b->r, "%s\t%.2fx\t%.2fx\t%.2fx\t%.2fx\t%s\t%.2fx", names[g],
                   p[g].ms[KV] / own, p[g].ms[RECOMPUTE] / own, p[g].ms[HIDDEN] / own,
                   p[g].ms[HYBRID] / own, p[g].plan[HCACHE].method,
                   bytes > 0 ? all / bytes : INFINITY);
    }
    report_table_end(&b->r);
}

/* --- figure 11 -------------------------------------------------------------------------------- */

static int figure_11_gpus(struct ablation *b, struct err *err)
{
    static const char *const gpus[] = {"a30-dram", "4090-dram", "l20-dram", "a100-dram",
                                       "h800-dram"};
    static const char *const shapes[] = {"llama-2-7b", "llama-2-13b"};
    static struct point p[MAX_POINTS];
    report_heading(&b->r, "Figure 11 a-c: GPUs, state in DRAM (modelled)");
    report_text(
        &b->r,
        "From the platform models of hcache plan, which know GEMM and link speeds of "
        "the paper's Table 2 and nothing of its kernels; 1024 tokens. Paper: 1.33 to "
        "1.81x over KV offload, 5.04 to 9.05x over recompute.");
    for (int s = 0; s < 2; s++) {
        int rc = 0;
        for (int g = 0; rc == 0 && g < 5; g++)
            rc = model_point(b, "11ac", gpus[g], shapes[s], 1024, &p[g], err);
        if (rc != 0)
            return rc;
        plot(b, shapes[s], gpus, p, 5, 1024);
        tabulate(b, gpus, p, 5);
    }
    return 0;
}

static int figure_11_bandwidth(struct ablation *b, struct err *err)
{
    static const char *const ssds[] = {"a100-1ssd", "a100-2ssd", "a100-3ssd", "a100-4ssd"};
    static const char *const shapes[] = {"llama-2-7b", "llama-2-13b"};
    static struct point p[MAX_POINTS];
    report_heading(&b->r, "Figure 11 d-f: storage bandwidth (measured, at scale)");
    report_text(
        &b->r,
        "%d tokens of %s; storage throttled to the paper's ratios. Paper: 2.09 to 2.66x "
        "over "
        "KV offload with one SSD per GPU, 1.33 to 1.81x with more; 2.3 to 6.1x over "
        "recompute.",
        b->a->tokens, b->a->common.engine.o.model);
    for (int s = 0; s < 2; s++) {
        int rc = 0;
        for (int g = 0; rc == 0 && g < 4; g++) {
            char as[64];
            snprintf(as, sizeof as, "%s:%s", ssds[g], shapes[s]);
            rc = measure_as(b, "11df", as, b->a->tokens, &p[g], err);
        }
        if (rc != 0)
            return rc;
        char title[64];
        snprintf(title, sizeof title, "at the ratios of %s", shapes[s]);
        plot(b, title, ssds, p, 4, b->a->tokens);
        tabulate(b, ssds, p, 4);
    }
    return 0;
}

static int figure_11_length(struct ablation *b, struct err *err)
{
    static struct point p[MAX_POINTS];
    const struct opt_list *lengths = &b->a->lengths;
    report_heading(&b->r, "Figure 11 g-i: context length (measured, at scale)");
    report_text(
        &b->r,
        "As a100-4ssd with llama-2-7b. Paper, 1K to 16K tokens: KV offload and HCache "
        "scale with the length; recomputation loses 28 %% of its speed.");
    struct report_bars bars = {.title = "speed by length",
                               .unit = "restored tokens per second, in thousands",
                               .n_series = N_METHODS};
    for (int m = 0; m < N_METHODS; m++)
        bars.series[m] = methods[m].name;
    int rc = 0;
    for (int g = 0; rc == 0 && g < lengths->n; g++) {
        int tokens = b->lengths[g];
        rc = measure_as(b, "11gi", "a100-4ssd:llama-2-7b", tokens, &p[g], err);
        bars.group[bars.n_groups++] = lengths->items[g];
        for (int m = 0; rc == 0 && m < N_METHODS; m++)
            bars.value[g][m] = tokens / p[g].ms[m];
    }
    if (rc != 0)
        return rc;
    report_bars(&b->r, &bars);
    tabulate(b, bars.group, p, bars.n_groups);
    return 0;
}

/* --- 6.1.3: the bandwidth that balances ------------------------------------------------------- */

static int balance(struct ablation *b, struct err *err)
{
    static const struct {
        const char *platform, *shape, *paper;
    } rows[] = {{"a100-4ssd", "llama-2-7b", "24"},
                {"a100-4ssd", "llama-2-13b", "21"},
                {"a100x4-4ssd", "opt-30b", "37"}};
    report_heading(&b->r,
                   "6.1.3: bandwidth at which hidden states alone are balanced (modelled)");
    report_table_begin(&b->r, "model\tGB/s\tpaper");
    for (int i = 0; i < 3; i++) {
        struct model_config c;
        struct platform p;
        int rc = config_shape(&c, rows[i].shape, err);
        struct platform_shape s = profile_shape(rows[i].shape, &c, 2);
        if (rc == 0)
            rc = machine_platform(rows[i].platform, &s, &p, err);
        if (rc != 0)
            return rc;
        double gb = platform_balance_bytes_per_s(&p, 1024) * 1e-9;
        report_row(&b->r, "%s on %s\t%.1f\t%s", rows[i].shape, rows[i].platform, gb,
                   rows[i].paper);
        fprintf(b->csv, "6.1.3,modelled,%s:%s,1024,balance,%.1f,,,,,\n", rows[i].platform,
                rows[i].shape, gb * 1e3);
    }
    report_row(&b->r, "%s here (measured)\t%.3f\t", b->a->common.engine.o.model,
               platform_balance_bytes_per_s(&b->lab.platform, 1024) * 1e-9);
    report_table_end(&b->r);
    report_text(
        &b->r,
        "The first two are what the built-in platforms were calibrated with; the third "
        "is its own calibration (docs/RESTORATION.md).");
    return 0;
}

/* --- figure 12 -------------------------------------------------------------------------------- */

static int figure_12(struct ablation *b, struct err *err)
{
    static const char *const names[] = {"balanced", "compute-rich", "I/O-rich"};
    static const char *const as[] = {"a100-4ssd:llama-2-7b", "a100-1ssd:llama-2-7b",
                                     "a30-dram:llama-2-7b"};
    static struct point p[MAX_POINTS];
    report_heading(&b->r, "Figure 12: the bubble-free scheduler (measured, at scale)");
    report_text(
        &b->r,
        "Balanced as %s, compute-rich as %s, I/O-rich as %s. Paper: 1.28 to 1.42x over "
        "the naive hybrid, 1.35 to 1.64x over HCache-O where one resource is scarce, "
        "1.45 to 2.66x over KV offload; HCache-O is 13 %% slower than KV offload where "
        "I/O is plentiful.",
        as[0], as[1], as[2]);
    int rc = 0;
    for (int g = 0; rc == 0 && g < 3; g++)
        rc = measure_as(b, "12", as[g], b->a->tokens, &p[g], err);
    if (rc != 0)
        return rc;
    plot(b, "speed by setting", names, p, 3, b->a->tokens);
    tabulate(b, names, p, 3);
    report_text(&b->r, "HCache-O over KV offload where I/O is plentiful: %.2fx.",
                p[2].ms[KV] / p[2].ms[HIDDEN]);
    return 0;
}

/* --- figure 14 -------------------------------------------------------------------------------- */

/* Draws the figure from the results of `hcache bench save`, which switches saving on and off within
 * one run. Nothing is measured here. */
static int figure_14(struct ablation *b, struct err *err)
{
    report_heading(&b->r, "Figure 14: two-stage saving or direct writing");
    report_text(
        &b->r,
        "Paper: two-stage saving costs nothing; direct writing makes a token take up to "
        "34 %% longer (7B, batch 16) and 13 %% (13B, batch 32).");
    (void)err;
    if (b->saving.n > 0)
        save_figure_add(&b->saving, &b->r);
    else
        report_text(&b->r,
                    "Not measured in this run: hcache bench save --csv FILE, then hcache "
                    "bench ablation --save-csv FILE.");
    return 0;
}

/* --- all figures ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    int (*make)(struct ablation *, struct err *);
    bool needs_lab; /* false: the figure only shows existing results */
} figures[] = {{"11ac", figure_11_gpus, true},   {"11df", figure_11_bandwidth, true},
               {"11gi", figure_11_length, true}, {"6.1.3", balance, true},
               {"12", figure_12, true},          {"14", figure_14, false}};
enum { N_FIGURES = sizeof figures / sizeof *figures };

static bool is_wanted(const struct ablation_args *a, const char *figure)
{
    for (int i = 0; i < a->figures.n; i++)
        if (strcmp(a->figures.items[i], figure) == 0)
            return true;
    return false;
}

static int check_figures(const struct ablation_args *a, struct err *err)
{
    for (int i = 0; i < a->figures.n; i++) {
        size_t k = 0;
        while (k < N_FIGURES && strcmp(figures[k].name, a->figures.items[i]) != 0)
            k++;
        if (k == N_FIGURES)
            return err_set(err, ERR_USAGE,
                           "--figures: '%s' is none of 11ac, 11df, 11gi, 6.1.3, 12, 14",
                           a->figures.items[i]);
    }
    return 0;
}

static bool needs_lab(const struct ablation_args *a)
{
    for (int i = 0; i < N_FIGURES; i++)
        if (figures[i].needs_lab && is_wanted(a, figures[i].name))
            return true;
    return false;
}

/* Prints the setup of the measurements. */
static void describe(struct ablation *b)
{
    char line[400];
    stack_describe(&b->lab.k, line, sizeof line);
    printf("%s, %s\n%s\n", b->a->common.engine.o.model, b->lab.platform.machine, line);
    report_text(&b->r,
                "%s on %s, %s. %s. Medians of %d rounds in which the methods take turns; "
                "recomputation once. While the profile was measured, this process had %.0f "
                "%% of the processors.",
                b->a->common.engine.o.model, b->lab.platform.machine, b->lab.platform.date,
                line, b->a->rounds, b->lab.platform.cpu_share * 100);
}

static int run_figures(struct ablation *b, struct err *err)
{
    int rc = 0;
    fprintf(b->csv,
            "figure,kind,setting,tokens,method,throttle_MBps,predicted_ms,ms,tokens_per_s,"
            "plan,stored_bytes_per_token\n");
    for (int i = 0; rc == 0 && i < N_FIGURES; i++)
        if (is_wanted(b->a, figures[i].name))
            rc = figures[i].make(b, err);
    return rc;
}

/* Runs restores with the store throttled like the paper's, so that plans use times measured beside
 * reads (lab_settle_as). Does nothing if the store is too slow for that. */
static int settle(struct ablation *b, struct err *err)
{
    double bytes_per_s, ratio;
    return lab_settle_as(&b->lab, "a100-4ssd", &bytes_per_s, &ratio, err);
}

/* Parses the lengths of the figure over history lengths, and finds the longest history of all
 * figures. */
static int parse_lengths(struct ablation *b, struct err *err)
{
    const struct opt_list *list = &b->a->lengths;
    if (list->n > MAX_POINTS)
        return err_set(err, ERR_USAGE, "--lengths: %d of them, at most %d fit the figure",
                       list->n, MAX_POINTS);
    b->longest = b->a->tokens;
    for (int i = 0; i < list->n; i++) {
        int rc = bench_number("lengths", list->items[i], STORE_CHUNK_TOKENS,
                              BENCH_MAX_TOKENS, &b->lengths[i], err);
        if (rc != 0)
            return rc;
        b->longest = b->lengths[i] > b->longest ? b->lengths[i] : b->longest;
    }
    return 0;
}

/* Checks all arguments before anything is measured. Reads --save-csv. */
static int check_args(struct ablation *b, struct err *err)
{
    const struct ablation_args *a = b->a;
    int rc = check_figures(a, err);
    if (rc == 0)
        rc = parse_lengths(b, err);
    if (rc == 0 && a->save_csv != NULL)
        rc = save_figure_read(&b->saving, a->save_csv, err);
    if (rc == 0 && needs_lab(a) && a->common.engine.o.store_in_memory)
        rc = err_set(err, ERR_USAGE,
                     "a store in memory cannot be throttled: give a --store in a folder");
    return rc;
}

static int measure(struct ablation *b, struct err *err)
{
    const struct ablation_args *a = b->a;
    struct lab_opts o = {.engine = a->common.engine.o,
                         .effort = PROFILE_FULL,
                         .max_chunks = b->longest / STORE_CHUNK_TOKENS};
    if (!needs_lab(a))
        return run_figures(b, err);
    int rc = lab_open(&b->lab, &o, err);
    if (rc == 0)
        rc = settle(b, err);
    if (rc == 0) {
        describe(b);
        rc = run_figures(b, err);
    }
    lab_close(&b->lab);
    return rc;
}

static int run(const struct ablation_args *a, struct err *err)
{
    struct ablation b = {.a = a};
    int rc = check_args(&b, err);
    if (rc != 0)
        return rc;
    b.csv = fopen(a->csv, "w");
    if (b.csv == NULL)
        return err_set(err, -errno, "%s: %s", a->csv, strerror(errno));
    rc = report_open(&b.r, a->html,
                     "hcache: the HCache paper's figures at this machine's scale", err);
    if (rc == 0) {
        rc = measure(&b, err);
        int rc2 = report_close(&b.r, rc == 0 ? err : NULL);
        rc = rc != 0 ? rc : rc2;
    }
    if (fclose(b.csv) != 0 && rc == 0)
        rc = err_set(err, -errno, "%s: %s", a->csv, strerror(errno));
    if (rc == 0)
        printf("written to %s and %s\n", a->csv, a->html);
    return rc;
}

int bench_ablation(int argc, char **argv)
{
    struct ablation_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct bench_place place;
    int rc = bench_place_open(&place, &a.common.engine, &err);
    if (rc == 0)
        rc = run(&a, &err);
    bench_place_close(&place);
    opt_end(parsed);
    return bench_end("ablation", rc, &err);
}
