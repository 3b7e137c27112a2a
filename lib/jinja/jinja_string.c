/* jinja_string.c - string functions for filters, methods and operators.
 *
 * Strings are valid UTF-8 throughout, and every function here keeps them so.  Positions in a
 * template count characters; positions in this file count bytes. */
#include "jinja/jinja_impl.h"

#include "base/utf8.h"

#include <string.h>

/* --- characters --------------------------------------------------------------------- */

static bool starts_char(char c)
{
    return (c & 0xC0) != 0x80;
}

size_t jutf_len(struct jstr s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += starts_char(s.s[i]);
    return n;
}

size_t jutf_offset(struct jstr s, size_t chars)
{
    size_t i = 0;
    for (; i < s.n; i++)
        if (starts_char(s.s[i]) && chars-- == 0)
            break;
    return i;
}

bool jutf_is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 ||
           cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Returns whether str.splitlines ends a line at this character. */
static bool ends_line(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 ||
           cp == 0x2028 || cp == 0x2029;
}

/* --- searching ---------------------------------------------------------------------- */

bool jstr_find(struct jinja *j, struct jstr s, struct jstr what, size_t from, size_t *at)
{
    const char *p = s.s + from;
    if (what.n != 0)
        p = s.n > from ? memmem(s.s + from, s.n - from, what.s, what.n) : NULL;
    jinja_charge(j, what.n + (p != NULL ? (size_t)(p - s.s) : s.n) - from);
    if (p != NULL)
        *at = (size_t)(p - s.s);
    return p != NULL;
}

/* --- stripping ---------------------------------------------------------------------- */

static bool stripped(uint32_t cp, const char *one, size_t n, const struct jstr *chars)
{
    if (chars == NULL)
        return jutf_is_space(cp);
    for (size_t i = 0; i + n <= chars->n; i++)
        if (memcmp(chars->s + i, one, n) == 0)
            return true; /* in UTF-8 a match begins and ends at whole characters */
    return false;
}

struct jstr jstr_strip(struct jinja *j, struct jstr s, const struct jval *chars, bool left,
                       bool right)
{
    bool given = chars->kind != J_NONE && chars->kind != J_MISSING;
    if (given && chars->kind != J_STR)
        jinja_fail(j, ERR_MISMATCH, "strip arg must be None or str");
    const struct jstr *set = given ? &chars->str : NULL;
    uint32_t cp = 0;
    size_t begin = 0, end = s.n;
    while (left && begin < end) {
        size_t k = utf8_decode(s.s + begin, end - begin, &cp);
        if (!stripped(cp, s.s + begin, k, set))
            break;
        begin += k;
        jinja_charge(j, given ? chars->str.n : 0);
    }
    while (right && end > begin) {
        size_t k = 1;
        while (!starts_char(s.s[end - k]))
            k++;
        utf8_decode(s.s + end - k, k, &cp);
        if (!stripped(cp, s.s + end - k, k, set))
            break;
        end -= k;
        jinja_charge(j, given ? chars->str.n : 0);
    }
    return (struct jstr){s.s + begin, end - begin};
}

/* --- making new strings ------------------------------------------------------------- */

struct jstr jstr_repeat(struct jinja *j, struct jstr s, int64_t times)
{
    struct jbuf b = {0};
    for (int64_t i = 0; s.n != 0 && i < times; i++)
        jbuf_put(j, &b, s.s, s.n);
    return jval_buf(&b).str;
}

/* Replaces the empty string: as in Python, it lies before, between and after all characters. */
static struct jstr replace_between(struct jinja *j, struct jstr s, struct jstr to,
                                   int64_t count)
{
    struct jbuf b = {0};
    for (size_t i = 0;;) {
        if (count-- != 0)
            jbuf_put(j, &b, to.s, to.n);
        else
            count = 0;
        if (i >= s.n)
            return jval_buf(&b).str;
        size_t k = jutf_offset((struct jstr){s.s + i, s.n - i}, 1);
        jbuf_put(j, &b, s.s + i, k);
        i += k;
    }
}

struct jstr jstr_replace(struct jinja *j, struct jstr s, struct jstr from, struct jstr to,
                         int64_t count)
{
    struct jbuf b = {0};
    size_t at, done = 0;
    if (from.n == 0)
        return replace_between(j, s, to, count);
    while (count != 0 && jstr_find(j, s, from, done, &at)) {
        jbuf_put(j, &b, s.s + done, at - done);
        jbuf_put(j, &b, to.s, to.n);
        done = at + from.n;
        count--;
    }
    if (done == 0)
        return s;
    jbuf_put(j, &b, s.s + done, s.n - done);
    return jval_buf(&b).str;
}

struct jval jstr_splitlines(struct jinja *j, struct jstr s, bool keep_ends)
{
    struct jval out = jval_seq(j, J_LIST, 0);
    size_t begin = 0, n = 0, cap = 0;
    uint32_t cp = 0;
    for (size_t i = 0; i < s.n;) {
        size_t end = i;
        i += utf8_decode(s.s + i, s.n - i, &cp);
        bool ends = ends_line(cp);
        if (cp == '\r' && i < s.n && s.s[i] == '\n')
            i++;
        if (!ends && i < s.n)
            continue;
        if (n == cap) {
            struct jval grown = jval_seq(j, J_LIST, cap = cap == 0 ? 16 : 2 * cap);
            if (n != 0)
                memcpy(grown.seq->at, out.seq->at, n * sizeof *out.seq->at);
            out = grown;
        }
        end = ends && !keep_ends ? end : i;
        out.seq->at[n++] = jval_str((struct jstr){s.s + begin, end - begin});
        begin = i;
    }
    out.seq->n = n;
    return out;
}

struct jstr jstr_escape(struct jinja *j, struct jstr s)
{
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    struct jbuf b = {0};
    for (size_t i = 0; i < s.n; i++) {
        const char *p = s.s[i] != 0 ? strchr("&<>\"'", s.s[i]) : NULL;
        if (p != NULL)
            jbuf_puts(j, &b, names[p - strchr("&<>\"'", '&')]);
        else
            jbuf_put(j, &b, s.s + i, 1);
    }
    return jval_buf(&b).str;
}
