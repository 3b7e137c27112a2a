/* text_out.h - appends to a caller's buffer, with snprintf's contract. */
#ifndef APPS_TEXT_OUT_H
#define APPS_TEXT_OUT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "base/minmax.h"

struct text_out {
    char *out;
    size_t cap;
    int length; /* length of the whole text, even if it did not fit */
};

static inline struct text_out text_begin(char *out, size_t cap)
{
    return (struct text_out){out, cap, 0};
}

static inline void text_add(struct text_out *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static inline void text_add(struct text_out *t, const char *fmt, ...)
{
    size_t at = (size_t)t->length;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(at < t->cap ? t->out + at : NULL, at < t->cap ? t->cap - at : 0, fmt,
                      ap);
    va_end(ap);
    t->length += MAX(n, 0);
}

#endif
