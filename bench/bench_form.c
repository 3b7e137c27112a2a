/* bench_form.c - `hcache bench form`: forms of answers: the time to compile them, and the time of a
 * mask at each token of given answers, with a real vocabulary and without a model. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/option_tables.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "opt/opt.h"
#include "base/rng.h"
#include "base/textbuf.h"
#include "bench/bench.h"
#include "base/json.h"
#include "grammar/automaton.h"
#include "text/tokenizer.h"

struct form_bench_args {
    const char *tokenizer, *file;
    bool json, verdicts, masks;
    int samples;
};

static const struct opt positionals[] = {
    {"MODEL", OPT(struct form_bench_args, tokenizer), .required = true,
     .help = "a folder with a tokenizer, or a GGUF file"},
    {"FILE", OPT(struct form_bench_args, file), .required = true,
     .help =
         "lines {\"schema\": S, \"texts\": [answers]}, or with a \"grammar\" in GBNF; the "
         "answers have the form"},
    {0},
};

static const struct opt options[] = {
    {"verdicts", OPT(struct form_bench_args, verdicts),
     .help =
         "with --json: for each schema which texts have its form, or why it is refused"},
    {"samples", OPT(struct form_bench_args, samples), .arg = "N", .def = "0", .min = 0,
     .max = 1000,
     .help = "with --json: for each schema N texts of its form, of random tokens; null if "
             "it is "
             "refused"},
    {"masks", OPT(struct form_bench_args, masks),
     .help =
         "with --samples: each text as {\"text\", \"ids\", \"masks\"}, with the mask in "
         "front of each token and of the end in hexadecimal, words of 32 tokens"},
    {"json", OPT(struct form_bench_args, json),
     .help = "print one JSON object and nothing else"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench form",
    .summary =
        "Measures forms of answers: the time to compile a JSON schema, and the time of a "
        "mask of the vocabulary at each token of given answers.  Times are of the "
        "processor.",
    .positionals = positionals,
    .options = options,
    .examples = "  hcache bench form ~/.cache/hcache/SmolLM2-135M-Instruct.Q4_1.gguf "
                "schemas.jsonl\n",
    .values_bytes = sizeof(struct form_bench_args),
};
const struct opt_cmd *const options_of_bench_form = &cmd;

struct times {
    double *at;
    size_t n, cap;
};

struct form_bench {
    struct tokenizer *t;
    struct vocab *v;
    uint32_t *mask;
    struct times compile_ms, mask_us;
    int n_schemas, n_refused, n_texts, n_outside;
    struct json *verdicts, *each_ms; /* of each schema; NULL: not wanted */
    struct json *texts;              /* samples; NULL: not wanted */
    int n_samples, n_stuck;
    bool with_masks;
    struct rng rng;
};

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add(struct times *t, double v)
{
    if (t->n == t->cap) {
        t->cap = MAX(t->cap * 2, (size_t)256);
        t->at = xrealloc(t->at, t->cap * sizeof *t->at);
    }
    t->at[t->n++] = v;
}

static int by_size(const void *a, const void *b)
{
    return ORDER(*(const double *)a, *(const double *)b);
}

/* Returns the share-th value of sorted times. */
static double share_of(struct times *t, double share)
{
    if (t->n == 0)
        return 0;
    qsort(t->at, t->n, sizeof *t->at, by_size);
    return t->at[MIN((size_t)((double)t->n * share), t->n - 1)];
}

static double mean_of(const struct times *t)
{
    double sum = 0;
    for (size_t i = 0; i < t->n; i++)
        sum += t->at[i];
    return t->n == 0 ? 0 : sum / (double)t->n;
}

static const char *bytes_of(void *arg, int32_t id, size_t *n, bool *special)
{
    struct form_bench *f = arg;
    *special = tokenizer_is_special(f->t, id);
    return tokenizer_bytes(f->t, id, n);
}

/* Walks an answer and makes the mask in front of each of its tokens. Returns whether it has the
 * form. */
static bool walk_text(struct form_bench *f, struct automaton *a, const char *text, size_t n)
{
    struct walk w = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    bool ok = tokenizer_encode(f->t, text, n, 0, &ids, &n_ids, NULL) == 0;
    f->n_texts++;
    ok = ok && walk_begin(&w, a) == 0;
    for (size_t i = 0; ok && i < n_ids; i++) {
        double t0 = cpu_s();
        ok = walk_mask(&w, f->mask) == 0 && mask_has(f->mask, ids[i]);
        add(&f->mask_us, (cpu_s() - t0) * 1e6);
        if (ok)
            ok = walk_token(&w, ids[i], &ok) == 0 && ok;
    }
    ok = ok && walk_accepts(&w);
    f->n_outside += !ok;
    walk_end(&w);
    free(ids);
    return ok;
}

enum { SAMPLE_BYTES = 4096, SAMPLE_LONG = 150 };

/* Returns an allowed token, or -1 if there is none. Behind SAMPLE_LONG bytes it prefers what ends a
 * value. */
static int32_t sample_token(struct form_bench *f, size_t n)
{
    int32_t n_may = 0, n_ends = 0, end = -1;
    for (int32_t id = 0; id < f->v->n_tokens; id++) {
        const char *at = f->v->bytes[id];
        if (!mask_has(f->mask, id))
            continue;
        n_may++;
        if (f->v->n_bytes[id] == 1 && strchr(n > SAMPLE_LONG ? "}]\"" : "\"", at[0]) &&
            rng_below(&f->rng, (uint64_t)++n_ends) == 0)
            end = id;
    }
    if (end >= 0 && rng_below(&f->rng, n > SAMPLE_LONG ? 2 : 5) == 0)
        return end;
    int32_t left = n_may == 0 ? -1 : (int32_t)rng_below(&f->rng, (uint64_t)n_may), id = -1;
    while (left >= 0)
        left -= mask_has(f->mask, ++id);
    return id;
}

static struct json *hex_of_mask(const struct form_bench *f)
{
    struct textbuf t = {0};
    for (size_t w = 0; w < f->v->n_words; w++)
        textbuf_addf(&t, "%08x", f->mask[w]);
    struct json *s = json_new_bytes(t.p, t.n);
    textbuf_free(&t);
    return s;
}

/* Adds a random text of the form, unless it grows too long. */
static void sample(struct form_bench *f, struct automaton *a, struct json *texts)
{
    char text[SAMPLE_BYTES];
    struct walk w;
    size_t n = 0;
    bool ok = walk_begin(&w, a) == 0;
    struct json *ids = json_new_array(), *masks = json_new_array();
    while (ok) {
        if (f->with_masks && walk_mask(&w, f->mask) == 0)
            json_push(masks, hex_of_mask(f));
        if (walk_accepts(&w) && (walk_is_complete(&w) || rng_below(&f->rng, 3) == 0)) {
            struct json *o = f->with_masks ? json_new_object() : json_new_bytes(text, n);
            json_push(texts, o);
            if (f->with_masks) {
                json_put(o, "text", json_new_bytes(text, n));
                json_put(o, "ids", ids);
                json_put(o, "masks", masks);
                ids = masks = NULL;
            }
            break;
        }
        int32_t id = walk_mask(&w, f->mask) == 0 ? sample_token(f, n) : -1;
        if (id >= 0 && n + f->v->n_bytes[id] > sizeof text)
            break; /* it grows too long */
        ok = id >= 0 && walk_token(&w, id, &ok) == 0 && ok;
        f->n_stuck += !ok;
        if (ok)
            memcpy(text + n, f->v->bytes[id], f->v->n_bytes[id]);
        n += ok ? f->v->n_bytes[id] : 0;
        json_push(ids, json_new_int(id));
    }
    json_free(ids);
    json_free(masks);
    walk_end(&w);
}

static void run_line(struct form_bench *f, const struct json *line)
{
    struct grammar *g;
    size_t n_gbnf = 0;
    const char *gbnf = json_string_of(json_member(line, "grammar"), &n_gbnf);
    struct grammar_source s = {.kind = gbnf == NULL ? GRAMMAR_SCHEMA : GRAMMAR_GBNF,
                               .schema = json_member(line, "schema"),
                               .text = gbnf,
                               .n = n_gbnf};
    const struct json *texts = json_member(line, "texts");
    struct err err = {0};
    double t0 = cpu_s();
    f->n_schemas++;
    int rc = grammar_compile(&g, &s, &err);
    add(&f->compile_ms, (cpu_s() - t0) * 1e3);
    struct json *verdict = f->verdicts != NULL && rc == 0 ? json_new_array() : NULL;
    if (f->verdicts != NULL)
        json_push(f->each_ms, json_new_real(f->compile_ms.at[f->compile_ms.n - 1]));
    if (f->verdicts != NULL)
        json_push(f->verdicts,
                  rc == 0 ? verdict : json_new_bytes(err.msg, strlen(err.msg)));
    struct json *texts_out = f->texts != NULL && rc == 0 ? json_new_array() : NULL;
    if (f->texts != NULL)
        json_push(f->texts, rc == 0 ? texts_out : json_new_raw("null", 4));
    if (rc != 0) {
        f->n_refused++;
        return;
    }
    struct automaton *a = automaton_create(g, f->v);
    for (size_t i = 0; a != NULL && i < json_count(texts); i++) {
        size_t n;
        const char *text = json_string_of(json_at(texts, i), &n);
        bool ok = text != NULL && walk_text(f, a, text, n);
        if (verdict != NULL)
            json_push(verdict, ok ? json_new_raw("true", 4) : json_new_raw("false", 5));
    }
    for (int i = 0; a != NULL && i < f->n_samples; i++)
        sample(f, a, texts_out);
    automaton_destroy(a);
    grammar_free(g);
}

static void print(struct form_bench *f, bool as_json)
{
    struct json *o = json_new_object();
    json_put_int(o, "tokens", f->v->n_tokens);
    json_put_int(o, "schemas", f->n_schemas);
    json_put_int(o, "refused", f->n_refused);
    json_put_int(o, "texts", f->n_texts);
    json_put_int(o, "texts_outside", f->n_outside);
    json_put_int(o, "masks", (int64_t)f->mask_us.n);
    json_put_real(o, "mask_mean_us", mean_of(&f->mask_us));
    json_put_real(o, "mask_p99_us", share_of(&f->mask_us, 0.99));
    json_put_real(o, "mask_max_us", share_of(&f->mask_us, 1));
    json_put_real(o, "compile_median_ms", share_of(&f->compile_ms, 0.5));
    json_put_real(o, "compile_p99_ms", share_of(&f->compile_ms, 0.99));
    json_put_real(o, "compile_max_ms", share_of(&f->compile_ms, 1));
    if (f->verdicts != NULL) {
        json_put(o, "verdicts", f->verdicts);
        json_put(o, "each_ms", f->each_ms);
    }
    if (f->texts != NULL) {
        json_put_int(o, "stuck", f->n_stuck);
        json_put(o, "samples", f->texts);
    }
    bool lists = f->verdicts != NULL || f->texts != NULL;
    char *text = json_text(o, as_json && !lists ? 2 : 0);
    if (as_json)
        printf("%s\n", text);
    for (struct json_iter it = json_begin(o); !as_json && json_next(&it);) {
        double v = 0;
        json_real_of(it.value, &v);
        printf("%-20s %.6g\n", it.key, v);
    }
    free(text);
    json_free(o);
}

static int run(struct form_bench *f, const struct form_bench_args *a, struct err *err)
{
    char *text = NULL;
    size_t n = 0;
    int rc = tokenizer_open(&f->t, a->tokenizer, err);
    if (rc == 0)
        rc = file_read(a->file, (size_t)1 << 30, &text, &n, err);
    if (rc != 0)
        return rc;
    int32_t n_tokens = tokenizer_size(f->t);
    rc = vocab_create(&f->v, n_tokens, bytes_of, f, err);
    if (rc == 0 && a->json && a->verdicts) {
        f->verdicts = json_new_array();
        f->each_ms = json_new_array();
    }
    if (rc == 0 && a->json && a->samples > 0) {
        f->texts = json_new_array();
        f->n_samples = a->samples;
        f->with_masks = a->masks;
        f->rng.s = 1;
    }
    if (rc == 0)
        f->mask = xcalloc(f->v->n_words, sizeof *f->mask);
    int number = 0;
    for (char *at = text; rc == 0 && at < text + n;) {
        char *end = memchr(at, '\n', (size_t)(text + n - at));
        struct json *line;
        size_t len = end == NULL ? (size_t)(text + n - at) : (size_t)(end - at);
        number++;
        if (len > 0) {
            rc = json_parse(&line, at, len, a->file, err);
            if (rc != 0)
                rc = err_wrap(err, "line %d", number);
            else
                run_line(f, line);
            if (rc == 0)
                json_free(line);
        }
        at += len + 1;
    }
    free(text);
    if (rc == 0)
        print(f, a->json);
    return rc;
}

int bench_form(int argc, char **argv)
{
    struct form_bench_args a;
    struct opt_parsed *parsed;
    struct form_bench f = {0};
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    if (run(&f, &a, &err) != 0) {
        fprintf(stderr, "hcache bench form: %s\n", err.msg);
        code = 1;
    }
    free(f.mask);
    free(f.compile_ms.at);
    free(f.mask_us.at);
    vocab_destroy(f.v);
    tokenizer_close(f.t);
    opt_end(parsed);
    return code;
}
