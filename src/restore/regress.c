/* regress.c - see regress.h.
 *
 * With at most three terms every subset of them is tried. The best fit whose coefficients are
 * all positive is the answer of the constrained problem, because that answer is the fit of its
 * non-zero terms. */
#include "restore/regress.h"

#include <math.h>
#include <string.h>

#include "base/check.h"

enum { T = REGRESS_TERMS_MAX };

/* Solves a x = b for n <= T by elimination with pivots. Returns false if a is singular. */
static bool solve(double a[T][T], double b[T], int n, double *x)
{
    for (int i = 0; i < n; i++) {
        int p = i;
        for (int r = i + 1; r < n; r++)
            p = fabs(a[r][i]) > fabs(a[p][i]) ? r : p;
        if (fabs(a[p][i]) < 1e-12)
            return false;
        for (int c = 0; c < n; c++) {
            double t = a[i][c];
            a[i][c] = a[p][c];
            a[p][c] = t;
        }
        double t = b[i];
        b[i] = b[p];
        b[p] = t;
        for (int r = i + 1; r < n; r++) {
            double f = a[r][i] / a[i][i];
            for (int c = i; c < n; c++)
                a[r][c] -= f * a[i][c];
            b[r] -= f * b[i];
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        x[i] = b[i];
        for (int c = i + 1; c < n; c++)
            x[i] -= a[i][c] * x[c];
        x[i] /= a[i][i];
    }
    return true;
}

/* Fits the terms in `set` without constraint, in relative errors. Rows are x / y against 1, and
 * columns are scaled to a largest value of 1, since terms differ by many powers of ten. */
static bool fit_set(const struct regress_sample *s, int n, unsigned set, double *coef)
{
    double a[T][T] = {{0}}, b[T] = {0}, x[T], scale[T];
    int term[T], k = 0;
    for (int j = 0; j < T; j++) {
        coef[j] = 0; /* terms outside the set get 0, too */
        if (set >> j & 1)
            term[k++] = j;
    }
    for (int j = 0; j < k; j++) {
        scale[j] = 0;
        for (int i = 0; i < n; i++)
            scale[j] = fmax(scale[j], fabs(s[i].x[term[j]] / s[i].y));
        if (!(scale[j] > 0))
            return false;
    }
    for (int i = 0; i < n; i++)
        for (int r = 0; r < k; r++) {
            double xr = s[i].x[term[r]] / s[i].y / scale[r];
            b[r] += xr;
            for (int c = 0; c < k; c++)
                a[r][c] += xr * s[i].x[term[c]] / s[i].y / scale[c];
        }
    if (!solve(a, b, k, x))
        return false;
    for (int j = 0; j < k; j++) {
        coef[term[j]] = x[j] / scale[j];
        if (!(coef[term[j]] > 0))
            return false;
    }
    return true;
}

static double fitted(const struct regress_sample *s, int n_terms, const double *coef)
{
    double y = 0;
    for (int j = 0; j < n_terms; j++)
        y += coef[j] * s->x[j];
    return y;
}

static double relative_error2(const struct regress_sample *s, int n, int n_terms,
                              const double *coef)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double e = fitted(&s[i], n_terms, coef) / s[i].y - 1;
        sum += e * e;
    }
    return sum;
}

/* Computes the errors of the fit. R² has its usual form, in seconds (not in relative errors):
 * 1 - residual / variance around the mean. */
static void judge(const struct regress_sample *s, int n, int n_terms,
                  struct regress_fit *out)
{
    double mean = 0, total = 0, residual = 0;
    for (int i = 0; i < n; i++)
        mean += s[i].y / n;
    for (int i = 0; i < n; i++) {
        double e = fitted(&s[i], n_terms, out->coef) - s[i].y;
        residual += e * e;
        total += (s[i].y - mean) * (s[i].y - mean);
        out->worst = fmax(out->worst, fabs(e / s[i].y));
    }
    out->rms = sqrt(relative_error2(s, n, n_terms, out->coef) / n);
    out->r2 = n > n_terms && total > 0 ? fmax(0, 1 - residual / total) : 0;
}

bool regress(const struct regress_sample *s, int n, int n_terms, struct regress_fit *out)
{
    CHECK(n_terms >= 1 && n_terms <= T);
    double coef[T], best = INFINITY;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++) {
        if (!(s[i].y > 0) || !isfinite(s[i].y))
            return false;
        for (int j = 0; j < n_terms; j++)
            if (!isfinite(s[i].x[j]))
                return false;
    }
    for (unsigned set = 1; set < 1u << n_terms; set++) {
        if (!fit_set(s, n, set, coef))
            continue;
        double e = relative_error2(s, n, n_terms, coef);
        if (e < best) {
            best = e;
            memcpy(out->coef, coef, sizeof coef);
        }
    }
    if (!isfinite(best))
        return false;
    judge(s, n, n_terms, out);
    return true;
}
