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

/* Chooses the c->n_experts_used of n_experts with the largest numbers. Of equal numbers the lower
 * index comes first, and a NaN is smaller than all numbers.  With c->router_sigmoid the sigmoids of
 * the numbers plus the bias [n_experts] decide.  With groups only experts of the chosen groups
 * count.  ids gets the chosen experts in ascending order.  weights gets their shares of the softmax
 * over all experts, or their sigmoids without the bias. The shares are divided by their sum if
 * c->experts_normed, and multiplied by c->experts_scale.  Pure; any thread. */
void experts_choose(const struct model_config *c, const float *numbers, const float *bias,
                    int32_t *ids, float *weights);

/* Sets out [n][d] f32 to the experts' results of normed [n][d], the layer's rows after their norm.
 * In a layer without experts it gets the results of its one MLP.  Works in a's matrices for rows
 * and MLP.  The device's memory is the host's. */
int experts_mlp(const struct layer_call *c, const struct activations *a, struct mat normed,
                struct mat out);

#endif
