/* cluster.c - see cluster.h. */
#include "redis/cluster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"

enum { MOST_REDIRECTIONS = 5, MOST_COPIED_BYTES = 4096 };
/* Time limit for connecting to a server that a redirection names, in the middle of a fetch. */
#define FOLLOW_NS ((int64_t)1000 * 1000 * 1000)

/* A command whose answer has not come. */
struct flight {
    int node;
    /* copy of the command, to send it again after a redirection; NULL: it is never sent again */
    struct redis_arg *args;
    int n_args;
    bool is_borrowed; /* args belong to the caller, who waits for the answer */
};

struct cluster {
    struct redis_opts o;
    bool is_cluster, is_old;
    /* slots.node[0, n_masters) are connected; the nodes behind them were named by redirections */
    int n_masters;
    struct slots slots;
    struct redis *redis[SLOTS_MAX_NODES]; /* connection to each slots.node */
    /* Second connections to the nodes, for redirected commands; NULL: not opened yet. */
    struct redis *side[SLOTS_MAX_NODES];
    /* Commands without an answer: n_flight from `first` on in a ring, the oldest first. */
    struct flight *flight;
    size_t first, n_flight, max_flight;
    /* Node to which the oldest command was redirected; -1: it was not redirected. */
    int follows;
    /* Redirections of the oldest command; answers to ASKING that must still be skipped. */
    int n_redirections, n_to_skip;
};

/* --- opening ---------------------------------------------------------------------------------- */

/* Asks a server for the cluster that it belongs to. If there is one, fills in c->slots and sets
 * c->is_cluster. */
static int learn(struct cluster *c, struct redis *redis, const struct slots_node *self,
                 int64_t deadline_ns, struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("CLUSTER"), REDIS_TEXT("NODES")};
    struct redis_answer a = {0};
    int rc = redis_ask(redis, args, 2, deadline_ns - clock_now_ns(), &a, err);
    if (rc == 0 && a.kind == REDIS_BYTES) {
        c->is_cluster = true;
        rc = slots_parse((const char *)a.bytes, a.n_bytes, self, c->o.tls != NULL,
                         &c->slots, err);
    }
    redis_answer_deinit(&a);
    return rc;
}

static int connect_node(struct cluster *c, int i, int64_t deadline_ns, struct redis **out,
                        struct err *err)
{
    const struct slots_node *n = &c->slots.node[i];
    int rc = redis_open(&c->o, n->host, n->port, deadline_ns, out, err);
    return rc == 0 || !c->is_cluster
               ? rc
               : err_wrap(err, "the cluster's server %.200s:%d", n->host, n->port);
}

/* Connects to one server, and to all masters that its answer names. */
static int join(struct cluster *c, const struct slots_node *self, int64_t deadline_ns,
                struct err *err)
{
    struct redis *first = NULL;
    int rc = redis_open(&c->o, self->host, self->port, deadline_ns, &first, err);
    if (rc == 0)
        rc = learn(c, first, self, deadline_ns, err);
    if (rc == 0 && !c->is_cluster) {
        c->slots.node[0] = *self;
        c->slots.n_nodes = c->n_masters = 1;
        c->redis[0] = first;
        return 0;
    }
    redis_close(first); /* the first server may be a replica, which gets no commands */
    for (int i = 0; rc == 0 && i < c->slots.n_nodes; i++)
        rc = connect_node(c, i, deadline_ns, &c->redis[i], err);
    c->n_masters = c->slots.n_nodes;
    return rc;
}

static struct cluster *cluster_new(const struct redis_opts *o)
{
    struct cluster *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->follows = -1;
    return c;
}

int cluster_open(const struct redis_opts *o, struct cluster_seeds *seeds,
                 int64_t deadline_ns, struct cluster **out, struct err *err)
{
    struct slots_node url = {.port = o->url->port};
    struct cluster *c = NULL;
    int rc = -1;
    memcpy(url.host, o->url->host, sizeof url.host);
    for (int i = -1; i < seeds->n && rc != 0 && rc != ERR_CANCELLED; i++) {
        /* The last seed gets all the remaining time, each other seed gets half of the time that
         * remains then. */
        int64_t now = clock_now_ns();
        int64_t share_ns = (deadline_ns - now) / (i + 1 < seeds->n ? 2 : 1);
        cluster_close(c);
        c = cluster_new(o);
        rc = join(c, i < 0 ? &url : &seeds->node[i], now + share_ns, err);
    }
    if (rc != 0) {
        cluster_close(c);
        return rc;
    }
    seeds->n = c->is_cluster ? c->slots.n_nodes : 0;
    memcpy(seeds->node, c->slots.node, (size_t)seeds->n * sizeof seeds->node[0]);
    *out = c;
    return 0;
}

/* --- commands in flight ----------------------------------------------------------------------- */

static struct flight *flight_push(struct cluster *c)
{
    if (c->n_flight == c->max_flight) {
        size_t max = c->max_flight == 0 ? 64 : 2 * c->max_flight;
        struct flight *all = xcalloc(max, sizeof *all);
        for (size_t i = 0; i < c->n_flight; i++)
            all[i] = c->flight[(c->first + i) % c->max_flight];
        free(c->flight);
        c->flight = all;
        c->first = 0;
        c->max_flight = max;
    }
    struct flight *f = &c->flight[(c->first + c->n_flight++) % c->max_flight];
    *f = (struct flight){0};
    return f;
}

static void flight_pop(struct cluster *c)
{
    struct flight *f = &c->flight[c->first];
    if (!f->is_borrowed)
        free(f->args);
    c->first = (c->first + 1) % c->max_flight;
    c->n_flight--;
    c->follows = -1;
    c->n_redirections = 0;
}

/* Returns a copy of the arguments in one block. */
static struct redis_arg *args_copy(const struct redis_arg *args, int n_args)
{
    size_t n = 0;
    for (int i = 0; i < n_args; i++)
        n += args[i].n_bytes;
    CHECK(n <= MOST_COPIED_BYTES);
    struct redis_arg *copy = xmalloc((size_t)n_args * sizeof *copy + n);
    uint8_t *to = (uint8_t *)(copy + n_args);
    for (int i = 0; i < n_args; i++) {
        memcpy(to, args[i].bytes, args[i].n_bytes);
        copy[i] = (struct redis_arg){to, args[i].n_bytes};
        to += args[i].n_bytes;
    }
    return copy;
}

void cluster_close(struct cluster *c)
{
    if (c == NULL)
        return;
    while (c->n_flight > 0)
        flight_pop(c);
    for (int i = 0; i < SLOTS_MAX_NODES; i++) {
        redis_close(c->redis[i]);
        redis_close(c->side[i]);
    }
    free(c->flight);
    free(c);
}

bool cluster_is_old(const struct cluster *c)
{
    return c->is_old;
}

int cluster_n_nodes(const struct cluster *c)
{
    return c->n_masters;
}

/* --- sending commands ------------------------------------------------------------------------- */

/* Returns a command's key. XINFO STREAM is the one command whose key is not its first argument. */
static const struct redis_arg *key_of(const struct redis_arg *args, int n_args)
{
    bool is_xinfo = args[0].n_bytes == 5 && memcmp(args[0].bytes, "XINFO", 5) == 0;
    CHECK(n_args > (is_xinfo ? 2 : 1));
    return &args[is_xinfo ? 2 : 1];
}

/* Returns the node that has the command's key, or a negative code if there is none. */
static int node_of(const struct cluster *c, const struct redis_arg *args, int n_args,
                   struct err *err)
{
    const struct redis_arg *key = key_of(args, n_args);
    int slot = slot_of(key->bytes, key->n_bytes), node = c->slots.owner[slot];
    if (node == SLOTS_NOBODY)
        return err_set(err, -EHOSTUNREACH, "the cluster has no server for slot %d", slot);
    return node;
}

static int command(struct cluster *c, const struct redis_arg *args, int n_args,
                   bool borrows, int64_t deadline_ns, struct err *err)
{
    if (!c->is_cluster)
        return redis_command(c->redis[0], args, n_args, deadline_ns, err);
    int node = node_of(c, args, n_args, err);
    if (node < 0)
        return node;
    int rc = redis_command(c->redis[node], args, n_args, deadline_ns, err);
    struct flight *f = flight_push(c);
    *f = (struct flight){node, borrows ? (void *)args : args_copy(args, n_args), n_args,
                         borrows};
    return rc;
}

int cluster_command(struct cluster *c, const struct redis_arg *args, int n_args,
                    int64_t deadline_ns, struct err *err)
{
    return command(c, args, n_args, false, deadline_ns, err);
}

int cluster_command_to(struct cluster *c, int node, const struct redis_arg *args,
                       int n_args, int64_t deadline_ns, struct err *err)
{
    if (c->is_cluster)
        flight_push(c)->node = node;
    return redis_command(c->redis[node], args, n_args, deadline_ns, err);
}

int cluster_flush(struct cluster *c, int64_t deadline_ns, struct err *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < c->n_masters; i++)
        rc = redis_flush(c->redis[i], deadline_ns, err);
    if (rc == 0 && c->follows >= 0)
        rc = redis_flush(c->side[c->follows], deadline_ns, err);
    return rc;
}

/* --- receiving answers ------------------------------------------------------------------------ */

static void answer_begin(struct redis_answer *a)
{
    a->kind = REDIS_NONE;
    a->number = 0;
    a->n_bytes = 0;
}

/* Sends the oldest command again, to the server that the redirection names. */
static int follow(struct cluster *c, const struct redirection *to, struct err *err)
{
    struct flight *f = &c->flight[c->first];
    int node = slots_node_index(&c->slots, &to->to), rc = 0;
    int64_t deadline_ns = clock_now_ns() + FOLLOW_NS;
    if (node < 0 || ++c->n_redirections > MOST_REDIRECTIONS)
        return err_set(err, ERR_LIMIT, "the cluster keeps redirecting");
    c->is_old |= to->is_for_good || node >= c->n_masters;
    if (to->is_for_good && node < c->n_masters)
        c->slots.owner[to->slot] = (uint8_t)node;
    if (c->side[node] == NULL)
        rc = connect_node(c, node, deadline_ns, &c->side[node], err);
    if (rc == 0 && !to->is_for_good) {
        rc = redis_command(c->side[node], &REDIS_TEXT("ASKING"), 1, deadline_ns, err);
        c->n_to_skip++;
    }
    if (rc == 0)
        rc = redis_command(c->side[node], f->args, f->n_args, deadline_ns, err);
    if (rc == 0)
        c->follows = node;
    return rc;
}

int cluster_receive_some(struct cluster *c, int64_t deadline_ns, struct redis_answer *out,
                         bool *complete, struct err *err)
{
    struct redirection to;
    if (!c->is_cluster)
        return redis_receive_some(c->redis[0], deadline_ns, out, complete, err);
    CHECK(c->n_flight > 0);
    struct flight *f = &c->flight[c->first];
    struct redis *from = c->follows >= 0 ? c->side[c->follows] : c->redis[f->node];
    int rc = redis_receive_some(from, deadline_ns, out, complete, err);
    if (rc != 0 || !*complete)
        return rc;
    bool is_asking = c->n_to_skip > 0;
    bool is_elsewhere = !is_asking && f->args != NULL && out->kind == REDIS_REFUSED &&
                        redirection_parse(
                            (const char *)out->bytes, out->n_bytes,
                            &c->slots.node[c->follows >= 0 ? c->follows : f->node], &to);
    if (is_asking || is_elsewhere) {
        c->n_to_skip -= is_asking;
        *complete = false;
        answer_begin(out);
        return is_elsewhere ? follow(c, &to, err) : 0;
    }
    flight_pop(c);
    return 0;
}

int cluster_receive(struct cluster *c, int64_t timeout_ns, struct redis_answer *out,
                    struct err *err)
{
    int64_t deadline_ns = clock_now_ns() + timeout_ns;
    bool complete = false;
    int rc = 0;
    answer_begin(out);
    while (rc == 0 && !complete) {
        rc = cluster_flush(c, deadline_ns, err);
        if (rc == 0)
            rc = cluster_receive_some(c, deadline_ns, out, &complete, err);
        /* An answer that comes in small pieces has no more time than one that comes at once. */
        if (rc == 0 && !complete && clock_now_ns() >= deadline_ns)
            rc = err_set(err, -ETIMEDOUT, "the end of the remote's answer does not come");
    }
    return rc;
}

int cluster_ask(struct cluster *c, const struct redis_arg *args, int n_args,
                int64_t timeout_ns, struct redis_answer *out, struct err *err)
{
    int rc = command(c, args, n_args, true, clock_now_ns() + timeout_ns, err);
    return rc == 0 ? cluster_receive(c, timeout_ns, out, err) : rc;
}
