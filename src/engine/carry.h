/* carry.h - the state of a view in memory, for a sequence that replays its stairs without the
 * store; private to src/engine.
 *
 * A truncated sequence normally reads the moved tokens of its next view from the store. If the
 * store does not answer, or if reading takes longer than computing all stairs again, the sequence
 * keeps them in memory: K before RoPE and V of all rows in its view, in the saver's format.
 *
 *     rows    0 .. K | K .............. C        rows of the view with this cut
 *     next    0 .. K | moved from K + S .. C     carry_move: the S rows behind K are dropped
 *
 * Carried rows enter the cache as restored rows do (model_kv_fill), so the bits are the same.
 * Only devices with unified memory and one rank carry. Others wait for their reads.
 *
 * Belongs to its sequence. */
#ifndef ENGINE_CARRY_H
#define ENGINE_CARRY_H

#include "restore/kvcache.h"
#include "model/model.h"
#include "store/truncation.h"

struct carry {
    uint8_t *rows; /* [n_layers][C][2 * kv_dim] T; NULL: nothing is carried */
    size_t row_bytes;
    int max_rows; /* most rows of a layer: the window C */
    /* Cut of the carried view: the number of dropped tokens (store/truncation.h). */
    int cut;
    int n; /* number of rows carried so far: rows [0, n) of each layer */
};

/* Returns whether sequences on this device may carry their view in memory. */
bool carry_may(const struct device *d);
/* Allocates memory for the rows of a view and begins with no rows. Returns false if there is no
 * memory. */
bool carry_begin(struct carry *c, const struct model *m, const struct truncation *t);
/* Frees the rows. A zeroed struct is allowed. */
void carry_end(struct carry *c);
static inline bool carry_is_on(const struct carry *c)
{
    return c->rows != NULL;
}

/* Copies a layer's K and V rows on stream s. The first row belongs to `position` of the view. */
int carry_take(struct carry *c, struct stream *s, int layer, int position, struct mat rows);
/* Goes on to the view of the next stair: drops the S rows behind the first K rows. All rows of the
 * present view must be there. */
void carry_move(struct carry *c, const struct truncation *t, int n_layers);
/* Writes all rows into the blocks of a table, which has room for them. */
int carry_fill(const struct carry *c, const struct model *m, struct stream *s,
               struct kv_pool *pool, const struct kv_table *table);

#endif
