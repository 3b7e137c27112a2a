/* cufile_fake.h - a libcufile.so.0 for tests: it reads files into emulated device memory, as
 * late as it may (when the reads are waited for), fails on command, and ends the program where
 * a rule of cuFile's is broken.
 *
 * It is a library of its own, as cuFile is; it knows of the emulation only what the test
 * tells: calls of the CUDA runtime. */
#ifndef TESTS_CUFILE_FAKE_H
#define TESTS_CUFILE_FAKE_H

#include <stddef.h>

struct cufile_fake {
    /* the test's: of the CUDA runtime */
    int (*sync)(void *stream);
    int (*copy)(void *to, const void *from, size_t n, int kind, void *stream);

    /* what it was asked for */
    int n_opened, n_closed, n_files, n_reads, n_batches, n_cancels;
    unsigned long long n_bytes;
    int compat_forbidden;

    /* the n-th such call from now on (0: the next) fails, with the error that
     * cuFile has for it; -1: none */
    int fail_forbid, fail_driver, fail_memory, fail_file, fail_submit, fail_status;
    /* the n-th read from now on, once it is waited for: fails, is short by a page,
     * brings a wrong bit, never ends */
    int fail_read, short_read, flip_read, stuck_read;
    int no_batches; /* the driver does not have them */
};

typedef struct cufile_fake *(*cufile_fake_get)(void);
#define CUFILE_FAKE_SYMBOL "cufile_fake"

#endif
