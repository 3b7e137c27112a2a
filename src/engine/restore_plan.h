/* restore_plan.h - which of the found chunks a sequence restores, and how; private to
 * src/engine.
 *
 * Describes the chunks to restore/plan.h and keeps the plan in the sequence's outcome. Starts no
 * reads. */
#ifndef ENGINE_RESTORE_PLAN_H
#define ENGINE_RESTORE_PLAN_H

#include "engine/restore_phase.h"

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
 * moved tokens of a view are computed by replaying all stairs (engine/staircase.h); if the sequence
 * may not do that now, the time is 0. */
double restore_plan_price_s(const struct restore_phase *g, const struct seq *s,
                            int n_tokens);

/* Returns whether replaying all stairs is predicted to be faster than the planned restore. */
bool restore_plan_is_slower(const struct restore_phase *g, const struct seq *s);

struct restore_plan_ask {
    int first;           /* chunks that the device already has */
    bool beside_decodes; /* other sequences will decode while this one restores */
    /* True if all reads are made ahead and so cost nothing. Never set for a truncated context. */
    bool is_ahead;
};
/* Plans the restore of the found chunks behind the first ask->first, which are on the device. The
 * plan goes to s->out. *n_chunks counts the chunks on the device and the planned ones; 0: nothing
 * is restored. Returns 0 or an error, whose message is in s->out.err. */
int restore_plan_make(struct restore_phase *g, struct seq *s, const struct restore_found *f,
                      const struct restore_plan_ask *ask, int *n_chunks);
/* Returns the job that carries out the plan of s, without a block table. It points into s and g,
 * and is valid until the next plan. */
struct restore_job restore_plan_job(const struct restore_phase *g, const struct seq *s,
                                    int first);

#endif
