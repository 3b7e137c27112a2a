/* bugs.h - known bugs that the tests can switch on, to show that they would be caught.
 *
 * A test program that defines store_test_bug chooses one. No other program has the symbol, so no
 * bug can be switched on there. */
#ifndef STORE_BUGS_H
#define STORE_BUGS_H

#include <stdbool.h>
#include <stddef.h>

enum store_bug {
    STORE_BUG_NONE,
    STORE_BUG_NO_SYNC,     /* data is not synced before the index names it */
    STORE_BUG_NO_CHECK,    /* a record's checksum is not compared */
    STORE_BUG_INDEX_FIRST, /* the index is committed before its data is synced */
    STORE_BUG_NO_BOUND,    /* the number of records in a header is not bounded */
    STORE_BUG_EARLY_REUSE, /* space is reused while the index still names it */
};

extern enum store_bug store_test_bug(void) __attribute__((weak));

static inline bool store_has_bug(enum store_bug bug)
{
    return store_test_bug != NULL && store_test_bug() == bug;
}

#endif
