/* test_auth.c - valid keys are accepted, everything else is refused, and each key has its own salt.
 * Also the framing of events. */
#include "tests/unit.h"

#include <stdio.h>
#include <string.h>

#include "server/auth.h"
#include "api/sse.h"
#include "base/json.h"

TEST(keys_open)
{
    const char *keys[] = {"alpha", "beta"};
    const char *a, *b, *none;
    struct auth *auth;
    auth_create(keys, 2, 0, &auth);
    assert_true(auth_check(auth, "Bearer alpha", &a));
    assert_true(auth_check(auth, "bearer  beta", &b));
    assert_int_equal(strlen(a), 64);
    assert_string_not_equal(a, b);
    const char *bad[] = {NULL,
                         "",
                         "alpha",
                         "Bearer",
                         "Bearer ",
                         "Bearer alph",
                         "Bearer alphaa",
                         "Basic alpha",
                         "Bearer alpha beta"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(auth_check(auth, bad[i], &none));
        assert_null(none);
    }
    auth_destroy(auth);
}

/* An administrator sees all counters. So does every client of a server without keys. */
TEST(who_sees_all)
{
    const char *keys[] = {"alpha", "beta", "root"}, *salt;
    struct auth *auth;
    auth_create(keys, 3, 1, &auth);
    for (int i = 0; i < 3; i++) {
        char bearer[32];
        snprintf(bearer, sizeof bearer, "Bearer %s", keys[i]);
        assert_true(auth_check(auth, bearer, &salt));
        assert_int_equal(auth_tenant(auth, salt), i);
        assert_int_equal(auth_sees_all(auth, salt), i == 2);
    }
    auth_destroy(auth);
    auth_create(keys, 2, 0, &auth);
    assert_true(auth_check(auth, "Bearer beta", &salt));
    assert_false(auth_sees_all(auth, salt));
    auth_destroy(auth);
    auth_create(keys, 1, 0, &auth);
    assert_true(auth_check(auth, "Bearer alpha", &salt));
    assert_true(auth_sees_all(auth, salt));
    auth_destroy(auth);
    auth_create(NULL, 0, 0, &auth);
    assert_true(auth_sees_all(auth, NULL));
    assert_int_equal(auth_tenant(auth, NULL), 0);
    auth_destroy(auth);
}

TEST(no_keys_let_all_in)
{
    const char *salt = "";
    struct auth *auth;
    auth_create(NULL, 0, 0, &auth);
    assert_true(auth_check(auth, NULL, &salt));
    assert_null(salt);
    auth_destroy(auth);
}

/* A tenant is found by the text of its salt. A server without keys has one tenant, which has no
 * salt. */
TEST(a_salt_finds_its_key)
{
    const char *keys[] = {"alpha", "beta"};
    struct auth *auth;
    char salt[65];
    auth_create(keys, 2, 0, &auth);
    for (int i = 0; i < 2; i++) {
        auth_salt(keys[i], salt);
        assert_int_equal(auth_find(auth, salt), i);
    }
    assert_int_equal(auth_find(auth, ""), -1);
    auth_salt("gamma", salt);
    assert_int_equal(auth_find(auth, salt), -1);
    auth_destroy(auth);
    auth_create(NULL, 0, 0, &auth);
    assert_int_equal(auth_find(auth, ""), 0);
    assert_int_equal(auth_find(auth, salt), -1);
    auth_destroy(auth);
}

/* The salt is the HMAC of RFC 2104 with SHA-256. Python's hmac module computed the expected
 * value. */
TEST(the_salt_is_an_hmac)
{
    const char *keys[] = {"alpha"};
    const char *salt;
    struct auth *auth;
    auth_create(keys, 1, 0, &auth);
    assert_true(auth_check(auth, "Bearer alpha", &salt));
    assert_string_equal(salt,
                        "0a9441e6a0355e674e78c47f08b38c2688c4b1cd0c9470047b1ff8df0af8955a");
    auth_destroy(auth);
}

TEST(events_are_framed)
{
    struct textbuf b = {0};
    sse_json(&b, json_make("{a: 'x', b: %s}", "1\n2\r\n\xE2\x80\xA8"));
    sse_done(&b);
    assert_string_equal(
        b.p, "data: {\"a\": \"x\", \"b\": \"1\\n2\\r\\n\\u2028\"}\n\ndata: [DONE]\n\n");
    textbuf_free(&b);
}
