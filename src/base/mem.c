/* mem.c - see mem.h. */
#include "base/mem.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/mem_left.h"

static _Noreturn void out_of_memory(size_t n)
{
    char why[64];
    snprintf(why, sizeof why, "out of memory (%zu bytes asked for)", n);
    check_tell_end(why);
    exit(1);
}

/* --- asking the system ------------------------------------------------------------------------ */

/* Returns whether a test makes this allocation fail. */
static bool is_denied(size_t n, enum mem_ask ask)
{
    if (mem_test_denies == NULL || !mem_test_denies(n, ask))
        return false;
    errno = ENOMEM;
    return true;
}

/* --- the pledge of a thread ------------------------------------------------------------------- */

static _Thread_local struct {
    void *pages; /* NULL: there is no pledge, or it is spent */
    size_t n_bytes;
} pledge;

void mem_unpledge(void)
{
    if (pledge.pages != NULL)
        munmap(pledge.pages, pledge.n_bytes);
    pledge.pages = NULL;
}

int mem_pledge(size_t n, struct err *err)
{
    mem_unpledge();
    void *p = is_denied(n, MEM_MAY_FAIL) ? MAP_FAILED
                                         : mmap(NULL, n, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(err, -ENOMEM,
                       "this request may need %zu bytes of memory, which are not free now; "
                       "try again later, or send a smaller request",
                       n);
    pledge.pages = p;
    pledge.n_bytes = n;
    return 0;
}

/* Gives up the thread's pledge. Returns true if that freed address space. */
static bool pledge_spend(void)
{
    bool has = pledge.pages != NULL;
    mem_unpledge();
    return has;
}

/* --- one block -------------------------------------------------------------------------------- */

/* Calls realloc, or malloc if old is NULL. */
static void *resize(void *old, size_t n, enum mem_ask ask)
{
    void *p = is_denied(n, ask) ? NULL : realloc(old, n != 0 ? n : 1);
    if (p == NULL && pledge_spend())
        p = is_denied(n, MEM_FROM_PLEDGE) ? NULL : realloc(old, n != 0 ? n : 1);
    return p;
}

static void *calloc_once(size_t n, size_t size, enum mem_ask ask)
{
    return is_denied(n * size, ask) ? NULL : calloc(n != 0 ? n : 1, size != 0 ? size : 1);
}

static void *zeroed(size_t n, size_t size, enum mem_ask ask)
{
    uint64_t bytes;
    if (!mul_fits(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = calloc_once(n, size, ask);
    if (p == NULL && pledge_spend())
        p = calloc_once(n, size, MEM_FROM_PLEDGE);
    return p;
}

void *mem_try(size_t n)
{
    return resize(NULL, n, MEM_MAY_FAIL);
}

void *mem_try_realloc(void *old, size_t n)
{
    return resize(old, n, MEM_MAY_FAIL);
}

void *mem_try_calloc(size_t n, size_t size)
{
    return zeroed(n, size, MEM_MAY_FAIL);
}

/* Fixes two thresholds of glibc. By itself glibc raises them when large blocks come and go, up to
 * 32 and 64 MiB. The memory of freed large blocks then stays, in pieces, in every thread's heap. */
void mem_return_large(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 8 << 20);
}

void mem_trim(void)
{
    (void)malloc_trim(0);
}

/* --- the reserve ------------------------------------------------------------------------------ */

/* `lock` protects block and n_bytes. */
static struct {
    pthread_mutex_t lock;
    void *block; /* NULL: the reserve is spent, or was never set aside */
    size_t n_bytes;
    atomic_bool is_spent;
} reserve = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The reserve's pages stay untouched: an allocation fails for want of address space or of memory
 * that the system may promise, and both go back with the block. */
int mem_reserve(size_t n, struct err *err)
{
    pthread_mutex_lock(&reserve.lock);
    bool had = reserve.n_bytes != 0;
    bool has = had || (reserve.block = mem_try(n)) != NULL;
    if (!had && has)
        reserve.n_bytes = n;
    pthread_mutex_unlock(&reserve.lock);
    return has ? 0 : err_set(err, -ENOMEM, "no memory for a reserve of %zu bytes", n);
}

static void reserve_spend(void)
{
    pthread_mutex_lock(&reserve.lock);
    bool first = reserve.block != NULL;
    free(reserve.block);
    reserve.block = NULL;
    if (first)
        atomic_store(&reserve.is_spent, true);
    pthread_mutex_unlock(&reserve.lock);
    if (first)
        log_warn("memory is short: running work continues with a reserve; new requests and "
                 "saves are refused until memory is free again");
}

bool mem_is_short(void)
{
    return atomic_load(&reserve.is_spent);
}

int mem_check(struct err *err)
{
    if (!mem_is_short())
        return 0;
    pthread_mutex_lock(&reserve.lock);
    bool again = reserve.block != NULL ||
                 (reserve.block = mem_try(reserve.n_bytes)) != NULL;
    atomic_store(&reserve.is_spent, !again);
    pthread_mutex_unlock(&reserve.lock);
    return again ? 0 : err_set(err, -ENOMEM, "memory is short; try again later");
}

/* --- allocations that do not fail ------------------------------------------------------------- */

void *xrealloc(void *old, size_t n)
{
    void *p = resize(old, n, MEM_HAS_RESERVE);
    if (p == NULL) {
        reserve_spend();
        p = resize(old, n, MEM_FROM_RESERVE);
    }
    if (p == NULL)
        out_of_memory(n);
    return p;
}

void *xmalloc(size_t n)
{
    return xrealloc(NULL, n);
}

void *xgrow(void *array, size_t n, size_t item_bytes)
{
    bool is_full = (n & (n - 1)) == 0;
    return is_full ? xrealloc(array, (n == 0 ? 1 : 2 * n) * item_bytes) : array;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = zeroed(n, size, MEM_HAS_RESERVE);
    if (p == NULL) {
        reserve_spend();
        p = zeroed(n, size, MEM_FROM_RESERVE);
    }
    if (p == NULL)
        out_of_memory(n * size);
    return p;
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}

char *xmemdup(const void *p, size_t n)
{
    char *copy = xmalloc(n + 1);
    if (n != 0)
        memcpy(copy, p, n);
    copy[n] = 0;
    return copy;
}

char *xasprintf(const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *s = xmalloc(n < 0 ? 1 : (size_t)n + 1);
    s[0] = 0;
    if (n > 0)
        vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

/* --- pages ------------------------------------------------------------------------------------ */

static void *map_once(size_t n)
{
    return mmap(NULL, n, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static atomic_int n_mappings;

void *mem_map_sparse(size_t n)
{
    if (is_denied(n, MEM_MAY_FAIL))
        return NULL;
    void *p = map_once(n);
    if (p == MAP_FAILED && pledge_spend())
        p = map_once(n);
    if (p == MAP_FAILED)
        return NULL;
    atomic_fetch_add(&n_mappings, 1);
    return p;
}

void *mem_map(size_t n)
{
    void *p = mem_map_sparse(n);
    /* Asks for huge pages, because panels of weights and KV blocks are read in long strides. */
    if (p != NULL)
        madvise(p, n, MADV_HUGEPAGE);
    return p;
}

void *mem_map_file(int fd, size_t n)
{
    void *p = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return NULL;
    atomic_fetch_add(&n_mappings, 1);
    return p;
}

void mem_provide(void *p, size_t n)
{
#ifdef MADV_POPULATE_WRITE
    (void)madvise(p, n, MADV_POPULATE_WRITE);
#else
    (void)p;
    (void)n;
#endif
}

void mem_give_back(void *p, size_t n)
{
    (void)madvise(p, n, MADV_DONTNEED);
}

void mem_unmap(void *p, size_t n)
{
    if (p == NULL)
        return;
    munmap(p, n);
    atomic_fetch_sub(&n_mappings, 1);
}

int mem_mappings(void)
{
    return atomic_load(&n_mappings);
}
