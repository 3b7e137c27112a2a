/* turns.h - runs all threads of a program in one thread, by turns that a seed decides.
 *
 * turns_run calls a function as the first thread of a small world.  In this world pthread_create
 * makes a fiber, and locks, conditions, sleeps, joins and the clock belong to the interleaver.  At
 * each of these calls, and at each shared_load and shared_store (base/step.h), another fiber may
 * run.  The seed decides which one, so a seed determines an interleaving.
 *
 *     life     --lock--load--|        |--store--wait(cond)                  |--join--
 *     writer                 |--lock--|                   |--append..signal--|
 *
 * The clock is simulated.  It advances a little with each reading.  When every fiber waits, it
 * jumps to the end of the first timed wait.  At random it jumps there earlier, by at most a second,
 * as if the machine had stalled.
 *
 * These are violations:
 *  - every fiber waits and no wait is timed;
 *  - the world has not ended after max_turns turns;
 *  - a lock is taken twice by its owner, or released by a fiber that is not its owner;
 *  - two locks are taken in both orders at any time, even where nobody waited;
 *  - a fiber is left when the first function has returned, or an ended fiber holds a lock.
 *
 * A violation prints the seed and ends the process with status 1. So run worlds in a child.
 *
 * The linker redirects the program's calls of pthread_*, clock_* and setpriority here (TURNS in the
 * Makefile).  Outside of turns_run they call the real functions.  The program's shared libraries
 * keep the real functions: no fiber may run while one of them holds a lock of its own. */
#ifndef TESTS_RESTORE_TURNS_H
#define TESTS_RESTORE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct turns_opts {
    uint64_t seed;
    uint64_t max_turns; /* 0 means 1,000,000 */
};

struct turns_counts {
    uint64_t n_turns, n_switches, n_stalls;
    int n_fibers;
};

void turns_run(const struct turns_opts *o, void (*fn)(void *arg), void *arg,
               struct turns_counts *out);
/* Lets another fiber run if the seed says so.  Outside of a world it does nothing. */
void turns_point(void);
/* Like turns_point, for a value shared without a lock.  Fibers switch more often here, because
 * races are found here. */
void turns_shared(void);
/* Prints what was violated and the seed, and ends the process. */
_Noreturn void turns_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
