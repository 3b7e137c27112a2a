/* pack_avx2.c - the loops of pack.c for AVX2.
 *
 * Threes take the next list's values where they stand: for each pattern of threes in eight steps a
 * shuffle spreads the next eight values to them (spread), and for each pattern of large ranks a
 * shuffle gathers them (gather). The steps at the end of a list, fewer than 128, go through a
 * block of 128 of their own. */
#include "pack/pack_impl.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <pthread.h>
#include <string.h>

static uint8_t spread[256][8], gather[256][8];

static void tables_fill(void)
{
    for (int mask = 0; mask < 256; mask++) {
        uint8_t n = 0;
        memset(spread[mask], 0x80, 8); /* a shuffle gives 0 */
        memset(gather[mask], 0x80, 8);
        for (uint8_t i = 0; i < 8; i++)
            if (mask >> i & 1) {
                spread[mask][i] = n;
                gather[mask][n++] = i;
            }
    }
}

static __m128i load8(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

static __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static void store32(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Returns eight values: those of `next` at the bits of the mask, else 0. Moves *next. */
static __m128i spread8(uint32_t mask, const uint8_t **next)
{
    __m128i v = _mm_shuffle_epi8(load8(*next), load8(spread[mask]));
    *next += __builtin_popcount(mask);
    return v;
}

static __m256i spread32(uint32_t mask, const uint8_t **next)
{
    __m128i a = spread8(mask & 255, next), b = spread8(mask >> 8 & 255, next);
    __m128i c = spread8(mask >> 16 & 255, next), d = spread8(mask >> 24, next);
    return _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b));
}

/* Reads a block of 128 steps. Returns the number of its threes. */
static size_t block_get(const uint8_t *steps, const uint8_t *next, uint8_t *ranks)
{
    const __m256i three = _mm256_set1_epi8(3);
    __m256i v = load32(steps);
    size_t n = 0;
    for (int q = 0; q < 4; q++) {
        __m256i step = _mm256_and_si256(v, three);
        v = _mm256_srli_epi16(v, 2);
        uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(step, three));
        n += (size_t)__builtin_popcount(mask);
        if (next != NULL)
            step = _mm256_add_epi8(step, spread32(mask, &next));
        store32(ranks + 32 * q, step);
    }
    return n;
}

static size_t steps_get(const uint8_t *steps, size_t n, const uint8_t *next, uint8_t *ranks)
{
    size_t n_next = 0, i = 0;
    for (; i + 128 <= n; i += 128)
        n_next += block_get(steps + i / 4, next == NULL ? NULL : next + n_next, ranks + i);
    if (i < n) {
        size_t part = pack_loops_portable.steps_get(
            steps + i / 4, n - i, next == NULL ? NULL : next + n_next, ranks + i);
        n_next += part;
    }
    return n_next;
}

static size_t steps_put(const uint8_t *ranks, size_t n, uint8_t *steps, uint8_t *next)
{
    const __m256i three = _mm256_set1_epi8(3);
    size_t n_next = 0, i = 0;
    for (; i + 128 <= n; i += 128) {
        __m256i all = _mm256_setzero_si256();
        for (int q = 3; q >= 0; q--) /* a shift by words moves bits of 4 steps; see below */
            all = _mm256_or_si256(
                _mm256_slli_epi16(all, 2),
                _mm256_min_epu8(load32(ranks + i + 32 * (size_t)q), three));
        store32(steps + i / 4, all);
        for (int q = 0; q < 4; q++) {
            __m256i v = load32(ranks + i + 32 * (size_t)q);
            __m256i large = _mm256_cmpeq_epi8(_mm256_min_epu8(v, three), three);
            uint32_t mask = (uint32_t)_mm256_movemask_epi8(large);
            uint8_t less[32];
            store32(less, _mm256_sub_epi8(v, three));
            for (int j = 0; j < 4; j++, mask >>= 8) {
                __m128i few = _mm_shuffle_epi8(load8(less + 8 * j),
                                               load8(gather[mask & 255]));
                _mm_storel_epi64((__m128i *)(void *)(next + n_next), few);
                n_next += (size_t)__builtin_popcount(mask & 255);
            }
        }
    }
    if (i < n)
        n_next += pack_loops_portable.steps_put(ranks + i, n - i, steps + i / 4,
                                                next + n_next);
    return n_next;
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* Loads the upper 16 bits of 16 f32 numbers, and stores the lower 16. */
static __m256i part_f32(const uint8_t *run, uint8_t *lower)
{
    const __m256i word = _mm256_set1_epi32(0xffff);
    __m256i a = load32(run), b = load32(run + 32);
    __m256i l = _mm256_packus_epi32(_mm256_and_si256(a, word), _mm256_and_si256(b, word));
    __m256i h = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    store32(lower, _mm256_permute4x64_epi64(l, 0xd8));
    return _mm256_permute4x64_epi64(h, 0xd8);
}

/* Stores 16 f32 numbers. */
static void join_f32(__m256i high, const uint8_t *lower, uint8_t *run)
{
    __m256i h = _mm256_permute4x64_epi64(high, 0xd8);
    __m256i l = _mm256_permute4x64_epi64(load32(lower), 0xd8);
    store32(run, _mm256_unpacklo_epi16(l, h));
    store32(run + 32, _mm256_unpackhi_epi16(l, h));
}

static void part(enum pack_type type, const uint8_t *run, size_t n, uint8_t *exponents,
                 uint8_t *low, uint8_t *upper)
{
    const __m256i byte = _mm256_set1_epi16(255), seven = _mm256_set1_epi8(7);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i v[2], high;
        for (int j = 0; j < 2; j++) {
            size_t at = 2 * i + 32 * (size_t)j; /* of 16 numbers of 2 bytes */
            __m256i w = type == PACK_F32 ? part_f32(run + 2 * at, upper + at)
                                         : load32(run + at);
            v[j] = _mm256_or_si256(_mm256_slli_epi16(w, 1), _mm256_srli_epi16(w, 15));
        }
        __m256i packed = _mm256_packus_epi16(_mm256_and_si256(v[0], byte),
                                             _mm256_and_si256(v[1], byte));
        store32(low + i, _mm256_permute4x64_epi64(packed, 0xd8));
        packed = _mm256_packus_epi16(_mm256_srli_epi16(v[0], 8),
                                     _mm256_srli_epi16(v[1], 8));
        high = _mm256_permute4x64_epi64(packed, 0xd8);
        if (type == PACK_F16) {
            store32(upper + i, _mm256_and_si256(high, seven));
            high = _mm256_andnot_si256(seven, high);
            high = _mm256_srli_epi16(high, 3); /* the bits between bytes are 0 */
        }
        store32(exponents + i, high);
    }
    pack_loops_portable.part(type, run + i * pack_width(type), n - i, exponents + i,
                             low + i, upper + (type == PACK_F32 ? 2 * i : i));
}

static size_t rank(uint8_t *exponents, size_t n, uint8_t first,
                   const uint8_t short_of[WINDOW], uint8_t *others)
{
    /* A shuffle takes an index of 0x70 to 0x7f by its lower bits, and gives 0 for one from 0x80. */
    const __m256i ranks = _mm256_set1_epi8(RANKS), from = _mm256_set1_epi8((char)first);
    const __m256i bias = _mm256_set1_epi8(0x70), half = _mm256_set1_epi8(16);
    const __m256i below = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)short_of));
    const __m256i above = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)(short_of + 16)));
    size_t i = 0, n_others = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i e = load32(exponents + i), at = _mm256_sub_epi8(e, from);
        __m256i less = _mm256_shuffle_epi8(below, _mm256_adds_epu8(at, bias));
        at = _mm256_adds_epu8(_mm256_sub_epi8(at, half), bias);
        __m256i r = _mm256_sub_epi8(ranks,
                                    _mm256_or_si256(less, _mm256_shuffle_epi8(above, at)));
        uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(r, ranks));
        for (; mask != 0; mask &= mask - 1)
            others[n_others++] = exponents[i + (size_t)__builtin_ctz(mask)];
        store32(exponents + i, r);
    }
    return n_others + pack_loops_portable.rank(exponents + i, n - i, first, short_of,
                                               others + n_others);
}

/* Replaces exponents at the bits of the mask by the next ones of `others`. */
static __m256i others_set(__m256i exponents, uint32_t mask, const uint8_t **others)
{
    uint8_t e[32];
    store32(e, exponents);
    for (; mask != 0; mask &= mask - 1)
        e[__builtin_ctz(mask)] = *(*others)++;
    return load32(e);
}

static void join(enum pack_type type, const uint8_t *ranks, const uint8_t *exponents,
                 const uint8_t *others, const uint8_t *low, const uint8_t *upper, size_t n,
                 uint8_t *run)
{
    const __m256i last = _mm256_set1_epi8(RANKS);
    const __m256i of_rank = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)exponents));
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i r = load32(ranks + i), e = _mm256_shuffle_epi8(of_rank, r);
        uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(r, last));
        if (mask != 0)
            e = others_set(e, mask, &others);
        if (type == PACK_F16)
            e = _mm256_or_si256(
                _mm256_and_si256(_mm256_slli_epi16(e, 3), _mm256_set1_epi8((char)0xf8)),
                load32(upper + i));
        __m256i l = _mm256_permute4x64_epi64(load32(low + i), 0xd8);
        e = _mm256_permute4x64_epi64(e, 0xd8);
        __m256i v[2] = {_mm256_unpacklo_epi8(l, e), _mm256_unpackhi_epi8(l, e)};
        for (int j = 0; j < 2; j++) {
            size_t at = 2 * i + 32 * (size_t)j;
            __m256i w = _mm256_or_si256(_mm256_srli_epi16(v[j], 1),
                                        _mm256_slli_epi16(v[j], 15));
            if (type == PACK_F32)
                join_f32(w, upper + at, run + 2 * at);
            else
                store32(run + at, w);
        }
    }
    pack_loops_portable.join(type, ranks + i, exponents, others, low + i,
                             upper + (type == PACK_F32 ? 2 * i : i), n - i,
                             run + i * pack_width(type));
}

static const struct pack_loops loops = {part, rank, steps_put, steps_get, join};

const struct pack_loops *pack_loops_avx2(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!__builtin_cpu_supports("avx2"))
        return NULL;
    (void)pthread_once(&once, tables_fill);
    return &loops;
}

#else

const struct pack_loops *pack_loops_avx2(void)
{
    return NULL;
}

#endif
