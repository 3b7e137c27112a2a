/* tool_calls.c - see tool_calls.h. */
#include "model/tool_calls.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "format/json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct span {
    const char *s;
    size_t n;
};

static const struct span qwen_open = {"<tool_call>", 11}, qwen_close = {"</tool_call>", 12},
                         python_tag = {"<|python_tag|>", 14};

enum tool_format tool_format_of(const char *chat_template)
{
    if (chat_template == NULL)
        return TOOL_FORMAT_NONE;
    if (strstr(chat_template, qwen_open.s) != NULL)
        return TOOL_FORMAT_QWEN;
    if (strstr(chat_template, "<|start_header_id|>") != NULL &&
        strstr(chat_template, "tool_calls") != NULL)
        return TOOL_FORMAT_LLAMA3;
    return TOOL_FORMAT_NONE;
}

/* --- spans of text ------------------------------------------------------------------ */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static struct span skip(struct span s, size_t n)
{
    return (struct span){s.s + n, s.n - n};
}

static struct span skip_blanks(struct span s)
{
    while (s.n != 0 && is_blank(*s.s))
        s = skip(s, 1);
    return s;
}

static struct span trim_end(struct span s)
{
    while (s.n != 0 && is_blank(s.s[s.n - 1]))
        s.n--;
    return s;
}

static struct span trim(struct span s)
{
    return trim_end(skip_blanks(s));
}

static bool begins(struct span s, struct span with)
{
    return s.n >= with.n && memcmp(s.s, with.s, with.n) == 0;
}

/* Returns the offset of `what` in s, or s.n if s does not contain it. */
static size_t find(struct span s, struct span what)
{
    const char *p = s.n != 0 ? memmem(s.s, s.n, what.s, what.n) : NULL;
    return p != NULL ? (size_t)(p - s.s) : s.n;
}

static void set_content(struct tool_calls *c, struct span s)
{
    c->content = xmemdup(s.s, s.n);
    c->n_content = s.n;
}

/* --- one call ----------------------------------------------------------------------- */

/* Returns the JSON value at the beginning of s, found by its brackets and quotes; json_parse checks
 * it. */
static struct span value_of(struct span s)
{
    size_t depth = 0, i = 0;
    for (; i < s.n; i++) {
        if (s.s[i] == '"') {
            for (i++; i < s.n && s.s[i] != '"'; i++)
                i += s.s[i] == '\\';
            if (depth == 0) {
                i++;
                break;
            }
        } else if (s.s[i] == '{' || s.s[i] == '[') {
            depth++;
        } else if (s.s[i] == '}' || s.s[i] == ']') {
            if (depth == 0)
                break;
            if (--depth == 0) {
                i++;
                break;
            }
        } else if (depth == 0 && (s.s[i] == ',' || is_blank(s.s[i]))) {
            break;
        }
    }
    return (struct span){s.s, i < s.n ? i : s.n};
}

/* Finds the text of the member `key` of an object that json_parse has accepted. */
static bool member_text(struct span object, const char *key, struct span *out)
{
    struct span s = skip(object, 1);
    for (;;) {
        s = skip_blanks(s);
        if (s.n == 0 || *s.s != '"')
            return false;
        struct span name = value_of(s);
        s = skip_blanks(skip(s, name.n));
        if (s.n == 0)
            return false;
        s = skip_blanks(skip(s, 1)); /* skips the colon */
        *out = value_of(s);
        if (name.n == strlen(key) + 2 && memcmp(name.s + 1, key, name.n - 2) == 0)
            return true;
        s = skip_blanks(skip(s, out->n));
        if (s.n == 0)
            return false;
        s = skip(s, 1); /* skips the comma, or the end */
    }
}

static void add(struct tool_calls *c, const char *name, struct span arguments)
{
    c->at = xrealloc(c->at, (c->n + 1) * sizeof *c->at);
    c->at[c->n++] = (struct tool_call){xstrdup(name), xmemdup(arguments.s, arguments.n)};
}

/* Adds the call that the object describes. */
static bool add_call(struct tool_calls *c, struct span object)
{
    struct json *v = NULL;
    struct span text;
    const char *name = NULL;
    if (object.n == 0 || *object.s != '{' ||
        json_parse(&v, object.s, object.n, "call", NULL) != 0)
        return false;
    const char *key = json_member(v, "arguments") != NULL ? "arguments" : "parameters";
    bool good = json_get_string(v, "name", &name, NULL) == 0 && name[0] != 0 &&
                json_kind(json_member(v, key)) == JSON_KIND_OBJECT &&
                member_text(object, key, &text);
    if (good)
        add(c, name, text);
    json_free(v);
    return good;
}

/* --- the formats -------------------------------------------------------------------- */

/* Parses text and calls, which alternate. A missing end tag at the very end is tolerated. */
static bool parse_qwen(struct span s, struct tool_calls *c)
{
    char *content = xmalloc(s.n + 1);
    size_t n = 0;
    bool good = true;
    while (good) {
        size_t open = find(s, qwen_open);
        memcpy(content + n, s.s, open);
        n += open;
        if (open == s.n)
            break;
        s = skip(s, open + qwen_open.n);
        size_t close = find(s, qwen_close);
        good = add_call(c, trim((struct span){s.s, close}));
        s = skip(s, close == s.n ? close : close + qwen_close.n);
    }
    if (good)
        set_content(c, trim_end((struct span){content, n}));
    free(content);
    return good;
}

static bool parse_llama3(struct span s, struct tool_calls *c)
{
    s = trim(s);
    if (begins(s, python_tag))
        s = skip_blanks(skip(s, python_tag.n));
    do {
        struct span object = value_of(s);
        if (!add_call(c, object))
            return false;
        s = skip_blanks(skip(s, object.n));
        while (s.n != 0 && *s.s == ';')
            s = skip_blanks(skip(s, 1));
    } while (s.n != 0);
    set_content(c, (struct span){"", 0});
    return true;
}

void tool_calls_parse(enum tool_format format, const char *text, size_t n,
                      struct tool_calls *out)
{
    struct span s = {text, n};
    *out = (struct tool_calls){0};
    bool good = false;
    if (format == TOOL_FORMAT_QWEN && find(s, qwen_open) != n)
        good = parse_qwen(s, out);
    else if (format == TOOL_FORMAT_LLAMA3)
        good = parse_llama3(s, out);
    if (good)
        return;
    tool_calls_deinit(out);
    set_content(out, s);
}

void tool_calls_deinit(struct tool_calls *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->at[i].name);
        free(c->at[i].arguments);
    }
    free(c->at);
    free(c->content);
    *c = (struct tool_calls){0};
}

/* --- streaming ---------------------------------------------------------------------- */

/* Returns the length of the content before the opening tag, or before bytes at the end that may
 * begin a tag. Blanks in front of the tag are not content. */
static size_t qwen_text_bytes(const char *text, size_t n)
{
    size_t at = find((struct span){text, n}, qwen_open);
    for (size_t tail = qwen_open.n - 1; at == n && tail > 0; tail--)
        if (tail <= n && memcmp(text + n - tail, qwen_open.s, tail) == 0)
            at = n - tail;
    return trim_end((struct span){text, at}).n;
}

static size_t llama3_text_bytes(const char *text, size_t n)
{
    struct span s = skip_blanks((struct span){text, n});
    size_t tag = MIN(s.n, python_tag.n);
    bool call = s.n == 0 || *s.s == '{' || memcmp(s.s, python_tag.s, tag) == 0;
    return call ? 0 : n;
}

size_t tool_calls_text_bytes(enum tool_format format, const char *text, size_t n)
{
    if (format == TOOL_FORMAT_QWEN)
        return qwen_text_bytes(text, n);
    return format == TOOL_FORMAT_LLAMA3 ? llama3_text_bytes(text, n) : n;
}
