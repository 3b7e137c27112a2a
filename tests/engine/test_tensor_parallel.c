/* Tensor parallelism: bit-exact restores with several ranks, on a CPU.
 *
 * For 1, 2 and 4 ranks a restored state is bit-equal to a state that was never evicted: in any
 * mixture of methods, with chunks, a tail, and new tokens prefilled inside the restore. Different
 * numbers of ranks add in different orders. So their logits agree only within a tolerance, and
 * their states differ: a store never gives state of one rank to two ranks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "enginetest.h"
#include "tensor/group.h"

/* The prompt is three chunks and a tail. */
enum { N_PROMPT = 205, N_FULL = 192, N_GENERATE = 8, N_LONGER = N_PROMPT + N_GENERATE + 5 };

static void open_ranks(struct stack *k, const char *model, const char *dtype, int ranks)
{
    et_open(k, &(struct stack_opts){.user.model = model,
                                    .user.dtype = dtype,
                                    .user.threads = 2,
                                    .user.tensor_parallel = ranks,
                                    .user.max_context = 256,
                                    .user.store_in_memory = true,
                                    .user.save_buffer_bytes = 4 << 20,
                                    .user.no_reuse = true});
    assert_int_equal(k->dev->n_ranks, ranks);
}

static struct et_run ask_for(struct stack *k, const struct et_ask *a)
{
    struct et_run run;
    int rc = et_run(k, a, &run);
    if (rc != 0 || run.finish == FINISH_ERROR)
        fail_msg("save %s, plan %s: %s", a->save, a->plan, run.err.msg);
    return run;
}

static void make_prompt(const struct stack *k, int32_t *out, int n)
{
    et_prompt(out, n, 42);
    for (int i = 0; i < n; i++)
        out[i] %= k->model->cfg.vocab_size;
}

static struct et_run ask(struct stack *k, const char *save, const char *plan,
                         bool restore_first)
{
    int32_t prompt[N_PROMPT];
    make_prompt(k, prompt, N_PROMPT);
    return ask_for(k, &(struct et_ask){.prompt = prompt,
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

static void restored_state_is_exact(void **state)
{
    (void)state;
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
        assert_int_equal(model_rank_kv_heads(k.model) * cases[i].ranks, c->n_kv_heads);
        check_plans(&k, cases[i].model);
        stack_close(&k);
        n++;
    }
    print_message("%d models\n", n);
}

/* The conversation continues. Its unfinished chunk was saved as rows, from which each rank takes
 * its own heads. */
static void a_tail_is_restored(void **state)
{
    (void)state;
    static const char *const plans[] = {"hidden", "kv", "RHKK"};
    for (int i = 0; i < 3; i++) {
        struct stack k;
        int32_t ids[N_LONGER];
        open_ranks(&k, "synth:tiny-mha", "bf16", 4);
        struct et_run first = ask(&k, "both", "recompute", false);
        make_prompt(&k, ids, N_LONGER);
        assert_int_equal(first.n_tokens, N_GENERATE);
        memcpy(ids + N_PROMPT, first.tokens, N_GENERATE * sizeof ids[0]);
        struct et_ask a = {.prompt = ids,
                           .n_prompt = N_LONGER,
                           .max_tokens = N_GENERATE,
                           .save = "none",
                           .salt = "who has saved nothing"};
        struct et_run ref = ask_for(&k, &a);
        a.salt = NULL;
        a.plan = plans[i];
        struct et_run run = ask_for(&k, &a);
        assert_int_equal(ref.n_cached, 0);
        assert_true(run.n_cached > N_PROMPT);
        et_same(&run, &ref, plans[i]);
        stack_close(&k);
    }
}

/* Returns the logits of the last position, after a prefill of the whole prompt, on this number of
 * ranks. */
static float *logits_of(const char *model, int ranks, int *n)
{
    enum { N_BLOCKS = 4 };
    struct stack k;
    struct stream *s;
    struct model_work *w;
    struct buf mem;
    int32_t ids[N_PROMPT], pos[N_PROMPT], blocks[N_BLOCKS] = {2, 0, 3, 1};
    int32_t seq_row[2] = {0, N_PROMPT};
    const int32_t *tables[1] = {blocks};
    open_ranks(&k, model, "f32", ranks);
    const struct model *m = k.model;
    *n = m->cfg.vocab_size;
    et_prompt(ids, N_PROMPT, 7);
    for (int i = 0; i < N_PROMPT; i++) {
        ids[i] %= *n;
        pos[i] = i;
    }
    struct ragged r = {
        .n_rows = N_PROMPT, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    int heads = model_rank_kv_heads(m);
    size_t block = kv_block_bytes(heads, m->cfg.d_head, m->dtype), layer = N_BLOCKS * block;
    struct kv_layer *kv = xcalloc((size_t)m->cfg.n_layers, sizeof *kv);
    assert_int_equal(stream_create(m->dev, STREAM_COMPUTE, &s, NULL), 0);
    assert_int_equal(model_work_create(m, N_PROMPT, &w, NULL), 0);
    size_t all = layer * (size_t)m->cfg.n_layers, bytes = (size_t)*n * sizeof(float);
    assert_int_equal(buf_alloc(m->dev, MEM_DEVICE, all + bytes, &mem, NULL), 0);
    for (int l = 0; l < m->cfg.n_layers; l++)
        kv[l] = (struct kv_layer){.blocks = (uint8_t *)mem.ptr + (size_t)l * layer,
                                  .block_stride = block,
                                  .dtype = m->dtype,
                                  .n_kv = heads,
                                  .d_head = m->cfg.d_head};
    struct mat x, logits = mat_of((uint8_t *)mem.ptr + all, DTYPE_F32, 1, *n);
    assert_int_equal(model_forward(m, w, s, ids, kv, &r, NULL, &x), 0);
    assert_int_equal(model_head(m, w, s, mat_rows(x, N_PROMPT - 1, 1), logits), 0);
    float *out = xmalloc(bytes);
    memcpy(out, logits.data, bytes);
    /* every rank must have the same residual stream */
    for (int rank = 1; rank < ranks; rank++)
        assert_memory_equal(rank_address(m->dev, logits.data, rank), out, bytes);
    buf_free(m->dev, &mem);
    model_work_destroy(w);
    stream_destroy(s);
    free(kv);
    stack_close(&k);
    return out;
}

/* The logits are sums of at most 352 f32 products in another order. Measured difference: 2e-6 of
 * the largest logit. */
static void logits_agree_with_one_rank(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int ranks;
    } cases[] = {
        {"synth:tiny-mha", 2},
        {"synth:tiny-mha", 4},
        {"synth:tiny-gqa", 2},
        {"tests/model/golden/families/falcon-40b", 2},
        {"tests/model/golden/families/falcon-11b", 3},
        {"tests/model/golden/families/falcon-rw", 2},
        {"tests/model/golden/families/llama", 2},
        {"tests/model/golden/families/mistral", 2},
        {"tests/model/golden/families/opt", 4},
        {"tests/model/golden/families/phi", 2},
        {"tests/model/golden/families/phi3", 2},
        {"tests/model/golden/families/qwen2", 2},
        {"tests/model/golden/families/qwen2-window", 4},
        {"tests/model/golden/families/qwen3", 2},
    };
    double worst = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n;
        float *one = logits_of(cases[i].model, 1, &n);
        float *many = logits_of(cases[i].model, cases[i].ranks, &n);
        double largest = 0, apart = 0;
        for (int j = 0; j < n; j++) {
            largest = fmax(largest, fabs((double)one[j]));
            apart = fmax(apart, fabs((double)one[j] - (double)many[j]));
        }
        if (!(apart <= 1e-4 * largest))
            fail_msg("%s, %d ranks: logits differ by %g of %g", cases[i].model,
                     cases[i].ranks, apart, largest);
        worst = fmax(worst, apart / largest);
        free(one);
        free(many);
    }
    print_message("logits differ by at most %.1e of the largest\n", worst);
}

/* State saved with one number of ranks is a miss for another number. */
static void other_ranks_are_another_state(void **state)
{
    (void)state;
    struct stack k[3];
    static const int ranks[3] = {1, 2, 4};
    for (int i = 0; i < 3; i++)
        open_ranks(&k[i], "synth:tiny-mha", "bf16", ranks[i]);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&k[i].fingerprint, &k[j].fingerprint,
                                    sizeof k[i].fingerprint);
    for (int i = 0; i < 3; i++)
        stack_close(&k[i]);
}

/* A rank holds its share of K and V and of the matrices that are divided. */
static void memory_is_shared_out(void **state)
{
    (void)state;
    struct stack one, four;
    size_t kv[2], activations, restore;
    open_ranks(&one, "synth:tiny-mha", "f32", 1);
    open_ranks(&four, "synth:tiny-mha", "f32", 4);
    const struct layer_weights *a = one.model->w.layers, *b = four.model->w.layers;
    assert_int_equal(a->wq.n, 4 * b->wq.n);
    assert_int_equal(a->wkv.n, 4 * b->wkv.n);
    assert_int_equal(a->wo.k, 4 * b->wo.k);
    assert_int_equal(a->w_up.n, 4 * b->w_up.n);
    assert_int_equal(a->w_down.k, 4 * b->w_down.k);
    assert_int_equal(one.model->w.head.n, 4 * four.model->w.head.n);
    engine_bytes(one.engine, &kv[0], &activations, &restore);
    engine_bytes(four.engine, &kv[1], &activations, &restore);
    assert_int_equal(kv[0], 4 * kv[1]);
    stack_close(&one);
    stack_close(&four);
}

enum { HEAD_ROWS = 70 };

/* Computes the logits of hidden states that are whole numbers, so that sums are exact. */
static void head_logits(const char *model, int ranks, int n_rows, bool is_cut, float *out)
{
    struct stack k;
    struct stream *s = NULL;
    struct model_work *w = NULL;
    struct buf mem = {0};
    open_ranks(&k, model, "f32", ranks);
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
    buf_free(k.dev, &mem);
    model_work_destroy(w);
    stream_destroy(s);
    free(x);
    stack_close(&k);
}

/* Several ranks, each with a run of the vocabulary, compute the logits of one rank with the whole
 * vocabulary, bit for bit: for one row, and for more rows than are gathered at a time. A head that
 * is the embedding table is whole on every rank. */
static void the_head_is_cut_by_vocabulary(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int ranks;
        bool is_cut;
    } cases[] = {{"synth:tiny-mha", 2, true},
                 {"synth:tiny-mha", 4, true},
                 {"tests/model/golden/families/qwen3", 2, false}};
    enum { MOST = HEAD_ROWS * 4096 };
    float *want = xcalloc(MOST, sizeof *want), *got = xcalloc(MOST, sizeof *got);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int n = 1; n <= HEAD_ROWS; n += HEAD_ROWS - 1) {
            head_logits(cases[i].model, 1, n, false, want);
            head_logits(cases[i].model, cases[i].ranks, n, cases[i].is_cut, got);
            assert_memory_equal(got, want, MOST * sizeof *got);
        }
    free(want);
    free(got);
}

/* A model that cannot be divided is refused, with the reason and advice. */
static void refuses_unequal_shares(void **state)
{
    (void)state;
    static const struct {
        const char *model, *weights, *why;
        int ranks;
    } cases[] = {
        {"synth:tiny-mha", NULL, "4 attention heads", 3},
        {"tests/model/golden/families/llama", NULL, "2 key/value heads", 4},
        {"tests/model/golden/families/falcon-7b", NULL, "1 key/value heads", 2},
        {"tests/model/golden/families/llama", "q8", "multiples of 32", 2},
        {"synth:tiny-mha", NULL, "1 to 16", 17},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        struct err err = {0};
        struct stack_opts o = {.user.model = cases[i].model,
                               .user.weights = cases[i].weights,
                               .user.threads = 1,
                               .user.tensor_parallel = cases[i].ranks,
                               .user.no_reuse = true};
        assert_true(stack_open(&o, &k, &err) != 0);
        if (strstr(err.msg, cases[i].why) == NULL)
            fail_msg("%s: '%s' does not say '%s'", cases[i].model, err.msg, cases[i].why);
        stack_close(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_state_is_exact),
        cmocka_unit_test(a_tail_is_restored),
        cmocka_unit_test(logits_agree_with_one_rank),
        cmocka_unit_test(other_ranks_are_another_state),
        cmocka_unit_test(memory_is_shared_out),
        cmocka_unit_test(the_head_is_cut_by_vocabulary),
        cmocka_unit_test(refuses_unequal_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
