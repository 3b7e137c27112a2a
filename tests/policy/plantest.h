/* plantest.h - what the tests of the planner share. */
#ifndef TESTS_POLICY_PLANTEST_H
#define TESTS_POLICY_PLANTEST_H

#include "policy/plan.h"

/* The shortest time of one assignment over all orders of its reads, 16 at most;
 * p->io_order is left permuted. */
double all_orders(const struct plan_request *q, struct plan *p);

#endif
