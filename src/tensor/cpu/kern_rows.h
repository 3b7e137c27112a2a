/* kern_rows.h - the loops over one row of n elements. */
#ifndef TENSOR_KERN_ROWS_H
#define TENSOR_KERN_ROWS_H

#include <math.h>

/* Runs the statement with `t` as a constant, so that each type gets a loop of its own. */
#define FOR_DTYPE(type, t, ...)                                                            \
    do {                                                                                   \
        if ((type) == DTYPE_BF16) {                                                        \
            enum { t = DTYPE_BF16 };                                                       \
            __VA_ARGS__;                                                                   \
        } else if ((type) == DTYPE_F16) {                                                  \
            enum { t = DTYPE_F16 };                                                        \
            __VA_ARGS__;                                                                   \
        } else {                                                                           \
            enum { t = DTYPE_F32 };                                                        \
            __VA_ARGS__;                                                                   \
        }                                                                                  \
    } while (0)

/* --- norms ---------------------------------------------------------------------------------- */

/* Returns the sum of the squared distances from `mean`. Lanes without an element are `mean`, so
 * that their distance is zero. */
INLINE float square_sum(const void *x, enum dtype t, int64_t n, float mean)
{
    v16 sum = v_zero(), m = v_set1(mean);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 d = v_sub(v_load_t(x, t, i), m);
        sum = v_fma(d, d, sum);
    }
    if (i < n) {
        v16 d = v_sub(v_load_part(x, t, i, n - i), m);
        d = v_first((int)(n - i), d, v_zero());
        sum = v_fma(d, d, sum);
    }
    return v_sum(sum);
}

INLINE float plain_sum(const void *x, enum dtype t, int64_t n)
{
    v16 sum = v_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        sum = v_add(sum, v_load_t(x, t, i));
    if (i < n)
        sum = v_add(sum, v_load_part(x, t, i, n - i));
    return v_sum(sum);
}

static float norm_scale(float sum, int64_t n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

INLINE void rms_row_t(float *out, const void *x, enum dtype t, const float *w, int64_t n,
                      float eps)
{
    v16 scale = v_set1(norm_scale(square_sum(x, t, n, 0), n, eps));
    for (int64_t i = 0; i < n; i += 16) {
        v16 y = v_mul(v_load_upto(x, t, i, n - i), scale);
        if (w != NULL)
            y = v_mul(y, v_load_upto(w, DTYPE_F32, i, n - i));
        v_store_upto(out, DTYPE_F32, i, n - i, y);
    }
}

static void rms_row(float *out, const void *x, enum dtype type, const float *w, int64_t n,
                    float eps)
{
    FOR_DTYPE(type, t, rms_row_t(out, x, (enum dtype)t, w, n, eps));
}

INLINE void layer_row_t(float *out, const void *x, enum dtype t, const float *w,
                        const float *b, int64_t n, float eps)
{
    float mean = plain_sum(x, t, n) / (float)n;
    v16 scale = v_set1(norm_scale(square_sum(x, t, n, mean), n, eps)), m = v_set1(mean);
    for (int64_t i = 0; i < n; i += 16) {
        v16 y = v_mul(v_sub(v_load_upto(x, t, i, n - i), m), scale);
        y = v_mul(y, v_load_upto(w, DTYPE_F32, i, n - i));
        if (b != NULL)
            y = v_add(y, v_load_upto(b, DTYPE_F32, i, n - i));
        v_store_upto(out, DTYPE_F32, i, n - i, y);
    }
}

static void layer_row(float *out, const void *x, enum dtype type, const float *w,
                      const float *b, int64_t n, float eps)
{
    FOR_DTYPE(type, t, layer_row_t(out, x, (enum dtype)t, w, b, n, eps));
}

/* --- conversions and sums ------------------------------------------------------------------- */

INLINE void scale_row_t(void *out, enum dtype to, const void *x, enum dtype from, int64_t n,
                        float scale)
{
    for (int64_t i = 0; i < n; i += 16)
        v_store_upto(out, to, i, n - i,
                     v_mul(v_load_upto(x, from, i, n - i), v_set1(scale)));
}

static void scale_row(void *out, enum dtype to_type, const void *x, enum dtype from_type,
                      int64_t n, float scale)
{
    FOR_DTYPE(to_type, to,
              FOR_DTYPE(from_type, from,
                        scale_row_t(out, (enum dtype)to, x, (enum dtype)from, n, scale)));
}

INLINE void add_row_t(void *out, enum dtype to, const void *a, enum dtype from,
                      const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        v_store_upto(
            out, to, i, n - i,
            v_add(v_load_upto(a, from, i, n - i), v_load_upto(b, DTYPE_F32, i, n - i)));
}

static void add_row(void *out, enum dtype to_type, const void *a, enum dtype from_type,
                    const float *b, int64_t n)
{
    FOR_DTYPE(to_type, to,
              FOR_DTYPE(from_type, from,
                        add_row_t(out, (enum dtype)to, a, (enum dtype)from, b, n)));
}

/* --- activations ---------------------------------------------------------------------------- */

INLINE v16 v_activate(v16 x, enum activation act)
{
    if (act == ACTIVATION_SILU)
        return v_silu(x);
    if (act == ACTIVATION_RELU)
        return v_max(x, v_zero());
    if (act == ACTIVATION_TANH)
        return v_tanh(x);
    if (act == ACTIVATION_SIGMOID)
        return v_sigmoid(x);
    if (act == ACTIVATION_NONE)
        return x;
    return act == ACTIVATION_GELU ? v_gelu(x) : v_gelu_tanh(x);
}

INLINE void act_row_a(float *out, const float *gate, const float *up, int64_t n,
                      enum activation act)
{
    for (int64_t i = 0; i < n; i += 16) {
        v16 y = v_activate(v_load_upto(gate, DTYPE_F32, i, n - i), act);
        if (up != NULL)
            y = v_mul(y, v_load_upto(up, DTYPE_F32, i, n - i));
        v_store_upto(out, DTYPE_F32, i, n - i, y);
    }
}

static void swiglu_row(float *out, const float *gate, const float *up, int64_t n)
{
    const v16 one = v_set1(1.0f), most = v_set1(7.0f), least = v_set1(-7.0f);
    for (int64_t i = 0; i < n; i += 16) {
        v16 g = v_min(most, v_load_upto(gate, DTYPE_F32, i, n - i));
        v16 u = v_max(least, v_min(most, v_load_upto(up, DTYPE_F32, i, n - i)));
        g = v_div(g, v_add(one, v_exp(v_mul(g, v_set1(-1.702f)))));
        v_store_upto(out, DTYPE_F32, i, n - i, v_mul(g, v_add(u, one)));
    }
}

static void act_row(float *out, const float *gate, const float *up, int64_t n,
                    enum activation act)
{
    if (act == ACTIVATION_SILU)
        act_row_a(out, gate, up, n, ACTIVATION_SILU);
    else if (act == ACTIVATION_RELU)
        act_row_a(out, gate, up, n, ACTIVATION_RELU);
    else if (act == ACTIVATION_GELU)
        act_row_a(out, gate, up, n, ACTIVATION_GELU);
    else if (act == ACTIVATION_TANH)
        act_row_a(out, gate, up, n, ACTIVATION_TANH);
    else if (act == ACTIVATION_SIGMOID)
        act_row_a(out, gate, up, n, ACTIVATION_SIGMOID);
    else if (act == ACTIVATION_NONE)
        act_row_a(out, gate, up, n, ACTIVATION_NONE);
    else if (act == ACTIVATION_SWIGLU_CLAMPED)
        swiglu_row(out, gate, up, n);
    else
        act_row_a(out, gate, up, n, ACTIVATION_GELU_TANH);
}

/* Returns whether all elements are finite. x - x is 0 for finite x, else NaN, and a NaN stays in
 * the sum. */
INLINE bool finite_row_t(const void *x, enum dtype t, int64_t n)
{
    v16 sum = v_zero();
    for (int64_t i = 0; i < n; i += 16) {
        v16 y = v_load_upto(x, t, i, n - i);
        sum = v_add(sum, v_sub(y, y));
    }
    return v_sum(sum) == 0;
}

static bool finite_row(const void *x, enum dtype type, int64_t n)
{
    FOR_DTYPE(type, t, return finite_row_t(x, (enum dtype)t, n));
}

/* --- rotary positions ----------------------------------------------------------------------- */

static void rope_head(float *x, const float *cos, const float *sin, int half)
{
    for (int i = 0; i < half; i += 16) {
        int n = half - i;
        v16 c = v_load_upto(cos, DTYPE_F32, i, n), s = v_load_upto(sin, DTYPE_F32, i, n);
        v16 x1 = v_load_upto(x, DTYPE_F32, i, n),
            x2 = v_load_upto(x, DTYPE_F32, i + half, n);
        v_store_upto(x, DTYPE_F32, i, n, v_sub(v_mul(x1, c), v_mul(x2, s)));
        v_store_upto(x, DTYPE_F32, i + half, n, v_add(v_mul(x2, c), v_mul(x1, s)));
    }
}

/* --- weights of logits ------------------------------------------------------------------------ */

/* Returns the largest value that is not a NaN; -inf if there is none. */
static float max_row(const float *x, int64_t n)
{
    v16 top = v_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += 16) {
        v16 y = v_load_upto(x, DTYPE_F32, i, n - i);
        top = v_max(i + 16 <= n ? y : v_first((int)(n - i), y, top), top);
    }
    return v_max_lane(top);
}

/* Takes the steps of sample_exp (sampling.h), up to its rounding down. */
INLINE v16 v_sample_exp(v16 x)
{
    const v16 to_whole = v_set1(12582912.0f);
    v16 n = v_sub(v_add(v_mul(x, v_set1(1.44269504f)), to_whole), to_whole);
    v16 r = v_sub(x, v_mul(n, v_set1(0.693359375f)));
    r = v_add(r, v_mul(n, v_set1(2.12194440e-4f)));
    v16 p = v_set1(1.9875691500e-4f);
    p = v_add(v_mul(p, r), v_set1(1.3981999507e-3f));
    p = v_add(v_mul(p, r), v_set1(8.3334519073e-3f));
    p = v_add(v_mul(p, r), v_set1(4.1665795894e-2f));
    p = v_add(v_mul(p, r), v_set1(1.6666665459e-1f));
    p = v_add(v_mul(p, r), v_set1(5.0000001201e-1f));
    p = v_add(v_mul(p, v_mul(r, r)), r);
    p = v_scale2(v_add(p, v_set1(1.0f)), v_add(n, v_set1(40.0f)));
    return v_zero_below(x, v_set1(-28.0f), p);
}

static void sample_row_exp(float *out, const float *logits, int64_t n, float best,
                           float temperature)
{
    for (int64_t i = 0; i < n; i += 16) {
        v16 x = v_sub(v_load_upto(logits, DTYPE_F32, i, n - i), v_set1(best));
        x = v_div(x, v_set1(temperature));
        v_store_upto(out, DTYPE_F32, i, n - i, v_sample_exp(x));
    }
}

#endif
