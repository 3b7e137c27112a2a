/* k_kv.cu - rotary positions, and the only writers and reader of KV blocks.
 *
 * A block holds K, then V, each as [n_kv][64][d_head]: a head's 64 keys lie together, which is what
 * the attention kernels copy as one tile. */
#include "tensor/cuda/device.cuh"
#include "tensor/cuda/launch.h"

enum { THREADS = 256, TOKENS = 64 };

/* Element `i` of head x rotated at pos; unfused, as ops.h says. */
template <typename T>
static __device__ __forceinline__ float rotated(const T *x, int i, gpu_angles rope, int pos)
{
    int half = rope.d_rot / 2;
    if (i >= rope.d_rot)
        return to_f32(x[i]);
    int k = i < half ? i : i - half;
    float c = rope.cos[(int64_t)pos * half + k], s = rope.sin[(int64_t)pos * half + k];
    float x1 = to_f32(x[k]), x2 = to_f32(x[k + half]);
    return i < half ? __fsub_rn(__fmul_rn(x1, c), __fmul_rn(x2, s))
                    : __fadd_rn(__fmul_rn(x2, c), __fmul_rn(x1, s));
}

/* In place, so a thread owns both elements of a pair. */
template <typename T>
static __global__ void rope_rows(gpu_mat q, int d_head, gpu_angles rope, const int32_t *pos)
{
    int half = rope.d_rot / 2, n_pairs = q.cols / d_head * half;
    T *row = (T *)q.data + (int64_t)blockIdx.x * q.ld;
    for (int p = (int)threadIdx.x; p < n_pairs; p += (int)blockDim.x) {
        T *x = row + p / half * d_head;
        int i = p % half;
        float lo = rotated(x, i, rope, pos[blockIdx.x]);
        float hi = rotated(x, i + half, rope, pos[blockIdx.x]);
        from_f32(x[i], lo);
        from_f32(x[i + half], hi);
    }
}

void gpu_rope(cudaStream_t s, struct gpu_mat q, int d_head, struct gpu_angles rope,
              struct gpu_batch b)
{
    WITH_TYPE(q.type, T, {
        auto kernel = rope_rows<T>;
        LAUNCH(kernel, q.rows, THREADS, 0, s, q, d_head, rope, b.pos);
    })
}

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
static __global__ void kv_fill_rows(gpu_kv kv, gpu_mat rows, gpu_angles rope, gpu_batch b)
{
    int row = (int)blockIdx.x, pos = b.pos[row], width = kv.n_kv * kv.d_head;
    int32_t block = b.tables[(int64_t)b.row_seq[row] * b.table_ld + pos / TOKENS];
    const T *k = (const T *)rows.data + (int64_t)row * rows.ld;
    for (int j = (int)threadIdx.x; j < width; j += (int)blockDim.x) {
        int head = j / kv.d_head, i = j % kv.d_head;
        from_f32(k_of<T>(kv, block, head, pos % TOKENS)[i],
                 rotated(k + head * kv.d_head, i, rope, pos));
        v_of<T>(kv, block, head, pos % TOKENS)[i] = k[width + j];
    }
}

void gpu_kv_fill(cudaStream_t s, struct gpu_kv kv, struct gpu_mat rows,
                 struct gpu_angles rope, struct gpu_batch b)
{
    WITH_TYPE(kv.type, T, {
        auto kernel = kv_fill_rows<T>;
        LAUNCH(kernel, b.n_rows, THREADS, 0, s, kv, rows, rope, b);
    })
}

/* One block per (token, head) of a chunk. */
template <typename T>
static __global__ void kv_load_chunks(gpu_kv kv, gpu_chunks c, gpu_angles rope)
{
    int slot = (int)blockIdx.x, head = (int)blockIdx.y, i_chunk = (int)blockIdx.z;
    const T *chunk = (const T *)(c.first + i_chunk * c.stride);
    int32_t block = c.block[i_chunk], pos = c.pos0 + i_chunk * TOKENS + slot;
    const T *k = chunk + ((int64_t)head * TOKENS + slot) * kv.d_head;
    const T *v = chunk + ((int64_t)(kv.n_kv + head) * TOKENS + slot) * kv.d_head;
    for (int i = (int)threadIdx.x; i < kv.d_head; i += (int)blockDim.x) {
        from_f32(k_of<T>(kv, block, head, slot)[i], rotated(k, i, rope, pos));
        v_of<T>(kv, block, head, slot)[i] = v[i];
    }
}

void gpu_kv_load(cudaStream_t s, struct gpu_kv kv, struct gpu_chunks chunks,
                 struct gpu_angles rope)
{
    dim3 grid(TOKENS, (unsigned)kv.n_kv, (unsigned)chunks.n);
    unsigned threads = kv.d_head <= 64 ? 64 : 128;
    WITH_TYPE(kv.type, T, {
        auto kernel = kv_load_chunks<T>;
        LAUNCH(kernel, grid, threads, 0, s, kv, chunks, rope);
    })
}

template <typename T>
static __global__ void kv_read_rows(gpu_mat out, gpu_kv kv, gpu_batch b)
{
    int row = (int)blockIdx.x, pos = b.pos[row], width = kv.n_kv * kv.d_head;
    int32_t block = b.tables[(int64_t)b.row_seq[row] * b.table_ld + pos / TOKENS];
    T *o = (T *)out.data + (int64_t)row * out.ld;
    for (int j = (int)threadIdx.x; j < width; j += (int)blockDim.x) {
        o[j] = k_of<T>(kv, block, j / kv.d_head, pos % TOKENS)[j % kv.d_head];
        o[width + j] = v_of<T>(kv, block, j / kv.d_head, pos % TOKENS)[j % kv.d_head];
    }
}

void gpu_kv_read(cudaStream_t s, struct gpu_mat out, struct gpu_kv kv, struct gpu_batch b)
{
    WITH_TYPE(kv.type, T, {
        auto kernel = kv_read_rows<T>;
        LAUNCH(kernel, b.n_rows, THREADS, 0, s, out, kv, b);
    })
}
