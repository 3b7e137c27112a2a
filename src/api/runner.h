/* runner.h - runs the batches of a shelf one by one, on a thread of its own.
 *
 * Tenants take turns. When a batch ends, one of another tenant goes next. A batch that has run for
 * RUNNER_TURN_S makes room if another tenant's batch waits. Its answers are kept, and it continues
 * at its next turn. A batch that ran when the process ended also continues.
 *
 * A batch that finds no room for its answers, under the shelf's bounds or on the disk, waits until
 * there is room; other batches run meanwhile. */
#ifndef API_RUNNER_H
#define API_RUNNER_H

#include "base/err.h"
#include "api/shelf.h"
#include "api/client.h"

enum { RUNNER_TURN_S = 60 };

struct runner_opts {
    struct shelf *shelf; /* borrowed until runner_stop, like the strings of all fields */
    /* Template for requests; the salt is set to the tenant's for each batch. */
    struct client client;
    int in_flight; /* maximum number of answers that are generated at once */
    /* For a server of several models; NULL: client.h serves all batches. borrow takes the model
     * that the input names, and sets *client's h and names. It returns 0; -EAGAIN if the model is
     * being loaded, and runner_wake tells when to try again; or the code of a fault that ends the
     * batch. *ticket is 0 at first. must_return says that the batch should make room for another
     * model. give_back ends the loan. */
    int (*borrow)(void *arg, const char *input, uint64_t *ticket, struct client *client,
                  int *loan, struct err *err);
    bool (*must_return)(void *arg, int loan);
    void (*give_back)(void *arg, int loan);
    /* Called when an answer of the tenant was submitted, and at its end. NULL: not called. */
    void (*began)(void *arg, const char *tenant);
    void (*ended)(void *arg, const char *tenant, enum answer_end end,
                  const struct hcache_result *r, bool missed);
    void *arg;
};

struct runner;

int runner_start(const struct runner_opts *o, struct runner **out, struct err *err);
/* Tells the runner that there is a new batch.  Any thread. */
void runner_wake(struct runner *r);
/* runner_stop returns within a step of the engine. The batch that was running continues when a
 * runner is started again on this shelf. NULL is allowed for both functions. */
void runner_stop(struct runner *r);
void runner_destroy(struct runner *r);

#endif
