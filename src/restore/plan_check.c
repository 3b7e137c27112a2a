/* plan_check.c - refuses requests and forced plans that make no sense, with a message for each
 * case, and adapts forced plans to the existing records. */
#include <math.h>
#include <string.h>

#include "restore/plan_parts.h"

static int bad_number(struct err *e, const char *what, double x, int layer)
{
    const char *why = isnan(x) ? "not a number" : isinf(x) ? "infinite" : "negative";
    if (layer >= 0)
        return err_set(e, ERR_USAGE, "plan request: layer %d: %s is %s", layer, what, why);
    return err_set(e, ERR_USAGE, "plan request: %s is %s", what, why);
}

static bool is_cost(double x)
{
    return isfinite(x) && x >= 0;
}

static int check_layer(const struct plan_layer *l, int i, struct err *e)
{
    const struct {
        const char *name;
        double value;
        bool used;
    } costs[] = {
        {"io_h_s", l->io_h_s, l->has_h && !l->h_free},
        {"up_h_s", l->up_h_s, l->has_h && !l->h_free},
        {"comp_h_s", l->comp_h_s, l->has_h && !l->h_free},
        {"io_kv_s", l->io_kv_s, l->has_kv},
        {"up_kv_s", l->up_kv_s, l->has_kv},
        {"comp_kv_s", l->comp_kv_s, l->has_kv},
        {"comp_tok_s", l->comp_tok_s, l->can_recompute},
        {"comp_tok_last_s", l->comp_tok_last_s, l->can_recompute || l->h_free},
        {"h_bytes", l->h_bytes, l->has_h},
        {"kv_bytes", l->kv_bytes, l->has_kv},
    };
    for (size_t c = 0; c < sizeof costs / sizeof *costs; c++)
        if (costs[c].used && !is_cost(costs[c].value))
            return bad_number(e, costs[c].name, costs[c].value, i);
    if (l->h_free && i > 0)
        return err_set(e, ERR_USAGE, "plan request: layer %d: only layer 0 can be h_free",
                       i);
    return 0;
}

static int check_factor(const char *name, double x, struct err *e)
{
    if (x == 0 || (isfinite(x) && x >= 1))
        return 0;
    if (is_cost(x))
        return err_set(e, ERR_USAGE, "plan request: %s is %g, less than 1", name, x);
    return bad_number(e, name, x, -1);
}

int plan_check_request(const struct plan_request *q, struct err *e)
{
    if (q->n_layers < 1 || q->n_layers > PLAN_MAX_LAYERS || q->layer == NULL)
        return err_set(e, ERR_USAGE, "plan request: %d layers; 1 to %d can be planned",
                       q->n_layers, PLAN_MAX_LAYERS);
    if (q->n_stages < 0 || q->n_stages > PLAN_MAX_STAGES || q->n_stages > q->n_layers)
        return err_set(e, ERR_USAGE,
                       "plan request: %d stages; 0 to %d can be planned, each with one of "
                       "%d layers",
                       q->n_stages, PLAN_MAX_STAGES, q->n_layers);
    const struct {
        const char *name;
        double value;
    } costs[] = {{"head_s", q->head_s},
                 {"io_latency_s", q->io_latency_s},
                 {"budget_bytes_per_token", q->budget_bytes_per_token}};
    for (size_t c = 0; c < sizeof costs / sizeof *costs; c++)
        if (!is_cost(costs[c].value))
            return bad_number(e, costs[c].name, costs[c].value, -1);
    int rc = check_factor("io_overlap", q->io_overlap, e);
    if (rc == 0)
        rc = check_factor("spread", q->spread, e);
    if (rc == 0)
        rc = check_factor("comp_overlap", q->comp_overlap, e);
    for (int i = 0; rc == 0 && i < q->n_layers; i++) {
        rc = check_layer(&q->layer[i], i, e);
        if (rc == 0 && q->prefill_s != NULL && !is_cost(q->prefill_s[i]))
            rc = bad_number(e, "prefill_s", q->prefill_s[i], i);
    }
    return rc;
}

static int check_recompute(const struct plan_request *q, int r, struct err *e)
{
    if (r == 1 && q->layer[0].h_free)
        return 0;
    for (int i = 0; i < r; i++)
        if (!q->layer[i].can_recompute)
            return err_set(e, ERR_NOT_FOUND, "plan: layer %d cannot be recomputed", i);
    return 0;
}

int plan_check_method(const struct plan_request *q, const char *method, struct err *e)
{
    int r = plan_prefix_r(method);
    for (int i = 0; i < q->n_layers; i++) {
        const struct plan_layer *l = &q->layer[i];
        switch (method[i]) {
        case 'R':
            if (i >= r)
                return err_set(
                    e, ERR_USAGE,
                    "plan: layer %d is R after %c at layer %d; recomputed layers must "
                    "be the first ones",
                    i, method[r], r);
            break;
        case 'H':
            if (!l->has_h && !l->h_free)
                return err_set(e, ERR_NOT_FOUND,
                               "plan: layer %d is H, but the store has no hidden "
                               "states of it",
                               i);
            break;
        case 'K':
            if (!l->has_kv)
                return err_set(e, ERR_NOT_FOUND,
                               "plan: layer %d is K, but the store has no KV of it", i);
            break;
        default:
            return err_set(e, ERR_USAGE, "plan: layer %d is '%c'; a letter is R, H or K", i,
                           method[i] >= ' ' && method[i] < 127 ? method[i] : '?');
        }
    }
    return check_recompute(q, r, e);
}

/* Returns the method that restores layer i if `wanted` is forced; 0 if it has no record. */
static char possible(const struct plan_request *q, int i, char wanted)
{
    const struct plan_layer *l = &q->layer[i];
    bool h = l->has_h || l->h_free;
    if (wanted == 'K')
        return l->has_kv ? 'K' : h ? 'H' : 0;
    return h ? 'H' : l->has_kv ? 'K' : 0;
}

void plan_adapt(const struct plan_request *q, struct plan *out)
{
    int r = plan_prefix_r(out->method), need = r;
    /* Layer 0 needs no record: its hidden states are the embedding rows. */
    if (out->method[0] == 'K' && !q->layer[0].has_kv && !q->layer[0].has_h)
        need = q->layer[0].h_free ? 1 : need;
    for (int i = r; i < q->n_layers; i++)
        if (strchr("HK", out->method[i]) != NULL && possible(q, i, out->method[i]) == 0)
            need = i + 1;
    if (check_recompute(q, need, NULL) != 0)
        return; /* plan_check_method names the layer */
    for (int i = r; i < need; i++)
        out->method[i] = 'R';
    for (int i = need; i < q->n_layers; i++)
        if (strchr("HK", out->method[i]) != NULL)
            out->method[i] = possible(q, i, out->method[i]);
    out->n_r_added = need - r;
}
