/* streamed.c - see streamed.h. */
#include "streamed.h"

#include "tests/unit.h"

#include <stdio.h>

#include "model/weights.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"
#include "tests/model/packed_file.h"

/* The first plan generates N_FIRST tokens, so that contexts grow beyond a block. */
enum { MAX_PROMPT = 4 * 64 + 70, N_FIRST = 64, N_GENERATE = 4 };

static const char *const plans[] = {"recompute", "auto", "hidden", "kv", "RHKK"};
enum { N_PLANS = 5 };

static void open_with(struct stack *k, const char *path, const char *device,
                      const char *memory)
{
    et_open(k, &(struct stack_opts){.user.model = path,
                                    .user.device = device,
                                    .user.dtype = "bf16",
                                    .user.threads = 2,
                                    .user.weights_memory = memory,
                                    .user.max_context = 512,
                                    .user.store_in_memory = true,
                                    .user.no_reuse = true});
}

static void run_all(struct stack *k, const int32_t *prompt, int n_stored, int n_new,
                    int n_plans, struct et_run r[N_PLANS])
{
    struct et_ask save = {.prompt = prompt,
                          .n_prompt = n_stored,
                          .max_tokens = 1,
                          .save = "both",
                          .plan = "recompute"};
    assert_int_equal(et_run(k, &save, &r[0]), 0);
    assert_int_equal(r[0].committed, n_stored);
    for (int i = 0; i < n_plans; i++) {
        struct et_ask a = {.prompt = prompt,
                           .n_prompt = n_stored + n_new,
                           .max_tokens = i == 0 ? N_FIRST : N_GENERATE,
                           .plan = plans[i]};
        assert_int_equal(et_run(k, &a, &r[i]), 0);
    }
}

void streamed_plans_equal(const char *device, const char *model, const char *weights,
                          int n_stored, int n_new, int n_plans)
{
    static const char *const budgets[] = {"50%", "0%"};
    static struct et_run want[N_PLANS], got[N_PLANS];
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    int32_t prompt[MAX_PROMPT];
    struct stack k;
    struct sha256 fingerprint;
    assert_in_range(n_stored + n_new, 1, MAX_PROMPT);
    et_small_prompt(prompt, MAX_PROMPT, 5);
    tempdir_make_on_disk(dir, "streamed");
    packed_file_make(dir, model, device, 1, weights, path);
    open_with(&k, path, device, NULL);
    fingerprint = k.fingerprint;
    run_all(&k, prompt, n_stored, n_new, n_plans, want);
    stack_close(&k);
    for (int b = 0; b < 2; b++) {
        struct weights_stream_stats s;
        open_with(&k, path, device, budgets[b]);
        int n_layers = k.model->cfg.n_layers;
        weights_stats(&k.model->w, &s);
        assert_int_equal(s.n_streamed, b == 0 ? n_layers / 2 : n_layers);
        assert_memory_equal(&k.fingerprint, &fingerprint, sizeof fingerprint);
        run_all(&k, prompt, n_stored, n_new, n_plans, got);
        for (int i = 0; i < n_plans; i++)
            et_same(&got[i], &want[i], plans[i]);
        assert_int_equal(got[0].n_tokens, N_FIRST);
        weights_stats(&k.model->w, &s);
        /* The ring has room for two layers; with more layers, each pass reads them again. */
        assert_true(n_layers > 2);
        assert_true(s.read_bytes >= (uint64_t)s.n_streamed * s.layer_bytes *
                                        (s.n_streamed > 2 ? N_FIRST : 1));
        assert_int_equal(s.n_failed, 0);
        stack_close(&k);
    }
    tempdir_remove(dir);
}
