/* jinja_filter.c - the filters that return text and numbers, and the look-up of filters. */
#include "jinja/jinja_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Names of Jinja's filters that are not implemented here. Any other name is unknown. */
static const char *const absent[] = {
    "batch",  "center",    "filesizeformat", "forceescape", "groupby",
    "pprint", "random",    "slice",          "striptags",   "urlencode",
    "urlize", "wordcount", "wordwrap",       "xmlattr",     NULL};

struct jval jinja_call_filter(struct jinja *j, struct jstr name, struct jcall *c)
{
    const struct jfunc *const tables[] = {jinja_filters_text, jinja_filters_seq};
    for (size_t t = 0; t < 2; t++)
        for (const struct jfunc *f = tables[t]; f->name != NULL; f++)
            if (jstr_is(name, f->name)) {
                c->what = f->name;
                return f->call(j, c);
            }
    for (size_t i = 0; absent[i] != NULL; i++)
        if (jstr_is(name, absent[i]))
            jinja_fail(j, ERR_UNSUPPORTED, "filter '%s' is not supported", absent[i]);
    jinja_fail(j, ERR_FORMAT, "No filter named '%.*s'.", JARG(name));
}

static int64_t int_argument(struct jinja *j, const struct jcall *c, const struct jval *v,
                            int64_t otherwise)
{
    if (v->kind == J_MISSING)
        return otherwise;
    jval_need(j, v);
    if (v->kind != J_INT && v->kind != J_BOOL)
        jinja_fail(j, ERR_MISMATCH, "%s: '%s' object cannot be interpreted as an integer",
                   c->what, jval_type(v));
    return jval_as_int(v);
}

static bool flag(struct jinja *j, const struct jval *v)
{
    return v->kind != J_MISSING && jval_truth(j, v);
}

static void no_arguments(struct jinja *j, const struct jcall *c)
{
    jcall_bind(j, c, NULL, 0, 0, NULL);
}

/* Returns the text as a value, which is marked safe if the filter's input was. */
static struct jval text_of(struct jinja *j, const struct jcall *c, struct jstr s)
{
    (void)j;
    struct jval v = jval_str(s);
    v.safe = c->self.kind == J_STR && c->self.safe;
    return v;
}

/* --- text --------------------------------------------------------------------------- */

static struct jval f_trim(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"chars"};
    struct jval chars;
    jcall_bind(j, c, names, 1, 0, &chars);
    return text_of(j, c, jstr_strip(j, jval_to_str(j, &c->self), &chars, true, true));
}

static struct jval f_upper(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    return text_of(j, c, jstr_upper(j, jval_to_str(j, &c->self)));
}

static struct jval f_lower(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    return text_of(j, c, jstr_lower(j, jval_to_str(j, &c->self)));
}

static struct jval f_capitalize(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    return text_of(j, c, jstr_capitalize(j, jval_to_str(j, &c->self)));
}

static struct jval f_title(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    return text_of(j, c, jstr_title_filter(j, jval_to_str(j, &c->self)));
}

static struct jval f_replace(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"old", "new", "count"};
    struct jval a[3];
    jcall_bind(j, c, names, 3, 2, a);
    int64_t count = a[2].kind == J_NONE ? -1 : int_argument(j, c, &a[2], -1);
    return jval_str(jstr_replace(j, jval_to_str(j, &c->self), jval_to_str(j, &a[0]),
                                 jval_to_str(j, &a[1]), count));
}

static struct jval f_indent(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"width", "first", "blank"};
    struct jval a[3];
    jcall_bind(j, c, names, 3, 0, a);
    jval_need(j, &c->self);
    /* Jinja computes s += newline, which only a plain str supports. */
    if (c->self.kind != J_STR || c->self.safe)
        jinja_fail(j, c->self.safe ? ERR_UNSUPPORTED : ERR_MISMATCH,
                   "indent: the value must be str, not %s", jval_type(&c->self));
    struct jstr by = a[0].kind == J_STR
                         ? a[0].str
                         : jstr_repeat(j, JLIT(" "), int_argument(j, c, &a[0], 4));
    bool first = flag(j, &a[1]), blank = flag(j, &a[2]);
    struct jbuf whole = {0}, b = {0};
    jbuf_put(j, &whole, c->self.str.s, c->self.str.n);
    /* Jinja appends a newline, too, so that an empty value has one line */
    jbuf_puts(j, &whole, "\n");
    const struct jval lines = jstr_splitlines(j, (struct jstr){whole.s, whole.n}, false);
    for (size_t i = 0; i < lines.seq->n; i++) {
        struct jstr line = lines.seq->at[i].str;
        if (i != 0)
            jbuf_puts(j, &b, "\n");
        if (i == 0 ? first : blank || line.n != 0)
            jbuf_put(j, &b, by.s, by.n);
        jbuf_put(j, &b, line.s, line.n);
    }
    return jval_buf(&b);
}

/* Returns s[:length - len(end)], cut at the last blank unless killwords, plus `end`. A text that is
 * at most `leeway` too long is returned whole. */
static struct jval f_truncate(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"length", "killwords", "end", "leeway"};
    struct jval a[4];
    jcall_bind(j, c, names, 4, 0, a);
    if (c->self.kind == J_UNDEF) /* an undefined value has length 0, as in Jinja */
        return c->self;
    if (c->self.kind != J_STR || (a[2].kind != J_STR && a[2].kind != J_MISSING))
        jinja_fail(j, ERR_MISMATCH, "truncate: a str is required, not %s",
                   jval_type(c->self.kind != J_STR ? &c->self : &a[2]));
    struct jstr s = c->self.str, end = a[2].kind == J_STR ? a[2].str : JLIT("...");
    int64_t length = int_argument(j, c, &a[0], 255), n_end = (int64_t)jutf_len(end);
    int64_t leeway = a[3].kind == J_NONE ? 5 : int_argument(j, c, &a[3], 5);
    if (length < n_end || leeway < 0)
        jinja_fail(j, ERR_MISMATCH, "truncate: expected length >= %lld and leeway >= 0",
                   (long long)n_end);
    int64_t n = (int64_t)jutf_len(s);
    if (n <= length || n - length <= leeway)
        return c->self;
    s.n = jutf_offset(s, (size_t)(length - n_end));
    if (!flag(j, &a[1]))
        for (size_t i = s.n; i-- > 0;)
            if (s.s[i] == ' ') {
                s.n = i;
                break;
            }
    if (c->self.safe && !(a[2].kind == J_STR && a[2].safe))
        end = jstr_escape(j, end);
    struct jbuf b = {0};
    jbuf_put(j, &b, s.s, s.n);
    jbuf_put(j, &b, end.s, end.n);
    return text_of(j, c, jval_buf(&b).str);
}

static struct jval f_string(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    return text_of(j, c, jval_to_str(j, &c->self));
}

static struct jval f_safe(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    struct jval v = jval_str(jval_to_str(j, &c->self));
    v.safe = true;
    return v;
}

static struct jval f_escape(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    if (c->self.kind == J_STR && c->self.safe)
        return c->self;
    struct jval v = jval_str(jstr_escape(j, jval_to_str(j, &c->self)));
    v.safe = true;
    return v;
}

static struct jval f_format(struct jinja *j, const struct jcall *c)
{
    struct jval args = jval_seq(j, J_TUPLE, c->n_args);
    if (c->n_kw != 0 || c->self.safe)
        jinja_fail(j, ERR_UNSUPPORTED,
                   "format with keyword arguments, or of a safe string");
    if (c->n_args != 0)
        memcpy(args.seq->at, c->args, c->n_args * sizeof *c->args);
    return jval_str(jstr_format(j, jval_to_str(j, &c->self), &args));
}

static struct jval f_tojson(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators",
                                        "sort_keys"};
    struct jval a[4];
    jcall_bind(j, c, names, 4, 0, a);
    return jval_tojson(j, &c->self, &a[1], flag(j, &a[0]), &a[2], flag(j, &a[3]));
}

/* --- numbers ------------------------------------------------------------------------ */

/* Reads a decimal integer like Python's int(): blanks around it, a sign, underscores between
 * digits. Returns whether the text is an integer. An integer beyond 64 bits fails. */
static bool read_int(struct jinja *j, struct jstr s, int64_t *out)
{
    struct jval blank = jval_none();
    s = jstr_strip(j, s, &blank, true, true);
    bool negative = s.n != 0 && s.s[0] == '-';
    size_t i = s.n != 0 && (s.s[0] == '-' || s.s[0] == '+');
    int64_t v = 0;
    bool digit = false, overflow = false;
    for (; i < s.n; i++) {
        bool is_digit = s.s[i] >= '0' && s.s[i] <= '9';
        if (!is_digit && !(s.s[i] == '_' && digit))
            return false;
        digit = is_digit;
        if (is_digit)
            /* The sum is kept negative, because the least int64_t has no positive counterpart. */
            overflow |= __builtin_mul_overflow(v, 10, &v) ||
                        __builtin_sub_overflow(v, s.s[i] - '0', &v);
    }
    if (!digit)
        return false;
    if (overflow || (!negative && v == INT64_MIN))
        jinja_fail(j, ERR_UNSUPPORTED, "integer beyond 64 bits");
    *out = negative ? v : -v;
    return true;
}

/* Reads a real number like Python's float(), but only in strtod's decimal forms. */
static bool read_real(struct jinja *j, struct jstr s, double *out)
{
    struct jval blank = jval_none();
    s = jstr_strip(j, s, &blank, true, true);
    char text[64], *end;
    if (s.n == 0 || s.n >= sizeof text)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (s.s[i] == 0 || strchr("0123456789+-.eE", s.s[i]) == NULL)
            return false; /* forms such as "inf", "nan", "1_0" and 0x1p3 are not accepted */
    memcpy(text, s.s, s.n);
    text[s.n] = 0;
    *out = strtod(text, &end);
    return *end == 0;
}

static bool to_int(struct jinja *j, double f, int64_t *out)
{
    if (isnan(f) || isinf(f))
        return false;
    const double most = 9223372036854775808.0; /* 2^63 */
    if (!(f > -most && f < most))
        jinja_fail(j, ERR_UNSUPPORTED, "integer beyond 64 bits");
    *out = (int64_t)f;
    return true;
}

static struct jval f_int(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"default", "base"};
    struct jval a[2];
    const struct jval *v = &c->self;
    int64_t i = 0;
    double f;
    jcall_bind(j, c, names, 2, 0, a);
    if (int_argument(j, c, &a[1], 10) != 10)
        jinja_fail(j, ERR_UNSUPPORTED, "int with another base");
    jval_need(j, v);
    if (v->kind == J_BIG)
        return *v;
    if (v->kind == J_INT || v->kind == J_BOOL)
        return jval_int(jval_as_int(v));
    if (v->kind == J_REAL && to_int(j, v->f, &i))
        return jval_int(i);
    if (v->kind == J_STR && read_int(j, v->str, &i))
        return jval_int(i);
    if (v->kind == J_STR && read_real(j, v->str, &f) && to_int(j, f, &i))
        return jval_int(i);
    return a[0].kind != J_MISSING ? a[0] : jval_int(0);
}

static struct jval f_float(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"default"};
    struct jval otherwise;
    double f = 0;
    jcall_bind(j, c, names, 1, 0, &otherwise);
    jval_need(j, &c->self);
    if (jval_is_number(&c->self))
        return jval_real(jval_as_real(&c->self));
    if (c->self.kind == J_STR && read_real(j, c->self.str, &f))
        return jval_real(f);
    return otherwise.kind != J_MISSING ? otherwise : jval_real(0);
}

static struct jval f_abs(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    const struct jval *v = &c->self;
    jval_need(j, v);
    if (!jval_is_number(v))
        jinja_fail(j, ERR_MISMATCH, "bad operand type for abs(): '%s'", jval_type(v));
    if (v->kind == J_REAL)
        return jval_real(fabs(v->f));
    int64_t i = jval_as_int(v);
    if (i == INT64_MIN)
        jinja_fail(j, ERR_UNSUPPORTED, "integer beyond 64 bits");
    return jval_int(i < 0 ? -i : i);
}

static struct jval f_round(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"precision", "method"};
    struct jval a[2];
    jcall_bind(j, c, names, 2, 0, a);
    jval_need(j, &c->self);
    bool common = a[1].kind == J_MISSING ||
                  (a[1].kind == J_STR && jstr_is(a[1].str, "common"));
    bool up = a[1].kind == J_STR && jstr_is(a[1].str, "ceil");
    if (!common && !up && !(a[1].kind == J_STR && jstr_is(a[1].str, "floor")))
        jinja_fail(j, ERR_MISMATCH, "method must be common, ceil or floor");
    if (!jval_is_number(&c->self))
        jinja_fail(j, ERR_MISMATCH, "round: a number is required, not %s",
                   jval_type(&c->self));
    if (int_argument(j, c, &a[0], 0) != 0)
        jinja_fail(j, ERR_UNSUPPORTED, "round to other than whole numbers");
    if (common && c->self.kind != J_REAL)
        return jval_int(jval_as_int(&c->self));
    double f = jval_as_real(&c->self);
    /* nearbyint rounds halves to even */
    return jval_real(common ? nearbyint(f) : up ? ceil(f) : floor(f));
}

/* --- either ------------------------------------------------------------------------- */

static struct jval f_default(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"default_value", "boolean"};
    struct jval a[2];
    jcall_bind(j, c, names, 2, 0, a);
    if (c->self.kind != J_UNDEF && !(flag(j, &a[1]) && !jval_truth(j, &c->self)))
        return c->self;
    return a[0].kind != J_MISSING ? a[0] : jval_text("");
}

static struct jval f_attr(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"name"};
    struct jval name;
    jcall_bind(j, c, names, 1, 1, &name);
    /* the filter attr finds attributes only, never items */
    if (name.kind != J_STR || c->self.kind == J_DICT)
        jinja_fail(j, ERR_UNSUPPORTED, "attr of a '%s'", jval_type(&c->self));
    return jval_getattr(j, &c->self, name.str);
}

const struct jfunc jinja_filters_text[] = {
    {"abs", f_abs},         {"attr", f_attr},         {"capitalize", f_capitalize},
    {"d", f_default},       {"default", f_default},   {"e", f_escape},
    {"escape", f_escape},   {"float", f_float},       {"format", f_format},
    {"indent", f_indent},   {"int", f_int},           {"lower", f_lower},
    {"replace", f_replace}, {"round", f_round},       {"safe", f_safe},
    {"string", f_string},   {"title", f_title},       {"tojson", f_tojson},
    {"trim", f_trim},       {"truncate", f_truncate}, {"upper", f_upper},
    {NULL, NULL},
};
