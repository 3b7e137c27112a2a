/* erasures.c - see erasures.h. */
#include "store/erasures.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/minmax.h"

void erasures_deinit(struct erasures *e)
{
    free(e->marks);
    e->marks = NULL;
}

/* Sets a mark of the present epoch. In a full ring it replaces the oldest mark; from then on all
 * chunks from before that one are refused. */
static void mark(struct erasures *e, const struct erasure_mark *m)
{
    if (e->marks == NULL)
        e->marks = xcalloc(ERASURES_MARKS, sizeof *e->marks);
    struct erasure_mark *slot = &e->marks[e->n_marks % ERASURES_MARKS];
    if (e->n_marks >= ERASURES_MARKS)
        e->floor = slot->epoch;
    *slot = *m;
    slot->epoch = e->epoch;
    e->n_marks++;
}

void erasures_mark_keys(struct erasures *e, enum erasure_kind kind,
                        const struct sha256 *keys, int n)
{
    e->epoch++;
    for (int i = 0; i < n; i++)
        mark(e, &(struct erasure_mark){.kind = kind, .key = keys[i]});
}

void erasures_mark_owner(struct erasures *e, uint64_t owner)
{
    e->epoch++;
    mark(e, &(struct erasure_mark){.kind = ERASURE_OWNER, .owner = owner});
}

void erasures_mark_all(struct erasures *e)
{
    e->floor = ++e->epoch;
}

/* --- testing a chunk -------------------------------------------------------------------------- */

/* Keys of the partial chunks that a chunk begins with, because a text may end inside the chunk. */
struct beginnings {
    struct sha256 key[STORE_CHUNK_TOKENS];
    int n; /* number of keys; computed at the first use */
};

static bool begins_with(const struct store_chunk *c, const struct sha256 *end,
                        struct beginnings *b)
{
    int n_tokens = c->n_tokens != 0 ? c->n_tokens : STORE_CHUNK_TOKENS;
    for (; b->n < n_tokens - 1; b->n++)
        b->key[b->n] = store_partial_key(&c->parent, c->tokens, b->n + 1);
    for (int i = 0; i < b->n; i++)
        if (sha256_equal(&b->key[i], end))
            return true;
    return false;
}

static bool mark_concerns(const struct erasure_mark *m, const struct store_chunk *c,
                          struct beginnings *b)
{
    switch (m->kind) {
    case ERASURE_OWNER:
        return m->owner == c->owner;
    case ERASURE_END:
        return begins_with(c, &m->key, b);
    case ERASURE_KEY:
        break;
    }
    return sha256_equal(&m->key, &c->key) || sha256_equal(&m->key, &c->parent) ||
           (c->follows != NULL && sha256_equal(&m->key, c->follows));
}

bool erasures_concern(const struct erasures *e, const struct store_chunk *c)
{
    struct beginnings b = {.n = 0};
    if (c->epoch == 0 || c->epoch >= e->epoch)
        return false;
    if (c->epoch < e->floor)
        return true;
    uint64_t oldest = e->n_marks - MIN(e->n_marks, ERASURES_MARKS);
    for (uint64_t i = e->n_marks; i > oldest; i--) {
        const struct erasure_mark *m = &e->marks[(i - 1) % ERASURES_MARKS];
        if (m->epoch <= c->epoch)
            /* all older marks have lower epochs, so none concerns the chunk */
            return false;
        if (mark_concerns(m, c, &b))
            return true;
    }
    return false;
}
