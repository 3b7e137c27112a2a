/* sampling.h - the arithmetic of ops.sample, the same in every backend: C, and CUDA on the device.
 *
 * A token's *weight* is its probability as a whole number, in units of 2^-40 of the likeliest
 * token's. Sums of weights are exact, so any number of threads may add them in any order, and a GPU
 * and a CPU choose the same token from the same logits.  A weight is computed by single products
 * and sums, none fused: IEEE 754 defines each rounding on every machine.
 *
 * The price: a token less likely than 2^-40 of the best is never chosen, and the other weights are
 * rounded down by up to that much.  Over a vocabulary of 2^18 this is less than a millionth of the
 * best token's weight. */
#ifndef TENSOR_SAMPLING_H
#define TENSOR_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* How the token of one row of logits is chosen. */
struct sample_row {
    float temperature; /* 0 or less: the best token, the lowest id of equals */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    int32_t top_k;     /* 0: off */
    double draw;       /* [0, 1): selects one of the survivors */
};

#define SAMPLE_MAX_COLS (1 << 22) /* sums of weights, 2^40 at most, stay below 2^62 */
#define SAMPLE_NO_TOKEN (-1)      /* result for logits that are all NaN */

#if defined(__CUDACC__) || defined(HCACHE_CUDA_EMULATED) && defined(__cplusplus)
#define SAMPLE_FN        static __device__ __forceinline__
#define SAMPLE_ADD(a, b) __fadd_rn(a, b)
#define SAMPLE_SUB(a, b) __fsub_rn(a, b)
#define SAMPLE_MUL(a, b) __fmul_rn(a, b)
#define SAMPLE_DIV(a, b) __fdiv_rn(a, b)
#else /* compiled with -ffp-contract=off */
#define SAMPLE_FN        static inline
#define SAMPLE_ADD(a, b) ((a) + (b))
#define SAMPLE_SUB(a, b) ((a) - (b))
#define SAMPLE_MUL(a, b) ((a) * (b))
#define SAMPLE_DIV(a, b) ((a) / (b))
#endif

/* Returns exp(x), x <= 0, in units of 2^-40, rounded down; 0 for a NaN.  x = n ln 2 + r with |r| <=
 * ln 2 / 2.  ln 2 has two parts, the first with so few bits that n times it is exact.  exp(r) is a
 * polynomial (Cephes expf). */
SAMPLE_FN uint64_t sample_exp(float x)
{
    const float to_whole = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    uint32_t bits;
    float scale;
    if (!(x > -28.0f))
        return 0;
    float n = SAMPLE_SUB(SAMPLE_ADD(SAMPLE_MUL(x, 1.44269504f), to_whole), to_whole);
    float r = SAMPLE_SUB(x, SAMPLE_MUL(n, 0.693359375f));
    r = SAMPLE_ADD(r, SAMPLE_MUL(n, 2.12194440e-4f));
    float p = 1.9875691500e-4f;
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 1.3981999507e-3f);
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 8.3334519073e-3f);
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 4.1665795894e-2f);
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 1.6666665459e-1f);
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 5.0000001201e-1f);
    p = SAMPLE_ADD(SAMPLE_MUL(p, SAMPLE_MUL(r, r)), r);
    p = SAMPLE_ADD(p, 1.0f);
    bits = (uint32_t)((int32_t)n + 40 + 127) << 23; /* 2^(n + 40) */
    memcpy(&scale, &bits, sizeof scale);
    return (uint64_t)(int64_t)SAMPLE_MUL(p, scale);
}

/* Returns the weight of a logit, given the largest logit. */
SAMPLE_FN uint64_t sample_weight(float logit, float best, float temperature)
{
    return sample_exp(SAMPLE_DIV(SAMPLE_SUB(logit, best), temperature));
}

/* Returns a key that is larger for earlier candidates: by logit, descending, then by id, ascending.
 * 0 for a NaN, which is not a candidate. */
SAMPLE_FN uint64_t sample_key(float logit, int32_t id)
{
    uint32_t bits;
    float x = SAMPLE_ADD(logit, 0.0f); /* makes -0 and 0 equal */
    if (x != x)
        return 0;
    memcpy(&bits, &x, sizeof bits);
    bits = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}
SAMPLE_FN int32_t sample_key_id(uint64_t key)
{
    return key == 0 ? SAMPLE_NO_TOKEN : (int32_t) ~(uint32_t)key;
}
SAMPLE_FN float sample_key_logit(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    float x;
    bits = bits >> 31 != 0 ? bits & 0x7fffffffu : ~bits;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the summed weight that the candidates kept by top-p must reach; total: the summed weight
 * of all candidates. */
SAMPLE_FN uint64_t sample_want(float top_p, uint64_t total)
{
    double want = (double)top_p * (double)total;
    uint64_t w = (uint64_t)want;
    w += (double)w < want;
    return w < 1 ? 1 : w < total ? w : total;
}

/* Returns the least weight that min-p keeps. */
SAMPLE_FN uint64_t sample_least(float min_p)
{
    uint64_t w = (uint64_t)SAMPLE_MUL(min_p, 0x1p40f);
    return w < 1 ? 1 : w;
}

/* Returns the target. ops.sample chooses the survivor at which the running sum of the survivors'
 * weights first exceeds the target. */
SAMPLE_FN uint64_t sample_target(double draw, uint64_t total)
{
    uint64_t w = (uint64_t)(draw * (double)total);
    return w < total ? w : total - 1;
}

#endif
