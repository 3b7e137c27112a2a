/* test_fetch_q4.c - which lines the kernels of weights in blocks prefetch for few rows. */
#include "fetch_log.h"

#include <stdlib.h>

#include "tensor/cpu/q4.h"
#include "tensor/cpu/vec_nib_portable.h"

/* The shapes of the kernels of vector instructions, in plain C. */
#undef Q4_DIRECT
#define Q4_DIRECT 4
#define Q4_WIDE_1 4
#define Q4_WIDE_2 2
#define Q4_WIDE_4 2

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q4.h"

enum { N_PANELS = 8, MAX_K = 768, STREAM_AHEAD = 4736 };
static _Alignas(64) const uint8_t weights[N_PANELS * PANEL * MAX_K];

/* What a strip prefetches of the panels that are read next; 0 lines: nothing is shared. */
static struct {
    size_t ahead, fetch_lines;
} shared;

/* Runs a kernel for few rows on m rows by some panels of k weights. */
static void product(void (*kernel)(const struct quant_tile *t), enum dtype dtype, int m,
                    int64_t k, int n_panels, bool into_l2)
{
    int64_t k_blocks = (k + MATMUL_K_BLOCK - 1) / MATMUL_K_BLOCK;
    int16_t *x = calloc((size_t)(k_blocks * m), MATMUL_K_BLOCK * sizeof *x);
    float *c = calloc((size_t)m, N_PANELS * PANEL * sizeof *c);
    struct quant_tile t = {.x = x,
                           .x_rows = m,
                           .m = m,
                           .k = k,
                           .dtype = dtype,
                           .w = weights,
                           .panel_bytes = quant_panel_bytes(dtype, k),
                           .fetch_into_l2 = into_l2,
                           .n_panels = n_panels,
                           .ahead = shared.ahead,
                           .fetch_lines = shared.fetch_lines,
                           .c = c,
                           .ldc = N_PANELS * PANEL,
                           .n_cols = n_panels * PANEL};
    assert_true(x != NULL && c != NULL);
    assert_true(N_PANELS * t.panel_bytes <= sizeof weights);
    kernel(&t);
    free(c);
    free(x);
}

/* Returns the address that is prefetched while offset `at` of a panel is read, n_panels at a time:
 * 3072 or 4352 bytes on, in the panel or else in the one that is read after it. */
static const uint8_t *ahead_of(int panel, size_t at, size_t panel_bytes, int m,
                               int n_panels)
{
    at += m <= 2 ? 3072 : 4352;
    return at < panel_bytes
               ? weights + (size_t)panel * panel_bytes + at
               : weights + (size_t)(panel + n_panels) * panel_bytes + at - panel_bytes;
}

/* Checks that a kernel that reads panel by panel prefetches all lines of whole k-blocks once, in
 * order, at a fixed distance. */
static void check_stream(void (*kernel)(const struct quant_tile *t), enum dtype dtype,
                         int m)
{
    product(kernel, dtype, m, 512, N_PANELS, true);
    for (size_t at = 0; at < N_PANELS * quant_panel_bytes(dtype, 512); at += 64)
        fetch_want(weights + STREAM_AHEAD + at, 3);
    fetch_check(weights);
}

static const enum dtype types[] = {DTYPE_Q4_0,  DTYPE_Q4_1,   DTYPE_Q4_K,   DTYPE_Q6_K,
                                   DTYPE_MXFP4, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_Q8};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* While a block is read, as many bytes of numbers further on are prefetched. Its first blocks also
 * prefetch a line of the k-block's scales each. A panel that the tile lacks is replaced by its last
 * one. */
static void check_direct(enum dtype t, int m, int n_panels, int scale_lines)
{
    enum { K = 512 };
    size_t panel_bytes = quant_panel_bytes(t, K), bytes = q4_number_bytes(t);
    for (int lacks = 0; lacks < 2; lacks++) {
        int last = N_PANELS - 1 - lacks, cache = lacks ? 2 : 3;
        product(direct, t, m, K, last + 1, cache == 2);
        for (int p = 0; p < N_PANELS; p += n_panels)
            for (int64_t k = 0; k < K; k += Q4_BLOCK) {
                size_t begin = q4_offset(t, k / KB * KB), b = (size_t)(k % KB / Q4_BLOCK);
                for (int j = p; j < p + n_panels; j++)
                    for (size_t line = 0; line < bytes; line += 64)
                        fetch_want(ahead_of(MIN(j, last), begin + b * bytes, panel_bytes, m,
                                            n_panels) +
                                       line,
                                   cache);
                for (int j = p; j < p + n_panels && b < (size_t)scale_lines; j++)
                    fetch_want(ahead_of(MIN(j, last), begin + 8 * bytes + b * 64,
                                        panel_bytes, m, n_panels),
                               cache);
            }
        fetch_check(weights);
    }
}

TEST(a_block_fetches_a_block_further_on)
{
    static const int scale_lines[N_TYPES] = {4, 8, 5, 5, 2, 4, 3, 4};
    for (int i = 0; i < N_TYPES; i++)
        for (int m = 1; m <= 4; m++)
            check_direct(types[i], m, m == 1 ? 4 : 2, scale_lines[i]);
}

TEST(a_strip_fetches_its_lines_of_the_next_panels)
{
    enum { K = 288, LINES = 3 };
    size_t panel_bytes = quant_panel_bytes(DTYPE_Q8, K);
    shared.ahead = 2 * panel_bytes + 640;
    shared.fetch_lines = LINES;
    product(direct, DTYPE_Q8, 3, K, 4, false);
    for (size_t p = 2; p < 6; p += 2)
        for (size_t line = 0; line < K / Q8_BLOCK * LINES; line++)
            for (size_t j = p; j < p + 2; j++)
                fetch_want(weights + j * panel_bytes + 640 + 64 * line, 2);
    shared.fetch_lines = 0;
    fetch_check(weights);
}

TEST(a_stream_fetches_each_line_once)
{
    for (int i = 0; i < N_TYPES; i++)
        for (int m = 1; m <= Q4_DIRECT; m++)
            check_stream(direct_stream, types[i], m);
}

/* The last k-block has 5 blocks: 40 lines of numbers, and with them 4 lines of scales. */
TEST(a_stream_ends_with_the_blocks)
{
    enum { K = KB + 5 * Q8_BLOCK };
    product(direct_stream, DTYPE_Q8, 1, K, N_PANELS, false);
    for (size_t p = 0; p < N_PANELS; p++)
        for (size_t line = 0; line < 68 + 44; line++)
            fetch_want(
                weights + p * quant_panel_bytes(DTYPE_Q8, K) + STREAM_AHEAD + line * 64, 3);
    fetch_check(weights);
}

/* A k-block of 7 blocks: the lines of 4 blocks at block 0, those of 3 blocks at block 4. The first
 * 4 blocks bring a line of scales each. */
TEST(a_stream_fetches_four_blocks_at_once)
{
    static const size_t first_line[8] = {0, 36, 36, 36, 36, 60, 60, 60};
    for (size_t b = 0; b < 7; b++) {
        stream_fetch(weights, b, 7, 8, 4);
        for (size_t line = first_line[b]; line < first_line[b + 1]; line++)
            fetch_want(weights + STREAM_AHEAD + line * 64, 3);
        fetch_check(weights);
    }
}
