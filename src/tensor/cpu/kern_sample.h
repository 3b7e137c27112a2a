/* kern_sample.h - computes the weight of every logit of a row, 16 at a time. */
#ifndef TENSOR_KERN_SAMPLE_H
#define TENSOR_KERN_SAMPLE_H

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
