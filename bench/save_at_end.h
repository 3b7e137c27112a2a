/* save_at_end.h - measures the gain of saving state while jobs run, against saving it after they
 * have ended (AttentionStore, section 3.2.2, figure 20).
 *
 * A job is a batch of prompts and their answers.  It ends when its state is durable, because only
 * then its memory may be used for others.  Three arms take turns, in another order each round:
 *
 *   none        nothing is saved
 *   overlapped  two-stage saving, as in a server
 *   at-end      only stage one while the job runs; the writer begins when the last answer has ended
 */
#ifndef BENCH_SAVE_AT_END_H
#define BENCH_SAVE_AT_END_H

#include <stdbool.h>
#include <stdio.h>

#include "service/stack.h"

#define SAVE_AT_END_CSV_HEAD                                                               \
    "batch,prompt,answer,arm,rounds,job_ms,over_none_pct,of_at_end,shed\n"

struct save_at_end {
    struct stack *stack;
    const char *save; /* as --save of bench save */
    int n_seqs, n_prompt, n_answer, n_rounds;
    bool is_first; /* the first of several: writes the headings */
    FILE *csv;     /* NULL: none */
};

/* Runs the rounds, and prints a row for each arm. */
int save_at_end_run(const struct save_at_end *o, struct err *err);

#endif
