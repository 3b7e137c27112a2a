/* mixed_costs.h - measures the costs of a layer of a hybrid cache on this machine, by sampled
 * linear regression (HybridServe, section 4.3, figure 11).
 *
 * Times are measured with the operations of mixed.h: blocks that come over the link, and blocks
 * that are projected. */
#ifndef ENGINE_MIXED_COSTS_H
#define ENGINE_MIXED_COSTS_H

#include "model/model.h"
#include "engine/hybrid.h"

struct mixed_costs {
    struct hybrid_line project; /* time to project: a line over ACT blocks of one layer */
    struct hybrid_line link;    /* time to bring bytes over the link: a line over bytes */
    /* R^2 of the regressions, 0..1. Below 0.9 the mean of the largest sample replaces the line. */
    double project_r2, link_r2;
    double kv_bytes, act_bytes; /* bytes of one block of one layer */
    /* Seconds of one layer for n_rows rows, each of which attends to one block. */
    double forward_s;
    double forward_mini_s; /* part of forward_s that does not depend on n_rows */
};

/* Returns x: the time to project a block over the time to bring its KV over the link. */
static inline double mixed_costs_x(const struct mixed_costs *c)
{
    return c->project.b_s / (c->link.b_s * c->kv_bytes);
}

/* Measures for some tenths of a second. The link is slowed down to link_bytes_per_s; 0: it is not
 * slowed down. n_rows is the number of rows to which out->forward_s applies. */
int mixed_measure(const struct model *m, struct model_work *work, struct stream *s,
                  double link_bytes_per_s, int n_rows, struct mixed_costs *out,
                  struct err *err);

#endif
