/* Power loss at every operation of a life, and known bugs that lives under a seed must catch.
 * (test_campaign runs lives in which no bug is injected.)  A failure prints what reproduces it. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "crashrun.h"
#include "store/bugs.h"

static enum store_bug bug;

enum store_bug store_test_bug(void)
{
    return bug;
}

struct tally {
    uint64_t n_images, n_violations;
    struct crash_opts first; /* the first life that violated a promise */
    char violation[256];
};

static void image(struct tally *t, const struct crash_opts *opts, struct crash_result *r)
{
    crash_run(opts, r);
    t->n_images++;
    if (r->violation[0] != 0 && t->n_violations++ == 0) {
        t->first = *opts;
        snprintf(t->violation, sizeof t->violation, "%s", r->violation);
    }
}

/* Runs lives with increasing seeds until one violates a promise. Each runs once to its end and is
 * then cut off at a few moments. Every third time its recovery is cut off, too. */
static void images(struct tally *t, uint64_t max_images)
{
    for (uint64_t seed = 1; t->n_images < max_images && t->n_violations == 0; seed++) {
        struct rng rng = {seed ^ 0xc4a5};
        struct crash_opts opts = {.seed = seed};
        struct crash_result whole, r;
        image(t, &opts, &whole);
        for (int i = 0; i < 8 && t->n_images < max_images && whole.n_ops > 0; i++) {
            opts.crash_at = 1 + rng_below(&rng, whole.n_ops);
            opts.recover_at = 0;
            image(t, &opts, &r);
            if (i % 3 == 0 && r.n_recover_ops > 0) {
                opts.recover_at = 1 + rng_below(&rng, r.n_recover_ops);
                image(t, &opts, &r);
            }
        }
    }
}

/* Cuts a short life off at every operation. */
TEST(every_operation)
{
    struct crash_opts opts = {.seed = 4242};
    struct crash_result whole, r;
    struct tally t = {0};
    image(&t, &opts, &whole);
    for (opts.crash_at = 1; opts.crash_at <= whole.n_ops; opts.crash_at++)
        image(&t, &opts, &r);
    print_message("every one of %llu operations: %llu violations\n",
                  (unsigned long long)whole.n_ops, (unsigned long long)t.n_violations);
    if (t.n_violations > 0)
        fail_msg("crash at %llu: %s", (unsigned long long)t.first.crash_at, t.violation);
}

static void is_caught(enum store_bug which, const char *name)
{
    struct tally t = {0};
    bug = which;
    images(&t, 5000);
    bug = STORE_BUG_NONE;
    print_message("%s: caught after %llu images: %s\n", name,
                  (unsigned long long)t.n_images,
                  t.n_violations > 0 ? t.violation : "NOT CAUGHT");
    assert_true(t.n_violations > 0);
}

TEST(missing_sync_is_caught)
{
    is_caught(STORE_BUG_NO_SYNC, "a sync left out");
}

TEST(index_first_is_caught)
{
    is_caught(STORE_BUG_INDEX_FIRST, "the index committed before its data");
}

TEST(early_reuse_is_caught)
{
    is_caught(STORE_BUG_EARLY_REUSE, "space reused before it is free");
}
