/* engine.c - see engine.h: creation, admission, and the step.
 *
 *   schedule.c     ends, preempts and admits sequences; gives each its rows
 *   step.c         one forward pass over those rows; zigzag.c: in mini-batches
 *   restoring.c    restores, in the rest of the step, and new tokens that follow them
 *   seq.c          one sequence, and its phases
 *
 * Each file calls only files below it. Invariants:
 * 1. A running sequence has blocks for the rows that it gets: schedule.c takes them.
 * 2. A step allocates no memory, except when a sequence begins. */
#include "engine/engine.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/engine_impl.h"
#include "engine/stairs.h"

/* --- creation --------------------------------------------------------------------------------- */

static int64_t n_blocks(const struct engine_opts *o)
{
    return (int64_t)round_up((uint64_t)o->max_kv_tokens, KV_BLOCK_TOKENS) / KV_BLOCK_TOKENS;
}

static struct kv_pool_opts pool_opts(const struct engine *e)
{
    const struct model *m = e->o.model;
    return (struct kv_pool_opts){
        .n_layers = config_n_keeping(&m->cfg),
        .n_kv = m->cfg.n_kv_heads / m->dev->n_ranks,
        .d_head = m->cfg.d_head,
        .local = m->cfg.windowed,
        .local_n_kv = m->cfg.local_kv_heads,
        .local_d_head = m->cfg.local_d_head,
        .dtype = m->dtype,
        .recurrent = m->cfg.recurrent,
        .state_bytes = model_state_room(&m->cfg, e->o.most_guesses > 0),
        .n_states = e->o.max_seqs,
        .keep = e->o.reuse,
        .policy = e->o.policy,
        .n_blocks = (int)n_blocks(&e->o)};
}

static int reserve_pool(struct engine *e, struct err *err)
{
    const struct model *m = e->o.model;
    struct kv_pool_opts o = pool_opts(e);
    struct kv_pool_numbers numbers = {0};
    if (mixed_is_on(&e->mixed)) {
        numbers = mixed_numbers(&e->mixed);
        o.numbers = &numbers;
    }
    return kv_pool_create(m->dev, &o, &e->shared.pool, err);
}

static bool has_copies(struct store *store)
{
    struct store_dram d = {0};
    if (store != NULL)
        store_dram_stats(store, &d);
    return d.cap_bytes > 0;
}

static int reserve_restoring(struct engine *e, struct err *err)
{
    struct restore_phase_opts o = {.platform = e->o.platform,
                                   .measure_ahead = e->o.measure_ahead,
                                   .throttle_bytes_per_s = e->o.throttle_bytes_per_s,
                                   .staging_bytes = e->o.staging_bytes,
                                   .rest_ns = e->o.rest_ns,
                                   .direct = e->o.direct,
                                   .fetches = e->o.fetches,
                                   .remote = e->o.remote,
                                   .max_rows = e->o.max_batch_rows};
    return restore_phase_init(&e->restores, &o, &e->shared, &e->next, err);
}

_Static_assert((int)GUESS_MOST <= DELTA_AHEAD,
               "recurrent layers keep the inputs of guesses");

static struct zigzag_opts zigzag_opts_of(const struct engine_opts *o)
{
    return (struct zigzag_opts){.model = o->model,
                                .max_rows = o->step_rows,
                                .piece_rows = o->piece_rows,
                                .max_seqs = o->max_seqs,
                                .by_sequence = o->mixed != NULL};
}

/* Reserves blocks with types and places if the options ask for them. */
static int reserve_mixed(struct engine *e, struct err *err)
{
    const struct mixed_opts *o = e->o.mixed;
    int64_t n = 0;
    if (o == NULL)
        return 0;
    CHECK(e->o.store == NULL && e->o.saver == NULL);
    for (int c = 0; c < PLACES_CLASSES; c++)
        n += o->n[c];
    CHECK(n > 0 && n <= MIXED_MAX_BLOCKS);
    e->o.max_kv_tokens = n * KV_BLOCK_TOKENS;
    return mixed_init(&e->mixed, o, e->o.model, e->shared.work, e->shared.stream,
                      &e->zigzag, e->o.max_seqs, err);
}

int engine_create(const struct engine_opts *o, struct engine **out, struct err *err)
{
    CHECK(o->max_batch_rows >= RESTORE_GROUP_CHUNKS * STORE_CHUNK_TOKENS);
    CHECK(o->step_rows > 0 && o->piece_rows >= 0 && o->piece_rows <= o->max_batch_rows);
    CHECK(o->max_seqs > 0 && o->max_seqs <= o->max_batch_rows);
    CHECK(o->most_guesses <= GUESS_MOST);
    CHECK(o->most_guesses == 0 || (o->model->dev->unified && o->mixed == NULL));
    struct engine *e = xcalloc(1, sizeof *e);
    e->o = *o;
    e->guesses = xcalloc((size_t)o->max_seqs, sizeof *e->guesses);
    if (o->piece_rows == 0)
        e->o.piece_rows = o->max_batch_rows;
    e->shared = (struct seq_shared){.model = o->model,
                                    .store = o->store,
                                    .saver = o->saver,
                                    .has_remote = o->remote != NULL,
                                    .fingerprint = o->fingerprint,
                                    .reuse = o->reuse,
                                    .most_guesses = o->most_guesses,
                                    .guess_rates = guess_rates_first(),
                                    .tells_held = has_copies(o->store)};
    struct schedule_opts so = {.max_seqs = o->max_seqs,
                               .step_rows = o->step_rows,
                               .no_limit_beside = o->step_rows > e->o.piece_rows,
                               .age_ns = o->age_ns > 0 ? o->age_ns : 1000000000};
    schedule_init(&e->schedule, &so, &e->shared, &e->restores);
    step_batch_init(&e->batch, &e->shared, &e->next, &e->zigzag, &e->mixed,
                    MAX(o->step_rows, o->max_batch_rows), o->max_seqs);
    const struct zigzag_opts zo = zigzag_opts_of(&e->o);
    int rc = stream_create(o->model->dev, STREAM_COMPUTE, &e->shared.stream, err);
    if (rc == 0)
        rc = model_work_create(o->model, o->max_batch_rows, &e->shared.work, err);
    if (rc == 0)
        rc = zigzag_init(&e->zigzag, &zo, err);
    if (rc == 0)
        rc = reserve_mixed(e, err);
    if (rc == 0)
        rc = reserve_pool(e, err);
    /* If twice as many waiting requests need a block, it counts as needed earlier: by the waiting
     * time that one step of priority is worth. */
    if (rc == 0)
        kv_pool_set_step(e->shared.pool, (uint64_t)so.age_ns);
    if (rc == 0 && o->store != NULL)
        store_set_step(o->store, (uint64_t)so.age_ns);
    if (rc == 0)
        rc = next_token_init(&e->next, o->model,
                             next_token_rows(o->max_seqs, o->most_guesses), err);
    if (rc == 0 && o->store != NULL)
        rc = reserve_restoring(e, err);
    if (rc != 0) {
        engine_destroy(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_destroy(struct engine *e)
{
    if (e == NULL)
        return;
    stream_destroy(e->shared.stream);
    schedule_deinit(&e->schedule);
    restore_phase_deinit(&e->restores);
    kv_pool_destroy(e->shared.pool);
    model_work_destroy(e->shared.work);
    next_token_deinit(&e->next);
    step_batch_deinit(&e->batch);
    mixed_deinit(&e->mixed);
    zigzag_deinit(&e->zigzag);
    free(e->guesses);
    free(e);
}

void engine_rest(struct engine *e)
{
    model_work_rest(e->shared.work);
    buf_rest(e->o.model->dev, &e->next.mem);
    stream_rest(e->shared.stream);
}

size_t engine_bytes(const struct engine *e, size_t *kv, size_t *activations,
                    size_t *restore)
{
    const struct model *m = e->o.model;
    const struct zigzag_opts zo = zigzag_opts_of(&e->o);
    const struct kv_pool_opts po = pool_opts(e);
    *kv = mixed_is_on(&e->mixed)
              ? places_device_bytes(&e->mixed.places.o) + e->mixed.kv_mem.bytes
              : kv_pool_bytes(&po);
    size_t n_stages = (size_t)m->dev->n_stages;
    *activations = n_stages *
                       (model_work_bytes(m, e->o.max_batch_rows) + zigzag_bytes(&zo)) +
                   e->next.mem.bytes;
    *restore = restore_phase_bytes(&e->restores);
    return *kv + *activations + *restore;
}

size_t engine_host_bytes(const struct engine *e)
{
    return mixed_is_on(&e->mixed) ? places_host_bytes(&e->mixed.places.o) : 0;
}

bool engine_mixed_stats(const struct engine *e, struct mixed_stats *out)
{
    if (mixed_is_on(&e->mixed))
        *out = e->mixed.stats;
    return mixed_is_on(&e->mixed);
}

const struct kv_pool *engine_pool(const struct engine *e)
{
    return e->shared.pool;
}

void engine_stats(const struct engine *e, struct engine_stats *out)
{
    const struct kv_pool *pool = e->shared.pool;
    *out = e->shared.stats;
    out->blocks = kv_pool_n_blocks(pool);
    out->blocks_free = kv_pool_free_blocks(pool);
    out->blocks_kept = kv_pool_kept_blocks(pool);
    out->n_evicted = kv_pool_n_evicted(pool);
    out->link_bytes = e->mixed.stats.up_bytes;
    out->link_down_bytes = e->mixed.stats.down_bytes;
    struct weights_stream_stats weights;
    weights_stats(&e->o.model->w, &weights);
    out->weights_read_bytes = weights.read_bytes;
}

/* --- sequences -------------------------------------------------------------------------------- */

/* Returns whether the moved tokens of a truncated context can come back: every layer but the
 * first needs records. */
static bool saves_all(const struct engine *e, const struct request *r)
{
    bool all = e->o.saver != NULL;
    for (int l = 1; l < config_n_keeping(&e->o.model->cfg) && l < STORE_MAX_LAYERS; l++)
        all = all && r->save.kinds[l] != 0;
    return all;
}

static int check_truncation(const struct engine *e, const struct request *r,
                            struct err *err)
{
    int64_t n_max = (int64_t)r->ask.n_prompt + r->ask.max_tokens, c = r->truncation.context;
    int64_t pool = (int64_t)kv_pool_n_blocks(e->shared.pool) * KV_BLOCK_TOKENS;
    if (c > e->o.model->max_ctx)
        return err_set(
            err, ERR_LIMIT,
            "truncation: a window of %lld tokens, but there is room for contexts "
            "of %d only (--max-context)",
            (long long)c, e->o.model->max_ctx);
    if (n_max > c && c > pool)
        return err_set(err, ERR_LIMIT,
                       "truncation: a window of %lld tokens, but the KV cache holds %lld; "
                       "make it larger (--kv-tokens)",
                       (long long)c, (long long)pool);
    if (n_max > c && !saves_all(e, r))
        return err_set(err, ERR_LIMIT,
                       "the prompt has %d tokens and %d are to be generated; a context is "
                       "truncated at %lld tokens only if every layer is saved in a store",
                       r->ask.n_prompt, r->ask.max_tokens, (long long)c);
    return 0;
}

static int check_fit(const struct engine *e, const struct request *r, struct err *err)
{
    int64_t n_max = (int64_t)r->ask.n_prompt + r->ask.max_tokens;
    int64_t pool = (int64_t)kv_pool_n_blocks(e->shared.pool) * KV_BLOCK_TOKENS;
    if (r->truncation.context > 0 && n_max > r->truncation.context)
        return check_truncation(e, r, err);
    if (r->ask.n_prompt > e->o.model->max_ctx)
        return err_set(err, ERR_LIMIT,
                       "the prompt has %d tokens, but the maximum context length is %d",
                       r->ask.n_prompt, e->o.model->max_ctx);
    if (n_max > e->o.model->max_ctx)
        return err_set(
            err, ERR_LIMIT,
            "the prompt has %d tokens and %d are to be generated, but the maximum context "
            "length is %d; shorten the prompt or lower --max-tokens",
            r->ask.n_prompt, r->ask.max_tokens, e->o.model->max_ctx);
    if (n_max > pool)
        return err_set(err, ERR_LIMIT,
                       "the prompt has %d tokens and %d are to be generated, but the KV "
                       "cache holds %lld; make it larger (--kv-tokens)",
                       r->ask.n_prompt, r->ask.max_tokens, (long long)pool);
    return 0;
}

int engine_add(struct engine *e, struct request *r, struct seq **out, struct err *err)
{
    CHECK(r->ask.n_prompt > 0 && r->ask.max_tokens >= 0);
    int rc = check_fit(e, r, err);
    if (rc != 0)
        return rc;
    *out = seq_create(&e->shared, r);
    if (*out == NULL)
        return err_set(err, -ENOMEM, "no memory for a prompt of %d tokens and its answer",
                       r->ask.n_prompt);
    schedule_add(&e->schedule, *out);
    return 0;
}

void engine_forget_saved(struct engine *e)
{
    kv_pool_unmark_saved(e->shared.pool);
}

void engine_remove(struct engine *e, struct seq *s)
{
    schedule_remove(&e->schedule, s);
    restore_phase_abandon(&e->restores, s);
    seq_destroy(s);
}

/* --- the step --------------------------------------------------------------------------------- */

/* Returns whether this step gives a decoding sequence its row. */
static bool decodes(const struct seq *s)
{
    return s->phase == PHASE_DECODE && s->rows > 0;
}

/* Proposes what may follow each decode, and decides how much of it this pass computes. Beside
 * prompts nothing is guessed: a row costs as much there as a row of a prompt. */
static void guess(struct engine *e)
{
    const struct schedule *c = &e->schedule;
    const struct guess_rates *all = &e->shared.guess_rates;
    bool beside_prompts = false;
    int n = 0;
    for (int i = 0; i < c->n_live; i++) {
        struct seq *s = c->seqs[i];
        s->guess.n = 0; /* a sequence that waited for the saver may have kept its guesses */
        beside_prompts |= s->phase == PHASE_PREFILL && s->rows > 0;
    }
    if (beside_prompts)
        return;
    for (int i = 0; i < c->n_live; i++) {
        struct seq *s = c->seqs[i];
        if (!decodes(s))
            continue;
        struct guess_seq *g = &e->guesses[n++];
        *g = (struct guess_seq){.most = seq_propose(s, GUESS_MOST)};
        for (int k = 0; k < g->most; k++)
            g->rate[k] = guess_rate(&s->guess.rates, all, guess_longer(s->guess.match, k));
    }
    int room = MIN(e->o.step_rows, e->o.piece_rows) - n; /* guesses make no second piece */
    int most = MAX(0, MIN(GUESS_ROWS, room));
    if (e->o.always_guesses)
        guess_all(e->guesses, n, most);
    else
        guess_decide(&e->guess_speed, e->guesses, n, most);
    n = 0;
    for (int i = 0; i < c->n_live; i++)
        if (decodes(c->seqs[i]))
            c->seqs[i]->guess.n = e->guesses[n++].n;
}

/* Decodes come first, so they never stall behind a long prompt. Then come prefill pieces, the
 * best rank first. Decodes never wait for the saver: if all its buffers are on their way to the
 * store, the saver stops saving that sequence. A decode of a truncated sequence waits for a
 * later step instead, because its state must come back when its window moves. A prefill waits
 * for a buffer; if the step has other work, it waits for a later step. A sequence that carries
 * its view needs no buffer of the store, so it waits for none. */
static void make_batch(struct engine *e)
{
    struct step_batch *b = &e->batch;
    const struct schedule *c = &e->schedule;
    step_batch_clear(b);
    if (e->o.most_guesses > 0)
        guess(e);
    for (int i = 0; i < c->n_seqs; i++) {
        struct seq *s = c->seqs[i];
        if (!decodes(s))
            continue;
        if (save_reserve(s->save, seq_at(s), 1 + s->guess.n,
                         stairs_need_store(s) ? SAVE_TRY : SAVE_SHED))
            step_batch_add(b, s, 1 + s->guess.n);
    }
    for (int i = 0; i < c->n_live; i++) {
        struct seq *s = schedule_ranked(c, i);
        if (s->phase != PHASE_PREFILL || s->rows == 0)
            continue;
        int left = s->view.n_tokens - s->n_done;
        int n = MIN(left, MIN(s->rows, seq_rows_to_snapshot(s, s->n_done)));
        enum save_wait how = carry_is_on(&s->stairs.carry) ? SAVE_SHED
                             : b->n_seqs > 0               ? SAVE_TRY
                                                           : SAVE_WAIT;
        if (save_reserve(s->save, seq_at(s), n, how))
            step_batch_add(b, s, n);
    }
}

static int count_decodes(const struct step_batch *b)
{
    return seq_count((struct seq_list){b->seqs, b->n_seqs}, PHASE_DECODE);
}

static int count_guesses(const struct step_batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n_seqs; i++)
        n += b->seqs[i]->guess.n;
    return n;
}

/* Pause of a step in which every sequence waits for the saver. */
enum { IDLE_NS = 200000 };

/* Runs the batch. *free_ns gets the time that beside_free_ns (restore/beside.h) computes. */
static int run_batch(struct engine *e, int64_t *free_ns, struct err *err)
{
    struct weights_stream_stats before, after;
    weights_stats(&e->o.model->w, &before);
    int rc = step_batch_run(&e->batch, err);
    weights_stats(&e->o.model->w, &after);
    *free_ns = beside_free_ns(after.wait_ns - before.wait_ns, after.ahead_ns);
    return rc;
}

/* One step: new sequences begin to restore, the batch goes forward, and restores get the rest of
 * the step's time. */
int engine_step(struct engine *e, int *n_active, struct err *err)
{
    schedule_step(&e->schedule);
    make_batch(e);
    int64_t t0 = clock_now_ns(), batch_ns = 0, free_ns = 0;
    int n_decodes = count_decodes(&e->batch), n_rows = e->batch.n_rows;
    int n_guesses = count_guesses(&e->batch);
    if (n_rows > 0) {
        double believed_s = restore_phase_believes(&e->restores, &e->batch);
        int rc = run_batch(e, &free_ns, err);
        if (rc != 0)
            return rc;
        batch_ns = clock_now_ns() - t0;
        restore_phase_learns(&e->restores, believed_s, batch_ns);
        if (n_guesses == 0)
            beside_learn(&e->schedule.speed, n_decodes, n_rows, batch_ns);
        if (n_decodes + n_guesses == n_rows)
            guess_speed_learn(&e->guess_speed, n_rows, batch_ns);
    }
    struct seq_list l = schedule_list(&e->schedule);
    bool restores = seq_count(l, PHASE_RESTORE) > 0;
    if (e->restores.pipeline != NULL)
        restore_phase_step(
            &e->restores, l,
            &(struct restore_phase_budget){
                .batch_ns = batch_ns,
                .free_ns = free_ns,
                .n_decodes = n_decodes,
                .rows_left = beside_rows_left(e->o.step_rows, e->schedule.rows_beside,
                                              n_decodes + n_guesses, n_rows)});
    int rc = step_recover(e->shared.stream, err);
    if (rc != 0)
        return rc;
    *n_active = l.n - seq_count(l, PHASE_DONE);
    if (n_rows == 0 && !restores && *n_active > 0)
        clock_sleep_ns(IDLE_NS);
    return 0;
}

int engine_run(struct engine *e, struct err *err)
{
    int n_active, rc;
    do {
        rc = engine_step(e, &n_active, err);
    } while (rc == 0 && n_active > 0);
    return rc;
}
