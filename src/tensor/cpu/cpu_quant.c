/* cpu_quant.c - cuts a product with quantised weights into tiles.
 *
 * Once per product, all threads round the rows of activations into [k-blocks][rows][256].  Threads
 * then take tiles one after another, as in cpu_matmul.c. */
#include "tensor/cpu/quant.h"

#include "base/pool.h"
#include "tensor/cpu/bf16r.h"
#include "tensor/cpu/q4.h"

#include <string.h>

/* Panels of one tile of many rows: half or a quarter of the most if threads would get fewer than
 * TILES_PER_THREAD tiles.  A tile has all rows, unless they still do; then it has at least
 * LEAST_ROWS. */
#define TILE_N_PANELS    (TILE_COLS / PANEL)
#define TILES_PER_THREAD 8
#define LEAST_ROWS       96
/* Panels of one tile of few rows, at least: as many as a kernel reads at once.  A kernel that reads
 * one after another needs larger tiles only to take fewer of them. */
#define DIRECT_N_PANELS 4
#define STREAM_N_PANELS 2
/* Rows of a strip at most, if there are several: more fill the registers with one panel. */
#define STRIP_ROWS 6
/* Panels that all strips take before the next ones. From FETCH_ROWS rows on, the next panels are
 * prefetched during the whole time in which these are read. */
#define STRIP_PANELS 2
#define FETCH_ROWS   5

size_t quant_panel_bytes(enum dtype t, int64_t k)
{
    if (t == DTYPE_BF16R)
        return (size_t)((k + BF16R_BLOCK - 1) / BF16R_BLOCK) * BF16R_BLOCK_BYTES;
    return (q4_offset(t, quant_blocks_of(k) * Q4_BLOCK) + 63) / 64 * 64;
}

size_t cpu_quant_bytes(enum dtype t, int64_t n, int64_t k)
{
    return (size_t)panels_of(n) * quant_panel_bytes(t, k);
}

/* Returns the rank of an instruction set. Each set includes those of lower rank. */
static int isa_rank(const char *isa)
{
    return strcmp(isa, "portable") == 0 ? 0 : strcmp(isa, "avx2") == 0 ? 1 : 2;
}

const struct quant_kernels *quant_kernels_of(const struct quant_kernels *const *all,
                                             const struct stream *s)
{
    while (isa_rank((*all)->name) > isa_rank(s->device->isa) || !(*all)->runs_here())
        all++;
    return *all;
}

/* --- the product ------------------------------------------------------------------------------ */

/* One matrix by which the rounded rows are multiplied. */
struct part {
    struct mat c;
    const struct weight *w;
    const float *bias;
    long n_items;
};

struct quant_job {
    struct stream *s;
    const struct quant_kernels *kernels;
    struct mat a;
    struct part part[MATMUL_MANY];
    int n_parts;
    int64_t row0; /* rows [row0, row0 + m) are rounded */
    int m;
    int n_row_tiles;
    int n_strips; /* strips of rows, if there are few rows */
    int tile_panels;
    bool direct, streams; /* few rows; weights are read panel by panel */
    int16_t *x;           /* [k-blocks][m][256] */
    struct items items;
    struct stretches stretches; /* used by products of few rows */
};

static void round_rows(void *arg, int64_t begin, int64_t end)
{
    struct quant_job *job = arg;
    for (int64_t i = begin; i < end; i++) {
        const float *a = (const float *)job->a.data + (job->row0 + i) * job->a.ld;
        int16_t *x = job->x + i * MATMUL_K_BLOCK;
        int64_t x_step = (int64_t)job->m * MATMUL_K_BLOCK;
        job->kernels->round_row(a, job->a.cols, x, x_step);
    }
}

/* Makes the tile of n items from `item` on, or of fewer if they belong to several matrices.  n is 1
 * if there are several tiles of rows.  Returns the number of its items. */
static long tile_at(const struct quant_job *job, long item, long n, int thread_idx,
                    struct quant_tile *t)
{
    const struct part *p = job->part;
    while (item >= p->n_items)
        item -= p++->n_items;
    n = MIN(n, p->n_items - item);
    const struct weight *w = p->w;
    int rt = (int)(item % job->n_row_tiles);
    int r0 = job->m * rt / job->n_row_tiles, r1 = job->m * (rt + 1) / job->n_row_tiles;
    int64_t panel = item / job->n_row_tiles * job->tile_panels, col = panel * PANEL;
    int64_t n_panels = panels_of(w->n) - panel;
    if (n_panels > n * job->tile_panels)
        n_panels = n * job->tile_panels;
    *t = (struct quant_tile){
        .x = job->x + (int64_t)r0 * MATMUL_K_BLOCK,
        .x_rows = job->m,
        .m = r1 - r0,
        .k = w->k,
        .dtype = w->dtype,
        .w = quant_panel_at(w, col),
        .panel_bytes = quant_panel_bytes(w->dtype, w->k),
        .fetch_into_l2 = cpu_fetches_into_l2(),
        .n_panels = (int)n_panels,
        .c = (float *)p->c.data + (job->row0 + r0) * p->c.ld + col,
        .ldc = p->c.ld,
        .n_cols = MIN(w->n - col, n_panels * PANEL),
        .bias = p->bias != NULL ? p->bias + col : NULL,
        .scratch = scratch_thread(job->s, thread_idx),
    };
    return n;
}

static void run_blocked(void *arg, int thread_idx, int n_threads)
{
    struct quant_job *job = arg;
    (void)n_threads;
    for (long item; item_take(&job->items, &item);) {
        struct quant_tile t;
        tile_at(job, item, 1, thread_idx, &t);
        job->kernels->blocked(&t);
    }
}

/* Makes strip i of n prefetch a part of the next panels.  The parts overlap: a line that is
 * prefetched once is often not there in time, so most are prefetched two or three times. */
static void share_fetches(struct quant_tile *t, int i, int n)
{
    size_t lines = t->panel_bytes / 64, blocks = (size_t)quant_blocks_of(t->k),
           part = MIN(lines, lines * 5 / 2 / (size_t)n);
    t->fetch_lines = (part + blocks - 1) / blocks;
    t->ahead = STRIP_PANELS * t->panel_bytes + 64 * (lines * (size_t)i / (size_t)n);
}

/* Takes the rows of a tile through `direct`, strip by strip. */
static void run_strips(const struct quant_job *job, const struct quant_tile *all)
{
    const struct quant_kernels *k = job->kernels;
    int n_strips = job->n_strips, step = n_strips > 1 ? STRIP_PANELS : all->n_panels;
    void (*direct)(const struct quant_tile *) = job->streams ? k->direct_stream : k->direct;
    for (int p = 0; p < all->n_panels; p += step)
        for (int i = 0; i < n_strips; i++) {
            int r0 = all->m * i / n_strips, r1 = all->m * (i + 1) / n_strips;
            int64_t col = (int64_t)p * PANEL;
            struct quant_tile t = *all;
            t.x += (int64_t)r0 * MATMUL_K_BLOCK;
            t.m = r1 - r0;
            t.w += (size_t)p * t.panel_bytes;
            t.n_panels = MIN(step, all->n_panels - p);
            t.c += r0 * t.ldc + col;
            t.n_cols = MIN(all->n_cols - col, (int64_t)t.n_panels * PANEL);
            t.bias = all->bias != NULL ? all->bias + col : NULL;
            if (all->m >= FETCH_ROWS)
                share_fetches(&t, i, n_strips);
            direct(&t);
        }
}

static void run_direct(void *arg, int thread_idx, int n_threads)
{
    struct quant_job *job = arg;
    int at = thread_idx;
    (void)n_threads;
    for (long item, n; (n = stretch_take(&job->stretches, thread_idx, &at, &item)) > 0;)
        while (n > 0) {
            struct quant_tile t;
            long taken = tile_at(job, item, n, thread_idx, &t);
            run_strips(job, &t);
            item += taken;
            n -= taken;
        }
}

/* Returns the number of tiles of job->tile_panels panels into which the weights are cut. */
static int64_t column_tiles(const struct quant_job *job)
{
    int64_t n = 0;
    for (int i = 0; i < job->n_parts; i++)
        n += (panels_of(job->part[i].w->n) + job->tile_panels - 1) / job->tile_panels;
    return n;
}

/* Cuts a product of many rows into tiles. */
static void cut_many(struct quant_job *job)
{
    int64_t wanted = (int64_t)TILES_PER_THREAD * pool_threads(job->s->pool), n;
    job->tile_panels = TILE_N_PANELS;
    while ((n = column_tiles(job)) < wanted && job->tile_panels > TILE_N_PANELS / 4)
        job->tile_panels /= 2;
    int64_t most = MAX(job->m / LEAST_ROWS, 1), tiles = (wanted + n - 1) / n;
    job->n_row_tiles = (int)MIN(tiles, most);
}

/* Returns the most rows of a product that take `direct`. Widening 6 bits for each strip takes
 * longer than widening them once. */
static int most_direct_rows(const struct quant_job *job)
{
    for (int i = 0; i < job->n_parts; i++)
        if (job->part[i].w->dtype == DTYPE_Q6_K)
            return job->kernels->direct_rows;
    return MAX(job->kernels->direct_rows, job->kernels->strip_rows);
}

/* Multiplies rows [row0, row0 + m), m <= QUANT_ROWS. */
static void multiply_rows(struct quant_job *job)
{
    job->x = (int16_t *)scratch_packed(job->s);
    job->direct = job->m <= most_direct_rows(job);
    job->n_row_tiles = 1;
    int most = job->kernels->direct_rows;
    most = job->m > most ? MIN(most, STRIP_ROWS) : most;
    job->n_strips = (job->m + most - 1) / most;
    job->streams = job->direct && job->n_strips == 1 &&
                   job->kernels->direct_stream != NULL && cpu_reads_one_stream();
    /* whether memory takes longer than arithmetic */
    bool reads = job->m < FETCH_ROWS || job->kernels->strip_rows == 0;
    job->tile_panels = !reads         ? STRIP_PANELS
                       : job->streams ? STREAM_N_PANELS
                                      : DIRECT_N_PANELS;
    if (!job->direct)
        cut_many(job);
    rows_run(job->s, job->m, job->m * job->a.cols, round_rows, job);
    for (int i = 0; i < job->n_parts; i++) {
        struct part *p = &job->part[i];
        p->n_items = (panels_of(p->w->n) + job->tile_panels - 1) / job->tile_panels *
                     job->n_row_tiles;
    }
    long n_items = column_tiles(job) * job->n_row_tiles;
    if (job->direct) {
        stretches_init(&job->stretches, n_items,
                       reads ? DIRECT_N_PANELS / job->tile_panels : 1,
                       pool_threads(job->s->pool));
    } else {
        job->items.n = n_items;
        atomic_store(&job->items.next, 0);
    }
    pool_run(job->s->pool, job->direct ? run_direct : run_blocked, job);
}

static int run_job(struct quant_job *job)
{
    int rc = stream_enter(job->s);
    int64_t rows = job->a.rows, n = (rows + QUANT_ROWS - 1) / QUANT_ROWS;
    for (int64_t i = 0; rc == 0 && i < n; i++) {
        job->row0 = rows * i / n;
        job->m = (int)(rows * (i + 1) / n - job->row0);
        multiply_rows(job);
    }
    return rc;
}

int quant_matmul_by(const struct quant_kernels *kernels, struct stream *s, struct mat c,
                    struct mat a, const struct weight *w, const float *bias)
{
    struct quant_job job = {
        .s = s, .kernels = kernels, .a = a, .part = {{c, w, bias, 0}}, .n_parts = 1};
    return run_job(&job);
}

static const struct quant_kernels *kernels_for(enum dtype t, const struct stream *s)
{
    return quant_kernels_of(t == DTYPE_BF16R ? bf16r_all_kernels : q4_all_kernels, s);
}

bool quant_alike(enum dtype a, enum dtype b)
{
    if (a == DTYPE_BF16R)
        return b == DTYPE_BF16R;
    return a >= DTYPE_Q8 && b >= DTYPE_Q8 && b != DTYPE_BF16R;
}

int cpu_quant_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                     const float *bias)
{
    return quant_matmul_by(kernels_for(w->dtype, s), s, c, a, w, bias);
}

int cpu_quant_matmul_many(struct stream *s, struct mat a, const struct product *p, int n)
{
    struct quant_job job = {
        .s = s, .kernels = kernels_for(p[0].w->dtype, s), .a = a, .n_parts = n};
    for (int i = 0; i < n; i++) {
        CHECK(kernels_for(p[i].w->dtype, s) == job.kernels);
        job.part[i] = (struct part){p[i].c, p[i].w, p[i].bias, 0};
    }
    return run_job(&job);
}
