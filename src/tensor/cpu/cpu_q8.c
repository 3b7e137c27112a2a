/* cpu_q8.c - 8-bit weights: packing them, and how a product with them is cut into tiles.
 *
 * Rows of activations are rounded once per product, by all threads, into [k-blocks][rows][256] with
 * their scales behind; tiles are then taken by threads one after another, as in cpu_matmul.c. */
#include "tensor/cpu/q8.h"

#include "base/pool.h"

#include <errno.h>
#include <string.h>

/* Rows by panels of one tile, as in cpu_matmul.c: a k-block of 192 rows is 96 KiB. */
#define TILE_N_PANELS 8

const struct q8_kernels *const q8_all_kernels[] = {
#if defined(__x86_64__)
    &q8_kernels_amx,      &q8_kernels_vnni,
    &q8_kernels_avx512,   &q8_kernels_avx2,
#endif
    &q8_kernels_portable, NULL,
};

/* The best that this CPU runs and the device's instruction set includes. */
static const struct q8_kernels *q8_kernels_of(const struct stream *s)
{
#if defined(__x86_64__)
    const char *isa = s->device->isa;
    if (strcmp(isa, "avx512") == 0)
        return q8_kernels_amx.runs_here()    ? &q8_kernels_amx
               : q8_kernels_vnni.runs_here() ? &q8_kernels_vnni
                                             : &q8_kernels_avx512;
    if (strcmp(isa, "avx2") == 0)
        return &q8_kernels_avx2;
#endif
    (void)s;
    return &q8_kernels_portable;
}

static int64_t panels_of(int64_t n)
{
    return (n + PANEL - 1) / PANEL;
}

static uint8_t *panel_at(const struct weight *w, int64_t row)
{
    return (uint8_t *)w->mem.ptr + (size_t)(row / PANEL) * q8_panel_bytes(w->k);
}

size_t cpu_q8_bytes(int64_t n, int64_t k)
{
    return (size_t)panels_of(n) * q8_panel_bytes(k);
}

/* --- packing: done once, at load ---------------------------------------------------------------- */

struct q8_pack_job {
    const struct q8_kernels *kernels;
    struct weight *w;
    int64_t row;
    const float *src;
    atomic_bool refused;
};

static void pack_rows(void *arg, int64_t begin, int64_t end)
{
    struct q8_pack_job *job = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = job->row + i;
        if (!job->kernels->pack_row(panel_at(job->w, row), (int)(row % PANEL),
                                    job->src + i * job->w->k, job->w->k))
            atomic_store(&job->refused, true);
    }
}

int cpu_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows)
{
    CHECK(w->k <= MATMUL_MAX_K && w->mem.bytes >= cpu_q8_bytes(w->n, w->k));
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    struct q8_pack_job job = {.kernels = q8_kernels_of(s), .w = w, .row = row, .src = src};
    rows_run(s, n_rows, n_rows * w->k, pack_rows, &job);
    return atomic_load(&job.refused) ? -ERANGE : 0;
}

/* out [n] = elements [k, k + n) of a row, all of one block of 32. */
static void read_block(const struct weight *w, int64_t row, int64_t k, int64_t n,
                       float *out)
{
    int64_t kb = k / MATMUL_K_BLOCK * MATMUL_K_BLOCK, b = (k - kb) / Q8_BLOCK,
            column = row % PANEL;
    const uint8_t *at = panel_at(w, row) + q8_offset(kb);
    const int8_t *q = (const int8_t *)at + b * Q8_BLOCK_BYTES;
    uint16_t d;
    memcpy(&d,
           at + q8_blocks_at(kb, w->k) * Q8_BLOCK_BYTES + b * Q8_SCALE_BYTES + 2 * column,
           sizeof d);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)q[(i / 4 * PANEL + column) * 4 + i % 4] * f16_to_f32(d);
}

int cpu_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids)
{
    const struct cpu_kernels *kernels = cpu_kernels_of(s);
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        for (int64_t k = 0; k < w->k; k += Q8_BLOCK) {
            int64_t n = w->k - k < Q8_BLOCK ? w->k - k : Q8_BLOCK;
            float piece[Q8_BLOCK];
            read_block(w, ids[i], k, n, piece);
            kernels->scale_row((char *)row_ptr(out, i) + (size_t)k * dtype_bytes(out.dtype),
                               out.dtype, piece, DTYPE_F32, n, 1.0f);
        }
    }
    return stream_enter(s);
}

/* --- the product --------------------------------------------------------------------------------- */

struct q8_job {
    struct stream *s;
    const struct q8_kernels *kernels;
    struct mat c, a;
    const struct weight *w;
    const float *bias;
    int64_t row0; /* rows [row0, row0 + m) are rounded */
    int m;
    int n_row_tiles;
    bool direct;
    int16_t *x; /* [k-blocks][m][256] */
    float *e;   /* [k-blocks][m] */
    struct items items;
};

static void round_rows(void *arg, int64_t begin, int64_t end)
{
    struct q8_job *job = arg;
    for (int64_t i = begin; i < end; i++) {
        const float *a = (const float *)job->a.data + (job->row0 + i) * job->a.ld;
        int16_t *x = job->x + i * MATMUL_K_BLOCK;
        int64_t x_step = (int64_t)job->m * MATMUL_K_BLOCK;
        if (job->direct)
            job->kernels->round_direct(a, job->a.cols, x, x_step, job->e + i, job->m);
        else
            job->kernels->round_blocked(a, job->a.cols, x, x_step, job->e + i, job->m);
    }
}

static struct q8_tile tile_at(const struct q8_job *job, long item, int thread_idx)
{
    const struct weight *w = job->w;
    int rt = (int)(item % job->n_row_tiles);
    int r0 = job->m * rt / job->n_row_tiles, r1 = job->m * (rt + 1) / job->n_row_tiles;
    int64_t panel = item / job->n_row_tiles * TILE_N_PANELS, col = panel * PANEL;
    int64_t n_panels = panels_of(w->n) - panel;
    if (n_panels > TILE_N_PANELS)
        n_panels = TILE_N_PANELS;
    return (struct q8_tile){
        .x = job->x + (int64_t)r0 * MATMUL_K_BLOCK,
        .e = job->e + r0,
        .x_rows = job->m,
        .m = r1 - r0,
        .k = w->k,
        .w = panel_at(w, col),
        .panel_bytes = q8_panel_bytes(w->k),
        .n_panels = (int)n_panels,
        .c = (float *)job->c.data + (job->row0 + r0) * job->c.ld + col,
        .ldc = job->c.ld,
        .n_cols = w->n - col < n_panels * PANEL ? w->n - col : n_panels * PANEL,
        .bias = job->bias != NULL ? job->bias + col : NULL,
        .scratch = scratch_thread(job->s, thread_idx),
    };
}

static void run_tiles(void *arg, int thread_idx, int n_threads)
{
    struct q8_job *job = arg;
    (void)n_threads;
    for (long item; item_take(&job->items, &item);) {
        struct q8_tile t = tile_at(job, item, thread_idx);
        if (job->direct)
            job->kernels->direct(&t);
        else
            job->kernels->blocked(&t);
    }
}

/* Rows [row0, row0 + m), m <= PACK_ROWS. */
static void multiply_rows(struct q8_job *job)
{
    int64_t k_blocks = (job->w->k + MATMUL_K_BLOCK - 1) / MATMUL_K_BLOCK;
    job->x = (int16_t *)scratch_packed(job->s);
    job->e = (float *)(job->x + k_blocks * job->m * MATMUL_K_BLOCK);
    job->direct = job->m <= job->kernels->direct_rows;
    job->n_row_tiles = (job->m + TILE_ROWS - 1) / TILE_ROWS;
    rows_run(job->s, job->m, job->m * job->a.cols, round_rows, job);
    job->items.n = (panels_of(job->w->n) + TILE_N_PANELS - 1) / TILE_N_PANELS *
                   job->n_row_tiles;
    atomic_store(&job->items.next, 0);
    pool_run(job->s->pool, run_tiles, job);
}

int q8_matmul_by(const struct q8_kernels *kernels, struct stream *s, struct mat c,
                 struct mat a, const struct weight *w, const float *bias)
{
    int rc = stream_enter(s);
    struct q8_job job = {.s = s, .kernels = kernels, .c = c, .a = a, .w = w, .bias = bias};
    for (; rc == 0 && job.row0 < c.rows; job.row0 += job.m) {
        int64_t left = c.rows - job.row0;
        job.m = (int)(left < PACK_ROWS ? left : PACK_ROWS);
        multiply_rows(&job);
    }
    return rc;
}

int cpu_q8_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias)
{
    return q8_matmul_by(q8_kernels_of(s), s, c, a, w, bias);
}
