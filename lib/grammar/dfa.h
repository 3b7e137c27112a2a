/* dfa.h - deterministic automata over the bytes of a text; private to lib/grammar.
 *
 * A DFA describes a set of texts that are valid UTF-8: what a pattern, a format, a length or a
 * range of numbers allows, and their intersections and differences.  State 0 is dead: no text can
 * be completed from it, and every other state reaches an accepting one.  A DFA with start 0 is
 * empty.
 *
 * All memory is the build's.  Faults (too many states) end the build. */
#ifndef GRAMMAR_DFA_H
#define GRAMMAR_DFA_H

#include "grammar/node.h"

enum { DFA_MAX_STATES = 50000 };

struct dfa {
    uint8_t cls[256]; /* class of each byte */
    uint32_t n_cls, n;
    uint32_t *to;  /* [n][n_cls] */
    bool *accepts; /* [n] */
    uint32_t start;
};

static inline uint32_t dfa_step(const struct dfa *d, uint32_t state, uint8_t byte)
{
    return d->to[state * d->n_cls + d->cls[byte]];
}

bool dfa_contains(const struct dfa *d, const char *text, size_t n);

enum dfa_mode { DFA_AND, DFA_MINUS, DFA_OR };
const struct dfa *dfa_combine(struct build *b, const struct dfa *x, const struct dfa *y,
                              enum dfa_mode mode);
const struct dfa *dfa_any(struct build *b); /* every text that is valid UTF-8 */
const struct dfa *dfa_text(struct build *b, const char *text, size_t n);
/* Returns the set of n texts that end with a zero byte. */
const struct dfa *dfa_of_texts(struct build *b, const char *const *texts, uint32_t n);
/* Returns all texts but those. */
const struct dfa *dfa_without_texts(struct build *b, const char *const *texts, uint32_t n);
/* texts of min to max characters; max REPEAT_ENDLESS: no bound */
const struct dfa *dfa_length(struct build *b, int32_t min, int32_t max);
/* Texts that a regular expression of ECMA-262 (with the flag u) matches: somewhere, as JSON schemas
 * mean it, or as a whole. ERR_USAGE: not well formed; ERR_UNSUPPORTED: names the construct. */
const struct dfa *dfa_of_regex(struct build *b, const char *text, size_t n, bool whole);
/* Returns whether the expression is ^[...]{min,max}$ with a large bound.  Then *out has the texts
 * of any length. */
bool dfa_of_counted(struct build *b, const char *text, size_t n, const struct dfa **out,
                    int32_t *min, int32_t *max);

/* A range of code points. */
struct cp_range {
    uint32_t lo, hi;
};
/* Returns the single characters of n ranges, or those of none of them. */
const struct dfa *dfa_of_chars(struct build *b, const struct cp_range *ranges, uint32_t n,
                               bool negated);

/* Returns the DFA with unreachable and dead states removed and equal states merged. to, accepts
 * and cls are the caller's draft; *draft is not changed. */
const struct dfa *dfa_minimize(struct build *b, const struct dfa *draft);

enum { DFA_MANY = 1 << 20 };
/* Returns the number of texts; DFA_MANY: that many or more. */
int64_t dfa_count(struct build *b, const struct dfa *d);

/* How many characters lead from state s to an accepting one: at least min[s], and at most max[s]
 * (REPEAT_ENDLESS: there is no bound). Between them no more than `apart` lengths in a row are
 * impossible (dfa_lengths). */
struct dfa_lengths {
    int32_t *min, *max; /* [n] */
};

/* Returns the lengths, or NULL if the numbers of a state have a gap of more than `apart`. */
const struct dfa_lengths *dfa_lengths(struct build *b, const struct dfa *d, int32_t apart);

/* How a DFA is put into a graph. */
struct dfa_form {
    /* Each character is written as in a JSON string, in its shortest spelling: \" and \\,
     * \b \f \n \r \t, other control characters as \u00xx, all else as it is. */
    bool quoted;
    const struct dfa_lengths *lengths; /* NULL: texts of any length */
    int32_t min, max;                  /* else: characters */
};

/* Puts a DFA into the graph. `next` follows its texts. */
uint32_t dfa_embed_as(struct build *b, const struct dfa *d, const struct dfa_form *f,
                      uint32_t next);
uint32_t dfa_embed(struct build *b, const struct dfa *d, bool quoted, uint32_t next);

#endif
