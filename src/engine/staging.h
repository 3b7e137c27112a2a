/* staging.h - the read buffer: the next waiting sequences own staging memory before they own
 * blocks (AttentionStore, section 3.2.1); private to src/engine.
 *
 *   WAIT:  looked up --> planned --> reads parked in staging memory --> placed: WAIT -> RESTORE
 *
 * At most STAGING_SEQS sequences, the best-ranked ones that wait for a place, have a restore
 * while they wait. It reads as much as new tokens will not hide (engine/read_buffer.h), and only
 * as far as restores with a place leave staging memory and the disk free. If the store has
 * copies in DRAM, they serve as the read buffer, and nothing is staged.
 *
 * A staged restore is ended, and gives back its memory and pins, when
 * - its sequence ends, or is no longer among the next ones;
 * - a chunk that it found was erased: in the next step, so that the erasure can end;
 * - the sequence gets its place and the plan no longer fits: a chunk was condemned meanwhile,
 *   more of its chunks are stored, the KV pool holds another number of its chunks than the plan
 *   assumed, or too little was read for the plan to be the faster one. Then it restores as if
 *   nothing had been staged.
 *
 * The plan of a staged restore counts reads as free, since they are made while the sequence
 * waits anyway. So it chooses the records that need the least compute: keys and values. */
#ifndef ENGINE_STAGING_H
#define ENGINE_STAGING_H

#include "engine/restoring.h"

enum { STAGING_SEQS = 2 };

/* Returns whether s, which waits, may be given staging memory now: nothing was decided for it
 * yet, it was never admitted, and it sees all of its tokens. */
bool staging_may_begin(const struct restore_phase *g, const struct seq *s);
/* Decides that nothing is staged for s, because another sequence is about to compute or restore
 * the beginning that they share. */
void staging_leave_out(struct seq *s);
/* Begins to look up the stored chunks of s behind the first n_known chunks, which the KV pool
 * holds. */
void staging_begin(struct restore_phase *g, struct seq *s, int n_known);
/* Advances the staged restore: plans and begins to read once the look-up is done; ends it if a
 * chunk was erased. beside_decodes: other sequences will decode when s has its place. */
void staging_step(struct restore_phase *g, struct seq *s, bool beside_decodes);

/* Returns whether the staged restore of s can continue, now that s has its place and n_done
 * tokens in the cache. */
bool staging_is_usable(const struct restore_phase *g, struct seq *s);
/* Ends the staged restore of s, if any. A later restore of s may be staged again. */
void staging_end(struct restore_phase *g, struct seq *s);

#endif
