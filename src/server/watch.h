/* watch.h - the watcher: detects slow connections, and clients that have gone.
 *
 * The HTTP library drops a connection on which nothing moves, but not one that sends a byte now
 * and then. And it does not look at a connection at all while its request waits for the engine.
 * So one thread watches every socket for its peer's end, and every connection for its deadline.
 * A client that closes its half of the connection counts as gone, as in other servers: it cannot be
 * distinguished from a dead one.
 *
 * A watch never closes a socket. It shuts it down, and the library, its owner, notices. Call
 * watch_end before the socket is closed; after it returns the watcher does not touch the socket. */
#ifndef SERVER_WATCH_H
#define SERVER_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct watcher;
struct watch;

/* Creates a watcher. If more than three quarters of max_watches are in use, a request must
 * arrive whole within 5 s, and a connection may stay open between requests for pressed_idle_s. */
int watcher_create(int max_watches, int pressed_idle_s, struct watcher **out,
                   struct err *err);
void watcher_destroy(struct watcher *w); /* Every watch must have ended before. */

/* Begins to watch a socket: a request must begin within `seconds`. Returns NULL if all places are
 * used. */
struct watch *watch_begin(struct watcher *w, int socket, int seconds);
void watch_end(struct watch *w); /* NULL is allowed here and in all functions below */

/* The next three set the deadline after which the socket is shut down. watch_request: a request has
 * begun and must arrive whole within `seconds` (0: no deadline). */
void watch_request(struct watch *w, int seconds);
/* The request has arrived and is being answered; there is no deadline. */
void watch_answer(struct watch *w);
/* The request was answered; the next one must begin within `seconds`. */
void watch_idle(struct watch *w, int seconds);
/* Sets the function that is called once, as gone(arg), when the peer closes its end. It runs with
 * the watcher's lock held and must not call the watcher. watch_on_gone(w, NULL, NULL) removes it,
 * and returns when it is not running. */
void watch_on_gone(struct watch *w, void (*gone)(void *arg), void *arg);
bool watch_is_gone(struct watch *w); /* Returns whether the peer has closed its end. */
/* Sets the function that is called once, as alarm(arg), after_ns from now or later. It runs under
 * the same conditions as `gone`. after_ns 0 and alarm NULL remove it. */
void watch_alarm(struct watch *w, int64_t after_ns, void (*alarm)(void *arg), void *arg);
/* Calls every alarm now, and from now on each new alarm as soon as it is set. NULL is allowed. */
void watcher_ring(struct watcher *w);

#endif
