/* group_impl.h - shared by the files of the device group; private to mpi/.
 *
 *   group.c              the group's memory, streams and events, rank by rank
 *   group_ops.c          the group's table of operations */
#ifndef MPI_GROUP_IMPL_H
#define MPI_GROUP_IMPL_H

#include <pthread.h>

#include "mpi/messages.h"
#include "tensor/device.h"
#include "tensor/group.h"
#include "tensor/ops.h"

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
    pthread_mutex_t exchange; /* held during an exchange, so that there is one at a time */
    pthread_rwlock_t lock;    /* protects the extents */
    struct extent *extents;   /* in ascending order of at[0] */
    int n_extents, cap_extents;
};

/* Operations reach the peers at once, and wait for this process's rank until a result is needed,
 * the ranks gather, or the stream ends (group_settle): otherwise a peer that is done would wait for
 * rank 0 at every operation. So a stream ends before the memory of its operations does. */
struct group_stream {
    struct stream base;
    struct messages own;    /* operations that wait */
    const int32_t **tables; /* for message_open */
    int n;
    struct stream *s[MAX_RANKS]; /* one stream per device */
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
/* Carries out the operations that wait for this process's rank. */
void group_settle(struct stream *s);
/* Returns the stream's code, after turning a rank's fault into the group's. */
int group_code(struct stream *s);

/* Returns the group's table of operations. `rank` is one of the group's devices. */
struct ops group_ops(const struct device *rank);

/* Functions of struct peers_plugin. */
int group_make(const struct device *shape, const struct device_opts *o,
               struct device *first, struct pool *pool, struct device **out,
               struct err *err);
int group_stage_alloc(struct device *d, int stage, size_t bytes, struct buf *out,
                      struct err *err);
struct stream *group_rank_stream(struct stream *s, int stage, int rank);
void *group_rank_address(const struct device *d, const void *p, int rank);
int group_all_gather(struct stream *s, struct mat out, struct mat in);
int group_kv_chunks_up(struct stream *s, void *dst, const void *src, int n, size_t stride,
                       size_t bytes);
int group_kv_rows_down(struct stream *s, void *dst, struct mat own);

#endif
