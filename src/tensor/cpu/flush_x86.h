/* flush_x86.h - for bf16r_*.c of x86: switches the processor to a mode in which subnormal operands
 * and results are zero, as AMX always treats them. */
#ifndef TENSOR_FLUSH_X86_H
#define TENSOR_FLUSH_X86_H

#include <immintrin.h>

enum { FLUSH_RESULTS = 0x8000, FLUSH_OPERANDS = 0x0040 };

static inline unsigned flushing_begin(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_RESULTS | FLUSH_OPERANDS);
    return before;
}
static inline void flushing_end(unsigned before)
{
    _mm_setcsr(before);
}
static inline v16 v_flush(v16 a)
{
    return a;
}
static inline v16 v_fma_flush(v16 a, v16 b, v16 acc)
{
    return v_fma(a, b, acc);
}

#endif
