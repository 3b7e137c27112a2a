/* unit.h - cmocka, behind the headers that it needs, and TEST, with which a test says that it is
 * one. The tests of modules include it.
 *
 *     TEST(a_full_store_evicts)
 *     {
 *         ...
 *     }
 *
 * A program runs its tests in the order of their lines; with an argument, only those whose names
 * match it. It needs a main of its own only to set up what its tests share, or to do something
 * before them. */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Defines a test. `state` is what its set-up, or that of the program, has left. */
#define TEST(name) TEST_WITH(name, NULL, NULL)

/* Defines a test with a set-up and a tear-down of its own; each may be NULL. */
#define TEST_WITH(name, setup, teardown)                                                   \
    static void name(void **state);                                                        \
    __attribute__((constructor)) static void unit_add_##name(void)                         \
    {                                                                                      \
        unit_add((struct CMUnitTest){#name, name, setup, teardown, NULL}, __LINE__);       \
    }                                                                                      \
    static void name(void **state)

/* Adds a test; the order is that of the lines. */
void unit_add(struct CMUnitTest test, int line);
/* Adds a test of a table, which main calls for each row: the function gets the row as its state. */
void unit_case(const char *name, CMUnitTestFunction function, void *state);

/* Runs all tests, between the set-up and the tear-down that they share. Returns how many failed. */
int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
