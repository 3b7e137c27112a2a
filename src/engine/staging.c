/* staging.c - see staging.h. */
#include "engine/staging.h"

#include <math.h>

#include "engine/restoring.h"

/* Contexts of less than 256 tokens are not read ahead, and not fetched either (store/fetch.c). */
enum { LEAST_TOKENS = 4 * STORE_CHUNK_TOKENS };

bool staging_may_begin(const struct restore_phase *g, const struct seq *s)
{
    return g->stages && s->restore == NULL && !s->staging.is_decided && s->t_admit == 0 &&
           !s->stairs.must_choose && restore_phase_why_not(s) == NULL;
}

void staging_leave_out(struct seq *s)
{
    s->staging.is_decided = true;
}

void staging_begin(struct restore_phase *g, struct seq *s, int n_known)
{
    s->staging = (struct seq_staging){.is_decided = true, .first = n_known};
    if (s->view.n_tokens - n_known * STORE_CHUNK_TOKENS > LEAST_TOKENS)
        restore_phase_find(g, s);
}

/* Forgets the plan of a staged restore that is not used. Chunks that the remote sent for it stay
 * in the store. */
static void drop(struct restore_phase *g, struct seq *s)
{
    const struct restore_found *f = restore_found(s->restore);
    if (f != NULL)
        s->out.r.remote_tokens += f->n_remote * STORE_CHUNK_TOKENS;
    restore_phase_abandon(g, s);
    s->n_planned = 0;
    s->out.plan = (struct plan){0};
    s->out.err = (struct err){0};
}

/* Returns the time to prefill the tokens behind the first n_old, which a plan does not restore. */
static double prefill_s(const struct restore_phase *g, const struct seq *s, int n_old)
{
    const struct platform *p = g->o.platform;
    return config_n_keeping(&g->shared->model->cfg) *
           platform_prefill_s(p, n_old, s->view.n_tokens - n_old);
}

/* Returns the time to read the records of a plan for n_tokens, if one record is read after the
 * other. */
static double load_s(const struct restore_phase *g, const struct plan *plan, int n_tokens)
{
    double s = 0;
    for (int l = 0; l < plan->n_layers; l++)
        if (plan->method[l] == 'K' || (plan->method[l] == 'H' && l > 0))
            s += platform_io_s(g->o.platform, 0, n_tokens,
                               plan->method[l] == 'K' ? RECORD_KV : RECORD_HIDDEN);
    return s;
}

/* Returns the share of the plan's reads that staging memory has room for. */
static double room_of(const struct restore_phase *g, const struct plan *plan, int n_tokens)
{
    int n_groups = (n_tokens / STORE_CHUNK_TOKENS + RESTORE_GROUP_CHUNKS - 1) /
                   RESTORE_GROUP_CHUNKS * (plan->n_h + plan->n_k);
    return n_groups > 0 ? (double)restore_stage_groups(g->pipeline) / n_groups : 0;
}

/* Plans the restore as if all reads were made ahead, and computes the gain over a restore without
 * reading ahead. A forced plan is carried out unchanged. Returns the share of its reads that is
 * worth making, or 0 if no read is. */
static double plan_ahead(struct restore_phase *g, struct seq *s,
                         const struct restore_found *f, bool beside_decodes)
{
    struct read_ahead *a = &s->staging.ahead;
    const struct plan *plan = &s->out.plan;
    int first = s->staging.first, n_first = first * STORE_CHUNK_TOKENS;
    struct restore_plan_ask ask = {first, beside_decodes, false};
    if (restore_plan_make(g, s, f, &ask, &s->n_planned) != 0)
        return 0;
    a->alone_s = s->n_planned > 0 ? plan->predicted_s : prefill_s(g, s, n_first);
    ask.is_ahead = !seq_is_forced(s);
    if (ask.is_ahead && restore_plan_make(g, s, f, &ask, &s->n_planned) != 0)
        return 0;
    if (s->n_planned == 0)
        return 0;
    int n_old = restore_plan_tokens(f, s->n_planned);
    a->load_s = load_s(g, plan, n_old - n_first);
    /* Time that plan->comp_busy_s includes for the new tokens. */
    double new_s = prefill_s(g, s, n_old);
    a->prefill_s = s->req->restore_first ? 0 : new_s;
    a->compute_s = fmax(plan->comp_busy_s - (new_s - a->prefill_s), 0);
    s->staging.bytes = (uint64_t)(plan->stored_bytes_per_token * (n_old - n_first));
    return read_ahead_share(a, room_of(g, plan, n_old - n_first));
}

static bool stage(struct restore_phase *g, struct seq *s, const struct restore_found *f,
                  bool beside_decodes)
{
    int n_hits = restore_plan_usable(s, f), first = s->staging.first;
    restore_plan_measured(g, f);
    if (restore_plan_tokens(f, n_hits) - first * STORE_CHUNK_TOKENS < LEAST_TOKENS)
        return false;
    double share = plan_ahead(g, s, f, beside_decodes);
    if (share <= 0)
        return false;
    struct restore_job job = restore_plan_job(g, s, first);
    restore_stage(s->restore, &job, (uint64_t)(share * (double)s->staging.bytes) + 1);
    g->shared->stats.n_staged++;
    return true;
}

/* Returns whether a found chunk was erased. No chunk is erased before the chunks that continue
 * it, so the test of the last one suffices. */
static bool is_erased(const struct seq *s, const struct restore_found *f)
{
    return !store_hits_stand(s->shared->store, &f->hits[f->n_hits - 1], 1);
}

void staging_step(struct restore_phase *g, struct seq *s, bool beside_decodes)
{
    const struct restore_found *f = restore_found(s->restore);
    if (f == NULL)
        return;
    if (s->n_planned == 0 && !stage(g, s, f, beside_decodes))
        drop(g, s);
    else if (is_erased(s, f))
        staging_end(g, s);
}

/* Returns whether more chunks are stored than the look-up found: other sequences have saved them
 * since. */
static bool store_has_more(const struct seq *s, const struct restore_found *f)
{
    int n_all = (s->view.n_tokens - 1) / STORE_CHUNK_TOKENS;
    int n_found = restore_plan_tokens(f, f->n_hits) / STORE_CHUNK_TOKENS + f->n_left_out;
    return n_found < n_all && store_count(s->shared->store, s->view.keys, n_all) > n_found;
}

/* Returns the share of its reads that a staged restore has made. */
static double share_read(struct seq *s)
{
    struct restore_result r;
    (void)restore_result_of(s->restore, &r, NULL);
    return s->staging.bytes > 0 ? (double)r.read_bytes / (double)s->staging.bytes : 0;
}

bool staging_is_usable(const struct restore_phase *g, struct seq *s)
{
    const struct restore_found *f = s->restore != NULL ? restore_found(s->restore) : NULL;
    /* A restore without a plan has read nothing. Its plan is made when s has its place. */
    if (s->n_planned == 0 || f == NULL)
        return s->restore != NULL;
    bool is_usable = s->n_done / STORE_CHUNK_TOKENS == s->staging.first &&
                     restore_stands(s->restore) && !store_has_more(s, f) &&
                     read_ahead_pays(&s->staging.ahead, share_read(s));
    g->shared->stats.n_staged_used += is_usable;
    return is_usable;
}

void staging_end(struct restore_phase *g, struct seq *s)
{
    if (s->restore != NULL)
        drop(g, s);
    s->staging = (struct seq_staging){0};
}
