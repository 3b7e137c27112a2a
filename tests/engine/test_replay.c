/* test_replay.c - truncated contexts that are computed again, stair by stair, because their store
 * does not answer, is slower than computing, or has lost a chunk. Each row is computed once, and
 * the bits are those of the original computation. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"
#include "engine/engine_impl.h"
#include "engine/view.h"
#include "store/chain.h"
#include "save/saver.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

/* The text has nine stairs after the first. Requests ask for its last MORE tokens, which cover two
 * stairs. */
enum { N_PROMPT = 200, N_ALL = 256 + 64 * 9 - 5, MORE = 100, N_ASKED = N_ALL + 1 - MORE };

static const struct truncation small = {.context = 256, .step = 64, .keep = 64};

struct place {
    struct io *io;
    struct stack k;
    int32_t text[N_ALL + 1];
    /* the result for the end of the text, computed without stored chunks */
    struct et_run ref;
    uint64_t n_rows; /* rows that steps have computed */
};

static struct et_ask ask_end(const struct place *p, const char *plan)
{
    return (struct et_ask){.prompt = p->text,
                           .n_prompt = N_ASKED,
                           .max_tokens = MORE,
                           .save = "kv",
                           .plan = plan,
                           .truncation = small};
}

static struct stack_opts options(struct io *io)
{
    return (struct stack_opts){.user.store = et_dirs,
                               .user.n_store = 2,
                               .user.threads = 2,
                               .user.max_sequences = 4,
                               .user.kv_tokens = 1024,
                               .user.no_reuse = true,
                               .stuck_ns = (int64_t)3600 * 1000000000,
                               .io = io};
}

static void place_open(struct place *p, uint64_t seed)
{
    struct stack other;
    struct et_run r;
    memset(p, 0, sizeof *p);
    p->io = et_disk(seed, 0);
    struct stack_opts o = options(p->io);
    et_open(&p->k, &o);
    et_platform(&p->k.platform, 2e-5, 2e-6, 1e-7, 1e9);
    et_prompt(p->text, N_PROMPT, seed);
    struct et_ask a = {.prompt = p->text,
                       .n_prompt = N_PROMPT,
                       .max_tokens = N_ALL + 1 - N_PROMPT,
                       .save = "kv",
                       .truncation = small};
    assert_int_equal(et_run(&p->k, &a, &r), 0);
    assert_int_equal(r.finish, FINISH_LENGTH);
    memcpy(p->text + N_PROMPT, r.tokens, (size_t)r.n_tokens * sizeof r.tokens[0]);
    et_open(&other, &(struct stack_opts){.user.store_in_memory = true,
                                         .user.kv_tokens = 512,
                                         .user.no_reuse = true});
    a = ask_end(p, NULL);
    assert_int_equal(et_run(&other, &a, &p->ref), 0);
    assert_int_equal(p->ref.n_cached, 0);
    stack_close(&other);
}

static void place_close(struct place *p)
{
    stack_close(&p->k);
    io_close(p->io);
}

/* Makes these transfers hang from now on. The alarm ends the program if a thread waits for one
 * forever. */
static void hang(struct place *p, unsigned on, uint64_t skip)
{
    struct io_sim_fault f = {.kind = IO_SIM_STUCK, .on = on, .path = "seg-", .skip = skip};
    assert_int_equal(io_sim_fault_add(p->io, &f), 0);
    alarm(300);
}

static void go_on(struct place *p)
{
    alarm(0);
    io_sim_fault_clear(p->io);
    io_sim_unstick(p->io);
}

static struct seq *add(struct place *p, const struct et_ask *a)
{
    return et_add(&p->k, a);
}

static struct seq *add_end(struct place *p, const char *plan)
{
    struct et_ask a = ask_end(p, plan);
    return add(p, &a);
}

static int step(struct place *p)
{
    struct err err = {0};
    int n_active;
    if (engine_step(p->k.engine, &n_active, &err) != 0)
        fail_msg("%s", err.msg);
    p->n_rows += (uint64_t)p->k.engine->batch.n_rows;
    assert_in_range(p->k.engine->shared.n_carrying, 0, 1);
    return n_active;
}

static void run_all(struct place *p)
{
    p->n_rows = 0;
    while (step(p) > 0)
        ;
}

static struct engine_stats stats(const struct place *p)
{
    struct engine_stats st;
    engine_stats(p->k.engine, &st);
    return st;
}

static void take_end(struct place *p, struct seq *s, const char *what)
{
    static struct et_run r;
    et_take(&p->k, s, &r);
    if (r.finish == FINISH_ERROR)
        fail_msg("%s: %s", what, r.err.msg);
    et_same(&r, &p->ref, what);
}

/* Checks that every stair's rows were computed once. The last token is not computed. */
static void assert_replayed(const struct place *p, const char *what)
{
    if (p->n_rows != (uint64_t)N_ALL)
        fail_msg("%s: %llu rows of %d", what, (unsigned long long)p->n_rows, N_ALL);
}

/* The disk hangs, in the look-up or in reads of the restore. After a while the sequence computes
 * its context again, each row once, and continues over more stairs. When the disk answers again,
 * the context is restored. */
TEST(a_disk_that_hangs_is_left_for_one_replay)
{
    static const uint64_t skip[] = {0, 6};
    for (int i = 0; i < 2; i++) {
        struct place p;
        place_open(&p, 10 + (uint64_t)i);
        hang(&p, IO_SIM_ON_READ, skip[i]);
        struct seq *s = add_end(&p, NULL);
        run_all(&p);
        assert_replayed(&p, "a hanging disk");
        assert_int_equal(stats(&p).n_replays, 1);
        assert_int_equal(stats(&p).n_stalls[STALL_LEFT], 1);
        assert_int_equal(seq_outcome(s)->r.cached_tokens, 0);
        assert_int_equal(seq_outcome(s)->r.truncated_tokens,
                         truncation_cut(&small, N_ALL - 1));
        assert_non_null(strstr(seq_outcome(s)->r.miss, "the store did not answer"));
        go_on(&p);
        take_end(&p, s, "left");
        s = add_end(&p, NULL);
        run_all(&p);
        assert_int_equal(seq_outcome(s)->r.cached_tokens, N_ASKED / 64 * 64);
        assert_int_equal(stats(&p).n_replays, 1);
        take_end(&p, s, "the disk goes on");
        place_close(&p);
    }
}

/* Only one sequence at a time computes its context again; the others wait for their turn. */
TEST(one_sequence_at_a_time_replays)
{
    struct place p;
    place_open(&p, 20);
    hang(&p, IO_SIM_ON_READ, 0);
    struct seq *s[2] = {add_end(&p, NULL), add_end(&p, NULL)};
    run_all(&p);
    assert_int_equal(stats(&p).n_replays, 2);
    go_on(&p);
    for (int i = 0; i < 2; i++)
        take_end(&p, s[i], "one of two");
    place_close(&p);
}

/* A sequence loses its place in the middle of a replay. Later it computes only the rows of its
 * unfinished chunk again. */
TEST(a_preempted_replay_keeps_its_chunks)
{
    struct place p;
    uint64_t n_rows = 0;
    place_open(&p, 30);
    hang(&p, IO_SIM_ON_READ, 0);
    struct seq *s = add_end(&p, NULL);
    for (int n = 0; seq_outcome(s)->r.n_tokens < MORE - 5; n_rows = p.n_rows) {
        step(&p);
        if (s->phase == PHASE_DECODE && n++ % 20 == 0)
            seq_preempt(s);
    }
    int n_preempted = seq_outcome(s)->r.n_preempted;
    assert_true(n_preempted > 3);
    run_all(&p);
    n_rows += p.n_rows;
    assert_in_range(n_rows, N_ALL + 1, N_ALL + 63 * n_preempted);
    assert_int_equal(stats(&p).n_replays, 1);
    go_on(&p);
    take_end(&p, s, "preempted");
    place_close(&p);
}

/* The disk hangs in writes at the end of a stair. The sequence stops waiting for them after a
 * while. */
TEST(saves_that_hang_are_left)
{
    struct place p;
    struct stack other;
    static struct et_run r, ref;
    int32_t prompt[300];
    place_open(&p, 40);
    et_prompt(prompt, 300, 77);
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = 230,
                       .max_tokens = 150,
                       .save = "kv",
                       .truncation = small};
    et_open(&other, &(struct stack_opts){.user.store_in_memory = true,
                                         .user.kv_tokens = 512,
                                         .user.no_reuse = true});
    assert_int_equal(et_run(&other, &a, &ref), 0);
    stack_close(&other);
    hang(&p, IO_SIM_ON_WRITE, 0);
    struct seq *s = add(&p, &a);
    run_all(&p);
    assert_int_equal(stats(&p).n_replays, 1);
    assert_int_equal(stats(&p).n_stalls[STALL_LEFT], 1);
    go_on(&p);
    et_take(&p.k, s, &r);
    et_same(&r, &ref, "saves hang");
    place_close(&p);
}

/* The plan compares the time of reading with the time of a replay of the whole history, and takes
 * the shorter one. A forced plan is carried out in any case. */
TEST(the_cheaper_way_is_planned)
{
    struct place p;
    place_open(&p, 50);
    double bytes = (256.0 - 64) * p.k.platform.n_layers *
                   (double)model_kv_bytes(p.k.model, 0);
    static const struct {
        double share; /* reading takes this share of the time of a replay */
        const char *plan;
        bool replays;
    } way[] = {{0.01, NULL, false}, {0.5, NULL, false}, {2, NULL, true}, {2, "kv", false}};
    for (size_t i = 0; i < sizeof way / sizeof way[0]; i++) {
        uint64_t before = stats(&p).n_replays;
        /* resets the corrections that earlier runs have taught */
        et_platform(&p.k.platform, 2e-5, 2e-6, 1e-7, 1);
        double replay_s = staircase_price_s(&p.k.platform, &small, 0, N_ASKED);
        p.k.platform.tier[0].bytes_per_s = bytes / (way[i].share * replay_s);
        struct seq *s = add_end(&p, way[i].plan);
        run_all(&p);
        assert_int_equal(stats(&p).n_replays, before + way[i].replays);
        assert_int_equal(stats(&p).n_stalls[STALL_LEFT], 0);
        if (way[i].replays) {
            assert_replayed(&p, "planned");
            assert_non_null(strstr(seq_outcome(s)->r.miss, "stair by stair, is faster"));
        }
        assert_int_equal(seq_outcome(s)->r.cached_tokens,
                         way[i].replays ? 0 : N_ASKED / 64 * 64);
        take_end(&p, s, "planned");
    }
    place_close(&p);
}

/* Flips a bit of each record of a chunk on the disks. A plan may read only some of these
 * records. */
static void damage(struct place *p, int chunk)
{
    struct chain c;
    char path[100];
    chain_init(&c, &p->k.fingerprint, NULL);
    c.truncation = small;
    chain_extend(&c, p->text, N_ALL);
    const struct chunk_node *n = catalog_find(&p->k.store->catalog, &c.keys[chunk]);
    assert_non_null(n);
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        for (uint64_t at = 4096 + 100; at < extent_bytes(x); at += 4096) {
            snprintf(path, sizeof path, "%s/seg-%06u.hc", et_dirs[x->device], x->segment);
            assert_int_equal(io_sim_flip(p->io, path, x->offset + at, 3), 0);
        }
    chain_deinit(&c);
}

/* The store answers, but a chunk is damaged. Stairs that do not need the chunk come from the store,
 * and the other stairs are computed once. */
TEST(a_damaged_chunk_replays_from_the_store)
{
    struct place p;
    place_open(&p, 60);
    int chunk = N_ASKED / 64 - 2;
    damage(&p, chunk);
    struct seq *s = add_end(&p, NULL);
    run_all(&p);
    assert_int_equal(stats(&p).n_replays, 0);
    assert_int_equal(seq_outcome(s)->r.cached_tokens, 64 * chunk);
    /* fused rows are not counted */
    assert_true(p.n_rows <= (uint64_t)(N_ALL - 64 * chunk));
    take_end(&p, s, "damaged");
    s = add_end(&p, NULL); /* the replay has saved the state again */
    run_all(&p);
    assert_int_equal(seq_outcome(s)->r.cached_tokens, N_ASKED / 64 * 64);
    assert_true(p.n_rows <= N_ALL - N_ASKED / 64 * 64);
    take_end(&p, s, "healed");
    place_close(&p);
}
