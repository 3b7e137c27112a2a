/* test_config_tokenizer.c - tokenizer_config.json and special_tokens_map.json: which tokens have a
 * name, in which order, with which flags, and what is refused. */
#include "model/config.h"

#include "base/mem.h"
#include "tests/base/quotes.h"
#include "tests/base/tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/unit.h"

static struct tokenizer_config parse(const char *text)
{
    struct tokenizer_config c;
    struct err e = {0};
    if (tokenizer_config_parse(&c, quotes(text), strlen(text), "t.json", &e) != 0)
        fail_msg("%s", e.msg);
    return c;
}

static void refuse(const char *text, int code, const char *message)
{
    struct tokenizer_config c;
    struct err e = {0};
    int rc = tokenizer_config_parse(&c, quotes(text), strlen(text), "t.json", &e);
    tokenizer_config_deinit(&c);
    if (rc != code || strstr(e.msg, message) == NULL || strstr(e.msg, "t.json:") != e.msg)
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), message, err_name(rc),
                 e.msg);
}

/* Returns the special tokens in order, each with its flags: s special, l lstrip, r rstrip, n
 * normalized, w single_word. A bar follows the named ones. The caller frees it. */
static char *list(const struct tokenizer_config *c)
{
    char *text = xstrdup("");
    for (size_t i = 0; i <= c->n_special; i++) {
        const struct tokenizer_config_added *a = &c->special[i];
        const char *bar = i == c->n_named ? "| " : "";
        char *more = i == c->n_special
                         ? xasprintf("%s%s", text, bar)
                         : xasprintf("%s%s%s:%s%s%s%s%s ", text, bar, a->text,
                                     a->special ? "s" : "", a->lstrip ? "l" : "",
                                     a->rstrip ? "r" : "", a->normalized ? "n" : "",
                                     a->single_word ? "w" : "");
        if (i < c->n_special)
            assert_int_equal(a->id, -1);
        free(text);
        text = more;
    }
    return text;
}

static void expect(const char *config, const char *want)
{
    struct tokenizer_config c = parse(config);
    char *got = list(&c);
    assert_string_equal(got, want);
    free(got);
    tokenizer_config_deinit(&c);
    assert_null(c.special);
    assert_int_equal(c.n_special, 0);
}

/* --- tokens ------------------------------------------------------------------------------- */

TEST(test_order_of_named_tokens)
{
    expect("{}", "| ");
    expect("{'mask_token': 'M', 'cls_token': 'C', 'pad_token': 'P', 'sep_token': 'S', "
           "'unk_token': 'U', 'eos_token': 'E', 'bos_token': 'B'}",
           "B:s E:s U:s S:s P:s C:s M:s | ");
    /* objects come before texts, and the object extra_special_tokens comes last */
    expect("{'b_token': 'B', 'extra_special_tokens': {'c_token': 'C'}, 'a_token': "
           "{'content': 'A'}}",
           "A:s B:s C:s | ");
    /* a key that is set again keeps its place and gets the new token */
    expect("{'b_token': 'B', 'd_token': 'D', 'extra_special_tokens': {'b_token': 'X'}}",
           "X:s D:s | ");
    /* only keys that end so are tokens */
    expect("{'_token': 'A', 'token': 'B', 'b_tokens': 'C', 'btoken': 'D'}", "A:s | ");
    /* a text is listed once, and an empty one never */
    expect("{'bos_token': 'A', 'eos_token': 'A', 'pad_token': ''}", "A:s | ");
    expect("{'bos_token': null, 'eos_token': 'A'}", "A:s | ");
}

TEST(test_lists_follow_the_names)
{
    expect("{'bos_token': 'B', 'additional_special_tokens': ['X', 'B', 'Y']}",
           "B:s | X:s Y:s ");
    expect("{'extra_special_tokens': ['X'], 'additional_special_tokens': ['Y']}", "| X:s ");
    expect("{'extra_special_tokens': [], 'additional_special_tokens': ['Y']}", "| Y:s ");
    refuse("{'additional_special_tokens': 'X'}", ERR_FORMAT, "'additional_special_tokens'");
    refuse("{'extra_special_tokens': 'X', 'additional_special_tokens': ['Y']}", ERR_FORMAT,
           "'extra_special_tokens'");
    refuse("{'additional_special_tokens': ['X', 5]}", ERR_FORMAT,
           "'additional_special_tokens' must be a token's text or an object, it is an "
           "integer");
}

TEST(test_flags)
{
    /* a named token is special, and then it is not normalised */
    expect("{'bos_token': {'content': 'B', 'special': false}}", "B:s | ");
    expect("{'bos_token': {'content': 'B', 'lstrip': true}}", "B:sl | ");
    expect("{'bos_token': {'content': 'B', 'rstrip': true}}", "B:sr | ");
    expect("{'bos_token': {'content': 'B', 'normalized': true}}", "B:sn | ");
    expect("{'bos_token': {'content': 'B', 'single_word': true}}", "B:sw | ");
    /* an object in a list says itself whether it is special */
    expect("{'additional_special_tokens': [{'content': 'X'}, {'content': 'Y', 'special': "
           "true}, {'content': 'Z', 'normalized': false}]}",
           "| X:n Y:s Z: ");
    static const char *const flags[] = {"special", "lstrip", "rstrip", "single_word",
                                        "normalized"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        char text[128], message[64];
        snprintf(text, sizeof text, "{'pad_token': {'content': 'B', '%s': 5}}", flags[i]);
        snprintf(message, sizeof message, "'pad_token': '%s' must be", flags[i]);
        refuse(text, ERR_FORMAT, message);
    }
    refuse("{'pad_token': {'special': true}}", ERR_FORMAT,
           "'pad_token': 'content' is missing");
    refuse("{'pad_token': 5}", ERR_FORMAT,
           "'pad_token' must be a token's text or an object, it is an integer");
    refuse("{'extra_special_tokens': {'x': [1]}}", ERR_FORMAT, "'x' must be a token's");
}

TEST(test_names_of_three_tokens)
{
    struct tokenizer_config c = parse(
        "{'bos_token': 'B', 'eos_token': {'content': 'E'}, 'unk_token': ''}");
    assert_string_equal(c.bos_token, "B");
    assert_string_equal(c.eos_token, "E");
    assert_null(c.unk_token);
    tokenizer_config_deinit(&c);
    assert_null(c.bos_token);
    assert_null(c.eos_token);
    c = parse("{'unk_token': 'U'}");
    assert_null(c.bos_token);
    assert_null(c.eos_token);
    assert_string_equal(c.unk_token, "U");
    tokenizer_config_deinit(&c);
}

/* --- the list of added tokens ------------------------------------------------------------- */

TEST(test_added_tokens_are_listed_by_id)
{
    struct tokenizer_config c = parse(
        "{'added_tokens_decoder': {'10': {'content': 'X', 'special': true}, '9': "
        "{'content': 'Y', 'lstrip': true, 'rstrip': true}, '0': {'content': 'Z', "
        "'normalized': false, 'single_word': false}, '4194303': {'content': 'W', "
        "'special': true, 'normalized': true}}}");
    static const struct {
        const char *text;
        int32_t id;
        bool special, lstrip, rstrip, normalized;
    } want[] = {{"Z", 0, false, false, false, false},
                {"Y", 9, false, true, true, true},
                {"X", 10, true, false, false, false},
                {"W", 4194303, true, false, false, true}};
    assert_int_equal(c.n_added, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(c.added[i].text, want[i].text);
        assert_int_equal(c.added[i].id, want[i].id);
        assert_int_equal(c.added[i].special, want[i].special);
        assert_int_equal(c.added[i].lstrip, want[i].lstrip);
        assert_int_equal(c.added[i].rstrip, want[i].rstrip);
        assert_int_equal(c.added[i].normalized, want[i].normalized);
    }
    tokenizer_config_deinit(&c);
    assert_null(c.added);
    static const char *const ids[] = {"",       "x", "6x", "-1", "99999999999999999999",
                                      "4194304"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char text[128], message[80];
        snprintf(text, sizeof text, "{'added_tokens_decoder': {'%s': {'content': 'X'}}}",
                 ids[i]);
        snprintf(message, sizeof message,
                 "t.json: added_tokens_decoder: '%s' is not a token's id", ids[i]);
        refuse(text, ERR_FORMAT, message);
    }
    static const char *const flags[] = {"special", "lstrip", "rstrip", "single_word",
                                        "normalized"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        char text[128], message[80];
        snprintf(text, sizeof text,
                 "{'added_tokens_decoder': {'7': {'content': 'X', '%s': 5}}}", flags[i]);
        snprintf(message, sizeof message, "added_tokens_decoder: '7': '%s' must be",
                 flags[i]);
        refuse(text, ERR_FORMAT, message);
    }
    /* tokens before the bad one are freed */
    refuse("{'added_tokens_decoder': {'1': {'content': 'X'}, '2': {}}}", ERR_FORMAT,
           "added_tokens_decoder: '2': 'content' is missing");
    refuse("{'added_tokens_decoder': {'1': {'content': 'X', 'single_word': true}}}",
           ERR_UNSUPPORTED, "'single_word' is not supported");
    refuse("{'added_tokens_decoder': 5}", ERR_FORMAT, "'added_tokens_decoder'");
}

/* --- switches and templates --------------------------------------------------------------- */

TEST(test_switches)
{
    static const struct {
        const char *text;
        int bos, eos;
    } known[] = {
        {"{}", -1, -1},
        {"{'add_bos_token': true, 'add_eos_token': false}", 1, 0},
        {"{'add_bos_token': false, 'add_eos_token': true}", 0, 1},
        {"{'add_bos_token': null}", -1, -1},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct tokenizer_config c = parse(known[i].text);
        assert_int_equal(c.add_bos_token, known[i].bos);
        assert_int_equal(c.add_eos_token, known[i].eos);
        tokenizer_config_deinit(&c);
    }
    refuse("{'add_bos_token': 5}", ERR_FORMAT, "'add_bos_token' must be");
    refuse("{'add_eos_token': 5}", ERR_FORMAT, "'add_eos_token' must be");
    struct tokenizer_config c;
    struct err e = {0};
    assert_int_equal(tokenizer_config_parse(&c, "{", 1, "t.json", &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "t.json:1:"));
    assert_int_equal(c.add_bos_token, -1);
    assert_int_equal(c.add_eos_token, -1);
}

TEST(test_which_template)
{
    static const struct {
        const char *text, *want;
    } known[] = {
        {"{'chat_template': 'T'}", "T"},
        {"{'chat_template': []}", NULL},
        {"{'chat_template': [{'name': 'other', 'template': 'O'}]}", NULL},
        {"{'chat_template': [{'name': 'default', 'template': 'D'}, {'name': 'default', "
         "'template': 'E'}]}",
         "D"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct tokenizer_config c = parse(known[i].text);
        assert_int_equal(c.chat_template == NULL, known[i].want == NULL);
        if (known[i].want != NULL)
            assert_string_equal(c.chat_template, known[i].want);
        tokenizer_config_deinit(&c);
    }
    static const char every[] =
        "'chat_template': every entry must have a name and a template";
    refuse("{'chat_template': [{'name': 'default'}]}", ERR_FORMAT, every);
    refuse("{'chat_template': [{'template': 'T'}]}", ERR_FORMAT, every);
    refuse("{'chat_template': [5]}", ERR_FORMAT, every);
    refuse("{'chat_template': 5}", ERR_FORMAT, "'chat_template' must be a string");
}

/* --- folders ------------------------------------------------------------------------------ */

static char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 64];

static void put_bytes(const char *name, const char *bytes, size_t n)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put(const char *name, const char *text)
{
    put_bytes(name, quotes(text), strlen(text));
}

static void expect_load_error(int code, const char *message)
{
    struct tokenizer_config c;
    struct err e = {0};
    assert_int_equal(tokenizer_config_load(&c, dir, &e), code);
    tokenizer_config_deinit(&c);
    if (strstr(e.msg, message) == NULL || strstr(e.msg, dir) != e.msg)
        fail_msg("'%s' does not say '%s'", e.msg, message);
    assert_int_equal(tokenizer_config_load(&c, dir, NULL), code);
    tokenizer_config_deinit(&c);
}

TEST(test_files_of_a_folder)
{
    struct tokenizer_config c;
    struct err e = {0};
    tempdir_make(dir, "config");
    assert_int_equal(tokenizer_config_load(&c, dir, &e), 0);
    assert_int_equal(c.n_special, 0);
    assert_int_equal(c.add_bos_token, -1);
    assert_int_equal(e.msg[0], 0);
    tokenizer_config_deinit(&c);

    put("special_tokens_map.json", "{'pad_token': 'M'}");
    put("tokenizer_config.json", "{'pad_token': 'P', 'chat_template': 'T'}");
    assert_int_equal(tokenizer_config_load(&c, dir, &e), 0);
    assert_string_equal(c.special[0].text, "M");
    assert_string_equal(c.chat_template, "T");
    tokenizer_config_deinit(&c);
    put("special_tokens_map.json", "{'pad_token': 5}");
    expect_load_error(ERR_FORMAT,
                      "/tokenizer_config.json, special_tokens_map.json: 'pad_token'");
    put("special_tokens_map.json", "{");
    expect_load_error(ERR_FORMAT, "/special_tokens_map.json:1:");
    assert_int_equal(remove(path), 0);
    put("tokenizer_config.json", "{'pad_token': 5}");
    expect_load_error(ERR_FORMAT, "/tokenizer_config.json: 'pad_token'");
    put("tokenizer_config.json", "{");
    expect_load_error(ERR_FORMAT, "/tokenizer_config.json:1:");
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_load_error(ERR_FORMAT, "/tokenizer_config.json: not a regular file");
    assert_int_equal(remove(path), 0);

    put("tokenizer_config.json", "{'chat_template': 'T'}");
    put("chat_template.jinja", "J");
    assert_int_equal(tokenizer_config_load(&c, dir, &e), 0);
    assert_string_equal(c.chat_template, "J");
    tokenizer_config_deinit(&c);
    put_bytes("chat_template.jinja", "a\xff", 2);
    expect_load_error(ERR_FORMAT, "/chat_template.jinja: is not UTF-8 text");
    put_bytes("chat_template.jinja", "a\0b", 3);
    expect_load_error(ERR_FORMAT, "/chat_template.jinja: is not UTF-8 text");
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_load_error(ERR_FORMAT, "/chat_template.jinja: not a regular file");
    tempdir_remove(dir);
}
