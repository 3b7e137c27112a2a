/* plan_branch.c - chooses the method of each layer when layers differ: records that only some
 * layers have, sliding windows, tiers.
 *
 * For each length r of the recomputed prefix, every other layer has at most two options (H, K).
 * 1. First a good plan: layers with a real choice move from the option that computes less to the
 *    one that reads less, best exchange rate first, until the lanes balance (the linear
 *    relaxation, rounded both ways). Then single changes while they help.
 * 2. Then a depth-first search over the options, cut by lower bounds (plan_bound.c). Layers with
 *    equal descriptors are tried in one order only (not with fused prefill: there positions
 *    matter).
 * 3. A budget of steps keeps the search near a millisecond; `exact` tells whether it was
 *    complete. Up to about 12 layers it always is.
 *
 * Leaves are scheduled by the order of plan_order.c and timed by the pipeline simulation. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/minmax.h"
#include "restore/plan_parts.h"

struct option {
    double a, b; /* seconds of the read, and of the compute */
    int16_t layer;
    char method;
};

struct branch {
    struct search *s;
    const struct plan_request *q;
    int n;
    /* both[i]: layer i has two options, neither better in both times. */
    bool fused, both[PLAN_MAX_LAYERS];
    char only[PLAN_MAX_LAYERS];               /* if not `both`: the better option, or 0 */
    char lean[PLAN_MAX_LAYERS];               /* if `both`: the option that reads less */
    struct option option[PLAN_MAX_LAYERS][2]; /* H, K: those that the records allow */
    int n_by_rank, n_by_rate;
    struct option by_rank[2 * PLAN_MAX_LAYERS]; /* all options, sorted by Johnson's rule */
    /* Layers with a choice. First comes the layer that saves the most read time per second of
     * compute. */
    int16_t by_rate[PLAN_MAX_LAYERS];
    int16_t by_class[PLAN_MAX_LAYERS]; /* layers with equal descriptors side by side */
    struct plan_bounds bounds;
    long steps, steps_max;
    /* Values for the current r: */
    int r, n_seq;
    int16_t seq[PLAN_MAX_LAYERS];
    bool same[PLAN_MAX_LAYERS]; /* seq[i] and seq[i - 1] are interchangeable */
    double rest[PLAN_MAX_LAYERS + 1][PLAN_WEIGHTS]; /* least weighted work of seq[i..] */
    double rest_bytes[PLAN_MAX_LAYERS + 1];
    double tail_s, head_idle_s;
    char method[PLAN_MAX_LAYERS + 1];
};

/* A search looks at each option many times, so prepare_layer computes it once. */
static inline struct option option_of(const struct branch *b, int layer, char method)
{
    return b->option[layer][method == 'K'];
}

static double bytes_of(const struct branch *b, int layer, char method)
{
    return plan_layer_bytes(&b->q->layer[layer], method);
}

/* ---- preparation ---- */

/* Merges from[begin, mid) and from[mid, end), both in Johnson's order, into to[begin, end). If
 * options are equal, that of the first half comes first. */
static void merge_ranked(const struct branch *b, const struct option *from, int begin,
                         int mid, int end, struct option *to)
{
    double fa = b->s->io_f, fb = b->s->comp_f;
    for (int i = begin, x = begin, y = mid; i < end; i++) {
        const struct option *p = &from[x], *q = &from[y];
        bool takes_y = y < end && (x == mid || johnson_before(q->a * fa, q->b * fb,
                                                              p->a * fa, p->b * fb));
        to[i] = from[takes_y ? y++ : x++];
    }
}

/* Sorts by_rank by merging runs of 1, 2, 4, ... options. Every search sorts: 80 layers have 160
 * options, and an insertion sort moves each option past half of the options before it. */
static void rank_options(struct branch *b)
{
    struct option spare[2 * PLAN_MAX_LAYERS], *from = b->by_rank, *to = spare;
    int n = b->n_by_rank;
    for (int run = 1; run < n; run *= 2) {
        for (int i = 0; i < n; i += 2 * run) {
            int mid = MIN(i + run, n), end = MIN(i + 2 * run, n);
            merge_ranked(b, from, i, mid, end, to);
        }
        struct option *swap = from;
        from = to;
        to = swap;
    }
    if (from != b->by_rank)
        memcpy(b->by_rank, from, (size_t)n * sizeof *from);
}

/* Returns whether x is at least as good as y in both times. With a budget on bytes, x must not have
 * more bytes either: even an option that is worse in both times may then be the best. */
static bool dominates(const struct branch *b, struct option x, struct option y)
{
    if (b->q->budget_bytes_per_token > 0 &&
        bytes_of(b, x.layer, x.method) > bytes_of(b, y.layer, y.method))
        return false;
    return x.a <= y.a && x.b <= y.b;
}

static struct option make_option(const struct branch *b, int layer, char method)
{
    struct pipe_job j = plan_job(b->q, layer, method, 0);
    return (struct option){j.io_s, j.comp_s, (int16_t)layer, method};
}

/* Computes the options of layer i. Drops one that the other dominates. */
static void prepare_layer(struct branch *b, int i)
{
    bool can_h = search_allows(b->s, i, 'H'), can_k = search_allows(b->s, i, 'K');
    struct option h = {0}, k = {0};
    if (can_h)
        h = b->option[i][0] = make_option(b, i, 'H');
    if (can_k)
        k = b->option[i][1] = make_option(b, i, 'K');
    if (can_h && can_k && dominates(b, h, k))
        can_k = false;
    else if (can_h && can_k && dominates(b, k, h))
        can_h = false;
    b->both[i] = can_h && can_k;
    b->only[i] = can_h ? (can_k ? 0 : 'H') : (can_k ? 'K' : 0);
    b->lean[i] = h.a < k.a ? 'H' : 'K';
    if (can_h)
        b->by_rank[b->n_by_rank++] = h;
    if (can_k)
        b->by_rank[b->n_by_rank++] = k;
}

static char other_option(char method)
{
    return method == 'H' ? 'K' : 'H';
}

/* Returns the read time that the lean option of layer i saves per second of added compute. */
static double rate_of(const struct branch *b, int i)
{
    char m = b->lean[i];
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

/* Returns whether exchanging the methods of layers i and j changes no plan's time or bytes. */
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

/* ---- bounds ---- */

/* Begins the candidates that recompute r layers. */
static void begin_r(struct branch *b, int r)
{
    b->r = r;
    memset(b->method, 'R', (size_t)r);
    b->method[b->n] = 0;
}

/* Begins the tree of all candidates that recompute layers [0, r). */
static void begin_tree(struct branch *b, int r)
{
    begin_r(b, r);
    b->n_seq = 0;
    for (int i = 0; i < b->n; i++) {
        int l = b->by_class[i];
        if (l < r)
            continue;
        b->same[b->n_seq] = b->n_seq > 0 && interchangeable(b, b->seq[b->n_seq - 1], l);
        b->seq[b->n_seq++] = (int16_t)l;
    }
    for (int w = 0; w < PLAN_WEIGHTS; w++)
        b->rest[b->n_seq][w] = 0;
    b->rest_bytes[b->n_seq] = 0;
    for (int i = b->n_seq - 1; i >= 0; i--) {
        int l = b->seq[i];
        for (int w = 0; w < PLAN_WEIGHTS; w++)
            b->rest[i][w] = b->rest[i + 1][w] + b->bounds.least[l][w];
        b->rest_bytes[i] = b->rest_bytes[i + 1] + b->bounds.least_bytes[l];
    }
    plan_bounds_idle(&b->bounds, r, &b->head_idle_s, &b->tail_s);
}

static double bound_at(const struct branch *b, int i, double io_s, double comp_s)
{
    return plan_bound_lanes(&b->bounds, io_s, comp_s, b->rest[i], b->head_idle_s,
                            b->tail_s);
}

/* ---- candidates ---- */

/* Returns how many steps the timing of a leaf counts as. It is one pass over the jobs, but
 * composite jobs (plan_order.c) take longer, and lanes that slow each other have more events. */
static long leaf_steps(const struct branch *b)
{
    bool overlap = b->s->io_f > 1 || b->s->comp_f > 1;
    return 1 + b->n / 8 + (b->fused ? b->n / 2 : 0) + (overlap ? b->n / 2 : 0);
}

static struct pipe_job job_of(const struct option *o)
{
    return (struct pipe_job){
        .io_s = o->a, .comp_s = o->b, .layer = o->layer, .method = o->method};
}

/* Orders the reads of an assignment, times it, and offers it if it keeps the budget. */
static void offer(struct branch *b, const char *method)
{
    const struct plan_request *q = b->q;
    struct pipe_job job[PLAN_MAX_LAYERS];
    struct pipe_load load = plan_load_empty(q);
    int n = 0, r = plan_prefix_r(method);
    double work = 0, bytes = 0;
    for (int i = 0; i < r; i++)
        job[n++] = plan_job(q, i, 'R', r);
    for (int i = r; b->fused && i < b->n; i++)
        job[n++] = job_of(&b->option[i][method[i] == 'K']);
    for (int i = 0; !b->fused && i < b->n_by_rank; i++)
        if (method[b->by_rank[i].layer] == b->by_rank[i].method)
            job[n++] = job_of(&b->by_rank[i]);
    if (b->fused)
        plan_order_fused(q, job, n);
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

/* Returns whether 1/share of the steps is used up. */
static bool out_of_steps(const struct branch *b, int share)
{
    return b->steps > b->steps_max / share;
}

/* Offers the candidates from rounding the linear relaxation, for the current r. */
static void offer_balanced(struct branch *b)
{
    double io = 0, comp = b->bounds.recompute_s[b->r], io_f = b->s->io_f,
           comp_f = b->s->comp_f;
    if (b->fused)
        comp += b->s->prefill_sum_s;
    for (int i = b->r; i < b->n; i++) {
        b->method[i] = b->both[i] ? other_option(b->lean[i]) : b->only[i];
        struct option o = option_of(b, i, b->method[i]);
        io += o.a;
        comp += o.b;
    }
    for (int i = 0; i < b->n_by_rate && io * io_f > comp * comp_f; i++) {
        int l = b->by_rate[i];
        if (l < b->r)
            continue;
        char m = b->lean[l];
        struct option x = option_of(b, l, other_option(m)), y = option_of(b, l, m);
        /* Offers the last assignment whose reads take longer than its compute. */
        if ((io - x.a + y.a) * io_f <= (comp - x.b + y.b) * comp_f)
            offer(b, b->method);
        b->method[l] = m;
        io += y.a - x.a;
        comp += y.b - x.b;
    }
    offer(b, b->method);
}

/* Gives layers with a choice before `end` the lean option, which reads less. Gives the other layers
 * with a choice the option that computes less. */
static void set_lean_before(struct branch *b, int end)
{
    for (int i = b->r; i < b->n; i++) {
        char lean = b->both[i] ? b->lean[i] : b->only[i];
        b->method[i] = b->both[i] && i >= end ? other_option(lean) : lean;
    }
}

/* Assumes that reads are issued in the order of the layers. Returns whether compute then waits for
 * the read of a layer after `end`. */
static bool waits_behind(const struct branch *b, int end)
{
    double io_s = b->q->io_latency_s, comp_s = b->bounds.recompute_s[b->r];
    for (int i = 0; i < b->n; i++) {
        if (i >= b->r) {
            struct option o = option_of(b, i, b->method[i]);
            io_s += o.a * b->s->io_f;
            if (o.a > 0 && io_s > comp_s) {
                if (i > end)
                    return true;
                comp_s = io_s;
            }
            comp_s += o.b * b->s->comp_f;
        }
        comp_s += b->q->prefill_s[i] * b->s->comp_f;
    }
    return false;
}

/* Offers a plan in which the first layers are lean: as few of them as make compute wait for no read
 * of a later layer. With fused prefill the early reads are the urgent ones: each layer of the new
 * tokens waits for the reads of all layers before it. */
static void offer_lean_front(struct branch *b)
{
    int lo = b->r, hi = b->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        set_lean_before(b, mid);
        if (waits_behind(b, mid))
            lo = mid + 1;
        else
            hi = mid;
    }
    for (int end = lo > b->r ? lo - 1 : lo; end <= lo; end++) {
        set_lean_before(b, end);
        offer(b, b->method);
    }
}

/* Offers each kind wherever it is possible, with as little and as much recomputation as
 * possible: a search that is cut short must not lose to a single method. */
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

/* Offers the plan with the fewest stored bytes, for a budget. */
static void offer_smallest(struct branch *b)
{
    for (int i = b->r; i < b->n; i++)
        b->method[i] = !b->both[i]                                  ? b->only[i]
                       : bytes_of(b, i, 'H') <= bytes_of(b, i, 'K') ? 'H'
                                                                    : 'K';
    offer(b, b->method);
}

/* A candidate that is changed letter by letter, with the work of its lanes. */
struct variant {
    char method[PLAN_MAX_LAYERS + 1];
    double io_s, comp_s;
};

static void variant_turn(const struct branch *b, struct variant *v, int layer)
{
    char m = v->method[layer];
    struct option from = option_of(b, layer, m), to = option_of(b, layer, other_option(m));
    v->method[layer] = to.method;
    v->io_s += to.a - from.a;
    v->comp_s += to.b - from.b;
}

static void variant_of_best(const struct branch *b, struct variant *v)
{
    memcpy(v->method, b->s->best, sizeof v->method);
    int r = plan_prefix_r(v->method);
    v->io_s = 0;
    v->comp_s = b->bounds.recompute_s[r] + b->bounds.prefill_s;
    for (int i = r; i < b->n; i++) {
        struct option o = option_of(b, i, v->method[i]);
        v->io_s += o.a;
        v->comp_s += o.b;
    }
}

static void offer_variant(struct branch *b, const struct variant *v)
{
    b->steps++;
    if (search_worth(b->s, search_bound(b->s, v->io_s, v->comp_s) + b->bounds.end_s))
        offer(b, v->method);
}

/* Tries single changes, and exchanges of neighbours in rate, while they help. */
static void improve(struct branch *b)
{
    for (int round = 0; round < 8 && !out_of_steps(b, 3); round++) {
        double before = b->s->best_s;
        struct variant v;
        variant_of_best(b, &v);
        int r = plan_prefix_r(v.method);
        for (int i = r; i < b->n && !out_of_steps(b, 3); i++) {
            if (!b->both[i])
                continue;
            variant_turn(b, &v, i);
            offer_variant(b, &v);
            variant_turn(b, &v, i);
        }
        for (int x = 0; x + 1 < b->n_by_rate && !out_of_steps(b, 3); x++)
            for (int y = x + 1; y < b->n_by_rate && y < x + 4; y++) {
                int i = b->by_rate[x], j = b->by_rate[y];
                if (i < r || j < r || v.method[i] == v.method[j])
                    continue;
                variant_turn(b, &v, i);
                variant_turn(b, &v, j);
                offer_variant(b, &v);
                variant_turn(b, &v, i);
                variant_turn(b, &v, j);
            }
        if (b->s->best_s >= before * (1 - 1e-12))
            return;
    }
}

/* ---- the tree ---- */

/* Searches the tree. Returns false once the steps are used up. */
static bool descend(struct branch *b, int i, double io_s, double comp_s, double bytes)
{
    if (b->steps++ > b->steps_max)
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
        /* Among layers with equal descriptors, those with H come first. */
        if (*m == 'H' && b->both[l] && b->same[i] && b->method[b->seq[i - 1]] == 'K')
            continue;
        struct option o = option_of(b, l, *m);
        b->method[l] = *m;
        if (!descend(b, i + 1, io_s + o.a, comp_s + o.b, bytes + bytes_of(b, l, *m)))
            return false;
    }
    return true;
}

/* Orders the prefix lengths, the most promising first. Returns their number. */
static int rank_lengths(const struct branch *b, int *order, double *bound)
{
    int n_r = 0;
    for (int r = b->s->r_min; r <= b->s->r_max; r++) {
        bound[r] = plan_bound_of(&b->bounds, r);
        int at = n_r++;
        for (; at > 0 && bound[r] < bound[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = r;
    }
    return n_r;
}

void search_branch(struct search *s)
{
    struct branch b;
    int order[PLAN_MAX_LAYERS + 1];
    double bound[PLAN_MAX_LAYERS + 1];
    b.s = s;
    b.q = s->req;
    b.n = s->n;
    b.fused = plan_is_fused(s->req);
    b.n_by_rank = b.n_by_rate = 0;
    b.steps = 0;
    b.steps_max = s->effort->steps;
    for (int i = 0; i < b.n; i++)
        prepare_layer(&b, i);
    rank_options(&b);
    prepare_rates(&b);
    plan_bounds_init(&b.bounds, s);
    int n_r = rank_lengths(&b, order, bound);
    offer_single_kinds(&b);
    for (int i = 0; i < n_r; i++) {
        if (!search_worth(s, bound[order[i]]) || out_of_steps(&b, 4))
            break;
        begin_r(&b, order[i]);
        offer_balanced(&b);
        if (b.fused)
            offer_lean_front(&b);
        if (s->req->budget_bytes_per_token > 0)
            offer_smallest(&b);
    }
    if (s->found && search_worth(s, bound[order[0]]))
        improve(&b);
    s->exact = !s->effort->quick;
    if (s->effort->quick)
        return;
    prepare_classes(&b);
    for (int i = 0; i < n_r && s->exact; i++) {
        if (!search_worth(s, bound[order[i]]))
            break;
        begin_tree(&b, order[i]);
        double comp_s = b.bounds.recompute_s[order[i]] + b.bounds.prefill_s;
        s->exact = descend(&b, 0, 0, comp_s, 0);
    }
}
