/* beside.h - the share of a step that restores and prompts may take while other sequences
 * decode.
 *
 * Decodes come first. Beside them:
 * - Restores compute after the forward pass, within a *credit*: BESIDE_RESTORE_SHARE of the
 *   time of the passes. A work item may cost more than the credit; the next steps pay for it.
 *   Unused credit is lost, so a pause never becomes a burst. Where passes wait for streamed
 *   weights, the disk reads weights for the next pass while a restore computes. The decodes
 *   lose nothing during this time, so restores get all of it.
 * - Prompts get so many rows that a step takes BESIDE_STRETCH times as long as its decodes
 *   alone.
 *
 * A plan for a restore beside decodes assumes both shares (beside_slow). A step without decodes
 * may restore for beside_alone_ns.
 *
 * Pure: no clock, no allocation. */
#ifndef RESTORE_BESIDE_H
#define RESTORE_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "restore/plan.h"

/* Share of decode-step time that restore compute may use: the paper's 4 % minus the slowdown
 * from restore I/O (docs/perf/). */
#define BESIDE_RESTORE_SHARE 0.03
/* A prompt may stretch a step with decodes to this many times the time of the decodes alone. The
 * promise is 3 at the 99th percentile, and steps vary. */
#define BESIDE_STRETCH 2.5
/* Prefill beside decodes takes this many times as long as alone. */
#define BESIDE_PREFILL_SLOW (BESIDE_STRETCH / (BESIDE_STRETCH - 1))

enum {
    /* A prompt gets at least this many rows: below 16 a GEMM takes hardly less time. */
    BESIDE_LEAST_ROWS = 16,
    /* Fewer new tokens than this are not fused with their restore beside decodes, but wait for
     * the batch: on their own they would read the layers' weights for hardly any work, which
     * takes as long as a step. */
    BESIDE_LEAST_FUSED = 64,
    /* A step without decodes restores, or waits, for at least this long. */
    BESIDE_ALONE_NS = 20 * 1000 * 1000,
};

/* ---- restores ---- */

struct beside_credit {
    int64_t ns; /* time that restores may compute; negative: time that they owe */
};

/* Adds the credit that a forward pass with decodes earns; the pass took pass_ns. free_ns: the part
 * of the time after the pass that delays no later pass (beside_free_ns). */
void beside_earn(struct beside_credit *c, int64_t pass_ns, int64_t free_ns);
/* Returns how much time after a pass costs the next pass nothing. The pass waited wait_ns for
 * weights, which are read up to ahead_ns before a pass needs them. Weights that are read in the
 * returned time need not be waited for in the next pass. */
int64_t beside_free_ns(int64_t wait_ns, int64_t ahead_ns);
/* Takes the cost of a restore's work item from the credit. */
void beside_pay(struct beside_credit *c, int64_t cost_ns);
/* Returns whether a restore may begin a work item. */
bool beside_may_work(const struct beside_credit *c);

/* Returns how long a step without decodes may restore or wait: BESIDE_ALONE_NS, or as long as
 * the step's prompts took if that is longer, so that restores and prompts each get half of the
 * machine. pass_ns: time of the forward pass with the prompts; 0: there was none. */
int64_t beside_alone_ns(int64_t pass_ns);

/* Sets the shares of compute for a plan that is carried out beside decodes. */
void beside_slow(struct plan_request *req);

/* ---- prompts ---- */

/* Recent times of steps; 0: unknown. */
struct beside_speed {
    double decode_ns; /* time of a step of decodes alone */
    double row_ns;    /* time of each row of prefill */
};

/* Learns from a step that took ns: it had n_rows rows, n_decodes of which were decodes. */
void beside_learn(struct beside_speed *s, int n_decodes, int n_rows, int64_t ns);
/* Returns the prefill rows that a step with decodes may have. */
int beside_rows(const struct beside_speed *s);
/* Returns the rows of new tokens that a step may still compute after its batch. The batch has
 * n_rows rows, n_decodes of which are decodes. */
int beside_rows_left(int step_rows, int rows_beside, int n_decodes, int n_rows);
/* Returns how many rows times layers of n_new fused tokens a step with decodes may still compute;
 * rows_left is the result of beside_rows_left. Returns 0 if the new tokens wait for the batch. */
int beside_fused_rows(int n_new, int rows_left, int n_layers);

#endif
