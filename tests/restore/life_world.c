/* life_world.c - see life_world.h. */
#include "tests/restore/life_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/restore/life_device.h"

void life_must(int rc, const struct err *err, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

const struct ragged *world_rows(const struct world *w, struct world_rows *b,
                                const struct kv_table *t, int pos, int n)
{
    *b = (struct world_rows){.seq_row = {0, n}, .tables = {t->blocks}};
    b->r = (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = w->pos + pos,
                           .seq_row = b->seq_row,
                           .tables = b->tables};
    return &b->r;
}

struct tap {
    struct world *w;
    struct text *t;
    int pos;
};

static int take_rows(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    const struct tap *a = arg;
    const struct mat m[STORE_KINDS] = {[STORE_HIDDEN] = hidden, [STORE_KV] = kv_rows};
    for (int k = 0; k < STORE_KINDS; k++) {
        size_t row = (size_t)m[k].cols * dtype_bytes(m[k].dtype);
        memcpy(a->t->rows[l][k] + (size_t)a->pos * row, m[k].data, (size_t)m[k].rows * row);
    }
    return 0;
}

static void compute_text(struct world *w, struct text *t)
{
    struct err err = {0};
    struct world_rows b;
    struct mat x;
    const struct model *m = w->m;
    size_t bytes[STORE_KINDS] = {model_hidden_bytes(m), model_kv_bytes(m, 0)};
    for (int l = 0; l < m->cfg.n_layers; l++) {
        for (int k = 0; k < STORE_KINDS; k++)
            t->rows[l][k] = xmalloc((size_t)t->n * bytes[k]);
        t->want[l] = xmalloc((size_t)t->n * model_kv_bytes(m, 0));
    }
    for (int at = 0, n; at < t->n; at += n) {
        struct tap a = {w, t, at};
        struct model_tap tap = {take_rows, &a};
        n = t->n - at < 512 ? t->n - at : 512;
        life_must(model_forward(m, w->work, w->stream, t->tokens + at,
                                kv_pool_layers(w->pool),
                                world_rows(w, &b, &w->table[0], at, n), &tap, &x),
                  &err, "forward pass");
    }
    for (int l = 0; l < m->cfg.n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(w->pool, l);
        struct mat out = mat_of(t->want[l], m->dtype, t->n, 2 * model_kv_dim(m, 0));
        life_must(m->dev->ops->kv_read(w->stream, out, &kv,
                                       world_rows(w, &b, &w->table[0], 0, t->n)),
                  &err, "reading K and V");
    }
}

void world_make_texts(struct world *w, const int n[N_TEXTS], int n_shared, int n_ids)
{
    for (int i = 0; i < N_TEXTS; i++) {
        struct text *t = &w->text[i];
        struct rng r = {.s = (uint64_t)i + 77};
        t->n = n[i];
        t->tokens = xmalloc((size_t)t->n * sizeof *t->tokens);
        for (int k = 0; k < t->n; k++)
            t->tokens[k] = i == 1 && k < n_shared
                               ? w->text[0].tokens[k]
                               : 3 + (int32_t)rng_below(&r, (uint64_t)n_ids);
        chain_init(&t->chain, &w->fingerprint, NULL);
        chain_extend(&t->chain, t->tokens, t->n);
        compute_text(w, t);
    }
}

void world_open(struct world *w, const char *source, int max_ctx, bool is_split)
{
    struct err err = {0};
    struct model_opts mo = {.dtype = "f32", .max_ctx = max_ctx};
    w->fingerprint = (struct sha256){{9}};
    life_must(device_open("cpu", NULL, NULL, &w->dev, &err), &err, "device");
    w->is_split = is_split;
    if (is_split)
        life_device_split(w->dev);
    mo.dev = w->dev;
    life_must(model_open(source, &mo, &w->m, &err), &err, source);
    life_must(stream_create(w->dev, STREAM_COMPUTE, &w->stream, &err), &err, "stream");
    life_must(model_work_create(w->m, 512, &w->work, &err), &err, "activations");
    struct kv_pool_opts po = {.n_layers = w->m->cfg.n_layers,
                              .n_kv = w->m->cfg.n_kv_heads,
                              .d_head = w->m->cfg.d_head,
                              .dtype = w->m->dtype,
                              .n_blocks = N_SLOTS * BLOCKS};
    life_must(kv_pool_create(w->dev, &po, &w->pool, &err), &err, "blocks");
    for (int i = 0; i < N_SLOTS; i++)
        life_must(kv_table_reserve(w->pool, &w->table[i], BLOCKS * 64, &err), &err,
                  "blocks");
    w->pos = xmalloc(BLOCKS * 64 * sizeof *w->pos);
    for (int i = 0; i < BLOCKS * 64; i++)
        w->pos[i] = i;
    w->got = xmalloc(BLOCKS * 64 * model_kv_bytes(w->m, 0));
    for (int i = 0; i < 2; i++) {
        w->batch[i][STORE_HIDDEN] = xmalloc(MAX_ROWS * model_hidden_bytes(w->m));
        w->batch[i][STORE_KV] = xmalloc(MAX_ROWS * model_kv_bytes(w->m, 0));
    }
}

void world_close(struct world *w)
{
    io_close(w->full);
    for (int i = 0; i < N_TEXTS; i++) {
        struct text *t = &w->text[i];
        for (int l = 0; l < w->m->cfg.n_layers; l++) {
            for (int k = 0; k < STORE_KINDS; k++)
                free(t->rows[l][k]);
            free(t->want[l]);
        }
        chain_deinit(&t->chain);
        free(t->tokens);
    }
    for (int i = 0; i < N_SLOTS; i++)
        kv_table_free(w->pool, &w->table[i]);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < STORE_KINDS; k++)
            free(w->batch[i][k]);
    free(w->pos);
    free(w->got);
    kv_pool_destroy(w->pool);
    model_work_destroy(w->work);
    stream_destroy(w->stream);
    model_close(w->m);
    device_close(w->dev);
}
