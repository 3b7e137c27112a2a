/* restoring.c - the restoration phase of a sequence: look up, plan, restore.
 *
 * What it leaves behind is always right: n_done tokens whose K and V are in the cache, from which
 * prefill goes on.  Fewer than hoped for is a miss with a reason, not an error; only a plan that was
 * forced and cannot be carried out is one. */
#include "engine/seq.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "state/profile.h"

/* The store's measured speed, once per engine, on the first hits: there is something to restore, so
 * there is something to measure. */
static int measure_io(struct engine *e, const struct store_hit *hits, int n,
                      struct err *err)
{
    struct platform *p = e->o.platform;
    if (p->n_tiers == 0 && e->o.throttle_bytes_per_s > 0) {
        p->n_tiers = 1; /* the throttle is the store's speed: no need to wait for it */
        p->tier[0] = (struct platform_tier){
            .name = "throttled", .bytes_per_s = (double)e->o.throttle_bytes_per_s};
    } else if (p->n_tiers == 0) {
        int rc = profile_io(p, e->o.model, e->o.store, hits, n, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Merges neighbouring chunks with equal records into ranges. */
static int make_ranges(struct engine *e, const struct store_hit *hits, int n_hits)
{
    int n_layers = e->o.model->cfg.n_layers, n = 0;
    for (int c = 0; c < n_hits; c++) {
        uint8_t *mask = e->masks + (size_t)n * (size_t)n_layers;
        for (int l = 0; l < n_layers; l++)
            mask[l] = (uint8_t)((store_mask_has(&hits[c].mask, l, STORE_HIDDEN) ? PLAN_HAS_H
                                                                                : 0) |
                                (store_mask_has(&hits[c].mask, l, STORE_KV) ? PLAN_HAS_KV
                                                                            : 0));
        if (n > 0 && memcmp(mask, e->ranges[n - 1].mask, (size_t)n_layers) == 0) {
            e->ranges[n - 1].n_tokens += STORE_CHUNK_TOKENS;
            continue;
        }
        e->ranges[n++] = (struct plan_range){.n_tokens = STORE_CHUNK_TOKENS, .mask = mask};
    }
    return n;
}

static int make_plan(struct engine *e, struct seq *s, int n_hits, int *n_chunks)
{
    struct platform bounded = *e->o.platform;
    double limit = (double)e->o.throttle_bytes_per_s;
    if (limit > 0 && bounded.tier[0].bytes_per_s > limit)
        bounded.tier[0].bytes_per_s = limit;
    struct plan_request req = {.n_layers = e->o.model->cfg.n_layers};
    int n_used = 0, rc = 0;
    if (s->plan != NULL)
        rc = plan_mode_parse(s->plan, &req, &s->out.err);
    int n_ranges = make_ranges(e, e->hits, n_hits);
    int64_t n_new = s->n_tokens - (int64_t)n_hits * STORE_CHUNK_TOKENS;
    if (rc == 0)
        rc = plan_best_prefix(&bounded, e->ranges, n_ranges, n_new, true, e->plan_layer,
                              e->prefill_s, &req, &s->out.plan, &n_used, &s->out.err);
    int64_t tokens = 0;
    for (int i = 0; rc == 0 && i < n_used; i++)
        tokens += e->ranges[i].n_tokens;
    *n_chunks = (int)(tokens / STORE_CHUNK_TOKENS);
    return rc;
}

static void fail(struct seq *s, int rc)
{
    s->out.err.code = rc;
    s->out.finish = FINISH_ERROR;
    s->phase = PHASE_DONE;
}

/* Returns how many of the n_hits chunks the store still has. */
static int run_restore(struct engine *e, struct seq *s, int n_hits, int n_chunks)
{
    struct restore_job job = {.hits = e->hits,
                              .n_chunks = n_chunks,
                              .tokens = s->tokens,
                              .table = &s->table,
                              .plan = &s->out.plan};
    int rc = restore_run(e->restorer, &job, &s->out.restore, &s->out.err);
    if (rc != 0) {
        fail(s, rc);
        return 0;
    }
    int n_good = s->out.restore.n_chunks;
    s->n_done = n_good * STORE_CHUNK_TOKENS;
    if (n_good < n_chunks)
        snprintf(s->out.miss, sizeof s->out.miss, "%s", s->out.restore.fault);
    else if (n_chunks < n_hits)
        snprintf(
            s->out.miss, sizeof s->out.miss,
            "the plan restores %d of %d stored chunks: the others lack its records, or "
            "recomputing them is faster",
            n_chunks, n_hits);
    if (n_good == 0)
        s->out.plan.n_layers = 0;
    return n_good < n_chunks ? n_good : n_hits;
}

static int restore_from_hits(struct engine *e, struct seq *s, int n_hits)
{
    int n_chunks = 0, rc = 0;
    int64_t t0 = clock_now_ns();
    struct err err = {0};
    rc = measure_io(e, e->hits, n_hits, &err);
    if (rc != 0) { /* nothing could be read: recompute */
        snprintf(s->out.miss, sizeof s->out.miss, "%.190s", err.msg);
        return 0;
    }
    rc = make_plan(e, s, n_hits, &n_chunks);
    s->out.plan_ns = clock_now_ns() - t0;
    if (rc != 0) {
        fail(s, rc);
        return n_hits;
    }
    if (n_chunks > 0)
        return run_restore(e, s, n_hits, n_chunks);
    snprintf(s->out.miss, sizeof s->out.miss, "recomputing is faster: %.150s",
             s->out.plan.reason);
    s->out.plan.n_layers = 0;
    return n_hits;
}

/* Why nothing is looked up, or NULL. */
static const char *why_not(const struct engine *e, const struct seq *s)
{
    if (e->o.store == NULL)
        return "no store";
    if (s->plan != NULL && strcmp(s->plan, "recompute") == 0)
        return "recomputation was asked for";
    if (s->req.n_prompt <= STORE_CHUNK_TOKENS)
        return "no full chunk of 64 tokens comes before the prompt's last token";
    return NULL;
}

void seq_restore(struct engine *e, struct seq *s)
{
    s->phase = PHASE_PREFILL;
    const char *why = why_not(e, s);
    if (why != NULL) {
        snprintf(s->out.miss, sizeof s->out.miss, "%s", why);
        return;
    }
    /* The last prompt token must be computed in any case: its logits are wanted. */
    int n_want = (s->req.n_prompt - 1) / STORE_CHUNK_TOKENS, n_hits = 0;
    int64_t t0 = clock_now_ns();
    struct err err = {0};
    int rc = store_lookup(e->o.store, s->chain.keys, n_want, e->hits, &n_hits, s->out.miss,
                          sizeof s->out.miss, &err);
    s->out.lookup_ns = clock_now_ns() - t0;
    if (rc != 0) {
        snprintf(s->out.miss, sizeof s->out.miss, "%.190s", err.msg);
        return;
    }
    t0 = clock_now_ns();
    int n_stored = n_hits > 0 ? restore_from_hits(e, s, n_hits) : 0;
    s->out.n_stored = n_stored * STORE_CHUNK_TOKENS;
    /* While the sequence lives, what its state continues is not evicted: the last chunk pins all. */
    if (n_stored > 0) {
        s->pin = e->hits[n_stored - 1];
        e->hits[n_stored - 1].impl = NULL;
    }
    store_release(e->o.store, e->hits, n_hits);
    s->out.restore_ns = clock_now_ns() - t0;
    s->out.n_cached = s->n_done;
}
