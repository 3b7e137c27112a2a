/* text_split.c - see text_split.h. */
#include "apps/text_split.h"

#include <stdbool.h>
#include <string.h>

enum border { NO_BORDER, CHARACTER, WORD, SENTENCE, LINE, PARAGRAPH };

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Returns the kind of border between bytes at - 1 and at; 0 < at < n. */
static enum border border_at(const char *text, size_t at)
{
    const char *p = text + at;
    if (((unsigned char)*p & 0xC0) == 0x80)
        return NO_BORDER; /* the place is inside a UTF-8 character */
    if (!is_space(p[-1]) || is_space(*p))
        return CHARACTER;
    if (p[-1] == '\n' && at >= 2 &&
        (p[-2] == '\n' || (p[-2] == '\r' && at >= 3 && p[-3] == '\n')))
        return PARAGRAPH;
    if (p[-1] == '\n')
        return LINE;
    return at >= 2 && strchr(".!?", p[-2]) != NULL ? SENTENCE : WORD;
}

size_t text_split_end(const char *text, size_t n, size_t from, size_t most)
{
    size_t best = 0, end = from + most;
    enum border found = NO_BORDER;
    if (most >= n - from)
        return n;
    for (size_t at = end; at > from + most / 2; at--) {
        enum border b = border_at(text, at);
        if (b > found) {
            found = b;
            best = at;
        }
    }
    while (found == NO_BORDER && end < n && border_at(text, end) == NO_BORDER)
        end++; /* the first character is longer than the part, or the bytes are not UTF-8 */
    return found != NO_BORDER ? best : end;
}

size_t text_split_next(const char *text, size_t from, size_t end, size_t overlap)
{
    size_t best = end, first = end - from > overlap ? end - overlap : from + 1;
    /* only borders above CHARACTER count: a part must not begin inside a word */
    enum border found = CHARACTER;
    for (size_t at = first; at < end; at++) {
        enum border b = border_at(text, at);
        if (b > found) {
            found = b;
            best = at;
        }
    }
    return best;
}
