/* jinja_method.c - the methods of str. The table names all of Python's methods, so that no method's
 * name is ever undefined in a template. Calling a method that has no function here is an error. */
#include "jinja/jinja_impl.h"

#include "base/minmax.h"
#include "base/utf8.h"

#include <string.h>

typedef struct jval method(struct jinja *j, struct jstr s, const struct jcall *c);

/* --- arguments ---------------------------------------------------------------------- */

static struct jstr need_str(struct jinja *j, const struct jcall *c, const struct jval *v)
{
    if (v->kind != J_STR)
        jinja_fail(j, ERR_MISMATCH, "%s() argument must be str, not %s", c->what,
                   jval_type(v));
    jinja_charge(j, v->str.n);
    return v->str;
}

static int64_t opt_int(struct jinja *j, const struct jcall *c, const struct jval *v,
                       int64_t otherwise)
{
    if (v->kind == J_MISSING)
        return otherwise;
    if (v->kind != J_INT && v->kind != J_BOOL)
        jinja_fail(j, ERR_MISMATCH, "%s(): '%s' object cannot be interpreted as an integer",
                   c->what, jval_type(v));
    return jval_as_int(v);
}

/* Returns the single argument of a method that takes one. */
static struct jstr only_str(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {NULL};
    struct jval a;
    jcall_bind(j, c, names, 1, 1, &a);
    return need_str(j, c, &a);
}

static void no_arguments(struct jinja *j, const struct jcall *c)
{
    jcall_bind(j, c, NULL, 0, 0, NULL);
}

/* --- case and kind ------------------------------------------------------------------ */

static struct jval m_upper(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    return jval_str(jstr_upper(j, s));
}

static struct jval m_lower(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    return jval_str(jstr_lower(j, s));
}

static struct jval m_capitalize(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    return jval_str(jstr_capitalize(j, s));
}

static struct jval m_title(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    return jval_str(jstr_title(j, s));
}

static struct jval m_islower(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    return jval_bool(jstr_cased(j, s, false));
}

static struct jval m_isupper(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    return jval_bool(jstr_cased(j, s, true));
}

static struct jval m_isspace(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    jinja_charge(j, s.n);
    uint32_t cp = 0;
    for (size_t i = 0; i < s.n;) {
        i += utf8_decode(s.s + i, s.n - i, &cp);
        if (!jutf_is_space(cp))
            return jval_bool(false);
    }
    return jval_bool(s.n != 0);
}

/* Returns whether all characters are digits or letters, as asked. Works for ASCII only; other
 * characters would need Unicode's tables. */
static bool all_ascii_are(struct jinja *j, struct jstr s, const struct jcall *c,
                          bool digits, bool letters)
{
    no_arguments(j, c);
    jinja_charge(j, s.n);
    bool all = s.n != 0;
    for (size_t i = 0; i < s.n; i++) {
        char low = (char)(s.s[i] | 0x20);
        if (s.s[i] & 0x80)
            jinja_fail(j, ERR_UNSUPPORTED, "%s() of text that is not ASCII", c->what);
        all = all && ((digits && s.s[i] >= '0' && s.s[i] <= '9') ||
                      (letters && low >= 'a' && low <= 'z'));
    }
    return all;
}

static struct jval m_isdigit(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return jval_bool(all_ascii_are(j, s, c, true, false));
}

static struct jval m_isalpha(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return jval_bool(all_ascii_are(j, s, c, false, true));
}

static struct jval m_isalnum(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return jval_bool(all_ascii_are(j, s, c, true, true));
}

static struct jval m_isascii(struct jinja *j, struct jstr s, const struct jcall *c)
{
    no_arguments(j, c);
    jinja_charge(j, s.n);
    bool all = true;
    for (size_t i = 0; i < s.n; i++)
        all = all && (s.s[i] & 0x80) == 0;
    return jval_bool(all);
}

/* --- stripping ---------------------------------------------------------------------- */

static struct jval strip(struct jinja *j, struct jstr s, const struct jcall *c, bool left,
                         bool right)
{
    static const char *const names[] = {NULL};
    struct jval chars;
    jcall_bind(j, c, names, 1, 0, &chars);
    return jval_str(jstr_strip(j, s, &chars, left, right));
}

static struct jval m_strip(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return strip(j, s, c, true, true);
}

static struct jval m_lstrip(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return strip(j, s, c, true, false);
}

static struct jval m_rstrip(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return strip(j, s, c, false, true);
}

/* Returns whether s begins with `part`. It counts no steps, because need_str has counted them for
 * the argument. */
static bool has_prefix(struct jstr s, struct jstr part)
{
    return s.n >= part.n && (part.n == 0 || memcmp(s.s, part.s, part.n) == 0);
}

static bool has_suffix(struct jstr s, struct jstr part)
{
    return s.n >= part.n &&
           (part.n == 0 || memcmp(s.s + s.n - part.n, part.s, part.n) == 0);
}

static struct jval m_removeprefix(struct jinja *j, struct jstr s, const struct jcall *c)
{
    struct jstr part = only_str(j, c);
    return jval_str(has_prefix(s, part) ? (struct jstr){s.s + part.n, s.n - part.n} : s);
}

static struct jval m_removesuffix(struct jinja *j, struct jstr s, const struct jcall *c)
{
    struct jstr part = only_str(j, c);
    return jval_str(has_suffix(s, part) ? (struct jstr){s.s, s.n - part.n} : s);
}

/* --- searching ---------------------------------------------------------------------- */

/* Implements startswith and endswith, which take a string or a tuple of strings. */
static struct jval starts_or_ends(struct jinja *j, struct jstr s, const struct jcall *c,
                                  bool (*has)(struct jstr, struct jstr))
{
    static const char *const names[] = {NULL, NULL, NULL};
    struct jval a[3];
    jcall_bind(j, c, names, 3, 1, a);
    if (a[1].kind != J_MISSING)
        jinja_fail(j, ERR_UNSUPPORTED, "%s() with a range", c->what);
    if (a[0].kind != J_TUPLE)
        return jval_bool(has(s, need_str(j, c, &a[0])));
    for (size_t i = 0; i < a[0].seq->n; i++)
        if (has(s, need_str(j, c, &a[0].seq->at[i])))
            return jval_bool(true);
    return jval_bool(false);
}

static struct jval m_startswith(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return starts_or_ends(j, s, c, has_prefix);
}

static struct jval m_endswith(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return starts_or_ends(j, s, c, has_suffix);
}

static bool find_last(struct jinja *j, struct jstr s, struct jstr what, size_t *at)
{
    jinja_charge(j, s.n * (what.n / 8 + 1));
    *at = s.n;
    if (what.n == 0)
        return true;
    for (size_t i = s.n >= what.n ? s.n - what.n + 1 : 0; i-- > 0;)
        if (has_prefix((struct jstr){s.s + i, s.n - i}, what)) {
            *at = i;
            return true;
        }
    return false;
}

/* Returns the position of a substring in characters, or -1 if it is not found. */
static int64_t position(struct jinja *j, struct jstr s, const struct jcall *c, bool last)
{
    static const char *const names[] = {NULL, NULL, NULL};
    struct jval a[3];
    size_t at = 0;
    jcall_bind(j, c, names, 3, 1, a);
    if (a[1].kind != J_MISSING)
        jinja_fail(j, ERR_UNSUPPORTED, "%s() with a range", c->what);
    struct jstr what = need_str(j, c, &a[0]);
    bool found = last ? find_last(j, s, what, &at) : jstr_find(j, s, what, 0, &at);
    return found ? (int64_t)jutf_len((struct jstr){s.s, at}) : -1;
}

static struct jval m_find(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return jval_int(position(j, s, c, false));
}

static struct jval m_rfind(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return jval_int(position(j, s, c, true));
}

static struct jval m_index(struct jinja *j, struct jstr s, const struct jcall *c)
{
    int64_t at = position(j, s, c, c->what[0] == 'r');
    if (at < 0)
        jinja_fail(j, ERR_MISMATCH, "substring not found");
    return jval_int(at);
}

static struct jval m_count(struct jinja *j, struct jstr s, const struct jcall *c)
{
    struct jstr what = only_str(j, c);
    int64_t n = 0;
    if (what.n == 0)
        return jval_int((int64_t)jutf_len(s) + 1);
    for (size_t at = 0; jstr_find(j, s, what, at, &at); at += what.n)
        n++;
    return jval_int(n);
}

/* --- cutting and joining ------------------------------------------------------------ */

struct pieces { /* a list of strings that grows */
    struct jval *at;
    size_t n, cap;
};

static void add_piece(struct jinja *j, struct pieces *p, const char *s, size_t n)
{
    if (p->n == p->cap) {
        size_t cap = p->cap == 0 ? 8 : 2 * p->cap;
        struct jval *grown = jinja_calloc(j, cap, sizeof *grown);
        if (p->n != 0)
            memcpy(grown, p->at, p->n * sizeof *grown);
        p->at = grown;
        p->cap = cap;
    }
    p->at[p->n++] = jval_str((struct jstr){s, n});
}

static struct jval pieces_list(struct jinja *j, const struct pieces *p, bool reversed)
{
    struct jval list = jval_seq(j, J_LIST, p->n);
    for (size_t i = 0; i < p->n; i++)
        list.seq->at[i] = p->at[reversed ? p->n - 1 - i : i];
    return list;
}

static struct jval split_at(struct jinja *j, struct jstr s, struct jstr by, int64_t most)
{
    struct pieces p = {0};
    size_t from = 0, at;
    if (by.n == 0)
        jinja_fail(j, ERR_MISMATCH, "empty separator");
    while (most-- != 0 && jstr_find(j, s, by, from, &at)) {
        add_piece(j, &p, s.s + from, at - from);
        from = at + by.n;
    }
    add_piece(j, &p, s.s + from, s.n - from);
    return pieces_list(j, &p, false);
}

static struct jval split_at_last(struct jinja *j, struct jstr s, struct jstr by,
                                 int64_t most)
{
    struct pieces p = {0};
    size_t at;
    if (by.n == 0)
        jinja_fail(j, ERR_MISMATCH, "empty separator");
    while (most-- != 0 && find_last(j, s, by, &at)) {
        add_piece(j, &p, s.s + at + by.n, s.n - at - by.n);
        s.n = at;
    }
    add_piece(j, &p, s.s, s.n);
    return pieces_list(j, &p, true);
}

/* Implements split() without a separator: returns the words, and no empty strings. */
static struct jval split_words(struct jinja *j, struct jstr s, int64_t most)
{
    struct pieces p = {0};
    struct jval blank = jval_none();
    uint32_t cp = 0;
    for (s = jstr_strip(j, s, &blank, true, false); s.n != 0;) {
        size_t i = most-- == 0 ? s.n : 0;
        for (size_t k; i < s.n; i += k) {
            k = utf8_decode(s.s + i, s.n - i, &cp);
            if (jutf_is_space(cp))
                break;
        }
        jinja_charge(j, i);
        add_piece(j, &p, s.s, i);
        s = jstr_strip(j, (struct jstr){s.s + i, s.n - i}, &blank, true, false);
    }
    return pieces_list(j, &p, false);
}

static struct jval m_split(struct jinja *j, struct jstr s, const struct jcall *c)
{
    static const char *const names[] = {"sep", "maxsplit"};
    struct jval a[2];
    jcall_bind(j, c, names, 2, 0, a);
    int64_t most = opt_int(j, c, &a[1], -1);
    bool words = a[0].kind == J_MISSING || a[0].kind == J_NONE;
    bool from_right = c->what[0] == 'r';
    if (words && from_right && most >= 0)
        jinja_fail(j, ERR_UNSUPPORTED, "rsplit() at whitespace with a maximum");
    if (words)
        return split_words(j, s, most);
    struct jstr by = need_str(j, c, &a[0]);
    return from_right ? split_at_last(j, s, by, most) : split_at(j, s, by, most);
}

static struct jval m_partition(struct jinja *j, struct jstr s, const struct jcall *c)
{
    struct jstr by = only_str(j, c);
    bool last = c->what[0] == 'r';
    size_t at = 0;
    if (by.n == 0)
        jinja_fail(j, ERR_MISMATCH, "empty separator");
    bool found = last ? find_last(j, s, by, &at) : jstr_find(j, s, by, 0, &at);
    struct jval t = jval_seq(j, J_TUPLE, 3);
    for (size_t i = 0; i < 3; i++)
        t.seq->at[i] = jval_text("");
    if (!found) {
        t.seq->at[last ? 2 : 0] = jval_str(s);
        return t;
    }
    t.seq->at[0] = jval_str((struct jstr){s.s, at});
    t.seq->at[1] = jval_str(by);
    t.seq->at[2] = jval_str((struct jstr){s.s + at + by.n, s.n - at - by.n});
    return t;
}

static struct jval m_splitlines(struct jinja *j, struct jstr s, const struct jcall *c)
{
    static const char *const names[] = {"keepends"};
    struct jval keep;
    jcall_bind(j, c, names, 1, 0, &keep);
    return jstr_splitlines(j, s, keep.kind != J_MISSING && jval_truth(j, &keep));
}

static struct jval m_join(struct jinja *j, struct jstr s, const struct jcall *c)
{
    static const char *const names[] = {NULL};
    struct jval of;
    struct jbuf b = {0};
    jcall_bind(j, c, names, 1, 1, &of);
    const struct jseq *q = jval_items(j, &of);
    for (size_t i = 0; i < q->n; i++) {
        if (q->at[i].kind != J_STR)
            jinja_fail(j, ERR_MISMATCH,
                       "sequence item %zu: expected str instance, %s found", i,
                       jval_type(&q->at[i]));
        if (i != 0)
            jbuf_put(j, &b, s.s, s.n);
        jbuf_put(j, &b, q->at[i].str.s, q->at[i].str.n);
    }
    return jval_buf(&b);
}

static struct jval m_replace(struct jinja *j, struct jstr s, const struct jcall *c)
{
    static const char *const names[] = {NULL, NULL, NULL};
    struct jval a[3];
    jcall_bind(j, c, names, 3, 2, a);
    return jval_str(jstr_replace(j, s, need_str(j, c, &a[0]), need_str(j, c, &a[1]),
                                 opt_int(j, c, &a[2], -1)));
}

/* Pads a text to a width; before: how much of the padding comes first. */
static struct jval justify(struct jinja *j, struct jstr s, const struct jcall *c,
                           int64_t (*before)(int64_t pad, int64_t width))
{
    static const char *const names[] = {NULL, NULL};
    struct jval a[2];
    struct jbuf b = {0};
    jcall_bind(j, c, names, 2, 1, a);
    int64_t width = opt_int(j, c, &a[0], 0);
    int64_t pad = MAX(width - (int64_t)jutf_len(s), 0);
    struct jstr fill = a[1].kind != J_MISSING ? need_str(j, c, &a[1]) : JLIT(" ");
    if (jutf_len(fill) != 1)
        jinja_fail(j, ERR_MISMATCH,
                   "The fill character must be exactly one character long");
    int64_t first = before(pad, width);
    struct jstr left = jstr_repeat(j, fill, first),
                right = jstr_repeat(j, fill, pad - first);
    jbuf_put(j, &b, left.s, left.n);
    jbuf_put(j, &b, s.s, s.n);
    jbuf_put(j, &b, right.s, right.n);
    return jval_buf(&b);
}

static int64_t pad_none(int64_t pad, int64_t width)
{
    (void)pad;
    (void)width;
    return 0;
}

static int64_t pad_all(int64_t pad, int64_t width)
{
    (void)width;
    return pad;
}

/* Python puts the odd one first if the width is odd. */
static int64_t pad_half(int64_t pad, int64_t width)
{
    return pad / 2 + (pad & width & 1);
}

static struct jval m_ljust(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return justify(j, s, c, pad_none);
}

static struct jval m_rjust(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return justify(j, s, c, pad_all);
}

static struct jval m_center(struct jinja *j, struct jstr s, const struct jcall *c)
{
    return justify(j, s, c, pad_half);
}

static struct jval m_zfill(struct jinja *j, struct jstr s, const struct jcall *c)
{
    static const char *const names[] = {NULL};
    struct jval width;
    struct jbuf b = {0};
    jcall_bind(j, c, names, 1, 1, &width);
    int64_t zeros = opt_int(j, c, &width, 0) - (int64_t)jutf_len(s);
    size_t sign = s.n != 0 && (s.s[0] == '-' || s.s[0] == '+');
    struct jstr zero = jstr_repeat(j, JLIT("0"), zeros);
    jbuf_put(j, &b, s.s, sign);
    jbuf_put(j, &b, zero.s, zero.n);
    jbuf_put(j, &b, s.s + sign, s.n - sign);
    return jval_buf(&b);
}

/* --- all of them -------------------------------------------------------------------- */

static const struct {
    const char *name;
    method *call;
} methods[] = {
    {"capitalize", m_capitalize},
    {"center", m_center},
    {"count", m_count},
    {"endswith", m_endswith},
    {"find", m_find},
    {"format", jstr_format_method},
    {"index", m_index},
    {"isalnum", m_isalnum},
    {"isalpha", m_isalpha},
    {"isascii", m_isascii},
    {"isdigit", m_isdigit},
    {"islower", m_islower},
    {"isspace", m_isspace},
    {"isupper", m_isupper},
    {"join", m_join},
    {"ljust", m_ljust},
    {"lower", m_lower},
    {"lstrip", m_lstrip},
    {"partition", m_partition},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix},
    {"replace", m_replace},
    {"rfind", m_rfind},
    {"rindex", m_index},
    {"rjust", m_rjust},
    {"rpartition", m_partition},
    {"rsplit", m_split},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"splitlines", m_splitlines},
    {"startswith", m_startswith},
    {"strip", m_strip},
    {"title", m_title},
    {"upper", m_upper},
    {"zfill", m_zfill},
    /* These methods are known, but not implemented. */
    {"casefold", NULL},
    {"encode", NULL},
    {"expandtabs", NULL},
    {"format_map", NULL},
    {"isdecimal", NULL},
    {"isidentifier", NULL},
    {"isnumeric", NULL},
    {"isprintable", NULL},
    {"istitle", NULL},
    {"maketrans", NULL},
    {"swapcase", NULL},
    {"translate", NULL},
};

bool jstr_has_method(struct jstr name, const char **interned)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (jstr_is(name, methods[i].name)) {
            *interned = methods[i].name;
            return true;
        }
    return false;
}

struct jval jstr_call(struct jinja *j, const char *name, const struct jcall *c)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(name, methods[i].name) == 0 && methods[i].call != NULL) {
            if (c->self.safe)
                jinja_fail(j, ERR_UNSUPPORTED, "method '%s' of a safe string", name);
            return methods[i].call(j, c->self.str, c);
        }
    jinja_fail(j, ERR_UNSUPPORTED, "method '%s' of str is not supported", name);
}
