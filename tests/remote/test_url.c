/* The address of a shared tier: which forms are accepted and refused, and that no message contains
 * the password. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "store/remote/names.h"
#include "redis/url.h"

TEST(understood)
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
        {"redis://h:000006379/65535",
         {"h", "", "", 6379, 65535, false},
         "redis://h:6379/65535"},
        {"redis://%66%46%0a%fF:%09%90%aF%Fa@h",
         {"h", "fF\n\xff", "\t\x90\xaf\xfa", 6379, 0, false},
         "redis://h:6379/0"},
    };
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

/* Each refusal says what is wrong, and shows no password. */
TEST(refused)
{
#define SCHEME "it begins neither with redis:// nor with rediss://"
#define PORT   "the port is not a number from 1 to 65535"
#define DB     "the database is not a number"
#define USER   "user or password is too long, or has a bad percent sign"
#define HOST   "the host's name is too long"
    static const struct {
        const char *text, *why;
    } cases[] = {{"", SCHEME},
                 {"localhost:6379", SCHEME},
                 {"http://h", SCHEME},
                 {"redisss://h", SCHEME},
                 {"rediss:/h", SCHEME},
                 {"rediss:/xh", SCHEME},
                 {"redis://", "the host is missing"},
                 {"redis:///1", "the host is missing"},
                 {"redis://:6379", "the host is missing"},
                 {"redis://[]", "the host is missing"},
                 {"redis://u:secret@", "the host is missing"},
                 {"redis://h:0", PORT},
                 {"redis://h:65536", PORT},
                 {"redis://h:0000006379", PORT},
                 {"redis://h:99999999999", PORT},
                 {"redis://h:x", PORT},
                 {"redis://h:6:", PORT},
                 {"redis://h:", PORT},
                 {"redis://u:secret@h:x", PORT},
                 {"redis://[::1]x", PORT},
                 {"redis://[::1]x1", PORT},
                 {"redis://h/x", DB},
                 {"redis://h/65536", DB},
                 {"redis://h/-1", DB},
                 {"redis://h/:", DB},
                 {"redis://h/1/2", DB},
                 {"redis://[::1", "a bracket is not closed"},
                 {"redis://[%zz]", HOST},
                 {"redis://h%zz", HOST},
                 {"redis://secret@h", "a user needs a password"},
                 {"redis://u:@h", "the password is empty"},
                 {"redis://u:secret%4@h", USER},
                 {"redis://u:secret%zz@h", USER},
                 {"redis://u:secret%4g@h", USER},
                 {"redis://u:secret%G4@h", USER},
                 {"redis://u:secret%@h", USER},
                 {"redis://u:secret%00@h", USER},
                 {"redis://u%zz:secret@h", USER}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct remote_url u;
        struct err err = {0};
        char want[200];
        if (remote_url_parse(cases[i].text, &u, &err) != ERR_USAGE)
            fail_msg("accepted: %s", cases[i].text);
        snprintf(want, sizeof want,
                 "--remote: %s; the address must have the form "
                 "redis[s]://[user:password@]host[:port][/db]",
                 cases[i].why);
        assert_string_equal(err.msg, want);
        assert_null(strstr(err.msg, "secret"));
    }
}

/* A host, a user and a password may have 255 characters. An escape counts as one. */
TEST(lengths_are_bounded)
{
    static const char *const forms[] = {"redis://%s", "redis://[%s]", "redis://%s:p@h",
                                        "redis://u:%s@h"};
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        for (int n = 254; n <= 256; n++) {
            for (int escapes = 0; escapes < 2; escapes++) {
                char part[1000] = "", text[1100], want[300];
                for (int i = 0; i < n; i++)
                    strcat(part, escapes ? i % 2 ? "%7a" : "%5A" : "q");
                for (int i = 0; i < n; i++)
                    want[i] = (char)(escapes ? i % 2 ? 'z' : 'Z' : 'q');
                want[n] = 0;
                struct remote_url u;
                struct err err = {0};
                (void)snprintf(text, sizeof text, forms[f], part);
                int rc = remote_url_parse(text, &u, &err);
                assert_int_equal(rc, n <= 255 ? 0 : ERR_USAGE);
                if (rc == 0)
                    assert_string_equal(f < 2    ? u.host
                                        : f == 2 ? u.user
                                                 : u.password,
                                        want);
            }
        }
    }
}

TEST(a_chunk_has_one_name)
{
    struct sha256 a = {.b = {1, 2}}, b = {.b = {1, 3}};
    char x[NAME_BYTES], y[NAME_BYTES];
    struct names plain, sealed;
    names_init(&plain, NULL);
    names_init(&sealed, a.b);
    name_chunk(&plain, &a, x);
    name_chunk(&plain, &b, y);
    assert_string_not_equal(x, y);
    assert_int_equal(strlen(x), strlen(plain.chunks) + 64);
    assert_memory_equal(x, "hcache:1:chunk:0102", 19);
    name_chunk(&sealed, &a, y);
    assert_null(strstr(y, x + strlen(plain.chunks))); /* nobody can guess it from a text */
    names_deinit(&sealed);
}
