/* standin_bf16r_amx.c - bf16r_amx.c over standin_amx.h. */
#if defined(__x86_64__)
#include "standin_amx.h"

#define bf16r_kernels_amx bf16r_kernels_standin
#include "tensor/cpu/bf16r_amx.c"
#endif
