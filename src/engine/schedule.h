/* schedule.h - the sequences of an engine, and what one step gives each of them; private to
 * src/engine.
 *
 * The decision is engine/sched.h's.  This module describes the sequences to it and carries the
 * decision out: it ends, preempts and admits sequences, and takes blocks for decodes. */
#ifndef ENGINE_SCHEDULE_H
#define ENGINE_SCHEDULE_H

#include "engine/restore_phase.h"
#include "engine/seq.h"
#include "engine/lead.h"
#include "engine/sched.h"

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
#endif
