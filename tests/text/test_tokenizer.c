/* test_tokenizer.c - the shared vectors, round trips, streaming, long and bad input, folders. */
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "tests/base/shareddata.h"
#include "tests/base/quotes.h"
#include "tests/base/tempdir.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/unit.h"

#define SMALL(name) "tests/model/golden/" name

/* --- helpers ------------------------------------------------------------------------------ */

static struct tokenizer *open_dir(const char *dir)
{
    struct tokenizer *t;
    struct err err = {0};
    if (tokenizer_open(&t, dir, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

/* Returns the path of ../shared/name, which exists. */
static char *shared_path(const char *name)
{
    char path[SHARED_PATH_BYTES];
    if (!shared_data(name, path))
        fail_msg("%s is not there", path);
    return xasprintf("%s", path);
}

static char *read_shared(const char *name, size_t *n)
{
    char *path = shared_path(name), *bytes;
    assert_int_equal(file_read(path, (size_t)1 << 28, &bytes, n, NULL), 0);
    free(path);
    return bytes;
}

static struct tokenizer *open_shared(const char *name)
{
    char *path = shared_path(name);
    struct tokenizer *t = open_dir(path);
    free(path);
    return t;
}

static int32_t *encode(const struct tokenizer *t, const char *s, size_t n, unsigned flags,
                       size_t *n_ids)
{
    int32_t *ids;
    struct err err = {0};
    if (tokenizer_encode(t, s, n, flags, &ids, n_ids, &err) != 0)
        fail_msg("%s", err.msg);
    /* the lower bound holds for every text of these tests */
    assert_true(tokenizer_least_count(t, s, n) <= *n_ids);
    return ids;
}

static void put_file(const char *dir, const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", dir, name), *json = quotes_in(xstrdup(text));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(json, f);
    fclose(f);
    free(json);
    free(path);
}

/* --- shared vectors ----------------------------------------------------------------------- */

static void check_line(const struct tokenizer *t, const char *text, size_t n,
                       const char *want)
{
    size_t n_ids;
    int32_t *ids = encode(t, text, n, 0, &n_ids);
    for (size_t i = 0; i < n_ids; i++) {
        char *end;
        long id = strtol(want, &end, 10);
        if (end == want || id != ids[i])
            fail_msg("'%.*s': id %zu is %d, the vector goes on with '%s'", (int)n, text, i,
                     ids[i], want);
        want = end;
    }
    while (*want == ' ')
        want++;
    assert_int_equal(*want, '\0');
    free(ids);
}

/* Texts are separated by marker lines; the ids of each are on a line of their own. */
static void check_vectors(const char *dir)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char *name = xasprintf("tokenizers/%s/vectors.inp", dir);
    size_t n, n_out;
    char *in = read_shared(name, &n);
    free(name);
    name = xasprintf("tokenizers/%s/vectors.out", dir);
    char *out = read_shared(name, &n_out);
    free(name);
    name = xasprintf("tokenizers/%s", dir);
    struct tokenizer *t = open_shared(name);
    free(name);

    int cases = 0;
    char *line = out;
    for (char *text = in; line < out + n_out; cases++) {
        char *end = strstr(text, mark), *newline = strchr(line, '\n');
        size_t len = end != NULL ? (size_t)(end - text) : strlen(text);
        if (newline != NULL)
            *newline = '\0';
        check_line(t, text, len, line);
        line = newline != NULL ? newline + 1 : out + n_out;
        text = end != NULL ? end + strlen(mark) : text + len;
    }
    assert_true(cases >= 40);
    tokenizer_close(t);
    free(in);
    free(out);
}

TEST_OF_SHARED(test_vectors_gpt2, "tokenizers")
{
    check_vectors("gpt2");
}

TEST_OF_SHARED(test_vectors_qwen3, "tokenizers")
{
    check_vectors("qwen3");
}

static void compare_ids(const int32_t *ids, size_t n, const struct json *want, size_t from)
{
    for (size_t i = 0; i < n; i++) {
        int64_t id = -1;
        json_int_of(json_at(want, from + i), &id);
        assert_int_equal(ids[i], id);
    }
}

/* Checks that every prompt of golden.json has the recorded ids. The recorded text is the
 * continuation, or with `whole` the prompt and the continuation. */
static void check_model(const char *dir, bool whole)
{
    size_t n;
    char *bytes, *path = xasprintf("%s/golden.json", dir);
    assert_int_equal(file_read(path, (size_t)1 << 28, &bytes, &n, NULL), 0);
    free(path);
    struct tokenizer *t = open_dir(dir);
    struct json *root;
    assert_int_equal(json_parse(&root, bytes, n, "golden.json", NULL), 0);
    const struct json *cases = json_member(root, "cases");
    assert_true(json_count(cases) >= 4);
    for (size_t i = 0; i < json_count(cases); i++) {
        const struct json *c = json_at(cases, i);
        const char *prompt = json_string_of(json_member(c, "prompt"), &n);
        const struct json *want = json_member(c, "prompt_ids"),
                          *more = json_member(c, "greedy_ids");
        size_t n_ids, n_all = json_count(want) + json_count(more), n_text;
        int32_t *ids = encode(t, prompt, n, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL,
                              &n_ids);
        assert_int_equal(n_ids, json_count(want));
        compare_ids(ids, n_ids, want, 0);

        ids = xrealloc(ids, n_all * sizeof *ids);
        for (size_t k = n_ids; k < n_all; k++) {
            int64_t id = -1;
            json_int_of(json_at(more, k - n_ids), &id);
            ids[k] = (int32_t)id;
        }
        char *text;
        size_t from = whole ? 0 : n_ids;
        assert_int_equal(
            tokenizer_decode(t, ids + from, n_all - from, true, &text, &n_text, NULL), 0);
        assert_string_equal(text, json_string_of(json_member(c, "text"), NULL));
        free(text);
        free(ids);
    }
    json_free(root);
    tokenizer_close(t);
    free(bytes);
}

TEST(test_demo_model)
{
    check_model("models/demo", false);
}

TEST_OF_SHARED(test_stories, "models/stories260K")
{
    char *dir = shared_path("models/stories260K");
    check_model(dir, true);
    free(dir);
}

/* The whole English text: number of ids and FNV-1a over them, from the tokenizers package:
 *
 *     for id in ids: h = (h ^ id) * 0x100000001b3 mod 2^64, from 0xcbf29ce484222325 */
static void check_long_text(const char *name, size_t want_n, uint64_t want_hash)
{
    size_t n, n_ids, n_text;
    char *text = read_shared("text/input.txt", &n), *back;
    struct tokenizer *t = open_shared(name);
    int32_t *ids = encode(t, text, n, 0, &n_ids);
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n_ids; i++)
        h = (h ^ (uint64_t)ids[i]) * 0x100000001b3u;
    assert_int_equal(n_ids, want_n);
    assert_int_equal(h, want_hash);
    assert_int_equal(tokenizer_decode(t, ids, n_ids, false, &back, &n_text, NULL), 0);
    assert_int_equal(n_text, n);
    assert_memory_equal(back, text, n);
    free(back);
    free(ids);
    free(text);
    tokenizer_close(t);
}

TEST_OF_SHARED(test_long_text, "tokenizers text/input.txt")
{
    check_long_text("tokenizers/llama3", 301768, 0x1fd1074b2c0975a8u);
    check_long_text("tokenizers/qwen3", 301829, 0x9debc245196646c0u);
}

/* --- round trips and streams -------------------------------------------------------------- */

/* Makes random valid UTF-8 of at most 64 bytes: from every plane, mixed with white space and
 * letters. */
static size_t random_text(struct rng *rng, char *out)
{
    size_t n = 0;
    const size_t n_chars = rng_below(rng, 14);
    for (size_t i = 0; i < n_chars; i++) {
        static const uint32_t limits[] = {0x80,  0x80,   0x80,   0x250,
                                          0x800, 0x3000, 0xD800, 0x110000};
        uint32_t c = (uint32_t)rng_below(rng, limits[rng_below(rng, 8)]);
        if ((c >= 0xD800 && c < 0xE000) || c == 0x2581)
            c = ' '; /* no surrogates, and no metaspace, which would decode as a space */
        n += utf8_encode(c, out + n);
    }
    return n;
}

/* Checks that the stream's pieces are whole characters, and that together they are the text. */
static void check_stream(const struct tokenizer *t, const int32_t *ids, size_t n,
                         const char *text, size_t n_text)
{
    struct tokenizer_stream *s = tokenizer_stream_create(t, false);
    /* the second round shows that finishing resets the stream */
    for (int round = 0; round < 2; round++) {
        size_t at = 0;
        for (size_t i = 0; i <= n; i++) {
            const char *piece;
            size_t n_piece;
            if (i < n)
                assert_int_equal(tokenizer_stream_push(s, ids[i], &piece, &n_piece, NULL),
                                 0);
            else
                tokenizer_stream_finish(s, &piece, &n_piece);
            assert_int_equal(utf8_check(piece, n_piece), n_piece);
            assert_true(n_piece <= n_text - at);
            assert_memory_equal(piece, text + at, n_piece);
            at += n_piece;
        }
        assert_int_equal(at, n_text);
    }
    tokenizer_stream_destroy(s);
}

/* Tokenizers that give back every text. Others are left out: those with NFC, which changes text,
 * and those that add a prefix space only sometimes. */
TEST(test_round_trips)
{
    static const char *const dirs[] = {SMALL("llama2-like"), SMALL("llama3-like"),
                                       SMALL("falcon-like")};
    for (size_t d = 0; d < sizeof dirs / sizeof dirs[0]; d++) {
        struct tokenizer *t = open_dir(dirs[d]);
        struct rng rng = {.s = 42 + d};
        for (int i = 0; i < 3000; i++) {
            char text[64], *back;
            size_t n = random_text(&rng, text), n_ids, n_back;
            int32_t *ids = encode(t, text, n, 0, &n_ids);
            assert_int_equal(tokenizer_decode(t, ids, n_ids, false, &back, &n_back, NULL),
                             0);
            if (n_back != n || memcmp(back, text, n) != 0)
                fail_msg("%s: '%.*s' came back as '%s'", dirs[d], (int)n, text, back);
            check_stream(t, ids, n_ids, text, n);
            free(back);
            free(ids);
        }
        tokenizer_close(t);
    }
}

/* Random ids make invalid text: the stream still gives exactly the bytes of the whole. */
TEST(test_streams_of_random_ids)
{
    static const char *const dirs[] = {SMALL("llama2-like"), SMALL("metaspace-like"),
                                       SMALL("qwen-like")};
    for (size_t d = 0; d < sizeof dirs / sizeof dirs[0]; d++) {
        struct tokenizer *t = open_dir(dirs[d]);
        struct rng rng = {.s = 5 + d};
        struct tokenizer_stream *s = tokenizer_stream_create(t, false);
        for (int i = 0; i < 2000; i++) {
            int32_t ids[24];
            size_t n = rng_below(&rng, 24), n_text, at = 0, n_piece;
            for (size_t k = 0; k < n; k++)
                ids[k] = (int32_t)rng_below(&rng, 270 < tokenizer_size(t) ? 270 : 200);
            char *text;
            const char *piece;
            assert_int_equal(tokenizer_decode(t, ids, n, false, &text, &n_text, NULL), 0);
            for (size_t k = 0; k <= n; k++) {
                if (k < n)
                    assert_int_equal(
                        tokenizer_stream_push(s, ids[k], &piece, &n_piece, NULL), 0);
                else
                    tokenizer_stream_finish(s, &piece, &n_piece);
                assert_true(n_piece <= n_text - at);
                assert_memory_equal(piece, text + at, n_piece);
                at += n_piece;
            }
            assert_int_equal(at, n_text);
            free(text);
        }
        tokenizer_stream_destroy(s);
        tokenizer_close(t);
    }
}

/* --- special tokens and look-ups ---------------------------------------------------------- */

TEST(test_special)
{
    struct tokenizer *t = open_dir(SMALL("llama3-like"));
    const int32_t bos = tokenizer_bos(t), eot = tokenizer_find(t, "<|eot_id|>");
    assert_int_equal(bos, 0);
    assert_int_equal(tokenizer_eos(t), -1);
    assert_true(eot >= 0 && tokenizer_is_special(t, eot));
    assert_false(tokenizer_is_special(t, -1));
    assert_false(tokenizer_is_special(t, tokenizer_size(t)));
    assert_int_equal(tokenizer_find(t, "no such token"), -1);
    assert_null(tokenizer_chat_template(t));

    static const char text[] = "a<|eot_id|>";
    size_t n;
    int32_t *ids = encode(t, text, strlen(text), TOKENIZER_PARSE_SPECIAL, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[1], eot);
    char *s;
    size_t len;
    assert_int_equal(tokenizer_decode(t, ids, n, true, &s, &len, NULL), 0);
    assert_string_equal(s, "a");
    free(s);
    free(ids);
    /* Text of a user is never a special token. */
    ids = encode(t, text, strlen(text), TOKENIZER_ADD_SPECIAL, &n);
    assert_int_equal(ids[0], bos);
    for (size_t i = 1; i < n; i++)
        assert_false(tokenizer_is_special(t, ids[i]));
    assert_int_equal(tokenizer_decode(t, ids, n, true, &s, &len, NULL), 0);
    assert_string_equal(s, text);
    free(s);
    free(ids);

    const char *bytes = tokenizer_bytes(t, tokenizer_find(t, "\xC4\xA0the"), &len);
    assert_string_equal(bytes, " the");
    assert_null(tokenizer_bytes(t, tokenizer_size(t), &len));
    struct err err = {0};
    int32_t bad[] = {1, 99999};
    assert_int_equal(tokenizer_decode(t, bad, 2, false, &s, &len, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "token id 99999 is not in the vocabulary");
    tokenizer_close(t);
}

/* --- bad and long input ------------------------------------------------------------------- */

TEST(test_invalid_utf8)
{
    static const struct {
        const char *text;
        size_t n, bad;
    } cases[] = {
        {"\xff", 1, 0},
        {"abc\x80", 4, 3},
        {"a\xc3", 2, 1},
        {"\xe2\x96", 2, 0},
        {"\xed\xa0\x80", 3, 0},
        {"\xc0\x80", 2, 0},
        {"ok \xf4\x90\x80\x80", 7, 3},
    };
    struct tokenizer *t = open_dir(SMALL("llama3-like"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        int32_t *ids;
        size_t n;
        assert_int_equal(tokenizer_encode(t, cases[i].text, cases[i].n, 0, &ids, &n, &err),
                         ERR_FORMAT);
        char want[64];
        snprintf(want, sizeof want, "invalid UTF-8 at byte %zu", cases[i].bad);
        assert_string_equal(err.msg, want);
    }
    tokenizer_close(t);
}

/* Long runs of one character, which a backtracking expression or a quadratic merge would not
 * survive. */
TEST(test_long_runs)
{
    static const char *const dirs[] = {SMALL("llama2-like"), SMALL("llama3-like"),
                                       SMALL("falcon-like")};
    static const char *const units[] = {" ", "a",   "\n",           "=",
                                        "1", " \n", "\xE6\x88\x91", "the "};
    enum { N = 200000 };
    char *text = xmalloc(4 * N);
    for (size_t d = 0; d < sizeof dirs / sizeof dirs[0]; d++) {
        struct tokenizer *t = open_dir(dirs[d]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t n = 0, n_ids, n_back;
            for (int i = 0; i < N; i++) {
                memcpy(text + n, units[u], strlen(units[u]));
                n += strlen(units[u]);
            }
            int32_t *ids = encode(t, text, n, 0, &n_ids);
            char *back;
            assert_int_equal(tokenizer_decode(t, ids, n_ids, false, &back, &n_back, NULL),
                             0);
            assert_int_equal(n_back, n);
            assert_memory_equal(back, text, n);
            free(back);
            free(ids);
        }
        tokenizer_close(t);
    }
    free(text);
}

/* --- threads ------------------------------------------------------------------------------ */

struct racer {
    const struct tokenizer *t;
    size_t n_ids;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    static const char text[] =
        "When a conversation comes back after an hour, the engine goes on. ";
    for (int i = 0; i < 200; i++) {
        int32_t *ids;
        if (tokenizer_encode(r->t, text, strlen(text), 0, &ids, &r->n_ids, NULL) == 0)
            free(ids);
    }
    return NULL;
}

TEST(test_threads_share)
{
    struct tokenizer *t = open_dir(SMALL("qwen-like"));
    struct racer r[4];
    pthread_t th[4];
    for (int i = 0; i < 4; i++) {
        r[i] = (struct racer){.t = t};
        assert_int_equal(pthread_create(&th[i], NULL, race, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(th[i], NULL);
    for (int i = 0; i < 4; i++)
        assert_true(r[i].n_ids > 0 && r[i].n_ids == r[0].n_ids);
    tokenizer_close(t);
}

/* --- folders ------------------------------------------------------------------------------ */

static void expect_open_error(const char *dir, int code, const char *part)
{
    struct tokenizer *t;
    struct err err = {0};
    int rc = tokenizer_open(&t, dir, &err);
    if (rc != code || strstr(err.msg, part) == NULL)
        fail_msg("expected %d with '%s', got %d: %s", code, part, rc, err.msg);
}

/* A vocabulary in OPT's form: vocab.json and merges.txt. tokenizer_config.json says which token is
 * put in front. */
TEST(test_vocab_and_merges)
{
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "tokenizer");
    expect_open_error(dir, -ENOENT, "has no tokenizer");
    char *pipe = xasprintf("%s/tokenizer.json", dir);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    /* a pipe is refused without waiting for its writer */
    expect_open_error(dir, ERR_FORMAT, "tokenizer.json: not a regular file");
    assert_int_equal(unlink(pipe), 0);
    free(pipe);
    put_file(dir, "vocab.json",
             "{'<s>': 0, '</s>': 1, 'a': 2, 'b': 3, 'ab': 4,'\xC4\xA0': 5, '\xC4\xA0"
             "ab': 6}");
    expect_open_error(dir, -ENOENT, "has no tokenizer");
    put_file(dir, "merges.txt", "#version: 0.2\na b\n\xC4\xA0 ab\n");
    put_file(dir, "tokenizer_config.json",
             "{'bos_token': '</s>', 'eos_token': '</s>', 'add_bos_token': true}");
    struct tokenizer *t = open_dir(dir);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_true(tokenizer_is_special(t, 1));
    size_t n;
    int32_t *ids = encode(t, "ab ab", 5, TOKENIZER_ADD_SPECIAL, &n);
    static const int32_t want[] = {1, 4, 6};
    assert_int_equal(n, 3);
    assert_memory_equal(ids, want, sizeof want);
    free(ids);
    ids = encode(t, "acb", 3, 0, &n); /* a byte without a token is dropped before merging */
    assert_true(n == 1 && ids[0] == 4);
    free(ids);
    assert_int_equal(tokenizer_least_count(t, "ccc", 3), 0);
    tokenizer_close(t);

    /* A named token that the vocabulary lacks gets the next id. */
    put_file(dir, "tokenizer_config.json", "{'bos_token': '<bos>'}");
    t = open_dir(dir);
    assert_int_equal(tokenizer_bos(t), 7);
    assert_true(tokenizer_is_special(t, 7));
    tokenizer_close(t);
    put_file(dir, "merges.txt", "a b\na zz\n");
    expect_open_error(dir, ERR_FORMAT,
                      "merges.txt: merges[1]: token 'zz' is not in the vocabulary");
    put_file(dir, "merges.txt", "a b\n");
    put_file(dir, "tokenizer_config.json", "{}");
    put_file(dir, "added_tokens.json", "{}");
    expect_open_error(dir, ERR_UNSUPPORTED, "added_tokens.json: is not supported");
    tempdir_remove(dir);
}

/* The vocabulary's first token may have no bytes. */
TEST(test_empty_token)
{
    char dir[TEMPDIR_BYTES], *text;
    static const int32_t ids[] = {1, 0, 2, 0};
    size_t n;
    tempdir_make(dir, "tokenizer");
    put_file(dir, "vocab.json", "{'': 0, 'a': 1, 'b': 2}");
    put_file(dir, "merges.txt", "");
    put_file(dir, "tokenizer_config.json", "{}");
    struct tokenizer *t = open_dir(dir);
    assert_string_equal(tokenizer_bytes(t, 0, &n), "");
    assert_int_equal(n, 0);
    assert_string_equal(tokenizer_bytes(t, 1, &n), "a");
    assert_int_equal(tokenizer_decode(t, ids, 4, 0, &text, &n, NULL), 0);
    assert_string_equal(text, "ab");
    free(text);
    tokenizer_close(t);
    tempdir_remove(dir);
}

/* A normalizer that doubles its text in every step: the text is refused, and a later text is
 * accepted. */
TEST(test_replace_bomb)
{
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "tokenizer");
    char *steps = xasprintf("%s", "");
    for (int i = 0; i < 16; i++) {
        char *more = xasprintf("%s%s{'type': 'Replace', 'pattern': {'String': 'a'}, "
                               "'content': 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}",
                               steps, i > 0 ? ", " : "");
        free(steps);
        steps = more;
    }
    char *text = xasprintf("{'version': '1.0', 'added_tokens': [], 'normalizer': {'type': "
                           "'Sequence', 'normalizers': [%s]}, 'pre_tokenizer': null, "
                           "'post_processor': null, 'decoder': {'type': 'Fuse'}, 'model': "
                           "{'type': 'BPE', 'vocab': {'a': 0, 'b': 1}, 'merges': []}}",
                           steps);
    put_file(dir, "tokenizer.json", text);
    free(text);
    free(steps);
    struct tokenizer *t = open_dir(dir);
    char long_text[3000];
    memset(long_text, 'a', sizeof long_text);
    struct err err = {0};
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, "a", 1, 0, &ids, &n, &err), ERR_LIMIT);
    assert_int_equal(tokenizer_encode(t, long_text, sizeof long_text, 0, &ids, &n, &err),
                     ERR_LIMIT);
    assert_non_null(strstr(err.msg, "normalizer makes more than"));
    ids = encode(t, "bb", 2, 0, &n);
    assert_int_equal(n, 2);
    free(ids);
    tokenizer_close(t);
    tempdir_remove(dir);
}

/* --- tokens that tokenizer_config.json adds --------------------------------------------------
 *
 * All ids are those of transformers 5.23 (AutoTokenizer) for the same two files. */

#define POST_TEMPLATE                                                                      \
    "{'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': '<s>', 'type_id': " \
    "0}}, {'Sequence': {'id': 'A', 'type_id': 0}}], 'pair': [{'SpecialToken': {'id': "     \
    "'<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': " \
    "'B', 'type_id': 1}}], 'special_tokens': {'<s>': {'id': '<s>', 'ids': [1], 'tokens': " \
    "['<s>']}}}"
#define SPECIAL_AT(id, text)                                                               \
    "{'id': " #id ", 'content': '" text                                                    \
    "', 'single_word': false, 'lstrip': false, 'rstrip': false, 'normalized': false, "     \
    "'special': true}"

/* Opens a tokenizer with the vocabulary <unk> <s> </s> a b ab (ids 0 to 5). `added` lists its
 * special tokens, `config` has further members of tokenizer_config.json. */
static struct tokenizer *open_ab(const char *dir, const char *post, const char *added,
                                 const char *config)
{
    char *text = xasprintf(
        "{'version': '1.0', 'truncation': null, 'padding': null, 'added_tokens': [%s], "
        "'normalizer': null, 'pre_tokenizer': null, 'post_processor': %s, 'decoder': "
        "{'type': 'Fuse'}, 'model': {'type': 'BPE', 'unk_token': '<unk>', 'vocab': "
        "{'<unk>': 0, '<s>': 1, '</s>': 2, 'a': 3, 'b': 4, 'ab': 5}, 'merges': ['a b']}}",
        added, post);
    put_file(dir, "tokenizer.json", text);
    free(text);
    text = xasprintf("{'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>'%s}",
                     config);
    put_file(dir, "tokenizer_config.json", text);
    free(text);
    return open_dir(dir);
}

#define ALL_SPECIAL                                                                        \
    SPECIAL_AT(0, "<unk>") "," SPECIAL_AT(1, "<s>") "," SPECIAL_AT(2, "</s>")

static void expect_ids(struct tokenizer *t, const char *text, unsigned flags, int n_want,
                       const int32_t *want)
{
    size_t n;
    int32_t *ids = encode(t, text, strlen(text), flags, &n);
    if ((int)n != n_want || memcmp(ids, want, n * sizeof *ids) != 0)
        fail_msg("'%s' has other ids", text);
    free(ids);
}

#define IDS(...)                                                                           \
    (int)(sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t)), (const int32_t[])             \
    {                                                                                      \
        __VA_ARGS__                                                                        \
    }

/* Tokens that only the added_tokens_decoder of tokenizer_config.json lists: new tokens, tokens of
 * the vocabulary, and other flags for known tokens. */
TEST(test_listed_tokens)
{
    enum { FLAGS = TOKENIZER_PARSE_SPECIAL };
    static const struct {
        const char *list, *text;
        int n;
        int32_t ids[8];
    } cases[] = {
        {"'6': {'content': '<x>', 'special': true}", "ab<x>b", 3, {5, 6, 4}},
        {"'6': {'content': '<y>', 'special': true}, '7': {'content': '<x>'}",
         "ab<x>b",
         3,
         {5, 7, 4}},
        {"'7': {'content': '<y>'}, '6': {'content': '<x>'}", "ab<x>b", 3, {5, 6, 4}},
        {"'6': {'content': '<x>', 'lstrip': true, 'normalized': false}",
         "ab <x>b",
         3,
         {5, 6, 4}},
        {"'5': {'content': 'ab', 'special': true}", "aab", 2, {3, 5}},
        {"'4': {'content': 'b', 'normalized': false}", "ab", 2, {3, 4}},
        {"'1': {'content': '<s>', 'lstrip': true, 'special': true}",
         "a <s>ab",
         3,
         {3, 1, 5}},
        {"'1': {'content': '<s>', 'special': false}", "<s>ab", 2, {1, 5}},
        {"'6': {'content': ''}", "ab", 1, {5}},
    };
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "tokenizer");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *config = xasprintf(", 'added_tokens_decoder': {%s}", cases[i].list);
        struct tokenizer *t = open_ab(dir, "null", ALL_SPECIAL, config);
        expect_ids(t, cases[i].text, FLAGS, cases[i].n, cases[i].ids);
        tokenizer_close(t);
        free(config);
    }
    /* </s> is in the vocabulary and named as the end token, but not among the added tokens: in a
     * text it is one special token. */
    struct tokenizer *t = open_ab(dir, "null", SPECIAL_AT(0, "<unk>"), "");
    expect_ids(t, "ab</s>", FLAGS, IDS(5, 2));
    assert_true(tokenizer_is_special(t, 2));
    tokenizer_close(t);
    /* The list has more tokens than tokenizer.json has in all. */
    char *many = xasprintf("%s", "");
    for (int id = 6; id < 26; id++) {
        char *longer = xasprintf("%s%s'%d': {'content': '<%d>'}", many, id > 6 ? ", " : "",
                                 id, id);
        free(many);
        many = longer;
    }
    char *config = xasprintf(", 'added_tokens_decoder': {%s}", many);
    t = open_ab(dir, "null", ALL_SPECIAL, config);
    expect_ids(t, "ab<6><25>b", FLAGS, IDS(5, 6, 25, 4));
    tokenizer_close(t);
    free(config);
    free(many);
    /* The reference would give the new token id 6, whatever id the list gives. */
    put_file(dir, "tokenizer_config.json",
             "{'added_tokens_decoder': {'9': {'content': '<x>'}}}");
    expect_open_error(dir, ERR_MISMATCH, "'<x>' has id 9, but the next free one is 6");
    put_file(dir, "tokenizer_config.json",
             "{'added_tokens_decoder': {'6': {'content': '<x>', 'single_word': true}}}");
    expect_open_error(dir, ERR_UNSUPPORTED, "'single_word' is not supported");
    put_file(dir, "tokenizer_config.json",
             "{'added_tokens_decoder': {'six': {'content': '<x>'}}}");
    expect_open_error(dir, ERR_FORMAT, "'six' is not a token's id");
    tempdir_remove(dir);
}

#define ADDED(text, more) "{'__type': 'AddedToken', 'content': '" text "'" more "}"
#define NORMALIZED(is)    ", 'normalized': " #is

/* Special tokens that only tokenizer_config.json or special_tokens_map.json names get the next free
 * ids, in the reference's order. */
TEST(test_named_tokens)
{
    enum { UNK = 0 };
    static const char text[] = "<q><p><x><y><z><m>";
    static const struct {
        const char *config, *map;
        /* expected ids; UNK: the tokenizer does not know this token */
        int32_t q, p, x, y, z, m;
    } cases[] = {
        {", 'pad_token': '<p>'", NULL, .p = 6},
        /* the order is the reference's, not that in the file */
        {", 'pad_token': '<p>', 'mask_token': '<m>', 'sep_token': '<q>', "
         "'additional_special_tokens': ['<x>', '<p>', '<y>']",
         NULL, .q = 6, .p = 7, .m = 8, .x = 9, .y = 10},
        /* a token of the vocabulary ("b") keeps its id */
        {", 'additional_special_tokens': ['<y>', '<x>', 'b']", NULL, .y = 6, .x = 7},
        {", 'extra_special_tokens': ['<y>', '<x>'], 'additional_special_tokens': ['<z>']",
         NULL, .y = 6, .x = 7},
        {", 'extra_special_tokens': [], 'additional_special_tokens': ['<z>']", NULL,
         .z = 6},
        {", 'extra_special_tokens': {'image_token': '<y>'}, 'additional_special_tokens': "
         "['<z>']",
         NULL, .y = 6, .z = 7},
        {", 'image_token': '<y>', 'pad_token': '<p>', 'additional_special_tokens': ['<z>']",
         NULL, .p = 6, .y = 7, .z = 8},
        {", 'pad_token': " ADDED("<p>", NORMALIZED(true)), NULL, .p = 6},
        {", 'pad_token': '', 'additional_special_tokens': ['', '<x>']", NULL, .x = 6},
        {", 'additional_special_tokens': null", NULL, .x = UNK},
        /* special_tokens_map.json overrides tokenizer_config.json, ... */
        {"", "{'pad_token': '<p>', 'additional_special_tokens': ['<x>']}", .p = 6, .x = 7},
        {", 'pad_token': '<p>'",
         "{'pad_token': '<q>', 'additional_special_tokens': ['<x>']}", .q = 6, .x = 7},
        {", 'pad_token': '<p>'", "{'pad_token': null}", .p = UNK},
        {"", "{'image_token': '<y>'}", .y = 6},
        /* ... but the lists of tokenizer_config.json override those of special_tokens_map.json,
         * ... */
        {", 'additional_special_tokens': ['<y>']", "{'additional_special_tokens': ['<x>']}",
         .y = 6},
        {", 'extra_special_tokens': ['<y>']", "{'extra_special_tokens': ['<x>']}", .y = 6,
         .x = 7},
        {", 'extra_special_tokens': ['<y>']", "{'additional_special_tokens': ['<x>']}",
         .y = 6},
        /* ... and with an added_tokens_decoder special_tokens_map.json does not count. */
        {", 'added_tokens_decoder': {'6': {'content': '<x>', 'special': true}}, "
         "'pad_token': '<p>'",
         "{'pad_token': '<q>'}", .x = 6, .p = 7},
        {", 'added_tokens_decoder': {}, 'pad_token': '<p>'", "{'pad_token': '<q>'}",
         .p = 6},
        {", 'added_tokens_decoder': {'6': {'content': '<x>'}}, "
         "'additional_special_tokens': ['<y>', '<x>']",
         NULL, .x = 6, .y = 7},
        /* The order of other names: first tokens written as objects, then
         * special_tokens_map.json's, then those written as text, then extra_special_tokens. */
        {", 'extra_special_tokens': {'image_token': '<y>', 'b_token': '<q>'}, "
         "'image_token': '<x>', 'a_token': " ADDED("<m>", NORMALIZED(false)),
         "{'c_token': '<p>', 'pad_token': '<z>'}", .z = 6, .m = 7, .p = 8, .y = 9, .q = 10},
    };
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "tokenizer");
    char *map = xasprintf("%s/special_tokens_map.json", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].map != NULL)
            put_file(dir, "special_tokens_map.json", cases[i].map);
        struct tokenizer *t = open_ab(dir, "null", ALL_SPECIAL, cases[i].config);
        const int32_t want[6] = {cases[i].q, cases[i].p, cases[i].x,
                                 cases[i].y, cases[i].z, cases[i].m};
        int32_t ids[18];
        int n = 0;
        for (int k = 0; k < 6; k++)
            for (int left = want[k] == UNK ? 3 : 1; left > 0; left--)
                ids[n++] = want[k];
        expect_ids(t, text, TOKENIZER_PARSE_SPECIAL, n, ids);
        tokenizer_close(t);
        if (cases[i].map != NULL)
            assert_int_equal(unlink(map), 0);
    }
    free(map);
    tempdir_remove(dir);
}

/* The flags of named tokens; tokens that cannot be used as in the reference are refused. */
TEST(test_named_flags)
{
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "tokenizer");
    struct tokenizer *t = open_ab(
        dir, "null", ALL_SPECIAL,
        ", 'pad_token': " ADDED(
            "<p>", ", 'lstrip': true" NORMALIZED(
                       false)) ",'additional_special_tokens': [" ADDED("<x>",
                                                                       ", 'rstrip': "
                                                                       "true" NORMALIZED(
                                                                           false)) "]");
    expect_ids(t, "a <p>b<x> b", TOKENIZER_PARSE_SPECIAL, IDS(3, 6, 4, 7, 4));
    assert_true(tokenizer_is_special(t, 6));
    /* a token written as an object in the list keeps its own flags, here: not special */
    assert_false(tokenizer_is_special(t, 7));
    assert_int_equal(tokenizer_n_listed(t), 6);
    assert_int_equal(tokenizer_size(t), 8);
    struct err err = {0};
    const int32_t pad[] = {3, 6}, plain[] = {3, 5};
    assert_int_equal(tokenizer_check_rows(t, plain, 2, 6, &err), 0);
    assert_int_equal(tokenizer_check_rows(t, pad, 2, 7, &err), 0);
    assert_int_equal(tokenizer_check_rows(t, pad, 2, 6, &err), ERR_USAGE);
    assert_non_null(
        strstr(err.msg, "the token '<p>' (id 6), for which the model has no embedding"));
    tokenizer_close(t);
    /* A named token that is an added token already keeps its flags. A named token of the vocabulary
     * becomes an added token. */
    t = open_ab(dir, "null", ALL_SPECIAL,
                ", 'pad_token': " ADDED("<s>", ", 'lstrip': true"));
    expect_ids(t, "a <s>", TOKENIZER_PARSE_SPECIAL, IDS(3, 0, 1));
    tokenizer_close(t);
    t = open_ab(dir, "null", ALL_SPECIAL, ", 'pad_token': " ADDED("a", ", 'lstrip': true"));
    expect_ids(t, "b a", TOKENIZER_PARSE_SPECIAL, IDS(4, 3));
    assert_true(tokenizer_is_special(t, 3));
    tokenizer_close(t);
    put_file(dir, "tokenizer_config.json", "{'bos_token': '<b>', 'eos_token': '<e>'}");
    t = open_dir(dir);
    assert_int_equal(tokenizer_bos(t), 6);
    assert_int_equal(tokenizer_eos(t), 7);
    tokenizer_close(t);
    put_file(dir, "tokenizer_config.json", "{'pad_token': 5}");
    expect_open_error(dir, ERR_FORMAT, "'pad_token' must be a token's text or an object");
    put_file(dir, "tokenizer_config.json", "{'additional_special_tokens': '<x>'}");
    expect_open_error(dir, ERR_FORMAT, "'additional_special_tokens' must be");
    put_file(dir, "tokenizer_config.json",
             "{'pad_token': " ADDED("<p>", ", 'single_word': true") "}");
    expect_open_error(dir, ERR_UNSUPPORTED, "'<p>': 'single_word' is not supported");
    put_file(dir, "tokenizer_config.json", "{}");
    put_file(dir, "special_tokens_map.json", "[");
    expect_open_error(dir, ERR_FORMAT, "special_tokens_map.json");
    tempdir_remove(dir);
}

/* add_bos_token and add_eos_token act with vocab.json and merges.txt. With a tokenizer.json they
 * change nothing: its post-processor decides alone, even if the file has none. */
TEST(test_switches)
{
    static const char *const switches[] = {
        "",
        ", 'add_eos_token': true",
        ", 'add_bos_token': true",
        ", 'add_bos_token': true, 'add_eos_token': true",
        ", 'add_bos_token': false",
        ", 'add_bos_token': false, 'add_eos_token': true"};
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "tokenizer");
    for (int i = 0; i < 6; i++) {
        struct tokenizer *t = open_ab(dir, "null", ALL_SPECIAL, switches[i]);
        expect_ids(t, "ab", TOKENIZER_ADD_SPECIAL, IDS(5));
        tokenizer_close(t);
        t = open_ab(dir, POST_TEMPLATE, ALL_SPECIAL, switches[i]);
        expect_ids(t, "ab", TOKENIZER_ADD_SPECIAL, IDS(1, 5));
        tokenizer_close(t);
    }
    char *path = xasprintf("%s/tokenizer.json", dir);
    assert_int_equal(unlink(path), 0);
    free(path);
    put_file(dir, "vocab.json",
             "{'<unk>': 0, '<s>': 1, '</s>': 2, 'a': 3, 'b': 4, 'ab': 5}");
    put_file(dir, "merges.txt", "#version: 0.2\na b\n");
    for (int i = 0; i < 6; i++) {
        char *text = xasprintf("{'bos_token': '<s>', 'eos_token': '</s>'%s}", switches[i]);
        put_file(dir, "tokenizer_config.json", text);
        free(text);
        struct tokenizer *t = open_dir(dir);
        bool bos = i == 2 || i == 3, eos = i == 1 || i == 3 || i == 5;
        int32_t want[3] = {1, 5, 2};
        expect_ids(t, "ab", TOKENIZER_ADD_SPECIAL, 1 + bos + eos, want + !bos);
        tokenizer_close(t);
    }
    tempdir_remove(dir);
}

/* Faults that show only when the parts of a tokenizer are put together. */
TEST(test_unsupported_parts)
{
    static const struct {
        const char *more;
        int code;
        const char *part;
    } cases[] = {
        {"", ERR_UNSUPPORTED, "decoder: a tokenizer without one is not supported"},
        {", 'decoder': {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}",
         ERR_UNSUPPORTED, "decoder: Strip"},
        {", 'decoder': {'type': 'Sequence', 'decoders': [{'type': 'Fuse'}, {'type': "
         "'ByteFallback'}]}",
         ERR_UNSUPPORTED, "decoder: Replace or ByteFallback behind Fuse"},
        {", 'decoder': {'type': 'Fuse'}, 'pre_tokenizer': {'type': 'Split', 'pattern': "
         "{'Regex': '\\\\w+'}, 'behavior': 'Isolated'}",
         ERR_UNSUPPORTED, "regular expression: '\\w' is not supported"},
        {", 'decoder': {'type': 'Fuse'}, 'pre_tokenizer': {'type': 'Split', 'pattern': "
         "{'Regex': '(a'}, 'behavior': 'Isolated'}",
         ERR_FORMAT, "regular expression '(a': missing closing parenthesis"},
    };
    char dir[TEMPDIR_BYTES], text[1024];
    tempdir_make(dir, "tokenizer");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text,
                 "{'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': []}%s}",
                 cases[i].more);
        put_file(dir, "tokenizer.json", text);
        expect_open_error(dir, cases[i].code, cases[i].part);
    }
    tempdir_remove(dir);
}

/* The EOS and added tokens that end a turn end an answer.  A text that means something else beside
 * other tokens does not.  generation_config.json names tokens that answers must not contain. */
TEST(test_ends_and_suppressed_tokens)
{
#define BYTES                                                                              \
    "{'type': 'ByteLevel', 'add_prefix_space': false, 'trim_offsets': true, 'use_regex': " \
    "true}"
    static const struct {
        const char *eos, *added[4];
        int n, ends[4];
    } rows[] = {
        {"b", {"<|im_end|>", "<|im_start|>"}, 2, {1, 2}},
        {NULL, {"<|end|>", "<|return|>"}, 2, {2, 3}},
        {NULL, {"<|end|>", "<|return|>", "<|call|>"}, 2, {3, 4}},
        {"<|end|>", {"<|end|>", "<|calls|>", "<|flush|>"}, 3, {2, 3, 4}},
        {NULL, {"</s>", "<eos>"}, 2, {2, 3}},
        {NULL, {"</s>", "<|tool_response>", "<turn|>"}, 2, {4, 3}},
        {NULL, {"</s>", "<|plamo:eos|>"}, 0, {0}},
    };
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "tokenizer");
    put_file(dir, "generation_config.json", "{'suppress_tokens': [1, -1, 3, 99]}");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char added[768] = "", config[128] = "{}";
        int32_t ids[TOKENIZER_MAX_ENDS];
        int n_suppressed;
        for (int i = 0; rows[r].added[i] != NULL; i++)
            snprintf(added + strlen(added), sizeof added - strlen(added),
                     "%s{'id': %d, 'content': '%s', 'special': true, 'single_word': false, "
                     "'lstrip': false, 'rstrip': false, 'normalized': false}",
                     i > 0 ? ", " : "", 2 + i, rows[r].added[i]);
        char *json = xasprintf(
            "{'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1}, 'merges': []}, "
            "'added_tokens': [%s], 'pre_tokenizer': " BYTES ", 'decoder': " BYTES "}",
            added);
        put_file(dir, "tokenizer.json", json);
        free(json);
        if (rows[r].eos != NULL)
            snprintf(config, sizeof config, "{'eos_token': '%s'}", rows[r].eos);
        put_file(dir, "tokenizer_config.json", config);
        struct tokenizer *t = open_dir(dir);
        assert_int_equal(tokenizer_ends(t, ids), rows[r].n);
        for (int i = 0; i < rows[r].n; i++)
            assert_int_equal(ids[i], rows[r].ends[i]);
        const int32_t *suppressed = tokenizer_suppressed(t, &n_suppressed);
        assert_int_equal(suppressed[0], 1);
        assert_int_equal(n_suppressed, rows[r].added[1] != NULL ? 2 : 1);
        tokenizer_close(t);
    }
    put_file(dir, "generation_config.json", "{'suppress_tokens': [1.5]}");
    expect_open_error(dir, ERR_FORMAT, "'suppress_tokens' must be a list of integers");
    tempdir_remove(dir);
}

/* SentencePiece's handling of spaces, as transformers 5.24 saves it for Mistral: normalizers with
 * regular expressions, which see each text between special tokens.  The ids are the reference's. */
TEST(test_regular_expressions_that_replace)
{
    static const char json[] =
        "{'added_tokens': [{'id': 6, 'content': '<s>', 'single_word': false, 'lstrip': "
        "false, 'rstrip': false, 'normalized': false, 'special': true}], 'normalizer': "
        "{'type': 'Sequence', 'normalizers': [{'type': 'Replace', 'pattern': {'Regex': "
        "'\\\\A +| +\\\\z'}, 'content': ''}, {'type': 'Replace', 'pattern': {'Regex': ' "
        "{2,}'}, 'content': ' '}, {'type': 'Replace', 'pattern': {'String': ' '}, "
        "'content': '\xE2\x96\x81'}, {'type': 'Replace', 'pattern': {'Regex': "
        "'\\\\A\xE2\x96\x81'}, 'content': '\xE2\x96\x81\xE2\x96\x81'}]}, 'pre_tokenizer': "
        "{'type': 'Metaspace', 'replacement': '\xE2\x96\x81', 'prepend_scheme': 'always', "
        "'split': false}, 'decoder': {'type': 'Fuse'}, 'model': {'type': 'BPE', "
        "'unk_token': '?', 'vocab': {'?': 0, '\xE2\x96\x81': 1, 'a': 2, 'b': 3, "
        "'\xE2\x96\x81"
        "a': 4, '\xE2\x96\x81\xE2\x96\x81': 5, '<s>': 6}, 'merges': [['\xE2\x96\x81', "
        "'a'], ['\xE2\x96\x81', '\xE2\x96\x81']]}}";
    static const struct {
        const char *text;
        size_t n;
        int32_t ids[4];
    } rows[] = {{"a", 1, {4}},
                {"\xE2\x96\x81"
                 "a",
                 2,
                 {1, 4}},
                {"  a   b ", 3, {4, 1, 3}},
                {"a<s>\xE2\x96\x81"
                 "b",
                 4,
                 {4, 6, 5, 3}},
                {"\xE2\x96\x81", 1, {5}},
                {"\xE2\x96\x81\xE2\x96\x81", 2, {5, 1}},
                {"<s>  a", 2, {6, 4}}};
    char dir[TEMPDIR_BYTES];
    size_t n;
    tempdir_make(dir, "tokenizer");
    put_file(dir, "tokenizer.json", json);
    struct tokenizer *t = open_dir(dir);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int32_t *ids = encode(t, rows[i].text, strlen(rows[i].text),
                              TOKENIZER_PARSE_SPECIAL, &n);
        assert_int_equal(n, rows[i].n);
        assert_memory_equal(ids, rows[i].ids, n * sizeof *ids);
        free(ids);
    }
    assert_int_equal(tokenizer_least_count(t, "a      a", 8), 0); /* spaces may vanish */
    tokenizer_close(t);
    tempdir_remove(dir);
}
