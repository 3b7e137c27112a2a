/* sample.c - see sample.h. */
#include "model/sample.h"

#include "base/rng.h"

/* Returns a random number in [0, 1). */
static double draw(uint64_t seed, int64_t position)
{
    struct rng r = {rng_mix(seed ^ 0x68636163686521u) +
                    (uint64_t)position * 0x9e3779b97f4a7c15u};
    return rng_unit(&r);
}

struct sample_row sample_row_of(const struct sample_opts *o, int64_t position)
{
    return (struct sample_row){.temperature = o->temperature,
                               .top_p = o->top_p,
                               .min_p = o->min_p,
                               .top_k = o->top_k,
                               .draw = draw(o->seed, position)};
}
