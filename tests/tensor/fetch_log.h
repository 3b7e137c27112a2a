/* fetch_log.h - notes which addresses kernels prefetch.
 *
 * A test includes this header, and then the kernels, which are thereby compiled into the test.  The
 * test says with fetch_want, in order, what it expects to be prefetched, and compares the two lists
 * with fetch_check. */
#ifndef TESTS_TENSOR_FETCH_LOG_H
#define TESTS_TENSOR_FETCH_LOG_H

#include "tests/unit.h"

/* An address, 0 for reading, and the cache that it is prefetched into: 3 for L1, 2 for L2. */
struct fetch_note {
    const void *at;
    int write, cache;
};

enum { MAX_FETCHES = 1 << 15 };
static struct fetch_note fetch_noted[MAX_FETCHES], fetch_wanted[MAX_FETCHES];
static size_t n_fetch_noted, n_fetch_wanted;

static void fetch_note(struct fetch_note note)
{
    assert_true(n_fetch_noted < MAX_FETCHES);
    fetch_noted[n_fetch_noted++] = note;
}

static void fetch_want(const void *at, int cache)
{
    assert_true(n_fetch_wanted < MAX_FETCHES);
    fetch_wanted[n_fetch_wanted++] = (struct fetch_note){at, 0, cache};
}

/* Checks that exactly the expected addresses were prefetched, in the expected order. Forgets both
 * lists. `base`: messages give offsets from there. */
static void fetch_check(const uint8_t *base)
{
    for (size_t i = 0; i < n_fetch_noted && i < n_fetch_wanted; i++) {
        const struct fetch_note *got = &fetch_noted[i], *want = &fetch_wanted[i];
        if (got->at != want->at || got->write != want->write || got->cache != want->cache)
            fail_msg("prefetch %zu: offset %td into cache %d, not offset %td into cache %d",
                     i, (const uint8_t *)got->at - base, got->cache,
                     (const uint8_t *)want->at - base, want->cache);
    }
    assert_int_equal(n_fetch_noted, n_fetch_wanted);
    n_fetch_noted = n_fetch_wanted = 0;
}

/* No test calls all kernels of the headers that it includes. */
#pragma GCC diagnostic ignored "-Wunused-function"

#define __builtin_prefetch(...) fetch_note((struct fetch_note){__VA_ARGS__})

#endif
