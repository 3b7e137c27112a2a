/* profile.c - see profile.h. */
#include "state/profile.h"

#include <errno.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"

enum {
    NEAR_ROWS = 512, /* sample of whole-layer speed, at position 0 */
    FAR_ROWS = 64,   /* sample of attention over a long past, */
    FAR_PAST = 2048, /* of this length */
    LOAD_BYTES =
        64 << 20, /* of records for the sample of loading: more than the caches hold */
};

/* Samples are repeated until they have taken this long; the fastest counts. */
#define SAMPLE_NS 60000000

/* --- compute ---------------------------------------------------------------------------------- */

struct load;

struct bench {
    const struct model *m;
    struct model_work *w;
    struct stream *s;
    struct buf mem;
    struct kv_layer kv;
    struct mat x, kv_rows, logits;
    int32_t *pos, *blocks, *ids;
    int32_t seq_row[2];
    const int32_t *tables[1];
    int past; /* keys before the sampled rows */
    struct load *load;
};

static int bench_init(struct bench *b, const struct model *m, struct model_work *w,
                      struct stream *s, struct err *err)
{
    int n_ctx = m->max_ctx < FAR_PAST + NEAR_ROWS ? m->max_ctx : FAR_PAST + NEAR_ROWS;
    int n_blocks = (n_ctx + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    int rows = model_work_rows(w);
    size_t block = kv_block_bytes(m->cfg.n_kv_heads, m->cfg.d_head, m->dtype);
    size_t kv_bytes = (size_t)n_blocks * block;
    size_t x_bytes = (size_t)rows * model_hidden_bytes(m);
    size_t row_bytes = (size_t)rows * model_kv_bytes(m);
    size_t logit_bytes = (size_t)m->cfg.vocab_size * sizeof(float);
    *b = (struct bench){.m = m, .w = w, .s = s};
    int rc = buf_alloc(m->dev, MEM_DEVICE,
                       kv_bytes + x_bytes + row_bytes + logit_bytes + 256, &b->mem, err);
    if (rc != 0)
        return err_wrap(err, "profile");
    uint8_t *p = b->mem.ptr;
    b->kv = (struct kv_layer){.blocks = p,
                              .block_stride = block,
                              .dtype = m->dtype,
                              .n_kv = m->cfg.n_kv_heads,
                              .d_head = m->cfg.d_head};
    b->x = mat_of(p + kv_bytes, m->dtype, rows, m->cfg.n_embd);
    b->kv_rows = mat_of(p + kv_bytes + x_bytes, m->dtype, rows, 2 * model_kv_dim(m));
    size_t logits_at = round_up(kv_bytes + x_bytes + row_bytes, 64);
    b->logits = mat_of(p + logits_at, DTYPE_F32, 1, m->cfg.vocab_size);
    b->pos = xcalloc((size_t)n_ctx, sizeof *b->pos);
    b->blocks = xcalloc((size_t)n_blocks, sizeof *b->blocks);
    b->ids = xcalloc((size_t)rows, sizeof *b->ids);
    for (int i = 0; i < rows; i++)
        b->ids[i] = i * 7919 % m->cfg.vocab_size;
    for (int i = 0; i < n_ctx; i++)
        b->pos[i] = i;
    for (int i = 0; i < n_blocks; i++)
        b->blocks[i] = i;
    b->tables[0] = b->blocks;
    return 0;
}

static void bench_deinit(struct bench *b)
{
    buf_free(b->m->dev, &b->mem);
    free(b->pos);
    free(b->blocks);
    free(b->ids);
}

static struct ragged bench_rows(struct bench *b, int n)
{
    b->seq_row[1] = n;
    return (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = b->pos + b->past,
                           .seq_row = b->seq_row,
                           .tables = b->tables};
}

static int run_layer(struct bench *b, int n)
{
    struct ragged r = bench_rows(b, n);
    struct mat x = mat_rows(b->x, 0, n);
    return model_layer(b->m, b->w, b->s, 0, x, x, &b->kv, &r, NULL);
}

static int run_project(struct bench *b, int n)
{
    struct ragged r = bench_rows(b, n);
    struct mat rows = mat_rows(b->kv_rows, 0, n);
    int rc = model_kv_project(b->m, b->w, b->s, 0, mat_rows(b->x, 0, n), rows);
    return rc == 0 ? model_kv_fill(b->m, b->s, &b->kv, rows, &r) : rc;
}

static int run_embed(struct bench *b, int n)
{
    struct ragged r = bench_rows(b, n);
    return model_embed(b->m, b->w, b->s, mat_rows(b->x, 0, n), b->ids, &r);
}

/* The fastest of several runs, in seconds: other work on the machine only ever adds. */
static int sample(struct bench *b, int (*fn)(struct bench *, int), int n, double *seconds)
{
    int64_t best = INT64_MAX, spent = 0;
    for (int i = 0; i < 3 || (spent < SAMPLE_NS && i < 50); i++) {
        int64_t t0 = clock_now_ns();
        int rc = fn(b, n);
        if (rc == 0)
            rc = stream_sync(b->s);
        if (rc != 0)
            return rc;
        int64_t t = clock_now_ns() - t0;
        spent += t;
        best = t < best ? t : best;
    }
    *seconds = (double)best * 1e-9;
    return 0;
}

/* --- loading: as restore.c does it, chunk by chunk on every core, over more than the caches hold */

struct load {
    struct bench *b;
    struct buf mem;
    uint8_t *records;
    struct kv_layer kv;
    struct stream **streams; /* one per thread */
    int n_chunks;
    atomic_int rc;
    atomic_ullong sum; /* keeps the checksums from being optimised away */
};

static void load_share(void *arg, int thread_idx, int n_threads)
{
    struct load *ld = arg;
    const struct model *m = ld->b->m;
    size_t bytes = STORE_CHUNK_TOKENS * model_kv_bytes(m);
    long begin, end;
    pool_share(ld->n_chunks, 1, thread_idx, n_threads, &begin, &end);
    for (long c = begin; c < end; c++) {
        const uint8_t *record = ld->records + (size_t)c * bytes;
        atomic_fetch_add(&ld->sum, checksum64(record, bytes));
        int rc = model_kv_load(m, ld->streams[thread_idx], &ld->kv, (int32_t)c, record, 0);
        if (rc != 0)
            atomic_store(&ld->rc, rc);
    }
}

static int run_load(struct bench *b, int n)
{
    (void)n;
    pool_run(b->m->dev->pool, load_share, b->load);
    return atomic_load(&b->load->rc);
}

/* *seconds per token. On an error it is 0. */
static int sample_load(struct bench *b, double *seconds)
{
    const struct model *m = b->m;
    int n_threads = pool_threads(m->dev->pool);
    size_t record = STORE_CHUNK_TOKENS * model_kv_bytes(m);
    size_t n = LOAD_BYTES / record < 8     ? 8
               : LOAD_BYTES / record > 256 ? 256
                                           : LOAD_BYTES / record;
    size_t records = n * record;
    struct load ld = {.b = b, .n_chunks = (int)n, .kv = b->kv};
    *seconds = 0;
    int rc = buf_alloc(m->dev, MEM_HOST, records + n * b->kv.block_stride, &ld.mem, NULL);
    if (rc != 0)
        return rc;
    memset(ld.mem.ptr, 0, ld.mem.bytes);
    ld.records = ld.mem.ptr;
    ld.kv.blocks = ld.records + records;
    ld.streams = xcalloc((size_t)n_threads, sizeof(struct stream *));
    b->load = &ld;
    for (int i = 0; rc == 0 && i < n_threads; i++)
        rc = stream_create(m->dev, STREAM_INLINE, &ld.streams[i], NULL);
    if (rc == 0)
        rc = sample(b, run_load, 0, seconds);
    *seconds /= (double)n * STORE_CHUNK_TOKENS;
    for (int i = 0; i < n_threads; i++)
        stream_destroy(ld.streams[i]);
    free(ld.streams);
    buf_free(m->dev, &ld.mem);
    b->load = NULL;
    return rc;
}

static int run_head(struct bench *b, int n)
{
    (void)n;
    return model_head(b->m, b->w, b->s, mat_rows(b->x, 0, 1), b->logits);
}

/* A whole layer over n tokens from position 0 costs b n + c n^2: the token at position p takes
 * b + 2 c p.  Two samples, near and far, give b and c. */
static struct cost_curve fit_layer(double near_s, double near_n, double far_s, double far_n,
                                   double past)
{
    double per_near = near_s / near_n, per_far = far_s / far_n;
    double c = (per_far - per_near) / (2 * past + far_n - near_n);
    if (!(c > 0)) /* attention drowned in the noise */
        c = 0;
    double b = per_near - c * near_n;
    return (struct cost_curve){.b_s = b > 0 ? b : per_near, .c_s = b > 0 ? c : 0};
}

static int measure(struct platform *p, struct bench *b)
{
    int near = model_work_rows(b->w) < NEAR_ROWS ? model_work_rows(b->w) : NEAR_ROWS;
    near = near < b->m->max_ctx ? near : b->m->max_ctx;
    double near_s, far_s, far_gemm_s, h_s, kv_s = 0, embed_s, head_s;
    int rc = sample(b, run_layer, near, &near_s);
    if (rc == 0)
        rc = sample(b, run_project, near, &h_s);
    if (rc == 0)
        rc = sample_load(b, &kv_s);
    if (rc == 0)
        rc = sample(b, run_head, 1, &head_s);
    if (rc == 0)
        rc = sample(b, run_embed, near, &embed_s);
    if (rc != 0)
        return rc;
    p->c_tok = (struct cost_curve){.b_s = near_s / near};
    if (b->m->max_ctx >= 2 * near + FAR_ROWS) {
        /* The far sample has fewer rows; its GEMMs are compared with a near sample of that size. */
        int past = b->m->max_ctx - near < FAR_PAST ? b->m->max_ctx - near : FAR_PAST;
        past = past / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
        rc = sample(b, run_layer, FAR_ROWS, &far_gemm_s);
        b->past = past;
        if (rc == 0)
            rc = sample(b, run_layer, FAR_ROWS, &far_s);
        b->past = 0;
        if (rc != 0)
            return rc;
        double attention_s = (far_s - far_gemm_s) /
                             FAR_ROWS; /* a row's, over `past` more keys */
        p->c_tok = fit_layer(near_s, near,
                             near_s / near * FAR_ROWS + attention_s * FAR_ROWS, FAR_ROWS,
                             past);
    }
    p->c_h = (struct cost_curve){.b_s = h_s / near};
    p->c_kv = (struct cost_curve){.b_s = kv_s};
    p->embed_s = embed_s / near;
    p->head_s = head_s;
    return 0;
}

int profile_compute(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, struct err *err)
{
    struct bench b;
    int rc = bench_init(&b, m, w, s, err);
    if (rc != 0)
        return rc;
    rc = measure(p, &b);
    bench_deinit(&b);
    return rc == 0 ? 0 : err_set(err, rc, "profile: %s", err_name(rc));
}

/* --- I/O -------------------------------------------------------------------------------------- */

enum { IO_BATCH = 32 };

#define IO_SAMPLE_NS    60000000
#define IO_SAMPLE_BYTES (128u << 20)

/* Walks over the records that exist: layer by layer over all chunks, as a restore would. */
struct walk {
    const struct model *m;
    const struct store_hit *hits;
    int n_hits, layer, chunk;
};

static bool next_record(struct walk *w, struct store_read *read)
{
    for (; w->layer < w->m->cfg.n_layers; w->layer++, w->chunk = 0) {
        while (w->chunk < w->n_hits) {
            const struct store_hit *h = &w->hits[w->chunk++];
            bool kv = store_mask_has(&h->mask, w->layer, STORE_KV);
            if (!kv && !store_mask_has(&h->mask, w->layer, STORE_HIDDEN))
                continue; /* what recomputation brings back for free need not be stored */
            read->hit = h;
            read->layer = w->layer;
            read->kind = kv ? STORE_KV : STORE_HIDDEN;
            return true;
        }
    }
    return false;
}

static int read_some(struct store_reader *reader, struct store_read *const *reads, int n,
                     uint64_t *bytes, struct err *err)
{
    struct store_read *done[IO_BATCH];
    int rc = store_reader_submit(reader, reads, n, err);
    for (int left = n, got; rc == 0 && left > 0; left -= got) {
        rc = store_reader_wait(reader, done, IO_BATCH, &got, err);
        for (int i = 0; rc == 0 && i < got; i++)
            *bytes += done[i]->status == 0 ? done[i]->n_bytes : 0;
    }
    return rc;
}

/* Reads records in batches, until time or bytes are used up. The first batch is one record: its time
 * is the latency. */
static int time_reads(struct platform_tier *t, struct walk *w, struct store_reader *reader,
                      uint8_t *staging, size_t room, struct err *err)
{
    int64_t begin = clock_now_ns(), after_first = begin;
    uint64_t bytes = 0, first_bytes = 0;
    for (int batch = 0; bytes < IO_SAMPLE_BYTES && clock_now_ns() - begin < IO_SAMPLE_NS;
         batch++) {
        struct store_read read[IO_BATCH], *reads[IO_BATCH];
        int want = batch == 0 ? 1 : IO_BATCH, n = 0;
        for (; n < want; n++) {
            read[n] = (struct store_read){.dst = staging + (size_t)n * room,
                                          .dst_bytes = room};
            reads[n] = &read[n];
            if (!next_record(w, &read[n]))
                break;
        }
        if (n == 0)
            break;
        int rc = read_some(reader, reads, n, &bytes, err);
        if (rc != 0)
            return rc;
        if (batch == 0) {
            after_first = clock_now_ns();
            first_bytes = bytes;
        }
    }
    int64_t end = clock_now_ns();
    double rest_s = (double)(end - after_first) * 1e-9,
           rest = (double)(bytes - first_bytes);
    if (rest == 0) { /* a single record was all there is: its time is all we know */
        rest_s = (double)(end - begin) * 1e-9;
        rest = (double)bytes;
    }
    if (bytes == 0)
        return err_set(err, -EIO, "profile: no stored record could be read");
    t->bytes_per_s = rest / (rest_s > 1e-9 ? rest_s : 1e-9);
    double latency = (double)(after_first - begin) * 1e-9 -
                     (double)first_bytes / t->bytes_per_s;
    t->latency_s = latency > 0 ? latency : 0;
    return 0;
}

int profile_io(struct platform *p, const struct model *m, struct store *store,
               const struct store_hit *hits, int n_hits, struct err *err)
{
    CHECK(n_hits > 0);
    size_t bytes = model_hidden_bytes(m) > model_kv_bytes(m) ? model_hidden_bytes(m)
                                                             : model_kv_bytes(m);
    size_t room = round_up(STORE_CHUNK_TOKENS * bytes, STORE_ALIGN);
    struct buf staging;
    struct store_reader *reader = NULL;
    int rc = buf_alloc(m->dev, MEM_PINNED, IO_BATCH * room, &staging, err);
    if (rc != 0)
        return err_wrap(err, "profile");
    memset(staging.ptr, 0, staging.bytes);
    rc = store_reader_open(store, IO_BATCH, staging.ptr, staging.bytes, &reader, err);
    struct platform_tier *t = &p->tier[0];
    struct walk w = {.m = m, .hits = hits, .n_hits = n_hits};
    if (rc == 0)
        rc = time_reads(t, &w, reader, staging.ptr, room, err);
    store_reader_close(reader);
    buf_free(m->dev, &staging);
    if (rc == 0) {
        snprintf(t->name, sizeof t->name, "store");
        p->n_tiers = 1;
    }
    return rc;
}

/* --- identity and cache ----------------------------------------------------------------------- */

static void cpu_name(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, n, "unknown CPU");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, n, "%.40s", colon + 2);
            break;
        }
    }
    if (f != NULL)
        fclose(f);
}

void profile_begin(struct platform *p, const struct model *m,
                   const struct sha256 *fingerprint)
{
    struct utsname u;
    char cpu[48], hex[65];
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    platform_init(p);
    cpu_name(cpu, sizeof cpu);
    if (uname(&u) != 0)
        strcpy(u.nodename, "unknown");
    snprintf(p->machine, sizeof p->machine, "%.24s, %.40s, %s, %d threads", u.nodename, cpu,
             m->dev->name, pool_threads(m->dev->pool));
    sha256_hex(fingerprint, hex);
    snprintf(p->model, sizeof p->model, "%s", hex);
    snprintf(p->commit, sizeof p->commit, "%s", "-");
    strftime(p->date, sizeof p->date, "%Y-%m-%d", gmtime_r(&now, &tm));
    p->n_layers = m->cfg.n_layers;
    p->h_bytes = (double)model_hidden_bytes(m);
    p->kv_bytes = (double)model_kv_bytes(m);
}

/* Costs that were measured, or edited, for another shape: arrays are sized by the model's. */
static int check_shape(const struct platform *p, const struct platform *expected,
                       struct err *err)
{
    if (p->n_layers != expected->n_layers)
        return err_set(err, ERR_MISMATCH, "it is for %d layers, the model has %d",
                       p->n_layers, expected->n_layers);
    if (p->h_bytes != expected->h_bytes || p->kv_bytes != expected->kv_bytes)
        return err_set(err, ERR_MISMATCH,
                       "it is for states of %g and %g bytes, the model's have %g and %g",
                       p->h_bytes, p->kv_bytes, expected->h_bytes, expected->kv_bytes);
    return 0;
}

int profile_load(struct platform *p, const char *path, const struct platform *expected,
                 struct err *err)
{
    char *text = NULL;
    size_t n = 0;
    int rc = file_read(path, 1 << 20, &text, &n, err);
    if (rc != 0)
        return rc;
    if (n == 0 || text[n - 1] != '\n') /* torn in its last number, it would still parse */
        rc = err_set(err, ERR_FORMAT, "it is cut off");
    if (rc == 0)
        rc = platform_parse(text, n, p, err);
    free(text);
    if (rc == 0)
        rc = platform_check(p, expected->machine, expected->model, err);
    if (rc == 0)
        rc = check_shape(p, expected, err);
    if (rc != 0)
        err_wrap(err, "profile %s", path);
    return rc;
}

int profile_store(const struct platform *p, const char *path, struct err *err)
{
    char text[PLATFORM_FORMAT_MAX];
    int n = platform_format(p, text, sizeof text);
    char *temp = xasprintf("%s.%d.tmp", path, (int)getpid());
    FILE *f = fopen(temp, "w");
    bool good = f != NULL && fchmod(fileno(f), 0600) == 0 &&
                fwrite(text, 1, (size_t)n, f) == (size_t)n;
    if (f != NULL)
        good = fclose(f) == 0 && good;
    good = good && rename(temp, path) == 0;
    int rc = good ? 0
                  : err_set(err, errno != 0 ? -errno : -EIO, "profile %s: %s", path,
                            strerror(errno));
    if (!good)
        unlink(temp);
    free(temp);
    return rc;
}
