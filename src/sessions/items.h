/* items.h - the items of a conversation: messages, calls of functions and what these gave.  Pure.
 *
 * An item is a JSON object as OpenAI's responses API has it, always in one form here:
 *
 *     {"id", "type": "message", "status", "role", "content": [{"type": "input_text", "text"}]}
 *     {"id", "type": "function_call", "status", "call_id", "name", "arguments"}
 *     {"id", "type": "function_call_output", "status", "call_id", "output"}
 *
 * What a client sends may be shorter (a text, {"role", "content": "text"}). */
#ifndef SESSIONS_ITEMS_H
#define SESSIONS_ITEMS_H

#include "format/json.h"
#include "sessions/fault.h"

enum { ITEMS_MAX = 4096 }; /* of one request */

/* What was sent as `param`, a text or a list of items, as a list in that form, with new ids: the
 * caller's. 0, or -1 with *f, which names what is not supported. */
int items_read(const struct json *sent, const char *param, struct json **out,
               struct fault *f);

/* An item of the assistant's. */
struct json *item_message(const char *id, const char *status, const char *text, size_t n);
/* of: has call_id, name and arguments.  with_arguments: else they are "". */
struct json *item_call(const char *id, const char *status, const struct json *of,
                       bool with_arguments);
/* {"type": "output_text", ...} */
struct json *item_text_part(const char *text, size_t n);

/* Adds the items to `messages`, as OpenAI's chat API has them: a template's input.  Calls belong to
 * the message of the assistant before them. */
void items_to_messages(const struct json *items, struct json *messages);

/* The beginning of the first text of a user, at most `max` bytes of whole characters on one
 * line, the caller's; NULL where there is none. */
char *items_title(const struct json *items, size_t max);

/* A page of items as the list object of the API.  after: an id (NULL: none); ERR as *f where it is
 * not there. */
struct items_page {
    int limit;
    bool oldest_first;
    const char *after;
};
int items_list(const struct json *items, const struct items_page *page, struct json **out,
               struct fault *f);

#endif
