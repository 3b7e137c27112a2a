/* tool_calls.h - the tool calls in what a model has written.
 *
 * Two formats, told apart by the model's chat template:
 *
 *     Qwen      text... <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call> ...
 *     Llama-3   {"name": "f", "parameters": {...}}     and nothing else; several with ;
 *               between them; <|python_tag|> may come first
 *
 * Arguments are handed on byte for byte as the model wrote them: reading and writing them
 * again would change numbers and blanks, and with them the tokens of the next prompt.
 *
 * What only looks like a call (broken JSON, a missing name) is text: a model's mistakes are
 * shown to the user, never swallowed and never repaired. */
#ifndef MODEL_TOOL_CALLS_H
#define MODEL_TOOL_CALLS_H

#include <stddef.h>

enum tool_format { TOOL_FORMAT_NONE, TOOL_FORMAT_QWEN, TOOL_FORMAT_LLAMA3 };

/* By what the template's text says; NULL is TOOL_FORMAT_NONE. */
enum tool_format tool_format_of(const char *chat_template);

struct tool_call {
    char *name;
    char *arguments; /* the text of a JSON object */
};

struct tool_calls {
    /* The text around the calls, without blanks at its end; may contain zero bytes. */
    char *content;
    size_t n_content;
    struct tool_call *at;
    size_t n;
};

/* Where there is no call, content is the whole text as it is.  The caller deinits *out. */
void tool_calls_parse(enum tool_format format, const char *text, size_t n,
                      struct tool_calls *out);
void tool_calls_deinit(struct tool_calls *c);

/* For streaming: how many of the n bytes written so far are text for certain, and so will be
 * the beginning of the content that tool_calls_parse finds in the end.  The rest may be, or
 * become, a call. */
size_t tool_calls_text_bytes(enum tool_format format, const char *text, size_t n);

#endif
