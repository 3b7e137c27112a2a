/* retoken.h - the tokens of a conversation: of our own answers those that were generated. */
#ifndef SESSIONS_RETOKEN_H
#define SESSIONS_RETOKEN_H

#include "hcache.h"
#include "sessions/answers.h"
#include "sessions/prompt.h"

/* Tokenizes the text, with what m remembers (NULL: nothing) of its beginning in place of
 * its own tokens. what [200]: a miss reason, "retokenised at N", where that was not
 * possible; "" else. 0, or the code. */
int retoken_encode(const struct hcache *h, struct answers *m, const char *salt,
                   const struct prompt_text *text, struct prompt_ids *out, char *what,
                   struct hcache_err *err);

/* The same, where the first n_known bytes of the text are known to be the tokens ids[0..n_ids):
 * these are what the result begins with. */
int retoken_continue(const struct hcache *h, const int32_t *ids, int n_ids, size_t n_known,
                     const struct prompt_text *text, struct prompt_ids *out,
                     struct hcache_err *err);

/* The beginnings of a conversation's text whose tokens are known once it has been answered: */
struct retoken_mark {
    int n_tokens; /* of prompt and answer: the first n_tokens of them are */
    char *text;   /* what follows the prompt's text then, from malloc */
    size_t n_text;
};
enum { RETOKEN_MAX_MARKS = 2 };
/* Where the answer ends as it was shown, up to the last token of which all was shown; and in
 * the form that templates give it, trimmed.  The caller frees the texts. */
int retoken_marks(const struct hcache *h, const struct prompt_text *asked,
                  const struct hcache_result *answer, int n_prompt,
                  struct retoken_mark out[RETOKEN_MAX_MARKS]);

/* Remembers an answer to that prompt, also in the form that templates give it: trimmed. */
void retoken_remember(const struct hcache *h, struct answers *m, const char *salt,
                      const struct prompt_text *text, const int32_t *prompt, int n_prompt,
                      const struct hcache_result *answer);

#endif
