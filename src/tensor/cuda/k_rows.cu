/* k_rows.cu - operations row by row: embedding, norms, conversions, activations.
 *
 * All are bound by memory.  A row's result depends on the row alone. */
#include "tensor/cuda/device.cuh"
#include "tensor/cuda/launch.h"

enum { THREADS = 256 };

/* One block per row, striding over its columns. */
#define ROW_OF(m, T) ((T *)(m).data + (int64_t)blockIdx.x * (m).ld)
#define EACH_COLUMN(j, cols)                                                               \
    for (int j = (int)threadIdx.x; j < (cols); j += (int)blockDim.x)

template <typename TO, typename TX>
static __global__ void embed_rows(gpu_mat out, gpu_mat table, const int32_t *ids,
                                  float scale)
{
    TO *o = ROW_OF(out, TO);
    const TX *x = (const TX *)table.data + (int64_t)ids[blockIdx.x] * table.ld;
    EACH_COLUMN(j, out.cols)
    from_f32(o[j], to_f32(x[j]) * scale);
}

void gpu_embed(cudaStream_t s, struct gpu_mat out, struct gpu_mat table, const int32_t *ids,
               float scale)
{
    WITH_TYPE(out.type, TO, WITH_TYPE(table.type, TX, {
                  auto kernel = embed_rows<TO, TX>;
                  LAUNCH(kernel, out.rows, THREADS, 0, s, out, table, ids, scale);
              }))
}

/* --- norms ------------------------------------------------------------------------------------ */

template <typename TO, typename TX>
static __global__ void rmsnorm_rows(gpu_mat out, gpu_mat x, const float *w, float eps)
{
    TO *o = ROW_OF(out, TO);
    const TX *in = ROW_OF(x, const TX);
    float sum = 0;
    EACH_COLUMN(j, x.cols)
    {
        float v = to_f32(in[j]);
        sum = fmaf(v, v, sum);
    }
    sum = block_sum<THREADS>(sum);
    float scale = 1.0f / sqrtf(sum / (float)x.cols + eps);
    EACH_COLUMN(j, x.cols)
    from_f32(o[j], to_f32(in[j]) * scale * w[j]);
}

template <typename TO, typename TX>
static __global__ void layernorm_rows(gpu_mat out, gpu_mat x, const float *w,
                                      const float *b, float eps)
{
    TO *o = ROW_OF(out, TO);
    const TX *in = ROW_OF(x, const TX);
    float sum = 0, squares = 0;
    EACH_COLUMN(j, x.cols)
    sum += to_f32(in[j]);
    float mean = block_sum<THREADS>(sum) / (float)x.cols;
    EACH_COLUMN(j, x.cols)
    {
        float d = to_f32(in[j]) - mean;
        squares = fmaf(d, d, squares);
    }
    squares = block_sum<THREADS>(squares);
    float scale = 1.0f / sqrtf(squares / (float)x.cols + eps);
    EACH_COLUMN(j, x.cols)
    from_f32(o[j], (to_f32(in[j]) - mean) * scale * w[j] + b[j]);
}

void gpu_rmsnorm(cudaStream_t s, struct gpu_mat out, struct gpu_mat x, const float *w,
                 float eps)
{
    WITH_TYPE(out.type, TO, WITH_TYPE(x.type, TX, {
                  auto kernel = rmsnorm_rows<TO, TX>;
                  LAUNCH(kernel, out.rows, THREADS, 0, s, out, x, w, eps);
              }))
}

void gpu_layernorm(cudaStream_t s, struct gpu_mat out, struct gpu_mat x, const float *w,
                   const float *b, float eps)
{
    WITH_TYPE(out.type, TO, WITH_TYPE(x.type, TX, {
                  auto kernel = layernorm_rows<TO, TX>;
                  LAUNCH(kernel, out.rows, THREADS, 0, s, out, x, w, b, eps);
              }))
}

/* One warp per head. */
template <typename T>
static __global__ void head_norm_rows(gpu_mat x, int d_head, const float *w, float eps)
{
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

/* --- element by element ----------------------------------------------------------------------- */

/* blockIdx.y cuts long rows, so that one row of a decode still fills the chip. */
#define EACH_ELEMENT(j, cols)                                                              \
    for (int j = (int)(blockIdx.y * blockDim.x + threadIdx.x); j < (cols);                 \
         j += (int)(gridDim.y * blockDim.x))

static dim3 element_grid(gpu_mat m)
{
    unsigned pieces = blocks_for(m.cols, 4 * THREADS);
    return dim3((unsigned)m.rows, pieces < 64 ? pieces : 64);
}

template <typename TO, typename TX>
static __global__ void convert_rows(gpu_mat out, gpu_mat x)
{
    TO *o = ROW_OF(out, TO);
    const TX *in = ROW_OF(x, const TX);
    EACH_ELEMENT(j, out.cols)
    from_f32(o[j], to_f32(in[j]));
}

void gpu_convert(cudaStream_t s, struct gpu_mat out, struct gpu_mat x)
{
    WITH_TYPE(out.type, TO, WITH_TYPE(x.type, TX, {
                  auto kernel = convert_rows<TO, TX>;
                  LAUNCH(kernel, element_grid(out), THREADS, 0, s, out, x);
              }))
}

template <typename TO, typename TA, typename TB>
static __global__ void add_rows(gpu_mat out, gpu_mat a, gpu_mat b)
{
    TO *o = ROW_OF(out, TO);
    const TA *x = ROW_OF(a, const TA);
    const TB *y = ROW_OF(b, const TB);
    EACH_ELEMENT(j, out.cols)
    from_f32(o[j], to_f32(x[j]) + to_f32(y[j]));
}

void gpu_add(cudaStream_t s, struct gpu_mat out, struct gpu_mat a, struct gpu_mat b)
{
    WITH_TYPE(out.type, TO, WITH_TYPE(a.type, TA, WITH_TYPE(b.type, TB, {
                                          auto kernel = add_rows<TO, TA, TB>;
                                          LAUNCH(kernel, element_grid(out), THREADS, 0, s,
                                                 out, a, b);
                                      })))
}

template <typename T> static __global__ void add_bias_rows(gpu_mat x, const float *bias)
{
    T *v = ROW_OF(x, T);
    EACH_ELEMENT(j, x.cols)
    from_f32(v[j], to_f32(v[j]) + bias[j]);
}

void gpu_add_bias(cudaStream_t s, struct gpu_mat x, const float *bias)
{
    WITH_TYPE(x.type, T, {
        auto kernel = add_bias_rows<T>;
        LAUNCH(kernel, element_grid(x), THREADS, 0, s, x, bias);
    })
}

/* In the order of enum activation (ops.h). */
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
static __global__ void act_mul_rows(gpu_mat out, gpu_mat gate_up, int act)
{
    TO *o = ROW_OF(out, TO);
    const TX *gate = ROW_OF(gate_up, const TX);
    EACH_ELEMENT(j, out.cols)
    from_f32(o[j], activate(to_f32(gate[j]), act) * to_f32(gate[out.cols + j]));
}

void gpu_act_mul(cudaStream_t s, struct gpu_mat out, struct gpu_mat gate_up, int act)
{
    WITH_TYPE(out.type, TO, WITH_TYPE(gate_up.type, TX, {
                  auto kernel = act_mul_rows<TO, TX>;
                  LAUNCH(kernel, element_grid(out), THREADS, 0, s, out, gate_up, act);
              }))
}

template <typename T> static __global__ void act_rows(gpu_mat x, int act)
{
    T *v = ROW_OF(x, T);
    EACH_ELEMENT(j, x.cols)
    from_f32(v[j], activate(to_f32(v[j]), act));
}

void gpu_act(cudaStream_t s, struct gpu_mat x, int act)
{
    WITH_TYPE(x.type, T, {
        auto kernel = act_rows<T>;
        LAUNCH(kernel, element_grid(x), THREADS, 0, s, x, act);
    })
}

template <typename T> static __global__ void all_finite_rows(gpu_mat x, int32_t *flag)
{
    const T *v = ROW_OF(x, const T);
    bool good = true;
    EACH_ELEMENT(j, x.cols)
    good = good && isfinite(to_f32(v[j]));
    if (!good)
        *flag = 0; /* whoever writes writes the same */
}

void gpu_all_finite(cudaStream_t s, struct gpu_mat x, int32_t *flag)
{
    WITH_TYPE(x.type, T, {
        auto kernel = all_finite_rows<T>;
        LAUNCH(kernel, element_grid(x), THREADS, 0, s, x, flag);
    })
}
