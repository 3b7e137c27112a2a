/* test_cpu_sample.c - every instruction set computes the weights of logits, rounded down, as
 * sampling.h defines them. */
#include "rig.h"

#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "tensor/cpu/cpu.h"
#include "tensor/sampling.h"

enum { N = 40003 }; /* not a multiple of the vector width */

static const float best = 3.75f;

/* Returns logits spread evenly down to where the weight is zero, and some that are not finite. */
static float *logits_make(void)
{
    float *logits = random_elems(DTYPE_F32, N, 1);
    for (int j = 0; j < N; j++)
        logits[j] = best - 32.0f * (float)(N - 1 - j) / N;
    logits[0] = -INFINITY;
    logits[N / 2] = NAN;
    return logits;
}

static void check_weights(const struct cpu_kernels *k, const float *logits,
                          float temperature)
{
    float *exps = random_elems(DTYPE_F32, N, 2);
    k->sample_row_exp(exps, logits, N, best, temperature);
    for (int j = 0; j < N; j++) {
        uint64_t got = exps[j] >= 1 ? (uint64_t)exps[j] : 0;
        assert_true(got == sample_weight(logits[j], best, temperature));
    }
    free(exps);
}

static void test_weights(void **state)
{
    (void)state;
    const float temperatures[] = {0.01f, 0.7f, 1, 3, INFINITY};
    float *logits = logits_make();
    for (int i = 0; i < ISA_COUNT; i++) {
        struct lab l = lab_cpu(isa_names[i], 1);
        for (size_t t = 0; l.device != NULL && t < N_CASES(temperatures); t++)
            check_weights(cpu_kernels_of(l.stream), logits, temperatures[t]);
        lab_close(&l);
    }
    free(logits);
}

static void test_largest(void **state)
{
    (void)state;
    float *logits = logits_make();
    for (int i = 0; i < ISA_COUNT; i++) {
        struct lab l = lab_cpu(isa_names[i], 1);
        if (l.device == NULL)
            continue;
        const struct cpu_kernels *k = cpu_kernels_of(l.stream);
        assert_true(k->max_row(logits, N) == best);
        /* all logits are negative, so unused vector lanes with zeros must not count */
        for (int n = 2; n < 40; n++)
            assert_true(k->max_row(logits, n) == logits[n - 1]);
        assert_true(k->max_row(logits, 1) == -INFINITY);
        assert_true(k->max_row(logits + N / 2, 1) == -INFINITY);
        lab_close(&l);
    }
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
