/* test_forced_plans.c - a forced plan uses the records that the store has and computes the rest.
 * It reports the method of each layer. */
#include <string.h>

#include "tests/unit.h"
#include "sim/io_sim.h"
#include "tests/engine/enginetest.h"

enum { N_PROMPT = 330, N_STORED = 320, N_GENERATE = 4 };

static int32_t prompt[N_PROMPT];
static struct et_run ref;

/* Opens a stack of four layers. Its store has the first n[i] tokens, saved under the i-th policy,
 * for each i. */
static void place_open(struct stack *k, struct io *io, int n_parts, const int n[],
                       const char *const save[])
{
    struct et_run r;
    et_open(k, &(struct stack_opts){.io = io,
                                    .user.store = et_dirs,
                                    .user.n_store = io != NULL,
                                    .user.store_in_memory = io == NULL,
                                    .user.no_reuse = true});
    for (int i = 0; i < n_parts; i++) {
        struct et_ask a = {.prompt = prompt, .n_prompt = n[i], .save = save[i]};
        assert_int_equal(et_run(k, &a, &r), 0);
        assert_int_equal(r.committed, n[i]);
    }
}

static struct et_run ask(struct stack *k, const char *plan)
{
    struct et_run r;
    struct et_ask a = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_GENERATE, .plan = plan};
    assert_int_equal(et_run(k, &a, &r), 0);
    return r;
}

static void make_reference(void)
{
    struct stack k;
    et_prompt(prompt, N_PROMPT, 18);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    ref = ask(&k, "recompute");
    stack_close(&k);
}

/* For every set of missing records the answer has the same bits as a computed one. */
TEST(missing_records)
{
    static const struct {
        const char *save, *plan, *layers;
    } cases[] = {
        {"kv", "kv", "KKKK"},     {"hidden", "hidden", "HHHH"}, {"both", "RHKK", "RHKK"},
        {"-KKK", "RKKK", "RKKK"}, {"hidden", "kv", "HHHH"},     {"kv", "hidden", "HKKK"},
        {"-KKK", "kv", "RKKK"},   {"KK-K", "kv", "RRRK"},       {"HHH-", "hidden", "RRRR"},
        {"HHKK", "RHKK", "RHKK"}, {"KKHH", "RHKK", "RKHH"},     {"KH-H", "RHKK", "RRRH"},
    };
    make_reference();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        place_open(&k, NULL, 1, (int[]){N_STORED}, &cases[i].save);
        struct et_run r = ask(&k, cases[i].plan);
        et_same(&r, &ref, cases[i].plan);
        assert_int_equal(r.n_cached, N_STORED);
        assert_string_equal(r.plan.method, cases[i].layers);
        /* The report equals the plan that ran. Hidden states of layer 0 are embedding rows, which
         * need no read. */
        int free = r.plan.method[0] == 'H';
        for (int l = 0; l < 4; l++)
            assert_non_null(strchr("RHK", r.plan.method[l]));
        int *n = r.restore.n_by_method;
        assert_int_equal(n[0], (r.plan.n_r + free) * N_STORED / 64);
        assert_int_equal(n[1], (r.plan.n_h - free) * N_STORED / 64);
        assert_int_equal(n[2], r.plan.n_k * N_STORED / 64);
        stack_close(&k);
    }
}

/* Chunks of one context were saved under different policies. */
TEST(ranges_that_differ)
{
    static const struct {
        const char *save[2], *plan;
        int cached;
    } cases[] = {
        {{"kv", "hidden"}, "kv", 320},
        {{"both", "KK-K"}, "kv", 128},
        {{"both", "-KKK"}, "RKKK", 320},
    };
    make_reference();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        place_open(&k, NULL, 2, (int[]){128, N_STORED}, cases[i].save);
        struct et_run r = ask(&k, cases[i].plan);
        et_same(&r, &ref, cases[i].plan);
        assert_int_equal(r.n_cached, cases[i].cached);
        stack_close(&k);
    }
}

/* Records are lost while they are read. The tokens after them are computed, and the result reports
 * a miss. */
TEST(chunks_lost_on_the_way)
{
    make_reference();
    struct stack k;
    struct io *io = et_disk(3, 0);
    place_open(&k, io, 1, (int[]){N_STORED}, (const char *const[]){"kv"});
    struct io_sim_fault f = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg-", .count = 1, .code = -5};
    assert_int_equal(io_sim_fault_add(io, &f), 0);
    struct et_run r = ask(&k, "kv");
    io_sim_fault_clear(io);
    et_same(&r, &ref, "kv");
    assert_true(r.n_cached < N_STORED);
    stack_close(&k);
    io_close(io);
}

TEST(an_empty_store)
{
    make_reference();
    struct stack k;
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    struct et_run r = ask(&k, "kv");
    et_same(&r, &ref, "kv");
    assert_int_equal(r.plan.n_layers, 0);
    stack_close(&k);
}
