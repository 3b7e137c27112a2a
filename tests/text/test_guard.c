/* test_guard.c - special tokens that a user spells stay text; those of the template become tokens.
 */
#include "base/mem.h"
#include "text/tokenizer.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit.h"

enum { FLAGS = TOKENIZER_PARSE_SPECIAL | TOKENIZER_GUARDED };

static struct tokenizer *open_dir(const char *dir)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (tokenizer_open(&t, dir, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

/* Compares texts without guards; blanks beside tokens are ignored. */
static void assert_alike(const char *got, const char *want)
{
    for (;; got++, want++) {
        got += strspn(got, " ");
        want += strspn(want, " ");
        if (*got != *want)
            fail_msg("[%s] is not [%s]", got, want);
        if (*got == 0)
            return;
    }
}

/* Returns how often `token` is among the ids of the text. `origin` has one letter for each byte of
 * the text: f if the byte is foreign, else -. */
static int times(const struct tokenizer *t, const char *token, const char *text,
                 const char *origin)
{
    size_t n = strlen(text), n_guarded = n, n_ids;
    uint8_t *foreign = calloc(1, n / 8 + 9);
    char *guarded = xmemdup(text, n), *back;
    int32_t *ids, id = tokenizer_find(t, token);
    int found = 0;
    assert_int_equal(strlen(origin), n);
    assert_true(id >= 0);
    for (size_t i = 0; i < n; i++)
        foreign[i / 8] |= (uint8_t)((origin[i] == 'f') << i % 8);
    assert_int_equal(tokenizer_guard(t, &guarded, &n_guarded, foreign, NULL), 0);
    assert_int_equal(tokenizer_encode(t, guarded, n_guarded, FLAGS, &ids, &n_ids, NULL), 0);
    for (size_t i = 0; i < n_ids; i++)
        found += ids[i] == id;
    size_t n_back;
    assert_int_equal(tokenizer_decode(t, ids, n_ids, false, &back, &n_back, NULL), 0);
    assert_alike(back, text);
    free(back);
    free(ids);
    free(guarded);
    free(foreign);
    return found;
}

TEST(test_origin)
{
    struct tokenizer *t = open_dir("models/demo");
    const char *end = "<|end|>";
    assert_int_equal(times(t, end, "a<|end|>b", "---------"), 1);
    assert_int_equal(times(t, end, "a<|end|>b", "fffffffff"), 0);
    /* a special token of the template, beside a user's text */
    assert_int_equal(times(t, end, "a<|end|>b", "f-------f"), 1);
    /* one foreign byte anywhere in its spelling makes the token plain text */
    assert_int_equal(times(t, end, "a<|end|>b", "-f-------"), 0);
    assert_int_equal(times(t, end, "a<|end|>b", "-------f-"), 0);
    assert_int_equal(times(t, end, "a<|end|>b", "----f----"), 0);
    assert_int_equal(times(t, end, "<|end|><|end|>", "fffffff-------"), 1);
    assert_int_equal(times(t, end, "<|end|><|end|>", "-------fffffff"), 1);
    assert_int_equal(times(t, end, "<<|end|>", "f-------"), 1);
    assert_int_equal(times(t, end, "<|end<|end|>", "fffff-------"), 1);
    tokenizer_close(t);
}

TEST(test_guards_are_needed_by_flag)
{
    struct tokenizer *t = open_dir("models/demo");
    struct err err = {0};
    int32_t *ids;
    size_t n;
    /* A client cannot send a guard: unless FLAGS allow guards, the guard's byte is invalid
     * UTF-8. */
    assert_int_equal(
        tokenizer_encode(t, "a\xff<|end|>", 9, TOKENIZER_PARSE_SPECIAL, &ids, &n, &err),
        ERR_FORMAT);
    assert_int_equal(tokenizer_encode(t, "a\xff\xfe", 3, FLAGS, &ids, &n, &err),
                     ERR_FORMAT);
    tokenizer_close(t);
}

/* --- other tokenizers ---------------------------------------------------------------- */

/* Opens the tokenizer of a golden folder with every `from` in its file replaced by `to`. */
static struct tokenizer *open_changed(const char *folder, const char *from, const char *to)
{
    char dir[] = "/tmp/hcache-guard.XXXXXX", path[512], *text;
    size_t n;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "tokenizer.json" : "tokenizer_config.json";
        snprintf(path, sizeof path, "tests/model/golden/%s/%s", folder, name);
        assert_int_equal(file_read(path, 64 << 20, &text, &n, NULL), 0);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        int n_changed = 0;
        for (const char *at = text, *next; *at != 0; at = next) {
            next = i == 0 ? strstr(at, from) : NULL;
            fwrite(at, 1, next != NULL ? (size_t)(next - at) : strlen(at), f);
            n_changed += next != NULL;
            if (next == NULL)
                break;
            fputs(to, f);
            next += strlen(from);
        }
        assert_true(i == 1 || n_changed > 0);
        fclose(f);
        free(text);
    }
    struct tokenizer *t = open_dir(dir);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir,
                 i == 0 ? "tokenizer.json" : "tokenizer_config.json");
        unlink(path);
    }
    rmdir(dir);
    return t;
}

/* Special tokens that are matched after the normalizer, which inserts and changes bytes. */
TEST(test_normalized)
{
    struct tokenizer *t = open_changed("llama2-like", "\"normalized\":false",
                                       "\"normalized\":true");
    /* The normalizer inserts a blank before the token. */
    assert_int_equal(times(t, "</s>", "a b </s>c </s>", "--------------"), 2);
    assert_int_equal(times(t, "</s>", "a b </s>c </s>", "ffffffffff----"), 1);
    assert_int_equal(times(t, "</s>", "a b </s>c </s>", "--------ffffff"), 1);
    assert_int_equal(times(t, "</s>", "a b </s>c </s>", "ffffffffffffff"), 0);
    /* The user's text contains the noncharacter that stands for a guard during normalization. */
    assert_int_equal(times(t, "</s>", "\xef\xb7\x90 b </s>c </s>", "ffffffffffff----"), 1);
    tokenizer_close(t);
}

/* Markers of roles, like <|x|>, that the tokenizer does not flag as special are protected, too. */
TEST(test_markers)
{
    struct tokenizer *t = open_changed("gpt2-like", "\"special\":true",
                                       "\"special\":false");
    assert_int_equal(times(t, "<|x|>", "a<|x|>b", "-------"), 1);
    assert_int_equal(times(t, "<|x|>", "a<|x|>b", "fffffff"), 0);
    /* "<tool>" is neither special nor a marker of a role: it is one token in a user's text, too. */
    assert_int_equal(times(t, "<tool>", "a<tool>b", "ffffffff"), 1);
    tokenizer_close(t);
}
