/* test_miss.c - the text that says where a prompt departs from a stored context. */

#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "api/ticket.h"

static struct tokenizer *t;

static int open_tokenizer(void **state)
{
    struct err e;
    return tokenizer_open(&t, "models/demo", &e);
}

static int close_tokenizer(void **state)
{
    tokenizer_close(t);
    return 0;
}

/* Checks the text for a prompt that differs at its token `at`. */
static void expect(const char *prompt, int at, const char *want)
{
    int32_t *ids = NULL;
    size_t n = 0;
    struct err e;
    char out[200] = "not stored";
    assert_int_equal(tokenizer_encode(t, prompt, strlen(prompt), 0, &ids, &n, &e), 0);
    assert_true(at <= (int)n);
    miss_text(t, ids, (int)n, at, out, sizeof out);
    assert_string_equal(out, want);
    free(ids);
}

TEST(the_text_from_there_on_is_shown)
{
    expect("The sea", 0, "not stored: the prompt differs at token 0: \"The sea\"");
    expect("a\nb\"c\x7f", 0, "not stored: the prompt differs at token 0: \"a b c \"");
    expect("The sea", 2, "not stored: the prompt differs at token 2");
}

TEST(the_place_is_told_without_a_tokenizer)
{
    const int32_t ids[3] = {1, 2, 3};
    char out[60] = "x";
    miss_text(NULL, ids, 3, 1, out, sizeof out);
    assert_string_equal(out, "x: the prompt differs at token 1");
    char full[12] = "not stored";
    /* the buffer is too small: the text is cut and ends with a zero */
    miss_text(NULL, ids, 3, 1, full, sizeof full);
    assert_string_equal(full, "not stored:");
}

/* An excerpt has at most twelve tokens and 48 bytes, and only whole characters. */
TEST(an_excerpt_is_short_and_whole)
{
    for (int kind = 0; kind < 2; kind++) {
        char prompt[400] = "";
        for (int i = 0; i < 60; i++)
            strcat(prompt, kind == 0 ? "word " : "\xc3\xa9\xe2\x82\xac");
        int32_t *ids = NULL;
        size_t n = 0;
        struct err e;
        assert_int_equal(tokenizer_encode(t, prompt, strlen(prompt), 0, &ids, &n, &e), 0);
        for (int at = 0; at < 20; at++) {
            char out[200] = "";
            size_t most = 0, k;
            for (int i = at; i < at + 12 && i < (int)n; i++) {
                (void)tokenizer_bytes(t, ids[i], &k);
                most += k;
            }
            miss_text(t, ids, (int)n, at, out, sizeof out);
            const char *from = strchr(out, '"');
            if (from == NULL)
                continue; /* the text ends inside a character */
            size_t shown = strlen(from) - 2;
            most = most < 48 ? most : 48;
            assert_in_range(shown, most > 5 ? most - 5 : 1, most);
            const unsigned char *p = (const unsigned char *)from + 1;
            while ((*p & 0xc0) == 0x80)
                p++; /* the first token may end a character that began before it */
            while (*p != '"') {
                size_t bytes = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : 3;
                for (size_t i = 1; i < bytes; i++)
                    assert_int_equal(p[i] & 0xc0, 0x80);
                p += bytes;
            }
        }
        free(ids);
    }
}

int main(void)
{
    return unit_run(open_tokenizer, close_tokenizer);
}
