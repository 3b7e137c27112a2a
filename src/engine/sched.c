/* sched.c - see sched.h.
 *
 * Invariants, which tests/engine/test_sched.c checks over simulated loads:
 * 1. The rows of a step are at most step_rows, the requests with a place at most max_running.
 * 2. The blocks handed out are at most the free ones plus those that preempted requests give
 *    back.
 * 3. No request is preempted for a request with a worse rank. */
#include "engine/sched.h"

#include <string.h>

#include "base/minmax.h"

struct decision {
    const struct sched_limits *l;
    const struct sched_req *req;
    struct sched_choice *choice;
    const int *order;
    int n;
    int free_blocks, free_places, rows_left;
};

int64_t sched_rank(const struct sched_req *r, int64_t age_ns)
{
    return r->arrival_ns + r->priority * age_ns;
}

uint64_t sched_turn(const struct sched_req *r, int64_t age_ns)
{
    int64_t rank = sched_rank(r, age_ns);
    return rank > 0 ? (uint64_t)rank : 0;
}

static bool is_before(const struct sched_limits *l, const struct sched_req *req, int a,
                      int b)
{
    int64_t x = sched_rank(&req[a], l->age_ns), y = sched_rank(&req[b], l->age_ns);
    return x != y ? x < y : a < b;
}

/* Sorts by rank. Insertion suits the engine's list, which is nearly sorted by arrival already. */
static void sort(const struct sched_limits *l, const struct sched_req *req, int n,
                 int *order)
{
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && is_before(l, req, i, order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* Takes away a request's place and blocks, and the rows that this step had already given it. */
static void give_up(struct decision *d, int i, enum sched_verdict why)
{
    if (d->choice[i].what == SCHED_RUN) {
        d->rows_left += d->choice[i].rows;
        d->free_blocks += d->req[i].blocks_needed;
    }
    d->choice[i] = (struct sched_choice){.what = why};
    if (d->req[i].phase == SCHED_WAITING)
        return;
    d->free_places++;
    d->free_blocks += d->req[i].blocks_freed;
}

static void time_out(struct decision *d)
{
    for (int i = 0; i < d->n; i++) {
        if (d->req[i].deadline_ns != 0 && d->l->now_ns >= d->req[i].deadline_ns)
            give_up(d, i, SCHED_TIME_OUT);
    }
}

static bool has_place(const struct decision *d, int i)
{
    return d->req[i].phase != SCHED_WAITING && d->choice[i].what != SCHED_PREEMPT &&
           d->choice[i].what != SCHED_TIME_OUT;
}

/* Returns the worst-ranked request after order[at] that has a place and may lose it, or -1. A
 * waiting request takes a place only from a worse priority; otherwise requests of equal priority
 * would take each other's places. */
static int victim_of(const struct decision *d, int at)
{
    const struct sched_req *asks = &d->req[d->order[at]];
    for (int k = d->n - 1; k > at; k--) {
        int i = d->order[k];
        if (has_place(d, i) &&
            (asks->phase != SCHED_WAITING || asks->priority < d->req[i].priority))
            return i;
    }
    return -1;
}

/* Preempts until n_blocks blocks are free. Returns false if no more requests can be preempted. */
static bool make_room(struct decision *d, int at, int n_blocks)
{
    while (d->free_blocks < n_blocks) {
        int i = victim_of(d, at);
        if (i < 0)
            return false;
        give_up(d, i, SCHED_PREEMPT);
    }
    return true;
}

/* Gives each decode its row and its block, best rank first. Preempts worse requests for blocks. */
static void run_decodes(struct decision *d)
{
    for (int k = 0; k < d->n && d->rows_left > 0; k++) {
        int i = d->order[k];
        const struct sched_req *r = &d->req[i];
        if (r->phase != SCHED_DECODE || !has_place(d, i) ||
            !make_room(d, k, r->blocks_needed))
            continue;
        d->free_blocks -= r->blocks_needed;
        d->rows_left--;
        d->choice[i] = (struct sched_choice){.what = SCHED_RUN, .rows = 1};
    }
}

/* Returns whether request i (sched_req.after; -1: none) is computing the beginning that it shares
 * with a waiting request, or will do so from this step on. */
static bool is_ahead(const struct decision *d, int i)
{
    return i >= 0 && (d->choice[i].what == SCHED_ADMIT ||
                      (has_place(d, i) && d->req[i].phase != SCHED_DECODE));
}

/* Returns the blocks that a newcomer needs, plus one for each decoding request: if these found no
 * free block, they would preempt the newcomer at once. */
static int wanted_blocks(const struct decision *d, int i)
{
    int n = d->req[i].blocks_needed;
    for (int k = 0; k < d->n; k++)
        n += has_place(d, k) && d->req[k].phase == SCHED_DECODE;
    return n;
}

/* Returns whether a place and enough blocks can be freed, so that no request is preempted for
 * nothing. */
static bool can_fit(const struct decision *d, int at)
{
    int i = d->order[at], blocks = d->free_blocks, places = d->free_places;
    for (int k = d->n - 1; k > at; k--) {
        const struct sched_req *r = &d->req[d->order[k]];
        if (!has_place(d, d->order[k]) || d->req[i].priority >= r->priority)
            continue;
        blocks += r->blocks_freed;
        places++;
    }
    return places > 0 && blocks >= wanted_blocks(d, i);
}

/* Admits in rank order. Stops at the first request that does not fit; otherwise small requests
 * would starve large ones. */
static void admit(struct decision *d)
{
    for (int k = 0; k < d->n; k++) {
        int i = d->order[k], victim = 0;
        const struct sched_req *r = &d->req[i];
        if (r->phase != SCHED_WAITING || d->choice[i].what != SCHED_NOTHING || r->is_held ||
            is_ahead(d, r->after))
            continue;
        if (!can_fit(d, k))
            return;
        while (d->free_places == 0 && (victim = victim_of(d, k)) >= 0)
            give_up(d, victim, SCHED_PREEMPT);
        if (d->free_places == 0 || !make_room(d, k, wanted_blocks(d, i)))
            return;
        d->free_places--;
        d->free_blocks -= r->blocks_needed;
        d->choice[i].what = SCHED_ADMIT;
    }
}

double sched_wait_s(int n_waiting, int n_running, double held_s)
{
    return (n_waiting + 1) * held_s / MAX(n_running, 1);
}

/* Gives the rows that decodes leave to prefills and restores, best rank first. */
static void share_rows(struct decision *d)
{
    bool beside = d->l->rows_beside > 0 && d->rows_left < d->l->step_rows;
    if (beside && d->rows_left > d->l->rows_beside)
        d->rows_left = d->l->rows_beside;
    for (int k = 0; k < d->n && d->rows_left > 0; k++) {
        int i = d->order[k];
        const struct sched_req *r = &d->req[i];
        bool runs = (r->phase == SCHED_RESTORE || r->phase == SCHED_PREFILL) &&
                    has_place(d, i);
        if (!runs && d->choice[i].what != SCHED_ADMIT)
            continue;
        int rows = MIN(r->rows, d->rows_left);
        if (r->is_whole && rows < r->rows)
            return;
        d->rows_left -= rows;
        d->choice[i].rows = rows;
        if (runs)
            d->choice[i].what = SCHED_RUN;
    }
}

void sched_decide(const struct sched_limits *l, const struct sched_req *req, int n,
                  int *order, struct sched_choice *choice)
{
    struct decision d = {.l = l,
                         .req = req,
                         .choice = choice,
                         .order = order,
                         .n = n,
                         .free_blocks = l->free_blocks,
                         .free_places = l->max_running,
                         .rows_left = l->step_rows};
    for (int i = 0; i < n; i++) {
        choice[i] = (struct sched_choice){.what = SCHED_NOTHING};
        d.free_places -= req[i].phase != SCHED_WAITING;
    }
    sort(l, req, n, order);
    time_out(&d);
    run_decodes(&d);
    admit(&d);
    share_rows(&d);
}

/* --- requests with the same beginning --------------------------------------------------------- */

/* Returns the key of the chunk before chunk n. */
static const struct sha256 *parent_of(const struct lead_request *r, int n)
{
    return n == 0 ? r->root : &r->keys[n - 1];
}

bool lead_is_ahead(const struct lead_request *x, const struct lead_request *s, int n_known)
{
    int from = n_known * LEAD_CHUNK_TOKENS, to = from + LEAD_CHUNK_TOKENS;
    if (x->n_keys < n_known)
        return false;
    if (to < s->n_tokens)
        return x->n_keys > n_known && x->n_done < to &&
               sha256_equal(&x->keys[n_known], &s->keys[n_known]);
    to = s->n_tokens - 1;
    return s->may_copy && to > from && x->n_tokens >= to && x->n_done < to &&
           sha256_equal(parent_of(x, n_known), parent_of(s, n_known)) &&
           memcmp(x->tokens + from, s->tokens + from,
                  (size_t)(to - from) * sizeof *x->tokens) == 0;
}

int lead_find(const struct lead_request *request, int n, int me, int n_known)
{
    for (int i = 0; request[me].may_reuse && i < n; i++) {
        const struct lead_request *x = &request[i];
        bool comes = x->phase == SCHED_RESTORE || x->phase == SCHED_PREFILL ||
                     (x->phase == SCHED_WAITING && i < me);
        if (comes && lead_is_ahead(x, &request[me], n_known))
            return i;
    }
    return -1;
}
