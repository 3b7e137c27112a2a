/* shareddata.h - real models, tokenizers and texts that lie beside the repository, in ../shared.
 *
 * HCACHE_SHARED names another folder.  No test depends on them: where they are absent, only the
 * tests that compare with them are left out, and a line says so. */
#ifndef TESTS_BASE_SHAREDDATA_H
#define TESTS_BASE_SHAREDDATA_H

#include <stdbool.h>
#include <stddef.h>

struct CMUnitTest;

enum { SHARED_PATH_BYTES = 4096 };

/* Whether ../shared/NAME can be read; its path is in out either way. */
bool shared_data(const char *name, char out[SHARED_PATH_BYTES]);

/* Runs tests[0..n), and extra[0..n_extra) where all `names` (ended by NULL) are under
 * ../shared.  Returns the exit code of the program. */
int run_with_shared_data(const struct CMUnitTest *tests, size_t n,
                         const struct CMUnitTest *extra, size_t n_extra,
                         const char *const *names);

#endif
