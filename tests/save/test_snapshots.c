/* test_snapshots.c - the decisions of snapshots.h: where snapshots are taken, and which go
 * first. */
#include <string.h>

#include "tests/unit.h"
#include "save/snapshots.h"

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

TEST(places_of_a_prompt)
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
TEST(a_long_prompt_gets_few)
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

TEST(no_two_are_near)
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

TEST(a_branch_gets_one)
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
TEST(gaps_grow_with_age)
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
    /* a gap as large as the bound is small enough */
    snapshot_thin((int64_t[]){128, SNAPSHOT_LEAST}, 2, SNAPSHOT_LEAST, drop);
    assert_true(drop[0] && !drop[1]);
}

/* --- windows ---------------------------------------------------------------------------------- */

enum { MOST = 2048 };

/* Thins a context of n chunks that is whole but for [from, to); the places are wanted. Returns how
 * many chunks keep their windows. */
static int thinned(int n, int window, int from, int to, const int *wanted, int n_wanted,
                   bool *drop)
{
    bool whole[MOST] = {false}, is_wanted[MOST] = {false};
    int n_kept = 0;
    for (int i = 0; i < n; i++)
        whole[i] = i < from || i >= to;
    for (int i = 0; i < n_wanted; i++)
        is_wanted[wanted[i] - 1] = true;
    window_thin(whole, is_wanted, n, window, drop);
    for (int i = 0; i < n; i++) {
        assert_true(whole[i] || !drop[i]); /* there is nothing to drop */
        n_kept += whole[i] && !drop[i];
    }
    return n_kept;
}

TEST(a_window_is_what_tokens_behind_a_place_see)
{
    bool drop[MOST];
    /* 1,024 tokens behind 640 chunks: the next token sees 1,023 of them, in 16 chunks */
    assert_int_equal(window_first_chunk(640, 1024), 0);
    assert_int_equal(window_first_chunk(640 * 64, 1024), 624);
    assert_int_equal(window_first_chunk(640 * 64 + 1, 1024), 624);
    assert_int_equal(window_first_chunk(640 * 64, 1025), 624);
    assert_int_equal(window_first_chunk(640 * 64, 1026), 623);
    assert_int_equal(window_first_chunk(640 * 64, 1), 640);
    /* a short context loses what lies before the window of its end */
    assert_int_equal(thinned(20, 1024, 0, 0, (int[]){20}, 1, drop), 16);
    assert_true(drop[3] && !drop[4]);
    assert_int_equal(thinned(3, 24, 0, 0, (int[]){3}, 1, drop), 1);
    assert_true(drop[0] && drop[1] && !drop[2]);
}

TEST(windows_are_kept_where_requests_resume)
{
    bool drop[MOST];
    /* a branch at 30, a prompt that began at 70 and ended at 100, and an answer behind it */
    assert_int_equal(thinned(110, 512, 0, 0, (int[]){30, 70, 100, 110}, 4, drop), 32);
    assert_true(drop[21] && !drop[22] && !drop[29] && drop[30]);
    assert_true(drop[61] && !drop[62] && !drop[69] && drop[70]);
    assert_true(drop[91] && !drop[92] && drop[100] && drop[101] && !drop[102]);
    /* no request can resume where the window has a hole, so the rest of it goes, too: the end and
     * a place on the grid stay */
    assert_int_equal(thinned(110, 512, 25, 26, (int[]){30, 110}, 2, drop), 16);
}

/* Gaps grow with age, and a long context keeps few windows, whatever its turns were. */
TEST(windows_are_few_in_long_contexts)
{
    bool drop[MOST];
    /* 32,768 tokens of Gemma 3 4B's shape: 5 layers of 34 see all. 128 and 384 are on the grid. */
    int n_kept = thinned(512, 1024, 0, 0, (int[]){512}, 1, drop);
    assert_int_equal(n_kept, 48);
    assert_true(!drop[255] && !drop[383] && !drop[511] && drop[127]);
    assert_true(5 * 512 + 29 * n_kept < 34 * 512 / 4);
    /* twice as long: the older half thins further */
    assert_int_equal(thinned(1024, 1024, 0, 0, (int[]){1024}, 1, drop), 64);
    assert_true(drop[255] && !drop[511] && !drop[767] && !drop[895]);
    /* a narrow window costs little, so its grid is that of snapshots */
    n_kept = thinned(1024, 128, 0, 0, (int[]){1024}, 1, drop);
    assert_in_range(n_kept, 12, 24);
    /* thinning again drops nothing more */
    bool again[MOST], whole[MOST], wanted[MOST] = {false};
    (void)thinned(1024, 1024, 0, 0, (int[]){1024}, 1, drop);
    for (int i = 0; i < 1024; i++)
        whole[i] = !drop[i];
    wanted[1023] = true;
    window_thin(whole, wanted, 1024, 1024, again);
    for (int i = 0; i < 1024; i++)
        assert_false(again[i]);
}

TEST(a_restore_ends_where_its_windows_are_whole)
{
    bool whole[10];
    memset(whole, true, sizeof whole);
    assert_int_equal(window_resume(whole, 10, 0, 640, 128), 10);
    whole[8] = false; /* the window of 128 behind 10 chunks, and behind 9 */
    assert_int_equal(window_resume(whole, 10, 0, 640, 128), 8);
    assert_int_equal(window_resume(whole, 10, 0, 640, 64),
                     10); /* 63 tokens: the last chunk */
    whole[6] = false;
    assert_int_equal(window_resume(whole, 10, 0, 640, 128), 6);
    assert_int_equal(window_resume(whole, 10, 7, 640, 128),
                     8); /* the cache has seven chunks */
    assert_int_equal(window_resume(whole, 10, 9, 640, 128), 10);
    /* behind a partial chunk of 30 tokens 127 more reach into chunk 7 only */
    assert_int_equal(window_resume((bool[]){1, 1, 0, 1, 1}, 5, 0, 4 * 64 + 30, 95), 5);
    assert_int_equal(window_resume((bool[]){1, 1, 0, 1, 1}, 5, 0, 4 * 64 + 30, 96), 2);
    memset(whole, false, sizeof whole);
    assert_int_equal(window_resume(whole, 10, 0, 640, 128), 0);
    assert_int_equal(window_resume(whole, 0, 0, 0, 128), 0);
}
