/* text_split.h - parts of a long text that end at natural borders. Pure. */
#ifndef APPS_TEXT_SPLIT_H
#define APPS_TEXT_SPLIT_H

#include <stddef.h>

/* Returns where a part that begins at `from` ends: at most `most` bytes later (at least 1), at
 * the text's end or behind the last empty line in its second half; else behind the last line,
 * sentence, word, or whole character there. */
size_t text_split_end(const char *text, size_t n, size_t from, size_t most);

/* Returns where the part after one that ends at `end` begins, so that both share at most
 * `overlap` bytes: at the beginning of a paragraph, line, sentence or word there; `end` where
 * there is none.  Behind `from`. */
size_t text_split_next(const char *text, size_t from, size_t end, size_t overlap);

#endif
