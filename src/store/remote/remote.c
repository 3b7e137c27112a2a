/* remote.c - see remote.h. */
#include "store/remote/remote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "store/remote/remote_impl.h"
#include "store/remote/storing.h"
#include "redis/tls.h"

/* Longest waits for the writer at the end of the process: until it has written the offers, and
 * until it has confirmed the written chunks. */
#define DRAIN_NS   ((int64_t)10 * 1000 * 1000 * 1000)
#define CONFIRM_NS ((int64_t)2 * 1000 * 1000 * 1000)

#define NOT_READ "its erasures are not read yet"

static const char *const miss_names[REMOTE_MISSES] = {
    [REMOTE_MISS_NONE] = "none",           [REMOTE_MISS_ABSENT] = "absent",
    [REMOTE_MISS_RESTING] = "resting",     [REMOTE_MISS_SILENT] = "silent",
    [REMOTE_MISS_SLOW] = "slow",           [REMOTE_MISS_FAILED] = "failed",
    [REMOTE_MISS_WRONG] = "wrong",         [REMOTE_MISS_STORE] = "store",
    [REMOTE_MISS_CANCELLED] = "cancelled", [REMOTE_MISS_SECRET] = "other_key",
};

const char *remote_miss_name(enum remote_miss why)
{
    return miss_names[why];
}

const char *const remote_when_names[] = {"always", "idle", "use", NULL};

bool remote_wants(const struct remote *r, enum remote_when when)
{
    return r != NULL && r->o.when == when;
}

/* --- offers ----------------------------------------------------------------------------------- */

void remote_put_offer(struct remote *r, const struct offer *o)
{
    pthread_mutex_lock(&r->lock);
    if (r->n_offers == MAX_OFFERS) {
        r->stats.n_dropped++;
    } else {
        r->offers[(r->first_offer + r->n_offers++) % MAX_OFFERS] = *o;
        pthread_cond_signal(&r->for_writer);
    }
    pthread_mutex_unlock(&r->lock);
}

void remote_offer(struct remote *r, const struct sha256 *key, uint32_t ttl_s)
{
    const struct offer o = {.key = *key, .ttl_s = ttl_s};
    if (r != NULL)
        remote_put_offer(r, &o);
}

/* --- fetches ---------------------------------------------------------------------------------- */

/* Returns whether the remote rests, that is, whether no fetch may begin now. A remote that does not
 * answer gets no requests, so that no caller waits while the reader tries to reach it. */
static bool is_resting(struct remote *r, char *why, int n_why)
{
    pthread_mutex_lock(&r->lock);
    bool erases = r->n_erasing > 0 || r->publish != NULL;
    bool rests = !r->stats.is_up || !r->may_fetch || erases;
    if (rests) {
        snprintf(why, (size_t)n_why, "the remote cannot be reached: %s",
                 r->stats.is_up ? NOT_READ : r->stats.why_down);
        if (r->stats.is_up && r->may_fetch)
            snprintf(why, (size_t)n_why, "an erasure is on its way to the remote");
        r->stats.n_fetches++;
        r->stats.misses[REMOTE_MISS_RESTING]++;
    }
    pthread_mutex_unlock(&r->lock);
    return rests;
}

struct remote_fetch *remote_fetch_begin(struct remote *r, const struct remote_want *w,
                                        char *why, int n_why)
{
    CHECK(w->n > 0);
    if (is_resting(r, why, n_why))
        return NULL;
    size_t n_bytes = (size_t)w->n * sizeof w->keys[0];
    struct remote_fetch *f = xcalloc(1, sizeof *f + n_bytes);
    f->r = r;
    f->want = *w;
    memcpy(f->keys, w->keys, n_bytes);
    f->want.keys = f->keys;
    f->t_begin = clock_now_ns();
    atomic_init(&f->t_heard, f->t_begin);
    atomic_init(&f->is_cancelled, false);
    pthread_mutex_lock(&r->lock);
    f->epoch = r->epoch;
    struct remote_fetch **p = &r->fetches;
    while (*p != NULL)
        p = &(*p)->next;
    *p = f;
    r->stats.n_fetches++;
    pthread_cond_signal(&r->for_reader);
    pthread_mutex_unlock(&r->lock);
    return f;
}

void remote_fetch_cancel(struct remote_fetch *f)
{
    atomic_store(&f->is_cancelled, true);
}

int64_t remote_fetch_heard_ns(const struct remote_fetch *f)
{
    return atomic_load(&f->t_heard);
}

void remote_fetch_end(struct remote_fetch *f, struct remote_fetched *out)
{
    *out = f->out;
    free(f);
}

/* --- statistics ------------------------------------------------------------------------------- */

void remote_stats(struct remote *r, struct remote_stats *out)
{
    *out = (struct remote_stats){0};
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    out->n_queued = r->n_offers + r->n_leases;
    for (int i = 0; i < WRITER_TASKS; i++) {
        const char *why = r->writer_why[i];
        if (why[0] == 0 || !out->is_up)
            continue;
        snprintf(out->why_down, sizeof out->why_down, "%s%s",
                 r->writer_is_full[i] ? "it answers, but is full: " : "", why);
        out->is_full = r->writer_is_full[i];
        out->is_up = out->is_full;
    }
    out->is_full = out->is_full && out->is_up;
    if (out->is_up && !r->may_fetch) {
        out->is_up = false;
        snprintf(out->why_down, sizeof out->why_down, NOT_READ);
    }
    /* Published erasures that this server has not read back yet count as unpublished, because
     * n_erasures does not contain them. */
    out->n_unpublished = r->n_uncounted;
    for (const struct published *p = r->publish; p != NULL; p = p->next)
        out->n_unpublished++;
    pthread_mutex_unlock(&r->lock);
}

/* --- life cycle ------------------------------------------------------------------------------- */

void remote_wait(struct remote *r, pthread_cond_t *c, int64_t ns)
{
    (void)clock_cond_wait(c, &r->lock, ns);
}

/* Starts the three threads. */
static int start(struct remote *r, struct err *err)
{
    r->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->stop_fd < 0)
        return err_set(err, -errno, "the remote: %s", strerror(errno));
    int rc = storing_create(r, &r->storing, err);
    if (rc != 0)
        return rc;
    rc = thread_create(&r->reader, remote_reader_main, r);
    r->has_reader = rc == 0;
    if (rc == 0)
        rc = thread_create(&r->writer, remote_writer_main, r);
    r->has_writer = r->has_reader && rc == 0;
    return rc == 0 ? 0 : err_set(err, -rc, "no thread for the remote: %s", strerror(rc));
}

static int open_tls(const struct remote_opts *o, const struct remote_url *url,
                    struct tls **out, struct err *err)
{
    const struct tls_opts t = {o->ca_file, o->cert_file, o->key_file};
    if (url->has_tls)
        return tls_open(&t, out, err);
    return o->ca_file == NULL && o->cert_file == NULL && o->key_file == NULL
               ? 0
               : err_set(err, ERR_USAGE,
                         "--remote-ca, --remote-cert and --remote-key need rediss://");
}

int remote_open(const struct remote_opts *o, struct remote **out, struct err *err)
{
    struct remote_url url;
    struct tls *tls = NULL;
    int rc = remote_url_parse(o->url, &url, err);
    if (rc == 0)
        rc = open_tls(o, &url, &tls, err);
    if (rc != 0)
        return rc;
    CHECK(o->ttl_s > 0 && o->max_chunk_bytes > 0);
    struct remote *r = xcalloc(1, sizeof *r);
    r->o = *o;
    names_init(&r->names, o->key);
    r->o.key = NULL;
    r->o.url = r->o.place_dir = r->o.ca_file = r->o.cert_file = r->o.key_file = NULL;
    if (r->o.stuck_ns == 0)
        r->o.stuck_ns = (int64_t)LINK_OPEN_S * 1000000000;
    r->url = url;
    atomic_init(&r->max_chunk_bytes, o->max_chunk_bytes);
    r->stop_fd = -1;
    r->offers = xcalloc(MAX_OFFERS, sizeof *r->offers);
    r->leases = xcalloc(MAX_LEASES, sizeof *r->leases);
    r->tls = tls;
    r->read_link.r = r->write_link.r = r;
    r->read_link.tells = true;
    remote_url_text(&url, r->stats.url, sizeof r->stats.url);
    snprintf(r->stats.why_down, sizeof r->stats.why_down, "it has not been reached yet");
    pthread_mutex_init(&r->lock, NULL);
    clock_cond_init(&r->for_reader);
    clock_cond_init(&r->for_writer);
    clock_cond_init(&r->drained);
    if (o->place_dir != NULL)
        r->place_path = xasprintf("%s/remote.erasures", o->place_dir);
    (void)!getrandom(&r->server, sizeof r->server, 0);
    remote_erase_init(r);
    rc = start(r, err);
    if (rc != 0) {
        remote_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* [lock] Returns the time until which the end of the process waits for the writer (clock_now_ns);
 * 0: it need not wait. */
static int64_t drain_until_ns(const struct remote *r, int64_t begin_ns)
{
    if (!r->has_writer || !r->stats.is_up)
        return 0;
    if (r->n_offers > 0 || r->publish != NULL)
        return begin_ns + DRAIN_NS;
    return r->n_leases > 0 ? begin_ns + CONFIRM_NS : 0;
}

/* Waits for the writer as long as the remote takes chunks: chunks saved at the end of a short
 * process are worth the time. */
static void drain(struct remote *r)
{
    int64_t begin_ns = clock_now_ns(), now_ns, until_ns;
    pthread_mutex_lock(&r->lock);
    uint64_t n_failures = r->stats.n_failures;
    while ((until_ns = drain_until_ns(r, begin_ns)) > (now_ns = clock_now_ns()) &&
           r->stats.n_failures == n_failures)
        remote_wait(r, &r->drained, until_ns - now_ns);
    pthread_mutex_unlock(&r->lock);
}

void remote_allow(struct remote *r, size_t chunk_bytes)
{
    size_t most = atomic_load(&r->max_chunk_bytes);
    while (most < chunk_bytes &&
           !atomic_compare_exchange_weak(&r->max_chunk_bytes, &most, chunk_bytes))
        continue;
}

void remote_close(struct remote *r)
{
    if (r == NULL)
        return;
    CHECK(r->fetches == NULL);
    drain(r);
    if (r->stop_fd >= 0)
        (void)eventfd_write(r->stop_fd, 1);
    pthread_mutex_lock(&r->lock);
    r->quit = true;
    pthread_cond_signal(&r->for_reader);
    pthread_cond_signal(&r->for_writer);
    pthread_mutex_unlock(&r->lock);
    if (r->has_reader)
        pthread_join(r->reader, NULL);
    if (r->has_writer)
        pthread_join(r->writer, NULL);
    storing_destroy(r->storing);
    link_drop(&r->read_link);
    link_drop(&r->write_link);
    if (r->stop_fd >= 0)
        close(r->stop_fd);
    pthread_cond_destroy(&r->for_reader);
    pthread_cond_destroy(&r->for_writer);
    pthread_cond_destroy(&r->drained);
    pthread_mutex_destroy(&r->lock);
    remote_erase_deinit(r);
    tls_close(r->tls);
    names_deinit(&r->names);
    free(r->offers);
    free(r->leases);
    free(r);
}
