/* replay.c - see replay.h. */
#include "sim/replay.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

struct replay {
    const struct load *l;
    const struct replay_opts *o;
    struct replay_result *out;
    struct cache cache;
    struct placement_window window;
    /* belady: for each reference, in their order, the next request that refers to the same block;
     * at_next points to the entry of the present reference. */
    uint32_t *next, *at_next;
    bool *was_seen; /* [n_blocks]; NULL: every block is admitted at once */
};

/* LLaMA-13B on two A100s, from AttentionStore's figures for 65B on four (section 2.3): 0.07 ms a
 * token, plus attention to each token before it: 2 * 40 layers * 2 * 5,120 FLOP on 368 TFLOP/s. */
#define TOKEN_S     7.06e-5
#define ATTENTION_S 2.2e-9

double replay_block_s(uint32_t block_tokens, uint32_t at)
{
    double before = ((double)at + 0.5) * block_tokens;
    return block_tokens * (TOKEN_S + ATTENTION_S * before);
}

/* --- the future ------------------------------------------------------------------------------- */

/* Finds each block's next use by walking backwards. */
static void find_next(struct replay *p)
{
    const struct load *l = p->l;
    uint32_t *seen = xmalloc(l->n_blocks * sizeof *seen);
    uint64_t at = l->n_references;
    p->next = xmalloc(l->n_references * sizeof *p->next);
    for (uint32_t b = 0; b < l->n_blocks; b++)
        seen[b] = UINT32_MAX;
    for (uint32_t i = l->n_requests; i-- > 0;) {
        const struct load_request *r = &l->request[i];
        for (uint32_t k = r->n_runs; k-- > 0;) {
            const struct load_run *run = &l->run[r->run + k];
            for (uint32_t b = run->first + run->n; b-- > run->first;) {
                p->next[--at] = seen[b];
                seen[b] = i;
            }
        }
    }
    CHECK(at == 0);
    p->at_next = p->next;
    free(seen);
}

static uint64_t take_next(struct replay *p)
{
    if (p->next == NULL)
        return UINT64_MAX;
    uint32_t next = *p->at_next++;
    return next != UINT32_MAX ? next : UINT64_MAX;
}

/* --- the window ------------------------------------------------------------------------------- */

static void expect(struct replay *p, uint32_t request, bool joins)
{
    const struct load_request *r = &p->l->request[request];
    for (uint32_t k = 0; k < r->n_runs; k++) {
        const struct load_run *run = &p->l->run[r->run + k];
        for (uint32_t b = run->first; b < run->first + run->n; b++) {
            uint64_t id = 1 + (uint64_t)b;
            bool changed = joins ? placement_window_add(&p->window, id, request)
                                 : placement_window_remove(&p->window, id, request);
            CHECK(changed);
            cache_review(&p->cache, b);
        }
    }
}

/* Returns the most references that any window + 1 requests in a row have. */
static uint32_t most_waits(const struct load *l, uint32_t window)
{
    uint64_t sum = 0, most = 0;
    for (uint32_t i = 0; i < l->n_requests; i++) {
        sum += l->request[i].n_blocks;
        if (i > window)
            sum -= l->request[i - window - 1].n_blocks;
        most = MAX(sum, most);
    }
    return (uint32_t)most;
}

static void window_make(struct replay *p)
{
    uint32_t n_waits = most_waits(p->l, p->o->window) + 1, n_places = 2;
    while (n_places < 2 * n_waits)
        n_places *= 2;
    placement_window_init(&p->window, xcalloc(n_places, sizeof p->window.place[0]),
                          n_places, xcalloc(n_waits, sizeof p->window.wait[0]), n_waits);
}

/* --- requests --------------------------------------------------------------------------------- */

/* A request's walk down its path. */
struct walk {
    struct placement_use use;
    /* n_done: number of blocks used or stored so far; last: the last one of them. */
    uint32_t n_done, last;
    bool is_missing; /* a block was missing, and so are all after it */
    bool is_full;    /* no block may be evicted, so the rest is not stored */
    bool is_judged;
};

/* Returns whether a missing block may be stored. */
static bool admit(struct replay *p, uint32_t block)
{
    if (p->was_seen == NULL)
        return true;
    bool was_seen = p->was_seen[block];
    p->was_seen[block] = true;
    return was_seen;
}

static void step(struct replay *p, struct walk *w, uint32_t block, uint8_t class)
{
    w->use.next = take_next(p);
    w->use.class = class;
    w->is_missing = w->is_missing || !cache_has(&p->cache, block);
    /* If a block is not admitted, its continuations could not be found, so they are not stored
     * either. */
    if (w->is_missing && !admit(p, block))
        w->is_full = true;
    if (!w->is_missing) {
        cache_touch(&p->cache, block, &w->use);
        if (w->is_judged) {
            p->out->n_hits++;
            p->out->seconds_saved += replay_block_s(p->l->block_tokens, w->n_done);
        }
    } else if (!w->is_full) {
        uint32_t parent = w->last;
        w->is_full = !cache_add(&p->cache, block, parent, &w->use);
        if (w->is_full)
            return;
        if (parent != CACHE_NONE)
            /* The parent now has a child in the cache, so it cannot be evicted. */
            cache_unpin(&p->cache, parent);
        w->last = block;
        w->n_done++;
        return;
    } else {
        return;
    }
    w->last = block;
    w->n_done++;
}

/* Pins the last present block before any block is stored. */
static void pin_found(struct replay *p, const struct load_request *r)
{
    uint32_t last = CACHE_NONE;
    for (uint32_t k = 0; k < r->n_runs; k++) {
        const struct load_run *run = &p->l->run[r->run + k];
        for (uint32_t b = run->first; b < run->first + run->n; b++) {
            if (!cache_has(&p->cache, b))
                goto found;
            last = b;
        }
    }
found:
    if (last != CACHE_NONE)
        cache_pin(&p->cache, last);
}

static void serve(struct replay *p, const struct load_request *r)
{
    struct walk w = {.last = CACHE_NONE,
                     .use.time = (uint32_t)r->time_s,
                     .use.lot = (uint64_t)(r - p->l->request),
                     .is_judged = r->time_s >= p->o->judge_from_s};
    uint8_t full = placement_class(r->turn, r->is_tool_pending, false);
    uint8_t partial = placement_class(r->turn, r->is_tool_pending, r->is_partial);
    uint32_t left = r->n_blocks;
    pin_found(p, r);
    for (uint32_t k = 0; k < r->n_runs; k++) {
        const struct load_run *run = &p->l->run[r->run + k];
        for (uint32_t b = run->first; b < run->first + run->n; b++)
            step(p, &w, b, --left == 0 ? partial : full);
    }
    if (w.last != CACHE_NONE)
        cache_unpin(&p->cache, w.last);
    if (w.is_judged)
        p->out->n_references += r->n_blocks;
    p->out->n_seen += r->n_blocks;
}

void replay_run(const struct load *l, const struct replay_opts *o,
                struct replay_result *out)
{
    struct replay p = {.l = l, .o = o, .out = out};
    bool looks = o->window > 0 && placement_looks_ahead(o->policy);
    *out = (struct replay_result){0};
    if (looks)
        window_make(&p);
    struct cache_opts co = {.n_blocks = l->n_blocks,
                            .n_tiers = 1,
                            .max_blocks = {o->max_blocks},
                            .policy = o->policy,
                            .refuses = true,
                            .window = looks ? &p.window : NULL};
    cache_init(&p.cache, &co);
    if (o->admits_second_use)
        p.was_seen = xcalloc(l->n_blocks, sizeof *p.was_seen);
    if (o->policy == PLACEMENT_BELADY)
        find_next(&p);
    for (uint32_t i = 0; looks && i < o->window && i < l->n_requests; i++)
        expect(&p, i, true);
    for (uint32_t i = 0; i < l->n_requests; i++) {
        if (looks && i + o->window < l->n_requests)
            expect(&p, i + o->window, true);
        if (looks)
            expect(&p, i, false); /* the request is served now and waits no longer */
        serve(&p, &l->request[i]);
    }
    out->n_written = p.cache.n_added;
    out->n_evicted = p.cache.n_evicted;
    cache_deinit(&p.cache);
    free(p.next);
    free(p.was_seen);
    free(p.window.place);
    free(p.window.wait);
}
