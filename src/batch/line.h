/* line.h - one line of a batch: a request, and the line that answers it, in OpenAI's format.
 *
 *     {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *     {"id": "batch_req_..", "custom_id": "a", "error": null,
 *      "response": {"status_code": 200, "request_id": "req_..", "body": {...}}}
 *
 * A request that fails has another status code, and a body with the error.  A line that is no
 * request has a response of null, and an error with code, message, param and line.
 *
 * Names, ids and seeds are made of the line's own text, so a job that was killed writes the
 * same lines as one that was not. */
#ifndef BATCH_LINE_H
#define BATCH_LINE_H

#include "batch/idset.h"
#include "batch/input.h"
#include "requests/prompts.h"

#define LINE_ID "batch_req_"

enum { LINE_NAME_BYTES = 33, LINE_MAX_CUSTOM_ID = 512 };

struct line {
    uint64_t number;            /* from 1 on */
    size_t n_bytes;             /* of its text */
    size_t n_memory;            /* about what the struct and all below it take */
    char name[LINE_NAME_BYTES]; /* of its answer */
    uint64_t seed;
    char *custom_id;   /* NULL: it has none */
    struct json *json; /* the line; NULL: it could not be parsed */
    unsigned kind;     /* REQUEST_CHAT or REQUEST_COMPLETION */
    const struct json *body;
};

/* Reads a line.  0, or -1 with *f: it is no request, or its custom_id is in *seen, to which
 * line_read adds it.  *out is filled in both cases; the caller deinits it. */
int line_read(const struct input *in, enum input_got got, struct idset *seen,
              struct line *out, struct fault *f);
void line_deinit(struct line *l);

/* The url of that kind of request is `url`. 0: none is. */
unsigned line_kind(const char *url);

/* What answers it: the caller's.  body is taken. */
char *line_answer(const struct line *l, int status, struct json *body);
char *line_fault(const struct line *l, const struct fault *f);

#endif
