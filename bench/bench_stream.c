/* bench_stream.c - `hcache bench stream`: a packed model with all, some and none of its layers
 * resident.
 *
 * For each budget the engine prefills prompts and decodes batches. A shared disk changes its speed
 * within seconds. So the benchmark measures the disk before and after each row that streams layers,
 * by O_DIRECT reads of the packed file, one MiB each, eight in flight. It measures two speeds: into
 * 8 MiB without using the bytes (as fio does), and into 64 MiB with a checksum of every byte (as
 * weights arrive). The second speed is lower on a virtual disk, whose host copies into memory that
 * another core has in its caches. A row's bound is the smaller of two speeds in tokens per second:
 * that of resident weights, and the disk's. The disk's is (rows of a pass) x (bytes per second into
 * 8 MiB) / (bytes that a pass streams).
 *
 * The digests of a batch's logits must be equal for all budgets; otherwise the benchmark fails. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/option_tables.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "bench/bench.h"
#include "base/json.h"
#include "model/pack_file.h"
#include "apps/pack_write.h"
#include "api/stack.h"
#include "tensor/group.h"

enum {
    MAX_BUDGETS = 8,
    MAX_SIZES = 8,
    MAX_BATCH = 64,
    MAX_ROWS = MAX_BUDGETS * 2 * MAX_SIZES
};

struct stream_args {
    struct bench_common common;
    struct opt_list budgets, batches, prefills;
    int prompt, tokens;
    bool json, check;
};

static const struct opt options[] = {
    {"weights-memory", OPT(struct stream_args, budgets), .arg = "BYTES|P%[,...]",
     .def = "100%,50%,0%", .min = 1, .max = MAX_BUDGETS,
     .help = "budgets, as for run --weights-memory; 100% (all weights resident) is the "
             "reference"},
    {"batches", OPT(struct stream_args, batches), .arg = "N[,...]", .def = "1,8",
     .max = MAX_SIZES, .help = "sequences that decode together"},
    {"prefill", OPT(struct stream_args, prefills), .arg = "N[,...]", .def = "512",
     .max = MAX_SIZES, .help = "tokens of a prompt that is prefilled"},
    {"prompt", OPT(struct stream_args, prompt), .arg = "N", .def = "64", .min = 2,
     .max = BENCH_MAX_TOKENS, .help = "tokens before those that are decoded"},
    {"tokens", OPT(struct stream_args, tokens), .arg = "N", .def = "64", .min = 2,
     .max = 4096, .help = "tokens that each sequence decodes"},
    OPT_WEIGHTS(struct bench_common),
    BENCH_OPT_DEVICE,
    BENCH_OPT_DTYPE,
    BENCH_OPT_THREADS,
    BENCH_OPT_PARALLEL,
    BENCH_OPT_BATCH,
    {"check", OPT(struct stream_args, check),
     .help = "exit 1 if digests differ or a row misses its gate"},
    {"json", OPT(struct stream_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench stream",
    .summary =
        "Measures prefill and decoding of a model of which some layers are read from "
        "the disk for each pass, as shares of resident weights and of the disk. A "
        "model that is not packed is packed into a temporary file first.",
    .positionals = bench_positionals,
    .options = options,
    .examples = "  hcache bench stream --weights-memory 100%,50%,0% --batches 1,8,32\n"
                "  hcache bench stream 7b.packed --weights-memory 8G --prefill 512,4096\n",
    .values_bytes = sizeof(struct stream_args),
};
const struct opt_cmd *const options_of_bench_stream = &cmd;

struct disk_speed {
    double unused; /* bytes/s into 8 MiB without using the bytes, as fio measures */
    double used; /* bytes/s into 64 MiB with a checksum of every byte, as weights arrive */
};

struct row {
    bool decodes;
    int size; /* sequences that decode, or tokens of the prompt */
    int rows_per_pass;
    const char *budget;
    uint64_t pass_bytes;    /* bytes streamed for a pass */
    struct disk_speed disk; /* mean of before and after; 0: no pass streams */
    double tokens_per_s, of_resident, of_bound;
    /* shares of the row's time with reads in flight, and with the reader computing checksums */
    double disk_share, verify_share;
    double of_reads; /* speed as a share of disk.used */
    uint64_t peak_rss, digest;
};

struct bench {
    struct stream_args *a;
    char temp[4096]; /* path of a temporary packed file; "": the user's own file is used */
    const char *path;
    uint64_t weights_bytes;
    int batches[MAX_SIZES], prefills[MAX_SIZES];
    int32_t *ids;
    uint64_t peak; /* peak memory of this budget so far, in bytes */
    int n_rows;
    struct row rows[MAX_ROWS];
};

/* --- the disk --------------------------------------------------------------------------------- */

enum { DISK_DEPTH = 8, UNUSED_MIB = DISK_DEPTH, USED_MIB = 64 };
#define DISK_NS ((int64_t)1000 * 1000000)

/* Reads the file into n_mib MiB for DISK_NS, beginning again at its end. With `checks` computes a
 * checksum of every byte. */
static int measure_reads(const struct bench *b, size_t n_mib, bool checks,
                         double *bytes_per_s, struct err *err)
{
    static volatile uint64_t sums; /* so that the compiler keeps the checksums */
    struct io *io = io_machine_open(NULL);
    struct io_file *f = NULL;
    struct io_queue *q = NULL;
    struct io_req reqs[DISK_DEPTH], *list[1], *done;
    uint64_t size = 0, at = 0, n_bytes = 0;
    unsigned n;
    uint8_t *mem = mem_map(n_mib << 20);
    int rc = mem == NULL ? err_set(err, -ENOMEM, "no memory") : 0;
    if (mem != NULL) /* the kernel provides the pages now, and not while the clock runs */
        memset(mem, 1, n_mib << 20);
    if (rc == 0)
        rc = io_file_open(io, b->path, IO_READ_ONLY | IO_DIRECT, &f, err);
    if (rc == 0)
        rc = io_file_size(f, &size, err);
    if (rc == 0)
        rc = io_queue_open(io, DISK_DEPTH, &q, err);
    size = size >> 20 << 20;
    int64_t t0 = clock_now_ns(), t = t0;
    for (int i = 0; rc == 0 && i < DISK_DEPTH; i++, at = (at + (1 << 20)) % size) {
        reqs[i] = (struct io_req){.file = f,
                                  .op = IO_READ,
                                  .buf = mem + ((size_t)i << 20),
                                  .length = 1 << 20,
                                  .offset = at};
        list[0] = &reqs[i];
        io_queue_submit(q, list, 1);
    }
    while (rc == 0 && t - t0 < DISK_NS) {
        rc = io_queue_wait(q, 1, 1, -1, &done, &n, err);
        if (rc == 0 && (rc = done->result) != 0)
            io_req_err(done, err);
        if (rc == 0 && checks)
            sums ^= checksum64(done->buf, done->length);
        t = clock_now_ns();
        n_bytes += 1 << 20;
        done->offset = at;
        done->buf = mem +
                    ((size_t)((uint8_t *)done->buf - mem) + ((size_t)DISK_DEPTH << 20)) %
                        (n_mib << 20);
        at = (at + (1 << 20)) % size;
        list[0] = done;
        if (rc == 0)
            io_queue_submit(q, list, 1);
    }
    *bytes_per_s = (double)n_bytes / (double)(t - t0) * 1e9;
    io_queue_close(q);
    io_file_close(f);
    io_close(io);
    mem_unmap(mem, n_mib << 20);
    return rc;
}

static int measure_disk(const struct bench *b, struct disk_speed *s, struct err *err)
{
    int rc = measure_reads(b, UNUSED_MIB, false, &s->unused, err);
    return rc == 0 ? measure_reads(b, USED_MIB, true, &s->used, err) : rc;
}

/* --- one budget ------------------------------------------------------------------------------- */

/* Returns the peak resident memory of this process, in bytes; 0: not known. */
static uint64_t memory_peak(void)
{
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && kib == 0 && fgets(line, sizeof line, f) != NULL)
        (void)sscanf(line, "VmHWM: %lu", &kib);
    if (f != NULL)
        fclose(f);
    return (uint64_t)kib << 10;
}

/* Resets the peak of memory, if the kernel can. */
static void forget_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we");
    if (f != NULL) {
        fputs("5", f);
        fclose(f);
    }
}

static int open_with(struct bench *b, const char *budget, struct stack *k, struct err *err)
{
    const struct stream_args *a = b->a;
    struct stack_opts o = {.user = a->common.engine.o};
    int most = 0, longest = a->prompt + a->tokens + 1;
    for (int i = 0; i < a->batches.n; i++)
        most = b->batches[i] > most ? b->batches[i] : most;
    int64_t kv = (int64_t)round_up((uint64_t)longest, KV_BLOCK_TOKENS) * most;
    for (int i = 0; i < a->prefills.n; i++)
        longest = b->prefills[i] + 1 > longest ? b->prefills[i] + 1 : longest;
    int64_t one = (int64_t)round_up((uint64_t)longest, KV_BLOCK_TOKENS);
    o.user.model = b->path;
    o.user.weights = NULL;
    o.user.weights_memory = budget;
    o.user.max_context = longest;
    o.user.max_sequences = most > 0 ? most : 1;
    o.user.kv_tokens = (uint64_t)(kv > one ? kv : one);
    o.user.no_reuse = true;
    return stack_open(&o, k, err);
}

/* Prefills n_seqs prompts of n tokens and decodes n_decode more tokens of each. The row's time is
 * that of decoding, or that of the prefill if n_decode is 0. */
static int run_row(struct bench *b, struct stack *k, struct row *r, int n_seqs, int n,
                   int n_decode, struct err *err)
{
    struct seq *seqs[MAX_BATCH];
    struct weights_stream_stats s0, s1;
    uint64_t digests[MAX_BATCH];
    int n_active = n_seqs, rc = 0, n_prefilled = 0, n_before = 0, n_after = 0;
    for (int i = 0; rc == 0 && i < n_seqs; i++) {
        const struct hcache_request ask = {.prompt = b->ids + i,
                                           .n_prompt = n,
                                           .max_tokens = n_decode + 1,
                                           .digest = true};
        struct request *q = request_create(&ask, ask.max_tokens);
        rc = engine_add(k->engine, q, &seqs[i], err);
        request_release(q);
        if (rc != 0)
            return rc;
    }
    int64_t t0 = clock_now_ns(), t1;
    weights_stats(&k->model->w, &s0);
    while (rc == 0 && n_active > 0) {
        rc = engine_step(k->engine, &n_active, err);
        if (n_prefilled == n_seqs || n_decode == 0)
            continue;
        n_prefilled = n_before = 0;
        for (int i = 0; i < n_seqs; i++) {
            n_prefilled += seq_outcome(seqs[i])->r.n_tokens > 0;
            n_before += seq_outcome(seqs[i])->r.n_tokens;
        }
        t0 = clock_now_ns();
        weights_stats(&k->model->w, &s0);
    }
    t1 = clock_now_ns();
    weights_stats(&k->model->w, &s1);
    for (int i = 0; rc == 0 && i < n_seqs; i++) {
        const struct outcome *o = seq_outcome(seqs[i]);
        n_after += o->r.n_tokens;
        digests[i] = o->r.logits_digest;
        if (o->finish == FINISH_ERROR)
            rc = err_set(err, o->err.code, "%s", o->err.msg);
    }
    for (int i = 0; i < n_seqs; i++)
        engine_remove(k->engine, seqs[i]);
    double seconds = (double)(t1 - t0) / 1e9;
    uint64_t bytes = s1.read_bytes - s0.read_bytes;
    r->pass_bytes = (uint64_t)s1.n_streamed * s1.layer_bytes;
    r->tokens_per_s = (double)(n_decode > 0 ? n_after - n_before : n_seqs * n) / seconds;
    if (bytes > 0) {
        r->disk_share = (double)(s1.read_ns - s0.read_ns) / 1e9 / seconds;
        r->verify_share = (double)(s1.verify_ns - s0.verify_ns) / 1e9 / seconds;
    }
    r->digest = checksum64(digests, (size_t)n_seqs * sizeof *digests);
    return rc;
}

static const struct row *resident_row(const struct bench *b, const struct row *like)
{
    for (int i = 0; i < b->n_rows; i++)
        if (b->rows[i].decodes == like->decodes && b->rows[i].size == like->size &&
            b->rows[i].pass_bytes == 0)
            return &b->rows[i];
    return NULL;
}

static void judge(const struct bench *b, struct row *r)
{
    const struct row *resident = resident_row(b, r);
    double bound = r->pass_bytes > 0
                       ? r->rows_per_pass * r->disk.unused / (double)r->pass_bytes
                       : r->tokens_per_s;
    if (resident != NULL) {
        r->of_resident = r->tokens_per_s / resident->tokens_per_s;
        if (resident->tokens_per_s < bound)
            bound = resident->tokens_per_s;
    }
    r->of_bound = r->tokens_per_s / bound;
    if (r->pass_bytes > 0)
        r->of_reads = r->tokens_per_s / r->rows_per_pass * (double)r->pass_bytes /
                      r->disk.used;
}

static void print_row(const struct bench *b, const struct row *r)
{
    if (b->a->json)
        return;
    printf("%-7s %5d %9d  %-7s %9.1f MB %10.2f tokens/s", r->decodes ? "decode" : "prefill",
           r->size, r->rows_per_pass, r->budget, (double)r->pass_bytes / 1e6,
           r->tokens_per_s);
    if (r->of_resident > 0)
        printf("  %5.2f of resident", r->of_resident);
    if (r->disk.unused > 0)
        printf("  disk %4.2f GB/s, %4.2f checked", r->disk.unused / 1e9,
               r->disk.used / 1e9);
    printf("  %5.2f of bound", r->of_bound);
    if (r->of_reads > 0)
        printf(" (%4.2f of checked reads)  reading %3.0f %%, checksums %4.1f %%",
               r->of_reads, 100 * r->disk_share, 100 * r->verify_share);
    printf("  peak %7.1f MB  %016llx\n", (double)r->peak_rss / 1e6,
           (unsigned long long)r->digest);
    fflush(stdout);
}

static int add_row(struct bench *b, struct stack *k, const char *budget, bool decodes,
                   int size, struct err *err)
{
    struct row *r = &b->rows[b->n_rows];
    *r = (struct row){.decodes = decodes, .size = size, .budget = budget};
    r->rows_per_pass = decodes ? size : size < k->batch_rows ? size : k->batch_rows;
    struct weights_stream_stats st;
    weights_stats(&k->model->w, &st);
    struct disk_speed before = {0}, after = {0};
    int rc = st.n_streamed > 0 ? measure_disk(b, &before, err) : 0;
    forget_peak(); /* forgets the memory that measuring took */
    if (rc == 0)
        rc = run_row(b, k, r, decodes ? size : 1, decodes ? b->a->prompt : size,
                     decodes ? b->a->tokens : 0, err);
    if (memory_peak() > b->peak)
        b->peak = memory_peak();
    r->peak_rss = b->peak;
    if (rc == 0 && st.n_streamed > 0)
        rc = measure_disk(b, &after, err);
    if (rc != 0)
        return rc;
    r->disk = (struct disk_speed){.unused = (before.unused + after.unused) / 2,
                                  .used = (before.used + after.used) / 2};
    judge(b, r);
    b->n_rows++;
    print_row(b, r);
    return 0;
}

static int run_budget(struct bench *b, const char *budget, struct err *err)
{
    struct stack k;
    forget_peak();
    int rc = open_with(b, budget, &k, err);
    b->peak = memory_peak();
    for (int i = 0; rc == 0 && i < b->a->prefills.n; i++)
        rc = add_row(b, &k, budget, false, b->prefills[i], err);
    for (int i = 0; rc == 0 && i < b->a->batches.n; i++)
        rc = add_row(b, &k, budget, true, b->batches[i], err);
    stack_close(&k);
    return rc;
}

/* --- running it ------------------------------------------------------------------------------- */

/* Returns the number of missed gates: equal digests, decoding at 0.85 of its bound or more, and
 * checksums in at most a tenth of the time. */
static int n_missed(const struct bench *b, int *n_differ)
{
    int missed = 0;
    *n_differ = 0;
    for (int i = 0; i < b->n_rows; i++) {
        const struct row *r = &b->rows[i], *resident = resident_row(b, r);
        *n_differ += resident != NULL && r->digest != resident->digest;
        missed += r->pass_bytes > 0 && r->decodes && r->of_bound < 0.85;
        missed += r->verify_share > 0.1;
    }
    return missed;
}

static void print_json(const struct bench *b, int n_differ, int missed)
{
    struct json *o = json_new_object(), *rows = json_new_array();
    const struct row one = {.decodes = true, .size = 1};
    const struct row *resident = resident_row(b, &one);
    json_put_int(o, "weights_bytes", (int64_t)b->weights_bytes);
    if (resident != NULL)
        json_put_real(o, "resident_tokens_per_s", resident->tokens_per_s);
    else
        json_put_null(o, "resident_tokens_per_s");
    for (int i = 0; i < b->n_rows; i++) {
        const struct row *r = &b->rows[i];
        struct json *j = json_new_object();
        char digest[20];
        snprintf(digest, sizeof digest, "%016llx", (unsigned long long)r->digest);
        json_put_string(j, "phase", r->decodes ? "decode" : "prefill");
        json_put_int(j, "batch", r->decodes ? r->size : 1);
        json_put_int(j, "rows_per_pass", r->rows_per_pass);
        json_put_int(j, "tokens", r->decodes ? b->a->tokens : r->size);
        json_put_string(j, "weights_memory", r->budget);
        json_put_int(j, "streamed_bytes", (int64_t)r->pass_bytes);
        if (r->disk.unused > 0) {
            json_put_real(j, "disk_bytes_per_s", r->disk.unused);
            json_put_real(j, "disk_checked_bytes_per_s", r->disk.used);
            json_put_real(j, "of_checked_reads", r->of_reads);
        } else {
            json_put_null(j, "disk_bytes_per_s");
            json_put_null(j, "disk_checked_bytes_per_s");
            json_put_null(j, "of_checked_reads");
        }
        json_put_real(j, "tokens_per_s", r->tokens_per_s);
        if (r->of_resident > 0)
            json_put_real(j, "of_resident", r->of_resident);
        else
            json_put_null(j, "of_resident");
        json_put_real(j, "of_bound", r->of_bound);
        json_put_real(j, "disk_share", r->disk_share);
        json_put_real(j, "verify_share", r->verify_share);
        json_put_int(j, "peak_rss", (int64_t)r->peak_rss);
        json_put_string(j, "logits_digest", digest);
        json_push(rows, j);
    }
    json_put(o, "rows", rows);
    json_put_bool(o, "digests_equal", n_differ == 0);
    json_put_int(o, "missed", missed);
    char *text = json_text(o, 0);
    puts(text);
    free(text);
    json_free(o);
}

/* Packs a model that is not packed, into the folder in which benchmarks keep their state. */
static int prepare_model(struct bench *b, struct err *err)
{
    const struct hcache_opts *o = &b->a->common.engine.o;
    struct pack_result r;
    struct pool *pool = NULL;
    struct device *dev = NULL;
    const char *base = getenv("TMPDIR");
    const struct device_opts d = stack_device_opts(o);
    if (pack_file_is(o->model)) {
        b->path = o->model;
        return 0;
    }
    snprintf(b->temp, sizeof b->temp, "%s/hcache-bench-stream-%d.packed",
             base != NULL ? base : "/var/tmp", (int)getpid());
    b->path = b->temp;
    int rc = pool_create(o->threads > 0 ? o->threads : 1, &pool, err);
    if (rc == 0)
        rc = group_open(o->device, &d, o->tensor_parallel > 0 ? o->tensor_parallel : 1, 1,
                        pool, &dev, err);
    if (rc == 0)
        rc = pack_write(o->model, b->path, dev, o->weights, &r, err);
    if (rc == 0)
        free(r.errors.of);
    device_close(dev);
    pool_destroy(pool);
    return rc;
}

static int prepare(struct bench *b, struct err *err)
{
    const struct stream_args *a = b->a;
    int longest = a->prompt + MAX_BATCH, rc = 0;
    for (int i = 0; rc == 0 && i < a->batches.n; i++)
        rc = bench_number("batches", a->batches.items[i], 1, MAX_BATCH, &b->batches[i],
                          err);
    for (int i = 0; rc == 0 && i < a->prefills.n; i++) {
        rc = bench_number("prefill", a->prefills.items[i], 1, BENCH_MAX_TOKENS,
                          &b->prefills[i], err);
        longest = b->prefills[i] > longest ? b->prefills[i] : longest;
    }
    if (rc == 0)
        rc = prepare_model(b, err);
    struct pack_file f = {0};
    if (rc == 0)
        rc = pack_file_open(&f, b->path, err);
    for (size_t i = 0; rc == 0 && i < f.n_parts; i++)
        b->weights_bytes += f.parts[i].bytes;
    pack_file_close(&f);
    b->ids = xcalloc((size_t)longest, sizeof *b->ids);
    for (int i = 0; i < longest; i++)
        b->ids[i] = (i * 7919 + 13) % 480;
    return rc;
}

static int run(struct stream_args *a, struct err *err)
{
    static struct bench b;
    b = (struct bench){.a = a};
    int rc = prepare(&b, err), n_differ, missed;
    if (rc == 0 && !a->json)
        printf("weights %.1f MB; disk: O_DIRECT reads of 1 MiB, %d in flight, before and "
               "after a "
               "row\nphase    size rows/pass  budget    streamed\n",
               (double)b.weights_bytes / 1e6, DISK_DEPTH);
    for (int i = 0; rc == 0 && i < a->budgets.n; i++)
        rc = run_budget(&b, a->budgets.items[i], err);
    if (b.temp[0] != 0)
        unlink(b.temp);
    free(b.ids);
    if (rc != 0)
        return rc;
    missed = n_missed(&b, &n_differ);
    if (a->json)
        print_json(&b, n_differ, missed);
    if (n_differ > 0)
        return err_set(err, ERR_MISMATCH,
                       "in %d rows the logits differ from those with resident weights",
                       n_differ);
    return a->check && missed > 0 ? err_set(err, ERR_LIMIT, "%d gates are missed", missed)
                                  : 0;
}

int bench_stream(int argc, char **argv)
{
    struct stream_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = engine_args_finish(&a.common.engine, &err);
    if (rc == 0)
        rc = run(&a, &err);
    code = bench_end(cmd.name, rc, &err);
    opt_end(parsed);
    return code;
}
