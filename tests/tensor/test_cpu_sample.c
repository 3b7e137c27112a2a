/* test_cpu_sample.c - every instruction set computes the weights of logits, rounded down, as
 * sampling.h defines them. */
#include "rig.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

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

TEST(test_weights)
{
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

TEST(test_largest)
{
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

struct fenced {
    uint8_t *base;
    size_t bytes;
    float *end; /* access to the bytes behind it ends the process */
};

static struct fenced fenced_make(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct fenced f = {.bytes = 2 * page};
    f.base = mmap(NULL, f.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                  0);
    assert_true(f.base != MAP_FAILED);
    assert_int_equal(mprotect(f.base + page, page, PROT_NONE), 0);
    f.end = (float *)(void *)(f.base + page);
    return f;
}

/* No byte outside of a row is read or written, whatever its length. */
TEST(test_rows_end_where_they_end)
{
    struct fenced in = fenced_make(), to = fenced_make();
    for (int i = 0; i < ISA_COUNT; i++) {
        struct lab l = lab_cpu(isa_names[i], 1);
        if (l.device == NULL)
            continue;
        const struct cpu_kernels *k = cpu_kernels_of(l.stream);
        for (int n = 1; n < 50; n++) {
            float *x = in.end - n, *out = to.end - n;
            for (int j = 0; j < n; j++)
                x[j] = best - (float)(n - 1 - j);
            out[-1] = 77;
            assert_true(k->max_row(x, n) == best);
            k->sample_row_exp(out, x, n, best, 1);
            for (int j = 0; j < n; j++)
                assert_true((uint64_t)out[j] == sample_weight(x[j], best, 1));
            assert_true(out[-1] == 77);
        }
        lab_close(&l);
    }
    munmap(in.base, in.bytes);
    munmap(to.base, to.bytes);
}
