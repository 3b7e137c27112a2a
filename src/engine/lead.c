/* lead.c - see lead.h. */
#include "engine/lead.h"

#include <string.h>

static bool is_equal(const struct sha256 *x, const struct sha256 *y)
{
    return memcmp(x, y, sizeof *x) == 0;
}

/* Returns the key of the chunk before chunk n. */
static const struct sha256 *parent_of(const struct lead_request *r, int n)
{
    return n == 0 ? r->root : &r->keys[n - 1];
}

bool lead_is_ahead(const struct lead_request *x, const struct lead_request *s, int n_known)
{
    int from = n_known * LEAD_CHUNK_TOKENS, to = from + LEAD_CHUNK_TOKENS;
    if (x->n_keys < n_known)
        return false;
    if (to < s->n_tokens)
        return x->n_keys > n_known && x->n_done < to &&
               is_equal(&x->keys[n_known], &s->keys[n_known]);
    to = s->n_tokens - 1;
    return s->may_copy && to > from && x->n_tokens >= to && x->n_done < to &&
           is_equal(parent_of(x, n_known), parent_of(s, n_known)) &&
           memcmp(x->tokens + from, s->tokens + from,
                  (size_t)(to - from) * sizeof *x->tokens) == 0;
}

int lead_find(const struct lead_request *request, int n, int me, int n_known)
{
    for (int i = 0; request[me].may_reuse && i < n; i++) {
        const struct lead_request *x = &request[i];
        bool comes = x->phase == SCHED_RESTORE || x->phase == SCHED_PREFILL ||
                     (x->phase == SCHED_WAITING && i < me);
        if (comes && lead_is_ahead(x, &request[me], n_known))
            return i;
    }
    return -1;
}
