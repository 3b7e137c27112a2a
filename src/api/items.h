/* items.h - the items of a conversation: messages, function calls and their outputs. Pure.
 *
 * An item is a JSON object as in OpenAI's responses API, always in one form here:
 *
 *     {"id", "type": "message", "status", "role", "content": [{"type": "input_text", "text"}]}
 *     {"id", "type": "function_call", "status", "call_id", "name", "arguments"}
 *     {"id", "type": "function_call_output", "status", "call_id", "output"}
 *     {"id", "type": "custom_tool_call", "status", "call_id", "name", "input"}
 *     {"id", "type": "custom_tool_call_output", "status", "call_id", "output"}
 *     {"id", "type": "additional_tools", "status", "role", "tools": [...]}
 *     {"id", "type": "reasoning", "status", "summary": [], "content": [{"type": "reasoning_text",
 *      "text"}]}
 *
 * Clients may send shorter forms (a text, {"role", "content": "text"}). */
#ifndef API_ITEMS_H
#define API_ITEMS_H

#include "base/json.h"
#include "api/fault.h"

enum { ITEMS_MAX = 4096 }; /* most items of one request */

/* Makes a list of items in the form above, with new ids, of the field `param`; `sent` is a text or
 * a list of items. The caller owns *out. Returns 0, or -1 with *f, which names what is bad. */
int items_read(const struct json *sent, const char *param, struct json **out,
               struct fault *f);

/* Makes a message item of the assistant. */
struct json *item_message(const char *id, const char *status, const char *text, size_t n);
/* Makes a reasoning item: a thought of the assistant. */
struct json *item_reasoning(const char *id, const char *status, const char *text, size_t n);
/* Makes a function_call item, or a custom_tool_call item if `is_custom`. `of` has its call_id, its
 * name, and its arguments or its input; without `with_arguments` these are "" in the item. */
struct json *item_call(const char *id, const char *status, const struct json *of,
                       bool with_arguments, bool is_custom);
/* Makes the part {"type": "output_text", ...} of a message. */
struct json *item_text_part(const char *text, size_t n);
/* Makes the part {"type": "reasoning_text", ...} of a thought. */
struct json *item_thought_part(const char *text, size_t n);

/* Adds the items to `messages` in the form of OpenAI's chat API, which templates take. Thoughts,
 * texts and calls of the assistant in a row are one message. Additional tools before the first
 * question and answer are left out, since the prompt's list of tools has them; later ones are
 * declared by a message of the system, so that the beginning of the prompt stays as it was. */
void items_to_messages(const struct json *items, struct json *messages);

/* Adds the tools of items of the type additional_tools: those that items_to_messages leaves out to
 * `early`, the others to `late`. */
void items_tools(const struct json *items, struct json *early, struct json *late);

/* Returns a title: the beginning of the first text of a user, at most `max` bytes of whole
 * characters on one line. The caller frees it. Returns NULL if no user has a text. */
char *items_title(const struct json *items, size_t max);

/* Returns the search form of a text, in which case makes no difference, from malloc. Returns NULL
 * if the text is not UTF-8. */
char *items_fold(const char *text, size_t n);
/* Returns whether a text, a call's arguments or a result in the items contains the search text
 * `folded`, which items_fold made. */
bool items_hold(const struct json *items, const char *folded);

/* Returns the id of an item, or of another object of the API; NULL if it has none. */
const char *item_id(const struct json *item);
/* Finds the item with that id. Returns false if there is none; else *at is its index. */
bool items_find(const struct json *items, const char *id, size_t *at);

/* Makes a page of items as the API's list object. The page begins after the item with the id
 * `after` (NULL: with the first item); an unknown id is a fault *f. */
struct items_page {
    int limit;
    bool oldest_first;
    const char *after;
};
int items_list(const struct json *items, const struct items_page *page, struct json **out,
               struct fault *f);

#endif
