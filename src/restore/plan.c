/* plan.c - see plan.h. Each mode writes a letter per layer. The other steps are the same for all
 * modes: check the letters against the records, order the reads, simulate, explain. */
#include "restore/plan.h"

#include <math.h>
#include <string.h>

#include "restore/correction.h"
#include "restore/plan_parts.h"

static const char *const mode_names[] = {
    [PLAN_AUTO] = "auto",
    [PLAN_HIDDEN] = "hidden",
    [PLAN_KV] = "kv",
    [PLAN_RECOMPUTE] = "recompute",
    [PLAN_KV_RECOMPUTE] = "kv+recompute",
    [PLAN_PAPER] = "paper",
    [PLAN_FORCED_LAYERS] = "layers",
};

enum { N_NAMED_MODES = PLAN_FORCED_LAYERS };

const char *plan_mode_name(enum plan_mode mode)
{
    return mode_names[mode];
}

int plan_mode_parse(const char *text, struct plan_request *req, struct err *e)
{
    for (int m = 0; m < N_NAMED_MODES; m++)
        if (strcmp(text, mode_names[m]) == 0) {
            req->mode = (enum plan_mode)m;
            return 0;
        }
    if (*text != 0 && strspn(text, "RHK") == strlen(text)) {
        req->mode = PLAN_FORCED_LAYERS;
        req->forced_layers = text;
        return 0;
    }
    return err_set(
        e, ERR_USAGE,
        "plan '%.60s': neither a method (auto, hidden, kv, recompute, kv+recompute, "
        "paper) nor a letter per layer (RRHHKK)",
        text);
}

static int forced_layers(const struct plan_request *req, char *method, struct err *e)
{
    size_t n = req->forced_layers != NULL ? strlen(req->forced_layers) : 0;
    if (n != (size_t)req->n_layers)
        return err_set(e, ERR_USAGE, "plan: %zu letters for %d layers", n, req->n_layers);
    memcpy(method, req->forced_layers, n);
    return 0;
}

/* ---- from letters to a plan ---- */

static int choose_method(const struct plan_request *req, const struct plan_effort *effort,
                         struct plan *out, struct err *e)
{
    size_t n = (size_t)req->n_layers;
    switch (req->mode) {
    case PLAN_AUTO:
        return plan_search(req, effort, false, out, e);
    case PLAN_KV_RECOMPUTE:
        return plan_search(req, effort, true, out, e);
    case PLAN_HIDDEN:
        memset(out->method, 'H', n);
        return 0;
    case PLAN_KV:
        memset(out->method, 'K', n);
        return 0;
    case PLAN_RECOMPUTE:
        memset(out->method, 'R', n);
        return 0;
    case PLAN_PAPER:
        return plan_paper(req, out, e);
    case PLAN_FORCED_LAYERS:
        return forced_layers(req, out->method, e);
    }
    return err_set(e, ERR_USAGE, "plan request: there is no mode %d", (int)req->mode);
}

/* Fills out->io_order with the layers that are read, in the order of their reads. */
static void order_reads(const struct plan_request *req, struct plan *out)
{
    struct pipe_job job[PLAN_MAX_LAYERS];
    int n = plan_jobs_ordered(req, out->method, job);
    for (int i = 0; i < n; i++)
        if (job[i].io_s > 0 || job[i].up_s > 0)
            out->io_order[out->n_io++] = job[i].layer;
}

static void count_methods(const struct plan_request *req, struct plan *out)
{
    for (int i = 0; i < out->n_layers; i++) {
        const struct plan_layer *l = &req->layer[i];
        switch (out->method[i]) {
        case 'R':
            out->n_r++;
            break;
        case 'H':
            out->n_h++;
            out->stored_bytes_per_token += plan_layer_bytes(l, 'H');
            break;
        default:
            out->n_k++;
            out->stored_bytes_per_token += plan_layer_bytes(l, 'K');
        }
    }
}

/* Simulates the plan, and fills its predicted times. Pauses make restores longer. */
static void simulate(const struct plan_request *req, struct plan *out)
{
    struct pipeline lanes;
    pipeline_simulate(req, out, &lanes);
    bool alone = req->platform != NULL && req->comp_slow <= 1;
    bool balanced = platform_is_balanced(lanes.io_busy_s, lanes.comp_busy_s,
                                         lanes.restore_s);
    double pauses = alone ? platform_pause_factor(req->platform, balanced) : 1;
    if (lanes.restore_s < CORRECTION_SHORT_S)
        pauses = 1;
    out->predicted_s = lanes.makespan_s + (pauses - 1) * lanes.restore_s;
    out->restore_s = pauses * lanes.restore_s;
    out->io_busy_s = lanes.io_busy_s;
    out->comp_busy_s = lanes.comp_busy_s;
    double busiest = lanes.io_busy_s;
    for (int k = 0; k < lanes.n_stages; k++)
        busiest = fmax(busiest, fmax(lanes.stage_up_s[k], lanes.stage_comp_s[k]));
    out->bubble = lanes.makespan_s > 0 ? fmax(0, 1 - busiest / lanes.makespan_s) : 0;
}

/* Fills mode, n_layers and the fields that choose_method fills. */
static int choose(const struct plan_request *req, const struct plan_effort *effort,
                  struct plan *out, struct err *e)
{
    out->mode = req->mode;
    out->n_layers = req->n_layers;
    int rc = choose_method(req, effort, out, e);
    if (rc == 0 && req->mode != PLAN_AUTO)
        plan_adapt(req, out);
    if (rc == 0)
        rc = plan_check_method(req, out->method, e);
    return rc;
}

int plan_estimate(const struct plan_request *req, const struct plan_effort *effort,
                  struct plan *out, struct err *e)
{
    memset(out, 0, sizeof *out);
    return choose(req, effort, out, e);
}

static void fill(const struct plan_request *req, struct plan *out)
{
    order_reads(req, out);
    count_methods(req, out);
    simulate(req, out);
}

bool plan_prefers_single(double mixture_s, double single_s, double spread)
{
    return single_s < mixture_s * sqrt(fmax(1, spread));
}

/* Replaces a mixture by the fastest single method if the mixture is not worth it. The search does
 * not know pauses, and those of balanced plans may be longer, so a single method may also be
 * faster. */
static void prefer_single(const struct plan_request *req, struct plan *out)
{
    struct plan best = {.predicted_s = INFINITY};
    for (const char *m = "KHR"; *m != 0; m++) {
        struct plan p = {.mode = out->mode, .n_layers = out->n_layers, .exact = out->exact};
        memset(p.method, *m, (size_t)out->n_layers);
        p.method[0] = *m == 'H' && req->layer[0].h_free ? 'R' : *m;
        if (strcmp(p.method, out->method) == 0)
            return;
        if (plan_check_method(req, p.method, NULL) != 0)
            continue;
        fill(req, &p);
        if (p.predicted_s < best.predicted_s &&
            plan_within_budget(req, p.stored_bytes_per_token))
            best = p;
    }
    if (!plan_prefers_single(out->predicted_s, best.predicted_s, req->spread))
        return;
    best.passed_gain_s = fmax(0, best.predicted_s - out->predicted_s);
    *out = best;
}

static void complete(const struct plan_request *req, struct plan *out)
{
    fill(req, out);
    if (req->mode == PLAN_AUTO)
        prefer_single(req, out);
    plan_explain(req, out);
}

int plan_make_within(const struct plan_request *req, const struct plan_effort *effort,
                     struct plan *out, struct err *e)
{
    memset(out, 0, sizeof *out);
    int rc = plan_check_request(req, e);
    if (rc == 0)
        rc = choose(req, effort, out, e);
    if (rc == 0)
        complete(req, out);
    return rc;
}

int plan_make(const struct plan_request *req, struct plan *out, struct err *e)
{
    return plan_make_within(req, &plan_effort_full, out, e);
}
