/* sample.h - how a request's tokens are chosen: the parameters of ops.sample for one position. */
#ifndef MODEL_SAMPLE_H
#define MODEL_SAMPLE_H

#include <stdint.h>

#include "tensor/sampling.h"

struct sample_opts {
    float temperature; /* 0: greedy, lowest id among equals */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    int top_k;         /* 0: off */
    uint64_t seed;
};

/* The random number of a position depends on (seed, position) only, so that a restored or
 * re-batched request goes on with the same tokens. */
struct sample_row sample_row_of(const struct sample_opts *o, int64_t position);

#endif
