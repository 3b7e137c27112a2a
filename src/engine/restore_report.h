/* restore_report.h - what a restore that has ended reports and teaches; private to src/engine.
 *
 * Compares the result with the plan: chunks that were lost, layers that changed their kind of
 * record, reads that stalled, and the predicted times. Needs no restore any more. */
#ifndef ENGINE_RESTORE_REPORT_H
#define ENGINE_RESTORE_REPORT_H

#include "engine/seq.h"

/* Corrects p by the times of s->out.restore, and completes the report s->out: its plan, surprise,
 * stall and miss. n_hits chunks of s are stored. Call before s->n_done changes. The plan has no
 * layers afterwards if the restore has brought nothing. */
void restore_report(struct platform *p, struct seq *s, int n_hits);

#endif
