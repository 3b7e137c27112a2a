/* retoken.h - the tokens of a conversation: of our own answers those that were generated. */
#ifndef SERVER_RETOKEN_H
#define SERVER_RETOKEN_H

#include "hcache.h"
#include "server/generation.h"
#include "server/memory.h"

/* Tokenizes the text, with what m remembers of its beginning in place of its own tokens.  what
 * [200]: a miss reason, "retokenised at N", where that was not possible; "" else. 0, or the code. */
int retoken_encode(const struct hcache *h, struct memory *m, const char *salt,
                   const char *text, size_t n, unsigned flags, struct prompt_ids *out,
                   char *what, struct hcache_err *err);

/* Remembers an answer to that prompt, also in the form that templates give it: trimmed. */
void retoken_remember(const struct hcache *h, struct memory *m, const char *salt,
                      const char *prompt_text, const int32_t *prompt, int n_prompt,
                      const struct hcache_result *answer);

#endif
