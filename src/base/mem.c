/* mem.c - see mem.h. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Noreturn void out_of_memory(size_t n)
{
    fprintf(stderr, "hcache: out of memory (%zu bytes asked for)\n", n);
    exit(1);
}

void *xmalloc(size_t n)
{
    void *p = malloc(n != 0 ? n : 1);
    if (p == NULL)
        out_of_memory(n);
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n != 0 ? n : 1, size != 0 ? size : 1);
    if (p == NULL)
        out_of_memory(n * size);
    return p;
}

void *xrealloc(void *old, size_t n)
{
    void *p = realloc(old, n != 0 ? n : 1);
    if (p == NULL)
        out_of_memory(n);
    return p;
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}

char *xasprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = NULL;
    if (vasprintf(&s, fmt, ap) < 0)
        out_of_memory(0);
    va_end(ap);
    return s;
}

void *mem_map(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    /* Huge pages where the system grants them: panels and KV blocks are walked in long strides. */
    madvise(p, n, MADV_HUGEPAGE);
    return p;
}

void mem_unmap(void *p, size_t n)
{
    if (p != NULL)
        munmap(p, n);
}
