/* test_stall.c - when a restore stops waiting for reads, and whether it then races or leaves
 * them. */
#include <math.h>

#include "tests/unit.h"
#include "restore/stall.h"

/* Recomputing takes a second. 2 of 10 reads came back within 10 ms, and none since then. */
static struct stall_view view(double silent_s)
{
    return (struct stall_view){.recompute_s = 1,
                               .elapsed_s = 0.010 + silent_s,
                               .silent_s = silent_s,
                               .read_s = 0.005,
                               .n_read = 2,
                               .n_left = 8,
                               .may_recompute = true,
                               .can_race = true,
                               .is_idle = true};
}

static enum stall_choice choose(const struct stall_view *v)
{
    double again_s;
    return stall_choose(v, &again_s);
}

TEST(a_silence_of_a_tenth_of_recomputing_is_raced)
{
    struct stall_view v = view(0.0999);
    v.n_left = 1; /* one slow read is left: not yet a crawl */
    assert_int_equal(choose(&v), STALL_WAIT);
    v.silent_s = 0.1001;
    assert_int_equal(choose(&v), STALL_RACE);
    v = view(0.1001);
    v.n_read = 0; /* the disk has not answered at all */
    assert_int_equal(choose(&v), STALL_RACE);
}

TEST(a_race_needs_an_idle_lane_and_is_begun_once)
{
    struct stall_view v = view(60);
    v.is_idle = false;
    assert_int_equal(choose(&v), STALL_WAIT);
    v = view(60);
    v.is_raced = true;
    assert_int_equal(choose(&v), STALL_WAIT);
}

/* Beside decodes, and if layers have windows, recomputation cannot race reads. The restore then
 * gives the reads up and loses what it has read, so this needs more evidence than a race. */
TEST(reads_are_left_where_they_cannot_be_raced)
{
    for (int i = 0; i < 3; i++) {
        struct stall_view v = view(0.9999);
        v.is_beside = i != 1;
        v.can_race = i == 0;
        v.is_raced = i == 2;
        assert_int_equal(choose(&v), STALL_WAIT);
        v.silent_s = 1.0001;
        assert_int_equal(choose(&v), STALL_LEAVE);
        /* A recomputation that is under way is no reason to wait: it has 3 % of the compute. */
        v.is_idle = false;
        assert_int_equal(choose(&v), STALL_LEAVE);
        v.recompute_s = 8;
        assert_int_equal(choose(&v), STALL_WAIT);
        v.silent_s = 1.2001; /* more than 15 % of the 8 s of recomputing */
        assert_int_equal(choose(&v), STALL_LEAVE);
    }
}

TEST(what_cannot_be_recomputed_is_waited_for)
{
    struct stall_view v = view(3600);
    v.may_recompute = false;
    assert_int_equal(choose(&v), STALL_WAIT);
    v = view(3600);
    v.n_left = 0; /* all reads are done, and only compute is left */
    assert_int_equal(choose(&v), STALL_WAIT);
}

/* A slow disk does not hang. A silence must last at least as long as two reads take, by the plan or
 * as this restore has measured them. */
TEST(slow_reads_are_given_their_time)
{
    struct stall_view v = view(0.19);
    v.n_left = 1;
    v.read_s = 0.1;
    assert_int_equal(choose(&v), STALL_WAIT);
    v.silent_s = 0.21;
    assert_int_equal(choose(&v), STALL_RACE);
    v = view(0.19);
    v.n_left = 1;
    v.elapsed_s = 0.39; /* two reads took 0.2 s */
    assert_int_equal(choose(&v), STALL_WAIT);
    v.elapsed_s = 0.41;
    v.silent_s = 0.21;
    assert_int_equal(choose(&v), STALL_RACE);
}

/* The store answers, but slowly: the remaining reads would take longer than half a
 * recomputation. */
TEST(a_crawl_is_raced)
{
    struct stall_view v = view(0.01);
    v.elapsed_s = 0.12; /* 60 ms per read: the 8 remaining reads take 480 ms */
    assert_int_equal(choose(&v), STALL_WAIT);
    v.elapsed_s = 0.13;
    assert_int_equal(choose(&v), STALL_RACE);
    v.is_beside = true; /* beside decodes a restore may also be slow for lack of compute */
    assert_int_equal(choose(&v), STALL_WAIT);
    v = view(0.01);
    v.elapsed_s = 0.09; /* too early to judge the store */
    v.n_read = 1;
    v.n_left = 9;
    assert_int_equal(choose(&v), STALL_WAIT);
}

TEST(a_thread_that_lost_its_core_is_no_stall)
{
    struct stall_view v = view(0.0019);
    v.recompute_s = 0.001;
    v.read_s = 0.0001;
    v.elapsed_s = 0.0020;
    v.n_left = 1;
    v.n_read = 100;
    assert_int_equal(choose(&v), STALL_WAIT);
    v.silent_s = 0.0021;
    assert_int_equal(choose(&v), STALL_RACE);
}

/* The returned time again_s is never too long: sleeping for it misses no decision. */
TEST(it_says_when_to_ask_again)
{
    double again_s;
    struct stall_view v = view(0.04);
    v.n_left = 1;
    assert_int_equal(stall_choose(&v, &again_s), STALL_WAIT);
    assert_float_equal(again_s, 0.06, 1e-9);
    v.is_beside = true;
    assert_int_equal(stall_choose(&v, &again_s), STALL_WAIT);
    assert_float_equal(again_s, 0.96, 1e-9);
    v.may_recompute = false;
    assert_int_equal(stall_choose(&v, &again_s), STALL_WAIT);
    assert_true(isinf(again_s));
}
