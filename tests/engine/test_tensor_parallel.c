/* Tensor parallelism: several ranks compute the bits of one, on a CPU.
 *
 * For 1, 2 and 4 ranks, in one stage or several, logits and state are bit-equal for every format of
 * weights. A restored state is bit-equal to a state that was never evicted: in any mixture of
 * methods, with chunks, a tail, and new tokens prefilled inside the restore.
 * (test_pipeline_parallel.c hands state from one arrangement to another.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "base/rng.h"
#include "enginetest.h"
#include "tensor/group.h"

/* The prompt is three chunks and a tail. */
enum { N_PROMPT = 205, N_FULL = 192, N_GENERATE = 8, N_LONGER = N_PROMPT + N_GENERATE + 5 };

static void open_ranks_as(struct stack *k, const char *model, const char *dtype,
                          const char *weights, int ranks)
{
    et_open(k, &(struct stack_opts){.user.model = model,
                                    .user.dtype = dtype,
                                    .user.weights = weights,
                                    .user.threads = 2,
                                    .user.tensor_parallel = ranks,
                                    .user.max_context = 256,
                                    .user.store_in_memory = true,
                                    .user.save_buffer_bytes = 4 << 20,
                                    .user.no_reuse = true});
    assert_int_equal(k->dev->n_ranks, ranks);
}

static void open_ranks(struct stack *k, const char *model, const char *dtype, int ranks)
{
    open_ranks_as(k, model, dtype, "checkpoint", ranks);
}

static struct et_run ask(struct stack *k, const char *save, const char *plan,
                         bool restore_first)
{
    int32_t prompt[N_PROMPT];
    et_model_prompt(k, prompt, N_PROMPT, 42);
    return et_must_run(k, &(struct et_ask){.prompt = prompt,
                                           .n_prompt = N_PROMPT,
                                           .max_tokens = N_GENERATE,
                                           .save = save,
                                           .plan = plan,
                                           .restore_first = restore_first});
}

/* Restores by every (r,h,k) and a few mixtures, with new tokens prefilled after the restore and
 * fused with it. */
static void check_plans(struct stack *k, const char *what)
{
    int n_layers = k->model->cfg.n_layers;
    struct et_run ref = ask(k, "both", "recompute", false);
    struct rng rng = {.s = 5};
    char plan[64];
    for (int r = 0; r <= n_layers; r++) {
        for (int h = 0; r + h <= n_layers; h++) {
            for (int l = 0; l < n_layers; l++)
                plan[l] = l < r ? 'R' : "HK"[rng_below(&rng, 2)];
            plan[n_layers] = 0;
            if (h % 2 == 0)
                et_letters(plan, r, h, n_layers - r - h);
            for (int fused = 0; fused < 2; fused++) {
                struct et_run run = ask(k, "none", plan, !fused);
                if (r < n_layers && run.n_cached != N_FULL)
                    fail_msg("%s, %s: %d tokens were restored: %s", what, plan,
                             run.n_cached, run.miss);
                et_same(&run, &ref, plan);
            }
        }
    }
}

TEST(restored_state_is_exact)
{
    static const struct {
        const char *model, *dtype;
        int ranks;
    } cases[] = {
        {"synth:tiny-mha", "f32", 2},
        {"synth:tiny-mha", "bf16", 4},
        {"synth:tiny-gqa", "bf16", 2},
        {"tests/model/golden/families/falcon-40b", "bf16", 2},
        {"tests/model/golden/families/opt", "f16", 2},
        {"tests/model/golden/families/phi3", "f32", 2},
        {"tests/model/golden/families/qwen2", "bf16", 2},
        {"tests/model/golden/families/qwen3", "f32", 2},
        {"tests/model/golden/families/qwen2-window", "bf16", 4},
        {"tests/model/golden/families/phi", "f32", 4},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        const struct model_config *c;
        open_ranks(&k, cases[i].model, cases[i].dtype, cases[i].ranks);
        c = &k.model->cfg;
        assert_int_equal(model_rank_kv_heads(k.model, 0) * cases[i].ranks, c->n_kv_heads);
        check_plans(&k, cases[i].model);
        stack_close(&k);
        n++;
    }
    print_message("%d models\n", n);
}

/* The conversation continues. Its unfinished chunk was saved as rows, from which each rank takes
 * its own heads. */
TEST(a_tail_is_restored)
{
    static const char *const plans[] = {"hidden", "kv", "RHKK"};
    for (int i = 0; i < 3; i++) {
        struct stack k;
        int32_t ids[N_LONGER];
        open_ranks(&k, "synth:tiny-mha", "bf16", 4);
        struct et_run first = ask(&k, "both", "recompute", false);
        et_model_prompt(&k, ids, N_LONGER, 42);
        assert_int_equal(first.n_tokens, N_GENERATE);
        memcpy(ids + N_PROMPT, first.tokens, N_GENERATE * sizeof ids[0]);
        struct et_ask a = {.prompt = ids,
                           .n_prompt = N_LONGER,
                           .max_tokens = N_GENERATE,
                           .save = "none",
                           .salt = "who has saved nothing"};
        struct et_run ref = et_must_run(&k, &a);
        a.salt = NULL;
        a.plan = plans[i];
        struct et_run run = et_must_run(&k, &a);
        assert_int_equal(ref.n_cached, 0);
        assert_true(run.n_cached > N_PROMPT);
        et_same(&run, &ref, plans[i]);
        stack_close(&k);
    }
}

/* Every arrangement computes the tokens, logits and fingerprint of one device. */
TEST(every_arrangement_has_the_bits_of_one)
{
    static const struct {
        const char *model, *dtype, *weights;
        int ranks, stages;
    } cases[] = {
        {"synth:tiny-mha", "f32", "f32", 2, 1},
        {"synth:tiny-mha", "f32", "bf16", 4, 2},
        {"synth:tiny-mha", "bf16", "bf16", 2, 4},
        {"synth:tiny-mha", "f16", "q8", 2, 2},
        {"synth:tiny-mha", "bf16", "q8", 4, 1},
        {"synth:tiny-mha", "bf16", "q4", 2, 1},
        {"synth:tiny-mha", "f32", "q4", 4, 3},
        {"synth:tiny-mha", "bf16", "bf16r", 4, 1},
        {"synth:tiny-gqa", "bf16", "q8", 2, 3},
        {"synth:tiny-gqa", "bf16", "q4", 2, 1},
        {"tests/model/golden/families/falcon-40b", "f32", NULL, 2, 1},
        {"tests/model/golden/families/falcon-11b", "bf16", NULL, 3, 1},
        {"tests/model/golden/families/falcon-rw", "f32", NULL, 2, 2},
        {"tests/model/golden/families/llama", "f32", "q8", 2, 1},
        {"tests/model/golden/families/mistral", "f16", NULL, 2, 1},
        {"tests/model/golden/families/opt", "f32", NULL, 4, 1},
        {"tests/model/golden/families/phi", "f32", NULL, 2, 1},
        {"tests/model/golden/families/phi3", "bf16", NULL, 2, 2},
        {"tests/model/golden/families/qwen2", "f32", NULL, 2, 1},
        {"tests/model/golden/families/qwen2-window", "bf16", NULL, 4, 1},
        {"tests/model/golden/families/qwen3", "f32", NULL, 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack_opts o = {.user.model = cases[i].model,
                               .user.dtype = cases[i].dtype,
                               .user.weights = cases[i].weights,
                               .user.threads = 2,
                               .user.max_context = 256,
                               .user.store_in_memory = true,
                               .user.save_buffer_bytes = 4 << 20,
                               .user.no_reuse = true};
        struct et_run run[2];
        struct sha256 fingerprint[2];
        for (int many = 0; many < 2; many++) {
            struct stack k;
            o.user.tensor_parallel = many ? cases[i].ranks : 1;
            o.user.pipeline_parallel = many ? cases[i].stages : 1;
            et_open(&k, &o);
            assert_int_equal(k.dev->n_ranks * k.dev->n_stages,
                             many ? cases[i].ranks * cases[i].stages : 1);
            run[many] = ask(&k, "none", "recompute", false);
            fingerprint[many] = k.fingerprint;
            stack_close(&k);
        }
        et_same(&run[1], &run[0], cases[i].model);
        assert_memory_equal(&fingerprint[1], &fingerprint[0], sizeof fingerprint[0]);
    }
}

/* A rank holds its share of K and V and of the matrices that are divided. */
TEST(memory_is_shared_out)
{
    struct stack one, four;
    size_t kv[2], activations, restore;
    open_ranks(&one, "synth:tiny-mha", "f32", 1);
    open_ranks(&four, "synth:tiny-mha", "f32", 4);
    const struct layer_weights *a = one.model->w.layers, *b = four.model->w.layers;
    assert_int_equal(a->wq.n, 4 * b->wq.n);
    assert_int_equal(a->wkv.n, 4 * b->wkv.n);
    assert_int_equal(a->wo.n, 4 * b->wo.n);
    assert_int_equal(a->w_up.n, 4 * b->w_up.n);
    assert_int_equal(a->w_down.n, 4 * b->w_down.n);
    assert_int_equal(one.model->w.head.n, 4 * four.model->w.head.n);
    engine_bytes(one.engine, &kv[0], &activations, &restore);
    engine_bytes(four.engine, &kv[1], &activations, &restore);
    assert_int_equal(kv[0], 4 * kv[1]);
    stack_close(&one);
    stack_close(&four);
}

enum { HEAD_ROWS = 70 };

/* Computes the logits of hidden states that are whole numbers, so that sums are exact. */
static void head_logits(const char *model, const char *weights, int ranks, int n_rows,
                        bool is_cut, float *out)
{
    struct stack k;
    struct stream *s = NULL;
    struct model_work *w = NULL;
    struct buf mem = {0};
    open_ranks_as(&k, model, "f32", weights, ranks);
    const struct model *m = k.model;
    int d = m->cfg.n_embd, vocab = m->cfg.vocab_size;
    assert_int_equal(m->w.head.n, is_cut ? vocab / ranks : vocab);
    size_t x_bytes = (size_t)HEAD_ROWS * (size_t)d * sizeof(float);
    float *x = xcalloc(HEAD_ROWS * (size_t)d, sizeof *x);
    for (int i = 0; i < HEAD_ROWS * d; i++)
        x[i] = (float)(i * 7919 % 23 - 11);
    assert_int_equal(stream_create(k.dev, STREAM_COMPUTE, &s, NULL), 0);
    assert_int_equal(model_work_create(m, HEAD_ROWS, &w, NULL), 0);
    size_t bytes = (size_t)n_rows * (size_t)vocab * sizeof(float);
    assert_int_equal(buf_alloc(k.dev, MEM_DEVICE, x_bytes + bytes, &mem, NULL), 0);
    float *logits = (float *)mem.ptr + HEAD_ROWS * d;
    assert_int_equal(stream_copy(s, mem.ptr, x, x_bytes), 0);
    assert_int_equal(model_head(m, w, s, mat_of(mem.ptr, DTYPE_F32, n_rows, d),
                                mat_of(logits, DTYPE_F32, n_rows, vocab)),
                     0);
    assert_int_equal(stream_sync(s), 0);
    memcpy(out, logits, bytes);
    stream_destroy(s);
    buf_free(k.dev, &mem);
    model_work_destroy(w);
    free(x);
    stack_close(&k);
}

/* Several ranks, each with a run of the vocabulary, compute the logits of one rank with the whole
 * vocabulary, bit for bit: for one row, and for more rows than are gathered at a time. A head that
 * is the embedding table is whole on every rank. */
TEST(the_head_is_cut_by_vocabulary)
{
    static const struct {
        const char *model, *weights;
        int ranks;
        bool is_cut;
    } cases[] = {{"synth:tiny-mha", "checkpoint", 2, true},
                 {"synth:tiny-mha", "checkpoint", 4, true},
                 {"synth:tiny-mha", "q8", 2, true},
                 {"tests/model/golden/families/qwen3", "checkpoint", 2, false},
                 {"tests/model/golden/families/qwen3", "q8", 2, false}};
    enum { MOST = HEAD_ROWS * 4096 };
    float *want = xcalloc(MOST, sizeof *want), *got = xcalloc(MOST, sizeof *got);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int n = 1; n <= HEAD_ROWS; n += HEAD_ROWS - 1) {
            head_logits(cases[i].model, cases[i].weights, 1, n, false, want);
            head_logits(cases[i].model, cases[i].weights, cases[i].ranks, n,
                        cases[i].is_cut, got);
            assert_memory_equal(got, want, MOST * sizeof *got);
        }
    free(want);
    free(got);
}

/* A model that cannot be divided is refused, with the reason and advice. */
TEST(refuses_unequal_shares)
{
    static const struct {
        const char *model, *why;
        int ranks;
    } cases[] = {
        {"synth:tiny-mha", "4 attention heads", 3},
        {"tests/model/golden/families/llama", "2 key/value heads", 4},
        {"tests/model/golden/families/falcon-7b", "1 key/value heads", 2},
        {"synth:tiny-mha", "1 to 16", 17},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        struct err err = {0};
        struct stack_opts o = {.user.model = cases[i].model,
                               .user.threads = 1,
                               .user.tensor_parallel = cases[i].ranks,
                               .user.no_reuse = true};
        assert_true(stack_open(&o, &k, &err) != 0);
        if (strstr(err.msg, cases[i].why) == NULL)
            fail_msg("%s: '%s' does not say '%s'", cases[i].model, err.msg, cases[i].why);
        stack_close(&k);
    }
}
