/* backoff.c - see backoff.h. */
#include "store/remote/backoff.h"

#include "base/rng.h"

double backoff_s(int n_failures, uint64_t seed)
{
    struct rng r = {rng_mix(seed) + (uint64_t)n_failures};
    double whole = BACKOFF_FIRST_S;
    for (int i = 1; i < n_failures && whole < BACKOFF_MOST_S; i++)
        whole *= 2;
    if (whole > BACKOFF_MOST_S)
        whole = BACKOFF_MOST_S;
    return whole * (0.5 + 0.5 * rng_unit(&r));
}
