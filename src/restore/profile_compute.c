/* profile_compute.c - measures compute: samples of single layers, and curves fitted to them.
 *
 * Every sample is the fastest of several runs, since other work on the machine only adds time. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "base/rng.h"
#include "model/pass.h"
#include "restore/regress.h"
#include "restore/profile.h"
#include "save/saver.h"
#include "restore/restore.h"

enum {
    /* Rows of one call, as in restores. */
    NEAR_ROWS = RESTORE_GROUP_CHUNKS * STORE_CHUNK_TOKENS,
    FEW_ROWS = 64,
    FAR_PAST = 2048, /* the time of attention over this many keys is well above the noise */
    /* A full profile samples up to this far, if the model's context allows. */
    FULL_PAST = 8192,
    /* Bytes of records in the sample of loading: more than the caches hold. */
    LOAD_BYTES = 64 << 20,
    UNPACK_BYTES =
        16 << 20, /* bytes that the sample of unpacking writes, and more than it reads */
    LOAD_CHUNKS = 4 * RESTORE_GROUP_CHUNKS, /* chunks shared out at once, as in restores */
};

/* A sample is repeated until it has taken this long. A slow layer runs twice. Opening a new store
 * takes ten quick samples, and restores correct what they miss. */
#define QUICK_SAMPLE_NS 12000000
#define FULL_SAMPLE_NS  50000000
/* If the fastest run got less than this share of processor time (run_once), the sample goes on for
 * up to PATIENCE times as long. */
#define OURS     0.85
#define PATIENCE 5

struct load;
struct unpack;

struct bench {
    const struct model *m;
    struct model_work *w;
    struct stream *s;
    struct buf mem;
    int layer;               /* the sampled layer */
    struct kv_layer kv;      /* its cache */
    struct kv_layer *all_kv; /* [n_layers]: kv at `layer` */
    struct residual x;       /* the layer's residual stream, one buffer */
    struct mat kv_rows;
    struct buf head_mem; /* memory of the output head's sample, on the last stage */
    struct mat head_x, logits;
    int32_t *pos, *blocks, *ids;
    int32_t seq_row[2];
    const int32_t *tables[1];
    int n_ctx; /* number of positions that the blocks have room for */
    int past;  /* number of keys before the sampled rows */
    struct load *load;
    struct unpack *unpack;
    int64_t sample_ns; /* least time that a sample takes */
    double share;      /* of processor time that the fastest run got (run_once) */
};

/* Returns the positions of a context with max_past keys and `rows` rows behind them, at most the
 * model's maximum. */
static int context_of(const struct model *m, int rows, int max_past)
{
    return MIN(m->max_ctx, max_past + rows);
}

int profile_rows(const struct model *m, const struct model_work *w)
{
    int rows = model_work_rows(w);
    return MIN(rows, m->max_ctx);
}

/* Sizes of a bench's memory: the K and V blocks of one layer's context, a batch's rows, logits. */
struct bench_sizes {
    int n_blocks;
    size_t block, x, rows, logits;
    size_t kv; /* of all blocks, or of a recurrent layer's state */
};

static struct bench_sizes sizes_of(const struct model *m, int rows, int n_ctx)
{
    int n_blocks = (n_ctx + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    size_t block = KV_BLOCK_TOKENS * model_most_kv_bytes(m) / (size_t)m->dev->n_ranks;
    return (struct bench_sizes){
        .n_blocks = n_blocks,
        .block = block,
        .kv = MAX((size_t)n_blocks * block, model_state_bytes(&m->cfg)),
        .x = (size_t)rows * model_hidden_bytes(m),
        .rows = (size_t)rows * model_most_kv_bytes(m),
        .logits = round_up((uint64_t)m->cfg.vocab_size * sizeof(float), 64)};
}

/* Returns the number of records in the sample of loading. */
static size_t n_loaded(const struct model *m)
{
    size_t n = LOAD_BYTES / record_bytes(m, 0, STORE_KV);
    return MIN(MAX(n, 8), 256);
}

size_t profile_device_bytes(const struct model *m, int max_rows)
{
    struct bench_sizes z = sizes_of(m, max_rows, context_of(m, max_rows, FAR_PAST));
    size_t record = record_bytes(m, 0, STORE_KV);
    size_t load = n_loaded(m) * (record + z.block + sizeof(uint64_t));
    return z.kv + z.x + z.rows + z.logits + model_hidden_bytes(m) + load +
           PROFILE_COPY_BYTES;
}

/* Chooses the layer that is sampled. */
static void bench_layer(struct bench *b, int layer)
{
    b->layer = layer;
    b->kv = b->all_kv[layer] = model_cache(b->m, layer, b->mem.ptr);
}

static int bench_init(struct bench *b, const struct model *m, struct model_work *w,
                      struct stream *s, int max_past, struct err *err)
{
    int rows = model_work_rows(w), n_ctx = context_of(m, rows, max_past);
    struct bench_sizes z = sizes_of(m, rows, n_ctx);
    size_t kv_bytes = z.kv;
    *b = (struct bench){.m = m, .w = w, .s = s, .n_ctx = n_ctx};
    int rc = buf_alloc(m->dev, MEM_DEVICE, kv_bytes + z.x + z.rows, &b->mem, err);
    if (rc == 0)
        rc = stage_alloc(m->dev, model_last_stage(m), z.logits + model_hidden_bytes(m),
                         &b->head_mem, err);
    if (rc != 0) {
        buf_free(m->dev, &b->mem);
        return err_wrap(err, "profile");
    }
    uint8_t *p = b->mem.ptr;
    b->all_kv = xcalloc((size_t)m->cfg.n_layers, sizeof *b->all_kv);
    bench_layer(b, 0);
    b->x.n = 1;
    b->x.x[0][0] = mat_of(p + kv_bytes, m->dtype, rows, m->cfg.n_embd);
    b->kv_rows = model_kv_rows(m, 0, p + kv_bytes + z.x, rows);
    b->logits = mat_of(b->head_mem.ptr, DTYPE_F32, 1, m->cfg.vocab_size);
    b->head_x = mat_of((uint8_t *)b->head_mem.ptr + z.logits, m->dtype, 1, m->cfg.n_embd);
    b->pos = xcalloc((size_t)n_ctx, sizeof *b->pos);
    b->blocks = xcalloc((size_t)z.n_blocks, sizeof *b->blocks);
    b->ids = xcalloc((size_t)rows, sizeof *b->ids);
    for (int i = 0; i < rows; i++)
        b->ids[i] = i * 7919 % m->cfg.vocab_size;
    for (int i = 0; i < n_ctx; i++)
        b->pos[i] = i;
    for (int i = 0; i < z.n_blocks; i++)
        b->blocks[i] = i;
    b->tables[0] = b->blocks;
    return 0;
}

static void bench_deinit(struct bench *b)
{
    buf_free(b->m->dev, &b->mem);
    buf_free(b->m->dev, &b->head_mem);
    free(b->all_kv);
    free(b->pos);
    free(b->blocks);
    free(b->ids);
}

static struct ragged bench_rows(struct bench *b, int n)
{
    b->seq_row[1] = n;
    if (config_is_recurrent(&b->m->cfg, b->layer))
        delta_state_count(b->kv.blocks, b->past);
    return (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = b->pos + b->past,
                           .seq_row = b->seq_row,
                           .tables = b->tables};
}

static int run_layer(struct bench *b, int n)
{
    struct ragged r = bench_rows(b, n);
    struct model_pass p;
    model_pass_begin(
        &p, &(struct model_pass_opts){.model = b->m,
                                      .work = b->w,
                                      .stream = b->s,
                                      .n_rows = n,
                                      .x = &b->x,
                                      .first_layer = b->layer,
                                      .ids = b->m->cfg.n_layer_embd > 0 ? b->ids : NULL,
                                      .kv = b->all_kv});
    int rc = model_pass_layer(&p, &r);
    model_pass_end(&p);
    return rc;
}

static int run_project(struct bench *b, int n)
{
    struct ragged r = bench_rows(b, n);
    struct mat rows = mat_rows(b->kv_rows, 0, n);
    return model_replay(b->m, b->w, b->s, 0, mat_rows(b->x.x[0][0], 0, n), rows, &b->kv,
                        &r);
}

static int run_embed(struct bench *b, int n)
{
    struct ragged r = bench_rows(b, n);
    return model_embed(b->m, b->w, b->s, mat_rows(b->x.x[0][0], 0, n), b->ids, &r);
}

/* Measures one run: its time, and the share of processor time that its threads got while they
 * were ready. (Not the share of all processors: a small product is one thread's work.) *cpu is the
 * processor time at the run's beginning, and on return at its end: reading it costs 0.1 ms, as much
 * as a run of a small model. */
static int run_once(struct bench *b, int (*fn)(struct bench *, int), int n, int64_t *ns,
                    double *share, struct clock_cpu *cpu)
{
    struct clock_cpu before = *cpu;
    int64_t t0 = clock_now_ns();
    int rc = fn(b, n);
    if (rc == 0)
        rc = stream_sync(b->s);
    *ns = clock_now_ns() - t0;
    *cpu = clock_cpu_now();
    double ran = (double)(cpu->ran_ns - before.ran_ns);
    double waited = (double)(cpu->waited_ns - before.waited_ns);
    *share = ran > 0 && waited > 0 ? ran / (ran + waited) : 1;
    return rc;
}

/* Measures the seconds of the fastest of several runs. While other work takes the processors away,
 * more runs are made. */
static int sample(struct bench *b, int (*fn)(struct bench *, int), int n, double *seconds)
{
    int64_t best = INT64_MAX, spent = 0, ns;
    double share;
    struct clock_cpu cpu = clock_cpu_now();
    for (int i = 0;
         i < 2 || (i < 50 && spent < (b->share < OURS ? PATIENCE : 1) * b->sample_ns);
         i++) {
        int rc = run_once(b, fn, n, &ns, &share, &cpu);
        if (rc != 0)
            return rc;
        spent += ns;
        b->share = ns < best ? share : b->share;
        best = MIN(ns, best);
    }
    *seconds = (double)best * 1e-9;
    return 0;
}

/* --- loading -------------------------------------------------------------------------------- */

/* The sample of loading: chunk by chunk on every core, as restores do, over more than the caches
 * hold. */
struct load {
    struct bench *b;
    long first, n;  /* chunks that one call shares out among the threads */
    struct buf mem; /* records; if memory is unified, also the blocks */
    /* On a device with memory of its own: memory for the records' twins and for the blocks. */
    struct buf dev;
    uint8_t *records, *twins; /* twins is NULL if operations read the records themselves */
    uint64_t *sums; /* checksums that the device computes; NULL: the host checks */
    struct kv_layer kv;
    struct stream **streams; /* a stream for each thread */
    int n_chunks;
    atomic_int rc;
    atomic_ullong sum; /* sum of the checksums, so that they are not optimised away */
};

static void load_share(void *arg, int thread_idx, int n_threads)
{
    struct load *ld = arg;
    const struct model *m = ld->b->m;
    size_t bytes = record_bytes(m, 0, STORE_KV);
    long begin, end;
    pool_share(ld->sums != NULL ? 0 : ld->n, 1, thread_idx, n_threads, &begin, &end);
    for (long c = ld->first + begin; c < ld->first + end; c++) {
        const uint8_t *record = ld->records + (size_t)c * bytes;
        atomic_fetch_add(&ld->sum, checksum64(record, bytes));
        if (ld->twins != NULL)
            continue;
        int32_t block = (int32_t)c;
        struct kv_chunks one = {.first = record, .blocks = &block, .n = 1};
        int rc = model_kv_load(m, ld->streams[thread_idx], 0, &ld->kv, &one);
        if (rc != 0)
            atomic_store(&ld->rc, rc);
    }
}

/* Loads records on a device with memory of its own. They were copied up before, because copying
 * counts as I/O (profile_copy.c). One stream loads them, and another stream checks them. */
static void load_twins(struct load *ld)
{
    const struct model *m = ld->b->m;
    int32_t blocks[RESTORE_GROUP_CHUNKS];
    uint32_t n_bytes[RESTORE_GROUP_CHUNKS];
    struct stream *check = ld->streams[0];
    struct kv_chunks c = {.stride = record_bytes(m, 0, STORE_KV), .blocks = blocks};
    long end = ld->first + ld->n,
         most = m->rope[ROPE_GLOBAL][0].max_pos / STORE_CHUNK_TOKENS;
    int rc = 0;
    most = MIN(most, RESTORE_GROUP_CHUNKS);
    for (long i = ld->first; ld->twins != NULL && rc == 0 && i < end; i += c.n) {
        c.first = ld->twins + (size_t)i * c.stride;
        c.n = (int)MIN(end - i, most);
        for (int k = 0; k < c.n; k++) {
            blocks[k] = (int32_t)(i + k);
            n_bytes[k] = (uint32_t)c.stride;
        }
        if (ld->sums != NULL)
            rc = m->dev->ops->checksum(check, ld->sums + i, c.first, c.stride, n_bytes,
                                       c.n);
        if (rc == 0)
            rc = model_kv_load(m, ld->b->s, 0, &ld->kv, &c);
    }
    if (ld->sums != NULL && rc == 0)
        rc = stream_sync(check);
    if (rc != 0)
        atomic_store(&ld->rc, rc);
}

static int run_load(struct bench *b, int n)
{
    struct load *ld = b->load;
    for (ld->first = 0; ld->first < n; ld->first += LOAD_CHUNKS) {
        ld->n = MIN(n - ld->first, LOAD_CHUNKS);
        pool_run(b->m->dev->pool, load_share, ld);
        load_twins(ld);
    }
    return atomic_load(&ld->rc);
}

static int load_begin(struct bench *b, struct load *ld)
{
    const struct model *m = b->m;
    int n_threads = pool_threads(m->dev->pool), rc;
    size_t record = record_bytes(m, 0, STORE_KV);
    size_t n = n_loaded(m);
    int layer = 0; /* one that has K and V */
    while (config_is_recurrent(&b->m->cfg, layer))
        layer++;
    *ld = (struct load){.b = b, .n_chunks = (int)n, .kv = model_cache(b->m, layer, NULL)};
    size_t blocks = n * ld->kv.block_stride;
    rc = buf_alloc(m->dev, MEM_HOST, n * record + (m->dev->unified ? blocks : 0), &ld->mem,
                   NULL);
    if (rc == 0 && !m->dev->unified)
        rc = buf_alloc(m->dev, MEM_DEVICE, n * (record + sizeof(uint64_t)) + blocks,
                       &ld->dev, NULL);
    b->load = ld;
    if (rc != 0)
        return rc;
    memset(ld->mem.ptr, 0, ld->mem.bytes);
    ld->records = ld->mem.ptr;
    ld->twins = ld->dev.ptr;
    ld->kv.blocks = (ld->twins != NULL ? ld->twins : ld->records) + n * record;
    if (restore_checks_on_device(m->dev))
        ld->sums = (uint64_t *)(void *)(ld->kv.blocks + blocks);
    ld->streams = xcalloc((size_t)n_threads, sizeof(struct stream *));
    for (int i = 0; rc == 0 && i < n_threads; i++)
        rc = stream_create(m->dev, STREAM_INLINE, &ld->streams[i], NULL);
    return rc;
}

static void load_end(struct bench *b, struct load *ld)
{
    for (int i = 0; ld->streams != NULL && i < pool_threads(b->m->dev->pool); i++)
        stream_destroy(ld->streams[i]);
    free(ld->streams);
    buf_free(b->m->dev, &ld->mem);
    buf_free(b->m->dev, &ld->dev);
    b->load = NULL;
}

/* The sample of unpacking: as in restores, a packed record moves out of the way of its place.
 * Packed runs lie in the first n records, and the next n are their places. */
struct unpack {
    struct load *ld;
    long n; /* records */
    size_t record, n_packed;
    uint8_t *moved; /* [threads][record] */
};

static void unpack_share(void *arg, int thread_idx, int n_threads)
{
    const struct unpack *u = arg;
    long begin, end;
    uint8_t *moved = u->moved + (size_t)thread_idx * u->record;
    pool_share(u->n, 1, thread_idx, n_threads, &begin, &end);
    for (long c = begin; c < end; c++) {
        const uint8_t *packed = u->ld->records + (size_t)c * u->record;
        memcpy(moved, packed, u->n_packed);
        (void)pack_undo(moved, u->n_packed, u->ld->records + (size_t)(u->n + c) * u->record,
                        u->record);
    }
}

static int run_unpack(struct bench *b, int n)
{
    (void)n;
    pool_run(b->m->dev->pool, unpack_share, b->unpack);
    return 0;
}

/* Fills a record with numbers that are distributed as state is. */
static void fill_state(enum pack_type type, uint8_t *record, size_t n_bytes)
{
    struct rng r = {1};
    size_t width = pack_width(type);
    for (size_t i = 0; i < n_bytes / width; i++) {
        float x = (float)(rng_unit(&r) + rng_unit(&r) + rng_unit(&r) - 1.5);
        uint16_t bits = type == PACK_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
        memcpy(record + width * i, type == PACK_F32 ? (void *)&x : &bits, width);
    }
}

/* Measures p->unpack_bytes_per_s. */
static int fit_unpack(struct platform *p, struct bench *b, struct load *ld)
{
    const struct model *m = b->m;
    enum pack_type type = save_pack_type(m->dtype);
    struct unpack u = {.ld = ld, .record = record_bytes(m, 0, STORE_KV)};
    int rc = 0;
    double seconds = 0;
    u.n = MIN(ld->n_chunks / 2, UNPACK_BYTES / (long)u.record);
    if (u.n == 0)
        return 0;
    u.moved = xmalloc((size_t)pool_threads(m->dev->pool) * u.record);
    fill_state(type, u.moved, u.record);
    u.n_packed = pack_run(type, u.moved, u.record, ld->records, u.record);
    for (long c = 1; c < u.n; c++)
        memcpy(ld->records + (size_t)c * u.record, ld->records, u.n_packed);
    b->unpack = &u;
    if (u.n_packed > 0)
        rc = sample(b, run_unpack, 0, &seconds);
    if (seconds > 0)
        p->unpack_bytes_per_s = (double)u.n * (double)u.record / seconds;
    free(u.moved);
    return rc;
}

static int run_head(struct bench *b, int n)
{
    (void)n;
    return model_head(b->m, b->w, b->s, b->head_x, b->logits);
}

/* --- samples and fits ------------------------------------------------------------------------- */

enum { MAX_SAMPLES = 64 };

struct samples {
    struct regress_sample s[MAX_SAMPLES];
    int n;
};

static int add_sample(struct samples *v, struct bench *b, int (*fn)(struct bench *, int),
                      int n, struct regress_sample terms)
{
    CHECK(v->n < MAX_SAMPLES);
    int rc = sample(b, fn, n, &terms.y);
    v->s[v->n++] = terms;
    return rc;
}

/* Fits a curve whose first term, the cost per token, must be positive. With a few noisy samples the
 * fit may give all the time to the other terms; then the fit is made again with the first term
 * alone. */
static struct regress_fit fit(const struct samples *v, int n_terms)
{
    struct regress_fit f = {0};
    if (!regress(v->s, v->n, n_terms, &f) || !(f.coef[0] > 0))
        (void)regress(v->s, v->n, 1, &f);
    return f;
}

/* Samples one call of a layer over rows [past, past + n). The sample has three terms: n rows of
 * GEMM, one call, and the (query, key) pairs of attention. */
static int add_layer(struct samples *v, struct bench *b, int past, int n)
{
    double p = past, m = n;
    b->past = past;
    int rc = add_sample(v, b, run_layer, n,
                        (struct regress_sample){.x = {m, 1, (p + m) * (p + m) - p * p}});
    b->past = 0;
    return rc;
}

/* Sets p->cpu_share to the least share that a sample had so far. 0 means that none was noted. */
static void note_share(struct platform *p, const struct bench *b)
{
    p->cpu_share = p->cpu_share > 0 && p->cpu_share < b->share ? p->cpu_share : b->share;
}

/* Fits C_tok of the sampled layer (b->layer). `full` samples each doubling of the rows and of the
 * past; otherwise at most four samples are taken. On an error C_tok is unspecified. */
static int fit_layer(struct platform *p, struct bench *b, int rows, bool full)
{
    struct samples v = {.n = 0};
    int max_past = b->n_ctx - rows, rc = 0;
    for (int n = full ? FEW_ROWS : rows; rc == 0 && n <= rows; n *= 2)
        rc = add_layer(&v, b, 0, n);
    if (rc == 0 && !full && rows > NEAR_ROWS)
        rc = add_layer(&v, b, 0, NEAR_ROWS);
    if (rc == 0 && !full && rows > FEW_ROWS)
        rc = add_layer(&v, b, 0, FEW_ROWS);
    /* Far from position 0 a few rows measure attention as well as many. */
    for (int past = full ? NEAR_ROWS : FAR_PAST; rc == 0 && past <= max_past; past *= 2) {
        rc = add_layer(&v, b, past, FEW_ROWS);
        if (rc == 0 && full)
            rc = add_layer(&v, b, past, rows);
    }
    if (rc == 0 && v.n == 0)
        rc = add_layer(&v, b, 0, rows);
    struct regress_fit f = fit(&v, v.n < 3 ? 1 : 3);
    p->c_tok = (struct cost_curve){.a_s = f.coef[1], .b_s = f.coef[0], .c_s = f.coef[2]};
    p->c_tok_r2 = f.r2;
    return rc;
}

/* Fits C_tok of the mean layer: recurrent layers and those with attention are sampled apart. Plans
 * add the times of whole layers, so a mean of both kinds gives the right sums. */
static int fit_layers(struct platform *p, struct bench *b, int rows, bool full)
{
    const struct model_config *c = &b->m->cfg;
    int other = 0, n_alike = 0;
    while (other < c->n_layers &&
           config_is_recurrent(c, other) == config_is_recurrent(c, 0))
        other++;
    for (int l = 0; l < c->n_layers; l++)
        n_alike += config_is_recurrent(c, l) == config_is_recurrent(c, 0);
    int rc = fit_layer(p, b, rows, full);
    if (rc != 0 || other == c->n_layers)
        return rc;
    struct cost_curve first = p->c_tok;
    double first_r2 = p->c_tok_r2, w = (double)n_alike / c->n_layers;
    bench_layer(b, other);
    rc = fit_layer(p, b, rows, full);
    bench_layer(b, 0);
    p->c_tok = (struct cost_curve){.a_s = w * first.a_s + (1 - w) * p->c_tok.a_s,
                                   .b_s = w * first.b_s + (1 - w) * p->c_tok.b_s,
                                   .c_s = w * first.c_s + (1 - w) * p->c_tok.c_s};
    p->c_tok_r2 = fmin(first_r2, p->c_tok_r2);
    return rc;
}

/* Fits C_H. `full` samples each doubling of the rows; a quick profile takes FEW_ROWS and `rows`. On
 * an error C_H is unspecified. */
static int fit_projection(struct platform *p, struct bench *b, int rows, bool full)
{
    struct samples v = {.n = 0};
    int rc = 0;
    for (int n = FEW_ROWS; rc == 0 && n <= rows; n *= 2) {
        if (!full && n != FEW_ROWS && n != rows)
            continue;
        rc = add_sample(&v, b, run_project, n, (struct regress_sample){.x = {n, 1}});
        note_share(p, b);
    }
    if (rc == 0 && v.n == 0)
        rc = add_sample(&v, b, run_project, rows, (struct regress_sample){.x = {rows, 1}});
    struct regress_fit f = fit(&v, v.n < 2 ? 1 : 2);
    p->c_h = (struct cost_curve){.a_s = f.coef[1], .b_s = f.coef[0]};
    p->c_h_r2 = f.r2;
    return rc;
}

/* Fits C_KV, the cost of bringing K and V from records in memory into the cache, and measures
 * p->unpack_bytes_per_s. `full` loads an eighth, a quarter, half and all of the records; otherwise
 * all records are one sample. On an error C_KV is unspecified. */
static int fit_kv_load(struct platform *p, struct bench *b, bool full)
{
    struct samples v = {.n = 0};
    struct load ld;
    int rc = load_begin(b, &ld);
    for (int n = full ? ld.n_chunks / 8 : ld.n_chunks; rc == 0 && n <= ld.n_chunks;
         n *= 2) {
        double tokens = (double)n * STORE_CHUNK_TOKENS;
        rc = add_sample(&v, b, run_load, n, (struct regress_sample){.x = {tokens, 1}});
    }
    if (rc == 0)
        rc = fit_unpack(p, b, &ld);
    load_end(b, &ld);
    struct regress_fit f = fit(&v, full ? 2 : 1);
    p->c_kv = (struct cost_curve){.a_s = f.coef[1], .b_s = f.coef[0]};
    p->c_kv_r2 = f.r2;
    return rc;
}

/* Measures all costs of compute. On an error they are unspecified. */
static int measure(struct platform *p, struct bench *b, bool full)
{
    int rows = profile_rows(b->m, b->w), group = MIN(rows, NEAR_ROWS);
    double embed_s = 0, head_s = 0;
    int rc = fit_layers(p, b, rows, full);
    p->cpu_share = 0;
    note_share(p, b);
    if (rc == 0)
        rc = fit_projection(p, b, group, full);
    if (rc == 0)
        rc = fit_kv_load(p, b, full);
    if (rc == 0)
        rc = sample(b, run_head, 1, &head_s);
    if (rc == 0)
        rc = sample(b, run_embed, rows, &embed_s);
    p->piece_tokens = rows;
    p->h_piece_tokens = group;
    p->embed_s = embed_s / rows;
    p->head_s = head_s;
    return rc;
}

double profile_projection_s(const struct model *m, struct model_work *w, struct stream *s,
                            int rows, int n_runs)
{
    struct bench b;
    double best_s = INFINITY;
    if (bench_init(&b, m, w, s, 0, NULL) != 0)
        return best_s;
    for (int i = 0, rc = 0; rc == 0 && i < n_runs; i++) {
        int64_t t0 = clock_now_ns();
        rc = run_project(&b, rows);
        if (rc == 0)
            rc = stream_sync(s);
        if (rc == 0)
            best_s = fmin(best_s, (double)(clock_now_ns() - t0) * 1e-9);
    }
    bench_deinit(&b);
    return best_s;
}

int profile_compute(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, enum profile_effort effort, struct err *err)
{
    struct bench b;
    bool full = effort == PROFILE_FULL;
    int rc = bench_init(&b, m, w, s, full ? FULL_PAST : FAR_PAST, err);
    if (rc != 0)
        return rc;
    b.sample_ns = full ? FULL_SAMPLE_NS : QUICK_SAMPLE_NS;
    /* The layer's weights stay acquired during all runs, so that only compute is measured. */
    const struct layer_weights *held;
    rc = weights_acquire(&m->w, 0, s, &held);
    if (rc == 0) {
        rc = measure(p, &b, full);
        weights_release(&m->w, 0, s);
    }
    bench_deinit(&b);
    return rc == 0 ? 0 : err_set(err, rc, "profile: %s", err_name(rc));
}
