/* plantest.h - shared by the tests of the planner. */
#ifndef TESTS_RESTORE_PLANTEST_H
#define TESTS_RESTORE_PLANTEST_H

#include "restore/plan.h"

/* Returns the shortest time of one assignment of letters over all orders of its reads, at most 16.
 * Permutes p->io_order. */
double all_orders(const struct plan_request *q, struct plan *p);

#endif
