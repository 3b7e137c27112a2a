/* remote_link.c - see remote_impl.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "store/remote/remote_pace.h"
#include "store/remote/remote_impl.h"

/* Notes in the statistics whether the remote can be used, and logs a change. */
static void tell_state(struct link *l, bool is_up, const char *why)
{
    struct remote *r = l->r;
    if (!l->tells)
        return;
    pthread_mutex_lock(&r->lock);
    bool changes = r->stats.is_up != is_up;
    r->stats.is_up = is_up;
    snprintf(r->stats.why_down, sizeof r->stats.why_down, "%.159s", why);
    pthread_mutex_unlock(&r->lock);
    if (changes && is_up)
        log_info("the remote %s answers", r->stats.url);
    else if (changes)
        log_warn("the remote %s is not used until it answers again: %s", r->stats.url, why);
}

int remote_refused(const struct redis_answer *a, struct err *err)
{
    const char *text = a->kind == REDIS_REFUSED ? (const char *)a->bytes
                                                : "an answer of an unexpected kind";
    return err_set(err, strncmp(text, "OOM", 3) == 0 ? -ENOSPC : -EACCES,
                   "the remote refuses: %.120s", text);
}

void remote_writer_tell(struct remote *r, enum writer_task task, const struct err *why)
{
    static const char *const fails[] = {"erasures do not reach it",
                                        "nothing is written to it"};
    pthread_mutex_lock(&r->lock);
    char *told = r->writer_why[task];
    bool changes = (told[0] != 0) != (why != NULL);
    if (why != NULL)
        snprintf(told, sizeof r->writer_why[task], "%s: %.100s", fails[task], why->msg);
    else
        told[0] = 0;
    r->writer_is_full[task] = why != NULL && why->code == -ENOSPC;
    pthread_mutex_unlock(&r->lock);
    if (changes && why != NULL)
        log_warn("the remote %s: %s: %s", r->stats.url, fails[task], why->msg);
    else if (changes)
        log_info("the remote %s: writing works again", r->stats.url);
}

/* Returns a seed that differs between servers and between calls. */
static uint64_t seed_of(const struct link *l)
{
    return (uint64_t)clock_now_ns() ^ (uint64_t)(uintptr_t)l;
}

void link_drop(struct link *l)
{
    cluster_close(l->cluster);
    l->cluster = NULL;
}

void link_fail(struct link *l, const struct err *why)
{
    link_drop(l);
    if (why->code == ERR_CANCELLED) /* ERR_CANCELLED is no failure: the process ends */
        return;
    double rest_s = backoff_s(++l->n_failures, seed_of(l));
    l->rest_until_ns = clock_now_ns() + (int64_t)(rest_s * 1e9);
    pthread_mutex_lock(&l->r->lock);
    l->r->stats.n_failures++;
    /* ends the wait for the writer at the end of the process */
    pthread_cond_broadcast(&l->r->drained);
    pthread_mutex_unlock(&l->r->lock);
    tell_state(l, false, why->msg);
}

void link_praise(struct link *l)
{
    l->n_failures = 0;
}

int64_t link_rest_ns(const struct link *l)
{
    int64_t left = l->rest_until_ns - clock_now_ns();
    return MAX(left, 0);
}

bool link_ready(struct link *l, int64_t timeout_ns)
{
    struct remote *r = l->r;
    struct err err = {0};
    size_t most = atomic_load(&r->max_chunk_bytes);
    if (l->cluster != NULL && l->max_chunk_bytes == most)
        return true;
    link_drop(l);
    if (link_rest_ns(l) > 0)
        return false;
    struct redis_opts o = {.url = &r->url,
                           .tls = r->tls,
                           .stop_fd = r->stop_fd,
                           .max_answer_bytes = most + (1 << 20)};
    l->max_chunk_bytes = most;
    int64_t deadline_ns = clock_now_ns() + timeout_ns;
    if (cluster_open(&o, &l->seeds, deadline_ns, &l->cluster, &err) != 0) {
        l->cluster = NULL;
        link_fail(l, &err);
        return false;
    }
    tell_state(l, true, "");
    return true;
}
