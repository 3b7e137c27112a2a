/* test_recurrent.c - models with recurrent layers: a state that was replayed from saved inputs is
 * bit-equal to one that was never evicted.
 *
 * A run without a store gives the reference.  Then a prefix of n tokens is saved and the whole
 * prompt is restored behind it, for every n around two chunks, by plans of every kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine/enginetest.h"

enum { N_PROMPT = 205, N_GENERATE = 6 };

static int32_t prompt[N_PROMPT];

static void open_hybrid(struct stack *k, const char *dtype, bool has_store, int step_rows)
{
    struct stack_opts o = {.user.model = "synth:tiny-hybrid",
                           .user.dtype = dtype,
                           .user.threads = 2,
                           .user.max_context = 256,
                           .user.max_sequences = 3,
                           .user.store_in_memory = has_store,
                           .step_rows = step_rows};
    et_open(k, &o);
    et_prompt(prompt, N_PROMPT, 7);
}

/* Returns a run of the whole prompt that is never evicted. */
static struct et_run alone(const char *dtype, int step_rows)
{
    struct stack k;
    struct et_run r;
    open_hybrid(&k, dtype, false, step_rows);
    assert_int_equal(et_run(&k,
                            &(struct et_ask){.prompt = prompt,
                                             .n_prompt = N_PROMPT,
                                             .max_tokens = N_GENERATE},
                            &r),
                     0);
    stack_close(&k);
    return r;
}

/* Saves n tokens of the prompt, and restores them for the whole prompt. */
static void check_cut(struct stack *k, const struct et_run *want, int n, const char *save,
                      const char *plan)
{
    static int n_checks;
    char salt[80];
    struct et_run r;
    snprintf(salt, sizeof salt, "%d: %d tokens, %s, %s", n_checks++, n, save, plan);
    struct et_ask a = {
        .prompt = prompt, .n_prompt = n, .max_tokens = 1, .save = save, .salt = salt};
    assert_int_equal(et_run(k, &a, &r), 0);
    assert_int_equal(r.committed, n);
    a.n_prompt = N_PROMPT;
    a.max_tokens = N_GENERATE;
    a.plan = plan;
    assert_int_equal(et_run(k, &a, &r), 0);
    et_same(&r, want, salt);
    if (strcmp(plan, "recompute") != 0 && r.n_cached != n)
        fail_msg("%s: %d tokens came back: %s", salt, r.n_cached, r.miss);
    assert_int_equal(r.n_device, 0);
}

static void every_cut(void **state)
{
    (void)state;
    static const char *const plans[] = {"hidden", "kv",   "RHHK", "RRHK",
                                        "RRRK",   "RRRH", "auto", "recompute"};
    static const char *const dtypes[] = {"f32", "bf16"};
    for (int d = 0; d < 2; d++) {
        struct et_run want = alone(dtypes[d], 512);
        struct stack k;
        open_hybrid(&k, dtypes[d], true, 512);
        for (int n = 1; n <= 200; n++) {
            bool near = n % 64 <= 1 || n % 64 == 63;
            check_cut(&k, &want, n, d == 0 ? "both" : "hidden", plans[n % 7]);
            for (int i = 0; near && i < 8; i++)
                check_cut(&k, &want, n, "both", plans[i]);
        }
        stack_close(&k);
    }
}

static void every_step(void **state)
{
    (void)state;
    static const int rows[] = {3, 64, 100};
    struct et_run want = alone("f32", 512);
    for (int i = 0; i < 3; i++) {
        struct et_run r = alone("f32", rows[i]);
        et_same(&r, &want, "steps of other sizes");
    }
}

/* A conversation of several turns with a branch, over a store on a disk that is opened anew before
 * each turn. */
static void turns_and_branches(void **state)
{
    (void)state;
    struct io *io = et_disk(3, 1 << 28);
    int32_t text[240];
    int n = 0;
    for (int turn = 0; turn < 4; turn++) {
        struct et_run got, want;
        struct stack k;
        int grows = 17 + 22 * turn;
        et_prompt(text + n, grows, (uint64_t)turn);
        n += grows;
        const struct et_ask plain = {.prompt = text, .n_prompt = n, .max_tokens = 5};
        struct et_ask saving = plain;
        saving.save = turn % 2 == 0 ? "auto" : "kv";
        open_hybrid(&k, "f32", false, 512);
        assert_int_equal(et_run(&k, &plain, &want), 0);
        stack_close(&k);
        struct stack_opts o = {.user.model = "synth:tiny-hybrid",
                               .user.max_context = 256,
                               .user.store = et_dirs,
                               .user.n_store = 1,
                               .io = io};
        et_open(&k, &o);
        int32_t last = text[n - 1];
        for (int branch = 0; branch < 2; branch++) {
            assert_int_equal(et_run(&k, &saving, &got), 0);
            if (branch == 0)
                et_same(&got, &want, "a turn after a restart");
            else
                assert_true(got.digest != want.digest);
            assert_true(branch == 1 || turn == 0 || got.n_cached >= n - grows - 1);
            text[n - 1] = 3 + (last + 1) % 400; /* the next one ends differently */
        }
        text[n - 1] = last;
        stack_close(&k);
        memcpy(text + n, want.tokens, 5 * sizeof *text);
        n += 5;
    }
    io_close(io);
}

/* Sequences of one batch, and sequences that lose their place, have the results that each has
 * alone. */
static void batches_and_preemption(void **state)
{
    (void)state;
    struct err err = {0};
    for (int stored = 0; stored < 2; stored++) {
        uint64_t alone_digest[4];
        struct stack k;
        struct stack_opts o = {.user.model = "synth:tiny-hybrid",
                               .user.threads = 2,
                               .user.max_context = 192,
                               .user.max_sequences = 3,
                               .user.kv_tokens = 320, /* five blocks */
                               .user.store_in_memory = stored == 1,
                               .step_rows = 50};
        et_open(&k, &o);
        et_prompt(prompt, N_PROMPT, 7);
        for (int together = 0; together < 2; together++) {
            struct seq *s[4];
            for (int i = 0; i < 4; i++) {
                const struct et_ask a = {.prompt = prompt + 10 * i,
                                         .n_prompt = 30 + 20 * i,
                                         .max_tokens = 60,
                                         .temperature = 1,
                                         .seed = (uint64_t)i,
                                         .save = stored == 1 ? "both" : "none",
                                         .salt = together == 0 ? "alone" : "together"};
                s[i] = et_add(&k, &a);
                if (together == 0) {
                    assert_int_equal(engine_run(k.engine, &err), 0);
                    alone_digest[i] = seq_outcome(s[i])->r.logits_digest;
                    engine_remove(k.engine, s[i]);
                }
            }
            if (together == 0)
                continue;
            assert_int_equal(engine_run(k.engine, &err), 0);
            struct engine_stats stats;
            engine_stats(k.engine, &stats);
            assert_true(stats.n_preempted > 0);
            for (int i = 0; i < 4; i++) {
                assert_int_equal(seq_outcome(s[i])->finish, FINISH_LENGTH);
                assert_true(seq_outcome(s[i])->r.logits_digest == alone_digest[i]);
                engine_remove(k.engine, s[i]);
            }
        }
        stack_close(&k);
    }
}

/* What a recurrent state cannot do is refused with what to do instead. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        struct hcache_opts user;
        const char *says;
    } cases[] = {{{.dtype = "f16"}, "--dtype bf16"},
                 {{.speculate = "2"}, "leave the option out"},
                 {{.weights = "q4"}, "use --weights q8"},
                 {{.tensor_parallel = 2}, "choose one rank"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        struct stack k;
        struct stack_opts o = {.user = cases[i].user};
        o.user.model = "synth:tiny-hybrid";
        assert_int_not_equal(et_try_open(&k, &o, &err), 0);
        if (strstr(err.msg, cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].says);
        stack_close(&k);
    }
    struct err err = {0};
    struct stack k;
    open_hybrid(&k, "f32", true, 512);
    assert_int_equal(model_check_truncation(k.model, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "--max-context"));
    stack_close(&k);
}

int main(int argc, char **argv)
{
    et_only(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut),          cmocka_unit_test(every_step),
        cmocka_unit_test(turns_and_branches), cmocka_unit_test(batches_and_preemption),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
