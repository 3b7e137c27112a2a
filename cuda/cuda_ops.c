/* cuda_ops.c - the table of operations: checks, uploads, and the choice of kernel. */
#include "cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "cuda/untried/untried.h"

static struct gpu_mat gpu(struct mat a)
{
    CHECK(a.rows <= INT32_MAX && a.cols <= INT32_MAX);
    return (struct gpu_mat){a.data, (int)a.dtype, (int)a.rows, (int)a.cols, a.ld};
}

static struct gpu_kv gpu_kv(const struct kv_layer *kv)
{
    return (struct gpu_kv){kv->blocks, (int64_t)kv->block_stride, (int)kv->dtype, kv->n_kv,
                           kv->d_head};
}

static struct gpu_angles gpu_angles(const struct rope *r)
{
    return (struct gpu_angles){r->cos, r->sin, r->d_rot};
}

static struct gpu_mat weight_mat(const struct weight *w)
{
    return gpu(mat_of(w->mem.ptr, w->dtype, w->n, w->k));
}

/* --- weights ---------------------------------------------------------------------------------- */

static size_t cuda_weight_bytes(enum dtype t, int64_t n, int64_t k)
{
    if (t == DTYPE_Q8)
        return cuda_q8_bytes(n, k);
    return (size_t)n * (size_t)k * dtype_bytes(t);
}

static int cuda_weight_pack(struct stream *s, struct weight *w, int64_t row,
                            const void *src, int64_t n_rows)
{
    check_weight_pack(w, row, n_rows);
    if (w->dtype == DTYPE_Q8)
        return cuda_q8_pack(s, w, row, src, n_rows);
    size_t row_bytes = (size_t)w->k * dtype_bytes(w->dtype);
    return stream_copy(s, (uint8_t *)w->mem.ptr + (size_t)row * row_bytes, src,
                       (size_t)n_rows * row_bytes);
}

/* Checks ids of a table of n_rows rows and uploads them. */
static int enter_with_ids(struct stream *s, struct mat out, const int32_t *ids,
                          int64_t n_rows, const int32_t **dev)
{
    for (int64_t i = 0; i < out.rows; i++)
        CHECK(ids[i] >= 0 && ids[i] < n_rows);
    int rc = cuda_enter(s);
    return rc != 0 || out.rows == 0 ? rc : upload_ids(cuda_stream(s), ids, out.rows, dev);
}

static int embed(struct stream *s, struct mat out, struct mat table, const int32_t *ids,
                 float scale)
{
    const int32_t *dev = NULL;
    check_mat(table);
    CHECK(out.cols == table.cols);
    int rc = enter_with_ids(s, out, ids, table.rows, &dev);
    if (rc != 0 || out.rows == 0)
        return rc;
    gpu_embed(cuda_stream(s)->handle, gpu(out), gpu(table), dev, scale);
    return cuda_leave(s, "embed");
}

static int cuda_weight_rows(struct stream *s, struct mat out, const struct weight *w,
                            const int32_t *ids)
{
    const int32_t *dev = NULL;
    if (w->dtype != DTYPE_Q8)
        return embed(s, out, mat_of(w->mem.ptr, w->dtype, w->n, w->k), ids, 1.0f);
    check_mat(out);
    CHECK(out.cols == w->k);
    int rc = enter_with_ids(s, out, ids, w->n, &dev);
    if (rc != 0 || out.rows == 0)
        return rc;
    gpu_rows_q8(cuda_stream(s)->handle, gpu(out), cuda_q8(w), dev);
    return cuda_leave(s, "weight_rows");
}

/* --- rows ------------------------------------------------------------------------------------- */

static int cuda_embed(struct stream *s, struct mat out, struct mat table,
                      const int32_t *ids, float scale)
{
    return embed(s, out, table, ids, scale);
}

/* Runs a launch after the operation's checks, unless there are no rows. */
#define LAUNCH_ROWS(s, out, what, call)                                                    \
    do {                                                                                   \
        int rc_ = cuda_enter(s);                                                           \
        if (rc_ != 0 || (out).rows == 0)                                                   \
            return rc_;                                                                    \
        cudaStream_t at = cuda_stream(s)->handle;                                          \
        call;                                                                              \
        return cuda_leave(s, what);                                                        \
    } while (0)

static int cuda_rmsnorm(struct stream *s, struct mat out, struct mat x, const float *w,
                        float eps)
{
    check_same_shape(out, x);
    LAUNCH_ROWS(s, out, "rmsnorm", gpu_rmsnorm(at, gpu(out), gpu(x), w, eps));
}

static int cuda_layernorm(struct stream *s, struct mat out, struct mat x, const float *w,
                          const float *b, float eps)
{
    check_same_shape(out, x);
    LAUNCH_ROWS(s, out, "layernorm", gpu_layernorm(at, gpu(out), gpu(x), w, b, eps));
}

static int cuda_head_norm(struct stream *s, struct mat x, int d_head, const float *w,
                          float eps)
{
    check_mat(x);
    CHECK(x.cols % d_head == 0);
    LAUNCH_ROWS(s, x, "head_norm", gpu_head_norm(at, gpu(x), d_head, w, eps));
}

static int cuda_convert(struct stream *s, struct mat out, struct mat x)
{
    check_same_shape(out, x);
    LAUNCH_ROWS(s, out, "convert", gpu_convert(at, gpu(out), gpu(x)));
}

static int cuda_add(struct stream *s, struct mat out, struct mat a, struct mat b)
{
    check_same_shape(out, a);
    check_same_shape(out, b);
    LAUNCH_ROWS(s, out, "add", gpu_add(at, gpu(out), gpu(a), gpu(b)));
}

static int cuda_add_norm(struct stream *s, struct mat out, struct mat sum, struct mat x,
                         struct mat y, const float *w, const float *b, float eps)
{
    check_same_shape(out, x);
    check_same_shape(sum, x);
    check_same_shape(sum, y);
    CHECK(sum.dtype == DTYPE_F32);
    LAUNCH_ROWS(s, out, "add_norm",
                gpu_add_norm(at, gpu(out), gpu(sum), gpu(x), gpu(y), w, b, eps));
}

static int cuda_act_mul(struct stream *s, struct mat out, struct mat gate_up,
                        enum activation act)
{
    check_mat(out);
    check_mat(gate_up);
    CHECK(out.rows == gate_up.rows && gate_up.cols == 2 * out.cols);
    LAUNCH_ROWS(s, out, "act_mul", gpu_act_mul(at, gpu(out), gpu(gate_up), (int)act));
}

static int cuda_act(struct stream *s, struct mat x, enum activation act)
{
    check_mat(x);
    LAUNCH_ROWS(s, x, "act", gpu_act(at, gpu(x), (int)act));
}

static int cuda_all_finite(struct stream *s, struct mat x, bool *finite)
{
    struct cuda_stream *c = cuda_stream(s);
    check_mat(x);
    *finite = true;
    int rc = cuda_enter(s);
    if (rc != 0 || x.rows == 0)
        return rc;
    *c->flag_host = 1;
    gpu_fetch(c->handle, c->flag, c->flag_host, sizeof *c->flag);
    gpu_all_finite(c->handle, gpu(x), c->flag);
    rc = cuda_leave(s, "all_finite");
    if (rc == 0)
        rc = stream_copy(s, c->flag_host, c->flag, sizeof *c->flag);
    if (rc == 0)
        rc = stream_sync(s);
    *finite = *c->flag_host != 0;
    return rc;
}

/* --- products --------------------------------------------------------------------------------- */

static int cuda_matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                       const float *bias)
{
    struct cuda_stream *cs = cuda_stream(s);
    struct cuda_device *d = (struct cuda_device *)s->device;
    check_mat(c);
    check_mat(a);
    CHECK(c.rows == a.rows && c.cols == w->n && a.cols == w->k);
    CHECK(c.dtype == a.dtype || c.dtype == DTYPE_F32);
    struct gpu_mat gc = gpu(c), ga = gpu(a), gw = weight_mat(w);
    int rc = cuda_enter(s);
    if (rc != 0 || c.rows == 0)
        return rc;
    if (w->dtype == DTYPE_Q8) {
        gpu_matmul_q8(cs->handle, gc, ga, cuda_q8(w), bias);
        return cuda_leave(s, "matmul");
    }
    /* cuBLAS and tensor cores require one type for both factors, and tensor cores require 16 bits.
     * A state dtype that differs from the weights' rules them out, and so does exact math.  The
     * choice does not depend on the batch. */
    bool fixed = d->math == GPU_FIXED && a.dtype != DTYPE_F32;
    if (a.dtype != w->dtype || (d->math != GPU_FAST && !fixed)) {
        gpu_matmul_exact(cs->handle, gc, ga, gw, bias);
        return cuda_leave(s, "matmul");
    }
    if (fixed) {
        gpu_matmul_fixed(cs->handle, gc, ga, gw, bias, d->n_sm);
        return cuda_leave(s, "matmul");
    }
    if (gpu_gemv_can(gc, ga, gw)) {
        gpu_gemv(cs->handle, gc, ga, gw, bias);
        return cuda_leave(s, "matmul");
    }
    int status = cuda_blas_matmul(d->blas, cs->blas, gc, ga, gw);
    if (status != 0) {
        char why[160];
        snprintf(why, sizeof why,
                 "device cuda: a product of %dx%d with %dx%d: cuBLAS status %d", ga.rows,
                 ga.cols, gw.rows, gw.cols, status);
        return cuda_fail(cs, -EIO, why);
    }
    if (bias != NULL)
        gpu_add_bias(cs->handle, gc, bias);
    return cuda_leave(s, "matmul");
}

/* --- positions, cache, attention -------------------------------------------------------------- */

static int cuda_rope(struct stream *s, struct mat q, int d_head, const struct rope *rope,
                     const struct ragged *r)
{
    struct gpu_batch b;
    check_mat(q);
    check_ragged(r, q.rows);
    check_rope(rope, d_head, r);
    int rc = cuda_enter(s);
    if (rc != 0 || q.rows == 0 || rope->d_rot == 0)
        return rc;
    rc = upload_batch(cuda_stream(s), r, &b);
    if (rc != 0)
        return rc;
    gpu_rope(cuda_stream(s)->handle, gpu(q), d_head, gpu_angles(rope), b);
    return cuda_leave(s, "rope");
}

static int cuda_kv_fill(struct stream *s, const struct kv_layer *kv, struct mat rows,
                        const struct rope *rope, const struct ragged *r)
{
    struct gpu_batch b;
    check_kv_rows(kv, rows, r);
    check_rope(rope, kv->d_head, r);
    int rc = cuda_enter(s);
    if (rc != 0 || rows.rows == 0)
        return rc;
    rc = upload_batch(cuda_stream(s), r, &b);
    if (rc != 0)
        return rc;
    gpu_kv_fill(cuda_stream(s)->handle, gpu_kv(kv), gpu(rows), gpu_angles(rope), b);
    return cuda_leave(s, "kv_fill");
}

static int cuda_rope_kv_fill(struct stream *s, struct mat q, const struct kv_layer *kv,
                             struct mat rows, const struct rope *rope,
                             const struct ragged *r)
{
    struct gpu_batch b;
    check_mat(q);
    check_kv_rows(kv, rows, r);
    check_rope(rope, kv->d_head, r);
    CHECK(q.rows == rows.rows && q.dtype == kv->dtype && q.cols % kv->d_head == 0);
    int rc = cuda_enter(s);
    if (rc != 0 || rows.rows == 0)
        return rc;
    rc = upload_batch(cuda_stream(s), r, &b);
    if (rc != 0)
        return rc;
    gpu_rope_kv_fill(cuda_stream(s)->handle, gpu(q), gpu_kv(kv), gpu(rows),
                     gpu_angles(rope), b);
    return cuda_leave(s, "rope_kv_fill");
}

static int cuda_kv_load(struct stream *s, const struct kv_layer *kv,
                        const struct kv_chunks *c, const struct rope *rope)
{
    check_kv_load(kv, c, rope);
    int rc = cuda_enter(s);
    for (int i = 0, n; rc == 0 && i < c->n; i += n) {
        struct gpu_chunks part = {.first = (const uint8_t *)c->first +
                                           (size_t)i * c->stride,
                                  .stride = (int64_t)c->stride,
                                  .v_at = (int64_t)kv_chunks_v_at(kv, c),
                                  .pos0 = c->pos0 + i * KV_BLOCK_TOKENS};
        n = c->n - i < GPU_LOAD_CHUNKS ? c->n - i : GPU_LOAD_CHUNKS;
        part.n = n;
        memcpy(part.block, c->blocks + i, (size_t)n * sizeof *part.block);
        gpu_kv_load(cuda_stream(s)->handle, gpu_kv(kv), part, gpu_angles(rope));
        rc = cuda_leave(s, "kv_load");
    }
    return rc;
}

/* Packs rows into a chunk by heads. Elements are moved, never computed with, so only their size
 * matters. */
static void pack_heads(uint8_t *out, const uint8_t *rows, size_t row_bytes, int n_kv,
                       size_t head_bytes)
{
    for (int head = 0; head < n_kv; head++)
        for (int slot = 0; slot < KV_BLOCK_TOKENS; slot++)
            memcpy(out + ((size_t)head * KV_BLOCK_TOKENS + (size_t)slot) * head_bytes,
                   rows + (size_t)slot * row_bytes + (size_t)head * head_bytes, head_bytes);
}

static int cuda_kv_pack(struct stream *s, void *chunk, struct mat rows, int n_kv,
                        int d_head)
{
    size_t e = dtype_bytes(rows.dtype), head_bytes = (size_t)d_head * e;
    size_t row_bytes = (size_t)rows.ld * e,
           half = (size_t)n_kv * KV_BLOCK_TOKENS * head_bytes;
    (void)s; /* host memory to host memory, so the stream is not used */
    CHECK(rows.rows == KV_BLOCK_TOKENS && rows.cols == (int64_t)2 * n_kv * d_head);
    pack_heads(chunk, rows.data, row_bytes, n_kv, head_bytes);
    pack_heads((uint8_t *)chunk + half, (uint8_t *)rows.data + (size_t)n_kv * head_bytes,
               row_bytes, n_kv, head_bytes);
    return 0;
}

static int cuda_kv_read(struct stream *s, struct mat out, const struct kv_layer *kv,
                        const struct ragged *r)
{
    struct gpu_batch b;
    check_kv_rows(kv, out, r);
    int rc = cuda_enter(s);
    if (rc != 0 || out.rows == 0)
        return rc;
    rc = upload_batch(cuda_stream(s), r, &b);
    if (rc != 0)
        return rc;
    gpu_kv_read(cuda_stream(s)->handle, gpu(out), gpu_kv(kv), b);
    return cuda_leave(s, "kv_read");
}

static int cuda_attention(struct stream *s, struct mat out, struct mat q,
                          const struct kv_layer *kv, const struct ragged *r,
                          const struct attention_rule *rule)
{
    struct cuda_stream *c = cuda_stream(s);
    const struct cuda_device *d = (const struct cuda_device *)s->device;
    check_same_shape(out, q);
    check_ragged(r, q.rows);
    CHECK(q.dtype == kv->dtype && out.dtype == kv->dtype);
    CHECK(q.cols % kv->d_head == 0 && q.cols / kv->d_head % kv->n_kv == 0);
    CHECK(kv->d_head <= ATTENTION_MAX_D_HEAD && rule->cap == 0 && rule->sinks == NULL &&
          !rule->both_ways);
    int rc = cuda_enter(s);
    if (rc != 0 || q.rows == 0)
        return rc;
    struct gpu_attention_job job = {.out = gpu(out),
                                    .q = gpu(q),
                                    .kv = gpu_kv(kv),
                                    .scale = rule->scale,
                                    .window = rule->window,
                                    .math = d->math,
                                    .scratch = c->scratch,
                                    .scratch_floats = c->scratch_floats,
                                    .n_sm = d->n_sm,
                                    .shared_bytes = d->shared_bytes};
    rc = upload_batch(c, r, &job.b);
    if (rc != 0)
        return rc;
    gpu_attention(c->handle, job);
    return cuda_leave(s, "attention");
}

/* --- sampling --------------------------------------------------------------------------------- */

static int cuda_sample(struct stream *s, int32_t *ids, struct mat logits,
                       const struct sample_row *rows)
{
    void *host, *dev;
    size_t bytes = (size_t)logits.rows * sizeof *rows;
    check_sample(logits, rows);
    int rc = cuda_enter(s);
    if (rc != 0 || logits.rows == 0)
        return rc;
    rc = upload_take(cuda_stream(s), bytes, &host, &dev);
    if (rc != 0)
        return rc;
    memcpy(host, rows, bytes);
    rc = upload_send(cuda_stream(s), dev, host, bytes);
    if (rc != 0)
        return rc;
    gpu_sample(cuda_stream(s)->handle, ids, gpu(logits), dev);
    return cuda_leave(s, "sample");
}

/* --- checksums -------------------------------------------------------------------------------- */

static int cuda_checksum(struct stream *s, uint64_t *out, const void *first, size_t stride,
                         const uint32_t *n_bytes, int n)
{
    check_checksum(s, first, stride, n);
    int rc = atomic_load(&s->code);
    for (int i = 0, n_part; rc == 0 && i < n; i += n_part) {
        struct gpu_records part = {.first = (const uint8_t *)first + (size_t)i * stride,
                                   .stride = (int64_t)stride};
        n_part = n - i < GPU_CHECKSUMS ? n - i : GPU_CHECKSUMS;
        part.n = n_part;
        memcpy(part.n_bytes, n_bytes + i, (size_t)n_part * sizeof *n_bytes);
        gpu_checksum(cuda_stream(s)->handle, out + i, part);
        rc = cuda_leave(s, "checksum");
    }
    return rc;
}

const struct ops cuda_ops = {
    .weight_bytes = cuda_weight_bytes,
    .weight_pack = cuda_weight_pack,
    .weight_rows = cuda_weight_rows,
    .embed = cuda_embed,
    .rmsnorm = cuda_rmsnorm,
    .layernorm = cuda_layernorm,
    .head_norm = cuda_head_norm,
    .matmul = cuda_matmul,
    .convert = cuda_convert,
    .add = cuda_add,
    .add_norm = cuda_add_norm,
    .act_mul = cuda_act_mul,
    .act = cuda_act,
    .all_finite = cuda_all_finite,
    .rope = cuda_rope,
    .kv_fill = cuda_kv_fill,
    .rope_kv_fill = cuda_rope_kv_fill,
    .kv_load = cuda_kv_load,
    .kv_pack = cuda_kv_pack,
    .kv_read = cuda_kv_read,
    .attention = cuda_attention,
    .sample = cuda_sample,
    .checksum = cuda_checksum,
    .record = cuda_record,
};
