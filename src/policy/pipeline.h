/* pipeline.h - the lanes of a restore, simulated event by event.
 *
 * A job is one layer's restoration: a read (maybe of no length) and the compute that needs
 * it. Reads run one after another in the given order; compute never idles while something
 * is ready and takes, in this order of preference: a layer whose read has arrived, the next
 * layer that needs no read (recomputation is the filler: so few arrived layers wait in
 * staging buffers), the next layer of the new tokens' prefill.  Which ready job goes first
 * does not change the makespan; which read goes first does.
 *
 * While both lanes work, I/O advances at 1/io_overlap and compute at 1/comp_overlap of its
 * speed.
 *
 * On several devices each *stage* has a run of the layers, a compute lane, and a bus of its own,
 * over which what has been read goes up; all read from one store:
 *
 *   I/O           [H0 ][H3 ][H1 ][H4 ] ...          one lane: the store
 *   bus 0              [H0][H1] ...                 a stage's own copies up
 *   compute 0              [H0 ][H1 ] ...           its own layers
 *   bus 1                   [H3][H4] ...
 *   compute 1                   [H3 ][H4 ] ...
 *
 * Recomputation and prefill pass through the stages, a layer after the other.
 *
 * Pure, no allocation. */
#ifndef POLICY_PIPELINE_H
#define POLICY_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"

struct pipe_job {
    double io_s; /* 0, and up_s 0: no read */
    double up_s; /* on the bus of the layer's stage, behind the read */
    double comp_s;
    int16_t layer;
    char method; /* 'R', 'H', 'K' */
};

/* What the lanes have to do. */
struct pipe_load {
    const struct pipe_job *job; /* [n_jobs], in the order in which their reads are issued */
    int n_jobs;                 /* at most PIPE_MAX_JOBS */
    int n_layers, n_stages;
    const double *prefill_s; /* [n_layers] or NULL */
    bool fused;
    double head_s, latency_s, io_overlap, comp_overlap;
};

enum pipe_lane { PIPE_IO, PIPE_RESTORE, PIPE_PREFILL, PIPE_UP };

struct pipe_item {
    double start_s, end_s;
    int16_t layer;
    char method;  /* of the layer; 'P' for prefill, 'L' for the head (layer n_layers) */
    uint8_t lane; /* enum pipe_lane: PIPE_RESTORE and PIPE_PREFILL share the compute lane */
    uint8_t stage; /* whose lane it is; of I/O: whose layer */
};

/* Token-wise plans have two jobs a layer, of which one or both read. */
enum { PIPE_MAX_JOBS = 2 * PLAN_MAX_LAYERS, PIPE_MAX_ITEMS = 7 * PLAN_MAX_LAYERS + 1 };

struct pipeline {
    double makespan_s, restore_s;
    double io_busy_s, comp_busy_s; /* comp: while any stage computes */
    int n_stages;
    double stage_up_s[PLAN_MAX_STAGES], stage_comp_s[PLAN_MAX_STAGES]; /* each one's */
    int n_items;
    struct pipe_item item[PIPE_MAX_ITEMS]; /* by end time */
};

/* Runs the lanes; returns the makespan.  out may be NULL: then only the makespan is wanted, and
 * with one stage it takes a single pass over the jobs.  Both ways agree to rounding. */
double pipe_run(const struct pipe_load *load, struct pipeline *out);

/* The simulation of `plan` under `req`, with everything a timeline needs. */
void pipeline_simulate(const struct plan_request *req, const struct plan *plan,
                       struct pipeline *out);

#endif
