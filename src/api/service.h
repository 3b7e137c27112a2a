/* service.h - requests in front of the engine: a bounded queue, and the thread that steps it.
 *
 * The service owns every ticket that it has not handed back. Requests wait in the order of their
 * submission for a free place among the engine's sequences. One loop does everything:
 *
 *     admit -> engine_step -> end finished tickets -> again, or wait for work
 *
 * After service_start the loop runs on the service's own thread. Before that, a caller that wants
 * an answer runs the loop on its own thread (service_run). Tokens reach a ticket in the middle of a
 * step, under the lock, by a memcpy. No thread holds that lock while it waits, so the engine never
 * waits for it long. */
#ifndef API_SERVICE_H
#define API_SERVICE_H

#include "api/ticket.h"

struct service_opts {
    struct engine *engine;
    struct saver *saver;               /* NULL: nothing is saved */
    struct store *store;               /* NULL: there is no store */
    const struct tokenizer *tokenizer; /* NULL: results have no text */
    /* Weights of the engine's model, so that a stop can end a step early. NULL: a stop waits until
     * the present step has ended. */
    const struct weights *weights;
    int n_vocab, max_sequences, max_context;
    double load_ms;   /* time that the model took to load, for results */
    const char *tier; /* for results: the tier from which restores read; NULL: no store */
    /* Without requests for this time, the thread gives memory back to the system (engine_rest,
     * saver_rest); 0: never. */
    int64_t rest_ns;
};

void service_create(const struct service_opts *o, struct service **out);
/* Frees a stopped service. All its tickets must have been freed. NULL is allowed. */
void service_destroy(struct service *s);

int service_start(struct service *s, int max_queue, struct err *err);
bool service_is_started(const struct service *s);
/* Cancels all requests, flushes what is being saved, and joins the thread. Does nothing if the
 * thread does not run. */
void service_stop(struct service *s);

/* Returns the number of tokens of an answer for which a request needs room. A request that is
 * longer than the context is refused when the engine gets it; until then it must not cost
 * memory. */
int service_answer_room(const struct service *s, int max_tokens,
                        const struct truncation *truncation);
/* Submits a request that was checked. It belongs to the service from now on, also after an error.
 * Returns ERR_LIMIT if the queue is full or the service stops. */
int service_submit(struct service *s, struct request *q, struct hcache_ticket **out,
                   struct err *err);

/* Waits until the ticket has something to read or has ended; if the service has no thread, steps
 * the engine meanwhile. Returns false if is_cancelled(arg), called between the steps, ended the
 * wait (NULL: never). */
bool service_run(struct service *s, struct hcache_ticket *t,
                 bool (*is_cancelled)(void *arg), void *arg);

/* Waits until everything computed before the call is durable, or has failed. Any thread. */
void service_flush(struct service *s);
/* Waits until the engine knows that saved state was erased. Any thread. */
void service_forget_erased(struct service *s);
/* Like service_forget_erased, for a thread that must not wait: the engine learns of the erasure
 * before its next step. */
void service_forget_erased_soon(void *service);

void service_stats(struct service *s, struct hcache_stats *out);

#endif
