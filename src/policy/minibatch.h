/* minibatch.h - which requests pass a layer together when not all fit its buffers (HybridServe,
 * section 4.3.3).
 *
 * A mini-batch's KV and ACT blocks are loaded into a buffer while the mini-batch before computes,
 * also from one layer to the next:
 *
 *   link      [load 1     ][load 2  ][load 0     ]
 *   compute   [project 0  ][project 1][project 2 ]      a layer: sum of max(project i, load i + 1)
 *
 * So requests with many ACT blocks and requests with many KV blocks belong together: *balance* =
 * T_project / T_load is near 1 then.  And mini-batches have to be of equal size: a small one leaves
 * nothing to do beside the projection of the large one before it.
 *
 * Pure: no clock, no allocation. */
#ifndef POLICY_MINIBATCH_H
#define POLICY_MINIBATCH_H

#include "policy/hybrid.h"

/* Blocks of one layer of a request. */
struct minibatch_request {
    int64_t n_act;     /* ACT blocks, on the host or on the device */
    int64_t n_kv;      /* KV blocks that come over the link */
    int64_t n_written; /* need room in the buffer, and no time */
};

/* The same of all requests of a mini-batch. */
struct minibatch {
    int64_t n_act, n_kv, n_written;
    int n_requests;
};

/* Blocks that a buffer holds. */
struct minibatch_room {
    int64_t n_act, n_blocks; /* ACT blocks; blocks of all kinds together */
};

enum minibatch_method {
    /* The print: requests in their order; one joins where it fits and F_b does not grow. */
    MINIBATCH_PAPER,
    /* As few mini-batches as are needed, and of equal size.  The largest request opens a
     * mini-batch.  Of those that fit its share of the blocks, the one that leaves the least
     * imbalance joins.  The imbalance counts the transfer of ACT blocks too, which F_b leaves
     * out. */
    MINIBATCH_BALANCED,
};

/* Returns F_b = max(balance, 1 / balance) of the print, at least 1; infinite where one side has
 * nothing to do.  T_load is that of the KV blocks alone. */
double minibatch_imbalance(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv);

/* Seconds of the longer lane of these blocks. */
double minibatch_seconds(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv);

/* Seconds of a layer that the n mini-batches pass in their order, round and round.  The forward
 * pass is shared out by requests, and the weights of the next layer come in equal parts.  Of
 * m->n_layers layers the first load and the last computation overlap nothing. */
double minibatch_layer_seconds(const struct hybrid_machine *m, const struct minibatch *b,
                               int n);

/* Fills of [n] with the number of each request's mini-batch, from 0, and bins [n] with the
 * mini-batches; returns how many there are.  A mini-batch takes its first request whatever its
 * size.  Balanced mini-batches come in the order of their load, the longest first. */
int minibatch_form(const struct hybrid_machine *m, const struct minibatch_room *room,
                   const struct minibatch_request *r, int n, enum minibatch_method method,
                   int *of, struct minibatch *bins);

#endif
