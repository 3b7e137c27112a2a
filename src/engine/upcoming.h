/* upcoming.h - tells the store and the KV pool which state the waiting requests need; private to
 * src/engine.
 *
 * A sequence is told of from when it waits until it has taken or restored all that there is of its
 * prompt (it enters PREFILL), or ends.  Policies that look ahead evict what such sequences need
 * after all else (policy/placement.h).  The windows of store and pool are bounded: later sequences
 * get room as earlier ones leave.
 *
 * The store's fetcher is told, too (restore_pipeline_want), where there is one: of the chunks that
 * the KV pool does not hold, and until the sequence's own restore begins.
 *
 * A truncated sequence needs what its view holds: the kept chunks, and those from the cut
 * on.  Until it has chosen its view, that is the view of its last token.  Where it chooses
 * another one, it is told of again. */
#ifndef ENGINE_UPCOMING_H
#define ENGINE_UPCOMING_H

#include "engine/seq.h"

/* Tells the store, where it has copies in DRAM, some of the chunks whose state the KV pool has
 * begun or ceased to hold.  Never waits. */
void upcoming_tell_held(struct seq_shared *sh);
/* Tells of the waiting sequences of a list, in their order, until the store has no room for
 * more, and what it is worth to hold state.  age_ns: waiting time that is worth one step of
 * priority, as for the scheduler. */
void upcoming_tell(struct seq_list l, int64_t age_ns);
/* Has what the sequences need fetched ahead that still wait after admission: what the others
 * need, their own restores read. */
void upcoming_fetch(struct seq_list l);
/* What the sequence needs is fetched ahead no more: its restore begins, or it ends. */
void upcoming_fetch_no_more(struct seq *s);
/* The sequence waits no longer; nothing where it was not told of. */
void upcoming_end(struct seq *s);

#endif
