/* life_erase.c - erasures in a seeded life, and chunks that must not outlive them: see life_impl.h.
 *
 * Texts may share their beginning, so a request that saves one text saves chunks of others, too. */
#include <string.h>

#include "tests/restore/life_impl.h"
#include "tests/restore/turns.h"

void life_erase_begin(struct life *f, struct slot *s)
{
    /* The order matters: an erasure that begins between these lines counts as before the request,
     * although it may refuse the request's chunks. The check at the end allows both outcomes. */
    s->epoch = store_epoch(f->store);
    for (int i = 0; i < N_TEXTS; i++)
        s->n_erasures[i] = f->erased[i].n_begun;
}

/* Returns the number of tokens that two texts have in common, in whole chunks. */
static int64_t shared(const struct text *a, const struct text *b)
{
    int n = 0;
    while (n < a->chain.n_chunks && n < b->chain.n_chunks &&
           memcmp(&a->chain.keys[n], &b->chain.keys[n], sizeof a->chain.keys[n]) == 0)
        n++;
    return (int64_t)n * STORE_CHUNK_TOKENS;
}

void life_erase_note(struct life *f, const struct slot *s)
{
    for (int i = 0; i < N_TEXTS; i++) {
        struct life_erased *e = &f->erased[i];
        int64_t most = shared(s->t, &f->w->text[i]), n = s->n < most ? s->n : most;
        if (s->n_erasures[i] == e->n_begun && n > e->fresh)
            e->fresh = n;
    }
}

void life_erase(struct life *f, struct rng *r)
{
    int i = (int)rng_below(r, N_TEXTS);
    const struct text *t = &f->w->text[i];
    struct life_erased *e = &f->erased[i];
    struct store_erased out = {0};
    struct err err = {0};
    e->n_begun++;
    e->kept = INT64_MAX;
    e->fresh = 0;
    int rc = store_erase(f->store, t->chain.keys, t->chain.n_chunks, &out, &err);
    if (rc != 0 && err.msg[0] == 0)
        turns_fail("an erasure fails without a reason");
    if (rc == 0)
        e->kept = (int64_t)out.n_shared * STORE_CHUNK_TOKENS;
    f->counts->n_erased_while_read += rc == 0 && out.n_busy > 0;
}

void life_erase_check(struct life *f)
{
    (void)saver_flush(f->saver, NULL);
    for (int i = 0; i < N_TEXTS; i++) {
        const struct text *t = &f->w->text[i];
        const struct life_erased *e = &f->erased[i];
        int64_t most = e->kept > e->fresh ? e->kept : e->fresh;
        if (e->n_begun == 0 || e->kept == INT64_MAX)
            continue;
        for (int k = (int)(most / STORE_CHUNK_TOKENS); k < t->chain.n_chunks; k++) {
            struct store_hit hit;
            if (store_pin(f->store, &t->chain.keys[k], &hit))
                turns_fail("chunk %d of text %d has outlived its erasure", k, i);
            f->counts->n_erased_gone++;
        }
    }
}
