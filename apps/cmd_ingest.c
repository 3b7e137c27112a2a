/* cmd_ingest.c - `hcache ingest`: computes the state of documents before prompts begin with them
 * (HCache paper, section 3.1).
 *
 * Each file is prefilled as a prompt of its own and saved; nothing is generated.  State that is
 * already stored is found by content and restored instead of computed, so an interrupted ingestion
 * continues where it stopped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cmds.h"
#include "apps/json_print.h"
#include "apps/option_tables.h"
#include "apps/engine_options.h"
#include "apps/text_split.h"
#include "base/file.h"
#include "opt/opt.h"
#include "base/plural.h"
#include "base/progress.h"
#include "base/json.h"
#include "hcache.h"
#include "api/prompt.h"

struct ingest_args {
    struct engine_args engine;
    const char *save, *plan, *salt, *chat;
    struct opt_list files;
    int part_tokens, overlap_tokens;
    bool json;
    struct dates *dates;
    char date
        [PROMPT_DATE_BYTES]; /* moment that the last document's prompt shows; "": none */
};

static const char *const roles[] = {"system", "user", NULL};

static const struct opt positionals[] = {
    OPT_MODEL(struct ingest_args, "a Hugging Face folder, or a GGUF file"),
    {"FILE", OPT(struct ingest_args, files), .required = true,
     .help = "documents, UTF-8 text"},
    {0},
};

static const struct opt options[] = {
    {"store", OPT(struct ingest_args, engine.store), .arg = "DIR[,DIR...]",
     .required = true, .help = "where state is kept, one directory per device"},
    OPT_STORE_KEY(struct ingest_args),
    OPT_STORE_CAP(struct ingest_args),
    OPT_PACK(struct ingest_args),
    OPT_POLICY(struct ingest_args),
    {"save", OPT(struct ingest_args, save), .arg = "KINDS", .def = "auto",
     .help = "auto, hidden, kv, both, or a letter per layer (H, K, B, -)"},
    {"plan", OPT(struct ingest_args, plan), .arg = "PLAN", .def = "auto",
     .help = "method of restoring: auto, hidden, kv, recompute, or a letter per "
             "layer"},
    {"chat", OPT(struct ingest_args, chat), .choices = roles,
     .help = "store each document as the first message of a chat, in the form of the "
             "model's template, so that a client's chat with that message finds it"},
    {"part-tokens", OPT(struct ingest_args, part_tokens), .arg = "N", .def = "0", .min = 0,
     .max = 1 << 24,
     .help = "with --chat: store a file of more than N tokens in parts, each a separate "
             "message that ends at a paragraph, line, sentence or word; 0: half of the "
             "context, for files that are longer than that"},
    {"overlap-tokens", OPT(struct ingest_args, overlap_tokens), .arg = "N", .def = "64",
     .min = 0, .max = 1 << 20,
     .help = "about this many tokens of a part are repeated in the next one"},
    OPT_TEMPLATE_DATE(struct ingest_args),
    {"salt", OPT(struct ingest_args, salt), .arg = "TEXT",
     .help = "share saved state only with runs of the same salt"},
    OPT_COMPUTE(struct ingest_args),
    OPT_BATCH_ROWS(struct ingest_args),
    {"json", OPT(struct ingest_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "ingest",
    .summary =
        "Computes and saves the state of documents, so that prompts that begin with one of "
        "them restore it.  After an interruption, the same command continues.",
    .positionals = positionals,
    .options = options,
    .examples =
        "  hcache ingest models/demo --store /var/tmp/state handbook.txt faq.txt\n"
        "  hcache ingest models/demo --store /var/tmp/state --chat system handbook.txt\n"
        "  hcache ingest models/demo --store /var/tmp/state --chat user --part-tokens 400 "
        "book.txt\n",
    .values_bytes = sizeof(struct ingest_args),
};
const struct opt_cmd *const options_of_ingest = &cmd;

struct totals {
    int64_t tokens, cached, committed;
};

static void on_prompt(void *progress, int n_done)
{
    progress_at(progress, (uint64_t)n_done);
}

/* Computes and saves state that is not yet stored, and shows the progress. */
static int compute(struct hcache *h, const struct ingest_args *a, const char *path,
                   const int32_t *ids, int n, struct hcache_result *out,
                   struct hcache_err *err)
{
    char label[300];
    struct progress p;
    struct hcache_request q = {.prompt = ids,
                               .n_prompt = n,
                               .max_tokens = 0,
                               .salt = a->salt,
                               .save = a->save,
                               .plan = a->plan,
                               .on_prompt = on_prompt,
                               .arg = &p};
    snprintf(label, sizeof label, "ingesting %.250s, tokens", path);
    progress_begin(&p, label, PROGRESS_ITEMS, (uint64_t)n);
    int rc = hcache_generate(h, &q, out, err);
    progress_end(&p);
    return rc;
}

/* Returns why a document is not completely stored. */
static const char *why_unsaved(const struct hcache_result *r)
{
    return r->save_stopped != NULL ? r->save_stopped
                                   : "computing the rest is faster than reading it, so "
                                     "--save auto does not store it";
}

/* A text that is stored at once: a whole file, or a part of it. */
struct piece {
    const char *path, *text;
    size_t from, to; /* range of the piece's bytes in the file */
    bool is_part;
};

static void print_file(const struct piece *p, const char *date, int n,
                       const struct hcache_result *r)
{
    if (p->is_part)
        printf("%s, bytes %zu to %zu", p->path, p->from, p->to);
    else
        printf("%s", p->path);
    printf(": %d token%s, %d restored, %d computed, ", n, plural((uint64_t)n),
           r->cached_tokens, n - r->cached_tokens);
    if (date[0] != 0)
        printf("with the date %.10s, ", date);
    if (r->committed_tokens >= n)
        printf("all durable\n");
    else
        printf("%lld durable: %s\n", (long long)r->committed_tokens, why_unsaved(r));
}

static void add_file(struct json *list, const struct piece *p, const char *date, int n,
                     const struct hcache_result *r)
{
    struct json *o = json_make("{file: %s}", p->path);
    if (p->is_part) {
        json_put_int(o, "from", (int64_t)p->from);
        json_put_int(o, "to", (int64_t)p->to);
    }
    json_extend(o, "{tokens: %d, cached_tokens: %d, committed_tokens: %ld}", n,
                r->cached_tokens, r->committed_tokens);
    if (date[0] != 0)
        json_put_bytes(o, "template_date", date, 10);
    if (r->committed_tokens < n)
        json_put_string(o, "unsaved", why_unsaved(r));
    json_put_real(o, "ms", r->timings.restore_ms + r->timings.prefill_ms);
    json_push(list, o);
}

/* Tokenizes a document: as it is, or as the first message of a chat. */
static int encode(struct hcache *h, struct ingest_args *a, const char *text, size_t n_text,
                  int32_t **ids, int *n, struct hcache_err *err)
{
    if (a->chat == NULL)
        return hcache_encode(h, text, n_text, HCACHE_ADD_SPECIAL, ids, n, err);
    struct fault f = {0};
    struct prompt_text rendered = {0};
    struct json *messages = json_new_array(), *message = json_new_object();
    json_put_string(message, "role", a->chat);
    json_put_bytes(message, "content", text, n_text);
    json_push(messages, message);
    struct chat_source source = {.messages = messages};
    int rc = dates_render(a->dates, h, a->salt, &source, &rendered, &f);
    snprintf(a->date, sizeof a->date, "%s", rendered.date.moment);
    if (rc == 0) {
        rc = hcache_encode(h, rendered.text, rendered.n, rendered.flags, ids, n, err);
    } else {
        err->code = rc = HCACHE_E_USAGE;
        snprintf(err->msg, sizeof err->msg, "--chat: %s", f.message);
    }
    prompt_text_deinit(&rendered);
    json_free(messages);
    return rc;
}

/* Remembers the date of a document that is a chat's first message. */
static int keep_date(const struct ingest_args *a, const char *text, size_t n,
                     struct hcache_err *err)
{
    struct err e = {0};
    int rc = a->chat != NULL
                 ? dates_ingested(a->dates, a->salt, a->chat, text, n, a->date, &e)
                 : 0;
    if (rc != 0) {
        err->code = rc;
        snprintf(err->msg, sizeof err->msg, "%.500s", e.msg);
    }
    return rc;
}

static int ingest_piece(struct hcache *h, struct ingest_args *a, const struct piece *p,
                        struct json *list, struct totals *sum, struct hcache_err *err)
{
    int32_t *ids = NULL;
    struct hcache_result r = {0};
    int n = 0, rc = encode(h, a, p->text + p->from, p->to - p->from, &ids, &n, err);
    if (rc == 0)
        rc = compute(h, a, p->path, ids, n, &r, err);
    if (rc == 0)
        rc = keep_date(a, p->text + p->from, p->to - p->from, err);
    if (rc != 0) {
        char old[400];
        snprintf(old, sizeof old, "%.399s", err->msg);
        snprintf(err->msg, sizeof err->msg, "%.100s: %s", p->path, old);
    } else {
        add_file(list, p, a->date, n, &r);
        sum->tokens += n;
        sum->cached += r.cached_tokens;
        sum->committed += r.committed_tokens;
        if (!a->json)
            print_file(p, a->date, n, &r);
        if (r.save_stopped != NULL) {
            rc = err->code = HCACHE_E_LIMIT;
            snprintf(err->msg, sizeof err->msg, "%.100s: not completely stored: %s",
                     p->path, r.save_stopped);
        }
    }
    hcache_result_free(&r);
    hcache_free(ids);
    return rc;
}

static int count(struct hcache *h, struct ingest_args *a, const char *text, size_t n,
                 int *out, struct hcache_err *err)
{
    int32_t *ids = NULL;
    int rc = encode(h, a, text, n, &ids, out, err);
    hcache_free(ids);
    return rc;
}

/* Returns the largest number of tokens of one message. Longer documents are split. 0: no limit. */
static int most_tokens(const struct hcache *h, const struct ingest_args *a)
{
    struct hcache_model_info info;
    hcache_model_info(h, &info);
    return a->chat == NULL ? 0 : a->part_tokens > 0 ? a->part_tokens : info.max_context / 2;
}

/* Finds the end of the longest part that begins at p->from and has at most `most` tokens. bytes: an
 * estimate of the part's size. */
static int find_end(struct hcache *h, struct ingest_args *a, struct piece *p, size_t n_text,
                    int most, size_t bytes, struct hcache_err *err)
{
    for (int n = 0;; bytes = bytes * 7 / 8) {
        p->to = text_split_end(p->text, n_text, p->from, bytes > 0 ? bytes : 1);
        int rc = count(h, a, p->text + p->from, p->to - p->from, &n, err);
        if (rc != 0 || n <= most)
            return rc;
        if (bytes <= 8) {
            err->code = HCACHE_E_USAGE;
            snprintf(err->msg, sizeof err->msg,
                     "%.100s: --part-tokens %d leaves no room for a text beside the "
                     "template's words",
                     p->path, most);
            return err->code;
        }
    }
}

/* Splits a text into parts and ingests them one by one. n: tokens of the whole text. */
static int ingest_parts(struct hcache *h, struct ingest_args *a, struct piece *p,
                        size_t n_text, int n, int most, struct json *list,
                        struct totals *sum, struct hcache_err *err)
{
    double bytes_per_token = (double)n_text / n;
    size_t bytes = (size_t)(most * bytes_per_token),
           overlap = (size_t)(a->overlap_tokens * bytes_per_token);
    int rc = 0;
    p->is_part = true;
    for (p->from = 0; rc == 0 && p->from < n_text;) {
        rc = find_end(h, a, p, n_text, most, bytes, err);
        if (rc == 0)
            rc = ingest_piece(h, a, p, list, sum, err);
        p->from = p->to < n_text ? text_split_next(p->text, p->from, p->to, overlap)
                                 : n_text;
    }
    return rc;
}

static int ingest_file(struct hcache *h, struct ingest_args *a, const char *path,
                       struct json *list, struct totals *sum, struct hcache_err *err)
{
    struct err e = {0};
    char *text = NULL;
    size_t n_text = 0;
    int n = 0, most = most_tokens(h, a),
        rc = file_read(path, (size_t)1 << 30, &text, &n_text, &e);
    if (rc != 0) {
        err->code = rc;
        snprintf(err->msg, sizeof err->msg, "%.500s", e.msg);
        return rc;
    }
    struct piece whole = {.path = path, .text = text, .to = n_text};
    if (most > 0)
        rc = count(h, a, text, n_text, &n, err);
    if (rc == 0 && n > most)
        rc = ingest_parts(h, a, &whole, n_text, n, most, list, sum, err);
    else if (rc == 0)
        rc = ingest_piece(h, a, &whole, list, sum, err);
    free(text);
    return rc;
}

static int run(struct ingest_args *a, struct hcache_err *err)
{
    struct hcache *h = NULL;
    struct hcache_opts o = a->engine.o;
    struct hcache_request ahead = {.save = a->save, .plan = a->plan};
    o.ahead = &ahead;
    o.needs_tokenizer = true;
    int rc = hcache_open(&o, &h, err);
    if (rc != 0)
        return rc;
    struct json *out = json_new_object(), *list = json_new_array();
    struct totals sum = {0};
    int n_failed = 0;
    for (int i = 0; i < a->files.n; i++) {
        struct hcache_err why = {0};
        if (ingest_file(h, a, a->files.items[i], list, &sum, &why) == 0)
            continue;
        /* the command continues with the other files */
        fprintf(stderr, "hcache ingest: %s\n", why.msg);
        n_failed++;
    }
    json_extend(out, "{files: %p, tokens: %ld, cached_tokens: %ld, committed_tokens: %ld}",
                list, sum.tokens, sum.cached, sum.committed);
    if (a->json)
        json_print(out, 2);
    else
        json_free(out);
    hcache_close(h);
    if (n_failed > 0) {
        rc = err->code = HCACHE_E_LIMIT;
        snprintf(err->msg, sizeof err->msg, "%d of %d file%s %s not stored as a whole",
                 n_failed, a->files.n, plural((uint64_t)a->files.n),
                 n_failed == 1 ? "is" : "are");
    }
    return rc;
}

int cmd_ingest(int argc, char **argv)
{
    struct ingest_args a;
    struct opt_parsed *parsed;
    struct hcache_err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct err why = {0};
    if (a.chat == NULL && a.part_tokens > 0)
        err_set(&why, ERR_USAGE,
                "--part-tokens needs --chat: a text that is not a message is stored as a "
                "whole");
    else if (engine_args_finish(&a.engine, &why) == 0 && a.engine.o.store_in_memory)
        err_set(&why, ERR_USAGE, "--store memory would be lost at the end: give a folder");
    else if (why.code == 0)
        (void)engine_dates_open(&a.engine, &a.dates, &why);
    if (why.code != 0) {
        code = opt_usage(&cmd, "%s", why.msg);
        engine_args_end(&a.engine);
        opt_end(parsed);
        return code;
    }
    int rc = run(&a, &err);
    if (rc != 0)
        fprintf(stderr, "hcache ingest: %s\n", err.msg);
    dates_close(a.dates);
    engine_args_end(&a.engine);
    opt_end(parsed);
    return rc == 0 ? 0 : rc == HCACHE_E_USAGE ? 2 : 1;
}
