/* chat.h - renders a conversation to prompt text with the model's own chat template.
 *
 * A template expects the messages that its authors had in mind; a request follows the OpenAI API.
 * The messages are adapted in between (the request is not changed):
 *   - Content that is an array of text parts becomes one string, its parts joined by newlines,
 *     unless the template walks parts itself.  A string stays a string.
 *   - An assistant's content that is null or missing becomes "", unless the template walks parts.
 *     Beside tool calls, empty content becomes "" or null, whichever the template handles.
 *   - The arguments of a tool call, JSON text in the API, become the object that they describe or
 *     stay text, whichever the template handles.  Text that describes no object stays text.
 *   - Members that are null, and an empty tool_calls, are left out.
 *   - The role developer becomes system for a template that does not know it. System messages in a
 *     row become one, and one behind the beginning becomes the user's, where the template would
 *     leave them out, move them or refuse them. So do two messages of the user or of the assistant
 *     in a row. System messages behind the first question stand before it.
 *   - Thoughts (reasoning_content, reasoning, thinking, parts of the type thinking) get the name
 *     that the template knows. For a template that knows none they stand in front of the content,
 *     between the model's tags.
 *   - function_call and the role function, the older form of calls, become the newer one.
 *   - Text beside calls stands in a message before them, if the template would leave out either.
 *   - Calls that the template does not show are written into the content, as the model writes them.
 *     Results that it does not show are said by the user.
 *   - Results of several calls come in the order of the calls, and get the names of their tools. A
 *     template that takes one call at a time gets each in a message of its own, with its result.
 *   - Tools that the template does not show are declared by a system message.
 *
 * chat_open renders probes to learn what a template shows, and how; it does not guess from the
 * template's text.  What the template would leave out is refused, because the model would
 * otherwise answer a conversation that did not happen.  (A template may leave out thoughts of
 * earlier turns: its model is used to it.)
 *
 * An open template is immutable: any number of threads may render with it. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/err.h"
#include "base/json.h"
#include "text/answer_syntax.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct chat_template;

/* Compiles a template. `source` is its text (tokenizer_chat_template), which is not kept; `tokens`
 * has the texts of the special tokens, NULL: unknown. A template that names no tags of calls may
 * belong to a model that has tokens for them.
 * ERR_NOT_FOUND: source is NULL, the model has no template.  Other codes as in jinja_compile. */
int chat_open(struct chat_template **out, const char *source, const char *tokens,
              struct err *err);
void chat_close(struct chat_template *t); /* Frees a template. NULL is allowed. */

struct chat_abilities {
    bool parts;             /* the template walks arrays of content parts */
    bool tools;             /* the template shows the tools of the request */
    bool system;            /* the template shows a system message */
    bool thoughts;          /* the template shows thoughts, or names their tags */
    bool calls;             /* the template shows an assistant's tool calls */
    bool calls_beside_text; /* the template shows calls also if the message has content */
    bool declared_tools; /* the template shows no tools: a system message declares them */
};
struct chat_abilities chat_abilities(const struct chat_template *t);
/* Returns how the model writes thoughts and calls. Valid as long as t. */
const struct answer_syntax *chat_syntax(const struct chat_template *t);

struct chat_request {
    const struct json *messages;  /* an array of objects with a role */
    const struct json *tools;     /* an array, or NULL */
    const struct json *documents; /* an array, or NULL */
    /* an object with more variables (enable_thinking), or NULL */
    const struct json *kwargs;
    bool add_generation_prompt; /* ends the prompt with the beginning of an answer */
    const char *bos_token;      /* texts of BOS and EOS; NULL: the model has none */
    const char *eos_token;
    /* an object with the texts of other named tokens ("pad_token"), or NULL */
    const struct json *tokens;
    /* the time that strftime_now uses; NULL: strftime_now is undefined */
    const struct tm *now;
    char *shown_time; /* as in jinja_input */
    /* Gets the names of members of messages that the template does not show and that change
     * nothing else, with blanks between; CHAT_UNSHOWN bytes. NULL: they are not wanted. */
    char *unshown;
    struct chat_mark *marks; /* [n_marks]; set if foreign bytes are wanted */
    int n_marks;
};
enum { CHAT_UNSHOWN = 160, CHAT_MARKS = 4 };

/* A place between two messages of the request, and its place in the rendered text. */
struct chat_mark {
    size_t message; /* the first message behind it */
    /* offset of the first byte from a message behind it; the text's size if there is none */
    size_t at;
};

/* Renders a request.  The caller frees *text; its final zero is not counted in *n.  The text
 * already contains the BOS token if the template writes one: encode it with special tokens parsed,
 * not added.
 *
 * If foreign is not NULL, bit i of *foreign is set if byte i of the text comes from messages, tools
 * or documents. Names of roles are not foreign, since templates build their markers from them, nor
 * are bytes of the template, the tokens and kwargs. The caller frees *foreign, which is 8 bytes
 * longer than its bits need.
 *
 * ERR_USAGE: the request is at fault, and the message is for its sender: a wrong member
 * ("messages[2].content[0]: ..."), or the template's own refusal ("roles must alternate").
 * ERR_MISMATCH: the template cannot be applied to these messages.  ERR_LIMIT, ERR_UNSUPPORTED: as
 * in jinja_render. */
int chat_render(const struct chat_template *t, const struct chat_request *r, char **text,
                size_t *n, uint8_t **foreign, struct err *err);

#endif
