/* bench_beside.c - what a long prompt, or its restoration, costs those who decode beside it.
 *
 * A few sequences decode all the time.  Rounds of four windows: nothing else; a new prompt arrives and is
 * prefilled (and saved); nothing else; the same prompt arrives again and is restored.  Of each kind of
 * window the time between the tokens of a sequence (TBT) is told, and as a multiple of that alone. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "engine/stack.h"
#include "state/save_policy.h"

struct beside_args {
    const char *model, *dtype, *csv;
    int decodes, prompt, rounds, alone, threads;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};

static const struct opt positionals[] = {
    {"MODEL", OPT(struct beside_args, model), .def = "synth:bench-220m",
     .help = "a model folder or synth:SHAPE"},
    {0},
};

static const struct opt options[] = {
    {"decodes", OPT(struct beside_args, decodes), .arg = "N", .def = "4", .min = 1,
     .max = 64, .help = "sequences that decode"},
    {"prompt", OPT(struct beside_args, prompt), .arg = "N", .def = "4096", .min = 128,
     .max = 1 << 20, .help = "tokens of the prompt that arrives"},
    {"rounds", OPT(struct beside_args, rounds), .arg = "N", .def = "2", .min = 1,
     .max = 100, .help = "each with a new prompt"},
    {"alone", OPT(struct beside_args, alone), .arg = "N", .def = "100", .min = 10,
     .max = 100000, .help = "steps of a window with nothing else"},
    {"dtype", OPT(struct beside_args, dtype), .choices = dtypes, .help = "state dtype"},
    {"threads", OPT(struct beside_args, threads), .def = "0", .min = 0, .max = 1024,
     .help = "compute threads; 0 is one per core"},
    {"csv", OPT(struct beside_args, csv), .arg = "FILE",
     .help = "write the table as CSV too"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench beside",
    .summary = "Measures what a long prompt, or its restoration, adds to the time between "
               "the tokens of those who decode beside it.  State is kept in memory.",
    .positionals = positionals,
    .options = options,
    .examples = "  hcache bench beside\n"
                "  hcache bench beside --decodes 8 --prompt 2048 --csv beside.csv\n",
    .values_bytes = sizeof(struct beside_args),
};

enum window { ALONE, PREFILL, RESTORE, N_WINDOWS };
static const char *const names[] = {"alone", "prefill", "restore"};
enum { MAX_GAPS = 1 << 20 };

struct lab {
    const struct beside_args *a;
    struct stack k;
    enum window now;
    double *gap_ms[N_WINDOWS]; /* [MAX_GAPS] */
    int n_gaps[N_WINDOWS];
    double arrival_s[N_WINDOWS]; /* of all rounds: until the first token of who arrived */
    int32_t *tokens;
    struct decoder {
        struct lab *lab;
        struct seq *seq;
        int64_t last_ns; /* of this window; 0: none yet */
    } * decoder;
};

static int on_token(void *arg, int32_t id)
{
    struct decoder *d = arg;
    struct lab *b = d->lab;
    int64_t now = clock_now_ns();
    (void)id;
    if (d->last_ns != 0 && b->n_gaps[b->now] < MAX_GAPS)
        b->gap_ms[b->now][b->n_gaps[b->now]++] = (double)(now - d->last_ns) * 1e-6;
    d->last_ns = now;
    return 0;
}

static void begin_window(struct lab *b, enum window w)
{
    b->now = w;
    for (int i = 0; i < b->a->decodes; i++)
        b->decoder[i].last_ns = 0;
}

static int step_alone(struct lab *b, struct err *err)
{
    int n_active, rc = 0;
    begin_window(b, ALONE);
    for (int i = 0; rc == 0 && i < b->a->alone; i++)
        rc = engine_step(b->k.engine, &n_active, err);
    return rc;
}

/* A prompt arrives; until its first token. */
static int step_beside(struct lab *b, enum window w, int round, struct err *err)
{
    struct request q = {.prompt = b->tokens + round,
                        .n_prompt = b->a->prompt,
                        .max_tokens = 1,
                        .ignore_eos = true,
                        .plan = w == PREFILL ? "recompute" : NULL};
    struct seq *s = NULL;
    int n_active;
    int64_t t0 = clock_now_ns();
    int rc = save_policy_make(&q.save, "both", b->k.model, NULL, b->a->prompt, err);
    if (rc == 0)
        rc = engine_add(b->k.engine, &q, &s, err);
    begin_window(b, w);
    while (rc == 0 && seq_outcome(s)->finish == FINISH_NONE)
        rc = engine_step(b->k.engine, &n_active, err);
    b->arrival_s[w] += (double)(clock_now_ns() - t0) * 1e-9;
    if (rc == 0 && seq_outcome(s)->finish == FINISH_ERROR)
        rc = err_set(err, seq_outcome(s)->err.code, "%s", seq_outcome(s)->err.msg);
    if (rc == 0 && w == RESTORE && seq_outcome(s)->n_cached == 0)
        rc = err_set(err, ERR_NOT_FOUND, "nothing was restored: %s", seq_outcome(s)->miss);
    if (s != NULL)
        engine_remove(b->k.engine, s);
    return rc == 0 ? saver_flush(b->k.saver, err) : rc;
}

static int start_decoders(struct lab *b, struct err *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->a->decodes; i++) {
        struct decoder *d = &b->decoder[i];
        struct request q = {.prompt = b->tokens + i,
                            .n_prompt = 64,
                            .max_tokens = b->k.model->max_ctx - 64,
                            .ignore_eos = true,
                            .on_token = on_token,
                            .arg = d};
        d->lab = b;
        rc = engine_add(b->k.engine, &q, &d->seq, err);
    }
    return rc != 0 ? rc : step_alone(b, err);
}

static int run(struct lab *b, struct err *err)
{
    int n = b->a->prompt + b->a->rounds + b->a->decodes + 64;
    struct rng rng = {1};
    b->tokens = xcalloc((size_t)n, sizeof *b->tokens);
    for (int i = 0; i < n; i++)
        b->tokens[i] = (int32_t)rng_below(&rng, (uint64_t)b->k.model->cfg.vocab_size);
    int rc = start_decoders(b, err);
    b->n_gaps[ALONE] = 0; /* warm now */
    for (int round = 0; rc == 0 && round < b->a->rounds; round++) {
        rc = step_alone(b, err);
        if (rc == 0)
            rc = step_beside(b, PREFILL, round, err);
        if (rc == 0)
            rc = step_alone(b, err);
        if (rc == 0)
            rc = step_beside(b, RESTORE, round, err);
    }
    return rc;
}

/* --- the table -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double percentile(const struct lab *b, enum window w, int p)
{
    int n = b->n_gaps[w];
    return n > 0 ? b->gap_ms[w][n * p / 100 < n ? n * p / 100 : n - 1] : 0;
}

static int report(struct lab *b, struct err *err)
{
    static const int ps[] = {50, 95, 99};
    FILE *csv = b->a->csv != NULL ? fopen(b->a->csv, "w") : NULL;
    if (b->a->csv != NULL && csv == NULL)
        return err_set(err, -errno, "%s: %s", b->a->csv, strerror(errno));
    if (csv != NULL)
        fprintf(csv, "window,decodes,prompt,gaps,p50_ms,p95_ms,p99_ms,p50_x,p95_x,p99_x,"
                     "arrival_s\n");
    printf("%-8s %7s %9s %9s %9s   times alone: p50   p95   p99  %12s\n", "beside", "gaps",
           "p50 ms", "p95 ms", "p99 ms", "first token s");
    for (int w = 0; w < N_WINDOWS; w++)
        qsort(b->gap_ms[w], (size_t)b->n_gaps[w], sizeof(double), by_value);
    for (int w = 0; w < N_WINDOWS; w++) {
        double ms[3], x[3], s = b->arrival_s[w] / b->a->rounds;
        for (int i = 0; i < 3; i++) {
            ms[i] = percentile(b, (enum window)w, ps[i]);
            x[i] = ms[i] / percentile(b, ALONE, ps[i]);
        }
        printf("%-8s %7d %9.2f %9.2f %9.2f %20.2f %5.2f %5.2f  %12.2f\n", names[w],
               b->n_gaps[w], ms[0], ms[1], ms[2], x[0], x[1], x[2], s);
        if (csv != NULL)
            fprintf(csv, "%s,%d,%d,%d,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f\n", names[w],
                    b->a->decodes, b->a->prompt, b->n_gaps[w], ms[0], ms[1], ms[2], x[0],
                    x[1], x[2], s);
    }
    if (csv != NULL)
        fclose(csv);
    return 0;
}

static int open_lab(struct lab *b, struct err *err)
{
    const struct beside_args *a = b->a;
    int context = (a->prompt + 64) / 64 * 64 + 64;
    int steps = 64 + a->alone * (2 * a->rounds + 1) + 2 * a->rounds * a->prompt / 16;
    struct stack_opts o = {.model = a->model,
                           .dtype = a->dtype,
                           .threads = a->threads,
                           .max_context = context > steps ? context : steps,
                           .max_sequences = a->decodes + 1,
                           .kv_tokens = context + (int64_t)a->decodes * (steps + 64),
                           .save_buffer_bytes = (size_t)1 << 30,
                           .in_memory = true};
    for (int w = 0; w < N_WINDOWS; w++)
        b->gap_ms[w] = xcalloc(MAX_GAPS, sizeof(double));
    b->decoder = xcalloc((size_t)a->decodes, sizeof *b->decoder);
    return stack_open(&o, &b->k, err);
}

static void cleanup(struct lab *b)
{
    for (int i = 0; i < b->a->decodes; i++) {
        if (b->decoder[i].seq != NULL)
            engine_remove(b->k.engine, b->decoder[i].seq);
    }
    stack_close(&b->k);
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
    if (rc != 0)
        fprintf(stderr, "hcache bench beside: %s\n", err.msg);
    cleanup(&b);
    opt_end(parsed);
    return rc == 0 ? 0 : rc == ERR_USAGE ? 2 : 1;
}
