/* minibatch.c - see minibatch.h. */
#include "engine/minibatch.h"

#include <math.h>
#include <stddef.h>

static double project_seconds(const struct hybrid_machine *m, int64_t n_act)
{
    return n_act > 0 ? m->project.a_s + m->project.b_s * (double)n_act : 0;
}

static double load_seconds(const struct hybrid_machine *m, double bytes)
{
    return bytes > 0 ? m->link.a_s + m->link.b_s * bytes : 0;
}

/* Returns the longer time over the shorter. */
static double ratio_of(double a, double b)
{
    if (a == b)
        return 1;
    return a > b ? a / b : b / a;
}

/* Returns the seconds until the blocks of both types are loaded. */
static double load_both_seconds(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv)
{
    return load_seconds(m, (double)n_kv * m->kv_bytes + (double)n_act * m->act_bytes);
}

double minibatch_imbalance(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv)
{
    double project = project_seconds(m, n_act);
    double load = load_seconds(m, (double)n_kv * m->kv_bytes);
    return ratio_of(project, load);
}

double minibatch_seconds(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv)
{
    return fmax(project_seconds(m, n_act), load_both_seconds(m, n_act, n_kv));
}

/* Return the seconds of either lane for mini-batch i of n. */
static double compute_seconds(const struct hybrid_machine *m, const struct minibatch *b,
                              int n, int i, int n_requests)
{
    double forward = m->forward_s + m->forward_mini_s * (n - 1);
    return forward * b[i].n_requests / n_requests + project_seconds(m, b[i].n_act);
}

static double link_seconds(const struct hybrid_machine *m, const struct minibatch *b, int n,
                           int i)
{
    return m->weights_s / n + load_both_seconds(m, b[i].n_act, b[i].n_kv);
}

double minibatch_layer_seconds(const struct hybrid_machine *m, const struct minibatch *b,
                               int n)
{
    double seconds = 0;
    int n_requests = 0;
    for (int i = 0; i < n; i++)
        n_requests += b[i].n_requests;
    for (int i = 0; i < n; i++)
        seconds += fmax(compute_seconds(m, b, n, i, n_requests),
                        link_seconds(m, b, n, (i + 1) % n));
    if (m->n_layers > 0 && n > 0)
        seconds += fmin(compute_seconds(m, b, n, n - 1, n_requests),
                        link_seconds(m, b, n, 0)) /
                   m->n_layers;
    return seconds;
}

/* --- joining ---------------------------------------------------------------------------------- */

static int64_t blocks_of(const struct minibatch *b)
{
    return b->n_act + b->n_kv;
}

static bool has_room(const struct minibatch *b, const struct minibatch_room *room,
                     const struct minibatch_request *r)
{
    return b->n_requests == 0 ||
           (b->n_act + r->n_act <= room->n_act &&
            blocks_of(b) + b->n_written + r->n_act + r->n_kv + r->n_written <=
                room->n_blocks);
}

static void put(struct minibatch *b, const struct minibatch_request *r)
{
    b->n_act += r->n_act;
    b->n_kv += r->n_kv;
    b->n_written += r->n_written;
    b->n_requests++;
}

static double imbalance_with(const struct hybrid_machine *m, const struct minibatch *b,
                             const struct minibatch_request *r)
{
    return minibatch_imbalance(m, b->n_act + r->n_act, b->n_kv + r->n_kv);
}

/* --- the paper's method ----------------------------------------------------------------------- */

/* Fills mini-batch k. Of the requests without a mini-batch, in their order, each joins that has
 * room and does not raise F_b. */
static void fill_in_order(const struct hybrid_machine *m, const struct minibatch_room *room,
                          const struct minibatch_request *r, int n, int k, int *of,
                          struct minibatch *b)
{
    for (int i = 0; i < n; i++) {
        if (of[i] >= 0 || !has_room(b, room, &r[i]))
            continue;
        if (b->n_requests > 0 &&
            imbalance_with(m, b, &r[i]) > minibatch_imbalance(m, b->n_act, b->n_kv))
            continue;
        put(b, &r[i]);
        of[i] = k;
    }
}

static int form_in_order(const struct hybrid_machine *m, const struct minibatch_room *room,
                         const struct minibatch_request *r, int n, int *of,
                         struct minibatch *bins)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        of[i] = -1;
    for (int left = n; left > 0; left -= bins[k++].n_requests) {
        bins[k] = (struct minibatch){0};
        fill_in_order(m, room, r, n, k, of, &bins[k]);
    }
    return k;
}

/* --- balanced --------------------------------------------------------------------------------- */

/* Returns minibatch_imbalance of the mini-batch with the request added, but also counts the
 * transfer of ACT blocks. */
static double whole_imbalance(const struct hybrid_machine *m, const struct minibatch *b,
                              const struct minibatch_request *r)
{
    int64_t n_act = b->n_act + r->n_act, n_kv = b->n_kv + r->n_kv;
    return ratio_of(project_seconds(m, n_act), load_both_seconds(m, n_act, n_kv));
}

/* Returns whether the request brings the mini-batch nearer to its share of the blocks. */
static bool is_nearer(const struct minibatch *b, const struct minibatch_request *r,
                      double share)
{
    double without = (double)blocks_of(b), with = without + (double)(r->n_act + r->n_kv);
    return with <= share || with - share < share - without;
}

/* Returns the request that joins next, or -1. The longest request joins an empty mini-batch.
 * Otherwise the request that leaves the least imbalance joins; the longest wins a tie. */
static int next_to_join(const struct hybrid_machine *m, const struct minibatch_room *room,
                        const struct minibatch_request *r, int n, const struct minibatch *b,
                        double share, const int *of)
{
    int best = -1;
    double best_imbalance = 0, best_seconds = 0;
    for (int i = 0; i < n; i++) {
        bool is_first = b->n_requests == 0;
        if (of[i] >= 0 || !has_room(b, room, &r[i]) ||
            !(is_first || is_nearer(b, &r[i], share)))
            continue;
        double imbalance = is_first ? 1 : whole_imbalance(m, b, &r[i]);
        double seconds = minibatch_seconds(m, r[i].n_act, r[i].n_kv);
        if (best >= 0 && (imbalance > best_imbalance ||
                          (imbalance == best_imbalance && seconds <= best_seconds)))
            continue;
        best = i;
        best_imbalance = imbalance;
        best_seconds = seconds;
    }
    return best;
}

/* Forms n_bins mini-batches, or more if these have no room for all requests. Each mini-batch is
 * filled up to an equal share of the remaining blocks, plus `slack` (0 to 1) of the way from this
 * share to a full buffer. */
static int form_equal(const struct hybrid_machine *m, const struct minibatch_room *room,
                      const struct minibatch_request *r, int n, int n_bins, double slack,
                      int *of, struct minibatch *bins)
{
    int k = 0;
    int64_t blocks_left = 0;
    for (int i = 0; i < n; i++) {
        of[i] = -1;
        blocks_left += r[i].n_act + r[i].n_kv;
    }
    for (int left = n; left > 0; left -= bins[k++].n_requests) {
        struct minibatch *b = &bins[k];
        double most = (double)room->n_blocks;
        double share = k + 1 < n_bins ? (double)blocks_left / (n_bins - k) : most;
        int i;
        *b = (struct minibatch){0};
        share += slack * fmax(most - share, 0);
        while ((i = next_to_join(m, room, r, n, b, share, of)) >= 0) {
            put(b, &r[i]);
            of[i] = k;
        }
        blocks_left -= blocks_of(b);
    }
    return k;
}

/* Puts the mini-batches in the order of their load, so that neighbours differ least in size. */
static void sort_by_load(const struct hybrid_machine *m, struct minibatch *bins, int n_bins,
                         int *of, int n)
{
    for (int a = 0; a + 1 < n_bins; a++) {
        int longest = a;
        for (int b = a + 1; b < n_bins; b++)
            if (load_both_seconds(m, bins[b].n_act, bins[b].n_kv) >
                load_both_seconds(m, bins[longest].n_act, bins[longest].n_kv))
                longest = b;
        if (longest == a)
            continue;
        struct minibatch t = bins[a];
        bins[a] = bins[longest];
        bins[longest] = t;
        for (int i = 0; i < n; i++)
            of[i] = of[i] == a ? longest : of[i] == longest ? a : of[i];
    }
}

static int form_balanced(const struct hybrid_machine *m, const struct minibatch_room *room,
                         const struct minibatch_request *r, int n, double slack, int n_bins,
                         int *of, struct minibatch *bins)
{
    int k = form_equal(m, room, r, n, n_bins, slack, of, bins);
    sort_by_load(m, bins, k, of, n);
    return k;
}

/* Returns the sum of the longer lanes of all mini-batches. Each mini-batch's computation is
 * compared with its own load, not with the load of the next one. */
static double lanes_seconds(const struct hybrid_machine *m, const struct minibatch *b,
                            int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += minibatch_seconds(m, b[i].n_act, b[i].n_kv);
    return sum;
}

/* --- several ways to begin -------------------------------------------------------------------- */

/* Forms n_bins mini-batches of requests in their order. Their numbers of requests differ by at most
 * one, as hybrid_share_requests assumes. Returns false if a mini-batch has too little room. */
static bool form_as_they_come(const struct minibatch_room *room,
                              const struct minibatch_request *r, int n, int n_bins, int *of,
                              struct minibatch *bins)
{
    int at = 0;
    for (int k = 0; k < n_bins; k++) {
        bins[k] = (struct minibatch){0};
        for (int end = at + n / n_bins + (k < n % n_bins); at < end; at++) {
            if (!has_room(&bins[k], room, &r[at]))
                return false;
            put(&bins[k], &r[at]);
            of[at] = k;
        }
    }
    return true;
}

enum { N_SLACKS = 3, AS_THEY_COME = N_SLACKS, N_BEGINNINGS };

/* Forms mini-batches in one of N_BEGINNINGS ways. Returns their number, or 0 if there is no
 * room. */
static int begin(const struct hybrid_machine *m, const struct minibatch_room *room,
                 const struct minibatch_request *r, int n, int way, int n_bins, int *of,
                 struct minibatch *bins)
{
    static const double slacks[N_SLACKS] = {0, 0.25, 1};
    if (way == AS_THEY_COME)
        return form_as_they_come(room, r, n, n_bins, of, bins) ? n_bins : 0;
    return form_balanced(m, room, r, n, slacks[way], n_bins, of, bins);
}

/* Forms the mini-batches in N_BEGINNINGS ways and keeps the best. Returns their number, at most as
 * many as full buffers need. Whole requests seldom fill equal shares exactly, so several sizes of
 * the share are tried. The last way takes the requests in their order. The way whose layer takes
 * the least time wins. In a tie, the way with the smaller lanes_seconds wins. */
static int form_best(const struct hybrid_machine *m, const struct minibatch_room *room,
                     const struct minibatch_request *r, int n, int *of,
                     struct minibatch *bins)
{
    int n_bins = form_balanced(m, room, r, n, 1, 1, of, bins), best_way = N_SLACKS - 1;
    double best = INFINITY, best_lanes = INFINITY;
    if (n_bins <= 1)
        return n_bins;
    for (int way = 0; way < N_BEGINNINGS; way++) {
        int k = begin(m, room, r, n, way, n_bins, of, bins);
        if (k == 0 || k > n_bins)
            continue;
        double seconds = minibatch_layer_seconds(m, bins, k);
        double lanes = lanes_seconds(m, bins, k);
        if (seconds > best || (seconds == best && lanes >= best_lanes))
            continue;
        best = seconds;
        best_lanes = lanes;
        best_way = way;
    }
    return begin(m, room, r, n, best_way, n_bins, of, bins);
}

int minibatch_form(const struct hybrid_machine *m, const struct minibatch_room *room,
                   const struct minibatch_request *r, int n, enum minibatch_method method,
                   int *of, struct minibatch *bins)
{
    if (method == MINIBATCH_PAPER)
        return form_in_order(m, room, r, n, of, bins);
    return form_best(m, room, r, n, of, bins);
}
