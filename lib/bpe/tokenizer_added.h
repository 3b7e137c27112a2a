/* tokenizer_added.h - finds added tokens ("<|im_end|>") in a text.
 *
 * Of all tokens that begin at the leftmost place, the longest is taken.  A finder is immutable. */
#ifndef BPE_TOKENIZER_ADDED_H
#define BPE_TOKENIZER_ADDED_H

#include "bpe/tokenizer_json.h"

struct added_finder;

/* Makes a finder of those tokens whose `normalized` equals the argument.  It searches for text[i]
 * instead of added[i].text: the caller has normalized text[i] if the token is to be found in
 * normalized text.  The arrays and strings are borrowed. */
struct added_finder *added_finder_create(const struct tokenizer_added *added,
                                         const struct tokenizer_text *text, size_t n,
                                         bool normalized);
void added_finder_destroy(struct added_finder *f); /* NULL is allowed */

/* Places, ascending, at which no control token may begin (tokenizer_guard). */
struct guards {
    size_t *at;
    size_t n, cap;
};

struct added_search {
    bool special;                /* true: special tokens are found as well */
    const struct guards *guards; /* NULL: there are no guards */
    size_t at; /* position of s[0] in the text that the guards' places refer to */
    /* Set for normalized text, in which a token may begin with an added blank: a guard anywhere
     * inside a control token rules the token out. */
    bool inside;
};

/* Returns whether a token is special or written as "<|...|>". */
bool added_is_control(const struct tokenizer_added *a);

/* Finds the first token in s[from, n).  [*begin, *end) is its extent, with the white space that it
 * absorbs. NULL: there is none. */
const struct tokenizer_added *added_find(const struct added_finder *f,
                                         const struct added_search *how, const char *s,
                                         size_t n, size_t from, size_t *begin, size_t *end);

/* Returns the length of the longest control token of f with which s[0, n) begins, or 0 if it begins
 * with none. */
size_t added_control_bytes(const struct added_finder *f, const char *s, size_t n);

/* Returns whether c is white space in Unicode, which tokens with lstrip or rstrip absorb. */
bool added_is_space(uint32_t c);

#endif
