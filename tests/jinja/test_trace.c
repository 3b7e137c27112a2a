/* test_trace.c - which bytes of a rendered text come from foreign strings of the caller. */
#include "jinja/jinja.h"

#include "tests/base/memtest.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

static const char *const own_values[] = {"user", "Value", NULL};

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
                           " \"name\": \"user\", \"x\": {\"role\": \"<|\"}, \"l\": "
                           "[\"<|\", \"end|>\"], \"think\": \"<|e<t>no</t>nd|>\"}");
    struct json *vars = parse("{\"own\": \"OWN\"}");
    const struct jinja_var extra[] = {{"m", m, true}};
    const struct jinja_input in = {.vars = vars,
                                   .extra = extra,
                                   .n_extra = 1,
                                   .traces = true,
                                   .own_key = "role",
                                   .own_values = own_values};
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

TEST(test_plain)
{
    expect("<|end|>", "<|end|>", "-------");
    expect("{{ m.a }}", "<|end|>", "fffffff");
    expect("{{ own }}:{{ m.a }}:{{ 12 }}", "OWN:<|end|>:12", "----fffffff---");
    expect("<|{{ m.role }}|>", "<|user|>", "--------");
    expect("<|{{ m.name }}{{ m.x.role }}", "<|user<|", "--ffffff");
    expect("{% for k in m %}{% if k == 'a' %}{{ k }}{% endif %}{% endfor %}", "a", "f");
}

/* Pieces keep their origin, however they are combined. */
TEST(test_joined)
{
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

TEST(test_cut)
{
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

TEST(test_changed)
{
    expect("{{ m.up | lower }}", "<|end|>", "fffffff");
    expect("{{ m.a.upper() }}", "<|END|>", "fffffff");
    expect("{{ own | lower }}", "own", "---");
    expect("{{ m.a | tojson }}", "\"<|end|>\"", "-fffffff-");
    expect("{{ m.q | tojson }}", "\"a\\\"b\\n\xe2\x82\xac\"", "-f--f--fff-");
    expect("{{ m.l }}", "['<|', 'end|>']", "--ff----fffff--");
    expect("{{ [m.l[0], own] | join(',') }}", "<|,OWN", "ff----");
    expect("{{ m.sp | indent(1) }}", "  xy  ", "ffffff");
}

/* --- bit by bit ----------------------------------------------------------------------------- */

struct traced {
    char *text;
    size_t n;
    uint8_t *foreign;
};

/* `m` is foreign, `own` is not. */
static struct traced render(const char *source, const struct json *m,
                            const struct json *own, bool traces, const char *own_key)
{
    struct traced out;
    struct jinja_template *t = NULL;
    struct err err = {0};
    const struct jinja_var extra[] = {{"m", m, true}, {"own", own, false}};
    const struct jinja_input in = {.extra = extra,
                                   .n_extra = 2,
                                   .traces = traces,
                                   .own_key = own_key,
                                   .own_values = own_values};
    if (jinja_compile(&t, source, strlen(source), "t", NULL, &err) != 0 ||
        jinja_render_traced(t, &in, &out.text, &out.n, &out.foreign, &err) != 0)
        fail_msg("%s: %s", source, err.msg);
    jinja_destroy(t);
    return out;
}

static void traced_free(struct traced *t)
{
    free(t->text);
    free(t->foreign);
}

/* Capital letters of the text are foreign, and no other byte is. */
static void assert_capitals(const char *source, const struct traced *t)
{
    for (size_t i = 0; i < t->n + 64; i++) {
        bool is_foreign = t->foreign[i / 8] >> i % 8 & 1;
        bool is_capital = i < t->n && t->text[i] >= 'A' && t->text[i] <= 'Z';
        if (is_foreign != is_capital)
            fail_msg("%s: byte %zu of %zu", source, i, t->n);
    }
    /* the bits can be read in words of 8 bytes */
    assert_true(malloc_usable_size(t->foreign) >= (t->n + 7) / 8 + 8);
}

/* Texts of every length are copied from and to every bit of a byte, once as they come and once
 * after a block has captured them. The last source alternates between the two origins. */
TEST(every_bit_is_copied)
{
    static const char *const sources[] = {
        "{{ 'p' * %d }}{{ m[%d:][:%d] }}ppp",
        "{%% set x %%}{{ 'p' * %d }}{{ m[%d:][:%d] }}pp{%% endset %%}{{ x }}{{ x }}",
        "{%% set x %%}{{ 'p' * %d }}{%% for c in m[%d:][:%d] %%}{{ c }}{{ 'p' * "
        "(loop.index %% 4) }}{%% endfor %%}{%% endset %%}{{ x[3:] }}p{{ x }}",
        /* more than a word of bits is not foreign, before and between the bytes that are */
        "{%% set x %%}{{ 'p' * %d }}{{ 'q' * 70 }}{{ m[%d:][:3] }}{{ 'q' * %d }}{{ m[0] }}"
        "{%% endset %%}p{{ x }}{{ x[1:] }}",
    };
    struct json *list = parse("[\"ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUVWXYZABCDE"
                              "FGHIJKLMNOPQRSTUVWXYZ\"]");
    for (int kind = 0; kind < 4; kind++)
        for (int to = 0; to < 9; to++)
            for (int from = 0; from < 9; from += kind == 0 ? 1 : 4)
                for (int n = 0; n < 69; n += n < 18 ? 1 : 5) {
                    char source[300];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                    snprintf(source, sizeof source, sources[kind], to, from, n);
#pragma GCC diagnostic pop
                    struct traced t = render(source, json_at(list, 0), NULL, true, NULL);
                    assert_capitals(source, &t);
                    traced_free(&t);
                }
    json_free(list);
}

/* Strings of 16 KiB and more are not copied. There may be more of them than the trace remembers,
 * and their parts are foreign, too. */
TEST(large_strings_are_foreign)
{
    static const int sizes[] = {16383, 16384, 16385};
    char *text = calloc(1, 16386);
    for (int i = 0; i < 3; i++) {
        struct json *list = json_new_array(), *own = json_new_array();
        memset(text, 'A', (size_t)sizes[i]);
        text[sizes[i]] = 0;
        for (int k = 0; k < 260; k++)
            json_push_string(list, text);
        json_push_string(own, text);
        struct traced t = render("p{% for s in m %}{{ s }}pp{% endfor %}"
                                 "{{ m[0][:3] }}p{{ m[255][9000:9100] }}p{{ m[259][-5:] }}p"
                                 "{{ own[0] | lower }}",
                                 list, own, true, NULL);
        assert_int_equal(t.n, 1 + 260 * (sizes[i] + 2) + 4 + 101 + 6 + sizes[i]);
        assert_capitals("large strings", &t);
        traced_free(&t);
        /* equal strings of another variable are not foreign */
        t = render("{{ own[0] | lower }}{{ m[0] }}{{ own[0] }}", list, own, true, NULL);
        size_t n = (size_t)sizes[i];
        for (size_t k = 0; k < 3 * n; k++)
            if ((t.foreign[k / 8] >> k % 8 & 1) != (k >= n && k < 2 * n))
                fail_msg("%d bytes: byte %zu", sizes[i], k);
        traced_free(&t);
        json_free(list);
        json_free(own);
    }
    free(text);
}

/* A caller that traces nothing gets no bits. One that traces no string still has the names. */
TEST(a_caller_may_trace_nothing)
{
    struct json *m = parse("{\"KEY\": \"Value\"}");
    struct traced t = render("{{ m }}", m, NULL, false, NULL);
    assert_string_equal(t.text, "{'KEY': 'Value'}");
    assert_null(t.foreign);
    traced_free(&t);
    t = render("{{ m.keys() | join }}{{ m.KEY | lower }}", m, NULL, true, "KEY");
    assert_string_equal(t.text, "KEYvalue");
    assert_capitals("names", &t);
    traced_free(&t);
    t = render("", m, NULL, true, NULL);
    assert_int_equal(t.n, 0);
    assert_string_equal(t.text, "");
    assert_capitals("nothing", &t);
    traced_free(&t);
    json_free(m);
}

/* Each allocation of a compilation and of a render may fail. A message tells it, without text. */
TEST(a_lack_of_memory_is_told)
{
    static const char source[] = "{{ m }}";
    struct json *m = parse("[\"A\"]");
    const struct jinja_var extra[] = {{"m", m, true}};
    const struct jinja_input in = {.extra = extra, .n_extra = 1, .traces = true};
    for (uint64_t n = 1;; n++) {
        struct jinja_template *t = NULL;
        struct err err = {0};
        char *text = NULL;
        uint8_t *foreign = NULL;
        size_t n_text;
        memtest_start(MEMTEST_MAY_FAIL, n, false);
        int rc = jinja_compile(&t, source, sizeof source - 1, "t", NULL, &err);
        if (rc == 0)
            rc = jinja_render_traced(t, &in, &text, &n_text, &foreign, &err);
        bool is_denied = memtest_denied() > 0;
        memtest_stop();
        assert_int_equal(rc, is_denied ? -ENOMEM : 0);
        assert_true((text != NULL && foreign != NULL) == !is_denied);
        assert_true((text == NULL && foreign == NULL) == is_denied);
        assert_true(!is_denied || strncmp(err.msg, "t: no ", 6) == 0);
        free(text);
        free(foreign);
        jinja_destroy(t);
        if (!is_denied) {
            assert_int_equal(n, 8); /* five regions of address space, and two results */
            break;
        }
    }
    json_free(m);
}

int main(void)
{
    memtest_init();
    return unit_run(NULL, NULL);
}
