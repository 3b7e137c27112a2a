/* solo.h - one sequence on one model, for tests: ids in, logits out.  Failures end the test. */
#ifndef TESTS_MODEL_SOLO_H
#define TESTS_MODEL_SOLO_H

#include "restore/kvcache.h"
#include "model/model.h"

enum { SOLO_MAX_ROWS = 128, SOLO_MAX_TOKENS = 2048 };

struct solo {
    struct pool *pool;
    struct device *dev;
    struct stream *s;
    struct model *m;
    struct model_work *work;
    struct kv_pool *kv;
    const struct kv_layer *layers;
    struct kv_table table;
    int64_t n_tokens; /* tokens fed so far */
};

/* Opens `source` on one device, "ref" or "cpu". dtype is that of the state; NULL: the
 * checkpoint's. */
void solo_open(struct solo *t, const char *source, const char *device, const char *dtype,
               int n_threads);
/* Opens on the CPU, with matrices held as `weights` (model_opts.weights). */
void solo_open_held(struct solo *t, const char *source, const char *dtype,
                    const char *weights);
/* Opens on n_ranks devices of the kind `device`, with these options. The function itself sets
 * opts.dev. SOLO_OWN_MEMORY: on one, whose memory counts as its own. */
enum { SOLO_OWN_MEMORY = 0 };
void solo_open_as(struct solo *t, const char *source, const char *device, int n_ranks,
                  int n_threads, const struct model_opts *opts);
void solo_close(struct solo *t);
void solo_forget(struct solo *t); /* makes the sequence empty again */

/* Feeds n <= SOLO_MAX_ROWS ids; logits [n][vocab] (may be NULL). */
void solo_feed(struct solo *t, const int32_t *ids, int n, float *logits);
void solo_feed_tapped(struct solo *t, const int32_t *ids, int n, float *logits,
                      const struct model_tap *tap);
/* Feeds the ids like solo_feed_tapped, and returns the forward pass's code. */
int solo_try(struct solo *t, const int32_t *ids, int n, float *logits,
             const struct model_tap *tap);

/* the id with the largest logit, the lowest of several */
int32_t solo_best(const struct solo *t, const float *logits);

#endif
