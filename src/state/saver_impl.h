/* saver_impl.h - what both stages of saving share; private to saver.c and save_writer.c.
 *
 * A chunk's memory is one run of save_memory: this struct, then a record per layer and kind
 * that the sequence's policy names.
 *
 *   | struct save_chunk | layer 0: hidden rows | layer 0: K and V rows | layer 1 ...
 *
 * It is in one place: its sequence's open chunks (stage one fills it), the queue,
 * or with the writer. */
#ifndef STATE_SAVER_IMPL_H
#define STATE_SAVER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/step.h"
#include "state/save_down.h"
#include "state/save_memory.h"
#include "state/saver.h"

struct save_chunk {
    struct save_chunk *next; /* in the queue */
    struct save_seq *seq;
    int chunk_idx;
    int n_tokens;     /* 64, or fewer in a tail */
    uint64_t after;   /* layers that must have come down before its rows are all there */
    atomic_bool lost; /* one of them did not */
    int32_t tokens[STORE_CHUNK_TOKENS];
};

/* Where a policy's records lie behind the struct. */
struct save_layout {
    size_t n_bytes; /* of the whole run */
    size_t at[STORE_MAX_LAYERS][STORE_KINDS];
};

struct save_seq {
    uint64_t owner; /* fixed */
    struct store_use use;
    struct saver *saver;
    struct save_policy policy;
    struct truncation truncation;
    struct save_layout layout;
    int first_open; /* chunk index of open[0] */
    int n_open, max_open;
    int64_t n_handed_over;    /* tokens, up to the last chunk that went to the writer */
    struct save_chunk **open; /* chunks that are being filled, in order */
    bool is_document;
    atomic_llong committed; /* tokens */
    atomic_int end;         /* enum save_end */
    int n_refs; /* the owner, and every chunk in flight; under the saver's lock */

    /* The writer's: */
    struct sha256 parent; /* of the next chunk to be written */
    struct store_hit pin; /* the last committed chunk. It stays while it may be continued */
    bool heals;       /* a damaged chunk of it was saved again: those behind are checked */
    bool parent_seen; /* what the first chunk continues is in the store */
    /* The partial chunk that the first chunk continues, pinned; impl NULL: none. */
    struct store_hit tail;
    int tail_idx;
    /* Committed chunks that are offered to the remote when the sequence ends. */
    struct sha256 *fresh;
    int n_fresh, max_fresh;
};

enum {
    MAX_UNCOMMITTED = 64, /* chunks appended before a commit is due in any case */
};

/* A chunk that was appended since the last commit. */
struct written {
    struct save_seq *seq;
    struct sha256 key;
    int64_t n_tokens; /* of the sequence, durable with the commit */
    bool is_tail;
};

/* Chunks that were appended and are not committed yet. */
struct uncommitted {
    int n;
    int n_given_up;   /* chunks given up since the first of them was appended */
    bool has_written; /* records, into the store */
    int64_t due_ns;   /* if n > 0: the time by which it is to be committed */
    struct written chunk[MAX_UNCOMMITTED];
};

struct saver {
    struct saver_opts o;
    size_t record_bytes[STORE_KINDS];
    struct save_down *down;   /* NULL where memory is unified: there, */
    struct copy_part *copies; /* what a layer's snapshot copies, the compute thread's */
    int n_copies;

    /* The writer's: */
    pthread_t writer;
    struct stream *pack_stream;
    struct buf packed;           /* one layer's K and V of a chunk, in a block's layout */
    struct store_reader *reader; /* of tails; NULL until the first one */
    struct buf tail_record;      /* what it reads to: one record */
    struct uncommitted uncommitted;

    pthread_mutex_t lock; /* guards all that follows, and n_refs of sequences */
    pthread_cond_t changed;
    struct save_memory memory;
    struct save_chunk *queue, **queue_end;
    /* Chunks ever queued, and those of them that are committed or given up, which is in their
     * order. Who waits for memory or for a flush waits for them to meet. */
    uint64_t n_queued;
    atomic_ullong n_settled;      /* read without the lock, too */
    void (*on_commit)(void *arg); /* NULL: nobody wants to know */
    void *on_commit_arg;
    bool holds_back; /* the queue is left as it is */
    bool is_awaited; /* somebody wants what is queued to be committed soon */
    bool quit;
    int fault; /* the first code that the store returned; saving is over */
    struct err fault_err;
    bool disk_is_full; /* nothing could be written since */
    struct err full_err;

    atomic_ullong n_ended[SAVE_ENDS], n_chunks, n_tails,
        n_shared; /* see struct saver_stats */
};

/* [lock] Something is queued, being written, or written and not committed. */
static inline bool saver_is_busy(const struct saver *s)
{
    return shared_load(&s->n_settled) != s->n_queued;
}

static inline uint8_t *save_record(const struct save_chunk *c, int l, enum store_kind kind)
{
    return (uint8_t *)(uintptr_t)c + c->seq->layout.at[l][kind];
}

/* The first reason stays. Any thread. */
void save_end_seq(struct save_seq *q, enum save_end why);
void save_drop_ref_locked(struct save_seq *q);

/* --- save_writer.c: stage two, the writer's thread --- */
/* The thread: a loop around the next two. */
void *save_writer_main(void *saver);
/* Writes the next chunk of the queue, or commits what is due.  STEP_WAITS: there is neither, or the
 * rows of the next chunk are on their way down from the device. */
enum step save_writer_step(struct saver *s);
/* Behind STEP_WAITS. Sleeps until there is a chunk with all its rows, a commit is due, or the saver
 * ends. */
void save_writer_wait(struct saver *s);

#endif
