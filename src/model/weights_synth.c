/* weights_synth.c - random weights that are the same on every machine.
 *
 * Element i of a tensor is a pure function of the tensor's name and i, so that any thread can make
 * it, in any order, in memory or for a file.  One 64-bit mix gives two elements; each is the sum of
 * two 16-bit uniform numbers (a triangular distribution: close enough to a bell, at a tenth of the
 * cost of a normal one).  An element takes integer arithmetic, one f32 product and one f32 sum.
 *
 * Matrices have a standard deviation of 1/sqrt(columns), so that every projection keeps the size of
 * its input and models of any depth stay finite.  Norm weights lie near one, biases near zero. */
#include "model/weights_source.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/minmax.h"
#include "base/rng.h"

#define GOLDEN 0x9e3779b97f4a7c15u

/* Standard deviation of the sum of two uniform numbers in [0, 65535]: 65536 / sqrt(6). */
#define TRIANGLE_STD 26754.98f

enum { BATCH = 1024 };

struct generator {
    uint64_t seed;
    float mean, scale;
};

static struct generator generator_of(const struct tensor_spec *t, bool norm_plus_one)
{
    struct generator g = {.seed = rng_mix(checksum64(t->name, strlen(t->name)))};
    double std = 0.02;
    if (t->kind == TENSOR_MATRIX)
        std = 1.0 / sqrt((double)t->cols);
    if (t->kind == TENSOR_NORM || t->kind == TENSOR_FACTOR) {
        std = 0.1;
        g.mean = norm_plus_one && t->kind == TENSOR_NORM ? 0.0f : 1.0f;
    }
    if (t->kind == TENSOR_RATE) { /* states forget a percent of themselves with a token */
        std = 1;
        g.mean = -4;
    }
    g.scale = (float)(std / TRIANGLE_STD);
    return g;
}

static float element_of(const struct generator *g, uint32_t bits)
{
    int32_t v = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16) - 65535;
    return g->mean + g->scale * (float)v;
}

/* Makes out[0..n) = elements [first, first + n) of the tensor. */
static void make_elements(const struct generator *g, uint64_t first, size_t n, float *out)
{
    size_t i = 0;
    if (n > 0 && first % 2 != 0)
        out[i++] = element_of(g, (uint32_t)(rng_mix(g->seed + first / 2 * GOLDEN) >> 32));
    for (uint64_t pair = (first + i) / 2; i + 2 <= n; i += 2, pair++) {
        uint64_t bits = rng_mix(g->seed + pair * GOLDEN);
        out[i] = element_of(g, (uint32_t)bits);
        out[i + 1] = element_of(g, (uint32_t)(bits >> 32));
    }
    if (i < n)
        out[i] = element_of(g, (uint32_t)rng_mix(g->seed + (first + i) / 2 * GOLDEN));
}

static void store(void *dst, size_t at, enum dtype dtype, const float *src, size_t n)
{
    if (dtype == DTYPE_F32) {
        memcpy((float *)dst + at, src, n * sizeof *src);
    } else if (dtype == DTYPE_BF16) {
        floats_narrow((uint16_t *)dst + at, src, n);
    } else {
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)dst)[at + i] = f32_to_f16(src[i]);
    }
}

void synth_fill(const struct tensor_spec *t, enum dtype dtype, bool norm_plus_one,
                int64_t row, int64_t n_rows, void *dst)
{
    CHECK(row >= 0 && n_rows >= 0 && row + n_rows <= t->rows);
    struct generator g = generator_of(t, norm_plus_one);
    uint64_t first = (uint64_t)row * (uint64_t)t->cols;
    size_t n = (size_t)n_rows * (size_t)t->cols;
    float batch[BATCH];
    for (size_t at = 0; at < n; at += BATCH) {
        size_t k = MIN(n - at, BATCH);
        make_elements(&g, first + at, k, batch);
        store(dst, at, dtype, batch, k);
    }
}
