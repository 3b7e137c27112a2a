/* bench_restore.c - `hcache bench restore`: how long bringing a context back takes, by every method.
 *
 * For each history length and method it prints the predicted and the measured time (median of
 * rounds in which the methods take turns), the bytes read, and the share of a measured ceiling:
 *
 *   read    what the same records take to be read through the same path in the same round, nothing
 *           else being done (for DRAM: to be copied once by all threads, since its reads are
 *           pointers)
 *   gemm    what the plan's projections and recomputed layers take by the rates of the profile
 *
 * The ceiling of a restore is the longer of the two lanes; 1.00 means that all else is hidden. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/pool.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "engine/stack.h"
#include "policy/plan.h"
#include "state/profile.h"

struct restore_args {
    const char *model, *dtype, *weights, *csv;
    struct opt_list store, lengths, methods;
    int threads, rounds;
    uint64_t throttle, staging;
    bool keep;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const weight_kinds[] = {"checkpoint", "q8", NULL};

static const struct opt positionals[] = {
    {"MODEL", OPT(struct restore_args, model), .def = "synth:bench-220m",
     .help = "a model folder or synth:SHAPE"},
    {0},
};

static const struct opt options[] = {
    {"store", OPT(struct restore_args, store), .arg = "DIR[,DIR...]",
     .help = "where to keep the state; \"memory\" for DRAM; a temporary folder by default"},
    {"lengths", OPT(struct restore_args, lengths), .arg = "N[,N...]",
     .def = "512,1024,2048,4096",
     .help = "history lengths in tokens (rounded down to chunks)"},
    {"methods", OPT(struct restore_args, methods), .arg = "M[,M...]",
     .def = "kv,hidden,paper,kv+recompute,auto,recompute",
     .help = "which to run: any mode of hcache plan"},
    {"rounds", OPT(struct restore_args, rounds), .arg = "N", .def = "5", .min = 1,
     .max = 1000,
     .help = "rounds, in which the methods take turns; recompute runs in the first only"},
    {"dtype", OPT(struct restore_args, dtype), .choices = dtypes, .help = "state dtype"},
    {"weights", OPT(struct restore_args, weights), .choices = weight_kinds,
     .def = "checkpoint",
     .help = "how matrices are held: in the checkpoint's type, or in 8 bits (q8)"},
    {"threads", OPT(struct restore_args, threads), .def = "0", .min = 0, .max = 1024,
     .help = "compute threads; 0 is one per core"},
    {"throttle", OPT(struct restore_args, throttle), .arg = "BYTES_PER_S", .def = "0",
     .help = "slow the store's reads down"},
    {"staging", OPT(struct restore_args, staging), .arg = "BYTES", .def = "64M",
     .help = "staging memory of a restore"},
    {"csv", OPT(struct restore_args, csv), .arg = "FILE",
     .help = "write the table as CSV too"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench restore",
    .summary =
        "Measures restores of one context by every method, beside what was predicted and "
        "what the machine can do.",
    .positionals = positionals,
    .options = options,
    .examples = "  hcache bench restore\n"
                "  hcache bench restore --store memory --lengths 4096\n"
                "  hcache bench restore --throttle 100MB --csv restore.csv\n",
    .values_bytes = sizeof(struct restore_args),
};

enum { MAX_METHODS = 12, MAX_ROUNDS = 1000 };

struct lab {
    struct restore_args *a;
    struct stack k;
    struct stream *stream;
    struct model_work *work;
    struct restorer *restorer;
    struct kv_pool *pool;
    struct kv_table table;
    int32_t *tokens;
    int max_chunks;
    struct sha256 *keys;
    struct store_hit *hits;
    uint8_t *copy; /* where the read ceiling of DRAM copies to */
    size_t copy_bytes;
    FILE *csv;
};

/* --- filling the store ------------------------------------------------------------------------ */

/* One real prefill of the longest history, everything saved. */
static int fill_store(struct lab *b, struct err *err)
{
    struct request q = {.prompt = b->tokens,
                        .n_prompt = b->max_chunks * STORE_CHUNK_TOKENS + 1,
                        .max_tokens = 0,
                        .plan = "recompute"};
    struct seq *s = NULL;
    for (int l = 0; l < b->k.model->cfg.n_layers; l++)
        q.save.kinds[l] = SAVE_HIDDEN | SAVE_KV;
    int64_t t0 = clock_now_ns();
    int rc = engine_add(b->k.engine, &q, &s, err);
    if (rc == 0)
        rc = engine_run(b->k.engine, err);
    int64_t t1 = clock_now_ns();
    if (rc == 0)
        rc = saver_flush(b->k.saver, err);
    if (rc == 0)
        fprintf(
            stderr, "prefilled %d tokens in %.2f s (%.0f tokens/s, saving both kinds)\n",
            q.n_prompt, (double)(t1 - t0) * 1e-9, q.n_prompt / ((double)(t1 - t0) * 1e-9));
    if (s != NULL)
        engine_remove(b->k.engine, s);
    return rc;
}

/* --- one measurement -------------------------------------------------------------------------- */

static int make_plan(struct lab *b, const char *method, int n_chunks, struct plan *plan,
                     struct err *err)
{
    static struct plan_layer layer[STORE_MAX_LAYERS];
    struct plan_request req = {0};
    struct platform *p = &b->k.platform;
    plan_request_from_platform(p, 0, (int64_t)n_chunks * STORE_CHUNK_TOKENS, 0, layer, NULL,
                               &req);
    int rc = plan_mode_parse(method, &req, err);
    return rc == 0 ? plan_make(&req, plan, err) : rc;
}

static int restore_once(struct lab *b, int n_chunks, const struct plan *plan,
                        struct restore_result *r, struct err *err)
{
    struct restore_job job = {.hits = b->hits,
                              .n_chunks = n_chunks,
                              .tokens = b->tokens,
                              .table = &b->table,
                              .plan = plan};
    int rc = restore_run(b->restorer, &job, r, err);
    if (rc == 0 && r->n_chunks < n_chunks)
        rc = err_set(err, ERR_CORRUPT, "restore fell short: %s", r->fault);
    return rc;
}

struct copy_job {
    struct store_read *reads;
    int n;
    uint8_t *to;
    size_t room;
};

static void copy_share(void *arg, int thread_idx, int n_threads)
{
    struct copy_job *c = arg;
    long begin, end;
    pool_share(c->n, 1, thread_idx, n_threads, &begin, &end);
    for (long i = begin; i < end; i++)
        memcpy(c->to + (size_t)i * c->room, c->reads[i].bytes, c->reads[i].n_bytes);
}

/* Reads the records of a plan through the store's path, group after group, and drops them. */
static int read_only(struct lab *b, struct store_reader *reader, int n_chunks,
                     const struct plan *plan, int64_t *ns, struct err *err)
{
    enum { GROUP = RESTORE_GROUP_CHUNKS, MAX_READS = 4096 };
    size_t room = round_up(STORE_CHUNK_TOKENS * model_kv_bytes(b->k.model), STORE_ALIGN);
    size_t other = round_up(STORE_CHUNK_TOKENS * model_hidden_bytes(b->k.model),
                            STORE_ALIGN);
    room = room > other ? room : other;
    int n_slots = (int)(b->copy_bytes / (GROUP * room)), in_flight = 0, rc = 0, slot = 0;
    struct store_read *reads = xcalloc((size_t)n_slots * GROUP, sizeof *reads);
    struct store_read *ptr[GROUP], *done[GROUP];
    bool dram = b->k.io == NULL;
    int64_t t0 = clock_now_ns();
    for (int i = 0; rc == 0 && i < plan->n_io; i++) {
        enum store_kind kind = plan->method[plan->io_order[i]] == 'H' ? STORE_HIDDEN
                                                                      : STORE_KV;
        for (int c = 0; rc == 0 && c < n_chunks; c += GROUP) {
            int n = n_chunks - c < GROUP ? n_chunks - c : GROUP;
            while (rc == 0 && in_flight + n > (n_slots - 1) * GROUP) {
                int got = 0;
                rc = store_reader_wait(reader, done, GROUP, &got, err);
                in_flight -= got;
            }
            for (int j = 0; j < n; j++) {
                struct store_read *r = &reads[slot * GROUP + j];
                *r = (struct store_read){.hit = &b->hits[c + j],
                                         .layer = plan->io_order[i],
                                         .kind = kind,
                                         .dst = b->copy +
                                                ((size_t)slot * GROUP + (size_t)j) * room};
                ptr[j] = r;
            }
            if (rc == 0)
                rc = store_reader_submit(reader, ptr, n, err);
            in_flight += n;
            if (dram && rc == 0) {
                int got = 0;
                for (int left = n; rc == 0 && left > 0; left -= got)
                    rc = store_reader_wait(reader, done, GROUP, &got, err);
                in_flight -= n;
                struct copy_job job = {&reads[slot * GROUP], n,
                                       b->copy + (size_t)slot * GROUP * room, room};
                pool_run(b->k.pool, copy_share, &job);
            }
            slot = (slot + 1) % n_slots;
        }
    }
    while (in_flight > 0) {
        int got = 0;
        int rc2 = store_reader_wait(reader, done, GROUP, &got, err);
        rc = rc == 0 ? rc2 : rc;
        if (rc2 != 0 || got == 0)
            break;
        in_flight -= got;
    }
    *ns = clock_now_ns() - t0;
    free(reads);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct row {
    char method[32];
    struct plan plan;
    uint64_t bytes;
    int n;
    double total_ms[MAX_ROUNDS], read_ms[MAX_ROUNDS], wait_ms[MAX_ROUNDS];
};

static int measure(struct lab *b, struct store_reader *reader, int n_chunks,
                   struct row *row, struct err *err)
{
    struct restore_result r;
    int64_t read_ns = 0;
    int rc = 0;
    if (row->plan.n_io > 0)
        rc = read_only(b, reader, n_chunks, &row->plan, &read_ns, err);
    if (rc == 0)
        rc = restore_once(b, n_chunks, &row->plan, &r, err);
    if (rc != 0)
        return rc;
    row->bytes = r.read_bytes;
    row->total_ms[row->n] = (double)r.total_ns * 1e-6;
    row->read_ms[row->n] = (double)read_ns * 1e-6;
    row->wait_ms[row->n] = (double)r.wait_ns * 1e-6;
    row->n++;
    return 0;
}

static void print_row(struct lab *b, int n_tokens, struct row *r)
{
    double total = median(r->total_ms, r->n), read = median(r->read_ms, r->n);
    double compute = r->plan.comp_busy_s * 1e3;
    double ceiling = read > compute ? read : compute;
    printf("%7d  %-13s %-26.26s %10.1f %10.1f %6.2f %9.1f %8.2f %10.1f %10.1f %7.2f\n",
           n_tokens, r->method, r->plan.method, r->plan.restore_s * 1e3, total,
           r->plan.restore_s * 1e3 / total, (double)r->bytes * 1e-6,
           (double)r->bytes * 1e-6 / total, read, compute, ceiling / total);
    fflush(stdout);
    if (b->csv != NULL)
        fprintf(b->csv, "%d,%s,%s,%d,%.3f,%.3f,%.3f,%.3f,%llu,%.3f,%.3f,%.3f,%.4f\n",
                n_tokens, r->method, r->plan.method, r->n, r->plan.restore_s * 1e3, total,
                r->total_ms[0], r->total_ms[r->n - 1], (unsigned long long)r->bytes, read,
                compute, median(r->wait_ms, r->n), ceiling / total);
}

static int run_length(struct lab *b, struct store_reader *reader, int n_chunks,
                      struct err *err)
{
    static struct row rows[MAX_METHODS];
    int n = b->a->methods.n, rc = 0;
    if (n > MAX_METHODS)
        return err_set(err, ERR_USAGE, "--methods: at most %d", MAX_METHODS);
    for (int i = 0; i < n; i++) {
        memset(&rows[i], 0, sizeof rows[i]);
        snprintf(rows[i].method, sizeof rows[i].method, "%s", b->a->methods.items[i]);
        rc = make_plan(b, rows[i].method, n_chunks, &rows[i].plan, err);
        if (rc != 0)
            return err_wrap(err, "%s", rows[i].method);
    }
    for (int round = 0; rc == 0 && round < b->a->rounds; round++) {
        for (int i = 0; rc == 0 && i < n; i++) {
            bool slow = rows[i].plan.n_io == 0; /* recompute: once is enough */
            if (!slow || round == 0)
                rc = measure(b, reader, n_chunks, &rows[i], err);
        }
    }
    for (int i = 0; rc == 0 && i < n; i++)
        print_row(b, n_chunks * STORE_CHUNK_TOKENS, &rows[i]);
    return rc;
}

/* --- the whole -------------------------------------------------------------------------------- */

static int parse_lengths(struct lab *b, int *chunks, struct err *err)
{
    for (int i = 0; i < b->a->lengths.n; i++) {
        chunks[i] = atoi(b->a->lengths.items[i]) / STORE_CHUNK_TOKENS;
        if (chunks[i] < 1)
            return err_set(err, ERR_USAGE,
                           "--lengths: '%s' is less than a chunk of 64 tokens",
                           b->a->lengths.items[i]);
        b->max_chunks = chunks[i] > b->max_chunks ? chunks[i] : b->max_chunks;
    }
    return 0;
}

static int prepare(struct lab *b, struct err *err)
{
    const struct model *m = b->k.model;
    int n = b->max_chunks * STORE_CHUNK_TOKENS + 1;
    if (n > m->max_ctx)
        return err_set(err, ERR_USAGE, "--lengths: %d tokens do not fit the context of %d",
                       n, m->max_ctx);
    struct rng rng = {.s = 7};
    b->tokens = xcalloc((size_t)n, sizeof *b->tokens);
    for (int i = 0; i < n; i++)
        b->tokens[i] = (int32_t)rng_below(&rng, (uint64_t)m->cfg.vocab_size);
    b->hits = xcalloc((size_t)b->max_chunks, sizeof *b->hits);
    b->keys = xcalloc((size_t)b->max_chunks, sizeof *b->keys);
    struct sha256 parent = store_root_key(&b->k.fingerprint, NULL);
    for (int i = 0; i < b->max_chunks; i++)
        parent = b->keys[i] = store_chunk_key(&parent, b->tokens + i * STORE_CHUNK_TOKENS);

    struct kv_pool_opts po = {.n_layers = m->cfg.n_layers,
                              .n_kv = m->cfg.n_kv_heads,
                              .d_head = m->cfg.d_head,
                              .dtype = m->dtype,
                              .n_blocks = b->max_chunks};
    int rc = kv_pool_create(b->k.dev, &po, &b->pool, err);
    if (rc == 0)
        rc = kv_table_reserve(b->pool, &b->table,
                              (int64_t)b->max_chunks * STORE_CHUNK_TOKENS, err);
    if (rc == 0)
        rc = stream_create(b->k.dev, STREAM_COMPUTE, &b->stream, err);
    if (rc == 0)
        rc = model_work_create(m, 512, &b->work, err);
    struct restorer_opts ro = {.model = m,
                               .store = b->k.store,
                               .pool = b->pool,
                               .work = b->work,
                               .stream = b->stream,
                               .staging_bytes = b->a->staging,
                               .max_tokens = n};
    if (rc == 0)
        rc = restorer_create(&ro, &b->restorer, err);
    b->copy_bytes = b->a->staging > ((size_t)32 << 20) ? b->a->staging : (size_t)32 << 20;
    b->copy = mem_map(b->copy_bytes);
    if (b->copy == NULL)
        return err_set(err, -ENOMEM, "no memory for the read ceiling");
    memset(b->copy, 0, b->copy_bytes);
    return rc;
}

static int find_state(struct lab *b, struct err *err)
{
    int n_hits = 0;
    char why[200];
    int rc = store_lookup(b->k.store, b->keys, b->max_chunks, b->hits, &n_hits, why,
                          sizeof why, err);
    if (rc == 0 && n_hits < b->max_chunks) {
        store_release(b->k.store, b->hits, n_hits);
        rc = fill_store(b, err);
        if (rc == 0)
            rc = store_lookup(b->k.store, b->keys, b->max_chunks, b->hits, &n_hits, why,
                              sizeof why, err);
    }
    if (rc == 0 && n_hits < b->max_chunks)
        rc = err_set(err, ERR_NOT_FOUND, "only %d of %d chunks could be stored: %s", n_hits,
                     b->max_chunks, why);
    return rc;
}

static int run(struct lab *b, struct err *err)
{
    int chunks[64] = {0};
    struct store_reader *reader = NULL;
    if (b->a->lengths.n > 64)
        return err_set(err, ERR_USAGE, "--lengths: at most 64");
    int rc = parse_lengths(b, chunks, err);
    if (rc == 0)
        rc = prepare(b, err);
    if (rc == 0)
        rc = find_state(b, err);
    if (rc == 0 && b->a->throttle > 0) {
        b->k.platform.n_tiers = 1;
        b->k.platform.tier[0] = (struct platform_tier){
            .name = "throttled", .bytes_per_s = (double)b->a->throttle};
    } else if (rc == 0) {
        rc = profile_io(&b->k.platform, b->k.model, b->k.store, b->hits, b->max_chunks,
                        err);
    }
    if (rc == 0)
        rc = store_reader_open(b->k.store, 128, b->copy, b->copy_bytes, &reader, err);
    if (rc != 0)
        return rc;
    const struct platform *p = &b->k.platform;
    char line[400];
    stack_describe(&b->k, line, sizeof line);
    printf("%s, %s\n%s\n", b->a->model, p->machine, line);
    printf("profile per layer and 1000 tokens: recompute %.2f ms (+ %.3f per 1000^2), "
           "project %.2f "
           "ms, load %.3f ms; store %.2f GB/s%s\n\n",
           p->c_tok.b_s * 1e6, p->c_tok.c_s * 1e9, p->c_h.b_s * 1e6, p->c_kv.b_s * 1e6,
           p->tier[0].bytes_per_s * 1e-9, b->a->throttle > 0 ? " (throttled)" : "");
    printf("%7s  %-13s %-26s %10s %10s %6s %9s %8s %10s %10s %7s\n", "tokens", "method",
           "plan", "predicted", "measured", "ratio", "MB", "GB/s", "read only", "compute",
           "share");
    if (b->csv != NULL)
        fprintf(b->csv,
                "tokens,method,plan,rounds,predicted_ms,median_ms,min_ms,max_ms,bytes,"
                "read_only_ms,compute_ms,wait_ms,share_of_ceiling\n");
    for (int i = 0; rc == 0 && i < b->a->lengths.n; i++)
        rc = run_length(b, reader, chunks[i], err);
    store_reader_close(reader);
    return rc;
}

static void cleanup(struct lab *b)
{
    if (b->hits != NULL && b->k.store != NULL)
        store_release(b->k.store, b->hits, b->max_chunks);
    restorer_destroy(b->restorer);
    model_work_destroy(b->work);
    stream_destroy(b->stream);
    if (b->pool != NULL)
        kv_table_free(b->pool, &b->table);
    kv_pool_destroy(b->pool);
    mem_unmap(b->copy, b->copy_bytes);
    free(b->tokens);
    free(b->keys);
    free(b->hits);
    if (b->csv != NULL)
        fclose(b->csv);
    stack_close(&b->k);
}

static int open_lab(struct lab *b, const char *temp, struct err *err)
{
    struct restore_args *a = b->a;
    bool memory = a->store.n == 1 && strcmp(a->store.items[0], "memory") == 0;
    struct stack_opts so = {.model = a->model,
                            .dtype = a->dtype,
                            .weights = a->weights,
                            .threads = a->threads,
                            .dirs = memory           ? NULL
                                    : a->store.n > 0 ? a->store.items
                                                     : &temp,
                            .n_dirs = memory           ? 0
                                      : a->store.n > 0 ? a->store.n
                                                       : 1,
                            .in_memory = memory,
                            .throttle_bytes_per_s = a->throttle};
    if (a->csv != NULL) {
        b->csv = fopen(a->csv, "w");
        if (b->csv == NULL)
            return err_set(err, -errno, "%s: %s", a->csv, strerror(errno));
    }
    return stack_open(&so, &b->k, err);
}

int bench_restore(int argc, char **argv)
{
    struct restore_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    char temp[] = "/var/tmp/hcache-bench-XXXXXX";
    bool use_temp = a.store.n == 0;
    if (use_temp && mkdtemp(temp) == NULL) {
        fprintf(stderr, "hcache bench restore: %s: %s\n", temp, strerror(errno));
        return 1;
    }
    struct lab b = {.a = &a};
    int rc = open_lab(&b, temp, &err);
    if (rc == 0)
        rc = run(&b, &err);
    cleanup(&b);
    if (use_temp)
        bench_remove_dir(temp);
    if (rc != 0)
        fprintf(stderr, "hcache bench restore: %s\n", err.msg);
    opt_end(parsed);
    return rc == 0 ? 0 : rc == ERR_USAGE ? 2 : 1;
}
