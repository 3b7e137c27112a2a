/* cmd_serve.c - `hcache serve`: an OpenAI-compatible HTTP server over a model with durable state.
 *
 * This file has wiring, options, and the order of starting and stopping:
 *
 *     listen (503) -> load the model -> answer ... SIGTERM -> drain -> flush -> exit
 *
 * Signals are blocked in every thread and taken by a thread of their own.  The first begins the
 * drain; the second ends the process at once, which loses nothing that was committed. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "apps/api_keys.h"
#include "apps/cmds.h"
#include "apps/medium.h"
#include "apps/option_tables.h"
#include "apps/engine_options.h"
#include "apps/serve_models.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/minmax.h"
#include "opt/opt.h"
#include "base/plural.h"
#include "base/thread.h"
#include "api/shelf.h"
#include "hcache.h"
#include "api/conversations.h"
#include "server/server.h"

struct serve_args {
    struct engine_args engine;
    const char *api_key_file, *admin_key_file, *models, *chat_template_file;
    uint64_t models_memory;
    struct opt_list host, given, api_key, admin_key, allow_host, allow_origin, names;
    int port, max_queue, max_connections, http_threads;
    int read_timeout, write_timeout, idle_timeout, keep_alive, drain;
    uint64_t max_body, max_bodies;
    const char *conversations, *server_name;
    int64_t seed, max_turns, conversation_ttl, idle_ttl;
    const char *files;
    uint64_t files_bytes, files_quota;
    int batch_sequences;
    uint64_t conversation_bytes;
    const char *plan, *wait_ready;
    const char *truncate;
    struct hcache_truncation truncation;
    bool plain_chat, parse_special, verbose, store_required, any_model, no_key;
};

static const char *const serve_plans[] = {"auto", "hidden", "kv", "recompute", NULL};
static const char *const poolings[] = {"mean", "cls", "last", NULL};
static const char *const waits[] = {"auto", "on", "off", NULL};

enum { TEMPLATE_MAX_BYTES = 1 << 20 };

#define TTL_MAX_S INT64_C(3153600000) /* 100 years */

static const struct opt positionals[] = {
    {"MODEL_DIR", OPT(struct serve_args, given),
     .help = "a Hugging Face folder, a GGUF file, or synth:SHAPE for random weights; of "
             "several "
             "the request names one"},
    {0},
};

static const struct opt options[] = {
    {"host", OPT(struct serve_args, host), .arg = "ADDRESS[,ADDRESS...]",
     .def = "127.0.0.1", .min = 1, .max = SERVER_MAX_HOSTS,
     .help = "addresses to listen on, each numeric or localhost"},
    {"port", OPT(struct serve_args, port), .arg = "N", .def = "8080", .min = 0,
     .max = 65535, .help = "port to listen on; 0: any free port, which is printed"},
    {"models", OPT(struct serve_args, models), .arg = "DIR",
     .help = "serve the models below this folder, too; HCACHE_MODELS counts if no model is "
             "named"},
    {"models-memory", OPT(struct serve_args, models_memory), .arg = "BYTES", .def = "0",
     .help =
         "bound on the memory of several loaded models together; the one that was used "
         "least recently is unloaded first; 0: three quarters of the memory that is free "
         "at the start"},
    OPT_STORE(
        struct serve_args,
        "where state is kept and found, one directory per device; \"memory\" for DRAM"),
    OPT_STORE_CAP(struct serve_args),
    OPT_DRAM(struct serve_args, "auto"),
    OPT_REMOTE(struct serve_args),
    OPT_PREFETCH(struct serve_args),
    OPT_SPECULATE(struct serve_args),
    OPT_PACK(struct serve_args),
    OPT_POLICY(struct serve_args),
    {"store-required", OPT(struct serve_args, store_required),
     .help = "do not start if the store, or a file beside it, cannot be used (full disk, "
             "I/O error, no permission); by default the server then starts without saving, "
             "with a warning"},
    {"salt-quota", OPT(struct serve_args, engine.o.salt_quota_bytes), .arg = "BYTES",
     .def = "0", .help = "bound on saved state of each API key and cache_salt; 0 is none"},
    {"guarantee-quota", OPT(struct serve_args, engine.o.guarantee_bytes), .arg = "BYTES",
     .def = "0",
     .help =
         "bound on guaranteed state of each API key and cache_salt (/v1/cache/pin with "
         "guarantee); 0 is three quarters of its --salt-quota, and of the key's share of "
         "--store-cap"},
    {"idle-ttl", OPT(struct serve_args, idle_ttl), .arg = "S", .def = "0", .min = 0,
     .max = TTL_MAX_S,
     .help = "seconds without use after which saved state is evicted; 0 is never"},
    {"conversations", OPT(struct serve_args, conversations), .arg = "FILE",
     .help = "file for responses and conversations; by default conversations.db beside the "
             "store, or memory without a store; \"none\" keeps none"},
    {"server-name", OPT(struct serve_args, server_name), .arg = "NAME",
     .help =
         "name of this server among several: up to 16 of a-z, 0-9 and -; new ids of "
         "responses and conversations contain it, so that the other servers know which one "
         "keeps them"},
    {"max-turns", OPT(struct serve_args, max_turns), .arg = "N", .def = "1000000", .min = 0,
     .max = INT64_MAX,
     .help = "most responses that are kept; more are refused; 0 is no limit"},
    {"conversation-bytes", OPT(struct serve_args, conversation_bytes), .arg = "BYTES",
     .def = "16G",
     .help =
         "most bytes of kept responses and conversations; more are refused; 0 is no limit"},
    {"conversation-ttl", OPT(struct serve_args, conversation_ttl), .arg = "S",
     .def = "2592000", .min = 0, .max = TTL_MAX_S,
     .help =
         "seconds without use after which kept responses and conversations are erased; 0 "
         "is never"},
    {"files", OPT(struct serve_args, files), .arg = "DIR",
     .help = "folder for uploaded files and batches; by default \"files\" beside the "
             "store, and none without a store; \"none\" keeps none"},
    {"files-bytes", OPT(struct serve_args, files_bytes), .arg = "BYTES", .def = "1G",
     .min = 1 << 20, .help = "most bytes of all files and batches; more are refused"},
    {"files-quota", OPT(struct serve_args, files_quota), .arg = "BYTES", .def = "0",
     .help = "most bytes of the files and batches of each API key; 0: an equal share of "
             "--files-bytes"},
    {"batch-sequences", OPT(struct serve_args, batch_sequences), .arg = "N", .def = "0",
     .min = 0, .max = 256,
     .help = "concurrent answers of batches; 0: half of --max-sequences"},
    {"api-key", OPT(struct serve_args, api_key), .arg = "KEY[,KEY...]",
     .help = "key that clients must send; other users can see it in the list of processes, "
             "so prefer the file or the environment"},
    {"api-key-file", OPT(struct serve_args, api_key_file), .arg = "FILE",
     .help = "file with a key on each line"},
    {"no-key", OPT(struct serve_args, no_key),
     .help =
         "let everybody in who can reach --host; else an address that other machines or "
         "containers can reach needs a key"},
    {"allow-host", OPT(struct serve_args, allow_host), .arg = "NAME[,NAME...]",
     .help =
         "host names by which this server may be reached without an API key, besides "
         "addresses, localhost, the names that containers have for their host, and this "
         "machine's own; others get 403"},
    {"allow-origin", OPT(struct serve_args, allow_origin), .arg = "ORIGIN[,ORIGIN...]",
     .help = "web pages that may use this server (CORS), besides its own: "
             "SCHEME://HOST[:PORT], or null, or * for all"},
    {"admin-key", OPT(struct serve_args, admin_key), .arg = "KEY[,KEY...]",
     .help = "an API key that also sees the counters of all keys, in /metrics and "
             "/v1/cache/stats; others see their own"},
    {"admin-key-file", OPT(struct serve_args, admin_key_file), .arg = "FILE",
     .help = "file with an administrator's key on each line"},
    {"served-name", OPT(struct serve_args, names), .arg = "NAME[,NAME...]",
     .help =
         "names of the model for clients, the first one in answers; its folder's name by "
         "default. Of several models: MODEL=NAME, MODEL being the default"},
    {"any-model", OPT(struct serve_args, any_model),
     .help = "accept every name of a model in requests; the default where only this "
             "machine can "
             "reach the server"},
    {"max-sequences", OPT(struct serve_args, engine.o.max_sequences), .arg = "N",
     .def = "8", .min = 1, .max = 256,
     .help = "sequences that are generated at the same "
             "time"},
    {"max-queue", OPT(struct serve_args, max_queue), .arg = "N", .def = "64", .min = 1,
     .max = 1 << 16, .help = "most waiting requests; more get 429"},
    OPT_MAX_CONTEXT(struct serve_args),
    {"max-history", OPT(struct serve_args, engine.o.max_history), .arg = "N", .def = "0",
     .min = 0, .max = INT32_MAX,
     .help = "most tokens of a prompt that is truncated; longer ones are refused; 0: 16 "
             "contexts"},
    OPT_TRUNCATE(
        struct serve_args,
        "continue contexts that outgrow their window of C tokens (the model's own by "
        "default): when the window is full, drop a share R of it, but never its first K "
        "tokens (64); off: no truncation. With --store 0.5 by default. Without --store, "
        "state is kept in memory"),
    {"kv-tokens", OPT(struct serve_args, engine.o.kv_tokens), .arg = "N", .def = "0",
     .help = "capacity of the KV cache in tokens, all sequences together; 0: a context for "
             "each, but at most a quarter of this machine's memory"},
    {"no-reuse", OPT(struct serve_args, engine.o.no_reuse),
     .help = "reuse only saved state, not state left in the KV cache"},
    {"plan", OPT(struct serve_args, plan), .def = "auto", .choices = serve_plans,
     .help =
         "method of restoring, which also selects the saved state; all but auto are for "
         "comparisons"},
    {"wait-ready", OPT(struct serve_args, wait_ready), .def = "auto", .choices = waits,
     .help =
         "requests that come while the model loads wait for it, instead of getting 503: "
         "auto (with a loopback --host), on or off"},
    {"max-connections", OPT(struct serve_args, max_connections), .arg = "N", .def = "2048",
     .min = 1, .max = 1 << 16, .help = "most connections that may be open"},
    {"max-body", OPT(struct serve_args, max_body), .arg = "BYTES", .def = "16M",
     .min = 1024, .help = "most bytes of a request"},
    {"max-bodies", OPT(struct serve_args, max_bodies), .arg = "BYTES", .def = "256M",
     .min = 1024, .help = "most bytes of all requests that are being read or answered"},
    {"read-timeout", OPT(struct serve_args, read_timeout), .arg = "S", .def = "30",
     .min = 1, .max = 86400,
     .help = "seconds within which a request must arrive completely"},
    {"write-timeout", OPT(struct serve_args, write_timeout), .arg = "S", .def = "30",
     .min = 1, .max = 86400,
     .help = "seconds after which a client that reads nothing is dropped"},
    {"idle-timeout", OPT(struct serve_args, idle_timeout), .arg = "S", .def = "120",
     .min = 1, .max = 86400,
     .help = "seconds that a connection may stay open between requests"},
    {"keep-alive", OPT(struct serve_args, keep_alive), .arg = "S", .def = "15", .min = 0,
     .max = 86400,
     .help =
         "a stream that has been silent for S seconds gets a comment, so that clients and "
         "proxies keep it; 0: none"},
    {"drain", OPT(struct serve_args, drain), .arg = "S", .def = "30", .min = 0,
     .max = 86400, .help = "seconds that running requests get after SIGTERM"},
    {"http-threads", OPT(struct serve_args, http_threads), .arg = "N", .def = "2", .min = 1,
     .max = 64, .help = "threads for connections; the engine has its own"},
    {"plain-chat", OPT(struct serve_args, plain_chat),
     .help = "allow chats if the model has no chat template, as lines \"role: text\""},
    {"chat-template-file", OPT(struct serve_args, chat_template_file), .arg = "FILE",
     .help = "Jinja template that makes the prompts of chats, instead of the model's own"},
    {"pooling", OPT(struct serve_args, engine.o.pooling), .choices = poolings,
     .help = "what embeddings are made of: all tokens, the first (cls) or the last one; by "
             "default as the model's files say"},
    OPT_TEMPLATE_DATE(struct serve_args),
    {"drop-system", OPT(struct serve_args, engine.o.drop_system), .arg = "REGEX",
     .help =
         "drop what matches from system messages, such as a line that changes with every "
         "request (PCRE2; \"(?m)^Now: .*\\n\"); lines for billing that Claude Code sends "
         "are "
         "always dropped"},
    OPT_SEED(struct serve_args, "0", "seed of requests that name none; 0: each draws one"),
    {"parse-special", OPT(struct serve_args, parse_special),
     .help =
         "read special tokens such as <|im_end|> in messages as special tokens; by "
         "default they are text, so that a message cannot end itself and begin another"},
    OPT_COMPUTE(struct serve_args),
    OPT_BATCH_ROWS(struct serve_args),
    OPT_SAVE_BUFFER(struct serve_args),
    OPT_THROTTLE(struct serve_args),
    OPT_GPU_DIRECT(struct serve_args),
    {"verbose", OPT(struct serve_args, verbose), .letter = 'v',
     .help = "log a line per request, and more"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "serve",
    .summary =
        "Serves a model over HTTP with OpenAI's API.  With --store, conversations are "
        "durable: state that was computed once is restored, also after a restart.",
    .positionals = positionals,
    .options = options,
    .examples = "  hcache serve models/demo --store /var/lib/hcache\n"
                "  HCACHE_API_KEY=secret hcache serve models/demo --host 0.0.0.0\n"
                "  hcache serve a.gguf b.gguf --models ~/models --store /var/lib/hcache\n",
    .values_bytes = sizeof(struct serve_args),
};
const struct opt_cmd *const options_of_serve = &cmd;

/* --- signals ---------------------------------------------------------------------------------- */

/* State that the signal thread sets, and for which the main thread waits. */
struct stopping {
    sigset_t set;
    atomic_bool loaded;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool asked;
};

static void *signal_main(void *arg)
{
    struct stopping *st = arg;
    int sig;
    while (sigwait(&st->set, &sig) != 0)
        ;
    if (!atomic_load(&st->loaded))
        _exit(0); /* no request runs yet, so the process can end at once */
    pthread_mutex_lock(&st->lock);
    st->asked = true;
    pthread_cond_signal(&st->changed);
    pthread_mutex_unlock(&st->lock);
    while (sigwait(&st->set, &sig) != 0)
        ;
    (void)!write(STDERR_FILENO, "hcache serve: stopped at once\n", 30);
    _exit(1);
}

static int catch_signals(struct stopping *st)
{
    pthread_t thread;
    *st = (struct stopping){.lock = PTHREAD_MUTEX_INITIALIZER,
                            .changed = PTHREAD_COND_INITIALIZER};
    sigemptyset(&st->set);
    sigaddset(&st->set, SIGTERM);
    sigaddset(&st->set, SIGINT);
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = pthread_sigmask(SIG_BLOCK, &st->set, NULL);
    if (rc == 0)
        rc = thread_create(&thread, signal_main, st);
    if (rc == 0)
        pthread_detach(thread); /* the thread ends with the process */
    return rc;
}

static void wait_until_asked(struct stopping *st)
{
    pthread_mutex_lock(&st->lock);
    while (!st->asked)
        pthread_cond_wait(&st->changed, &st->lock);
    pthread_mutex_unlock(&st->lock);
}

/* --- keys ------------------------------------------------------------------------------------- */

/* Reads all keys. The last *n_admin of them are administrators' keys. */
static int read_keys(const struct serve_args *a, struct api_keys *k, int *n_admin,
                     struct err *err)
{
    int rc = api_keys_add(k, &a->api_key, "api-key", a->api_key_file, err);
    int n_others = k->n;
    if (rc == 0)
        rc = api_keys_add(k, &a->admin_key, "admin-key", a->admin_key_file, err);
    *n_admin = k->n - n_others;
    return rc;
}

/* --- serving ---------------------------------------------------------------------------------- */

/* Raises the limit of descriptors, because each connection takes one. */
static void raise_descriptors(int max_connections)
{
    struct rlimit r;
    rlim_t want = (rlim_t)max_connections + 256;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want)
        return;
    r.rlim_cur = want < r.rlim_max ? want : r.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur < want)
        log_warn("at most %llu descriptors are allowed (ulimit -n): fewer than %d "
                 "connections fit",
                 (unsigned long long)r.rlim_cur, max_connections);
}

/* Returns the first address that other machines may reach; NULL: only programs of this one reach
 * any. */
static const char *open_host(const struct serve_args *a)
{
    for (int i = 0; i < a->host.n; i++) {
        const char *h = a->host.items[i];
        if (strncmp(h, "127.", 4) != 0 && strcmp(h, "::1") != 0 &&
            strcmp(h, "localhost") != 0)
            return h;
    }
    return NULL;
}

/* Says by which names the server can be reached, and which names of models it accepts. */
static void print_names(const struct serve_args *a, int n_keys, const char *own,
                        const struct model_names *names)
{
    fprintf(stderr, "names: ");
    if (n_keys > 0) {
        fprintf(stderr, "every host name, with a key");
    } else {
        fprintf(stderr,
                "addresses, localhost, *.localhost, host.docker.internal, "
                "host.containers.internal%s%s",
                own[0] != 0 ? ", " : "", own);
        for (int i = 0; i < a->allow_host.n; i++)
            fprintf(stderr, ", %s", a->allow_host.items[i]);
    }
    fprintf(stderr, "; ");
    for (int i = 0; i < names->n; i++)
        fprintf(stderr, "%s%s", i > 0 ? ", " : "model ", names->items[i]);
    fprintf(stderr, "%s\n", names->any ? " by any name" : " or default");
    if (open_host(a) == NULL)
        fprintf(stderr,
                "containers cannot reach %s: for them, give --host the address of "
                "their bridge (docker0: 172.17.0.1) and --api-key-file\n",
                a->host.items[0]);
}

/* Returns the time to live of remembered answers, the shorter one of those of texts and of state.
 * 0: none. */
static int64_t answers_ttl_s(const struct serve_args *a)
{
    return a->idle_ttl > 0 && a->conversation_ttl > 0
               ? MIN(a->idle_ttl, a->conversation_ttl)
               : MAX(a->idle_ttl, a->conversation_ttl);
}

static void print_life(const char *what, int64_t ttl_s, const char *option)
{
    fprintf(stderr, "%s", what);
    if (ttl_s == 0)
        fprintf(stderr, " without a limit of time (%s)", option);
    else if (ttl_s % 86400 == 0)
        fprintf(stderr, " until %lld unused days (%s)", (long long)(ttl_s / 86400), option);
    else
        fprintf(stderr, " until %lld unused seconds (%s)", (long long)ttl_s, option);
}

/* Says how long what the server saves lives. */
static void print_lives(const struct serve_args *a)
{
    if (a->engine.o.n_store == 0) {
        fprintf(stderr, "kept: nothing outlives this process; --store DIR keeps it\n");
        return;
    }
    print_life("kept: saved state", a->idle_ttl, "--idle-ttl");
    if (a->engine.o.store_cap_bytes > 0) {
        char cap[32];
        opt_size_text(a->engine.o.store_cap_bytes, cap, sizeof cap);
        fprintf(stderr, " in at most %s (--store-cap)", cap);
    }
    print_life("; conversations", a->conversation_ttl, "--conversation-ttl");
    print_life("; tokens of answers", answers_ttl_s(a), "the shorter one");
    fprintf(stderr, "\n");
}

static void print_limits(const struct serve_args *a, int n_keys)
{
    char body[32], bodies[32];
    opt_size_text(a->max_body, body, sizeof body);
    opt_size_text(a->max_bodies, bodies, sizeof bodies);
    fprintf(
        stderr,
        "limits: %d sequence%s at once, %d waiting, %d connection%s, bodies %s each and %s "
        "together; timeouts (s): read %d, write %d, idle %d, drain %d; %d HTTP thread%s; "
        "%s\n",
        a->engine.o.max_sequences, plural((uint64_t)a->engine.o.max_sequences),
        a->max_queue, a->max_connections, plural((uint64_t)a->max_connections), body,
        bodies, a->read_timeout, a->write_timeout, a->idle_timeout, a->drain,
        a->http_threads, plural((uint64_t)a->http_threads),
        n_keys > 0 ? "an API key is required" : "no API key is required");
    if (n_keys == 0 && open_host(a) != NULL)
        log_warn("anybody who can reach %s may use this server (--no-key)", open_host(a));
}

/* Says how the model is told of tools, if its template does not do it. */
static void print_tools(const struct hcache *h)
{
    struct hcache_model_info info;
    hcache_model_info(h, &info);
    if (info.declares_tools)
        fprintf(stderr, "tools: the chat template shows none, so a system message declares "
                        "them, and calls are JSON (docs/SERVER.md)\n");
}

/* Lets running requests end normally until the time is up. */
static void drain(struct server *s, struct hcache *h, struct models *m, int seconds)
{
    int64_t end = clock_now_ns() + seconds * (int64_t)1000000000;
    server_drain(s);
    int n_active = server_n_active(s);
    fprintf(stderr, "hcache serve: stopping; %d request%s running\n", n_active,
            n_active == 1 ? " is" : "s are");
    while (server_n_active(s) > 0 && clock_now_ns() < end)
        clock_sleep_ns(20000000);
    if (m != NULL)
        models_stop(m);
    else
        hcache_serve_stop(h);
    /* Leaves a second for the last bytes on their way to clients. */
    end = clock_now_ns() + (int64_t)1000000000;
    while (server_n_active(s) > 0 && clock_now_ns() < end)
        clock_sleep_ns(10000000);
}

/* Returns the bound on the guaranteed state of each key. By default the store guarantees three
 * quarters of its cap, and n keys get an n-th part of that each. */
static uint64_t guarantee_bytes(const struct serve_args *a, int n_keys)
{
    const struct hcache_opts *o = &a->engine.o;
    if (o->guarantee_bytes > 0 || o->store_cap_bytes == 0 || n_keys <= 1)
        return o->guarantee_bytes;
    return MAX(o->store_cap_bytes / 4 * 3 / (uint64_t)n_keys, 1);
}

/* Returns whether models are loaded on demand. */
static bool is_several(const struct serve_args *a)
{
    return a->given.n > 1 || a->models != NULL;
}

/* Loads the model, or one of several. *h is the model in both cases; of several it is in use, and
 * *first is its number. */
static int load(const struct serve_args *a, int n_keys, struct serve_models *several,
                struct server *s, int *first, struct hcache **h, struct err *err)
{
    struct hcache_opts o = a->engine.o;
    struct hcache_err herr = {0};
    o.guarantee_bytes = guarantee_bytes(a, n_keys);
    o.store_optional = !a->store_required;
    if (is_several(a)) {
        const struct models_opts mo = {.max_queue = a->max_queue,
                                       .memory_bytes = a->models_memory,
                                       .changed = server_models_changed,
                                       .arg = s};
        return serve_models_open(several, &mo, &o, first, h, err);
    }
    o.model = several->paths[0];
    int rc = hcache_open(&o, h, &herr);
    if (rc == 0)
        rc = hcache_serve_start(*h, a->max_queue, &herr);
    return rc == 0 ? 0 : err_set(err, rc, "%s", herr.msg);
}

/* Returns true if the server may continue without the file whose opening failed with rc. -ENOENT:
 * its folder is missing, because the store could not be made. */
static bool is_disk_fault(int rc, bool is_chosen)
{
    return err_is_of_disk(rc) || rc == -ENOMEM || (rc == -ENOENT && !is_chosen);
}

/* Opens the kept conversations. *out NULL: no conversations are kept. If the file cannot be used,
 * they are kept in memory. */
static int open_conversations(const struct serve_args *a, struct hcache *h, int n_keys,
                              struct conversations **out, struct err *err)
{
    int rc;
    struct hcache_cache_stats stats;
    char path[4096];
    struct conversations_opts o = {.path = a->conversations,
                                   .server = a->server_name,
                                   .max_turns = a->max_turns,
                                   .max_bytes = a->conversation_bytes,
                                   .n_tenants = n_keys,
                                   .ttl_s = a->conversation_ttl,
                                   .seal = a->engine.seal};
    *out = NULL;
    if (o.server != NULL && !conversations_server_ok(o.server))
        return err_set(err, ERR_USAGE,
                       "--server-name: '%.40s' is not 1 to 16 of a-z, 0-9 and -", o.server);
    if (o.path != NULL && strcmp(o.path, "none") == 0)
        return 0;
    if (o.path == NULL && a->engine.o.n_store > 0) {
        snprintf(path, sizeof path, "%s/" CONVERSATIONS_FILE, a->engine.o.store[0]);
        o.path = path;
    }
    hcache_cache_stats(h, NULL, &stats);
    if (a->conversations == NULL && stats.saving_fault == -EPERM)
        /* the folder belongs to another user */
        rc = err_set(err, -EPERM, "%s", stats.saving_why);
    else
        rc = conversations_open(&o, out, err);
    if (rc == 0 || a->store_required || !is_disk_fault(rc, a->conversations != NULL))
        return rc;
    log_warn("conversations are lost when this server ends: %s", err->msg);
    const struct err why = *err;
    o.path = NULL;
    o.stands_in_because = why.msg;
    return conversations_open(&o, out, err);
}

/* Opens the shelf of files and batches. *out NULL: there is none, either because none is wanted or
 * because its folder cannot be used. */
static int open_files(const struct serve_args *a, struct hcache *h, int n_keys,
                      struct shelf **out, struct err *err)
{
    struct hcache_cache_stats stats;
    char path[4096];
    const char *folder = a->files;
    *out = NULL;
    if (folder == NULL && a->engine.o.n_store > 0) {
        snprintf(path, sizeof path, "%s/files", a->engine.o.store[0]);
        folder = path;
    }
    if (folder == NULL || strcmp(folder, "none") == 0)
        return 0;
    hcache_cache_stats(h, NULL, &stats);
    int rc = a->files == NULL && stats.saving_fault == -EPERM
                 /* the folder belongs to another user */
                 ? err_set(err, -EPERM, "%s", stats.saving_why)
                 : shelf_open(folder, a->files_bytes, a->engine.seal, out, err);
    if (rc == 0)
        shelf_divide(*out, n_keys, a->files_quota);
    if (rc == 0 || a->store_required || !is_disk_fault(rc, a->files != NULL))
        return rc;
    log_warn("files and batches are off: %s", err->msg);
    return 0;
}

/* Returns how many answers of batches are generated at once: half of the places, so that the others
 * stay free for requests. */
static int batch_sequences(const struct serve_args *a)
{
    int half = (a->engine.o.max_sequences + 1) / 2;
    return a->batch_sequences > 0 ? a->batch_sequences : half;
}

/* Chooses the truncation for requests that ask for it, and checks that it is possible. The default
 * is half a window if state is stored. */
static int choose_truncation(const struct serve_args *a, const struct hcache *h,
                             struct hcache_truncation *out, struct hcache_err *err)
{
    *out = a->truncation;
    if (a->truncate != NULL)
        return out->ratio > 0 ? hcache_truncation_check(h, out, NULL, err) : 0;
    *out = (struct hcache_truncation){.ratio = 0.5};
    bool can = is_several(a) || hcache_truncation_check(h, out, NULL, NULL) == 0;
    if (a->engine.o.n_store == 0 || !can)
        out->ratio = 0;
    return 0;
}

static int fail(int code, const char *message)
{
    fprintf(stderr, "hcache serve: %s\n", message);
    return code == HCACHE_E_USAGE ? 2 : 1;
}

/* Returns whether requests wait for the model. A balancer sends refused ones to another server, and
 * its own server is not on loopback. */
static bool waits_ready(const struct serve_args *a)
{
    if (strcmp(a->wait_ready, "auto") != 0)
        return strcmp(a->wait_ready, "on") == 0;
    return open_host(a) == NULL;
}

/* Says which models there are. */
static void print_models(const struct serve_models *several)
{
    fprintf(stderr, "models:");
    for (int i = 0; i < several->n; i++)
        fprintf(stderr, "%s %s", i > 0 ? "," : "", several->names[i].items[0]);
    fprintf(stderr, "; loaded when a request names them\n");
}

static int serve(const struct serve_args *a, struct serve_models *several,
                 const struct api_keys *keys, int n_admin_keys, struct stopping *st)
{
    struct server *s = NULL;
    /* h is the model. alone is the same, or NULL where there are several. store shows the store's
     * state. */
    struct hcache *h = NULL, *alone = NULL, *store = NULL;
    int first = 0;
    struct conversations *conversations = NULL;
    struct shelf *shelf = NULL;
    struct err err = {0};
    struct hcache_err herr = {0};
    bool has_own = a->names.n > 0 && !is_several(a);
    char *name = strdup(has_own ? a->names.items[0] : several->names[0].items[0]);
    const char *const only[] = {name};
    char own[256] = ""; /* this machine's name */
    if (gethostname(own, sizeof own - 1) != 0)
        own[0] = 0;
    char answers[4096];
    bool on_disk = a->engine.o.n_store > 0;
    struct dates *dates = NULL;
    snprintf(answers, sizeof answers, "%s/answers", on_disk ? a->engine.o.store[0] : "");
    int code = 0, rc = engine_dates_open(&a->engine, &dates, &err);
    if (rc != 0) {
        free(name);
        return fail(rc, err.msg);
    }
    struct server_opts so = {.hosts = a->host.items,
                             .n_hosts = a->host.n,
                             .port = a->port,
                             .model_name = name,
                             .names = {.items = has_own ? a->names.items : only,
                                       .n = has_own ? a->names.n : 1,
                                       .any = a->any_model},
                             .api_keys = keys->items,
                             .n_api_keys = keys->n,
                             .n_admin_keys = n_admin_keys,
                             .origins = {.hosts = a->allow_host.items,
                                         .n_hosts = a->allow_host.n,
                                         .own_host = own,
                                         .any_host = keys->n > 0,
                                         .origins = a->allow_origin.items,
                                         .n_origins = a->allow_origin.n},
                             .http_threads = a->http_threads,
                             .max_connections = a->max_connections,
                             .max_queue = a->max_queue,
                             .wait_ready = waits_ready(a),
                             .wait_load = strcmp(a->wait_ready, "off") != 0,
                             .read_timeout_s = a->read_timeout,
                             .write_timeout_s = a->write_timeout,
                             .idle_timeout_s = a->idle_timeout,
                             .keep_alive_s = a->keep_alive,
                             .max_body_bytes = a->max_body,
                             .max_bodies_bytes = a->max_bodies,
                             .plan = a->plan,
                             .seed = a->seed,
                             .plain_chat = a->plain_chat,
                             .parse_special = a->parse_special,
                             .dates = dates,
                             .answers = on_disk ? answers : NULL,
                             .seal = a->engine.seal,
                             .answers_ttl_s = answers_ttl_s(a),
                             .store_required = a->store_required,
                             .idle_ttl_s = a->idle_ttl,
                             .salt_quota_bytes = a->engine.o.salt_quota_bytes};
    rc = server_start(&so, &s, &err);
    if (rc != 0)
        code = fail(rc, err.msg);
    if (rc == 0 && (rc = load(a, keys->n, several, s, &first, &h, &err)) != 0)
        code = fail(rc, err.msg);
    alone = several->models == NULL ? h : NULL;
    store = several->models == NULL ? h : models_store(several->models);
    if (rc == 0 && (rc = open_conversations(a, store, keys->n, &conversations, &err)) != 0)
        code = fail(rc, err.msg);
    if (rc == 0 && (rc = open_files(a, store, keys->n, &shelf, &err)) != 0)
        code = fail(rc, err.msg);
    struct hcache_truncation truncation = {0};
    if (rc == 0 && (rc = choose_truncation(a, h, &truncation, &herr)) != 0)
        code = fail(rc, herr.msg);
    if (rc == 0) {
        server_keep(s, conversations);
        server_truncate(s, &truncation);
        server_batches(s, shelf, batch_sequences(a));
        if (several->models != NULL)
            server_models(s, several->models, several->names, several->n);
        if ((rc = server_ready(s, store, &err)) != 0)
            code = fail(rc, err.msg);
    }
    for (int i = 0; rc == 0 && i < a->engine.o.n_store; i++)
        medium_warn(a->engine.o.store[i]);
    if (rc == 0) {
        print_limits(a, keys->n);
        print_names(a, keys->n, own, &so.names);
        print_lives(a);
        if (several->models != NULL)
            print_models(several);
        print_tools(h);
    }
    if (several->models != NULL && h != NULL)
        models_give(several->models, first);
    if (rc == 0) {
        atomic_store(&st->loaded, true);
        fprintf(stderr, "hcache serve: %s is ready at", name);
        for (int i = 0; i < a->host.n; i++) {
            const char *at = a->host.items[i], *v6 = strchr(at, ':');
            fprintf(stderr, "%s http://%s%s%s:%d", i > 0 ? "," : "", v6 != NULL ? "[" : "",
                    at, v6 != NULL ? "]" : "", server_port(s));
        }
        fprintf(stderr, "\n");
        wait_until_asked(st);
        drain(s, h, several->models, a->drain);
    }
    if (several->models != NULL)
        models_stop(several->models); /* it wakes the server's requests no more */
    server_stop(s);
    conversations_close(conversations);
    shelf_close(shelf);
    hcache_close(alone); /* makes state that is being saved durable, as models_close does */
    models_close(several->models);
    several->models = NULL;
    dates_close(dates);
    free(name);
    return code;
}

/* Refuses options that a server of several models does not have. */
static int check_several(const struct serve_args *a, struct err *err)
{
    if (!is_several(a))
        return 0;
    if (a->truncate != NULL && a->truncation.ratio > 0 && a->engine.store.n == 0)
        return err_set(err, ERR_USAGE, "--truncate of several models needs --store");
    return 0;
}

int cmd_serve(int argc, char **argv)
{
    struct serve_args a;
    struct serve_models several = {0};
    struct opt_parsed *parsed;
    struct stopping st;
    struct api_keys keys = {0};
    struct err err = {0};
    int code, n_admin_keys = 0;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    a.engine.o.verbose = true;
    log_set_times(true);
    if (a.verbose)
        log_set_level(LOG_INFO);
    struct hcache_err herr = {0};
    if (a.given.n > 0 && opt_source_of(parsed, "models") == OPT_FROM_ENV)
        a.models =
            NULL; /* there it is the folder of fetched models, for names as OWNER/REPO */
    int rc = serve_models_find(&several, &a.given, a.models, &err);
    if (rc == 0)
        rc = engine_args_finish(&a.engine, &err);
    if (rc == 0 && a.truncate != NULL &&
        (rc = hcache_truncation_parse(a.truncate, &a.truncation, &herr)) != 0)
        err_set(&err, rc, "--%s", herr.msg);
    a.engine.o.truncates = a.truncation.ratio > 0;
    char *template = NULL;
    if (rc == 0 && a.chat_template_file != NULL)
        rc = file_read(a.chat_template_file, TEMPLATE_MAX_BYTES, &template, &(size_t){0},
                       &err);
    a.engine.o.chat_template = template;
    if (rc == 0)
        rc = check_several(&a, &err);
    if (rc == 0 && is_several(&a))
        rc = serve_models_rename(&several, &a.names, &err);
    if (rc == 0)
        rc = read_keys(&a, &keys, &n_admin_keys, &err);
    if (rc == 0 && keys.n == 0 && !a.no_key && open_host(&a) != NULL)
        rc = err_set(&err, ERR_USAGE,
                     "--host %s can be reached from other machines or containers: give "
                     "--api-key-file, or --no-key to let everybody in",
                     open_host(&a));
    if (rc == 0 && keys.n > 0 && a.no_key)
        rc = err_set(&err, ERR_USAGE, "--no-key: there are API keys");
    if (opt_source_of(parsed, "any-model") == OPT_FROM_DEFAULT)
        a.any_model = open_host(&a) == NULL;
    if (rc != 0) {
        code = fail(rc, err.msg);
    } else if ((rc = catch_signals(&st)) != 0) {
        code = fail(rc, strerror(rc));
    } else {
        raise_descriptors(a.max_connections);
        code = serve(&a, &several, &keys, n_admin_keys, &st);
    }
    free(template);
    api_keys_deinit(&keys);
    serve_models_deinit(&several);
    engine_args_end(&a.engine);
    opt_end(parsed);
    return code;
}
