/* placement_price.c - see placement_price.h. */
#include "store/placement_price.h"

#include <math.h>

#include "store/store.h"

static bool is_known(const struct placement_price *x)
{
    return x->token_s > 0 && x->chunk_bytes > 0;
}

static double value_of(const struct placement_price *x, double saved_s, double n_bytes)
{
    double unit = STORE_CHUNK_TOKENS * x->token_s / x->chunk_bytes;
    return fmin(fmax(saved_s / (n_bytes * unit), PLACEMENT_LEAST_VALUE),
                PLACEMENT_MOST_VALUE);
}

/* Returns the seconds until lost tokens are computed again. */
static double compute_s(const struct placement_price *x, int n_tokens, double share)
{
    return n_tokens * (share > 0 ? share : 1) * x->token_s;
}

double placement_price_stored(const struct placement_price *x, int n_tokens, double share,
                              uint64_t n_bytes)
{
    if (!is_known(x) || n_bytes == 0)
        return 1;
    double read_s = (double)n_bytes * x->read_byte_s;
    return value_of(x, compute_s(x, n_tokens, share) - read_s, (double)n_bytes);
}

double placement_price_held(const struct placement_price *x, int n_tokens, double share,
                            bool is_stored)
{
    if (!is_known(x))
        return 1;
    double saved_s = compute_s(x, n_tokens, share);
    double read_s = x->chunk_bytes * n_tokens / STORE_CHUNK_TOKENS * x->read_byte_s;
    if (is_stored && read_s > 0)
        saved_s = fmin(saved_s, read_s);
    return value_of(x, saved_s, x->chunk_bytes);
}
