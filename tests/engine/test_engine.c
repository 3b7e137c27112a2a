/* test_engine.c - admission, limits, ends of sequences, sequences in different phases, and the
 * engine's reports. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit.h"
#include "api/service.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_impl.h"
#include "restore/save_policy.h"
#include "tests/engine/enginetest.h"

enum { N_MAX = 1024 };

/* --- admission -------------------------------------------------------------------------------- */

static int add(struct stack *k, const struct et_ask *a, struct seq **s, struct err *err)
{
    struct request *q = et_request(k, a);
    return et_submit(k->engine, q, s, err);
}

TEST(context_limit)
{
    int32_t prompt[N_MAX];
    struct stack k;
    struct seq *s;
    struct err err = {0};
    et_prompt(prompt, N_MAX, 1);
    et_open(&k, &(struct stack_opts){.user.max_context = 256,
                                     .user.store_in_memory = true,
                                     .user.no_reuse = true});
    struct et_ask a = {.prompt = prompt, .n_prompt = 257};
    assert_int_equal(add(&k, &a, &s, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "256"));
    a = (struct et_ask){.prompt = prompt, .n_prompt = 200, .max_tokens = 57};
    assert_int_equal(add(&k, &a, &s, &err), ERR_LIMIT);
    a.max_tokens = INT32_MAX; /* must not overflow */
    assert_int_equal(add(&k, &a, &s, &err), ERR_LIMIT);
    /* The context is exactly full: by the prompt alone, and with generated tokens. */
    struct et_run r;
    a = (struct et_ask){.prompt = prompt, .n_prompt = 256, .save = "both"};
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.finish, FINISH_LENGTH);
    assert_int_equal(r.n_tokens, 0);
    assert_int_equal(r.committed, 256);
    a = (struct et_ask){
        .prompt = prompt, .n_prompt = 200, .max_tokens = 56, .save = "both"};
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.n_tokens, 56);
    assert_int_equal(r.n_cached, 192);
    assert_int_equal(r.committed, 255); /* the last generated token is never computed */
    stack_close(&k);
}

/* A refusal says which number is too large, and for which bound. */
TEST(refusals_name_their_numbers)
{
    static const struct truncation window = {.context = 256, .step = 64, .keep = 64};
    static const struct {
        int n_prompt, max_tokens, kv_tokens, max_context;
        bool is_truncated;
        const char *words; /* NULL: the request is taken */
    } cases[] = {
        {257, 0, 1024, 256, false,
         "the prompt has 257 tokens, but the maximum context length is 256"},
        {256, 1, 1024, 256, false,
         "the prompt has 256 tokens and 1 are to be generated, but the maximum context "
         "length is 256; shorten the prompt or lower --max-tokens"},
        {256, 0, 1024, 256, false, NULL},
        {120, 73, 192, 256, false,
         "the prompt has 120 tokens and 73 are to be generated, but the KV cache holds "
         "192; make it larger (--kv-tokens)"},
        {120, 72, 192, 256, false, NULL},
        {100, 156, 192, 512, true,
         "the KV cache holds 192"}, /* it does not outgrow its window */
        {100, 157, 192, 512, true,
         "truncation: a window of 256 tokens, but the KV cache holds 192; make it larger "
         "(--kv-tokens)"},
        {100, 157, 256, 512, true, NULL},
        {100, 157, 256, 255, true,
         "truncation: a window of 256 tokens, but there is room for contexts of 255 only "
         "(--max-context)"},
        {100, 157, 256, 256, true, NULL},
    };
    int32_t prompt[N_MAX];
    et_prompt(prompt, N_MAX, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        struct seq *s = NULL;
        struct err err = {0};
        et_open(&k, &(struct stack_opts){.user.max_context = cases[i].max_context,
                                         .user.kv_tokens = cases[i].kv_tokens,
                                         .user.store_in_memory = true});
        struct et_ask a = {.prompt = prompt,
                           .n_prompt = cases[i].n_prompt,
                           .max_tokens = cases[i].max_tokens,
                           .save = "kv"};
        if (cases[i].is_truncated)
            a.truncation = window;
        int rc = add(&k, &a, &s, &err);
        assert_int_equal(rc, cases[i].words == NULL ? 0 : ERR_LIMIT);
        if (rc == 0)
            engine_remove(k.engine, s);
        else if (strstr(err.msg, cases[i].words) == NULL)
            fail_msg("case %d: %s", (int)i, err.msg);
        stack_close(&k);
    }
}

/* The reserved bytes are those of the parts: the pool's blocks in all layers, the activations of a
 * batch with the logits, and what restores read into. Nothing lies on the host. */
TEST(memory_is_that_of_the_parts)
{
    struct stack k;
    struct mixed_stats mixed;
    size_t kv, activations, restore;
    et_open(&k, &(struct stack_opts){.user.max_context = 256,
                                     .user.kv_tokens = 65,
                                     .user.max_sequences = 3,
                                     .user.store_in_memory = true});
    const struct engine *e = k.engine;
    const struct model *m = k.model;
    size_t all = engine_bytes(e, &kv, &activations, &restore);
    assert_int_equal(kv_pool_n_blocks(engine_pool(e)),
                     e->o.max_kv_tokens / 64 + (e->o.max_kv_tokens % 64 != 0));
    assert_int_equal(kv, (size_t)kv_pool_n_blocks(engine_pool(e)) *
                             (size_t)m->cfg.n_layers *
                             kv_block_bytes(m->cfg.n_kv_heads, m->cfg.d_head, m->dtype));
    assert_int_equal(activations,
                     model_work_bytes(m, e->o.max_batch_rows) + e->next.mem.bytes);
    assert_int_equal(restore,
                     restore_pipeline_bytes(e->restores.pipeline) +
                         2 * (size_t)e->restores.fused.max_rows * model_hidden_bytes(m));
    assert_int_equal(all, kv + activations + restore);
    assert_int_equal(engine_host_bytes(e), 0);
    assert_false(engine_mixed_stats(e, &mixed));
    stack_close(&k);
    et_open(&k, &(struct stack_opts){.user.max_context = 256});
    all = engine_bytes(k.engine, &kv, &activations, &restore);
    assert_int_equal(all, kv + activations);
    assert_int_equal(restore, 0);
    stack_close(&k);
}

/* Sequences wait if there are more of them than places, or if the pool is smaller than their
 * contexts. */
TEST(places_and_blocks)
{
    int32_t prompt[N_MAX];
    struct stack k;
    struct seq *s[3];
    struct err err = {0};
    int n_active;
    et_prompt(prompt, N_MAX, 1);
    et_open(&k, &(struct stack_opts){.user.max_context = 256,
                                     .user.max_sequences = 2,
                                     .user.no_reuse = true});
    struct et_ask a = {.prompt = prompt, .n_prompt = 10, .max_tokens = 5};
    for (int i = 0; i < 3; i++)
        assert_int_equal(add(&k, &a, &s[i], &err), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
    assert_int_equal(n_active, 3);
    assert_int_equal(seq_outcome(s[1])->r.n_tokens, 2);
    assert_int_equal(seq_outcome(s[2])->r.n_tokens, 0);
    engine_remove(k.engine, s[0]);
    assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
    assert_int_equal(seq_outcome(s[2])->r.n_tokens, 1);
    assert_int_equal(engine_run(k.engine, &err), 0);
    engine_remove(k.engine, s[1]);
    assert_int_equal(seq_outcome(s[2])->r.n_tokens, 5);
    engine_remove(k.engine, s[2]);
    stack_close(&k);

    et_open(&k, &(struct stack_opts){.user.max_context = 256,
                                     .user.max_sequences = 3,
                                     .user.kv_tokens = 192,
                                     .user.no_reuse = true});
    a = (struct et_ask){.prompt = prompt, .n_prompt = 180, .max_tokens = 13};
    /* the context is larger than the whole pool */
    assert_int_equal(add(&k, &a, &s[0], &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "192"));
    a = (struct et_ask){.prompt = prompt, .n_prompt = 100, .max_tokens = 20};
    for (int i = 0; i < 2; i++) /* two sequences fit with three blocks each */
        assert_int_equal(add(&k, &a, &s[i], &err), 0);
    a.n_prompt = 40;
    assert_int_equal(add(&k, &a, &s[2], &err), 0);
    assert_int_equal(engine_run(k.engine, &err), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seq_outcome(s[i])->finish, FINISH_LENGTH);
        assert_int_equal(seq_outcome(s[i])->r.n_tokens, 20);
        engine_remove(k.engine, s[i]);
    }
    assert_int_equal(kv_pool_free_blocks(engine_pool(k.engine)), 3);
    stack_close(&k);
}

/* --- prompts at the edges of a chunk ---------------------------------------------------------- */

TEST(prompt_lengths)
{
    static const struct {
        int n, committed, cached;
    } want[] = {{1, 1, 0},       {2, 2, 1},       {63, 63, 62},   {64, 64, 0},
                {65, 65, 64},    {127, 127, 126}, {128, 128, 64}, {129, 129, 128},
                {512, 512, 448}, {513, 513, 512}};
    int32_t prompt[N_MAX];
    struct stack k, plain;
    et_prompt(prompt, N_MAX, 3);
    et_open(&plain, &(struct stack_opts){.user.no_reuse = true});
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct et_run ref, r;
        struct et_ask a = {.prompt = prompt, .n_prompt = want[i].n, .max_tokens = 1};
        assert_int_equal(et_run(&plain, &a, &ref), 0);
        et_open(&k,
                &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
        a.save = "both";
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref, "first run");
        assert_int_equal(r.committed, want[i].committed);
        assert_int_equal(r.n_cached, 0);
        a.save = "none";
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref, "second run");
        assert_int_equal(r.n_cached, want[i].cached);
        /* Without saving, only the restored part is known to be durable. */
        assert_int_equal(r.committed, want[i].cached);
        assert_true(r.miss[0] != 0);
        stack_close(&k);
    }
    stack_close(&plain);
}

TEST(salts_keep_apart)
{
    int32_t prompt[200];
    struct stack k;
    struct et_run r;
    et_prompt(prompt, 200, 3);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    struct et_ask a = {.prompt = prompt, .n_prompt = 200, .save = "kv", .salt = "alice"};
    assert_int_equal(et_run(&k, &a, &r), 0);
    static const char *const others[] = {NULL, "", "bob", "alic", "alice "};
    for (int i = 0; i < 5; i++) {
        a = (struct et_ask){.prompt = prompt, .n_prompt = 200, .salt = others[i]};
        assert_int_equal(et_run(&k, &a, &r), 0);
        assert_int_equal(r.n_cached, 0);
        assert_string_equal(r.miss, "not stored");
    }
    a.salt = "alice";
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.n_cached, 199);
    stack_close(&k);
}

/* --- ends ------------------------------------------------------------------------------------- */

static int cancel_at;

static int count_tokens(void *arg, int32_t id)
{
    int *n = arg;
    (void)id;
    return ++*n == cancel_at;
}

TEST(cancel)
{
    int32_t prompt[200];
    struct stack k;
    struct et_run all, r;
    et_prompt(prompt, 200, 5);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    struct et_ask a = {.prompt = prompt, .n_prompt = 200, .max_tokens = 12, .save = "both"};
    assert_int_equal(et_run(&k, &a, &all), 0);
    for (cancel_at = 1; cancel_at <= 13; cancel_at += 4) {
        int n = 0;
        struct seq *s;
        struct err err = {0};
        struct request *q = et_request(&k, &a);
        q->on_token = count_tokens;
        q->arg = &n;
        assert_int_equal(et_submit(k.engine, q, &s, &err), 0);
        assert_int_equal(engine_run(k.engine, &err), 0);
        et_take(&k, s, &r);
        assert_int_equal(r.finish, cancel_at <= 12 ? FINISH_CANCELLED : FINISH_LENGTH);
        assert_int_equal(r.n_tokens, n);
        assert_int_equal(n, cancel_at <= 12 ? cancel_at : 12);
        assert_memory_equal(r.tokens, all.tokens, (size_t)n * sizeof r.tokens[0]);
    }
    stack_close(&k);
}

/* EOS as the first token, in the middle, and ignored. */
TEST(eos)
{
    int32_t prompt[100];
    struct stack k;
    struct et_run all;
    et_prompt(prompt, 100, 6);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    struct et_ask a = {.prompt = prompt, .n_prompt = 100, .max_tokens = 8, .save = "both"};
    a.temperature = 1;
    assert_int_equal(et_run(&k, &a, &all), 0);
    for (int at = 0; at < 8; at++) {
        struct et_run r;
        struct seq *s;
        struct err err = {0};
        int first = 0;
        while (all.tokens[first] != all.tokens[at])
            first++;
        k.model->cfg.n_eos = 1;
        k.model->cfg.eos_ids[0] = all.tokens[at];
        struct request *q = et_request(&k, &a);
        q->ask.ignore_eos = false;
        assert_int_equal(et_submit(k.engine, q, &s, &err), 0);
        assert_int_equal(engine_run(k.engine, &err), 0);
        et_take(&k, s, &r);
        assert_int_equal(r.finish, FINISH_EOS);
        assert_int_equal(r.n_tokens, first); /* EOS itself is not part of the result */
        assert_memory_equal(r.tokens, all.tokens, (size_t)first * sizeof r.tokens[0]);
        assert_true(r.digest != 0);
    }
    stack_close(&k);
}

TEST(no_tokens_wanted)
{
    int32_t prompt[130];
    struct stack k;
    struct seq *s;
    struct err err = {0};
    et_prompt(prompt, 130, 6);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    struct et_ask a = {.prompt = prompt, .n_prompt = 130, .save = "both"};
    for (int i = 0; i < 2; i++) {
        s = et_add(&k, &a);
        assert_int_equal(engine_run(k.engine, &err), 0);
        const struct outcome *o = seq_outcome(s);
        assert_int_equal(o->finish, FINISH_LENGTH);
        assert_int_equal(o->r.n_tokens, 0);
        assert_true(o->r.logits_digest == 0 && o->r.timings.prefill_ms > 0);
        assert_int_equal(o->r.cached_tokens, i * 129);
        assert_int_equal(saver_flush(k.saver, &err), 0);
        assert_int_equal(seq_committed_tokens(s), 130);
        engine_remove(k.engine, s);
    }
    stack_close(&k);
}

/* A sequence may be removed in any state, even if chunks are open or being written. */
TEST(removed_in_any_state)
{
    int32_t prompt[300];
    et_prompt(prompt, 300, 8);
    for (int n_steps = 0; n_steps < 14; n_steps++) {
        struct stack k;
        struct seq *s;
        struct err err = {0};
        int n_active;
        et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                         .step_rows = 60,
                                         .user.no_reuse = true});
        struct et_ask a = {
            .prompt = prompt, .n_prompt = 300, .max_tokens = 6, .save = "both"};
        assert_int_equal(add(&k, &a, &s, &err), 0);
        for (int i = 0; i < n_steps; i++)
            assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        engine_remove(k.engine, s);
        stack_close(&k);
    }
}

/* The number of rows that pass the model at once changes no bit, neither in a prefill nor in the
 * recomputation of a restore. */
TEST(batches_of_any_size)
{
    enum { N = 1500 };
    static const int rows[] = {512, 1024, 1111, 2048};
    static const char *const plans[] = {"recompute", "RRHK", "RRRR"};
    static int32_t prompt[N];
    static struct et_run first, r;
    struct io *io = et_disk(1, 0);
    et_prompt(prompt, N, 12);
    struct et_ask a = {.prompt = prompt, .n_prompt = N, .max_tokens = 4, .save = "both"};
    for (int i = 0; i < 4; i++) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.batch_rows = rows[i],
                                         .user.max_context = 2048,
                                         .io = io,
                                         .user.store = et_dirs,
                                         .user.n_store = 2,
                                         .user.no_reuse = true});
        /* the first time nothing is stored, so only "recompute" is tried */
        for (int p = i == 0 ? 0 : 2; p >= 0; p--) {
            a.plan = plans[p];
            assert_int_equal(et_run(&k, &a, i == 0 ? &first : &r), 0);
            if (i > 0)
                et_same(&r, &first, a.plan);
            if (i > 0 && p > 0)
                assert_int_equal(r.n_cached, N / 64 * 64);
        }
        stack_close(&k);
    }
    io_close(io);
    struct stack none;
    struct err err = {0};
    int rc = et_try_open(
        &none, &(struct stack_opts){.user.batch_rows = 100, .user.no_reuse = true}, &err);
    assert_int_equal(rc, ERR_USAGE);
    assert_non_null(strstr(err.msg, "512 to 16384"));
    stack_close(&none);
}

/* --- several sequences ------------------------------------------------------------------------ */

enum { N_SEQS = 5 };

/* Sequences with different lengths and parameters come and go. They restore, prefill and decode
 * beside each other. Each gives the same result as alone, with a saver and without. */
TEST(phases_beside_each_other)
{
    static int32_t prompt[N_SEQS][400];
    static struct et_run alone[N_SEQS], r;
    struct et_ask a[N_SEQS];
    struct stack k;
    for (int i = 0; i < N_SEQS; i++) {
        /* three prompts share a prefix */
        et_prompt(prompt[i], 400, i < 3 ? 77 : 78 + (uint64_t)i);
        a[i] = (struct et_ask){.prompt = prompt[i],
                               .n_prompt = 30 + 90 * i,
                               .max_tokens = 25 - 4 * i,
                               .temperature = i % 2 ? 1.0f : 0.0f,
                               .seed = (uint64_t)i,
                               .save = "both"};
    }
    et_open(&k, &(struct stack_opts){.user.model = "synth:tiny-gqa",
                                     .user.dtype = "bf16",
                                     .user.no_reuse = true});
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(et_run(&k, &a[i], &alone[i]), 0);
    stack_close(&k);
    for (int with_store = 0; with_store < 2; with_store++) {
        struct io *io = et_disk(1, 0);
        et_open(&k, &(struct stack_opts){.user.model = "synth:tiny-gqa",
                                         .user.dtype = "bf16",
                                         .user.threads = 2,
                                         .user.max_sequences = N_SEQS,
                                         .step_rows = 48,
                                         .io = with_store ? io : NULL,
                                         .user.store = et_dirs,
                                         .user.n_store = with_store ? 2 : 0,
                                         .user.no_reuse = true});
        for (int round = 0; round < 2; round++) {
            struct seq *s[N_SEQS];
            struct err err = {0};
            int n_active;
            /* one more sequence is added every third step */
            for (int i = 0; i < N_SEQS; i++) {
                assert_int_equal(add(&k, &a[i], &s[i], &err), 0);
                for (int step = 0; step < 3; step++)
                    assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
            }
            assert_int_equal(engine_run(k.engine, &err), 0);
            for (int i = 0; i < N_SEQS; i++) {
                et_take(&k, s[i], &r);
                et_same(&r, &alone[i], "beside others");
                if (with_store)
                    assert_int_equal(r.committed, a[i].n_prompt + r.n_tokens - 1);
                if (with_store && round == 1)
                    assert_int_equal(r.n_cached, (a[i].n_prompt - 1) / 64 * 64);
            }
        }
        stack_close(&k);
        io_close(io);
    }
}

/* The engine learns the time of a row from the passes of prefills, and the time of a decode step
 * from those of decodes. Neither learned time exceeds the time of the steps that taught it, as this
 * test's own clock measures it. */
TEST(steps_teach_what_their_passes_took)
{
    enum { N_ROWS = 100, N_DECODES = 6 };
    int32_t prompt[N_ROWS];
    struct stack k;
    struct seq *s;
    struct err err = {0};
    et_prompt(prompt, N_ROWS, 3);
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    const struct beside_speed *speed = &k.engine->schedule.speed;
    struct et_ask a = {
        .prompt = prompt, .n_prompt = N_ROWS, .max_tokens = 1 + N_DECODES, .save = "none"};
    assert_int_equal(add(&k, &a, &s, &err), 0);
    double most_ns = 0;
    for (int i = 0, n_active = 1; n_active > 0; i++) {
        int64_t t0 = clock_now_ns();
        assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        double ns = (double)(clock_now_ns() - t0);
        most_ns = i > 0 ? fmax(most_ns, ns) : 0;
        assert_int_equal(n_active, i < N_DECODES);
        assert_true(i > 0 || (speed->row_ns > 0 && speed->row_ns <= ns / N_ROWS));
        assert_true(i > 0 || speed->decode_ns == 0);
        assert_true(i == 0 || (speed->decode_ns > 0 && speed->decode_ns <= most_ns));
    }
    engine_remove(k.engine, s);
    stack_close(&k);
}

/* No saver changes logits, however slow or broken its store is. */
TEST(saver_changes_nothing)
{
    int32_t prompt[700];
    static struct et_run ref, r;
    struct stack k;
    et_prompt(prompt, 700, 12);
    struct et_ask a = {.prompt = prompt, .n_prompt = 700, .max_tokens = 100};
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    assert_int_equal(et_run(&k, &a, &ref), 0);
    stack_close(&k);
    static const struct io_sim_fault faults[] = {
        {.kind = IO_SIM_SLOW, .on = IO_SIM_ON_WRITE, .slow_ns = 200000},
        {.kind = IO_SIM_FAIL,
         .on = IO_SIM_ON_WRITE,
         .path = "seg-",
         .skip = 9,
         .code = -28},
        {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_SYNC, .skip = 3},
        {.kind = IO_SIM_SYNC_LIES, .on = IO_SIM_ON_SYNC, .skip = 3, .count = 1},
        {.kind = IO_SIM_SHORT, .on = IO_SIM_ON_WRITE, .chance = 0.5},
    };
    static const char *const saves[] = {"both", "kv", "hidden"};
    for (int i = 0; i < 5; i++) {
        struct io *io = et_disk(20 + (uint64_t)i, 0);
        et_open(&k, &(struct stack_opts){.io = io,
                                         .user.store = et_dirs,
                                         .user.n_store = 2,
                                         .user.threads = 2,
                                         .user.no_reuse = true});
        assert_int_equal(io_sim_fault_add(io, &faults[i]), 0);
        a.save = saves[i % 3];
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref, "with a saver");
        io_sim_fault_clear(io);
        int64_t committed = r.committed;
        stack_close(&k);
        et_open(&k, &(struct stack_opts){.io = io,
                                         .user.store = et_dirs,
                                         .user.n_store = 2,
                                         .user.threads = 1,
                                         .user.no_reuse = true});
        a.save = "none";
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref, "restored");
        assert_true(r.n_cached >= (committed < 640 ? committed : 640));
        stack_close(&k);
        io_close(io);
    }
}

/* A store at its cap refuses saves, but fails no request. */
TEST(small_caps)
{
    int32_t prompt[400];
    static struct et_run ref, r;
    struct stack k;
    et_prompt(prompt, 400, 12);
    struct et_ask a = {.prompt = prompt, .n_prompt = 400, .max_tokens = 5, .save = "both"};
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    assert_int_equal(et_run(&k, &a, &ref), 0);
    stack_close(&k);
    for (uint64_t cap = 4096; cap < 4u << 20; cap *= 3) {
        et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                         .user.store_cap_bytes = cap,
                                         .user.no_reuse = true});
        struct store_stats stats;
        int64_t committed = 0;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(et_run(&k, &a, &r), 0);
            et_same(&r, &ref, "under a cap");
            assert_true(r.n_cached >= (committed < 384 ? committed : 384));
            store_stats(k.store, &stats);
            assert_true(stats.used_bytes <= cap);
            committed = r.committed;
            assert_int_equal(r.save_end, committed < 384 ? SAVE_END_CAP : SAVE_GOES_ON);
        }
        stack_close(&k);
    }
}

static uint64_t appended_bytes(struct stack *k)
{
    struct store_stats st;
    store_stats(k->store, &st);
    return st.appended_bytes;
}

/* Equal prefixes are stored once, byte for byte: those of sequences in one batch, of consecutive
 * sequences, and of sequences that diverge later. */
TEST(prefixes_are_stored_once)
{
    enum { N = 4 };
    int32_t prompt[N][320];
    struct stack k;
    struct seq *s[N];
    struct et_run r;
    struct store_stats st;
    struct err err = {0};
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.max_sequences = N,
                                     .user.no_reuse = true});
    struct et_ask a = {.n_prompt = 320, .max_tokens = 0, .save = "both"};
    for (int i = 0; i < N; i++) {
        et_prompt(prompt[i], 320, 5);
        prompt[i][200] += i == N - 1; /* the last prompt diverges in its fourth chunk */
        a.prompt = prompt[i];
        s[i] = et_add(&k, &a);
    }
    assert_int_equal(engine_run(k.engine, &err), 0);
    for (int i = 0; i < N; i++) {
        et_take(&k, s[i], &r);
        assert_int_equal(r.committed, 320);
    }
    store_stats(k.store, &st);
    uint64_t n_bytes = appended_bytes(&k), per_chunk = n_bytes / 7;
    assert_int_equal(st.n_chunks, 5 + 2); /* five chunks, and two after the divergence */
    assert_int_equal(st.n_extents, 7);
    assert_int_equal(n_bytes % 7, 0);
    /* This run computes everything again, and finds all its chunks stored. */
    a.plan = "recompute";
    a.prompt = prompt[0];
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.committed, 320);
    assert_int_equal(appended_bytes(&k), n_bytes);
    et_prompt(prompt[1], 320, 6);
    a.prompt = prompt[1];
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(appended_bytes(&k), n_bytes + 5 * per_chunk);
    stack_close(&k);
}

/* When a prefix is computed again, the records that the best plan lacks are added, and no others.
 * The chunk then has its earlier records and the added ones. */
TEST(records_are_added)
{
    int32_t prompt[320];
    struct stack k;
    struct et_run ref, r;
    et_prompt(prompt, 320, 5);
    struct et_ask a = {
        .prompt = prompt, .n_prompt = 320, .max_tokens = 0, .save = "hidden"};
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    assert_int_equal(et_run(&k, &a, &r), 0);
    uint64_t hidden_bytes = appended_bytes(&k);
    stack_close(&k);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    a.max_tokens = 4;
    a.save = NULL;
    assert_int_equal(et_run(&k, &a, &ref), 0);
    a.max_tokens = 0;
    a.save = "kv";
    assert_int_equal(et_run(&k, &a, &r), 0);
    uint64_t kv_bytes = appended_bytes(&k);
    a.save = "both";
    a.plan = "recompute";
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.committed, 320);
    assert_int_equal(appended_bytes(&k), kv_bytes + hidden_bytes);
    static const char *const plans[] = {"hidden", "kv", "RHKK"};
    for (int i = 0; i < 3; i++) {
        a.save = NULL;
        a.plan = plans[i];
        a.max_tokens = 4;
        assert_int_equal(et_run(&k, &a, &r), 0);
        assert_int_equal(r.n_cached, 256);
        et_same(&r, &ref, plans[i]);
    }
    stack_close(&k);
}

/* More sequences run than the save buffer has room for. Each gives the same result as alone. Some
 * stop being saved and give the reason; requested again, they are saved. */
TEST(small_save_buffer)
{
    enum { N = 24 };
    static struct et_run ref[N], r;
    int32_t prompt[N][70];
    struct stack k;
    struct seq *s[N];
    struct et_ask a = {.n_prompt = 70, .max_tokens = 140};
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    for (int i = 0; i < N; i++) {
        et_prompt(prompt[i], 70, 100 + (uint64_t)i);
        a.prompt = prompt[i];
        assert_int_equal(et_run(&k, &a, &ref[i]), 0);
    }
    stack_close(&k);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.max_sequences = N,
                                     .user.save_buffer_bytes = 1,
                                     .user.no_reuse = true});
    a.save = "both";
    int n_shed = 0;
    for (int i = 0; i < N; i++) {
        a.prompt = prompt[i];
        s[i] = et_add(&k, &a);
    }
    assert_int_equal(engine_run(k.engine, NULL), 0);
    for (int i = 0; i < N; i++) {
        et_take(&k, s[i], &r);
        et_same(&r, &ref[i], "with a small save buffer");
        n_shed += r.save_end != SAVE_GOES_ON;
        assert_true(r.save_end == SAVE_GOES_ON || r.save_end == SAVE_END_MEMORY ||
                    r.save_end == SAVE_END_BEHIND);
        assert_true(r.save_end != SAVE_GOES_ON || r.committed == 209);
    }
    assert_true(n_shed > 0);
    for (int i = 0; i < N; i++) { /* the contexts continue one after another */
        int32_t longer[70 + 140 + 1];
        memcpy(longer, prompt[i], sizeof prompt[i]);
        memcpy(longer + 70, ref[i].tokens, 140 * sizeof longer[0]);
        longer[210] = 7;
        struct et_ask b = {
            .prompt = longer, .n_prompt = 211, .max_tokens = 1, .save = "both"};
        assert_int_equal(et_run(&k, &b, &r), 0);
        assert_int_equal(r.save_end, SAVE_GOES_ON);
        assert_int_equal(r.committed, 211);
    }
    stack_close(&k);
}

TEST(other_models_are_a_miss_with_a_reason)
{
    int32_t prompt[200];
    struct stack k;
    struct et_run r;
    struct io *io = et_disk(1, 0);
    et_prompt(prompt, 200, 3);
    struct et_ask a = {.prompt = prompt, .n_prompt = 200, .save = "kv"};
    et_open(&k,
            &(struct stack_opts){
                .io = io, .user.store = et_dirs, .user.n_store = 2, .user.no_reuse = true});
    assert_int_equal(et_run(&k, &a, &r), 0);
    stack_close(&k);
    et_open(&k, &(struct stack_opts){.io = io,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.dtype = "bf16",
                                     .user.no_reuse = true});
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.n_cached, 0);
    assert_non_null(strstr(r.miss, "another model"));
    assert_int_equal(et_run(&k, &a, &r), 0); /* both models share one store */
    assert_int_equal(r.n_cached, 199);
    stack_close(&k);
    io_close(io);
}

/* --- waiting for the saver -------------------------------------------------------------------- */

enum { SAVED = 1000, PIECE = 64 };

/* Opens a stack whose saver has little memory, on a disk that writes slowly. */
static struct io *open_behind(struct stack *k)
{
    struct io *io = et_disk(5, 0);
    const struct io_sim_fault slow = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_WRITE, .path = "seg-", .slow_ns = 20000000};
    et_open(k, &(struct stack_opts){.user.store = et_dirs,
                                    .user.n_store = 2,
                                    .user.max_sequences = 2,
                                    .user.no_reuse = true,
                                    .user.save_buffer_bytes = 1,
                                    .io = io,
                                    .step_rows = PIECE});
    assert_int_equal(io_sim_fault_add(io, &slow), 0);
    return io;
}

/* Runs a prompt to its end. Returns the number of prefill steps that computed no token of the
 * prompt. */
static int count_idle_steps(struct stack *k, struct seq *s)
{
    struct err err = {0};
    int n_idle = 0, n_active;
    while (s->phase != PHASE_DONE) {
        int n_done = s->n_done;
        bool is_prefill = s->phase == PHASE_PREFILL;
        assert_int_equal(engine_step(k->engine, &n_active, &err), 0);
        n_idle += is_prefill && s->n_done == n_done;
    }
    return n_idle;
}

/* If the saver has no free memory, a prefill waits for the saver within its step, provided that
 * nothing else runs. Beside a decode the prefill is left out of the step, so the decode goes on,
 * and a later step continues the prefill. In both cases all of the prompt's state is saved. */
TEST(a_prefill_waits_where_nothing_decodes)
{
    static int32_t prompt[SAVED], other[8];
    struct err err = {0};
    et_prompt(prompt, SAVED, 1);
    et_prompt(other, 8, 2);
    for (int beside = 0; beside < 2; beside++) {
        struct stack k;
        struct seq *decode = NULL, *s;
        struct et_run r;
        int n_active;
        struct io *io = open_behind(&k);
        struct et_ask a = {.prompt = other, .n_prompt = 8, .max_tokens = 1000};
        if (beside) {
            assert_int_equal(add(&k, &a, &decode, &err), 0);
            while (decode->phase != PHASE_DECODE)
                assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        }
        a = (struct et_ask){.prompt = prompt, .n_prompt = SAVED, .save = "both"};
        assert_int_equal(add(&k, &a, &s, &err), 0);
        int n_before = beside ? decode->n_tokens : 0, n_idle = count_idle_steps(&k, s);
        if (beside)
            assert_true(n_idle > 0 && decode->n_tokens - n_before >= n_idle);
        else
            assert_int_equal(n_idle, 0);
        et_take(&k, s, &r);
        assert_int_equal(r.save_end, SAVE_GOES_ON);
        assert_int_equal(r.committed, SAVED);
        if (beside)
            engine_remove(k.engine, decode);
        stack_close(&k);
        io_close(io);
    }
}

/* --- rest ------------------------------------------------------------------------------------- */

/* Returns the pages of the logits that are in memory. */
static int pages(const struct stack *k)
{
    const struct buf *b = &k->engine->next.mem;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (b->bytes + page - 1) / page;
    unsigned char *in = xcalloc(n, 1);
    int sum = 0;
    assert_int_equal(mincore(b->ptr, b->bytes, in), 0);
    for (size_t i = 0; i < n; i++)
        sum += in[i] & 1;
    free(in);
    return sum;
}

static uint64_t digest_of(struct service *s, const struct stack *k, const struct et_ask *a)
{
    struct hcache_ticket *t;
    struct hcache_delta delta = {0};
    struct hcache_result r;
    struct hcache_err err;
    assert_int_equal(service_submit(s, et_request(k, a), &t, NULL), 0);
    while (!delta.ended) {
        (void)service_run(s, t, NULL, NULL);
        hcache_ticket_read(t, &delta);
    }
    assert_int_equal(hcache_ticket_result(t, &r, &err), 0);
    uint64_t digest = r.logits_digest;
    assert_true(digest != 0);
    hcache_result_free(&r);
    hcache_ticket_free(t);
    return digest;
}

/* A service without requests gives memory back, and computes the same afterwards. One that may not
 * rest keeps it. */
TEST(idle_services_rest)
{
    int32_t prompt[200];
    et_prompt(prompt, 200, 3);
    struct et_ask a = {.prompt = prompt, .n_prompt = 200, .max_tokens = 20, .save = "both"};
    for (int rests = 0; rests < 2; rests++) {
        struct stack k;
        struct service *s;
        et_open(&k,
                &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
        service_create(&(struct service_opts){.engine = k.engine,
                                              .saver = k.saver,
                                              .store = k.store,
                                              .n_vocab = k.model->cfg.vocab_size,
                                              .max_sequences = 1,
                                              .max_context = k.model->max_ctx,
                                              .rest_ns = rests ? 1000000 : 0},
                       &s);
        assert_int_equal(service_start(s, 4, NULL), 0);
        uint64_t digest = digest_of(s, &k, &a);
        while (rests && pages(&k) > 0)
            clock_sleep_ns(1000000);
        assert_int_equal(pages(&k) > 0, !rests);
        assert_int_equal(digest_of(s, &k, &a), digest);
        service_stop(s);
        service_destroy(s);
        stack_close(&k);
    }
}
