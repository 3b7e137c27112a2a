/* mma.cuh - tensor-core steps and asynchronous copies (sm_80 and later) under readable names.
 *
 * Fragments of m16n8k16 (row x column): lane 4g + t holds, of A, the pairs (row g, k 2t), (g + 8,
 * 2t), (g, 2t + 8), (g + 8, 2t + 8); of B, (k 2t, column g), (2t + 8, g); of C, (g, columns 2t and
 * 2t + 1), (g + 8, the same). */
#ifndef CUDA_MMA_CUH
#define CUDA_MMA_CUH

#include "cuda/device.cuh"

#ifdef HCACHE_CUDA_EMULATED

template <typename T>
static inline void mma_16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    float in[12];
    for (int i = 0; i < 12; i++) {
        T x;
        x.bits = (uint16_t)(words[i / 2] >> (i % 2 * 16));
        in[i] = to_f32(x);
    }
    emu_warp_mma(c, in);
}

/* Lane i has the address of row i % 8 of 8x8 matrix i / 8. */
static inline void emu_load_matrix(uint32_t r[4], const void *row, bool trans)
{
    unsigned lane;
    const uint16_t *const *all = emu_warp_gather((const uint16_t *)row, &lane);
    for (unsigned i = 0; i < 4; i++) {
        unsigned x = lane / 4, y = lane % 4 * 2;
        uint16_t lo = trans ? all[i * 8 + y][x] : all[i * 8 + x][y];
        uint16_t hi = trans ? all[i * 8 + y + 1][x] : all[i * 8 + x][y + 1];
        r[i] = (uint32_t)lo | (uint32_t)hi << 16;
    }
}
static inline void load_matrix_x4(uint32_t r[4], const void *row)
{
    emu_load_matrix(r, row, false);
}
static inline void load_matrix_x4_trans(uint32_t r[4], const void *row)
{
    emu_load_matrix(r, row, true);
}
static inline void copy_async16(void *to, const void *from, bool in)
{
    emu_copy_async16(to, from, in);
}
static inline void copy_async_commit(void)
{
    emu_copy_async_commit();
}
template <int N> static inline void copy_async_wait(void)
{
    emu_copy_async_wait(N);
}

#else

template <typename T>
static __device__ __forceinline__ void mma_16816(float c[4], const uint32_t a[4],
                                                 uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_16816<f16>(float c[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_16816<bf16>(float c[4], const uint32_t a[4],
                                                uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void load_matrix_x4(uint32_t r[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void load_matrix_x4_trans(uint32_t r[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* Copies 16 bytes from global to shared memory, or writes zeros there if `in` is false. */
static __device__ __forceinline__ void copy_async16(void *to, const void *from, bool in)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(in ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
#endif
