/* store_advise.h - advises how large a store should be, from the times at which contexts were last
 * used.
 *
 * AttentionStore, section 4.3.5: to find every context that comes back within a time, a store must
 * hold all contexts that are used within it.  In the paper, a quarter of that size found 98 % of
 * them. */
#ifndef APPS_STORE_ADVISE_H
#define APPS_STORE_ADVISE_H

#include <stdbool.h>

#include "base/err.h"

struct store;

/* Prints a row each for an hour, a day, a week, thirty days and all time: the contexts and bytes
 * last used within it, and a quarter of these bytes. */
int store_advise(struct store *s, bool json, struct err *err);

#endif
