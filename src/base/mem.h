/* mem.h - allocation, and what happens when there is no memory.
 *
 * Small allocations are not each undone by hand: a path that never runs is a path that is wrong.
 * Instead a reserve is set aside (mem_reserve).  Where xmalloc and friends get nothing they spend
 * the reserve, so that what has begun ends as it should; from then on mem_check says -ENOMEM, and
 * whatever begins something (a save, a request) asks it first and refuses.  The reserve is filled
 * again as soon as it can be, and all goes on.  Only where the reserve does not suffice either (or
 * none was set aside) does the program end, with a message and status 1: a store survives that as
 * it survives a crash.
 *
 * Work for a client whose memory grows with what the client sends takes a pledge first
 * (mem_pledge): it is refused where the pledge cannot be had, and nobody else's
 * reserve is spent on it.
 *
 * What can be large (its size comes from a configuration, a file, or the number of things
 * stored) goes through mem_map or mem_try, which return NULL and leave the reserve alone: the
 * caller says how much was needed, and what to change.  mem_map memory is page-aligned,
 * zeroed and not touched until used.
 *
 * Any thread may call these. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
char *xmemdup(const void *p, size_t n); /* n bytes, with a final zero that is not counted */
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* malloc, realloc and calloc, NULL with errno set where they fail; free() frees. */
void *mem_try(size_t n);
void *mem_try_realloc(void *old, size_t n); /* where it fails, old stays as it is */
void *mem_try_calloc(size_t n, size_t size);

void *mem_map(size_t n); /* NULL with errno set where it cannot be had */
/* Has the system provide the pages of a mapping (a part of it) now, and not when they are
 * first used.  Their contents stay as they are, whoever writes to them meanwhile.  Where the
 * system cannot, nothing happens. */
void mem_provide(void *p, size_t n);
void mem_unmap(void *p, size_t n);

/* From now on blocks of a MiB and more go back to the system when they are freed: for
 * the whole process, and for good. */
void mem_return_large(void);
/* Gives what is free back to the system. It may take milliseconds. */
void mem_trim(void);

/* Sets n bytes of address space aside for this thread, until mem_unpledge: where an allocation
 * of this thread fails, they are given up and it is tried again.  Work whose memory grows with
 * what a client sends pledges all that it may need before it begins, so that it fails as a
 * whole, or not at all.  A second call replaces the first.  0, or -ENOMEM: refuse the work. */
int mem_pledge(size_t n, struct err *err);
void mem_unpledge(void);

/* Sets n bytes aside for the whole process, for good; a second call changes
 * nothing. 0 or -ENOMEM. */
int mem_reserve(size_t n, struct err *err);
/* 0; or -ENOMEM where the reserve is spent and cannot be filled again. To be asked
 * before something begins. */
int mem_check(struct err *err);
/* Whether the reserve is spent, as mem_check has left it. */
bool mem_is_short(void);

/* A test program that defines this makes allocations fail; elsewhere the symbol does not exist. */
enum mem_ask {
    MEM_MAY_FAIL,     /* mem_try, mem_map */
    MEM_FROM_PLEDGE,  /* any of them again, with the thread's pledge spent */
    MEM_HAS_RESERVE,  /* xmalloc: the reserve stands behind it */
    MEM_FROM_RESERVE, /* the same again, with the reserve spent */
};
extern bool mem_test_denies(size_t n, enum mem_ask ask) __attribute__((weak));

#endif
