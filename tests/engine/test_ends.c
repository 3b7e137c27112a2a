/* test_ends.c - how a sequence ends: by which token, with how many committed tokens, and how its
 * tail is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

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
    struct request q = et_request(k, &a);
    q.ignore_eos = ignore_eos;
    assert_int_equal(engine_add(k->engine, &q, &s, &err), 0);
    assert_int_equal(engine_run(k->engine, &err), 0);
    et_take(k, s, &r);
    *first = r.n_tokens > 0 ? r.tokens[0] : -1;
    return r.finish;
}

/* A model that emits BOS begins another text. That ends the present text, as EOS does. */
static void the_beginning_of_another_text_ends_this_one(void **state)
{
    (void)state;
    struct stack k;
    int32_t prompt[20], first, none;
    et_prompt(prompt, 20, 5);
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    struct model_config *c = &k.model->cfg;
    c->bos_id = -1;
    c->n_eos = 0;
    assert_int_equal(finish_of(&k, prompt, false, &first), FINISH_LENGTH);
    c->bos_id = first;
    assert_int_equal(finish_of(&k, prompt, false, &none), FINISH_EOS);
    assert_int_equal(none, -1);
    assert_int_equal(finish_of(&k, prompt, true, &none), FINISH_LENGTH);
    c->bos_id = -1;
    c->eos_ids[c->n_eos++] = first;
    assert_int_equal(finish_of(&k, prompt, false, &none), FINISH_EOS);
    stack_close(&k);
}

/* Two sequences with one prompt run at once. The second takes over blocks of the first before their
 * chunks are stored. At the end the chunks are stored and count as committed for both sequences,
 * even if the second saves nothing itself. */
static void chunks_that_are_shared_on_the_device_count_as_committed(void **state)
{
    (void)state;
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
        struct request q = et_request(&k, &a);
        assert_int_equal(engine_add(k.engine, &q, &s[i], &err), 0);
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
static void a_tail_without_the_wanted_records_is_computed_again(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_beginning_of_another_text_ends_this_one),
        cmocka_unit_test(chunks_that_are_shared_on_the_device_count_as_committed),
        cmocka_unit_test(a_tail_without_the_wanted_records_is_computed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
