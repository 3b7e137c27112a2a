/* test_regex.c - regular expressions against PCRE2: random expressions over random texts, and the
 * places where ECMA-262 differs from PCRE. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"
#include <pcre2.h>

#include "base/rng.h"
#include "base/json.h"

/* Writes a random expression. */
static void expression(struct rng *r, int depth, char *out, size_t max)
{
    static const char *const atoms[] = {"a",     "b",     "c",   ".",      "[ab]",
                                        "[^a]",  "\\d",   "\\w", "[b-d1]", "é",
                                        "[à-ÿ]", "\\x61", "\\s"};
    static const char *const counts[] = {"",    "",      "*",     "+",    "?",
                                         "{2}", "{1,3}", "{0,2}", "{2,}", "*?"};
    char one[400], other[400];
    uint64_t kind = depth == 0 ? 0 : rng_below(r, 5);
    if (kind <= 1) {
        snprintf(out, max, "%s%s", atoms[rng_below(r, sizeof atoms / sizeof *atoms)],
                 counts[rng_below(r, sizeof counts / sizeof *counts)]);
        return;
    }
    expression(r, depth - 1, one, sizeof one);
    expression(r, depth - 1, other, sizeof other);
    if (kind == 2)
        snprintf(out, max, "%s%s", one, other);
    else if (kind == 3)
        snprintf(out, max, "(%s|%s)", one, other);
    else
        snprintf(out, max, "(?:%s)%s%s", one,
                 counts[rng_below(r, sizeof counts / sizeof *counts)], other);
}

TEST(test_against_pcre2)
{
    static const char *const letters[] = {
        "a", "b", "c", "d", "1", " ", "\xC3\xA9", "\xE2\x82\xAC", "\n", "_"};
    struct rng r = {.s = 3};
    for (int i = 0; i < 400; i++) {
        char body[1000], regex[1100], pattern[1200];
        struct grammar *g;
        struct err err = {0};
        int code;
        size_t offset;
        expression(&r, 3, body, sizeof body);
        snprintf(regex, sizeof regex, "%s%s%s", rng_below(&r, 3) ? "" : "^(?:", body, "");
        if (regex[0] == '^')
            strcat(regex, rng_below(&r, 2) ? ")$" : ")");
        snprintf(pattern, sizeof pattern, "^(?:%s)$", regex);
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &offset,
                                       NULL);
        assert_non_null(re);
        pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
        if (grammar_compile(&g,
                            &(struct grammar_source){
                                .kind = GRAMMAR_REGEX, .text = regex, .n = strlen(regex)},
                            &err) != 0)
            fail_msg("%s: %s", regex, err.msg);
        for (int k = 0; k < 40; k++) {
            char text[64] = "";
            for (uint64_t n = rng_below(&r, 8); n > 0; n--)
                strcat(text, letters[rng_below(&r, sizeof letters / sizeof *letters)]);
            bool want = pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, m, NULL) > 0;
            if (grammar_contains(g, text, strlen(text)) != want)
                fail_msg("%s on \"%s\": PCRE2 says %d", regex, text, want);
        }
        pcre2_match_data_free(m);
        pcre2_code_free(re);
        grammar_free(g);
    }
}

/* What a JSON schema's pattern means: somewhere in the text, by ECMA-262. */
TEST(test_patterns)
{
    static const struct {
        const char *pattern, *yes[4], *no[4];
    } rows[] = {
        {"a|^b$", {"\"xay\"", "\"b\""}, {"\"xb\"", "\"bb\""}},
        {"^$", {"\"\""}, {"\"a\"", "\"\\n\""}},
        {"^(?!admin)[a-z]+$", {"\"user\"", "\"adm\""}, {"\"admin\"", "\"administrator\""}},
        {"^(?=.*\\\\d)(?=.*[a-z]).{2,4}$",
         {"\"a1\"", "\"1a..\""},
         {"\"aa\"", "\"11\"", "\"a1...\""}},
        {"^\\\\p{Lu}\\\\p{Ll}*$", {"\"\xC3\x89t\xC3\xA9\""}, {"\"\xC3\xA9\"", "\"E1\""}},
        {"^[^\\\\s]$", {"\"a\"", "\"\xE2\x82\xAC\""}, {"\"\xC2\xA0\"", "\" \""}},
        {"^.$", {"\"\xF0\x9F\x98\x80\""}, {"\"\xE2\x80\xA8\"", "\"ab\""}},
        {"^\\\\u{1F600}\\\\cA$", {"\"\xF0\x9F\x98\x80\\u0001\""}, {"\"\xF0\x9F\x98\x80\""}},
        {"^a{,2}$", {"\"a{,2}\""}, {"\"aa\""}},
        {"^[\\\\w.-]+$", {"\"a-b.c\""}, {"\"a b\""}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char schema[300];
        struct json *v;
        struct grammar *g;
        struct err err = {0};
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"pattern\":\"%s\"}",
                 rows[i].pattern);
        assert_int_equal(json_parse(&v, schema, strlen(schema), "schema", &err), 0);
        if (grammar_compile(&g,
                            &(struct grammar_source){
                                .kind = GRAMMAR_SCHEMA, .schema = v, .loose = NULL},
                            &err) != 0)
            fail_msg("%s: %s", schema, err.msg);
        for (size_t k = 0; k < 4 && rows[i].yes[k] != NULL; k++)
            if (!grammar_contains(g, rows[i].yes[k], strlen(rows[i].yes[k])))
                fail_msg("%s does not match %s", rows[i].pattern, rows[i].yes[k]);
        for (size_t k = 0; k < 4 && rows[i].no[k] != NULL; k++)
            if (grammar_contains(g, rows[i].no[k], strlen(rows[i].no[k])))
                fail_msg("%s matches %s", rows[i].pattern, rows[i].no[k]);
        grammar_free(g);
        json_free(v);
    }
}

TEST(test_choice)
{
    static const char *const texts[] = {"yes", "no", "yesterday"};
    struct grammar *g;
    assert_int_equal(
        grammar_compile(
            &g, &(struct grammar_source){.kind = GRAMMAR_CHOICE, .texts = texts, .n = 3},
            NULL),
        0);
    assert_true(grammar_contains(g, "yes", 3) && grammar_contains(g, "yesterday", 9));
    assert_false(grammar_contains(g, "yest", 4) || grammar_contains(g, "", 0));
    grammar_free(g);
    assert_int_equal(
        grammar_compile(
            &g, &(struct grammar_source){.kind = GRAMMAR_CHOICE, .texts = texts, .n = 0},
            NULL),
        ERR_USAGE);
}

TEST(test_gbnf)
{
    static const struct {
        const char *text, *yes[4], *no[4];
    } rows[] = {
        {"root ::= \"a\" b? # one\nb ::= [x-z\\]]{2,3}\n",
         {"a", "axy", "a]]z"},
         {"ax", "axxxx", ""}},
        {"root ::= (\n  \"yes\" |\n  \"n\\u00f6\"\n)\n", {"yes", "n\xC3\xB6"}, {"no"}},
        {"# arithmetic\nroot ::= term ([-+] term)*\nterm ::= [0-9]+ | \"(\" root \")\"",
         {"1+2", "(1-(2))+3"},
         {"1+", "(1"}},
        {"root ::= .{2} \"\\x41\" [^a\\n]", {"\xC3\xA9zAb"}, {"zAb", "zzAa", "zzA\n"}},
        {"root ::= (\"a\"? \"b\"?)* \"c\"", {"c", "abbac"}, {"ab"}},
    };
    static const struct {
        const char *text;
        int code;
        const char *says;
    } bad[] = {
        {"root ::= root \"a\" | \"b\"", ERR_UNSUPPORTED, "left recursion"},
        {"root ::= a\na ::= \"x\"? root", ERR_UNSUPPORTED, "left recursion"},
        {"root ::= a", ERR_USAGE, "\"a\" is not defined"},
        {"a ::= \"x\"", ERR_USAGE, "no rule \"root\""},
        {"root ::= \"x", ERR_USAGE, "line 1"},
        {"root ::= \"x\"\nroot ::= \"y\"", ERR_USAGE, "defined twice"},
        {"root ::= [a", ERR_USAGE, "no end"},
        {"root ::= \"a\"{3,2}", ERR_USAGE, "a count"},
        {"root ::= \"a\" root", ERR_USAGE, "no text has this form"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar *g;
        struct err err = {0};
        if (grammar_compile(&g,
                            &(struct grammar_source){.kind = GRAMMAR_GBNF,
                                                     .text = rows[i].text,
                                                     .n = strlen(rows[i].text)},
                            &err) != 0)
            fail_msg("%s: %s", rows[i].text, err.msg);
        for (size_t k = 0; k < 4 && rows[i].yes[k] != NULL; k++)
            if (!grammar_contains(g, rows[i].yes[k], strlen(rows[i].yes[k])))
                fail_msg("%s does not allow %s", rows[i].text, rows[i].yes[k]);
        for (size_t k = 0; k < 4 && rows[i].no[k] != NULL; k++)
            if (grammar_contains(g, rows[i].no[k], strlen(rows[i].no[k])))
                fail_msg("%s allows %s", rows[i].text, rows[i].no[k]);
        grammar_free(g);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct grammar *g;
        struct err err = {0};
        int rc = grammar_compile(&g,
                                 &(struct grammar_source){.kind = GRAMMAR_GBNF,
                                                          .text = bad[i].text,
                                                          .n = strlen(bad[i].text)},
                                 &err);
        if (rc != bad[i].code || strstr(err.msg, bad[i].says) == NULL)
            fail_msg("%s: %d, %s", bad[i].text, rc, err.msg);
    }
}

/* Ranges of numbers against comparison, for all small decimals. */
TEST(test_ranges)
{
    static const double bounds[] = {-12, -10, -1.5, -1,  -0.05, 0,     0.05,
                                    0.5, 1,   9,    9.9, 10,    11.25, 100};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        for (int kind = 0; kind < 4; kind++) {
            static const char *const keys[] = {"minimum", "maximum", "exclusiveMinimum",
                                               "exclusiveMaximum"};
            char schema[100];
            struct json *v;
            struct grammar *g;
            snprintf(schema, sizeof schema, "{\"type\":\"number\",\"%s\":%g}", keys[kind],
                     bounds[i]);
            assert_int_equal(json_parse(&v, schema, strlen(schema), "schema", NULL), 0);
            assert_int_equal(
                grammar_compile(&g,
                                &(struct grammar_source){
                                    .kind = GRAMMAR_SCHEMA, .schema = v, .loose = NULL},
                                NULL),
                0);
            for (int hundredths = -1300; hundredths <= 10100;
                 hundredths += hundredths < 1300 ? 1 : 37) {
                char text[32];
                double x = hundredths / 100.0;
                bool want = kind == 0   ? x >= bounds[i]
                            : kind == 1 ? x <= bounds[i]
                            : kind == 2 ? x > bounds[i]
                                        : x < bounds[i];
                snprintf(text, sizeof text, "%g", x);
                if (grammar_contains(g, text, strlen(text)) != want)
                    fail_msg("%s and %s", schema, text);
            }
            grammar_free(g);
            json_free(v);
        }
    }
}
