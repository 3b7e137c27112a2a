/* loops.h - the threads of the HTTP side. Each has one instance (daemon) of the HTTP library, waits
 * for the daemon's sockets, accepts connections and runs the daemon.
 *
 * The library could run its own threads, but those may stall. libmicrohttpd 0.9.75 fetches events
 * 128 at a time. If exactly 128 sockets are ready, it fetches again, and waits, before it serves
 * any of them, until another event or the idle timeout of its oldest connection. Driven from
 * outside it never waits. The bound on connections is then one bound, not one per thread, and no
 * thread of the library is in the way when the server stops listening.
 *
 * A connection stays with the loop that accepted it. All callbacks of its daemon run there. */
#ifndef SERVER_LOOPS_H
#define SERVER_LOOPS_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/err.h"

struct loops;

struct loops_opts {
    /* [n] daemons, started without thread and listening socket */
    struct MHD_Daemon *const *daemons;
    int n;
    const int *listen_sockets; /* [n_listening] non-blocking */
    int n_listening;           /* at most SERVER_MAX_HOSTS */
    /* Most connections of all daemons together. At this number no connection is accepted, and new
     * ones wait in the kernel's queue. The daemons' callback (MHD_OPTION_NOTIFY_CONNECTION) counts
     * them in n_connections. */
    int max_connections;
    const atomic_int *n_connections;
};

/* Starts the loops. The daemons and the socket stay the caller's, and outlive the loops. */
int loops_start(const struct loops_opts *o, struct loops **out, struct err *err);
/* Resumes a connection (MHD_resume_connection), and wakes its loop. Any thread. */
void loops_resume(struct loops *l, struct MHD_Connection *c);
/* Returns the most processor time that a thread spent between two waits: on an idle machine no
 * stream has waited longer than this for its loop. Any thread. */
int64_t loops_longest_ns(const struct loops *l);
/* Refuses new connections from now on; existing ones go on. Any thread. */
void loops_refuse(struct loops *l);
/* Ends the threads, and returns when they have ended. NULL is allowed. */
void loops_stop(struct loops *l);

#endif
