/* staging.h - the read buffer: the next waiting sequences own staging before they own blocks
 * (AttentionStore, section 3.2.1); private to src/engine.
 *
 *   WAIT:  looked up --> planned --> reads parked in staging memory --> placed: WAIT -> RESTORE
 *
 * At most STAGING_SEQS sequences, the best ranks among those that wait for a place, have a restore
 * while they wait.  It reads what its new tokens will not hide (policy/read_buffer.h), as far as
 * restores with a place leave staging memory and the disk.  Where the store has copies in DRAM,
 * these are the read buffer, and nothing is staged.
 *
 * A staged restore is ended, and its memory and its pins are given back, where
 *  - its sequence ends, or is no longer among the next ones,
 *  - a chunk that it found was erased: in the next step, so that the erasure ends,
 *  - the sequence gets its place, and a chunk was condemned meanwhile, more of its chunks are
 *    stored, the KV pool holds another number of them than was planned with, or too little was read
 *    for its plan to be the faster one.  Then it restores as if nothing had been staged.
 *
 * The plan of a staged restore counts reads for nothing, as they are made while the sequence waits
 * anyway.  So it takes what computes least: keys and values. */
#ifndef ENGINE_STAGING_H
#define ENGINE_STAGING_H

#include "engine/restore_phase.h"

enum { STAGING_SEQS = 2 };

/* Whether s, which waits, may be given staging now: it was not decided yet, was never admitted,
 * and sees all of its tokens. */
bool staging_may_begin(const struct restore_phase *g, const struct seq *s);
/* Decides that nothing is staged for s, whose beginning another sequence is about to have. */
void staging_leave_out(struct seq *s);
/* Looks up what the store has of s behind the first n_known chunks, which the KV pool holds. */
void staging_begin(struct restore_phase *g, struct seq *s, int n_known);
/* Goes on: plans and begins to read once it is looked up; ends it where a chunk was erased.
 * beside_decodes: others will decode when s has its place. */
void staging_step(struct restore_phase *g, struct seq *s, bool beside_decodes);

/* s has its place and n_done tokens in the cache: whether the restore that it has can go on. */
bool staging_is_usable(const struct restore_phase *g, struct seq *s);
/* Gives back what s was staged, if anything. It may be staged again. */
void staging_end(struct restore_phase *g, struct seq *s);

#endif
