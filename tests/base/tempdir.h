/* tempdir.h - folders that a test makes for itself, and removes.
 *
 * They lie in $TMPDIR where it is set, so that the tests run where /tmp cannot be written or is
 * too small. What fails here fails the test. */
#ifndef TESTS_BASE_TEMPDIR_H
#define TESTS_BASE_TEMPDIR_H

enum { TEMPDIR_BYTES = 256 };

/* A new folder, hcache-NAME.XXXXXX, in $TMPDIR or /tmp. */
void tempdir_make(char out[TEMPDIR_BYTES], const char *name);

/* The same, in $TMPDIR or build/: for what needs a file system with a disk, which
 * /tmp often is not. */
void tempdir_make_on_disk(char out[TEMPDIR_BYTES], const char *name);

/* The folder with all that is in it. */
void tempdir_remove(const char *dir);

#endif
