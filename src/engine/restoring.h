/* restoring.h - the restoration phase of sequences: look up, plan, restore, report; private to
 * src/engine.
 *
 * An engine has one restore_phase for all its sequences. It requests transitions of the sequences
 * that it restores (seq.h), and touches no other sequence. */
#ifndef ENGINE_RESTORING_H
#define ENGINE_RESTORING_H

#include "engine/seq.h"
#include "engine/step.h"
#include "hcache.h"
#include "restore/beside.h"
#include "restore/plan.h"
#include "restore/restore.h"

struct restore_phase_opts {
    /* Speeds that plans are computed from. Finished restores correct it. */
    struct platform *platform;
    /* If the platform lacks the store's speed, measure it in the background from now on. */
    bool measure_ahead;
    uint64_t throttle_bytes_per_s; /* the store's throttle; 0: there is no throttle */
    size_t staging_bytes;
    int64_t rest_ns;
    enum restore_direct direct;
    /* State that waiting sequences need is read ahead into the store's DRAM tier. */
    bool fetches;
    struct remote *remote; /* NULL: there is no remote */
    int max_rows;          /* rows of one forward pass */
};

struct restore_phase {
    struct restore_phase_opts o;
    struct seq_shared *shared;
    struct restore_pipeline *pipeline; /* NULL: there is no store, so nothing is restored */
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

/* --- the plan --------------------------------------------------------------------------------- */

/* Returns whether the store's speed must still be measured, because plans need it. It is measured
 * once per engine: ahead, or on the first hits, when there are chunks to read. A throttled store
 * has the throttle's speed, so nothing is measured. */
bool restore_plan_must_measure(const struct restore_phase *g);
/* Takes over the speed that a look-up has measured, if any. */
void restore_plan_measured(struct restore_phase *g, const struct restore_found *f);

/* Returns the number of tokens that the first n found chunks restore. The last one may be partial,
 * and may end with the prompt's last token, which is computed and does not count. */
int restore_plan_tokens(const struct restore_found *f, int n);
/* Returns the number of found chunks that the restore may use. */
int restore_plan_usable(const struct seq *s, const struct restore_found *f);

/* Returns the time to compute the first n_tokens if nothing else is computed. Returns 0 if the
 * restore must wait for the store however long it takes, for example if its plan is forced. The
 * moved tokens of a view are computed by replaying all stairs (engine/view.h); if the sequence
 * may not do that now, the time is 0. */
double restore_plan_price_s(const struct restore_phase *g, const struct seq *s,
                            int n_tokens);

/* Returns whether replaying all stairs is predicted to be faster than the planned restore. */
bool restore_plan_is_slower(const struct restore_phase *g, const struct seq *s);

/* Plans the restore of the found chunks behind the first `first`, which are on the device.
 * beside_decodes: other sequences decode meanwhile. The plan goes to s->out. *n_chunks counts the
 * chunks on the device and the planned ones; 0: nothing is restored. Returns 0 or an error, whose
 * message is in s->out.err. */
int restore_plan_make(struct restore_phase *g, struct seq *s, const struct restore_found *f,
                      int first, bool beside_decodes, int *n_chunks);
/* Returns the job that carries out the plan of s. It points into s and g, and is valid until the
 * next plan. */
struct restore_job restore_plan_job(const struct restore_phase *g, const struct seq *s,
                                    int first);

/* --- the end of a restore --------------------------------------------------------------------- */

/* Corrects p by the times of s->out.restore, and completes the report s->out: its plan, surprise,
 * stall and miss. n_hits chunks of s are stored. Call before s->n_done changes. The plan has no
 * layers afterwards if the restore has brought nothing. */
void restore_report(struct platform *p, struct seq *s, int n_hits);

/* --- lanes, for pictures ---------------------------------------------------------------------- */

/* Fill *out: lanes_predict with the lanes that a plan predicts, lanes_measure with those of a
 * restore that ran. `out->span` is from malloc; spans that out already has are freed. */
void lanes_predict(struct hcache_lanes *out, const struct plan_request *req,
                   const struct plan *plan);
void lanes_measure(struct hcache_lanes *out, struct restore *r);

#endif
