/* nccl_fake.h - a libnccl.so.2 for tests: it exchanges between emulated GPUs, notes what it is
 * asked for, and ends the program where a rule of NCCL's is broken.
 *
 * It is a library of its own, as NCCL is, so that what opens the real one opens it; it has the
 * real one's name to the dynamic loader, so a program that has loaded it finds it.  It knows of
 * the emulation only what the test tells: calls of the CUDA runtime. */
#ifndef TESTS_NCCL_FAKE_H
#define TESTS_NCCL_FAKE_H

#include <stddef.h>

struct nccl_fake {
    /* the test's: of the CUDA runtime */
    int (*sync)(void *stream);
    int (*copy)(void *to, const void *from, size_t n, int kind, void *stream);

    /* what it was asked for */
    int n_init, n_ranks, n_reduce, n_gather, n_destroyed, n_aborted, n_async;
    int device[16];
    size_t least_count, most_count;

    /* the n-th such call from now on (0: the next) fails; -1: none */
    int fail_init, fail_reduce, fail_group, fail_async;
};

typedef struct nccl_fake *(*nccl_fake_get)(void);
#define NCCL_FAKE_SYMBOL "nccl_fake"

#endif
