/* pack_impl.h - the inner loops of pack.c, which a processor's own functions may replace. */
#ifndef PACK_PACK_IMPL_H
#define PACK_PACK_IMPL_H

#include "pack/pack.h"

enum {
    LEVELS = 5,
    RANKS = 3 * LEVELS, /* the next rank stands for all other exponents */
    WINDOW = 32,        /* ranked exponents are this near to one another */
    PAD = 64,           /* bytes behind each buffer that loops may read and write */
};

struct pack_loops {
    /* Divides n numbers into exponents, low bytes and `upper`: of f16 the mantissa's upper bits
     * [n], of f32 the lower 16 bits [2 * n], of bf16 nothing. */
    void (*part)(enum pack_type type, const uint8_t *run, size_t n, uint8_t *exponents,
                 uint8_t *low, uint8_t *upper);
    /* Replaces n exponents by their ranks. short_of[i] is RANKS less the rank of exponent
     * first + i, 0 for an exponent without a rank. Writes exponents without a rank to `others`,
     * which has room for n + PAD bytes, and returns their number. */
    size_t (*rank)(uint8_t *exponents, size_t n, uint8_t first,
                   const uint8_t short_of[WINDOW], uint8_t *others);
    /* Writes the steps of n ranks to `steps`, and the ranks of the next level, less 3, to `next`,
     * which has room for n + PAD bytes. Returns the number of the latter. */
    size_t (*steps_put)(const uint8_t *ranks, size_t n, uint8_t *steps, uint8_t *next);
    /* Reads n steps. ranks[i] is the step, or for 3 the next of `next`, plus 3; NULL: plus 0.
     * `ranks` has room for n + PAD bytes. Returns the number of threes. `next` has n + PAD bytes,
     * of which those behind the valid ones mean nothing. */
    size_t (*steps_get)(const uint8_t *steps, size_t n, const uint8_t *next,
                        uint8_t *ranks);
    /* Puts n numbers together. exponents[16] are those of the ranks; the exponents of numbers of
     * the last rank are in `others`, one after another. `upper` is that of part. */
    void (*join)(enum pack_type type, const uint8_t *ranks, const uint8_t *exponents,
                 const uint8_t *others, const uint8_t *low, const uint8_t *upper, size_t n,
                 uint8_t *run);
};

/* Both return the loops for these instructions, or NULL if the processor lacks them. */
const struct pack_loops *pack_loops_avx2(void);
const struct pack_loops *pack_loops_vbmi2(void);

extern const struct pack_loops pack_loops_portable;

/* Returns the bytes of n steps. */
static inline size_t steps_bytes(size_t n)
{
    return n / 128 * 32 + (n % 128 + 3) / 4;
}

#endif
