/* test_tokenizer_regex.c - which expressions are accepted, their matches, and refusals. */
#include "bpe/bpe_bytes.h"
#include "bpe/pretokenize_regex.h"

#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

static void expect_match(const char *pattern, bool literal, const char *text, int begin,
                         int end)
{
    struct regex *r;
    struct err err = {0};
    void *scratch = NULL;
    size_t b = 0, e = 0;
    if (regex_compile(&r, pattern, strlen(pattern),
                      literal ? REGEX_LITERAL : REGEX_ONIGURUMA, &err) != 0)
        fail_msg("%s: %s", pattern, err.msg);
    int rc = regex_find(r, &scratch, text, strlen(text), 0, &b, &e, &err);
    assert_int_equal(rc, begin >= 0);
    if (rc == 1 && ((int)b != begin || (int)e != end))
        fail_msg("%s in '%s' matches %zu..%zu, not %d..%d", pattern, text, b, e, begin,
                 end);
    regex_scratch_free(scratch);
    regex_free(r);
}

TEST(test_matches)
{
    expect_match("\\s+", false,
                 "ab \t\xC2\xA0\xE3\x80\x80"
                 "c",
                 2, 9);
    expect_match("\\s", false, "\xE1\xA0\x8E", -1, 0); /* U+180E is no longer white space */
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

TEST(test_refusals)
{
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
        {"x*", "'x*': it may match the empty text"},
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
        int rc = regex_compile(&r, patterns[i][0], strlen(patterns[i][0]), REGEX_ONIGURUMA,
                               &err);
        if (rc != ERR_UNSUPPORTED || strstr(err.msg, patterns[i][1]) == NULL)
            fail_msg("%s: expected a refusal of %s, got %d: %s", patterns[i][0],
                     patterns[i][1], rc, err.msg);
    }
    static const char *const broken[] = {"(a", "a)", "[a", "[z-a]", "a{3,1}", "*a"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        struct regex *r;
        struct err err = {0};
        int rc = regex_compile(&r, broken[i], strlen(broken[i]), REGEX_ONIGURUMA, &err);
        if (rc != ERR_FORMAT)
            fail_msg("%s: expected ERR_FORMAT, got %d: %s", broken[i], rc, err.msg);
    }
}

/* The byte alphabet is a bijection between bytes and characters. As in every GPT-2 vocabulary, " "
 * is U+0120. */
TEST(test_byte_alphabet)
{
    char bytes[256], text[512], back[512];
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    size_t n = bpe_bytes_to_text(bytes, 256, text), n_back;
    /* the 94 visible ASCII characters take one byte, the others two */
    assert_int_equal(n, 94 + 2 * (256 - 94));
    assert_true(bpe_bytes_from_text(text, n, back, &n_back));
    assert_int_equal(n_back, 256);
    assert_memory_equal(back, bytes, 256);
    assert_int_equal(bpe_bytes_to_text(" ", 1, text), 2);
    assert_memory_equal(text, "\xC4\xA0", 2);
    assert_false(bpe_bytes_from_text(" ", 1, back, &n_back));
    /* U+0144 is the first character after the alphabet; U+00AD stands for no byte */
    assert_false(bpe_bytes_from_text("\xC5\x84", 2, back, &n_back));
    assert_false(bpe_bytes_from_text("\xC2\xAD", 2, back, &n_back));
}

/* Splits a text. Returns the number of matches, or the error. ends[0] and ends[1] get the ends of
 * the first two matches. */
static int split(const char *pattern, const char *text, size_t n, size_t ends[2],
                 struct err *err)
{
    struct regex *r;
    void *scratch = NULL;
    size_t at = 0, b, e;
    int rc, count = 0;
    assert_int_equal(regex_compile(&r, pattern, strlen(pattern), REGEX_ONIGURUMA, err), 0);
    while ((rc = regex_find(r, &scratch, text, n, at, &b, &e, err)) > 0) {
        if (count < 2)
            ends[count] = e;
        at = e;
        count++;
    }
    regex_scratch_free(scratch);
    regex_free(r);
    return rc < 0 ? rc : count;
}

/* The text is examined in windows, but matches are those of the whole text. */
TEST(test_long_matches)
{
    struct err err = {0};
    size_t ends[2];
    static const size_t lengths[] = {1, 254, 255, 256, 257, 511, 512, 513, 5000, 200000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        size_t n = lengths[i];
        char *text = malloc(2 * n + 8);
        assert_non_null(text);
        memset(text, 'a', n);
        memset(text + n, ' ', n);
        memcpy(text + 2 * n, "b!", 2);
        /* The matches: all letters; all blanks but the last one; the last blank with "b"; "!". */
        int want = n > 1 ? 4 : 3;
        assert_int_equal(split(" ?[a-z]+|\\s+(?!\\S)|\\s+|!", text, 2 * n + 2, ends, &err),
                         want);
        assert_int_equal(ends[0], n);
        assert_int_equal(ends[1], n > 1 ? 2 * n - 1 : 2 * n + 1);
        /* One match begins in a later window than the first; the other spans all windows. */
        assert_int_equal(split("b", text, 2 * n + 2, ends, &err), 1);
        assert_int_equal(ends[0], 2 * n + 1);
        assert_int_equal(split("a+ +b", text, 2 * n + 2, ends, &err), 1);
        assert_int_equal(ends[0], 2 * n + 1);
        /* Three-byte characters lie across the ends of windows. */
        for (size_t k = 0; k + 3 <= n; k += 3)
            memcpy(text + k, "\xe6\x97\xa5", 3);
        assert_int_equal(split("\\p{Lo}+", text, n / 3 * 3, ends, &err), n >= 3);
        assert_true(n < 3 || ends[0] == n / 3 * 3);
        free(text);
    }
}

/* Some of these expressions examine the whole rest of the text for each match, others try all ways
 * to match. The work for one text is limited; an expression that needs more gives an error. */
TEST(test_hostile_expressions)
{
    enum { N = 100000 };
    static const char *const hostile[] = {"a+b|a",        "a*b|a",      "a(?=a*b)|a",
                                          "(?:a|aa)+b|a", "(?:a+)+b|a", "a+b|a+c|a+d|a"};
    char *text = malloc(N + 1);
    assert_non_null(text);
    memset(text, 'a', N);
    text[N] = 0;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        struct err err = {0};
        size_t ends[2];
        int rc = split(hostile[i], text, N, ends, &err);
        if (rc != ERR_LIMIT)
            fail_msg("%s: %d matches, %s", hostile[i], rc, err.msg);
        /* A short text is split: no expression is refused for its form. */
        assert_int_equal(split(hostile[i], text, 8, ends, &err), 8);
    }
    /* A match that takes more steps than texts of its length usually do is made all the same. */
    struct err err = {0};
    size_t ends[2];
    assert_int_equal(split("(?:a|aa)+b|a", text, 22, ends, &err), 22);
    /* An expression that matches in linear time splits a text of length N. */
    assert_int_equal(split("a", text, N, ends, &err), N);
    assert_int_equal(split("a{1,3}", text, N, ends, &err), (N + 2) / 3);
    assert_int_equal(split("a+|b", text, N, ends, &err), 1);
    free(text);
}
