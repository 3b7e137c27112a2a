/* test_json_scan.c - a text's cost is known before it is parsed; ignored members cost nothing. */
#include "tests/unit.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/json.h"
#include "base/json_scan.h"

static bool is_user(const void *arg, const char *name, size_t n)
{
    return n == strlen(arg) && memcmp(name, arg, n) == 0;
}

/* Returns `before`, then `piece` n times, separated by commas, then `after`. */
static char *many(const char *before, const char *piece, size_t n, const char *after)
{
    size_t n_piece = strlen(piece), at = strlen(before);
    char *text = xmalloc(at + n * (n_piece + 1) + strlen(after) + 1);
    memcpy(text, before, at);
    for (size_t i = 0; i < n; i++) {
        memcpy(text + at, piece, n_piece);
        at += n_piece;
        if (i + 1 < n)
            text[at++] = ',';
    }
    memcpy(text + at, after, strlen(after) + 1);
    return text;
}

static size_t taken(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static size_t cost_of(const char *text)
{
    size_t cost = 0;
    char *copy = xstrdup(text);
    assert_int_equal(json_scan(copy, strlen(copy), NULL, NULL, "it", &cost, NULL), 0);
    assert_string_equal(copy, text);
    free(copy);
    return cost;
}

/* Inputs that are small as text and large as a parsed tree. The estimate is never below the memory
 * that the parse takes, and not far above it. */
TEST(the_cost_is_what_a_parse_takes)
{
    static const char *const pieces[] = {
        "{}",
        "[]",
        "0",
        "1.5",
        "null",
        "true",
        "\"\"",
        "\"x\"",
        "[[]]",
        "{\"\":{}}",
        "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9}",
        "[0,0,0,0,0,0,0,0,0]",
        "{\"role\":\"user\",\"content\":\"x\"}",
        "\"0123456789012345678901234567890123456789\"",
        "[1,[2,[3,[4,[5]]]]]"};
    if (taken() == 0) {
        print_message("skipped: this allocator (a sanitizer's) does not count\n");
        skip();
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct json *j = NULL;
        char *text = many("[", pieces[i], 10000, "]");
        size_t cost = cost_of(text), before = taken();
        assert_int_equal(json_parse(&j, text, strlen(text), "it", NULL), 0);
        size_t real = taken() - before;
        json_free(j);
        if (real > cost || cost > 3 * real + 100000)
            fail_msg("%s: the scan says %zu, the parse took %zu", pieces[i], cost, real);
        free(text);
    }
}

/* Members of one object need distinct names. */
TEST(the_cost_of_members)
{
    for (size_t n = 1; n < 20000; n = n * 3 / 2 + 1) {
        char *text = xmalloc(n * 16 + 2), *at = text;
        struct json *j = NULL;
        *at++ = '{';
        for (size_t i = 0; i < n; i++)
            at += sprintf(at, "\"%zu\":0,", i);
        at[-1] = '}';
        *at = 0;
        size_t cost = cost_of(text), before = taken();
        assert_int_equal(json_parse(&j, text, strlen(text), "it", NULL), 0);
        assert_true(taken() - before <= cost);
        json_free(j);
        free(text);
    }
}

TEST(ignored_members_cost_nothing)
{
    static const char *const values[] = {"{}", "[[{}]]", "\"a\\u0041\\\"\"", "-1.5e+3",
                                         "null"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char *text = many("{\"n\": 7, \"user\": [", values[i], 10000, "] , \"s\": \"x\"}");
        size_t n = strlen(text), cost;
        struct json *j = NULL;
        int64_t seven;
        assert_int_equal(json_scan(text, n, is_user, "user", "it", &cost, NULL), 0);
        assert_true(cost < 2000);
        assert_int_equal(strlen(text), n);
        assert_int_equal(json_parse(&j, text, n, "it", NULL), 0);
        assert_int_equal(json_count(j), 3);
        assert_true(json_int_of(json_member(j, "n"), &seven) && seven == 7);
        assert_string_equal(json_string_of(json_member(j, "s"), NULL), "x");
        assert_int_equal(json_kind(json_member(j, "user")), JSON_KIND_INT);
        json_free(j);
        free(text);
    }
    /* Deeper members, and members with other names, stay. */
    char text[] =
        "{\"a\": {\"user\": [1]}, \"us\\u0065r\": [2], \"users\": [3], \"user\": 4}";
    size_t cost;
    assert_int_equal(json_scan(text, strlen(text), is_user, "user", "it", &cost, NULL), 0);
    assert_string_equal(text,
                        "{\"a\": {\"user\": [1]}, \"us\\u0065r\": [2], \"users\": [3], "
                        "\"user\": 0}");
}

TEST(what_is_no_json_is_refused)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "1",
                                      "\"a\"",
                                      "[",
                                      "{",
                                      "[1",
                                      "[1,",
                                      "[1,]",
                                      "[,1]",
                                      "[1 2]",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "{a:1}",
                                      "{1:1}",
                                      "[01]",
                                      "[-]",
                                      "[1.]",
                                      "[.5]",
                                      "[1e]",
                                      "[+1]",
                                      "[tru]",
                                      "[nul",
                                      "[\"a]",
                                      "[\"\\x\"]",
                                      "[\"\\u12\"]",
                                      "[\"\\ud800\"]",
                                      "[\"\\ud800\\u0041\"]",
                                      "[\"\\udc00\"]",
                                      "[\"\t\"]",
                                      "[\"\xff\"]",
                                      "[\"\xc3\"]",
                                      "[1] 2",
                                      "[1]]",
                                      "{\"a\":1]",
                                      "[\"\\",
                                      "[NaN]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *alone = xstrdup(bad[i]);
        char *inside = xasprintf("{\"user\": %s}", bad[i]);
        struct err err = {0};
        struct json *j = NULL;
        size_t cost;
        assert_int_equal(json_scan(alone, strlen(alone), NULL, NULL, "it", &cost, &err),
                         ERR_FORMAT);
        assert_true(strncmp(err.msg, "it: ", 4) == 0);
        assert_int_equal(json_parse(&j, bad[i], strlen(bad[i]), "it", NULL), ERR_FORMAT);
        /* the scan refuses bad[i], too, whether its member is ignored or not */
        if (json_parse(&j, inside, strlen(inside), "it", NULL) != 0)
            assert_int_equal(
                json_scan(inside, strlen(inside), is_user, "user", "it", &cost, NULL),
                ERR_FORMAT);
        json_free(j);
        free(alone);
        free(inside);
    }
}

/* Compares json_scan with json_parse on before + TEXT + after, for every TEXT of at most n bytes of
 * the alphabet. */
static void agree_on_all(const char *before, const char *alphabet, size_t n,
                         const char *after)
{
    size_t n_letters = strlen(alphabet), n_texts = 1;
    for (size_t len = 0; len <= n; len++, n_texts *= n_letters)
        for (size_t t = 0; t < n_texts; t++) {
            char middle[8] = {0}, text[64], copy[64];
            for (size_t i = 0, rest = t; i < len; i++, rest /= n_letters)
                middle[i] = alphabet[rest % n_letters];
            snprintf(text, sizeof text, "%s%s%s", before, middle, after);
            memcpy(copy, text, sizeof copy);
            struct json *j = NULL;
            size_t cost;
            int scanned = json_scan(copy, strlen(copy), NULL, NULL, "it", &cost, NULL);
            if (scanned != json_parse(&j, text, strlen(text), "it", NULL))
                fail_msg("json_scan returns %d for %s, json_parse does not", scanned, text);
            json_free(j);
        }
}

TEST(a_scan_accepts_exactly_the_texts_that_a_parse_accepts)
{
    agree_on_all("[", "01-+.eE", 5, "]");
    agree_on_all("", "[]{},:\"1 ", 5, "");
    agree_on_all("{\"", "a\":, {}\\", 4, "1}");
    agree_on_all("[\"\\", "ubnx\\\"/0", 4, "\"]");
    agree_on_all("[\"\\u", "0dDcCe8gG", 4, "\"]");
    agree_on_all("[\"\\ud83d\\u", "0dDbBcef", 4, "\"]");
    agree_on_all("[\"\\u000", "/09:@AFG`afg", 1, "\"]");
    agree_on_all("[\"\\u", "09afAF", 4, "\"]");
    agree_on_all("[", "truefals", 4, "]");
}

/* What a text costs is the sum of its values' costs. */
TEST(the_cost_is_exact)
{
    static const struct {
        const char *text;
        size_t cost;
    } rows[] = {{"{}", 240},
                {"[]", 144},
                {" [ ] ", 144},
                {"[1]", 144 + 24 + 32},
                {"[1, -2.5e3]", 144 + 2 * (24 + 32)},
                {"[true, false, null]", 144 + 3 * 24},
                {"[\"\"]", 144 + 24 + 80 + 2},
                {"[\"abc\\n\"]", 144 + 24 + 80 + 7},
                {"{\"abc\": 1}", 240 + 144 + 3 + 32},
                {"{\"\": {\"k\": []}}", 240 + 144 + 240 + 144 + 1 + 144},
                {"[[], {}]", 144 + 2 * 24 + 144 + 240}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(cost_of(rows[i].text), rows[i].cost);
    char text[] = "{\"user\": [[[1]]], \"b\": 2}";
    size_t cost;
    assert_int_equal(json_scan(text, strlen(text), is_user, "user", "it", &cost, NULL), 0);
    assert_int_equal(cost, 240 + 2 * (144 + 32) + 4 + 1);
    assert_string_equal(text, "{\"user\": 0      , \"b\": 2}");
}

/* A refusal names its reason and its place. */
TEST(a_refusal_says_why_and_where)
{
    static const struct {
        const char *text;
        size_t n; /* 0: the length of the text */
        const char *message;
    } rows[] = {
        {"", 0, "'{' or '[' was expected, at byte 0"},
        {" 1", 0, "'{' or '[' was expected, at byte 1"},
        {"[1] 2", 0, "text follows its end, at byte 4"},
        {"[\"a", 0, "a string does not end, at byte 3"},
        {"[\"a\0\"]", 6, "a control character stands in a string, at byte 3"},
        {"[\"a\x1f\"]", 0, "a control character stands in a string, at byte 3"},
        {"[\"a\xff\"]", 0, "the text is not valid UTF-8, at byte 3"},
        {"[\"\\x\"]", 0, "an escape is not one of JSON's, at byte 3"},
        {"[\"\\", 0, "an escape is not one of JSON's, at byte 3"},
        {"[\"\\u12g4\"]", 0, "an escape does not stand for a character, at byte 6"},
        {"[\"\\udc00\"]", 0, "an escape does not stand for a character, at byte 8"},
        {"[\"\\ud800\"]", 0, "an escape is half of a surrogate pair, at byte 8"},
        {"[\"\\ud800\\n\"]", 0, "an escape is half of a surrogate pair, at byte 9"},
        {"[\"\\ud800\\u0041\"]", 0, "an escape is half of a surrogate pair, at byte 14"},
        {"[-]", 0, "a number has no digits, at byte 2"},
        {"[1.]", 0, "a number has no digits after its point, at byte 3"},
        {"[1e+]", 0, "a number has no digits in its exponent, at byte 4"},
        {"[trux]", 0, "a value was expected, at byte 1"},
        {"{1}", 0, "a string was expected, at byte 1"},
        {"{\"a\" 1}", 0, "':' was expected, at byte 5"},
        {"{\"a\": 1 2}", 0, "',' or '}' was expected, at byte 8"},
        {"[1 2]", 0, "',' or ']' was expected, at byte 3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char copy[40], want[100];
        size_t n = rows[i].n != 0 ? rows[i].n : strlen(rows[i].text), cost;
        struct err err = {0};
        memcpy(copy, rows[i].text, n);
        snprintf(want, sizeof want, "it: %s", rows[i].message);
        assert_int_equal(json_scan(copy, n, NULL, NULL, "it", &cost, &err), ERR_FORMAT);
        assert_string_equal(err.msg, want);
    }
}

TEST(depth_is_bounded)
{
    char text[2 * JSON_MAX_DEPTH + 3];
    size_t cost;
    for (int extra = 0; extra < 2; extra++) {
        size_t n = JSON_MAX_DEPTH + (size_t)extra;
        memset(text, '[', n);
        memset(text + n, ']', n);
        assert_int_equal(json_scan(text, 2 * n, NULL, NULL, "it", &cost, NULL),
                         extra == 0 ? 0 : ERR_FORMAT);
    }
}

TEST(a_member_is_found_without_a_parse)
{
    static const struct {
        const char *text, *value;
    } cases[] = {
        {"{\"model\":\"a\"}", "a"},
        {" { \"x\" : [{\"model\":\"no\"},\"}\"] , \"model\" : \"a\\/b\", \"broken", "a/b"},
        {"{\"model\":7}", NULL},
        {"{\"models\":\"a\",\"mode\":\"b\"}", NULL},
        {"{\"y\":{\"model\":\"a\"}}", NULL},
        {"{\"x\" \"model\":\"a\"}", NULL},
        {"{\"model\":\"a\\u0000b\"}", NULL},
        {"[\"model\",\"a\"]", NULL},
        {"{\"model\":\"a", NULL},
        {"{", NULL},
    };
    assert_null(json_find_text(NULL, 0, "model"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *got = json_find_text(cases[i].text, strlen(cases[i].text), "model");
        if (cases[i].value == NULL)
            assert_null(got);
        else
            assert_string_equal(got, cases[i].value);
        free(got);
    }
}
