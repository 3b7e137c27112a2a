/* cmd_run.c - `hcache run`: runs one prompt through a model, with an optional store.
 *
 * This file has wiring and options only; the work is done behind the public header. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cmds.h"
#include "apps/json_print.h"
#include "apps/option_tables.h"
#include "apps/engine_options.h"
#include "apps/terminal_chat.h"
#include "apps/token_ids.h"
#include "apps/user_files.h"
#include "base/file.h"
#include "base/log.h"
#include "opt/opt.h"
#include "base/plural.h"
#include "base/json.h"
#include "hcache.h"
#include "api/cache_json.h"
#include "api/provenance.h"
#include "api/prompt.h"

struct run_args {
    const char *conversation;
    bool plain_chat;
    struct engine_args engine;
    const char *prompt, *system, *prompt_file, *token_ids, *save, *plan, *salt, *url, *key;
    bool is_greedy; /* --temperature was not given */
    bool interactive, ignore_eos, json, verbose, no_special, raw, history;
    int max_tokens, top_k, cache_ttl;
    double temperature, top_p, min_p;
    const char *truncate, *json_schema, *grammar;
    struct hcache_truncation truncation;
    struct hcache_form *form; /* of --json-schema or --grammar; NULL: any */
    int64_t seed;
    struct dates *dates;
};

static const struct opt positionals[] = {
    {"MODEL_DIR", OPT(struct run_args, engine.o.model),
     .help = "a Hugging Face folder, a GGUF file, or synth:SHAPE for random weights; none "
             "with --url"},
    {0},
};

static const struct opt options[] = {
    {"prompt", OPT(struct run_args, prompt), .letter = 'p', .arg = "TEXT",
     .help = "the prompt; with a chat template, the user's message"},
    {"system", OPT(struct run_args, system), .arg = "TEXT",
     .help = "the system's message, which comes before the prompt"},
    {"raw", OPT(struct run_args, raw),
     .help = "take the prompt as the beginning of the text, without a chat template"},
    {"prompt-file", OPT(struct run_args, prompt_file), .arg = "FILE",
     .help = "a file with the prompt (- is standard input)"},
    {"token-ids", OPT(struct run_args, token_ids), .arg = "FILE",
     .help = "a file with the prompt's token ids, separated by space or comma"},
    {"interactive", OPT(struct run_args, interactive), .letter = 'i',
     .help = "talk in the terminal; --store DIR keeps the conversation, and /help lists "
             "its commands"},
    {"conversation", OPT(struct run_args, conversation), .arg = "NAME",
     .help = "with -i: continue the kept conversation with that title or id, or begin one; "
             "also with --url. By default a new one begins, titled by its first words"},
    {"url", OPT(struct run_args, url), .arg = "URL",
     .help = "with -i: talk to the running server at this address, such as "
             "http://127.0.0.1:8080"},
    {"api-key", OPT(struct run_args, key), .arg = "KEY",
     .help = "API key for the server of --url"},
    {"history", OPT(struct run_args, history), .def = "true",
     .help = "with -i on a terminal: keep typed lines for the next run, in hcache/history "
             "below $XDG_STATE_HOME (~/.local/state), readable only by you"},
    OPT_TEMPLATE_DATE(struct run_args),
    {"plain-chat", OPT(struct run_args, plain_chat),
     .help = "chat with a model that has no chat template: lines \"role: text\""},
    {"max-tokens", OPT(struct run_args, max_tokens), .letter = 'n', .arg = "N", .min = 0,
     .max = 1 << 20,
     .help =
         "generate at most N tokens; by default 128, or in a chat the rest of the context"},
    {"temperature", OPT(struct run_args, temperature), .arg = "T", .def = "0", .hi = 100,
     .help = "0 is greedy, and /retry in -i then uses 0.7"},
    {"top-p", OPT(struct run_args, top_p), .arg = "P", .def = "1", .hi = 1,
     .help = "keep the most likely tokens that together have probability P"},
    {"top-k", OPT(struct run_args, top_k), .arg = "K", .def = "0", .min = 0, .max = 1 << 20,
     .help = "keep the K most likely tokens; 0 keeps all"},
    {"min-p", OPT(struct run_args, min_p), .arg = "P", .def = "0", .hi = 0.999999,
     .help = "drop tokens less likely than P times the likeliest"},
    OPT_SEED(struct run_args, "0", "seed of sampling"),
    {"json-schema", OPT(struct run_args, json_schema), .arg = "FILE",
     .help = "the answer is a JSON value of the schema in this file (docs/STRUCTURED.md)"},
    {"grammar", OPT(struct run_args, grammar), .arg = "FILE",
     .help = "the answer is a text of the GBNF grammar in this file"},
    {"ignore-eos", OPT(struct run_args, ignore_eos),
     .help = "do not stop at the end of the text"},
    {"no-special", OPT(struct run_args, no_special), .help = "like --raw, and without BOS"},
    OPT_COMPUTE(struct run_args),
    OPT_DEVICE_TUNING(struct run_args),
    OPT_BATCH_ROWS(struct run_args),
    OPT_MAX_CONTEXT(struct run_args),
    OPT_TRUNCATE(
        struct run_args,
        "continue past the context of C tokens (the model's own by default): when it is "
        "full, drop a share R of it, but never its first K tokens (64). Without --store, "
        "state is kept in memory; off: no truncation. In a kept conversation 0.5 by "
        "default"),
    OPT_STORE(
        struct run_args,
        "where state is kept and found, one directory per device; \"memory\" for DRAM"),
    OPT_STORE_CAP(struct run_args),
    OPT_DRAM(struct run_args, "0"),
    OPT_REMOTE(struct run_args),
    OPT_SPECULATE(struct run_args),
    OPT_PACK(struct run_args),
    OPT_POLICY(struct run_args),
    {"save", OPT(struct run_args, save), .arg = "KINDS",
     .help = "state to save: auto, hidden, kv, both, none, or a letter per layer (H, K, "
             "B, -); by default auto, or both if a plan is forced"},
    {"plan", OPT(struct run_args, plan), .arg = "PLAN", .def = "auto",
     .help = "auto, hidden, kv, recompute, or a letter per layer (R, H, K), for tests; "
             "layers without stored records are computed"},
    OPT_THROTTLE(struct run_args),
    OPT_GPU_DIRECT(struct run_args),
    {"salt", OPT(struct run_args, salt), .arg = "TEXT",
     .help = "share saved state only with runs of the same salt"},
    {"cache-ttl", OPT(struct run_args, cache_ttl), .arg = "S", .def = "0", .min = 0,
     .max = HCACHE_MAX_CACHE_TTL_S,
     .help = "seconds without use after which this run's state expires; 0 is never"},
    {"json", OPT(struct run_args, json), .help = "print one JSON object and nothing else"},
    {"verbose", OPT(struct run_args, verbose), .letter = 'v',
     .help = "print the memory layout and the restored parts"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "run",
    .summary = "Generates text.  With --store, the stored part of the prompt's prefix is "
               "restored instead of computed, and new state is saved.",
    .positionals = positionals,
    .options = options,
    .examples =
        "  hcache run models/demo -p 'Hello' --store /var/tmp/state\n"
        "  hcache run ~/.cache/hcache/SmolLM2-135M-Instruct.Q4_1.gguf -p 'What is the "
        "opposite of hot?'\n"
        "  hcache run models/demo -i --conversation birds --store /var/tmp/state\n"
        "  hcache run -i --url http://127.0.0.1:8080 --conversation birds\n"
        "  hcache run synth:bench-220m --token-ids ids.txt --json\n",
    .values_bytes = sizeof(struct run_args),
};
const struct opt_cmd *const options_of_run = &cmd;

static int fail(const struct hcache_err *e)
{
    fprintf(stderr, "hcache run: %s\n", e->msg);
    return e->code == HCACHE_E_USAGE ? 2 : 1;
}

/* --- the prompt ------------------------------------------------------------------------------- */

struct prompt {
    char *text; /* text of --prompt, --prompt-file or --token-ids; NULL: none */
    size_t n_text;
    int32_t *ids;
    int n, cap;
    struct prompt_date date; /* the date in a chat's prompt */
};

static void prompt_add(struct prompt *p, const int32_t *ids, int n)
{
    if (n == 0)
        return;
    if (p->n + n > p->cap) {
        p->cap = 2 * (p->n + n);
        int32_t *grown = realloc(p->ids, (size_t)p->cap * sizeof *grown);
        if (grown == NULL) {
            fprintf(stderr, "hcache run: out of memory\n");
            exit(1);
        }
        p->ids = grown;
    }
    memcpy(p->ids + p->n, ids, (size_t)n * sizeof *ids);
    p->n += n;
}

static int prompt_add_text(struct prompt *p, const struct hcache *h, const char *text,
                           size_t n, unsigned flags, struct hcache_err *err)
{
    int32_t *ids = NULL;
    int n_ids = 0;
    int rc = hcache_encode(h, text, n, flags, &ids, &n_ids, err);
    if (rc == 0)
        prompt_add(p, ids, n_ids);
    hcache_free(ids);
    return rc;
}

static int prompt_add_ids(struct prompt *p, const char *path, const char *text, size_t n,
                          struct hcache_err *err)
{
    struct err e = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = token_ids_parse(text, n, path, &ids, &n_ids, &e);
    if (rc == 0)
        /* The cast is safe: there are fewer ids than bytes in the file, which has at most 2^30. */
        prompt_add(p, ids, (int)n_ids);
    free(ids);
    err->code = rc;
    snprintf(err->msg, sizeof err->msg, "%s", e.msg);
    return rc;
}

static int prompt_add_file(struct prompt *p, const struct hcache *h, const char *path,
                           const char *text, size_t n, unsigned flags,
                           struct hcache_err *err)
{
    struct hcache_err e = {0};
    int rc = prompt_add_text(p, h, text, n, flags, &e);
    if (rc != 0) {
        err->code = e.code;
        snprintf(err->msg, sizeof err->msg, "%s: %s", path, e.msg);
    }
    return rc;
}

static int read_whole(const char *path, char **text, size_t *n, struct hcache_err *err)
{
    struct err e = {0};
    int rc = file_read(strcmp(path, "-") == 0 ? "/dev/stdin" : path, (size_t)1 << 30, text,
                       n, &e);
    if (rc != 0) {
        err->code = rc;
        snprintf(err->msg, sizeof err->msg, "%s", e.msg);
    }
    return rc;
}

static bool is_chat(const struct hcache *h, const struct run_args *a);

static void add_message(struct json *messages, const char *role, const char *text, size_t n)
{
    struct json *message = json_make("{role: %s}", role);
    json_put_bytes(message, "content", text, n);
    json_push(messages, message);
}

static int no_system(struct hcache_err *err)
{
    err->code = HCACHE_E_USAGE;
    snprintf(err->msg, sizeof err->msg,
             "--system needs a chat template, and this model has none (or --raw is given)");
    return err->code;
}

/* Reads the prompt before the model is opened, so that a missing file is reported at once. */
static int prompt_read(struct prompt *p, const struct run_args *a, struct hcache_err *err)
{
    const char *path = a->token_ids != NULL ? a->token_ids : a->prompt_file;
    if (path != NULL)
        return read_whole(path, &p->text, &p->n_text, err);
    p->text = strdup(a->prompt != NULL ? a->prompt : "");
    p->n_text = p->text != NULL ? strlen(p->text) : 0;
    return 0;
}

/* Applies the chat template to the system's message and the prompt. */
static int prompt_add_chat(struct prompt *p, struct hcache *h, const struct run_args *a,
                           struct hcache_err *err)
{
    struct fault f = {0};
    struct prompt_text text = {0};
    struct json *messages = json_new_array();
    if (a->system != NULL)
        add_message(messages, "system", a->system, strlen(a->system));
    add_message(messages, "user", p->text, p->n_text);
    struct chat_source source = {.messages = messages, .plain = a->plain_chat};
    int rc = dates_render(a->dates, h, a->salt, &source, &text, &f);
    if (rc != 0) {
        err->code = rc = HCACHE_E_USAGE;
        snprintf(err->msg, sizeof err->msg, "%s", f.message);
    }
    if (rc == 0)
        rc = prompt_add_text(p, h, text.text, text.n, text.flags, err);
    if (rc == 0)
        date_locate(h, &text, &(struct prompt_ids){p->ids, p->n}, &p->date);
    prompt_text_deinit(&text);
    json_free(messages);
    return rc;
}

static int prompt_make(struct prompt *p, struct hcache *h, const struct run_args *a,
                       struct hcache_err *err)
{
    unsigned flags = a->no_special ? 0 : HCACHE_ADD_SPECIAL | HCACHE_PARSE_SPECIAL;
    if (a->token_ids != NULL)
        return prompt_add_ids(p, a->token_ids, p->text, p->n_text, err);
    if (is_chat(h, a))
        return prompt_add_chat(p, h, a, err);
    if (a->system != NULL)
        return no_system(err);
    if (a->prompt_file != NULL)
        return prompt_add_file(p, h, a->prompt_file, p->text, p->n_text, flags, err);
    return prompt_add_text(p, h, p->text, p->n_text, flags, err);
}

static void prompt_free(struct prompt *p)
{
    free(p->text);
    free(p->ids);
}

/* --- the answer ------------------------------------------------------------------------------- */

static int print_token(void *arg, int32_t id, const char *text, size_t n)
{
    const struct run_args *a = arg;
    if (a->json)
        return 0;
    if (n > 0)
        fwrite(text, 1, n, stdout);
    else if (id >= 0 && a->token_ids != NULL)
        printf("%d ", id);
    fflush(stdout);
    return 0;
}

/* Puts the parts of the start, in order and by name, and the number of its forward passes. */
static void put_start(struct json *timings, const struct hcache *h, double load_ms)
{
    struct hcache_start start;
    struct json *spans = json_new_array(), *load = json_new_object();
    hcache_start_info(h, &start);
    json_put_real(load, "total", load_ms);
    for (int i = 0; i < start.n_parts; i++) {
        json_push(spans,
                  json_make("{name: %s, ms: %g}", start.parts[i].name, start.parts[i].ms));
        json_put_real(load, start.parts[i].name, start.parts[i].ms);
    }
    json_extend(timings,
                "{load_ms: %p, spans: %p, start_passes: %ld, "
                "start_hashed_bytes: %lu}",
                load, spans, start.n_passes, start.hashed_bytes);
}

static void put_timings(struct json *o, const struct hcache_timings *t)
{
    json_extend(o,
                "{lookup_ms: %g, plan_ms: %g, restore_ms: %g, restore_io_ms: %g, "
                "restore_compute_ms: %g, restore_wait_ms: %g, fused_ms: %g, "
                "bubble: %g, prefill_ms: %g, ttft_ms: %g, decode_ms: %g, "
                "decode_tokens_per_s: %g}",
                t->lookup_ms, t->plan_ms, t->restore_ms, t->restore_io_ms,
                t->restore_compute_ms, t->restore_wait_ms, t->fused_ms, t->bubble,
                t->prefill_ms, t->ttft_ms, t->decode_ms, t->decode_tokens_per_s);
}

static struct json *plan_json(const struct hcache_plan *p)
{
    return json_make("{recompute: %d, hidden: %d, kv: %d, layers: %s, predicted_ms: %g, "
                     "reason: %s}",
                     p->recompute, p->hidden, p->kv, p->layers, p->predicted_ms, p->reason);
}

static struct json *model_json(const struct hcache *h)
{
    struct hcache_model_info info;
    struct json *types = json_new_object();
    hcache_model_info(h, &info);
    for (int i = 0; i < info.n_file_types; i++)
        json_put_int(types, info.file_types[i].name, info.file_types[i].n_tensors);
    return json_make("{format: %s, arch: %s, file_types: %p, held: %s, template: %p, "
                     "context: %d}",
                     info.format, info.family, types, info.held,
                     json_new_bool(info.has_chat_template), info.max_context);
}

/* Returns the statistics of the copies in DRAM; NULL: there are none. */
static struct json *copies_json(struct hcache *h)
{
    struct hcache_cache_stats k;
    hcache_cache_stats(h, NULL, &k);
    return k.dram.cap_bytes > 0 ? dram_json(&k.dram) : NULL;
}

static void print_json(struct hcache *h, const struct prompt_date *date,
                       const struct hcache_result *r)
{
    char digest[17];
    struct json *o = json_new_object(), *ids = json_new_array();
    struct json *timings = json_new_object();
    for (int i = 0; i < r->n_tokens; i++)
        json_push_int(ids, r->token_ids[i]);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)r->logits_digest);
    if (r->text != NULL)
        json_put_bytes(o, "text", r->text, r->n_text);
    else
        json_put_null(o, "text");
    json_extend(o,
                "{token_ids: %p, finish_reason: %s, prompt_tokens: %d, "
                "cached_tokens: %d, committed_tokens: %ld, logits_digest: %s, "
                "restored_bytes: %lu, restored_dram_bytes: %lu, "
                "restored_page_cache_bytes: %lu, dram_tokens: %d, "
                "remote_tokens: %d, device_tokens: %d, restore_source: %s, "
                "truncated_tokens: %ld, recomputed_tokens: %ld, guessed_tokens: %ld, "
                "guessed_right: %ld}",
                ids, r->finish, r->prompt_tokens, r->cached_tokens, r->committed_tokens,
                digest, r->restored_bytes, r->restored_dram_bytes,
                r->restored_page_cache_bytes, r->dram_tokens, r->remote_tokens,
                r->device_tokens, r->tier, r->truncated_tokens, r->recomputed_tokens,
                r->guessed_tokens, r->guessed_right);
    json_extend(o,
                "{truncation: {context: %d, step: %d, keep: %d, steps: %d, stall_ms: %g}, "
                "miss: %s}",
                r->truncation.context, r->truncation.step, r->truncation.keep,
                r->truncation.steps, r->truncation.stall_ms, provenance_miss(r, ""));
    if (date->moment[0] != 0)
        json_put_bytes(o, "template_date", date->moment, 10);
    put_timings(timings, &r->timings);
    put_start(timings, h, r->timings.load_ms);
    json_extend(o, "{save_stopped: %s, plan: %p, timings: %p, dram: %p, model: %p}",
                r->save_stopped, plan_json(&r->plan), timings, copies_json(h),
                model_json(h));
    json_print(o, 2);
}

static void print_summary(const struct hcache_result *r)
{
    fprintf(stderr, "\n%d prompt token%s, %d restored", r->prompt_tokens,
            plural((uint64_t)r->prompt_tokens), r->cached_tokens);
    if (r->plan.layers[0] != 0)
        fprintf(stderr, " by %s (%s) in %.1f ms, predicted %.1f ms, %.1f MB read",
                r->plan.layers, r->plan.reason, r->timings.restore_ms, r->plan.predicted_ms,
                (double)r->restored_bytes * 1e-6);
    else if (provenance_miss(r, "") != NULL)
        fprintf(stderr, " (%s)", provenance_miss(r, ""));
    fprintf(stderr, "; %d generated at %.1f tokens/s; %lld token%s durable\n", r->n_tokens,
            r->timings.decode_tokens_per_s, (long long)r->committed_tokens,
            plural((uint64_t)r->committed_tokens));
    if (r->truncated_tokens > 0)
        fprintf(stderr,
                "the context dropped its first %lld tokens after the %d kept ones\n",
                (long long)r->truncated_tokens, r->truncation.keep);
    if (r->save_stopped != NULL)
        fprintf(stderr, "saving ended early: %s\n", r->save_stopped);
}

static struct hcache_request request_of(struct run_args *a)
{
    return (struct hcache_request){.max_tokens = a->max_tokens,
                                   .truncation = a->truncation,
                                   .ignore_eos = a->ignore_eos,
                                   .digest = a->json,
                                   .temperature = (float)a->temperature,
                                   .top_p = (float)a->top_p,
                                   .min_p = (float)a->min_p,
                                   .top_k = a->top_k,
                                   .seed = (uint64_t)a->seed,
                                   .salt = a->salt,
                                   .cache_ttl_s = a->cache_ttl,
                                   .save = a->save,
                                   .plan = a->plan,
                                   .form = a->form,
                                   .on_token = print_token,
                                   .arg = a};
}

/* Compiles the form of --json-schema or --grammar. In a chat it begins behind the thought of a
 * template that knows thoughts; the end of any chat's prompt shows it. */
static int form_make(struct hcache *h, struct run_args *a, struct hcache_err *err)
{
    static const char any[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    const char *path = a->json_schema != NULL ? a->json_schema : a->grammar;
    struct hcache_form_opts o = {.kind = a->json_schema != NULL ? HCACHE_FORM_SCHEMA
                                                                : HCACHE_FORM_GBNF};
    struct err e = {0};
    char *text = NULL;
    if (path == NULL)
        return 0;
    int rc = file_read(path, (size_t)1 << 24, &text, &o.n, &e);
    if (rc != 0) {
        err->code = rc;
        snprintf(err->msg, sizeof err->msg, "%s", e.msg);
        return rc;
    }
    char *chat = NULL;
    size_t n_chat = 0;
    if (is_chat(h, a) &&
        hcache_chat_render(h, any, sizeof any - 1, &chat, &n_chat, NULL) == 0)
        o.prompt_end = chat;
    o.text = text;
    rc = hcache_form_create(h, &o, &a->form, NULL, err);
    hcache_free(chat);
    free(text);
    return rc;
}

/* Returns the largest number of answer tokens, for a run without --max-tokens. */
static int open_length(const struct hcache *h, const struct prompt *p,
                       const struct run_args *a)
{
    enum { RAW_TOKENS = 128 };
    struct hcache_model_info info;
    hcache_model_info(h, &info);
    int left = info.max_context - p->n;
    if (a->truncation.ratio > 0 && left < info.max_context / 2)
        left = info.max_context / 2;
    return !is_chat(h, a) ? RAW_TOKENS : left > 1 ? left : 1;
}

static int answer(struct hcache *h, struct prompt *p, struct run_args *a,
                  struct hcache_err *err)
{
    struct hcache_request q = request_of(a);
    struct hcache_result r;
    q.prompt = p->ids;
    q.n_prompt = p->n;
    if (q.max_tokens < 0)
        q.max_tokens = open_length(h, p, a);
    int rc = hcache_generate(h, &q, &r, err);
    if (rc != 0)
        return rc;
    date_explain(&p->date, r.differs_at, r.miss, sizeof r.miss);
    if (a->json)
        print_json(h, &p->date, &r);
    else
        putchar('\n');
    if (a->verbose)
        print_summary(&r);
    prompt_add(p, r.token_ids, r.n_tokens);
    hcache_result_free(&r);
    return 0;
}

/* Appends the next line of the conversation to the prompt; returns false at the end of the
 * input. */
static bool next_line(struct prompt *p, const struct hcache *h, int *rc,
                      struct hcache_err *err)
{
    char *line = NULL;
    size_t cap = 0;
    fputs("> ", stderr);
    ssize_t n = getline(&line, &cap, stdin);
    if (n > 0)
        *rc = prompt_add_text(p, h, line, (size_t)n, 0, err);
    free(line);
    return n > 0 && *rc == 0;
}

static int run(struct hcache *h, struct prompt *p, struct run_args *a,
               struct hcache_err *err)
{
    int rc = prompt_make(p, h, a, err);
    if (rc == 0 && (p->n > 1 || !a->interactive))
        rc = answer(h, p, a, err);
    while (rc == 0 && a->interactive && next_line(p, h, &rc, err))
        rc = answer(h, p, a, err);
    return rc;
}

/* --- a conversation --------------------------------------------------------------------------- */

static void told(void *arg, const struct hcache_result *r)
{
    const struct run_args *a = arg;
    if (a->verbose)
        print_summary(r);
}

static struct terminal_sampling sampling_of(struct run_args *a)
{
    return (struct terminal_sampling){.q = request_of(a), .retries_vary = a->is_greedy};
}

/* Returns whether the conversation is kept in the store's folder. */
static bool is_kept(const struct run_args *a)
{
    return a->interactive && a->engine.o.n_store > 0;
}

/* Runs the conversation of `talk`, which it takes over. first: a message that is sent before the
 * first one is read; NULL: none. */
static int converse(struct terminal_talk *talk, const char *first, size_t n_first,
                    struct run_args *a, struct err *err)
{
    char *history = a->history ? user_file("history") : NULL;
    struct terminal_chat_opts o = {.name = a->conversation,
                                   .first = first,
                                   .n_first = n_first,
                                   .is_kept = is_kept(a) || a->url != NULL,
                                   .history = history,
                                   .told = told,
                                   .arg = a};
    int rc = terminal_chat(talk, &o, err);
    talk->ops->close(talk);
    free(history);
    return rc;
}

static int run_conversation(struct hcache *h, const struct prompt *p, struct run_args *a,
                            struct hcache_err *out)
{
    const char *first = a->prompt != NULL || a->prompt_file != NULL ? p->text : NULL;
    char path[4096];
    struct err err = {0};
    struct terminal_talk *talk;
    struct terminal_local_opts o = {.talk = {.h = h,
                                             .model_name = a->engine.o.model,
                                             .salt = a->salt,
                                             .plain = a->plain_chat,
                                             .system = a->system,
                                             .dates = a->dates},
                                    .sampling = sampling_of(a)};
    if (is_kept(a)) {
        snprintf(path, sizeof path, "%s/" CONVERSATIONS_FILE, a->engine.o.store[0]);
        o.path = path;
        o.seal = a->engine.seal;
    }
    int rc = terminal_local(&o, &talk, &err);
    if (rc == 0)
        rc = converse(talk, first, p->n_text, a, &err);
    out->code = rc;
    snprintf(out->msg, sizeof out->msg, "%s", err.msg);
    return rc;
}

/* Runs a conversation that a server keeps; no model is opened here. Returns the exit code. */
static int run_remote(struct run_args *a)
{
    struct err err = {0};
    struct terminal_talk *talk;
    struct terminal_remote_opts o = {
        .url = a->url, .key = a->key, .system = a->system, .sampling = sampling_of(a)};
    int rc = terminal_remote(&o, &talk, &err);
    if (rc == 0)
        rc = converse(talk, a->prompt, a->prompt != NULL ? strlen(a->prompt) : 0, a, &err);
    if (rc != 0)
        fprintf(stderr, "hcache run: %s\n", err.msg);
    return rc == 0 ? 0 : 1;
}

/* Returns whether the prompt is the user's message in a chat, not plain text. */
static bool is_chat(const struct hcache *h, const struct run_args *a)
{
    struct hcache_model_info info;
    hcache_model_info(h, &info);
    return a->token_ids == NULL && !a->raw && !a->no_special &&
           (info.has_chat_template || a->plain_chat);
}

/* Checks the options of a conversation that a server keeps. */
static int check_remote(const struct run_args *a)
{
    if (!a->interactive)
        return opt_usage(&cmd, "--url needs -i");
    if (a->engine.o.model != NULL || a->engine.store.n > 0 || a->salt != NULL)
        return opt_usage(&cmd, "with --url the server has the model and the store: remove "
                               "MODEL_DIR, --store and --salt");
    if (a->prompt_file != NULL || a->token_ids != NULL || a->raw || a->no_special ||
        a->json)
        return opt_usage(&cmd, "--url cannot be combined with --prompt-file, --token-ids, "
                               "--raw, --no-special and --json");
    return 0;
}

static int check_args(struct run_args *a)
{
    struct err err = {0};
    struct hcache_err herr = {0};
    if (engine_args_finish(&a->engine, &err) != 0)
        return opt_usage(&cmd, "%s", err.msg);
    if (a->truncate != NULL &&
        hcache_truncation_parse(a->truncate, &a->truncation, &herr) != 0)
        return opt_usage(&cmd, "--%s", herr.msg);
    a->engine.o.truncates = a->truncation.ratio > 0;
    if (a->url != NULL)
        return check_remote(a);
    if (a->engine.o.model == NULL)
        return opt_usage(&cmd, "MODEL_DIR is missing");
    if (a->conversation != NULL && (!a->interactive || a->engine.o.n_store == 0))
        return opt_usage(&cmd, "--conversation needs -i and --store DIR");
    if (a->conversation != NULL && (a->prompt_file != NULL || a->token_ids != NULL))
        return opt_usage(&cmd, "--conversation takes its prompts from the terminal, and a "
                               "first one from --prompt");
    int n = (a->prompt != NULL) + (a->prompt_file != NULL) + (a->token_ids != NULL);
    if (n > 1)
        return opt_usage(&cmd, "give one of --prompt, --prompt-file and --token-ids");
    if (n == 0 && !a->interactive)
        return opt_usage(&cmd,
                         "no prompt: give --prompt, --prompt-file, --token-ids or -i");
    if ((a->raw || a->no_special) && (a->plain_chat || a->conversation != NULL))
        return opt_usage(&cmd, "--raw and --no-special cannot be combined with "
                               "--conversation and --plain-chat");
    if (a->interactive && a->json)
        return opt_usage(&cmd, "-i and --json cannot be combined");
    if (a->json_schema != NULL && a->grammar != NULL)
        return opt_usage(&cmd, "give one of --json-schema and --grammar");
    if (a->interactive && (a->json_schema != NULL || a->grammar != NULL))
        return opt_usage(&cmd, "--json-schema and --grammar cannot be combined with -i");
    return 0;
}

static int end(struct run_args *a, struct opt_parsed *parsed, int code)
{
    engine_args_end(&a->engine);
    opt_end(parsed);
    return code;
}

int cmd_run(int argc, char **argv)
{
    struct run_args a;
    struct opt_parsed *parsed;
    struct hcache *h = NULL;
    struct hcache_err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    if (opt_source_of(parsed, "max-tokens") == OPT_FROM_DEFAULT)
        a.max_tokens = -1; /* -1: no limit */
    a.is_greedy = opt_source_of(parsed, "temperature") == OPT_FROM_DEFAULT;
    code = check_args(&a);
    if (code != 0)
        return end(&a, parsed, code);
    if (a.verbose)
        log_set_level(LOG_INFO);
    if (a.url != NULL)
        return end(&a, parsed, run_remote(&a));
    a.engine.o.verbose = a.verbose;
    struct hcache_request ahead = request_of(&a);
    a.engine.o.ahead = &ahead;
    a.engine.o.needs_tokenizer = a.token_ids == NULL || a.interactive;
    struct prompt p = {0};
    struct err why = {0};
    if (engine_dates_open(&a.engine, &a.dates, &why) != 0)
        return end(&a, parsed, opt_usage(&cmd, "%s", why.msg));
    int rc = prompt_read(&p, &a, &err);
    if (rc == 0)
        rc = hcache_open(&a.engine.o, &h, &err);
    if (rc == 0)
        rc = form_make(h, &a, &err);
    struct hcache_truncation half = {.ratio = 0.5};
    bool talks = rc == 0 && (a.conversation != NULL || (a.interactive && is_chat(h, &a)));
    if (talks && a.truncate == NULL && is_kept(&a) &&
        hcache_truncation_check(h, &half, NULL, NULL) == 0)
        a.truncation = half;
    if (talks)
        rc = run_conversation(h, &p, &a, &err);
    else if (rc == 0)
        rc = run(h, &p, &a, &err);
    if (rc != 0)
        code = fail(&err);
    hcache_form_free(a.form);
    hcache_close(h);
    dates_close(a.dates);
    prompt_free(&p);
    return end(&a, parsed, code);
}
