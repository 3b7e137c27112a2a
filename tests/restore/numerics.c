/* numerics.c - see numerics.h. */
#include "tests/restore/numerics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "model/model.h"
#include "tensor/readback.h"

enum { N_PREFILL = 150, N_DECODE = 3, MAX_ROWS = 160, N_BLOCKS = 4 };

/* --- one model -------------------------------------------------------------------------------- */

struct place {
    struct pool *pool;
    struct device *dev;
    struct model *m;
    struct model_work *w;
    struct stream *s;
    struct buf kv, logits;
    struct kv_layer *layers;
    struct readback rb;
    struct sha256_ctx *h, *of_logits;
};

static void must(int rc, const struct err *err)
{
    if (rc != 0)
        fail_msg("%s: %s", err_name(rc), err->msg);
}

static void place_open(struct place *p, const char *device, const struct device_opts *d,
                       const struct numerics_run *run)
{
    struct err err = {0};
    *p = (struct place){0};
    must(pool_create(2, &p->pool, &err), &err);
    must(device_open(device, d, p->pool, &p->dev, &err), &err);
    must(stream_create(p->dev, STREAM_COMPUTE, &p->s, &err), &err);
    struct model_opts o = {.dev = p->dev,
                           .dtype = run->dtype,
                           .weights = run->weights,
                           .max_ctx = run->max_context};
    must(model_open(run->model, &o, &p->m, &err), &err);
    must(model_work_create(p->m, MAX_ROWS, &p->w, &err), &err);
    const struct model_config *c = &p->m->cfg;
    size_t block = kv_block_bytes(c->n_kv_heads, c->d_head, p->m->dtype);
    size_t logits = (size_t)MAX_ROWS * (size_t)c->vocab_size * sizeof(float);
    size_t row = model_kv_bytes(p->m, 0) + model_hidden_bytes(p->m);
    must(
        buf_alloc(p->dev, MEM_DEVICE, (size_t)c->n_layers * N_BLOCKS * block, &p->kv, &err),
        &err);
    must(buf_alloc(p->dev, MEM_DEVICE, logits, &p->logits, &err), &err);
    must(readback_init(p->dev, logits + MAX_ROWS * row, &p->rb, &err), &err);
    p->layers = xcalloc((size_t)c->n_layers, sizeof *p->layers);
    for (int l = 0; l < c->n_layers; l++)
        p->layers[l] = (struct kv_layer){.blocks = (uint8_t *)p->kv.ptr +
                                                   (size_t)l * N_BLOCKS * block,
                                         .block_stride = block,
                                         .dtype = p->m->dtype,
                                         .n_kv = c->n_kv_heads,
                                         .d_head = c->d_head};
}

static void place_close(struct place *p)
{
    readback_deinit(&p->rb);
    free(p->layers);
    buf_free(p->dev, &p->logits);
    buf_free(p->dev, &p->kv);
    model_work_destroy(p->w);
    model_close(p->m);
    stream_destroy(p->s);
    device_close(p->dev);
    pool_destroy(p->pool);
}

/* --- one run ---------------------------------------------------------------------------------- */

static void add_mat(struct place *p, struct sha256_ctx *h, const char *tag, struct mat a)
{
    const void *bytes;
    size_t n = (size_t)(a.rows * a.cols) * dtype_bytes(a.dtype);
    assert_true(a.ld == a.cols);
    assert_int_equal(readback_start(&p->rb, p->s, a.data, n, &bytes), 0);
    assert_int_equal(stream_sync(p->s), 0);
    sha256_field(h, tag, bytes, n);
}

static int tap_layer(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct place *p = arg;
    (void)l;
    add_mat(p, p->h, "hidden", hidden);
    add_mat(p, p->h, "kv", kv_rows);
    return 0;
}

/* Feeds positions [first, first + n) in one batch.  Positions before them use block 0 and block 1
 * alternately, except for the last two blocks. */
static void feed(struct place *p, int first, int n)
{
    int32_t ids[MAX_ROWS], pos[MAX_ROWS], seq_row[2] = {0, n};
    int n_blocks = (first + n + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    int32_t *table = xcalloc((size_t)n_blocks + 1, sizeof *table);
    const int32_t *tables[1] = {table};
    struct model_tap tap = {tap_layer, p};
    struct mat x;
    for (int b = 0; b < n_blocks; b++)
        table[b] = b < first / KV_BLOCK_TOKENS ? b % 2 : b % 2 + 2;
    if (first < N_BLOCKS * KV_BLOCK_TOKENS && first < N_PREFILL + N_DECODE)
        for (int b = 0; b < n_blocks; b++)
            table[b] = b;
    for (int i = 0; i < n; i++) {
        pos[i] = first + i;
        ids[i] = (int32_t)(((int64_t)(first + i) * 7919 + 13) % p->m->cfg.vocab_size);
    }
    struct ragged r = {
        .n_rows = n, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    struct mat logits = mat_of(p->logits.ptr, DTYPE_F32, n, p->m->cfg.vocab_size);
    assert_int_equal(model_forward(p->m, p->w, p->s, ids, p->layers, &r, &tap, &x), 0);
    add_mat(p, p->h, "last", x);
    assert_int_equal(model_head(p->m, p->w, p->s, x, logits), 0);
    add_mat(p, p->of_logits, "logits", logits);
    free(table);
}

static void begin(struct place *p)
{
    p->h = sha256_begin();
}

static void end(struct sha256_ctx *h, const struct numerics_run *run, const char *part,
                FILE *f)
{
    char hex[65];
    struct sha256 d = sha256_end(h);
    const char *name = strrchr(run->model, '/');
    sha256_hex(&d, hex);
    fprintf(f, "%s %s %s %s %.16s\n", name != NULL ? name + 1 : run->model, run->dtype,
            run->weights, part, hex);
}

static void add_run(const char *device, const struct device_opts *o,
                    const struct numerics_run *run, FILE *f)
{
    struct place p;
    place_open(&p, device, o, run);
    p.of_logits = sha256_begin();
    begin(&p);
    feed(&p, 0, 100);
    feed(&p, 100, N_PREFILL - 100);
    end(p.h, run, "prefill", f);
    begin(&p);
    for (int i = 0; i < N_DECODE; i++)
        feed(&p, N_PREFILL + i, 1);
    end(p.h, run, "decode", f);
    /* The last block of the context; all blocks before it alternate between the prefill's first
     * two. */
    int last = (p.m->max_ctx - 1) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    assert_true(last >= N_PREFILL + N_DECODE);
    begin(&p);
    feed(&p, last, p.m->max_ctx - last);
    end(p.h, run, "end", f);
    end(p.of_logits, run, "logits", f);
    place_close(&p);
}

/* --- tables ----------------------------------------------------------------------------------- */

static void add_versions(const char *device, const struct device_opts *o, FILE *f)
{
    struct device *dev;
    struct err err = {0};
    must(device_open(device, o, NULL, &dev, &err), &err);
    fprintf(f, "versions: backend %d, model %d, q4 %d\n", dev->numerics_version,
            MODEL_NUMERICS_VERSION, Q4_NUMERICS_VERSION);
    device_close(dev);
}

char *numerics_table(const char *device, const struct device_opts *o,
                     const struct numerics_run *runs)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    add_versions(device, o, f);
    for (; runs->model != NULL; runs++)
        add_run(device, o, runs, f);
    fclose(f);
    return text;
}

/* Returns where the line of the same run begins in a table, or NULL. */
static const char *find_run(const char *table, const char *line, size_t n_name)
{
    for (const char *p = table; *p != 0;) {
        if (strncmp(p, line, n_name) == 0)
            return p;
        const char *next = strchr(p, '\n');
        p = next != NULL ? next + 1 : p + strlen(p);
    }
    return NULL;
}

char *numerics_compare(const char *golden, const char *now, const char *version)
{
    size_t head = strcspn(golden, "\n");
    bool same_versions = strncmp(golden, now, head + 1) == 0;
    const char *logits = NULL; /* the first line of logits that changed */
    int n_logits = 0;
    if (strcmp(golden, now) == 0)
        return NULL;
    if (!same_versions)
        return xasprintf(
            "the versions are new (%.*s was committed): write the golden digests "
            "anew with HCACHE_WRITE_GOLDEN=1",
            (int)head, golden);
    for (const char *line = golden + head + 1; *line != 0;) {
        size_t n = strcspn(line, "\n"), name = n;
        while (name > 0 && line[name - 1] != ' ')
            name--;
        const char *other = find_run(now, line, name);
        if (other == NULL)
            return xasprintf("a golden run is missing: %.*s", (int)name, line);
        bool changed = strncmp(other, line, n + 1) != 0;
        if (changed && name > 8 && strncmp(line + name - 8, " logits ", 8) == 0) {
            logits = logits != NULL ? logits : line;
            n_logits = logits == line ? (int)name - 8 : n_logits;
        } else if (changed)
            return xasprintf(
                "the bits of \"%.*s\" changed under an unchanged version: state "
                "that was saved before would be used although it differs. If "
                "the change is meant, raise %s (or MODEL_NUMERICS_VERSION "
                "where every backend changed, Q4_NUMERICS_VERSION where only "
                "weights in blocks did), then write the golden digests "
                "anew with HCACHE_WRITE_GOLDEN=1",
                (int)name - 1, line, version);
        line += n + (line[n] == '\n');
    }
    if (logits != NULL)
        return xasprintf(
            "the logits of \"%.*s\" changed, and no state did: if the change is "
            "meant, write the golden digests anew with HCACHE_WRITE_GOLDEN=1",
            n_logits, logits);
    return xasprintf("there are new runs: add them to the golden digests with "
                     "HCACHE_WRITE_GOLDEN=1");
}

void numerics_check(const char *name, const char *now, const char *version)
{
    char *path = xasprintf("tests/restore/golden/numerics-%s.txt", name), *golden = NULL;
    size_t n = 0;
    struct err err = {0};
    bool write = getenv("HCACHE_WRITE_GOLDEN") != NULL;
    if (file_read(path, 1 << 20, &golden, &n, &err) != 0)
        golden = xstrdup("versions: none\n");
    char *wrong = numerics_compare(golden, now, version);
    if (wrong != NULL && write && strstr(wrong, "unchanged version") == NULL) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(now, f);
        assert_int_equal(fclose(f), 0);
        free(wrong);
        wrong = NULL;
    }
    if (wrong != NULL)
        fail_msg("%s: %s", path, wrong);
    free(wrong);
    free(golden);
    free(path);
}
