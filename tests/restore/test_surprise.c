/* test_surprise.c - which predictions missed, and the cause that is named. */

#include "tests/unit.h"
#include "restore/surprise.h"

static const struct surprise_times predicted = {0.100, 0.090, 0.040};

static enum surprise of(double total, double io, double compute)
{
    const struct surprise_times m = {total, io, compute};
    return surprise_of(&predicted, &m, true);
}

TEST(a_miss_is_a_factor_of_two)
{
    assert_int_equal(of(0.100, 0.090, 0.040), SURPRISE_NONE);
    assert_int_equal(of(0.200, 0.190, 0.040), SURPRISE_NONE);
    assert_int_equal(of(0.201, 0.191, 0.040), SURPRISE_READS);
    assert_int_equal(of(0.050, 0.050, 0.040), SURPRISE_NONE);
    assert_int_equal(of(0.049, 0.049, 0.020), SURPRISE_FASTER);
}

TEST(the_lane_that_explains_half_of_it_is_the_cause)
{
    /* exactly half of the excess is due to reads */
    assert_int_equal(of(0.300, 0.190, 0.040), SURPRISE_READS);
    /* less than half is due to reads */
    assert_int_equal(of(0.300, 0.189, 0.040), SURPRISE_SHARED);
    /* exactly half is due to compute */
    assert_int_equal(of(0.300, 0.090, 0.140), SURPRISE_COMPUTE);
    assert_int_equal(of(0.300, 0.090, 0.139), SURPRISE_SHARED);
    /* both lanes explain half; the lane with the larger excess is named */
    assert_int_equal(of(0.300, 0.250, 0.160), SURPRISE_READS);
    assert_int_equal(of(0.300, 0.200, 0.220), SURPRISE_COMPUTE);
}

TEST(lost_chunks_explain_a_miss_by_themselves)
{
    const struct surprise_times slow = {0.300, 0.290, 0.040}, fast = {0.010, 0.010, 0},
                                as_said = {0.110, 0.100, 0.040};
    assert_int_equal(surprise_of(&predicted, &slow, false), SURPRISE_LOST);
    assert_int_equal(surprise_of(&predicted, &fast, false), SURPRISE_LOST);
    assert_int_equal(surprise_of(&predicted, &as_said, false), SURPRISE_NONE);
}

TEST(a_few_milliseconds_are_no_miss)
{
    const struct surprise_times p = {0.001, 0.001, 0}, m = {0.006, 0.006, 0},
                                more = {0.0061, 0.0061, 0};
    assert_int_equal(surprise_of(&p, &m, true), SURPRISE_NONE);
    assert_int_equal(surprise_of(&p, &more, true), SURPRISE_READS);
    assert_int_equal(surprise_of(&m, &p, true), SURPRISE_NONE);
    assert_int_equal(surprise_of(&more, &p, true), SURPRISE_FASTER);
}

TEST(every_cause_has_a_name_of_its_own)
{
    for (int i = 0; i < SURPRISES; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(surprise_name(i), surprise_name(k));
    assert_string_equal(surprise_name(SURPRISE_NONE), "");
}
