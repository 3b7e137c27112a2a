/* device.cuh - shared by the kernels: element types, reductions, and the macro that launches a
 * kernel.
 *
 * With HCACHE_CUDA_EMULATED the same sources compile for the CPU (sim/cuda_emu), where the tests
 * run them lane by lane. */
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#include <stdint.h>
#include <string.h>

#ifdef HCACHE_CUDA_EMULATED
#include "cuda_emu.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/untried/early.h"

template <typename... P, typename... A>
static void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                   cudaStream_t stream, A... args)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t how = {grid, block, shared, stream, nullptr, 0};
    early_launch(&how, &early);
    cudaLaunchKernelEx(&how, kernel,
                       static_cast<P>(args)...); /* cudaGetLastError reports faults */
}
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                   \
    launch(kernel, dim3(grid), dim3(block), (shared), (stream), __VA_ARGS__)

/* Every kernel calls this first, so that it touches nothing before the earlier kernels of the
 * stream have ended. */
static __device__ __forceinline__ void await_stream()
{
    early_await();
}
#define SHARED_DYNAMIC(name) extern __shared__ __align__(16) unsigned char name[]
#endif

enum { WARP = 32 };

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

#ifdef HCACHE_CUDA_EMULATED
static inline float to_f32(f16 h)
{
    return f16_to_f32(h.bits);
}
static inline float to_f32(bf16 h)
{
    return bf16_to_f32(h.bits);
}
static inline void from_f32(f16 &h, float f)
{
    h.bits = f32_to_f16(f);
}
static inline void from_f32(bf16 &h, float f)
{
    h.bits = f32_to_bf16(f);
}
#else
static __device__ __forceinline__ float to_f32(f16 h)
{
    return __half2float(__ushort_as_half(h.bits));
}
static __device__ __forceinline__ float to_f32(bf16 h)
{
    return __uint_as_float((unsigned)h.bits << 16);
}
static __device__ __forceinline__ void from_f32(f16 &h, float f)
{
    h.bits = __half_as_ushort(__float2half_rn(f));
}
static __device__ __forceinline__ void from_f32(bf16 &h, float f)
{
    h.bits = __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
#endif
static __device__ __forceinline__ float to_f32(float f)
{
    return f;
}
static __device__ __forceinline__ void from_f32(float &h, float f)
{
    h = f;
}

/* --- pieces of a row ---
 *
 * A thread takes PIECE neighbouring elements at a time, by 16-byte loads and stores if the
 * addresses allow ("wide"): narrower accesses leave most of the memory's speed unused.  The
 * division of elements among threads, and so the order of sums, is the same in both cases. */
enum { PIECE = 8 };

/* PIECE elements as they lie in memory. They are converted later (unpack8), so that their loads can
 * be in flight during other work. */
template <typename T> struct raw_piece {
    uint4 w[PIECE * sizeof(T) / 16];
};

/* Loads a piece. p is 16-byte aligned. */
template <typename T>
static __device__ __forceinline__ void load_raw(raw_piece<T> &to, const T *p)
{
#pragma unroll
    for (int i = 0; i < (int)(sizeof to.w / sizeof to.w[0]); i++)
        to.w[i] = ((const uint4 *)p)[i];
}

static __device__ __forceinline__ void unpack8(float *x, const raw_piece<float> &v)
{
    const uint32_t w[PIECE] = {v.w[0].x, v.w[0].y, v.w[0].z, v.w[0].w,
                               v.w[1].x, v.w[1].y, v.w[1].z, v.w[1].w};
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        memcpy(&x[i], &w[i], sizeof x[i]);
}
template <typename T>
static __device__ __forceinline__ void unpack8(float *x, const raw_piece<T> &v)
{
    uint32_t w[4] = {v.w[0].x, v.w[0].y, v.w[0].z, v.w[0].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        T lo, hi;
        lo.bits = (uint16_t)(w[i] & 0xffff);
        hi.bits = (uint16_t)(w[i] >> 16);
        x[2 * i] = to_f32(lo);
        x[2 * i + 1] = to_f32(hi);
    }
}

template <typename T> static __device__ __forceinline__ void load8(float *x, const T *p)
{
    raw_piece<T> v;
    load_raw(v, p);
    unpack8(x, v);
}

/* Rounds two f32 to T and packs them, the first into the low half. */
template <typename T> static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    T a, b;
    from_f32(a, lo);
    from_f32(b, hi);
    return (uint32_t)a.bits | (uint32_t)b.bits << 16;
}

static __device__ __forceinline__ void store8(float *p, const float *x)
{
    ((float4 *)p)[0] = float4{x[0], x[1], x[2], x[3]};
    ((float4 *)p)[1] = float4{x[4], x[5], x[6], x[7]};
}
template <typename T> static __device__ __forceinline__ void store8(T *p, const float *x)
{
    *(uint4 *)p = uint4{pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]),
                        pack2<T>(x[6], x[7])};
}

/* Loads a piece of which the row still has n elements; the others become zero. */
template <typename T>
static __device__ __forceinline__ void take_piece(float *x, const T *p, int n, bool wide)
{
    if (wide && n >= PIECE) {
        load8(x, p);
        return;
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        x[e] = e < n ? to_f32(p[e]) : 0.0f;
}
template <typename T>
static __device__ __forceinline__ void put_piece(T *p, const float *x, int n, bool wide)
{
    if (wide && n >= PIECE) {
        store8(p, x);
        return;
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        if (e < n)
            from_f32(p[e], x[e]);
}

/* Returns whether rows that are `ld` elements apart can be accessed 16 bytes at a time. */
static inline bool is_wide(const void *p, int64_t ld, int type)
{
    return (uintptr_t)p % 16 == 0 && ld * (type == 0 ? 4 : 2) % 16 == 0;
}

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* Returns, in every thread, the sum over a block of N_THREADS threads. */
template <int N_THREADS> static __device__ __forceinline__ float block_sum(float x)
{
    __shared__ float part[N_THREADS / WARP];
    x = warp_sum(x);
    __syncthreads(); /* the previous sum has been read */
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < N_THREADS / WARP; i++)
        x += part[i];
    return x;
}

/* Runs the statements with T as the element type of number `type`. */
#define WITH_TYPE(type, T, ...)                                                            \
    switch (type) {                                                                        \
    case 0: {                                                                              \
        typedef float T;                                                                   \
        __VA_ARGS__;                                                                       \
        break;                                                                             \
    }                                                                                      \
    case 1: {                                                                              \
        typedef f16 T;                                                                     \
        __VA_ARGS__;                                                                       \
        break;                                                                             \
    }                                                                                      \
    default: {                                                                             \
        typedef bf16 T;                                                                    \
        __VA_ARGS__;                                                                       \
        break;                                                                             \
    }                                                                                      \
    }

static inline unsigned blocks_for(int64_t n, int64_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}

#endif
