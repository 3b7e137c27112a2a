/* q8_avx2.c - the kernels of 8-bit weights compiled for one instruction set; see q8.h. */
#include "tensor/cpu/q8.h"

#include "tensor/cpu/vec_int_avx2.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q8.h"
#include "tensor/cpu/kern_q8_blocked.h"
#include "tensor/cpu/kern_q8_table.h"
