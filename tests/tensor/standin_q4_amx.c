/* standin_q4_amx.c - q4_amx.c over standin_amx.h. */
#if defined(__x86_64__)
#include "standin_amx.h"

#define q4_kernels_amx q4_kernels_standin
#include "tensor/cpu/q4_amx.c"
#endif
