/* cmd_plan.c - hcache plan: shows how a context would be restored on a platform, and why.
 *
 * It prints a row per method, then the chosen plan with its letters, its reason and its two lanes.
 * Nothing is restored or measured: it reads only the model's config.json and a platform file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "apps/cmds.h"
#include "apps/json_print.h"
#include "apps/option_tables.h"
#include "apps/engine_options.h"
#include "apps/user_files.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "opt/opt.h"
#include "base/plural.h"
#include "base/json.h"
#include "model/config.h"
#include "model/model.h"
#include "model/share.h"
#include "restore/pipeline.h"
#include "restore/plan.h"
#include "apps/timeline.h"
#include "restore/profile.h"
#include "restore/save_kinds.h"
#include "sim/machines.h"

struct plan_args {
    const char *model_dir, *shape, *platform, *method, *svg;
    int64_t history, n_new;
    struct engine_args engine; /* only --throttle and the parallel options are used */
    uint64_t budget, link;
    int dtype, tier, concurrent;
    bool fused, packed, json;
};

static const char *const dtypes[] = {"checkpoint", "f32", "bf16", "f16", NULL};

static const struct opt plan_positionals[] = {
    {"MODEL_DIR", OPT(struct plan_args, model_dir),
     .help =
         "a Hugging Face folder (only config.json is read), a GGUF file, or synth:SHAPE"},
    {0},
};

static const struct opt plan_options[] = {
    {"shape", OPT(struct plan_args, shape), .arg = "NAME",
     .help = "a named shape instead of a folder: llama-2-7b, opt-30b, bench-220m, ..."},
    {"platform", OPT(struct plan_args, platform), .arg = "FILE|NAME", .def = "a100-4ssd",
     .help = "a file of `hcache profile`, or, with a model or a shape, a machine of the "
             "HCache paper: a100, a30, 4090, "
             "l20, h800 or a100x4, with -dram or -1ssd to -4ssd"},
    {"history", OPT(struct plan_args, history), .arg = "N", .def = "4096", .min = 1,
     .max = 100000000, .help = "tokens to restore"},
    {"new", OPT(struct plan_args, n_new), .arg = "N", .def = "0", .min = 0,
     .max = 100000000, .help = "new tokens to prefill after the history"},
    {"method", OPT(struct plan_args, method), .arg = "METHOD", .def = "auto",
     .help = "method to draw: auto, hidden, kv, recompute, kv+recompute, paper, "
             "or a letter per layer (RRHHKK)"},
    {"fused", OPT(struct plan_args, fused),
     .help = "prefill layer i of the new tokens as soon as layers 0 to i are restored"},
    {"dtype", OPT(struct plan_args, dtype), .def = "checkpoint", .choices = dtypes,
     .help = "state dtype (built-in platforms, and --packed)"},
    {"packed", OPT(struct plan_args, packed),
     .help =
         "plan for packed state (--pack), by the speed of unpacking in a platform's file"},
    OPT_PARALLEL(struct plan_args),
    {"link", OPT(struct plan_args, link), .arg = "BYTES_PER_S", .def = "0",
     .help = "ranks and stages are on machines of their own, with a network of this speed "
             "(built-in platforms); 0: on one machine"},
    {"tier", OPT(struct plan_args, tier), .arg = "I", .def = "0", .min = 0, .max = 7,
     .help = "the platform's tier that holds the records"},
    {"throttle", OPT(struct plan_args, engine.o.throttle_bytes_per_s), .arg = "BYTES_PER_S",
     .def = "0", .help = "limit on the speed of reads; 0 is none"},
    {"concurrent", OPT(struct plan_args, concurrent), .arg = "N", .def = "1", .min = 1,
     .max = 1000, .help = "concurrent restores on this device, which share its lanes"},
    {"budget", OPT(struct plan_args, budget), .arg = "BYTES", .def = "0",
     .help = "auto: store at most this many bytes per token; 0 is no bound"},
    {"svg", OPT(struct plan_args, svg), .arg = "FILE", .help = "write the timeline as SVG"},
    {"json", OPT(struct plan_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd plan_cmd = {
    .name = "plan",
    .summary =
        "Shows how a stored context would be restored: which layers by recomputation (R), "
        "from hidden states (H) or from KV (K), and the pipeline's two lanes.",
    .positionals = plan_positionals,
    .options = plan_options,
    .examples =
        "  hcache plan       for this machine, after hcache profile\n"
        "  hcache plan --shape llama-2-13b --platform a100-1ssd --history 1024\n"
        "  hcache plan MODEL_DIR --platform my.platform --history 16384 --svg plan.svg\n"
        "  hcache plan --shape llama-2-70b --platform a30-1ssd --tensor-parallel 4 --link "
        "12.5G\n",
    .values_bytes = sizeof(struct plan_args),
};
const struct opt_cmd *const options_of_plan = &plan_cmd;

/* ---- what to plan for ---- */

static int load_config(const struct plan_args *a, struct model_config *c, struct err *e)
{
    static const char synth[] = "synth:";
    if (a->shape != NULL)
        return config_shape(c, a->shape, e);
    if (strncmp(a->model_dir, synth, sizeof synth - 1) == 0)
        return config_shape(c, a->model_dir + sizeof synth - 1, e);
    return config_load(c, a->model_dir, e);
}

static double elem_bytes(const struct plan_args *a, const struct model_config *c)
{
    if (a->dtype > 0)
        return a->dtype == 1 ? 4 : 2;
    return c->weight_type == WEIGHT_UNSPECIFIED ? 2 : weight_type_bytes(c->weight_type);
}

/* Describes the model for a built-in platform. */
static int describe_shape(const struct plan_args *a, struct platform_shape *s,
                          struct err *e)
{
    struct model_config c;
    if (a->shape == NULL && a->model_dir == NULL)
        return err_set(
            e, ERR_USAGE,
            "this machine has no profile: let `hcache profile MODEL_DIR` measure it first. "
            "A "
            "plan for a built-in platform (--platform) needs MODEL_DIR or --shape");
    int rc = load_config(a, &c, e);
    if (rc != 0)
        return rc;
    rc = share_check(&c, a->engine.o.tensor_parallel, a->engine.o.pipeline_parallel, e);
    if (rc != 0)
        return rc;
    *s = profile_shape(a->shape != NULL ? a->shape : a->model_dir, &c, elem_bytes(a, &c));
    s->n_ranks = a->engine.o.tensor_parallel;
    s->n_stages = a->engine.o.pipeline_parallel;
    s->link_bytes_per_s = (double)a->link;
    return 0;
}

static int builtin_platform(const struct plan_args *a, struct platform *p, struct err *e)
{
    struct platform_shape s;
    int rc = describe_shape(a, &s, e);
    return rc == 0 ? machine_platform(a->platform, &s, p, e) : rc;
}

/* Sets the model's name in a measured platform, whose file has only the fingerprint. */
static void name_model(const struct plan_args *a, struct platform *p)
{
    char fingerprint[sizeof p->model];
    if (a->shape != NULL || a->model_dir != NULL) {
        snprintf(p->model, sizeof p->model, "%s",
                 a->shape != NULL ? a->shape : a->model_dir);
        return;
    }
    snprintf(fingerprint, sizeof fingerprint, "%s", p->model);
    snprintf(p->model, sizeof p->model, "model %.16s", fingerprint);
}

/* Refuses other sizes than those of a measured platform, which holds only for the model with which
 * it was measured. */
static int check_sizes(const struct plan_args *a, const struct platform *p, struct err *e)
{
    struct model_config c;
    if (a->shape == NULL && a->model_dir == NULL)
        return 0;
    int rc = load_config(a, &c, e);
    if (rc != 0)
        return rc;
    double h = c.n_embd, kv = 0;
    int n = 0;
    for (int l = 0; l < config_n_keeping(&c); l++)
        if (!config_is_recurrent(&c, l)) {
            kv += config_kv_width(&c, l);
            n++;
        }
    kv /= n > 0 ? n : 1; /* as model_mean_kv_bytes */
    if (p->n_layers == c.n_layers && p->kv_bytes * h == p->h_bytes * kv)
        return 0;
    return err_set(
        e, ERR_MISMATCH,
        "%s was measured with another model: %d layers, KV/H %.3g; this one has %d "
        "layers, KV/H %.3g",
        a->platform, p->n_layers, p->kv_bytes / p->h_bytes, c.n_layers, kv / h);
}

/* Refuses other numbers of devices than those of a measured platform, which are fixed. */
static int check_devices(const struct plan_args *a, const struct platform *p, struct err *e)
{
    bool told = a->engine.o.tensor_parallel > 1 || a->engine.o.pipeline_parallel > 1;
    if (!told || (a->engine.o.tensor_parallel == p->n_ranks &&
                  a->engine.o.pipeline_parallel == p->n_stages))
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "%s was measured with %d stage%s of %d rank%s; run hcache profile with "
                   "the same --tensor-parallel and --pipeline-parallel",
                   a->platform, p->n_stages, plural((uint64_t)p->n_stages), p->n_ranks,
                   plural((uint64_t)p->n_ranks));
}

static int load_platform(const struct plan_args *a, struct platform *p, struct err *e)
{
    char *text;
    size_t n;
    if (access(a->platform, F_OK) != 0)
        return builtin_platform(a, p, e);
    if (a->link > 0)
        return err_set(e, ERR_USAGE, "--link: a measured platform has its own (%s)",
                       a->platform);
    int rc = file_read(a->platform, 1 << 16, &text, &n, e);
    if (rc != 0)
        return rc;
    rc = platform_parse(text, n, p, e);
    if (rc == 0 && p->n_tiers == 0)
        rc = err_set(e, ERR_MISMATCH,
                     "platform: no disk has been measured yet: run hcache profile");
    free(text);
    if (rc != 0) {
        err_wrap(e, "%s", a->platform);
        return rc;
    }
    rc = check_sizes(a, p, e);
    if (rc == 0)
        rc = check_devices(a, p, e);
    name_model(a, p);
    return rc;
}

static bool is_folder(const struct plan_args *a)
{
    return a->model_dir != NULL && strncmp(a->model_dir, "synth:", 6) != 0;
}

/* Warns of a history beyond the model's context, which `hcache run` would never restore.  (Shapes
 * may be tried at any length.) */
static void warn_of_length(const struct plan_args *a)
{
    struct model_config c;
    struct err why = {0};
    if (is_folder(a) && load_config(a, &c, &why) == 0 && a->history + a->n_new > c.max_ctx)
        log_warn("%s was made for %d tokens; the plan is for %lld (--history)",
                 a->model_dir, c.max_ctx, (long long)(a->history + a->n_new));
}

/* Returns the file that the last `hcache profile` on this machine wrote, from malloc; NULL: there
 * is none. The file is used if neither a model nor a platform is given. */
static char *own_platform(const struct plan_args *a, bool has_platform)
{
    char *path = a->shape == NULL && a->model_dir == NULL && !has_platform
                     ? user_file("platform")
                     : NULL;
    if (path != NULL && access(path, R_OK) == 0) {
        fprintf(stderr,
                "hcache plan: for this machine, from the last `hcache profile` (%s)\n",
                path);
        return path;
    }
    free(path);
    return NULL;
}

static int open_platform(const struct plan_args *a, struct platform *p, struct err *e)
{
    if (a->shape != NULL && a->model_dir != NULL)
        return err_set(e, ERR_USAGE, "give MODEL_DIR or --shape, not both");
    int rc = load_platform(a, p, e);
    if (rc != 0)
        return rc;
    warn_of_length(a);
    if (p->n_layers > PLAN_MAX_LAYERS)
        return err_set(e, ERR_LIMIT, "%d layers; at most %d can be planned", p->n_layers,
                       PLAN_MAX_LAYERS);
    if (a->tier >= p->n_tiers)
        return err_set(e, ERR_USAGE, "--tier %d: the platform has %d", a->tier, p->n_tiers);
    platform_throttle(p, a->tier, (double)a->engine.o.throttle_bytes_per_s);
    if (a->packed && p->unpack_bytes_per_s == 0)
        return err_set(
            e, ERR_USAGE,
            "--packed: the platform does not say how fast state is unpacked (%s)",
            access(a->platform, F_OK) != 0 ? "give a file of hcache profile"
                                           : "measure it again");
    if (a->packed)
        p->packed_share = SAVE_PACK_SHARE(a->dtype == 1   ? PACK_F32
                                          : a->dtype == 3 ? PACK_F16
                                                          : PACK_BF16);
    if (a->concurrent > 1)
        *p = platform_shared(p, 1.0 / a->concurrent, 1.0 / a->concurrent);
    return 0;
}

/* ---- one row per method ---- */

struct row {
    const char *name;
    int rc;
    struct err err;
    struct plan plan;
};

static const char *const compared[] = {"recompute",    "kv",    "hidden",
                                       "kv+recompute", "paper", "auto"};

/* Rows of the table: one for each method, one for auto, and one for the plan of --plan. */
enum {
    N_COMPARED = sizeof compared / sizeof *compared,
    AUTO = N_COMPARED - 1,
    CHOSEN,
    N_ROWS
};

static int plan_rows(const struct plan_args *a, struct plan_request *req, struct row *row,
                     struct err *e)
{
    for (int i = 0; i < N_ROWS; i++) {
        row[i].name = i == CHOSEN ? a->method : compared[i];
        int rc = plan_mode_parse(row[i].name, req, e);
        if (rc != 0)
            return rc;
        row[i].rc = plan_make(req, &row[i].plan, &row[i].err);
    }
    return row[CHOSEN].rc == 0 ? 0 : err_set(e, row[CHOSEN].rc, "%s", row[CHOSEN].err.msg);
}

static void print_bytes(double bytes)
{
    if (bytes >= 1024)
        printf(" %9.*f KiB", bytes < 100 * 1024 ? 1 : 0, bytes / 1024);
    else
        printf(" %9.0f B  ", bytes);
}

static void print_row(const struct row *r, double auto_s)
{
    const struct plan *p = &r->plan;
    if (r->rc != 0) {
        printf("%-18s %s\n", r->name, r->err.msg);
        return;
    }
    char counts[40];
    snprintf(counts, sizeof counts, "%d R + %d H + %d K", p->n_r, p->n_h, p->n_k);
    printf("%-18s %-24s %10.3f %7.2fx %6.1f %%", r->name, counts, p->predicted_s * 1e3,
           p->predicted_s / auto_s, p->bubble * 100);
    print_bytes(p->stored_bytes_per_token);
    printf("\n");
}

static int terminal_width(void)
{
    struct winsize w;
    const char *columns = getenv("COLUMNS");
    if (columns != NULL && strtol(columns, NULL, 10) > 0)
        return (int)MIN(strtol(columns, NULL, 10), 400);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return 80;
}

/* Prints a rate: "26 GB/s", "2.5 MB/s". */
static void rate_text(double bytes_per_s, char *out, size_t n)
{
    bool is_fast = bytes_per_s >= 1e9;
    snprintf(out, n, "%.3g %s", bytes_per_s / (is_fast ? 1e9 : 1e6),
             is_fast ? "GB/s" : "MB/s");
}

static void print_head(const struct plan_args *a, const struct platform *p)
{
    const struct platform_tier *t = &p->tier[a->tier];
    char reads[24], balance[24];
    struct plan_layer one;
    plan_layers_uniform(p, a->tier, a->history, 1, &one);
    rate_text(p->n_stages > 1 ? t->bytes_per_s : platform_io_bytes_per_s(p, a->tier), reads,
              sizeof reads);
    rate_text(platform_balance_bytes_per_s(p, a->history), balance, sizeof balance);
    printf("%s on %s: %lld tokens from %s%s%s", p->model, p->machine, (long long)a->history,
           t->name, platform_tier_in_place(t) ? ", read in place" : " at ",
           platform_tier_in_place(t) ? "" : reads);
    if (a->packed)
        printf(", packed to %.2f of their bytes", p->packed_share);
    if (p->n_ranks * p->n_stages > 1)
        printf(", over %d stage%s of %d rank%s", p->n_stages, plural((uint64_t)p->n_stages),
               p->n_ranks, plural((uint64_t)p->n_ranks));
    if (a->n_new > 0)
        printf(", then %lld new ones%s", (long long)a->n_new, a->fused ? ", fused" : "");
    printf("\nper layer: read H %.3f ms, KV %.3f ms; compute H %.3f ms, KV %.3f ms, whole "
           "layer %.3f ms; H balances at %s\n\n",
           1e3 * one.io_h_s, 1e3 * one.io_kv_s, 1e3 * one.comp_h_s, 1e3 * one.comp_kv_s,
           1e3 * platform_tok_s(p, a->history), balance);
    double up_s = platform_up_s(p, a->tier, a->history, RECORD_HIDDEN);
    if (p->n_ranks * p->n_stages > 1 && up_s > 0)
        printf(
            "to each stage: H %.3f ms (%.3g GB/s, gathered by its ranks), KV %.3f ms\n\n",
            up_s * 1e3, (double)a->history * p->h_bytes / up_s * 1e-9,
            1e3 * platform_up_s(p, a->tier, a->history, RECORD_KV));
}

/* Tokens of the prompt whose exchanges are shown. */
enum { GATHER_ROWS = 512 };

/* Returns bytes and times of the gathers among ranks that lie on different machines. */
static struct machine_gathers gathers_of(const struct plan_args *a)
{
    struct platform_shape s = {0};
    struct err unused;
    if (a->link == 0 || describe_shape(a, &s, &unused) != 0)
        s.n_ranks = 1;
    return machine_gathers(&s);
}

static void print_gathers(const struct plan_args *a, const struct platform *p)
{
    struct machine_gathers g = gathers_of(a);
    char rate[24];
    if (g.n == 0)
        return;
    rate_text((double)a->link, rate, sizeof rate);
    printf("over a network at %s: %d gathers a layer; the next token of an answer waits "
           "%.3f ms for them\n(%.3f ms of it latency, %.3g MB), %d tokens of a prompt "
           "%.1f ms (%.3g MB)\n\n",
           rate, g.n, 1e3 * p->n_layers * (g.latency_s + g.token_s),
           1e3 * p->n_layers * g.latency_s, 1e-6 * p->n_layers * g.token_bytes, GATHER_ROWS,
           1e3 * p->n_layers * (g.latency_s + GATHER_ROWS * g.token_s),
           1e-6 * p->n_layers * GATHER_ROWS * g.token_bytes);
}

/* Reads the config of a model with recurrent layers. Returns false if it is another one, or is not
 * named. */
static bool load_hybrid(const struct plan_args *a, struct model_config *c)
{
    struct err unused = {0};
    return (a->shape != NULL || a->model_dir != NULL) && load_config(a, c, &unused) == 0 &&
           config_is_hybrid(c);
}

/* Prints for a model with recurrent layers how many tokens of inputs weigh as much as a snapshot of
 * its states, and how many are replayed while a snapshot is read. */
static void print_states(const struct plan_args *a, const struct platform *p)
{
    struct model_config c;
    if (!load_hybrid(a, &c))
        return;
    int n = 0;
    for (int l = 0; l < c.n_layers; l++)
        n += config_is_recurrent(&c, l);
    enum { ROWS = 512 };
    double bytes = n * (double)model_state_bytes(&c);
    double read_s = bytes / platform_io_bytes_per_s(p, a->tier);
    double replay_s = n * platform_h_s(p, ROWS) / ROWS;
    printf(
        "%d recurrent layers: a snapshot has %.3g MB, as many bytes as the inputs of %.0f "
        "tokens.\n",
        n, bytes * 1e-6, bytes / (n * p->h_bytes));
    printf(
        "It reads in %.3g ms, while %.1f tokens are replayed (%.3g ms each). The methods "
        "below use none.\n\n",
        read_s * 1e3, read_s / replay_s, replay_s * 1e3);
}

static void print_human(const struct plan_args *a, const struct platform *p,
                        const struct row *row, const struct pipeline *lanes)
{
    const struct plan *chosen = &row[CHOSEN].plan;
    print_head(a, p);
    print_gathers(a, p);
    print_states(a, p);
    printf("%-18s %-24s %10s %8s %8s %13s\n", "method", "layers", "ms", "to auto", "bubble",
           "stored/token");
    for (int i = 0; i < N_COMPARED; i++)
        print_row(&row[i], row[AUTO].plan.predicted_s);
    if (chosen->mode >= PLAN_FORCED_LAYERS)
        print_row(&row[CHOSEN], row[AUTO].plan.predicted_s);
    printf("\n%s: %s\n%s\n\n", row[CHOSEN].name, chosen->method, chosen->reason);
    int width = terminal_width();
    int n = timeline_text(lanes, width, NULL, 0);
    char *text = xmalloc((size_t)n + 1);
    timeline_text(lanes, width, text, (size_t)n + 1);
    fputs(text, stdout);
    free(text);
}

static struct json *row_json(const struct row *r)
{
    const struct plan *p = &r->plan;
    struct json *o = json_make("{method: %s}", r->name);
    if (r->rc != 0) {
        json_put_string(o, "error", r->err.msg);
        return o;
    }
    json_extend(o,
                "{layers: %s, recompute: %d, hidden: %d, kv: %d, predicted_ms: %g, "
                "restore_ms: %g, io_busy_ms: %g, compute_busy_ms: %g, bubble: %g, "
                "stored_bytes_per_token: %g, reason: %s}",
                p->method, p->n_r, p->n_h, p->n_k, p->predicted_s * 1e3, p->restore_s * 1e3,
                p->io_busy_s * 1e3, p->comp_busy_s * 1e3, p->bubble,
                p->stored_bytes_per_token, p->reason);
    return o;
}

static void print_json(const struct plan_args *a, const struct platform *p,
                       const struct row *row)
{
    struct json *o = json_new_object(), *methods = json_new_array();
    json_extend(o,
                "{platform: %s, model: %s, history: %ld, new: %ld, fused: %p, "
                "read_bytes_per_s: %g, ranks: %d, stages: %d}",
                p->machine, p->model, a->history, a->n_new, json_new_bool(a->fused),
                platform_io_bytes_per_s(p, a->tier), p->n_ranks, p->n_stages);
    struct machine_gathers g = gathers_of(a);
    if (g.n > 0) {
        struct json *x = json_make("{per_layer: %d, bytes_per_token: %g, latency_ms: %g, "
                                   "ms_per_token: %g}",
                                   g.n, p->n_layers * g.token_bytes,
                                   1e3 * p->n_layers * g.latency_s,
                                   1e3 * p->n_layers * g.token_s);
        json_put(o, "gathers", x);
    }
    json_put_real(o, "balance_bytes_per_s", platform_balance_bytes_per_s(p, a->history));
    json_put(o, "plan", row_json(&row[CHOSEN]));
    for (int i = 0; i < N_COMPARED; i++)
        json_push(methods, row_json(&row[i]));
    json_put(o, "methods", methods);
    json_print(o, 2);
}

static int write_svg(const char *path, const struct platform *p, const struct row *row,
                     const struct pipeline *lanes, struct err *e)
{
    char title[512];
    snprintf(title, sizeof title, "%s on %s: %s, %.2f ms (%s)", p->model, p->machine,
             row->name, row->plan.predicted_s * 1e3, row->plan.reason);
    int n = timeline_svg(lanes, title, NULL, 0);
    char *text = xmalloc((size_t)n + 1);
    timeline_svg(lanes, title, text, (size_t)n + 1);
    FILE *f = fopen(path, "w");
    int rc = 0;
    if (f == NULL || fwrite(text, 1, (size_t)n, f) != (size_t)n)
        rc = err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (f != NULL && fclose(f) != 0 && rc == 0)
        rc = err_set(e, -errno, "%s: %s", path, strerror(errno));
    free(text);
    return rc;
}

static int run(const struct plan_args *a, struct err *e)
{
    static struct platform p;
    static struct plan_layer layer[PLAN_MAX_LAYERS];
    static double prefill_s[PLAN_MAX_LAYERS];
    static struct row row[N_ROWS];
    static struct pipeline lanes;
    struct plan_request req;
    struct model_config c;
    int rc = open_platform(a, &p, e);
    if (rc != 0)
        return rc;
    plan_request_from_platform(&p, a->tier, a->history, a->n_new, layer, prefill_s, &req);
    for (int l = 0, n = load_hybrid(a, &c) ? c.n_layers : 0; l < n; l++)
        layer[l].has_kv = !config_is_recurrent(&c, l); /* inputs are their only records */
    req.fused = a->fused;
    req.budget_bytes_per_token = (double)a->budget;
    rc = plan_rows(a, &req, row, e);
    if (rc != 0)
        return rc;
    pipeline_simulate(&req, &row[CHOSEN].plan, &lanes);
    if (a->json)
        print_json(a, &p, row);
    else
        print_human(a, &p, row, &lanes);
    return a->svg != NULL ? write_svg(a->svg, &p, &row[CHOSEN], &lanes, e) : 0;
}

int cmd_plan(int argc, char **argv)
{
    struct plan_args a;
    struct opt_parsed *parsed;
    struct err e = {0};
    int code;
    if (!opt_begin(&plan_cmd, argc, argv, &a, &parsed, &code))
        return code;
    char *own = own_platform(&a, opt_source_of(parsed, "platform") != OPT_FROM_DEFAULT);
    if (own != NULL)
        a.platform = own;
    int rc = run(&a, &e);
    free(own);
    if (rc == ERR_USAGE)
        code = opt_usage(&plan_cmd, "%s", e.msg);
    else if (rc != 0)
        fprintf(stderr, "hcache plan: %s\n", e.msg);
    opt_end(parsed);
    return rc == 0 ? 0 : rc == ERR_USAGE ? code : 1;
}
