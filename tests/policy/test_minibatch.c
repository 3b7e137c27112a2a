/* test_minibatch.c - mini-batches beside the best of all partitions, and the rule of the print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"
#include "policy/minibatch.h"

enum { MOST = 8 };

static struct hybrid_machine machine_of(double x, double fixed_s)
{
    return (struct hybrid_machine){.project = {fixed_s, x},
                                   .link = {fixed_s, 0.5},
                                   .kv_bytes = 2,
                                   .act_bytes = 1,
                                   .n_minibatches = 1};
}

/* Seconds of all mini-batches; checks that each fits its buffer, or has one request. */
static double seconds_of(const struct hybrid_machine *m, const struct minibatch_room *room,
                         const struct minibatch_request *r, int n, const int *of,
                         int n_bins)
{
    double sum = 0;
    for (int k = 0; k < n_bins; k++) {
        int64_t n_act = 0, n_kv = 0;
        int members = 0;
        for (int i = 0; i < n; i++) {
            if (of[i] != k)
                continue;
            n_act += r[i].n_act;
            n_kv += r[i].n_kv;
            members++;
        }
        assert_true(members > 0);
        assert_true(members == 1 || (n_act <= room->n_act && n_kv <= room->n_kv));
        sum += minibatch_seconds(m, n_act, n_kv);
    }
    return sum;
}

static bool fits(const struct minibatch_room *room, const struct minibatch_request *r,
                 int n, const int *of, int n_bins)
{
    for (int k = 0; k < n_bins; k++) {
        int64_t n_act = 0, n_kv = 0;
        int members = 0;
        for (int i = 0; i < n; i++) {
            n_act += of[i] == k ? r[i].n_act : 0;
            n_kv += of[i] == k ? r[i].n_kv : 0;
            members += of[i] == k;
        }
        if (members > 1 && (n_act > room->n_act || n_kv > room->n_kv))
            return false;
    }
    return true;
}

/* The least seconds over all partitions: request i joins one of the bins before it,
 * or opens one. */
static double best_of(const struct hybrid_machine *m, const struct minibatch_room *room,
                      const struct minibatch_request *r, int n, int *of, int i, int n_bins)
{
    if (i == n)
        return fits(room, r, n, of, n_bins) ? seconds_of(m, room, r, n, of, n_bins)
                                            : INFINITY;
    double best = INFINITY;
    for (int k = 0; k <= n_bins; k++) {
        of[i] = k;
        best = fmin(best, best_of(m, room, r, n, of, i + 1, k == n_bins ? k + 1 : n_bins));
    }
    return best;
}

static void balanced_mini_batches_are_near_the_best(void **state)
{
    (void)state;
    struct rng rng = {500};
    double worst = 0, worst_print = 0, mean = 0, mean_print = 0;
    for (int t = 0; t < 500; t++) {
        struct minibatch_request r[MOST];
        int of[MOST], n = 2 + (int)rng_below(&rng, MOST - 2);
        struct hybrid_machine m = machine_of(0.25 + 4 * rng_unit(&rng),
                                             rng_below(&rng, 2) ? 0 : 10 * rng_unit(&rng));
        struct minibatch_room room = {20 + (int64_t)rng_below(&rng, 60),
                                      20 + (int64_t)rng_below(&rng, 60), 0};
        room.n_both = room.n_act + room.n_kv;
        for (int i = 0; i < n; i++)
            r[i] = (struct minibatch_request){(int64_t)rng_below(&rng, 30),
                                              1 + (int64_t)rng_below(&rng, 30)};
        double best = best_of(&m, &room, r, n, of, 0, 0);
        int k = minibatch_form(&m, &room, r, n, MINIBATCH_BALANCED, of);
        double ours = seconds_of(&m, &room, r, n, of, k) / best;
        k = minibatch_form(&m, &room, r, n, MINIBATCH_PAPER, of);
        double print = seconds_of(&m, &room, r, n, of, k) / best;
        worst = fmax(worst, ours);
        worst_print = fmax(worst_print, print);
        mean += ours / 500;
        mean_print += print / 500;
    }
    print_message(
        "beside the best partition: balanced worst %.3f, mean %.3f; the print %.3f, "
        "%.3f\n",
        worst, mean, worst_print, mean_print);
    assert_true(worst <= 1.1);
}

static void the_print_takes_requests_in_their_order(void **state)
{
    (void)state;
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch_room room = {99, 99, 198};
    /* The second makes the first more lopsided, the third balances it, the fourth does not fit. */
    const struct minibatch_request r[] = {{10, 2}, {5, 0}, {0, 10}, {95, 95}};
    int of[4];
    assert_int_equal(minibatch_form(&m, &room, r, 4, MINIBATCH_PAPER, of), 3);
    assert_int_equal(of[0], 0);
    assert_int_equal(of[2], 0);
    assert_int_equal(of[1], 1);
    assert_int_equal(of[3], 2);
}

static void requests_of_one_kind_share_mini_batches(void **state)
{
    (void)state;
    struct hybrid_machine m = machine_of(1, 1);
    const struct minibatch_room room = {10, 10, 20};
    struct minibatch_request r[8];
    int of[8];
    for (int i = 0; i < 8; i++)
        r[i] = (struct minibatch_request){2, 2};
    assert_int_equal(minibatch_form(&m, &room, r, 8, MINIBATCH_PAPER, of), 2);
    assert_int_equal(minibatch_form(&m, &room, r, 8, MINIBATCH_BALANCED, of), 2);
    r[3].n_kv =
        50; /* larger than the buffer: alone, and not for ever in front of the others */
    int n = minibatch_form(&m, &room, r, 8, MINIBATCH_BALANCED, of);
    assert_int_equal(n, 3);
    for (int i = 0; i < 8; i++)
        assert_true(i == 3 || of[i] != of[3]);
    assert_int_equal(minibatch_form(&m, &room, r, 0, MINIBATCH_BALANCED, of), 0);
}

static void opposites_are_put_together(void **state)
{
    (void)state;
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch_room room = {10, 10, 20};
    const struct minibatch_request r[] = {{10, 0}, {0, 10}, {8, 2}, {2, 8}};
    int of[4];
    assert_int_equal(minibatch_form(&m, &room, r, 4, MINIBATCH_BALANCED, of), 2);
    assert_int_equal(of[0], of[1]);
    assert_int_equal(of[2], of[3]);
}

/* A projection of 10 s hides 10 s of the link.  Its ACT blocks take 5 s of it, so 5
 * s of KV blocks fit. */
static void balance_counts_the_transfer_of_act_blocks(void **state)
{
    (void)state;
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch_room room = {10, 10, 20};
    const struct minibatch_request r[] = {{10, 0}, {0, 10}, {0, 5}};
    int of[3];
    assert_int_equal(minibatch_form(&m, &room, r, 3, MINIBATCH_BALANCED, of), 2);
    assert_int_equal(of[0], of[2]);
    assert_int_not_equal(of[0], of[1]);
}

/* A buffer of 36 blocks holds four requests of eight, whatever their types are. */
static void types_share_a_buffer(void **state)
{
    (void)state;
    struct hybrid_machine m = machine_of(1.4, 0);
    const struct minibatch_room room = {36, 36, 36};
    struct minibatch_request r[12];
    int of[12], members[3] = {0};
    for (int i = 0; i < 12; i++)
        r[i] = i < 10 ? (struct minibatch_request){5, 3} : (struct minibatch_request){0, 8};
    assert_int_equal(minibatch_form(&m, &room, r, 12, MINIBATCH_BALANCED, of), 3);
    for (int i = 0; i < 12; i++)
        members[of[i]]++;
    for (int k = 0; k < 3; k++)
        assert_int_equal(members[k], 4);
    assert_int_not_equal(of[10],
                         of[11]); /* what has no ACT block goes beside what has many */
}

static void imbalance_is_symmetric_and_at_least_one(void **state)
{
    (void)state;
    struct hybrid_machine m = machine_of(2, 0);
    assert_true(minibatch_imbalance(&m, 1, 2) == 1);
    assert_true(minibatch_imbalance(&m, 2, 2) == 2);
    assert_true(minibatch_imbalance(&m, 1, 4) == 2);
    assert_true(isinf(minibatch_imbalance(&m, 1, 0)));
    assert_true(minibatch_imbalance(&m, 0, 0) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balanced_mini_batches_are_near_the_best),
        cmocka_unit_test(the_print_takes_requests_in_their_order),
        cmocka_unit_test(requests_of_one_kind_share_mini_batches),
        cmocka_unit_test(opposites_are_put_together),
        cmocka_unit_test(balance_counts_the_transfer_of_act_blocks),
        cmocka_unit_test(types_share_a_buffer),
        cmocka_unit_test(imbalance_is_symmetric_and_at_least_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
