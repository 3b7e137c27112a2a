/* plan_branch.c - which layers by which method where layers differ: records that only some
 * layers have, sliding windows, tiers.
 *
 * For each length r of the recomputed prefix, every other layer has at most two options (H,
 * K).
 * 1. A good plan first: of the layers with a real choice, as many are moved from the option
 * that computes less to the one that reads less as it takes for the lanes to balance, best
 * exchange rate first (the linear relaxation, rounded both ways); then single changes while
 * they help.
 * 2. Then depth-first over the options, cut by lower bounds.  While an assignment runs for
 * T seconds, u * reads + v * compute <= T * D(u, v) for any weights, where D is the most
 * that a second of both lanes can do; the bound is the best of a few (u, v).  Layers with
 * equal descriptors are tried in one order only (not with fused prefill: there positions
 * matter).
 * 3. A budget of steps keeps it near a millisecond; `exact` says whether the search was
 * complete. Up to about 12 layers it always is.
 *
 * Leaves are scheduled by the order of plan_order.c and timed by the pipeline simulation.
 */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "policy/plan_parts.h"

enum {
    N_WEIGHTS = 9,
    /* Steps of about 20 ns, chosen for 1 ms at 100 layers; leaf_steps says what a leaf
       costs. */
    STEPS_MAX = 30000,
};

struct option {
    double a, b; /* read, compute */
    int16_t layer;
    char method;
};

struct branch {
    struct search *s;
    const struct plan_request *q;
    int n;
    bool fused,
        both[PLAN_MAX_LAYERS]; /* both[i]: layer i has two options, neither better in all */
    char only[PLAN_MAX_LAYERS]; /* otherwise: its better option, or 0 */
    int n_by_rank, n_by_rate;
    struct option by_rank[2 * PLAN_MAX_LAYERS]; /* in Johnson's order */
    int16_t by_rate[PLAN_MAX_LAYERS];  /* layers with a choice, most read saved per compute
                                          first */
    int16_t by_class[PLAN_MAX_LAYERS]; /* equal descriptors side by side */
    double u[N_WEIGHTS], v[N_WEIGHTS], most[N_WEIGHTS]; /* D(u, v) */
    double end_s;
    long steps;
    /* of the current r */
    int r, n_seq;
    int16_t seq[PLAN_MAX_LAYERS];
    bool same[PLAN_MAX_LAYERS]; /* seq[i] and seq[i - 1] are interchangeable */
    double rest[N_WEIGHTS][PLAN_MAX_LAYERS + 1]; /* least weighted work of seq[i..] */
    double rest_bytes[PLAN_MAX_LAYERS + 1];
    double tail_s, head_idle_s;
    char method[PLAN_MAX_LAYERS + 1];
};

static struct option option_of(const struct branch *b, int layer, char method)
{
    struct pipe_job j = plan_job(b->q, layer, method, 0);
    return (struct option){j.io_s, j.comp_s, (int16_t)layer, method};
}

static double bytes_of(const struct branch *b, int layer, char method)
{
    return plan_layer_bytes(&b->q->layer[layer], method);
}

/* ---- preparation ---- */

static void rank_option(struct branch *b, struct option o)
{
    double fa = b->s->io_f, fb = b->s->comp_f;
    int at = b->n_by_rank++;
    for (; at > 0; at--) {
        const struct option *p = &b->by_rank[at - 1];
        if (!johnson_before(o.a * fa, o.b * fb, p->a * fa, p->b * fb))
            break;
        b->by_rank[at] = *p;
    }
    b->by_rank[at] = o;
}

/* With a budget on bytes even an option that is worse in both times may be wanted. */
static bool dominates(const struct branch *b, struct option x, struct option y)
{
    if (b->q->budget_bytes_per_token > 0 &&
        bytes_of(b, x.layer, x.method) > bytes_of(b, y.layer, y.method))
        return false;
    return x.a <= y.a && x.b <= y.b;
}

static void prepare_layer(struct branch *b, int i)
{
    bool can_h = search_allows(b->s, i, 'H'), can_k = search_allows(b->s, i, 'K');
    struct option h = {0}, k = {0};
    if (can_h)
        h = option_of(b, i, 'H');
    if (can_k)
        k = option_of(b, i, 'K');
    if (can_h && can_k && dominates(b, h, k))
        can_k = false;
    else if (can_h && can_k && dominates(b, k, h))
        can_h = false;
    b->both[i] = can_h && can_k;
    b->only[i] = can_h ? (can_k ? 0 : 'H') : (can_k ? 'K' : 0);
    if (can_h)
        rank_option(b, h);
    if (can_k)
        rank_option(b, k);
}

/* The option that reads less, of a layer with a choice. */
static char reads_less(const struct branch *b, int i)
{
    return option_of(b, i, 'H').a < option_of(b, i, 'K').a ? 'H' : 'K';
}

static char other_option(char method)
{
    return method == 'H' ? 'K' : 'H';
}

static double rate_of(const struct branch *b, int i)
{
    char m = reads_less(b, i);
    struct option x = option_of(b, i, m), y = option_of(b, i, other_option(m));
    return x.b > y.b ? (y.a - x.a) / (x.b - y.b) : INFINITY;
}

static void prepare_rates(struct branch *b)
{
    double rate[PLAN_MAX_LAYERS];
    for (int i = 0; i < b->n; i++) {
        if (!b->both[i])
            continue;
        double mine = rate_of(b, i);
        int at = b->n_by_rate++;
        for (; at > 0 && mine > rate[at - 1]; at--) {
            rate[at] = rate[at - 1];
            b->by_rate[at] = b->by_rate[at - 1];
        }
        rate[at] = mine;
        b->by_rate[at] = (int16_t)i;
    }
}

static bool interchangeable(const struct branch *b, int i, int j)
{
    if (b->fused || b->both[i] != b->both[j] || b->only[i] != b->only[j])
        return false;
    for (const char *m = "HK"; *m; m++) {
        if (!b->both[i] && b->only[i] != *m)
            continue;
        struct option x = option_of(b, i, *m), y = option_of(b, j, *m);
        if (x.a != y.a || x.b != y.b || bytes_of(b, i, *m) != bytes_of(b, j, *m))
            return false;
    }
    return true;
}

static void prepare_classes(struct branch *b)
{
    int n = 0;
    bool placed[PLAN_MAX_LAYERS] = {false};
    for (int i = 0; i < b->n; i++) {
        if (placed[i])
            continue;
        b->by_class[n++] = (int16_t)i;
        for (int j = i + 1; !b->fused && j < b->n; j++)
            if (!placed[j] && interchangeable(b, i, j)) {
                placed[j] = true;
                b->by_class[n++] = (int16_t)j;
            }
    }
}

static void prepare_weights(struct branch *b)
{
    for (int w = 0; w < N_WEIGHTS; w++) {
        b->u[w] = (double)w / (N_WEIGHTS - 1);
        b->v[w] = 1 - b->u[w];
        b->most[w] = fmax(fmax(b->u[w], b->v[w]),
                          b->u[w] / b->s->io_f + b->v[w] / b->s->comp_f);
    }
}

/* ---- bounds ---- */

static double recompute_s(const struct branch *b, int r)
{
    double sum = 0;
    for (int i = 0; i < r; i++)
        sum += plan_recompute_s(b->q, i, r);
    return sum;
}

static double least(const struct branch *b, int i, double u, double v)
{
    double best = INFINITY;
    for (const char *m = "HK"; *m; m++)
        if (b->both[i] || b->only[i] == *m) {
            struct option o = option_of(b, i, *m);
            best = fmin(best, u * o.a + v * o.b);
        }
    return best;
}

static void begin_r(struct branch *b, int r)
{
    b->r = r;
    b->n_seq = 0;
    for (int i = 0; i < b->n; i++) {
        int l = b->by_class[i];
        if (l < r)
            continue;
        b->same[b->n_seq] = b->n_seq > 0 && interchangeable(b, b->seq[b->n_seq - 1], l);
        b->seq[b->n_seq++] = (int16_t)l;
    }
    memset(b->method, 'R', (size_t)r);
    b->method[b->n] = 0;
    double min_io = INFINITY;
    b->tail_s = INFINITY;
    for (int w = 0; w < N_WEIGHTS; w++)
        b->rest[w][b->n_seq] = 0;
    b->rest_bytes[b->n_seq] = 0;
    for (int i = b->n_seq - 1; i >= 0; i--) {
        int l = b->seq[i];
        for (int w = 0; w < N_WEIGHTS; w++)
            b->rest[w][i] = b->rest[w][i + 1] + least(b, l, b->u[w], b->v[w]);
        double bytes = INFINITY;
        for (const char *m = "HK"; *m; m++)
            if (b->both[l] || b->only[l] == *m)
                bytes = fmin(bytes, bytes_of(b, l, *m));
        b->rest_bytes[i] = b->rest_bytes[i + 1] + bytes;
        min_io = fmin(min_io, least(b, l, 1, 0));
        b->tail_s = fmin(b->tail_s, least(b, l, 0, 1));
    }
    /* Compute waits for the first read, and follows the last one. */
    bool all_read = b->n_seq > 0 && min_io > 0;
    b->head_idle_s = all_read && r == 0 ? min_io + b->q->io_latency_s : 0;
    b->tail_s = all_read ? b->tail_s + b->q->io_latency_s : 0;
    if (all_read && b->fused)
        b->tail_s += b->q->prefill_s[b->n - 1];
}

static double bound_at(const struct branch *b, int i, double io_s, double comp_s)
{
    double best = 0;
    for (int w = 0; w < N_WEIGHTS; w++) {
        double u = b->u[w], v = b->v[w], most = b->most[w];
        double work = u * io_s + v * comp_s + b->rest[w][i] + b->tail_s * (most - v) +
                      b->head_idle_s * (most - u);
        best = fmax(best, work / most);
    }
    return best + b->end_s;
}

/* ---- candidates ---- */

/* One pass over the jobs; composites are slower, and the event simulation slower still. */
static long leaf_steps(const struct branch *b)
{
    bool overlap = b->s->io_f > 1 || b->s->comp_f > 1;
    return 1 + b->n / 8 + (b->fused ? b->n / 2 : 0) + (overlap ? b->n : 0);
}

static void offer(struct branch *b, const char *method)
{
    const struct plan_request *q = b->q;
    struct pipe_job job[PLAN_MAX_LAYERS];
    struct pipe_load load = plan_load_empty(q);
    int n = 0;
    double work = 0, bytes = 0;
    if (b->fused) {
        n = plan_jobs_ordered(q, method, job);
    } else {
        int r = plan_prefix_r(method);
        for (int i = 0; i < r; i++)
            job[n++] = plan_job(q, i, 'R', r);
        for (int i = 0; i < b->n_by_rank; i++) {
            const struct option *o = &b->by_rank[i];
            if (method[o->layer] == o->method)
                job[n++] = (struct pipe_job){
                    .io_s = o->a, .comp_s = o->b, .layer = o->layer, .method = o->method};
        }
    }
    CHECK(n == b->n);
    for (int i = 0; i < n; i++) {
        work += job[i].io_s + job[i].comp_s;
        bytes += bytes_of(b, job[i].layer, job[i].method);
    }
    b->steps += leaf_steps(b);
    if (!plan_within_budget(b->q, bytes))
        return;
    load.job = job;
    load.n_jobs = n;
    search_offer(b->s, method, pipe_run(&load, NULL), work);
}

/* The rounded relaxation for the current r. */
static void offer_balanced(struct branch *b)
{
    double io = 0, comp = recompute_s(b, b->r), io_f = b->s->io_f, comp_f = b->s->comp_f;
    if (b->fused)
        comp += b->s->prefill_sum_s;
    for (int i = b->r; i < b->n; i++) {
        b->method[i] = b->both[i] ? other_option(reads_less(b, i)) : b->only[i];
        struct option o = option_of(b, i, b->method[i]);
        io += o.a;
        comp += o.b;
    }
    for (int i = 0; i < b->n_by_rate && io * io_f > comp * comp_f; i++) {
        int l = b->by_rate[i];
        if (l < b->r)
            continue;
        char m = reads_less(b, l);
        struct option x = option_of(b, l, other_option(m)), y = option_of(b, l, m);
        if ((io - x.a + y.a) * io_f <= (comp - x.b + y.b) * comp_f)
            offer(b, b->method); /* the last one on this side of the balance */
        b->method[l] = m;
        io += y.a - x.a;
        comp += y.b - x.b;
    }
    offer(b, b->method);
}

/* Each kind wherever it can be, with as little and as much recomputation as possible: a
 * search that is cut short must not lose to a single method. */
static void offer_single_kinds(struct branch *b)
{
    for (int most = 0; most < 2; most++) {
        begin_r(b, most ? b->s->r_max : b->s->r_min);
        for (const char *m = "HK"; *m; m++) {
            for (int i = b->r; i < b->n; i++)
                b->method[i] = b->both[i] ? *m : b->only[i];
            offer(b, b->method);
        }
    }
}

static void offer_smallest(struct branch *b)
{
    for (int i = b->r; i < b->n; i++)
        b->method[i] = !b->both[i]                                  ? b->only[i]
                       : bytes_of(b, i, 'H') <= bytes_of(b, i, 'K') ? 'H'
                                                                    : 'K';
    offer(b, b->method);
}

/* Single changes and exchanges of neighbours in rate, while they help. */
static void improve(struct branch *b)
{
    for (int round = 0; round < 8 && b->steps < STEPS_MAX / 3; round++) {
        double before = b->s->best_s;
        char m[PLAN_MAX_LAYERS + 1];
        memcpy(m, b->s->best, sizeof m);
        int r = plan_prefix_r(m);
        for (int i = r; i < b->n && b->steps < STEPS_MAX / 3; i++) {
            if (!b->both[i])
                continue;
            m[i] = other_option(m[i]);
            offer(b, m);
            m[i] = other_option(m[i]);
        }
        for (int x = 0; x + 1 < b->n_by_rate && b->steps < STEPS_MAX / 3; x++)
            for (int y = x + 1; y < b->n_by_rate && y < x + 4; y++) {
                int i = b->by_rate[x], j = b->by_rate[y];
                if (i < r || j < r || m[i] == m[j])
                    continue;
                char mi = m[i], mj = m[j];
                m[i] = other_option(mi);
                m[j] = other_option(mj);
                offer(b, m);
                m[i] = mi;
                m[j] = mj;
            }
        if (b->s->best_s >= before * (1 - 1e-12))
            return;
    }
}

/* ---- the tree ---- */

/* False once the steps are used up. */
static bool descend(struct branch *b, int i, double io_s, double comp_s, double bytes)
{
    if (b->steps++ > STEPS_MAX)
        return false;
    if (!search_worth(b->s, bound_at(b, i, io_s, comp_s)) ||
        !plan_within_budget(b->q, bytes + b->rest_bytes[i]))
        return true;
    if (i == b->n_seq) {
        offer(b, b->method);
        return true;
    }
    int l = b->seq[i];
    for (const char *m = "HK"; *m; m++) {
        if (!b->both[l] && b->only[l] != *m)
            continue;
        if (*m == 'H' && b->both[l] && b->same[i] && b->method[b->seq[i - 1]] == 'K')
            continue; /* among equals, H first */
        struct option o = option_of(b, l, *m);
        b->method[l] = *m;
        if (!descend(b, i + 1, io_s + o.a, comp_s + o.b, bytes + bytes_of(b, l, *m)))
            return false;
    }
    return true;
}

void search_branch(struct search *s)
{
    struct branch b;
    b.s = s;
    b.q = s->req;
    b.n = s->n;
    b.fused = plan_is_fused(s->req);
    b.n_by_rank = b.n_by_rate = 0;
    b.steps = 0;
    b.end_s = s->req->head_s + (b.fused ? 0 : s->prefill_sum_s);
    for (int i = 0; i < b.n; i++)
        prepare_layer(&b, i);
    prepare_rates(&b);
    prepare_classes(&b);
    prepare_weights(&b);

    /* Prefix lengths, most promising first. */
    int n_r = 0, order[PLAN_MAX_LAYERS + 1];
    double bound[PLAN_MAX_LAYERS + 1], of_r[PLAN_MAX_LAYERS + 1];
    for (int r = s->r_min; r <= s->r_max; r++) {
        double comp = recompute_s(&b, r) + (b.fused ? s->prefill_sum_s : 0);
        begin_r(&b, r);
        of_r[r] = comp;
        bound[r] = bound_at(&b, 0, 0, comp);
        int at = n_r++;
        for (; at > 0 && bound[r] < bound[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = r;
    }
    offer_single_kinds(&b);
    for (int i = 0; i < n_r; i++) {
        if (!search_worth(s, bound[order[i]]) || b.steps > STEPS_MAX / 4)
            break;
        begin_r(&b, order[i]);
        offer_balanced(&b);
        if (s->req->budget_bytes_per_token > 0)
            offer_smallest(&b);
    }
    if (s->found)
        improve(&b);
    s->exact = true;
    for (int i = 0; i < n_r && s->exact; i++) {
        if (!search_worth(s, bound[order[i]]))
            break;
        begin_r(&b, order[i]);
        s->exact = descend(&b, 0, 0, of_r[order[i]], 0);
    }
}
