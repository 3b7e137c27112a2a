/* k_matmul.cu - two of the products that cuBLAS does not compute; k_matmul_fixed.cu has the third.
 *
 * - exact: the order of ops.h to the bit (blocks of 256, an fma chain in each), for any type and
 *   shape.  Its results do not depend on the batch, and equal the CPU's.  It is slow, because it
 *   runs on the plain f32 units.
 * - gemv: for few rows, where reading the weights takes all the time.  A warp streams whole weight
 *   rows in 16-byte pieces and accumulates all rows of `a` at once. */
#include "cuda/device.cuh"
#include "cuda/launch.h"

/* --- exact ------------------------------------------------------------------------------------ */

enum {
    TILE = 64,     /* rows and columns of a tile of c */
    TILE_K = 16,   /* columns staged at a time; divides K_BLOCK */
    K_BLOCK = 256, /* MATMUL_K_BLOCK of ops.h */
    SIDE = 4,      /* each of 256 threads computes SIDE x SIDE results */
    EXACT_THREADS = (TILE / SIDE) * (TILE / SIDE),
};

/* Stages rows [row0, row0 + TILE) and columns [k0, k0 + TILE_K) of m as f32, with zeros outside. */
template <typename T>
static __device__ __forceinline__ void stage(float (*to)[TILE + 1], gpu_mat m, int row0,
                                             int k0)
{
    for (int i = (int)threadIdx.x; i < TILE * TILE_K; i += EXACT_THREADS) {
        int r = i / TILE_K, k = i % TILE_K;
        bool in = row0 + r < m.rows && k0 + k < m.cols;
        to[k][r] = in ? to_f32(((const T *)m.data)[(int64_t)(row0 + r) * m.ld + k0 + k])
                      : 0.0f;
    }
}

template <typename TC, typename TA, typename TW>
static __global__ void matmul_exact(gpu_mat c, gpu_mat a, gpu_mat w, const float *bias)
{
    await_stream();
    __shared__ float sa[TILE_K][TILE + 1], sw[TILE_K][TILE + 1];
    int row0 = (int)blockIdx.y * TILE, col0 = (int)blockIdx.x * TILE;
    int tr = (int)threadIdx.x / (TILE / SIDE), tc = (int)threadIdx.x % (TILE / SIDE);
    float acc[SIDE][SIDE], part[SIDE][SIDE];
    for (int kb = 0; kb < a.cols; kb += K_BLOCK) {
        int k_end = kb + K_BLOCK < a.cols ? kb + K_BLOCK : a.cols;
#pragma unroll
        for (int i = 0; i < SIDE * SIDE; i++)
            part[i / SIDE][i % SIDE] = 0;
        for (int k0 = kb; k0 < k_end; k0 += TILE_K) {
            __syncthreads();
            stage<TA>(sa, a, row0, k0);
            stage<TW>(sw, w, col0, k0);
            __syncthreads();
            int n = k_end - k0 < TILE_K ? k_end - k0 : TILE_K;
            for (int k = 0; k < n; k++)
#pragma unroll
                for (int i = 0; i < SIDE * SIDE; i++)
                    part[i / SIDE][i % SIDE] = fmaf(sa[k][tr + i / SIDE * (TILE / SIDE)],
                                                    sw[k][tc + i % SIDE * (TILE / SIDE)],
                                                    part[i / SIDE][i % SIDE]);
        }
#pragma unroll
        for (int i = 0; i < SIDE * SIDE; i++)
            acc[i / SIDE][i % SIDE] = kb == 0 ? part[i / SIDE][i % SIDE]
                                              : __fadd_rn(acc[i / SIDE][i % SIDE],
                                                          part[i / SIDE][i % SIDE]);
    }
#pragma unroll
    for (int i = 0; i < SIDE * SIDE; i++) {
        int row = row0 + tr + i / SIDE * (TILE / SIDE),
            col = col0 + tc + i % SIDE * (TILE / SIDE);
        float v = acc[i / SIDE][i % SIDE];
        if (row < c.rows && col < c.cols)
            from_f32(((TC *)c.data)[(int64_t)row * c.ld + col],
                     bias != NULL ? __fadd_rn(v, bias[col]) : v);
    }
}

void gpu_matmul_exact(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_mat w,
                      const float *bias)
{
    dim3 grid(blocks_for(c.cols, TILE), blocks_for(c.rows, TILE));
    if (c.type == 0) /* c is f32, or has a's type */
        WITH_TYPE(a.type, TA, WITH_TYPE(w.type, TW, {
                      auto kernel = matmul_exact<float, TA, TW>;
                      LAUNCH(kernel, grid, EXACT_THREADS, 0, s, c, a, w, bias);
                  }))
    else
        WITH_TYPE(a.type, TA, WITH_TYPE(w.type, TW, {
                      auto kernel = matmul_exact<TA, TA, TW>;
                      LAUNCH(kernel, grid, EXACT_THREADS, 0, s, c, a, w, bias);
                  }))
}

/* --- few rows --------------------------------------------------------------------------------- */

enum { GEMV_THREADS = 128, GEMV_WARPS = GEMV_THREADS / WARP };

int gpu_gemv_can(struct gpu_mat c, struct gpu_mat a, struct gpu_mat w)
{
    return c.rows <= GPU_GEMV_ROWS && a.cols % PIECE == 0 &&
           is_wide(a.data, a.ld, a.type) && is_wide(w.data, w.ld, w.type);
}

/* Adds the products of a lane's pieces at k. */
template <typename TA, typename TW, int M, int R>
static __device__ __forceinline__ void gemv_step(float (&acc)[M][R], const gpu_mat &a,
                                                 int k, const raw_piece<TW> *w)
{
    float wv[R][PIECE], av[PIECE];
#pragma unroll
    for (int r = 0; r < R; r++)
        unpack8(wv[r], w[r]);
#pragma unroll
    for (int m = 0; m < M; m++) {
        load8(av, (const TA *)a.data + (int64_t)m * a.ld + k);
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                acc[m][r] = fmaf(av[e], wv[r][e], acc[m][r]);
    }
}

/* Each warp computes R neighbouring columns of c for all M rows.  Lane i takes pieces i, i + 32,
 * ... of k; the lanes are added at the end. */
template <typename TC, typename TA, typename TW, int M, int R>
static __global__ void __launch_bounds__(GEMV_THREADS)
    gemv(gpu_mat c, gpu_mat a, gpu_mat w, const float *bias)
{
    await_stream();
    int lane = (int)(threadIdx.x % WARP);
    int col0 = (int)(blockIdx.x * GEMV_WARPS + threadIdx.x / WARP) * R;
    if (col0 >= c.cols)
        return; /* the whole warp returns */
    const TW *wr[R];
    float acc[M][R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        int col = col0 + r < c.cols ? col0 + r : c.cols - 1;
        wr[r] = (const TW *)w.data + (int64_t)col * w.ld;
#pragma unroll
        for (int m = 0; m < M; m++)
            acc[m][r] = 0;
    }
    /* The weights of AHEAD steps are loaded before those of the first step are used.  By itself the
     * compiler would wait for the loads of each step; these are only half of the bytes that a
     * product with 4096 columns must have in flight. */
    constexpr int STEP = WARP * PIECE, AHEAD = R == 2 ? 4 : 2;
    int k = lane * PIECE, rest = a.cols % (AHEAD * STEP);
    for (; k < a.cols - rest; k += AHEAD * STEP) { /* the condition is the same for all lanes */
        raw_piece<TW> raw[AHEAD][R];
#pragma unroll
        for (int i = 0; i < AHEAD * R; i++)
            load_raw(raw[i / R][i % R], wr[i % R] + k + i / R * STEP);
        __syncwarp(); /* keeps the loads before the products */
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            gemv_step<TA, TW, M, R>(acc, a, k + i * STEP, raw[i]);
    }
    for (; k < a.cols; k += STEP) {
        raw_piece<TW> raw[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            load_raw(raw[r], wr[r] + k);
        gemv_step<TA, TW, M, R>(acc, a, k, raw);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            float v = warp_sum(acc[m][r]);
            int col = col0 + r;
            if (lane == 0 && col < c.cols)
                from_f32(((TC *)c.data)[(int64_t)m * c.ld + col],
                         bias != NULL ? v + bias[col] : v);
        }
}

template <typename TC, typename TA, typename TW>
static void gemv_launch(cudaStream_t s, gpu_mat c, gpu_mat a, gpu_mat w, const float *bias)
{
#define GEMV(M, R)                                                                         \
    do {                                                                                   \
        auto kernel = gemv<TC, TA, TW, M, R>;                                              \
        LAUNCH(kernel, blocks_for(c.cols, GEMV_WARPS *(R)), GEMV_THREADS, 0, s, c, a, w,   \
               bias);                                                                      \
    } while (0)
    switch (c.rows) {
    case 1:
        GEMV(1, 2);
        break;
    case 2:
        GEMV(2, 2);
        break;
    case 3:
        GEMV(3, 2);
        break;
    case 4:
        GEMV(4, 2);
        break;
    case 5:
        GEMV(5, 4);
        break;
    case 6:
        GEMV(6, 4);
        break;
    case 7:
        GEMV(7, 4);
        break;
    default:
        GEMV(8, 4);
        break;
    }
#undef GEMV
}

void gpu_gemv(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_mat w,
              const float *bias)
{
    /* a and w have one type, c has that or f32, as in the forward pass */
    if (c.type == w.type)
        WITH_TYPE(w.type, T, gemv_launch<T, T, T>(s, c, a, w, bias))
    else
        WITH_TYPE(w.type, T, gemv_launch<float, T, T>(s, c, a, w, bias))
}
