/* gguf_types.h - the element types of GGUF tensors, and decoding them to f32.
 *
 * A type stores `block` elements in `bytes` bytes; rows hold whole blocks.  Decoding is exact: each
 * element is the value that the format defines, rounded to f32 at most once.  (Products of a scale
 * and a quantised integer need at most 23 bits.  So only the addition of a minimum rounds, and
 * fused and separate arithmetic give the same bits.) */
#ifndef CHECKPOINT_GGUF_TYPES_H
#define CHECKPOINT_GGUF_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* Type numbers, as in files.  Only types that can be decoded have a name here. */
enum {
    GGUF_TYPE_F32 = 0,
    GGUF_TYPE_F16 = 1,
    GGUF_TYPE_Q4_0 = 2,
    GGUF_TYPE_Q4_1 = 3,
    GGUF_TYPE_Q5_0 = 6,
    GGUF_TYPE_Q5_1 = 7,
    GGUF_TYPE_Q8_0 = 8,
    GGUF_TYPE_Q2_K = 10,
    GGUF_TYPE_Q3_K = 11,
    GGUF_TYPE_Q4_K = 12,
    GGUF_TYPE_Q5_K = 13,
    GGUF_TYPE_Q6_K = 14,
    GGUF_TYPE_IQ2_XXS = 16,
    GGUF_TYPE_IQ2_XS = 17,
    GGUF_TYPE_IQ3_XXS = 18,
    GGUF_TYPE_IQ4_NL = 20,
    GGUF_TYPE_IQ3_S = 21,
    GGUF_TYPE_IQ2_S = 22,
    GGUF_TYPE_IQ4_XS = 23,
    GGUF_TYPE_BF16 = 30,
    GGUF_TYPE_MXFP4 = 39,
    GGUF_N_TYPES = 42,
};

struct gguf_type {
    const char *name;
    uint32_t block, bytes;
    /* Decodes n_blocks blocks at src to floats at dst. NULL: this build cannot decode the type. */
    void (*decode)(const uint8_t *src, float *dst, size_t n_blocks);
};

/* Returns the type of that number; NULL if there is no such type. */
const struct gguf_type *gguf_type(uint32_t type);

/* Returns the names of all types that can be decoded: "F32, F16, ...". */
const char *gguf_types_supported(void);

#endif
