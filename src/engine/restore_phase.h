/* restore_phase.h - the restoration phase of sequences: look up, plan, restore; private to
 * src/engine.
 *
 * An engine has one restore_phase for all its sequences. It requests transitions of the sequences
 * that it restores (seq.h), and touches no other sequence. */
#ifndef ENGINE_RESTORE_PHASE_H
#define ENGINE_RESTORE_PHASE_H

#include "engine/fused.h"
#include "engine/seq.h"
#include "engine/step_batch.h"
#include "restore/beside.h"

struct restore_phase_opts {
    /* Speeds that plans are computed from. Finished restores correct it. */
    struct platform *platform;
    /* If the platform lacks the store's speed, measure it in the background from now on. */
    bool measure_ahead;
    uint64_t throttle_bytes_per_s; /* the store's throttle; 0: there is no throttle */
    size_t staging_bytes;
    enum restore_direct direct;
    /* State that waiting sequences need is read ahead: into the store's DRAM tier, or into
     * staging if there is no tier. */
    bool fetches;
    struct remote *remote; /* NULL: there is no remote */
    int max_rows;          /* rows of one forward pass */
};

struct restore_phase {
    struct restore_phase_opts o;
    struct seq_shared *shared;
    struct restore_pipeline *pipeline; /* NULL: there is no store, so nothing is restored */
    bool stages; /* the next waiting sequences may own staging (staging.h) */
    struct fused fused;
    /* Compute time that restores may still take beside decodes. */
    struct beside_credit credit;
    /* time after the last poll at which reads without an answer are judged again */
    int64_t again_ns;
    /* Scratch of one plan: */
    struct plan_layer *plan_layer;
    double *prefill_s;
    struct plan_range *ranges;
    uint8_t *masks; /* [max_chunks][n_layers] record masks of `ranges` */
    bool *in_dram;  /* [max_chunks] whether the chunk has a copy in DRAM */
};

/* Initialises g. The store of sh must be open. */
int restore_phase_init(struct restore_phase *g, const struct restore_phase_opts *o,
                       struct seq_shared *sh, struct next_token *next, struct err *err);
/* Frees the memory of g. A zeroed struct is allowed. */
void restore_phase_deinit(struct restore_phase *g);
size_t restore_phase_bytes(const struct restore_phase *g); /* Returns the bytes reserved. */

/* Begins the look-up of s: WAIT -> RESTORE; -> PREFILL if there is nothing to look up. */
void restore_phase_begin(struct restore_phase *g, struct seq *s);

/* The time and rows that a step leaves to restores. */
struct restore_phase_budget {
    int64_t batch_ns; /* time that the step's forward pass took; 0: there was none */
    int64_t free_ns;  /* time after that pass that delays no later pass (beside_free_ns) */
    int n_decodes;    /* decodes in that pass */
    int rows_left;    /* new tokens that the step may still compute */
};
/* Runs behind the forward pass of a step. Beside decodes it restores as much as the credit allows;
 * without decodes, as much as fits a step. It waits for I/O only if there was no batch. Sequences
 * whose state has come back go to PREFILL, or to DONE with an error. */
void restore_phase_step(struct restore_phase *g, struct seq_list l,
                        const struct restore_phase_budget *b);

/* Returns the platform's prediction of a batch's time. Returns 0 if the comparison would teach
 * nothing: there is no store, the batch has decodes, or it is small. */
double restore_phase_believes(const struct restore_phase *g, const struct step_batch *b);
/* Corrects the platform: a batch predicted to take believed_s took ns. */
void restore_phase_learns(struct restore_phase *g, double believed_s, int64_t ns);

/* Returns the reason why nothing is looked up for s, or NULL. */
const char *restore_phase_why_not(const struct seq *s);
/* Begins the look-up of s without a change of its phase: s->restore is set. */
void restore_phase_find(struct restore_phase *g, struct seq *s);
/* Ends the restore of s, in any phase. Does not wait for I/O. */
void restore_phase_abandon(struct restore_phase *g, struct seq *s);

#endif
