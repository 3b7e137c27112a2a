/* test_json.c - strict reading, typed getters and their messages, writing. */
#include "base/json.h"
#include "base/textbuf.h"

#include "tests/base/memtest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

static struct json *parse(const char *text)
{
    struct err err = {0};
    struct json *root = NULL;
    if (json_parse(&root, text, strlen(text), "t.json", &err) != 0)
        fail_msg("%s", err.msg);
    return root;
}

static void refuse(const char *text, size_t n, const char *part_of_message)
{
    struct err err = {0};
    struct json *root = NULL;
    assert_int_equal(json_parse(&root, text, n, "t.json", &err), ERR_FORMAT);
    assert_null(root);
    assert_ptr_equal(strstr(err.msg, "t.json"), err.msg);
    if (strstr(err.msg, part_of_message) == NULL)
        fail_msg("'%s' is not in: %s", part_of_message, err.msg);
}

#define REFUSE(text, part) refuse(text, sizeof(text) - 1, part)

TEST(test_refusals)
{
    REFUSE("", "'[' or '{' expected");
    REFUSE("{\"a\": 1", "near end of file");
    REFUSE("{\"a\": 1, \"a\": 2}", "duplicate object key");
    REFUSE("{\"a\": 1} x", "end of file expected");
    REFUSE("{\"a\": \"\xff\"}", "unable to decode byte 0xff");
    REFUSE("{\"a\": \"\xc0\x80\"}", "unable to decode byte 0xc0");
    REFUSE("{\"a\": \"\\ud800\"}", "invalid Unicode");
    REFUSE("[1e999]", "real number overflow");
    REFUSE("[NaN]", "invalid token");
    REFUSE("{\"a\": 1,}", "string or '}' expected");
    REFUSE("[1]\0", "end of file expected");
}

TEST(test_depth)
{
    char text[600];
    memset(text, '[', 300);
    memset(text + 300, ']', 300);
    refuse(text, 600, "nested deeper than 128 levels");
    struct json *root;
    assert_int_equal(json_parse(&root, text + 300 - 128, 256, "t", NULL), 0);
    json_free(root);
    refuse(text + 300 - 129, 258, "nested deeper than 128 levels");
    /* what has ended does not count */
    char *flat = calloc(1, 4000), *at = flat;
    *at++ = '[';
    for (int i = 0; i < 500; i++, at += 6)
        memcpy(at, "[{}]  ", 6);
    for (char *c = flat + 6; c < at; c += 6)
        *c = ',';
    memcpy(at, "1]", 3);
    assert_int_equal(json_parse(&root, flat, strlen(flat), "t", NULL), 0);
    assert_int_equal(json_count(root), 501);
    json_free(root);
    free(flat);
    /* Brackets inside strings do not count, and an escaped quote does not end a string. */
    memset(text, '[', sizeof text);
    memcpy(text, "[\"\\\"", 4);
    memcpy(text + 598, "\"]", 2);
    assert_int_equal(json_parse(&root, text, 600, "t", NULL), 0);
    json_free(root);
}

TEST(test_getters)
{
    struct json *o = parse("{\"i\": 7, \"r\": 1.5, \"b\": true, \"s\": \"x\", \"n\": null,"
                           " \"z\": \"a\\u0000b\", \"a\": [1, 2], \"o\": {\"k\": 2.0}}");
    struct err err = {0};
    int64_t i = 0;
    double r = 0;
    bool b = false;
    const char *s = NULL;
    const struct json *v = NULL;
    assert_int_equal(json_get_int(o, "i", 0, 10, &i, &err), 0);
    assert_int_equal(i, 7);
    assert_int_equal(json_get_real(o, "r", &r, &err), 0);
    assert_true(r == 1.5);
    assert_int_equal(json_get_real(o, "i", &r, &err), 0);
    assert_true(r == 7);
    assert_int_equal(json_get_bool(o, "b", &b, &err), 0);
    assert_true(b);
    assert_int_equal(json_get_string(o, "s", &s, &err), 0);
    assert_string_equal(s, "x");
    assert_int_equal(json_get_array(o, "a", &v, &err), 0);
    assert_int_equal(json_count(v), 2);
    assert_null(json_at(v, 2));
    assert_int_equal(json_get_object(o, "o", &v, &err), 0);

    i = 99; /* a missing member and a null member leave the default */
    assert_int_equal(json_opt_int(o, "absent", 0, 1, &i, &err), 0);
    assert_int_equal(json_opt_int(o, "n", 0, 1, &i, &err), 0);
    assert_int_equal(i, 99);

    assert_int_equal(json_get_int(o, "absent", 0, 1, &i, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'absent' is missing");
    assert_int_equal(json_get_int(o, "s", 0, 1, &i, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'s' must be an integer, it is a string");
    assert_int_equal(json_get_int(o, "i", 0, 5, &i, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'i' is 7, it must lie in 0..5");
    assert_int_equal(json_get_bool(o, "i", &b, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'i' must be a boolean, it is an integer");
    assert_int_equal(json_get_string(o, "z", &s, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'z' contains a zero byte");
    assert_int_equal(json_get_object(o, "a", &v, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'a' must be an object, it is an array");
    assert_int_equal(json_get_int(o, "r", 0, 5, &i, &err), ERR_FORMAT);

    size_t n = 0;
    assert_non_null(json_string_of(json_member(o, "z"), &n));
    assert_int_equal(n, 3);
    /* NULL, because a C string would be cut at the NUL byte */
    assert_null(json_string_of(json_member(o, "z"), NULL));
    assert_non_null(json_string_of(json_member(o, "s"), NULL));
    json_free(o);
}

/* Each getter of an optional member takes its value, leaves the default where it is missing or
 * null, and refuses another type. */
TEST(test_optional_members)
{
    struct json *o = parse(
        "{\"r\": 1.5, \"b\": true, \"s\": \"x\", \"n\": null, \"a\": [1],"
        " \"o\": {\"k\": 2}, \"i\": 7}");
    static const char *const none[] = {"absent", "n"};
    struct err err = {0};
    for (int i = 0; i < 2; i++) {
        double r = 9;
        bool b = true;
        const char *s = "mine";
        const struct json *a = o, *v = o;
        assert_int_equal(json_opt_real(o, none[i], &r, &err), 0);
        assert_int_equal(json_opt_bool(o, none[i], &b, &err), 0);
        assert_int_equal(json_opt_string(o, none[i], &s, &err), 0);
        assert_int_equal(json_opt_array(o, none[i], &a, &err), 0);
        assert_int_equal(json_opt_object(o, none[i], &v, &err), 0);
        assert_true(r == 9 && b && strcmp(s, "mine") == 0 && a == o && v == o);
    }
    int64_t i = 0;
    double r = 0;
    bool b = false;
    const char *s = NULL;
    const struct json *a = NULL, *v = NULL;
    assert_int_equal(json_opt_int(o, "i", 7, 7, &i, &err), 0);
    assert_int_equal(json_opt_real(o, "r", &r, &err), 0);
    assert_int_equal(json_opt_bool(o, "b", &b, &err), 0);
    assert_int_equal(json_opt_string(o, "s", &s, &err), 0);
    assert_int_equal(json_opt_array(o, "a", &a, &err), 0);
    assert_int_equal(json_opt_object(o, "o", &v, &err), 0);
    assert_true(i == 7 && r == 1.5 && b && strcmp(s, "x") == 0);
    assert_true(a == json_member(o, "a") && v == json_member(o, "o"));
    assert_int_equal(json_opt_int(o, "i", 8, 9, &i, &err), ERR_FORMAT);
    assert_int_equal(json_opt_int(o, "i", 1, 6, &i, &err), ERR_FORMAT);
    assert_int_equal(json_opt_real(o, "b", &r, &err), ERR_FORMAT);
    assert_int_equal(json_opt_bool(o, "r", &b, &err), ERR_FORMAT);
    assert_int_equal(json_opt_string(o, "a", &s, &err), ERR_FORMAT);
    assert_int_equal(json_opt_array(o, "o", &a, &err), ERR_FORMAT);
    assert_int_equal(json_opt_object(o, "s", &v, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'s' must be an object, it is a string");
    assert_int_equal(json_get_array(o, "absent", &a, &err), ERR_FORMAT);
    json_drop(o, "s");
    assert_null(json_member(o, "s"));
    assert_int_equal(json_count(o), 6);
    json_free(o);
}

/* Every kind has a name for messages. A missing value counts as null. */
TEST(test_kinds_have_names)
{
    struct json *o = parse("[null, true, 1, 1.5, \"\", [], {}]");
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "an array",  "an object"};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(json_kind(json_at(o, i)), JSON_KIND_NULL + (int)i);
        assert_string_equal(json_kind_name(json_at(o, i)), names[i]);
    }
    assert_int_equal(json_kind(NULL), JSON_KIND_NULL);
    assert_null(json_at(o, 7));
    json_free(o);
}

/* Parses the text with the n-th allocation denied, alone or with all after it. Returns whether
 * there was such an allocation. */
static bool is_refused_without(const char *text, uint64_t n, bool all_after)
{
    char want[60];
    struct err err = {0};
    struct json *root;
    snprintf(want, sizeof want, "t.json: no memory to read its %zu bytes", strlen(text));
    memtest_start(MEMTEST_MAY_FAIL, n, all_after);
    int rc = json_parse(&root, text, strlen(text), "t.json", &err);
    bool is_denied = memtest_denied() > 0;
    memtest_stop();
    assert_int_equal(rc, is_denied ? -ENOMEM : 0);
    assert_int_equal(root == NULL, is_denied);
    assert_string_equal(err.msg, is_denied ? want : "");
    json_free(root);
    return is_denied;
}

/* A parse may fail for lack of memory at any allocation, also in the middle of a token, at its last
 * byte and behind it. It then says so, and leaves nothing. */
TEST(test_memory)
{
    const char *small = "{\"a\": [1, 2.5, \"text\", null], \"b\": {\"c\": \"d\\u00e9\"},"
                        " \"big\": 12345678901234567890, \"e\": true}";
    for (int all_after = 0; all_after < 2; all_after++) {
        uint64_t n = 1;
        while (is_refused_without(small, n, all_after))
            n++;
        assert_true(n > 10);
        for (int len = 1; len<140; len += len> 66 ? 29 : 1)
            for (int kind = 0; kind < 4; kind++) {
                static const char *const around[] = {"[%s]", "[1,%s, 2]", "[\"%s\"]",
                                                     "{\"%s\":\"\xC3\xA9\"}"};
                char token[150] = "", text[200];
                memset(token, kind < 2 ? '7' : 'x', (size_t)len);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                snprintf(text, sizeof text, around[kind], token);
#pragma GCC diagnostic pop
                for (n = 1; is_refused_without(text, n, all_after); n++)
                    ;
                assert_true(n > 4);
            }
    }
    /* a text of more than one of jansson's buffers, of 1024 bytes */
    char *text = malloc(8000), *at = stpcpy(text, "[\"");
    memset(at, 'y', 3000);
    strcpy(at + 3000, "\", 1]");
    for (uint64_t n = 1; is_refused_without(text, n, false); n++)
        ;
    free(text);
    /* a tree is made from the reserve */
    memtest_start(MEMTEST_RESERVED, 1, true);
    struct json *o = json_new_object();
    json_put_string(o, "a", "b");
    memtest_stop();
    assert_string_equal(json_string_of(json_member(o, "a"), NULL), "b");
    json_free(o);
}

/* tokenizer_config.json writes "no limit" as 10^30. */
TEST(test_huge_integers)
{
    struct json *o = parse("{\"max\": 1000000000000000019884624838656, \"k\": 12,"
                           " \"odd\": 9007199254740993000}");
    struct err err;
    int64_t i = 0;
    double r = 0;
    assert_int_equal(json_get_int(o, "k", 0, 100, &i, &err), 0);
    assert_int_equal(i, 12);
    assert_int_equal(json_get_real(o, "max", &r, &err), 0);
    assert_true(r > 9e29);
    assert_int_equal(json_get_int(o, "max", 0, INT64_MAX, &i, &err), ERR_FORMAT);
    assert_int_equal(json_get_int(o, "odd", 0, INT64_MAX, &i, &err), 0);
    assert_true(i == 9007199254740993000);
    json_free(o);
    /* All digits stay, and other numbers and texts stay what they are. */
    static const char same[] =
        "{\"a\": [18446744073709551615, -9223372036854775809, 9223372036854775808, 7, "
        "1.5], "
        "\"18446744073709551615\": \"18446744073709551615 \\\" 99999999999999999999\"}";
    o = parse(same);
    char *text = json_text(o, 0);
    assert_string_equal(text, same);
    free(text);
    text = json_text_exact(o);
    assert_string_equal(text, same);
    free(text);
    struct json *reals = parse("[0.1, 1e300, 2.0, 0.12345678901234568, -1e-7]");
    text = json_text_exact(reals);
    assert_string_equal(text, "[0.1, 1e+300, 2.0, 0.12345678901234568, -1e-07]");
    free(text);
    json_free(reals);
    const struct json *list = json_member(o, "a");
    size_t n = 0;
    assert_int_equal(json_kind(json_at(list, 0)), JSON_KIND_INT);
    assert_false(json_int_of(json_at(list, 0), &i));
    assert_true(json_real_of(json_at(list, 0), &r) && r == 0x1p64);
    assert_string_equal(json_big_of(json_at(list, 0), &n), "18446744073709551615");
    assert_int_equal(n, 20);
    assert_null(json_string_of(json_at(list, 0), &n));
    assert_null(json_big_of(json_at(list, 3), &n));
    json_free(o);
}

/* An integer beyond 64 bits makes no malformed text valid: no number with a zero in front, and none
 * in place of a name. It makes no text invalid that has a real with many digits. */
TEST(test_big_integers_beside_others)
{
    static const char *const bad[] = {
        "[00000000000001974782266]", "[18446744073709551615, 01]",
        "[-09999999999999999999]",   "{99999999999999999999: 1}",
        "[99999999999999999999-1]",  "{\"a\": 1, 99999999999999999999 : 2}"};
    struct json *v = NULL;
    struct err err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(json_parse(&v, bad[i], strlen(bad[i]), "it", &err), ERR_FORMAT);
    static const char zero[] = "[1\0, true\0]"; /* jansson skips these */
    assert_int_equal(json_parse(&v, zero, sizeof zero - 1, "it", &err), ERR_FORMAT);
    assert_string_equal(err.msg, "it: a zero byte at 2");
    v = parse("[18446744073709551615, 0.12345678901234567890, 1.5e-3, \"1:2\"]");
    size_t n;
    double r;
    assert_string_equal(json_big_of(json_at(v, 0), &n), "18446744073709551615");
    assert_true(json_real_of(json_at(v, 1), &r) && r > 0.12 && r < 0.13);
    json_free(v);
}

/* A double stands for an integer if it holds it exactly: up to 2^53. */
TEST(test_reals_that_are_integers)
{
    static const struct {
        const char *text;
        bool is_int;
        int64_t value;
    } rows[] = {{"[2.0]", true, 2},
                {"[-2e3]", true, -2000},
                {"[2.5]", false, 0},
                {"[-0.0]", true, 0},
                {"[9007199254740992.0]", true, 9007199254740992},
                {"[-9007199254740992.0]", true, -9007199254740992},
                {"[9007199254740994.0]", false, 0},
                {"[-9007199254740994.0]", false, 0},
                {"[1e300]", false, 0},
                {"[9223372036854775807]", true, INT64_MAX},
                {"[-9223372036854775808]", true, INT64_MIN},
                {"[\"2\"]", false, 0},
                {"[null]", false, 0},
                {"[true]", false, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct json *o = parse(rows[i].text);
        int64_t v = 77;
        assert_int_equal(json_int_of(json_at(o, 0), &v), rows[i].is_int);
        assert_int_equal(v, rows[i].is_int ? rows[i].value : 77);
        json_free(o);
    }
}

/* The plain getters refuse every other kind and leave the caller's value alone. */
TEST(test_plain_getters)
{
    struct json *o = parse("[null, true, 1, 1.5, \"s\", [3], {\"k\": 4}]");
    for (size_t i = 0; i < 7; i++) {
        const struct json *v = json_at(o, i);
        bool b = false;
        double r = 77;
        size_t n = 99;
        assert_int_equal(json_bool_of(v, &b), i == 1);
        assert_int_equal(b, i == 1);
        assert_int_equal(json_real_of(v, &r), i == 2 || i == 3);
        assert_true(r == (i == 2 ? 1 : i == 3 ? 1.5 : 77));
        assert_int_equal(json_string_of(v, &n) != NULL, i == 4);
        assert_int_equal(n, i == 4 ? 1 : 99);
        assert_int_equal(json_string_of(v, NULL) != NULL, i == 4);
        assert_int_equal(json_count(v), i >= 5);
        assert_int_equal(json_at(v, 0) != NULL, i == 5);
        assert_int_equal(json_member(v, "k") != NULL, i == 6);
        struct json_iter it = json_begin(v);
        assert_int_equal(json_next(&it), i == 6);
        assert_false(json_next(&it));
    }
    json_free(o);
    json_free(NULL);
    o = parse("{\"r\": 1, \"b\": false}");
    bool b = true;
    double r = 0;
    struct err err = {0};
    assert_int_equal(json_opt_bool(o, "b", &b, &err), 0);
    assert_false(b);
    assert_int_equal(json_get_real(o, "none", &r, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'none' is missing");
    assert_int_equal(json_get_bool(o, "none", &b, &err), ERR_FORMAT);
    const char *s = NULL;
    const struct json *v = NULL;
    assert_int_equal(json_get_string(o, "none", &s, &err), ERR_FORMAT);
    assert_int_equal(json_get_object(o, "none", &v, &err), ERR_FORMAT);
    assert_int_equal(json_get_array(o, "r", &v, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "'r' must be an array, it is an integer");
    json_free(o);
}

TEST(test_iteration_keeps_order)
{
    struct json *o = parse("{\"z\": 1, \"a\": 2, \"m\": 3}");
    char keys[4] = {0};
    int n = 0;
    struct json_iter it = json_begin(o);
    while (json_next(&it))
        keys[n++] = it.key[0];
    assert_string_equal(keys, "zam");
    json_free(o);
    it = json_begin(NULL);
    assert_false(json_next(&it));
}

/* A tree with raw text is written, byte for byte, like one with the same values. */
TEST(raw_text_is_written_as_its_values)
{
    static const char text[] = "{\"a\": [1, -2.5, 1e300, \"q\\\"\\\\\\n\\u0001\u00e9/\", "
                               "true, null, {}, []], \"k\\\"y\": {\"x\": 0.1}}";
    struct json *parsed = NULL, *with = json_new_object(), *without = json_new_object();
    assert_int_equal(json_parse(&parsed, text, strlen(text), "t", NULL), 0);
    for (int i = 0; i < 2; i++) {
        struct json *o = i == 0 ? with : without, *list = json_new_array();
        json_put_string(o, "before \"it\"", "line\none");
        json_put_real(o, "x", 1.0 / 3);
        json_put(o, "value",
                 i == 0 ? json_new_raw(text, strlen(text)) : json_share(parsed));
        json_push(list, i == 0 ? json_new_raw("[]", 2) : json_new_array());
        json_push(list, json_new_int(-7));
        json_push(list, json_new_real(1e-9));
        json_put(o, "list", list);
    }
    char *a = json_text(with, 0), *b = json_text(without, 0);
    assert_string_equal(a, b);
    free(a);
    free(b);
    /* the only raw value may be deep in lists and objects */
    struct json *lists = json_new_array(), *inner = json_new_array(),
                *o = json_new_object();
    json_put(o, "raw", json_new_raw("{}", 2));
    json_push(inner, json_new_int(1));
    json_push(inner, o);
    json_push(lists, json_new_array());
    json_push(lists, inner);
    a = json_text(lists, 0);
    assert_string_equal(a, "[[], [1, {\"raw\": {}}]]");
    free(a);
    json_free(lists);
    inner = json_new_raw("7", 1);
    a = json_text(inner, 0);
    assert_string_equal(a, "7");
    free(a);
    json_free(inner);
    json_free(with);
    json_free(without);
    json_free(parsed);
}

/* The bytes that mark raw text are not UTF-8. So a client cannot send them, and in a text of the
 * program itself they are replaced. */
TEST(no_string_from_outside_is_raw)
{
    static const char marked[] = "\xFF\xFE{\"injected\": true}";
    static const char sent[] = "[\"\xFF\xFE{}\"]";
    struct json *parsed = NULL, *o = json_new_object();
    assert_int_equal(json_parse(&parsed, sent, strlen(sent), "t", NULL), ERR_FORMAT);
    json_put_bytes(o, "text", marked, strlen(marked));
    json_put(o, "raw",
             json_new_raw("1", 1)); /* the writer of raw text writes the whole tree */
    char *text = json_text(o, 0);
    assert_string_equal(
        text,
        "{\"text\": \"\xEF\xBF\xBD\xEF\xBF\xBD{\\\"injected\\\": true}\", \"raw\": 1}");
    free(text);
    json_free(o);
}

/* A text with indents, and one whose raw value is written on one line all the same. */
TEST(test_indents)
{
    struct json *o = json_new_object(), *a = json_new_array(), *shared = json_new_array();
    json_push(shared, json_new_real(1.0 / 0.0));
    json_push_real(a, 2.5);
    json_push_string(a, NULL);
    json_push(a, json_share(NULL));
    json_push(a, json_share(shared));
    json_push(a, json_new_bytes("x\0\xff", 3));
    json_put(o, "a", a);
    json_put_null(o, "n");
    json_put_bool(o, "t", true);
    char *text = json_text(o, 2);
    assert_string_equal(text, "{\n  \"a\": [\n    2.5,\n    null,\n    null,\n    [\n"
                              "      null\n    ],\n    \"x\\u0000\xEF\xBF\xBD\"\n  ],\n"
                              "  \"n\": null,\n  \"t\": true\n}");
    free(text);
    json_free(shared); /* the tree is its other owner */
    text = json_text(json_member(o, "a"), 0);
    assert_string_equal(text, "[2.5, null, null, [null], \"x\\u0000\xEF\xBF\xBD\"]");
    free(text);
    text = json_text(json_at(json_member(o, "a"), 0), 0);
    assert_string_equal(text, "2.5");
    free(text);
    json_free(o);
    static const struct {
        double ms;
        const char *text;
    } times[] = {{0.0004, "{\"t\": 0.0}"},
                 {0.0005, "{\"t\": 0.001}"},
                 {1.0014999, "{\"t\": 1.001}"},
                 {1234.5, "{\"t\": 1234.5}"},
                 {0, "{\"t\": 0.0}"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        o = json_new_object();
        json_put_ms(o, "t", times[i].ms);
        text = json_text(o, 0);
        assert_string_equal(text, times[i].text);
        free(text);
        json_free(o);
    }
}

TEST(test_writing)
{
    struct json *o = json_new_object(), *a = json_new_array();
    json_put_int(o, "i", -5);
    json_put_real(o, "r", 0.5);
    json_put_real(o, "nan", 0.0 / 0.0);
    json_put_ms(o, "ms", 12.3456789);
    json_put_bool(o, "b", false);
    json_put_string(o, "s", "\xE2\x96\x81\"\n");
    json_put_string(o, "bad", "a\xffz\xe2\x96");
    json_put_string(o, "none", NULL);
    json_push_int(a, 1);
    json_push_string(a, "x");
    json_put(o, "a", a);
    char *text = json_text(o, 0);
    assert_string_equal(
        text, "{\"i\": -5, \"r\": 0.5, \"nan\": null, \"ms\": 12.346, \"b\": false, "
              "\"s\": \"\xE2\x96\x81\\\"\\n\", "
              "\"bad\": \"a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\", \"none\": null, "
              "\"a\": [1, \"x\"]}");
    struct json *back = parse(text);
    assert_int_equal(json_count(back), 9);
    json_free(back);
    free(text);
    json_free(o);
}

/* A tree of a shape is the tree that the same calls make one by one. */
TEST(a_shape_becomes_its_tree)
{
    struct json *list = json_new_array(), *none = NULL;
    const char *volatile null_text = NULL; /* the compiler would warn of a constant */
    json_push_int(list, 7);
    struct json *o = json_make(
        "{type: 'a text', s: %s, none: %s, i: %d, big: %ld, size: %lu, "
        "r: %g, nan: %g, ms: %.3f, in: {a.b: [%p, %p], empty: {}, []: []}, "
        "words: [true, false, null, 20]}",
        "a\xffz", null_text, -1, INT64_MIN, SIZE_MAX / 2, 0.5, 0.0 / 0.0, 1.23456, list,
        none);
    json_extend(o, "{more: %d, last: 'x'}", 3);
    char *text = json_text(o, 0);
    assert_string_equal(
        text,
        "{\"type\": \"a text\", \"s\": \"a\xEF\xBF\xBDz\", \"none\": null, \"i\": -1, "
        "\"big\": -9223372036854775808, \"size\": 9223372036854775807, \"r\": 0.5, "
        "\"nan\": null, \"ms\": 1.235, \"in\": {\"a.b\": [[7], null], \"empty\": {}, "
        "\"[]\": []}, "
        "\"words\": [true, false, null, 20], \"more\": 3, \"last\": \"x\"}");
    free(text);
    json_free(o);
}

/* What some programs take for the end of a line is escaped, and nothing else. */
TEST(a_line_is_one_for_every_reader)
{
    static const struct {
        const char *text, *line;
    } cases[] = {
        {"", "[\"\"]"},
        {"plain", "[\"plain\"]"},
        {"\xC2\x85", "[\"\\u0085\"]"},
        {"a\xE2\x80\xA8\xE2\x80\xA9z", "[\"a\\u2028\\u2029z\"]"},
        {"\xC3\xA9 \xC2\xA0 \xE2\x80\xA6 \xE2\x82\xAC",
         "[\"\xC3\xA9 \xC2\xA0 \xE2\x80\xA6 \xE2\x82\xAC\"]"},
        {"\n\r\v\f", "[\"\\n\\r\\u000B\\f\"]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json *v = json_new_array(), *back;
        struct textbuf line = {0};
        textbuf_add(&line, ">", 1); /* it is appended */
        json_push_string(v, cases[i].text);
        json_append_line(v, &line);
        assert_string_equal(line.p + 1, cases[i].line);
        back = parse(line.p + 1);
        assert_string_equal(json_string_of(json_at(back, 0), NULL), cases[i].text);
        json_free(back);
        json_free(v);
        textbuf_free(&line);
    }
}

int main(void)
{
    memtest_init();
    return unit_run(NULL, NULL);
}
