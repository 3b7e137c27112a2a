/* upcoming.c - see upcoming.h. */
#include "engine/upcoming.h"

#include "engine/stairs.h"
#include "restore/dram_tier.h"
#include "engine/sched.h"

/* Returns the turn of a sequence. The scheduler admits in this order. */
static uint64_t turn_of(const struct seq *s, int64_t age_ns)
{
    const struct sched_req r = {.arrival_ns = s->t_arrival,
                                .priority = s->req->ask.priority};
    return sched_turn(&r, age_ns);
}

/* Returns the view that s was, or will be, announced with. Only its tokens are needed: the
 * chunks and blocks that a truncated context has dropped are not announced. */
static struct view view_of(const struct seq *s)
{
    struct view v;
    view_init(&v, &s->view.truncation);
    view_set(&v, &s->chain, s->tokens, s->n_tokens, s->upcoming.cut);
    return v;
}

static void tell_pool(struct seq *s, const struct view *v)
{
    if (!seq_may_reuse(s))
        return;
    kv_pool_expect(s->shared->pool, &v->root, v->tokens, v->n_tokens, s->upcoming.turn);
    s->upcoming.is_pool_told = true;
}

/* Reports the present prices, which change because restores correct the platform. */
static void tell_prices(struct seq_shared *sh)
{
    struct placement_price price;
    if (sh->platform == NULL)
        return;
    platform_price(sh->platform, &price);
    kv_pool_set_price(sh->pool, &price);
    if (sh->store != NULL)
        store_set_price(sh->store, &price);
}

/* Returns whether a fetch may gain time. Before the disk's speed is known, every fetch may. */
static bool may_gain(const struct seq *s, const struct view *v, int n_held, int n_stored)
{
    const struct platform *p = s->shared->platform;
    int n_tokens = n_stored * STORE_CHUNK_TOKENS;
    double price_s = store_fetch_price_s(s->shared->store, v->keys + n_held,
                                         n_stored - n_held);
    return p->n_tiers == 0 || dram_tier_gains(p, n_tokens, v->n_tokens - n_tokens, price_s);
}

/* Asks for the chunks that the KV pool does not hold. The last token is computed in any case. */
static void tell_fetcher(struct seq *s, const struct view *v)
{
    int n = (v->n_tokens - 1) / STORE_CHUNK_TOKENS, n_unused = 0, n_held = 0;
    if (s->shared->fetcher == NULL)
        return;
    n = store_count(s->shared->store, v->keys, n);
    if (seq_may_reuse(s))
        n_held = kv_pool_find(s->shared->pool, &v->root, v->tokens, n * KV_BLOCK_TOKENS,
                              seq_is_saved(s), &n_unused);
    if (n_held >= n || !may_gain(s, v, n_held, n))
        return;
    restore_pipeline_want(s->shared->fetcher, s, v->keys + n_held, n - n_held,
                          s->upcoming.turn);
    s->upcoming.is_fetched_for = true;
}

void upcoming_fetch(struct seq_list l)
{
    for (int i = 0; i < l.n; i++) {
        struct seq *s = l.seqs[i];
        if (s->phase != PHASE_WAIT || !s->upcoming.is_told || s->upcoming.is_fetch_decided)
            continue;
        struct view v = view_of(s);
        tell_fetcher(s, &v);
        view_deinit(&v);
        s->upcoming.is_fetch_decided = true;
    }
}

void upcoming_fetch_no_more(struct seq *s)
{
    if (s->upcoming.is_fetched_for)
        restore_pipeline_want_end(s->shared->fetcher, s);
    s->upcoming.is_fetched_for = false;
}

static bool is_all_told(const struct seq *s)
{
    return s->upcoming.is_told &&
           (s->shared->store == NULL || s->upcoming.n_chunks == s->upcoming.n_wanted);
}

/* Announces a sequence. Returns false if the store has no room for all chunks that the sequence
 * needs. */
static bool tell(struct seq *s, int64_t age_ns)
{
    struct seq_upcoming *u = &s->upcoming;
    int cut = stairs_next_cut(s);
    bool is_new = !u->is_told || u->cut != cut;
    if (is_new) {
        upcoming_end(s);
        *u = (struct seq_upcoming){.is_told = true, .turn = turn_of(s, age_ns), .cut = cut};
    } else if (is_all_told(s)) {
        return true;
    }
    struct view v = view_of(s);
    u->n_wanted = v.n_keys;
    if (is_new) {
        tell_prices(s->shared);
        tell_pool(s, &v);
    }
    if (s->shared->store != NULL)
        u->n_chunks += store_expect_use(s->shared->store, v.keys + u->n_chunks,
                                        v.n_keys - u->n_chunks, u->turn);
    view_deinit(&v);
    return is_all_told(s);
}

/* Changes that the store cannot take now are kept for the next step. Until then no more changes
 * are taken from the pool. */
void upcoming_tell_held(struct seq_shared *sh)
{
    enum { AT_ONCE = sizeof sh->held / sizeof sh->held[0] };
    struct kv_change c[AT_ONCE];
    if (!sh->tells_held)
        return;
    if (sh->n_held == 0) {
        sh->n_held = kv_pool_changes(sh->pool, c, AT_ONCE);
        for (int i = 0; i < sh->n_held; i++)
            sh->held[i] = (struct store_held){c[i].name, c[i].is_held};
    }
    if (sh->n_held > 0 && store_tell_held(sh->store, sh->held, sh->n_held))
        sh->n_held = 0;
}

void upcoming_tell(struct seq_list l, int64_t age_ns)
{
    for (int i = 0; i < l.n; i++)
        if (l.seqs[i]->phase == PHASE_WAIT && !tell(l.seqs[i], age_ns))
            return;
}

void upcoming_end(struct seq *s)
{
    struct seq_upcoming *u = &s->upcoming;
    upcoming_fetch_no_more(s);
    if (u->is_pool_told || u->n_chunks > 0) {
        struct view v = view_of(s);
        if (u->is_pool_told)
            kv_pool_expect_no_more(s->shared->pool, &v.root, v.tokens, v.n_tokens, u->turn);
        if (u->n_chunks > 0)
            store_expect_use_no_more(s->shared->store, v.keys, u->n_chunks, u->turn);
        view_deinit(&v);
        /* Copies in DRAM for this sequence may now be dropped for requests behind it. */
        if (s->shared->fetcher != NULL)
            restore_pipeline_want_end(s->shared->fetcher, s);
    }
    *u = (struct seq_upcoming){0};
}
