/* stairs.h - how a truncated sequence goes from one stair to the next; private to src/engine.
 *
 * The tokens of a truncated context are computed in stairs (store/truncation.h). At the end of
 * a stair the sequence gives up its place and waits until its saves are durable. Then it is
 * admitted with the view of the next stair: the tokens that it still sees come back from the
 * store at their new positions, like any saved context. No state on the device is rotated to a
 * new position.
 *
 *   prefill, decode .. end of a stair --> WAIT (saves settle) --> stairs_choose --> RESTORE --> ..
 *
 * A sequence that begins with more tokens than the window holds chooses the last stair whose
 * moved tokens the device or the store has. If there is none, it begins with the first stair and
 * replays all others. If state turns out to be missing or damaged, it chooses an earlier stair
 * (seq_retry). A stair that was reached and then lost is replayed with the store a few times at
 * most, and not at all if the sequence's saving has ended. Then it is replayed without the store,
 * as below. Where that is impossible, the sequence fails with the reason.
 *
 * A sequence waits for a store that does not answer as long as that is cheaper than a replay
 * (restore/stall.h). Then it begins with the first stair and carries the state of its view in
 * memory (carry.h) until it ends. It asks the store for nothing any more, so one replay is enough.
 * One sequence at a time carries; others wait until it has ended. The same replay is chosen if the
 * plan predicts that reading takes longer.
 *
 * If the store lacks the last view of a request, the request tries that view once with the help of
 * the remote, which then sends this view alone. Otherwise it would fetch all stairs in turn.
 *
 * The chunks that a stair has dropped stay pinned until the stair's first chunk is durable. Then
 * they become the store's first victims. */
#ifndef ENGINE_STAIRS_H
#define ENGINE_STAIRS_H

#include "engine/seq.h"

/* Called by seq_create and seq_destroy. stairs_init sets the view. */
void stairs_init(struct seq *s);
void stairs_deinit(struct seq *s);

/* Sets the view anew. Call when s has left its place and waits, and its chain is complete. n_done
 * is the value that s->n_done had in its place. */
void stairs_left(struct seq *s, int n_done);
/* Returns whether s must choose its view and its saves have not settled yet. */
bool stairs_must_wait(const struct seq *s);
/* WAIT: returns the cut of the view that s has chosen. Before it chooses, returns the cut of its
 * preferred view: the one of its last token. */
int stairs_next_cut(const struct seq *s);
/* WAIT, once stairs_must_wait is false: chooses the view if s must choose. s may be DONE
 * afterwards. */
void stairs_choose(struct seq *s);

/* Returns whether s may begin to replay its stairs without the store. */
bool stairs_may_replay(const struct seq *s);
/* Returns whether the moved tokens of the view of s are missing on the device, so that only the
 * store or a replay can bring them. */
bool stairs_need_replay(const struct seq *s);
/* Returns the time to compute all tokens up to a position of the view of s, stair by stair. */
double stairs_replay_s(const struct seq *s, int position);
/* RESTORE or WAIT: s begins to carry. The caller must then move s to WAIT, where s chooses its
 * first stair. Returns false if s may not carry, or if there is no memory. */
bool stairs_replay(struct seq *s);
/* Frees the carried state, so that another sequence may carry. */
void stairs_carry_no_more(struct seq *s);
/* WAIT: s begins to carry if the saver does not answer. */
void stairs_judge_saves(struct seq *s);
/* WAIT -> PREFILL, or DONE with an error: writes the carried rows into the blocks of s. */
void stairs_take_up(struct seq *s);
/* Returns whether s needs the store at the end of its stair. If so, the saver must not stop saving
 * s for lack of memory. */
static inline bool stairs_need_store(const struct seq *s)
{
    return s->view.truncation.context > 0 && !carry_is_on(&s->stairs.carry);
}

/* Call when all moved tokens of the view are back and the stair goes on. */
void stairs_began(struct seq *s);
/* Call when the tokens before index seq_at(s) are done, the last n_rows of them in this step. */
void stairs_advanced(struct seq *s);

#endif
