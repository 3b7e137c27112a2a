/* cases.h - shapes on which every operation is compared between backends.  The kernel benchmark
 * also runs the cases marked `bench`. */
#ifndef TESTS_TENSOR_CASES_H
#define TESTS_TENSOR_CASES_H

#include <stdbool.h>
#include <stdint.h>

struct matmul_case {
    int64_t m, n, k;
    bool bench; /* too large for the reference: benchmarked only */
};

/* Row counts lie around the heights of micro-kernels (6, 12) and tiles (192), and around the number
 * of rows that are packed at once (384). Column counts lie around panels (16) and tiles (128), k
 * around a block (256). */
static const struct matmul_case matmul_cases[] = {
    {1, 1, 1, false},         {1, 16, 256, false},     {1, 17, 257, false},
    {1, 100, 600, false},     {2, 33, 255, false},     {3, 31, 70, false},
    {4, 64, 512, false},      {5, 130, 300, false},    {6, 48, 257, false},
    {7, 15, 512, false},      {8, 96, 64, false},      {9, 40, 300, false},
    {12, 129, 40, false},     {13, 17, 256, false},    {14, 32, 513, false},
    {19, 45, 515, false},     {25, 100, 100, false},   {64, 130, 260, false},
    {193, 47, 300, false},    {200, 33, 64, false},    {390, 20, 270, false},
    {1, 1024, 1024, true},    {1, 4096, 4096, true},   {4, 4096, 4096, true},
    {8, 4096, 4096, true},    {16, 4096, 4096, true},  {64, 4096, 4096, true},
    {256, 1024, 1024, true},  {256, 2048, 2048, true}, {256, 4096, 4096, true},
    {256, 11008, 4096, true}, {512, 1024, 1024, true}, {512, 5632, 1024, true},
    {512, 1024, 2816, true},  {64, 2048, 2048, true},  {512, 2048, 2048, true},
};

struct attention_case {
    int heads, n_kv, d_head, window;
    int n_seqs;
    struct {
        /* the batch has positions [start, start + rows); the cache has all positions before
         * start */
        int start, rows;
    } seq[3];
    bool bench;
};

static const struct attention_case attention_cases[] = {
    {1, 1, 16, 0, 1, {{0, 1}}, false},
    {2, 2, 8, 0, 1, {{0, 7}}, false},
    {8, 4, 8, 0, 2, {{0, 70}, {63, 2}}, false},
    {4, 1, 64, 0, 3, {{0, 1}, {64, 1}, {200, 1}}, false},
    {4, 4, 64, 0, 2, {{127, 1}, {300, 3}}, false},
    {6, 2, 48, 0, 1, {{10, 130}}, false},
    {4, 2, 128, 0, 2, {{0, 65}, {129, 1}}, false},
    {3, 3, 20, 0, 1, {{60, 20}}, false},
    {2, 1, 80, 0, 1, {{0, 200}}, false},
    {8, 1, 64, 0, 1, {{150, 1}}, false},
    {12, 1, 32, 0, 1, {{64, 9}}, false},
    {2, 2, 256, 0, 1, {{30, 40}}, false},
    {2, 2, 32, 16, 1, {{0, 100}}, false},
    {4, 2, 64, 100, 2, {{250, 30}, {99, 1}}, false},
    {2, 1, 64, 1, 1, {{5, 70}}, false},
    {16, 8, 64, 0, 2, {{130, 1}, {64, 1}}, false}, /* several KV heads in a tile */
    /* K and V are converted, because the size of heads, 20, is not a multiple of 16 */
    {12, 12, 20, 70, 1, {{200, 1}}, false},
    {9, 3, 64, 0, 2, {{200, 16}, {70, 5}}, false}, /* guesses: rows that threads share */
    {14, 2, 32, 0, 1, {{129, 1}}, false}, /* 7 queries per KV head, in strips of 4 and 3 */
    {16, 4, 64, 0, 1, {{130, 1}}, false}, /* tiles of half of the heads, in pairs */
    /* 7 queries per head have a kernel for AVX-512 only */
    {28, 4, 32, 40, 1, {{200, 1}}, false},
    {8, 2, 128, 0, 2, {{37, 200}, {3, 70}}, false}, /* enough rows for a GPU's wide tiles */
    {12, 12, 64, 100, 1, {{10, 300}}, false},
    {8, 8, 80, 0, 1, {{0, 129}}, false},
    {8, 4, 96, 0, 3, {{64, 128}, {0, 257}, {500, 1}}, false},
    {16, 16, 64, 0, 1, {{0, 4096}}, true},   /* bench-220m, prefill */
    {16, 16, 64, 0, 1, {{3584, 512}}, true}, /* the last 512 tokens of this prefill */
    {16, 16, 64, 0, 1, {{4095, 1}}, true},   /* one decode step */
    {32, 8, 128, 0, 1, {{4095, 1}}, true},   /* Llama-3-8B */
};

struct rows_case {
    int64_t rows, cols;
};
static const struct rows_case rows_cases[] = {
    {1, 1}, {1, 16}, {2, 15}, {3, 17}, {5, 64}, {7, 100}, {64, 288}, {33, 1000}, {1, 4096},
};

#define N_CASES(a) (sizeof(a) / sizeof(a)[0])

#endif
