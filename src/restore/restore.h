/* restore.h - restores contexts: reads and compute hide each other (HCache §3, §4.1).
 *
 *   I/O thread   [find][K8 ][K9 ][H4 ][H5 ]..      store -> staging slots, in the plan's order
 *   compute lane [R0 r1][k8][k9][H4]..             staging -> KV blocks; recomputation fills gaps
 *
 * A restore pipeline owns the staging memory and one I/O thread, for as long as it lives. A
 * *restore* brings back one context. Several may run at once: their reads are issued in the
 * order of their start, one restore after the other, so that the first is not delayed by the
 * others.
 *
 *   restore_find             the I/O thread looks the context up
 *   restore_found            the caller plans
 *   restore_start            the reads begin
 *   restore_pipeline_work    the compute lane works, a piece at a time, until restore_is_done
 *   restore_end              frees the restore
 *
 * The compute lane is the caller's thread, and works only inside restore_pipeline_work: each
 * call does one work item that fits the caller's budget and never waits for I/O. So a restore
 * runs beside decodes, and decodes never wait for it. A caller with nothing else to do calls
 * restore_pipeline_wait. restore_end may be called at any moment, also while reads hang: it does
 * not wait for them.
 *
 * The unit of I/O is a *group*: up to RESTORE_GROUP_CHUNKS consecutive chunks of one layer whose
 * records are of one kind. A slot of staging memory holds one group; the number of slots bounds
 * the reads in flight. Work items may come in any order and any size: each writes its own
 * positions of its own layer, so the result has the same bits as a forward pass (ops.h).
 *
 * A layer whose attention has a sliding window gets back only the positions that this window
 * needs behind the context. A recomputed layer gets back the positions that the layers above it
 * need: one more window for each.
 *
 * A restore need not wait for reads that hang or crawl (restore/stall.h decides). restore_race
 * recomputes the context while the reads go on: rows that are recomputed are no longer read, and
 * the restore is done when either lane has brought the last row. Both write the same bits.
 * restore_stop ends the restore with the chunks that it has. In both cases reads may still be in
 * flight when the restore is done. They keep their staging memory until they end, and never
 * reach the cache.
 *
 * Every record is checked before any result relies on it. The host checks a record before it is
 * used. If the device checks (restore_checks_on_device), the record's layer counts as restored
 * only after the check; until then its results lie in blocks that no other code reads. A bad or
 * unreadable record does not fail the restore: the context comes back up to that chunk, the
 * chunk is condemned in the store, and the caller prefills the rest.
 *
 * Threads: everything belongs to one thread, the compute lane's. The restore pipeline owns the
 * I/O thread. */
#ifndef RESTORE_RESTORE_H
#define RESTORE_RESTORE_H

#include <stdbool.h>
#include <stdint.h>

#include "restore/kvcache.h"
#include "model/model.h"
#include "restore/plan.h"
#include "store/remote/remote.h"
#include "store/store.h"

enum { RESTORE_GROUP_CHUNKS = 8 };

#define RESTORE_NO_LIMIT INT64_MAX /* budget of a work item without a limit */

struct restore_pipeline;
struct restore;

/* Whether reads go from the disk straight into device memory (GPUDirect Storage). AUTO: if the
 * device can. OFF: never. ON: always; restore_pipeline_create fails if the device cannot. */
enum restore_direct { RESTORE_DIRECT_AUTO, RESTORE_DIRECT_OFF, RESTORE_DIRECT_ON };

extern const char *const restore_direct_names[];

struct restore_pipeline_opts {
    const struct model *model;
    struct store *store;
    const struct kv_pool *pool;
    /* Room for at least RESTORE_GROUP_CHUNKS * 64 rows: the most rows that are recomputed at
     * once. Used only inside restore_pipeline_work. */
    struct model_work *work;
    struct stream *stream; /* used only inside restore_pipeline_work */
    size_t staging_bytes;  /* memory for slots; raised to three slots if it is less */
    /* Where memory is unified: staging memory is provided at the first restore, and given back to
     * the system when no restore has used it for this time. 0: it is provided at the start, if the
     * store has state, or else at the first restore, and stays. */
    int64_t rest_ns;
    int max_tokens; /* most tokens of one context */
    enum restore_direct direct;
    /* While no restore wants the disk, the I/O thread fetches state that waiting requests need
     * (store_fetch_want) into the store's DRAM tier. */
    bool fetches;
    /* Remote from which chunks that the store lacks are fetched. NULL: there is no remote. */
    struct remote *remote;
    struct sha256 fingerprint; /* of the model */
};

/* Reserves staging memory (registered with the store's I/O) and scratch, and starts the I/O
 * thread. Everything in the options must outlive the pipeline. */
int restore_pipeline_create(const struct restore_pipeline_opts *o,
                            struct restore_pipeline **out, struct err *err);
/* Frees the pipeline. Every restore must have been ended. Waits for reads that are still in flight.
 * NULL is allowed. */
void restore_pipeline_destroy(struct restore_pipeline *r);
/* Returns the bytes reserved, for the table printed at start. */
size_t restore_pipeline_bytes(const struct restore_pipeline *r);
/* Returns the device memory of a restore pipeline on each stage; 0 where memory is unified. */
size_t restore_pipeline_device_bytes(const struct model *m, int max_rows,
                                     size_t staging_bytes);

/* Returns whether the device checks records, not the host. True for a device that has memory of its
 * own and one rank per stage, unless it was opened with checksums "host". If any other device was
 * opened with checksums "device", restore_pipeline_create fails. */
bool restore_checks_on_device(const struct device *d);

/* Has the I/O thread measure the store's read speed ahead of the first restore, on chunks of the
 * model. restore_found then reports the speed. */
void restore_pipeline_measure(struct restore_pipeline *r);

/* Returns whether the pipeline fetches into the store's DRAM tier: the options ask for it, and the
 * store has such a tier. */
bool restore_pipeline_fetches(const struct restore_pipeline *r);

/* restore_pipeline_want: a waiting request will need the chunks keys[0..n), which the KV pool
 * does not hold; see store_fetch_want. restore_pipeline_want_end: the request waits no longer,
 * or others may have the room that its chunks use. The I/O thread then looks for the next fetch.
 * Both do nothing if the pipeline does not fetch. */
void restore_pipeline_want(struct restore_pipeline *r, const void *id,
                           const struct sha256 *keys, int n, uint64_t turn);
void restore_pipeline_want_end(struct restore_pipeline *r, const void *id);

/* --- one restore ------------------------------------------------------------------------------ */

/* A context to restore: everything needed to name its chunks. */
struct restore_want {
    /* Keys [n_tokens / 64] of the full chunks, under `root`; copied. */
    const struct sha256 *root, *keys;
    const int32_t *tokens; /* [n_tokens], with has_next [n_tokens + 1]; copied */
    int n_tokens;          /* > 0 */
    /* A partial chunk may end with the token behind the n_tokens, which is computed again: the
     * prompt is one that was saved before. */
    bool has_next;
    /* For a truncated context: the first n_moved keys are those of the moved tokens
     * (store/truncation.h). They do not all follow one another, so no partial chunk is looked up
     * among these chunks. The chunk behind them is stored under the parent `stair`. */
    int n_moved;
    struct sha256 stair;
    struct store_use use; /* declared use of the chunks that are found */
    bool measure_io;
    uint64_t owner;         /* store owner of the chunks */
    int n_have;             /* tokens whose K and V are already in the cache */
    struct layer_set saved; /* layers of which the request saves records */
    /* Time to compute the tokens behind n_have; 0: wait for the remote without a bound. */
    double recompute_s;
    double recompute_half_s; /* time to compute the first half of those tokens */
    /* For a truncated context that lacks moved tokens. recompute_s is then the time to replay all
     * stairs: until all moved tokens are there, only a full replay can replace the missing ones.
     * stair_s is the time to compute the tokens behind the moved ones. */
    double stair_s;
    /* Time to restore the tokens behind n_have from the store if it had all of them; 0: unknown. */
    double restore_s;
};

/* Chunks of the context that the store has: the longest chain of full chunks, then the longest
 * partial chunk behind it, if any. They stay pinned until the restore ends. */
struct restore_found {
    /* [n_hits] owned by the restore. Only the last one may be partial. */
    const struct store_hit *hits;
    int n_hits;
    int n_beyond; /* tokens of the last hit behind the wanted ones: 0 or 1 */
    /* A snapshot of the recurrent layers' states stands behind hit n_snapshot - 1
     * (store_state_key); 0: none was found. */
    int n_snapshot;
    double snapshot_share; /* stored bytes of the snapshot over unpacked ones, at most 1 */
    int n_remote;  /* the last n_remote hits came from the remote for this restore */
    char why[200]; /* why the chain is not longer */
    /* Index of the first token where the context differs from the nearest stored one; -1:
     * unknown. */
    int differs_at;
    /* `tier` was measured: before the look-up, or on the chunks that the look-up found. */
    bool measured;
    struct platform_tier tier; /* valid if `measured` */
    struct err err;            /* code != 0: nothing can be read, and n_hits is 0 */
};

/* Begins a restore: the I/O thread looks up the context. If `measure_io` is set and the speed is
 * unknown, it also measures the store's read speed on the full chunks that it finds. */
struct restore *restore_find(struct restore_pipeline *rr, const struct restore_want *want);
/* Returns NULL during the look-up; then a result that is valid until restore_end. */
const struct restore_found *restore_found(const struct restore *r);
/* Returns the time when the remote last sent anything for the look-up (clock_now_ns); 0: it was
 * not asked. */
int64_t restore_heard_ns(struct restore *r);

struct restore_job {
    /* For restore_run only: [n_chunks], pinned by the caller. */
    const struct store_hit *hits;
    int n_chunks;          /* > first_chunk, at most the number found */
    int first_chunk;       /* chunks [0, first_chunk) are already in the table's blocks */
    const int32_t *tokens; /* tokens of all n_chunks chunks */
    const struct kv_table *table; /* has blocks for chunks [0, n_chunks) */
    const struct plan *plan;      /* a letter per layer, and the order of reads */
    /* [n_chunks - first_chunk], copied; NULL: false for every chunk. For the chunks with true, keys
     * and values are used wherever they are stored, whatever the plan's letter is: the chunks lie
     * in DRAM, where keys and values cost least. */
    const bool *takes_kv;
};

/* Starts the reads of a restore that has found its chunks. The job is copied; the data that it
 * points to must stay valid until restore_end. */
void restore_start(struct restore *r, const struct restore_job *job);
/* Returns whether every layer of the usable chunks is in the cache, or the restore has failed. If a
 * chunk or the snapshot was lost, this call may begin the restore again with fewer chunks. */
bool restore_is_done(struct restore *r);
/* Returns n: layers [0, n) are in the cache for every chunk of the job, so new tokens may pass
 * through them. Returns 0 once a chunk or a snapshot was lost. */
int restore_layers_ready(const struct restore *r);

/* Consecutive restored chunks whose records came from the same places. */
enum { RESTORE_PARTS = 8 };
struct restore_part {
    int n_tokens;
    bool from_dram,
        from_store; /* copies in the store's DRAM tier; the store's own medium */
};

struct restore_result {
    /* Chunks [0, n_chunks) are in the cache in every layer; at least the job's first_chunk. */
    int n_chunks;
    int n_tokens; /* tokens in these chunks */
    /* With attention windows, layers may have only the positions that they need. All layers have
     * the positions from first_token on. */
    int first_token;
    /* Bytes read, and the part of them that went straight into device memory. */
    uint64_t read_bytes, direct_bytes;
    uint64_t dram_bytes; /* part of read_bytes: from copies in the store's DRAM tier */
    uint64_t page_cache_bytes; /* part of read_bytes: the system's page cache had them */
    int dram_tokens;           /* tokens of chunks that were read from DRAM copies alone */
    /* Chunks [first_chunk, n_chunks) by their places. If there are more than RESTORE_PARTS parts,
     * the last one is the rest and has all places of the rest. */
    struct restore_part part[RESTORE_PARTS];
    int n_parts;
    int64_t total_ns;   /* from restore_start to the end */
    int64_t compute_ns; /* time that the compute lane worked for this restore */
    int64_t io_ns;      /* time with at least one read of this restore in flight */
    /* Time that the caller spent in restore_pipeline_wait during the restore. */
    int64_t wait_ns;
    /* Time that the compute lane worked on new tokens during the restore. The caller sets it. */
    int64_t prefill_ns;
    /* Idle share of the busier lane during the restore, or during the restore and the prefill
     * inside it. */
    double bubble;
    /* Number of (chunk, layer) pairs that the compute lane did by R, H, K. Work that a lost chunk
     * or a race made useless counts, too. */
    int n_by_method[3];
    /* Recomputation of layers [0, raced_layers) raced the reads; 0: no race. */
    int raced_layers;
    /* Tokens behind which the states of recurrent layers came from a snapshot; 0: these layers were
     * replayed or recomputed from the first token on. */
    int snapshot_tokens;
    bool has_lost_snapshot; /* a snapshot could not be used, and all layers began again */
    bool won;               /* recomputation won the race */
    char fault[160];        /* why fewer chunks came back than asked for; else empty */
};

/* Copies the spans of both lanes so far, [RESTORE_MAX_SPANS] each, and the restore's start. */
struct restore_trace;
void restore_trace_of(struct restore *r, struct restore_trace *io,
                      struct restore_trace *compute, int64_t *t_start);
/* Returns the result so far; final when the restore is done. The code is 0 also if fewer chunks
 * came back; an error means that the device or memory failed. */
int restore_result_of(struct restore *r, struct restore_result *out, struct err *err);

/* Progress of the reads of a running restore. A read is a group of records. */
struct restore_reads {
    int64_t elapsed_ns; /* time since restore_start */
    /* Time since any read of the pipeline completed, while the store had a read to do; 0 if the
     * restore itself keeps the I/O thread waiting. */
    int64_t silent_ns;
    int n_read, n_left;               /* groups of this restore */
    bool can_race, is_idle, is_raced; /* see struct stall_view (restore/stall.h) */
};
void restore_reads_of(struct restore *r, struct restore_reads *out);

/* Starts a race: recomputes every layer up to the last one that is not yet in the cache, beside
 * the reads. Returns false if that is impossible: layers have a window or a recurrent state, the
 * plan's own recomputation has not ended, or the restore is not running. */
bool restore_race(struct restore *r);
/* Ends the restore with the chunks that a race has recomputed, else with none. `why` becomes its
 * fault. Does nothing if it is not running. */
void restore_stop(struct restore *r, const char *why);

/* Returns the bubble (idle share of the busier lane) over makespan_ns, 0..1. Pure. */
double restore_bubble(const struct restore_result *r, int64_t makespan_ns);

/* Ends a restore in any state and frees it. The I/O thread waits for its reads in flight and
 * releases their pins. */
void restore_end(struct restore *r);

/* --- the compute lane ------------------------------------------------------------------------- */

/* Does one work item of any restore, cut to take about budget_ns at most (but at least the
 * smallest item). Returns false if there is nothing to do now. Arrived groups go first, to free
 * their slots, then recomputation. */
bool restore_pipeline_work(struct restore_pipeline *rr, int64_t budget_ns);
/* Returns the cost of the last work item: its time, but at most twice the recent time of such
 * work. A longer time was a stall of the machine, which is not charged to the restore. */
int64_t restore_pipeline_cost_ns(const struct restore_pipeline *rr);
/* Sleeps until there may be work, or a restore has found its chunks or is done. Returns false
 * after timeout_ns. */
bool restore_pipeline_wait(struct restore_pipeline *rr, int64_t timeout_ns);

/* Runs a whole restore of chunks that the caller has pinned. Waits for reads. */
int restore_run(struct restore_pipeline *rr, const struct restore_job *job,
                struct restore_result *out, struct err *err);

#endif
