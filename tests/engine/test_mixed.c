/* test_mixed.c - contexts of KV blocks and ACT blocks (hidden states), on the device and on the
 * host. They have the bits of contexts that never left the device. The link carries the bytes that
 * the policy counts. The host's arena may be full. */
#include <string.h>
#include "tests/unit.h"
#include "engine/engine_impl.h"
#include "engine/hybrid_share.h"
#include "tests/engine/mixedtest.h"

TEST(random_patterns_have_the_same_bits)
{
    mx_compare(&(struct mx_case){"cpu", "synth:tiny-mha", 16, 75, 1});
    mx_compare(&(struct mx_case){"cpu", "synth:tiny-gqa", 8, 75, 2});
    mx_compare(&(struct mx_case){"ref", "synth:tiny-mha", 4, 12, 3});
}

/* --- bytes ------------------------------------------------------------------------------------ */

enum { N_SEQS = 4, N_PROMPT = 3 * 64 + 10, N_LAYERS = 4 };

struct job {
    struct stack k;
    struct seq *s[N_SEQS];
};

static void job_open_at_most(struct job *j, const struct mixed_opts *mo, int max_seqs,
                             int n_prompt, int n_seqs, int n_generate, bool shared)
{
    et_open(&j->k, &(struct stack_opts){.user.max_sequences = max_seqs,
                                        .user.max_context = 512,
                                        .step_rows = 2048,
                                        .mixed = mo});
    for (int i = 0; i < n_seqs; i++) {
        int32_t prompt[512];
        et_prompt(prompt, n_prompt, shared ? 5 : 5 + (uint64_t)i);
        if (shared)
            prompt[n_prompt - 1] = 7 + i;
        struct et_ask a = {
            .prompt = prompt, .n_prompt = n_prompt, .max_tokens = n_generate};
        j->s[i] = et_add(&j->k, &a);
    }
}

static void job_open(struct job *j, const struct mixed_opts *mo, int n_prompt, int n_seqs,
                     int n_generate, bool shared)
{
    job_open_at_most(j, mo, N_SEQS, n_prompt, n_seqs, n_generate, shared);
}

static int step(struct job *j)
{
    struct err err = {0};
    int n_active;
    if (engine_step(j->k.engine, &n_active, &err) != 0)
        fail_msg("%s", err.msg);
    return n_active;
}

static void job_close(struct job *j, int n_seqs)
{
    for (int i = 0; i < n_seqs; i++)
        engine_remove(j->k.engine, j->s[i]);
    stack_close(&j->k);
}

static struct mixed_stats stats_of(const struct job *j)
{
    struct mixed_stats s;
    struct engine_stats all;
    assert_true(engine_mixed_stats(j->k.engine, &s));
    engine_stats(j->k.engine, &all);
    assert_int_equal(all.link_bytes, s.up_bytes);
    assert_int_equal(all.link_down_bytes, s.down_bytes);
    return s;
}

/* Counts the full blocks of all sequences, by class. */
static void count_full(const struct job *j, int64_t n[PLACES_CLASSES])
{
    const struct places *p = &j->k.engine->mixed.places;
    memset(n, 0, PLACES_CLASSES * sizeof *n);
    for (int i = 0; i < N_SEQS; i++) {
        const struct kv_table *t = seq_table(j->s[i]);
        for (int b = 0; b < seq_tokens_done(j->s[i]) / KV_BLOCK_TOKENS; b++)
            n[places_class_of(p, t->blocks[b])]++;
    }
}

/* The pool has the blocks that the policy chose for the batch. Each decode step moves the bytes
 * that the policy computes, layer by layer, and projects every ACT block. */
TEST(a_step_moves_the_bytes_of_the_policy)
{
    struct hybrid_machine m = {.project = {0, 1e-3},
                               .link = {0, 1e-8},
                               .kv_bytes = 64 * 2 * 64 * 4,
                               .act_bytes = 64 * 64 * 4,
                               .n_minibatches = 1};
    struct hybrid_memory mem = {3 * m.kv_bytes, 1e9};
    for (int64_t n_act = 0; n_act <= 16; n_act += 4) {
        struct hybrid_split split;
        struct job j;
        int64_t full[PLACES_CLASSES];
        hybrid_place(&m, &mem, 16, n_act, &split);
        struct mixed_opts mo = {.n = {(int)split.kv_device, (int)split.act_device,
                                      (int)split.kv_host, (int)split.act_host},
                                .act_share = (double)n_act,
                                .kv_share = (double)(16 - n_act),
                                .link_bytes_per_s = n_act == 8 ? 1e9 : 0};
        job_open(&j, &mo, N_PROMPT, N_SEQS, 20, false);
        const struct places *p = &j.k.engine->mixed.places;
        assert_int_equal(p->kv_bytes, (size_t)m.kv_bytes);
        assert_int_equal(p->act_bytes, (size_t)m.act_bytes);
        while (seq_outcome(j.s[N_SEQS - 1])->r.n_tokens == 0)
            step(&j);
        for (int i = 0; i < 3; i++) {
            struct mixed_stats before = stats_of(&j), after;
            count_full(&j, full);
            step(&j);
            after = stats_of(&j);
            assert_int_equal(full[0] + full[1] + full[2] + full[3], 3 * N_SEQS);
            /* Unfinished blocks lie on the device, so the policy counts full blocks only. */
            uint64_t want = N_LAYERS * ((uint64_t)full[PLACES_KV_HOST] * p->kv_bytes +
                                        (uint64_t)full[PLACES_ACT_HOST] * p->act_bytes);
            assert_int_equal(after.up_bytes - before.up_bytes, want);
            assert_int_equal(after.n_projected - before.n_projected,
                             N_LAYERS * (full[PLACES_ACT_DEVICE] + full[PLACES_ACT_HOST]));
            assert_in_range(full[PLACES_KV_HOST] + N_SEQS, split.kv_host,
                            split.kv_host + N_SEQS);
            assert_in_range(full[PLACES_ACT_HOST] + N_SEQS, split.act_host,
                            split.act_host + N_SEQS);
        }
        job_close(&j, N_SEQS);
    }
}

/* Three sequences of five blocks form two mini-batches: a pair, and the third sequence alone. The
 * pair computes while the third sequence is loaded, so the pair gets fewer ACT blocks. The
 * mini-batches and the numbers of ACT blocks are those of the policy. */
TEST(sequences_get_the_shares_of_their_mini_batches)
{
    enum { N = 3, N_BLOCKS = 5 };
    struct hybrid_machine m = {.project = {0, 2e-3},
                               .link = {0, 1e-3 / (64 * 2 * 64 * 4)},
                               .kv_bytes = 64 * 2 * 64 * 4,
                               .act_bytes = 64 * 64 * 4,
                               .n_minibatches = 2,
                               .n_requests = N};
    struct hybrid_memory mem = {0, 1e9};
    struct hybrid_split split;
    struct job j;
    int64_t want[N];
    hybrid_choose(&m, &mem, (int64_t)N * N_BLOCKS, &split);
    hybrid_share_requests(&m, &split, want);
    assert_true(split.is_shared_out && want[0] + 2 <= want[2] && want[1] + 2 <= want[2]);
    struct mixed_opts mo = {.n = {0, 0, (int)split.kv_host, (int)split.act_host},
                            .act_share = (double)split.act_host,
                            .kv_share = (double)split.kv_host,
                            .split = split,
                            .buffer_blocks = 1,
                            .machine = m};
    job_open_at_most(&j, &mo, N, 4 * 64 + 10, N, 20, false);
    const struct places *p = &j.k.engine->mixed.places;
    /* scratch memory for the four full blocks of two sequences, and one more block */
    assert_int_equal(p->o.n_scratch, 512 / 64 + 1);
    while (seq_outcome(j.s[N - 1])->r.n_tokens == 0)
        step(&j);
    for (int i = 0; i < N; i++) {
        const struct kv_table *t = seq_table(j.s[i]);
        int64_t n_act = 0;
        assert_int_equal(t->n_blocks, N_BLOCKS);
        for (int b = 0; b < N_BLOCKS; b++)
            n_act += places_class_of(p, t->blocks[b]) == PLACES_ACT_HOST;
        assert_int_equal(n_act, want[i]);
    }
    struct mixed_stats before = stats_of(&j), after;
    step(&j);
    after = stats_of(&j);
    assert_int_equal(after.n_minibatches - before.n_minibatches, 2);
    const struct mixed *x = &j.k.engine->mixed;
    assert_int_equal(x->minis[0].end_seq, 2);
    assert_ptr_equal(x->batch->seqs[2], j.s[2]);
    job_close(&j, N);
}

/* The bytes that stand for weights come over the link in parts, one before each mini-batch. After a
 * step all of them have come. */
TEST(bytes_for_weights_come_in_parts)
{
    enum { ODD = 1001 };
    struct job j;
    struct mixed_opts mo = {.n = {[PLACES_KV_HOST] = 16},
                            .kv_share = 1,
                            .buffer_blocks = 9,
                            .weights_bytes = ODD};
    job_open(&j, &mo, N_PROMPT, N_SEQS, 4, false);
    const struct mixed *x = &j.k.engine->mixed;
    while (seq_outcome(j.s[N_SEQS - 1])->r.n_tokens == 0)
        step(&j);
    uint8_t *from = x->weights_host.ptr, *to = x->weights.ptr;
    for (int i = 0; i < ODD; i++) {
        from[i] = (uint8_t)(i * 7 + 1);
        to[i] = (uint8_t)~from[i];
    }
    step(&j);
    assert_true(x->n_minis > 1);
    assert_memory_equal(to, from, ODD);
    job_close(&j, N_SEQS);
}

/* Equation 11 of the paper: while blocks of both types are left, no sequence is more than one block
 * off the ratio. */
TEST(sequences_have_the_ratio)
{
    struct job j;
    struct mixed_opts mo = {
        .n = {0, 0, 16, 16}, .act_share = 1, .kv_share = 2, .packing = MINIBATCH_PAPER};
    job_open(&j, &mo, N_PROMPT + 2 * 64, N_SEQS, 4, false);
    while (seq_outcome(j.s[N_SEQS - 1])->r.n_tokens == 0)
        step(&j);
    for (int i = 0; i < N_SEQS; i++) {
        const struct kv_table *t = seq_table(j.s[i]);
        int n_act = 0;
        assert_int_equal(t->n_blocks, 6);
        for (int b = 0; b < t->n_blocks; b++)
            n_act += places_class_of(&j.k.engine->mixed.places, t->blocks[b]) ==
                     PLACES_ACT_HOST;
        assert_int_equal(n_act, 2);
    }
    job_close(&j, N_SEQS);
}

/* --- mini-batches ----------------------------------------------------------------------------- */

/* Requests 0 and 1 have only KV blocks, 2 and 3 only ACT blocks. */
static const int *by_request(void *arg, const struct kv_table *t)
{
    static const int kv[] = {PLACES_KV_HOST, PLACES_ACT_HOST, PLACES_KV_DEVICE,
                             PLACES_ACT_DEVICE};
    static const int act[] = {PLACES_ACT_HOST, PLACES_KV_HOST, PLACES_KV_DEVICE,
                              PLACES_ACT_DEVICE};
    const struct job *j = arg;
    return t == seq_table(j->s[0]) || t == seq_table(j->s[1]) ? kv : act;
}

/* Scratch memory has room for three quarters of the requests' blocks. In order of arrival, requests
 * of one kind share a mini-batch. `balance` begins with the longest request. It gives each
 * mini-batch one request of either kind and half of the blocks, so that one mini-batch is projected
 * while the other is loaded. `print`, the paper's method, adds requests in order while its measure
 * F_b does not grow. F_b is infinite for KV blocks alone, so a second request with KV blocks is
 * added. */
TEST(mini_batches_are_those_of_the_policy)
{
    static const int full_blocks[N_SEQS] = {2, 4, 4, 2};
    static const struct {
        enum minibatch_method packing;
        int second; /* index of the request with which the second mini-batch begins */
        int order[N_SEQS];
    } cases[] = {
        {MINIBATCH_BALANCED, 2, {1, 3, 0, 2}},
        {MINIBATCH_PAPER, 3, {0, 1, 3, 2}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct job j = {0};
        struct mixed_opts mo = {.n = {[PLACES_KV_HOST] = 8, [PLACES_ACT_HOST] = 8},
                                .buffer_blocks = 9,
                                .packing = cases[c].packing,
                                .order = by_request,
                                .order_arg = &j};
        job_open(&j, &mo, 0, 0, 0, false);
        for (int i = 0; i < N_SEQS; i++) {
            int32_t prompt[512];
            int n_prompt = full_blocks[i] * 64 + 10;
            et_prompt(prompt, n_prompt, 5 + (uint64_t)i);
            struct et_ask a = {.prompt = prompt, .n_prompt = n_prompt, .max_tokens = 4};
            j.s[i] = et_add(&j.k, &a);
        }
        while (seq_outcome(j.s[N_SEQS - 1])->r.n_tokens == 0)
            step(&j);
        step(&j);
        const struct mixed *x = &j.k.engine->mixed;
        assert_int_equal(x->places.o.n_scratch, 9);
        assert_int_equal(x->n_minis, 2);
        assert_int_equal(x->minis[1].first_seq, cases[c].second);
        for (int i = 0; i < N_SEQS; i++)
            assert_ptr_equal(x->order[i].s, j.s[cases[c].order[i]]);
        job_close(&j, N_SEQS);
    }
}

/* --- scarce blocks -----------------------------------------------------------------------------
 */

/* With blocks for only one context, requests run one after another, and all succeed. */
TEST(a_full_arena_means_fewer_at_once)
{
    struct job j;
    struct err err = {0};
    struct mixed_opts mo = {.n = {0, 0, 3, 2}, .act_share = 1, .kv_share = 1};
    job_open(&j, &mo, N_PROMPT, N_SEQS, 4, false);
    int most = 0, n_active;
    do {
        int n = 0;
        n_active = step(&j);
        for (int i = 0; i < N_SEQS; i++)
            n += j.s[i]->phase == PHASE_PREFILL || j.s[i]->phase == PHASE_DECODE;
        most = n > most ? n : most;
    } while (n_active > 0);
    assert_int_equal(most, 1);
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(seq_outcome(j.s[i])->finish, FINISH_LENGTH);
        assert_int_equal(seq_outcome(j.s[i])->r.n_tokens, 4);
    }
    /* A request that can never fit is refused, and the error gives the reason. */
    int32_t prompt[400];
    struct seq *s;
    et_prompt(prompt, 400, 3);
    struct et_ask a = {.prompt = prompt, .n_prompt = 400, .max_tokens = 4};
    struct request *q = et_request(&j.k, &a);
    assert_int_equal(et_submit(j.k.engine, q, &s, &err), ERR_LIMIT);
    job_close(&j, N_SEQS);
}

/* Sequences with equal beginnings share full blocks of any type and place. */
TEST(beginnings_are_shared)
{
    struct job j;
    struct mixed_opts mo = {.n = {1, 1, 8, 8}, .act_share = 1, .kv_share = 1};
    job_open(&j, &mo, N_PROMPT, N_SEQS, 4, true);
    while (step(&j) > 0)
        ;
    int n_device = 0;
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(seq_outcome(j.s[i])->finish, FINISH_LENGTH);
        n_device += seq_outcome(j.s[i])->r.device_tokens;
    }
    assert_int_equal(n_device, (N_SEQS - 1) * 3 * 64);
    job_close(&j, N_SEQS);
}

/* Partial blocks are not copied. So prompts shorter than a block that differ only in their last
 * token do not wait for each other, and all are computed in the first step. */
TEST(short_beginnings_are_not_waited_for)
{
    struct job j;
    struct mixed_opts mo = {.n = {0, 0, 8, 8}, .act_share = 1, .kv_share = 1};
    job_open(&j, &mo, 40, 1, 4, false);
    for (int i = 1; i < N_SEQS; i++) {
        int32_t prompt[40];
        et_prompt(prompt, 40, 5);
        prompt[39] = 30 + i;
        struct et_ask a = {.prompt = prompt, .n_prompt = 40, .max_tokens = 4};
        j.s[i] = et_add(&j.k, &a);
    }
    step(&j);
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(seq_outcome(j.s[i])->r.n_tokens, 1);
    job_close(&j, N_SEQS);
}

/* --- a residual stream that leaves f16's range ------------------------------------------------ */

enum { BAD = 500, GOOD = 2, N_GOOD = 100, N_MORE = 60 };

/* Opens a model in which one token's embedding is beyond f16's range. */
static void f16_open(struct stack *k, const struct mixed_opts *mo)
{
    et_open(k, &(struct stack_opts){.user.max_context = 256,
                                    .user.max_sequences = 3,
                                    .user.dtype = "f16",
                                    .user.no_reuse = true,
                                    .mixed = mo});
    struct mat row = mat_rows(k->model->w.embed, BAD, 1);
    uint16_t infinity = 0x7c00;
    assert_int_equal(row.dtype, DTYPE_F16);
    for (int64_t i = 0; i < row.cols; i++)
        memcpy((uint8_t *)row.data + (size_t)i * 2, &infinity, 2);
}

/* One sequence's values leave the range of f16. Sequences that decode in the same step lose their
 * places. They come back with the tokens and logits that they have alone, although the failed step
 * had moved their tails. */
TEST(values_out_of_range_end_one_sequence)
{
    struct mixed_opts mo = {.n = {1, 2, 6, 6}, .act_share = 1, .kv_share = 1};
    struct stack k;
    struct et_run want[GOOD], got;
    struct seq *s[GOOD + 1];
    struct err err = {0};
    int32_t prompt[GOOD + 1][N_GOOD];
    struct et_ask a[GOOD + 1];
    int n_active;
    for (int i = 0; i <= GOOD; i++) {
        et_prompt(prompt[i], N_GOOD, 70 + (uint64_t)i);
        a[i] = (struct et_ask){
            .prompt = prompt[i], .n_prompt = N_GOOD, .max_tokens = N_MORE};
    }
    prompt[GOOD][70] = BAD;
    f16_open(&k, NULL);
    for (int i = 0; i < GOOD; i++)
        assert_int_equal(et_run(&k, &a[i], &want[i]), 0);
    stack_close(&k);
    f16_open(&k, &mo);
    for (int i = 0; i <= GOOD; i++) {
        s[i] = et_add(&k, &a[i]);
        for (int n = 0; i + 1 == GOOD && n < 20; n++)
            assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
    }
    if (engine_run(k.engine, &err) != 0)
        fail_msg("%s", err.msg);
    et_take(&k, s[GOOD], &got);
    assert_int_equal(got.finish, FINISH_ERROR);
    assert_non_null(strstr(got.err.msg, "--dtype bf16"));
    for (int i = 0; i < GOOD; i++) {
        assert_int_equal(seq_outcome(s[i])->r.n_preempted, 1);
        et_take(&k, s[i], &got);
        et_same(&got, &want[i], "beside a value out of range");
    }
    stack_close(&k);
}

/* The pool has the blocks that are reserved, whatever max_kv_tokens says. */
TEST(the_pool_has_the_reserved_blocks)
{
    struct job j;
    struct engine_stats st;
    struct mixed_opts mo = {.n = {1, 2, 5, 6}, .act_share = 1, .kv_share = 1};
    job_open(&j, &mo, 40, 1, 4, false);
    engine_stats(j.k.engine, &st);
    assert_int_equal(st.blocks, 14);
    job_close(&j, 1);
}

TEST(parallel_devices_are_refused)
{
    struct stack k;
    struct err err = {0};
    struct mixed_opts mo = {.n = {0, 0, 8, 8}};
    int rc = et_try_open(
        &k, &(struct stack_opts){.mixed = &mo, .user.pipeline_parallel = 2}, &err);
    assert_int_equal(rc, ERR_UNSUPPORTED);
    stack_close(&k);
}
