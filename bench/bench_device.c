/* bench_device.c - `hcache bench device`, and `bench kernels --device` for devices other than the
 * CPU. It measures products, prefill and decode attention, KV loading, the operations between them,
 * checksums, and copies to the device, through the operations that the engine uses.
 *
 * It knows only the device's table of operations, so it works alike on a CPU and a GPU, and is the
 * first program to run on a new machine. Every result is the median of several runs, with its rate
 * and its share of a limit that is measured first (device_rig.h). Several copies of the data are
 * used in turn, so that no cache holds them.
 *
 * A group of devices (--tensor-parallel, --pipeline-parallel) does each operation like one device.
 * So only the additional parts of a group are measured: exchanges between ranks, copies to the
 * device that ranks share, and copies from one stage to the next. */
#include "apps/option_tables.h"
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "opt/opt.h"
#include "base/pool.h"
#include "base/rng.h"
#include "bench/device_rig.h"
#include "api/stack.h"
#include "tensor/group.h"

static const struct opt device_options[] = {
    {"device", OPT(struct device_table, engine.o.device), .choices = engine_devices,
     .def = "cpu", .help = "device to measure"},
    OPT_CUDA_MATH(struct device_table),
    OPT_DEVICE_TUNING(struct device_table),
    {"dtype", OPT(struct device_table, engine.o.dtype), .choices = engine_dtypes,
     .def = "bf16", .help = "type of weights and state"},
    {"only", OPT(struct device_table, only), .arg = "TEXT",
     .help = "only rows whose kind and shape, as printed, contain TEXT"},
    {"csv", OPT(struct device_table, csv), .arg = "FILE",
     .help = "also write the results to FILE"},
    {"threads", OPT(struct device_table, engine.o.threads), .arg = "N", .def = "2",
     .min = 1, .max = 256, .help = "compute threads of a CPU"},
    OPT_PARALLEL(struct device_table),
    {"runs", OPT(struct device_table, runs), .arg = "N", .def = "9", .min = 1, .max = 999,
     .help = "number of runs, whose median is printed"},
    {"tokens", OPT(struct device_table, tokens), .arg = "N", .def = "4096", .min = 64,
     .max = 65536, .help = "history of the attention and restoration rows"},
    {"width", OPT(struct device_table, width), .arg = "N", .def = "4096", .min = 256,
     .max = 16384, .help = "width of the model's state, a multiple of 128: heads have 128"},
    {0},
};

static const struct opt_cmd device_cmd = {
    .name = "bench device",
    .summary = "Measures a device's products, attention and KV loading as shares of its "
               "limits; for several devices, their exchanges.",
    .options = device_options,
    .values_bytes = sizeof(struct device_table),
};
const struct opt_cmd *const options_of_bench_device = &device_cmd;

struct bench {
    const struct device_table *o;
    struct rig rig;
    struct device_ceilings most;
    FILE *csv;
};

enum { D_HEAD = 128 };

/* --- rows ------------------------------------------------------------------------------------- */

enum bound { OF_MEMORY, OF_GEMM, OF_UP };

/* A measurement. Its run function gets a counter that chooses the copy of the data. */
struct job {
    const char *kind;
    char shape[60];
    /* work of a run: flop, bytes of device memory, or bytes copied to the device, by `bound` */
    double work;
    enum bound of;
    /* calls per run: enough that a run is long compared with the clock's resolution */
    int inner;
    int (*run)(struct rig *r, void *arg, int i);
    void *arg;
};

static int measure(struct bench *b, const struct job *j, struct err *err)
{
    struct spread t;
    char text[128];
    snprintf(text, sizeof text, "%s %s", j->kind, j->shape);
    if (b->o->only != NULL && strstr(text, b->o->only) == NULL)
        return 0;
    int rc = rig_time(&b->rig, j->run, j->arg, j->inner, b->o->runs, &t, err);
    if (rc != 0)
        return err_wrap(err, "%s", text);
    const double ceilings[] = {b->most.memory_bytes_per_s, b->most.gemm_flops,
                               b->most.up_bytes_per_s};
    double ceiling = ceilings[j->of];
    double rate = j->work / t.median, unit = j->of == OF_GEMM ? 1e12 : 1e9;
    double share = ceiling > 0 ? rate / ceiling : 0;
    const char *of = (const char *[]){"memory", "GEMM", "up"}[j->of],
               *name = j->of == OF_GEMM ? "TFLOP/s" : "GB/s";
    printf("%-12s %-28s %10.3f ms  %9.2f %-7s %5.2f of %-6s  (%.3f to %.3f ms)\n", j->kind,
           j->shape, t.median * 1e3, rate / unit, name, share, of, t.min * 1e3,
           t.max * 1e3);
    fflush(stdout);
    if (b->csv == NULL)
        return 0;
    fprintf(b->csv, "%s,%s,%s,\"%s\",%.6f,%.6f,%.6f,%.3f,%s,%.4f,%s\n", b->rig.dev->name,
            dtype_name(b->rig.dtype), j->kind, j->shape, t.median * 1e3, t.min * 1e3,
            t.max * 1e3, rate / unit, name, share, of);
    fflush(b->csv); /* an interrupted run keeps its rows */
    return 0;
}

/* --- products --------------------------------------------------------------------------------- */

enum { MAX_WEIGHTS = 16, FEW_ROWS = 32 };

struct matmul_arg {
    struct mat c, a;
    struct weight w[MAX_WEIGHTS]; /* used in turn */
    int n_weights;
};

static int run_matmul(struct rig *r, void *arg, int i)
{
    struct matmul_arg *m = arg;
    return r->op->matmul(r->s, m->c, m->a, &m->w[i % m->n_weights], NULL);
}

/* Measures a product. With few rows its time is that of reading the weights. */
static int bench_matmul(struct bench *b, int m, int n, int k, struct err *err)
{
    struct rig *r = &b->rig;
    enum dtype act = rig_act_dtype(r);
    bool few = m <= FEW_ROWS;
    struct matmul_arg arg = {.n_weights = few ? MAX_WEIGHTS : 1};
    size_t weight_bytes = (size_t)n * (size_t)k * dtype_bytes(r->dtype);
    struct job j = {.kind = few ? "few rows" : "product",
                    .work = few ? (double)weight_bytes : 2.0 * m * n * k,
                    .of = few ? OF_MEMORY : OF_GEMM,
                    .inner = few ? MAX_WEIGHTS : 4,
                    .run = run_matmul,
                    .arg = &arg};
    struct buf a = {0}, c = {0};
    int rc = rig_random(r, (size_t)m * (size_t)k * dtype_bytes(act), &a, err);
    if (rc == 0)
        rc = rig_random(r, (size_t)m * (size_t)n * dtype_bytes(act), &c, err);
    for (int i = 0; rc == 0 && i < arg.n_weights; i++) {
        arg.w[i] = (struct weight){.dtype = r->dtype, .n = n, .k = k};
        rc = rig_random(r, r->op->weight_bytes(r->dtype, n, k), &arg.w[i].mem, err);
    }
    arg.a = mat_of(a.ptr, act, m, k);
    arg.c = mat_of(c.ptr, act, m, n);
    snprintf(j.shape, sizeof j.shape, "m %d, n %d, k %d", m, n, k);
    if (rc == 0)
        rc = measure(b, &j, err);
    for (int i = 0; i < arg.n_weights; i++)
        buf_free(r->dev, &arg.w[i].mem);
    buf_free(r->dev, &a);
    buf_free(r->dev, &c);
    return rc;
}

/* --- attention and loading, over one layer's cache -------------------------------------------- */

struct cache_arg {
    struct kv_layer kv;
    struct mat q, out;
    struct ragged r;
    int32_t *pos, *table, seq_row[2];
    const int32_t *tables[1];
    struct buf kv_mem, q_mem, out_mem, chunks;
    struct rope rope;
    /* n_blocks: blocks of one cache; n_caches: caches that are used in turn */
    int n_blocks, n_caches;
};

/* More bytes than the caches of a GPU hold. */
#define WALKED_BYTES ((size_t)256 << 20)

/* Returns the offset of cache i, in bytes. */
static size_t cache_offset(const struct cache_arg *c, int i)
{
    return (size_t)(i % c->n_caches) * (size_t)c->n_blocks * c->kv.block_stride;
}

static int run_attention(struct rig *r, void *arg, int i)
{
    struct cache_arg *c = arg;
    struct kv_layer kv = c->kv;
    kv.blocks += cache_offset(c, i);
    return r->op->attention(r->s, c->out, c->q, &kv, &c->r,
                            &(struct attention_rule){.scale = 0.0883883f});
}

/* Loads all chunks of a layer from staging into the cache. */
static int run_load(struct rig *r, void *arg, int i)
{
    struct cache_arg *c = arg;
    struct kv_layer kv = c->kv;
    kv.blocks += cache_offset(c, i);
    struct kv_chunks all = {.first = (uint8_t *)c->chunks.ptr + cache_offset(c, i),
                            .stride = c->kv.block_stride,
                            .blocks = c->table,
                            .n = c->n_blocks};
    return r->op->kv_load(r->s, &kv, &all, &c->rope);
}

static int cache_make(struct rig *r, int n_heads, int n_kv, int n_tokens, int n_rows,
                      struct cache_arg *c, struct err *err)
{
    enum dtype act = rig_act_dtype(r);
    size_t block = kv_block_bytes(n_kv, D_HEAD, r->dtype);
    size_t q_bytes = (size_t)n_rows * (size_t)(n_heads * D_HEAD) * dtype_bytes(act);
    int n = (n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    *c = (struct cache_arg){.rope = {.max_pos = (int64_t)n * KV_BLOCK_TOKENS},
                            .seq_row = {0, n_rows},
                            .n_blocks = n,
                            .n_caches = (int)(WALKED_BYTES / (block * (size_t)n)) + 1};
    c->pos = xcalloc((size_t)n_rows, sizeof *c->pos);
    c->table = xcalloc((size_t)n, sizeof *c->table);
    int rc = rig_random(r, block * (size_t)n * (size_t)c->n_caches, &c->kv_mem, err);
    if (rc == 0)
        rc = rig_random(r, block * (size_t)n * (size_t)c->n_caches, &c->chunks, err);
    if (rc == 0)
        rc = rig_random(r, q_bytes, &c->q_mem, err);
    if (rc == 0)
        rc = rig_random(r, q_bytes, &c->out_mem, err);
    for (int i = 0; i < n_rows; i++)
        c->pos[i] = n_tokens - n_rows + i;
    for (int i = 0; i < n; i++)
        c->table[i] = i;
    c->tables[0] = c->table;
    c->kv = (struct kv_layer){.blocks = c->kv_mem.ptr,
                              .block_stride = block,
                              .dtype = r->dtype,
                              .n_kv = n_kv,
                              .d_head = D_HEAD};
    c->q = mat_of(c->q_mem.ptr, act, n_rows, n_heads * D_HEAD);
    c->out = mat_of(c->out_mem.ptr, act, n_rows, n_heads * D_HEAD);
    c->r = (struct ragged){.n_rows = n_rows,
                           .n_seqs = 1,
                           .pos = c->pos,
                           .seq_row = c->seq_row,
                           .tables = c->tables,
                           .id = ragged_new_id()};
    return rc;
}

static void cache_drop(struct rig *r, struct cache_arg *c)
{
    buf_free(r->dev, &c->kv_mem);
    buf_free(r->dev, &c->chunks);
    buf_free(r->dev, &c->q_mem);
    buf_free(r->dev, &c->out_mem);
    free(c->pos);
    free(c->table);
}

static int bench_decode(struct bench *b, int n_heads, int n_kv, struct err *err)
{
    struct cache_arg c;
    int n_tokens = b->o->tokens;
    struct job j = {.kind = "decode", .inner = 8, .run = run_attention, .arg = &c};
    int rc = cache_make(&b->rig, n_heads, n_kv, n_tokens, 1, &c, err);
    j.work = (double)c.kv.block_stride / KV_BLOCK_TOKENS * n_tokens;
    snprintf(j.shape, sizeof j.shape, "1 row at %d, %d kv", n_tokens - 1, n_kv);
    if (rc == 0)
        rc = measure(b, &j, err);
    j.kind = "kv_load";
    j.work = 2.0 * (double)c.kv.block_stride * c.n_blocks;
    j.inner = 2;
    j.run = run_load;
    snprintf(j.shape, sizeof j.shape, "%d tokens, %d kv", n_tokens, n_kv);
    if (rc == 0)
        rc = measure(b, &j, err);
    cache_drop(&b->rig, &c);
    return rc;
}

static int bench_prefill(struct bench *b, int n_heads, int n_kv, struct err *err)
{
    struct cache_arg c;
    int n_tokens = b->o->tokens, n_rows = b->rig.dev->batch_rows;
    n_rows = n_tokens < n_rows ? n_tokens : n_rows;
    int start = n_tokens - n_rows;
    struct job j = {
        .kind = "prefill", .of = OF_GEMM, .inner = 2, .run = run_attention, .arg = &c};
    j.work = 4.0 * n_heads * D_HEAD * n_rows * (start + (n_rows + 1) / 2.0);
    snprintf(j.shape, sizeof j.shape, "%d rows at %d, %d kv", n_rows, start, n_kv);
    int rc = cache_make(&b->rig, n_heads, n_kv, n_tokens, n_rows, &c, err);
    if (rc == 0)
        rc = measure(b, &j, err);
    cache_drop(&b->rig, &c);
    return rc;
}

/* --- operations between a layer's products ---------------------------------------------------- */

struct between_arg {
    struct cache_arg *cache;
    struct mat x, summand, sum, normed, gate_up, ffn, kv_rows;
    const float *w;
};

static int run_add_norm(struct rig *r, void *arg, int i)
{
    const struct between_arg *a = arg;
    (void)i;
    return r->op->add_norm(r->s, a->normed, a->sum, a->x, a->summand, a->w, NULL, 1e-5f);
}

static int run_act_mul(struct rig *r, void *arg, int i)
{
    const struct between_arg *a = arg;
    (void)i;
    return r->op->act_mul(r->s, a->ffn, a->gate_up, ACTIVATION_SILU);
}

static int run_fill(struct rig *r, void *arg, int i)
{
    const struct between_arg *a = arg;
    const struct cache_arg *c = a->cache;
    (void)i;
    return r->op->rope_kv_fill(r->s, c->q, &c->kv, a->kv_rows, &c->rope, &c->r);
}

static size_t elements_bytes(struct mat m)
{
    return (size_t)(m.rows * m.cols) * dtype_bytes(m.dtype);
}

/* Measures the operations between products for `rows` rows, of a prompt or of a decode. Rotation is
 * left out: it needs a table and has hardly any memory traffic. */
static int bench_between(struct bench *b, int n_tokens, int rows, struct err *err)
{
    struct rig *r = &b->rig;
    enum dtype act = rig_act_dtype(r);
    int d = b->o->width, ffn = (int)(d * 2.6875);
    struct cache_arg c;
    struct between_arg a = {.cache = &c,
                            .x = mat_of(NULL, r->dtype, rows, d),
                            .summand = mat_of(NULL, DTYPE_F32, rows, d),
                            .sum = mat_of(NULL, DTYPE_F32, rows, d),
                            .normed = mat_of(NULL, act, rows, d),
                            .gate_up = mat_of(NULL, act, rows, 2 * ffn),
                            .ffn = mat_of(NULL, act, rows, ffn),
                            .kv_rows = mat_of(NULL, r->dtype, rows, 2 * d)};
    struct mat *mats[] = {&a.x,       &a.summand, &a.sum,    &a.normed,
                          &a.gate_up, &a.ffn,     &a.kv_rows};
    enum { N = sizeof mats / sizeof mats[0] };
    struct buf mem[N] = {{0}}, w = {0};
    int rc = cache_make(r, d / D_HEAD, d / D_HEAD, n_tokens, rows, &c, err);
    for (int i = 0; i < N && rc == 0; i++) {
        rc = rig_random(r, elements_bytes(*mats[i]), &mem[i], err);
        mats[i]->data = mem[i].ptr;
    }
    if (rc == 0)
        rc = rig_random(r, (size_t)d * sizeof(float), &w, err);
    a.w = w.ptr;
    struct job jobs[] = {{.kind = "add_norm", .run = run_add_norm, .arg = &a, .inner = 8},
                         {.kind = "act_mul", .run = run_act_mul, .arg = &a, .inner = 8},
                         {.kind = "kv_fill", .run = run_fill, .arg = &a, .inner = 8}};
    jobs[0].work = (double)(elements_bytes(a.x) + elements_bytes(a.summand) +
                            elements_bytes(a.sum) + elements_bytes(a.normed));
    jobs[1].work = (double)(elements_bytes(a.gate_up) + elements_bytes(a.ffn));
    jobs[2].work = 2.0 * (double)elements_bytes(a.kv_rows);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0] && rc == 0; i++) {
        snprintf(jobs[i].shape, sizeof jobs[i].shape, "%d rows of %d", rows,
                 i == 1 ? ffn : d);
        rc = measure(b, &jobs[i], err);
    }
    for (int i = 0; i < N; i++)
        buf_free(r->dev, &mem[i]);
    buf_free(r->dev, &w);
    cache_drop(r, &c);
    return rc;
}

/* --- copies of records to the device ---------------------------------------------------------- */

/* Each record has the size of the hidden states of a chunk of a 7B model. Records are not adjacent
 * in pinned memory: behind each that is copied lies one that is not. */
enum { RECORDS = 64, RECORD_BYTES = 512 << 10 };

struct records_arg {
    struct copy_part parts[RECORDS];
};

static int run_singly(struct rig *r, void *arg, int i)
{
    const struct records_arg *a = arg;
    int rc = 0;
    (void)i;
    for (int k = 0; k < RECORDS && rc == 0; k++)
        rc = stream_copy(r->s, a->parts[k].dst, a->parts[k].src, a->parts[k].bytes);
    return rc;
}

static int run_together(struct rig *r, void *arg, int i)
{
    const struct records_arg *a = arg;
    (void)i;
    return stream_copy_all(r->s, a->parts, RECORDS);
}

static int bench_records(struct bench *b, struct err *err)
{
    struct device *d = b->rig.dev;
    struct buf host = {0}, there = {0};
    struct records_arg a;
    struct job j = {.kind = "records up",
                    .work = (double)RECORDS * RECORD_BYTES,
                    .of = OF_UP,
                    .inner = 2,
                    .arg = &a};
    if (d->unified)
        return 0;
    int rc = buf_alloc(d, MEM_PINNED, (size_t)2 * RECORDS * RECORD_BYTES, &host, err);
    if (rc == 0)
        rc = buf_alloc(d, MEM_DEVICE, (size_t)RECORDS * RECORD_BYTES, &there, err);
    for (size_t i = 0; i < RECORDS && rc == 0; i++)
        a.parts[i] = (struct copy_part){(uint8_t *)there.ptr + i * RECORD_BYTES,
                                        (uint8_t *)host.ptr + 2 * i * RECORD_BYTES,
                                        RECORD_BYTES};
    for (int together = 0; together < 2 && rc == 0; together++) {
        j.run = together ? run_together : run_singly;
        snprintf(j.shape, sizeof j.shape, "%d of %d KiB, %s", RECORDS, RECORD_BYTES >> 10,
                 together ? "in one call" : "one by one");
        rc = measure(b, &j, err);
    }
    buf_free(d, &host);
    buf_free(d, &there);
    return rc;
}

/* --- sampling --------------------------------------------------------------------------------- */

struct sample_arg {
    struct mat logits;
    int32_t *ids;
    struct sample_row rows[FEW_ROWS];
};

static int run_sample(struct rig *r, void *arg, int i)
{
    struct sample_arg *a = arg;
    (void)i;
    return r->op->sample(r->s, a->ids, a->logits, a->rows);
}

/* Measures choosing the best token and a sampled token, for one row and for several, with a
 * vocabulary of eight times the model's width. */
static int bench_sample(struct bench *b, struct err *err)
{
    static const struct {
        const char *name;
        struct sample_row how;
    } ways[] = {
        {"greedy", {.top_p = 1}},
        {"temperature", {.temperature = 0.05f, .top_p = 1, .draw = 0.5}},
        {"top-k", {.temperature = 0.05f, .top_p = 1, .top_k = 50, .draw = 0.5}},
        {"top-p", {.temperature = 0.05f, .top_p = 0.9f, .draw = 0.5}},
        {"top-k, top-p", {.temperature = 0.05f, .top_p = 0.9f, .top_k = 50, .draw = 0.5}}};
    struct rig f32 = b->rig;
    struct buf mem;
    int64_t vocab = (int64_t)8 * b->o->width;
    size_t row_bytes = (size_t)vocab * sizeof(float), bytes = FEW_ROWS * row_bytes;
    f32.dtype = DTYPE_F32;
    int rc = rig_random(&f32, bytes + FEW_ROWS * sizeof(int32_t), &mem, err);
    if (rc != 0)
        return rc;
    struct sample_arg a = {.ids = (int32_t *)(void *)((uint8_t *)mem.ptr + bytes)};
    for (int n = 1; n <= FEW_ROWS; n *= FEW_ROWS)
        for (size_t w = 0; w < sizeof ways / sizeof ways[0] && rc == 0; w++) {
            struct job j = {.kind = "sample", .inner = 2, .run = run_sample, .arg = &a};
            a.logits = mat_of(mem.ptr, DTYPE_F32, n, vocab);
            for (int i = 0; i < n; i++)
                a.rows[i] = ways[w].how;
            j.work = (double)n * (double)row_bytes;
            snprintf(j.shape, sizeof j.shape, "%d of %d, %s", n, (int)vocab, ways[w].name);
            rc = measure(b, &j, err);
        }
    buf_free(b->rig.dev, &mem);
    return rc;
}

/* --- checksums -------------------------------------------------------------------------------- */

struct checksum_arg {
    const void *records;
    uint64_t *out;
    uint32_t n_bytes[128];
    int n, n_sets; /* n: records of a set; n_sets: sets that are used in turn */
};

static int run_checksum(struct rig *r, void *arg, int i)
{
    const struct checksum_arg *a = arg;
    size_t stride = a->n_bytes[0];
    const uint8_t *first = (const uint8_t *)a->records +
                           (size_t)(i % a->n_sets * a->n) * stride;
    return r->op->checksum(r->s, a->out, first, stride, a->n_bytes, a->n);
}

/* Measures checksums of as many records as a restore checks at once, and of as many as fill the
 * device. Each record has the hidden states of 64 tokens. */
static int bench_checksum(struct bench *b, struct err *err)
{
    enum { MOST = 128 };
    struct checksum_arg a = {0};
    struct buf mem;
    uint32_t record = (uint32_t)(KV_BLOCK_TOKENS * (size_t)b->o->width *
                                 dtype_bytes(b->rig.dtype));
    int rc = rig_random(&b->rig, MOST * (size_t)record + MOST * sizeof *a.out, &mem, err);
    if (rc != 0)
        return rc;
    a.records = mem.ptr;
    a.out = (uint64_t *)(void *)((uint8_t *)mem.ptr + MOST * (size_t)record);
    for (int i = 0; i < MOST; i++)
        a.n_bytes[i] = record;
    for (int n = 8; n <= MOST && rc == 0; n *= 16) {
        struct job j = {.kind = "checksum", .inner = 4, .run = run_checksum, .arg = &a};
        a.n = n;
        a.n_sets = MOST / n;
        j.work = (double)n * record;
        snprintf(j.shape, sizeof j.shape, "%d of %u KiB", n, record >> 10);
        rc = measure(b, &j, err);
    }
    buf_free(b->rig.dev, &mem);
    return rc;
}

/* --- several devices -------------------------------------------------------------------------- */

struct exchange_arg {
    /* whole: the parts of all ranks, side by side; own: one rank's part */
    struct mat whole, own;
    void *far; /* memory on the last stage */
    const void *host;
    size_t bytes;
};

static int run_gather(struct rig *r, void *arg, int i)
{
    const struct exchange_arg *x = arg;
    (void)i;
    return all_gather(r->s, x->whole, x->own);
}

static int run_up(struct rig *r, void *arg, int i)
{
    const struct exchange_arg *x = arg;
    (void)i;
    return stream_copy(r->s, x->whole.data, x->host, x->bytes);
}

static int run_cross(struct rig *r, void *arg, int i)
{
    const struct exchange_arg *x = arg;
    (void)i;
    return stream_copy(r->s, x->far, x->own.data, x->bytes);
}

/* Measures exchanges of rows of hidden states: gathering the ranks' runs of a layer's product
 * (f32), and copying rows to the next stage (in the state's dtype). */
static int measure_exchanges(struct bench *b, int rows, struct exchange_arg *x,
                             struct err *err)
{
    int64_t d = b->o->width;
    const struct device *dev = b->rig.dev;
    struct mat run = mat_of(x->own.data, DTYPE_F32, rows, d / dev->n_ranks);
    struct mat part = mat_of(x->own.data, b->rig.dtype, rows, d);
    size_t part_bytes = (size_t)(rows * d) * dtype_bytes(b->rig.dtype);
    struct exchange_arg gather = {.own = run}, cross = {.own = part};
    gather.whole = mat_of(x->whole.data, DTYPE_F32, rows, run.cols * dev->n_ranks);
    cross.far = x->far;
    cross.bytes = part_bytes;
    struct job jobs[] = {
        {.kind = "all_gather", .run = run_gather, .arg = &gather, .inner = 8},
        {.kind = "cross", .run = run_cross, .arg = &cross, .inner = 8}};
    jobs[0].work = (double)rows * (double)d * sizeof(float);
    jobs[1].work = (double)part_bytes;
    int rc = 0;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0] && rc == 0; i++) {
        snprintf(jobs[i].shape, sizeof jobs[i].shape, "%d rows of %d", rows, (int)d);
        if (i == 1 ? dev->n_stages > 1 : dev->n_ranks > 1)
            rc = measure(b, &jobs[i], err);
    }
    return rc;
}

static int measure_up(struct bench *b, struct exchange_arg *x, struct err *err)
{
    struct job j = {.kind = "copy up",
                    .work = (double)x->bytes,
                    .of = OF_UP,
                    .inner = 2,
                    .run = run_up,
                    .arg = x};
    snprintf(j.shape, sizeof j.shape, "%.1f MiB, %d ranks", (double)x->bytes / (1 << 20),
             b->rig.dev->n_ranks);
    return b->rig.dev->unified ? 0 : measure(b, &j, err);
}

static int run_exchanges(struct bench *b, struct err *err)
{
    enum { MOST_ROWS = 512 };
    struct device *d = b->rig.dev;
    size_t bytes = MOST_ROWS * (size_t)b->o->width * sizeof(float);
    size_t whole_bytes = bytes * (size_t)d->n_ranks;
    struct buf own = {0}, whole = {0}, far = {0}, host = {0};
    int rc = rig_random(&b->rig, bytes, &own, err);
    if (rc == 0)
        rc = rig_random(&b->rig, whole_bytes, &whole, err);
    if (rc == 0)
        rc = stage_alloc(d, d->n_stages - 1, bytes, &far, err);
    if (rc == 0)
        rc = buf_alloc(d, MEM_PINNED, bytes, &host, err);
    struct exchange_arg x = {.whole = mat_of(whole.ptr, DTYPE_F32, 1, 1),
                             .own = mat_of(own.ptr, DTYPE_F32, 1, 1),
                             .far = far.ptr,
                             .host = host.ptr,
                             .bytes = bytes};
    const int rows[] = {1, 32, MOST_ROWS};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && rc == 0; i++)
        rc = measure_exchanges(b, rows[i], &x, err);
    if (rc == 0)
        rc = measure_up(b, &x, err);
    buf_free(d, &own);
    buf_free(d, &whole);
    buf_free(d, &far);
    buf_free(d, &host);
    return rc;
}

/* --- all measurements ------------------------------------------------------------------------- */

/* Runs all measurements. The products are those of a layer of Llama-2-7B, scaled to the requested
 * width (its own is 4096), for a decode and for prefill. */
static int run_all(struct bench *b, struct err *err)
{
    int d = b->o->width, ffn = (int)(d * 2.6875), heads = d / D_HEAD, rc = 0;
    const int sizes[][3] = {{1, d, d},         {1, ffn, d},  {8, d, d},
                            {32, d, d},        {512, d, d},  {512, 2 * d, d},
                            {512, 2 * ffn, d}, {2048, d, d}, {2048, 2 * d, d},
                            {2048, 2 * ffn, d}};
    /* A slow device leaves out the largest products, which would take minutes. */
    bool slow = b->most.gemm_flops < 1e13 && d > 1024;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++)
        if (!slow || sizes[i][0] < 512 || sizes[i][1] == d)
            rc = bench_matmul(b, sizes[i][0], sizes[i][1], sizes[i][2], err);
    for (int group = 1; group <= 4 && group <= heads && rc == 0; group *= 4) {
        rc = bench_decode(b, heads, heads / group, err);
        if (rc == 0)
            rc = bench_prefill(b, heads, heads / group, err);
    }
    if (rc == 0)
        rc = bench_between(b, b->o->tokens, 1, err);
    if (rc == 0)
        rc = bench_between(b, b->o->tokens, slow ? 64 : b->o->tokens, err);
    if (rc == 0)
        rc = bench_records(b, err);
    if (rc == 0)
        rc = bench_sample(b, err);
    return rc == 0 ? bench_checksum(b, err) : rc;
}

static int run_on(struct bench *b, struct device *d, struct err *err)
{
    enum dtype t = DTYPE_BF16;
    int rc = dtype_parse(b->o->engine.o.dtype, &t);
    if (rc == 0)
        rc = rig_open(d, t, &b->rig, err);
    if (rc == 0)
        rc = device_ceilings_measure(&b->rig, &b->most, err);
    if (rc == 0) {
        device_ceilings_print(&b->most, &b->rig);
        rc = d->n_ranks * d->n_stages > 1 ? run_exchanges(b, err) : run_all(b, err);
    }
    rig_close(&b->rig);
    return rc;
}

int device_table_run(const struct device_table *o, struct err *err)
{
    struct bench b = {.o = o};
    struct device *d = NULL;
    if (o->width % (4 * D_HEAD) != 0 && o->width != 2 * D_HEAD)
        return err_set(err, ERR_USAGE, "--width %d: must be 256 or a multiple of 512",
                       o->width);
    if (o->csv != NULL && (b.csv = fopen(o->csv, "w")) == NULL)
        return err_set(err, -errno, "%s: %s", o->csv, strerror(errno));
    if (b.csv != NULL)
        fprintf(b.csv, "device,dtype,kind,shape,median_ms,min_ms,max_ms,rate,unit,share,"
                       "ceiling\n");
    struct pool *pool = NULL;
    const struct device_opts d_opts = stack_device_opts(&o->engine.o);
    int rc = pool_create(o->engine.o.threads, &pool, err);
    if (rc == 0)
        rc = group_open(o->engine.o.device, &d_opts, o->engine.o.tensor_parallel,
                        o->engine.o.pipeline_parallel, pool, &d, err);
    if (rc == 0)
        rc = run_on(&b, d, err);
    device_close(d);
    pool_destroy(pool);
    if (b.csv != NULL && fclose(b.csv) != 0 && rc == 0)
        rc = err_set(err, -errno, "%s: %s", o->csv, strerror(errno));
    return rc;
}

int bench_device(int argc, char **argv)
{
    struct device_table a;
    struct err err = {0};
    struct opt_parsed *parsed;
    int code;
    if (!opt_begin(&device_cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = device_table_run(&a, &err);
    opt_end(parsed);
    return bench_end("device", rc, &err);
}
