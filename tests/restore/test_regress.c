/* test_regress.c - the fit recovers the coefficients of the samples, and never has a negative cost.
 */
#include <string.h>

#include "tests/unit.h"
#include <math.h>

#include "base/rng.h"
#include "restore/regress.h"

static double uniform(struct rng *r, double lo, double hi)
{
    return lo + (hi - lo) * (double)rng_below(r, 1 << 30) / (1 << 30);
}

/* Makes samples of the cost of a layer: coefficients of 1, n and n², in seconds, of realistic
 * magnitude. */
static int sample_curve(struct rng *r, const double *coef, double noise,
                        struct regress_sample *s)
{
    int n = 0;
    for (int tokens = 64; tokens <= 16384; tokens *= 2) {
        s[n] = (struct regress_sample){.x = {1, tokens, (double)tokens * tokens}};
        for (int j = 0; j < 3; j++)
            s[n].y += coef[j] * s[n].x[j];
        s[n].y *= 1 + uniform(r, -noise, noise);
        n++;
    }
    return n;
}

TEST(finds_what_made_the_samples)
{
    struct rng r = {.s = 1};
    for (int t = 0; t < 2000; t++) {
        double coef[3] = {uniform(&r, 1e-5, 1e-2), uniform(&r, 1e-6, 1e-4),
                          uniform(&r, 1e-10, 1e-8)};
        if (t % 4 != 0) /* some coefficients are zero */
            coef[t % 4 - 1] = 0;
        struct regress_sample s[16];
        struct regress_fit f;
        int n = sample_curve(&r, coef, 0, s);
        assert_true(regress(s, n, 3, &f));
        for (int i = 0; i < n; i++) {
            double y = 0;
            for (int j = 0; j < 3; j++)
                y += f.coef[j] * s[i].x[j];
            assert_true(fabs(y / s[i].y - 1) < 1e-6);
        }
        assert_true(f.r2 > 0.999999 && f.worst < 1e-6);
    }
}

/* Returns the sum of the squared relative errors of the samples. */
static double error2(const struct regress_sample *s, int n, const double *coef)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double y = coef[0] * s[i].x[0] + coef[1] * s[i].x[1] + coef[2] * s[i].x[2];
        sum += (y / s[i].y - 1) * (y / s[i].y - 1);
    }
    return sum;
}

TEST(is_the_best_that_is_not_negative)
{
    struct rng r = {.s = 2};
    for (int t = 0; t < 500; t++) {
        double coef[3] = {uniform(&r, -1e-2, 1e-2), uniform(&r, 1e-6, 1e-4),
                          uniform(&r, -1e-9, 1e-8)};
        struct regress_sample s[16];
        struct regress_fit f;
        int n = sample_curve(&r, coef, 0.2, s);
        bool usable = true;
        for (int i = 0; i < n; i++)
            usable = usable && s[i].y > 0;
        if (!usable)
            continue;
        assert_true(regress(s, n, 3, &f));
        double best = error2(s, n, f.coef);
        for (int j = 0; j < 3; j++) {
            assert_true(f.coef[j] >= 0);
            for (int d = -1; d <= 1; d += 2) {
                double moved[3] = {f.coef[0], f.coef[1], f.coef[2]};
                double step = f.coef[j] > 0 ? f.coef[j] * 0.01 : fabs(coef[j]) * 0.01;
                moved[j] = fmax(0, moved[j] + d * step);
                assert_true(error2(s, n, moved) >= best * (1 - 1e-9));
            }
        }
    }
}

TEST(says_how_well_it_fits)
{
    struct regress_fit f;
    const struct regress_sample line[] = {
        {{1, 1}, 2.0}, {{1, 2}, 3.1}, {{1, 3}, 3.9}, {{1, 4}, 5.0}};
    assert_true(regress(line, 4, 2, &f));
    assert_true(f.r2 > 0.99 && f.r2 < 1 && f.worst > 0.005 && f.worst < 0.05);
    /* two points fit exactly, so R² would mean nothing */
    assert_true(regress(line, 2, 2, &f));
    assert_true(f.r2 == 0 && f.worst < 1e-9);
    const struct regress_sample noise[] = {
        {{1, 1}, 5.0}, {{1, 2}, 1.0}, {{1, 3}, 5.0}, {{1, 4}, 1.0}};
    assert_true(regress(noise, 4, 2, &f));
    assert_true(f.r2 < 0.2);
    /* coefficients of terms that were not requested are zero */
    for (int n_terms = 1; n_terms <= 2; n_terms++) {
        memset(&f, 0xff, sizeof f);
        assert_true(regress(line, 4, n_terms, &f));
        for (int j = n_terms; j < REGRESS_TERMS_MAX; j++)
            assert_true(f.coef[j] == 0);
    }
}

TEST(nonsense_has_no_fit)
{
    struct regress_fit f;
    const struct regress_sample good = {{1, 2}, 1.0},
                                bad[] = {{{1, 2}, 0},   {{1, 2}, -1},
                                         {{1, 2}, NAN}, {{1, 2}, INFINITY},
                                         {{1, NAN}, 1}, {{INFINITY, 1}, 1}};
    assert_false(regress(&good, 0, 2, &f));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct regress_sample s[2] = {good, bad[i]};
        assert_false(regress(s, 2, 2, &f));
    }
    const struct regress_sample zeros = {{0, 0}, 1.0};
    assert_false(regress(&zeros, 1, 2, &f));
}
