/* test_stairs_choices.c - the decisions between two stairs: what a truncated sequence waits for,
 * which view it chooses, which chunks it pins, and what it counts. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/stairs.h"
#include "engine/view.h"
#include "restore/stall.h"
#include "save/saver_impl.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

/* N - 1 is the first token of the eighth stair. */
enum { N = 256 + 6 * 64 + 1, CUT = 7 * 64 };

static const struct truncation small = {.context = 256, .step = 64, .keep = 64};
static const int64_t SECOND = 1000000000;

static struct stack k;

static struct seq *add(const struct et_ask *ask)
{
    static int32_t prompt[N];
    struct et_ask a = *ask;
    et_prompt(prompt, N, 1);
    a.prompt = prompt;
    a.n_prompt = N;
    a.max_tokens = 8;
    a.save = "kv";
    a.truncation = small;
    return et_add(&k, &a);
}

static void open_stack(void)
{
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.save_buffer_bytes = 4 << 20,
                                     .user.no_reuse = true});
    et_platform(&k.platform, 1, 2e-6, 1e-7, 1e9);
}

static struct seq *open_lab(const struct et_ask *ask)
{
    open_stack();
    return add(ask);
}

/* Opens a lab whose store has all state of the prompt, from another sequence. */
static struct seq *open_stored(void)
{
    struct err err = {0};
    open_stack();
    struct seq *s = add(&(struct et_ask){0});
    assert_int_equal(engine_run(k.engine, &err), 0);
    assert_int_equal(saver_flush(k.saver, &err), 0);
    engine_remove(k.engine, s);
    return add(&(struct et_ask){0});
}

static void close_lab(struct seq *s)
{
    engine_remove(k.engine, s);
    stack_close(&k);
}

/* Makes s see the view of a cut. */
static void see(struct seq *s, int cut)
{
    view_set(&s->view, &s->chain, s->tokens, s->n_tokens, cut);
}

/* --- replays ---------------------------------------------------------------------------------- */

TEST(one_truncated_sequence_at_a_time_may_replay)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    assert_true(stairs_may_replay(s));
    s->shared->n_carrying = 1;
    assert_false(stairs_may_replay(s));
    assert_false(stairs_replay(s));
    s->shared->n_carrying = 0;
    et_set_plan(s, "kv");
    assert_false(stairs_may_replay(s));
    et_set_plan(s, "auto");
    assert_true(stairs_may_replay(s));
    s->view.truncation.context = 0;
    assert_false(stairs_may_replay(s));
    s->view.truncation.context = small.context;
    assert_true(stairs_replay(s));
    assert_int_equal(s->shared->n_carrying, 1);
    assert_int_equal(s->shared->stats.n_replays, 1);
    stairs_carry_no_more(s);
    assert_int_equal(s->shared->n_carrying, 0);
    close_lab(s);
}

/* A replay is needed while moved tokens are missing. Its price is that of all tokens up to a
 * position of the view. */
TEST(a_replay_computes_up_to_a_position_of_the_view)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    see(s, CUT);
    s->n_done = 191;
    assert_true(stairs_need_replay(s));
    s->n_done = 192;
    assert_false(stairs_need_replay(s));
    s->n_done = 0;
    assert_true(stairs_replay_s(s, 100) ==
                staircase_price_s(&k.platform, &small, 0, 100 + CUT));
    close_lab(s);
}

/* --- waiting for saves ------------------------------------------------------------------------ */

TEST(a_view_is_chosen_when_saves_have_settled)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    struct save_seq save = {.n_handed_over = 64};
    uint64_t mark = s->stairs.mark;
    assert_true(s->stairs.must_choose);
    assert_false(stairs_must_wait(s));
    s->save = &save;
    assert_true(stairs_must_wait(s));
    save.committed = 64;
    assert_false(stairs_must_wait(s));
    s->save = NULL;
    s->stairs.mark = UINT64_MAX;
    assert_true(stairs_must_wait(s));
    s->stairs.carry.rows = xmalloc(1);
    assert_false(stairs_must_wait(s));
    free(s->stairs.carry.rows);
    s->stairs.carry.rows = NULL;
    s->stairs.must_choose = false;
    assert_false(stairs_must_wait(s));
    s->stairs.must_choose = true;
    s->stairs.mark = mark;
    close_lab(s);
}

/* A saver that makes no progress is borne for a share of the time of a replay. */
TEST(a_silent_saver_is_left)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    struct stairs *st = &s->stairs;
    uint64_t mark = st->mark;
    double limit_s = STALL_LEAVE_SHARE * staircase_price_s(&k.platform, &small, 0, N);
    st->mark = UINT64_MAX;
    s->t_arrival -= 1000000 * SECOND; /* a wait for other reasons does not count */
    stairs_judge_saves(s);
    int64_t heard = st->t_heard;
    assert_true(heard > 0);
    st->t_heard -= (int64_t)((limit_s - 60) * 1e9);
    stairs_judge_saves(s);
    assert_int_equal(s->out.stall, STALL_NONE);
    st->t_heard -= 120 * SECOND;
    st->n_heard++; /* the saver has settled something */
    stairs_judge_saves(s);
    assert_int_equal(s->out.stall, STALL_NONE);
    assert_true(st->t_heard >= heard);
    s->shared->n_carrying = 1; /* another sequence replays */
    stairs_judge_saves(s);
    assert_int_equal(st->t_heard, 0);
    s->shared->n_carrying = 0;
    stairs_judge_saves(s);
    st->t_heard -= (int64_t)((limit_s + 60) * 1e9);
    stairs_judge_saves(s);
    assert_int_equal(s->out.stall, STALL_LEFT);
    assert_int_equal(s->shared->stats.n_stalls[STALL_LEFT], 1);
    assert_int_equal(s->shared->n_carrying, 1);
    st->mark = mark;
    close_lab(s);
}

/* --- the next view ---------------------------------------------------------------------------- */

/* A sequence tries the view of its last token first. If it asks for recomputation, it begins with
 * the first stair, until it has been further. Carried rows fill the view that they belong to, or
 * the next one if they are complete. */
TEST(the_next_view_is_that_of_the_last_token)
{
    struct seq *s = open_lab(&(struct et_ask){.plan = "recompute"});
    assert_int_equal(stairs_next_cut(s), 0);
    s->n_reached = 1;
    assert_int_equal(truncation_cut(&small, N - 1), CUT);
    assert_int_equal(truncation_cut(&small, N), CUT);
    assert_int_equal(stairs_next_cut(s), CUT);
    et_set_plan(s, NULL);
    s->n_reached = 0;
    assert_int_equal(stairs_next_cut(s), CUT);
    s->n_tokens = N - 1; /* its last token is the last one of a stair */
    assert_int_equal(stairs_next_cut(s), CUT - 64);
    s->n_tokens = N;
    s->stairs.must_choose = false;
    assert_int_equal(stairs_next_cut(s), s->view.cut);
    s->stairs.must_choose = true;
    s->stairs.carry.rows = xmalloc(1);
    s->stairs.carry.max_rows = 256;
    s->stairs.carry.cut = 128;
    s->stairs.carry.n = 255;
    assert_int_equal(stairs_next_cut(s), 128);
    s->stairs.carry.n = 256;
    assert_int_equal(stairs_next_cut(s), 128 + 64);
    free(s->stairs.carry.rows);
    s->stairs.carry.rows = NULL;
    close_lab(s);
}

/* The last view whose moved tokens are stored is chosen. Chunks behind a limit count as missing. */
TEST(the_last_stored_view_is_chosen)
{
    struct seq *s = open_stored();
    stairs_choose(s);
    assert_false(s->stairs.must_choose);
    assert_int_equal(s->view.cut, CUT);
    /* one pin at the end of the kept chunk, and one for each moved chunk, which ends a stair */
    assert_int_equal(s->stairs.n_pins, 3);
    assert_int_equal(s->stairs.n_former, 0);
    s->stairs.must_choose = true;
    s->stairs.limit = view_chunk(&s->view,
                                 2); /* the last moved chunk could not be restored */
    stairs_choose(s);
    assert_int_equal(s->view.cut, CUT - 64);
    s->stairs.must_choose = true;
    s->stairs.limit = 0;
    stairs_choose(s);
    assert_int_equal(s->view.cut, 0);
    s->stairs.limit = INT_MAX;
    close_lab(s);
}

/* The chunks that the stair before saw stay pinned while the next one begins: those of one step,
 * behind the kept ones. */
TEST(dropped_chunks_stay_pinned)
{
    struct seq *s = open_stored();
    s->stairs.is_stepping = true;
    stairs_choose(s);
    assert_int_equal(s->stairs.former_end, (64 + CUT) / 64);
    assert_int_equal(s->stairs.former, (64 + CUT) / 64 - 1);
    assert_int_equal(s->stairs.n_former, 1);
    assert_int_equal(s->stairs.n_pins, 1 + 3);
    /* Before the present stair's first chunk is durable they are needed to continue. */
    struct save_seq save = {.committed = truncation_first(&small, CUT) + 63};
    const struct chunk_node *dropped = catalog_find(&k.store->catalog,
                                                    &s->chain.keys[s->stairs.former]);
    s->save = &save;
    stairs_advanced(s);
    assert_int_equal(s->stairs.n_former, 1);
    assert_false(dropped->place.is_dropped);
    save.committed++;
    stairs_advanced(s);
    assert_int_equal(s->stairs.n_former, 0);
    assert_int_equal(s->stairs.n_pins, 3);
    assert_true(dropped->place.is_dropped);
    s->save = NULL;
    s->stairs.is_stepping = false;
    close_lab(s);
}

/* If the stair is lost, the chunks of the stair before are needed again. The first stair has
 * dropped nothing. */
TEST(a_lost_stair_lets_nothing_go)
{
    struct seq *s = open_stored();
    s->stairs.is_stepping = true;
    stairs_choose(s);
    const struct chunk_node *dropped = catalog_find(&k.store->catalog,
                                                    &s->chain.keys[s->stairs.former]);
    s->stairs.must_choose = true;
    s->stairs.limit = 0;
    s->stairs.n_left = N - 1;
    stairs_choose(s);
    assert_int_equal(s->view.cut, 0);
    assert_int_equal(s->stairs.n_replays, 1);
    assert_false(dropped->place.is_dropped);
    assert_int_equal(s->stairs.former, s->stairs.former_end);
    assert_int_equal(s->stairs.n_former, 0);
    s->stairs.is_stepping = false;
    close_lab(s);
}

/* With a remote, the last view of a new request is tried although the store lacks it, once. */
TEST(the_remote_may_have_the_last_view)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    s->shared->has_remote = true;
    stairs_choose(s);
    assert_int_equal(s->view.cut, CUT);
    assert_true(s->stairs.asks_remote && s->stairs.has_asked_remote);
    s->stairs.must_choose = true;
    s->stairs.limit = 1; /* what the remote did not send */
    stairs_choose(s);
    assert_int_equal(s->view.cut, 0);
    assert_false(s->stairs.asks_remote);
    assert_int_equal(s->stairs.limit, INT_MAX);
    s->stairs.must_choose = true;
    s->stairs.has_asked_remote = false;
    s->n_reached = 1; /* it has computed tokens already */
    stairs_choose(s);
    assert_int_equal(s->view.cut, 0);
    assert_false(s->stairs.asks_remote);
    s->shared->has_remote = false;
    close_lab(s);
}

/* A sequence that loses its stair for the ninth time is computed without the store. One that finds
 * its stair again has lost nothing. */
TEST(the_ninth_loss_is_the_last)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    s->stairs.n_left = N - 1; /* it was on the last stair, which is not stored */
    for (int i = 1; i <= 9; i++) {
        s->stairs.must_choose = true;
        stairs_choose(s);
        assert_int_equal(s->stairs.n_replays, i);
        assert_int_equal(s->phase, PHASE_WAIT);
        assert_int_equal(s->shared->n_carrying, i == 9);
    }
    close_lab(s);

    s = open_stored();
    const int left[] = {N - 1, N, CUT + 192};
    for (int i = 0; i < 3; i++) {
        s->stairs.must_choose = true;
        s->stairs.n_left = left[i];
        stairs_choose(s);
        assert_int_equal(s->stairs.n_replays, 0);
    }
    s->stairs.must_choose = true;
    s->n_tokens = s->stairs.n_left = N -
                                     1; /* all tokens were done, and the stair is full */
    stairs_choose(s);
    assert_int_equal(s->view.cut, CUT - 64);
    assert_int_equal(s->stairs.n_replays, 0);
    s->n_tokens = N;
    close_lab(s);
}

/* --- counting --------------------------------------------------------------------------------- */

/* What a sequence had when it left its place counts only if its view was complete. */
TEST(a_complete_view_counts_when_the_place_is_left)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    see(s, CUT);
    s->stairs.n_left = 5;
    stairs_left(s, 191);
    assert_int_equal(s->stairs.n_left, 5);
    assert_int_equal(s->view.cut, 0);
    assert_true(s->stairs.must_choose);
    see(s, CUT);
    stairs_left(s, 192);
    assert_int_equal(s->stairs.n_left, 192 + CUT);
    close_lab(s);
}

/* Only tokens that were done before are computed again. */
TEST(tokens_computed_again_are_counted_once)
{
    struct seq *s = open_lab(&(struct et_ask){0});
    static const struct {
        int reached, end, n_rows, again, reached_then;
    } cases[] = {{0, 100, 100, 0, 100},
                 {100, 100, 60, 60, 100},
                 {100, 130, 50, 20, 130},
                 {100, 160, 60, 0, 160},
                 {200, 150, 10, 10, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        s->n_reached = cases[i].reached;
        s->n_done = cases[i].end;
        s->n_rows = cases[i].n_rows;
        s->out.r.recomputed_tokens = 0;
        stairs_advanced(s);
        assert_int_equal(s->out.r.recomputed_tokens, cases[i].again);
        assert_int_equal(s->n_reached, cases[i].reached_then);
    }
    s->stairs.carry.rows = xmalloc(1);
    stairs_advanced(s);
    assert_int_equal(s->stairs.carry.n, 150);
    free(s->stairs.carry.rows);
    s->stairs.carry.rows = NULL;
    s->n_done = s->n_rows = 0;
    close_lab(s);
}

/* A stair that begins ends the step to it, and reports what its view has dropped. */
TEST(a_stair_that_begins_is_counted)
{
    struct seq *s = open_stored();
    uint64_t n_before = s->shared->stats.n_stairs;
    see(s, CUT);
    s->stairs.limit = 3;
    for (int stepping = 0; stepping < 2; stepping++) {
        s->stairs.is_stepping = stepping == 1;
        stairs_began(s);
        assert_int_equal(s->out.r.truncation.steps, stepping);
        assert_int_equal(s->shared->stats.n_stairs, n_before + (uint64_t)stepping);
        assert_int_equal(s->out.r.truncated_tokens, CUT);
        assert_int_equal(s->stairs.limit, INT_MAX);
        assert_false(s->stairs.is_stepping);
    }
    assert_int_equal(s->stairs.n_pins, 0);
    s->stairs.asks_remote = true; /* and the remote has sent the view */
    stairs_began(s);
    assert_int_equal(s->stairs.n_pins, 3);
    assert_false(s->stairs.asks_remote);
    close_lab(s);
}
