/* k_attention_fixed.cu - attention in which each row is computed in one way, whatever its batch;
 * launch.h (gpu_attention_fixed) defines that way.
 *
 * - fixed_tile is for prefill: up to 64 rows of a sequence and one head, with all their keys.  A
 *   warp has 16 rows and all 64 keys of a block; splits are merged in registers.
 * - fixed_split is for decoding: one row and one split, with the heads that share a KV head as the
 *   rows of operand A.  A block's 64 keys are four strips of 16, one per warp; each warp has some
 *   of the output's columns.  fixed_join merges the splits.
 *
 * Both kernels give the same result, because each step is the same function, operands A are always
 * queries, and sums across lanes or warps have one order.  Every operation that the compiler could
 * fuse with another is written as an explicit intrinsic. */
#include "cuda/attention.cuh"

enum {
    /* KV blocks per split: enough to be worth a pass over the accumulators. 4096 tokens of one KV
     * head are 8 splits, and so 8 blocks of threads. */
    SPLIT = 8,
    STRIP = 16, /* keys of a strip */
    STRIPS = TOKENS / STRIP,
    N_WARPS = STRIPS,
    N_ROWS = 16, /* rows of operand A */
};

/* --- the steps -------------------------------------------------------------------------------- */

/* Sets s to the scores of 16 rows of q and the keys of N staged strips of k, from `strip` on. */
template <typename T, int D, int N>
static __device__ __forceinline__ void attend_scores(float (&s)[2 * N][4], const T *q,
                                                     const T *k, int strip)
{
    constexpr int LD = D + PAD;
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t qa[4], kb[4];
        load_matrix_x4(qa, q + lane % 16 * LD + kk * 16 + lane / 16 * 8);
#pragma unroll
        for (int i = 0; i < N; i++) {
            load_matrix_x4(kb, k + ((strip + i) * STRIP + lane % 8 + lane / 16 * 8) * LD +
                                   kk * 16 + lane / 8 % 2 * 8);
            mma_16816<T>(s[2 * i], qa, kb[0], kb[1]);
            mma_16816<T>(s[2 * i + 1], qa, kb[2], kb[3]);
        }
    }
}

/* Scales the scores, and hides keys that rows at pos[2] do not see; `key` is the strips' first key.
 * Raises high[2] to the largest score of each row in these strips. */
template <int N>
static __device__ __forceinline__ void attend_mask(float (&s)[2 * N][4], float high[2],
                                                   int key, const int pos[2], int window,
                                                   float scale)
{
    key += (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int at = key + i * 8 + c % 2, p = pos[c / 2];
            bool seen = (at <= p) & (at > (window > 0 ? p - window : -1));
            s[i][c] = seen ? __fmul_rn(s[i][c], scale) : -INFINITY;
            high[c / 2] = fmaxf(high[c / 2], s[i][c]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 1));
        high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 2));
    }
}

/* Returns the number that is subtracted from a row's scores: the row's maximum, or 0 while the row
 * has seen no key. The maximum is -inf then, and all weights must become 0. */
static __device__ __forceinline__ float base_of(float high)
{
    return high == -INFINITY ? 0.0f : high;
}

/* Computes this lane's four weights of row r (0 or 1: row g or g + 8 of the fragment) in one strip.
 * Returns their sum. */
static __device__ __forceinline__ float attend_weigh(float *lo, float *hi, int r,
                                                     float base)
{
    float *p[4] = {lo + 2 * r, lo + 2 * r + 1, hi + 2 * r, hi + 2 * r + 1}, sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *p[i] = exp2_approx(__fsub_rn(*p[i], base));
        sum = __fadd_rn(sum, *p[i]);
    }
    return sum;
}

/* A row's running maximum, and its running sum over this lane's keys. */
struct softmax {
    float m[2], l[2];
};

/* Adds the strips' sums of weights in ascending order to a row's running sum. Returns the factor
 * for the output so far. */
static __device__ __forceinline__ float attend_shrink(softmax &x, int r, float high,
                                                      const float sum[STRIPS])
{
    float shrink = exp2_approx(__fsub_rn(x.m[r], base_of(high)));
    float all = __fadd_rn(__fadd_rn(__fadd_rn(sum[0], sum[1]), sum[2]), sum[3]);
    x.l[r] = fmaf(x.l[r], shrink, all);
    x.m[r] = high;
    return shrink;
}

/* Computes o += p . v for 16 keys and N pairs of 8 columns, from `pair` on, `step` pairs apart.
 * Pairs from D / 16 on do not exist and are skipped. */
template <typename T, int D, int N>
static __device__ __forceinline__ void attend_values(float (&o)[2 * N][4],
                                                     const uint32_t p[4], const T *v,
                                                     int strip, int pair, int step)
{
    constexpr int LD = D + PAD;
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t vb[4];
        if (pair + i * step >= D / 16) /* the condition is the same for a whole warp */
            continue;
        load_matrix_x4_trans(vb, v + (strip * STRIP + lane % 16) * LD +
                                     (pair + i * step) * 16 + lane / 16 * 8);
        mma_16816<T>(o[2 * i], p, vb[0], vb[1]);
        mma_16816<T>(o[2 * i + 1], p, vb[2], vb[3]);
    }
}

/* Returns the sum over a row's four lanes, in each of these lanes. */
static __device__ __forceinline__ float row_sum(float l)
{
    l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
    return __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
}

/* Factors that merge a split (m, l, o) into the splits before it (M, L, O): O = o * add + O * keep.
 * A split without keys changes nothing. */
struct joined {
    float keep, add;
};
static __device__ __forceinline__ joined split_join(float &all_m, float &all_l, float m,
                                                    float l)
{
    float high = fmaxf(all_m, m);
    joined j;
    j.keep = all_m == -INFINITY ? 0.0f : exp2_approx(__fsub_rn(all_m, high));
    j.add = m == -INFINITY ? 0.0f : exp2_approx(__fsub_rn(m, high));
    all_l = fmaf(l, j.add, __fmul_rn(all_l, j.keep));
    all_m = high;
    return j;
}
static __device__ __forceinline__ float join_value(joined j, float all, float o)
{
    return fmaf(o, j.add, __fmul_rn(all, j.keep));
}

/* Returns o / l, with +0 in place of -0: the sign of a zero would otherwise depend on how many
 * blocks without keys were computed. */
static __device__ __forceinline__ float attend_result(float o, float l)
{
    return __fadd_rn(__fdiv_rn(o, l), 0.0f);
}

static __device__ __forceinline__ float log2_scale(const gpu_attention_job &a)
{
    return __fmul_rn(a.scale, 1.4426950408889634f);
}

/* Copies one piece of a query to shared memory: zeros if the query does not exist (in is false),
 * element by element if q's rows are not aligned (wide is false). */
template <typename T>
static __device__ __forceinline__ void fetch_piece(T *to, const T *from, bool in, bool wide)
{
    if (wide)
        copy_async16(to, from, in);
    else
        for (int e = 0; e < PIECE; e++) {
            to[e].bits = 0;
            if (in)
                to[e] = from[e];
        }
}

static __device__ __forceinline__ bool q_is_wide(const gpu_mat &q)
{
    return q.ld % PIECE == 0 && (uintptr_t)q.data % 16 == 0;
}

/* --- a tile of rows --------------------------------------------------------------------------- */

/* Heads above 128 have too many columns for one warp's registers (which hold the output twice): two
 * warps share the rows, and both compute the scores. */
template <typename T, int D> struct tile {
    enum {
        PARTS = D > 128 ? 2 : 1,
        THREADS = N_WARPS * PARTS * WARP,
        PAIRS = D / 16 / PARTS,
        STAGES = D <= 128 ? 2 : 1, /* stages of K and V: the present one and the next */
        SHARED = (1 + 2 * STAGES) * TOKENS * (D + PAD) * (int)sizeof(T),
    };
};

/* If `rows` is NULL, the tiles are the batch's; otherwise each of these rows is a tile. */
template <typename T, int D>
static __global__ void __launch_bounds__(tile<T, D>::THREADS)
    fixed_tile(gpu_attention_job a, const int32_t *rows)
{
    await_stream();
    typedef tile<T, D> F;
    constexpr int LD = D + PAD, STAGES = F::STAGES, PAIRS = F::PAIRS;
    SHARED_DYNAMIC(shared);
    T *sq = (T *)shared, *ring = sq + TOKENS * LD;
    gpu_tile t;
    if (rows != NULL) {
        t.row = rows[blockIdx.x];
        t.n_rows = 1;
        t.seq = a.b.row_seq[t.row];
    } else {
        t = my_rows(a, TOKENS);
        if (t.n_rows <= 0)
            return; /* the whole block of threads returns */
    }
    int head = (int)blockIdx.y, kv_head = head / (a.q.cols / D / a.kv.n_kv);
    const int32_t *table = a.b.tables + (int64_t)t.seq * a.b.table_ld;
    int pos0 = a.b.pos[t.row], last = pos0 + t.n_rows - 1, begin = first_key(a, pos0);
    int b_from = begin / TOKENS, b_to = last / TOKENS;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int row0 = warp % N_WARPS * N_ROWS, pair0 = warp / N_WARPS * PAIRS;
    int pos[2] = {pos0 + row0 + lane / 4, pos0 + row0 + lane / 4 + 8};
    float scale = log2_scale(a);
    bool wide = q_is_wide(a.q);

    for (int i = (int)threadIdx.x; i < TOKENS * (D / PIECE); i += F::THREADS) {
        int r = i / (D / PIECE), c = i % (D / PIECE) * PIECE;
        const T *from = (const T *)a.q.data +
                        (int64_t)(t.row + (r < t.n_rows ? r : 0)) * a.q.ld +
                        (int64_t)head * D + c;
        fetch_piece(sq + r * LD + c, from, r < t.n_rows, wide);
    }
#define FETCH(b)                                                                           \
    do {                                                                                   \
        int f_ = begin - (b)*TOKENS, e_ = last + 1 - (b)*TOKENS;                           \
        T *to_ = ring + (b) % STAGES * 2 * TOKENS * LD;                                    \
        fetch<T, D, F::THREADS>(to_, kv_rows<T>(a, table[b], kv_head), f_, e_);            \
        fetch<T, D, F::THREADS>(to_ + TOKENS * LD,                                         \
                                kv_rows<T>(a, table[b], a.kv.n_kv + kv_head), f_, e_);     \
        copy_async_commit();                                                               \
    } while (0)
    FETCH(b_from);

    float all_o[2 * PAIRS][4], o[2 * PAIRS][4];
    float all_m[2] = {-INFINITY, -INFINITY}, all_l[2] = {0, 0};
    softmax x = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int i = 0; i < 2 * PAIRS * 4; i++)
        all_o[i / 4][i % 4] = o[i / 4][i % 4] = 0;

    for (int b = b_from; b <= b_to; b++) {
        const T *k = ring + b % STAGES * 2 * TOKENS * LD, *v = k + TOKENS * LD;
        if (STAGES > 1 && b < b_to) {
            FETCH(b + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        float s[2 * STRIPS][4], high[2] = {x.m[0], x.m[1]}, shrink[2];
        attend_scores<T, D, STRIPS>(s, sq + row0 * LD, k, 0);
        attend_mask<STRIPS>(s, high, b * TOKENS, pos, a.window, scale);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum[STRIPS];
#pragma unroll
            for (int i = 0; i < STRIPS; i++)
                sum[i] = attend_weigh(s[2 * i], s[2 * i + 1], r, base_of(high[r]));
            shrink[r] = attend_shrink(x, r, high[r], sum);
        }
#pragma unroll
        for (int i = 0; i < 2 * PAIRS * 4; i++)
            o[i / 4][i % 4] = __fmul_rn(o[i / 4][i % 4], shrink[i % 4 / 2]);
#pragma unroll
        for (int i = 0; i < STRIPS; i++) {
            uint32_t p[4] = {pack2<T>(s[2 * i][0], s[2 * i][1]),
                             pack2<T>(s[2 * i][2], s[2 * i][3]),
                             pack2<T>(s[2 * i + 1][0], s[2 * i + 1][1]),
                             pack2<T>(s[2 * i + 1][2], s[2 * i + 1][3])};
            attend_values<T, D, PAIRS>(o, p, v, i, pair0, 1);
        }
        if (b % SPLIT == SPLIT - 1 || b == b_to) {
            joined j[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                j[r] = split_join(all_m[r], all_l[r], x.m[r], row_sum(x.l[r]));
                x.m[r] = -INFINITY, x.l[r] = 0;
            }
#pragma unroll
            for (int i = 0; i < 2 * PAIRS * 4; i++) {
                all_o[i / 4][i % 4] = join_value(j[i % 4 / 2], all_o[i / 4][i % 4],
                                                 o[i / 4][i % 4]);
                o[i / 4][i % 4] = 0;
            }
        }
        __syncthreads(); /* the stage is refilled next */
        if (STAGES == 1 && b < b_to)
            FETCH(b + 1);
    }
#undef FETCH
    T *to = (T *)a.out.data + (int64_t)t.row * a.out.ld + (int64_t)head * D;
#pragma unroll
    for (int i = 0; i < 2 * PAIRS * 4; i++) {
        int r = row0 + lane / 4 + i % 4 / 2 * 8;
        int c = pair0 * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (r < t.n_rows)
            from_f32(to[r * a.out.ld + c],
                     attend_result(all_o[i / 4][i % 4], all_l[i % 4 / 2]));
    }
}

/* --- one row ---------------------------------------------------------------------------------- */

template <typename T, int D> struct split {
    enum {
        THREADS = N_WARPS * WARP,
        PAIRS = (D / 16 + N_WARPS - 1) / N_WARPS, /* maximum pairs of a warp */
        STAGES = D <= 128 ? 2 : 1,
        P_LD = TOKENS + PAD,
        ELEMENTS = N_ROWS * (D + PAD) + STAGES * 2 * TOKENS * (D + PAD) + N_ROWS * P_LD,
        FLOATS = N_WARPS * (N_ROWS + 2 * WARP), /* maxima of rows, sums of lanes */
        SHARED = ELEMENTS * (int)sizeof(T) + FLOATS * (int)sizeof(float),
    };
};

/* Returns the place of a split's results, which fixed_join reads: o, m, l. */
static __device__ __forceinline__ float *partial_of(const gpu_attention_job &a, int i_row,
                                                    int head, int i, int n_splits, int d)
{
    int n_heads = a.q.cols / d;
    return a.scratch + (((int64_t)i_row * n_heads + head) * n_splits + i) * (d + 2);
}

/* Grid: row, up to 16 heads of a KV head, split.  If there is only one split, the kernel writes the
 * final results, and fixed_join does not run. */
template <typename T, int D>
static __global__ void __launch_bounds__(split<T, D>::THREADS)
    fixed_split(gpu_attention_job a, const int32_t *rows, int n_splits)
{
    await_stream();
    typedef split<T, D> F;
    constexpr int LD = D + PAD, STAGES = F::STAGES, PAIRS = F::PAIRS;
    SHARED_DYNAMIC(shared);
    T *sq = (T *)shared, *ring = sq + N_ROWS * LD, *sp = ring + STAGES * 2 * TOKENS * LD;
    float *tops = (float *)((T *)shared + F::ELEMENTS), *sums = tops + N_WARPS * N_ROWS;

    int row = rows[blockIdx.x], p0 = a.b.pos[row], begin = first_key(a, p0);
    int i_split = (int)blockIdx.z;
    if (i_split < begin / (SPLIT * TOKENS) || i_split > p0 / (SPLIT * TOKENS))
        return;
    int group = a.q.cols / D / a.kv.n_kv, chunks = (group + N_ROWS - 1) / N_ROWS;
    int kv_head = (int)blockIdx.y / chunks, chunk = (int)blockIdx.y % chunks;
    int head0 = kv_head * group + chunk * N_ROWS;
    int n_heads = group - chunk * N_ROWS < N_ROWS ? group - chunk * N_ROWS : N_ROWS;
    const int32_t *table = a.b.tables + (int64_t)a.b.row_seq[row] * a.b.table_ld;
    int b_from = begin / TOKENS, b_to = p0 / TOKENS;
    b_from = b_from > i_split * SPLIT ? b_from : i_split * SPLIT;
    b_to = b_to < i_split * SPLIT + SPLIT - 1 ? b_to : i_split * SPLIT + SPLIT - 1;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane / 4;
    int pos[2] = {p0, p0};
    float scale = log2_scale(a);
    bool wide = q_is_wide(a.q);

    for (int i = (int)threadIdx.x; i < N_ROWS * (D / PIECE); i += F::THREADS) {
        int r = i / (D / PIECE), c = i % (D / PIECE) * PIECE;
        const T *from = (const T *)a.q.data + (int64_t)row * a.q.ld +
                        (int64_t)(head0 + (r < n_heads ? r : 0)) * D + c;
        fetch_piece(sq + r * LD + c, from, r < n_heads, wide);
    }
#define FETCH(b)                                                                           \
    do {                                                                                   \
        int f_ = begin - (b)*TOKENS, e_ = p0 + 1 - (b)*TOKENS;                             \
        T *to_ = ring + (b) % STAGES * 2 * TOKENS * LD;                                    \
        fetch<T, D, F::THREADS>(to_, kv_rows<T>(a, table[b], kv_head), f_, e_);            \
        fetch<T, D, F::THREADS>(to_ + TOKENS * LD,                                         \
                                kv_rows<T>(a, table[b], a.kv.n_kv + kv_head), f_, e_);     \
        copy_async_commit();                                                               \
    } while (0)
    FETCH(b_from);

    float o[2 * PAIRS][4];
    softmax x = {{-INFINITY, -INFINITY}, {0, 0}}; /* all warps have the same values */
#pragma unroll
    for (int i = 0; i < 2 * PAIRS * 4; i++)
        o[i / 4][i % 4] = 0;
    for (int b = b_from; b <= b_to; b++) {
        const T *k = ring + b % STAGES * 2 * TOKENS * LD, *v = k + TOKENS * LD;
        if (STAGES > 1 && b < b_to) {
            FETCH(b + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        float s[2][4], high[2] = {-INFINITY, -INFINITY}, shrink[2];
        attend_scores<T, D, 1>(s, sq, k, warp);
        attend_mask<1>(s, high, b * TOKENS + warp * STRIP, pos, a.window, scale);
        if (lane % 4 == 0)
            tops[warp * N_ROWS + g] = high[0], tops[warp * N_ROWS + g + 8] = high[1];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            high[r] = x.m[r];
#pragma unroll
            for (int w = 0; w < N_WARPS; w++)
                high[r] = fmaxf(high[r], tops[w * N_ROWS + g + 8 * r]);
            sums[(warp * 2 + r) * WARP + lane] = attend_weigh(s[0], s[1], r,
                                                              base_of(high[r]));
            uint32_t *to = (uint32_t *)(sp + (g + 8 * r) * F::P_LD + warp * STRIP);
            to[lane % 4] = pack2<T>(s[0][2 * r], s[0][2 * r + 1]);
            to[lane % 4 + 4] = pack2<T>(s[1][2 * r], s[1][2 * r + 1]);
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum[STRIPS];
#pragma unroll
            for (int w = 0; w < STRIPS; w++)
                sum[w] = sums[(w * 2 + r) * WARP + lane];
            shrink[r] = attend_shrink(x, r, high[r], sum);
        }
#pragma unroll
        for (int i = 0; i < 2 * PAIRS * 4; i++)
            o[i / 4][i % 4] = __fmul_rn(o[i / 4][i % 4], shrink[i % 4 / 2]);
#pragma unroll
        for (int i = 0; i < STRIPS; i++) {
            uint32_t p[4];
            load_matrix_x4(p, sp + lane % 16 * F::P_LD + i * STRIP + lane / 16 * 8);
            attend_values<T, D, PAIRS>(o, p, v, i, warp, N_WARPS);
        }
        /* the stage, and the values that warps exchanged, are overwritten next */
        __syncthreads();
        if (STAGES == 1 && b < b_to)
            FETCH(b + 1);
    }
#undef FETCH
    x.l[0] = row_sum(x.l[0]), x.l[1] = row_sum(x.l[1]);
    float all_m[2] = {-INFINITY, -INFINITY}, all_l[2] = {0, 0};
    joined j[2] = {split_join(all_m[0], all_l[0], x.m[0], x.l[0]),
                   split_join(all_m[1], all_l[1], x.m[1], x.l[1])};
    T *out = (T *)a.out.data + (int64_t)row * a.out.ld;
#pragma unroll
    for (int i = 0; i < 2 * PAIRS * 4; i++) {
        int r = g + i % 4 / 2 * 8, pair = warp + i / 8 * N_WARPS;
        int c = pair * 16 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
        if (r >= n_heads || pair >= D / 16)
            continue;
        if (n_splits > 1)
            partial_of(a, (int)blockIdx.x, head0 + r, i_split, n_splits,
                       D)[c] = o[i / 4][i % 4];
        else
            from_f32(out[(head0 + r) * D + c],
                     attend_result(join_value(j[i % 4 / 2], 0, o[i / 4][i % 4]),
                                   all_l[i % 4 / 2]));
    }
    if (n_splits > 1 && warp == 0 && lane % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (g + 8 * r < n_heads) {
                float *to = partial_of(a, (int)blockIdx.x, head0 + g + 8 * r, i_split,
                                       n_splits, D);
                to[D] = x.m[r], to[D + 1] = x.l[r];
            }
}

/* Merges the results of the splits. Grid: one block of threads per (row, head). */
template <typename T>
static __global__ void fixed_join(gpu_attention_job a, const int32_t *rows, int n_splits)
{
    await_stream();
    int d = a.kv.d_head, head = (int)blockIdx.y, row = rows[blockIdx.x];
    int from = first_key(a, a.b.pos[row]) / (SPLIT * TOKENS),
        to = a.b.pos[row] / (SPLIT * TOKENS);
    for (int e = (int)threadIdx.x; e < d; e += (int)blockDim.x) {
        float all_m = -INFINITY, all_l = 0, all = 0;
        for (int i = from; i <= to; i++) {
            const float *p = partial_of(a, (int)blockIdx.x, head, i, n_splits, d);
            all = join_value(split_join(all_m, all_l, p[d], p[d + 1]), all, p[e]);
        }
        from_f32(((T *)a.out.data)[(int64_t)row * a.out.ld + (int64_t)head * d + e],
                 attend_result(all, all_l));
    }
}

/* --- launches --------------------------------------------------------------------------------- */

static void allow_shared(const void *kernel, int bytes)
{
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <typename T, int D>
static void launch_tiles(cudaStream_t s, const gpu_attention_job &a, const int32_t *rows,
                         int n)
{
    auto kernel = fixed_tile<T, D>;
    typedef tile<T, D> F;
    static_assert(F::SHARED <= 99 * 1024, "a block of threads has at most 99 KiB on sm_89");
    allow_shared((const void *)kernel, F::SHARED);
    LAUNCH(kernel, dim3((unsigned)n, (unsigned)(a.q.cols / D)), F::THREADS, F::SHARED, s, a,
           rows);
}

/* Launches as many rows at a time as scratch has room for. If the splits of a single row do not fit
 * into scratch, the row runs as a tile: this gives the same results, but uses only one
 * multiprocessor per head. */
template <typename T, int D>
static void launch_rows(cudaStream_t s, const gpu_attention_job &a)
{
    auto kernel = fixed_split<T, D>;
    auto join = fixed_join<T>;
    typedef split<T, D> F;
    static_assert(F::SHARED <= 99 * 1024, "a block of threads has at most 99 KiB on sm_89");
    int n_heads = a.q.cols / D, group = n_heads / a.kv.n_kv;
    int chunks = (group + N_ROWS - 1) / N_ROWS;
    int n_splits = (a.b.table_ld + SPLIT - 1) / SPLIT;
    int64_t room = a.scratch_floats / ((int64_t)n_heads * n_splits * (D + 2));
    int most = n_splits == 1 || room > a.b.n_solo ? a.b.n_solo : (int)room;
    if (most == 0) {
        launch_tiles<T, D>(s, a, a.b.solo, a.b.n_solo);
        return;
    }
    allow_shared((const void *)kernel, F::SHARED);
    for (int i = 0; i < a.b.n_solo; i += most) {
        const int32_t *rows = a.b.solo + i;
        unsigned n = (unsigned)(a.b.n_solo - i < most ? a.b.n_solo - i : most);
        LAUNCH(kernel, dim3(n, (unsigned)(a.kv.n_kv * chunks), (unsigned)n_splits),
               F::THREADS, F::SHARED, s, a, rows, n_splits);
        if (n_splits > 1)
            LAUNCH(join, dim3(n, (unsigned)n_heads), D <= 128 ? 128 : 256, 0, s, a, rows,
                   n_splits);
    }
}

template <typename T, int D> static bool rows_of(cudaStream_t s, const gpu_attention_job &a)
{
    if (a.b.n_tiles > 0)
        launch_tiles<T, D>(s, a, NULL, a.b.n_tiles * (GPU_TILE_ROWS / TOKENS));
    if (a.b.n_solo > 0)
        launch_rows<T, D>(s, a);
    return true;
}

template <typename T> static bool by_head(cudaStream_t s, const gpu_attention_job &a)
{
    switch (a.kv.d_head) {
    case 64:
        return rows_of<T, 64>(s, a);
    case 80:
        return rows_of<T, 80>(s, a);
    case 96:
        return rows_of<T, 96>(s, a);
    case 128:
        return rows_of<T, 128>(s, a);
    case 256:
        return rows_of<T, 256>(s, a);
    default:
        return false;
    }
}

int gpu_attention_fixed(cudaStream_t s, struct gpu_attention_job a)
{
    return a.kv.type == 1   ? by_head<f16>(s, a)
           : a.kv.type == 2 ? by_head<bf16>(s, a)
                            : false;
}
