/* tool_calls.h - finds the tool calls in a model's output.
 *
 * The model's chat template tells which of two formats it uses:
 *
 *     Qwen      text... <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call> ...
 *     Llama-3   {"name": "f", "parameters": {...}}     and nothing else; several with ;
 *               between them; <|python_tag|> may come first
 *
 * Arguments are passed on byte for byte as the model wrote them: parsing and printing them again
 * would change numbers and blanks, and with them the tokens of the next prompt.
 *
 * Text that only resembles a call (broken JSON, a missing name) stays text: a model's mistakes are
 * shown to the user, neither hidden nor repaired. */
#ifndef MODEL_TOOL_CALLS_H
#define MODEL_TOOL_CALLS_H

#include <stddef.h>

enum tool_format { TOOL_FORMAT_NONE, TOOL_FORMAT_QWEN, TOOL_FORMAT_LLAMA3 };

/* Returns the format that the template's text shows; NULL is TOOL_FORMAT_NONE. */
enum tool_format tool_format_of(const char *chat_template);

struct tool_call {
    char *name;
    char *arguments; /* text of a JSON object */
};

struct tool_calls {
    /* The text around the calls, without blanks at its end; it may contain zero bytes. */
    char *content;
    size_t n_content;
    struct tool_call *at;
    size_t n;
};

/* Parses an answer. If there is no call, content is the whole text unchanged.  The caller deinits
 * *out. */
void tool_calls_parse(enum tool_format format, const char *text, size_t n,
                      struct tool_calls *out);
void tool_calls_deinit(struct tool_calls *c);

/* For streaming: returns how many of the n bytes so far are certainly text, and hence the beginning
 * of the content that tool_calls_parse finds in the end.  The rest may be a call, or become one. */
size_t tool_calls_text_bytes(enum tool_format format, const char *text, size_t n);

#endif
