/* rig.c - see rig.h. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tensor/q4_blocks.h"

const char *const isa_names[ISA_COUNT] = {"portable", "avx2", "avx512", "avx512bf16"};

static struct lab lab_on(struct pool *pool, struct device *d)
{
    struct lab l = {.pool = pool, .device = d, .ops = d->ops};
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &l.stream, NULL), 0);
    return l;
}

struct lab lab_ref(void)
{
    struct device *d;
    assert_int_equal(device_open("ref", NULL, NULL, &d, NULL), 0);
    return lab_on(NULL, d);
}

struct lab lab_cpu(const char *isa, int n_threads)
{
    struct device *d = NULL;
    struct err err;
    struct pool *pool = NULL;
    assert_int_equal(pool_create(n_threads, &pool, NULL), 0);
    int rc = device_open("cpu", &(struct device_opts){.isa = isa}, pool, &d, &err);
    if (rc != 0) {
        printf("skipped: %s\n", err.msg);
        assert_int_equal(rc, ERR_UNSUPPORTED);
        pool_destroy(pool);
        return (struct lab){0};
    }
    assert_string_equal(d->isa, isa);
    return lab_on(pool, d);
}

void lab_close(struct lab *l)
{
    if (l->device == NULL)
        return;
    stream_destroy(l->stream);
    device_close(l->device);
    pool_destroy(l->pool);
    *l = (struct lab){0};
}

/* --- data ----------------------------------------------------------------------------------- */

static void elem_set(void *p, enum dtype t, int64_t i, float f)
{
    if (t == DTYPE_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = t == DTYPE_F16 ? f32_to_f16(f) : f32_to_bf16(f);
}

static void put_half(uint8_t *p, float f)
{
    uint16_t h = f32_to_f16(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

uint8_t *random_q4(enum dtype t, int64_t n, int64_t k, uint64_t seed)
{
    size_t bytes = (size_t)n * q4_row_bytes(t, k);
    float *scales = random_elems(DTYPE_F32, n * k / q4_block_weights(t) * 2, seed);
    uint8_t *rows = xmalloc(bytes + 8);
    struct rng r = {seed + 1};
    for (size_t i = 0; i < bytes; i++)
        rows[i] = (uint8_t)rng_u64(&r);
    size_t b = 0;
    for (uint8_t *at = rows; at < rows + bytes; at += q4_block_bytes(t), b++) {
        float size = t == DTYPE_Q4_0 || t == DTYPE_Q4_1 ? 1 : 1.0f / 64;
        if (t == DTYPE_MXFP4)
            at[0] = (uint8_t)(118 + at[0] % 10); /* exponents */
        else
            put_half(t == DTYPE_Q6_K ? at + 208 : at, scales[2 * b] * size);
        if (t == DTYPE_Q4_1 || t == DTYPE_Q4_K)
            put_half(at + 2, scales[2 * b + 1] * size);
    }
    free(scales);
    return rows;
}

float elem_get(const void *p, enum dtype t, int64_t i)
{
    if (t == DTYPE_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == DTYPE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

void *random_elems(enum dtype t, int64_t n, uint64_t seed)
{
    struct rng rng = {seed};
    void *p = xmalloc((size_t)n * dtype_bytes(t));
    for (int64_t i = 0; i < n; i++)
        elem_set(p, t, i, (float)(2 * rng_unit(&rng) - 1));
    return p;
}

struct mat mat_alloc(enum dtype t, int64_t rows, int64_t cols)
{
    return mat_of(xcalloc((size_t)(rows * cols), dtype_bytes(t)), t, rows, cols);
}

struct mat mat_random(enum dtype t, int64_t rows, int64_t cols, uint64_t seed)
{
    return mat_of(random_elems(t, rows * cols, seed), t, rows, cols);
}

void mat_free(struct mat *m)
{
    free(m->data);
    *m = (struct mat){0};
}

struct weight weight_make(const struct lab *l, enum dtype t, int64_t n, int64_t k,
                          const void *rows)
{
    struct weight w = {.dtype = t, .n = n, .k = k};
    size_t bytes = l->ops->weight_bytes(t, n, k);
    assert_int_equal(buf_alloc(l->device, MEM_DEVICE, bytes, &w.mem, NULL), 0);
    assert_int_equal(l->ops->weight_pack(l->stream, &w, 0, rows, n), 0);
    return w;
}

void weight_free(const struct lab *l, struct weight *w)
{
    buf_free(l->device, &w->mem);
}

/* --- comparisons ---------------------------------------------------------------------------- */

void assert_same_bits(struct mat a, struct mat b)
{
    assert_true(a.rows == b.rows && a.cols == b.cols && a.dtype == b.dtype);
    size_t e = dtype_bytes(a.dtype), row = (size_t)a.cols * e;
    for (int64_t i = 0; i < a.rows; i++) {
        const char *x = (const char *)a.data + (size_t)(i * a.ld) * e;
        const char *y = (const char *)b.data + (size_t)(i * b.ld) * e;
        for (int64_t j = 0; memcmp(x, y, row) != 0 && j < a.cols; j++)
            if (memcmp(x + (size_t)j * e, y + (size_t)j * e, e) != 0)
                fail_msg("row %lld col %lld of %lldx%lld: %.9g is not %.9g", (long long)i,
                         (long long)j, (long long)a.rows, (long long)a.cols,
                         (double)elem_get(x, a.dtype, j), (double)elem_get(y, b.dtype, j));
    }
}

void assert_near(struct mat a, struct mat b, double tolerance)
{
    assert_true(a.rows == b.rows && a.cols == b.cols);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.cols; j++) {
            double x = elem_get(a.data, a.dtype, i * a.ld + j);
            double y = elem_get(b.data, b.dtype, i * b.ld + j);
            if (!(fabs(x - y) <= tolerance * (1 + fabs(y))))
                fail_msg("row %lld col %lld of %lldx%lld: %.9g is not near %.9g",
                         (long long)i, (long long)j, (long long)a.rows, (long long)a.cols,
                         x, y);
        }
}

/* --- positions and caches ------------------------------------------------------------------- */

struct rope rope_make(int64_t max_pos, int d_rot)
{
    int half = d_rot / 2;
    float *c = xcalloc((size_t)(max_pos * half), sizeof *c);
    float *s = xcalloc((size_t)(max_pos * half), sizeof *s);
    for (int64_t p = 0; p < max_pos; p++)
        for (int i = 0; i < half; i++) {
            double angle = (double)p * pow(10000, -2.0 * i / d_rot);
            c[p * half + i] = (float)cos(angle);
            s[p * half + i] = (float)sin(angle);
        }
    size_t n = (size_t)round_up((uint64_t)max_pos, KV_BLOCK_TOKENS) * (size_t)half;
    float *ct = xcalloc(n, sizeof *ct), *st = xcalloc(n, sizeof *st);
    for (int64_t p = 0; p < max_pos; p++)
        for (int i = 0; i < half; i++) {
            int64_t at = (p / KV_BLOCK_TOKENS * half + i) * KV_BLOCK_TOKENS +
                         p % KV_BLOCK_TOKENS;
            ct[at] = c[p * half + i];
            st[at] = s[p * half + i];
        }
    return (struct rope){
        .cos = c, .sin = s, .cos_t = ct, .sin_t = st, .max_pos = max_pos, .d_rot = d_rot};
}

void rope_free(struct rope *r)
{
    free((void *)r->cos);
    free((void *)r->sin);
    free((void *)r->cos_t);
    free((void *)r->sin_t);
    *r = (struct rope){0};
}

struct cache cache_make(const struct lab *l, enum dtype t, int n_kv, int d_head, int n_seqs,
                        int max_tokens)
{
    struct cache c = {.n_seqs = n_seqs};
    int per_seq = (max_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    c.n_blocks = per_seq * n_seqs;
    size_t block = kv_block_bytes(n_kv, d_head, t);
    assert_int_equal(
        buf_alloc(l->device, MEM_DEVICE, block * (size_t)c.n_blocks, &c.mem, NULL), 0);
    memset(c.mem.ptr, 0xff, c.mem.bytes); /* NaN in every type */
    c.kv = (struct kv_layer){.blocks = c.mem.ptr,
                             .block_stride = block,
                             .dtype = t,
                             .n_kv = n_kv,
                             .d_head = d_head};
    for (int s = 0; s < n_seqs; s++) {
        c.table[s] = xcalloc((size_t)per_seq, sizeof(int32_t));
        /* blocks of the sequences are interleaved and in descending order */
        for (int i = 0; i < per_seq; i++)
            c.table[s][i] = (per_seq - 1 - i) * n_seqs + s;
    }
    return c;
}

void cache_free(const struct lab *l, struct cache *c)
{
    buf_free(l->device, &c->mem);
    for (int s = 0; s < c->n_seqs; s++)
        free(c->table[s]);
}

struct test_batch batch_make(const struct cache *c, int n_seqs, const int *start,
                             const int *rows)
{
    struct test_batch b = {0};
    int n_rows = 0;
    for (int s = 0; s < n_seqs; s++)
        n_rows += rows[s];
    b.pos = xcalloc((size_t)n_rows, sizeof *b.pos);
    b.seq_row = xcalloc((size_t)n_seqs + 1, sizeof *b.seq_row);
    b.tables = xcalloc((size_t)n_seqs, sizeof *b.tables);
    for (int s = 0; s < n_seqs; s++) {
        for (int i = 0; i < rows[s]; i++)
            b.pos[b.seq_row[s] + i] = start[s] + i;
        b.seq_row[s + 1] = b.seq_row[s] + rows[s];
        b.tables[s] = c->table[s];
    }
    b.r = (struct ragged){.n_rows = n_rows,
                          .n_seqs = n_seqs,
                          .pos = b.pos,
                          .seq_row = b.seq_row,
                          .tables = b.tables};
    return b;
}

void batch_free(struct test_batch *b)
{
    free(b->pos);
    free(b->seq_row);
    free((void *)b->tables);
}
