/* hybrid_share.c - see hybrid_share.h. */
#include "engine/hybrid_share.h"

#include <math.h>

/* Returns the number of requests of mini-batch i. The large mini-batches come first. */
static int requests_of(const struct hybrid_machine *m, int i)
{
    int n = m->n_requests, k = m->n_minibatches;
    return n / k + (i < n % k);
}

static int64_t n_act_of(const struct hybrid_split *s)
{
    return s->act_device + s->act_host;
}

/* --- the lanes of one mini-batch -------------------------------------------------------------- */

/* Costs of the mini-batches of a split. */
struct lanes {
    const struct hybrid_machine *m;
    int k; /* number of mini-batches */
    double forward_s, n_blocks;
    /* bytes of a block over the link, on average; blocks on the device count as 0 */
    double act_bytes, kv_bytes;
};

static struct lanes lanes_of(const struct hybrid_machine *m, const struct hybrid_split *s)
{
    double n_act = (double)n_act_of(s), n_kv = (double)(s->kv_device + s->kv_host);
    return (struct lanes){
        .m = m,
        .k = m->n_minibatches,
        .forward_s = m->forward_s + m->forward_mini_s * (m->n_minibatches - 1),
        .n_blocks = n_act + n_kv,
        .act_bytes = n_act > 0 ? m->act_bytes * (double)s->act_host / n_act : m->act_bytes,
        .kv_bytes = n_kv > 0 ? m->kv_bytes * (double)s->kv_host / n_kv : m->kv_bytes};
}

/* Returns the share of the requests that mini-batch i has. */
static double part(const struct lanes *l, int i)
{
    return (double)requests_of(l->m, i) / l->m->n_requests;
}

static double compute_seconds(const struct lanes *l, int i, double n_act)
{
    double project = n_act > 0 ? l->m->project.a_s + l->m->project.b_s * n_act : 0;
    return l->forward_s * part(l, i) + project;
}

static double link_seconds(const struct lanes *l, int i, double n_act)
{
    double bytes = l->act_bytes * n_act + l->kv_bytes * (l->n_blocks * part(l, i) - n_act);
    return l->m->weights_s / l->k +
           (bytes > 0 ? l->m->link.a_s + l->m->link.b_s * bytes : 0);
}

static double layer_seconds(const struct lanes *l, const int64_t *act)
{
    double seconds = 0;
    for (int i = 0, next; i < l->k; i++) {
        next = (i + 1) % l->k;
        seconds += fmax(compute_seconds(l, i, (double)act[i]),
                        link_seconds(l, next, (double)act[next]));
    }
    if (l->m->n_layers > 0)
        seconds += fmin(compute_seconds(l, l->k - 1, (double)act[l->k - 1]),
                        link_seconds(l, 0, (double)act[0])) /
                   l->m->n_layers;
    return seconds;
}

/* Returns the seconds of the link that one ACT block saves in place of a KV block. */
static double saved_seconds(const struct lanes *l)
{
    return l->m->link.b_s * (l->kv_bytes - l->act_bytes);
}

/* --- the equations ---------------------------------------------------------------------------- */

static double clamp(double x, double most)
{
    return fmin(fmax(x, 0), most);
}

/* Returns by how many seconds the link works longer than compute, with n_act ACT blocks in all. */
static double link_excess(const struct lanes *l, double n_act)
{
    double excess = 0;
    for (int i = 0; i < l->k; i++) {
        double n = n_act * part(l, i);
        excess += link_seconds(l, i, n) - compute_seconds(l, i, n);
    }
    return excess;
}

/* Returns the number of ACT blocks of mini-batch i with which its compute takes as long as the link
 * of the next mini-batch, less mini-batch i's part of the excess. */
static double from_next(const struct lanes *l, double excess, int i, double next)
{
    double seconds = link_seconds(l, (i + 1) % l->k, next) -
                     (excess + l->forward_s) * part(l, i) - l->m->project.a_s;
    return clamp(seconds / l->m->project.b_s, l->n_blocks * part(l, i));
}

/* Solves the same equation for mini-batch i + 1: returns its ACT blocks, given those of
 * mini-batch i. */
static double from_this(const struct lanes *l, double excess, int i, double this)
{
    int next = (i + 1) % l->k;
    double seconds = compute_seconds(l, i, this) + excess * part(l, i);
    return clamp((link_seconds(l, next, 0) - seconds) / saved_seconds(l),
                 l->n_blocks * part(l, next));
}

/* Solves  compute(i) = link(i + 1) - excess * part(i)  for all i. Goes round in the direction in
 * which the error of a guess shrinks from one mini-batch to the next. */
static void solve(const struct lanes *l, double n_act, double *x)
{
    enum { ROUNDS = 20 };
    double excess = link_excess(l, n_act), change = 1;
    bool is_backward = saved_seconds(l) < l->m->project.b_s;
    for (int i = 0; i < l->k; i++)
        x[i] = n_act * part(l, i);
    for (int round = 0; round < ROUNDS && change > 0.01; round++) {
        change = 0;
        for (int j = 0; j < l->k; j++) {
            int i = is_backward ? l->k - 1 - j : j, next = (i + 1) % l->k;
            double *p = is_backward ? &x[i] : &x[next], old = *p;
            *p = is_backward ? from_next(l, excess, i, x[next])
                             : from_this(l, excess, i, x[i]);
            change = fmax(change, fabs(*p - old));
        }
    }
}

/* Scales the numbers of ACT blocks, or the numbers of KV blocks that remain, so that the ACT blocks
 * sum to n_act. */
static void scale(const struct lanes *l, double n_act, double *x)
{
    double sum = 0;
    for (int i = 0; i < l->k; i++)
        sum += x[i];
    double left = l->n_blocks - sum;
    for (int i = 0; i < l->k; i++) {
        if (sum > n_act)
            x[i] *= n_act / sum;
        else if (left > 0)
            x[i] += (l->n_blocks * part(l, i) - x[i]) * (n_act - sum) / left;
    }
}

/* Rounds the numbers so that the sum of the first i changes by less than one, for each i. */
static void round_all(const double *x, int n, int64_t total, int64_t *act)
{
    double sum = 0;
    int64_t before = 0;
    for (int i = 0; i < n; i++) {
        sum += x[i];
        int64_t upto = i + 1 < n ? llround(sum) : total;
        act[i] = upto - before;
        before = upto;
    }
}

/* Moves one ACT block from mini-batch i to j. Returns false if i has none or j has no KV block. */
static bool move_one(const struct lanes *l, int64_t *act, int i, int j)
{
    if (i == j || act[i] == 0 || (double)act[j] + 1 > l->n_blocks * part(l, j))
        return false;
    act[i]--;
    act[j]++;
    return true;
}

/* Moves single blocks while this shortens the layer, since the rounded solution is not always the
 * best one in whole numbers. Returns the seconds of the layer. */
static double polish(const struct lanes *l, int64_t *act)
{
    enum { ROUNDS = 4, MOST = 16 };
    double best = layer_seconds(l, act);
    bool is_better = l->k <= MOST;
    for (int round = 0; round < ROUNDS && is_better; round++) {
        is_better = false;
        for (int i = 0; i < l->k; i++)
            for (int j = 0; j < l->k; j++) {
                if (!move_one(l, act, i, j))
                    continue;
                double seconds = layer_seconds(l, act);
                if (seconds < best) {
                    best = seconds;
                    is_better = true;
                } else {
                    act[i]++;
                    act[j]--;
                }
            }
    }
    return best;
}

static bool can_share(const struct hybrid_machine *m, const struct lanes *l)
{
    return m->n_requests % m->n_minibatches != 0 && l->k <= HYBRID_SHARE_MOST &&
           saved_seconds(l) > 0;
}

double hybrid_share_out(const struct hybrid_machine *m, const struct hybrid_split *s,
                        int64_t *act)
{
    double x[HYBRID_SHARE_MOST];
    struct lanes l = lanes_of(m, s);
    if (!can_share(m, &l))
        return INFINITY;
    solve(&l, (double)n_act_of(s), x);
    scale(&l, (double)n_act_of(s), x);
    round_all(x, l.k, n_act_of(s), act);
    return polish(&l, act);
}

/* --- requests --------------------------------------------------------------------------------- */

/* Returns the ACT blocks of the first n requests if all requests have equally many. */
static int64_t equal_share(const struct hybrid_machine *m, const struct hybrid_split *s,
                           int n)
{
    return n_act_of(s) * n / m->n_requests;
}

void hybrid_share_requests(const struct hybrid_machine *m, const struct hybrid_split *s,
                           int64_t *act)
{
    int64_t shares[HYBRID_SHARE_MOST];
    if (!s->is_shared_out) {
        for (int i = 0; i < m->n_requests; i++)
            act[i] = equal_share(m, s, i + 1) - equal_share(m, s, i);
        return;
    }
    hybrid_share_out(m, s, shares);
    for (int k = 0, at = 0; k < m->n_minibatches; k++) {
        int n = requests_of(m, k);
        for (int j = 0; j < n; j++)
            act[at++] = shares[k] * (j + 1) / n - shares[k] * j / n;
    }
}
