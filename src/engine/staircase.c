/* staircase.c - see staircase.h. */
#include "engine/staircase.h"

#include "base/check.h"
#include "base/minmax.h"

struct staircase staircase_of(const struct truncation *t, int64_t from, int64_t n)
{
    CHECK(from >= 0 && from <= n);
    int64_t cut = truncation_cut(t, from), end = truncation_end(t, cut);
    struct staircase c = {.past = truncation_position(t, cut, from),
                          .n_first = MIN(n, end) - from};
    if (n > end) {
        c.n_whole = (n - end) / t->step;
        c.n_last = (n - end) % t->step;
    }
    return c;
}

int64_t staircase_moves(const struct staircase *c)
{
    return c->n_whole + (c->n_last > 0);
}

double staircase_price_s(const struct platform *p, const struct truncation *t, int64_t from,
                         int64_t n)
{
    struct staircase c = staircase_of(t, from, n);
    int64_t moved = t->context - t->step;
    double s = c.n_first > 0 ? platform_prefill_s(p, c.past, c.n_first) : 0;
    s += (double)staircase_moves(&c) * platform_kv_s(p, moved);
    if (c.n_whole > 0)
        s += (double)c.n_whole * platform_prefill_s(p, moved, t->step);
    if (c.n_last > 0)
        s += platform_prefill_s(p, moved, c.n_last);
    return p->n_layers * s;
}

bool staircase_pays(double replay_s, double restore_s)
{
    return replay_s > 0 && replay_s < restore_s;
}

double staircase_share(const struct truncation *t, int64_t n)
{
    int64_t cut = n > 0 ? truncation_cut(t, n - 1) : 0;
    return cut == 0 ? 1 : (double)n / (double)(n - cut);
}
