/* mixed_setup.h - whether a job's contexts have blocks on the host, and how many of which type
 * (HybridServe, section 4.3.1).
 *
 *   off, recompute   all blocks are KV blocks on the device; what has no room is computed again
 *   kv, act          blocks of this type alone
 *   paper            Algorithm 1 as printed
 *   auto             hybrid_choose; no ACT blocks where the link outruns the projection, or heads are
 *                    grouped; off where the device computes in the host's memory
 *
 * Pure but for mixed_measure, which the caller has called. */
#ifndef ENGINE_MIXED_SETUP_H
#define ENGINE_MIXED_SETUP_H

#include "engine/mixed.h"
#include "engine/mixed_costs.h"

enum mixed_method {
    MIXED_OFF,
    MIXED_RECOMPUTE,
    MIXED_KV,
    MIXED_ACT,
    MIXED_PRINTED, /* "paper" */
    MIXED_AUTO,
    MIXED_METHODS
};
extern const char
    *const mixed_methods[MIXED_METHODS + 1]; /* as users name them; NULL ends them */

/* Beyond this x (mixed_costs_x) `auto` uses no ACT blocks: they would gain less than 5 %. */
#define MIXED_MOST_X 10.0

struct mixed_job {
    enum mixed_method method;
    bool
        unified; /* the device computes in the host's memory, and nothing slows the link down */
    bool is_group;  /* several devices */
    bool has_store; /* contexts are saved: then blocks are KV blocks on the device */
    int max_seqs;   /* that run at once */
    uint64_t device_bytes, host_bytes; /* for blocks, tails and buffers; for blocks */
    double weights_s; /* of one layer, over the same link; 0: they are resident */
};

/* What was decided. */
struct mixed_choice {
    bool is_on;
    struct mixed_opts opts;    /* where it is on */
    struct hybrid_split split; /* of one layer, all blocks in use */
    char why[240];             /* for people: why it is off, or how blocks are shared out */
};

/* Returns ERR_LIMIT where device_bytes does not hold the buffers and a tail for each
 * sequence, or both memories hold no context.  A forced method on a job that is
 * saved is a bug of the caller. */
int mixed_decide(const struct mixed_job *j, const struct model *m,
                 const struct mixed_costs *c, struct mixed_choice *out, struct err *err);
/* Whether costs have to be measured for the decision; else out->why says why it is off. */
bool mixed_must_measure(const struct mixed_job *j, struct mixed_choice *out);

#endif
