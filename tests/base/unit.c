/* unit.c - see unit.h. Linked into every test, also for what it does to stdout. */
#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TESTS = 256 };

static struct CMUnitTest tests[MAX_TESTS];
static int lines[MAX_TESTS], n_tests;

/* Has stdout written by lines, so that a program that hangs or is killed shows which test ran last:
 * into a file or a pipe the C library writes only when a buffer is full. */
__attribute__((constructor)) static void write_lines_at_once(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
}

void unit_add(struct CMUnitTest test, int line)
{
    int at = n_tests++;
    if (at == MAX_TESTS)
        abort();
    for (; at > 0 && lines[at - 1] > line; at--) {
        tests[at] = tests[at - 1];
        lines[at] = lines[at - 1];
    }
    tests[at] = test;
    lines[at] = line;
}

void unit_case(const char *name, CMUnitTestFunction function, void *state)
{
    unit_add((struct CMUnitTest){name, function, NULL, NULL, state}, 0);
}

int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return _cmocka_run_group_tests("tests", tests, (size_t)n_tests, setup, teardown);
}

__attribute__((weak)) int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return unit_run(NULL, NULL);
}
