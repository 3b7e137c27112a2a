/* zigzagged.c - see zigzagged.h. */
#include "zigzagged.h"

#include "tests/unit.h"

/* Prompts that end inside, at the end of, and after mini-batches of 32 rows. */
static const int lengths[ZZ_SEQS] = {70, 1, 64, 33, 129};
enum { LONGEST = 129 };

static void prompt_of(int i, int32_t *out)
{
    et_small_prompt(out, lengths[i], 40 + (uint64_t)i);
}

static struct et_ask ask_of(const int32_t *prompt, int i)
{
    return (struct et_ask){.prompt = prompt,
                           .n_prompt = lengths[i],
                           .max_tokens = ZZ_GENERATE,
                           .temperature = i % 2 == 0 ? 0.0f : 0.9f,
                           .seed = (uint64_t)i};
}

void zz_run_all(struct stack *k, const char *save, struct et_run out[ZZ_SEQS])
{
    struct err err = {0};
    struct seq *s[ZZ_SEQS];
    for (int i = 0; i < ZZ_SEQS; i++) {
        int32_t prompt[LONGEST];
        prompt_of(i, prompt);
        struct et_ask a = ask_of(prompt, i);
        a.save = save;
        s[i] = et_add(k, &a);
    }
    if (engine_run(k->engine, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < ZZ_SEQS; i++)
        et_take(k, s[i], &out[i]);
}

static void open_with(struct stack *k, const char *device, int n_stages, const char *model,
                      struct io *io, int step_rows)
{
    et_open(k, &(struct stack_opts){.user.model = model,
                                    .user.device = device,
                                    .user.pipeline_parallel = n_stages,
                                    .user.dtype = "bf16",
                                    .user.max_sequences = ZZ_SEQS,
                                    .user.max_context = 256,
                                    .user.store = et_dirs,
                                    .user.n_store = 2,
                                    .user.no_reuse = true,
                                    .io = io,
                                    .step_rows = step_rows,
                                    .piece_rows = step_rows > 32 ? 32 : 0});
}

void zz_compare(const char *device, int n_stages, const char *model)
{
    static struct et_run want[ZZ_SEQS], got[ZZ_SEQS], back;
    struct io *io = et_disk(7, 0), *other = et_disk(8, 0);
    struct stack k;
    open_with(&k, device, n_stages, model, other, 32);
    zz_run_all(&k, "none", want);
    stack_close(&k);
    io_close(other);
    open_with(&k, device, n_stages, model, io, 160);
    zz_run_all(&k, "both", got);
    for (int i = 0; i < ZZ_SEQS; i++)
        et_same(&got[i], &want[i], "mini-batches");
    stack_close(&k);
    open_with(&k, device, n_stages, model, io, 32);
    for (int i = 0; i < ZZ_SEQS; i++) {
        int32_t prompt[LONGEST];
        prompt_of(i, prompt);
        struct et_ask a = ask_of(prompt, i);
        a.plan = i % 2 == 0 ? "kv" : "hidden";
        assert_int_equal(et_run(&k, &a, &back), 0);
        assert_int_equal(back.n_cached, (lengths[i] - 1) / 64 * 64);
        et_same(&back, &want[i], "restored from what mini-batches saved");
    }
    stack_close(&k);
    io_close(io);
}
