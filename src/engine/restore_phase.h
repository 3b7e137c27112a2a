/* restore_phase.h - the restoration phase of sequences: look up, plan, restore; private to
 * src/engine.
 *
 * One object for all sequences of an engine.  It requests edges of the sequences that it restores
 * (seq.h), and touches no other sequence. */
#ifndef ENGINE_RESTORE_PHASE_H
#define ENGINE_RESTORE_PHASE_H

#include "engine/fused.h"
#include "engine/seq.h"
#include "engine/step_batch.h"
#include "policy/beside.h"

struct restore_phase_opts {
    struct platform *platform; /* what plans are made from, and what restores teach */
    bool
        measure_ahead; /* where it has no tier, the store's speed is measured from now on */
    uint64_t throttle_bytes_per_s; /* of the store; 0: none */
    size_t staging_bytes;
    enum restore_direct direct;
    /* What waiting sequences need is read ahead: to the store's DRAM tier; where it has none, to
     * staging. */
    bool fetches;
    struct remote *remote; /* NULL: none */
    int max_rows;          /* of one forward pass */
};

struct restore_phase {
    struct restore_phase_opts o;
    struct seq_shared *shared;
    struct restore_pipeline *pipeline; /* NULL: there is no store, nothing is restored */
    bool stages; /* the next waiting sequences may own staging (staging.h) */
    struct fused fused;
    struct beside_credit credit; /* for computing beside decodes */
    int64_t
        again_ns; /* when reads that are silent are judged again, from the last poll on */
    /* Scratch of one plan: */
    struct plan_layer *plan_layer;
    double *prefill_s;
    struct plan_range *ranges;
    uint8_t *masks; /* [max_chunks][n_layers], of ranges */
    bool *in_dram;  /* [max_chunks] */
};

/* The store of sh is there. */
int restore_phase_init(struct restore_phase *g, const struct restore_phase_opts *o,
                       struct seq_shared *sh, struct next_token *next, struct err *err);
/* Also of zeroes. */
void restore_phase_deinit(struct restore_phase *g);
size_t restore_phase_bytes(const struct restore_phase *g); /* reserved */

/* WAIT -> RESTORE: looks up what the store has of s; -> PREFILL where nothing is looked up. */
void restore_phase_begin(struct restore_phase *g, struct seq *s);

/* What a step leaves to restores. */
struct restore_phase_budget {
    int64_t batch_ns; /* that its forward pass took; 0: there was none */
    int n_decodes;    /* in that pass */
    int rows_left;    /* of new tokens that the step may still compute */
};
/* Behind the forward pass of a step: restores what fits beside decodes; without any, as much as
 * fits a step, waiting for I/O where there was no batch.  Sequences whose state has come back go to
 * PREFILL, or DONE with an error. */
void restore_phase_step(struct restore_phase *g, struct seq_list l,
                        const struct restore_phase_budget *b);

/* What the platform says that a batch takes; 0 where that would teach nothing: there is no
 * store, the batch has decodes, or it is small. */
double restore_phase_believes(const struct restore_phase *g, const struct step_batch *b);
/* It took that long. */
void restore_phase_learns(struct restore_phase *g, double believed_s, int64_t ns);

/* Returns the reason why nothing is looked up for s, or NULL. */
const char *restore_phase_why_not(const struct seq *s);
/* Begins the look-up of s. */
void restore_phase_find(struct restore_phase *g, struct seq *s);
/* Ends the restoration of s, in any phase. Does not wait for I/O. */
void restore_phase_abandon(struct restore_phase *g, struct seq *s);

#endif
