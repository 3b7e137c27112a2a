/* upcoming.c - see upcoming.h. */
#include "engine/upcoming.h"

/* The scheduler admits by arrival, with a step of priority worth age_ns of waiting. */
static uint64_t turn_of(const struct seq *s, int64_t age_ns)
{
    int64_t turn = s->t_arrival + s->req.priority * age_ns;
    return turn > 0 ? (uint64_t)turn : 0;
}

static void tell_pool(struct seq *s)
{
    if (!seq_may_reuse(s))
        return;
    kv_pool_expect(s->shared->pool, &s->chain.root, s->tokens, s->n_tokens,
                   s->upcoming.turn);
    s->upcoming.n_pool_tokens = s->n_tokens;
}

/* Returns false where the store has no room for all chunks that the sequence needs. */
static bool tell(struct seq *s, int64_t age_ns)
{
    struct seq_upcoming *u = &s->upcoming;
    if (!u->is_told) {
        *u = (struct seq_upcoming){.is_told = true, .turn = turn_of(s, age_ns)};
        tell_pool(s);
    }
    int n = s->n_tokens / STORE_CHUNK_TOKENS;
    if (s->shared->store == NULL || u->n_chunks == n)
        return true;
    u->n_chunks += store_expect_use(s->shared->store, s->chain.keys + u->n_chunks,
                                    n - u->n_chunks, u->turn);
    return u->n_chunks == n;
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
    if (u->n_pool_tokens > 0)
        kv_pool_expect_no_more(s->shared->pool, &s->chain.root, s->tokens, u->n_pool_tokens,
                               u->turn);
    if (u->n_chunks > 0)
        store_expect_use_no_more(s->shared->store, s->chain.keys, u->n_chunks, u->turn);
    *u = (struct seq_upcoming){0};
}
