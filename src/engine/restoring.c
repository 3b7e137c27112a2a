/* restoring.c - the restoration phase of a sequence: look up, plan, restore.
 *
 *   WAIT --restoring_begin--> RESTORE: looked up, planned, restored by restoring_step --> PREFILL
 *
 * What it leaves behind is always right: n_done tokens whose K and V are in the cache, from which
 * prefill goes on.  Fewer than hoped for is a miss with a reason, not an error.  A forced plan uses the
 * records that are there and says so in plan.deviation; with plan_strict a deviation is an error.
 *
 * Decodes never wait for I/O, and hardly for the restores' compute: beside them it gets ENGINE_RESTORE_SHARE of the
 * time that their forward passes take, kept as a credit.  An item that took longer than there was
 * credit is paid for by the steps that follow. */
#include "engine/seq.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "state/profile.h"

/* How long a step without decodes may restore or wait: as long as a new request may be kept waiting, or
 * as long as the prompts in it take, so that both get half of the machine. */
enum { ALONE_NS = 20 * 1000 * 1000 };
/* Fewer new tokens than these wait for the batch: by themselves they would read the layers' weights for
 * hardly any work, which takes as long as a step of decodes. */
enum { FUSED_ROWS_BESIDE = 64 };

static int count_phase(const struct engine *e, enum phase phase)
{
    int n = 0;
    for (int i = 0; i < e->n_seqs; i++)
        n += e->seqs[i]->phase == phase;
    return n;
}

/* --- planning --------------------------------------------------------------------------------- */

/* The store's speed: measured once per engine, ahead, else on the first hits, for there is something to
 * restore and so something to measure; a throttle is the speed, no need to wait for it. */
bool restoring_must_measure(const struct engine *e)
{
    return e->o.platform->n_tiers == 0 && e->o.throttle_bytes_per_s == 0;
}

static void take_measure(struct engine *e, const struct restore_found *f)
{
    struct platform *p = e->o.platform;
    double limit = (double)e->o.throttle_bytes_per_s;
    if (p->n_tiers == 0 && f->measured) {
        p->n_tiers = 1;
        p->tier[0] = f->tier;
    }
    if (limit > 0 && p->n_tiers == 0) {
        p->n_tiers = 1;
        p->tier[0] = (struct platform_tier){.name = "throttled", .bytes_per_s = limit};
    } else if (limit > 0) {
        platform_throttle(p, 0, limit);
    }
}

/* Tokens of the first n chunks; the last one that was found may be partial. */
static int stored_tokens(const struct restore_found *f, int n)
{
    return n == 0 ? 0 : (n - 1) * STORE_CHUNK_TOKENS + f->hits[n - 1].n_tokens;
}

/* The chunks that may be used of those that were found: a partial one that lacks records which are to be
 * saved is computed again, so that the chunk that it becomes has them all. */
static int usable_hits(const struct engine *e, const struct seq *s,
                       const struct restore_found *f)
{
    int n = f->n_hits;
    if (n == 0 || f->hits[n - 1].n_tokens == STORE_CHUNK_TOKENS || e->o.saver == NULL)
        return n;
    return save_can_continue(&s->req.save, e->o.model->cfg.n_layers, &f->hits[n - 1].mask)
               ? n
               : n - 1;
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
            e->ranges[n - 1].n_tokens += hits[c].n_tokens;
            continue;
        }
        e->ranges[n++] = (struct plan_range){.n_tokens = hits[c].n_tokens, .mask = mask};
    }
    return n;
}

/* Of what was found, the chunks behind those that are on the device. *n_chunks: with those. */
static int make_plan(struct engine *e, struct seq *s, const struct restore_found *f,
                     int *n_chunks)
{
    int first = s->n_done / STORE_CHUNK_TOKENS;
    struct plan_request req = {.n_layers = e->o.model->cfg.n_layers,
                               .fused = !s->req.restore_first,
                               .fused_tokens = e->o.max_batch_rows,
                               .window = {.layer = e->o.model->cfg.window_layer,
                                          .tokens = e->o.model->cfg.sliding_window}};
    int n_used = 0, rc = 0;
    if (count_phase(e, PHASE_DECODE) > 0) {
        req.comp_slow = 1 / ENGINE_RESTORE_SHARE;
        req.prefill_slow = SCHEDULE_STRETCH / (SCHEDULE_STRETCH - 1);
    }
    if (s->plan != NULL)
        rc = plan_mode_parse(s->plan, &req, &s->out.err);
    req.may_deviate = !s->req.plan_strict;
    int n_hits = usable_hits(e, s, f);
    int n_ranges = make_ranges(e, f->hits + first, n_hits - first);
    int64_t n_new = s->n_tokens - stored_tokens(f, n_hits);
    if (rc == 0)
        rc = plan_best_prefix(e->o.platform, e->ranges, n_ranges, n_new, true,
                              e->plan_layer, e->prefill_s, &req, &s->out.plan, &n_used,
                              &s->out.err);
    if (rc == 0 && s->req.plan_strict && s->out.plan.deviation[0] != 0)
        rc = err_set(&s->out.err, ERR_NOT_FOUND, "plan '%s' cannot be carried out: %s",
                     s->plan, s->out.plan.deviation);
    int64_t tokens = 0;
    for (int i = 0; rc == 0 && i < n_used; i++)
        tokens += e->ranges[i].n_tokens;
    int n_new_chunks = (int)((tokens + STORE_CHUNK_TOKENS - 1) / STORE_CHUNK_TOKENS);
    *n_chunks = n_used > 0 ? first + n_new_chunks : 0;
    if (n_used > 0) {
        seq_expect(e, s, &req);
        if (!s->was_preempted)
            lanes_predict(&s->predicted, &req, &s->out.plan);
    }
    return rc;
}

/* --- one sequence's way through the phase ----------------------------------------------------- */

static void fail(struct seq *s, int rc)
{
    s->out.err.code = rc;
    s->out.finish = FINISH_ERROR;
    s->phase = PHASE_DONE;
}

/* The restore is over, or was none: n_stored chunks are known to be in the store.  While the sequence
 * lives, what its state continues is not evicted: the last of them pins all. */
static void end(struct engine *e, struct seq *s, int n_stored)
{
    if (n_stored > 0) {
        const struct restore_found *f = restore_found(s->restore);
        s->out.n_stored = stored_tokens(f, n_stored);
        s->pin = store_hold(e->o.store, &f->hits[n_stored - 1]);
    }
    if (s->restore != NULL)
        restore_end(s->restore);
    s->restore = NULL;
    s->out.restore_ns = clock_now_ns() - s->t_start - s->out.lookup_ns;
    s->out.n_cached = s->n_done;
    /* A chunk was lost, and the new tokens begin elsewhere; or they have not begun: then they go with
     * the batch. */
    if (s->n_done != e->fused.first || !fused_has_begun(&e->fused))
        fused_cancel(e, s);
    if (s->phase == PHASE_RESTORE && e->fused.seq != s)
        schedule_prefill(e, s);
}

/* Why nothing is looked up, or NULL. */
static const char *why_not(const struct engine *e, const struct seq *s)
{
    if (e->o.store == NULL)
        return "no store";
    if (s->plan != NULL && strcmp(s->plan, "recompute") == 0)
        return "recomputation was asked for";
    if (s->n_tokens == 1)
        return "nothing comes before the prompt's last token";
    return NULL;
}

void restoring_begin(struct engine *e, struct seq *s)
{
    const char *why = why_not(e, s);
    if (why != NULL) {
        snprintf(s->out.miss, sizeof s->out.miss, "%s", why);
        schedule_prefill(e, s);
        return;
    }
    /* The last prompt token must be computed in any case: its logits are wanted. */
    struct restore_want want = {.root = &s->chain.root,
                                .keys = s->chain.keys,
                                .tokens = s->tokens,
                                .n_tokens = s->n_tokens - 1,
                                .measure_io = restoring_must_measure(e)};
    s->phase = PHASE_RESTORE;
    s->n_planned = 0;
    s->restore = restore_find(e->restorer, &want);
}

/* What was looked up is known: plans, and starts the reads. */
static void start(struct engine *e, struct seq *s, const struct restore_found *f)
{
    int64_t t0 = clock_now_ns();
    s->out.lookup_ns = t0 - s->t_start;
    snprintf(s->out.miss, sizeof s->out.miss, "%.190s",
             f->err.code != 0 ? f->err.msg : f->why);
    int n_hits = usable_hits(e, s, f);
    if (stored_tokens(f, n_hits) <= s->n_done) {
        end(e, s, n_hits);
        return;
    }
    take_measure(e, f);
    int rc = make_plan(e, s, f, &s->n_planned);
    s->out.plan_ns = clock_now_ns() - t0;
    if (rc != 0) {
        fail(s, rc);
        end(e, s, n_hits);
    } else if (s->n_planned == 0) {
        snprintf(s->out.miss, sizeof s->out.miss, "recomputing is faster: %.150s",
                 s->out.plan.reason);
        s->out.plan.n_layers = 0;
        end(e, s, n_hits);
    } else {
        struct restore_job job = {.n_chunks = s->n_planned,
                                  .first_chunk = s->n_done / STORE_CHUNK_TOKENS,
                                  .tokens = s->tokens,
                                  .table = &s->table,
                                  .plan = &s->out.plan};
        restore_start(s->restore, &job);
    }
}

/* Whoever is the first whose layers come back has its new tokens follow them: at once, or as soon as the
 * place is free and its save has room. */
static void fuse_next(struct engine *e)
{
    for (int i = 0; i < e->n_seqs && e->fused.seq == NULL; i++) {
        struct seq *s = e->seqs[i];
        if (s->phase != PHASE_RESTORE || s->restore == NULL || s->n_planned == 0)
            continue;
        const struct restore_found *f = restore_found(s->restore);
        fused_begin(e, s, stored_tokens(f, s->n_planned), &f->hits[s->n_planned - 1]);
    }
}

/* A forced plan lost chunks on the way: what it did not restore is computed. */
static void tell_lost(struct seq *s, const struct restore_result *r)
{
    struct plan *p = &s->out.plan;
    size_t n = strlen(p->deviation);
    if (s->plan != NULL && p->mode != PLAN_AUTO && r->n_chunks < s->n_planned)
        snprintf(p->deviation + n, sizeof p->deviation - n,
                 "%s%d of %d chunks could not be restored and are computed: %s",
                 n > 0 ? "; " : "", s->n_planned - r->n_chunks, s->n_planned, r->fault);
}

/* Everything has come back that will. */
static void finish(struct engine *e, struct seq *s)
{
    int n_hits = usable_hits(e, s, restore_found(s->restore));
    struct restore_result *r = &s->out.restore;
    if (!s->was_preempted && s->n_planned > 0)
        lanes_measure(&s->measured, s->restore);
    int rc = restore_result_of(s->restore, r, &s->out.err);
    if (rc != 0) {
        fail(s, rc);
        end(e, s, 0);
        return;
    }
    if (e->fused.seq == s)
        r->prefill_ns = e->fused.busy_ns;
    seq_learn(e, s);
    s->has_gap |= r->first_token > 0;
    bool none = r->n_tokens <= s->n_done;
    tell_lost(s, r);
    s->n_done = r->n_tokens;
    if (r->n_chunks < s->n_planned)
        snprintf(s->out.miss, sizeof s->out.miss, "%s", r->fault);
    else if (s->n_planned < n_hits)
        snprintf(
            s->out.miss, sizeof s->out.miss,
            "the plan restores %d of %d stored chunks: the others lack its records, or "
            "recomputing them is faster",
            s->n_planned, n_hits);
    if (none)
        s->out.plan.n_layers = 0;
    end(e, s, r->n_chunks < s->n_planned ? r->n_chunks : n_hits);
}

void restoring_abandon(struct engine *e, struct seq *s)
{
    fused_cancel(e, s);
    if (s->restore != NULL)
        restore_end(s->restore);
    s->restore = NULL;
}

/* --- the phase within a step ------------------------------------------------------------------ */

static void move_on(struct engine *e, struct seq *s)
{
    const struct restore_found *f;
    if (s->restore == NULL) { /* its new tokens are on their way */
        fused_finish(e);
        return;
    }
    if (s->n_planned == 0 && (f = restore_found(s->restore)) != NULL)
        start(e, s, f);
    if (s->phase == PHASE_RESTORE && s->n_planned > 0 && s->restore != NULL &&
        restore_is_done(s->restore))
        finish(e, s);
}

/* Moves on whoever can; returns how many are still restoring. */
static int poll(struct engine *e)
{
    for (int i = 0; i < e->n_seqs; i++) {
        if (e->seqs[i]->phase == PHASE_RESTORE)
            move_on(e, e->seqs[i]);
    }
    fuse_next(e);
    return count_phase(e, PHASE_RESTORE);
}

/* Beside decodes: as much as the credit allows, waiting for nothing; of the new tokens as much as the
 * batch has left of its rows. */
static void work_beside(struct engine *e, int n_decodes, int64_t batch_ns)
{
    int64_t earned = (int64_t)(ENGINE_RESTORE_SHARE * (double)batch_ns);
    e->restore_credit_ns += earned;
    if (e->restore_credit_ns > earned)
        e->restore_credit_ns = earned; /* what was not used is lost: no bursts */
    bool worked = true;
    while (worked && e->restore_credit_ns > 0) {
        worked = restorer_work(e->restorer, e->restore_credit_ns);
        e->restore_credit_ns -= worked ? restorer_cost_ns(e->restorer) : 0;
    }
    int rows = e->o.step_rows - e->n_rows;
    int beside = e->rows_beside - (e->n_rows - n_decodes);
    int left = (rows < beside ? rows : beside) * e->o.model->cfg.n_layers;
    if (e->fused.n < FUSED_ROWS_BESIDE)
        return;
    for (int n = 1; left > 0 && n > 0; left -= n)
        n = fused_work(e, left);
}

/* Nothing decodes: restores until somebody can go on, or for as long as a step may take. */
static void work_alone(struct engine *e, int n_restoring, bool may_wait, int64_t batch_ns)
{
    int64_t now = clock_now_ns(), end = now + (batch_ns > ALONE_NS ? batch_ns : ALONE_NS);
    while (now < end && poll(e) == n_restoring) {
        bool worked = restorer_work(e->restorer, RESTORE_NO_LIMIT) ||
                      fused_work(e, INT_MAX) > 0;
        now = clock_now_ns();
        if (!worked && (!may_wait || !restorer_wait(e->restorer, end - now)))
            break;
    }
}

void restoring_step(struct engine *e, int n_decodes, int64_t batch_ns)
{
    int n_before = count_phase(e, PHASE_RESTORE), n = n_before > 0 ? poll(e) : 0;
    if (n == 0)
        e->restore_credit_ns = 0;
    else if (n_decodes > 0)
        work_beside(e, n_decodes, batch_ns);
    else
        work_alone(e, n, e->n_batch == 0 && n == n_before, batch_ns);
    if (n > 0)
        poll(e);
}
