/* carry.c - see carry.h. */
#include "engine/carry.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

bool carry_may(const struct device *d)
{
    return d->unified;
}

bool carry_begin(struct carry *c, const struct model *m, const struct truncation *t)
{
    CHECK(carry_may(m->dev) && t->context > 0 && c->rows == NULL);
    *c = (struct carry){.row_bytes = model_most_kv_bytes(m), .max_rows = t->context};
    c->rows = mem_try((size_t)config_n_keeping(&m->cfg) * (size_t)c->max_rows *
                      c->row_bytes);
    return c->rows != NULL;
}

void carry_end(struct carry *c)
{
    free(c->rows);
    *c = (struct carry){0};
}

static uint8_t *row_of(const struct carry *c, int layer, int position)
{
    return c->rows +
           ((size_t)layer * (size_t)c->max_rows + (size_t)position) * c->row_bytes;
}

int carry_take(struct carry *c, struct stream *s, int layer, int position, struct mat rows)
{
    size_t n_bytes = (size_t)(rows.rows * rows.cols) * dtype_bytes(rows.dtype);
    CHECK(rows.ld == rows.cols && position + rows.rows <= c->max_rows);
    CHECK(n_bytes <= (size_t)rows.rows * c->row_bytes);
    return stream_copy(s, row_of(c, layer, position), rows.data, n_bytes);
}

void carry_move(struct carry *c, const struct truncation *t, int n_layers)
{
    int n_moved = t->context - t->step - t->keep;
    CHECK(c->n == t->context);
    for (int l = 0; l < n_layers; l++)
        memmove(row_of(c, l, t->keep), row_of(c, l, t->keep + t->step),
                (size_t)n_moved * c->row_bytes);
    c->cut += t->step;
    c->n = t->context - t->step;
}

static int fill_block(const struct carry *c, const struct model *m, struct stream *s,
                      struct kv_pool *pool, const struct kv_table *table, int first)
{
    int n = MIN(c->n - first, KV_BLOCK_TOKENS), rc = 0;
    int32_t pos[KV_BLOCK_TOKENS];
    const int32_t seq_row[2] = {0, n};
    const int32_t *const tables[1] = {table->blocks};
    const struct ragged r = {
        .n_rows = n, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    for (int i = 0; i < n; i++)
        pos[i] = first + i;
    for (int l = 0; rc == 0 && l < config_n_keeping(&m->cfg); l++) {
        struct kv_layer kv = kv_pool_layer(pool, l);
        struct mat rows = mat_of(row_of(c, l, first), m->dtype, n,
                                 config_kv_width(&m->cfg, l));
        rc = model_kv_fill(m, s, l, &kv, rows, &r);
    }
    return rc;
}

int carry_fill(const struct carry *c, const struct model *m, struct stream *s,
               struct kv_pool *pool, const struct kv_table *table)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < c->n; i += KV_BLOCK_TOKENS)
        rc = fill_block(c, m, s, pool, table, i);
    return rc == 0 ? stream_sync(s) : rc;
}
