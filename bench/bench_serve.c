/* bench_serve.c - `hcache bench serve`: loads any OpenAI-compatible server and measures its
 * answers.
 *
 * Open loop: sessions arrive at the workload's times, however slow the server is. Only a turn waits
 * for the previous answer, as people do. Times are the client's: TTFT runs from the time at which a
 * request was due to its first text, TBT between pieces of text. Lengths are in the server's
 * tokens: a first request measures how many tokens the generated words have. */
#include "apps/option_tables.h"
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/progress.h"
#include "base/rng.h"
#include "bench/http_load.h"
#include "bench/report.h"
#include "bench/thread_time.h"
#include "bench/workload.h"
#include "base/json.h"

struct serve_args {
    const char *url, *key, *model, *workload, *trace, *csv, *html, *label;
    int task;
    bool describe;
    double seconds, rate, token_scale, time_scale, zipf, drain;
    int documents, max_prompt;
    int64_t seed, pid;
};

static const char *const workloads[] = {"chats", "documents", "trace", NULL};

static const struct opt serve_options[] = {
    {"url", OPT(struct serve_args, url), .arg = "URL", .def = "http://127.0.0.1:8080",
     .help = "URL of the server, without /v1"},
    {"api-key", OPT(struct serve_args, key), .arg = "KEY", .help = "API key of the server"},
    {"model", OPT(struct serve_args, model), .arg = "NAME",
     .help = "model name in every request, if the server requires one"},
    {"workload", OPT(struct serve_args, workload), .arg = "NAME", .def = "chats",
     .choices = workloads, .help = "kind of load"},
    {"trace", OPT(struct serve_args, trace), .arg = "FILE",
     .help = "file for workload trace: Mooncake's JSON lines or Azure's CSV"},
    {"seconds", OPT(struct serve_args, seconds), .arg = "S", .def = "60", .lo = 1,
     .hi = 600, .help = "seconds during which new requests arrive"},
    {"drain", OPT(struct serve_args, drain), .arg = "S", .def = "60", .lo = 0, .hi = 600,
     .help = "seconds to wait for the last answers"},
    {"rate", OPT(struct serve_args, rate), .arg = "N", .def = "20", .lo = 0, .hi = 1e5,
     .help = "sessions (for documents and traces: requests) per minute; 0: the trace's own "
             "times"},
    {"token-scale", OPT(struct serve_args, token_scale), .arg = "X", .def = "0.25",
     .lo = 0.001, .hi = 10, .help = "factor for the workload's lengths"},
    {"time-scale", OPT(struct serve_args, time_scale), .arg = "X", .def = "0.1", .lo = 0,
     .hi = 100, .help = "factor for the workload's pauses"},
    {"zipf", OPT(struct serve_args, zipf), .arg = "S", .def = "1", .lo = 0, .hi = 4,
     .help = "skew of the documents' popularity"},
    {"documents", OPT(struct serve_args, documents), .arg = "N", .def = "20", .min = 1,
     .max = 100000, .help = "number of documents"},
    {"task", OPT(struct serve_args, task), .arg = "NAME", .def = "even",
     .choices = workload_tasks,
     .help =
         "kind of documents: of 5,000 to 16,000 tokens evenly, or a sub-task of L-Eval"},
    {"describe", OPT(struct serve_args, describe),
     .help = "only describe the workload; send no requests"},
    {"max-prompt", OPT(struct serve_args, max_prompt), .arg = "N", .def = "1800", .min = 16,
     .max = 1 << 20, .help = "most tokens of a history"},
    {"seed", OPT(struct serve_args, seed), .arg = "N", .def = "1", .min = 0,
     .max = INT64_MAX, .help = "seed of the workload"},
    {"pid", OPT(struct serve_args, pid), .arg = "PID", .min = 0, .max = INT32_MAX,
     .help = "process id of the server on this machine: also measures processor time of "
             "its threads per token"},
    {"label", OPT(struct serve_args, label), .arg = "TEXT", .def = "server",
     .help = "name of this run in the results"},
    {"csv", OPT(struct serve_args, csv), .arg = "FILE",
     .help = "file for a line per request"},
    {"html", OPT(struct serve_args, html), .arg = "FILE",
     .help = "file for a page with tables and plots"},
    {0},
};

static const struct opt_cmd serve_cmd = {
    .name = "bench serve",
    .summary = "Loads a server with chats, documents or a trace, and measures its answers.",
    .options = serve_options,
    .values_bytes = sizeof(struct serve_args),
};
const struct opt_cmd *const options_of_bench_serve = &serve_cmd;

/* --- results ---------------------------------------------------------------------------------- */

struct samples {
    double *at;
    int n, cap;
};

static void sample(struct samples *s, double x)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        s->at = xrealloc(s->at, (size_t)s->cap * sizeof *s->at);
    }
    s->at[s->n++] = x;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the samples and returns a quantile, q in 0..1; NAN if there are none. */
static double quantile(struct samples *s, double q)
{
    if (s->n == 0)
        return NAN;
    qsort(s->at, (size_t)s->n, sizeof *s->at, by_value);
    int i = (int)(q * s->n);
    return s->at[i < s->n ? i : s->n - 1];
}

/* --- the run ---------------------------------------------------------------------------------- */

/* One running session. */
struct client {
    struct bench *b;
    const struct session *session;
    int idx, next_turn;
    /* time at which its next turn is due; INFINITY: a request is in flight, or the session has
     * ended */
    double due_s;
    char *messages; /* JSON objects of the conversation so far: "{...},{...}" */
    size_t n_messages;
    /* The request in flight. */
    double sent_s, first_s, last_s;
    char *answer;
    size_t n_answer;
};

struct bench {
    struct serve_args args;
    struct workload load;
    struct http_load *http;
    FILE *csv;
    double words_per_token, t0;
    struct client *clients;
    struct samples ttft, tbt, ttft_first, ttft_later, latency;
    int n_done, n_failed, n_sent;
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    double last_end_s;
    struct thread_time before, after; /* times of the threads of --pid */
    char first_error[200];
    /* the request's member "model", with a comma; "" if no model is named */
    char *model_field;
};

static double now_s(const struct bench *b)
{
    return (double)clock_now_ns() * 1e-9 - b->t0;
}

static const char *const words[] = {
    "time",   "house", "water",  "little", "green",  "after", "people",  "light",
    "story",  "under", "never",  "garden", "river",  "again", "morning", "small",
    "window", "table", "open",   "friend", "paper",  "stone", "white",   "every",
    "night",  "bread", "answer", "school", "yellow", "train", "letter",  "winter"};
enum { N_WORDS = sizeof words / sizeof words[0] };

static void append(char **text, size_t *n, const char *piece, size_t n_piece)
{
    *text = xrealloc(*text, *n + n_piece + 1);
    memcpy(*text + *n, piece, n_piece);
    *n += n_piece;
    (*text)[*n] = 0;
}

static char *turn_text(const struct bench *b, const struct turn *t)
{
    char *text = NULL;
    size_t n = 0;
    append(&text, &n, "", 0);
    for (int i = 0; i < t->n_segments; i++) {
        struct rng r = {t->segments[i].seed};
        int n_words = (int)(t->segments[i].n_tokens * b->words_per_token + 0.5);
        for (int k = 0; k < n_words || k == 0; k++) {
            const char *w = words[rng_below(&r, N_WORDS)];
            append(&text, &n, w, strlen(w));
            append(&text, &n, " ", 1);
        }
    }
    return text;
}

static void add_message(struct client *c, const char *role, const char *text, size_t n)
{
    struct json *m = json_new_object();
    json_put_string(m, "role", role);
    json_put_bytes(m, "content", text, n);
    char *line = json_text(m, 0);
    if (c->n_messages > 0)
        append(&c->messages, &c->n_messages, ",", 1);
    append(&c->messages, &c->n_messages, line, strlen(line));
    free(line);
    json_free(m);
}

static void send_turn(struct client *c)
{
    struct bench *b = c->b;
    const struct turn *t = &c->session->turns[c->next_turn];
    char *text = turn_text(b, t);
    add_message(c, "user", text, strlen(text));
    char *body = xasprintf("{%s\"messages\":[%s],\"stream\":true,\"stream_"
                           "options\":{\"include_usage\":true},"
                           "\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true}",
                           b->model_field, c->messages, t->max_tokens);
    /* the time at which the turn was due: a late client must not make the server look fast */
    c->sent_s = c->due_s;
    c->due_s = INFINITY;
    c->first_s = c->last_s = 0;
    c->n_answer = 0;
    b->n_sent++;
    http_load_send(b->http, body, c);
    free(body);
    free(text);
}

static void on_text(void *user, const char *text, size_t n)
{
    struct client *c = user;
    double now = now_s(c->b);
    if (c->first_s == 0)
        c->first_s = now;
    else
        sample(&c->b->tbt, now - c->last_s);
    c->last_s = now;
    append(&c->answer, &c->n_answer, text, n);
}

static void count(struct client *c, const struct http_usage *u, double end)
{
    struct bench *b = c->b;
    double ttft = c->first_s - c->sent_s;
    b->n_done++;
    sample(&b->ttft, ttft);
    sample(c->next_turn == 0 ? &b->ttft_first : &b->ttft_later, ttft);
    sample(&b->latency, end - c->sent_s);
    b->prompt_tokens += u->prompt_tokens > 0 ? u->prompt_tokens : 0;
    b->cached_tokens += u->cached_tokens > 0 ? u->cached_tokens : 0;
    b->completion_tokens += u->completion_tokens > 0 ? u->completion_tokens : 0;
    b->last_end_s = end;
}

static void on_end(void *user, int status, const struct http_usage *u, const char *error)
{
    struct client *c = user;
    struct bench *b = c->b;
    double end = now_s(b);
    bool good = status == 200 && error[0] == 0 && c->first_s > 0;
    if (good)
        count(c, u, end);
    else if (b->n_failed++ == 0)
        snprintf(b->first_error, sizeof b->first_error, "status %d: %.160s", status,
                 error[0] != 0 ? error : "no text came");
    if (b->csv != NULL)
        fprintf(b->csv, "%s,%d,%d,%.4f,%.4f,%.4f,%lld,%lld,%lld,%d\n", b->args.label,
                c->idx, c->next_turn, c->sent_s, good ? c->first_s - c->sent_s : NAN,
                end - c->sent_s, (long long)u->prompt_tokens, (long long)u->cached_tokens,
                (long long)u->completion_tokens, status);
    if (!good || ++c->next_turn >= c->session->n_turns)
        return; /* the session has ended */
    add_message(c, "assistant", c->answer, c->n_answer);
    c->due_s = end + c->session->turns[c->next_turn].think_s;
}

/* Sends the requests that are due. Returns the time at which the next one is due. */
static double send_due(struct bench *b)
{
    double next = INFINITY, now = now_s(b);
    for (int i = 0; i < b->load.n_sessions; i++) {
        struct client *c = &b->clients[i];
        if (c->due_s <= now && c->due_s <= b->load.seconds)
            send_turn(c);
        else if (c->due_s <= b->load.seconds && c->due_s < next)
            next = c->due_s;
    }
    return next;
}

static void run(struct bench *b)
{
    struct progress p;
    b->clients = xcalloc((size_t)b->load.n_sessions + 1, sizeof *b->clients);
    for (int i = 0; i < b->load.n_sessions; i++)
        b->clients[i] = (struct client){.b = b,
                                        .session = &b->load.sessions[i],
                                        .idx = i,
                                        .due_s = b->load.sessions[i].start_s};
    b->t0 = (double)clock_now_ns() * 1e-9;
    progress_begin(&p, b->args.label, PROGRESS_ITEMS,
                   (uint64_t)(b->load.seconds + b->args.drain));
    for (;;) {
        double next = send_due(b), now = now_s(b);
        bool none_runs = b->n_sent == b->n_done + b->n_failed;
        if (now > b->load.seconds + b->args.drain || (next == INFINITY && none_runs))
            break;
        double wait = next - now < 0.05 ? next - now : 0.05;
        http_load_poll(b->http, wait > 0 ? (int)(wait * 1e3) : 0);
        progress_at(&p, (uint64_t)now);
    }
    progress_end(&p);
}

/* --- before the run --------------------------------------------------------------------------- */

struct probe {
    int status;
    struct http_usage usage;
    char error[200];
    bool done;
};

static void probe_text(void *user, const char *text, size_t n)
{
    (void)user;
    (void)text;
    (void)n;
}
static void probe_end(void *user, int status, const struct http_usage *u, const char *error)
{
    struct probe *p = user;
    *p = (struct probe){.status = status, .usage = *u, .done = true};
    snprintf(p->error, sizeof p->error, "%s", error);
}

static int64_t probe_tokens(struct bench *b, int n_words, struct err *err)
{
    struct http_load *l = NULL;
    struct probe p = {0};
    struct http_load_calls calls = {probe_text, probe_end};
    int rc = http_load_create(b->args.url, b->args.key, &calls, &l, err);
    if (rc != 0)
        return rc;
    struct segment s = {4711, n_words};
    struct turn t = {.segments = &s, .n_segments = 1};
    b->words_per_token = 1;
    char *text = turn_text(b, &t);
    char *body = xasprintf(
        "{%s\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":1}",
        b->model_field, text);
    http_load_send(l, body, &p);
    while (!p.done)
        http_load_poll(l, 50);
    http_load_destroy(l);
    free(body);
    free(text);
    if (p.status != 200 || p.error[0] != 0)
        return err_set(err, ERR_NOT_FOUND, "%s: a first request failed: status %d: %s",
                       b->args.url, p.status, p.error);
    if (p.usage.prompt_tokens <= 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: the answer has no usage.prompt_tokens",
                       b->args.url);
    return p.usage.prompt_tokens;
}

/* Measures how many tokens a word has on the server. The text around a message does not count. */
static int calibrate(struct bench *b, struct err *err)
{
    int64_t few = probe_tokens(b, 20, err),
            many = few > 0 ? probe_tokens(b, 120, err) : few;
    if (many <= 0)
        return (int)many;
    b->words_per_token = many > few ? 100.0 / (double)(many - few) : 1;
    return 0;
}

static int make_load(struct bench *b, struct err *err)
{
    const struct serve_args *a = &b->args;
    struct workload_opts o = {.seconds = a->seconds,
                              .per_minute = a->rate,
                              .token_scale = a->token_scale,
                              .time_scale = a->time_scale,
                              .zipf = a->zipf,
                              .n_documents = a->documents,
                              .max_prompt = a->max_prompt,
                              .seed = (uint64_t)a->seed,
                              .task = a->task};
    bool is_trace = strcmp(a->workload, "trace") == 0;
    if (is_trace != (a->trace != NULL))
        return err_set(err, ERR_USAGE, "--workload trace and --trace FILE belong together");
    if (!is_trace && a->rate <= 0)
        return err_set(err, ERR_USAGE, "--rate must be above 0 for workload %s",
                       a->workload);
    if (is_trace)
        return workload_trace(&b->load, &o, a->trace, err);
    if (strcmp(a->workload, "documents") == 0)
        workload_documents(&b->load, &o);
    else
        workload_chats(&b->load, &o);
    return 0;
}

/* --- results ---------------------------------------------------------------------------------- */

struct row {
    const char *name;
    struct samples *of;
};

static void say(struct bench *b, struct report *html)
{
    const struct serve_args *a = &b->args;
    const struct row rows[] = {{"TTFT", &b->ttft},
                               {"TTFT, first turns", &b->ttft_first},
                               {"TTFT, later turns", &b->ttft_later},
                               {"time between texts", &b->tbt},
                               {"whole answer", &b->latency}};
    double span = b->last_end_s > 0 ? b->last_end_s : a->seconds;
    printf("%s: workload %s, %d sessions in %.0f s, lengths x %g, pauses x %g, seed %lld\n",
           a->label, b->load.name, b->load.n_sessions, a->seconds, a->token_scale,
           a->time_scale, (long long)a->seed);
    printf("%d requests sent, %d answered, %d failed, %d not in time%s%s\n", b->n_sent,
           b->n_done, b->n_failed, b->n_sent - b->n_done - b->n_failed,
           b->n_failed ? "; first: " : "", b->first_error);
    printf("%-20s %10s %10s %10s %10s %8s\n", "ms", "p50", "p95", "p99", "max", "n");
    if (html != NULL)
        report_table_begin(html, "ms\tp50\tp95\tp99\tmax\tn");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double q[4];
        for (int k = 0; k < 4; k++)
            q[k] = 1e3 * quantile(rows[i].of, (double[]){0.5, 0.95, 0.99, 1}[k]);
        printf("%-20s %10.1f %10.1f %10.1f %10.1f %8d\n", rows[i].name, q[0], q[1], q[2],
               q[3], rows[i].of->n);
        if (html != NULL)
            report_row(html, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%d", rows[i].name, q[0], q[1],
                       q[2], q[3], rows[i].of->n);
    }
    if (html != NULL)
        report_table_end(html);
    double hit = b->prompt_tokens > 0
                     ? 100.0 * (double)b->cached_tokens / (double)b->prompt_tokens
                     : 0;
    printf("%.2f requests/s, %.1f generated tokens/s, %lld prompt tokens, %.1f %% of them "
           "not computed\n",
           b->n_done / span, (double)b->completion_tokens / span,
           (long long)b->prompt_tokens, hit);
    if (html != NULL)
        report_text(html,
                    "%d of %d requests answered, %d failed; %.2f requests/s, %.1f "
                    "generated tokens/s; "
                    "%.1f %% of the prompts' tokens were not computed.",
                    b->n_done, b->n_sent, b->n_failed, b->n_done / span,
                    (double)b->completion_tokens / span, hit);
}

static void say_threads(const struct bench *b)
{
    printf("processor time by thread, us a generated token:");
    for (int i = 0; i < b->after.n; i++)
        printf(" %s %.1f", b->after.of[i].name,
               (double)thread_time_since(&b->before, &b->after, i) / 1e3 /
                   (double)(b->completion_tokens > 0 ? b->completion_tokens : 1));
    printf("\n");
}

static void page_plots(struct bench *b, struct report *html)
{
    struct report_bars bars = {.title = "Time to first token",
                               .unit = "ms",
                               .n_groups = 3,
                               .n_series = 2,
                               .group = {"p50", "p95", "p99"},
                               .series = {"first turns", "later turns"}};
    for (int i = 0; i < 3; i++) {
        double q = (double[]){0.5, 0.95, 0.99}[i];
        bars.value[i][0] = 1e3 * quantile(&b->ttft_first, q);
        bars.value[i][1] = 1e3 * quantile(&b->ttft_later, q);
    }
    report_bars(html, &bars);
}

static int write_page(struct bench *b, struct err *err)
{
    struct report html;
    if (b->args.html == NULL) {
        say(b, NULL);
        return 0;
    }
    int rc = report_open(&html, b->args.html, "hcache bench serve", err);
    if (rc != 0)
        return rc;
    report_heading(&html, b->args.label);
    report_text(
        &html,
        "Workload %s at %s: %d sessions in %.0f s, lengths x %g, pauses x %g, seed %lld.",
        b->load.name, b->args.url, b->load.n_sessions, b->args.seconds, b->args.token_scale,
        b->args.time_scale, (long long)b->args.seed);
    say(b, &html);
    page_plots(b, &html);
    return report_close(&html, err);
}

static void release(struct bench *b)
{
    http_load_destroy(b->http);
    for (int i = 0; b->clients != NULL && i < b->load.n_sessions; i++) {
        free(b->clients[i].messages);
        free(b->clients[i].answer);
    }
    free(b->clients);
    free(b->model_field);
    workload_free(&b->load);
    free(b->ttft.at);
    free(b->tbt.at);
    free(b->ttft_first.at);
    free(b->ttft_later.at);
    free(b->latency.at);
    if (b->csv != NULL)
        fclose(b->csv);
}

/* --- commands --------------------------------------------------------------------------------- */

static void describe(const struct bench *b)
{
    struct workload_stats t;
    workload_describe(&b->load, &t);
    printf("sessions %d\nturns %d\ndocument_tokens %.1f\nnew_tokens %.1f\n"
           "answer_tokens %.1f\nhistory_p50 %.0f\nover_2500 %.3f\n",
           t.n_sessions, t.n_turns, t.document, t.question, t.answer, t.history_p50,
           t.over_2500);
}

static int measure(struct bench *b, struct err *err)
{
    struct http_load_calls calls = {on_text, on_end};
    if (b->args.csv != NULL && (b->csv = fopen(b->args.csv, "w")) == NULL)
        return err_set(err, ERR_USAGE, "cannot write %s", b->args.csv);
    int rc = calibrate(b, err);
    if (rc == 0)
        rc = http_load_create(b->args.url, b->args.key, &calls, &b->http, err);
    if (rc == 0 && b->csv != NULL)
        fprintf(b->csv,
                "label,session,turn,sent_s,ttft_s,latency_s,prompt_tokens,cached_tokens,"
                "completion_tokens,status\n");
    if (rc == 0 && b->args.pid > 0)
        rc = thread_time_of(b->args.pid, &b->before, err);
    if (rc == 0)
        run(b);
    if (rc == 0 && b->args.pid > 0)
        rc = thread_time_of(b->args.pid, &b->after, err);
    if (rc == 0)
        rc = write_page(b, err);
    if (rc == 0 && b->args.pid > 0)
        say_threads(b);
    return rc;
}

int bench_serve(int argc, char **argv)
{
    static struct bench b;
    struct err err = {0};
    struct opt_parsed *parsed;
    int code;
    if (!opt_begin(&serve_cmd, argc, argv, &b.args, &parsed, &code))
        return code;
    b.model_field = b.args.model != NULL ? xasprintf("\"model\":\"%s\",", b.args.model)
                                         : xstrdup("");
    int rc = make_load(&b, &err);
    if (rc == 0 && b.args.describe)
        describe(&b);
    else if (rc == 0)
        rc = measure(&b, &err);
    if (rc != 0)
        fprintf(stderr, "hcache bench serve: %s\n", err.msg);
    bool good = b.n_done > 0 || b.args.describe;
    release(&b);
    opt_end(parsed);
    return rc == ERR_USAGE ? 2 : rc != 0 || !good;
}
