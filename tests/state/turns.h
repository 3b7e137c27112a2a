/* turns.h - all threads of a program in one thread, by turns that a seed decides.
 *
 * turns_run calls a function as the first thread of a small world.  In this world pthread_create
 * makes a fiber; a lock, a condition, a sleep, a join and the clock are the interleaver's.  At
 * each of these places, and at each shared_load and shared_store (base/step.h), another fiber may
 * go on. The seed decides which one, so a seed names an interleaving.
 *
 *     life     --lock--load--|        |--store--wait(cond)                  |--join--
 *     writer                 |--lock--|                   |--append..signal--|
 *
 * The clock is simulated.  It grows a little with each reading.  Where every fiber waits it jumps
 * to the end of the first timed wait; now and then it does so before, by at most a second,
 * as if the machine had stalled.
 *
 * These are violations:
 *  - every fiber waits and no wait is timed;
 *  - the world is not over after max_turns turns;
 *  - a lock is taken twice by its owner, or given by another fiber than its owner;
 *  - two locks are taken in both orders at any time, even where nobody waited;
 *  - a fiber is left when the first function has returned, or a lock is held by an ended fiber.
 * A violation prints the seed and ends the process with status 1: run worlds in a child.
 *
 * The linker sends pthread_*, clock_* and setpriority of the program here (TURNS in the Makefile).
 * Outside of turns_run they are the real ones.  The program's own shared libraries keep the real
 * ones: no fiber may go on while one of them holds a lock of its own. */
#ifndef TESTS_STATE_TURNS_H
#define TESTS_STATE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct turns_opts {
    uint64_t seed;
    uint64_t max_turns; /* 0: 1,000,000 */
};

struct turns_counts {
    uint64_t n_turns, n_switches, n_stalls;
    int n_fibers;
};

void turns_run(const struct turns_opts *o, void (*fn)(void *arg), void *arg,
               struct turns_counts *out);
/* Another fiber may go on here. Outside of a world it does nothing. */
void turns_point(void);
/* The same at a value that is shared without a lock: more often, since races are found there. */
void turns_shared(void);
/* Says what was violated, and the seed, and ends the process. */
_Noreturn void turns_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
