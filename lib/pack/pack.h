/* pack.h - a lossless code for runs of bf16, f16 or f32 numbers.
 *
 * Of saved state (keys, values, hidden states) the signs and mantissas are noise, and the exponents
 * have 2.6 bits of entropy: two thirds of the bytes hold the same bits. The code is made for
 * unpacking at the speed of a disk: exponents are ranked by frequency, and a rank is written in
 * steps of two bits. A step of 0, 1 or 2 is the rank itself; 3 means that the rank, less 3, is
 * in the next level's list of steps. So each level is a list of fixed width, which vectors decode.
 *
 *   rank   0    1    2    3     4     5     6 ...  14            others
 *   code   0    1    2    3 0   3 1   3 2   3 3 0  3 3 3 3 2     3 3 3 3 3, and the exponent
 *
 * A run is coded in pieces of at most PACK_PIECE numbers with ranks of their own, an even number of
 * pieces if it is long, so that the keys and the values of a record never share one:
 *
 *   run     | type | 0 0 0 | bytes of the run, u32 | piece | piece | ...
 *   piece   | exponents of ranks 0 to 14 | lengths of levels 2 to 5, and of the others, u16 each
 *           | low bytes | [f16: two lists of upper mantissa bits] | [f32: the lower 16 bits of each
 *           number] | level 1 | ... 5 | others |
 *
 * A low byte is the number rotated left by one bit, modulo 256: the sign and seven bits of the
 * mantissa. A list of steps holds 128 steps in each 32 bytes: step i is in bits 2 * (i / 32) of
 * byte i % 32; the r < 128 steps at its end lie in ceil(r / 4) bytes in the same way. The upper
 * three bits of an f16 mantissa are a list of two bits each, and one of the third bits of the first
 * half of the numbers (bit 0) and of the second half (bit 1). The upper 16 bits of an f32 number
 * are coded as a bf16 number; so it takes at least 26 of its 32 bits.
 *
 * Packed bytes have no checksum; their owner has one. Unpacking never reads or writes outside its
 * arguments, whatever the bytes are. All functions are pure, and any thread may call them. */
#ifndef PACK_PACK_H
#define PACK_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACK_PIECE 16384

enum pack_type {
    PACK_BF16 = 1,
    PACK_F16 = 2,
    PACK_F32 = 3,
};

/* Returns the bytes of a number. */
static inline size_t pack_width(enum pack_type type)
{
    return type == PACK_F32 ? 4 : 2;
}

/* Packs n_bytes (whole numbers, below 2^32) into `to`. Returns the packed bytes, or 0
 * if they would be more than `room`: then the run is better kept as it is, and `to` has undefined
 * bytes. */
size_t pack_run(enum pack_type type, const void *run, size_t n_bytes, void *to,
                size_t room);

/* Returns the type whose code makes the beginning of a run smallest. `to` has room for the run. */
enum pack_type pack_guess(const void *run, size_t n_bytes, void *to);

/* Unpacks exactly n_bytes of numbers to `to`. Returns false if the packed bytes are not the code
 * of a run of this length; then `to` has undefined bytes. */
bool pack_undo(const void *packed, size_t n_packed, void *to, size_t n_bytes);

/* The inner loops: those for the processor, and those that it could do without. */
enum pack_loops_for {
    PACK_FOR_PROCESSOR,
    PACK_FOR_AVX2, /* on a processor without AVX2 the portable ones */
    PACK_PORTABLE,
};

/* From now on all threads use these loops: for tests and benchmarks, which compare them. */
void pack_use(enum pack_loops_for loops);

#endif
