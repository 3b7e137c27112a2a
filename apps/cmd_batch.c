/* cmd_batch.c - `hcache batch`: answers a file of requests, in OpenAI's batch format.
 *
 * This file has wiring, options, progress and the summary; api/job.h does the work.  The first
 * SIGTERM or SIGINT stops the job after the engine's present step; the second ends the process at
 * once.  Neither loses anything that was written. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/cmds.h"
#include "apps/engine_options.h"
#include "apps/json_print.h"
#include "apps/option_tables.h"
#include "base/clock.h"
#include "opt/opt.h"
#include "base/plural.h"
#include "base/thread.h"
#include "api/estimate.h"
#include "api/job.h"
#include "base/json.h"
#include "hcache.h"
#include "api/prompts.h"

/* Default of --mini-batches with streamed weights. More would gain little: with 8, prompts read the
 * weights an eighth as often, and a step of decodes has few rows. */
enum { MINI_BATCHES_STREAMED = 8 };

struct batch_args {
    struct engine_args engine;
    const char *in, *out, *errors;
    struct opt_list names;
    int lookahead;
    bool plain_chat, parse_special, json;
};

static const char *const methods[] = {"auto",      "paper", "kv", "act",
                                      "recompute", "off",   NULL};

static const struct opt positionals[] = {
    OPT_MODEL(struct batch_args,
              "a Hugging Face folder, a GGUF file, or synth:SHAPE for random weights"),
    {0},
};

static const struct opt options[] = {
    {"in", OPT(struct batch_args, in), .required = true, .arg = "FILE",
     .help = "file with the requests, one JSON object per line in OpenAI's batch format; - "
             "is standard input"},
    {"out", OPT(struct batch_args, out), .required = true, .arg = "FILE",
     .help = "file for the answers, one line each; a file of an earlier run is continued; "
             "- is standard output"},
    {"errors", OPT(struct batch_args, errors), .arg = "FILE",
     .help = "file for the lines of failed requests; by default they go to the answers"},
    {"max-sequences", OPT(struct batch_args, engine.o.max_sequences), .arg = "N",
     .def = "8", .min = 1, .max = 256, .help = "answers that are generated at once"},
    {"lookahead", OPT(struct batch_args, lookahead), .arg = "N", .def = "4096", .min = 1,
     .max = 1 << 20,
     .help =
         "requests that are read ahead, to compute the beginnings that they share once"},
    {"served-name", OPT(struct batch_args, names), .arg = "NAME[,NAME...]",
     .help =
         "names of the model in requests, the first one in answers; its folder's name by "
         "default"},
    OPT_STORE(struct batch_args,
              "where state is kept and found, one directory per device; \"memory\" for "
              "DRAM; without it shared beginnings stay in the KV cache only"),
    OPT_STORE_CAP(struct batch_args),
    OPT_DRAM(struct batch_args, "auto"),
    OPT_REMOTE(struct batch_args),
    OPT_PREFETCH(struct batch_args),
    OPT_SPECULATE(struct batch_args),
    OPT_PACK(struct batch_args),
    OPT_MAX_CONTEXT(struct batch_args),
    {"kv-tokens", OPT(struct batch_args, engine.o.kv_tokens), .arg = "N", .def = "0",
     .help = "capacity of the KV cache in tokens, all sequences together; 0: a context for "
             "each, but at most a quarter of this machine's memory"},
    OPT_TEMPLATE_DATE(struct batch_args),
    {"plain-chat", OPT(struct batch_args, plain_chat),
     .help = "allow chats if the model has no chat template, as lines \"role: text\""},
    {"drop-system", OPT(struct batch_args, engine.o.drop_system), .arg = "REGEX",
     .help =
         "drop what matches from system messages, such as a line that changes with every "
         "request; lines for billing that Claude Code sends are always dropped"},
    {"parse-special", OPT(struct batch_args, parse_special),
     .help = "read special tokens in messages as special tokens; by default they are text"},
    OPT_COMPUTE(struct batch_args),
    {"method", OPT(struct batch_args, engine.o.cache_method), .choices = methods,
     .def = "auto",
     .help = "how contexts that do not fit on the device are kept on the host: as keys and "
             "values (kv), as activations (act), by Algorithm 1 of HybridServe (paper), or "
             "by the fastest mixture (auto); recompute, off: not at all"},
    {"host-memory", OPT(struct batch_args, engine.o.host_bytes), .arg = "BYTES", .def = "0",
     .help = "host memory for contexts, which are copied to the device in each step; 0 is "
             "none"},
    {"link", OPT(struct batch_args, engine.o.link_bytes_per_s), .arg = "BYTES_PER_S",
     .def = "0",
     .help = "limit the speed of copies from the host to the device, for experiments"},
    OPT_BATCH_ROWS(struct batch_args),
    {"mini-batches", OPT(struct batch_args, engine.o.mini_batches), .arg = "N", .def = "0",
     .min = 0, .max = HCACHE_MAX_MINI_BATCHES,
     .help = "mini-batches of --batch-rows tokens in one step: all pass a layer before any "
             "passes the next, so that streamed weights are read once for all; 0: 8 with "
             "--weights-memory, else 1"},
    OPT_SAVE_BUFFER(struct batch_args),
    {"json", OPT(struct batch_args, json),
     .help = "print the summary as one JSON object on standard output"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "batch",
    .summary =
        "Answers a file of requests in OpenAI's batch format.  After an interruption or a "
        "kill, the same command continues the job.  The exit code is 0 only if all "
        "requests were answered and none failed.",
    .positionals = positionals,
    .options = options,
    .examples =
        "  hcache batch models/demo --in requests.jsonl --out answers.jsonl\n"
        "  hcache batch models/demo --in - --out - --errors failed.jsonl <requests.jsonl\n",
    .values_bytes = sizeof(struct batch_args),
};
const struct opt_cmd *const options_of_batch = &cmd;

/* --- signals ---------------------------------------------------------------------------------- */

struct signals {
    sigset_t set;
    pthread_mutex_t lock; /* protects the fields below */
    struct batch *job;    /* the running job; NULL: none */
    bool is_asked;
};

static void *signal_main(void *arg)
{
    struct signals *s = arg;
    int sig;
    while (sigwait(&s->set, &sig) != 0)
        ;
    pthread_mutex_lock(&s->lock);
    s->is_asked = true;
    if (s->job == NULL) {
        (void)!write(STDERR_FILENO, "hcache batch: stopped\n", 22);
        _exit(1);
    }
    batch_stop(s->job);
    pthread_mutex_unlock(&s->lock);
    while (sigwait(&s->set, &sig) != 0)
        ;
    (void)!write(STDERR_FILENO, "hcache batch: stopped at once\n", 30);
    _exit(1);
}

static int catch_signals(struct signals *s)
{
    pthread_t thread;
    *s = (struct signals){.lock = PTHREAD_MUTEX_INITIALIZER};
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGTERM);
    sigaddset(&s->set, SIGINT);
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = pthread_sigmask(SIG_BLOCK, &s->set, NULL);
    if (rc == 0)
        rc = thread_create(&thread, signal_main, s);
    if (rc == 0)
        pthread_detach(thread); /* the thread ends with the process */
    return rc;
}

/* --- progress --------------------------------------------------------------------------------- */

struct shown {
    bool is_terminal, drawn;
    int64_t at_ns;
};

/* Shows the progress. Redraws a line on a terminal; elsewhere, prints a line every half minute. */
static void show(void *arg, const struct batch_counts *c)
{
    struct shown *s = arg;
    char of[32] = "";
    int64_t now = clock_now_ns();
    if (now - s->at_ns < (s->is_terminal ? INT64_C(500000000) : INT64_C(30000000000)))
        return;
    s->at_ns = now;
    char left[64];
    estimate_range_text(c->left_low_s, c->left_high_s, left, sizeof left);
    if (c->total_lines > 0)
        snprintf(of, sizeof of, " of %llu", (unsigned long long)c->total_lines);
    fprintf(stderr, "%shcache batch: %llu%s lines done, %llu failed, %.1f tokens/s%s%s%s",
            s->is_terminal ? "\r" : "", (unsigned long long)c->n_done, of,
            (unsigned long long)c->n_failed,
            c->elapsed_s > 0 ? (double)c->generated_tokens / c->elapsed_s : 0,
            left[0] != 0 ? ", " : "", left, s->is_terminal ? "\033[K" : "\n");
    s->drawn = s->is_terminal;
}

static void show_nothing(struct shown *s)
{
    if (s->drawn)
        fprintf(stderr, "\r\033[K");
    s->drawn = false;
}

/* --- the summary ------------------------------------------------------------------------------ */

static double per_s(uint64_t n, double s)
{
    return s > 0 ? (double)n / s : 0;
}

static uint64_t computed_tokens(const struct batch_counts *c)
{
    return c->prompt_tokens - c->device_tokens - c->restored_tokens;
}

static void print_summary(const struct batch_counts *c, const struct hcache_stats *s)
{
    double n = c->n_answers > 0 ? (double)c->n_answers / 1000 : 1;
    fprintf(stderr,
            "hcache batch: %llu line%s done, %llu of them failed; %llu %s done before\n",
            (unsigned long long)c->n_done, plural(c->n_done),
            (unsigned long long)c->n_failed, (unsigned long long)c->n_skipped,
            c->n_skipped == 1 ? "was" : "were");
    fprintf(stderr,
            "  tokens: %llu generated (%.1f/s), %llu in prompts (%.1f/s): %llu computed, "
            "%llu on the device, %llu restored\n",
            (unsigned long long)c->generated_tokens,
            per_s(c->generated_tokens, c->elapsed_s), (unsigned long long)c->prompt_tokens,
            per_s(c->prompt_tokens, c->elapsed_s), (unsigned long long)computed_tokens(c),
            (unsigned long long)c->device_tokens, (unsigned long long)c->restored_tokens);
    fprintf(
        stderr,
        "  time: %.2f s: %.2f reading lines, %.2f waiting for the engine, %.2f writing\n"
        "  a mean answer: %.0f ms queued, %.0f restoring, %.0f computing its prompt, "
        "%.0f generating\n",
        c->elapsed_s, c->reading_s, c->waiting_s, c->writing_s, c->queue_s / n,
        c->restore_s / n, c->prefill_s / n, c->decode_s / n);
    if (s->link_bytes > 0 || s->weights_read_bytes > 0)
        fprintf(stderr, "  read for the steps: %.3f GB of contexts, %.3f GB of weights\n",
                (double)s->link_bytes / 1e9, (double)s->weights_read_bytes / 1e9);
}

static void print_json(const struct batch_counts *c, const struct hcache_stats *s)
{
    struct json *o = json_make(
        "{lines: %lu, done: %lu, failed: %lu, skipped: %lu, stopped: %p, "
        "prompt_tokens: %lu, device_tokens: %lu, restored_tokens: %lu, "
        "computed_tokens: %lu, generated_tokens: %lu, "
        "generated_tokens_per_s: %g, elapsed_s: %g, reading_s: %g, "
        "waiting_s: %g, writing_s: %g, queue_s: %g, restore_s: %g, "
        "prefill_s: %g, decode_s: %g, link_bytes: %lu, "
        "link_down_bytes: %lu, streamed_bytes: %lu}",
        c->n_lines, c->n_done, c->n_failed, c->n_skipped, json_new_bool(c->is_stopped),
        c->prompt_tokens, c->device_tokens, c->restored_tokens, computed_tokens(c),
        c->generated_tokens, per_s(c->generated_tokens, c->elapsed_s), c->elapsed_s,
        c->reading_s, c->waiting_s, c->writing_s, c->queue_s, c->restore_s, c->prefill_s,
        c->decode_s, s->link_bytes, s->link_down_bytes, s->weights_read_bytes);
    json_print(o, 2);
}

/* --- the job ---------------------------------------------------------------------------------- */

/* Returns the creation time for answers: the input's modification time. With the present time, a
 * continued job would give other lines. */
static int64_t time_of(const char *path)
{
    struct stat st;
    if (strcmp(path, "-") == 0 || stat(path, &st) != 0)
        return 0;
    return (int64_t)st.st_mtim.tv_sec;
}

static void set_job(struct signals *s, struct batch *job)
{
    pthread_mutex_lock(&s->lock);
    s->job = job;
    if (job != NULL && s->is_asked)
        batch_stop(job);
    pthread_mutex_unlock(&s->lock);
}

/* Runs the job and prints its summary. Returns 0, or the exit code. */
static int run_job(const struct batch_args *a, struct hcache *h, struct batch *job,
                   struct shown *shown)
{
    struct err err = {0};
    struct batch_counts counts;
    struct hcache_stats stats;
    int rc = batch_run(job, &err);
    show_nothing(shown);
    batch_counts(job, &counts);
    hcache_stats(h, &stats);
    print_summary(&counts, &stats);
    if (a->json)
        print_json(&counts, &stats);
    if (rc == ERR_CANCELLED)
        fprintf(stderr, "hcache batch: stopped; the same command continues from here\n");
    else if (rc != 0)
        fprintf(stderr, "hcache batch: %s\n", err.msg);
    return rc != 0 || counts.n_failed > 0 ? 1 : 0;
}

/* Runs the command. Checks the files before the model is loaded, because loading may take
 * minutes. */
static int run(const struct batch_args *a, struct signals *signals)
{
    /* The queue holds as many answers as one line can ask for. */
    enum { QUEUE = REQUEST_MAX_N * REQUEST_MAX_PROMPTS };
    struct err err = {0};
    struct hcache_err herr = {0};
    struct hcache *h = NULL;
    struct batch *job = NULL;
    struct shown shown = {.is_terminal = isatty(STDERR_FILENO), .at_ns = clock_now_ns()};
    char *name = a->names.n > 0 ? strdup(a->names.items[0])
                                : engine_model_name(a->engine.o.model);
    int code = 1, max = a->engine.o.max_sequences;
    struct dates *dates = NULL;
    char moment
        [PROMPT_DATE_BYTES]; /* to all prompts, the present moment is the job's beginning */
    struct batch_opts o = {.client = {.model_name = name,
                                      .names = {.items = a->names.items, .n = a->names.n},
                                      .plain_chat = a->plain_chat,
                                      .parse_special = a->parse_special,
                                      .max_queue = QUEUE},
                           .input = a->in,
                           .output = a->out,
                           .errors = a->errors,
                           .in_flight = 2 * max,
                           .lookahead = a->lookahead,
                           .created_s = time_of(a->in),
                           .on_progress = show,
                           .progress_ns = 100000000,
                           .arg = &shown};
    int rc = engine_dates_open(&a->engine, &dates, &err);
    if (rc == 0) {
        prompt_moment(clock_wall_s() + clock_set_by_s(), moment);
        o.client.dates = dates;
        o.client.moment = moment;
        rc = batch_open(&o, &job, &err);
    }
    if (rc != 0) {
        fprintf(stderr, "hcache batch: %s\n", err.msg);
        dates_close(dates);
        free(name);
        return rc == ERR_USAGE ? 2 : 1;
    }
    rc = hcache_open(&a->engine.o, &h, &herr);
    if (rc == 0)
        rc = hcache_serve_start(h, QUEUE + 2 * max, &herr);
    if (rc == 0) {
        batch_model(job, h);
        set_job(signals, job);
        code = run_job(a, h, job, &shown);
        set_job(signals, NULL);
    } else {
        fprintf(stderr, "hcache batch: %s\n", herr.msg);
        code = rc == HCACHE_E_USAGE ? 2 : 1;
    }
    batch_close(job);
    if (h != NULL)
        hcache_serve_stop(h);
    hcache_close(h);
    dates_close(dates);
    free(name);
    return code;
}

int cmd_batch(int argc, char **argv)
{
    struct batch_args a;
    struct opt_parsed *parsed;
    struct signals signals;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    if (engine_args_finish(&a.engine, &err) == 0 && a.json && strcmp(a.out, "-") == 0)
        err_set(&err, ERR_USAGE, "--json and --out - both write to standard output");
    if (a.engine.o.mini_batches == 0 && a.engine.o.weights_memory != NULL)
        a.engine.o.mini_batches = MINI_BATCHES_STREAMED;
    if (err.code != 0)
        code = opt_usage(&cmd, "%s", err.msg);
    else if (catch_signals(&signals) != 0)
        code = 1;
    else
        code = run(&a, &signals);
    engine_args_end(&a.engine);
    opt_end(parsed);
    return code;
}
