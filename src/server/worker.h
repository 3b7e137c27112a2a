/* worker.h - a thread that answers what has to wait for the disk, so that no HTTP thread does.
 *
 * Calls are answered one after the other, in the order in which they came.  Between them, and when
 * nothing else is to be done, it tidies up now and then. */
#ifndef SERVER_WORKER_H
#define SERVER_WORKER_H

#include <stdbool.h>

#include "base/err.h"

struct call;
struct worker;

/* tidy(arg) is called about every period_s on the worker's thread. */
int worker_create(int max_calls, int period_s, void (*tidy)(void *arg), void *arg,
                  struct worker **out, struct err *err);
/* Ends after what it has; worker_take is refused from then on. NULL is allowed, here and below. */
void worker_stop(struct worker *w);
void worker_destroy(struct worker *w);

/* The call's route answers on the worker's thread, and then call_done. False where there are too many. */
bool worker_take(struct worker *w, struct call *c);

#endif
