/* cpu_matmul.c - packs weights, and cuts a matrix product into tiles.
 *
 * Activations are copied row by row into k-blocks, [k / 256][rows][256], so that a micro-kernel
 * finds its rows at constant distances and a k-block of a tile is contiguous.  One row needs no
 * copy.  Threads take tiles one after another; sums are never split (ops.h, arithmetic contract).
 */
#include "tensor/cpu/bf16r.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/q4.h"

#include "base/pool.h"

#include <string.h>

static bool is_quantised(enum dtype t)
{
    return t == DTYPE_Q8 || t == DTYPE_BF16R || dtype_has_blocks(t);
}

size_t cpu_weight_bytes(enum dtype t, int64_t n, int64_t k)
{
    if (is_quantised(t))
        return cpu_quant_bytes(t, n, k);
    return (size_t)panels_of(n) * PANEL * (size_t)k * dtype_bytes(t);
}

/* --- packing: done once, at load ------------------------------------------------------------ */

/* Writes a row of W into its lane of a panel. There is one function for elements of 2 bytes and one
 * for elements of 4 bytes. */
static void pack_row_u16(uint16_t *dst, const uint16_t *src, int64_t k)
{
    for (int64_t i = 0; i < k; i++)
        dst[i * PANEL] = src[i];
}

static void pack_row_u32(uint32_t *dst, const uint32_t *src, int64_t k)
{
    for (int64_t i = 0; i < k; i++)
        dst[i * PANEL] = src[i];
}

static void *weight_at(const struct weight *w, int64_t row)
{
    int64_t element = row / PANEL * PANEL * w->k + row % PANEL;
    return (char *)w->mem.ptr + (size_t)element * dtype_bytes(w->dtype);
}

struct pack_job {
    struct weight *w;
    int64_t row;
    const char *src;
};

static void pack_rows(void *arg, int64_t begin, int64_t end)
{
    struct pack_job *job = arg;
    struct weight *w = job->w;
    size_t row_bytes = (size_t)w->k * dtype_bytes(w->dtype);
    for (int64_t i = begin; i < end; i++) {
        const void *src = job->src + (size_t)i * row_bytes;
        void *dst = weight_at(w, job->row + i);
        if (w->dtype == DTYPE_F32)
            pack_row_u32(dst, src, w->k);
        else
            pack_row_u16(dst, src, w->k);
    }
}

int cpu_weight_pack(struct stream *s, struct weight *w, int64_t row, const void *src,
                    int64_t n_rows)
{
    check_weight_pack(w, row, n_rows);
    if (w->dtype == DTYPE_Q8)
        return cpu_q8_pack(s, w, row, src, n_rows);
    if (dtype_has_blocks(w->dtype))
        return cpu_q4_pack(s, w, row, src, n_rows);
    if (w->dtype == DTYPE_BF16R)
        return cpu_bf16r_pack(s, w, row, src, n_rows);
    CHECK(w->k <= MATMUL_MAX_K && w->mem.bytes >= cpu_weight_bytes(w->dtype, w->n, w->k));
    int rc = stream_enter(s);
    if (rc == 0) {
        struct pack_job job = {w, row, src};
        rows_run(s, n_rows, n_rows * w->k, pack_rows, &job);
    }
    return rc;
}

int cpu_weight_rows(struct stream *s, struct mat out, const struct weight *w,
                    const int32_t *ids)
{
    const struct cpu_kernels *k = cpu_kernels_of(s);
    CHECK(out.cols == w->k);
    if (w->dtype == DTYPE_Q8)
        return cpu_q8_rows(s, out, w, ids);
    if (dtype_has_blocks(w->dtype))
        return cpu_q4_rows(s, out, w, ids);
    if (w->dtype == DTYPE_BF16R)
        return cpu_bf16r_rows(s, out, w, ids);
    for (int64_t i = 0; i < out.rows; i++) {
        CHECK(ids[i] >= 0 && ids[i] < w->n);
        const uint16_t *src16 = weight_at(w, ids[i]);
        const uint32_t *src32 = weight_at(w, ids[i]);
        uint16_t row16[256];
        uint32_t row32[256];
        for (int64_t j = 0; j < w->k; j += 256) { /* gathers a piece, then converts it */
            int64_t n = MIN(w->k - j, 256);
            for (int64_t e = 0; e < n; e++) {
                if (w->dtype == DTYPE_F32)
                    row32[e] = src32[(j + e) * PANEL];
                else
                    row16[e] = src16[(j + e) * PANEL];
            }
            k->scale_row((char *)row_ptr(out, i) + (size_t)j * dtype_bytes(out.dtype),
                         out.dtype, w->dtype == DTYPE_F32 ? (void *)row32 : (void *)row16,
                         w->dtype, n, 1.0f);
        }
    }
    return stream_enter(s);
}

/* --- the product ---------------------------------------------------------------------------- */

struct mm_job {
    struct stream *s;
    const struct cpu_kernels *kernels;
    struct mat c, a;
    const struct weight *w;
    const float *bias;
    const float *packed;
    int64_t row0; /* rows [row0, row0 + m) are packed */
    int m;
    int n_row_tiles, tile_panels;
    struct items items;
};

static void pack_activations(void *arg, int64_t begin, int64_t end)
{
    struct mm_job *job = arg;
    int64_t k = job->a.cols;
    for (int64_t i = begin; i < end; i++) {
        const float *src = (const float *)job->a.data + (job->row0 + i) * job->a.ld;
        float *dst = scratch_packed(job->s) + i * MATMUL_K_BLOCK;
        for (int64_t j = 0; j < k; j += MATMUL_K_BLOCK) {
            int64_t n = MIN(k - j, MATMUL_K_BLOCK);
            memcpy(dst + j * job->m, src + j, (size_t)n * sizeof *dst);
        }
    }
}

/* Returns the tile of an item. Items go through the tiles of rows of one group of panels first. */
static struct mm_tile tile_at(const struct mm_job *job, long item, int thread_idx)
{
    const struct weight *w = job->w;
    int rt = (int)(item % job->n_row_tiles);
    int r0 = job->m * rt / job->n_row_tiles, r1 = job->m * (rt + 1) / job->n_row_tiles;
    int64_t panel = item / job->n_row_tiles * job->tile_panels, col = panel * PANEL;
    int64_t n_panels = panels_of(w->n) - panel;
    if (n_panels > job->tile_panels)
        n_panels = job->tile_panels;
    return (struct mm_tile){
        .a = job->packed + (int64_t)r0 * MATMUL_K_BLOCK,
        .a_rows = job->m,
        .m = r1 - r0,
        .k = w->k,
        .w = (const uint8_t *)weight_at(w, col),
        .dtype = w->dtype,
        .n_panels = (int)n_panels,
        .c = (float *)job->c.data + (job->row0 + r0) * job->c.ld + col,
        .ldc = job->c.ld,
        .n_cols = MIN(w->n - col, n_panels * PANEL),
        .bias = job->bias != NULL ? job->bias + col : NULL,
        .fetch_into_l2 = cpu_fetches_into_l2(),
        .scratch = scratch_thread(job->s, thread_idx),
    };
}

static void run_tiles(void *arg, int thread_idx, int n_threads)
{
    struct mm_job *job = arg;
    (void)n_threads;
    for (long item; item_take(&job->items, &item);) {
        struct mm_tile t = tile_at(job, item, thread_idx);
        if (t.m <= job->kernels->direct_rows)
            job->kernels->mm_direct(&t);
        else
            job->kernels->mm_blocked(&t);
    }
}

/* Multiplies rows [row0, row0 + m), m <= PACK_ROWS. */
static void multiply_rows(struct mm_job *job)
{
    int64_t n_panels = panels_of(job->w->n);
    job->n_row_tiles = (job->m + TILE_ROWS - 1) / TILE_ROWS;
    job->tile_panels = TILE_PANELS;
    if (job->m == 1) {
        job->packed = (const float *)job->a.data + job->row0 * job->a.ld;
    } else {
        job->packed = scratch_packed(job->s);
        rows_run(job->s, job->m, job->m * job->a.cols, pack_activations, job);
    }
    job->items.n = (n_panels + job->tile_panels - 1) / job->tile_panels * job->n_row_tiles;
    atomic_store(&job->items.next, 0);
    pool_run(job->s->pool, run_tiles, job);
}

int cpu_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
               const float *bias)
{
    check_matmul(c, a, w);
    CHECK(w->k <= MATMUL_MAX_K);
    if (is_quantised(w->dtype))
        return cpu_quant_matmul(s, c, a, w, bias);
    int rc = stream_enter(s);
    struct mm_job job = {
        .s = s, .kernels = cpu_kernels_of(s), .c = c, .a = a, .w = w, .bias = bias};
    for (; rc == 0 && job.row0 < c.rows; job.row0 += job.m) {
        int64_t left = c.rows - job.row0;
        job.m = (int)MIN(left, PACK_ROWS);
        multiply_rows(&job);
    }
    return rc;
}

int cpu_matmul_many(struct stream *s, struct mat a, const struct product *p, int n)
{
    int rc = 0;
    CHECK(n <= MATMUL_MANY && a.cols <= MATMUL_MAX_K);
    for (int i = 0; i < n; i++)
        check_matmul(p[i].c, a, p[i].w);
    for (int i = 0, run; rc == 0 && i < n; i += run) {
        for (run = 1; i + run < n && quant_alike(p[i].w->dtype, p[i + run].w->dtype);)
            run++;
        rc = run > 1 ? cpu_quant_matmul_many(s, a, p + i, run)
                     : cpu_matmul(s, p[i].c, a, p[i].w, p[i].bias);
    }
    return rc;
}

void cpu_expect(struct stream *s, const struct weight *const *w, int n)
{
    struct pool_range range[MATMUL_MANY];
    _Static_assert((int)MATMUL_MANY <= (int)POOL_RANGES, "every weight has a range");
    CHECK(n <= MATMUL_MANY);
    for (int i = 0; i < n; i++)
        range[i] = (struct pool_range){w[i]->mem.ptr,
                                       cpu_weight_bytes(w[i]->dtype, w[i]->n, w[i]->k)};
    pool_expect(s->pool, range, n);
}
