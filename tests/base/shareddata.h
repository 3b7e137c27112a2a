/* shareddata.h - real models, tokenizers and texts outside the repository, in ../shared.
 *
 * HCACHE_SHARED names another folder.  No test depends on them: if they are absent, only the tests
 * that compare with them are left out, and a line says so. */
#ifndef TESTS_BASE_SHAREDDATA_H
#define TESTS_BASE_SHAREDDATA_H

#include <stdbool.h>
#include <stddef.h>

struct CMUnitTest;

enum { SHARED_PATH_BYTES = 4096 };

/* Returns whether ../shared/NAME can be read; its path is in out either way. */
bool shared_data(const char *name, char out[SHARED_PATH_BYTES]);

/* Runs tests[0..n), and extra[0..n_extra) if all `names` (ended by NULL) are in ../shared.  Returns
 * the program's exit code. */
int run_with_shared_data(const struct CMUnitTest *tests, size_t n,
                         const struct CMUnitTest *extra, size_t n_extra,
                         const char *const *names);

#endif
