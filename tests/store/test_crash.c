/* Power loss at every kind of moment, and known bugs that this suite must catch.
 *
 * HCACHE_CRASH_IMAGES=N tries N images of each kind instead of N_IMAGES;
 * HCACHE_CRASH_SEED=S starts at another seed.  A failure prints what reproduces it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "crashrun.h"
#include "store/bugs.h"

/* The test is bounded by a count and not by time, so what it tries does not depend on how busy the
 * machine is.  It takes some seconds of work. */
enum { N_IMAGES = 1000 };

static enum store_bug bug;

enum store_bug store_test_bug(void)
{
    return bug;
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? strtoull(text, NULL, 10) : otherwise;
}

struct tally {
    uint64_t n_images, n_crashed, n_recovery_crashed, n_violations;
    struct crash_opts first; /* the first life that violated a promise */
    char violation[256];
};

static void image(struct tally *t, const struct crash_opts *opts, struct crash_result *r)
{
    crash_run(opts, r);
    t->n_images++;
    t->n_crashed += r->crashed;
    if (r->violation[0] != 0 && t->n_violations++ == 0) {
        t->first = *opts;
        snprintf(t->violation, sizeof t->violation, "%s", r->violation);
    }
}

/* Runs lives with increasing seeds. Each runs once to its end and is then cut off at a few moments.
 * Every third time its recovery is cut off, too. */
static void images(struct tally *t, uint64_t seed, uint64_t max_images,
                   bool stop_at_violation)
{
    for (; t->n_images < max_images; seed++) {
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
                t->n_recovery_crashed++;
            }
        }
        if (stop_at_violation && t->n_violations > 0)
            return;
    }
}

static void no_promise_breaks(void **state)
{
    (void)state;
    struct tally t = {0};
    uint64_t n = env_number("HCACHE_CRASH_IMAGES", N_IMAGES);
    images(&t, env_number("HCACHE_CRASH_SEED", 1), n, true);
    print_message(
        "crash images: %llu tried, %llu cut off in the workload, %llu in the recovery, "
        "%llu violations\n",
        (unsigned long long)t.n_images, (unsigned long long)t.n_crashed,
        (unsigned long long)t.n_recovery_crashed, (unsigned long long)t.n_violations);
    if (t.n_violations > 0)
        fail_msg("seed %llu, crash at %llu, recovery crash at %llu: %s",
                 (unsigned long long)t.first.seed, (unsigned long long)t.first.crash_at,
                 (unsigned long long)t.first.recover_at, t.violation);
    assert_true(t.n_images >= n && t.n_crashed > 0 && t.n_recovery_crashed > 0);
}

/* Cuts a short life off at every operation. */
static void every_operation(void **state)
{
    (void)state;
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

/* The disk fails at random before it loses power. Errors are returned, and every promise holds. */
static void faults_and_crashes(void **state)
{
    (void)state;
    struct tally t = {0};
    uint64_t n = env_number("HCACHE_CRASH_IMAGES", N_IMAGES), n_faults = 0;
    uint64_t seed = env_number("HCACHE_CRASH_SEED", 1);
    for (; t.n_images < n && t.n_violations == 0; seed++) {
        struct rng rng = {seed};
        struct crash_result r;
        struct crash_opts opts = {.seed = seed,
                                  .crash_at = 1 + rng_below(&rng, 600),
                                  .fault_chance = 0.002 * (double)rng_below(&rng, 20)};
        image(&t, &opts, &r);
        n_faults += r.n_faults;
    }
    print_message("fault images: %llu tried, %llu faults, %llu violations\n",
                  (unsigned long long)t.n_images, (unsigned long long)n_faults,
                  (unsigned long long)t.n_violations);
    if (t.n_violations > 0)
        fail_msg("seed %llu, crash at %llu, faults %g: %s",
                 (unsigned long long)t.first.seed, (unsigned long long)t.first.crash_at,
                 t.first.fault_chance, t.violation);
}

/* The index is lost with the power; the rebuild is cut off too. */
static void index_lost(void **state)
{
    (void)state;
    struct tally t = {0};
    uint64_t n = env_number("HCACHE_CRASH_IMAGES", N_IMAGES);
    uint64_t seed = env_number("HCACHE_CRASH_SEED", 1);
    for (; t.n_images < n && t.n_violations == 0; seed++) {
        struct rng rng = {seed};
        struct crash_result r;
        struct crash_opts opts = {
            .seed = seed, .crash_at = 1 + rng_below(&rng, 600), .lose_index = true};
        image(&t, &opts, &r);
        for (int i = 0; i < 3 && r.n_recover_ops > 0; i++) {
            opts.recover_at = 1 + rng_below(&rng, r.n_recover_ops);
            image(&t, &opts, &r);
        }
    }
    print_message("images with a lost index: %llu tried, %llu violations\n",
                  (unsigned long long)t.n_images, (unsigned long long)t.n_violations);
    if (t.n_violations > 0)
        fail_msg("seed %llu, crash at %llu, recovery crash at %llu: %s",
                 (unsigned long long)t.first.seed, (unsigned long long)t.first.crash_at,
                 (unsigned long long)t.first.recover_at, t.violation);
}

static void is_caught(enum store_bug which, const char *name)
{
    struct tally t = {0};
    bug = which;
    images(&t, 1, 5000, true);
    bug = STORE_BUG_NONE;
    print_message("%s: caught after %llu images: %s\n", name,
                  (unsigned long long)t.n_images,
                  t.n_violations > 0 ? t.violation : "NOT CAUGHT");
    assert_true(t.n_violations > 0);
}

static void missing_sync_is_caught(void **state)
{
    (void)state;
    is_caught(STORE_BUG_NO_SYNC, "a sync left out");
}

static void index_first_is_caught(void **state)
{
    (void)state;
    is_caught(STORE_BUG_INDEX_FIRST, "the index committed before its data");
}

static void early_reuse_is_caught(void **state)
{
    (void)state;
    is_caught(STORE_BUG_EARLY_REUSE, "space reused before it is free");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_promise_breaks),      cmocka_unit_test(every_operation),
        cmocka_unit_test(faults_and_crashes),     cmocka_unit_test(index_lost),
        cmocka_unit_test(missing_sync_is_caught), cmocka_unit_test(index_first_is_caught),
        cmocka_unit_test(early_reuse_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
