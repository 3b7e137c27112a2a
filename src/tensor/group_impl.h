/* group_impl.h - shared by the files of the device group; private to src/tensor.
 *
 *   group.c              the group's memory, streams and events, rank by rank
 *   group_ops.c          the group's table of operations
 *   collective_memory.c  exchanges between ranks that reach each other's memory
 *   cuda/untried/nccl.c  exchanges between GPUs */
#ifndef TENSOR_GROUP_IMPL_H
#define TENSOR_GROUP_IMPL_H

#include <pthread.h>

#include "tensor/device.h"
#include "tensor/group.h"
#include "tensor/ops.h"

/* Borrowed arrays: a stream for each rank of a stage, and an event for each stream. */
struct ranks {
    int n;
    struct stream *const *s;
    struct event *const *mark;
};

/* The exchange, on the ranks' own addresses. One thread at a time may call it. */
struct collective {
    int (*all_gather)(struct collective *c, const struct ranks *r, const struct mat *out,
                      const struct mat *in);
    void (*close)(struct collective *c);
};
int collective_memory_open(struct collective **out, struct err *err);
/* Does the same as all_gather of struct collective: each rank copies the other ranks' parts. */
int gather_by_copies(const struct ranks *r, const struct mat *out, const struct mat *in);
/* Opens exchanges between n_ranks GPUs from GPU `first` on, one rank each. ERR_UNSUPPORTED, with
 * the reason: NCCL is not available. */
int cuda_collective_open(const struct device *d, int first, int n_ranks,
                         struct collective **out, struct err *err);
/* Lets GPUs 0 to n - 1 copy from each other directly if the machine can; otherwise copies go
 * through the host. */
void cuda_connect(int n);

/* Memory that every rank of a stage has: bytes [at[r], at[r] + bytes) on rank r. */
struct extent {
    uint8_t *at[MAX_RANKS];
    size_t bytes;
    int stage;
};

struct group {
    struct device base;
    struct ops ops;
    int n; /* number of devices, ordered by stage, then by rank */
    struct device *rank[MAX_RANKS];
    struct collective *collective[MAX_STAGES]; /* NULL: the stage has one rank */
    pthread_mutex_t exchange; /* held during an exchange, so that there is one at a time */
    pthread_rwlock_t lock;    /* protects the extents */
    struct extent *extents;   /* in ascending order of at[0] */
    int n_extents, cap_extents;
};

/* A recording on a group (group_ops.c): work that contains exchanges is cut into the spans between
 * them. */
struct group_recording {
    const struct ragged *r;
    uint64_t key;
    const void *at;
    int (*queue)(void *arg);
    void *arg;
    int span;   /* the span that the ranks record or replay next */
    int passed; /* exchanges that the present call of queue has passed */
};

struct group_stream {
    struct stream base;
    int n;
    int only; /* the rank whose span is recorded; -1: operations go to all ranks */
    struct group_recording *recording; /* NULL: nothing is recorded */
    struct stream *s[MAX_RANKS];       /* one stream per device */
    struct event *mark[MAX_RANKS];
};

static inline struct group *group_of(const struct device *d)
{
    return (struct group *)d;
}
static inline struct group_stream *group_stream(struct stream *s)
{
    return (struct group_stream *)s;
}
/* Returns the stage to whose memory p belongs; 0 for host memory. */
int group_stage(struct group *g, const void *p);
/* Returns rank r's address of p, which is memory of this stage or of the host. */
void *group_address(struct group *g, const void *p, int stage, int r);
/* Makes device i current on the calling thread; call it before a call to the device. */
void group_enter(const struct group *g, int i);
/* Returns the stream's code, after turning a rank's fault into the group's. */
int group_code(struct stream *s);

/* Makes each rank record or replay the span that has just ended; called at each exchange and at the
 * end of a recording. */
int group_record_span(struct stream *s);

/* Returns the group's table of operations. `rank` is one of the group's devices. */
struct ops group_ops(const struct device *rank);

#endif
