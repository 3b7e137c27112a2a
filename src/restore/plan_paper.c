/* plan_paper.c - the HCache paper's own partition, for comparison.
 *
 * Section 4.1.2, with its ceiling:
 *
 *   L_H = ceil(L * IO_KV / (IO_KV + C_H - IO_H)) if C_H > IO_H: H first, then KV
 *
 *   L_H = ceil(L * C_tok / (C_tok + IO_H - C_H)) otherwise: R first, then H
 *
 * Unlike plan_make (auto), it ignores that the last recomputed layer is a projection, that layer
 * 0 needs no read, that the lanes fill and drain, and that the ceiling may cost a whole C_H or
 * IO_H. The predicted time is still that of our pipeline, which does profit from a free layer 0. */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "restore/plan_parts.h"

/* Costs averaged over the layers, since the formula has one cost of each kind. */
struct means {
    double io_h, io_kv, c_h, c_tok;
};

/* Returns the mean costs of a layer. With several stages, each has a share of the store's
 * bandwidth, and a bus. */
static struct means mean_costs(const struct plan_request *q)
{
    struct means m = {0};
    double stages = MAX(q->n_stages, 1);
    for (int i = 0; i < q->n_layers; i++) {
        const struct plan_layer *l = &q->layer[i];
        m.io_h += fmax(l->io_h_s * stages, l->up_h_s) / q->n_layers;
        m.io_kv += fmax(l->io_kv_s * stages, l->up_kv_s) / q->n_layers;
        m.c_h += l->comp_h_s / q->n_layers;
        m.c_tok += l->comp_tok_s / q->n_layers;
    }
    return m;
}

/* Returns L_H, the number of layers that are restored from hidden states. *other gets the method of
 * the other layers, 'K' or 'R'. */
static int closed_form_h(int n_layers, struct means m, char *other)
{
    *other = m.c_h > m.io_h ? 'K' : 'R';
    double per_layer = *other == 'K' ? m.io_kv : m.c_tok;
    double gap = fabs(m.c_h - m.io_h);
    if (per_layer + gap <= 0)
        return n_layers;
    /* Treats 31.000000000000004 as 31. */
    int h = (int)ceil(n_layers * per_layer / (per_layer + gap) - 1e-9);
    return h < 0 ? 0 : MIN(h, n_layers);
}

static int check_numbers(const struct plan_request *q, struct err *e)
{
    for (int i = 0; i < q->n_layers; i++) {
        const struct plan_layer *l = &q->layer[i];
        const double x[] = {l->io_h_s, l->io_kv_s, l->comp_h_s, l->comp_tok_s};
        for (int k = 0; k < 4; k++)
            if (!isfinite(x[k]) || x[k] < 0)
                return err_set(
                    e, ERR_USAGE,
                    "plan paper: layer %d: the closed form needs the costs of H, KV and "
                    "recomputation, measured or not used",
                    i);
    }
    return 0;
}

int plan_paper(const struct plan_request *q, struct plan *out, struct err *e)
{
    int rc = check_numbers(q, e);
    if (rc != 0)
        return rc;
    char other;
    int h = closed_form_h(q->n_layers, mean_costs(q), &other);
    int o = q->n_layers - h;
    if (other == 'K') {
        memset(out->method, 'H', (size_t)h);
        memset(out->method + h, 'K', (size_t)o);
    } else {
        memset(out->method, 'R', (size_t)o);
        memset(out->method + o, 'H', (size_t)h);
    }
    out->method[q->n_layers] = 0;
    return 0;
}
