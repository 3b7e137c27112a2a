/* json_scan.c - see json_scan.h: the grammar of RFC 8259, by recursion to JSON_MAX_DEPTH. */
#include "base/json_scan.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/json.h"
#include "base/mem.h"

/* Bytes that jansson 2.14 allocates for each kind of value, including malloc's overhead, rounded
 * up. A table or an array grows by doubling, and the old one is freed after the new one is filled.
 * tests/base/test_json_scan.c compares the sums with the memory that a parse takes. */
enum {
    COST_OBJECT = 240,
    COST_MEMBER = 144, /* cost of a member, without the key's bytes */
    COST_ARRAY = 144,
    COST_ELEMENT = 24,
    COST_STRING = 80, /* cost of a string, without its bytes */
    COST_NUMBER = 32,
};

struct scan {
    char *text;
    size_t n, at;
    size_t cost;
    bool (*ignores)(const void *arg, const char *name, size_t n_name);
    const void *arg;
    const char *why; /* reason of the first error, which is at `at` */
};

/* Notes the first error. Returns false, as each scan function does after an error. */
static bool fail(struct scan *s, const char *why)
{
    if (s->why == NULL)
        s->why = why;
    return false;
}

static int peek(const struct scan *s)
{
    return s->at < s->n ? (unsigned char)s->text[s->at] : -1;
}

/* Steps over the next byte if it is c. Returns whether it is. */
static bool take(struct scan *s, char c)
{
    if (peek(s) != c)
        return false;
    s->at++;
    return true;
}

static void skip_space(struct scan *s)
{
    while (s->at < s->n && (s->text[s->at] == ' ' || s->text[s->at] == '\n' ||
                            s->text[s->at] == '\t' || s->text[s->at] == '\r'))
        s->at++;
}

/* --- numbers and words ------------------------------------------------------------------------ */

static bool scan_digits(struct scan *s)
{
    size_t first = s->at;
    while (s->at < s->n && s->text[s->at] >= '0' && s->text[s->at] <= '9')
        s->at++;
    return s->at > first;
}

static bool scan_number(struct scan *s)
{
    size_t from = s->at;
    s->cost += COST_NUMBER;
    (void)take(s, '-');
    if (!take(s, '0') && !scan_digits(s))
        return fail(s, "a number has no digits");
    if (take(s, '.') && !scan_digits(s))
        return fail(s, "a number has no digits after its point");
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+'))
            (void)take(s, '-');
        if (!scan_digits(s))
            return fail(s, "a number has no digits in its exponent");
    }
    if (s->at - from > 18) /* it may be beyond 64 bits, and is then kept as its digits */
        s->cost += COST_STRING + (s->at - from);
    return true;
}

static bool scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if (s->n - s->at < n || memcmp(s->text + s->at, word, n) != 0)
        return fail(s, "a value was expected");
    s->at += n;
    return true;
}

/* --- strings ---------------------------------------------------------------------------------- */

/* Reads four hexadecimal digits. Returns -1 if they are something else. */
static int32_t scan_hex(struct scan *s)
{
    int32_t v = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int c = peek(s);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* Scans an escape after its backslash. An escaped surrogate is half a character, so the other half
 * must follow. */
static bool scan_escape(struct scan *s)
{
    int c = peek(s);
    if (c < 0 || strchr("\"\\/bfnrtu", c) == NULL || c == 0)
        return fail(s, "an escape is not one of JSON's");
    s->at++;
    if (c != 'u')
        return true;
    int32_t v = scan_hex(s);
    if (v >= 0xd800 && v < 0xdc00) {
        if (!take(s, '\\') || !take(s, 'u'))
            return fail(s, "an escape is half of a surrogate pair");
        int32_t low = scan_hex(s);
        return (low >= 0xdc00 && low < 0xe000) ||
               fail(s, "an escape is half of a surrogate pair");
    }
    return (v >= 0 && (v < 0xdc00 || v >= 0xe000)) ||
           fail(s, "an escape does not stand for a character");
}

static bool scan_string(struct scan *s)
{
    if (!take(s, '"'))
        return fail(s, "a string was expected");
    for (;;) {
        int c = peek(s);
        uint32_t cp;
        if (c < 0x20)
            return fail(s, c < 0 ? "a string does not end"
                                 : "a control character stands in a string");
        size_t n = c < 0x80 ? 1 : utf8_decode(s->text + s->at, s->n - s->at, &cp);
        if (n == 0)
            return fail(s, "the text is not valid UTF-8");
        s->at += n;
        if (c == '"')
            return true;
        if (c == '\\' && !scan_escape(s))
            return false;
    }
}

/* --- values ----------------------------------------------------------------------------------- */

static bool scan_value(struct scan *s, int depth);

/* Overwrites the value that begins at `from` with "0" and spaces. */
static void blank(struct scan *s, size_t from)
{
    memset(s->text + from, ' ', s->at - from);
    s->text[from] = '0';
}

/* Scans a name and its value, and blanks the value of a member that the caller ignores. */
static bool scan_member(struct scan *s, int depth)
{
    size_t key = s->at;
    if (!scan_string(s))
        return false;
    const char *name = s->text + key + 1;
    size_t n_name = s->at - key - 2;
    s->cost += COST_MEMBER + n_name;
    skip_space(s);
    if (!take(s, ':'))
        return fail(s, "':' was expected");
    skip_space(s);
    size_t from = s->at, cost = s->cost;
    if (!scan_value(s, depth))
        return false;
    if (depth == 1 && s->ignores != NULL && s->ignores(s->arg, name, n_name)) {
        blank(s, from);
        s->cost = cost + COST_NUMBER;
    }
    return true;
}

/* Scans the inside of an object or array, after its opening bracket. */
static bool scan_list(struct scan *s, int depth, char end, bool is_object)
{
    if (depth > JSON_MAX_DEPTH)
        return fail(s, "it is nested too deeply");
    skip_space(s);
    if (take(s, end))
        return true;
    for (;;) {
        skip_space(s);
        if (!is_object)
            s->cost += COST_ELEMENT;
        if (is_object ? !scan_member(s, depth) : !scan_value(s, depth))
            return false;
        skip_space(s);
        if (take(s, end))
            return true;
        if (!take(s, ','))
            return fail(s,
                        is_object ? "',' or '}' was expected" : "',' or ']' was expected");
    }
}

static bool scan_value(struct scan *s, int depth)
{
    size_t from = s->at;
    switch (peek(s)) {
    case '{':
        s->at++;
        s->cost += COST_OBJECT;
        return scan_list(s, depth + 1, '}', true);
    case '[':
        s->at++;
        s->cost += COST_ARRAY;
        return scan_list(s, depth + 1, ']', false);
    case '"':
        if (!scan_string(s))
            return false;
        s->cost += COST_STRING + (s->at - from);
        return true;
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        return scan_number(s);
    }
}

static bool scan_text(struct scan *s)
{
    skip_space(s);
    if (peek(s) != '{' && peek(s) != '[')
        return fail(s, "'{' or '[' was expected");
    if (!scan_value(s, 0))
        return false;
    skip_space(s);
    return s->at == s->n || fail(s, "text follows its end");
}

int json_scan(char *text, size_t n,
              bool (*ignores)(const void *arg, const char *name, size_t n_name),
              const void *arg, const char *file, size_t *cost, struct err *err)
{
    struct scan s = {.text = text, .n = n, .ignores = ignores, .arg = arg};
    bool ok = scan_text(&s);
    *cost = s.cost;
    return ok ? 0 : err_set(err, ERR_FORMAT, "%s: %s, at byte %zu", file, s.why, s.at);
}

/* --- one member ------------------------------------------------------------------------------- */

bool json_find(const char *text, size_t n, const char *name, size_t *at, size_t *len)
{
    /* without `ignores` the scan does not write */
    struct scan s = {.text = (char *)(uintptr_t)text, .n = n};
    size_t n_name = strlen(name);
    skip_space(&s);
    for (bool more = take(&s, '{'); more; more = take(&s, ',')) {
        skip_space(&s);
        size_t key = s.at + 1;
        if (peek(&s) != '"' || !scan_string(&s))
            return false;
        bool is_it = s.at - key == n_name + 1 && memcmp(text + key, name, n_name) == 0;
        skip_space(&s);
        if (!take(&s, ':'))
            return false;
        skip_space(&s);
        *at = s.at;
        if (!scan_value(&s, 1))
            return false;
        *len = s.at - *at;
        if (is_it)
            return true;
        skip_space(&s);
    }
    return false;
}

char *json_find_text(const char *text, size_t n, const char *name)
{
    size_t at, len, n_value = 0;
    struct json *list = NULL;
    if (n == 0 || !json_find(text, n, name, &at, &len) || text[at] != '"')
        return NULL;
    char *array = xasprintf("[%.*s]", (int)len,
                            text + at); /* a text alone is no JSON document */
    char *out = NULL;
    if (json_parse(&list, array, len + 2, "a value", NULL) == 0) {
        const char *value = json_string_of(json_at(list, 0), &n_value);
        out = value != NULL && strlen(value) == n_value ? xstrdup(value) : NULL;
    }
    json_free(list);
    free(array);
    return out;
}
