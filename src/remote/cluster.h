/* cluster.h - the servers behind one URL: one Redis, or all masters of a Redis Cluster.
 *
 *     command  -- slot of its key --> connection of that master      (cluster.c)
 *     answers  <-- in the order of the commands, whichever master has them
 *
 * A cluster is recognised when the connection is opened (CLUSTER NODES), and each master is
 * connected then.  A server that answers MOVED or ASK is followed: the command is sent again on a
 * second connection of the server that it names.  Behind MOVED the table is old, and its owner
 * opens a new one when nothing is in flight.
 *
 * A server that does not answer, or a slot that belongs to nobody, is an error like that of a
 * single Redis: everything is closed.  One thread at a time. */
#ifndef REMOTE_CLUSTER_H
#define REMOTE_CLUSTER_H

#include "remote/redis.h"
#include "remote/slots.h"

struct cluster;

/* Servers that may be asked for the others, the one that answered last first. */
struct cluster_seeds {
    struct slots_node node[SLOTS_MAX_NODES];
    int n;
};

/* Connects to the first seed that answers, or else to the URL's server, and to all masters that
 * it names.  The seeds become the masters. */
int cluster_open(const struct redis_opts *o, struct cluster_seeds *seeds,
                 int64_t deadline_ns, struct cluster **out, struct err *err);
void cluster_close(struct cluster *c); /* NULL is allowed */

/* Whether a server has said that the table of slots has changed. */
bool cluster_is_old(const struct cluster *c);

/* As redis_command and the others.  args[1] is the command's key (of XINFO: args[2]).
 * Arguments larger than 4 KiB: with nothing in flight only (cluster_ask). */
int cluster_command(struct cluster *c, const struct redis_arg *args, int n_args,
                    int64_t deadline_ns, struct err *err);
int cluster_flush(struct cluster *c, int64_t deadline_ns, struct err *err);
int cluster_receive_some(struct cluster *c, int64_t deadline_ns, struct redis_answer *out,
                         bool *complete, struct err *err);
int cluster_receive(struct cluster *c, int64_t timeout_ns, struct redis_answer *out,
                    struct err *err);
int cluster_ask(struct cluster *c, const struct redis_arg *args, int n_args,
                int64_t timeout_ns, struct redis_answer *out, struct err *err);

/* Masters, numbered from 0, and a command without a key to one of them.  Its answer
 * comes in turn. */
int cluster_n_nodes(const struct cluster *c);
int cluster_command_to(struct cluster *c, int node, const struct redis_arg *args,
                       int n_args, int64_t deadline_ns, struct err *err);

#endif
