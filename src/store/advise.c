/* advise.c - see advise.h. */
#include "store/advise.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/store.h"

enum { HOUR_S = 3600, DAY_S = 24 * HOUR_S };

static const struct store_advice rows[STORE_ADVICES] = {{"hour", HOUR_S, 0, 0},
                                                        {"day", DAY_S, 0, 0},
                                                        {"week", 7 * DAY_S, 0, 0},
                                                        {"30 days", 30 * DAY_S, 0, 0},
                                                        {"all time", 0, 0, 0}};

struct found {
    struct sha256 *parents; /* parents of all chunks */
    struct store_entry *entries;
    size_t n;
};

static int entry_add(void *arg, const struct store_entry *e)
{
    struct found *f = arg;
    if ((f->n & (f->n - 1)) == 0) { /* grows at powers of two */
        size_t room = f->n == 0 ? 1 : 2 * f->n;
        f->entries = xrealloc(f->entries, room * sizeof *f->entries);
        f->parents = xrealloc(f->parents, room * sizeof *f->parents);
    }
    f->entries[f->n] = *e;
    f->parents[f->n++] = e->parent;
    return 0;
}

static int by_key(const void *x, const void *y)
{
    return memcmp(x, y, sizeof(struct sha256));
}

static void count(const struct found *f, const struct store_entry *e, int64_t now_s,
                  struct store_advice out[STORE_ADVICES])
{
    /* A chunk that no other continues is the end of a context. */
    bool is_end = bsearch(&e->key, f->parents, f->n, sizeof *f->parents, by_key) == NULL;
    for (int i = 0; i < STORE_ADVICES; i++) {
        if (out[i].seconds > 0 && e->used_wall_s < now_s - out[i].seconds)
            continue;
        out[i].contexts += is_end;
        out[i].bytes += e->bytes;
    }
}

int store_advise(struct store *s, int64_t now_wall_s,
                 struct store_advice out[STORE_ADVICES], struct err *err)
{
    struct found f = {0};
    memcpy(out, rows, sizeof rows);
    int rc = store_each(s, entry_add, &f, err);
    if (rc == 0 && f.n > 0)
        qsort(f.parents, f.n, sizeof *f.parents, by_key);
    for (size_t i = 0; rc == 0 && i < f.n; i++)
        count(&f, &f.entries[i], now_wall_s, out);
    free(f.entries);
    free(f.parents);
    return rc;
}
