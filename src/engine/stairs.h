/* stairs.h - how a truncated sequence goes from one stair to the next; private to src/engine.
 *
 * The tokens of a truncated context are computed in stairs (policy/truncation.h).  At the end of a
 * stair the sequence gives its place back and waits until what it has saved is durable.  Then it is
 * admitted with the view of the next stair: the tokens that it still sees come back from the store
 * at their new positions, as any saved context does.  Nothing is rotated back.
 *
 *   prefill, decode ... end of a stair --> WAIT (saves settle) --> stairs_choose --> RESTORE --> ...
 *
 * A sequence that begins with more tokens than the window holds chooses the last stair whose moved
 * tokens the device or the store have.  Where none has, it begins with the first stair, and replays
 * all others.  State that turns out to be missing or damaged makes it choose an earlier stair
 * (seq_retry).  A stair that was reached and is lost is replayed a few times at most; where the
 * sequence's saving has ended it fails with the reason, since no replay would help.
 *
 * The chunks that a stair has dropped stay pinned until the stair's first chunk is durable.  Then
 * they become the store's first victims. */
#ifndef ENGINE_STAIRS_H
#define ENGINE_STAIRS_H

#include "engine/seq.h"

/* In seq_create and seq_destroy. The view is set. */
void stairs_init(struct seq *s);
void stairs_deinit(struct seq *s);

/* s has left its place and waits; its chain is complete. The view is set anew. */
void stairs_left(struct seq *s);
/* Whether s must choose its view, and what may be in it has not settled yet. */
bool stairs_must_wait(const struct seq *s);
/* WAIT: the cut of the view that s has chosen. Until then, of the one that it would like
 * best: that of its last token. */
int stairs_next_cut(const struct seq *s);
/* WAIT, once stairs_must_wait is false: chooses the view, where it must. s may be
 * DONE afterwards. */
void stairs_choose(struct seq *s);
/* All moved tokens of the view are back, and the stair goes on. */
void stairs_began(struct seq *s);
/* Tokens before seq_at(s) are done. */
void stairs_advanced(struct seq *s);

#endif
