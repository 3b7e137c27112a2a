/* strict_store.h - exceptions from the checks of strict_store.c. */
#ifndef TESTS_BASE_STRICT_STORE_H
#define TESTS_BASE_STRICT_STORE_H

#include <stdbool.h>

/* Set by tests that close stores for which requests wait (store_expect_use). */
extern bool strict_store_allows_waits;

#endif
