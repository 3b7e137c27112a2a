/* line.h - one line of a batch: a request and the line that answers it, in OpenAI's format.
 *
 *     {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *
 *     {"id": "batch_req_..", "custom_id": "a", "error": null,
 *      "response": {"status_code": 200, "request_id": "req_..", "body": {...}}}
 *
 * A request that fails has another status code, and a body with the error.  A line that is not a
 * request gets a null response, and an error with code, message, param and line.
 *
 * Names, ids and seeds are derived from the line's own text, so a job that was killed and continued
 * writes the same lines as one that was not. */
#ifndef API_LINE_H
#define API_LINE_H

#include "api/idset.h"
#include "api/input.h"
#include "api/prompts.h"

#define LINE_ID "batch_req_"

enum { LINE_NAME_BYTES = 33, LINE_MAX_CUSTOM_ID = 512 };

struct line {
    uint64_t number; /* number of the line, from 1 */
    size_t n_bytes;  /* bytes of the line's text */
    size_t n_memory; /* approximate memory of the struct and everything below it */
    char name[LINE_NAME_BYTES]; /* name of the line's answer */
    uint64_t seed;
    char *custom_id;   /* NULL: the line has none */
    struct json *json; /* the parsed line; NULL: it could not be parsed */
    unsigned kind;     /* REQUEST_CHAT or REQUEST_COMPLETION */
    const struct json *body;
};

/* Reads a line. Returns 0, or -1 with *f set if the line is not a request, or if *seen already has
 * its custom_id. Adds the custom_id to *seen. *out is filled in both cases; the caller deinits
 * it. */
int line_read(const struct input *in, enum input_got got, struct idset *seen,
              struct line *out, struct fault *f);
void line_deinit(struct line *l);

/* Returns the model that the first request of a file names, from malloc; NULL: it names none, or
 * the file cannot be read. */
char *line_first_model(const char *path);

/* Returns the kind of request that has this url; 0: there is none. */
unsigned line_kind(const char *url);

/* Both return the text of the answering line; the caller frees it. line_answer frees body. */
char *line_answer(const struct line *l, int status, struct json *body);
char *line_fault(const struct line *l, const struct fault *f);

#endif
