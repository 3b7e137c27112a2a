/* plan_order.c - the order of the reads.
 *
 * For a fixed method per layer, restoring is a two-machine flow shop: first the read (a), then
 * the compute (b). Without fused prefill, Johnson's rule gives an optimal order: layers with a
 * <= b first by rising a, then the others by falling b. Recomputed layers have a = 0, so they
 * come first on the compute lane, and the fixed order of the prefix costs nothing.
 *
 * With fused prefill, the new tokens' layer i is a job without read that needs layer i restored
 * and layer i - 1 prefilled. The precedences form an in-tree
 *
 *      restore 0 -> prefill 0 -> prefill 1 -> prefill 2 ...
 *                   restore 1 ---^            ^
 *                   restore 2 ----------------+
 *
 * and Johnson's rule extends to series-parallel precedences by joining jobs that must follow
 * each other into composite jobs (Sidney 1979, Monma 1979). A constant latency between the end
 * of a read and its compute shifts all arrivals alike and changes neither argument.
 *
 * Several stages: plan_stages.c.
 *
 * tests/restore/test_plan_exact.c compares both with every order. If the lanes slow each other,
 * the rule is applied to the slowed times; there it is a heuristic (see RESTORATION.md). */
#include "restore/plan_parts.h"

#include <math.h>
#include <string.h>

#include "base/check.h"

bool johnson_before(double a1, double b1, double a2, double b2)
{
    bool first1 = a1 <= b1, first2 = a2 <= b2;
    if (first1 != first2)
        return first1;
    return first1 ? a1 < a2 : b1 > b2;
}

bool plan_is_fused(const struct plan_request *req)
{
    return req->fused && req->prefill_s != NULL;
}

int plan_prefix_r(const char *method)
{
    int r = 0;
    while (method[r] == 'R')
        r++;
    return r;
}

/* Returns a slow-down factor: 0 counts as 1. */
static double factor(double x)
{
    return x > 1 ? x : 1;
}

/* Of a recomputed layer that lies d layers below the last one, only the rows of the last d windows
 * pass through the whole layer. Returns the share of the layer's time that these rows take;
 * whole_s: the time of all rows. */
static double share_computed(const struct plan_request *req, int d, double whole_s)
{
    int64_t n = d * req->window.tokens;
    return n < req->n_tokens ? platform_tok_s(req->platform, n) / whole_s : 1;
}

/* Returns the time of the other rows of this layer, which need only K and V: the rows before the d
 * windows, or only the last window of these if the layer itself has a window. */
static double kv_only_s(const struct plan_request *req, int d, bool windowed)
{
    int64_t tokens = req->window.tokens, n = req->n_tokens - d * tokens;
    if (n <= 0)
        return 0;
    return platform_h_s(req->platform, windowed && n > tokens ? tokens : n) *
           factor(req->comp_slow);
}

/* Returns whether the rows of a recomputed layer below layer r - 1 are all computed: a layer above
 * it, up to r - 1, has no window. */
static bool needs_all_rows(const struct plan_request *req, int layer, int r)
{
    return req->window.tokens <= 0 || layer_set_last_out(&req->window.layers, r) > layer;
}

double plan_recompute_s(const struct plan_request *req, int layer, int r)
{
    const struct plan_layer *l = &req->layer[layer];
    if (layer == r - 1)
        return l->comp_tok_last_s;
    if (needs_all_rows(req, layer, r))
        return l->comp_tok_s;
    int d = r - 1 - layer;
    double whole_s = platform_tok_s(req->platform, req->n_tokens);
    return share_computed(req, d, whole_s) * l->comp_tok_s +
           kv_only_s(req, d, layer_set_has(&req->window.layers, layer));
}

void plan_recompute_sums(const struct plan_request *req, double *sum_s)
{
    const struct plan_layer *l = req->layer;
    const struct layer_set *windowed = &req->window.layers;
    double whole_s = 0, share[PLAN_MAX_LAYERS], below_s[2][PLAN_MAX_LAYERS];
    bool windows = req->window.tokens > 0;
    double all_rows_s = windows ? platform_tok_s(req->platform, req->n_tokens) : 0;
    for (int d = 1; windows && d < req->n_layers; d++) {
        share[d] = share_computed(req, d, all_rows_s);
        for (int w = 0; w < 2; w++)
            below_s[w][d] = kv_only_s(req, d, w);
    }
    sum_s[0] = 0;
    int n_whole =
        0; /* whole_s: the sum of the first n_whole layers, of which all rows are needed */
    for (int r = 1; r <= req->n_layers; r++) {
        bool all = !windows || !layer_set_has(windowed, r - 1);
        for (; all && n_whole < r - 1; n_whole++)
            whole_s += l[n_whole].comp_tok_s;
        sum_s[r] = whole_s + l[r - 1].comp_tok_last_s;
        for (int i = n_whole; i < r - 1; i++)
            sum_s[r] += share[r - 1 - i] * l[i].comp_tok_s +
                        below_s[layer_set_has(windowed, i)][r - 1 - i];
    }
}

struct pipe_job plan_job(const struct plan_request *req, int layer, char method, int r)
{
    const struct plan_layer *l = &req->layer[layer];
    struct pipe_job j = {.layer = (int16_t)layer, .method = method};
    switch (method) {
    case 'R':
        j.comp_s = plan_recompute_s(req, layer, r);
        break;
    case 'H':
        j.io_s = l->h_free ? 0 : l->io_h_s;
        j.up_s = l->h_free ? 0 : l->up_h_s;
        j.comp_s = l->h_free ? l->comp_tok_last_s : l->comp_h_s;
        break;
    case 'K':
        j.io_s = l->io_kv_s;
        j.up_s = l->up_kv_s;
        j.comp_s = l->comp_kv_s;
        break;
    default:
        CHECK(method == 'R' || method == 'H' || method == 'K');
    }
    return j;
}

struct pipe_load plan_load_empty(const struct plan_request *req)
{
    return (struct pipe_load){.n_layers = req->n_layers,
                              .n_stages = req->n_stages,
                              .prefill_s = req->prefill_s,
                              .fused = req->fused,
                              .head_s = req->head_s,
                              .latency_s = req->io_latency_s,
                              .io_overlap = factor(req->io_overlap),
                              .comp_overlap = factor(req->comp_overlap)};
}

static void order_johnson(const struct plan_request *req, struct pipe_job *job, int n)
{
    double fa = factor(req->io_overlap), fb = factor(req->comp_overlap);
    for (int i = 1; i < n; i++) {
        struct pipe_job j = job[i];
        int at = i;
        for (; at > 0; at--) {
            const struct pipe_job *p = &job[at - 1];
            if (!johnson_before(j.io_s * fa, j.comp_s * fb, p->io_s * fa, p->comp_s * fb))
                break;
            job[at] = *p;
        }
        job[at] = j;
    }
}

/* Jobs that stay together, as one job (a, b), with the list of their layers. */
struct composite {
    double a, b;
    int16_t head, tail;
};

static struct composite join(struct composite x, struct composite y, int16_t *next)
{
    next[x.tail] = y.head;
    return (struct composite){.a = x.a + greater(0, y.a - x.b),
                              .b = y.b + greater(0, x.b - y.a),
                              .head = x.head,
                              .tail = y.tail};
}

/* Returns where c belongs in s[m], which is in Johnson's order: after its equals. Most places are
 * near the end; the others are found by bisection. */
static int place_of(const struct composite *c, const struct composite *s, int m)
{
    int to = m, near = m > 4 ? m - 4 : 0, from = 0;
    while (to > near && johnson_before(c->a, c->b, s[to - 1].a, s[to - 1].b))
        to--;
    if (to > near)
        return to;
    while (from < to) {
        int mid = (from + to) / 2;
        if (johnson_before(c->a, c->b, s[mid].a, s[mid].b))
            to = mid;
        else
            from = mid + 1;
    }
    return from;
}

void plan_order_fused(const struct plan_request *req, struct pipe_job *job, int n)
{
    double fa = factor(req->io_overlap), fb = factor(req->comp_overlap);
    struct composite s[PLAN_MAX_LAYERS]; /* composite jobs, sorted by Johnson's rule */
    int16_t next[PLAN_MAX_LAYERS];
    struct pipe_job by_layer[PLAN_MAX_LAYERS];
    int m = 0;
    for (int i = 0; i < n; i++) {
        struct composite c = {.a = job[i].io_s * fa,
                              .b = job[i].comp_s * fb,
                              .head = (int16_t)i,
                              .tail = (int16_t)i};
        next[i] = -1;
        by_layer[i] = job[i];
        int at = place_of(&c, s, m);
        if (at < m)
            memmove(&s[at + 1], &s[at], (size_t)(m - at) * sizeof *s);
        s[at] = c;
        m++;
        /* Prefill of layer i, a job (0, p), follows all jobs so far. */
        s[m - 1].b += req->prefill_s[i] * fb;
        while (m >= 2 && johnson_before(s[m - 1].a, s[m - 1].b, s[m - 2].a, s[m - 2].b)) {
            s[m - 2] = join(s[m - 2], s[m - 1], next);
            m--;
        }
    }
    int out = 0;
    for (int c = 0; c < m; c++)
        for (int i = s[c].head; i >= 0; i = next[i])
            job[out++] = by_layer[i];
    CHECK(out == n);
}

int plan_jobs_ordered(const struct plan_request *req, const char *method,
                      struct pipe_job *job)
{
    int r = plan_prefix_r(method);
    for (int i = 0; i < req->n_layers; i++)
        job[i] = plan_job(req, i, method[i], r);
    if (req->n_stages > 1)
        plan_order_stages(req, job, req->n_layers);
    else if (plan_is_fused(req))
        plan_order_fused(req, job, req->n_layers);
    else
        order_johnson(req, job, req->n_layers);
    return req->n_layers;
}

void plan_load(const struct plan_request *req, const struct plan *plan,
               struct pipe_job *job, struct pipe_load *load)
{
    *load = plan_load_empty(req);
    load->job = job;
    int n = 0, r = plan_prefix_r(plan->method);
    bool reads[PLAN_MAX_LAYERS] = {false};
    for (int i = 0; i < plan->n_io; i++)
        reads[plan->io_order[i]] = true;
    for (int i = 0; i < plan->n_layers; i++)
        if (!reads[i])
            job[n++] = plan_job(req, i, plan->method[i], r);
    for (int i = 0; i < plan->n_io; i++)
        job[n++] = plan_job(req, plan->io_order[i], plan->method[plan->io_order[i]], r);
    load->n_jobs = n;
}
