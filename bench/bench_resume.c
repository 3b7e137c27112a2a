/* bench_resume.c - `hcache bench resume`: a request behind a stored context, as the engine runs it.
 *
 * Alone: the time to the first token of --new tokens behind a restored history. Either prefill
 * waits for the whole restore (as in the paper), or it runs layer by layer inside the restore
 * (fused). The two alternate. Beside decodes: the time of a step of --decodes sequences while a
 * restore runs beside them, and of as many steps without a restore. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/rng.h"
#include "apps/option_tables.h"
#include "bench/bench.h"
#include "api/stack.h"

struct resume_args {
    struct bench_common common; /* must be the first member */
    const char *plan, *csv;
    int history, n_new, decodes, rounds;
};

static const struct opt options[] = {
    BENCH_OPT_STORE,
    {"history", OPT(struct resume_args, history), .arg = "N", .def = "4096", .min = 64,
     .max = 1 << 20, .help = "tokens to restore (rounded down to chunks)"},
    {"new", OPT(struct resume_args, n_new), .arg = "N", .def = "256", .min = 1,
     .max = 1 << 20, .help = "new tokens after the history, if nothing decodes"},
    {"decodes", OPT(struct resume_args, decodes), .arg = "N", .def = "4", .min = 0,
     .max = 64, .help = "sequences that decode beside a restore; 0: only the first table"},
    {"plan", OPT(struct resume_args, plan), .def = "auto",
     .help = "plan of the restoration, as for hcache run"},
    {"rounds", OPT(struct resume_args, rounds), .arg = "N", .def = "5", .min = 1,
     .max = 1000, .help = "rounds of each measurement"},
    BENCH_OPT_DEVICE,
    BENCH_OPT_DTYPE,
    BENCH_OPT_THREADS,
    BENCH_OPT_PARALLEL,
    BENCH_OPT_BATCH,
    OPT_PACK(struct bench_common),
    OPT_THROTTLE(struct bench_common),
    {"csv", OPT(struct resume_args, csv), .arg = "FILE",
     .help = "write both tables as CSV too"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench resume",
    .summary = "Measures the time to the first token after a restored history, with "
               "prefill after the restore or inside it, and the cost of a restore to "
               "sequences that decode beside it.",
    .positionals = bench_positionals,
    .options = options,
    .examples = "  hcache bench resume --throttle 100MB --new 512 --pack on\n"
                "  hcache bench resume --store memory --decodes 4\n",
    .values_bytes = sizeof(struct resume_args),
};
const struct opt_cmd *const options_of_bench_resume = &cmd;

struct lab {
    struct resume_args *a;
    struct stack k;
    struct rng rng;
    int32_t *tokens; /* the history, and room for new tokens */
    FILE *csv;
    int n_history;
};

/* Adds a request: the history, and n_new tokens that no earlier request had. A request for no token
 * saves its state. */
static int add(struct lab *b, int n_new, struct hcache_request ask, bool restore_first,
               struct seq **out, struct err *err)
{
    uint64_t vocab = (uint64_t)b->k.model->cfg.vocab_size;
    for (int i = 0; i < n_new; i++)
        b->tokens[b->n_history + i] = (int32_t)rng_below(&b->rng, vocab);
    ask.prompt = b->tokens;
    ask.n_prompt = b->n_history + n_new;
    ask.ignore_eos = true;
    struct request *q = request_create(&ask, ask.max_tokens);
    q->restore_first = restore_first;
    for (int l = 0; l < config_n_keeping(&b->k.model->cfg) && ask.max_tokens == 0; l++)
        q->save.kinds[l] = SAVE_HIDDEN | SAVE_KV;
    int rc = engine_add(b->k.engine, q, out, err);
    request_release(q);
    return rc;
}

static int fill_store(struct lab *b, struct err *err)
{
    const struct hcache_request ask = {.plan = "recompute"};
    struct seq *s = NULL;
    int rc = add(b, 1, ask, false, &s, err);
    if (rc == 0)
        rc = engine_run(b->k.engine, err);
    if (rc == 0)
        rc = saver_flush(b->k.saver, err);
    if (s != NULL)
        engine_remove(b->k.engine, s);
    return rc;
}

/* --- alone ------------------------------------------------------------------------------------ */

struct way {
    const char *name;
    int n;
    double *ttft_ms, *restore_ms, *predicted_ms, *bubble;
    char layers[PLAN_MAX_LAYERS + 1];
};

static int resume_once(struct lab *b, bool restore_first, struct way *w, struct err *err)
{
    const struct hcache_request ask = {.max_tokens = 1, .plan = b->a->plan};
    struct seq *s;
    int rc = add(b, b->a->n_new, ask, restore_first, &s, err);
    if (rc != 0)
        return rc;
    rc = engine_run(b->k.engine, err);
    const struct outcome *o = seq_outcome(s);
    if (rc == 0 && o->finish == FINISH_ERROR)
        rc = err_set(err, o->err.code, "%s", o->err.msg);
    if (rc == 0 && w != NULL) {
        w->ttft_ms[w->n] = o->r.timings.ttft_ms;
        w->restore_ms[w->n] = o->r.timings.restore_ms;
        w->predicted_ms[w->n] = o->plan.predicted_s * 1e3;
        w->bubble[w->n++] = o->restore.bubble;
        snprintf(w->layers, sizeof w->layers, "%s",
                 o->r.cached_tokens > 0 ? o->plan.method : "recomputed");
    }
    engine_remove(b->k.engine, s);
    return rc;
}

static void print_way(const struct lab *b, struct way *w)
{
    if (b->csv != NULL)
        fprintf(b->csv, "%d,%d,%.1f,%s,%s,%d,%.3f,%.3f,%.3f,%.4f,,,\n", b->n_history,
                b->a->n_new, (double)b->a->common.engine.o.throttle_bytes_per_s * 1e-6,
                w->name, w->layers, w->n, bench_median(w->predicted_ms, w->n),
                bench_median(w->ttft_ms, w->n), bench_median(w->restore_ms, w->n),
                bench_median(w->bubble, w->n));
    printf("%7d %6d  %-14s %-26.26s %10.1f %10.1f %10.1f %10.1f %8.3f\n", b->n_history,
           b->a->n_new, w->name, w->layers, bench_median(w->predicted_ms, w->n),
           bench_median(w->ttft_ms, w->n), bench_quantile(w->ttft_ms, w->n, 0),
           bench_median(w->restore_ms, w->n), bench_median(w->bubble, w->n));
}

static int run_alone(struct lab *b, struct err *err)
{
    int n = b->a->rounds;
    struct way ways[2] = {{.name = "restore first"}, {.name = "fused"}};
    double *mem = xcalloc((size_t)n * 8, sizeof *mem);
    for (int i = 0; i < 2; i++) {
        double *at = mem + (size_t)i * 4 * (size_t)n;
        ways[i].ttft_ms = at;
        ways[i].restore_ms = at + n;
        ways[i].predicted_ms = at + 2 * n;
        ways[i].bubble = at + 3 * n;
    }
    int rc = resume_once(b, true, NULL, err); /* measures the store and warms up */
    for (int i = 0; rc == 0 && i < 2 * n; i++) {
        int w = (i / 2 + i) % 2; /* in the order A B B A */
        rc = resume_once(b, w == 0, &ways[w], err);
    }
    if (rc == 0) {
        printf("%7s %6s  %-14s %-26s %10s %10s %10s %10s %8s\n", "history", "new",
               "prefill", "plan", "pred. ms", "TTFT ms", "best", "restore ms", "bubble");
        print_way(b, &ways[0]);
        print_way(b, &ways[1]);
        fflush(stdout);
    }
    free(mem);
    return rc;
}

/* --- beside decodes --------------------------------------------------------------------------- */

enum { MAX_STEPS = 100000, N_QUIET = 100 };

struct steps {
    double *ms; /* [MAX_STEPS] */
    int n;
};

static int timed_step(struct lab *b, struct steps *to, struct err *err)
{
    int n_active;
    int64_t t0 = clock_now_ns();
    int rc = engine_step(b->k.engine, &n_active, err);
    if (to->n < MAX_STEPS)
        to->ms[to->n++] = (double)(clock_now_ns() - t0) * 1e-6;
    return rc;
}

/* Runs one restore beside the decodes, and then as many steps without a restore. */
static int turn(struct lab *b, struct steps *beside, struct steps *quiet,
                double *restore_ms, struct err *err)
{
    const struct hcache_request ask = {.max_tokens = 1, .plan = b->a->plan};
    struct seq *s;
    int before = beside->n, rc = add(b, 1, ask, false, &s, err);
    while (rc == 0 && seq_outcome(s)->finish == FINISH_NONE)
        rc = timed_step(b, beside, err);
    if (rc == 0 && seq_outcome(s)->finish == FINISH_ERROR)
        rc = err_set(err, seq_outcome(s)->err.code, "%s", seq_outcome(s)->err.msg);
    *restore_ms = seq_outcome(s)->r.timings.restore_ms;
    engine_remove(b->k.engine, s);
    for (int n = beside->n - before + N_QUIET; rc == 0 && n > 0; n--)
        rc = timed_step(b, quiet, err);
    return rc;
}

static void print_steps(struct lab *b, const char *name, struct steps *s)
{
    if (b->csv != NULL)
        fprintf(b->csv, "%d,,%.1f,%s,,%d,,,,,%.3f,%.3f,%.3f\n", b->n_history,
                (double)b->a->common.engine.o.throttle_bytes_per_s * 1e-6, name, s->n,
                bench_quantile(s->ms, s->n, 0.5), bench_quantile(s->ms, s->n, 0.9),
                bench_quantile(s->ms, s->n, 0.99));
    printf("%-22s %8d %10.2f %10.2f %10.2f %10.2f\n", name, s->n,
           bench_quantile(s->ms, s->n, 0.5), bench_quantile(s->ms, s->n, 0.9),
           bench_quantile(s->ms, s->n, 0.99), bench_quantile(s->ms, s->n, 1));
}

static void print_beside(struct lab *b, struct steps *beside, struct steps *quiet,
                         double *restore_ms, int rounds)
{
    printf("\n%-22s %8s %10s %10s %10s %10s\n", "time between tokens", "steps", "p50 ms",
           "p90", "p99", "max");
    print_steps(b, "nothing to restore", quiet);
    print_steps(b, "beside a restore", beside);
    printf("ratio %41.3f %10.3f %10.3f\n",
           bench_quantile(beside->ms, beside->n, 0.5) /
               bench_quantile(quiet->ms, quiet->n, 0.5),
           bench_quantile(beside->ms, beside->n, 0.9) /
               bench_quantile(quiet->ms, quiet->n, 0.9),
           bench_quantile(beside->ms, beside->n, 0.99) /
               bench_quantile(quiet->ms, quiet->n, 0.99));
    printf("a restore took %.1f ms (median of %d)\n", bench_median(restore_ms, rounds),
           rounds);
}

static int run_beside(struct lab *b, struct err *err)
{
    struct seq *decodes[64] = {NULL};
    int n = b->a->decodes, rc = 0, rounds = b->a->rounds;
    struct steps quiet = {.ms = xcalloc(MAX_STEPS, sizeof(double))},
                 beside = {.ms = xcalloc(MAX_STEPS, sizeof(double))};
    double *restore_ms = xcalloc((size_t)rounds, sizeof *restore_ms);
    for (int i = 0; rc == 0 && i < n; i++) {
        const struct hcache_request ask = {.prompt = b->tokens + 100 * i % b->n_history,
                                           .n_prompt = 32,
                                           .max_tokens = b->k.model->max_ctx - 32,
                                           .ignore_eos = true,
                                           .plan = "recompute"};
        struct request *q = request_create(&ask, ask.max_tokens);
        rc = engine_add(b->k.engine, q, &decodes[i], err);
        request_release(q);
    }
    struct steps warm_up = {.ms = xcalloc(MAX_STEPS, sizeof(double))};
    for (int i = 0; rc == 0 && i < N_QUIET; i++)
        rc = timed_step(b, &warm_up, err);
    for (int i = 0; rc == 0 && i < rounds; i++)
        rc = turn(b, &beside, &quiet, &restore_ms[i], err);
    for (int i = 0; i < n; i++) {
        if (rc == 0 && seq_outcome(decodes[i])->finish != FINISH_NONE)
            rc = err_set(err, ERR_LIMIT, "the context is too short: fewer --rounds");
        if (decodes[i] != NULL)
            engine_remove(b->k.engine, decodes[i]);
    }
    if (rc == 0) {
        print_beside(b, &beside, &quiet, restore_ms, rounds);
    }
    free(warm_up.ms);
    free(quiet.ms);
    free(beside.ms);
    free(restore_ms);
    return rc;
}

/* --- running it ------------------------------------------------------------------------------- */

static int open_lab(struct lab *b, struct err *err)
{
    struct resume_args *a = b->a;
    b->n_history = a->history / STORE_CHUNK_TOKENS * STORE_CHUNK_TOKENS;
    int n = b->n_history + a->n_new + 2;
    struct stack_opts o = {.user = a->common.engine.o};
    o.user.max_context = n < 8192 ? 8192 : n;
    o.user.kv_tokens = (uint64_t)n + (uint64_t)a->decodes * 8192;
    o.user.max_sequences = a->decodes + 1;
    o.user.no_reuse = true;
    if (o.user.store_in_memory && a->common.engine.o.throttle_bytes_per_s > 0)
        return err_set(err, ERR_USAGE,
                       "a store in memory cannot be throttled: give a --store in a folder");
    int rc = stack_open(&o, &b->k, err);
    if (rc != 0)
        return rc;
    b->rng = (struct rng){.s = 7};
    b->tokens = xcalloc((size_t)n, sizeof *b->tokens);
    for (int i = 0; i < b->n_history; i++)
        b->tokens[i] = (int32_t)rng_below(&b->rng, (uint64_t)b->k.model->cfg.vocab_size);
    return fill_store(b, err);
}

static int open_csv(struct lab *b, struct err *err)
{
    b->csv = fopen(b->a->csv, "w");
    if (b->csv == NULL)
        return err_set(err, -errno, "%s: %s", b->a->csv, strerror(errno));
    fprintf(b->csv, "history,new,throttle_MBps,way,plan,n,predicted_ms,ttft_ms,restore_ms,"
                    "bubble,tbt_p50_ms,tbt_p90_ms,tbt_p99_ms\n");
    return 0;
}

int bench_resume(int argc, char **argv)
{
    struct resume_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct bench_place place;
    struct lab b = {.a = &a};
    int rc = bench_place_open(&place, &a.common.engine, &err);
    if (rc == 0 && a.csv != NULL)
        rc = open_csv(&b, &err);
    if (rc == 0)
        rc = open_lab(&b, &err);
    if (rc == 0)
        rc = run_alone(&b, &err);
    if (rc == 0 && a.decodes > 0)
        rc = run_beside(&b, &err);
    stack_close(&b.k);
    free(b.tokens);
    if (b.csv != NULL && fclose(b.csv) != 0 && rc == 0)
        rc = err_set(&err, -errno, "%s: %s", a.csv, strerror(errno));
    bench_place_close(&place);
    opt_end(parsed);
    return bench_end("resume", rc, &err);
}
