/* restore_sweep.c - see restore_sweep.h.
 *
 * A case runs its methods in turn for some rounds, and each round begins with another method: auto,
 * every single method, auto again. The two medians of auto are an A/A measurement, whose difference
 * is the noise. If auto's plan is that of a single method (all layers K), auto's runs count for
 * that method, too, because they did the same. A single method is not run if its predicted time is
 * more than SLOWER times that of the fastest single method. Such a method could be the best only if
 * the prediction were off by that factor, and the sweep reports how far off predictions are.
 *
 * The platform is corrected after every restore, as the engine does. Other work on the machine
 * begins before a case and continues until its end. If the other work differs from that of the
 * previous case, the case begins with some restores that only teach, as on a server under a lasting
 * load.
 *
 * The regret of a case is the time that auto took beyond the best method in hindsight (auto
 * included). It is 0 if auto did the same as that method.
 *
 * Each figure is given by the medians of a case's rounds and by their means. Beside other work a
 * short restore either finds a free processor and disk, or waits for milliseconds. The median of
 * such times says which was more frequent; the mean says how long users wait. */
#include "bench/restore_sweep.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "bench/bench.h"

#define SLOWER 1.6
/* Share that auto may lose, beyond the noise, to the best single method. */
#define TOLERANCE 0.05
/* Throttles are drawn from this speed upwards, in bytes per second. One case in five with a file
 * store has no throttle. */
#define SLOWEST 50e6
#define FASTEST 2e9
/* A short case has more rounds, until it has taken this many seconds. Beside other work a restore
 * of a millisecond takes 1 to 7, so that a median of 100 is uncertain by 6 %. */
#define CASE_S 1.0

enum { MAX_ROUNDS = 1024, N_SINGLES = 3, MAX_CASES = 1000, WARM = 4, WORST = 10 };

static const char *const singles[N_SINGLES] = {"kv", "hidden", "recompute"}; /* K, H, R */

struct sweep_case {
    int n_chunks;
    double throttle; /* bytes per second; 0: no throttle */
    struct lab *lab;
    enum background load;
    uint64_t damage; /* seed of hidden records; 0: no record is hidden */
};

struct timing {
    double ms[MAX_ROUNDS], median_ms, mean_ms;
    int n;
};

/* Sums of the lanes' times over auto's restores, in ms. */
struct lane_sums {
    double predicted_io, predicted_compute, io, compute, wait;
};

struct outcome_of {
    struct plan plan;
    int n_splits; /* number of splits of the layers of auto's last plan */
    struct lane_sums lanes;
    double noise;
    struct timing predicted, first, second;
    struct timing all; /* both runs of auto together */
    struct timing single[N_SINGLES], single_predicted[N_SINGLES];
    int best;    /* index of the fastest single method; -1: none was run */
    bool is_one; /* whether all of auto's plans were that of the best single method */
    int n_same[N_SINGLES];
};

static enum background draw_load(const struct sweep_opts *o, struct rng *r)
{
    int n = 0;
    enum background of[BACKGROUNDS] = {BACKGROUND_NONE};
    for (int b = 0; b < BACKGROUNDS; b++)
        if (o->loads >> b & 1)
            of[n++] = (enum background)b;
    return n > 0 ? of[rng_below(r, (uint64_t)n)] : BACKGROUND_NONE;
}

/* Draws case i. New kinds of values must be drawn after the older kinds, so that a seed keeps its
 * cases. */
static struct sweep_case draw(const struct sweep_opts *o, int i, struct lab *file,
                              struct lab *dram)
{
    uint64_t seed = o->seed;
    struct rng r = {.s = seed * 1000003u + (uint64_t)i};
    (void)rng_u64(&r);
    double most = log2(file->max_chunks);
    struct sweep_case c = {.n_chunks = (int)exp2(most * rng_unit(&r) + 1e-9)};
    bool in_dram = rng_below(&r, 4) == 0, unthrottled = rng_below(&r, 5) == 0;
    double throttle = SLOWEST * pow(FASTEST / SLOWEST, rng_unit(&r));
    c.lab = in_dram ? dram : file;
    c.throttle = in_dram || unthrottled ? 0 : throttle;
    c.load = draw_load(o, &r);
    if (o->damages && rng_below(&r, 4) == 0)
        c.damage = 1 + rng_below(&r, 1u << 30);
    return c;
}

/* Runs one restore. It follows a search for auto's plan, even if another plan is then used, so that
 * the threads have always been idle equally long. */
static int run_once(const struct sweep_case *c, const char *method, struct timing *t,
                    struct plan *plan, struct restore_result *r, struct err *err)
{
    struct plan_request req;
    int rc = lab_plan(c->lab, method, c->n_chunks, &req, plan, err);
    if (rc == 0 && strcmp(method, "auto") != 0) {
        struct plan_request unused;
        struct plan ignored;
        rc = lab_plan(c->lab, "auto", c->n_chunks, &unused, &ignored, err);
    }
    if (rc == 0)
        rc = lab_restore(c->lab, c->n_chunks, plan, r, err);
    if (rc != 0)
        return rc;
    lab_learn(c->lab, &req, plan, r);
    t->ms[t->n++] = (double)r->total_ns * 1e-6;
    return 0;
}

/* Chooses the single methods that could be the fastest. *round_s gets the predicted seconds of a
 * round of these methods and auto. */
static int choose_singles(const struct sweep_case *c, bool *run, double *round_s,
                          struct err *err)
{
    struct plan_request req;
    struct plan p;
    double s[N_SINGLES], least = INFINITY;
    for (int k = 0; k < N_SINGLES; k++) {
        int rc = lab_plan(c->lab, singles[k], c->n_chunks, &req, &p, err);
        if (rc != 0)
            return rc;
        s[k] = p.restore_s;
        least = fmin(least, s[k]);
    }
    *round_s = 2 * least;
    for (int k = 0; k < N_SINGLES; k++) {
        run[k] = s[k] <= SLOWER * least;
        *round_s += run[k] ? s[k] : 0;
    }
    return 0;
}

/* Adds the times of the lanes. The lab has the layers of auto's plan, because auto was the last
 * method. */
static void add_lanes(const struct lab *lab, struct outcome_of *out,
                      const struct restore_result *r)
{
    struct lane_sums *s = &out->lanes;
    out->n_splits = 0;
    for (int i = 0; i < out->plan.n_layers; i++)
        out->n_splits += out->plan.method[i] == 'H'   ? lab->layer[i].h_splits
                         : out->plan.method[i] == 'K' ? lab->layer[i].kv_splits
                                                      : 0;
    s->predicted_io += out->plan.io_busy_s * 1e3;
    s->predicted_compute += out->plan.comp_busy_s * 1e3;
    s->io += (double)r->io_ns * 1e-6;
    s->compute += (double)r->compute_ns * 1e-6;
    s->wait += (double)r->wait_ns * 1e-6;
}

static int run_auto(const struct sweep_case *c, struct outcome_of *out, struct timing *t,
                    struct err *err)
{
    struct restore_result r;
    int rc = run_once(c, "auto", t, &out->plan, &r, err);
    if (rc == 0)
        add_lanes(c->lab, out, &r);
    for (int k = 0; rc == 0 && k < N_SINGLES; k++)
        out->n_same[k] += strspn(out->plan.method, (char[]){"KHR"[k], 0}) ==
                          (size_t)out->plan.n_layers;
    if (rc == 0 && t == &out->first)
        out->predicted.ms[out->predicted.n++] = out->plan.restore_s * 1e3;
    return rc;
}

/* Runs one round: the singles are 0 .. N_SINGLES - 1, with auto before and after them. */
static int run_round(const struct sweep_case *c, const bool *run, int round,
                     struct outcome_of *out, struct err *err)
{
    enum { TURNS = N_SINGLES + 2 };
    struct plan plan;
    struct restore_result unused;
    int rc = 0;
    for (int i = 0; rc == 0 && i < TURNS; i++) {
        int k = (i + round) % TURNS - 1;
        if (k < 0 || k == N_SINGLES)
            rc = run_auto(c, out, k < 0 ? &out->first : &out->second, err);
        else if (run[k]) {
            struct timing *predicted = &out->single_predicted[k];
            rc = run_once(c, singles[k], &out->single[k], &plan, &unused, err);
            predicted->ms[predicted->n++] = plan.restore_s * 1e3;
        }
    }
    return rc;
}

static int run_rounds(const struct sweep_opts *o, const struct sweep_case *c,
                      struct outcome_of *out, struct err *err)
{
    bool run[N_SINGLES];
    double round_s = 0;
    struct plan ignored;
    struct restore_result unused;
    struct timing warm = {.n = 0};
    int rc = choose_singles(c, run, &round_s, err);
    int rounds = (int)fmin(MAX_ROUNDS / 2, fmax(o->rounds, CASE_S / round_s));
    /* The first restores after a change of throttle, tier or load are not counted. */
    for (int i = 0; rc == 0 && i < ((o->loads & ~1u) != 0 ? WARM : 1); i++)
        rc = run_once(c, "auto", &warm, &ignored, &unused, err);
    for (int i = 0; rc == 0 && i < rounds; i++)
        rc = run_round(c, run, i, out, err);
    return rc;
}

static int run_case(const struct sweep_opts *o, const struct sweep_case *c,
                    struct outcome_of *out, struct err *err)
{
    *err = (struct err){0};
    struct background_run *load = background_start(c->load, o->io, o->folder, err);
    if (err->code != 0)
        return err->code;
    lab_throttle(c->lab, c->throttle);
    lab_damage(c->lab, c->damage);
    int rc = run_rounds(o, c, out, err);
    lab_damage(c->lab, 0);
    background_stop(load);
    return rc;
}

static void sum_up(struct timing *t)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++)
        sum += t->ms[i];
    t->mean_ms = t->n > 0 ? sum / t->n : INFINITY;
    t->median_ms = t->n > 0 ? bench_median(t->ms, t->n) : INFINITY;
}

static void judge(struct outcome_of *x)
{
    x->all = x->first;
    for (int i = 0; i < x->second.n && x->all.n < MAX_ROUNDS; i++)
        x->all.ms[x->all.n++] = x->second.ms[i];
    sum_up(&x->predicted);
    sum_up(&x->first);
    sum_up(&x->second);
    sum_up(&x->all);
    x->noise = fabs(x->first.median_ms - x->second.median_ms) /
               fmin(x->first.median_ms, x->second.median_ms);
    x->best = -1;
    for (int k = 0; k < N_SINGLES; k++) {
        struct timing *t = &x->single[k];
        sum_up(t);
        sum_up(&x->single_predicted[k]);
        if (t->n > 0 && (x->best < 0 || t->median_ms < x->single[x->best].median_ms))
            x->best = k;
    }
    x->is_one = x->n_same[x->best] == x->all.n;
    if (x->is_one)
        x->noise = fmax(x->noise,
                        fabs(x->all.median_ms / x->single[x->best].median_ms - 1));
}

/* Returns the regret by means; 0 if auto did the same as the best method. */
static double mean_regret(const struct outcome_of *x)
{
    int best = 0;
    for (int k = 1; k < N_SINGLES; k++)
        if (x->single[k].mean_ms < x->single[best].mean_ms)
            best = k;
    return x->n_same[best] == x->all.n
               ? 0
               : fmax(0, x->all.mean_ms / x->single[best].mean_ms - 1);
}

static bool is_broken(const struct outcome_of *x)
{
    double best = x->single[x->best].median_ms;
    return x->all.median_ms > best * (1 + TOLERANCE + x->noise);
}

static void print_case(FILE *csv, int i, const struct sweep_case *c,
                       const struct outcome_of *x)
{
    const char *store = c->lab->k.io == NULL ? "dram" : "file";
    double best = x->single[x->best].median_ms;
    printf("%4d  %-4s %6d %9.1f  %-14.14s %9.2f %9.2f %6.2f %6.1f %%  %-9s %9.2f %6.3f  "
           "%s%s%s\n",
           i, store, c->n_chunks * STORE_CHUNK_TOKENS, c->throttle * 1e-6, x->plan.method,
           x->predicted.median_ms, x->all.median_ms,
           x->predicted.median_ms / x->all.median_ms, x->noise * 100, singles[x->best],
           best, x->all.median_ms / best,
           c->load == BACKGROUND_NONE ? "" : background_name(c->load),
           c->damage != 0 ? " damaged" : "", is_broken(x) ? "  SLOWER" : "");
    fflush(stdout);
    if (csv == NULL)
        return;
    fprintf(csv, "%d,%s,%d,%.1f,%s,%.3f,%.3f,%.4f", i, store,
            c->n_chunks * STORE_CHUNK_TOKENS, c->throttle * 1e-6, x->plan.method,
            x->predicted.median_ms, x->all.median_ms, x->noise);
    for (int k = 0; k < N_SINGLES; k++)
        if (x->single[k].n > 0)
            fprintf(csv, ",%.3f", x->single[k].median_ms);
        else
            fprintf(csv, ",");
    double n = x->all.n;
    fprintf(csv, ",%s,%.4f,%d,%d,%s,%d,%.3f,%.3f,%.4f,%d,%.3f,%.3f,%.3f,%.3f,%.3f",
            singles[x->best], x->all.median_ms / best, x->is_one, is_broken(x),
            background_name(c->load), c->damage != 0, x->predicted.mean_ms, x->all.mean_ms,
            mean_regret(x), x->n_splits, x->lanes.predicted_io / n, x->lanes.io / n,
            x->lanes.predicted_compute / n, x->lanes.compute / n, x->lanes.wait / n);
    for (int k = 0; k < N_SINGLES; k++)
        if (x->single[k].n > 0)
            fprintf(csv, ",%.3f", x->single_predicted[k].median_ms);
        else
            fprintf(csv, ",");
    fprintf(csv, "\n");
    fflush(csv);
}

static void print_head(const struct sweep_opts *o)
{
    printf("%4s  %-4s %6s %9s  %-14s %9s %9s %6s %8s  %-9s %9s %6s\n", "case", "", "tokens",
           "MB/s", "auto", "predicted", "measured", "ratio", "A/A", "best", "ms", "auto/");
    if (o->csv != NULL)
        fprintf(o->csv,
                "case,store,tokens,throttle_MBps,plan,predicted_ms,auto_ms,aa_noise,"
                "kv_ms,hidden_ms,recompute_ms,best_single,auto_over_best,same_plan,broken,"
                "load,damaged,predicted_mean_ms,auto_mean_ms,mean_regret,splits,predicted_"
                "io_ms,"
                "io_ms,predicted_compute_ms,compute_ms,wait_ms,kv_predicted_ms,"
                "hidden_predicted_ms,recompute_predicted_ms\n");
}

/* Totals over all cases. */
struct totals {
    double error[2][MAX_CASES], regret[2][MAX_CASES]; /* [0] by medians, [1] by means */
    double ratio[MAX_CASES], noise[MAX_CASES];
    enum background load[MAX_CASES];
    /* whether auto was slower than recomputing by more than TOLERANCE */
    bool is_slower[MAX_CASES];
    int n, n_broken;
    double worst;
    /* The cases with the largest errors, in descending order. */
    struct {
        double error;
        char line[256];
    } missed[WORST];
    /* sums over all cases; best_ms is of the fastest of auto and the single methods */
    double auto_ms, best_ms;
};

/* Describes a case with the means of auto's lanes, in ms. */
static void describe(const struct sweep_case *c, int i, const struct outcome_of *x,
                     char *line, size_t n_line)
{
    const struct lane_sums *s = &x->lanes;
    double n = x->all.n;
    snprintf(
        line, n_line,
        "%4d  %-4s %6d %7.0f  r%d,h%d,k%d %4d  %8.2f %8.2f  %7.2f %7.2f  %7.2f %7.2f %7.2f "
        "%4.0f %%  %s%s",
        i, c->lab->k.io == NULL ? "dram" : "file", c->n_chunks * STORE_CHUNK_TOKENS,
        c->throttle * 1e-6, x->plan.n_r, x->plan.n_h, x->plan.n_k, x->n_splits,
        x->predicted.median_ms, x->all.median_ms, s->predicted_io / n, s->io / n,
        s->predicted_compute / n, s->compute / n, s->wait / n, 100 * x->noise,
        c->load == BACKGROUND_NONE ? "" : background_name(c->load),
        c->damage != 0 ? " damaged" : "");
}

/* Puts the case into the list of the largest errors if its error is large enough. */
static void note_miss(struct totals *t, const struct sweep_case *c, int i,
                      const struct outcome_of *x, double error)
{
    int at = WORST;
    while (at > 0 && error > t->missed[at - 1].error)
        at--;
    if (at == WORST)
        return;
    memmove(&t->missed[at + 1], &t->missed[at],
            (size_t)(WORST - 1 - at) * sizeof t->missed[0]);
    t->missed[at].error = error;
    describe(c, i, x, t->missed[at].line, sizeof t->missed[at].line);
}

static void print_misses(const struct totals *t)
{
    printf("\nlargest errors; times in ms: predicted and measured, reads, compute, waiting "
           "for "
           "reads\n%4s  %-4s %6s %7s  plan, splits\n",
           "case", "", "tokens", "MB/s");
    for (int i = 0; i < WORST && t->missed[i].error > 0; i++)
        printf("%s\n", t->missed[i].line);
}

static void count_case(struct totals *t, int i, const struct sweep_case *c,
                       const struct outcome_of *x)
{
    double best = x->single[x->best].median_ms;
    const struct timing *recompute = &x->single[N_SINGLES - 1];
    t->ratio[t->n] = x->all.median_ms / best;
    t->regret[0][t->n] = x->is_one ? 0 : fmax(0, x->all.median_ms / best - 1);
    t->regret[1][t->n] = mean_regret(x);
    t->error[0][t->n] = fabs(x->predicted.median_ms / x->all.median_ms - 1);
    t->error[1][t->n] = fabs(x->predicted.mean_ms / x->all.mean_ms - 1);
    note_miss(t, c, i, x, t->error[0][t->n]);
    t->noise[t->n] = x->noise;
    t->auto_ms += x->all.median_ms;
    t->best_ms += x->is_one ? x->all.median_ms : fmin(x->all.median_ms, best);
    t->load[t->n] = c->load;
    t->is_slower[t->n] = recompute->n > 0 &&
                         x->all.median_ms > recompute->median_ms * (1 + TOLERANCE);
    t->worst = fmax(t->worst, t->ratio[t->n]);
    t->n_broken += is_broken(x);
    t->n++;
}

/* Prints a row of the summary: of the cases with one kind of other work, or of all cases
 * (BACKGROUNDS); by medians or by means. bench_median sorts the arrays. */
static void print_gates(const struct totals *t, enum background load, bool by_means)
{
    static double error[MAX_CASES], regret[MAX_CASES], noise[MAX_CASES];
    double sum = 0;
    int n = 0, n_slower = 0;
    for (int i = 0; i < t->n; i++) {
        if (load != BACKGROUNDS && t->load[i] != load)
            continue;
        error[n] = t->error[by_means][i];
        noise[n] = t->noise[i];
        regret[n] = t->regret[by_means][i];
        sum += regret[n++];
        n_slower += t->is_slower[i];
    }
    if (n == 0)
        return;
    double median = bench_median(error, n);
    (void)bench_median(regret, n);
    (void)bench_median(noise, n);
    int at = n * 95 / 100;
    printf("%-8s %6d %10.1f %% %11.1f %% %8.1f %% %10.2f %% %9.2f %% %10d\n",
           by_means              ? "by means"
           : load == BACKGROUNDS ? "all"
                                 : background_name(load),
           n, 100 * noise[at], 100 * median, 100 * error[at], 100 * sum / n,
           100 * regret[at], n_slower);
}

static void print_totals(struct totals *t)
{
    double worst = t->worst;
    print_misses(t);
    printf("\n%-8s %6s %12s %13s %10s %12s %11s %10s\n", "load", "cases", "A/A: p95",
           "error: median", "p95", "regret: mean", "p95", "> recompute");
    for (int b = 0; b <= BACKGROUNDS; b++)
        print_gates(t, (enum background)b, false);
    print_gates(t, BACKGROUNDS, true);
    printf("goals %33s %10s %12s %11s %10s\n", "10 %", "25 %", "2 %", "5 %", "0");
    printf(
        "\n%d cases: in %d auto was slower than the best single method by more than 5 %% "
        "beyond "
        "the A/A noise\n",
        t->n, t->n_broken);
    printf("auto over the best single method: median %.3f, worst %.3f\n",
           bench_median(t->ratio, t->n), worst);
    printf("all restores together: %.0f ms, %.1f %% above the best methods\n", t->auto_ms,
           100 * (t->auto_ms / t->best_ms - 1));
    printf("|predicted / measured - 1|: median %.1f %%",
           100 * bench_median(t->error[0], t->n));
    printf(", 90th percentile %.1f %%\n", 100 * t->error[0][t->n * 9 / 10]);
}

int sweep_run(const struct sweep_opts *o, struct lab *file, struct lab *dram, int *n_broken,
              struct err *err)
{
    static struct totals t;
    int rc = 0;
    t = (struct totals){.n = 0};
    if (o->n_cases > MAX_CASES || o->rounds > MAX_ROUNDS / 2)
        return err_set(err, ERR_USAGE, "--sweep: at most %d cases of %d rounds", MAX_CASES,
                       MAX_ROUNDS / 2);
    print_head(o);
    for (int i = o->skip; rc == 0 && i < o->skip + o->n_cases; i++) {
        struct sweep_case c = draw(o, i, file, dram);
        struct outcome_of x = {.best = -1};
        rc = run_case(o, &c, &x, err);
        if (rc != 0)
            break;
        judge(&x);
        print_case(o->csv, i, &c, &x);
        count_case(&t, i, &c, &x);
    }
    *n_broken = t.n_broken;
    if (t.n > 0)
        print_totals(&t);
    return rc;
}
