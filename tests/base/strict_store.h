/* strict_store.h - exceptions from the checks of strict_store.c. */
#ifndef TESTS_BASE_STRICT_STORE_H
#define TESTS_BASE_STRICT_STORE_H

#include <stdbool.h>

/* Set by a test that closes a store while announced requests (store_expect_use) still wait for its
 * chunks. */
extern bool strict_store_allows_waits;

#endif
