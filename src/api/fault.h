/* fault.h - why a request is refused, in the API's terms. Pure. */
#ifndef API_FAULT_H
#define API_FAULT_H

#include "base/json.h"

struct fault {
    int status;       /* HTTP status */
    const char *type; /* type of the error in the API, such as "invalid_request_error" */
    const char *code; /* NULL: null in JSON */
    int64_t n_prompt; /* tokens of a prompt that is too long; else 0 */
    int n_context;    /* most tokens of it */
    char param[64];   /* name of the request's field; "": null in JSON */
    char message[400];
    char reason[160]; /* the message for a log, with "..." in place of a user's texts */
};

/* Fills *f and returns -1. The type follows from the status. param NULL: the fault is about no
 * field. Print texts that a client may have sent with %s: `reason` hides them. Print the program's
 * own words with %-s: `reason` shows them. */
int fault_set(struct fault *f, int status, const char *code, const char *param,
              const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Like fault_set, for a request that failed with rc. The status is 503 for -ENOMEM, else 400. */
int fault_refuse(struct fault *f, int rc, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Like fault_set, for a field of the request: status 400. The message is the field's name in
 * quotes, and fmt. No part of the name comes from the client. */
int fault_field(struct fault *f, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds to a fault how many tokens the prompt has, at least, and the context. Returns -1. */
int fault_too_long(struct fault *f, int64_t n_prompt, int n_context);
/* Returns the fault as {"error": {...}}. */
struct json *fault_json(const struct fault *f);

#endif
