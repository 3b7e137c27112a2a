/* memtest.h - makes allocations fail when a test asks: the n-th, or all from the n-th on.
 *
 * It counts and denies the allocations of the program (base/mem.h), of SQLite, and of JSON parses.
 * There are two kinds: those that may fail (their callers get NULL), and those that fall back on
 * the reserve. */
#ifndef TESTS_BASE_MEMTEST_H
#define TESTS_BASE_MEMTEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Call it first in main, because SQLite takes its allocator before its first use. Also sets a
 * reserve aside. */
void memtest_init(void);

enum memtest_kind { MEMTEST_MAY_FAIL, MEMTEST_RESERVED, MEMTEST_KINDS };

/* The n-th allocation (from 1) of this kind fails. With `on`, so do all later ones of both kinds,
 * except those that the reserve serves. n 0: none fails, all are counted. */
void memtest_start(enum memtest_kind kind, uint64_t n, bool on);
void memtest_stop(void);
uint64_t memtest_count(enum memtest_kind kind); /* counted since memtest_start */
uint64_t memtest_denied(void);

/* Runs a life without failures to count allocations, and then again with each allocation failing in
 * turn, alone and together with all later ones.  It runs at most `most` lives of each kind and
 * manner, evenly spread, or all if HCACHE_MEMORY=all.  life(arg) asserts its own results (cmocka).
 * Prints the number of lives. */
void memtest_walk(const char *name, void (*life)(void *arg), void *arg, uint64_t most);

/* Accepts 0, and -ENOMEM with a message; anything else fails the test. Returns whether rc was 0. */
bool memtest_ok(int rc, const struct err *err, const char *what);

#endif
