/* peers_plugin.h - what hcache-mpi.so and the program agree on; for src/tensor and mpi/.
 *
 * The library exports one object, `hcache_peers_plugin`.  It has its own copies of the functions
 * of base/ and tensor/ that it uses; devices, streams and calls cross as pointers.  A fault of
 * MPI ends the whole job with a message: no process can go on without the others. */
#ifndef TENSOR_PEERS_PLUGIN_H
#define TENSOR_PEERS_PLUGIN_H

#include "tensor/call.h"
#include "tensor/group_impl.h"
#include "tensor/peers.h"

struct peers_plugin {
    int version;   /* PEERS_PLUGIN_VERSION */
    size_t layout; /* PEERS_PLUGIN_LAYOUT */
    /* The functions of peers.h. join also sets *n to the number of processes. */
    int (*join)(int *index, int *n, struct err *err);
    int (*serve)(void);
    void (*leave)(void); /* process 0 tells the others to end */
    /* Opens the peer `index` as a device. */
    int (*device_open)(const char *name, const struct device_opts *o, int index,
                       struct pool *pool, struct device **out, struct err *err);
    /* Returns whether the stream is a peer's. */
    bool (*is_peer)(const struct stream *s);
    /* Does all_gather of the n ranks of a stage, which are the processes from `first` on, with
     * their streams and their own addresses. One thread at a time may call it. */
    int (*gather)(struct stream *const *s, int n, int first, const struct mat *out,
                  const struct mat *in);
    /* Sends an operation to a peer. Returns the stream's sticky error. */
    int (*run)(struct stream *s, const struct call *c);
    /* Copies between two devices of which one at least is a peer, in the order of both streams. */
    int (*copy)(struct stream *to, void *dst, struct stream *from, const void *src,
                size_t bytes);
};

/* Raise this if the meaning of something that crosses changes. */
#define PEERS_PLUGIN_VERSION 2
/* Differs if one side was built with other structs. */
#define PEERS_PLUGIN_LAYOUT                                                                \
    (sizeof(struct call) + 8191 * sizeof(struct device) + 131071 * sizeof(struct stream) + \
     524287 * sizeof(struct ops))

/* Returns the library; NULL: the program runs alone. */
const struct peers_plugin *peers(void);
/* Sets the library and the number of processes. PEERS_ANY: as many as a group needs, for tests. */
enum { PEERS_ANY = 0 };
void peers_use(const struct peers_plugin *p, int n);
/* Takes all processes for a group. ERR_USAGE or ERR_UNSUPPORTED, with the reason: another number of
 * processes runs, or a group has them. Without processes both do nothing. */
int peers_take(int n_ranks, int n_stages, struct err *err);
void peers_give_back(void);

#endif
