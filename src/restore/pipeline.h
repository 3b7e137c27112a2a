/* pipeline.h - simulates the lanes of a restore, event by event.
 *
 * A job is one layer's restoration: a read (possibly of length 0) and the compute that needs it.
 * Reads run one after another in the given order. Compute never idles while a job is ready. It
 * prefers, in this order: a layer whose read has arrived; the next layer that needs no read
 * (recomputation is the filler, so few arrived layers wait in staging buffers); the next layer
 * of the new tokens' prefill. The order of ready jobs does not change the makespan; the order of
 * reads does.
 *
 * While both lanes work, I/O advances at 1/io_overlap and compute at 1/comp_overlap of its
 * speed.
 *
 * On several devices each *stage* has a run of the layers, a compute lane, and a bus of its own,
 * over which read records go up. All stages read from one store:
 *
 *   I/O           [H0 ][H3 ][H1 ][H4 ] ...          one lane: the store
 *   bus 0              [H0][H1] ...                 a stage's own copies up
 *   compute 0              [H0 ][H1 ] ...           its own layers
 *   bus 1                   [H3][H4] ...
 *   compute 1                   [H3 ][H4 ] ...
 *
 * Recomputation and prefill pass through the stages, one layer after the other.
 *
 * Pure, no allocation. */
#ifndef RESTORE_PIPELINE_H
#define RESTORE_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "restore/plan.h"

struct pipe_job {
    double io_s; /* read time; io_s and up_s both 0: no read */
    double up_s; /* time on the bus of the layer's stage, after the read */
    double comp_s;
    int16_t layer;
    char method; /* 'R', 'H', 'K' */
};

/* The work of the lanes. */
struct pipe_load {
    const struct pipe_job *job; /* [n_jobs], in the order in which their reads are issued */
    int n_jobs;                 /* at most one per layer */
    int n_layers, n_stages;
    const double *prefill_s; /* [n_layers] prefill time of each layer; NULL: no prefill */
    bool fused;
    double head_s, latency_s, io_overlap, comp_overlap;
};

enum pipe_lane { PIPE_IO, PIPE_RESTORE, PIPE_PREFILL, PIPE_UP };

struct pipe_item {
    double start_s, end_s;
    int16_t layer;
    /* Method of the layer; 'P' for prefill, 'L' for the head (layer n_layers). */
    char method;
    uint8_t lane; /* enum pipe_lane: PIPE_RESTORE and PIPE_PREFILL share the compute lane */
    uint8_t stage; /* the lane's stage; for I/O: the layer's stage */
};

enum { PIPE_MAX_ITEMS = 4 * PLAN_MAX_LAYERS + 1 };

struct pipeline {
    double makespan_s, restore_s;
    /* Time that the I/O lane is busy; time during which any stage computes. */
    double io_busy_s, comp_busy_s;
    int n_stages;
    /* Busy times of each stage. */
    double stage_up_s[PLAN_MAX_STAGES], stage_comp_s[PLAN_MAX_STAGES];
    int n_items;
    struct pipe_item item[PIPE_MAX_ITEMS]; /* sorted by end time */
};

/* Runs the lanes and returns the makespan. out NULL: computes only the makespan, with one stage in
 * a single pass over the jobs. Both ways give the same makespan, except for rounding. */
double pipe_run(const struct pipe_load *load, struct pipeline *out);

/* Simulates `plan` under `req`, with everything that a timeline needs. */
void pipeline_simulate(const struct plan_request *req, const struct plan *plan,
                       struct pipeline *out);

#endif
