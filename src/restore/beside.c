/* beside.c - see beside.h. */
#include "restore/beside.h"

void beside_earn(struct beside_credit *c, int64_t pass_ns, int64_t free_ns)
{
    int64_t earned = (int64_t)(BESIDE_RESTORE_SHARE * (double)pass_ns) + free_ns;
    c->ns += earned;
    if (c->ns > earned)
        c->ns = earned;
}

int64_t beside_free_ns(int64_t wait_ns, int64_t ahead_ns)
{
    return wait_ns < ahead_ns ? wait_ns : ahead_ns;
}

void beside_pay(struct beside_credit *c, int64_t cost_ns)
{
    c->ns -= cost_ns;
}

bool beside_may_work(const struct beside_credit *c)
{
    return c->ns > 0;
}

int64_t beside_alone_ns(int64_t pass_ns)
{
    return pass_ns > BESIDE_ALONE_NS ? pass_ns : BESIDE_ALONE_NS;
}

void beside_slow(struct plan_request *req)
{
    req->comp_slow = 1 / BESIDE_RESTORE_SHARE;
    req->prefill_slow = BESIDE_PREFILL_SLOW;
}

/* Updates a running mean over about eight steps. The first value is taken as it is. */
static void average(double *mean, double x)
{
    *mean += (x - *mean) * (*mean == 0 ? 1 : 0.125);
}

void beside_learn(struct beside_speed *s, int n_decodes, int n_rows, int64_t ns)
{
    int n_prefill = n_rows - n_decodes;
    if (n_prefill == 0)
        average(&s->decode_ns, (double)ns);
    else if (n_decodes == 0)
        average(&s->row_ns, (double)ns / n_rows);
    else if ((double)ns > s->decode_ns)
        average(&s->row_ns, ((double)ns - s->decode_ns) / n_prefill);
}

int beside_rows_left(int step_rows, int rows_beside, int n_decodes, int n_rows)
{
    int of_step = step_rows - n_rows, of_prompts = rows_beside - (n_rows - n_decodes);
    return of_step < of_prompts ? of_step : of_prompts;
}

int beside_fused_rows(int n_new, int rows_left, int n_layers)
{
    return n_new < BESIDE_LEAST_FUSED || rows_left <= 0 ? 0 : rows_left * n_layers;
}

int beside_rows(const struct beside_speed *s)
{
    double rows = s->decode_ns > 0 && s->row_ns > 0
                      ? (BESIDE_STRETCH - 1) * s->decode_ns / s->row_ns
                      : 0;
    return rows > 1e6 ? 1000000 : rows > BESIDE_LEAST_ROWS ? (int)rows : BESIDE_LEAST_ROWS;
}
