/* bench_device.c - `hcache bench device`: what a device can do, through the operations that the engine
 * uses: copies up and down from pinned memory, products, prefill and decode attention, KV loading.
 *
 * It knows nothing of the device but its table of operations, so it is the same on a CPU and on a GPU,
 * and a first thing to run on a new machine.  Every result is the median of several runs, with the
 * rate that it makes; what is read is walked over in turn where a cache could hold it. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/pool.h"
#include "base/rng.h"
#include "tensor/ops.h"

struct device_args {
    const char *device, *dtype, *csv;
    int threads, runs, tokens;
    uint64_t copy_bytes;
};

static const struct opt device_options[] = {
    {"device", OPT(struct device_args, device), .arg = "NAME", .def = "cpu",
     .help = "cpu, cuda or ref"},
    {"dtype", OPT(struct device_args, dtype), .arg = "T", .def = "bf16",
     .help = "f32, bf16 or f16: of weights and state"},
    {"csv", OPT(struct device_args, csv), .arg = "FILE",
     .help = "also write the results there"},
    {"threads", OPT(struct device_args, threads), .arg = "N", .def = "2", .min = 1,
     .max = 256, .help = "of a CPU"},
    {"runs", OPT(struct device_args, runs), .arg = "N", .def = "9", .min = 1, .max = 999,
     .help = "of which the median is told"},
    {"tokens", OPT(struct device_args, tokens), .arg = "N", .def = "4096", .min = 64,
     .max = 65536, .help = "history of the attention and restoration rows"},
    {"copy-bytes", OPT(struct device_args, copy_bytes), .arg = "BYTES", .def = "256M",
     .help = "of one copy"},
    {0},
};

static const struct opt_cmd device_cmd = {
    .name = "bench device",
    .summary = "Measures a device's copies, products, attention and KV loading.",
    .options = device_options,
    .values_bytes = sizeof(struct device_args),
};

enum { MAX_RUNS = 999 };

struct bench {
    struct device_args args;
    enum dtype dtype;
    FILE *csv;
    struct pool *pool;
    struct device *dev;
    struct stream *s;
    const struct ops *op;
    int rc;
};

/* --- measuring -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One thing to measure; i counts the runs, so that it can walk over its data. */
struct job {
    const char *kind, *shape;
    double work; /* flop, or bytes */
    bool is_flop;
    int inner; /* times per measurement, so that one is long beside the clock */
    int (*run)(struct bench *b, void *arg, int i);
    void *arg;
};

static void measure(struct bench *b, const struct job *j)
{
    static double t[MAX_RUNS];
    int n = 0, count = 0;
    for (int r = -1; r < b->args.runs && b->rc == 0; r++) { /* the first warms up */
        int64_t t0 = clock_now_ns();
        for (int i = 0; i < j->inner && b->rc == 0; i++)
            b->rc = j->run(b, j->arg, count++);
        if (b->rc == 0)
            b->rc = stream_sync(b->s);
        if (r >= 0)
            t[n++] = (double)(clock_now_ns() - t0) / j->inner * 1e-9;
    }
    if (b->rc != 0) {
        printf("%-12s %-28s failed: %s\n", j->kind, j->shape, err_name(b->rc));
        return;
    }
    qsort(t, (size_t)n, sizeof t[0], by_value);
    double mid = t[n / 2], rate = j->work / mid / (j->is_flop ? 1e12 : 1e9);
    printf("%-12s %-28s %10.3f ms  %9.2f %s  (%.3f to %.3f ms)\n", j->kind, j->shape,
           mid * 1e3, rate, j->is_flop ? "TFLOP/s" : "GB/s", t[0] * 1e3, t[n - 1] * 1e3);
    fflush(stdout);
    if (b->csv != NULL)
        fprintf(b->csv, "%s,%s,%s,%s,%.6f,%.6f,%.6f,%.3f,%s\n", b->dev->name,
                dtype_name(b->dtype), j->kind, j->shape, mid * 1e3, t[0] * 1e3,
                t[n - 1] * 1e3, rate, j->is_flop ? "TFLOP/s" : "GB/s");
}

/* Random small numbers of the type, on the device: a pattern of 1 MiB, copied. */
static struct buf random_buf(struct bench *b, size_t bytes)
{
    enum { PATTERN = 1 << 20 };
    struct buf out = {0}, host = {0};
    struct err err;
    struct rng rng = {7};
    b->rc = buf_alloc(b->dev, MEM_DEVICE, bytes, &out, &err);
    if (b->rc == 0)
        b->rc = buf_alloc(b->dev, MEM_PINNED, PATTERN, &host, &err);
    if (b->rc != 0) {
        fprintf(stderr, "hcache bench device: %s\n", err.msg);
        return out;
    }
    for (size_t i = 0; i < PATTERN / dtype_bytes(b->dtype); i++) {
        float f = (float)(rng_unit(&rng) - 0.5);
        if (b->dtype == DTYPE_F32)
            ((float *)host.ptr)[i] = f;
        else
            ((uint16_t *)host.ptr)[i] = b->dtype == DTYPE_F16 ? f32_to_f16(f)
                                                              : f32_to_bf16(f);
    }
    for (size_t at = 0; at < bytes && b->rc == 0; at += PATTERN)
        b->rc = stream_copy(b->s, (uint8_t *)out.ptr + at, host.ptr,
                            bytes - at < PATTERN ? bytes - at : PATTERN);
    if (b->rc == 0)
        b->rc = stream_sync(b->s);
    buf_free(b->dev, &host);
    return out;
}

/* --- copies ----------------------------------------------------------------------------------- */

struct copy_arg {
    void *to;
    const void *from;
    size_t bytes;
};

static int run_copy(struct bench *b, void *arg, int i)
{
    const struct copy_arg *c = arg;
    (void)i;
    return stream_copy(b->s, c->to, c->from, c->bytes);
}

static void bench_copies(struct bench *b)
{
    struct buf pinned = {0}, other;
    struct err err;
    size_t n = (size_t)b->args.copy_bytes;
    struct buf device = random_buf(b, n);
    other = random_buf(b, n);
    if (b->rc == 0 && (b->rc = buf_alloc(b->dev, MEM_PINNED, n, &pinned, &err)) != 0)
        fprintf(stderr, "hcache bench device: %s\n", err.msg);
    struct copy_arg up = {device.ptr, pinned.ptr, n}, down = {pinned.ptr, device.ptr, n},
                    inside = {other.ptr, device.ptr, n};
    char shape[40];
    snprintf(shape, sizeof shape, "%zu MiB", n >> 20);
    if (b->rc == 0) {
        measure(b, &(struct job){"copy up", shape, (double)n, false, 4, run_copy, &up});
        measure(b, &(struct job){"copy down", shape, (double)n, false, 4, run_copy, &down});
        measure(b, &(struct job){"copy inside", shape, 2.0 * (double)n, false, 4, run_copy,
                                 &inside});
    }
    buf_free(b->dev, &pinned);
    buf_free(b->dev, &device);
    buf_free(b->dev, &other);
}

/* --- products --------------------------------------------------------------------------------- */

enum { MAX_WEIGHTS = 16 };

struct matmul_arg {
    struct mat c, a;
    struct weight w[MAX_WEIGHTS]; /* taken in turn */
    int n_weights;
};

static int run_matmul(struct bench *b, void *arg, int i)
{
    struct matmul_arg *m = arg;
    return b->op->matmul(b->s, m->c, m->a, &m->w[i % m->n_weights], NULL);
}

static enum dtype act_of(const struct bench *b)
{
    return b->dev->act_is_state ? b->dtype : b->dev->act_dtype;
}

static void bench_matmul(struct bench *b, int m, int n, int k)
{
    enum dtype act = act_of(b);
    struct matmul_arg arg = {.n_weights = m <= 32 ? MAX_WEIGHTS : 1};
    char shape[40];
    snprintf(shape, sizeof shape, "m %d, n %d, k %d", m, n, k);
    /* The activations' pattern serves for every type: its bits are small numbers as bf16 pairs, too. */
    struct buf a = random_buf(b, (size_t)m * (size_t)k * dtype_bytes(act)),
               c = random_buf(b, (size_t)m * (size_t)n * dtype_bytes(act)), src = {0};
    struct err err;
    size_t rows_bytes = (size_t)n * (size_t)k * dtype_bytes(b->dtype);
    if (b->rc == 0)
        b->rc = buf_alloc(b->dev, MEM_HOST, rows_bytes, &src, &err);
    struct rng rng = {3};
    for (size_t i = 0; b->rc == 0 && i < rows_bytes / 2; i++) /* near 1/64 in every type */
        ((uint16_t *)src.ptr)[i] = (uint16_t)(0x2400 | (rng_u64(&rng) & 0x80ff));
    for (int i = 0; b->rc == 0 && i < arg.n_weights; i++) {
        arg.w[i] = (struct weight){.dtype = b->dtype, .n = n, .k = k};
        b->rc = buf_alloc(b->dev, MEM_DEVICE, b->op->weight_bytes(b->dtype, n, k),
                          &arg.w[i].mem, &err);
        if (b->rc == 0)
            b->rc = b->op->weight_pack(b->s, &arg.w[i], 0, src.ptr, n);
    }
    arg.a = mat_of(a.ptr, act, m, k);
    arg.c = mat_of(c.ptr, act, m, n);
    bool few = m <= 32;
    double work = few ? (double)rows_bytes : 2.0 * m * n * k;
    if (b->rc == 0)
        measure(b, &(struct job){few ? "product, few" : "product", shape, work, !few,
                                 few ? MAX_WEIGHTS : 4, run_matmul, &arg});
    for (int i = 0; i < arg.n_weights; i++)
        buf_free(b->dev, &arg.w[i].mem);
    buf_free(b->dev, &src);
    buf_free(b->dev, &a);
    buf_free(b->dev, &c);
}

/* --- attention and restoration over a cache of Llama-2-7B's shape ------------------------------- */

enum { HEADS = 32, D_HEAD = 128 };

struct cache_arg {
    struct kv_layer kv;
    struct mat q, out;
    struct ragged r;
    int32_t *pos, *table, seq_row[2];
    const int32_t *tables[1];
    uint8_t *chunks;
    struct rope rope;
    int n_blocks;
};

static int run_attention(struct bench *b, void *arg, int i)
{
    struct cache_arg *c = arg;
    (void)i;
    return b->op->attention(b->s, c->out, c->q, &c->kv, &c->r, 0.0883883f, 0);
}

/* All chunks of a layer from staging into the cache. */
static int run_load(struct bench *b, void *arg, int i)
{
    struct cache_arg *c = arg;
    int rc = 0;
    (void)i;
    for (int k = 0; k < c->n_blocks && rc == 0; k++)
        rc = b->op->kv_load(b->s, &c->kv, k, c->chunks + (size_t)k * c->kv.block_stride,
                            &c->rope, k * KV_BLOCK_TOKENS);
    return rc;
}

static void bench_attention(struct bench *b, int n_kv, int n_rows)
{
    enum dtype act = act_of(b);
    int n_tokens = b->args.tokens, n_blocks = (n_tokens + 63) / 64,
        start = n_tokens - n_rows;
    size_t block = kv_block_bytes(n_kv, D_HEAD, b->dtype);
    size_t q_bytes = (size_t)n_rows * HEADS * D_HEAD * dtype_bytes(act);
    struct buf kv = random_buf(b, block * (size_t)n_blocks), q = random_buf(b, q_bytes),
               out = random_buf(b, q_bytes), chunks = {0};
    struct cache_arg c = {.kv = {kv.ptr, block, b->dtype, n_kv, D_HEAD},
                          .q = mat_of(q.ptr, act, n_rows, HEADS * D_HEAD),
                          .out = mat_of(out.ptr, act, n_rows, HEADS * D_HEAD),
                          .seq_row = {0, n_rows},
                          .rope = {.max_pos = (int64_t)n_blocks * 64},
                          .n_blocks = n_blocks};
    c.pos = xcalloc((size_t)n_rows, sizeof *c.pos);
    c.table = xcalloc((size_t)n_blocks, sizeof *c.table);
    for (int i = 0; i < n_rows; i++)
        c.pos[i] = start + i;
    for (int i = 0; i < n_blocks; i++)
        c.table[i] = i;
    c.tables[0] = c.table;
    c.r = (struct ragged){.n_rows = n_rows,
                          .n_seqs = 1,
                          .pos = c.pos,
                          .seq_row = c.seq_row,
                          .tables = c.tables,
                          .id = ragged_new_id()};
    char shape[60];
    snprintf(shape, sizeof shape, "%d rows at %d, %d kv", n_rows, start, n_kv);
    double pairs = (double)n_rows * (start + (n_rows + 1) / 2.0);
    bool decode = n_rows == 1;
    double work = decode ? (double)block / 64 * n_tokens : 4.0 * HEADS * D_HEAD * pairs;
    if (b->rc == 0)
        measure(b, &(struct job){decode ? "decode" : "prefill", shape, work, !decode,
                                 decode ? 8 : 2, run_attention, &c});
    if (b->rc == 0 && decode) {
        chunks = random_buf(b, block * (size_t)n_blocks);
        c.chunks = chunks.ptr;
        snprintf(shape, sizeof shape, "%d tokens, %d kv", n_tokens, n_kv);
        if (b->rc == 0)
            measure(b, &(struct job){"kv_load", shape, 2.0 * (double)block * n_blocks,
                                     false, 2, run_load, &c});
    }
    buf_free(b->dev, &kv);
    buf_free(b->dev, &q);
    buf_free(b->dev, &out);
    buf_free(b->dev, &chunks);
    free(c.pos);
    free(c.table);
}

/* --- all of it -------------------------------------------------------------------------------- */

static int open_all(struct bench *b, struct err *err)
{
    int rc = dtype_parse(b->args.dtype, &b->dtype);
    if (rc != 0)
        return err_set(err, ERR_USAGE, "--dtype %s: must be f32, f16 or bf16",
                       b->args.dtype);
    b->pool = pool_create(b->args.threads);
    rc = device_open(b->args.device, b->pool, &b->dev, err);
    if (rc == 0)
        rc = stream_create(b->dev, STREAM_COMPUTE, &b->s, err);
    if (rc != 0)
        return rc;
    b->op = b->dev->ops;
    if (b->args.csv != NULL && (b->csv = fopen(b->args.csv, "w")) == NULL)
        return err_set(err, ERR_USAGE, "cannot write %s", b->args.csv);
    if (b->csv != NULL)
        fprintf(b->csv, "device,dtype,kind,shape,median_ms,min_ms,max_ms,rate,unit\n");
    return 0;
}

static void run_all(struct bench *b)
{
    static const int sizes[][3] = {{1, 4096, 4096},    {1, 11008, 4096},  {8, 4096, 4096},
                                   {32, 4096, 4096},   {512, 4096, 4096}, {512, 8192, 4096},
                                   {512, 22016, 4096}, {2048, 8192, 4096}};
    bool slow = strcmp(b->dev->name, "cuda") !=
                0; /* a CPU would take minutes over the largest */
    bench_copies(b);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && b->rc == 0; i++)
        if (!slow || sizes[i][0] < 512 || sizes[i][1] == 4096)
            bench_matmul(b, sizes[i][0], sizes[i][1], sizes[i][2]);
    for (int n_kv = HEADS; n_kv >= 8 && b->rc == 0; n_kv /= 4) {
        bench_attention(b, n_kv, 1);
        bench_attention(b, n_kv, b->args.tokens < 512 ? b->args.tokens : 512);
    }
}

int bench_device(int argc, char **argv)
{
    struct bench b = {0};
    struct err err = {0};
    struct opt_parsed *parsed;
    int code;
    if (!opt_begin(&device_cmd, argc, argv, &b.args, &parsed, &code))
        return code;
    if (open_all(&b, &err) != 0) {
        fprintf(stderr, "hcache bench device: %s\n", err.msg);
        b.rc = err.code;
    } else {
        printf("device %s: %s\n", b.dev->name, b.dev->isa);
        run_all(&b);
    }
    if (b.csv != NULL)
        fclose(b.csv);
    stream_destroy(b.s);
    if (b.dev != NULL)
        device_close(b.dev);
    pool_destroy(b.pool);
    opt_end(parsed);
    return b.rc == 0 ? 0 : b.rc == ERR_USAGE ? 2 : 1;
}
