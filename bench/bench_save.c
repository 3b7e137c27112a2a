/* bench_save.c - `hcache bench save`: the cost of saving to a decode (HCache paper, section 6.3.3,
 * figure 14).
 *
 * Batches of sequences decode by the engine's own steps (forward pass, head, sampling). Windows of
 * steps take turns, in another order each round, all at the same positions. Windows differ only in
 * how state is treated:
 *
 *   off, off2   not saved; off2 is the A/A run that shows the noise
 *   save        two-stage saving, as in the engine: snapshot, background writer, durable commits
 *   direct      the paper's DirectIO: a layer's rows are written when they arise, and waited for
 *
 * Sequences are staggered over a chunk, as in a service, so that some chunk becomes full every few
 * steps. The time between tokens (TBT) is that of one whole step. Three overheads relative to `off`
 * are printed: that of the median of all steps, that of their p99, and (paired) the median over
 * rounds of the difference between the windows' medians, which a drifting machine disturbs
 * least. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "base/rng.h"
#include "apps/option_tables.h"
#include "bench/bench.h"
#include "bench/save_at_end.h"
#include "bench/save_figure.h"
#include "api/stack.h"
#include "io/io.h"
#include "restore/save_policy.h"
#include "tensor/readback.h"

struct save_args {
    struct bench_common common; /* must be the first member */
    const char *csv, *save;
    struct opt_list batches, arms;
    int rounds, steps, context;
    bool at_end;
};

static const struct opt options[] = {
    BENCH_OPT_STORE,
    {"store-cap", OPT(struct bench_common, engine.o.store_cap_bytes), .arg = "BYTES",
     .def = "2G", .help = "limit on the store"},
    OPT_SAVE_BUFFER(struct bench_common),
    OPT_PACK(struct bench_common),
    {"batches", OPT(struct save_args, batches), .arg = "N[,N...]", .def = "1,2,4,8,16,32",
     .help = "sequences that decode at once"},
    {"arms", OPT(struct save_args, arms), .arg = "ARM[,ARM...]",
     .def = "off,save,off2,direct",
     .help = "off, off2, save, direct; off is always included; direct requires a CPU and a "
             "store in folders"},
    {"save", OPT(struct save_args, save), .arg = "KINDS", .def = "both",
     .help =
         "kinds of state to save: hidden, kv, both, or a letter per layer (H, K, B, -)"},
    {"context", OPT(struct save_args, context), .arg = "N", .def = "256", .min = 64,
     .max = 1 << 20, .help = "tokens of history where a window begins"},
    {"steps", OPT(struct save_args, steps), .arg = "N", .def = "128", .min = 8, .max = 4096,
     .help = "steps of a window"},
    {"rounds", OPT(struct save_args, rounds), .arg = "N", .def = "5", .min = 1, .max = 200,
     .help = "rounds, in which the arms take turns"},
    {"at-end", OPT(struct save_args, at_end),
     .help = "measure whole jobs instead: prompts of --context tokens and answers of "
             "--steps, saved meanwhile or at the end (AttentionStore, figure 20)"},
    BENCH_OPT_DEVICE,
    BENCH_OPT_DTYPE,
    BENCH_OPT_THREADS,
    BENCH_OPT_PARALLEL,
    BENCH_OPT_BATCH,
    {"csv", OPT(struct save_args, csv), .arg = "FILE",
     .help = "write the table as CSV too"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench save",
    .summary =
        "Measures the time between tokens with saving off, on, and with direct writes, "
        "beside an A/A run.",
    .positionals = bench_positionals,
    .options = options,
    .examples = "  hcache bench save\n"
                "  hcache bench save --batches 32 --rounds 9 --arms off,save,off2\n"
                "  hcache bench save --store memory --csv save.csv\n"
                "  hcache bench save --at-end --context 1024 --steps 20 --batches 4\n",
    .values_bytes = sizeof(struct save_args),
};
const struct opt_cmd *const options_of_bench_save = &cmd;

enum { MAX_BATCH = 64, MAX_ARMS = 4, MAX_ROUNDS = 200, MAX_STEPS = 4096 };

enum arm_kind { ARM_OFF, ARM_SAVE, ARM_DIRECT };

struct arm {
    const char *name;
    enum arm_kind kind;
    double *step_ms; /* [rounds * steps] */
    int n;
    double window_ms[MAX_ROUNDS]; /* median of each window */
    uint64_t n_bytes;             /* bytes saved */
    int n_shed;                   /* sequences that were not saved up to the window's end */
};

/* Destination of direct writes: a file used as a ring, with one 4 KiB-aligned slot per row and
 * layer. */
struct direct {
    struct io_file *file;
    struct io_queue *queue;
    struct io_req req[MAX_BATCH];
    uint8_t *slots; /* [MAX_BATCH][slot_bytes] */
    size_t slot_bytes;
    uint64_t at, ring_bytes;
    uint64_t n_written;
};

struct lab {
    struct save_args *a;
    struct stack k;
    struct stream *stream;
    struct model_work *work;
    struct kv_pool *pool;
    struct buf logits_mem;
    struct mat logits;
    int32_t *next; /* ids of the next tokens, in device memory behind the logits */
    struct readback next_back;
    struct save_policy policy;
    struct direct direct;
    FILE *csv;

    /* The batch. */
    int n_seqs, n_windows;
    struct kv_table table[MAX_BATCH];
    struct save_part part[MAX_BATCH];
    int32_t *tokens[MAX_BATCH];
    /* token at which saved state begins; each window has contexts of its own */
    int base[MAX_BATCH];
    int32_t ids[MAX_BATCH], pos[MAX_BATCH], seq_row[MAX_BATCH + 1];
    const int32_t *blocks[MAX_BATCH];
};

/* --- one step --------------------------------------------------------------------------------- */

static int tap_save(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct lab *b = arg;
    save_layer(b->part, b->n_seqs, l, hidden, kv_rows, b->stream);
    return 0;
}

/* Writes every row of the layer, and waits for the writes before the next layer begins. */
static int tap_direct(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct lab *b = arg;
    struct direct *d = &b->direct;
    struct io_req *reqs[MAX_BATCH], *done[MAX_BATCH];
    size_t h = model_hidden_bytes(b->k.model), kv = model_most_kv_bytes(b->k.model);
    unsigned kinds = b->policy.kinds[l], n_done = 0;
    size_t n_bytes = (kinds & SAVE_HIDDEN ? h : 0) + (kinds & SAVE_KV ? kv : 0);
    if (kinds == 0)
        return 0;
    for (int i = 0; i < b->n_seqs; i++) {
        uint8_t *slot = d->slots + (size_t)i * d->slot_bytes, *p = slot;
        if (kinds & SAVE_HIDDEN)
            p = (uint8_t *)memcpy(p, mat_rows(hidden, i, 1).data, h) + h;
        if (kinds & SAVE_KV)
            memcpy(p, mat_rows(kv_rows, i, 1).data, kv);
        if (d->at + d->slot_bytes > d->ring_bytes)
            d->at = 0;
        d->req[i] = (struct io_req){.file = d->file,
                                    .op = IO_WRITE,
                                    .buf = slot,
                                    .length = round_up(n_bytes, STORE_ALIGN),
                                    .offset = d->at};
        d->at += d->slot_bytes;
        d->n_written += n_bytes;
        reqs[i] = &d->req[i];
    }
    io_queue_submit(d->queue, reqs, (unsigned)b->n_seqs);
    int rc = io_queue_wait(d->queue, (unsigned)b->n_seqs, (unsigned)b->n_seqs, -1, done,
                           &n_done, NULL);
    for (int i = 0; rc == 0 && i < b->n_seqs; i++)
        rc = d->req[i].result;
    return rc;
}

/* Makes a step, as engine_step does for a batch of decodes. */
static int step(struct lab *b, enum arm_kind kind, struct err *err)
{
    static const struct sample_row greedy[MAX_BATCH];
    const struct model *m = b->k.model;
    struct ragged r = {.n_rows = b->n_seqs,
                       .n_seqs = b->n_seqs,
                       .pos = b->pos,
                       .seq_row = b->seq_row,
                       .tables = b->blocks,
                       .id = ragged_new_id()};
    struct model_tap tap = {.layer = kind == ARM_DIRECT ? tap_direct : tap_save, .arg = b};
    struct mat x, logits = mat_rows(b->logits, 0, b->n_seqs);
    for (int i = 0; i < b->n_seqs; i++) {
        b->part[i].pos = b->pos[i] - b->base[i];
        save_reserve(b->part[i].seq, b->part[i].pos, 1, SAVE_SHED);
        b->ids[i] = b->tokens[i][b->pos[i]];
    }
    const void *next = NULL;
    int rc = model_forward(m, b->work, b->stream, b->ids, kv_pool_layers(b->pool), &r,
                           kind == ARM_OFF ? NULL : &tap, &x);
    if (kind == ARM_SAVE)
        save_layers_end(b->k.saver, b->stream);
    if (rc == 0)
        rc = model_head(m, b->work, b->stream, x, logits);
    if (rc == 0)
        rc = m->dev->ops->sample(b->stream, b->next, logits, greedy);
    if (rc == 0)
        rc = readback_start(&b->next_back, b->stream, b->next,
                            (size_t)b->n_seqs * sizeof *b->next, &next);
    if (rc == 0)
        rc = stream_sync(b->stream);
    if (rc != 0)
        return err_set(err, rc, "a step with %d sequences: %s", b->n_seqs, err_name(rc));
    for (int i = 0; i < b->n_seqs; i++) {
        int at = ++b->pos[i];
        b->tokens[i][at] = ((const int32_t *)next)[i];
        save_advance(b->part[i].seq, b->tokens[i] + b->base[i], at - b->base[i]);
    }
    return 0;
}

/* --- one window ------------------------------------------------------------------------------- */

/* Begins a window. Every window begins at the same positions, and saves under keys of its own: the
 * rows of the first chunk before these positions were never computed, so no other context may find
 * them. */
static void window_begin(struct lab *b, enum arm_kind kind)
{
    char salt[64];
    b->n_windows++;
    for (int i = 0; i < b->n_seqs; i++) {
        b->pos[i] = b->a->context + i * STORE_CHUNK_TOKENS / b->n_seqs;
        snprintf(salt, sizeof salt, "bench save %d %d", b->n_windows, i);
        struct sha256 root = store_root_key(&b->k.fingerprint, salt);
        b->base[i] = b->pos[i] / STORE_CHUNK_TOKENS * STORE_CHUNK_TOKENS;
        struct save_begin begin = {
            .parent = &root,
            .policy = &b->policy,
        };
        b->part[i] = (struct save_part){.row = i, .n_rows = 1};
        if (kind == ARM_SAVE)
            b->part[i].seq = save_open(b->k.saver, &begin);
    }
}

static void window_end(struct lab *b, struct arm *arm)
{
    for (int i = 0; i < b->n_seqs; i++) {
        arm->n_shed += save_ended(b->part[i].seq) != SAVE_GOES_ON;
        save_close(b->part[i].seq);
        b->part[i].seq = NULL;
    }
}

static int run_window(struct lab *b, struct arm *arm, int round, struct err *err)
{
    struct store_stats before, after;
    int n = b->a->steps, rc = 0;
    double sorted[MAX_STEPS];
    store_stats(b->k.store, &before);
    uint64_t direct_before = b->direct.n_written;
    window_begin(b, arm->kind);
    for (int i = 0; rc == 0 && i < n; i++) {
        int64_t t0 = clock_now_ns();
        rc = step(b, arm->kind, err);
        sorted[i] = (double)(clock_now_ns() - t0) * 1e-6;
        arm->step_ms[arm->n++] = sorted[i];
    }
    window_end(b, arm);
    if (rc == 0)
        rc = saver_flush(b->k.saver, err);
    store_stats(b->k.store, &after);
    arm->n_bytes += arm->kind == ARM_DIRECT ? b->direct.n_written - direct_before
                                            : after.appended_bytes - before.appended_bytes;
    if (rc == 0)
        arm->window_ms[round] = bench_quantile(sorted, n, 0.5);
    return rc;
}

/* --- one batch size --------------------------------------------------------------------------- */

static double paired(const struct arm *arm, const struct arm *off, int rounds)
{
    double ratio[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++)
        ratio[i] = arm->window_ms[i] / off->window_ms[i];
    return (bench_quantile(ratio, rounds, 0.5) - 1) * 100;
}

static void print_arms(struct lab *b, struct arm *arms, int n_arms)
{
    double off_median = bench_quantile(arms[0].step_ms, arms[0].n, 0.5);
    double off_p99 = bench_quantile(arms[0].step_ms, arms[0].n, 0.99);
    for (int i = 0; i < n_arms; i++) {
        struct arm *a = &arms[i];
        double median = bench_quantile(a->step_ms, a->n, 0.5), sum = 0;
        double p99 = bench_quantile(a->step_ms, a->n, 0.99);
        for (int j = 0; j < a->n; j++)
            sum += a->step_ms[j];
        double dm = (median / off_median - 1) * 100, dp = (p99 / off_p99 - 1) * 100;
        double pair = paired(a, &arms[0], b->a->rounds);
        double rate = (double)a->n_bytes * 1e-3 / sum;
        printf("%5d  %-7s %6d %9.3f %9.3f %9.3f %+9.2f %+9.2f %+9.2f %9.1f %5d\n",
               b->n_seqs, a->name, a->n, median, p99, sum / a->n, dm, pair, dp, rate,
               a->n_shed);
        if (b->csv != NULL)
            fprintf(b->csv, "%d,%s,%d,%d,%.4f,%.4f,%.4f,%.3f,%.3f,%.3f,%.1f,%d\n",
                    b->n_seqs, a->name, b->a->rounds, a->n, median, p99, sum / a->n, dm,
                    pair, dp, rate, a->n_shed);
    }
    fflush(NULL); /* an interrupted run keeps its rows */
}

static int reserve_batch(struct lab *b, struct err *err)
{
    int64_t n_tokens = (int64_t)b->a->context + STORE_CHUNK_TOKENS + b->a->steps + 1;
    struct rng rng = {.s = 5};
    int rc = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        if (rc == 0)
            rc = kv_table_reserve(b->pool, &b->table[i], n_tokens, err);
        b->blocks[i] = b->table[i].blocks;
        b->seq_row[i + 1] = i + 1;
        b->tokens[i] = xcalloc((size_t)n_tokens, sizeof *b->tokens[i]);
        for (int64_t j = 0; j < n_tokens; j++)
            b->tokens[i][j] = (int32_t)rng_below(&rng,
                                                 (uint64_t)b->k.model->cfg.vocab_size);
    }
    return rc;
}

static void drop_batch(struct lab *b)
{
    for (int i = 0; i < b->n_seqs; i++) {
        kv_table_free(b->pool, &b->table[i]);
        free(b->tokens[i]);
    }
}

static int run_batch(struct lab *b, struct arm *arms, int n_arms, struct err *err)
{
    struct arm warm_up = {.name = "warm-up", .kind = ARM_SAVE};
    int rc = reserve_batch(b, err);
    size_t n = (size_t)b->a->rounds * (size_t)b->a->steps;
    warm_up.step_ms = xcalloc((size_t)b->a->steps, sizeof *warm_up.step_ms);
    for (int i = 0; i < n_arms; i++) {
        arms[i].step_ms = xcalloc(n, sizeof *arms[i].step_ms);
        arms[i].n = arms[i].n_shed = 0;
        arms[i].n_bytes = 0;
    }
    if (rc == 0)
        rc = run_window(b, &warm_up, 0, err);
    for (int round = 0; rc == 0 && round < b->a->rounds; round++)
        for (int i = 0; rc == 0 && i < n_arms; i++)
            rc = run_window(b, &arms[(i + round) % n_arms], round, err);
    if (rc == 0)
        print_arms(b, arms, n_arms);
    for (int i = 0; i < n_arms; i++)
        free(arms[i].step_ms);
    free(warm_up.step_ms);
    drop_batch(b);
    return rc;
}

/* --- running it ------------------------------------------------------------------------------- */

static int parse_arms(struct lab *b, struct arm *arms, int *n_arms, struct err *err)
{
    static const struct arm known[] = {{.name = "off", .kind = ARM_OFF},
                                       {.name = "off2", .kind = ARM_OFF},
                                       {.name = "save", .kind = ARM_SAVE},
                                       {.name = "direct", .kind = ARM_DIRECT}};
    arms[0] = known[0];
    *n_arms = 1;
    for (int i = 0; i < b->a->arms.n; i++) {
        const char *name = b->a->arms.items[i];
        int at = 0;
        while (at < 4 && strcmp(known[at].name, name) != 0)
            at++;
        if (at == 4)
            return err_set(err, ERR_USAGE,
                           "--arms: '%s' is none of off, off2, save, direct", name);
        if (known[at].kind == ARM_DIRECT && (b->k.io == NULL || !b->k.dev->unified))
            /* there is no disk, or the disk cannot read the rows from device memory */
            continue;
        bool have = false;
        for (int j = 0; j < *n_arms; j++)
            have |= strcmp(arms[j].name, name) == 0;
        if (!have)
            arms[(*n_arms)++] = known[at];
    }
    return 0;
}

static int parse_batches(struct lab *b, int *batches, int *largest, struct err *err)
{
    *largest = 0;
    for (int i = 0; i < b->a->batches.n; i++) {
        int rc = bench_number("batches", b->a->batches.items[i], 1, MAX_BATCH, &batches[i],
                              err);
        if (rc != 0)
            return rc;
        *largest = batches[i] > *largest ? batches[i] : *largest;
    }
    return 0;
}

static int open_direct(struct lab *b, const char *dir, struct err *err)
{
    struct direct *d = &b->direct;
    size_t row = model_hidden_bytes(b->k.model) + model_most_kv_bytes(b->k.model);
    if (b->k.io == NULL)
        return 0;
    d->slot_bytes = round_up(row, STORE_ALIGN);
    d->ring_bytes = (uint64_t)256 << 20;
    d->slots = mem_map(MAX_BATCH * d->slot_bytes);
    char *path = xasprintf("%s/direct.bin", dir);
    int rc = io_file_open(b->k.io, path, IO_CREATE | IO_DIRECT, &d->file, err);
    free(path);
    /* The file is written once before measuring, so that its extents exist, as on a device in
     * use. */
    uint8_t *zeros = mem_map(1 << 20);
    for (uint64_t at = 0; rc == 0 && at < d->ring_bytes; at += 1 << 20)
        rc = io_file_pwrite(d->file, zeros, 1 << 20, at, err);
    mem_unmap(zeros, 1 << 20);
    if (rc == 0)
        rc = io_queue_open(b->k.io, MAX_BATCH, &d->queue, err);
    return rc;
}

static int prepare(struct lab *b, const char *dir, int largest, struct err *err)
{
    const struct model *m = b->k.model;
    int64_t n_tokens = (int64_t)b->a->context + STORE_CHUNK_TOKENS + b->a->steps + 1;
    size_t logit_bytes = (size_t)largest * (size_t)m->cfg.vocab_size * sizeof(float);
    size_t id_bytes = (size_t)largest * sizeof *b->next;
    if (config_is_hybrid(&m->cfg))
        return err_set(err, ERR_UNSUPPORTED,
                       "models with recurrent layers are not measured here");
    if (n_tokens > m->max_ctx)
        return err_set(err, ERR_USAGE,
                       "--context and --steps: %lld tokens do not fit the context of %d",
                       (long long)n_tokens, m->max_ctx);
    struct kv_pool_opts po = {
        .n_layers = m->cfg.n_layers,
        .n_kv = model_rank_kv_heads(m, 0),
        .d_head = m->cfg.d_head,
        .dtype = m->dtype,
        .n_blocks = largest *
                    (int)(round_up((uint64_t)n_tokens, KV_BLOCK_TOKENS) / KV_BLOCK_TOKENS)};
    int rc = save_policy_make(&b->policy, b->a->save, m, NULL, m->max_ctx, err);
    b->policy.packs = save_policy_packs(b->k.o.user.pack, b->a->save, m, NULL, m->max_ctx,
                                        false);
    if (rc == 0)
        rc = kv_pool_create(b->k.dev, &po, &b->pool, err);
    if (rc == 0)
        rc = stream_create(b->k.dev, STREAM_COMPUTE, &b->stream, err);
    if (rc == 0)
        rc = model_work_create(m, MAX_BATCH, &b->work, err);
    if (rc == 0)
        rc = stage_alloc(b->k.dev, model_last_stage(m), logit_bytes + id_bytes,
                         &b->logits_mem, err);
    if (rc == 0)
        rc = readback_init(b->k.dev, id_bytes, &b->next_back, err);
    if (rc == 0)
        rc = open_direct(b, dir, err);
    if (rc != 0)
        return rc;
    b->logits = mat_of(b->logits_mem.ptr, DTYPE_F32, largest, m->cfg.vocab_size);
    b->next = (int32_t *)(void *)((uint8_t *)b->logits_mem.ptr + logit_bytes);
    return 0;
}

/* Runs the jobs of AttentionStore's figure 20 (save_at_end.h). */
static int run_at_end(struct lab *b, struct err *err)
{
    int batches[64], largest = 0;
    if (b->a->batches.n > 64)
        return err_set(err, ERR_USAGE, "--batches: at most 64");
    int rc = parse_batches(b, batches, &largest, err);
    for (int i = 0; rc == 0 && i < b->a->batches.n; i++) {
        struct save_at_end o = {.stack = &b->k,
                                .save = b->a->save,
                                .n_seqs = batches[i],
                                .n_prompt = b->a->context,
                                .n_answer = b->a->steps,
                                .n_rounds = b->a->rounds,
                                .is_first = i == 0,
                                .csv = b->csv};
        rc = save_at_end_run(&o, err);
    }
    return rc;
}

static int run(struct lab *b, const char *dir, struct err *err)
{
    struct arm arms[MAX_ARMS];
    int batches[64], n_arms = 0, largest = 0;
    if (b->a->batches.n > 64)
        return err_set(err, ERR_USAGE, "--batches: at most 64");
    int rc = parse_batches(b, batches, &largest, err);
    if (rc == 0)
        rc = parse_arms(b, arms, &n_arms, err);
    if (rc == 0)
        rc = prepare(b, dir, largest, err);
    if (rc != 0)
        return rc;
    char line[400];
    stack_describe(&b->k, line, sizeof line);
    printf("%s, %s\n%s\nsaving %s, context %d, windows of %d steps, %d rounds\n\n",
           b->a->common.engine.o.model, b->k.platform.machine, line, b->a->save,
           b->a->context, b->a->steps, b->a->rounds);
    printf("%5s  %-7s %6s %9s %9s %9s %9s %9s %9s %9s %5s\n", "batch", "arm", "steps",
           "TBT ms", "p99 ms", "mean ms", "median %", "paired %", "p99 %", "MB/s", "shed");
    if (b->csv != NULL)
        fputs(SAVE_CSV_HEAD, b->csv);
    for (int i = 0; rc == 0 && i < b->a->batches.n; i++) {
        b->n_seqs = batches[i];
        rc = run_batch(b, arms, n_arms, err);
    }
    return rc;
}

static void cleanup(struct lab *b)
{
    struct direct *d = &b->direct;
    io_queue_close(d->queue);
    io_file_close(d->file);
    if (d->slots != NULL)
        mem_unmap(d->slots, MAX_BATCH * d->slot_bytes);
    if (b->logits_mem.ptr != NULL)
        buf_free(b->k.dev, &b->logits_mem);
    readback_deinit(&b->next_back);
    model_work_destroy(b->work);
    stream_destroy(b->stream);
    kv_pool_destroy(b->pool);
    if (b->csv != NULL)
        fclose(b->csv);
    stack_close(&b->k);
}

static int open_lab(struct lab *b, struct err *err)
{
    struct save_args *a = b->a;
    struct stack_opts so = {.user = a->common.engine.o, .no_profile = true};
    so.user.no_reuse = true;
    if (a->at_end) {
        int batches[64] = {0}, largest = 0;
        int rc = a->batches.n > 64 ? ERR_USAGE : parse_batches(b, batches, &largest, err);
        if (rc != 0)
            return rc;
        so.user.max_sequences = largest;
        so.user.kv_tokens = (uint64_t)largest * (uint64_t)(a->context + a->steps + 64);
    }
    if (a->csv != NULL) {
        b->csv = fopen(a->csv, "w");
        if (b->csv == NULL)
            return err_set(err, -errno, "%s: %s", a->csv, strerror(errno));
    }
    return stack_open(&so, &b->k, err);
}

int bench_save(int argc, char **argv)
{
    struct save_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct bench_place place;
    struct lab *b = xcalloc(1, sizeof *b);
    b->a = &a;
    int rc = bench_place_open(&place, &a.common.engine, &err);
    if (rc == 0)
        rc = open_lab(b, &err);
    if (rc == 0 && a.at_end)
        rc = run_at_end(b, &err);
    else if (rc == 0)
        rc = run(b, a.common.engine.o.n_store > 0 ? a.common.engine.o.store[0] : NULL,
                 &err);
    cleanup(b);
    free(b);
    bench_place_close(&place);
    opt_end(parsed);
    return bench_end("save", rc, &err);
}
