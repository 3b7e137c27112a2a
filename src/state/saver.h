/* saver.h - two-stage saving (HCache §4.2.2): snapshot -> flush -> commit.
 *
 * Stage one runs on the compute thread: what a layer just produced for the whole batch is copied
 * into the chunks of its sequences (save_layer), nothing else.  When 64 tokens have passed through
 * every layer a chunk is full and goes to the writer thread (save_advance), stage two: it appends
 * full chunks from all sequences to the store, and commits them together: when somebody waits for
 * it (a session goes idle, a mark is set, memory is waited for), when enough has gathered, or
 * SAVE_COMMIT_NS after the first.
 *
 *   model_pass  --tap--> save_layer   (memcpy)         compute thread
 *   last layer  -------> save_advance -> [queue] --> store_append --> store_commit   writer
 *
 * Memory is bounded, whatever the number of sequences: chunks that are being filled (the
 * *tails* of the living sequences) and chunks on their way to the store share
 * buffer_bytes.  Where none is left the saver waits or sheds, as the caller says: prefill
 * may wait for the writer, decode must not.
 *
 * When a session goes idle its tail is written as a *partial chunk* (save_idle): rows as
 * they are, K and V not laid out as a block, under a key of its own.  A request that
 * continues the context restores it and goes on from there, within the chunk: when that
 * becomes full, or the session goes idle again, the writer adds the new rows to the stored
 * ones, and the partial chunk is superseded.
 *
 * Saving ends sequence by sequence, with a reason (enum save_end), since a chain may have no holes;
 * what was committed stays, and a later request that continues the context prefills what is missing
 * and saves it.  The first fault of the store is reported once, by `warn`, and ends saving for all.
 * A full disk is none: it is reported once each time that it becomes full, and ends
 * the sequences that find no room.
 *
 * Threads: saver_* and save_* belong to the compute thread, where nothing else is said;
 * the writer is the saver's own. */
#ifndef STATE_SAVER_H
#define STATE_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"
#include "policy/truncation.h"
#include "remote/remote.h"
#include "store/store.h"

/* Which kinds are saved: bit STORE_HIDDEN and bit STORE_KV per layer; 0: the layer is not saved. */
struct save_policy {
    uint8_t kinds[STORE_MAX_LAYERS];
};

/* A commit costs the writer a third of a chunk, so while sequences go on there are few: what a
 * crash costs besides the unfinished chunks. */
#define SAVE_COMMIT_NS ((int64_t)250 * 1000 * 1000)

#define SAVE_HIDDEN (1u << STORE_HIDDEN)
#define SAVE_KV     (1u << STORE_KV)

struct saver;
struct save_seq;

struct saver_opts {
    struct store *store;
    struct remote *remote; /* committed chunks are offered to it; NULL: there is none */
    const struct model *model;
    struct sha256 fingerprint;
    /* The bound on chunks in memory; raised to what one sequence's batch needs,
     * saving everything. */
    size_t buffer_bytes;
    int max_batch_rows; /* rows of one forward pass at most */
    void (*warn)(
        void *arg,
        const char *text); /* of a fault, once, and of a full disk; the writer's thread */
    void *warn_arg;
};

int saver_create(const struct saver_opts *o, struct saver **out, struct err *err);
/* Writes what is queued, commits, and ends the thread. Sequences must have been closed. */
void saver_destroy(struct saver *s);
size_t saver_bytes(const struct saver *s); /* reserved, for the table printed at start */

/* Why a sequence is saved no further. */
enum save_end {
    SAVE_GOES_ON,
    SAVE_END_BEHIND, /* the writer fell behind: all memory for chunks waits for the store */
    /* the tails of the living sequences fill the memory for chunks, or memory is short */
    SAVE_END_MEMORY,
    SAVE_END_CAP,    /* the store is full: its cap, and nothing that may be evicted */
    SAVE_END_SPACE,  /* the disk is full; who comes later is saved if there is room then */
    SAVE_END_PARENT, /* the chunk that it continues was evicted */
    SAVE_END_TAIL,   /* the partial chunk that it continues could not be read */
    SAVE_END_DEVICE, /* the device failed to copy what it computed */
    SAVE_END_FAULT,  /* the store failed, which ends saving for all */
    SAVE_ENDS
};
const char *save_end_text(enum save_end e); /* says what to do about it */

struct saver_stats {
    uint64_t n_ended[SAVE_ENDS]; /* sequences, by why their saving ended early */
    uint64_t n_chunks;           /* committed, of which */
    uint64_t n_tails;            /* partial ones, and */
    uint64_t n_shared; /* those that were in the store already, and were not written */
    size_t used_bytes, bound_bytes; /* memory for chunks: taken now, and at most */
    /* 0; the fault of the store that ended saving for all; or -ENOSPC, as long as
     * the disk is full */
    int fault;
    char fault_why[200];
};
void saver_stats(struct saver *s, struct saver_stats *out); /* any thread */

/* --- one sequence --------------------------------------------------------------------------- */

struct save_begin {
    /* Saved from here on.  What is before is in the store already, or was handed over
     * before by another sequence (where that did not arrive, this one is shed).
     * Committed tokens count from here. */
    int64_t first_token;
    const struct sha256 *parent;  /* the key of the last full chunk before, or the root */
    struct truncation truncation; /* names the chunks behind its context; context 0: none */
    /* Where first_token is no multiple of 64: the partial chunk that ends there, which
     * was found in the store, is held by the caller, and can be continued.  The
     * sequence holds it, too, until it is not needed any more: another one that
     * continues it may supersede it at any time. */
    const struct store_hit *tail;
    const struct save_policy *policy;
    uint64_t owner; /* store_owner */
    struct store_use use;
    /* Its tail is for many to continue: it is not superseded by the first that does. */
    bool is_document;
};
/* Fills kinds [n_layers] with SAVE_ bits: the records that a stored chunk has. A partial chunk is
 * continued only if save_kinds_usable says so. */
void save_stored_kinds(const struct store_mask *mask, int n_layers, uint8_t *kinds);
/* Begins saving a sequence.  NULL where there is nothing to be saved: every function below
 * takes that for a sequence that is not saved. */
struct save_seq *save_open(struct saver *s, const struct save_begin *b);
/* Nothing will be added for now: writes the unfinished chunk, positions up to n_tokens, as a
 * partial one.  Only save_stop and save_close may follow. */
void save_idle(struct save_seq *q, const int32_t *tokens, int64_t n_tokens);
/* What is not in the queue is dropped. Chunks in the queue are still written. */
void save_close(struct save_seq *q);
/* Nothing more comes: gives back the chunks that are not full. What was handed over
 * is still written. */
void save_stop(struct save_seq *q);
/* All that was handed over is durable, or was given up: nothing is on its way. */
bool save_is_settled(const struct save_seq *q);

/* What to do where there is no memory: */
enum save_wait {
    SAVE_TRY, /* nothing, where the writer will give some back: the caller comes back later */
    SAVE_SHED, /* save this sequence no further: what decode does, since it must not wait */
    SAVE_WAIT, /* wait for the writer: what prefill does while nothing decodes beside it */
};
/* Room for positions [pos, pos + n): before the forward pass that produces them.  False only for
 * SAVE_TRY where there is none yet.  Where none will come, the sequence is shed in any case. */
bool save_reserve(struct save_seq *q, int64_t pos, int n, enum save_wait how);

/* A sequence's share of a batch: rows [row, row + n_rows) of its matrices are positions pos, ... */
struct save_part {
    struct save_seq *seq; /* NULL: not saved */
    int64_t pos;
    int row, n_rows;
};
/* The snapshot of layer l: its input `hidden` [n][d] T and its K (before RoPE) and V, kv_rows
 * [n][2 * rank_kv_dim] T of each rank, for the whole batch at once, as `s` computes them.
 * Where device memory is host memory each row is copied once, to where the writer reads it, and
 * both may be used again when it returns.  Of a device with memory of its own each matrix comes
 * down as one, on another stream (save_down.h): s may overwrite it behind the *next*
 * save_layer, or save_layers_end. */
void save_layer(const struct save_part *parts, int n_parts, int l, struct mat hidden,
                struct mat kv_rows, struct stream *s);
/* The batch is through: what s gets from now on may overwrite all that was snapshot. */
void save_layers_end(struct saver *saver, struct stream *s);
/* All layers have positions up to n_tokens; tokens[0..n_tokens) is the sequence so far. */
void save_advance(struct save_seq *q, const int32_t *tokens, int64_t n_tokens);

/* Tokens that are durable: they survive a crash from now on. Any thread. */
int64_t save_committed_tokens(const struct save_seq *q);
/* Any thread. */
enum save_end save_ended(const struct save_seq *q);

/* A barrier, from any thread.  The mark stands behind all that was handed over until now; it is
 * reached when that is durable, or was given up, whatever is handed over later. */
uint64_t saver_mark(struct saver *s);
bool saver_reached(const struct saver *s, uint64_t mark);
/* `fn` is called when a mark may have been reached: on the writer's thread, with the saver's
 * lock held, so it may only take note of it. NULL: no more calls once this returns. */
void saver_on_commit(struct saver *s, void (*fn)(void *arg), void *arg);
/* Returns when what was handed over until now is durable, or failed (its code). Any thread. */
int saver_flush(struct saver *s, struct err *err);
/* The writer leaves what is handed over in the queue: until saver_flush, or until a sequence
 * finds no memory for a chunk.  For a benchmark of saving at the end. */
void saver_hold_back(struct saver *s);

#endif
