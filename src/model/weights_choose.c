/* weights_choose.c - see weights_choose.h. */
#include "model/weights_choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "model/weights_use.h"
#include "model/work.h"

enum { MAX_PROBE = 128 };

/* Prose, a chat, code and another language: typical uses of a model. */
static const char probe_text[] =
    "The lighthouse keeper climbed the stairs every evening, lit the lamp, and wrote the "
    "weather into a book that nobody read. In 1897, after a storm of three days, a "
    "ship's boat was found on the rocks with twelve letters in it.\n\nUser: What is the "
    "boiling point of water at sea level?\nAssistant: Water boils at 100 degrees Celsius "
    "(212 degrees Fahrenheit) at sea level.\n\nint sum(const int *a, int n)\n{\n    int "
    "s = 0;\n    for (int i = 0; i < n; i++)\n        s += a[i];\n    return s;\n}\n\nLa "
    "casa es grande y tiene tres ventanas.";

const char *weights_held_name(enum weights_held h)
{
    static const char *const names[] = {[WEIGHTS_AS_STORED] = "checkpoint",
                                        [WEIGHTS_F32] = "f32",
                                        [WEIGHTS_BF16] = "bf16",
                                        [WEIGHTS_Q8] = "q8",
                                        [WEIGHTS_Q4] = "q4",
                                        [WEIGHTS_BF16R] = "bf16r"};
    return names[h];
}

double weights_max_kl(enum weights_held h)
{
    return h == WEIGHTS_Q4 ? WEIGHTS_MAX_KL_Q4 : WEIGHTS_MAX_KL;
}

/* A model whose layers are loaded one at a time, when they are needed. */
struct probe {
    struct model m;
    struct layer_source source;
    struct weights layer; /* the layer in memory */
    struct weights_opts opts;
    struct err *err;
};

static int load_layer(void *arg, int l, struct stream *s, const struct layer_weights **out)
{
    struct probe *p = arg;
    struct weights_opts o = p->opts;
    (void)s;
    o.part = WEIGHTS_OF_LAYER;
    o.layer = l;
    int rc = weights_load(&p->layer, p->m.source, &p->m.cfg, &o, p->err);
    if (rc == 0)
        *out = &p->layer.layers[l];
    return rc;
}

static void unload_layer(void *arg, int l, struct stream *s)
{
    struct probe *p = arg;
    (void)l;
    stream_sync(s);
    weights_unload(&p->layer, p->m.dev);
}

/* --- the probe's text --------------------------------------------------------------------- */

/* Returns ids of the probe text; without a tokenizer, ids spread over the vocabulary. */
static int probe_ids(const struct model *m, int32_t ids[MAX_PROBE])
{
    int most = MIN(m->cfg.max_ctx, MAX_PROBE), n = 0;
    if (m->probe_ids != NULL)
        n = m->probe_ids(m->source, probe_text, sizeof probe_text - 1, ids, most);
    int n_ids = n > 0 ? n : most;
    for (int i = 0; i < n_ids; i++)
        ids[i] = (n > 0 ? ids[i] : i * 7919 + 13) % m->cfg.vocab_size;
    return n_ids;
}

/* --- one run of the model ----------------------------------------------------------------- */

struct run {
    const struct model *m; /* the caller's model */
    struct device *dev;
    struct stream *s;
    int n;
    int32_t ids[MAX_PROBE];
};

/* Runs a forward pass over the probe's text. All layers may share the same block memory, because
 * attention sees only the layer's own rows, and states begin with the first one. */
static int forward(const struct run *r, struct probe *p, struct model_work *work,
                   uint8_t *block_mem, size_t each, float *logits)
{
    const struct model *m = &p->m;
    int32_t pos[MAX_PROBE], blocks[2] = {0, 1}, seq_row[2] = {0, r->n};
    const int32_t *tables[1] = {blocks};
    for (int i = 0; i < r->n; i++)
        pos[i] = i;
    struct ragged rows = {
        .n_rows = r->n, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    struct kv_layer *kv = xcalloc((size_t)m->cfg.n_layers, sizeof *kv);
    for (int l = 0; l < m->cfg.n_layers; l++)
        kv[l] = model_cache(m, l,
                            block_mem + (m->cfg.n_reading > 0 ? (size_t)l * each : 0));
    struct mat x;
    int rc = model_forward(m, work, r->s, r->ids, kv, &rows, NULL, &x);
    if (rc == 0)
        rc = model_head(m, work, r->s, x,
                        mat_of(logits, DTYPE_F32, r->n, m->cfg.vocab_size));
    if (rc == 0)
        rc = stream_sync(r->s);
    free(kv);
    return rc;
}

/* Computes logits [n][vocab] of the probe text with matrices held as `held`. */
static int run(const struct run *r, enum weights_held held, float *logits, struct err *err)
{
    struct probe p = {
        .m = {.cfg = r->m->cfg,
              .dev = r->dev,
              /* rounding of a smaller type would hide the effect of the weights */
              .dtype = DTYPE_F32,
              .source = r->m->source,
              .max_ctx = MAX_PROBE},
        .opts = {.dev = r->dev, .s = r->s, .held = held},
        .err = err};
    struct model_work *work = NULL;
    struct weights_opts outside = p.opts;
    outside.part = WEIGHTS_OUTSIDE;
    outside.synth_dtype = p.opts.synth_dtype = r->m->dtype;
    p.source = (struct layer_source){
        .acquire = load_layer, .release = unload_layer, .arg = &p};
    size_t block = 2 * KV_BLOCK_TOKENS * model_most_kv_bytes(&p.m);
    size_t each = MAX(block, model_state_bytes(&p.m.cfg));
    int n_kept = p.m.cfg.n_reading > 0 ? p.m.cfg.n_layers : 1; /* later layers read them */
    struct buf kv = {0};
    int rc = weights_load(&p.m.w, p.m.source, &p.m.cfg, &outside, err);
    p.m.w.source = &p.source;
    if (rc == 0)
        rc = model_make_rope(&p.m, r->s, err);
    if (rc == 0)
        rc = model_work_create(&p.m, r->n, &work, err);
    if (rc == 0)
        rc = stage_alloc(r->dev, 0, (size_t)n_kept * each, &kv, err);
    if (rc == 0 && (rc = forward(r, &p, work, kv.ptr, each, logits)) != 0 &&
        err->code != rc)
        err_set(err, rc, "the forward pass failed: %s", err_name(rc));
    buf_free(r->dev, &kv);
    model_work_destroy(work);
    stages_free(r->dev, p.m.rope_mem);
    free(p.m.rope_blocks);
    weights_unload(&p.m.w, r->dev);
    return rc;
}

/* --- comparing ---------------------------------------------------------------------------- */

static double log_sum(const float *x, int n)
{
    double most = (double)x[0], sum = 0;
    for (int i = 1; i < n; i++)
        most = fmax(most, (double)x[i]);
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - most);
    return most + log(sum);
}

/* Returns the mean of KL(a || b) over n rows; NaN if a row contains a NaN. */
static double divergence(const float *a, const float *b, int n, int vocab)
{
    double kl = 0;
    for (int r = 0; r < n; r++, a += vocab, b += vocab) {
        double za = log_sum(a, vocab), zb = log_sum(b, vocab);
        for (int i = 0; i < vocab; i++) {
            double lp = (double)a[i] - za;
            kl += exp(lp) * (lp - ((double)b[i] - zb));
        }
    }
    return kl / n;
}

/* Returns the perplexity of the text: every token but the first, given the logits before it. */
static double perplexity(const struct run *r, const float *logits)
{
    double nll = 0;
    int vocab = r->m->cfg.vocab_size;
    for (int i = 0; i + 1 < r->n; i++) {
        const float *row = logits + (size_t)i * (size_t)vocab;
        nll += log_sum(row, vocab) - (double)row[r->ids[i + 1]];
    }
    return r->n > 1 ? exp(nll / (r->n - 1)) : 1;
}

/* State of a comparison: the text, a device, and the logits with f32 matrices. */
struct bench {
    struct run r;
    float *exact, *other; /* [n][vocab] */
};

static int bench_open(struct bench *b, const struct model *m, struct weights_choice *out,
                      struct err *err)
{
    *b = (struct bench){.r.m = m};
    *out = (struct weights_choice){.held = WEIGHTS_F32};
    b->r.n = probe_ids(m, b->r.ids);
    size_t floats = (size_t)b->r.n * (size_t)m->cfg.vocab_size;
    b->exact = xmalloc(floats * sizeof *b->exact);
    b->other = xmalloc(floats * sizeof *b->other);
    int rc = device_open("cpu", NULL, m->dev->pool, &b->r.dev, err);
    if (rc == 0)
        rc = stream_create(b->r.dev, STREAM_COMPUTE, &b->r.s, err);
    if (rc == 0)
        rc = run(&b->r, WEIGHTS_F32, b->exact, err);
    if (rc == 0)
        out->perplexity = perplexity(&b->r, b->exact);
    return rc;
}

static void bench_close(struct bench *b)
{
    stream_destroy(b->r.s);
    device_close(b->r.dev);
    free(b->exact);
    free(b->other);
}

/* Measures a format and adds it to c->tried. Skips a format that cannot hold the numbers (q8:
 * infinities). */
static int try_format(struct bench *b, enum weights_held held, struct weights_choice *c,
                      struct err *err)
{
    int rc = run(&b->r, held, b->other, err);
    if (rc == ERR_UNSUPPORTED)
        return 0;
    if (rc != 0)
        return rc;
    c->tried[c->n_tried].held = held;
    c->tried[c->n_tried].perplexity = perplexity(&b->r, b->other);
    c->tried[c->n_tried++].kl = divergence(b->exact, b->other, b->r.n,
                                           b->r.m->cfg.vocab_size);
    if (c->tried[c->n_tried - 1].kl <= weights_max_kl(held) && c->held == WEIGHTS_F32)
        c->held = held;
    return 0;
}

/* Closes b. Returns rc, with the message in *err. */
static int close_with(struct bench *b, int rc, const struct err *why, const char *doing,
                      struct err *err)
{
    bench_close(b);
    if (rc == 0)
        return 0;
    if (err != NULL)
        *err = *why;
    return err_wrap(err, "%s", doing), rc;
}

int weights_choose(const struct model *m, enum weights_smallest smallest,
                   struct weights_choice *out, struct err *err)
{
    static const enum weights_held from_the_smallest[] = {WEIGHTS_Q4, WEIGHTS_Q8,
                                                          WEIGHTS_BF16};
    struct err local = {0};
    struct bench b;
    int rc = bench_open(&b, m, out, &local);
    for (int i = WEIGHTS_DOWN_TO_Q4 - smallest; i < 3 && out->held == WEIGHTS_F32; i++)
        if (rc == 0)
            rc = try_format(&b, from_the_smallest[i], out, &local);
    return close_with(&b, rc, &local, "choosing how weights are held", err);
}

int weights_compare(const struct model *m, enum weights_held held,
                    struct weights_choice *out, struct err *err)
{
    struct err local = {0};
    struct bench b;
    int rc = bench_open(&b, m, out, &local);
    if (rc == 0)
        rc = try_format(&b, held, out, &local);
    out->held = held;
    return close_with(&b, rc, &local, "comparing how weights are held", err);
}
