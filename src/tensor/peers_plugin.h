/* peers_plugin.h - what hcache-mpi.so and the program agree on; for src/tensor and mpi/.
 *
 * The library exports one object, `hcache_peers_plugin`.  It has its own copies of the functions
 * of base/ and tensor/ that it uses; devices, streams and calls cross as pointers.  A fault of
 * MPI ends the whole job with a message: no process can go on without the others. */
#ifndef TENSOR_PEERS_PLUGIN_H
#define TENSOR_PEERS_PLUGIN_H

#include "tensor/device.h"
#include "tensor/ops.h"
#include "base/hash.h"
#include "tensor/peers.h"

struct io;

struct peers_plugin {
    int version;   /* PEERS_PLUGIN_VERSION */
    size_t layout; /* PEERS_PLUGIN_LAYOUT */
    /* The functions of peers.h. join also sets *n to the number of processes. */
    int (*join)(int *index, int *n, struct err *err);
    int (*serve)(void);
    void (*leave)(void); /* process 0 tells the others to end */
    /* Makes a group of shape->n_ranks and n_stages of devices called shape->name. It owns `first`,
     * this process's, also after an error. ERR_UNSUPPORTED: another group has the processes. */
    int (*group_open)(const struct device *shape, const struct device_opts *o,
                      struct device *first, struct pool *pool, struct device **out,
                      struct err *err);
    /* The functions of group.h, for a group. */
    int (*stage_alloc)(struct device *d, int stage, size_t bytes, struct buf *out,
                       struct err *err);
    struct stream *(*rank_stream)(struct stream *s, int stage, int rank);
    void *(*rank_address)(const struct device *d, const void *p, int rank);
    int (*all_gather)(struct stream *s, struct mat out, struct mat in);
    bool (*have_file)(struct device *d, const char *source, int n_tensors,
                      const struct sha256 *hash, struct err *why);
    int (*read_rows)(struct stream *s, const struct weight *w, int64_t dst_row, int number,
                     int64_t row, int64_t n);
    int (*kv_chunks_up)(struct stream *s, void *dst, const void *src, int n, size_t stride,
                        size_t bytes);
    int (*kv_rows_down)(struct stream *s, void *dst, struct mat own);
    /* As peers_disks. NULL: only process 0 has files. */
    struct io *(*disks)(struct io *own);
};

/* Raise this if the meaning of something that crosses changes. */
#define PEERS_PLUGIN_VERSION 5
/* Differs if one side was built with other structs. */
#define PEERS_PLUGIN_LAYOUT                                                                \
    (sizeof(struct buf) + 8191 * sizeof(struct device) + 131071 * sizeof(struct stream) +  \
     524287 * sizeof(struct ops))

/* Returns the library; NULL: the program runs alone. */
const struct peers_plugin *peers(void);
/* Sets the library and the number of processes. PEERS_ANY: as many as a group needs, for tests. */
enum { PEERS_ANY = 0 };
void peers_use(const struct peers_plugin *p, int n);
/* Returns ERR_USAGE or ERR_UNSUPPORTED, with the reason, if other processes run than a group of
 * this size has. */
int peers_check_number(int n_ranks, int n_stages, struct err *err);

#endif
