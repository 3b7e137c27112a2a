/* restore_impl.h - what the files of the restore pipeline share; private to src/state.
 *
 *   restore.c          life cycle of the restore pipeline and of a restore
 *   restore_io.c       the I/O thread: looks up, reads, hands groups on
 *   restore_compute.c  the compute lane: from staging into the KV cache, and recomputation
 *   restore_replan.c   another kind of record for layers whose reads have not begun
 *   restore_race.c     recomputation that races reads which hang or crawl
 *   restore_remote.c   chunks that the store lacks come from the remote, while the look-up waits
 *   restore_direct.c   what of it goes into the device's memory by itself
 *   restore_up.c       between the two, where the device has memory of its own: copies up
 *   restore_stage.c    reads ahead of the place, and when they may be made
 *
 * A group goes round:   free -> (I/O thread) -> ready -> (compute lane: mine) -> free
 * With memory of its own:                                                mine -> leaving -> free
 * Of a staged restore:         (I/O thread) -> parked, until it is placed: -> ready
 *
 * Invariants:
 *  1. A group and its slot are owned by the I/O thread from when it takes them until the last read
 *     is done, then by the compute lane until the group is in the KV cache.
 *  2. Recomputation never reads what the I/O lane brings: R layers are a prefix, each needs only
 *     the KV of its own layer, which it writes itself in ascending order of rows.
 *  3. A chunk of a layer counts (layer_left) when its verdict is in: where the device checks,
 *     when its group has left.  New tokens pass a layer only then, so that nothing computed from
 *     a bad record is seen or saved.
 *  4. n_good only falls. Work on chunks at or beyond it is skipped; chunks before it are complete
 *     in every layer when the restore is done.
 *  5. A race breaks invariant 2: recomputation passes layers that are read.  A record that the
 *     host has checked has the bits that recomputation gives, in any order.  A record that the
 *     device has yet to check may be bad, so it must not reach rows that a later row attends to:
 *     those before race_row(), which the present piece and the pieces before it have written.
 *  6. A failed read does not lower n_good in a race, since the chunk is recomputed. */
#ifndef STATE_RESTORE_IMPL_H
#define STATE_RESTORE_IMPL_H

#include "base/step.h"
#include "model/pass.h"
#include "state/restore.h"
#include "state/restore_trace.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    GROUP = RESTORE_GROUP_CHUNKS,
    GROUP_ROWS = GROUP * STORE_CHUNK_TOKENS,
    MAX_SLOTS = 1024 / GROUP, /* the I/O layer's bound on queue depth */
    /* Groups that have arrived by the same moment: their chunks are shared out together, since
     * waking the workers for eight chunks of 256 KiB costs a fifth of the work. */
    MAX_MINE = 4,
};

/* A run of chunks of one layer that is read as one, and the memory that it is read to. */
struct group {
    struct group *next; /* in a list */
    struct restore *run;
    uint8_t *slot;
    int layer, first_chunk, n_chunks;
    enum store_kind kind;
    struct store_read reads[GROUP];
    int n_left; /* reads not yet complete */
    int64_t t_issued;
    /* chunks [0, n_taken) are checked, if the host does, and, where K and V, in the cache */
    int n_taken;
    int n_projected; /* rows [0, n_projected) of hidden states are in the cache */

    bool is_direct; /* what was read is in the twin, and nowhere else: restore_direct.c */
    struct file_read from[GROUP];

    /* restore_up.c's; all zero where memory is unified */
    uint8_t *twin; /* the slot in device memory */
    struct event *is_up, *is_done, *is_checked;
    int end_rc;     /* of marking the last two */
    int64_t t_left; /* when its work was queued */
};

struct group_list {
    struct group *first, *last;
};
void group_put(struct group_list *l, struct group *g);
struct group *group_get(struct group_list *l); /* NULL where empty */

enum { SOURCE_DRAM = 1, SOURCE_STORE = 2 }; /* a copy in the store's DRAM tier; its home */

enum restore_state {
    RESTORE_FINDING, /* the I/O thread looks up */
    RESTORE_FOUND,   /* the caller plans */
    RESTORE_STAGED,  /* it reads ahead, and has no blocks */
    RESTORE_RUNNING,
    RESTORE_ABANDONED, /* ended while reads were in flight; the I/O thread frees it */
};

struct restore {
    struct restore_pipeline *rr;
    struct restore *next;

    /* rr->lock */
    enum restore_state state;
    int n_out;                     /* groups that are not free */
    int n_in_flight;               /* of which the I/O thread has; a look-up, and a fetch */
    bool is_fetching;              /* the remote is asked: r->fetch is its */
    int64_t t_heard;               /* when that ended */
    char method[STORE_MAX_LAYERS]; /* the plan's letters, or what they were changed to */
    double io_done_s;              /* planned time of the reads that came back */
    int next_layer, next_chunk;    /* what is read next: an index into order, a chunk */
    int64_t io_ns, io_since;
    uint64_t read_bytes, direct_bytes, dram_bytes;
    uint8_t
        *sources;   /* [job.n_chunks]: SOURCE_..., where records of each chunk came from */
    int n_read;     /* groups that came back */
    bool *takes_kv; /* [job.n_chunks], or NULL: see restore_job; fixed while RUNNING */
    struct group_list parked; /* STAGED: groups that have come back */
    uint64_t stage_left;      /* STAGED: bytes that it may still ask for */
    uint64_t staged_bytes;    /* of read_bytes, when it was placed */
    struct restore_trace io_trace;

    /* fixed once FOUND */
    struct sha256 *keys; /* the root, then a key per full chunk */
    int n_keys;          /* without the root */
    int32_t *tokens;     /* [want.n_tokens] */
    struct restore_want want;
    struct store_hit *hits; /* [n_keys + 1] */
    bool owns_hits;
    struct restore_found found;
    struct remote_fetch *fetch; /* NULL: the remote was not asked, or what came is taken */

    /* fixed while STAGED or RUNNING, but for job.table: it comes with the place */
    struct restore_job job;
    bool may_replan;
    struct layer_cost {
        double io_h_s, io_kv_s, comp_h_s, comp_kv_s; /* as planned */
        bool has_both;
    } costs[STORE_MAX_LAYERS];
    double io_planned_s; /* of all reads */
    int64_t t_start;
    int16_t order[STORE_MAX_LAYERS]; /* layers in the order of their reads */
    int n_order;
    int n_recompute; /* R layers; a race makes them more */
    int n_groups;    /* that are to be read, about: chunks may differ in their kinds */
    int n_asked;     /* chunks, at first; job.n_chunks falls where a window is begun anew */
    /* The first chunk of each layer that is wanted: the job's, or later where attention has a
     * window. Of a recomputed layer: the first whose K, V and input are computed. */
    int start[STORE_MAX_LAYERS];

    atomic_int n_good;   /* chunks believed good so far */
    atomic_int is_raced; /* 1: recomputation races the reads */
    atomic_int n_raced;  /* chunks [0, n_raced) are recomputed: they are read no more */
    atomic_int
        has_lost_reads; /* 1: a read failed in a race, so recomputation must end it */
    pthread_mutex_t fault_lock; /* out.fault, and who lowers n_good */

    /* the compute lane's */
    bool is_stopped;
    int rc;        /* what it failed with, */
    char why[160]; /* and the device's words for it */
    struct {
        int row;      /* rows [0, row) are recomputed; the present piece begins here */
        int kept_out; /* records were not used up to this row: recomputation must reach it */
        int last; /* the piece passes layers up to this one, of which K and V only are wanted */
    } re;
    int layer_left[STORE_MAX_LAYERS]; /* chunks not yet in the cache */
    int64_t rows_by_method[3];
    int64_t kind_ns[STORE_KINDS], kind_rows[STORE_KINDS]; /* of records that arrived */
    struct restore_trace compute_trace;
    struct restore_result out;
};

struct restore_pipeline {
    struct restore_pipeline_opts o;
    size_t record_bytes[STORE_KINDS]; /* as stored, not padded */
    size_t record_room[STORE_KINDS];
    struct buf staging;
    size_t slot_bytes;
    int n_slots;
    struct group *groups; /* [n_slots] */

    pthread_t io;
    bool has_thread;
    pthread_mutex_t lock;  /* the lists, n_news, quit, and of each restore what says so */
    pthread_cond_t for_io; /* n_io_news has grown: a restore, a free slot, the end */
    pthread_cond_t for_compute; /* n_news has grown */
    struct group_list free, ready;
    struct restore *runs; /* not ended, in the order of their beginning */
    int n_in_flight;      /* groups */
    int n_fetches;        /* look-ups that wait for the remote, abandoned ones too */
    int64_t
        t_heard; /* when a group came back last, or the first of those in flight was issued */
    uint64_t n_io_news; /* things that the I/O thread may want to look at */
    uint64_t n_io_seen; /* of n_io_news */
    uint64_t n_news;    /* things that the compute lane may want to look at */
    bool quit;
    bool wants_measure; /* of the store's speed, on chunks of this model: */
    struct sha256 fingerprint;

    /* the I/O thread's */
    struct store_reader *reader;   /* NULL after a fault, until it opens one */
    struct store_fetcher *fetcher; /* NULL: nothing is fetched ahead; fixed */
    struct file_reader *files;     /* of the device; NULL: it has none */
    bool is_direct;                /* the next groups are read by `files` */
    int n_direct;                  /* groups that it has */
    struct group *direct_ended;    /* its reads have ended, the step has not seen it */
    int direct_rc;                 /* of the reader, when that group ended */
    struct err direct_err;         /* of direct_rc */
    int64_t direct_silent_ns;      /* waited for since a group of `files` ended */
    bool has_tier;                 /* the store's speed is known: */
    struct platform_tier tier;

    /* the compute lane's */
    uint64_t n_seen; /* of n_news */
    struct group *mine[MAX_MINE];
    int n_mine;
    struct stream *up;            /* copies to the device; NULL where memory is unified */
    struct buf twins[MAX_STAGES]; /* of the slots, on the stages */
    struct stream *check;        /* computes checksums of what is up; NULL: the host does */
    struct buf sums[MAX_STAGES]; /* [n_slots][GROUP] uint64_t: there, */
    struct buf sums_host;        /* and brought down (pinned) */
    struct group_list leaving;   /* queued on the device, in order */
    int n_leaving;
    int64_t t_last_done;
    struct restore *recomputing; /* whose piece is in x; NULL: none */
    struct model_pass pass;      /* of that piece */
    int re_queued;               /* its layers that were queued and not yet waited for, */
    int64_t t_re_queued;         /* since then */
    int64_t cost_ns;             /* of the last item, stalls left out */
    double row_ns[3];            /* what a row of R, H, K took lately; 0: not known */
    struct stream **inline_streams; /* one per compute thread */
    struct buf scratch[MAX_STAGES];
    /* On each stage: */
    struct mat kv_rows[MAX_STAGES]; /* [rows of o.work][2 * kv_dim] T: projected rows */
    struct residual x; /* [the same] one buffer: of the piece that is recomputed */
    int32_t *pos;      /* [max_tokens]: 0, 1, 2, ... */
};

/* Tokens in the first n chunks of the job. */
static inline int restore_tokens(const struct restore *r, int n)
{
    return n == 0 ? 0 : (n - 1) * STORE_CHUNK_TOKENS + r->job.hits[n - 1].n_tokens;
}
/* [lock, or not started] 'H' or 'K': what is read of a chunk, which may lack the kind that the plan
 * prefers; else 0. */
char restore_method_of(const struct restore *r, int layer, int chunk);
/* A chunk cannot be used: restore what precedes it.  In a race it is recomputed. Any thread. */
void restore_lose_chunk(struct restore *r, int chunk, int rc, const char *why);
/* Nothing comes back, and no chunk is to blame.  In a race: by reads. Any thread. */
void restore_give_up(struct restore *r, const char *why);
/* A fault of the device, not of the data: the restore fails. `why` may be empty. */
void restore_fail(struct restore *r, int rc, const char *why);
/* Frees a restore that has nothing in flight and is in no list. */
void restore_free(struct restore *r);
/* [lock] Whether the I/O thread has something left to read: of a staged restore, if it had its
 * place. */
bool restore_reads_remain(struct restore *r);
/* The job of a restore that has found its chunks is known. */
void restore_set_job(struct restore *r, const struct restore_job *job);
/* Whether a chunk was lost of a restore with windows: those of the chunks before it
 * begin earlier. */
bool restore_must_rewind(const struct restore *r);
/* The first row that records which arrive may still write, in a race; else 0.  The
 * compute lane's. */
int restore_race_row(const struct restore *r);
/* Whether the compute lane has something left to recompute. */
bool restore_recompute_remains(const struct restore *r);

int restore_open_reader(struct restore_pipeline *rr, struct err *err);
/* --- restore_io.c: the I/O thread's --- */
/* The thread: a loop around the next two. */
void *restore_io_main(void *pipeline);
/* Does the next of: a look-up, a measurement, submitting a group, collecting the reads that are
 * complete; where no restore has anything to be done, a piece of a fetch (store_fetch_step).
 * STEP_WAITS: only reads in flight, or news, can give it more to do. */
enum step restore_io_step(struct restore_pipeline *rr);
/* Behind STEP_WAITS.  Sleeps until a read is complete, or, if none is in flight, until there is
 * news that the step has not seen.  Beside a fetch it looks for news every millisecond. */
void restore_io_wait(struct restore_pipeline *rr);
/* [lock] There is something for the I/O thread. */
void restore_tell_io(struct restore_pipeline *rr);
/* --- restore_compute.c (its step is restore_pipeline_work) --- */
/* Forgets what the compute lane holds of a restore. */
void restore_drop_work(struct restore_pipeline *rr, struct restore *r);
/* The piece that is being recomputed is given up; what is queued of it runs. */
void restore_drop_piece(struct restore_pipeline *rr);
/* --- restore_replan.c --- */
/* The job is known, and the order of its reads. */
void restore_replan_begin(struct restore *r);
/* [lock] g has come back. */
void restore_replan_read(struct restore *r, const struct group *g);
/* The compute lane's: changes layers whose reads have not begun, where that gains enough. */
void restore_replan(struct restore *r);
/* --- restore_stage.c --- */
/* [lock] Whether a staged restore may read another group now, where no restore with a place has
 * reads left. */
bool restore_may_stage(const struct restore_pipeline *rr);
/* [lock] g is about to be read: of a staged restore it counts against what it may ask for. */
void restore_stage_takes(struct restore *r, const struct group *g);
/* --- restore_race.c: the compute lane's --- */
/* A piece has ended; the restore has n_tokens good ones. */
void restore_race_pieces_end(struct restore *r, int n_tokens);
/* --- restore_remote.c: the I/O thread's --- */
/* The local look-up has ended: asks the remote for the rest.  False where nothing is waited for. */
bool restore_remote_begin(struct restore *r);
/* The fetch has ended: looks up what came. */
void restore_remote_take(struct restore *r);
/* Offers the chunks that were found to the remote, where it takes what is used. */
void restore_remote_offer(struct restore *r);
/* --- restore_direct.c: the I/O thread's --- */
/* Behind restore_up_create. Opens the device's reader, if it is to be used and there is one. */
int restore_direct_open(struct restore_pipeline *rr, struct err *err);
void restore_direct_close(struct restore_pipeline *rr);
/* False where g, whose reads say what is wanted, has to be read in the ordinary way. */
bool restore_direct_submit(struct restore_pipeline *rr, struct group *g);
/* Only while n_direct > 0. Waits at most most_ns until a group has ended. Cancels
 * reads that hang. */
void restore_direct_wait(struct restore_pipeline *rr, int64_t most_ns);
/* Returns the group that the wait found to have ended, or NULL.  *again: it must be read in the
 * ordinary way. */
struct group *restore_direct_collect(struct restore_pipeline *rr, bool *again);
/* --- restore_up.c: the compute lane's --- */
int restore_up_create(struct restore_pipeline *rr, struct err *err);
void restore_up_destroy(struct restore_pipeline *rr);
/* Brings the records of chunks [first, end) of g up; what the compute stream gets
 * from now on finds them. */
/* [lock] g's twin, on the stage of its layer. */
void restore_up_place(const struct restore_pipeline *rr, struct group *g);
int restore_up(struct restore_pipeline *rr, struct group *g, int first, int end);
/* Where operations find record i of g. */
const uint8_t *restore_record(const struct restore_pipeline *rr, const struct group *g,
                              int i);
/* All of g is queued: it counts for its layer and goes back when the device is done with it. */
void restore_leave(struct restore_pipeline *rr, struct group *g);
/* Waits until no more than so many groups are leaving. */
void restore_settle(struct restore_pipeline *rr, int max_leaving);
/* What failed first on a stream that is the restore pipeline's own, or "". */
const char *restore_up_fault(const struct restore_pipeline *rr);
/* Lets those streams go on after a fault. */
void restore_up_recover(struct restore_pipeline *rr);
/* Device memory for checksums; 0 where the host computes them. */
size_t restore_sums_bytes(const struct device *d, int n_slots);

/* [lock] Gives a group back. */
void restore_group_done(struct restore_pipeline *rr, struct group *g);

#endif
