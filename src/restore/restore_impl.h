/* restore_impl.h - shared by the files of the restore pipeline; private to src/restore.
 *
 *   restore.c          life cycle of the restore pipeline and of a restore
 *   restore_io.c       the I/O thread: looks up (asks the remote, too), reads, hands groups on
 *   restore_compute.c  the compute lane: from staging into the KV cache, and recomputation
 *   restore_race.c     recomputation that races reads which hang or crawl
 *   restore_direct.c   reads straight into device memory
 *   restore_up.c       copies from staging up to a device that has memory of its own
 *
 * A group goes through these lists, and back to `free`:
 *
 *   usually          free -> (I/O thread) -> ready -> (compute lane: mine) -> free
 *   device memory    free -> (I/O thread) -> ready -> (compute lane: mine) -> leaving -> free
 *
 * Invariants:
 * 1. The I/O thread owns a group and its slot from taking them until the last read is done. Then
 *    the compute lane owns them until the group is in the KV cache.
 * 2. Recomputation never reads what the I/O lane brings: R layers are a prefix, and each needs
 *    only the KV of its own layer, which it writes itself in ascending order of rows.
 * 3. A chunk of a layer counts (layer_left) after its check. If the device checks, that is when
 *    its group has left. New tokens pass a layer only then, so no result of a bad record is seen
 *    or saved.
 * 4. n_good only falls. Work on chunks at or beyond it is skipped. Chunks before it are complete
 *    in every layer when the restore is done.
 * 5. A race breaks invariant 2: recomputation passes layers that are also read. A record that
 *    the host has checked has the bits that recomputation gives, in any order. A record that the
 *    device has yet to check may be bad, so it must not reach rows that a later row attends to:
 *    the rows before restore_race_row(), which the present piece and the pieces before it have
 *    written.
 * 6. A failed read does not lower n_good in a race, since the chunk is recomputed. */
#ifndef RESTORE_RESTORE_IMPL_H
#define RESTORE_RESTORE_IMPL_H

#include "base/step.h"
#include "io/io_alarm.h"
#include "model/pass.h"
#include "restore/restore.h"
#include "restore/restore_trace.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    GROUP = RESTORE_GROUP_CHUNKS,
    GROUP_ROWS = GROUP * STORE_CHUNK_TOKENS,
    MAX_SLOTS = 1024 / GROUP, /* the I/O layer's bound on queue depth */
    /* Most arrived chunks that are shared out together: waking the workers for eight chunks of
     * 256 KiB costs a fifth of the work. Contexts that lost records have groups of one chunk. */
    MINE_CHUNKS = 4 * GROUP,
    MAX_MINE = 16,
};

/* A run of chunks of one layer that is read as one, with its staging memory. */
struct group {
    struct group *next; /* next group in the list that has this group */
    struct restore *run;
    uint8_t *slot;
    int layer, first_chunk, n_chunks;
    enum store_kind kind;
    bool is_snapshot; /* the layer's state behind first_chunk, and no chunk's record */
    struct store_read reads[GROUP];
    int n_left; /* number of reads that are not complete */
    int64_t t_issued;
    /* Chunks [0, n_taken) are checked, if the host checks; if they are K and V, they are also in
     * the cache. */
    int n_taken;
    int n_projected; /* rows [0, n_projected) of hidden states are in the cache */

    /* Read straight into the twin, and into no other memory: restore_direct.c. */
    bool is_direct;
    struct file_read from[GROUP];
    struct store_place place[GROUP];

    /* Fields of restore_up.c. All are zero if memory is unified. */
    uint8_t *twin; /* the slot in device memory */
    struct event *is_up, *is_done, *is_checked;
    int end_rc;     /* first error of recording is_done and is_checked; 0: none */
    int64_t t_left; /* when its last work was queued on the device */
};

struct group_list {
    struct group *first, *last;
};
void group_put(struct group_list *l, struct group *g);
struct group *group_get(struct group_list *l); /* Returns NULL if the list is empty. */

/* Where records were read from: a copy in the store's DRAM tier, or their home in the store. */
enum { SOURCE_DRAM = 1, SOURCE_STORE = 2 };

enum restore_state {
    RESTORE_FINDING, /* the I/O thread looks up */
    RESTORE_FOUND,   /* the caller plans */
    RESTORE_RUNNING,
    RESTORE_ABANDONED, /* ended while reads were in flight; the I/O thread frees it */
};

struct restore {
    struct restore_pipeline *rr;
    struct restore *next;

    /* The fields from here on are guarded by rr->lock. */
    enum restore_state state;
    int n_out; /* groups that are not free */
    /* Groups of n_out that the I/O thread has; plus 1 during a look-up, plus 1 during a fetch. */
    int n_in_flight;
    bool is_fetching;           /* the remote is fetching for r->fetch */
    int64_t t_heard;            /* time at which the fetch ended */
    int next_layer, next_chunk; /* next read: the layer's index in `order`, and the chunk */
    int64_t io_ns, io_since;
    uint64_t read_bytes, direct_bytes, dram_bytes, page_cache_bytes;
    /* [job.n_chunks] SOURCE_ bits: where the records of each chunk came from */
    uint8_t *sources;
    int n_read;     /* groups that came back */
    bool *takes_kv; /* [job.n_chunks], or NULL: see restore_job; fixed while RUNNING */
    /* Groups of recurrent layers that came back before the ones in front of them, and the next
     * chunk that each layer hands over (restore_hand_over). */
    struct group_list early;
    int n_handed[STORE_MAX_LAYERS];
    struct restore_trace io_trace;

    /* The fields from here on are fixed once the state is FOUND. */
    struct sha256 *keys; /* the root, then a key per full chunk */
    int n_keys;          /* number of keys, without the root */
    int32_t *tokens;     /* [want.n_tokens] */
    struct restore_want want;
    struct store_hit *hits;    /* [n_keys + 1] */
    struct store_hit snapshot; /* behind hit found.n_snapshot - 1; impl NULL: none */
    bool owns_hits;
    struct restore_found found;
    /* NULL: the remote was not asked, or its chunks were already taken. */
    struct remote_fetch *fetch;

    /* The fields from here on are fixed while RUNNING. */
    struct restore_job job;
    int64_t t_start;
    int16_t order[STORE_MAX_LAYERS]; /* layers in the order of their reads */
    int n_order;
    int n_recompute; /* R layers; a race adds layers */
    int n_groups;    /* estimate of the groups to read: chunks may differ in their kinds */
    /* Chunks asked for at first; job.n_chunks falls when the restore begins again with other
     * windows. */
    int n_asked;
    /* First wanted chunk of each layer: the job's first chunk, or a later one if the layer has a
     * window. For a recomputed layer: the first chunk whose K, V and input are computed. */
    int start[STORE_MAX_LAYERS];
    /* Chunk at whose end recurrent layers take their states from the snapshot; -1: they do not. It
     * is then the first wanted chunk of these layers, and none of its own records are read. */
    int snapshot_chunk;
    /* Recomputed layers, if all of them are recurrent: with a snapshot they begin at it, too. They
     * are the first ones in `order`, where their states alone are read. Else 0. */
    int n_late;

    atomic_int has_lost_snapshot; /* 1: the snapshot cannot be used */
    atomic_int n_good;            /* chunks [0, n_good) are believed good */
    atomic_int is_raced;          /* 1: recomputation races the reads */
    atomic_int n_raced; /* chunks [0, n_raced) are recomputed, so they are no longer read */
    /* 1: a read failed in a race, so the restore is done only when recomputation ends. */
    atomic_int has_lost_reads;
    pthread_mutex_t fault_lock; /* guards out.fault and every decrease of n_good */

    /* The fields from here on belong to the compute lane. */
    bool is_stopped;
    int rc;        /* code of the restore's failure */
    char why[160]; /* the device's message for rc */
    struct {
        int row; /* rows [0, row) are recomputed; the present piece begins at row */
        /* Arrived records before this row were not used, so recomputation must reach this row. */
        int kept_out;
        /* Last layer that the piece passes; only K and V of that layer are computed. */
        int last;
    } re;
    int layer_left[STORE_MAX_LAYERS]; /* number of chunks not yet in the cache, by layer */
    int64_t rows_by_method[3];
    struct restore_trace compute_trace;
    struct restore_result out;
};

struct restore_pipeline {
    struct restore_pipeline_opts o;
    size_t record_room[STORE_KINDS]; /* of the largest record, with padding */
    struct buf staging;
    size_t slot_bytes;
    int n_slots;
    struct group *groups; /* [n_slots] */

    pthread_t io;
    bool has_thread;
    /* Guards the lists, n_news, quit, and the fields of restores marked with it. */
    pthread_mutex_t lock;
    pthread_cond_t for_io; /* n_io_news has grown: a restore, a free slot, or the end */
    pthread_cond_t for_compute; /* n_news has grown */
    struct group_list free, ready;
    /* Restores that have not ended, in the order of their beginning. */
    struct restore *runs;
    int n_in_flight; /* groups that the I/O thread reads */
    int n_fetches;   /* look-ups that wait for the remote, abandoned ones included */
    /* The later of two times: a group last came back; the first group now in flight was issued. */
    int64_t t_heard;
    uint64_t n_io_news;    /* counts events that the I/O thread may have to look at */
    uint64_t n_io_seen;    /* part of n_io_news that the I/O thread has seen */
    struct io_alarm alarm; /* wakes the I/O thread from a wait for the disk */
    bool waits_for_disk;   /* the I/O thread waits for the disk, or is about to */
    uint64_t n_news;       /* counts events that the compute lane may have to look at */
    bool quit;
    bool wants_measure; /* of the store's speed, on chunks of the model */

    /* The fields from here on belong to the I/O thread. */
    /* NULL after a fault or a rest, and before the first read: the next read opens one. */
    struct store_reader *reader;
    struct store_fetcher *fetcher; /* NULL: nothing is fetched ahead; fixed */
    struct file_reader *files;     /* the device's reader of files; NULL: it has none */
    bool is_direct;                /* the next groups are read by `files` */
    int n_direct;                  /* groups in flight with `files` */
    /* Group whose reads have ended, but the step has not seen it yet. */
    struct group *direct_ended;
    int direct_rc;            /* code of the reader when that group ended */
    struct err direct_err;    /* message of direct_rc */
    int64_t direct_silent_ns; /* time waited since a group of `files` last ended */
    bool has_tier;            /* `tier` holds the store's speed */
    struct platform_tier tier;

    /* The fields from here on belong to the compute lane. */
    uint64_t n_seen; /* part of n_news that the compute lane has seen */
    struct group *mine[MAX_MINE];
    int n_mine;
    struct stream *up; /* stream of copies to the device; NULL where memory is unified */
    struct buf twins[MAX_STAGES]; /* twins of the slots, on each stage */
    /* Stream that computes checksums of records in device memory. NULL: the host computes them. */
    struct stream *check;
    struct buf sums[MAX_STAGES]; /* [n_slots][GROUP] uint64_t checksums on each stage */
    struct buf sums_host;        /* host copy of sums (pinned) */
    struct group_list leaving;   /* groups queued on the device, in order */
    int n_leaving;
    int64_t t_counted; /* the lane's time before this moment is counted */
    /* Restore whose piece is in x; NULL: no piece is under way. */
    struct restore *recomputing;
    struct model_pass pass; /* pass of that piece */
    /* Layers of that piece that are queued and not yet waited for. */
    int re_queued;
    int64_t t_re_queued;            /* when the first of those layers was queued */
    int64_t cost_ns;                /* cost of the last item, without stalls */
    double row_ns[3];               /* recent time of a row by R, H, K; 0: unknown */
    struct stream **inline_streams; /* [compute threads] a stream for each thread */
    /* [compute threads][unpack_room] memory for one packed record of each thread */
    uint8_t *unpack;
    size_t unpack_room;
    struct buf scratch[MAX_STAGES];
    /* Scratch on each stage: */
    void *kv_rows[MAX_STAGES]; /* projected K and V of a layer; as many rows as o.work */
    /* [same number of rows] one buffer: residual stream of the recomputed piece. */
    struct residual x;
    int32_t *pos; /* [max_tokens]: 0, 1, 2, ... */
};

/* Returns whether a layer takes its state from the snapshot. */
static inline bool restore_has_snapshot(const struct restore *r, int layer)
{
    return r->snapshot_chunk >= 0 && (layer >= r->n_recompute || r->n_late > 0) &&
           config_is_recurrent(&r->rr->o.model->cfg, layer);
}
/* Returns the chunk behind the last one that is read of a layer, if the first n are wanted. */
static inline int restore_read_end(const struct restore *r, int layer, int n)
{
    return layer >= r->n_late ? n : r->snapshot_chunk + 1 <= n ? r->snapshot_chunk + 1 : n;
}
/* Returns the bytes of record i of a group, unpacked. */
static inline size_t group_record_bytes(const struct restore_pipeline *rr,
                                        const struct group *g, int i)
{
    const struct model *m = rr->o.model;
    size_t row = g->kind == STORE_KV ? model_kv_bytes(m, g->layer) : model_hidden_bytes(m);
    return row * (size_t)g->reads[i].hit->n_tokens;
}
/* Returns the tokens in the first n chunks of the job. */
static inline int restore_tokens(const struct restore *r, int n)
{
    return n == 0 ? 0 : (n - 1) * STORE_CHUNK_TOKENS + r->job.hits[n - 1].n_tokens;
}
/* [lock, or not started] Returns the kind of record that is read of a chunk: 'H' or 'K', 'S' for
 * the snapshot behind it, or 0 if none is read. The chunk may lack the kind that the plan
 * prefers. */
char restore_method_of(const struct restore *r, int layer, int chunk);
/* Gives up a chunk that cannot be used, and all behind it: only the chunks before it are restored.
 * In a race the chunk is recomputed instead. Any thread. */
void restore_lose_chunk(struct restore *r, int chunk, int rc, const char *why);
/* Gives up the snapshot: the restore begins again without it. Any thread. */
void restore_lose_snapshot(struct restore *r, int rc, const char *why);
/* Gives up all chunks. The store does not treat any of them as damaged. If recomputation races the
 * reads (restore_race.c), only the reads are given up, and recomputation goes on. Any thread. */
void restore_give_up(struct restore *r, const char *why);
/* Fails the restore for a fault of the device, not of the data. `why` may be empty. */
void restore_fail(struct restore *r, int rc, const char *why);
/* Frees a restore that has nothing in flight and is in no list. */
void restore_free(struct restore *r);
/* [lock] Returns whether the I/O thread has something left to read. */
bool restore_reads_remain(struct restore *r);
/* [lock] Hands an arrived group over to the compute lane.  A recurrent layer's groups are handed
 * over in the order of their chunks: its state passes the tokens one after another. */
void restore_hand_over(struct restore_pipeline *rr, struct group *g);
/* Sets the job of a restore that has found its chunks. */
void restore_set_job(struct restore *r, const struct restore_job *job);
/* Returns whether a restore has lost a chunk or the snapshot and must begin again: windows of the
 * chunks before the lost one begin earlier, and a recurrent state may have passed these chunks. */
bool restore_must_rewind(const struct restore *r);
/* In a race: returns the first row that arriving records may still write; otherwise returns 0. Call
 * on the compute lane's thread. */
int restore_race_row(const struct restore *r);
/* Returns whether the compute lane has something left to recompute. */
bool restore_recompute_remains(const struct restore *r);

int restore_open_reader(struct restore_pipeline *rr, struct err *err);
/* Gives the staging memory back to the system until the next read. The I/O thread calls it while no
 * group is in use. */
void restore_rest(struct restore_pipeline *rr);
/* --- restore_io.c (on the I/O thread) --- */
/* The thread's function: calls the next two functions in a loop. */
void *restore_io_main(void *pipeline);
/* Does one piece of work: a look-up, a measurement, submitting a group, or collecting complete
 * reads. If no restore has such work, does a piece of a fetch (store_fetch_step). Returns
 * STEP_WAITS if there is nothing to do until a read completes or there is news. */
enum step restore_io_step(struct restore_pipeline *rr);
/* Call after the step has returned STEP_WAITS. Sleeps until a read is complete, or there is news
 * that the step has not seen. While reads are in flight, sleeps for at most 100 ms. */
void restore_io_wait(struct restore_pipeline *rr);
/* [lock] Wakes the I/O thread: there is something to do. */
void restore_tell_io(struct restore_pipeline *rr);
/* --- restore_compute.c (its step is restore_pipeline_work) --- */
/* Drops the compute lane's work on a restore. */
void restore_drop_work(struct restore_pipeline *rr, struct restore *r);
/* Drops the piece that is being recomputed. Operations already queued for it still run. */
void restore_drop_piece(struct restore_pipeline *rr);
/* --- restore_race.c (on the compute lane) --- */
/* Notes the end of a recomputed piece in a race. n_tokens tokens are good now. */
void restore_race_pieces_end(struct restore *r, int n_tokens);
/* --- restore_io.c (on the I/O thread) --- */
/* Call when the local look-up has ended: asks the remote for the missing chunks. Returns false if
 * there is nothing to wait for. */
bool restore_remote_begin(struct restore *r);
/* Call when the fetch has ended: looks up the chunks that came. */
void restore_remote_take(struct restore *r);
/* Offers the found chunks to a remote that stores chunks on use. */
void restore_remote_offer(struct restore *r);
/* --- restore_direct.c (on the I/O thread) --- */
/* Call behind restore_up_create. Opens the device's reader if it is wanted and available. */
int restore_direct_open(struct restore_pipeline *rr, struct err *err);
void restore_direct_close(struct restore_pipeline *rr);
/* Returns false if g, whose reads are filled in, must be read in the ordinary way. */
bool restore_direct_submit(struct restore_pipeline *rr, struct group *g);
/* May be called only while n_direct > 0. Waits at most most_ns until a group has ended. Cancels
 * reads that hang. */
void restore_direct_wait(struct restore_pipeline *rr, int64_t most_ns);
/* Returns the group that the wait found to have ended, or NULL. *again becomes true if the group
 * must be read in the ordinary way. */
struct group *restore_direct_collect(struct restore_pipeline *rr, bool *again);
/* --- restore_up.c (on the compute lane) --- */
int restore_up_create(struct restore_pipeline *rr, struct err *err);
void restore_up_destroy(struct restore_pipeline *rr);
/* [lock] Sets g's twin, on the stage of its layer. */
void restore_up_place(const struct restore_pipeline *rr, struct group *g);
/* Copies the records of chunks [first, end) of g up. Later work on the compute stream finds
 * them. */
int restore_up(struct restore_pipeline *rr, struct group *g, int first, int end);
/* Returns the address where operations find record i of g. */
const uint8_t *restore_record(const struct restore_pipeline *rr, const struct group *g,
                              int i);
/* Lets g leave: all its work is queued. It counts for its layer and becomes free when the device
 * is done with it. */
void restore_leave(struct restore_pipeline *rr, struct group *g);
/* Counts the lane's time from `from` to now for r. Time that was counted before is left out: a
 * recomputation waits for groups that left before it, and their time is counted already. Returns
 * the time at which the newly counted part begins. */
int64_t restore_count_compute(struct restore *r, int64_t from);
/* Waits until at most max_leaving groups are leaving. */
void restore_settle(struct restore_pipeline *rr, int max_leaving);
/* Returns the first failure on a stream of the restore pipeline itself, or "". */
const char *restore_up_fault(const struct restore_pipeline *rr);
/* Lets the restore pipeline's streams continue after a fault. */
void restore_up_recover(struct restore_pipeline *rr);
/* Returns the device memory for checksums; 0 if the host computes them. */
size_t restore_sums_bytes(const struct device *d, int n_slots);

/* [lock] Frees a group. */
void restore_group_done(struct restore_pipeline *rr, struct group *g);

#endif
