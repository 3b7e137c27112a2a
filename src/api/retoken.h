/* retoken.h - the tokens of a conversation, with the generated tokens for our own answers. */
#ifndef API_RETOKEN_H
#define API_RETOKEN_H

#include "hcache.h"
#include "api/answers.h"
#include "api/prompt.h"

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

/* Sets n_tokens[i] to the number of tokens that lie whole in the text's first bytes[i] bytes, which
 * ascend; guards do not count. */
void retoken_before(const struct hcache *h, const struct prompt_text *text,
                    const struct prompt_ids *p, const size_t *bytes, int n, int *n_tokens);

/* A beginning of a conversation's text whose tokens are known once the conversation has an
 * answer. */
struct retoken_mark {
    int n_tokens; /* number of its tokens: the first n_tokens of prompt and answer */
    char *text;   /* that text without the prompt's text before it; from malloc */
    size_t n_text;
};
enum { RETOKEN_MAX_MARKS = 2 };
/* Makes up to two marks, and returns how many. One is at the end of the answer as it was shown,
 * behind the last token that was shown whole. The other is at the end of the trimmed answer, which
 * is the form that templates give it. The caller frees the texts. */
int retoken_marks(const struct hcache *h, const struct prompt_text *asked,
                  const struct hcache_result *answer, int n_prompt,
                  struct retoken_mark out[RETOKEN_MAX_MARKS]);

/* Returns the key of the chunk in which the tokens ids[0, n - 1) end: a sequence's last token has
 * no state. The other numbers are those of hcache_chunk_keys. */
struct sha256 retoken_end_key(const struct hcache *h, int context, int step, int keep,
                              const int32_t *ids, int n, const char *state_salt);

/* Whose answer is remembered. */
struct retoken_owner {
    const char *salt;       /* salt of the client's key; NULL: none */
    const char *state_salt; /* salt of the request's state; NULL: none */
    int64_t ttl_s;          /* time to live of the request's state; 0: none */
};
/* Remembers an answer to that prompt as it was shown, and in the form that templates give it,
 * trimmed. */
void retoken_remember(const struct hcache *h, struct answers *m,
                      const struct retoken_owner *owner, const struct prompt_text *text,
                      const int32_t *prompt, int n_prompt,
                      const struct hcache_result *answer);

#endif
