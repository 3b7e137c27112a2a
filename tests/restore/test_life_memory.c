/* test_life_memory.c - the n-th allocation of a short life fails, for every n: alone, or together
 * with all later allocations.
 *
 * A life opens a store, a saver and a restore pipeline, saves, restores, cancels and closes
 * (life.h). Each failure gives a reason. Each restore that succeeds has the right bits. Tokens
 * reported as committed come back after a restart with enough memory. Under the address sanitizer
 * nothing leaks.
 *
 * By default the test runs lives for evenly spread n; HCACHE_MEMORY=all runs every n. The
 * allocations are those of the program and of SQLite (memtest.h). */
#include <stdio.h>

#include "tests/unit.h"
#include "base/step.h"
#include "tests/base/memtest.h"
#include "tests/restore/life.h"
#include "tests/restore/turns.h"

void shared_test_turn(void)
{
    turns_shared();
}

static struct life_counts counts;

static void life(void *arg)
{
    life_run(*(const uint64_t *)arg, 1u << LIFE_MEMORY, &counts);
}

TEST(every_allocation_fails)
{
    life_before_restart = memtest_stop;
    for (uint64_t seed = 1; seed <= 3; seed++)
        memtest_walk("a short life", life, &seed, 40);
    printf("%llu lives, %llu restores compared, %llu committed tokens looked for\n",
           (unsigned long long)counts.n_lives, (unsigned long long)counts.n_restored,
           (unsigned long long)counts.n_committed);
    assert_true(counts.n_restored > 0 && counts.n_committed > 0 && counts.n_save_ended > 0);
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP all threads run in one, where the thread sanitizer sees nothing\n");
    return 0;
#endif
    memtest_init();
    life_prepare();
    int rc = unit_run(NULL, NULL);
    life_release();
    return rc;
}
