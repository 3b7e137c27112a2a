/* grammar.h - the forms that an answer can be given: JSON schemas, GBNF grammars, regular
 * expressions and lists of texts, compiled to one representation over bytes.
 *
 * The mental model.  A grammar is a set of texts.  Each compiler turns its input into a graph of
 * nodes (node.h), which automaton.h walks byte by byte.  A compiler either represents exactly the
 * texts that its input describes, in the spelling that docs/STRUCTURED.md states, or refuses with
 * the name of what it cannot represent.  It never represents more.
 *
 * A struct grammar is immutable: any number of threads may use it.  Compiling allocates from one
 * region of at most GRAMMAR_MAX_BYTES, so an input that would need more is refused (ERR_LIMIT).
 *
 * Errors: ERR_USAGE: the input is malformed, or no text has its form.  ERR_UNSUPPORTED: the message
 * names what cannot be enforced.  ERR_LIMIT: the input is too large. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct grammar;
struct json;
struct textbuf;

enum { GRAMMAR_MAX_BYTES = 96 << 20 };

enum grammar_kind {
    GRAMMAR_SCHEMA, /* one JSON value, by a schema of draft 2020-12 unless "$schema" says otherwise */
    GRAMMAR_GBNF,   /* the rule "root" is the text */
    GRAMMAR_REGEX,  /* the whole text matches */
    GRAMMAR_CHOICE, /* one of several texts */
};

struct grammar_source {
    enum grammar_kind kind;
    const struct json *schema;
    const char *text; /* GBNF or a regular expression */
    size_t n;         /* bytes of text, or number of texts */
    const char *const *texts;
    /* The form begins behind the first occurrence of these bytes and up to 8 blanks; before them
     * stands any text. NULL: the form begins at once. */
    const char *after;
    size_t n_after;
    /* NULL: a keyword of a schema that cannot be enforced is refused.  Else such a keyword is left
     * out, and its name is added to *loose, separated by ", ". */
    struct textbuf *loose;
};

/* Compiles a form. *out is the caller's. */
int grammar_compile(struct grammar **out, const struct grammar_source *s, struct err *err);
void grammar_free(struct grammar *g); /* NULL is allowed */

/* Returns whether the grammar contains the text. Slow: for tests and for compilers. */
bool grammar_contains(const struct grammar *g, const char *text, size_t n);

#endif
