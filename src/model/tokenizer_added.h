/* tokenizer_added.h - finds added tokens ("<|im_end|>") in a text.
 *
 * Of the tokens that begin at the leftmost place, the longest one counts.  Immutable once made. */
#ifndef MODEL_TOKENIZER_ADDED_H
#define MODEL_TOKENIZER_ADDED_H

#include "format/tokenizer_json.h"

struct added_finder;

/* `text` is what is looked for in place of added[i].text: normalized, where that matters.  Only
 * tokens whose `normalized` equals the argument are taken.  Borrows the array and the strings. */
struct added_finder *added_finder_create(const struct tokenizer_added *added,
                                         const struct tokenizer_text *text, size_t n,
                                         bool normalized);
void added_finder_destroy(struct added_finder *f); /* NULL is allowed */

/* Places, ascending, where no control token begins (tokenizer_guard). */
struct guards {
    size_t *at;
    size_t n, cap;
};

struct added_search {
    bool special;                /* special tokens count */
    const struct guards *guards; /* NULL: none */
    size_t at;                   /* of s[0], as the guards count */
    /* A guard anywhere in a control token says that it is none: in normalized text the token
     * may begin with a blank of its own. */
    bool inside;
};

/* Whether it is special, or written as "<|...|>". */
bool added_is_control(const struct tokenizer_added *a);

/* The first token in s[from, n): its extent, with the white space that it swallows, in
 * [*begin, *end); NULL where there is none. */
const struct tokenizer_added *added_find(const struct added_finder *f,
                                         const struct added_search *how, const char *s,
                                         size_t n, size_t from, size_t *begin, size_t *end);

/* The longest control token of f that s[0, n) begins with; 0 bytes: none does. */
size_t added_control_bytes(const struct added_finder *f, const char *s, size_t n);

/* Unicode's White_Space, which tokens with lstrip or rstrip swallow. */
bool added_is_space(uint32_t c);

#endif
