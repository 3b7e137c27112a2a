/* test_seq.c - the phases of a sequence: the transitions that exist, their causes, and that no
 * others are possible. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_impl.h"
#include "engine/view.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

enum { N_STORED = 4 * 64, N_PROMPT = N_STORED + 20, STEP_ROWS = 64 };

/* A context of N_STORED tokens on a simulated disk, and an engine with one place, so that a request
 * of better rank preempts. */
struct lab {
    struct io *io;
    struct stack k;
    int32_t prompt[N_PROMPT], other[N_PROMPT];
    uint64_t seen[PHASES][PHASES]; /* transitions counted so far */
};

static struct lab lab;

static struct engine *engine(void)
{
    return lab.k.engine;
}

static void lab_open(void)
{
    struct et_run r;
    memset(&lab, 0, sizeof lab);
    lab.io = et_disk(3, 0);
    et_open(&lab.k, &(struct stack_opts){.user.store = et_dirs,
                                         .user.n_store = 2,
                                         .user.max_sequences = 1,
                                         .user.no_reuse = true,
                                         .io = lab.io,
                                         .step_rows = STEP_ROWS});
    et_prompt(lab.prompt, N_PROMPT, 11);
    et_prompt(lab.other, N_PROMPT, 12);
    struct et_ask a = {.prompt = lab.prompt,
                       .n_prompt = N_STORED,
                       .max_tokens = 1,
                       .save = "both",
                       .plan = "recompute"};
    assert_int_equal(et_run(&lab.k, &a, &r), 0);
    memcpy(lab.seen, engine()->shared.n_edges, sizeof lab.seen);
}

static void lab_close(void)
{
    stack_close(&lab.k);
    io_close(lab.io);
}

static struct request *request(const int32_t *prompt, int max_tokens, const char *plan)
{
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = max_tokens,
                       .plan = plan,
                       .restore_first = true};
    return et_request(&lab.k, &a);
}

static struct seq *add(struct request *q)
{
    struct err err = {0};
    struct seq *s;
    if (et_submit(engine(), q, &s, &err) != 0)
        fail_msg("%s", err.msg);
    return s;
}

static int step(void)
{
    struct err err = {0};
    int n_active;
    if (engine_step(engine(), &n_active, &err) != 0)
        fail_msg("%s", err.msg);
    return n_active;
}

static void step_until(const struct seq *s, enum phase phase)
{
    while (s->phase != phase) {
        assert_int_not_equal(s->phase, PHASE_DONE);
        step();
    }
}

static void run_all(void)
{
    while (step() > 0)
        ;
}

/* Makes reads hang. The alarm ends a program that waits for one forever. */
static void stop_reads(void)
{
    struct io_sim_fault f = {.kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(lab.io, &f), 0);
    alarm(300);
}

static void let_reads_go_on(void)
{
    alarm(0);
    io_sim_fault_clear(lab.io);
    io_sim_unstick(lab.io);
}

struct edge {
    enum phase from, to;
    int n;
};

/* Fails unless exactly these transitions have occurred since the last call, each as often as
 * given. */
static void expect_edges(const struct edge *e, int n)
{
    uint64_t want[PHASES][PHASES];
    memcpy(want, lab.seen, sizeof want);
    for (int i = 0; i < n; i++)
        want[e[i].from][e[i].to] += (uint64_t)e[i].n;
    for (int from = 0; from < PHASES; from++)
        for (int to = 0; to < PHASES; to++)
            if (want[from][to] != engine()->shared.n_edges[from][to])
                fail_msg("%d -> %d: %d times, %d expected", from, to,
                         (int)(engine()->shared.n_edges[from][to] - lab.seen[from][to]),
                         (int)(want[from][to] - lab.seen[from][to]));
    memcpy(lab.seen, engine()->shared.n_edges, sizeof lab.seen);
}

#define EXPECT(...)                                                                        \
    expect_edges((const struct edge[]){__VA_ARGS__},                                       \
                 (int)(sizeof((const struct edge[]){__VA_ARGS__}) / sizeof(struct edge)))

/* --- the diagram -------------------------------------------------------------------------------
 */

static const char drawn[PHASES][PHASES + 1] = {
    /* columns: to WAIT, RESTORE, PREFILL, DECODE, and the end */
    [PHASE_WAIT] = ".xx.x",   [PHASE_RESTORE] = "x.x.x", [PHASE_PREFILL] = "x..xx",
    [PHASE_DECODE] = "x..xx", [PHASE_DONE] = ".....",
};

TEST(edges_are_those_of_the_drawing)
{
    for (int from = 0; from < PHASES; from++)
        for (int to = 0; to < PHASES; to++)
            assert_int_equal(phase_may_follow((enum phase)from, (enum phase)to),
                             drawn[from][to] == 'x');
}

/* --- every other transition ends the program ---------------------------------------------------
 */

static void to_restore(struct seq *s)
{
    seq_enter_restore(s);
}
static void to_prefill(struct seq *s)
{
    seq_enter_prefill(s);
}
static void to_wait(struct seq *s)
{
    seq_preempt(s);
}
static void to_done(struct seq *s)
{
    seq_finish(s, FINISH_CANCELLED);
}
static void to_failed(struct seq *s)
{
    seq_fail(s, ERR_UNSUPPORTED, "a test");
}
/* Takes a sequence to DECODE with its first token, which is not its last. */
static void to_decode(struct seq *s)
{
    s->n_rows = s->n_tokens;
    s->n_done = 0;
    s->next = 5;
    s->req->ask.digest = false;
    seq_advance(s);
}

/* Runs the request in a child process, with s in phase `from`. Returns whether the process survives
 * and s is in phase `to`. */
static bool survives(struct seq *s, enum phase from, void (*request_of)(struct seq *),
                     enum phase to)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        s->phase = from;
        request_of(s);
        _exit(s->phase == to ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    bool done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    assert_true(died || done);
    return done;
}

TEST(an_edge_that_is_not_drawn_ends_the_program)
{
    static const struct {
        void (*request_of)(struct seq *);
        enum phase to;
    } requests[] = {{to_wait, PHASE_WAIT},       {to_restore, PHASE_RESTORE},
                    {to_prefill, PHASE_PREFILL}, {to_decode, PHASE_DECODE},
                    {to_done, PHASE_DONE},       {to_failed, PHASE_DONE}};
    lab_open();
    struct seq *s = add(request(lab.prompt, 3, "recompute"));
    for (int from = 0; from < PHASES; from++)
        for (int i = 0; i < 6; i++)
            if (survives(s, (enum phase)from, requests[i].request_of, requests[i].to) !=
                (drawn[from][requests[i].to] == 'x'))
                fail_msg("phase %d, request %d for phase %d", from, i, requests[i].to);
    engine_remove(engine(), s);
    lab_close();
}

/* --- causes of each transition -----------------------------------------------------------------
 */

TEST(a_prompt_is_computed_and_decodes)
{
    lab_open();
    struct seq *s = add(request(lab.prompt, 4, "recompute"));
    EXPECT({0});
    run_all();
    EXPECT({PHASE_WAIT, PHASE_PREFILL, 1}, {PHASE_PREFILL, PHASE_DECODE, 1},
           {PHASE_DECODE, PHASE_DECODE, 3}, {PHASE_DECODE, PHASE_DONE, 1});
    engine_remove(engine(), s);
    /* like a document: no token is generated */
    s = add(request(lab.prompt, 0, "recompute"));
    run_all();
    EXPECT({PHASE_WAIT, PHASE_PREFILL, 1}, {PHASE_PREFILL, PHASE_DONE, 1});
    engine_remove(engine(), s);
    lab_close();
}

/* One prompt is stored, the other is not. Both pass through RESTORE, which begins with the look-up;
 * only the stored prompt finds tokens. */
TEST(state_comes_back)
{
    const int32_t *const prompts[] = {lab.prompt, lab.other};
    lab_open();
    for (int fused = 0; fused < 2; fused++) {
        for (int i = 0; i < 2; i++) {
            struct request *q = request(prompts[i], 1, "kv");
            q->restore_first = !fused;
            struct seq *s = add(q);
            run_all();
            assert_int_equal(seq_outcome(s)->r.cached_tokens, i == 0 ? N_STORED : 0);
            EXPECT({PHASE_WAIT, PHASE_RESTORE, 1}, {PHASE_RESTORE, PHASE_PREFILL, 1},
                   {PHASE_PREFILL, PHASE_DECODE, 1}, {PHASE_DECODE, PHASE_DONE, 1});
            engine_remove(engine(), s);
        }
    }
    lab_close();
}

static void count_admission(void *arg)
{
    ++*(int *)arg;
}

/* The first admission that computes something is reported, and not one that lost its place before:
 * the next one restores what it had restored, and more. */
TEST(an_admission_without_progress_is_not_reported)
{
    lab_open();
    for (int n = 0; n < 2; n++) {
        struct seq *s = add(request(lab.prompt, 4, "recompute"));
        step_until(s, PHASE_DECODE);
        s->out.r.cached_tokens = seq_at(s) - n; /* as if n tokens had been computed */
        seq_preempt(s);
        assert_int_equal(s->has_first, n > 0);
        assert_int_equal(s->out.r.cached_tokens > 0, n > 0);
        run_all();
        assert_int_equal(seq_outcome(s)->r.n_preempted, 1);
        engine_remove(engine(), s);
    }
    lab_close();
}

/* A request of better rank takes the only place. The first sequence comes back, and ends with the
 * tokens that it gives alone. */
TEST(a_better_rank_preempts_in_each_phase)
{
    static const enum phase phases[] = {PHASE_RESTORE, PHASE_PREFILL, PHASE_DECODE};
    int32_t alone[4];
    lab_open();
    struct seq *s = add(request(lab.prompt, 4, "recompute"));
    run_all();
    memcpy(alone, seq_outcome(s)->r.token_ids, sizeof alone);
    engine_remove(engine(), s);
    for (int i = 0; i < 3; i++) {
        memcpy(lab.seen, engine()->shared.n_edges, sizeof lab.seen);
        struct request *q = request(lab.prompt, 4, i == 0 ? "kv" : "recompute");
        int n_admitted = 0;
        q->ask.priority = 9;
        q->on_admit = count_admission;
        q->arg = &n_admitted;
        if (i == 0)
            stop_reads();
        s = add(q);
        step_until(s, phases[i]);
        struct seq *better = add(request(lab.other, 0, "recompute"));
        while (s->phase != PHASE_WAIT)
            step();
        assert_int_equal(engine()->shared.n_edges[phases[i]][PHASE_WAIT],
                         lab.seen[phases[i]][PHASE_WAIT] + 1);
        if (i == 0) {
            let_reads_go_on();
            et_set_plan(s, "kv"); /* a preemption drops it */
        }
        run_all();
        /* A sequence that lost its place during its restore reports the restore that ended. */
        if (i == 0) {
            assert_in_range(seq_outcome(s)->r.cached_tokens, 64, N_PROMPT);
            assert_int_equal(seq_outcome(s)->r.device_tokens, 0);
            assert_true(seq_outcome(s)->restore.read_bytes > 0);
            assert_true(seq_outcome(s)->plan.n_layers > 0);
        }
        assert_int_equal(seq_outcome(better)->finish, FINISH_LENGTH);
        assert_int_equal(n_admitted, 1); /* coming back is no admission */
        assert_int_equal(seq_outcome(s)->r.n_preempted, 1);
        assert_memory_equal(seq_outcome(s)->r.token_ids, alone, sizeof alone);
        engine_remove(engine(), s);
        engine_remove(engine(), better);
    }
    lab_close();
}

/* While a sequence runs, the last chunk that it continues is pinned, whether its state came from
 * the store or from blocks on the device. So no chunk of its beginning is evicted. */
TEST(a_sequence_pins_what_it_continues)
{
    for (int reuse = 0; reuse < 2; reuse++) {
        struct et_run r;
        memset(&lab, 0, sizeof lab);
        et_open(&lab.k, &(struct stack_opts){.user.store_in_memory = true,
                                             .user.no_reuse = !reuse,
                                             .step_rows = STEP_ROWS});
        et_prompt(lab.prompt, N_PROMPT, 11);
        struct et_ask a = {
            .prompt = lab.prompt, .n_prompt = N_STORED, .max_tokens = 1, .save = "both"};
        assert_int_equal(et_run(&lab.k, &a, &r), 0);
        struct seq *s = add(request(lab.prompt, 4, NULL));
        step_until(s, PHASE_DECODE);
        assert_int_equal(seq_outcome(s)->r.device_tokens, reuse ? N_STORED : 0);
        assert_int_equal(seq_outcome(s)->r.cached_tokens, N_STORED);
        assert_int_equal(seq_outcome(s)->n_stored, N_STORED);
        const struct catalog *c = &lab.k.store->catalog;
        const struct chunk_node *n = catalog_find(c, &s->chain.keys[N_STORED / 64 - 1]);
        assert_true(n != NULL && n->n_pins == 1 && s->pin.impl != NULL);
        engine_remove(engine(), s);
        assert_int_equal(n->n_pins, 0);
        stack_close(&lab.k);
    }
}

/* In each phase a sequence may end: at its deadline, or because its plan is impossible. */
TEST(a_sequence_ends_in_each_phase)
{
    static const enum phase phases[] = {PHASE_WAIT, PHASE_RESTORE, PHASE_PREFILL,
                                        PHASE_DECODE};
    lab_open();
    stop_reads();
    for (int i = 0; i < 4; i++) {
        struct seq *first = NULL;
        if (phases[i] == PHASE_WAIT) { /* the only place is taken */
            first = add(request(lab.other, 500, "recompute"));
            step_until(first, PHASE_DECODE);
        }
        struct seq *s = add(
            request(lab.prompt, 500, phases[i] == PHASE_RESTORE ? "kv" : "recompute"));
        step_until(s, phases[i]);
        memcpy(lab.seen, engine()->shared.n_edges, sizeof lab.seen);
        s->req->deadline_ns = clock_now_ns() - 1;
        step();
        assert_int_equal(seq_outcome(s)->finish, FINISH_TIMEOUT);
        assert_null(s->restore); /* its blocks are given back, so it must not go on */
        assert_int_equal(s->table.n_blocks, 0);
        assert_int_equal(engine()->shared.n_edges[phases[i]][PHASE_DONE],
                         lab.seen[phases[i]][PHASE_DONE] + 1);
        engine_remove(engine(), s);
        if (first != NULL)
            engine_remove(engine(), first);
    }
    let_reads_go_on();
    memcpy(lab.seen, engine()->shared.n_edges, sizeof lab.seen);
    struct request *q = request(lab.prompt, 2, "RHK"); /* the model has four layers */
    struct seq *s = add(q);
    run_all();
    assert_int_equal(seq_outcome(s)->finish, FINISH_ERROR);
    EXPECT({PHASE_WAIT, PHASE_RESTORE, 1}, {PHASE_RESTORE, PHASE_DONE, 1});
    engine_remove(engine(), s);
    lab_close();
}

static int stop_at_third(void *arg, int32_t id)
{
    assert_true(id >= 0);
    return ++*(int *)arg == 3;
}

/* The request's owner may end it with any token. That token counts. */
TEST(the_owner_cancels)
{
    int n = 0;
    lab_open();
    struct request *q = request(lab.prompt, 5, "recompute");
    q->on_token = stop_at_third;
    q->arg = &n;
    struct seq *s = add(q);
    run_all();
    assert_int_equal(seq_outcome(s)->finish, FINISH_CANCELLED);
    assert_int_equal(seq_outcome(s)->r.n_tokens, 3);
    assert_int_equal(n, 3);
    EXPECT({PHASE_WAIT, PHASE_PREFILL, 1}, {PHASE_PREFILL, PHASE_DECODE, 1},
           {PHASE_DECODE, PHASE_DECODE, 2}, {PHASE_DECODE, PHASE_DONE, 1});
    engine_remove(engine(), s);
    lab_close();
}

/* The second request takes over blocks of the first one on the device, while the first one's chunks
 * are not durable yet. Once they are, they count as the second one's, too. */
TEST(chunks_of_another_request_count_once_they_are_durable)
{
    struct io_sim_fault f = {.kind = IO_SIM_STUCK, .on = IO_SIM_ON_WRITE, .path = "seg-"};
    struct seq *s[2];
    memset(&lab, 0, sizeof lab);
    lab.io = et_disk(3, 0);
    et_open(&lab.k, &(struct stack_opts){.user.store = et_dirs,
                                         .user.n_store = 2,
                                         .user.max_sequences = 2,
                                         .io = lab.io,
                                         .step_rows = STEP_ROWS});
    et_prompt(lab.prompt, N_PROMPT, 11);
    struct et_ask a = {
        .prompt = lab.prompt, .n_prompt = N_PROMPT, .max_tokens = 40, .save = "both"};
    assert_int_equal(io_sim_fault_add(lab.io, &f), 0);
    alarm(300);
    for (int i = 0; i < 2; i++) {
        s[i] = add(et_request(&lab.k, &a));
        step_until(s[i], PHASE_DECODE);
    }
    assert_int_equal(seq_outcome(s[1])->r.device_tokens, N_STORED);
    assert_int_equal(seq_outcome(s[1])->n_stored, 0);
    assert_int_equal(seq_committed_tokens(s[1]), 0);
    io_sim_fault_clear(lab.io);
    io_sim_unstick(lab.io);
    while (seq_committed_tokens(s[0]) < N_STORED)
        clock_sleep_ns(1000000);
    alarm(0);
    assert_int_equal(seq_committed_tokens(s[1]), N_STORED);
    for (int i = 0; i < 2; i++)
        engine_remove(engine(), s[i]);
    lab_close();
}

/* Blocks on the device are known up to the last token of the prompt, which is always computed. */
TEST(the_last_token_of_a_known_prompt_is_computed)
{
    struct et_run r;
    memset(&lab, 0, sizeof lab);
    et_open(&lab.k, &(struct stack_opts){.step_rows = STEP_ROWS});
    et_prompt(lab.prompt, N_PROMPT, 11);
    struct et_ask a = {.prompt = lab.prompt, .n_prompt = 2 * KV_BLOCK_TOKENS + 1};
    assert_int_equal(et_run(&lab.k, &a, &r), 0);
    for (int more = 0; more < 2; more++) {
        int n_unused = -1;
        a.n_prompt = 2 * KV_BLOCK_TOKENS + more;
        struct seq *s = add(et_request(&lab.k, &a));
        assert_int_equal(seq_find_known(s, &n_unused), 1 + more);
        assert_int_equal(n_unused, 1 + more);
        run_all();
        assert_int_equal(seq_outcome(s)->r.cached_tokens, a.n_prompt - 1);
        engine_remove(engine(), s);
    }
    stack_close(&lab.k);
}

/* A sequence that ends gives its declared use to its blocks, with its lot, its class and its owner.
 * A hint of more than a quarter of the clock's range counts as that quarter. */
TEST(blocks_know_their_use)
{
    static const struct truncation small = {.context = 256, .step = 64, .keep = 64};
    static const struct {
        const char *salt;
        uint32_t reuse_in_s, reuse_in;
    } cases[] = {{NULL, 0, 0},
                 {"alice", 10, 10 * KV_TIME_PER_S},
                 {"bob", UINT32_MAX / 4 / KV_TIME_PER_S, UINT32_MAX / 4 - 15},
                 {"bob", UINT32_MAX / 4 / KV_TIME_PER_S + 1, UINT32_MAX / 4},
                 {"bob", UINT32_MAX, UINT32_MAX / 4}};
    lab_open();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool is_truncated = i % 2;
        struct et_ask a = {.prompt = lab.prompt,
                           .n_prompt = N_PROMPT,
                           .max_tokens = 1,
                           .salt = cases[i].salt,
                           .restore_first = true};
        struct request *q = et_request(&lab.k, &a);
        q->ask.expect_reuse_in_s = cases[i].reuse_in_s;
        q->ask.turn = (int)i;
        q->ask.may_call_tools = i == 2;
        struct seq *s = add(q);
        s->view.truncation = is_truncated ? small : s->view.truncation;
        int64_t from = clock_now_ns() / (1000000000 / KV_TIME_PER_S);
        seq_drop_blocks(s);
        int64_t to = clock_now_ns() / (1000000000 / KV_TIME_PER_S);
        const struct kv_use *u = &s->table.use;
        assert_in_range(u->time, from, to);
        assert_int_equal(u->reuse_in, cases[i].reuse_in);
        assert_int_equal(u->class,
                         placement_class_owner(placement_class((int)i, i == 2, false),
                                               store_owner(cases[i].salt)));
        assert_true(u->lot == (uint64_t)s->t_arrival && u->lot > 0);
        double share = is_truncated ? staircase_share(&small, N_PROMPT) : 1;
        assert_true(u->share == share && (share > 1) == is_truncated);
        struct store_use use = seq_use(s);
        assert_int_equal(use.reuse_in_s, cases[i].reuse_in_s);
        assert_int_equal(use.turn, i);
        assert_true(use.lot == u->lot && use.share == share);
        s->view.truncation = (struct truncation){0};
        engine_remove(engine(), s);
    }
    lab_close();
}
