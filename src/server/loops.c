/* loops.c - see loops.h. */
#include "server/loops.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "server/server.h"

enum {
    /* Connections that a loop accepts in one turn from each socket. Others are left to another
     * loop, or to the next turn. */
    MAX_ACCEPTED = 4,
    ACCEPT_PAUSE_MS = 100 /* pause when the system has no room for one more connection */
};

struct loop {
    struct loops *owner;
    pthread_t thread;
    struct MHD_Daemon *daemon;
    int epoll; /* descriptor of the daemon's epoll */
    int wake;  /* eventfd that wakes the loop */
    atomic_bool is_woken;
    int64_t pause_until_ns;
};

struct loops {
    struct loops_opts o;
    atomic_bool refuses, stops, has_warned;
    atomic_int_fast64_t longest_ns;
    /* Held from reading n_connections until a new connection is counted. */
    pthread_mutex_t accept_lock;
    int n;
    struct loop loop[];
};

static bool may_accept(struct loop *p)
{
    struct loops *l = p->owner;
    return !atomic_load(&l->refuses) && clock_now_ns() >= p->pause_until_ns &&
           atomic_load(l->o.n_connections) < l->o.max_connections;
}

static void accept_failed(struct loop *p, int error)
{
    struct loops *l = p->owner;
    /* Any other error means that no connection waits, or that it has gone again. */
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM)
        return;
    p->pause_until_ns = clock_now_ns() + ACCEPT_PAUSE_MS * (int64_t)1000000;
    if (!atomic_exchange(&l->has_warned, true))
        log_warn(
            "%d connections are open and the system allows no more (%s): new ones wait "
            "until some are closed",
            atomic_load(l->o.n_connections), strerror(error));
}

/* Accepts one connection. Returns false if no more can be accepted now. */
static bool accept_one(struct loop *p, int listening)
{
    struct loops *l = p->owner;
    struct sockaddr_storage from;
    socklen_t n = sizeof from;
    bool accepted = false;
    pthread_mutex_lock(&l->accept_lock);
    if (may_accept(p)) {
        int s = accept4(listening, (struct sockaddr *)&from, &n,
                        SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (s < 0)
            accept_failed(p, errno);
        /* Without memory for the connection, the library has already closed it. */
        accepted = s >= 0 &&
                   MHD_add_connection(p->daemon, s, (struct sockaddr *)&from, n) == MHD_YES;
    }
    pthread_mutex_unlock(&l->accept_lock);
    return accepted;
}

/* Returns the time until the daemon, or a pause, has something to do; -1: until a socket is
 * ready. */
static int timeout_ms(const struct loop *p)
{
    unsigned long long library = 0;
    int64_t ms = -1, pause = (p->pause_until_ns - clock_now_ns()) / 1000000;
    if (MHD_get_timeout(p->daemon, &library) == MHD_YES)
        ms = (int64_t)MIN(library, INT32_MAX);
    if (pause >= 0 && (ms < 0 || pause < ms))
        ms = pause + 1;
    return (int)ms;
}

/* Returns the processor time of this thread, which excludes other programs' work. */
static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void note_turn(struct loops *l, int64_t ns)
{
    int_fast64_t longest = atomic_load(&l->longest_ns);
    while (ns > longest && !atomic_compare_exchange_weak(&l->longest_ns, &longest, ns)) {
    }
}

static void *loop_main(void *arg)
{
    struct loop *p = arg;
    struct loops *l = p->owner;
    while (!atomic_load(&l->stops)) {
        uint64_t n;
        struct pollfd fd[2 + SERVER_MAX_HOSTS] = {{.fd = p->wake, .events = POLLIN},
                                                  {.fd = p->epoll, .events = POLLIN}};
        int n_fds = 2 + (may_accept(p) ? l->o.n_listening : 0);
        for (int i = 2; i < n_fds; i++)
            fd[i] = (struct pollfd){.fd = l->o.listen_sockets[i - 2], .events = POLLIN};
        (void)poll(fd, (nfds_t)n_fds, timeout_ms(p));
        if (fd[0].revents != 0)
            (void)!read(p->wake, &n, sizeof n);
        /* is_woken is cleared before the work, so a wake-up during it counts for the next turn. */
        atomic_store(&p->is_woken, false);
        for (int k = 2; k < n_fds; k++)
            for (int i = 0; i < MAX_ACCEPTED && fd[k].revents != 0; i++)
                if (!accept_one(p, fd[k].fd))
                    break;
        int64_t begin_ns = thread_ns();
        (void)MHD_run(p->daemon);
        note_turn(l, thread_ns() - begin_ns);
    }
    return NULL;
}

static void wake(struct loop *p)
{
    uint64_t one = 1;
    if (!atomic_exchange(&p->is_woken, true))
        (void)!write(p->wake, &one, sizeof one);
}

static int loop_start(struct loop *p, struct loops *l, struct MHD_Daemon *daemon)
{
    p->owner = l;
    p->daemon = daemon;
    p->epoll = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake < 0)
        return -errno;
    int rc = thread_create(&p->thread, loop_main, p);
    if (rc != 0) {
        close(p->wake);
        return -rc;
    }
    (void)pthread_setname_np(p->thread, "http");
    return 0;
}

int loops_start(const struct loops_opts *o, struct loops **out, struct err *err)
{
    struct loops *l = xcalloc(1, sizeof *l + (size_t)o->n * sizeof l->loop[0]);
    l->o = *o;
    pthread_mutex_init(&l->accept_lock, NULL);
    *out = l; /* *out is set before the first callback, which may use it */
    for (int rc = 0; l->n < o->n; l->n++) {
        if ((rc = loop_start(&l->loop[l->n], l, o->daemons[l->n])) != 0) {
            loops_stop(l);
            *out = NULL;
            return err_set(err, rc, "a thread of the server cannot be started: %s",
                           err_name(rc));
        }
    }
    return 0;
}

void loops_resume(struct loops *l, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *of = MHD_get_connection_info(
        c, MHD_CONNECTION_INFO_DAEMON);
    struct loop *p = l->loop;
    while (p->daemon != of->daemon)
        p++;
    MHD_resume_connection(c); /* the connection may end from here on */
    wake(p);
}

int64_t loops_longest_ns(const struct loops *l)
{
    return atomic_load(&l->longest_ns);
}

void loops_refuse(struct loops *l)
{
    atomic_store(&l->refuses, true);
    for (int i = 0; i < l->o.n_listening; i++) /* ends accepting, and wakes the loops */
        (void)shutdown(l->o.listen_sockets[i], SHUT_RDWR);
}

void loops_stop(struct loops *l)
{
    if (l == NULL)
        return;
    atomic_store(&l->stops, true);
    for (int i = 0; i < l->n; i++) {
        wake(&l->loop[i]);
        pthread_join(l->loop[i].thread, NULL);
        close(l->loop[i].wake);
    }
    pthread_mutex_destroy(&l->accept_lock);
    free(l);
}
