/* hybrid_model.h - a model of the costs of a batch with streamed weights, on a GPU whose KV caches
 * lie in host memory. Nothing is run: `bench hybrid` models HybridServe's figures with it.
 *
 * Link and compute overlap without loss in each layer. Compute is products and, for attention,
 * reading K and V once. Prefill computes all prompts while the weights pass once. */
#ifndef BENCH_HYBRID_MODEL_H
#define BENCH_HYBRID_MODEL_H

#include "base/err.h"
#include "model/config.h"
#include "engine/hybrid.h"
#include "restore/platform.h"

/* How the contexts of a batch are kept. */
enum hybrid_arm {
    HYBRID_KV,     /* keys and values only */
    HYBRID_ACT,    /* activations only */
    HYBRID_TOKENS, /* half of each context as token ids, the rest as keys and values */
    HYBRID_HALF,   /* as many ACT as KV blocks */
    HYBRID_PAPER,  /* the paper's Algorithm 1 */
    HYBRID_AUTO,   /* hybrid_choose */
    HYBRID_ARMS
};
extern const char *const hybrid_arm_names[HYBRID_ARMS];

struct hybrid_setup {
    struct model_config shape;
    /* a built-in platform, which describes a machine and a model's shape */
    struct platform p;
    double x; /* d * bandwidth / (FLOP/s); 0: the platform's own value */
    double device_bytes, host_bytes;
    int batch, prompt, tokens; /* number of requests; tokens of a prompt and of an answer */
};

/* One step of the batch, at one length of the contexts. */
struct hybrid_step {
    struct hybrid_split split; /* split of one layer */
    double step_s;             /* time of a step, all layers together */
    /* bytes of the caches that cross the link, over all layers */
    double link_bytes;
    /* share of the step's time in which the compute lane works */
    double compute_share;
};

/* Looks up shape and platform by name. The caller sets memory and lengths. */
int hybrid_setup_init(struct hybrid_setup *s, const char *shape, const char *platform,
                      struct err *err);

/* Models a step with contexts of n_tokens.  Returns false if the caches do not fit. */
bool hybrid_step(const struct hybrid_setup *s, enum hybrid_arm arm, int n_tokens,
                 struct hybrid_step *out);

/* Returns generated tokens per second, including prefill; 0 if the caches do not fit. */
double hybrid_throughput(const struct hybrid_setup *s, enum hybrid_arm arm);

/* Returns the setup's x. */
double hybrid_x(const struct hybrid_setup *s);

#endif
