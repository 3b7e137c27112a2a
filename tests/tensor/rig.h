/* rig.h - shared by the tensor tests: devices of every kind, random data, comparisons. */
#ifndef TESTS_TENSOR_RIG_H
#define TESTS_TENSOR_RIG_H

#include "tests/unit.h"
#include "base/rng.h"
#include "tensor/ops.h"

#define ISA_COUNT 4
extern const char
    *const isa_names[ISA_COUNT]; /* "portable" is first; all others must give its bits */

/* A device under test with its threads and a stream. */
struct lab {
    struct pool *pool;
    struct device *device;
    struct stream *stream;
    const struct ops *ops;
};

/* The reference device. */
struct lab lab_ref(void);
/* The CPU device on one instruction set.  If this CPU lacks it, prints a line and returns a lab
 * whose device is NULL. */
struct lab lab_cpu(const char *isa, int n_threads);
void lab_close(struct lab *l);

/* Returns n random elements in [-1, 1], exact in type t.  The caller frees them. */
void *random_elems(enum dtype t, int64_t n, uint64_t seed);
/* Returns n rows of k random 4-bit weights in the blocks of tensor/q4_blocks.h.  The caller frees
 * them. */
uint8_t *random_q4(enum dtype t, int64_t n, int64_t k, uint64_t seed);
float elem_get(const void *p, enum dtype t, int64_t i);
struct mat mat_alloc(enum dtype t, int64_t rows, int64_t cols); /* zeroed */
struct mat mat_random(enum dtype t, int64_t rows, int64_t cols, uint64_t seed);
void mat_free(struct mat *m);

struct weight weight_make(const struct lab *l, enum dtype t, int64_t n, int64_t k,
                          const void *rows);
void weight_free(const struct lab *l, struct weight *w);

void assert_same_bits(struct mat a, struct mat b);
/* Checks that |a - b| <= tolerance * (1 + |b|) everywhere. */
void assert_near(struct mat a, struct mat b, double tolerance);

/* Returns a rotation table for max_pos positions. */
struct rope rope_make(int64_t max_pos, int d_rot);
void rope_free(struct rope *r);

/* A KV cache of one layer whose unused slots hold NaN. */
struct cache {
    struct kv_layer kv;
    struct buf mem;
    int n_seqs, n_blocks;
    int32_t *table[4]; /* block numbers in a shuffled order */
};
struct cache cache_make(const struct lab *l, enum dtype t, int n_kv, int d_head, int n_seqs,
                        int max_tokens);
void cache_free(const struct lab *l, struct cache *c);

struct test_batch {
    struct ragged r;
    int32_t *pos, *seq_row;
    const int32_t **tables;
};
/* Returns a ragged batch in which sequence i has positions [start[i], start[i] + rows[i]). */
struct test_batch batch_make(const struct cache *c, int n_seqs, const int *start,
                             const int *rows);
void batch_free(struct test_batch *b);

#endif
