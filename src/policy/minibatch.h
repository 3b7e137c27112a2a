/* minibatch.h - which requests pass a layer together when not all fit its buffers (HybridServe,
 * section 4.3.3).
 *
 * A mini-batch's KV and ACT blocks are loaded into a buffer while the mini-batch before computes.
 * It takes the longer of T_project(ACT) and T_load(its blocks).  So requests with many ACT blocks
 * and requests with many KV blocks belong together: *balance* = T_project / T_load is near 1 then.
 *
 * Pure: no clock, no allocation. */
#ifndef POLICY_MINIBATCH_H
#define POLICY_MINIBATCH_H

#include "policy/hybrid.h"

/* Blocks of one layer that a request has on the host. */
struct minibatch_request {
    int64_t n_act, n_kv;
};

/* Blocks that a buffer holds: of each type, and of both together. */
struct minibatch_room {
    int64_t n_act, n_kv, n_both;
};

enum minibatch_method {
    /* The print: requests in their order; one joins where it fits and F_b does not grow. */
    MINIBATCH_PAPER,
    /* The largest request opens a mini-batch.  Of those that fit, the one that leaves the
     * least imbalance joins, until none fits.  The imbalance counts the transfer of ACT
     * blocks too, which F_b leaves out. */
    MINIBATCH_BALANCED,
};

/* Returns F_b = max(balance, 1 / balance) of the print, at least 1; infinite where one side has
 * nothing to do.  T_load is that of the KV blocks alone. */
double minibatch_imbalance(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv);

/* Seconds of a mini-batch. */
double minibatch_seconds(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv);

/* Fills of [n] with the number of each request's mini-batch, from 0; returns how many there are.  A
 * mini-batch takes its first request whatever its size. */
int minibatch_form(const struct hybrid_machine *m, const struct minibatch_room *room,
                   const struct minibatch_request *r, int n, enum minibatch_method method,
                   int *of);

#endif
