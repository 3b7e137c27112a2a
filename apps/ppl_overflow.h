/* ppl_overflow.h - perplexity of a text that is longer than the context, for three ways to overflow
 * (AttentionStore's Table 1). The text is one context, truncated by store/truncation.h.
 *
 *   decoupled   each token is computed once; at a step K before RoPE is rotated to its new position.
 *               The engine does this.
 *   recompute   at a step all tokens in view are computed again, as a prompt of their own
 *   stale       as decoupled, but K keeps the rotation of its old position: the fault that
 *               saving K after RoPE would have
 *
 * All tokens from the context's C-th on are scored. */
#ifndef APPS_PPL_OVERFLOW_H
#define APPS_PPL_OVERFLOW_H

#include "restore/kvcache.h"
#include "model/model.h"
#include "store/truncation.h"

enum ppl_overflow_how { PPL_DECOUPLED, PPL_RECOMPUTE, PPL_STALE };

struct ppl_overflow {
    const struct model *model;
    struct model_work *work;
    struct stream *stream;
    const struct kv_pool *pool;
    const struct kv_table *table; /* has blocks for truncation.context positions */
    struct truncation truncation;
    enum ppl_overflow_how how;
    /* Scores rows of the last layer's output; next[i] is the token after row i. */
    int (*score)(void *arg, struct mat x, const int32_t *next, int n);
    /* Called now and then, when tokens [0, n) are computed. */
    void (*progress)(void *arg, int64_t n);
    void *arg;
};

/* Returns 0 if a model's context can overflow in these ways; otherwise ERR_UNSUPPORTED, with the
 * reason in the message. */
int ppl_overflow_check(const struct model *m, struct err *err);

/* Computes ids[0, n), where n exceeds the context. *n_steps: number of stairs after the first. */
int ppl_overflow_run(const struct ppl_overflow *o, const int32_t *ids, int64_t n,
                     int *n_steps, struct err *err);

#endif
