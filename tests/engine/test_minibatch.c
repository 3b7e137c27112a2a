/* test_minibatch.c - mini-batches compared with the best of all partitions, and the rule of the
 * HybridServe paper (engine/minibatch.h). */

#include "tests/unit.h"
#include <math.h>

#include "base/rng.h"
#include "engine/hybrid_share.h"
#include "engine/minibatch.h"

enum { MOST = 8, MOST_REQUESTS = 40 };

static struct hybrid_machine machine_of(double x, double fixed_s)
{
    return (struct hybrid_machine){.project = {fixed_s, x},
                                   .link = {fixed_s, 0.5},
                                   .kv_bytes = 2,
                                   .act_bytes = 1,
                                   .n_minibatches = 1};
}

static int64_t blocks_of(const struct minibatch *b)
{
    return b->n_act + b->n_kv + b->n_written;
}

static bool fits(const struct minibatch_room *room, const struct minibatch *b)
{
    return b->n_requests == 1 ||
           (b->n_act <= room->n_act && blocks_of(b) <= room->n_blocks);
}

/* Sets bins[0..n_bins) to the mini-batches of a partition, in which request i is in mini-batch
 * of[i]. */
static void sum_up(const struct minibatch_request *r, int n, const int *of, int n_bins,
                   struct minibatch *bins)
{
    for (int k = 0; k < n_bins; k++)
        bins[k] = (struct minibatch){0};
    for (int i = 0; i < n; i++) {
        struct minibatch *b = &bins[of[i]];
        b->n_act += r[i].n_act;
        b->n_kv += r[i].n_kv;
        b->n_written += r[i].n_written;
        b->n_requests++;
    }
}

/* Forms mini-batches. Checks that `bins` describes them, and that each fits into its buffer or has
 * only one request. Returns their number. */
static int form(const struct hybrid_machine *m, const struct minibatch_room *room,
                const struct minibatch_request *r, int n, enum minibatch_method method,
                int *of, struct minibatch *bins)
{
    struct minibatch want[MOST_REQUESTS];
    int n_bins = minibatch_form(m, room, r, n, method, of, bins);
    assert_in_range(n_bins, n > 0, n);
    for (int i = 0; i < n; i++)
        assert_in_range(of[i], 0, n_bins - 1);
    sum_up(r, n, of, n_bins, want);
    for (int k = 0; k < n_bins; k++) {
        assert_memory_equal(&bins[k], &want[k], sizeof want[k]);
        assert_true(bins[k].n_requests > 0 && fits(room, &bins[k]));
    }
    return n_bins;
}

/* --- compared with the best of all ------------------------------------------------------------ */

/* Returns the sum, over all mini-batches, of the longer of load and projection, as if each
 * mini-batch ran beside its own load. */
static double lanes_of(const struct hybrid_machine *m, const struct minibatch *b, int n)
{
    double sum = 0;
    for (int k = 0; k < n; k++)
        sum += minibatch_seconds(m, b[k].n_act, b[k].n_kv);
    return sum;
}

/* Returns the least seconds of a layer over all orders of the mini-batches from `at` on. */
static double best_order(const struct hybrid_machine *m, struct minibatch *b, int n, int at)
{
    if (at >= n - 1)
        return minibatch_layer_seconds(m, b, n);
    double best = INFINITY;
    for (int k = at; k < n; k++) {
        struct minibatch t = b[at];
        b[at] = b[k];
        b[k] = t;
        best = fmin(best, best_order(m, b, n, at + 1));
        b[k] = b[at];
        b[at] = t;
    }
    return best;
}

struct best {
    double layer_s, lanes_s;
};

/* Finds the least layer_s and the least lanes_s over all partitions. Request i joins one of the
 * bins or opens a new one. */
static void find_best(const struct hybrid_machine *m, const struct minibatch_room *room,
                      const struct minibatch_request *r, int n, int *of, int i, int n_bins,
                      struct best *best)
{
    if (i == n) {
        struct minibatch bins[MOST];
        sum_up(r, n, of, n_bins, bins);
        for (int k = 0; k < n_bins; k++)
            if (!fits(room, &bins[k]))
                return;
        best->lanes_s = fmin(best->lanes_s, lanes_of(m, bins, n_bins));
        best->layer_s = fmin(best->layer_s, best_order(m, bins, n_bins, 1));
        return;
    }
    for (int k = 0; k <= n_bins; k++) {
        of[i] = k;
        find_best(m, room, r, n, of, i + 1, k == n_bins ? k + 1 : n_bins, best);
    }
}

TEST(balanced_mini_batches_are_near_the_best)
{
    struct rng rng = {500};
    double worst = 0, worst_lanes = 0, worst_print = 0, mean = 0, mean_print = 0;
    for (int t = 0; t < 500; t++) {
        struct minibatch_request r[MOST];
        struct minibatch bins[MOST];
        int of[MOST], n = 2 + (int)rng_below(&rng, MOST - 2);
        struct hybrid_machine m = machine_of(0.25 + 4 * rng_unit(&rng),
                                             rng_below(&rng, 2) ? 0 : 10 * rng_unit(&rng));
        struct minibatch_room room = {20 + (int64_t)rng_below(&rng, 60), 0};
        room.n_blocks = room.n_act + 20 + (int64_t)rng_below(&rng, 60);
        for (int i = 0; i < n; i++)
            r[i] = (struct minibatch_request){(int64_t)rng_below(&rng, 30),
                                              1 + (int64_t)rng_below(&rng, 30), 0};
        struct best best = {INFINITY, INFINITY};
        find_best(&m, &room, r, n, of, 0, 0, &best);
        int k = form(&m, &room, r, n, MINIBATCH_BALANCED, of, bins);
        double ours = minibatch_layer_seconds(&m, bins, k) / best.layer_s;
        worst_lanes = fmax(worst_lanes, lanes_of(&m, bins, k) / best.lanes_s);
        k = form(&m, &room, r, n, MINIBATCH_PAPER, of, bins);
        double print = minibatch_layer_seconds(&m, bins, k) / best.layer_s;
        worst = fmax(worst, ours);
        worst_print = fmax(worst_print, print);
        mean += ours / 500;
        mean_print += print / 500;
    }
    print_message("beside the best partition in its best order: balanced worst %.5f, mean "
                  "%.6f, lanes alone %.5f; the print %.3f, %.4f\n",
                  worst, mean, worst_lanes, worst_print, mean_print);
    /* what the present packing reaches */
    assert_true(worst <= 1.262 && mean <= 1.0075 && worst_lanes <= 1.2442);
}

/* --- equal sizes ------------------------------------------------------------------------------ */

/* Equal requests form as few mini-batches as can hold them, with numbers of requests that differ by
 * at most one. */
TEST(requests_alike_make_equal_mini_batches)
{
    struct hybrid_machine m = machine_of(2, 0);
    for (int per = 1; per <= 9; per++) {
        for (int n = 1; n <= MOST_REQUESTS; n++) {
            struct minibatch_request r[MOST_REQUESTS];
            struct minibatch bins[MOST_REQUESTS];
            int of[MOST_REQUESTS];
            const struct minibatch_room room = {4 * per + 3, 4 * per + 3};
            for (int i = 0; i < n; i++)
                r[i] = (struct minibatch_request){1, 3, 0};
            int k = form(&m, &room, r, n, MINIBATCH_BALANCED, of, bins);
            assert_int_equal(k, (n + per - 1) / per);
            for (int b = 0; b < k; b++)
                assert_in_range(bins[b].n_requests, n / k, (n + k - 1) / k);
            for (int b = 1; b < k; b++) /* large mini-batches come first */
                assert_true(bins[b].n_requests <= bins[b - 1].n_requests);
        }
    }
}

/* A mini-batch computes while the next one loads. */
TEST(a_layer_computes_beside_the_next_load)
{
    /* A KV block is loaded in 1 s. An ACT block is loaded in half a second and projected in 1 s. */
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch unequal[] = {{5, 5, 0, 5}, {1, 1, 0, 1}};
    const struct minibatch equal[] = {{3, 3, 0, 3}, {3, 3, 0, 3}};
    assert_true(minibatch_layer_seconds(&m, unequal, 2) == 5 + 7.5);
    assert_true(minibatch_layer_seconds(&m, equal, 2) == 4.5 + 4.5);
    assert_true(minibatch_layer_seconds(&m, equal, 1) == 4.5);
    m.forward_s = 12; /* divided by requests: the mini-batch of five gets 10 s */
    m.weights_s = 2;  /* divided equally: 1 s beside each mini-batch */
    assert_true(minibatch_layer_seconds(&m, unequal, 2) == (10 + 5) + 8.5);
    /* the second mini-batch reads the layer again, so both take 18 s: 15 and 3 */
    m.forward_mini_s = 6;
    assert_true(minibatch_layer_seconds(&m, unequal, 2) == (15 + 5) + 8.5);
    assert_true(minibatch_layer_seconds(&m, equal, 1) == 12 + 3);
}

/* Blocks that a request writes take room in the buffer, but no time on the link. */
TEST(written_blocks_take_room_but_no_time)
{
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch_room room = {20, 20};
    struct minibatch_request r[] = {{4, 4, 0}, {4, 4, 0}, {0, 0, 4}, {0, 0, 2}};
    struct minibatch bins[4];
    int of[4];
    assert_int_equal(form(&m, &room, r, 3, MINIBATCH_BALANCED, of, bins), 1);
    assert_int_equal(form(&m, &room, r, 4, MINIBATCH_BALANCED, of, bins), 2);
    r[2].n_written = 40; /* more than the buffer holds, so the request runs alone */
    assert_int_equal(form(&m, &room, r, 3, MINIBATCH_BALANCED, of, bins), 2);
    assert_int_not_equal(of[2], of[0]);
    assert_int_equal(of[0], of[1]);
}

/* --- which requests --------------------------------------------------------------------------- */

TEST(the_papers_rule_takes_requests_in_their_order)
{
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch_room room = {99, 198};
    /* The order of the paper's rule: request 1 would unbalance request 0 further, request 2
     * balances it, and request 3 does not fit beside others. */
    const struct minibatch_request r[] = {{10, 2, 0}, {5, 0, 0}, {0, 10, 0}, {95, 95, 0}};
    struct minibatch bins[4];
    int of[4];
    assert_int_equal(form(&m, &room, r, 4, MINIBATCH_PAPER, of, bins), 3);
    assert_int_equal(of[0], 0);
    assert_int_equal(of[2], 0);
    assert_int_equal(of[1], 1);
    assert_int_equal(of[3], 2);
}

TEST(requests_of_one_kind_share_mini_batches)
{
    struct hybrid_machine m = machine_of(1, 1);
    const struct minibatch_room room = {10, 20};
    struct minibatch_request r[8];
    struct minibatch bins[8];
    int of[8];
    for (int i = 0; i < 8; i++)
        r[i] = (struct minibatch_request){2, 2, 0};
    assert_int_equal(form(&m, &room, r, 8, MINIBATCH_PAPER, of, bins), 2);
    assert_int_equal(form(&m, &room, r, 8, MINIBATCH_BALANCED, of, bins), 2);
    /* The request is larger than the buffer. It runs alone, and does not keep the others from
     * running. */
    r[3].n_kv = 50;
    int n = form(&m, &room, r, 8, MINIBATCH_BALANCED, of, bins);
    assert_int_equal(n, 3);
    for (int i = 0; i < 8; i++)
        assert_true(i == 3 || of[i] != of[3]);
    assert_int_equal(form(&m, &room, r, 0, MINIBATCH_BALANCED, of, bins), 0);
}

TEST(opposites_are_put_together)
{
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch_room room = {10, 20};
    const struct minibatch_request r[] = {{10, 0, 0}, {0, 10, 0}, {8, 2, 0}, {2, 8, 0}};
    struct minibatch bins[4];
    int of[4];
    assert_int_equal(form(&m, &room, r, 4, MINIBATCH_BALANCED, of, bins), 2);
    assert_int_equal(of[0], of[1]);
    assert_int_equal(of[2], of[3]);
}

/* A projection of 10 s hides 10 s of the link. The ACT blocks take 5 s of these, so KV blocks of 5
 * s fit. */
TEST(balance_counts_the_transfer_of_act_blocks)
{
    struct hybrid_machine m = machine_of(1, 0);
    const struct minibatch_room room = {10, 20};
    const struct minibatch_request r[] = {{10, 0, 0}, {0, 10, 0}, {0, 5, 0}};
    struct minibatch bins[3];
    int of[3];
    assert_int_equal(form(&m, &room, r, 3, MINIBATCH_BALANCED, of, bins), 2);
    assert_int_equal(of[0], of[2]);
    assert_int_not_equal(of[0], of[1]);
}

/* A buffer of 36 blocks holds four requests of eight blocks, whatever the types of their blocks. */
TEST(types_share_a_buffer)
{
    struct hybrid_machine m = machine_of(1.4, 0);
    const struct minibatch_room room = {36, 36};
    struct minibatch_request r[12];
    struct minibatch bins[12];
    int of[12], members[3] = {0};
    for (int i = 0; i < 12; i++)
        r[i] = i < 10 ? (struct minibatch_request){5, 3, 0}
                      : (struct minibatch_request){0, 8, 0};
    assert_int_equal(form(&m, &room, r, 12, MINIBATCH_BALANCED, of, bins), 3);
    for (int i = 0; i < 12; i++)
        members[of[i]]++;
    for (int k = 0; k < 3; k++)
        assert_int_equal(members[k], 4);
    /* the two requests without ACT blocks are in different mini-batches */
    assert_int_not_equal(of[10], of[11]);
}

/* Ten requests run in mini-batches of 4, 3 and 3, with the numbers of ACT blocks that the policy
 * chose for each mini-batch. In the policy's own order packing finds mini-batches that are as good
 * as the policy's. In any other order they are nearly as good. */
TEST(packing_finds_the_shares_of_the_policy)
{
    enum { N = 10, BLOCKS = 6 };
    struct hybrid_machine m = machine_of(1.4, 0);
    const struct minibatch_room room = {28, 28};
    struct hybrid_memory mem = {0, 1e18};
    struct hybrid_split split;
    struct rng rng = {14};
    int64_t act[N];
    double worst = 0;
    m.n_minibatches = 3;
    m.n_requests = N;
    hybrid_choose(&m, &mem, (int64_t)N * BLOCKS, &split);
    assert_true(split.is_shared_out);
    hybrid_share_requests(&m, &split, act);
    for (int t = 0; t < 100; t++) {
        struct minibatch_request r[N];
        struct minibatch bins[N];
        int of[N];
        for (int i = 0; i < N; i++)
            r[i] = (struct minibatch_request){act[i], BLOCKS - act[i], 0};
        assert_int_equal(form(&m, &room, r, N, MINIBATCH_BALANCED, of, bins), 3);
        double seconds = minibatch_layer_seconds(&m, bins, 3);
        assert_true(t > 0 || seconds <= split.seconds * (1 + 1e-9));
        worst = fmax(worst, seconds / split.seconds);
        for (int i = N - 1; i > 0; i--) { /* shuffles the requests */
            int j = (int)rng_below(&rng, (uint64_t)i + 1);
            int64_t a = act[i];
            act[i] = act[j];
            act[j] = a;
        }
    }
    print_message("beside the policy's mini-batches, in 100 orders: at most %.4f\n", worst);
    assert_true(worst <= 1.1057); /* what the present packing reaches */
}

TEST(imbalance_is_symmetric_and_at_least_one)
{
    struct hybrid_machine m = machine_of(2, 0);
    assert_true(minibatch_imbalance(&m, 1, 2) == 1);
    assert_true(minibatch_imbalance(&m, 2, 2) == 2);
    assert_true(minibatch_imbalance(&m, 1, 4) == 2);
    assert_true(isinf(minibatch_imbalance(&m, 1, 0)));
    assert_true(minibatch_imbalance(&m, 0, 0) == 1);
}
