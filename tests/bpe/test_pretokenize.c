/* test_pretokenize.c - how each step cuts and rewrites a text. The pieces of the behaviours are
 * those that the tokenizers library documents for the text "the-final--countdown". */
#include "bpe/pretokenize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

enum { MOST = 1 << 20 };

/* Pieces, each in front of a bar. */
struct joined {
    char *text;
    size_t n, n_pieces;
    size_t stop_at; /* the number of the piece that ends the cutting; 0: none does */
};

static int join(void *arg, const char *s, size_t n, struct err *err)
{
    struct joined *j = arg;
    assert_true(j->n + n + 2 < MOST && n > 0);
    memcpy(j->text + j->n, s, n);
    j->n += n;
    j->text[j->n++] = '|';
    j->text[j->n] = 0;
    return ++j->n_pieces == j->stop_at ? err_set(err, -EINTR, "stopped") : 0;
}

#define TEXT(s)                                                                            \
    {                                                                                      \
        s, sizeof s - 1                                                                    \
    }
#define SPLIT(b, i)                                                                        \
    {                                                                                      \
        .kind = PRETOKENIZER_SPLIT, .pattern = TEXT("-"), .behavior = b, .invert = i       \
    }

/* Cuts the text twice with the same scratch memory, and returns the joined pieces, which the caller
 * frees. */
static char *cut(const struct pretokenizer_step *steps, int n_steps, const char *text,
                 size_t n, bool at_start)
{
    struct pretokenizer *p;
    struct pieces work = {0};
    struct err e = {0};
    struct joined j = {.text = calloc(1, MOST)}, again = {.text = calloc(1, MOST)};
    if (pretokenizer_create(&p, steps, n_steps, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(pretokenize_each(p, text, n, at_start, &work, join, &j, &e), 0);
    assert_int_equal(pretokenize_each(p, text, n, at_start, &work, join, &again, &e), 0);
    assert_string_equal(j.text, again.text);
    pieces_deinit(&work);
    pretokenizer_destroy(p);
    free(again.text);
    return j.text;
}

static void expect_of(const struct pretokenizer_step *steps, int n_steps, const char *text,
                      bool at_start, const char *want)
{
    char *got = cut(steps, n_steps, text, strlen(text), at_start);
    assert_string_equal(got, want);
    free(got);
}

static void expect(struct pretokenizer_step step, const char *text, const char *want)
{
    expect_of(&step, 1, text, true, want);
}

TEST(test_behaviours)
{
    static const struct {
        enum split_behavior behavior;
        const char *want, *at_ends, *inverted;
    } known[] = {
        {SPLIT_REMOVED, "the|final|countdown|", "a|", "-|-|-|"},
        {SPLIT_ISOLATED, "the|-|final|-|-|countdown|", "-|-|a|-|", NULL},
        {SPLIT_MERGED_WITH_PREVIOUS, "the-|final-|-|countdown|", "-|-|a-|",
         "the|-final|-|-countdown|"},
        {SPLIT_MERGED_WITH_NEXT, "the|-final|-|-countdown|", "-|-a|-|",
         "the-|final-|-|countdown|"},
        {SPLIT_CONTIGUOUS, "the|-|final|--|countdown|", "--|a|-|", NULL},
    };
    for (int i = 0; i < 5; i++) {
        struct pretokenizer_step s = SPLIT(known[i].behavior, false);
        expect(s, "the-final--countdown", known[i].want);
        expect(s, "--a-", known[i].at_ends);
        expect(s, "", "");
        expect(s, "a", "a|");
        expect(s, "-", known[i].behavior == SPLIT_REMOVED ? "" : "-|");
        s.invert = true;
        expect(s, "the-final--countdown",
               known[i].inverted != NULL ? known[i].inverted : known[i].want);
    }
}

/* More pieces than a window holds: no piece is lost, and none is cut where a window ends. */
TEST(test_windows)
{
    enum { UNITS = 30000 };
    static const struct {
        enum split_behavior behavior;
        const char *unit, *first,
            *pieces; /* the text's unit, the first unit's pieces, and others' */
    } known[] = {
        {SPLIT_REMOVED, "a-", "a|", "a|"},
        {SPLIT_ISOLATED, "a-", "a|-|", "a|-|"},
        {SPLIT_MERGED_WITH_PREVIOUS, "a-", "a-|", "a-|"},
        {SPLIT_MERGED_WITH_PREVIOUS, "-a", "-|", "a-|"},
        {SPLIT_MERGED_WITH_NEXT, "-a", "-a|", "-a|"},
        {SPLIT_CONTIGUOUS, "--a", "--|a|", "--|a|"},
    };
    char *text = malloc(MOST), *want = malloc(MOST);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = 0, n_want = 0;
        for (int k = 0; k < UNITS; k++) {
            const char *pieces = k == 0 ? known[i].first : known[i].pieces;
            memcpy(text + n, known[i].unit, strlen(known[i].unit));
            n += strlen(known[i].unit);
            memcpy(want + n_want, pieces, strlen(pieces));
            n_want += strlen(pieces);
        }
        if (strcmp(known[i].pieces, "a-|") == 0 && known[i].unit[0] == '-') {
            memcpy(want + n_want, "a|", 2); /* the last letter has no dash behind it */
            n_want += 2;
        }
        struct pretokenizer_step s = SPLIT(known[i].behavior, false);
        char *got = cut(&s, 1, text, n, true);
        assert_int_equal(strlen(got), n_want);
        assert_memory_equal(got, want, n_want);
        free(got);
        /* a second step cuts the pieces of each window */
        struct pretokenizer_step both[] = {
            SPLIT(known[i].behavior, false),
            {.kind = PRETOKENIZER_DIGITS, .individual = true}};
        got = cut(both, 2, text, n, true);
        assert_memory_equal(got, want, n_want);
        free(got);
    }
    free(text);
    free(want);
}

TEST(test_digits_and_punctuation)
{
    expect((struct pretokenizer_step){.kind = PRETOKENIZER_DIGITS, .individual = true},
           "ab12c3", "ab|1|2|c|3|");
    expect((struct pretokenizer_step){.kind = PRETOKENIZER_DIGITS}, "ab12c3", "ab|12|c|3|");
    expect((struct pretokenizer_step){.kind = PRETOKENIZER_PUNCTUATION,
                                      .behavior = SPLIT_ISOLATED},
           "a!b$~c", "a|!|b|$|~|c|");
    expect((struct pretokenizer_step){.kind = PRETOKENIZER_PUNCTUATION,
                                      .behavior = SPLIT_REMOVED},
           "a!b$~c", "a|b|c|");
    /* a literal pattern is no expression */
    struct pretokenizer_step dot = {
        .kind = PRETOKENIZER_SPLIT, .pattern = TEXT("a.c"), .behavior = SPLIT_ISOLATED};
    expect(dot, "abca.cd", "abc|a.c|d|");
    struct pretokenizer_step regex = {.kind = PRETOKENIZER_SPLIT,
                                      .pattern = TEXT("a[.b]c"),
                                      .is_regex = true,
                                      .behavior = SPLIT_ISOLATED};
    expect(regex, "abca.cd", "abc|a.c|d|");
}

#define META "\xE2\x96\x81"

TEST(test_metaspaces)
{
    static const struct {
        enum prepend_scheme prepend;
        bool split, at_start;
        const char *text, *want;
    } known[] = {
        {PREPEND_ALWAYS, false, true, "a b", META "a" META "b|"},
        {PREPEND_ALWAYS, false, false, "a b", META "a" META "b|"},
        {PREPEND_FIRST, false, true, "a b", META "a" META "b|"},
        {PREPEND_FIRST, false, false, "a b", "a" META "b|"},
        {PREPEND_NEVER, false, true, "a b", "a" META "b|"},
        {PREPEND_ALWAYS, false, true, " a", META "a|"},     /* it begins with a space */
        {PREPEND_ALWAYS, false, true, META "a", META "a|"}, /* or with the mark itself */
        {PREPEND_ALWAYS, true, true, "a b  c", META "a|" META "b|" META "|" META "c|"},
        {PREPEND_NEVER, true, true, "a b", "a|" META "b|"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct pretokenizer_step s = {.kind = PRETOKENIZER_METASPACE,
                                      .text = TEXT(META),
                                      .prepend = known[i].prepend,
                                      .split = known[i].split};
        expect_of(&s, 1, known[i].text, known[i].at_start, known[i].want);
    }
    /* only the first piece is the beginning of the text */
    struct pretokenizer_step two[] = {
        SPLIT(SPLIT_REMOVED, false),
        {.kind = PRETOKENIZER_METASPACE, .text = TEXT(META), .prepend = PREPEND_FIRST}};
    expect_of(two, 2, "a-b", true, META "a|b|");
    expect_of(two, 2, "a-b", false, "a|b|");
}

TEST(test_bytes)
{
    struct pretokenizer_step s = {.kind = PRETOKENIZER_BYTE_LEVEL};
    expect(s, "it's 12", "it's 12|");
    s.use_regex = true;
    expect(s, "it's  12!?", "it|'s| | 12|!?|");
    s.add_prefix_space = true;
    expect(s, "a b", " a| b|");
    expect(s, " a", " a|");
    expect(s, "", "");
    s.use_regex = false;
    expect(s, "a b", " a b|");
    /* behind ByteLevel, steps see the byte-level spelling: \xC4\xA0 stands for a space */
    struct pretokenizer_step two[] = {{.kind = PRETOKENIZER_BYTE_LEVEL},
                                      {.kind = PRETOKENIZER_SPLIT,
                                       .pattern = TEXT("\xC4\xA0"),
                                       .behavior = SPLIT_MERGED_WITH_NEXT}};
    expect_of(two, 2, "a b \xC3\xA9", true, "a| b| \xC3\xA9|");
    struct pretokenizer *p;
    struct err e = {0};
    assert_int_equal(pretokenizer_create(&p, two, 2, &e), 0);
    assert_true(pretokenizer_is_byte_level(p));
    pretokenizer_destroy(p);
    assert_int_equal(pretokenizer_create(&p, two + 1, 1, &e), 0);
    assert_false(pretokenizer_is_byte_level(p));
    pretokenizer_destroy(p);
    pretokenizer_destroy(NULL);
    struct pretokenizer_step twice[] = {s, s};
    assert_int_equal(pretokenizer_create(&p, twice, 2, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.msg, "a second ByteLevel is not supported");
}

TEST(test_no_steps_leave_the_text_whole)
{
    expect_of(NULL, 0, "a b-c", true, "a b-c|");
    expect_of(NULL, 0, "", true, "");
}

/* The first result other than 0 ends the cutting, in a window and at the end. */
TEST(test_the_receiver_may_stop)
{
    enum { N = 20000 };
    char *text = malloc(N);
    struct pretokenizer_step s = SPLIT(SPLIT_ISOLATED, false);
    struct pretokenizer *p;
    struct err e = {0};
    for (int i = 0; i < N; i++)
        text[i] = i % 2 == 0 ? 'a' : '-';
    assert_int_equal(pretokenizer_create(&p, &s, 1, &e), 0);
    static const size_t stops[] = {1, 4095, 4096, 19999, 20000};
    for (int i = 0; i < 5; i++) {
        struct pieces work = {0};
        struct joined j = {.text = calloc(1, MOST), .stop_at = stops[i]};
        assert_int_equal(pretokenize_each(p, text, N, true, &work, join, &j, &e), -EINTR);
        assert_int_equal(j.n_pieces, stops[i]);
        pieces_deinit(&work);
        free(j.text);
    }
    pretokenizer_destroy(p);
    free(text);
}
