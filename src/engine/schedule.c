/* schedule.c - see schedule.h.
 *
 * A sequence that gets a place takes the blocks that the KV cache knows for its tokens, and new
 * blocks for the rest. A sequence that loses its place gives its blocks back; they stay known
 * until they are evicted. Its full chunks are saved or on their way. It is not admitted again
 * before they have arrived. */
#include "engine/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/sched.h"
#include "engine/stairs.h"
#include "restore/dram_tier.h"
#include "save/snapshots.h"

/* --- what waiting sequences need is announced ------------------------------------------------- */

/* Returns the turn of a sequence. The scheduler admits in this order. */
static uint64_t turn_of(const struct seq *s, int64_t age_ns)
{
    const struct sched_req r = {.arrival_ns = s->t_arrival,
                                .priority = s->req->ask.priority};
    return sched_turn(&r, age_ns);
}

/* Returns the view that s was, or will be, announced with. Only its tokens are needed: the
 * chunks and blocks that a truncated context has dropped are not announced. */
static struct view view_of(const struct seq *s)
{
    struct view v;
    view_init(&v, &s->view.truncation);
    view_set(&v, &s->chain, s->tokens, s->n_tokens, s->upcoming.cut);
    return v;
}

static void tell_pool(struct seq *s, const struct view *v)
{
    if (!seq_may_reuse(s))
        return;
    kv_pool_expect(s->shared->pool, &v->root, v->tokens, v->n_tokens, s->upcoming.turn);
    s->upcoming.is_pool_told = true;
}

/* Reports the present prices, which change because restores correct the platform. */
static void tell_prices(struct seq_shared *sh)
{
    struct placement_price price;
    if (sh->platform == NULL)
        return;
    platform_price(sh->platform, &price);
    kv_pool_set_price(sh->pool, &price);
    if (sh->store != NULL)
        store_set_price(sh->store, &price);
}

/* Returns whether a fetch may gain time. Before the disk's speed is known, every fetch may. */
static bool may_gain(const struct seq *s, const struct view *v, int n_held, int n_stored)
{
    const struct platform *p = s->shared->platform;
    int n_tokens = n_stored * STORE_CHUNK_TOKENS;
    double price_s = store_fetch_price_s(s->shared->store, v->keys + n_held,
                                         n_stored - n_held);
    return p->n_tiers == 0 || dram_tier_gains(p, n_tokens, v->n_tokens - n_tokens, price_s);
}

/* Asks for the chunks that the KV pool does not hold. The last token is computed in any case. */
static void tell_fetcher(struct seq *s, const struct view *v)
{
    int n = (v->n_tokens - 1) / STORE_CHUNK_TOKENS, n_unused = 0, n_held = 0;
    if (s->shared->fetcher == NULL || seq_reads_all(s))
        return;
    n = store_count(s->shared->store, v->keys, n);
    if (seq_may_reuse(s))
        n_held = kv_pool_find(s->shared->pool, &v->root, v->tokens, n * KV_BLOCK_TOKENS,
                              seq_is_saved(s), &n_unused);
    if (n_held >= n || !may_gain(s, v, n_held, n))
        return;
    restore_pipeline_want(s->shared->fetcher, s, v->keys + n_held, n - n_held,
                          s->upcoming.turn);
    s->upcoming.is_fetched_for = true;
}

void upcoming_fetch(struct seq_list l)
{
    for (int i = 0; i < l.n; i++) {
        struct seq *s = l.seqs[i];
        if (s->phase != PHASE_WAIT || !s->upcoming.is_told || s->upcoming.is_fetch_decided)
            continue;
        struct view v = view_of(s);
        tell_fetcher(s, &v);
        view_deinit(&v);
        s->upcoming.is_fetch_decided = true;
    }
}

void upcoming_fetch_no_more(struct seq *s)
{
    if (s->upcoming.is_fetched_for)
        restore_pipeline_want_end(s->shared->fetcher, s);
    s->upcoming.is_fetched_for = false;
}

static bool is_all_told(const struct seq *s)
{
    return s->upcoming.is_told &&
           (s->shared->store == NULL || s->upcoming.n_chunks == s->upcoming.n_wanted);
}

/* Announces a sequence. Returns false if the store has no room for all chunks that the sequence
 * needs. */
static bool tell(struct seq *s, int64_t age_ns)
{
    struct seq_upcoming *u = &s->upcoming;
    int cut = stairs_next_cut(s);
    bool is_new = !u->is_told || u->cut != cut;
    if (is_new) {
        upcoming_end(s);
        *u = (struct seq_upcoming){.is_told = true, .turn = turn_of(s, age_ns), .cut = cut};
    } else if (is_all_told(s)) {
        return true;
    }
    struct view v = view_of(s);
    u->n_wanted = v.n_keys;
    if (is_new) {
        tell_prices(s->shared);
        tell_pool(s, &v);
    }
    if (s->shared->store != NULL)
        u->n_chunks += store_expect_use(s->shared->store, v.keys + u->n_chunks,
                                        v.n_keys - u->n_chunks, u->turn);
    view_deinit(&v);
    return is_all_told(s);
}

/* Changes that the store cannot take now are kept for the next step. Until then no more changes
 * are taken from the pool. */
void upcoming_tell_held(struct seq_shared *sh)
{
    enum { AT_ONCE = sizeof sh->held / sizeof sh->held[0] };
    struct kv_change c[AT_ONCE];
    if (!sh->tells_held)
        return;
    if (sh->n_held == 0) {
        sh->n_held = kv_pool_changes(sh->pool, c, AT_ONCE);
        for (int i = 0; i < sh->n_held; i++)
            sh->held[i] = (struct store_held){c[i].name, c[i].is_held};
    }
    if (sh->n_held > 0 && store_tell_held(sh->store, sh->held, sh->n_held))
        sh->n_held = 0;
}

void upcoming_tell(struct seq_list l, int64_t age_ns)
{
    for (int i = 0; i < l.n; i++)
        if (l.seqs[i]->phase == PHASE_WAIT && !tell(l.seqs[i], age_ns))
            return;
}

void upcoming_end(struct seq *s)
{
    struct seq_upcoming *u = &s->upcoming;
    upcoming_fetch_no_more(s);
    if (u->is_pool_told || u->n_chunks > 0) {
        struct view v = view_of(s);
        if (u->is_pool_told)
            kv_pool_expect_no_more(s->shared->pool, &v.root, v.tokens, v.n_tokens, u->turn);
        if (u->n_chunks > 0)
            store_expect_use_no_more(s->shared->store, v.keys, u->n_chunks, u->turn);
        view_deinit(&v);
        /* Copies in DRAM for this sequence may now be dropped for requests behind it. */
        if (s->shared->fetcher != NULL)
            restore_pipeline_want_end(s->shared->fetcher, s);
    }
    *u = (struct seq_upcoming){0};
}

_Static_assert((int)LEAD_CHUNK_TOKENS == (int)KV_BLOCK_TOKENS, "a chunk is a block");

/* --- the list --------------------------------------------------------------------------------- */

void schedule_init(struct schedule *c, const struct schedule_opts *o, struct seq_shared *sh,
                   struct restore_phase *restores)
{
    *c = (struct schedule){.o = *o, .shared = sh, .restores = restores};
}

void schedule_deinit(struct schedule *c)
{
    CHECK(c->n_seqs == 0);
    free(c->seqs);
    free(c->view);
    free(c->prompt);
    free(c->choice);
    free(c->order);
}

void schedule_add(struct schedule *c, struct seq *s)
{
    if (c->n_seqs == c->cap_seqs) {
        c->cap_seqs = 2 * c->cap_seqs + 8;
        size_t n = (size_t)c->cap_seqs;
        c->seqs = xrealloc(c->seqs, n * sizeof *c->seqs);
        c->view = xrealloc(c->view, n * sizeof *c->view);
        c->prompt = xrealloc(c->prompt, n * sizeof *c->prompt);
        c->choice = xrealloc(c->choice, n * sizeof *c->choice);
        c->order = xrealloc(c->order, n * sizeof *c->order);
    }
    c->seqs[c->n_seqs++] = s;
}

void schedule_remove(struct schedule *c, struct seq *s)
{
    int i = 0;
    while (i < c->n_seqs && c->seqs[i] != s)
        i++;
    CHECK(i < c->n_seqs);
    memmove(&c->seqs[i], &c->seqs[i + 1], (size_t)(--c->n_seqs - i) * sizeof(struct seq *));
}

struct seq_list schedule_list(const struct schedule *c)
{
    return (struct seq_list){c->seqs, c->n_seqs};
}

/* --- the scheduler's view --------------------------------------------------------------------- */

static const enum sched_phase phases[] = {[PHASE_WAIT] = SCHED_WAITING,
                                          [PHASE_RESTORE] = SCHED_RESTORE,
                                          [PHASE_PREFILL] = SCHED_PREFILL,
                                          [PHASE_DECODE] = SCHED_DECODE};

/* Describes the prompt. A saved sequence copies no part of a block, because its chunks are saved
 * whole. A pool with block numbers of its own copies no block at all. */
static struct lead_request describe_prompt(const struct seq *s)
{
    return (struct lead_request){
        .phase = phases[s->phase],
        .root = &s->view.root,
        .keys = s->view.keys,
        .n_keys = s->view.n_keys,
        .tokens = s->view.tokens,
        .n_tokens = s->view.n_tokens,
        .n_done = s->n_done,
        .may_reuse = seq_may_reuse(s) && !config_is_hybrid(&s->shared->model->cfg),
        .may_copy = !seq_is_saved(s) && kv_pool_layers(s->shared->pool) != NULL};
}

/* Describes a waiting sequence. While no place is free, does not look up known blocks, because each
 * step would repeat the look-up for nothing. */
static void describe_waiting(const struct schedule *c, int i, bool is_full,
                             struct sched_req *r)
{
    const struct seq *s = c->seqs[i];
    int n_unused = 0, n_known = is_full ? 0 : seq_find_known(s, &n_unused);
    r->rows = s->view.n_tokens - n_known * KV_BLOCK_TOKENS;
    r->blocks_needed = seq_blocks_wanted(s) - n_known + n_unused;
    /* The sequence's saves may have settled since choose_views. While no place is free the sequence
     * chooses no view. It asks for a place, and chooses when it gets one (admit). */
    bool must_choose = is_full ? stairs_must_wait(s) : s->stairs.must_choose;
    bool is_unsettled = s->save != NULL && !save_is_settled(s->save) &&
                        !carry_is_on(&s->stairs.carry);
    r->is_held = is_unsettled || must_choose;
    r->after = is_full ? -1 : lead_find(c->prompt, c->n_live, i, n_known);
}

/* Describes sequence i to the scheduler. is_full tells that no place is free. */
static void describe(const struct schedule *c, int i, bool is_full, struct sched_req *r)
{
    const struct seq *s = c->seqs[i];
    *r = (struct sched_req){.phase = phases[s->phase],
                            .priority = s->req->ask.priority,
                            .arrival_ns = s->t_arrival,
                            .deadline_ns = s->req->deadline_ns,
                            .rows = s->view.n_tokens - s->n_done,
                            .is_whole = s->shared->model->cfg.both_ways,
                            .after = -1};
    if (s->phase == PHASE_WAIT) {
        describe_waiting(c, i, is_full, r);
        return;
    }
    r->blocks_freed = kv_table_own_blocks(c->shared->pool, &s->table);
    if (s->phase == PHASE_RESTORE) /* the compute of a restore is no part of the batch */
        r->rows = 0;
    if (s->phase == PHASE_DECODE)
        r->blocks_needed = s->n_done >= s->table.n_blocks * KV_BLOCK_TOKENS;
}

/* --- carrying out ----------------------------------------------------------------------------- */

static void time_out(struct schedule *c, struct seq *s)
{
    restore_phase_abandon(c->restores, s);
    seq_finish(s, FINISH_TIMEOUT);
    seq_drop_blocks(s);
    c->shared->stats.n_timed_out++;
}

static void preempt(struct schedule *c, struct seq *s)
{
    restore_phase_abandon(c->restores, s);
    seq_preempt(s);
}

/* Returns whether the store has recurrent layers' states of at least SNAPSHOT_LEAST tokens more
 * than the device: as a snapshot, or as inputs that can be replayed. The sequence then gives up the
 * device's tokens, and all its state is restored from the store. */
static bool states_go_farther(struct seq *s)
{
    const struct model_config *c = &s->shared->model->cfg;
    int n = (s->view.n_tokens - 1) / STORE_CHUNK_TOKENS, l = 0;
    int least = (s->n_done + SNAPSHOT_LEAST) / STORE_CHUNK_TOKENS;
    bool found = false;
    while (!config_is_recurrent(c, l))
        l++;
    struct store *store = s->shared->store;
    for (int i = n; i >= least && !found; i--) {
        struct sha256 key = store_state_key(&s->view.keys[i - 1]);
        found = store_pin(store, &key, NULL);
    }
    struct store_hit hit;
    if (!found && least <= n && store_pin(store, &s->view.keys[least - 1], &hit)) {
        found = store_mask_has(&hit.mask, l, STORE_HIDDEN);
        store_release(store, &hit, 1);
    }
    return found;
}

/* Returns whether the store has more of the prompt than the device. If so and layers are recurrent,
 * s has given up the device's tokens (seq_give_up_known). */
static bool store_has_more(struct seq *s)
{
    int next = s->n_done / STORE_CHUNK_TOKENS + 1;
    bool wanted = next <= (s->view.n_tokens - 1) / STORE_CHUNK_TOKENS;
    if (config_is_hybrid(&s->shared->model->cfg))
        return wanted && s->shared->store != NULL && states_go_farther(s) &&
               seq_give_up_known(s);
    if (s->pin.impl != NULL) /* seq_take_place has taken a stored tail */
        return false;
    bool found = wanted && seq_pin_chunks(s, next);
    if (found)
        store_release(s->shared->store, &s->pin, 1);
    s->pin.impl = NULL;
    return found;
}

/* Sets the reason why the rest of the prompt is computed: the store has no more than the device. */
static void tell_miss(struct seq *s)
{
    if (s->n_done / STORE_CHUNK_TOKENS >= (s->n_tokens - 1) / STORE_CHUNK_TOKENS)
        return;
    snprintf(s->out.r.miss, sizeof s->out.r.miss, STORE_WHY_ABSENT);
    s->out.r.differs_at = kv_table_differs_at(s->shared->pool, &s->table, &s->chain.root,
                                              s->tokens, s->n_tokens - 1);
}

/* Begins a sequence that has a place. If it carries its view in memory, it goes on from there. It
 * looks in the store if the device has none of its tokens, too few to move its view, or fewer than
 * the store. Else it enters prefill. n_stored is then the number of the device's tokens that the
 * store has, too. */
static void begin(struct schedule *c, struct seq *s)
{
    if (carry_is_on(&s->stairs.carry)) {
        stairs_take_up(s);
        return;
    }
    if (s->n_done == 0 || s->n_done < view_moved(&s->view) || store_has_more(s)) {
        restore_phase_begin(c->restores, s);
        return;
    }
    tell_miss(s);
    int n = s->n_done / STORE_CHUNK_TOKENS;
    s->out.r.cached_tokens = seq_tokens_done(s);
    if (s->pin.impl != NULL) /* the tail is pinned: all is stored */
        s->out.n_stored = seq_at(s);
    else if (seq_pin_chunks(s, n))
        s->out.n_stored = view_token(&s->view, n * STORE_CHUNK_TOKENS);
    else
        s->out.n_stored = 0;
    seq_enter_prefill(s);
}

/* Gives s a place and its first blocks, and begins its restore or prefill. */
static void admit(struct schedule *c, struct seq *s)
{
    /* A sequence does not choose its view while all places are taken. If a preemption or a
     * time-out has just freed a place, the sequence gets it in the next step, which begins with
     * choosing. */
    if (s->stairs.must_choose)
        return;
    if (!seq_take_place(s)) /* the next decision sees that the blocks are missing */
        return;
    s->t_start = clock_now_ns();
    if (!s->has_first)
        s->out.r.device_tokens = seq_tokens_done(s);
    if (s->forgets_miss && !s->has_first)
        s->out.r.miss[0] = 0;
    s->forgets_miss = false;
    if (s->t_admit == 0) {
        s->t_admit = s->t_start;
        if (s->req->on_admit != NULL)
            s->req->on_admit(s->req->arg);
    }
    begin(c, s);
}

/* --- the step --------------------------------------------------------------------------------- */

/* Returns the number of running sequences, and frees the blocks of ended ones. Blocks of an ended
 * sequence stay until the next step begins, because tests look at them. */
static int count_running(struct schedule *c)
{
    int n = 0;
    for (int i = 0; i < c->n_seqs; i++) {
        struct seq *s = c->seqs[i];
        if (s->phase == PHASE_DONE)
            seq_drop_blocks(s);
        else
            n += s->phase != PHASE_WAIT;
    }
    return n;
}

/* Lists the sequences that have not ended, in order, as the scheduler's requests. */
static int list_live(struct schedule *c)
{
    int n = 0;
    for (int i = 0; i < c->n_seqs; i++) {
        struct seq *s = c->seqs[i];
        s->rows = 0;
        if (s->phase != PHASE_DONE) { /* sequences that have not ended move to the front */
            c->seqs[i] = c->seqs[n];
            c->seqs[n++] = s;
        }
    }
    return n;
}

/* Puts sequences at the end of a stair back into WAIT, for the next stair. */
static void end_stairs(struct schedule *c)
{
    for (int i = 0; i < c->n_seqs; i++) {
        struct seq *s = c->seqs[i];
        if ((s->phase == PHASE_PREFILL || s->phase == PHASE_DECODE) &&
            seq_stair_has_ended(s))
            seq_end_stair(s);
    }
}

/* Lets waiting sequences choose their views once their saves have settled, or begin to carry. */
static void choose_views(struct schedule *c)
{
    for (int i = 0; i < c->n_seqs; i++) {
        struct seq *s = c->seqs[i];
        if (s->phase != PHASE_WAIT)
            continue;
        stairs_judge_saves(s);
        if (!stairs_must_wait(s))
            stairs_choose(s);
    }
}

void schedule_step(struct schedule *c)
{
    struct sched_limits l = {.now_ns = clock_now_ns(),
                             .age_ns = c->o.age_ns,
                             .step_rows = c->o.step_rows,
                             .rows_beside = c->o.no_limit_beside ? c->o.step_rows
                                                                 : beside_rows(&c->speed),
                             .max_running = c->o.max_seqs};
    c->rows_beside = l.rows_beside;
    end_stairs(c);
    bool is_full = count_running(c) >= c->o.max_seqs;
    if (!is_full)
        choose_views(c);
    int n = c->n_live = list_live(c);
    upcoming_tell_held(c->shared);
    upcoming_tell((struct seq_list){c->seqs, n}, c->o.age_ns);
    l.free_blocks = kv_pool_free_blocks(c->shared->pool);
    bool may_admit = !is_full && seq_count(schedule_list(c), PHASE_WAIT) > 0;
    for (int i = 0; i < n && may_admit; i++)
        c->prompt[i] = describe_prompt(c->seqs[i]);
    for (int i = 0; i < n; i++)
        describe(c, i, is_full, &c->view[i]);
    sched_decide(&l, c->view, n, c->order, c->choice);
    for (int i = 0; i < n; i++) {
        if (c->choice[i].what == SCHED_TIME_OUT)
            time_out(c, c->seqs[i]);
        else if (c->choice[i].what == SCHED_PREEMPT)
            preempt(c, c->seqs[i]);
    }
    for (int k = 0; k < n; k++) {
        struct seq *s = schedule_ranked(c, k);
        const struct sched_choice *choice = &c->choice[c->order[k]];
        if (choice->what == SCHED_ADMIT)
            admit(c, s);
        s->rows = choice->rows;
        if (s->phase == PHASE_DECODE && choice->rows > 0) {
            int rc = kv_table_reserve(c->shared->pool, &s->table, s->n_done + 1, NULL);
            CHECK(rc == 0); /* sched_decide has counted the blocks */
        }
    }
    upcoming_fetch((struct seq_list){c->seqs, n});
}
