/* restore_plan.h - which of the found chunks a sequence restores, and how; private to src/engine.
 *
 * It describes the chunks to policy/plan.h and keeps the plan in the sequence's outcome.  It
 * starts no reads. */
#ifndef ENGINE_RESTORE_PLAN_H
#define ENGINE_RESTORE_PLAN_H

#include "engine/restore_phase.h"

/* Returns whether plans lack the store's speed. It is measured once per engine: ahead, or on the
 * first hits, when there are chunks to read. A throttle is the speed, so nothing is measured. */
bool restore_plan_must_measure(const struct restore_phase *g);
/* Takes the speed over that a look-up has measured, if it has. */
void restore_plan_measured(struct restore_phase *g, const struct restore_found *f);

/* Returns the tokens of the first n chunks. The last chunk that was found may be partial. */
int restore_plan_tokens(const struct restore_found *f, int n);
/* Returns how many of the found chunks may be used. */
int restore_plan_usable(const struct seq *s, const struct restore_found *f);
bool restore_plan_is_forced(const struct seq *s);

/* Returns the price of computing the first n_tokens where nothing else is computed; 0: the store
 * is waited for. Forced plans are carried out, however long that takes; a truncated context cannot
 * be computed. */
double restore_plan_price_s(const struct restore_phase *g, const struct seq *s,
                            int n_tokens);

struct restore_plan_ask {
    int first;           /* chunks that are on the device */
    bool beside_decodes; /* others will decode meanwhile */
    bool
        is_ahead; /* all reads are made before: they cost nothing.  Not of a truncated context. */
};
/* Plans the restore of the found chunks behind the first ones, which are on the device.  The plan
 * is in s->out.  *n_chunks counts both; 0: nothing is restored. */
int restore_plan_make(struct restore_phase *g, struct seq *s, const struct restore_found *f,
                      const struct restore_plan_ask *ask, int *n_chunks);
/* Returns the job of that plan, without a table. It points into s and g: valid until the next
 * plan. */
struct restore_job restore_plan_job(const struct restore_phase *g, const struct seq *s,
                                    int first);

#endif
