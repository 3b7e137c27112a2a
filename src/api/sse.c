/* sse.c - see sse.h. */
#include "api/sse.h"

#include "base/json.h"

void sse_json(struct textbuf *b, struct json *v)
{
    textbuf_add(b, "data: ", 6);
    json_append_line(v, b);
    textbuf_add(b, "\n\n", 2);
    json_free(v);
}

void sse_done(struct textbuf *b)
{
    textbuf_addf(b, "data: [DONE]\n\n");
}
