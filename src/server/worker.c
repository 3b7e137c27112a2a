/* worker.c - see worker.h. */
#include "server/worker.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/call.h"

/* A call to be answered, or a function to be run. */
struct job {
    struct call *call; /* NULL: the job is to run run(arg) */
    void (*run)(void *arg);
    void *arg;
};

struct worker_thread {
    struct worker *owner;
    struct worker_thread_opts o;
    pthread_t id;
};

struct worker {
    struct worker_opts o;
    struct worker_thread *threads; /* [o.n_threads] */
    int n_threads;                 /* number of running threads */

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t change;
    struct job *jobs; /* [n] waiting jobs in order of arrival */
    int n, cap, n_calls;
    bool stopping;
};

/* After a body of this size or more, free memory is returned to the system: there is much of it. */
enum { LARGE_BYTES = 1 << 20 };

static size_t bytes_of(const struct job *j)
{
    return j->call != NULL ? j->call->body.n : SIZE_MAX;
}

/* [lock] Takes the oldest job that this thread may take. */
static bool take_job(struct worker_thread *t, struct job *out)
{
    struct worker *w = t->owner;
    for (int i = 0; i < w->n; i++) {
        if (bytes_of(&w->jobs[i]) > t->o.max_bytes)
            continue;
        *out = w->jobs[i];
        memmove(&w->jobs[i], &w->jobs[i + 1], (size_t)(--w->n - i) * sizeof w->jobs[0]);
        w->n_calls -= out->call != NULL;
        return true;
    }
    return false;
}

/* Waits for the next job. Returns false if there is none at until_ns, which is the time to tidy up
 * (0: never), or if the worker stops: *end is then set, and the thread ends. */
static bool next_job(struct worker_thread *t, int64_t until_ns, struct job *out, bool *end)
{
    struct worker *w = t->owner;
    bool is_late = false;
    pthread_mutex_lock(&w->lock);
    bool found = take_job(t, out);
    while (!found && !w->stopping && !is_late) {
        if (until_ns == 0)
            pthread_cond_wait(&w->change, &w->lock);
        else
            is_late = clock_cond_wait(&w->change, &w->lock, until_ns - clock_now_ns());
        found = take_job(t, out);
    }
    *end = !found && w->stopping;
    pthread_mutex_unlock(&w->lock);
    return found;
}

static void run_job(const struct job *j)
{
    bool leaves_much = bytes_of(j) > LARGE_BYTES;
    if (j->call != NULL) {
        if (call_is_wanted(j->call))
            j->call->route->answer(j->call);
        mem_unpledge();
        call_done(j->call);
    } else {
        j->run(j->arg);
    }
    if (leaves_much)
        mem_trim();
}

static void *worker_main(void *arg)
{
    struct worker_thread *t = arg;
    struct worker *w = t->owner;
    bool tidies = w->o.tidy != NULL && t == &w->threads[0], end = false;
    int64_t until_ns = tidies; /* 1: the time to tidy up has come */
    /* On Linux a thread has a priority of its own. If the system refuses the change, only the
     * priority is lost. */
    if (t->o.nice > getpriority(PRIO_PROCESS, (id_t)gettid()) && t->o.nice != 0)
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), t->o.nice);
    while (!end) {
        struct job j;
        if (next_job(t, until_ns, &j, &end))
            run_job(&j);
        if (!end && tidies && clock_now_ns() >= until_ns) {
            w->o.tidy(w->o.arg);
            until_ns = clock_now_ns() + w->o.period_s * INT64_C(1000000000);
        }
    }
    return NULL;
}

int worker_create(const struct worker_opts *o, struct worker **out, struct err *err)
{
    struct worker *w = xcalloc(1, sizeof *w);
    int rc = 0;
    w->o = *o;
    w->threads = xcalloc((size_t)o->n_threads, sizeof w->threads[0]);
    pthread_mutex_init(&w->lock, NULL);
    clock_cond_init(&w->change);
    for (; rc == 0 && w->n_threads < o->n_threads; w->n_threads += rc == 0) {
        struct worker_thread *t = &w->threads[w->n_threads];
        t->owner = w;
        t->o = o->threads[w->n_threads];
        rc = thread_create(&t->id, worker_main, t);
    }
    if (rc != 0) {
        worker_destroy(w);
        return err_set(err, -rc, "a thread of the server cannot be started: %s",
                       err_name(-rc));
    }
    *out = w;
    return 0;
}

void worker_stop(struct worker *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->change);
    pthread_mutex_unlock(&w->lock);
    for (; w->n_threads > 0; w->n_threads--)
        pthread_join(w->threads[w->n_threads - 1].id, NULL);
}

void worker_destroy(struct worker *w)
{
    if (w == NULL)
        return;
    worker_stop(w);
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    free(w->threads);
    free(w->jobs);
    free(w);
}

/* [lock] Adds a job. Wakes every thread, because some threads may not take the job. */
static void add_job(struct worker *w, struct job j)
{
    GROW(w->jobs, w->n, w->cap);
    w->jobs[w->n++] = j;
    pthread_cond_broadcast(&w->change);
}

/* [lock] Returns how many calls of the key with that salt wait. */
static int n_calls_of(const struct worker *w, const char *salt)
{
    int n = 0;
    for (int i = 0; i < w->n; i++)
        n += w->jobs[i].call != NULL && w->jobs[i].call->salt == salt;
    return n;
}

bool worker_take(struct worker *w, struct call *c)
{
    pthread_mutex_lock(&w->lock);
    bool has_room = !w->stopping && (w->n_calls < w->o.max_calls ||
                                     n_calls_of(w, c->salt) < w->o.own_calls);
    if (has_room) {
        atomic_store(&c->is_pending, true);
        w->n_calls++;
        add_job(w, (struct job){.call = c});
    }
    pthread_mutex_unlock(&w->lock);
    return has_room;
}

void worker_run(struct worker *w, void (*run)(void *arg), void *arg)
{
    pthread_mutex_lock(&w->lock);
    bool runs = !w->stopping;
    if (runs)
        add_job(w, (struct job){.run = run, .arg = arg});
    pthread_mutex_unlock(&w->lock);
    if (!runs)
        run(arg);
}
