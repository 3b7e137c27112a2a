/* The engine on a device with memory of its own: an emulated GPU, whose memory faults when the host
 * touches it and whose streams run nothing before the host waits (sim/cuda_emu).
 *
 * In the kernels' exact and fixed modes, restored state is bit-equal to the state of a sequence
 * that was never evicted on the same device.  In fast mode, where a row's bits may depend on its
 * batch, the greedy tokens are equal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "enginetest.h"
#include "sim/cuda_emu/cuda_fault.h"

enum { N_PROMPT = 133, N_RESTORED = 128, N_NEW = 3 };

static int32_t prompt[N_PROMPT];

static void open_cuda(struct stack *k, const char *model, const char *dtype)
{
    et_open(k, &(struct stack_opts){.user.device = "cuda",
                                    .user.model = model,
                                    .user.dtype = dtype,
                                    .user.max_context = 192,
                                    .user.store_in_memory = true,
                                    .user.save_buffer_bytes = 4 << 20,
                                    .user.no_reuse = true});
}

/* Reads K and V of every layer of the prompt; [n_layers][N_PROMPT][2 * kv_dim]. */
static uint8_t *read_kv(struct stack *k, const struct seq *s, size_t *bytes)
{
    const struct model *m = k->model;
    int32_t pos[N_PROMPT], seq_row[2] = {0, N_PROMPT};
    const int32_t *tables[1] = {seq_table(s)->blocks};
    for (int i = 0; i < N_PROMPT; i++)
        pos[i] = i;
    struct ragged r = {
        .n_rows = N_PROMPT, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    size_t layer = N_PROMPT * model_kv_bytes(m, 0);
    struct stream *st;
    struct buf dev;
    *bytes = layer * (size_t)m->cfg.n_layers;
    uint8_t *out = xmalloc(*bytes);
    assert_int_equal(stream_create(k->dev, STREAM_COMPUTE, &st, NULL), 0);
    assert_int_equal(buf_alloc(k->dev, MEM_DEVICE, layer, &dev, NULL), 0);
    for (int l = 0; l < m->cfg.n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(engine_pool(k->engine), l);
        struct mat rows = mat_of(dev.ptr, m->dtype, N_PROMPT, 2 * model_kv_dim(m, 0));
        assert_int_equal(k->dev->ops->kv_read(st, rows, &kv, &r), 0);
        assert_int_equal(stream_copy(st, out + (size_t)l * layer, dev.ptr, layer), 0);
        assert_int_equal(stream_sync(st), 0);
    }
    buf_free(k->dev, &dev);
    stream_destroy(st);
    return out;
}

struct run {
    struct et_run r;
    uint8_t *kv;
    size_t kv_bytes;
};

static struct run run(struct stack *k, const char *save, const char *plan, bool fused)
{
    struct run out = {0};
    struct err err = {0};
    struct seq *s;
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = N_NEW,
                       .save = save,
                       .plan = plan,
                       .restore_first = !fused};
    s = et_add(k, &a);
    if (engine_run(k->engine, &err) != 0)
        fail_msg("save %s, plan %s: %s", save, plan, err.msg);
    if (seq_outcome(s)->finish == FINISH_ERROR)
        fail_msg("save %s, plan %s: %s", save, plan, seq_outcome(s)->err.msg);
    out.kv = read_kv(k, s, &out.kv_bytes);
    et_take(k, s, &out.r);
    return out;
}

static void check_plan(struct stack *k, const struct run *ref, const char *plan, bool fused,
                       const char *what)
{
    struct run r = run(k, "none", plan, fused);
    if (r.r.n_cached != N_RESTORED)
        fail_msg("%s, plan %s: %d tokens were restored: %s", what, plan, r.r.n_cached,
                 r.r.miss);
    et_same(&r.r, &ref->r, plan);
    if (memcmp(r.kv, ref->kv, ref->kv_bytes) != 0)
        fail_msg("%s, plan %s, fused %d: K or V differ", what, plan, fused);
    free(r.kv);
}

/* Checks every `stride`th (r, h, k) of the model's layers. The new tokens are prefilled after the
 * restore or inside it. Returns the number of plans. */
static int check_plans(const char *model, const char *dtype, int stride)
{
    struct stack k;
    int n = 0;
    open_cuda(&k, model, dtype);
    int layers = k.model->cfg.n_layers;
    struct run ref = run(&k, "both", "recompute", false);
    assert_true(ref.r.committed >= N_RESTORED);
    for (int r = 0; r <= layers; r++) {
        for (int h = 0; r + h <= layers; h++, n++) {
            char plan[32];
            if (n % stride != 0)
                continue;
            et_letters(plan, r, h, layers - r - h);
            check_plan(&k, &ref, plan, n / stride % 2 == 0, model);
        }
    }
    free(ref.kv);
    stack_close(&k);
    return (n + stride - 1) / stride;
}

TEST(restored_state_is_bit_equal)
{
    static const struct {
        const char *model, *dtype, *math;
        int stride;
    } cases[] = {
        {"tests/model/golden/families/llama", "bf16", "exact", 1},
        {"tests/model/golden/families/opt", "f32", "exact", 1},
        {"tests/model/golden/families/qwen3", "bf16", "exact", 1},
        {"tests/model/golden/families/phi", "f16", "exact", 1},
        {"tests/model/golden/families/qwen3", "bf16", "fixed", 1},
        {"tests/model/golden/families/phi", "f16", "fixed", 1},
        /* this model is slow to emulate; its head size has a kernel for fixed attention */
        {"models/demo", "bf16", "fixed", 11},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        et_device.cuda_math = cases[i].math;
        n += check_plans(cases[i].model, cases[i].dtype, cases[i].stride);
    }
    et_device.cuda_math = NULL;
    print_message("%d plans restored bit for bit\n", n);
}

/* Another --cuda-math gives other bits. So state that was saved with one mode is a miss with
 * another. */
TEST(the_mathematics_are_in_the_fingerprint)
{
    static const char *const maths[] = {"fast", "fixed", "exact"};
    struct sha256 f[3];
    for (int i = 0; i < 3; i++) {
        struct stack k;
        et_device.cuda_math = maths[i];
        open_cuda(&k, "models/demo", "bf16");
        f[i] = k.fingerprint;
        stack_close(&k);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&f[i], &f[j], sizeof f[i]);
    }
    et_device.cuda_math = NULL;
}

/* Runs three sequences of n tokens at once. They compute beside each other and share equal
 * beginnings through the KV cache. With `turns` the third sequence has no room beside the others
 * and takes turns with them. */
static void check_company(const char *model, const char *math, int n, bool turns)
{
    struct err err = {0};
    struct et_run alone[3], r;
    int32_t ids[3][N_PROMPT];
    struct stack k;
    et_device.cuda_math = math;
    for (int i = 0; i < 3; i++) {
        memcpy(ids[i], prompt, sizeof prompt);
        ids[i][70 + i * (n - 73) / 2] ^= 1;
    }
    for (int tight = 0; tight <= turns; tight++) {
        struct seq *s[3];
        et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                         .user.model = model,
                                         .user.dtype = "bf16",
                                         .user.max_context = 192,
                                         .user.max_sequences = 3,
                                         .user.kv_tokens = tight ? 4 * 64 : 12 * 64,
                                         .step_rows = 96,
                                         .user.no_reuse = false,
                                         .user.store_in_memory = true});
        for (int i = 0; i < 3; i++) {
            struct et_ask a = {
                .prompt = ids[i], .n_prompt = n, .max_tokens = N_NEW, .save = "both"};
            s[i] = et_add(&k, &a);
        }
        if (engine_run(k.engine, &err) != 0)
            fail_msg("%s", err.msg);
        for (int i = 0; i < 3; i++) {
            et_take(&k, s[i], &r);
            if (tight)
                et_same(&r, &alone[i], "in little memory");
            alone[i] = r;
        }
        stack_close(&k);
    }
    for (int i = 0; i < 3; i++) {
        et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                         .user.model = model,
                                         .user.dtype = "bf16",
                                         .user.max_context = 192,
                                         .user.no_reuse = true});
        struct et_ask a = {.prompt = ids[i], .n_prompt = n, .max_tokens = N_NEW};
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&alone[i], &r, "in a batch");
        stack_close(&k);
    }
    et_device.cuda_math = NULL;
}

TEST(batches_reuse_and_preemption)
{
    check_company("tests/model/golden/families/llama", "exact", N_PROMPT, true);
    check_company("models/demo", "fixed", 79, false);
}

/* In fast mode, with cuBLAS products and tensor-core attention, the greedy tokens stay the same. */
TEST(fast_math_keeps_greedy_tokens)
{
    static const char *const plans[] = {"hidden", "kv", "RH"};
    struct stack k;
    struct run ref, r;
    open_cuda(&k, "tests/model/golden/families/llama", "bf16");
    ref = run(&k, "both", "recompute", false);
    for (int i = 0; i < 3; i++) {
        r = run(&k, "none", plans[i], true);
        assert_int_equal(r.r.n_cached, N_RESTORED);
        assert_memory_equal(r.r.tokens, ref.r.tokens, N_NEW * sizeof(int32_t));
        free(r.kv);
    }
    free(ref.kv);
    stack_close(&k);
}

/* --- faults ----------------------------------------------------------------------------------- */

/* Each fault is injected at moments throughout a request. The request fails with the device's
 * message. Only a failed copy of saved state lets it go on, without further saving. The next
 * request is served normally. */
TEST(a_fault_fails_the_request)
{
    static const struct {
        enum cuda_emu_fault what;
        const char *name, *plan;
        int first, step;
    } cases[] = {
        {CUDA_EMU_LAUNCH, "a launch, computing", "recompute", 0, 37},
        {CUDA_EMU_LAUNCH, "a launch, restoring KV", "kv", 0, 5},
        {CUDA_EMU_LAUNCH, "a launch, restoring hidden", "hidden", 0, 5},
        {CUDA_EMU_UP, "a copy up, restoring KV", "kv", 0, 2},
        {CUDA_EMU_UP, "a copy up, restoring hidden", "hidden", 0, 2},
        {CUDA_EMU_DOWN, "a copy down, saving", "recompute", 0, 3},
    };
    struct stack k;
    struct et_run r, good;
    struct et_ask first = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .save = "both"};
    et_device.cuda_math = "exact";
    open_cuda(&k, "tests/model/golden/families/llama", "bf16");
    assert_int_equal(et_run(&k, &first, &good), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n_failed = 0, n_shed = 0;
        for (int j = 0; j < 3; j++) {
            struct et_ask a = first;
            a.plan = cases[i].plan;
            /* another salt, so that this request saves its state, too */
            a.salt = cases[i].what == CUDA_EMU_DOWN ? "other" : NULL;
            cuda_emu_fail(cases[i].what, cases[i].first + j * cases[i].step);
            if (et_run(&k, &a, &r) != 0)
                fail_msg("%s: the engine failed: %s", cases[i].name, r.err.msg);
            if (cuda_emu_failed() == 0)
                break; /* the request ended before the fault could happen */
            if (r.finish == FINISH_ERROR) {
                n_failed++;
                assert_non_null(strstr(r.err.msg, "device cuda"));
            } else {
                n_shed += r.save_end == SAVE_END_DEVICE;
                et_same(&r, &good, cases[i].name);
            }
            /* reading the state that the first run saved is faster than computing it */
            a.plan = "kv";
            a.salt = NULL;
            assert_int_equal(et_run(&k, &a, &r), 0);
            et_same(&r, &good, "after a fault");
        }
        print_message("%s: %d requests failed, %d were saved no further\n", cases[i].name,
                      n_failed, n_shed);
        assert_true(n_failed + n_shed > 0);
    }
    stack_close(&k);
    et_device.cuda_math = NULL;
}

/* A value in the first layer's input exceeds f16. It is detected after the last layer, where the
 * check is made. The sequence beside it is served, and state saved from that sequence can be
 * restored. */
TEST(an_overflow_is_found_at_the_end)
{
    enum { BAD = 77 };
    struct stack k;
    struct et_run good, r;
    struct seq *s[2];
    struct err err = {0};
    int32_t bad[N_PROMPT];
    et_device.cuda_math = "exact";
    et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                     .user.model = "tests/model/golden/families/llama",
                                     .user.dtype = "f16",
                                     .user.max_context = 192,
                                     .user.max_sequences = 2,
                                     .user.store_in_memory = true,
                                     .user.no_reuse = true});
    uint8_t infinite[4 * 64];
    struct mat table = k.model->w.embed;
    struct stream *st;
    assert_true(table.cols <= 64);
    for (int i = 0; i < 64; i++) {
        const uint16_t half = table.dtype == DTYPE_F16 ? 0x7c00 : 0x7f80;
        memcpy(infinite + 2 * i, &half, sizeof half);
        if (table.dtype == DTYPE_F32)
            memcpy(infinite + 4 * i, &(float){INFINITY}, sizeof(float));
    }
    assert_int_equal(stream_create(k.dev, STREAM_COMPUTE, &st, NULL), 0);
    assert_int_equal(stream_copy(st, mat_rows(table, BAD, 1).data, infinite,
                                 (size_t)table.cols * dtype_bytes(table.dtype)),
                     0);
    assert_int_equal(stream_sync(st), 0);
    stream_destroy(st);
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] += prompt[i] == BAD;
    memcpy(bad, prompt, sizeof prompt);
    bad[90] = BAD;
    struct et_ask a[2] = {
        {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .save = "both"},
        {.prompt = bad, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .save = "both"}};
    for (int i = 0; i < 2; i++) {
        s[i] = et_add(&k, &a[i]);
    }
    if (engine_run(k.engine, &err) != 0)
        fail_msg("%s", err.msg);
    et_take(&k, s[0], &good);
    et_take(&k, s[1], &r);
    assert_int_equal(r.finish, FINISH_ERROR);
    assert_non_null(strstr(r.err.msg, "bf16"));
    a[0].plan = "hidden";
    a[0].save = "none";
    assert_int_equal(et_run(&k, &a[0], &r), 0);
    assert_int_equal(r.n_cached, N_RESTORED);
    et_same(&r, &good, "restored");
    stack_close(&k);
    et_device.cuda_math = NULL;
}

/* A fault inside a kernel loses the context of a real GPU. Requests then fail, but the process
 * survives. */
TEST(a_lost_device_is_told)
{
    struct stack k;
    struct et_run r;
    struct et_ask a = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .save = "both"};
    open_cuda(&k, "tests/model/golden/families/llama", "bf16");
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            cuda_emu_fail(CUDA_EMU_LOST, 20);
        assert_int_not_equal(et_run(&k, &a, &r), 0);
        assert_non_null(strstr(r.err.msg, "device cuda"));
        assert_non_null(strstr(r.err.msg, "lost"));
    }
    stack_close(&k);
    cuda_emu_fail(CUDA_EMU_LAUNCH, -1);
}

TEST(what_cannot_run_is_refused_with_its_reason)
{
    static const struct {
        struct stack_opts o;
        const char *mib, *says;
    } cases[] = {
        {{.user.model = "synth:bench-220m", .user.dtype = "bf16"},
         "100",
         "are needed on device cuda"},
        {{.user.model = "synth:tiny-mha", .user.dtype = "bf16", .user.kv_tokens = 4000000},
         "200",
         "fewer --kv-tokens"},
        {{.user.model = "synth:tiny-mha", .user.dtype = "bf16", .user.weights = "q4"},
         "200",
         "device cuda has no kernels"},
        {{.user.model = "synth:tiny-mha", .user.dtype = "q8"},
         "200",
         "must be f32, f16 or bf16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        struct err err = {0};
        struct stack_opts o = cases[i].o;
        o.user.device = "cuda";
        setenv("CUDA_EMU_MIB", cases[i].mib, 1);
        assert_int_not_equal(et_try_open(&k, &o, &err), 0);
        unsetenv("CUDA_EMU_MIB");
        if (strstr(err.msg, cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].says);
        stack_close(&k);
    }
}

int main(void)
{
    et_small_prompt(prompt, N_PROMPT, 7);
    return unit_run(NULL, NULL);
}
