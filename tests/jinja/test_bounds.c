/* test_bounds.c - what the limits count: the steps of each operation, the levels of nesting, bytes.
 *
 * A template comes with a model and is not trusted. An operation that costs no steps lets a small
 * template run for hours, and a level that is not given back ends a long conversation. */
#include "jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

/* Variables: s has 640 bytes in ten words, w has 640 blanks, u 320 two-byte letters, l 100 numbers,
 * sl ten texts of 64 bytes, d 100 members, deep 100 nested lists. */
static struct json *vars;

static int make_variables(void **state)
{
    char word[65] = {0}, s[641] = "", w[641] = {0}, u[641] = {0}, name[8];
    memset(word, 'x', 63);
    word[63] = ' ';
    for (int i = 0; i < 10; i++)
        strcat(s, word);
    memset(w, ' ', 640);
    for (int i = 0; i < 320; i++)
        memcpy(u + 2 * i, "\xC3\xA9", 2);
    struct json *l = json_new_array(), *sl = json_new_array(), *d = json_new_object();
    struct json *deep = json_new_array();
    for (int i = 0; i < 100; i++) {
        json_push_int(l, i);
        if (i < 10)
            json_push_string(sl, word);
        snprintf(name, sizeof name, "k%d", i);
        json_put_int(d, name, i);
        struct json *outer = json_new_array();
        json_push(outer, deep);
        deep = outer;
    }
    vars = json_new_object();
    json_put_string(vars, "s", s);
    json_put_string(vars, "w", w);
    json_put_string(vars, "u", u);
    json_put(vars, "l", l);
    json_put(vars, "sl", sl);
    json_put(vars, "d", d);
    json_put(vars, "deep", deep);
    return 0;
}

static int free_variables(void **state)
{
    json_free(vars);
    return 0;
}

enum what { COMPILES, RENDERS };

/* Compiles a template, and renders it if asked to. Returns the code. */
static int try_it(const char *source, enum what what, const struct jinja_limits *limits,
                  struct err *err)
{
    struct jinja_template *t;
    char *text = NULL;
    size_t n;
    int rc = jinja_compile(&t, source, strlen(source), "t", limits, err);
    if (rc == 0 && what == RENDERS)
        rc = jinja_render(t, &(struct jinja_input){.vars = vars}, &text, &n, err);
    free(text);
    jinja_destroy(t);
    return rc;
}

static bool passes(const char *source, enum what what, bool of_steps, uint64_t most)
{
    struct jinja_limits l = jinja_default_limits();
    struct err err = {0};
    l.max_steps = of_steps ? most : l.max_steps;
    l.max_depth = of_steps ? l.max_depth : (uint32_t)most;
    int rc = try_it(source, what, &l, &err);
    const char *why = of_steps ? "takes more than" : "nested deeper than";
    if (rc != 0 && (rc != ERR_LIMIT || most > 1 << 26 || strstr(err.msg, why) == NULL))
        fail_msg("%.200s: %s", source, err.msg);
    return rc == 0;
}

/* Returns the smallest limit under which the template passes: of steps, or of levels. */
static uint64_t least(const char *source, enum what what, bool of_steps)
{
    uint64_t low = 0, high = 1;
    for (; !passes(source, what, of_steps, high); high *= 2)
        low = high;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (passes(source, what, of_steps, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Returns before, n times the piece, and after. The caller frees it. */
static char *many(const char *before, const char *piece, int n, const char *after)
{
    size_t k = strlen(piece);
    char *text = malloc(strlen(before) + (size_t)n * k + strlen(after) + 1);
    char *at = stpcpy(text, before);
    for (int i = 0; i < n; i++)
        at = stpcpy(at, piece);
    strcpy(at, after);
    return text;
}

/* --- steps -------------------------------------------------------------------------------- */

static uint64_t steps_of(const char *before, const char *piece, int n, const char *after,
                         enum what what)
{
    char *source = many(before, piece, n, after);
    uint64_t steps = least(source, what, true);
    free(source);
    return steps;
}

/* Returns the steps that running the statements once takes. They run 50 times, so that the run
 * takes more steps than the compilation, which has the same limit. */
static uint64_t steps_to_run(const char *statements)
{
    const char *loop = "{% for i in range(50) %}", *end = "{% endfor %}";
    uint64_t twice = steps_of(loop, statements, 2, end, RENDERS);
    uint64_t once = steps_of(loop, statements, 1, end, RENDERS);
    if ((twice - once) % 50 != 0)
        fail_msg("%s does not always take the same steps", statements);
    return (twice - once) / 50;
}

static const struct {
    const char *expression;
    uint64_t steps;
} expressions[] = {
    {"0", 1},
    {"s", 1},
    {"(1, 2)", 4},
    {"[1, 2, 3]", 6},
    {"{'a': 1, 'b': 2}", 7},
    {"1 + 2", 3},
    {"2 ** 3", 3},
    {"s + s", 25},
    {"s ~ 1", 16},
    {"1 < 2", 4},
    {"1 < 2 < 3", 6},
    {"not 1", 2},
    {"0 and 2", 2},
    {"1 and 2", 3},
    {"1 or 2", 2},
    {"0 or 2", 3},
    {"1 if 1 else 2", 3},
    {"1 if 0", 5},
    {"-1", 2},
    {"s[0]", 14},
    {"s[5:600]", 16},
    {"s[::2]", 577},
    {"u[300]", 14},
    {"l[5]", 3},
    {"l[1:90]", 39},
    {"l[::-1]", 44},
    {"d.k99", 15},
    {"d['k99']", 16},
    {"d.nope", 15},
    {"d.get('k5')", 17},
    {"d.items()", 141},
    {"d.keys()", 41},
    {"d.copy()", 3},
    {"l + l", 79},
    {"l * 3", 116},
    {"s * 2", 25},
    {"s == s", 15},
    {"s == w", 15},
    {"l == l", 104},
    {"sl == sl", 34},
    {"d == d", 1404},
    {"s < w", 15},
    {"l < l", 104},
    {"sl < sl", 34},
    {"s in s", 14},
    {"'x' in s", 4},
    {"'z' in s", 14},
    {"99 in l", 141},
    {"'z' in sl", 37},
    {"'k5' in d", 16},
    {"s.upper", 2},
    {"s.upper()", 643},
    {"s | upper", 642},
    {"s | lower", 642},
    {"s | capitalize", 642},
    {"s | title", 642},
    {"s.title()", 643},
    {"s.isupper()", 3},
    {"s is lower", 13},
    {"w.isspace()", 14},
    {"w | trim", 642},
    {"w.strip()", 643},
    {"w.strip(' x')", 644},
    {"w.lstrip('y')", 4},
    {"s.isdigit()", 14},
    {"s.isalpha()", 14},
    {"s.isalnum()", 14},
    {"s.removeprefix(s)", 15},
    {"s.removesuffix(s)", 15},
    {"s.startswith(s)", 15},
    {"s.startswith((s, w))", 18},
    {"s.endswith(w)", 15},
    {"s.find('z')", 16},
    {"s.find('x')", 6},
    {"s.rfind('zzzzzzzz')", 26},
    {"s.rfind('')", 16},
    {"s.index(' ')", 7},
    {"s.rindex(' ')", 16},
    {"s.count(' ')", 26},
    {"s.count('')", 5},
    {"s.split()", 27},
    {"s.split(' ')", 31},
    {"s.rsplit(' ')", 76},
    {"s.split(none, 2)", 20},
    {"s.split(' ', 2)", 12},
    {"s.partition(' ')", 9},
    {"s.rpartition(' ')", 18},
    {"s.splitlines()", 11},
    {"' '.join(sl)", 37},
    {"s.join(['', ''])", 21},
    {"s.replace('x', 'y')", 1899},
    {"s.replace(' ', '')", 49},
    {"s.replace('z', '')", 18},
    {"s.replace('', '-', 3)", 651},
    {"'7'.zfill(640)", 655},
    {"s | length", 13},
    {"u | length", 13},
    {"l | length", 2},
    {"l | first", 40},
    {"l | last", 40},
    {"l | list", 78},
    {"l | reverse", 78},
    {"s | reverse", 894},
    {"l | sum", 40},
    {"l | min", 139},
    {"l | max", 139},
    {"l | sort", 177},
    {"sl | sort", 677},
    {"sl | join", 35},
    {"l | join(s)", 1230},
    {"l | unique", 11330},
    {"sl | unique", 661},
    {"d | dictsort", 1348},
    {"d | items", 140},
    {"l | map('string')", 179},
    {"l | select", 78},
    {"l | select('odd')", 179},
    {"[d, d] | map(attribute='k50')", 37},
    {"[d] | selectattr('k50')", 21},
    {"[d] | rejectattr('k50', 'eq', 50)", 24},
    {"s | replace('x', 'y')", 1896},
    {"s | indent", 37},
    {"s | truncate(600)", 13},
    {"s | string", 2},
    {"l | string", 203},
    {"s | escape", 642},
    {"s | safe", 2},
    {"'%s' % s", 27},
    {"'%640d' % 7", 646},
    {"'%s%s' | format(s, s)", 53},
    {"s | tojson", 15},
    {"l | tojson", 203},
    {"d | tojson", 603},
    {"d | tojson(sort_keys=true)", 1523},
    {"l | tojson(indent=2)", 408},
    {"s | int", 4},
    {"s | float", 3},
    {"5 | round", 2},
    {"5 | abs", 2},
    {"none | default(s)", 3},
    {"s | attr('upper')", 3},
    {"5 is odd", 3},
    {"5 is divisibleby(5)", 4},
    {"s is defined", 2},
    {"s is string", 2},
    {"5 is in l", 47},
    {"s is eq s", 15},
    {"range(99)", 43},
    {"dict(a=1, b=2)", 10},
    {"dict(d)", 681},
    {"dict([('a', 1)])", 13},
    {"namespace(a=1)", 7},
    {"missing", 3},
    {"d.a is defined", 16},
};

/* The steps that an expression takes: one for each node, one for each operation on values, and one
 * more for each 64 bytes that an operation reads or writes. */
TEST(an_expression_takes_its_steps)
{
    uint64_t base = steps_to_run("{% set x = 0 %}") - 1; /* a number takes one step */
    size_t n_bad = 0;
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        char text[300];
        snprintf(text, sizeof text, "{%% set x = %s %%}", expressions[i].expression);
        uint64_t steps = steps_to_run(text) - base;
        if (steps != expressions[i].steps)
            print_error("    {\"%s\", %llu},\n", expressions[i].expression,
                        (unsigned long long)steps);
        n_bad += steps != expressions[i].steps;
    }
    assert_int_equal(n_bad, 0);
}

static const struct {
    const char *statements;
    uint64_t run, compile; /* steps of one run, and of the compilation of one copy */
} statements[] = {
    {"text", 0, 0},
    {"{{ s }}", 13, 7},
    {"{{ l }}", 203, 7},
    {"{{ u }}", 13, 7},
    {"{% if 1 %}a{% endif %}", 4, 12},
    {"{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}", 5, 26},
    {"{% for a in l %}{% endfor %}", 40, 14},
    {"{% for a in s %}{% endfor %}", 243, 14},
    {"{% for a in d %}{% endfor %}", 40, 14},
    {"{% for a, b in [(1, 2)] %}{% endfor %}", 9, 29},
    {"{% for a in l if a > 98 %}{% endfor %}", 440, 22},
    {"{% for a in [1] %}{{ loop.index }}{{ loop.length }}{% endfor %}", 13, 42},
    {"{% for a in l if a > 98 %}{{ loop.length }}{% endfor %}", 444, 36},
    {"{% for a in [1, 2] %}{% break %}{% endfor %}", 7, 28},
    {"{% for a in [1, 2] %}{% continue %}{% endfor %}", 8, 28},
    {"{% for a in [] %}{% else %}e{% endfor %}", 7, 20},
    {"{% set a, b = 1, 2 %}", 6, 25},
    {"{% set x %}{{ s }}{% endset %}", 14, 18},
    {"{% set x | upper %}{{ s }}{% endset %}", 654, 21},
    {"{% filter upper %}{{ s }}{% endfilter %}", 665, 17},
    {"{% with a = 1, b = 2 %}{% endwith %}", 3, 22},
    {"{% macro m(a, b=1) %}{{ a }}{% endmacro %}", 1, 29},
    {"{% macro m(a, b=1) %}{{ a }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}", 24, 65},
    {"{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}", 13, 40},
    {"{% generation %}x{% endgeneration %}", 3, 9},
    {"{% set ns = namespace(a=1) %}{% set ns.a = 2 %}", 11, 38},
    {"{# comment #}", 0, 0},
    {"{% raw %}{{ x }}{% endraw %}", 2, 2},
    {"{{ 'a\\n' 'b' }}", 3, 11},
    {"{{ 1.5e3 + 1_000 }}", 5, 12},
    {"{% set a1 = 1 %}{% set a2 = 1 %}{% set a3 = 1 %}{% set a4 = 1 %}{% set a5 = 1 %}{% "
     "set a6 = 1 %}{% set a7 = 1 %}{% set a8 = 1 %}{% set a9 = 1 %}{{ a1 }}",
     29, 125},
};

TEST(a_statement_takes_its_steps)
{
    size_t n_bad = 0;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        const char *s = statements[i].statements;
        uint64_t run = steps_to_run(s), compile = steps_of("", s, 4, "", COMPILES);
        compile -= steps_of("", s, 3, "", COMPILES);
        bool is_right = run == statements[i].run && compile == statements[i].compile;
        if (!is_right)
            print_error("    {\"%s\", %llu, %llu},\n", s, (unsigned long long)run,
                        (unsigned long long)compile);
        n_bad += !is_right;
    }
    assert_int_equal(n_bad, 0);
}

/* --- levels ------------------------------------------------------------------------------- */

/* Every level that an operation takes is given back: the same 600 times over, in the text and in a
 * loop, stays within 500 levels. */
TEST(levels_are_given_back)
{
    struct err err = {0};
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        char text[300], loop[400];
        snprintf(text, sizeof text, "{%% set x = %s %%}", expressions[i].expression);
        snprintf(loop, sizeof loop, "{%% for i in range(600) %%}%s{%% endfor %%}", text);
        char *source = many("", text, 600, "");
        if (try_it(source, COMPILES, NULL, &err) != 0 ||
            try_it(loop, RENDERS, NULL, &err) != 0)
            fail_msg("%s: %s", expressions[i].expression, err.msg);
        free(source);
    }
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        const char *s = statements[i].statements;
        char *source = many("", s, 600, "");
        char *loop = many("{% for i in range(600) %}", s, 1, "{% endfor %}");
        if (try_it(source, COMPILES, NULL, &err) != 0 ||
            try_it(loop, RENDERS, NULL, &err) != 0)
            fail_msg("%s: %s", s, err.msg);
        free(source);
        free(loop);
    }
}

/* The levels that one nesting more takes, in the compilation or, with a value, in the render. */
TEST(nesting_takes_its_levels)
{
    static const struct {
        const char *before, *opens, *inside, *closes, *after;
        enum what what;
        uint64_t levels; /* of 40 nestings */
    } rows[] = {
        {"{{ ", "(", "1", ")", " }}", COMPILES, 122},
        {"{{ ", "[", "", "]", " }}", COMPILES, 120},
        {"{{ ", "{1: ", "1", "}", " }}", COMPILES, 122},
        {"{{ ", "not ", "1", "", " }}", COMPILES, 43},
        {"{{ ", "- ", "1", "", " }}", COMPILES, 43},
        {"{{ ", "1 if 1 else ", "1", "", " }}", COMPILES, 43},
        {"{{ ", "range(", "1", ")", " }}", COMPILES, 82},
        {"{{ ", "s[", "1", "]", " }}", COMPILES, 82},
        {"{{ 1", "", "", ".x", " }}", COMPILES, 43},
        {"{{ 1", "", " ", " + 1", " }}", COMPILES, 43},
        {"{{ 1", "", " ", "|abs", " }}", COMPILES, 43},
        {"{{ 1", "", " ", " and 1", " }}", COMPILES, 43},
        {"{{ 1", "", " ", " < 1", " }}", COMPILES, 5},
        {"{% set ", "(", "a", ",)", " = 1 %}", COMPILES, 120},
        {"", "{% if 1 %}", "x", "{% endif %}", "", COMPILES, 42},
        {"", "{% for a in l %}", "x", "{% endfor %}", "", COMPILES, 42},
        {"", "{% macro m() %}", "x", "{% endmacro %}", "", COMPILES, 41},
        {"", "{% set x %}", "x", "{% endset %}", "", COMPILES, 42},
        {"", "{% filter trim %}", "x", "{% endfilter %}", "", COMPILES, 42},
        {"", "{% with %}", "x", "{% endwith %}", "", COMPILES, 41},
        {"", "{% call m() %}", "x", "{% endcall %}", "", COMPILES, 43},
        {"", "{% generation %}", "x", "{% endgeneration %}", "", COMPILES, 41},
        {"{{ deep", "", "", "", " }}", RENDERS, 102},
        {"{{ deep | tojson", "", "", "", " }}", RENDERS, 103},
        {"{{ deep == deep", "", "", "", " }}", RENDERS, 103},
        {"{{ [deep] < [deep]", "", "", "", " }}", RENDERS, 104},
        {"{{ deep in [deep]", "", "", "", " }}", RENDERS, 103},
        {"{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
         "", "", "", "", RENDERS, 166},
    };
    size_t n_bad = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *open = many(rows[i].before, rows[i].opens, 40, rows[i].inside);
        char *source = many(open, rows[i].closes, 40, rows[i].after);
        uint64_t levels = least(source, rows[i].what, false);
        if (levels != rows[i].levels)
            print_error("row %zu %s: %llu\n", i, rows[i].opens, (unsigned long long)levels);
        n_bad += levels != rows[i].levels;
        free(source);
        free(open);
    }
    assert_int_equal(n_bad, 0);
}

/* --- bytes -------------------------------------------------------------------------------- */

TEST(limits_are_those_of_the_manual)
{
    struct jinja_limits l = jinja_default_limits();
    assert_int_equal(l.max_steps, 20000000);
    assert_int_equal(l.max_depth, 500);
    assert_int_equal(l.max_source_bytes, 1 << 20);
    assert_int_equal(l.max_output_bytes, 64 << 20);
    assert_int_equal(l.max_memory_bytes, 512 << 20);
}

/* A source and an output of exactly the limit pass. One byte more does not. */
TEST(bytes_are_counted_exactly)
{
    static const char *const outputs[] = {"%s", "{{ '%s' }}",
                                          "{%% set x %%}%s{%% endset %%}",
                                          "{%% filter trim %%}%s{%% endfilter %%}",
                                          "{%% macro m() %%}%s{%% endmacro %%}{{ m() }}"};
    char text[2001];
    memset(text, 'x', 2000);
    text[2000] = 0;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        for (int more = 0; more < 2; more++) {
            char source[2200];
            struct err err = {0};
            struct jinja_limits l = jinja_default_limits();
            int doubled =
                i >= 3; /* a captured text counts when it is made and when it is printed */
            l.max_output_bytes = (doubled ? 4000 : 2000) - (size_t)more;
            snprintf(source, sizeof source, outputs[i], text);
            assert_int_equal(try_it(source, RENDERS, &l, &err), more ? ERR_LIMIT : 0);
            if (more)
                assert_non_null(strstr(err.msg, doubled
                                                    ? "t:1: prints more than 3999 bytes"
                                                    : "t:1: prints more than 1999 bytes"));
        }
    for (size_t more = 0; more < 2; more++) {
        struct err err = {0};
        struct jinja_limits l = jinja_default_limits();
        l.max_source_bytes = 2000 - more;
        assert_int_equal(try_it(text, COMPILES, &l, &err), more ? ERR_LIMIT : 0);
        assert_string_equal(err.msg, more ? "t: has 2000 bytes, more than 1999" : "");
    }
}

/* Text that is made doubles its room. Memory that the limit does not allow ends the render. */
TEST(memory_is_bounded)
{
    static const char *const sources[] = {
        "{{ 'x' * 100000 }}",
        "{{ s * 1000 }}",
        "{{ l * 1000 }}",
        "{{ range(99999) | list }}",
        "{% set ns = namespace(t='x') %}{% for i in range(20) %}{% set ns.t = ns.t + ns.t "
        "%}"
        "{% endfor %}",
        "{% set x %}{% for i in range(99999) %}xxxxxxxxxx{% endfor %}{% endset %}",
        "{{ s.replace('x', '0123456789' * 20) }}",
        "{{ (s * 100).split('x') | length }}",
        "{{ (w * 1000).splitlines() }}",
        "{{ '%0100000d' % 1 }}",
        "{% for i in range(99999) %}{% macro m() %}{% endmacro %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct err err = {0};
        struct jinja_limits l = jinja_default_limits();
        assert_int_equal(try_it(sources[i], RENDERS, &l, &err), 0);
        l.max_memory_bytes = 64 << 10;
        if (try_it(sources[i], RENDERS, &l, &err) != ERR_LIMIT)
            fail_msg("%s: %s", sources[i], err.msg);
        assert_non_null(strstr(err.msg, "needs more than 65536 bytes of memory"));
    }
}

int main(void)
{
    return unit_run(make_variables, free_variables);
}
