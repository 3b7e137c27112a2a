/* backoff.h - how long to rest between attempts at something that fails.
 *
 * Rests double up to a bound.  Half of each is random, so that many servers that lost the same
 * remote do not come back to it in the same moment.  Pure: the seed is the caller's. */
#ifndef POLICY_BACKOFF_H
#define POLICY_BACKOFF_H

#include <stdint.h>

#define BACKOFF_FIRST_S 0.25
#define BACKOFF_MOST_S  30.0

/* Returns the rest in seconds behind the n-th failure in a row, n >= 1: between a half and all of
 * BACKOFF_FIRST_S * 2^(n - 1), and of BACKOFF_MOST_S at most. */
double backoff_s(int n_failures, uint64_t seed);

#endif
