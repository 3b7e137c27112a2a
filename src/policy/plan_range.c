/* plan_range.c - requests from a platform, and chains whose chunks have different records.
 *
 * A layer's descriptor over several ranges: under the letter H, tokens with hidden states
 * cost what hidden states cost and the others what KV costs, and the reverse under K.  So a
 * chain that was saved under changing policies still has two options per layer, and the
 * search need not know. Token counts are added per kind before the cost curves are applied:
 * a layer is projected once, not once per range.  Reads add up over tiers, as one I/O lane.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "policy/plan_parts.h"

double plan_io_s(const struct platform *p, int tier, int64_t n, enum platform_record kind)
{
    return p->n_stages > 1 ? platform_read_s(p, tier, n, kind)
                           : platform_io_s(p, tier, n, kind);
}

double plan_up_s(const struct platform *p, int tier, int64_t n, enum platform_record kind)
{
    return p->n_stages > 1 ? platform_up_s(p, tier, n, kind) : 0;
}

static struct plan_layer uniform_layer(const struct platform *p, int tier, int64_t n)
{
    return (struct plan_layer){
        .io_h_s = plan_io_s(p, tier, n, RECORD_HIDDEN),
        .io_kv_s = plan_io_s(p, tier, n, RECORD_KV),
        .up_h_s = plan_up_s(p, tier, n, RECORD_HIDDEN),
        .up_kv_s = plan_up_s(p, tier, n, RECORD_KV),
        .comp_h_s = platform_h_s(p, n),
        .comp_kv_s = platform_kv_s(p, n),
        .comp_tok_s = platform_tok_s(p, n),
        .comp_tok_last_s = platform_h_s(p, n),
        .h_bytes = p->h_bytes,
        .kv_bytes = p->kv_bytes,
        .has_h = true,
        .has_kv = true,
        .can_recompute = true,
    };
}

void plan_layers_uniform(const struct platform *p, int tier, int64_t n_tokens, int n_layers,
                         struct plan_layer *layer)
{
    CHECK(n_layers >= 1 && n_layers <= PLAN_MAX_LAYERS);
    for (int i = 0; i < n_layers; i++)
        layer[i] = uniform_layer(p, tier, n_tokens);
    layer[0].h_free = true;
}

static void fill_lanes(const struct platform *p, int tier, int64_t n_past, int64_t n_new,
                       struct plan_layer *layer, double *prefill_s,
                       struct plan_request *req)
{
    req->n_layers = p->n_layers;
    req->n_stages = p->n_stages;
    req->layer = layer;
    req->prefill_s = NULL;
    req->head_s = 0;
    int64_t n_fused = req->fused_tokens > 0 && n_new > req->fused_tokens ? req->fused_tokens
                                                                         : n_new;
    if (n_new > 0) {
        for (int i = 0; i < p->n_layers; i++)
            prefill_s[i] = platform_prefill_s(p, n_past, n_fused);
        prefill_s[0] += platform_ends_s(p, n_new) - platform_ends_s(p, 0);
        req->prefill_s = prefill_s;
        req->head_s = platform_ends_s(p, 0);
    }
    if (n_fused < n_new) /* in batches of their own, behind the others */
        req->head_s += p->n_layers *
                       platform_prefill_s(p, n_past + n_fused, n_new - n_fused);
    req->io_latency_s = p->tier[tier].latency_s;
    req->io_spread = exp2(p->tier[tier].correction.spread_log2);
    req->io_overlap = p->io_overlap;
    req->comp_overlap = p->comp_overlap;
    req->platform = p;
    req->n_tokens = n_past;
    req->tier = tier;
}

void plan_request_from_platform(const struct platform *p, int tier, int64_t n_history,
                                int64_t n_new, struct plan_layer *layer, double *prefill_s,
                                struct plan_request *req)
{
    memset(req, 0, sizeof *req);
    plan_layers_uniform(p, tier, n_history, p->n_layers, layer);
    fill_lanes(p, tier, n_history, n_new, layer, prefill_s, req);
}

char plan_range_method(char method, uint8_t mask, bool h_free)
{
    bool h = (mask & PLAN_HAS_H) || h_free, kv = mask & PLAN_HAS_KV;
    switch (method) {
    case 'R':
        return 'R';
    case 'H':
        return h ? 'H' : kv ? 'K' : 0;
    case 'K':
        return kv ? 'K' : h ? 'H' : 0;
    default:
        return 0;
    }
}

enum { TOKENS = 64 }; /* of a chunk: a restore begins at one */

struct share {
    int64_t h_tokens, kv_tokens;
    double io_s, up_s;
    bool possible;
};

/* What layer i costs under a letter, its first `skip` tokens left out. */
static struct share share_of(const struct platform *p, const struct plan_range *range,
                             int n_ranges, int i, char method, int64_t skip)
{
    struct share s = {.possible = true};
    for (int g = 0; g < n_ranges; g++) {
        int64_t n = range[g].n_tokens -
                    (skip < range[g].n_tokens ? skip : range[g].n_tokens);
        skip -= range[g].n_tokens - n;
        if (n == 0)
            continue;
        switch (plan_range_method(method, range[g].mask[i], false)) {
        case 'H':
            s.h_tokens += n;
            s.io_s += plan_io_s(p, range[g].tier, n, RECORD_HIDDEN);
            s.up_s += plan_up_s(p, range[g].tier, n, RECORD_HIDDEN);
            break;
        case 'K':
            s.kv_tokens += n;
            s.io_s += plan_io_s(p, range[g].tier, n, RECORD_KV);
            s.up_s += plan_up_s(p, range[g].tier, n, RECORD_KV);
            break;
        default:
            s.possible = false;
        }
    }
    return s;
}

static double share_comp_s(const struct platform *p, struct share s)
{
    return platform_h_s(p, s.h_tokens) + platform_kv_s(p, s.kv_tokens);
}

static double share_bytes(const struct platform *p, struct share s)
{
    double n = (double)(s.h_tokens + s.kv_tokens);
    return ((double)s.h_tokens * p->h_bytes + (double)s.kv_tokens * p->kv_bytes) / n;
}

/* Tokens at the start of n that layer i does not need: they lie before its window. */
static int64_t tokens_skipped(struct plan_window w, int i, int64_t n)
{
    bool windowed = w.tokens > 0 && i >= w.layer && n >= w.tokens;
    return windowed ? (n + 1 - w.tokens) / TOKENS * TOKENS : 0;
}

static void layers_in_window(const struct platform *p, const struct plan_range *range,
                             int n_ranges, int n_layers, bool can_recompute,
                             struct plan_window w, struct plan_layer *layer)
{
    CHECK(n_ranges >= 1 && n_layers >= 1 && n_layers <= PLAN_MAX_LAYERS);
    int64_t n = 0;
    for (int g = 0; g < n_ranges; g++)
        n += range[g].n_tokens;
    for (int i = 0; i < n_layers; i++) {
        struct plan_layer *l = &layer[i];
        int64_t skip = tokens_skipped(w, i, n);
        struct share h = share_of(p, range, n_ranges, i, 'H', skip);
        struct share k = share_of(p, range, n_ranges, i, 'K', skip);
        *l = uniform_layer(p, range[0].tier, n);
        l->comp_tok_last_s = platform_h_s(p, n - skip);
        l->can_recompute = can_recompute;
        l->h_free = i == 0;
        /* Where no range has the preferred kind, the letter is the other one's. */
        l->has_h = h.possible && h.h_tokens > 0;
        l->has_kv = k.possible && k.kv_tokens > 0;
        l->io_h_s = h.io_s;
        l->io_kv_s = k.io_s;
        l->up_h_s = h.up_s;
        l->up_kv_s = k.up_s;
        l->comp_h_s = share_comp_s(p, h);
        l->comp_kv_s = share_comp_s(p, k);
        l->h_bytes = h.possible ? share_bytes(p, h) : 0;
        l->kv_bytes = k.possible ? share_bytes(p, k) : 0;
    }
}

void plan_layers_from_ranges(const struct platform *p, const struct plan_range *range,
                             int n_ranges, int n_layers, bool can_recompute,
                             struct plan_layer *layer)
{
    layers_in_window(p, range, n_ranges, n_layers, can_recompute, (struct plan_window){0},
                     layer);
}

/* Prefill of the tokens that are not restored: all layers, one after another. */
static double prefill_all_s(const struct platform *p, int64_t n_past, int64_t n_new)
{
    if (n_new <= 0)
        return 0;
    return p->n_layers * platform_prefill_s(p, n_past, n_new) + platform_ends_s(p, n_new);
}

static double slow(double factor)
{
    return factor > 1 ? factor : 1;
}

/* Decodes beside the restore leave its compute, and the prefill, a share of the machine. */
static void slow_down(struct plan_request *req, struct plan_layer *layer, double *prefill_s)
{
    double comp = slow(req->comp_slow), prefill = slow(req->prefill_slow);
    for (int i = 0; i < req->n_layers; i++) {
        layer[i].comp_h_s *= comp;
        layer[i].comp_kv_s *= comp;
        layer[i].comp_tok_s *= comp;
        layer[i].comp_tok_last_s *= comp;
        if (req->prefill_s != NULL)
            prefill_s[i] *= prefill;
    }
    req->head_s *= prefill;
}

struct chain {
    const struct platform *platform;
    const struct plan_range *range;
    int64_t n_tokens, n_new;
    bool can_recompute;
    struct plan_layer *layer;
    double *prefill_s;
};

/* The plan that restores the first n_used ranges and prefills what is left. */
static int plan_prefix(const struct chain *c, int n_used, struct plan_request *req,
                       struct plan *out, struct err *e)
{
    int64_t used = 0;
    for (int g = 0; g < n_used; g++)
        used += c->range[g].n_tokens;
    layers_in_window(c->platform, c->range, n_used, c->platform->n_layers, c->can_recompute,
                     req->window, c->layer);
    fill_lanes(c->platform, c->range[0].tier, used, c->n_tokens - used + c->n_new, c->layer,
               c->prefill_s, req);
    slow_down(req, c->layer, c->prefill_s);
    return plan_make(req, out, e);
}

/* Whether range g has every kind that the plan's letters name, for the tokens from `begin` on. */
static bool range_suits(const struct chain *c, const struct plan_request *req,
                        const struct plan *p, int g, int64_t begin, int64_t used)
{
    int64_t end = begin + c->range[g].n_tokens;
    for (int i = 0; i < p->n_layers; i++) {
        char m = p->method[i];
        if (end > tokens_skipped(req->window, i, used) && m != 'R' &&
            plan_range_method(m, c->range[g].mask[i], i == 0) != m)
            return false;
    }
    return true;
}

/* What the letters of a forced plan do not show: ranges that use the other kind, and those behind
 * the restored prefix. */
static void tell_ranges(const struct chain *c, const struct plan_request *req, int n_used,
                        struct plan *out)
{
    int64_t used = 0, begin = 0, other = 0;
    for (int g = 0; g < n_used; g++)
        used += c->range[g].n_tokens;
    for (int g = 0; g < n_used; g++) {
        if (!range_suits(c, req, out, g, begin, used))
            other += c->range[g].n_tokens;
        begin += c->range[g].n_tokens;
    }
    if (other > 0)
        plan_tell_deviation(out,
                            "%lld of %lld tokens have only the other kind of some layers",
                            (long long)other, (long long)used);
    if (used < c->n_tokens)
        plan_tell_deviation(
            out, "the last %lld of %lld stored tokens lack records: they are computed",
            (long long)(c->n_tokens - used), (long long)c->n_tokens);
}

int plan_best_prefix(const struct platform *p, const struct plan_range *range, int n_ranges,
                     int64_t n_new, bool can_recompute, struct plan_layer *layer,
                     double *prefill_s, struct plan_request *req, struct plan *out,
                     int *n_used, struct err *e)
{
    struct chain c = {p, range, 0, n_new, can_recompute, layer, prefill_s};
    for (int g = 0; g < n_ranges; g++)
        c.n_tokens += range[g].n_tokens;
    bool forced = req->mode != PLAN_AUTO;
    double nothing_s = prefill_all_s(p, 0, c.n_tokens + n_new) * slow(req->prefill_slow);
    double best = can_recompute && !forced ? nothing_s : INFINITY, restoring = INFINITY;
    int rc = 0, n_added = 0;
    *n_used = 0;
    for (int g = 1; g <= n_ranges; g++) {
        rc = plan_prefix(&c, g, req, out, e);
        if (rc == ERR_USAGE)
            return rc;
        if (rc != 0)
            break; /* a longer prefix lacks the same */
        if (g == 1)
            n_added = out->n_r_added;
        if (out->n_r_added > n_added)
            break;
        restoring = fmin(restoring, out->predicted_s);
        if (forced || out->predicted_s <= best) {
            best = out->predicted_s;
            *n_used = g;
        }
    }
    if (*n_used > 0) {
        rc = plan_prefix(&c, *n_used, req, out, e);
        if (rc == 0 && forced)
            tell_ranges(&c, req, *n_used, out);
        return rc;
    }
    memset(out, 0, sizeof *out);
    out->predicted_s = nothing_s;
    if (n_ranges == 0 || (can_recompute && !forced)) {
        if (isfinite(restoring))
            snprintf(out->reason, sizeof out->reason,
                     "prefill of everything %.3g ms, the best restore first %.3g ms",
                     nothing_s * 1e3, restoring * 1e3);
        else
            snprintf(out->reason, sizeof out->reason,
                     "no records that a restore could use");
        return 0;
    }
    return rc;
}
