/* test_profile_fit.c - the costs in a profile, on a clock that only the test moves: each operation
 * and each byte that is read takes a time of its own, so a profile must find exactly these times.
 *
 * The linker redirects the program's calls of the clock here (PROFILE_CLOCK in the Makefile). */
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "restore/profile.h"
#include "save/saver.h"
#include "sim/profile_overlap.h"
#include "sim/profile_scratch.h"
#include "tests/engine/enginetest.h"

/* --- the clock -------------------------------------------------------------------------------- */

static struct {
    atomic_bool runs; /* otherwise the clock is the machine's */
    atomic_llong now_ns;
    /* Every second measured run begins with a pause of this long, and gets half of the processor
     * time. The others get `share`. */
    int64_t pause_ns;
    double share, layer_share; /* layer_share: of runs with attention */
    bool in_layer;
    bool is_paused; /* the present run has a pause */
    bool pauses;    /* the pause is still to come */
} fake;

int64_t __real_clock_now_ns(void);
int64_t __wrap_clock_now_ns(void);
int64_t __wrap_clock_now_ns(void)
{
    return atomic_load(&fake.runs) ? atomic_load(&fake.now_ns) : __real_clock_now_ns();
}

void __real_clock_sleep_ns(int64_t ns);
void __wrap_clock_sleep_ns(int64_t ns);
void __wrap_clock_sleep_ns(int64_t ns)
{
    if (!atomic_load(&fake.runs))
        __real_clock_sleep_ns(ns);
    else if (ns > 0)
        atomic_fetch_add(&fake.now_ns, ns);
}

/* Is called between two runs: ends one and begins the next. */
struct clock_cpu __wrap_clock_cpu_now(void);
struct clock_cpu __wrap_clock_cpu_now(void)
{
    static struct clock_cpu cpu;
    double share = fake.is_paused ? 0.5 : fake.in_layer ? fake.layer_share : fake.share;
    cpu.ran_ns += (int64_t)(1000000 * share);
    cpu.waited_ns += 1000000 - (int64_t)(1000000 * share);
    fake.is_paused = fake.pauses = fake.pause_ns > 0 && !fake.is_paused;
    fake.in_layer = false;
    return cpu;
}

static void takes(int64_t ns)
{
    if (fake.pauses)
        ns += fake.pause_ns;
    fake.pauses = false;
    atomic_fetch_add(&fake.now_ns, ns);
}

/* --- operations ------------------------------------------------------------------------------- */

enum { ROW_NS = 100, CALL_NS = 5000, KEY_NS = 3, EMBED_NS = 7000, CHUNK_NS = 2000000 };

static int n_products, n_embeds, n_heads, n_loads;
/* the operation that fails from its n-th call on; 0: none does */
static struct {
    enum { MATMUL = 1, ATTENTION, EMBED, LOAD } op;
    int n_good;
} failing;

static int result_of(int op)
{
    return op == (int)failing.op && failing.n_good-- <= 0 ? -EIO : 0;
}

static int64_t head_cols;

static int matmul(struct stream *s, struct mat c, struct mat a, const struct weight *w,
                  const float *bias)
{
    (void)s, (void)w, (void)bias;
    n_products++;
    n_heads += c.cols == head_cols;
    takes(a.rows * ROW_NS + CALL_NS);
    return result_of(MATMUL);
}

/* The (2 p + 1) of a row add up to the third term of a layer's sample. */
static int attention(struct stream *s, struct mat out, struct mat q,
                     const struct kv_layer *kv, const struct ragged *r,
                     const struct attention_rule *rule)
{
    (void)s, (void)rule;
    int64_t n = 0;
    fake.in_layer = true;
    /* one sequence of consecutive positions, in blocks of its own */
    assert_true(out.rows == r->n_rows && q.rows == r->n_rows);
    assert_true(r->n_seqs == 1 && r->seq_row[0] == 0 && r->seq_row[1] == r->n_rows);
    assert_int_equal(kv->block_stride, kv_block_bytes(kv->n_kv, kv->d_head, kv->dtype));
    for (int i = 0; i < r->n_rows; i++) {
        assert_int_equal(r->pos[i], r->pos[0] + i);
        assert_int_equal(r->tables[0][r->pos[i] / 64], r->pos[i] / 64);
    }
    for (int i = 0; i < r->n_rows; i++)
        n += 2 * r->pos[i] + 1;
    takes(n * KEY_NS);
    return result_of(ATTENTION);
}

/* The tokens name rows all over the table, as those of a prompt do, and not one row that a cache
 * holds. */
static int embed(struct stream *s, struct mat out, struct mat table, const int32_t *ids,
                 float scale)
{
    (void)s, (void)table, (void)scale;
    for (int64_t i = 1; i < out.rows; i++)
        assert_int_not_equal(ids[i], ids[i - 1]);
    n_embeds++;
    takes(out.rows * EMBED_NS);
    return result_of(EMBED);
}

static int kv_load(struct stream *s, const struct kv_layer *kv,
                   const struct kv_chunks *chunks, const struct rope *rope)
{
    (void)s, (void)rope;
    static const uint8_t *last;
    static int32_t last_block;
    assert_int_equal(chunks->n, 1);
    assert_int_equal(chunks->pos0, 0);
    /* the records lie one behind the other, in blocks of their own */
    int block = chunks->blocks[0];
    const uint8_t *at = chunks->first;
    if (block > 0) {
        assert_int_equal(block, last_block + 1);
        assert_ptr_equal(at, last + kv->block_stride);
    }
    last = at;
    last_block = block;
    n_loads++;
    takes(CHUNK_NS);
    return result_of(LOAD);
}

static struct stack k;
static struct ops ops;
static const struct ops *real_ops;
static struct model_work *work;
static struct stream *stream;

static void open_with(int max_context, int max_rows)
{
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.max_context = max_context,
                                     .user.no_reuse = true});
    assert_int_equal(stream_create(k.dev, STREAM_COMPUTE, &stream, NULL), 0);
    assert_int_equal(model_work_create(k.model, max_rows, &work, NULL), 0);
    real_ops = k.dev->ops;
    ops = *real_ops;
    ops.matmul = matmul;
    ops.matmul_many = NULL;
    ops.attention = attention;
    ops.embed = embed;
    ops.kv_load = kv_load;
    k.dev->ops = &ops;
    head_cols = k.model->cfg.vocab_size;
    n_products = n_embeds = n_heads = n_loads = 0;
    fake.is_paused = false;
    fake.share = fake.layer_share = 0.95;
    fake.pause_ns = 0;
    atomic_store(&fake.now_ns, 1000000000);
    atomic_store(&fake.runs, true);
}

static void close_all(void)
{
    atomic_store(&fake.runs, false);
    k.dev->ops = real_ops;
    model_work_destroy(work);
    stream_destroy(stream);
    stack_close(&k);
}

static struct platform compute(enum profile_effort effort)
{
    struct sha256 f = {{1}};
    struct platform p;
    struct err err = {0};
    profile_begin(&p, k.model, &f);
    if (profile_compute(&p, k.model, work, stream, effort, &err) != 0)
        fail_msg("%s", err.msg);
    return p;
}

static void assert_near(double x, double want)
{
    if (!(fabs(x - want) <= 1e-6 * fabs(want) + 1e-15))
        fail_msg("%.12g instead of %.12g", x, want);
}

/* Products of a layer (q, K, V, output, gate and up, down), and of a projection to K and V. */
enum { LAYER_PRODUCTS = 5, PROJECTION_PRODUCTS = 1 };

/* --- compute ---------------------------------------------------------------------------------- */

/* A profile finds the time of a row, of a call and of a key, whatever the model's context and the
 * batch are. A pause in every second run changes nothing, since the fastest run counts. */
TEST(curves_have_the_times_of_the_operations)
{
    static const struct {
        int context, rows;
        enum profile_effort effort;
    } cases[] = {
        {4096, 512, PROFILE_QUICK}, {4096, 512, PROFILE_FULL}, {4096, 1024, PROFILE_QUICK},
        {4096, 128, PROFILE_QUICK}, {4096, 128, PROFILE_FULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool full = cases[i].effort == PROFILE_FULL;
        open_with(cases[i].context, cases[i].rows);
        fake.pause_ns = 3000000;
        struct platform p = compute(cases[i].effort);
        int rows = cases[i].rows, group = rows < 512 ? rows : 512;
        assert_near(p.c_tok.b_s, LAYER_PRODUCTS * ROW_NS * 1e-9);
        assert_near(p.c_tok.a_s, LAYER_PRODUCTS * CALL_NS * 1e-9);
        assert_near(p.c_tok.c_s, KEY_NS * 1e-9);
        assert_near(p.c_h.b_s, PROJECTION_PRODUCTS * ROW_NS * 1e-9);
        assert_near(p.c_h.a_s, PROJECTION_PRODUCTS * CALL_NS * 1e-9);
        assert_true(p.c_h.c_s == 0 && p.c_kv.c_s == 0);
        assert_near(p.c_kv.b_s, CHUNK_NS * 1e-9 / 64);
        assert_near(p.c_kv.a_s, 0);
        if (full) { /* more samples than terms */
            assert_near(p.c_tok_r2, 1);
            assert_near(p.c_h_r2, rows > 128 ? 1 : 0);
            assert_near(p.c_kv_r2, 1);
        }
        assert_int_equal(p.piece_tokens, rows);
        assert_int_equal(p.h_piece_tokens, group);
        assert_near(p.embed_s, EMBED_NS * 1e-9);
        assert_near(p.head_s, (ROW_NS + CALL_NS) * 1e-9);
        assert_near(p.cpu_share, 0.95);
        close_all();
    }
}

/* A context that is shorter than a batch has one sample of a layer, or none far from its
 * beginning. */
TEST(short_contexts_have_few_samples)
{
    for (int context = 40; context <= 100; context += 60) {
        open_with(context, 512);
        struct platform p = compute(PROFILE_QUICK);
        assert_int_equal(p.piece_tokens, context);
        assert_int_equal(p.h_piece_tokens, context);
        assert_near(p.embed_s, EMBED_NS * 1e-9);
        double layer_s = LAYER_PRODUCTS * (context * ROW_NS + CALL_NS) * 1e-9 +
                         (double)context * context * KEY_NS * 1e-9;
        double h_s = PROJECTION_PRODUCTS * (context * ROW_NS + CALL_NS) * 1e-9;
        if (context == 40) { /* a single sample: all of it is a row's time */
            assert_near(p.c_tok.b_s, layer_s / context);
            assert_near(p.c_h.b_s, h_s / context);
        } else { /* two samples of a layer, and one of a projection: 64 rows */
            double few_s = LAYER_PRODUCTS * (64 * ROW_NS + CALL_NS) * 1e-9 +
                           64.0 * 64 * KEY_NS * 1e-9;
            double x = context / layer_s, y = 64 / few_s; /* the fit of relative errors */
            assert_near(p.c_tok.b_s, (x + y) / (x * x + y * y));
            assert_near(p.c_h.b_s,
                        PROJECTION_PRODUCTS * (64 * ROW_NS + CALL_NS) * 1e-9 / 64);
        }
        assert_true(p.c_tok.a_s == 0 && p.c_tok.c_s == 0 && p.c_h.a_s == 0);
        close_all();
    }
}

/* A sample is repeated for 12 ms, or for 50 ms in a full profile: at least twice, and at most 50
 * times. While other work takes the processors away, it is repeated for five times as long. */
TEST(samples_take_their_time)
{
    static const struct {
        double share;
        enum profile_effort effort;
        int n_embeds; /* runs of 512 rows: 3.584 ms each */
    } cases[] = {{0.95, PROFILE_QUICK, 4}, {0.95, PROFILE_FULL, 14},
                 {0.5, PROFILE_QUICK, 17}, {0.5, PROFILE_FULL, 50},
                 {0.85, PROFILE_QUICK, 4}, {0.84, PROFILE_QUICK, 17}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        open_with(4096, 512);
        fake.share = fake.layer_share = cases[i].share;
        struct platform p = compute(cases[i].effort);
        assert_near(p.cpu_share, cases[i].share);
        assert_int_equal(profile_is_disturbed(&p), cases[i].share < 0.75);
        assert_int_equal(n_embeds, cases[i].n_embeds);
        assert_int_equal(n_heads, 50); /* 5.1 us each */
        close_all();
    }
}

/* The profile has the least share that a layer or a projection had. */
TEST(the_least_share_of_the_processors_counts)
{
    static const double shares[][2] = {{0.6, 0.9}, {0.9, 0.6}};
    for (int i = 0; i < 2; i++) {
        open_with(4096, 512);
        fake.layer_share = shares[i][0];
        fake.share = shares[i][1];
        assert_near(compute(PROFILE_FULL).cpu_share, 0.6);
        close_all();
    }
}

/* An operation that fails ends the measurement with its code. */
TEST(a_failure_ends_the_measurement)
{
    static const int n_good[] = {0, 1, 30};
    for (int op = MATMUL; op <= LOAD; op++) {
        for (int i = 0; i < 3; i++) {
            struct sha256 f = {{1}};
            struct platform p;
            struct err err = {0};
            if (op == EMBED && i == 2)
                continue; /* it is called less often */
            open_with(4096, 512);
            failing.op = op;
            failing.n_good = n_good[i];
            profile_begin(&p, k.model, &f);
            assert_int_equal(profile_compute(&p, k.model, work, stream, PROFILE_FULL, &err),
                             -EIO);
            assert_ptr_equal(strstr(err.msg, "profile: "), err.msg);
            assert_int_equal(n_embeds, op == EMBED ? n_good[i] + 1 : 0);
            failing.op = 0;
            close_all();
        }
    }
}

/* --- loading ---------------------------------------------------------------------------------- */

/* 256 records of 32 KiB are loaded: more than the caches hold. */
TEST(loading_takes_many_records)
{
    open_with(4096, 512);
    (void)compute(PROFILE_QUICK);
    assert_int_equal(n_loads, 2 * 256); /* each run takes longer than a sample */
    n_loads = 0;
    (void)compute(PROFILE_FULL);
    assert_int_equal(n_loads, 2 * (32 + 64 + 128 + 256));
    close_all();
}

/* --- memory ----------------------------------------------------------------------------------- */

TEST(the_memory_of_a_profile_is_counted)
{
    static const struct {
        int max_rows, n_blocks;
    } cases[] = {{512, 40}, {100, 34}, {64, 33}, {65, 34}, {4000, 64}};
    open_with(4096, 512);
    size_t block = 2 * 64 * 64 * 4, row = 64 * 4;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t rows = (size_t)cases[i].max_rows;
        size_t want = (size_t)cases[i].n_blocks * block + rows * row + rows * 2 * row +
                      512 * sizeof(float) + row + 256 * (64 * 2 * row + block + 8) +
                      PROFILE_COPY_BYTES;
        assert_int_equal(profile_device_bytes(k.model, cases[i].max_rows), want);
    }
    assert_int_equal(profile_rows(k.model, work), 512);
    close_all();
    open_with(300, 512);
    assert_int_equal(profile_rows(k.model, work), 300);
    close_all();
}

/* --- the store -------------------------------------------------------------------------------- */

static struct io *disk;
static struct profile_scratch *scratch;

static struct profile_source open_scratch(uint64_t bytes_per_s)
{
    struct err err = {0};
    disk = et_disk(1, 0);
    if (profile_scratch_open(k.model, disk, et_dirs, 1, &scratch, &err) != 0)
        fail_msg("%s", err.msg);
    io_throttle(disk, bytes_per_s, 0);
    return profile_scratch_source(scratch);
}

static void close_scratch(void)
{
    profile_scratch_close(scratch);
    io_close(disk);
}

static uint64_t st_read_bytes(struct store *s)
{
    struct store_stats stats;
    store_stats(s, &stats);
    return stats.read_bytes;
}

static struct platform_tier tier_of(const struct profile_source *from,
                                    enum profile_effort effort)
{
    struct platform_tier t = {.name = "mine", .up_bytes_per_s = 5, .gather_bytes_per_s = 6};
    struct err err = {0};
    if (profile_tier(&t, k.model, from, effort, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

/* On a disk that takes time for bytes alone, a tier has the disk's speed. */
TEST(a_tier_has_the_speed_of_its_disk)
{
    open_with(1024, 512);
    struct profile_source from = open_scratch(1000000000);
    assert_int_equal(from.n_hits, 64);
    struct platform_tier t = tier_of(&from, PROFILE_FULL);
    assert_string_equal(t.name, "mine");
    assert_true(fabs(t.bytes_per_s - 1e9) < 1e6);
    assert_true(t.latency_s >= 0 && t.latency_s < 1e-7 && t.request_s < 1e-7);
    assert_true(t.r2 > 0.999);
    assert_true(t.correction.spread_log2 >= 0 && t.correction.spread_log2 < 0.01);
    /* memory is unified */
    assert_true(t.up_bytes_per_s == 0 && t.gather_bytes_per_s == 0);
    t = tier_of(&from, PROFILE_QUICK);
    assert_true(fabs(t.bytes_per_s - 1e9) < 1e6);
    close_scratch();
    close_all();
}

/* A sample of a slow disk ends after 100 ms, and the measurement after 3 s. */
TEST(a_slow_disk_is_measured_for_a_bounded_time)
{
    open_with(1024, 512);
    /* a record takes 33 or 66 ms */
    struct profile_source from = open_scratch(500000);
    int64_t t0 = clock_now_ns();
    struct platform_tier t = tier_of(&from, PROFILE_QUICK);
    double quick_s = (double)(clock_now_ns() - t0) * 1e-9;
    assert_true(fabs(t.bytes_per_s - 500000) < 5000);
    t0 = clock_now_ns();
    t = tier_of(&from, PROFILE_FULL);
    double full_s = (double)(clock_now_ns() - t0) * 1e-9;
    assert_true(fabs(t.bytes_per_s - 500000) < 5000);
    if (!(quick_s > 3 && quick_s < 30 && full_s > 3 && full_s < 60))
        fail_msg("%.3f s, %.3f s", quick_s, full_s);
    close_scratch();
    close_all();
}

/* Reads from a store in memory move no bytes, so they and the compute do not disturb each other,
 * and nothing is measured. */
TEST(reading_in_place_disturbs_nothing)
{
    struct platform p = {.io_overlap = 7, .comp_overlap = 8};
    open_with(1024, 512);
    assert_int_equal(profile_scratch_open(k.model, NULL, NULL, 0, &scratch, NULL), 0);
    struct profile_source from = profile_scratch_source(scratch);
    assert_int_equal(profile_overlap(&p, k.model, work, stream, &from, NULL), 0);
    assert_true(p.io_overlap == 1 && p.comp_overlap == 1);
    assert_int_equal(n_products, 0);
    /* the first tier gets the speed of the store */
    p.n_tiers = 3;
    assert_int_equal(profile_io(&p, k.model, from.store, from.hits, from.n_hits, NULL), 0);
    assert_int_equal(p.n_tiers, 1);
    assert_string_equal(p.tier[0].name, "store");
    assert_true(p.tier[0].bytes_per_s > 0);
    profile_scratch_close(scratch);
    close_all();
}

/* Without records of a kind the other kind is measured. */
TEST(a_chain_of_one_kind_is_measured)
{
    open_with(1024, 512);
    struct profile_source from = open_scratch(1000000000);
    struct store_hit *hits = xcalloc((size_t)from.n_hits, sizeof *hits);
    for (int kind = 0; kind < STORE_KINDS; kind++) {
        memcpy(hits, from.hits, (size_t)from.n_hits * sizeof *hits);
        for (int i = 0; i < from.n_hits; i++) {
            hits[i].mask = (struct store_mask){0};
            for (int l = 1; l < 3; l++)
                store_mask_add(&hits[i].mask, l, (enum store_kind)kind);
        }
        struct profile_source some = {
            .store = from.store, .hits = hits, .n_hits = from.n_hits};
        uint64_t before = st_read_bytes(from.store);
        struct platform_tier t = tier_of(&some, PROFILE_QUICK);
        assert_true(fabs(t.bytes_per_s - 1e9) < 1e6);
        /* 1 + 8 + 64 + 256 records */
        size_t record = record_bytes(k.model, 0, (enum store_kind)kind);
        assert_int_equal(st_read_bytes(from.store) - before, 329 * record);
    }
    free(hits);
    close_scratch();
    close_all();
}

/* Copies to a device with memory of its own are measured on at most 16 MiB, several at a time. On a
 * clock that stands still they take one nanosecond together. */
TEST(copies_are_measured_together)
{
    static const struct {
        size_t bytes, copied;
        int n_queued;
    } cases[] = {{1, 1, 64},
                 {1 << 20, 1 << 20, 64},
                 {(1 << 20) + 1, (1 << 20) + 1, 63},
                 {PROFILE_COPY_BYTES - 1, PROFILE_COPY_BYTES - 1, 4},
                 {PROFILE_COPY_BYTES, PROFILE_COPY_BYTES, 4},
                 {PROFILE_COPY_BYTES + 1, PROFILE_COPY_BYTES, 4}};
    uint8_t *from = mem_map(PROFILE_COPY_BYTES);
    open_with(1024, 512);
    for (int unified = 0; unified < 2; unified++) {
        k.dev->unified = unified;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct platform_tier t = {.up_bytes_per_s = 5, .gather_bytes_per_s = 6};
            assert_int_equal(profile_copies(k.dev, from, cases[i].bytes, &t, NULL), 0);
            double want = (double)cases[i].copied * cases[i].n_queued / 1e-9;
            assert_near(t.up_bytes_per_s, unified ? 0 : want);
            assert_true(t.gather_bytes_per_s == 0);
            t.up_bytes_per_s = 5;
            assert_int_equal(profile_copies(k.dev, from, 0, &t, NULL), 0);
            assert_true(t.up_bytes_per_s == 0);
        }
    }
    close_all();
    mem_unmap(from, PROFILE_COPY_BYTES);
}

/* --- the scratch store ------------------------------------------------------------------------ */

/* A model whose records are so large that only some layers of a few chunks fit. */
TEST(a_large_model_fills_the_scratch_store_with_few_layers)
{
    static const struct {
        int n_embd, n_kv, n_layers, n_chunks;
    } cases[] = {{65536, 512, 2, 4}, {65536, 1024, 1, 5}};
    open_with(64, 64);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model m = {.dev = k.dev, .dtype = DTYPE_F32};
        m.cfg.n_layers = 3;
        m.cfg.n_embd = cases[i].n_embd;
        m.cfg.n_kv_heads = cases[i].n_kv;
        m.cfg.d_head = 64;
        assert_int_equal(profile_scratch_open(&m, NULL, NULL, 0, &scratch, NULL), 0);
        struct profile_source from = profile_scratch_source(scratch);
        assert_int_equal(from.n_hits, cases[i].n_chunks);
        for (int l = 0; l < 4; l++)
            for (int kind = 0; kind < STORE_KINDS; kind++)
                assert_int_equal(
                    store_mask_has(&from.hits[0].mask, l, (enum store_kind)kind),
                    l < cases[i].n_layers);
        profile_scratch_close(scratch);
    }
    close_all();
}

/* Writing to a slow device ends after ten seconds, with at least four chunks. */
TEST(filling_a_slow_device_ends)
{
    static const struct {
        uint64_t write_bytes_per_s;
        int least, most;
    } cases[] = {{10000, 4, 4}, {100000, 5, 6}};
    open_with(1024, 512);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        disk = et_disk(1, 0);
        io_throttle(disk, 0, cases[i].write_bytes_per_s);
        assert_int_equal(profile_scratch_open(k.model, disk, et_dirs, 1, &scratch, NULL),
                         0);
        int n = profile_scratch_source(scratch).n_hits;
        if (n < cases[i].least || n > cases[i].most)
            fail_msg("%d chunks", n);
        close_scratch();
    }
    close_all();
}
