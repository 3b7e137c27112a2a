/* rng.h - seeded random numbers that are the same on every machine (splitmix64). */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

/* Mixes 64 bits (splitmix64's finaliser). The result depends only on z. */
static inline uint64_t rng_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct rng {
    uint64_t s;
};

static inline uint64_t rng_u64(struct rng *r)
{
    return rng_mix(r->s += 0x9e3779b97f4a7c15u);
}

/* Returns a uniform number in [0, n), n > 0. The bias of the multiplication is below 2^-32 for n <
 * 2^32. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)rng_u64(r) * n) >> 64);
}

/* Returns a uniform number in [0, 1). */
static inline double rng_unit(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

#endif
