/* runner.h - runs the batches of a shelf one by one, on a thread of its own.
 *
 * Tenants take turns: a batch of another tenant goes first, and one that has run for a while
 * (RUNNER_TURN_S) makes place where another tenant's waits.  Its answers stay, and it goes on
 * when its turn comes again.  So does a batch that ran when the process ended. */
#ifndef BATCH_RUNNER_H
#define BATCH_RUNNER_H

#include "base/err.h"
#include "batch/shelf.h"
#include "requests/client.h"

enum { RUNNER_TURN_S = 60 };

struct runner_opts {
    struct shelf *shelf; /* borrowed until runner_stop, as all of this */
    /* Its salt is the tenant's of each batch. */
    struct client client;
    int in_flight; /* answers that are generated at once */
    /* An answer of the tenant's was submitted, and has ended.  NULL: not called. */
    void (*began)(void *arg, const char *tenant);
    void (*ended)(void *arg, const char *tenant, enum answer_end end,
                  const struct hcache_result *r, bool missed);
    void *arg;
};

struct runner;

int runner_start(const struct runner_opts *o, struct runner **out, struct err *err);
/* There is a new batch.  Any thread. */
void runner_wake(struct runner *r);
/* Returns within a step of the engine; what runs goes on with the next runner of the shelf.
 * NULL is allowed, here and below. */
void runner_stop(struct runner *r);
void runner_destroy(struct runner *r);

#endif
