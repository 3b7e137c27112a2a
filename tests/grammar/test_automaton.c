/* test_automaton.c - the mask of a state against the definition of a mask: each token is tried by
 * itself. The vocabulary is made of pieces that cross all borders of JSON. */
#include "grammar/automaton.h"
#include "grammar/form.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"
#include "tests/base/quotes.h"
#include "base/rng.h"
#include "base/json.h"

enum { N_TOKENS = 3000, N_SPECIAL = 7 };

static char *words[N_TOKENS];
static size_t n_words[N_TOKENS];

static const char *bytes_of(void *arg, int32_t id, size_t *n, bool *special)
{
    (void)arg;
    *special = id % 500 == N_SPECIAL + 300; /* no text spells them */
    *n = n_words[id];
    return id % 500 == N_SPECIAL ? NULL : words[id];
}

/* The 256 bytes, then sequences of pieces. */
static struct vocab *make_vocab(void)
{
    static const char *const pieces[] = {"a",        "b",
                                         "name",     "\"",
                                         "\\",       "\\\"",
                                         "{",        "}",
                                         "[",        "]",
                                         ",",        ":",
                                         " ",        "\n",
                                         "  ",       "\": ",
                                         "\": \"",   "\", \"",
                                         "\xC3\xA9", "\xC3",
                                         "\xA9",     "\xF0\x9F\x98\x80",
                                         "\xF0\x9F", "1",
                                         "23",       "0.5",
                                         "-",        "e",
                                         "true",     "null",
                                         "x",        "ab",
                                         "\\u00",    "e9",
                                         "\t",       "long word of many characters",
                                         "}}",       "]}",
                                         "\"}",      "\\ud83d",
                                         "\\uDE",    "00\\/"};
    struct rng r = {.s = 17};
    struct vocab *v;
    for (int i = 0; i < N_TOKENS; i++) {
        char text[200] = "";
        size_t n = i < 256 ? 1 : 0;
        text[0] = i < 256 ? (char)i : 0;
        for (uint64_t k = 0, m = 1 + rng_below(&r, 4); i >= 256 && k < m; k++) {
            const char *p = pieces[rng_below(&r, sizeof pieces / sizeof *pieces)];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        words[i] = malloc(n);
        memcpy(words[i], text, n);
        n_words[i] = n;
    }
    assert_int_equal(vocab_create(&v, N_TOKENS, bytes_of, NULL, NULL), 0);
    return v;
}

static struct vocab *vocab;

static int set_up(void **state)
{
    vocab = make_vocab();
    return 0;
}

static int tear_down(void **state)
{
    vocab_destroy(vocab);
    for (int i = 0; i < N_TOKENS; i++)
        free(words[i]);
    return 0;
}

static struct grammar *schema(const char *text)
{
    struct json *v;
    struct grammar *g;
    struct err err = {0};
    char *json = quotes_in(strdup(text));
    assert_int_equal(json_parse(&v, json, strlen(json), "schema", &err), 0);
    free(json);
    if (grammar_compile(
            &g,
            &(struct grammar_source){.kind = GRAMMAR_SCHEMA, .schema = v, .loose = NULL},
            &err) != 0)
        fail_msg("%s: %s", text, err.msg);
    json_free(v);
    return g;
}

/* Returns whether the text and then the token are the beginning of a text of the grammar. */
static bool allows(struct automaton *a, const char *text, size_t n, int32_t id)
{
    struct walk w;
    bool ok = true;
    assert_int_equal(walk_begin(&w, a), 0);
    assert_int_equal(walk_bytes(&w, text, n, &ok), 0);
    assert_true(ok);
    assert_int_equal(walk_token(&w, id, &ok), 0);
    walk_end(&w);
    return ok;
}

/* Writes random answers of allowed tokens, and compares each mask with the definition. */
static void check(const char *name, struct grammar *g, uint64_t seed)
{
    struct automaton *a = automaton_create(g, vocab), *judge = automaton_create(g, vocab);
    uint32_t *mask = calloc(vocab->n_words, sizeof *mask);
    struct rng r = {.s = seed};
    for (int answer = 0; answer < 6; answer++) {
        struct walk w;
        char text[4096];
        size_t n = 0;
        assert_int_equal(walk_begin(&w, a), 0);
        for (int step = 0; step < 25 && n < sizeof text - 200; step++) {
            int32_t chosen = -1;
            uint64_t n_allowed = 0;
            bool ok;
            assert_int_equal(walk_mask(&w, mask), 0);
            for (int32_t id = 0; id < N_TOKENS; id++) {
                bool has = mask_has(mask, id);
                if (has != allows(judge, text, n, id))
                    fail_msg("%s: behind \"%.*s\" token \"%.*s\" is %s", name, (int)n, text,
                             (int)n_words[id], words[id], has ? "allowed" : "forbidden");
                if (has && rng_below(&r, ++n_allowed) == 0)
                    chosen = id;
            }
            if (chosen < 0) {
                assert_true(walk_accepts(&w));
                assert_true(walk_is_complete(&w));
                break;
            }
            assert_int_equal(walk_token(&w, chosen, &ok), 0);
            assert_true(ok);
            memcpy(text + n, words[chosen], n_words[chosen]);
            n += n_words[chosen];
        }
        walk_end(&w);
    }
    free(mask);
    automaton_destroy(a);
    automaton_destroy(judge);
}

TEST(test_masks)
{
    static const char *const schemas[] = {
        "{}",
        "{'type':'object','properties':{'name':{'type':'string'},'ab':{'type':'integer'}},"
        "'required':['name'],'additionalProperties':false}",
        "{'type':'string'}",
        "{'type':'string','minLength':3,'maxLength':40}",
        "{'type':'string','maxLength':1000}",
        "{'type':'string','minLength':6}",
        "{'type':'string','pattern':'^(name|[a-z ]*)$'}",
        "{'type':'array','items':{'type':'string','maxLength':5},'minItems':2,'maxItems':"
        "300}",
        "{'type':'string','anyOf':[{'maxLength':4},{'pattern':'ab'}]}",
        "{'type':'object','additionalProperties':{'type':'string'},'properties':{'name':"
        "false}}",
        "{'type':'string','pattern':'x.{2,6}b'}",
        "{'type':'string','pattern':'^(name|ab)[a-z0-9 ]{1,9}$'}",
        "{'type':'string','pattern':'^[a-z0-9 ]{3,70}$'}",
        "{'type':'string','pattern':'^a[^b]{1,40}b.{1,20}$'}",
        "{'type':'string','pattern':'^[^ab]*(-[^1]+)*$','minLength':4}",
        "{'type':'string','pattern':'^\\\\p{L}+$','maxLength':30}",
        "{'type':'array','uniqueItems':true,'items':{'type':'string','pattern':'^[ab "
        "]{1,30}$'}}",
        "{'propertyNames':{'pattern':'name'},'properties':{'name':{'enum':['a','ab',1]}}}",
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        struct grammar *g = schema(schemas[i]);
        check(schemas[i], g, i + 1);
        grammar_free(g);
    }
}

TEST(test_gbnf_masks)
{
    static const char text[] = "root ::= line+\nline ::= [a-z ]{1,70} (\"{\" root? \"}\")* "
                               "| \"\\\"\" [^\"]* \"\\\"\"\n";
    struct grammar *g;
    assert_int_equal(
        grammar_compile(
            &g,
            &(struct grammar_source){.kind = GRAMMAR_GBNF, .text = text, .n = strlen(text)},
            NULL),
        0);
    check("gbnf", g, 5);
    grammar_free(g);
}

/* An automaton that forgets its states goes on with all walks where they were. */
TEST(test_forgetting)
{
    struct grammar *g = schema("{\"type\":\"string\",\"maxLength\":100000}");
    struct automaton *a = automaton_create(g, vocab);
    struct walk w, other;
    bool ok;
    assert_int_equal(walk_begin(&w, a), 0);
    assert_int_equal(walk_begin(&other, a), 0);
    assert_int_equal(walk_bytes(&other, "\"ab", 3, &ok), 0);
    assert_int_equal(walk_bytes(&w, "\"", 1, &ok), 0);
    for (int i = 0; i < 100000; i++) { /* each character is a state of its own */
        assert_int_equal(walk_bytes(&w, "a", 1, &ok), 0);
        assert_true(ok);
    }
    assert_int_equal(walk_bytes(&w, "a", 1, &ok), 0);
    assert_false(ok);
    assert_false(walk_accepts(&w));
    assert_int_equal(walk_bytes(&other, "c\"", 2, &ok), 0);
    assert_true(ok && walk_accepts(&other) && walk_is_complete(&other));
    walk_end(&w);
    walk_end(&other);
    automaton_destroy(a);
    grammar_free(g);
}

/* A form that begins behind a tag: before the first tag stands any text. */
TEST(test_after)
{
    static const char *const yes[] = {"x</t>null", "</t>\n null", "</</t></t>",
                                      "a\"</</t>null"};
    static const char *const no[] = {"null", "</t>x", "</t></t>null", "x</t>         null"};
    char special[5] = "";
    struct grammar *g;
    struct grammar_source s = {.kind = GRAMMAR_REGEX,
                               .text = "null|</t>",
                               .n = 9,
                               .thought = GRAMMAR_IN_THOUGHT,
                               .thought_close = {"</t>", 4}};
    assert_int_equal(grammar_compile(&g, &s, NULL), 0);
    for (size_t i = 0; i < 4; i++) {
        if (!grammar_contains(g, yes[i], strlen(yes[i])))
            fail_msg("%s", yes[i]);
        if (grammar_contains(g, no[i], strlen(no[i])))
            fail_msg("%s", no[i]);
    }
    grammar_free(g);
    vocab_special(N_SPECIAL, special);
    s.thought_close.at = special;
    assert_int_equal(grammar_compile(&g, &s, NULL), 0);
    assert_true(grammar_contains(g, "a</t>\xFF\0\0\7null", 13));
    assert_false(grammar_contains(g, "a</t>\xFF\0\0\6null", 13));
    assert_false(grammar_contains(g, "a</t>null", 9));
    grammar_free(g);
}

/* A form shared by two answers, which stand at different places. */
TEST(test_form)
{
    struct form *f = form_create(schema("{\"enum\":[\"a\",12]}"), vocab);
    struct form_place one = {0}, two = {0};
    const int32_t ends[] = {4, -1}; /* the byte 4 stands for an end of answers */
    const struct form_ends e = {.ids = ends, .n = 2};
    int32_t answer[] = {'"', 'a', '"'}, digits[] = {'1', '2'};
    float logits[N_TOKENS];
    struct err err = {0};
    for (int i = 0; i < N_TOKENS; i++)
        logits[i] = (float)i;
    assert_int_equal(form_shape(f, &one, answer, 0, e, N_TOKENS, logits, &err), 0);
    assert_true(logits['"'] == '"' && logits['1'] == '1' && isinf(logits['2']) &&
                isinf(logits[4]));
    assert_false(form_take(f, &two, digits, 1));
    assert_false(form_take(f, &one, answer, 2));
    assert_true(form_take(f, &one, answer, 3));
    assert_true(form_take(f, &two, digits, 2));
    /* A complete answer may only end, even if something else forbade its end. */
    for (int i = 0; i < N_TOKENS; i++)
        logits[i] = i == 4 ? -INFINITY : 1;
    assert_int_equal(form_shape(f, &two, digits, 2, e, N_TOKENS, logits, &err), 0);
    assert_true(logits[4] == 0 && isinf(logits['1']) && isinf(logits[N_TOKENS - 1]));
    assert_int_equal(
        form_shape(f, &two, digits, 2, (struct form_ends){0}, N_TOKENS, logits, &err),
        ERR_UNSUPPORTED);
    form_leave(&one);
    form_leave(&two);
    form_release(form_share(f));
    form_release(f);
}

/* Where a form leaves no choice, its text is guessed to the next choice, and each guess is allowed
 * where it stands. */
TEST(test_forced)
{
    static const struct {
        const char *schema, *text; /* what is guessed behind the bytes of `answer` */
        const char *answer;
        int most;
    } cases[] = {
        {"{\"enum\":[\"name\"]}", "\"name\"", "", 15},
        {"{\"enum\":[\"name\"]}", "ame\"", "\"n", 15},
        {"{\"enum\":[\"name\",\"1\"]}", "", "\"", 15},
        {"{\"enum\":[\"name\",\"1\"]}", "ame\"", "\"n", 15},
        {"{\"type\":\"null\"}", "null", "", 15},
        {"{\"enum\":[1]}", "", "1", 15}, /* the answer is complete */
        {"{\"type\":\"string\"}", "", "\"", 15},
        {"{\"enum\":[\"QRSTUVWXYZ\"]}", "\"QR", "", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct form *f = form_create(schema(cases[i].schema), vocab);
        struct form_place p = {0};
        int32_t ids[32];
        char text[64] = "";
        int n = 0;
        for (const char *c = cases[i].answer; *c != 0; c++)
            ids[n++] = (uint8_t)*c;
        int n_forced = form_forced(f, &p, ids, n, cases[i].most, ids + n);
        for (int k = 0; k < n_forced; k++) {
            float logits[N_TOKENS] = {0};
            assert_int_equal(form_shape(f, &p, ids, n + k, (struct form_ends){0}, N_TOKENS,
                                        logits, NULL),
                             0);
            assert_true(isfinite(logits[ids[n + k]]));
            strncat(text, words[ids[n + k]], n_words[ids[n + k]]);
        }
        if (strcmp(text, cases[i].text) != 0)
            fail_msg("%s behind '%s': '%s'", cases[i].schema, cases[i].answer, text);
        form_leave(&p);
        form_release(f);
    }
}

/* Whatever is chosen on the way, an answer is complete within its tokens if the shortest one is,
 * with the token that ends it. */
TEST(test_close)
{
    static const struct {
        const char *schema;
        int least; /* bytes of the shortest text */
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":3},"
         "\"b\":{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":\"null\"}}},"
         "\"required\":[\"a\",\"b\"]}",
         27},
        {"{\"type\":\"array\"}", 2},
        {"{\"type\":\"string\",\"pattern\":\"^[a-c]{4,9}-[0-9]+$\"}", 8},
        {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"array\","
         "\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"k\"]}},\"$ref\":\"#/$defs/"
         "n\"}",
         8},
    };
    uint32_t seed = 1;
    for (size_t i = 0; i < 4; i++)
        for (int more = 0; more < 40; more++) {
            struct form *f = form_create(schema(cases[i].schema), vocab);
            struct form_place p = {0};
            int32_t answer[80], end = 4;
            int n = 0, n_max = cases[i].least + 1 + more;
            bool ended = false;
            while (!ended && n < n_max) {
                float logits[N_TOKENS];
                int n_allowed = 0, t = 0;
                for (int k = 0; k < N_TOKENS; k++)
                    logits[k] = 1;
                struct form_ends e = {.ids = &end, .n = 1, .left = n_max - n};
                assert_int_equal(form_shape(f, &p, answer, n, e, N_TOKENS, logits, NULL),
                                 0);
                for (int k = 0; k < N_TOKENS; k++)
                    n_allowed += isfinite(logits[k]);
                seed = seed * 1664525 + 1013904223;
                int pick = (int)(seed >> 8) % n_allowed;
                while (!isfinite(logits[t]) || pick-- > 0)
                    t++;
                answer[n++] = t;
                ended = t == end || form_take(f, &p, answer, n);
            }
            if (!ended)
                fail_msg("case %zu is open after %d tokens", i, n_max);
            form_leave(&p);
            form_release(f);
        }
}

/* A walk that left the form allows nothing, and a token without bytes is never allowed. */
TEST(test_dead)
{
    struct grammar *g = schema("{\"type\":\"null\"}");
    struct automaton *a = automaton_create(g, vocab);
    uint32_t *mask = calloc(vocab->n_words, sizeof *mask);
    struct walk w;
    bool ok;
    assert_int_equal(walk_begin(&w, a), 0);
    assert_int_equal(walk_token(&w, N_SPECIAL, &ok), 0);
    assert_false(ok);
    assert_int_equal(walk_mask(&w, mask), 0);
    for (size_t i = 0; i < vocab->n_words; i++)
        assert_int_equal(mask[i], 0);
    assert_false(walk_accepts(&w));
    walk_end(&w);
    automaton_destroy(a);
    grammar_free(g);
    free(mask);
}

int main(void)
{
    return unit_run(set_up, tear_down);
}
