/* enginetest.h - what the tests of engine and state share: stacks of small models with made-up
 * platforms, and one request run to its end. */
#ifndef TESTS_ENGINE_ENGINETEST_H
#define TESTS_ENGINE_ENGINETEST_H

#include "service/stack.h"
#include "io/io_sim.h"

enum { ET_MAX_GENERATED = 800 };

/* Opens a stack; fails the test with the message where that does not work.  Unless the options give
 * more, the model is synth:tiny-mha in f32 with one thread and 1024 tokens of context, and the
 * platform is one on which restoring always pays. */
void et_open(struct stack *k, const struct stack_opts *o);
/* The same on a disk; returns the code. */
int et_try_open(struct stack *k, const struct stack_opts *o, struct err *err);
/* How the device of the next stack computes, where its options do not say. A test that sets a field
 * resets it to NULL. */
extern struct device_opts et_device;
/* Costs per token and layer, seconds; bytes_per_s of the one tier. */
void et_platform(struct platform *p, double c_tok, double c_h, double c_kv,
                 double bytes_per_s);

/* A simulated disk on which stores lie in "/store". */
struct io *et_disk(uint64_t seed, uint64_t capacity_bytes);
extern const char *const et_dirs[2]; /* "/store/a", "/store/b" */

/* n ids below 480, from a seed: the same for every model. */
void et_prompt(int32_t *out, int n, uint64_t seed);
/* The same below 123, for the models of tests/model/golden/families. */
void et_small_prompt(int32_t *out, int n, uint64_t seed);

/* Runs only the tests that the program's argument names, as a pattern; all without one. */
void et_only(int argc, char **argv);

/* What is asked for; zero: greedy, saved as "none", planned by "auto". */
struct et_ask {
    const int32_t *prompt;
    int n_prompt, max_tokens;
    const char *save, *plan, *salt;
    float temperature;
    uint64_t seed;
    bool restore_first, plan_strict;
    struct truncation truncation;
};

struct et_run {
    enum finish finish;
    uint64_t digest; /* of the logits */
    int32_t tokens[ET_MAX_GENERATED];
    int n_tokens, n_cached, n_device;
    int64_t committed;
    enum save_end save_end;
    struct restore_result restore;
    struct plan plan;
    enum surprise surprise;
    enum stall_end stall;
    struct outcome_truncation truncation;
    char miss[200];
    struct err err;
};

/* The request of an ask; `save` is filled. */
struct request et_request(const struct stack *k, const struct et_ask *a);
/* What became of a sequence, after a flush; then removes it. */
void et_take(struct stack *k, struct seq *s, struct et_run *out);
/* Adds, runs, flushes, removes. The engine's own code is returned and fails nothing. */
int et_run(struct stack *k, const struct et_ask *a, struct et_run *out);
/* Fails where tokens or logits differ. */
void et_same(const struct et_run *a, const struct et_run *b, const char *what);

#endif
