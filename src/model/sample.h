/* sample.h - the sampling parameters of one position (ops.sample), from those of a request. */
#ifndef MODEL_SAMPLE_H
#define MODEL_SAMPLE_H

#include <stdint.h>

#include "tensor/sampling.h"

struct sample_opts {
    float temperature; /* 0: greedy; the most likely token, of equal ones the lowest id */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    int top_k;         /* 0: off */
    uint64_t seed;
};

/* Returns the parameters for one position. Its random number depends only on (seed, position), so a
 * restored or re-batched request continues with the same tokens. */
struct sample_row sample_row_of(const struct sample_opts *o, int64_t position);

#endif
