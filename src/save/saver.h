/* saver.h - two-stage saving (HCache §4.2.2): snapshot -> flush -> commit.
 *
 * Stage one runs on the compute thread. save_layer copies a layer's results for the whole batch
 * into the chunks of its sequences, nothing else. When 64 tokens have passed through every
 * layer, a chunk is full and goes to the writer thread (save_advance). Stage two, the writer,
 * appends full chunks from all sequences to the store and commits them together: when a caller
 * waits for it (a session goes idle, a mark is set, memory is needed), when enough has gathered,
 * or SAVE_COMMIT_NS after the first.
 *
 *   model_pass  --tap--> save_layer   (memcpy)         compute thread
 *   last layer  -------> save_advance -> [queue] --> store_append --> store_commit   writer
 *
 * Memory is bounded for any number of sequences: the chunks that are being filled (the *tails* of
 * living sequences) and the chunks on their way to the store share buffer_bytes. If no memory is
 * left, the caller chooses whether the saver waits or sheds the sequence, that is, ends its saving:
 * prefill may wait for the writer, decode must not.
 *
 * When a session goes idle, its tail is written as a *partial chunk* (save_idle): plain rows, K
 * and V not laid out as a block, under a key of its own. A request that continues the context
 * restores the partial chunk and continues within it. When the chunk becomes full, or the
 * session goes idle again, the writer adds the new rows to the stored ones, and the partial
 * chunk is superseded.
 *
 * A sequence with recurrent layers may also save a *snapshot*: the states of all these layers,
 * which stand behind its last token. save_states copies them beside the chunks on their way to the
 * store, so their memory is part of the same bound. A session that goes idle leaves a snapshot
 * behind its tail. Such a tail stays when its context goes on, because other contexts may branch
 * off there.
 *
 * Layers with a sliding window save all their records, since every token may become a resume point.
 * After each commit the writer drops those of them that no resume point of the context needs any
 * more (snapshots.h). With a remote nothing is dropped: the chunks there are whole.
 *
 * Saving ends sequence by sequence, with a reason (enum save_end), since a chain may have no
 * holes. Committed chunks stay; a later request that continues the context prefills the missing
 * tokens and saves them. The first fault of the store is reported once, by `warn`, and ends
 * saving for all. A full disk is not a fault: it is reported each time that the disk becomes
 * full, and ends the saving of sequences that find no room.
 *
 * Threads: saver_* and save_* belong to the compute thread unless their comment says otherwise.
 * The saver owns the writer thread. */
#ifndef SAVE_SAVER_H
#define SAVE_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"
#include "pack/pack.h"
#include "store/truncation.h"
#include "store/remote/remote.h"
#include "store/store.h"

/* Which kinds are saved: bit STORE_HIDDEN and bit STORE_KV per layer; 0: the layer is not saved. */
struct save_policy {
    uint8_t kinds[STORE_MAX_LAYERS];
    /* Full chunks and snapshots are packed (pack/pack.h) before they are stored, unless more than
     * half of the memory for chunks is taken, or packing saves no block of the store. */
    bool packs;
};

/* Time between the first uncommitted chunk and the commit. A commit costs the writer a third of
 * a chunk, so there are few while sequences go on. A crash loses the chunks since the last
 * commit and the unfinished ones. */
#define SAVE_COMMIT_NS ((int64_t)250 * 1000 * 1000)

#define SAVE_HIDDEN (1u << STORE_HIDDEN)
#define SAVE_KV     (1u << STORE_KV)

/* Return the stored bytes of a full chunk's record: of layer l, and of the largest layer. */
static inline size_t record_bytes(const struct model *m, int l, enum store_kind kind)
{
    return STORE_CHUNK_TOKENS *
           (kind == STORE_HIDDEN ? model_hidden_bytes(m) : model_kv_bytes(m, l));
}
static inline size_t record_most_bytes(const struct model *m, enum store_kind kind)
{
    return STORE_CHUNK_TOKENS *
           (kind == STORE_HIDDEN ? model_hidden_bytes(m) : model_most_kv_bytes(m));
}

struct saver;
struct save_seq;

struct saver_opts {
    struct store *store;
    struct remote *remote; /* committed chunks are offered to it; NULL: there is none */
    const struct model *model;
    struct sha256 fingerprint;
    /* Bound on memory for chunks; raised to what one sequence's batch needs at most. */
    size_t buffer_bytes;
    int max_batch_rows; /* most rows of one forward pass */
    int input_tokens;   /* for tests: replaces SNAPSHOT_INPUTS unless it is 0 */
    /* All unpacked chunks of the store are packed (repack.h) when nothing was saved for this time
     * since a sequence whose policy packs; 0: never. */
    int64_t pack_idle_ns;
    /* Called on the writer's thread: once for a fault, and each time that the disk becomes full. */
    void (*warn)(void *arg, const char *text);
    void *warn_arg;
};

int saver_create(const struct saver_opts *o, struct saver **out, struct err *err);
/* Writes the queue, commits, and ends the thread. All sequences must be closed. */
void saver_destroy(struct saver *s);
/* Gives the memory for chunks back to the system if none is on its way. Any thread. */
void saver_rest(struct saver *s);
/* Returns the bytes reserved, for the table printed at start. */
size_t saver_bytes(const struct saver *s);

/* Why saving a sequence ended. */
enum save_end {
    SAVE_GOES_ON,
    SAVE_END_BEHIND, /* the writer fell behind: all memory for chunks waits for the store */
    /* The tails of living sequences fill the memory for chunks, or memory is short. */
    SAVE_END_MEMORY,
    SAVE_END_CAP, /* the cap or the quota of the salt is reached, and no chunk may be evicted */
    SAVE_END_REFUSED, /* waiting requests need the stored chunks sooner */
    SAVE_END_SPACE,   /* the disk is full; later sequences are saved once there is room */
    SAVE_END_PARENT,  /* the chunk that the sequence continues was evicted */
    SAVE_END_TAIL,    /* the partial chunk that the sequence continues could not be read */
    SAVE_END_ERASED,  /* the context was erased after the sequence's request had begun */
    SAVE_END_DEVICE,  /* the device failed to copy the sequence's results */
    SAVE_END_FAULT,   /* the store failed, which ends saving for all */
    SAVE_ENDS
};
const char *save_end_text(enum save_end e); /* Returns a sentence that says what to do. */

struct saver_stats {
    uint64_t n_ended[SAVE_ENDS]; /* sequences by the reason why their saving ended early */
    uint64_t n_chunks;           /* committed chunks */
    uint64_t n_tails;            /* part of n_chunks: partial chunks */
    /* Part of n_chunks: the store already had them, so they were not written. */
    uint64_t n_shared;
    uint64_t n_packed;   /* records that were packed (save_policy.packs) */
    uint64_t n_repacked; /* chunks that were packed later, while nothing was saved */
    size_t used_bytes, bound_bytes; /* memory for chunks: taken now, and its bound */
    /* 0: no fault. Otherwise the code of the store's fault that ended saving for all, or -ENOSPC
     * while the disk is full. */
    int fault;
    char fault_why[200];
};
void saver_stats(struct saver *s, struct saver_stats *out); /* any thread */

/* --- one sequence --------------------------------------------------------------------------- */

struct save_begin {
    /* First token to save. The tokens before it are in the store, or another sequence has handed
     * them over (if those chunks do not arrive, the saving of this sequence ends). Committed tokens
     * count from here. */
    int64_t first_token;
    /* Key of the last full chunk before first_token, or the root. */
    const struct sha256 *parent;
    /* Truncation, which is part of the keys of chunks beyond its context; context 0: none. */
    struct truncation truncation;
    /* If first_token is no multiple of 64: a partial chunk that has the tokens before it, and ends
     * there or later. The caller has found it in the store, pinned it, and checked that it has the
     * records to be saved. The sequence also pins it as long as it needs it, since another sequence
     * that continues the partial chunk may supersede it at any time. */
    const struct store_hit *tail;
    const struct save_policy *policy;
    uint64_t owner; /* owner of the chunks, as store_owner returns it */
    uint64_t epoch; /* store_epoch when the sequence's request began; 0: unknown */
    struct store_use use;
    int64_t n_prompt; /* tokens of the prompt; a window is kept behind it (snapshots.h) */
    /* Many sequences will continue the tail, so the first of them must not supersede it. */
    bool is_document;
};
/* Fills kinds [n_layers] with SAVE_ bits: the records of a stored chunk. A partial chunk is
 * continued only if save_kinds_usable allows it. */
void save_stored_kinds(const struct store_mask *mask, int n_layers, uint8_t *kinds);
/* Returns the share (0 to 1) that packing leaves of the bytes of a chunk's records of one kind; 1
 * if none is packed, or there is none. The hit comes from a lookup. */
double save_stored_share(const struct store_hit *hit, enum store_kind kind,
                         bool is_snapshot, const struct model *m);
/* Returns the code for keys, values and hidden states of this type; that for snapshots is f32's. */
static inline enum pack_type save_pack_type(enum dtype t)
{
    return t == DTYPE_BF16 ? PACK_BF16 : t == DTYPE_F16 ? PACK_F16 : PACK_F32;
}
/* Returns whether a stored chunk has all wanted records, so that it need not be computed again
 * to be saved. wanted, stored: [n_layers]. Pure. */
static inline bool save_kinds_suffice(const uint8_t *wanted, const uint8_t *stored,
                                      int n_layers)
{
    for (int l = 0; l < n_layers; l++)
        if ((wanted[l] & ~stored[l]) != 0)
            return false;
    return true;
}
/* Returns the layers of which a policy saves records. */
struct layer_set save_layers(const struct save_policy *p);
/* Returns the layers with a window or recurrent state, whose records are dropped where no resume
 * point needs them (snapshots.h). Empty if the model has no others: a chunk keeps some record. */
struct layer_set save_apart(const struct model_config *c);
/* Format of the reason why fewer tokens come back than are stored. Arguments: stored tokens, the
 * window, tokens that come back. */
#define SAVE_WHY_WINDOWS                                                                   \
    "%d tokens are stored, but the windows of layers that see %d tokens are kept only "    \
    "up to token %d"
/* Returns how many of n hits of a context a restore may use: as many as leave every window whole
 * (window_resume has first and n_tokens). A layer that is not `saved` and that no hit has does not
 * count. */
int save_resumable(const struct model_config *c, const struct layer_set *saved,
                   const struct store_hit *hits, int n, int first, int64_t n_tokens);
/* Begins saving a sequence. Returns NULL if there is nothing to save; every function below takes
 * NULL as a sequence that is not saved. */
struct save_seq *save_open(struct saver *s, const struct save_begin *b);
/* Where the states of a sequence's recurrent layers are. */
struct save_states {
    const struct kv_layer *layers; /* [n_layers] */
    int32_t state;                 /* number of the sequence's states (kv_table_state) */
};
/* Takes a snapshot behind n_tokens tokens, the end of the last full chunk that the sequence has
 * handed over or continues. Returns false, and takes none, if the states stand elsewhere, if more
 * than half of the memory for chunks is taken, or if nothing is saved. Does not wait. */
bool save_states(struct save_seq *q, int64_t n_tokens, const struct save_states *states);
/* Writes the tail, positions up to n_tokens, as a partial chunk, and a snapshot behind it unless
 * `states` is NULL: the session goes idle. Only save_stop and save_close may follow. */
void save_idle(struct save_seq *q, const int32_t *tokens, int64_t n_tokens,
               const struct save_states *states);
/* Ends the sequence's saving and frees it. Chunks that are not in the queue are dropped; chunks
 * in the queue are still written. */
void save_close(struct save_seq *q);
/* Ends the sequence's saving: gives back chunks that are not full. Chunks in the queue are still
 * written. */
void save_stop(struct save_seq *q);
/* Returns whether none of its chunks is on its way: all are durable, or were given up. */
bool save_is_settled(const struct save_seq *q);

/* What to do if there is no memory for chunks: */
enum save_wait {
    SAVE_TRY, /* do nothing if the writer will free some memory: the caller tries again later */
    SAVE_SHED, /* end the saving of this sequence: for decodes, which must not wait */
    SAVE_WAIT, /* wait for the writer: for prefills while no sequence decodes */
};
/* Reserves room for positions [pos, pos + n), before the forward pass that produces them. Returns
 * false only with SAVE_TRY, if there is no room yet. If there will never be room, the saving of the
 * sequence ends in any case. */
bool save_reserve(struct save_seq *q, int64_t pos, int n, enum save_wait how);

/* A sequence's share of a batch: rows [row, row + n_rows) are positions from pos on. */
struct save_part {
    struct save_seq *seq; /* NULL: the sequence is not saved */
    int64_t pos;
    int row, n_rows;
};
/* Takes the snapshot of layer l for the whole batch: its input `hidden` [n][d] T, and its K
 * (before RoPE) and V, kv_rows [n][2 * model_rank_kv_dim] T of each rank, as `s` computes them. If
 * device memory is host memory, each row is copied once into its chunk, and both matrices are
 * free when it returns. On a device with memory of its own each matrix comes down as a whole on
 * another stream (save_down.h): s may overwrite it behind the *next* save_layer, or
 * save_layers_end. */
void save_layer(const struct save_part *parts, int n_parts, int l, struct mat hidden,
                struct mat kv_rows, struct stream *s);
/* Ends a batch: work queued on s from now on may overwrite all matrices of its snapshots. */
void save_layers_end(struct saver *saver, struct stream *s);
/* Call when all layers have positions up to n_tokens; tokens[0..n_tokens) is the sequence so
 * far. Hands full chunks to the writer. */
void save_advance(struct save_seq *q, const int32_t *tokens, int64_t n_tokens);

/* Returns the tokens that are durable: they survive a crash from now on. Any thread. */
int64_t save_committed_tokens(const struct save_seq *q);
/* Returns the reason why the saving of q ended, or SAVE_GOES_ON. Any thread. */
enum save_end save_ended(const struct save_seq *q);

/* Sets a barrier; any thread. The mark is reached when everything handed over before it is
 * durable or was given up, whatever is handed over later. */
uint64_t saver_mark(struct saver *s);
bool saver_reached(const struct saver *s, uint64_t mark);
/* Returns how many chunks were committed or given up so far. */
uint64_t saver_settled(const struct saver *s);
/* Sets `fn`, which is called when a mark may have been reached. It runs on the writer's thread
 * with the saver's lock held, so it may only take note. After a call with NULL returns, there
 * are no more calls. */
void saver_on_commit(struct saver *s, void (*fn)(void *arg), void *arg);
/* Ends saver_hold_back, and waits until everything handed over before is durable or was given up.
 * Returns 0, or the code of the fault that ended all saving; a full disk is no such fault. Any
 * thread. */
int saver_flush(struct saver *s, struct err *err);
/* Makes the writer leave the queue alone until saver_flush, or until a sequence finds no memory
 * for a chunk. For a benchmark of saving at the end. */
void saver_hold_back(struct saver *s);

#endif
