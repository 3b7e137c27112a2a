/* shaping.c - see shaping.h. */
#include "engine/shaping.h"

#include <string.h>

bool shaping_stops(const struct hcache_shaping *g, int32_t id)
{
    for (int i = 0; g != NULL && i < g->n_stop_ids; i++) {
        if (g->stop_ids[i] == id)
            return true;
    }
    return false;
}

static bool penalises_repetition(const struct hcache_shaping *g)
{
    return g->repetition_penalty != 0 && g->repetition_penalty != 1;
}

bool shaping_changes(const struct hcache_shaping *g)
{
    return g != NULL && (g->frequency_penalty != 0 || g->presence_penalty != 0 ||
                         penalises_repetition(g) || g->n_bias > 0 || g->min_tokens > 0);
}

/* Applies the repetition penalty. counts[id] is 1 for each id that occurs. Each id is visited once,
 * and its count is then reset to 0. */
static void repetition(const struct hcache_shaping *g, const struct shaping_place *at,
                       int32_t *counts, float *logits)
{
    for (int i = 0; i < at->n_tokens; i++)
        counts[at->tokens[i]] = 1;
    for (int i = 0; i < at->n_tokens; i++) {
        float *l = &logits[at->tokens[i]];
        if (counts[at->tokens[i]] == 0)
            continue;
        counts[at->tokens[i]] = 0;
        *l = *l > 0 ? *l / g->repetition_penalty : *l * g->repetition_penalty;
    }
}

static void frequency(const struct hcache_shaping *g, const struct shaping_place *at,
                      int32_t *counts, float *logits)
{
    for (int i = at->n_prompt; i < at->n_tokens; i++)
        counts[at->tokens[i]]++;
    for (int i = at->n_prompt; i < at->n_tokens; i++) {
        int32_t *n = &counts[at->tokens[i]];
        if (*n == 0)
            continue;
        logits[at->tokens[i]] -= (float)*n * g->frequency_penalty + g->presence_penalty;
        *n = 0;
    }
}

void shaping_apply(const struct hcache_shaping *g, const struct shaping_place *at,
                   int n_vocab, int32_t *counts, float *logits)
{
    if (penalises_repetition(g))
        repetition(g, at, counts, logits);
    if (g->frequency_penalty != 0 || g->presence_penalty != 0)
        frequency(g, at, counts, logits);
    for (int i = 0; i < g->n_bias; i++)
        logits[g->bias[i].id] += g->bias[i].bias;
    if (at->n_tokens - at->n_prompt >= g->min_tokens)
        return;
    for (int i = 0; i < at->n_end_ids; i++)
        if (at->end_ids[i] >= 0 && at->end_ids[i] < n_vocab)
            logits[at->end_ids[i]] = SHAPING_NEVER;
    for (int i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] < n_vocab)
            logits[g->stop_ids[i]] = SHAPING_NEVER;
}

/* --- thoughts ------------------------------------------------------------------------- */

/* A text that is looked for in tokens, which may cut it anywhere. */
struct search {
    const char *text;
    size_t n, found; /* its bytes, and those that match so far */
    bool at_begin;   /* only blanks may precede it */
};

enum { MAX_TAG = 64 };

/* Adds a token's bytes. Returns 1 when the text has been found, -1 when it cannot be any more. */
static int search_on(struct search *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && s->found < s->n; i++) {
        /* Back to the longest beginning of the text that ends here. */
        char window[MAX_TAG];
        size_t k = s->found + 1;
        memcpy(window, s->text, s->found);
        window[s->found] = bytes[i];
        while (k > 0 && memcmp(window + s->found + 1 - k, s->text, k) != 0)
            k--;
        bool blank = strchr(" \n", bytes[i]) != NULL && s->found == 0;
        if (s->at_begin && k != s->found + 1 && !blank)
            return -1;
        s->found = k;
    }
    return s->found == s->n;
}

/* Adds an answer's token. */
static int search_token(struct search *s, const struct shaping_thought *t, int32_t id)
{
    size_t n = 0;
    const char *bytes = t->bytes(t->arg, id, &n);
    return search_on(s, bytes, n);
}

static void choose(int32_t id, int n_vocab, float *logits)
{
    for (int i = 0; i < n_vocab; i++)
        logits[i] = i == id ? 0 : SHAPING_NEVER;
}

/* Excludes tokens that continue or complete t->open, the name of the channel of thoughts. Its
 * first `found` bytes are there. */
static void forbid_name(const struct shaping_thought *t, size_t found, int n_vocab,
                        float *logits)
{
    size_t left = strlen(t->open) - found;
    for (int id = 0; id < n_vocab; id++) {
        size_t n = 0;
        const char *bytes = t->bytes(t->arg, id, &n);
        if (n > 0 && memcmp(bytes, t->open + found, n < left ? n : left) == 0)
            logits[id] = SHAPING_NEVER;
    }
}

/* shaping_end_thought for an answer of messages. */
static void end_channel(const struct shaping_thought *t, const int32_t *answer, int n,
                        int n_vocab, float *logits)
{
    struct search name = {.text = t->open, .n = strlen(t->open), .at_begin = true};
    bool thinks = t->begun;
    int n_thought = 0, bound = -1; /* where the bound was reached */
    int state = -1;                /* of the search for a name; -1: no name of thoughts */
    for (int i = 0; i <= n; i++) {
        if (thinks && n_thought == t->max_tokens && bound < 0)
            bound = i;
        if (i == n)
            break;
        if (answer[i] == t->channel || answer[i] == t->end[0]) {
            state = answer[i] == t->channel ? 0 : -1;
            name.found = 0;
            thinks = false;
        } else if (answer[i] == t->message) {
            thinks = state == 1;
            state = -1;
        } else if (state >= 0) {
            size_t n_bytes = 0;
            (void)t->bytes(t->arg, answer[i], &n_bytes);
            bool more = name.found + n_bytes > name.n; /* as in "analysis to=" */
            state = more ? -1 : search_token(&name, t, answer[i]);
        } else {
            n_thought += thinks;
        }
    }
    if (bound >= 0 && n < bound + t->n_end)
        choose(t->end[n - bound], n_vocab, logits);
    else if (n_thought >= t->max_tokens && state == 0)
        forbid_name(t, name.found, n_vocab, logits);
}

void shaping_end_thought(const struct shaping_thought *t, const struct shaping_place *at,
                         int n_vocab, float *logits)
{
    const int32_t *answer = at->tokens + at->n_prompt;
    int n = at->n_tokens - at->n_prompt, begin = 0, found = t->open == NULL;
    struct search open = {.text = t->open, .at_begin = true}, close = {.text = t->close};
    if (t->n_end == 0 || n < t->max_tokens)
        return;
    if (t->message != 0) {
        end_channel(t, answer, n, n_vocab, logits);
        return;
    }
    open.n = t->open != NULL ? strlen(t->open) : 0;
    close.n = strlen(t->close);
    if (open.n >= MAX_TAG || close.n >= MAX_TAG)
        return;
    for (; found == 0 && begin < n; begin++)
        found = search_token(&open, t, answer[begin]);
    int from = begin + t->max_tokens;
    if (found != 1 || n < from || n >= from + t->n_end)
        return;
    for (int i = begin; i < from; i++)
        if (search_token(&close, t, answer[i]) == 1)
            return; /* the model has ended it */
    choose(t->end[n - from], n_vocab, logits);
}
