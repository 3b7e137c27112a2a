/* weights_choose.h - the smallest format that a model's matrices may be held in.
 *
 * A format is good enough where the model's predictions hardly change: a short text is run through the
 * model once with f32 matrices and once in the format, and the mean divergence KL(f32 || format) of the
 * predictions is at most WEIGHTS_MAX_KL nats a token.
 *
 * The probe runs on the CPU and loads one layer at a time, so it takes less memory than the model. */
#ifndef MODEL_WEIGHTS_CHOOSE_H
#define MODEL_WEIGHTS_CHOOSE_H

#include "model/model.h"

#define WEIGHTS_MAX_KL 1e-3

enum { WEIGHTS_N_FORMATS = 2 };

struct weights_choice {
    enum weights_held held;
    int n_tried;
    struct {
        enum weights_held held;
        double kl;
    } tried[WEIGHTS_N_FORMATS]; /* from the smallest on */
};

/* m: source, cfg, dev and dtype are set; its weights are not loaded.  may_q8: the device computes with
 * q8. */
int weights_choose(const struct model *m, bool may_q8, struct weights_choice *out,
                   struct err *err);

const char *weights_held_name(enum weights_held h); /* "f32"; "checkpoint" */

#endif
