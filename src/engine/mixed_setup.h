/* mixed_setup.h - decides whether a job's contexts have blocks on the host, and how many of
 * which type (HybridServe, section 4.3.1).
 *
 *   off, recompute   all blocks are KV blocks on the device; those without room are computed again
 *   kv, act          blocks of this type alone
 *   paper            the paper's Algorithm 1
 *   auto             hybrid_choose; no ACT blocks if the link outruns the projection, or heads are
 *                    grouped; off if the device computes in the host's memory
 *
 * The functions are pure. They take the costs that mixed_measure has measured. */
#ifndef ENGINE_MIXED_SETUP_H
#define ENGINE_MIXED_SETUP_H

#include "engine/mixed.h"
#include "engine/mixed_costs.h"

enum mixed_method {
    MIXED_OFF,
    MIXED_RECOMPUTE,
    MIXED_KV,
    MIXED_ACT,
    MIXED_PRINTED, /* the method "paper" */
    MIXED_AUTO,
    MIXED_METHODS
};
/* Names by which users select a method. The array ends with NULL. */
extern const char *const mixed_methods[MIXED_METHODS + 1];

/* Above this x (mixed_costs_x) `auto` uses no ACT blocks, because they would gain less than 5 %. */
#define MIXED_MOST_X 10.0

struct mixed_job {
    enum mixed_method method;
    /* The device computes in the host's memory, and nothing slows the link down. */
    bool unified;
    bool is_group;   /* the device is a group of several devices */
    bool has_states; /* layers are recurrent (ops.h, delta_net), or see both ways */
    bool has_store;  /* contexts are saved, so all blocks are KV blocks on the device */
    int max_seqs;    /* sequences that run at once */
    /* Memory for blocks, tails and buffers on the device, and for blocks on the host. */
    uint64_t device_bytes, host_bytes;
    /* Time to bring one layer's weights over the same link; 0: weights are resident. */
    double weights_s;
};

/* Result of mixed_decide. */
struct mixed_choice {
    bool is_on;
    struct mixed_opts opts;    /* valid if is_on */
    struct hybrid_split split; /* blocks of one layer when all are in use */
    char why[240]; /* for users: why the host has no blocks, or how blocks are divided */
};

/* Returns ERR_LIMIT if device_bytes does not hold the buffers and a tail for each sequence, or
 * if both memories together hold no context. Forcing a method on a job that is saved is a bug of
 * the caller. */
int mixed_decide(const struct mixed_job *j, const struct model *m,
                 const struct mixed_costs *c, struct mixed_choice *out, struct err *err);
/* Returns whether the decision needs measured costs. If it does not, no blocks lie on the host, and
 * out->why gives the reason. */
bool mixed_must_measure(const struct mixed_job *j, struct mixed_choice *out);

#endif
