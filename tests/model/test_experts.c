/* test_experts.c - the choice of experts: the largest numbers, ties to the lower index, weights of
 * the softmax, or sigmoids with a bias and groups.  tests/model/test_families.c judges whole layers
 * against transformers. */
#include "tests/unit.h"

#include <math.h>

#include "base/rng.h"
#include "model/experts.h"
#include "solo.h"

static void expect(const float *numbers, int n, int n_used, const int32_t *want)
{
    struct model_config c = {.n_experts = n,
                             .n_experts_used = n_used,
                             .experts_normed = true,
                             .experts_scale = 1};
    int32_t ids[MODEL_MAX_EXPERTS_USED];
    float weights[MODEL_MAX_EXPERTS_USED];
    experts_choose(&c, numbers, NULL, ids, weights);
    for (int i = 0; i < n_used; i++)
        assert_int_equal(ids[i], want[i]);
}

TEST(the_largest_numbers_win_and_ties_go_to_the_lower_index)
{
    expect((float[]){3, 1, 2, 4}, 4, 2, (int32_t[]){0, 3});
    expect((float[]){1, 1, 1, 1}, 4, 2, (int32_t[]){0, 1});
    expect((float[]){1, 2, 2, 2}, 4, 2, (int32_t[]){1, 2});
    expect((float[]){0, -0.0f, 5, 0}, 4, 3, (int32_t[]){0, 1, 2});
    expect((float[]){NAN, 1, NAN, 0}, 4, 3, (int32_t[]){0, 1, 3});
    expect((float[]){-INFINITY, 7, NAN}, 3, 2, (int32_t[]){0, 1});
    expect((float[]){5}, 1, 1, (int32_t[]){0});
}

/* Compares with a softmax over all experts, whose largest shares are taken one after another. */
TEST(weights_are_shares_of_the_softmax)
{
    enum { N = 64 };
    struct rng r = {20261129};
    for (int round = 0; round < 500; round++) {
        struct model_config c = {.n_experts = 1 + (int)rng_below(&r, N),
                                 .experts_scale = 1};
        c.n_experts_used = 1 + (int)rng_below(
                                   &r, (uint64_t)(c.n_experts < 32 ? c.n_experts : 32));
        c.experts_normed = round % 2 == 0;
        float numbers[N], weights[MODEL_MAX_EXPERTS_USED];
        double share[N], sum = 0, taken = 0;
        bool is_taken[N] = {false};
        int32_t ids[MODEL_MAX_EXPERTS_USED];
        for (int i = 0; i < c.n_experts; i++)
            numbers[i] = (float)rng_below(&r, 1000) / 50; /* some are equal */
        for (int i = 0; i < c.n_experts; i++)
            sum += exp((double)numbers[i]);
        for (int i = 0; i < c.n_experts; i++)
            share[i] = exp((double)numbers[i]) / sum;
        for (int k = 0; k < c.n_experts_used; k++) {
            int best = -1;
            for (int i = 0; i < c.n_experts; i++)
                if (!is_taken[i] && (best < 0 || numbers[i] > numbers[best]))
                    best = i;
            is_taken[best] = true;
            taken += share[best];
        }
        experts_choose(&c, numbers, NULL, ids, weights);
        for (int k = 0; k < c.n_experts_used; k++) {
            assert_true(is_taken[ids[k]]);
            assert_true(k == 0 || ids[k] > ids[k - 1]);
            double want = share[ids[k]] / (c.experts_normed ? taken : 1);
            assert_true(fabs((double)weights[k] - want) <= 1e-6 * want);
        }
    }
}

/* The bias chooses but is no part of the weights, and experts of other groups are not chosen
 * however large their numbers are. */
TEST(sigmoids_are_chosen_with_a_bias_among_groups)
{
    static const float numbers[] = {0, 1, 2, -1, 3, -9, 1, 1}, none[8] = {0},
                       bias[] = {0.9f, 0, 0, 0.9f, 0, 0, 0, 0};
    static const struct {
        const float *bias;
        int n_groups, used;
        int32_t want[3];
    } known[] = {{none, 0, 0, {1, 2, 4}}, {bias, 0, 0, {0, 3, 4}}, {none, 4, 1, {6, 7, -1}},
                 {none, 2, 1, {4, 6, 7}}, {none, 4, 2, {1, 6, 7}}, {none, 2, 2, {1, 2, 4}},
                 {bias, 2, 1, {0, 2, 3}}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (int normed = 0; normed < 2; normed++) {
            int k = known[i].want[2] < 0 ? 2 : 3;
            struct model_config c = {.n_experts = 8,
                                     .n_experts_used = k,
                                     .experts_normed = normed,
                                     .router_sigmoid = true,
                                     .expert_groups = {known[i].n_groups, known[i].used},
                                     .experts_scale = 2.5f};
            float weights[3];
            int32_t ids[3];
            double sum = 0, s[3];
            experts_choose(&c, numbers, known[i].bias, ids, weights);
            for (int e = 0; e < k; e++)
                sum += s[e] = 1 / (1 + exp(-(double)numbers[ids[e]]));
            for (int e = 0; e < k; e++) {
                bool is_wanted = false;
                for (int m = 0; m < k; m++)
                    is_wanted |= ids[e] == known[i].want[m];
                assert_true(is_wanted && (e == 0 || ids[e] > ids[e - 1]));
                double want = 2.5 * s[e] / (normed ? sum : 1);
                assert_true(fabs((double)weights[e] - want) <= 1e-6);
            }
        }
    /* sigmoids that are all 0 give weights of 0, and no NaN */
    float far[8], weights[2];
    int32_t ids[2];
    for (int i = 0; i < 8; i++)
        far[i] = -1e30f;
    struct model_config c = {.n_experts = 8,
                             .n_experts_used = 2,
                             .experts_normed = true,
                             .router_sigmoid = true,
                             .experts_scale = 1};
    experts_choose(&c, far, none, ids, weights);
    assert_true(ids[0] == 0 && ids[1] == 1 && weights[0] == 0 && weights[1] == 0);
}

/* A row's logits are the same bits alone and beside rows that use other experts. */
TEST(a_row_does_not_depend_on_the_rows_beside_it)
{
    enum { N = 48, VOCAB = 128 };
    static float all[N * VOCAB], one[N * VOCAB];
    static const char *const held[] = {"f32", "bf16", "q8"};
    for (size_t k = 0; k < sizeof held / sizeof held[0]; k++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct solo t;
            int32_t ids[N];
            struct model_opts o = {.dtype = "bf16", .weights = held[k]};
            solo_open_as(&t, "tests/model/golden/families/qwen3-moe", "cpu", 1, n_threads,
                         &o);
            for (int i = 0; i < N; i++)
                ids[i] = (i * 37 + 5) % VOCAB;
            solo_feed(&t, ids, N, n_threads == 1 ? all : one);
            if (n_threads > 1)
                assert_memory_equal(all, one, sizeof all);
            solo_forget(&t);
            for (int i = 0; i < N; i++)
                solo_feed(&t, ids + i, 1, one + (size_t)i * VOCAB);
            assert_memory_equal(all, one, sizeof all);
            solo_close(&t);
        }
}
