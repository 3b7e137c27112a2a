/* answer_values.c - see answer_impl.h. */
#include "text/answer_impl.h"

#include <string.h>

#include "base/utf8.h"

/* --- tools ---------------------------------------------------------------------------- */

/* The APIs write a tool as {"type", "function": {"name", "parameters"}}, {"type", "name",
 * "parameters"}, or {"name", "input_schema"}. */
static const struct json *function_of(const struct json *tool)
{
    const struct json *f = json_member(tool, "function");
    return json_kind(f) == JSON_KIND_OBJECT ? f : tool;
}

static const struct json *find_tool(const struct json *tools, const char *name)
{
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json *f = function_of(json_at(tools, i));
        if (json_string_is(json_member(f, "name"), name))
            return f;
    }
    return NULL;
}

bool tools_have(const struct json *tools, const char *name)
{
    return find_tool(tools, name) != NULL;
}

bool tools_want_text(const struct json *tools, const char *name, const char *key)
{
    const struct json *f = find_tool(tools, name);
    const struct json *schema = json_member(f, "parameters");
    if (schema == NULL)
        schema = json_member(f, "input_schema");
    const struct json *p = json_member(json_member(schema, "properties"), key);
    const struct json *type = json_member(p, "type");
    const struct json *values = json_member(p, "enum");
    if (json_string_is(type, "string"))
        return true;
    /* without a type, an enum of texts says the same */
    bool all = type == NULL && json_count(values) > 0;
    for (size_t i = 0; i < json_count(values); i++)
        all = all && json_kind(json_at(values, i)) == JSON_KIND_STRING;
    return all;
}

/* --- values between tags -------------------------------------------------------------- */

static void append_string(struct textbuf *out, const char *s, size_t n)
{
    struct json *v = json_new_bytes(s, n);
    json_append(v, 0, out);
    json_free(v);
}

/* Returns whether the text is one JSON value. */
static bool is_json(const char *s, size_t n)
{
    struct textbuf list = {0};
    struct json *v = NULL;
    textbuf_add(&list, "[", 1);
    textbuf_add(&list, s, n);
    textbuf_add(&list, "]", 1);
    bool good = json_parse(&v, list.p, list.n, "value", NULL) == 0 && json_count(v) == 1;
    json_free(v);
    textbuf_free(&list);
    return good;
}

void value_append(struct textbuf *out, const char *s, size_t n, bool is_text)
{
    size_t begin = 0, end = n;
    while (begin < end && answer_is_blank(s[begin]))
        begin++;
    while (end > begin && answer_is_blank(s[end - 1]))
        end--;
    static const struct {
        const char *python, *json;
    } words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; !is_text && i < 3; i++)
        if (end - begin == strlen(words[i].python) &&
            memcmp(s + begin, words[i].python, end - begin) == 0) {
            textbuf_add(out, words[i].json, strlen(words[i].json));
            return;
        }
    if (is_text || !is_json(s + begin, end - begin))
        append_string(out, s, n);
    else
        textbuf_add(out, s + begin, end - begin);
}

/* --- literals ------------------------------------------------------------------------- */

struct reader {
    const char *s;
    size_t n, at;
    const struct tag *quote; /* NULL: Python */
    struct textbuf *out;
    int depth;
};

static int peek(struct reader *r)
{
    while (r->at < r->n && answer_is_blank(r->s[r->at]))
        r->at++;
    return r->at < r->n ? (unsigned char)r->s[r->at] : -1;
}

static bool take(struct reader *r, char c)
{
    if (peek(r) != (unsigned char)c)
        return false;
    r->at++;
    return true;
}

static void put(struct reader *r, const char *s)
{
    textbuf_add(r->out, s, strlen(s));
}

static bool read_value(struct reader *r);

/* Reads a text between quotes that are tags; there are no escapes. Returns false, and changes
 * nothing but skipped blanks, if no quote begins here. Else returns true, and sets *good to whether
 * the text is closed. */
static bool read_quoted(struct reader *r, bool *good)
{
    (void)peek(r);
    long from = tag_match(r->quote, r->s, r->n, r->at);
    if (from < 0)
        return false;
    for (size_t end = (size_t)from; end < r->n; end++) {
        long after = tag_match(r->quote, r->s, r->n, end);
        if (after < 0)
            continue;
        append_string(r->out, r->s + from, end - (size_t)from);
        r->at = (size_t)after;
        *good = true;
        return true;
    }
    *good = false;
    return true;
}

/* Reads a Python escape behind its backslash, and appends the character that it stands for. Returns
 * false if it is malformed. */
static bool read_escape(struct reader *r, struct textbuf *text)
{
    static const char from[] = "nrtbf0\\'\"\n", to[] = "\n\r\t\b\f\0\\'\"";
    if (r->at >= r->n)
        return false;
    char c = r->s[r->at++];
    const char *p = memchr(from, c, sizeof from - 1);
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t cp = 0;
    char utf8[4];
    if (p != NULL && c != '\n')
        textbuf_add(text, to + (p - from), 1);
    if (p != NULL)
        return true;
    if (digits == 0) { /* Python keeps an unknown one; octal ones are kept, too */
        textbuf_addf(text, "\\%c", c);
        return true;
    }
    for (size_t i = 0; i < digits; i++, r->at++) {
        const char *d = r->at < r->n ? memchr("0123456789abcdefABCDEF", r->s[r->at], 22)
                                     : NULL;
        if (d == NULL)
            return false;
        char x = *d;
        cp = cp * 16 + (uint32_t)(x <= '9' ? x - '0' : (x | 32) - 'a' + 10);
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        return false;
    textbuf_add(text, utf8, utf8_encode(cp, utf8));
    return true;
}

static bool read_python_string(struct reader *r)
{
    char end = r->s[r->at++];
    struct textbuf text = {0};
    bool good = true;
    while (good && r->at < r->n && r->s[r->at] != end) {
        char c = r->s[r->at++];
        if (c == '\\')
            good = read_escape(r, &text);
        else
            textbuf_add(&text, &c, 1);
    }
    good = good && r->at < r->n;
    r->at++;
    if (good)
        append_string(r->out, text.p != NULL ? text.p : "", text.n);
    textbuf_free(&text);
    return good;
}

static bool read_list(struct reader *r, char end)
{
    put(r, "[");
    for (bool first = true; !take(r, end); first = false) {
        if (!first && !take(r, ','))
            return false;
        if (take(r, end)) /* a comma may stand behind the last element */
            break;
        put(r, first ? "" : ", ");
        if (!read_value(r))
            return false;
    }
    put(r, "]");
    return true;
}

static bool read_key(struct reader *r)
{
    bool good;
    int c = peek(r);
    if (r->quote == NULL)
        return (c == '"' || c == '\'') && read_python_string(r);
    if (read_quoted(r, &good))
        return good;
    size_t from = r->at;
    while (r->at < r->n && strchr(":,{}[]", r->s[r->at]) == NULL)
        r->at++;
    size_t end = r->at;
    while (end > from && answer_is_blank(r->s[end - 1]))
        end--;
    append_string(r->out, r->s + from, end - from);
    return end > from;
}

static bool read_members(struct reader *r)
{
    put(r, "{");
    for (bool first = true; !take(r, '}'); first = false) {
        if (!first && !take(r, ','))
            return false;
        put(r, first ? "" : ", ");
        if (!read_key(r) || !take(r, ':'))
            return false;
        put(r, ": ");
        if (!read_value(r))
            return false;
    }
    put(r, "}");
    return true;
}

/* Reads a number or a word. In braces any other word is a text. */
static bool read_word(struct reader *r)
{
    size_t from = r->at;
    while (r->at < r->n && strchr(",)]}", r->s[r->at]) == NULL)
        r->at++;
    size_t end = r->at;
    while (end > from && answer_is_blank(r->s[end - 1]))
        end--;
    struct textbuf word = {0};
    value_append(&word, r->s + from, end - from, false);
    bool good = end > from && (r->quote != NULL || word.p[0] != '"');
    textbuf_add(r->out, word.p, good ? word.n : 0);
    textbuf_free(&word);
    return good;
}

static bool read_some(struct reader *r)
{
    bool good;
    int c = peek(r);
    if (c == '{' || c == '[' || (c == '(' && r->quote == NULL)) {
        r->at++;
        return c == '{' ? read_members(r) : read_list(r, c == '[' ? ']' : ')');
    }
    if (r->quote != NULL && read_quoted(r, &good))
        return good;
    if (r->quote == NULL && (c == '"' || c == '\''))
        return read_python_string(r);
    return c >= 0 && read_word(r);
}

static bool read_value(struct reader *r)
{
    if (++r->depth > JSON_MAX_DEPTH)
        return false;
    bool good = read_some(r);
    r->depth--;
    return good;
}

bool value_append_braces(struct textbuf *out, const struct tag *quote, const char *s,
                         size_t n)
{
    struct reader r = {.s = s, .n = n, .quote = quote, .out = out};
    return read_value(&r) && peek(&r) < 0;
}

static bool is_of_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_' || c == '-' || c == '.';
}

bool value_python_call(const char *s, size_t n, size_t *at, struct textbuf *name,
                       struct textbuf *out)
{
    struct reader r = {.s = s, .n = n, .at = *at, .out = out};
    (void)peek(&r);
    size_t from = r.at;
    while (r.at < n && is_of_name(s[r.at]))
        r.at++;
    textbuf_add(name, s + from, r.at - from);
    if (r.at == from || !take(&r, '('))
        return false;
    put(&r, "{");
    for (bool first = true; !take(&r, ')'); first = false) {
        if (!first && !take(&r, ','))
            return false;
        (void)peek(&r);
        size_t key = r.at;
        while (r.at < n && is_of_name(s[r.at]))
            r.at++;
        put(&r, first ? "" : ", ");
        append_string(out, s + key, r.at - key);
        put(&r, ": ");
        if (r.at == key || !take(&r, '=') || !read_value(&r))
            return false;
    }
    put(&r, "}");
    *at = r.at;
    return true;
}
