/* test_tokenizer_golden.c - ids and texts equal the reference's, case by case.
 *
 * tools/golden/tokenizer_golden.py writes tests/model/golden/tokenizer-*.json. For each text a file
 * has three lists of ids: with the tokens that the template adds (ids), without them (bare), and
 * with special tokens taken as text (plain). Then it has the text of the ids with special tokens
 * (decoded) and without them (skipped), which is compared as a whole and streamed. If a key is
 * absent, its value equals that of the key before it, or the reference cannot represent the
 * text. */
#include "base/file.h"
#include "base/mem.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "tests/base/shareddata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit.h"

static void fail_ids(const char *what, const char *text, const struct json *want,
                     const int32_t *ids, size_t n)
{
    char *w = json_text(want, 0);
    print_error("%s of '%s'\n  want %s\n  got  [", what, text, w);
    for (size_t i = 0; i < n; i++)
        print_error("%s%d", i > 0 ? ", " : "", ids[i]);
    print_error("]\n");
    free(w);
    fail();
}

static void check_ids(const struct tokenizer *t, const char *what, const char *text,
                      size_t n, unsigned flags, const struct json *want)
{
    int32_t *ids;
    size_t n_ids;
    struct err err = {0};
    if (tokenizer_encode(t, text, n, flags, &ids, &n_ids, &err) != 0)
        fail_msg("%s of '%s': %s", what, text, err.msg);
    bool same = n_ids == json_count(want);
    for (size_t i = 0; i < n_ids && same; i++) {
        int64_t id;
        same = json_int_of(json_at(want, i), &id) && id == ids[i];
    }
    if (!same)
        fail_ids(what, text, want, ids, n_ids);
    free(ids);
}

/* Compares the text of the ids with the expected one, decoded as a whole and through a stream. */
static void check_text(const struct tokenizer *t, const struct json *list, bool skip,
                       const char *want, size_t n_want)
{
    size_t n = json_count(list), n_text;
    int32_t *ids = xmalloc(n * sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        int64_t id = -1;
        json_int_of(json_at(list, i), &id);
        ids[i] = (int32_t)id;
    }
    char *text;
    assert_int_equal(tokenizer_decode(t, ids, n, skip, &text, &n_text, NULL), 0);
    if (n_text != n_want || memcmp(text, want, n_want) != 0)
        fail_msg("decoded\n  want '%s'\n  got  '%s'", want, text);

    struct tokenizer_stream *s = tokenizer_stream_create(t, skip);
    size_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        const char *piece;
        size_t n_piece;
        if (i < n)
            assert_int_equal(tokenizer_stream_push(s, ids[i], &piece, &n_piece, NULL), 0);
        else
            tokenizer_stream_finish(s, &piece, &n_piece);
        assert_true(n_piece <= n_text - at);
        assert_memory_equal(piece, text + at, n_piece);
        assert_int_equal(piece[n_piece], 0);
        at += n_piece;
    }
    assert_int_equal(at, n_text);
    tokenizer_stream_destroy(s);
    free(text);
    free(ids);
}

/* Checks guards: a text that is entirely a user's has the reference's ids of plain text, and a
 * template's text has the same ids as without guards. */
static void check_guards(const struct tokenizer *t, const char *text, size_t n,
                         const struct json *bare, const struct json *plain)
{
    const unsigned flags = TOKENIZER_PARSE_SPECIAL | TOKENIZER_GUARDED;
    uint8_t *none = calloc(1, n / 8 + 9);
    char *guarded = xmemdup(text, n);
    size_t n_guarded = n;
    assert_int_equal(tokenizer_guard(t, &guarded, &n_guarded, NULL, NULL), 0);
    check_ids(t, "guarded ids", guarded, n_guarded, flags, plain);
    free(guarded);
    guarded = xmemdup(text, n_guarded = n);
    assert_int_equal(tokenizer_guard(t, &guarded, &n_guarded, none, NULL), 0);
    assert_int_equal(n_guarded, n);
    assert_memory_equal(guarded, text, n);
    check_ids(t, "ids without guards", guarded, n, flags, bare);
    free(guarded);
    free(none);
}

static void check_case(const struct tokenizer *t, const struct json *c)
{
    size_t n, n_decoded;
    const char *text = json_string_of(json_member(c, "text"), &n);
    const struct json *ids = json_member(c, "ids"), *bare = json_member(c, "bare"),
                      *plain = json_member(c, "plain");
    bare = bare != NULL ? bare : ids;
    plain = plain != NULL ? plain : bare;
    check_ids(t, "ids", text, n, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, ids);
    check_ids(t, "bare ids", text, n, TOKENIZER_PARSE_SPECIAL, bare);
    check_ids(t, "plain ids", text, n, 0, plain);
    check_guards(t, text, n, bare, plain);
    const char *decoded = json_string_of(json_member(c, "decoded"), &n_decoded);
    if (decoded != NULL)
        check_text(t, ids, false, decoded, n_decoded);
    const char *skipped = json_string_of(json_member(c, "skipped"), &n_decoded);
    if (skipped != NULL)
        check_text(t, ids, true, skipped, n_decoded);
}

static void run_golden(void **state)
{
    const char *name = *state;
    char path[4096], dir[SHARED_PATH_BYTES];
    snprintf(path, sizeof path, "tests/model/golden/tokenizer-%s.json", name);
    char *bytes;
    size_t n;
    struct err err = {0};
    if (file_read(path, 1 << 24, &bytes, &n, &err) != 0)
        fail_msg("%s", err.msg);
    struct json *root;
    if (json_parse(&root, bytes, n, path, &err) != 0)
        fail_msg("%s", err.msg);
    free(bytes);

    const char *where = json_string_of(json_member(root, "dir"), NULL);
    if (strncmp(where, "shared:", 7) != 0)
        snprintf(dir, sizeof dir, "tests/model/golden/%s", where);
    else if (!shared_data(where + 7, dir))
        fail_msg("%s is not there", dir);
    struct tokenizer *t;
    if (tokenizer_open(&t, dir, &err) != 0)
        fail_msg("%s", err.msg);
    const struct json *cases = json_member(root, "cases");
    assert_true(json_count(cases) > 100);
    for (size_t i = 0; i < json_count(cases); i++)
        check_case(t, json_at(cases, i));
    tokenizer_close(t);
    json_free(root);
}

int main(void)
{
    static char *const names[] = {"llama2-like", "llama2-first", "metaspace-like",
                                  "gpt2-like",   "llama3-like",  "qwen-like",
                                  "falcon-like", "splits-like"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unit_case(names[i], run_golden, names[i]);
    if (shared_data_has("tokenizers/llama3", "llama3"))
        unit_case("llama3", run_golden, (char[]){"llama3"});
    if (shared_data_has("tokenizers/qwen3", "qwen3"))
        unit_case("qwen3", run_golden, (char[]){"qwen3"});
    return unit_run(NULL, NULL);
}
