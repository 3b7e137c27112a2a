/* bench_restore.c - `hcache bench restore`: the time of restoring a context, by every method.
 *
 * For each history length and method it prints the predicted and the measured time (the median of
 * rounds in which the methods take turns), the bytes read, and the time as a share of a measured
 * limit:
 *
 *   read    reading the same records through the same path in the same round, with nothing else
 *           running (for DRAM: copying them once with all threads, because reads give pointers)
 *   gemm    the plan's projections and recomputed layers at the rates of the profile
 *
 * The limit of a restore is the longer of the two; 1.00 means that everything else is hidden. On a
 * device with memory of its own there is also a floor: the longer of the plan's bytes at the rate
 * of pinned copies and its products at the rate of a large product (device_rig.h). The floor's
 * share of the time is printed. The bubble is the measured idle share of the busier lane
 * (docs/RESTORATION.md).
 *
 * --as throttles the store so that this machine has another machine's ratio of compute to I/O.
 * --sweep runs random cases instead (restore_sweep.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opt/opt.h"
#include "apps/option_tables.h"
#include "bench/bench.h"
#include "bench/restore_lab.h"
#include "bench/restore_sweep.h"

struct restore_args {
    struct bench_common common; /* must be the first member */
    const char *csv, *as;
    struct opt_list lengths, methods, loads;
    int rounds, sweep, skip;
    bool damage;
    /* throttle: bytes/s to which lab_throttle slows reads once the platform is known; 0: none */
    uint64_t throttle, seed;
};

static const struct opt options[] = {
    BENCH_OPT_STORE,
    {"lengths", OPT(struct restore_args, lengths), .arg = "N[,N...]",
     .def = "512,1024,2048,4096",
     .help =
         "history lengths in tokens (rounded down to chunks); with --sweep the last is the "
         "longest that is drawn"},
    {"methods", OPT(struct restore_args, methods), .arg = "M[,M...]",
     .def = "kv,hidden,paper,kv+recompute,auto,recompute",
     .help = "methods to run: any mode of hcache plan"},
    {"rounds", OPT(struct restore_args, rounds), .arg = "N", .def = "5", .min = 1,
     .max = 1000,
     .help = "rounds, in which the methods take turns; recompute runs in the first only"},
    BENCH_OPT_DEVICE,
    BENCH_OPT_DTYPE,
    OPT_WEIGHTS(struct bench_common),
    BENCH_OPT_THREADS,
    BENCH_OPT_PARALLEL,
    BENCH_OPT_BATCH,
    {"throttle", OPT(struct restore_args, throttle), .arg = "BYTES_PER_S", .def = "0",
     .help = "limit the speed of the store's reads"},
    OPT_GPU_DIRECT(struct bench_common),
    OPT_PACK(struct bench_common),
    {"as", OPT(struct restore_args, as), .arg = "NAME[:SHAPE]",
     .help = "throttle the store so that projecting and reading a hidden state have the "
             "ratio of this platform of hcache plan, with this model (llama-2-7b)"},
    {"staging", OPT(struct bench_common, engine.o.staging_bytes), .arg = "BYTES",
     .def = "64M", .help = "staging memory of a restore"},
    {"sweep", OPT(struct restore_args, sweep), .arg = "N", .def = "0", .min = 0,
     .max = 1000,
     .help = "run N random cases (length, throttle, file or DRAM): auto against the best "
             "single "
             "method"},
    {"skip", OPT(struct restore_args, skip), .arg = "N", .def = "0", .min = 0,
     .max = 1000000, .help = "--sweep: begin with this case, to run a sweep in pieces"},
    {"seed", OPT(struct restore_args, seed), .arg = "N", .def = "1",
     .help = "seed of --sweep"},
    {"load", OPT(struct restore_args, loads), .arg = "NAME[,NAME...]", .def = "none",
     .help = "--sweep: other work beside each case, drawn from these: none, busy (a thread "
             "that "
             "computes), busy2 (two), reader (of the same disk)"},
    {"damage", OPT(struct restore_args, damage),
     .help = "--sweep: in one case of four, chunks lack one kind of record in some layers"},
    {"csv", OPT(struct restore_args, csv), .arg = "FILE",
     .help = "write the table as CSV too"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench restore",
    .summary = "Measures restores of one context by every method, beside the prediction "
               "and the machine's limits.",
    .positionals = bench_positionals,
    .options = options,
    .examples =
        "  hcache bench restore\n"
        "  hcache bench restore --store memory --lengths 4096\n"
        "  hcache bench restore --as a100-1ssd:llama-2-13b --lengths 1024\n"
        "  hcache bench restore --sweep 200 --seed 1 --lengths 1024 --rounds 3\n"
        "  hcache bench restore models/demo --store /var/tmp/s --sweep 100 --lengths 1024 "
        "--load none,busy,busy2,reader --damage --csv sweep.csv\n",
    .values_bytes = sizeof(struct restore_args),
};
const struct opt_cmd *const options_of_bench_restore = &cmd;

enum { MAX_METHODS = 12, MAX_ROUNDS = 1000, MAX_LENGTHS = 64 };

struct bench {
    const struct restore_args *a;
    struct lab *lab;
    FILE *csv;
};

/* --- a table ---------------------------------------------------------------------------------- */

struct row {
    char method[32];
    struct plan plan;
    uint64_t bytes, direct_bytes;
    int n;
    double total_ms[MAX_ROUNDS], read_ms[MAX_ROUNDS], wait_ms[MAX_ROUNDS],
        bubble[MAX_ROUNDS];
    double median_ms;
};

static int measure(struct bench *b, int n_chunks, struct row *row, struct err *err)
{
    struct restore_result r;
    int64_t read_ns = 0;
    int rc = 0;
    if (row->plan.n_io > 0)
        rc = lab_read(b->lab, n_chunks, &row->plan, &read_ns, err);
    if (rc == 0)
        rc = lab_restore(b->lab, n_chunks, &row->plan, &r, err);
    if (rc != 0)
        return rc;
    row->bytes = r.read_bytes;
    row->direct_bytes = r.direct_bytes;
    row->total_ms[row->n] = (double)r.total_ns * 1e-6;
    row->read_ms[row->n] = (double)read_ns * 1e-6;
    row->wait_ms[row->n] = (double)r.wait_ns * 1e-6;
    row->bubble[row->n] = r.bubble;
    row->n++;
    return 0;
}

static void print_row(struct bench *b, int n_tokens, struct row *r)
{
    double total = r->median_ms = bench_median(r->total_ms, r->n);
    double floor_ms = 1e3 * lab_floor_s(b->lab, n_tokens / STORE_CHUNK_TOKENS, &r->plan);
    double read = bench_median(r->read_ms, r->n), compute = r->plan.comp_busy_s * 1e3;
    double ceiling = read > compute ? read : compute;
    printf("%7d  %-13s %-26.26s %10.1f %10.1f %6.2f %9.1f %8.2f %10.1f %10.1f %7.2f %7.3f",
           n_tokens, r->method, r->plan.method, r->plan.restore_s * 1e3, total,
           r->plan.restore_s * 1e3 / total, (double)r->bytes * 1e-6,
           (double)r->bytes * 1e-6 / total, read, compute, ceiling / total,
           bench_median(r->bubble, r->n));
    if (floor_ms > 0)
        printf(" %9.1f %6.2f", floor_ms, floor_ms / total);
    if (r->direct_bytes > 0)
        printf("  direct"); /* read from the disk straight into device memory */
    printf("\n");
    fflush(stdout);
    if (b->csv == NULL)
        return;
    fprintf(b->csv,
            "%d,%s,%s,%d,%.3f,%.3f,%.3f,%.3f,%llu,%.3f,%.3f,%.3f,%.4f,%.1f,%.0f,%.4f,%."
            "6g,%.6g,%llu\n",
            n_tokens, r->method, r->plan.method, r->n, r->plan.restore_s * 1e3, total,
            r->total_ms[0], r->total_ms[r->n - 1], (unsigned long long)r->bytes, read,
            compute, bench_median(r->wait_ms, r->n), ceiling / total,
            b->lab->throttle_bytes_per_s * 1e-6, r->plan.stored_bytes_per_token,
            bench_median(r->bubble, r->n), floor_ms, floor_ms / total,
            (unsigned long long)r->direct_bytes);
    fflush(b->csv); /* an interrupted run keeps its rows */
}

/* Prints how much faster auto is than each other method, and how much less it stores than KV. */
static void print_ratios(const struct row *rows, int n, const struct platform *p)
{
    const struct row *best = NULL;
    for (int i = 0; i < n; i++)
        if (strcmp(rows[i].method, "auto") == 0)
            best = &rows[i];
    if (best == NULL || n < 2)
        return;
    printf("%9s auto:", "");
    for (int i = 0; i < n; i++)
        if (&rows[i] != best)
            printf(" %.2fx %s,", rows[i].median_ms / best->median_ms, rows[i].method);
    if (best->plan.stored_bytes_per_token > 0)
        printf(" %.2fx less stored than kv\n",
               p->n_layers * p->kv_bytes / best->plan.stored_bytes_per_token);
    else
        printf(" nothing stored\n");
}

static int run_length(struct bench *b, int n_chunks, struct err *err)
{
    static struct row rows[MAX_METHODS];
    struct plan_request req;
    int n = b->a->methods.n, rc = 0;
    for (int i = 0; i < n; i++) {
        memset(&rows[i], 0, sizeof rows[i]);
        snprintf(rows[i].method, sizeof rows[i].method, "%s", b->a->methods.items[i]);
        rc = lab_plan(b->lab, rows[i].method, n_chunks, &req, &rows[i].plan, err);
        if (rc != 0)
            return err_wrap(err, "%s", rows[i].method);
    }
    for (int round = 0; rc == 0 && round < b->a->rounds; round++) {
        for (int i = 0; rc == 0 && i < n; i++) {
            /* recomputing reads nothing: one round is enough */
            bool slow = rows[i].plan.n_io == 0;
            if (!slow || round == 0)
                rc = measure(b, n_chunks, &rows[i], err);
        }
    }
    for (int i = 0; rc == 0 && i < n; i++)
        print_row(b, n_chunks * STORE_CHUNK_TOKENS, &rows[i]);
    if (rc == 0)
        print_ratios(rows, n, &b->lab->platform);
    return rc;
}

static void print_head(struct bench *b)
{
    const struct platform *p = &b->lab->platform;
    /* a store in memory has no read rate, because nothing is copied */
    char store[32] = "in memory, read in place";
    if (!b->lab->k.o.user.store_in_memory)
        snprintf(store, sizeof store, "%.2f GB/s", p->tier[0].bytes_per_s * 1e-9);
    printf(
        "profile per layer and 1000 tokens: recompute %.2f ms (+ %.3f per 1000^2), project "
        "%.2f ms, load %.3f ms; store %s; together reading x%.2f, compute x%.2f; "
        "this process had %.0f %% of the processors; restores made products x%.2f\n\n",
        p->c_tok.b_s * 1e6, p->c_tok.c_s * 1e9, p->c_h.b_s * 1e6, p->c_kv.b_s * 1e6, store,
        p->io_overlap, p->comp_overlap, p->cpu_share * 100,
        platform_correction_factor(&p->gemm_correction));
    printf("%7s  %-13s %-26s %10s %10s %6s %9s %8s %10s %10s %7s %7s%s\n", "tokens",
           "method", "plan", "predicted", "measured", "ratio", "MB", "GB/s", "read only",
           "compute", "share", "bubble", b->lab->k.dev->unified ? "" : "     floor  share");
    if (b->csv != NULL)
        fprintf(b->csv,
                "tokens,method,plan,rounds,predicted_ms,median_ms,min_ms,max_ms,bytes,"
                "read_only_ms,compute_ms,wait_ms,share_of_ceiling,throttle_MBps,"
                "stored_bytes_per_token,bubble,floor_ms,share_of_floor,direct_bytes\n");
}

static int set_speed(struct bench *b, struct err *err)
{
    const struct restore_args *a = b->a;
    double ratio, bytes_per_s = (double)a->throttle;
    if (b->lab->k.io == NULL && (a->as != NULL || a->throttle > 0))
        return err_set(err, ERR_USAGE,
                       "a store in memory cannot be throttled: give a --store in a folder");
    if (a->as != NULL) {
        int rc = lab_settle_as(b->lab, a->as, &bytes_per_s, &ratio, err);
        if (rc != 0)
            return rc;
        printf("as %s: projecting a hidden state takes %.2f times as long as reading it\n",
               a->as, ratio);
    }
    if (bytes_per_s > 0)
        printf("storage throttled to %.1f MB/s\n", bytes_per_s * 1e-6);
    if (bytes_per_s > b->lab->tier.bytes_per_s)
        return err_set(err, ERR_UNSUPPORTED,
                       "this store reads %.1f MB/s: too slow to be throttled to %.1f MB/s",
                       b->lab->tier.bytes_per_s * 1e-6, bytes_per_s * 1e-6);
    if (bytes_per_s > 0)
        lab_throttle(b->lab, bytes_per_s);
    return 0;
}

static int run_table(struct bench *b, const int *chunks, struct err *err)
{
    int rc = set_speed(b, err);
    if (rc != 0)
        return rc;
    print_head(b);
    for (int i = 0; rc == 0 && i < b->a->lengths.n; i++)
        rc = run_length(b, chunks[i], err);
    return rc;
}

/* --- running it ------------------------------------------------------------------------------- */

static int parse_lengths(const struct restore_args *a, int *chunks, int *longest,
                         struct err *err)
{
    if (a->lengths.n > MAX_LENGTHS || a->methods.n > MAX_METHODS)
        return err_set(err, ERR_USAGE, "at most %d --lengths and %d --methods", MAX_LENGTHS,
                       MAX_METHODS);
    *longest = 0;
    for (int i = 0; i < a->lengths.n; i++) {
        int tokens, rc = bench_number("lengths", a->lengths.items[i], STORE_CHUNK_TOKENS,
                                      BENCH_MAX_TOKENS, &tokens, err);
        if (rc != 0)
            return rc;
        chunks[i] = tokens / STORE_CHUNK_TOKENS;
        *longest = chunks[i] > *longest ? chunks[i] : *longest;
    }
    return 0;
}

static void describe(const struct restore_args *a, const struct lab *lab)
{
    char line[400];
    stack_describe(&lab->k, line, sizeof line);
    printf("%s, %s\n%s\n", a->common.engine.o.model, lab->platform.machine, line);
}

static int run_sweep(struct bench *b, const struct lab_opts *o, struct err *err)
{
    const struct restore_args *a = b->a;
    struct sweep_opts so = {.n_cases = a->sweep,
                            .damages = a->damage,
                            .io = b->lab->k.io,
                            .folder = o->engine.n_store > 0 ? o->engine.store[0] : NULL,
                            .skip = a->skip,
                            .seed = a->seed,
                            .rounds = a->rounds,
                            .csv = b->csv};
    struct lab_opts memory = *o;
    struct lab dram;
    int n_broken = 0;
    memory.engine.store = NULL;
    memory.engine.n_store = 0;
    memory.engine.store_in_memory = true;
    if (o->engine.n_store == 0)
        return err_set(err, ERR_USAGE,
                       "--sweep needs a --store in a folder: it adds DRAM itself");
    for (int i = 0; i < a->loads.n; i++) {
        enum background load;
        int rc = background_parse(a->loads.items[i], &load, err);
        if (rc != 0)
            return rc;
        so.loads |= 1u << load;
    }
    int rc = lab_open(&dram, &memory, err);
    if (rc == 0)
        rc = sweep_run(&so, b->lab, &dram, &n_broken, err);
    lab_close(&dram);
    if (rc == 0 && n_broken > 0)
        rc = err_set(err, ERR_MISMATCH, "%d cases were slower than the best single method",
                     n_broken);
    return rc;
}

static int run(const struct restore_args *a, struct err *err)
{
    struct lab lab;
    struct bench b = {.a = a, .lab = &lab};
    struct lab_opts o = {.engine = a->common.engine.o};
    int chunks[MAX_LENGTHS];
    int rc = parse_lengths(a, chunks, &o.max_chunks, err);
    if (rc != 0)
        return rc;
    if (a->csv != NULL && (b.csv = fopen(a->csv, "w")) == NULL)
        return err_set(err, -errno, "%s: %s", a->csv, strerror(errno));
    rc = lab_open(&lab, &o, err);
    if (rc == 0)
        describe(a, &lab);
    if (rc == 0)
        rc = a->sweep > 0 ? run_sweep(&b, &o, err) : run_table(&b, chunks, err);
    lab_close(&lab);
    if (b.csv != NULL && fclose(b.csv) != 0 && rc == 0)
        rc = err_set(err, -errno, "%s: %s", a->csv, strerror(errno));
    return rc;
}

int bench_restore(int argc, char **argv)
{
    struct restore_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct bench_place place;
    int rc = bench_place_open(&place, &a.common.engine, &err);
    if (rc == 0)
        rc = run(&a, &err);
    bench_place_close(&place);
    opt_end(parsed);
    return bench_end("restore", rc, &err);
}
