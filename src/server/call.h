/* call.h - one HTTP request on its way through the server; private to src/server.
 *
 * http.c makes it, reads the body, and calls the route's function once, on an HTTP thread (or,
 * where it waits for the disk, on the worker's).  The function answers at once (call_json,
 * call_text, call_fault) or starts a generation (generation.h), and then the connection sleeps
 * until the engine has something for it. */
#ifndef SERVER_CALL_H
#define SERVER_CALL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "sessions/conversations.h"
#include "requests/generation.h"
#include "server/server.h"
#include "server/watch.h"

struct call;

struct route {
    const char *path, *method;
    void (*answer)(struct call *c);
    bool is_public;   /* needs no key */
    bool needs_model; /* 503 while it is loading or draining */
    bool waits;       /* for the disk */
    bool has_text;    /* that is rendered or tokenized */
};

/* Where a call is answered. */
enum call_thread {
    CALL_HTTP, /* at once */
    CALL_DISK, /* by the worker for what waits for the disk */
    CALL_TEXT, /* by the worker for texts */
    N_CALL_THREADS,
};

struct server {
    struct server_opts o;
    char *model_name;
    struct auth *auth;
    struct guesses *guesses;
    struct tenants *tenants;
    struct watcher *watcher;
    struct worker *disk, *text; /* what waits for the disk; what parses and tokenizes */
    struct answers *answers;    /* of our answers */
    _Atomic(struct conversations *) conversations; /* NULL: none are kept. Borrowed */
    struct hcache_truncation
        truncation;        /* fixed once ready; ratio 0: nothing is truncated */
    struct shelf *shelf;   /* of files and batches; NULL: there are none. Borrowed */
    struct runner *runner; /* of its batches */
    int batch_sequences;
    struct MHD_Daemon **daemons; /* [o.http_threads], one a loop */
    struct loops *loops;
    int port, listen_socket;
    int64_t created_s;
    int64_t clock_set_by_s;     /* as was said last; of the thread that tidies up */
    int64_t next_idle_s;        /* when idle chunks are looked for again; likewise */
    atomic_bool said_expired;   /* that expired chunks cannot be evicted */
    atomic_bool said_idle;      /* that idle chunks cannot be evicted */
    atomic_bool said_owed;      /* that erased state cannot be overwritten */
    _Atomic(struct hcache *) h; /* NULL: loading */
    atomic_bool draining;
    atomic_int n_active, n_connections;
    atomic_uint_fast64_t
        body_bytes; /* of all requests together, and of their parsed values */
    atomic_uint_fast64_t n_by_thread[N_CALL_THREADS];
    atomic_uint_fast64_t n_requests, n_status[6]; /* by hundreds */
};

struct call {
    struct server *s;
    struct MHD_Connection *connection;
    struct watch *watch;
    const struct route *route;
    char method[16];  /* as it was sent, perhaps cut */
    int64_t begun_ns; /* when its head had arrived */
    char tail[256];   /* of the path, behind a route that ends with "/" */
    size_t uri_bytes;
    bool uri_has_zero; /* struct head */
    bool is_anthropic; /* its faults have the shape of Anthropic's API, else of OpenAI's */
    const char *salt;  /* of the key that was shown */
    char *allowed_origin; /* the page that may read the answer; NULL: none */
    int64_t hold_ns;      /* the answer goes out so much later */
    bool begun, answered, too_big, no_memory, is_counted, is_watched, is_sent;

    struct textbuf body; /* empty once it is parsed */
    struct json *json;   /* the body, parsed */
    size_t json_bytes;   /* what it takes, counted in body_bytes */
    bool has_bad_body;   /* it could not be parsed, and that was answered */

    int status;
    char refused[160];  /* why, for the log; "": it was not */
    struct textbuf out; /* the answer, or the part of a stream that was not sent yet */
    const char *content_type;
    int file; /* has_file: the answer is what it holds, and it is closed then */
    bool has_file;
    int retry_after_s; /* 0: no such header */
    bool close;        /* the connection afterwards */

    struct generation *gen; /* NULL: answered at once */
    atomic_bool is_pending; /* the worker has it */
    atomic_bool is_silent;  /* nothing was streamed for server_opts.keep_alive_s */

    pthread_mutex_t lock; /* protects: */
    bool asleep, news, is_held;
};

/* The answer; each call gets one. v is taken. */
void call_json(struct call *c, int status, struct json *v);
void call_text(struct call *c, int status, const char *content_type, const char *text);
void call_fault(struct call *c, const struct fault *f);
/* The answer is what the file holds; fd is taken. */
void call_file(struct call *c, int fd, const char *content_type);
/* The parsed body: NULL after a fault was answered.  kind: one of REQUEST_, whose ignored
 * fields are not built; 0: none is ignored. */
const struct json *call_body(struct call *c, unsigned kind);
struct hcache *call_model(struct call *c);
/* The call as the asker of a generation. */
struct client call_client(struct call *c);
/* The call whose generation it is. */
struct call *call_of(const struct generation *g);
/* Starts a generation of the call (generation.h); where that fails, the fault is
 * the call's answer. */
void call_generate(struct call *c, const struct dialect *dialect, void *own,
                   const struct gen_params *p, struct prompt_ids *prompts, int n_prompts,
                   struct prompt_text *text, const char *what);
/* The salt of the state of a request, from its key and its own cache_salt (NULL: none):
 * from malloc; NULL: the empty one. */
char *call_state_salt(struct call *c, const char *cache_salt);
/* What the names of its conversations belong to. */
const char *call_tenant(const struct call *c);
/* A parameter behind the "?" of the URL; NULL: absent. */
const char *call_query(struct call *c, const char *name);
/* Whether this server has the model of that name (NULL: any). */
int call_check_name(struct call *c, const char *name, struct fault *f);

/* Something happened that this call may wait for. Any thread. */
void call_wake(struct call *c);
/* False where its client has gone: then it is answered already, by nothing that takes long. */
bool call_is_wanted(struct call *c);
/* The worker has answered it: is_pending ends.  The last touch: the HTTP thread may
 * end the call. */
void call_done(struct call *c);

/* routes */
void api_chat(struct call *c);
void api_completions(struct call *c);
void api_models(struct call *c);
void api_model(struct call *c);
void api_responses(struct call *c);     /* POST */
void api_response(struct call *c);      /* /v1/responses/ID.. */
void api_conversations(struct call *c); /* GET, POST */
void api_conversation(struct call *c);  /* /v1/conversations/ID.. */
void api_messages(struct call *c);
void api_count_tokens(struct call *c);
struct json *api_messages_fault(const struct fault *f);
void api_files(struct call *c);   /* GET, POST */
void api_file(struct call *c);    /* /v1/files/ID.. */
void api_batches(struct call *c); /* GET, POST */
void api_batch(struct call *c);   /* /v1/batches/ID.. */
void api_cache_stats(struct call *c);
void api_cache_lookup(struct call *c);
void api_cache_prefetch(struct call *c);
void api_cache_pin(struct call *c);
void api_cache_evict(struct call *c);
void api_cache_clear(struct call *c);
void api_cache_flush(struct call *c);
void api_cache_quota(struct call *c);
void api_tokenize(struct call *c);
void api_detokenize(struct call *c);
void api_health(struct call *c);
void api_metrics(struct call *c);
void api_openapi(struct call *c);
void api_page(struct call *c);

extern const struct route routes[]; /* ended by {0} */

#endif
