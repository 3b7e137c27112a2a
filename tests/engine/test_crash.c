/* test_crash.c - the whole stack on a disk that loses power.
 *
 * For each seed, one to three sessions run a few requests each, with saving. The simulated disk
 * crashes at a random operation of a random session, or of the recovery after it. After each crash
 * the disk restarts and the stack is opened again. Every request of every session must give the
 * tokens and logits of a run without a store. The store must have at least the state that earlier
 * requests reported as committed. In every fourth life bits of stored state flip between sessions:
 * then state may be missing, and results must still be right.
 *
 * The models are one with attention alone and one with recurrent layers, whose states come back
 * from snapshots and from saved inputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/rng.h"
#include "store/bugs.h"
#include "tests/engine/enginetest.h"

enum {
    N_CONTEXTS = 3,
    N_PROMPT = 5 * 64 + 9,
    N_GENERATE = 70, /* so that a chunk fills up while decoding */
    MAX_SEEDS = 400,
    N_FLIPS = 4, /* flipped bits in each segment file */
};

/* time for this test; the number of seeds that fit into it is printed and not asserted */
#define BUDGET_NS 6000000000 /* for each model */

static enum store_bug bug;

enum store_bug store_test_bug(void)
{
    return bug;
}

/* A model, and what its requests save. */
static const struct subject {
    const char *model, *saves[4];
} subjects[] = {{"synth:tiny-mha", {"both", "kv", "both", "HKBK"}},
                {"synth:tiny-hybrid", {"both", "auto", "both", "HHHB"}}};
static const struct subject *subject;
static int32_t prompt[N_CONTEXTS][N_PROMPT];
static struct et_run alone[N_CONTEXTS];

static struct et_ask ask(int i)
{
    return (struct et_ask){.prompt = prompt[i],
                           .n_prompt = N_PROMPT,
                           .max_tokens = N_GENERATE,
                           .temperature = 1,
                           .seed = (uint64_t)i};
}

/* Computes the contexts of a subject without a store. The second one begins with the first three
 * chunks of the first. */
static void run_alone(const struct subject *of)
{
    struct stack k;
    subject = of;
    for (int i = 0; i < N_CONTEXTS; i++)
        et_prompt(prompt[i], N_PROMPT, i < 2 ? 1 : 2);
    for (int i = 200; i < N_PROMPT; i++)
        prompt[1][i] = 3 + (prompt[1][i] + 1) % 400;
    et_open(&k, &(struct stack_opts){.user.model = of->model, .user.no_reuse = true});
    for (int i = 0; i < N_CONTEXTS; i++) {
        struct et_ask a = ask(i);
        assert_int_equal(et_run(&k, &a, &alone[i]), 0);
    }
    stack_close(&k);
}

struct life {
    uint64_t seed;
    struct rng rng;
    struct io *io;
    int64_t committed[N_CONTEXTS]; /* largest number of tokens ever reported as committed */
    int n_crashes, n_restored, n_snapshots;
    bool flips;          /* bits flip, so committed state may be missing */
    int n_lost, n_wrong; /* numbers of violations of the two promises */
    char what[400];
};

/* Checks the two promises: nothing committed is lost, and no result is wrong. Violations are
 * counted, so that a test can show that they are detected. */
static void judge(struct life *life, int context, const struct et_run *r, bool may_miss)
{
    const struct et_run *ref = &alone[context];
    int64_t want = life->committed[context] < (N_PROMPT - 1) / 64 * 64
                       ? life->committed[context]
                       : (N_PROMPT - 1) / 64 * 64;
    bool wrong = r->digest != ref->digest || r->n_tokens != ref->n_tokens ||
                 memcmp(r->tokens, ref->tokens, sizeof ref->tokens) != 0;
    bool lost = !may_miss && r->n_cached < want;
    if (wrong || lost)
        snprintf(life->what, sizeof life->what,
                 "seed %llu, context %d: %s%lld tokens were committed, %d came back: %s",
                 (unsigned long long)life->seed, context,
                 wrong ? "other tokens or logits; " : "",
                 (long long)life->committed[context], r->n_cached, r->miss);
    life->n_wrong += wrong;
    life->n_lost += lost;
}

static void quiet(void *arg, const char *text)
{
    (void)arg;
    (void)text;
}

/* Opens the stack. If the crash hits the opening, restarts the disk and tries again. */
static void open_again(struct life *life, struct stack *k, uint64_t until_crash)
{
    struct stack_opts o = {.io = life->io,
                           .user.model = subject->model,
                           .user.store = et_dirs,
                           .user.n_store = 2,
                           .user.threads = 1,
                           .step_rows = 100 + (int)rng_below(&life->rng, 200),
                           .user.warn = quiet,
                           .user.no_reuse = true};
    struct err err = {0};
    io_sim_crash_at(life->io, IO_SIM_AT_OP, until_crash);
    while (et_try_open(k, &o, &err) != 0) {
        stack_close(k);
        if (!io_sim_crashed(life->io))
            fail_msg("seed %llu: %s", (unsigned long long)life->seed, err.msg);
        life->n_crashes++;
        io_sim_restart(life->io);
    }
}

static void one_request(struct life *life, struct stack *k)
{
    static const char *const plans[] = {"auto", "auto", "recompute"};
    static struct et_run r;
    int i = (int)rng_below(&life->rng, N_CONTEXTS);
    struct et_ask a = ask(i);
    a.save = subject->saves[rng_below(&life->rng, 4)];
    a.plan = plans[rng_below(&life->rng, 3)];
    bool crashed = io_sim_crashed(life->io);
    assert_int_equal(et_run(k, &a, &r), 0);
    judge(life, i, &r,
          crashed || io_sim_crashed(life->io) || life->flips ||
              strcmp(a.plan, "recompute") == 0);
    life->n_restored += r.n_cached > 0;
    life->n_snapshots += r.restore.snapshot_tokens > 0;
    if (r.committed > life->committed[i])
        life->committed[i] = r.committed;
}

/* State that was reported as committed is found, in every context. */
static void check_committed(struct life *life)
{
    struct stack k;
    open_again(life, &k, 0);
    for (int i = 0; i < N_CONTEXTS; i++) {
        static struct et_run r;
        struct et_ask a = ask(i);
        assert_int_equal(et_run(&k, &a, &r), 0);
        judge(life, i, &r, life->flips);
        life->n_snapshots += r.restore.snapshot_tokens > 0;
    }
    stack_close(&k);
}

/* Flips bits of the segment files. */
static void flip(struct life *life)
{
    for (int d = 0; d < 2; d++) {
        struct io_names names = {0};
        if (io_list(life->io, et_dirs[d], &names, NULL) != 0)
            continue;
        for (size_t i = 0; i < names.n; i++) {
            char path[80];
            struct io_stat st;
            snprintf(path, sizeof path, "%s/%s", et_dirs[d], names.name[i]);
            if (strncmp(names.name[i], "seg", 3) != 0 ||
                io_stat(life->io, path, &st, NULL) != 0 || st.size_bytes == 0)
                continue;
            for (int n = 0; n < N_FLIPS; n++)
                (void)io_sim_flip(life->io, path, rng_below(&life->rng, st.size_bytes),
                                  (unsigned)rng_below(&life->rng, 8));
        }
        io_names_free(&names);
    }
}

static struct life live(uint64_t seed)
{
    struct life life = {.seed = seed, .rng = {.s = seed}};
    life.io = et_disk(seed, 0);
    life.flips = seed % 4 == 3;
    int n_sessions = 1 + (int)rng_below(&life.rng, 3);
    for (int i = 0; i < n_sessions; i++) {
        struct stack k;
        /* If few operations are left until the crash, the crash hits the opening. Otherwise it hits
         * a save, or the session ends before it. */
        open_again(&life, &k, 1 + rng_below(&life.rng, i == 0 ? 300 : 150));
        int n_requests = 1 + (int)rng_below(&life.rng, 3);
        for (int j = 0; j < n_requests; j++)
            one_request(&life, &k);
        if (rng_below(&life.rng, 4) == 0)
            io_sim_crash(life.io); /* power is lost before the store is closed */
        stack_close(&k);
        if (io_sim_crashed(life.io)) {
            life.n_crashes++;
            io_sim_restart(life.io);
        }
        if (life.flips)
            flip(&life);
    }
    check_committed(&life);
    io_close(life.io);
    return life;
}

static void campaign(const struct subject *of)
{
    int64_t end = clock_now_ns() + BUDGET_NS;
    uint64_t first = getenv("HCACHE_SEED") != NULL
                         ? strtoull(getenv("HCACHE_SEED"), NULL, 10)
                         : 1;
    const char *wanted = getenv("HCACHE_LIVES");
    int n_wanted = wanted != NULL ? atoi(wanted) : 0;
    int n_seeds = 0, n_crashes = 0, n_restored = 0, n_committed = 0, n_snapshots = 0;
    run_alone(of);
    while (n_seeds < n_wanted ||
           (n_seeds < MAX_SEEDS && (n_seeds < 5 || clock_now_ns() < end))) {
        struct life life = live(first + (uint64_t)n_seeds++);
        if (life.n_lost + life.n_wrong > 0)
            fail_msg("%s: %s", of->model, life.what);
        n_crashes += life.n_crashes;
        n_restored += life.n_restored;
        n_snapshots += life.n_snapshots;
        for (int i = 0; i < N_CONTEXTS; i++)
            n_committed += life.committed[i] > 0;
    }
    print_message("%s: %d seeds, %d crashes, %d contexts reported committed, %d requests "
                  "restored, %d by snapshots\n",
                  of->model, n_seeds, n_crashes, n_committed, n_restored, n_snapshots);
    assert_true(n_crashes > 0 && n_restored > 0 && n_committed > 0);
    assert_true(n_snapshots > 0 || of == &subjects[0]);
}

TEST(crashes)
{
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++)
        campaign(&subjects[i]);
}

/* Shows that this suite detects a store that does not wait until its data are durable. */
TEST(it_can_fail)
{
    int n_lost = 0, n_seeds = 0;
    run_alone(&subjects[0]);
    bug = STORE_BUG_NO_SYNC;
    while (n_lost == 0 && n_seeds < 200) {
        struct life life = live(1000 + (uint64_t)n_seeds++);
        /* checksums detect the lost data, so no result is wrong */
        assert_int_equal(life.n_wrong, 0);
        n_lost += life.n_lost;
    }
    bug = STORE_BUG_NONE;
    assert_true(n_lost > 0);
    print_message("found after %d seeds\n", n_seeds);
}
