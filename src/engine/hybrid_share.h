/* hybrid_share.h - how many ACT blocks each mini-batch has if mini-batches have unequal sizes.
 *
 * A mini-batch computes while the blocks of the next one come. If all requests have equally many
 * ACT blocks, a large mini-batch computes longer than a small one loads, and a small one less long
 * than a large one loads. So a mini-batch before a smaller one gets fewer ACT blocks, and one
 * before a larger one gets more, until
 *
 *     compute of mini-batch i = link of mini-batch i + 1      (the first follows the last)
 *
 * Example: 10 requests make mini-batches of 4, 3 and 3 requests. At x = 1.4 their shares of ACT
 * blocks are 41, 44 and 76 %. Both lanes are always busy then, as with equal sizes.
 *
 * If the sums of the two lanes differ, each equation gets a part of the difference, in proportion
 * to the requests. The equations are linear: each mini-batch's number of ACT blocks follows from
 * that of the next one.
 *
 * Pure: no clock, no allocation. */
#ifndef ENGINE_HYBRID_SHARE_H
#define ENGINE_HYBRID_SHARE_H

#include "engine/hybrid.h"

/* Most mini-batches that are given shares. With more, two changes of size in a layer matter
 * little. */
enum { HYBRID_SHARE_MOST = 64 };

/* Returns the seconds of a layer whose mini-batches have the ACT blocks act [m->n_minibatches], and
 * fills act; the sum is the number of ACT blocks of s. Returns infinity, and act is undefined, if
 * mini-batches have equal sizes or are more than HYBRID_SHARE_MOST, or if ACT blocks save the link
 * no time. */
double hybrid_share_out(const struct hybrid_machine *m, const struct hybrid_split *s,
                        int64_t *act);

/* Fills act [m->n_requests] with the number of ACT blocks of each request, mini-batch by
 * mini-batch. The sum is the number of ACT blocks of s. Requests of a mini-batch differ by at most
 * one block. */
void hybrid_share_requests(const struct hybrid_machine *m, const struct hybrid_split *s,
                           int64_t *act);

#endif
