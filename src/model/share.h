/* share.h - what a rank of a device group holds of a model: tensor parallelism over heads and the
 * MLP's width, as Megatron cuts it; and on which stage: pipeline parallelism over layers.  Private
 * to src/model, but for share_check.
 *
 *   wq, wkv, w_up and their biases   rows: a run of heads, of K heads, of V heads, of gate, of up
 *   output head and its bias         rows: a run of the vocabulary, where that can be divided and the head is no
 *                                    table of embeddings
 *   wo, w_down                       columns, in the same runs: each rank's product is a summand
 *   bo, b_down                       rank 0 alone: they are added once
 *   all others                       whole on every rank: norms, tables
 *
 *   layers                           runs of them, a run a stage
 *   head and final norm              the last stage
 *   tables of embeddings             the first; where the head serves as one, the last (model_embed)
 *
 * Pure. */
#ifndef MODEL_SHARE_H
#define MODEL_SHARE_H

#include "model/config.h"
#include "model/weights_names.h"

/* ERR_UNSUPPORTED, saying what cannot be cut, where the ranks' shares would not be equal,
 * or a stage would have no layer. */
int share_check(const struct model_config *c, int n_ranks, int n_stages, bool q8,
                struct err *err);

/* The stage that holds a slot; layer: of those in layers. */
int share_stage(const struct model_config *c, enum slot s, int layer, int n_stages);

/* Whether ranks have a run of the vocabulary each. */
bool share_cuts_head(const struct model_config *c, int n_ranks);

/* Rows and columns of a slot on one rank. */
int64_t share_rows(const struct model_config *c, enum slot s, int n_ranks);
int64_t share_cols(const struct model_config *c, enum slot s, int n_ranks);

/* Whether a rank has none of a slot: zeros stand there. */
bool share_is_empty(enum slot s, int rank, int n_ranks);

/* The next run of a slot's rows [*row, end) that a rank holds: from *row on, *n of them, which
 * are its own rows from *own_row on.  False: there is none. */
bool share_next(const struct model_config *c, enum slot s, int rank, int n_ranks,
                int64_t *row, int64_t end, int64_t *own_row, int64_t *n);

#endif
