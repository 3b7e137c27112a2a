/* test_tokenizer_gguf.c - the tokenizer in a GGUF file: named tokens, the template, and the tokens
 * of a text. */
#include "tests/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/made_gguf.h"
#include "text/tokenizer.h"

/* <unk> <s> </s> and tokens of a text, all with the score 0; the first three are control tokens. */
#define VOCABULARY                                                                         \
    {.key = "tokenizer.ggml.model", .kind = GGUF_STRING, .text = "llama"},                 \
        {.key = "tokenizer.ggml.tokens",                                                   \
         .kind = GGUF_STRING,                                                              \
         .text = "<unk>\n<s>\n</s>\na\nb\nab",                                             \
         .n = 6},                                                                          \
        {.key = "tokenizer.ggml.scores", .kind = GGUF_F32, .n = 6},                        \
    {                                                                                      \
        .key = "tokenizer.ggml.add_space_prefix", .kind = GGUF_BOOL                        \
    }

static struct tokenizer *open_with(struct made_value a, struct made_value b)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct made_file f = {.values = {VOCABULARY, a, b}};
    made_gguf_write(made_gguf_path, &f);
    if (tokenizer_open(&t, made_gguf_path, &e) != 0)
        fail_msg("%s", e.msg);
    return t;
}

#define NONE                                                                               \
    (struct made_value)                                                                    \
    {                                                                                      \
        0                                                                                  \
    }
#define ID(name, k, x)                                                                     \
    (struct made_value)                                                                    \
    {                                                                                      \
        .key = "tokenizer.ggml." name "_token_id", .kind = k, .value = x                   \
    }

TEST(test_named_tokens)
{
    struct tokenizer *t = open_with(ID("bos", GGUF_U32, 1), ID("eos", GGUF_U32, 5));
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 5); /* the last id */
    assert_null(tokenizer_chat_template(t));
    assert_int_equal(tokenizer_size(t), 6);
    assert_int_equal(tokenizer_n_listed(t), 6);
    tokenizer_close(t);
    t = open_with(ID("bos", GGUF_U32, 0), NONE);
    assert_int_equal(tokenizer_bos(t), 0);
    assert_int_equal(tokenizer_eos(t), -1); /* the file names none */
    tokenizer_close(t);
    const struct made_value bad[] = {ID("bos", GGUF_U32, 6), ID("eos", GGUF_I32, -1),
                                     ID("eos", GGUF_F32, 2), ID("unknown", GGUF_U32, 6)};
    for (int i = 0; i < 4; i++) {
        char message[96];
        struct err e = {0};
        struct made_file f = {.values = {VOCABULARY, bad[i]}};
        made_gguf_write(made_gguf_path, &f);
        snprintf(message, sizeof message, "'%s' is none of the 6 tokens", bad[i].key);
        assert_int_equal(tokenizer_open(&t, made_gguf_path, &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, message));
    }
}

TEST(test_templates)
{
    static const struct {
        const char *text, *want;
    } known[] = {
        {"{{ x }}", "{{ x }}"}, {"", ""}, {"a\xff", NULL}, {"\xc3\xa9", "\xc3\xa9"}};
    for (int i = 0; i < 4; i++) {
        struct tokenizer *t = open_with(
            (struct made_value){.key = "tokenizer.chat_template",
                                .kind = GGUF_STRING,
                                .text = known[i].text},
            NONE);
        const char *got = tokenizer_chat_template(t);
        assert_int_equal(got == NULL, known[i].want == NULL);
        if (got != NULL)
            assert_string_equal(got, known[i].want);
        tokenizer_close(t);
    }
    struct tokenizer *t = open_with(
        (struct made_value){.key = "tokenizer.chat_template", .kind = GGUF_U32, .value = 1},
        NONE);
    assert_null(tokenizer_chat_template(t));
    tokenizer_close(t);
}

TEST(test_ids_of_a_text)
{
    struct tokenizer *t = open_with(NONE, NONE);
    int32_t *ids = NULL;
    size_t n = 0;
    struct err e = {0};
    static const int32_t want[] = {5, 4, 5};
    assert_int_equal(tokenizer_encode(t, "abbab", 5, 0, &ids, &n, &e), 0);
    assert_int_equal(n, 3);
    assert_memory_equal(ids, want, sizeof want);
    assert_int_equal(tokenizer_check_rows(t, ids, n, 6, &e), 0);
    assert_int_equal(tokenizer_check_rows(t, ids, n, 5, &e), ERR_USAGE);
    assert_string_equal(e.msg,
                        "the text has the token 'ab' (id 5), for which the model has no "
                        "embedding: its last one is 4");
    assert_int_equal(tokenizer_check_rows(t, ids + 1, 1, 5, &e), 0);
    free(ids);
    assert_int_equal(tokenizer_find(t, "ab"), 5);
    assert_int_equal(tokenizer_find(t, "a b"), -1);
    const char *bytes = tokenizer_bytes(t, 5, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(bytes, "ab", 2);
    assert_null(tokenizer_bytes(t, -1, &n));
    assert_null(tokenizer_bytes(t, 6, &n));
    tokenizer_close(t);
    tokenizer_close(NULL);
}

TEST(test_files_without_a_tokenizer)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    made_gguf_write(made_gguf_path, &(struct made_file){0});
    assert_int_equal(tokenizer_open(&t, made_gguf_path, &e), -ENOENT);
    assert_non_null(strstr(e.msg, made_gguf_path));
    assert_null(t);
}

int main(void)
{
    return unit_run(made_gguf_setup, made_gguf_teardown);
}
