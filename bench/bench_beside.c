/* bench_beside.c - measures how much a long prompt, or its restoration, slows sequences that decode
 * beside it.
 *
 * A few sequences decode all the time. Windows of three kinds alternate: decodes alone, decodes
 * while a new prompt is prefilled (and saved), and decodes while the same prompt is restored. The
 * table gives for each kind the time between the tokens of a sequence (TBT), and its ratio to the
 * time of decodes alone.
 *
 * Each window begins with fresh decodes, because steps take longer as contexts grow. Every second
 * window of decodes alone is counted separately: the difference between the two counts is the noise
 * of the measurement. A restoration never covers the prompt's last tokens. They are always
 * computed, and are counted separately from the restoration. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/rng.h"
#include "apps/option_tables.h"
#include "bench/bench.h"
#include "api/stack.h"
#include "restore/save_policy.h"

struct beside_args {
    struct bench_common common; /* must be the first member */
    const char *csv, *plan;
    int decodes, prompt, prefills, restores, alone;
};

static const struct opt options[] = {
    BENCH_OPT_STORE,
    {"decodes", OPT(struct beside_args, decodes), .arg = "N", .def = "4", .min = 1,
     .max = 64, .help = "sequences that decode"},
    {"prompt", OPT(struct beside_args, prompt), .arg = "N", .def = "4096", .min = 128,
     .max = 1 << 20, .help = "tokens of the prompt that arrives"},
    {"prefills", OPT(struct beside_args, prefills), .arg = "N", .def = "1", .min = 0,
     .max = 100,
     .help = "prompts that are prefilled beside decodes; 0: one, before the decodes begin"},
    {"restores", OPT(struct beside_args, restores), .arg = "N", .def = "8", .min = 0,
     .max = 1000, .help = "restorations of the last prompt"},
    {"plan", OPT(struct beside_args, plan), .def = "auto", .arg = "PLAN",
     .help = "plan of the restorations, as for hcache run"},
    {"alone", OPT(struct beside_args, alone), .arg = "N", .def = "100", .min = 10,
     .max = 100000, .help = "steps in a window of decodes alone"},
    BENCH_OPT_DEVICE,
    BENCH_OPT_DTYPE,
    BENCH_OPT_THREADS,
    BENCH_OPT_PARALLEL,
    BENCH_OPT_BATCH,
    {"csv", OPT(struct beside_args, csv), .arg = "FILE",
     .help = "write the table as CSV too"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench beside",
    .summary = "Measures how much a long prompt, or its restoration, adds to the time "
               "between tokens of sequences that decode beside it.",
    .positionals = bench_positionals,
    .options = options,
    .examples = "  hcache bench beside --store memory\n"
                "  hcache bench beside --prefills 0 --restores 20 --csv beside.csv\n",
    .values_bytes = sizeof(struct beside_args),
};
const struct opt_cmd *const options_of_bench_beside = &cmd;

/* The kind of window in which a token comes. AGAIN: every second window of decodes alone. NEW: the
 * time in which a prompt's last tokens are computed after its restoration. */
enum window { ALONE, AGAIN, PREFILL, RESTORE, NEW, N_WINDOWS };
static const char *const names[] = {"alone", "alone2", "prefill", "restore", "new"};
enum { MAX_GAPS = 1 << 18, DECODER_PROMPT = 64, WARM_STEPS = 8 };

struct lab {
    struct beside_args *a;
    struct bench_place place;
    struct stack k;
    enum window now;
    double *gap_ms[N_WINDOWS]; /* [MAX_GAPS] */
    int n_gaps[N_WINDOWS];
    int n_arrivals[N_WINDOWS];
    /* sum of the times from a prompt's arrival to its first token */
    double arrival_s[N_WINDOWS];
    double plan_ms, lookup_ms, restore_ms, compute_ms; /* sums over the restorations */
    int64_t n_cached;
    char layers[PLAN_MAX_LAYERS + 1];
    int32_t *tokens;
    struct decoder {
        struct lab *lab;
        struct seq *seq;
        /* time of the sequence's last token; 0: the next gap is not counted */
        int64_t last_ns;
    } * decoder;
};

static int on_token(void *arg, int32_t id)
{
    struct decoder *d = arg;
    struct lab *b = d->lab;
    int64_t now = clock_now_ns();
    (void)id;
    if (d->last_ns != 0 && b->now < N_WINDOWS && b->n_gaps[b->now] < MAX_GAPS)
        b->gap_ms[b->now][b->n_gaps[b->now]++] = (double)(now - d->last_ns) * 1e-6;
    d->last_ns = now;
    return 0;
}

/* Forgets the time of the last tokens, because something other than a step has happened since. */
static void forget_last(struct lab *b)
{
    for (int i = 0; i < b->a->decodes; i++)
        b->decoder[i].last_ns = 0;
}

static int step_alone(struct lab *b, enum window w, struct err *err)
{
    int n_active, rc = 0;
    b->now = w;
    for (int i = 0; rc == 0 && i < b->a->alone; i++)
        rc = engine_step(b->k.engine, &n_active, err);
    return rc;
}

static int arrive(struct lab *b, enum window w, int prompt, struct seq **s, struct err *err)
{
    const struct hcache_request ask = {.prompt = b->tokens + prompt,
                                       .n_prompt = b->a->prompt,
                                       .max_tokens = 1,
                                       .ignore_eos = true,
                                       .plan = w == PREFILL ? "recompute" : b->a->plan};
    struct request *q = request_create(&ask, 1);
    int rc = save_policy_make(&q->save, "both", b->k.model, NULL, b->a->prompt, err);
    if (rc == 0)
        rc = engine_add(b->k.engine, q, s, err);
    request_release(q);
    return rc;
}

/* Makes steps until s has ended, and counts the gaps between tokens of the decodes. A gap ends with
 * a step's forward pass and begins after the previous pass. So it includes work that the previous
 * step did behind its own pass, and new tokens of either step. */
static int step_until_done(struct lab *b, enum window w, const struct seq *s,
                           struct err *err)
{
    int n_active, rc = 0;
    struct engine_stats st;
    bool was_new = false;
    engine_stats(b->k.engine, &st);
    uint64_t n_fused = st.fused_rows;
    while (rc == 0 && seq_outcome(s)->finish == FINISH_NONE) {
        bool is_new = w == RESTORE && (was_new || seq_outcome(s)->r.cached_tokens > 0);
        b->now = is_new ? NEW : w;
        rc = engine_step(b->k.engine, &n_active, err);
        engine_stats(b->k.engine, &st);
        was_new = st.fused_rows > n_fused;
        n_fused = st.fused_rows;
    }
    return rc;
}

static int note_arrival(struct lab *b, enum window w, const struct outcome *o, int64_t t0,
                        struct err *err)
{
    if (o->finish == FINISH_ERROR)
        return err_set(err, o->err.code, "%s", o->err.msg);
    if (w == RESTORE && o->r.cached_tokens == 0)
        return err_set(err, ERR_NOT_FOUND, "nothing was restored: %s", o->r.miss);
    b->n_arrivals[w]++;
    b->arrival_s[w] += (double)(clock_now_ns() - t0) * 1e-9;
    if (w != RESTORE)
        return 0;
    b->plan_ms += o->r.timings.plan_ms;
    b->lookup_ms += o->r.timings.lookup_ms;
    b->restore_ms += o->r.timings.restore_ms;
    b->compute_ms += (double)o->restore.compute_ns * 1e-6;
    b->n_cached += o->r.cached_tokens;
    snprintf(b->layers, sizeof b->layers, "%s", o->plan.method);
    return 0;
}

/* Submits a prompt and makes steps until its first token. */
static int step_beside(struct lab *b, enum window w, int prompt, struct err *err)
{
    struct seq *s = NULL;
    int64_t t0 = clock_now_ns();
    int rc = arrive(b, w, prompt, &s, err);
    if (rc == 0)
        rc = step_until_done(b, w, s, err);
    if (rc == 0)
        rc = note_arrival(b, w, seq_outcome(s), t0, err);
    if (s != NULL)
        engine_remove(b->k.engine, s);
    if (rc == 0)
        rc = saver_flush(b->k.saver, err);
    forget_last(b);
    return rc;
}

static void stop_decoders(struct lab *b)
{
    for (int i = 0; i < b->a->decodes; i++) {
        if (b->decoder[i].seq != NULL)
            engine_remove(b->k.engine, b->decoder[i].seq);
        b->decoder[i].seq = NULL;
    }
}

/* Starts fresh decodes and makes some steps to warm up. */
static int start_decoders(struct lab *b, struct err *err)
{
    int rc = 0, n_active;
    stop_decoders(b);
    for (int i = 0; rc == 0 && i < b->a->decodes; i++) {
        struct decoder *d = &b->decoder[i];
        const struct hcache_request ask = {.prompt = b->tokens + i,
                                           .n_prompt = DECODER_PROMPT,
                                           .max_tokens = b->k.model->max_ctx -
                                                         DECODER_PROMPT,
                                           .ignore_eos = true};
        struct request *q = request_create(&ask, ask.max_tokens);
        q->on_token = on_token;
        q->arg = d;
        d->lab = b;
        rc = engine_add(b->k.engine, q, &d->seq, err);
        request_release(q);
    }
    b->now = N_WINDOWS; /* steps are not counted now */
    for (int i = 0; rc == 0 && i < WARM_STEPS; i++)
        rc = engine_step(b->k.engine, &n_active, err);
    return rc;
}

/* Runs one window of decodes alone, and one window in which a prompt arrives. */
static int run_pair(struct lab *b, enum window w, int i, int prompt, struct err *err)
{
    int rc = start_decoders(b, err);
    if (rc == 0)
        rc = step_alone(b, i % 2 == 0 ? ALONE : AGAIN, err);
    if (rc == 0)
        rc = start_decoders(b, err);
    return rc == 0 ? step_beside(b, w, prompt, err) : rc;
}

static int run(struct lab *b, struct err *err)
{
    const struct beside_args *a = b->a;
    int n = a->prompt + a->prefills + a->decodes + DECODER_PROMPT, rc = 0;
    int last = a->prefills > 0 ? a->prefills - 1 : 0;
    struct rng rng = {1};
    b->tokens = xcalloc((size_t)n, sizeof *b->tokens);
    for (int i = 0; i < n; i++)
        b->tokens[i] = (int32_t)rng_below(&rng, (uint64_t)b->k.model->cfg.vocab_size);
    if (a->prefills == 0)
        rc = step_beside(b, PREFILL, 0, err);
    b->n_arrivals[PREFILL] = 0;
    for (int i = 0; rc == 0 && i < a->prefills; i++)
        rc = run_pair(b, PREFILL, i, i, err);
    for (int i = 0; rc == 0 && i < a->restores; i++)
        rc = run_pair(b, RESTORE, i, last, err);
    return rc;
}

/* --- the table -------------------------------------------------------------------------------- */

struct row {
    /* ms: mean, p50, p95 and p99; x: their ratios to those of decodes alone */
    double ms[4], x[4];
};

static void summarize(const struct lab *b, enum window w, struct row *r)
{
    static const double q[] = {0, 0.5, 0.95, 0.99};
    int n = b->n_gaps[w];
    *r = (struct row){0};
    for (int i = 0; i < n; i++)
        r->ms[0] += b->gap_ms[w][i] / n;
    for (int i = 1; i < 4 && n > 0; i++)
        r->ms[i] = bench_quantile(b->gap_ms[w], n, q[i]);
}

static void print_row(const struct lab *b, enum window w, const struct row *r, FILE *csv)
{
    double s = b->n_arrivals[w] > 0 ? b->arrival_s[w] / b->n_arrivals[w] : 0;
    printf("%-8s %7d %8.2f %8.2f %8.2f %8.2f   %5.3f %5.3f %5.3f %5.3f  %10.2f\n", names[w],
           b->n_gaps[w], r->ms[0], r->ms[1], r->ms[2], r->ms[3], r->x[0], r->x[1], r->x[2],
           r->x[3], s);
    if (csv != NULL)
        fprintf(csv, "%s,%d,%d,%d,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,%.4f,%.4f,%.3f\n", names[w],
                b->a->decodes, b->a->prompt, b->n_gaps[w], r->ms[0], r->ms[1], r->ms[2],
                r->ms[3], r->x[0], r->x[1], r->x[2], r->x[3], s);
}

static int report(struct lab *b, struct err *err)
{
    FILE *csv = b->a->csv != NULL ? fopen(b->a->csv, "w") : NULL;
    struct row row[N_WINDOWS];
    if (b->a->csv != NULL && csv == NULL)
        return err_set(err, -errno, "%s: %s", b->a->csv, strerror(errno));
    if (csv != NULL)
        fprintf(csv, "window,decodes,prompt,gaps,mean_ms,p50_ms,p95_ms,p99_ms,mean_x,p50_x,"
                     "p95_x,p99_x,arrival_s\n");
    printf("%-8s %7s %8s %8s %8s %8s   times alone: mean, p50, p95, p99  first token s\n",
           "beside", "gaps", "mean ms", "p50", "p95", "p99");
    for (int w = 0; w < N_WINDOWS; w++) {
        summarize(b, (enum window)w, &row[w]);
        for (int i = 0; i < 4; i++)
            row[w].x[i] = row[w].ms[i] / row[ALONE].ms[i];
        if (b->n_gaps[w] > 0)
            print_row(b, (enum window)w, &row[w], csv);
    }
    int n = b->n_arrivals[RESTORE];
    if (n > 0)
        printf("restorations, means of %d: %lld tokens of %d by %s; look-up %.2f ms, plan "
               "%.2f ms, restoring %.1f ms, of which compute %.1f\n",
               n, (long long)(b->n_cached / n), b->a->prompt, b->layers, b->lookup_ms / n,
               b->plan_ms / n, b->restore_ms / n, b->compute_ms / n);
    if (csv != NULL)
        fclose(csv);
    return 0;
}

static int open_lab(struct lab *b, struct err *err)
{
    struct beside_args *a = b->a;
    int context = (a->prompt + 64) / 64 * 64 + 64;
    int steps = DECODER_PROMPT + WARM_STEPS + a->alone + a->prompt;
    for (int w = 0; w < N_WINDOWS; w++)
        b->gap_ms[w] = xcalloc(MAX_GAPS, sizeof(double));
    b->decoder = xcalloc((size_t)a->decodes, sizeof *b->decoder);
    int rc = bench_place_open(&b->place, &a->common.engine, err);
    struct stack_opts o = {.user = a->common.engine.o};
    o.user.max_context = context > steps ? context : steps;
    o.user.max_sequences = a->decodes + 1;
    o.user.kv_tokens = (uint64_t)context + (uint64_t)a->decodes * (uint64_t)(steps + 64);
    o.user.save_buffer_bytes = (size_t)1 << 30;
    o.user.store_cap_bytes = (uint64_t)8 << 30;
    o.user.no_reuse = true;
    return rc == 0 ? stack_open(&o, &b->k, err) : rc;
}

static void cleanup(struct lab *b)
{
    stop_decoders(b);
    stack_close(&b->k);
    bench_place_close(&b->place);
    for (int w = 0; w < N_WINDOWS; w++)
        free(b->gap_ms[w]);
    free(b->decoder);
    free(b->tokens);
}

int bench_beside(int argc, char **argv)
{
    struct beside_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct lab b = {.a = &a};
    int rc = open_lab(&b, &err);
    if (rc == 0)
        rc = run(&b, &err);
    if (rc == 0)
        rc = report(&b, &err);
    cleanup(&b);
    opt_end(parsed);
    return bench_end("beside", rc, &err);
}
