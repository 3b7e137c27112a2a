/* slots.h - which server of a Redis Cluster has which keys.  Pure.
 *
 * A cluster has 16,384 slots.  A key's slot is a checksum of it, and each slot
 * belongs to one master. */
#ifndef REMOTE_SLOTS_H
#define REMOTE_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { SLOTS = 16384, SLOTS_MAX_NODES = 128, SLOTS_NOBODY = 255, NODE_HOST_BYTES = 256 };

struct slots_node {
    char host[NODE_HOST_BYTES];
    int port;
};

struct slots {
    struct slots_node node[SLOTS_MAX_NODES]; /* masters that have slots */
    int n_nodes;
    uint8_t owner[SLOTS]; /* an index of node, or SLOTS_NOBODY */
};

/* The slot of a key.  Of a key with {braces} only the text in the first pair
 * counts, as Redis has it. */
int slot_of(const void *key, size_t n);

/* Reads the answer of CLUSTER NODES.  self: how the server that answers was reached; its own
 * line may have no address.  by_name: servers that have a host name are called by it, as TLS
 * needs it.  0, ERR_FORMAT, or ERR_LIMIT where there are too many masters. */
int slots_parse(const char *text, size_t n, const struct slots_node *self, bool by_name,
                struct slots *out, struct err *err);

/* Reads "MOVED 3999 host:port" and "ASK ...".  self: as above.  False where the text is neither. */
struct redirection {
    bool is_for_good; /* MOVED: from now on */
    int slot;
    struct slots_node to;
};
bool redirection_parse(const char *text, size_t n, const struct slots_node *self,
                       struct redirection *out);

/* The index of a node, which is added where it is not known; -1 where there is no room. */
int slots_node_index(struct slots *s, const struct slots_node *node);

#endif
