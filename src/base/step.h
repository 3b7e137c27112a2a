/* step.h - threads as short loops around steps, and the values that they share without a lock.
 *
 * A thread of the restore pipeline or of the saver is a loop:
 *
 *     while ((did = X_step(x)) != STEP_ENDED)
 *         if (did == STEP_WAITS)
 *             X_wait(x);
 *
 * X_step does one piece of work and returns.  It never waits for another thread's work; it may
 * read or write the disk.  X_wait sleeps until the next step has something to do.
 *
 * The order in which two threads run matters only at locks and at values that both use without a
 * lock.  A value of this sort may change between two reads.  shared_load and shared_store mark
 * these accesses.  In the program they are plain atomic accesses.  A test that simulates all
 * threads on one (tests/restore/turns.h) defines shared_test_turn, which may switch to another
 * simulated thread at each access. */
#ifndef BASE_STEP_H
#define BASE_STEP_H

#include <stdatomic.h>
#include <stddef.h>

enum step {
    STEP_WORKED, /* the step did something, and there may be more to do */
    STEP_WAITS, /* nothing can be done before another thread or the disk has done something */
    STEP_ENDED, /* the thread may end, because there will be nothing more to do */
};

/* A test may define this function; in other programs the symbol does not exist. */
extern void shared_test_turn(void) __attribute__((weak));

static inline void shared_turn(void)
{
    if (shared_test_turn != NULL)
        shared_test_turn();
}

#define shared_load(p)     (shared_turn(), atomic_load(p))
#define shared_store(p, v) (shared_turn(), atomic_store((p), (v)))

#endif
