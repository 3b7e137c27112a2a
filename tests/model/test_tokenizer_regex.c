/* test_tokenizer_regex.c - which expressions are taken, what they match, which are refused. */
#include "model/bpe_bytes.h"
#include "model/pretokenize_regex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void expect_match(const char *pattern, bool literal, const char *text, int begin,
                         int end)
{
    struct regex *r;
    struct err err = {0};
    void *scratch = NULL;
    size_t b = 0, e = 0;
    if (regex_compile(&r, pattern, strlen(pattern), literal, &err) != 0)
        fail_msg("%s: %s", pattern, err.msg);
    int rc = regex_find(r, &scratch, text, strlen(text), 0, &b, &e, &err);
    assert_int_equal(rc, begin >= 0);
    if (rc == 1 && ((int)b != begin || (int)e != end))
        fail_msg("%s in '%s' matches %zu..%zu, not %d..%d", pattern, text, b, e, begin,
                 end);
    regex_scratch_free(scratch);
    regex_free(r);
}

static void test_matches(void **state)
{
    (void)state;
    expect_match("\\s+", false,
                 "ab \t\xC2\xA0\xE3\x80\x80"
                 "c",
                 2, 9);
    expect_match("\\s", false, "\xE1\xA0\x8E", -1,
                 0); /* U+180E is no white space any more */
    expect_match("\\S", false, " \xE1\xA0\x8E", 1, 4);
    expect_match("[^\\s\\p{L}]+", false, "a 12,b", 2, 5);
    expect_match("\\d+", false,
                 "a\xD9\xA1\xD9\xA2"
                 "b",
                 1, 5); /* Arabic digits */
    expect_match("\\p{N}{1,3}", false, "x12345", 1, 4);
    expect_match("(?i:'s|'t)", false, "it'S", 2, 4);
    expect_match("\\s+(?!\\S)", false, "a   b", 1, 3);
    expect_match("a++b|ab", false, "aab", 0, 3);
    expect_match("[\\-\\]]", false, "a]", 1, 2);
    expect_match("a.b", true, "axb a.b", 4, 7);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const patterns[][2] = {
        {".", "'.'"},
        {"^a", "'^'"},
        {"a$", "'$'"},
        {"\\w", "'\\w'"},
        {"\\bx", "'\\b'"},
        {"\\h", "'\\h'"},
        {"(a)\\1", "'\\1'"},
        {"\\p{Han}", "'\\p{Han}'"},
        {"\\p{Foo}", "'\\p{Foo}'"},
        {"\\p{}", "'\\p{}'"},
        {"\\pL", "'\\pL'"},
        {"\\p{L", "'\\p{L'"},
        {"(?<=a)b", "'(?<='"},
        {"(?>a)", "'(?>a'"},
        {"(?s:a)", "'(?s:'"},
        {"a{,3}", "'{,3}'"},
        {"a{,3}|b", "'{,3}' is"},
        {"x*", "'x*': one that may match the empty text"},
        {"a|(?=b)", "may match the empty text"},
        {"(?i:\u017f)", "'\u017f' is not supported"},
        {"a{2}+", "'{2}+'"},
        {"a{2}?", "'{2}?'"},
        {"[a[b]]", "'[b'"},
        {"[[:alpha:]]", "'[:'"},
        {"[a&&b]", "'&&'"},
        {"[]a]", "']'"},
        {"[\\S]", "'\\S'"},
        {"(?i:ss)", "'ss'"},
        {"(?i:[a])", "'['"},
        {"\\", "'\\'"},
    };
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        struct regex *r;
        struct err err = {0};
        int rc = regex_compile(&r, patterns[i][0], strlen(patterns[i][0]), false, &err);
        if (rc != ERR_UNSUPPORTED || strstr(err.msg, patterns[i][1]) == NULL)
            fail_msg("%s: expected a refusal of %s, got %d: %s", patterns[i][0],
                     patterns[i][1], rc, err.msg);
    }
    static const char *const broken[] = {"(a", "a)", "[a", "[z-a]", "a{3,1}", "*a"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        struct regex *r;
        struct err err = {0};
        int rc = regex_compile(&r, broken[i], strlen(broken[i]), false, &err);
        if (rc != ERR_FORMAT)
            fail_msg("%s: expected ERR_FORMAT, got %d: %s", broken[i], rc, err.msg);
    }
}

/* The byte alphabet is a bijection, and " " is U+0120, as every GPT-2 vocabulary has it. */
static void test_byte_alphabet(void **state)
{
    (void)state;
    char bytes[256], text[512], back[512];
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    size_t n = bpe_bytes_to_text(bytes, 256, text), n_back;
    assert_int_equal(n, 94 + 2 * (256 - 94)); /* ASCII stays one byte */
    assert_true(bpe_bytes_from_text(text, n, back, &n_back));
    assert_int_equal(n_back, 256);
    assert_memory_equal(back, bytes, 256);
    assert_int_equal(bpe_bytes_to_text(" ", 1, text), 2);
    assert_memory_equal(text, "\xC4\xA0", 2);
    assert_false(bpe_bytes_from_text(" ", 1, back, &n_back));
    assert_false(
        bpe_bytes_from_text("\xC5\x84", 2, back, &n_back)); /* U+0144: one too many */
    assert_false(
        bpe_bytes_from_text("\xC2\xAD", 2, back, &n_back)); /* U+00AD stands for none */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_byte_alphabet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
