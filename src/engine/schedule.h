/* schedule.h - the sequences of an engine, what one step gives each of them, and which state the
 * waiting ones announce to the store and the KV pool; private to src/engine.
 *
 * The decision is engine/sched.h's.  This module describes the sequences to it and carries the
 * decision out: it ends, preempts and admits sequences, and takes blocks for decodes. */
#ifndef ENGINE_SCHEDULE_H
#define ENGINE_SCHEDULE_H

#include "engine/restoring.h"
#include "engine/sched.h"
#include "engine/seq.h"

struct schedule_opts {
    int max_seqs;         /* sequences that run at once */
    int step_rows;        /* token budget of a step */
    bool no_limit_beside; /* prompts beside decodes may fill the step */
    int64_t age_ns;       /* waiting time that is worth one step of priority */
};

struct schedule {
    struct schedule_opts o;
    struct seq_shared *shared;
    struct restore_phase *restores;
    struct seq **seqs; /* in the order of arrival */
    int n_seqs, cap_seqs;
    int n_live; /* seqs[0, n_live) had not ended when the step began */
    /* The scheduler's view, filled anew in every step. Each array has cap_seqs entries. */
    struct sched_req *view;
    struct lead_request *prompt;
    struct sched_choice *choice;
    int *order;
    struct beside_speed speed; /* measured speed of the engine's steps */
    int rows_beside;           /* prefill rows that a step with decodes may have */
};

void schedule_init(struct schedule *c, const struct schedule_opts *o, struct seq_shared *sh,
                   struct restore_phase *restores);
void schedule_deinit(struct schedule *c);

void schedule_add(struct schedule *c, struct seq *s);
void schedule_remove(struct schedule *c, struct seq *s);
struct seq_list schedule_list(const struct schedule *c);

/* Begins a step: ends, preempts and admits sequences, and sets each one's share of rows
 * (seq.rows). */
void schedule_step(struct schedule *c);
/* Returns the i-th of the n_live sequences, best rank first. */
static inline struct seq *schedule_ranked(const struct schedule *c, int i)
{
    return c->seqs[c->order[i]];
}

/* --- what waiting sequences need is announced ------------------------------------------------- */

/* A sequence is announced while it waits, until it has taken or restored all existing state of its
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
