/* restoring.h - the restoration phase of sequences: look up, plan, restore; private to src/engine.
 *
 * One object for all sequences of an engine.  It requests edges of the sequences that it restores (seq.h),
 * and touches no other sequence. */
#ifndef ENGINE_RESTORING_H
#define ENGINE_RESTORING_H

#include "engine/fused.h"
#include "engine/seq.h"
#include "engine/step_batch.h"

/* A prompt beside decodes may make a step take this many times what they take alone: the promise is 3
 * at the 99th percentile, and steps vary. */
#define SCHEDULE_STRETCH 2.5

struct restoring_opts {
    struct platform *platform; /* what plans are made from, and what restores teach */
    bool
        measure_ahead; /* where it has no tier, the store's speed is measured from now on */
    uint64_t throttle_bytes_per_s; /* of the store; 0: none */
    size_t staging_bytes;
    enum restore_direct direct;
    int max_rows; /* of one forward pass */
};

struct restoring {
    struct restoring_opts o;
    struct seq_shared *shared;
    struct restorer *restorer; /* NULL: there is no store, nothing is restored */
    struct fused fused;
    int64_t credit_ns; /* time that restores may take beside decodes: restoring.c */
    /* Scratch of one plan: */
    struct plan_layer *plan_layer;
    double *prefill_s;
    struct plan_range *ranges;
    uint8_t *masks; /* [max_chunks][n_layers], of ranges */
};

/* The store of sh is there. */
int restoring_init(struct restoring *g, const struct restoring_opts *o,
                   struct seq_shared *sh, struct next_token *next, struct err *err);
/* Also of zeroes. */
void restoring_deinit(struct restoring *g);
size_t restoring_bytes(const struct restoring *g); /* reserved */

/* WAIT -> RESTORE: looks up what the store has of s; -> PREFILL where nothing is looked up. */
void restoring_begin(struct restoring *g, struct seq *s);

/* What a step leaves to restores. */
struct restoring_budget {
    int64_t batch_ns; /* that its forward pass took; 0: there was none */
    int n_decodes;    /* in that pass */
    int rows_left;    /* of new tokens that the step may still compute */
};
/* Behind the forward pass of a step: restores what fits beside decodes; without any, as much as fits a
 * step, waiting for I/O where there was no batch.  Sequences whose state has come back go to PREFILL, or
 * DONE with an error. */
void restoring_step(struct restoring *g, struct seq_list l,
                    const struct restoring_budget *b);

/* Ends the restoration of s, in any phase. Does not wait for I/O. */
void restoring_abandon(struct restoring *g, struct seq *s);

#endif
