/* prompts.h - the prompts of one request, in tokens. */
#ifndef API_PROMPTS_H
#define API_PROMPTS_H

#include "api/client.h"
#include "api/request.h"
#include "api/prompt.h"

enum { REQUEST_MAX_PROMPTS = 16 }; /* prompts of one text completion */

struct prompts {
    struct prompt_ids p[REQUEST_MAX_PROMPTS];
    int n;
    struct prompt_text text; /* text of a chat; empty for a text completion */
    char what[200];          /* a miss reason that tokenizing found, or "" */
};

/* Reads the prompts of p, a chat or a text completion. `body` is the tree from which p was read:
 * its messages are freed as soon as the prompt's text is made. With NULL they stay. Returns 0, or
 * -1 with *f. The caller deinits *out in both cases. */
int prompts_read(const struct client *c, struct gen_params *p, struct json *body,
                 struct prompts *out, struct fault *f);
void prompts_deinit(struct prompts *ps);

/* Tokenizes the text of a chat; earlier answers have the tokens that were generated. Sets *out,
 * whose ids the caller frees, what[200] to a miss reason or "", and *date to the place of the date
 * in the prompt. Returns 0, or -1 with *f. */
int prompts_encode(const struct client *c, const struct prompt_text *text,
                   struct prompt_ids *out, char *what, struct prompt_date *date,
                   struct fault *f);

/* Returns -1 with the reason in *f: a server on h does not truncate the contexts of requests. */
int prompts_refuse_truncation(const struct hcache *h, struct fault *f);
/* Returns 0, or -1 with *f if the request asks for truncation and `how` has no ratio. */
int prompts_check_truncation(const struct gen_params *p, const struct hcache *h,
                             const struct hcache_truncation *how, struct fault *f);

#endif
