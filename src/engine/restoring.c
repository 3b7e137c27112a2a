/* restoring.c - the restoration phase of a sequence: look up, plan, restore.
 *
 *   restore_phase_begin     WAIT -> RESTORE: looks up; or -> PREFILL if nothing can come back
 *   restore_phase_step      looked up: plans, starts the reads; all is back: -> PREFILL
 *   restore_phase_abandon   ends the restore of a sequence that leaves the phase another way
 *
 * A restore always leaves a correct state: n_done tokens whose K and V are in the cache. Prefill
 * continues from there. Fewer tokens than hoped for are a miss with a reason, not an error. A
 * forced plan uses the records that exist and computes the rest.
 *
 * Decodes never wait for I/O, and hardly for the restores' compute. Beside decodes, restores get
 * BESIDE_RESTORE_SHARE of the time of forward passes, kept as a credit. If an item takes longer
 * than the credit, the next steps pay for it. */
#include "engine/restoring.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/schedule.h"
#include "engine/stairs.h"
#include "restore/dram_tier.h"
#include "restore/pipeline.h"
#include "restore/profile.h"
#include "restore/restore_trace.h"
#include "restore/save_kinds.h"

/* --- lanes, for pictures ---------------------------------------------------------------------- */

static int by_start(const void *a, const void *b)
{
    const struct hcache_span *x = a, *y = b;
    return (x->start_ms > y->start_ms) - (x->start_ms < y->start_ms);
}

/* Sorts the n spans by their start. *out then owns them, in place of the spans that it had. */
static void set_spans(struct hcache_lanes *out, struct hcache_span *span, int n,
                      double total_ms)
{
    free(out->span);
    qsort(span, (size_t)n, sizeof *span, by_start);
    *out = (struct hcache_lanes){.span = span, .n = n, .total_ms = total_ms};
}

/* Leaves out the prefill of new tokens, which the simulation puts behind the restore, and copies
 * to stages, which a measured restore does not report. */
void lanes_predict(struct hcache_lanes *out, const struct plan_request *req,
                   const struct plan *plan)
{
    struct pipeline *p = xmalloc(sizeof *p);
    int n = 0;
    pipeline_simulate(req, plan, p);
    struct hcache_span *span = xmalloc(((size_t)p->n_items + 1) * sizeof *span);
    for (int i = 0; i < p->n_items; i++) {
        const struct pipe_item *item = &p->item[i];
        if (item->lane == PIPE_PREFILL || item->lane == PIPE_UP)
            continue;
        span[n++] = (struct hcache_span){.start_ms = (float)(item->start_s * 1e3),
                                         .end_ms = (float)(item->end_s * 1e3),
                                         .layer = item->layer,
                                         .method = item->method,
                                         .is_io = item->lane == PIPE_IO};
    }
    set_spans(out, span, n, p->restore_s * 1e3);
    free(p);
}

void lanes_measure(struct hcache_lanes *out, struct restore *r)
{
    struct restore_trace *t = xmalloc(2 * sizeof *t);
    int64_t t0, end = 0;
    int n = 0;
    restore_trace_of(r, &t[0], &t[1], &t0);
    struct hcache_span *span = xmalloc((size_t)(t[0].n + t[1].n + 1) * sizeof *span);
    for (int lane = 0; lane < 2; lane++) {
        for (int i = 0; i < t[lane].n; i++) {
            const struct restore_span *s = &t[lane].span[i];
            end = MAX(s->end_ns, end);
            span[n++] = (struct hcache_span){.start_ms = (float)(s->start_ns - t0) * 1e-6f,
                                             .end_ms = (float)(s->end_ns - t0) * 1e-6f,
                                             .layer = s->layer,
                                             .method = s->method,
                                             .is_io = lane == 0};
        }
    }
    set_spans(out, span, n, n > 0 ? (double)(end - t0) * 1e-6 : 0);
    free(t);
}

/* --- the plan --------------------------------------------------------------------------------- */

bool restore_plan_must_measure(const struct restore_phase *g)
{
    return g->o.platform->n_tiers == 0 && g->o.throttle_bytes_per_s == 0;
}

void restore_plan_measured(struct restore_phase *g, const struct restore_found *f)
{
    struct platform *p = g->o.platform;
    if (p->n_tiers == 0 && f->measured) {
        p->n_tiers = 1;
        p->tier[0] = f->tier;
    }
    platform_throttle(p, 0, (double)g->o.throttle_bytes_per_s);
}

int restore_plan_tokens(const struct restore_found *f, int n)
{
    if (n == 0)
        return 0;
    int beyond = n == f->n_hits ? f->n_beyond : 0;
    return (n - 1) * STORE_CHUNK_TOKENS + f->hits[n - 1].n_tokens - beyond;
}

int restore_plan_usable(const struct seq *s, const struct restore_found *f)
{
    int n_layers = config_n_keeping(&s->shared->model->cfg);
    uint8_t stored[STORE_MAX_LAYERS];
    if (f->n_hits == 0)
        return 0;
    const struct store_hit *last = &f->hits[f->n_hits - 1];
    save_stored_kinds(&last->mask, n_layers, stored);
    const struct save_kinds_found found = {.n_chunks = f->n_hits,
                                           .has_partial = last->n_tokens <
                                                          STORE_CHUNK_TOKENS,
                                           .stored = stored};
    const uint8_t *wanted = s->shared->saver == NULL ? NULL : s->req->save.kinds;
    return save_kinds_usable(&found, wanted, n_layers);
}

/* Returns which records a plan for chunk c may use in layer l. */
static uint8_t records_of(const struct store_hit *hits, int c, int l)
{
    return (uint8_t)((store_mask_has(&hits[c].mask, l, STORE_HIDDEN) ? PLAN_HAS_H : 0) |
                     (store_mask_has(&hits[c].mask, l, STORE_KV) ? PLAN_HAS_KV : 0));
}

/* Finds the chunks that have copies in DRAM. Returns the tier of the copies. */
static int find_copies(struct restore_phase *g, const struct store_hit *hits, int n_hits)
{
    bool any = false;
    store_in_dram(g->shared->store, hits, n_hits, g->in_dram);
    for (int c = 0; c < n_hits; c++)
        any |= g->in_dram[c];
    return any ? dram_tier(g->o.platform) : 0;
}

/* Adds a chunk's tokens to a range, and what packing has left of its records' bytes. */
static void range_add(const struct restore_phase *g, struct plan_range *range,
                      const struct store_hit *hit)
{
    double before = (double)range->n_tokens, n = hit->n_tokens;
    for (int k = RECORD_HIDDEN; k <= RECORD_KV; k++) {
        double share = save_stored_share(hit, (enum store_kind)k, false, g->shared->model);
        range->share[k] = (before * range->share[k] + n * share) / (before + n);
    }
    range->n_tokens += hit->n_tokens;
}

/* Makes one range of all chunks, because the moved tokens of a truncated context come back
 * together or not at all. There is at least one chunk. If the chunks of a layer have no kind in
 * common, each is restored from its own kind. */
static int make_one_range(struct restore_phase *g, const struct store_hit *hits, int n_hits)
{
    int tier = find_copies(g, hits, n_hits);
    for (int l = 0; l < config_n_keeping(&g->shared->model->cfg); l++) {
        uint8_t all = PLAN_HAS_H | PLAN_HAS_KV, any = 0;
        bool each = true;
        for (int c = 0; c < n_hits; c++) {
            uint8_t mask = records_of(hits, c, l);
            all &= mask;
            any |= mask;
            each = each && mask != 0;
        }
        g->masks[l] = all != 0 ? all : each ? any : 0;
    }
    for (int c = 0; c < n_hits; c++)
        tier = g->in_dram[c] ? tier : 0;
    g->ranges[0] = (struct plan_range){.mask = g->masks, .tier = tier};
    for (int c = 0; c < n_hits; c++)
        range_add(g, &g->ranges[0], &hits[c]);
    return 1;
}

static bool is_packed(const struct plan_range *r)
{
    return r->share[RECORD_HIDDEN] < 1 || r->share[RECORD_KV] < 1;
}

/* Merges neighbouring chunks with equal records in the same tier, packed or not, into ranges.
 * Returns their number. Reading from DRAM costs nothing.  So keys and values are the best kind in
 * DRAM, also where the disk's chunks use the other kind: each tier has its own letter
 * (docs/RESTORATION.md). A forced plan uses the same kind in both tiers. A snapshot stands behind
 * the first n_snapshot chunks, so of these the recurrent layers need nothing but their states. */
static int make_ranges(struct restore_phase *g, const struct store_hit *hits, int n_hits,
                       int n_snapshot, bool is_forced)
{
    const struct model_config *cfg = &g->shared->model->cfg;
    int n_layers = config_n_keeping(&g->shared->model->cfg), n = 0;
    int dram = find_copies(g, hits, n_hits);
    for (int c = 0; c < n_hits; c++) {
        int tier = g->in_dram[c] ? dram : 0;
        uint8_t *mask = g->masks + (size_t)n * (size_t)n_layers;
        for (int l = 0; l < n_layers; l++) {
            mask[l] = records_of(hits, c, l);
            if (tier > 0 && !is_forced && (mask[l] & PLAN_HAS_KV))
                mask[l] = PLAN_HAS_KV;
            if (c < n_snapshot && config_is_recurrent(cfg, l))
                mask[l] = PLAN_STATE;
        }
        struct plan_range *last = n > 0 ? &g->ranges[n - 1] : NULL,
                          one = {.tier = tier, .mask = mask};
        range_add(g, &one, &hits[c]);
        if (last != NULL && tier == last->tier && is_packed(&one) == is_packed(last) &&
            memcmp(mask, last->mask, (size_t)n_layers) == 0)
            range_add(g, last, &hits[c]);
        else
            g->ranges[n++] = one;
        if (c + 1 == n_snapshot)
            g->ranges[n - 1].state_bytes = (double)model_state_bytes(cfg);
    }
    return n;
}

/* Plans the ranges of g. *tokens gets how many of their tokens come back. Moved tokens cannot be
 * recomputed, so a forced plan that lacks records for them is replaced by an auto plan. */
static int plan_ranges(struct restore_phase *g, struct seq *s, struct plan_request *req,
                       int n_ranges, int64_t n_new, int64_t *tokens)
{
    bool moves = s->view.cut > 0;
    int n_used = 0;
    int rc = plan_best_prefix(g->o.platform, g->ranges, n_ranges, n_new, !moves,
                              g->plan_layer, g->prefill_s, req, &s->out.plan, &n_used,
                              &s->out.err);
    if (rc == ERR_NOT_FOUND && moves && req->mode != PLAN_AUTO) {
        req->mode = PLAN_AUTO;
        s->out.err = (struct err){0};
        rc = plan_best_prefix(g->o.platform, g->ranges, n_ranges, n_new, false,
                              g->plan_layer, g->prefill_s, req, &s->out.plan, &n_used,
                              &s->out.err);
    }
    /* If the moved tokens lack records, their chunks count as not stored. */
    if (rc == ERR_NOT_FOUND && moves) {
        s->out.err = (struct err){0};
        n_used = rc = 0;
    }
    *tokens = 0;
    int tier = n_used > 0 ? g->ranges[0].tier : 0; /* 0 if any chunk is on the disk */
    for (int i = 0; rc == 0 && i < n_used; i++) {
        *tokens += g->ranges[i].n_tokens;
        tier = g->ranges[i].tier == 0 ? 0 : tier;
    }
    if (n_used > 0)
        s->expected = correction_expect(g->o.platform, tier, req, &s->out.plan);
    return rc;
}

int restore_plan_make(struct restore_phase *g, struct seq *s, const struct restore_found *f,
                      int first, bool beside_decodes, int *n_chunks)
{
    struct plan_request req = {.n_layers = config_n_keeping(&g->shared->model->cfg),
                               .fused = !s->req->restore_first,
                               .fused_tokens = g->o.max_rows,
                               .n_held = (int64_t)first * STORE_CHUNK_TOKENS,
                               .window = {.layers = g->shared->model->cfg.windowed,
                                          .tokens = g->shared->model->cfg.sliding_window}};
    int rc = 0;
    if (beside_decodes)
        beside_slow(&req);
    if (seq_plan(s) != NULL)
        rc = plan_mode_parse(seq_plan(s), &req, &s->out.err);
    int n_hits = restore_plan_usable(s, f), n = n_hits - first;
    int64_t n_new = s->view.n_tokens - restore_plan_tokens(f, n_hits), tokens = 0;
    bool is_forced = seq_is_forced(s), may_replan;
    int n_snapshot = f->n_snapshot <= n_hits ? f->n_snapshot : 0;
    do { /* a plan that ends before the snapshot cannot use it */
        int n_ranges = s->view.cut > 0
                           ? make_one_range(g, f->hits + first, n)
                           : make_ranges(g, f->hits + first, n, n_snapshot, is_forced);
        for (int i = 0; i < n_ranges; i++)
            g->ranges[i].state_share = f->snapshot_share;
        if (rc == 0)
            rc = plan_ranges(g, s, &req, n_ranges, n_new, &tokens);
        int n_new_chunks = (int)((tokens + STORE_CHUNK_TOKENS - 1) / STORE_CHUNK_TOKENS);
        *n_chunks = tokens > 0 ? first + n_new_chunks : 0;
        may_replan = rc == 0 && tokens > 0 && *n_chunks < n_snapshot;
        n_snapshot = 0;
    } while (may_replan);
    if (tokens > 0 && !s->has_first)
        lanes_predict(&s->out.r.predicted, &req, &s->out.plan);
    return rc;
}

double restore_plan_price_s(const struct restore_phase *g, const struct seq *s,
                            int n_tokens)
{
    if (seq_is_forced(s))
        return 0;
    if (stairs_need_replay(s))
        return stairs_may_replay(s) ? stairs_replay_s(s, n_tokens) : 0;
    return config_n_keeping(&g->shared->model->cfg) *
           platform_prefill_s(g->o.platform, s->n_done, n_tokens - s->n_done);
}

/* The times of the plan and of the replay both include the prefill of the new tokens. */
bool restore_plan_is_slower(const struct restore_phase *g, const struct seq *s)
{
    return stairs_need_replay(s) &&
           staircase_pays(restore_plan_price_s(g, s, s->view.n_tokens),
                          s->out.plan.predicted_s);
}

struct restore_job restore_plan_job(const struct restore_phase *g, const struct seq *s,
                                    int first)
{
    bool is_forced = seq_is_forced(s);
    return (struct restore_job){.n_chunks = s->n_planned,
                                .first_chunk = first,
                                .tokens = s->view.tokens,
                                .table = &s->table,
                                .plan = &s->out.plan,
                                .takes_kv = is_forced || s->view.cut > 0 ? NULL
                                                                         : g->in_dram};
}

/* --- the end of a restore --------------------------------------------------------------------- */

/* Judges whether the prediction missed. New tokens that were computed meanwhile are not part of
 * the restore. */
static void judge_prediction(struct seq *s)
{
    const struct restore_result *r = &s->out.restore;
    const struct plan *p = &s->out.plan;
    const struct surprise_times predicted = {p->restore_s, p->io_busy_s, p->comp_busy_s};
    const struct surprise_times measured = {(double)(r->total_ns - r->prefill_ns) * 1e-9,
                                            (double)r->io_ns * 1e-9,
                                            (double)r->compute_ns * 1e-9};
    enum surprise why = surprise_of(&predicted, &measured, r->n_chunks >= s->n_planned);
    s->out.surprise = why;
    if (why != SURPRISE_NONE)
        log_info(
            "restoring %d tokens was predicted to take %.1f ms and took %.1f (%s): reads "
            "%.1f ms instead of %.1f, compute %.1f instead of %.1f",
            r->n_tokens, predicted.total_s * 1e3, measured.total_s * 1e3,
            surprise_name(why), measured.io_s * 1e3, predicted.io_s * 1e3,
            measured.compute_s * 1e3, predicted.compute_s * 1e3);
}

/* Changes the reported plan to the methods that ran if recomputation has won a race. */
static void tell_won(struct seq *s, const struct restore_result *r)
{
    struct plan *p = &s->out.plan;
    if (!r->won)
        return;
    p->n_r = p->n_h = p->n_k = 0;
    for (int l = 0; l < p->n_layers; l++) {
        p->method[l] = l < r->raced_layers ? 'R' : p->method[l];
        p->n_r += p->method[l] == 'R';
        p->n_h += p->method[l] == 'H';
        p->n_k += p->method[l] == 'K';
    }
    snprintf(p->reason, sizeof p->reason, "its reads stalled, and recomputing was faster");
}

/* Notes how a restore ended whose reads hung or crawled. */
static void judge_stall(struct seq *s)
{
    static const char *const ends[STALL_ENDS] = {"", "its reads ended first",
                                                 "recomputation ended first",
                                                 "prefill computes the missing part"};
    const struct restore_result *r = &s->out.restore;
    enum stall_end e = s->out.stall;
    if (e == STALL_NONE && r->raced_layers > 0)
        e = r->won ? STALL_RECOMPUTED : STALL_READ;
    s->out.stall = e;
    if (e == STALL_NONE)
        return;
    s->shared->stats.n_stalls[e]++;
    log_info("the restore of %d tokens whose reads stalled took %.1f ms: %s", r->n_tokens,
             (double)r->total_ns * 1e-6, ends[e]);
}

/* Corrects the platform by the times that the restore of s took. */
static void teach(struct platform *p, const struct seq *s)
{
    const struct restore_result *r = &s->out.restore;
    /* The compute lane waits while fused prefill runs, so prefill counts as waiting. */
    const struct correction_observed o = {.io_s = (double)r->io_ns * 1e-9,
                                          .compute_s = (double)r->compute_ns * 1e-9,
                                          .wait_s = (double)(r->wait_ns + r->prefill_ns) *
                                                    1e-9,
                                          .total_s = (double)r->total_ns * 1e-9};
    if (correction_is_of_machine(&o, r->fault[0] == 0 && r->raced_layers == 0))
        correction_learn(p, &s->expected, &o);
}

/* Notes why not all stored chunks came back. */
static void tell_miss(struct seq *s, const struct restore_result *r, int n_hits)
{
    if (r->n_chunks < s->n_planned)
        snprintf(s->out.r.miss, sizeof s->out.r.miss, "%s", r->fault);
    else if (s->n_planned < n_hits)
        snprintf(
            s->out.r.miss, sizeof s->out.r.miss,
            "the plan restores %d of %d stored chunks: the others lack its records, or "
            "recomputing them is faster",
            s->n_planned, n_hits);
}

void restore_report(struct platform *p, struct seq *s, int n_hits)
{
    const struct restore_result *r = &s->out.restore;
    teach(p, s);
    judge_stall(s);
    tell_won(s, r);
    if (!s->has_first)
        judge_prediction(s);
    tell_miss(s, r, n_hits);
    if (r->n_tokens <= s->n_done)
        s->out.plan.n_layers = 0;
    else if (!s->has_first)
        s->shared->stats.n_surprises[s->out.surprise]++;
}

/* --- life ------------------------------------------------------------------------------------- */

int restore_phase_init(struct restore_phase *g, const struct restore_phase_opts *o,
                       struct seq_shared *sh, struct next_token *next, struct err *err)
{
    const struct model *m = sh->model;
    size_t chunks = (size_t)(m->max_ctx / STORE_CHUNK_TOKENS + 1);
    size_t layers = (size_t)config_n_keeping(&m->cfg);
    *g = (struct restore_phase){.o = *o, .shared = sh};
    g->ranges = xcalloc(chunks, sizeof *g->ranges);
    g->masks = xcalloc(chunks, layers);
    g->in_dram = xcalloc(chunks, sizeof *g->in_dram);
    g->plan_layer = xcalloc(layers, sizeof *g->plan_layer);
    g->prefill_s = xcalloc(layers, sizeof *g->prefill_s);
    struct restore_pipeline_opts ro = {.model = m,
                                       .store = sh->store,
                                       .pool = sh->pool,
                                       .work = sh->work,
                                       .stream = sh->stream,
                                       .staging_bytes = o->staging_bytes,
                                       .rest_ns = o->rest_ns,
                                       .direct = o->direct,
                                       .fetches = o->fetches,
                                       .remote = o->remote,
                                       .fingerprint = sh->fingerprint,
                                       .max_tokens = m->max_ctx};
    int rc = restore_pipeline_create(&ro, &g->pipeline, err);
    bool fetches = rc == 0 && o->fetches && restore_pipeline_fetches(g->pipeline);
    sh->fetcher = fetches ? g->pipeline : NULL;
    sh->platform = o->platform;
    if (rc == 0 && o->measure_ahead && restore_plan_must_measure(g))
        restore_pipeline_measure(g->pipeline);
    return rc == 0 ? fused_init(&g->fused, sh, next, o->max_rows, err) : rc;
}

void restore_phase_deinit(struct restore_phase *g)
{
    restore_pipeline_destroy(g->pipeline);
    fused_deinit(&g->fused);
    free(g->ranges);
    free(g->masks);
    free(g->in_dram);
    free(g->plan_layer);
    free(g->prefill_s);
}

size_t restore_phase_bytes(const struct restore_phase *g)
{
    return g->pipeline == NULL
               ? 0
               : restore_pipeline_bytes(g->pipeline) +
                     (size_t)g->shared->model->dev->n_stages * g->fused.mem[0].bytes;
}

/* --- one sequence's way through the phase ----------------------------------------------------- */

/* Ends a sequence's restore, or a RESTORE phase without one. n_stored chunks are known to be in the
 * store. A pin on the last one protects all of them, so the chunks that the sequence continues are
 * not evicted while it lives. Then the sequence goes to PREFILL, or to WAIT if moved tokens are
 * missing, or stays in RESTORE while fused prefill has its new tokens. */
static void end(struct restore_phase *g, struct seq *s, int n_stored)
{
    if (n_stored > 0) {
        const struct restore_found *f = restore_found(s->restore);
        s->out.n_stored = view_token(&s->view, restore_plan_tokens(f, n_stored));
        s->pin = store_hold(g->shared->store, &f->hits[n_stored - 1]);
    }
    if (s->restore != NULL)
        restore_end(s->restore);
    s->restore = NULL;
    struct hcache_timings *t = &s->out.r.timings;
    t->restore_ms = clock_ms(clock_now_ns() - s->t_start) - t->lookup_ms;
    s->out.r.cached_tokens = seq_tokens_done(s);
    /* After the loss of a chunk the new tokens begin at an earlier position, so fused prefill of
     * them is thrown away. If fused prefill has not begun, the batch takes the new tokens. */
    if (s->n_done != g->fused.first || !fused_has_begun(&g->fused, s))
        fused_cancel(&g->fused, s);
    if (s->phase == PHASE_RESTORE && s->n_done < view_moved(&s->view))
        seq_retry(s);
    else if (s->phase == PHASE_RESTORE && g->fused.seq != s)
        seq_enter_prefill(s);
}

/* Returns the time to restore n_tokens from the store by the cheaper kind of records, or 0 if the
 * store's speed is not measured yet. */
static double restore_s(const struct restore_phase *g, int n_tokens)
{
    const struct platform *p = g->o.platform;
    if (p->n_tiers == 0)
        return 0;
    double h_s = fmax(platform_io_s(p, 0, n_tokens, RECORD_HIDDEN),
                      platform_h_s(p, n_tokens));
    double kv_s = fmax(platform_io_s(p, 0, n_tokens, RECORD_KV),
                       platform_kv_s(p, n_tokens));
    return p->n_layers * fmin(h_s, kv_s);
}

const char *restore_phase_why_not(const struct seq *s)
{
    if (s->shared->store == NULL)
        return "no store";
    if (seq_plan_is(s, "recompute") && s->view.cut == 0)
        return "recomputation was asked for";
    if (seq_reads_all(s))
        return "every token of the prompt is read";
    if (s->n_tokens == 1)
        return "nothing comes before the prompt's last token";
    return NULL;
}

void restore_phase_find(struct restore_phase *g, struct seq *s)
{
    /* The last prompt token is always computed, because its logits are needed. */
    const struct view *v = &s->view;
    int n_moved = view_moved(v) / STORE_CHUNK_TOKENS;
    struct restore_want want = {
        .root = &s->chain.root,
        .keys = v->keys,
        .tokens = v->tokens,
        .n_tokens = v->n_tokens - 1,
        /* a recurrent state cannot go back over the token that is computed again */
        .has_next = v->truncation.context == 0 && !config_is_hybrid(&g->shared->model->cfg),
        .n_moved = n_moved,
        .stair = chain_stored_parent(&s->chain, view_chunk(v, n_moved)),
        .use = seq_use(s),
        .measure_io = restore_plan_must_measure(g),
        .owner = store_owner(s->req->ask.salt),
        .n_have = s->n_done,
        .saved = save_layers(&s->req->save),
        .recompute_s = restore_plan_price_s(g, s, v->n_tokens),
        .recompute_half_s = restore_plan_price_s(g, s,
                                                 s->n_done + (v->n_tokens - s->n_done) / 2),
        .stair_s = config_n_keeping(&g->shared->model->cfg) *
                   platform_prefill_s(g->o.platform, view_moved(v),
                                      v->n_tokens - view_moved(v)),
        .restore_s = restore_s(g, v->n_tokens - s->n_done)};
    s->restore = restore_find(g->pipeline, &want);
}

static void tell_found(struct seq *s, const struct restore_found *f)
{
    snprintf(s->out.r.miss, sizeof s->out.r.miss, "%.190s",
             f->err.code != 0 ? f->err.msg : f->why);
    s->out.r.differs_at = f->differs_at;
    s->out.r.remote_tokens += f->n_remote * STORE_CHUNK_TOKENS;
}

void restore_phase_begin(struct restore_phase *g, struct seq *s)
{
    const char *why = restore_phase_why_not(s);
    if (why != NULL) {
        snprintf(s->out.r.miss, sizeof s->out.r.miss, "%s", why);
        seq_enter_prefill(s);
        return;
    }
    upcoming_fetch_no_more(s);
    seq_enter_restore(s);
    restore_phase_find(g, s);
}

/* Notes that all stairs are replayed instead of restoring the view. */
static void tell_replay(struct seq *s)
{
    snprintf(
        s->out.r.miss, sizeof s->out.r.miss,
        "computing all %d tokens again, stair by stair, is faster: %.1f ms instead of %.1f",
        s->n_tokens, stairs_replay_s(s, s->view.n_tokens) * 1e3,
        s->out.plan.predicted_s * 1e3);
    s->n_planned = 0;
    s->out.plan.n_layers = 0;
}

/* Plans and starts the reads, once the look-up has ended. */
static void start(struct restore_phase *g, struct seq *s, const struct restore_found *f,
                  bool beside_decodes)
{
    int64_t t0 = clock_now_ns();
    s->out.r.timings.lookup_ms = clock_ms(t0 - s->t_start);
    tell_found(s, f);
    int n_hits = restore_plan_usable(s, f);
    if (restore_plan_tokens(f, n_hits) <= s->n_done) {
        end(g, s, n_hits);
        return;
    }
    restore_plan_measured(g, f);
    int first = s->n_done / STORE_CHUNK_TOKENS;
    int rc = restore_plan_make(g, s, f, first, beside_decodes, &s->n_planned);
    s->out.r.timings.plan_ms = clock_ms(clock_now_ns() - t0);
    if (rc != 0) {
        seq_fail(s, rc, NULL);
        end(g, s, n_hits);
    } else if (s->n_planned == 0) {
        snprintf(s->out.r.miss, sizeof s->out.r.miss, "recomputing is faster: %.150s",
                 s->out.plan.reason);
        s->out.plan.n_layers = 0;
        end(g, s, n_hits);
    } else if (restore_plan_is_slower(g, s) && stairs_replay(s)) {
        tell_replay(s);
        end(g, s, n_hits);
    } else {
        struct restore_job job = restore_plan_job(g, s, first);
        s->recompute_s = restore_plan_price_s(g, s, restore_plan_tokens(f, s->n_planned));
        restore_start(s->restore, &job);
    }
}

/* Lets the new tokens of the first restoring sequence follow its layers: at once, or as soon as
 * fused prefill is free and the saver has room. */
static void fuse_next(struct restore_phase *g, struct seq_list l)
{
    for (int i = 0; i < l.n && g->fused.seq == NULL; i++) {
        struct seq *s = l.seqs[i];
        if (s->phase != PHASE_RESTORE || s->restore == NULL || s->n_planned == 0)
            continue;
        const struct restore_found *f = restore_found(s->restore);
        int first = restore_plan_tokens(f, s->n_planned);
        bool cuts = seq_rows_to_snapshot(s, first) <= s->view.n_tokens - first ||
                    seq_snapshot_follows(s, first, restore_plan_tokens(f, f->n_snapshot));
        if (first >= view_moved(&s->view) && !cuts)
            fused_begin(&g->fused, s, first, &f->hits[s->n_planned - 1]);
    }
}

/* A batch of fewer rows takes as long as reading the weights, which the curves do not model. */
enum { LEAST_TEACHING_ROWS = 64 };

double restore_phase_believes(const struct restore_phase *g, const struct step_batch *b)
{
    double s = 0;
    if (g->pipeline == NULL || b->n_rows < LEAST_TEACHING_ROWS)
        return 0;
    for (int i = 0; i < b->n_seqs; i++) {
        const struct seq *q = b->seqs[i];
        if (q->phase != PHASE_PREFILL)
            return 0;
        s += platform_prefill_s(g->o.platform, q->n_done, q->n_rows);
    }
    return s * config_n_keeping(&g->shared->model->cfg) +
           platform_ends_s(g->o.platform, b->n_rows);
}

void restore_phase_learns(struct restore_phase *g, double believed_s, int64_t ns)
{
    if (believed_s > 0)
        correction_learn_prefill(g->o.platform, believed_s, (double)ns * 1e-9);
}

/* Ends the restore: every chunk has come back, or was lost. */
static void finish(struct restore_phase *g, struct seq *s)
{
    int n_hits = restore_plan_usable(s, restore_found(s->restore));
    struct restore_result *r = &s->out.restore;
    if (!s->has_first && s->n_planned > 0)
        lanes_measure(&s->out.r.measured, s->restore);
    int rc = restore_result_of(s->restore, r, &s->out.err);
    if (rc != 0) {
        fused_cancel(&g->fused, s);
        seq_fail(s, rc, NULL);
        end(g, s, 0);
        return;
    }
    if (g->fused.seq == s)
        r->prefill_ns = g->fused.busy_ns;
    restore_report(g->o.platform, s, n_hits);
    s->has_gap |= r->first_token > 0;
    s->table.snapshot = r->snapshot_tokens;
    if (r->has_lost_snapshot) /* its layers have begun again, so new tokens must pass them again */
        fused_cancel(&g->fused, s);
    s->n_done = MIN(r->n_tokens, s->view.n_tokens - 1);
    end(g, s, r->n_chunks < s->n_planned ? r->n_chunks : n_hits);
}

void restore_phase_abandon(struct restore_phase *g, struct seq *s)
{
    fused_cancel(&g->fused, s);
    if (s->restore != NULL)
        restore_end(s->restore);
    s->restore = NULL;
}

/* --- reads that hang or crawl ----------------------------------------------------------------- */

/* Chooses what to do about reads. Lowers again_ns to the time of their next judgement. */
static enum stall_choice choose(struct restore_phase *g, const struct stall_view *v)
{
    double again_s;
    enum stall_choice what = stall_choose(v, &again_s);
    if (again_s * 1e9 < (double)g->again_ns)
        g->again_ns = (int64_t)(again_s * 1e9) + 1;
    return what;
}

/* Judges the reads of a restore: they go on alone, recomputation races them, or the restore
 * gives them up. */
static void judge_reads(struct restore_phase *g, struct seq *s, bool beside_decodes)
{
    struct restore_reads r;
    bool replays = stairs_need_replay(s);
    if (replays) /* priced in each call: whether s may replay depends on other sequences */
        s->recompute_s = restore_plan_price_s(
            g, s, restore_plan_tokens(restore_found(s->restore), s->n_planned));
    if (s->recompute_s <= 0)
        return;
    restore_reads_of(s->restore, &r);
    int n_reads = r.n_read + r.n_left;
    const struct stall_view v = {
        .recompute_s = s->recompute_s * (beside_decodes ? BESIDE_PREFILL_SLOW : 1),
        .elapsed_s = (double)r.elapsed_ns * 1e-9,
        .silent_s = (double)r.silent_ns * 1e-9,
        .read_s = n_reads > 0 ? s->out.plan.io_busy_s / n_reads : 0,
        .n_read = r.n_read,
        .n_left = r.n_left,
        .may_recompute = true,
        .can_race = r.can_race && s->view.cut == 0,
        .is_idle = r.is_idle,
        .is_beside = beside_decodes,
        .is_raced = r.is_raced};
    enum stall_choice what = choose(g, &v);
    if (what == STALL_RACE && restore_race(s->restore)) {
        log_info("reads of a restore stall (silent for %.1f ms, %d of %d done): "
                 "recomputation races them",
                 v.silent_s * 1e3, r.n_read, n_reads);
    } else if (what == STALL_LEAVE && (!replays || stairs_replay(s))) {
        char why[100];
        snprintf(why, sizeof why,
                 "the store did not answer for %.0f ms: the request continues without it",
                 v.silent_s * 1e3);
        s->out.stall = STALL_LEFT;
        restore_stop(s->restore, why);
    }
}

/* --- the phase within a step ------------------------------------------------------------------ */

/* Ends fused prefill after an error, which fails its sequence only. Does nothing if rc is 0. */
static void settle_fused(struct restore_phase *g, int rc)
{
    struct seq *s = g->fused.seq;
    if (rc == 0)
        return;
    restore_phase_abandon(g, s);
    if (rc == MODEL_E_OVERFLOW) {
        seq_fail_overflow(s);
    } else {
        struct step_fault fault = step_fault(g->shared, rc);
        seq_fail(s, rc, fault.text);
    }
}

/* Runs one work item of fused prefill. *n gets its rows. Returns whether there was an item. */
static bool fuse(struct restore_phase *g, int max_rows, int *n)
{
    settle_fused(g, fused_work(&g->fused, max_rows, n));
    return *n > 0;
}

/* Returns whether a look-up is given up because it has been silent longer than reads may be. A
 * look-up that must measure the store's speed is never given up. A look-up whose remote sends is
 * not silent. */
static bool leaves_lookup(struct restore_phase *g, struct seq *s)
{
    double price_s = restore_plan_price_s(g, s, s->view.n_tokens);
    int64_t heard_ns = restore_heard_ns(s->restore);
    int64_t since_ns = MAX(heard_ns, s->t_start);
    const struct stall_view v = {.recompute_s = price_s,
                                 .silent_s = (double)(clock_now_ns() - since_ns) * 1e-9,
                                 .n_left = 1,
                                 .may_recompute = price_s > 0 &&
                                                  !restore_plan_must_measure(g)};
    return choose(g, &v) == STALL_LEAVE;
}

/* Gives up the look-up of s, which then restores nothing. */
static void leave_lookup(struct restore_phase *g, struct seq *s)
{
    s->out.r.timings.lookup_ms = clock_ms(clock_now_ns() - s->t_start);
    s->out.stall = STALL_LEFT;
    g->shared->stats.n_stalls[STALL_LEFT]++;
    snprintf(s->out.r.miss, sizeof s->out.r.miss,
             "the store did not answer for %.0f ms: the request continues without it",
             s->out.r.timings.lookup_ms);
    log_info("a look-up of %d tokens: %s", s->view.n_tokens, s->out.r.miss);
    end(g, s, 0);
}

/* Takes a restoring sequence to its next state, if it is ready: the look-up has ended or is given
 * up, the reads are judged, all chunks are back, or fused prefill is over. */
static void move_on(struct restore_phase *g, struct seq *s, bool beside_decodes)
{
    const struct restore_found *f;
    if (s->restore == NULL) { /* fused prefill still computes the sequence's new tokens */
        settle_fused(g, fused_finish(&g->fused));
        return;
    }
    if (s->n_planned == 0 && (f = restore_found(s->restore)) != NULL)
        start(g, s, f, beside_decodes);
    else if (s->n_planned == 0 && leaves_lookup(g, s) &&
             (!stairs_need_replay(s) || stairs_replay(s)))
        leave_lookup(g, s);
    if (s->phase != PHASE_RESTORE || s->n_planned == 0 || s->restore == NULL)
        return;
    judge_reads(g, s, beside_decodes);
    if (restore_is_done(s->restore))
        finish(g, s);
}

/* Advances every sequence that can go on. Returns the number of sequences that still restore. */
static int poll(struct restore_phase *g, struct seq_list l)
{
    g->again_ns = INT64_MAX;
    for (int i = 0; i < l.n; i++) {
        if (l.seqs[i]->phase == PHASE_RESTORE)
            move_on(g, l.seqs[i], seq_count(l, PHASE_DECODE) > 0);
    }
    fuse_next(g, l);
    return seq_count(l, PHASE_RESTORE);
}

/* Restores beside decodes: as much as the credit allows, without waiting for anything. New tokens
 * get the rows that the batch has left. */
static void work_beside(struct restore_phase *g, const struct restore_phase_budget *b)
{
    beside_earn(&g->credit, b->batch_ns, b->free_ns);
    while (beside_may_work(&g->credit) && restore_pipeline_work(g->pipeline, g->credit.ns))
        beside_pay(&g->credit, restore_pipeline_cost_ns(g->pipeline));
    int n_layers = config_n_keeping(&g->shared->model->cfg);
    int left = beside_fused_rows(g->fused.n, b->rows_left, n_layers);
    for (int n = 0; left > 0 && fuse(g, left, &n);)
        left -= n;
}

/* Restores while nothing decodes, until a sequence can go on, or for as long as a step may take. */
static void work_alone(struct restore_phase *g, struct seq_list l, int n_restoring,
                       bool may_wait, int64_t batch_ns)
{
    int64_t now = clock_now_ns(), end = now + beside_alone_ns(batch_ns);
    while (now < end && poll(g, l) == n_restoring) {
        int n = 0;
        bool worked = restore_pipeline_work(g->pipeline, RESTORE_NO_LIMIT) ||
                      fuse(g, INT_MAX, &n);
        now = clock_now_ns();
        if (!worked && !may_wait)
            break;
        int64_t left = end - now;
        if (!worked && left > 0)
            (void)restore_pipeline_wait(g->pipeline, MIN(left, g->again_ns));
        now = clock_now_ns();
    }
}

void restore_phase_step(struct restore_phase *g, struct seq_list l,
                        const struct restore_phase_budget *b)
{
    int n_before = seq_count(l, PHASE_RESTORE), n = n_before > 0 ? poll(g, l) : 0;
    if (n == 0)
        g->credit = (struct beside_credit){0};
    else if (b->n_decodes > 0)
        work_beside(g, b);
    else
        work_alone(g, l, n, b->batch_ns == 0 && n == n_before, b->batch_ns);
    if (n > 0)
        poll(g, l);
}
