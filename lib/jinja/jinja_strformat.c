/* jinja_strformat.c - Python's str.format: "{} is {name:>8.3f}".format(x, name=y).
 *
 *     {[field][!r|!s][:spec]}    field: a number, a name or nothing, then .attribute and [key] parts
 *     spec: [[fill]align][sign][#][0][width][, or _][.precision][type], with fields of its own inside
 *
 * Attributes and keys are looked up as in a template, as Jinja's sandbox does. Types are s, d, b,
 * o, x, X, c, e, E, f, F, g, G, % and none; n and the rest are refused. */
#include "jinja/jinja_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/utf8.h"

/* Bounds on width and precision. Python has none; no chat template needs more. */
enum { MAX_WIDTH = 1 << 20, MAX_PRECISION = 1000, MAX_NESTING = 2 };

struct fields {
    struct jinja *j;
    const struct jcall *call;
    int64_t next;            /* number of the next field without a name */
    bool is_auto, is_manual; /* numbers were counted, or given */
};

struct spec {
    struct jstr fill;
    char align, sign, group, type; /* 0: not given */
    bool alternate;
    int64_t width, precision; /* -1: not given */
};

/* --- specs ------------------------------------------------------------------------------ */

static _Noreturn void bad_spec(struct jinja *j, struct jstr text, const char *type)
{
    jinja_fail(j, ERR_MISMATCH, "invalid format specifier '%.*s' for object of type '%s'",
               JARG(text), type);
}

static bool is_align(char c)
{
    return c != 0 && strchr("<>=^", c) != NULL;
}

static int64_t read_number(struct jinja *j, struct jstr s, size_t *at, int64_t most)
{
    int64_t n = -1;
    for (; *at < s.n && s.s[*at] >= '0' && s.s[*at] <= '9'; ++*at) {
        n = MAX(n, 0) * 10 + (s.s[*at] - '0');
        if (n > most)
            jinja_fail(j, ERR_LIMIT, "format: a width or precision above %" PRId64, most);
    }
    return n;
}

static struct spec read_spec(struct jinja *j, struct jstr s, const struct jval *v)
{
    struct spec o = {.fill = JLIT(" "), .width = -1, .precision = -1};
    bool has_fill = false;
    uint32_t cp;
    size_t at = 0, first = s.n > 0 ? utf8_decode(s.s, s.n, &cp) : 0;
    if (first > 0 && first < s.n && is_align(s.s[first])) {
        o.fill = (struct jstr){s.s, first};
        o.align = s.s[first];
        has_fill = true;
        at = first + 1;
    } else if (s.n > 0 && is_align(s.s[0])) {
        o.align = s.s[0];
        at = 1;
    }
    if (at < s.n && strchr("+- ", s.s[at]) != NULL && s.s[at] != 0)
        o.sign = s.s[at++];
    if (at < s.n && s.s[at] == '#') {
        o.alternate = true;
        at++;
    }
    if (at < s.n && s.s[at] == '0' && !has_fill) {
        o.fill = JLIT("0");
        if (o.align == 0 && v->kind != J_STR)
            o.align = '=';
        at++;
    }
    o.width = read_number(j, s, &at, MAX_WIDTH);
    if (at < s.n && (s.s[at] == ',' || s.s[at] == '_'))
        o.group = s.s[at++];
    if (at < s.n && s.s[at] == '.') {
        at++;
        o.precision = read_number(j, s, &at, MAX_PRECISION);
        if (o.precision < 0)
            jinja_fail(j, ERR_MISMATCH, "Format specifier missing precision");
    }
    if (at < s.n)
        o.type = s.s[at++];
    if (at < s.n)
        bad_spec(j, s, jval_type(v));
    return o;
}

/* --- padding ---------------------------------------------------------------------------- */

static void put_fill(struct jinja *j, struct jbuf *b, struct jstr fill, int64_t n)
{
    for (; n > 0; n--)
        jbuf_put(j, b, fill.s, fill.n);
}

/* Pads a text of n characters. align: used if the spec names none. With =, the padding goes between
 * prefix and body. */
static void put_padded(struct jinja *j, struct jbuf *b, const struct spec *o, char align,
                       struct jstr prefix, struct jstr body, int64_t n)
{
    int64_t pad = MAX(o->width - n, 0);
    char how = o->align != 0 ? o->align : align;
    int64_t before = how == '>' ? pad : how == '^' ? pad / 2 : 0;
    put_fill(j, b, o->fill, before);
    jbuf_put(j, b, prefix.s, prefix.n);
    if (how == '=')
        put_fill(j, b, o->fill, pad);
    jbuf_put(j, b, body.s, body.n);
    if (how != '=')
        put_fill(j, b, o->fill, pad - before);
}

static void put_text(struct jinja *j, struct jbuf *b, const struct spec *o, struct jstr s)
{
    int64_t n = (int64_t)jutf_len(s);
    if (o->type != 0 && o->type != 's')
        jinja_fail(j, ERR_MISMATCH, "Unknown format code '%c' for object of type 'str'",
                   o->type);
    if (o->sign != 0 || o->alternate || o->group != 0 || o->align == '=')
        jinja_fail(j, ERR_MISMATCH, "a format specifier that is not allowed for a string");
    if (o->precision >= 0 && n > o->precision) {
        s.n = jutf_offset(s, (size_t)o->precision);
        n = o->precision;
    }
    put_padded(j, b, o, '<', JLIT(""), s, n);
}

/* --- numbers ---------------------------------------------------------------------------- */

/* Puts a separator between groups of digits. digits: the whole part of the number begins the text.
 * least: with padding zeros, the whole text has at least this many characters. */
static struct jstr grouped(struct jinja *j, struct jstr text, size_t n_whole,
                           char separator, size_t size, int64_t least)
{
    struct jbuf b = {0}, out = {0};
    int64_t tail = (int64_t)(text.n - n_whole), n = (int64_t)n_whole;
    /* Zeros before the number are grouped, too, and no separator comes first. */
    while (n + (n - 1) / (int64_t)size + tail < least)
        n++;
    for (int64_t i = 0; i < n; i++) {
        int64_t from_end = n - i;
        if (i > 0 && from_end % (int64_t)size == 0)
            jbuf_put(j, &b, &separator, 1);
        int64_t at = (int64_t)n_whole - from_end;
        jbuf_put(j, &b, at < 0 ? "0" : text.s + at, 1);
    }
    jbuf_put(j, &out, b.s, b.n);
    jbuf_put(j, &out, text.s + n_whole, text.n - n_whole);
    return (struct jstr){out.s, out.n};
}

static void put_number(struct jinja *j, struct jbuf *b, const struct spec *o, bool negative,
                       const char *base, struct jstr digits, size_t n_whole, size_t group)
{
    char prefix[8];
    int n = snprintf(prefix, sizeof prefix, "%s%s",
                     negative         ? "-"
                     : o->sign == '+' ? "+"
                     : o->sign == ' ' ? " "
                                      : "",
                     base);
    bool zeros = o->align == '=' && jstr_is(o->fill, "0");
    if (o->group != 0)
        digits = grouped(j, digits, n_whole, o->group, group, zeros ? o->width - n : 0);
    put_padded(j, b, o, '>', (struct jstr){prefix, (size_t)n}, digits,
               n + (int64_t)digits.n);
}

static void put_int(struct jinja *j, struct jbuf *b, const struct spec *o, int64_t i)
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char digits[72], *end = digits + sizeof digits, *p = end;
    const char *letters = o->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    unsigned base = o->type == 'x' || o->type == 'X' ? 16
                    : o->type == 'o'                 ? 8
                    : o->type == 'b'                 ? 2
                                                     : 10;
    char name[3] = {'0', o->type, 0};
    if (o->precision >= 0)
        jinja_fail(j, ERR_MISMATCH, "Precision not allowed in integer format specifier");
    do
        *--p = letters[u % base];
    while ((u /= base) != 0);
    if (base != 10 && o->group == ',')
        jinja_fail(j, ERR_MISMATCH, "Cannot specify ',' with '%c'.", o->type);
    put_number(j, b, o, i < 0, o->alternate && base != 10 ? name : "",
               (struct jstr){p, (size_t)(end - p)}, (size_t)(end - p), base == 10 ? 3 : 4);
}

static void put_char(struct jinja *j, struct jbuf *b, const struct spec *o, int64_t i)
{
    char utf8[4];
    if (o->sign != 0 || o->group != 0 || o->precision >= 0 || o->alternate)
        jinja_fail(j, ERR_MISMATCH, "a format specifier that is not allowed with 'c'");
    if (i < 0 || i > 0x10FFFF || (i >= 0xD800 && i < 0xE000))
        jinja_fail(j, ERR_MISMATCH, "%%c arg not in range(0x110000)");
    struct jstr s = {utf8, utf8_encode((uint32_t)i, utf8)};
    put_padded(j, b, o, '>', JLIT(""), s, 1);
}

/* Removes zeros at the end of a fraction, and a point without a fraction, from the first n bytes.
 */
static size_t without_zeros(const char *text, size_t n)
{
    if (memchr(text, '.', n) == NULL)
        return n;
    while (text[n - 1] == '0')
        n--;
    return text[n - 1] == '.' ? n - 1 : n;
}

/* Prints x >= 0 as type g does; or, without a type, with at least one decimal, and in exponent form
 * from one digit fewer on.  (glibc's %#g drops zeros of 99.995 with two digits.) */
static int print_general(char *out, size_t room, const struct spec *o, double x,
                         int precision)
{
    char text[MAX_PRECISION + 400];
    precision = MAX(precision, 1);
    snprintf(text, sizeof text, o->alternate ? "%#.*e" : "%.*e", precision - 1, x);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    bool is_short = exponent >= -4 && exponent < precision - (o->type == 0);
    if (is_short)
        snprintf(text, sizeof text, o->alternate ? "%#.*f" : "%.*f",
                 precision - 1 - exponent, x);
    size_t n = is_short ? strlen(text) : (size_t)(strchr(text, 'e') - text);
    n = o->alternate ? n : without_zeros(text, n);
    if (!is_short)
        return snprintf(out, room, "%.*s%c%c%02d", (int)n, text, o->type == 'G' ? 'E' : 'e',
                        exponent < 0 ? '-' : '+', abs(exponent));
    bool lacks = o->type == 0 && memchr(text, '.', n) == NULL;
    return snprintf(out, room, "%.*s%s", (int)n, text, lacks ? ".0" : "");
}

/* Prints |x| as repr does. alternate: with a point also before an exponent. */
static int print_repr(struct jinja *j, char *out, size_t room, double x, bool alternate)
{
    struct jbuf text = {0};
    struct jval v = jval_real(x);
    jval_repr(j, &text, &v);
    size_t n = strcspn(text.s, "e");
    bool lacks = alternate && n < text.n && memchr(text.s, '.', n) == NULL;
    return snprintf(out, room, "%.*s%s%.*s", (int)n, text.s, lacks ? "." : "",
                    (int)(text.n - n), text.s + n);
}

static void put_real(struct jinja *j, struct jbuf *b, const struct spec *o, double x)
{
    size_t room = 400 + (size_t)MAX(o->precision, 0);
    char *digits = jinja_alloc(j, room), how[8];
    bool negative = signbit(x) && !isnan(x);
    double size = fabs(x) * (o->type == '%' ? 100 : 1);
    int n, precision = o->precision < 0 ? 6 : (int)o->precision;
    if (o->type == 0 && (o->precision < 0 || !isfinite(x))) {
        n = print_repr(j, digits, room, size, o->alternate);
    } else if (isfinite(x) && (o->type == 0 || o->type == 'g' || o->type == 'G')) {
        n = print_general(digits, room, o, size, precision);
    } else {
        char type = o->type == '%' ? 'f' : o->type;
        snprintf(how, sizeof how, o->alternate ? "%%#.*%c" : "%%.*%c", type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        n = snprintf(digits, room, how, precision, size);
#pragma GCC diagnostic pop
    }
    if (o->type == '%')
        n += snprintf(digits + n, room - (size_t)n, "%%");
    size_t n_whole = strspn(digits, "0123456789");
    put_number(j, b, o, negative, "", (struct jstr){digits, (size_t)n}, n_whole, 3);
}

/* Implements format(value, spec). */
static void put_value(struct jinja *j, struct jbuf *b, const struct jval *v,
                      struct jstr text)
{
    const bool is_int = v->kind == J_INT || v->kind == J_BOOL;
    if (text.n == 0) {
        jval_print(j, b, v);
        return;
    }
    if (v->kind != J_STR && v->kind != J_REAL && !is_int)
        jinja_fail(j, ERR_MISMATCH, "unsupported format string passed to %s.__format__",
                   jval_type(v));
    const struct spec o = read_spec(j, text, v);
    if (v->kind == J_STR)
        put_text(j, b, &o, v->str);
    else if (is_int && o.type == 'c')
        put_char(j, b, &o, jval_as_int(v));
    else if (is_int && (o.type == 0 || strchr("dboxX", o.type) != NULL))
        put_int(j, b, &o, jval_as_int(v));
    else if (o.type == 0 || strchr("eEfFgG%", o.type) != NULL)
        put_real(j, b, &o, jval_as_real(v));
    else if (o.type == 'n')
        jinja_fail(j, ERR_UNSUPPORTED, "format type 'n' is not supported");
    else
        jinja_fail(j, ERR_MISMATCH, "Unknown format code '%c' for object of type '%s'",
                   o.type, jval_type(v));
}

/* --- fields ----------------------------------------------------------------------------- */

static bool read_index(struct jstr s, int64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.s[i] < '0' || s.s[i] > '9' || *out > INT32_MAX)
            return false;
        *out = *out * 10 + (s.s[i] - '0');
    }
    return s.n > 0;
}

/* Returns the argument that the first part of a field names. */
static struct jval first_part(struct fields *f, struct jstr name)
{
    int64_t i;
    const bool is_number = read_index(name, &i);
    if (name.n == 0) {
        i = f->next++;
        f->is_auto = true;
    }
    f->is_manual |= is_number;
    if (f->is_auto && f->is_manual)
        jinja_fail(f->j, ERR_MISMATCH,
                   "cannot switch between manual field specification and automatic field "
                   "numbering");
    if (name.n == 0 || is_number) {
        if (i >= (int64_t)f->call->n_args)
            jinja_fail(
                f->j, ERR_MISMATCH,
                "Replacement index %" PRId64 " out of range for positional args tuple", i);
        return f->call->args[i];
    }
    for (size_t k = 0; k < f->call->n_kw; k++)
        if (jstr_equal(f->call->kw[k].name, name))
            return f->call->kw[k].value;
    jinja_fail(f->j, ERR_MISMATCH, "format: no argument '%.*s'", JARG(name));
}

/* Returns the value of a field such as "a.b[0][key]". */
static struct jval field_value(struct fields *f, struct jstr s)
{
    size_t at = 0;
    while (at < s.n && s.s[at] != '.' && s.s[at] != '[')
        at++;
    struct jval v = first_part(f, (struct jstr){s.s, at});
    while (at < s.n) {
        const bool is_item = s.s[at] == '[';
        size_t from = ++at;
        while (at < s.n && (is_item ? s.s[at] != ']' : s.s[at] != '.' && s.s[at] != '['))
            at++;
        struct jstr part = {s.s + from, at - from};
        if (part.n == 0 || (is_item && at == s.n))
            jinja_fail(f->j, ERR_MISMATCH, "Empty attribute in format string");
        at += is_item;
        int64_t i;
        struct jval key = read_index(part, &i) ? jval_int(i) : jval_str(part);
        v = is_item ? jval_getitem(f->j, &v, &key) : jval_getattr(f->j, &v, part);
        if (is_item && at < s.n && s.s[at] != '.' && s.s[at] != '[')
            jinja_fail(f->j, ERR_MISMATCH,
                       "Only '.' or '[' may follow ']' in format field specifier");
    }
    return v;
}

static void put_all(struct fields *f, struct jbuf *b, struct jstr s, int depth);

/* Puts the field s, which stood between braces. */
static void put_field(struct fields *f, struct jbuf *b, struct jstr s, int depth)
{
    size_t end = 0;
    bool in_item = false; /* inside [..] a key may contain ! and : */
    for (; end < s.n && (in_item || (s.s[end] != '!' && s.s[end] != ':')); end++)
        in_item = s.s[end] == '[' || (in_item && s.s[end] != ']');
    struct jval v = field_value(f, (struct jstr){s.s, end});
    if (end < s.n && s.s[end] == '!') {
        char how = end + 1 < s.n ? s.s[end + 1] : 0;
        struct jbuf text = {0};
        if (how != 'r' && how != 's')
            jinja_fail(f->j, how == 'a' ? ERR_UNSUPPORTED : ERR_MISMATCH,
                       "format: a conversion other than !r and !s");
        (how == 'r' ? jval_repr : jval_print)(f->j, &text, &v);
        v = jval_buf(&text);
        end += 2;
        if (end < s.n && s.s[end] != ':')
            jinja_fail(f->j, ERR_MISMATCH, "expected ':' after conversion specifier");
    }
    struct jbuf spec = {0};
    if (end < s.n)
        put_all(f, &spec, (struct jstr){s.s + end + 1, s.n - end - 1}, depth + 1);
    put_value(f->j, b, &v, (struct jstr){spec.s, spec.n});
}

/* Returns the position of the brace that closes the field whose text begins at `at`. */
static size_t field_end(struct jinja *j, struct jstr s, size_t at)
{
    for (int depth = 1; at < s.n; at++) {
        depth += s.s[at] == '{' ? 1 : s.s[at] == '}' ? -1 : 0;
        if (depth == 0)
            return at;
    }
    jinja_fail(j, ERR_MISMATCH, "expected '}' before end of string");
}

static void put_all(struct fields *f, struct jbuf *b, struct jstr s, int depth)
{
    jinja_charge(f->j, s.n);
    if (depth > MAX_NESTING)
        jinja_fail(f->j, ERR_MISMATCH, "Max string recursion exceeded");
    for (size_t at = 0; at < s.n;) {
        size_t plain = at;
        while (plain < s.n && s.s[plain] != '{' && s.s[plain] != '}')
            plain++;
        jbuf_put(f->j, b, s.s + at, plain - at);
        if (plain == s.n)
            return;
        at = plain + 1;
        if (at < s.n && s.s[at] == s.s[plain] && depth == 1) {
            jbuf_put(f->j, b, s.s + at, 1); /* "{{" is a brace */
            at++;
        } else if (s.s[plain] == '}') {
            jinja_fail(f->j, ERR_MISMATCH, "Single '}' encountered in format string");
        } else {
            size_t end = field_end(f->j, s, at);
            put_field(f, b, (struct jstr){s.s + at, end - at}, depth);
            at = end + 1;
        }
    }
}

struct jval jstr_format_method(struct jinja *j, struct jstr s, const struct jcall *c)
{
    struct fields f = {.j = j, .call = c};
    struct jbuf b = {0};
    put_all(&f, &b, s, 1);
    return jval_buf(&b);
}
