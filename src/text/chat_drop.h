/* chat_drop.h - drops text of system messages that says nothing to the model.
 *
 * A line that changes with every request ends the equal beginning of two prompts. Claude Code puts
 * such a line, with a checksum for billing, in front of its system prompt: it is always dropped.
 * Others are named by a regular expression. */
#ifndef TEXT_CHAT_DROP_H
#define TEXT_CHAT_DROP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct chat_drop;

/* `pattern` is a regular expression of PCRE2; NULL: drops only billing lines. Any thread. */
int chat_drop_open(struct chat_drop **out, const char *pattern, struct err *err);
void chat_drop_close(struct chat_drop *d); /* NULL is allowed */

/* Returns 1, with the text without the dropped parts in *out, which the caller frees; 0 if nothing
 * is dropped; or a negative code: ERR_LIMIT if the pattern takes too much work. Needs UTF-8. */
int chat_drop_text(const struct chat_drop *d, const char *text, size_t n, char **out,
                   size_t *n_out, struct err *err);

#endif
