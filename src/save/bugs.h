/* bugs.h - known bugs that the tests can switch on, to show that they would be caught.
 *
 * A test program that defines state_test_bug chooses one (tests/restore/test_lives.c). No other
 * program has the symbol, so no bug can be switched on there. */
#ifndef SAVE_BUGS_H
#define SAVE_BUGS_H

#include <stdbool.h>
#include <stddef.h>

enum state_bug {
    STATE_BUG_NONE,
    STATE_BUG_TWO_READS, /* n_good is loaded once for the test and again for the group */
    STATE_BUG_LOST_NEWS, /* the I/O thread goes to sleep although there is news for it */
    STATE_BUG_EARLY_COMMITTED, /* tokens count as committed when they are appended */
    STATE_BUG_EARLY_ROWS,      /* a chunk is written before its rows have come down */
    STATE_BUGS
};

extern enum state_bug state_test_bug(void) __attribute__((weak));

static inline bool state_has_bug(enum state_bug bug)
{
    return state_test_bug != NULL && state_test_bug() == bug;
}

#endif
