/* cuda_emu.h - CUDA kernels on the CPU, for tests: every thread of a block is a coroutine.
 *
 * It is made to find mistakes, not to be fast:
 *  - Only kernels and copies can touch device memory; a host access is a SIGSEGV.
 *  - Streams are as lazy as CUDA allows: nothing runs before the host waits for it.  So a buffer
 *    that is reused too early, or a missing wait, gives wrong results every time.
 *  - Asynchronous copies into shared memory arrive when their thread waits for them, not before.
 *  - A warp runs as far as it can before the next one does.  The order of warps and lanes is
 *    reversed in every second block, so most missing barriers give wrong results.
 *  - A barrier that not all threads reach ends the program with its name.  So does a kernel that
 *    does not begin by waiting for the earlier work of its stream.
 *
 * It cannot show speed, races in other orders, and errors of the GPU's compiler. */
#ifndef CUDA_EMU_H
#define CUDA_EMU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include "cuda_runtime_api.h"

extern "C" {
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f);
}

#define __global__
#define __device__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__   static /* a block's memory is static: blocks run one after another */
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct uint4 {
    uint32_t x, y, z, w;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
struct float4 {
    float x, y, z, w;
};

/* Thread and block indices of the running coroutine, and the sizes of its block and grid. */
extern dim3 emu_thread, emu_block, emu_block_dim, emu_grid_dim;
extern unsigned char *emu_dynamic_shared;
#define threadIdx            emu_thread
#define blockIdx             emu_block
#define blockDim             emu_block_dim
#define gridDim              emu_grid_dim
#define SHARED_DYNAMIC(name) unsigned char *name = emu_dynamic_shared

/* Marks that the kernel waits for the earlier work of its stream. Every kernel must call it
 * (device.cuh). */
void await_stream(void);
void __syncthreads(void);
void __syncwarp(void);
/* Returns room for a value of at most 8 bytes of each lane of the warp, and the calling lane. */
void *emu_warp_slots(unsigned *lane);

/* Returns the values that all lanes of the warp passed, in the order of lanes. They are valid until
 * the gather after next. */
template <typename T> static inline const T *emu_warp_gather(T x, unsigned *lane)
{
    static_assert(sizeof x <= 8, "a slot has 8 bytes");
    T *all = (T *)emu_warp_slots(lane);
    all[*lane] = x;
    __syncwarp();
    return all;
}
/* The tensor-core step m16n8k16 of the whole warp (mma.cuh): c += A B. `in` has the calling lane's
 * 8 elements of A and 4 of B, `c` its 4 sums. */
void emu_warp_mma(float c[4], const float in[12]);

/* cp.async: copies 16 bytes, or writes zeros if `in` is false. commit ends a group of copies; wait
 * returns when at most `n_open` committed groups have not arrived. */
void emu_copy_async16(void *to, const void *from, bool in);
void emu_copy_async_commit(void);
void emu_copy_async_wait(unsigned n_open);

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int d)
{
    unsigned lane;
    (void)mask;
    const T *all = emu_warp_gather(x, &lane);
    return all[lane ^ (unsigned)d];
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
/* Atomic, because no coroutine switches inside it. */
static inline unsigned atomicAdd(unsigned *p, unsigned x)
{
    unsigned was = *p;
    *p += x;
    return was;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline unsigned __float_as_uint(float f)
{
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

void emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                std::function<void()> body);
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                   \
    do {                                                                                   \
        auto emu_kernel_ = (kernel);                                                       \
        emu_launch(dim3(grid), dim3(block), (shared), (stream),                            \
                   [=]() { emu_kernel_(__VA_ARGS__); });                                   \
    } while (0)

#endif
