/* The pace of a shared remote tier: when a fetch is worth its time, how long a request waits for
 * it, and how long a failed remote rests. */
#include <math.h>

#include "tests/unit.h"
#include "store/remote/remote_pace.h"

static enum remote_choice choose(const struct remote_view *v, const struct remote_pace *p,
                                 double *again_s)
{
    return remote_choose(v, p, again_s);
}

TEST(silence_is_a_share_of_recomputing)
{
    const struct remote_pace p = {0};
    struct remote_view v = {.most_s = 10, .recompute_s = 2.0, .silent_s = 0.15};
    double again_s;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
    /* the rest of the 0.2 s of silence that are allowed */
    assert_true(fabs(again_s - 0.05) < 1e-9);
    v.silent_s = 0.2;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_SILENT);
}

TEST(short_silences_are_scheduling)
{
    const struct remote_pace p = {0};
    struct remote_view v = {.most_s = 10, .recompute_s = 0.01, .silent_s = 0.02};
    double again_s;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
    v.silent_s = REMOTE_SILENT_LEAST_S;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_SILENT);
}

TEST(a_forced_plan_waits_but_not_for_ever)
{
    const struct remote_pace dear = {.latency_s = 1, .bytes_per_s = 1};
    struct remote_view v = {
        .most_s = 10, .silent_s = 9, .left_bytes = 1000000, .elapsed_s = 100};
    double again_s;
    assert_int_equal(choose(&v, &dear, &again_s), REMOTE_GO_ON);
    v.done_bytes = 1;
    assert_int_equal(choose(&v, &dear, &again_s), REMOTE_GO_ON);
    v.silent_s = 10;
    assert_int_equal(choose(&v, &dear, &again_s), REMOTE_SILENT);
    v.recompute_s = 1e6;
    assert_int_equal(choose(&v, &dear, &again_s), REMOTE_SILENT);
}

TEST(a_dear_fetch_does_not_begin)
{
    const struct remote_pace p = {.latency_s = 0.1, .bytes_per_s = 1e6};
    struct remote_view v = {.most_s = 10, .recompute_s = 1.0, .left_bytes = 600000};
    double again_s;
    /* 0.7 s to fetch, 1.0 s to recompute */
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
    v.left_bytes = 800000;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_TOO_DEAR); /* 0.9 s to fetch */
    const struct remote_pace unknown = {0};
    /* an unknown remote is tried once */
    assert_int_equal(choose(&v, &unknown, &again_s), REMOTE_GO_ON);
}

/* Fetched chunks are then restored from the local store. This time counts as part of the fetch. */
TEST(the_restore_after_a_fetch_counts)
{
    const struct remote_pace p = {.latency_s = 0.1, .bytes_per_s = 1e6};
    struct remote_view v = {
        .most_s = 10, .recompute_s = 1.0, .left_bytes = 600000, .restore_s = 0.09};
    double again_s;
    /* 0.79 s in all, 1.0 s to recompute */
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
    v.restore_s = 0.11;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_TOO_DEAR); /* 0.81 s in all */
    const struct remote_pace unknown = {0};
    assert_int_equal(choose(&v, &unknown, &again_s), REMOTE_GO_ON);
}

/* The price of computing only the last chunks of a context: small if they are few, although the
 * whole context is expensive. */
TEST(the_rest_of_a_context_has_its_own_price)
{
    /* the cost is linear in the tokens */
    assert_true(fabs(remote_rest_s(8, 4, 0.25) - 6) < 1e-9);
    /* the cost grows with the square of the length */
    assert_true(fabs(remote_rest_s(8, 2, 0.5) - 6) < 1e-9);
    assert_true(fabs(remote_rest_s(8, 2, 0.75) - 3.5) < 1e-9);
    assert_true(fabs(remote_rest_s(8, 3, 0) - 8) < 1e-9);
    assert_true(remote_rest_s(8, 3, 1) == 0);
    /* an impossible measurement gives no negative price */
    assert_true(remote_rest_s(8, 8, 0.9) >= 0);
}

/* A truncated context needs all chunks that its view has moved. With only a part of them it still
 * needs a replay, so the part saves nothing. */
TEST(a_view_without_its_moved_chunks_costs_a_replay)
{
    assert_true(remote_replay_s(50, 4, -8, 16) == 50);
    assert_true(remote_replay_s(50, 4, -1, 16) == 50);
    assert_true(remote_replay_s(50, 4, 0, 16) == 4);
    assert_true(remote_replay_s(50, 4, 12, 16) == 1);
    assert_true(remote_replay_s(50, 4, 0, 0) == 0);
}

TEST(a_fetch_that_crawls_is_left)
{
    const struct remote_pace p = {.latency_s = 1e-3, .bytes_per_s = 1e9};
    struct remote_view v = {.most_s = 10,
                            .recompute_s = 1.0,
                            .elapsed_s = 0.2,
                            .done_bytes = 100,
                            .left_bytes = 300};
    double again_s;
    /* the rest takes 0.6 s, the limit is 0.75 s */
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
    v.elapsed_s = 0.3;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_CRAWLS); /* the rest takes 0.9 s */
    v.elapsed_s = 0.05; /* too early to judge the remote's pace */
    v.done_bytes = 1;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
}

/* A short transfer has its first bytes late, because scheduling alone takes 25 ms. That is no sign
 * of a slow remote. */
TEST(a_short_transfer_has_time_to_show_its_pace)
{
    const struct remote_pace p = {0};
    struct remote_view v = {.most_s = 10,
                            .recompute_s = 0.05,
                            .elapsed_s = 0.02,
                            .done_bytes = 1,
                            .left_bytes = 300};
    double again_s;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
    v.elapsed_s = REMOTE_SILENT_LEAST_S;
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_CRAWLS);
}

/* Only another transfer can show that a slow remote has become fast again. */
TEST(a_dear_remote_is_tried_again)
{
    struct remote_pace p = {.latency_s = 0.1, .bytes_per_s = 1e6};
    struct remote_view v = {.most_s = 10, .recompute_s = 1.0, .left_bytes = 800000};
    double again_s;
    for (int i = 0; i < REMOTE_REFUSALS_MOST; i++) {
        assert_int_equal(choose(&v, &p, &again_s), REMOTE_TOO_DEAR);
        remote_pace_refuse(&p);
    }
    remote_pace_refuse(&p); /* counts no further */
    assert_int_equal(p.n_refused, REMOTE_REFUSALS_MOST);
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_GO_ON);
    remote_pace_tried(&p);
    assert_int_equal(choose(&v, &p, &again_s), REMOTE_TOO_DEAR);
}

TEST(the_pace_follows_what_fetches_took)
{
    struct remote_pace p = {0};
    assert_true(remote_pace_price_s(&p, 1000) == 0); /* the price is not known yet */
    remote_pace_learn(&p, 0.5, 1000, 1.0);
    assert_true(p.latency_s == 0.5 && p.bytes_per_s == 1000);
    assert_true(remote_pace_price_s(&p, 500) == 1.0);
    remote_pace_learn(&p, 0, 3000, 1.0); /* teaches nothing about the latency */
    assert_true(p.latency_s == 0.5 && p.bytes_per_s > 1000 && p.bytes_per_s < 3000);
    for (int i = 0; i < 50; i++)
        remote_pace_learn(&p, 0.1, 3000, 1.0);
    assert_true(fabs(p.bytes_per_s - 3000) < 1 && fabs(p.latency_s - 0.1) < 1e-3);
}

TEST(rests_double_to_a_bound_and_differ)
{
    for (int n = 1; n < 40; n++) {
        double whole = BACKOFF_FIRST_S * pow(2, n - 1);
        whole = whole < BACKOFF_MOST_S ? whole : BACKOFF_MOST_S;
        double least = INFINITY, most = 0;
        for (uint64_t seed = 0; seed < 1000; seed++) {
            double s = backoff_s(n, seed);
            least = fmin(least, s);
            most = fmax(most, s);
            assert_true(s == backoff_s(n, seed)); /* the same seed gives the same rest */
        }
        assert_true(least >= whole / 2 && most <= whole);
        /* rests are spread over the whole upper half of the backoff */
        assert_true(least < 0.51 * whole && most > 0.99 * whole);
    }
}
