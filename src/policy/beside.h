/* beside.h - what restores and prompts may take from a step in which others decode.
 *
 * Decodes come first.  Beside them:
 *
 * - Restores compute behind the forward pass, within a *credit*: BESIDE_RESTORE_SHARE of the
 *   time of the passes.  An item of work may cost more than the credit; the steps that follow
 *   pay for it.  Credit that was not used is lost, so a pause never becomes a burst.  Where passes
 *   wait for streamed weights, the disk reads ahead of the next pass while a restore computes.  So
 *   much of the time behind a pass costs decodes nothing, and is given in full.
 * - Prompts get as many rows as stretch a step to BESIDE_STRETCH times what the decodes take alone.
 *
 * A plan for a restore beside decodes assumes both shares (beside_slow).  Without decodes a step
 * may restore for beside_alone_ns.
 *
 * Pure: no clock, no allocation. */
#ifndef POLICY_BESIDE_H
#define POLICY_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"

/* Share of decode-step time that restore compute may use: the paper's 4 % minus the slowdown
 * from restore I/O (docs/perf/). */
#define BESIDE_RESTORE_SHARE 0.03
/* A prompt beside decodes may make a step take this many times what they take alone: the promise
 * is 3 at the 99th percentile, and steps vary. */
#define BESIDE_STRETCH 2.5
/* Prefill beside decodes takes this many times as long. */
#define BESIDE_PREFILL_SLOW (BESIDE_STRETCH / (BESIDE_STRETCH - 1))

enum {
    /* A prompt gets at least this many rows: below 16 a GEMM takes hardly less time. */
    BESIDE_LEAST_ROWS = 16,
    /* Fewer new tokens than these are not fused with their restore beside decodes, but wait for
     * the batch: by themselves they would read the layers' weights for hardly any work, which
     * takes as long as a step. */
    BESIDE_LEAST_FUSED = 64,
    /* A step without decodes restores, or waits, for at least so long. */
    BESIDE_ALONE_NS = 20 * 1000 * 1000,
};

/* ---- restores ---- */

struct beside_credit {
    int64_t ns; /* that restores may compute; negative: they owe it */
};

/* A forward pass with decodes took pass_ns; free_ns of the time behind it costs the next pass
 * nothing (beside_free_ns). */
void beside_earn(struct beside_credit *c, int64_t pass_ns, int64_t free_ns);
/* A pass waited wait_ns for weights, which are read up to ahead_ns before a pass wants them: what
 * was read meanwhile, the next pass does not wait for. */
int64_t beside_free_ns(int64_t wait_ns, int64_t ahead_ns);
void beside_pay(struct beside_credit *c, int64_t cost_ns);
bool beside_may_work(const struct beside_credit *c);

/* How long a step without decodes may restore or wait: as long as a new request may be kept
 * waiting, or as long as the prompts in it took, so that both get half of the machine.  pass_ns:
 * 0 where there was no forward pass. */
int64_t beside_alone_ns(int64_t pass_ns);

/* A plan that is carried out beside decodes has these shares of compute. */
void beside_slow(struct plan_request *req);

/* ---- prompts ---- */

/* What steps took lately. 0: not known. */
struct beside_speed {
    double decode_ns; /* a step of decodes alone */
    double row_ns;    /* each row of prefill */
};

/* A step of n_rows, n_decodes of them decodes, took ns. */
void beside_learn(struct beside_speed *s, int n_decodes, int n_rows, int64_t ns);
/* Rows of prefill that a step with decodes may have. */
int beside_rows(const struct beside_speed *s);
/* Rows of new tokens that a step may still compute behind its batch of n_rows, n_decodes of them
 * decodes. */
int beside_rows_left(int step_rows, int rows_beside, int n_decodes, int n_rows);
/* Returns how many rows times layers of n_new fused tokens a step with decodes may still compute,
 * where rows_left is what beside_rows_left returned. 0: they wait for the batch. */
int beside_fused_rows(int n_new, int rows_left, int n_layers);

#endif
