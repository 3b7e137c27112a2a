/* saver.h - two-stage saving (HCache §4.2.2): snapshot -> flush -> commit.
 *
 * Stage one runs on the compute thread: the rows that a layer just produced are copied into the
 * sequence's chunk buffers (save_rows), nothing else.  When 64 tokens have passed through every
 * layer the chunk is full and goes to the writer thread (save_advance), stage two: it appends full
 * chunks from all sequences to the store and commits when it has caught up or enough has gathered.
 *
 *   model_layer --tap--> save_rows   (memcpy)          compute thread
 *   last layer  -------> save_advance -> [queue] --> store_append --> store_commit   writer
 *
 * Memory is bounded by the chunk buffers, reserved at creation: enough for a full batch of every
 * sequence, so that where none is free some are on their way to the store.  Then the saver waits or
 * sheds, as the caller says: prefill may wait, decode must not.  A sequence that was shed, or met
 * a fault, is not saved any further (a chain may have no holes); what was committed stays.  The
 * first fault of the store is reported once, by `warn`, and ends saving for all.
 *
 * Threads: saver_* and save_* belong to the compute thread; the writer is the saver's own. */
#ifndef STATE_SAVER_H
#define STATE_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"
#include "store/store.h"

/* Which kinds are saved: bit STORE_HIDDEN and bit STORE_KV per layer; 0: the layer is not saved. */
struct save_policy {
    uint8_t kinds[STORE_MAX_LAYERS];
};

#define SAVE_HIDDEN (1u << STORE_HIDDEN)
#define SAVE_KV     (1u << STORE_KV)

struct saver;
struct save_seq;

struct saver_opts {
    struct store *store;
    const struct model *model;
    struct sha256 fingerprint;
    size_t buffer_bytes; /* bound on chunk buffers; raised to what one full batch needs */
    int max_batch_rows;  /* rows of one forward pass at most */
    int max_seqs;        /* sequences that are saved at once, at most */
    void (*warn)(void *arg, const char *text); /* called once, on the writer's thread */
    void *warn_arg;
};

int saver_create(const struct saver_opts *o, struct saver **out, struct err *err);
/* Writes what is queued, commits, and ends the thread. Sequences must have been closed. */
void saver_destroy(struct saver *s);
size_t saver_bytes(const struct saver *s); /* reserved, for the table printed at start */

/* Begins saving a sequence from first_token (a multiple of 64) on.  What is before is in the store
 * already (committed tokens count from there); `parent` is the key of its last chunk, or the root.
 * NULL where there is nothing to be saved: every function below takes that for a sequence that is
 * not saved. */
struct save_seq *save_open(struct saver *s, const struct sha256 *parent,
                           const struct save_policy *policy, int64_t first_token);
/* What has not become a full chunk is dropped. Chunks in the queue are still written. */
void save_close(struct save_seq *q);

/* What to do where no buffer is free: */
enum save_wait {
    SAVE_TRY,  /* nothing: the caller comes back later */
    SAVE_SHED, /* save this sequence no further: what decode does, since it must not wait */
    SAVE_WAIT, /* wait for the writer: what prefill does while nothing decodes beside it */
};
/* Room for positions [pos, pos + n): before the forward pass that produces them.  False only for
 * SAVE_TRY where there is none yet. */
bool save_reserve(struct save_seq *q, int64_t pos, int n, enum save_wait how);
/* The rows of layer l for positions [pos, pos + hidden.rows). */
void save_rows(struct save_seq *q, int l, int64_t pos, struct mat hidden,
               struct mat kv_rows);
/* All layers have positions up to n_tokens; tokens[0..n_tokens) is the sequence so far. */
void save_advance(struct save_seq *q, const int32_t *tokens, int64_t n_tokens);

/* Tokens that are durable: they survive a crash from now on. Any thread. */
int64_t save_committed_tokens(const struct save_seq *q);
bool save_is_shed(const struct save_seq *q);

/* The flush barrier: returns when all that was handed over is durable, or failed (its code). */
int saver_flush(struct saver *s, struct err *err);

#endif
