/* store_advise.h - prints how large a store should be (store/advise.h). */
#ifndef APPS_STORE_ADVISE_H
#define APPS_STORE_ADVISE_H

#include <stdbool.h>

struct store;

/* Prints a row each for an hour, a day, a week, thirty days and all time: the contexts and bytes
 * last used within it, and a quarter of these bytes. */
void store_print_advice(struct store *s, bool json);

#endif
