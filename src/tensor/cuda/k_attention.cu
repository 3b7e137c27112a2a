/* k_attention.cu - attention over the paged cache, in fast math; in exact math every row by attend_row,
 * unsplit.
 *
 * - attend_row: one row against all its keys, shared out over warps and, where rows are few, over
 *   blocks ("splits", joined by join_splits).  The heads that share a KV head go together, so that K
 *   and V are read once.  Any type and head size: the kernel of decoding.
 * - attend_tile: up to 64 rows of one sequence on the tensor cores, one KV block after another, with
 *   the next block on its way (cp.async) but for the widest heads: the kernel of prefill, for f16 and bf16.
 *
 * Both keep a running maximum and sum (online softmax), and neither touches a key that no row of the
 * launch sees: unwritten slots may hold anything. */
#include "tensor/cuda/attention.cuh"

/* --- one row ---------------------------------------------------------------------------------- */

enum { ROW_WARPS = 4, ROW_THREADS = ROW_WARPS * WARP, MAX_HEAD = 256 };

/* Elements [i, i + 8) of a head, zeros beyond its end. */
template <typename T>
static __device__ __forceinline__ void load_piece(float *x, const T *p, int i, int d,
                                                  bool wide)
{
    if (wide && i < d) {
        load8(x, p + i);
        return;
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        x[e] = i + e < d ? to_f32(p[i + e]) : 0.0f;
}

/* A warp's state: lane l holds elements [8 * (l % LANES), +8) of every head's output, for the keys
 * of its subgroup l / LANES.  LANES * 8 >= d_head. */
template <typename T, int G, int LANES>
static __global__ void __launch_bounds__(ROW_THREADS)
    attend_row(gpu_attention_job a, const int32_t *rows, int n_splits)
{
    await_stream();
    constexpr int SUB = WARP / LANES; /* keys at a time */
    __shared__ float score[ROW_WARPS][G][TOKENS];
    __shared__ float top[ROW_WARPS][G], total[ROW_WARPS][G];
    __shared__ float value[ROW_WARPS][G][LANES * PIECE];

    int n_heads = a.q.cols / a.kv.d_head, group = n_heads / a.kv.n_kv, d = a.kv.d_head;
    int chunks = (group + G - 1) / G; /* of heads that share a KV head */
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
        load_piece(q[g], qp, at, d, false);
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
                load_piece(kx, k + (int64_t)j * d, at, d, wide);
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
            float shrink = expf(m[g] - high); /* 0 at first, where m is -infinity */
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
            load_piece(vx, v + (int64_t)j * d, at, d, wide);
#pragma unroll
            for (int g = 0; g < G; g++) {
                float p = score[warp][g][j];
#pragma unroll
                for (int e = 0; e < PIECE; e++)
                    o[g][e] = fmaf(p, vx[e], o[g][e]);
            }
        }
        __syncwarp(); /* the scores are written anew */
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

/* One block per (row, head). */
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

/* Enough blocks for every multiprocessor, each with a few KV blocks at least. */
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

/* How many KV blocks a tile holds: the one at work, and where shared memory has room the next on its way. */
template <int D> struct tile_stages {
    enum { N = D <= 128 ? 2 : 1 };
};

template <typename T, int D> static constexpr size_t tile_shared()
{
    return (size_t)(1 + 2 * tile_stages<D>::N) * TOKENS * (D + PAD) *
           sizeof(T); /* Q, K, V */
}

template <typename T, int D>
static __global__ void __launch_bounds__(TILE_THREADS) attend_tile(gpu_attention_job a)
{
    await_stream();
    constexpr int LD = D + PAD, K_STEPS = D / 16, N_KEYS = TOKENS / 8, N_OUT = D / 8;
    constexpr int STAGES = tile_stages<D>::N;
    SHARED_DYNAMIC(shared);
    T *sq = (T *)shared, *sk[STAGES], *sv[STAGES];
    for (int i = 0; i < STAGES; i++) {
        sk[i] = sq + (1 + i) * TOKENS * LD;
        sv[i] = sq + (1 + STAGES + i) * TOKENS * LD;
    }
    /* Late tiles have the most keys: they start first. */
    const gpu_tile t = a.b.tiles[a.b.n_tiles - 1 - (int)blockIdx.x];
    int n_heads = a.q.cols / D, head = (int)blockIdx.y,
        kv_head = head / (n_heads / a.kv.n_kv);
    const int32_t *table = a.b.tables + (int64_t)t.seq * a.b.table_ld;
    int pos0 = a.b.pos[t.row], last = pos0 + t.n_rows - 1, begin = first_key(a, pos0);
    int b_from = begin / TOKENS, b_to = last / TOKENS;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int g = lane / 4, tq = lane % 4;

    for (int i = (int)threadIdx.x; i < TOKENS * (D / PIECE); i += TILE_THREADS) {
        int r = i / (D / PIECE), c = i % (D / PIECE) * PIECE;
        const T *from = (const T *)a.q.data +
                        (int64_t)(t.row + (r < t.n_rows ? r : 0)) * a.q.ld +
                        (int64_t)head * D + c;
        copy_async16(sq + r * LD + c, from, r < t.n_rows);
    }
#define FETCH(b, stage)                                                                    \
    do {                                                                                   \
        int f_ = begin - (b)*TOKENS, e_ = last + 1 - (b)*TOKENS;                           \
        fetch<T, D, TILE_THREADS>(sk[stage], kv_rows<T>(a, table[b], kv_head), f_, e_);                  \
        fetch<T, D, TILE_THREADS>(sv[stage], kv_rows<T>(a, table[b], a.kv.n_kv + kv_head), f_, e_);      \
        copy_async_commit();                                                               \
    } while (0)
    FETCH(b_from, 0);

    float o[N_OUT][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < N_OUT; i++)
        o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    const float log2e = 1.4426950408889634f, scale = a.scale * log2e;
    int row_pos[2] = {pos0 + warp * 16 + g, pos0 + warp * 16 + g + 8};

    for (int b = b_from; b <= b_to; b++) {
        int stage = (b - b_from) % STAGES;
        if (STAGES > 1 && b < b_to) {
            FETCH(b + 1, (b + 1 - b_from) % STAGES);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        /* s = q . k^T: 16 rows x 64 keys a warp */
        float s[N_KEYS][4];
#pragma unroll
        for (int i = 0; i < N_KEYS; i++)
            s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) {
            uint32_t qa[4];
            load_matrix_x4(qa, sq + (warp * 16 + lane % 16) * LD + k * 16 + lane / 16 * 8);
#pragma unroll
            for (int i = 0; i < N_KEYS; i += 2) {
                uint32_t kb[4];
                load_matrix_x4(kb, sk[stage] + (i * 8 + lane % 8 + lane / 16 * 8) * LD +
                                       k * 16 + lane / 8 % 2 * 8);
                mma_16816<T>(s[i], qa, kb[0], kb[1]);
                mma_16816<T>(s[i + 1], qa, kb[2], kb[3]);
            }
        }
        /* mask, maximum, weights: rows g and g + 8 of the warp's 16 */
        int key0 = b * TOKENS + tq * 2;
        bool inner = b * TOKENS + TOKENS - 1 <= pos0 &&
                     (a.window == 0 || last - b * TOKENS < a.window);
        float high[2] = {m[0], m[1]};
#pragma unroll
        for (int i = 0; i < N_KEYS; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int key = key0 + i * 8 + c % 2, p = row_pos[c / 2];
                bool seen = inner || (key <= p && (a.window == 0 || p - key < a.window));
                s[i][c] = seen ? s[i][c] * scale : -INFINITY;
                high[c / 2] = fmaxf(high[c / 2], s[i][c]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 1));
            high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 2));
            float base = high[r] == -INFINITY ? 0.0f : high[r], sum = 0;
            float shrink = exp2f(m[r] - base);
#pragma unroll
            for (int i = 0; i < N_KEYS; i++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    s[i][2 * r + c] = exp2f(s[i][2 * r + c] - base);
                    sum += s[i][2 * r + c];
                }
            l[r] = l[r] * shrink + sum; /* this lane's keys only; joined at the end */
            m[r] = high[r];
#pragma unroll
            for (int i = 0; i < N_OUT; i++)
                o[i][2 * r] *= shrink, o[i][2 * r + 1] *= shrink;
        }
        /* o += p . v */
#pragma unroll
        for (int k = 0; k < TOKENS / 16; k++) {
            uint32_t pa[4] = {pack2<T>(s[2 * k][0], s[2 * k][1]),
                              pack2<T>(s[2 * k][2], s[2 * k][3]),
                              pack2<T>(s[2 * k + 1][0], s[2 * k + 1][1]),
                              pack2<T>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int i = 0; i < N_OUT; i += 2) {
                uint32_t vb[4];
                load_matrix_x4_trans(vb, sv[stage] + (k * 16 + lane % 16) * LD + i * 8 +
                                             lane / 16 * 8);
                mma_16816<T>(o[i], pa, vb[0], vb[1]);
                mma_16816<T>(o[i + 1], pa, vb[2], vb[3]);
            }
        }
        __syncthreads(); /* the stage is filled anew */
        if (STAGES == 1 && b < b_to)
            FETCH(b + 1, 0);
    }
#undef FETCH
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
        l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
        int row = warp * 16 + g + 8 * r;
        float inverse = 1.0f / l[r];
        T *to = (T *)a.out.data + (int64_t)(t.row + row) * a.out.ld + (int64_t)head * D +
                tq * 2;
        if (row < t.n_rows)
#pragma unroll
            for (int i = 0; i < N_OUT; i++) {
                from_f32(to[i * 8], o[i][2 * r] * inverse);
                from_f32(to[i * 8 + 1], o[i][2 * r + 1] * inverse);
            }
    }
}

template <typename T, int D>
static void launch_tiles(cudaStream_t s, const gpu_attention_job &a)
{
    auto kernel = attend_tile<T, D>;
    constexpr size_t shared = tile_shared<T, D>();
    static_assert(shared <= 99 * 1024,
                  "what a block may have on sm_89; sm_80 and 90 have more");
    if (shared > 48 * 1024)
        cudaFuncSetAttribute((const void *)kernel,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    LAUNCH(kernel, dim3((unsigned)a.b.n_tiles, (unsigned)(a.q.cols / D)), TILE_THREADS,
           shared, s, a);
}

/* False where there is no kernel for this head size. */
template <typename T> static bool tiles_by_head(cudaStream_t s, const gpu_attention_job &a)
{
    if (a.q.ld % PIECE != 0 || (uintptr_t)a.q.data % 16 != 0)
        return false;
    switch (a.kv.d_head) {
    case 64:
        launch_tiles<T, 64>(s, a);
        return true;
    case 80:
        launch_tiles<T, 80>(s, a);
        return true;
    case 96:
        launch_tiles<T, 96>(s, a);
        return true;
    case 128:
        launch_tiles<T, 128>(s, a);
        return true;
    case 256:
        launch_tiles<T, 256>(s, a);
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
    bool all = a.math != GPU_FAST || !tiled; /* every row on its own */
    const int32_t *rows = all ? NULL : a.b.solo;
    int n = all ? a.b.n_rows : a.b.n_solo;
    WITH_TYPE(a.kv.type, T, rows_by_head<T>(s, a, rows, n))
}
