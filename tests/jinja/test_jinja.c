/* test_jinja.c - the template interpreter against the reference implementation's recorded results
 * (golden/chat.json, written by tools/golden/make_chat.py), its limits, and damage. */
#include "jinja/jinja.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/utf8.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>
#include "tests/unit.h"

static struct json *golden;
static struct tm now;

/* --- the golden file ---------------------------------------------------------------- */

static struct json *read_json(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    struct err err = {0};
    struct json *root = NULL;
    if (file_read(path, 64 << 20, &text, &n, &err) == 0)
        json_parse(&root, text, n, path, &err);
    free(text);
    return root;
}

static int load_golden(void **state)
{
    int64_t t[6] = {0};
    golden = read_json("tests/model/golden/chat.json");
    for (size_t i = 0; i < 6; i++)
        json_int_of(json_at(json_member(golden, "now"), i), &t[i]);
    now = (struct tm){.tm_year = (int)t[0] - 1900,
                      .tm_mon = (int)t[1] - 1,
                      .tm_mday = (int)t[2],
                      .tm_hour = (int)t[3],
                      .tm_min = (int)t[4],
                      .tm_sec = (int)t[5],
                      .tm_isdst = -1};
    mktime(&now); /* fills in the day of the week and of the year */
    return golden != NULL ? 0 : -1;
}

static int free_golden(void **state)
{
    json_free(golden);
    return 0;
}

/* Reads a model's own configuration with its template. It lies in ../shared, because it must not be
 * copied into the repository. */
static struct json *model_config(const char *model)
{
    char path[512];
    const char *shared = getenv("HCACHE_SHARED");
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer_config.json",
             shared != NULL ? shared : "../shared", model);
    return read_json(path);
}

/* --- comparing ---------------------------------------------------------------------- */

struct outcome {
    int rc;
    char *text;
    size_t n;
    struct err err;
};

static struct outcome render(const char *source, size_t n, const struct json *vars,
                             const struct json *more)
{
    struct outcome o = {0};
    struct jinja_template *t = NULL;
    struct jinja_var extra[8];
    struct jinja_input in = {.vars = vars, .extra = extra, .now = &now};
    struct json_iter it = json_begin(more);
    while (json_next(&it) && in.n_extra < 8)
        extra[in.n_extra++] = (struct jinja_var){.name = it.key, .value = it.value};
    o.rc = jinja_compile(&t, source, n, "t", NULL, &o.err);
    if (o.rc == 0)
        o.rc = jinja_render(t, &in, &o.text, &o.n, &o.err);
    jinja_destroy(t);
    return o;
}

/* Returns NULL if the result is the expected one, else a description of the difference. */
static const char *judge(const struct outcome *o, const struct json *expected)
{
    static char why[900];
    size_t n = 0;
    const char *text = json_string_of(json_member(expected, "output"), &n);
    if (text != NULL) {
        if (o->rc == 0 && o->n == n && memcmp(o->text, text, n) == 0)
            return NULL;
        snprintf(why, sizeof why, "expected [%.300s], got %d [%.300s]", text, o->rc,
                 o->rc == 0 ? o->text : o->err.msg);
        return why;
    }
    const char *kind = json_string_of(json_member(expected, "error"), NULL);
    const char *message = json_string_of(json_member(expected, "message"), NULL);
    int want = strcmp(kind, "raised") == 0        ? ERR_USAGE
               : strcmp(kind, "syntax") == 0      ? ERR_FORMAT
               : strcmp(kind, "unsupported") == 0 ? ERR_UNSUPPORTED
                                                  : ERR_MISMATCH;
    bool as_said = o->rc == want;
    if (strcmp(kind, "raised") == 0)
        as_said = as_said && strcmp(o->err.msg, message) == 0;
    if (strcmp(kind, "runtime") == 0)
        as_said = (as_said || o->rc == ERR_FORMAT) && strstr(o->err.msg, message) != NULL;
    if (as_said)
        return NULL;
    snprintf(why, sizeof why, "expected the %s error [%s], got %d [%.300s]", kind,
             message != NULL ? message : "", o->rc, o->rc == 0 ? o->text : o->err.msg);
    return why;
}

TEST(test_units)
{
    const struct json *units = json_member(golden, "units");
    const struct json *vars = json_member(golden, "unit_vars");
    size_t bad = 0;
    assert_true(json_count(units) > 150);
    for (size_t i = 0; i < json_count(units); i++) {
        const struct json *u = json_at(units, i);
        size_t n = 0;
        const char *source = json_string_of(json_at(u, 0), &n);
        struct outcome o = render(source, n, vars, json_at(u, 1));
        const char *why = judge(&o, json_at(u, 2));
        if (why != NULL)
            print_error("%s\n    %s\n", source, why);
        bad += why != NULL;
        free(o.text);
    }
    print_message("%zu templates\n", json_count(units));
    assert_int_equal(bad, 0);
}

TEST(test_chats)
{
    const struct json *chats = json_member(golden, "chats");
    size_t bad = 0, done = 0, skipped = 0;
    for (size_t i = 0; i < json_count(chats); i++) {
        const struct json *c = json_at(chats, i);
        const char *name = json_string_of(json_at(c, 0), NULL);
        const char *talk = json_string_of(json_at(c, 1), NULL);
        size_t n = 0;
        const char *source = json_string_of(
            json_member(json_member(golden, "templates"), name), &n);
        struct json *config = source == NULL ? model_config(name) : NULL;
        if (source == NULL)
            source = json_string_of(json_member(config, "chat_template"), &n);
        if (source == NULL) {
            skipped++;
            continue;
        }
        struct outcome o = render(
            source, n, json_member(json_member(golden, "conversations"), talk), NULL);
        const char *why = judge(&o, json_at(c, 2));
        if (why != NULL)
            print_error("%s on %s\n    %s\n", name, talk, why);
        bad += why != NULL;
        done++;
        free(o.text);
        json_free(config);
    }
    print_message("%zu conversations, %zu skipped: no ../shared/tokenizers\n", done,
                  skipped);
    /* no case of the golden file is left out silently */
    assert_in_range(done + skipped, 585, SIZE_MAX);
    assert_true(done > 150);
    assert_int_equal(bad, 0);
}

/* --- messages and limits ------------------------------------------------------------ */

static void expect_error(const char *source, const struct jinja_limits *limits, int rc,
                         const char *part)
{
    struct err err = {0};
    struct jinja_template *t = NULL;
    char *text = NULL;
    size_t n = 0;
    int got = jinja_compile(&t, source, strlen(source), "model", limits, &err);
    if (got == 0)
        got = jinja_render(t, &(struct jinja_input){0}, &text, &n, &err);
    if (got != rc || strstr(err.msg, part) == NULL)
        fail_msg("%.60s: got %d [%s]", source, got, err.msg);
    assert_null(text);
    jinja_destroy(t);
}

TEST(test_messages)
{
    expect_error("a\n\n{% nosuch %}", NULL, ERR_FORMAT, "model:3: unknown tag 'nosuch'");
    expect_error("a\n{{ 1 | urlize }}", NULL, ERR_UNSUPPORTED,
                 "model:2: filter 'urlize' is not supported");
    expect_error("{{ x.y }}", NULL, ERR_MISMATCH, "model:1: 'x' is undefined");
    expect_error("{% if true %}\n\n{{ [\n][0].a }}{% endif %}", NULL, ERR_MISMATCH,
                 "model:4: ");
    expect_error("{{ strftime_now('%Y') }}", NULL, ERR_MISMATCH,
                 "'strftime_now' is undefined");
    expect_error("\xff", NULL, ERR_FORMAT, "byte 0 is not valid UTF-8");
    expect_error("{{ raise_exception('no') }}", NULL, ERR_USAGE, "no");
    expect_error("{{ raise_exception('\\x00no') }}", NULL, ERR_USAGE, " no");
    expect_error("{{ raise_exception('') }}", NULL, ERR_USAGE, "without a message");
}

static void expect_text(const char *source, const char *text)
{
    struct outcome o = render(source, strlen(source), NULL, NULL);
    assert_int_equal(o.rc, 0);
    assert_string_equal(o.text, text);
    free(o.text);
}

/* Cases found by fuzzing; the expected texts come from the reference implementation. */
TEST(test_corners)
{
    /* A literal that is only a continued line is empty. */
    expect_text("{% set s = '\\\n' %}{{ s.find('') }} {{ s.index('') }} {{ '' in s }} "
                "{{ s.split('n')|length }} {{ s.partition('n')[0] }}|",
                "0 0 True 1 |");
    expect_text(
        "{% set least = -9223372036854775807 - 1 %}{{ 1 % least }} {{ least % -1 }} "
        "{{ -7 % 3 }} {{ 7 % -3 }} {{ -6 % 3 }} {{ least % 7 }}",
        "-9223372036854775807 0 2 -2 0 6");
    /* a step that leads past both ends of 64 bits */
    expect_text(
        "{{ 'abc'[1::9223372036854775807] }} {{ [1, 2, 3][1::9223372036854775807] }} "
        "{{ 'abc'[1::-9223372036854775807] }} {{ [1, 2, 3][::-2] }}",
        "b [2] b [3, 1]");
    /* a part of a path that has digits only is an index */
    expect_text(
        "{% set r = [range(12) | list] %}{{ r | map(attribute='0') | first }} "
        "{{ r | map(attribute='9') | first }} {{ r | map(attribute='10') | first }} "
        "{{ [{'1a': 7, 'b': [5, {'0': 8}]}] | map(attribute='1a') | first }} "
        "{{ [{'b': [5, [6, 8]]}] | map(attribute='b.1.1') | first }}",
        "0 9 10 7 8");
    expect_text("{{ ['\xc2\xad\xe1\x9a\x80\xc3\xa9\xc2\xa0\xc2\xa1'] }}",
                "['\\xad\\u1680\xc3\xa9\\xa0\xc2\xa1']");
    expect_text("{{ '\\na\\n'.splitlines() }} {{ '\\n'.splitlines(true) }}",
                "['', 'a'] ['\\n']");
}

/* A scope hides a name that it sets later, unless it sets it within an `if`. The reference
 * implementation gives the same texts. */
/* A missing attribute of what filters and methods return is undefined. Well-known templates ask for
 * the type of a parameter's items so. */
TEST(test_missing_attributes)
{
    expect_text("{{ ({'a': 1} | items).type is defined }}", "False");
    expect_text("{{ ({'a': 1}.items()).type is defined }}", "False");
    expect_text("{{ ([1] | map('string')).x is defined }} {{ range(3).x is defined }}",
                "False False");
    expect_text(
        "{% macro t(p) %}{% if p.type == 'array' %}list[{{ t(p.items) if p.items.type }}]"
        "{% else %}{{ p.type }}{% endif %}{% endmacro %}"
        "{{ t({'type': 'array', 'items': {'type': 'string'}}) }}",
        "list[]");
}

TEST(test_hiding)
{
    static const char *const sets[] = {
        "{% set range = 2 %}", "{% if false %}{% set range = 2 %}{% endif %}",
        "{% if false %}{% else %}{% set range = 2 %}{% endif %}",
        "{% if false %}{% elif false %}{% set range = 2 %}{% endif %}",
        "{% if false %}{% elif false %}{% else %}{% set range = 2 %}{% endif %}"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char source[200];
        snprintf(source, sizeof source,
                 "{%% for m in [1] %%}{{ range is defined }}{%% endfor %%}%s", sets[i]);
        expect_text(source, i == 0 ? "False" : "True");
    }
}

/* As in Python, a count bounds the replacements, and the empty text lies between all characters. */
TEST(test_replacing)
{
    expect_text("{{ 'abab'.replace('a', 'xy') }} {{ 'abab'.replace('b', '') }} "
                "{{ 'abab'.replace('c', 'x') }} {{ 'aaa'.replace('aa', 'b') }}",
                "xybxyb aa abab ba");
    expect_text("{{ 'abab'.replace('a', 'x', 1) }} {{ 'abab'.replace('a', 'x', 0) }} "
                "{{ 'abab'.replace('a', 'x', -1) }}",
                "xbab abab xbxb");
    expect_text("{{ 'a\xc3\xa9'.replace('', '-') }} {{ 'abc'.replace('', '-', 0) }} "
                "{{ 'abc'.replace('', '-', 1) }} {{ 'abc'.replace('', '-', 2) }} "
                "{{ 'abc'.replace('', '-', 4) }} {{ 'abc'.replace('', '-', 9) }}",
                "-a-\xc3\xa9- abc -abc -a-bc -a-b-c- -a-b-c-");
}

/* A tag with a sign takes the whitespace beside it, also blanks of several bytes, and no part of a
 * character. */
TEST(test_trimming)
{
    expect_text("a \t\n{%- if true %} b  {%- endif -%} \n c", "a bc");
    expect_text("x y\xc2\xa0\xe3\x80\x80{{- 1 -}}\xe2\x80\x83\xc3\xa9", "x y1\xc3\xa9");
    expect_text("\xc3\xa9\xe6\x97\xa5 {{- 1 }} {{- 2 }}", "\xc3\xa9\xe6\x97\xa5\x31\x32");
    expect_text("  {{- 1 }}", "1");
}

/* Returns `before`, n times `unit`, and `after` as one string, which the caller frees. */
static char *repeated(const char *before, const char *unit, size_t n, const char *after)
{
    size_t k = strlen(unit);
    char *s = malloc(strlen(before) + n * k + strlen(after) + 1);
    char *p = stpcpy(s, before);
    for (size_t i = 0; i < n; i++)
        p = stpcpy(p, unit);
    strcpy(p, after);
    return s;
}

static void expect_limit(char *source, const struct jinja_limits *limits)
{
    expect_error(source, limits, ERR_LIMIT, limits != NULL ? "" : "model:");
    free(source);
}

TEST(test_limits)
{
    expect_error(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        NULL, ERR_LIMIT, "");
    expect_error("{% set x = range(100000) %}{% for a in x %}{{ x | sum }}{% endfor %}",
                 NULL, ERR_LIMIT, "steps");
    expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, ERR_LIMIT,
                 "deeper");
    expect_error("{{ 'x' * 4000000000 }}", NULL, ERR_LIMIT, "");
    expect_error("{{ [1] * 9000000000000000000 }}", NULL, ERR_LIMIT, "");
    expect_error("{{ [1, 2, 3] * 9000000000000000000 }}", NULL, ERR_LIMIT, "");
    expect_error("{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = "
                 "ns.s ~ ns.s %}"
                 "{% endfor %}",
                 NULL, ERR_LIMIT, "");
    expect_error(
        "{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}"
        "{% endfor %}{{ ns.s }}",
        NULL, ERR_LIMIT, "deeper");
    expect_error(
        "{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}"
        "{% endfor %}{{ ns.s == ns.s }}",
        NULL, ERR_LIMIT, "deeper");
    expect_limit(repeated("{{ ", "(", 100000, ""), NULL);
    expect_limit(repeated("{{ ", "[", 300, "}}"), NULL);
    expect_limit(repeated("{{ ", "not ", 100000, "1 }}"), NULL);
    expect_limit(repeated("{{ ", "-", 100000, "1 }}"), NULL);
    expect_limit(repeated("{{ 1", " + 1", 100000, " }}"), NULL);
    expect_limit(repeated("{{ 'a'", "|upper", 100000, " }}"), NULL);
    expect_limit(repeated("{{ 'a'", "[0]", 100000, " }}"), NULL);
    expect_limit(repeated("{{ 1", " if 1 else 1", 100000, " }}"), NULL);
    expect_limit(repeated("", "{% if 1 %}", 100000, ""), NULL);
    expect_limit(repeated("", "{% for a in [1] %}", 50000, ""), NULL);
    expect_limit(repeated("", "x", 2 << 20, ""),
                 &(struct jinja_limits){.max_source_bytes = 1 << 20});
    struct jinja_limits small = jinja_default_limits();
    small.max_output_bytes = 1000;
    expect_limit(repeated("", "x", 1001, ""), &small);
    expect_error("{% for i in range(1000) %}xx{% endfor %}", &small, ERR_LIMIT,
                 "prints more");
    small = jinja_default_limits();
    small.max_memory_bytes = 1 << 16;
    expect_error("{{ range(9999) | list | length }}", &small, ERR_LIMIT, "memory");
}

/* A long elif chain and a long text do not count as deep nesting. */
TEST(test_long_is_not_deep)
{
    char *source = repeated("{% if 0 %}", "{% elif 0 %}x", 20000, "{% else %}y{% endif %}");
    struct outcome o = render(source, strlen(source), NULL, NULL);
    assert_int_equal(o.rc, 0);
    assert_string_equal(o.text, "y");
    free(o.text);
    free(source);
}

/* The case of every letter up to U+05FF agrees with the C library, or is an error. So does that of
 * the characters around the blocks without case. */
TEST(test_letters)
{
    static const uint32_t others[] = {
        0x109F,  0x10A0,  0x10FF,  0x1100,  0x139F,  0x13A0,  0x177F,  0x1780,  0x17FF,
        0x1800,  0x1FFF,  0x2000,  0x206F,  0x2070,  0x209F,  0x20A0,  0x20CF,  0x20D0,
        0x218F,  0x2190,  0x245F,  0x2460,  0x24FF,  0x2500,  0x2BFF,  0x2C00,  0x2E7F,
        0x2E80,  0xA4FF,  0xA500,  0xABFF,  0xAC00,  0xD7FF,  0xE000,  0xF8FF,  0xF900,
        0xFAFF,  0xFB00,  0xFDFF,  0xFE00,  0xFF20,  0xFF21,  0xFF5A,  0xFF5B,  0xFFFD,
        0xFFFE,  0x1EFFF, 0x1F000, 0x1F12F, 0x1F130, 0x1F189, 0x1F18A, 0x1FAFF, 0x1FB00,
        0x1FFFF, 0x20000, 0x3FFFD, 0x3FFFE, 0xE00FF, 0xE0100, 0xE01EF, 0xE01F0};
    enum { N_OTHERS = sizeof others / sizeof *others, N_FIRST = 0x600 };
    locale_t c_utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (c_utf8 == (locale_t)0) {
        print_message("skipped: this system has no locale C.UTF-8\n");
        skip();
    }
    size_t n_known = 0, n_others = 0;
    for (uint32_t i = 0x20; i < N_FIRST + N_OTHERS; i++) {
        uint32_t cp = i < N_FIRST ? i : others[i - N_FIRST];
        char c[5] = "", upper[5] = "", lower[5] = "", source[100], want[100];
        if (cp == '\'' || cp == '\\')
            continue;
        uint32_t up = (uint32_t)towupper_l((wint_t)cp, c_utf8);
        uint32_t low = (uint32_t)towlower_l((wint_t)cp, c_utf8);
        c[utf8_encode(cp, c)] = 0;
        upper[utf8_encode(up, upper)] = 0;
        lower[utf8_encode(low, lower)] = 0;
        snprintf(source, sizeof source,
                 "{{ '%s'.upper() }}{{ '%s'.isupper() }}{{ '%s'.islower() }}", c, c, c);
        snprintf(want, sizeof want, "%s%s%s", cp == 0xDF ? "SS" : upper,
                 low != cp ? "True" : "False", up != cp || cp == 0xDF ? "True" : "False");
        struct outcome o = render(source, strlen(source), NULL, NULL);
        assert_true(o.rc == 0 || o.rc == ERR_UNSUPPORTED);
        if (o.rc == 0 && strcmp(o.text, want) != 0)
            fail_msg("U+%04X: %s instead of %s", cp, o.text, want);
        bool is_known = o.rc == 0;
        free(o.text);
        snprintf(source, sizeof source, "{{ '%s'.lower() }}", c);
        o = render(source, strlen(source), NULL, NULL);
        /* the lower case of a sigma depends on its word */
        assert_int_equal(o.rc, is_known && cp != 0x3A3 ? 0 : ERR_UNSUPPORTED);
        if (o.rc == 0)
            assert_string_equal(o.text, lower);
        free(o.text);
        n_known += is_known && i < N_FIRST;
        n_others += is_known && i >= N_FIRST;
    }
    freelocale(c_utf8);
    assert_int_equal(n_known, 933);
    assert_int_equal(n_others, 31);
}

/* --- damage ------------------------------------------------------------------------- */

/* Puts a piece of another template somewhere into this one, and changes, cuts or doubles bytes.
 * Returns the new length. Rendering the result must give a text, or an error with its place. */
static size_t mutate(struct rng *r, char *s, size_t n, size_t cap, const char *other,
                     size_t n_other)
{
    static const char *const bits[] = {"{%",      "%}",
                                       "{{",      "}}",
                                       "{#",      "#}",
                                       "-",       "+",
                                       "'",       "(",
                                       ")",       "[",
                                       "]",       "|",
                                       ".",       ":",
                                       "::",      "~",
                                       "%",       "loop.last",
                                       " if ",    " else ",
                                       " in ",    " is ",
                                       "not ",    "{% endfor %}",
                                       "\xc3",    "\0",
                                       "\\",      "[::-1]",
                                       "|tojson", "9999999999"};
    for (uint64_t k = 1 + rng_below(r, 4); k > 0; k--) {
        size_t at = (size_t)rng_below(r, n + 1), len = 0;
        const char *what = "";
        switch (rng_below(r, 4)) {
        case 0:
            what = bits[rng_below(r, sizeof bits / sizeof *bits)];
            len = *what != 0 ? strlen(what) : 1;
            break;
        case 1: {
            size_t from = (size_t)rng_below(r, n_other + 1);
            what = other + from;
            len = (size_t)rng_below(r, n_other - from + 1) % 60;
            break;
        }
        case 2: {
            size_t cut = (size_t)rng_below(r, n - at + 1) % 20;
            memmove(s + at, s + at + cut, n - at - cut);
            n -= cut;
            break;
        }
        default:
            if (at < n)
                s[at] = (char)rng_u64(r);
        }
        len = len < cap - n ? len : cap - n;
        memmove(s + at + len, s + at, n - at);
        memcpy(s + at, what, len);
        n += len;
    }
    return n;
}

TEST(test_damage)
{
    enum { ROUNDS = 30000, CAP = 16384 };
    const struct json *units = json_member(golden, "units"),
                      *chats = json_member(golden, "templates");
    const struct json *vars = json_member(golden, "unit_vars");
    const struct json *talk = json_member(json_member(golden, "conversations"),
                                          "tool-calls-two");
    struct jinja_limits limits = jinja_default_limits();
    limits.max_steps = 20000;
    limits.max_memory_bytes = 4 << 20;
    const char *sources[64];
    size_t n_sources = 0, ok = 0;
    struct json_iter it = json_begin(chats);
    while (json_next(&it))
        if (json_string_of(it.value, NULL) != NULL && n_sources < 64)
            sources[n_sources++] = json_string_of(it.value, NULL);
    char *s = malloc(CAP);
    struct rng r = {.s = 4};
    for (int i = 0; i < ROUNDS; i++) {
        const char *other = json_string_of(
            json_at(json_at(units, (size_t)rng_below(&r, json_count(units))), 0), NULL);
        const char *base =
            rng_below(&r, 8) == 0
                ? sources[rng_below(&r, n_sources)]
                : json_string_of(
                      json_at(json_at(units, (size_t)rng_below(&r, json_count(units))), 0),
                      NULL);
        size_t n = strlen(base);
        memcpy(s, base, n);
        n = mutate(&r, s, n, CAP, other, strlen(other));
        /* a copy of exact size, so that a sanitizer sees reads beyond it */
        char *exact = malloc(n > 0 ? n : 1);
        memcpy(exact, s, n);
        struct err err = {0};
        struct jinja_template *t = NULL;
        char *text = NULL;
        int rc = jinja_compile(&t, exact, n, "t", &limits, &err);
        if (rc == 0)
            rc = jinja_render(
                t, &(struct jinja_input){.vars = i & 1 ? vars : talk, .now = &now}, &text,
                &n, &err);
        assert_true(rc == 0 || err.msg[0] != 0 || rc == ERR_USAGE);
        assert_true(rc == 0 || rc == ERR_FORMAT || rc == ERR_UNSUPPORTED ||
                    rc == ERR_LIMIT || rc == ERR_MISMATCH || rc == ERR_USAGE);
        ok += rc == 0;
        jinja_destroy(t);
        free(text);
        free(exact);
    }
    free(s);
    print_message("%d damaged templates, %zu still render\n", ROUNDS, ok);
}

int main(void)
{
    return unit_run(load_golden, free_golden);
}
