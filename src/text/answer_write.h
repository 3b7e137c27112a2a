/* answer_write.h - writes tool calls as a model would write them.
 *
 * The opposite of answer.h, for prompts: a template that shows no calls shows an answer's text. */
#ifndef TEXT_ANSWER_WRITE_H
#define TEXT_ANSWER_WRITE_H

#include "base/textbuf.h"
#include "base/json.h"
#include "text/answer_syntax.h"

/* A tag of ours stands between these two unassigned characters (U+3FFFC, U+3FFFD), if marks are
 * wanted: it is no text of the message's author, and may be a special token. Templates can change
 * their case. */
#define ANSWER_TAG_BEGIN "\xF0\xBF\xBF\xBC"
#define ANSWER_TAG_END   "\xF0\xBF\xBF\xBD"

/* Returns whether calls of that syntax can be written. */
bool answer_writes(const struct call_syntax *s);
/* Appends one tag. A blank of the tag becomes a line break. tag NULL: nothing. */
void answer_write_tag(struct textbuf *out, const char *tag, bool marked);
/* Appends calls in the chat API's form, whose arguments are objects. Returns false if the syntax
 * cannot say one of them; then a part of the text may be appended. */
bool answer_write_calls(struct textbuf *out, const struct call_syntax *s,
                        const struct json *calls, bool marked);

#endif
