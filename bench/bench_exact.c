/* bench_exact.c - `hcache bench exact`: checks that a server that keeps state answers as if it kept
 * none.
 *
 * Many conversations run at once, in random order, against any OpenAI-compatible server.  Some
 * answers are cancelled and asked for again; a command may restart the server in between.  Each
 * conversation tells the server three names that no other one has, and then asks for them:
 *
 *     user       My dog is called Dorvaleth.        a name of this conversation alone
 *     assistant  ...
 *     user       What is my dog called?             the answer has the name, or not
 *
 * Each answer is compared with two cold runs: the same messages under a cache_salt that was never
 * used and with "cache_prompt": false, so that no server can use saved state.  Four things are
 * counted:
 *
 *     leaked         answers with a name of another conversation, which the cold run does not have
 *     wrong_context  answers without the requested name, where the cold run has it, and answers
 *                    with another name of this conversation, where the cold run has the right one
 *     differs        answers whose text differs from the first cold run's
 *     noise_floor    pairs of cold runs whose texts differ: the server's own variation
 *
 * The model need not be good: only differences from its own cold runs count. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/option_tables.h"
#include "base/clock.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/textbuf.h"
#include "bench/bench.h"
#include "bench/http_load.h"
#include "base/json.h"

enum { N_FACTS = 3, NAME_BYTES = 16, COLD_RUNS = 2 };

struct exact_args {
    const char *url, *key, *model, *restart_cmd;
    int conversations, turns, clients, max_tokens, restarts, patience;
    double cancel;
    int64_t seed;
    bool json, check;
};

static const struct opt exact_options[] = {
    {"url", OPT(struct exact_args, url), .arg = "URL", .def = "http://127.0.0.1:8080",
     .help = "URL of the server, without /v1"},
    {"api-key", OPT(struct exact_args, key), .arg = "KEY", .help = "API key of the server"},
    {"model", OPT(struct exact_args, model), .arg = "NAME",
     .help = "model name in every request, if the server requires one"},
    {"conversations", OPT(struct exact_args, conversations), .arg = "N", .def = "50",
     .min = 2, .max = 1000000,
     .help = "number of conversations; more than the server's cache holds cause evictions"},
    {"turns", OPT(struct exact_args, turns), .arg = "N", .def = "8", .min = 1, .max = 1000,
     .help = "turns of each conversation"},
    {"clients", OPT(struct exact_args, clients), .arg = "N", .def = "8", .min = 1,
     .max = 1024, .help = "concurrent requests"},
    {"max-tokens", OPT(struct exact_args, max_tokens), .arg = "N", .def = "16", .min = 1,
     .max = 4096, .help = "most tokens of an answer"},
    {"cancel", OPT(struct exact_args, cancel), .arg = "P", .def = "0.1", .hi = 0.9,
     .help =
         "share of answers that are cancelled at their first text, and asked for again"},
    {"restart-cmd", OPT(struct exact_args, restart_cmd), .arg = "CMD",
     .help = "a shell command that ends the server and starts it again"},
    {"restarts", OPT(struct exact_args, restarts), .arg = "N", .def = "3", .min = 1,
     .max = 10000, .help = "number of times that --restart-cmd runs, spread over the run"},
    {"patience", OPT(struct exact_args, patience), .arg = "S", .def = "120", .min = 0,
     .max = 86400,
     .help = "seconds for which a request is sent again that fails for a reason that may "
             "pass: no "
             "connection, a full queue, an error of the server"},
    {"seed", OPT(struct exact_args, seed), .arg = "N", .def = "1", .min = 0,
     .max = INT64_MAX, .help = "seed of names, order and cancellations"},
    {"check", OPT(struct exact_args, check),
     .help = "exit 1 if anything leaked, came from a wrong context or failed, or if more "
             "answers differ than cold runs do"},
    {"json", OPT(struct exact_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd exact_cmd = {
    .name = "bench exact",
    .summary = "Compares a server's answers in many mixed conversations with cold runs "
               "of the same messages, and counts leaks between conversations.",
    .options = exact_options,
    .examples =
        "  hcache bench exact --conversations 500 --turns 20 --json\n"
        "  hcache bench exact --url http://127.0.0.1:8081 --restart-cmd ./restart.sh\n",
    .values_bytes = sizeof(struct exact_args),
};
const struct opt_cmd *const options_of_bench_exact = &exact_cmd;

static const char *const fact_things[N_FACTS] = {"dog", "cat", "horse"};

struct conversation {
    char name[N_FACTS][NAME_BYTES];
    struct textbuf messages; /* JSON objects of the conversation so far: "{...},{...}" */
    int n_turns;             /* turns that were answered */
    bool is_busy;
};

enum stage { STAGE_WARM, STAGE_COLD, STAGE_COLD_AGAIN };

/* One request of one conversation in flight. */
struct client {
    struct exact *b;
    struct conversation *c; /* the conversation of this client; NULL: the client is free */
    enum stage stage;
    /* when its requests began to fail; 0: its last request did not fail */
    int64_t failing_since_ns;
    bool is_sent, will_cancel;
    int64_t retry_ns;      /* earliest time of its next request, after a failure */
    int n_restarts_before; /* number of restarts before its request was sent */
    struct textbuf text[1 + COLD_RUNS]; /* texts of the warm answer and the cold ones */
};

struct exact {
    struct exact_args args;
    struct http_load *http;
    struct conversation *conversations;
    struct client *clients;
    struct rng rng;
    /* the request's member "model", with a comma; "" if no model is named */
    char *model_field;
    uint64_t n_salts;
    int64_t n_started, n_answers, n_leaked, n_wrong, n_differs, n_noise, n_errors,
        n_cancelled;
    int n_restarts;
    /* Requests that a restart interrupted or prevented; they do not count as errors. */
    int64_t n_interrupted;
    /* whether no request sent after the last restart has been answered yet */
    bool is_restarting;
    char first_error[200]; /* message of a fault outside restarts */
};

/* --- names ------------------------------------------------------------------------------------ */

/* Makes the i-th name: pronounceable, lower case after its first letter, unique for each i. */
static void make_name(char out[NAME_BYTES], uint64_t i)
{
    static const char consonants[] = "bdfghklmnprstvz", vowels[] = "aeiou";
    char *p = out;
    /* there are 75^6 names; multiplying by a fixed odd number spreads neighbours */
    for (int k = 0; k < 6; k++) {
        uint64_t syllable = (i * 29 + 17) % 75;
        i /= 75;
        *p++ = consonants[syllable / 5];
        *p++ = vowels[syllable % 5];
    }
    *p = 0;
    out[0] = (char)(out[0] - 'a' + 'A');
}

static bool has_name(const struct textbuf *text, const char *name)
{
    return text->p != NULL && strstr(text->p, name) != NULL;
}

/* Returns whether the text has a name of a conversation other than c that `cold` does not have. */
static bool has_foreign_name(const struct exact *b, const struct textbuf *text,
                             const struct textbuf *cold, const struct conversation *c)
{
    for (int i = 0; i < b->args.conversations; i++)
        for (int k = 0; k < N_FACTS; k++) {
            const struct conversation *other = &b->conversations[i];
            if (other != c && has_name(text, other->name[k]) &&
                !has_name(cold, other->name[k]))
                return true;
        }
    return false;
}

/* --- requests --------------------------------------------------------------------------------- */

static void add_message(struct conversation *c, const char *role, const char *text,
                        size_t n)
{
    struct json *m = json_new_object();
    json_put_string(m, "role", role);
    json_put_bytes(m, "content", text, n);
    char *line = json_text(m, 0);
    textbuf_addf(&c->messages, "%s%s", c->messages.n > 0 ? "," : "", line);
    free(line);
    json_free(m);
}

/* Returns the number of the fact that the conversation's turn t tells or asks for. */
static int fact_of(int turn)
{
    return turn % N_FACTS;
}

static bool is_question(int turn)
{
    return turn >= N_FACTS;
}

static void begin_turn(struct client *k, struct conversation *c)
{
    char text[100];
    int fact = fact_of(c->n_turns);
    if (is_question(c->n_turns))
        snprintf(text, sizeof text, "What is my %s called?", fact_things[fact]);
    else
        snprintf(text, sizeof text, "My %s is called %s.", fact_things[fact],
                 c->name[fact]);
    add_message(c, "user", text, strlen(text));
    c->is_busy = true;
    k->c = c;
    k->stage = STAGE_WARM;
    k->failing_since_ns = 0;
    k->will_cancel = rng_below(&k->b->rng, 1000000) < (uint64_t)(k->b->args.cancel * 1e6);
    for (int i = 0; i < 1 + COLD_RUNS; i++)
        textbuf_free(&k->text[i]);
    k->b->n_started++;
}

static void send(struct client *k)
{
    struct exact *b = k->b;
    struct textbuf body = {0};
    textbuf_addf(
        &body,
        "{%s\"messages\":[%s],\"stream\":true,\"stream_options\":{\"include_usage\":"
        "true},\"max_tokens\":%d,\"temperature\":0",
        b->model_field, k->c->messages.p, b->args.max_tokens);
    if (k->stage != STAGE_WARM)
        textbuf_addf(&body, ",\"cache_prompt\":false,\"cache_salt\":\"cold-%lld-%llu\"",
                     (long long)b->args.seed, (unsigned long long)++b->n_salts);
    textbuf_addf(&body, "}");
    textbuf_free(&k->text[k->stage]);
    textbuf_addf(&k->text[k->stage], "%s", "");
    k->is_sent = true;
    k->n_restarts_before = b->n_restarts;
    http_load_send(b->http, body.p, k);
    textbuf_free(&body);
}

static void on_text(void *user, const char *text, size_t n)
{
    struct client *k = user;
    textbuf_add(&k->text[k->stage], text, n);
}

/* Counts a turn whose warm and cold answers are complete. The conversation continues with the warm
 * answer. */
static void judge(struct client *k)
{
    struct exact *b = k->b;
    struct conversation *c = k->c;
    const struct textbuf *warm = &k->text[0], *cold = &k->text[1], *again = &k->text[2];
    int asked = fact_of(c->n_turns);
    b->n_answers++;
    b->n_differs += strcmp(warm->p, cold->p) != 0;
    b->n_noise += strcmp(cold->p, again->p) != 0;
    b->n_leaked += has_foreign_name(b, warm, cold, c);
    if (is_question(c->n_turns) && has_name(cold, c->name[asked])) {
        bool wrong = !has_name(warm, c->name[asked]);
        for (int i = 0; i < N_FACTS; i++)
            wrong |= i != asked && has_name(warm, c->name[i]) &&
                     !has_name(cold, c->name[i]);
        b->n_wrong += wrong;
    }
    add_message(c, "assistant", warm->p, warm->n);
    c->n_turns++;
    c->is_busy = false;
    k->c = NULL;
}

static void note_error(struct exact *b, int status, const char *error)
{
    if (b->first_error[0] == 0)
        snprintf(b->first_error, sizeof b->first_error, "status %d: %.160s", status, error);
}

static void give_up(struct client *k, int status, const char *error)
{
    note_error(k->b, status, error);
    k->b->n_errors++;
    /* The conversation ends with a question that was not answered, so it cannot continue. */
    k->c->n_turns = k->b->args.turns;
    k->c->is_busy = false;
    k->c = NULL;
}

static void on_end(void *user, int status, const struct http_usage *u, const char *error)
{
    struct client *k = user;
    struct exact *b = k->b;
    (void)u;
    k->is_sent = false;
    bool is_interrupted = k->n_restarts_before < b->n_restarts || b->is_restarting;
    if (status == 200 && error[0] == 0) {
        k->failing_since_ns = 0;
        if (k->n_restarts_before == b->n_restarts)
            b->is_restarting = false;
        if (k->stage == STAGE_COLD_AGAIN)
            judge(k);
        else
            k->stage++;
        return;
    }
    b->n_interrupted += is_interrupted;
    if (!is_interrupted)
        note_error(b, status, error);
    /* A refusal would be the same the next time: a context that is full, for example. */
    bool may_pass = status == 0 || status == 200 || status == 408 || status == 429 ||
                    status >= 500;
    if (!may_pass) {
        give_up(k, status, error);
        return;
    }
    int64_t now = clock_now_ns();
    k->retry_ns = now + 250000000;
    if (k->failing_since_ns == 0)
        k->failing_since_ns = now;
    if (now - k->failing_since_ns > b->args.patience * (int64_t)1000000000)
        give_up(k, status, error);
}

/* --- the run ---------------------------------------------------------------------------------- */

/* Returns a conversation that is neither busy nor over, searched from a random one on, or NULL. */
static struct conversation *next_conversation(struct exact *b)
{
    int n = b->args.conversations, from = (int)rng_below(&b->rng, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        struct conversation *c = &b->conversations[(from + i) % n];
        if (!c->is_busy && c->n_turns < b->args.turns)
            return c;
    }
    return NULL;
}

/* Runs the restart command when its time has come. Requests in flight fail and are sent again
 * later. */
static void restart(struct exact *b)
{
    int64_t all = (int64_t)b->args.conversations * b->args.turns;
    if (b->args.restart_cmd == NULL || b->n_restarts >= b->args.restarts ||
        b->n_answers < all * (b->n_restarts + 1) / (b->args.restarts + 1))
        return;
    b->n_restarts++;
    b->is_restarting = true;
    int rc = system(b->args.restart_cmd);
    if (rc != 0)
        fprintf(stderr, "hcache bench exact: the restart command ended with status %d\n",
                rc);
}

/* Cancels the answers that were chosen for cancelling, when some of their text has come. */
static void cancel(struct exact *b)
{
    for (int i = 0; i < b->args.clients; i++) {
        struct client *k = &b->clients[i];
        if (!k->is_sent || !k->will_cancel || k->stage != STAGE_WARM || k->text[0].n == 0)
            continue;
        http_load_cancel(b->http, k);
        k->is_sent = k->will_cancel = false;
        b->n_cancelled++;
    }
}

/* Gives free clients a conversation and sends waiting requests. Returns how many are busy. */
static int feed(struct exact *b)
{
    int n = 0;
    for (int i = 0; i < b->args.clients; i++) {
        struct client *k = &b->clients[i];
        struct conversation *c = k->c == NULL ? next_conversation(b) : NULL;
        if (c != NULL)
            begin_turn(k, c);
        if (k->c != NULL && !k->is_sent && clock_now_ns() >= k->retry_ns)
            send(k);
        n += k->c != NULL;
    }
    return n;
}

/* A signal ends the run; what was counted until then is printed. */
static volatile sig_atomic_t was_asked;

static void on_signal(int number)
{
    (void)number;
    was_asked = 1;
}

static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
}

static void run(struct exact *b)
{
    struct progress p;
    progress_begin(&p, "turns", PROGRESS_ITEMS,
                   (uint64_t)b->args.conversations * (uint64_t)b->args.turns);
    while (!was_asked && feed(b) > 0) {
        http_load_poll(b->http, 20);
        cancel(b);
        restart(b);
        progress_at(&p, (uint64_t)b->n_answers);
    }
    progress_end(&p);
}

static int prepare(struct exact *b, struct err *err)
{
    const struct http_load_calls calls = {on_text, on_end};
    const struct exact_args *a = &b->args;
    b->rng = (struct rng){.s = (uint64_t)a->seed};
    b->model_field = a->model != NULL ? xasprintf("\"model\":\"%s\",", a->model)
                                      : xstrdup("");
    b->conversations = xcalloc((size_t)a->conversations, sizeof *b->conversations);
    b->clients = xcalloc((size_t)a->clients, sizeof *b->clients);
    for (int i = 0; i < a->conversations; i++)
        for (int k = 0; k < N_FACTS; k++)
            make_name(b->conversations[i].name[k],
                      (uint64_t)a->seed * 1000003 + (uint64_t)i * N_FACTS + (uint64_t)k);
    for (int i = 0; i < a->clients; i++)
        b->clients[i].b = b;
    return http_load_create(a->url, a->key, &calls, &b->http, err);
}

static void print(const struct exact *b)
{
    if (!b->args.json) {
        printf(
            "%lld answers: %lld leaked a name of another conversation, %lld came from a "
            "wrong "
            "context, %lld differ from a cold run (%lld of the cold runs differ from each "
            "other)\n%lld cancelled and asked for again, %d restarts interrupted %lld "
            "requests, "
            "%lld failed%s%s%s\n",
            (long long)b->n_answers, (long long)b->n_leaked, (long long)b->n_wrong,
            (long long)b->n_differs, (long long)b->n_noise, (long long)b->n_cancelled,
            b->n_restarts, (long long)b->n_interrupted, (long long)b->n_errors,
            b->first_error[0] != 0 ? "; the first fault: " : "", b->first_error,
            was_asked ? "; the run was ended early" : "");
        return;
    }
    struct json *o = json_new_object();
    json_put_int(o, "answers", b->n_answers);
    json_put_int(o, "leaked", b->n_leaked);
    json_put_int(o, "wrong_context", b->n_wrong);
    json_put_int(o, "differs", b->n_differs);
    json_put_int(o, "noise_floor", b->n_noise);
    json_put_int(o, "errors", b->n_errors);
    json_put_int(o, "restarts", b->n_restarts);
    json_put_int(o, "interrupted", b->n_interrupted);
    json_put_int(o, "cancelled", b->n_cancelled);
    json_put_bool(o, "ended_early", was_asked);
    json_put_string(o, "first_error", b->first_error[0] != 0 ? b->first_error : NULL);
    char *text = json_text(o, 2);
    puts(text);
    free(text);
    json_free(o);
}

static void release(struct exact *b)
{
    http_load_destroy(b->http);
    for (int i = 0; b->conversations != NULL && i < b->args.conversations; i++)
        textbuf_free(&b->conversations[i].messages);
    for (int i = 0; b->clients != NULL && i < b->args.clients; i++)
        for (int k = 0; k < 1 + COLD_RUNS; k++)
            textbuf_free(&b->clients[i].text[k]);
    free(b->conversations);
    free(b->clients);
    free(b->model_field);
}

int bench_exact(int argc, char **argv)
{
    struct exact b = {0};
    struct err err = {0};
    struct opt_parsed *parsed;
    int code;
    if (!opt_begin(&exact_cmd, argc, argv, &b.args, &parsed, &code))
        return code;
    int rc = prepare(&b, &err);
    if (rc == 0) {
        catch_signals();
        run(&b);
        print(&b);
    }
    if (rc == 0 && b.n_answers == 0)
        rc = err_set(&err, ERR_NOT_FOUND, "%s: no request was answered: %s", b.args.url,
                     b.first_error);
    bool bad = b.n_leaked + b.n_wrong + b.n_errors > 0 || b.n_differs > b.n_noise;
    code = bench_end("exact", rc, &err);
    if (code == 0 && b.args.check && bad)
        code = 1;
    release(&b);
    opt_end(parsed);
    return code;
}
