/* backoff.h - how long to wait between attempts at an operation that keeps failing.
 *
 * Waits double up to a bound. Half of each wait is random, so that many servers that lost the
 * same remote do not come back to it in the same moment. Pure: the caller provides the seed. */
#ifndef STORE_REMOTE_BACKOFF_H
#define STORE_REMOTE_BACKOFF_H

#include <stdint.h>

#define BACKOFF_FIRST_S 0.25
#define BACKOFF_MOST_S  30.0

/* Returns the wait in seconds after the n-th failure in a row, n >= 1. The full wait is
 * BACKOFF_FIRST_S * 2^(n - 1), at most BACKOFF_MOST_S. The result is at least half of
 * the full wait, and at most the full wait. */
double backoff_s(int n_failures, uint64_t seed);

#endif
