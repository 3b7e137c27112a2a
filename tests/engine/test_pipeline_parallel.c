/* Pipeline parallelism on a CPU: several stages compute what one device computes, bit for bit.
 *
 * So their state is the same. Stages, of one rank or several, restore state that one device has
 * saved, and the other way round: in any mixture of methods, with chunks, a tail, and new tokens
 * prefilled inside the restore. An operation with operands on two stages ends the program
 * (tensor/group_ops.c). So these tests also show that each stage works on its own memory. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "enginetest.h"
#include "tensor/group.h"

/* The prompt is three chunks and a tail. N_LONGER adds the answer and a few more tokens. */
enum { N_PROMPT = 205, N_FULL = 192, N_GENERATE = 8, N_LONGER = N_PROMPT + N_GENERATE + 5 };

struct shape {
    const char *model, *dtype;
    int stages, ranks;
};

/* Opens the shape's stages and ranks, or one device. */
static void open_on(struct stack *k, struct io *disk, const struct shape *c, bool many)
{
    et_open(k, &(struct stack_opts){.user.model = c->model,
                                    .user.dtype = c->dtype,
                                    .user.threads = 2,
                                    .user.tensor_parallel = many ? c->ranks : 1,
                                    .user.pipeline_parallel = many ? c->stages : 1,
                                    .user.max_context = 256,
                                    .io = disk,
                                    .user.store = et_dirs,
                                    .user.n_store = 2,
                                    .user.save_buffer_bytes = 4 << 20,
                                    .user.no_reuse = true});
    assert_int_equal(k->dev->n_stages * k->dev->n_ranks, many ? c->stages * c->ranks : 1);
}

static struct et_run ask(struct stack *k, const int32_t *ids, int n, const char *save,
                         const char *plan, bool restore_first)
{
    return et_must_run(k, &(struct et_ask){.prompt = ids,
                                           .n_prompt = n,
                                           .max_tokens = N_GENERATE,
                                           .save = save,
                                           .plan = plan,
                                           .restore_first = restore_first});
}

/* Restores with every number of recomputed layers. A seed draws H or K for the other layers. New
 * tokens are prefilled after the restore or fused with it. Returns the number of restores. */
static int restore_all_ways(struct stack *k, const int32_t *ids, const struct et_run *ref,
                            const char *what)
{
    int n_layers = k->model->cfg.n_layers, n = 0;
    struct rng rng = {.s = 11};
    char plan[64];
    for (int r = 0; r < n_layers; r++) {
        for (int i = 0; i < 4; i++, n++) {
            for (int l = 0; l < n_layers; l++)
                plan[l] = l < r ? 'R' : i < 2 ? "HK"[i] : "HK"[rng_below(&rng, 2)];
            plan[n_layers] = 0;
            struct et_run run = ask(k, ids, N_PROMPT, "none", plan, i % 2 == 0);
            if (run.n_cached != N_FULL)
                fail_msg("%s, %s: %d tokens were restored: %s", what, plan, run.n_cached,
                         run.miss);
            et_same(&run, ref, plan);
        }
    }
    return n;
}

/* One stack saves a prompt, and another restores it. */
static int hand_over(struct io *disk, const struct shape *c, bool from_many, uint64_t seed)
{
    struct stack k;
    int32_t ids[N_PROMPT];
    open_on(&k, disk, c, from_many);
    et_model_prompt(&k, ids, N_PROMPT, seed);
    struct et_run ref = ask(&k, ids, N_PROMPT, "both", "recompute", false);
    struct sha256 fingerprint = k.fingerprint;
    stack_close(&k);
    open_on(&k, disk, c, !from_many);
    assert_memory_equal(&k.fingerprint, &fingerprint, sizeof fingerprint);
    for (int l = 0; l < k.model->cfg.n_layers; l++)
        assert_int_equal(kv_pool_layer(engine_pool(k.engine), l).stage,
                         l * k.dev->n_stages / k.model->cfg.n_layers);
    int n = restore_all_ways(&k, ids, &ref, c->model);
    stack_close(&k);
    return n;
}

TEST(groups_and_one_device_restore_each_other)
{
    static const struct shape cases[] = {
        {"synth:tiny-mha", "f32", 2, 1},
        {"synth:tiny-mha", "bf16", 4, 1},
        {"synth:tiny-gqa", "bf16", 3, 1},
        {"synth:tiny-mha", "bf16", 2, 2},
        {"synth:tiny-mha", "bf16", 1, 4},
        {"synth:tiny-gqa", "f32", 4, 2},
        {"tests/model/golden/families/qwen2-window", "f32", 1, 2},
        {"tests/model/golden/families/falcon-7b", "bf16", 2, 1},
        {"tests/model/golden/families/falcon-rw", "bf16", 2, 1},
        {"tests/model/golden/families/gemma", "f32", 2, 1},
        {"tests/model/golden/families/llama3", "bf16", 2, 1},
        {"tests/model/golden/families/mistral", "f16", 3, 1},
        {"tests/model/golden/families/opt", "f16", 2, 1},
        {"tests/model/golden/families/phi", "f32", 2, 1},
        {"tests/model/golden/families/qwen2-window", "bf16", 3, 1},
        {"tests/model/golden/families/qwen3", "bf16", 2, 1},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct io *disk = et_disk(i + 1, 0);
        n += hand_over(disk, &cases[i], false, 42);
        n += hand_over(disk, &cases[i], true, 43);
        io_close(disk);
    }
    print_message("%d plans\n", n);
}

/* The conversation continues on another number of devices. Its unfinished chunk was saved as
 * rows. */
TEST(a_tail_is_restored)
{
    static const struct shape shape = {"synth:tiny-mha", "bf16", 3, 2};
    static const char *const plans[] = {"hidden", "kv", "RHHK", "RRRK"};
    for (int i = 0; i < 4; i++) {
        struct io *disk = et_disk(7, 0);
        struct stack k;
        int32_t ids[N_LONGER];
        open_on(&k, disk, &shape, i % 2 != 0);
        et_model_prompt(&k, ids, N_LONGER, 42);
        struct et_run first = ask(&k, ids, N_PROMPT, "both", "recompute", false);
        memcpy(ids + N_PROMPT, first.tokens, N_GENERATE * sizeof ids[0]);
        stack_close(&k);
        open_on(&k, disk, &shape, i % 2 == 0);
        struct et_run run = ask(&k, ids, N_LONGER, "none", plans[i], i < 2);
        struct et_run ref = ask(&k, ids, N_LONGER, "none", "recompute", false);
        assert_true(run.n_cached > N_PROMPT);
        et_same(&run, &ref, plans[i]);
        stack_close(&k);
        io_close(disk);
    }
}

/* A prompt diverges inside a block of another prompt. Every stage copies its part of the block. */
TEST(a_shared_block_is_copied)
{
    struct et_run run[2];
    for (int stages = 1; stages <= 4; stages += 3) {
        struct stack k;
        int32_t ids[N_PROMPT];
        et_open(&k, &(struct stack_opts){.user.pipeline_parallel = stages,
                                         .user.no_reuse = false});
        et_model_prompt(&k, ids, N_PROMPT, 42);
        (void)ask(&k, ids, N_PROMPT, "none", "auto", false);
        for (int i = 100; i < N_PROMPT; i++)
            ids[i] ^= 1;
        run[stages / 4] = ask(&k, ids, N_PROMPT, "none", "auto", false);
        assert_int_equal(run[stages / 4].n_device, 100);
        stack_close(&k);
    }
    et_same(&run[0], &run[1], "after a copied block");
}

/* In the memory table of the start, stages divide the cache and do not repeat it. */
TEST(memory_is_shared_out)
{
    struct stack one, four;
    size_t kv[2], activations, restore;
    char text[512];
    et_open(&one, &(struct stack_opts){.user.pipeline_parallel = 1, .user.no_reuse = true});
    et_open(&four,
            &(struct stack_opts){.user.pipeline_parallel = 4, .user.no_reuse = true});
    engine_bytes(one.engine, &kv[0], &activations, &restore);
    engine_bytes(four.engine, &kv[1], &activations, &restore);
    assert_int_equal(kv[0], kv[1]);
    assert_int_equal(one.model->w.bytes, four.model->w.bytes);
    stack_describe(&four, text, sizeof text);
    assert_non_null(strstr(text, "over 4 stages"));
    stack_close(&one);
    stack_close(&four);
}

TEST(refuses_what_cannot_be_cut)
{
    static const struct {
        int stages, ranks;
        const char *why;
    } cases[] = {
        {5, 1, "the model has 4 layers"},
        {17, 1, "1 to 16"},
        {4, 8, "32 devices"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        struct err err = {0};
        struct stack_opts o = {.user.model = "synth:tiny-mha",
                               .user.threads = 1,
                               .user.tensor_parallel = cases[i].ranks,
                               .user.pipeline_parallel = cases[i].stages,
                               .user.no_reuse = true};
        assert_true(stack_open(&o, &k, &err) != 0);
        if (strstr(err.msg, cases[i].why) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].why);
        stack_close(&k);
    }
}
