/* test_tokenizer_json.c - tokenizer files: the parts that are read, and the messages of refusals.
 */
#include "format/tokenizer_json.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A file with a good model; `rest` holds its other members. */
#define VOCAB                "\"vocab\": {\"<unk>\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"abb\": 5}"
#define MODEL(more)          "\"model\": {\"type\": \"BPE\", " VOCAB more "}"
#define FILE_OF(model, rest) "{" model rest "}"
#define REST(rest)           FILE_OF(MODEL(", \"merges\": [\"a b\", [\"ab\", \"b\"]]"), ", " rest)

static int parse(struct tokenizer_json *t, const char *text, struct err *err)
{
    return tokenizer_json_parse(t, text, strlen(text), "tokenizer.json", err);
}

static void test_model(void **state)
{
    (void)state;
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

static void test_steps(void **state)
{
    (void)state;
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
    {REST("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \" +\"},"
          "\"content\": \"\"}"),
     ERR_UNSUPPORTED, "normalizer: Replace: a 'pattern' with a 'Regex' is not supported"},
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

static void test_refusals(void **state)
{
    (void)state;
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

static void test_too_many_steps(void **state)
{
    (void)state;
    char text[2048] =
        "{" MODEL(", \"merges\": []") ", \"normalizer\": {\"type\": \"Sequence\","
                                      " \"normalizers\": [{\"type\": \"NFC\"}";
    for (int i = 0; i < TOKENIZER_MAX_STEPS; i++)
        strcat(text, ", {\"type\": \"NFC\"}");
    strcat(text, "]}}");
    struct tokenizer_json t;
    struct err err = {0};
    assert_int_equal(parse(&t, text, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.msg, "tokenizer.json: normalizer: NFC: more than 16 steps");
    tokenizer_json_deinit(&t);
}

/* Every truncation and every edit gives an error or a parse, never a crash. */
static void test_damage(void **state)
{
    (void)state;
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

static void test_pair(void **state)
{
    (void)state;
    struct tokenizer_json t;
    struct err err = {0};
    /* "#" may begin a token: only the version line is not a merge. */
    const char *vocab = "{\"#\": 0, \"a\": 1, \"#a\": 2, \"##\": 3}";
    assert_int_equal(parse_pair(&t, vocab, "#version: 0.2\n# a\n# #", &err), 0);
    assert_int_equal(t.n_merges, 2);
    assert_int_equal(t.merges[0].joined, 2);
    assert_int_equal(t.pretokenizers[0].kind, PRETOKENIZER_BYTE_LEVEL);
    assert_true(t.pretokenizers[0].use_regex && !t.pretokenizers[0].add_prefix_space);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),    cmocka_unit_test(test_steps),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_too_many_steps),
        cmocka_unit_test(test_damage),   cmocka_unit_test(test_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
