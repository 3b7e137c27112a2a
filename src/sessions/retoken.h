/* retoken.h - the tokens of a conversation, with the generated tokens for our own answers. */
#ifndef SESSIONS_RETOKEN_H
#define SESSIONS_RETOKEN_H

#include "hcache.h"
#include "sessions/answers.h"
#include "sessions/prompt.h"

/* Tokenizes the text. If m remembers a beginning of the text, the remembered tokens replace that
 * beginning's own tokens (m NULL: nothing is remembered). `what` [200] receives the miss reason
 * "retokenised at N" if this is impossible, else "". Returns 0, or a negative code. */
int retoken_encode(const struct hcache *h, struct answers *m, const char *salt,
                   const struct prompt_text *text, struct prompt_ids *out, char *what,
                   struct hcache_err *err);

/* Like retoken_encode, for a text whose first n_known bytes are known to be the tokens
 * ids[0..n_ids). The result begins with these tokens. */
int retoken_continue(const struct hcache *h, const int32_t *ids, int n_ids, size_t n_known,
                     const struct prompt_text *text, struct prompt_ids *out,
                     struct hcache_err *err);

/* A beginning of a conversation's text whose tokens are known once the conversation has an
 * answer. */
struct retoken_mark {
    int n_tokens; /* number of its tokens: the first n_tokens of prompt and answer */
    char *text;   /* that text without the prompt's text before it; from malloc */
    size_t n_text;
};
enum { RETOKEN_MAX_MARKS = 2 };
/* Makes up to two marks: one at the end of the answer as it was shown, that is, behind the last
 * token that was shown whole; and one at its end in the form that templates give it, trimmed. The
 * caller frees the texts. */
int retoken_marks(const struct hcache *h, const struct prompt_text *asked,
                  const struct hcache_result *answer, int n_prompt,
                  struct retoken_mark out[RETOKEN_MAX_MARKS]);

/* Remembers an answer to that prompt as it was shown, and in the form that templates give it,
 * trimmed. */
void retoken_remember(const struct hcache *h, struct answers *m, const char *salt,
                      const struct prompt_text *text, const int32_t *prompt, int n_prompt,
                      const struct hcache_result *answer);

#endif
