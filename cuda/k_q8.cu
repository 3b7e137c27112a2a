/* k_q8.cu - 8-bit weights: the product in the order of ops.h, to the bit, and rows of the matrix.
 *
 * A block of threads computes 32 x 64 results.  For each k-block it rounds its rows of `a` to 8
 * bits and stages them with the weights in shared memory.  Sums of integers are exact in any order.
 * Products run on the plain integer units, and every row of `a` is rounded again for each 64
 * columns.  This speed suffices, because the kernel serves models whose layers do not fit on the
 * device: there a layer takes longer to arrive than to compute. */
#include "cuda/device.cuh"
#include "cuda/launch.h"

enum {
    ROWS = 32,
    COLS = 64,
    THREADS = 256,
    MINE = ROWS * COLS / THREADS, /* results of a thread: one column, every fourth row */
    K_BLOCK = 256,                /* MATMUL_K_BLOCK of ops.h */
    BLOCK = 32,                   /* Q8_BLOCK of ops.h */
    PER_K_BLOCK = K_BLOCK / BLOCK,
    WORD = 4, /* numbers that are staged at a time */
};

/* The limits of ops.h below which a k-block counts as zero, 2^-100, and from which on it counts as
 * infinite, 2^110. */
#define TINY 7.888609052210118e-31f
#define MOST 1.298074214633707e+33f
#define MOST_HALVED 15 /* Q4_MOST_HALVED of ops.h */

/* A warp rounds k-block k0 of a row to x [K_BLOCK], *e and the blocks' steps [PER_K_BLOCK], a lane a
 * number of each block.  Beyond the row's end x is zero. */
template <typename T>
static __device__ __forceinline__ void round_row(int8_t *x, float *e, float *step,
                                                 const gpu_mat &a, int row, int k0)
{
    int lane = (int)(threadIdx.x % WARP);
    float v[PER_K_BLOCK], top[PER_K_BLOCK], largest = 0;
#pragma unroll
    for (int b = 0; b < PER_K_BLOCK; b++) {
        int k = k0 + b * BLOCK + lane;
        v[b] = k < a.cols ? to_f32(((const T *)a.data)[(int64_t)row * a.ld + k]) : 0.0f;
        top[b] = fabsf(v[b]) < MOST ? fabsf(v[b]) : MOST; /* a NaN counts as an infinity */
#pragma unroll
        for (int d = WARP / 2; d > 0; d /= 2)
            top[b] = fmaxf(top[b], __shfl_xor_sync(0xffffffffu, top[b], d));
        largest = fmaxf(largest, top[b]);
    }
    bool is_zero = largest < TINY || largest >= MOST;
    float scale = is_zero ? 0.0f : __fdiv_rn(127.0f, largest);
#pragma unroll
    for (int b = 0; b < PER_K_BLOCK; b++) {
        uint32_t halved = (__float_as_uint(largest) - __float_as_uint(top[b])) >> 23;
        halved = is_zero ? 0 : halved < MOST_HALVED ? halved : MOST_HALVED;
        float up = __uint_as_float((127 + halved) << 23); /* 2^i */
        x[b * BLOCK + lane] = is_zero ? (int8_t)0
                                      : (int8_t)rintf(__fmul_rn(v[b], __fmul_rn(scale, up)));
        if (lane == 0)
            step[b] = __uint_as_float((127 - halved) << 23);
    }
    if (lane == 0)
        *e = largest >= MOST ? nanf("") : is_zero ? 0.0f : __fdiv_rn(largest, 127.0f);
}

template <typename TC, typename TA>
static __global__ void __launch_bounds__(THREADS)
    matmul_q8(gpu_mat c, gpu_mat a, gpu_q8 w, const float *bias)
{
    await_stream();
    __shared__ __align__(16) int8_t x[ROWS][K_BLOCK];
    __shared__ __align__(16) int8_t q[COLS][K_BLOCK + WORD]; /* padded so that columns lie in
                                                              * different banks */
    __shared__ float e[ROWS], step[ROWS][PER_K_BLOCK], d[COLS][PER_K_BLOCK + 1];
    int row0 = (int)blockIdx.y * ROWS, col0 = (int)blockIdx.x * COLS;
    int n_rows = c.rows - row0 < ROWS ? c.rows - row0 : ROWS;
    int n_cols = c.cols - col0 < COLS ? c.cols - col0 : COLS;
    int col = (int)threadIdx.x % COLS, first = (int)threadIdx.x / COLS;
    float acc[MINE];
#pragma unroll
    for (int i = 0; i < MINE; i++)
        acc[i] = 0;
    for (int kb = 0; kb < w.n_blocks; kb += PER_K_BLOCK) {
        int n = w.n_blocks - kb < PER_K_BLOCK ? w.n_blocks - kb : PER_K_BLOCK;
        int words = n * BLOCK / WORD;
        __syncthreads(); /* the previous k-block has been used */
        for (int r = (int)threadIdx.x / WARP; r < n_rows; r += THREADS / WARP)
            round_row<TA>(x[r], &e[r], step[r], a, row0 + r, kb * BLOCK);
        for (int i = (int)threadIdx.x; i < n_cols * words; i += THREADS) {
            int64_t at = ((int64_t)(col0 + i / words) * w.n_blocks + kb) * BLOCK;
            *(uint32_t *)&q[i / words][i % words * WORD] =
                *(const uint32_t *)(w.q + at + i % words * WORD);
        }
        for (int i = (int)threadIdx.x; i < n_cols * n; i += THREADS)
            d[i / n][i % n] = to_f32(
                f16{w.d[(int64_t)(col0 + i / n) * w.n_blocks + kb + i % n]});
        __syncthreads();
        for (int i = 0; i < MINE && col < n_cols; i++) {
            int r = first + i * (THREADS / COLS);
            if (r >= n_rows)
                break;
            float sum = 0;
            for (int b = 0; b < n; b++) {
                int s = 0;
#pragma unroll
                for (int k = b * BLOCK; k < (b + 1) * BLOCK; k++)
                    s += (int)x[r][k] * q[col][k];
                sum = fmaf(__fmul_rn((float)s, step[r][b]), d[col][b], sum);
            }
            acc[i] = fmaf(sum, e[r], acc[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        int r = first + i * (THREADS / COLS);
        if (r < n_rows && col < n_cols)
            from_f32(((TC *)c.data)[(int64_t)(row0 + r) * c.ld + col0 + col],
                     bias != NULL ? __fadd_rn(acc[i], bias[col0 + col]) : acc[i]);
    }
}

void gpu_matmul_q8(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_q8 w,
                   const float *bias)
{
    dim3 grid(blocks_for(c.cols, COLS), blocks_for(c.rows, ROWS));
    if (c.type == 0) /* c is f32, or has a's type */
        WITH_TYPE(a.type, TA, {
            auto kernel = matmul_q8<float, TA>;
            LAUNCH(kernel, grid, THREADS, 0, s, c, a, w, bias);
        })
    else
        WITH_TYPE(a.type, TA, {
            auto kernel = matmul_q8<TA, TA>;
            LAUNCH(kernel, grid, THREADS, 0, s, c, a, w, bias);
        })
}

/* A block of threads for each row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    rows_q8(gpu_mat out, gpu_q8 w, const int32_t *ids)
{
    await_stream();
    int64_t first = (int64_t)ids[blockIdx.x] * w.n_blocks;
    for (int k = (int)threadIdx.x; k < out.cols; k += THREADS)
        from_f32(((T *)out.data)[(int64_t)blockIdx.x * out.ld + k],
                 __fmul_rn((float)w.q[first * BLOCK + k], to_f32(f16{w.d[first + k / BLOCK]})));
}

void gpu_rows_q8(cudaStream_t s, struct gpu_mat out, struct gpu_q8 w, const int32_t *ids)
{
    WITH_TYPE(out.type, T, {
        auto kernel = rows_q8<T>;
        LAUNCH(kernel, blocks_for(out.rows, 1), THREADS, 0, s, out, w, ids);
    })
}
