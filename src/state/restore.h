/* restore.h - bringing a context back: reads and compute that hide each other (HCache §3, §4.1).
 *
 *   I/O thread   [K8 ][K9 ][H4 ][H5 ]..          store -> staging slots, in the plan's order
 *   compute      [R0 ][R1 ][k8][k9][r2][H4]..    staging -> KV blocks; recomputation fills gaps
 *
 * The unit of work is a *group*: a run of up to RESTORE_GROUP_CHUNKS consecutive chunks of one layer
 * whose records are of one kind.  A slot of staging memory holds one group; the number of slots
 * bounds what is in flight.  Groups may be computed in any order: each writes its own positions of
 * its own layer, so the result has the same bits as a forward pass (ops.h).
 *
 * Every record is checked before it is used.  A bad or unreadable one does not fail the restore: the
 * context comes back up to that chunk, the chunk is condemned in the store, and the caller prefills
 * the rest. */
#ifndef STATE_RESTORE_H
#define STATE_RESTORE_H

#include <stdint.h>

#include "kvcache/kvcache.h"
#include "model/model.h"
#include "policy/plan.h"
#include "store/store.h"

enum { RESTORE_GROUP_CHUNKS = 8 };

struct restorer;

struct restorer_opts {
    const struct model *model;
    struct store *store;
    const struct kv_pool *pool;
    /* at least RESTORE_GROUP_CHUNKS * 64 rows; used during runs only */
    struct model_work *work;
    struct stream *stream; /* likewise */
    size_t staging_bytes;  /* bound on slots; raised to three of them */
    int max_tokens;        /* of one context */
};

/* Reserves staging (registered with the store's I/O once) and scratch. Everything in the options
 * must outlive it. */
int restorer_create(const struct restorer_opts *o, struct restorer **out, struct err *err);
void restorer_destroy(struct restorer *r);
size_t restorer_bytes(const struct restorer *r); /* for the table printed at start */

struct restore_job {
    const struct store_hit *hits; /* [n_chunks], pinned by the caller */
    int n_chunks;
    const int32_t *tokens;        /* [n_chunks * 64] */
    const struct kv_table *table; /* has the blocks [0, n_chunks) */
    const struct plan *plan;      /* a letter per layer, and the order of reads */
};

struct restore_result {
    int n_chunks; /* restored: [0, n_chunks) of every layer */
    uint64_t read_bytes;
    int64_t total_ns;
    int64_t compute_ns; /* compute lane busy */
    int64_t io_ns;      /* I/O lane busy: at least one read in flight */
    int64_t wait_ns;    /* compute lane idle, waiting for reads */
    int n_by_method[3]; /* chunk-layers restored by R, H, K as it came to be */
    char fault[160];    /* why fewer chunks than asked for; empty else */
};

/* Runs the whole restore on the calling thread (compute) and one I/O thread of its own.  Returns 0
 * also when fewer chunks came back; an error means that the device or memory failed. */
int restore_run(struct restorer *r, const struct restore_job *job,
                struct restore_result *out, struct err *err);

#endif
