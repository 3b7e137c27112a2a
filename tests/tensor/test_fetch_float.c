/* test_fetch_float.c - what the kernels of float weights, of attention and of the cache prefetch:
 * each line of the memory that is read next, once, in order. */
#include "fetch_log.h"

#include <math.h>
#include <stdlib.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/vec_portable.h"

/* The shapes of the micro-kernels of vector instructions, in plain C. */
#undef MM_ROWS
#undef MM_PANELS
#undef MM_WIDE_1
#undef MM_WIDE_2
#undef MM_WIDE_4
#undef MM_BF16_ROWS
#undef MM_CONVERT_ROWS
#undef MM_ALONG_ROWS
#undef ATTN_CONVERT_QUERIES
#define MM_ROWS              6
#define MM_PANELS            2
#define MM_WIDE_1            4
#define MM_WIDE_2            4
#define MM_WIDE_4            2
#define MM_BF16_ROWS         5
#define MM_CONVERT_ROWS      14
#define MM_ALONG_ROWS        20
#define ATTN_CONVERT_QUERIES 16

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_rows.h"
#include "tensor/cpu/kern_matmul.h"
#include "tensor/cpu/kern_kv.h"
#include "tensor/cpu/kern_attention.h"

static void *zeros(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, bytes);
    return p;
}

/* --- products --------------------------------------------------------------------------------- */

enum { N_PANELS = 8, MAX_K = 600 };
static _Alignas(64) const uint8_t weights[N_PANELS * PANEL * MAX_K * sizeof(float)];

/* Runs a kernel on m rows by some panels of k weights. */
static void product(void (*kernel)(const struct mm_tile *t), enum dtype dtype, int m,
                    int64_t k, int n_panels, bool into_l2)
{
    struct mm_tile t = {.a_rows = m,
                        .m = m,
                        .k = k,
                        .w = weights,
                        .dtype = dtype,
                        .n_panels = n_panels,
                        .ldc = N_PANELS * PANEL,
                        .n_cols = n_panels * PANEL,
                        .fetch_into_l2 = into_l2};
    float *a = zeros((size_t)((k + KB - 1) / KB * KB * m) * sizeof *a);
    t.a = a;
    t.c = zeros((size_t)(m * N_PANELS * PANEL) * sizeof(float));
    t.scratch = zeros(MM_SCRATCH * sizeof(float));
    kernel(&t);
    free(t.scratch);
    free(t.c);
    free(a);
}

/* While a step of some panels is multiplied, the step that is `ahead` steps later is prefetched,
 * line by line: `steps` steps together.  Past the panels' end these are steps of the panels that
 * follow.  A panel that the tile lacks is replaced by its last one. */
static void check_direct(enum dtype dtype, int m, int64_t k, int n_panels, int ahead,
                         int steps)
{
    for (int lacks = 0; lacks < 2; lacks++) {
        int last = N_PANELS - 1 - lacks, cache = lacks ? 2 : 3;
        product(mm_direct, dtype, m, k, last + 1, cache == 2);
        size_t step_bytes = PANEL * dtype_bytes(dtype);
        for (int p = 0; p < N_PANELS; p += n_panels)
            for (int64_t i = ahead; i < k + ahead; i += steps)
                for (int j = p; j < p + n_panels; j++) {
                    int64_t step = i < k ? MIN(j, last) * k + i
                                         : (j + n_panels) * k + i - k;
                    fetch_want(weights + (size_t)step * step_bytes, cache);
                }
        fetch_check(weights);
    }
}

TEST(few_rows_fetch_each_line_of_the_weights_ahead)
{
    check_direct(DTYPE_F32, 1, 512, 4, 72, 1);
    check_direct(DTYPE_F32, 3, 600, 2, 72, 1);
    check_direct(DTYPE_F32, 6, 512, 2, 136, 1);
    check_direct(DTYPE_BF16, 1, 512, 4, 72, 2);
    check_direct(DTYPE_F16, 4, 512, 2, 72, 2);
    check_direct(DTYPE_BF16, 5, 512, 2, 136, 2);
    check_direct(DTYPE_F16, 6, 512, 2, 136, 2);
}

/* Two steps do not fit the registers then, so each line is asked for in both of its steps. */
TEST(six_rows_of_bf16_are_fetched_step_by_step)
{
    check_direct(DTYPE_BF16, 6, 512, 2, 136, 1);
}

/* The k-block of a group of two panels is multiplied with n_strips strips. Meanwhile they prefetch
 * the k-block that follows, each strip its share. */
static void want_group(const uint8_t *next, enum dtype dtype, int64_t k, int n_strips)
{
    size_t bytes = KB * PANEL * dtype_bytes(dtype), n_fetches = (size_t)n_strips * KB / 2;
    for (size_t i = 0; i < n_fetches; i++)
        for (size_t j = 0; j < MM_PANELS; j++)
            fetch_want(next + i * bytes / n_fetches +
                           j * (size_t)k * PANEL * dtype_bytes(dtype),
                       3);
}

/* Up to MM_ALONG_ROWS rows, the next k-block is that of the same panels. */
static void check_along(enum dtype dtype, int m, int n_strips)
{
    enum { K = 512 };
    product(mm_blocked, dtype, m, K, N_PANELS, false);
    size_t panel_bytes = K * PANEL * dtype_bytes(dtype);
    for (size_t p = 0; p < N_PANELS; p += MM_PANELS) {
        want_group(weights + p * panel_bytes + panel_bytes / 2, dtype, K, n_strips);
        want_group(weights + (p + MM_PANELS) * panel_bytes, dtype, K, n_strips);
    }
    fetch_check(weights);
}

TEST(strips_fetch_along_the_panels)
{
    check_along(DTYPE_F32, 12, 2);
    check_along(DTYPE_F32, 20, 4);
    check_along(DTYPE_BF16, 10, 2);
    check_along(DTYPE_BF16, 20, 4);
}

/* For more rows, the next k-block is that of the next panels, and after the last ones that of the
 * first ones, one k-block further on. */
TEST(strips_of_many_rows_fetch_across_the_panels)
{
    enum { K = 512, M = 24, STRIPS = 4 };
    product(mm_blocked, DTYPE_F32, M, K, N_PANELS, false);
    size_t panel_bytes = K * PANEL * sizeof(float);
    for (size_t k = 0; k < 2; k++) {
        for (size_t p = MM_PANELS; p < N_PANELS; p += MM_PANELS)
            want_group(weights + p * panel_bytes + k * panel_bytes / 2, DTYPE_F32, K,
                       STRIPS);
        want_group(weights + (k + 1) * panel_bytes / 2, DTYPE_F32, K, STRIPS);
    }
    fetch_check(weights);
}

/* --- the cache -------------------------------------------------------------------------------- */

/* Token i prefetches K and V of token i + 2, all heads of the run. */
TEST(filling_fetches_two_tokens_ahead)
{
    enum { D_HEAD = 64, HEADS = 3, TOKENS = 5, HEAD_BYTES = 2 * D_HEAD };
    size_t block_bytes = HEADS * HEAD_BYTES * KV_BLOCK_TOKENS;
    uint8_t *rows = zeros((size_t)2 * HEADS * HEAD_BYTES * TOKENS);
    uint8_t *block = zeros(2 * block_bytes);
    struct kv_run run = {.dtype = DTYPE_BF16,
                         .d_head = D_HEAD,
                         .n_heads = HEADS,
                         .n = TOKENS,
                         .k_rows = rows,
                         .v_rows = rows + HEADS * HEAD_BYTES,
                         .row_bytes = (size_t)2 * HEADS * HEAD_BYTES,
                         .k = block,
                         .v = block + block_bytes,
                         .scratch = zeros(KV_SCRATCH * sizeof(float))};
    kv_fill(&run);
    for (size_t i = 2; i < TOKENS + 2; i++)
        for (size_t b = 0; b < HEADS * HEAD_BYTES; b += 64) {
            fetch_want(run.k_rows + i * run.row_bytes + b, 3);
            fetch_want(run.v_rows + i * run.row_bytes + b, 3);
        }
    fetch_check(rows);
    free(run.scratch);
    free(block);
    free(rows);
}

/* --- attention -------------------------------------------------------------------------------- */

/* Two blocks of keys, all of which the queries see. */
enum { D_HEAD = 64, BLOCKS = 2, HEAD_BYTES = 2 * D_HEAD * KEYS };
static const int32_t block_table[BLOCKS] = {1, 0};
enum { MAX_HEADS = 6 };
static _Alignas(64) uint8_t blocks[BLOCKS * MAX_HEADS * 2 * HEAD_BYTES];

/* Returns where K (v = 0) or V (v = 1) of a head begins in a block of the sequence. */
static const uint8_t *part(const struct kv_layer *kv, int block, int v, int head)
{
    return kv->blocks + (size_t)block_table[block] * kv->block_stride +
           (size_t)((v * kv->n_kv + head) * HEAD_BYTES);
}

/* Attends with n queries for each head of a tile, which are some heads of n_kv. */
static struct kv_layer attend(int n_kv, int kv_head, int n_heads, int n)
{
    struct kv_layer kv = {.blocks = blocks,
                          .block_stride = kv_block_bytes(n_kv, D_HEAD, DTYPE_BF16),
                          .dtype = DTYPE_BF16,
                          .n_kv = n_kv,
                          .d_head = D_HEAD};
    float *q = zeros(D_HEAD * sizeof *q), *out = zeros(D_HEAD * sizeof *out);
    struct attn_tile t = {.kv = &kv,
                          .table = block_table,
                          .kv_head = kv_head,
                          .n_kv_heads = n_heads,
                          .n = n,
                          .scale = 1,
                          .scratch = zeros(ATTN_SCRATCH * sizeof(float))};
    for (int i = 0; i < n * n_heads; i++) {
        t.q[i] = q;
        t.out[i] = out;
        t.end[i] = BLOCKS * KEYS;
    }
    attention(&t);
    free(t.scratch);
    free(out);
    free(q);
    return kv;
}

/* While K of a head is read, K of the head that is read next is prefetched, and likewise V.  After
 * the last head this is the first head of the next block. Several strips share the work; a line
 * that two strips begin is prefetched by both. */
static void check_heads(int n_heads, int n, size_t bytes)
{
    struct kv_layer kv = attend(n_heads, 0, n_heads, n);
    for (int b = 0; b < BLOCKS; b++)
        for (int h = 0; h < n_heads; h++)
            for (int half = 0; half < HEAD_BYTES;
                 half += HEAD_BYTES / (n > MM_ROWS ? 2 : 1))
                for (int v = 0; v < 2; v++) {
                    int next = h + 1 < n_heads ? b : b + 1 < BLOCKS ? b + 1 : b;
                    const uint8_t *at = part(&kv, next, v, (h + 1) % n_heads) + half;
                    size_t end = n > MM_ROWS ? HEAD_BYTES / 2 : HEAD_BYTES;
                    for (size_t i = 0; i < end; i += bytes)
                        fetch_want(at + i, 2);
                }
    fetch_check(blocks);
}

TEST(a_head_fetches_the_next_head)
{
    check_heads(3, FETCH_QUERIES, 64);
    check_heads(3, 4, 64);
    check_heads(1, 5, 64);
    check_heads(3, 8, 32); /* two strips of four rows */
}

/* With one or two queries memory is read by the processor's own prefetching. */
TEST(few_queries_fetch_nothing)
{
    attend(3, 0, 3, 1);
    attend(3, 0, 3, FETCH_QUERIES - 1);
    fetch_check(blocks);
}
