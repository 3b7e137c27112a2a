/* k_matmul_fixed.cu - products on the tensor cores in which each element is computed in one way,
 * whatever its batch; launch.h (gpu_matmul_fixed) defines that way.
 *
 * - few: up to 32 rows, where reading the weights takes all the time.  A block of threads takes 16
 *   columns and all of k.  Its warps take k-blocks in turn, each through a ring of its own, and the
 *   blocks' sums are added in shared memory.
 * - tiles: more rows.  The usual tiling (for the products of the HCache paper's section 4: norm,
 *   then [W_k;W_v]), with a second set of accumulators for the sum of the k-blocks.
 *
 * Both give the same bits: they stage k in tiles of 64, the last one filled up with zeros, take a
 * tile's four steps in ascending order with the activations as operand A, and sum blocks from +0.
 * The hardware is assumed to add up a step in the same way for every row and column of its
 * operands, and to leave a sum unchanged if all products are zero;
 * tests/tensor/cuda_fixed_cases.c checks both assumptions. */
#include "cuda/device.cuh"
#include "cuda/launch.h"
#include "cuda/mma.cuh"

enum {
    /* Length of a chain of steps, as in ops.h. A longer chain is less exact, because a step cuts
     * off the summands' low bits (relative to the largest one) instead of rounding. */
    K_BLOCK = 256,
    K_TILE = 64, /* columns staged at a time: 128 bytes of a row */
    PIECES = K_TILE / PIECE,
    TILES_A_BLOCK = K_BLOCK / K_TILE,
};

/* --- staging ---------------------------------------------------------------------------------- */

/* Returns the place of piece `p` of staged row r.  Rows are as long as all banks together.  Without
 * the permutation, the same piece of eight rows, which one matrix load reads, would lie in the same
 * four banks. */
static __device__ __forceinline__ int staged(int r, int p)
{
    return r * K_TILE + ((p ^ r) & (PIECES - 1)) * PIECE;
}

/* Copies the part of a tile's ROWS rows that one of N_THREADS threads has: piece `p` of every
 * STEPth row from `r` on.  The struct keeps the parts of the addresses that do not change from tile
 * to tile, because computing them for every tile took longer than the tile's products.  WIDE: rows
 * begin at multiples of 16 bytes and have whole pieces. */
template <typename T, int ROWS, int N_THREADS, bool WIDE> struct stager {
    enum {
        STEP = N_THREADS / PIECES,
        COPIES = ROWS / STEP,
    };
    const T *from;
    int64_t step; /* elements between the rows */
    int r, p, n_cols, n_rows;

    __device__ __forceinline__ stager(const gpu_mat &m, int row0, int thread)
        : step(m.ld * STEP), r(thread / PIECES), p(thread % PIECES), n_cols(m.cols),
          n_rows(m.rows - row0)
    {
        from = (const T *)m.data + (int64_t)(row0 + r) * m.ld + p * PIECE;
    }

    /* Copies columns [k0, k0 + 64) of the rows, with zeros for columns and rows that do not exist.
     * FEW: the places of missing rows may keep their contents. */
    template <bool FEW> __device__ __forceinline__ void bring(T *to, int k0) const
    {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int row = r + i * STEP, k = k0 + p * PIECE;
            const T *piece = from + i * step + k0;
            T *at = to + staged(row, p);
            if (FEW && i * STEP >= n_rows) /* the condition is the same for all threads */
                break;
            if (WIDE) {
                copy_async16(at, piece, row < n_rows && k < n_cols);
            } else {
                for (int e = 0; e < PIECE; e++) {
                    at[e].bits = 0;
                    if (row < n_rows && k + e < n_cols)
                        at[e] = piece[e];
                }
            }
        }
    }
};

/* Loads 16 staged rows from r0 at step `kk` of the tile, as operand A. */
template <typename T>
static __device__ __forceinline__ void load_a(uint32_t a[4], const T *tile, int r0, int kk)
{
    int lane = (int)threadIdx.x % WARP;
    load_matrix_x4(a, tile + staged(r0 + lane % 16, kk * 2 + lane / 16));
}

/* Loads 16 staged rows from r0 as operand B: b[0] and b[1] are columns [r0, r0 + 8), b[2] and b[3]
 * the next. */
template <typename T>
static __device__ __forceinline__ void load_b(uint32_t b[4], const T *tile, int r0, int kk)
{
    int lane = (int)threadIdx.x % WARP;
    load_matrix_x4(b, tile + staged(r0 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2));
}

/* Computes part [16 M][8 N] += rows from a0 of tile a times rows from w0 of tile w, in four
 * ascending steps.
 */
template <typename T, int M, int N>
static __device__ __forceinline__ void tile_steps(float (&part)[M][N][4], const T *a,
                                                  int a0, const T *w, int w0)
{
#pragma unroll
    for (int kk = 0; kk < K_TILE / 16; kk++) {
        uint32_t fa[M][4], fb[N / 2][4];
#pragma unroll
        for (int i = 0; i < M; i++)
            load_a(fa[i], a, a0 + i * 16, kk);
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            load_b(fb[j], w, w0 + j * 16, kk);
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                mma_16816<T>(part[i][j], fa[i], fb[j / 2][j % 2 * 2],
                             fb[j / 2][j % 2 * 2 + 1]);
    }
}

template <int M, int N>
static __device__ __forceinline__ void clear(float (&x)[M][N][4])
{
#pragma unroll
    for (int i = 0; i < M * N * 4; i++)
        x[i / (N * 4)][i / 4 % N][i % 4] = 0;
}

/* Adds the bias last; c is f32 or of type T. */
template <typename T>
static __device__ __forceinline__ void put(const gpu_mat &c, int row, int col, float v,
                                           const float *bias)
{
    if (row >= c.rows || col >= c.cols)
        return;
    if (bias != NULL)
        v = __fadd_rn(v, bias[col]);
    int64_t at = (int64_t)row * c.ld + col;
    if (c.type == 0)
        ((float *)c.data)[at] = v;
    else
        from_f32(((T *)c.data)[at], v);
}

/* --- few rows --------------------------------------------------------------------------------- */

/* The number of bytes in flight decides the speed. 4 warps with 3 tiles of 2 KiB each, and two to
 * three blocks of threads on a multiprocessor, have 48 to 72 KiB of weights in flight; 5 TB/s at
 * 0.8 us of latency need 30 KiB. */
enum { FEW_COLS = 16, FEW_WARPS = 4, FEW_THREADS = FEW_WARPS * WARP };

template <typename T, int M> struct few {
    enum {
        ROWS = 16 * M,
        STAGES = M == 1 ? 4 : 3,
        A = ROWS * K_TILE, /* elements of A in a stage; the weights' elements follow them */
        STAGE = A + FEW_COLS * K_TILE,
        SUMS = ROWS * FEW_COLS, /* sums of a warp's k-block */
        SHARED = FEW_WARPS * STAGES * STAGE * (int)sizeof(T) +
                 2 * FEW_WARPS * SUMS * (int)sizeof(float),
        OWN = SUMS / FEW_THREADS, /* results that one thread adds up */
    };
};

template <typename T, int M, bool WIDE>
static __global__ void __launch_bounds__(FEW_THREADS)
    matmul_few(gpu_mat c, gpu_mat a, gpu_mat w, const float *bias)
{
    await_stream();
    typedef few<T, M> F;
    SHARED_DYNAMIC(shared);
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int g = lane / 4, tq = lane % 4, col0 = (int)blockIdx.x * FEW_COLS;
    T *ring = (T *)shared + warp * F::STAGES * F::STAGE;
    float *sums = (float *)((T *)shared + FEW_WARPS * F::STAGES * F::STAGE);
    int n_tiles = (a.cols + K_TILE - 1) / K_TILE;
    int n_blocks = (n_tiles + TILES_A_BLOCK - 1) / TILES_A_BLOCK;

    stager<T, F::ROWS, WARP, WIDE> from_a(a, 0, lane);
    stager<T, FEW_COLS, WARP, WIDE> from_w(w, col0, lane);
    /* Rows that do not exist stay zero. */
    for (int s = 0; s < F::STAGES; s++)
        for (int i = a.rows * K_TILE + lane; i < F::A; i += WARP)
            ring[s * F::STAGE + i].bits = 0;
    __syncwarp();

    /* Tile t of a warp belongs to block warp + t / TILES_A_BLOCK * FEW_WARPS.  There is no tile if
     * its number, TILE_OF(t), is n_tiles or more. */
#define TILE_OF(t)                                                                         \
    ((warp + (t) / TILES_A_BLOCK * FEW_WARPS) * TILES_A_BLOCK + (t) % TILES_A_BLOCK)
#define FETCH(t)                                                                           \
    do {                                                                                   \
        int tile_ = TILE_OF(t);                                                            \
        T *to_ = ring + (t) % F::STAGES * F::STAGE;                                        \
        if (tile_ < n_tiles) {                                                             \
            from_w.template bring<false>(to_ + F::A, tile_ * K_TILE);                      \
            from_a.template bring<true>(to_, tile_ * K_TILE);                              \
        }                                                                                  \
        copy_async_commit();                                                               \
    } while (0)
    for (int t = 0; t < F::STAGES - 1; t++)
        FETCH(t);

    float acc[F::OWN];
#pragma unroll
    for (int i = 0; i < F::OWN; i++)
        acc[i] = 0;
    for (int b0 = 0, t = 0, side = 0; b0 < n_blocks; b0 += FEW_WARPS, side ^= 1) {
        float part[M][2][4];
        clear<M, 2>(part);
        for (int i = 0; i < TILES_A_BLOCK; i++, t++) {
            FETCH(t + F::STAGES - 1);
            copy_async_wait<F::STAGES - 1>();
            __syncwarp(); /* the copies of all lanes have arrived */
            const T *tile = ring + t % F::STAGES * F::STAGE;
            if (TILE_OF(t) < n_tiles)
                tile_steps<T, M, 2>(part, tile, 0, tile + F::A, 0);
            __syncwarp(); /* the stage is refilled next */
        }
        float *mine = sums + (side * FEW_WARPS + warp) * F::SUMS;
#pragma unroll
        for (int i = 0; i < M * 2 * 4; i++)
            mine[(i / 8 * 16 + g + i % 4 / 2 * 8) * FEW_COLS + i / 4 % 2 * 8 + tq * 2 +
                 i % 2] = part[i / 8][i / 4 % 2][i % 4];
        /* one barrier per round: the other half of the sums is read after the next one */
        __syncthreads();
        int n = n_blocks - b0 < FEW_WARPS ? n_blocks - b0 : FEW_WARPS;
        for (int v = 0; v < n; v++)
#pragma unroll
            for (int i = 0; i < F::OWN; i++)
                acc[i] = __fadd_rn(acc[i], sums[(side * FEW_WARPS + v) * F::SUMS +
                                                i * FEW_THREADS + (int)threadIdx.x]);
    }
#undef FETCH
#undef TILE_OF
#pragma unroll
    for (int i = 0; i < F::OWN; i++) {
        int at = i * FEW_THREADS + (int)threadIdx.x;
        put<T>(c, at / FEW_COLS, col0 + at % FEW_COLS, acc[i], bias);
    }
}

/* --- tiles ------------------------------------------------------------------------------------ */

/* A block of threads computes ROWS x COLS results. Each of its warps computes HIGH x WIDTH of these
 * results. */
template <typename T, int ROWS, int COLS, int HIGH, int WIDTH> struct tiling {
    enum {
        THREADS = ROWS / HIGH * (COLS / WIDTH) * WARP,
        STAGES = ROWS + COLS > 128 ? 3 : 4,
        STAGE = (ROWS + COLS) * K_TILE,
        SHARED = STAGES * STAGE * (int)sizeof(T),
    };
};

template <typename T, int ROWS, int COLS, int HIGH, int WIDTH, bool WIDE>
static __global__ void __launch_bounds__(tiling<T, ROWS, COLS, HIGH, WIDTH>::THREADS)
    matmul_tiles(gpu_mat c, gpu_mat a, gpu_mat w, const float *bias, int n_down)
{
    await_stream();
    typedef tiling<T, ROWS, COLS, HIGH, WIDTH> F;
    constexpr int M = HIGH / 16, N = WIDTH / 8;
    SHARED_DYNAMIC(shared);
    T *ring = (T *)shared;
    /* Neighbouring blocks share their columns, so that weights are read from memory once. */
    int row0 = (int)blockIdx.x % n_down * ROWS, col0 = (int)blockIdx.x / n_down * COLS;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int a0 = warp / (COLS / WIDTH) * HIGH, w0 = warp % (COLS / WIDTH) * WIDTH;
    int n_tiles = (a.cols + K_TILE - 1) / K_TILE;

    stager<T, ROWS, F::THREADS, WIDE> from_a(a, row0, (int)threadIdx.x);
    stager<T, COLS, F::THREADS, WIDE> from_w(w, col0, (int)threadIdx.x);
#define FETCH(t)                                                                           \
    do {                                                                                   \
        T *to_ = ring + (t) % F::STAGES * F::STAGE;                                        \
        if ((t) < n_tiles) {                                                               \
            from_a.template bring<false>(to_, (t) * K_TILE);                               \
            from_w.template bring<false>(to_ + ROWS * K_TILE, (t) * K_TILE);               \
        }                                                                                  \
        copy_async_commit();                                                               \
    } while (0)
    for (int t = 0; t < F::STAGES - 1; t++)
        FETCH(t);
    float acc[M][N][4], part[M][N][4];
    clear<M, N>(acc);
    clear<M, N>(part);
    for (int t = 0; t < n_tiles; t++) {
        copy_async_wait<F::STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and the one before it is no longer used */
        FETCH(t + F::STAGES - 1);
        const T *tile = ring + t % F::STAGES * F::STAGE;
        tile_steps<T, M, N>(part, tile, a0, tile + ROWS * K_TILE, w0);
        if (t % TILES_A_BLOCK == TILES_A_BLOCK - 1 || t == n_tiles - 1) {
#pragma unroll
            for (int i = 0; i < M * N * 4; i++)
                acc[i / (N * 4)][i / 4 % N][i % 4] = __fadd_rn(
                    acc[i / (N * 4)][i / 4 % N][i % 4], part[i / (N * 4)][i / 4 % N][i % 4]);
            clear<M, N>(part);
        }
    }
#undef FETCH
#pragma unroll
    for (int i = 0; i < M * N * 4; i++)
        put<T>(c, row0 + a0 + i / (N * 4) * 16 + lane / 4 + i % 4 / 2 * 8,
               col0 + w0 + i / 4 % N * 8 + lane % 4 * 2 + i % 2,
               acc[i / (N * 4)][i / 4 % N][i % 4], bias);
}

/* --- choice of kernel: it affects speed only -------------------------------------------------- */

static void allow_shared(const void *kernel, int bytes)
{
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <typename T, int M, bool WIDE>
static void launch_few(cudaStream_t s, gpu_mat c, gpu_mat a, gpu_mat w, const float *bias)
{
    auto kernel = matmul_few<T, M, WIDE>;
    constexpr int shared = few<T, M>::SHARED;
    static_assert(shared <= 99 * 1024, "a block of threads has at most 99 KiB on sm_89");
    allow_shared((const void *)kernel, shared);
    LAUNCH(kernel, blocks_for(c.cols, FEW_COLS), FEW_THREADS, shared, s, c, a, w, bias);
}

template <typename T, int ROWS, int COLS, int HIGH, int WIDTH, bool WIDE>
static void launch_tiles(cudaStream_t s, gpu_mat c, gpu_mat a, gpu_mat w, const float *bias)
{
    typedef tiling<T, ROWS, COLS, HIGH, WIDTH> F;
    auto kernel = matmul_tiles<T, ROWS, COLS, HIGH, WIDTH, WIDE>;
    static_assert(F::SHARED <= 99 * 1024, "a block of threads has at most 99 KiB on sm_89");
    allow_shared((const void *)kernel, F::SHARED);
    int n_down = (int)blocks_for(c.rows, ROWS);
    LAUNCH(kernel, (unsigned)n_down * blocks_for(c.cols, COLS), F::THREADS, F::SHARED, s, c,
           a, w, bias, n_down);
}

/* Chooses the largest tiles that still keep three quarters of the multiprocessors busy. */
template <typename T, bool WIDE>
static void choose(cudaStream_t s, gpu_mat c, gpu_mat a, gpu_mat w, const float *bias,
                   int n_sm)
{
    int64_t enough = n_sm * 3 / 4;
    if (c.rows <= 16)
        launch_few<T, 1, WIDE>(s, c, a, w, bias);
    else if (c.rows <= 32)
        launch_few<T, 2, WIDE>(s, c, a, w, bias);
    else if ((int64_t)blocks_for(c.rows, 128) * blocks_for(c.cols, 128) >= enough)
        launch_tiles<T, 128, 128, 64, 32, WIDE>(s, c, a, w, bias);
    else if ((int64_t)blocks_for(c.rows, 64) * blocks_for(c.cols, 64) >= enough)
        launch_tiles<T, 64, 64, 32, 32, WIDE>(s, c, a, w, bias);
    else
        launch_tiles<T, 64, 32, 32, 16, WIDE>(s, c, a, w, bias);
}

static bool has_whole_pieces(gpu_mat m)
{
    return is_wide(m.data, m.ld, m.type) && m.cols % PIECE == 0;
}

template <typename T>
static void fixed(cudaStream_t s, gpu_mat c, gpu_mat a, gpu_mat w, const float *bias,
                  int n_sm)
{
    if (has_whole_pieces(a) && has_whole_pieces(w))
        choose<T, true>(s, c, a, w, bias, n_sm);
    else
        choose<T, false>(s, c, a, w, bias, n_sm);
}

void gpu_matmul_fixed(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_mat w,
                      const float *bias, int n_sm)
{
    if (a.type == 1)
        fixed<f16>(s, c, a, w, bias, n_sm);
    else
        fixed<bf16>(s, c, a, w, bias, n_sm);
}
