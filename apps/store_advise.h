/* store_advise.h - how large a store should be, from when its contexts were last used.
 *
 * AttentionStore, section 4.3.5: to find every context that comes back within a time, a store must
 * hold all contexts that are used within it.  A quarter of that found 98 % of them in the paper. */
#ifndef APPS_STORE_ADVISE_H
#define APPS_STORE_ADVISE_H

#include <stdbool.h>

#include "base/err.h"

struct store;

/* Prints a row for each of an hour, a day, a week, thirty days and all time: contexts and bytes
 * that were last used within it, and a quarter of these bytes. */
int store_advise(struct store *s, bool json, struct err *err);

#endif
