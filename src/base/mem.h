/* mem.h - allocation, and the behaviour when memory runs out.
 *
 * Callers do not handle the failure of each small allocation, because such code would hardly ever
 * run and its mistakes would stay hidden.  Instead a reserve is set aside (mem_reserve).  When
 * xmalloc and the other functions named x... get no memory, they spend the reserve, so that work
 * that has begun can end normally. From then on mem_check returns -ENOMEM.  Code that starts new
 * work (a save, a request) calls mem_check first and refuses the work on an error.  mem_check
 * refills the reserve as soon as memory allows, and new work is accepted again.  If the reserve
 * does not suffice either (or none was set aside), the program ends with a message and status 1; a
 * store survives this end as it survives a crash.
 *
 * Work that needs more memory the more a client sends takes a pledge first (mem_pledge). If the
 * pledge fails, the work is refused and the reserve stays untouched.
 *
 * Allocations that can be large (their size comes from a configuration, a file, or the number of
 * stored things) use mem_map or mem_try.  These return NULL and leave the reserve alone; the caller
 * reports how much was needed and what to change.  Memory from mem_map is page-aligned and zeroed,
 * and its pages are not touched until used.
 *
 * Any thread may call these functions. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
/* Gives an array of n elements room for one more; cap is the number for which it has room. */
#define GROW(array, n, cap)                                                                \
    do {                                                                                   \
        if ((n) == (cap)) {                                                                \
            (cap) = 2 * (cap) + 16;                                                        \
            (array) = xrealloc((void *)(array), (size_t)(cap) * sizeof *(array));          \
        }                                                                                  \
    } while (0)
/* Returns the array with room for one more item. Its room doubles whenever n, the number of its
 * items, is a power of two. */
void *xgrow(void *array, size_t n, size_t item_bytes);
char *xstrdup(const char *s);
char *xmemdup(const void *p, size_t n); /* returns a copy of n bytes, with a final zero */
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Like malloc, realloc and calloc: NULL with errno set on failure. free() frees the memory. */
void *mem_try(size_t n);
void *mem_try_realloc(void *old, size_t n); /* on failure `old` stays valid */
void *mem_try_calloc(size_t n, size_t size);

void *mem_map(size_t n); /* returns NULL with errno set on failure */
/* Like mem_map, for memory of which little is used: in pages of the usual size. A huge page takes
 * longer to clear than a request of 60 KB to render. */
void *mem_map_sparse(size_t n);
/* Maps the first n bytes of a file, to be read. Returns NULL with errno set on failure. */
void *mem_map_file(int fd, size_t n);
/* Makes the system provide the pages of a mapping, or of a part of it, now instead of at their
 * first use.  Their contents stay, also if another thread writes to them meanwhile.  Does nothing
 * if the system cannot. */
void mem_provide(void *p, size_t n);
/* Gives the pages of a mapping back to the system. The memory may be used again, and is zeroed. */
void mem_give_back(void *p, size_t n);
void mem_unmap(void *p, size_t n);

/* Makes blocks of 1 MiB and more return to the system when they are freed, in the whole process. */
void mem_return_large(void);
/* Returns free heap memory to the system. It may take milliseconds. */
void mem_trim(void);

/* Sets n bytes of address space aside for this thread, until mem_unpledge. If an allocation of this
 * thread fails, the pledge is given up and the allocation is tried again. Work whose memory grows
 * with a client's input pledges all that it may need before it begins, so that it is refused as a
 * whole instead of failing midway. A second call replaces the first. Returns 0, or -ENOMEM; then
 * the caller refuses the work. */
int mem_pledge(size_t n, struct err *err);
void mem_unpledge(void);

/* Sets n bytes aside for the process, permanently and only once. Returns 0 or -ENOMEM. */
int mem_reserve(size_t n, struct err *err);
/* Call before new work. Returns 0, or -ENOMEM if the reserve is spent and cannot be refilled. */
int mem_check(struct err *err);
/* Returns whether the reserve is spent, as the last mem_check found it. */
bool mem_is_short(void);

/* A test program defines mem_test_denies to make allocations fail. In other programs the symbol
 * does not exist. */
enum mem_ask {
    MEM_MAY_FAIL, /* calls that may fail: mem_try, mem_map */
    /* calls of MEM_MAY_FAIL and MEM_HAS_RESERVE, tried again after the thread's pledge was spent */
    MEM_FROM_PLEDGE,
    MEM_HAS_RESERVE,  /* calls that may still spend the reserve: xmalloc and the like */
    MEM_FROM_RESERVE, /* calls of MEM_HAS_RESERVE, tried again after the reserve was spent */
};
extern bool mem_test_denies(size_t n, enum mem_ask ask) __attribute__((weak));

#endif
