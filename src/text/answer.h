/* answer.h - reads an answer while it is generated: thoughts, text and tool calls.
 *
 *     answer_open -> answer_push ... -> answer_end -> answer_parts -> answer_close
 *
 * The parts are final as soon as they exist: a part never goes away, and a text only grows. So what
 * a stream has sent is always a beginning of the whole answer, however the answer was cut.
 *
 * Only certain things leave the parser. Text that may become a tag or a call waits. A call counts
 * if its arguments are a whole JSON object and its tool was offered; then its arguments are passed
 * on byte for byte, because other numbers and blanks would be other tokens in the next prompt.
 * Otherwise its text stays text: a model's mistakes are shown, neither hidden nor repaired. A
 * mistake ends with the call that has it.
 *
 * Thoughts stand at the beginning of an answer. What looks like a call inside them is thought.
 * Blanks around thoughts and in front of calls do not belong to any part. */
#ifndef TEXT_ANSWER_H
#define TEXT_ANSWER_H

#include <stdint.h>

#include "base/json.h"
#include "text/answer_syntax.h"
#include "text/tokenizer.h"

/* The tables for one model: its tags, in which special tokens are marked. Immutable: any thread. */
struct answer_form;

/* Makes the tables of a syntax. The tokenizer t tells which tags are special tokens; if it is NULL,
 * none is. */
struct answer_form *answer_form_create(const struct answer_syntax *s,
                                       const struct tokenizer *t);
void answer_form_destroy(struct answer_form *f); /* NULL is allowed */

enum answer_part_kind { ANSWER_THOUGHT, ANSWER_TEXT, ANSWER_CALL };

struct answer_part {
    enum answer_part_kind kind;
    char *name; /* of the tool that is called; else NULL */
    /* Thought, text or arguments. The bytes end with a zero that n does not count, and may contain
     * others. */
    char *text;
    size_t n, cap;
};

struct answer;

/* Opens the parser of one answer. `prompt` is the end of the text before the answer: it shows
 * whether the answer begins with a thought. `tools` are the tools that may be called, in any form
 * of the APIs; they are borrowed. If there are none, nothing is a call. */
struct answer *answer_open(const struct answer_form *f, const char *prompt, size_t n_prompt,
                           const struct json *tools);
void answer_close(struct answer *a); /* NULL is allowed */

/* Adds text. Special tokens are no text: answer_token adds them. */
void answer_push(struct answer *a, const char *text, size_t n);
void answer_token(struct answer *a, int32_t special);
/* Tells that the answer has ended. Text that waited becomes final. */
void answer_end(struct answer *a);

/* Returns the parts, valid until the next call. *n is their number. */
const struct answer_part *answer_parts(const struct answer *a, size_t *n);

#endif
