/* sse.h - a growing text, and the framing of server-sent events. Pure. */
#ifndef SERVER_SSE_H
#define SERVER_SSE_H

#include <stdbool.h>
#include <stddef.h>

struct json;

struct textbuf {
    char *p;
    size_t n, cap;
};

void textbuf_add(struct textbuf *b, const void *bytes, size_t n);
void textbuf_addf(struct textbuf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void textbuf_free(struct textbuf *b);

/* "data: TEXT\n\n"; a line break inside the text begins another data line, as the standard says. */
void sse_event(struct textbuf *b, const char *text);
void sse_json(struct textbuf *b, struct json *v); /* frees v */
void sse_done(struct textbuf *b);

#endif
