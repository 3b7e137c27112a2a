/* textbuf.h - a text that grows. Pure; one thread at a time.
 *
 * {0} is an empty text. After the first call p ends with a NUL byte, which n does not count. */
#ifndef BASE_TEXTBUF_H
#define BASE_TEXTBUF_H

#include <stdbool.h>
#include <stddef.h>

struct textbuf {
    char *p; /* from malloc; NULL until the first call */
    size_t n, cap;
};

/* Appends n bytes, which may contain NUL bytes. */
void textbuf_add(struct textbuf *b, const void *bytes, size_t n);
/* Like textbuf_add, but returns false and leaves the text unchanged if there is no memory. */
bool textbuf_try_add(struct textbuf *b, const void *bytes, size_t n);
/* Appends formatted text. */
void textbuf_addf(struct textbuf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Frees the text and makes it {0} again. */
void textbuf_free(struct textbuf *b);

#endif
