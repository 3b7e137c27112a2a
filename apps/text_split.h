/* text_split.h - splits a long text into parts at natural borders. Pure. */
#ifndef APPS_TEXT_SPLIT_H
#define APPS_TEXT_SPLIT_H

#include <stddef.h>

/* Returns the end of a part that begins at `from`, at most `most` bytes later (at least 1). That is
 * the text's end if it is near enough. Otherwise the part ends in its second half, after the last
 * empty line there; if there is none, after the last line, sentence, word, or whole character. */
size_t text_split_end(const char *text, size_t n, size_t from, size_t most);

/* Returns the beginning of the part after one that ends at `end`, so that both share at most
 * `overlap` bytes. The new part begins behind `from`, with a paragraph, line, sentence or word
 * inside the overlap, or at `end` if none begins there. */
size_t text_split_next(const char *text, size_t from, size_t end, size_t overlap);

#endif
