/* test_schedule.c - sequences that wait, share blocks, lose their places and come back give
 * unchanged results.
 *
 * Tokens and the digest of logits of every request are compared with those of the same request
 * alone in an engine with room for all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/seq.h"
#include "store/chain.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

enum { N = 12, N_PROMPT = 330, MODEL_CONTEXT = 512 };

static int32_t prompt[N][N_PROMPT];
static struct et_ask ask[N];
static struct et_run alone[N];

/* Makes prompts, half of which begin alike, with different lengths, parameters and seeds. Runs each
 * alone. */
static int run_alone(void **state)
{
    struct stack k;
    et_open(&k,
            &(struct stack_opts){.user.max_context = MODEL_CONTEXT, .user.no_reuse = true});
    for (int i = 0; i < N; i++) {
        et_prompt(prompt[i], N_PROMPT, i % 2 ? 7 : 100 + (uint64_t)i);
        for (int j = 20 * i; i % 2 && j < N_PROMPT; j++)
            prompt[i][j] = 3 + (prompt[i][j] + i) % 400;
        ask[i] = (struct et_ask){.prompt = prompt[i],
                                 .n_prompt = 40 + 25 * i,
                                 .max_tokens = 60 + 37 * i % 130,
                                 .temperature = i % 3 ? 1.0f : 0.0f,
                                 .seed = (uint64_t)i,
                                 .save = i % 4 == 3 ? "none" : "both"};
        if (et_run(&k, &ask[i], &alone[i]) != 0)
            fail_msg("%s", alone[i].err.msg);
    }
    stack_close(&k);
    return 0;
}

static struct seq *add(struct stack *k, int i, int priority, int64_t deadline_ns)
{
    struct err err = {0};
    struct seq *s = NULL;
    struct request *q = et_request(k, &ask[i]);
    q->ask.priority = priority;
    q->deadline_ns = deadline_ns;
    if (et_submit(k->engine, q, &s, &err) != 0)
        fail_msg("request %d: %s", i, err.msg);
    return s;
}

static void step(struct stack *k, int n)
{
    struct err err = {0};
    int n_active;
    for (int i = 0; i < n; i++) {
        if (engine_step(k->engine, &n_active, &err) != 0)
            fail_msg("%s", err.msg);
    }
}

static void run_to_end(struct stack *k)
{
    struct err err = {0};
    if (engine_run(k->engine, &err) != 0)
        fail_msg("%s", err.msg);
}

/* --- preemption ------------------------------------------------------------------------------- */

/* Runs all prompts in a pool with room for one context. They arrive one after another, and use the
 * given store. */
static struct engine_stats in_a_tiny_pool(struct stack *k, const char *what)
{
    struct engine_stats st;
    struct seq *s[N];
    struct et_run r;
    for (int i = 0; i < N; i++) {
        s[i] = add(k, i, i % 5 == 4 ? -2 : 0, 0);
        step(k, i % 3);
    }
    run_to_end(k);
    engine_stats(k->engine, &st);
    for (int i = 0; i < N; i++) {
        et_take(k, s[i], &r);
        et_same(&r, &alone[i], what);
    }
    engine_stats(k->engine, &st);
    assert_int_equal(st.blocks_free, st.blocks); /* no block has leaked */
    return st;
}

TEST(preempted_without_a_store)
{
    for (int reuse = 0; reuse < 2; reuse++) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                         .user.max_sequences = 5,
                                         .user.kv_tokens = 8 * 64,
                                         .step_rows = 100,
                                         .user.no_reuse = !reuse});
        struct engine_stats st = in_a_tiny_pool(&k, "without a store");
        print_message("# reuse %d: %d preemptions, %d tokens recovered, %d recomputed\n",
                      reuse, (int)st.n_preempted, (int)st.recovered_tokens,
                      (int)st.recomputed_tokens);
        assert_true(st.n_preempted > 3);
        assert_true(reuse || st.recovered_tokens == 0);
        stack_close(&k);
    }
}

/* A store may be fast, slow or fail at some point. That changes only the number of tokens that are
 * computed again. */
TEST(preempted_with_a_store)
{
    static const struct io_sim_fault faults[] = {
        {.kind = IO_SIM_SLOW, .on = IO_SIM_ON_WRITE, .slow_ns = 300000},
        {.kind = IO_SIM_FAIL,
         .on = IO_SIM_ON_WRITE,
         .path = "seg-",
         .skip = 12,
         .code = -28},
    };
    for (int i = 0; i < 6; i++) {
        struct stack k;
        struct io *io = et_disk(40 + (uint64_t)i, 0);
        et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                         .user.max_sequences = 5,
                                         .user.kv_tokens = 8 * 64,
                                         .step_rows = 100,
                                         .user.no_reuse = !(i % 2),
                                         .io = io,
                                         .user.store = et_dirs,
                                         .user.n_store = 2});
        if (i / 2 > 0)
            assert_int_equal(io_sim_fault_add(io, &faults[i / 2 - 1]), 0);
        struct engine_stats st = in_a_tiny_pool(&k, "with a store");
        print_message("# store %d: %d preemptions, %d tokens recovered, %d recomputed\n", i,
                      (int)st.n_preempted, (int)st.recovered_tokens,
                      (int)st.recomputed_tokens);
        assert_true(st.n_preempted > 0);
        /* with a fault the number depends on whether preemptions come before or after a prefill */
        if (i / 2 == 0)
            assert_true(st.recovered_tokens > 0);
        io_sim_fault_clear(io);
        stack_close(&k);
        io_close(io);
    }
}

/* --- sharing ---------------------------------------------------------------------------------- */

/* n answers to one prompt are requested at once. The prompt is computed once, except for its last
 * block. */
TEST(answers_share_their_prompt)
{
    struct et_run ref[4], r;
    struct stack k;
    struct et_ask a = {.prompt = prompt[1],
                       .n_prompt = 300,
                       .max_tokens = 30,
                       .temperature = 1,
                       .save = "both"};
    et_open(&k,
            &(struct stack_opts){.user.max_context = MODEL_CONTEXT, .user.no_reuse = true});
    for (int i = 0; i < 4; i++) {
        a.seed = (uint64_t)i;
        assert_int_equal(et_run(&k, &a, &ref[i]), 0);
    }
    stack_close(&k);
    for (int saved = 0; saved < 2; saved++) {
        struct seq *s[4];
        et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                         .user.max_sequences = 4,
                                         .step_rows = 128,
                                         .user.no_reuse = false,
                                         .user.store_in_memory = true});
        a.save = saved ? "both" : "none";
        for (int i = 0; i < 4; i++) {
            a.seed = (uint64_t)i;
            s[i] = et_add(&k, &a);
        }
        run_to_end(&k);
        for (int i = 0; i < 4; i++) {
            /* Full blocks are shared. The last block is copied, unless it must be saved. */
            assert_int_equal(seq_outcome(s[i])->r.device_tokens, i == 0  ? 0
                                                                 : saved ? 256
                                                                         : 299);
            et_take(&k, s[i], &r);
            et_same(&r, &ref[i], "one of four answers");
            assert_int_equal(r.committed, saved ? 300 + r.n_tokens - 1 : 0);
        }
        stack_close(&k);
    }
}

/* Turns of a conversation, with other requests between them, in a small pool. A prefix may come
 * from the device or the store or be computed: the bits are the same. */
TEST(turns_come_from_anywhere)
{
    struct stack plain, k;
    struct rng rng = {5};
    int n_device = 0, n_restored = 0;
    et_open(&plain,
            &(struct stack_opts){.user.max_context = MODEL_CONTEXT, .user.no_reuse = true});
    et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                     .user.kv_tokens = 8 * 64,
                                     .user.no_reuse = false,
                                     .user.store_in_memory = true});
    for (int i = 0; i < 60; i++) {
        struct et_run ref, r;
        struct et_ask a = ask[rng_below(&rng, N)];
        a.n_prompt = 1 + (int)rng_below(&rng, N_PROMPT);
        a.max_tokens = 1 + (int)rng_below(&rng, 40);
        a.salt = rng_below(&rng, 4) == 0 ? "other" : NULL;
        assert_int_equal(et_run(&plain, &a, &ref), 0);
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref, "from anywhere");
        n_device += r.n_device;
        n_restored += r.n_cached - r.n_device;
    }
    print_message("# %d tokens from the device, %d from the store\n", n_device, n_restored);
    assert_true(n_device > 1000 && n_restored > 500);
    stack_close(&plain);
    stack_close(&k);
}

/* The device has lost the end of a prompt, because ends are evicted first. The store restores the
 * missing part, by every method. */
TEST(the_store_continues_the_device)
{
    static const char *const saves[] = {"kv", "hidden", "both"};
    for (int i = 0; i < 3; i++) {
        struct stack plain, k;
        struct et_run ref, r;
        struct et_ask a = {
            .prompt = prompt[0], .n_prompt = 330, .max_tokens = 40, .save = saves[i]};
        struct et_ask other = {.prompt = prompt[2], .n_prompt = 250, .max_tokens = 1};
        et_open(&plain, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                             .user.no_reuse = true});
        assert_int_equal(et_run(&plain, &a, &ref), 0);
        stack_close(&plain);
        et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                         .user.kv_tokens = 8 * 64,
                                         .user.no_reuse = false,
                                         .user.store_in_memory = true});
        if (saves[i][0] == 'h') /* projecting is made cheap, and computing is not */
            et_platform(&k.platform, 1e-2, 1e-7, 1e-4, 1e9);
        assert_int_equal(et_run(&k, &a, &r), 0);
        assert_int_equal(et_run(&k, &other, &r), 0);
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref, "device, then store");
        assert_true(r.n_device >= 64 && r.n_device < 320);
        assert_int_equal(r.n_cached, 320);
        assert_true(r.restore.read_bytes > 0);
        assert_int_equal(r.restore.n_chunks, 5);
        stack_close(&k);
    }
}

/* Returns how many of the chunks the store believes to be in the KV cache. */
static int n_told(const struct stack *k, const struct chain *c)
{
    int n = 0;
    for (int i = 0; i < c->n_chunks; i++)
        n += tier_is_held(k->store->tier, catalog_find(&k->store->catalog, &c->keys[i]));
    return n;
}

/* Each step tells a store with copies in DRAM which chunks the KV cache has gained or lost. */
TEST(a_store_with_copies_knows_what_the_device_holds)
{
    struct io *io = et_disk(8, 0);
    struct stack k;
    struct et_run r;
    struct chain c;
    struct et_ask a = {
        .prompt = prompt[0], .n_prompt = 200, .max_tokens = 1, .save = "both"};
    et_open(&k, &(struct stack_opts){.io = io,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.dram_bytes = 32 << 20,
                                     .user.max_context = MODEL_CONTEXT,
                                     .user.kv_tokens = 8 * 64});
    chain_init(&c, &k.fingerprint, NULL);
    chain_extend(&c, prompt[0], 200);
    assert_int_equal(c.n_chunks, 3);
    assert_int_equal(et_run(&k, &a, &r), 0);
    step(&k, 1);
    assert_int_equal(n_told(&k, &c), 3);
    a.n_prompt = 330;
    for (int i = 2; i < 6; i += 2) { /* two prompts that need most blocks of the KV cache */
        a.prompt = prompt[i];
        assert_int_equal(et_run(&k, &a, &r), 0);
    }
    step(&k, 1);
    assert_int_equal(n_told(&k, &c), 0);
    chain_deinit(&c);
    stack_close(&k);
    io_close(io);
}

/* Tenants with different salts do not share blocks on the device. */
TEST(salts_do_not_share)
{
    struct stack k;
    struct et_run r;
    struct et_ask a = {.prompt = prompt[0], .n_prompt = 200, .salt = "alice"};
    et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                     .user.no_reuse = false});
    assert_int_equal(et_run(&k, &a, &r), 0);
    a.salt = "bob";
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.n_device, 0);
    a.salt = "alice";
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.n_device, 199);
    a.plan = "recompute"; /* a forced plan is followed */
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.n_device, 0);
    stack_close(&k);
}

/* --- ends ------------------------------------------------------------------------------------- */

/* One request is late from the beginning, and one is cut off after `in_ns`. Returns false if that
 * time passed before the request's first token, because the machine was busy. */
static bool deadlines_after(int64_t in_ns)
{
    struct stack k;
    struct et_run r;
    et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                     .user.max_sequences = 1,
                                     .user.no_reuse = true});
    struct seq *late = add(&k, 11, 0, clock_now_ns() - 1);
    int64_t soon = clock_now_ns() + in_ns;
    struct seq *cut = add(&k, 10, 0, soon);
    struct seq *free_of_it = add(&k, 9, 0, 0);
    step(&k, 2);
    int n = seq_outcome(cut)->r.n_tokens;
    bool in_time = n > 0;
    while (clock_now_ns() < soon)
        clock_sleep_ns(1000000);
    run_to_end(&k);
    et_take(&k, late, &r);
    assert_int_equal(r.finish, FINISH_TIMEOUT);
    assert_int_equal(r.n_tokens, 0);
    et_take(&k, cut, &r); /* tokens that were already shown stay in the result */
    assert_int_equal(r.finish, FINISH_TIMEOUT);
    assert_int_equal(r.n_tokens, n);
    assert_memory_equal(r.tokens, alone[10].tokens, (size_t)n * sizeof r.tokens[0]);
    et_take(&k, free_of_it, &r);
    et_same(&r, &alone[9], "behind a deadline");
    stack_close(&k);
    return in_time;
}

TEST(deadlines)
{
    int64_t in_ns = 50000000;
    while (!deadlines_after(in_ns) && in_ns < (int64_t)60 * 1000000000)
        in_ns *= 4;
    assert_true(in_ns < (int64_t)60 * 1000000000);
}

TEST(priorities)
{
    struct stack k;
    struct et_run r;
    struct seq *s[3];
    et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                     .user.max_sequences = 1,
                                     .user.store_in_memory = true,
                                     .user.no_reuse = true});
    s[0] = add(&k, 4, 0, 0);
    step(&k, 4);
    s[1] = add(&k, 6, 0, 0);
    s[2] = add(&k, 8, -100, 0);
    while (seq_outcome(s[2])->finish == FINISH_NONE)
        step(&k, 1);
    assert_int_equal(seq_outcome(s[0])->r.n_preempted, 1);
    assert_int_equal(seq_outcome(s[1])->r.n_tokens, 0);
    run_to_end(&k);
    static const int which[] = {4, 6, 8};
    for (int i = 0; i < 3; i++) {
        et_take(&k, s[i], &r);
        et_same(&r, &alone[which[i]], "with priorities");
    }
    stack_close(&k);
}

/* The compute of a restore is no part of the batch. While the reads of the first request hang, the
 * second one gets all rows of each step. */
TEST(a_restore_takes_no_rows_of_the_batch)
{
    enum { STEP_ROWS = 64, N_SECOND = 300 };
    const struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg-"};
    struct stack k;
    struct et_run r;
    struct seq *s[2];
    struct io *io = et_disk(7, 0);
    struct et_ask a = {.prompt = prompt[0], .n_prompt = 330, .max_tokens = 1, .save = "kv"};
    et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                     .user.max_sequences = 2,
                                     .user.no_reuse = true,
                                     .io = io,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .step_rows = STEP_ROWS});
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(io_sim_fault_add(io, &stuck), 0);
    a.plan = "kv";
    a.restore_first = true;
    s[0] = et_add(&k, &a);
    step(&k, 1);
    assert_int_equal(s[0]->phase, PHASE_RESTORE);
    a = (struct et_ask){.prompt = prompt[2], .n_prompt = N_SECOND, .max_tokens = 1};
    s[1] = et_add(&k, &a);
    for (int n = 0; n < (N_SECOND + STEP_ROWS - 1) / STEP_ROWS; n++) {
        assert_int_equal(seq_outcome(s[1])->finish, FINISH_NONE);
        step(&k, 1);
        assert_int_equal(s[0]->rows, 0);
    }
    step(&k, 1);
    assert_int_equal(seq_outcome(s[1])->finish, FINISH_LENGTH);
    assert_int_equal(s[0]->phase, PHASE_RESTORE);
    io_sim_fault_clear(io);
    io_sim_unstick(io);
    run_to_end(&k);
    for (int i = 0; i < 2; i++)
        et_take(&k, s[i], &r);
    stack_close(&k);
    io_close(io);
}

/* Overwrites the embedding of one token, in a state dtype of 16 or 32 bits. */
static void poison(struct stack *k, int32_t id, uint32_t bits)
{
    struct mat row = mat_rows(k->model->w.embed, id, 1);
    assert_non_null(row.data);
    for (int64_t i = 0; i < row.cols; i++)
        memcpy((uint8_t *)row.data + (size_t)i * dtype_bytes(row.dtype), &bits,
               dtype_bytes(row.dtype));
}

/* The values of one sequence leave the range of f16, or are NaN. The sequences beside it are not
 * affected. */
static void check_fault_of_values(const char *dtype, uint32_t bits, const char *says)
{
    enum { BAD = 500 };
    struct stack k;
    struct et_run ref[2], r;
    struct seq *s[3];
    struct et_ask a[3];
    int32_t bad[100];
    et_open(&k, &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                     .user.max_sequences = 3,
                                     .user.dtype = dtype,
                                     .user.store_in_memory = true,
                                     .user.no_reuse = true});
    poison(&k, BAD, bits);
    for (int i = 0; i < 3; i++) {
        a[i] = (struct et_ask){
            .prompt = prompt[i], .n_prompt = 100, .max_tokens = 80, .save = "both"};
        if (i < 2)
            assert_int_equal(et_run(&k, &a[i], &ref[i]), 0);
    }
    memcpy(bad, prompt[2], sizeof bad);
    bad[70] = BAD;
    a[2].prompt = bad;
    a[0].plan = a[1].plan = "recompute";
    for (int order = 0; order < 2; order++) {
        for (int i = 0; i < 3; i++) {
            s[(i + 2 * order) % 3] = et_add(&k, &a[(i + 2 * order) % 3]);
        }
        run_to_end(&k);
        et_take(&k, s[2], &r);
        assert_int_equal(r.finish, FINISH_ERROR);
        assert_int_equal(r.n_tokens, 0);
        if (strstr(r.err.msg, says) == NULL)
            fail_msg("%s", r.err.msg);
        for (int i = 0; i < 2; i++) {
            et_take(&k, s[i], &r);
            et_same(&r, &ref[i], "beside a fault");
        }
    }
    stack_close(&k);
}

TEST(a_fault_of_values_is_its_own)
{
    check_fault_of_values("f16", 0x7c00, "--dtype bf16"); /* infinity */
    check_fault_of_values("f32", 0x7fc00000, "all logits are NaN");
    check_fault_of_values("bf16", 0x7fc0, "all logits are NaN");
}

/* A request's result depends only on its own prompt, parameters and seed. The other requests of the
 * batch, their order, and the division into pieces change nothing. */
TEST(company_changes_nothing)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct rng rng = {seed};
        struct stack k;
        struct seq *s[N];
        struct et_run r;
        int order[N];
        et_open(&k,
                &(struct stack_opts){.user.max_context = MODEL_CONTEXT,
                                     .user.max_sequences = 1 + (int)rng_below(&rng, N),
                                     .user.threads = 1 + (int)rng_below(&rng, 2),
                                     .step_rows = 16 + (int)rng_below(&rng, 300),
                                     .user.kv_tokens = 64 * (8 + (int)rng_below(&rng, 40)),
                                     .user.no_reuse = !rng_below(&rng, 2),
                                     .user.store_in_memory = rng_below(&rng, 2)});
        for (int i = 0; i < N; i++) {
            int j = (int)rng_below(&rng, (uint64_t)i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (int i = 0; i < N; i++) {
            s[i] = add(&k, order[i], (int)rng_below(&rng, 5) - 2, 0);
            step(&k, (int)rng_below(&rng, 4));
        }
        run_to_end(&k);
        for (int i = 0; i < N; i++) {
            et_take(&k, s[i], &r);
            et_same(&r, &alone[order[i]], "in company");
        }
        stack_close(&k);
    }
}

int main(void)
{
    return unit_run(run_alone, NULL);
}
