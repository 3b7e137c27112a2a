/* life_world.h - the models and texts of seeded lives (life.h), and the states that forward passes
 * give these texts.  Lives only read them.  The KV blocks and the work memory belong to the life
 * that runs. */
#ifndef TESTS_RESTORE_LIFE_WORLD_H
#define TESTS_RESTORE_LIFE_WORLD_H

#include <stdint.h>

#include "sim/io_sim.h"
#include "restore/kvcache.h"
#include "model/model.h"
#include "store/chain.h"
#include "store/store.h"

enum {
    N_TEXTS = 3,
    N_SLOTS = 3, /* contexts that are restored or saved at the same time */
    MAX_ROWS = 128,
    MAX_LAYERS = 8,
    BLOCKS = 16, /* KV blocks of a context */
};

/* A text's tokens, and their state as a forward pass computes it. */
struct text {
    int32_t *tokens;
    int n;
    struct chain chain;
    uint8_t *rows[MAX_LAYERS][STORE_KINDS]; /* [n]: the rows that save_layer receives */
    uint8_t *want[MAX_LAYERS]; /* [n][2 * kv_dim]: the rows that kv_read returns */
};

struct world {
    struct device *dev;
    struct model *m;
    struct stream *stream;
    struct model_work *work;
    struct kv_pool *pool;
    struct kv_table table[N_SLOTS];
    struct sha256 fingerprint;
    struct text text[N_TEXTS];
    int32_t *pos;
    uint8_t *got;    /* room for one layer's rows, as kv_read returns them */
    struct io *full; /* a disk on which all texts are saved */
    bool is_split;   /* the device has memory of its own (life_device.h) */
    /* The rows of the batch being saved, for the current layer and the one before, as in
     * model_work. */
    uint8_t *batch[2][STORE_KINDS];
};

/* Computes the states of w's texts.  n: their lengths in tokens.  The first n_shared tokens of the
 * second text are those of the first.  n_ids: token ids are below 3 + n_ids. */
void world_make_texts(struct world *w, const int n[N_TEXTS], int n_shared, int n_ids);
/* Opens the model `source` with KV blocks for all slots, on a device with unified memory or, if
 * is_split, with memory of its own. A fault ends the process. */
void world_open(struct world *w, const char *source, int max_ctx, bool is_split);
void world_close(struct world *w);

/* Memory for the struct ragged that describes one sequence's rows. */
struct world_rows {
    struct ragged r;
    int32_t seq_row[2];
    const int32_t *tables[1];
};
/* Returns the description of rows [pos, pos + n) of the context in t. It points into b. */
const struct ragged *world_rows(const struct world *w, struct world_rows *b,
                                const struct kv_table *t, int pos, int n);

/* Ends the process with err's message unless rc is 0. */
void life_must(int rc, const struct err *err, const char *what);

#endif
