/* zigzagged.h - compares steps in mini-batches, on any device, with the ordinary order. */
#ifndef TESTS_ENGINE_ZIGZAGGED_H
#define TESTS_ENGINE_ZIGZAGGED_H

#include "tests/engine/enginetest.h"

enum { ZZ_SEQS = 5, ZZ_GENERATE = 6 };

/* Runs ZZ_SEQS requests of different lengths together. `save` is a value of --save. */
void zz_run_all(struct stack *k, const char *save, struct et_run out[ZZ_SEQS]);
/* Compares steps of 160 rows in mini-batches of 32 with steps of 32 rows. Tokens and logits must be
 * equal. An ordinary engine then restores the state that the mini-batches saved, with every kind of
 * record. */
void zz_compare(const char *device, int n_stages, const char *model);

#endif
