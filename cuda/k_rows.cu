/* k_rows.cu - operations that work row by row: embedding, norms, conversions, activations.
 *
 * All are bound by memory: threads go through rows in pieces (device.cuh).  A row's result depends
 * on the row alone. */
#include "cuda/device.cuh"
#include "cuda/launch.h"

enum { THREADS = 256 };

#define ROW_OF(m, T) ((T *)(m).data + (int64_t)blockIdx.x * (m).ld)

static bool is_wide(gpu_mat m)
{
    return is_wide(m.data, m.ld, m.type);
}

/* --- norms: a block takes a row ---------------------------------------------------------------- */

/* How a row is normalised: by a layer norm, which first subtracts the mean, if b is not NULL; else
 * by an RMS norm. */
struct norm_by {
    const float *w, *b;
    float eps;
};

#define EACH_PIECE(j, cols)                                                                \
    for (int j = (int)threadIdx.x * PIECE; j < (cols); j += THREADS * PIECE)

template <typename TO, typename TX>
static __device__ __forceinline__ void norm_row(TO *out, const TX *x, int cols, norm_by by,
                                                bool wide)
{
    float v[PIECE], w[PIECE], b[PIECE], sum = 0, squares = 0, mean = 0;
    if (by.b != NULL) {
        EACH_PIECE(j, cols)
        {
            take_piece(v, x + j, cols - j, wide);
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                sum += v[e];
        }
        mean = block_sum<THREADS>(sum) / (float)cols;
    }
    EACH_PIECE(j, cols)
    {
        take_piece(v, x + j, cols - j, wide);
#pragma unroll
        for (int e = 0; e < PIECE; e++) {
            float d = j + e < cols ? v[e] - mean : 0.0f;
            squares = fmaf(d, d, squares);
        }
    }
    squares = block_sum<THREADS>(squares);
    float scale = 1.0f / sqrtf(squares / (float)cols + by.eps);
    EACH_PIECE(j, cols)
    {
        take_piece(v, x + j, cols - j, wide);
        take_piece(w, by.w + j, cols - j, wide);
#pragma unroll
        for (int e = 0; e < PIECE; e++)
            v[e] = (v[e] - mean) * scale * w[e];
        if (by.b != NULL) {
            take_piece(b, by.b + j, cols - j, wide);
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                v[e] += b[e];
        }
        put_piece(out + j, v, cols - j, wide);
    }
}

template <typename TO, typename TX>
static __global__ void norm_rows(gpu_mat out, gpu_mat x, norm_by by, bool wide)
{
    await_stream();
    norm_row(ROW_OF(out, TO), ROW_OF(x, const TX), x.cols, by, wide);
}

static bool norm_is_wide(gpu_mat out, gpu_mat x, norm_by by)
{
    return is_wide(out) && is_wide(x) && is_wide(by.w, 0, 0) && is_wide(by.b, 0, 0);
}

static void norm_launch(cudaStream_t s, gpu_mat out, gpu_mat x, norm_by by)
{
    bool wide = norm_is_wide(out, x, by);
    WITH_TYPE(out.type, TO, WITH_TYPE(x.type, TX, {
                  auto kernel = norm_rows<TO, TX>;
                  LAUNCH(kernel, out.rows, THREADS, 0, s, out, x, by, wide);
              }))
}

void gpu_rmsnorm(cudaStream_t s, struct gpu_mat out, struct gpu_mat x, const float *w,
                 float eps)
{
    norm_launch(s, out, x, {w, NULL, eps});
}

void gpu_layernorm(cudaStream_t s, struct gpu_mat out, struct gpu_mat x, const float *w,
                   const float *b, float eps)
{
    norm_launch(s, out, x, {w, b, eps});
}

template <typename TO, typename TX, typename TY>
static __global__ void add_norm_rows(gpu_mat out, gpu_mat sum, gpu_mat x, gpu_mat y,
                                     norm_by by, bool wide)
{
    await_stream();
    float *to = ROW_OF(sum, float);
    EACH_PIECE(j, x.cols)
    {
        float v[PIECE], u[PIECE];
        take_piece(v, ROW_OF(x, const TX) + j, x.cols - j, wide);
        take_piece(u, ROW_OF(y, const TY) + j, x.cols - j, wide);
#pragma unroll
        for (int e = 0; e < PIECE; e++)
            v[e] += u[e];
        put_piece(to + j, v, x.cols - j, wide);
    }
    norm_row(ROW_OF(out, TO), to, x.cols, by,
             wide); /* needs no barrier: a thread reads only what it has written itself */
}

void gpu_add_norm(cudaStream_t s, struct gpu_mat out, struct gpu_mat sum, struct gpu_mat x,
                  struct gpu_mat y, const float *w, const float *b, float eps)
{
    norm_by by = {w, b, eps};
    bool wide = norm_is_wide(out, sum, by) && is_wide(x) && is_wide(y);
    WITH_TYPE(out.type, TO, WITH_TYPE(x.type, TX, WITH_TYPE(y.type, TY, {
                                          auto kernel = add_norm_rows<TO, TX, TY>;
                                          LAUNCH(kernel, out.rows, THREADS, 0, s, out, sum,
                                                 x, y, by, wide);
                                      })))
}

/* One warp per head. */
template <typename T>
static __global__ void head_norm_rows(gpu_mat x, int d_head, const float *w, float eps)
{
    await_stream();
    int head = (int)(threadIdx.x / WARP), lane = (int)(threadIdx.x % WARP);
    int n_heads = x.cols / d_head;
    for (; head < n_heads; head += THREADS / WARP) {
        T *v = ROW_OF(x, T) + head * d_head;
        float sum = 0;
        for (int j = lane; j < d_head; j += WARP) {
            float f = to_f32(v[j]);
            sum = fmaf(f, f, sum);
        }
        float scale = 1.0f / sqrtf(warp_sum(sum) / (float)d_head + eps);
        for (int j = lane; j < d_head; j += WARP)
            from_f32(v[j], to_f32(v[j]) * scale * w[j]);
    }
}

void gpu_head_norm(cudaStream_t s, struct gpu_mat x, int d_head, const float *w, float eps)
{
    WITH_TYPE(x.type, T, {
        auto kernel = head_norm_rows<T>;
        LAUNCH(kernel, x.rows, THREADS, 0, s, x, d_head, w, eps);
    })
}

/* --- element by element: a thread takes a piece -------------------------------------------------- */

/* blockIdx.y divides long rows, so that one row of a decode still fills the GPU. */
#define MY_PIECE ((int)(blockIdx.y * THREADS + threadIdx.x) * PIECE)

static dim3 piece_grid(gpu_mat m)
{
    return dim3((unsigned)m.rows, blocks_for(m.cols, THREADS * PIECE));
}

template <typename TO, typename TX>
static __global__ void embed_rows(gpu_mat out, gpu_mat table, const int32_t *ids,
                                  float scale, bool wide)
{
    await_stream();
    const TX *x = (const TX *)table.data + (int64_t)ids[blockIdx.x] * table.ld;
    int j = MY_PIECE, n = out.cols - j;
    float v[PIECE];
    take_piece(v, x + j, n, wide);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        v[e] *= scale;
    put_piece(ROW_OF(out, TO) + j, v, n, wide);
}

void gpu_embed(cudaStream_t s, struct gpu_mat out, struct gpu_mat table, const int32_t *ids,
               float scale)
{
    bool wide = is_wide(out) && is_wide(table);
    WITH_TYPE(out.type, TO, WITH_TYPE(table.type, TX, {
                  auto kernel = embed_rows<TO, TX>;
                  LAUNCH(kernel, piece_grid(out), THREADS, 0, s, out, table, ids, scale,
                         wide);
              }))
}

template <typename TO, typename TX>
static __global__ void convert_rows(gpu_mat out, gpu_mat x, bool wide)
{
    await_stream();
    int j = MY_PIECE, n = out.cols - j;
    float v[PIECE];
    take_piece(v, ROW_OF(x, const TX) + j, n, wide);
    put_piece(ROW_OF(out, TO) + j, v, n, wide);
}

void gpu_convert(cudaStream_t s, struct gpu_mat out, struct gpu_mat x)
{
    bool wide = is_wide(out) && is_wide(x);
    WITH_TYPE(out.type, TO, WITH_TYPE(x.type, TX, {
                  auto kernel = convert_rows<TO, TX>;
                  LAUNCH(kernel, piece_grid(out), THREADS, 0, s, out, x, wide);
              }))
}

template <typename TO, typename TA, typename TB>
static __global__ void add_rows(gpu_mat out, gpu_mat a, gpu_mat b, bool wide)
{
    await_stream();
    int j = MY_PIECE, n = out.cols - j;
    float x[PIECE], y[PIECE];
    take_piece(x, ROW_OF(a, const TA) + j, n, wide);
    take_piece(y, ROW_OF(b, const TB) + j, n, wide);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        x[e] += y[e];
    put_piece(ROW_OF(out, TO) + j, x, n, wide);
}

void gpu_add(cudaStream_t s, struct gpu_mat out, struct gpu_mat a, struct gpu_mat b)
{
    bool wide = is_wide(out) && is_wide(a) && is_wide(b);
    WITH_TYPE(out.type, TO, WITH_TYPE(a.type, TA, WITH_TYPE(b.type, TB, {
                                          auto kernel = add_rows<TO, TA, TB>;
                                          LAUNCH(kernel, piece_grid(out), THREADS, 0, s,
                                                 out, a, b, wide);
                                      })))
}

template <typename T>
static __global__ void add_bias_rows(gpu_mat x, const float *bias, bool wide)
{
    await_stream();
    T *row = ROW_OF(x, T);
    int j = MY_PIECE, n = x.cols - j;
    float v[PIECE], b[PIECE];
    take_piece(v, row + j, n, wide);
    take_piece(b, bias + j, n, wide);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        v[e] += b[e];
    put_piece(row + j, v, n, wide);
}

void gpu_add_bias(cudaStream_t s, struct gpu_mat x, const float *bias)
{
    bool wide = is_wide(x) && is_wide(bias, 0, 0);
    WITH_TYPE(x.type, T, {
        auto kernel = add_bias_rows<T>;
        LAUNCH(kernel, piece_grid(x), THREADS, 0, s, x, bias, wide);
    })
}

/* Returns the activation of x. Numbers are those of enum activation (ops.h). */
static __device__ __forceinline__ float activate(float x, int act)
{
    switch (act) {
    case 0: /* SiLU */
        return x / (1.0f + expf(-x));
    case 1: /* ReLU */
        return x > 0 ? x : 0;
    case 2: /* GELU, by erf */
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    default: /* GELU, by tanh */
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    }
}

template <typename TO, typename TX>
static __global__ void act_mul_rows(gpu_mat out, gpu_mat gate_up, int act, bool wide)
{
    await_stream();
    const TX *gate = ROW_OF(gate_up, const TX);
    int j = MY_PIECE, n = out.cols - j;
    float g[PIECE], u[PIECE];
    take_piece(g, gate + j, n, wide);
    take_piece(u, gate + out.cols + j, n, wide);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        g[e] = activate(g[e], act) * u[e];
    put_piece(ROW_OF(out, TO) + j, g, n, wide);
}

void gpu_act_mul(cudaStream_t s, struct gpu_mat out, struct gpu_mat gate_up, int act)
{
    bool wide = is_wide(out) && is_wide(gate_up) && is_wide(NULL, out.cols, gate_up.type);
    WITH_TYPE(out.type, TO, WITH_TYPE(gate_up.type, TX, {
                  auto kernel = act_mul_rows<TO, TX>;
                  LAUNCH(kernel, piece_grid(out), THREADS, 0, s, out, gate_up, act, wide);
              }))
}

template <typename T> static __global__ void act_rows(gpu_mat x, int act, bool wide)
{
    await_stream();
    T *row = ROW_OF(x, T);
    int j = MY_PIECE, n = x.cols - j;
    float v[PIECE];
    take_piece(v, row + j, n, wide);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        v[e] = activate(v[e], act);
    put_piece(row + j, v, n, wide);
}

void gpu_act(cudaStream_t s, struct gpu_mat x, int act)
{
    bool wide = is_wide(x);
    WITH_TYPE(x.type, T, {
        auto kernel = act_rows<T>;
        LAUNCH(kernel, piece_grid(x), THREADS, 0, s, x, act, wide);
    })
}

template <typename T>
static __global__ void all_finite_rows(gpu_mat x, int32_t *flag, bool wide)
{
    await_stream();
    int j = MY_PIECE;
    float v[PIECE];
    bool good = true;
    take_piece(v, ROW_OF(x, const T) + j, x.cols - j, wide);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        good = good && isfinite(v[e]);
    if (!good)
        *flag = 0; /* all writers write the same value */
}

void gpu_all_finite(cudaStream_t s, struct gpu_mat x, int32_t *flag)
{
    bool wide = is_wide(x);
    WITH_TYPE(x.type, T, {
        auto kernel = all_finite_rows<T>;
        LAUNCH(kernel, piece_grid(x), THREADS, 0, s, x, flag, wide);
    })
}
