/* bench_hybrid.c - `hcache bench hybrid`: mixtures of KV blocks and ACT blocks (hidden states) on a
 * modelled GPU, and HybridServe's figures beside the paper's numbers.
 *
 * src/engine/hybrid.c makes the decisions, and hybrid_model.h computes the times. So every number
 * that this file prints is modelled. `hcache bench hybrid run` (bench_hybrid_run.c) measures. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/option_tables.h"
#include "opt/opt.h"
#include "bench/bench.h"
#include "bench/hybrid_model.h"
#include "base/json.h"

struct hybrid_args {
    const char *shape, *platform;
    double x;
    int batch, prompt, tokens;
    uint64_t device_bytes, host_bytes;
    bool figures, json;
};

static const struct opt options[] = {
    {"shape", OPT(struct hybrid_args, shape), .arg = "NAME", .def = "opt-30b",
     .help = "shape of the model (hcache model --help lists them)"},
    {"platform", OPT(struct hybrid_args, platform), .arg = "NAME", .def = "4090-dram",
     .help = "a built-in machine, as in hcache plan"},
    {"ratio", OPT(struct hybrid_args, x), .arg = "X", .def = "0", .min = 0, .max = 1000,
     .help = "d * link bandwidth / FLOP/s of the projection; 0: the platform's"},
    {"batch", OPT(struct hybrid_args, batch), .arg = "N", .def = "128", .min = 1,
     .max = 100000, .help = "requests that are decoded together"},
    {"prompt", OPT(struct hybrid_args, prompt), .arg = "N", .def = "1920", .min = 1,
     .max = 1 << 20, .help = "tokens of each prompt"},
    {"tokens", OPT(struct hybrid_args, tokens), .arg = "N", .def = "128", .min = 1,
     .max = 1 << 20, .help = "tokens of each answer"},
    {"device-memory", OPT(struct hybrid_args, device_bytes), .arg = "BYTES", .def = "24GB",
     .min = 0, .max = INT64_MAX, .help = "memory of the GPU"},
    {"host-memory", OPT(struct hybrid_args, host_bytes), .arg = "BYTES", .def = "882GB",
     .min = 0, .max = INT64_MAX, .help = "host memory for weights and caches"},
    {"figures", OPT(struct hybrid_args, figures),
     .help =
         "HybridServe's figures 3, 4, 6 and 12 to 15 beside the paper's numbers; of the "
         "options above, only the memories are used"},
    {"json", OPT(struct hybrid_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench hybrid",
    .summary = "Models batches whose weights and caches come over a link: keys and values "
               "alone, activations alone, and mixtures of both. Nothing runs; bench hybrid "
               "run measures.",
    .options = options,
    .examples = "  hcache bench hybrid --shape opt-66b --batch 64\n"
                "  hcache bench hybrid --figures\n"
                "  hcache bench hybrid run --help\n",
    .values_bytes = sizeof(struct hybrid_args),
};
const struct opt_cmd *const options_of_bench_hybrid = &cmd;

/* --- one setup, all arms ---------------------------------------------------------------------- */

static void print_arm(const struct hybrid_setup *s, enum hybrid_arm arm)
{
    struct hybrid_step st;
    if (!hybrid_step(s, arm, s->prompt + s->tokens / 2, &st)) {
        printf("%-12s does not fit\n", hybrid_arm_names[arm]);
        return;
    }
    const struct hybrid_split *b = &st.split;
    double n_act = (double)(b->act_device + b->act_host);
    double n = n_act + (double)(b->kv_device + b->kv_host);
    printf("%-12s %6.1f %% %9.2f %9.2f %9.1f %9.2f %9.1f\n", hybrid_arm_names[arm],
           n > 0 ? 100 * n_act / n : 0, b->link_s * 1e3, b->compute_s * 1e3,
           st.link_bytes / 1e9, st.step_s, hybrid_throughput(s, arm));
}

static void put_arm(struct json *rows, const struct hybrid_setup *s, enum hybrid_arm arm)
{
    struct hybrid_step st;
    struct json *o = json_new_object();
    bool fits = hybrid_step(s, arm, s->prompt + s->tokens / 2, &st);
    const struct hybrid_split *b = &st.split;
    json_put_string(o, "arm", hybrid_arm_names[arm]);
    json_put_bool(o, "fits", fits);
    json_put_int(o, "act_device", b->act_device);
    json_put_int(o, "kv_device", b->kv_device);
    json_put_int(o, "act_host", b->act_host);
    json_put_int(o, "kv_host", b->kv_host);
    json_put_real(o, "link_s", b->link_s);
    json_put_real(o, "compute_s", b->compute_s);
    json_put_real(o, "link_bytes", st.link_bytes);
    json_put_real(o, "step_s", st.step_s);
    json_put_real(o, "tokens_per_s", hybrid_throughput(s, arm));
    json_push(rows, o);
}

static void print_setup(const struct hybrid_setup *s, bool as_json)
{
    struct json *o = json_new_object(), *rows = json_new_array();
    if (!as_json)
        printf("modelled: %s, x = %.2f, %d requests of %d + %d tokens\n"
               "%-12s %8s %9s %9s %9s %9s %9s\n",
               s->p.machine, hybrid_x(s), s->batch, s->prompt, s->tokens, "cache", "ACT",
               "link ms", "comp. ms", "GB/step", "s/step", "tokens/s");
    for (int i = 0; i < HYBRID_ARMS; i++) {
        if (as_json)
            put_arm(rows, s, (enum hybrid_arm)i);
        else
            print_arm(s, (enum hybrid_arm)i);
    }
    json_put_string(o, "label", "modelled");
    json_put_real(o, "x", hybrid_x(s));
    json_put(o, "arms", rows);
    if (as_json) {
        char *text = json_text(o, 0);
        puts(text);
        free(text);
    }
    json_free(o);
}

/* --- the paper's figures ---------------------------------------------------------------------- */

/* Width of OPT-30B. The projection has the same speed for all models, so x grows with the width. */
#define WIDTH_OF_30B 7168.0

static const char *const paper_shapes[] = {"opt-6.7b", "opt-13b", "opt-30b", "opt-66b"};
enum { N_SHAPES = 4 };

struct figures {
    struct hybrid_setup of[N_SHAPES];
    struct json *rows; /* rows of the JSON output; NULL: rows are printed */
};

static void row(struct figures *f, const char *figure, const char *what, double paper,
                double ours, const char *why)
{
    if (f->rows == NULL) {
        char known[16] = "";
        if (!isnan(paper))
            snprintf(known, sizeof known, "%.2f", paper);
        printf("%-4s %-46s %8s %8.2f  %s\n", figure, what, known, ours, why);
        return;
    }
    struct json *o = json_new_object();
    json_put_string(o, "figure", figure);
    json_put_string(o, "row", what);
    json_put_real(o, "paper", paper);
    json_put_real(o, "ours", ours);
    json_put_string(o, "why", why);
    json_push(f->rows, o);
}

static void row_of(struct figures *f, const char *figure, const char *what,
                   const char *model, double paper, double ours, const char *why)
{
    char text[80];
    snprintf(text, sizeof text, "%s, %s", what, model);
    row(f, figure, text, paper, ours, why);
}

static struct hybrid_setup with(const struct hybrid_setup *s, int batch, int prompt)
{
    struct hybrid_setup t = *s;
    t.batch = batch;
    t.prompt = prompt;
    return t;
}

static double step_s(const struct hybrid_setup *s, enum hybrid_arm arm)
{
    struct hybrid_step st;
    return hybrid_step(s, arm, s->prompt, &st) ? st.step_s : NAN;
}

static void figure_3(struct figures *f)
{
    const struct hybrid_setup *s = &f->of[2];
    double token = s->p.kv_bytes * s->shape.n_layers;
    row(f, "3b", "GB of keys and values, batch 16", 21, token * 1024 * 16 / 1.0737e9,
        "GiB");
    row(f, "3b", "the same, batch 128", 168, token * 1024 * 128 / 1.0737e9, "GiB");
    struct hybrid_setup few = with(s, 64, 1024), many = with(s, 512, 1024);
    row(f, "3a", "KV alone: tokens/s at batch 512 over 64", NAN,
        hybrid_throughput(&many, HYBRID_KV) / hybrid_throughput(&few, HYBRID_KV),
        "the paper's curve is flat beyond 256");
}

static void figure_4(struct figures *f)
{
    struct hybrid_setup a = with(&f->of[2], 64, 1024), b = with(&f->of[3], 64, 512);
    const char *why = "link and compute overlap without loss here";
    row(f, "4", "half as token ids, OPT-30B: latency", 1.45,
        step_s(&a, HYBRID_TOKENS) / step_s(&a, HYBRID_KV), why);
    row(f, "4", "the same, OPT-66B", 1.31,
        step_s(&b, HYBRID_TOKENS) / step_s(&b, HYBRID_KV), why);
}

static void figure_6(struct figures *f)
{
    const struct hybrid_setup *s = &f->of[2];
    double log_sum = 0;
    int n = 0;
    for (int length = 256; length <= 2048; length *= 2, n++)
        log_sum += log(s->p.c_h.b_s * length /
                       (s->p.c_tok.b_s * length + s->p.c_tok.c_s * length * length));
    row(f, "6", "projecting takes less than recomputing, %", 78,
        100 * (1 - exp(log_sum / n)), "recomputing needs all of a layer's products");
}

static void figure_12(struct figures *f)
{
    double over_kv = 0, act_over_kv = 0, over_act = 0;
    int n = 0;
    for (int i = 0; i < N_SHAPES; i++) {
        for (int prompt = 256; prompt <= 2048; prompt *= 2, n++) {
            struct hybrid_setup s = with(&f->of[i], 128, prompt < 1920 ? prompt : 1920);
            double kv = hybrid_throughput(&s, HYBRID_KV);
            double act = hybrid_throughput(&s, HYBRID_ACT);
            double mixed = hybrid_throughput(&s, HYBRID_AUTO);
            over_kv += mixed / kv;
            act_over_kv += act / kv;
            over_act += mixed / act;
        }
    }
    row(f, "12", "mixture over KV alone, tokens/s", 2.19, over_kv / n,
        "KV alone is FlexGen in the paper, with its own overheads; x / (x + 1/2) bounds "
        "ours");
    row(f, "12", "ACT alone over KV alone", 1.61, act_over_kv / n, "as above");
    row(f, "12", "mixture over ACT alone", 1.35, over_act / n, "");
}

static void figure_13(struct figures *f)
{
    for (int batch = 32; batch <= 64; batch *= 2) {
        double best = 0;
        for (int prompt = 1024; prompt <= 2048; prompt *= 2) {
            struct hybrid_setup s = with(&f->of[2], batch, prompt);
            struct hybrid_step kv, mixed;
            if (hybrid_step(&s, HYBRID_KV, prompt, &kv) &&
                hybrid_step(&s, HYBRID_AUTO, prompt, &mixed) && mixed.link_bytes > 0)
                best = fmax(best, kv.link_bytes / mixed.link_bytes);
        }
        row(f, "13", batch == 32 ? "less traffic, batch 32, at most" : "the same, batch 64",
            batch == 32 ? 1.27 : 1.38, best, "caches only, 1,024 or 2,048 tokens");
    }
}

static void figure_14(struct figures *f)
{
    static const struct {
        int batch;
        double kv, mixed;
    } paper[] = {{32, 8.2, 35.6}, {128, 12.6, 78.2}};
    for (int i = 0; i < 2; i++) {
        struct hybrid_setup s = with(&f->of[2], paper[i].batch, 1024);
        struct hybrid_step st;
        char what[64];
        for (int arm = 0; arm < 2; arm++) {
            enum hybrid_arm which = arm == 0 ? HYBRID_KV : HYBRID_AUTO;
            snprintf(what, sizeof what, "GPU busy, %%, batch %d, %s", paper[i].batch,
                     hybrid_arm_names[which]);
            (void)hybrid_step(&s, which, 1024, &st);
            row(f, "14", what, arm == 0 ? paper[i].kv : paper[i].mixed,
                100 * st.compute_share, "1,024 tokens; the paper's mean is over lengths");
        }
    }
}

static void figure_15(struct figures *f)
{
    double half = 0;
    for (int i = 0; i < N_SHAPES; i++) {
        struct hybrid_setup s = with(&f->of[i], 128, 1920);
        half += hybrid_throughput(&s, HYBRID_HALF) / hybrid_throughput(&s, HYBRID_ACT) /
                N_SHAPES;
    }
    row(f, "15", "as many ACT as KV over ACT alone", 1.33, half, "mean of the models");
    for (int i = 2; i < N_SHAPES; i++) {
        struct hybrid_setup s = with(&f->of[i], 128, 1920);
        struct hybrid_step st;
        double tokens_per_s = hybrid_throughput(&s, HYBRID_AUTO);
        const char *name = i == 2 ? "OPT-30B" : "OPT-66B";
        row_of(f, "15", "all policies over ACT alone", name, i == 2 ? 1.6 : 1.56,
               tokens_per_s / hybrid_throughput(&s, HYBRID_ACT), "");
        (void)hybrid_step(&s, HYBRID_AUTO, 1920, &st);
        row_of(f, "15", "best KV : ACT on the host", name, i == 2 ? 2 : 1.78,
               (double)st.split.kv_host / (double)st.split.act_host,
               "weights and blocks on the device leave room for more ACT");
        row_of(f, "15", "Algorithm 1 over auto, tokens/s", name, NAN,
               hybrid_throughput(&s, HYBRID_PAPER) / tokens_per_s,
               "it leaves out the transfer of ACT blocks");
    }
}

static int print_figures(const struct hybrid_args *a, struct err *err)
{
    struct figures f = {.rows = a->json ? json_new_array() : NULL};
    int rc = 0;
    for (int i = 0; rc == 0 && i < N_SHAPES; i++) {
        struct hybrid_setup *s = &f.of[i];
        rc = hybrid_setup_init(s, paper_shapes[i], "4090-dram", err);
        s->x = a->x * s->shape.n_embd / WIDTH_OF_30B;
        s->device_bytes = (double)a->device_bytes;
        s->host_bytes = (double)a->host_bytes;
        s->tokens = 128;
    }
    if (rc == 0 && !a->json)
        printf("modelled: an RTX 4090 with PCIe 4, x = %.2f for OPT-30B\n"
               "%-4s %-46s %8s %8s\n",
               hybrid_x(&f.of[2]), "fig.", "", "paper", "ours");
    void (*const each[])(struct figures *) = {figure_3,  figure_4,  figure_6, figure_12,
                                              figure_13, figure_14, figure_15};
    for (size_t i = 0; rc == 0 && i < sizeof each / sizeof each[0]; i++)
        each[i](&f);
    if (f.rows != NULL) {
        struct json *o = json_new_object();
        json_put_string(o, "label", "modelled");
        json_put(o, "figures", f.rows);
        char *text = json_text(o, 0);
        if (rc == 0)
            puts(text);
        free(text);
        json_free(o);
    }
    return rc;
}

static int run(const struct hybrid_args *a, struct err *err)
{
    if (a->figures)
        return print_figures(a, err);
    struct hybrid_setup s = {.x = a->x,
                             .batch = a->batch,
                             .prompt = a->prompt,
                             .tokens = a->tokens,
                             .device_bytes = (double)a->device_bytes,
                             .host_bytes = (double)a->host_bytes};
    int rc = hybrid_setup_init(&s, a->shape, a->platform, err);
    if (rc == 0)
        print_setup(&s, a->json);
    return rc;
}

int bench_hybrid(int argc, char **argv)
{
    struct hybrid_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (argc > 1 && strcmp(argv[1], "run") == 0)
        return bench_hybrid_run(argc - 1, argv + 1);
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = run(&a, &err);
    opt_end(parsed);
    return bench_end("hybrid", rc, &err);
}
