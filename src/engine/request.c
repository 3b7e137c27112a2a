/* request.c - see request.h. */
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/shaping.h"

static char *copy_text(const char *text)
{
    return text != NULL ? xstrdup(text) : NULL;
}

static void copy_shaping(struct request *r, const struct hcache_shaping *g)
{
    r->shaping = *g;
    r->shaping.bias = (void *)xmemdup(g->bias, (size_t)g->n_bias * sizeof *g->bias);
    r->shaping.stop_ids = (void *)xmemdup(g->stop_ids,
                                          (size_t)g->n_stop_ids * sizeof *g->stop_ids);
    r->shaping.prompt_end = NULL; /* r->thought says what it means */
    r->ask.shaping = &r->shaping;
}

struct request *request_create(const struct hcache_request *ask, int max_answer)
{
    struct request *r = xcalloc(1, sizeof *r);
    struct hcache_request *a = &r->ask;
    r->n_shares = 1;
    *a = *ask;
    a->form = NULL; /* r->form holds a share of the form */
    a->salt = copy_text(ask->salt);
    a->plan = copy_text(ask->plan);
    a->save = NULL;       /* r->save says what it means */
    a->prediction = NULL; /* r->prediction says what it means */
    a->n_top = ask->logprobs || ask->reads == HCACHE_READS_LOGPROBS ? ask->n_top : 0;
    a->stop = NULL;
    if (ask->shaping != NULL)
        copy_shaping(r, ask->shaping);
    char **stop = xcalloc((size_t)ask->n_stop + 1, sizeof *stop);
    a->stop = (const char *const *)stop;
    for (int i = 0; i < ask->n_stop; i++) {
        stop[i] = xstrdup(ask->stop[i]);
        r->stop_bytes[i] = strlen(stop[i]);
    }
    r->tokens = mem_try_calloc((size_t)ask->n_prompt + (size_t)max_answer + 1,
                               sizeof *r->tokens);
    if (r->tokens == NULL) {
        request_release(r);
        return NULL;
    }
    memcpy(r->tokens, ask->prompt, (size_t)ask->n_prompt * sizeof *r->tokens);
    a->prompt = r->tokens;
    return r;
}

void request_forbid(struct request *r, const int32_t *ids, int n, int n_vocab)
{
    static const struct hcache_shaping none;
    if (n == 0)
        return;
    if (r->ask.shaping == NULL)
        copy_shaping(r, &none);
    struct hcache_bias *bias = xrealloc((void *)r->shaping.bias,
                                        (size_t)(r->shaping.n_bias + n) * sizeof *bias);
    for (int i = 0; i < n; i++)
        if (ids[i] < n_vocab)
            bias[r->shaping.n_bias++] = (struct hcache_bias){ids[i], SHAPING_NEVER};
    r->shaping.bias = bias;
}

struct request *request_share(struct request *r)
{
    r->n_shares++;
    return r;
}

void request_release(struct request *r)
{
    if (r == NULL || --r->n_shares > 0)
        return;
    for (int i = 0; i < r->ask.n_stop; i++)
        free((void *)r->ask.stop[i]);
    free((void *)r->ask.stop);
    free((void *)r->ask.salt);
    free((void *)r->ask.plan);
    free((void *)r->thought.end);
    free((void *)r->shaping.bias);
    free((void *)r->shaping.stop_ids);
    free(r->prediction);
    free(r->tokens);
    free(r);
}
