/* automaton.h - walks a grammar along the tokens of answers, and tells which tokens may come next.
 *
 * The mental model.  A walk is in a state: the set of places in the grammar's graph that the bytes
 * so far may have led to, each with its stack of calls and counts.  States are made when a walk
 * first reaches them and are kept with their transitions, so a byte is one look-up afterwards.
 * Walks of several answers share one automaton and its states.
 *
 * The tokens that a state allows are found by walking the tries of the vocabulary (vocab.h) and are
 * kept, too.  Two states whose counts are both far from their bounds share the result.
 *
 * The state is a function of the answer's tokens alone: nothing of it is ever stored.
 *
 * An automaton has a bound on its memory. At the bound it forgets all states but those of the walks
 * in progress.  One thread at a time may use an automaton; the grammar and the vocabulary outlive
 * it.  Functions that return an int return 0 or ERR_LIMIT: the grammar is so ambiguous that a state
 * has too many places.  The answer then cannot continue in its form. */
#ifndef GRAMMAR_AUTOMATON_H
#define GRAMMAR_AUTOMATON_H

#include "grammar/grammar.h"
#include "grammar/vocab.h"

struct automaton;

/* One answer's place. The caller owns the memory and reads `state` only through this header. */
struct walk {
    struct automaton *automaton;
    struct walk *next, **at; /* list of the automaton's walks */
    uint32_t state;
};

/* vocab NULL: only walk_bytes is used. NULL: no memory. */
struct automaton *automaton_create(const struct grammar *g, const struct vocab *v);
/* All walks have ended. NULL is allowed. */
void automaton_destroy(struct automaton *a);

/* Begins a walk at the start of a text. */
int walk_begin(struct walk *w, struct automaton *a);
/* Begins a walk at the place of another. */
void walk_copy(struct walk *w, const struct walk *from);
void walk_end(struct walk *w); /* a zeroed walk is allowed */

/* Goes on by bytes. *ok is false if no text of the grammar continues so; the walk then stays dead:
 * nothing is allowed any more. */
int walk_bytes(struct walk *w, const void *bytes, size_t n, bool *ok);
/* The same by a token. A token without bytes is never allowed. */
int walk_token(struct walk *w, int32_t id, bool *ok);
/* Returns whether the text may end here. */
bool walk_accepts(const struct walk *w);
/* Returns whether no byte can follow. */
bool walk_is_complete(struct walk *w);

/* Writes the tokens that may follow: bit id % 32 of mask[id / 32].  Tokens that end an answer are
 * the caller's: they are allowed where walk_accepts. */
int walk_mask(struct walk *w, uint32_t *mask);

/* Removes the tokens behind which more than `room` bytes are needed to complete the text. If none
 * is left, and the text may not end here, the tokens behind which least bytes are needed stay. What
 * unique items demand is not counted. */
int walk_close(struct walk *w, int room, uint32_t *mask);

#endif
