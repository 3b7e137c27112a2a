/* bench_kernels.c - `hcache bench kernels`: every kernel of the cpu device as a share of the
 * machine's limits. (bench_device.c measures the kernels of other devices.)
 *
 * Limits are measured first, in the same run (ceilings.h): the rate of 8-bit products for products
 * with quantised weights, the FMA rate for others and for prefill attention, memory reads for
 * decode, memory copies for kv_fill.  Shapes are the `bench` rows of tests/tensor/cases.h.  Data
 * that decode reads (weights, caches) are used in turn, so that no cache holds them.  --isa selects
 * the kernels, and OPENBLAS_CORETYPE those of OpenBLAS.  OpenBLAS may use AVX-512 when --isa asks
 * for AVX2; OPENBLAS_CORETYPE=Haswell makes the two comparable. */
#include "apps/option_tables.h"
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tensor/cases.h"
#include "base/check.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/pool.h"
#include "base/rng.h"
#include "bench/ceilings.h"
#include "tensor/ops.h"

struct bench_args {
    const char *csv;
    const char *only;
    struct engine_args engine; /* the device, its dtype, threads and ranks */
    int tokens, width;
    double seconds;
};

static const struct opt bench_options[] = {
    {"device", OPT(struct bench_args, engine.o.device), .choices = engine_devices,
     .def = "cpu", .help = "device whose kernels are measured"},
    OPT_CUDA_MATH(struct bench_args),
    OPT_DEVICE_TUNING(struct bench_args),
    {"csv", OPT(struct bench_args, csv), .arg = "FILE",
     .help = "also write the results to FILE"},
    {"only", OPT(struct bench_args, only), .arg = "TEXT",
     .help = "only kernels whose name and shape, as printed, contain TEXT"},
    {"threads", OPT(struct bench_args, engine.o.threads), .arg = "N", .def = "2", .min = 1,
     .max = 256, .help = "measure 1 and N threads"},
    OPT_PARALLEL(struct bench_args),
    {"seconds", OPT(struct bench_args, seconds), .arg = "S", .def = "0.3", .lo = 0.01,
     .hi = 60, .help = "time of each measurement"},
    {"dtype", OPT(struct bench_args, engine.o.dtype), .choices = engine_dtypes,
     .def = "bf16",
     .help = "type of weights and state; on the cpu device all are measured"},
    {"tokens", OPT(struct bench_args, tokens), .arg = "N", .def = "4096", .min = 64,
     .max = 65536, .help = "history of attention; fixed on the cpu device"},
    {"width", OPT(struct bench_args, width), .arg = "N", .def = "4096", .min = 256,
     .max = 16384, .help = "width of products; fixed on the cpu device"},
    {0},
};

static const struct opt_cmd bench_cmd = {
    .name = "bench kernels",
    .summary = "Measures every kernel of a device as a share of the device's limits.",
    .options = bench_options,
    .values_bytes = sizeof(struct bench_args),
};
const struct opt_cmd *const options_of_bench_kernels = &bench_cmd;

/* Decode uses copies of its data in turn, at least this many bytes in all, so that data come from
 * memory and not from a cache. */
#define COLD_BYTES ((size_t)1 << 30)

struct bench {
    struct bench_args args;
    FILE *csv;
    int n_threads;
    struct pool *pool;
    struct device *device;
    struct stream *stream;
    const struct ops *ops;
    double fma, int8, read, copy; /* limits */
    void *cold; /* COLD_BYTES of random bits that are small numbers in every type */
    bool blas;
    /* sums of seconds for bench-220m over 4096 tokens */
    double layer_s, attention_s;
};

/* --- output --------------------------------------------------------------------------------- */

enum unit {
    FLOPS,
    OPS_8, /* of 8-bit products */
    BYTES_READ,
    BYTES_COPIED,
};

/* Prints a result. `work` is the flop or bytes of one run. `cold_bytes` are the bytes that a
 * product must read from memory, or 0. If reading them takes longer than computing, the share is
 * that of the reading limit. */
static void report(struct bench *b, const char *kernel, const char *shape, enum unit unit,
                   double work, double cold_bytes, struct spread t)
{
    const double limits[] = {b->fma, b->int8, b->read, b->copy};
    static const char *const names[] = {"FMA", "8-bit", "read", "copy"};
    static const char *const units[] = {"GFLOP/s", "GOP/s", "GB/s", "GB/s"};
    double ceiling = limits[unit];
    const char *of = names[unit];
    if (cold_bytes > 0 && work / cold_bytes * b->read < ceiling) {
        ceiling = work / cold_bytes * b->read;
        of = "read";
    }
    double best = work / t.min * 1e-9, mid = work / t.median * 1e-9,
           low = work / t.max * 1e-9;
    double share = ceiling > 0 ? best / (ceiling * 1e-9) : 0;
    printf("%-16s %-26s %d  %8.1f %8.1f %8.1f %-7s %5.2f of %s\n", kernel, shape,
           b->n_threads, low, mid, best, units[unit], share, of);
    fflush(stdout);
    if (b->csv != NULL)
        fprintf(b->csv, "%s,%s,%s,%d,%.3f,%.3f,%.3f,%s,%.4f,%s\n", b->device->isa, kernel,
                shape, b->n_threads, low, mid, best, units[unit], share, of);
}

static bool wanted(const struct bench *b, const char *kernel, const char *shape)
{
    char text[128];
    snprintf(text, sizeof text, "%s %s", kernel, shape);
    return b->args.only == NULL || strstr(text, b->args.only) != NULL;
}

static void fill_small(void *p, size_t bytes, enum dtype t)
{
    struct rng rng = {1};
    for (size_t i = 0; i < bytes / dtype_bytes(t); i++) {
        float f = (float)(rng_unit(&rng) - 0.5);
        if (t == DTYPE_F32)
            ((float *)p)[i] = f;
        else
            ((uint16_t *)p)[i] = t == DTYPE_F16 ? f32_to_f16(f) : f32_to_bf16(f);
    }
}

static void *small_numbers(size_t bytes, enum dtype t)
{
    void *p = mem_map(bytes);
    CHECK(p != NULL);
    fill_small(p, bytes, t);
    return p;
}

/* --- matmul --------------------------------------------------------------------------------- */

struct matmul_run {
    struct bench *b;
    struct mat c, a;
    struct weight w;
    /* Bytes from one cold copy of the weight to the next; 0: every run uses the same copy. */
    size_t step;
    int n_copies, next;
    const float *plain; /* the weight in f32, for OpenBLAS */
};

static void matmul_once(void *arg)
{
    struct matmul_run *r = arg;
    struct weight w = r->w;
    w.mem.ptr = (char *)r->w.mem.ptr + (size_t)r->next * r->step;
    r->next = (r->next + 1) % r->n_copies;
    CHECK(r->b->ops->matmul(r->b->stream, r->c, r->a, &w, NULL) == 0);
}

static void blas_once(void *arg)
{
    struct matmul_run *r = arg;
    blas_sgemm(r->b->n_threads, (int)r->c.rows, (int)r->c.cols, (int)r->a.cols, r->a.data,
               r->plain, r->c.data);
}

static double matmul_case_run(struct bench *b, struct matmul_case mc, enum dtype t)
{
    char name[32], shape[64];
    snprintf(name, sizeof name, "matmul %s", dtype_name(t));
    snprintf(shape, sizeof shape, "m%lld n%lld k%lld", (long long)mc.m, (long long)mc.n,
             (long long)mc.k);
    if (!wanted(b, name, shape))
        return 0;
    size_t a_bytes = (size_t)(mc.m * mc.k) * 4, c_bytes = (size_t)(mc.m * mc.n) * 4;
    float *a = small_numbers(a_bytes, DTYPE_F32), *c = mem_map(c_bytes);
    size_t w_bytes = b->ops->weight_bytes(t, mc.n, mc.k);
    /* The cold buffer holds bf16 numbers. Its bytes are valid numbers as f16, f32, 8 or 4 bits,
     * too. */
    struct matmul_run r = {.b = b,
                           .c = mat_of(c, DTYPE_F32, mc.m, mc.n),
                           .a = mat_of(a, DTYPE_F32, mc.m, mc.k),
                           .w = {t, mc.n, mc.k, {b->cold, w_bytes, MEM_DEVICE}},
                           .step = mc.m <= 16 ? w_bytes : 0,
                           .n_copies = mc.m <= 16 ? (int)(COLD_BYTES / w_bytes) : 1};
    struct spread s = time_spread(matmul_once, &r, b->args.seconds);
    double flop = 2.0 * (double)(mc.m * mc.n * mc.k);
    if (mc.m <= 4)
        report(b, name, shape, BYTES_READ, (double)w_bytes, 0, s);
    else
        report(b, name, shape, t >= DTYPE_Q8 && t != DTYPE_BF16R ? OPS_8 : FLOPS, flop,
               r.step > 0 ? (double)w_bytes : 0, s);
    if (b->blas && t == DTYPE_BF16 && mc.m >= 16) {
        size_t plain_bytes = (size_t)(mc.n * mc.k) * 4;
        r.plain = small_numbers(plain_bytes, DTYPE_F32);
        struct spread o = time_spread(blas_once, &r, b->args.seconds);
        report(b, "  OpenBLAS f32", shape, FLOPS, flop, 0, o);
        printf("%-16s %-26s %d  %35.2f of OpenBLAS (best), %.2f (median)\n", "", "",
               b->n_threads, o.min / s.min, o.median / s.median);
        mem_unmap((void *)r.plain, plain_bytes);
        if (!threads_rest())
            printf("OpenBLAS's threads keep spinning and disturb the following rows\n");
    }
    mem_unmap(a, a_bytes);
    mem_unmap(c, c_bytes);
    return s.median;
}

static void bench_matmul(struct bench *b)
{
    for (size_t i = 0; i < N_CASES(matmul_cases); i++)
        if (matmul_cases[i].bench)
            for (int t = DTYPE_BF16R; t >= DTYPE_F32; t--)
                matmul_case_run(b, matmul_cases[i], (enum dtype)t);
}

/* --- attention and the cache ---------------------------------------------------------------- */

struct cache_run {
    struct bench *b;
    struct kv_layer kv;
    size_t layer_bytes;
    int n_layers, next;
    struct mat q, out, rows;
    struct rope rope;
    struct ragged r;
    int32_t *table;
};

static struct kv_layer next_layer(struct cache_run *c)
{
    struct kv_layer kv = c->kv;
    kv.blocks += (size_t)c->next * c->layer_bytes;
    c->next = (c->next + 1) % c->n_layers;
    return kv;
}

static void attention_once(void *arg)
{
    struct cache_run *c = arg;
    struct kv_layer kv = next_layer(c);
    CHECK(c->b->ops->attention(c->b->stream, c->out, c->q, &kv, &c->r,
                               &(struct attention_rule){.scale = 0.125f}) == 0);
}

static void kv_fill_once(void *arg)
{
    struct cache_run *c = arg;
    struct kv_layer kv = next_layer(c);
    struct mat rows = c->rows;
    rows.data = (char *)rows.data + (size_t)c->next * c->layer_bytes;
    CHECK(c->b->ops->kv_fill(c->b->stream, &kv, rows, &c->rope, &c->r) == 0);
}

struct positions {
    int32_t *pos, *seq_row, *table;
    const int32_t **tables;
};

static struct ragged one_sequence(struct positions *p, int start, int rows)
{
    p->pos = xcalloc((size_t)rows, sizeof *p->pos);
    p->seq_row = xcalloc(2, sizeof *p->seq_row);
    int n_blocks = (start + rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    p->table = xcalloc((size_t)n_blocks, sizeof *p->table);
    p->tables = xcalloc(1, sizeof *p->tables);
    for (int i = 0; i < rows; i++)
        p->pos[i] = start + i;
    for (int i = 0; i < n_blocks; i++)
        p->table[i] = i;
    p->seq_row[1] = rows;
    p->tables[0] = p->table;
    return (struct ragged){.n_rows = rows,
                           .n_seqs = 1,
                           .pos = p->pos,
                           .seq_row = p->seq_row,
                           .tables = p->tables};
}

static void positions_free(struct positions *p)
{
    free(p->pos);
    free(p->seq_row);
    free(p->table);
    free((void *)p->tables);
}

static struct cache_run cache_run_make(struct bench *b, int n_kv, int d_head, int tokens)
{
    struct cache_run c = {.b = b};
    size_t block = kv_block_bytes(n_kv, d_head, DTYPE_BF16);
    c.layer_bytes = block * (size_t)((tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
    c.kv = (struct kv_layer){.blocks = b->cold,
                             .block_stride = block,
                             .dtype = DTYPE_BF16,
                             .n_kv = n_kv,
                             .d_head = d_head};
    c.n_layers = (int)(COLD_BYTES / c.layer_bytes);
    return c;
}

static double attention_case_run(struct bench *b, struct attention_case ac)
{
    int start = ac.seq[0].start, rows = ac.seq[0].rows;
    const char *kernel = rows == 1 ? "attention decode" : "attention";
    char shape[64];
    snprintf(shape, sizeof shape, "h%d/%d d%d p%d+%d", ac.heads, ac.n_kv, ac.d_head, start,
             rows);
    if (!wanted(b, kernel, shape))
        return 0;
    struct positions p;
    struct cache_run c = cache_run_make(b, ac.n_kv, ac.d_head, start + rows);
    size_t bytes = (size_t)(rows * ac.heads * ac.d_head) * 4;
    c.r = one_sequence(&p, start, rows);
    c.q = mat_of(small_numbers(bytes, DTYPE_F32), DTYPE_F32, rows, ac.heads * ac.d_head);
    c.out = mat_of(mem_map(bytes), DTYPE_F32, rows, ac.heads * ac.d_head);
    struct spread s = time_spread(attention_once, &c, b->args.seconds);
    double keys = (double)rows * start + (double)rows * (rows + 1) / 2;
    if (rows == 1)
        report(b, kernel, shape, BYTES_READ,
               (double)ac.n_kv * ac.d_head * 4 * (start + rows), 0, s);
    else
        report(b, kernel, shape, FLOPS, keys * 4 * ac.heads * ac.d_head, 0, s);
    mem_unmap(c.q.data, bytes);
    mem_unmap(c.out.data, bytes);
    positions_free(&p);
    return s.median;
}

static void bench_attention(struct bench *b)
{
    for (size_t i = 0; i < N_CASES(attention_cases); i++) {
        if (!attention_cases[i].bench)
            continue;
        double t = attention_case_run(b, attention_cases[i]);
        if (attention_cases[i].seq[0].rows == 4096)
            b->attention_s = t;
    }
}

/* Measures kv_fill of 4096 tokens from staging, as in a restore. */
static void bench_kv_fill(struct bench *b)
{
    enum { TOKENS = 4096, N_KV = 16, D_HEAD = 64, HALF = D_HEAD / 2 };
    struct positions p;
    if (!wanted(b, "kv_fill", "4096 h16 d64"))
        return;
    struct cache_run c = cache_run_make(b, N_KV, D_HEAD, TOKENS);
    size_t bytes = (size_t)c.n_layers * c.layer_bytes;
    /* The destination is separate memory. Writing rotated numbers into `cold` would make denormal
     * f32 numbers of them, and every later f32 product would be slow. */
    uint8_t *blocks = mem_map(bytes);
    memset(blocks, 0, bytes); /* so that no later run touches a page for the first time */
    c.kv.blocks = blocks;
    c.rows = mat_of(b->cold, DTYPE_BF16, TOKENS, 2 * N_KV * D_HEAD);
    float *angles = small_numbers((size_t)TOKENS * HALF * 4, DTYPE_F32);
    c.rope = (struct rope){
        .cos = angles, .sin = angles, .max_pos = TOKENS, .d_rot = D_HEAD};
    c.r = one_sequence(&p, 0, TOKENS);
    struct spread s = time_spread(kv_fill_once, &c, b->args.seconds);
    report(b, "kv_fill", "4096 h16 d64", BYTES_COPIED, (double)c.layer_bytes, 0, s);
    mem_unmap(angles, (size_t)TOKENS * HALF * 4);
    mem_unmap(blocks, bytes);
    positions_free(&p);
}

/* --- rows ----------------------------------------------------------------------------------- */

struct rows_run {
    struct bench *b;
    struct mat f32a, f32b, state;
    const float *w;
};

static void rmsnorm_once(void *arg)
{
    struct rows_run *r = arg;
    CHECK(r->b->ops->rmsnorm(r->b->stream, r->f32a, r->state, r->w, 1e-5f) == 0);
}

static void add_once(void *arg)
{
    struct rows_run *r = arg;
    CHECK(r->b->ops->add(r->b->stream, r->state, r->state, r->f32a) == 0);
}

static void act_mul_once(void *arg)
{
    struct rows_run *r = arg;
    CHECK(r->b->ops->act_mul(r->b->stream, mat_cols(r->f32a, 0, r->f32b.cols / 2), r->f32b,
                             ACTIVATION_SILU) == 0);
}

static void bench_rows(struct bench *b)
{
    enum { ROWS = 512, COLS = 2816 };
    size_t n = (size_t)ROWS * COLS;
    if (!wanted(b, "rows", "rmsnorm add act_mul"))
        return;
    struct rows_run r = {.b = b};
    r.f32a = mat_of(small_numbers(n * 4, DTYPE_F32), DTYPE_F32, ROWS, COLS);
    r.f32b = mat_of(small_numbers(n * 8, DTYPE_F32), DTYPE_F32, ROWS, 2 * COLS);
    r.state = mat_of(small_numbers(n * 2, DTYPE_BF16), DTYPE_BF16, ROWS, COLS);
    r.w = r.f32b.data;
    double count = (double)n;
    report(b, "rmsnorm", "512x2816 bf16", BYTES_READ, count * 6, 0,
           time_spread(rmsnorm_once, &r, b->args.seconds));
    report(b, "add", "512x2816 bf16", BYTES_READ, count * 8, 0,
           time_spread(add_once, &r, b->args.seconds));
    report(b, "act_mul silu", "512x2816", BYTES_READ, count * 12, 0,
           time_spread(act_mul_once, &r, b->args.seconds));
    mem_unmap(r.f32a.data, n * 4);
    mem_unmap(r.f32b.data, n * 8);
    mem_unmap(r.state.data, n * 2);
}

/* Measures the share of attention in a layer of bench-220m over 4096 tokens. */
static void bench_layer(struct bench *b)
{
    static const struct matmul_case products[] = {{4096, 3072, 1024, true},
                                                  {4096, 1024, 1024, true},
                                                  {4096, 5632, 1024, true},
                                                  {4096, 1024, 2816, true}};
    double s = b->attention_s;
    for (size_t i = 0; i < N_CASES(products); i++)
        s += matmul_case_run(b, products[i], DTYPE_BF16);
    printf(
        "bench-220m layer, 4096 tokens, %d thread(s): %.1f ms, attention %.1f ms = %.2f\n",
        b->n_threads, s * 1e3, b->attention_s * 1e3, b->attention_s / s);
}

/* --- the run -------------------------------------------------------------------------------- */

static void measure_ceilings(struct bench *b)
{
    char *other = mem_map(COLD_BYTES / 4);
    memset(other, 1, COLD_BYTES / 4);
    b->fma = ceiling_fma(b->pool, b->device->isa, b->args.seconds);
    b->int8 = ceiling_int8(b->pool, b->device->isa, b->args.seconds);
    b->read = ceiling_read(b->pool, b->cold, COLD_BYTES, b->args.seconds);
    b->copy = ceiling_copy(b->pool, other, b->cold, COLD_BYTES / 4, b->args.seconds);
    mem_unmap(other, COLD_BYTES / 4);
    printf(
        "\n%s, %d thread(s): FMA %.1f GFLOP/s, 8-bit products %.1f GOP/s, read %.1f GB/s, "
        "copy %.1f GB/s\n",
        b->device->isa, b->n_threads, b->fma * 1e-9, b->int8 * 1e-9, b->read * 1e-9,
        b->copy * 1e-9);
    printf("%-16s %-26s %s  %8s %8s %8s\n", "kernel", "shape", "t", "min", "median", "max");
}

static int bench_on(struct bench *b, int n_threads, struct err *err)
{
    b->n_threads = n_threads;
    int rc = pool_create(n_threads, &b->pool, err);
    if (rc == 0)
        rc = device_open("cpu", &(struct device_opts){.isa = b->args.engine.o.isa}, b->pool,
                         &b->device, err);
    if (rc == 0)
        rc = stream_create(b->device, STREAM_COMPUTE, &b->stream, err);
    if (rc == 0) {
        b->ops = b->device->ops;
        measure_ceilings(b);
        bench_matmul(b);
        bench_kv_fill(b);
        bench_rows(b);
        bench_attention(b);
        if (b->args.only == NULL)
            bench_layer(b);
        stream_destroy(b->stream);
    }
    device_close(rc == 0 ? b->device : NULL);
    pool_destroy(b->pool);
    return rc;
}

static int bench_all(struct bench *b, struct err *err)
{
    if (b->args.csv != NULL) {
        b->csv = fopen(b->args.csv, "w");
        if (b->csv == NULL)
            return err_set(err, ERR_USAGE, "cannot write %s", b->args.csv);
        fprintf(b->csv, "isa,kernel,shape,threads,min,median,max,unit,share,ceiling\n");
    }
    b->cold = small_numbers(COLD_BYTES, DTYPE_BF16);
    b->blas = blas_open();
    printf("OpenBLAS: %s\n", b->blas ? blas_core() : "not installed");
    int rc = bench_on(b, 1, err);
    if (rc == 0 && b->args.engine.o.threads > 1)
        rc = bench_on(b, b->args.engine.o.threads, err);
    mem_unmap(b->cold, COLD_BYTES);
    if (b->csv != NULL)
        fclose(b->csv);
    return rc;
}

static int bench_other(const struct bench_args *a, struct err *err)
{
    const struct device_table o = {.engine = a->engine,
                                   .csv = a->csv,
                                   .only = a->only,
                                   .runs = 9,
                                   .tokens = a->tokens,
                                   .width = a->width};
    return device_table_run(&o, err);
}

int bench_kernels(int argc, char **argv)
{
    struct bench b = {0};
    struct opt_parsed *parsed;
    struct err err;
    int code;
    if (!opt_begin(&bench_cmd, argc, argv, &b.args, &parsed, &code))
        return code;
    bool one_cpu = strcmp(b.args.engine.o.device, "cpu") == 0 &&
                   b.args.engine.o.tensor_parallel * b.args.engine.o.pipeline_parallel == 1;
    int rc = one_cpu ? bench_all(&b, &err) : bench_other(&b.args, &err);
    if (rc != 0)
        fprintf(stderr, "hcache bench kernels: %s\n", err.msg);
    opt_end(parsed);
    return rc == 0 ? 0 : rc == ERR_USAGE ? 2 : 1;
}
