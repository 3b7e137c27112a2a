/* arena.c - see arena.h. */
#include "store/arena.h"

#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/process.h"
#include "store/ahead.h"

struct arena {
    struct arena_opts o;
    uint8_t *base;
    bool is_whole; /* all memory is provided from the start */
    /* Threads that provide the memory. NULL: the caller's functions gave it, or no thread
     * started. */
    struct ahead *ahead;
};

uint8_t *arena_bytes(const struct arena *a)
{
    return a->base;
}

void arena_use(struct arena *a, uint64_t end_bytes)
{
    ahead_use(a->ahead, a->base, end_bytes);
}

double arena_price_s(struct arena *a, uint64_t n_bytes, uint64_t n_promised)
{
    return ahead_price_s(a->ahead, n_bytes, n_promised);
}

bool arena_await(struct arena *a, int64_t timeout_ns, uint64_t *n_bytes)
{
    return ahead_await(a->ahead, a->is_whole ? timeout_ns : 0, n_bytes) || !a->is_whole;
}

/* --- life cycle ------------------------------------------------------------------------------- */

/* Returns 0 if the system has n_bytes of memory left, else -ENOMEM, since otherwise the system
 * would kill a process later. */
static int system_has(uint64_t n_bytes, struct err *err)
{
    uint64_t left = process_memory_left();
    if (left == 0 || n_bytes <= left)
        return 0;
    return err_set(
        err, -ENOMEM,
        "%.2f GB of copies in DRAM do not fit: the system has %.2f GB left for this "
        "process: give less --dram",
        (double)n_bytes / 1e9, (double)left / 1e9);
}

static void begin_ahead(struct arena *a)
{
    uint64_t ahead_bytes = a->o.ahead_bytes != 0 ? a->o.ahead_bytes : AHEAD_BYTES;
    a->ahead = ahead_create(ahead_bytes, a->is_whole ? AHEAD_AT_ONCE : AHEAD_BESIDE);
    ahead_follow(a->ahead, a->base, a->o.n_bytes);
}

int arena_open(const struct arena_opts *o, struct arena **out, struct err *err)
{
    const struct store_memory *m = &o->memory;
    bool is_whole = o->ahead_bytes >= o->n_bytes;
    int rc = is_whole && m->get == NULL ? system_has(o->n_bytes, err) : 0;
    if (rc != 0)
        return rc;
    void *base = m->get != NULL ? m->get(m->arg, o->n_bytes) : mem_map(o->n_bytes);
    if (base == NULL)
        return err_set(err, -ENOMEM, "no memory for %llu bytes of copies in DRAM",
                       (unsigned long long)o->n_bytes);
    struct arena *a = xcalloc(1, sizeof *a);
    *a = (struct arena){.o = *o, .base = base, .is_whole = is_whole};
    if (m->get == NULL)
        begin_ahead(a);
    *out = a;
    return 0;
}

void arena_close(struct arena *a)
{
    if (a == NULL)
        return;
    ahead_destroy(a->ahead);
    if (a->o.memory.get != NULL)
        a->o.memory.put(a->o.memory.arg, a->base, a->o.n_bytes);
    else
        mem_unmap(a->base, a->o.n_bytes);
    free(a);
}
