/* test_shaping.c - penalties, biases and minimum lengths, against values computed by hand. */
#include "engine/shaping.h"

#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

enum { VOCAB = 6 };

/* Prompt 0 1; answer 1 2 2. */
static const int32_t tokens[] = {0, 1, 1, 2, 2}, ends[] = {5, -1};

static void expect(const struct hcache_shaping *g, const float want[VOCAB])
{
    const struct shaping_place at = {tokens, 2, 5, ends, 2};
    float logits[VOCAB] = {4, -2, 1, 3, 0, 8};
    int32_t counts[VOCAB] = {0};
    shaping_apply(g, &at, VOCAB, counts, logits);
    for (int i = 0; i < VOCAB; i++) {
        assert_float_equal(logits[i], want[i], 1e-6);
        assert_int_equal(counts[i], 0); /* shaping_apply leaves the counts zero */
    }
}

TEST(test_penalties)
{
    expect(&(struct hcache_shaping){.repetition_penalty = 1}, (float[]){4, -2, 1, 3, 0, 8});
    /* The repetition penalty counts once for each token of prompt and answer, however often the
     * token occurs. */
    expect(&(struct hcache_shaping){.repetition_penalty = 2},
           (float[]){2, -4, 0.5f, 3, 0, 8});
    /* The other penalties count in the answer only: token 1 occurs there once, token 2 twice. */
    expect(&(struct hcache_shaping){.repetition_penalty = 1, .frequency_penalty = 0.5f},
           (float[]){4, -2.5f, 0, 3, 0, 8});
    expect(&(struct hcache_shaping){.repetition_penalty = 1, .presence_penalty = 0.5f},
           (float[]){4, -2.5f, 0.5f, 3, 0, 8});
    expect(&(struct hcache_shaping){.repetition_penalty = 2,
                                    .frequency_penalty = -1,
                                    .presence_penalty = 0.25f},
           (float[]){2, -3.25f, 2.25f, 3, 0, 8});
}

TEST(test_bias_and_length)
{
    const struct hcache_bias bias[] = {{3, 2}, {0, -100}};
    const int32_t stop[] = {4};
    expect(&(struct hcache_shaping){.repetition_penalty = 1, .bias = bias, .n_bias = 2},
           (float[]){-96, -2, 1, 5, 0, 8});
    struct hcache_shaping g = {
        .repetition_penalty = 1, .stop_ids = stop, .n_stop_ids = 1, .min_tokens = 3};
    /* the answer has reached min_tokens, so ends are not suppressed */
    expect(&g, (float[]){4, -2, 1, 3, 0, 8});
    g.min_tokens = 4;
    expect(&g, (float[]){4, -2, 1, 3, -1e30f, -1e30f});
    assert_true(shaping_stops(&g, 4) && !shaping_stops(&g, 5) && !shaping_stops(NULL, 4));
}

TEST(test_what_changes_nothing)
{
    const int32_t stop[] = {4};
    assert_false(shaping_changes(NULL));
    assert_false(shaping_changes(&(struct hcache_shaping){
        .repetition_penalty = 1, .stop_ids = stop, .n_stop_ids = 1}));
    assert_true(shaping_changes(&(struct hcache_shaping){.repetition_penalty = 1.5f}));
    assert_true(shaping_changes(
        &(struct hcache_shaping){.repetition_penalty = 1, .min_tokens = 1}));
}
