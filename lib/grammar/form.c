/* form.c - see form.h. */
#include "grammar/form.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

struct form {
    struct grammar *grammar;
    const struct vocab *vocab;
    struct automaton *automaton; /* made at the first use */
    uint32_t *mask;              /* [vocab.n_words] of one call */
    atomic_int n_owners;
};

struct form *form_create(struct grammar *g, const struct vocab *v)
{
    struct form *f = mem_try_calloc(1, sizeof *f);
    uint32_t *mask = mem_try_calloc(v->n_words, sizeof *mask);
    if (f == NULL || mask == NULL) {
        free(f);
        free(mask);
        grammar_free(g);
        return NULL;
    }
    f->grammar = g;
    f->vocab = v;
    f->mask = mask;
    atomic_init(&f->n_owners, 1);
    return f;
}

struct form *form_share(struct form *f)
{
    atomic_fetch_add(&f->n_owners, 1);
    return f;
}

void form_release(struct form *f)
{
    if (f == NULL || atomic_fetch_sub(&f->n_owners, 1) > 1)
        return;
    automaton_destroy(f->automaton);
    grammar_free(f->grammar);
    free(f->mask);
    free(f);
}

/* Walks the tokens of the answer that the place has not seen. */
static int catch_up(struct form *f, struct form_place *p, const int32_t *answer, int n)
{
    int rc = 0;
    if (f->automaton == NULL)
        f->automaton = automaton_create(f->grammar, f->vocab);
    if (f->automaton == NULL)
        return -ENOMEM;
    if (p->walk.automaton == NULL)
        rc = walk_begin(&p->walk, f->automaton);
    CHECK(p->n <= n);
    for (; rc == 0 && p->n < n; p->n++) {
        bool ok;
        rc = walk_token(&p->walk, answer[p->n], &ok);
    }
    return rc;
}

/* Makes forbidden logits minus infinity. Returns whether a token is allowed. */
static bool apply(const uint32_t *mask, size_t n_words, int n_vocab, float *logits)
{
    bool any = false;
    for (size_t w = 0; w < n_words; w++) {
        int first = (int)w * 32, n = MIN(32, n_vocab - first);
        uint32_t all = n >= 32 ? UINT32_MAX : n <= 0 ? 0 : (1u << n) - 1;
        uint32_t may = mask[w] & all, more = may & (may - 1), forbidden = all & ~may;
        float *at = logits + first, kept[2];
        any |= mask[w] != 0;
        if ((more & (more - 1)) != 0) { /* more than two are allowed, mostly nearly all */
            for (; forbidden != 0; forbidden &= forbidden - 1)
                at[__builtin_ctz(forbidden)] = -INFINITY;
            continue;
        }
        for (int k = 0; k < 2; k++)
            kept[k] = may == 0 ? 0 : at[__builtin_ctz(k == 0 || more == 0 ? may : more)];
        for (int i = 0; i < n; i++)
            at[i] = -INFINITY;
        for (int k = 0; k < 2 && may != 0; k++)
            at[__builtin_ctz(k == 0 || more == 0 ? may : more)] = kept[k];
    }
    return any;
}

int form_shape(struct form *f, struct form_place *p, const int32_t *answer, int n,
               struct form_ends ends, int n_vocab, float *logits, struct err *err)
{
    int rc = catch_up(f, p, answer, n);
    if (rc == 0)
        rc = walk_mask(&p->walk, f->mask);
    if (rc == 0 && ends.left > 0)
        rc = walk_close(&p->walk, ends.left - 2, f->mask);
    if (rc != 0)
        return err_set(err, rc, "the answer's form is too ambiguous to go on");
    float kept[FORM_MAX_ENDS];
    int n_ends = ends.n;
    CHECK(n_ends <= FORM_MAX_ENDS);
    for (int i = 0; i < n_ends; i++)
        kept[i] = ends.ids[i] >= 0 && ends.ids[i] < n_vocab ? logits[ends.ids[i]] : 0;
    bool any = apply(f->mask, f->vocab->n_words, n_vocab, logits);
    bool accepts = walk_accepts(&p->walk), ends_it = false;
    for (int i = 0; accepts && i < n_ends; i++) {
        if (ends.ids[i] < 0 || ends.ids[i] >= n_vocab)
            continue;
        /* A minimum of tokens cannot keep an answer from ending that has no other way. */
        logits[ends.ids[i]] = any || isfinite(kept[i]) ? kept[i] : 0;
        ends_it = true;
    }
    if (!any && !ends_it)
        return err_set(
            err, ERR_UNSUPPORTED,
            "no token of the model's vocabulary can continue the answer in its form");
    return 0;
}

bool form_take(struct form *f, struct form_place *p, const int32_t *answer, int n)
{
    return catch_up(f, p, answer, n) == 0 && walk_accepts(&p->walk) &&
           walk_is_complete(&p->walk);
}

/* Returns the longest token of the mask if all others are beginnings of it, else -1. */
static int32_t longest_of(const struct vocab *v, const uint32_t *mask)
{
    enum { MOST = 32 }; /* a token has hardly more beginnings that are tokens */
    int32_t ids[MOST], best = -1;
    int n = 0;
    for (size_t w = 0; w < v->n_words; w++)
        for (uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
            if (n == MOST)
                return -1;
            int32_t id = (int32_t)w * 32 + __builtin_ctz(bits);
            ids[n++] = id;
            if (best < 0 || v->n_bytes[id] > v->n_bytes[best])
                best = id;
        }
    for (int i = 0; i < n; i++)
        if (memcmp(v->bytes[ids[i]], v->bytes[best], v->n_bytes[ids[i]]) != 0)
            return -1;
    return best;
}

int form_forced(struct form *f, struct form_place *p, const int32_t *answer, int n,
                int most, int32_t *out)
{
    struct walk w;
    bool ok = catch_up(f, p, answer, n) == 0;
    int n_out = 0;
    if (!ok)
        return 0;
    walk_copy(&w, &p->walk);
    while (ok && n_out < most && !walk_accepts(&w) && walk_mask(&w, f->mask) == 0) {
        int32_t id = longest_of(f->vocab, f->mask);
        if (id < 0 || walk_token(&w, id, &ok) != 0)
            break;
        out[n_out++] = id;
    }
    walk_end(&w);
    return n_out;
}

void form_leave(struct form_place *p)
{
    walk_end(&p->walk);
}
