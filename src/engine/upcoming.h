/* upcoming.h - tells the store and the KV pool which state the waiting requests need; private to
 * src/engine.
 *
 * A sequence is announced while it waits, until it has taken or restored all existing state of its
 * prompt (it enters PREFILL), or ends. Policies that look ahead evict the state of announced
 * sequences last (store/placement.h). The windows of store and pool are bounded: later
 * sequences get room as earlier ones leave.
 *
 * A fetcher (restore_pipeline_want), if there is one, also gets the chunks that the KV pool does
 * not hold, until the sequence's own restore begins.
 *
 * A truncated sequence needs the chunks of its view: the kept chunks, and those from the cut on.
 * Until it has chosen its view, it is announced with the view of its last token. If it chooses
 * another view, it is announced again. */
#ifndef ENGINE_UPCOMING_H
#define ENGINE_UPCOMING_H

#include "engine/seq.h"

/* Reports to a store with copies in DRAM which chunks' state the KV pool has gained or lost: as
 * many changes as the store takes now. Never waits. */
void upcoming_tell_held(struct seq_shared *sh);
/* Announces the waiting sequences of a list, in their order, until the store has no more room, and
 * gives it the current prices of state. age_ns: waiting time that is worth one step of priority, as
 * for the scheduler. */
void upcoming_tell(struct seq_list l, int64_t age_ns);
/* Starts fetching ahead for the sequences that still wait after admission. Admitted sequences
 * read by their own restores. */
void upcoming_fetch(struct seq_list l);
/* Stops fetching ahead for s: its restore begins, or it ends. */
void upcoming_fetch_no_more(struct seq *s);
/* Withdraws s, which waits no longer. Does nothing if it was not announced. */
void upcoming_end(struct seq *s);

#endif
