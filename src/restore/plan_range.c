/* plan_range.c - requests from a platform, and chains whose chunks have different records.
 *
 * A layer's descriptor over several ranges: under the letter H, tokens with hidden states cost a
 * read of hidden states and the others a read of KV; under K the reverse. So a chain that was
 * saved under changing policies still has two options per layer, and the search need not know
 * about ranges. Token counts are added per kind before the cost curves are applied, because a
 * layer is projected once, not once per range. Reads add up over tiers, as one I/O lane. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/minmax.h"
#include "restore/plan_parts.h"

/* Seconds of the I/O lane and of the bus, and bytes, per kind of record. */
struct record_cost {
    double io_s[2], up_s[2], unpack_s[2], stored_bytes[2];
    double state_io_s, state_comp_s; /* a layer's state is read and put in its place */
};

/* Returns the bytes of a range's records over those of unpacked ones. */
static double stored_share(const struct plan_range *r, enum platform_record kind)
{
    return r->share[kind] > 0 ? r->share[kind] : 1;
}

/* Returns the costs of n_tokens of a range from records of either kind, and of its state. */
static struct record_cost cost_of(const struct platform *p, const struct plan_range *r,
                                  int64_t n_tokens)
{
    struct record_cost c = {0};
    const struct platform_tier *t = &p->tier[r->tier];
    if (r->state_bytes > 0) {
        bool is_packed = r->state_share > 0 && r->state_share < 1;
        double stored = r->state_bytes * (is_packed ? r->state_share : 1);
        c.state_io_s = (t->request_s + stored / t->bytes_per_s) *
                       platform_correction_factor(&t->correction);
        c.state_comp_s = r->state_bytes / p->kv_bytes * platform_kv_s(p, 1) +
                         (is_packed ? platform_unpack_s(p, r->state_bytes) : 0) +
                         platform_unseal_s(p, stored);
    }
    for (int k = RECORD_HIDDEN; k <= RECORD_KV; k++) {
        enum platform_record kind = (enum platform_record)k;
        double bytes = (double)n_tokens * (kind == RECORD_KV ? p->kv_bytes : p->h_bytes);
        double share = stored_share(r, kind);
        double up_s = platform_up_s(p, r->tier, n_tokens, kind);
        c.io_s[k] = platform_stored_read_s(p, r->tier, n_tokens, kind, share);
        if (p->n_stages <= 1)
            c.io_s[k] = fmax(c.io_s[k], up_s);
        c.up_s[k] = p->n_stages > 1 ? up_s : 0;
        c.stored_bytes[k] = bytes * share;
        c.unpack_s[k] = (share < 1 ? platform_unpack_s(p, bytes) : 0) +
                        platform_unseal_s(p, c.stored_bytes[k]);
    }
    return c;
}

static struct plan_layer uniform_layer(const struct platform *p, int tier, int64_t n)
{
    struct plan_range all = {.tier = tier, .share = {p->packed_share, p->packed_share}};
    struct record_cost c = cost_of(p, &all, n);
    return (struct plan_layer){
        .io_h_s = c.io_s[RECORD_HIDDEN],
        .io_kv_s = c.io_s[RECORD_KV],
        .up_h_s = c.up_s[RECORD_HIDDEN],
        .up_kv_s = c.up_s[RECORD_KV],
        .comp_h_s = platform_h_s(p, n) + c.unpack_s[RECORD_HIDDEN],
        .comp_kv_s = platform_kv_s(p, n) + c.unpack_s[RECORD_KV],
        .comp_tok_s = platform_tok_s(p, n),
        .comp_tok_last_s = platform_h_s(p, n),
        .h_bytes = p->h_bytes * stored_share(&all, RECORD_HIDDEN),
        .kv_bytes = p->kv_bytes * stored_share(&all, RECORD_KV),
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

/* The new tokens attend to the n_restored tokens and to the req->n_held tokens before these. */
static void fill_lanes(const struct platform *p, int tier, int64_t n_restored,
                       int64_t n_new, struct plan_layer *layer, double *prefill_s,
                       struct plan_request *req)
{
    int64_t n_past = req->n_held + n_restored;
    req->n_layers = p->n_layers;
    req->n_stages = p->n_stages;
    req->layer = layer;
    req->prefill_s = NULL;
    req->head_s = 0;
    int64_t n_fused = req->fused_tokens > 0 && n_new > req->fused_tokens ? req->fused_tokens
                                                                         : n_new;
    if (n_new > 0) {
        double layer_s = platform_prefill_s(p, n_past, n_fused);
        for (int i = 0; i < p->n_layers; i++)
            prefill_s[i] = layer_s;
        prefill_s[0] += platform_ends_s(p, n_new) - platform_ends_s(p, 0);
        req->prefill_s = prefill_s;
        req->head_s = platform_ends_s(p, 0);
    }
    /* The other new tokens are prefilled in batches of their own, after the fused ones. */
    if (n_fused < n_new)
        req->head_s += p->n_layers *
                       platform_prefill_s(p, n_past + n_fused, n_new - n_fused);
    req->io_latency_s = fmax(0, p->tier[tier].latency_s + p->start_s);
    req->spread = exp2(p->tier[tier].correction.spread_log2);
    req->io_overlap = p->io_overlap;
    req->comp_overlap = p->comp_overlap;
    req->platform = p;
    req->n_tokens = n_restored;
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

char plan_range_method(char method, uint8_t mask)
{
    bool h = mask & (PLAN_HAS_H | PLAN_STATE), kv = mask & PLAN_HAS_KV;
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

/* ---- sums over the ranges ---- */

enum { TOKENS = 64 }; /* tokens of a chunk; a restore begins at a multiple of this */

/* Returns how n_tokens with the records of `mask` are restored under a letter. */
static struct range_share share_of(char letter, uint8_t mask, int64_t n_tokens,
                                   const struct record_cost *cost)
{
    char method = plan_range_method(letter, mask);
    if (mask & PLAN_STATE)
        return (struct range_share){.io_s = cost->state_io_s,
                                    .unpack_s = cost->state_comp_s};
    if (method != 'H' && method != 'K')
        return (struct range_share){.lost_tokens = n_tokens};
    int k = method == 'H' ? RECORD_HIDDEN : RECORD_KV;
    return (struct range_share){.h_tokens = method == 'H' ? n_tokens : 0,
                                .kv_tokens = method == 'K' ? n_tokens : 0,
                                .io_s = cost->io_s[k],
                                .up_s = cost->up_s[k],
                                .stored_bytes = cost->stored_bytes[k],
                                .unpack_s = cost->unpack_s[k]};
}

static inline void share_add(struct range_share *s, const struct range_share *x, int sign)
{
    s->h_tokens += sign * x->h_tokens;
    s->kv_tokens += sign * x->kv_tokens;
    s->lost_tokens += sign * x->lost_tokens;
    s->io_s += sign * x->io_s;
    s->up_s += sign * x->up_s;
    s->stored_bytes += sign * x->stored_bytes;
    s->unpack_s += sign * x->unpack_s;
}

/* The layers that a sum is about. */
enum layers {
    ALL_LAYERS,
    LAYERS_WITH_WINDOW,
    LAYERS_WITHOUT_WINDOW,
};

static bool is_meant(const struct stored_ranges *c, enum layers which, int layer)
{
    return which == ALL_LAYERS ||
           (which == LAYERS_WITH_WINDOW) == layer_set_has(&c->window.layers, layer);
}

/* Adds n_tokens of range g to some layers; sign -1 subtracts them. */
static void sums_add(const struct stored_ranges *c, struct range_sums *s, int g,
                     enum layers which, int64_t n_tokens, int sign)
{
    enum { MASKS = (PLAN_HAS_H | PLAN_HAS_KV | PLAN_STATE) + 1 };
    const struct plan_range *r = &c->range[g];
    struct record_cost cost = cost_of(c->platform, r, n_tokens);
    struct range_share h[MASKS], kv[MASKS];
    for (int m = 0; m < MASKS; m++) {
        h[m] = share_of('H', (uint8_t)m, n_tokens, &cost);
        kv[m] = share_of('K', (uint8_t)m, n_tokens, &cost);
    }
    for (int i = 0; i < c->platform->n_layers; i++) {
        int m = r->mask[i] % MASKS;
        if (!is_meant(c, which, i))
            continue;
        share_add(&s->h[i], &h[m], sign);
        share_add(&s->kv[i], &kv[m], sign);
    }
}

/* Adds the splits between range g and the range before it; sign -1 subtracts them. Under the
 * letter H a range without hidden states uses KV, under K the reverse. */
static void splits_add(const struct stored_ranges *c, struct range_sums *s, int g,
                       enum layers which, int sign)
{
    const uint8_t *mask = c->range[g].mask, *before = g > 0 ? c->range[g - 1].mask : mask;
    for (int i = 0; i < c->platform->n_layers; i++) {
        int differs = is_meant(c, which, i) ? before[i] ^ mask[i] : 0;
        s->h_splits[i] += sign * (differs & PLAN_HAS_H ? 1 : 0);
        s->kv_splits[i] += sign * (differs & PLAN_HAS_KV ? 1 : 0);
    }
}

void range_sums_init(struct range_sums *s)
{
    memset(s, 0, sizeof *s);
}

int64_t plan_tokens_skipped(const struct stored_ranges *c, int64_t n)
{
    int64_t w = c->window.tokens, all = c->n_held + n;
    return w > 0 && all >= w ? MAX(0, (all + 1 - w) / TOKENS * TOKENS - c->n_held) : 0;
}

/* Subtracts the tokens that have left the window from the sums of the layers with a window. */
static void slide_window(const struct stored_ranges *c, struct range_sums *s,
                         int64_t n_skipped)
{
    int64_t first = 0; /* first token of range g */
    for (int g = 0; g < s->n_ranges && first < n_skipped; g++) {
        int64_t end = first + c->range[g].n_tokens;
        int64_t from = MAX(first, s->n_skipped);
        int64_t to = MIN(end, n_skipped);
        if (from < to)
            sums_add(c, s, g, LAYERS_WITH_WINDOW, to - from, -1);
        if (from < to && to == end && g + 1 < s->n_ranges)
            splits_add(c, s, g + 1, LAYERS_WITH_WINDOW, -1);
        first = end;
    }
    s->n_skipped = n_skipped;
}

void range_sums_next(const struct stored_ranges *c, struct range_sums *s)
{
    int g = s->n_ranges++;
    /* Range g is the first one within the windows. */
    bool is_first = s->n_skipped > 0 && s->n_skipped == s->n_tokens;
    sums_add(c, s, g, ALL_LAYERS, c->range[g].n_tokens, 1);
    splits_add(c, s, g, is_first ? LAYERS_WITHOUT_WINDOW : ALL_LAYERS, 1);
    s->n_tokens += c->range[g].n_tokens;
    int64_t n_skipped = plan_tokens_skipped(c, s->n_tokens);
    if (n_skipped > s->n_skipped)
        slide_window(c, s, n_skipped);
}

void range_sums_at(const struct stored_ranges *c, int n_ranges, struct range_sums *s)
{
    range_sums_init(s);
    for (int g = 0; g < n_ranges; g++)
        s->n_tokens += c->range[g].n_tokens;
    s->n_ranges = n_ranges;
    s->n_skipped = plan_tokens_skipped(c, s->n_tokens);
    bool slid = s->n_skipped > 0;
    int64_t skip = s->n_skipped;
    bool is_first = true; /* no range before this one is in the windows */
    for (int g = 0; g < n_ranges; g++) {
        int64_t n = c->range[g].n_tokens, n_out = MIN(skip, n);
        sums_add(c, s, g, slid ? LAYERS_WITHOUT_WINDOW : ALL_LAYERS, n, 1);
        splits_add(c, s, g, slid && is_first ? LAYERS_WITHOUT_WINDOW : ALL_LAYERS, 1);
        if (slid && n_out < n)
            sums_add(c, s, g, LAYERS_WITH_WINDOW, n - n_out, 1);
        is_first = is_first && n_out == n;
        skip -= n_out;
    }
}

void range_sums_move(const struct stored_ranges *c, struct range_sums *s, int n_ranges)
{
    bool windows = c->window.tokens > 0, from_start = n_ranges <= s->n_ranges - n_ranges;
    if (n_ranges < s->n_ranges && (windows || from_start)) {
        range_sums_at(c, n_ranges, s);
        return;
    }
    while (s->n_ranges < n_ranges)
        range_sums_next(c, s);
    while (s->n_ranges > n_ranges) {
        int64_t n = c->range[--s->n_ranges].n_tokens;
        sums_add(c, s, s->n_ranges, ALL_LAYERS, n, -1);
        splits_add(c, s, s->n_ranges, ALL_LAYERS, -1);
        s->n_tokens -= n;
    }
}

static double share_bytes(const struct range_share *s)
{
    return s->stored_bytes / (double)(s->h_tokens + s->kv_tokens);
}

static bool same_tokens(const struct range_share *x, const struct range_share *y)
{
    return x->h_tokens == y->h_tokens && x->kv_tokens == y->kv_tokens &&
           x->unpack_s == y->unpack_s;
}

/* Fills *l, whose h_splits and kv_splits are already set, from the shares h and kv. `like` is a
 * layer with the same numbers of tokens and splits, whose costs are copied, or NULL. */
static void layer_from_shares(const struct platform *p, const struct range_share *h,
                              const struct range_share *kv, const struct plan_layer *like,
                              struct plan_layer *l)
{
    double h_split_s = l->h_splits * p->split_s, kv_split_s = l->kv_splits * p->split_s;
    bool possible = h->lost_tokens == 0;
    bool is_state = possible &&
                    h->h_tokens + h->kv_tokens == 0; /* nothing lies behind it */
    /* If no range has records of the preferred kind, the letter means the same as the other. */
    l->has_h = possible && (h->h_tokens > 0 || is_state);
    l->has_kv = possible && kv->kv_tokens > 0;
    l->io_h_s = h->io_s;
    l->io_kv_s = kv->io_s;
    l->up_h_s = h->up_s;
    l->up_kv_s = kv->up_s;
    l->h_load_s = like != NULL ? like->h_load_s
                               : platform_kv_s(p, h->kv_tokens) + h->unpack_s;
    l->kv_project_s = like != NULL ? like->kv_project_s : platform_h_s(p, kv->h_tokens);
    l->comp_h_s = like != NULL ? like->comp_h_s
                               : l->h_load_s + platform_h_s(p, h->h_tokens) + h_split_s;
    l->comp_kv_s = like != NULL ? like->comp_kv_s
                                : l->kv_project_s + platform_kv_s(p, kv->kv_tokens) +
                                      kv->unpack_s + kv_split_s;
    l->h_bytes = possible && !is_state ? share_bytes(h) : 0;
    l->kv_bytes = possible && !is_state ? share_bytes(kv) : 0;
}

static void layers_from_sums(const struct stored_ranges *c, const struct range_sums *s)
{
    const struct platform *p = c->platform;
    double tok_s = platform_prefill_s(p, c->n_held, s->n_tokens);
    int64_t last_rows = -1; /* rows of the layer before, and their projection */
    double last_s = 0;
    for (int i = 0; i < p->n_layers; i++) {
        struct plan_layer *l = &c->layer[i];
        /* Rows before a window, or before a snapshot, are not computed. */
        int64_t rows = s->h[i].h_tokens + s->h[i].kv_tokens + s->h[i].lost_tokens;
        if (rows != last_rows)
            last_s = platform_h_s(p, rows);
        last_rows = rows;
        bool again = i > 0 && same_tokens(&s->h[i], &s->h[i - 1]) &&
                     same_tokens(&s->kv[i], &s->kv[i - 1]) &&
                     s->h_splits[i] == s->h_splits[i - 1] &&
                     s->kv_splits[i] == s->kv_splits[i - 1];
        *l = (struct plan_layer){.comp_tok_s = tok_s,
                                 .comp_tok_last_s = last_s,
                                 .can_recompute = c->can_recompute,
                                 .h_splits = s->h_splits[i],
                                 .kv_splits = s->kv_splits[i],
                                 .h_free = i == 0};
        layer_from_shares(p, &s->h[i], &s->kv[i], again ? l - 1 : NULL, l);
    }
}

/* ---- a request ---- */

static double slow(double factor)
{
    return factor > 1 ? factor : 1;
}

/* Slows the restore's compute and the prefill to their share of the machine beside decodes. */
static void slow_down(struct plan_request *req, struct plan_layer *layer, double *prefill_s)
{
    double comp = slow(req->comp_slow), prefill = slow(req->prefill_slow);
    for (int i = 0; i < req->n_layers; i++) {
        layer[i].comp_h_s *= comp;
        layer[i].comp_kv_s *= comp;
        layer[i].h_load_s *= comp;
        layer[i].kv_project_s *= comp;
        layer[i].comp_tok_s *= comp;
        layer[i].comp_tok_last_s *= comp;
        if (req->prefill_s != NULL)
            prefill_s[i] *= prefill;
    }
    req->head_s *= prefill;
}

/* Returns the tier with the longest latency among the ranges of `s`. Its latency, and the spread
 * of its reads, become the request's. */
static int slowest_tier(const struct stored_ranges *c, const struct range_sums *s)
{
    int tier = c->range[0].tier;
    for (int i = 1; i < s->n_ranges; i++)
        if (c->platform->tier[c->range[i].tier].latency_s >
            c->platform->tier[tier].latency_s)
            tier = c->range[i].tier;
    return tier;
}

void range_request(const struct stored_ranges *c, const struct range_sums *s,
                   struct plan_request *req)
{
    layers_from_sums(c, s);
    fill_lanes(c->platform, slowest_tier(c, s), s->n_tokens,
               c->n_tokens - s->n_tokens + c->n_new, c->layer, c->prefill_s, req);
    slow_down(req, c->layer, c->prefill_s);
}
