/* enginetest.h - shared by the tests of engine and state: stacks of small models with made-up
 * platforms, and one request run to its end. */
#ifndef TESTS_ENGINE_ENGINETEST_H
#define TESTS_ENGINE_ENGINETEST_H

#include "api/stack.h"
#include "sim/io_sim.h"

enum { ET_MAX_GENERATED = 800 };

/* Opens a stack; a failure fails the test with its message.  Unless the options say otherwise,
 * no tokens are guessed, and the model is synth:tiny-mha in f32 with one thread and 1024 tokens
 * of context, on a platform on which restoring always pays. */
void et_open(struct stack *k, const struct stack_opts *o);
/* Does the same. Returns the error of opening instead of failing the test. */
int et_try_open(struct stack *k, const struct stack_opts *o, struct err *err);
/* The device options of the next stack whose own options have none. A test that sets a field resets
 * it to NULL afterwards. */
extern struct device_opts et_device;
/* Fills a platform with costs per token and layer in seconds; bytes_per_s is the speed of its one
 * tier. */
void et_platform(struct platform *p, double c_tok, double c_h, double c_kv,
                 double bytes_per_s);

/* Writes r R, h H and k K, with final zero. */
void et_letters(char *plan, int r, int h, int k);

/* Makes a simulated disk on which stores lie in "/store". */
struct io *et_disk(uint64_t seed, uint64_t capacity_bytes);
extern const char *const et_dirs[2]; /* "/store/a", "/store/b" */

/* Writes n ids below 480 that depend on the seed only, and not on the model. */
void et_prompt(int32_t *out, int n, uint64_t seed);
/* The same, of ids that the model has. */
void et_model_prompt(const struct stack *k, int32_t *out, int n, uint64_t seed);
/* Writes ids below 123, for the models of tests/model/golden/families. */
void et_small_prompt(int32_t *out, int n, uint64_t seed);

/* A request. All zero: it chooses tokens greedily, saves "none", and is planned by "auto". */
struct et_ask {
    const int32_t *prompt;
    int n_prompt, max_tokens;
    const char *save, *plan, *salt;
    float temperature;
    uint64_t seed;
    bool restore_first;
    struct truncation truncation;
};

struct et_run {
    enum finish finish;
    uint64_t digest; /* digest of the logits */
    int32_t tokens[ET_MAX_GENERATED];
    int n_tokens, n_cached, n_device;
    int64_t committed;
    enum save_end save_end;
    struct restore_result restore;
    struct plan plan;
    enum surprise surprise;
    enum stall_end stall;
    int64_t truncated_tokens, recomputed_tokens;
    int n_stairs;
    char miss[200];
    struct err err;
};

/* Returns the request of an ask, with `save` filled in, for et_submit or service_submit. */
struct request *et_request(const struct stack *k, const struct et_ask *a);
/* Gives a request to the engine. From now on it belongs to the sequence; after an error it is
 * freed. */
int et_submit(struct engine *e, struct request *q, struct seq **out, struct err *err);
/* Sets the plan of a sequence; NULL: auto. */
void et_set_plan(struct seq *s, const char *plan);
/* Adds the request of an ask. An error fails the test. */
struct seq *et_add(const struct stack *k, const struct et_ask *a);
/* Adds an ask whose prompt is n ids of seed 1, for at most 4 tokens. */
struct seq *et_add_prompt(const struct stack *k, const struct et_ask *ask, int n);
/* Flushes, copies the outcome of a sequence to *out, and removes the sequence. */
void et_take(struct stack *k, struct seq *s, struct et_run *out);
/* Adds, runs, flushes and removes a request. Returns the engine's own code and fails no test. */
int et_run(struct stack *k, const struct et_ask *a, struct et_run *out);
/* Fails the test unless the request ends well. */
struct et_run et_must_run(struct stack *k, const struct et_ask *a);
/* Fails the test if tokens or logits differ. */
void et_same(const struct et_run *a, const struct et_run *b, const char *what);

#endif
