/* The read buffer of AttentionStore's section 3.2.1: the paper's own case, and the share of a
 * restore that is worth reading ahead. */
#include <math.h>
#include <stdbool.h>

#include "tests/unit.h"
#include "engine/read_buffer.h"

static bool near(double x, double y, double by)
{
    return fabs(x - y) <= by;
}

/* The paper's case: Llama-13B, 0.78 MB per token, 16 sequences of 1,000 tokens of history, 26 GB/s.
 * The prefill time of 100 new tokens per sequence is fitted, because the paper gives none. */
static void the_papers_case(void **state)
{
    const double bytes_per_s = 26e9, load_s = 16 * 1000 * 0.78e6 / bytes_per_s;
    const double prefill_s = 0.30;
    const int n_layers = 40;
    assert_true(near(load_s, 0.48, 1e-9));
    double bytes = read_buffer_bytes(bytes_per_s, load_s, prefill_s);
    assert_true(near(bytes, 4.68e9, 1e6));
    int n = read_buffer_layers(bytes, bytes_per_s, load_s, n_layers);
    assert_int_equal(n, 15);
    /* Compared with loading everything before computing, the time is 37 % less without a buffer and
     * 61 % less with it. (The paper measures 35 % and 61 %.) */
    double one_by_one_s = load_s + prefill_s;
    double without = 1 -
                     read_buffer_makespan_s(load_s, prefill_s, n_layers, 0) / one_by_one_s;
    double with = 1 - read_buffer_makespan_s(load_s, prefill_s, n_layers, n) / one_by_one_s;
    assert_true(near(without, 0.37, 0.01));
    assert_true(near(with, 0.61, 0.01));
    /* A buffer of one layer less is too small, and one layer more gains nothing. */
    assert_true(read_buffer_makespan_s(load_s, prefill_s, n_layers, n - 1) >
                prefill_s * 1.01);
    assert_true(
        near(read_buffer_makespan_s(load_s, prefill_s, n_layers, n + 1), prefill_s, 1e-9));
}

static void a_load_that_is_hidden_needs_no_buffer(void **state)
{
    assert_true(read_buffer_bytes(1e9, 0.2, 0.3) == 0);
    assert_int_equal(read_buffer_layers(0, 1e9, 0.2, 8), 0);
    assert_true(near(read_buffer_makespan_s(0.2, 0.3, 8, 0), 0.3 + 0.2 / 8, 1e-9));
    /* Without new tokens everything is read ahead. */
    assert_true(near(read_buffer_bytes(1e9, 0.2, 0), 0.2e9, 1));
    assert_int_equal(read_buffer_layers(0.2e9, 1e9, 0.2, 8), 8);
    assert_true(read_buffer_makespan_s(0.2, 0, 8, 8) == 0);
    assert_int_equal(read_buffer_layers(1e9, 1e9, 0, 8), 8); /* nothing to load */
}

/* So much is read ahead that computing hides the rest of the load, even if the load takes an eighth
 * longer than predicted. */
static void what_is_worth_reading_ahead(void **state)
{
    struct read_ahead a = {
        .load_s = 0.8, .prefill_s = 0.5, .compute_s = 0.6, .alone_s = 0.8};
    assert_true(near(read_ahead_share(&a, 1), 0.5, 1e-9));
    assert_true(near(read_ahead_share(&a, 3), 0.5, 1e-9));
    a.prefill_s = 0; /* without prefill, the restore's own compute hides no load */
    assert_true(near(read_ahead_share(&a, 1), 1, 1e-9));
    a.compute_s = 0.9; /* the new tokens' compute hides the whole load */
    assert_true(read_ahead_share(&a, 1) == 0);
    a = (struct read_ahead){.load_s = 0.8, .compute_s = 0.1, .alone_s = 0.3};
    assert_true(read_ahead_share(&a, 1) > 0);
    assert_true(read_ahead_share(&a, 0.5) == 0); /* memory has room for too small a part */
    assert_true(read_ahead_share(&a, 0.7) > 0);
    a.alone_s = 0.102; /* reading ahead gains less than 1/32 */
    assert_true(read_ahead_share(&a, 1) == 0);
    assert_true(read_ahead_share(&(struct read_ahead){0}, 1) == 0);
}

/* If too little of a restore has been read ahead when its place comes, the restore is slower than
 * by a plan made without reading ahead. */
static void what_was_read_has_to_pay(void **state)
{
    const struct read_ahead a = {.load_s = 0.8, .compute_s = 0.1, .alone_s = 0.3};
    assert_false(read_ahead_pays(&a, 0));
    assert_false(read_ahead_pays(&a, 0.6));
    assert_true(read_ahead_pays(&a, 0.7));
    assert_true(read_ahead_pays(&a, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_papers_case),
        cmocka_unit_test(a_load_that_is_hidden_needs_no_buffer),
        cmocka_unit_test(what_is_worth_reading_ahead),
        cmocka_unit_test(what_was_read_has_to_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
