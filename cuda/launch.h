/* launch.h - the interface to the kernels: plain functions that queue work on a CUDA stream and
 * return at once. Faults show in cudaGetLastError and at the next synchronisation.
 *
 * All pointers are device memory.  Matrices are row-major; types are enum dtype's numbers (0 f32, 1
 * f16, 2 bf16).  Private to cuda; included by C and by CUDA sources. */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_mat {
    void *data;
    int type;
    int rows, cols;
    int64_t ld; /* elements from row to row */
};

/* K and V of one layer: block b at blocks + b * stride, K first, both as [n_kv][64][d_head]. */
struct gpu_kv {
    uint8_t *blocks;
    int64_t stride; /* bytes from block to block */
    int type, n_kv, d_head;
};

struct gpu_angles {
    const float *cos, *sin; /* [max_pos][d_rot / 2] */
    int d_rot;
};

/* Up to GPU_TILE_ROWS neighbouring rows of one sequence: a work item of prefill attention. */
enum { GPU_TILE_ROWS = 128 };
struct gpu_tile {
    int32_t row, n_rows, seq;
};

/* A ragged batch (ops.h) in device memory. */
struct gpu_batch {
    int n_rows, n_solo, n_tiles, table_ld;
    const int32_t *pos;     /* [n_rows] */
    const int32_t *row_seq; /* [n_rows] */
    const int32_t *tables;  /* [n_seqs][table_ld] */
    const int32_t *solo;    /* [n_solo] rows of sequences with few rows, such as decodes */
    const struct gpu_tile *tiles; /* [n_tiles] tiles of all other rows */
};

/* How a device computes (--cuda-math). FAST: cuBLAS, and attention is split as suits the batch.
 * FIXED: tensor cores. EXACT: the arithmetic of ops.h. In FIXED and EXACT a row's bits do not
 * depend on the batch. */
enum gpu_math { GPU_FAST, GPU_FIXED, GPU_EXACT };

/* --- small uploads (k_fetch.cu) --- */
/* Copies from pinned memory with a kernel, because the copy engine would first finish the copies of
 * other streams. 0 < n_bytes < 2^32; both sides are aligned to 4 bytes and have room for n_bytes
 * rounded up to a multiple of 4. */
void gpu_fetch(cudaStream_t s, void *to, const void *from, size_t n_bytes);

/* --- rows (k_rows.cu) --- */
void gpu_embed(cudaStream_t s, struct gpu_mat out, struct gpu_mat table, const int32_t *ids,
               float scale);
void gpu_rmsnorm(cudaStream_t s, struct gpu_mat out, struct gpu_mat x, const float *w,
                 float eps);
void gpu_layernorm(cudaStream_t s, struct gpu_mat out, struct gpu_mat x, const float *w,
                   const float *b, float eps);
void gpu_head_norm(cudaStream_t s, struct gpu_mat x, int d_head, const float *w, float eps);
void gpu_convert(cudaStream_t s, struct gpu_mat out, struct gpu_mat x);
void gpu_add(cudaStream_t s, struct gpu_mat out, struct gpu_mat a, struct gpu_mat b);
/* Computes sum = x + y, and out = the norm of sum (RMS if b is NULL). */
void gpu_add_norm(cudaStream_t s, struct gpu_mat out, struct gpu_mat sum, struct gpu_mat x,
                  struct gpu_mat y, const float *w, const float *b, float eps);
void gpu_add_bias(cudaStream_t s, struct gpu_mat x, const float *bias);
void gpu_act_mul(cudaStream_t s, struct gpu_mat out, struct gpu_mat gate_up, int act);
void gpu_act(cudaStream_t s, struct gpu_mat x, int act);
/* Sets *flag to 0 if x holds an infinity or a NaN; the caller has set it to 1. */
void gpu_all_finite(cudaStream_t s, struct gpu_mat x, int32_t *flag);

/* --- products (k_matmul.cu): c [m][n] = a [m][k] . w[n][k]^T (+ bias) --- */
/* Computes a product with the arithmetic of ops.h to the bit, for every type and shape, independent
 * of the batch. */
void gpu_matmul_exact(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_mat w,
                      const float *bias);
/* Computes a product in fixed math. a and w are both f16 or both bf16; c has that type or f32
 * (k_matmul_fixed.cu). Each element is computed as follows, whatever batch and kernel computes it:
 * k is cut into blocks of 256, padded with zeros to a multiple of 64; a block's sum is a chain of
 * tensor-core steps of 16 (m16n8k16, the row of `a` in operand A) in ascending k from +0; blocks'
 * sums are added in f32 in ascending order, from +0; bias last. `n_sm`, the number of
 * multiprocessors, decides the size of the tiles. */
void gpu_matmul_fixed(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_mat w,
                      const float *bias, int n_sm);
enum { GPU_GEMV_ROWS = 8 };
/* gpu_gemv computes a product of at most GPU_GEMV_ROWS rows; it reads the weights once, at the
 * speed of memory. gpu_gemv_can returns whether it can take these operands. */
int gpu_gemv_can(struct gpu_mat c, struct gpu_mat a, struct gpu_mat w);
void gpu_gemv(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_mat w,
              const float *bias);

/* --- 8-bit weights (k_q8.cu) --- */
struct gpu_q8 {
    const int8_t *q;   /* [n][n_blocks][32], 4-byte aligned */
    const uint16_t *d; /* [n][n_blocks] scales, f16 */
    int n_blocks;
};
/* Computes c [m][n] = a [m][k] . w^T (+ bias) with the bits of ops.h. c is f32 or has a's type. */
void gpu_matmul_q8(cudaStream_t s, struct gpu_mat c, struct gpu_mat a, struct gpu_q8 w,
                   const float *bias);
/* Sets out to rows ids[0..out.rows) of w, rounded to out's type. */
void gpu_rows_q8(cudaStream_t s, struct gpu_mat out, struct gpu_q8 w, const int32_t *ids);

/* --- positions and the cache (k_kv.cu) --- */
void gpu_rope(cudaStream_t s, struct gpu_mat q, int d_head, struct gpu_angles rope,
              struct gpu_batch b);
void gpu_kv_fill(cudaStream_t s, struct gpu_kv kv, struct gpu_mat rows,
                 struct gpu_angles rope, struct gpu_batch b);
/* Does gpu_rope of q and gpu_kv_fill of rows. */
void gpu_rope_kv_fill(cudaStream_t s, struct gpu_mat q, struct gpu_kv kv,
                      struct gpu_mat rows, struct gpu_angles rope, struct gpu_batch b);
/* Chunks of one sequence, the first at position pos0, `stride` bytes apart. */
enum { GPU_LOAD_CHUNKS = 128 };
struct gpu_chunks {
    const uint8_t *first;
    int64_t stride, v_at; /* bytes from chunk to chunk, and from K to V */
    int n, pos0;
    int32_t block[GPU_LOAD_CHUNKS]; /* [n] destination block of each chunk */
};
void gpu_kv_load(cudaStream_t s, struct gpu_kv kv, struct gpu_chunks chunks,
                 struct gpu_angles rope);
void gpu_kv_read(cudaStream_t s, struct gpu_mat out, struct gpu_kv kv, struct gpu_batch b);

/* --- attention (k_attention.cu) --- */
struct gpu_attention_job {
    struct gpu_mat out, q; /* [n_rows][heads * d_head], both of one type */
    struct gpu_kv kv;
    struct gpu_batch b;
    float scale;
    int window; /* number of keys that a row sees; 0: all */
    enum gpu_math math;
    float *scratch; /* scratch memory for rows whose keys are split */
    int64_t scratch_floats;
    int n_sm; /* number of multiprocessors; decides into how many splits keys are divided */
    size_t shared_bytes; /* shared memory that a block may have */
};
void gpu_attention(cudaStream_t s, struct gpu_attention_job a);
/* Attention in fixed math (k_attention_fixed.cu). Returns false, with nothing queued, if the type
 * is f32 or there is no kernel for the head's size.  Each row of a head is computed as follows,
 * whatever batch and kernel computes it:
 *  - keys come in blocks of 64 and in splits of 512, both at fixed positions, in ascending order; a
 *    split begins with m = -inf, l = 0, o = 0;
 *  - in a block, scores s = q . k are chains of steps of 16 (m16n8k16) over the head, times scale *
 *    log2 e, or -inf if the row does not see the key; m' = max(m, s); p = exp2(s - m'); l = l *
 *    exp2(m - m') + the sum of p (in the order of attend_weigh); o = o * exp2(m - m'), then four
 *    steps of 16 keys with p rounded to the type of V;
 *  - splits are merged in ascending order into M = -inf, L = 0, O = 0 (split_join); the result is O
 *    / L.
 *
 * A block in which the row sees no key changes nothing, so it does not matter whether it is
 * computed. */
int gpu_attention_fixed(cudaStream_t s, struct gpu_attention_job a);

/* --- sampling (k_sample.cu) --- */
/* Sets ids[i] to the token that rows[i] chooses from row i of logits, f32. */
struct sample_row;
void gpu_sample(cudaStream_t s, int32_t *ids, struct gpu_mat logits,
                const struct sample_row *rows);

/* --- checksums (k_checksum.cu) --- */
/* Records of sizes known to the host, `stride` bytes apart; first and stride are multiples of 16.
 */
enum { GPU_CHECKSUMS = 256 };
struct gpu_records {
    const uint8_t *first;
    int64_t stride;
    int n;
    uint32_t n_bytes[GPU_CHECKSUMS]; /* [n] */
};
/* Sets out[i] to checksum64 (base/hash.h) of record i. */
void gpu_checksum(cudaStream_t s, uint64_t *out, struct gpu_records records);

#ifdef __cplusplus
}
#endif
#endif
