/* pack_vbmi2.c - the loops of pack.c for AVX-512 with VBMI2, which spreads and gathers bytes by a
 * mask in one instruction. */
#include "pack/pack_impl.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

static __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static void store32(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

/* Returns the mask of the first n bytes, at most 64. */
static __mmask64 first_bytes(size_t n)
{
    return _bzhi_u64(~(uint64_t)0, (unsigned)n);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Adds to each step that is 3 the next value. Returns the number of threes. */
static size_t next_add(__m512i *step, __mmask64 valid, const uint8_t *next)
{
    __mmask64 threes = _mm512_mask_cmpeq_epi8_mask(valid, *step, _mm512_set1_epi8(3));
    if (next != NULL)
        *step = _mm512_add_epi8(*step,
                                _mm512_maskz_expand_epi8(threes, _mm512_loadu_si512(next)));
    return (size_t)_mm_popcnt_u64(threes);
}

static size_t steps_get(const uint8_t *steps, size_t n, const uint8_t *next, uint8_t *ranks)
{
    const __m512i three = _mm512_set1_epi8(3);
    const __m512i by[2] = {
        _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1),
        _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(6), 1)};
    size_t n_next = 0, i = 0;
    for (; i + 128 <= n; i += 128) {
        __m512i v = _mm512_broadcast_i64x4(load32(steps + i / 4));
        for (size_t q = 0; q < 2; q++) {
            __m512i step = _mm512_and_si512(_mm512_srlv_epi16(v, by[q]), three);
            n_next += next_add(&step, ~(__mmask64)0, next == NULL ? NULL : next + n_next);
            _mm512_storeu_si512(ranks + i + 64 * q, step);
        }
    }
    size_t left = n - i, width = (left + 3) / 4; /* groups of this width at the end */
    __m512i v = _mm512_maskz_loadu_epi8(first_bytes(width), steps + i / 4);
    for (; left > 0; left -= left < width ? left : width, i += width) {
        __m512i step = _mm512_and_si512(v, three);
        v = _mm512_srli_epi16(v, 2);
        n_next += next_add(&step, first_bytes(left < width ? left : width),
                           next == NULL ? NULL : next + n_next);
        store32(ranks + i, _mm512_castsi512_si256(step));
    }
    return n_next;
}

/* Writes the ranks from 3 on, less 3, to `next`, and leaves steps. Returns the number of threes. */
static size_t next_take(__m512i *rank, uint8_t *next)
{
    const __m512i three = _mm512_set1_epi8(3);
    __mmask64 large = _mm512_cmpge_epu8_mask(*rank, three);
    _mm512_storeu_si512(next,
                        _mm512_maskz_compress_epi8(large, _mm512_sub_epi8(*rank, three)));
    *rank = _mm512_min_epu8(*rank, three);
    return (size_t)_mm_popcnt_u64(large);
}

static size_t steps_put(const uint8_t *ranks, size_t n, uint8_t *steps, uint8_t *next)
{
    size_t n_next = 0, i = 0;
    for (; i + 128 <= n; i += 128) {
        __m512i a = _mm512_loadu_si512(ranks + i), b = _mm512_loadu_si512(ranks + i + 64);
        n_next += next_take(&a, next + n_next);
        n_next += next_take(&b, next + n_next);
        /* a shift by words moves bits of 4 steps, and none to another byte */
        a = _mm512_or_si512(a, _mm512_slli_epi16(b, 4));
        __m256i odd = _mm256_slli_epi16(_mm512_extracti64x4_epi64(a, 1), 2);
        store32(steps + i / 4, _mm256_or_si256(_mm512_castsi512_si256(a), odd));
    }
    size_t left = n - i, width = (left + 3) / 4;
    __m512i all = _mm512_setzero_si512();
    uint8_t *end = steps + i / 4;
    for (unsigned shift = 0; left > 0; shift += 2, i += width) {
        size_t here = left < width ? left : width;
        __m512i a = _mm512_maskz_loadu_epi8(first_bytes(here), ranks + i);
        n_next += next_take(&a, next + n_next);
        all = _mm512_or_si512(all, _mm512_sll_epi16(a, _mm_cvtsi32_si128((int)shift)));
        left -= here;
    }
    _mm512_mask_storeu_epi8(end, first_bytes(width), all);
    return n_next;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static void part(enum pack_type type, const uint8_t *run, size_t n, uint8_t *exponents,
                 uint8_t *low, uint8_t *upper)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const uint8_t *from = run + i * pack_width(type);
        __m512i w = _mm512_loadu_si512(from);
        if (type == PACK_F32) {
            __m512i b = _mm512_loadu_si512(from + 64);
            store32(upper + 2 * i, _mm512_cvtepi32_epi16(w));
            store32(upper + 2 * i + 32, _mm512_cvtepi32_epi16(b));
            w = _mm512_inserti64x4(
                _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(w, 16))),
                _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)), 1);
        }
        w = _mm512_shldi_epi16(w, w, 1);
        store32(low + i, _mm512_cvtepi16_epi8(w));
        w = _mm512_srli_epi16(w, 8);
        if (type == PACK_F16) {
            __m512i bits = _mm512_and_si512(w, _mm512_set1_epi16(7));
            store32(upper + i, _mm512_cvtepi16_epi8(bits));
            w = _mm512_srli_epi16(w, 3);
        }
        store32(exponents + i, _mm512_cvtepi16_epi8(w));
    }
    pack_loops_portable.part(type, run + i * pack_width(type), n - i, exponents + i,
                             low + i, upper + (type == PACK_F32 ? 2 * i : i));
}

static size_t rank(uint8_t *exponents, size_t n, uint8_t first,
                   const uint8_t short_of[WINDOW], uint8_t *others)
{
    const __m512i ranks = _mm512_set1_epi8(RANKS), from = _mm512_set1_epi8((char)first);
    const __m512i less_of = _mm512_castsi256_si512(load32(short_of));
    size_t n_others = 0;
    for (size_t i = 0; i < n; i += 64) {
        __mmask64 valid = first_bytes(n - i < 64 ? n - i : 64);
        __m512i e = _mm512_maskz_loadu_epi8(valid, exponents + i);
        __m512i at = _mm512_sub_epi8(e, from);
        __mmask64 ranked = _mm512_cmplt_epu8_mask(at, _mm512_set1_epi8(WINDOW));
        __m512i less = _mm512_maskz_permutexvar_epi8(ranked, at, less_of);
        __mmask64 other = _mm512_mask_testn_epi8_mask(valid, less, less);
        _mm512_storeu_si512(others + n_others, _mm512_maskz_compress_epi8(other, e));
        n_others += (size_t)_mm_popcnt_u64(other);
        _mm512_mask_storeu_epi8(exponents + i, valid, _mm512_sub_epi8(ranks, less));
    }
    return n_others;
}

/* Stores 32 f32 numbers: their upper and lower 16 bits. */
static void join_f32(__m512i high, const uint8_t *lower, uint8_t *run)
{
    for (int j = 0; j < 2; j++) {
        __m256i half = j == 0 ? _mm512_castsi512_si256(high)
                              : _mm512_extracti64x4_epi64(high, 1);
        __m512i h = _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
        __m512i l = _mm512_cvtepu16_epi32(load32(lower + 32 * j));
        _mm512_storeu_si512(run + 64 * j, _mm512_or_si512(h, l));
    }
}

static void join(enum pack_type type, const uint8_t *ranks, const uint8_t *exponents,
                 const uint8_t *others, const uint8_t *low, const uint8_t *upper, size_t n,
                 uint8_t *run)
{
    const __m256i of_rank = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)exponents));
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i r = load32(ranks + i), e = _mm256_shuffle_epi8(of_rank, r);
        __mmask32 other = _mm256_cmpeq_epi8_mask(r, _mm256_set1_epi8(RANKS));
        if (other != 0) {
            size_t n_others = (size_t)_mm_popcnt_u32(other);
            __mmask32 here = (__mmask32)first_bytes(n_others);
            e = _mm256_mask_expand_epi8(e, other, _mm256_maskz_loadu_epi8(here, others));
            others += n_others;
        }
        __m512i high = _mm512_cvtepu8_epi16(e);
        if (type == PACK_F16)
            high = _mm512_or_si512(_mm512_slli_epi16(high, 3),
                                   _mm512_cvtepu8_epi16(load32(upper + i)));
        __m512i w = _mm512_or_si512(_mm512_slli_epi16(high, 8),
                                    _mm512_cvtepu8_epi16(load32(low + i)));
        w = _mm512_shldi_epi16(w, w, 15);
        if (type == PACK_F32)
            join_f32(w, upper + 2 * i, run + 4 * i);
        else
            _mm512_storeu_si512(run + 2 * i, w);
    }
    pack_loops_portable.join(type, ranks + i, exponents, others, low + i,
                             upper + (type == PACK_F32 ? 2 * i : i), n - i,
                             run + i * pack_width(type));
}

static const struct pack_loops loops = {part, rank, steps_put, steps_get, join};

const struct pack_loops *pack_loops_vbmi2(void)
{
    bool has = __builtin_cpu_supports("avx512vbmi2") &&
               __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2");
    return has ? &loops : NULL;
}

#else

const struct pack_loops *pack_loops_vbmi2(void)
{
    return NULL;
}

#endif
