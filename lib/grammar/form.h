/* form.h - the form of an answer: a grammar with its automaton, shared by all answers that have it.
 *
 *     form_create                   any thread
 *     form_share, form_release      any thread; the last release frees
 *     form_shape, form_take, ...    the one thread that generates
 *
 * A place is where one answer stands. It is a function of the answer's tokens: form_shape catches
 * up with tokens that the place has not seen. */
#ifndef GRAMMAR_FORM_H
#define GRAMMAR_FORM_H

#include "grammar/automaton.h"

struct form;

/* Takes g. v outlives the form. NULL: no memory; g is then freed. */
struct form *form_create(struct grammar *g, const struct vocab *v);
struct form *form_share(struct form *f);
void form_release(struct form *f); /* NULL is allowed */

struct form_place { /* {0} is the beginning */
    struct walk walk;
    int n; /* tokens that were walked */
};

enum { FORM_MAX_ENDS = 256 };

struct form_ends {
    const int32_t *ids; /* tokens that end the answer */
    int n;
    /* Tokens, this one and an end included, within which the answer is completed: only tokens are
     * allowed behind which single bytes can complete it. 0: any number */
    int left;
};

/* Makes the logits of all tokens that may not follow the answer [n] minus infinity.  Ends are
 * allowed where the form is complete.  ERR_UNSUPPORTED: no token of the vocabulary may follow;
 * ERR_LIMIT: the grammar is too ambiguous. */
int form_shape(struct form *f, struct form_place *p, const int32_t *answer, int n,
               struct form_ends ends, int n_vocab, float *logits, struct err *err);
/* Takes the next token of the answer. Returns whether the answer is now complete and nothing can
 * follow. */
bool form_take(struct form *f, struct form_place *p, const int32_t *answer, int n);
/* Guesses the tokens that follow where the form leaves hardly a choice: while all tokens that may
 * come next are beginnings of the longest of them, that one. (A shorter one may still be chosen.)
 * Writes at most `most` ids and returns their number. */
int form_forced(struct form *f, struct form_place *p, const int32_t *answer, int n,
                int most, int32_t *out);
void form_leave(struct form_place *p);

#endif
