/* remote_fetch.c - the reader's thread: brings chains of chunks into the store.
 *
 *     STRLEN of every key    in one round trip: tells how much of the chain exists, and its size
 *     GETEX of these keys    in one go, as far as WINDOW_BYTES allow; their lives are prolonged
 *                            later
 *       each value           is verified and appended by another thread (storing.h)
 *     store_commit           once, for all chunks that came
 *
 * A wrong value ends the chain, and is removed from the remote. However a fetch ends, the chunks
 * that came before the end are committed and used. One fetch runs at a time; waiting fetches end
 * when their time is over. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/remote/remote_impl.h"
#include "store/remote/storing.h"

/* Most bytes of values requested and not yet received. Bounds the memory of both sides. */
#define WINDOW_BYTES ((uint64_t)32 << 20)
/* Interval at which the reader looks for cancelled fetches, and for fetches whose time is over. */
#define LOOK_NS ((int64_t)20 * 1000 * 1000)
/* Interval at which an idle connection is probed. */
#define PROBE_EVERY_NS ((int64_t)1000 * 1000 * 1000)

/* State of the running fetch. */
struct work {
    struct remote *r;
    struct remote_fetch *f;
    uint64_t *length; /* [n] sizes of the values in bytes */
    int n;            /* length of the chain that the remote has */
    /* How many of these n were requested, received and stored. */
    int n_asked, n_come, n_stored;
    uint64_t asked_bytes; /* bytes of values requested and not received */
    /* bytes of all n values, and of the n_come received ones */
    uint64_t all_bytes, come_bytes;
    int n_flight; /* answers that are still to come */
    int n_round_trips;
    struct remote_view view;
    int64_t t_transfer;
    struct redis_answer answer;
};

/* Sets the reason why the fetch brings no more, unless there is one already. Returns false. */
static bool miss(struct remote_fetch *f, enum remote_miss why, const char *text)
{
    if (f->out.why == REMOTE_MISS_NONE) {
        f->out.why = why;
        snprintf(f->out.text, sizeof f->out.text, "%.159s", text);
    }
    return false;
}

static double since_s(int64_t t)
{
    return (double)(clock_now_ns() - t) * 1e-9;
}

/* --- when a fetch is given up ----------------------------------------------------------------- */

/* Returns whether the fetch continues; if not, the fetch holds the reason. *again_ns is the time
 * after which the caller must ask again. */
static bool goes_on(struct remote_fetch *f, struct remote_view *v,
                    const struct remote_pace *pace, int64_t *again_ns)
{
    double again_s;
    if (atomic_load(&f->is_cancelled))
        return miss(f, REMOTE_MISS_CANCELLED, "the request has ended");
    v->silent_s = since_s(atomic_load(&f->t_heard));
    v->most_s = (double)f->r->o.stuck_ns * 1e-9;
    enum remote_choice c = remote_choose(v, pace, &again_s);
    *again_ns = (int64_t)(again_s * 1e9) + 1;
    if (*again_ns > LOOK_NS)
        *again_ns = LOOK_NS;
    if (c == REMOTE_SILENT)
        return miss(f, REMOTE_MISS_SILENT, "the remote did not answer in time");
    if (c == REMOTE_TOO_DEAR)
        return miss(f, REMOTE_MISS_SLOW, "recomputing is faster than the remote");
    if (c == REMOTE_CRAWLS)
        return miss(f, REMOTE_MISS_SLOW, "the remote is slower than recomputing");
    return true;
}

/* Takes a waiting fetch whose time is over off the list. Returns NULL if there is none. */
static struct remote_fetch *take_overdue(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    struct remote_fetch *f = NULL, **p = &r->fetches;
    while (*p != NULL && f == NULL) {
        struct remote_view v = {.recompute_s = (*p)->want.recompute_s};
        int64_t unused;
        if (goes_on(*p, &v, &r->pace, &unused)) {
            p = &(*p)->next;
        } else {
            f = *p;
            *p = f->next;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return f;
}

/* Counts and logs the end of a fetch, and calls its `done`. */
static void finish(struct remote_fetch *f)
{
    struct remote *r = f->r;
    void (*done)(void *) = f->want.done;
    void *arg = f->want.arg;
    pthread_mutex_lock(&r->lock);
    r->stats.misses[f->out.why] += f->out.why != REMOTE_MISS_NONE;
    r->stats.n_fetched += (uint64_t)f->out.n_chunks;
    r->stats.fetched_bytes += f->out.n_bytes;
    r->stats.pace = r->pace;
    pthread_mutex_unlock(&r->lock);
    if (f->out.n_chunks > 0 ||
        (f->out.why != REMOTE_MISS_NONE && f->out.why != REMOTE_MISS_ABSENT))
        log_info("%d of %d chunks came from the remote in %.1f ms%s%s", f->out.n_chunks,
                 f->want.n, since_s(f->t_begin) * 1e3, f->out.text[0] != 0 ? ": " : "",
                 f->out.text);
    done(arg); /* the owner may have freed f by now */
}

/* Ends the waiting fetches whose time is over. */
static void end_overdue(struct remote *r)
{
    for (struct remote_fetch *f; (f = take_overdue(r)) != NULL;)
        finish(f);
}

/* Updates the view, by which the policy decides whether the fetch goes on. Bytes of an incomplete
 * value count as well: otherwise a value that drips in would be waited for without end. */
static void show_progress(struct work *w)
{
    w->view.elapsed_s = w->t_transfer != 0 ? since_s(w->t_transfer) : 0;
    w->view.done_bytes = w->come_bytes + w->answer.n_here;
    w->view.left_bytes = w->all_bytes - MIN(w->all_bytes, w->view.done_bytes);
}

/* Receives the next answer, within the time that the fetch has. Returns false if the fetch has
 * ended. */
static bool receive(struct work *w)
{
    struct err err = {0};
    bool complete = false;
    struct link *l = &w->r->read_link;
    int64_t again_ns;
    int rc = 0;
    w->answer.kind = REDIS_NONE;
    w->answer.n_bytes = w->answer.n_here = 0;
    while (rc == 0 && !complete) {
        if (!goes_on(w->f, &w->view, &w->r->pace, &again_ns))
            return false;
        int64_t until = clock_now_ns() + again_ns;
        rc = cluster_flush(l->cluster, until, &err);
        if (rc == 0)
            rc = cluster_receive_some(l->cluster, until, &w->answer, &complete, &err);
        if (rc == 0)
            atomic_store(&w->f->t_heard, clock_now_ns());
        rc = rc == -ETIMEDOUT ? 0 : rc;
        show_progress(w);
        end_overdue(w->r);
    }
    if (rc != 0) {
        link_fail(l, &err);
        return miss(w->f, REMOTE_MISS_FAILED, err.msg);
    }
    w->n_flight--;
    return true;
}

/* --- finding the chain's length --------------------------------------------------------------- */

static bool ask(struct work *w, const struct redis_arg *args, int n)
{
    struct err err = {0};
    struct link *l = &w->r->read_link;
    w->n_round_trips += w->n_flight == 0;
    w->n_flight++;
    if (cluster_command(l->cluster, args, n, clock_now_ns() + w->r->o.stuck_ns, &err) == 0)
        return true;
    link_fail(l, &err);
    return miss(w->f, REMOTE_MISS_FAILED, err.msg);
}

/* Ends the fetch because the remote refuses a command. Returns false. */
static bool refused(struct work *w)
{
    struct err err = {0};
    (void)remote_refused(&w->answer, &err);
    link_fail(&w->r->read_link, &err);
    return miss(w->f, REMOTE_MISS_FAILED, err.msg);
}

/* Returns whether a value of this size may be a chunk that this server takes. */
static bool is_chunk_size(const struct remote *r, int64_t n)
{
    n -= r->names.seal != NULL ? VALUE_TAIL : 0;
    return n > CHUNK_HEADER_BYTES && n % STORE_ALIGN == 0 &&
           (uint64_t)n <= atomic_load(&r->max_chunk_bytes);
}

/* Learns how much of the chain the remote has: w->n and the lengths. Returns false if the fetch has
 * ended. */
static bool look(struct work *w)
{
    const struct remote_want *want = &w->f->want;
    char name[NAME_BYTES];
    int64_t t0 = clock_now_ns();
    for (int i = 0; i < want->n; i++) {
        name_chunk(&w->r->names, &want->keys[i], name);
        const struct redis_arg args[] = {REDIS_TEXT("STRLEN"), REDIS_TEXT(name)};
        if (!ask(w, args, 2))
            return false;
    }
    bool goes = true;
    uint64_t n_bytes = 0;
    for (int i = 0; i < want->n; i++) {
        if (!receive(w))
            return false;
        if (i == 0)
            remote_pace_learn(&w->r->pace, since_s(t0), 0, 0);
        if (w->answer.kind != REDIS_NUMBER)
            return refused(w);
        goes = goes && is_chunk_size(w->r, w->answer.number);
        if (!goes)
            continue;
        w->length[w->n++] = (uint64_t)w->answer.number;
        n_bytes += (uint64_t)w->answer.number;
    }
    if (w->n == 0 && atomic_load(&w->r->has_other_secrets))
        miss(w->f, REMOTE_MISS_SECRET,
             "the remote has state of servers with another --store-key, or with none");
    else if (w->n < want->n)
        miss(w->f, REMOTE_MISS_ABSENT, "the remote does not have it");
    w->all_bytes = w->view.left_bytes = n_bytes;
    w->view.recompute_s *= (double)w->n / want->n;
    w->view.restore_s *= (double)w->n / want->n;
    return true;
}

/* --- fetching the chunks ---------------------------------------------------------------------- */

/* Replaces the reason "absent", which look() has set, by the reason why fewer chunks came than the
 * remote had. Returns false. */
static bool instead(struct work *w, enum remote_miss why, const char *text)
{
    w->f->out.why = REMOTE_MISS_NONE;
    return miss(w->f, why, text);
}

/* Hands the received value over to be verified and stored. Returns false if the fetch has ended. */
static bool take_value(struct work *w)
{
    if (w->answer.kind == REDIS_NONE)
        return instead(w, REMOTE_MISS_ABSENT, "the remote has just dropped it");
    if (w->answer.kind != REDIS_BYTES)
        return refused(w);
    bool goes = storing_give(w->r->storing, &w->answer);
    w->answer.n_here = 0; /* storing_give has exchanged the answer's buffer */
    return goes;
}

/* Asks for as many values as the window has room for, at least one. */
static bool ask_values(struct work *w)
{
    char name[NAME_BYTES];
    while (w->n_asked < w->n && (w->asked_bytes == 0 ||
                                 w->asked_bytes + w->length[w->n_asked] <= WINDOW_BYTES)) {
        name_chunk(&w->r->names, &w->f->keys[w->n_asked], name);
        const struct redis_arg args[] = {REDIS_TEXT("GETEX"), REDIS_TEXT(name)};
        if (!ask(w, args, 2))
            return false;
        w->asked_bytes += w->length[w->n_asked++];
    }
    return true;
}

/* Fetches the values and has them stored, until all have come or the fetch has ended. */
static void bring(struct work *w)
{
    w->t_transfer = clock_now_ns();
    storing_begin(w->r->storing, w->f);
    while (w->n_come < w->n && ask_values(w) && receive(w) && take_value(w)) {
        uint64_t n = w->length[w->n_come++];
        w->asked_bytes -= n;
        w->come_bytes += n;
        show_progress(w);
    }
    struct stored got = storing_end(w->r->storing);
    w->n_stored = got.n;
    w->f->out.n_bytes = got.n_bytes;
    if (got.why != REMOTE_MISS_NONE)
        (void)instead(w, got.why, got.text);
}

/* Learns the bandwidth from a complete transfer, and from one that was too slow. Counts a fetch
 * that was too dear to begin. */
static void settle_pace(struct work *w)
{
    struct remote_pace *p = &w->r->pace;
    bool is_slow = w->f->out.why == REMOTE_MISS_SLOW;
    if (w->t_transfer == 0) {
        if (is_slow)
            remote_pace_refuse(p);
        return;
    }
    if (w->n_come == w->n || is_slow)
        remote_pace_learn(p, 0, w->view.done_bytes, since_s(w->t_transfer));
    remote_pace_tried(p);
}

/* Makes the received chunks durable and visible. */
static void commit(struct work *w)
{
    struct err err = {0};
    if (w->n_stored == 0)
        return;
    if (store_commit(w->r->o.store, &err) == 0) {
        w->f->out.n_chunks = w->n_stored;
        uint32_t ttl_s = remote_ttl_s(w->r, w->f->want.use.ttl_s);
        /* chunks that a fetch has brought are used, so their lives in the remote are prolonged */
        for (int i = 0; i < w->n_stored; i++)
            remote_lease_add(w->r, &w->f->keys[i], ttl_s);
        return;
    }
    w->f->out.n_bytes = 0;
    instead(w, REMOTE_MISS_STORE, err.msg);
}

/* Keeps the connection if nothing is in flight on it. A connection that was silent is closed as
 * failed, so it rests. */
static void settle_link(struct work *w)
{
    static const struct err silent = {-ETIMEDOUT, "it did not answer in time"};
    struct link *l = &w->r->read_link;
    if (l->cluster == NULL)
        return;
    if (w->f->out.why == REMOTE_MISS_SILENT)
        link_fail(l, &silent);
    else if (w->n_flight > 0 || cluster_is_old(l->cluster))
        link_drop(l);
    else
        link_praise(l);
}

static void fetch(struct remote *r, struct remote_fetch *f)
{
    struct work w = {.r = r, .f = f};
    w.view.recompute_s = f->want.recompute_s;
    w.view.restore_s = f->want.restore_s;
    int64_t again_ns;
    if (r->read_link.cluster == NULL) {
        miss(f, REMOTE_MISS_RESTING, "the remote has failed a moment ago");
    } else if (goes_on(f, &w.view, &r->pace, &again_ns)) {
        w.length = xcalloc((size_t)f->want.n, sizeof *w.length);
        if (look(&w) && w.n > 0 && goes_on(f, &w.view, &r->pace, &again_ns))
            bring(&w);
        settle_pace(&w);
        settle_link(&w);
        commit(&w);
        free(w.length);
        pthread_mutex_lock(&r->lock);
        r->stats.n_round_trips += (uint64_t)w.n_round_trips;
        pthread_mutex_unlock(&r->lock);
        redis_answer_deinit(&w.answer);
    }
    finish(f);
}

/* Waits for one answer to the probe; ends overdue fetches meanwhile. */
static int hear_probe(struct link *l, int64_t until, struct err *err)
{
    struct redis_answer a = {0};
    bool complete = false;
    int rc = 0;
    while (rc == 0 && !complete) {
        int64_t look = clock_now_ns() + LOOK_NS;
        rc = cluster_flush(l->cluster, look, err);
        if (rc == 0)
            rc = cluster_receive_some(l->cluster, look, &a, &complete, err);
        if (rc == -ETIMEDOUT && look < until)
            rc = 0;
        /* An answer that comes in small pieces has no more time than one that comes at once. */
        else if (rc == 0 && !complete && look >= until)
            rc = err_set(err, -ETIMEDOUT, "the end of the remote's answer does not come");
        end_overdue(l->r);
    }
    if (rc == 0 && a.kind == REDIS_REFUSED)
        rc = remote_refused(&a, err);
    redis_answer_deinit(&a);
    return rc;
}

/* Probes the remote, so that its failure is noticed before a request needs it. Fetches that begin
 * meanwhile still end when their time is over. */
static void probe(struct link *l)
{
    struct err err = {0};
    const struct redis_arg ping = REDIS_TEXT("PING");
    int64_t until = clock_now_ns() + l->r->o.stuck_ns;
    int rc = 0, n = cluster_n_nodes(l->cluster);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = cluster_command_to(l->cluster, i, &ping, 1, until, &err);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = hear_probe(l, until, &err);
    if (rc != 0)
        link_fail(l, &err);
}

/* --- the thread ------------------------------------------------------------------------------- */

/* [lock] Takes the next fetch; NULL if there is none. */
static struct remote_fetch *take(struct remote *r)
{
    struct remote_fetch *f = r->fetches;
    if (f != NULL)
        r->fetches = f->next;
    return f;
}

void *remote_reader_main(void *remote)
{
    struct remote *r = remote;
    struct link *l = &r->read_link;
    int64_t t_heard = 0;
    pthread_mutex_lock(&r->lock);
    while (!r->quit) {
        struct remote_fetch *f = take(r);
        int64_t idle_ns = l->cluster != NULL ? t_heard + PROBE_EVERY_NS - clock_now_ns()
                                             : link_rest_ns(l);
        if (f == NULL && idle_ns > 0) {
            remote_wait(r, &r->for_reader, idle_ns);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        if (f != NULL)
            fetch(r, f);
        else if (l->cluster != NULL)
            probe(l);
        else
            (void)link_ready(l, r->o.stuck_ns);
        t_heard = clock_now_ns();
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}
