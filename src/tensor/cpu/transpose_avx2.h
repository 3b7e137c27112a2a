/* transpose_avx2.h - transposes 16 by 16 elements of 16 bits, and writes past the caches: for both
 * vec_*.h that have AVX2. */
#ifndef TENSOR_TRANSPOSE_AVX2_H
#define TENSOR_TRANSPOSE_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* One round: out[2i] and out[2i + 1] interleave r[i] and r[i + 8] in units of `bits` bits. */
#define INTERLEAVE(out, r, bits)                                                           \
    do {                                                                                   \
        _Pragma("GCC unroll 8") for (int i_ = 0; i_ < 8; i_++)                             \
        {                                                                                  \
            out[2 * i_] = _mm256_unpacklo_epi##bits(r[i_], r[i_ + 8]);                     \
            out[2 * i_ + 1] = _mm256_unpackhi_epi##bits(r[i_], r[i_ + 8]);                 \
        }                                                                                  \
    } while (0)

/* Sets dst[j][i] = src[i][j]. Strides are in elements.
 *
 * Interleaving rows i and i + 8 four times in units of 16 bits is a perfect shuffle.  Inside each
 * 128-bit half it leaves column c of rows 0..7 in one register and of rows 8..15 in the next. The
 * halves hold columns 0..7 and 8..15. */
static inline void transpose16_u16(uint16_t *dst, int dst_stride, const uint16_t *src,
                                   int src_stride)
{
    __m256i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = _mm256_loadu_si256((const __m256i *)(src + i * src_stride));
    INTERLEAVE(b, a, 16);
    INTERLEAVE(a, b, 16);
    INTERLEAVE(b, a, 16);
    INTERLEAVE(a, b, 16);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
        __m256i lo = _mm256_permute2x128_si256(a[2 * c], a[2 * c + 1], 0x20);
        __m256i hi = _mm256_permute2x128_si256(a[2 * c], a[2 * c + 1], 0x31);
        _mm256_storeu_si256((__m256i *)(dst + c * dst_stride), lo);
        _mm256_storeu_si256((__m256i *)(dst + (c + 8) * dst_stride), hi);
    }
}

#undef INTERLEAVE

/* Copies n bytes. The write bypasses the caches if dst is aligned to lines of 64 bytes and n is a
 * whole number of lines: half the memory traffic, because the lines are not read first. stream_end
 * orders these writes before later ones. */
static inline void stream_lines(void *dst, const void *src, size_t n)
{
    if (((uintptr_t)dst | n) % 64 != 0) {
        memcpy(dst, src, n);
        return;
    }
    for (size_t i = 0; i < n; i += 32)
        _mm256_stream_si256((__m256i *)((char *)dst + i),
                            _mm256_loadu_si256((const __m256i *)((const char *)src + i)));
}
static inline void stream_end(void)
{
    _mm_sfence();
}

#endif
