/* Ranks on several emulated GPUs that exchange through a fake NCCL (tests/cuda_emu/nccl): the calls
 * that NCCL gets, bit-equal restores, and the effect of NCCL's errors on requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <dlfcn.h>

#include "enginetest.h"
#include "tests/cuda_emu/cuda_runtime_api.h"
#include "tests/cuda_emu/nccl/nccl_fake.h"

enum { N_PROMPT = 70, N_NEW = 3 };

static const char model[] = "tests/model/golden/families/llama";
static int32_t prompt[N_PROMPT];
static struct nccl_fake *fake;

static int sync_stream(void *stream)
{
    return (int)cudaStreamSynchronize(stream);
}

static int copy(void *to, const void *from, size_t n, int kind, void *stream)
{
    return (int)cudaMemcpyAsync(to, from, n, (enum cudaMemcpyKind)kind, stream);
}

/* Makes NCCL available from now on. The fake library lies beside this program, whose name ends in
 * .../tests/engine/NAME. */
static void load_fake(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    assert_true(n > 0);
    path[n] = 0;
    char *end = strstr(path, "/tests/engine/");
    assert_non_null(end);
    snprintf(end, sizeof path - (size_t)(end - path), "/tests/cuda_emu/libnccl.so.2");
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL)
        fail_msg("%s", dlerror());
    nccl_fake_get get = (nccl_fake_get)dlsym(library, NCCL_FAKE_SYMBOL);
    assert_non_null(get);
    fake = get();
    fake->sync = sync_stream;
    fake->copy = copy;
}

static struct stack_opts ranks(int n_ranks, int n_stages)
{
    return (struct stack_opts){.user.device = "cuda",
                               .user.model = model,
                               .user.dtype = "bf16",
                               .user.tensor_parallel = n_ranks,
                               .user.pipeline_parallel = n_stages,
                               .user.max_context = 192,
                               .user.store_in_memory = true,
                               .user.save_buffer_bytes = 4 << 20,
                               .user.no_reuse = true};
}

/* Logits equal those of ranks on one GPU. Restores have the same bits. */
static void restores_through_nccl(void **state)
{
    (void)state;
    static const char *const plans[] = {"hidden", "kv", "RH", "RK"};
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = N_NEW,
                       .save = "both",
                       .plan = "recompute"};
    for (int n_stages = 1; n_stages <= 2; n_stages++) {
        struct stack k;
        struct et_run ref, r;
        struct stack_opts o = ranks(2, n_stages);
        et_device.cuda_ranks = "shared";
        et_open(&k, &o);
        assert_int_equal(et_run(&k, &a, &ref), 0);
        stack_close(&k);
        et_device.cuda_ranks = NULL;
        *fake = (struct nccl_fake){.sync = sync_stream,
                                   .copy = copy,
                                   .fail_init = -1,
                                   .fail_gather = -1,
                                   .fail_group = -1,
                                   .fail_async = -1};
        et_open(&k, &o);
        assert_int_equal(fake->n_init, n_stages); /* one communicator per stage */
        assert_int_equal(fake->device[1], 2 * n_stages - 1);
        a.save = "both";
        a.plan = "recompute";
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref, "NCCL");
        int n_layers = k.model->cfg.n_layers, n_before = fake->n_gather;
        a.save = "none";
        assert_int_equal(et_run(&k, &a, &r), 0);
        /* Each row of a decode is gathered four times per layer, and each row of logits once. Rows
         * of the prompt are copied. */
        assert_int_equal(fake->n_gather - n_before, 4 * n_layers * (N_NEW - 1) + N_NEW);
        for (int p = n_stages - 1; p < 4; p += n_stages) {
            a.plan = plans[p];
            if (et_run(&k, &a, &r) != 0 || r.finish == FINISH_ERROR)
                fail_msg("plan %s: %s", a.plan, r.err.msg);
            assert_true(r.n_cached >= 64);
            et_same(&r, &ref, a.plan);
        }
        stack_close(&k);
        assert_int_equal(fake->n_destroyed, 2 * n_stages);
        assert_int_equal(fake->n_aborted, 0);
    }
}

static void an_error_fails_requests_and_not_the_process(void **state)
{
    (void)state;
    int *const faults[] = {&fake->fail_gather, &fake->fail_group, &fake->fail_async};
    for (int i = 0; i < 3; i++) {
        struct stack k;
        struct et_run r;
        struct stack_opts o = ranks(2, 1);
        struct et_ask a = {.prompt = prompt,
                           .n_prompt = N_PROMPT,
                           .max_tokens = N_NEW,
                           .plan = "recompute"};
        fake->n_aborted = fake->n_destroyed = 0;
        et_open(&k, &o);
        *faults[i] = 5;
        /* a later request fails, too: the communicators do not recover */
        for (int again = 0; again < 2; again++) {
            assert_int_equal(et_run(&k, &a, &r), 0);
            assert_int_equal(r.finish, FINISH_ERROR);
            if (strstr(r.err.msg, "NCCL: internal error") == NULL)
                fail_msg("it says: %s", r.err.msg);
        }
        assert_int_equal(*faults[i], -1);
        /* both communicators are aborted at once, so that no kernel waits forever */
        assert_int_equal(fake->n_aborted, 2);
        stack_close(&k);
        assert_int_equal(fake->n_aborted, 2);
        assert_int_equal(fake->n_destroyed, 0);
    }
}

static void what_cannot_be_connected_is_refused(void **state)
{
    (void)state;
    struct stack k;
    struct err err = {0};
    struct stack_opts o = ranks(2, 1);
    fake->fail_init = 0;
    assert_int_equal(et_try_open(&k, &o, &err), -EIO);
    assert_non_null(strstr(err.msg, "NCCL cannot connect 2 GPUs: internal error"));
    stack_close(&k);
    o = ranks(2, 4);
    assert_int_equal(et_try_open(&k, &o, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "GPU 4 is needed, but there are only 4"));
    stack_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restores_through_nccl),
        cmocka_unit_test(an_error_fails_requests_and_not_the_process),
        cmocka_unit_test(what_cannot_be_connected_is_refused),
    };
    setenv("CUDA_EMU_DEVICES", "4", 1);
    et_device.cuda_math = "exact";
    et_small_prompt(prompt, N_PROMPT, 5);
    load_fake();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
