/* loops.h - the threads of the HTTP side: each has one instance (daemon) of the HTTP library, waits
 * for its sockets, accepts connections and runs it.
 *
 * The library could run its own threads, but those may stall: libmicrohttpd 0.9.75 fetches events
 * 128 at a time, and where exactly 128 sockets are ready it asks again, and waits, before it serves
 * any of them: until something else happens or the idle timeout of its oldest connection.  Run from
 * outside it never waits.  The bound on connections is then one bound, not one per thread, and no
 * thread of the library is in the way when the server stops listening.
 *
 * A connection stays with the loop that accepted it.  All callbacks of its daemon
 * come from there. */
#ifndef SERVER_LOOPS_H
#define SERVER_LOOPS_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/err.h"

struct loops;

struct loops_opts {
    struct MHD_Daemon *const
        *daemons; /* [n], started without thread and listening socket */
    int n;
    int listen_socket; /* non-blocking */
    /* None is accepted while the daemons have so many, by n_connections, which their callback
     * counts (MHD_OPTION_NOTIFY_CONNECTION); the others wait in the kernel's queue. */
    int max_connections;
    const atomic_int *n_connections;
};

/* The daemons and the socket stay the caller's, and outlive the loops. */
int loops_start(const struct loops_opts *o, struct loops **out, struct err *err);
/* MHD_resume_connection, and its loop knows of it. Any thread. */
void loops_resume(struct loops *l, struct MHD_Connection *c);
/* Returns the most processor time that a thread spent between two waits: so long may it keep a
 * stream, or anything else, waiting on an idle machine. Any thread. */
int64_t loops_longest_ns(const struct loops *l);
/* Connections are refused from now on; those that are there go on. Any thread. */
void loops_refuse(struct loops *l);
void loops_stop(
    struct loops *l); /* the threads have ended when it returns; NULL is allowed */

#endif
