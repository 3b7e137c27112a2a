/* test_ends.c - how a sequence ends: by which token, with how many committed tokens, and how its
 * tail is used. */
#include <string.h>

#include "tests/unit.h"
#include "tests/engine/enginetest.h"

enum { N_PROMPT = 200, N_LONGER = 230 };

/* Generates one token for a prompt. Returns the reason for the end; *first gets the token. */
static enum finish finish_of(struct stack *k, const int32_t *prompt, bool ignore_eos,
                             int32_t *first)
{
    struct et_run r;
    struct err err = {0};
    struct seq *s;
    struct et_ask a = {.prompt = prompt, .n_prompt = 20, .max_tokens = 3};
    struct request *q = et_request(k, &a);
    q->ask.ignore_eos = ignore_eos;
    assert_int_equal(et_submit(k->engine, q, &s, &err), 0);
    assert_int_equal(engine_run(k->engine, &err), 0);
    et_take(k, s, &r);
    *first = r.n_tokens > 0 ? r.tokens[0] : -1;
    return r.finish;
}

/* An EOS ends an answer.  BOS does not, as in the reference library. */
TEST(only_an_eos_ends_an_answer)
{
    struct stack k;
    int32_t prompt[20], first, none;
    et_prompt(prompt, 20, 5);
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    struct model_config *c = &k.model->cfg;
    c->bos_id = -1;
    c->n_eos = 0;
    assert_int_equal(finish_of(&k, prompt, false, &first), FINISH_LENGTH);
    c->bos_id = first;
    assert_int_equal(finish_of(&k, prompt, false, &none), FINISH_LENGTH);
    assert_int_equal(none, first);
    c->eos_ids[c->n_eos++] = first;
    assert_int_equal(finish_of(&k, prompt, false, &none), FINISH_EOS);
    assert_int_equal(none, -1);
    assert_int_equal(finish_of(&k, prompt, true, &none), FINISH_LENGTH);
    stack_close(&k);
}

/* Six requests for one prompt are in one batch: their logits are shaped differently, or not at all,
 * and only some are shown. Each gets the tokens that its own shaping gives. The logits that are
 * shown are those of the model. */
TEST(each_request_has_its_own_shaping)
{
    enum { N = 6, FORCED = 99, MOST = 4 };
    struct stack k;
    struct err err = {0};
    struct seq *s[N];
    struct et_run r[N], one;
    int32_t prompt[20], first;
    et_prompt(prompt, 20, 5);
    et_open(&k, &(struct stack_opts){.user.max_sequences = N, .user.no_reuse = true});
    struct model_config *c = &k.model->cfg;
    c->bos_id = -1;
    c->n_eos = 0;
    struct et_ask a = {.prompt = prompt, .n_prompt = 20, .max_tokens = 1};
    assert_int_equal(et_run(&k, &a, &one), 0);
    first = one.tokens[0];
    assert_int_not_equal(first, FORCED);
    c->eos_ids[c->n_eos++] = first;
    const struct hcache_bias bias = {FORCED, 1e6f};
    const struct hcache_shaping forces = {
        .repetition_penalty = 1, .bias = &bias, .n_bias = 1};
    const struct hcache_shaping longer = {.repetition_penalty = 1, .min_tokens = 2};
    const struct hcache_shaping stops = {
        .repetition_penalty = 1, .stop_ids = &first, .n_stop_ids = 1};
    const struct {
        const struct hcache_shaping *shaping;
        bool ignore_eos, shown;
    } how[N] = {{NULL, true, false},  {&forces, true, true},  {&longer, false, true},
                {&stops, true, true}, {&forces, true, false}, {NULL, false, true}};
    for (int i = 0; i < N; i++) {
        a.max_tokens = i == 1 ? 1 : MOST;
        struct request *q = et_request(&k, &a);
        q->ask.shaping = how[i].shaping;
        q->ask.ignore_eos = how[i].ignore_eos;
        q->ask.digest = how[i].shown;
        assert_int_equal(et_submit(k.engine, q, &s[i], &err), 0);
    }
    assert_int_equal(engine_run(k.engine, &err), 0);
    for (int i = 0; i < N; i++)
        et_take(&k, s[i], &r[i]);
    assert_int_equal(r[0].n_tokens, MOST);
    assert_int_equal(r[0].tokens[0], first);
    assert_true(r[1].n_tokens == 1 && r[1].tokens[0] == FORCED &&
                r[1].digest == one.digest);
    assert_in_range(r[2].n_tokens, 2, MOST);
    assert_true(r[2].tokens[0] != first && r[2].tokens[1] != first);
    assert_true(r[3].finish == FINISH_EOS && r[3].n_tokens == 0 &&
                r[3].digest == one.digest);
    assert_true(r[4].n_tokens == MOST && r[4].digest == 0);
    for (int i = 0; i < MOST; i++)
        assert_int_equal(r[4].tokens[i], FORCED);
    assert_true(r[5].finish == FINISH_EOS && r[5].n_tokens == 0 &&
                r[5].digest == one.digest);
    stack_close(&k);
}

/* With attention windows a restore brings back only the last tokens. The blocks before them are not
 * shared with later requests, because they have no keys and values. */
TEST(blocks_before_a_window_are_not_shared)
{
    enum { N = 250 };
    static const char model[] = "tests/model/golden/families/mistral";
    struct io *io = et_disk(9, 0);
    struct stack_opts o = {.user.model = model,
                           .user.store = et_dirs,
                           .user.n_store = 2,
                           .user.max_context = 512,
                           .io = io};
    struct stack k;
    struct et_run ref, r;
    int32_t prompt[N];
    et_small_prompt(prompt, N, 3);
    struct et_ask a = {.prompt = prompt, .n_prompt = N, .max_tokens = 3, .save = "kv"};
    et_open(&k, &o);
    assert_int_equal(et_run(&k, &a, &ref), 0);
    a.save = "none";
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(r.n_device, N / 64 * 64); /* computed blocks are shared */
    stack_close(&k);
    et_open(&k, &o);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(et_run(&k, &a, &r), 0);
        assert_true(r.restore.first_token > 0);
        assert_int_equal(r.n_device, 0);
        assert_int_equal(r.n_cached, N / 64 * 64);
        et_same(&r, &ref, "within the window");
    }
    stack_close(&k);
    io_close(io);
}

/* Two sequences with one prompt run at once. The second takes over blocks of the first before their
 * chunks are stored. At the end the chunks are stored and count as committed for both sequences,
 * even if the second saves nothing itself. */
TEST(chunks_that_are_shared_on_the_device_count_as_committed)
{
    struct io *io = et_disk(7, 0);
    struct stack k;
    struct seq *s[2];
    struct et_run r[2];
    struct err err = {0};
    int32_t prompt[N_PROMPT];
    et_prompt(prompt, N_PROMPT, 6);
    et_open(&k, &(struct stack_opts){.io = io,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.max_sequences = 2});
    struct et_ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 2};
    for (int i = 0; i < 2; i++) {
        a.save = i == 0 ? "both" : "none";
        s[i] = et_add(&k, &a);
    }
    assert_int_equal(engine_run(k.engine, &err), 0);
    for (int i = 0; i < 2; i++)
        et_take(&k, s[i], &r[i]);
    et_same(&r[0], &r[1], "the second");
    assert_true(r[1].n_device >= N_PROMPT / 64 * 64);
    for (int i = 0; i < 2; i++)
        assert_true(r[i].committed >= N_PROMPT / 64 * 64);
    stack_close(&k);
    io_close(io);
}

/* If a tail lacks records that are to be saved, its rows are computed again. Otherwise its full
 * chunk would lack the records. */
TEST(a_tail_without_the_wanted_records_is_computed_again)
{
    const struct {
        const char *first, *then;
        int n_cached;
    } cases[] = {{"kv", "kv", N_PROMPT},
                 {"both", "kv", N_PROMPT},
                 {"kv", "both", N_PROMPT / 64 * 64},
                 {"kv", "hidden", N_PROMPT / 64 * 64},
                 {"hidden", "both", N_PROMPT / 64 * 64}};
    int32_t prompt[N_LONGER];
    et_prompt(prompt, N_LONGER, 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct io *io = et_disk(10 + i, 0);
        struct stack k;
        struct et_run r;
        et_open(&k, &(struct stack_opts){.io = io,
                                         .user.store = et_dirs,
                                         .user.n_store = 2,
                                         .user.no_reuse = true});
        struct et_ask a = {.prompt = prompt,
                           .n_prompt = N_PROMPT,
                           .max_tokens = 1,
                           .save = cases[i].first};
        assert_int_equal(et_run(&k, &a, &r), 0);
        a.n_prompt = N_LONGER;
        a.save = cases[i].then;
        assert_int_equal(et_run(&k, &a, &r), 0);
        if (r.n_cached != cases[i].n_cached)
            fail_msg("%s, then %s: %d tokens came back, not %d", cases[i].first,
                     cases[i].then, r.n_cached, cases[i].n_cached);
        stack_close(&k);
        io_close(io);
    }
}

/* Turns of a chat: each prompt is the prompt and the answer before it, and 21 tokens more. A later
 * turn computes these, and the answer's last token, whose state does not exist yet. The rows that
 * it takes from the device's unfinished block are saved with it: after a restart all of them come
 * back from the store. */
TEST(a_turn_computes_only_what_is_new)
{
    enum { N_TURNS = 7, MORE = 21, ANSWER = 5 };
    static const char *const kinds[] = {"kv", "hidden", "both"};
    for (int i = 0; i < 3; i++) {
        int32_t prompt[600];
        struct stack k, alone;
        struct et_run r = {0}, ref;
        struct io *io = et_disk(20 + (uint64_t)i, 0);
        struct stack_opts o = {.io = io, .user.store = et_dirs, .user.n_store = 2};
        et_prompt(prompt, 600, 9);
        struct et_ask a = {
            .prompt = prompt, .n_prompt = 100, .max_tokens = ANSWER, .save = kinds[i]};
        et_open(&k, &o);
        et_open(&alone, &(struct stack_opts){.user.no_reuse = true});
        for (int turn = 0; turn <= N_TURNS; turn++) {
            bool restarts = turn == N_TURNS;
            int n_known = turn > 0 ? a.n_prompt + ANSWER - 1 : 0;
            if (turn > 0) {
                memcpy(prompt + a.n_prompt, r.tokens, ANSWER * sizeof *prompt);
                a.n_prompt += ANSWER + MORE;
            }
            if (restarts) {
                stack_close(&k);
                et_open(&k, &o);
            }
            assert_int_equal(et_run(&k, &a, &r), 0);
            assert_int_equal(r.n_cached, n_known);
            assert_int_equal(r.n_device, restarts ? 0 : n_known);
            assert_int_equal(r.save_end, SAVE_GOES_ON);
            struct et_ask b = a;
            b.save = "none";
            assert_int_equal(et_run(&alone, &b, &ref), 0);
            et_same(&r, &ref, kinds[i]);
        }
        /* The same prompt again: only its last token is computed. */
        for (int again = 0; again < 2; again++) {
            int32_t same[600];
            struct et_ask c = a;
            memcpy(same, prompt, sizeof same);
            c.prompt = same;
            c.n_prompt = a.n_prompt + ANSWER - 1; /* it ends where the state does */
            memcpy(same + a.n_prompt, r.tokens, (ANSWER - 1) * sizeof *same);
            c.max_tokens = 1;
            if (again == 1) {
                stack_close(&k);
                et_open(&k, &o);
            }
            struct et_run first = r;
            assert_int_equal(et_run(&k, &c, &r), 0);
            assert_int_equal(r.n_cached, c.n_prompt - 1);
            assert_int_equal(r.n_device, again == 1 ? 0 : c.n_prompt - 1);
            assert_int_equal(r.tokens[0], first.tokens[ANSWER - 1]);
            r = first;
        }
        /* The last prompt, but it ends in another way: it takes the tokens of the block that agree.
         * Then it goes on, on the device and after a restart. */
        int n_same = a.n_prompt / 64 * 64 + 5;
        assert_true(n_same < a.n_prompt - 15);
        for (int t = n_same; t < a.n_prompt; t++)
            prompt[t] = prompt[t] % 400 + 1 + t % 3;
        for (int again = 0; again < 3; again++) {
            int n_known = again == 0 ? n_same : a.n_prompt + ANSWER - 1;
            if (again > 0) {
                memcpy(prompt + a.n_prompt, r.tokens, ANSWER * sizeof *prompt);
                a.n_prompt += ANSWER;
            }
            if (again == 2) {
                stack_close(&k);
                et_open(&k, &o);
            }
            assert_int_equal(et_run(&k, &a, &r), 0);
            assert_int_equal(r.n_cached, n_known);
            assert_int_equal(r.n_device, again == 2 ? 0 : n_known);
            struct et_ask b = a;
            b.save = "none";
            assert_int_equal(et_run(&alone, &b, &ref), 0);
            et_same(&r, &ref, "another end");
        }
        stack_close(&k);
        stack_close(&alone);
        io_close(io);
    }
}

/* A turn comes while the end of the turn before it is still being committed. The turn waits for
 * the commit where computing that end again would take longer, and then computes only what is
 * new. Where computing is quicker, it soon computes the end again. Both give the same answer. */
TEST(a_turn_waits_for_the_end_of_the_turn_before)
{
    enum { FIRST = 100, NEXT = 130, ANSWER = 5, KNOWN = FIRST + ANSWER - 1 };
    const struct io_sim_fault slow = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_SYNC, .slow_ns = 400000000};
    uint64_t digest[2];
    for (int waits = 0; waits < 2; waits++) {
        int32_t prompt[NEXT];
        struct stack k;
        struct et_run r;
        struct err err = {0};
        struct io *io = et_disk(30, 0);
        struct et_ask a = {
            .prompt = prompt, .n_prompt = FIRST, .max_tokens = ANSWER, .save = "kv"};
        et_prompt(prompt, NEXT, 9);
        et_open(&k,
                &(struct stack_opts){.io = io, .user.store = et_dirs, .user.n_store = 2});
        et_platform(&k.platform, waits ? 10 : 1e-6, 2e-6, 1e-7, 1e9);
        assert_int_equal(io_sim_fault_add(io, &slow), 0);
        struct seq *first = et_add(&k, &a);
        assert_int_equal(engine_run(k.engine, &err), 0);
        memcpy(prompt + FIRST, seq_outcome(first)->r.token_ids, ANSWER * sizeof *prompt);
        a.n_prompt = NEXT;
        struct seq *next = et_add(&k, &a);
        assert_int_equal(engine_run(k.engine, &err), 0);
        io_sim_fault_clear(io);
        et_take(&k, first, &r);
        et_take(&k, next, &r);
        assert_int_equal(r.n_cached, waits ? KNOWN : FIRST / 64 * 64);
        assert_int_equal(r.committed / 64, (NEXT + ANSWER - 1) / 64);
        digest[waits] = r.digest;
        stack_close(&k);
        io_close(io);
    }
    assert_int_equal(digest[0], digest[1]);
}
