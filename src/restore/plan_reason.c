/* plan_reason.c - one line that explains a plan. Operators read it after a slow restore, so it
 * names the cause (bytes, which lane is full), not the search. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "restore/plan_parts.h"

static void say(struct plan *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct plan *out, const char *fmt, ...)
{
    size_t n = strlen(out->reason);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->reason + n, sizeof out->reason - n, fmt, ap);
    va_end(ap);
}

/* Returns whether KV costs no more than hidden states on either lane, in every layer that has
 * both. */
static bool kv_dominates(const struct plan_request *q, double *bytes_ratio)
{
    bool any = false;
    double h = 0, kv = 0;
    for (int i = 0; i < q->n_layers; i++) {
        const struct plan_layer *l = &q->layer[i];
        if (!l->has_h || !l->has_kv || l->h_free)
            continue;
        if (l->io_kv_s > l->io_h_s || l->comp_kv_s > l->comp_h_s)
            return false;
        any = true;
        h += l->h_bytes;
        kv += l->kv_bytes;
    }
    *bytes_ratio = kv > 0 ? h / kv : 0;
    return any;
}

enum kind { HIDDEN, KV };

/* Returns whether a layer has records of this kind that are read. */
static bool has_any(const struct plan_request *q, enum kind kind)
{
    for (int i = 0; i < q->n_layers; i++)
        if (kind == KV ? q->layer[i].has_kv : q->layer[i].has_h && !q->layer[i].h_free)
            return true;
    return false;
}

static void explain_recompute(const struct plan_request *q, struct plan *out)
{
    if (!has_any(q, KV) && !has_any(q, HIDDEN)) {
        say(out, "recomputing: no records are stored");
        return;
    }
    double io = INFINITY;
    for (int kind = HIDDEN; kind <= KV; kind++)
        if (has_any(q, (enum kind)kind)) {
            double sum = 0;
            for (int i = 0; i < q->n_layers; i++)
                sum += kind == KV ? q->layer[i].io_kv_s : q->layer[i].io_h_s;
            io = fmin(io, sum);
        }
    say(out, "recomputing is fastest here (reading alone would take %.1fx as long)",
        io / out->restore_s);
}

static void explain_kv(const struct plan_request *q, struct plan *out, int n_r)
{
    double ratio;
    if (q->mode == PLAN_KV_RECOMPUTE) {
        say(out, "keys and values, without hidden states");
    } else if (kv_dominates(q, &ratio)) {
        say(out, "loading keys and values is fastest here");
        if (ratio > 0)
            say(out, " (hidden states have %.2gx the bytes)", ratio);
    } else if (!has_any(q, HIDDEN)) {
        say(out, "loading keys and values (no hidden states are stored)");
    } else {
        say(out,
            "loading keys and values is fastest here (hidden states would take longer)");
    }
    if (n_r > 1)
        say(out, "; %d layers are recomputed in idle compute time", n_r);
    else if (n_r == 1)
        say(out, "; layer 0 costs no extra time");
}

static void explain_mixture(const struct plan_request *q, struct plan *out)
{
    int r = out->n_r;
    if (r == q->n_layers && r > 1) {
        explain_recompute(q, out);
    } else if (out->n_h == 0) {
        explain_kv(q, out, r);
    } else if (out->n_k == 0 && r <= 1) {
        say(out, has_any(q, KV)
                     ? "projecting hidden states is fastest here"
                     : "projecting hidden states (no keys and values are stored)");
    } else if (out->n_k > 0 && r <= 1) {
        say(out, "hidden states, and KV for %d layers in idle I/O time", out->n_k);
    } else if (out->n_k == 0) {
        say(out, "hidden states, and %d layers recomputed in idle compute time", r);
    } else {
        say(out,
            "hidden states, %d layers recomputed, keys and values for %d: both lanes are "
            "balanced",
            r, out->n_k);
    }
}

void plan_explain(const struct plan_request *q, struct plan *out)
{
    switch (q->mode) {
    case PLAN_AUTO:
    case PLAN_KV_RECOMPUTE:
        explain_mixture(q, out);
        break;
    case PLAN_PAPER:
        say(out, "paper's closed form: %d R + %d H + %d KV", out->n_r, out->n_h, out->n_k);
        break;
    case PLAN_FORCED_LAYERS:
        say(out, "forced");
        break;
    default:
        say(out, "%s only", plan_mode_name(q->mode));
    }
    if (q->n_stages > 1)
        say(out, "; %d stages work at the same time", q->n_stages);
    if (out->predicted_s > 0)
        say(out, "; I/O %.0f %%, compute %.0f %% busy",
            100 * out->io_busy_s / out->predicted_s,
            100 * out->comp_busy_s / out->predicted_s);
    if (out->passed_gain_s > 0)
        say(out, "; a mixture would gain %.2g ms, which is less than predictions are worth",
            out->passed_gain_s * 1e3);
    if (q->mode == PLAN_AUTO && !out->exact && q->n_stages <= 1)
        say(out, " (search cut short)");
}
