/* prompt.h - renders a conversation as the model's prompt.
 *
 * The model's own chat template makes the prompt. A model without a template is refused: a format
 * that it was not trained on gives bad answers that would go unnoticed. With `plain` a model
 * without a template is allowed, for models that were never trained on chats. The prompt is then
 * exactly this text:
 *
 *     ROLE: CONTENT\n  for every message, then  "assistant:"
 *
 * (An answer follows its colon as it was generated, which usually begins with a space.) */
#ifndef API_PROMPT_H
#define API_PROMPT_H

#include "hcache.h"
#include "api/fault.h"
#include "base/textbuf.h"

/* A prompt as tokens. */
struct prompt_ids {
    int32_t *ids; /* from malloc */
    int n;
};

/* Bytes of a moment: "2026-11-28 22:05:00", and its end. */
enum { PROMPT_DATE_BYTES = 20 };

/* Writes the local time of that second since 1970. */
void prompt_moment(int64_t wall_s, char out[PROMPT_DATE_BYTES]);

struct chat_source {
    const struct json *messages;       /* list of messages, as in OpenAI's chat API */
    const struct json *tools, *kwargs; /* NULL: the request has none */
    /* Switches of the template. effort: reasoning_effort, or NULL. thinking: enable_thinking as 1
     * or 0, or -1: not set. A variable in kwargs overrides both. */
    const char *effort;
    int thinking;
    bool plain;
    bool parse_special; /* special tokens spelled in messages count as special tokens */
    bool no_answer;     /* the prompt does not end with the beginning of an answer */
    bool truncates;     /* the history may be longer than the context */
    const char *date;   /* moment that the template sees (dates.h); NULL: the present one */
    const char *now;    /* moment that counts as the present one; NULL: the clock's */
    size_t
        marks[HCACHE_MARKS]; /* [n_marks] numbers of messages that something ends before */
    int n_marks;
};

/* The date in a prompt. */
struct prompt_date {
    char moment[PROMPT_DATE_BYTES]; /* "": the template asked for no date */
    char shown[HCACHE_SHOWN_DATE];  /* the date's text in the prompt */
    int from, to; /* the date is in the tokens [from, to); 0, 0: the place is unknown */
};

/* A rendered prompt. */
struct prompt_text {
    char *text; /* from malloc; may contain zero bytes, and guards (hcache_guard) */
    size_t n;
    unsigned flags; /* flags with which hcache_encode encodes this text */
    struct prompt_date date;
    char unshown
        [HCACHE_UNSHOWN]; /* members of messages that it does not show, as in hcache_chat */
    size_t marks[HCACHE_MARKS]; /* bytes before those messages; guards do not count */
};
/* Reads a message's content: a text, null, or a list of parts {"type": "text", "text": "..."}, whose
 * texts are joined. Returns 0, or -1 with *f. */
int prompt_content(const struct json *v, struct textbuf *out, struct fault *f);
/* Checks a prompt by the size of its text, before tokenizing it: whether it may fit the context, or
 * hcache_opts.max_history if it is truncated. Returns 0, or -1 with *f, which names the field
 * `param`. */
int prompt_fits(const struct hcache *h, bool truncates, const char *text, size_t n,
                const char *param, struct fault *f);
/* Returns an upper bound of the tokens of the system's messages at the beginning of a list of
 * chat messages; 0 if there are none. */
int prompt_system_tokens(const struct hcache *h, const struct json *messages);
/* Raises t->keep, so that truncation never drops the first n_tokens tokens. */
void prompt_keep(int n_tokens, struct hcache_truncation *t);
void prompt_text_deinit(struct prompt_text *t);
/* Makes *out: the answer as it appears in the text of the next prompt. The caller frees it. */
void prompt_text_answer(const struct hcache *h, const struct prompt_text *t,
                        const char *answer, size_t n, char **out, size_t *n_out);

/* Puts the beginning of an answer behind the prompt. */
void prompt_text_append(const struct hcache *h, struct prompt_text *t, const char *answer,
                        size_t n);

/* Renders the prompt. Returns 0, or -1 with *f. The caller deinits *out in both cases. */
int prompt_render(const struct hcache *h, const struct chat_source *s,
                  struct prompt_text *out, struct fault *f);

#endif
