/* answer.c - see answer.h.
 *
 * The parser is a machine over one growing text. `at` is the next byte to read; `from` is the first
 * byte of the call that is being read, whose text is shown if it turns out to be none. Each state
 * reads as far as it can, and waits for more text when a decision depends on it. No byte is read
 * twice, except those of a tag that the text may have begun, and of a call that was none. */
#include "text/answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "base/json_walk.h"
#include "text/answer_impl.h"

/* Most bytes of a name, of a key, and of text that is skipped. Longer ones are text of the
 * answer. */
enum { MAX_NAME = 256 };

/* A state of the parser: reads from a->at on, and sets the next state. Returns false if it needs
 * more text; then the state stays. */
typedef bool answer_state(struct answer *a);

struct answer {
    const struct answer_form *f;
    const struct json *tools;
    bool has_tools;
    bool is_final; /* the answer has ended: no more text comes */
    answer_state *state;
    struct textbuf in;
    size_t at, from;
    size_t body; /* behind the opening tag of the call that begins at `from` */
    size_t scan; /* the text up to here was searched by the present state */
    bool in_section, in_list, is_bare;
    /* the call that is being read */
    struct json_walk walk;
    struct textbuf name, arguments, key;
    bool has_call;      /* name and arguments are a call that ends with its closing tag */
    bool value_is_text; /* the tool's schema wants text for the parameter `key` */
    int depth;          /* open brackets */
    int quoted;         /* inside quotes; in Python, the quotation mark that ends them */
    struct textbuf blanks; /* blanks that belong to the text only if more text follows */
    bool any_call, is_thought;
    struct answer_part *part;
    size_t n_parts;
};

static answer_state begin, after_thought, thought_begin, thought, text, section, skip_to,
    name, object, object_walk, list_item, list_next, bare_next, parameter, key, key_skip,
    value, braces, python, close_call, close_more, header, channel_text, channel_call,
    channel_end;

static bool has(const struct answer *a, enum form_tag tag)
{
    return a->f->tag[tag].n > 0;
}

/* --- parts ---------------------------------------------------------------------------- */

static struct answer_part *new_part(struct answer *a, enum answer_part_kind kind)
{
    a->part = xrealloc(a->part, (a->n_parts + 1) * sizeof *a->part);
    a->part[a->n_parts] = (struct answer_part){.kind = kind};
    return &a->part[a->n_parts++];
}

static void part_add(struct answer_part *p, const char *s, size_t n)
{
    if (p->cap < p->n + n + 1) {
        p->cap = 2 * (p->n + n) + 64;
        p->text = xrealloc(p->text, p->cap);
    }
    memcpy(p->text + p->n, s, n);
    p->n += n;
    p->text[p->n] = 0;
}

static void add_plain(struct answer *a, enum answer_part_kind kind, const char *s, size_t n)
{
    struct answer_part *last = a->n_parts > 0 ? &a->part[a->n_parts - 1] : NULL;
    if (n == 0)
        return;
    if (last == NULL || last->kind != kind)
        last = new_part(a, kind);
    part_add(last, s, n);
}

/* Adds text or thought, whose last blanks wait for more of it. */
static void add_words(struct answer *a, enum answer_part_kind kind, const char *s, size_t n)
{
    size_t end = n;
    while (end > 0 && answer_is_blank(s[end - 1]))
        end--;
    if (end > 0) {
        add_plain(a, kind, a->blanks.p, a->blanks.n);
        a->blanks.n = 0;
        add_plain(a, kind, s, end);
    }
    textbuf_add(&a->blanks, s + end, n - end);
}

/* Adds in[from, to) without its special tokens. */
static void add(struct answer *a, enum answer_part_kind kind, size_t from, size_t to)
{
    const char *s = a->in.p;
    while (from < to) {
        const char *mark = memchr(s + from, MARK_BEGIN, to - from);
        size_t end = mark != NULL ? (size_t)(mark - s) : to;
        if (kind == ANSWER_TEXT && !a->has_tools && a->blanks.n == 0 && !has(a, TAG_START))
            add_plain(a, kind, s + from, end - from);
        else
            add_words(a, kind, s + from, end - from);
        const char *after = mark != NULL ? memchr(mark, MARK_END, to - end) : NULL;
        from = after != NULL ? (size_t)(after - s) + 1 : to;
    }
}

static void add_call(struct answer *a, const char *tool, const char *arguments, size_t n)
{
    struct answer_part *p = new_part(a, ANSWER_CALL);
    p->name = xstrdup(tool);
    part_add(p, arguments, n);
    a->blanks.n = 0;
    a->any_call = true;
}

/* --- moving --------------------------------------------------------------------------- */

/* Makes `state` the next state, which reads from a->at on. Returns true, as states do. */
static bool go(struct answer *a, answer_state *state)
{
    a->state = state;
    a->scan = a->at;
    return true;
}

static long match(const struct answer *a, enum form_tag tag, size_t at)
{
    return tag_match(&a->f->tag[tag], a->in.p, a->in.n, at);
}

/* Returns whether more text may complete a tag, of which match has returned m. */
static bool may_still(const struct answer *a, long m)
{
    return m == MATCH_MORE && !a->is_final;
}

/* Returns the offset of the next byte that is no blank. */
static size_t skip_blanks(const struct answer *a, size_t at)
{
    while (at < a->in.n && answer_is_blank(a->in.p[at]))
        at++;
    return at;
}

/* Ends the reading of a call that turns out to be none. Shows its text up to its first closing tag,
 * else up to a->at, and reads on from there. If the answer has ended, shows all of the rest: the
 * argument of a call that was cut may quote another call, which must not count. Returns true. */
static bool fail(struct answer *a)
{
    size_t to = MAX(a->at, a->body);
    for (size_t i = a->body; i < to && has(a, TAG_CLOSE); i++)
        if (match(a, TAG_CLOSE, i) >= 0)
            to = i;
    if (a->is_final && a->at == a->in.n)
        to = a->in.n;
    add(a, ANSWER_TEXT, a->from, to);
    a->at = a->from = to;
    a->has_call = a->in_section = a->in_list = a->is_bare = false;
    return go(a, text);
}

/* Moves a->scan to the next such tag. Returns the tag's offset and sets *end to its end. Returns
 * a->in.n if the text has no whole tag yet; a->scan is then where the tag may begin. */
static size_t search(struct answer *a, enum form_tag tag, size_t *end)
{
    for (; a->scan < a->in.n; a->scan++) {
        long m = match(a, tag, a->scan);
        if (m >= 0) {
            *end = (size_t)m;
            return a->scan;
        }
        if (m == MATCH_MORE)
            break;
    }
    return a->in.n;
}

/* Waits for the rest of a call. If the answer has ended, none comes, and the call is text. */
static bool wait_or_fail(struct answer *a)
{
    if (!a->is_final)
        return false;
    a->at = a->in.n;
    return fail(a);
}

/* --- beginning and thoughts ----------------------------------------------------------- */

static bool begin_text(struct answer *a, size_t first)
{
    bool calls = a->f->calls != NULL && a->has_tools;
    if (a->f->calls != NULL && a->f->calls->body == CALL_CHANNEL)
        return go(a, header);
    if (calls && a->f->calls->is_bare && first < a->in.n && a->in.p[first] == '{') {
        a->from = a->at;
        a->at = a->body = first;
        a->is_bare = true;
        return go(a, object);
    }
    return go(a, text);
}

static bool begin(struct answer *a)
{
    size_t first = skip_blanks(a, a->at);
    if (first == a->in.n && !a->is_final)
        return false;
    long m = match(a, TAG_THOUGHT, first);
    if (may_still(a, m))
        return false;
    if (m < 0)
        return begin_text(a, first);
    a->at = (size_t)m;
    return go(a, thought_begin);
}

/* The prompt may have opened the thought already; some models open it once more. */
static bool thought_begin(struct answer *a)
{
    a->at = skip_blanks(a, a->at);
    if (a->at == a->in.n)
        return false;
    long m = match(a, TAG_THOUGHT, a->at);
    if (may_still(a, m))
        return false;
    a->at = m >= 0 ? skip_blanks(a, (size_t)m) : a->at;
    return a->at == a->in.n && !a->is_final ? false : go(a, thought);
}

static bool thought(struct answer *a)
{
    size_t end = 0, at = search(a, TAG_THOUGHT_END, &end);
    bool is_closed = at < a->in.n;
    at = a->is_final ? at : a->scan;
    add(a, ANSWER_THOUGHT, a->at, at);
    a->at = at;
    if (!is_closed)
        return false;
    a->blanks.n = 0;
    a->at = end;
    return go(a, after_thought);
}

static bool after_thought(struct answer *a)
{
    a->at = skip_blanks(a, a->at);
    return a->at == a->in.n ? false : begin_text(a, a->at);
}

/* --- text ----------------------------------------------------------------------------- */

/* Begins the call whose opening tag is in[from, end). */
static bool open_call(struct answer *a, size_t from, size_t end)
{
    static answer_state *const states[] = {
        [CALL_OBJECT] = object, [CALL_JSON] = name,     [CALL_TAGS] = name,
        [CALL_BRACES] = name,   [CALL_PYTHON] = python, [CALL_CHANNEL] = header};
    a->from = from;
    a->at = a->body = end;
    a->has_call = a->in_list = false;
    a->is_bare = a->f->calls->is_bare;
    a->name.n = a->arguments.n = 0;
    return go(a, has(a, TAG_SKIP_TO) ? skip_to : states[a->f->calls->body]);
}

static bool text(struct answer *a)
{
    static const enum form_tag openers[] = {TAG_SECTION, TAG_OPEN, TAG_OPEN_SHORT};
    bool calls = a->f->calls != NULL && a->has_tools;
    if (!calls) {
        add(a, ANSWER_TEXT, a->at, a->in.n);
        a->at = a->in.n;
        return false;
    }
    for (size_t i = a->at; i < a->in.n; i++) {
        bool waits = false;
        for (int k = 0; k < 3; k++) {
            long m = match(a, openers[k], i);
            waits = waits || may_still(a, m);
            if (m < 0)
                continue;
            add(a, ANSWER_TEXT, a->at, i);
            a->in_section = openers[k] == TAG_SECTION;
            if (!a->in_section)
                return open_call(a, i, (size_t)m);
            a->from = i;
            a->at = a->body = (size_t)m;
            return go(a, section);
        }
        if (waits) {
            add(a, ANSWER_TEXT, a->at, i);
            a->at = i;
            return false;
        }
        /* the inside of a special token is no text */
        const char *end = a->in.p[i] == MARK_BEGIN
                              ? memchr(a->in.p + i, MARK_END, a->in.n - i)
                              : NULL;
        i = end != NULL ? (size_t)(end - a->in.p) : i;
    }
    add(a, ANSWER_TEXT, a->at, a->in.n);
    a->at = a->in.n;
    return false;
}

static bool section(struct answer *a)
{
    size_t i = skip_blanks(a, a->at);
    if (i == a->in.n)
        return false;
    long end = match(a, TAG_SECTION_END, i), open = match(a, TAG_OPEN, i);
    if (may_still(a, end) || may_still(a, open))
        return false;
    if (open >= 0)
        return open_call(a, i, (size_t)open);
    if (!has(a, TAG_OPEN) && a->in.p[i] == '{')
        return open_call(a, i, i);
    a->in_section = false;
    a->at = end >= 0 ? (size_t)end : a->at;
    return go(a, text);
}

/* --- names ---------------------------------------------------------------------------- */

static bool skip_to(struct answer *a)
{
    size_t end = 0, at = search(a, TAG_SKIP_TO, &end);
    if (at - a->at > MAX_NAME)
        return fail(a);
    if (at == a->in.n)
        return wait_or_fail(a);
    a->at = end;
    return go(a, a->f->calls->body == CALL_OBJECT ? object : name);
}

static bool is_of_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("_-.:/", c) != NULL;
}

/* Sets the call's name to in[from, to), without what the syntax puts around it. Returns whether a
 * tool of this name was offered. */
static bool set_name(struct answer *a, size_t from, size_t to)
{
    const char *s = a->in.p;
    from = skip_blanks(a, from);
    long m = match(a, TAG_NAME_PREFIX, from);
    from = m >= 0 && (size_t)m <= to ? (size_t)m : from;
    for (size_t i = from; i < to && has(a, TAG_NAME_CUT); i++)
        if (match(a, TAG_NAME_CUT, i) >= 0)
            to = i;
    while (to > from && answer_is_blank(s[to - 1]))
        to--;
    for (size_t i = from; i < to; i++)
        if (!is_of_name(s[i]))
            return false;
    a->name.n = 0;
    if (from >= to)
        return false;
    textbuf_add(&a->name, s + from, to - from);
    return tools_have(a->tools, a->name.p);
}

/* Returns the offset at which the name that begins at a->at ends, and sets *end to the offset where
 * the arguments begin. Returns a->in.n if the end is not there yet. */
static size_t name_end(struct answer *a, size_t *end)
{
    enum call_body body = a->f->calls->body;
    if (has(a, TAG_NAME_END))
        return search(a, TAG_NAME_END, end);
    for (; a->scan < a->in.n; a->scan++) {
        long k = body == CALL_TAGS ? match(a, TAG_KEY, a->scan) : MATCH_NO;
        long c = body == CALL_TAGS ? match(a, TAG_CLOSE, a->scan) : MATCH_NO;
        bool brace = body == CALL_BRACES && a->in.p[a->scan] == '{';
        if (k == MATCH_MORE || c == MATCH_MORE)
            break;
        if (k < 0 && c < 0 && !brace)
            continue;
        *end = a->scan;
        return a->scan;
    }
    return a->in.n;
}

static bool name(struct answer *a)
{
    size_t end = 0, first = skip_blanks(a, a->at);
    enum call_body body = a->f->calls->body;
    bool is_named = first == a->in.n || strchr("[{", a->in.p[first]) == NULL;
    if (a->f->calls->is_list && !is_named)
        return go(a, object);
    size_t at = name_end(a, &end);
    if (at - a->at > MAX_NAME)
        return fail(a);
    if (at == a->in.n)
        return wait_or_fail(a);
    if (!set_name(a, a->at, at))
        return fail(a);
    a->at = end;
    a->depth = 0;
    if (body == CALL_TAGS)
        textbuf_add(&a->arguments, "{", 1);
    return go(a, body == CALL_TAGS ? parameter : body == CALL_BRACES ? braces : object);
}

/* --- JSON ----------------------------------------------------------------------------- */

static bool object(struct answer *a)
{
    a->at = skip_blanks(a, a->at);
    if (a->at == a->in.n)
        return wait_or_fail(a);
    char c = a->in.p[a->at];
    if (c == '[' && a->f->calls->is_list && a->name.n == 0) {
        a->at++;
        a->in_list = true;
        return go(a, list_item);
    }
    if (c != '{')
        return fail(a);
    a->walk = (struct json_walk){0};
    return go(a, object_walk);
}

/* Returns the length of the JSON value at the beginning of s. json_parse has accepted the text. */
static size_t value_bytes(const char *s, size_t n)
{
    size_t i = 0;
    struct json_walk w = {0};
    if (*s == '{' || *s == '[') {
        while (i < n && json_walk(&w, s[i]) == 0)
            i++;
        return i + 1;
    }
    if (*s == '"') {
        for (i = 1; i < n && s[i] != '"'; i++)
            i += s[i] == '\\';
        return i + 1;
    }
    while (i < n && strchr(",}] \t\r\n", s[i]) == NULL)
        i++;
    return i;
}

/* Finds the member `wanted` of the JSON object s[0, n), or the first member if `wanted` is NULL:
 * its value is s[*at, *at + *size). Returns false if there is none. */
static bool find_member(const char *s, size_t n, const char *wanted, size_t *at,
                        size_t *size)
{
    size_t i = 1;
    for (;;) {
        while (i < n && (answer_is_blank(s[i]) || s[i] == ',' || s[i] == ':'))
            i++;
        if (i >= n || s[i] != '"')
            return false;
        size_t name_at = i, name_size = value_bytes(s + i, n - i);
        for (i += name_size; i < n && (answer_is_blank(s[i]) || s[i] == ':');)
            i++;
        *at = i;
        *size = i < n ? value_bytes(s + i, n - i) : 0;
        if (wanted == NULL || (name_size == strlen(wanted) + 2 &&
                               memcmp(s + name_at + 1, wanted, name_size - 2) == 0))
            return true;
        i += *size;
    }
}

/* Reads the call {"name": "f", "arguments": {...}}, which s [n] is and json_parse has parsed as v.
 * Models confuse "arguments" and "parameters", so both are accepted. Returns false if it is no
 * call; else sets the call's name and arguments. */
static bool read_named(struct answer *a, const struct json *v, const char *s, size_t n)
{
    const struct call_syntax *c = a->f->calls;
    const char *wanted = c->arguments_key, *tool = NULL;
    size_t at = 0, size = 0;
    if (json_member(v, wanted) == NULL)
        wanted = strcmp(wanted, "arguments") == 0 ? "parameters" : "arguments";
    if (json_get_string(v, c->name_key, &tool, NULL) != 0 ||
        json_kind(json_member(v, wanted)) != JSON_KIND_OBJECT ||
        !find_member(s, n, wanted, &at, &size))
        return false;
    a->name.n = a->arguments.n = 0;
    textbuf_add(&a->name, tool, strlen(tool));
    textbuf_add(&a->arguments, s + at, size);
    return true;
}

/* Reads the JSON in[a->at, end): a whole call, or arguments if the call already has a name. Sets
 * name and arguments. Returns whether they call an offered tool. */
static bool read_object(struct answer *a, size_t end)
{
    const char *s = a->in.p + a->at;
    size_t n = end - a->at, at = 0, size = 0;
    struct json *v = NULL;
    bool good = json_parse(&v, s, n, "call", NULL) == 0;
    struct json_iter it = json_begin(v);
    if (good && a->name.n > 0) { /* the name stood before the arguments */
        a->arguments.n = 0;
        textbuf_add(&a->arguments, s, n);
    } else if (good && a->f->calls->name_key != NULL) {
        good = read_named(a, v, s, n);
    } else if (good) {
        good = json_count(v) == 1 && json_next(&it) &&
               json_kind(it.value) == JSON_KIND_OBJECT &&
               find_member(s, n, NULL, &at, &size);
        a->name.n = a->arguments.n = 0;
        textbuf_add(&a->name, good ? it.key : "", good ? strlen(it.key) : 0);
        textbuf_add(&a->arguments, s + at, size);
    }
    json_free(v);
    return good && a->name.n > 0 && tools_have(a->tools, a->name.p);
}

/* Adds the call that was read as a part. What follows it no longer depends on it. */
static void finish_call(struct answer *a)
{
    add_call(a, a->name.p, a->arguments.p, a->arguments.n);
    a->has_call = false;
    a->name.n = a->arguments.n = 0;
    a->from = a->at;
}

/* Walks on through the JSON value. Returns as json_walk; a->scan is behind the last byte. */
static int walk(struct answer *a)
{
    int rc = 0;
    for (; rc == 0 && a->scan < a->in.n; a->scan++)
        rc = json_walk(&a->walk, a->in.p[a->scan]);
    return rc;
}

static bool object_walk(struct answer *a)
{
    int rc = walk(a);
    if (rc == 0)
        return wait_or_fail(a);
    bool good = rc > 0 && read_object(a, a->scan);
    a->at = rc > 0 ? a->scan : a->scan - 1;
    if (!good && !(a->in_list && rc > 0))
        return fail(a);
    if (!good) { /* an element of a list that is no call; others may be */
        add(a, ANSWER_TEXT, a->from, a->at);
        a->from = a->at;
        a->name.n = 0;
    } else if (a->in_list || a->is_bare) {
        finish_call(a);
    }
    a->has_call = good && !a->in_list && !a->is_bare;
    return go(a, a->in_list ? list_next : a->is_bare ? bare_next : close_call);
}

static bool list_item(struct answer *a)
{
    a->at = skip_blanks(a, a->at);
    if (a->at == a->in.n)
        return wait_or_fail(a);
    return a->in.p[a->at] == ']' ? go(a, list_next) : go(a, object);
}

static bool list_next(struct answer *a)
{
    size_t i = skip_blanks(a, a->at);
    if (i == a->in.n)
        return false;
    if (a->in.p[i] != ',' && a->in.p[i] != ']')
        return fail(a);
    a->at = i + 1;
    if (a->in.p[i] == ',')
        return go(a, list_item);
    a->in_list = false;
    return go(a, close_call);
}

/* Several calls may follow each other, with semicolons between them. */
static bool bare_next(struct answer *a)
{
    size_t i = a->at;
    while (i < a->in.n && (answer_is_blank(a->in.p[i]) || a->in.p[i] == ';'))
        i++;
    if (i == a->in.n)
        return false;
    long m = match(a, TAG_OPEN, i);
    if (may_still(a, m))
        return false;
    if (m >= 0)
        return open_call(a, i, (size_t)m);
    if (a->in.p[i] == '{')
        return open_call(a, i, i);
    a->is_bare = false;
    return go(a, text);
}

/* --- parameters between tags ---------------------------------------------------------- */

static bool parameter(struct answer *a)
{
    size_t i = skip_blanks(a, a->at);
    if (i == a->in.n)
        return wait_or_fail(a);
    long k = match(a, TAG_KEY, i), c = match(a, TAG_CLOSE, i);
    if (may_still(a, k) || may_still(a, c))
        return false;
    a->at = i;
    if (k >= 0) {
        a->at = (size_t)k;
        return go(a, key);
    }
    if (c < 0)
        return fail(a);
    struct json *v = NULL;
    textbuf_add(&a->arguments, "}", 1);
    if (json_parse(&v, a->arguments.p, a->arguments.n, "call", NULL) != 0)
        return fail(a);
    json_free(v);
    a->at = (size_t)c;
    finish_call(a);
    return go(a, close_more);
}

static bool key(struct answer *a)
{
    size_t end = 0, at = search(a, TAG_KEY_END, &end), from = skip_blanks(a, a->at);
    if (at - a->at > MAX_NAME)
        return fail(a);
    if (at == a->in.n)
        return wait_or_fail(a);
    a->key.n = 0;
    while (at > from && answer_is_blank(a->in.p[at - 1]))
        at--;
    if (at <= from)
        return fail(a);
    textbuf_add(&a->key, a->in.p + from, at - from);
    a->value_is_text = tools_want_text(a->tools, a->name.p, a->key.p);
    a->at = end;
    return go(a, has(a, TAG_KEY_SKIP) ? key_skip : value);
}

static bool key_skip(struct answer *a)
{
    size_t end = 0, at = search(a, TAG_KEY_SKIP, &end);
    if (at - a->at > MAX_NAME)
        return fail(a);
    if (at == a->in.n)
        return wait_or_fail(a);
    size_t n = at - a->at;
    const char *s = a->in.p + a->at;
    a->value_is_text = a->value_is_text || memmem(s, n, "string=\"true\"", 13) != NULL ||
                       memmem(s, n, "type=\"string\"", 13) != NULL;
    a->at = end;
    return go(a, value);
}

static void add_value(struct answer *a, size_t from, size_t to)
{
    const char *s = a->in.p;
    if (a->f->calls->value_on_lines) {
        from += from < to && s[from] == '\n';
        to -= to > from && s[to - 1] == '\n';
    }
    struct json *k = json_new_bytes(a->key.p, a->key.n);
    textbuf_add(&a->arguments, ", ", a->arguments.n > 1 ? 2 : 0);
    json_append(k, 0, &a->arguments);
    textbuf_add(&a->arguments, ": ", 2);
    value_append(&a->arguments, s + from, to - from, a->value_is_text);
    json_free(k);
}

/* Reads a value up to a closing tag. If something else than the next parameter or the end of the
 * call follows the tag, the value quotes the tag, and goes on. */
static bool value(struct answer *a)
{
    size_t end = 0;
    for (;;) {
        size_t at = search(a, TAG_VALUE_END, &end);
        if (at == a->in.n)
            return wait_or_fail(a);
        size_t next = skip_blanks(a, end);
        long k = match(a, TAG_KEY, next), c = match(a, TAG_CLOSE, next);
        if (k >= 0 || c >= 0) {
            add_value(a, a->at, at);
            a->at = end;
            return go(a, parameter);
        }
        if (next == a->in.n || k == MATCH_MORE || c == MATCH_MORE)
            return wait_or_fail(a);
        a->scan++;
    }
}

/* --- literals ------------------------------------------------------------------------- */

static bool braces(struct answer *a)
{
    for (; a->scan < a->in.n; a->scan++) {
        long q = match(a, TAG_QUOTE, a->scan);
        char c = a->in.p[a->scan];
        if (may_still(a, q))
            return false;
        if (q >= 0) {
            a->quoted = !a->quoted;
            a->scan = (size_t)q - 1;
        } else if (!a->quoted) {
            a->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        }
        if (a->depth > 0)
            continue;
        size_t end = a->scan + 1;
        a->arguments.n = 0;
        bool good = value_append_braces(&a->arguments, &a->f->tag[TAG_QUOTE],
                                        a->in.p + a->at, end - a->at);
        a->at = end;
        a->has_call = good;
        return good ? go(a, close_call) : fail(a);
    }
    return wait_or_fail(a);
}

/* Reads the list of calls in[at, end). An element that is no call of an offered tool is text. */
static void read_python(struct answer *a, size_t end)
{
    size_t at = a->at + 1;
    for (bool good = true; good;) {
        a->name.n = a->arguments.n = 0;
        size_t from = skip_blanks(a, at);
        at = from;
        good = value_python_call(a->in.p, end, &at, &a->name, &a->arguments);
        if (good && tools_have(a->tools, a->name.p))
            add_call(a, a->name.p, a->arguments.p, a->arguments.n);
        else
            add(a, ANSWER_TEXT, from, good ? at : end);
        at = skip_blanks(a, at);
        good = good && at < end && a->in.p[at++] == ',';
    }
    a->name.n = a->arguments.n = 0;
    a->from = a->at = end;
}

static bool python(struct answer *a)
{
    if (a->scan == a->at) {
        a->scan = a->at = skip_blanks(a, a->at);
        a->depth = a->quoted = 0;
    }
    if (a->at < a->in.n && a->in.p[a->at] != '[')
        return fail(a);
    for (; a->scan < a->in.n; a->scan++) {
        char c = a->in.p[a->scan];
        if (a->quoted != 0 && c == '\\') {
            if (a->scan + 1 == a->in.n)
                break;
            a->scan++;
        } else if (a->quoted != 0) {
            a->quoted = c == a->quoted ? 0 : a->quoted;
        } else if (c == '"' || c == '\'') {
            a->quoted = c;
        } else {
            a->depth += (c == '(' || c == '{' || c == '[') -
                        (c == ')' || c == '}' || c == ']');
            if (a->depth == 0) {
                read_python(a, a->scan + 1);
                return go(a, close_call);
            }
        }
    }
    return wait_or_fail(a);
}

/* --- the end of a call ---------------------------------------------------------------- */

/* Goes on behind a call: to the section's next call, or to text. */
static bool next(struct answer *a)
{
    a->from = a->at;
    return go(a, a->in_section ? section : text);
}

/* Reads the closing tag. A call whose tag is missing is none, unless the answer ends within the
 * tag. */
static bool close_call(struct answer *a)
{
    if (has(a, TAG_CLOSE)) {
        long m = match(a, TAG_CLOSE, skip_blanks(a, a->at));
        if (may_still(a, m))
            return false;
        if (m == MATCH_NO)
            return a->has_call ? fail(a) : next(a);
        a->at = m >= 0 ? (size_t)m : a->in.n;
    }
    if (a->has_call)
        finish_call(a);
    return has(a, TAG_CLOSE_MORE) ? go(a, close_more) : next(a);
}

static bool close_more(struct answer *a)
{
    long m = match(a, TAG_CLOSE_MORE, skip_blanks(a, a->at));
    if (may_still(a, m))
        return false;
    a->at = m >= 0 ? (size_t)m : m == MATCH_MORE ? a->in.n : a->at;
    return next(a);
}

/* --- channels ------------------------------------------------------------------------- */

/* Finds the word that follows the tag in in[at, end). Returns the word's end, with its start in
 * *from. Both are `end` if the tag is not there. */
static size_t word_behind(const struct answer *a, const char *tag, size_t at, size_t end,
                          size_t *from)
{
    const char *p = memmem(a->in.p + at, end - at, tag, strlen(tag));
    size_t i = p != NULL ? (size_t)(p - a->in.p) + strlen(tag) : end;
    *from = i;
    while (i < end && !answer_is_blank(a->in.p[i]) && a->in.p[i] != '<' &&
           a->in.p[i] != MARK_BEGIN)
        i++;
    return i;
}

/* Reads a message's header: channel and recipient. An answer that begins without one is text. */
static bool header(struct answer *a)
{
    size_t i = skip_blanks(a, a->at), end = 0;
    if (i == a->in.n)
        return false;
    long s = match(a, TAG_START, i), c = match(a, TAG_OPEN, i);
    bool to = strncmp(a->in.p + i, "to=", MIN((size_t)3, a->in.n - i)) == 0;
    if (s < 0 && c < 0 && !to) {
        if (may_still(a, s) || may_still(a, c))
            return false;
        a->is_thought = false;
        return go(a, channel_text);
    }
    size_t at = search(a, TAG_NAME_END, &end);
    if (at == a->in.n) {
        a->at = a->is_final ? a->in.n : a->at; /* a header that was cut says nothing */
        return false;
    }
    size_t from, to_from, to_end = word_behind(a, "to=", i, at, &to_from);
    size_t word = word_behind(a, a->f->tag[TAG_OPEN].s, i, at, &from);
    bool is_call = to_end > to_from;
    a->is_thought = !is_call && word - from == 8 &&
                    memcmp(a->in.p + from, "analysis", 8) == 0;
    a->from = a->at = a->body = end;
    if (is_call && a->has_tools && set_name(a, to_from, to_end)) {
        a->walk = (struct json_walk){0};
        return go(a, channel_call);
    }
    /* one blank line between the texts of two messages */
    if (!a->is_thought && a->n_parts > 0 && a->part[a->n_parts - 1].kind == ANSWER_TEXT)
        textbuf_add(&a->blanks, "\n\n", 2);
    return go(a, channel_text);
}

/* Returns where the next message's header begins if the message ends at i. Returns MATCH_MORE if
 * more text may show that it ends there, else MATCH_NO. */
static long message_end(const struct answer *a, size_t i)
{
    static const enum form_tag ends[] = {TAG_END, TAG_CLOSE, TAG_RETURN};
    long more = MATCH_NO;
    for (int k = 0; k < 3; k++) {
        long m = match(a, ends[k], i);
        if (m >= 0)
            return m;
        more = MAX(m, more);
    }
    static const enum form_tag begins[] = {TAG_START, TAG_OPEN};
    for (int k = 0; k < 2; k++) {
        long m = match(a, begins[k], i);
        if (m >= 0)
            return (long)i;
        more = MAX(m, more);
    }
    return more;
}

/* Moves a->scan to the end of the message. Returns where the next message's header begins; a
 * negative number if the end is not there yet. */
static long find_message_end(struct answer *a)
{
    long end = MATCH_NO;
    for (; a->scan < a->in.n; a->scan++) {
        end = message_end(a, a->scan);
        if (end >= 0 || may_still(a, end))
            break;
    }
    return end;
}

/* Reads on behind the end of a message, which find_message_end has returned. */
static bool go_behind(struct answer *a, long end)
{
    a->at = end >= 0 ? (size_t)end : a->scan;
    return end >= 0 && go(a, header);
}

static bool channel_text(struct answer *a)
{
    enum answer_part_kind kind = a->is_thought ? ANSWER_THOUGHT : ANSWER_TEXT;
    long end = find_message_end(a);
    add(a, kind, a->at, a->scan);
    if (end >= 0 && kind == ANSWER_THOUGHT)
        a->blanks.n = 0;
    return go_behind(a, end);
}

static bool channel_call(struct answer *a)
{
    if (a->scan == a->at)
        a->scan = a->at = skip_blanks(a, a->at);
    int rc = walk(a);
    if (rc == 0 && !a->is_final)
        return false;
    if (rc > 0 && read_object(a, a->scan)) {
        a->at = a->scan;
        finish_call(a);
        return go(a, channel_end);
    }
    a->at = a->from;
    a->name.n = 0;
    a->is_thought = false;
    return go(a, channel_text);
}

/* Skips what follows a call in its message. */
static bool channel_end(struct answer *a)
{
    return go_behind(a, find_message_end(a));
}

/* --- the interface -------------------------------------------------------------------- */

/* Returns whether the prompt ends with the tag that opens a thought. */
static bool opens_thought(const struct answer_form *f, const char *prompt, size_t n)
{
    const struct tag *t = &f->tag[TAG_THOUGHT];
    char plain[128];
    size_t k = 0;
    for (size_t i = 0; i < t->n && k < sizeof plain; i++)
        if (t->s[i] != MARK_BEGIN && t->s[i] != MARK_END)
            plain[k++] = t->s[i];
    while (n > 0 && answer_is_blank(prompt[n - 1]))
        n--;
    return k > 0 && n >= k && memcmp(prompt + n - k, plain, k) == 0;
}

struct answer *answer_open(const struct answer_form *f, const char *prompt, size_t n_prompt,
                           const struct json *tools)
{
    struct answer *a = xcalloc(1, sizeof *a);
    a->f = f;
    a->tools = tools;
    a->has_tools = json_count(tools) > 0;
    bool has_channels = f->calls != NULL && f->calls->body == CALL_CHANNEL;
    a->state = has_channels                         ? header
               : opens_thought(f, prompt, n_prompt) ? thought_begin
                                                    : begin;
    textbuf_add(&a->in, "", 0);
    textbuf_add(&a->name, "", 0);
    return a;
}

void answer_close(struct answer *a)
{
    if (a == NULL)
        return;
    for (size_t i = 0; i < a->n_parts; i++) {
        free(a->part[i].name);
        free(a->part[i].text);
    }
    free(a->part);
    textbuf_free(&a->in);
    textbuf_free(&a->name);
    textbuf_free(&a->arguments);
    textbuf_free(&a->key);
    textbuf_free(&a->blanks);
    free(a);
}

static void run(struct answer *a)
{
    while (a->state(a))
        ;
}

/* Removes text that no state needs any more from the buffer. */
static void forget(struct answer *a)
{
    enum { KEEP = 64 << 10 };
    bool reads_call = a->state != text && a->state != thought && a->state != channel_text;
    if (reads_call || a->at < KEEP)
        return;
    memmove(a->in.p, a->in.p + a->at, a->in.n - a->at);
    a->in.n -= a->at;
    a->scan -= MIN(a->at, a->scan);
    a->from = a->body = a->at = 0;
}

void answer_push(struct answer *a, const char *s, size_t n)
{
    size_t old = a->in.n;
    textbuf_add(&a->in, s, n);
    for (size_t i = old; i < a->in.n; i++)
        if (a->in.p[i] == MARK_BEGIN || a->in.p[i] == MARK_END)
            a->in.p[i] = MARK_NONE;
    run(a);
    forget(a);
}

void answer_token(struct answer *a, int32_t special)
{
    for (int i = 0; i < a->f->n_token; i++)
        if (a->f->token[i].id == special)
            textbuf_add(&a->in, a->f->token[i].marked.s, a->f->token[i].marked.n);
    run(a);
}

void answer_end(struct answer *a)
{
    a->is_final = true;
    run(a);
    /* blanks at the end belong to an answer that is all text, or all blanks */
    if (a->n_parts == 0 || (!a->any_call && a->part[a->n_parts - 1].kind == ANSWER_TEXT))
        add_plain(a, ANSWER_TEXT, a->blanks.p, a->blanks.n);
    a->blanks.n = 0;
}

const struct answer_part *answer_parts(const struct answer *a, size_t *n)
{
    *n = a->n_parts;
    return a->part;
}
