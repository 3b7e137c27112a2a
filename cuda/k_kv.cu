/* k_kv.cu - rotary positions, and the only kernels that write and read KV blocks.
 *
 * A block holds K, then V, each as [n_kv][64][d_head]: a head's 64 keys are adjacent, and the
 * attention kernels copy them as one tile.  All kernels are bound by memory, so threads work on
 * pieces (device.cuh). */
#include "cuda/device.cuh"
#include "cuda/launch.h"

enum { THREADS = 256, TOKENS = 64 };

/* --- a head at a position ----------------------------------------------------------------------- */

static __device__ __forceinline__ int pieces_of(int n)
{
    return (n + PIECE - 1) / PIECE;
}

/* Rotates the first d_rot elements of a head, element i with element i + d_rot / 2, in pieces of
 * pairs. The operations are not fused, as ops.h requires. */
template <typename T>
static __device__ __forceinline__ void rotate_piece(T *to, const T *x, int piece,
                                                    gpu_angles rope, int pos, bool wide)
{
    int half = rope.d_rot / 2, i = piece * PIECE, n = half - i;
    float c[PIECE], s[PIECE], x1[PIECE], x2[PIECE], y1[PIECE], y2[PIECE];
    take_piece(c, rope.cos + (int64_t)pos * half + i, n, wide);
    take_piece(s, rope.sin + (int64_t)pos * half + i, n, wide);
    take_piece(x1, x + i, n, wide);
    take_piece(x2, x + half + i, n, wide);
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        y1[e] = __fsub_rn(__fmul_rn(x1[e], c[e]), __fmul_rn(x2[e], s[e]));
        y2[e] = __fadd_rn(__fmul_rn(x2[e], c[e]), __fmul_rn(x1[e], s[e]));
    }
    put_piece(to + i, y1, n, wide);
    put_piece(to + half + i, y2, n, wide);
}

template <typename T>
static __device__ __forceinline__ void copy_piece(T *to, const T *from, int i, int n,
                                                  bool wide)
{
    if (wide && i + PIECE <= n) {
#pragma unroll
        for (int b = 0; b < PIECE * (int)sizeof(T); b += 16)
            *(uint4 *)((uint8_t *)(to + i) +
                       b) = *(const uint4 *)((const uint8_t *)(from + i) + b);
        return;
    }
    for (int e = i; e < i + PIECE && e < n; e++)
        to[e] = from[e];
}

/* Returns the number of pieces of a head's K: first those of rotated pairs, then those that are not
 * rotated. */
static __device__ __forceinline__ int k_pieces(int d_head, gpu_angles rope)
{
    return pieces_of(rope.d_rot / 2) + pieces_of(d_head - rope.d_rot);
}

template <typename T>
static __device__ __forceinline__ void write_k(T *to, const T *k, int piece, int d_head,
                                               gpu_angles rope, int pos, bool wide)
{
    int n_pairs = pieces_of(rope.d_rot / 2);
    if (piece < n_pairs)
        rotate_piece(to, k, piece, rope, pos, wide);
    else
        copy_piece(to, k, rope.d_rot + (piece - n_pairs) * PIECE, d_head, wide);
}

static bool is_wide(gpu_angles rope)
{
    return rope.d_rot / 2 % PIECE == 0 && is_wide(rope.cos, 0, 0) &&
           is_wide(rope.sin, 0, 0);
}

static bool is_wide(gpu_kv kv)
{
    return kv.d_head % PIECE == 0 && kv.stride % 16 == 0 && is_wide(kv.blocks, 0, 0);
}

/* --- rows of queries ---------------------------------------------------------------------------- */

/* Rotates a row in place: a thread owns both elements of a pair. */
template <typename T>
static __device__ __forceinline__ void rope_row(T *row, int cols, int d_head,
                                                gpu_angles rope, int pos, bool wide)
{
    int n_pairs = pieces_of(rope.d_rot / 2), n = cols / d_head * n_pairs;
    for (int p = (int)threadIdx.x; p < n; p += THREADS) {
        T *x = row + p / n_pairs * d_head;
        rotate_piece(x, (const T *)x, p % n_pairs, rope, pos, wide);
    }
}

template <typename T>
static __global__ void rope_rows(gpu_mat q, int d_head, gpu_angles rope, const int32_t *pos,
                                 bool wide)
{
    await_stream();
    rope_row((T *)q.data + (int64_t)blockIdx.x * q.ld, q.cols, d_head, rope,
             pos[blockIdx.x], wide);
}

static bool rope_is_wide(gpu_mat q, int d_head, gpu_angles rope)
{
    return is_wide(q.data, q.ld, q.type) && d_head % PIECE == 0 && is_wide(rope);
}

void gpu_rope(cudaStream_t s, struct gpu_mat q, int d_head, struct gpu_angles rope,
              struct gpu_batch b)
{
    bool wide = rope_is_wide(q, d_head, rope);
    WITH_TYPE(q.type, T, {
        auto kernel = rope_rows<T>;
        LAUNCH(kernel, q.rows, THREADS, 0, s, q, d_head, rope, b.pos, wide);
    })
}

/* --- into blocks, and back ---------------------------------------------------------------------- */

template <typename T>
static __device__ __forceinline__ T *k_of(gpu_kv kv, int32_t block, int head, int slot)
{
    return (T *)(kv.blocks + (int64_t)block * kv.stride) +
           ((int64_t)head * TOKENS + slot) * kv.d_head;
}
template <typename T>
static __device__ __forceinline__ T *v_of(gpu_kv kv, int32_t block, int head, int slot)
{
    return k_of<T>(kv, block, kv.n_kv + head, slot); /* V follows K */
}

template <typename T>
static __device__ __forceinline__ void fill_row(gpu_kv kv, gpu_mat rows, gpu_angles rope,
                                                gpu_batch b, int row, bool wide)
{
    const T *k = (const T *)rows.data + (int64_t)row * rows.ld, *v = k + rows.cols / 2;
    int pos = b.pos[row];
    int32_t block = b.tables[(int64_t)b.row_seq[row] * b.table_ld + pos / TOKENS];
    int per_k = k_pieces(kv.d_head, rope), per_v = pieces_of(kv.d_head);
    for (int p = (int)threadIdx.x; p < kv.n_kv * per_k; p += THREADS) {
        int head = p / per_k;
        write_k(k_of<T>(kv, block, head, pos % TOKENS), k + head * kv.d_head, p % per_k,
                kv.d_head, rope, pos, wide);
    }
    for (int p = (int)threadIdx.x; p < kv.n_kv * per_v; p += THREADS) {
        int head = p / per_v;
        copy_piece(v_of<T>(kv, block, head, pos % TOKENS), v + head * kv.d_head,
                   p % per_v * PIECE, kv.d_head, wide);
    }
}

template <typename T>
static __global__ void kv_fill_rows(gpu_kv kv, gpu_mat rows, gpu_angles rope, gpu_batch b,
                                    bool wide)
{
    await_stream();
    fill_row<T>(kv, rows, rope, b, (int)blockIdx.x, wide);
}

static bool fill_is_wide(gpu_kv kv, gpu_mat rows, gpu_angles rope)
{
    return is_wide(kv) && is_wide(rows.data, rows.ld, rows.type) &&
           rows.cols / 2 % PIECE == 0 && is_wide(rope);
}

void gpu_kv_fill(cudaStream_t s, struct gpu_kv kv, struct gpu_mat rows,
                 struct gpu_angles rope, struct gpu_batch b)
{
    bool wide = fill_is_wide(kv, rows, rope);
    WITH_TYPE(kv.type, T, {
        auto kernel = kv_fill_rows<T>;
        LAUNCH(kernel, b.n_rows, THREADS, 0, s, kv, rows, rope, b, wide);
    })
}

/* Blocks [.][0] rotate queries; blocks [.][1] fill the cache. */
template <typename T>
static __global__ void rope_kv_fill_rows(gpu_mat q, gpu_kv kv, gpu_mat rows,
                                         gpu_angles rope, gpu_batch b, bool q_wide,
                                         bool wide)
{
    await_stream();
    int row = (int)blockIdx.x;
    if (blockIdx.y == 0)
        rope_row((T *)q.data + (int64_t)row * q.ld, q.cols, kv.d_head, rope, b.pos[row],
                 q_wide);
    else
        fill_row<T>(kv, rows, rope, b, row, wide);
}

void gpu_rope_kv_fill(cudaStream_t s, struct gpu_mat q, struct gpu_kv kv,
                      struct gpu_mat rows, struct gpu_angles rope, struct gpu_batch b)
{
    bool q_wide = rope_is_wide(q, kv.d_head, rope), wide = fill_is_wide(kv, rows, rope);
    WITH_TYPE(kv.type, T, {
        auto kernel = rope_kv_fill_rows<T>;
        LAUNCH(kernel, dim3((unsigned)b.n_rows, 2), THREADS, 0, s, q, kv, rows, rope, b,
               q_wide, wide);
    })
}

/* kv_load_chunks has one block of threads per LOAD_RUN tokens of each (head, chunk). */
enum { LOAD_RUN = 16 };

template <typename T>
static __global__ void kv_load_chunks(gpu_kv kv, gpu_chunks c, gpu_angles rope, bool wide)
{
    await_stream();
    int slot0 = (int)blockIdx.x * LOAD_RUN, head = (int)blockIdx.y,
        i_chunk = (int)blockIdx.z;
    const T *chunk = (const T *)(c.first + i_chunk * c.stride);
    const T *v = (const T *)(c.first + i_chunk * c.stride + c.v_at);
    int32_t block = c.block[i_chunk], pos0 = c.pos0 + i_chunk * TOKENS;
    int per_k = k_pieces(kv.d_head, rope), per_v = pieces_of(kv.d_head);
    for (int p = (int)threadIdx.x; p < LOAD_RUN * per_k; p += THREADS) {
        int slot = slot0 + p / per_k;
        write_k(k_of<T>(kv, block, head, slot),
                chunk + ((int64_t)head * TOKENS + slot) * kv.d_head, p % per_k, kv.d_head,
                rope, pos0 + slot, wide);
    }
    for (int p = (int)threadIdx.x; p < LOAD_RUN * per_v; p += THREADS) {
        int slot = slot0 + p / per_v;
        copy_piece(v_of<T>(kv, block, head, slot),
                   v + ((int64_t)head * TOKENS + slot) * kv.d_head, p % per_v * PIECE,
                   kv.d_head, wide);
    }
}

void gpu_kv_load(cudaStream_t s, struct gpu_kv kv, struct gpu_chunks chunks,
                 struct gpu_angles rope)
{
    dim3 grid(TOKENS / LOAD_RUN, (unsigned)kv.n_kv, (unsigned)chunks.n);
    bool wide = is_wide(kv) && is_wide(rope) && is_wide(chunks.first, 0, 0) &&
                chunks.stride % 16 == 0 && chunks.v_at % 16 == 0;
    WITH_TYPE(kv.type, T, {
        auto kernel = kv_load_chunks<T>;
        LAUNCH(kernel, grid, THREADS, 0, s, kv, chunks, rope, wide);
    })
}

template <typename T>
static __global__ void kv_read_rows(gpu_mat out, gpu_kv kv, gpu_batch b)
{
    await_stream();
    int row = (int)blockIdx.x, pos = b.pos[row], width = kv.n_kv * kv.d_head;
    int32_t block = b.tables[(int64_t)b.row_seq[row] * b.table_ld + pos / TOKENS];
    T *o = (T *)out.data + (int64_t)row * out.ld;
    for (int j = (int)threadIdx.x; j < width; j += (int)blockDim.x) {
        o[j] = k_of<T>(kv, block, j / kv.d_head, pos % TOKENS)[j % kv.d_head];
        o[out.cols / 2 + j] = v_of<T>(kv, block, j / kv.d_head,
                                      pos % TOKENS)[j % kv.d_head];
    }
}

void gpu_kv_read(cudaStream_t s, struct gpu_mat out, struct gpu_kv kv, struct gpu_batch b)
{
    WITH_TYPE(kv.type, T, {
        auto kernel = kv_read_rows<T>;
        LAUNCH(kernel, b.n_rows, THREADS, 0, s, out, kv, b);
    })
}
