/* test_schedule_choices.c - how sequences are described to the scheduler, and how an admitted one
 * begins. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "engine/engine_impl.h"
#include "save/saver_impl.h"
#include "tests/engine/enginetest.h"

enum { N_PROMPT = 300, N_ROWS = 100 };

static const struct truncation small = {.context = 256, .step = 64, .keep = 64};

static struct stack k;
static struct schedule *c;
static int32_t prompts[4][700];

static void open_with(int max_sequences, bool has_store)
{
    et_open(&k, &(struct stack_opts){.user.store_in_memory = has_store,
                                     .user.max_sequences = max_sequences,
                                     .user.save_buffer_bytes = 4 << 20,
                                     .step_rows = N_ROWS});
    c = &k.engine->schedule;
    for (int i = 0; i < 4; i++)
        et_prompt(prompts[i], 700, 10 + (uint64_t)i);
}

/* Opens a stack with a store. Computing takes so long that no look-up is left. */
static void open_stack(int max_sequences)
{
    open_with(max_sequences, true);
    et_platform(&k.platform, 1, 2e-6, 1e-7, 1e9);
}

static struct seq *add(int i, int n, int priority, const struct et_ask *ask)
{
    struct err err = {0};
    struct seq *s;
    struct et_ask a = *ask;
    a.prompt = prompts[i];
    a.n_prompt = n;
    a.max_tokens = a.max_tokens > 0 ? a.max_tokens : 50;
    struct request *q = et_request(&k, &a);
    q->ask.priority = priority;
    assert_int_equal(et_submit(k.engine, q, &s, &err), 0);
    return s;
}

static void step(void)
{
    struct err err = {0};
    int n_active;
    assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
}

static void run_to_end(struct seq *s)
{
    while (s->phase != PHASE_DONE)
        step();
    if (k.saver != NULL)
        assert_int_equal(saver_flush(k.saver, NULL), 0);
}

/* Returns how the last step has described a sequence. */
static int index_of(const struct seq *s)
{
    for (int i = 0; i < c->n_live; i++)
        if (c->seqs[i] == s)
            return i;
    fail();
    return -1;
}

static const struct sched_req *view_of(const struct seq *s)
{
    return &c->view[index_of(s)];
}

static const struct lead_request *prompt_of(const struct seq *s)
{
    return &c->prompt[index_of(s)];
}

/* A prompt that is being computed has the rows that are not done. A decode has one row, and frees
 * the blocks that no other sequence shares. */
TEST(running_sequences_are_described)
{
    open_with(3, false);
    struct seq *a = add(0, N_PROMPT, 3, &(struct et_ask){0});
    while (a->n_done == 0)
        step();
    assert_int_equal(a->n_done, N_ROWS);
    struct seq *b = add(0, N_PROMPT, 4, &(struct et_ask){0});
    a->req->deadline_ns = INT64_MAX;
    schedule_step(c);
    assert_int_equal(view_of(a)->phase, SCHED_PREFILL);
    assert_int_equal(view_of(a)->rows, N_PROMPT - N_ROWS);
    assert_int_equal(view_of(a)->priority, 3);
    assert_true(view_of(a)->arrival_ns == a->t_arrival && a->t_arrival != a->t_start);
    assert_true(view_of(a)->deadline_ns == INT64_MAX);
    assert_int_equal(view_of(a)->after, -1);
    assert_int_equal(prompt_of(a)->n_done, N_ROWS);
    assert_int_equal(view_of(b)->after, index_of(a));
    a->req->deadline_ns = 0;
    while (b->phase != PHASE_DECODE)
        step();
    assert_int_equal(a->phase, PHASE_DECODE);
    schedule_step(c);
    assert_int_equal(view_of(a)->rows, 1);
    int n_shared = N_PROMPT / 64;
    assert_int_equal(view_of(a)->blocks_freed, a->table.n_blocks - n_shared);
    assert_int_equal(view_of(b)->blocks_freed, b->table.n_blocks - n_shared);
    run_to_end(a);
    run_to_end(b);
    engine_remove(k.engine, a);
    engine_remove(k.engine, b);
    stack_close(&k);
}

/* A decode that waited for the saver has kept the guesses of that step. The next step has a prompt,
 * so it proposes none, and it must not compute the old ones: their tokens are stale. */
TEST(guesses_of_a_step_that_was_put_off_are_dropped)
{
    et_open(&k, &(struct stack_opts){
                    .user.max_sequences = 2, .user.speculate = "15", .step_rows = N_ROWS});
    c = &k.engine->schedule;
    struct seq *a = add(0, N_PROMPT, 3, &(struct et_ask){.max_tokens = 20});
    while (a->phase != PHASE_DECODE)
        step();
    struct seq *b = add(1, N_PROMPT, 3, &(struct et_ask){.max_tokens = 2});
    int64_t n_guessed = a->out.r.guessed_tokens;
    a->guess.n = 3;
    step();
    assert_int_equal(b->phase, PHASE_PREFILL);
    assert_int_equal(a->n_rows, 1);
    assert_int_equal(a->out.r.guessed_tokens, n_guessed);
    run_to_end(a);
    run_to_end(b);
    engine_remove(k.engine, a);
    engine_remove(k.engine, b);
    stack_close(&k);
}

/* A waiting prompt needs rows and blocks for the tokens that the device does not know. Known blocks
 * that no sequence uses count as needed. While no place is free, nothing is looked up. */
TEST(waiting_sequences_are_described)
{
    open_stack(2);
    struct seq *a = add(0, N_PROMPT, 0, &(struct et_ask){.max_tokens = 1});
    run_to_end(a);
    for (int full = 1; full >= 0; full--) {
        c->o.max_seqs = full ? 0 : 1;
        struct seq *s = add(0, N_PROMPT, 0, &(struct et_ask){0});
        schedule_step(c);
        const struct sched_req *r = view_of(s);
        assert_int_equal(r->phase, SCHED_WAITING);
        assert_int_equal(r->rows, full ? N_PROMPT : N_PROMPT - 4 * 64);
        assert_int_equal(r->blocks_needed, seq_blocks_wanted(s));
        assert_int_equal(r->after, -1);
        assert_false(r->is_held);
        if (!full) {
            c->o.max_seqs = 2;
            struct seq *other = add(0, N_PROMPT, 0, &(struct et_ask){0});
            schedule_step(c); /* s uses the blocks now */
            assert_int_equal(view_of(other)->blocks_needed, seq_blocks_wanted(s) - 4);
            run_to_end(other);
            engine_remove(k.engine, other);
            run_to_end(s);
        }
        engine_remove(k.engine, s);
    }
    engine_remove(k.engine, a);
    stack_close(&k);
}

/* A sequence that is not saved may copy a part of a block. A forced plan reuses nothing. */
TEST(prompts_tell_what_they_may_share)
{
    open_stack(3);
    struct seq *s[] = {add(0, N_PROMPT, 0, &(struct et_ask){0}),
                       add(1, N_PROMPT, 0, &(struct et_ask){.save = "kv"}),
                       add(2, N_PROMPT, 0, &(struct et_ask){.plan = "recompute"})};
    schedule_step(c);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(prompt_of(s[i])->may_copy, i != 1);
        assert_int_equal(prompt_of(s[i])->may_reuse, i != 2);
        assert_int_equal(prompt_of(s[i])->n_tokens, N_PROMPT);
    }
    for (int i = 0; i < 3; i++) {
        run_to_end(s[i]);
        engine_remove(k.engine, s[i]);
    }
    stack_close(&k);
}

/* A sequence is held while its saved state is on its way to the store, unless it carries its state
 * itself. A truncated one is held until it has chosen its view. While no place is free, it need not
 * have chosen: it asks for the place if it could choose. */
TEST(unsettled_sequences_are_held)
{
    open_stack(1);
    c->o.max_seqs = 0;
    struct save_seq save = {.n_handed_over = 64};
    struct seq *s = add(0, 600, 0, &(struct et_ask){.save = "kv", .truncation = small});
    s->stairs.must_choose = false;
    schedule_step(c);
    assert_false(view_of(s)->is_held);
    s->save = &save;
    schedule_step(c);
    assert_true(view_of(s)->is_held);
    s->stairs.carry.rows = xmalloc(1);
    schedule_step(c);
    assert_false(view_of(s)->is_held);
    free(s->stairs.carry.rows);
    s->stairs.carry.rows = NULL;
    s->save = NULL;
    s->stairs.must_choose = true;
    schedule_step(c);
    assert_false(view_of(s)->is_held);
    uint64_t mark = s->stairs.mark;
    s->stairs.mark = UINT64_MAX; /* state is on its way that the view may need */
    schedule_step(c);
    assert_true(view_of(s)->is_held);
    c->o.max_seqs = 1;
    schedule_step(c);
    assert_true(view_of(s)->is_held && s->stairs.must_choose);
    s->stairs.mark = mark;
    run_to_end(s);
    engine_remove(k.engine, s);
    stack_close(&k);
}

/* If the store has no more than the device, the prompt is computed at once. The chunk of the last
 * token does not count. */
TEST(what_the_device_has_is_not_looked_up)
{
    static const struct {
        int n_tokens, n_device;
        bool restores;
        const char *miss;
    } cases[] = {{256, 192, false, ""},
                 {192, 128, false, ""},
                 {200, 192, false, ""},
                 {400, 256, false, STORE_WHY_ABSENT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        open_stack(1);
        struct seq *a = add(0, 256, 0, &(struct et_ask){.save = "kv", .max_tokens = 1});
        run_to_end(a);
        struct seq *s = add(0, cases[i].n_tokens, 0, &(struct et_ask){.save = "kv"});
        schedule_step(c);
        assert_int_equal(s->phase, cases[i].restores ? PHASE_RESTORE : PHASE_PREFILL);
        assert_int_equal(s->out.r.device_tokens, cases[i].n_device);
        assert_int_equal(s->out.r.cached_tokens, cases[i].n_device);
        assert_int_equal(s->out.n_stored, cases[i].n_device);
        assert_string_equal(s->out.r.miss, cases[i].miss);
        run_to_end(s);
        engine_remove(k.engine, s);
        engine_remove(k.engine, a);
        stack_close(&k);
    }
}

/* The second admission of a sequence does not change the report of what the device had. */
TEST(the_first_admission_is_reported)
{
    for (int again = 0; again < 2; again++) {
        open_stack(1);
        struct seq *s = add(0, N_PROMPT, 0, &(struct et_ask){.save = "kv"});
        s->has_first = again == 1;
        s->out.r.device_tokens = 77;
        schedule_step(c);
        assert_int_equal(s->phase, PHASE_RESTORE);
        assert_int_equal(s->out.r.device_tokens, again == 1 ? 77 : 0);
        run_to_end(s);
        engine_remove(k.engine, s);
        stack_close(&k);
    }
}

/* Prompts beside decodes get the rows that the measured speeds allow, or all rows of a step. */
TEST(rows_beside_decodes_may_be_unlimited)
{
    open_stack(1);
    c->speed = (struct beside_speed){.decode_ns = 1e6, .row_ns = 5e4};
    c->o.no_limit_beside = false;
    schedule_step(c);
    assert_int_equal(c->rows_beside, beside_rows(&c->speed));
    assert_int_equal(c->rows_beside, 30);
    c->o.no_limit_beside = true;
    schedule_step(c);
    assert_int_equal(c->rows_beside, N_ROWS);
    stack_close(&k);
}

/* A truncated context continues the tokens of its view: the number of stored tokens includes those
 * that the view has dropped. */
TEST(a_view_on_the_device_is_continued)
{
    open_stack(1);
    const struct et_ask a = {.save = "kv", .truncation = small, .max_tokens = 1};
    struct seq *s = add(0, 600, 0, &a);
    run_to_end(s);
    engine_remove(k.engine, s);
    s = add(0, 600, 0, &a);
    schedule_step(c);
    int64_t cut = truncation_cut(&small, 599);
    assert_int_equal(s->view.cut, cut);
    assert_int_equal(s->phase, PHASE_PREFILL);
    assert_true(s->n_done >= view_moved(&s->view));
    assert_int_equal(s->out.n_stored, s->n_done / 64 * 64 + cut);
    run_to_end(s);
    engine_remove(k.engine, s);
    stack_close(&k);
}
