/* seq.c - see seq.h. */
#include "engine/seq.h"
#include "engine/stairs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "engine/reading.h"
#include "engine/shaping.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/schedule.h"
#include "save/saver.h"
#include "engine/view.h"
#include "save/snapshots.h"

/* Seconds that a request may always wait for a partial chunk on its way to the store. */
#define TAIL_WAIT_S 0.025

int seq_count(struct seq_list l, enum phase phase)
{
    int n = 0;
    for (int i = 0; i < l.n; i++)
        n += l.seqs[i]->phase == phase;
    return n;
}

/* --- the phase -------------------------------------------------------------------------------- */

bool phase_may_follow(enum phase from, enum phase to)
{
    enum { W = 1 << PHASE_WAIT, R = 1 << PHASE_RESTORE, P = 1 << PHASE_PREFILL };
    enum { D = 1 << PHASE_DECODE, END = 1 << PHASE_DONE };
    static const unsigned edges[PHASES] = {[PHASE_WAIT] = R | P | END,
                                           [PHASE_RESTORE] = W | P | END,
                                           [PHASE_PREFILL] = W | D | END,
                                           [PHASE_DECODE] = W | D | END,
                                           [PHASE_DONE] = 0};
    return (edges[from] >> to & 1) != 0;
}

/* Changes the phase. No other function does. */
static void enter(struct seq *s, enum phase to)
{
    CHECK(phase_may_follow(s->phase, to));
    s->shared->n_edges[s->phase][to]++;
    s->phase = to;
    if (to == PHASE_PREFILL || to == PHASE_DONE)
        upcoming_end(s);
    if (to == PHASE_DONE)
        stairs_carry_no_more(s);
}

/* --- life ------------------------------------------------------------------------------------- */

/* Reserves all memory that grows with the tokens. Returns false if there is no memory. */
static bool reserve_tokens(struct seq *s, int n_max)
{
    return kv_table_try_prepare(&s->table,
                                view_room(&s->view, n_max) / KV_BLOCK_TOKENS + 1) &&
           chain_try_prepare(&s->chain, n_max / STORE_CHUNK_TOKENS);
}

/* Opens the index of guesses. Leaves it NULL if nothing is to be guessed, or without memory. It
 * begins with the prompt's end and the prediction, which is so proposed as the answer begins. */
static void open_index(struct seq *s)
{
    enum { MOST_OF_PROMPT = 64 };
    const struct request *r = s->req;
    int n_end = r->n_prediction > 0 ? MIN(r->ask.n_prompt, MOST_OF_PROMPT) : 0;
    s->guess.n_before = n_end + r->n_prediction;
    if (s->shared->most_guesses == 0 || r->ask.max_tokens <= 1)
        return;
    s->guess.index = guess_index_create(s->guess.n_before + r->ask.n_prompt +
                                        r->ask.max_tokens);
    if (s->guess.index == NULL)
        return;
    guess_index_add(s->guess.index, s->tokens + r->ask.n_prompt - n_end, n_end);
    guess_index_add(s->guess.index, r->prediction, r->n_prediction);
}

struct seq *seq_create(struct seq_shared *sh, struct request *r)
{
    struct seq *s = xcalloc(1, sizeof *s);
    s->shared = sh;
    s->req = request_share(r);
    s->phase = PHASE_WAIT;
    s->t_arrival = clock_now_ns();
    if (r->epoch == 0 && sh->store != NULL)
        r->epoch = store_epoch(sh->store);
    chain_init(&s->chain, &sh->fingerprint, r->ask.salt);
    s->chain.truncation = r->truncation;
    view_init(&s->view, &r->truncation);
    if (!reserve_tokens(s, r->ask.n_prompt + r->ask.max_tokens)) {
        seq_destroy(s);
        return NULL;
    }
    s->tokens = r->tokens;
    s->n_tokens = r->ask.n_prompt;
    s->out.r = (struct hcache_result){.token_ids = request_answer(r),
                                      .prompt_tokens = r->ask.n_prompt,
                                      .truncation = {.context = r->truncation.context,
                                                     .step = r->truncation.step,
                                                     .keep = r->truncation.keep}};
    chain_extend(&s->chain, s->tokens, s->n_tokens);
    stairs_init(s);
    open_index(s);
    if (!reading_begin(s)) {
        seq_destroy(s);
        return NULL;
    }
    return s;
}

static void release_pin(struct seq *s)
{
    if (s->pin.impl != NULL)
        store_release(s->shared->store, &s->pin, 1);
    s->pin.impl = NULL;
}

/* Forgets the save from before a preemption, whose chunks are found in the store, and the pin.
 * Notes in stairs.lost why the save ended early, if it did. */
static void forget_save(struct seq *s)
{
    if (save_ended(s->save) != SAVE_GOES_ON)
        s->stairs.lost = save_ended(s->save);
    save_close(s->save);
    s->save = NULL;
    release_pin(s);
}

void seq_destroy(struct seq *s)
{
    CHECK(s->restore == NULL);
    if (s->phase != PHASE_DONE)
        save_idle(s->save, s->tokens, seq_at(s), NULL);
    forget_save(s);
    upcoming_end(s);
    form_leave(&s->place);
    guess_index_free(s->guess.index);
    stairs_deinit(s);
    seq_drop_blocks(s);
    kv_table_free(s->shared->pool, &s->table);
    view_deinit(&s->view);
    chain_deinit(&s->chain);
    request_release(s->req);
    free(s->out.r.predicted.span);
    free(s->out.r.measured.span);
    free(s->out.r.embedding);
    free(s->out.r.prompt_logprobs);
    free(s->reading.sum);
    free(s);
}

/* --- blocks ----------------------------------------------------------------------------------- */

bool seq_is_saved(const struct seq *s)
{
    unsigned kinds = 0;
    for (int l = 0; l < config_n_keeping(&s->shared->model->cfg) && l < STORE_MAX_LAYERS;
         l++)
        kinds |= s->req->save.kinds[l];
    return s->shared->saver != NULL && kinds != 0;
}

bool seq_reads_all(const struct seq *s)
{
    return reading_needs_all(s->req, &s->shared->model->cfg);
}

bool seq_may_reuse(const struct seq *s)
{
    return s->shared->reuse && !carry_is_on(&s->stairs.carry) && !seq_is_forced(s) &&
           !seq_reads_all(s);
}

int seq_blocks_wanted(const struct seq *s)
{
    int n_max = view_room(&s->view, s->req->ask.n_prompt + s->req->ask.max_tokens);
    int n = s->view.n_tokens < n_max ? s->view.n_tokens + 1 : n_max;
    return (n + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

/* Leaves out the last known token. It is always computed, because its logits are needed. */
int seq_find_known(const struct seq *s, int *n_unused)
{
    *n_unused = 0;
    const struct view *v = &s->view;
    return seq_may_reuse(s) ? kv_pool_find(s->shared->pool, &v->root, v->tokens,
                                           v->n_tokens - 1, seq_is_saved(s), n_unused)
                            : 0;
}

/* Pins a stored chunk that the sequence's save can continue. Returns false if there is none, or if
 * it lacks records that are to be saved. */
static bool pin_to_continue(struct seq *s, const struct sha256 *key)
{
    uint8_t stored[STORE_MAX_LAYERS];
    int n_layers = config_n_keeping(&s->shared->model->cfg);
    if (!store_pin(s->shared->store, key, &s->pin))
        return false;
    save_stored_kinds(&s->pin.mask, n_layers, stored);
    if (save_kinds_suffice(s->req->save.kinds, stored, n_layers))
        return true;
    release_pin(s);
    return false;
}

/* Pins the stored partial chunk behind n full chunks of the prompt: that of the device's unfinished
 * block if it is stored, else the longest one whose tokens the prompt has. Returns how many of its
 * tokens agree with the prompt; 0 if there is none, or the store has the full chunk, which is
 * better. *n_held gets how many tokens of the device's block agree. */
static int pin_tail(struct seq *s, int n, int *n_held)
{
    const struct view *v = &s->view;
    struct store *store = s->shared->store;
    const int32_t *tokens = v->tokens + n * STORE_CHUNK_TOKENS, *block;
    int left = v->n_tokens - 1 - n * STORE_CHUNK_TOKENS, n_found = 0, n_block;
    struct sha256 key;
    if (store == NULL || v->truncation.context > 0 || left <= 0)
        return 0;
    bool has_full = left >= STORE_CHUNK_TOKENS && store_pin(store, &v->keys[n], &s->pin);
    release_pin(s);
    if (has_full)
        return 0;
    const struct sha256 *parent = chain_parent(&s->chain, n);
    *n_held = kv_table_find_tail(s->shared->pool, &s->table, &v->root, v->tokens,
                                 v->n_tokens - 1, &block, &n_block);
    if (*n_held > 0) {
        key = store_partial_key(parent, block, n_block);
        if (pin_to_continue(s, &key))
            return *n_held;
    }
    bool found = store_find_partial(store, parent, tokens,
                                    MIN(left, STORE_CHUNK_TOKENS - 1), &key, &n_found);
    return found && pin_to_continue(s, &key) ? n_found : 0;
}

/* Returns whether s waits for the saver, which may be about to commit the partial chunk of n tokens
 * that the device has. Begins the wait at the first call. The wait ends when the saver has
 * committed all that it had by then, or after TAIL_WAIT_S or the time to compute these tokens,
 * whichever is longer. */
static bool must_wait_for_tail(struct seq *s, int n)
{
    const struct seq_shared *sh = s->shared;
    double price_s = 0;
    if (s->t_tail == 0) {
        s->t_tail = clock_now_ns();
        s->tail_mark = saver_mark(sh->saver);
    }
    if (sh->platform != NULL)
        price_s = config_n_keeping(&sh->model->cfg) *
                  platform_prefill_s(sh->platform, s->table.n_blocks * KV_BLOCK_TOKENS, n);
    return !saver_reached(sh->saver, s->tail_mark) &&
           (double)(clock_now_ns() - s->t_tail) * 1e-9 < MAX(price_s, TAIL_WAIT_S);
}

/* Takes the longest state that stands behind known tokens; the table has all known full blocks. If
 * the sequence is saved, a state inside a block needs that stored partial chunk, as in take_known
 * (-EAGAIN). Without room for the state, drops all blocks and returns 0. */
static int take_state(struct seq *s)
{
    const struct seq_shared *sh = s->shared;
    const struct view *v = &s->view;
    struct kv_table *t = &s->table;
    int64_t most = v->n_tokens - 1, end;
    int place, tail;
    s->branch = t->n_known * KV_BLOCK_TOKENS;
    for (;; most = end - 1) {
        end = kv_table_find_state(sh->pool, t, &v->root, v->tokens, most, &place);
        tail = (int)(end % KV_BLOCK_TOKENS);
        if (end == 0 || tail == 0 || !seq_is_saved(s))
            break;
        const struct sha256 key = store_partial_key(chain_parent(&s->chain, t->n_known),
                                                    v->tokens + end - tail, tail);
        if (pin_to_continue(s, &key))
            break;
        if (must_wait_for_tail(s, tail))
            return -EAGAIN;
    }
    s->n_done = (int)end;
    int rc = end > 0 ? kv_table_take_state(sh->pool, t, sh->stream, end, place) : 0;
    if (rc != ERR_LIMIT)
        return rc;
    release_pin(s); /* waiting for another block might never end */
    kv_table_cut(sh->pool, t, 0);
    s->n_done = 0;
    return 0;
}

/* Takes known blocks. Full blocks are shared. The block in which the sequence diverges is copied.
 * If the sequence is saved, it takes no more of that block than a stored partial chunk has: a chunk
 * is saved whole, and the records of the rows that are not computed come from there. Returns
 * -EAGAIN if that chunk is on its way to the store. */
static int take_known(struct seq *s)
{
    const struct seq_shared *sh = s->shared;
    const struct view *v = &s->view;
    bool saved = seq_is_saved(s);
    int n_copied = 0, n_held = 0, rc = 0;
    if (!seq_may_reuse(s))
        return 0;
    int n = kv_table_take(sh->pool, &s->table, &v->root, v->tokens, v->n_tokens - 1, saved);
    if (config_is_hybrid(&sh->model->cfg))
        return take_state(s);
    int n_tail = saved ? pin_tail(s, n, &n_held) : 0;
    if (n_tail < n_held && must_wait_for_tail(s, n_held - n_tail)) {
        release_pin(s);
        return -EAGAIN;
    }
    if (!saved || n_tail > 0)
        rc = kv_table_copy_tail(sh->pool, &s->table, sh->stream, &v->root, v->tokens,
                                v->n_tokens - 1, &n_copied);
    if (saved && (rc != 0 || n_copied < n_tail)) {
        release_pin(s);
        n_tail = 0;
    }
    s->n_done = n * KV_BLOCK_TOKENS + (saved ? n_tail : n_copied);
    return rc;
}

bool seq_take_place(struct seq *s)
{
    CHECK(s->phase == PHASE_WAIT);
    forget_save(s);
    int rc = take_known(s);
    if (rc == 0)
        rc = kv_table_reserve(s->shared->pool, &s->table,
                              (int64_t)seq_blocks_wanted(s) * KV_BLOCK_TOKENS, NULL);
    if (rc == 0)
        return true;
    seq_drop_blocks(s);
    s->n_done = 0;
    return false;
}

bool seq_give_up_known(struct seq *s)
{
    struct kv_pool *pool = s->shared->pool;
    int n = seq_blocks_wanted(s);
    if (kv_pool_free_blocks(pool) + kv_table_own_blocks(pool, &s->table) < n)
        return false;
    release_pin(s);
    kv_table_cut(pool, &s->table, 0);
    s->table.snapshot = s->n_done = 0;
    if (!s->has_first)
        s->out.r.device_tokens = 0;
    return kv_table_reserve(pool, &s->table, (int64_t)n * KV_BLOCK_TOKENS, NULL) == 0;
}

/* Names known blocks by their chunks' keys, as far as these keys are known. */
static void name_blocks(struct seq *s)
{
    struct kv_table *t = &s->table;
    while (s->shared->tells_held && t->n_named < t->n_known && t->n_named < s->view.n_keys)
        kv_table_name(s->shared->pool, t, store_chunk_name(&s->view.keys[t->n_named]));
}

/* Names the blocks behind the prompt, whose own blocks have names. Skips a truncated context, whose
 * chunks' keys may have other parents. */
static void name_all_blocks(struct seq *s)
{
    struct kv_table *t = &s->table;
    if (!s->shared->tells_held || s->view.truncation.context > 0)
        return;
    struct sha256 key = t->n_named > 0 && t->n_named == s->view.n_keys
                            ? s->view.keys[t->n_named - 1]
                            : s->chain.root;
    while (t->n_named < t->n_known) {
        key = store_chunk_key(&key, s->view.tokens + t->n_named * KV_BLOCK_TOKENS);
        kv_table_name(s->shared->pool, t, store_chunk_name(&key));
    }
}

/* Makes the blocks of s known by their tokens, and names them. */
static void keep(struct seq *s)
{
    if (s->has_gap)
        return;
    kv_table_keep(s->shared->pool, &s->table, &s->view.root, s->view.tokens, s->n_done);
    name_blocks(s);
}

/* Makes new full blocks, and a prompt's last one, known, and marks them as saved if they are. */
static void keep_new(struct seq *s)
{
    bool prompt_ends = s->phase == PHASE_PREFILL && s->n_done == s->view.n_tokens;
    if (s->n_done / KV_BLOCK_TOKENS > s->table.n_known || prompt_ends)
        keep(s);
    if (s->save != NULL && save_ended(s->save) == SAVE_GOES_ON)
        kv_table_mark_saved(s->shared->pool, &s->table, s->n_done / KV_BLOCK_TOKENS);
}

/* Returns the number of tokens that are computed for each token in view if the view is lost. */
static double replay_share(const struct seq *s)
{
    return staircase_share(&s->view.truncation,
                           view_token(&s->view, s->view.n_tokens - 1) + 1);
}

/* Returns the request's declared next use in the form that the KV pool takes. */
static struct kv_use kv_use_of(const struct seq *s)
{
    const struct hcache_request *ask = &s->req->ask;
    uint64_t reuse_in = (uint64_t)ask->expect_reuse_in_s * KV_TIME_PER_S;
    uint8_t class = placement_class(ask->turn, ask->may_call_tools, false);
    return (struct kv_use){
        .time = (uint32_t)(clock_now_ns() / (1000000000 / KV_TIME_PER_S)),
        .reuse_in = reuse_in < UINT32_MAX / 4 ? (uint32_t)reuse_in : UINT32_MAX / 4,
        .class = placement_class_owner(class, store_owner(s->req->ask.salt)),
        .lot = (uint64_t)s->t_arrival,
        .share = replay_share(s)};
}

void seq_drop_blocks(struct seq *s)
{
    s->table.use = kv_use_of(s);
    if (s->n_done > 0 && s->table.n_blocks > 0) {
        keep(s);
        name_all_blocks(s);
        if (!s->has_gap)
            kv_table_leave_state(s->shared->pool, &s->table, s->n_done);
    }
    kv_table_cut(s->shared->pool, &s->table, 0);
    s->has_gap = false;
}

struct store_use seq_use(const struct seq *s)
{
    const struct hcache_request *ask = &s->req->ask;
    return (struct store_use){.turn = ask->turn,
                              .may_call_tools = ask->may_call_tools,
                              .reuse_in_s = (uint32_t)ask->expect_reuse_in_s,
                              .ttl_s = (uint32_t)ask->cache_ttl_s,
                              .lot = (uint64_t)s->t_arrival,
                              .share = replay_share(s)};
}

/* --- saving ----------------------------------------------------------------------------------- */

void seq_open_save(struct seq *s, int position, const struct store_hit *tail)
{
    int first_token = view_token(&s->view, position);
    if (s->save != NULL || !seq_is_saved(s))
        return;
    struct save_begin b = {
        .first_token = first_token,
        .parent = chain_parent(&s->chain, first_token / STORE_CHUNK_TOKENS),
        .truncation = s->view.truncation,
        .tail = tail,
        .policy = &s->req->save,
        .owner = store_owner(s->req->ask.salt),
        .epoch = s->req->epoch,
        .use = seq_use(s),
        .n_prompt = s->req->ask.n_prompt,
        .is_document = s->req->ask.max_tokens == 0};
    s->save = save_open(s->shared->saver, &b);
}

bool seq_pin_chunks(struct seq *s, int n)
{
    return n > 0 && s->shared->store != NULL &&
           store_pin(s->shared->store, &s->view.keys[n - 1], &s->pin);
}

/* A sequence's save continues the chunks that it took over. These may still be on their way to
 * the store. So until one of its own chunks is durable, ask the store. */
int64_t seq_committed_tokens(const struct seq *s)
{
    int64_t saved = save_committed_tokens(s->save), known = s->out.n_stored;
    if (saved > s->n_before_save)
        return saved;
    int n_taken = s->out.r.device_tokens / STORE_CHUNK_TOKENS;
    struct store *store = s->shared->store;
    if (n_taken * STORE_CHUNK_TOKENS > known && store != NULL &&
        store_pin(store, &s->chain.keys[n_taken - 1], NULL))
        known = (int64_t)n_taken * STORE_CHUNK_TOKENS;
    return known;
}

/* --- snapshots of recurrent layers' states --------------------------------------------------- */

/* Takes the states of s over all tokens that are done: the newest of these may have been guesses,
 * over which states do not advance. Returns where the states lie. */
static struct save_states states_of(const struct seq *s)
{
    const struct seq_shared *sh = s->shared;
    if (config_is_hybrid(&sh->model->cfg) && s->save != NULL && s->table.n_blocks > 0)
        (void)model_states_reach(sh->model, sh->stream, kv_pool_layers(sh->pool),
                                 kv_table_state(&s->table), s->n_done);
    return (struct save_states){.layers = kv_pool_layers(s->shared->pool),
                                .state = kv_table_state(&s->table)};
}

static struct snapshot_view snapshots_of(const struct seq *s, int done)
{
    return (struct snapshot_view){.done = done,
                                  .newest = s->table.snapshot,
                                  .prompt = s->req->ask.n_prompt,
                                  .is_branch = done == s->branch};
}

int seq_rows_to_snapshot(const struct seq *s, int from)
{
    const struct snapshot_view v = snapshots_of(s, from);
    int64_t next = INT_MAX;
    if (config_is_hybrid(&s->shared->model->cfg) && seq_is_saved(s))
        next = snapshot_next(&v);
    if (s->branch > from && s->branch - v.newest >= SNAPSHOT_LEAST)
        next = MIN(next, s->branch);
    return (int)MIN(next - from, INT_MAX);
}

bool seq_snapshot_follows(const struct seq *s, int n, int newest)
{
    struct snapshot_view v = snapshots_of(s, n);
    v.newest = newest;
    return config_is_hybrid(&s->shared->model->cfg) && seq_is_saved(s) &&
           snapshot_is_due(&v);
}

/* If a snapshot is due behind n_done tokens, gives it to the saver, and keeps it on the device if
 * it stands at the end of a known block. Leaves it out of the store if the saver has no room. */
static void snapshot_here(struct seq *s)
{
    const struct snapshot_view v = snapshots_of(s, s->n_done);
    if (!config_is_hybrid(&s->shared->model->cfg) || !snapshot_is_due(&v))
        return;
    const struct save_states states = states_of(s);
    if (save_states(s->save, s->n_done, &states))
        s->table.snapshot = s->n_done;
    if (s->table.n_known * KV_BLOCK_TOKENS == s->n_done)
        (void)kv_table_keep_state(s->shared->pool, &s->table, s->shared->stream);
}

/* The session goes idle: saves the tail, and a snapshot if it is worth its bytes. */
static void save_end_of_turn(struct seq *s)
{
    bool is_far = s->n_done - s->table.snapshot >= SNAPSHOT_LEAST;
    const struct save_states states = is_far ? states_of(s) : (struct save_states){0};
    save_idle(s->save, s->tokens, seq_at(s), is_far ? &states : NULL);
    s->table.snapshot = is_far ? s->n_done : s->table.snapshot;
}

/* --- entering a phase ------------------------------------------------------------------------- */

void seq_enter_restore(struct seq *s)
{
    enter(s, PHASE_RESTORE);
    s->n_planned = 0;
}

/* Keeps what a sequence reports of its truncation, over all its admissions. */
static void keep_truncation(struct hcache_result *to, const struct hcache_result *from)
{
    to->truncated_tokens = from->truncated_tokens;
    to->recomputed_tokens = from->recomputed_tokens;
    to->truncation = from->truncation;
}

/* Reports the statistics of a preempted sequence's first admission in place of the present ones,
 * but sums the bytes and the time of restores. Counts recovered and recomputed tokens. */
static void tell_first(struct seq *s)
{
    struct outcome again = s->out;
    struct engine_stats *stats = &s->shared->stats;
    s->out = s->first;
    s->out.n_stored = MAX(again.n_stored, s->out.n_stored);
    keep_truncation(&s->out.r, &again.r);
    s->out.restore.read_bytes += again.restore.read_bytes;
    s->out.restore.dram_bytes += again.restore.dram_bytes;
    s->out.restore.page_cache_bytes += again.restore.page_cache_bytes;
    s->out.r.timings.restore_ms += again.r.timings.restore_ms;
    if (s->stairs.is_stepping)
        return;
    stats->recovered_tokens += (uint64_t)seq_at(s);
    stats->recomputed_tokens += (uint64_t)(s->n_tokens - seq_at(s));
}

/* Opens the save at once, although the state that the sequence takes over may still be on its way
 * to the store: the saver writes the sequence's own chunks behind that state, in order. */
void seq_enter_prefill(struct seq *s)
{
    int n = s->n_done / KV_BLOCK_TOKENS;
    bool is_stored = s->out.n_stored >= view_token(&s->view, n * KV_BLOCK_TOKENS);
    CHECK(s->n_done >= view_moved(&s->view));
    enter(s, PHASE_PREFILL);
    if (s->has_first)
        tell_first(s);
    /* If a lost chunk covered a copied tail, the tail's tokens are computed again, too. */
    else if (s->out.r.device_tokens > seq_at(s))
        s->out.r.device_tokens = seq_at(s);
    stairs_began(s);
    if (n > s->table.n_known)
        keep(s);
    if (is_stored)
        kv_table_mark_saved(s->shared->pool, &s->table, n);
    s->n_before_save = seq_at(s);
    if (config_is_hybrid(&s->shared->model->cfg))
        s->branch = MAX(s->branch, s->out.r.differs_at / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS);
    seq_open_save(s, s->n_done, &s->pin);
    snapshot_here(s);
}

/* Gives up place and blocks. Extends the chain by the keys of all known tokens, so a later look-up
 * finds its saved chunks. */
static void leave(struct seq *s)
{
    CHECK(s->restore == NULL);
    int n_done = s->n_done;
    save_idle(s->save, s->tokens, seq_at(s), NULL);
    seq_drop_blocks(s);
    save_stop(s->save);
    s->n_done = 0;
    s->table.snapshot = 0;
    s->guess.n = s->guess.match = 0;
    enter(s, PHASE_WAIT);
    chain_extend(&s->chain, s->tokens, s->n_tokens);
    stairs_left(s, n_done);
}

/* Gives up place and blocks. From now on the statistics of the first admission that has computed
 * something are reported. If none has, they are cleared: the next admission restores again. */
static void leave_again(struct seq *s)
{
    if (s->phase != PHASE_RESTORE && seq_at(s) > s->out.r.cached_tokens) {
        s->first = s->out;
        s->has_first = true;
    }
    leave(s);
    if (s->has_first) {
        struct hcache_result last = s->out.r;
        s->out = s->first;
        keep_truncation(&s->out.r, &last);
    } else {
        s->out.r.cached_tokens = s->out.r.device_tokens = s->out.plan.n_layers = 0;
        s->forgets_miss = true;
        s->out.restore = (struct restore_result){0};
    }
}

/* A forced plan is dropped: it may need records that the newest chunks, which s saved, do not
 * have. */
void seq_preempt(struct seq *s)
{
    leave_again(s);
    s->drops_plan = true;
    s->first.r.n_preempted++;
    s->out.r.n_preempted++;
    s->shared->stats.n_preempted++;
}

void seq_end_stair(struct seq *s)
{
    CHECK(seq_stair_has_ended(s));
    s->stairs.is_stepping = true;
    s->stairs.t_step = clock_now_ns();
    leave_again(s);
}

void seq_retry(struct seq *s)
{
    s->stairs.limit = view_chunk(&s->view, s->n_done / STORE_CHUNK_TOKENS);
    leave(s);
}

void seq_finish(struct seq *s, enum finish why)
{
    save_end_of_turn(s);
    s->out.finish = why;
    enter(s, PHASE_DONE);
    if (s->t_first != 0)
        s->out.r.timings.decode_ms = clock_ms(clock_now_ns() - s->t_first);
}

void seq_fail(struct seq *s, int rc, const char *message)
{
    if (message != NULL)
        err_set(&s->out.err, rc, "%s", message);
    s->out.err.code = rc;
    seq_finish(s, FINISH_ERROR);
}

void seq_fail_overflow(struct seq *s)
{
    seq_fail(s, ERR_UNSUPPORTED,
             "the residual stream left the range of f16 (65504): run this model with "
             "--dtype bf16");
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Returns how many tokens may be guessed: they fit the answer, take no new block and no new chunk,
 * and end no stair. */
static int room_for_guesses(const struct seq *s)
{
    int answer = s->req->ask.max_tokens - s->out.r.n_tokens - 1;
    int block = s->table.n_blocks * KV_BLOCK_TOKENS - s->n_done - 1;
    int chunk = STORE_CHUNK_TOKENS - 1 - seq_at(s) % STORE_CHUNK_TOKENS;
    int room = MIN(answer, MIN(block, chunk));
    if (s->view.truncation.context > 0)
        room = MIN(room, s->view.truncation.context - s->n_done - 1);
    return carry_is_on(&s->stairs.carry) ? 0 : room;
}

/* Writes the tokens that the answer's form forces. */
static int propose_forced(struct seq *s, int most, int32_t *out)
{
    const struct request *r = s->req;
    return r->form == NULL ? 0
                           : form_forced(r->form, &s->place, request_answer(r),
                                         s->n_tokens - r->ask.n_prompt, most, out);
}

int seq_propose(struct seq *s, int most)
{
    struct seq_guess *g = &s->guess;
    int32_t forced[GUESS_MOST];
    g->match = g->n_taken = g->n = 0;
    int n = MIN(MIN(most, s->shared->most_guesses), room_for_guesses(s));
    if (g->index == NULL || n <= 0)
        return 0;
    int known = guess_index_count(g->index) - g->n_before;
    guess_index_add(g->index, s->tokens + known, s->n_tokens - known);
    g->match = guess_index_find(g->index, n, g->ids);
    int n_forced = propose_forced(s, n, forced);
    if (n_forced > 0 &&
        (g->match == 0 || memcmp(g->ids, forced, (size_t)n_forced * sizeof *forced) != 0)) {
        memcpy(g->ids, forced, (size_t)n_forced * sizeof *forced);
        g->match = GUESS_FORCED;
        n = n_forced;
    }
    g->n_found = g->match > 0 ? n : 0;
    return g->n_found;
}

/* Learns whether the next token of the proposal was chosen. Proposals are judged whether or not
 * they were computed. */
static void judge_proposal(struct seq *s, int32_t id)
{
    struct seq_guess *g = &s->guess;
    if (g->match == 0)
        return;
    bool hit = g->ids[g->n_taken] == id;
    guess_learn(&g->rates, &s->shared->guess_rates, g->match, hit);
    s->out.r.guessed_right += hit && g->n_taken < g->n;
    g->n_taken++;
    g->match = hit && g->n_taken < g->n_found ? guess_longer(g->match, 1) : 0;
}

/* Extends the digest by the present logits. */
static void digest_logits(struct seq *s, int vocab)
{
    uint64_t link[2] = {s->out.r.logits_digest,
                        checksum64(s->logits, (size_t)vocab * sizeof *s->logits)};
    s->out.r.logits_digest = checksum64(link, sizeof link);
}

/* Appends the token that was chosen (s->next) to the answer, or fails s if none could be chosen.
 * Ends s if the answer is complete. */
static void take_token(struct seq *s)
{
    const struct model_config *c = &s->shared->model->cfg;
    int32_t id = s->next;
    if (s->form_err.code != 0) {
        seq_fail(s, s->form_err.code, s->form_err.msg);
        return;
    }
    if (id == SAMPLE_NO_TOKEN) {
        seq_fail(s, ERR_UNSUPPORTED,
                 "no token can be chosen: all logits are NaN. The weights hold a NaN or an "
                 "infinity (download them again), or values overflow");
        return;
    }
    if (s->req->ask.digest)
        digest_logits(s, c->vocab_size);
    if (s->t_first == 0) {
        s->t_first = clock_now_ns();
        s->out.r.timings.ttft_ms = clock_ms(s->t_first - s->t_admit);
    }
    enter(s, PHASE_DECODE);
    judge_proposal(s, id);
    if ((!s->req->ask.ignore_eos && config_is_eos(c, id)) ||
        shaping_stops(s->req->ask.shaping, id)) {
        seq_finish(s, FINISH_EOS);
        return;
    }
    s->tokens[s->n_tokens++] = id;
    view_add(&s->view, id);
    s->out.r.n_tokens++;
    bool complete = s->req->form != NULL &&
                    form_take(s->req->form, &s->place, request_answer(s->req),
                              s->n_tokens - s->req->ask.n_prompt);
    if (s->req->on_token != NULL && s->req->on_token(s->req->arg, id) != 0)
        seq_finish(s, FINISH_CANCELLED);
    else if (complete) /* nothing can follow, so the answer need not say that it ends */
        seq_finish(s, FINISH_EOS);
    else if (s->out.r.n_tokens == s->req->ask.max_tokens)
        seq_finish(s, FINISH_LENGTH);
}

void seq_advance(struct seq *s)
{
    struct hcache_timings *t = &s->out.r.timings;
    CHECK(s->phase == PHASE_PREFILL || s->phase == PHASE_DECODE);
    s->n_done += s->n_rows;
    save_advance(s->save, s->tokens, seq_at(s));
    keep_new(s);
    snapshot_here(s);
    stairs_advanced(s);
    if (seq_at(s) < s->n_tokens)
        return; /* prefill goes on, possibly on the next stair */
    if (s->phase == PHASE_PREFILL && s->t_first == 0 && s->out.r.n_preempted == 0)
        t->prefill_ms = clock_ms(clock_now_ns() - s->t_admit) - t->lookup_ms -
                        t->restore_ms;
    if (s->phase == PHASE_PREFILL)
        reading_end(s);
    if (s->req->ask.max_tokens == 0)
        seq_finish(s, FINISH_LENGTH);
    else
        take_token(s);
}

/* --- questions -------------------------------------------------------------------------------- */

void seq_take_result(struct seq *s, struct hcache_result *out)
{
    *out = s->out.r;
    s->out.r.predicted = s->out.r.measured = (struct hcache_lanes){0};
    s->out.r.embedding = NULL;
    s->out.r.prompt_logprobs = NULL;
}

const struct outcome *seq_outcome(const struct seq *s)
{
    return &s->out;
}

int seq_tokens_done(const struct seq *s)
{
    return s->n_done >= view_moved(&s->view) ? seq_at(s) : 0;
}

enum save_end seq_save_end(const struct seq *s)
{
    return save_ended(s->save);
}

const float *seq_logits(const struct seq *s)
{
    return s->logits;
}

const struct kv_table *seq_table(const struct seq *s)
{
    return &s->table;
}
