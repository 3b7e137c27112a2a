/* mixed_costs.h - what a layer of a hybrid cache costs on this machine, by sampled linear
 * regression (HybridServe, section 4.3, figure 11).
 *
 * Times are measured with the operations of mixed.h: blocks that come over the link,
 * and blocks that are projected. */
#ifndef ENGINE_MIXED_COSTS_H
#define ENGINE_MIXED_COSTS_H

#include "model/model.h"
#include "policy/hybrid.h"

struct mixed_costs {
    struct hybrid_line project; /* seconds by ACT blocks of one layer */
    struct hybrid_line link;    /* seconds by bytes */
    /* Of the regressions, 0..1.  Below 0.9 the mean of the largest sample stands for the line. */
    double project_r2, link_r2;
    double kv_bytes, act_bytes; /* of a block of one layer */
    double forward_s;           /* one layer of n_rows rows that see a block each */
};

/* x: how many times longer a block takes to project than its keys and values take over the link. */
static inline double mixed_costs_x(const struct mixed_costs *c)
{
    return c->project.b_s / (c->link.b_s * c->kv_bytes);
}

/* link_bytes_per_s: the link is slowed down to this; 0: it is not.  n_rows: of forward_s.
 * Takes some tenths of a second. */
int mixed_measure(const struct model *m, struct model_work *work, struct stream *s,
                  double link_bytes_per_s, int n_rows, struct mixed_costs *out,
                  struct err *err);

#endif
