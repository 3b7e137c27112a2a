/* test_saver.c - two-stage saving: what is handed over comes back bit for bit, nothing waits that
 * must not, and a fault ends saving with one warning and nothing else. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "state/chain.h"
#include "state/save_policy.h"
#include "tests/engine/enginetest.h"

enum { MAX_TOKENS = 1200, MAX_ROWS = 128, MAX_SEQS = 3 };

/* --- a saver without an engine: rows are made up ---------------------------------------------- */

struct rig {
    struct pool *pool;
    struct device *dev;
    struct model *m;
    struct io *io;
    struct store *store;
    struct saver *saver;
    struct sha256 fingerprint;
    uint8_t *rows; /* [MAX_ROWS] of the widest matrix */
    atomic_int n_warnings;
    char warning[700];
};

static void warn(void *arg, const char *text)
{
    struct rig *r = arg;
    if (atomic_fetch_add(&r->n_warnings, 1) == 0)
        snprintf(r->warning, sizeof r->warning, "%s", text);
}

static void open_saver(struct rig *r, uint64_t cap_bytes)
{
    struct err err = {0};
    struct store_opts so = {
        .io = r->io, .dirs = et_dirs, .n_dirs = 2, .cap_bytes = cap_bytes};
    if (store_open(&so, &r->store, &err) != 0)
        fail_msg("%s", err.msg);
    struct saver_opts o = {.store = r->store,
                           .model = r->m,
                           .fingerprint = r->fingerprint,
                           .buffer_bytes = 1,
                           .max_batch_rows = MAX_ROWS,
                           .max_seqs = MAX_SEQS,
                           .warn = warn,
                           .warn_arg = r};
    assert_int_equal(saver_create(&o, &r->saver, &err), 0);
}

static void close_saver(struct rig *r)
{
    saver_destroy(r->saver);
    store_close(r->store);
}

static void rig_open(struct rig *r, uint64_t cap_bytes)
{
    struct err err = {0};
    *r = (struct rig){.fingerprint = {{7}}};
    r->pool = NULL;
    assert_int_equal(device_open("cpu", NULL, &r->dev, &err), 0);
    struct model_opts mo = {.dev = r->dev, .dtype = "f32", .max_ctx = MAX_TOKENS};
    assert_int_equal(model_open("synth:tiny-gqa", &mo, &r->m, &err), 0);
    r->rows = xmalloc(MAX_ROWS * model_hidden_bytes(r->m) +
                      MAX_ROWS * model_kv_bytes(r->m));
    r->io = et_disk(3, 0);
    open_saver(r, cap_bytes);
}

static void rig_close(struct rig *r)
{
    close_saver(r);
    io_close(r->io);
    free(r->rows);
    model_close(r->m);
    device_close(r->dev);
}

static size_t row_bytes(const struct rig *r, enum store_kind kind)
{
    return kind == STORE_HIDDEN ? model_hidden_bytes(r->m) : model_kv_bytes(r->m);
}

/* The bytes that the row of a position has, in every sequence of that seed. */
static void fill_row(const struct rig *r, uint64_t seed, int l, enum store_kind kind,
                     int64_t pos, uint8_t *out)
{
    struct rng g = {.s = rng_mix(seed) ^
                         rng_mix((uint64_t)pos * 64 + (uint64_t)l * 2 + kind)};
    for (size_t i = 0; i < row_bytes(r, kind); i += 8)
        put_u64(out + i, rng_u64(&g));
}

/* One sequence: its tokens, and how far it is. */
struct line {
    struct rig *r;
    uint64_t seed;
    int32_t tokens[MAX_TOKENS];
    struct chain chain;
    struct save_seq *q;
    int64_t n;
};

static void line_open(struct line *x, struct rig *r, uint64_t seed, const char *save,
                      int64_t from)
{
    struct save_policy policy;
    struct err err = {0};
    *x = (struct line){.r = r, .seed = seed, .n = from};
    et_prompt(x->tokens, MAX_TOKENS, seed);
    chain_init(&x->chain, &r->fingerprint, NULL);
    chain_extend(&x->chain, x->tokens, MAX_TOKENS);
    assert_int_equal(save_policy_make(&policy, save, r->m, NULL, MAX_TOKENS, &err), 0);
    x->q = save_open(r->saver, chain_parent(&x->chain, (int)(from / 64)), &policy, from);
}

static void line_close(struct line *x)
{
    save_close(x->q);
    chain_deinit(&x->chain);
}

static struct mat made_up_rows(struct line *x, int l, enum store_kind kind, int n)
{
    size_t bytes = row_bytes(x->r, kind);
    uint8_t *base = x->r->rows +
                    (kind == STORE_KV ? MAX_ROWS * row_bytes(x->r, STORE_HIDDEN) : 0);
    for (int i = 0; i < n; i++)
        fill_row(x->r, x->seed, l, kind, x->n + i, base + (size_t)i * bytes);
    return mat_of(base, DTYPE_F32, n, (int64_t)(bytes / 4));
}

/* A forward pass over the next n tokens; false where the reservation has to be tried again. */
static bool line_step(struct line *x, int n, enum save_wait how)
{
    if (!save_reserve(x->q, x->n, n, how))
        return false;
    for (int l = 0; l < x->r->m->cfg.n_layers; l++)
        save_rows(x->q, l, x->n, made_up_rows(x, l, STORE_HIDDEN, n),
                  made_up_rows(x, l, STORE_KV, n));
    x->n += n;
    save_advance(x->q, x->tokens, x->n);
    return true;
}

static void line_run(struct line *x, int64_t until, int step)
{
    while (x->n < until)
        line_step(x, (int)(until - x->n < step ? until - x->n : step), SAVE_WAIT);
}

/* Every record that the policy `save` wants of the first n_chunks is there and right. */
static void check_stored(struct rig *r, uint64_t seed, int n_chunks, const char *save)
{
    struct line x;
    struct err err = {0};
    struct store_hit hits[MAX_TOKENS / 64];
    struct store_reader *reader;
    struct save_policy policy;
    int n_hits, got;
    line_open(&x, r, seed, "none", 0);
    assert_int_equal(save_policy_make(&policy, save, r->m, NULL, MAX_TOKENS, &err), 0);
    assert_int_equal(
        store_lookup(r->store, x.chain.keys, MAX_TOKENS / 64, hits, &n_hits, NULL, 0, &err),
        0);
    assert_int_equal(n_hits, n_chunks);
    size_t room = round_up(64 * row_bytes(r, STORE_HIDDEN), STORE_ALIGN);
    size_t kv_room = round_up(64 * row_bytes(r, STORE_KV), STORE_ALIGN);
    room = room > kv_room ? room : kv_room;
    uint8_t *staging = mem_map(room), *rows = mem_map(room), *packed = mem_map(room);
    struct stream *pack;
    assert_int_equal(stream_create(r->m->dev, STREAM_INLINE, &pack, &err), 0);
    assert_int_equal(store_reader_open(r->store, 1, staging, room, &reader, &err), 0);
    for (int c = 0; c < n_hits; c++) {
        for (int i = 0; i < r->m->cfg.n_layers * STORE_KINDS; i++) {
            enum store_kind kind = (enum store_kind)(i % 2);
            bool wanted = policy.kinds[i / 2] >> kind & 1;
            assert_int_equal(store_mask_has(&hits[c].mask, i / 2, kind), wanted);
            if (!wanted)
                continue;
            struct store_read rd = {
                .hit = &hits[c], .layer = i / 2, .kind = kind, .dst = staging};
            struct store_read *one = &rd, *done[1];
            assert_int_equal(store_reader_submit(reader, &one, 1, &err), 0);
            assert_int_equal(store_reader_wait(reader, done, 1, &got, &err), 0);
            assert_int_equal(store_read_check(&rd, &err), 0);
            size_t bytes = row_bytes(r, kind);
            assert_int_equal(rd.n_bytes, 64 * bytes);
            for (int p = 0; p < 64; p++)
                fill_row(r, seed, i / 2, kind, c * 64 + p, rows + (size_t)p * bytes);
            const uint8_t *want = rows;
            if (kind == STORE_KV) { /* stored as a KV block lies */
                struct mat m = mat_of(rows, r->m->dtype, 64, 2 * model_kv_dim(r->m));
                assert_int_equal(model_kv_pack(r->m, pack, packed, m), 0);
                want = packed;
            }
            assert_memory_equal(want, rd.bytes, 64 * bytes);
        }
    }
    store_reader_close(reader);
    store_release(r->store, hits, n_hits);
    mem_unmap(staging, room);
    mem_unmap(rows, room);
    mem_unmap(packed, room);
    stream_destroy(pack);
    line_close(&x);
}

/* --- tests ------------------------------------------------------------------------------------ */

/* Whatever the steps, full chunks arrive whole; the tail does not. */
static void steps_and_policies(void **state)
{
    (void)state;
    static const char *const saves[] = {"both", "kv", "hidden", "HKB-", "-KKK"};
    static const int steps[] = {1, 7, 64, 100, MAX_ROWS};
    struct rig r;
    rig_open(&r, 0);
    for (int i = 0; i < 5; i++) {
        struct line x;
        line_open(&x, &r, (uint64_t)i, saves[i], 0);
        line_run(&x, 64 * 3 + 5, steps[i]);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        assert_int_equal(save_committed_tokens(x.q), 64 * 3);
        assert_false(save_is_shed(x.q));
        line_close(&x);
        check_stored(&r, (uint64_t)i, 3, saves[i]);
    }
    rig_close(&r);
}

static void nothing_to_save(void **state)
{
    (void)state;
    struct rig r;
    struct line x;
    rig_open(&r, 0);
    line_open(&x, &r, 1, "none", 0);
    assert_null(x.q);
    line_run(&x, 200, 64);
    assert_int_equal(save_committed_tokens(x.q), 0);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    line_close(&x);
    line_open(&x, &r, 1, "both", 0);
    line_run(&x, 63, 63); /* no full chunk */
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 0);
    line_close(&x);
    rig_close(&r);
}

/* The flush barrier: after it, a power failure takes nothing that was committed. */
static void flush_is_a_barrier(void **state)
{
    (void)state;
    struct rig r;
    struct line x;
    rig_open(&r, 0);
    line_open(&x, &r, 5, "both", 0);
    line_run(&x, 64 * 2, 64);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 128);
    io_sim_crash(r.io);
    line_run(&x, 64 * 4, 64); /* goes on, though nothing can be written */
    assert_int_not_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 128);
    assert_true(save_is_shed(x.q));
    assert_int_equal(atomic_load(&r.n_warnings), 1);
    line_close(&x);
    close_saver(&r);
    io_sim_restart(r.io);
    open_saver(&r, 0);
    check_stored(&r, 5, 2, "both");
    rig_close(&r);
}

/* A sequence that was restored goes on where the store ends. */
static void continues_a_stored_prefix(void **state)
{
    (void)state;
    struct rig r;
    struct line x;
    rig_open(&r, 0);
    line_open(&x, &r, 5, "both", 0);
    line_run(&x, 128, 64);
    line_close(&x);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    line_open(&x, &r, 5, "both", 128);
    assert_int_equal(save_committed_tokens(x.q), 128);
    line_run(&x, 260, 33);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 256);
    line_close(&x);
    check_stored(&r, 5, 4, "both");
    rig_close(&r);
}

static void interleaved_sequences(void **state)
{
    (void)state;
    struct rig r;
    struct line x[MAX_SEQS];
    struct rng g = {.s = 9};
    rig_open(&r, 0);
    for (int i = 0; i < MAX_SEQS; i++)
        line_open(&x[i], &r, 20 + (uint64_t)i, "both", 0);
    for (int left = MAX_SEQS; left > 0;) {
        struct line *l = &x[rng_below(&g, MAX_SEQS)];
        if (l->n >= 64 * 6)
            continue;
        line_step(l, 1 + (int)rng_below(&g, 40), SAVE_WAIT);
        left -= l->n >= 64 * 6;
    }
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    for (int i = 0; i < MAX_SEQS; i++) {
        assert_int_equal(save_committed_tokens(x[i].q), x[i].n / 64 * 64);
        int n = (int)(x[i].n / 64);
        line_close(&x[i]);
        check_stored(&r, 20 + (uint64_t)i, n, "both");
    }
    rig_close(&r);
}

/* A sequence may be closed while its chunks are in the queue; a saver, while the queue is full. */
static void close_while_in_flight(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 0);
    struct io_sim_fault slow = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_WRITE, .slow_ns = 300000};
    assert_int_equal(io_sim_fault_add(r.io, &slow), 0);
    for (uint64_t i = 0; i < 3; i++) {
        struct line x;
        line_open(&x, &r, 30 + i, "both", 0);
        line_run(&x, 64 * 4 + 10, 100);
        line_close(&x);
    }
    saver_destroy(r.saver);
    store_close(r.store);
    io_sim_fault_clear(r.io);
    open_saver(&r, 0);
    for (uint64_t i = 0; i < 3; i++)
        check_stored(&r, 30 + i, 4, "both");
    rig_close(&r);
}

/* Takes every buffer; returns how many, which are the open ones of x[0..2]. */
static void take_all_buffers(struct line *x)
{
    for (int i = 0; i < MAX_SEQS; i++) {
        int64_t n = 1;
        while (n < MAX_ROWS && save_reserve(x[i].q, 0, (int)n, SAVE_TRY))
            n += 64;
    }
}

/* Where no buffer is free and none will come, a decode is shed, and so is who would wait for ever;
 * who only tries is told, and succeeds once there are some. */
static void shed_when_buffers_run_out(void **state)
{
    (void)state;
    struct rig r;
    struct line hog[2 * MAX_SEQS], x;
    rig_open(&r, 0);
    line_open(&x, &r, 40, "both", 0);
    line_run(&x, 64, 64);
    for (int i = 0; i < 2 * MAX_SEQS; i++) /* more sequences than were announced */
        line_open(&hog[i], &r, 50 + (uint64_t)i, "both", 0);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    take_all_buffers(hog);
    take_all_buffers(hog + MAX_SEQS);
    assert_false(save_reserve(x.q, x.n, 1, SAVE_TRY));
    assert_false(save_is_shed(x.q));
    save_close(hog[0].q);
    assert_true(save_reserve(x.q, x.n, 1, SAVE_TRY));
    assert_false(save_is_shed(x.q));
    line_run(&x, 128,
             64); /* its buffer goes to the store, comes back, and is taken again: */
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    hog[0].q = NULL;
    for (int i = 1; i < 2 * MAX_SEQS; i++)
        for (int64_t n = 1; n < MAX_ROWS && save_reserve(hog[i].q, 0, (int)n, SAVE_TRY);)
            n += 64;
    if (save_reserve(x.q, x.n, MAX_ROWS, SAVE_TRY))
        assert_false(save_is_shed(x.q));
    else
        assert_true(save_reserve(x.q, x.n, MAX_ROWS, SAVE_SHED));
    /* A sequence that was shed goes on for much longer than its window of open chunks. */
    while (x.n < 128 + 64 * 14)
        line_step(&x, 1, SAVE_SHED);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_true(save_committed_tokens(x.q) >= 128);
    assert_int_equal(atomic_load(&r.n_warnings), 0);
    line_close(&x);
    for (int i = 0; i < 2 * MAX_SEQS; i++)
        line_close(&hog[i]);
    rig_close(&r);
}

/* Regression: after shedding, the positions leave the window of open chunks behind. */
static void a_shed_sequence_goes_on(void **state)
{
    (void)state;
    struct rig r;
    struct line hog[2 * MAX_SEQS], x;
    rig_open(&r, 0);
    for (int i = 0; i < 2 * MAX_SEQS; i++)
        line_open(&hog[i], &r, 60 + (uint64_t)i, "both", 0);
    take_all_buffers(hog);
    take_all_buffers(hog + MAX_SEQS);
    line_open(&x, &r, 70, "both", 0);
    while (x.n < 64 * 14)
        line_step(&x, 1, SAVE_SHED);
    assert_true(save_is_shed(x.q));
    assert_int_equal(save_committed_tokens(x.q), 0);
    line_close(&x);
    line_open(&x, &r, 71, "both", 0);
    line_run(&x, 64 * 14, MAX_ROWS); /* would wait, but nothing is in flight */
    assert_true(save_is_shed(x.q));
    line_close(&x);
    for (int i = 0; i < 2 * MAX_SEQS; i++)
        line_close(&hog[i]);
    rig_close(&r);
}

/* A full disk: one warning, saving is over for all, what was committed stays. */
static void full_disk(void **state)
{
    (void)state;
    static const unsigned on[] = {IO_SIM_ON_WRITE, IO_SIM_ON_SYNC};
    static const int code[] = {-ENOSPC, -EIO};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct line a, b;
        struct err err = {0};
        rig_open(&r, 0);
        line_open(&a, &r, 80, "both", 0);
        line_open(&b, &r, 81, "both", 0);
        line_run(&a, 128, 64);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        struct io_sim_fault f = {.kind = IO_SIM_FAIL, .on = on[i], .code = code[i]};
        assert_int_equal(io_sim_fault_add(r.io, &f), 0);
        line_run(&a, 64 * 6, 64);
        line_run(&b, 64 * 6, 64);
        assert_int_equal(saver_flush(r.saver, &err), code[i]);
        assert_true(err.msg[0] != 0);
        assert_int_equal(atomic_load(&r.n_warnings), 1);
        assert_non_null(strstr(r.warning, "saving stopped, generation goes on"));
        assert_true(save_is_shed(a.q) && save_is_shed(b.q));
        assert_int_equal(save_committed_tokens(a.q), 128);
        assert_int_equal(save_committed_tokens(b.q), 0);
        io_sim_fault_clear(r.io);
        line_close(&a);
        line_close(&b);
        check_stored(&r, 80, 2, "both");
        close_saver(&r);
        open_saver(&r, 0); /* what lay in between left no half-written chunk behind */
        check_stored(&r, 80, 2, "both");
        check_stored(&r, 81, 0, "both");
        rig_close(&r);
    }
}

/* The cap ends the saving of the sequence that does not fit, without a word: others go on. */
static void store_cap(void **state)
{
    (void)state;
    struct rig r;
    struct line a, b;
    rig_open(&r, 0);
    line_open(&a, &r, 90, "both", 0);
    line_run(&a, 64, 64);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    struct store_stats stats;
    store_stats(r.store, &stats);
    line_close(&a);
    close_saver(&r);
    open_saver(&r, stats.used_bytes * 5 / 2); /* two chunks, not three */
    line_open(&a, &r, 91, "both", 0);
    line_run(&a, 64 * 5, 64);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_true(save_is_shed(a.q));
    assert_int_equal(save_committed_tokens(a.q), 128);
    line_close(&a);
    check_stored(&r, 91, 2, "both");
    line_open(&b, &r, 92, "both", 0); /* evicts the other one */
    line_run(&b, 128, 64);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(b.q), 128);
    line_close(&b);
    check_stored(&r, 92, 2, "both");
    assert_int_equal(atomic_load(&r.n_warnings), 0);
    rig_close(&r);
}

/* Under a cap that all sequences together exceed, what a living one was told is there. */
static void living_sequences_keep_what_they_were_told(void **state)
{
    (void)state;
    struct rig r;
    struct line a;
    struct store_stats stats;
    rig_open(&r, 0);
    line_open(&a, &r, 100, "both", 0);
    line_run(&a, 64, 64);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    store_stats(r.store, &stats);
    line_close(&a);
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct line x[MAX_SEQS];
        struct rng g = {.s = seed};
        int64_t n_committed = 0;
        close_saver(&r);
        open_saver(&r, stats.used_bytes * 9 / 2); /* four chunks of twelve */
        for (int i = 0; i < MAX_SEQS; i++)
            line_open(&x[i], &r, 200 + seed * 10 + (uint64_t)i, "both", 0);
        for (int step = 0; step < MAX_SEQS * 4; step++) {
            line_step(&x[rng_below(&g, MAX_SEQS)], 64, SAVE_WAIT);
            assert_int_equal(saver_flush(r.saver, NULL), 0);
            for (int i = 0; i < MAX_SEQS; i++) {
                struct store_hit hits[MAX_TOKENS / 64];
                int n;
                assert_int_equal(store_lookup(r.store, x[i].chain.keys, MAX_TOKENS / 64,
                                              hits, &n, NULL, 0, NULL),
                                 0);
                store_release(r.store, hits, n);
                assert_true((int64_t)n * 64 >= save_committed_tokens(x[i].q));
                n_committed += save_committed_tokens(x[i].q);
            }
        }
        assert_true(n_committed > 0);
        for (int i = 0; i < MAX_SEQS; i++)
            line_close(&x[i]);
        store_stats(r.store, &stats);
        stats.used_bytes = stats.used_bytes / stats.n_chunks;
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_and_policies),
        cmocka_unit_test(nothing_to_save),
        cmocka_unit_test(flush_is_a_barrier),
        cmocka_unit_test(continues_a_stored_prefix),
        cmocka_unit_test(interleaved_sequences),
        cmocka_unit_test(close_while_in_flight),
        cmocka_unit_test(shed_when_buffers_run_out),
        cmocka_unit_test(a_shed_sequence_goes_on),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(store_cap),
        cmocka_unit_test(living_sequences_keep_what_they_were_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
