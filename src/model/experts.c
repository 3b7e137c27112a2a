/* experts.c - see experts.h.
 *
 * Rows are grouped by expert: each expert multiplies all its rows at once, so that its weights are
 * read once for the batch. */
#include "model/experts.h"

#include <math.h>
#include <string.h>

#include "base/check.h"

/* --- the choice ------------------------------------------------------------------------------- */

/* Returns whether expert i comes before expert k. */
static bool is_before(const float *numbers, int i, int k)
{
    float x = numbers[i], y = numbers[k];
    if (isnan(x) || isnan(y))
        return isnan(x) == isnan(y) ? i < k : isnan(y);
    return x > y || (x == y && i < k);
}

/* Inserts expert i into the n best so far, of which there may be `most`. Returns their number. */
static int insert(const float *numbers, int32_t *best, int n, int most, int i)
{
    int at = n;
    while (at > 0 && is_before(numbers, i, best[at - 1]))
        at--;
    if (at == most)
        return n;
    n = n < most ? n + 1 : n;
    memmove(best + at + 1, best + at, (size_t)(n - 1 - at) * sizeof *best);
    best[at] = i;
    return n;
}

/* Sets the experts of all groups but the chosen ones to NaN, so that they are chosen last. */
static void mask_groups(const struct model_config *c, float *choice)
{
    int n_chosen = 0, each = c->n_experts / c->expert_groups.n;
    float sums[MODEL_MAX_EXPERTS];
    int32_t groups[MODEL_MAX_EXPERTS_USED], best[2];
    bool is_chosen[MODEL_MAX_EXPERTS] = {false};
    for (int g = 0; g < c->expert_groups.n; g++) {
        const float *of = choice + (ptrdiff_t)g * each;
        for (int i = 0, n = 0; i < each; i++)
            n = insert(of, best, n, 2, i);
        sums[g] = of[best[0]] + of[best[1]];
        n_chosen = insert(sums, groups, n_chosen, c->expert_groups.used, g);
    }
    for (int i = 0; i < n_chosen; i++)
        is_chosen[groups[i]] = true;
    for (int i = 0; i < c->n_experts; i++)
        if (!is_chosen[i / each])
            choice[i] = NAN;
}

/* Returns the share of an expert before shares are divided by their sum. */
static double share_of(const struct model_config *c, float number, double largest)
{
    return c->router_sigmoid ? 1 / (1 + exp(-(double)number))
                             : exp((double)number - largest);
}

void experts_choose(const struct model_config *c, const float *numbers, const float *bias,
                    int32_t *ids, float *weights)
{
    int n = 0, k = c->n_experts_used;
    float choice[MODEL_MAX_EXPERTS];
    CHECK(c->n_experts <= MODEL_MAX_EXPERTS);
    for (int i = 0; i < c->n_experts; i++)
        choice[i] = c->router_sigmoid ? (float)share_of(c, numbers[i], 0) + bias[i]
                                      : numbers[i];
    if (c->expert_groups.n > 0)
        mask_groups(c, choice);
    for (int i = 0; i < c->n_experts; i++)
        n = insert(choice, ids, n, k, i);
    double largest = (double)numbers[ids[0]], sum = 0;
    for (int i = 1; i < k; i++) /* few: sorts them by index */
        for (int m = i; m > 0 && ids[m] < ids[m - 1]; m--) {
            int32_t id = ids[m];
            ids[m] = ids[m - 1];
            ids[m - 1] = id;
        }
    int n_summed = c->experts_normed ? k : c->router_sigmoid ? 0 : c->n_experts;
    for (int i = 0; i < n_summed; i++)
        sum += share_of(c, numbers[c->experts_normed ? ids[i] : i], largest);
    /* The sum of sigmoids may be 0. That of a softmax is at least 1, and 1e-20 changes nothing. */
    sum = n_summed > 0 ? sum + 1e-20 : 1;
    for (int i = 0; i < k; i++)
        weights[i] = (float)(share_of(c, numbers[ids[i]], largest) / sum *
                             (double)c->experts_scale);
}

/* --- the MLPs --------------------------------------------------------------------------------- */

struct weight weight_run(const struct model *m, const struct weight *w, int e, int64_t n)
{
    size_t each = m->dev->ops->weight_bytes(w->dtype, n, w->k);
    struct weight one = *w;
    one.n = n;
    one.mem.ptr = (uint8_t *)w->mem.ptr + (size_t)e * each;
    one.mem.bytes = each;
    return one;
}

/* Gathers the rows of `normed` that use expert e into `rows`. Returns their number; use[i] is the
 * number of the i-th one's place in `ids`, which has n_used for each row. */
static int gather(struct mat normed, const int32_t *ids, int n_used, int e, struct mat rows,
                  int32_t *use)
{
    int n = 0;
    size_t bytes = (size_t)normed.cols * sizeof(float);
    for (int64_t i = 0; i < normed.rows * n_used; i++) {
        if (ids[i] != e)
            continue;
        memcpy((float *)rows.data + n * rows.ld,
               (const float *)normed.data + i / n_used * normed.ld, bytes);
        use[n++] = (int32_t)i;
    }
    return n;
}

/* Adds the expert's results, each times its weight, to the rows that use it. */
static void add_results(struct mat out, struct mat results, const int32_t *use, int n_used,
                        const float *weights)
{
    for (int64_t i = 0; i < results.rows; i++) {
        const float *from = (const float *)results.data + i * results.ld;
        float *to = (float *)out.data + use[i] / n_used * out.ld, weight = weights[use[i]];
        for (int64_t k = 0; k < out.cols; k++)
            to[k] += weight * from[k];
    }
}

/* Computes out = down(act(gate) * up) of rows. out may be rows. */
static int mlp(const struct layer_call *c, const struct activations *a, struct mat rows,
               struct mat out, const struct weight *w_up, const float *b_up,
               const struct weight *w_down, const float *b_down)
{
    const struct ops *op = c->m->dev->ops;
    struct mat up = mat_cols(mat_rows(a->up, 0, rows.rows), 0, w_up->n);
    struct mat ffn = mat_cols(mat_rows(a->ffn, 0, rows.rows), 0, w_down->k);
    TRY(op->matmul(c->s, up, rows, w_up, b_up));
    TRY(op->act_mul(c->s, ffn, up, model_activation(c->m->cfg.act)));
    return op->matmul(c->s, out, ffn, w_down, b_down);
}

/* Sets *up and *down to the matrices of expert e. Where experts are read from the disk, their
 * source lends them. Otherwise all experts lie in one matrix (expert_step is 0), or each has an
 * image of expert_step bytes. */
static int find_expert(const struct layer_call *c, int e, struct weight *up,
                       struct weight *down)
{
    int rc;
    size_t step = c->lw->expert_step * (size_t)e;
    if (weights_lend_expert(&c->m->w, c->l, e, up, down, &rc))
        return rc;
    if (c->lw->expert_step == 0) {
        *up = weight_run(c->m, &c->lw->w_up, e, (int64_t)2 * c->m->cfg.n_ffn);
        *down = weight_run(c->m, &c->lw->w_down, e, c->m->cfg.n_embd);
        return 0;
    }
    *up = c->lw->w_up;
    *down = c->lw->w_down;
    up->mem.ptr = (uint8_t *)up->mem.ptr + step;
    down->mem.ptr = (uint8_t *)down->mem.ptr + step;
    return 0;
}

/* Computes expert e of the gathered rows, in place. */
static int expert(const struct layer_call *c, const struct activations *a, int e,
                  struct mat rows)
{
    const struct model_config *cfg = &c->m->cfg;
    const float *b_up = c->lw->b_up, *b_down = c->lw->b_down;
    struct weight w_up, w_down;
    TRY(find_expert(c, e, &w_up, &w_down));
    if (cfg->mlp_bias) {
        b_up += (size_t)e * (size_t)w_up.n;
        b_down += (size_t)e * (size_t)w_down.n;
    }
    return mlp(c, a, rows, rows, &w_up, b_up, &w_down, b_down);
}

/* Adds the results of the expert that every row uses, each times the sigmoid of its gate, if it has
 * one. */
static int shared_expert(const struct layer_call *c, const struct activations *a,
                         struct mat normed, struct mat out, int32_t *use, float *weights)
{
    const struct layer_weights *lw = c->lw;
    struct mat rows = mat_rows(a->rows, 0, normed.rows);
    struct mat gates = mat_cols(mat_rows(a->router, 0, normed.rows), 0, 1);
    bool gated = c->m->cfg.shared_is_gated;
    if (gated) {
        TRY(c->m->dev->ops->matmul(c->s, gates, normed, &lw->shared_gate, NULL));
        TRY(c->m->dev->ops->act(c->s, gates, ACTIVATION_SIGMOID));
    }
    TRY(mlp(c, a, normed, rows, &lw->shared_up, NULL, &lw->shared_down, NULL));
    for (int32_t i = 0; i < rows.rows; i++) {
        use[i] = i;
        weights[i] = gated ? ((const float *)gates.data)[i * gates.ld] : 1;
    }
    add_results(out, rows, use, 1, weights);
    return 0;
}

/* Computes the router's numbers from its input, and chooses the experts of each row. */
static int route(const struct layer_call *c, const struct activations *a, struct mat in,
                 int32_t *ids, float *weights)
{
    const struct model_config *cfg = &c->m->cfg;
    const float *bias = c->lw->b_router, *factors = c->lw->expert_scale;
    struct mat numbers = mat_rows(a->router, 0, in.rows);
    int n_used = cfg->n_experts_used;
    TRY(c->m->dev->ops->matmul(c->s, numbers, in, &c->lw->router,
                               cfg->router_sigmoid ? NULL : bias));
    if (cfg->dense_beside)
        TRY(scale_rows(c->m, c->w, c->s, numbers, (float)(1 / sqrt((double)cfg->n_embd))));
    for (int64_t i = 0; i < in.rows; i++)
        experts_choose(cfg, (const float *)numbers.data + i * numbers.ld, bias,
                       ids + i * n_used, weights + i * n_used);
    for (int64_t i = 0; factors != NULL && i < in.rows * n_used; i++)
        weights[i] *= factors[ids[i]];
    return 0;
}

/* Says which experts the rows use. */
static void expect_experts(const struct layer_call *c, const int32_t *ids, int64_t n)
{
    int n_used = 0, n_experts = c->m->cfg.n_experts;
    bool is_used[MODEL_MAX_EXPERTS] = {false};
    int32_t used[MODEL_MAX_EXPERTS];
    for (int64_t i = 0; i < n; i++)
        is_used[ids[i]] = true;
    for (int e = 0; e < n_experts; e++)
        if (is_used[e])
            used[n_used++] = e;
    weights_expect_experts(&c->m->w, c->l, used, n_used);
}

/* Computes the results of the MLP, and the inputs of the router and of the experts beside it, which
 * are other norms of the residual stream. */
static int mlp_beside(const struct layer_call *c, const struct activations *a,
                      struct mat normed, struct mat out, struct mat router_in)
{
    const struct ops *op = c->m->dev->ops;
    const struct layer_weights *lw = c->lw;
    struct mat sum = mat_rows(a->sum, 0, normed.rows);
    float eps = c->m->cfg.norm_eps;
    TRY(mlp(c, a, normed, out, &lw->dense_up, NULL, &lw->dense_down, NULL));
    TRY(op->rmsnorm(c->s, out, out, lw->dense_post_w, eps));
    TRY(op->rmsnorm(c->s, normed, sum, lw->experts_w, eps));
    return op->rmsnorm(c->s, router_in, sum, lw->router_scale, eps);
}

int experts_mlp(const struct layer_call *c, const struct activations *a, struct mat normed,
                struct mat out)
{
    const struct model_config *cfg = &c->m->cfg;
    const struct ops *op = c->m->dev->ops;
    int n_used = cfg->n_experts_used;
    int64_t n = normed.rows;
    int32_t *ids = a->experts, *use = ids + n * n_used;
    float *weights = (float *)(use + n);
    struct mat all = out, router_in = normed;
    if (!config_has_experts(cfg, c->l))
        return mlp(c, a, normed, out, &c->lw->dense_up, NULL, &c->lw->dense_down, NULL);
    CHECK(normed.dtype == DTYPE_F32 && out.dtype == DTYPE_F32);
    if (cfg->dense_beside) {
        all = mat_rows(a->beside, 0, n);
        router_in = mat_rows(a->rows, 0, n);
        TRY(mlp_beside(c, a, normed, out, router_in));
    }
    TRY(route(c, a, router_in, ids, weights));
    expect_experts(c, ids, n * n_used);
    for (int64_t i = 0; i < n; i++)
        memset((float *)all.data + i * all.ld, 0, (size_t)all.cols * sizeof(float));
    for (int e = 0; e < cfg->n_experts; e++) {
        int n_rows = gather(normed, ids, n_used, e, a->rows, use);
        struct mat rows = mat_rows(a->rows, 0, n_rows);
        if (n_rows == 0)
            continue;
        TRY(expert(c, a, e, rows));
        add_results(all, rows, use, n_used, weights);
    }
    if (cfg->dense_beside) {
        TRY(op->rmsnorm(c->s, all, all, c->lw->experts_post_w, cfg->norm_eps));
        return op->add(c->s, out, out, all);
    }
    return cfg->n_shared_ffn > 0 ? shared_expert(c, a, normed, out, use, weights) : 0;
}
