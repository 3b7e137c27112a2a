/* experts.h - the MLP of a layer with experts.  Private to src/model.
 *
 * A router gives each row a number for each expert, and the row passes through the experts with the
 * largest numbers.  The row's result is the sum of their results, each times its weight.
 *
 * A row's result does not depend on the other rows: the numbers and the products are those of
 * ops.h, the choice and the weights are a function of the row's numbers, and experts are added in
 * ascending order. */
#ifndef MODEL_EXPERTS_H
#define MODEL_EXPERTS_H

#include "model/work.h"

/* Chooses c->n_experts_used of n_experts by their numbers, the largest first; of equal numbers the
 * lower index is taken first, and a NaN is smaller than all numbers.  With c->router_sigmoid the
 * sigmoids of the numbers decide, plus the bias [n_experts], among the experts of the chosen
 * groups.  ids gets the chosen experts in ascending order, and weights their shares of the softmax
 * over all experts, or their sigmoids without the bias; divided by the sum of the chosen if
 * c->experts_normed, times c->experts_scale.  Pure; any thread. */
void experts_choose(const struct model_config *c, const float *numbers, const float *bias,
                    int32_t *ids, float *weights);

/* Sets out [n][d] f32 to the experts' results of normed [n][d], the layer's rows after their norm,
 * or to that of the one MLP of a layer without experts.
 * Works in a's matrices for rows and MLP.  The device's memory is the host's. */
int experts_mlp(const struct layer_call *c, const struct activations *a, struct mat normed,
                struct mat out);

#endif
