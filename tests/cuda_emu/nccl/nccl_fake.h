/* nccl_fake.h - a libnccl.so.2 for tests.  It exchanges data between emulated GPUs, counts its
 * calls, and ends the program if a rule of NCCL's is broken.
 *
 * It is a separate library and has NCCL's name for the dynamic loader.  So after a test has loaded
 * this library by its path, the code that opens NCCL gets this library.  It knows the emulation
 * only through the CUDA runtime calls that the test gives it. */
#ifndef TESTS_NCCL_FAKE_H
#define TESTS_NCCL_FAKE_H

#include <stddef.h>

struct nccl_fake {
    /* Calls of the CUDA runtime, set by the test. */
    int (*sync)(void *stream);
    int (*copy)(void *to, const void *from, size_t n, int kind, void *stream);

    /* Counts of calls; n_ranks is the number of ranks of the last communicator. */
    int n_init, n_ranks, n_gather, n_destroyed, n_aborted, n_async;
    int device[16];
    size_t least_count, most_count;

    /* Each makes the n-th call of its kind from now on (0: the next) fail; -1: no call fails. */
    int fail_init, fail_gather, fail_group, fail_async;
};

typedef struct nccl_fake *(*nccl_fake_get)(void);
#define NCCL_FAKE_SYMBOL "nccl_fake"

#endif
