/* watch.h - the watcher: connections that are too slow, and clients that have gone.
 *
 * The HTTP library drops a connection on which nothing moves, but not one that sends a byte now and
 * then, and it does not look at a connection at all while its request waits for the engine.  So one
 * thread watches every socket for its peer's end, and every connection for its deadline.  A client
 * that closes its half of the connection counts as gone, as in other servers: it could not be told
 * apart from one that has died.
 *
 * A watch never closes a socket: it shuts it down, and the library, its owner, notices.  watch_end
 * must be called before the socket is closed; after it returns nothing touches the socket. */
#ifndef SERVER_WATCH_H
#define SERVER_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct watcher;
struct watch;

/* Where more than three quarters of max_watches have begun, a request must arrive whole within
 * 5 s, and a connection may stay open between requests for pressed_idle_s. */
int watcher_create(int max_watches, int pressed_idle_s, struct watcher **out,
                   struct err *err);
void watcher_destroy(struct watcher *w); /* every watch has ended */

/* NULL where there is no place. A request must begin within so many seconds. */
struct watch *watch_begin(struct watcher *w, int socket, int seconds);
void watch_end(struct watch *w); /* NULL is allowed, here and below */

/* The socket is shut down unless the next of these is called within so many seconds (0: it is not).
 * A request has begun: it must arrive whole. */
void watch_request(struct watch *w, int seconds);
/* It has arrived, and is answered, however long that takes. */
void watch_answer(struct watch *w);
/* It was answered: the next one must begin. */
void watch_idle(struct watch *w, int seconds);
/* gone(arg) is called once when the peer ends; NULL: nobody wants to know.  It is called with the
 * watcher's lock held and must not call into it; after a return of watch_on_gone(w, NULL, NULL) it
 * is not running. */
void watch_on_gone(struct watch *w, void (*gone)(void *arg), void *arg);
bool watch_is_gone(struct watch *w); /* the peer has ended */
/* alarm(arg) is called once, at least after_ns from now, as gone is. after_ns 0 and
 * NULL: no more. */
void watch_alarm(struct watch *w, int64_t after_ns, void (*alarm)(void *arg), void *arg);
/* Calls every alarm now, and those that are set from now on at once. NULL is allowed. */
void watcher_ring(struct watcher *w);

#endif
