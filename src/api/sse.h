/* sse.h - the framing of server-sent events. Pure. */
#ifndef API_SSE_H
#define API_SSE_H

#include "base/textbuf.h"

struct json;

/* Appends "data: TEXT\n\n". A line break inside the text begins another data line, as the
 * standard requires. */
void sse_event(struct textbuf *b, const char *text);
/* Appends v as one event, and frees v. */
void sse_json(struct textbuf *b, struct json *v);
void sse_done(struct textbuf *b);

#endif
