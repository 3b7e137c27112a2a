/* test_utf8.c - every code point is encoded and decoded; known bytes; invalid bytes. */
#include "tests/unit.h"

#include <stdbool.h>
#include <string.h>

#include "base/utf8.h"

/* The Unicode Standard's examples (table 3-4), and both ends of each length. */
static const struct {
    uint32_t cp;
    const char *bytes;
} known[] = {
    {0x4D, "\x4D"},
    {0x7F, "\x7F"},
    {0x80, "\xC2\x80"},
    {0x430, "\xD0\xB0"},
    {0x7FF, "\xDF\xBF"},
    {0x800, "\xE0\xA0\x80"},
    {0x4E8C, "\xE4\xBA\x8C"},
    {0xFFFF, "\xEF\xBF\xBF"},
    {0x10000, "\xF0\x90\x80\x80"},
    {0x10302, "\xF0\x90\x8C\x82"},
    {0x24B62, "\xF0\xA4\xAD\xA2"},
    {0x10FFFF, "\xF4\x8F\xBF\xBF"},
};

TEST(known_characters_have_their_bytes)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char out[4];
        uint32_t cp = 0;
        size_t n = strlen(known[i].bytes);
        assert_int_equal(utf8_encode(known[i].cp, out), n);
        assert_memory_equal(out, known[i].bytes, n);
        assert_int_equal(utf8_decode(known[i].bytes, n, &cp), n);
        assert_int_equal(cp, known[i].cp);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(utf8_decode(known[i].bytes, cut, &cp), 0);
    }
}

TEST(every_code_point_comes_back)
{
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char out[4];
        uint32_t cp = ~c;
        bool is_surrogate = c >= 0xD800 && c < 0xE000;
        size_t n = utf8_encode(c, out), got = utf8_decode(out, n, &cp);
        if (is_surrogate ? got != 0 : got != n || cp != c)
            fail_msg("U+%04X: %zu of %zu bytes, U+%04X", c, got, n, cp);
    }
}

TEST(what_is_no_utf8_is_refused)
{
    static const char *const bad[] = {
        "\x80",     /* a continuation byte alone */
        "\xC0\xAF", /* overlong */
        "\xC1\xBF",
        "\xE0\x9F\xBF",
        "\xF0\x8F\xBF\xBF",
        "\xED\xA0\x80",     /* a surrogate */
        "\xF4\x90\x80\x80", /* above U+10FFFF */
        "\xF5\x80\x80\x80",
        "\xFF",
        "\xE4\xBA\x41",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[16] = "a\xC3\xA9"; /* valid up to byte 3 */
        uint32_t cp;
        strcat(text, bad[i]);
        assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
        assert_int_equal(utf8_check(text, strlen(text)), 3);
    }
    assert_int_equal(utf8_check("a\xC3\xA9\xF0\xA4\xAD\xA2z", 8), 8);
    assert_int_equal(utf8_check("", 0), 0);
}
