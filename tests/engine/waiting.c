/* waiting.c - see waiting.h. */
#include "tests/engine/waiting.h"

#include "tests/unit.h"

int32_t wt_prompt[WT_PROMPT], wt_others[WT_OTHERS];

struct io *wt_disk(struct et_run *want)
{
    struct stack k;
    struct io *disk = et_disk(1, 0);
    const struct et_ask ask = {
        .prompt = wt_prompt, .n_prompt = WT_PROMPT, .max_tokens = 8, .save = "kv"};
    et_prompt(wt_prompt, WT_PROMPT, 1);
    et_prompt(wt_others, WT_OTHERS, 2);
    et_open(&k, &(struct stack_opts){.io = disk, .user.store = et_dirs, .user.n_store = 2});
    assert_int_equal(et_run(&k, &ask, want), 0);
    assert_int_equal(want->n_cached, 0);
    stack_close(&k);
    return disk;
}

void wt_slow_disk(struct stack *k)
{
    et_platform(&k->platform, 1e-4, 1e-6, 1e-7, 1e7);
}

struct seq *wt_add(struct stack *k, const int32_t *tokens, int n, int max_tokens)
{
    struct seq *s;
    struct et_ask a = {
        .prompt = tokens, .n_prompt = n, .max_tokens = max_tokens, .save = "kv"};
    s = et_add(k, &a);
    return s;
}

void wt_step(struct stack *k)
{
    struct err err = {0};
    int n_active;
    assert_int_equal(engine_step(k->engine, &n_active, &err), 0);
}

struct seq *wt_occupy(struct stack *k)
{
    struct seq *s = wt_add(k, wt_others, WT_OTHERS, 100);
    while (s->n_tokens == WT_OTHERS)
        wt_step(k);
    return s;
}

void wt_run(struct stack *k, struct seq *s, struct et_run *out)
{
    while (s->phase != PHASE_DONE)
        wt_step(k);
    et_take(k, s, out);
    assert_int_equal(out->finish, FINISH_LENGTH);
}
