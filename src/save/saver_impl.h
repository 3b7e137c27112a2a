/* saver_impl.h - the structs of saver.c; private to it, and to tests that set states up.
 *
 * A chunk's memory is one run of save_memory: this struct, then a record per layer and kind that
 * the sequence's policy names.
 *
 *   | struct save_chunk | layer 0: hidden rows | layer 0: K and V rows | layer 1 ...
 *
 * A chunk is in one place: its sequence's open chunks (stage one fills it), the queue, or with
 * the writer. A snapshot's memory is such a run, too, with a state per recurrent layer. It is full
 * when it is taken, and follows the chunk behind which it stands through the queue. */
#ifndef SAVE_SAVER_IMPL_H
#define SAVE_SAVER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/bytes.h"
#include "base/step.h"
#include "save/save_down.h"
#include "save/save_memory.h"
#include "save/repack.h"
#include "save/saver.h"

struct save_chunk {
    struct save_chunk *next; /* next in the queue */
    struct save_seq *seq;
    int chunk_idx;
    int n_tokens;      /* 64, or fewer in a tail; 0: a snapshot */
    bool has_snapshot; /* a tail behind which a snapshot follows */
    /* Number of layers that must have come down before the chunk's rows are complete. */
    uint64_t after;
    atomic_bool lost; /* one of the layers counted in `after` failed to come down */
    int32_t tokens[STORE_CHUNK_TOKENS];
};

/* Offsets of a policy's records behind the struct. */
struct save_layout {
    size_t n_bytes; /* size of the whole run */
    size_t at[STORE_MAX_LAYERS][STORE_KINDS];
};

struct save_seq {
    uint64_t owner, epoch; /* as in struct save_begin; never changed */
    struct store_use use;
    struct saver *saver;
    struct save_policy policy;
    struct truncation truncation;
    struct save_layout layout;
    int first_open; /* chunk index of open[0] */
    int n_open, max_open;
    int64_t n_handed_over;    /* tokens up to the last chunk that went to the writer */
    struct save_chunk **open; /* [n_open] chunks that are being filled, in order */
    bool is_document;
    int first_chunk;        /* full chunks before the first saved one */
    int prompt_chunks;      /* full chunks of the prompt, without its last token */
    atomic_llong committed; /* committed tokens */
    atomic_int end;         /* an enum save_end */
    /* references: the owner's, and one per chunk in flight; under the saver's lock */
    int n_refs;

    /* The fields from here on belong to the writer. */
    struct sha256 parent; /* parent of the next chunk to be written */
    struct sha256 last;   /* the last chunk that was written or is continued */
    /* Pin on the last committed chunk, which stays while it may be continued. */
    struct store_hit pin;
    /* A damaged chunk of the context was saved again, so the chunks behind it are checked. */
    bool heals;
    bool parent_seen; /* the parent of its first chunk is in the store */
    /* Pinned partial chunk that the first chunk continues. impl is NULL if there is none. */
    struct store_hit tail;
    int tail_idx;
    int n_tail; /* rows of the tail that the sequence continues */
    /* Committed chunks that are offered to the remote when the sequence ends. */
    struct sha256 *fresh;
    int n_fresh, max_fresh;
};

enum {
    MAX_UNCOMMITTED = 64, /* a commit is due after this many appended chunks */
};

/* A chunk that was appended since the last commit. */
struct written {
    struct save_seq *seq;
    struct sha256 key;
    int64_t n_tokens; /* tokens of its sequence that are durable after the commit */
    bool is_tail, is_snapshot;
};

/* Chunks that were appended and are not committed yet. */
struct uncommitted {
    int n;
    int n_given_up;   /* chunks given up since the first of these n chunks was appended */
    bool has_written; /* records were written to the store */
    int64_t due_ns;   /* if n > 0: the time when the commit is due */
    struct written chunk[MAX_UNCOMMITTED];
};

/* The packing of stored chunks while nothing is to be saved (repack.h). */
struct idle {
    bool wants; /* a chunk that may be packed was saved since the last pass began */
    struct repack *repack; /* the present pass; NULL: none */
    int64_t due_ns;        /* nothing is packed before this time */
};

struct saver {
    struct saver_opts o;
    size_t record_bytes[STORE_KINDS];
    size_t state_bytes;     /* of one state; 0: no layer is recurrent */
    struct layer_set apart; /* save_apart; empty: nothing is dropped */
    struct save_down *down; /* NULL where memory is unified */
    /* Copies of one layer's snapshot, if memory is unified. They belong to the compute thread. */
    struct copy_part *copies;
    int n_copies;

    /* The fields from here on belong to the writer. */
    pthread_t writer;
    struct stream *pack_stream;
    struct buf packed;           /* K and V of one layer of a chunk, in a block's layout */
    struct store_reader *reader; /* reads tails; NULL until the first one */
    struct buf tail_record;      /* memory for one record of a tail */
    struct uncommitted uncommitted;
    struct idle idle;

    pthread_mutex_t lock; /* guards all fields below and the n_refs of sequences */
    pthread_cond_t changed;
    struct save_memory memory;
    struct save_chunk *queue, **queue_end;
    /* Number of chunks ever queued. n_settled is the number of chunks that were committed or given
     * up; chunks settle in their order. A caller that waits for memory or for a flush waits until
     * both are equal. */
    uint64_t n_queued;
    atomic_ullong n_settled;      /* also read without the lock */
    void (*on_commit)(void *arg); /* NULL: no callback */
    void *on_commit_arg;
    bool holds_back; /* the writer takes no chunks from the queue (saver_hold_back) */
    bool is_awaited; /* a caller waits for the queue to be committed soon */
    bool quit;
    int fault; /* first code that the store returned: saving has ended for all */
    struct err fault_err;
    /* A write has failed for want of space, and none has succeeded since. */
    bool disk_is_full;
    struct err full_err;

    /* See struct saver_stats. */
    atomic_ullong n_ended[SAVE_ENDS], n_chunks, n_tails, n_shared, n_packed, n_repacked;
};

/* [lock] Returns whether a chunk is queued, being written, or written and not committed. */
static inline bool saver_is_busy(const struct saver *s)
{
    return shared_load(&s->n_settled) != s->n_queued;
}

static inline uint8_t *save_record(const struct save_chunk *c, int l, enum store_kind kind)
{
    return (uint8_t *)(uintptr_t)c + c->seq->layout.at[l][kind];
}

/* Returns the state of a snapshot's i-th recurrent layer. */
static inline uint8_t *save_state(const struct save_chunk *c, int i)
{
    size_t head = round_up(sizeof *c, SAVE_MEMORY_ALIGN);
    return (uint8_t *)(uintptr_t)c + head + (size_t)i * c->seq->saver->state_bytes;
}

#endif
