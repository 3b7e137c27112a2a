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

/* The first token in s[from, n): its extent, with the white space that it swallows, in
 * [*begin, *end); NULL where there is none.  Special tokens count only with `special`. */
const struct tokenizer_added *added_find(const struct added_finder *f, const char *s,
                                         size_t n, size_t from, bool special, size_t *begin,
                                         size_t *end);

#endif
