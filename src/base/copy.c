/* copy.c - see copy.h. It uses SSE2, which every x86-64 has; on other machines, memcpy. */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { LINE_BYTES = 64 };

static void copy_line(uint8_t *to, const uint8_t *from)
{
    __m128i part[4];
    for (int i = 0; i < 4; i++)
        part[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + 16 * i));
    for (int i = 0; i < 4; i++)
        _mm_stream_si128((__m128i *)(void *)(to + 16 * i), part[i]);
}

void copy_past_caches(void *dst, const void *src, size_t n)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    size_t head = -(uintptr_t)to % LINE_BYTES;
    if (head > n)
        head = n;
    memcpy(to, from, head);
    size_t at = head;
    for (; n - at >= LINE_BYTES; at += LINE_BYTES)
        copy_line(to + at, from + at);
    memcpy(to + at, from + at, n - at);
}

void copy_past_caches_end(void)
{
    _mm_sfence();
}

#else

void copy_past_caches(void *dst, const void *src, size_t n)
{
    memcpy(dst, src, n);
}

void copy_past_caches_end(void)
{
}

#endif
