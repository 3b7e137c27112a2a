/* hybrid.c - see hybrid.h. */
#include "engine/hybrid.h"

#include <math.h>

#include "engine/hybrid_share.h"

/* ACT blocks must shorten a step by at least this share, because a second kind of block has costs
 * of its own. */
#define LEAST_GAIN 0.03

static double line(const struct hybrid_line *l, double n, int n_minibatches)
{
    return n > 0 ? l->a_s * n_minibatches + l->b_s * n : 0;
}

static double link_seconds(const struct hybrid_machine *m, double bytes)
{
    return m->weights_s + line(&m->link, bytes, m->n_minibatches);
}

static double compute_seconds(const struct hybrid_machine *m, int64_t n_act)
{
    return m->forward_s + m->forward_mini_s * (m->n_minibatches - 1) +
           line(&m->project, (double)n_act, m->n_minibatches);
}

/* --- mini-batches ----------------------------------------------------------------------------- */

/* The shares of a lane's time that a large and a small mini-batch take. */
struct sizes {
    int n_large, n_small; /* large ones have one more request */
    double large, small;
};

static struct sizes sizes_of(const struct hybrid_machine *m)
{
    int k = m->n_minibatches, n = m->n_requests;
    if (n == 0)
        return (struct sizes){.n_small = k, .small = 1.0 / k};
    return (struct sizes){.n_large = n % k,
                          .n_small = k - n % k,
                          .large = (double)(n / k + 1) / n,
                          .small = (double)(n / k) / n};
}

/* Returns the seconds of a layer whose lanes take link_s and compute_s. The large mini-batches come
 * first, so each layer has two changes of size. */
static double overlap(const struct hybrid_machine *m, double link_s, double compute_s)
{
    struct sizes z = sizes_of(m);
    double longer = fmax(link_s, compute_s), ends;
    if (z.n_large == 0) {
        ends = z.small * fmin(link_s, compute_s);
        return longer + (m->n_layers > 0 ? ends / m->n_layers : 0);
    }
    double seconds = (z.n_large - 1) * z.large * longer +
                     (z.n_small - 1) * z.small * longer +
                     fmax(z.large * compute_s, z.small * link_s) +
                     fmax(z.small * compute_s, z.large * link_s);
    ends = fmin(z.small * compute_s, z.large * link_s);
    return seconds + (m->n_layers > 0 ? ends / m->n_layers : 0);
}

static int64_t least(int64_t a, double b)
{
    return (int64_t)fmin((double)a, b);
}

/* --- placing ---------------------------------------------------------------------------------- */

static double host_bytes(const struct hybrid_machine *m, const struct hybrid_split *s)
{
    return (double)s->act_host * m->act_bytes + (double)s->kv_host * m->kv_bytes;
}

void hybrid_place(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                  int64_t n_blocks, int64_t n_act, struct hybrid_split *out)
{
    int64_t n_kv = n_blocks - n_act;
    double room = mem->device_bytes;
    *out = (struct hybrid_split){0};
    out->act_device = least(n_act, floor(room / m->act_bytes));
    room -= (double)out->act_device * m->act_bytes;
    out->kv_device = least(n_kv, floor(room / m->kv_bytes));
    out->act_host = n_act - out->act_device;
    out->kv_host = n_kv - out->kv_device;
    out->link_s = link_seconds(m, host_bytes(m, out));
    out->compute_s = compute_seconds(m, n_act);
    out->seconds = overlap(m, out->link_s, out->compute_s);
    int64_t device = least(n_blocks, floor(mem->device_bytes / m->kv_bytes));
    double kv_only = (double)(n_blocks - device) * m->kv_bytes;
    out->kv_seconds = overlap(m, link_seconds(m, kv_only), compute_seconds(m, 0));
    out->fits = host_bytes(m, out) <= mem->host_bytes;
    if (!out->fits)
        *out = (struct hybrid_split){.kv_seconds = out->kv_seconds};
}

/* --- choosing --------------------------------------------------------------------------------- */

/* Returns the least n_act in [0, n_blocks] with which the blocks fit and the link either brings
 * only weights or takes at most `ratio` times as long as compute. If `ratio` is infinite, the
 * blocks only have to fit. Returns n_blocks + 1 if there is none. Each condition also holds for all
 * larger n_act. */
static int64_t first_with(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                          int64_t n_blocks, double ratio)
{
    int64_t low = 0, high = n_blocks + 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        struct hybrid_split s;
        hybrid_place(m, mem, n_blocks, middle, &s);
        if (s.fits && s.link_s <= fmax(m->weights_s, ratio * s.compute_s))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Replaces *best by the split with n_act ACT blocks if that fits and is faster. */
static void try_one(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                    int64_t n_blocks, int64_t n_act, struct hybrid_split *best)
{
    struct hybrid_split s;
    if (n_act < 0 || n_act > n_blocks)
        return;
    hybrid_place(m, mem, n_blocks, n_act, &s);
    if (!s.fits)
        return;
    int64_t shares[HYBRID_SHARE_MOST];
    double seconds = hybrid_share_out(m, &s, shares);
    s.is_shared_out = seconds < s.seconds;
    s.seconds = fmin(s.seconds, seconds);
    if (!best->fits || s.seconds < best->seconds)
        *best = s;
}

static void try_around(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                       int64_t n_blocks, double ratio, struct hybrid_split *best)
{
    int64_t at = first_with(m, mem, n_blocks, ratio);
    for (int64_t n = at - 3; n <= at + 3; n++)
        try_one(m, mem, n_blocks, n, best);
}

/* With a larger n_act the link takes less time and compute takes more. So the seconds of a layer
 * first fall and then rise. Their curve bends where the lanes of two overlapping mini-batches take
 * equal time. The best n_act is at one of these bends, or is the least that fits, or the least that
 * leaves nothing on the host. With unequal shares both lanes take equal time at the best n_act. The
 * device holds whole blocks only, which moves a bend by less than two blocks. */
void hybrid_choose(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                   int64_t n_blocks, struct hybrid_split *out)
{
    struct hybrid_split plain;
    struct sizes z = sizes_of(m);
    hybrid_place(m, mem, n_blocks, 0, &plain);
    *out = plain;
    if (m->act_bytes >= m->kv_bytes)
        return;
    try_around(m, mem, n_blocks, INFINITY, out);
    try_around(m, mem, n_blocks, 0, out);
    try_around(m, mem, n_blocks, 1, out);
    if (z.n_large > 0) {
        try_around(m, mem, n_blocks, z.large / z.small, out);
        try_around(m, mem, n_blocks, z.small / z.large, out);
    }
    try_one(m, mem, n_blocks, n_blocks, out);
    if (plain.fits && out->seconds > (1 - LEAST_GAIN) * plain.seconds)
        *out = plain;
}

/* --- Algorithm 1 ------------------------------------------------------------------------------ */

/* Returns the n at which a_s + b_s * n is `seconds`; 0 if a_s alone is more. */
static double solve(double a_s, double b_s, double seconds)
{
    return seconds > a_s ? (seconds - a_s) / b_s : 0;
}

static void initial_allocation(const struct hybrid_machine *m, double act_gpu,
                               struct hybrid_shares *s)
{
    double budget = m->weights_s - line(&m->project, act_gpu, 1);
    if (budget >= 0)
        s->act_init = solve(m->project.a_s, m->project.b_s, budget);
    else
        s->kv_init = solve(m->link.a_s, m->link.b_s * m->kv_bytes, -budget);
}

/* Solves  room = act_bytes * act + kv_bytes * kv  and  T_project(act) = T_load(kv). */
static void allocate_remaining(const struct hybrid_machine *m, double room,
                               struct hybrid_shares *s)
{
    double kv_s = m->link.b_s * m->kv_bytes;
    double shift = (m->project.a_s - m->link.a_s) / kv_s, slope = m->project.b_s / kv_s;
    double act = (room - m->kv_bytes * shift) / (m->act_bytes + m->kv_bytes * slope);
    act = fmin(fmax(act, 0), room / m->act_bytes);
    s->act_remain = act;
    s->kv_remain = (room - m->act_bytes * act) / m->kv_bytes;
}

void hybrid_paper(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                  struct hybrid_shares *out)
{
    *out = (struct hybrid_shares){0};
    initial_allocation(m, floor(mem->device_bytes / m->act_bytes), out);
    out->act_init = fmin(out->act_init, mem->host_bytes / m->act_bytes);
    out->kv_init = fmin(out->kv_init, mem->host_bytes / m->kv_bytes);
    double occupied = out->act_init * m->act_bytes + out->kv_init * m->kv_bytes;
    allocate_remaining(m, fmax(mem->host_bytes - occupied, 0), out);
    out->act_host = out->act_init + out->act_remain;
    out->kv_host = out->kv_init + out->kv_remain;
}

bool hybrid_next_is_act(double act_share, double kv_share, int64_t n_act, int64_t n_kv)
{
    double act = (double)n_act * kv_share, kv = act_share * (double)n_kv;
    return act < kv || (act == kv && act_share >= kv_share);
}
