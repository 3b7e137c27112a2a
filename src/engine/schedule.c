/* schedule.c - from the engine's sequences to the scheduler's view of them, and its decision back.
 *
 * What is decided is in policy/sched.c; here it is carried out.  A sequence that gets a place takes
 * what the KV cache knows of its tokens and blocks for the rest.  One that loses it gives its blocks
 * back, where they stay known until somebody needs them; its chunks that were full are saved or on
 * their way, and it is not admitted again before they have arrived. */
#include "engine/seq.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

/* Of a prompt beside decodes: below 16 rows a GEMM takes hardly less time. */
enum { LEAST_ROWS = 16 };

static int blocks_for(int64_t n_tokens)
{
    return (int)((n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
}

/* Blocks that a sequence begins with: for the tokens that it knows, and one more. */
static int blocks_wanted(const struct seq *s)
{
    int n_max = s->req.n_prompt + s->req.max_tokens;
    return blocks_for(s->n_tokens < n_max ? s->n_tokens + 1 : n_max);
}

/* --- what the KV cache knows ------------------------------------------------------------------ */

static bool is_saved(const struct engine *e, const struct seq *s)
{
    unsigned kinds = 0;
    for (int l = 0; l < e->o.model->cfg.n_layers && l < STORE_MAX_LAYERS; l++)
        kinds |= s->req.save.kinds[l];
    return e->o.saver != NULL && kinds != 0;
}

/* A plan that was asked for is carried out, whatever is on the device. */
static bool may_reuse(const struct engine *e, const struct seq *s)
{
    return e->o.reuse && (s->plan == NULL || strcmp(s->plan, "auto") == 0);
}

/* The last known token is computed in any case: its logits are wanted. */
static int find_known(const struct engine *e, const struct seq *s, int *n_unused)
{
    *n_unused = 0;
    return may_reuse(e, s) ? kv_pool_find(e->pool, &s->chain.root, s->tokens,
                                          s->n_tokens - 1, is_saved(e, s), n_unused)
                           : 0;
}

/* Full blocks are shared.  The one in which the sequence diverges is copied, unless it is saved: then
 * its rows are wanted once more, since a chunk is saved whole. */
static int take_known(struct engine *e, struct seq *s, struct err *err)
{
    int n_copied = 0, rc = 0;
    if (!may_reuse(e, s))
        return 0;
    bool saved = is_saved(e, s);
    int n = kv_table_take(e->pool, &s->table, &s->chain.root, s->tokens, s->n_tokens - 1,
                          saved);
    if (!saved)
        rc = kv_table_copy_tail(e->pool, &s->table, e->stream, &s->chain.root, s->tokens,
                                s->n_tokens - 1, &n_copied, err);
    s->n_done = n * KV_BLOCK_TOKENS + n_copied;
    return rc;
}

static void keep(struct engine *e, struct seq *s)
{
    if (!s->has_gap)
        kv_table_keep(e->pool, &s->table, &s->chain.root, s->tokens, s->n_done);
}

void schedule_keep(struct engine *e, struct seq *s)
{
    bool prompt_ends = s->phase == PHASE_PREFILL && s->n_done == s->n_tokens;
    if (s->n_done / KV_BLOCK_TOKENS > s->table.n_known || prompt_ends)
        keep(e, s);
    if (s->save != NULL && save_ended(s->save) == SAVE_GOES_ON)
        kv_table_mark_saved(e->pool, &s->table, s->n_done / KV_BLOCK_TOKENS);
}

void schedule_drop_blocks(struct engine *e, struct seq *s)
{
    if (s->n_done > 0 && s->table.n_blocks > 0)
        keep(e, s);
    kv_table_cut(e->pool, &s->table, 0);
    s->has_gap = false;
}

/* --- the scheduler's view --------------------------------------------------------------------- */

/* Whether x will have what s lacks first: its next chunk, or, where that is all and may be copied, the
 * rest of its prompt. */
static bool is_ahead(const struct engine *e, const struct seq *x, const struct seq *s,
                     int n_known)
{
    int from = n_known * KV_BLOCK_TOKENS, to = from + KV_BLOCK_TOKENS;
    if (to < s->n_tokens)
        return x->chain.n_chunks > n_known && x->n_done < to &&
               memcmp(&x->chain.keys[n_known], &s->chain.keys[n_known],
                      sizeof(struct sha256)) == 0;
    to = s->n_tokens - 1;
    return !is_saved(e, s) && to > from && x->n_tokens >= to && x->n_done < to &&
           memcmp(chain_parent(&x->chain, n_known), chain_parent(&s->chain, n_known),
                  sizeof(struct sha256)) == 0 &&
           memcmp(x->tokens + from, s->tokens + from,
                  (size_t)(to - from) * sizeof(int32_t)) == 0;
}

static int leader_of(const struct engine *e, int me, int n_known)
{
    const struct seq *s = e->seqs[me];
    for (int i = 0; may_reuse(e, s) && i < e->n_live; i++) {
        const struct seq *x = e->seqs[i];
        bool comes = x->phase == PHASE_RESTORE || x->phase == PHASE_PREFILL ||
                     (x->phase == PHASE_WAIT && i < me);
        if (comes && x->chain.n_chunks >= n_known && is_ahead(e, x, s, n_known))
            return i;
    }
    return -1;
}

/* Nothing is looked up while there is no place: it would be for nothing, in every step. */
static void describe_waiting(const struct engine *e, int i, bool is_full,
                             struct sched_req *r)
{
    const struct seq *s = e->seqs[i];
    int n_unused = 0, n_known = is_full ? 0 : find_known(e, s, &n_unused);
    r->rows = s->n_tokens - n_known * KV_BLOCK_TOKENS;
    r->blocks_needed = blocks_wanted(s) - n_known + n_unused;
    r->is_held = s->save != NULL && !save_is_settled(s->save);
    r->after = is_full ? -1 : leader_of(e, i, n_known);
}

static void describe(const struct engine *e, int i, bool is_full, struct sched_req *r)
{
    static const enum sched_phase phases[] = {[PHASE_WAIT] = SCHED_WAITING,
                                              [PHASE_RESTORE] = SCHED_RESTORE,
                                              [PHASE_PREFILL] = SCHED_PREFILL,
                                              [PHASE_DECODE] = SCHED_DECODE};
    const struct seq *s = e->seqs[i];
    *r = (struct sched_req){.phase = phases[s->phase],
                            .priority = s->req.priority,
                            .arrival_ns = s->t_arrival,
                            .deadline_ns = s->req.deadline_ns,
                            .rows = s->n_tokens - s->n_done,
                            .after = -1};
    if (s->phase == PHASE_WAIT) {
        describe_waiting(e, i, is_full, r);
        return;
    }
    r->blocks_freed = kv_table_own_blocks(e->pool, &s->table);
    if (s->phase == PHASE_RESTORE) /* its work is no part of the batch */
        r->rows = 0;
    if (s->phase == PHASE_DECODE)
        r->blocks_needed = s->n_done >= s->table.n_blocks * KV_BLOCK_TOKENS;
}

/* --- carrying out ----------------------------------------------------------------------------- */

static void time_out(struct engine *e, struct seq *s)
{
    restoring_abandon(e, s);
    seq_finish(s, FINISH_TIMEOUT);
    schedule_drop_blocks(e, s);
    e->stats.n_timed_out++;
}

/* A plan that was asked for may want records that its last chunks do not have: it is dropped. */
static void preempt(struct engine *e, struct seq *s)
{
    restoring_abandon(e, s);
    save_idle(s->save, s->tokens, s->n_done);
    if (s->phase != PHASE_RESTORE || !s->was_preempted)
        s->first = s->out;
    schedule_drop_blocks(e, s);
    save_stop(s->save);
    free(s->plan);
    s->plan = NULL;
    s->n_done = 0;
    s->phase = PHASE_WAIT;
    s->was_preempted = true;
    s->first.n_preempted++;
    s->out = s->first;
    e->stats.n_preempted++;
    chain_extend(&s->chain, s->tokens, s->n_tokens);
}

/* What a sequence had saved before it was preempted is in the store: it is found there. */
static void forget_save(struct engine *e, struct seq *s)
{
    save_close(s->save);
    s->save = NULL;
    if (s->pin.impl != NULL)
        store_release(e->o.store, &s->pin, 1);
    s->pin.impl = NULL;
}

/* --- beginning -------------------------------------------------------------------------------- */

/* Pins the chunk n - 1 of s, and with it all before it. */
static bool pin_chunks(struct engine *e, struct seq *s, int n)
{
    return n > 0 && e->o.store != NULL &&
           store_pin(e->o.store, &s->chain.keys[n - 1], &s->pin);
}

/* Whether the store reaches further than the device. */
static bool store_has_more(struct engine *e, struct seq *s)
{
    int next = s->n_done / STORE_CHUNK_TOKENS + 1;
    bool wanted = next <= (s->n_tokens - 1) / STORE_CHUNK_TOKENS;
    bool found = wanted && pin_chunks(e, s, next);
    if (found)
        store_release(e->o.store, &s->pin, 1);
    s->pin.impl = NULL;
    return found;
}

/* What is told of a sequence that was preempted is what its prompt met the first time. */
static void tell_first(struct engine *e, struct seq *s)
{
    struct outcome again = s->out;
    s->out = s->first;
    s->out.n_stored = again.n_stored > s->out.n_stored ? again.n_stored : s->out.n_stored;
    s->out.restore.read_bytes += again.restore.read_bytes;
    s->out.restore_ns += again.restore_ns;
    s->out.n_recovered += s->n_done;
    e->stats.recovered_tokens += (uint64_t)s->n_done;
    e->stats.recomputed_tokens += (uint64_t)(s->n_tokens - s->n_done);
}

void seq_open_save(struct engine *e, struct seq *s, int first_token,
                   const struct store_hit *tail)
{
    if (s->save != NULL || !is_saved(e, s))
        return;
    struct save_begin b = {
        .first_token = first_token,
        .parent = chain_parent(&s->chain, first_token / STORE_CHUNK_TOKENS),
        .tail = tail,
        .policy = &s->req.save,
        .owner = store_owner(s->salt),
        .is_document = s->req.max_tokens == 0};
    s->save = save_open(e->o.saver, &b);
}

/* The state that a sequence takes over may still be on its way to the store; its own chunks follow it
 * there in order. */
void schedule_prefill(struct engine *e, struct seq *s)
{
    int n = s->n_done / KV_BLOCK_TOKENS;
    bool is_stored = s->out.n_stored >= n * KV_BLOCK_TOKENS;
    s->phase = PHASE_PREFILL;
    if (s->was_preempted)
        tell_first(e, s);
    else if (s->out.n_device > s->n_done) /* a chunk over a copied tail was lost */
        s->out.n_device = s->n_done;
    if (n > s->table.n_known)
        keep(e, s);
    if (is_stored)
        kv_table_mark_saved(e->pool, &s->table, n);
    s->n_before_save = s->n_done;
    seq_open_save(e, s, s->n_done, &s->pin);
}

/* From the device, and from the store where that reaches further. */
static void begin(struct engine *e, struct seq *s)
{
    if (s->n_done == 0 || store_has_more(e, s)) {
        restoring_begin(e, s);
        return;
    }
    int n = s->n_done / STORE_CHUNK_TOKENS;
    s->out.n_cached = s->n_done;
    s->out.n_stored = pin_chunks(e, s, n) ? n * STORE_CHUNK_TOKENS : 0;
    schedule_prefill(e, s);
}

static void admit(struct engine *e, struct seq *s)
{
    struct err err = {0};
    forget_save(e, s);
    int rc = take_known(e, s, &err);
    if (rc == 0)
        rc = kv_table_reserve(e->pool, &s->table,
                              (int64_t)blocks_wanted(s) * KV_BLOCK_TOKENS, &err);
    if (rc != 0) { /* the next decision sees that they are not there */
        schedule_drop_blocks(e, s);
        s->n_done = 0;
        return;
    }
    s->t_start = clock_now_ns();
    if (!s->was_preempted) {
        s->t_admit = s->t_start;
        s->out.n_device = s->n_done;
        if (s->req.on_admit != NULL)
            s->req.on_admit(s->req.arg);
    }
    begin(e, s);
}

/* --- the step --------------------------------------------------------------------------------- */

/* Those that have ended keep their blocks until the next step: tests look at them. */
static int count_running(struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_seqs; i++) {
        struct seq *s = e->seqs[i];
        if (s->phase == PHASE_DONE)
            schedule_drop_blocks(e, s);
        else
            n += s->phase != PHASE_WAIT;
    }
    return n;
}

/* The sequences that have not ended, in order: the scheduler's requests. */
static int list_live(struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_seqs; i++) {
        struct seq *s = e->seqs[i];
        s->rows = 0;
        if (s->phase !=
            PHASE_DONE) { /* they move to the front; who has ended, behind them */
            e->seqs[i] = e->seqs[n];
            e->seqs[n++] = s;
        }
    }
    return n;
}

static void average(double *mean, double x)
{
    *mean += (x - *mean) * (*mean == 0 ? 1 : 0.125);
}

void schedule_learn(struct engine *e, int n_decodes, int n_rows, int64_t ns)
{
    int n_prefill = n_rows - n_decodes;
    if (n_prefill == 0)
        average(&e->decode_ns, (double)ns);
    else if (n_decodes == 0)
        average(&e->row_ns, (double)ns / n_rows);
    else if ((double)ns > e->decode_ns)
        average(&e->row_ns, ((double)ns - e->decode_ns) / n_prefill);
}

void schedule(struct engine *e)
{
    struct sched_limits l = {.now_ns = clock_now_ns(),
                             .age_ns = e->o.age_ns,
                             .step_rows = e->o.step_rows,
                             .rows_beside = sched_rows_beside(e->decode_ns, e->row_ns,
                                                              SCHEDULE_STRETCH, LEAST_ROWS),
                             .max_running = e->o.max_seqs};
    e->rows_beside = l.rows_beside;
    bool is_full = count_running(e) >= e->o.max_seqs;
    int n = e->n_live = list_live(e);
    l.free_blocks = kv_pool_free_blocks(e->pool);
    for (int i = 0; i < n; i++)
        describe(e, i, is_full, &e->sched[i]);
    sched_decide(&l, e->sched, n, e->order, e->choice);
    for (int i = 0; i < n; i++) {
        if (e->choice[i].what == SCHED_TIME_OUT)
            time_out(e, e->seqs[i]);
        else if (e->choice[i].what == SCHED_PREEMPT)
            preempt(e, e->seqs[i]);
    }
    for (int k = 0; k < n; k++) {
        struct seq *s = e->seqs[e->order[k]];
        const struct sched_choice *c = &e->choice[e->order[k]];
        if (c->what == SCHED_ADMIT)
            admit(e, s);
        s->rows = c->rows;
        if (s->phase == PHASE_DECODE && c->rows > 0) {
            int rc = kv_table_reserve(e->pool, &s->table, s->n_done + 1, NULL);
            CHECK(rc == 0); /* sched_decide counts blocks */
        }
    }
}
