/* plan_deviate.c - adapts forced plans to the store's records.
 *
 * A forced plan is kept as far as the records go. A layer without the wanted kind takes the
 * other kind. A layer without any record is recomputed, and so is every layer before it. The
 * text in plan.deviation names the differences. It stays empty if the plan is carried out as
 * forced. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "policy/plan_parts.h"

void plan_tell_deviation(struct plan *out, const char *fmt, ...)
{
    size_t n = strlen(out->deviation);
    if (n > 0)
        n += (size_t)snprintf(out->deviation + n, sizeof out->deviation - n, "; ");
    if (n >= sizeof out->deviation)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->deviation + n, sizeof out->deviation - n, fmt, ap);
    va_end(ap);
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

/* Layers whose letter was changed from one kind to the other. */
struct changed {
    int n, first;
};

static void tell_changed(struct plan *out, struct changed c, const char *lacking,
                         const char *used)
{
    if (c.n > 0)
        plan_tell_deviation(out, "%d layer%s (the first is %d) without %s: %s", c.n,
                            c.n == 1 ? "" : "s", c.first, lacking, used);
}

static bool can_recompute(const struct plan_request *q, int n)
{
    for (int i = 0; i < n; i++)
        if (!q->layer[i].can_recompute && !q->layer[i].h_free)
            return false;
    return true;
}

void plan_deviate(const struct plan_request *q, struct plan *out)
{
    struct changed to_h = {0}, to_k = {0};
    int r = plan_prefix_r(out->method), need = r;
    /* Layer 0 needs no record: its hidden states are the embedding rows. */
    if (out->method[0] == 'K' && !q->layer[0].has_kv && !q->layer[0].has_h)
        need = q->layer[0].h_free ? 1 : need;
    for (int i = r; i < q->n_layers; i++)
        if (strchr("HK", out->method[i]) != NULL && possible(q, i, out->method[i]) == 0)
            need = i + 1;
    if (!can_recompute(q, need))
        return; /* plan_check_method names the layer */
    for (int i = r; i < need; i++)
        out->method[i] = 'R';
    for (int i = need; i < q->n_layers; i++) {
        char m = out->method[i];
        if (strchr("HK", m) == NULL || possible(q, i, m) == m)
            continue;
        struct changed *c = m == 'K' ? &to_h : &to_k;
        c->first = c->n++ == 0 ? i : c->first;
        out->method[i] = m == 'K' ? 'H' : 'K';
    }
    out->n_r_added = need - r;
    if (need == 1 && r == 0)
        plan_tell_deviation(out, "layer 0 without KV: it is recomputed");
    else if (need > r)
        plan_tell_deviation(out, "layer %d without records: layers 0 to %d are recomputed",
                            need - 1, need - 1);
    tell_changed(out, to_h, "KV", "their hidden states are used");
    tell_changed(out, to_k, "hidden states", "their KV is used");
}
