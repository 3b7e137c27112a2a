/* test_tokenizer_least.c - the lower bound on the number of a text's tokens never exceeds that
 * number. */
#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer.h"
#include "tests/base/quotes.h"
#include "tests/base/tempdir.h"

static struct tokenizer *make(const char *model, const char *steps, const char *added)
{
    char dir[TEMPDIR_BYTES];
    struct tokenizer *t = NULL;
    struct err err = {0};
    tempdir_make(dir, "least");
    char *path = xasprintf("%s/tokenizer.json", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    char *json = quotes_in(xasprintf("{'model': {'type': 'BPE', %s}, 'decoder': {'type': "
                                     "'Fuse'}%s, 'added_tokens': [%s]}",
                                     model, steps, added));
    assert_true(fputs(json, f) >= 0);
    free(json);
    fclose(f);
    if (tokenizer_open(&t, dir, &err) != 0)
        fail_msg("%s", err.msg);
    tempdir_remove(dir);
    free(path);
    return t;
}

#define PLAIN                                                                              \
    "'vocab': {'a': 0, 'b': 1, 'aa': 2, 'aaaa': 3, '?': 4}, 'merges': ['a a', 'aa aa'], "  \
    "'unk_token': '?'"
#define UNKNOWN "'vocab': {'a': 0, '?': 1, 'aaaaa': 2}, 'merges': [], 'unk_token': '?'"
#define ADDED(text, lstrip)                                                                \
    "{'id': 9, 'content': '" text "', 'lstrip': " lstrip                                   \
    ", 'rstrip': false, 'single_word': false, 'normalized': false, 'special': true}"

/* Checks that the bound of `piece` repeated n times is `want`, and that the text has at least as
 * many tokens. */
static void check(struct tokenizer *t, const char *piece, size_t n, size_t want)
{
    size_t n_piece = strlen(piece), n_ids;
    char *text = xmalloc(n * n_piece + 1);
    int32_t *ids;
    struct err err = {0};
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * n_piece, piece, n_piece);
    assert_int_equal(tokenizer_least_count(t, text, n * n_piece), want);
    if (tokenizer_encode(t, text, n * n_piece, TOKENIZER_PARSE_SPECIAL, &ids, &n_ids,
                         &err) != 0)
        fail_msg("%s", err.msg);
    assert_true(want <= n_ids);
    free(ids);
    free(text);
}

TEST(the_longest_token_bounds_it)
{
    struct tokenizer *t = make(PLAIN, "", "");
    check(t, "aaaa", 1000, 1000); /* the bound is exact */
    check(t, "a", 0, 0);
    check(t, "a", 1, 1);
    check(t, "a", 5, 2);
    check(t, "ab", 1000, 500);
    /* bytes of guards do not count as text */
    assert_int_equal(tokenizer_least_count(t,
                                           "\xff\xff\xff\xff\xff"
                                           "a",
                                           6),
                     1);
    tokenizer_close(t);
    t = make(PLAIN, "", ADDED("<|long|>", "false"));
    check(t, "<|long|>", 1000, 1000);
    tokenizer_close(t);
}

TEST(text_that_a_normalizer_shortens_counts_less)
{
    struct tokenizer *t = make(PLAIN,
                               ", 'normalizer': {'type': 'Replace', 'pattern': {'String': "
                               "'bbbbbb'}, 'content': 'aa'}",
                               "");
    check(t, "bbbbbbbbbbbb", 1000, 1000); /* 12 bytes become "aaaa", which is one token */
    tokenizer_close(t);
    t = make(PLAIN, ", 'normalizer': {'type': 'NFKC'}", "");
    /* U+1D68A becomes "a": 4000 bytes are 250 tokens */
    check(t, "\xf0\x9d\x9a\x8a", 1000, 125);
    tokenizer_close(t);
}

/* Characters that can vanish in any number must not count in the bound. */
TEST(characters_that_may_vanish_do_not_count)
{
    struct tokenizer *t = make(
        PLAIN,
        ", 'normalizer': {'type': 'Replace', 'pattern': {'String': 'b'}, 'content': ''}",
        "");
    check(t, "b", 1000, 0);
    tokenizer_close(t);
    t = make(PLAIN,
             ", 'pre_tokenizer': {'type': 'Split', 'pattern': {'String': 'b'}, 'behavior': "
             "'Removed', 'invert': false}",
             "");
    check(t, "b", 1000, 0);
    tokenizer_close(t);
    t = make(UNKNOWN ", 'fuse_unk': true", "", "");
    check(t, "xyz", 1000, 0); /* fused: all 3000 unknown letters are one token */
    tokenizer_close(t);
    t = make(UNKNOWN, "", "");
    check(t, "xyz", 1000, 600);
    check(t, "\xe2\x82\xac", 1000, 600);
    tokenizer_close(t);
}

TEST(space_that_a_token_swallows_is_not_counted)
{
    struct tokenizer *t = make(PLAIN, "", ADDED("<x>", "true"));
    check(t, " \t\n\xc2\xa0\xe3\x80\x80 <x>", 1000, 750);
    check(t, "aaaa", 1000, 1000);
    tokenizer_close(t);
}

static void expect_ids(const struct tokenizer *t, const char *text, const int32_t *want,
                       size_t n_want)
{
    int32_t *ids;
    size_t n_ids;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), TOKENIZER_PARSE_SPECIAL, &ids,
                                      &n_ids, NULL),
                     0);
    assert_int_equal(n_ids, n_want);
    assert_memory_equal(ids, want, n_want * sizeof *want);
    free(ids);
}

/* With fuse_unk each run of unknown bytes or letters is one token, also at the beginning of a text
 * and after a known token. Without it each unknown letter is one token. */
TEST(unknown_runs)
{
    static const char *const bytes =
        ", 'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false, "
        "'trim_offsets': true, 'use_regex': false}";
    for (int by_bytes = 0; by_bytes < 2; by_bytes++) {
        struct tokenizer *t = make(UNKNOWN ", 'fuse_unk': true", by_bytes ? bytes : "", "");
        expect_ids(t, "x", (int32_t[]){1}, 1);
        expect_ids(t, "xyaxyzaax", (int32_t[]){1, 0, 1, 0, 0, 1}, 6);
        tokenizer_close(t);
        t = make(UNKNOWN, by_bytes ? bytes : "", "");
        expect_ids(t, "xyax", (int32_t[]){1, 1, 0, 1}, 4);
        tokenizer_close(t);
    }
}
