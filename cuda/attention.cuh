/* attention.cuh - shared by the attention kernels: finds keys and values in the KV blocks, and
 * copies them to shared memory. */
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "cuda/device.cuh"
#include "cuda/launch.h"
#include "cuda/mma.cuh"

/* PAD: elements between staged rows of a head, so that eight rows begin in different banks. */
enum { TOKENS = 64, PAD = 8 };

template <typename T>
static __device__ __forceinline__ const T *kv_rows(const gpu_attention_job &a,
                                                   int32_t block, int head)
{
    return (const T *)(a.kv.blocks + (int64_t)block * a.kv.stride) +
           (int64_t)head * TOKENS * a.kv.d_head;
}

static __device__ __forceinline__ int first_key(const gpu_attention_job &a, int pos)
{
    return a.window > 0 && pos + 1 > a.window ? pos + 1 - a.window : 0;
}

/* Returns 2^x, or 0 if that is below 2^-126. Exactly 1 for x = 0, and 0 for -inf. */
static __device__ __forceinline__ float exp2_approx(float x)
{
#ifdef HCACHE_CUDA_EMULATED
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Returns the rows of this block of threads, at most `rows` of a tile; n_rows <= 0: it has no rows.
 * Later rows have more keys, so they start first. */
static __device__ __forceinline__ gpu_tile my_rows(const gpu_attention_job &a, int rows)
{
    int parts = GPU_TILE_ROWS / rows, i = a.b.n_tiles * parts - 1 - (int)blockIdx.x;
    gpu_tile t = a.b.tiles[i / parts];
    int first = i % parts * rows, left = t.n_rows - first;
    t.row += first;
    t.n_rows = left < rows ? left : rows;
    return t;
}

/* Copies slots [0, 64) of one head's K or V to shared memory.  Slots outside [from, to) become
 * zeros: they may never have been written, and 0 * NaN is NaN. */
template <typename T, int D, int N_THREADS, bool SPARING = (D > 128)>
static __device__ __forceinline__ void fetch(T *to_smem, const T *rows, int from, int to)
{
    constexpr int ALL = TOKENS * (D / PIECE), COPIES = (ALL + N_THREADS - 1) / N_THREADS;
    constexpr int UNROLLED = SPARING ? 4 : COPIES; /* SPARING: the products need the registers */
#pragma unroll UNROLLED
    for (int j = 0; j < COPIES; j++) { /* rows have no gaps between them */
        int i = (int)threadIdx.x + j * N_THREADS;
        int slot = i / (D / PIECE), c = i % (D / PIECE) * PIECE;
        if (ALL % N_THREADS == 0 || i < ALL)
            copy_async16(to_smem + slot * (D + PAD) + c, rows + i * PIECE,
                         slot >= from && slot < to);
    }
}

#endif
