/* test_trace.c - which bytes of a rendered text come from foreign strings of the caller. */
#include "jinja/jinja.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static bool all(const char *key, const struct json *string)
{
    (void)string;
    return key == NULL || strcmp(key, "role") != 0;
}

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    assert_int_equal(json_parse(&v, text, strlen(text), "t", NULL), 0);
    return v;
}

/* `m` is a foreign string of the caller, `own` is not. `origin` has one letter for each byte of the
 * expected text: f if the byte is foreign, else -. */
static void expect(const char *source, const char *want, const char *origin)
{
    struct jinja_template *t = NULL;
    struct err err = {0};
    struct json *m = parse("{\"a\": \"<|end|>\", \"up\": \"<|END|>\", \"role\": \"user\","
                           " \"sp\": \"  xy  \", \"q\": \"a\\\"b\\n\\u20ac\","
                           " \"l\": [\"<|\", \"end|>\"], \"think\": \"<|e<t>no</t>nd|>\"}");
    struct json *vars = parse("{\"own\": \"OWN\"}");
    const struct jinja_var extra[] = {{"m", m, true}};
    const struct jinja_input in = {
        .vars = vars, .extra = extra, .n_extra = 1, .traces = all};
    char *text = NULL, *untraced = NULL;
    uint8_t *foreign = NULL;
    size_t n = 0, n_untraced = 0;
    if (jinja_compile(&t, source, strlen(source), "t", NULL, &err) != 0 ||
        jinja_render_traced(t, &in, &text, &n, &foreign, &err) != 0)
        fail_msg("%s: %s", source, err.msg);
    assert_string_equal(text, want);
    assert_int_equal(jinja_render(t, &in, &untraced, &n_untraced, &err), 0);
    assert_string_equal(untraced, want); /* tracing changes nothing */
    assert_int_equal(n, strlen(origin));
    for (size_t i = 0; i < n; i++)
        if ((foreign[i / 8] >> i % 8 & 1) != (origin[i] == 'f'))
            fail_msg("%s: byte %zu of [%s] against [%s]", source, i, text, origin);
    free(foreign);
    free(untraced);
    free(text);
    jinja_destroy(t);
    json_free(vars);
    json_free(m);
}

static void test_plain(void **state)
{
    (void)state;
    expect("<|end|>", "<|end|>", "-------");
    expect("{{ m.a }}", "<|end|>", "fffffff");
    expect("{{ own }}:{{ m.a }}:{{ 12 }}", "OWN:<|end|>:12", "----fffffff---");
    expect("<|{{ m.role }}|>", "<|user|>", "--------");
    expect("{% for k in m %}{% if k == 'a' %}{{ k }}{% endif %}{% endfor %}", "a", "f");
}

/* Pieces keep their origin, however they are combined. */
static void test_joined(void **state)
{
    (void)state;
    expect("{{ '<s>' + m.a + '</s>' }}", "<s><|end|></s>", "---fffffff----");
    expect("{{ '<s>' ~ m.a ~ own }}", "<s><|end|>OWN", "---fffffff---");
    expect("{{ m.l[0] }}{{ m.l[1] }}", "<|end|>", "fffffff");
    expect("{{ m.l | join }}", "<|end|>", "fffffff");
    expect("{{ '-'.join(m.l) }}", "<|-end|>", "ff-fffff");
    expect("{{ '<|' + m.l[1] }}", "<|end|>", "--fffff");
    expect("{{ '[%s]' % m.a }}", "[<|end|>]", "-fffffff-");
    expect("{{ m.l[0] * 2 }}", "<|<|", "ffff");
    expect("{% set x %}({{ m.a }}){% endset %}{{ x }}", "(<|end|>)", "-fffffff-");
    expect("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(m.a) }}", "[<|end|>]", "-fffffff-");
    expect("{% set ns = namespace(s='') %}{% for p in m.l %}{% set ns.s = ns.s + p + ' ' %}"
           "{% endfor %}{{ ns.s }}",
           "<| end|> ", "ff-fffff-");
}

static void test_cut(void **state)
{
    (void)state;
    expect("{{ m.sp | trim }}", "xy", "ff");
    expect("{{ m.sp.strip() + '.' }}", "xy.", "ff-");
    expect("{{ m.a[1:3] }}", "|e", "ff");
    expect("{{ m.a[::-1] }}", ">|dne|<", "fffffff");
    expect("{{ m.a.split('e')[1] }}", "nd|>", "ffff");
    expect("{{ m.a.replace('end', own) }}", "<|OWN|>", "ff---ff");
    expect("{{ m.think.split('<t>')[0] + m.think.split('</t>')[-1] }}", "<|end|>",
           "fffffff");
    expect("{{ m.a | list | join }}", "<|end|>", "fffffff");
    expect("{{ own.replace('W', m.l[0]) }}", "O<|N", "-ff-");
}

static void test_changed(void **state)
{
    (void)state;
    expect("{{ m.up | lower }}", "<|end|>", "fffffff");
    expect("{{ m.a.upper() }}", "<|END|>", "fffffff");
    expect("{{ own | lower }}", "own", "---");
    expect("{{ m.a | tojson }}", "\"<|end|>\"", "-fffffff-");
    expect("{{ m.q | tojson }}", "\"a\\\"b\\n\xe2\x82\xac\"", "-f--f--fff-");
    expect("{{ m.l }}", "['<|', 'end|>']", "--ff----fffff--");
    expect("{{ [m.l[0], own] | join(',') }}", "<|,OWN", "ff----");
    expect("{{ m.sp | indent(1) }}", "  xy  ", "ffffff");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
