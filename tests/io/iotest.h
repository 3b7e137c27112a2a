/* iotest.h - what the io tests share: one struct io of each kind, with a fresh
 * folder to work in. */
#ifndef TESTS_IO_IOTEST_H
#define TESTS_IO_IOTEST_H

#include <stddef.h>
#include <stdint.h>

#include "io/io.h"
#include "tests/base/tempdir.h"

/* What cmocka hands to a test as *state, given that its initial state is the name of a kind. */
struct iotest {
    struct io *io;
    char dir[TEMPDIR_BYTES];
    char path[8][300]; /* iotest_path */
    unsigned n_paths;
};

int iotest_setup(void **state);    /* skipped where there is no io_uring: io is NULL */
int iotest_teardown(void **state); /* removes the folder and what is in it */

/* "DIR/name"; the last 8 stay valid. */
const char *iotest_path(struct iotest *t, const char *name);

/* Page-aligned memory for direct files; free() it. */
uint8_t *iotest_buffer(size_t n);
/* Fills with bytes that depend on the seed and on the position. */
void iotest_fill(uint8_t *p, size_t n, uint64_t seed);

#endif
