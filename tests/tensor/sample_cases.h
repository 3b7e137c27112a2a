/* sample_cases.h - logits and sampling parameters with which `ref` is compared with other backends.
 */
#ifndef TESTS_TENSOR_SAMPLE_CASES_H
#define TESTS_TENSOR_SAMPLE_CASES_H

#include "tensor/ops.h"

/* Rows with and without every filter, over logits with many equal values, NaNs, infinities and
 * zeros of both signs.  Free it with sample_case_free. */
struct sample_case {
    struct mat logits;
    struct sample_row *rows; /* [logits.rows] */
    int32_t *ids;            /* [logits.rows] the ids that ref chooses */
};

extern const int sample_vocabs[];
extern const int n_sample_vocabs;
struct sample_case sample_case_make(int n_vocab, uint64_t seed);
void sample_case_free(struct sample_case *c);

#endif
