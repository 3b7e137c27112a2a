/* test_cpus.c - the number of usable processors under an affinity or a quota. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <sched.h>

#include "base/cpus.h"

static void quotas(void **state)
{
    (void)state;
    assert_int_equal(cpus_under_quota(64, 200000, 100000), 2);
    /* two and a half count as three */
    assert_int_equal(cpus_under_quota(64, 250000, 100000), 3);
    assert_int_equal(cpus_under_quota(64, 30000, 100000), 1);
    assert_int_equal(cpus_under_quota(2, 6400000, 100000), 2);
    assert_int_equal(cpus_under_quota(8, -1, 100000), 8);
    assert_int_equal(cpus_under_quota(8, 0, 0), 8);
    assert_int_equal(cpus_under_quota(8, LLONG_MAX, 1), 8);
}

static void only_those_it_may_run_on(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(cpus_usable(), 1, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cpus_usable(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotas),
        cmocka_unit_test(only_those_it_may_run_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
