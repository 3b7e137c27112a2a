/* jinja_global.c - the functions that are available to every template. */
#include "jinja/jinja_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANGE = 100000 }; /* as in Jinja's sandbox */

static int64_t range_part(struct jinja *j, const struct jval *v)
{
    jval_need(j, v);
    if (v->kind != J_INT && v->kind != J_BOOL)
        jinja_fail(j, ERR_MISMATCH, "'%s' object cannot be interpreted as an integer",
                   jval_type(v));
    return jval_as_int(v);
}

static struct jval g_range(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {NULL, NULL, NULL};
    struct jval a[3];
    jcall_bind(j, c, names, 3, 1, a);
    bool two = a[1].kind != J_MISSING;
    int64_t start = two ? range_part(j, &a[0]) : 0;
    int64_t stop = range_part(j, two ? &a[1] : &a[0]);
    int64_t step = a[2].kind != J_MISSING ? range_part(j, &a[2]) : 1;
    if (step == 0)
        jinja_fail(j, ERR_MISMATCH, "range() arg 3 must not be zero");
    __int128 span = step > 0 ? (__int128)stop - start : (__int128)start - stop;
    __int128 stride = step > 0 ? step : -(__int128)step;
    __int128 n = span <= 0 ? 0 : (span - 1) / stride + 1;
    if (n > MAX_RANGE)
        jinja_fail(j, ERR_MISMATCH,
                   "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                   MAX_RANGE);
    struct jval out = jval_seq(j, J_RANGE, (size_t)n);
    for (size_t i = 0; i < out.seq->n; i++)
        out.seq->at[i] = jval_int((int64_t)((__int128)start + (__int128)i * step));
    return out;
}

/* Makes a dict from dict(a=1), dict({'a': 1}, b=2) or dict([('a', 1)]). */
static struct jval g_dict(struct jinja *j, const struct jcall *c)
{
    struct jval out = jval_dict(j);
    if (c->n_args > 1)
        jinja_fail(j, ERR_MISMATCH, "dict expected at most 1 argument, got %zu", c->n_args);
    if (c->n_args == 1 && c->args[0].kind == J_DICT) {
        const struct jdict *from = c->args[0].dict;
        for (size_t i = 0; i < from->n; i++)
            jdict_put(j, out.dict, from->at[i].key, from->at[i].value);
    } else if (c->n_args == 1) {
        const struct jseq *pairs = jval_items(j, &c->args[0]);
        for (size_t i = 0; i < pairs->n; i++) {
            const struct jseq *pair = jval_items(j, &pairs->at[i]);
            if (pair->n != 2)
                jinja_fail(j, ERR_MISMATCH,
                           "dictionary update sequence element #%zu has length %zu; 2 is "
                           "required",
                           i, pair->n);
            jdict_put(j, out.dict, pair->at[0], pair->at[1]);
        }
    }
    for (size_t i = 0; i < c->n_kw; i++)
        jdict_put(j, out.dict, jval_str(c->kw[i].name), c->kw[i].value);
    return out;
}

static struct jval g_namespace(struct jinja *j, const struct jcall *c)
{
    struct jval out = g_dict(j, c);
    out.kind = J_NS;
    return out;
}

static struct jval g_raise(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"message"};
    struct jval message;
    jcall_bind(j, c, names, 1, 1, &message);
    struct jstr s = jval_to_str(j, &message);
    jinja_raise(j, s.s, s.n);
}

/* Accepts only conversions without width and with no flag but "-": a width would let a short format
 * print without limit. */
static void check_format(struct jinja *j, struct jstr s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.s[i] == 0 || s.n > 200)
            jinja_fail(j, ERR_UNSUPPORTED,
                       "strftime_now: a format with zeros, or too long");
        if (s.s[i] != '%')
            continue;
        /* accepts "%-d" and the like, where "-" means no padding */
        i += i + 1 < s.n && s.s[i + 1] == '-';
        if (++i >= s.n || s.s[i] == 0 ||
            strchr("aAbBcdDeFHIjmMpRSTuUwWxXyYnt%", s.s[i]) == NULL)
            jinja_fail(j, ERR_UNSUPPORTED,
                       "strftime_now: a conversion that is not supported");
    }
}

static struct jval g_strftime(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"format"};
    struct jval format;
    jcall_bind(j, c, names, 1, 1, &format);
    if (format.kind != J_STR)
        jinja_fail(j, ERR_MISMATCH, "strftime_now: the format must be str, not %s",
                   jval_type(&format));
    check_format(j, format.str);
    enum { MAX_TEXT = 8192 };
    struct jbuf fmt = {0};
    char *text = jinja_alloc(j, MAX_TEXT);
    jbuf_put(j, &fmt, format.str.s, format.str.n);
    jbuf_put(j, &fmt, "", 1);
    size_t n = strftime(text, MAX_TEXT, fmt.s, j->now);
    if (j->shown_time != NULL && j->shown_time[0] == 0)
        snprintf(j->shown_time, JINJA_SHOWN_BYTES, "%s", text);
    return jval_str((struct jstr){text, n});
}

const struct jfunc jinja_globals[] = {
    {"range", g_range},
    {"dict", g_dict},
    {"namespace", g_namespace},
    {"raise_exception", g_raise},
    {"strftime_now", g_strftime},
    {"cycler", NULL},
    {"joiner", NULL},
    {"lipsum", NULL},
    {NULL, NULL},
};
