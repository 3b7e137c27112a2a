/* weights_choose.h - finds the smallest format in which a model's matrices may be held.
 *
 * A format is good enough if it hardly changes the model's predictions.  A short text is run
 * through the model once with f32 matrices and once in the format; the mean divergence KL(f32 ||
 * format) of the predictions must be at most WEIGHTS_MAX_KL nats per token.
 *
 * The probe runs on the CPU and loads one layer at a time: it needs less memory than the model. */
#ifndef MODEL_WEIGHTS_CHOOSE_H
#define MODEL_WEIGHTS_CHOOSE_H

#include "model/model.h"

#define WEIGHTS_MAX_KL 1e-3

/* Limit for 4 bits, which are tried only for files with 4-bit tensors. These are held exactly, so
 * the divergence comes from rounding activations to 8 bits (ops.h), as llama.cpp rounds them. */
#define WEIGHTS_MAX_KL_Q4 1e-2

enum { WEIGHTS_N_FORMATS = 3 };

/* The smallest format that is tried. */
enum weights_smallest { WEIGHTS_DOWN_TO_BF16, WEIGHTS_DOWN_TO_Q8, WEIGHTS_DOWN_TO_Q4 };

struct weights_choice {
    enum weights_held held;
    double perplexity; /* perplexity of the text with f32 matrices */
    int n_tried;
    struct {
        enum weights_held held;
        double kl, perplexity;
    } tried[WEIGHTS_N_FORMATS]; /* the smallest first */
};

/* Finds the smallest format that is good enough. m needs source, cfg, dev and dtype; its weights
 * are not loaded. */
int weights_choose(const struct model *m, enum weights_smallest smallest,
                   struct weights_choice *out, struct err *err);

/* Compares one format with f32. The result is out->tried[0], unless the format cannot hold the
 * numbers. */
int weights_compare(const struct model *m, enum weights_held held,
                    struct weights_choice *out, struct err *err);

/* Returns the largest divergence that a format may have. */
double weights_max_kl(enum weights_held h);

const char *weights_held_name(enum weights_held h); /* for example "f32" or "checkpoint" */

#endif
