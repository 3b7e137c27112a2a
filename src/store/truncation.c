/* truncation.c - see truncation.h. */
#include "store/truncation.h"

#include <math.h>

#include "base/check.h"

static int64_t whole_chunks(double tokens)
{
    return (int64_t)floor(tokens / TRUNCATION_UNIT) * TRUNCATION_UNIT;
}

int truncation_make(const struct truncation_ask *ask, bool may_keep_none,
                    struct truncation *out, struct err *err)
{
    int64_t c = ask->context / TRUNCATION_UNIT * TRUNCATION_UNIT, k = ask->keep;
    int64_t least = may_keep_none ? 0 : TRUNCATION_UNIT;
    if (ask->context < 0 || ask->context > INT32_MAX)
        return err_set(err, ERR_USAGE, "truncation: a context of %lld tokens",
                       (long long)ask->context);
    if (!(ask->ratio > 0 && ask->ratio < 1))
        return err_set(err, ERR_USAGE,
                       "truncation: the ratio is %g; it must be above 0 and below 1",
                       ask->ratio);
    int64_t s = whole_chunks(ask->ratio * (double)c);
    if (s < TRUNCATION_UNIT)
        return err_set(err, ERR_USAGE,
                       "truncation: a ratio of %g of a context of %lld tokens is a step of "
                       "%lld; it must be at least %d",
                       ask->ratio, (long long)c, (long long)s, TRUNCATION_UNIT);
    if (c - s - TRUNCATION_UNIT < least)
        return err_set(
            err, ERR_USAGE,
            "truncation: a context of %lld tokens with a step of %lld has no room for "
            "%lld kept tokens and one chunk of %d: the ratio %g is too large",
            (long long)c, (long long)s, (long long)least, TRUNCATION_UNIT, ask->ratio);
    if (k % TRUNCATION_UNIT != 0 || k < least || k > c - s - TRUNCATION_UNIT)
        return err_set(
            err, ERR_USAGE,
            "truncation: keep is %lld; with a context of %lld and a step of %lld "
            "tokens it must be a multiple of %d from %lld to %lld",
            (long long)k, (long long)c, (long long)s, TRUNCATION_UNIT, (long long)least,
            (long long)(c - s - TRUNCATION_UNIT));
    *out = (struct truncation){(int32_t)c, (int32_t)s, (int32_t)k};
    return 0;
}

bool truncation_sees(const struct truncation *t, int64_t cut, int64_t p)
{
    return p < truncation_end(t, cut) && (cut == 0 || p < t->keep || p >= t->keep + cut);
}

int64_t truncation_position(const struct truncation *t, int64_t cut, int64_t p)
{
    CHECK(truncation_sees(t, cut, p));
    return cut == 0 || p < t->keep ? p : p - cut;
}

int64_t truncation_token(const struct truncation *t, int64_t cut, int64_t position)
{
    return cut == 0 || position < t->keep ? position : position + cut;
}

bool truncation_begins(const struct truncation *t, int64_t p)
{
    return p > 0 && truncation_cut(t, p) != truncation_cut(t, p - 1);
}
