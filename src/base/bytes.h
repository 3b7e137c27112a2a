/* bytes.h - little-endian encoding, rounding, overflow-checked arithmetic on sizes, and the order
 * of texts.
 *
 * Everything on disk goes through these functions; no struct is ever cast from disk bytes. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Orders texts, or structs that begin with a pointer to one, for qsort and bsearch. */
static inline int text_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static inline void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void put_u32(uint8_t *p, uint32_t v)
{
    put_u16(p, (uint16_t)v);
    put_u16(p + 2, (uint16_t)(v >> 16));
}

static inline void put_u64(uint8_t *p, uint64_t v)
{
    put_u32(p, (uint32_t)v);
    put_u32(p + 4, (uint32_t)(v >> 32));
}

static inline uint16_t get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t get_u32(const uint8_t *p)
{
    return get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

static inline uint64_t get_u64(const uint8_t *p)
{
    return get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

/* Returns the smallest multiple of `unit` (a power of two) that is at least n. */
static inline uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

/* Sets *out = a * b and returns true. On overflow returns false, and *out means nothing. */
static inline bool mul_fits(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool add_fits(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif
