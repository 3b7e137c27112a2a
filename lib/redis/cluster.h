/* cluster.h - the servers behind one URL: one Redis, or all masters of a Redis Cluster.
 *
 *     command  -- slot of its key --> connection of that master      (cluster.c)
 *     answers  <-- in the order of the commands, from whichever master
 *
 * A cluster is recognised when the connection is opened (CLUSTER NODES); then each master is
 * connected. If a server answers MOVED or ASK, the command is sent again on a second connection to
 * the server that the answer names. After MOVED the table of slots is old: the owner of the struct
 * cluster closes it and opens a new one when nothing is in flight.
 *
 * A server that does not answer, or a slot without a server, is an error like that of a single
 * Redis: everything is closed. One thread at a time. */
#ifndef REDIS_CLUSTER_H
#define REDIS_CLUSTER_H

#include "redis/redis.h"
#include "redis/slots.h"

struct cluster;

/* Servers that can name the others. The server that answered last comes first. */
struct cluster_seeds {
    struct slots_node node[SLOTS_MAX_NODES];
    int n;
};

/* Connects to the first seed that answers, or else to the URL's server, and to all masters that
 * this server names. These masters become the seeds. */
int cluster_open(const struct redis_opts *o, struct cluster_seeds *seeds,
                 int64_t deadline_ns, struct cluster **out, struct err *err);
void cluster_close(struct cluster *c); /* NULL is allowed */

/* Returns whether a server has reported that the table of slots changed. */
bool cluster_is_old(const struct cluster *c);

/* Like redis_command and the other functions of redis.h. args[1] is the command's key (of XINFO:
 * args[2]). Arguments larger than 4 KiB are allowed only with nothing in flight (cluster_ask). */
int cluster_command(struct cluster *c, const struct redis_arg *args, int n_args,
                    int64_t deadline_ns, struct err *err);
int cluster_flush(struct cluster *c, int64_t deadline_ns, struct err *err);
int cluster_receive_some(struct cluster *c, int64_t deadline_ns, struct redis_answer *out,
                         bool *complete, struct err *err);
int cluster_receive(struct cluster *c, int64_t timeout_ns, struct redis_answer *out,
                    struct err *err);
int cluster_ask(struct cluster *c, const struct redis_arg *args, int n_args,
                int64_t timeout_ns, struct redis_answer *out, struct err *err);

/* Masters are numbered from 0. cluster_command_to sends a command without a key to one of them. The
 * answer comes in the order of the commands. */
int cluster_n_nodes(const struct cluster *c);
int cluster_command_to(struct cluster *c, int node, const struct redis_arg *args,
                       int n_args, int64_t deadline_ns, struct err *err);

#endif
