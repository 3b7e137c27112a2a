/* test_stairs.c - contexts that outgrow their window: every token has the bits of the definition,
 * whatever the sequence's history.
 *
 * The judge computes the definition token by token. It keeps K (before RoPE) and V of all tokens,
 * and fills the cache anew for each stair. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/hash.h"
#include "base/mem.h"
#include "engine/engine_impl.h"
#include "store/chain.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

enum { N_PROMPT = 200, N_STEPS = 10, N_ALL = 256 + 64 * N_STEPS - 5, N_LAST = 12 };
/* Tokens in full chunks of the prompt. The last N_LAST tokens are generated. */
enum { FULL = (N_ALL - N_LAST) / 64 * 64 };

static const struct truncation small = {.context = 256, .step = 64, .keep = 64};
static const struct truncation wide = {.context = 256, .step = 128, .keep = 64};

/* --- the judge -------------------------------------------------------------------------------- */

struct judge {
    struct stack *k;
    struct stream *stream;
    struct model_work *work;
    struct kv_pool *pool;
    struct kv_table table;
    uint8_t *rows; /* [n_layers][N_ALL][2 * kv_dim] T, by token */
    size_t row_bytes;
    int token; /* the present token */
};

static uint8_t *row_of(const struct judge *j, int layer, int token)
{
    return j->rows + ((size_t)layer * N_ALL + (size_t)token) * j->row_bytes;
}

static int keep_row(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct judge *j = arg;
    (void)hidden;
    memcpy(row_of(j, l, j->token), kv_rows.data, j->row_bytes);
    return 0;
}

static struct ragged one_row(const struct judge *j, const int32_t *pos)
{
    static const int32_t seq_row[2] = {0, 1};
    static const int32_t *tables[1];
    tables[0] = j->table.blocks;
    return (struct ragged){
        .n_rows = 1, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
}

/* Fills the cache with all tokens that token p sees, at the positions at which it sees them. */
static void fill_view(struct judge *j, const struct truncation *t, int p)
{
    const struct model *m = j->k->model;
    int64_t cut = truncation_cut(t, p);
    for (int i = 0; i < p; i++) {
        if (!truncation_sees(t, cut, i))
            continue;
        int32_t pos = (int32_t)truncation_position(t, cut, i);
        struct ragged r = one_row(j, &pos);
        for (int l = 0; l < m->cfg.n_layers; l++) {
            struct kv_layer kv = kv_pool_layer(j->pool, l);
            struct mat row = mat_of(row_of(j, l, i), m->dtype, 1, 2 * model_kv_dim(m, 0));
            assert_int_equal(model_kv_fill(m, j->stream, l, &kv, row, &r), 0);
        }
    }
}

/* Returns the digest of the logits after each of tokens [from, n), as a sequence's outcome has
 * it. */
static uint64_t judge(struct stack *k, const struct truncation *t, const int32_t *tokens,
                      int n, int from)
{
    const struct model *m = k->model;
    struct err err = {0};
    struct judge j = {.k = k, .row_bytes = model_kv_bytes(m, 0)};
    struct kv_pool_opts po = {.n_layers = m->cfg.n_layers,
                              .n_kv = m->cfg.n_kv_heads,
                              .d_head = m->cfg.d_head,
                              .dtype = m->dtype,
                              .n_blocks = t->context / 64};
    struct model_tap tap = {.layer = keep_row, .arg = &j};
    float *logits = xcalloc((size_t)m->cfg.vocab_size, sizeof *logits);
    uint64_t digest = 0;
    assert_true(n <= N_ALL);
    j.rows = xcalloc((size_t)m->cfg.n_layers * N_ALL, j.row_bytes);
    assert_int_equal(stream_create(k->dev, STREAM_COMPUTE, &j.stream, &err), 0);
    assert_int_equal(model_work_create(m, 1, &j.work, &err), 0);
    assert_int_equal(kv_pool_create(k->dev, &po, &j.pool, &err), 0);
    assert_int_equal(kv_table_reserve(j.pool, &j.table, t->context, &err), 0);
    for (int p = 0; p < n; p++) {
        int32_t pos = (int32_t)truncation_position(t, truncation_cut(t, p), p);
        struct ragged r = one_row(&j, &pos);
        struct mat x;
        if (truncation_begins(t, p))
            fill_view(&j, t, p);
        j.token = p;
        assert_int_equal(model_forward(m, j.work, j.stream, tokens + p,
                                       kv_pool_layers(j.pool), &r, &tap, &x),
                         0);
        if (p < from)
            continue;
        struct mat row = mat_of(logits, DTYPE_F32, 1, m->cfg.vocab_size);
        assert_int_equal(model_head(m, j.work, j.stream, x, row), 0);
        assert_int_equal(stream_sync(j.stream), 0);
        uint64_t link[2] = {digest,
                            checksum64(logits, (size_t)m->cfg.vocab_size * sizeof *logits)};
        digest = checksum64(link, sizeof link);
    }
    kv_table_free(j.pool, &j.table);
    kv_pool_destroy(j.pool);
    model_work_destroy(j.work);
    stream_destroy(j.stream);
    free(j.rows);
    free(logits);
    return digest;
}

/* --- runs ------------------------------------------------------------------------------------- */

static void open_stack(struct stack *k, const char *dtype, bool reuse)
{
    et_open(k, &(struct stack_opts){.user.dtype = dtype,
                                    .user.store_in_memory = true,
                                    .user.kv_tokens = 512,
                                    .user.no_reuse = !reuse});
}

static void run(struct stack *k, const struct et_ask *a, struct et_run *out)
{
    if (et_run(k, a, out) != 0 || out->finish == FINISH_ERROR)
        fail_msg("%d tokens: %s", a->n_prompt, out->err.msg);
    assert_int_equal(out->save_end, SAVE_GOES_ON);
}

/* The whole text, a prompt and its continuation, as one run has generated it. */
struct text {
    int32_t tokens[N_ALL + 1];
    uint64_t digest; /* digest of the logits after tokens [N_PROMPT - 1, N_ALL) */
};

static void make_text(struct stack *k, const struct truncation *t, const char *save,
                      struct text *x)
{
    struct et_run r;
    et_prompt(x->tokens, N_PROMPT, 1);
    run(k,
        &(struct et_ask){.prompt = x->tokens,
                         .n_prompt = N_PROMPT,
                         .max_tokens = N_ALL + 1 - N_PROMPT,
                         .save = save,
                         .truncation = *t},
        &r);
    memcpy(x->tokens + N_PROMPT, r.tokens, (size_t)r.n_tokens * sizeof r.tokens[0]);
    x->digest = r.digest;
    assert_int_equal(r.n_stairs, truncation_cut(t, N_ALL - 1) / t->step);
    assert_int_equal(r.truncated_tokens, truncation_cut(t, N_ALL - 1));
    assert_int_equal(r.recomputed_tokens, 0);
}

/* Runs the last N_LAST tokens, with all others as the prompt. */
static void run_last(struct stack *k, const struct truncation *t, const struct text *x,
                     const char *save, const char *plan, struct et_run *r)
{
    run(k,
        &(struct et_ask){.prompt = x->tokens,
                         .n_prompt = N_ALL + 1 - N_LAST,
                         .max_tokens = N_LAST,
                         .save = save,
                         .plan = plan,
                         .truncation = *t},
        r);
    assert_memory_equal(r->tokens, x->tokens + N_ALL + 1 - N_LAST,
                        N_LAST * sizeof r->tokens[0]);
}

/* --- tests ------------------------------------------------------------------------------------ */

/* Over ten stairs the engine computes the definition. Tested for two step sizes, with and without
 * reuse of blocks in the KV cache. */
TEST(the_engine_computes_the_definition)
{
    static const struct truncation *ts[] = {&small, &wide};
    for (int i = 0; i < 2; i++) {
        struct stack k;
        struct text x;
        open_stack(&k, "f32", i == 1);
        make_text(&k, ts[i], "both", &x);
        assert_true(judge(&k, ts[i], x.tokens, N_ALL, N_PROMPT - 1) == x.digest);
        stack_close(&k);
    }
}

/* A context has the same bits whether it is computed turn by turn, computed as one long prompt, or
 * restored. Tested for all kinds of saved state and all plans. */
TEST(a_context_has_the_same_bits_however_it_was_made)
{
    static const struct {
        const char *save, *plan;
    } ways[] = {{"hidden", "auto"}, {"kv", "auto"}, {"both", "hidden"},
                {"both", "kv"},     {"kv", "RK*"},  {"hidden", "RH*"}};
    static const char *const dtypes[] = {"f32", "bf16"};
    for (int d = 0; d < 2; d++) {
        uint64_t expected = 0;
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            struct stack k, other;
            struct text x;
            struct et_run restored, whole;
            char plan[32];
            open_stack(&k, dtypes[d], false);
            snprintf(plan, sizeof plan, "%s", ways[i].plan);
            if (strchr(plan, '*') != NULL) {
                memset(plan + 1, plan[1], (size_t)k.model->cfg.n_layers - 1);
                plan[k.model->cfg.n_layers] = 0;
            }
            make_text(&k, &small, ways[i].save, &x);
            run_last(&k, &small, &x, ways[i].save, plan, &restored);
            assert_int_equal(restored.n_cached, FULL);
            assert_true(strcmp(ways[i].plan, "auto") == 0 ||
                        restored.plan.mode != PLAN_AUTO);
            open_stack(&other, dtypes[d], true);
            run_last(&other, &small, &x, ways[i].save, plan, &whole);
            assert_int_equal(whole.n_cached, 0);
            assert_int_equal(whole.n_stairs, N_STEPS);
            assert_int_equal(whole.recomputed_tokens, 0);
            et_same(&restored, &whole, ways[i].save);
            if (i == 0)
                expected = judge(&k, &small, x.tokens, N_ALL, N_ALL - N_LAST);
            assert_true(restored.digest == expected);
            stack_close(&k);
            stack_close(&other);
        }
    }
}

/* 200 turns go past the window. Each computes its own new tokens and the last token of the previous
 * turn, and no token twice. The last turn has the bits of one long prompt. */
TEST(turns_compute_nothing_twice)
{
    enum { TURNS = 200, ASKED = 9, ANSWERED = 5, LONG = 300 + TURNS * (ASKED + ANSWERED) };
    static int32_t text[LONG + 1];
    struct stack k, other;
    struct et_run r = {0}, whole;
    struct et_ask a = {.prompt = text, .save = "kv", .truncation = wide};
    int n = 270, n_before = 0;
    et_prompt(text, LONG, 3);
    open_stack(&k, "f32", false);
    for (int i = 0; i < TURNS; i++) {
        a.n_prompt = n;
        a.max_tokens = ANSWERED;
        run(&k, &a, &r);
        if (i > 0)
            assert_int_equal(r.n_cached, n_before - 1);
        assert_int_equal(r.recomputed_tokens, 0);
        memcpy(text + n, r.tokens, ANSWERED * sizeof text[0]);
        n_before = n + ANSWERED;
        n = n_before + ASKED;
    }
    open_stack(&other, "f32", false);
    run(&other, &a, &whole);
    et_same(&r, &whole, "the last turn");
    stack_close(&k);
    stack_close(&other);
}

static void condemn(struct stack *k, const struct truncation *t, const struct text *x,
                    int chunk)
{
    struct chain c;
    struct store_hit hit;
    chain_init(&c, &k->fingerprint, NULL);
    c.truncation = *t;
    chain_extend(&c, x->tokens, N_ALL);
    assert_true(store_pin(k->store, &c.keys[chunk], &hit));
    store_condemn(k->store, &hit, "a test");
    store_release(k->store, &hit, 1);
    chain_deinit(&c);
}

/* A chunk in view is missing. The computation starts again at the last stair that does not need the
 * chunk. Without a chunk of kept tokens it starts at the first stair. The bits are the same. A
 * remote that does not have the chunk either changes nothing: the sequence first tries its last
 * view, and then does as it does without a remote. */
TEST(a_lost_chunk_replays_the_stairs_after_it)
{
    /* The view of the last prompt drops tokens [64, 704). It sees chunk 12, which was computed with
     * cut 512. */
    static const struct {
        int chunk, n_cached;
    } lost[] = {{12, 64 * 12}, {5, FULL}, {0, 0}};
    for (int i = 0; i < 6; i++) {
        struct stack k;
        struct text x;
        struct et_run r;
        bool has_remote = i >= 3;
        open_stack(&k, "f32", false);
        make_text(&k, &small, "kv", &x);
        condemn(&k, &small, &x, lost[i % 3].chunk);
        k.engine->shared.has_remote = has_remote;
        uint64_t n_before = k.engine->shared.n_edges[PHASE_RESTORE][PHASE_WAIT];
        run_last(&k, &small, &x, "kv", NULL, &r);
        assert_int_equal(r.n_cached, lost[i % 3].n_cached);
        assert_int_equal(k.engine->shared.n_edges[PHASE_RESTORE][PHASE_WAIT] - n_before,
                         has_remote && lost[i % 3].n_cached < FULL);
        assert_true(r.digest == judge(&k, &small, x.tokens, N_ALL, N_ALL - N_LAST));
        run_last(&k, &small, &x, "kv", NULL, &r); /* the lost chunk was saved again */
        assert_int_equal(r.n_cached, FULL);
        stack_close(&k);
    }
}

/* State saved without truncation is used up to the window. State saved under one truncation is not
 * used under another. */
TEST(truncations_share_what_is_equal)
{
    struct stack k;
    struct text x;
    struct et_run r;
    open_stack(&k, "f32", true);
    et_prompt(x.tokens, N_ALL, 1);
    run(&k,
        &(struct et_ask){
            .prompt = x.tokens, .n_prompt = 256, .max_tokens = 1, .save = "kv"},
        &r);
    struct et_ask a = {.prompt = x.tokens,
                       .n_prompt = 330,
                       .max_tokens = 4,
                       .save = "kv",
                       .truncation = small};
    run(&k, &a, &r);
    assert_int_equal(r.n_cached, 256);
    a.truncation = wide;
    run(&k, &a, &r);
    assert_int_equal(r.n_cached, 256);
    run(&k, &a, &r);
    assert_int_equal(r.n_cached, 320);
    stack_close(&k);
}

static void step(struct stack *k)
{
    struct err err = {0};
    int n_active;
    if (engine_step(k->engine, &n_active, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Returns whether the pin keeps the chunk: it pins the chunk or one that continues it. */
static bool keeps(const struct store_hit *pin, const struct chunk_node *chunk)
{
    const struct chunk_node *n = pin->impl;
    while (n != NULL && n != chunk)
        n = n->parent;
    return n != NULL;
}

/* While a sequence goes on, no chunk that it sees can be evicted. No more chunks are pinned than
 * that takes: the last kept one, and the last one of each stair. At the end no pin is left. */
TEST(no_chunk_in_view_can_be_evicted)
{
    static const struct truncation *const ts[] = {&small, &wide};
    static const int n_pins[] = {3, 2};
    for (int t = 0; t < 2; t++) {
        struct stack k;
        struct seq *s;
        int32_t prompt[N_PROMPT];
        int64_t cut = 0;
        struct et_run r;
        open_stack(&k, "f32", false);
        et_prompt(prompt, N_PROMPT, 1);
        struct et_ask a = {.prompt = prompt,
                           .n_prompt = N_PROMPT,
                           .max_tokens = 400,
                           .save = "kv",
                           .truncation = *ts[t]};
        s = et_add(&k, &a);
        while (s->phase != PHASE_DONE) {
            step(&k);
            if (s->view.cut == cut || s->phase != PHASE_DECODE)
                continue;
            cut = s->view.cut;
            assert_int_equal(saver_flush(k.saver, NULL), 0);
            assert_in_range(s->stairs.n_pins - s->stairs.n_former, 2, n_pins[t]);
            for (int i = 0; i < view_moved(&s->view) / STORE_CHUNK_TOKENS; i++) {
                const struct chunk_node *n = catalog_find(&k.store->catalog,
                                                          &s->view.keys[i]);
                int n_keeping = 0;
                for (int p = s->stairs.n_former; p < s->stairs.n_pins; p++)
                    n_keeping += keeps(&s->stairs.pins[p], n);
                assert_true(n != NULL && n_keeping > 0);
            }
        }
        assert_true(cut > 256);
        et_take(&k, s, &r);
        for (int i = 0; i < 256 / STORE_CHUNK_TOKENS; i++) {
            struct chain c;
            chain_init(&c, &k.fingerprint, NULL);
            c.truncation = *ts[t];
            chain_extend(&c, prompt, N_PROMPT);
            if (i < c.n_chunks)
                assert_int_equal(catalog_find(&k.store->catalog, &c.keys[i])->n_pins, 0);
            chain_deinit(&c);
        }
        stack_close(&k);
    }
}

/* The chunks that a stair drops stay pinned until the first chunk of that stair is durable. Then
 * the store removes them. At the end, only chunks of the last stair are left. */
TEST(dropped_chunks_go_when_the_next_stair_is_durable)
{
    struct stack k;
    struct seq *s;
    struct err err = {0};
    int32_t prompt[N_PROMPT];
    static struct et_run r;
    int n_active = 1, n_pinned = 0;
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.kv_tokens = 512,
                                     .user.no_reuse = true});
    et_prompt(prompt, N_PROMPT, 1);
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = 500,
                       .save = "kv",
                       .truncation = small};
    s = et_add(&k, &a);
    while (n_active > 0) {
        assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        int64_t first = truncation_first(&small, s->view.cut);
        if (s->view.cut == 0 || s->phase != PHASE_DECODE)
            continue;
        n_pinned += s->stairs.n_former > 0;
        assert_true(s->stairs.n_former == 1 ||
                    save_committed_tokens(s->save) >= first + STORE_CHUNK_TOKENS);
    }
    assert_true(n_pinned > 0);
    /* the chunks that the last stair has dropped */
    int last = (small.keep + s->view.cut) / STORE_CHUNK_TOKENS - 1;
    for (int c = 1; c < last; c++) {
        const struct chunk_node *n = catalog_find(&k.store->catalog, &s->chain.keys[c]);
        assert_true(n != NULL && n->place.is_dropped);
    }
    const struct chunk_node *kept = catalog_find(&k.store->catalog, &s->chain.keys[0]);
    const struct chunk_node *moved = catalog_find(&k.store->catalog,
                                                  &s->chain.keys[last + 1]);
    assert_false(kept->place.is_dropped || moved->place.is_dropped);
    et_take(&k, s, &r);
    stack_close(&k);
}

/* Makes the sequence lose its place, and the store its chunks [first, first + n). */
static void lose(struct stack *k, struct seq *s, int first, int n)
{
    struct store_hit hit;
    seq_preempt(s);
    assert_int_equal(saver_flush(k->saver, NULL), 0);
    for (int c = first; c < first + n && c < s->chain.n_chunks; c++)
        if (store_pin(k->store, &s->chain.keys[c], &hit)) {
            store_condemn(k->store, &hit, "a test");
            store_release(k->store, &hit, 1);
        }
}

static struct seq *add_long(struct stack *k, const int32_t *prompt)
{
    struct seq *s;
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = N_ALL + 1 - N_PROMPT,
                       .save = "kv",
                       .truncation = small};
    s = et_add(k, &a);
    return s;
}

/* A sequence loses chunks after ten stairs: the first moved one of its view, the first of all, or
 * all. It computes the stair of the lost chunk again, or all stairs except for the unfinished
 * chunk, and goes on with the same bits. A climb over many stairs is one loss. */
TEST(a_sequence_that_loses_its_state_climbs_again)
{
    static struct et_run r, ref;
    int32_t prompt[N_PROMPT];
    et_prompt(prompt, N_PROMPT, 1);
    for (int i = 0; i < 4; i++) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                         .user.kv_tokens = 512,
                                         .user.no_reuse = true});
        struct seq *s = add_long(&k, prompt);
        while (s->n_tokens < N_ALL - 3)
            step(&k);
        assert_int_equal(s->out.r.truncation.steps, N_STEPS);
        int first = i == 1 ? (small.keep + s->view.cut) / STORE_CHUNK_TOKENS : 0;
        /* A stair whose tokens are lost ends after a step; then the last view is there again. */
        const int64_t again[] = {0, small.step, small.context,
                                 s->n_reached / STORE_CHUNK_TOKENS * STORE_CHUNK_TOKENS};
        if (i > 0)
            lose(&k, s, first, i < 3 ? 1 : N_ALL);
        while (s->phase != PHASE_DONE)
            step(&k);
        assert_int_equal(s->out.r.recomputed_tokens, again[i]);
        assert_int_equal(s->out.r.truncated_tokens, truncation_cut(&small, N_ALL - 1));
        et_take(&k, s, i == 0 ? &ref : &r);
        if (i > 0)
            et_same(&r, &ref, "after a loss");
        stack_close(&k);
    }
}

/* A sequence that loses its state again and again asks the store no more, after eight replays. It
 * replays without the store, with the same bits. */
TEST(a_sequence_does_not_climb_for_ever)
{
    enum { MOST = 8 };
    static struct et_run r, ref;
    int32_t prompt[N_PROMPT];
    struct stack k;
    int n_lost = 0;
    et_prompt(prompt, N_PROMPT, 1);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.kv_tokens = 512,
                                     .user.no_reuse = true});
    struct seq *s = add_long(&k, prompt);
    while (s->phase != PHASE_DONE)
        step(&k);
    et_take(&k, s, &ref);
    s = add_long(&k, prompt);
    while (s->phase != PHASE_DONE && !carry_is_on(&s->stairs.carry)) {
        step(&k);
        if (s->phase != PHASE_DECODE || s->n_tokens < 450 + 4 * n_lost)
            continue;
        assert_int_equal(s->stairs.n_replays, n_lost++);
        lose(&k, s, 0, N_ALL);
    }
    assert_int_equal(n_lost, MOST + 1);
    assert_int_equal(s->out.r.n_preempted, n_lost);
    while (s->phase != PHASE_DONE)
        step(&k);
    et_take(&k, s, &r);
    assert_int_equal(r.finish, FINISH_LENGTH);
    et_same(&r, &ref, "after many losses");
    stack_close(&k);
}

/* Several sequences run at once in a KV cache that cannot hold all of them. The bits are the
 * same. */
TEST(many_at_once)
{
    enum { N = 4 };
    struct stack k, other;
    struct seq *s[N];
    struct err err = {0};
    static int32_t prompts[N][300];
    static struct et_run together, alone;
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.kv_tokens = 512,
                                     .user.max_sequences = N,
                                     .step_rows = 100});
    open_stack(&other, "f32", false);
    for (int i = 0; i < N; i++) {
        et_prompt(prompts[i], 300, (uint64_t)(40 + i));
        struct et_ask a = {.prompt = prompts[i],
                           .n_prompt = 100 + 60 * i,
                           .max_tokens = 300,
                           .save = "both",
                           .truncation = i % 2 == 0 ? small : wide};
        s[i] = et_add(&k, &a);
    }
    assert_int_equal(engine_run(k.engine, &err), 0);
    for (int i = 0; i < N; i++) {
        struct et_ask a = {.prompt = prompts[i],
                           .n_prompt = 100 + 60 * i,
                           .max_tokens = 300,
                           .save = "both",
                           .truncation = i % 2 == 0 ? small : wide};
        et_take(&k, s[i], &together);
        run(&other, &a, &alone);
        et_same(&together, &alone, "together");
    }
    stack_close(&k);
    stack_close(&other);
}

/* While all places are taken, no view is chosen for a waiting sequence. A preemption or a time-out
 * may give it a place in the same step. The sequence still begins with a chosen view, and not with
 * its first stair. */
TEST(a_place_that_has_just_become_free_waits_for_the_view)
{
    enum { N = N_ALL + 1 - N_LAST };
    for (int times_out = 0; times_out < 2; times_out++) {
        struct stack k;
        struct text x;
        struct seq *first, *s;
        struct err err = {0};
        static struct et_run alone, r;
        int32_t other[100];
        int n_active;
        et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                         .user.kv_tokens = 512,
                                         .user.max_sequences = 1,
                                         .user.no_reuse = true});
        make_text(&k, &small, "kv", &x);
        run_last(&k, &small, &x, "kv", NULL, &alone);
        et_prompt(other, 100, 9);
        struct et_ask a = {.prompt = other, .n_prompt = 100, .max_tokens = 200};
        struct request *q = et_request(&k, &a);
        q->ask.priority = times_out ? 0 : 5;
        assert_int_equal(et_submit(k.engine, q, &first, &err), 0);
        while (first->phase != PHASE_DECODE)
            assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        a = (struct et_ask){.prompt = x.tokens,
                            .n_prompt = N,
                            .max_tokens = N_LAST,
                            .save = "kv",
                            .truncation = small};
        q = et_request(&k, &a);
        assert_int_equal(et_submit(k.engine, q, &s, &err), 0);
        first->req->deadline_ns = times_out; /* 1 ns: long ago */
        while (s->phase == PHASE_WAIT)
            assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        assert_false(s->stairs.must_choose);
        assert_int_equal(s->view.cut, truncation_cut(&small, N - 1));
        assert_int_equal(first->phase, times_out ? PHASE_DONE : PHASE_WAIT);
        assert_int_equal(engine_run(k.engine, &err), 0);
        et_take(&k, s, &r);
        assert_int_equal(r.n_cached, FULL);
        et_same(&r, &alone, "behind another");
        et_take(&k, first, &r);
        stack_close(&k);
    }
}

/* All views of a sequence come from copies in DRAM. The result says so, although it counts the
 * bytes of several restores. */
TEST(views_from_dram_are_told_as_such)
{
    enum { N = N_ALL + 1 - N_LAST };
    struct stack k;
    struct text x;
    struct et_run r;
    struct io *disk = et_disk(1, 0);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.kv_tokens = 512,
                                     .user.no_reuse = true,
                                     .user.dram_bytes = 32 << 20});
    make_text(&k, &small, "kv", &x);
    struct et_ask a = {.prompt = x.tokens,
                       .n_prompt = N,
                       .max_tokens = 64,
                       .save = "kv",
                       .plan = "kv",
                       .truncation = small};
    run(&k, &a, &r);
    assert_int_equal(r.n_cached, FULL);
    assert_int_equal(truncation_cut(&small, N + 63 - 1), truncation_cut(&small, N) + 64);
    assert_true(r.restore.read_bytes > 0);
    assert_int_equal(r.restore.dram_bytes, r.restore.read_bytes);
    stack_close(&k);
    io_close(disk);
}

/* If the state that a window needs to move could not be saved, the sequence replays without the
 * store, with the same bits. Two sequences do so one after the other. A forced plan cannot: its
 * sequence ends with the reason. */
TEST(a_full_store_makes_a_sequence_replay)
{
    enum { N_BOTH = 2 };
    struct stack k;
    static struct et_run r, ref;
    static int32_t prompt[N_PROMPT];
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = 400,
                       .save = "both",
                       .truncation = small};
    struct stack_opts o = {
        .user.store_in_memory = true, .user.kv_tokens = 512, .user.no_reuse = true};
    struct seq *s[N_BOTH];
    struct err err = {0};
    et_prompt(prompt, N_PROMPT, 1);
    et_open(&k, &o);
    assert_int_equal(et_run(&k, &a, &ref), 0);
    stack_close(&k);
    o.user.store_cap_bytes = 200000;
    et_open(&k, &o);
    for (int i = 0; i < N_BOTH; i++) {
        s[i] = et_add(&k, &a);
    }
    assert_int_equal(engine_run(k.engine, &err), 0);
    for (int i = 0; i < N_BOTH; i++) {
        et_take(&k, s[i], &r);
        assert_int_equal(r.finish, FINISH_LENGTH);
        et_same(&r, &ref, "with a full store");
    }
    a.plan = "kv";
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.finish, FINISH_ERROR);
    assert_int_equal(r.err.code, -EAGAIN);
    assert_int_equal(r.n_tokens, 257 - N_PROMPT);
    assert_non_null(strstr(r.err.msg, "outgrown its window of 256 tokens"));
    assert_non_null(strstr(r.err.msg, "the cap of the store (store-cap)"));
    stack_close(&k);
}

static void refused(const struct stack_opts *o, const struct et_ask *a, const char *words)
{
    struct stack k;
    static struct et_run r;
    et_open(&k, o);
    assert_int_equal(et_run(&k, a, &r), ERR_LIMIT);
    if (strstr(r.err.msg, words) == NULL)
        fail_msg("%s", r.err.msg);
    stack_close(&k);
}

/* A context that cannot be truncated is refused with the request, not later when the window is
 * full. */
TEST(a_window_that_cannot_move_is_refused)
{
    static int32_t prompt[N_PROMPT];
    et_prompt(prompt, N_PROMPT, 1);
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = 400,
                       .save = "both",
                       .truncation = small};
    struct stack_opts o = {.user.store_in_memory = true, .user.kv_tokens = 128};
    refused(&o, &a, "a window of 256 tokens, but the KV cache holds 128");
    o.user.kv_tokens = 0;
    o.user.max_context = 192;
    refused(&o, &a, "there is room for contexts of 192 only");
    o.user.max_context = 0;
    a.save = "none";
    refused(&o, &a, "every layer is saved in a store");
    a.save = "both";
    o.user.store_in_memory = false;
    refused(&o, &a, "every layer is saved in a store");
}
