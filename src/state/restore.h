/* restore.h - bringing contexts back: reads and compute that hide each other (HCache §3, §4.1).
 *
 *   I/O thread   [find][K8 ][K9 ][H4 ][H5 ]..      store -> staging slots, in the plan's order
 *   compute lane [R0 r1][k8][k9][H4]..             staging -> KV blocks; recomputation fills gaps
 *
 * A restore pipeline owns the staging memory and one I/O thread, for as long as it lives.  A
 * *restore* is one context on its way back.  Several may be under way: their reads are
 * issued in the order in which they were started, one restore after the other, so that the
 * first is not delayed by the others.
 *
 *   restore_find --> restore_found --> restore_start --> restore_pipeline_work ... restore_is_done --> restore_end
 *   (I/O thread      (the caller        (reads begin)     (the compute lane,
 *    looks up)        plans)                               a piece at a time)
 *
 * The compute lane is the caller's thread, and works only inside restore_pipeline_work: one work
 * item that fits the caller's budget, never waiting for I/O.  So a restore runs beside decodes,
 * which never wait for it; whoever has nothing else to do calls restore_pipeline_wait.
 * restore_end may be called at any moment, also while reads are stuck: it does not wait for them.
 *
 * A restore may be staged before its context has blocks: restore_stage reads ahead, restore_place
 * gives it its blocks.  Until then the compute lane does not touch it, and nothing that it has read
 * is checked.
 *
 * The unit of I/O is a *group*: a run of up to RESTORE_GROUP_CHUNKS consecutive chunks of one layer
 * whose records are of one kind.  A slot of staging memory holds one group; the number of slots
 * bounds what is in flight.  Work items may come in any order and any size: each writes its own
 * positions of its own layer, so the result has the same bits as a forward pass (ops.h).
 *
 * Layers whose attention has a sliding window get back only what that needs behind the context, and
 * a recomputed layer what those above it need: a window more for each.
 *
 * Reads that hang or crawl need not be waited for (policy/stall.h decides).  restore_race
 * recomputes the context while they go on: rows that are recomputed are not read anymore, and the
 * restore is done when either lane has brought the last row.  Both write the same bits.
 * restore_stop ends the restore with the chunks that it has.  In both cases reads may still be in
 * flight when the restore is done: they end in staging memory, which stays theirs until then, and
 * never reach the cache.
 *
 * Every record is checked before anything relies on it: before it is used, or, where the device
 * checks (see restore_checks_on_device), before its layer counts as restored: until then what
 * it gave lies in blocks that nobody has been told of.  A bad or unreadable one does not fail
 * the restore: the context comes back up to that chunk, the chunk is condemned in the store,
 * and the caller prefills the rest.
 *
 * Threads: everything belongs to one thread, the compute lane's; the I/O thread is
 * the restore pipeline's. */
#ifndef STATE_RESTORE_H
#define STATE_RESTORE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvcache/kvcache.h"
#include "model/model.h"
#include "policy/plan.h"
#include "remote/remote.h"
#include "store/store.h"

enum { RESTORE_GROUP_CHUNKS = 8 };

#define RESTORE_NO_LIMIT INT64_MAX /* as a budget */

struct restore_pipeline;
struct restore;

/* Whether what is read goes into the device's memory by itself (GPUDirect Storage): where it
 * can, never, or as a condition. */
enum restore_direct { RESTORE_DIRECT_AUTO, RESTORE_DIRECT_OFF, RESTORE_DIRECT_ON };

/* "auto" (NULL: as well), "off", "on"; else ERR_USAGE. */
int restore_direct_parse(const char *text, enum restore_direct *out, struct err *err);

struct restore_pipeline_opts {
    const struct model *model;
    struct store *store;
    const struct kv_pool *pool;
    /* at least RESTORE_GROUP_CHUNKS * 64 rows, so many at most are recomputed at once; used
     * inside restore_pipeline_work only */
    struct model_work *work;
    struct stream *stream; /* likewise */
    size_t staging_bytes;  /* bound on slots; raised to three of them */
    int max_tokens;        /* of one context */
    enum restore_direct direct;
    /* The I/O thread fetches what waiting requests need (store_fetch_want) into the store's
     * DRAM tier, while no restore wants the disk. */
    bool fetches;
    struct remote
        *remote; /* what the store lacks is fetched from there; NULL: there is none */
};

/* Reserves staging (registered with the store's I/O once) and scratch, and starts the I/O thread.
 * Everything in the options must outlive it. */
int restore_pipeline_create(const struct restore_pipeline_opts *o,
                            struct restore_pipeline **out, struct err *err);
/* Every restore was ended. Waits for reads that are still in flight. NULL is allowed. */
void restore_pipeline_destroy(struct restore_pipeline *r);
size_t restore_pipeline_bytes(
    const struct restore_pipeline *r); /* for the table printed at start */
/* Of each stage's own memory, what a restore pipeline takes; 0 where memory is unified. */
size_t restore_pipeline_device_bytes(const struct model *m, int max_rows,
                                     size_t staging_bytes);

/* Whether records are checked by the device, from its own memory, and not by the host: where it
 * has memory of its own and is one rank of each stage, unless it was opened with checksums
 * "host".  "device" on another device fails restore_pipeline_create. */
bool restore_checks_on_device(const struct device *d);

/* Has the I/O thread measure the store's read speed ahead of the first restore, on chunks of a
 * model that it holds; what is found (restore_found) then says that speed. */
void restore_pipeline_measure(struct restore_pipeline *r, const struct sha256 *fingerprint);

/* Whether it fetches into the store's DRAM tier: it was asked to, and there is one. */
bool restore_pipeline_fetches(const struct restore_pipeline *r);

/* A request that waits will need the chunks keys[0..n), which the KV pool does not hold; see
 * store_fetch_want.  It waits no longer, or what it was expected to use has become
 * room for others: the I/O thread looks for the next fetch.  Do nothing where the
 * pipeline does not fetch. */
void restore_pipeline_want(struct restore_pipeline *r, const void *id,
                           const struct sha256 *keys, int n, uint64_t turn);
void restore_pipeline_want_end(struct restore_pipeline *r, const void *id);

/* --- one restore ------------------------------------------------------------------------------ */

/* A context that is wanted back: what is needed to name its chunks. */
struct restore_want {
    const struct sha256 *root, *keys; /* keys [n_tokens / 64]; copied */
    const int32_t *tokens;            /* [n_tokens]; copied */
    int n_tokens;                     /* > 0 */
    /* Of a truncated context: the first n_moved keys do not all follow one another, so no partial
     * chunk is looked for before them.  The chunk behind them is stored under the parent stair. */
    int n_moved;
    struct sha256 stair;
    struct store_use use; /* of the chunks that are found */
    bool measure_io;
    uint64_t owner;     /* of the chunks */
    int n_have;         /* tokens whose K and V are in the cache already */
    double recompute_s; /* price of computing the others; 0: the remote is waited for */
    double recompute_half_s; /* and of computing the first half of them */
    double
        restore_s; /* price of restoring the others from the store, were all there; 0: not known */
};

/* What the store has of it: the longest chain of full chunks, and the longest partial chunk behind
 * that, if any.  The chunks stay pinned until the restore ends. */
struct restore_found {
    const struct store_hit
        *hits; /* [n_hits], the restore's; only the last may be partial */
    int n_hits;
    int n_remote;  /* of these, the last ones that came from the remote for this restore */
    char why[200]; /* why the chain is not longer */
    /* The first token where the context differs from the stored one that is
     * nearest; -1: not known */
    int differs_at;
    bool measured; /* `tier` was measured, as asked for: ahead, else on these hits; */
    struct platform_tier tier; /* only where there are any */
    struct err err;            /* code != 0: nothing can be read, n_hits is 0 */
};

/* Begins a restore: the I/O thread looks up, and, if `measure_io` and it has not done so
 * before, measures the store's read speed on the full chunks that it finds. */
struct restore *restore_find(struct restore_pipeline *rr, const struct restore_want *want);
/* NULL while it is being looked up; then valid until restore_end. */
const struct restore_found *restore_found(const struct restore *r);
/* When the remote has sent anything for the look-up (clock_now_ns); 0: it was not asked. */
int64_t restore_heard_ns(struct restore *r);

struct restore_job {
    const struct store_hit *hits; /* restore_run only: [n_chunks], pinned by the caller */
    int n_chunks;                 /* > first_chunk, at most as many as were found */
    int first_chunk;              /* those before it are in the table's blocks already */
    const int32_t *tokens;        /* of these chunks */
    const struct kv_table *table; /* has the blocks [0, n_chunks) */
    const struct plan *plan;      /* a letter per layer, and the order of reads */
    /* [n_chunks - first_chunk], copied; NULL: none.  Of these chunks keys and values are
     * used wherever they have them, whatever the plan's letter is: they lie in DRAM, where
     * keys and values cost the least. */
    const bool *takes_kv;
    /* [n_layers], copied: what the plan was made from.  The restore may then change the kind of
     * layers whose reads have not begun.  NULL: it is carried out as it is. */
    const struct plan_layer *layer;
};

/* Starts the reads of a restore that has found its chunks. The job is copied, what it points
 * to must stay until restore_end. */
void restore_start(struct restore *r, const struct restore_job *job);
/* Every layer of the chunks that could be used is in the cache, or the restore has failed. */
bool restore_is_done(struct restore *r);
/* Layers [0, n) are in the cache for every chunk of the job: new tokens may pass through them.  0
 * once a chunk was lost. */
int restore_layers_ready(const struct restore *r);

/* Begins to read a restore that has found its chunks *ahead of its place*: a staged restore.  The
 * job has no table yet.  What is read, about `bytes` at most, stays in staging memory.  Staged
 * restores read while no restore with a place wants the disk, two groups at a time, and leave it a
 * quarter of the slots. */
void restore_stage(struct restore *r, const struct restore_job *job, uint64_t bytes);
/* Returns how many groups staged restores may own, all together. */
int restore_stage_groups(const struct restore_pipeline *r);
/* Whether a look-up would find all chunks of the restore again. */
bool restore_stands(const struct restore *r);
/* Gives a staged restore its blocks.  From now on it is as if it was started, with what it has
 * read. */
void restore_place(struct restore *r, const struct kv_table *table);

struct restore_result {
    int n_chunks; /* there now: [0, n_chunks) of every layer, at least the job's first_chunk */
    int n_tokens; /* in these chunks */
    /* Where attention has a window, layers may have only the positions that it
     * needs: all have those from here on. */
    int first_token;
    uint64_t read_bytes, direct_bytes; /* of those, into the device's memory by itself */
    uint64_t dram_bytes;   /* of read_bytes: from copies in the store's DRAM tier */
    int dram_tokens;       /* tokens of chunks that were read from such copies alone */
    uint64_t staged_bytes; /* of read_bytes: read before the restore had its place */
    int64_t total_ns;      /* since restore_start, or restore_place */
    int64_t compute_ns;    /* compute lane busy with it */
    int64_t io_ns;         /* I/O lane busy: at least one of its reads in flight */
    int64_t wait_ns;       /* in restore_pipeline_wait meanwhile */
    int64_t prefill_ns;    /* compute lane busy with new tokens meanwhile: the caller's */
    /* Idle share of the busier lane: of the restore, or of the restore and the
     * prefill inside it. */
    double bubble;
    int n_by_method[3]; /* chunk-layers restored by R, H, K as it came to be */
    int raced_layers; /* recomputation of layers [0, raced_layers) raced the reads; 0: none did */
    bool won;         /* and ended first */
    int n_replanned; /* layers that were changed to the other kind of record, with repeats */
    char method[STORE_MAX_LAYERS + 1]; /* the letters as they came to be, but for a race */
    char fault[160];                   /* why fewer chunks than asked for; empty else */
};

/* What its lanes did so far: copies [RESTORE_MAX_SPANS] each, and when it was started. */
struct restore_trace;
void restore_trace_of(struct restore *r, struct restore_trace *io,
                      struct restore_trace *compute, int64_t *t_start);
/* What has become of it so far; final when it is done.  Returns 0 also when fewer chunks came
 * back; an error means that the device or memory failed. */
int restore_result_of(struct restore *r, struct restore_result *out, struct err *err);

/* How the reads of a running restore go.  A read is a group of records. */
struct restore_reads {
    int64_t elapsed_ns; /* since restore_start, or restore_place */
    /* Since any read of the pipeline was complete, while the store had a read to do; 0 where the
     * restore itself keeps the I/O thread waiting */
    int64_t silent_ns;
    int n_read, n_left;               /* of this restore */
    bool can_race, is_idle, is_raced; /* see policy/stall.h */
};
void restore_reads_of(struct restore *r, struct restore_reads *out);

/* Recomputes every layer up to the last one that is not yet in the cache, beside the reads.
 * Returns false where that cannot be done: where layers have a window, where the plan's own
 * recomputation has not ended, and where the restore is not running. */
bool restore_race(struct restore *r);
/* The restore is done, with the chunks that a race has recomputed, else with none. `why` is its
 * fault. Nothing where it is not running. */
void restore_stop(struct restore *r, const char *why);

/* The bubble over makespan_ns, 0..1. Pure. */
double restore_bubble(const struct restore_result *r, int64_t makespan_ns);

/* Ends a restore in any state and frees it.  Reads that are still in flight are waited for, and
 * their pins released, by the I/O thread. */
void restore_end(struct restore *r);

/* --- the compute lane ------------------------------------------------------------------------- */

/* Does one work item of any restore, cut so that it is expected to take no longer than
 * budget_ns (but at least the smallest there is); false where nothing can be done now.  What
 * has arrived goes first, so that its slot is free again, then recomputation. */
bool restore_pipeline_work(struct restore_pipeline *rr, int64_t budget_ns);
/* What the last work item cost: its time, but no more than twice what such work lately took.  A
 * stall of the machine would have hit whatever ran: it is not the restore's. */
int64_t restore_pipeline_cost_ns(const struct restore_pipeline *rr);
/* Sleeps until there may be work, a restore has found its chunks or is done; false
 * after timeout_ns. */
bool restore_pipeline_wait(struct restore_pipeline *rr, int64_t timeout_ns);

/* A whole restore of chunks that the caller has pinned, waiting as needed. */
int restore_run(struct restore_pipeline *rr, const struct restore_job *job,
                struct restore_result *out, struct err *err);

#endif
