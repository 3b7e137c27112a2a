/* test_restore.c - restores from a disk that flips bits, fails, tears writes and is slow.  The
 * tokens and logits always equal those of a run that was never evicted, and the reason is reported.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/step.h"
#include "engine/engine_impl.h"
#include "store/chain.h"
#include "restore/restore_impl.h"
#include "tests/engine/enginetest.h"

enum {
    N_CHUNKS = 9, /* more than the eight records of a group */
    N_PROMPT = N_CHUNKS * 64 + 13,
    N_GENERATE = 3,
};

static int32_t prompt[N_PROMPT];

static struct et_ask ask(const char *save, const char *plan)
{
    return (struct et_ask){.prompt = prompt,
                           .n_prompt = N_PROMPT,
                           .max_tokens = N_GENERATE,
                           .save = save,
                           .plan = plan};
}

/* Runs without a store. All other runs are compared with this one. */
static struct et_run never_evicted(void)
{
    struct stack k;
    struct et_run r;
    struct et_ask a = ask("none", "auto");
    et_prompt(prompt, N_PROMPT, 42);
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    assert_int_equal(et_run(&k, &a, &r), 0);
    stack_close(&k);
    return r;
}

/* A stack over a simulated disk that holds the whole context, with three staging slots. */
struct place {
    struct io *io;
    struct stack k;
    struct et_run ref;
};

static void place_reopen(struct place *p, int threads)
{
    struct stack_opts o = {.io = p->io,
                           .user.store = et_dirs,
                           .user.n_store = 2,
                           .user.threads = threads,
                           .user.no_reuse = true};
    et_open(&p->k, &o);
}

static void place_open(struct place *p, uint64_t seed, const char *save)
{
    struct et_run r;
    p->ref = never_evicted();
    p->io = et_disk(seed, 0);
    place_reopen(p, 2);
    struct et_ask a = ask(save, "recompute");
    assert_int_equal(et_run(&p->k, &a, &r), 0);
    et_same(&r, &p->ref, "the run that saves");
    assert_int_equal(r.committed, N_PROMPT + N_GENERATE - 1);
}

static void place_close(struct place *p)
{
    stack_close(&p->k);
    io_close(p->io);
}

static struct et_run restore(struct place *p, const char *save, const char *plan)
{
    struct et_run r;
    struct et_ask a = ask(save, plan);
    assert_int_equal(et_run(&p->k, &a, &r), 0);
    et_same(&r, &p->ref, plan);
    assert_true(r.n_cached % 64 == 0);
    return r;
}

static const char *const plans[] = {"kv",   "hidden",    "RHKK", "RRKK",
                                    "RKHK", "recompute", "auto"};
enum { N_PLANS = sizeof plans / sizeof plans[0] };

/* --- measuring ahead -------------------------------------------------------------------------- */

static void wait_found(struct restore_pipeline *rr, struct restore *r)
{
    while (restore_found(r) == NULL)
        restore_pipeline_wait(rr, 1000000);
}

/* The store's speed is measured before the first look-up. A restore that finds nothing reports the
 * measurement, too. */
TEST(the_store_is_measured_ahead)
{
    struct place p;
    struct restore_pipeline *rr;
    struct model_work *w;
    struct stream *s;
    place_open(&p, 5, "both");
    assert_int_equal(stream_create(p.k.dev, STREAM_COMPUTE, &s, NULL), 0);
    assert_int_equal(model_work_create(p.k.model, 512, &w, NULL), 0);
    struct restore_pipeline_opts o = {.model = p.k.model,
                                      .store = p.k.store,
                                      .pool = engine_pool(p.k.engine),
                                      .work = w,
                                      .stream = s,
                                      .fingerprint = p.k.fingerprint,
                                      .max_tokens = 64};
    struct sha256 root = store_root_key(&p.k.fingerprint, "nobody's"), key = root;
    struct restore_want want = {
        .root = &root, .keys = &key, .tokens = prompt, .n_tokens = 64, .measure_io = true};
    for (int ahead = 0; ahead < 2; ahead++) {
        struct store_stats before, after;
        store_stats(p.k.store, &before);
        assert_int_equal(restore_pipeline_create(&o, &rr, NULL), 0);
        if (ahead)
            restore_pipeline_measure(rr);
        /* its look-up may come before the measurement */
        struct restore *first = restore_find(rr, &want);
        wait_found(rr, first);
        struct restore *r = restore_find(rr, &want);
        wait_found(rr, r);
        const struct restore_found *f = restore_found(r);
        assert_int_equal(f->n_hits, 0);
        assert_int_equal(f->measured, ahead);
        assert_true(!ahead || f->tier.bytes_per_s > 0);
        store_stats(p.k.store, &after);
        assert_int_equal(after.n_hits, before.n_hits);
        restore_end(first);
        restore_end(r);
        restore_pipeline_destroy(rr);
    }
    model_work_destroy(w);
    stream_destroy(s);
    place_close(&p);
}

/* The store's speed must be measured on the chunks that were found, but they cannot be read. So the
 * look-up fails with the fault of the read, and nothing is restored. */
TEST(a_store_that_cannot_be_measured_is_not_used)
{
    struct place p;
    struct restore_pipeline *rr;
    struct model_work *w;
    struct stream *s;
    struct chain chain;
    struct err err = {0};
    place_open(&p, 6, "both");
    assert_int_equal(stream_create(p.k.dev, STREAM_COMPUTE, &s, &err), 0);
    assert_int_equal(model_work_create(p.k.model, 512, &w, &err), 0);
    struct restore_pipeline_opts o = {.model = p.k.model,
                                      .store = p.k.store,
                                      .pool = engine_pool(p.k.engine),
                                      .work = w,
                                      .stream = s,
                                      .max_tokens = N_PROMPT};
    chain_init(&chain, &p.k.fingerprint, NULL);
    chain_extend(&chain, prompt, N_PROMPT);
    struct restore_want want = {.root = &chain.root,
                                .keys = chain.keys,
                                .tokens = prompt,
                                .n_tokens = N_PROMPT - 1,
                                .measure_io = true};
    struct io_sim_fault f = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg-"};
    assert_int_equal(restore_pipeline_create(&o, &rr, &err), 0);
    for (int fails = 1; fails >= 0; fails--) {
        if (fails)
            assert_int_equal(io_sim_fault_add(p.io, &f), 0);
        else
            io_sim_fault_clear(p.io);
        struct restore *r = restore_find(rr, &want);
        wait_found(rr, r);
        assert_int_equal(restore_found(r)->err.code, fails ? -EIO : 0);
        assert_int_equal(restore_found(r)->n_hits, fails ? 0 : N_CHUNKS);
        assert_int_equal(restore_found(r)->measured, !fails);
        restore_end(r);
    }
    restore_pipeline_destroy(rr);
    chain_deinit(&chain);
    model_work_destroy(w);
    stream_destroy(s);
    place_close(&p);
}

/* --- a restore, item by item ------------------------------------------------------------------ */

enum { N_LAYERS = 4, MAX_ROWS = GROUP_ROWS };

/* A restore pipeline beside the engine's, and blocks for the context. */
struct bench {
    struct place p;
    struct restore_pipeline *rr;
    struct model_work *work;
    struct stream *stream;
    struct kv_table table;
    struct chain chain;
    struct plan plan;
};

static void bench_open_with(struct bench *b, uint64_t seed, size_t staging_bytes)
{
    *b = (struct bench){0};
    place_open(&b->p, seed, "both");
    assert_int_equal(stream_create(b->p.k.dev, STREAM_COMPUTE, &b->stream, NULL), 0);
    assert_int_equal(model_work_create(b->p.k.model, MAX_ROWS, &b->work, NULL), 0);
    struct kv_pool *pool = b->p.k.engine->shared.pool;
    struct restore_pipeline_opts o = {.model = b->p.k.model,
                                      .store = b->p.k.store,
                                      .pool = pool,
                                      .work = b->work,
                                      .stream = b->stream,
                                      .staging_bytes = staging_bytes,
                                      .max_tokens = N_PROMPT};
    assert_int_equal(restore_pipeline_create(&o, &b->rr, NULL), 0);
    assert_int_equal(kv_table_reserve(pool, &b->table, N_CHUNKS * 64, NULL), 0);
    chain_init(&b->chain, &b->p.k.fingerprint, NULL);
    chain_extend(&b->chain, prompt, N_PROMPT);
}

/* Opens a bench with the least staging memory: three slots. */
static void bench_open(struct bench *b, uint64_t seed)
{
    bench_open_with(b, seed, 0);
}

static void bench_close(struct bench *b)
{
    restore_pipeline_destroy(b->rr);
    kv_table_free(b->p.k.engine->shared.pool, &b->table);
    chain_deinit(&b->chain);
    model_work_destroy(b->work);
    stream_destroy(b->stream);
    place_close(&b->p);
}

/* Starts a restore of chunks [first, N_CHUNKS). `methods` has a letter per layer. takes_kv is as in
 * restore_job. */
static struct restore *begin_at(struct bench *b, const char *methods, int first,
                                const bool *takes_kv)
{
    struct restore_want want = {.root = &b->chain.root,
                                .keys = b->chain.keys,
                                .tokens = prompt,
                                .n_tokens = N_PROMPT - 1};
    struct restore *r = restore_find(b->rr, &want);
    wait_found(b->rr, r);
    assert_int_equal(restore_found(r)->n_hits, N_CHUNKS);
    b->plan = (struct plan){.n_layers = N_LAYERS, .mode = PLAN_FORCED_LAYERS};
    memcpy(b->plan.method, methods, N_LAYERS);
    struct restore_job job = {.first_chunk = first,
                              .n_chunks = N_CHUNKS,
                              .tokens = prompt,
                              .table = &b->table,
                              .plan = &b->plan,
                              .takes_kv = takes_kv};
    restore_start(r, &job);
    return r;
}

static struct restore *begin(struct bench *b, const char *methods)
{
    return begin_at(b, methods, 0, NULL);
}

static void finish(struct bench *b, struct restore *r)
{
    while (!restore_is_done(r))
        if (!restore_pipeline_work(b->rr, RESTORE_NO_LIMIT))
            restore_pipeline_wait(b->rr, 1000000);
}

static struct restore_result result_of(struct restore *r)
{
    struct restore_result out;
    assert_int_equal(restore_result_of(r, &out, NULL), 0);
    return out;
}

/* A race counts the chunks of a piece when the piece's last layer is computed. From then on the
 * I/O thread does not read these chunks. They count as restored even if the restore gives its
 * reads up. */
TEST(a_race_counts_a_piece_at_its_end)
{
    enum { FIRST = MAX_ROWS / 64 }; /* chunks of the first piece */
    struct bench b;
    bench_open(&b, 12);
    struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg-"};
    for (int stops = 1; stops >= 0; stops--) {
        assert_int_equal(io_sim_fault_add(b.p.io, &stuck), 0);
        struct restore *r = begin(&b, "KKKK");
        assert_int_equal(restore_race_row(r), 0);
        assert_true(restore_race(r));
        assert_false(restore_race(r)); /* the restore races already */
        for (int i = 0; i < N_LAYERS; i++) {
            assert_int_equal(shared_load(&r->n_raced), 0);
            assert_int_equal(restore_race_row(r), 0);
            assert_true(restore_pipeline_work(b.rr, RESTORE_NO_LIMIT));
        }
        assert_int_equal(shared_load(&r->n_raced), FIRST);
        assert_int_equal(restore_race_row(r), FIRST * 64);
        assert_false(restore_is_done(r));
        if (stops)
            restore_stop(r, "the reads are left");
        for (int i = 0; i < N_LAYERS && !stops; i++)
            assert_true(restore_pipeline_work(b.rr, RESTORE_NO_LIMIT));
        assert_true(restore_is_done(r));
        assert_int_equal(shared_load(&r->n_raced), stops ? FIRST : N_CHUNKS);
        struct restore_result out = result_of(r);
        assert_int_equal(out.n_chunks, stops ? FIRST : N_CHUNKS);
        assert_int_equal(out.n_tokens, out.n_chunks * 64);
        assert_int_equal(out.raced_layers, N_LAYERS);
        assert_int_equal(out.won, !stops);
        assert_string_equal(out.fault, stops ? "the reads are left" : "");
        assert_int_equal(out.n_by_method[0], out.n_chunks * N_LAYERS);
        assert_int_equal(out.n_by_method[1] + out.n_by_method[2], 0);
        assert_int_equal(out.read_bytes, 0);
        restore_end(r);
        io_sim_fault_clear(b.p.io);
        io_sim_unstick(b.p.io);
    }
    bench_close(&b);
}

/* An event ends the I/O thread's wait for a disk that hangs. So a look-up after a stuck read is
 * served at once, and not at the end of that wait, which lasts a tenth of a second. The first
 * look-up may come before the wait. */
TEST(a_look_up_does_not_wait_for_a_stuck_read)
{
    enum { N = 8 };
    struct bench b;
    bench_open(&b, 14);
    struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(b.p.io, &stuck), 0);
    struct restore *reads = begin(&b, "KKKK");
    struct restore_want want = {.root = &b.chain.root,
                                .keys = b.chain.keys,
                                .tokens = prompt,
                                .n_tokens = N_PROMPT - 1};
    int64_t least_ns = INT64_MAX;
    for (int i = 0; i < N; i++) {
        int64_t begin_ns = clock_now_ns();
        struct restore *r = restore_find(b.rr, &want);
        wait_found(b.rr, r);
        int64_t ns = clock_now_ns() - begin_ns;
        least_ns = i > 0 && ns < least_ns ? ns : least_ns;
        restore_end(r);
    }
    assert_true(least_ns < 50000000);
    io_sim_fault_clear(b.p.io);
    io_sim_unstick(b.p.io);
    finish(&b, reads);
    assert_int_equal(result_of(reads).n_chunks, N_CHUNKS);
    restore_end(reads);
    bench_close(&b);
}

/* Returns the letters of the layers that have spans in a trace, '-' for a layer without one. Checks
 * that no two spans overlap and that all lie within the restore. */
static const char *layers_of(const struct restore_trace *t, int64_t t_start)
{
    static char text[N_LAYERS + 1];
    int64_t end_ns = t_start;
    memset(text, '-', N_LAYERS);
    for (int i = 0; i < t->n; i++) {
        const struct restore_span *x = &t->span[i];
        assert_true(x->start_ns >= end_ns && x->end_ns > x->start_ns);
        end_ns = x->end_ns;
        assert_in_range(x->layer, 0, N_LAYERS - 1);
        text[x->layer] = x->method;
    }
    assert_true(end_ns <= clock_now_ns());
    return text;
}

/* The result counts the bytes that were read and the chunks of each method. Its times lie within
 * the time of the restore. */
TEST(the_result_counts_what_was_done)
{
    struct bench b;
    bench_open(&b, 13);
    static const struct {
        const char *methods;
        /* number of layers of each method; hidden states of layer 0 are not read */
        int n_r, n_h, n_k;
        const char *computed, *read; /* the layers in the traces of the lanes */
    } cases[] = {{"KKKK", 0, 0, 4, "KKKK", "KKKK"},
                 {"HHHH", 1, 3, 0, "RHHH", "-HHH"},
                 {"RRHK", 2, 1, 1, "RRHK", "--HK"},
                 {"RRRR", 4, 0, 0, "RRRR", "----"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t t0 = clock_now_ns();
        struct restore *r = begin(&b, cases[i].methods);
        int n_items = 0;
        while (!restore_is_done(r)) {
            if (restore_pipeline_work(b.rr, RESTORE_NO_LIMIT)) {
                n_items++;
                assert_true(restore_pipeline_cost_ns(b.rr) > 0);
            } else {
                restore_pipeline_wait(b.rr, 1000000);
            }
        }
        struct restore_result out = result_of(r);
        int64_t ns = clock_now_ns() - t0;
        const struct model *m = b.rr->o.model;
        const size_t bytes[] = {record_bytes(m, 0, STORE_HIDDEN),
                                record_bytes(m, 0, STORE_KV)};
        assert_int_equal(out.n_chunks, N_CHUNKS);
        assert_int_equal(out.n_tokens, N_CHUNKS * 64);
        assert_int_equal(out.first_token, 0);
        assert_int_equal(out.n_by_method[0], cases[i].n_r * N_CHUNKS);
        assert_int_equal(out.n_by_method[1], cases[i].n_h * N_CHUNKS);
        assert_int_equal(out.n_by_method[2], cases[i].n_k * N_CHUNKS);
        assert_int_equal(out.read_bytes,
                         N_CHUNKS * ((size_t)cases[i].n_h * bytes[STORE_HIDDEN] +
                                     (size_t)cases[i].n_k * bytes[STORE_KV]));
        assert_int_equal(out.dram_bytes, 0);
        assert_int_equal(out.dram_tokens, 0);
        assert_int_equal(out.direct_bytes, 0);
        assert_int_equal(out.raced_layers, 0);
        assert_true(n_items > 0 && out.compute_ns > 0 && out.compute_ns < out.total_ns);
        assert_true(out.total_ns < ns && out.io_ns >= 0 && out.io_ns < out.total_ns);
        assert_true((out.io_ns > 0) == (out.read_bytes > 0));
        assert_true(out.wait_ns >= 0 && out.wait_ns + out.compute_ns < out.total_ns);
        assert_true(out.bubble == restore_bubble(&out, out.total_ns));
        for (int j = 0; j < 3; j++)
            assert_true(out.n_by_method[j] == 0 || b.rr->row_ns[j] > 0);
        assert_true(b.rr->row_ns[0] < (double)ns && b.rr->row_ns[1] < (double)ns);
        static struct restore_trace io, compute;
        int64_t t_start;
        restore_trace_of(r, &io, &compute, &t_start);
        assert_in_range(t_start, t0, t0 + ns);
        assert_string_equal(layers_of(&compute, t_start), cases[i].computed);
        assert_string_equal(layers_of(&io, t_start), cases[i].read);
        restore_end(r);
    }
    bench_close(&b);
}

/* Chunks in DRAM are restored from keys and values, whatever the plan says. The count begins at the
 * first chunk that is restored. */
TEST(chunks_in_dram_take_keys_and_values)
{
    enum { FIRST = 2, N_REST = N_CHUNKS - FIRST };
    static const bool takes_kv[N_REST] = {true, true, false, false, true};
    struct bench b;
    bench_open(&b, 14);
    struct restore *r = begin_at(&b, "RHHK", FIRST, takes_kv);
    finish(&b, r);
    struct restore_result out = result_of(r);
    const struct model *m = b.rr->o.model;
    const size_t bytes[] = {record_bytes(m, 0, STORE_HIDDEN), record_bytes(m, 0, STORE_KV)};
    int n_kv = 3, n_h = N_REST - n_kv;
    assert_int_equal(out.n_chunks, N_CHUNKS);
    assert_int_equal(out.n_by_method[0], N_REST);
    assert_int_equal(out.n_by_method[1], 2 * n_h);
    assert_int_equal(out.n_by_method[2], 2 * n_kv + N_REST);
    assert_int_equal(out.read_bytes, (size_t)(2 * n_h) * bytes[STORE_HIDDEN] +
                                         (size_t)(2 * n_kv + N_REST) * bytes[STORE_KV]);
    for (int c = FIRST; c < N_CHUNKS; c++)
        for (int l = 1; l < 3; l++)
            assert_int_equal(restore_method_of(r, l, c), takes_kv[c - FIRST] ? 'K' : 'H');
    restore_end(r);
    bench_close(&b);
}

static bool all_have_arrived(struct restore_pipeline *rr, struct restore *r)
{
    pthread_mutex_lock(&rr->lock);
    bool all = r->n_in_flight == 0 && !restore_reads_remain(r);
    pthread_mutex_unlock(&rr->lock);
    return all;
}

/* If the kinds of records alternate between chunks, every chunk of a layer is a group of its own.
 * Threads are woken once for many groups: 29 groups take at most six work items. */
TEST(short_groups_are_computed_together)
{
    static const bool takes_kv[N_CHUNKS] = {true,  false, true,  false, true,
                                            false, true,  false, true};
    struct bench b;
    int n_items = 0, n_kv = 5, n_h = N_CHUNKS - n_kv;
    bench_open_with(&b, 15, (size_t)64 << 20);
    struct restore *r = begin_at(&b, "KHHH", 0, takes_kv);
    while (!all_have_arrived(b.rr, r))
        restore_pipeline_wait(b.rr, 1000000);
    while (!restore_is_done(r))
        n_items += restore_pipeline_work(b.rr, RESTORE_NO_LIMIT);
    assert_true(n_items <= 6);
    struct restore_result out = result_of(r);
    assert_int_equal(out.n_chunks, N_CHUNKS);
    assert_int_equal(out.n_by_method[1], 3 * n_h);
    assert_int_equal(out.n_by_method[2], 3 * n_kv + N_CHUNKS);
    restore_end(r);
    bench_close(&b);
}

/* Rows that a race has recomputed need no records, so bad ones lose nothing. */
TEST(records_of_recomputed_rows_are_not_looked_at)
{
    for (int n_raced = 0; n_raced < 2; n_raced++) {
        struct bench b;
        bench_open_with(&b, 22, (size_t)64 << 20);
        struct restore *r = begin(&b, "KKKK");
        while (!all_have_arrived(b.rr, r))
            restore_pipeline_wait(b.rr, 1000000);
        struct group *g = b.rr->ready.first;
        int chunk = g->first_chunk;
        g->reads[0].status = -ENOMEM;
        r->n_raced = n_raced == 0 ? chunk : chunk + 1;
        assert_true(restore_pipeline_work(b.rr, RESTORE_NO_LIMIT));
        assert_int_equal(r->n_good, n_raced == 0 ? chunk : N_CHUNKS);
        restore_end(r);
        bench_close(&b);
    }
}

/* --- what fits a budget ----------------------------------------------------------------------- */

static void wait_arrived(struct bench *b, struct restore *r)
{
    while (!all_have_arrived(b->rr, r))
        restore_pipeline_wait(b->rr, 1000000);
}

/* Does one item with room for this many rows of each method. Returns the rows that it did. */
static int64_t rows_of_item(struct bench *b, struct restore *r, int method, double n_rows)
{
    int64_t before = r->rows_by_method[method];
    for (int i = 0; i < 3; i++)
        b->rr->row_ns[i] = i == method ? 1000 : 1;
    assert_true(restore_pipeline_work(b->rr, (int64_t)(n_rows * 1000)));
    return r->rows_by_method[method] - before;
}

/* An item takes as many whole chunks of K and V as fit its budget, and at least one. */
TEST(a_budget_bounds_the_chunks_of_an_item)
{
    static const struct {
        double budget;
        int rows;
    } cases[] = {{200, 192},  {0, 64},    {63.9, 64}, {128, 128},
                 {127.9, 64}, {600, 576}, {-5, 64}};
    struct bench b;
    bench_open_with(&b, 16, (size_t)64 << 20);
    struct restore *r = begin(&b, "KKKK");
    wait_arrived(&b, r);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(rows_of_item(&b, r, 2, cases[i].budget), cases[i].rows);
    b.rr->row_ns[2] = 0; /* nothing is known */
    int64_t before = r->rows_by_method[2];
    assert_true(restore_pipeline_work(b.rr, 1000000000));
    assert_int_equal(r->rows_by_method[2] - before, 64);
    finish(&b, r);
    assert_int_equal(result_of(r).n_chunks, N_CHUNKS);
    assert_int_equal(r->rows_by_method[2], 4 * N_CHUNKS * 64);
    restore_end(r);
    bench_close(&b);
}

/* An item takes as many rows of hidden states as fit its budget, in steps of 16. */
TEST(a_budget_bounds_the_hidden_rows_of_an_item)
{
    struct bench b;
    bench_open_with(&b, 17, (size_t)64 << 20);
    struct restore *r = begin(&b, "RHHH");
    wait_arrived(&b, r);
    assert_int_equal(rows_of_item(&b, r, 1, 100), 96);
    assert_int_equal(rows_of_item(&b, r, 1, 15), 16);
    assert_int_equal(rows_of_item(&b, r, 1, 0), 16);
    /* with 32 rows left of a chunk, the rest comes from the next one */
    assert_int_equal(rows_of_item(&b, r, 1, 130), 128);
    finish(&b, r);
    assert_int_equal(result_of(r).n_chunks, N_CHUNKS);
    assert_int_equal(r->rows_by_method[1], 3 * N_CHUNKS * 64);
    restore_end(r);
    bench_close(&b);
}

/* A piece of recomputation has as many rows as fit the budget of one layer, in steps of 16, and at
 * least 16. All layers of the piece have these rows. */
TEST(a_budget_bounds_a_piece)
{
    static const struct {
        double budget;
        int rows;
    } cases[] = {{100, 96}, {1, 16}, {-1, 16}, {1000000, N_CHUNKS * 64 - 96 - 16 - 16}};
    struct bench b;
    bench_open(&b, 18);
    struct restore *r = begin(&b, "RRRR");
    int row = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int rows = cases[i].rows < MAX_ROWS ? cases[i].rows : MAX_ROWS;
        for (int l = 0; l < N_LAYERS; l++) {
            assert_int_equal(r->re.row, row);
            assert_int_equal(rows_of_item(&b, r, 0, cases[i].budget), rows);
            assert_int_equal(b.rr->recomputing == r, l < N_LAYERS - 1);
        }
        row += rows;
    }
    assert_true(restore_is_done(r));
    restore_end(r);
    bench_close(&b);
}

/* The rate of a method follows its items slowly. An item that takes more than twice as long as
 * usual counts as twice as long. */
TEST(one_stall_changes_no_rate)
{
    struct bench b;
    bench_open_with(&b, 19, (size_t)64 << 20);
    double *rate = &b.rr->row_ns[2];
    struct restore *r = begin(&b, "KKKK");
    wait_arrived(&b, r);
    *rate = 0;
    assert_true(restore_pipeline_work(b.rr, 0));
    assert_true(*rate > 0 && *rate == (double)restore_pipeline_cost_ns(b.rr) / 64);
    *rate = 1e-3; /* any real item is slower than that */
    assert_true(restore_pipeline_work(b.rr, 0));
    assert_int_equal(restore_pipeline_cost_ns(b.rr), 0);
    assert_true(*rate > 1.0624e-3 && *rate < 1.0626e-3);
    *rate = 1e12; /* any real item is quicker than that */
    assert_true(restore_pipeline_work(b.rr, 0));
    double per_row = (double)restore_pipeline_cost_ns(b.rr) / 64;
    assert_true(per_row > 0 && per_row < 1e12);
    assert_true(*rate == 1e12 + (per_row - 1e12) / 16);
    restore_end(r);
    bench_close(&b);
}

/* --- a whole restore -------------------------------------------------------------------------- */

TEST(a_restore_of_pinned_chunks_runs_to_its_end)
{
    struct bench b;
    struct store_hit hits[N_CHUNKS];
    struct restore_result out;
    bench_open(&b, 20);
    int n = store_lookup(b.p.k.store, NULL, b.chain.keys, N_CHUNKS, hits, NULL, 0);
    assert_int_equal(n, N_CHUNKS);
    b.plan = (struct plan){.n_layers = N_LAYERS, .mode = PLAN_FORCED_LAYERS};
    memcpy(b.plan.method, "RHKK", N_LAYERS);
    struct restore_job job = {.hits = hits,
                              .n_chunks = N_CHUNKS,
                              .tokens = prompt,
                              .table = &b.table,
                              .plan = &b.plan};
    assert_int_equal(restore_run(b.rr, &job, &out, NULL), 0);
    assert_int_equal(out.n_chunks, N_CHUNKS);
    assert_int_equal(out.n_by_method[0], N_CHUNKS);
    assert_int_equal(out.n_by_method[1], N_CHUNKS);
    assert_int_equal(out.n_by_method[2], 2 * N_CHUNKS);
    assert_string_equal(out.fault, "");
    assert_null(b.rr->runs);
    store_release(b.p.k.store, hits, n);
    bench_close(&b);
}

/* A pipeline needs a descriptor for its alarm. Without one it is not created, and nothing is
 * left. */
TEST(a_pipeline_needs_a_descriptor)
{
    struct bench b;
    struct restore_pipeline *rr = NULL;
    struct rlimit before, none;
    struct err err = {0};
    bench_open(&b, 21);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = restore_pipeline_create(&b.rr->o, &rr, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, -EMFILE);
    assert_null(rr);
    assert_true(err.msg[0] != 0);
    bench_close(&b);
}

/* What the user has asked for, and this device cannot do, is refused when the pipeline is made. */
TEST(a_pipeline_refuses_what_its_device_cannot_do)
{
    struct bench b;
    bench_open(&b, 22);
    struct restore_pipeline_opts o = b.rr->o;
    for (int i = 0; i < 2; i++) {
        struct restore_pipeline *rr = NULL;
        struct err err = {0};
        b.p.k.dev->checksums = i == 0 ? CHECKSUMS_DEVICE : CHECKSUMS_AUTO;
        o.direct = i == 0 ? RESTORE_DIRECT_OFF : RESTORE_DIRECT_ON;
        assert_int_equal(restore_pipeline_create(&o, &rr, &err),
                         i == 0 ? ERR_USAGE : ERR_UNSUPPORTED);
        assert_null(rr);
        assert_non_null(strstr(err.msg, i == 0 ? "--checksums device" : "gpu-direct on"));
    }
    bench_close(&b);
}

/* --- sound disks ------------------------------------------------------------------------------ */

TEST(every_plan_through_three_slots)
{
    struct place p;
    place_open(&p, 1, "both");
    for (int i = 0; i < N_PLANS; i++) {
        struct et_run r = restore(&p, "none", plans[i]);
        bool recomputed = strcmp(plans[i], "recompute") == 0;
        assert_int_equal(r.n_cached, recomputed ? 0 : N_CHUNKS * 64);
        if (!recomputed) {
            int *n = r.restore.n_by_method;
            assert_int_equal(n[0] + n[1] + n[2], 4 * N_CHUNKS);
            assert_string_equal(r.restore.fault, "");
            assert_string_equal(r.miss, "complete");
            /* This run saves nothing ("none"), but the store has the context already. */
            assert_int_equal(r.committed, N_CHUNKS * 64);
        }
    }
    place_close(&p);
}

TEST(slow_disk)
{
    struct place p;
    place_open(&p, 2, "both");
    struct io_sim_fault slow = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_READ, .path = "seg-", .slow_ns = 500000};
    assert_int_equal(io_sim_fault_add(p.io, &slow), 0);
    assert_int_equal(restore(&p, "none", "RHKK").n_cached, N_CHUNKS * 64);
    place_close(&p);
}

/* --- bad records ------------------------------------------------------------------------------ */

/* A single read returns bad bytes. The chunks before it are restored, and the bad chunk is
 * condemned. The next run restores up to that chunk. A run that saves writes it again. */
static void one_fault(enum io_sim_fault_kind kind, int code, uint64_t seed)
{
    struct place p;
    struct rng g = {.s = seed};
    place_open(&p, seed, "both");
    const char *plan = plans[rng_below(&g, 5)];
    struct io_sim_fault f = {.kind = kind,
                             .on = IO_SIM_ON_READ,
                             .path = "seg-",
                             .skip = rng_below(&g, N_CHUNKS),
                             .count = 1,
                             .code = code};
    assert_int_equal(io_sim_fault_add(p.io, &f), 0);
    struct et_run r = restore(&p, "none", plan);
    io_sim_fault_clear(p.io);
    if (r.n_cached == N_CHUNKS * 64)
        fail_msg("seed %d: the fault was not met", (int)seed);
    int bad = r.n_cached / 64, named = -1;
    if (sscanf(r.miss, "chunk %d: ", &named) != 1 || named != bad)
        fail_msg("%d chunks came back, but: %s", bad, r.miss);
    struct store_stats stats;
    store_stats(p.k.store, &stats);
    assert_int_equal(stats.n_corrupt, 1);
    assert_int_equal(r.committed, bad * 64);

    r = restore(&p, "none", plan);
    assert_int_equal(r.n_cached, bad * 64);
    assert_non_null(strstr(r.miss, "damaged"));
    r = restore(&p, "both", plan);
    assert_int_equal(r.n_cached, bad * 64);
    assert_int_equal(r.committed, N_PROMPT + N_GENERATE - 1);
    r = restore(&p, "none", plan);
    assert_int_equal(r.n_cached, N_CHUNKS * 64);
    place_close(&p);
}

TEST(flipped_bits)
{
    for (uint64_t seed = 0; seed < 8; seed++)
        one_fault(IO_SIM_READ_FLIP, 0, 100 + seed);
}

TEST(failed_reads)
{
    for (uint64_t seed = 0; seed < 8; seed++)
        one_fault(IO_SIM_FAIL, -EIO, 200 + seed);
}

/* Many reads fail, on all layers and staging slots. Then the whole disk fails. */
TEST(a_storm)
{
    struct place p;
    place_open(&p, 5, "both");
    for (int i = 0; i < 12; i++) {
        struct io_sim_fault f = {.kind = i % 2 ? IO_SIM_FAIL : IO_SIM_READ_FLIP,
                                 .on = IO_SIM_ON_READ,
                                 .path = "seg-",
                                 .chance = i < 8 ? 0.05 : 0.5};
        assert_int_equal(io_sim_fault_add(p.io, &f), 0);
        struct et_run r = restore(&p, "both", plans[i % 5]);
        io_sim_fault_clear(p.io);
        assert_int_equal(r.committed, N_PROMPT + N_GENERATE - 1);
    }
    assert_int_equal(restore(&p, "none", "kv").n_cached, N_CHUNKS * 64);
    struct io_sim_fault f = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(p.io, &f), 0);
    struct et_run r = restore(&p, "none", "hidden");
    assert_int_equal(r.n_cached, 0);
    assert_int_equal(r.plan.n_layers, 0); /* nothing was restored, so no plan is reported */
    place_close(&p);
}

/* A read that fails for lack of memory or power says nothing about the bytes, so it condemns no
 * chunk. */
TEST(trouble_of_the_moment)
{
    static const int code[] = {-ENOMEM, ERR_CRASHED};
    struct place p;
    place_open(&p, 6, "both");
    for (int i = 0; i < 2; i++) {
        struct io_sim_fault f = {.kind = IO_SIM_FAIL,
                                 .on = IO_SIM_ON_READ,
                                 .path = "seg-",
                                 .skip = 5,
                                 .code = code[i]};
        assert_int_equal(io_sim_fault_add(p.io, &f), 0);
        struct et_run r = restore(&p, "none", "kv");
        io_sim_fault_clear(p.io);
        assert_true(r.n_cached < N_CHUNKS * 64);
        assert_int_equal(restore(&p, "none", "kv").n_cached, N_CHUNKS * 64);
    }
    place_close(&p);
}

/* The medium itself is damaged, so a restart does not mend it. */
TEST(damaged_medium)
{
    struct place p;
    struct rng g = {.s = 11};
    for (int i = 0; i < 4; i++) {
        place_open(&p, 300 + (uint64_t)i, "both");
        stack_close(&p.k);
        uint64_t size = 0;
        struct io_stat st;
        char path[64];
        snprintf(path, sizeof path, "%s/seg-000000.hc", et_dirs[rng_below(&g, 2)]);
        assert_int_equal(io_stat(p.io, path, &st, NULL), 0);
        size = st.size_bytes;
        for (int j = 0; j < 20; j++)
            (void)io_sim_flip(p.io, path, rng_below(&g, size), (unsigned)rng_below(&g, 8));
        place_reopen(&p, 1);
        for (int j = 0; j < 5; j++)
            (void)restore(&p, "none", plans[j]);
        /* Each restore finds the first bad chunk only; later restores find the next ones. */
        for (int j = 0; j < 2 * N_CHUNKS; j++)
            (void)restore(&p, "both", j % 2 == 0 ? "hidden" : "kv");
        struct et_run r = restore(&p, "both", "kv");
        assert_int_equal(r.committed, N_PROMPT + N_GENERATE - 1);
        assert_int_equal(restore(&p, "none", "hidden").n_cached, N_CHUNKS * 64);
        place_close(&p);
    }
}

/* The disk loses power while the engine runs; every run still gives the right tokens. */
TEST(the_disk_dies)
{
    struct place p;
    place_open(&p, 7, "both");
    io_sim_crash(p.io);
    struct et_run r = restore(&p, "both", "kv");
    assert_int_equal(r.n_cached, 0);
    assert_true(r.miss[0] != 0);
    r = restore(&p, "both", "hidden");
    stack_close(&p.k);
    io_sim_restart(p.io);
    place_reopen(&p, 2);
    assert_int_equal(restore(&p, "none", "hidden").n_cached, N_CHUNKS * 64);
    place_close(&p);
}

/* --- records that do not fit the plan --------------------------------------------------------- */

/* A store has records of another size under the same keys. Such a record is refused before it can
 * overrun a staging slot. */
TEST(records_of_another_size)
{
    static const uint32_t sizes[] = {64, 64 * 64 * 4 - 4096, 4u << 20};
    for (int i = 0; i < 3; i++) {
        struct place p;
        place_open(&p, 400 + (uint64_t)i, "hidden");
        struct chain c;
        uint8_t *bytes = calloc(1, sizes[i]);
        chain_init(&c, &p.k.fingerprint, "other tenant");
        chain_extend(&c, prompt, N_PROMPT);
        struct store_record rec[4];
        for (int l = 0; l < 4; l++)
            rec[l] = (struct store_record){
                .layer = l, .kind = STORE_KV, .bytes = bytes, .n_bytes = sizes[i]};
        struct store_chunk chunk = {.key = c.keys[0],
                                    .parent = c.root,
                                    .fingerprint = p.k.fingerprint,
                                    .records = rec,
                                    .n_records = 4};
        memcpy(chunk.tokens, prompt, sizeof chunk.tokens);
        assert_int_equal(store_append(p.k.store, &chunk, NULL), 0);
        assert_int_equal(store_commit(p.k.store, NULL), 0);
        struct et_run r;
        struct et_ask a = ask("none", "kv");
        a.salt = "other tenant";
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        et_same(&r, &p.ref, "other sizes");
        assert_int_equal(r.n_cached, 0);
        /* The records of the other sizes are gone, so the right ones can be saved. */
        struct store_hit hit = {0};
        if (store_pin(p.k.store, &c.keys[0], &hit)) {
            assert_false(store_mask_has(&hit.mask, 0, STORE_KV));
            store_release(p.k.store, &hit, 1);
        }
        chain_deinit(&c);
        free(bytes);
        place_close(&p);
    }
}
