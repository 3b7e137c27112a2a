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

/* Compiles a JSON schema (draft 2020-12 unless its "$schema" says otherwise).  The text is one JSON
 * value.  loose NULL: a keyword that cannot be enforced is refused.  Else such a keyword is left
 * out, and its name is added to *loose, separated by ", ". */
int grammar_of_schema(struct grammar **out, const struct json *schema,
                      struct textbuf *loose, struct err *err);
/* Compiles a GBNF grammar. Its rule "root" is the text. */
int grammar_of_gbnf(struct grammar **out, const char *text, size_t n, struct err *err);
/* Compiles a regular expression that the whole text matches. */
int grammar_of_regex(struct grammar **out, const char *text, size_t n, struct err *err);
/* Compiles a list of texts, of which the answer is one. */
int grammar_of_choice(struct grammar **out, const char *const *texts, size_t n,
                      struct err *err);
void grammar_free(struct grammar *g); /* NULL is allowed */

/* Returns whether the grammar contains the text. Slow: for tests and for compilers. */
bool grammar_contains(const struct grammar *g, const char *text, size_t n);

#endif
