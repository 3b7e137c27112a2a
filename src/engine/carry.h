/* carry.h - the state of a view in memory, for a sequence that replays its stairs without the
 * store; private to src/engine.
 *
 * A truncated sequence normally gets the tokens of its next view back from the store.  Where the
 * store does not answer, or where reading takes longer than computing all stairs again, it carries
 * them itself: K before RoPE and V of all rows that its view has, as the saver gets them.
 *
 *     rows    0 .. K | K .............. C        of the view with this cut
 *     next    0 .. K | moved from K + S .. C     carry_move: the S rows behind K are dropped
 *
 * What is carried goes into the cache as rows of a restore do (model_kv_fill), so the bits are the
 * same.  It is for devices with unified memory and one rank: others wait for their reads.
 *
 * Belongs to its sequence. */
#ifndef ENGINE_CARRY_H
#define ENGINE_CARRY_H

#include "kvcache/kvcache.h"
#include "model/model.h"
#include "policy/truncation.h"

struct carry {
    uint8_t *rows; /* [n_layers][C][2 * kv_dim] T; NULL: nothing is carried */
    size_t row_bytes;
    int max_rows; /* C */
    int cut;      /* of the view that it is of */
    int n;        /* rows [0, n) of each layer are there */
};

/* Whether sequences on this device may carry. */
bool carry_may(const struct device *d);
/* Begins with no rows.  Returns false where there is no memory for them. */
bool carry_begin(struct carry *c, const struct model *m, const struct truncation *t);
/* Also of zeroes. */
void carry_end(struct carry *c);
static inline bool carry_is_on(const struct carry *c)
{
    return c->rows != NULL;
}

/* Takes rows of a layer that passes, from a position on. In the order of s. */
int carry_take(struct carry *c, struct stream *s, int layer, int position, struct mat rows);
/* Goes on to the view with the next cut: all rows of the present one are there. */
void carry_move(struct carry *c, const struct truncation *t, int n_layers);
/* Puts all rows into the blocks of a table, which has room for them. */
int carry_fill(const struct carry *c, const struct model *m, struct stream *s,
               struct kv_pool *pool, const struct kv_table *table);

#endif
