/* test_sched.c - the scheduler under simulated loads: seeded arrivals, a fake model, a simulated
 * clock.
 *
 * A fake engine follows sched_decide and checks every decision: rows, places and blocks stay within
 * their limits, ranks are respected, deadlines are kept, and a preemption loses no token. At the
 * end every request has ended and every block is free. The last test shows that this file would
 * detect starvation. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "engine/sched.h"

enum {
    N_SEEDS = 10000,
    MAX_REQS = 24,
    BLOCK = 64,
    MAX_TOKENS = 12 * BLOCK,
    MAX_STEPS = 20000,
};

#define MS ((int64_t)1000000)

/* --- the fake engine -------------------------------------------------------------------------- */

struct fake {
    struct sched_req r;
    int n_prompt, n_total, n_known, n_done, n_shown;
    int n_blocks;
    int leader; /* index of a request whose prompt begins with the same tokens; -1: none */
    int hold_steps; /* steps that a preempted request is held until its save has settled */
    bool here, ended, timed_out;
};

struct world {
    struct rng rng;
    struct sched_limits l;
    struct fake f[MAX_REQS];
    int n, n_blocks, n_preempted, n_timed_out;
    int64_t longest_wait_ns;
};

static int blocks_for(int n_tokens)
{
    return (n_tokens + BLOCK - 1) / BLOCK;
}

static int below(struct world *w, int n)
{
    return (int)rng_below(&w->rng, (uint64_t)n);
}

static void world_make(struct world *w, uint64_t seed)
{
    *w = (struct world){.rng = {.s = seed}};
    w->n = 2 + below(w, MAX_REQS - 2);
    w->l.age_ns = (1 + below(w, 50)) * MS;
    w->l.max_running = 1 + below(w, 8);
    w->l.step_rows = w->l.max_running + below(w, 512);
    w->l.rows_beside = below(w, 3) == 0 ? 0 : 1 + below(w, 100);
    w->n_blocks = blocks_for(MAX_TOKENS) + below(w, 30);
    w->l.free_blocks = w->n_blocks;
    int64_t at = 0;
    for (int i = 0; i < w->n; i++) {
        struct fake *f = &w->f[i];
        at += below(w, 3) == 0 ? below(w, 100) * MS : 0;
        f->n_prompt = 1 + below(w, MAX_TOKENS / 2);
        f->n_total = f->n_prompt + 1 + below(w, MAX_TOKENS / 2 - 1);
        f->n_known = f->n_prompt;
        f->r.arrival_ns = at;
        f->r.priority = below(w, 4) == 0 ? below(w, 7) - 3 : 0;
        f->r.deadline_ns = below(w, 6) == 0 ? at + (1 + below(w, 400)) * MS : 0;
        f->leader = i > 0 && below(w, 3) == 0 ? below(w, i) : -1;
    }
}

static void drop(struct world *w, struct fake *f)
{
    w->l.free_blocks += f->n_blocks;
    f->n_blocks = 0;
    f->n_done = 0;
    f->r.phase = SCHED_WAITING;
}

static void end(struct world *w, struct fake *f)
{
    drop(w, f);
    f->ended = true;
}

/* --- checks of one decision ------------------------------------------------------------------- */

struct step {
    struct sched_req req[MAX_REQS];
    struct sched_choice choice[MAX_REQS];
    /* `order` lists req[] by rank; idx[k] is the request of req[k], and at[i] the index in req[] of
     * request i */
    int order[MAX_REQS], idx[MAX_REQS], at[MAX_REQS];
    int n;
};

static void describe(struct world *w, struct step *s)
{
    s->n = 0;
    for (int i = 0; i < w->n; i++) {
        struct fake *f = &w->f[i];
        s->at[i] = -1;
        f->here = f->r.arrival_ns <= w->l.now_ns && !f->ended;
        if (!f->here)
            continue;
        f->r.rows = f->n_known - f->n_done;
        f->r.blocks_freed = f->n_blocks;
        f->r.blocks_needed = f->r.phase == SCHED_WAITING ? blocks_for(f->n_known + 1)
                                                         : f->n_done == f->n_blocks * BLOCK;
        f->r.is_held = f->hold_steps > 0;
        f->hold_steps -= f->hold_steps > 0;
        s->at[i] = s->n;
        s->idx[s->n++] = i;
    }
    for (int k = 0; k < s->n; k++) {
        struct fake *f = &w->f[s->idx[k]];
        f->r.after = f->leader >= 0 ? s->at[f->leader] : -1;
        s->req[k] = f->r;
    }
}

static void check_limits(const struct world *w, const struct step *s)
{
    int rows = 0, n_beside = 0, n_decodes = 0, running = 0, blocks = w->l.free_blocks,
        n_idle = 0, n_pieces = 0;
    for (int k = 0; k < s->n; k++) {
        const struct sched_req *r = &s->req[k];
        enum sched_verdict what = s->choice[k].what;
        bool had = r->phase != SCHED_WAITING;
        bool has = had ? what == SCHED_RUN || what == SCHED_NOTHING : what == SCHED_ADMIT;
        rows += s->choice[k].rows;
        n_decodes += r->phase == SCHED_DECODE && what == SCHED_RUN;
        n_beside += r->phase != SCHED_DECODE ? s->choice[k].rows : 0;
        running += has;
        if (had && !has)
            blocks += r->blocks_freed;
        if (what == SCHED_ADMIT || (what == SCHED_RUN && r->phase == SCHED_DECODE))
            blocks -= r->blocks_needed;
        assert_true(s->choice[k].rows >= 0 && s->choice[k].rows <= r->rows);
        assert_true(what == SCHED_RUN || what == SCHED_ADMIT || s->choice[k].rows == 0);
        n_idle += r->phase == SCHED_DECODE && what == SCHED_NOTHING &&
                  r->blocks_needed == 0;
        n_pieces += r->phase != SCHED_DECODE && s->choice[k].rows > 0;
        if (r->deadline_ns != 0 && w->l.now_ns >= r->deadline_ns)
            assert_int_equal(what, SCHED_TIME_OUT);
        else
            assert_int_not_equal(what, SCHED_TIME_OUT);
    }
    assert_true(rows <= w->l.step_rows);
    assert_true(n_decodes == 0 || w->l.rows_beside == 0 || n_beside <= w->l.rows_beside);
    assert_true(running <= w->l.max_running);
    assert_true(blocks >= 0);
    /* no prompt computes while a decode is idle */
    assert_true(n_idle == 0 || n_pieces == 0);
}

/* Checks ranks. A preempted request ranks below a request that got blocks or a place. An admitted
 * request does not overtake a request that could have been admitted. */
static void check_ranks(const struct world *w, const struct step *s)
{
    bool overtaken = false, gained = false;
    for (int o = 0; o < s->n; o++) {
        int k = s->order[o];
        const struct sched_req *r = &s->req[k];
        enum sched_verdict what = s->choice[k].what;
        if (o > 0)
            assert_true(sched_rank(&s->req[s->order[o - 1]], w->l.age_ns) <=
                        sched_rank(r, w->l.age_ns));
        if (what == SCHED_PREEMPT)
            assert_true(gained);
        gained = gained || what == SCHED_ADMIT ||
                 (r->phase == SCHED_DECODE && r->blocks_needed > 0);
        if (what == SCHED_ADMIT) {
            assert_false(overtaken);
            assert_false(r->is_held);
        }
        overtaken = overtaken || (r->phase == SCHED_WAITING && what == SCHED_NOTHING &&
                                  !r->is_held && r->after < 0);
    }
}

/* --- following the decisions ----------------------------------------------------------------- */

static void preempt(struct world *w, struct fake *f)
{
    drop(w, f);
    f->hold_steps = below(w, 3);
    w->n_preempted++;
}

static void give(struct world *w, struct fake *f, int n_blocks)
{
    f->n_blocks += n_blocks;
    w->l.free_blocks -= n_blocks;
}

/* Admits the request. A part of the state that it had computed before is restored, in whole
 * chunks. */
static void start(struct world *w, struct fake *f)
{
    if (w->l.now_ns - f->r.arrival_ns > w->longest_wait_ns)
        w->longest_wait_ns = w->l.now_ns - f->r.arrival_ns;
    give(w, f, f->r.blocks_needed);
    f->n_done = f->n_shown > 0 || below(w, 2) ? (f->n_known - 1) / BLOCK * BLOCK : 0;
    f->r.phase = below(w, 2) ? SCHED_RESTORE : SCHED_PREFILL;
}

static void run(struct world *w, struct fake *f, int rows)
{
    /* a restore takes one or more steps, whatever its rows */
    if (f->r.phase == SCHED_RESTORE) {
        f->r.phase = below(w, 2) ? SCHED_RESTORE : SCHED_PREFILL;
        return;
    }
    int left = f->n_known - f->n_done;
    f->n_done += rows < left ? rows : left;
    if (f->n_done < f->n_known)
        return;
    f->r.phase = SCHED_DECODE;
    /* no token that was shown is lost */
    assert_int_equal(f->n_known - f->n_prompt, f->n_shown);
    f->n_shown++;
    if (++f->n_known == f->n_total)
        end(w, f);
}

static void carry_out(struct world *w, const struct step *s)
{
    for (int k = 0; k < s->n; k++) {
        struct fake *f = &w->f[s->idx[k]];
        if (s->choice[k].what == SCHED_PREEMPT)
            preempt(w, f);
        if (s->choice[k].what == SCHED_TIME_OUT) {
            end(w, f);
            f->timed_out = true;
            w->n_timed_out++;
        }
    }
    for (int k = 0; k < s->n; k++) {
        struct fake *f = &w->f[s->idx[k]];
        if (s->choice[k].what == SCHED_ADMIT)
            start(w, f);
        else if (s->choice[k].what == SCHED_RUN && f->r.phase == SCHED_DECODE)
            give(w, f, f->r.blocks_needed);
        if (s->choice[k].rows > 0)
            run(w, f, s->choice[k].rows);
    }
    assert_true(w->l.free_blocks >= 0);
}

static int n_left(const struct world *w)
{
    int n = 0;
    for (int i = 0; i < w->n; i++)
        n += !w->f[i].ended;
    return n;
}

static int simulate(struct world *w)
{
    int n_steps = 0;
    while (n_left(w) > 0 && n_steps++ < MAX_STEPS) {
        struct step s;
        describe(w, &s);
        sched_decide(&w->l, s.req, s.n, s.order, s.choice);
        check_limits(w, &s);
        check_ranks(w, &s);
        carry_out(w, &s);
        w->l.now_ns += MS;
    }
    return n_steps;
}

/* --- tests ------------------------------------------------------------------------------------ */

TEST(all_end_and_nothing_leaks)
{
    int64_t n_preempted = 0, n_timed_out = 0, n_requests = 0, n_steps = 0;
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct world w;
        world_make(&w, seed);
        n_steps += simulate(&w);
        if (n_left(&w) != 0 || w.l.free_blocks != w.n_blocks)
            fail_msg("seed %d: %d requests have not ended, %d of %d blocks are free",
                     (int)seed, n_left(&w), w.l.free_blocks, w.n_blocks);
        for (int i = 0; i < w.n; i++)
            assert_true(w.f[i].timed_out || w.f[i].n_known == w.f[i].n_total);
        n_preempted += w.n_preempted;
        n_timed_out += w.n_timed_out;
        n_requests += w.n;
    }
    print_message(
        "# %d seeds: %lld requests, %lld steps, %lld preemptions, %lld deadlines\n",
        N_SEEDS, (long long)n_requests, (long long)n_steps, (long long)n_preempted,
        (long long)n_timed_out);
    assert_true(n_preempted > N_SEEDS && n_timed_out > N_SEEDS / 10);
}

static void one(struct sched_choice *c, const struct sched_limits *l,
                const struct sched_req *r, int n)
{
    int order[8];
    sched_decide(l, r, n, order, c);
}

TEST(decodes_come_first)
{
    struct sched_limits l = {.age_ns = MS, .step_rows = 10, .max_running = 4};
    struct sched_req r[] = {
        {.phase = SCHED_PREFILL, .arrival_ns = 1, .rows = 100, .after = -1},
        {.phase = SCHED_DECODE, .arrival_ns = 2, .rows = 1, .after = -1},
        {.phase = SCHED_DECODE, .arrival_ns = 3, .rows = 1, .after = -1},
        {.phase = SCHED_PREFILL, .arrival_ns = 0, .rows = 3, .after = -1}};
    struct sched_choice c[4];
    one(c, &l, r, 4);
    assert_true(c[1].rows == 1 && c[2].rows == 1);
    assert_int_equal(c[3].rows, 3); /* the first prefill gets all rows that it can use */
    assert_int_equal(c[0].rows, 5);
    r[0].is_whole = true; /* it waits for a step with room for all of its rows */
    one(c, &l, r, 4);
    assert_int_equal(c[3].rows, 3);
    assert_int_equal(c[0].rows, 0);
    l.step_rows = 105;
    one(c, &l, r, 4);
    assert_int_equal(c[0].rows, 100);
}

/* A newcomer leaves a free block for each decoding sequence, which would otherwise be preempted
 * when it needs one. */
TEST(admission_spares_a_block_for_each_decode)
{
    struct sched_limits l = {
        .age_ns = MS, .step_rows = 100, .max_running = 8, .free_blocks = 6};
    struct sched_req r[] = {
        {.phase = SCHED_DECODE, .arrival_ns = 1, .rows = 1, .after = -1},
        {.phase = SCHED_DECODE, .arrival_ns = 2, .rows = 1, .after = -1},
        {.phase = SCHED_WAITING,
         .arrival_ns = 3,
         .rows = 9,
         .blocks_needed = 5,
         .after = -1}};
    struct sched_choice c[3];
    one(c, &l, r, 3);
    assert_int_equal(c[2].what, SCHED_NOTHING);
    l.free_blocks = 7;
    one(c, &l, r, 3);
    assert_int_equal(c[2].what, SCHED_ADMIT);
    /* this request has the blocks of its prompt already, so no block is spared for it */
    r[1].phase = SCHED_PREFILL;
    l.free_blocks = 6;
    one(c, &l, r, 3);
    assert_int_equal(c[2].what, SCHED_ADMIT);
}

TEST(waits_follow_the_queue)
{
    assert_true(sched_wait_s(0, 1, 0.5) == 0.5);
    assert_true(sched_wait_s(9, 2, 0.5) == 2.5);
    assert_true(sched_wait_s(64, 8, 4) == 32.5);
    assert_true(sched_wait_s(3, 0, 2) == 8); /* no request has run yet */
    assert_true(sched_wait_s(3, 4, 0) == 0); /* the average time of requests is not known */
}

TEST(priorities)
{
    struct sched_limits l = {
        .age_ns = 10, .step_rows = 64, .max_running = 1, .free_blocks = 9};
    struct sched_req r[] = {
        {.phase = SCHED_DECODE, .arrival_ns = 0, .rows = 1, .blocks_freed = 1, .after = -1},
        {.arrival_ns = 5, .rows = 9, .blocks_needed = 1, .after = -1},
        {.arrival_ns = 6, .priority = -2, .rows = 9, .blocks_needed = 1, .after = -1}};
    struct sched_choice c[3];
    one(c, &l, r, 3); /* r[2] has the best rank and takes the place */
    assert_int_equal(c[0].what, SCHED_PREEMPT);
    assert_int_equal(c[2].what, SCHED_ADMIT);
    r[2].priority = 0; /* a request of equal rank waits */
    one(c, &l, r, 3);
    assert_int_equal(c[0].what, SCHED_RUN);
    assert_int_equal(c[2].what, SCHED_NOTHING);
    r[2].priority = -2;
    /* preempting would not free enough blocks, so no request is preempted */
    r[2].blocks_needed = 11;
    one(c, &l, r, 3);
    assert_int_equal(c[0].what, SCHED_RUN);
    assert_int_equal(c[2].what, SCHED_NOTHING);
}

/* A waiting request may have the best rank because it has waited longest. Even so it takes neither
 * a place nor blocks from a request of the same priority. Otherwise equal requests would take each
 * other's places again and again. */
TEST(equals_keep_their_places)
{
    for (int lacks = 0; lacks < 2; lacks++) { /* a place; blocks */
        struct sched_limits l = {.age_ns = 10,
                                 .step_rows = 64,
                                 .max_running = 1 + lacks,
                                 .free_blocks = lacks ? 0 : 9};
        struct sched_req r[] = {
            {.phase = SCHED_DECODE,
             .arrival_ns = 9,
             .rows = 1,
             .blocks_freed = 3,
             .after = -1},
            {.arrival_ns = 0, .rows = 9, .blocks_needed = 2, .after = -1}};
        struct sched_choice c[2];
        one(c, &l, r, 2);
        assert_int_equal(c[0].what, SCHED_RUN);
        assert_int_equal(c[1].what, SCHED_NOTHING);
        r[0].priority = 1;
        one(c, &l, r, 2);
        assert_int_equal(c[0].what, SCHED_PREEMPT);
        assert_int_equal(c[1].what, SCHED_ADMIT);
    }
}

/* A request of a worse priority gives its place up, although a running request of the newcomer's
 * own priority came later. */
TEST(a_worse_priority_gives_its_place_up)
{
    struct sched_limits l = {
        .age_ns = 10, .step_rows = 64, .max_running = 2, .free_blocks = 9};
    struct sched_req r[] = {
        {.arrival_ns = 0, .rows = 9, .blocks_needed = 1, .after = -1},
        {.phase = SCHED_DECODE, .priority = 1, .rows = 1, .blocks_freed = 1, .after = -1},
        {.phase = SCHED_DECODE,
         .arrival_ns = 50,
         .rows = 1,
         .blocks_freed = 1,
         .after = -1}};
    struct sched_choice c[3];
    one(c, &l, r, 3);
    assert_int_equal(c[0].what, SCHED_ADMIT);
    assert_int_equal(c[1].what, SCHED_PREEMPT);
    assert_int_equal(c[2].what, SCHED_RUN);
}

TEST(equal_prompts_follow_one)
{
    struct sched_limits l = {
        .age_ns = 10, .step_rows = 64, .max_running = 4, .free_blocks = 9};
    struct sched_req r[] = {{.rows = 9, .blocks_needed = 1, .after = -1},
                            {.rows = 9, .blocks_needed = 1, .after = 0},
                            {.rows = 9, .blocks_needed = 1, .after = -1}};
    struct sched_choice c[3];
    one(c, &l, r, 3);
    assert_int_equal(c[0].what, SCHED_ADMIT);
    assert_int_equal(c[1].what, SCHED_NOTHING);
    assert_int_equal(c[2].what, SCHED_ADMIT);
    r[0].phase = SCHED_DECODE;
    one(c, &l, r, 3);
    assert_int_equal(c[1].what, SCHED_ADMIT);
    /* r[0] is held, so r[1] need not wait for it */
    r[0] = (struct sched_req){.is_held = true, .after = -1};
    one(c, &l, r, 3);
    assert_int_equal(c[0].what, SCHED_NOTHING);
    assert_int_equal(c[1].what, SCHED_ADMIT);
}

/* Returns the time in ns that an unimportant request waits beside a stream of important requests.
 * One of these arrives per step and takes two steps. Because ranks improve with age, the wait is at
 * most the time that the priority is worth. Without ages the request would wait forever. */
static int64_t wait_under_load(int64_t age_ns)
{
    static struct world w;
    w = (struct world){.n = MAX_REQS, .n_blocks = 64};
    w.l = (struct sched_limits){
        .age_ns = age_ns, .step_rows = 64, .max_running = 1, .free_blocks = 64};
    for (int i = 0; i < w.n; i++)
        w.f[i] = (struct fake){.n_prompt = 10,
                               .n_known = 10,
                               .n_total = 12,
                               .leader = -1,
                               .r = {.arrival_ns = i * MS, .priority = i == 1 ? 5 : 0}};
    while (!w.f[1].ended && w.l.now_ns < 200 * MS) {
        struct step s;
        describe(&w, &s);
        sched_decide(&w.l, s.req, s.n, s.order, s.choice);
        carry_out(&w, &s);
        for (int i = 0; i < w.n; i++) { /* a request that has ended is submitted again */
            if (i != 1 && w.f[i].ended)
                w.f[i] = (struct fake){.n_prompt = 10,
                                       .n_known = 10,
                                       .n_total = 12,
                                       .leader = -1,
                                       .r = {.arrival_ns = w.l.now_ns}};
        }
        w.l.now_ns += MS;
    }
    return w.l.now_ns;
}

/* The window of upcoming requests has the scheduler's order, and turns that are not negative. */
TEST(a_turn_is_the_rank_from_the_beginning_of_time)
{
    struct sched_req r = {.arrival_ns = 5000, .priority = 3};
    assert_int_equal(sched_turn(&r, 100), 5300);
    r.priority = -3;
    assert_int_equal(sched_turn(&r, 100), 4700);
    assert_int_equal(sched_turn(&r, 1666), 2);
    assert_int_equal(sched_turn(&r, 1667), 0);
}

TEST(nobody_starves)
{
    assert_true(wait_under_load(2 * MS) < 100 * MS);
    /* without ages the request waits: this test can fail */
    assert_true(wait_under_load(1000 * MS) >= 200 * MS);
}
