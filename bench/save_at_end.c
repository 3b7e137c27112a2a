/* save_at_end.c - see save_at_end.h. */
#include "bench/save_at_end.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "restore/save_policy.h"

enum arm { NONE, OVERLAPPED, AT_END, ARMS };

static const char *const names[ARMS] = {"none", "overlapped", "at-end"};

enum { MAX_SEQS = 64, MAX_ROUNDS = 200 };

struct jobs {
    const struct save_at_end *o;
    int32_t *prompts; /* [n_seqs][n_prompt] */
    int n_run;
    double ms[ARMS][MAX_ROUNDS];
    int n_shed[ARMS]; /* sequences that were not saved up to their ends */
};

/* Draws the prompts of all jobs. No two jobs share a prompt, so a job finds nothing in the
 * store. */
static void draw_prompts(struct jobs *j)
{
    const struct save_at_end *o = j->o;
    struct rng r = {.s = (uint64_t)++j->n_run};
    for (int64_t i = 0; i < (int64_t)o->n_seqs * o->n_prompt; i++)
        j->prompts[i] = (int32_t)rng_below(&r, (uint64_t)o->stack->model->cfg.vocab_size);
}

static int add_all(struct jobs *j, enum arm arm, struct seq **seqs, struct err *err)
{
    const struct save_at_end *o = j->o;
    int rc = 0;
    for (int i = 0; rc == 0 && i < o->n_seqs; i++) {
        const struct hcache_request ask = {.prompt = j->prompts +
                                                     (size_t)i * (size_t)o->n_prompt,
                                           .n_prompt = o->n_prompt,
                                           .max_tokens = o->n_answer,
                                           .ignore_eos = true,
                                           .plan = "recompute"};
        struct request *q = request_create(&ask, ask.max_tokens);
        rc = save_policy_make(&q->save, arm == NONE ? "none" : o->save, o->stack->model,
                              NULL, o->n_prompt, err);
        if (rc == 0)
            rc = engine_add(o->stack->engine, q, &seqs[i], err);
        request_release(q);
    }
    return rc;
}

/* Returns the number of sequences whose saving ended early since the stack was opened. */
static int count_shed(const struct stack *k)
{
    struct saver_stats st;
    int n = 0;
    saver_stats(k->saver, &st);
    for (int e = SAVE_GOES_ON + 1; e < SAVE_ENDS; e++)
        n += (int)st.n_ended[e];
    return n;
}

static int run_job(struct jobs *j, enum arm arm, double *ms, struct err *err)
{
    struct stack *k = j->o->stack;
    struct seq *seqs[MAX_SEQS] = {NULL};
    int n_shed = count_shed(k);
    draw_prompts(j);
    int64_t t0 = clock_now_ns();
    if (arm == AT_END)
        saver_hold_back(k->saver);
    int rc = add_all(j, arm, seqs, err);
    if (rc == 0)
        rc = engine_run(k->engine, err);
    int flushed = saver_flush(k->saver, rc == 0 ? err : NULL);
    rc = rc == 0 ? flushed : rc;
    *ms = (double)(clock_now_ns() - t0) * 1e-6;
    j->n_shed[arm] += count_shed(k) - n_shed;
    for (int i = 0; i < j->o->n_seqs; i++)
        if (seqs[i] != NULL)
            engine_remove(k->engine, seqs[i]);
    return rc;
}

static void print_rows(struct jobs *j)
{
    const struct save_at_end *o = j->o;
    double ms[ARMS];
    for (int a = 0; a < ARMS; a++)
        ms[a] = bench_median(j->ms[a], o->n_rounds);
    if (o->is_first)
        printf("%5s %7s %7s  %-10s %9s %11s %10s %5s\n", "batch", "prompt", "answer",
               "saved", "job ms", "over none %", "of at-end", "shed");
    if (o->is_first && o->csv != NULL)
        fputs(SAVE_AT_END_CSV_HEAD, o->csv);
    for (int a = 0; a < ARMS; a++) {
        double over = (ms[a] / ms[NONE] - 1) * 100, of = ms[a] / ms[AT_END];
        printf("%5d %7d %7d  %-10s %9.1f %+11.1f %10.3f %5d\n", o->n_seqs, o->n_prompt,
               o->n_answer, names[a], ms[a], over, of, j->n_shed[a]);
        if (o->csv != NULL)
            fprintf(o->csv, "%d,%d,%d,%s,%d,%.3f,%.2f,%.4f,%d\n", o->n_seqs, o->n_prompt,
                    o->n_answer, names[a], o->n_rounds, ms[a], over, of, j->n_shed[a]);
    }
    fflush(NULL);
}

int save_at_end_run(const struct save_at_end *o, struct err *err)
{
    struct jobs *j = xcalloc(1, sizeof *j);
    double warm_up_ms;
    j->o = o;
    j->prompts = xcalloc((size_t)o->n_seqs * (size_t)o->n_prompt, sizeof *j->prompts);
    int rc = run_job(j, OVERLAPPED, &warm_up_ms, err);
    memset(j->n_shed, 0, sizeof j->n_shed);
    for (int round = 0; rc == 0 && round < o->n_rounds; round++)
        for (int i = 0; rc == 0 && i < ARMS; i++) {
            enum arm arm = (enum arm)((i + round) % ARMS);
            rc = run_job(j, arm, &j->ms[arm][round], err);
        }
    if (rc == 0)
        print_rows(j);
    free(j->prompts);
    free(j);
    return rc;
}
