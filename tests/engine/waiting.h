/* waiting.h - shared by the tests of reading ahead: an engine with one place, a request that has
 * the place, and a waiting request whose prompt is stored. */
#ifndef TESTS_ENGINE_WAITING_H
#define TESTS_ENGINE_WAITING_H

#include "engine/seq.h"
#include "tests/engine/enginetest.h"

enum { WT_PROMPT = 500, WT_CHUNKS = 7, WT_OTHERS = 300 };

extern int32_t wt_prompt[WT_PROMPT], wt_others[WT_OTHERS];

/* Makes a disk on which the prompt's state is saved. *want gets the answer of 8 tokens. */
struct io *wt_disk(struct et_run *want);
/* Makes the platform predict that loading pays, and takes longer than computing a few new
 * tokens. */
void wt_slow_disk(struct stack *k);

struct seq *wt_add(struct stack *k, const int32_t *tokens, int n, int max_tokens);
void wt_step(struct stack *k);
/* Adds a request that keeps the only place until it is run to its end. */
struct seq *wt_occupy(struct stack *k);
/* Runs s to its end and removes it. */
void wt_run(struct stack *k, struct seq *s, struct et_run *out);

#endif
