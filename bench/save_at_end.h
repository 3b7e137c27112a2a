/* save_at_end.h - measures the gain of saving state while jobs run, compared with saving it after
 * they have ended (AttentionStore, section 3.2.2, figure 20).
 *
 * A job is a batch of prompts and their answers. It ends when its state is durable, because only
 * then its memory may be used for other jobs. Three arms take turns, in another order each round:
 *
 *   none        nothing is saved
 *   overlapped  two-stage saving, as in a server
 *   at-end      stage one only while the job runs; the writer begins after the last answer's end */
#ifndef BENCH_SAVE_AT_END_H
#define BENCH_SAVE_AT_END_H

#include <stdbool.h>
#include <stdio.h>

#include "api/stack.h"

#define SAVE_AT_END_CSV_HEAD                                                               \
    "batch,prompt,answer,arm,rounds,job_ms,over_none_pct,of_at_end,shed\n"

struct save_at_end {
    struct stack *stack;
    const char *save; /* a value of bench save's --save */
    int n_seqs, n_prompt, n_answer, n_rounds;
    /* whether this is the first of several calls, which prints the headings */
    bool is_first;
    FILE *csv; /* NULL: no CSV is written */
};

/* Runs the rounds, and prints a row for each arm. */
int save_at_end_run(const struct save_at_end *o, struct err *err);

#endif
