/* cufile_fake.h - a libcufile.so.0 for tests.  It reads files into emulated device memory as late
 * as allowed (when the reads are waited for), fails on command, and ends the program if a rule of
 * cuFile's is broken.
 *
 * It is a separate library, like cuFile; it knows the emulation only through the CUDA runtime calls
 * that the test gives it. */
#ifndef TESTS_CUFILE_FAKE_H
#define TESTS_CUFILE_FAKE_H

#include <stddef.h>

struct cufile_fake {
    /* Calls of the CUDA runtime, set by the test. */
    int (*sync)(void *stream);
    int (*copy)(void *to, const void *from, size_t n, int kind, void *stream);

    /* Counts of calls. */
    int n_opened, n_closed, n_files, n_reads, n_batches, n_cancels;
    unsigned long long n_bytes;
    int compat_forbidden;

    /* Each makes the n-th call of its kind from now on (0: the next) fail with cuFile's error for
     * that call; -1: no call fails. */
    int fail_forbid, fail_driver, fail_memory, fail_file, fail_submit, fail_status;
    /* Each gives the n-th read from now on one fault, which shows when the read is waited for: the
     * read fails, is short by a page, has a wrong bit, or never ends. -1: no fault. */
    int fail_read, short_read, flip_read, stuck_read;
    int no_batches; /* the driver does not support batches */
};

typedef struct cufile_fake *(*cufile_fake_get)(void);
#define CUFILE_FAKE_SYMBOL "cufile_fake"

#endif
