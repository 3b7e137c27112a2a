/* test_schema.c - which texts a JSON schema allows, what is refused by name, and what malformed
 * schemas are told. Each row is a decision of docs/STRUCTURED.md. */
#include "grammar/automaton.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"
#include "base/textbuf.h"
#include "base/json.h"

/* Compiles a schema. Returns the code; the message is in *err. */
static int compile(struct grammar **g, const char *schema, struct textbuf *loose,
                   struct err *err)
{
    struct json *v;
    char text[4096];
    snprintf(text, sizeof text, "[%s]", schema); /* true and false are schemas, too */
    assert_int_equal(json_parse(&v, text, strlen(text), "schema", err), 0);
    int rc = grammar_compile(g,
                             &(struct grammar_source){.kind = GRAMMAR_SCHEMA,
                                                      .schema = json_at(v, 0),
                                                      .loose = loose},
                             err);
    json_free(v);
    return rc;
}

struct row {
    const char *schema;
    const char *yes[8], *no[8];
};

static void check_rows(void **state, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *g;
        struct err err = {0};
        if (compile(&g, rows[i].schema, NULL, &err) != 0)
            fail_msg("%s is refused: %s", rows[i].schema, err.msg);
        for (size_t k = 0; k < 8 && rows[i].yes[k] != NULL; k++)
            if (!grammar_contains(g, rows[i].yes[k], strlen(rows[i].yes[k])))
                fail_msg("%s does not allow %s", rows[i].schema, rows[i].yes[k]);
        for (size_t k = 0; k < 8 && rows[i].no[k] != NULL; k++)
            if (grammar_contains(g, rows[i].no[k], strlen(rows[i].no[k])))
                fail_msg("%s allows %s", rows[i].schema, rows[i].no[k]);
        grammar_free(g);
    }
}

#define CHECK_ROWS(rows) check_rows(state, rows, sizeof(rows) / sizeof *(rows))

TEST(test_types)
{
    static const struct row rows[] = {
        {"{\"type\":\"number\"}",
         {"1e307", "12345678e299", "1.6e308", "5e-324"},
         {"711589935e305", "1e309", "1.8e308"}}, /* no finite double */
        {"{\"type\":\"null\"}", {"null"}, {"nul", "0", "\"null\""}},
        {"{\"type\":[\"boolean\",\"null\"]}", {"true", "false", "null"}, {"True", "0"}},
        {"{\"type\":\"integer\"}",
         {"0", "-1", "12345678901234567890123"},
         {"-0", "01", "1.0", "1e2", "+1"}},
        {"{\"type\":\"number\"}",
         {"0", "-0", "1.50", "1e5", "2E-10", "-0.0"},
         {"1.", ".5", "1e400", "01"}},
        {"true", {"{}", "[1,{\"a\":null}]", "\"x\""}, {"", "{,}", "[1,]", "{\"a\"}"}},
        {"{\"not\":{\"type\":\"integer\"}}", {"1.5", "\"1\"", "[]"}, {"1", "-7"}},
    };
    CHECK_ROWS(rows);
}

TEST(test_numbers)
{
    static const struct row rows[] = {
        {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12}",
         {"-3", "0", "12"},
         {"-4", "13", "100", "-10"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":10}",
         {"0.51", "10", "10.0", "0.5000000000000001"},
         {"0.5", "0.50000000000000000001", "10.01", "0", "-1"}},
        {"{\"type\":\"number\",\"minimum\":-1.25}",
         {"-1.25", "-1.2", "0", "7"},
         {"-1.26", "-2"}},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":8}",
         {"14", "21", "70000"},
         {"7", "0", "15", "-14"}},
        /* exactly, in decimals: 0.07 is seven hundredths */
        {"{\"multipleOf\":0.01}",
         {"0.07", "-1.1", "3", "0.10", "12345678901234567890"},
         {"0.075", "0.070000000000000007", "0.700", "12345678901234.01"}},
        {"{\"multipleOf\":2.5,\"minimum\":0}", {"0", "2.5", "10"}, {"1.5", "5.5", "-2.5"}},
        {"{\"type\":\"integer\",\"multipleOf\":1.5}", {"3", "0"}, {"1", "1.5", "3.0"}},
        {"{\"allOf\":[{\"multipleOf\":0.4},{\"multipleOf\":0.25}]}",
         {"2", "-4"},
         {"0.4", "1"}},
        {"{\"type\":\"integer\",\"exclusiveMaximum\":true,\"maximum\":3}",
         {"2"},
         {"3"}}, /* draft 4 */
        {"{\"enum\":[1,2.5,-3]}", {"1", "2.5", "-3"}, {"2", "1.0", "3"}},
        {"{\"type\":\"integer\",\"not\":{\"const\":5}}", {"4", "55"}, {"5"}},
    };
    CHECK_ROWS(rows);
}

TEST(test_strings)
{
    static const struct row rows[] = {
        /* Lengths count characters of the parsed text, however they are spelled. */
        {"{\"type\":\"string\",\"format\":\"regex\"}",
         {"\"\"", "\"^a(b|c)+$\"", "\"[\\\\w.-]{1,64}(?=\\\\d)\"", "\"x{2,10}?|\\\\b\""},
         {"\"^(abc]\"", "\"a**\"", "\"[]\"", "\"\\\\a\"", "\"^*\"", "\"a{3,1}\""}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xC3\xA9\xC3\xA9\xC3\xA9\"", "\"\\n\\u00e9\"", "\"a\\ud83d\\ude00\"",
          "\"a\xF0\x9F\x98\x80z\""},
         {"\"a\"", "\"abcd\"", "\"\\u00e9\"", "\"\\ud83d\\ude00\"", "\"a\\ud83d\"",
          "\"ab"}},
        /* Patterns are not anchored, and are written in their shortest spelling. */
        {"{\"type\":\"string\",\"pattern\":\"b+$\"}",
         {"\"b\"", "\"aabb\"", "\"\\\"b\""},
         {"\"ba\"", "\"\\u0062\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\d{3}$\",\"not\":{\"const\":\"123\"}}",
         {"\"124\""},
         {"\"123\"", "\"12\""}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\""},
         {"\"2023-02-29\"", "\"2023-2-1\"", "\"2023-04-31\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\"}",
         {"\"2eb8aa08-AA98-11ea-b4aa-73b441d16380\""},
         {"\"2eb8aa08\""}},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}",
         {"\"127.0.0.1\""},
         {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
        /* Formats that the standard does not define are annotations. */
        {"{\"type\":\"string\",\"format\":\"int32\"}", {"\"x\""}, {"1"}},
        {"{\"type\":\"string\"}",
         {"\"\\/\\b\x7F\""},
         {"\"\x01\"", "\"\\x\"", "\"\xC3\"", "\"\xED\xA0\x80\""}},
    };
    CHECK_ROWS(rows);
}

TEST(test_objects)
{
    static const struct row rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{"
         "\"type\":\"null\"}},"
         "\"required\":[\"b\"],\"additionalProperties\":false}",
         {"{\"a\":1,\"b\":null}", "{\"b\":null}", "{ \"a\": 1, \"b\": null }",
          "{\n  \"b\": null\n}"},
         {"{\"b\":null,\"a\":1}", "{}", "{\"a\":1}", "{\"b\":null,\"c\":1}",
          "{\"b\" :null}", "{  \"b\":null}", "{\"b\":null,}"}},
        /* A key that is declared is never spelled with escapes, nor written twice. */
        {"{\"properties\":{\"ab\":{\"type\":\"integer\"}},\"type\":\"object\"}",
         {"{\"ab\":1,\"x\":[]}", "{\"abc\":\"y\"}", "{}"},
         {"{\"a\\u0062\":\"y\"}", "{\"ab\":\"y\"}", "{\"x\":1,\"ab\":1}",
          "{\"ab\":1,\"ab\":2}"}},
        {"{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"y$\":"
         "{\"minimum\":5}},"
         "\"additionalProperties\":{\"type\":\"null\"}}",
         {"{\"x\":1}", "{\"xy\":5}", "{\"y\":7.5}", "{\"q\":null}"},
         {"{\"x\":1.5}", "{\"xy\":4}", "{\"xy\":5.5}", "{\"q\":1}"}},
        /* Keys that only `required` names come in any order. */
        {"{\"type\":\"object\",\"required\":[\"a\",\"b\"]}",
         {"{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":0,\"a\":1}"},
         {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"maxProperties\":2,\"minProperties\":1}",
         {"{\"a\":1}", "{\"a\":1,\"b\":1}"},
         {"{}", "{\"a\":1,\"b\":1,\"c\":1}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2}}",
         {"{\"ab\":1}", "{}"},
         {"{\"abc\":1}"}},
        {"{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]}}",
         {"{\"b\":1}", "{\"a\":1,\"b\":1}", "{}"},
         {"{\"a\":1}", "{\"a\":1,\"c\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#\"}},"
         "\"additionalProperties\":false}",
         {"{\"k\":{\"k\":{}}}"},
         {"{\"k\":1}", "{\"k\":{\"k\":{}}"}},
    };
    CHECK_ROWS(rows);
}

TEST(test_arrays)
{
    static const struct row rows[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":1,\"maxItems\":3}",
         {"[null]", "[null, null,null]", "[ null ]"},
         {"[]", "[null,null,null,null]", "[1]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"integer\"}],"
         "\"items\":false}",
         {"[]", "[null]", "[null,1]"},
         {"[1]", "[null,1,1]"}},
        {"{\"type\":\"array\",\"contains\":{\"const\":1},\"items\":{\"type\":\"integer\"}}",
         {"[1]", "[2,1,3]"},
         {"[]", "[2]", "[1,null]"}},
        {"{\"type\":\"array\",\"items\":{\"not\":{\"enum\":[1]}},\"contains\":{\"enum\":[1,"
         "2]}}",
         {"[2]", "[3,2]"},
         {"[1]", "[3,1]"}},
        {"{\"type\":\"array\",\"contains\":{\"const\":1},\"minContains\":0,\"maxContains\":"
         "1}",
         {"[]", "[1]", "[2,1,3]", "[null]"},
         {"[1,1]", "[1,2,1]"}},
    };
    CHECK_ROWS(rows);
}

TEST(test_combinations)
{
    static const struct row rows[] = {
        {"{\"anyOf\":[{\"type\":\"integer\",\"minimum\":5},{\"const\":\"x\"}]}",
         {"5", "\"x\""},
         {"4", "\"y\""}},
        /* Where two of oneOf overlap, a value that matches both is left out. */
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}",
         {"1", "2.5", "\"s\""},
         {"3", "1.5"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}}},{\"properties\":{\"a\":{"
         "\"type\":\"integer\"}}}],"
         "\"type\":\"object\",\"required\":[\"a\"]}",
         {"{\"a\":3}"},
         {"{\"a\":2}", "{\"a\":3.5}", "{}"}},
        {"{\"if\":{\"properties\":{\"k\":{\"const\":\"n\"}}},\"then\":{\"required\":[\"n\"]"
         "},\"else\":{\"required\":[\"m\"]},"
         "\"type\":\"object\",\"required\":[\"k\"],\"properties\":{\"k\":{\"type\":"
         "\"string\"},\"n\":{},\"m\":{}}}",
         {"{\"k\":\"n\",\"n\":1}", "{\"k\":\"z\",\"m\":1}"},
         {"{\"k\":\"n\"}", "{\"k\":\"z\",\"n\":1}"}},
        {"{\"not\":{\"required\":[\"a\"]},\"type\":\"object\"}",
         {"{}", "{\"b\":1}"},
         {"{\"a\":1}"}},
        {"{\"$ref\":\"#/$defs/"
         "n\",\"$defs\":{\"n\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}}}",
         {"[]", "[[],[[]]]"},
         {"[1]"}},
        {"{\"$defs\":{\"a\":{\"$anchor\":\"x\",\"type\":\"null\"}},\"$ref\":\"#x\"}",
         {"null"},
         {"1"}},
        {"{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false,\"type\":\"object\"}",
         {"{\"a\":1}"},
         {"{\"b\":1}"}},
    };
    CHECK_ROWS(rows);
}

/* Returns whether a text of the schema begins so. */
static bool begins(const char *schema, const char *text)
{
    struct grammar *g;
    struct walk w;
    struct err err = {0};
    bool ok;
    assert_int_equal(compile(&g, schema, NULL, &err), 0);
    struct automaton *a = automaton_create(g, NULL);
    assert_true(walk_begin(&w, a) == 0 && walk_bytes(&w, text, strlen(text), &ok) == 0);
    walk_end(&w);
    automaton_destroy(a);
    grammar_free(g);
    return ok;
}

/* Items differ, and nothing leads to where only used ones remain. */
TEST(test_unique)
{
    static const struct row rows[] = {
        {"{\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"ab\",1]}}",
         {"[]", "[\"a\",\"ab\",1]", "[ \"ab\",\n 1, \"a\" ]"},
         {"[\"a\",\"a\"]", "[\"ab\", 1,\"ab\"]"}},
        {"{\"uniqueItems\":true,\"maxItems\":1,\"contains\":{}}",
         {"[\"\\u0061\"]"},
         {"[1,2]", "[]"}},
        {"{\"uniqueItems\":true}",
         {"[1,1.5,\"1\",[1],[[1]],{}]", "[{\"a\":1,\"b\":2},{\"a\":2,\"b\":1}]"},
         {"[1,1.0]", "[\"a\",\"\\u0061\"]", "[[1], [ 1]]", "[{\"a\":1},{\"a\": 1}]",
          "[{\"a\":1,\"a\":1}]", "[{\"b\":1,\"a\":2}]"}},
        {"{\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"maxLength\":2}}",
         {"[\"\",\"a\",\"aa\",\"ab\"]", "[\"\xC3\xA9\",\"\xC3\xA8\"]"},
         {"[\"ab\",\"ab\"]", "[\"\",\"\"]", "[\"\xC3\xA9\",\"\xC3\xA9\"]"}},
    };
    const char *booleans = "{\"uniqueItems\":true,\"items\":{\"type\":\"boolean\"}}";
    CHECK_ROWS(rows);
    assert_true(begins(booleans, "[true,false"));
    assert_false(begins(booleans, "[true,false,"));
}

/* A length beside a pattern is counted, and no text is begun that its length cannot end. */
TEST(test_counted_patterns)
{
    static const struct row rows[] = {
        {"{\"type\":\"string\",\"pattern\":\"b$\",\"maxLength\":3}",
         {"\"b\"", "\"aab\"", "\"\xC3\xA9\\nb\""},
         {"\"\"", "\"aaab\"", "\"aaa\"", "\"ba\""}},
        {"{\"type\":\"string\",\"pattern\":\"^x-\",\"minLength\":3,\"maxLength\":60000}",
         {"\"x-1\""},
         {"\"x-\""}},
        /* lengths with gaps that hold fewer numbers than the bounds allow, and with larger ones */
        {"{\"pattern\":\"^(abcd.*)?$\",\"type\":\"string\",\"maxLength\":5}",
         {"\"\"", "\"abcd\"", "\"abcde\""},
         {"\"abcdef\"", "\"a\""}},
        {"{\"pattern\":\"^(abcd)*$\",\"type\":\"string\",\"minLength\":2,\"maxLength\":6}",
         {"\"abcd\""},
         {"\"\"", "\"abcdabcd\""}},
        {"{\"pattern\":\"^(abcd)*$\",\"type\":\"string\",\"minLength\":7,\"maxLength\":9}",
         {"\"abcdabcd\""},
         {"\"abcd\"", "\"abcdabcdabcd\""}},
    };
    CHECK_ROWS(rows);
    assert_false(begins(rows[3].schema, "\"abcda"));
    assert_true(begins(rows[0].schema, "\"aab"));
    assert_false(begins(rows[0].schema, "\"aa\\")); /* only a "b" is left room for */
}

TEST(test_refusals)
{
    static const struct {
        const char *schema;
        int code;
        const char *says;
    } rows[] = {
        {"{\"uniqueItems\":true,\"contains\":{}}", ERR_UNSUPPORTED, "uniqueItems"},
        /* an element might not find a value that the others left */
        {"{\"uniqueItems\":true,\"type\":\"array\",\"minItems\":2,\"prefixItems\":[{"
         "\"enum\":[1,2]},"
         "{\"const\":1}]}",
         ERR_UNSUPPORTED, "uniqueItems"},
        {"{\"uniqueItems\":true,\"type\":\"array\",\"minItems\":3,\"items\":{\"type\":"
         "\"string\","
         "\"pattern\":\"^[ab]$\"}}",
         ERR_USAGE, "no text has this form"},
        {"{\"type\":\"number\",\"multipleOf\":1.2345}", ERR_UNSUPPORTED, "multipleOf"},
        {"{\"$ref\":\"http://example.com/x\"}", ERR_UNSUPPORTED, "nothing is fetched"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", ERR_UNSUPPORTED,
         "back reference"},
        {"{\"type\":\"string\",\"pattern\":\"a\\\\b\"}", ERR_UNSUPPORTED, "word boundary"},
        {"{\"$ref\":\"#\"}", ERR_UNSUPPORTED, "leads back to itself"},
        {"{\"type\":\"strin\"}", ERR_USAGE, "type"},
        {"{\"minLength\":-1}", ERR_USAGE, "minLength"},
        {"{\"required\":[1]}", ERR_USAGE, "required"},
        {"{\"properties\":[]}", ERR_USAGE, "properties"},
        {"{\"properties\":{\"a\":3}}", ERR_USAGE, "a schema must be"},
        {"{\"$ref\":\"#/$defs/none\"}", ERR_USAGE, "leads nowhere"},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", ERR_USAGE, "malformed"},
        {"false", ERR_USAGE, "no text has this form"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", ERR_USAGE,
         "no text has this form"},
        {"{\"type\":\"string\",\"pattern\":\"(((a{100}){100}){100}){100}\"}", ERR_LIMIT,
         "too large"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar *g;
        struct err err = {0};
        int rc = compile(&g, rows[i].schema, NULL, &err);
        if (rc != rows[i].code || strstr(err.msg, rows[i].says) == NULL)
            fail_msg("%s: %d, \"%s\"", rows[i].schema, rc, err.msg);
        assert_null(g);
    }
}

TEST(test_loose)
{
    struct grammar *g;
    struct err err = {0};
    struct textbuf loose = {0};
    const char *text = "[1,1]",
               *schema = "{\"items\":{\"type\":\"number\",\"multipleOf\":1.2345},"
                         "\"uniqueItems\":true,\"contains\":{}}";
    assert_int_equal(compile(&g, schema, &loose, &err), 0);
    assert_string_equal(loose.p, "uniqueItems, multipleOf");
    assert_true(grammar_contains(g, text, strlen(text)));
    textbuf_free(&loose);
    grammar_free(g);
}
