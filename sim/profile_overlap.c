/* profile_overlap.c - see profile_overlap.h. */
#include "sim/profile_overlap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "restore/profile_reads.h"
#include "restore/restore.h"
#include "save/saver.h"

/* Each of the three phases of a round takes this long. */
#define PHASE_NS 60000000

enum { OVERLAP_ROUNDS = 3 };

struct beside {
    struct profile_reads *r;
    enum store_kind kind;
    atomic_bool stop;
    struct profile_tally tally;
    int rc;
};

static void *read_beside(void *arg)
{
    struct beside *b = arg;
    b->rc = profile_reads_run(b->r, b->kind, INT32_MAX, PROFILE_MAX_DEPTH, &b->stop,
                              &b->tally, NULL);
    return NULL;
}

struct projecting {
    const struct model *m;
    struct model_work *w;
    struct stream *s;
    struct buf mem;
    struct mat hidden, kv_rows;
    int n_layers; /* number of layers of the first stage, on which the sample's rows lie */
};

/* Measures projections per second over about PHASE_NS. */
static int project_for_a_while(struct projecting *p, double *per_s)
{
    int64_t t0 = clock_now_ns(), now = t0;
    int n = 0, rc = 0;
    for (; rc == 0 && now - t0 < PHASE_NS; n++) {
        int l = n % p->n_layers;
        while (config_is_recurrent(&p->m->cfg, l)) /* it has no K and V */
            l = (l + 1) % p->n_layers;
        rc = model_kv_project(p->m, p->w, p->s, l, p->hidden,
                              model_kv_rows(p->m, l, p->kv_rows.data, p->kv_rows.rows));
        if (rc == 0)
            rc = stream_sync(p->s);
        now = clock_now_ns();
    }
    *per_s = n / ((double)(now - t0) * 1e-9);
    return rc;
}

static int read_for_a_while(struct beside *b, struct projecting *p, double *per_s,
                            double *bytes_per_s, struct err *err)
{
    pthread_t thread;
    atomic_store(&b->stop, false);
    int rc = thread_create(&thread, read_beside, b);
    if (rc != 0)
        return err_set(err, -rc, "profile: no thread for reading: %s", strerror(rc));
    if (p != NULL) {
        rc = project_for_a_while(p, per_s);
    } else {
        struct timespec t = {.tv_nsec = PHASE_NS};
        nanosleep(&t, NULL);
    }
    atomic_store(&b->stop, true);
    pthread_join(thread, NULL);
    *bytes_per_s = (double)b->tally.bytes / ((double)b->tally.ns * 1e-9);
    return rc != 0 ? rc : b->rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_at_least_1(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return MAX(v[n / 2], 1);
}

/* Measures each lane alone, then both together, in several rounds, so that changes on the machine
 * affect both measurements alike. */
static int measure_overlap(struct platform *p, struct beside *b, struct projecting *c,
                           struct err *err)
{
    double io[OVERLAP_ROUNDS], comp[OVERLAP_ROUNDS];
    for (int i = 0; i < OVERLAP_ROUNDS; i++) {
        double alone = 0, beside = 0, read_alone = 0, read_beside_it = 0;
        int rc = project_for_a_while(c, &alone);
        if (rc == 0)
            rc = read_for_a_while(b, NULL, NULL, &read_alone, err);
        if (rc == 0)
            rc = read_for_a_while(b, c, &beside, &read_beside_it, err);
        if (rc != 0)
            return rc;
        io[i] = read_beside_it > 0 ? read_alone / read_beside_it : 1;
        comp[i] = beside > 0 ? alone / beside : 1;
    }
    p->io_overlap = median_at_least_1(io, OVERLAP_ROUNDS);
    p->comp_overlap = median_at_least_1(comp, OVERLAP_ROUNDS);
    return 0;
}

int profile_overlap(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, const struct profile_source *from, struct err *err)
{
    int rows = RESTORE_GROUP_CHUNKS * STORE_CHUNK_TOKENS;
    rows = MIN(model_work_rows(w), rows);
    struct projecting c = {.m = m, .w = w, .s = s};
    while (c.n_layers < config_n_keeping(&m->cfg) && model_stage(m, c.n_layers) == 0)
        c.n_layers++;
    size_t hidden = (size_t)rows * model_hidden_bytes(m);
    struct profile_reads r;
    int rc = profile_reads_open(&r, m, from, 0, err);
    if (rc == 0)
        rc = buf_alloc(m->dev, MEM_DEVICE, hidden + (size_t)rows * model_most_kv_bytes(m),
                       &c.mem, err);
    if (rc == 0) {
        struct beside b = {
            .r = &r, .kind = profile_reads_has(&r, STORE_HIDDEN) ? STORE_HIDDEN : STORE_KV};
        struct profile_tally warm;
        if (m->dev->unified) /* takes the page faults now */
            memset(c.mem.ptr, 0, c.mem.bytes);
        c.hidden = mat_of(c.mem.ptr, m->dtype, rows, m->cfg.n_embd);
        c.kv_rows = model_kv_rows(m, 0, (uint8_t *)c.mem.ptr + hidden, rows);
        rc = profile_reads_run(&r, b.kind, 1, 1, NULL, &warm, err);
        if (rc == 0 && r.in_place) /* no bytes are moved, so reading slows nothing */
            p->io_overlap = p->comp_overlap = 1;
        else if (rc == 0)
            rc = measure_overlap(p, &b, &c, err);
    }
    buf_free(m->dev, &c.mem);
    profile_reads_close(&r);
    return rc == 0 || err == NULL || err->code != 0
               ? rc
               : err_set(err, rc, "profile: %s", err_name(rc));
}
