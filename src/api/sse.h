/* sse.h - the framing of server-sent events. Pure. */
#ifndef API_SSE_H
#define API_SSE_H

#include "base/textbuf.h"

struct json;

/* Appends v as one event, and frees v. */
void sse_json(struct textbuf *b, struct json *v);
/* Appends the event that ends a stream of OpenAI's API. */
void sse_done(struct textbuf *b);

#endif
