/* kern_math.h - loads and stores by element type, and the exponential. Only isa_*.c and other files
 * of one instruction set include it, after a vec_*.h. */
#ifndef TENSOR_KERN_MATH_H
#define TENSOR_KERN_MATH_H

#define INLINE static inline __attribute__((always_inline))

/* Prefetches a line of weights for few rows; into_l2: the result of cpu_fetches_into_l2. */
INLINE void fetch_line(bool into_l2, const void *p)
{
    if (into_l2)
        __builtin_prefetch(p, 0, 2);
    else
        __builtin_prefetch(p, 0, 3);
}

/* `t` is a constant wherever these functions are inlined. */
INLINE v16 v_load_t(const void *p, enum dtype t, int64_t i)
{
    if (t == DTYPE_F32)
        return v_load((const float *)p + i);
    if (t == DTYPE_F16)
        return v_load_f16((const uint16_t *)p + i);
    return v_load_bf16((const uint16_t *)p + i);
}

/* Loads 16 elements into lanes, in the order that costs the fewest instructions; v_reorder converts
 * that order to the natural one and back. */
INLINE v16 v_load_split(const void *p, enum dtype t, int64_t i)
{
    return t == DTYPE_BF16 ? v_load_bf16_split((const uint16_t *)p + i) : v_load_t(p, t, i);
}

INLINE v16 v_reorder(v16 a, enum dtype t)
{
    return t == DTYPE_BF16 ? v_reorder_bf16(a) : a;
}

INLINE void v_store_t(void *p, enum dtype t, int64_t i, v16 a)
{
    if (t == DTYPE_F32)
        v_store((float *)p + i, a);
    else if (t == DTYPE_F16)
        v_store_f16((uint16_t *)p + i, a);
    else
        v_store_bf16((uint16_t *)p + i, a);
}

/* Load or store only the first n < 16 elements from i on. Loading sets the other lanes to zero. */
INLINE v16 v_load_part(const void *p, enum dtype t, int64_t i, int64_t n)
{
    char lanes[64] = {0};
    memcpy(lanes, (const char *)p + (size_t)i * dtype_bytes(t), (size_t)n * dtype_bytes(t));
    return v_load_t(lanes, t, 0);
}

INLINE void v_store_part(void *p, enum dtype t, int64_t i, int64_t n, v16 a)
{
    char lanes[64];
    v_store_t(lanes, t, 0, a);
    memcpy((char *)p + (size_t)i * dtype_bytes(t), lanes, (size_t)n * dtype_bytes(t));
}

/* Load or store up to 16 elements; n may be larger than 16. */
INLINE v16 v_load_upto(const void *p, enum dtype t, int64_t i, int64_t n)
{
    return n >= 16 ? v_load_t(p, t, i) : v_load_part(p, t, i, n);
}
INLINE void v_store_upto(void *p, enum dtype t, int64_t i, int64_t n, v16 a)
{
    if (n >= 16)
        v_store_t(p, t, i, a);
    else
        v_store_part(p, t, i, n, a);
}

/* Returns a * 2^n for a whole n from -126 to 127, if the result is normal; NaN stays NaN. The low
 * bits of the sum are the exponent's bits of 2^n. */
INLINE v16 v_scale2(v16 a, v16 n)
{
    return v_mul(a, v_shift23(v_add(n, v_set1(0x1.8p23f + 127))));
}

/* Returns exp(x) within 2 ulp for -87 <= x <= 88; 0 below, exp(88) above; NaN stays NaN. x = n ln 2
 * + r with |r| <= ln 2 / 2. ln 2 has two parts, the first with so few bits that n times it is
 * exact. exp(r) is a polynomial (Cephes expf). */
INLINE v16 v_exp(v16 x)
{
    v16 low = x;
    x = v_min(v_set1(88.0f), x);
    const v16 to_whole = v_set1(0x1.8p23f);
    v16 n = v_sub(v_add(v_mul(x, v_set1(1.44269504f)), to_whole), to_whole);
    v16 r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    v16 p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), v_add(r, v_set1(1.0f)));
    return v_zero_below(low, v_set1(-87.0f), v_scale2(p, n));
}

/* Returns 2^x for x <= 0 as ops.h has it for weights of bf16 state; NaN stays NaN. Adding an even
 * number whose unit is 1 rounds x to even; the sum's low bits are the exponent's of 2^(n + 1). */
INLINE v16 v_exp2_rough(v16 x)
{
    const v16 even = v_set1(0x1.8p23f + 128);
    v16 n = v_add(x, even), r = v_sub(x, v_sub(n, even)), p = v_set1(EXP2_ROUGH_3 / 2);
    p = v_fma(p, r, v_set1(EXP2_ROUGH_2 / 2));
    p = v_fma(p, r, v_set1(EXP2_ROUGH_1 / 2));
    p = v_fma(p, r, v_set1(0.5f));
    return v_zero_below(x, v_set1(-125.0f), v_mul(p, v_shift23(n)));
}

/* Returns x / (1 + exp(-x)). */
INLINE v16 v_silu(v16 x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

INLINE v16 v_sigmoid(v16 x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

/* Returns log(1 + exp(x)) = max(x, 0) + log(1 + z) with z = exp(-|x|), by the series of
 * log(1 + z) = 2 artanh(z / (2 + z)), whose argument is at most 1/3. */
INLINE v16 v_softplus(v16 x)
{
    v16 most = v_max(x, v_zero()), a = v_max(x, v_sub(v_zero(), x));
    v16 z = v_exp(v_sub(v_zero(), a)), t = v_div(z, v_add(z, v_set1(2.0f)));
    v16 u = v_mul(t, t), p = v_set1(1.0f / 15);
    for (int k = 13; k > 0; k -= 2)
        p = v_fma(p, u, v_set1(1.0f / (float)k));
    return v_fma(v_add(t, t), p, most);
}

/* Returns x Phi(x), with erfc by Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7. */
INLINE v16 v_gelu(v16 x)
{
    v16 z = v_mul(x, v_set1(0.70710678f));
    v16 a = v_max(z, v_sub(v_zero(), z)); /* |z| */
    v16 t = v_div(v_set1(1.0f), v_fma(a, v_set1(0.3275911f), v_set1(1.0f)));
    v16 p = v_set1(1.061405429f);
    p = v_fma(p, t, v_set1(-1.453152027f));
    p = v_fma(p, t, v_set1(1.421413741f));
    p = v_fma(p, t, v_set1(-0.284496736f));
    p = v_fma(p, t, v_set1(0.254829592f));
    v16 tail = v_mul(v_mul(p, t), v_exp(v_sub(v_zero(), v_mul(z, z)))); /* erfc(|z|) */
    v16 twice_phi = v_select_less(x, v_zero(), tail, v_sub(v_set1(2.0f), tail));
    return v_mul(v_mul(x, v_set1(0.5f)), twice_phi);
}

/* Returns tanh x: a polynomial for small x (Cephes tanhf), else by exp(2 |x|). */
INLINE v16 v_tanh(v16 x)
{
    v16 a = v_max(x, v_sub(v_zero(), x)), z = v_mul(x, x); /* a: |x| */
    v16 p = v_set1(-5.70498872745e-3f);
    p = v_fma(p, z, v_set1(2.06390887954e-2f));
    p = v_fma(p, z, v_set1(-5.37397155531e-2f));
    p = v_fma(p, z, v_set1(1.33314422036e-1f));
    p = v_fma(p, z, v_set1(-3.33332819422e-1f));
    p = v_fma(v_mul(p, z), x, x);
    v16 e = v_exp(v_add(a, a));
    v16 large = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    large = v_select_less(x, v_zero(), v_sub(v_zero(), large), large);
    return v_select_less(a, v_set1(0.625f), p, large);
}

/* Returns 0.5 x (1 + tanh u) = x / (1 + exp(-2u)). */
INLINE v16 v_gelu_tanh(v16 x)
{
    v16 cube = v_mul(v_mul(x, x), x);
    v16 u = v_mul(v_fma(cube, v_set1(0.044715f), x), v_set1(0.79788456f));
    v16 e = v_exp(v_mul(u, v_set1(-2.0f)));
    return v_div(x, v_add(v_set1(1.0f), e));
}

#endif
