/* test_truncation.c - the arithmetic of truncation and the price of a replay of all stairs. The
 * arithmetic is compared with the definition, token by token, for every window up to 4,096 tokens,
 * every step and every number of kept tokens. */
#include <math.h>
#include <string.h>

#include "tests/unit.h"
#include "engine/view.h"
#include "store/truncation.h"

enum { MAX_C = 4096, UNIT = TRUNCATION_UNIT };

/* The definition of a cut, as in the header. */
static int64_t cut_by_definition(int64_t c, int64_t s, int64_t p)
{
    int64_t cut = 0;
    while (p - cut >= c) /* the fewest steps that bring the position below C */
        cut += s;
    return cut;
}

/* Checks the tokens that token p of a truncation sees, and their positions. */
static void check_token(const struct truncation *t, int64_t p)
{
    int64_t cut = truncation_cut(t, p);
    int64_t own = truncation_position(t, cut, p);
    assert_int_equal(cut % t->step, 0);
    assert_true(own < t->context);
    assert_true(p < t->keep ? own == p : own == p - cut);
    assert_int_equal(truncation_token(t, cut, own), p);
    assert_true(truncation_first(t, cut) <= p && p < truncation_end(t, cut));
    assert_int_equal(truncation_begins(t, p), p > 0 && p == truncation_first(t, cut));
    /* Token p sees all kept tokens. It sees the first token after the cut and no token that the cut
     * dropped. */
    assert_true(truncation_sees(t, cut, 0) && truncation_sees(t, cut, t->keep - 1));
    if (cut > 0) {
        assert_false(truncation_sees(t, cut, t->keep));
        assert_false(truncation_sees(t, cut, t->keep + cut - 1));
        assert_true(truncation_sees(t, cut, t->keep + cut));
        assert_int_equal(truncation_position(t, cut, t->keep + cut), t->keep);
        /* A stair begins with C - S tokens in view, at least one of which has moved. */
        assert_int_equal(truncation_position(t, cut, truncation_first(t, cut)),
                         t->context - t->step);
        assert_true(t->keep + cut < truncation_first(t, cut));
    }
}

/* Chunks have one cut, positions stay below C, and the closed form equals the definition. */
TEST(the_arithmetic_is_the_definition)
{
    for (int64_t c = 3 * UNIT; c <= MAX_C; c += UNIT) {
        for (int64_t s = UNIT; s <= c - 2 * UNIT; s += UNIT) {
            int64_t most = c - s - UNIT;
            struct truncation t = {(int32_t)c, (int32_t)s, 0};
            for (int64_t p = 0; p < 3 * c; p += UNIT) {
                assert_int_equal(truncation_cut(&t, p), cut_by_definition(c, s, p));
                assert_int_equal(truncation_cut(&t, p), truncation_cut(&t, p + UNIT - 1));
            }
            int64_t keeps[3] = {UNIT, most, most / 2 / UNIT * UNIT};
            for (int i = 0; i < 3; i++) {
                t.keep = (int32_t)(keeps[i] < UNIT ? UNIT : keeps[i]);
                for (int64_t p = 0; p < 3 * c; p += UNIT) {
                    check_token(&t, p);
                    check_token(&t, p + UNIT - 1);
                }
            }
        }
    }
}

/* Every context length up to 4,096 with every ratio of step to context either gives the
 * definition's numbers or is refused. */
TEST(what_is_asked_for_is_made_or_refused)
{
    static const double ratios[] = {0.03, 0.1, 0.25, 0.5, 0.75, 0.97};
    for (int64_t c = 0; c <= MAX_C; c++) {
        for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
            struct truncation_ask ask = {c, ratios[i], UNIT};
            struct truncation t;
            struct err err = {0};
            int64_t whole = c / UNIT * UNIT;
            int64_t step = (int64_t)(ratios[i] * (double)whole / UNIT) * UNIT;
            bool good = step >= UNIT && UNIT <= whole - step - UNIT;
            int rc = truncation_make(&ask, false, &t, &err);
            assert_int_equal(rc, good ? 0 : ERR_USAGE);
            if (good) {
                assert_int_equal(t.context, whole);
                assert_int_equal(t.step, step);
            }
        }
    }
}

static void refused(int64_t context, double ratio, int64_t keep, const char *words)
{
    struct truncation_ask ask = {context, ratio, keep};
    struct truncation t;
    struct err err = {0};
    assert_int_equal(truncation_make(&ask, false, &t, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, words));
}

/* A refusal names the refused numbers. */
TEST(a_refusal_names_the_numbers)
{
    refused(1024, 0, 64, "the ratio is 0;");
    refused(1024, 1, 64, "the ratio is 1;");
    refused(1024, 0.0 / 0.0, 64, "the ratio is ");
    refused(1024, 0.05, 64, "a ratio of 0.05 of a context of 1024 tokens is a step of 0;");
    refused(1024, 0.5, 0, "keep is 0; with a context of 1024 and a step of 512 tokens");
    refused(1024, 0.5, 100, "a multiple of 64 from 64 to 448");
    refused(1024, 0.5, 512, "from 64 to 448");
    refused(256, 0.99, 64,
            "a step of 192 has no room for 64 kept tokens and one chunk of 64");
    refused(-1, 0.5, 64, "a context of -1 tokens");
}

/* Without a truncation there is one stair, and it has no end. */
TEST(no_truncation_cuts_nothing)
{
    struct truncation t = {0};
    assert_int_equal(truncation_cut(&t, 1000000), 0);
    assert_false(truncation_begins(&t, 1000000));
    assert_int_equal(truncation_position(&t, 0, 1000000), 1000000);
    assert_true(truncation_end(&t, 0) == INT64_MAX);
}

/* Compares with a replay token by token: the stair of each token, and the number of rows before
 * it. */
TEST(a_replay_computes_each_token_once)
{
    static const struct truncation ts[] = {{0},
                                           {256, 64, 64},
                                           {256, 128, 64},
                                           {1024, 512, 64},
                                           {1024, 256, 128},
                                           {4096, 2048, 64}};
    for (size_t i = 0; i < sizeof ts / sizeof ts[0]; i++) {
        const struct truncation *t = &ts[i];
        for (int64_t n = 1; n < 6000; n += 61) {
            for (int64_t from = 0; from <= n; from += 173) {
                struct staircase c = staircase_of(t, from, n), by_token = {0};
                int64_t moves = 0, cut = truncation_cut(t, from), n_on = 0;
                by_token.past = truncation_position(t, cut, from);
                for (int64_t p = from; p < n; p++) {
                    if (truncation_cut(t, p) != cut) { /* another stair */
                        by_token.n_whole += n_on == t->step && moves > 0;
                        cut = truncation_cut(t, p);
                        n_on = 0;
                        moves++;
                        assert_int_equal(truncation_position(t, cut, p),
                                         t->context - t->step);
                    }
                    n_on++;
                    by_token.n_first += moves == 0;
                }
                bool is_whole = moves > 0 && n_on == t->step;
                by_token.n_whole += is_whole;
                by_token.n_last = moves == 0 || is_whole ? 0 : n_on;
                assert_memory_equal(&c, &by_token, sizeof c);
                assert_int_equal(staircase_moves(&c), moves);
                assert_int_equal(c.n_first + c.n_whole * t->step + c.n_last, n - from);
            }
        }
    }
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* Computing a token takes 1 ms, plus 1 us for each token that it sees. Moving a token's keys takes
 * 0.1 ms. */
TEST(a_replay_has_the_price_of_its_stairs)
{
    static const struct truncation t = {1024, 512, 64};
    struct platform p;
    platform_init(&p);
    p.n_layers = 3;
    p.c_tok = (struct cost_curve){.b_s = 1e-3, .c_s = 0.5e-6};
    p.c_kv = (struct cost_curve){.b_s = 1e-4};
    double first = platform_prefill_s(&p, 0, 1024), move = platform_kv_s(&p, 512);
    double whole = platform_prefill_s(&p, 512, 512),
           last = platform_prefill_s(&p, 512, 100);
    assert_true(is_near(first, 1.024 + 0.5e-6 * 1024 * 1024));
    assert_true(is_near(whole, 0.512 + 0.5e-6 * (1024 * 1024 - 512 * 512)));
    assert_true(is_near(move, 0.0512));
    assert_true(is_near(staircase_price_s(&p, &t, 0, 1024), 3 * first));
    assert_true(is_near(staircase_price_s(&p, &t, 0, 1024 + 3 * 512 + 100),
                        3 * (first + 3 * (move + whole) + move + last)));
    /* From the middle of a stair: 100 of its rows, after 924 positions. */
    assert_true(is_near(staircase_price_s(&p, &t, 1024 + 412, 1024 + 512),
                        3 * platform_prefill_s(&p, 924, 100)));
    assert_true(staircase_price_s(&p, &t, 2000, 2000) == 0);
    /* Without a truncation the price is that of a prefill. */
    assert_true(is_near(staircase_price_s(&p, &(struct truncation){0}, 100, 3000),
                        3 * platform_prefill_s(&p, 100, 2900)));
    assert_true(staircase_share(&t, 1024) == 1);
    assert_true(is_near(staircase_share(&t, 2560), 2560.0 / 1024));
    assert_true(is_near(staircase_share(&t, 2561), 2561.0 / 513));
}

/* A replay is chosen if it is faster than the restore, and never without a price. */
TEST(a_replay_pays_if_it_is_faster)
{
    assert_true(staircase_pays(1, 1.01));
    assert_false(staircase_pays(1, 1));
    assert_false(staircase_pays(1.01, 1));
    assert_false(staircase_pays(0, 1));
}
