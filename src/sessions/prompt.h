/* prompt.h - a conversation as the model is to see it.
 *
 * The model's own chat template makes the prompt.  A model without one is refused: a format that it
 * was not trained on gives bad answers that nobody would notice.  `plain` allows it all the same,
 * for models that were never trained on chats, with this text and nothing else:
 *
 *     ROLE: CONTENT\n  for every message, then  "assistant:"
 *
 * (An answer follows its colon as it was generated, which usually begins with a space.) */
#ifndef SESSIONS_PROMPT_H
#define SESSIONS_PROMPT_H

#include "hcache.h"
#include "sessions/fault.h"

/* A prompt in tokens. */
struct prompt_ids {
    int32_t *ids; /* from malloc */
    int n;
};

struct chat_source {
    const struct json *messages;       /* as in OpenAI's chat API */
    const struct json *tools, *kwargs; /* NULL: none */
    bool plain;
    bool parse_special; /* special tokens that messages spell count as such */
    bool truncates;     /* the history may be longer than the context */
};

/* A rendered prompt. */
struct prompt_text {
    char *text; /* from malloc; may contain zero bytes, and guards (hcache_guard) */
    size_t n;
    unsigned flags; /* of hcache_encode, for this text */
};
/* Whether a prompt of that text may fit the context, or where it is truncated
 * hcache_opts.max_history, judged by its size before it is tokenized. 0, or -1 with *f,
 * which names the field `param`. */
int prompt_fits(const struct hcache *h, bool truncates, const char *text, size_t n,
                const char *param, struct fault *f);
/* Returns the tokens that the system's messages at the beginning of a list of chat messages
 * take, at most; 0 where it begins with none. */
int prompt_system_tokens(const struct hcache *h, const struct json *messages);
/* Raises t->keep until so many first tokens are never dropped. */
void prompt_keep(int n_tokens, struct hcache_truncation *t);
void prompt_text_deinit(struct prompt_text *t);
/* *out: an answer as it stands in the text of the next prompt.  The caller frees it. */
void prompt_text_answer(const struct hcache *h, const struct prompt_text *t,
                        const char *answer, size_t n, char **out, size_t *n_out);

/* 0, or -1 with *f.  The caller deinits *out in both cases. */
int prompt_render(const struct hcache *h, const struct chat_source *s,
                  struct prompt_text *out, struct fault *f);

#endif
