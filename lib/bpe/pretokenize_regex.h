/* pretokenize_regex.h - the regular expressions of pre-tokenizers. Only its .c file uses PCRE2.
 *
 * Hugging Face's tokenizers run Oniguruma. A pattern is accepted only if every construct in it
 * means the same in PCRE2 (with UTF and UCP) or can be rewritten so that it does; others are
 * refused by name.
 * pretokenize_regex.c has the list. */
#ifndef BPE_PRETOKENIZE_REGEX_H
#define BPE_PRETOKENIZE_REGEX_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct regex;

enum regex_dialect {
    REGEX_ONIGURUMA, /* what the list has */
    REGEX_LITERAL,   /* the pattern is a plain string */
    REGEX_PCRE2, /* all of PCRE2, with UTF and UCP: a user's own pattern, not a tokenizer's */
};

/* Compiles a pattern, which must not match the empty text. The compiled regex is immutable. */
int regex_compile(struct regex **out, const char *pattern, size_t n,
                  enum regex_dialect dialect, struct err *err);
void regex_free(struct regex *r); /* NULL is allowed */

/* Frees the scratch memory for matching. The first regex_find makes it, one per thread and call. */
void regex_scratch_free(void *scratch);

/* Finds the first non-empty match in s[from, n).  Returns 1 with its extent, 0 if there is none, or
 * a negative code; ERR_LIMIT: all matches with this scratch memory took too much work together. The
 * search reads nothing before s or behind s + n; s is valid UTF-8. */
int regex_find(const struct regex *r, void **scratch, const char *s, size_t n, size_t from,
               size_t *begin, size_t *end, struct err *err);

#endif
