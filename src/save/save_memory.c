/* save_memory.c - see save_memory.h.
 *
 * There are a few hundred runs at most, and one is taken per 64 tokens and sequence. Walking
 * them costs less than a microsecond, so there is no list of gaps. */
#include "save/save_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"

int save_memory_init(struct save_memory *m, size_t n_bytes, size_t min_bytes)
{
    *m = (struct save_memory){.n_bytes = round_up(n_bytes, SAVE_MEMORY_ALIGN),
                              .max_runs = (int)(n_bytes / min_bytes) + 1};
    m->base = mem_map(m->n_bytes);
    if (m->base == NULL)
        return -ENOMEM;
    m->runs = xcalloc((size_t)m->max_runs, sizeof *m->runs);
    return 0;
}

void save_memory_deinit(struct save_memory *m)
{
    if (m->base != NULL)
        mem_unmap(m->base, m->n_bytes);
    free(m->runs);
    *m = (struct save_memory){0};
}

uint8_t *save_memory_take(struct save_memory *m, size_t n_bytes)
{
    size_t n = round_up(n_bytes, SAVE_MEMORY_ALIGN), at = 0;
    int i = 0;
    for (; i < m->n_runs && m->runs[i].at - at < n; i++)
        at = m->runs[i].at + m->runs[i].n_bytes;
    if (i == m->n_runs && m->n_bytes - at < n)
        return NULL;
    CHECK(n_bytes > 0 && m->n_runs < m->max_runs);
    memmove(&m->runs[i + 1], &m->runs[i], (size_t)(m->n_runs - i) * sizeof *m->runs);
    m->runs[i] = (struct save_run){at, n};
    m->n_runs++;
    return m->base + at;
}

void save_memory_give(struct save_memory *m, const uint8_t *run)
{
    int i = 0;
    while (i < m->n_runs && m->base + m->runs[i].at != run)
        i++;
    CHECK(i < m->n_runs);
    m->n_runs--;
    memmove(&m->runs[i], &m->runs[i + 1], (size_t)(m->n_runs - i) * sizeof *m->runs);
}

size_t save_memory_used(const struct save_memory *m)
{
    size_t n_bytes = 0;
    for (int i = 0; i < m->n_runs; i++)
        n_bytes += m->runs[i].n_bytes;
    return n_bytes;
}
