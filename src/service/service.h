/* service.h - requests in front of the engine: a bounded queue, and the thread that steps it.
 *
 * The service owns every ticket that it has not handed back.  Requests wait in the order of their
 * submission for a free place among the engine's sequences.  One loop does everything:
 *
 *     admit -> engine_step -> end what has finished -> again, or wait for work
 *
 * It runs on the service's own thread once service_start was called; until then whoever wants an
 * answer runs it himself (service_run), on his own thread.  Tokens reach a ticket in the middle of
 * a step, under the lock, by a memcpy; nobody the engine would have to wait for holds that lock. */
#ifndef SERVICE_SERVICE_H
#define SERVICE_SERVICE_H

#include "service/ticket.h"

struct service_opts {
    struct engine *engine;
    struct saver *saver;               /* NULL: nothing is saved */
    struct store *store;               /* NULL: none */
    const struct tokenizer *tokenizer; /* NULL: no text */
    const struct weights
        *weights; /* of the engine's model; NULL: a stop waits for the step */
    int n_vocab, max_sequences, max_context;
    double load_ms;   /* for results, */
    const char *tier; /* as is where restores come from; NULL: no store */
};

void service_create(const struct service_opts *o, struct service **out);
void service_destroy(
    struct service *s); /* stopped; every ticket was freed. NULL is allowed */

int service_start(struct service *s, int max_queue, struct err *err);
bool service_is_started(const struct service *s);
/* Cancels everything, flushes, joins. Nothing where the thread does not run. */
void service_stop(struct service *s);

/* `q` has been checked; prompt, salt, plan and what r says of stop, logprobs and notify are copied.
 * ERR_LIMIT where the queue is full or the service stops. */
int service_submit(struct service *s, const struct request *q,
                   const struct hcache_request *r, bool durable, struct hcache_ticket **out,
                   struct err *err);

/* Waits until the ticket has something to read or has ended; steps the engine where there is
 * no thread.  Returns false where is_cancelled(arg), asked between the steps, ended the
 * waiting (NULL: nobody is asked). */
bool service_run(struct service *s, struct hcache_ticket *t,
                 bool (*is_cancelled)(void *arg), void *arg);

/* Returns when all that was computed before is durable, or has failed. Any thread. */
void service_flush(struct service *s);
/* Returns when the engine knows that saved state is gone. Any thread. */
void service_forget_erased(struct service *s);
/* The same from a thread that may not wait: before the engine's next step. */
void service_forget_erased_soon(void *service);

void service_stats(struct service *s, struct hcache_stats *out);

#endif
