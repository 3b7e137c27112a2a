/* test_tokenizer_json.c - tokenizer files: the parts that are read, and the messages of refusals.
 */
#include "bpe/tokenizer_json.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

/* A file with a good model; `rest` holds its other members. */
#define VOCAB                "\"vocab\": {\"<unk>\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"abb\": 5}"
#define MODEL(more)          "\"model\": {\"type\": \"BPE\", " VOCAB more "}"
#define FILE_OF(model, rest) "{" model rest "}"
#define REST(rest)           FILE_OF(MODEL(", \"merges\": [\"a b\", [\"ab\", \"b\"]]"), ", " rest)

static int parse(struct tokenizer_json *t, const char *text, struct err *err)
{
    return tokenizer_json_parse(t, text, strlen(text), "tokenizer.json", err);
}

TEST(test_model)
{
    struct tokenizer_json t;
    struct err err = {0};
    const char *text = REST("\"added_tokens\": ["
                            "{\"id\": 0, \"content\": \"<unk>\", \"special\": true,"
                            " \"normalized\": false},"
                            "{\"id\": 7, \"content\": \"<x>\", \"lstrip\": true}]");
    if (parse(&t, text, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(t.n_ids, 8);
    assert_string_equal(t.tokens[5].s, "abb");
    assert_null(t.tokens[4].s);
    assert_int_equal(tokenizer_json_find(&t, "ab", 2), 3);
    assert_int_equal(tokenizer_json_find(&t, "zz", 2), -1);
    assert_int_equal(t.n_merges, 2);
    assert_int_equal(t.merges[1].left, 3);
    assert_int_equal(t.merges[1].joined, 5);
    assert_int_equal(t.unk_id, -1);
    assert_int_equal(t.n_added, 2);
    assert_true(t.added[0].special && t.added[0].in_vocab && !t.added[0].normalized);
    assert_true(t.added[1].lstrip && !t.added[1].in_vocab && t.added[1].normalized);
    assert_int_equal(tokenizer_json_find(&t, "<x>", 3), 7);
    tokenizer_json_deinit(&t);
}

TEST(test_steps)
{
    struct tokenizer_json t;
    struct err err = {0};
    const char *text = REST(
        "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": ["
        "{\"type\": \"NFC\"}, {\"type\": \"Sequence\", \"normalizers\": ["
        "{\"type\": \"Prepend\", \"prepend\": \"_\"}]},"
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"_\"}]},"
        "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x+\"}, \"behavior\": \"Removed\","
        " \"invert\": true},"
        "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"first\","
        " \"split\": false},"
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}]},"
        "\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0},"
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
        "{\"SpecialToken\": {\"id\": \"A\", \"type_id\": 0}},"
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}},"
        "{\"SpecialToken\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [],"
        "\"special_tokens\": {\"A\": {\"id\": \"A\", \"ids\": [1, 2], \"tokens\": []}}},"
        "\"truncation\": {\"max_length\": 5}, \"padding\": null");
    if (parse(&t, text, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(t.n_normalizers, 3);
    assert_int_equal(t.normalizers[1].kind, NORMALIZER_PREPEND);
    assert_string_equal(t.normalizers[2].pattern.s, " ");
    assert_int_equal(t.n_pretokenizers, 3);
    assert_true(t.pretokenizers[0].is_regex && t.pretokenizers[0].invert);
    assert_int_equal(t.pretokenizers[0].behavior, SPLIT_REMOVED);
    assert_int_equal(t.pretokenizers[1].prepend, PREPEND_FIRST);
    assert_false(t.pretokenizers[1].split);
    assert_true(t.pretokenizers[2].add_prefix_space && t.pretokenizers[2].use_regex);
    assert_int_equal(t.decoders[0].start, 1);
    assert_true(t.has_template);
    assert_int_equal(t.n_prefix, 2);
    assert_int_equal(t.n_suffix, 2);
    assert_int_equal(t.suffix[1], 2);
    tokenizer_json_deinit(&t);
}

/* Parses a good file. */
static struct tokenizer_json read_file(const char *text)
{
    struct tokenizer_json t;
    struct err err = {0};
    if (parse(&t, text, &err) != 0)
        fail_msg("%s\n  %s", text, err.msg);
    return t;
}

/* Each option of the model goes to its own field. */
TEST(test_options)
{
    static const char *const options[] = {"byte_fallback", "fuse_unk", "ignore_merges"};
    for (int i = 0; i < 4; i++) {
        char text[400];
        snprintf(text, sizeof text,
                 FILE_OF(MODEL(", \"merges\": [], \"unk_token\": \"ab\", \"dropout\": null,"
                               " \"continuing_subword_prefix\": \"\", \"%s\": true"),
                         ""),
                 i < 3 ? options[i] : "extra");
        struct tokenizer_json t = read_file(text);
        assert_int_equal(t.byte_fallback, i == 0);
        assert_int_equal(t.fuse_unk, i == 1);
        assert_int_equal(t.ignore_merges, i == 2);
        assert_int_equal(t.unk_id, 3);
        tokenizer_json_deinit(&t);
        assert_null(t.tokens);
    }
    static const char *const flags[] = {"special", "lstrip", "rstrip", "normalized"};
    for (int i = 0; i < 4; i++) {
        char text[400];
        snprintf(text, sizeof text,
                 REST("\"added_tokens\": [{\"id\": 3, \"content\": \"ab\", \"%s\": %s}]"),
                 flags[i], i == 3 ? "false" : "true");
        struct tokenizer_json t = read_file(text);
        assert_int_equal(t.added[0].id, 3);
        assert_ptr_equal(t.added[0].text.s, t.tokens[3].s);
        assert_int_equal(t.added[0].special, i == 0);
        assert_int_equal(t.added[0].lstrip, i == 1);
        assert_int_equal(t.added[0].rstrip, i == 2);
        assert_int_equal(t.added[0].normalized, i != 3);
        assert_true(t.added[0].in_vocab);
        tokenizer_json_deinit(&t);
    }
}

/* Each kind of step has its fields, and its defaults where an older file lacks a field. */
TEST(test_each_step)
{
    static const char *const normalizers[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (int i = 0; i < 4; i++) {
        char text[400];
        snprintf(text, sizeof text, REST("\"normalizer\": {\"type\": \"%s\"}"),
                 normalizers[i]);
        struct tokenizer_json t = read_file(text);
        assert_int_equal(t.n_normalizers, 1);
        assert_int_equal(t.normalizers[0].kind, NORMALIZER_NFC + i);
        tokenizer_json_deinit(&t);
    }
    static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    for (int i = 0; i < 5; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 REST("\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
                      "{\"type\": \"Punctuation\", \"behavior\": \"%s\"},"
                      "{\"type\": \"Split\", \"pattern\": {\"String\": \"x+\"},"
                      " \"behavior\": \"%s\"},"
                      "{\"type\": \"Digits\", \"individual_digits\": %s},"
                      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false,"
                      " \"use_regex\": %s}]}"),
                 behaviors[i], behaviors[i], i % 2 ? "true" : "false",
                 i % 2 ? "false" : "true");
        struct tokenizer_json t = read_file(text);
        const struct pretokenizer_step *p = t.pretokenizers;
        assert_int_equal(t.n_pretokenizers, 4);
        assert_int_equal(p[0].kind, PRETOKENIZER_PUNCTUATION);
        assert_int_equal(p[0].behavior, i);
        assert_int_equal(p[1].kind, PRETOKENIZER_SPLIT);
        assert_int_equal(p[1].behavior, i);
        assert_string_equal(p[1].pattern.s, "x+");
        assert_true(!p[1].is_regex && !p[1].invert);
        assert_int_equal(p[2].kind, PRETOKENIZER_DIGITS);
        assert_int_equal(p[2].individual, i % 2);
        assert_int_equal(p[3].kind, PRETOKENIZER_BYTE_LEVEL);
        assert_true(!p[3].add_prefix_space && p[3].use_regex == !(i % 2));
        tokenizer_json_deinit(&t);
    }
    struct tokenizer_json t = read_file(REST(
        "\"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \"_\"}, \"content\": \" \"},"
        "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"},"
        "{\"type\": \"Strip\", \"content\": \"#\", \"start\": 0, \"stop\": 1000},"
        "{\"type\": \"ByteLevel\"},"
        "{\"type\": \"Metaspace\", \"replacement\": \"=\"}]}"));
    static const enum decoder_kind kinds[] = {DECODER_REPLACE,    DECODER_BYTE_FALLBACK,
                                              DECODER_FUSE,       DECODER_STRIP,
                                              DECODER_BYTE_LEVEL, DECODER_METASPACE};
    assert_int_equal(t.n_decoders, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(t.decoders[i].kind, kinds[i]);
    assert_string_equal(t.decoders[0].pattern.s, "_");
    assert_string_equal(t.decoders[0].text.s, " ");
    assert_string_equal(t.decoders[3].text.s, "#");
    assert_true(t.decoders[3].start == 0 && t.decoders[3].stop == 1000);
    assert_string_equal(t.decoders[5].text.s, "=");
    assert_int_equal(t.decoders[5].text.n, 1);
    tokenizer_json_deinit(&t);
}

/* A Metaspace names its scheme. Older files have a switch instead, and some have both. */
TEST(test_metaspace)
{
    static const struct {
        const char *more;
        int prepend; /* -1: refused, because the two contradict each other */
    } rows[] = {
        {"", PREPEND_ALWAYS},
        {", \"prepend_scheme\": \"always\"", PREPEND_ALWAYS},
        {", \"prepend_scheme\": \"first\"", PREPEND_FIRST},
        {", \"prepend_scheme\": \"never\"", PREPEND_NEVER},
        {", \"add_prefix_space\": true", PREPEND_ALWAYS},
        {", \"add_prefix_space\": false", PREPEND_NEVER},
        {", \"add_prefix_space\": true, \"prepend_scheme\": \"never\"", PREPEND_NEVER},
        {", \"add_prefix_space\": true, \"prepend_scheme\": \"first\"", PREPEND_FIRST},
        {", \"add_prefix_space\": false, \"prepend_scheme\": \"never\"", PREPEND_NEVER},
        {", \"add_prefix_space\": false, \"prepend_scheme\": \"first\"", -1},
        {", \"add_prefix_space\": false, \"prepend_scheme\": \"always\"", -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[600];
        struct tokenizer_json t;
        struct err err = {0};
        snprintf(text, sizeof text,
                 REST("\"pre_tokenizer\": {\"type\": \"Metaspace\","
                      " \"replacement\": \"__\"%s},"
                      "\"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"_\"%s}"),
                 rows[i].more, rows[i].more);
        int rc = parse(&t, text, &err);
        if (rows[i].prepend < 0) {
            assert_int_equal(rc, ERR_FORMAT);
            assert_non_null(strstr(err.msg, "' contradicts add_prefix_space"));
        } else {
            assert_int_equal(rc, 0);
            assert_int_equal(t.pretokenizers[0].prepend, rows[i].prepend);
            assert_int_equal(t.decoders[0].prepend, rows[i].prepend);
            assert_string_equal(t.pretokenizers[0].text.s, "__");
            assert_int_equal(t.pretokenizers[0].text.n, 2);
            assert_true(t.pretokenizers[0].split);
        }
        tokenizer_json_deinit(&t);
    }
}

/* TOKENIZER_MAX_TEMPLATE tokens fit on either side of the text, and one more does not. */
TEST(test_template_is_bounded)
{
    for (int side = 0; side < 2; side++)
        for (int n = TOKENIZER_MAX_TEMPLATE; n <= TOKENIZER_MAX_TEMPLATE + 1; n++) {
            char text[1000], ids[200] = "1";
            struct tokenizer_json t;
            struct err err = {0};
            for (int i = 1; i < n; i++)
                strcat(ids, ", 2");
            snprintf(text, sizeof text,
                     REST("\"post_processor\": {\"type\": \"TemplateProcessing\","
                          "\"single\": [%s{\"Sequence\": {}}%s],"
                          "\"special_tokens\": {\"A\": {\"ids\": [%s]}}}"),
                     side == 0 ? "{\"SpecialToken\": {\"id\": \"A\"}}, " : "",
                     side == 1 ? ", {\"SpecialToken\": {\"id\": \"A\"}}" : "", ids);
            int rc = parse(&t, text, &err);
            if (n > TOKENIZER_MAX_TEMPLATE) {
                assert_int_equal(rc, ERR_UNSUPPORTED);
                assert_non_null(strstr(err.msg, "more than 16 special tokens"));
            } else {
                assert_int_equal(rc, 0);
                assert_true(t.has_template);
                assert_int_equal(side == 0 ? t.n_prefix : t.n_suffix, n);
                assert_int_equal(side == 0 ? t.n_suffix : t.n_prefix, 0);
                assert_int_equal((side == 0 ? t.prefix : t.suffix)[0], 1);
                assert_int_equal((side == 0 ? t.prefix : t.suffix)[n - 1], 2);
            }
            tokenizer_json_deinit(&t);
        }
}

/* Texts that are larger than a block, and more texts than one block holds, stay in place. */
TEST(test_texts_of_every_size)
{
    static const size_t sizes[] = {1,    2,    511,  512,  513,  4000,
                                   4094, 4095, 4096, 4097, 9000, 70000};
    enum { N = 12, MORE = 3000 };
    char *text = malloc(4 << 20), *at = text;
    at += sprintf(at, "{\"model\": {\"vocab\": {");
    for (int i = 0; i < N + MORE; i++) {
        size_t n = i < N ? sizes[i] : 600;
        at += sprintf(at, "%s\"", i > 0 ? "," : "");
        memset(at, 'a' + i % 26, n);
        if (i >= N)
            for (int k = 0, rest = i; k < 6; k++, rest /= 10)
                at[k] = (char)('0' + rest % 10);
        at += n;
        at += sprintf(at, "\": %d", i);
    }
    sprintf(at, "}, \"merges\": []}}");
    struct tokenizer_json t = read_file(text);
    assert_int_equal(t.n_ids, N + MORE);
    for (int i = 0; i < N + MORE; i++) {
        size_t n = i < N ? sizes[i] : 600;
        assert_int_equal(t.tokens[i].n, n);
        assert_int_equal(strlen(t.tokens[i].s), n);
        assert_int_equal(t.tokens[i].s[n - 1], 'a' + i % 26);
        assert_int_equal(tokenizer_json_find(&t, t.tokens[i].s, n), i);
    }
    /* blocks double up to 1 MiB */
    assert_int_equal(t.block_cap, 1 << 20);
    tokenizer_json_deinit(&t);
    free(text);
}

/* A merge of two long tokens. */
TEST(test_long_merges)
{
    static const int halves[] = {255, 256, 257, 3000};
    for (int k = 0; k < 4; k++) {
        char text[20000], a[3001] = "", b[3001] = "";
        int n = halves[k];
        memset(a, 'a', (size_t)n);
        memset(b, 'b', (size_t)n);
        snprintf(text, sizeof text,
                 "{\"model\": {\"vocab\": {\"%s\": 0, \"%s\": 1, \"%s%s\": 2},"
                 "\"merges\": [\"%s %s\"]}}",
                 a, b, a, b, a, b);
        struct tokenizer_json t = read_file(text);
        assert_int_equal(t.n_merges, 1);
        assert_true(t.merges[0].left == 0 && t.merges[0].right == 1 &&
                    t.merges[0].joined == 2);
        tokenizer_json_deinit(&t);
    }
}

/* --- tokens of other files ----------------------------------------------------------------- */

static int add(struct tokenizer_json *t, const char *text, int32_t id, struct err *err)
{
    const struct tokenizer_added a = {
        .text = {text, strlen(text)}, .id = id, .special = true, .rstrip = true};
    return tokenizer_json_add(t, &a, err);
}

TEST(test_add)
{
    struct err err = {0};
    struct tokenizer_json t = read_file(
        REST("\"added_tokens\": [{\"id\": 6, \"content\": \"<x>\", \"lstrip\": true}]"));
    assert_int_equal(t.n_ids, 7); /* 4 is unused */
    assert_int_equal(tokenizer_json_next_id(&t), 7);
    assert_true(tokenizer_json_is_added(&t, "<x>", 3));
    assert_false(tokenizer_json_is_added(&t, "ab", 2));
    assert_false(tokenizer_json_is_added(&t, "<y>", 3));
    /* an id in use, a gap, and a negative id are refused */
    static const int32_t bad[] = {0, 3, 6, 8, -1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(add(&t, "<y>", bad[i], &err), ERR_MISMATCH);
        assert_non_null(strstr(err.msg, "but the next free one is 7"));
    }
    assert_int_equal(t.n_added, 1);
    assert_int_equal(add(&t, "<y>", 7, &err), 0); /* behind the last one */
    assert_int_equal(add(&t, "<z>", 4, &err), 0); /* the unused one */
    assert_int_equal(t.n_ids, 8);
    assert_int_equal(t.n_added, 3);
    assert_string_equal(t.tokens[7].s, "<y>");
    assert_string_equal(t.tokens[4].s, "<z>");
    assert_int_equal(tokenizer_json_find(&t, "<y>", 3), 7);
    assert_int_equal(tokenizer_json_find(&t, "<z>", 3), 4);
    assert_true(t.added[1].id == 7 && t.added[1].special && t.added[1].rstrip);
    assert_ptr_equal(t.added[1].text.s, t.tokens[7].s);
    assert_false(t.added[1].in_vocab);
    /* a known token keeps its id; if it was added before, its flags change */
    assert_int_equal(add(&t, "<x>", 99, &err), 0);
    assert_int_equal(t.n_added, 3);
    assert_true(t.added[0].id == 6 && !t.added[0].lstrip && t.added[0].rstrip);
    assert_false(t.added[0].in_vocab);
    assert_int_equal(add(&t, "ab", 99, &err), 0);
    assert_int_equal(t.n_added, 4);
    assert_true(t.added[3].id == 3 && t.added[3].in_vocab);
    assert_int_equal(t.n_ids, 8);
    assert_int_equal(add(&t, "ab", 5, &err),
                     0); /* a second time it is still in the vocabulary */
    assert_int_equal(t.n_added, 4);
    assert_true(t.added[3].in_vocab);
    for (int i = 8; i < 200; i++) {
        char name[16];
        snprintf(name, sizeof name, "<%d>", i);
        assert_int_equal(tokenizer_json_next_id(&t), i);
        assert_int_equal(add(&t, name, i, &err), 0);
        assert_int_equal(tokenizer_json_find(&t, name, strlen(name)), i);
    }
    assert_int_equal(t.n_added, 196);
    tokenizer_json_deinit(&t);
}

/* The next id follows the highest added token, and the number of the vocabulary's own tokens. */
TEST(test_next_id)
{
    static const struct {
        const char *added;
        int32_t next;
    } rows[] = {
        {"", 5},
        {"{\"id\": 4, \"content\": \"x\"}", 5},
        {"{\"id\": 6, \"content\": \"x\"}", 7},
        {"{\"id\": 1, \"content\": \"a\"}", 5},
        {"{\"id\": 5, \"content\": \"abb\"}", 6},
        {"{\"id\": 9, \"content\": \"x\"}, {\"id\": 7, \"content\": \"y\"}", 10},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[400];
        snprintf(text, sizeof text, REST("\"added_tokens\": [%s]"), rows[i].added);
        struct tokenizer_json t = read_file(text);
        assert_int_equal(tokenizer_json_next_id(&t), rows[i].next);
        tokenizer_json_deinit(&t);
    }
    struct tokenizer_json none = {0};
    assert_int_equal(tokenizer_json_find(&none, "a", 1), -1);
}

/* --- refusals ----------------------------------------------------------------------------- */

static const struct {
    const char *text;
    int code;
    const char *message;
} bad[] = {
    {"{\"model\": ", ERR_FORMAT, "tokenizer.json:1:10: "},
    {"{}", ERR_FORMAT, "tokenizer.json: 'model' is missing"},
    {"{\"model\": {\"type\": \"Unigram\"}}", ERR_UNSUPPORTED,
     "model type 'Unigram' is not supported"},
    {"{\"model\": {}}", ERR_FORMAT, "'vocab' is missing"},
    {"{\"model\": {\"vocab\": {}, \"merges\": []}}", ERR_FORMAT, "the vocabulary is empty"},
    {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", ERR_FORMAT,
     "vocab: the id of 'a' must be an integer in 0..4194303"},
    {"{\"model\": {\"vocab\": {\"a\": 99999999999}, \"merges\": []}}", ERR_FORMAT,
     "vocab: the id of 'a' must be"},
    {"{\"model\": {\"vocab\": {\"a\": 4194304}, \"merges\": []}}", ERR_FORMAT,
     "vocab: the id of 'a' must be"},
    {"{\"model\": {\"vocab\": {\"a\": 4294967296}, \"merges\": []}}", ERR_FORMAT,
     "vocab: the id of 'a' must be"},
    {"{\"model\": {\"vocab\": {\"a\": 9223372036854775807}, \"merges\": []}}", ERR_FORMAT,
     "vocab: the id of 'a' must be"},
    {"{\"model\": {\"vocab\": {\"a\": \"1\"}, \"merges\": []}}", ERR_FORMAT,
     "vocab: the id of 'a' must be"},
    {"{\"model\": {\"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}", ERR_FORMAT,
     "id 1 belongs to two tokens, 'a' and 'b'"},
    {FILE_OF(MODEL(""), ""), ERR_FORMAT, "'merges' is missing"},
    {FILE_OF(MODEL(", \"merges\": [\"a z\"]"), ""), ERR_FORMAT,
     "merges[0]: token 'z' is not in the vocabulary"},
    {FILE_OF(MODEL(", \"merges\": [\"a b\", \"b a\"]"), ""), ERR_FORMAT,
     "merges[1]: token 'ba' is not in the vocabulary"},
    {FILE_OF(MODEL(", \"merges\": [\"ab\"]"), ""), ERR_FORMAT,
     "merges[0]: 'ab' is not two tokens and a space"},
    {FILE_OF(MODEL(", \"merges\": [\"a b b\"]"), ""), ERR_FORMAT,
     "merges[0]: 'a b b' is not two tokens and a space"},
    {FILE_OF(MODEL(", \"merges\": [[\"a\"]]"), ""), ERR_FORMAT,
     "merges[0] must be \"a b\" or [\"a\", \"b\"]"},
    {FILE_OF(MODEL(", \"merges\": [[\"a\", 1]]"), ""), ERR_FORMAT, "merges[0] must be"},
    {FILE_OF(MODEL(", \"merges\": [], \"unk_token\": \"?\""), ""), ERR_FORMAT,
     "'unk_token' '?' is not in the vocabulary"},
    {FILE_OF(MODEL(", \"merges\": [], \"dropout\": 0.1"), ""), ERR_UNSUPPORTED,
     "'dropout' is not supported"},
    {FILE_OF(MODEL(", \"merges\": [], \"end_of_word_suffix\": \"</w>\""), ""),
     ERR_UNSUPPORTED, "'end_of_word_suffix' is not supported"},
    {FILE_OF(MODEL(", \"merges\": [], \"continuing_subword_prefix\": \"##\""), ""),
     ERR_UNSUPPORTED, "'continuing_subword_prefix' is not supported"},
    {FILE_OF(MODEL(", \"merges\": [\" b\"]"), ""), ERR_FORMAT,
     "merges[0]: ' b' is not two tokens and a space"},
    {FILE_OF(MODEL(", \"merges\": [\"a \"]"), ""), ERR_FORMAT,
     "merges[0]: 'a ' is not two tokens and a space"},
    {FILE_OF(MODEL(", \"merges\": [\" \"]"), ""), ERR_FORMAT,
     "merges[0]: ' ' is not two tokens and a space"},
    {FILE_OF(MODEL(", \"merges\": [\"a  b\"]"), ""), ERR_FORMAT,
     "merges[0]: 'a  b' is not two tokens and a space"},
    {FILE_OF(MODEL(", \"merges\": [\"\"]"), ""), ERR_FORMAT,
     "merges[0]: '' is not two tokens and a space"},
    {FILE_OF(MODEL(", \"merges\": [[\"a\", \"b\", \"b\"]]"), ""), ERR_FORMAT,
     "merges[0] must be"},
    {FILE_OF(MODEL(", \"merges\": [[\"z\", \"b\"]]"), ""), ERR_FORMAT,
     "merges[0]: token 'z' is not in the vocabulary"},
    {FILE_OF(MODEL(", \"merges\": [[\"a\", \"z\"]]"), ""), ERR_FORMAT,
     "merges[0]: token 'z' is not in the vocabulary"},
    {FILE_OF(MODEL(", \"merges\": [], \"fuse_unk\": 1"), ""), ERR_FORMAT,
     "'fuse_unk' must be a boolean"},
    {FILE_OF(MODEL(", \"merges\": [], \"byte_fallback\": 1"), ""), ERR_FORMAT,
     "'byte_fallback' must be a boolean"},
    {FILE_OF(MODEL(", \"merges\": [], \"ignore_merges\": 1"), ""), ERR_FORMAT,
     "'ignore_merges' must be a boolean"},
    {FILE_OF(MODEL(", \"merges\": [], \"dropout\": true"), ""), ERR_FORMAT,
     "'dropout' must be a number"},
    {FILE_OF(MODEL(", \"merges\": [], \"unk_token\": 1"), ""), ERR_FORMAT,
     "'unk_token' must be a string"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"special\": 1}]"),
     ERR_FORMAT, "added_tokens[0]: 'special' must be a boolean"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"lstrip\": 1}]"), ERR_FORMAT,
     "added_tokens[0]: 'lstrip' must be a boolean"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"rstrip\": 1}]"), ERR_FORMAT,
     "added_tokens[0]: 'rstrip' must be a boolean"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"single_word\": 1}]"),
     ERR_FORMAT, "added_tokens[0]: 'single_word' must be a boolean"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"normalized\": 1}]"),
     ERR_FORMAT, "added_tokens[0]: 'normalized' must be a boolean"},
    {REST("\"added_tokens\": [{\"id\": 9}]"), ERR_FORMAT,
     "added_tokens[0]: 'content' is missing"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"x\"}, {\"id\": 4194304}]"),
     ERR_FORMAT, "added_tokens[1]: 'id' is 4194304, it must lie in 0..4194303"},
    {REST("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"},"
          "\"content\": \"\"}"),
     ERR_FORMAT, "normalizer: Replace: 'pattern' is empty"},
    {REST("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}}"),
     ERR_FORMAT, "normalizer: Replace: 'content' is missing"},
    {REST("\"normalizer\": {\"type\": \"Prepend\"}"), ERR_FORMAT,
     "normalizer: Prepend: 'prepend' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"Sequence\"}"), ERR_FORMAT,
     "pre_tokenizer: 'pretokenizers' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Removed\"}"),
     ERR_FORMAT, "pre_tokenizer: Split: 'pattern' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"x\"}}"),
     ERR_FORMAT, "pre_tokenizer: Split: 'behavior' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"ByteLevel\"}"), ERR_FORMAT,
     "pre_tokenizer: ByteLevel: 'add_prefix_space' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"Metaspace\"}"), ERR_FORMAT,
     "pre_tokenizer: Metaspace: 'replacement' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\","
          "\"add_prefix_space\": 1}"),
     ERR_FORMAT, "pre_tokenizer: Metaspace: 'add_prefix_space' must be a boolean"},
    {REST("\"pre_tokenizer\": {\"type\": \"Digits\"}"), ERR_FORMAT,
     "pre_tokenizer: Digits: 'individual_digits' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"Punctuation\"}"), ERR_FORMAT,
     "pre_tokenizer: Punctuation: 'behavior' is missing"},
    {REST("\"decoder\": {\"type\": \"Replace\", \"content\": \"\"}"), ERR_FORMAT,
     "decoder: Replace: 'pattern' is missing"},
    {REST("\"decoder\": {\"type\": \"Strip\", \"content\": \"\", \"stop\": 0}"), ERR_FORMAT,
     "decoder: Strip: 'start' is missing"},
    {REST("\"decoder\": {\"type\": \"Strip\", \"content\": \"\", \"start\": 0}"),
     ERR_FORMAT, "decoder: Strip: 'stop' is missing"},
    {REST("\"decoder\": {\"type\": \"Strip\", \"start\": 0, \"stop\": 0}"), ERR_FORMAT,
     "decoder: Strip: 'content' is missing"},
    {REST("\"decoder\": {\"type\": \"Metaspace\"}"), ERR_FORMAT,
     "decoder: Metaspace: 'replacement' is missing"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\"}"), ERR_FORMAT,
     "post_processor: TemplateProcessing: 'single' is missing"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [1]}"),
     ERR_UNSUPPORTED, "'single'[0] is not supported"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
          "{\"Sequence\": {}}, {\"Sequence\": {}}]}"),
     ERR_UNSUPPORTED, "'single'[1] is not supported"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
          "{\"Sequence\": {}}, {\"SpecialToken\": {}}]}"),
     ERR_FORMAT, "post_processor: TemplateProcessing: 'id' is missing"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
          "{\"SpecialToken\": {}}, {\"Sequence\": {}}]}"),
     ERR_FORMAT, "post_processor: TemplateProcessing: 'id' is missing"},
    {REST("\"post_processor\": {\"type\": \"Sequence\", \"processors\": ["
          "{\"type\": \"ByteLevel\"},"
          "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {}}]},"
          "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {}}]}]}"),
     ERR_UNSUPPORTED, "TemplateProcessing: a second template is not supported"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
          "{\"SpecialToken\": {\"id\": \"<s>\"}}],"
          "\"special_tokens\": {\"<s>\": {\"ids\": [6]}}}"),
     ERR_FORMAT, "'special_tokens': '<s>' has an id without a token"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
          "{\"SpecialToken\": {\"id\": \"<s>\"}}],"
          "\"special_tokens\": {\"<s>\": {\"ids\": [-1]}}}"),
     ERR_FORMAT, "'special_tokens': '<s>' has an id without a token"},
    {REST("\"normalizer\": []"), ERR_FORMAT, "'normalizer' must be an object"},
    {REST("\"version\": 1"), ERR_FORMAT, "'version' must be a string"},
    {REST("\"version\": \"2.0\""), ERR_UNSUPPORTED,
     "'version' is '2.0', only 1.0 is known"},
    {REST("\"vocab_size\": 4"), ERR_UNSUPPORTED, "'vocab_size': this field is not known"},
    {REST("\"added_tokens\": [{\"id\": 1, \"content\": \"b\"}]"), ERR_FORMAT,
     "added_tokens[0]: 'b' has id 1 here and 2 in the vocabulary"},
    {REST("\"added_tokens\": [{\"id\": 1, \"content\": \"q\"}]"), ERR_FORMAT,
     "added_tokens[0]: id 1 belongs to two tokens, 'a' and 'q'"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"\"}]"), ERR_FORMAT,
     "added_tokens[0]: 'content' is empty"},
    {REST("\"added_tokens\": [{\"content\": \"x\"}]"), ERR_FORMAT,
     "added_tokens[0]: 'id' is missing"},
    {REST("\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"single_word\": true}]"),
     ERR_UNSUPPORTED, "added_tokens[0]: 'single_word' is not supported"},
    {REST("\"normalizer\": {\"type\": \"Lowercase\"}"), ERR_UNSUPPORTED,
     "tokenizer.json: normalizer: type 'Lowercase' is not supported"},
    {REST("\"normalizer\": {}"), ERR_FORMAT, "normalizer: 'type' is missing"},
    {REST("\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
          "{\"type\": \"BertPreTokenizer\"}]}"),
     ERR_UNSUPPORTED, "pre_tokenizer: type 'BertPreTokenizer' is not supported"},
    {REST("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"x\"},"
          "\"behavior\": \"Sideways\"}"),
     ERR_UNSUPPORTED, "pre_tokenizer: Split: behavior 'Sideways' is not supported"},
    {REST("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\","
          "\"prepend_scheme\": \"last\"}"),
     ERR_UNSUPPORTED, "pre_tokenizer: Metaspace: prepend_scheme 'last' is not supported"},
    {REST("\"decoder\": {\"type\": \"WordPiece\"}"), ERR_UNSUPPORTED,
     "decoder: type 'WordPiece' is not supported"},
    {REST("\"post_processor\": {\"type\": \"BertProcessing\"}"), ERR_UNSUPPORTED,
     "post_processor: type 'BertProcessing' is not supported"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}"),
     ERR_FORMAT, "post_processor: TemplateProcessing: 'single' has no place for the text"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
          "{\"SpecialToken\": {\"id\": \"<s>\"}}], \"special_tokens\": {}}"),
     ERR_FORMAT, "'special_tokens' has no ids for '<s>'"},
    {REST("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
          "{\"SpecialToken\": {\"id\": \"<s>\"}}],"
          "\"special_tokens\": {\"<s>\": {\"ids\": [4]}}}"),
     ERR_FORMAT, "'special_tokens': '<s>' has an id without a token"},
};

TEST(test_refusals)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tokenizer_json t;
        struct err err = {0};
        int rc = parse(&t, bad[i].text, &err);
        if (rc != bad[i].code || strstr(err.msg, bad[i].message) == NULL ||
            strstr(err.msg, "tokenizer.json") != err.msg)
            fail_msg("%s\n  expected %s with '%s'\n  got %d: %s", bad[i].text,
                     err_name(bad[i].code), bad[i].message, rc, err.msg);
        tokenizer_json_deinit(&t);
    }
}

/* Each list has room for TOKENIZER_MAX_STEPS steps of any kind. */
TEST(test_too_many_steps)
{
    static const struct {
        const char *list, *children, *type, *fields;
    } rows[] = {
        {"normalizer", "normalizers", "NFC", ""},
        {"normalizer", "normalizers", "NFD", ""},
        {"normalizer", "normalizers", "NFKC", ""},
        {"normalizer", "normalizers", "NFKD", ""},
        {"normalizer", "normalizers", "Prepend", ",\"prepend\":\"_\""},
        {"normalizer", "normalizers", "Replace",
         ",\"pattern\":{\"String\":\"a\"},\"content\":\"b\""},
        {"pre_tokenizer", "pretokenizers", "Split",
         ",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Removed\""},
        {"pre_tokenizer", "pretokenizers", "ByteLevel", ",\"add_prefix_space\":true"},
        {"pre_tokenizer", "pretokenizers", "Metaspace", ",\"replacement\":\"_\""},
        {"pre_tokenizer", "pretokenizers", "Digits", ",\"individual_digits\":true"},
        {"pre_tokenizer", "pretokenizers", "Punctuation", ",\"behavior\":\"Removed\""},
        {"decoder", "decoders", "Replace",
         ",\"pattern\":{\"String\":\"a\"},\"content\":\"b\""},
        {"decoder", "decoders", "ByteFallback", ""},
        {"decoder", "decoders", "Fuse", ""},
        {"decoder", "decoders", "Strip", ",\"content\":\"a\",\"start\":1,\"stop\":1"},
        {"decoder", "decoders", "ByteLevel", ""},
        {"decoder", "decoders", "Metaspace", ",\"replacement\":\"_\""},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (int n = TOKENIZER_MAX_STEPS; n <= TOKENIZER_MAX_STEPS + 1; n++) {
            char text[4096], *at = text;
            struct tokenizer_json t;
            struct err err = {0};
            at += sprintf(at, FILE_OF(MODEL(", \"merges\": []"), ", \"%s\": {\"type\":"),
                          rows[r].list) -
                  1; /* over the closing brace */
            at += sprintf(at, "\"Sequence\", \"%s\": [", rows[r].children);
            for (int i = 0; i < n; i++)
                at += sprintf(at, "%s{\"type\": \"%s\"%s}", i > 0 ? "," : "", rows[r].type,
                              rows[r].fields);
            sprintf(at, "]}}");
            int rc = parse(&t, text, &err), n_steps = t.n_normalizers + t.n_pretokenizers;
            char want[100];
            snprintf(want, sizeof want, "tokenizer.json: %s: %s: more than 16 steps",
                     rows[r].list, rows[r].type);
            assert_int_equal(rc, n > TOKENIZER_MAX_STEPS ? ERR_UNSUPPORTED : 0);
            assert_string_equal(err.msg, n > TOKENIZER_MAX_STEPS ? want : "");
            assert_int_equal(n_steps + t.n_decoders, TOKENIZER_MAX_STEPS);
            tokenizer_json_deinit(&t);
        }
}

/* Every truncation and every edit gives an error or a parse, never a crash. */
TEST(test_damage)
{
    char text[] = REST(
        "\"added_tokens\": [{\"id\": 7, \"content\": \"<x>\", \"special\": true}],"
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
        "\"decoder\": {\"type\": \"ByteLevel\"}");
    const size_t n = sizeof text - 1;
    struct tokenizer_json t;
    assert_int_equal(parse(&t, text, NULL), 0);
    tokenizer_json_deinit(&t);
    for (size_t cut = 0; cut < n; cut++) {
        assert_true(tokenizer_json_parse(&t, text, cut, "t", NULL) < 0);
        tokenizer_json_deinit(&t);
    }
    struct rng rng = {.s = 3};
    for (int i = 0; i < 20000; i++) {
        size_t at = rng_below(&rng, n);
        char old = text[at];
        text[at] = "0123456789abx\"[]{},: <>\xC4"[rng_below(&rng, 24)];
        (void)tokenizer_json_parse(&t, text, n, "t", NULL);
        tokenizer_json_deinit(&t);
        text[at] = old;
    }
}

/* --- vocab.json + merges.txt -------------------------------------------------------------- */

static int parse_pair(struct tokenizer_json *t, const char *vocab, const char *merges,
                      struct err *err)
{
    return tokenizer_json_parse_vocab(t, vocab, strlen(vocab), "vocab.json", merges,
                                      strlen(merges), "merges.txt", err);
}

TEST(test_pair)
{
    struct tokenizer_json t;
    struct err err = {0};
    /* "#" may begin a token: only the version line is not a merge. */
    const char *vocab = "{\"#\": 0, \"a\": 1, \"#a\": 2, \"##\": 3}";
    assert_int_equal(parse_pair(&t, vocab, "#version: 0.2\n# a\n# #", &err), 0);
    assert_int_equal(t.n_merges, 2);
    assert_int_equal(t.merges[0].joined, 2);
    assert_int_equal(t.pretokenizers[0].kind, PRETOKENIZER_BYTE_LEVEL);
    assert_true(t.pretokenizers[0].use_regex && !t.pretokenizers[0].add_prefix_space);
    assert_int_equal(t.n_pretokenizers, 1);
    assert_int_equal(t.n_decoders, 1);
    assert_int_equal(t.decoders[0].kind, DECODER_BYTE_LEVEL);
    assert_int_equal(t.unk_id, -1);
    assert_false(t.has_template);
    assert_int_equal(t.n_ids, 4);
    tokenizer_json_deinit(&t);
    /* blank lines, and a first line that only begins like a version, and no line at all */
    vocab = "{\"#versio\": 0, \"a\": 1, \"#versioa\": 2}";
    assert_int_equal(parse_pair(&t, vocab, "\n#versio a\n\n", &err), 0);
    assert_int_equal(t.n_merges, 1);
    tokenizer_json_deinit(&t);
    assert_int_equal(parse_pair(&t, vocab, "#version", &err), 0);
    assert_int_equal(t.n_merges, 0);
    tokenizer_json_deinit(&t);
    assert_int_equal(parse_pair(&t, vocab, "", &err), 0);
    tokenizer_json_deinit(&t);

    static const char *const cases[][3] = {
        {"{\"a\": 0}", "a b\n",
         "merges.txt: merges[0]: token 'b' is not in the vocabulary"},
        {"{\"a\": 0}", "a\n", "merges.txt: merges[0]: 'a' is not two tokens and a space"},
        {"{\"a\": 0}", "a \xff\n", "merges.txt: invalid UTF-8 at byte 2"},
        {"{\"a\": 0, \"b\": 0}", "", "vocab.json: id 0 belongs to two tokens, 'a' and 'b'"},
        {"[1]", "", "vocab.json: the vocabulary is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(parse_pair(&t, cases[i][0], cases[i][1], &err), ERR_FORMAT);
        assert_string_equal(err.msg, cases[i][2]);
        tokenizer_json_deinit(&t);
    }
}
