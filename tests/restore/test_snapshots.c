/* test_snapshots.c - the decisions of snapshots.h: where snapshots are taken, and which go
 * first. */

#include "tests/unit.h"
#include "restore/snapshots.h"

/* Writes the places of a whole context of n tokens, whose prompt has `prompt`. Returns how many. */
static int places(int64_t n, int64_t prompt, int64_t *at)
{
    struct snapshot_view v = {.prompt = prompt};
    int count = 0;
    while ((v.done = snapshot_next(&v)) <= n) {
        assert_true(snapshot_is_due(&v));
        at[count++] = v.newest = v.done;
    }
    return count;
}

static void places_of_a_prompt(void **state)
{
    int64_t at[8];
    assert_int_equal(places(5000, 5000, at), 3);
    assert_int_equal(at[0], 2048);
    assert_int_equal(at[1], 4096);
    assert_int_equal(at[2], 4992); /* the last full chunk's end */
    /* the last token is always computed, so a prompt of full chunks ends one chunk earlier */
    assert_int_equal(places(640, 640, at), 1);
    assert_int_equal(at[0], 576);
    /* the answer goes on over the grid */
    assert_int_equal(places(4100, 1000, at), 3);
    assert_int_equal(at[0], 960);
    assert_int_equal(at[1], 2048);
}

/* A long prompt gets few snapshots far before its end, none of which would be thinned at once. */
static void a_long_prompt_gets_few(void **state)
{
    int64_t at[64];
    bool drop[64];
    int n = places(120000, 120000, at);
    assert_in_range(n, 10, 24);
    assert_int_equal(at[n - 1], 119936);
    assert_true(at[0] > 20000 && at[n - 2] >= 120000 - 2 * SNAPSHOT_EVERY);
    for (int i = 0; i < n; i++)
        assert_true(i + 1 == n || at[i] % SNAPSHOT_EVERY == 0);
    snapshot_thin(at, n, at[n - 1], drop);
    for (int i = 0; i < n; i++)
        assert_false(drop[i]);
    /* a grid place that is too near for its distance is not taken when it is reached, either */
    struct snapshot_view v = {.done = 4096, .newest = 2048, .prompt = 120000};
    assert_false(snapshot_is_due(&v));
}

static void no_two_are_near(void **state)
{
    int64_t at[8];
    assert_int_equal(places(200, 200, at), 0);
    assert_int_equal(places(2200, 2200, at),
                     1); /* the prompt's end lies 128 behind the grid */
    struct snapshot_view v = {
        .done = 2048, .newest = 2048 - SNAPSHOT_LEAST + 64, .prompt = 9000};
    assert_false(snapshot_is_due(&v));
    assert_int_equal(snapshot_next(&v), 4096);
}

static void a_branch_gets_one(void **state)
{
    struct snapshot_view v = {.done = 1024, .prompt = 3000};
    assert_false(snapshot_is_due(&v));
    v.is_branch = true;
    assert_true(snapshot_is_due(&v));
    v.newest = 1024;
    assert_false(snapshot_is_due(&v));
    v = (struct snapshot_view){.done = 1030, .prompt = 3000, .is_branch = true};
    assert_false(snapshot_is_due(&v)); /* inside a chunk no other context leaves this one */
}

/* Gaps are at most a quarter of the distance to the end, so few remain of many. */
static void gaps_grow_with_age(void **state)
{
    enum { N = 64 };
    int64_t at[N], before = 0;
    bool drop[N];
    int n_kept = 0;
    for (int i = 0; i < N; i++)
        at[i] = 2048 * (i + 1);
    snapshot_thin(at, N, at[N - 1], drop);
    for (int i = 0; i < N; i++) {
        if (drop[i])
            continue;
        int64_t most = (at[N - 1] - at[i]) / 4;
        assert_true(at[i] - before <= (most > 2048 ? most : 2048));
        before = at[i];
        n_kept++;
    }
    assert_false(drop[N - 1]);
    assert_in_range(n_kept, 10, 20);
    /* what stays is thinned no further */
    int64_t kept[N];
    int n = 0;
    for (int i = 0; i < N; i++)
        if (!drop[i])
            kept[n++] = at[i];
    snapshot_thin(kept, n, kept[n - 1], drop);
    for (int i = 0; i < n; i++)
        assert_false(drop[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_of_a_prompt), cmocka_unit_test(a_long_prompt_gets_few),
        cmocka_unit_test(no_two_are_near),    cmocka_unit_test(a_branch_gets_one),
        cmocka_unit_test(gaps_grow_with_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
