/* k_attention.cu - attention over the paged cache in fast math. Exact math runs every row by
 * attend_row, without splits.
 *
 * - attend_row: one row against all its keys, which are divided among warps and, if rows are few,
 *   among blocks ("splits", joined by join_splits).  Heads that share a KV head are processed
 *   together, so that K and V are read once.  It takes any type and head size, and is the kernel of
 *   decoding.
 * - attend_tile: up to 128 rows of one sequence on the tensor cores, one KV block after another,
 *   while the next block is copied (cp.async), except for the widest heads.  It is the kernel of
 *   prefill, for f16 and bf16.
 *
 * Both keep a running maximum and sum (online softmax).  Neither touches a key that no row of the
 * launch sees, because unwritten slots may hold anything. */
#include "cuda/attention.cuh"

/* --- one row ---------------------------------------------------------------------------------- */

enum { ROW_WARPS = 4, ROW_THREADS = ROW_WARPS * WARP, MAX_HEAD = 256 };

/* A lane l of a warp holds elements [8 * (l % LANES), +8) of every head's output, summed over the
 * keys of its subgroup l / LANES.  LANES * 8 >= d_head. */
template <typename T, int G, int LANES>
static __global__ void __launch_bounds__(ROW_THREADS)
    attend_row(gpu_attention_job a, const int32_t *rows, int n_splits)
{
    await_stream();
    constexpr int SUB = WARP / LANES; /* keys processed at a time */
    __shared__ float score[ROW_WARPS][G][TOKENS];
    __shared__ float top[ROW_WARPS][G], total[ROW_WARPS][G];
    __shared__ float value[ROW_WARPS][G][LANES * PIECE];

    int n_heads = a.q.cols / a.kv.d_head, group = n_heads / a.kv.n_kv, d = a.kv.d_head;
    int chunks = (group + G - 1) / G; /* chunks of heads that share a KV head */
    int kv_head = (int)blockIdx.y / chunks,
        head0 = kv_head * group + (int)blockIdx.y % chunks * G;
    int n_g = (kv_head + 1) * group - head0 < G ? (kv_head + 1) * group - head0 : G;
    int row = rows != NULL ? rows[blockIdx.x] : (int)blockIdx.x;
    int pos = a.b.pos[row], begin = first_key(a, pos), end = pos + 1;
    int split = (int)blockIdx.z, warp = (int)threadIdx.x / WARP,
        lane = (int)threadIdx.x % WARP;
    int sub = lane / LANES, at = lane % LANES * PIECE;
    bool wide = d % PIECE == 0;
    const int32_t *table = a.b.tables + (int64_t)a.b.row_seq[row] * a.b.table_ld;

    float q[G][PIECE], o[G][PIECE], m[G], l[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        const T *qp = (const T *)a.q.data + (int64_t)row * a.q.ld +
                      (int64_t)(head0 + (g < n_g ? g : 0)) * d;
        take_piece(q[g], qp + at, d - at, false);
        m[g] = -INFINITY, l[g] = 0;
#pragma unroll
        for (int e = 0; e < PIECE; e++)
            o[g][e] = 0;
    }

    int b_first = begin / TOKENS, b_count = (end - 1) / TOKENS - b_first + 1;
    int b_from = b_first + (int)((int64_t)b_count * split / n_splits);
    int b_to = b_first + (int)((int64_t)b_count * (split + 1) / n_splits);
    for (int b = b_from + warp; b < b_to; b += ROW_WARPS) {
        int j0 = begin > b * TOKENS ? begin - b * TOKENS : 0;
        int j1 = end < (b + 1) * TOKENS ? end - b * TOKENS : TOKENS;
        const T *k = kv_rows<T>(a, table[b], kv_head);
        const T *v = kv_rows<T>(a, table[b], a.kv.n_kv + kv_head);
        /* scores */
#pragma unroll 4
        for (int j = sub; j < TOKENS; j += SUB) {
            bool seen = j >= j0 && j < j1;
            float kx[PIECE], dot;
            if (seen)
                take_piece(kx, k + (int64_t)j * d + at, d - at, wide);
#pragma unroll
            for (int g = 0; g < G; g++) {
                dot = 0;
                if (seen)
#pragma unroll
                    for (int e = 0; e < PIECE; e++)
                        dot = fmaf(q[g][e], kx[e], dot);
#pragma unroll
                for (int s = LANES / 2; s > 0; s /= 2)
                    dot += __shfl_xor_sync(0xffffffffu, dot, s);
                if (at == 0)
                    score[warp][g][j] = seen ? dot * a.scale : -INFINITY;
            }
        }
        __syncwarp();
        /* weights */
#pragma unroll
        for (int g = 0; g < G; g++) {
            float s0 = score[warp][g][lane], s1 = score[warp][g][lane + WARP];
            float high = fmaxf(s0, s1);
#pragma unroll
            for (int s = WARP / 2; s > 0; s /= 2)
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, s));
            high = fmaxf(high, m[g]);
            float shrink = expf(m[g] - high); /* 0 at first, when m is -infinity */
            s0 = expf(s0 - high), s1 = expf(s1 - high);
            score[warp][g][lane] = s0;
            score[warp][g][lane + WARP] = s1;
            l[g] = fmaf(l[g], shrink, warp_sum(s0 + s1));
            m[g] = high;
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                o[g][e] *= shrink;
        }
        __syncwarp();
        /* values */
#pragma unroll 4
        for (int j = j0 - j0 % SUB + sub; j < j1; j += SUB) {
            float vx[PIECE];
            if (j < j0)
                continue;
            take_piece(vx, v + (int64_t)j * d + at, d - at, wide);
#pragma unroll
            for (int g = 0; g < G; g++) {
                float p = score[warp][g][j];
#pragma unroll
                for (int e = 0; e < PIECE; e++)
                    o[g][e] = fmaf(p, vx[e], o[g][e]);
            }
        }
        __syncwarp(); /* the scores are overwritten next */
    }

    /* Join the subgroups of the warp, then the warps. */
#pragma unroll
    for (int g = 0; g < G; g++) {
#pragma unroll
        for (int s = LANES; s < WARP; s *= 2)
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                o[g][e] += __shfl_xor_sync(0xffffffffu, o[g][e], s);
        if (sub == 0)
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                value[warp][g][at + e] = o[g][e];
        if (lane == 0)
            top[warp][g] = m[g], total[warp][g] = l[g];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_g * d; i += ROW_THREADS) {
        int g = i / d, e = i % d;
        float high = -INFINITY, sum = 0, x = 0;
        for (int w = 0; w < ROW_WARPS; w++)
            high = fmaxf(high, top[w][g]);
        for (int w = 0; w < ROW_WARPS; w++) {
            float f = top[w][g] == -INFINITY ? 0.0f : expf(top[w][g] - high);
            sum = fmaf(total[w][g], f, sum);
            x = fmaf(value[w][g][e], f, x);
        }
        if (n_splits == 1) {
            from_f32(
                ((T *)a.out.data)[(int64_t)row * a.out.ld + (int64_t)(head0 + g) * d + e],
                x / sum);
            continue;
        }
        float *to = a.scratch +
                    (((int64_t)blockIdx.x * n_heads + head0 + g) * n_splits + split) *
                        (d + 2);
        to[e] = x;
        if (e == 0)
            to[d] = high, to[d + 1] = sum;
    }
}

/* Merges the results of the splits. Grid: one block of threads per (row, head). */
template <typename T>
static __global__ void join_splits(gpu_attention_job a, const int32_t *rows, int n_splits)
{
    await_stream();
    int d = a.kv.d_head, head = (int)blockIdx.y;
    int row = rows != NULL ? rows[blockIdx.x] : (int)blockIdx.x;
    const float *from = a.scratch +
                        ((int64_t)blockIdx.x * gridDim.y + head) * n_splits * (d + 2);
    float high = -INFINITY;
    for (int s = 0; s < n_splits; s++)
        high = fmaxf(high, from[s * (d + 2) + d]);
    for (int e = (int)threadIdx.x; e < d; e += (int)blockDim.x) {
        float x = 0, sum = 0;
        for (int s = 0; s < n_splits; s++) {
            const float *p = from + s * (d + 2);
            float f = p[d] == -INFINITY ? 0.0f : expf(p[d] - high);
            sum = fmaf(p[d + 1], f, sum);
            x = fmaf(p[e], f, x);
        }
        from_f32(((T *)a.out.data)[(int64_t)row * a.out.ld + (int64_t)head * d + e],
                 x / sum);
    }
}

/* Returns the number of splits of a row: enough blocks of threads for all multiprocessors, each
 * with at least a few KV blocks. */
static int splits_for(const gpu_attention_job &a, int n_rows, int per_row)
{
    int longest = a.b.table_ld,
        most = 4 * a.n_sm / (n_rows * per_row > 0 ? n_rows * per_row : 1);
    int useful = longest / (2 * ROW_WARPS), n = most < useful ? most : useful;
    int64_t room = a.scratch_floats /
                   ((int64_t)n_rows * (a.q.cols / a.kv.d_head) * (a.kv.d_head + 2));
    n = n < room ? n : (int)room;
    return a.math != GPU_FAST || n < 1 ? 1 : n;
}

template <typename T, int G, int LANES>
static void launch_rows(cudaStream_t s, const gpu_attention_job &a, const int32_t *rows,
                        int n)
{
    int group = a.q.cols / a.kv.d_head / a.kv.n_kv, chunks = (group + G - 1) / G;
    int n_splits = splits_for(a, n, a.kv.n_kv * chunks);
    dim3 grid((unsigned)n, (unsigned)(a.kv.n_kv * chunks), (unsigned)n_splits);
    auto kernel = attend_row<T, G, LANES>;
    LAUNCH(kernel, grid, ROW_THREADS, 0, s, a, rows, n_splits);
    if (n_splits > 1) {
        auto join = join_splits<T>;
        LAUNCH(join, dim3((unsigned)n, (unsigned)(a.q.cols / a.kv.d_head)), 128, 0, s, a,
               rows, n_splits);
    }
}

template <typename T, int LANES>
static void rows_by_group(cudaStream_t s, const gpu_attention_job &a, const int32_t *rows,
                          int n)
{
    int group = a.q.cols / a.kv.d_head / a.kv.n_kv;
    if (group == 1)
        launch_rows<T, 1, LANES>(s, a, rows, n);
    else if (group <= 4)
        launch_rows<T, 4, LANES>(s, a, rows, n);
    else
        launch_rows<T, 8, LANES>(s, a, rows, n);
}

template <typename T>
static void rows_by_head(cudaStream_t s, const gpu_attention_job &a, const int32_t *rows,
                         int n)
{
    if (n == 0)
        return;
    if (a.kv.d_head <= 8 * PIECE)
        rows_by_group<T, 8>(s, a, rows, n);
    else if (a.kv.d_head <= 16 * PIECE)
        rows_by_group<T, 16>(s, a, rows, n);
    else
        rows_by_group<T, 32>(s, a, rows, n);
}

/* --- a tile of rows --------------------------------------------------------------------------- */

enum { TILE_WARPS = 4, TILE_THREADS = TILE_WARPS * WARP };

/* A warp takes M times 16 rows.  With M = 2, K and V that it has loaded serve twice as many
 * products; with M = 1 shared memory is the bottleneck.  Shared memory holds the present KV block
 * and, if there is room, the next one. */
template <typename T, int D, int M> struct tile_of {
    enum {
        ROWS = TILE_WARPS * 16 * M,
        STAGES = D <= 128 ? 2 : 1,
        SPARING = D > 128 || M > 1, /* the copies use few registers (fetch) */
        SHARED = (ROWS + 2 * STAGES * TOKENS) * (D + PAD) * (int)sizeof(T),
    };
};

/* Computes s = q . k^T: M times 16 rows x 64 keys per warp. */
template <typename T, int D, int M>
static __device__ __forceinline__ void tile_scores(float (*s)[TOKENS / 8][4], const T *q,
                                                   const T *k, int lane)
{
    constexpr int LD = D + PAD;
#pragma unroll
    for (int i = 0; i < M * TOKENS / 8 * 4; i++)
        s[i / (TOKENS / 2)][i / 4 % (TOKENS / 8)][i % 4] = 0;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t qa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrix_x4(qa[m], q + (m * 16 + lane % 16) * LD + d + lane / 16 * 8);
#pragma unroll
        for (int i = 0; i < TOKENS / 8; i += 2) {
            uint32_t kb[4];
            load_matrix_x4(kb, k + (i * 8 + lane % 8 + lane / 16 * 8) * LD + d +
                                   lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<T>(s[m][i], qa[m], kb[0], kb[1]);
                mma_16816<T>(s[m][i + 1], qa[m], kb[2], kb[3]);
            }
        }
    }
}

/* Computes o += p . v, with p rounded to T. */
template <typename T, int D, int M>
static __device__ __forceinline__ void
tile_values(float (*o)[D / 8][4], const float (*p)[TOKENS / 8][4], const T *v, int lane)
{
    constexpr int LD = D + PAD;
#pragma unroll
    for (int k = 0; k < TOKENS / 16; k++) {
        uint32_t pa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int h = 0; h < 4; h++) {
                const float *pair = &p[m][2 * k + h / 2][h % 2 * 2];
                pa[m][h] = pack2<T>(pair[0], pair[1]);
            }
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            uint32_t vb[4];
            load_matrix_x4_trans(vb, v + (k * 16 + lane % 16) * LD + i * 8 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<T>(o[m][i], pa[m], vb[0], vb[1]);
                mma_16816<T>(o[m][i + 1], pa[m], vb[2], vb[3]);
            }
        }
    }
}

/* Turns a row's scores into weights.  Lane 4g + t has keys 2t, 2t + 1, 8 + 2t, ... of rows g (r =
 * 0) and g + 8 (r = 1); key0 is the first of them.  `all`: the row, at pos, sees the whole block.
 * Returns the factor for the row's output so far. */
static __device__ __forceinline__ float tile_weights(float (*s)[4], int r, int key0,
                                                     int pos, bool all, int window,
                                                     float scale, float &top, float &total)
{
    int oldest = window > 0 ? pos - window : -1;
    if (!all)
#pragma unroll
        for (int i = 0; i < TOKENS / 4; i++) {
            int key = key0 + i / 2 * 8 + i % 2;
            bool seen = (key <= pos) & (key > oldest);
            s[i / 2][2 * r + i % 2] = seen ? s[i / 2][2 * r + i % 2] : -INFINITY;
        }
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < TOKENS / 4; i++)
        most = fmaxf(most, s[i / 2][2 * r + i % 2]);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    float high = fmaxf(top, most * scale), base = high == -INFINITY ? 0.0f : high;
    float shrink = exp2_approx(top - base);
#pragma unroll
    for (int i = 0; i < TOKENS / 4; i++) {
        float &x = s[i / 2][2 * r + i % 2];
        x = exp2_approx(fmaf(x, scale, -base));
        sum += x;
    }
    total = total * shrink + sum; /* this lane's keys only; joined at the end */
    top = high;
    return shrink;
}

template <typename T, int D, int M>
static __global__ void __launch_bounds__(TILE_THREADS) attend_tile(gpu_attention_job a)
{
    await_stream();
    typedef tile_of<T, D, M> F;
    constexpr int LD = D + PAD, STAGES = F::STAGES;
    SHARED_DYNAMIC(shared);
    T *sq = (T *)shared, *ring = sq + F::ROWS * LD;
    const gpu_tile t = my_rows(a, F::ROWS);
    if (t.n_rows <= 0)
        return; /* the whole block of threads returns */
    int head = (int)blockIdx.y, kv_head = head / (a.q.cols / D / a.kv.n_kv);
    const int32_t *table = a.b.tables + (int64_t)t.seq * a.b.table_ld;
    int pos0 = a.b.pos[t.row], last = pos0 + t.n_rows - 1, begin = first_key(a, pos0);
    int b_from = begin / TOKENS, b_to = last / TOKENS;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int row0 = warp * 16 * M, first = pos0 + row0; /* the warp's rows */

    for (int i = (int)threadIdx.x; i < F::ROWS * (D / PIECE); i += TILE_THREADS) {
        int r = i / (D / PIECE), c = i % (D / PIECE) * PIECE;
        const T *from = (const T *)a.q.data +
                        (int64_t)(t.row + (r < t.n_rows ? r : 0)) * a.q.ld +
                        (int64_t)head * D + c;
        copy_async16(sq + r * LD + c, from, r < t.n_rows);
    }
#define FETCH(b)                                                                           \
    do {                                                                                   \
        int f_ = begin - (b)*TOKENS, e_ = last + 1 - (b)*TOKENS;                           \
        T *to_ = ring + (b) % STAGES * 2 * TOKENS * LD;                                    \
        fetch<T, D, TILE_THREADS, F::SPARING>(to_, kv_rows<T>(a, table[b], kv_head), f_,   \
                                              e_);                                         \
        fetch<T, D, TILE_THREADS, F::SPARING>(                                             \
            to_ + TOKENS * LD, kv_rows<T>(a, table[b], a.kv.n_kv + kv_head), f_, e_);      \
        copy_async_commit();                                                               \
    } while (0)
    FETCH(b_from);

    float o[M][D / 8][4], top[M][2], total[M][2];
#pragma unroll
    for (int i = 0; i < M * (D / 8) * 4; i++)
        o[i / (D / 2)][i / 4 % (D / 8)][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < 2 * M; i++)
        top[i / 2][i % 2] = -INFINITY, total[i / 2][i % 2] = 0;
    const float log2e = 1.4426950408889634f, scale = a.scale * log2e;

    for (int b = b_from; b <= b_to; b++) {
        const T *k = ring + b % STAGES * 2 * TOKENS * LD, *v = k + TOKENS * LD;
        if (STAGES > 1 && b < b_to) {
            FETCH(b + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        /* A warp skips a block if it has no rows, or if its rows see no key of the block yet. */
        if (row0 < t.n_rows && b * TOKENS < first + 16 * M) {
            float s[M][TOKENS / 8][4];
            tile_scores<T, D, M>(s, sq + row0 * LD, k, lane);
            bool all = b * TOKENS + TOKENS - 1 <= first &&
                       (a.window == 0 || first + 16 * M - 1 - b * TOKENS < a.window);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float shrink = tile_weights(s[m], r, b * TOKENS + lane % 4 * 2,
                                                first + m * 16 + lane / 4 + 8 * r, all,
                                                a.window, scale, top[m][r], total[m][r]);
#pragma unroll
                    for (int i = 0; i < D / 8; i++)
                        o[m][i][2 * r] *= shrink, o[m][i][2 * r + 1] *= shrink;
                }
            tile_values<T, D, M>(o, s, v, lane);
        }
        __syncthreads(); /* the stage is refilled next */
        if (STAGES == 1 && b < b_to)
            FETCH(b + 1);
    }
#undef FETCH
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        int m = i / 2, r = i % 2, row = row0 + m * 16 + lane / 4 + 8 * r;
        float sum = total[m][r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float inverse = 1.0f / sum;
        T *to = (T *)a.out.data + (int64_t)(t.row + row) * a.out.ld + (int64_t)head * D +
                lane % 4 * 2;
        if (row < t.n_rows)
#pragma unroll
            for (int e = 0; e < D / 8; e++)
                *(uint32_t *)(to + e * 8) = pack2<T>(o[m][e][2 * r] * inverse,
                                                     o[m][e][2 * r + 1] * inverse);
    }
}

template <typename T, int D, int M>
static void launch_tiles(cudaStream_t s, const gpu_attention_job &a)
{
    typedef tile_of<T, D, M> F;
    auto kernel = attend_tile<T, D, M>;
    static_assert(M > 1 || F::SHARED <= 99 * 1024,
                  "a block of threads has at most 99 KiB on sm_89; more on sm_80 and sm_90");
    if (F::SHARED > 48 * 1024)
        cudaFuncSetAttribute((const void *)kernel,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, F::SHARED);
    dim3 grid((unsigned)(a.b.n_tiles * (GPU_TILE_ROWS / F::ROWS)),
              (unsigned)(a.q.cols / D));
    LAUNCH(kernel, grid, TILE_THREADS, F::SHARED, s, a);
}

/* Uses wide tiles if there are enough of them for all multiprocessors. */
template <typename T, int D>
static void choose_tiles(cudaStream_t s, const gpu_attention_job &a)
{
    if ((size_t)tile_of<T, D, 2>::SHARED <= a.shared_bytes &&
        (int64_t)a.b.n_tiles * (a.q.cols / D) >= 2 * a.n_sm)
        launch_tiles<T, D, 2>(s, a);
    else
        launch_tiles<T, D, 1>(s, a);
}

/* Returns false if there is no kernel for this head size. */
template <typename T> static bool tiles_by_head(cudaStream_t s, const gpu_attention_job &a)
{
    if (!is_wide(a.q.data, a.q.ld, a.q.type) || a.out.ld % 2 != 0 ||
        (uintptr_t)a.out.data % 4 != 0)
        return false;
    switch (a.kv.d_head) {
    case 64:
        choose_tiles<T, 64>(s, a);
        return true;
    case 80:
        choose_tiles<T, 80>(s, a);
        return true;
    case 96:
        choose_tiles<T, 96>(s, a);
        return true;
    case 128:
        choose_tiles<T, 128>(s, a);
        return true;
    case 256:
        launch_tiles<T, 256, 1>(s, a); /* 32 rows do not fit the registers */
        return true;
    default:
        return false;
    }
}

void gpu_attention(cudaStream_t s, struct gpu_attention_job a)
{
    if (a.math == GPU_FIXED && gpu_attention_fixed(s, a))
        return;
    bool tiled = a.math != GPU_FAST || a.b.n_tiles == 0;
    if (!tiled && a.kv.type == 1)
        tiled = tiles_by_head<f16>(s, a);
    else if (!tiled && a.kv.type == 2)
        tiled = tiles_by_head<bf16>(s, a);
    bool all = a.math != GPU_FAST || !tiled; /* every row is processed alone */
    const int32_t *rows = all ? NULL : a.b.solo;
    int n = all ? a.b.n_rows : a.b.n_solo;
    WITH_TYPE(a.kv.type, T, rows_by_head<T>(s, a, rows, n))
}
