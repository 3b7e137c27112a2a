/* minibatch.h - which requests pass a layer together when not all fit its buffers (HybridServe,
 * section 4.3.3).
 *
 * A mini-batch's KV and ACT blocks are loaded into a buffer while the mini-batch before computes,
 * also from one layer to the next:
 *
 *   link      [load 1     ][load 2  ][load 0     ]
 *   compute   [project 0  ][project 1][project 2 ]      a layer: sum of max(project i, load i + 1)
 *
 * So requests with many ACT blocks and requests with many KV blocks belong together: then *balance*
 * = T_project / T_load is near 1. Mini-batches must also be of equal size: the load of a small one
 * is too short to hide the projection of the large one before it.
 *
 * Pure: no clock, no allocation. */
#ifndef ENGINE_MINIBATCH_H
#define ENGINE_MINIBATCH_H

#include "engine/hybrid.h"

/* Blocks of one layer of a request. */
struct minibatch_request {
    int64_t n_act; /* ACT blocks, on the host or on the device */
    int64_t n_kv;  /* KV blocks that come over the link */
    /* blocks that the step writes: they need room in the buffer, and no time */
    int64_t n_written;
};

/* The sums over all requests of a mini-batch. */
struct minibatch {
    int64_t n_act, n_kv, n_written;
    int n_requests;
};

/* Blocks that a buffer holds. */
struct minibatch_room {
    int64_t n_act, n_blocks; /* ACT blocks; blocks of all kinds together */
};

enum minibatch_method {
    /* Forms as few mini-batches as possible, of equal size. The largest request opens a mini-batch.
     * Of the requests that fit its share of the blocks, the one that leaves the least imbalance
     * joins. The imbalance counts the transfer of ACT blocks too, which F_b leaves out. */
    MINIBATCH_BALANCED,
    /* The paper's method: takes requests in their order; each joins the first mini-batch that has
     * room and whose F_b does not grow. */
    MINIBATCH_PAPER,
};

/* Returns the paper's F_b = max(balance, 1 / balance), at least 1; infinite if one side has no
 * work. T_load is the time of the KV blocks alone. */
double minibatch_imbalance(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv);

/* Returns the seconds of the longer lane for these blocks. */
double minibatch_seconds(const struct hybrid_machine *m, int64_t n_act, int64_t n_kv);

/* Returns the seconds of a layer that the n mini-batches pass in their order, layer after layer.
 * The forward pass is divided by requests; the weights of the next layer arrive in equal parts. In
 * m->n_layers layers the first load and the last computation overlap nothing. */
double minibatch_layer_seconds(const struct hybrid_machine *m, const struct minibatch *b,
                               int n);

/* Returns the number of mini-batches. Fills of [n] with the number of each request's mini-batch,
 * from 0, and bins [n] with the mini-batches. The first request of a mini-batch always joins, even
 * if it exceeds the room. Balanced mini-batches are in the order of their load, the longest
 * first. */
int minibatch_form(const struct hybrid_machine *m, const struct minibatch_room *room,
                   const struct minibatch_request *r, int n, enum minibatch_method method,
                   int *of, struct minibatch *bins);

#endif
