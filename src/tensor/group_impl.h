/* group_impl.h - what the files of the device group share; private to src/tensor.
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

/* A stream of each rank of a stage, and a mark in each: views. */
struct ranks {
    int n;
    struct stream *const *s;
    struct event *const *mark;
};

/* The two exchanges, on the ranks' own addresses. Called by one thread at a time. */
struct collective {
    int (*all_reduce)(struct collective *c, const struct ranks *r, const struct mat *x);
    int (*all_gather)(struct collective *c, const struct ranks *r, const struct mat *out,
                      const struct mat *in);
    void (*close)(struct collective *c);
};
int collective_memory_open(struct collective **out, struct err *err);
/* Its all_gather: each rank copies what the others have, by itself. */
int gather_by_copies(const struct ranks *r, const struct mat *out, const struct mat *in);
/* Between n_ranks GPUs from GPU `first` on, each of which is a rank; ERR_UNSUPPORTED, with the
 * reason, where NCCL is not there. */
int cuda_collective_open(const struct device *d, int first, int n_ranks,
                         struct collective **out, struct err *err);
/* GPUs 0 to n - 1 copy from each other directly, where the machine can; else such
 * copies go over the host. */
void cuda_connect(int n);

/* Memory that every rank of a stage has: bytes [at[r], at[r] + bytes) of rank r. */
struct extent {
    uint8_t *at[MAX_RANKS];
    size_t bytes;
    int stage;
};

struct group {
    struct device base;
    struct ops ops;
    int n; /* devices: stage by stage, the ranks of each */
    struct device *rank[MAX_RANKS];
    struct collective *collective[MAX_STAGES]; /* NULL where a stage has one rank */
    pthread_mutex_t exchange;                  /* one exchange at a time */
    pthread_rwlock_t lock;                     /* the extents */
    struct extent *extents;                    /* in ascending order of at[0] */
    int n_extents, cap_extents;
};

/* Recording on a group (group_ops.c): work with exchanges in it is cut into the
 * spans between them. */
struct group_recording {
    const struct ragged *r;
    uint64_t key;
    const void *at;
    int (*queue)(void *arg);
    void *arg;
    int span;   /* the next one that the ranks record or replay */
    int passed; /* exchanges that the present call of queue has passed */
};

struct group_stream {
    struct stream base;
    int n;
    int only; /* the rank whose span is recorded; -1: operations are for all ranks */
    struct group_recording *recording; /* NULL: none */
    struct stream *s[MAX_RANKS];       /* of each device */
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
/* The stage whose memory p is; 0 of host memory. */
int group_stage(struct group *g, const void *p);
/* Rank r's address of p, which is of this stage, or host memory. */
void *group_address(struct group *g, const void *p, int stage, int r);
/* Before a call to device i: it becomes the calling thread's. */
void group_enter(const struct group *g, int i);
/* The stream's code; a rank's fault becomes the group's. */
int group_code(struct stream *s);

/* At an exchange, and at the end: each rank records or replays the span before it. */
int group_record_span(struct stream *s);

/* The group's table, for ranks such as this one. */
struct ops group_ops(const struct device *rank);

#endif
