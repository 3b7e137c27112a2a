/* test_beside.c - the shares of time that restores and prompts may take beside decodes. */

#include "tests/unit.h"
#include <math.h>

#include "base/rng.h"
#include "restore/beside.h"

enum { MS = 1000 * 1000 };

TEST(restores_earn_three_percent_of_a_pass)
{
    struct beside_credit c = {0};
    assert_false(beside_may_work(&c));
    beside_earn(&c, 100 * MS, 0);
    assert_int_equal(c.ns, 3 * MS);
    assert_true(beside_may_work(&c));
    beside_pay(&c, 3 * MS);
    assert_int_equal(c.ns, 0);
    assert_false(beside_may_work(&c)); /* without credit no work is allowed */
}

TEST(unused_credit_is_lost)
{
    struct beside_credit c = {0};
    for (int i = 0; i < 1000; i++)
        beside_earn(&c, 100 * MS, 0);
    assert_int_equal(c.ns, 3 * MS);
    /* a short pass also lowers the credit to that pass's share */
    beside_earn(&c, 10 * MS, 0);
    assert_int_equal(c.ns, 3 * MS / 10);
}

TEST(later_steps_pay_for_a_long_item)
{
    struct beside_credit c = {0};
    beside_earn(&c, 100 * MS, 0);
    /* leaves a debt of 7 ms: two steps repay 6, the third leaves a credit of 2 */
    beside_pay(&c, 10 * MS);
    for (int i = 0; i < 2; i++) {
        beside_earn(&c, 100 * MS, 0);
        assert_false(beside_may_work(&c));
    }
    beside_earn(&c, 100 * MS, 0);
    assert_int_equal(c.ns, 2 * MS);
}

/* Whatever items of work cost, restores get at most their share of the passes plus one item. */
TEST(restores_never_exceed_their_share)
{
    struct rng r = {1};
    struct beside_credit c = {0};
    double passes = 0, paid = 0, longest = 0;
    for (int step = 0; step < 20000; step++) {
        int64_t pass_ns = (int64_t)rng_below(&r, 200 * MS);
        beside_earn(&c, pass_ns, 0);
        passes += (double)pass_ns;
        while (beside_may_work(&c)) {
            int64_t cost_ns = 1 + (int64_t)rng_below(&r, 8 * MS);
            beside_pay(&c, cost_ns);
            paid += (double)cost_ns;
            longest = fmax(longest, (double)cost_ns);
        }
        assert_true(paid <= BESIDE_RESTORE_SHARE * passes + longest);
    }
    /* restores also get nearly their whole share */
    assert_true(paid > 0.99 * BESIDE_RESTORE_SHARE * passes);
}

/* A restore may compute at no charge while the disk reads weights. A pass of 4 s waited 3 s for
 * weights, and the ring has room for 0.4 s of reads. So for 0.4 s the disk reads on while a restore
 * computes. A pass that waited less frees only the time that it waited. */
TEST(time_in_which_weights_are_read_is_free)
{
    struct beside_credit c = {0};
    assert_int_equal(beside_free_ns(3000LL * MS, 400 * MS), 400 * MS);
    assert_int_equal(beside_free_ns(10 * MS, 400 * MS), 10 * MS);
    assert_int_equal(beside_free_ns(3000LL * MS, 0), 0);
    for (int i = 0; i < 3; i++) /* credit and free time of earlier passes are lost */
        beside_earn(&c, 4000LL * MS, 400 * MS);
    assert_int_equal(c.ns, 120 * MS + 400 * MS);
}

TEST(alone_a_step_restores_for_a_while)
{
    assert_int_equal(beside_alone_ns(0), 20 * MS);
    assert_int_equal(beside_alone_ns(20 * MS - 1), 20 * MS);
    assert_int_equal(beside_alone_ns(70 * MS), 70 * MS);
}

/* A restore beside decodes counts on 3 % of the compute. Prompts may stretch a step to 2.5 times
 * its length, so a prompt counts on 1.5 of the 2.5 parts of a step. */
TEST(plans_count_on_the_shares)
{
    struct plan_request q = {0};
    beside_slow(&q);
    assert_true(fabs(q.comp_slow - 100.0 / 3) < 1e-9);
    assert_true(fabs(q.prefill_slow - 5.0 / 3) < 1e-9);
}

TEST(speeds_are_learned_from_the_steps_that_show_them)
{
    struct beside_speed s = {0};
    beside_learn(&s, 4, 4, 60 * MS); /* the step has only decodes */
    assert_true(s.decode_ns == 60.0 * MS && s.row_ns == 0);
    /* the learned value moves by an eighth of the difference */
    beside_learn(&s, 4, 4, 68 * MS);
    assert_true(s.decode_ns == 61.0 * MS);
    beside_learn(&s, 0, 100, 200 * MS); /* the step has only prompts */
    assert_true(s.row_ns == 2.0 * MS && s.decode_ns == 61.0 * MS);
    beside_learn(&s, 4, 24, 81 * MS); /* 20 rows made the step 20 ms longer */
    assert_true(s.row_ns == 2.0 * MS - MS / 8.0);
    /* rows that did not lengthen the step teach nothing */
    beside_learn(&s, 4, 24, 61 * MS);
    beside_learn(&s, 4, 24, 50 * MS);
    assert_true(s.row_ns == 2.0 * MS - MS / 8.0 && s.decode_ns == 61.0 * MS);
}

TEST(prompts_stretch_a_step)
{
    /* Prompts may add 1.5 times the 60 ms of a decode step: 36 rows of 2.5 ms. */
    assert_int_equal(beside_rows(&(struct beside_speed){60e6, 2.5e6}), 36);
    assert_int_equal(beside_rows(&(struct beside_speed){60e6, 20e6}), BESIDE_LEAST_ROWS);
    assert_int_equal(beside_rows(&(struct beside_speed){0}), BESIDE_LEAST_ROWS);
    assert_int_equal(beside_rows(&(struct beside_speed){60e6, 1e-9}), 1000000);
}

/* Rows of a fused restore count as rows of the step, and as rows of prompts. */
TEST(fused_rows_are_left_over)
{
    assert_int_equal(beside_rows_left(512, 36, 4, 4), 36);
    /* 26 of the 36 rows of prompts are used */
    assert_int_equal(beside_rows_left(512, 36, 4, 30), 10);
    /* the step's limit of 32 rows is reached first */
    assert_int_equal(beside_rows_left(32, 36, 4, 30), 2);
    assert_int_equal(beside_rows_left(512, 36, 4, 40), 0);
}

/* With decodes, fewer new tokens than BESIDE_LEAST_FUSED are not fused but wait for a batch. More
 * new tokens get the step's remaining rows in each of its layers. */
TEST(few_new_tokens_are_not_fused_beside_decodes)
{
    assert_int_equal(beside_fused_rows(63, 36, 4), 0);
    assert_int_equal(beside_fused_rows(64, 36, 4), 144);
    assert_int_equal(beside_fused_rows(500, 1, 4), 4);
    assert_int_equal(beside_fused_rows(500, 0, 4), 0);
    assert_int_equal(beside_fused_rows(500, -3, 4), 0);
}
