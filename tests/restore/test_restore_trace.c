/* test_restore_trace.c - the spans of a trace: adjacent ones are joined, none overlap, and their
 * number is bounded. */
#include "tests/unit.h"
#include "restore/restore_trace.h"

static struct restore_trace t;

TEST(what_follows_is_joined)
{
    t.n = 0;
    restore_trace_add(&t, 0, 100000, 1, 'K');
    /* begins 5 us after the last span's end */
    restore_trace_add(&t, 105000, 200000, 1, 'K');
    restore_trace_add(&t, 200000, 300000, 2, 'K'); /* belongs to another layer */
    restore_trace_add(&t, 300000, 400000, 2, 'H'); /* has another method */
    restore_trace_add(&t, 500000, 600000, 2, 'H'); /* begins after a gap */
    assert_int_equal(t.n, 4);
    assert_int_equal(t.span[0].end_ns, 200000);
    assert_int_equal(t.span[3].start_ns, 500000);
}

TEST(what_overlaps_is_cut)
{
    t.n = 0;
    restore_trace_add(&t, 0, 100000, 1, 'K');
    /* began while the last span was in flight, so its beginning is cut off */
    restore_trace_add(&t, 10000, 150000, 2, 'K');
    /* lies inside the last span, so no part of it is recorded */
    restore_trace_add(&t, 20000, 140000, 3, 'K');
    assert_int_equal(t.n, 2);
    assert_int_equal(t.span[1].start_ns, 100000);
    assert_int_equal(t.span[1].end_ns, 150000);
}

TEST(memory_is_bounded)
{
    t.n = 0;
    for (int i = 0; i < 2 * RESTORE_MAX_SPANS; i++)
        restore_trace_add(&t, i * (int64_t)100000, i * (int64_t)100000 + 10, i % 100, 'R');
    assert_int_equal(t.n, RESTORE_MAX_SPANS);
}
