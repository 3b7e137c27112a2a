/* view.c - see view.h. */
#include "engine/view.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

void view_init(struct view *v, const struct truncation *t)
{
    *v = (struct view){.truncation = *t};
}

void view_deinit(struct view *v)
{
    free(v->own_tokens);
    free(v->own_keys);
    *v = (struct view){0};
}

int view_room(const struct view *v, int n_max)
{
    int64_t end = truncation_end(&v->truncation, v->cut);
    return (int)MIN(n_max, end) - v->cut;
}

/* Fills the lists of a view with cut > 0. It has lists of its own, since the tokens that it sees do
 * not lie side by side. */
static void fill_own(struct view *v, const struct chain *c, const int32_t *tokens)
{
    size_t context = (size_t)v->truncation.context;
    if (v->own_tokens == NULL) {
        v->own_tokens = xcalloc(context, sizeof *v->own_tokens);
        v->own_keys = xcalloc(context / STORE_CHUNK_TOKENS, sizeof *v->own_keys);
    }
    for (int i = 0; i < v->n_tokens; i++)
        v->own_tokens[i] = tokens[view_token(v, i)];
    for (int i = 0; i < v->n_keys; i++)
        v->own_keys[i] = c->keys[view_chunk(v, i)];
    v->tokens = v->own_tokens;
    v->keys = v->own_keys;
}

void view_set(struct view *v, const struct chain *c, const int32_t *tokens, int n_tokens,
              int cut)
{
    v->cut = cut;
    v->root = cut == 0 ? c->root : chain_view_root(c, cut);
    v->tokens = tokens;
    v->keys = c->keys;
    v->n_tokens = view_room(v, n_tokens);
    v->n_keys = v->n_tokens / STORE_CHUNK_TOKENS;
    CHECK(c->n_chunks == n_tokens / STORE_CHUNK_TOKENS && v->n_tokens > view_moved(v));
    if (cut > 0)
        fill_own(v, c, tokens);
}

void view_add(struct view *v, int32_t token)
{
    if (v->truncation.context > 0 && v->n_tokens == v->truncation.context)
        return;
    if (v->cut > 0)
        v->own_tokens[v->n_tokens] = token;
    v->n_tokens++;
}

/* --- what a staircase costs ------------------------------------------------------------------- */

struct staircase staircase_of(const struct truncation *t, int64_t from, int64_t n)
{
    CHECK(from >= 0 && from <= n);
    int64_t cut = truncation_cut(t, from), end = truncation_end(t, cut);
    struct staircase c = {.past = truncation_position(t, cut, from),
                          .n_first = MIN(n, end) - from};
    if (n > end) {
        c.n_whole = (n - end) / t->step;
        c.n_last = (n - end) % t->step;
    }
    return c;
}

int64_t staircase_moves(const struct staircase *c)
{
    return c->n_whole + (c->n_last > 0);
}

double staircase_price_s(const struct platform *p, const struct truncation *t, int64_t from,
                         int64_t n)
{
    struct staircase c = staircase_of(t, from, n);
    int64_t moved = t->context - t->step;
    double s = c.n_first > 0 ? platform_prefill_s(p, c.past, c.n_first) : 0;
    s += (double)staircase_moves(&c) * platform_kv_s(p, moved);
    if (c.n_whole > 0)
        s += (double)c.n_whole * platform_prefill_s(p, moved, t->step);
    if (c.n_last > 0)
        s += platform_prefill_s(p, moved, c.n_last);
    return p->n_layers * s;
}

bool staircase_pays(double replay_s, double restore_s)
{
    return replay_s > 0 && replay_s < restore_s;
}

double staircase_share(const struct truncation *t, int64_t n)
{
    int64_t cut = n > 0 ? truncation_cut(t, n - 1) : 0;
    return cut == 0 ? 1 : (double)n / (double)(n - cut);
}
