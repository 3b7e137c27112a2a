/* dialog.h - chats: applies the model's template to messages, and reads its answers.
 *
 * It covers the model's side of a chat, not HTTP. Immutable: any thread. */
#ifndef API_DIALOG_H
#define API_DIALOG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "hcache.h"
#include "text/answer_syntax.h"
#include "text/tokenizer.h"

struct dialog;

/* Opens the chat template of a tokenizer, which is borrowed. Returns 0, with *out NULL for none. */
int dialog_open(struct dialog **out, const struct tokenizer *t, struct err *err);
void dialog_close(struct dialog *k); /* NULL is allowed */

bool dialog_has_tools(const struct dialog *k);
bool dialog_declares_tools(const struct dialog *k); /* as in hcache_model_info */
bool dialog_has_thoughts(const struct dialog *k);   /* the template knows thoughts */

/* Return the texts of these tokens; NULL: there is none. k NULL: there are none. */
const char *dialog_bos(const struct dialog *k);
const char *dialog_eos(const struct dialog *k);

/* Renders a chat: see hcache_chat_render_parsed. */
int dialog_render(const struct dialog *k, const struct hcache_chat *chat, char **text,
                  size_t *n_text, struct err *err);
/* Returns the tables of the model's answers. They belong to k. */
const struct answer_form *dialog_form(const struct dialog *k);
/* Returns how the model writes thoughts and calls; k NULL: neither. */
const struct answer_syntax *dialog_syntax(const struct dialog *k);

#endif
