/* iotest.h - shared by the tests of src/io: opens each kind of struct io, with a fresh folder. */
#ifndef TESTS_IO_IOTEST_H
#define TESTS_IO_IOTEST_H

#include <stddef.h>
#include <stdint.h>

#include "io/io.h"
#include "tests/base/tempdir.h"

/* The *state of each test; its initial state is the name of a kind of io. */
struct iotest {
    struct io *io;
    char dir[TEMPDIR_BYTES];
    char path[8][300]; /* results of iotest_path */
    unsigned n_paths;
};

/* Skips the test if the machine has no io_uring; the test's `io` is then NULL. */
int iotest_setup(void **state);
struct iotest *iotest_begin(void **state);
int iotest_teardown(void **state); /* removes the folder and its contents */

/* Returns "DIR/name"; the last 8 results stay valid. */
const char *iotest_path(struct iotest *t, const char *name);

/* Returns page-aligned memory for direct files; free() it. */
uint8_t *iotest_buffer(size_t n);
/* Fills p[0..n) with bytes that depend on the seed and on their position. */
void iotest_fill(uint8_t *p, size_t n, uint64_t seed);

/* A test on one kind of I/O, and on all. */
#define ON(kind, test)                                                                     \
    {                                                                                      \
#test " on " kind, test, iotest_setup, iotest_teardown, (void *)(uintptr_t)kind    \
    }
#define ALL(test) ON("uring", test), ON("pread", test), ON("sim", test)

#endif
