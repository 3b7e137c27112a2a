/* q4_avx2.c - the kernels of 4-bit weights compiled for one instruction set; see quant.h. */
#include "tensor/cpu/q4.h"

#include "tensor/cpu/vec_nib_avx2.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q4.h"
#include "tensor/cpu/kern_q4_blocked.h"
#include "tensor/cpu/kern_q4_table.h"
