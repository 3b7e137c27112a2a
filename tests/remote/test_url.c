/* The address of a shared tier: which forms are accepted and refused, and that no message contains
 * the password. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "remote/names.h"
#include "remote/url.h"

static void understood(void **state)
{
    static const struct {
        const char *text;
        struct remote_url want;
        const char *shown;
    } cases[] = {
        {"redis://localhost",
         {"localhost", "", "", 6379, 0, false},
         "redis://localhost:6379/0"},
        {"redis://h:1/", {"h", "", "", 1, 0, false}, "redis://h:1/0"},
        {"redis://10.0.0.1:65535/15",
         {"10.0.0.1", "", "", 65535, 15, false},
         "redis://10.0.0.1:65535/15"},
        {"redis://[::1]:7000/3", {"::1", "", "", 7000, 3, false}, "redis://[::1]:7000/3"},
        {"redis://[fe80::1]",
         {"fe80::1", "", "", 6379, 0, false},
         "redis://[fe80::1]:6379/0"},
        {"redis://u:p@h:2/1", {"h", "u", "p", 2, 1, false}, "redis://h:2/1"},
        {"redis://:p@h", {"h", "", "p", 6379, 0, false}, "redis://h:6379/0"},
        {"redis://u:a%40b%3a@h", {"h", "u", "a@b:", 6379, 0, false}, "redis://h:6379/0"},
        {"redis://u:a@b@h", {"h", "u", "a@b", 6379, 0, false}, "redis://h:6379/0"},
        {"rediss://u:p@h:7/2", {"h", "u", "p", 7, 2, true}, "rediss://h:7/2"},
        {"rediss://[::1]", {"::1", "", "", 6379, 0, true}, "rediss://[::1]:6379/0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct remote_url u;
        struct err err = {0};
        char shown[300];
        if (remote_url_parse(cases[i].text, &u, &err) != 0)
            fail_msg("%s: %s", cases[i].text, err.msg);
        assert_string_equal(u.host, cases[i].want.host);
        assert_string_equal(u.user, cases[i].want.user);
        assert_string_equal(u.password, cases[i].want.password);
        assert_int_equal(u.port, cases[i].want.port);
        assert_int_equal(u.db, cases[i].want.db);
        assert_int_equal(u.has_tls, cases[i].want.has_tls);
        remote_url_text(&u, shown, sizeof shown);
        assert_string_equal(shown, cases[i].shown);
    }
}

static void refused(void **state)
{
    static const char *const texts[] = {"",
                                        "localhost:6379",
                                        "http://h",
                                        "redis://",
                                        "redis:///1",
                                        "redisss://h",
                                        "rediss:/h",
                                        "rediss:/xh",
                                        "redis://h:0",
                                        "redis://h:65536",
                                        "redis://h:99999999999",
                                        "redis://h:x",
                                        "redis://h:",
                                        "redis://h/x",
                                        "redis://h/65536",
                                        "redis://h/1/2",
                                        "redis://[::1",
                                        "redis://[::1]x",
                                        "redis://secret@h",
                                        "redis://u:@h",
                                        "redis://u:secret%4@h",
                                        "redis://u:secret%zz@h",
                                        "redis://u:secret%00@h",
                                        "redis://u:secret@h:x"};
    char longest[600] = "redis://u:secret@";
    (void)state;
    memset(longest + strlen(longest), 'h', 300);
    for (size_t i = 0; i <= sizeof texts / sizeof texts[0]; i++) {
        const char *text = i < sizeof texts / sizeof texts[0] ? texts[i] : longest;
        struct remote_url u;
        struct err err = {0};
        if (remote_url_parse(text, &u, &err) != ERR_USAGE)
            fail_msg("accepted: %s", text);
        assert_non_null(strstr(err.msg, "--remote"));
        assert_null(strstr(err.msg, "secret"));
    }
}

static void a_chunk_has_one_name(void **state)
{
    struct sha256 a = {.b = {1, 2}}, b = {.b = {1, 3}};
    char x[NAME_BYTES], y[NAME_BYTES];
    (void)state;
    name_chunk(&a, x);
    name_chunk(&b, y);
    assert_string_not_equal(x, y);
    assert_int_equal(strlen(x), strlen(NAME_CHUNKS) + 64);
    assert_memory_equal(x, NAME_CHUNKS "0102", strlen(NAME_CHUNKS) + 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(understood),
        cmocka_unit_test(refused),
        cmocka_unit_test(a_chunk_has_one_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
