/* models.c - see models.h.
 *
 * Invariants:
 * 1. Only the loading thread opens and closes models, and sets `h` of a struct one. It reads `h`
 *    without the lock, and sets it with the lock.
 * 2. A model with n_uses > 0 is open. A model that leaves gets no new uses.
 * 3. A model is closed with no lock held: closing makes its state durable, which may take seconds.
 *    The uses of other models go on meanwhile. */
#include "api/models.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/counts.h"
#include "api/hcache_impl.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/thread.h"

int models_choose(const struct models_use *use, int n, uint64_t bytes, uint64_t bound,
                  bool may_exceed)
{
    uint64_t sum = bytes;
    int best = MODELS_FITS;
    for (int i = 0; i < n; i++) {
        if (!use[i].is_loaded)
            continue;
        sum += use[i].bytes;
        bool is_better = best == MODELS_FITS ||
                         (use[i].n_uses == 0) > (use[best].n_uses == 0) ||
                         ((use[i].n_uses == 0) == (use[best].n_uses == 0) &&
                          use[i].last_used < use[best].last_used);
        if (is_better)
            best = i;
    }
    if (sum <= bound || (best == MODELS_FITS && may_exceed))
        return MODELS_FITS;
    return best == MODELS_FITS ? MODELS_NEVER_FITS : best;
}

struct one {
    struct hcache *h; /* NULL: not loaded */
    struct models_use use;
    bool is_loading, leaves;
    uint64_t asked;    /* turn in which it was asked for; 0: no one waits for it */
    uint64_t n_failed; /* failed loadings */
    struct err err;    /* of the last one */
    bool is_known;
    struct hcache_model_info info; /* as in models_state */
};

struct models {
    struct models_opts o;
    struct hcache_shared shared;
    struct hcache store; /* see models_store; complete once a model has been loaded */
    pthread_t thread;
    bool has_thread;
    uint64_t free_bytes; /* memory that was free at the start */
    int loading;         /* the model that the thread loads */

    pthread_mutex_t lock; /* protects the fields below, and `of` as invariant 1 says */
    pthread_cond_t work;  /* wakes the loading thread */
    /* wakes callers that wait for a model, and the loading thread while it waits for an idle one */
    pthread_cond_t news;
    struct one *of; /* [o.n] */
    uint64_t turn;  /* the last number that was given to a use or to a wait */
    bool stopping;
    struct models_stats stats;
    struct hcache_stats gone; /* sums over models that were unloaded */
};

/* --- the loading thread ----------------------------------------------------------------------- */

/* [lock] Closes an idle model. The lock is free meanwhile. */
static void unload(struct models *m, int i)
{
    struct one *x = &m->of[i];
    struct hcache *h = x->h;
    struct hcache_stats st;
    pthread_mutex_unlock(&m->lock);
    hcache_serve_stop(h); /* the last counts */
    hcache_stats(h, &st);
    counts_unloaded(&st);
    pthread_mutex_lock(&m->lock);
    counts_sum(&m->gone, &st);
    x->h = NULL;
    x->use.is_loaded = false;
    x->leaves = false;
    m->stats.n_loaded--;
    m->stats.n_unloads++;
    m->stats.bytes -= x->use.bytes;
    pthread_mutex_unlock(&m->lock);
    hcache_close(h);
    log_info("model %s is unloaded", m->o.of[i].model);
    pthread_mutex_lock(&m->lock);
}

/* [lock] Unloads a model once it is idle. Returns false if the thread must stop. */
static bool unload_when_idle(struct models *m, int i)
{
    m->of[i].leaves = true;
    while (m->of[i].use.n_uses > 0 && !m->stopping)
        pthread_cond_wait(&m->news, &m->lock);
    m->of[i].leaves = !m->stopping;
    if (!m->stopping)
        unload(m, i);
    return !m->stopping;
}

static struct models_use *uses_of(const struct models *m)
{
    struct models_use *u = xcalloc((size_t)m->o.n, sizeof *u);
    for (int i = 0; i < m->o.n; i++)
        u[i] = m->of[i].use;
    return u;
}

/* stack_shared.room: unloads models until a new one of that many bytes fits. */
static int make_room(void *arg, uint64_t bytes, uint64_t device_bytes, struct err *err)
{
    struct models *m = arg;
    const double gb = 1e-9;
    uint64_t free_bytes = device_bytes > 0 ? device_bytes : m->free_bytes;
    uint64_t bound = m->o.memory_bytes > 0 ? m->o.memory_bytes : free_bytes / 4 * 3;
    int victim, rc = 0;
    pthread_mutex_lock(&m->lock);
    m->stats.bound_bytes = bound;
    do {
        struct models_use *u = uses_of(m);
        victim = models_choose(u, m->o.n, bytes, bound, m->o.memory_bytes == 0);
        free(u);
        if (victim == MODELS_NEVER_FITS)
            rc = err_set(err, ERR_LIMIT,
                         "it needs %.2f GB of memory, and --models-memory is %.2f GB: give "
                         "more, or fewer --kv-tokens or a shorter --max-context",
                         (double)bytes * gb, (double)bound * gb);
        else if (victim >= 0 && !unload_when_idle(m, victim))
            rc = err_set(err, ERR_CANCELLED, "the server is stopping");
    } while (rc == 0 && victim >= 0);
    m->of[m->loading].use.bytes = bytes;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* Loads a model. */
static int load(struct models *m, int i, struct hcache **h, struct err *err)
{
    struct hcache_err herr = {0};
    m->loading = i;
    int rc = hcache_open_shared(&m->o.of[i], &m->shared, h, &herr);
    if (rc == 0 && (rc = hcache_serve_start(*h, m->o.max_queue, &herr)) != 0) {
        hcache_close(*h);
        *h = NULL;
    }
    if (rc != 0)
        err_set(err, rc, "%s", herr.msg);
    return rc;
}

/* [lock] Loads a model that was asked for. The lock is free meanwhile. */
static void load_asked(struct models *m, int i)
{
    struct one *x = &m->of[i];
    struct hcache *h = NULL;
    struct err err = {0};
    int64_t begun_ns = clock_now_ns();
    x->is_loading = true;
    pthread_mutex_unlock(&m->lock);
    int rc = load(m, i, &h, &err);
    pthread_mutex_lock(&m->lock);
    if (rc == 0 && m->store.shared == NULL) {
        m->store = (struct hcache){.shared = &m->shared};
        m->store.k.store = m->shared.k.store;
        m->store.k.remote = m->shared.k.remote;
        m->store.k.store_err = m->shared.k.store_err;
        m->store.k.policy = h->k.policy;
    }
    x->is_loading = false;
    x->asked = 0;
    m->stats.load_s += (double)(clock_now_ns() - begun_ns) * 1e-9;
    if (rc == 0) {
        x->h = h;
        x->use.is_loaded = true;
        x->use.last_used = ++m->turn;
        hcache_model_info(h, &x->info);
        x->info.name = x->info.chat_template = x->info.bos = x->info.eos = NULL;
        x->info.n_file_types = 0;
        x->is_known = true;
        m->stats.n_loaded++;
        m->stats.n_loads++;
        m->stats.bytes += x->use.bytes;
    } else {
        log_warn("model %s is not loaded: %s", m->o.of[i].model, err.msg);
        x->err = err;
        x->n_failed++;
        m->stats.n_failed++;
    }
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
    if (m->o.changed != NULL)
        m->o.changed(m->o.arg);
    pthread_mutex_lock(&m->lock);
}

/* [lock] Returns the model that was asked for first, or -1. */
static int first_asked(const struct models *m)
{
    int best = -1;
    for (int i = 0; i < m->o.n; i++)
        if (m->of[i].asked != 0 && m->of[i].h == NULL &&
            (best < 0 || m->of[i].asked < m->of[best].asked))
            best = i;
    return best;
}

/* [lock] Returns an idle model that must leave, or -1. */
static int first_leaving(const struct models *m)
{
    for (int i = 0; i < m->o.n; i++)
        if (m->of[i].leaves && m->of[i].use.n_uses == 0)
            return i;
    return -1;
}

static void *models_main(void *arg)
{
    struct models *m = arg;
    pthread_mutex_lock(&m->lock);
    while (!m->stopping) {
        int leaving = first_leaving(m), asked = first_asked(m);
        if (leaving >= 0)
            unload(m, leaving);
        else if (asked >= 0)
            load_asked(m, asked);
        else
            pthread_cond_wait(&m->work, &m->lock);
    }
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* --- uses ------------------------------------------------------------------------------------- */

/* [lock] Counts a new use of the model and returns it; NULL if it is not loaded, or leaves. */
static struct hcache *take(struct models *m, int i)
{
    struct one *x = &m->of[i];
    if (x->h == NULL || x->leaves)
        return NULL;
    x->use.last_used = ++m->turn;
    x->use.n_uses++;
    return x->h;
}

/* [lock] See models_take. Asks the loading thread for a model that is not there. */
static enum models_took try_take(struct models *m, int i, uint64_t *ticket,
                                 struct hcache **h, struct err *err)
{
    struct one *x = &m->of[i];
    if (m->stopping) {
        err_set(err, ERR_CANCELLED, "the server is stopping");
        return MODELS_FAILED;
    }
    if ((*h = take(m, i)) != NULL)
        return MODELS_HERE;
    if (*ticket != 0 && x->n_failed >= *ticket) {
        *err = x->err;
        return MODELS_FAILED;
    }
    if (*ticket == 0)
        *ticket = x->n_failed + 1;
    if (x->asked == 0) {
        x->asked = ++m->turn;
        pthread_cond_signal(&m->work);
    }
    return MODELS_COMES;
}

enum models_took models_take(struct models *m, int i, uint64_t *ticket, struct hcache **h,
                             struct err *err)
{
    pthread_mutex_lock(&m->lock);
    enum models_took took = try_take(m, i, ticket, h, err);
    pthread_mutex_unlock(&m->lock);
    return took;
}

int models_wait(struct models *m, int i, struct hcache **h, struct err *err)
{
    uint64_t ticket = 0;
    enum models_took took;
    pthread_mutex_lock(&m->lock);
    while ((took = try_take(m, i, &ticket, h, err)) == MODELS_COMES)
        pthread_cond_wait(&m->news, &m->lock);
    pthread_mutex_unlock(&m->lock);
    return took == MODELS_HERE ? 0 : err->code;
}

struct hcache *models_store(struct models *m)
{
    pthread_mutex_lock(&m->lock);
    struct hcache *h = m->stats.n_loads > 0 ? &m->store : NULL;
    pthread_mutex_unlock(&m->lock);
    return h;
}

void models_give(struct models *m, int i)
{
    pthread_mutex_lock(&m->lock);
    struct one *x = &m->of[i];
    x->use.n_uses--;
    if (x->use.n_uses == 0) {
        pthread_cond_signal(&m->work);
        pthread_cond_broadcast(&m->news);
    }
    pthread_mutex_unlock(&m->lock);
}

bool models_must_leave(struct models *m, int i)
{
    pthread_mutex_lock(&m->lock);
    bool yes = m->of[i].leaves;
    pthread_mutex_unlock(&m->lock);
    return yes;
}

void models_unload(struct models *m, int i)
{
    pthread_mutex_lock(&m->lock);
    m->of[i].leaves = m->of[i].h != NULL;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

/* --- figures ---------------------------------------------------------------------------------- */

void models_state(struct models *m, int i, struct models_state *out)
{
    pthread_mutex_lock(&m->lock);
    const struct one *x = &m->of[i];
    *out = (struct models_state){.what = x->h != NULL    ? "loaded"
                                         : x->is_loading ? "loading"
                                                         : "unloaded",
                                 .is_loaded = x->h != NULL,
                                 .n_uses = x->use.n_uses,
                                 .bytes = x->use.bytes,
                                 .is_known = x->is_known,
                                 .info = x->info};
    pthread_mutex_unlock(&m->lock);
}

void models_stats(struct models *m, struct models_stats *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->stats;
    pthread_mutex_unlock(&m->lock);
}

void models_sum(struct models *m, struct hcache_stats *out)
{
    pthread_mutex_lock(&m->lock);
    struct hcache_stats sum = {0};
    for (int i = 0; i < m->o.n; i++) {
        struct hcache_stats st;
        if (m->of[i].h == NULL)
            continue;
        hcache_stats(m->of[i].h, &st);
        if (sum.plans.n == 0)
            sum = st;
        else
            counts_sum(&sum, &st);
    }
    counts_sum(&sum, &m->gone);
    *out = sum;
    pthread_mutex_unlock(&m->lock);
}

/* --- life ------------------------------------------------------------------------------------- */

int models_open(const struct models_opts *o, struct models **out, struct err *err)
{
    struct models *m = xcalloc(1, sizeof *m);
    m->o = *o;
    m->of = xcalloc((size_t)o->n, sizeof *m->of);
    m->free_bytes = process_memory_left();
    hcache_shared_init(&m->shared);
    m->shared.k.room = make_room;
    m->shared.k.arg = m;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, NULL);
    pthread_cond_init(&m->news, NULL);
    int rc = thread_create(&m->thread, models_main, m);
    m->has_thread = rc == 0;
    *out = m;
    return rc == 0 ? 0
                   : err_set(err, -rc, "the thread that loads models cannot be started: %s",
                             err_name(-rc));
}

void models_stop(struct models *m)
{
    pthread_mutex_lock(&m->lock);
    bool is_first = !m->stopping;
    m->stopping = true;
    pthread_cond_signal(&m->work);
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
    if (!is_first)
        return;
    if (m->has_thread)
        pthread_join(m->thread, NULL); /* a model that is being loaded is loaded first */
    for (int i = 0; i < m->o.n; i++)
        if (m->of[i].h != NULL)
            hcache_serve_stop(m->of[i].h);
}

void models_close(struct models *m)
{
    if (m == NULL)
        return;
    models_stop(m);
    for (int i = 0; i < m->o.n; i++)
        hcache_close(m->of[i].h);
    hcache_shared_deinit(&m->shared);
    pthread_cond_destroy(&m->news);
    pthread_cond_destroy(&m->work);
    pthread_mutex_destroy(&m->lock);
    free(m->of);
    free(m);
}
