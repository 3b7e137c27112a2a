/* zigzag.c - see zigzag.h. */
#include "engine/zigzag.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "engine/step_batch.h"

/* A tap's copy of a layer's input may run beside the next layer where the device has memory of its
 * own: the same number of buffers as model_forward has. */
static int n_buffers(const struct model *m)
{
    return m->dev->unified ? 2 : 3;
}

static size_t buffer_bytes(const struct model *m, int max_rows)
{
    return (size_t)round_up((uint64_t)max_rows * model_hidden_bytes(m), 64);
}

size_t zigzag_bytes(const struct model *m, int max_rows, int piece_rows)
{
    return max_rows > piece_rows ? (size_t)n_buffers(m) * buffer_bytes(m, max_rows) : 0;
}

int zigzag_init(struct zigzag *z, const struct model *m, int max_rows, int piece_rows,
                int max_seqs, struct err *err)
{
    size_t bytes = zigzag_bytes(m, max_rows, piece_rows);
    *z = (struct zigzag){.model = m};
    if (bytes == 0)
        return 0;
    int rc = stages_alloc(m->dev, bytes, z->mem, err);
    if (rc != 0)
        return err_wrap(err, "rows between two layers, %d of them", max_rows);
    z->max_rows = max_rows;
    z->piece_rows = piece_rows;
    z->x.n = n_buffers(m);
    for (int k = 0; k < m->dev->n_stages; k++)
        for (int i = 0; i < z->x.n; i++)
            z->x.x[k][i] = mat_of((uint8_t *)z->mem[k].ptr +
                                      (size_t)i * buffer_bytes(m, max_rows),
                                  m->dtype, max_rows, m->cfg.n_embd);
    z->cap_pieces = (max_rows + piece_rows - 1) / piece_rows;
    z->pieces = xcalloc((size_t)z->cap_pieces, sizeof *z->pieces);
    for (int i = 0; i < z->cap_pieces; i++)
        flight_init(&z->pieces[i], max_seqs);
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

void zigzag_cut(struct zigzag *z, const struct step_batch *b)
{
    CHECK(b->n_rows > 0 && b->n_rows <= z->max_rows);
    z->n_pieces = 0;
    for (int at = 0, n; at < b->n_rows; at += n) {
        n = b->n_rows - at < z->piece_rows ? b->n_rows - at : z->piece_rows;
        flight_cut(b, at, at + n, &z->pieces[z->n_pieces++]);
    }
}

int zigzag_run(struct zigzag *z, struct model_pass_opts *o, const struct zigzag_calls *c,
               struct mat *x)
{
    struct model_pass p;
    int rc = 0;
    o->x = &z->x;
    model_pass_begin(&p, o);
    while (rc == 0 && !model_pass_is_done(&p)) {
        for (int i = 0; rc == 0 && i < z->n_pieces; i++) {
            c->before(c->arg, &z->pieces[i]);
            rc = model_pass_layer(&p, &z->pieces[i].r);
            c->behind(c->arg, &z->pieces[i]);
        }
    }
    if (rc == 0)
        *x = model_pass_output(&p);
    model_pass_end(&p);
    return rc;
}
