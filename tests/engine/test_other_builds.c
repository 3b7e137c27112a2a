/* test_other_builds.c - saved state is used by every build that computes the same bits, and by no
 * other build. One stack saves on a simulated disk, and another one restores from it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "sim/io_sim.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"

#define FAMILY(name) "tests/model/golden/families/" name

enum { N_PROMPT = 200, N_FULL = 192 };

/* The properties of a process that may change bits. */
struct build {
    const char *device, *isa, *model, *dtype, *weights;
    int max_context;
};

static int32_t prompt[N_PROMPT];

static void open_build(struct stack *k, struct io *io, const struct build *b)
{
    struct stack_opts o = {.io = io,
                           .user = {.store = et_dirs,
                                    .n_store = 1,
                                    .device = b->device,
                                    .model = b->model,
                                    .dtype = b->dtype,
                                    .weights = b->weights,
                                    .max_context = b->max_context}};
    et_device.isa = b->isa;
    et_open(k, &o);
    et_device.isa = NULL;
}

static struct et_run run(struct stack *k, const char *save)
{
    struct et_run r;
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = 4,
                       .save = save,
                       .plan = save == NULL ? "kv" : "recompute"};
    assert_int_equal(et_run(k, &a, &r), 0);
    return r;
}

/* Checks whether `to` uses a state that `from` saved. */
static void hand_over(const struct build *from, const struct build *to, bool is_used)
{
    struct io *io = et_disk(6, 0);
    struct stack k;
    et_small_prompt(prompt, N_PROMPT, 6);
    open_build(&k, io, from);
    struct et_run saved = run(&k, "kv");
    assert_true(saved.committed >= N_FULL);
    stack_close(&k);
    open_build(&k, io, to);
    struct et_run r = run(&k, NULL);
    if (is_used) {
        assert_true(r.n_cached >= N_FULL);
        et_same(&r, &saved, "handed over");
    } else {
        assert_int_equal(r.n_cached, 0);
        if (strstr(r.miss, "another model or build") == NULL)
            fail_msg("missed for another reason: %s", r.miss);
    }
    stack_close(&k);
    io_close(io);
}

/* All pairs of the backends that run without a GPU. */
TEST(backends_use_their_own_state)
{
    /* Short runs on these two backends give the same bits, long runs do not. */
    static const struct build builds[] = {
        {.device = "cpu", .model = FAMILY("qwen2"), .dtype = "bf16"},
        {.device = "ref", .model = FAMILY("qwen2"), .dtype = "bf16"},
        {.device = "cpu", .model = FAMILY("qwen2"), .dtype = "bf16", .weights = "q8"},
        {.device = "ref", .model = FAMILY("qwen2"), .dtype = "bf16", .weights = "q8"},
        {.device = "cpu", .model = FAMILY("falcon-7b"), .dtype = "bf16"},
        {.device = "ref", .model = FAMILY("falcon-7b"), .dtype = "bf16"},
    };
    enum { N = sizeof builds / sizeof builds[0] };
    struct io *io[N];
    struct stack k;
    et_small_prompt(prompt, N_PROMPT, 6);
    for (int i = 0; i < N; i++) {
        io[i] = et_disk(6, 0);
        open_build(&k, io[i], &builds[i]);
        assert_true(run(&k, "kv").committed >= N_FULL);
        stack_close(&k);
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            open_build(&k, io[i], &builds[j]);
            struct et_ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .plan = "kv"};
            struct et_run r;
            assert_int_equal(et_run(&k, &a, &r), 0);
            assert_int_equal(r.n_cached >= N_FULL, i == j);
            assert_int_equal(strstr(r.miss, "another model or build") != NULL, i != j);
            stack_close(&k);
        }
    for (int i = 0; i < N; i++)
        io_close(io[i]);
}

/* State saved with one instruction set is restored with another, bit for bit. */
TEST(instruction_sets_share_state)
{
    static const char *const isas[] = {"avx512", "avx2"};
    static const char *const weights[] = {"checkpoint", "q8", "q4", "bf16r"};
    int n = 0;
    for (int i = 0; i < 8; i++) {
        struct device *dev;
        struct device_opts opts = {.isa = isas[i / 4]};
        bool runs = device_open("cpu", &opts, NULL, &dev, NULL) == 0;
        if (!runs) {
            print_message("skipped: this CPU has no %s\n", isas[i / 4]);
            continue;
        }
        device_close(dev);
        struct build fast = {.isa = isas[i / 4],
                             .model = FAMILY("qwen3"),
                             .dtype = "bf16",
                             .weights = weights[i % 4]};
        struct build slow = fast;
        slow.isa = "portable";
        hand_over(&fast, &slow, true);
        hand_over(&slow, &fast, true);
        n++;
    }
    print_message("%d pairs of instruction sets\n", n);
}

/* Makes a folder with the tiny llama, in whose config.json `from` is replaced by `to`. */
static void edited_model(char dir[TEMPDIR_BYTES], const char *from, const char *to)
{
    char cmd[2 * TEMPDIR_BYTES + 512];
    tempdir_make(dir, "test");
    snprintf(
        cmd, sizeof cmd,
        "cp tests/model/golden/families/llama3/* %s && sed -i 's/%s/%s/' %s/config.json && "
        "! cmp -s tests/model/golden/families/llama3/config.json %s/config.json",
        dir, from, to, dir, dir);
    assert_int_equal(system(cmd), 0);
}

static void remove_model(const char *dir)
{
    char cmd[TEMPDIR_BYTES + 16];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
}

/* Editing EOS ids or the maximum context does not change state. Editing the rotation's parameters
 * does. */
TEST(edits_of_the_config)
{
    static const struct {
        const char *from, *to;
        bool is_used;
    } edits[] = {
        {"\"eos_token_id\": \\[", "\"eos_token_id\": [7,", true},
        {"\"max_position_embeddings\": 512", "\"max_position_embeddings\": 4096", true},
        {"\"rope_theta\": [0-9.]*", "\"rope_theta\": 12345.0", false},
        {"\"factor\": [0-9.]*", "\"factor\": 3.5", false},
    };
    const struct build plain = {.model = FAMILY("llama3")};
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char dir[TEMPDIR_BYTES];
        edited_model(dir, edits[i].from, edits[i].to);
        struct build edited = {.model = dir};
        hand_over(&plain, &edited, edits[i].is_used);
        hand_over(&edited, &plain, edits[i].is_used);
        remove_model(dir);
    }
    const struct build longer = {.model = FAMILY("llama3"), .max_context = 400};
    hand_over(&plain, &longer, true);
    hand_over(&longer, &plain, true);
}
