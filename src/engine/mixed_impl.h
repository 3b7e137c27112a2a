/* mixed_impl.h - declarations that the files of the hybrid cache share; private to them.
 *
 *   mixed.c        memory, mini-batches, the functions that a pass calls
 *   mixed_layer.c  a mini-batch's way through a layer
 *   mixed_costs.c  measures the costs of a layer */
#ifndef ENGINE_MIXED_IMPL_H
#define ENGINE_MIXED_IMPL_H

#include "engine/mixed.h"
#include "engine/step.h"

#define TRY(call)                                                                          \
    do {                                                                                   \
        int rc_ = (call);                                                                  \
        if (rc_ != 0)                                                                      \
            return rc_;                                                                    \
    } while (0)

static inline bool is_act(enum places_class c)
{
    return c == PLACES_ACT_DEVICE || c == PLACES_ACT_HOST;
}

/* Returns the class of the block at index `block` of a sequence's block table. */
static inline enum places_class class_at(const struct mixed *x, const struct seq *s,
                                         int block)
{
    return places_class_of(&x->places, s->table.blocks[block]);
}

/* Returns whether the step computes the last row of a block. */
static inline bool is_finished(const struct seq *s, int block)
{
    return s->n_done + s->n_rows >= (block + 1) * KV_BLOCK_TOKENS;
}

/* Queues the load of a mini-batch's host blocks into a buffer, behind the last operation that uses
 * the buffer. */
int mixed_load(struct mixed *x, const struct mixed_mini *m, int layer, int buffer);
/* Queues the load of the next mini-batch: of this layer, or the first one of the next layer. */
int mixed_load_next(struct mixed *x, int layer, int buffer);
/* Sets the block tables of a mini-batch for a layer. */
void mixed_set_tables(struct mixed *x, const struct mixed_mini *m, int layer, int buffer);
/* Projects all ACT blocks of a mini-batch into scratch blocks. */
int mixed_project(struct mixed *x, const struct mixed_mini *m, int layer, int buffer);
/* Projects acts[at .. at + n), whose rows are staged. n is at most project_blocks. */
int mixed_project_some(struct mixed *x, const struct mixed_act *acts, int layer, int buffer,
                       int at, int n);
/* Takes the layer's results to the places of their blocks. */
int mixed_store(struct mixed *x, const struct mixed_mini *m, int layer);

#endif
