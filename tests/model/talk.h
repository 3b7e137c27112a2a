/* talk.h - one sequence on one model, for tests: ids in, logits out.  Failures end the test. */
#ifndef TESTS_MODEL_TALK_H
#define TESTS_MODEL_TALK_H

#include "kvcache/kvcache.h"
#include "model/model.h"

enum { TALK_MAX_ROWS = 128, TALK_MAX_TOKENS = 1024 };

struct talk {
    struct pool *pool;
    struct device *dev;
    struct stream *s;
    struct model *m;
    struct model_work *work;
    struct kv_pool *kv;
    const struct kv_layer *layers;
    struct kv_table table;
    int64_t n_tokens; /* fed so far */
};

/* `device`: "ref" or "cpu"; `dtype`: the state's, NULL for the checkpoint's. */
void talk_open(struct talk *t, const char *source, const char *device, const char *dtype,
               int n_threads);
/* On the CPU, with matrices held so (model_opts.weights). */
void talk_open_held(struct talk *t, const char *source, const char *dtype,
                    const char *weights);
/* On n_ranks devices of this name, with these options; dev is set here. */
void talk_open_as(struct talk *t, const char *source, const char *device, int n_ranks,
                  int n_threads, const struct model_opts *opts);
void talk_close(struct talk *t);
void talk_forget(struct talk *t); /* back to an empty sequence */

/* Feeds n <= TALK_MAX_ROWS ids; logits [n][vocab] (may be NULL). */
void talk_feed(struct talk *t, const int32_t *ids, int n, float *logits);
void talk_feed_tapped(struct talk *t, const int32_t *ids, int n, float *logits,
                      const struct model_tap *tap);
/* The same, returning what the forward pass returns. */
int talk_try(struct talk *t, const int32_t *ids, int n, float *logits,
             const struct model_tap *tap);

int32_t talk_best(const struct talk *t, const float *logits); /* lowest id among equals */

#endif
