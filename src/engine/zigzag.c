/* zigzag.c - see zigzag.h. */
#include "engine/zigzag.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/step.h"

/* Returns the number of buffers. On a device with memory of its own a tap's copy of a layer's
 * input may run beside the next layer, so there are as many buffers as in model_forward. */
static int n_buffers(const struct model *m)
{
    return m->dev->unified ? 2 : 3;
}

static size_t buffer_bytes(const struct model *m, int max_rows)
{
    return (size_t)round_up((uint64_t)max_rows * model_hidden_bytes(m), 64);
}

size_t zigzag_bytes(const struct zigzag_opts *o)
{
    bool is_on = o->max_rows > o->piece_rows || o->by_sequence;
    return is_on ? (size_t)n_buffers(o->model) * buffer_bytes(o->model, o->max_rows) : 0;
}

int zigzag_init(struct zigzag *z, const struct zigzag_opts *o, struct err *err)
{
    const struct model *m = o->model;
    int max_rows = o->max_rows;
    size_t bytes = zigzag_bytes(o);
    *z = (struct zigzag){.model = m};
    if (bytes == 0)
        return 0;
    int rc = stages_alloc(m->dev, bytes, z->mem, err);
    if (rc != 0)
        return err_wrap(err, "rows between two layers, %d of them", max_rows);
    z->max_rows = max_rows;
    z->piece_rows = o->piece_rows;
    z->x.n = n_buffers(m);
    for (int k = 0; k < m->dev->n_stages; k++)
        for (int i = 0; i < z->x.n; i++)
            z->x.x[k][i] = mat_of((uint8_t *)z->mem[k].ptr +
                                      (size_t)i * buffer_bytes(m, max_rows),
                                  m->dtype, max_rows, m->cfg.n_embd);
    z->cap_pieces = (max_rows + o->piece_rows - 1) / o->piece_rows +
                    (o->by_sequence ? o->max_seqs : 0);
    z->pieces = xcalloc((size_t)z->cap_pieces, sizeof *z->pieces);
    for (int i = 0; i < z->cap_pieces; i++)
        flight_init(&z->pieces[i], o->max_seqs);
    return 0;
}

void zigzag_deinit(struct zigzag *z)
{
    for (int i = 0; i < z->cap_pieces; i++)
        flight_deinit(&z->pieces[i]);
    free(z->pieces);
    if (z->model != NULL)
        stages_free(z->model->dev, z->mem);
    *z = (struct zigzag){0};
}

void zigzag_clear(struct zigzag *z)
{
    z->n_pieces = 0;
}

void zigzag_add(struct zigzag *z, const struct step_batch *b, int begin, int end)
{
    CHECK(b->n_rows > 0 && b->n_rows <= z->max_rows && begin < end);
    for (int at = begin, n; at < end; at += n) {
        n = MIN(end - at, z->piece_rows);
        CHECK(z->n_pieces < z->cap_pieces);
        flight_cut(b, at, at + n, &z->pieces[z->n_pieces++]);
    }
}

void zigzag_cut(struct zigzag *z, const struct step_batch *b)
{
    zigzag_clear(z);
    zigzag_add(z, b, 0, b->n_rows);
}

struct mat zigzag_input(const struct zigzag *z, int layer)
{
    return z->x.x[model_stage(z->model, layer)][layer % z->x.n];
}

struct mat zigzag_output(const struct zigzag *z, int layer)
{
    return z->x.x[model_stage(z->model, layer)][(layer + 1) % z->x.n];
}

/* Takes piece i through layer l. */
static int pass_piece(struct zigzag *z, struct model_pass *p, int l, int i,
                      const struct zigzag_calls *c)
{
    z->layer = l;
    z->piece = i;
    int rc = c->before(c->arg, l, i);
    if (rc == 0)
        rc = model_pass_layer(p, &z->pieces[i].r);
    return rc == 0 ? c->behind(c->arg, l, i) : rc;
}

int zigzag_run(struct zigzag *z, struct model_pass_opts *o, const struct zigzag_calls *c,
               struct mat *x)
{
    struct model_pass p;
    int rc = 0;
    o->x = &z->x;
    model_pass_begin(&p, o);
    for (int l = 0; rc == 0 && !model_pass_is_done(&p); l++)
        for (int i = 0; rc == 0 && i < z->n_pieces; i++)
            rc = pass_piece(z, &p, l, i, c);
    if (rc == 0)
        *x = model_pass_output(&p);
    model_pass_end(&p);
    return rc;
}
