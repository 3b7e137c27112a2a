/* test_restore_phase.c - restores beside decodes, beside each other, and ended midway. No sequence
 * waits for a disk, and every sequence gives the bits that it gives alone. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine_impl.h"
#include "restore/restore_impl.h"
#include "tests/engine/enginetest.h"

enum {
    N_SEQS = 4,
    N_PROMPT = 9 * 64 + 13, /* more than a group of eight chunks */
    N_GENERATE = 8,
    N_DECODE = 60, /* tokens of the sequences that only decode */
    N_SHORT = 20,
};

static const char *const plans[] = {"kv", "hidden", "RHKK", "RRHH", "RRKK", "RKHK", "auto"};
enum { N_PLANS = sizeof plans / sizeof plans[0] };

/* A simulated disk with the contexts of N_SEQS sequences, and the result of each alone. */
struct place {
    struct io *io;
    struct stack k;
    int32_t prompt[N_SEQS][N_PROMPT];
    int32_t decoding[N_SEQS][N_SHORT];
    struct et_run ref[N_SEQS], decode_ref[N_SEQS];
};

static struct et_ask ask(const int32_t *prompt, int n, int max_tokens, const char *save,
                         const char *plan)
{
    return (struct et_ask){.prompt = prompt,
                           .n_prompt = n,
                           .max_tokens = max_tokens,
                           .save = save,
                           .plan = plan};
}

static void place_open(struct place *p, uint64_t seed, const char *model)
{
    struct stack_opts o = {.user.model = model,
                           .user.store = et_dirs,
                           .user.n_store = 2,
                           .user.threads = 2,
                           .user.max_sequences = 8,
                           .user.save_buffer_bytes = 64 << 20,
                           .user.no_reuse = true,
                           .stuck_ns = (int64_t)3600 * 1000000000};
    p->io = et_disk(seed, 0);
    o.io = p->io;
    et_open(&p->k, &o);
    for (int i = 0; i < N_SEQS; i++) {
        et_prompt(p->prompt[i], N_PROMPT, 100 + (uint64_t)i);
        et_prompt(p->decoding[i], N_SHORT, 200 + (uint64_t)i);
        struct et_ask a = ask(p->prompt[i], N_PROMPT, N_GENERATE, "both", "recompute");
        assert_int_equal(et_run(&p->k, &a, &p->ref[i]), 0);
        assert_int_equal(p->ref[i].committed, N_PROMPT + N_GENERATE - 1);
        a = ask(p->decoding[i], N_SHORT, N_DECODE, "none", "recompute");
        assert_int_equal(et_run(&p->k, &a, &p->decode_ref[i]), 0);
    }
}

static void place_close(struct place *p)
{
    stack_close(&p->k);
    io_close(p->io);
}

/* Makes reads hang. The alarm ends the program if a thread waits for a read forever. */
static void stuck_reads(struct place *p)
{
    struct io_sim_fault f = {.kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(p->io, &f), 0);
    alarm(300);
}

static void reads_go_on(struct place *p)
{
    alarm(0);
    io_sim_fault_clear(p->io);
    io_sim_unstick(p->io);
}

static void slow_reads(struct place *p, int64_t ns)
{
    struct io_sim_fault f = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_READ, .path = "seg-", .slow_ns = ns};
    assert_int_equal(io_sim_fault_add(p->io, &f), 0);
}

static struct seq *add(struct place *p, struct et_ask a)
{
    struct seq *s;
    s = et_add(&p->k, &a);
    return s;
}

static struct seq *add_decode(struct place *p, int i)
{
    return add(p, ask(p->decoding[i], N_SHORT, N_DECODE, "none", "recompute"));
}

static struct seq *add_restore(struct place *p, int i, const char *plan)
{
    struct et_ask a = ask(p->prompt[i], N_PROMPT, N_GENERATE, "none", plan);
    /* request 3 prefills after its restore; the others may prefill inside it */
    a.restore_first = i == 3;
    return add(p, a);
}

static int step(struct place *p)
{
    struct err err = {0};
    int n_active;
    if (engine_step(p->k.engine, &n_active, &err) != 0)
        fail_msg("%s", err.msg);
    return n_active;
}

static void run_all(struct place *p)
{
    while (step(p) > 0)
        ;
}

static void take(struct place *p, struct seq *s, const struct et_run *ref, const char *what)
{
    struct et_run r;
    et_take(&p->k, s, &r);
    et_same(&r, ref, what);
}

/* --- no sequence waits --------------------------------------------------------------------------
 */

/* While the disk does not end a read, a sequence decodes all its tokens. The restore whose read
 * hangs is cancelled. */
TEST(decodes_go_on_while_a_read_is_stuck)
{
    struct place p;
    place_open(&p, 1, NULL);
    stuck_reads(&p);
    struct seq *d = add_decode(&p, 0), *stuck = add_restore(&p, 0, "kv");
    struct seq *gone = add_restore(&p, 1, "hidden");
    while (seq_outcome(d)->finish == FINISH_NONE)
        step(&p);
    assert_int_equal(seq_outcome(d)->r.n_tokens, N_DECODE);
    assert_int_equal(seq_outcome(stuck)->r.cached_tokens, 0);
    engine_remove(p.k.engine, gone);
    reads_go_on(&p);
    take(&p, d, &p.decode_ref[0], "decode");
    run_all(&p);
    assert_int_equal(seq_outcome(stuck)->r.cached_tokens, 9 * 64);
    take(&p, stuck, &p.ref[0], "restore");
    place_close(&p);
}

/* A step with nothing else to do waits for the disk, but not for long. */
TEST(a_step_without_work_waits)
{
    struct place p;
    place_open(&p, 2, NULL);
    stuck_reads(&p);
    struct seq *s = add_restore(&p, 0, "kv");
    int64_t t0 = clock_now_ns(), waited_ns = 0;
    int n_steps = 0;
    for (; waited_ns < 250000000 || n_steps < 3; n_steps++) {
        step(&p);
        waited_ns = clock_now_ns() - t0;
    }
    if (n_steps > waited_ns / 2500000 + 3)
        fail_msg("%d steps in %.3f s of waiting", n_steps, (double)waited_ns * 1e-9);
    assert_int_equal(seq_outcome(s)->r.cached_tokens, 0);
    reads_go_on(&p);
    run_all(&p);
    take(&p, s, &p.ref[0], "restore");
    place_close(&p);
}

/* Other requests' look-ups do not wait for a stuck read. */
TEST(a_lookup_passes_reads_that_are_stuck)
{
    struct place p;
    place_open(&p, 9, NULL);
    stuck_reads(&p);
    struct seq *stuck = add_restore(&p, 0, "kv");
    while (io_sim_fault_count(p.io, IO_SIM_STUCK, 0) == 0)
        step(&p);
    struct seq *s = add(&p, ask(p.decoding[1], N_SHORT, N_DECODE, "none", "kv"));
    while (seq_outcome(s)->finish == FINISH_NONE)
        step(&p);
    assert_int_equal(seq_outcome(stuck)->finish, FINISH_NONE);
    reads_go_on(&p);
    take(&p, s, &p.decode_ref[1], "a prompt that is not stored");
    run_all(&p);
    take(&p, stuck, &p.ref[0], "restore");
    place_close(&p);
}

/* --- a disk that hangs ------------------------------------------------------------------------ */

static uint64_t n_stalls(const struct place *p, enum stall_end e)
{
    struct engine_stats st;
    engine_stats(p->k.engine, &st);
    return st.n_stalls[e];
}

/* Reads should be much cheaper than recomputing, which takes 46 ms. But the disk hangs, from the
 * first read on or in the middle. Recomputation ends the restore while the reads are still in
 * flight. Later restores into the same blocks are right, both while the disk hangs and after it
 * answers again. */
TEST(a_hanging_disk_is_raced)
{
    static const char *const models[] = {"synth:tiny-mha", "synth:tiny-gqa"};
    for (uint64_t i = 0; i < 6; i++) {
        struct place p;
        struct io_sim_fault hang = {.kind = IO_SIM_STUCK,
                                    .on = IO_SIM_ON_READ,
                                    .path = "seg-",
                                    .skip = 9 * (i / 2)};
        place_open(&p, 10 + i, models[i % 2]);
        et_platform(&p.k.platform, 2e-5, 2e-6, 1e-7, 1e9);
        assert_int_equal(io_sim_fault_add(p.io, &hang), 0);
        alarm(300);
        for (int j = 0; j < 3; j++) {
            struct seq *s = add_restore(&p, j, "auto");
            run_all(&p);
            assert_int_equal(seq_outcome(s)->stall, STALL_RECOMPUTED);
            assert_int_equal(seq_outcome(s)->plan.n_r, seq_outcome(s)->plan.n_layers);
            take(&p, s, &p.ref[j], "raced");
        }
        assert_int_equal(n_stalls(&p, STALL_RECOMPUTED), 3);
        reads_go_on(&p);
        for (int j = 0; j < 3; j++) {
            struct seq *s = add_restore(&p, j, "kv");
            run_all(&p);
            assert_int_equal(seq_outcome(s)->r.cached_tokens, 9 * 64);
            assert_int_equal(seq_outcome(s)->stall, STALL_NONE);
            take(&p, s, &p.ref[j], "behind a race");
        }
        place_close(&p);
    }
}

/* Beside decodes a restore has only 3 % of the compute, too little to race reads that hang. So the
 * restore gives the reads up, and prefill computes the tokens. */
TEST(reads_that_hang_are_left_beside_decodes)
{
    struct place p;
    place_open(&p, 20, NULL);
    et_platform(&p.k.platform, 2e-5, 2e-6, 1e-7, 1e9);
    stuck_reads(&p);
    struct seq *d[2] = {add_decode(&p, 0), NULL};
    while (seq_outcome(d[0])->r.n_tokens < N_DECODE / 2)
        step(&p);
    d[1] = add_decode(&p, 1);
    step(&p);
    struct seq *s = add_restore(&p, 0, "auto");
    while (seq_outcome(s)->finish == FINISH_NONE) {
        for (int j = 0; j < 2; j++) {
            if (seq_outcome(d[j])->finish == FINISH_NONE)
                continue;
            take(&p, d[j], &p.decode_ref[j], "decode");
            d[j] = add_decode(&p, j);
        }
        step(&p);
    }
    assert_int_equal(seq_outcome(s)->stall, STALL_LEFT);
    assert_int_equal(seq_outcome(s)->r.cached_tokens, 0);
    assert_non_null(strstr(seq_outcome(s)->r.miss, "the store did not answer"));
    assert_int_equal(n_stalls(&p, STALL_LEFT), 1);
    take(&p, s, &p.ref[0], "left");
    reads_go_on(&p);
    run_all(&p);
    for (int j = 0; j < 2; j++)
        take(&p, d[j], &p.decode_ref[j], "decode");
    place_close(&p);
}

/* Beside decodes, restores may compute for a share of the time of each forward pass. (The test
 * checks the time of the whole step, which is longer.) They may overdraw their share, but cannot
 * save up a part that they do not use. */
TEST(a_step_earns_a_share_of_its_pass)
{
    struct place p;
    place_open(&p, 21, NULL);
    const struct beside_credit *credit = &p.k.engine->restores.credit;
    struct seq *d[2] = {add_decode(&p, 0), add_decode(&p, 1)};
    for (int i = 0; i < 3; i++)
        step(&p);
    assert_int_equal(credit->ns, 0); /* without a restore there is no credit */
    stuck_reads(&p);
    struct seq *s = add_restore(&p, 0, "kv");
    int n_earned = 0;
    while (seq_outcome(d[0])->finish == FINISH_NONE) {
        int64_t t0 = clock_now_ns();
        step(&p);
        double step_ns = (double)(clock_now_ns() - t0);
        assert_true((double)credit->ns <= BESIDE_RESTORE_SHARE * step_ns);
        n_earned += credit->ns > 0;
    }
    assert_true(n_earned > 0);
    reads_go_on(&p);
    run_all(&p);
    assert_int_equal(credit->ns, 0);
    take(&p, s, &p.ref[0], "restore");
    for (int i = 0; i < 2; i++)
        take(&p, d[i], &p.decode_ref[i], "decode");
    place_close(&p);
}

/* --- equal bits ------------------------------------------------------------------------------- */

/* Restores by every plan, several at once, beside sequences that decode throughout. */
TEST(beside_decodes)
{
    static const char *const models[] = {"synth:tiny-mha", "synth:tiny-gqa"};
    for (int m = 0; m < 2; m++) {
        struct place p;
        place_open(&p, 3, models[m]);
        for (int i = 0; i < N_PLANS; i++) {
            if (i % 2 == 1)
                slow_reads(&p, 200000);
            struct seq *d[2] = {add_decode(&p, 0), add_decode(&p, 1)}, *r[N_SEQS];
            for (int j = 0; j < 3; j++)
                step(&p);
            for (int j = 0; j < N_SEQS; j++)
                r[j] = add_restore(&p, j, plans[(i + j) % N_PLANS]);
            run_all(&p);
            for (int j = 0; j < N_SEQS; j++) {
                assert_int_equal(seq_outcome(r[j])->r.cached_tokens, 9 * 64);
                take(&p, r[j], &p.ref[j], plans[(i + j) % N_PLANS]);
            }
            take(&p, d[0], &p.decode_ref[0], "decode");
            take(&p, d[1], &p.decode_ref[1], "decode");
            io_sim_fault_clear(p.io);
        }
        place_close(&p);
    }
}

/* Restores are ended at every moment, and others take their places at once. Reads fail, too. */
TEST(cancelled_and_failing)
{
    struct place p;
    struct rng g = {.s = 5};
    place_open(&p, 4, NULL);
    for (int i = 0; i < 60; i++) {
        struct io_sim_fault f = {.kind = IO_SIM_FAIL,
                                 .on = IO_SIM_ON_READ,
                                 .path = "seg-",
                                 .skip = rng_below(&g, 60),
                                 .count = 1,
                                 .code = -ENOMEM};
        if (i % 3 == 1)
            slow_reads(&p, 100000);
        if (i % 3 == 2)
            assert_int_equal(io_sim_fault_add(p.io, &f), 0);
        struct seq *d = i % 2 ? add_decode(&p, 0) : NULL, *r[N_SEQS];
        for (int j = 0; j < N_SEQS; j++)
            r[j] = add_restore(&p, j, plans[rng_below(&g, N_PLANS)]);
        for (uint64_t n = rng_below(&g, 12); n > 0; n--)
            step(&p);
        int gone = (int)rng_below(&g, N_SEQS);
        engine_remove(p.k.engine, r[gone]);
        r[gone] = add_restore(&p, gone, "auto");
        run_all(&p);
        for (int j = 0; j < N_SEQS; j++)
            take(&p, r[j], &p.ref[j], "restore");
        if (d != NULL)
            take(&p, d, &p.decode_ref[0], "decode");
        io_sim_fault_clear(p.io);
    }
    place_close(&p);
}

/* --- new tokens inside the restore ------------------------------------------------------------ */

/* Many new tokens, more than a batch, follow a stored beginning. They are fused with the restore or
 * not, and saved meanwhile. In one case a chunk turns out to be damaged after layers have been
 * prefilled. */
TEST(new_tokens_follow_the_layers)
{
    enum { N_STORED = 4 * 64, N_LONG = N_STORED + 600 };
    static const char *const salts[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    static int32_t prompt[N_LONG];
    struct place p;
    struct et_run ref, r;
    place_open(&p, 6, NULL);
    et_prompt(prompt, N_LONG, 9);
    struct et_ask a = ask(prompt, N_LONG, N_GENERATE, "none", "recompute");
    assert_int_equal(et_run(&p.k, &a, &ref), 0);
    for (int i = 0; i < 8; i++) {
        bool damaged = i >= 4;
        /* Computes N_STORED tokens, whose last chunk is full. */
        a = ask(prompt, N_STORED, 1, "both", "recompute");
        a.salt = salts[i];
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        struct io_sim_fault flip = {.kind = IO_SIM_READ_FLIP,
                                    .on = IO_SIM_ON_READ,
                                    .path = "seg-",
                                    .skip = 14, /* the last records of the last layer */
                                    .count = 1};
        if (damaged)
            assert_int_equal(io_sim_fault_add(p.io, &flip), 0);
        /* slow enough that layers are prefilled while reads go on */
        slow_reads(&p, 1000000);
        a = ask(prompt, N_LONG, N_GENERATE, "both", "kv");
        a.salt = salts[i];
        a.restore_first = i % 2;
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        et_same(&r, &ref, a.restore_first ? "restored first" : "fused");
        assert_true(damaged ? r.n_cached < N_STORED : r.n_cached == N_STORED);
        assert_int_equal(r.committed, N_LONG + N_GENERATE - 1);
        if (!damaged)
            assert_true((r.restore.prefill_ns > 0) == !a.restore_first);
        assert_true(r.restore.bubble >= 0 && r.restore.bubble <= 1);
        io_sim_fault_clear(p.io);
        a.save = "none"; /* checks that the state saved by fused prefill is right */
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        et_same(&r, &ref, "restored again");
        assert_true(r.n_cached >= (N_LONG - 1) / 64 * 64);
    }
    place_close(&p);
}

/* The same, but the stored context ends with an unfinished chunk, which the new tokens continue. */
TEST(new_tokens_follow_an_unfinished_chunk)
{
    enum { N_STORED = 4 * 64 + 20, N_LONG = N_STORED + 100 };
    static const char *const salts[] = {"a", "b", "c", "d", "e", "f"};
    static int32_t prompt[N_LONG];
    struct place p;
    struct et_run ref, r;
    int n_fused = 0;
    place_open(&p, 7, NULL);
    et_prompt(prompt, N_LONG, 10);
    struct et_ask a = ask(prompt, N_LONG, N_GENERATE, "none", "recompute");
    assert_int_equal(et_run(&p.k, &a, &ref), 0);
    for (int i = 0; i < 6; i++) {
        a = ask(prompt, N_STORED, 1, "both", "recompute");
        a.salt = salts[i];
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        assert_int_equal(r.committed, N_STORED);
        slow_reads(&p, 1000000);
        a = ask(prompt, N_LONG, N_GENERATE, "both", "kv");
        a.salt = salts[i];
        a.restore_first = i % 3 == 2;
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        et_same(&r, &ref, a.restore_first ? "restored first" : "fused");
        assert_int_equal(r.n_cached, N_STORED);
        assert_true(r.restore.prefill_ns == 0 || !a.restore_first);
        n_fused += r.restore.prefill_ns > 0;
        assert_int_equal(r.committed, N_LONG + N_GENERATE - 1);
        io_sim_fault_clear(p.io);
        a.save = "none";
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        et_same(&r, &ref, "restored again");
    }
    /* usually all four are fused; fewer if this thread lacked a processor for long */
    assert_true(n_fused > 0);
    place_close(&p);
}

/* First the platform predicts less than a millisecond, but each read takes 50 ms. Then it predicts
 * a year. */
TEST(a_missed_prediction_is_told_with_its_cause)
{
    struct place p;
    struct et_run r;
    place_open(&p, 8, NULL);
    struct et_ask a = ask(p.prompt[0], N_PROMPT, 1, "none", "kv");
    a.restore_first = true;
    slow_reads(&p, 50 * 1000 * 1000);
    assert_int_equal(et_run(&p.k, &a, &r), 0);
    assert_int_equal(r.n_cached, N_PROMPT / 64 * 64);
    assert_int_equal(r.surprise, SURPRISE_READS);
    io_sim_fault_clear(p.io);
    et_platform(&p.k.platform, 1, 1, 1, 1e-3);
    assert_int_equal(et_run(&p.k, &a, &r), 0);
    assert_int_equal(r.surprise, SURPRISE_FASTER);
    a.plan = "recompute";
    assert_int_equal(et_run(&p.k, &a, &r), 0);
    assert_int_equal(r.surprise, SURPRISE_NONE); /* nothing was restored */
    place_close(&p);
}

/* Chunks have hidden states and KV alternately. The platform believes that each change between the
 * two kinds (a split) takes 20 ms. The prediction misses only by the time of these splits. */
TEST(a_wrong_price_of_splits_is_told)
{
    struct place p;
    struct et_run r;
    place_open(&p, 9, NULL);
    struct et_ask a = ask(p.prompt[0], 0, 1, NULL, "kv");
    a.salt = "by turns";
    a.restore_first = true;
    for (int c = 0; c < 8; c++) {
        a.n_prompt = 64 * (c + 1);
        a.save = c % 2 ? "hidden" : "kv";
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        assert_int_equal(r.committed, a.n_prompt);
    }
    a.n_prompt = N_PROMPT;
    a.save = "none";
    p.k.platform.split_s = 20e-3;
    assert_int_equal(et_run(&p.k, &a, &r), 0);
    assert_int_equal(r.n_cached, 8 * 64);
    assert_true(r.plan.comp_busy_s >= 3 * 7 * 20e-3);
    assert_int_equal(r.surprise, SURPRISE_FASTER);
    place_close(&p);
}

/* The platform predicts a millisecond per token and layer. Prompts that are not restored take a
 * hundredth of that or less, and correct the prediction. */
TEST(prompts_teach_what_compute_takes)
{
    struct place p;
    place_open(&p, 21, NULL);
    const struct platform_correction *c = &p.k.platform.gemm_correction;
    assert_true(c->n_observed >= N_SEQS);
    assert_true(c->log2 < 0);
    et_platform(&p.k.platform, 1e-12, 1e-12, 1e-7, 1e9);
    for (int i = 0; i < 2; i++) {
        struct et_run r;
        struct et_ask a = ask(p.prompt[i], N_PROMPT, 1, "none", "recompute");
        assert_int_equal(et_run(&p.k, &a, &r), 0);
    }
    assert_true(c->n_observed >= 2 && c->log2 > 0);
    place_close(&p);
}

/* Beside decodes, a step takes fused tokens through as many layers as its rows allow: through all,
 * once the restore has ended. */
TEST(a_step_fuses_as_many_layers_as_it_may)
{
    enum { N_OLD = 9 * 64, N_NEW = 100 };
    static int32_t prompt[N_OLD + N_NEW];
    struct place p;
    place_open(&p, 24, NULL);
    struct engine *e = p.k.engine;
    memcpy(prompt, p.prompt[0], N_OLD * sizeof prompt[0]);
    et_prompt(prompt + N_OLD, N_NEW, 77);
    struct seq *d = add_decode(&p, 0);
    while (d->phase != PHASE_DECODE)
        step(&p);
    stuck_reads(&p); /* the restore does not end before the test says so */
    struct seq *s = add(&p, ask(prompt, N_OLD + N_NEW, 1, "none", "kv"));
    while (e->restores.fused.seq != s) {
        step(&p);
        assert_true(s->phase == PHASE_WAIT || s->phase == PHASE_RESTORE);
    }
    reads_go_on(&p);
    while (!restore_is_done(s->restore))
        if (!restore_pipeline_work(e->restores.pipeline, RESTORE_NO_LIMIT))
            clock_sleep_ns(100000);
    /* Without a beginning the batch would take the tokens. */
    int n;
    assert_int_equal(fused_work(&e->restores.fused, 10, &n), 0);
    assert_int_equal(n, 10);
    assert_int_equal(e->shared.stats.fused_rows, 10);
    e->schedule.speed = (struct beside_speed){.decode_ns = 1e9, .row_ns = 1};
    step(&p);
    assert_int_equal(e->shared.stats.fused_rows, p.k.model->cfg.n_layers * N_NEW);
    assert_int_equal(s->phase, PHASE_DONE);
    assert_int_equal(seq_outcome(s)->r.cached_tokens, N_OLD);
    engine_remove(e, s);
    engine_remove(e, d);
    place_close(&p);
}
