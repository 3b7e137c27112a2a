/* textbuf.c - see textbuf.h. */
#include "base/textbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void reserve(struct textbuf *b, size_t n)
{
    if (b->n + n + 1 > b->cap) {
        b->cap = 2 * (b->n + n + 1);
        b->p = xrealloc(b->p, b->cap);
    }
}

bool textbuf_try_add(struct textbuf *b, const void *bytes, size_t n)
{
    if (b->n + n + 1 > b->cap) {
        size_t cap = 2 * (b->n + n + 1);
        char *p = mem_try_realloc(b->p, cap);
        if (p == NULL)
            return false;
        b->p = p;
        b->cap = cap;
    }
    textbuf_add(b, bytes, n);
    return true;
}

void textbuf_add(struct textbuf *b, const void *bytes, size_t n)
{
    reserve(b, n);
    if (n > 0)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = 0;
}

void textbuf_addf(struct textbuf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        reserve(b, (size_t)n);
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void textbuf_free(struct textbuf *b)
{
    free(b->p);
    *b = (struct textbuf){0};
}
