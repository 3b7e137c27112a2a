/* http.c - the HTTP side: the daemons, a request's way in, its limits, and its answer's way out.
 *
 * Invariants:
 * 1. A request whose length is given in two ways is refused and its connection closed: the
 *    library would answer it, and a proxy in front may have read it differently.
 * 2. No part of a request's body is read before its head has passed the gate (gate.h).
 * 3. A connection sleeps (suspended) only while something will wake it: its generation, a
 *    worker, or the watcher.
 * 4. No path, header or body reaches the log at the default level; with -v the route's path
 *    does. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/runner.h"
#include "server/auth.h"
#include "server/body.h"
#include "server/call.h"
#include "server/gate.h"
#include "api/generation.h"
#include "server/head.h"
#include "server/guesses.h"
#include "server/keep.h"
#include "server/loops.h"
#include "server/request_log.h"
#include "server/several.h"
#include "server/tenants.h"
#include "api/answers.h"
#include "server/worker.h"

enum {
    /* Size of the library's buffer for a connection. It bounds the request line and all headers
     * together. */
    CONNECTION_BYTES = 32 << 10,
    BACKLOG = 1024, /* connections that may wait to be accepted */
    MAX_RETRY_S = 60,
    TIDY_PERIOD_S = 5,       /* expired content is erased at most this much later */
    MAX_WAITING_CALLS = 256, /* calls that may wait for a worker; further calls get 503 */
    MAX_PLAIN_BODY = 4 << 10,
    /* Bounds on the remembered answers: enough for the turns of a few thousand conversations. */
    MEMORY_ENTRIES = 4096,
    RECENT_REQUESTS = 1000,
    RECENT_BYTES = 8 << 20,
    MEMORY_BYTES = 64 << 20,
};

/* The threads of the text worker. On busy processors streams and /health have priority over large
 * bodies; small bodies take no longer than streams do. */
static const struct worker_thread_opts text_threads[] = {
    {.max_bytes = 64 << 10, .nice = 0},
    {.max_bytes = 1 << 20, .nice = 5},
    {.max_bytes = SIZE_MAX, .nice = 5},
    {.max_bytes = SIZE_MAX, .nice = 5},
};
static const struct worker_thread_opts disk_thread = {.max_bytes = SIZE_MAX};

/* --- answers ---------------------------------------------------------------------------------- */

void call_text(struct call *c, int status, const char *content_type, const char *text)
{
    c->status = status;
    c->content_type = content_type;
    c->out.n = 0;
    textbuf_add(&c->out, text, strlen(text));
    c->answered = true;
}

void call_file(struct call *c, int fd, const char *content_type)
{
    call_text(c, 200, content_type, "");
    c->file = fd;
    c->has_file = true;
}

void call_json(struct call *c, int status, struct json *v)
{
    call_text(c, status, "application/json", "");
    json_append(v, 0, &c->out);
    json_free(v);
}

/* Returns the expected wait in whole seconds, for Retry-After. */
static int expected_wait_s(struct hcache *h)
{
    struct hcache_stats st;
    hcache_stats(h, &st);
    return st.wait_s < MAX_RETRY_S ? (int)ceil(MAX(st.wait_s, 1)) : MAX_RETRY_S;
}

void call_fault(struct call *c, const struct fault *f)
{
    if (f->status == 429)
        c->retry_after_s = c->s->models == NULL || c->model != NULL
                               ? expected_wait_s(call_model(c))
                               : 1;
    /* The server loads, stops or is short of memory. How long that lasts is unknown. */
    else if (f->status == 503)
        c->retry_after_s = 1;
    /* A reason that is hidden as a whole says nothing, so the log gets the fault's code. */
    const char *reason = strcmp(f->reason, "...") != 0 ? f->reason
                         : f->code != NULL             ? f->code
                                                       : f->type;
    snprintf(c->refused, sizeof c->refused, "%s", reason);
    call_json(c, f->status, c->fault_json(f));
}

char *call_state_salt(struct call *c, const char *cache_salt)
{
    struct client client = call_client(c);
    return client_state_salt(&client, cache_salt);
}

const char *call_tenant(const struct call *c)
{
    return c->salt != NULL ? c->salt : "";
}

const char *call_query(struct call *c, const char *name)
{
    return MHD_lookup_connection_value(c->connection, MHD_GET_ARGUMENT_KIND, name);
}

struct hcache *call_model(struct call *c)
{
    return c->model != NULL ? c->model : atomic_load(&c->s->h);
}

/* --- generations ------------------------------------------------------------------------------ */

/* Wakes the call of a generation. Called on the engine's thread, with the service's lock held. */
static void wake_client(void *arg)
{
    call_wake(arg);
}

static int tenant_of(const struct call *c)
{
    return auth_tenant(c->s->auth, c->salt);
}

static void answer_began(void *arg)
{
    struct call *c = arg;
    tenants_begin(c->s->tenants, tenant_of(c));
}

static void answer_ended(void *arg, enum answer_end end, const struct hcache_result *r,
                         bool missed)
{
    struct call *c = arg;
    tenants_end(c->s->tenants, tenant_of(c), end, r, missed);
}

uint64_t server_share(const struct server *s, uint64_t bound)
{
    int n = s->o.n_api_keys;
    return n > 1 ? MAX(bound / (uint64_t)n, 1) : 0;
}

struct client call_client(struct call *c)
{
    static const struct client_calls calls = {wake_client, answer_began, answer_ended};
    const struct server_opts *o = &c->s->o;
    return (struct client){
        .h = call_model(c),
        .model_name = call_model_name(c),
        .names = c->model != NULL ? c->s->served[c->model_idx] : c->s->o.names,
        .answers = c->s->answers,
        .recent = c->s->recent,
        .agent = MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, "User-Agent"),
        .salt = c->salt,
        .plan = o->plan,
        .has_seed = o->seed != 0,
        .seed = (uint64_t)o->seed,
        .dates = o->dates,
        .truncation = c->truncation,
        .plain_chat = o->plain_chat,
        .parse_special = o->parse_special,
        .max_queue = o->max_queue,
        .own_queue = (int)server_share(c->s, (uint64_t)o->max_queue),
        .calls = &calls,
        .arg = c};
}

struct call *call_of(const struct generation *g)
{
    return generation_client(g)->arg;
}

void call_generate(struct call *c, const struct dialect *dialect, void *own,
                   const struct gen_params *p, struct prompt_ids *prompts, int n_prompts,
                   struct prompt_text *text, const char *what)
{
    struct fault f;
    struct client client = call_client(c);
    if (generation_start(&client, dialect, own, p, prompts, n_prompts, text, what, &c->gen,
                         &f) != 0)
        call_fault(c, &f);
}

/* --- sleeping --------------------------------------------------------------------------------- */

static void wake_locked(struct call *c)
{
    c->news = true;
    if (c->asleep) {
        c->asleep = false;
        loops_resume(c->s->loops, c->connection);
    }
}

void call_wake(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    wake_locked(c);
    pthread_mutex_unlock(&c->lock);
}

bool call_is_wanted(struct call *c)
{
    if (!watch_is_gone(c->watch))
        return true;
    call_text(c, 408, "text/plain", "");
    return false;
}

void call_done(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->is_pending, false);
    wake_locked(c);
    pthread_mutex_unlock(&c->lock);
}

/* Puts the call to sleep. Returns false if there is news: then the caller must look again. */
static bool call_sleep(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    bool sleeps = !c->news;
    c->news = false;
    if (sleeps) {
        c->asleep = true;
        MHD_suspend_connection(c->connection);
    }
    pthread_mutex_unlock(&c->lock);
    return sleeps;
}

static void peer_gone(void *arg)
{
    struct call *c = arg;
    generation_cancel(c->gen);
}

/* --- sending ---------------------------------------------------------------------------------- */

static enum MHD_Result send_response(struct call *c, struct MHD_Response *r)
{
    char text[16];
    if (r == NULL)
        return MHD_NO;
    if (c->content_type != NULL)
        (void)MHD_add_response_header(r, "Content-Type", c->content_type);
    (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    if (c->retry_after_s > 0) {
        snprintf(text, sizeof text, "%d", c->retry_after_s);
        (void)MHD_add_response_header(r, "Retry-After", text);
    }
    gate_headers(c, r);
    if (c->status == 401)
        (void)MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (c->close || atomic_load(&c->s->draining))
        (void)MHD_add_response_header(r, "Connection", "close");
    if (c->status >= 100 && c->status < 600)
        atomic_fetch_add(&c->s->n_status[c->status / 100], 1);
    (void)MHD_set_connection_option(c->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                    (unsigned)c->s->o.write_timeout_s);
    enum MHD_Result ok = MHD_queue_response(c->connection, (unsigned)c->status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result send_file(struct call *c)
{
    struct stat st;
    if (fstat(c->file, &st) != 0)
        return MHD_NO;
    struct MHD_Response *r = MHD_create_response_from_fd64((uint64_t)st.st_size, c->file);
    if (r != NULL)
        c->has_file = false; /* the library closes the file from now on */
    return send_response(c, r);
}

static enum MHD_Result send_answer(struct call *c)
{
    if (c->has_file)
        return send_file(c);
    struct MHD_Response *r = MHD_create_response_from_buffer(c->out.n, c->out.p,
                                                             MHD_RESPMEM_MUST_FREE);
    if (r != NULL)
        c->out = (struct textbuf){0}; /* the library frees the text from now on */
    return send_response(c, r);
}

/* Wakes a stream that has been silent for a while, so that it sends a comment. */
static void keep_alive(void *arg)
{
    struct call *c = arg;
    atomic_store(&c->is_silent, true);
    call_wake(c);
}

/* Sets the alarm for a silent stream. While the server drains, alarms ring at once, and streams
 * end soon. */
static void expect_silence(struct call *c)
{
    int seconds = c->s->o.keep_alive_s;
    if (seconds > 0 && !atomic_load(&c->s->draining))
        watch_alarm(c->watch, (int64_t)seconds * 1000000000, keep_alive, c);
}

/* Writes a comment into a silent stream; clients ignore it. If weights are streamed, a second
 * comment reports the progress of the step. Lines of JSON have no comments. */
static void keep_stream_alive(struct call *c)
{
    int layer, n_layers;
    if (generation_has_lines(c->gen))
        return;
    textbuf_addf(&c->out, ": keep-alive\n\n");
    if (hcache_step_progress(call_model(c), &layer, &n_layers))
        textbuf_addf(&c->out, ": layer %d of %d\n\n", layer, n_layers);
}

/* Fills buf with more bytes of a stream, for the library. */
static ssize_t stream_read(void *arg, uint64_t pos, char *buf, size_t max)
{
    struct call *c = arg;
    (void)pos;
    for (;;) {
        if (c->out.n > 0) {
            size_t n = MIN(c->out.n, max);
            memcpy(buf, c->out.p, n);
            memmove(c->out.p, c->out.p + n, c->out.n - n);
            c->out.n -= n;
            return (ssize_t)n;
        }
        if (generation_is_over(c->gen))
            return MHD_CONTENT_READER_END_OF_STREAM;
        generation_stream(c->gen, &c->out);
        if (atomic_exchange(&c->is_silent, false) && c->out.n == 0)
            keep_stream_alive(c);
        if (c->out.n == 0)
            expect_silence(c);
        if (c->out.n == 0 && !generation_is_over(c->gen) && call_sleep(c))
            return 0;
    }
}

static enum MHD_Result send_stream(struct call *c)
{
    c->status = 200;
    c->content_type = generation_has_lines(c->gen) ? "application/x-ndjson"
                                                   : "text/event-stream";
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10,
                                                               stream_read, c, NULL);
    if (r != NULL) /* tells proxies not to buffer the stream */
        (void)MHD_add_response_header(r, "X-Accel-Buffering", "no");
    return send_response(c, r);
}

/* Sends a whole answer once it is complete. Until then the call sleeps. */
static enum MHD_Result send_when_done(struct call *c)
{
    while (!generation_has_ended(c->gen)) {
        if (call_sleep(c))
            /* the library calls this function again when the call is woken */
            return MHD_YES;
    }
    struct json *answer;
    struct fault f;
    if (generation_answer(c->gen, &answer, &f) == 0)
        call_json(c, 200, answer);
    else
        call_fault(c, &f);
    mem_unpledge();
    return send_answer(c);
}

/* --- a request -------------------------------------------------------------------------------- */

/* State that lives as long as a connection. */
struct peer {
    struct watch *watch;
    size_t uri_bytes; /* bytes of the present request's URI */
    bool uri_has_zero;
};

static struct peer *peer_of(struct MHD_Connection *m)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(
        m, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i != NULL ? i->socket_context : NULL;
}

/* Ends the delay of the answer to a wrong key, and wakes the call. Called by the watcher. */
static void hold_ended(void *arg)
{
    struct call *c = arg;
    pthread_mutex_lock(&c->lock);
    c->is_held = false;
    wake_locked(c);
    pthread_mutex_unlock(&c->lock);
}

/* Sends the answer to a refused request, or sleeps until it may be sent. */
static enum MHD_Result send_refusal(struct call *c)
{
    for (;;) {
        pthread_mutex_lock(&c->lock);
        bool is_held = c->is_held;
        pthread_mutex_unlock(&c->lock);
        if (!is_held) {
            c->is_sent = true;
            return send_answer(c);
        }
        if (call_sleep(c))
            /* the library calls this function again when the call is woken */
            return MHD_YES;
    }
}

static enum MHD_Result refuse(struct call *c, const struct fault *f)
{
    c->close = true; /* a body may follow, which will not be read */
    call_fault(c, f);
    if (c->hold_ns > 0) {
        c->is_held = true;
        watch_answer(c->watch); /* the request has arrived whole */
        watch_alarm(c->watch, c->hold_ns, hold_ended, c);
    }
    return send_refusal(c);
}

static enum MHD_Result send_preflight(struct call *c)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL,
                                                             MHD_RESPMEM_PERSISTENT);
    c->close = true; /* a body may follow, which will not be read */
    c->answered = c->is_sent = true;
    c->status = MHD_HTTP_OK;
    if (r != NULL)
        gate_preflight_headers(c, r);
    return send_response(c, r);
}

/* Makes the call of a new request in *slot, and judges its head: lets the body come, answers a
 * preflight, or refuses. */
static enum MHD_Result begin(struct server *s, struct MHD_Connection *m, const char *url,
                             const char *method, void **slot)
{
    struct call *c = xcalloc(1, sizeof *c);
    struct peer *p = peer_of(m);
    struct fault f;
    c->s = s;
    c->connection = m;
    c->watch = p != NULL ? p->watch : NULL;
    c->begun_ns = clock_now_ns();
    snprintf(c->method, sizeof c->method, "%s", method);
    c->fault_json = head_path_is_below("/v1/messages", url) ||
                            head_path_is_below("/messages", url)
                        ? api_messages_fault
                    : head_path_is_below("/api", url) ? api_ollama_fault
                                                      : fault_json;
    c->uri_bytes = p != NULL ? p->uri_bytes : 0;
    c->uri_has_zero = p != NULL && p->uri_has_zero;
    pthread_mutex_init(&c->lock, NULL);
    *slot = c;
    atomic_fetch_add(&s->n_requests, 1);
    switch (gate_check(c, url, method, &f)) {
    case GATE_OPEN:
        return MHD_YES;
    case GATE_PREFLIGHT:
        return send_preflight(c);
    case GATE_REFUSE:
        break;
    }
    return refuse(c, &f);
}

/* Returns the thread for a call. An HTTP thread serves streams, so it takes only calls with a small
 * body. The disk worker's one thread does not take large bodies, either. */
static enum call_thread thread_for(const struct call *c)
{
    if (c->route->has_text || c->body.n > MAX_PLAIN_BODY)
        return CALL_TEXT;
    return c->route->waits ? CALL_DISK : CALL_HTTP;
}

bool call_wait_early(struct call *c)
{
    struct server *s = c->s;
    int most = s->o.max_queue > 0 ? MIN(s->o.max_queue, MAX_WAITING_CALLS)
                                  : MAX_WAITING_CALLS;
    if (s->n_early >= most)
        return false;
    c->begun = false; /* it is dispatched again */
    atomic_store(&c->is_pending, true);
    c->next_early = s->early;
    s->early = c;
    s->n_early++;
    watch_answer(c->watch);
    return true;
}

/* Lets a call wait for the model. Returns false if the model is there or too many calls wait. */
static bool wait_for_model(struct call *c)
{
    struct server *s = c->s;
    pthread_mutex_lock(&s->ready_lock);
    bool waits = c->route->needs_model && s->may_wait && call_wait_early(c);
    pthread_mutex_unlock(&s->ready_lock);
    return waits;
}

void server_models_changed(void *arg)
{
    struct server *s = arg;
    pthread_mutex_lock(&s->ready_lock);
    for (struct call *next; s->early != NULL; s->early = next) {
        next = s->early->next_early; /* the woken call may end at once */
        call_done(s->early);
    }
    s->n_early = 0;
    pthread_mutex_unlock(&s->ready_lock);
    if (s->runner != NULL)
        runner_wake(s->runner);
}

/* Wakes the calls that wait for the model. No other call waits for the first model from now on. */
static void end_early(struct server *s)
{
    pthread_mutex_lock(&s->ready_lock);
    s->may_wait = false;
    pthread_mutex_unlock(&s->ready_lock);
    server_models_changed(s);
}

/* Takes a call that ends from the calls that wait for the model. */
static void forget_early(struct call *c)
{
    struct server *s = c->s;
    pthread_mutex_lock(&s->ready_lock);
    for (struct call **at = &s->early; *at != NULL; at = &(*at)->next_early)
        if (*at == c) {
            *at = c->next_early;
            s->n_early--;
            break;
        }
    pthread_mutex_unlock(&s->ready_lock);
}

int server_n_early(struct server *s)
{
    pthread_mutex_lock(&s->ready_lock);
    int n = s->n_early;
    pthread_mutex_unlock(&s->ready_lock);
    return n;
}

/* Starts a call whose body has arrived: it is refused, waits for its model (c->begun is false), is
 * answered here, or goes to a worker. */
static void dispatch(struct call *c)
{
    struct fault f;
    c->begun = true;
    int rc = body_check(c, &f);
    if (rc == 0 && wait_for_model(c))
        return;
    /* Body and state are checked again, because time has passed. */
    if (rc == 0)
        rc = gate_state(c, &f);
    if (rc == 0)
        rc = several_take(c, &f);
    if (rc > 0)
        return;
    if (rc == 0) {
        enum call_thread thread = thread_for(c);
        atomic_fetch_add(&c->s->n_active, 1);
        tenants_request(c->s->tenants, auth_tenant(c->s->auth, c->salt));
        atomic_fetch_add(&c->s->n_by_thread[thread], 1);
        c->is_counted = true;
        watch_answer(c->watch);
        if (thread == CALL_HTTP) {
            c->route->answer(c);
            mem_unpledge();
            return;
        }
        if (worker_take(thread == CALL_TEXT ? c->s->text : c->s->disk, c))
            return;
        fault_set(&f, 503, "busy", NULL, "too many requests wait for %-s",
                  thread == CALL_TEXT ? "a thread" : "the disk");
    }
    call_fault(c, &f);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *m, const char *url,
                                  const char *method, const char *version,
                                  const char *bytes, size_t *n_bytes, void **slot)
{
    struct call *c = *slot;
    (void)version;
    if (c == NULL)
        return begin(arg, m, url, method, slot);
    if (c->answered && !c->begun) /* the request was refused because of its head */
        return c->is_sent ? MHD_YES : send_refusal(c);
    if (*n_bytes > 0) {
        size_t n = *n_bytes;
        *n_bytes = 0;
        return body_add(c, bytes, n);
    }
    do {
        if (!c->begun)
            dispatch(c);
        while (atomic_load(&c->is_pending)) {
            if (call_sleep(c))
                /* the library calls this function again when the call is woken */
                return MHD_YES;
        }
    } while (!c->begun); /* it has waited for the model */
    if (c->gen != NULL && !c->is_watched) {
        c->is_watched = true;
        watch_on_gone(c->watch, peer_gone, c);
    }
    if (c->gen == NULL)
        return send_answer(c);
    return generation_is_stream(c->gen) ? send_stream(c) : send_when_done(c);
}

static void on_completed(void *arg, struct MHD_Connection *m, void **slot,
                         enum MHD_RequestTerminationCode why)
{
    struct server *s = arg;
    struct call *c = *slot;
    (void)m;
    if (c == NULL)
        return;
    *slot = NULL;
    forget_early(c);
    request_log(c, why != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    watch_on_gone(c->watch, NULL, NULL);
    watch_alarm(c->watch, 0, NULL, NULL);
    watch_idle(c->watch, s->o.idle_timeout_s);
    generation_free(c->gen); /* cancels its running choices */
    several_give(c);
    if (c->is_counted)
        atomic_fetch_sub(&s->n_active, 1);
    body_release(c);
    textbuf_free(&c->out);
    if (c->has_file)
        close(c->file);
    free(c->allowed_origin);
    pthread_mutex_lock(&c->lock); /* waits until call_done has released the lock */
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void on_connection(void *arg, struct MHD_Connection *m, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct server *s = arg;
    struct peer *p = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i = MHD_get_connection_info(
            m, MHD_CONNECTION_INFO_CONNECTION_FD);
        p = xcalloc(1, sizeof *p);
        if (i != NULL)
            p->watch = watch_begin(s->watcher, i->connect_fd, s->o.idle_timeout_s);
        *context = p;
        atomic_fetch_add(&s->n_connections, 1);
    } else if (p != NULL) {
        watch_end(p->watch);
        free(p);
        *context = NULL;
        atomic_fetch_sub(&s->n_connections, 1);
    }
}

/* Called when the request line has arrived. Now the rest must follow in time. */
static void *on_uri(void *arg, const char *uri, struct MHD_Connection *m)
{
    struct server *s = arg;
    struct peer *p = peer_of(m);
    if (p != NULL) {
        p->uri_bytes = strlen(uri);
        p->uri_has_zero = strstr(uri, "%00") != NULL;
        watch_request(p->watch, s->o.read_timeout_s);
    }
    return NULL;
}

static void on_log(void *arg, const char *fmt, va_list ap)
{
    char text[300];
    (void)arg;
    vsnprintf(text, sizeof text, fmt, ap);
    log_debug("http: %s", text);
}

/* --- the server's life ------------------------------------------------------------------------ */

/* Listens on an address, and takes the port from there if any would do. */
static int listen_on(struct server *s, const char *given, struct err *err)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *a = NULL;
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char port[16];
    int one = 1, rc = 0, several = s->o.n_hosts > 1;
    snprintf(port, sizeof port, "%d", s->port);
    /* "localhost" becomes a fixed address, because resolvers differ in which one they name
     * first. */
    const char *host = strcmp(given, "localhost") == 0 ? "127.0.0.1" : given;
    if (getaddrinfo(host, port, &hints, &a) != 0)
        return err_set(err, ERR_USAGE,
                       "--host %s: it must be localhost or a numeric address, as 127.0.0.1 "
                       "or 0.0.0.0",
                       given);
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Beside others "::" means IPv6 alone, so that 0.0.0.0 may be one of them. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        (a->ai_family == AF_INET6 && several &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) != 0) ||
        bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &n) != 0)
        rc = err_set(err, -errno, "cannot listen on %s port %d: %s", given, s->port,
                     strerror(errno));
    if (fd >= 0)
        s->listen_sockets[s->n_listening++] = fd;
    freeaddrinfo(a);
    if (rc == 0)
        s->port = ntohs(bound.ss_family == AF_INET6
                            ? ((struct sockaddr_in6 *)&bound)->sin6_port
                            : ((struct sockaddr_in *)&bound)->sin_port);
    return rc;
}

static struct MHD_Daemon *start_daemon(struct server *s)
{
    unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_ERROR_LOG;
    return MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o.max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->o.idle_timeout_s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, s, MHD_OPTION_URI_LOG_CALLBACK, on_uri, s,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
}

static int start_loops(struct server *s, struct err *err)
{
    s->daemons = xcalloc((size_t)s->o.http_threads, sizeof(struct MHD_Daemon *));
    for (int i = 0; i < s->o.http_threads; i++) {
        s->daemons[i] = start_daemon(s);
        if (s->daemons[i] == NULL)
            return err_set(err, errno != 0 ? -errno : ERR_UNSUPPORTED,
                           "the HTTP library does not start (%s)", strerror(errno));
    }
    struct loops_opts o = {.daemons = s->daemons,
                           .n = s->o.http_threads,
                           .listen_sockets = s->listen_sockets,
                           .n_listening = s->n_listening,
                           .max_connections = s->o.max_connections,
                           .n_connections = &s->n_connections};
    return loops_start(&o, &s->loops, err);
}

static int start_workers(struct server *s, struct err *err)
{
    int own_calls = (int)server_share(s, MAX_WAITING_CALLS);
    const struct worker_opts disk = {.threads = &disk_thread,
                                     .n_threads = 1,
                                     .max_calls = MAX_WAITING_CALLS,
                                     .own_calls = own_calls,
                                     .tidy = keep_tidy,
                                     .arg = s,
                                     .period_s = TIDY_PERIOD_S};
    const struct worker_opts text = {.threads = text_threads,
                                     .n_threads = sizeof text_threads /
                                                  sizeof text_threads[0],
                                     .max_calls = MAX_WAITING_CALLS,
                                     .own_calls = own_calls};
    int rc = worker_create(&disk, &s->disk, err);
    return rc == 0 ? worker_create(&text, &s->text, err) : rc;
}

int server_start(const struct server_opts *o, struct server **out, struct err *err)
{
    struct server *s = xcalloc(1, sizeof *s);
    pthread_mutex_init(&s->advice_lock, NULL);
    pthread_mutex_init(&s->ready_lock, NULL);
    s->may_wait = o->wait_ready;
    mem_return_large();
    s->o = *o;
    s->model_name = xstrdup(o->model_name);
    s->port = o->port;
    s->created_s = clock_wall_s();
    auth_create(o->api_keys, o->n_api_keys, o->n_admin_keys, &s->auth);
    tenants_create(o->n_api_keys, &s->tenants);
    guesses_create(&s->guesses);
    int rc = origin_rules_check(&o->origins, err);
    if (rc == 0)
        rc = watcher_create(o->max_connections, o->read_timeout_s, &s->watcher, err);
    if (rc == 0)
        rc = start_workers(s, err);
    for (int i = 0; rc == 0 && i < o->n_hosts; i++)
        rc = listen_on(s, o->hosts[i], err);
    if (rc == 0)
        rc = start_loops(s, err);
    if (rc != 0) {
        server_stop(s);
        return rc;
    }
    *out = s;
    return 0;
}

int server_port(const struct server *s)
{
    return s->port;
}

void server_keep(struct server *s, struct conversations *c)
{
    atomic_store(&s->conversations, c);
}

void server_truncate(struct server *s, const struct hcache_truncation *t)
{
    s->truncation = *t;
}

/* Returns a hash of the vocabulary. It shows whether the token ids in a file of answers have the
 * same meaning here. */
static struct sha256 vocabulary_of(const struct hcache *h)
{
    struct hcache_model_info info;
    struct sha256_ctx *c = sha256_begin();
    hcache_model_info(h, &info);
    for (int32_t id = 0; info.has_tokenizer && id < info.vocab_size; id++) {
        size_t n;
        const char *bytes = hcache_token_bytes(h, id, &n);
        sha256_field(c, "token", bytes, bytes != NULL ? n : 0);
    }
    return sha256_end(c);
}

void server_batches(struct server *s, struct shelf *shelf, int n_sequences)
{
    s->shelf = shelf;
    s->batch_sequences = n_sequences;
}

static void batch_began(void *arg, const char *tenant)
{
    struct server *s = arg;
    int at = auth_find(s->auth, tenant);
    if (at >= 0)
        tenants_begin(s->tenants, at);
}

static void batch_ended(void *arg, const char *tenant, enum answer_end end,
                        const struct hcache_result *r, bool missed)
{
    struct server *s = arg;
    int at = auth_find(s->auth, tenant);
    if (at >= 0)
        tenants_end(s->tenants, at, end, r, missed);
}

static int start_batches(struct server *s, struct hcache *h, struct err *err)
{
    const struct server_opts *o = &s->o;
    bool several = s->models != NULL;
    struct runner_opts r = {
        .shelf = s->shelf,
        .borrow = several ? several_borrow : NULL,
        .must_return = several ? several_must_return : NULL,
        .give_back = several ? several_give_back : NULL,
        .client = {.h = h,
                   .model_name = s->model_name,
                   .names = s->o.names,
                   .plan = o->plan,
                   .dates = o->dates,
                   .plain_chat = o->plain_chat,
                   .parse_special = o->parse_special,
                   .max_queue = o->max_queue,
                   .own_queue = (int)server_share(s, (uint64_t)o->max_queue)},
        .in_flight = s->batch_sequences,
        .began = batch_began,
        .ended = batch_ended,
        .arg = s};
    struct runner *runner = NULL;
    int rc = runner_start(&r, &runner, err);
    s->runner = runner; /* loading models may read it at once */
    return rc;
}

int server_ready(struct server *s, struct hcache *h, struct err *err)
{
    struct answers_opts o = {.max_entries = MEMORY_ENTRIES,
                             .max_bytes = MEMORY_BYTES,
                             .path = s->o.answers,
                             .seal = s->o.seal,
                             .ttl_s = s->o.answers_ttl_s};
    struct hcache_cache_stats store;
    struct hcache_model_info info;
    if (s->models != NULL) {
        o.of_models = true;
    } else {
        hcache_model_info(h, &info);
        s->o.names.in_file = info.name;
        o.vocabulary = vocabulary_of(h);
    }
    hcache_cache_stats(h, NULL, &store);
    if (store.saving_fault == -EPERM) /* nothing is kept in another user's folder */
        o.path = NULL;
    int rc = answers_open(&o, &s->answers, err);
    if (rc != 0 && o.path != NULL && !s->o.store_required) {
        log_warn("%s; answers are remembered until the process ends", err->msg);
        o.path = NULL;
        rc = answers_open(&o, &s->answers, err);
    }
    const struct recent_opts recent = {.max_records = RECENT_REQUESTS,
                                       .max_bytes = RECENT_BYTES,
                                       .n_tenants = s->o.n_api_keys};
    s->recent = recent_create(&recent);
    if (rc == 0 && s->shelf != NULL)
        rc = start_batches(s, h, err);
    if (rc == 0) {
        atomic_store(&s->h, h);
        end_early(s);
    }
    return rc;
}

void server_drain(struct server *s)
{
    if (!atomic_exchange(&s->draining, true))
        loops_refuse(s->loops);
    end_early(s); /* the calls that wait for a model are refused */
    runner_stop(s->runner);
}

int server_n_active(const struct server *s)
{
    return atomic_load(&s->n_active);
}

void server_stop(struct server *s)
{
    if (s == NULL)
        return;
    end_early(s);
    worker_stop(s->disk); /* each worker wakes its own calls */
    worker_stop(s->text);
    watcher_ring(s->watcher);
    loops_stop(s->loops);
    for (int i = 0; s->daemons != NULL && i < s->o.http_threads; i++) {
        if (s->daemons[i] != NULL)
            MHD_stop_daemon(s->daemons[i]);
    }
    free((void *)s->daemons);
    worker_destroy(s->disk);
    worker_destroy(s->text);
    runner_destroy(s->runner);
    for (int i = 0; i < s->n_listening; i++)
        close(s->listen_sockets[i]);
    watcher_destroy(s->watcher);
    answers_close(s->answers);
    recent_destroy(s->recent);
    tenants_destroy(s->tenants);
    auth_destroy(s->auth);
    guesses_destroy(s->guesses);
    pthread_mutex_destroy(&s->advice_lock);
    pthread_mutex_destroy(&s->ready_lock);
    free(s->model_name);
    free(s);
}
