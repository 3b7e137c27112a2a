/* worker.c - see worker.h. */
#include "server/worker.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/call.h"

struct worker {
    pthread_t thread;
    bool has_thread;
    int max_calls, period_s;
    void (*tidy)(void *arg);
    void *arg;

    pthread_mutex_t lock; /* protects: */
    pthread_cond_t change;
    struct call **calls; /* a ring [max_calls] */
    int first, n;
    bool stopping;
};

/* The next call; NULL where it is time to tidy up, or (stopping) to end. */
static struct call *next_call(struct worker *w, const struct timespec *until, bool *end)
{
    struct call *c = NULL;
    int rc = 0;
    pthread_mutex_lock(&w->lock);
    while (w->n == 0 && !w->stopping && rc == 0)
        rc = pthread_cond_timedwait(&w->change, &w->lock, until);
    if (w->n > 0) {
        c = w->calls[w->first];
        w->first = (w->first + 1) % w->max_calls;
        w->n--;
    }
    *end = c == NULL && w->stopping;
    pthread_mutex_unlock(&w->lock);
    return c;
}

/* By the clock that nobody can set. */
static bool is_past(const struct timespec *t)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec >= t->tv_sec;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct timespec until = {0}; /* at once */
    bool end = false;
    while (!end) {
        struct call *c = next_call(w, &until, &end);
        if (c != NULL) {
            c->route->answer(c);
            call_done(c);
        }
        if (!end && is_past(&until)) {
            w->tidy(w->arg);
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_sec += w->period_s;
        }
    }
    return NULL;
}

int worker_create(int max_calls, int period_s, void (*tidy)(void *arg), void *arg,
                  struct worker **out, struct err *err)
{
    struct worker *w = xcalloc(1, sizeof *w);
    w->max_calls = max_calls;
    w->period_s = period_s;
    w->tidy = tidy;
    w->arg = arg;
    w->calls = xcalloc((size_t)max_calls, sizeof(struct call *));
    pthread_mutex_init(&w->lock, NULL);
    clock_cond_init(&w->change);
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    if (rc != 0) {
        worker_destroy(w);
        return err_set(err, -rc, "a thread of the server cannot be started: %s",
                       err_name(-rc));
    }
    w->has_thread = true;
    *out = w;
    return 0;
}

void worker_stop(struct worker *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_signal(&w->change);
    pthread_mutex_unlock(&w->lock);
    if (w->has_thread)
        pthread_join(w->thread, NULL);
    w->has_thread = false;
}

void worker_destroy(struct worker *w)
{
    if (w == NULL)
        return;
    worker_stop(w);
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    free((void *)w->calls);
    free(w);
}

bool worker_take(struct worker *w, struct call *c)
{
    pthread_mutex_lock(&w->lock);
    bool has_room = w->n < w->max_calls && !w->stopping;
    if (has_room) {
        atomic_store(&c->is_pending, true);
        w->calls[(w->first + w->n++) % w->max_calls] = c;
        pthread_cond_signal(&w->change);
    }
    pthread_mutex_unlock(&w->lock);
    return has_room;
}
