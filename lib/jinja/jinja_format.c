/* jinja_format.c - printf-style formats: "%-5s|%04d" % (x, y), and the filter format.
 *
 *     %[(key)][flags][width][.precision][h l L]conversion
 *
 * flags are - 0 + blank #; width and precision may be *, which takes the next argument.  The
 * conversions are Python's but %a: s r c d i u x X o e E f F g G, and %% for a %.  Texts are
 * padded by characters, not bytes. */
#include "jinja/jinja_impl.h"

#include "base/minmax.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bounds on precision and width. Python has none; no chat template needs more. */
enum { MAX_PRECISION = 1000, MAX_WIDTH = 1 << 20 };

struct format {
    struct jinja *j;
    struct jstr text;
    size_t at;
    const struct jval *args;
    size_t used; /* number of arguments used so far */
    bool by_key; /* a conversion has used a key */
};

struct spec {
    bool left, zero, plus, blank, alternate;
    int64_t width, precision; /* -1: not given */
    char conversion;
};

static struct jval next_argument(struct format *f)
{
    const struct jval *args = f->args;
    size_t n = args->kind == J_TUPLE ? args->seq->n : 1;
    if (f->used >= n)
        jinja_fail(f->j, ERR_MISMATCH, "not enough arguments for format string");
    struct jval v = args->kind == J_TUPLE ? args->seq->at[f->used] : *args;
    f->used++;
    return v;
}

static char peek(struct format *f)
{
    if (f->at == f->text.n)
        jinja_fail(f->j, ERR_MISMATCH, "incomplete format");
    return f->text.s[f->at];
}

/* --- the parts of a conversion --------------------------------------------------------- */

/* Reads the value that (key) names. Returns false if there is no key. Parentheses inside a key
 * nest. */
static bool read_key(struct format *f, struct jval *out)
{
    if (peek(f) != '(')
        return false;
    size_t begin = ++f->at;
    for (int depth = 1; depth > 0; f->at++)
        depth += peek(f) == '(' ? 1 : peek(f) == ')' ? -1 : 0;
    if (f->args->kind != J_DICT)
        jinja_fail(f->j, ERR_MISMATCH, "format requires a mapping");
    struct jstr key = {f->text.s + begin, f->at - 1 - begin};
    struct jval *v = jdict_find_str(f->args->dict, key);
    if (v == NULL)
        jinja_fail(f->j, ERR_MISMATCH, "format: no key '%.*s'", JARG(key));
    *out = *v;
    f->by_key = true;
    return true;
}

static void read_flags(struct format *f, struct spec *s)
{
    for (;; f->at++)
        switch (peek(f)) {
        case '-':
            s->left = true;
            break;
        case '0':
            s->zero = true;
            break;
        case '+':
            s->plus = true;
            break;
        case ' ':
            s->blank = true;
            break;
        case '#':
            s->alternate = true;
            break;
        default:
            return;
        }
}

/* Reads digits, or takes the next argument for *. Returns `otherwise` if there is neither. */
static int64_t read_number(struct format *f, int64_t otherwise, int64_t most)
{
    int64_t n = otherwise;
    if (peek(f) == '*') {
        f->at++;
        struct jval v = next_argument(f);
        if (v.kind != J_INT && v.kind != J_BOOL)
            jinja_fail(f->j, ERR_MISMATCH, "* wants int");
        n = jval_as_int(&v);
    }
    for (; peek(f) >= '0' && peek(f) <= '9'; f->at++) {
        n = MAX(n, 0) * 10 + (peek(f) - '0');
        n = n > most ? most + 1 : n;
    }
    if (n > most || n < -most)
        jinja_fail(f->j, ERR_LIMIT, "format: a width or precision above %" PRId64, most);
    return n;
}

static struct spec read_spec(struct format *f)
{
    struct spec s = {.precision = -1};
    read_flags(f, &s);
    s.width = read_number(f, 0, MAX_WIDTH);
    if (s.width < 0) { /* only a width from * can be negative; it means left-aligned */
        s.left = true;
        s.width = -s.width;
    }
    if (peek(f) == '.') {
        f->at++;
        s.precision = read_number(f, 0, MAX_PRECISION);
        s.precision = MAX(s.precision, 0);
    }
    while (strchr("hlL", peek(f)) != NULL && peek(f) != 0)
        f->at++;
    s.conversion = peek(f);
    f->at++;
    return s;
}

/* --- printing -------------------------------------------------------------------------- */

static void put_many(struct format *f, struct jbuf *b, char c, int64_t n)
{
    for (; n > 0; n--)
        jbuf_put(f->j, b, &c, 1);
}

/* Pads a body of n_chars characters. Padding zeros go between the prefix (a sign, 0x) and the
 * digits. */
static void put_padded(struct format *f, struct jbuf *b, const struct spec *s,
                       struct jstr prefix, struct jstr body, int64_t n_chars, bool zeros)
{
    int64_t pad = s->width - n_chars - (int64_t)prefix.n;
    if (!s->left && !zeros)
        put_many(f, b, ' ', pad);
    jbuf_put(f->j, b, prefix.s, prefix.n);
    if (!s->left && zeros)
        put_many(f, b, '0', pad);
    jbuf_put(f->j, b, body.s, body.n);
    if (s->left)
        put_many(f, b, ' ', pad);
}

static void put_text(struct format *f, struct jbuf *b, const struct spec *s,
                     const struct jval *v)
{
    struct jbuf text = {0};
    if (s->conversion == 'r')
        jval_repr(f->j, &text, v);
    else
        jval_print(f->j, &text, v);
    struct jstr body = {text.s, text.n};
    int64_t n = s->width > 0 || s->precision >= 0 ? (int64_t)jutf_len(body) : 0;
    if (s->precision >= 0 && n > s->precision) {
        body.n = jutf_offset(body, (size_t)s->precision);
        n = s->precision;
    }
    put_padded(f, b, s, JLIT(""), body, n, false);
}

/* Prints one character, given as a text of one character or as its code. */
static void put_char(struct format *f, struct jbuf *b, const struct spec *s,
                     const struct jval *v)
{
    char utf8[4];
    struct jstr body = {utf8, 0};
    if (v->kind == J_STR && jutf_len(v->str) == 1)
        body = v->str;
    else if (v->kind == J_INT && v->i >= 0 && v->i < 0x110000 &&
             !(v->i >= 0xD800 && v->i < 0xE000))
        body.n = utf8_encode((uint32_t)v->i, utf8);
    else
        jinja_fail(f->j, ERR_MISMATCH, "%%c requires int or char");
    put_padded(f, b, s, JLIT(""), body, 1, false);
}

static struct jstr sign_of(const struct spec *s, bool negative)
{
    return negative ? JLIT("-") : s->plus ? JLIT("+") : s->blank ? JLIT(" ") : JLIT("");
}

static int64_t int_of(struct format *f, const struct spec *s, const struct jval *v)
{
    bool decimal = strchr("diu", s->conversion) != NULL;
    if (v->kind == J_INT || v->kind == J_BOOL)
        return jval_as_int(v);
    if (v->kind != J_REAL || !decimal)
        jinja_fail(f->j, ERR_MISMATCH, "%%%c format: %s is required, not %s", s->conversion,
                   decimal ? "a real number" : "an integer", jval_type(v));
    if (!(fabs(v->f) < 9e18))
        jinja_fail(f->j, isfinite(v->f) ? ERR_UNSUPPORTED : ERR_MISMATCH,
                   "%%%c format: a number that is too large", s->conversion);
    return (int64_t)v->f; /* the conversion to an integer truncates towards zero */
}

static void put_int(struct format *f, struct jbuf *b, const struct spec *s,
                    const struct jval *v)
{
    int64_t i = int_of(f, s, v);
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char digits[32], prefix[4];
    struct jstr sign = sign_of(s, i < 0);
    const char *base = "";
    if (s->conversion == 'x' || s->conversion == 'X')
        base = !s->alternate ? "" : s->conversion == 'x' ? "0x" : "0X";
    else if (s->conversion == 'o')
        base = s->alternate ? "0o" : "";
    int n = snprintf(digits, sizeof digits,
                     s->conversion == 'x'   ? "%" PRIx64
                     : s->conversion == 'X' ? "%" PRIX64
                     : s->conversion == 'o' ? "%" PRIo64
                                            : "%" PRIu64,
                     u);
    int n_prefix = snprintf(prefix, sizeof prefix, "%.*s%s", (int)sign.n, sign.s, base);
    struct jbuf body = {0};
    /* The precision of an integer is its minimum number of digits. */
    put_many(f, &body, '0', s->precision - n);
    jbuf_put(f->j, &body, digits, (size_t)n);
    put_padded(f, b, s, (struct jstr){prefix, (size_t)n_prefix},
               (struct jstr){body.s, body.n}, (int64_t)body.n, s->zero);
}

static void put_real(struct format *f, struct jbuf *b, const struct spec *s,
                     const struct jval *v)
{
    if (v->kind != J_REAL && v->kind != J_INT && v->kind != J_BOOL)
        jinja_fail(f->j, ERR_MISMATCH, "must be real number, not %s", jval_type(v));
    double x = v->kind == J_REAL ? v->f : (double)jval_as_int(v);
    char how[8];
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    snprintf(how, sizeof how, s->alternate ? "%%#.*%c" : "%%.*%c", s->conversion);
    bool negative = signbit(x) && !isnan(x);
    if (isnan(x))
        x = fabs(x); /* the sign is printed separately */
    size_t room = 400 + (size_t)precision;
    char *digits = jinja_alloc(f->j, room);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(digits, room, how, precision, fabs(x));
#pragma GCC diagnostic pop
    put_padded(f, b, s, sign_of(s, negative), (struct jstr){digits, (size_t)n}, n, s->zero);
}

static void put_one(struct format *f, struct jbuf *b)
{
    if (peek(f) == '%') {
        jbuf_puts(f->j, b, "%");
        f->at++;
        return;
    }
    struct jval v = jval_none();
    bool has_key = read_key(f, &v);
    struct spec s = read_spec(f);
    if (!has_key)
        v = next_argument(f);
    if (s.conversion == 's' || s.conversion == 'r')
        put_text(f, b, &s, &v);
    else if (s.conversion == 'c')
        put_char(f, b, &s, &v);
    else if (s.conversion != 0 && strchr("diuxXo", s.conversion) != NULL)
        put_int(f, b, &s, &v);
    else if (s.conversion != 0 && strchr("eEfFgG", s.conversion) != NULL)
        put_real(f, b, &s, &v);
    else if (s.conversion == 'a')
        jinja_fail(f->j, ERR_UNSUPPORTED, "format %%a is not supported");
    else
        jinja_fail(f->j, ERR_MISMATCH, "unsupported format character at index %zu",
                   f->at - 1);
}

struct jstr jstr_format(struct jinja *j, struct jstr format, const struct jval *args)
{
    struct format f = {.j = j, .text = format, .args = args};
    struct jbuf b = {0};
    while (f.at < format.n) {
        const char *p = memchr(format.s + f.at, '%', format.n - f.at);
        size_t end = p != NULL ? (size_t)(p - format.s) : format.n;
        jbuf_put(j, &b, format.s + f.at, end - f.at);
        f.at = end;
        if (p != NULL) {
            f.at++;
            put_one(&f, &b);
        }
    }
    bool like_mapping = args->kind == J_DICT || args->kind == J_LIST ||
                        args->kind == J_RANGE || args->kind == J_UNDEF;
    bool all = args->kind == J_TUPLE ? f.used == args->seq->n : f.used == 1 || like_mapping;
    if (!all && !f.by_key)
        jinja_fail(j, ERR_MISMATCH, "not all arguments converted during string formatting");
    return jval_buf(&b).str;
}
