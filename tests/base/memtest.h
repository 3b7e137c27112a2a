/* memtest.h - allocations that fail when a test says so: the n-th, or all from the n-th on.
 *
 * Counted and denied are the program's own (base/mem.h), SQLite's, and, through the program's,
 * those of a JSON parse.  Two kinds are told apart: those that may fail (their callers get
 * NULL) and those behind which the reserve stands. */
#ifndef TESTS_BASE_MEMTEST_H
#define TESTS_BASE_MEMTEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* To be called first in main: SQLite takes its allocator before it is used. Sets a
 * reserve aside. */
void memtest_init(void);

enum memtest_kind { MEMTEST_MAY_FAIL, MEMTEST_RESERVED, MEMTEST_KINDS };

/* The n-th allocation (from 1) of this kind fails; with `on`, and all of both kinds after it,
 * but for what the reserve gives. n 0: none fails, all are counted. */
void memtest_start(enum memtest_kind kind, uint64_t n, bool on);
void memtest_stop(void);
uint64_t memtest_count(enum memtest_kind kind); /* since the start */
uint64_t memtest_denied(void);

/* Runs a life with no failure, to count, and then again and again with each allocation
 * failing in turn, alone and with all that follow.  At most `most` lives of each kind and
 * manner, evenly spread, or all where HCACHE_MEMORY=all.  life(arg) judges by itself
 * (cmocka). Prints how many were run. */
void memtest_walk(const char *name, void (*life)(void *arg), void *arg, uint64_t most);

/* 0 and -ENOMEM with a message are right; anything else fails the test. Returns
 * whether it was 0. */
bool memtest_ok(int rc, const struct err *err, const char *what);

#endif
