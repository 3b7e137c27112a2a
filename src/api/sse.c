/* sse.c - see sse.h. */
#include "api/sse.h"

#include <string.h>

#include "base/json.h"

void sse_event(struct textbuf *b, const char *text)
{
    for (const char *line = text; line != NULL;) {
        size_t n = strcspn(line, "\r\n");
        textbuf_add(b, "data: ", 6);
        textbuf_add(b, line, n);
        textbuf_add(b, "\n", 1);
        line += n;
        if (*line == 0)
            line = NULL;
        else
            line += line[0] == '\r' && line[1] == '\n' ? 2 : 1;
    }
    textbuf_add(b, "\n", 1);
}

void sse_json(struct textbuf *b, struct json *v)
{
    textbuf_add(b, "data: ", 6);
    json_append_line(v, b);
    textbuf_add(b, "\n\n", 2);
    json_free(v);
}

void sse_done(struct textbuf *b)
{
    sse_event(b, "[DONE]");
}
