/* test_numerics_emulated.c - bits that the CUDA backend's own kernels compute change only together
 * with its version.
 *
 * In "fast" mode a real device computes large products with cuBLAS.  Here plain loops of the
 * emulation compute them, so the digests watch everything else: products of few rows, attention,
 * norms and rotations. */
#include <stdlib.h>

#include "tests/unit.h"
#include "tests/restore/numerics.h"

#define FAMILY(name) "tests/model/golden/families/" name

/* Emulated threads are slow, so there are only two families, with and without a window. */
static const struct numerics_run exact_runs[] = {
    {FAMILY("qwen2-window"), "bf16", "checkpoint", 0},
    {FAMILY("falcon-40b"), "f32", "checkpoint", 0},
    {0},
};

/* Heads of 64 dimensions, for which "fixed" has its own kernels. */
static const struct numerics_run fixed_runs[] = {
    {"models/demo", "bf16", "checkpoint", 320},
    {0},
};

/* Heads of 64 dimensions, and smaller ones with a window. */
static const struct numerics_run fast_runs[] = {
    {"models/demo", "bf16", "checkpoint", 320},
    {FAMILY("qwen2-window"), "f32", "checkpoint", 0},
    {0},
};

static void check(const char *math, const struct numerics_run *runs, const char *golden)
{
    char *now = numerics_table("cuda", &(struct device_opts){.cuda_math = math}, runs);
    numerics_check(golden, now, "CUDA_NUMERICS_VERSION (cuda/cuda.h)");
    free(now);
}

TEST(exact_has_its_golden_bits)
{
    check("exact", exact_runs, "cuda-exact");
}

TEST(fixed_has_its_golden_bits)
{
    check("fixed", fixed_runs, "cuda-fixed");
}

TEST(fast_has_its_golden_bits)
{
    check("fast", fast_runs, "cuda-fast");
}
