/* chat.h - a conversation to the prompt text, by the model's own chat template.
 *
 * A template is written for the messages that its authors had in mind; a request follows the
 * OpenAI API.  Between the two, the messages are prepared (the request is not changed):
 *
 *   - content that is an array of text parts becomes one string, its parts joined by
 *     newlines, unless the template walks parts itself; a string stays a string;
 *   - an assistant's content that is null or missing becomes "", unless the template walks
 *     parts; beside tool calls an empty content becomes what the template shows calls with,
 *     "" or null;
 *   - the arguments of a tool call, JSON text in the API, become the object that they
 *     describe, or stay text, whichever the template shows; text that describes no object
 *     stays text;
 *   - members that are null, and an empty tool_calls, are left out; an empty `tools` is none.
 *
 * Whether a template walks parts, shows tools, takes a system message, and in what form it
 * shows tool calls is found out by rendering probes when it is opened, not by guessing from
 * its text.  A call that the template would leave out is refused: the model would otherwise
 * answer a conversation that did not happen.
 *
 * A template is immutable once open: any number of threads may render with it. */
#ifndef MODEL_CHAT_H
#define MODEL_CHAT_H

#include "base/err.h"
#include "format/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct chat_template;

/* `source` is the template's text (tokenizer_chat_template), not kept; NULL is
 * ERR_NOT_FOUND: the model has none.  Codes else as of jinja_compile. */
int chat_open(struct chat_template **out, const char *source, struct err *err);
void chat_close(struct chat_template *t); /* NULL is allowed */

struct chat_abilities {
    bool parts;             /* walks arrays of content parts */
    bool tools;             /* shows the tools it is given */
    bool system;            /* shows a system message */
    bool calls;             /* shows an assistant's tool calls */
    bool calls_beside_text; /* also where the message has content */
};
struct chat_abilities chat_abilities(const struct chat_template *t);

struct chat_request {
    const struct json *messages;  /* an array of objects with a role */
    const struct json *tools;     /* an array, or NULL */
    const struct json *documents; /* an array, or NULL */
    /* an object of further variables (enable_thinking), or NULL */
    const struct json *kwargs;
    bool add_generation_prompt; /* end with the beginning of an answer */
    const char *bos_token;      /* their text; NULL: the model has none */
    const char *eos_token;
    const struct tm *now; /* what strftime_now tells; NULL: it is not defined */
};

/* *text (the caller frees it; a final zero is not counted in *n).  It already contains the
 * BOS token where the template writes one: encode it with special tokens parsed, not added.
 *
 * ERR_USAGE: the request is at fault, and the message is for whoever sent it: a member that
 * is wrong ("messages[2].content[0]: ..."), or the template's own refusal ("roles must
 * alternate").  ERR_MISMATCH: the template cannot be applied to these messages.  ERR_LIMIT,
 * ERR_UNSUPPORTED: as of jinja_render. */
int chat_render(const struct chat_template *t, const struct chat_request *r, char **text,
                size_t *n, struct err *err);

/* The same.  Bit i of *foreign (the caller frees it; 8 bytes more than needed) is set
 * where byte i of the text comes from messages, tools or documents, but for the names of
 * roles that templates build their markers from.  What comes from the template, the
 * tokens and kwargs is not foreign. */
int chat_render_traced(const struct chat_template *t, const struct chat_request *r,
                       char **text, size_t *n, uint8_t **foreign, struct err *err);

#endif
