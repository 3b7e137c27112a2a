/* isa_portable.c - the kernels compiled for one instruction set; see cpu.h. */
#include "tensor/cpu/cpu.h"

#include "tensor/cpu/vec_portable.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_rows.h"
#include "tensor/cpu/kern_matmul.h"
#include "tensor/cpu/kern_kv.h"
#include "tensor/cpu/kern_attention.h"
#include "tensor/cpu/kern_delta.h"
#define VEC_ATTENTION attention
#include "tensor/cpu/kern_table.h"
