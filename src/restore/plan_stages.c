/* plan_stages.c - the method of each layer, and the order of the reads, if several stages
 * restore their layers beside each other (pipeline.h): one store, and a bus and a compute lane
 * per stage.
 *
 * **Letters.** For each length r of the recomputed prefix, find the least time T within which
 * all lanes can do their work. Each stage chooses by itself. It begins with the letters that
 * compute least. Then it changes layers to the letter that reads less, most read saved per
 * second of compute first, while its compute stays within T. So the store and the buses have as
 * little to do as T allows. T is found by bisection; with equal layers it is the least possible.
 * Only the simulation sees how long a lane idles before its first and after its last read. So
 * the plan is then improved by single changes, and by exchanges between two stages, while they
 * help.
 *
 * **Order.** Within a stage: Johnson's rule. Among stages: first comes the read after which its
 * stage has the most work left. With the stages' own orders given, this is the order of due
 * dates, in which the stage that ends last ends as early as possible (Jackson 1955). With fused
 * prefill, which climbs through all stages, reads in rising order of layers are tried too, and
 * the better of the two orders is taken.
 *
 * Neither letters nor order are exact. The order of one stage's reads matters to the others, and
 * with dedicated second machines the flow shop is NP-hard. tests/restore/test_plan_stages.c
 * compares with all assignments and all orders. */
#include <math.h>
#include <string.h>

#include "base/run.h"
#include "restore/plan_parts.h"

static int stage_of_layer(const struct plan_request *q, int layer)
{
    return run_of(layer, q->n_layers, q->n_stages);
}

/* ---- order ---- */

/* Returns whether x comes before y by Johnson's rule for three machines: reads and bus are one
 * lane, bus and compute the other. */
static bool job_before(const struct pipe_job *x, const struct pipe_job *y)
{
    return johnson_before(x->io_s + x->up_s, x->up_s + x->comp_s, y->io_s + y->up_s,
                          y->up_s + y->comp_s);
}

static void sort_stage(struct pipe_job *job, int n)
{
    for (int i = 1; i < n; i++) {
        struct pipe_job j = job[i];
        int at = i;
        for (; at > 0 && job_before(&j, &job[at - 1]); at--)
            job[at] = job[at - 1];
        job[at] = j;
    }
}

/* Computes the time that a stage still works after the read of each job, if its jobs come in this
 * order. */
static void find_tails(const struct pipe_job *job, int n, double *tail_s)
{
    double comp = 0, tail = 0;
    for (int i = n - 1; i >= 0; i--) {
        comp += job[i].comp_s;
        tail = job[i].up_s + fmax(comp, tail);
        tail_s[i] = tail;
    }
}

/* Orders the reads by due dates. job[] has the layers in rising order, so the layers of a stage are
 * neighbours. */
static void order_by_due(const struct plan_request *q, struct pipe_job *job, int n)
{
    struct pipe_job sorted[PLAN_MAX_LAYERS];
    double tail_s[PLAN_MAX_LAYERS];
    int at[PLAN_MAX_STAGES], end[PLAN_MAX_STAGES];
    for (int k = 0, i = 0; k < q->n_stages; k++) {
        int first = i;
        while (i < n && stage_of_layer(q, job[i].layer) == k)
            i++;
        sort_stage(job + first, i - first);
        find_tails(job + first, i - first, tail_s + first);
        at[k] = first;
        end[k] = i;
    }
    for (int out = 0; out < n; out++) {
        int next = 0;
        for (int k = 1; k < q->n_stages; k++)
            if (at[k] < end[k] &&
                (at[next] == end[next] || tail_s[at[k]] > tail_s[at[next]]))
                next = k;
        sorted[out] = job[at[next]++];
    }
    memcpy(job, sorted, (size_t)n * sizeof *job);
}

void plan_order_stages(const struct plan_request *q, struct pipe_job *job, int n)
{
    struct pipe_job rising[PLAN_MAX_LAYERS];
    memcpy(rising, job, (size_t)n * sizeof *job);
    order_by_due(q, job, n);
    if (!plan_is_fused(q))
        return;
    struct pipe_load by_due = plan_load_empty(q), by_layer = by_due;
    by_due.job = job;
    by_layer.job = rising;
    by_due.n_jobs = by_layer.n_jobs = n;
    if (pipe_run(&by_layer, NULL) < pipe_run(&by_due, NULL))
        memcpy(job, rising, (size_t)n * sizeof *job);
}

/* ---- letters ---- */

/* A layer with two options, neither better in all times. */
struct choice {
    double rate; /* read time saved per second of compute */
    int16_t layer;
    int stage;
    /* lean: the option that reads less; quick: the one that computes less */
    char lean, quick;
    /* Compute that the lean option adds; read and bus time that it saves. */
    double more_comp_s, less_io_s, less_up_s;
};

struct staged {
    struct search *s;
    const struct plan_request *q;
    int n, n_choices;
    struct choice choice[PLAN_MAX_LAYERS]; /* ordered by falling rate */
    int n_offers;
    char method[PLAN_MAX_LAYERS + 1];
    /* Method of layers without a choice; 0: the layer has no possible method. */
    char only[PLAN_MAX_LAYERS];
};

/* Work of the lanes. */
struct work {
    double io_s, up_s[PLAN_MAX_STAGES], comp_s[PLAN_MAX_STAGES];
};

static void add_job(const struct staged *g, struct work *w, int layer, char method, int r)
{
    struct pipe_job j = plan_job(g->q, layer, method, r);
    int k = stage_of_layer(g->q, layer);
    w->io_s += j.io_s;
    w->up_s[k] += j.up_s;
    w->comp_s[k] += j.comp_s;
}

static double moved_s(struct pipe_job j)
{
    return j.io_s + j.up_s;
}

static void add_choice(struct staged *g, struct choice c)
{
    int at = g->n_choices++;
    for (; at > 0 && c.rate > g->choice[at - 1].rate; at--)
        g->choice[at] = g->choice[at - 1];
    g->choice[at] = c;
}

static void prepare_layer(struct staged *g, int i)
{
    bool can_h = search_allows(g->s, i, 'H'), can_k = search_allows(g->s, i, 'K');
    g->only[i] = can_h ? 'H' : can_k ? 'K' : 0;
    if (!can_h || !can_k)
        return;
    struct pipe_job h = plan_job(g->q, i, 'H', 0), k = plan_job(g->q, i, 'K', 0);
    bool h_lean = moved_s(h) < moved_s(k), h_quick = h.comp_s < k.comp_s;
    bool budget = g->q->budget_bytes_per_token > 0;
    if (h_lean == h_quick && moved_s(h) != moved_s(k) && h.comp_s != k.comp_s && !budget) {
        g->only[i] = h_lean ? 'H' : 'K'; /* the better letter in every time */
        return;
    }
    struct pipe_job lean = h_lean ? h : k, quick = h_lean ? k : h;
    struct choice c = {.layer = (int16_t)i,
                       .stage = stage_of_layer(g->q, i),
                       .lean = lean.method,
                       .quick = quick.method,
                       .more_comp_s = lean.comp_s - quick.comp_s,
                       .less_io_s = quick.io_s - lean.io_s,
                       .less_up_s = quick.up_s - lean.up_s};
    double saved = moved_s(quick) - moved_s(lean), paid = fabs(c.more_comp_s);
    c.rate = paid > 0 ? saved / paid : INFINITY;
    g->only[i] = 0;
    add_choice(g, c);
}

/* Returns a lower bound on the time of every schedule of this work. */
static double longest_lane(const struct staged *g, const struct work *w)
{
    double longest = w->io_s;
    for (int k = 0; k < g->q->n_stages; k++)
        longest = fmax(longest, fmax(w->up_s[k], w->comp_s[k]));
    return longest;
}

/* Returns the work that is the same for all choices, plus the quick option of each layer with a
 * choice. */
static struct work quick_work(struct staged *g, int r)
{
    struct work w = {0};
    memset(g->method, 'R', (size_t)r);
    g->method[g->n] = 0;
    for (int i = 0; i < g->n; i++) {
        if (plan_is_fused(g->q))
            w.comp_s[stage_of_layer(g->q, i)] += g->q->prefill_s[i];
        if (i >= r)
            g->method[i] = g->only[i];
        if (i < r || g->only[i] != 0)
            add_job(g, &w, i, g->method[i], r);
    }
    for (int c = 0; c < g->n_choices; c++) {
        const struct choice *o = &g->choice[c];
        if (o->layer < r)
            continue;
        g->method[o->layer] = o->quick;
        add_job(g, &w, o->layer, o->quick, r);
    }
    return w;
}

/* Finds the letters that read least among those that compute within limit_s, starting from the
 * quick ones and their work. Returns whether all lanes keep within limit_s. */
static bool fit(struct staged *g, int r, double limit_s, struct work w)
{
    for (int c = 0; c < g->n_choices; c++) {
        const struct choice *o = &g->choice[c];
        if (o->layer < r)
            continue;
        bool is_lean = w.comp_s[o->stage] + o->more_comp_s <= limit_s;
        g->method[o->layer] = is_lean ? o->lean : o->quick;
        if (!is_lean)
            continue;
        w.comp_s[o->stage] += o->more_comp_s;
        w.up_s[o->stage] -= o->less_up_s;
        w.io_s -= o->less_io_s;
    }
    return longest_lane(g, &w) <= limit_s;
}

/* Returns the least limit that fits. Leaves its letters in g->method. */
static double least_limit(struct staged *g, int r)
{
    /* The result is exact to one part in 10^7, finer than any measurement. */
    enum { HALVINGS = 24 };
    struct work quick = quick_work(g, r);
    double lo = 0, hi = longest_lane(g, &quick);
    for (int i = 0; i < HALVINGS; i++) {
        double mid = (lo + hi) / 2;
        if (fit(g, r, mid, quick))
            hi = mid;
        else
            lo = mid;
    }
    (void)fit(g, r, hi, quick);
    return hi;
}

/* ---- candidates ---- */

/* A simulation takes about 3 us for 80 layers over four stages. */
enum { STEPS_OF_OFFER = 150, MOST_ROUNDS = 20 };

static bool may_offer(const struct staged *g)
{
    return g->n_offers < g->s->effort->steps / STEPS_OF_OFFER;
}

/* Orders and times an assignment, and offers it, unless it exceeds the budget or a bound on its
 * time excludes it. */
static void offer(struct staged *g, const char *method)
{
    const struct plan_request *q = g->q;
    struct pipe_job job[PLAN_MAX_LAYERS];
    struct pipe_load load = plan_load_empty(q);
    double work = 0, bytes = 0;
    struct work w = {0};
    for (int i = 0; i < g->n; i++)
        bytes += plan_layer_bytes(&q->layer[i], method[i]);
    if (!plan_within_budget(q, bytes))
        return;
    for (int i = 0, r = plan_prefix_r(method); i < g->n; i++)
        add_job(g, &w, i, method[i], r);
    if (!search_worth(g->s, longest_lane(g, &w)))
        return;
    g->n_offers++;
    load.job = job;
    load.n_jobs = plan_jobs_ordered(q, method, job);
    for (int i = 0; i < load.n_jobs; i++)
        work += job[i].io_s + job[i].up_s + job[i].comp_s;
    search_offer(g->s, method, pipe_run(&load, NULL), work);
}

/* Offers each kind wherever it is possible, with as little and as much recomputation as possible:
 * no plan may lose to a single method. Also offers the plan with the fewest bytes, for a budget. */
static void offer_simple(struct staged *g)
{
    static const char kinds[] = {'H', 'K', 'b'};
    const int lengths[] = {g->s->r_min, g->s->r_max};
    for (int end = 0; end < 2; end++) {
        for (int kind = 0; kind < 3; kind++) {
            (void)quick_work(g, lengths[end]);
            for (int i = lengths[end]; i < g->n; i++) {
                const struct plan_layer *l = &g->q->layer[i];
                char want = kinds[kind];
                if (want == 'b')
                    want = plan_layer_bytes(l, 'H') <= plan_layer_bytes(l, 'K') ? 'H' : 'K';
                if (search_allows(g->s, i, want))
                    g->method[i] = want;
            }
            offer(g, g->method);
        }
    }
}

static void turn(const struct choice *o, char *method)
{
    method[o->layer] = method[o->layer] == o->lean ? o->quick : o->lean;
}

/* Returns whether choice x is the next to change among the choices of its stage with the same rate.
 * They are changed in one order only: their costs are alike, so only their number matters. */
static bool is_next_turn(const struct staged *g, int x, const char *method)
{
    const struct choice *o = &g->choice[x];
    bool lean = method[o->layer] == o->lean;
    int r = plan_prefix_r(method);
    for (int y = lean ? x + 1 : x - 1; y >= 0 && y < g->n_choices; y += lean ? 1 : -1) {
        const struct choice *n = &g->choice[y];
        if (n->rate == o->rate && n->layer >= r && n->stage == o->stage &&
            method[n->layer] == method[o->layer])
            return false;
    }
    return true;
}

/* Offers every single change of the best, and pairs of changes on two stages, as far as time
 * allows. */
static void offer_turns(struct staged *g, const char *best)
{
    char one[PLAN_MAX_LAYERS + 1], two[PLAN_MAX_LAYERS + 1];
    int r = plan_prefix_r(best), may[PLAN_MAX_LAYERS], n = 0;
    for (int x = 0; x < g->n_choices; x++)
        if (g->choice[x].layer >= r && is_next_turn(g, x, best))
            may[n++] = x;
    for (int i = 0; i < n && may_offer(g); i++) {
        memcpy(one, best, sizeof one);
        turn(&g->choice[may[i]], one);
        offer(g, one);
    }
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n && may_offer(g); j++) {
            const struct choice *x = &g->choice[may[i]], *y = &g->choice[may[j]];
            if (x->stage == y->stage &&
                (best[x->layer] == x->lean) == (best[y->layer] == y->lean))
                continue;
            memcpy(two, best, sizeof two);
            turn(x, two);
            turn(y, two);
            offer(g, two);
        }
}

/* Offers one recomputed layer more, and one less. */
static void offer_lengths(struct staged *g, const char *best)
{
    char m[PLAN_MAX_LAYERS + 1];
    int r = plan_prefix_r(best);
    memcpy(m, best, sizeof m);
    if (r < g->s->r_max) {
        m[r] = 'R';
        offer(g, m);
    }
    for (const char *kind = "HK"; r > g->s->r_min && *kind != 0; kind++) {
        memcpy(m, best, sizeof m);
        m[r - 1] = *kind;
        if (search_allows(g->s, r - 1, *kind))
            offer(g, m);
    }
}

/* Offers changes of the best plan while they make it faster. */
static void improve(struct staged *g)
{
    for (int round = 0; round < MOST_ROUNDS && may_offer(g); round++) {
        char best[PLAN_MAX_LAYERS + 1];
        double before = g->s->best_s;
        memcpy(best, g->s->best, sizeof best);
        offer_turns(g, best);
        offer_lengths(g, best);
        if (g->s->best_s >= before * (1 - 1e-9))
            return;
    }
}

/* Offers single methods, then the letters of least time for each r, and improves the best plan. */
static void search(struct search *s)
{
    struct staged g = {.s = s, .q = s->req, .n = s->n};
    double recomputed_s = 0;
    for (int i = 0; i < g.n; i++)
        prepare_layer(&g, i);
    offer_simple(&g);
    for (int r = s->r_min; r <= s->r_max; r++) {
        recomputed_s = 0; /* one layer after another, on all stages together */
        for (int i = 0; i < r; i++)
            recomputed_s += plan_recompute_s(s->req, i, r);
        if (!search_worth(s, recomputed_s))
            break;
        if (search_worth(s, least_limit(&g, r)) && may_offer(&g))
            offer(&g, g.method);
    }
    if (s->found)
        improve(&g);
}

/* Searches with several stages. Searches first without H: a search that is not complete must still
 * not lose to KV + recompute, with which users and papers compare. */
void plan_search_stages(struct search *s)
{
    bool without_h = s->without_h;
    s->without_h = true;
    if (!without_h && !s->effort->quick && search_is_possible(s))
        search(s);
    s->without_h = without_h;
    if (search_is_possible(s))
        search(s);
    s->exact = false;
}
