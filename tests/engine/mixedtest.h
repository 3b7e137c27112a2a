/* mixedtest.h - compares contexts of KV and ACT blocks, on any device, with contexts that never
 * left it. */
#ifndef TESTS_ENGINE_MIXEDTEST_H
#define TESTS_ENGINE_MIXEDTEST_H

#include "engine/mixed.h"
#include "tests/engine/enginetest.h"

enum { MX_SEQS = 5 };

/* A random choice of the class of each block. */
struct mx_order {
    uint64_t rng;
    int order[PLACES_CLASSES];
};
const int *mx_random_order(void *order, const struct kv_table *t);

struct mx_case {
    const char *device, *model;
    int n_patterns, n_generate;
    uint64_t seed;
};
/* For each pattern, draws numbers of blocks of each class, the classes of sequences' blocks, the
 * buffers and the mini-batches. Tokens and logits must equal those of an engine with KV blocks
 * only. */
void mx_compare(const struct mx_case *c);

#endif
