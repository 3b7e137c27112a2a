/* Decodes that are recorded as CUDA graphs and replayed, on the emulated GPU. Their bits equal
 * those of decodes without graphs, also while their state is saved and if recording is refused. */
#include <stdlib.h>

#include "tests/unit.h"
#include "enginetest.h"
#include "sim/cuda_emu/cuda_fault.h"

enum { N_PROMPT = 62, N_DECODED = 6, N_COMPANY = 3 };

static int32_t prompt[N_PROMPT];

/* Three sequences decode side by side and end one after another. All of their state is saved. */
static void decode_together(bool graphs, struct et_run r[N_COMPANY])
{
    struct stack k;
    struct seq *s[N_COMPANY];
    struct err err = {0};
    et_device.cuda_graphs = graphs ? "on" : "off";
    et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                     .user.model = "tests/model/golden/families/llama",
                                     .user.dtype = "bf16",
                                     .user.max_context = 192,
                                     .user.max_sequences = N_COMPANY,
                                     .user.store_in_memory = true,
                                     .user.no_reuse = true});
    et_device.cuda_graphs = NULL;
    for (int i = 0; i < N_COMPANY; i++) {
        struct et_ask a = {.prompt = prompt,
                           /* each sequence begins a new block while it decodes */
                           .n_prompt = N_PROMPT - 2 + i,
                           .max_tokens = N_DECODED + 2 * i,
                           .save = "both"};
        s[i] = et_add(&k, &a);
    }
    if (engine_run(k.engine, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < N_COMPANY; i++)
        et_take(&k, s[i], &r[i]);
    /* the state saved during the decodes equals the computed state */
    struct et_run again;
    struct et_ask a = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_DECODED + 4, .plan = "kv"};
    assert_int_equal(et_run(&k, &a, &again), 0);
    assert_memory_equal(again.tokens, r[2].tokens, (N_DECODED + 4) * sizeof(int32_t));
    stack_close(&k);
}

TEST(recorded_graphs_change_no_bit)
{
    static const char *const maths[] = {"fast", "fixed", "exact"};
    for (int m = 0; m < 3; m++) {
        struct et_run plain[N_COMPANY], graphs[N_COMPANY];
        et_device.cuda_math = maths[m];
        cuda_emu_fail(CUDA_EMU_LAUNCH, -1);
        decode_together(false, plain);
        assert_int_equal(cuda_emu_replayed(), 0);
        decode_together(true, graphs);
        print_message("%s math: %d layers were replayed\n", maths[m], cuda_emu_replayed());
        assert_true(cuda_emu_replayed() > 10);
        for (int i = 0; i < N_COMPANY; i++)
            et_same(&graphs[i], &plain[i], maths[m]);
    }
    et_device.cuda_math = NULL;
}

/* With a driver that records nothing, or only a part, the answers are the same. */
TEST(no_recording_is_no_fault)
{
    static const struct {
        enum cuda_emu_fault what;
        int after;
    } cases[] = {{CUDA_EMU_RECORD, 3}, {CUDA_EMU_UNRECORDABLE, 29}};
    struct et_run plain[N_COMPANY], r[N_COMPANY];
    decode_together(false, plain);
    for (int k = 0; k < 2; k++) {
        cuda_emu_fail(cases[k].what, cases[k].after);
        decode_together(true, r);
        assert_int_equal(cuda_emu_failed(), 1);
        /* some graphs were replayed before recording failed */
        assert_true(cuda_emu_replayed() > 0);
        for (int i = 0; i < N_COMPANY; i++)
            et_same(&r[i], &plain[i], "where recording fails");
    }
    cuda_emu_fail(CUDA_EMU_LAUNCH, -1);
}

int main(void)
{
    et_small_prompt(prompt, N_PROMPT, 7);
    return unit_run(NULL, NULL);
}
