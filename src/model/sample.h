/* sample.h - choosing a token: a pure function of f32 logits, parameters, seed and position. */
#ifndef MODEL_SAMPLE_H
#define MODEL_SAMPLE_H

#include <stdint.h>

struct sample_opts {
    float temperature; /* 0: greedy, lowest id among equals */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    int top_k;         /* 0: off */
    uint64_t seed;
};

/* The random number of a position depends on (seed, position) only, so that a restored or re-batched
 * request goes on with the same tokens.  `scratch` has room for 2 * n_vocab 32-bit words.  NaN logits
 * are never chosen unless all are. */
int32_t sample_token(const float *logits, int n_vocab, const struct sample_opts *o,
                     int64_t position, void *scratch);

#endif
