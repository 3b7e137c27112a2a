/* memtest.h - makes allocations fail when a test asks: the n-th, or all from the n-th on.
 *
 * It counts and denies the allocations of the program (base/mem.h), of SQLite, and of JSON parses.
 * There are two kinds of allocation: an allocation that may fail (its caller gets NULL), and an
 * allocation that is served from the reserve of base/mem.h when it is denied. */
#ifndef TESTS_BASE_MEMTEST_H
#define TESTS_BASE_MEMTEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Call it first in main, because SQLite takes its allocator before its first use. Also sets a
 * reserve aside. */
void memtest_init(void);

enum memtest_kind { MEMTEST_MAY_FAIL, MEMTEST_RESERVED, MEMTEST_KINDS };

/* Denies the n-th allocation of this kind, counted from 1. With `on` also denies all later
 * allocations of both kinds, except those that the reserve serves. With n = 0 nothing is denied;
 * allocations are only counted. */
void memtest_start(enum memtest_kind kind, uint64_t n, bool on);
void memtest_stop(void);
/* Returns the number of allocations of this kind since memtest_start. */
uint64_t memtest_count(enum memtest_kind kind);
uint64_t memtest_denied(void);

/* Calls life(arg) once without failures to count its allocations. Then calls it once for each
 * allocation, with that allocation denied, and once more with that and all later allocations
 * denied. At most `most` calls are made for each kind of allocation and each of these two manners,
 * evenly spread; HCACHE_MEMORY=all makes every call. life() asserts its own results (cmocka).
 * Prints the number of calls. */
void memtest_walk(const char *name, void (*life)(void *arg), void *arg, uint64_t most);

/* Accepts 0, and -ENOMEM with a message; anything else fails the test. Returns whether rc was 0. */
bool memtest_ok(int rc, const struct err *err, const char *what);

#endif
