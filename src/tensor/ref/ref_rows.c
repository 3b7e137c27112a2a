/* ref_rows.c - the operations that work row by row: embedding, norms, conversions, activations. */
#include "tensor/ref/ref.h"

#include <math.h>

#include "tensor/q4_blocks.h"

float ref_lanes_sum(float lanes[REF_LANES])
{
    for (int half = REF_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

/* Returns an element of a table, which may consist of blocks. */
static float table_get(struct mat table, int64_t row, int64_t col)
{
    if (!dtype_has_blocks(table.dtype))
        return mat_get(table, row, col);
    struct q4_part p = q4_part_read(table.dtype, q4_table_row(table, row), col / Q4_BLOCK);
    return q4_part_value(table.dtype, &p, (int)(col % Q4_BLOCK));
}

int ref_embed(struct stream *s, struct mat out, struct mat table, const int32_t *ids,
              float scale)
{
    check_table(table);
    CHECK(out.cols == table.cols);
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < table.rows);
        for (int64_t j = 0; j < out.cols; j++)
            mat_set(out, i, j, table_get(table, ids[i], j) * scale);
    }
    return stream_enter(s);
}

static float square_sum(struct mat x, int64_t row, int64_t col0, int64_t n, float mean)
{
    float lanes[REF_LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        float d = mat_get(x, row, col0 + i) - mean;
        lanes[i % REF_LANES] = fmaf(d, d, lanes[i % REF_LANES]);
    }
    return ref_lanes_sum(lanes);
}

static float plain_sum(struct mat x, int64_t row)
{
    float lanes[REF_LANES] = {0};
    for (int64_t i = 0; i < x.cols; i++)
        lanes[i % REF_LANES] = lanes[i % REF_LANES] + mat_get(x, row, i);
    return ref_lanes_sum(lanes);
}

static float norm_scale(float sum, int64_t n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

int ref_rmsnorm(struct stream *s, struct mat out, struct mat x, const float *w, float eps)
{
    check_same_shape(out, x);
    for (int64_t i = 0; i < x.rows; i++) {
        float scale = norm_scale(square_sum(x, i, 0, x.cols, 0), x.cols, eps);
        for (int64_t j = 0; j < x.cols; j++)
            mat_set(out, i, j, mat_get(x, i, j) * scale * w[j]);
    }
    return stream_enter(s);
}

int ref_layernorm(struct stream *s, struct mat out, struct mat x, const float *w,
                  const float *b, float eps)
{
    check_same_shape(out, x);
    for (int64_t i = 0; i < x.rows; i++) {
        float mean = plain_sum(x, i) / (float)x.cols;
        float scale = norm_scale(square_sum(x, i, 0, x.cols, mean), x.cols, eps);
        for (int64_t j = 0; j < x.cols; j++)
            mat_set(out, i, j,
                    (mat_get(x, i, j) - mean) * scale * w[j] + (b != NULL ? b[j] : 0));
    }
    return stream_enter(s);
}

int ref_head_norm(struct stream *s, struct mat x, int d_head, const float *w, float eps)
{
    check_f32(x);
    CHECK(x.cols % d_head == 0);
    for (int64_t i = 0; i < x.rows; i++) {
        for (int64_t h = 0; h < x.cols; h += d_head) {
            float scale = norm_scale(square_sum(x, i, h, d_head, 0), d_head, eps);
            for (int64_t j = 0; j < d_head; j++)
                mat_set(x, i, h + j, mat_get(x, i, h + j) * scale * (w != NULL ? w[j] : 1));
        }
    }
    return stream_enter(s);
}

int ref_convert(struct stream *s, struct mat out, struct mat x)
{
    check_same_shape(out, x);
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.cols; j++)
            mat_set(out, i, j, mat_get(x, i, j));
    return stream_enter(s);
}

int ref_add(struct stream *s, struct mat out, struct mat a, struct mat b)
{
    check_same_shape(out, a);
    check_same_shape(out, b);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.cols; j++)
            mat_set(out, i, j, mat_get(a, i, j) + mat_get(b, i, j));
    return stream_enter(s);
}

static float activate(float x, enum activation act)
{
    switch (act) {
    case ACTIVATION_SILU:
        return x / (1.0f + expf(-x));
    case ACTIVATION_RELU:
        return x > 0 ? x : 0;
    case ACTIVATION_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case ACTIVATION_TANH:
        return tanhf(x);
    case ACTIVATION_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case ACTIVATION_NONE:
        return x;
    case ACTIVATION_SWIGLU_CLAMPED:
        x = x > 7 ? 7 : x;
        return x / (1.0f + expf(-1.702f * x));
    }
    CHECK(!"activation");
    return 0;
}

/* Returns the factor of the activated gate. */
static float factor_of(float up, enum activation act)
{
    if (act != ACTIVATION_SWIGLU_CLAMPED)
        return up;
    return (up > 7 ? 7 : up < -7 ? -7 : up) + 1.0f;
}

int ref_act_mul(struct stream *s, struct mat out, struct mat gate_up, enum activation act)
{
    check_act_mul(out, gate_up);
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j < out.cols; j++)
            mat_set(out, i, j,
                    activate(mat_get(gate_up, i, j), act) *
                        factor_of(mat_get(gate_up, i, out.cols + j), act));
    return stream_enter(s);
}

int ref_act(struct stream *s, struct mat x, enum activation act)
{
    check_f32(x);
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.cols; j++)
            mat_set(x, i, j, activate(mat_get(x, i, j), act));
    return stream_enter(s);
}

int ref_all_finite(struct stream *s, struct mat x, bool *finite)
{
    check_mat(x);
    *finite = true;
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.cols; j++)
            if (!isfinite(mat_get(x, i, j)))
                *finite = false;
    return stream_enter(s);
}
