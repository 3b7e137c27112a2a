/* group_impl.h - what the files of the device group share; private to src/tensor.
 *
 *   group.c              the group's memory, streams and events, rank by rank
 *   group_ops.c          the group's table of operations
 *   collective_memory.c  exchanges between ranks that reach each other's memory
 *   cuda/cuda_nccl.c     exchanges between GPUs */
#ifndef TENSOR_GROUP_IMPL_H
#define TENSOR_GROUP_IMPL_H

#include <pthread.h>

#include "tensor/device.h"
#include "tensor/group.h"
#include "tensor/ops.h"

/* A stream of each rank, and a mark in each. */
struct ranks {
    int n;
    struct stream *s[MAX_RANKS];
    struct event *mark[MAX_RANKS];
};

/* The two exchanges, on the ranks' own addresses. Called by one thread at a time. */
struct collective {
    int (*all_reduce)(struct collective *c, const struct ranks *r, const struct mat *x);
    int (*all_gather)(struct collective *c, const struct ranks *r, const struct mat *out,
                      const struct mat *in);
    void (*close)(struct collective *c);
};
int collective_memory_open(struct collective **out, struct err *err);
/* Between GPUs, each of which is a rank; ERR_UNSUPPORTED, with the reason, where NCCL is not there. */
int cuda_collective_open(int n_ranks, struct collective **out, struct err *err);

/* Memory that every rank has: bytes [at[r], at[r] + bytes) of rank r. */
struct extent {
    uint8_t *at[MAX_RANKS];
    size_t bytes;
};

struct group {
    struct device base;
    struct ops ops;
    int n;
    struct device *rank[MAX_RANKS];
    struct collective *collective;
    pthread_mutex_t exchange; /* one exchange at a time */
    pthread_rwlock_t lock;    /* the extents */
    struct extent *extents;   /* in ascending order of at[0] */
    int n_extents, cap_extents;
};

struct group_stream {
    struct stream base;
    struct ranks of;
};

static inline struct group *group_of(const struct device *d)
{
    return (struct group *)d;
}
static inline struct group_stream *group_stream(struct stream *s)
{
    return (struct group_stream *)s;
}
/* rank r's address of p. */
void *group_address(struct group *g, const void *p, int r);
/* Before a call to rank r: its device becomes the calling thread's. */
void group_enter(const struct group *g, int r);
/* The stream's code; a rank's fault becomes the group's. */
int group_code(struct stream *s);

/* The group's table, for ranks such as this one. */
struct ops group_ops(const struct device *rank);

#endif
