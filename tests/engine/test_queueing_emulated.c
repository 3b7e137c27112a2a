/* The cost of a restore to a device: the numbers of kernel launches and of waits, as the emulated
 * GPU counts them. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit.h"
#include "enginetest.h"
#include "sim/cuda_emu/cuda_fault.h"

enum { GROUP = RESTORE_GROUP_CHUNKS, N_PROMPT = GROUP * 64 + 5, N_NEW = 2 };

static int32_t prompt[N_PROMPT];

struct cost {
    int n_launches, n_waits;
};

/* Counts the cost for the first n_prompt tokens. Their full chunks are restored by the plan, and
 * the other tokens are computed. */
static struct cost restore(struct stack *k, int n_prompt, const char *plan,
                           const struct et_run *want)
{
    struct et_run r;
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = n_prompt,
                       .max_tokens = N_NEW,
                       .plan = plan,
                       .restore_first = true};
    cuda_emu_fail(CUDA_EMU_LAUNCH, -1);
    if (et_run(k, &a, &r) != 0 || r.finish == FINISH_ERROR)
        fail_msg("plan %s: %s", plan, r.err.msg);
    assert_int_equal(r.n_cached, n_prompt / 64 * 64);
    if (want != NULL)
        et_same(&r, want, plan);
    return (struct cost){cuda_emu_launches(), cuda_emu_waits()};
}

TEST(work_is_queued_by_the_group)
{
    struct stack k;
    struct et_run all;
    char kv[32], recomputed[32];
    et_device.cuda_math = "exact";
    et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                     .user.model = "synth:tiny-mha",
                                     .user.dtype = "bf16",
                                     .user.max_context = N_PROMPT + 64,
                                     .user.store_in_memory = true,
                                     .user.save_buffer_bytes = 16 << 20,
                                     .user.no_reuse = true});
    int layers = k.model->cfg.n_layers;
    et_letters(kv, 0, 0, layers);
    et_letters(recomputed, layers, 0, 0);
    struct et_ask a = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .save = "both"};
    assert_int_equal(et_run(&k, &a, &all), 0);
    /* Loading K and V of a layer takes as many launches for eight chunks as for two. */
    struct cost two = restore(&k, 2 * 64 + 5, kv, NULL);
    struct cost eight = restore(&k, N_PROMPT, kv, &all);
    assert_int_equal(two.n_launches, eight.n_launches);
    /* A recomputed piece of 512 rows takes one wait for all its layers. Each new token takes
     * another. */
    struct cost re = restore(&k, N_PROMPT, recomputed, &all);
    assert_int_equal(re.n_waits, 1 + N_NEW);
    /* A pass that only computes copies nothing to the device: such copies would wait behind those
     * of another restore. */
    assert_true(cuda_emu_brought_up() == 0);
    print_message("%d layers: K and V %d launches, %d waits; recomputed %d, %d\n", layers,
                  eight.n_launches, eight.n_waits, re.n_launches, re.n_waits);
    stack_close(&k);
    et_device.cuda_math = NULL;
}

int main(void)
{
    et_prompt(prompt, N_PROMPT, 8);
    return unit_run(NULL, NULL);
}
