/* mixed_costs.c - see mixed_costs.h. */
#include "engine/mixed_costs.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/mixed_impl.h"
#include "restore/regress.h"

enum {
    MOST = 16, /* most blocks of a sample */
    /* Repetitions of each sample while there is time. The fastest one counts, since other work
     * only adds time. */
    ROUNDS = 5,
    MOST_ROUNDS = 30,
    N_SIZES = 5,
    LAYER = 0,
};
#define SAMPLE_NS 200000000
#define LEAST_R2  0.9

static const int sizes[N_SIZES] = {1, 2, 4, 8, MOST};

/* A hybrid cache of MOST blocks of each type on the host, without sequences. */
struct sampling {
    struct mixed x;
    struct mixed_act acts[MOST];
    struct err *err;
};

static int sampling_open(struct sampling *p, const struct model *m, struct model_work *work,
                         struct stream *s, double link_bytes_per_s)
{
    const struct mixed_opts o = {.n = {[PLACES_KV_HOST] = MOST, [PLACES_ACT_HOST] = MOST},
                                 .buffer_blocks = MOST,
                                 .link_bytes_per_s = link_bytes_per_s};
    int rc = mixed_init(&p->x, &o, m, work, s, NULL, 1, p->err);
    for (int i = 0; rc == 0 && i < MOST; i++)
        p->acts[i] = (struct mixed_act){.seq = 0, .block = 0};
    return rc;
}

/* Projects n ACT blocks into scratch blocks. All samples use the positions of the first block. */
static int project(struct sampling *p, int n)
{
    struct mixed *x = &p->x;
    for (int at = 0, k; at < n; at += k) {
        k = MIN(n - at, x->project_blocks);
        x->seqs[0].number[0] = places_scratch(&x->places, LAYER, 0, at);
        TRY(mixed_project_some(x, p->acts, LAYER, 0, at, k));
    }
    return stream_sync(x->stream);
}

/* Copies n KV blocks over the link. Waits first, as mixed_load does: that resets the throttle of a
 * slowed link. Otherwise a copy that was late would let the next one run faster. */
static int copy(struct sampling *p, int n)
{
    const struct places *pl = &p->x.places;
    TRY(event_wait(p->x.link, p->x.done[0]));
    for (int i = 0; i < n; i++)
        TRY(stream_copy(p->x.link, places_view(pl, LAYER, places_scratch(pl, LAYER, 0, i)),
                        places_kv_host(pl, LAYER, pl->first[PLACES_KV_HOST] + i),
                        pl->kv_bytes));
    return stream_sync(p->x.link);
}

/* Fits a line through the fastest time of each size. `unit` is the value of x for one block. */
static int sample(struct sampling *p, int (*work)(struct sampling *, int), double unit,
                  struct hybrid_line *line, double *r2)
{
    struct regress_sample s[N_SIZES];
    struct regress_fit fit = {0};
    for (int k = 0; k < N_SIZES; k++)
        s[k] = (struct regress_sample){.x = {1, sizes[k] * unit}, .y = 1e9};
    TRY(work(p, MOST)); /* first run touches the memory */
    int64_t end = clock_now_ns() + SAMPLE_NS;
    for (int round = 0; round < ROUNDS || (round < MOST_ROUNDS && clock_now_ns() < end);
         round++) {
        for (int k = 0; k < N_SIZES; k++) {
            int64_t t0 = clock_now_ns();
            TRY(work(p, sizes[k]));
            double t = (double)(clock_now_ns() - t0) * 1e-9;
            s[k].y = t > 0 && t < s[k].y ? t : s[k].y;
        }
    }
    /* On a busy machine a few blocks may take as long as many. If the line does not fit, the mean
     * of the largest sample replaces it: an upper bound, which other work disturbs least. */
    if (!regress(s, N_SIZES, 2, &fit) || fit.coef[1] <= 0 || fit.r2 < LEAST_R2) {
        double per_unit = s[N_SIZES - 1].y / s[N_SIZES - 1].x[1];
        fit = (struct regress_fit){.coef = {0, per_unit}, .r2 = fit.r2};
    }
    *line = (struct hybrid_line){fit.coef[0], fit.coef[1]};
    *r2 = fit.r2;
    return 0;
}

/* Runs one layer over n rows, each the first row of a sequence of its own. Each sequence would need
 * a tail, so instead the rows take turns in the scratch blocks. */
static int forward(struct sampling *p, int n, double *seconds)
{
    struct mixed *x = &p->x;
    const struct model *m = x->model;
    int32_t *ids = xcalloc((size_t)n, sizeof *ids), *pos = xcalloc((size_t)n, sizeof *pos);
    int32_t *seq_row = xcalloc((size_t)n + 1, sizeof *seq_row);
    int32_t number[MOST];
    const int32_t **tables = xcalloc((size_t)n, sizeof *tables);
    struct residual rows = {.n = 2};
    struct buf mem = {0};
    size_t bytes = (size_t)n * model_hidden_bytes(m);
    int rc = buf_alloc(m->dev, MEM_DEVICE, 2 * bytes + 64, &mem, p->err);
    for (int i = 0; i < MOST; i++)
        number[i] = places_scratch(&x->places, LAYER, 1, i);
    for (int i = 0; i < n; i++) {
        tables[i] = &number[i % MOST];
        seq_row[i + 1] = i + 1;
    }
    for (int i = 0; i < 2; i++)
        rows.x[0][i] = mat_of((uint8_t *)mem.ptr + (size_t)i * bytes, m->dtype, n,
                              m->cfg.n_embd);
    *seconds = 1e9;
    for (int round = 0; rc == 0 && round < ROUNDS; round++) {
        struct ragged r = {.n_rows = n,
                           .n_seqs = n,
                           .pos = pos,
                           .seq_row = seq_row,
                           .tables = tables,
                           .id = ragged_new_id()};
        struct model_pass pass;
        int64_t t0 = clock_now_ns();
        model_pass_begin(&pass, &(struct model_pass_opts){.model = m,
                                                          .work = x->work,
                                                          .stream = x->stream,
                                                          .n_rows = n,
                                                          .ids = ids,
                                                          .x = &rows,
                                                          .kv = x->places.layers});
        rc = model_pass_layer(&pass, &r);
        if (rc == 0)
            rc = stream_sync(x->stream);
        model_pass_end(&pass);
        double t = (double)(clock_now_ns() - t0) * 1e-9;
        *seconds = t < *seconds ? t : *seconds;
    }
    buf_free(m->dev, &mem);
    free(ids);
    free(pos);
    free(seq_row);
    free((void *)tables);
    return rc;
}

/* Returns the seconds to read the layer's weights: the time at zero rows of the line through both
 * measured times. */
static double forward_mini(int n_rows, double forward_s, double one_row_s)
{
    double per_row = n_rows > 1 ? (forward_s - one_row_s) / (n_rows - 1) : 0;
    double at_none = one_row_s - MAX(per_row, 0);
    return at_none < 0 ? 0 : MIN(at_none, forward_s);
}

int mixed_measure(const struct model *m, struct model_work *work, struct stream *s,
                  double link_bytes_per_s, int n_rows, struct mixed_costs *out,
                  struct err *err)
{
    struct sampling p = {.err = err};
    *out = (struct mixed_costs){0};
    CHECK(n_rows > 0 && n_rows <= model_work_rows(work));
    int rc = sampling_open(&p, m, work, s, link_bytes_per_s);
    if (rc == 0)
        rc = sample(&p, project, 1, &out->project, &out->project_r2);
    if (rc == 0)
        rc = sample(&p, copy, (double)p.x.places.kv_bytes, &out->link, &out->link_r2);
    double one_row_s = 0;
    if (rc == 0)
        rc = forward(&p, n_rows, &out->forward_s);
    if (rc == 0)
        rc = forward(&p, 1, &one_row_s);
    out->forward_mini_s = forward_mini(n_rows, out->forward_s, one_row_s);
    out->kv_bytes = (double)p.x.places.kv_bytes;
    out->act_bytes = (double)p.x.places.act_bytes;
    mixed_deinit(&p.x);
    return rc;
}
