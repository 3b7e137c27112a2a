/* minibatch.c - see minibatch.h. */
#include "policy/minibatch.h"

#include <math.h>

static double project_seconds(const struct hybrid_machine *m, int64_t n_act)
{
    return n_act > 0 ? m->project.a_s + m->project.b_s * (double)n_act : 0;
}

static double load_seconds(const struct hybrid_machine *m, double bytes)
{
    return bytes > 0 ? m->link.a_s + m->link.b_s * bytes : 0;
}

/* The longer over the shorter. */
static double ratio_of(double a, double b)
{
    if (a == b)
        return 1;
    return a > b ? a / b : b / a;
}

/* Seconds until blocks of both types have come. */
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

struct bin {
    int64_t n_act, n_kv;
    bool is_empty;
};

static bool has_room(const struct bin *b, const struct minibatch_room *room,
                     const struct minibatch_request *r)
{
    return b->is_empty ||
           (b->n_act + r->n_act <= room->n_act && b->n_kv + r->n_kv <= room->n_kv &&
            b->n_act + r->n_act + b->n_kv + r->n_kv <= room->n_both);
}

static double imbalance_with(const struct hybrid_machine *m, const struct bin *b,
                             const struct minibatch_request *r)
{
    return minibatch_imbalance(m, b->n_act + r->n_act, b->n_kv + r->n_kv);
}

static void put(struct bin *b, const struct minibatch_request *r)
{
    b->n_act += r->n_act;
    b->n_kv += r->n_kv;
    b->is_empty = false;
}

/* --- the print -------------------------------------------------------------------------------- */

/* Fills mini-batch k; returns how many requests joined. */
static int fill_in_order(const struct hybrid_machine *m, const struct minibatch_room *room,
                         const struct minibatch_request *r, int n, int k, int *of)
{
    struct bin b = {0, 0, true};
    int joined = 0;
    for (int i = 0; i < n; i++) {
        if (of[i] >= 0 || !has_room(&b, room, &r[i]))
            continue;
        if (!b.is_empty &&
            imbalance_with(m, &b, &r[i]) > minibatch_imbalance(m, b.n_act, b.n_kv))
            continue;
        put(&b, &r[i]);
        of[i] = k;
        joined++;
    }
    return joined;
}

/* --- balanced --------------------------------------------------------------------------------- */

/* As minibatch_imbalance with the request in the bin, but with the transfer of ACT blocks. */
static double whole_imbalance(const struct hybrid_machine *m, const struct bin *b,
                              const struct minibatch_request *r)
{
    int64_t n_act = b->n_act + r->n_act, n_kv = b->n_kv + r->n_kv;
    return ratio_of(project_seconds(m, n_act), load_both_seconds(m, n_act, n_kv));
}

/* Returns the request that joins next, or -1: into an empty mini-batch the one that takes longest,
 * else the one that leaves the least imbalance, of several alike the longest. */
static int next_to_join(const struct hybrid_machine *m, const struct minibatch_room *room,
                        const struct minibatch_request *r, int n, const struct bin *b,
                        const int *of)
{
    int best = -1;
    double best_imbalance = 0, best_seconds = 0;
    for (int i = 0; i < n; i++) {
        if (of[i] >= 0 || !has_room(b, room, &r[i]))
            continue;
        double imbalance = b->is_empty ? 1 : whole_imbalance(m, b, &r[i]);
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

static int fill_balanced(const struct hybrid_machine *m, const struct minibatch_room *room,
                         const struct minibatch_request *r, int n, int k, int *of)
{
    struct bin b = {0, 0, true};
    int joined = 0, i;
    while ((i = next_to_join(m, room, r, n, &b, of)) >= 0) {
        put(&b, &r[i]);
        of[i] = k;
        joined++;
    }
    return joined;
}

int minibatch_form(const struct hybrid_machine *m, const struct minibatch_room *room,
                   const struct minibatch_request *r, int n, enum minibatch_method method,
                   int *of)
{
    int n_bins = 0;
    for (int i = 0; i < n; i++)
        of[i] = -1;
    for (int left = n; left > 0; n_bins++)
        left -= method == MINIBATCH_PAPER ? fill_in_order(m, room, r, n, n_bins, of)
                                          : fill_balanced(m, room, r, n, n_bins, of);
    return n_bins;
}
