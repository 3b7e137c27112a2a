/* slots.h - which server of a Redis Cluster has which keys. Pure.
 *
 * A cluster has 16,384 slots. A key's slot is a checksum of the key, and each slot belongs to
 * one master. */
#ifndef REDIS_SLOTS_H
#define REDIS_SLOTS_H

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
    uint8_t owner[SLOTS]; /* an index of `node`, or SLOTS_NOBODY */
};

/* Returns the slot of a key. In a key with {braces} only the text in the first pair counts, as
 * in Redis. */
int slot_of(const void *key, size_t n);

/* Reads the answer of CLUSTER NODES. self: address of the answering server, whose own line may have
 * no address. by_name: a server that has a host name is reached by that name, as TLS needs. Returns
 * 0, ERR_FORMAT, or ERR_LIMIT if there are too many masters. */
int slots_parse(const char *text, size_t n, const struct slots_node *self, bool by_name,
                struct slots *out, struct err *err);

/* Reads "MOVED 3999 host:port" and "ASK ...". self: address of the answering server, for a missing
 * host. Returns false if the text is neither. */
struct redirection {
    /* MOVED: valid from now on; false: ASK, valid for this command only */
    bool is_for_good;
    int slot;
    struct slots_node to;
};
bool redirection_parse(const char *text, size_t n, const struct slots_node *self,
                       struct redirection *out);

/* Returns the index of a node, which is added if it is not known; -1 if there is no room. */
int slots_node_index(struct slots *s, const struct slots_node *node);

#endif
