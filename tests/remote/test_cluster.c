/* test_cluster.c - a client of a cluster of three servers in this process: which server gets a
 * command, in which order answers come, and how redirections are followed. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "redis/cluster.h"
#include "tests/remote/listening.h"

/* the last node is not in the table of slots */
enum { MASTERS = 3, NODES = 4, MAX_CONNECTIONS = 32 };
#define SECOND ((int64_t)1000000000)

/* --- the servers ------------------------------------------------------------------------------ */

struct node {
    int idx, port, listener, n_connections;
    FILE *connection[MAX_CONNECTIONS];
    pthread_t accepter, thread[MAX_CONNECTIONS];
    atomic_int n_got; /* number of commands with a key that came */
};

static struct node nodes[NODES];
/* If moved[i] or asks[i] is not -1, node i redirects every key to that node, with MOVED or ASK. */
static atomic_int moved[NODES], asks[NODES];
static int first_slot = 0; /* slots below this number have no server */

static int node_of_slot(int slot)
{
    return slot * MASTERS / SLOTS;
}

static void write_table(FILE *out)
{
    char text[1024];
    int n = 0;
    for (int i = 0; i < MASTERS; i++) {
        int from = (i * SLOTS + MASTERS - 1) / MASTERS;
        int end = ((i + 1) * SLOTS + MASTERS - 1) / MASTERS;
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "id%d 127.0.0.1:%d@1 master - 0 0 %d connected %d-%d\n", i,
                      nodes[i].port, i, i == 0 ? first_slot : from, end - 1);
    }
    fprintf(out, "$%d\r\n%s\r\n", n, text);
}

static void answer_key(struct node *s, const char *key, bool is_asking, FILE *out)
{
    char text[80];
    int slot = slot_of(key, strlen(key)), to = atomic_load(&moved[s->idx]);
    int ask = atomic_load(&asks[s->idx]);
    atomic_fetch_add(&s->n_got, 1);
    if (to >= 0 && !is_asking)
        fprintf(out, "-MOVED %d 127.0.0.1:%d\r\n", slot, nodes[to].port);
    else if (ask >= 0)
        fprintf(out, "-ASK %d 127.0.0.1:%d\r\n", slot, nodes[ask].port);
    else
        fprintf(out, "$%d\r\n%s\r\n", snprintf(text, sizeof text, "%d:%s", s->idx, key),
                text);
}

/* Reads a command of at most 4 short arguments. Returns the number of arguments, 0 at the end. */
static int read_command(FILE *in, char args[4][64])
{
    char line[64];
    int n = fgets(line, sizeof line, in) != NULL ? atoi(line + 1) : 0;
    for (int i = 0; i < n; i++) {
        if (fgets(line, sizeof line, in) == NULL || fgets(args[i], 64, in) == NULL)
            return 0;
        args[i][strcspn(args[i], "\r")] = 0;
    }
    return n;
}

struct peer {
    struct node *s;
    FILE *in, *out;
};

static void *peer_main(void *arg)
{
    struct peer p = *(struct peer *)arg;
    char args[4][64];
    bool is_asking = false;
    sigset_t pipe_signal;
    free(arg);
    /* This thread may answer a client that has just left. Nothing protects the client's threads
     * from SIGPIPE, so a client that raises it ends this program. */
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
    for (int n; (n = read_command(p.in, args)) > 0; fflush(p.out)) {
        bool asked = is_asking;
        is_asking = strcmp(args[0], "ASKING") == 0;
        if (strcmp(args[0], "PING") == 0)
            fprintf(p.out, "+PONG\r\n");
        else if (is_asking)
            fprintf(p.out, "+OK\r\n");
        else if (strcmp(args[0], "CLUSTER") == 0)
            write_table(p.out);
        else if (strcmp(args[0], "WHO") == 0)
            fprintf(p.out, ":%d\r\n", p.s->idx);
        else
            answer_key(p.s, args[strcmp(args[0], "XINFO") == 0 ? 2 : 1], asked, p.out);
    }
    shutdown(fileno(p.in), SHUT_RDWR);
    fclose(p.out);
    return NULL;
}

static void *accepter_main(void *arg)
{
    struct node *s = arg;
    int fd;
    while ((fd = accept(s->listener, NULL, NULL)) >= 0) {
        struct peer *p = malloc(sizeof *p);
        int i = s->n_connections++;
        s->connection[i] = fdopen(fd, "r");
        *p = (struct peer){s, s->connection[i], fdopen(dup(fd), "w")};
        pthread_create(&s->thread[i], NULL, peer_main, p);
    }
    return NULL;
}

static void node_start(int i)
{
    struct node *s = &nodes[i];
    *s = (struct node){.idx = i};
    s->listener = listen_here(&s->port);
    assert_int_equal(pthread_create(&s->accepter, NULL, accepter_main, s), 0);
}

static void node_stop(struct node *s)
{
    if (s->listener < 0)
        return;
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->accepter, NULL);
    close(s->listener);
    s->listener = -1;
    for (int i = 0; i < s->n_connections; i++) {
        shutdown(fileno(s->connection[i]), SHUT_RDWR);
        pthread_join(s->thread[i], NULL);
        fclose(s->connection[i]);
    }
}

static int start(void **state)
{
    first_slot = 0;
    for (int i = 0; i < NODES; i++) {
        atomic_store(&moved[i], -1);
        atomic_store(&asks[i], -1);
        node_start(i);
    }
    return 0;
}

static int stop(void **state)
{
    for (int i = 0; i < NODES; i++)
        node_stop(&nodes[i]);
    return 0;
}

/* --- a client --------------------------------------------------------------------------------- */

static struct remote_url url;
static struct cluster_seeds seeds;

static int try_to_open(int first, struct cluster **out, struct err *err)
{
    char text[64];
    snprintf(text, sizeof text, "redis://127.0.0.1:%d", nodes[first].port);
    assert_int_equal(remote_url_parse(text, &url, err), 0);
    const struct redis_opts o = {.url = &url, .stop_fd = -1, .max_answer_bytes = 1 << 16};
    return cluster_open(&o, &seeds, clock_now_ns() + 60 * SECOND, out, err);
}

static struct cluster *open_at(int first)
{
    struct cluster *c;
    struct err err = {0};
    if (try_to_open(first, &c, &err) != 0)
        fail_msg("%s", err.msg);
    return c;
}

static void send_get(struct cluster *c, const char *key)
{
    struct err err = {0};
    const struct redis_arg args[] = {REDIS_TEXT("GET"), REDIS_TEXT(key)};
    if (cluster_command(c, args, 2, clock_now_ns() + 60 * SECOND, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Checks that the next answer is from this node and has this key. */
static void assert_next(struct cluster *c, int node, const char *key)
{
    struct redis_answer a = {0};
    struct err err = {0};
    char want[80];
    snprintf(want, sizeof want, "%d:%s", node, key);
    if (cluster_receive(c, 60 * SECOND, &a, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(a.kind, REDIS_BYTES);
    assert_string_equal((char *)a.bytes, want);
    redis_answer_deinit(&a);
}

static int owner_of(const char *key)
{
    return node_of_slot(slot_of(key, strlen(key)));
}

/* Returns a key that belongs to this node. */
static const char *key_of_node(int node)
{
    static char key[MASTERS][16];
    for (int i = 0;; i++) {
        snprintf(key[node], sizeof key[node], "key%d", i);
        if (owner_of(key[node]) == node)
            return key[node];
    }
}

static int n_got(int node)
{
    return atomic_load(&nodes[node].n_got);
}

/* --- the tests -------------------------------------------------------------------------------- */

TEST_WITH(a_command_goes_to_the_owner_of_its_key, start, stop)
{
    /* So many commands at once that the list of sent commands grows, and wraps round its end. */
    enum { N = 300, AT_ONCE = 130 };
    char key[16];
    seeds.n = 0;
    struct cluster *c = open_at(1);
    assert_int_equal(cluster_n_nodes(c), MASTERS);
    assert_false(cluster_is_old(c));
    for (int sent = 0, got = 0; got < N; got++) {
        for (; sent < N && sent < got + AT_ONCE; sent++) {
            snprintf(key, sizeof key, "k%d", sent);
            send_get(c, key);
        }
        snprintf(key, sizeof key, "k%d", got);
        assert_next(c, owner_of(key), key);
    }
    assert_int_equal(n_got(0) + n_got(1) + n_got(2), N);
    assert_true(n_got(0) > N / 5 && n_got(1) > N / 5 && n_got(2) > N / 5);
    cluster_close(c);
}

TEST_WITH(a_stream_is_asked_for_by_its_name, start, stop)
{
    struct redis_answer a = {0};
    seeds.n = 0;
    struct cluster *c = open_at(0);
    const char *key = key_of_node(2);
    const struct redis_arg args[] = {REDIS_TEXT("XINFO"), REDIS_TEXT("STREAM"),
                                     REDIS_TEXT(key)};
    assert_int_equal(cluster_ask(c, args, 3, 60 * SECOND, &a, NULL), 0);
    assert_int_equal(a.bytes[0], '2');
    redis_answer_deinit(&a);
    cluster_close(c);
}

TEST_WITH(each_server_can_be_told_something, start, stop)
{
    const struct redis_arg who = REDIS_TEXT("WHO");
    struct redis_answer a = {0};
    seeds.n = 0;
    struct cluster *c = open_at(0);
    for (int i = 0; i < MASTERS; i++)
        assert_int_equal(cluster_command_to(c, MASTERS - 1 - i, &who, 1,
                                            clock_now_ns() + 60 * SECOND, NULL),
                         0);
    for (int i = 0; i < MASTERS; i++) {
        assert_int_equal(cluster_receive(c, 60 * SECOND, &a, NULL), 0);
        assert_int_equal(a.number, MASTERS - 1 - i);
    }
    redis_answer_deinit(&a);
    cluster_close(c);
}

/* The first server in the table is followed like any other, for good or for one command, also when
 * it redirects in turn. */
TEST_WITH(the_first_server_is_followed, start, stop)
{
    for (int for_good = 0; for_good < 2; for_good++) {
        seeds.n = 0;
        struct cluster *c = open_at(0);
        const char *key = key_of_node(1);
        atomic_store(&moved[1], for_good ? 0 : -1);
        atomic_store(&asks[1], for_good ? -1 : 0);
        send_get(c, key);
        assert_next(c, 0, key);
        assert_int_equal(cluster_is_old(c), for_good);
        atomic_store(&asks[0], 2); /* node 0 redirects the command once more */
        atomic_store(&moved[0], -1);
        send_get(c, key);
        assert_next(c, 2, key);
        atomic_store(&asks[0], -1);
        atomic_store(&moved[1], -1);
        atomic_store(&asks[1], -1);
        cluster_close(c);
    }
}

/* All slots of a server have moved for good: the first command is redirected, and later ones go to
 * the new owner at once. */
TEST_WITH(a_move_is_remembered, start, stop)
{
    seeds.n = 0;
    struct cluster *c = open_at(0);
    const char *key = key_of_node(1), *other = key_of_node(0);
    atomic_store(&moved[1], 2);
    send_get(c, other);
    send_get(c, key);
    send_get(c, other);
    assert_next(c, 0, other);
    assert_false(cluster_is_old(c));
    assert_next(c, 2, key);
    assert_true(cluster_is_old(c));
    assert_next(c, 0, other);
    assert_int_equal(n_got(1), 1);
    send_get(c, key);
    assert_next(c, 2, key);
    assert_int_equal(n_got(1), 1);
    cluster_close(c);
}

/* One key is on its way to another server: only this command goes there, and the next one is sent
 * to the old owner again. */
TEST_WITH(an_ask_is_not_remembered, start, stop)
{
    seeds.n = 0;
    struct cluster *c = open_at(0);
    const char *key = key_of_node(1);
    atomic_store(&asks[1], 2);
    atomic_store(&moved[2], 1); /* node 2 redirects a key that comes without ASKING */
    send_get(c, key);
    send_get(c, key);
    assert_next(c, 2, key);
    assert_next(c, 2, key);
    assert_false(cluster_is_old(c));
    assert_int_equal(n_got(1), 2);
    atomic_store(&asks[1], -1);
    send_get(c, key);
    assert_next(c, 1, key);
    cluster_close(c);
}

TEST_WITH(a_new_server_is_followed, start, stop)
{
    seeds.n = 0;
    struct cluster *c = open_at(0);
    const char *key = key_of_node(1);
    atomic_store(&asks[1], 3);
    send_get(c, key);
    assert_next(c, 3, key);
    assert_true(cluster_is_old(c)); /* the table of slots lacks the new server */
    assert_int_equal(cluster_n_nodes(c), MASTERS);
    atomic_store(&asks[1], -1);
    atomic_store(&moved[1], 3);
    send_get(c, key);
    send_get(c, key);
    assert_next(c, 3, key);
    assert_next(c, 3, key);
    /* the new server has no place in the table, so each command still goes to the old owner
     * first */
    assert_int_equal(n_got(1), 3);
    cluster_close(c);
}

TEST_WITH(redirections_have_an_end, start, stop)
{
    struct redis_answer a = {0};
    struct err err = {0};
    seeds.n = 0;
    struct cluster *c = open_at(0);
    atomic_store(&moved[1], 2);
    atomic_store(&moved[2], 1);
    send_get(c, key_of_node(1));
    assert_int_equal(cluster_receive(c, 60 * SECOND, &a, &err), ERR_LIMIT);
    assert_string_equal(err.msg, "the cluster keeps redirecting");
    assert_int_equal(n_got(1) + n_got(2), 1 + 5);
    redis_answer_deinit(&a);
    cluster_close(c);
}

/* The limit of five redirections is for each command separately. */
TEST_WITH(redirections_are_counted_for_each_command, start, stop)
{
    seeds.n = 0;
    struct cluster *c = open_at(0);
    const char *key = key_of_node(1);
    atomic_store(&asks[1], 2);
    for (int i = 0; i < 8; i++) {
        send_get(c, key);
        assert_next(c, 2, key);
    }
    cluster_close(c);
}

TEST_WITH(a_slot_may_have_no_server, start, stop)
{
    char want[80];
    struct err err = {0};
    const char *key = key_of_node(0);
    const struct redis_arg args[] = {REDIS_TEXT("GET"), REDIS_TEXT(key)};
    int slot = slot_of(key, strlen(key));
    first_slot = slot + 1;
    seeds.n = 0;
    struct cluster *c = open_at(0);
    assert_int_equal(cluster_command(c, args, 2, clock_now_ns() + 60 * SECOND, &err),
                     -EHOSTUNREACH);
    snprintf(want, sizeof want, "the cluster has no server for slot %d", slot);
    assert_string_equal(err.msg, want);
    cluster_close(c);
}

/* If the server of the URL does not answer, the servers found earlier are asked for the table
 * first. */
TEST_WITH(any_server_can_name_the_others, start, stop)
{
    struct cluster *c;
    struct err err = {0};
    seeds.n = 0;
    /* node 3 answers like a replica, with a table of the masters */
    cluster_close(open_at(3));
    assert_int_equal(seeds.n, MASTERS);
    for (int i = 0; i < MASTERS; i++)
        assert_int_equal(seeds.node[i].port, nodes[i].port);
    node_stop(&nodes[3]);
    c = open_at(3);
    assert_int_equal(cluster_n_nodes(c), MASTERS);
    cluster_close(c);
    seeds.n = 0;
    assert_true(try_to_open(3, &c, &err) < 0);
}

TEST_WITH(every_master_must_answer, start, stop)
{
    struct cluster *c;
    struct err err = {0};
    char want[80];
    seeds.n = 0;
    node_stop(&nodes[2]);
    assert_true(try_to_open(0, &c, &err) < 0);
    snprintf(want, sizeof want, "the cluster's server 127.0.0.1:%d", nodes[2].port);
    assert_non_null(strstr(err.msg, want));
    assert_int_equal(seeds.n, 0);
}

TEST_WITH(commands_may_be_in_flight_at_the_end, start, stop)
{
    seeds.n = 0;
    struct cluster *c = open_at(0);
    for (int i = 0; i < 70; i++)
        send_get(c, key_of_node(i % MASTERS));
    assert_next(c, 0, key_of_node(0));
    cluster_close(c);
    cluster_close(NULL);
}

int main(void)
{
    alarm(300);
    return unit_run(NULL, NULL);
}
