/* Several devices as one, all on the emulated GPU. Ranks and stages restore the state that one
 * device, or the same number of ranks, would have computed. A fault of one device fails only its
 * request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "enginetest.h"
#include "tensor/group.h"
#include "tests/cuda_emu/cuda_fault.h"

enum { N_PROMPT = 133, N_RESTORED = 128, N_NEW = 3 };

static int32_t prompt[N_PROMPT];

/* Two ranks on one GPU. Their streams run nothing before the host waits, so only events order the
 * ranks' exchanges. Restored state is bit-equal. */
static void ranks_restore_bit_equal(void **state)
{
    (void)state;
    static const char *const plans[] = {"recompute", "hidden", "kv", "RH", "RK"};
    static const char *const models[] = {"tests/model/golden/families/llama",
                                         "tests/model/golden/families/falcon-40b"};
    et_device.cuda_math = "exact";
    et_device.cuda_ranks = "shared";
    for (int i = 0; i < 2; i++) {
        struct stack k;
        struct et_run ref, r;
        et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                         .user.model = models[i],
                                         .user.dtype = "bf16",
                                         .user.tensor_parallel = 2,
                                         .user.max_context = 192,
                                         .user.store_in_memory = true,
                                         .user.save_buffer_bytes = 4 << 20,
                                         .user.no_reuse = true});
        struct et_ask a = {.prompt = prompt,
                           .n_prompt = N_PROMPT,
                           .max_tokens = N_NEW,
                           .save = "both",
                           .plan = "recompute"};
        assert_int_equal(et_run(&k, &a, &ref), 0);
        a.save = "none";
        for (int p = 1; p < 10; p += i == 0 ? 1 : 4) {
            a.plan = plans[p / 2];
            a.restore_first = p % 2 == 0;
            if (et_run(&k, &a, &r) != 0 || r.finish == FINISH_ERROR)
                fail_msg("%s, plan %s: %s", models[i], a.plan, r.err.msg);
            if (p > 1)
                assert_true(r.n_cached >= N_RESTORED);
            et_same(&r, &ref, a.plan);
        }
        a.plan = "recompute";
        /* one rank's operation fails, or an exchange */
        for (int j = 0; j < 4 - 3 * i; j++) {
            cuda_emu_fail(CUDA_EMU_LAUNCH, 11 + 17 * j);
            assert_int_equal(et_run(&k, &a, &r), 0);
            assert_int_equal(r.finish, FINISH_ERROR);
            assert_non_null(strstr(r.err.msg, "device cuda"));
            assert_int_equal(et_run(&k, &a, &r), 0);
            et_same(&r, &ref, "after a rank's fault");
        }
        stack_close(&k);
    }
    et_device.cuda_math = NULL;
    et_device.cuda_ranks = NULL;
}

/* Stages on one GPU, each with its own streams, which run nothing before the host waits. The stages
 * compute the bits of one device. Only the order within each device and the copies between stages
 * order the work. */
static void stages_restore_bit_equal(void **state)
{
    (void)state;
    static const char *const plans[] = {"recompute", "hidden", "kv", "RH", "RK"};
    static const struct {
        /* a model of two layers; the head of the second model is its embedding table */
        const char *model;
        int ranks;
    } cases[] = {{"tests/model/golden/families/llama", 1},
                 {"tests/model/golden/families/qwen3", 1},
                 {"tests/model/golden/families/llama", 2}};
    et_device.cuda_math = "exact";
    et_device.cuda_ranks = "shared";
    for (int i = 0; i < 3; i++) {
        struct io *disk = et_disk((uint64_t)i + 1, 0);
        struct et_run ref = {0}, r;
        struct et_ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW};
        for (int stages = 1; stages <= 2; stages++) {
            struct stack k;
            et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                             .user.model = cases[i].model,
                                             .user.dtype = "bf16",
                                             .user.tensor_parallel = cases[i].ranks,
                                             .user.pipeline_parallel = stages,
                                             .user.max_context = 192,
                                             .io = disk,
                                             .user.store = et_dirs,
                                             .user.n_store = 1,
                                             .user.save_buffer_bytes = 4 << 20,
                                             .user.no_reuse = true});
            a.save = stages == 1 ? "both" : "none";
            for (int p = 0; p < (stages == 1 ? 1 : 10); p += i == 0 ? 1 : 3) {
                a.plan = plans[p / 2];
                a.restore_first = p % 2 == 0;
                if (et_run(&k, &a, &r) != 0 || r.finish == FINISH_ERROR)
                    fail_msg("%s, plan %s: %s", cases[i].model, a.plan, r.err.msg);
                if (stages == 1)
                    ref = r;
                else if (p > 1)
                    assert_true(r.n_cached >= N_RESTORED);
                et_same(&r, &ref, a.plan);
            }
            a.plan = "recompute";
            /* an operation of either stage fails, or a copy between them */
            for (int j = 0; j < 2 * (stages - 1); j++) {
                cuda_emu_fail(CUDA_EMU_LAUNCH, 8 + 22 * j);
                assert_int_equal(et_run(&k, &a, &r), 0);
                assert_int_equal(r.finish, FINISH_ERROR);
                assert_int_equal(et_run(&k, &a, &r), 0);
                et_same(&r, &ref, "after a stage's fault");
            }
            stack_close(&k);
        }
        io_close(disk);
    }
    et_device.cuda_math = NULL;
    et_device.cuda_ranks = NULL;
}

/* A large copy goes up in shares, one per rank, and then every rank has all of it. So does a copy
 * that cannot be divided equally. */
static void copies_go_up_in_shares(void **state)
{
    (void)state;
    enum { BYTES = (400 << 10) + 7 };
    struct device *d;
    struct stream *s;
    struct buf dev, host, back;
    struct err err = {0};
    et_device.cuda_ranks = "shared";
    if (group_open("cuda", &et_device, 3, 1, NULL, &d, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(stream_create(d, STREAM_COPY, &s, NULL), 0);
    assert_int_equal(buf_alloc(d, MEM_DEVICE, BYTES, &dev, NULL), 0);
    assert_int_equal(buf_alloc(d, MEM_PINNED, BYTES, &host, NULL), 0);
    assert_int_equal(buf_alloc(d, MEM_PINNED, BYTES, &back, NULL), 0);
    for (int i = 0; i < BYTES; i++)
        ((uint8_t *)host.ptr)[i] = (uint8_t)(i * 31 + i / 977);
    assert_int_equal(stream_copy(s, dev.ptr, host.ptr, BYTES), 0);
    assert_int_equal(stream_sync(s), 0);
    for (int r = 0; r < 3; r++) {
        struct stream *of = rank_stream(s, 0, r);
        memset(back.ptr, 0, BYTES);
        assert_int_equal(stream_copy(of, back.ptr, rank_address(d, dev.ptr, r), BYTES), 0);
        assert_int_equal(stream_sync(of), 0);
        assert_memory_equal(back.ptr, host.ptr, BYTES);
    }
    buf_free(d, &dev);
    buf_free(d, &host);
    buf_free(d, &back);
    stream_destroy(s);
    device_close(d);
    et_device.cuda_ranks = NULL;
}

/* More ranks than GPUs are refused. */
static void too_few_gpus(void **state)
{
    (void)state;
    struct device *d;
    struct err err = {0};
    assert_int_equal(group_open("cuda", &et_device, 2, 1, NULL, &d, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "GPU 1 is needed"));
    et_device.cuda_ranks = "share";
    assert_int_equal(group_open("cuda", &et_device, 2, 1, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "--cuda-ranks share: must be own or shared"));
    et_device.cuda_ranks = NULL;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_restore_bit_equal),
        cmocka_unit_test(stages_restore_bit_equal),
        cmocka_unit_test(copies_go_up_in_shares),
        cmocka_unit_test(too_few_gpus),
    };
    et_small_prompt(prompt, N_PROMPT, 7);
    et_only(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
