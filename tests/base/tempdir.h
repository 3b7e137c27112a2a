/* tempdir.h - temporary folders for tests.
 *
 * They lie in $TMPDIR if it is set, so that tests run where /tmp is read-only or too small. A
 * failure here fails the test. */
#ifndef TESTS_BASE_TEMPDIR_H
#define TESTS_BASE_TEMPDIR_H

enum { TEMPDIR_BYTES = 256 };

/* Makes a new folder, hcache-NAME.XXXXXX, in $TMPDIR or /tmp. */
void tempdir_make(char out[TEMPDIR_BYTES], const char *name);

/* Like tempdir_make, but in $TMPDIR or build/: for tests that need a file system on a disk. /tmp
 * often lies in memory. */
void tempdir_make_on_disk(char out[TEMPDIR_BYTES], const char *name);

/* Removes the folder with everything in it. */
void tempdir_remove(const char *dir);

/* A group's tear-down: removes the folder whose path its set-up has put into *state. */
int tempdir_end(void **state);

#endif
