/* cmd_ppl.c - `hcache ppl`: computes the perplexity of a text under a model.
 *
 * The text is cut into windows of --context tokens.  Every window is computed alone, and its second
 * half is scored, so that each scored token has at least half a window of context. (This is the
 * usual way for models with a fixed context; figures are comparable only at equal windows.)
 *
 * With --overflow the text is one context that outgrows its window (ppl_overflow.h).
 *
 * The logits of the scored positions can be kept, and later ones compared with them by their
 * divergence, which shows the effect of 8-bit weights long before perplexity does. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cmds.h"
#include "apps/json_print.h"
#include "apps/option_tables.h"
#include "apps/engine_options.h"
#include "apps/ppl_overflow.h"
#include "apps/ppl_reference.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/progress.h"
#include "api/stack.h"
#include "base/json.h"
#include "text/tokenizer.h"

struct ppl_args {
    struct engine_args engine;
    const char *file, *logits_out, *kl_against;
    int context, max_windows;
    const char *overflow;
    double ratio;
    int keep;
    int64_t max_tokens;
    bool json;
};

static const char *const overflows[] = {"decoupled", "recompute", "stale", NULL};

static const struct opt positionals[] = {
    {"MODEL_DIR", OPT(struct ppl_args, engine.o.model), .required = true,
     .help = "a Hugging Face folder, or a GGUF file"},
    {"FILE", OPT(struct ppl_args, file), .required = true, .help = "UTF-8 text"},
    {0},
};

static const struct opt options[] = {
    {"context", OPT(struct ppl_args, context), .arg = "N", .def = "512", .min = 2,
     .max = 1 << 20, .help = "window size in tokens; at most the model's context"},
    {"max-windows", OPT(struct ppl_args, max_windows), .arg = "N", .def = "0", .min = 0,
     .max = 1 << 30, .help = "stop after N windows; 0 is the whole text"},
    {"logits-out", OPT(struct ppl_args, logits_out), .arg = "FILE",
     .help =
         "write the logits of all scored positions to this file (a position takes 4 bytes "
         "times the vocabulary)"},
    {"kl-against", OPT(struct ppl_args, kl_against), .arg = "FILE",
     .help =
         "logits that --logits-out has written: print the mean divergence KL(FILE || this "
         "run)"},
    {"overflow", OPT(struct ppl_args, overflow), .arg = "HOW", .choices = overflows,
     .help =
         "score the text as one context that is truncated when --context tokens are full. "
         "The rest of the state moves to new positions (decoupled), is computed again "
         "(recompute), or keeps its former rotation (stale)"},
    {"ratio", OPT(struct ppl_args, ratio), .arg = "R", .def = "0.5", .lo = 0, .hi = 1,
     .help = "share of the context that one truncation drops"},
    {"keep", OPT(struct ppl_args, keep), .arg = "K", .def = "64", .min = 0, .max = 1 << 20,
     .help = "tokens at the beginning that are never dropped; a multiple of 64"},
    {"max-tokens", OPT(struct ppl_args, max_tokens), .arg = "N", .def = "0", .min = 0,
     .max = 1 << 30, .help = "with --overflow: stop after N tokens; 0 is the whole text"},
    OPT_COMPUTE(struct ppl_args),
    {"json", OPT(struct ppl_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "ppl",
    .summary = "Computes the perplexity of a text, in windows of --context tokens, each "
               "scored on its second half.",
    .positionals = positionals,
    .options = options,
    .examples = "  hcache ppl models/demo text.txt --context 512\n"
                "  hcache ppl models/demo text.txt --logits-out /tmp/bf16\n"
                "  hcache ppl models/demo text.txt --weights q8 --kl-against /tmp/bf16\n"
                "  hcache ppl models/demo text.txt --overflow decoupled --context 256\n",
    .values_bytes = sizeof(struct ppl_args),
};
const struct opt_cmd *const options_of_ppl = &cmd;

/* rows of logits that are computed at a time, because a row is as wide as the vocabulary */
enum { HEAD_ROWS = 32 };

struct scorer {
    struct stack k;
    struct stream *s;
    struct model_work *work;
    struct kv_pool *pool;
    struct kv_table table;
    float *logits; /* [HEAD_ROWS][vocab] */
    int32_t *pos;
    double nll, nll_sq;
    int64_t n_scored;
    uint64_t digest; /* digest of the scored logits */
    struct progress progress;
    /* files of logits, to write and to compare with; file NULL: the option is not set */
    struct ppl_reference kept, against;
    struct err *err;
};

static int scorer_init(struct scorer *c, int context, struct err *err)
{
    const struct model *m = c->k.model;
    int n_layers = m->cfg.n_layers;
    struct kv_pool_opts po = {.n_layers = n_layers,
                              .n_kv = m->cfg.n_kv_heads,
                              .d_head = m->cfg.d_head,
                              .local = m->cfg.windowed,
                              .local_n_kv = m->cfg.local_kv_heads,
                              .local_d_head = m->cfg.local_d_head,
                              .dtype = m->dtype,
                              .recurrent = m->cfg.recurrent,
                              .state_bytes = model_state_bytes(&m->cfg),
                              .n_states = 1,
                              .n_blocks = context / KV_BLOCK_TOKENS + 1};
    int rc = stream_create(c->k.dev, STREAM_COMPUTE, &c->s, err);
    if (rc == 0)
        rc = model_work_create(m, 512, &c->work, err);
    if (rc == 0)
        rc = kv_pool_create(c->k.dev, &po, &c->pool, err);
    if (rc == 0)
        rc = kv_table_reserve(c->pool, &c->table, context, err);
    if (rc != 0)
        return rc;
    c->logits = xcalloc((size_t)m->cfg.vocab_size, HEAD_ROWS * sizeof *c->logits);
    c->pos = xcalloc((size_t)context, sizeof *c->pos);
    for (int i = 0; i < context; i++)
        c->pos[i] = i;
    return 0;
}

static void scorer_deinit(struct scorer *c)
{
    stream_destroy(c->s);
    if (c->pool != NULL)
        kv_table_free(c->pool, &c->table);
    kv_pool_destroy(c->pool);
    model_work_destroy(c->work);
    free(c->logits);
    free(c->pos);
    stack_close(&c->k);
}

/* Returns -log p(id). The sum is computed in double precision. */
static double nll_of(const float *logits, int n, int32_t id)
{
    double max = logits[0], sum = 0;
    for (int i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return log(sum) + max - logits[id];
}

/* Scores one position: from its logits, and the token that came next. */
static int score_row(struct scorer *c, const float *logits, int32_t next)
{
    double nll = nll_of(logits, c->k.model->cfg.vocab_size, next);
    c->nll += nll;
    c->nll_sq += nll * nll;
    c->n_scored++;
    uint64_t link[2] = {
        c->digest, checksum64(logits, (size_t)c->k.model->cfg.vocab_size * sizeof *logits)};
    c->digest = checksum64(link, sizeof link);
    int rc = c->kept.file != NULL ? ppl_reference_put(&c->kept, logits, c->err) : 0;
    if (rc == 0 && c->against.file != NULL)
        rc = ppl_reference_compare(&c->against, logits, c->err);
    return rc;
}

/* Scores the n rows of x. next[i] is the token after row i. */
static int score_rows(struct scorer *c, struct mat x, const int32_t *next, int n)
{
    const struct model *m = c->k.model;
    int vocab = m->cfg.vocab_size, rc = 0;
    for (int done = 0; rc == 0 && done < n; done += HEAD_ROWS) {
        int rows = n - done < HEAD_ROWS ? n - done : HEAD_ROWS;
        struct mat logits = mat_of(c->logits, DTYPE_F32, rows, vocab);
        rc = model_head(m, c->work, c->s, mat_rows(x, done, rows), logits);
        if (rc == 0)
            rc = stream_sync(c->s);
        if (rc != 0)
            return err_set(c->err, rc, "forward pass: %s", err_name(rc));
        for (int i = 0; rc == 0 && i < rows; i++)
            rc = score_row(c, c->logits + (size_t)i * (size_t)vocab, next[done + i]);
    }
    return rc;
}

/* Computes one whole window, and scores its second half. */
static int score_window(struct scorer *c, const int32_t *ids, int n)
{
    int max_rows = model_work_rows(c->work), rc = 0;
    for (int row = 0; rc == 0 && row < n; row += max_rows) {
        int rows = n - row < max_rows ? n - row : max_rows;
        int32_t seq_row[2] = {0, rows};
        const int32_t *tables[1] = {c->table.blocks};
        struct ragged r = {.n_rows = rows,
                           .n_seqs = 1,
                           .pos = c->pos + row,
                           .seq_row = seq_row,
                           .tables = tables};
        struct mat x;
        rc = model_forward(c->k.model, c->work, c->s, ids + row, kv_pool_layers(c->pool),
                           &r, NULL, &x);
        if (rc != 0)
            return err_set(c->err, rc, "forward pass: %s", err_name(rc));
        /* counted from the beginning of this piece */
        int first = n / 2 > row ? n / 2 - row : 0;
        /* The last id of the window is not followed by an id to predict. */
        int last = row + rows < n ? rows : rows - 1;
        if (first < last)
            rc = score_rows(c, mat_rows(x, first, last - first), ids + row + first + 1,
                            last - first);
    }
    return rc;
}

static int read_ids(const struct ppl_args *a, int32_t **ids, size_t *n, struct err *err)
{
    struct tokenizer *t = NULL;
    char *text = NULL;
    size_t n_text = 0;
    int rc = tokenizer_open(&t, a->engine.o.model, err);
    if (rc == 0)
        rc = file_read(a->file, (size_t)1 << 32, &text, &n_text, err);
    if (rc == 0 &&
        (rc = tokenizer_encode(t, text, n_text, TOKENIZER_ADD_SPECIAL, ids, n, err)) != 0)
        err_wrap(err, "%s", a->file);
    free(text);
    tokenizer_close(t);
    return rc;
}

static int open_references(struct scorer *c, const struct ppl_args *a, const int32_t *ids,
                           int n_windows)
{
    int vocab = c->k.model->cfg.vocab_size, rc = 0;
    if (a->logits_out != NULL)
        rc = ppl_reference_create(&c->kept, a->logits_out, vocab, a->context, n_windows,
                                  ids, c->err);
    if (rc == 0 && a->kl_against != NULL)
        rc = ppl_reference_open(&c->against, a->kl_against, vocab, a->context, n_windows,
                                ids, c->err);
    return rc;
}

static int score_text(struct scorer *c, const struct ppl_args *a, const int32_t *ids,
                      size_t n, struct err *err)
{
    size_t window = (size_t)a->context, n_windows = n / window;
    if (n_windows == 0)
        return err_set(err, ERR_USAGE, "%s has %zu tokens, less than one window of %d",
                       a->file, n, a->context);
    if (a->max_windows > 0 && n_windows > (size_t)a->max_windows)
        n_windows = (size_t)a->max_windows;
    struct progress p;
    int rc = open_references(c, a, ids, (int)n_windows);
    progress_begin(&p, "perplexity", PROGRESS_ITEMS, n_windows);
    for (size_t i = 0; rc == 0 && i < n_windows; i++) {
        rc = score_window(c, ids + i * window, (int)window);
        progress_at(&p, i + 1);
    }
    progress_end(&p);
    return rc;
}

/* --- a context that overflows ----------------------------------------------------------------- */

static int score_overflow(void *arg, struct mat x, const int32_t *next, int n)
{
    return score_rows(arg, x, next, n);
}

static void overflow_progress(void *arg, int64_t n)
{
    struct scorer *c = arg;
    progress_at(&c->progress, (uint64_t)n);
}

static enum ppl_overflow_how overflow_of(const char *name)
{
    int i = 0;
    while (strcmp(overflows[i], name) != 0)
        i++;
    return (enum ppl_overflow_how)i;
}

/* Checks everything about overflow that can be checked before the text is computed. */
static int overflow_begin(const struct scorer *c, const struct ppl_args *a, size_t n,
                          struct truncation *t, struct err *err)
{
    struct truncation_ask ask = {a->context, a->ratio, a->keep};
    int rc = ppl_overflow_check(c->k.model, err);
    if (rc == 0)
        rc = truncation_make(&ask, true, t, err);
    if (rc == 0 && (a->logits_out != NULL || a->kl_against != NULL))
        rc = err_set(err, ERR_USAGE, "--overflow can neither keep nor compare logits");
    if (rc == 0 && n < (size_t)t->context + 2)
        rc = err_set(err, ERR_USAGE,
                     "%s has %zu tokens; with a context of %d at least %d are needed",
                     a->file, n, t->context, t->context + 2);
    return rc;
}

static void report_overflow(const struct scorer *c, const struct ppl_args *a,
                            const struct truncation *t, size_t n, int n_steps)
{
    double mean = c->nll / (double)c->n_scored;
    if (!a->json) {
        printf(
            "perplexity %.4f, %s (%lld of %zu tokens scored, %d truncations: context %d, "
            "step %d, keep %d)\n",
            exp(mean), a->overflow, (long long)c->n_scored, n, n_steps, t->context, t->step,
            t->keep);
        return;
    }
    char digest[17];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)c->digest);
    struct json *o = json_make(
        "{overflow: %s, context: %d, step: %d, keep: %d, tokens: %lu, "
        "scored: %ld, steps: %d, nll: %g, ppl: %g, logits_digest: %s}",
        a->overflow, t->context, t->step, t->keep, n, c->n_scored, n_steps, mean, exp(mean),
        digest);
    json_print(o, 2);
}

static int run_overflow(struct scorer *c, const struct ppl_args *a, const int32_t *ids,
                        size_t n, struct err *err)
{
    struct truncation t;
    int n_steps = 0;
    if (a->max_tokens > 0 && n > (size_t)a->max_tokens)
        n = (size_t)a->max_tokens;
    int rc = overflow_begin(c, a, n, &t, err);
    if (rc == 0)
        rc = scorer_init(c, t.context, err);
    if (rc != 0)
        return rc;
    struct ppl_overflow o = {.model = c->k.model,
                             .work = c->work,
                             .stream = c->s,
                             .pool = c->pool,
                             .table = &c->table,
                             .truncation = t,
                             .how = overflow_of(a->overflow),
                             .score = score_overflow,
                             .progress = overflow_progress,
                             .arg = c};
    progress_begin(&c->progress, "perplexity", PROGRESS_ITEMS, n);
    rc = ppl_overflow_run(&o, ids, (int64_t)n, &n_steps, err);
    progress_end(&c->progress);
    if (rc == 0)
        report_overflow(c, a, &t, n, n_steps);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

struct divergence {
    double mean, error, same_top;
};

static struct divergence divergence_of(const struct ppl_reference *r)
{
    double n = (double)r->n, mean = r->kl / n, var = r->kl_sq / n - mean * mean;
    return (struct divergence){mean, sqrt(var > 0 ? var / n : 0),
                               (double)r->n_same_top / n};
}

static void report(const struct scorer *c, const struct ppl_args *a)
{
    double n = (double)c->n_scored, mean = c->nll / n;
    double error = sqrt((c->nll_sq / n - mean * mean) / n);
    struct divergence kl = divergence_of(&c->against);
    if (!a->json) {
        printf("perplexity %.4f +- %.4f (%lld tokens scored, windows of %d, weights %s, "
               "state %s)\n",
               exp(mean), exp(mean) * error, (long long)c->n_scored, a->context,
               dtype_name(c->k.model->w.dtype), dtype_name(c->k.model->dtype));
        if (a->kl_against != NULL)
            printf("KL divergence %.3g +- %.2g nats per token, the same best token at %.2f "
                   "%%\n",
                   kl.mean, kl.error, kl.same_top * 100);
        return;
    }
    struct json *o = json_make("{perplexity: %g, standard_error: %g, mean_nll: %g, "
                               "tokens_scored: %ld, context: %d}",
                               exp(mean), exp(mean) * error, mean, c->n_scored, a->context);
    if (a->kl_against != NULL) {
        json_extend(o, "{kl_divergence: %g, kl_standard_error: %g, same_top: %g}", kl.mean,
                    kl.error, kl.same_top);
    }
    json_print(o, 2);
}

static int run(struct ppl_args *a, struct err *err)
{
    struct scorer c = {.err = err};
    int32_t *ids = NULL;
    size_t n = 0;
    struct stack_opts so = {.user = a->engine.o};
    so.user.no_reuse = true;
    int rc = stack_open(&so, &c.k, err);
    rc = rc == 0 ? model_check_text(c.k.model, err) : rc;
    if (rc == 0 && a->context > c.k.model->max_ctx)
        rc = err_set(err, ERR_USAGE, "--context %d: the model's context is %d", a->context,
                     c.k.model->max_ctx);
    if (rc == 0)
        rc = read_ids(a, &ids, &n, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (ids[i] < 0 || ids[i] >= c.k.model->cfg.vocab_size)
            rc = err_set(err, ERR_MISMATCH,
                         "the tokenizer gives id %d; the vocabulary has %d", ids[i],
                         c.k.model->cfg.vocab_size);
    }
    if (rc == 0 && a->overflow != NULL)
        rc = run_overflow(&c, a, ids, n, err);
    else if (rc == 0 && (rc = scorer_init(&c, a->context, err)) == 0)
        rc = score_text(&c, a, ids, n, err);
    int wrote = ppl_reference_close(&c.kept, rc == 0 ? err : NULL);
    rc = rc == 0 ? wrote : rc;
    if (rc == 0 && a->overflow == NULL)
        report(&c, a);
    free(ids);
    ppl_reference_close(&c.against, NULL);
    scorer_deinit(&c);
    return rc;
}

int cmd_ppl(int argc, char **argv)
{
    struct ppl_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = run(&a, &err);
    if (rc != 0)
        fprintf(stderr, "hcache ppl: %s\n", err.msg);
    opt_end(parsed);
    return rc == 0 ? 0 : rc == ERR_USAGE ? 2 : 1;
}
