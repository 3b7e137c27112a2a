/* pretokenize_regex.h - the regular expressions of pre-tokenizers, and the only door to PCRE2.
 *
 * The reference runs Oniguruma.  A pattern is taken only where every construct in it is known to
 * mean the same in PCRE2 (with UTF and UCP), or can be rewritten so that it does; anything else is
 * refused by name.  See pretokenize_regex.c for the list. */
#ifndef MODEL_PRETOKENIZE_REGEX_H
#define MODEL_PRETOKENIZE_REGEX_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct regex;

/* literal: the pattern is a string to look for.  Immutable once made. */
int regex_compile(struct regex **out, const char *pattern, size_t n, bool literal,
                  struct err *err);
void regex_free(struct regex *r); /* NULL is allowed */

/* Scratch memory for matching, one per thread and call; made by the first regex_find. */
void regex_scratch_free(void *scratch);

/* The first match in s[from, n), never an empty one: 1 with its extent, 0 where there is none, or a
 * negative code: ERR_LIMIT where all matches with this scratch memory together took too much
 * work.  Nothing before s or behind s + n is looked at; s is valid UTF-8. */
int regex_find(const struct regex *r, void **scratch, const char *s, size_t n, size_t from,
               size_t *begin, size_t *end, struct err *err);

#endif
