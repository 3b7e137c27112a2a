/* share.h - the share of a model that each rank of a device group holds.  Tensor parallelism
 * divides the rows of matrices, that is the results of products; pipeline parallelism divides the
 * layers among stages. No sum is divided, so every number of ranks computes the same bits.
 * Private to src/model, except share_check.
 *
 *   wq, wkv, w_up and their biases   a run of heads, of K heads, of V heads, of gate, of up
 *   wo, w_down and their biases      a run of the hidden state's elements
 *   output head and its bias         a run of the vocabulary, if that can be divided and the head
 *                                    is not also the embedding table
 *   all others                       complete on every rank: norms, tables
 *   layers                           one run of layers per stage
 *   head and final norm              the last stage
 *   embedding tables                 the first stage; the last one if the head is also the table
 *                                    (model_embed)
 *
 * All functions are pure. */
#ifndef MODEL_SHARE_H
#define MODEL_SHARE_H

#include "model/config.h"
#include "model/weights_names.h"

/* Returns 0 if the model can be divided equally.  ERR_UNSUPPORTED, naming the part: the ranks'
 * shares would differ, or a stage would have no layer. */
int share_check(const struct model_config *c, int n_ranks, int n_stages, struct err *err);

/* Returns the stage that holds a slot; layer: for slots in layers. */
int share_stage(const struct model_config *c, enum slot s, int layer, int n_stages);

/* Returns whether each rank has a run of the vocabulary. */
bool share_cuts_head(const struct model_config *c, int n_ranks);

/* Returns the number of rows of a layer's slot on one rank. */
int64_t share_rows(const struct model_config *c, int layer, enum slot s, int n_ranks);

/* Finds the next run of a slot's rows in [*row, end) that a rank holds: *n rows from *row on, which
 * are the rank's own rows from *own_row on.  Returns false if there is none. */
bool share_next(const struct model_config *c, int layer, enum slot s, int rank, int n_ranks,
                int64_t *row, int64_t end, int64_t *own_row, int64_t *n);

#endif
