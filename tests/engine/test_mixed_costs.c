/* test_mixed_costs.c - the measured costs of a layer with mixed blocks. The link is slowed down, so
 * that its cost is known; the other costs are only bounded, since they belong to the machine. */

#include "tests/unit.h"
#include "engine/engine_impl.h"
#include "engine/mixed_costs.h"
#include "tests/engine/enginetest.h"

/* The largest sample has this many blocks. */
enum { MOST = 16 };

TEST(a_slowed_link_has_its_cost)
{
    static const int rows[] = {1, 40};
    const double rate =
        50e6; /* a block takes 0.7 ms, which is far above the cost of a copy */
    struct stack k;
    struct err err = {0};
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    const struct seq_shared *sh = &k.engine->shared;
    for (int i = 0; i < 2; i++) {
        struct mixed_costs c;
        assert_int_equal(
            mixed_measure(k.model, sh->work, sh->stream, rate, rows[i], &c, &err), 0);
        assert_true(c.kv_bytes == 64.0 * (double)model_kv_bytes(k.model, 0));
        assert_true(c.act_bytes == 64.0 * (double)model_hidden_bytes(k.model));
        double block_s = c.kv_bytes / rate;
        assert_true(c.link.a_s + c.link.b_s * MOST * c.kv_bytes > 0.8 * MOST * block_s);
        assert_true(c.link.a_s < MOST * block_s && c.link.b_s * c.kv_bytes < 4 * block_s);
        assert_true(c.link_r2 >= 0 && c.link_r2 <= 1);
        assert_true(c.project.a_s >= 0 && c.project.b_s > 0 && c.project.b_s < 10);
        assert_true(c.project_r2 >= 0 && c.project_r2 <= 1);
        assert_true(c.forward_s > 0 && c.forward_s < 60);
        assert_true(c.forward_mini_s >= 0 && c.forward_mini_s <= c.forward_s);
        assert_true(i > 0 || c.forward_mini_s > 0); /* one row takes no less than none */
    }
    stack_close(&k);
}

/* Measuring leaves nothing behind in the engine: a request has the bits that it had before. */
TEST(requests_do_not_notice)
{
    struct stack k;
    struct err err = {0};
    struct mixed_costs c;
    static struct et_run before, after;
    int32_t prompt[150];
    et_prompt(prompt, 150, 4);
    const struct et_ask a = {.prompt = prompt, .n_prompt = 150, .max_tokens = 5};
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    const struct seq_shared *sh = &k.engine->shared;
    assert_int_equal(et_run(&k, &a, &before), 0);
    assert_int_equal(mixed_measure(k.model, sh->work, sh->stream, 0, 8, &c, &err), 0);
    assert_true(c.link.b_s > 0);
    assert_int_equal(et_run(&k, &a, &after), 0);
    et_same(&before, &after, "after the measurement");
    stack_close(&k);
}
