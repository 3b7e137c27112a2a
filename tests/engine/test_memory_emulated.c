/* A device's own memory. The engine's need is computed first and allocated as one piece. While the
 * engine serves, it allocates no more. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "enginetest.h"
#include "sim/cuda_emu/cuda_fault.h"

enum { N_PROMPT = 133, N_NEW = 3 };

static int32_t prompt[N_PROMPT];

static struct stack_opts options(const char *model, const char *dtype)
{
    return (struct stack_opts){.user.device = "cuda",
                               .user.model = model,
                               .user.dtype = dtype,
                               .user.max_context = 192,
                               .user.save_buffer_bytes = 4 << 20,
                               .user.no_reuse = true};
}

/* Computes and saves one sequence, and restores it from hidden states and from K and V. */
static void serve(struct stack *k, bool has_store)
{
    static const char *const plans[] = {"recompute", "hidden", "kv"};
    struct et_run r;
    struct et_ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW};
    for (int i = 0; i < (has_store ? 3 : 1); i++) {
        a.plan = plans[i];
        a.save = has_store && i == 0 ? "both" : "none";
        if (et_run(k, &a, &r) != 0 || r.finish == FINISH_ERROR)
            fail_msg("plan %s: %s", a.plan, r.err.msg);
        assert_true(i == 0 || r.n_cached >= 128);
    }
}

TEST(one_piece_for_the_device)
{
    static const struct {
        const char *model, *dtype;
        int n_seqs;
        int64_t kv_tokens;
        size_t staging_bytes;
    } cases[] = {
        {"tests/model/golden/families/llama", "bf16", 1, 0, 0},
        {"tests/model/golden/families/opt", "f32", 7, 0, 1 << 20},
        {"tests/model/golden/families/qwen3", NULL, 1, 192, 1},
        {"tests/model/golden/families/gemma", "f16", 2, 4096, 1},
        {"synth:tiny-gqa", "bf16", 3, 0, 1},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        struct stack_opts o = options(cases[i / 2].model, cases[i / 2].dtype);
        struct stack k;
        o.user.max_sequences = cases[i / 2].n_seqs;
        o.user.kv_tokens = cases[i / 2].kv_tokens;
        o.user.staging_bytes = cases[i / 2].staging_bytes;
        o.user.store_in_memory = i % 2 == 1;
        et_open(&k, &o);
        if (cuda_emu_pieces() != 1)
            fail_msg("%s: %d pieces of memory", o.user.model, cuda_emu_pieces());
        cuda_emu_fail(CUDA_EMU_MALLOC, 0);
        serve(&k, o.user.store_in_memory);
        assert_int_equal(cuda_emu_mallocs(), 0);
        cuda_emu_fail(CUDA_EMU_MALLOC, -1);
        stack_close(&k);
        assert_int_equal(cuda_emu_pieces(), 0);
    }
}

/* Whichever allocation is refused, opening reports it, and nothing leaks. */
TEST(refused_memory_is_reported)
{
    int n_refused = 0;
    for (int at = 0;; at++) {
        struct stack_opts o = options("tests/model/golden/families/llama", "bf16");
        struct stack k;
        struct err err = {0};
        o.user.store_in_memory = true;
        cuda_emu_fail(CUDA_EMU_MALLOC, at);
        int rc = et_try_open(&k, &o, &err);
        bool failed = cuda_emu_failed() > 0;
        cuda_emu_fail(CUDA_EMU_MALLOC, -1);
        stack_close(&k);
        assert_int_equal(cuda_emu_pieces(), 0);
        if (!failed)
            break;
        n_refused++;
        assert_int_not_equal(rc, 0);
        assert_non_null(strstr(err.msg, "are needed"));
        assert_non_null(strstr(err.msg, "--kv-tokens"));
    }
    /* at least two allocations can be refused: for the stream that loads the weights, and for the
     * memory plan */
    assert_true(n_refused >= 2);
}

/* If memory is too small, a message lists the needs of all parts with advice, before anything is
 * loaded. */
TEST(too_little_memory_names_the_parts)
{
    struct stack_opts o = options("synth:tiny-mha", "bf16");
    struct stack k;
    struct err err = {0};
    o.user.kv_tokens = 4000000;
    setenv("CUDA_EMU_MIB", "200", 1);
    cuda_emu_fail(CUDA_EMU_MALLOC, -1);
    assert_int_not_equal(et_try_open(&k, &o, &err), 0);
    unsetenv("CUDA_EMU_MIB");
    stack_close(&k);
    static const char *const says[] = {"are needed on device cuda", "weights",
                                       "KV cache of 4000000 tokens", "activations",
                                       "fewer --kv-tokens"};
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
        if (strstr(err.msg, says[i]) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, says[i]);
}

int main(void)
{
    et_small_prompt(prompt, N_PROMPT, 3);
    return unit_run(NULL, NULL);
}
