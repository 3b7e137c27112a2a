/* advise.h - advises how large a store should be, from the times at which contexts were last used.
 *
 * AttentionStore, section 4.3.5: to find every context that comes back within a time, a store must
 * hold all contexts that are used within it.  In the paper, a quarter of that size found 98 % of
 * them. */
#ifndef STORE_ADVISE_H
#define STORE_ADVISE_H

#include <stdint.h>

struct store;

enum { STORE_ADVICES = 5 };

struct store_advice {
    const char *within; /* "hour", "day", "week", "30 days", "all time" */
    int64_t seconds;    /* length of that time; 0: all time */
    /* contexts that were used within that time, and their bytes */
    uint64_t contexts, bytes;
};

/* Fills in a row for each time, the shortest first. Visits every chunk, and holds the store's lock
 * for at most some 10,000 of them at a time. Chunks that come or go meanwhile may or may not count.
 * Any thread. */
void store_advise(struct store *s, int64_t now_wall_s,
                  struct store_advice out[STORE_ADVICES]);

#endif
