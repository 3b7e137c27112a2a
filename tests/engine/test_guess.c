/* test_guess.c - guesses: what is proposed, how many of them a step computes, and that answers and
 * saved state have the same bits with them and without. */
#include "tests/unit.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "engine/guess.h"
#include "tests/engine/enginetest.h"

/* --- what is proposed ------------------------------------------------------------------------- */

/* Adds a text of one token per character, and writes what is proposed behind it. Returns the
 * length of the match. */
static int propose(const char *text, int room, int most, char *out)
{
    struct guess_index *x = guess_index_create(room);
    int32_t ids[64];
    assert_non_null(x);
    for (const char *p = text; *p != 0; p++) {
        int32_t id = *p;
        guess_index_add(x, &id, 1);
    }
    int n = guess_index_find(x, most, ids);
    for (int i = 0; i < most; i++)
        out[i] = n > 0 ? (char)ids[i] : 0;
    out[most] = 0;
    guess_index_free(x);
    return n;
}

TEST(what_followed_is_proposed)
{
    static const struct {
        const char *text;
        int match;
        const char *out;
    } cases[] = {
        {"", 0, ""},
        {"ab", 0, ""},
        {"aba", 0, ""},
        {"abXab", 2, "XabXab"},
        {"abcdefg", 0, ""},                   /* the end itself is no earlier place */
        {"the cat sat. the c", 5, "at sat"},  /* " the c" but for the first blank */
        {"12abcX 34abcY 34abc", 6, "Y 34ab"}, /* the longest match, not the latest */
        {"abcX abcY abc", 4, "Y abcY"},       /* the latest of two that are as long */
        {"xyzxyzxyz", 6, "xyzxyz"},           /* beyond the end it goes on with itself */
        {"aaaa", 3, "aaaaaa"},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = propose(cases[i].text, 64, 6, out);
        if (n != cases[i].match || strcmp(out, cases[i].out) != 0)
            fail_msg("'%s': '%s' by a match of %d", cases[i].text, out, n);
    }
    assert_int_equal(propose("abcdabc", 7, 3, out), 3);
    assert_int_equal(propose("abcdabc", 6, 3, out), 0); /* the text outgrew the index */
}

/* Where a token differs from the proposal, the place that was found goes on behind it, as if one
 * token had replaced another. */
TEST(a_place_goes_on_beside_the_text)
{
    static const struct {
        char next; /* token of the text */
        int match; /* behind it */
        char out;
    } steps[] = {{'n', 2, 'e'}, {'e', 3, ' '}, {' ', 4, 't'}, {'t', 5, 'w'}, {'X', 1, 'o'},
                 {'o', 2, ' '}, {' ', 3, 's'}, {'Y', 1, 'i'}, {'Z', 1, 'x'}, {'x', 2, '|'}};
    struct guess_index *x = guess_index_create(64);
    int32_t out[1];
    for (const char *p = "one two six|o"; *p != 0; p++)
        guess_index_add(x, &(int32_t){*p}, 1);
    assert_int_equal(guess_index_find(x, 1, out), 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        guess_index_add(x, &(int32_t){steps[i].next}, 1);
        assert_int_equal(guess_index_find(x, 1, out), steps[i].match);
        assert_int_equal(out[0], steps[i].out);
    }
    for (int i = 0; i < 8; i++) /* not for ever */
        guess_index_add(x, &(int32_t){'0' + i}, 1);
    assert_int_equal(guess_index_find(x, 1, out), 0);
    guess_index_free(x);
}

/* Long texts give what a search of the whole text gives: the longest match among the latest
 * places. */
TEST(a_search_of_the_text_agrees)
{
    enum { N = 600 };
    struct rng r = {.s = 5};
    int32_t ids[N], out[4];
    for (int round = 0; round < 200; round++) {
        struct guess_index *x = guess_index_create(N);
        int n = 10 + (int)rng_below(&r, N - 10);
        for (int i = 0; i < n; i++)
            ids[i] = (int32_t)rng_below(&r, round % 2 == 0 ? 40 : 4000);
        int from = (int)rng_below(&r, (uint64_t)n), most = n - from < 20 ? n - from : 20;
        memcpy(ids + n - most, ids + from, (size_t)most * sizeof *ids);
        guess_index_add(x, ids, n);
        int got = guess_index_find(x, 4, out), best = 0, n_seen = 0;
        for (int i = n - 1; i >= GUESS_LEAST && n_seen < 16; i--) {
            int m = 0;
            while (m < i && m < 64 && ids[i - 1 - m] == ids[n - 1 - m])
                m++;
            n_seen += m >= GUESS_LEAST;
            best = m > best ? m : best;
        }
        if (best >= GUESS_LEAST)
            assert_int_equal(got, best);
        else
            assert_in_range(got, 0, GUESS_LEAST - 1);
        guess_index_free(x);
    }
}

/* --- how many --------------------------------------------------------------------------------- */

static struct guess_speed speed_of(double first_ms, double row_ms)
{
    struct guess_speed s = {.pace_ns = first_ms * 1e6};
    for (int n = 1; n <= 32; n++) {
        s.cost[n] = 1 + row_ms / first_ms * (n - 1);
        s.n_seen[n] = 9;
    }
    return s;
}

static struct guess_seq proposal(int most, double rate)
{
    struct guess_seq s = {.most = most};
    for (int k = 0; k < most; k++)
        s.rate[k] = rate;
    return s;
}

TEST(the_price_of_a_row_decides)
{
    static const struct {
        const char *what;
        double first_ms, row_ms, rate;
        int n_seqs, least, most;
    } cases[] = {
        {"cheap rows, sure guesses", 3, 0.1, 0.99, 1, 15, 15},
        {"dear rows, sure guesses", 3, 0.8, 0.97, 1, 8, 15},
        {"cheap rows, bad guesses", 3, 0.1, 0.3, 1, 1, 3},
        {"dear rows, bad guesses", 3, 1.0, 0.25, 1, 0, 0},
        {"free rows, guesses that are wrong", 3, 0, 0.1, 1, 0, 0},
        {"rows at full price", 3, 3, 0.99, 1, 0, 0},
        {"eight clients, rows at nearly full price", 3, 2.8, 0.95, 8, 0, 0},
        {"eight clients, a gain of 6 %", 3, 0.31, 0.57, 8, 0, 0},
        {"eight clients, a gain of 18 %", 3, 0.31, 0.75, 8, 8, 15},
        {"one client, a gain of 6 %", 3, 1.44, 0.57, 1, 1, 1},
        {"eight clients, cheap rows", 3, 0.1, 0.95, 8, 8, 15},
        {"no proposal", 3, 0.1, 0, 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct guess_speed s = speed_of(cases[i].first_ms, cases[i].row_ms);
        struct guess_seq q[8];
        for (int k = 0; k < cases[i].n_seqs; k++)
            q[k] = proposal(cases[i].rate > 0 ? 15 : 0, cases[i].rate);
        guess_decide(&s, q, cases[i].n_seqs, GUESS_ROWS);
        int n = 0;
        for (int k = 0; k < cases[i].n_seqs; k++)
            n += q[k].n;
        if (n < cases[i].least || n > cases[i].most)
            fail_msg("%s: %d guesses", cases[i].what, n);
    }
    struct guess_speed unknown = {0};
    struct guess_seq q = proposal(15, 0.99);
    guess_decide(&unknown, &q, 1, GUESS_ROWS);
    assert_int_equal(q.n, 0); /* the first pass is measured without guesses */
}

/* One client's sure guesses may not slow down a client who has none. */
TEST(no_sequence_pays_for_another)
{
    struct guess_speed dear = speed_of(3, 0.8), cheap = speed_of(30, 0.2);
    for (int with = 0; with < 2; with++) {
        struct guess_seq q[2] = {proposal(15, 0.99), proposal(with * 15, 0.99)};
        guess_decide(&dear, q, 2, GUESS_ROWS);
        if (with)
            assert_true(q[0].n > 2 && q[1].n > 2);
        else
            assert_int_equal(q[0].n, 0);
    }
    struct guess_seq q[2] = {proposal(15, 0.99), {.most = 0}};
    guess_decide(&cheap, q, 2, GUESS_ROWS);
    assert_in_range(q[0].n, 2, 5); /* 3 % of 30 ms are four rows */
}

static double tokens_of(const struct guess_seq *q, int n_seqs)
{
    double tokens = 0;
    for (int i = 0; i < n_seqs; i++) {
        double p = 1;
        for (int k = 0; k <= q[i].n; p *= k < GUESS_MOST ? q[i].rate[k] : 0, k++)
            tokens += p;
    }
    return tokens;
}

/* Whatever passes take, the decision never lowers the expected speed, and no other number of
 * guesses for one sequence is better by more than the 3 % that a guess must be worth. */
TEST(the_expected_speed_never_falls)
{
    struct rng r = {.s = 9};
    for (int round = 0; round < 3000; round++) {
        struct guess_speed s = {0};
        struct guess_seq q[8];
        int n_seqs = 1 + (int)rng_below(&r, 8), n = 0;
        double ns = 1e6;
        for (int k = 1; k <= 40; k++) {
            ns += (double)rng_below(&r, 600000);
            guess_speed_learn(&s, k, (int64_t)ns);
        }
        for (int i = 0; i < n_seqs; i++)
            q[i] = proposal((int)rng_below(&r, 16), (double)rng_below(&r, 1000) / 1000);
        guess_decide(&s, q, n_seqs, GUESS_ROWS);
        for (int i = 0; i < n_seqs; i++) {
            assert_in_range(q[i].n, 0, q[i].most);
            n += q[i].n;
        }
        assert_true(n <= GUESS_ROWS);
        double with = tokens_of(q, n_seqs) / guess_pass_ns(&s, n_seqs + n);
        assert_true(n == 0 || with > n_seqs / guess_pass_ns(&s, n_seqs));
        for (int i = 0; i < n_seqs; i++)
            assert_true(1.031 * tokens_of(&q[i], 1) / guess_pass_ns(&s, n_seqs + n) >=
                        1 / guess_pass_ns(&s, n_seqs));
        for (int k = 0; n_seqs == 1 && q[0].rate[0] >= 0.15 && k <= q[0].most; k++) {
            struct guess_seq other = q[0];
            other.n = k;
            assert_true(tokens_of(&other, 1) / guess_pass_ns(&s, 1 + k) <=
                        1.03 * with * (1 + 1e-9));
        }
    }
}

TEST(rates_are_learned)
{
    struct guess_rates all = guess_rates_first(), own = {0}, other = {0};
    assert_true(guess_rate(&own, &all, 3) < guess_rate(&own, &all, 30));
    for (int i = 0; i < 50; i++)
        guess_learn(&own, &all, 20, false);
    assert_true(guess_rate(&own, &all, 20) < 0.1);
    assert_true(guess_rate(&other, &all, 20) < 0.3); /* others learn from it, less */
    assert_true(guess_rate(&own, &all, 5) > 0.3);    /* other lengths do not */
    for (int i = 0; i < 50; i++)
        guess_learn(&other, &all, 20, true);
    assert_true(guess_rate(&other, &all, 20) > 0.85);
    assert_true(guess_rate(&own, &all, 20) < 0.2);
}

/* A pass between two known ones is interpolated, and never cheaper than a smaller one. */
TEST(passes_are_learned)
{
    struct guess_speed s = {0};
    assert_true(guess_pass_ns(&s, 1) == 0);
    guess_speed_learn(&s, 1, 1000);
    assert_true(guess_pass_ns(&s, 6) == 2000);
    for (int i = 0; i < 300; i++) {
        guess_speed_learn(&s, 5, 3000);
        guess_speed_learn(&s, 1, 1000);
    }
    assert_true(fabs(guess_pass_ns(&s, 3) / 2000 - 1) < 0.01);
    guess_speed_learn(&s, 9, 1500);
    assert_true(guess_pass_ns(&s, 7) >= guess_pass_ns(&s, 5));
    for (int i = 0; i < 300; i++) {
        guess_speed_learn(&s, 9, 1900);
        guess_speed_learn(&s, 1, 1000);
    }
    assert_true(fabs(guess_pass_ns(&s, 9) / guess_pass_ns(&s, 1) - 1.9) < 0.01);
    for (int i = 0; i < 60; i++)
        guess_speed_learn(&s, 1, 2000); /* the machine is half as fast: all passes are */
    assert_true(fabs(guess_pass_ns(&s, 9) / 3800 - 1) < 0.1);
    double before = guess_pass_ns(&s, 9);
    guess_speed_learn(&s, 9, 100000000); /* something else delayed a pass */
    assert_true(guess_pass_ns(&s, 9) < 1.3 * before);
    guess_speed_learn(&s, 100, 1); /* too many rows: ignored */
    assert_true(guess_pass_ns(&s, 64) > before);
}

/* A pass that was held up does not end guesses of its number; many do. */
TEST(one_pass_tells_little)
{
    struct guess_speed s = {0};
    struct guess_seq q = proposal(15, 0.95);
    for (int i = 0; i < 10; i++)
        guess_speed_learn(&s, 1, 1000000);
    guess_decide(&s, &q, 1, GUESS_ROWS);
    int most = q.n;
    assert_in_range(most, 8, 15);
    guess_speed_learn(&s, 1 + most, 40000000);
    guess_decide(&s, &q, 1, GUESS_ROWS);
    assert_in_range(q.n, most - 3, 15);
    for (int i = 0; i < 60; i++) {
        guess_speed_learn(&s, 1, 1000000);
        guess_decide(&s, &q, 1, GUESS_ROWS);
        guess_speed_learn(&s, 1 + q.n, (1 + q.n) * 1000000);
    }
    assert_int_equal(q.n, 0);
}

/* The time that a machine takes for n rows: `row` is a row's price beside one row's pass. The pace
 * drifts, each pass varies, and some wait for something else. */
static double machine_ms(struct rng *r, double *pace, double row, int n)
{
    double noise = 0;
    for (int i = 0; i < 4; i++)
        noise += rng_unit(r) - 0.5;
    *pace *= 1 + 0.03 * (rng_unit(r) - 0.499);
    *pace = *pace < 0.5 ? 0.5 : *pace > 2 ? 2 : *pace;
    double late = rng_below(r, 50) == 0 ? 1 + 3 * rng_unit(r) : 1;
    return *pace * (1 + row * (n - 1)) * (1 + 0.1 * noise) * late;
}

/* Decodes for n_seqs clients, of which some copy at times, on a machine that varies, and returns
 * the tokens a second beside those without guesses. */
static double speedup(uint64_t seed, double row, int n_seqs, int n_copy, double rate)
{
    struct rng r = {.s = seed};
    struct guess_speed s = {0};
    double pace = 1, tokens = 0, ms = 0, off_tokens = 0, off_ms = 0;
    int most = n_seqs;
    for (int step = 0; step < 2000; step++) {
        struct guess_seq q[8];
        if (step % 50 == 0) { /* clients come and go, with contexts of other lengths */
            n_seqs = most - (int)rng_below(&r, 2) * (int)rng_below(&r, (uint64_t)most);
            pace *= 0.7 + 0.6 * rng_unit(&r);
        }
        int n = n_seqs;
        for (int i = 0; i < n_seqs; i++)
            q[i] = proposal(i < n_copy && rng_below(&r, 3) == 0 ? 15 : 0, rate);
        guess_decide(&s, q, n_seqs, GUESS_ROWS);
        for (int i = 0; i < n_seqs; i++) {
            n += q[i].n;
            tokens += 1;
            for (int k = 0; k < q[i].n && rng_unit(&r) < rate; k++)
                tokens += 1;
        }
        double took = machine_ms(&r, &pace, row, n);
        guess_speed_learn(&s, n, (int64_t)(took * 1e6));
        ms += took;
        off_tokens += n_seqs;
        off_ms += took / (1 + row * (n - 1)) * (1 + row * (n_seqs - 1));
    }
    return tokens / ms / (off_tokens / off_ms);
}

TEST(a_machine_that_varies_loses_nothing)
{
    static const struct {
        const char *what;
        double row, rate, least;
        int n_seqs, n_copy;
    } cases[] = {
        {"eight clients, dear rows, half copy", 0.9, 0.7, 0.996, 8, 4},
        {"eight clients, dear rows, all copy", 0.9, 0.9, 0.996, 8, 8},
        {"eight clients, rows of a fifth", 0.2, 0.7, 0.998, 8, 4},
        {"eight clients, cheap rows, all copy", 0.02, 0.9, 1.15, 8, 8},
        {"one client, rows of a fifth, copies", 0.2, 0.95, 1.9, 1, 1},
        {"one client, dear rows, bad guesses", 0.9, 0.3, 0.999, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double mean = 0;
        for (uint64_t seed = 1; seed <= 20; seed++)
            mean += speedup(seed, cases[i].row, cases[i].n_seqs, cases[i].n_copy,
                            cases[i].rate) /
                    20;
        if (mean < cases[i].least)
            fail_msg("%s: %.3f", cases[i].what, mean);
    }
}

/* Behind right tokens a match is longer, and so its next guess is more often right: a short match
 * may be worth several guesses. */
TEST(rates_grow_with_the_match)
{
    struct guess_rates all = guess_rates_first();
    struct guess_speed s = speed_of(3, 0.9);
    struct guess_seq flat = {.most = 15}, grows = {.most = 15};
    for (int k = 0; k < 15; k++) {
        flat.rate[k] = guess_rate(&all, &all, 9);
        grows.rate[k] = guess_rate(&all, &all, guess_longer(9, k));
    }
    guess_decide(&s, &flat, 1, GUESS_ROWS);
    guess_decide(&s, &grows, 1, GUESS_ROWS);
    assert_true(guess_longer(3, 2) == 5 && guess_longer(GUESS_FORCED, 2) == GUESS_FORCED);
    assert_true(grows.rate[10] > flat.rate[10] && grows.n >= flat.n);
    grows.rate[4] = 0; /* nothing is computed behind a guess that is wrong for sure */
    guess_decide(&s, &grows, 1, GUESS_ROWS);
    assert_in_range(grows.n, 1, 4);
}

/* --- answers ---------------------------------------------------------------------------------- */

enum { N_PROMPT = 100, N_MOST = 150 };

/* Writes a prompt that repeats a run of tokens. */
static void repeated(int32_t *out, int n, uint64_t seed)
{
    et_small_prompt(out, n, seed);
    for (int i = 23; i < n; i++)
        out[i] = out[i - 23];
}

static void open_guessing(struct stack *k, const char *model, const char *guesses,
                          const char *policy)
{
    struct stack_opts o = {.user.model = model,
                           .user.dtype = "bf16",
                           .user.speculate = guesses,
                           .user.policy = policy,
                           .user.max_context = 512,
                           .user.max_sequences = 4,
                           .user.store_in_memory = true,
                           .user.threads = 2};
    et_open(k, &o);
}

/* Answers with guesses have the bits of answers without, alone and in a batch, at any temperature;
 * what they save restores to the same bits; and guesses that were right are counted. */
TEST(answers_have_the_same_bits)
{
    static const char *const models[] = {"models/demo", "synth:tiny-gqa"};
    static const float temperatures[] = {0, 0.7F, 2};
    int64_t n_right = 0;
    for (int m = 0; m < 2; m++) {
        struct stack with, without;
        open_guessing(&with, models[m], "15", NULL);
        open_guessing(&without, models[m], "off", NULL);
        for (int t = 0; t < 3; t++) {
            struct et_run a[4], b;
            struct seq *s[4];
            int32_t prompt[4][N_PROMPT];
            struct err err = {0};
            struct et_ask ask[4];
            for (int i = 0; i < 4; i++) {
                int n = N_PROMPT - 17 * i;
                repeated(prompt[i], n, (uint64_t)(10 * t + i));
                ask[i] = (struct et_ask){.prompt = prompt[i],
                                         .n_prompt = n,
                                         .max_tokens = N_MOST - 31 * i,
                                         .temperature = temperatures[t],
                                         .seed = (uint64_t)i,
                                         .save = i % 2 == 0 ? "kv" : "hidden"};
                s[i] = et_add(&with, &ask[i]);
            }
            assert_int_equal(engine_run(with.engine, &err), 0);
            for (int i = 0; i < 4; i++) {
                n_right += seq_outcome(s[i])->r.guessed_right;
                et_take(&with, s[i], &a[i]);
                assert_int_equal(et_run(&without, &ask[i], &b), 0);
                et_same(&a[i], &b, models[m]);
                /* the answer's own state comes back, up to its last token */
                int32_t again[N_PROMPT + N_MOST];
                int n = ask[i].n_prompt + a[i].n_tokens;
                memcpy(again, prompt[i], (size_t)ask[i].n_prompt * sizeof *again);
                memcpy(again + ask[i].n_prompt, a[i].tokens,
                       (size_t)a[i].n_tokens * sizeof *again);
                struct et_ask next = {.prompt = again, .n_prompt = n, .max_tokens = 5};
                struct et_run c, d;
                engine_forget_saved(with.engine);
                next.plan = ask[i].save;
                assert_int_equal(et_run(&with, &next, &c), 0);
                next.plan = "recompute";
                assert_int_equal(et_run(&without, &next, &d), 0);
                assert_true(c.n_cached >= n - 1 - 64);
                et_same(&c, &d, "restored");
            }
        }
        stack_close(&with);
        stack_close(&without);
    }
    assert_true(n_right > 50);
}

/* A truncated context moves its window at the same tokens. */
TEST(windows_move_at_the_same_tokens)
{
    struct et_run run[2];
    int32_t prompt[N_PROMPT];
    repeated(prompt, N_PROMPT, 3);
    for (int i = 0; i < 2; i++) {
        struct stack k;
        open_guessing(&k, "synth:tiny-mha", i == 0 ? "15" : "off", NULL);
        struct et_ask ask = {.prompt = prompt,
                             .n_prompt = N_PROMPT,
                             .max_tokens = 300,
                             .save = "both",
                             .truncation = {.context = 192, .step = 64}};
        assert_int_equal(et_run(&k, &ask, &run[i]), 0);
        stack_close(&k);
    }
    et_same(&run[0], &run[1], "truncated");
    assert_int_equal(run[0].n_stairs, run[1].n_stairs);
    assert_true(run[0].n_stairs >= 3);
}
