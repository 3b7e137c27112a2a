/* test_client.c - which model a request may name, and the salt of its state. */

#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "api/client.h"

TEST(a_request_names_the_model_or_none)
{
    const struct client c = {.model_name = "demo"};
    struct fault f = {0};
    assert_int_equal(client_check_model(&c, NULL, &f), 0);
    assert_int_equal(client_check_model(&c, "demo", &f), 0);
    assert_int_equal(client_check_model(&c, "dem", &f), -1);
    assert_int_equal(f.status, 404);
    assert_string_equal(f.code, "model_not_found");
    assert_string_equal(f.param, "model");
    assert_string_equal(f.message, "there is no model 'dem', only 'demo'");
}

TEST(a_model_has_several_names)
{
    static const char *const names[] = {"Org/Model-Q4_1.gguf", "gpt-4o"};
    struct client c = {.model_name = names[0],
                       .names = {.items = names, .n = 2, .in_file = "Model 135M"}};
    static const char *const good[] = {
        "Org/Model-Q4_1.gguf", "Org/Model-Q4_1",  "Model-Q4_1.gguf",
        "Model-Q4_1",          "Model-Q4_1.GGUF", "gpt-4o",
        "gpt-4o.gguf",         "default",         "Model 135M"};
    static const char *const bad[] = {
        "",      "Org",   "Org/",    "Model",    "Other/Model-Q4_1",
        "gpt-4", ".gguf", "DEFAULT", "Model 135"};
    struct fault f = {0};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (client_check_model(&c, good[i], &f) != 0)
            fail_msg("%s: %s", good[i], f.message);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (client_check_model(&c, bad[i], &f) == 0)
            fail_msg("%s is accepted", bad[i]);
    assert_int_equal(f.status, 404);
    assert_string_equal(
        f.message, "there is no model 'Model 135', only 'Org/Model-Q4_1.gguf', 'gpt-4o'");
    c.names.any = true;
    assert_int_equal(client_check_model(&c, "claude-x", &f), 0);
}

static void salt_is(const char *key, const char *cache_salt, const char *want)
{
    const struct client c = {.salt = key};
    char *got = client_state_salt(&c, cache_salt);
    if (want == NULL)
        assert_null(got);
    else
        assert_string_equal(got, want);
    free(got);
}

/* Two requests share state exactly if both the salts of their keys and their own salts are
 * equal. */
TEST(state_is_shared_under_equal_salts_only)
{
    salt_is(NULL, NULL, NULL);
    salt_is(NULL, "", NULL);
    salt_is("key", NULL, "key");
    salt_is("key", "", "key");
    salt_is(NULL, "key", "/key");
    salt_is("key", "x", "key/x");
    salt_is("key", "x/y", "key/x/y");
}
