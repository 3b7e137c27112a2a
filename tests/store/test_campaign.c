/* The crash campaign: everything that the simulated disk can do to a store, counted.
 *
 * HCACHE_CAMPAIGN=N tries N images in all (1,200 by default); HCACHE_CRASH_SEED=S starts at another
 * seed; HCACHE_CAMPAIGN_OUT=FILE receives the counts, a "name: number" per line, for the table that
 * `make crash` prints.  A failure prints what reproduces it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "crashrun.h"

struct tally {
    uint64_t n_images, n_crashed, n_recover_crashes, n_contexts, n_lost, n_wrong, n_dram,
        n_promoted, n_replaced, n_dropped;
    uint64_t n_fault[CRASH_FAULTS];
    struct crash_opts first;
    char violation[256]; /* message of the first life that violated a promise */
};
static struct tally all;

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t budget(unsigned percent)
{
    return env_number("HCACHE_CAMPAIGN", 1200) * percent / 100;
}

static void image(const struct crash_opts *opts, struct crash_result *r)
{
    crash_run(opts, r);
    all.n_images++;
    all.n_crashed += r->crashed;
    all.n_recover_crashes += r->n_recover_crashes;
    all.n_contexts += r->n_contexts;
    all.n_lost += r->n_lost;
    all.n_wrong += r->n_wrong;
    all.n_dram += r->n_dram;
    all.n_promoted += r->n_promoted;
    all.n_replaced += r->n_replaced;
    all.n_dropped += r->n_dropped;
    for (int k = 0; k < CRASH_FAULTS; k++)
        all.n_fault[k] += r->n_fault[k];
    if (r->violation[0] != 0 && all.violation[0] == 0) {
        all.first = *opts;
        snprintf(all.violation, sizeof all.violation, "%s", r->violation);
    }
}

static void no_violation(void)
{
    const struct crash_opts *o = &all.first;
    if (all.violation[0] != 0)
        fail_msg("seed %llu, crash at %s %llu, recovery crash at %llu x %d, faults %x at "
                 "%g%s%s: %s",
                 (unsigned long long)o->seed, o->at_barrier ? "barrier" : "operation",
                 (unsigned long long)o->crash_at, (unsigned long long)o->recover_at,
                 o->n_recover, o->faults, o->fault_chance,
                 o->lose_index ? ", index lost" : "",
                 o->lose_segments ? ", segment lost" : "", all.violation);
}

static uint64_t first_seed(void)
{
    return env_number("HCACHE_CRASH_SEED", 1);
}

/* Cuts lives off at each of their syncs. A third of the recoveries are cut off, too, up to three
 * times in a row. */
TEST(every_barrier)
{
    uint64_t end = all.n_images + budget(40);
    for (uint64_t seed = first_seed(); all.n_images < end; seed++) {
        struct rng rng = {seed ^ 0xba11};
        struct crash_opts opts = {.seed = seed, .at_barrier = true};
        struct crash_result whole, r;
        image(&opts, &whole);
        for (uint64_t at = 1; at <= whole.n_barriers && all.n_images < end; at++) {
            opts.crash_at = at;
            opts.recover_at = 0;
            image(&opts, &r);
            if (at % 3 == 0 && r.n_recover_ops > 0) {
                opts.recover_at = 1 + rng_below(&rng, r.n_recover_ops);
                opts.n_recover = 1 + (int)rng_below(&rng, 3);
                image(&opts, &r);
            }
        }
        no_violation();
    }
}

/* Cuts lives off at any operation. */
TEST(any_operation)
{
    uint64_t end = all.n_images + budget(20);
    for (uint64_t seed = first_seed() + 1000000; all.n_images < end; seed++) {
        struct rng rng = {seed};
        struct crash_opts opts = {.seed = seed, .crash_at = 1 + rng_below(&rng, 700)};
        struct crash_result r;
        image(&opts, &r);
        if (r.n_recover_ops > 0) {
            opts.recover_at = 1 + rng_below(&rng, r.n_recover_ops);
            opts.n_recover = 1 + (int)rng_below(&rng, 3);
            image(&opts, &r);
        }
        no_violation();
    }
}

/* The disk reports failures of every kind and then loses power. */
TEST(honest_faults)
{
    uint64_t end = all.n_images + budget(20);
    for (uint64_t seed = first_seed() + 2000000; all.n_images < end; seed++) {
        struct rng rng = {seed};
        struct crash_opts opts = {.seed = seed,
                                  .crash_at = 1 + rng_below(&rng, 700),
                                  .fault_chance = 0.001 * (double)(1 + rng_below(&rng, 40)),
                                  .faults = (unsigned)rng_u64(&rng) &
                                            ((1u << CRASH_LOST) - 1)};
        struct crash_result r;
        opts.faults |= 1u << rng_below(&rng, CRASH_LOST);
        image(&opts, &r);
        no_violation();
    }
}

/* The disk lies. The only promise left is that no wrong byte is served. */
TEST(lies)
{
    uint64_t end = all.n_images + budget(10);
    for (uint64_t seed = first_seed() + 3000000; all.n_images < end; seed++) {
        struct rng rng = {seed};
        struct crash_opts opts = {.seed = seed,
                                  .crash_at = 1 + rng_below(&rng, 900),
                                  .fault_chance = 0.001 * (double)(1 + rng_below(&rng, 60)),
                                  .faults = 1u << (CRASH_LOST + rng_below(&rng, 3))};
        struct crash_result r;
        image(&opts, &r);
        no_violation();
    }
}

/* The index or a segment is lost with the power; the rebuild is cut off too. */
TEST(parts_lost)
{
    uint64_t end = all.n_images + budget(10);
    for (uint64_t seed = first_seed() + 4000000; all.n_images < end; seed++) {
        struct rng rng = {seed};
        struct crash_opts opts = {.seed = seed, .crash_at = 1 + rng_below(&rng, 700)};
        struct crash_result r;
        opts.lose_index = seed % 3 != 0;
        opts.lose_segments = seed % 3 != 1;
        image(&opts, &r);
        for (int i = 0; i < 2 && r.n_recover_ops > 0; i++) {
            opts.recover_at = 1 + rng_below(&rng, r.n_recover_ops);
            opts.n_recover = 1 + (int)rng_below(&rng, 3);
            image(&opts, &r);
        }
        no_violation();
    }
}

static void counts_print(FILE *f)
{
    fprintf(f, "crash images tried: %llu\n", (unsigned long long)all.n_images);
    fprintf(f, "  power lost in the workload: %llu\n", (unsigned long long)all.n_crashed);
    fprintf(f, "  power lost in a recovery: %llu\n",
            (unsigned long long)all.n_recover_crashes);
    for (int k = 0; k < CRASH_FAULTS; k++)
        fprintf(f, "faults, %s: %llu\n", crash_fault_name((enum crash_fault)k),
                (unsigned long long)all.n_fault[k]);
    fprintf(f, "committed chunks looked for: %llu\n", (unsigned long long)all.n_contexts);
    fprintf(f, "chunks replaced: %llu\n", (unsigned long long)all.n_replaced);
    fprintf(f, "chunks that lost a layer: %llu\n", (unsigned long long)all.n_dropped);
    fprintf(f, "chunks read ahead into DRAM: %llu\n", (unsigned long long)all.n_promoted);
    fprintf(f, "records read from copies in DRAM: %llu\n", (unsigned long long)all.n_dram);
    fprintf(f, "contexts lost: %llu\n", (unsigned long long)all.n_lost);
    fprintf(f, "wrong bytes served: %llu\n", (unsigned long long)all.n_wrong);
}

/* Each kind of fault has happened, and the table has its count. */
TEST(counted)
{
    const char *path = getenv("HCACHE_CAMPAIGN_OUT");
    FILE *f = path != NULL && *path != 0 ? fopen(path, "w") : stdout;
    assert_non_null(f);
    counts_print(f);
    if (f != stdout)
        assert_int_equal(fclose(f), 0);
    for (int k = 0; k < CRASH_FAULTS; k++)
        if (all.n_fault[k] == 0)
            fail_msg("no fault of kind \"%s\" was tried",
                     crash_fault_name((enum crash_fault)k));
    assert_true(all.n_recover_crashes > 0 && all.n_contexts > 0);
    assert_true(all.n_replaced > 0 && all.n_dropped > 0);
    assert_true(all.n_promoted > 0 && all.n_dram > all.n_promoted);
    assert_int_equal(all.n_lost + all.n_wrong, 0);
}
