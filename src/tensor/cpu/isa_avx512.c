/* isa_avx512.c - the kernels compiled for one instruction set; see cpu.h. */
#include "tensor/cpu/cpu.h"

#include "tensor/cpu/vec_avx512.h"

#include "tensor/cpu/flush_x86.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_rows.h"
#include "tensor/cpu/kern_matmul.h"
#include "tensor/cpu/kern_kv.h"
#include "tensor/cpu/kern_attention.h"
#include "tensor/cpu/kern_delta.h"
#define VEC_ATTENTION attention
#include "tensor/cpu/kern_table.h"

#undef VEC_ISA
#undef VEC_TABLE
#undef VEC_ATTENTION
#define VEC_ISA       "avx512bf16"
#define VEC_TABLE     cpu_kernels_avx512bf16
#define VEC_ATTENTION attention_avx512bf16
#include "tensor/cpu/kern_table.h"
