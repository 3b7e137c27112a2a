/* test_saver.c - two-stage saving.  Rows handed to the saver come back bit for bit, callers never
 * wait when they must not, and a fault ends saving with one warning and no other effect. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "store/remote/remote_impl.h"
#include "store/chain.h"
#include "restore/save_policy.h"
#include "tests/base/niceness.h"
#include "tests/engine/enginetest.h"

enum { MAX_TOKENS = 1200, MAX_ROWS = 128, MAX_SEQS = 3 };

/* --- a saver without an engine: the rows are made up ------------------------------------------ */

struct rig {
    struct device *dev;
    struct model *m;
    struct stream *stream;
    struct io *io;
    struct store *store;
    struct saver *saver;
    struct sha256 fingerprint;
    uint8_t *rows; /* [MAX_ROWS] rows of the widest matrix */
    size_t buffer_bytes;
    enum placement_kind policy; /* policy of the next store */
    int64_t pack_idle_ns;       /* of the next saver; 0: lines are not packed */
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
    struct store_opts so = {.io = r->io,
                            .dirs = et_dirs,
                            .n_dirs = 2,
                            .cap_bytes = cap_bytes,
                            .policy = r->policy};
    if (store_open(&so, &r->store, &err) != 0)
        fail_msg("%s", err.msg);
    struct saver_opts o = {.store = r->store,
                           .model = r->m,
                           .fingerprint = r->fingerprint,
                           .buffer_bytes = r->buffer_bytes,
                           .pack_idle_ns = r->pack_idle_ns,
                           .max_batch_rows = MAX_ROWS,
                           .warn = warn,
                           .warn_arg = r};
    assert_int_equal(saver_create(&o, &r->saver, &err), 0);
}

static void close_saver(struct rig *r)
{
    saver_destroy(r->saver);
    store_close(r->store);
}

/* buffer_bytes 1: the minimum, four chunks. */
static void rig_open_small(struct rig *r, size_t buffer_bytes, uint64_t cap_bytes)
{
    *r = (struct rig){.fingerprint = {{7}}, .buffer_bytes = buffer_bytes};
    assert_int_equal(device_open("cpu", NULL, NULL, &r->dev, NULL), 0);
    struct model_opts mo = {.dev = r->dev, .dtype = "f32", .max_ctx = MAX_TOKENS};
    assert_int_equal(model_open("synth:tiny-gqa", &mo, &r->m, NULL), 0);
    assert_int_equal(stream_create(r->dev, STREAM_COMPUTE, &r->stream, NULL), 0);
    r->rows = xmalloc(MAX_ROWS * model_hidden_bytes(r->m) +
                      MAX_ROWS * model_kv_bytes(r->m, 0));
    r->io = et_disk(3, 0);
    open_saver(r, cap_bytes);
}

static void rig_open(struct rig *r, uint64_t cap_bytes)
{
    rig_open_small(r, 16 << 20, cap_bytes);
}

static void rig_close(struct rig *r)
{
    close_saver(r);
    io_close(r->io);
    free(r->rows);
    stream_destroy(r->stream);
    model_close(r->m);
    device_close(r->dev);
}

static int set_up(void **state)
{
    *state = xcalloc(1, sizeof(struct rig));
    rig_open(*state, 0);
    return 0;
}

static int tear_down(void **state)
{
    rig_close(*state);
    free(*state);
    return 0;
}

/* A test whose state is a rig with a saver whose store has no limit. */
static size_t row_bytes(const struct rig *r, enum store_kind kind)
{
    return kind == STORE_HIDDEN ? model_hidden_bytes(r->m) : model_kv_bytes(r->m, 0);
}

/* Makes the row of a position, of numbers below 1 with the same exponent. The row is the same in
 * every sequence with this seed. */
static void fill_row(const struct rig *r, uint64_t seed, int l, enum store_kind kind,
                     int64_t pos, uint8_t *out)
{
    struct rng g = {.s = rng_mix(seed) ^
                         rng_mix((uint64_t)pos * 64 + (uint64_t)l * 2 + kind)};
    for (size_t i = 0; i < row_bytes(r, kind); i += 8)
        put_u64(out + i, (rng_u64(&g) & 0x807fffff807fffff) | 0x3f0000003f000000);
}

/* A sequence that is saved: its tokens and its progress. */
struct line {
    struct rig *r;
    uint64_t seed;
    int32_t tokens[MAX_TOKENS];
    struct chain chain;
    /* the stored partial chunk that the line continues, held in the store */
    struct store_hit tail;
    struct save_seq *q;
    int64_t n;
};

/* Opens a line whose positions below `from` are in the store. Returns whether the partial chunk
 * before `from` is stored, too. */
static bool line_find(struct line *x, struct rig *r, uint64_t seed, int64_t from)
{
    int n_hits = 1;
    *x = (struct line){.r = r, .seed = seed, .n = from};
    et_prompt(x->tokens, MAX_TOKENS, seed);
    chain_init(&x->chain, &r->fingerprint, NULL);
    chain_extend(&x->chain, x->tokens, MAX_TOKENS);
    if (from % 64 != 0) {
        struct sha256 key = store_partial_key(chain_parent(&x->chain, (int)(from / 64)),
                                              x->tokens + from / 64 * 64, (int)(from % 64));
        n_hits = store_lookup(r->store, NULL, &key, 1, &x->tail, NULL, 0);
    }
    return n_hits == 1;
}

static void line_save(struct line *x, const char *save)
{
    struct save_policy policy;
    assert_int_equal(save_policy_make(&policy, save, x->r->m, NULL, MAX_TOKENS, NULL), 0);
    policy.packs = x->r->pack_idle_ns > 0;
    struct save_begin b = {.first_token = x->n,
                           .parent = chain_parent(&x->chain, (int)(x->n / 64)),
                           .tail = &x->tail,
                           .policy = &policy};
    x->q = save_open(x->r->saver, &b);
}

static void line_open(struct line *x, struct rig *r, uint64_t seed, const char *save,
                      int64_t from)
{
    assert_true(line_find(x, r, seed, from));
    line_save(x, save);
}

static void line_close(struct line *x)
{
    save_close(x->q);
    store_release(x->r->store, &x->tail, 1);
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

/* Runs a forward pass over the next n tokens.  Returns false if the reservation must be tried
 * again. */
static bool line_step(struct line *x, int n, enum save_wait how)
{
    if (!save_reserve(x->q, x->n, n, how))
        return false;
    struct save_part part = {x->q, x->n, 0, n};
    for (int l = 0; l < x->r->m->cfg.n_layers; l++)
        save_layer(&part, 1, l, made_up_rows(x, l, STORE_HIDDEN, n),
                   made_up_rows(x, l, STORE_KV, n), x->r->stream);
    x->n += n;
    save_advance(x->q, x->tokens, x->n);
    return true;
}

static void line_run(struct line *x, int64_t until, int step)
{
    while (x->n < until)
        line_step(x, (int)(until - x->n < step ? until - x->n : step), SAVE_WAIT);
}

/* Checks that these chunks have exactly the records that the policy wants, with the right bytes. */
static void check_records(struct rig *r, uint64_t seed, const struct store_hit *hits,
                          int n_hits, const struct save_policy *policy)
{
    struct store_reader *reader;
    size_t room = round_up(64 * row_bytes(r, STORE_HIDDEN), STORE_ALIGN);
    size_t kv_room = round_up(64 * row_bytes(r, STORE_KV), STORE_ALIGN);
    room = store_read_room(r->store, room > kv_room ? room : kv_room);
    uint8_t *staging = mem_map(room), *rows = mem_map(room), *packed = mem_map(room);
    uint8_t *unpacked = mem_map(room);
    struct stream *pack;
    assert_int_equal(stream_create(r->m->dev, STREAM_INLINE, &pack, NULL), 0);
    assert_int_equal(store_reader_open(r->store, 1, staging, room, &reader, NULL), 0);
    for (int c = 0; c < n_hits; c++) {
        for (int i = 0; i < r->m->cfg.n_layers * STORE_KINDS; i++) {
            enum store_kind kind = (enum store_kind)(i % 2);
            int n = hits[c].n_tokens;
            bool wanted = policy->kinds[i / 2] >> kind & 1;
            assert_int_equal(store_mask_has(&hits[c].mask, i / 2, kind), wanted);
            if (!wanted)
                continue;
            struct store_read rd = {.hit = &hits[c],
                                    .layer = i / 2,
                                    .kind = kind,
                                    .dst = staging,
                                    .dst_bytes = room};
            assert_int_equal(store_reader_read(reader, &rd, NULL), 0);
            size_t bytes = row_bytes(r, kind);
            assert_int_equal(rd.is_packed, r->pack_idle_ns > 0 && kind == STORE_HIDDEN);
            if (rd.is_packed) {
                assert_true(pack_undo(rd.bytes, rd.n_bytes, unpacked, (size_t)n * bytes));
                rd.bytes = unpacked;
                rd.n_bytes = (uint32_t)((size_t)n * bytes);
            }
            assert_int_equal(rd.n_bytes, (size_t)n * bytes);
            for (int p = 0; p < n; p++)
                fill_row(r, seed, i / 2, kind, hits[c].chunk_idx * 64 + p,
                         rows + (size_t)p * bytes);
            const uint8_t *want = rows;
            if (kind == STORE_KV && n == 64) { /* is stored in the layout of a KV block */
                struct mat m = mat_of(rows, r->m->dtype, 64, 2 * model_kv_dim(r->m, 0));
                assert_int_equal(model_kv_pack(r->m, pack, 0, packed, m), 0);
                want = packed;
            }
            assert_memory_equal(want, rd.bytes, (size_t)n * bytes);
        }
    }
    store_reader_close(reader);
    mem_unmap(staging, room);
    mem_unmap(rows, room);
    mem_unmap(packed, room);
    mem_unmap(unpacked, room);
    stream_destroy(pack);
}

static void check_stored(struct rig *r, uint64_t seed, int n_chunks, const char *save)
{
    struct line x;
    struct store_hit hits[MAX_TOKENS / 64];
    struct save_policy policy;
    line_open(&x, r, seed, "none", 0);
    assert_int_equal(save_policy_make(&policy, save, r->m, NULL, MAX_TOKENS, NULL), 0);
    int n_hits = store_lookup(r->store, NULL, x.chain.keys, MAX_TOKENS / 64, hits, NULL, 0);
    assert_int_equal(n_hits, n_chunks);
    check_records(r, seed, hits, n_hits, &policy);
    store_release(r->store, hits, n_hits);
    line_close(&x);
}

/* Checks that chunk i of the line is stored with the line's current tokens. */
static void check_chunk(const struct line *x, int i, const char *save)
{
    struct store_hit hit;
    struct save_policy policy;
    struct sha256 key = store_partial_key(chain_parent(&x->chain, i), x->tokens + 64 * i,
                                          64);
    assert_int_equal(save_policy_make(&policy, save, x->r->m, NULL, MAX_TOKENS, NULL), 0);
    assert_int_equal(store_lookup(x->r->store, NULL, &key, 1, &hit, NULL, 0), 1);
    check_records(x->r, x->seed, &hit, 1, &policy);
    store_release(x->r->store, &hit, 1);
}

/* Checks that the context is stored up to n_tokens: its full chunks, and the partial chunk after
 * them. */
static void check_tail(struct rig *r, uint64_t seed, int n_tokens, const char *save)
{
    struct line x;
    struct store_hit hit;
    struct save_policy policy;
    struct sha256 key;
    int n_full = n_tokens / 64, n = 0;
    check_stored(r, seed, n_full, save);
    line_open(&x, r, seed, "none", 0);
    assert_int_equal(save_policy_make(&policy, save, r->m, NULL, MAX_TOKENS, NULL), 0);
    bool found = store_find_partial(r->store, chain_parent(&x.chain, n_full),
                                    x.tokens + n_full * 64, 63, &key, &n);
    assert_int_equal(found, n_tokens % 64 != 0);
    if (found) {
        assert_int_equal(n, n_tokens % 64);
        assert_int_equal(store_lookup(r->store, NULL, &key, 1, &hit, NULL, 0), 1);
        assert_int_equal(hit.chunk_idx, n_full);
        check_records(r, seed, &hit, 1, &policy);
        store_release(r->store, &hit, 1);
    }
    line_close(&x);
}

/* --- tests ------------------------------------------------------------------------------------ */

/* With any step size, full chunks are stored whole. The tail is stored only when the sequence goes
 * idle. */
TEST_WITH(steps_and_policies, set_up, tear_down)
{
    static const char *const saves[] = {"both", "kv", "hidden", "HKB-", "-KKK"};
    static const int steps[] = {1, 7, 64, 100, MAX_ROWS};
    struct rig *r = *state;
    for (int i = 0; i < 5; i++) {
        struct line x;
        line_open(&x, r, (uint64_t)i, saves[i], 0);
        line_run(&x, 64 * 3 + 5, steps[i]);
        assert_int_equal(saver_flush(r->saver, NULL), 0);
        assert_int_equal(save_committed_tokens(x.q), 64 * 3);
        assert_int_equal(save_ended(x.q), SAVE_GOES_ON);
        line_close(&x);
        check_stored(r, (uint64_t)i, 3, saves[i]);
    }
}

TEST_WITH(nothing_to_save, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x;
    line_open(&x, r, 1, "none", 0);
    assert_null(x.q);
    line_run(&x, 200, 64);
    assert_int_equal(save_committed_tokens(x.q), 0);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    line_close(&x);
    line_open(&x, r, 1, "both", 0);
    line_run(&x, 63, 63); /* 63 tokens: no full chunk */
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 0);
    line_close(&x);
}

/* After a flush, a loss of power loses nothing that was committed. */
TEST_WITH(flush_is_a_barrier, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x;
    line_open(&x, r, 5, "both", 0);
    line_run(&x, 64 * 2, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 128);
    io_sim_crash(r->io);
    line_run(&x, 64 * 4, 64); /* the sequence continues although nothing can be written */
    assert_int_not_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 128);
    assert_int_equal(save_ended(x.q), SAVE_END_FAULT);
    assert_int_equal(atomic_load(&r->n_warnings), 1);
    line_close(&x);
    close_saver(r);
    io_sim_restart(r->io);
    open_saver(r, 0);
    check_stored(r, 5, 2, "both");
}

static void count_commit(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* While a sequence continues and no caller asks for a commit, several chunks are committed
 * together, within a bounded time. */
TEST_WITH(commits_are_few_and_come_unasked, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x;
    struct saver_stats stats;
    atomic_int n_commits = 0;
    saver_on_commit(r->saver, count_commit, &n_commits);
    line_open(&x, r, 5, "both", 0);
    int64_t t0 = clock_now_ns();
    for (int i = 1; i <= 18; i++) {
        line_run(&x, 64 * i, 64);
        do /* waits until the writer has written the chunk and has had time to commit */
            saver_stats(r->saver, &stats);
        while (stats.used_bytes > 0);
    }
    while (save_committed_tokens(x.q) < 64 * 18)
        clock_sleep_ns(1000000);
    int64_t at_most = (clock_now_ns() - t0) / SAVE_COMMIT_NS + 1;
    assert_in_range(atomic_load(&n_commits), 1, at_most);
    saver_on_commit(r->saver, NULL, NULL);
    line_close(&x);
    check_stored(r, 5, 18, "both");
}

/* Asks for a commit of the saved line, in one of three ways (`how`), and waits for it. */
static void ask_for_commit(struct line *x, int how)
{
    struct saver *s = x->r->saver;
    if (how == 0) {
        while (!saver_reached(s, saver_mark(s)))
            clock_sleep_ns(1000000);
    } else if (how == 1) {
        assert_int_equal(saver_flush(s, NULL), 0);
    } else { /* the line ends with a full chunk, so no tail has to be written */
        save_idle(x->q, x->tokens, x->n, NULL);
        while (!save_is_settled(x->q))
            clock_sleep_ns(1000000);
    }
}

/* A requested commit does not wait until the next periodic commit is due. On a busy machine a
 * single commit may take that long, but not each of them. */
TEST(commits_come_when_asked_for)
{
    for (int how = 0; how < 3; how++) {
        int64_t quickest_ns = INT64_MAX;
        for (int tries = 0; tries < 100 && quickest_ns > SAVE_COMMIT_NS / 2; tries++) {
            struct rig r;
            struct line x;
            rig_open(&r, 0);
            line_open(&x, &r, 5, "both", 0);
            int64_t t0 = clock_now_ns();
            line_run(&x, 128, 64);
            ask_for_commit(&x, how);
            int64_t took_ns = clock_now_ns() - t0;
            quickest_ns = took_ns < quickest_ns ? took_ns : quickest_ns;
            line_close(&x);
            check_stored(&r, 5, 2, "both");
            rig_close(&r);
        }
        assert_true(quickest_ns <= SAVE_COMMIT_NS / 2);
    }
}

/* A restored sequence continues to save where the store ends. */
TEST_WITH(continues_a_stored_prefix, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x;
    line_open(&x, r, 5, "both", 0);
    line_run(&x, 128, 64);
    line_close(&x);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    line_open(&x, r, 5, "both", 128);
    assert_int_equal(save_committed_tokens(x.q), 128);
    line_run(&x, 260, 33);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 256);
    line_close(&x);
    check_stored(r, 5, 4, "both");
}

/* A sequence goes idle several times within one chunk, under one saver and under a new one. Each
 * partial chunk has all rows so far and replaces the previous one. The full chunk replaces the last
 * of them. */
TEST(tails_grow)
{
    static const int idle_at[] = {3, 40, 64 + 1, 64 + 5, 64 + 6, 64 + 63, 200, 256, 300};
    static const char *const saves[] = {"both", "kv", "HKB-"};
    for (int i = 0; i < 6; i++) {
        struct rig r;
        struct line x;
        struct saver_stats st;
        struct store_stats stats;
        bool reopens = i % 2 == 1;
        const char *save = saves[i / 2];
        int64_t from = 0;
        rig_open(&r, 0);
        for (int j = 0; j < 9; j++) {
            line_open(&x, &r, 5, save, from);
            line_run(&x, idle_at[j], 33);
            save_idle(x.q, x.tokens, x.n, NULL);
            assert_int_equal(saver_flush(r.saver, NULL), 0);
            assert_int_equal(save_ended(x.q), SAVE_GOES_ON);
            assert_int_equal(save_committed_tokens(x.q), idle_at[j]);
            line_close(&x);
            check_tail(&r, 5, idle_at[j], save);
            store_stats(r.store, &stats);
            /* A tail that is continued is superseded, whichever saver wrote it. */
            assert_int_equal(stats.n_partial, j != 7);
            saver_stats(r.saver, &st);
            assert_int_equal(st.used_bytes, 0);
            from = idle_at[j];
            if (reopens) {
                close_saver(&r);
                open_saver(&r, 0);
            }
        }
        rig_close(&r);
    }
}

/* Two sequences continue one tail in different ways. The first to fill its chunk supersedes the
 * tail. The second has found the tail before and can still read it, even if it begins to save
 * later. */
static void two_continue_one_tail(bool begins_late)
{
    struct rig r;
    struct line x, y;
    struct store_stats stats;
    rig_open(&r, 0);
    line_open(&x, &r, 5, "both", 0);
    line_run(&x, 70, 70);
    save_idle(x.q, x.tokens, x.n, NULL);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    line_close(&x);
    line_open(&x, &r, 5, "both", 70);
    assert_true(line_find(&y, &r, 5, 70));
    y.tokens[90]++;
    if (!begins_late)
        line_save(&y, "both");
    line_run(&x, 128, 30);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    line_close(&x);
    store_stats(r.store, &stats);
    assert_int_equal(stats.n_partial, 0); /* superseded, so it is not found any more */
    if (begins_late)
        line_save(&y, "both");
    line_run(&y, 128, 30);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_ended(y.q), SAVE_GOES_ON);
    assert_int_equal(save_committed_tokens(y.q), 128);
    store_stats(r.store, &stats);
    assert_int_equal(stats.n_partial, 0);
    assert_int_equal(stats.n_chunks, 3); /* the two contexts share the first chunk */
    check_stored(&r, 5, 2, "both");
    check_chunk(&y, 1, "both");
    line_close(&y);
    rig_close(&r);
}

TEST(two_begin_at_one_tail)
{
    two_continue_one_tail(false);
}

TEST(one_begins_at_a_superseded_tail)
{
    two_continue_one_tail(true);
}

/* A tail that cannot be read ends the saving of its own sequence only. From then on the tail is a
 * miss. */
TEST_WITH(damaged_tail, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x, y;
    line_open(&x, r, 5, "both", 0);
    line_run(&x, 70, 70);
    save_idle(x.q, x.tokens, x.n, NULL);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    line_close(&x);
    line_open(&x, r, 5, "both", 70);
    line_open(&y, r, 6, "both", 0);
    struct io_sim_fault flip = {
        .kind = IO_SIM_READ_FLIP, .on = IO_SIM_ON_READ, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(r->io, &flip), 0);
    line_run(&x, 130, 30);
    line_run(&y, 130, 30);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    io_sim_fault_clear(r->io);
    assert_int_equal(save_ended(x.q), SAVE_END_TAIL);
    assert_int_equal(save_committed_tokens(x.q), 70);
    assert_int_equal(save_ended(y.q), SAVE_GOES_ON);
    assert_int_equal(save_committed_tokens(y.q), 128);
    line_close(&x);
    line_close(&y);
    check_stored(r, 5, 1, "both");
    assert_false(line_find(&x, r, 5, 70));
    line_close(&x);
}

TEST_WITH(interleaved_sequences, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x[MAX_SEQS];
    struct rng g = {.s = 9};
    for (int i = 0; i < MAX_SEQS; i++)
        line_open(&x[i], r, 20 + (uint64_t)i, "both", 0);
    for (int left = MAX_SEQS; left > 0;) {
        struct line *l = &x[rng_below(&g, MAX_SEQS)];
        if (l->n >= 64 * 6)
            continue;
        line_step(l, 1 + (int)rng_below(&g, 40), SAVE_WAIT);
        left -= l->n >= 64 * 6;
    }
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    for (int i = 0; i < MAX_SEQS; i++) {
        assert_int_equal(save_committed_tokens(x[i].q), x[i].n / 64 * 64);
        int n = (int)(x[i].n / 64);
        line_close(&x[i]);
        check_stored(r, 20 + (uint64_t)i, n, "both");
    }
}

/* A sequence may be closed while its chunks are queued, and a saver while its queue is full. */
TEST_WITH(close_while_in_flight, set_up, tear_down)
{
    struct rig *r = *state;
    struct io_sim_fault slow = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_WRITE, .slow_ns = 300000};
    assert_int_equal(io_sim_fault_add(r->io, &slow), 0);
    for (uint64_t i = 0; i < 3; i++) {
        struct line x;
        line_open(&x, r, 30 + i, "both", 0);
        line_run(&x, 64 * 4 + 10, 100);
        line_close(&x);
    }
    saver_destroy(r->saver);
    store_close(r->store);
    io_sim_fault_clear(r->io);
    open_saver(r, 0);
    for (uint64_t i = 0; i < 3; i++)
        check_stored(r, 30 + i, 4, "both");
}

/* Opens sequences until their unfinished chunks fill the save buffer. Returns the number of
 * sequences. */
static int fill_memory(struct rig *r, struct line *hog, int max)
{
    struct saver_stats st;
    int n = 0;
    do {
        line_open(&hog[n], r, 50 + (uint64_t)n, "both", 0);
        line_step(&hog[n], 1, SAVE_TRY);
    } while (save_ended(hog[n].q) == SAVE_GOES_ON && ++n < max);
    assert_true(n < max);
    line_close(&hog[n]);
    saver_stats(r->saver, &st);
    assert_true(st.used_bytes <= st.bound_bytes);
    assert_int_equal(st.n_ended[SAVE_END_MEMORY], 1);
    return n;
}

enum { MANY = 32 };

/* The tails of any number of sequences stay within the save buffer. A sequence that finds no room
 * stops being saved, in whatever way it asks, because room might never come. The others are saved
 * to their end. */
TEST(tails_stay_within_the_bound)
{
    static const enum save_wait hows[] = {SAVE_TRY, SAVE_SHED, SAVE_WAIT};
    struct rig r;
    struct line hog[MANY], x;
    struct saver_stats st;
    rig_open_small(&r, 1, 0);
    int n = fill_memory(&r, hog, MANY);
    assert_int_equal(n, 4);
    for (int i = 0; i < 3; i++) {
        line_open(&x, &r, 40, "both", 0);
        /* continues for much longer than its window of open chunks lasts */
        while (x.n < 64 * 14)
            assert_true(line_step(&x, 1 + i * 63, hows[i]));
        assert_int_equal(save_ended(x.q), SAVE_END_MEMORY);
        assert_int_equal(save_committed_tokens(x.q), 0);
        line_close(&x);
    }
    saver_stats(r.saver, &st);
    assert_int_equal(st.n_ended[SAVE_END_MEMORY], 1 + 3);
    /* one after another, so that no two sequences need a second chunk at the same time */
    for (int i = 0; i < n; i++)
        line_run(&hog[i], 64 * 3 - 1, 1);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(save_ended(hog[i].q), SAVE_GOES_ON);
        assert_int_equal(save_committed_tokens(hog[i].q), 128);
        line_close(&hog[i]);
    }
    /* a later request of the same context saves it */
    line_open(&x, &r, 40, "both", 0);
    line_run(&x, 64 * 2, 64);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), 128);
    line_close(&x);
    check_stored(&r, 40, 2, "both");
    saver_stats(r.saver, &st);
    assert_int_equal(st.used_bytes, 0);
    rig_close(&r);
}

/* A chunk takes memory only for the kinds that its policy saves. */
TEST_WITH(memory_follows_the_policy, set_up, tear_down)
{
    static const char *const saves[] = {"both", "kv", "hidden", "--K-"};
    size_t used[4];
    struct rig *r = *state;
    for (int i = 0; i < 4; i++) {
        struct line x;
        struct saver_stats st;
        line_open(&x, r, 40, saves[i], 0);
        line_step(&x, 1, SAVE_TRY);
        saver_stats(r->saver, &st);
        used[i] = st.used_bytes;
        line_close(&x);
    }
    size_t head = used[1] + used[2] - used[0]; /* the struct before the rows counts once */
    size_t layers = (size_t)r->m->cfg.n_layers;
    assert_true(head < 1024);
    assert_int_equal(used[1] - head, layers * 64 * row_bytes(r, STORE_KV));
    assert_int_equal(used[2] - head, layers * 64 * row_bytes(r, STORE_HIDDEN));
    assert_int_equal(used[3] - head, 64 * row_bytes(r, STORE_KV));
}

/* The writer falls behind. A caller that may not wait gets no room now, and succeeds later. A
 * decoding sequence stops being saved, with this as its reason. A caller that may wait does
 * wait. */
TEST(shed_when_the_writer_falls_behind)
{
    struct rig r;
    struct line a, b, c;
    rig_open_small(&r, 1, 0);
    struct io_sim_fault slow = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_WRITE, .slow_ns = 20000000};
    assert_int_equal(io_sim_fault_add(r.io, &slow), 0);
    line_open(&a, &r, 40, "both", 0);
    line_open(&b, &r, 41, "both", 0);
    line_open(&c, &r, 42, "both", 0);
    line_run(&a, 64 * 4, 64); /* all four chunks of the save buffer are queued */
    assert_false(line_step(&b, 1, SAVE_TRY));
    assert_int_equal(save_ended(b.q), SAVE_GOES_ON);
    assert_true(line_step(&c, 1, SAVE_SHED));
    assert_int_equal(save_ended(c.q), SAVE_END_BEHIND);
    while (!line_step(&b, 1, SAVE_TRY))
        clock_sleep_ns(1000000);
    line_run(&b, 64 * 6, 64); /* waits for the writer */
    io_sim_fault_clear(r.io);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(a.q), 64 * 4);
    assert_int_equal(save_committed_tokens(b.q), 64 * 6);
    assert_int_equal(save_committed_tokens(c.q), 0);
    assert_int_equal(atomic_load(&r.n_warnings), 0);
    line_close(&a);
    line_close(&b);
    line_close(&c);
    check_stored(&r, 41, 6, "both");
    rig_close(&r);
}

static uint64_t appended_bytes(const struct rig *r)
{
    struct store_stats stats;
    store_stats(r->store, &stats);
    return stats.appended_bytes;
}

/* Chunks that the writer holds back stay in memory until a flush, until memory runs out, or until
 * the saver ends. */
TEST(what_is_held_back_is_written_in_the_end)
{
    struct rig r;
    struct line a, b;
    rig_open_small(&r, 1, 0); /* a save buffer of four chunks */
    line_open(&a, &r, 40, "both", 0);
    saver_hold_back(r.saver);
    line_run(&a, 64 * 3, 64);
    clock_sleep_ns(SAVE_COMMIT_NS + 20000000); /* the writer had time to commit */
    assert_int_equal(appended_bytes(&r), 0);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(a.q), 64 * 3);
    line_open(&b, &r, 41, "both", 0);
    saver_hold_back(r.saver);
    line_run(&b, 64 * 7, 64);
    assert_int_equal(save_ended(b.q), SAVE_GOES_ON);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(save_committed_tokens(b.q), 64 * 7);
    saver_hold_back(r.saver);
    line_run(&a, 64 * 4, 64);
    line_close(&a);
    line_close(&b);
    close_saver(&r);
    open_saver(&r, 0);
    check_stored(&r, 40, 4, "both");
    check_stored(&r, 41, 7, "both");
    rig_close(&r);
}

/* The disk has no room for chunks or for the index. The affected sequences stop being saved, there
 * is one warning, and committed chunks stay. When there is room again, other sequences are
 * saved. */
TEST(full_disk)
{
    static const char *const path[] = {"seg-", "index.db-wal"};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct line a, b, c;
        struct saver_stats st;
        rig_open(&r, 0);
        line_open(&a, &r, 80, "both", 0);
        line_open(&b, &r, 81, "both", 0);
        line_run(&a, 128, 64);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        struct io_sim_fault f = {
            .kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE, .path = path[i], .code = -ENOSPC};
        for (int times = 1; times <= 2; times++) {
            assert_int_equal(io_sim_fault_add(r.io, &f), 0);
            line_run(times == 1 ? &a : &b, 64 * 6, 64);
            assert_int_equal(saver_flush(r.saver, NULL), 0);
            assert_int_equal(atomic_load(&r.n_warnings), times);
            assert_non_null(strstr(r.warning, "nothing is saved while the disk is full"));
            assert_int_equal(save_ended(times == 1 ? a.q : b.q), SAVE_END_SPACE);
            saver_stats(r.saver, &st);
            assert_int_equal(st.fault, -ENOSPC);
            assert_string_not_equal(st.fault_why, "");
            /* A sequence that continues an unsaved context reports the full disk as its reason, and
             * not an eviction. */
            line_open(&c, &r, times == 1 ? 80 : 81, "both", 64 * 4);
            line_run(&c, 64 * 6, 64);
            assert_int_equal(saver_flush(r.saver, NULL), 0);
            assert_non_null(strstr(save_end_text(save_ended(c.q)), "the disk is full"));
            line_close(&c);
            io_sim_fault_clear(r.io);
            line_open(&c, &r, 90 + (uint64_t)times, "both", 0);
            line_run(&c, 128, 64);
            assert_int_equal(saver_flush(r.saver, NULL), 0);
            assert_int_equal(save_committed_tokens(c.q), 128);
            line_close(&c);
            saver_stats(r.saver, &st);
            assert_int_equal(st.fault, 0);
            assert_string_equal(st.fault_why, "");
            check_stored(&r, 90 + (uint64_t)times, 2, "both");
        }
        assert_int_equal(save_committed_tokens(a.q), 128);
        assert_int_equal(save_committed_tokens(b.q), 0);
        line_close(&a);
        line_close(&b);
        rig_close(&r);
    }
}

/* The disk fails. There is one warning, all saving ends, and committed chunks stay. */
TEST(disk_fault)
{
    static const unsigned on[] = {IO_SIM_ON_WRITE, IO_SIM_ON_SYNC};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct line a, b;
        struct err err = {0};
        struct saver_stats st;
        rig_open(&r, 0);
        line_open(&a, &r, 80, "both", 0);
        line_open(&b, &r, 81, "both", 0);
        line_run(&a, 128, 64);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        struct io_sim_fault f = {.kind = IO_SIM_FAIL, .on = on[i], .code = -EIO};
        assert_int_equal(io_sim_fault_add(r.io, &f), 0);
        line_run(&a, 64 * 6, 64);
        line_run(&b, 64 * 6, 64);
        assert_int_equal(saver_flush(r.saver, &err), -EIO);
        assert_true(err.msg[0] != 0);
        saver_stats(r.saver, &st);
        assert_int_equal(st.fault, -EIO);
        assert_string_equal(st.fault_why, err.msg);
        assert_int_equal(atomic_load(&r.n_warnings), 1);
        assert_non_null(
            strstr(r.warning, "saving stopped until a restart, generation goes on"));
        assert_true(save_ended(a.q) == SAVE_END_FAULT && save_ended(b.q) == SAVE_END_FAULT);
        assert_int_equal(save_committed_tokens(a.q), 128);
        assert_int_equal(save_committed_tokens(b.q), 0);
        io_sim_fault_clear(r.io);
        line_close(&a);
        line_close(&b);
        check_stored(&r, 80, 2, "both");
        close_saver(&r);
        open_saver(&r, 0); /* the chunks in flight left no half-written data behind */
        check_stored(&r, 80, 2, "both");
        check_stored(&r, 81, 0, "both");
        rig_close(&r);
    }
}

/* A sequence that exceeds the size cap stops being saved, with the cap as its reason. Others
 * continue. */
TEST_WITH(store_cap, set_up, tear_down)
{
    struct rig *r = *state;
    struct line a, b;
    line_open(&a, r, 90, "both", 0);
    line_run(&a, 64, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    struct store_stats stats;
    store_stats(r->store, &stats);
    line_close(&a);
    close_saver(r);
    open_saver(r, stats.used_bytes * 5 / 2); /* room for two chunks */
    line_open(&a, r, 91, "both", 0);
    line_run(&a, 64 * 5, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_ended(a.q), SAVE_END_CAP);
    assert_int_equal(save_committed_tokens(a.q), 128);
    line_close(&a);
    check_stored(r, 91, 2, "both");
    line_open(&b, r, 92, "both", 0); /* evicts the other context to make room */
    line_run(&b, 128, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(b.q), 128);
    line_close(&b);
    check_stored(r, 92, 2, "both");
    assert_int_equal(atomic_load(&r->n_warnings), 0);
}

/* A sequence may not evict chunks that waiting requests need. Its saving ends instead, with its own
 * reason. */
TEST_WITH(a_refused_save_has_a_reason_of_its_own, set_up, tear_down)
{
    struct rig *r = *state;
    struct line a, b;
    struct store_stats stats;
    struct saver_stats saved;
    line_open(&a, r, 93, "both", 0);
    line_run(&a, 128, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    store_stats(r->store, &stats);
    line_close(&a);
    close_saver(r);
    r->policy = PLACEMENT_OURS;
    open_saver(r, stats.used_bytes + stats.used_bytes / 4);
    line_open(&a, r, 93, "none", 0); /* only the line's keys are needed */
    assert_int_equal(store_expect_use(r->store, a.chain.keys, 2, 1), 2);
    line_open(&b, r, 94, "both", 0);
    line_run(&b, 128, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_ended(b.q), SAVE_END_REFUSED);
    saver_stats(r->saver, &saved);
    assert_int_equal(saved.n_ended[SAVE_END_REFUSED], 1);
    assert_int_equal(saved.n_ended[SAVE_END_CAP], 0);
    line_close(&b);
    store_expect_use_no_more(r->store, a.chain.keys, 2, 1);
    line_close(&a);
    check_stored(r, 93, 2, "both");
}

/* All sequences together exceed the cap. Even so a running sequence keeps every chunk that was
 * reported as committed. */
TEST_WITH(living_sequences_keep_what_they_were_told, set_up, tear_down)
{
    struct rig *r = *state;
    struct line a;
    struct store_stats stats;
    line_open(&a, r, 100, "both", 0);
    line_run(&a, 64, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    store_stats(r->store, &stats);
    line_close(&a);
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct line x[MAX_SEQS];
        struct rng g = {.s = seed};
        int64_t n_committed = 0;
        close_saver(r);
        open_saver(r, stats.used_bytes * 9 / 2); /* room for four of twelve chunks */
        for (int i = 0; i < MAX_SEQS; i++)
            line_open(&x[i], r, 200 + seed * 10 + (uint64_t)i, "both", 0);
        for (int step = 0; step < MAX_SEQS * 4; step++) {
            line_step(&x[rng_below(&g, MAX_SEQS)], 64, SAVE_WAIT);
            assert_int_equal(saver_flush(r->saver, NULL), 0);
            for (int i = 0; i < MAX_SEQS; i++) {
                struct store_hit hits[MAX_TOKENS / 64];
                int n = store_lookup(r->store, NULL, x[i].chain.keys, MAX_TOKENS / 64, hits,
                                     NULL, 0);
                store_release(r->store, hits, n);
                assert_true((int64_t)n * 64 >= save_committed_tokens(x[i].q));
                n_committed += save_committed_tokens(x[i].q);
            }
        }
        assert_true(n_committed > 0);
        for (int i = 0; i < MAX_SEQS; i++)
            line_close(&x[i]);
        store_stats(r->store, &stats);
        stats.used_bytes = stats.used_bytes / stats.n_chunks;
    }
}

/* --- what is reported ------------------------------------------------------------------------- */

static struct saver_stats told(const struct rig *r)
{
    struct saver_stats st;
    saver_stats(r->saver, &st);
    return st;
}

/* Saves a line of n tokens with its end. */
static void line_save_all(struct rig *r, uint64_t seed, const char *save, int n)
{
    struct line x;
    line_open(&x, r, seed, save, 0);
    line_run(&x, n, 64);
    save_idle(x.q, x.tokens, x.n, NULL);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(x.q), n);
    line_close(&x);
}

/* A chunk whose records are all stored is committed and counted, but not written. A chunk that
 * lacks one kind of record is written. */
TEST_WITH(stored_chunks_are_counted_and_not_written, set_up, tear_down)
{
    struct rig *r = *state;
    line_save_all(r, 5, "kv", 140);
    struct saver_stats first = told(r);
    assert_int_equal(first.n_chunks, 3);
    assert_int_equal(first.n_tails, 1);
    assert_int_equal(first.n_shared, 0);
    uint64_t bytes = appended_bytes(r);
    line_save_all(r, 5, "kv", 140);
    struct saver_stats again = told(r);
    assert_int_equal(again.n_chunks, 6);
    assert_int_equal(again.n_tails, 2);
    assert_int_equal(again.n_shared, 3);
    assert_int_equal(appended_bytes(r), bytes);
    line_save_all(r, 5, "both", 140);
    struct saver_stats more = told(r);
    assert_int_equal(more.n_chunks, 9);
    assert_int_equal(more.n_shared, 3);
    assert_true(appended_bytes(r) > bytes);
    check_stored(r, 5, 2, "both");
}

static uint64_t read_bytes(const struct rig *r)
{
    struct store_stats stats;
    store_stats(r->store, &stats);
    return stats.read_bytes;
}

/* The rows of a stored end are read for a chunk that lacks records, and not for one that another
 * sequence has stored meanwhile. */
TEST_WITH(a_stored_end_is_read_only_if_it_is_needed, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x, y;
    line_save_all(r, 5, "both", 70);
    line_open(&x, r, 5, "both", 70);
    line_open(&y, r, 5, "both", 70);
    uint64_t before = read_bytes(r);
    line_run(&x, 128, 58);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    uint64_t after = read_bytes(r);
    assert_true(after > before);
    line_run(&y, 128, 58);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(y.q), 128);
    assert_int_equal(read_bytes(r), after);
    assert_int_equal(told(r).n_shared, 1);
    line_close(&x);
    line_close(&y);
}

/* What an entry of the store says about one owner's chunks. */
struct seen {
    uint64_t owner;
    int n, n_partial, n_expiring;
    int64_t expires_wall_s;
};

static int see(void *arg, const struct store_entry *e)
{
    struct seen *x = arg;
    if (e->owner != x->owner)
        return 0;
    x->n++;
    x->n_partial += e->n_tokens < 64;
    x->n_expiring += e->expires_wall_s != 0;
    x->expires_wall_s = e->expires_wall_s;
    return 0;
}

static struct seen seen_of(const struct rig *r, uint64_t owner)
{
    struct seen x = {.owner = owner};
    assert_int_equal(store_each(r->store, see, &x, NULL), 0);
    return x;
}

/* Begins to save a line with an owner, an epoch and hints. */
static void line_save_for(struct line *x, const struct save_begin *how)
{
    struct save_policy policy;
    struct save_begin b = *how;
    assert_int_equal(save_policy_make(&policy, "both", x->r->m, NULL, MAX_TOKENS, NULL), 0);
    b.first_token = x->n;
    b.parent = chain_parent(&x->chain, (int)(x->n / 64));
    b.tail = &x->tail;
    b.policy = &policy;
    x->q = save_open(x->r->saver, &b);
    assert_non_null(x->q);
}

/* The chunks have the owner of their request, and expire when its hints say so. */
TEST_WITH(chunks_have_the_owner_and_the_hints_of_their_request, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x;
    assert_true(line_find(&x, r, 5, 0));
    line_save_for(&x, &(struct save_begin){.owner = 77, .use = {.ttl_s = 5000}});
    line_run(&x, 70, 70);
    save_idle(x.q, x.tokens, x.n, NULL);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    line_close(&x);
    line_save_all(r, 6, "both", 64);
    struct seen theirs = seen_of(r, 77), others = seen_of(r, 0);
    assert_int_equal(theirs.n, 2);
    assert_int_equal(theirs.n_partial, 1);
    assert_int_equal(theirs.n_expiring, 2);
    assert_in_range(theirs.expires_wall_s, clock_wall_s() + 4000, clock_wall_s() + 5000);
    assert_int_equal(others.n, 1);
    assert_int_equal(others.n_expiring, 0);
}

/* A context that was erased after its request began is not saved, and the reason is its own. */
TEST_WITH(a_context_erased_meanwhile_is_not_saved, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x, y;
    uint64_t before = store_epoch(r->store);
    store_refuse_former(r->store);
    assert_true(line_find(&x, r, 5, 0));
    line_save_for(&x, &(struct save_begin){.epoch = before});
    line_run(&x, 128, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_ended(x.q), SAVE_END_ERASED);
    assert_int_equal(save_committed_tokens(x.q), 0);
    assert_true(save_is_settled(x.q));
    line_close(&x);
    assert_int_equal(told(r).n_ended[SAVE_END_ERASED], 1);
    assert_true(line_find(&y, r, 5, 0));
    line_save_for(&y, &(struct save_begin){.epoch = store_epoch(r->store)});
    line_run(&y, 128, 64);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(save_committed_tokens(y.q), 128);
    line_close(&y);
    assert_int_equal(told(r).n_chunks, 2);
    assert_int_equal(told(r).n_ended[SAVE_END_ERASED], 1);
}

/* Many contexts continue a document. So its end stays when one of them has filled the chunk. */
TEST(the_end_of_a_document_stays)
{
    for (int is_document = 0; is_document < 2; is_document++) {
        struct rig r;
        struct line x;
        rig_open(&r, 0);
        assert_true(line_find(&x, &r, 5, 0));
        line_save_for(&x, &(struct save_begin){.is_document = is_document});
        line_run(&x, 70, 70);
        save_idle(x.q, x.tokens, x.n, NULL);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        line_close(&x);
        line_open(&x, &r, 5, "both", 70);
        line_run(&x, 128, 64);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        line_close(&x);
        assert_int_equal(seen_of(&r, 0).n, 2 + is_document);
        assert_int_equal(seen_of(&r, 0).n_partial, is_document);
        rig_close(&r);
    }
}

/* Every end of saving but the first two has a reason of its own. */
TEST(every_end_has_its_reason)
{
    assert_string_equal(save_end_text(SAVE_GOES_ON), "");
    for (int e = SAVE_GOES_ON + 1; e < SAVE_ENDS; e++) {
        const char *text = save_end_text((enum save_end)e);
        assert_true(strlen(text) > 20);
        for (int other = SAVE_GOES_ON + 1; other < e; other++)
            assert_string_not_equal(text, save_end_text((enum save_end)other));
    }
}

TEST(without_a_saver_nothing_is_saved)
{
    struct save_policy policy = {.kinds = {SAVE_KV}};
    const struct sha256 root = {{1}};
    const struct store_hit none = {0};
    struct save_begin b = {.parent = &root, .tail = &none, .policy = &policy};
    assert_null(save_open(NULL, &b));
    assert_int_equal(save_ended(NULL), SAVE_GOES_ON);
    assert_true(save_is_settled(NULL));
    assert_int_equal(save_committed_tokens(NULL), 0);
    assert_true(save_reserve(NULL, 0, 1, SAVE_TRY));
    save_advance(NULL, NULL, 64);
    save_idle(NULL, NULL, 64, NULL);
    save_stop(NULL);
    save_close(NULL);
    saver_destroy(NULL);
}

/* A chunk that continues a chunk which is not stored would never be found, so it is not saved. Its
 * sequence says why. */
TEST(a_chunk_without_its_parent_is_not_saved)
{
    for (int from = 64; from <= 128; from += 64) {
        struct rig r;
        struct line x;
        rig_open(&r, 0);
        if (from == 128)
            line_save_all(&r, 5, "both", 64);
        line_open(&x, &r, 5, "both", from);
        line_run(&x, 256, 64);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        assert_int_equal(save_ended(x.q), SAVE_END_PARENT);
        assert_int_equal(save_committed_tokens(x.q), from);
        assert_true(save_is_settled(x.q));
        assert_int_equal(told(&r).n_ended[SAVE_END_PARENT], 1);
        assert_int_equal(told(&r).n_chunks, from / 128);
        assert_int_equal(atomic_load(&r.n_warnings), 0);
        line_close(&x);
        check_stored(&r, 5, from / 128, "both");
        rig_close(&r);
    }
}

/* A saver counts the chunks that were handed over and those that are settled. */
TEST_WITH(marks_follow_the_chunks, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x;
    assert_int_equal(saver_mark(r->saver), 0);
    assert_true(saver_reached(r->saver, 0));
    assert_false(saver_reached(r->saver, 1));
    line_open(&x, r, 5, "both", 0);
    saver_hold_back(r->saver);
    line_run(&x, 64 * 3, 64);
    assert_int_equal(saver_mark(r->saver), 3);
    assert_int_equal(saver_settled(r->saver), 0);
    assert_false(save_is_settled(x.q));
    assert_false(saver_reached(r->saver, 1));
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_int_equal(saver_settled(r->saver), 3);
    assert_true(saver_reached(r->saver, 3));
    assert_false(saver_reached(r->saver, 4));
    assert_true(save_is_settled(x.q));
    line_close(&x);
}

/* The memory of a saver is that of its buffer, of a packed record and of a tail's record. The
 * buffer has room for at least one batch. */
TEST(the_memory_of_a_saver_is_counted)
{
    static const size_t asked[] = {1, 16 << 20};
    struct rig r;
    for (int i = 0; i < 2; i++) {
        rig_open_small(&r, asked[i], 0);
        size_t hidden = 64 * row_bytes(&r, STORE_HIDDEN), kv = 64 * row_bytes(&r, STORE_KV);
        size_t record = round_up(hidden > kv ? hidden : kv, STORE_ALIGN);
        size_t bound = told(&r).bound_bytes;
        assert_true(saver_bytes(r.saver) >= bound + kv + record);
        assert_true(saver_bytes(r.saver) < bound + kv + record + 2 * STORE_ALIGN);
        size_t chunk = (size_t)r.m->cfg.n_layers * (hidden + kv);
        assert_true(i == 0 ? bound > 4 * chunk && bound < 4 * (chunk + 2048)
                           : bound == asked[i]);
        rig_close(&r);
    }
}

/* The first of three chunks is written while more than half of the memory is taken, so it is stored
 * as it is. The idle writer packs it. Keys and values would save no block. */
TEST(an_idle_writer_packs_what_was_stored_as_it_is)
{
    struct rig r;
    struct line x;
    rig_open_small(&r, 1, 0);
    close_saver(&r);
    r.pack_idle_ns = 1;
    open_saver(&r, 0);
    line_open(&x, &r, 5, "both", 0);
    saver_hold_back(r.saver);
    line_run(&x, 3 * 64, 64);
    assert_int_equal(saver_flush(r.saver, NULL), 0);
    assert_int_equal(told(&r).n_packed, 2 * r.m->cfg.n_layers);
    while (told(&r).n_repacked < 1)
        clock_sleep_ns(1000000);
    line_close(&x);
    check_stored(&r, 5, 3, "both");
    rig_close(&r);
}

/* The smallest chunks fill the whole buffer. */
TEST(the_buffer_has_room_for_the_smallest_chunks)
{
    enum { MOST = 64 };
    struct rig r;
    struct line *hog = xcalloc(MOST, sizeof *hog);
    rig_open_small(&r, 1, 0);
    size_t record = 64 * row_bytes(&r, STORE_HIDDEN);
    int n = 0;
    do {
        line_open(&hog[n], &r, 50 + (uint64_t)n, "---H", 0);
        line_step(&hog[n], 1, SAVE_TRY);
    } while (save_ended(hog[n].q) == SAVE_GOES_ON && ++n < MOST);
    assert_true(n < MOST);
    struct saver_stats st = told(&r);
    assert_true(st.used_bytes <= st.bound_bytes);
    assert_true(st.used_bytes + record + 2048 > st.bound_bytes);
    for (int i = 0; i <= n; i++)
        line_close(&hog[i]);
    assert_int_equal(told(&r).used_bytes, 0);
    rig_close(&r);
    free(hog);
}

/* What is stopped gives its memory back, and saves nothing more of the open chunk. */
TEST_WITH(a_stopped_sequence_gives_its_memory_back, set_up, tear_down)
{
    struct rig *r = *state;
    struct line x;
    line_open(&x, r, 5, "both", 0);
    line_run(&x, 70, 70);
    assert_int_equal(saver_flush(r->saver, NULL), 0);
    assert_true(told(r).used_bytes > 0);
    save_stop(x.q);
    assert_int_equal(told(r).used_bytes, 0);
    assert_int_equal(save_committed_tokens(x.q), 64);
    line_close(&x);
}

TEST(the_kinds_of_a_chunk_are_letters)
{
    struct store_mask mask = {0};
    uint8_t kinds[5] = {9, 9, 9, 9, 9};
    store_mask_add(&mask, 1, STORE_HIDDEN);
    store_mask_add(&mask, 2, STORE_KV);
    store_mask_add(&mask, 3, STORE_HIDDEN);
    store_mask_add(&mask, 3, STORE_KV);
    store_mask_add(&mask, 4, STORE_KV);
    save_stored_kinds(&mask, 4, kinds);
    assert_int_equal(kinds[0], 0);
    assert_int_equal(kinds[1], SAVE_HIDDEN);
    assert_int_equal(kinds[2], SAVE_KV);
    assert_int_equal(kinds[3], SAVE_HIDDEN | SAVE_KV);
    assert_int_equal(kinds[4], 9);
}

/* Opens the rig's saver anew with a remote that has no threads. */
static struct remote *open_with_remote(struct rig *r, enum remote_when when)
{
    struct remote *remote = xcalloc(1, sizeof *remote);
    pthread_mutex_init(&remote->lock, NULL);
    clock_cond_init(&remote->for_writer);
    remote->offers = xcalloc(MAX_OFFERS, sizeof *remote->offers);
    remote->o.when = when;
    saver_destroy(r->saver);
    struct saver_opts o = {.store = r->store,
                           .model = r->m,
                           .fingerprint = r->fingerprint,
                           .buffer_bytes = r->buffer_bytes,
                           .max_batch_rows = MAX_ROWS,
                           .warn = warn,
                           .warn_arg = r,
                           .remote = remote};
    assert_int_equal(saver_create(&o, &r->saver, NULL), 0);
    return remote;
}

static void free_remote(struct remote *remote)
{
    pthread_mutex_destroy(&remote->lock);
    pthread_cond_destroy(&remote->for_writer);
    free(remote->offers);
    free(remote);
}

/* Full chunks are offered to the remote in their order: when they are committed, or when their
 * sequence has ended. A partial chunk is not offered. */
TEST(full_chunks_are_offered_in_time)
{
    enum { CHUNKS = 18 }; /* more than a sequence remembers at first */
    static const struct {
        enum remote_when when;
        uint32_t n_committed, n_ended;
    } cases[] = {{REMOTE_WHEN_COMMITTED, CHUNKS, CHUNKS},
                 {REMOTE_WHEN_ENDED, 0, CHUNKS},
                 {REMOTE_WHEN_USED, 0, 0}};
    for (int i = 0; i < 3; i++) {
        struct rig r;
        struct line x;
        rig_open(&r, 0);
        struct remote *remote = open_with_remote(&r, cases[i].when);
        assert_true(line_find(&x, &r, 5, 0));
        line_save_for(&x, &(struct save_begin){.use = {.ttl_s = 77}});
        line_run(&x, 64 * CHUNKS + 20, 64);
        save_idle(x.q, x.tokens, x.n, NULL);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        assert_int_equal(save_committed_tokens(x.q), 64 * CHUNKS + 20);
        assert_int_equal(remote->n_offers, cases[i].n_committed);
        struct sha256 keys[CHUNKS];
        memcpy(keys, x.chain.keys, sizeof keys);
        line_close(&x);
        assert_int_equal(remote->n_offers, cases[i].n_ended);
        for (uint32_t k = 0; k < remote->n_offers; k++) {
            assert_memory_equal(remote->offers[k].key.b, keys[k].b, sizeof keys[k].b);
            assert_int_equal(remote->offers[k].ttl_s, 77);
        }
        rig_close(&r);
        free_remote(remote);
    }
}

/* The header of a partial chunk has no tokens of a chunk that had the same memory before. */
TEST(a_partial_chunk_has_no_other_tokens)
{
    struct rig r;
    struct line x;
    struct store_reader *reader;
    struct parcel parcel = {0};
    struct chunk_header h;
    struct err err = {0};
    rig_open_small(&r, 1, 0);
    line_save_all(&r, 5, "both", 64 * 8); /* every chunk of the buffer was in use */
    line_save_all(&r, 6, "both", 20);
    line_open(&x, &r, 6, "none", 0);
    struct sha256 key = store_partial_key(chain_parent(&x.chain, 0), x.tokens, 20);
    assert_int_equal(store_reader_open(r.store, 4, NULL, 0, &reader, &err), 0);
    if (parcel_read(r.store, reader, &key, &parcel, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(parcel_check(parcel.bytes, parcel.n_bytes, &h, &err), 0);
    assert_int_equal(h.n_tokens, 20);
    assert_memory_equal(h.tokens, x.tokens, 20 * sizeof x.tokens[0]);
    for (int i = 20; i < 64; i++)
        assert_int_equal(h.tokens[i], 0);
    parcel_deinit(&parcel);
    store_reader_close(reader);
    line_close(&x);
    rig_close(&r);
}

/* A document is saved although waiting requests need the chunks that it evicts. */
TEST(a_document_is_not_refused)
{
    for (int is_document = 0; is_document < 2; is_document++) {
        struct rig r;
        struct line a, b;
        struct store_stats stats;
        rig_open(&r, 0);
        line_save_all(&r, 93, "both", 128);
        store_stats(r.store, &stats);
        close_saver(&r);
        r.policy = PLACEMENT_OURS;
        open_saver(&r, stats.used_bytes + stats.used_bytes / 4);
        line_open(&a, &r, 93, "none", 0);
        assert_int_equal(store_expect_use(r.store, a.chain.keys, 2, 1), 2);
        assert_true(line_find(&b, &r, 94, 0));
        line_save_for(&b, &(struct save_begin){.is_document = is_document});
        line_run(&b, 128, 64);
        assert_int_equal(saver_flush(r.saver, NULL), 0);
        assert_int_equal(save_ended(b.q), is_document ? SAVE_GOES_ON : SAVE_END_REFUSED);
        assert_int_equal(save_committed_tokens(b.q), is_document ? 128 : 0);
        line_close(&b);
        store_expect_use_no_more(r.store, a.chain.keys, 2, 1);
        line_close(&a);
        rig_close(&r);
    }
}

/* The writer leaves the processors to decodes: its priority is lower than that of this thread. */
TEST_WITH(the_writer_steps_back, set_up, tear_down)
{
    struct rig *r = *state;
    int own = getpriority(PRIO_PROCESS, 0), want = own < 10 ? 10 : own;
    line_save_all(r, 5, "both", 64); /* the thread has begun its work */
    assert_true(threads_at_nice(want) > 0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
}

/* --- main ------------------------------------------------------------------------------------- */
