/* restore_plan.c - see restore_plan.h. */
#include "engine/restore_plan.h"

#include <string.h>

#include "restore/dram_tier.h"
#include "restore/save_kinds.h"
#include "engine/staircase.h"
#include "engine/stairs.h"
#include "restore/profile.h"

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
    int n_layers = s->shared->model->cfg.n_layers;
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

/* Finds the chunks that have copies in DRAM. If is_ahead is set, all chunks count as copied.
 * Returns the tier of the copies. */
static int find_copies(struct restore_phase *g, const struct store_hit *hits, int n_hits,
                       bool is_ahead)
{
    bool any = false;
    if (is_ahead)
        memset(g->in_dram, true, (size_t)n_hits * sizeof *g->in_dram);
    else
        store_in_dram(g->shared->store, hits, n_hits, g->in_dram);
    for (int c = 0; c < n_hits; c++)
        any |= g->in_dram[c];
    return any ? dram_tier(g->o.platform) : 0;
}

/* Makes one range of all chunks, because the moved tokens of a truncated context come back
 * together or not at all. There is at least one chunk. If the chunks of a layer have no kind in
 * common, each is restored from its own kind. */
static int make_one_range(struct restore_phase *g, const struct store_hit *hits, int n_hits)
{
    int tier = find_copies(g, hits, n_hits, false);
    for (int l = 0; l < g->shared->model->cfg.n_layers; l++) {
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
        g->ranges[0].n_tokens += hits[c].n_tokens;
    return 1;
}

/* Merges neighbouring chunks with equal records in the same tier into ranges. Returns their number.
 * Reading from DRAM costs nothing, so keys and values are the best kind there, whatever kind the
 * disk's chunks use: each tier has its own letter (docs/RESTORATION.md). A forced plan uses the
 * same kind in both tiers. Chunks that are read ahead count as read. */
static int make_ranges(struct restore_phase *g, const struct store_hit *hits, int n_hits,
                       bool is_forced, bool is_ahead)
{
    int n_layers = g->shared->model->cfg.n_layers, n = 0;
    int dram = find_copies(g, hits, n_hits, is_ahead);
    for (int c = 0; c < n_hits; c++) {
        int tier = g->in_dram[c] ? dram : 0;
        uint8_t *mask = g->masks + (size_t)n * (size_t)n_layers;
        for (int l = 0; l < n_layers; l++) {
            mask[l] = records_of(hits, c, l);
            if (tier > 0 && !is_forced && (mask[l] & PLAN_HAS_KV))
                mask[l] = PLAN_HAS_KV;
        }
        if (n > 0 && tier == g->ranges[n - 1].tier &&
            memcmp(mask, g->ranges[n - 1].mask, (size_t)n_layers) == 0) {
            g->ranges[n - 1].n_tokens += hits[c].n_tokens;
            continue;
        }
        g->ranges[n++] = (struct plan_range){
            .n_tokens = hits[c].n_tokens, .tier = tier, .mask = mask};
    }
    return n;
}

int restore_plan_make(struct restore_phase *g, struct seq *s, const struct restore_found *f,
                      const struct restore_plan_ask *ask, int *n_chunks)
{
    int first = ask->first;
    struct plan_request req = {.n_layers = g->shared->model->cfg.n_layers,
                               .fused = !s->req->restore_first,
                               .fused_tokens = g->o.max_rows,
                               .n_held = (int64_t)first * STORE_CHUNK_TOKENS,
                               .window = {.layers = g->shared->model->cfg.windowed,
                                          .tokens = g->shared->model->cfg.sliding_window}};
    int n_used = 0, rc = 0;
    if (ask->beside_decodes)
        beside_slow(&req);
    if (seq_plan(s) != NULL)
        rc = plan_mode_parse(seq_plan(s), &req, &s->out.err);
    int n_hits = restore_plan_usable(s, f);
    bool moves = s->view.cut > 0;
    int n_ranges = moves ? make_one_range(g, f->hits + first, n_hits - first)
                         : make_ranges(g, f->hits + first, n_hits - first, seq_is_forced(s),
                                       ask->is_ahead);
    int64_t n_new = s->view.n_tokens - restore_plan_tokens(f, n_hits);
    if (rc == 0)
        rc = plan_best_prefix(g->o.platform, g->ranges, n_ranges, n_new, !moves,
                              g->plan_layer, g->prefill_s, &req, &s->out.plan, &n_used,
                              &s->out.err);
    if (rc == ERR_NOT_FOUND && moves && req.mode != PLAN_AUTO) {
        req.mode = PLAN_AUTO;
        s->out.err = (struct err){0};
        rc = plan_best_prefix(g->o.platform, g->ranges, n_ranges, n_new, false,
                              g->plan_layer, g->prefill_s, &req, &s->out.plan, &n_used,
                              &s->out.err);
    }
    /* If the moved tokens lack records, their chunks count as not stored. */
    if (rc == ERR_NOT_FOUND && moves) {
        s->out.err = (struct err){0};
        n_used = rc = 0;
    }
    int64_t tokens = 0;
    int tier = n_used > 0 ? g->ranges[0].tier : 0; /* 0 if any chunk is on the disk */
    for (int i = 0; rc == 0 && i < n_used; i++) {
        tokens += g->ranges[i].n_tokens;
        tier = g->ranges[i].tier == 0 ? 0 : tier;
    }
    int n_new_chunks = (int)((tokens + STORE_CHUNK_TOKENS - 1) / STORE_CHUNK_TOKENS);
    *n_chunks = n_used > 0 ? first + n_new_chunks : 0;
    if (n_used > 0) {
        s->expected = correction_expect(g->o.platform, tier, &req, &s->out.plan);
        if (!s->has_first)
            lanes_predict(&s->out.r.predicted, &req, &s->out.plan);
    }
    return rc;
}

double restore_plan_price_s(const struct restore_phase *g, const struct seq *s,
                            int n_tokens)
{
    if (seq_is_forced(s))
        return 0;
    if (stairs_need_replay(s))
        return stairs_may_replay(s) ? stairs_replay_s(s, n_tokens) : 0;
    return g->shared->model->cfg.n_layers *
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
                                .plan = &s->out.plan,
                                .takes_kv = is_forced || s->view.cut > 0 ? NULL
                                                                         : g->in_dram,
                                .layer = is_forced ? NULL : g->plan_layer};
}
