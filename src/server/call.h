/* call.h - one HTTP request on its way through the server; private to src/server.
 *
 * http.c makes the call, reads the body, and calls the route's function once: on an HTTP thread, or
 * on a worker's if it waits for the disk or has text. The function answers at once (call_json,
 * call_text, call_fault) or starts a generation (generation.h). With a generation the connection
 * sleeps until the engine has something for it. */
#ifndef SERVER_CALL_H
#define SERVER_CALL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api/conversations.h"
#include "api/generation.h"
#include "server/server.h"
#include "server/watch.h"

struct call;

struct route {
    const char *path, *method; /* path: as head_path_is takes it */
    void (*answer)(struct call *c);
    bool is_public; /* the route needs no key */
    /* the route gets 503 while the model is loading or the server is draining */
    bool needs_model;
    /* the route works with the model that the request names; false: with the store, or with no
     * model at all */
    bool names_model;
    bool waits;    /* the route waits for the disk */
    bool has_text; /* the route has text to render or tokenize */
};

/* The thread that answers a call. */
enum call_thread {
    CALL_HTTP, /* an HTTP thread, without delay */
    CALL_DISK, /* the disk worker's thread */
    CALL_TEXT, /* a thread of the text worker */
    N_CALL_THREADS,
};

struct server {
    struct server_opts o;
    char *model_name;
    struct auth *auth;
    struct guesses *guesses;
    struct tenants *tenants;
    struct watcher *watcher;
    /* `disk` answers calls that wait for the disk; `text` answers calls that parse and tokenize. */
    struct worker *disk, *text;
    /* remembers the tokens of this server's answers */
    struct answers *answers;
    struct recent *recent; /* how the state of the last answers came back */
    /* NULL: no conversations are kept. Borrowed. */
    _Atomic(struct conversations *) conversations;
    /* Truncation for requests that ask for it; fixed once the server is ready. ratio 0: no request
     * can be truncated. */
    struct hcache_truncation truncation;
    struct shelf *shelf; /* files and batches; NULL: there are none. Borrowed. */
    _Atomic(struct runner *) runner; /* runs the shelf's batches */
    int batch_sequences;
    struct MHD_Daemon **daemons; /* [o.http_threads] one per loop */
    struct loops *loops;
    int port, n_listening, listen_sockets[SERVER_MAX_HOSTS];
    int64_t created_s;
    /* Change of the clock that was logged last, in seconds; only the tidying thread uses it. */
    int64_t clock_set_by_s;
    /* Second since 1970 at which idle chunks are searched next; only the tidying thread uses it. */
    int64_t next_idle_s;
    /* time of the next advice (clock_now_ns); only the tidying thread uses it */
    int64_t next_advice_ns;
    pthread_mutex_t advice_lock; /* protects `advice` */
    /* advice[0].within NULL: no advice was made yet */
    struct hcache_advice advice[HCACHE_ADVICES];
    atomic_bool said_expired; /* logged that expired chunks cannot be evicted */
    atomic_bool said_idle;    /* logged that idle chunks cannot be evicted */
    atomic_bool said_answers; /* logged that old answers cannot be overwritten */
    atomic_bool said_owed;    /* logged that erased state cannot be overwritten */
    /* The model; with several models their store (models_store). NULL until it is loaded. */
    _Atomic(struct hcache *) h;
    struct models *models;            /* NULL: there is one model. Borrowed, as served. */
    const struct model_names *served; /* [n_served] names of the models */
    int n_served;
    /* Calls that wait for a model, newest first. `ready_lock` protects these three. */
    pthread_mutex_t ready_lock;
    struct call *early;
    int n_early;
    bool may_wait; /* calls may be added to `early` */
    atomic_bool draining;
    atomic_int n_active, n_connections;
    /* Memory of the bodies of all requests together, with their parsed values, in bytes. */
    atomic_uint_fast64_t body_bytes;
    atomic_uint_fast64_t n_by_thread[N_CALL_THREADS];
    /* n_status: answers by the first digit of their status */
    atomic_uint_fast64_t n_requests, n_status[6];
};

struct call {
    struct server *s;
    struct MHD_Connection *connection;
    struct watch *watch;
    const struct route *route;
    char method[16];  /* method as the client sent it, cut if it is long */
    int64_t begun_ns; /* time at which its head had arrived */
    char tail[256];   /* the path from the route's first "{" on */
    size_t uri_bytes;
    bool uri_has_zero; /* the URI has an escaped zero: see struct head */
    /* makes the form of faults in the route's API */
    struct json *(*fault_json)(const struct fault *f);
    const char *salt;      /* salt of the request's key */
    struct hcache *model;  /* of several models, the one in use; NULL: none */
    int model_idx;         /* its number */
    uint64_t model_ticket; /* as in models_take */
    /* s->truncation; ratio 0 if the model cannot be truncated so */
    struct hcache_truncation truncation;
    char *allowed_origin; /* origin of the page that may read the answer; NULL: none */
    int64_t hold_ns;      /* delay of the answer to a wrong key, in ns */
    bool begun, answered, too_big, no_memory, is_counted, is_watched, is_sent;

    struct textbuf body; /* bytes of the body; empty once it is parsed */
    struct json *json;   /* the parsed body */
    size_t json_bytes;   /* memory of `json`, which body_bytes counts */
    bool has_bad_body;   /* the body could not be parsed, and the client got the fault */

    int status;
    char refused[160];  /* reason of a refusal, for the log; "": not refused */
    struct textbuf out; /* the answer, or the part of a stream that is not sent yet */
    const char *content_type;
    /* if has_file: descriptor of the file whose content is the answer; closed afterwards */
    int file;
    bool has_file;
    int retry_after_s; /* value of Retry-After; 0: the header is left out */
    bool close;        /* the connection is closed after the answer */

    struct generation *gen; /* NULL: the call is answered without a generation */
    /* a worker has the call, or it waits for the model (server.early) */
    atomic_bool is_pending;
    struct call *next_early; /* protected by server.ready_lock */
    atomic_bool is_silent;   /* the stream has been silent for server_opts.keep_alive_s */

    pthread_mutex_t lock; /* protects the fields below */
    bool asleep, news, is_held;
};

/* The next three set the answer of the call, which gets only one. call_json frees v. */
void call_json(struct call *c, int status, struct json *v);
void call_text(struct call *c, int status, const char *content_type, const char *text);
void call_fault(struct call *c, const struct fault *f);
/* Sets the content of a file as the answer, and closes fd once it is sent. */
void call_file(struct call *c, int fd, const char *content_type);
/* Returns the parsed body, or NULL after a fault was answered. kind: one of REQUEST_; fields that
 * this kind ignores are not built. 0: no field is ignored. */
const struct json *call_body(struct call *c, unsigned kind);
/* Returns the model that the request names. For a route that names none, and of several models, it
 * is the store alone (models_store). */
struct hcache *call_model(struct call *c);
/* Returns the name of that model. */
const char *call_model_name(const struct call *c);
/* Returns the counts of the model, or the sums over all models. */
void call_stats(struct call *c, struct hcache_stats *out);
/* [server.ready_lock] Makes the call wait for a model. The call is dispatched again when a model
 * has come. Returns false if too many calls wait. */
bool call_wait_early(struct call *c);
/* Returns the number of calls that wait for a model. */
int server_n_early(struct server *s);
/* Returns the call in the form of a generation's client. */
struct client call_client(struct call *c);
/* Returns the call to which a generation belongs. */
struct call *call_of(const struct generation *g);
/* Starts a generation of the call (generation.h). If it fails, answers the call with the fault. */
void call_generate(struct call *c, const struct dialect *dialect, void *own,
                   const struct gen_params *p, struct prompt_ids *prompts, int n_prompts,
                   struct prompt_text *text, const char *what);
/* Returns the salt of a request's state, from its key and its own cache_salt (NULL: none). The salt
 * is from malloc; NULL stands for the empty salt. */
char *call_state_salt(struct call *c, const char *cache_salt);
/* Returns the tenant that owns the conversations of this call. */
const char *call_tenant(const struct call *c);
/* Returns a query parameter of the URL; NULL: the URL has no such parameter. */
const char *call_query(struct call *c, const char *name);
/* Checks that this server has the model of that name (NULL: any). Returns 0, or -1 with *f. */
int call_check_name(struct call *c, const char *name, struct fault *f);
/* Checks that a body has no members but those of `names`, which a NULL ends, and that this server
 * has the model that the body names. Returns 0, or -1 with *f. */
int call_check_members(struct call *c, const struct json *body, const char *const *names,
                       struct fault *f);
/* Returns the number of the model with that name, 0 if there is one model; or -1 with *f. */
int call_find_model(struct call *c, const char *name, struct fault *f);
/* Unloads the call's model when no request uses it any more. With one model nothing happens. */
void call_unload(struct call *c);

/* Returns one key's share of a bound, at least 1, or 0 if there is only one key. A key below its
 * share is not refused, even if all keys together have reached the bound. */
uint64_t server_share(const struct server *s, uint64_t bound);

/* Wakes a call that may wait for this event. Any thread. */
void call_wake(struct call *c);
/* Returns false if the client of the call has gone. Then the call already has a short answer. */
bool call_is_wanted(struct call *c);
/* Ends is_pending. A worker calls it when it has answered the call. The worker must not touch the
 * call afterwards, since the HTTP thread may end it. */
void call_done(struct call *c);

/* A model as lists show it. */
struct listed {
    const char *name, *what;  /* what: as in models_state */
    bool is_loaded, is_known; /* is_known: `info` is filled; its texts may be NULL */
    struct hcache_model_info info;
    uint64_t bytes; /* of the weights, or, if they are not known, of the files */
};
/* Returns how many models, or names of the one model, are listed; and the i-th. */
int call_n_listed(const struct call *c);
struct listed call_listed(struct call *c, int i);

/* Functions of the routes. api_response, api_conversation, api_file, api_batch and api_request
 * answer the routes with an ID behind the list's. */
typedef void route_function(struct call *c);
route_function api_chat, api_completions, api_models, api_model, api_responses,
    api_response, api_conversations, api_conversation, api_messages, api_count_tokens,
    api_embeddings, api_rerank, api_ollama_embed, api_ollama_embeddings,
    api_llama_embedding, api_llama_completion, api_llama_infill, api_llama_template,
    api_llama_count, api_llama_props, api_llama_slots, api_ollama_chat, api_ollama_generate,
    api_ollama_version, api_ollama_tags, api_ollama_ps, api_ollama_show, api_files,
    api_file, api_batches, api_batch, api_cache_stats, api_cache_lookup, api_cache_prefetch,
    api_cache_pin, api_cache_evict, api_cache_clear, api_cache_flush, api_cache_quota,
    api_requests, api_request, api_tokenize, api_detokenize, api_health, api_metrics,
    api_openapi, api_page, api_pdf;
struct json *api_messages_fault(const struct fault *f);
/* Unloads the model once it is idle if the body's keep_alive is 0. Returns whether it is. */
bool api_ollama_unloads(struct call *c, const struct json *body);
struct json *api_ollama_fault(const struct fault *f);
/* Returns the stored state and the bounds of the salt to which the statistics k belong. */
struct json *api_cache_salt_use(const struct hcache_cache_stats *k);

extern const struct route routes[]; /* ends with {0} */

#endif
