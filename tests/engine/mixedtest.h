/* mixedtest.h - contexts of KV and ACT blocks, on any device: the answers of
 * contexts that never left it. */
#ifndef TESTS_ENGINE_MIXEDTEST_H
#define TESTS_ENGINE_MIXEDTEST_H

#include "engine/mixed.h"
#include "tests/engine/enginetest.h"

enum { MX_SEQS = 5 };

/* Chooses classes by chance. */
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
/* For each pattern: random numbers of blocks of each class, of which each sequence gets
 * random ones, random buffers and random mini-batches.  Tokens and logits are those of
 * an engine with KV blocks alone. */
void mx_compare(const struct mx_case *c);

#endif
