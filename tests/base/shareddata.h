/* shareddata.h - real models, tokenizers and texts outside the repository, in ../shared.
 *
 * HCACHE_SHARED names another folder.  No test depends on them: if they are absent, only the tests
 * that compare with them are left out, and a line says so. */
#ifndef TESTS_BASE_SHAREDDATA_H
#define TESTS_BASE_SHAREDDATA_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/unit.h"

enum { SHARED_PATH_BYTES = 4096 };

/* Returns whether ../shared/NAME can be read; its path is in out either way. */
bool shared_data(const char *name, char out[SHARED_PATH_BYTES]);

/* Returns whether all `names`, with blanks between, are in ../shared; if not, says that the test is
 * left out. */
bool shared_data_has(const char *names, const char *test);

/* Defines a test that is left out if `names` are not all in ../shared. */
#define TEST_OF_SHARED(name, names)                                                        \
    static void name(void **state);                                                        \
    __attribute__((constructor)) static void unit_add_##name(void)                         \
    {                                                                                      \
        if (shared_data_has(names, #name))                                                 \
            unit_add((struct CMUnitTest){#name, name, NULL, NULL, NULL}, __LINE__);        \
    }                                                                                      \
    static void name(void **state)

#endif
