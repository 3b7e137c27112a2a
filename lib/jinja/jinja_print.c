/* jinja_print.c - prints values like Python's str(), repr() and json.dumps. */
#include "jinja/jinja_impl.h"

#include "base/minmax.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers ------------------------------------------------------------------------ */

/* Prints the shortest digits that read back as f, laid out like Python's repr. */
static void print_real(struct jinja *j, struct jbuf *b, double f, bool json)
{
    if (isnan(f) || isinf(f)) {
        const char *inf = json ? "Infinity" : "inf";
        jbuf_printf(j, b, "%s%s", f < 0 ? "-" : "", isnan(f) ? json ? "NaN" : "nan" : inf);
        return;
    }
    char text[40];
    int digits = 0;
    do
        snprintf(text, sizeof text, "%.*e", digits, f);
    while (strtod(text, NULL) != f && ++digits < 17);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) { /* exponent form: d.ddde-05 */
        jbuf_put(j, b, text, (size_t)(strchr(text, 'e') - text));
        jbuf_printf(j, b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = digits - exponent;
    jbuf_printf(j, b, "%.*f", MAX(decimals, 1), f);
}

/* --- repr --------------------------------------------------------------------------- */

/* Returns whether Python's repr shows the character as an escape. Other non-ASCII characters are
 * shown unchanged. */
static bool unprintable(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7F && cp <= 0xA0) || cp == 0xAD || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200F) || (cp >= 0x2028 && cp <= 0x202F) ||
           (cp >= 0x205F && cp <= 0x206F) || cp == 0x3000 || cp == 0xFEFF ||
           (cp >= 0xE000 && cp <= 0xF8FF) || (cp >= 0xFFF0 && cp <= 0xFFFB) ||
           (cp & 0xFFFE) == 0xFFFE || cp >= 0xE0000;
}

static void repr_char(struct jinja *j, struct jbuf *b, uint32_t cp, char quote)
{
    if (cp == (uint32_t)quote || cp == '\\')
        jbuf_printf(j, b, "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        jbuf_puts(j, b, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
    else
        jbuf_printf(j, b,
                    cp < 0x100     ? "\\x%02x"
                    : cp < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                    cp);
}

static void repr_string(struct jinja *j, struct jbuf *b, struct jstr s)
{
    bool single = s.n != 0 && memchr(s.s, '\'', s.n) != NULL;
    bool twofold = s.n != 0 && memchr(s.s, '"', s.n) != NULL;
    char quote = single && !twofold ? '"' : '\'';
    jbuf_put(j, b, &quote, 1);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp = 0;
        size_t k = utf8_decode(s.s + i, s.n - i, &cp);
        if (cp == (uint32_t)quote || cp == '\\' || unprintable(cp))
            repr_char(j, b, cp, quote);
        else
            jbuf_put(j, b, s.s + i, k);
        i += k;
    }
    jbuf_put(j, b, &quote, 1);
}

static void repr_items(struct jinja *j, struct jbuf *b, const struct jseq *q)
{
    for (size_t i = 0; i < q->n; i++) {
        if (i != 0)
            jbuf_puts(j, b, ", ");
        jval_repr(j, b, &q->at[i]);
    }
}

static void repr_dict(struct jinja *j, struct jbuf *b, const struct jdict *d)
{
    jbuf_puts(j, b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i != 0)
            jbuf_puts(j, b, ", ");
        jval_repr(j, b, &d->at[i].key);
        jbuf_puts(j, b, ": ");
        jval_repr(j, b, &d->at[i].value);
    }
    jbuf_puts(j, b, "}");
}

void jval_repr(struct jinja *j, struct jbuf *b, const struct jval *v)
{
    jinja_enter(j);
    switch (v->kind) {
    case J_UNDEF:
        jbuf_puts(j, b, "Undefined");
        break;
    case J_NONE:
        jbuf_puts(j, b, "None");
        break;
    case J_BOOL:
        jbuf_puts(j, b, v->b ? "True" : "False");
        break;
    case J_INT:
        jbuf_printf(j, b, "%" PRId64, v->i);
        break;
    case J_BIG:
        jbuf_put(j, b, v->str.s, v->str.n);
        break;
    case J_REAL:
        print_real(j, b, v->f, false);
        break;
    case J_STR:
        if (v->safe)
            jinja_fail(j, ERR_UNSUPPORTED, "a safe string inside a printed value");
        repr_string(j, b, v->str);
        break;
    case J_LIST:
        jbuf_puts(j, b, "[");
        repr_items(j, b, v->seq);
        jbuf_puts(j, b, "]");
        break;
    case J_TUPLE:
        jbuf_puts(j, b, "(");
        repr_items(j, b, v->seq);
        jbuf_puts(j, b, v->seq->n == 1 ? ",)" : ")");
        break;
    case J_DICT:
        repr_dict(j, b, v->dict);
        break;
    default:
        jinja_fail(j, ERR_UNSUPPORTED, "a '%s' object cannot be printed", jval_type(v));
    }
    jinja_leave(j);
}

/* --- str ---------------------------------------------------------------------------- */

void jval_print(struct jinja *j, struct jbuf *b, const struct jval *v)
{
    if (v->kind == J_STR)
        jbuf_put(j, b, v->str.s, v->str.n);
    else if (v->kind != J_UNDEF)
        jval_repr(j, b, v);
}

struct jstr jval_to_str(struct jinja *j, const struct jval *v)
{
    if (v->kind == J_STR)
        return v->str;
    struct jbuf b = {0};
    jval_print(j, &b, v);
    return (struct jstr){b.n != 0 ? b.s : "", b.n};
}

/* --- json.dumps --------------------------------------------------------------------- */

struct dumper {
    struct jinja *j;
    struct jbuf *b;
    bool ascii, sort_keys, pretty;
    struct jstr indent, item_separator, key_separator;
    size_t level;
};

static void dump(struct dumper *d, const struct jval *v);

/* Appends the escape of the character cp. */
static void dump_escape(struct dumper *d, uint32_t cp)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *known = cp != 0 && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (known != NULL) {
        jbuf_printf(d->j, d->b, "\\%c", to[known - from]);
    } else if (cp < 0x10000) {
        jbuf_printf(d->j, d->b, "\\u%04x", cp);
    } else {
        cp -= 0x10000;
        jbuf_printf(d->j, d->b, "\\u%04x\\u%04x", 0xD800 + (cp >> 10),
                    0xDC00 + (cp & 0x3FF));
    }
}

static void dump_string(struct dumper *d, struct jstr s)
{
    jbuf_puts(d->j, d->b, "\"");
    for (size_t i = 0; i < s.n;) {
        size_t plain = i; /* start of a run of characters that need no escape */
        while (plain < s.n && s.s[plain] != '"' && s.s[plain] != '\\' &&
               (unsigned char)s.s[plain] >= 0x20 &&
               !(d->ascii && (unsigned char)s.s[plain] >= 0x7F))
            plain++;
        jbuf_put(d->j, d->b, s.s + i, plain - i);
        i = plain;
        uint32_t cp = 0;
        if (i < s.n) {
            i += utf8_decode(s.s + i, s.n - i, &cp);
            dump_escape(d, cp);
        }
    }
    jbuf_puts(d->j, d->b, "\"");
}

static void dump_newline(struct dumper *d)
{
    if (!d->pretty)
        return;
    jbuf_puts(d->j, d->b, "\n");
    for (size_t i = 0; i < d->level; i++)
        jbuf_put(d->j, d->b, d->indent.s, d->indent.n);
}

/* Prints the separator before item i, unless it is the first, and the line break. */
static void dump_between(struct dumper *d, size_t i)
{
    if (i != 0)
        jbuf_put(d->j, d->b, d->item_separator.s, d->item_separator.n);
    dump_newline(d);
}

static void dump_list(struct dumper *d, const struct jseq *q)
{
    jbuf_puts(d->j, d->b, "[");
    d->level++;
    for (size_t i = 0; i < q->n; i++) {
        dump_between(d, i);
        dump(d, &q->at[i]);
    }
    d->level--;
    if (q->n != 0)
        dump_newline(d);
    jbuf_puts(d->j, d->b, "]");
}

static void dump_key(struct dumper *d, const struct jval *key)
{
    struct jbuf text = {0};
    if (key->kind == J_STR) {
        dump_string(d, key->str);
    } else if (key->kind == J_NONE || jval_is_number(key)) {
        struct dumper inner = *d;
        inner.b = &text;
        dump(&inner, key);
        dump_string(d, (struct jstr){text.s, text.n});
    } else {
        jinja_fail(d->j, ERR_MISMATCH, "keys must be str, int, float, bool or None, not %s",
                   jval_type(key));
    }
}

static const struct jpair **sorted_pairs(struct jinja *j, const struct jdict *dict)
{
    const struct jpair **at = jinja_calloc(j, dict->n, sizeof *at);
    /* sorting by insertion keeps equal keys in their order */
    for (size_t i = 0; i < dict->n; i++) {
        size_t k = i;
        for (; k > 0 && jval_order(j, &dict->at[i].key, &at[k - 1]->key, "<") < 0; k--)
            at[k] = at[k - 1];
        at[k] = &dict->at[i];
    }
    return at;
}

static void dump_dict(struct dumper *d, const struct jdict *dict)
{
    const struct jpair **sorted = d->sort_keys ? sorted_pairs(d->j, dict) : NULL;
    jbuf_puts(d->j, d->b, "{");
    d->level++;
    for (size_t i = 0; i < dict->n; i++) {
        const struct jpair *pair = sorted != NULL ? sorted[i] : &dict->at[i];
        dump_between(d, i);
        dump_key(d, &pair->key);
        jbuf_put(d->j, d->b, d->key_separator.s, d->key_separator.n);
        dump(d, &pair->value);
    }
    d->level--;
    if (dict->n != 0)
        dump_newline(d);
    jbuf_puts(d->j, d->b, "}");
}

static void dump(struct dumper *d, const struct jval *v)
{
    jinja_enter(d->j);
    switch (v->kind) {
    case J_NONE:
        jbuf_puts(d->j, d->b, "null");
        break;
    case J_BOOL:
        jbuf_puts(d->j, d->b, v->b ? "true" : "false");
        break;
    case J_INT:
        jbuf_printf(d->j, d->b, "%" PRId64, v->i);
        break;
    case J_BIG:
        jbuf_put(d->j, d->b, v->str.s, v->str.n);
        break;
    case J_REAL:
        print_real(d->j, d->b, v->f, true);
        break;
    case J_STR:
        dump_string(d, v->str);
        break;
    case J_LIST:
    case J_TUPLE:
        dump_list(d, v->seq);
        break;
    case J_DICT:
        dump_dict(d, v->dict);
        break;
    default:
        jinja_fail(d->j, ERR_MISMATCH, "Object of type %s is not JSON serializable",
                   jval_type(v));
    }
    jinja_leave(d->j);
}

/* Reads the separators argument: a pair of strings. */
static void set_separators(struct dumper *d, const struct jval *v)
{
    bool pair = (v->kind == J_LIST || v->kind == J_TUPLE) && v->seq->n == 2 &&
                v->seq->at[0].kind == J_STR && v->seq->at[1].kind == J_STR;
    if (!pair)
        jinja_fail(d->j, ERR_MISMATCH, "tojson: separators must be two strings");
    d->item_separator = v->seq->at[0].str;
    d->key_separator = v->seq->at[1].str;
}

struct jval jval_tojson(struct jinja *j, const struct jval *v, const struct jval *indent,
                        bool ascii, const struct jval *separators, bool sort_keys)
{
    struct jbuf b = {0};
    struct dumper d = {.j = j, .b = &b, .ascii = ascii, .sort_keys = sort_keys};
    d.pretty = indent->kind == J_INT || indent->kind == J_BOOL || indent->kind == J_STR;
    if (!d.pretty && indent->kind != J_NONE && indent->kind != J_MISSING)
        jinja_fail(j, ERR_MISMATCH, "tojson: indent must be an integer or a string, not %s",
                   jval_type(indent));
    d.item_separator = d.pretty ? JLIT(",") : JLIT(", ");
    d.key_separator = JLIT(": ");
    if (indent->kind == J_STR)
        d.indent = indent->str;
    else if (d.pretty)
        d.indent = jstr_repeat(j, JLIT(" "), jval_as_int(indent));
    if (separators->kind != J_NONE && separators->kind != J_MISSING)
        set_separators(&d, separators);
    dump(&d, v);
    return jval_buf(&b);
}
