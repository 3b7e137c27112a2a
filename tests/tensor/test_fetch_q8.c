/* test_fetch_q8.c - which lines the kernels of 8-bit weights prefetch for few rows. */
#include "fetch_quant.h"

#include "tensor/cpu/q8.h"
#include "tensor/cpu/vec_int_portable.h"

/* The shapes of the kernels of vector instructions, in plain C. */
#undef Q8_WIDE_1
#undef Q8_WIDE_2
#undef Q8_WIDE_4
#define Q8_WIDE_1 4
#define Q8_WIDE_2 2
#define Q8_WIDE_4 2

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q8.h"

/* While a block is read, as many bytes of its panel further on are prefetched. A panel that the
 * tile lacks is replaced by its last one. */
static void check_direct(int m, int n_panels)
{
    enum { K = 512 };
    size_t panel_bytes = quant_panel_bytes(DTYPE_Q8, K);
    for (int lacks = 0; lacks < 2; lacks++) {
        int last = N_PANELS - 1 - lacks, cache = lacks ? 2 : 3;
        product(direct, DTYPE_Q8, m, K, last + 1, cache == 2);
        for (int p = 0; p < N_PANELS; p += n_panels)
            for (int64_t k = 0; k < K; k += Q8_BLOCK) {
                size_t at = q8_offset(k / KB * KB) + (size_t)(k % KB) * PANEL;
                for (size_t line = 0; line < Q8_BLOCK_BYTES; line += 64)
                    for (int j = p; j < p + n_panels; j++)
                        fetch_want(ahead_of(MIN(j, last), at, panel_bytes, m, n_panels) +
                                       line,
                                   cache);
            }
        fetch_check(weights);
    }
}

static void a_block_fetches_a_block_further_on(void **state)
{
    (void)state;
    check_direct(1, 4);
    check_direct(2, 2);
    check_direct(3, 2);
    check_direct(4, 2);
}

static void a_stream_fetches_each_line_once(void **state)
{
    (void)state;
    for (int m = 1; m <= Q8_DIRECT; m++)
        check_stream(direct_stream, DTYPE_Q8, m);
}

/* The last k-block has 5 blocks: 40 lines of numbers, and with them 4 lines of scales. */
static void a_stream_ends_with_the_blocks(void **state)
{
    (void)state;
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
static void a_stream_fetches_four_blocks_at_once(void **state)
{
    (void)state;
    static const size_t first_line[8] = {0, 36, 36, 36, 36, 60, 60, 60};
    for (size_t b = 0; b < 7; b++) {
        stream_fetch(weights, b, 7, 8, 4);
        for (size_t line = first_line[b]; line < first_line[b + 1]; line++)
            fetch_want(weights + STREAM_AHEAD + line * 64, 3);
        fetch_check(weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_fetches_a_block_further_on),
        cmocka_unit_test(a_stream_fetches_each_line_once),
        cmocka_unit_test(a_stream_ends_with_the_blocks),
        cmocka_unit_test(a_stream_fetches_four_blocks_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
