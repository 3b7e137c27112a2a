/* test_body.c - bodies of requests: which are accepted and refused. The bytes of all bodies and
 * parsed values together are counted until they are freed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "server/auth.h"
#include "server/body.h"
#include "server/tenants.h"

enum { MAX_BODY = 100, MAX_ALL = 250 };

static struct server server;

static uint64_t counted(void)
{
    return atomic_load(&server.body_bytes);
}

static int prepare(void **state)
{
    atomic_store(&server.body_bytes, 0);
    server.o.max_body_bytes = MAX_BODY;
    server.o.max_bodies_bytes = MAX_ALL;
    return 0;
}

static struct call begin(void)
{
    return (struct call){.s = &server, .fault_json = fault_json};
}

static void end(struct call *c)
{
    body_release(c);
    textbuf_free(&c->out);
}

static enum MHD_Result add(struct call *c, size_t n)
{
    char *bytes = xcalloc(1, n + 1);
    memset(bytes, 'x', n);
    enum MHD_Result r = body_add(c, bytes, n);
    free(bytes);
    return r;
}

/* --- bytes ------------------------------------------------------------------------------------ */

TEST_WITH(a_body_may_have_as_much_as_its_bound, prepare, NULL)
{
    struct call c = begin();
    struct fault f = {0};
    for (size_t i = 1; i <= MAX_BODY / 10; i++) {
        assert_int_equal(add(&c, 10), MHD_YES);
        assert_int_equal(counted(), 10 * i);
    }
    assert_int_equal(c.body.n, MAX_BODY);
    assert_int_equal(body_check(&c, &f), 0);
    assert_int_equal(f.status, 0);
    end(&c);
    assert_int_equal(counted(), 0);
}

/* The server reads and drops the rest of a body that exceeds the bound. So a client that sends the
 * whole body first still gets an answer. At twice the bound the server closes the connection. */
TEST_WITH(a_body_that_is_too_large_is_dropped, prepare, NULL)
{
    struct call c = begin();
    struct fault f = {0};
    assert_int_equal(add(&c, MAX_BODY), MHD_YES);
    assert_int_equal(add(&c, 1), MHD_YES);
    assert_true(c.too_big);
    assert_null(c.body.p);
    assert_int_equal(counted(), 0);
    assert_int_equal(body_check(&c, &f), -1);
    assert_int_equal(f.status, 413);
    assert_string_equal(f.message, "the body has more than 100 bytes");
    assert_int_equal(add(&c, MAX_BODY - 1), MHD_YES); /* reaches twice the bound */
    assert_int_equal(add(&c, 1), MHD_NO);
    assert_int_equal(counted(), 0);
    end(&c);
    assert_int_equal(counted(), 0);
}

/* Of two keys, one may take all of the bound, and the other still has its half. Requests without a
 * key have no share. */
TEST_WITH(each_key_has_a_share_of_the_bound, prepare, NULL)
{
    static const char *const keys[] = {"a", "b"};
    struct call c[5] = {begin(), begin(), begin(), begin(), begin()};
    struct fault f = {0};
    auth_create(keys, 2, 0, &server.auth);
    tenants_create(2, &server.tenants);
    server.o.n_api_keys = 2;
    for (int i = 0; i < 5; i++)
        if (i != 3)
            assert_true(
                auth_check(server.auth, i < 3 ? "Bearer a" : "Bearer b", &c[i].salt));
    for (int i = 0; i < 3; i++)
        assert_int_equal(add(&c[i], i < 2 ? MAX_BODY : MAX_ALL - 2 * MAX_BODY), MHD_YES);
    assert_int_equal(add(&c[2], 1), MHD_YES);
    assert_int_equal(body_check(&c[2], &f), -1);
    assert_int_equal(add(&c[2], 0), MHD_YES);
    assert_int_equal(add(&c[4], MAX_BODY), MHD_YES);
    assert_int_equal(body_check(&c[4], &f), 0);
    assert_int_equal(add(&c[3], MAX_BODY), MHD_YES);
    assert_int_equal(body_check(&c[3], &f), -1);
    assert_int_equal(f.status, 503);
    for (int i = 0; i < 5; i++)
        end(&c[i]);
    assert_int_equal(counted(), 0);
    struct tenant_counts k;
    for (int i = 0; i < 2; i++) {
        tenants_read(server.tenants, i, &k);
        assert_int_equal(k.body_bytes, 0);
    }
    tenants_destroy(server.tenants);
    auth_destroy(server.auth);
    server.o.n_api_keys = 0;
}

TEST_WITH(all_bodies_together_have_a_bound, prepare, NULL)
{
    struct call c[3] = {begin(), begin(), begin()};
    struct fault f = {0};
    assert_int_equal(add(&c[0], MAX_BODY), MHD_YES);
    assert_int_equal(add(&c[1], MAX_BODY), MHD_YES);
    /* the bound of all bodies together is reached exactly */
    assert_int_equal(add(&c[2], MAX_ALL - 2 * MAX_BODY), MHD_YES);
    assert_int_equal(body_check(&c[2], &f), 0);
    assert_int_equal(counted(), MAX_ALL);
    assert_int_equal(add(&c[2], 1), MHD_YES);
    assert_int_equal(body_check(&c[2], &f), -1);
    assert_int_equal(f.status, 503);
    assert_string_equal(f.message, "too many large requests at once");
    assert_int_equal(counted(), 2 * MAX_BODY); /* the other bodies still count */
    assert_int_equal(body_check(&c[0], &f), 0);
    for (int i = 0; i < 3; i++)
        end(&c[i]);
    assert_int_equal(counted(), 0);
}

/* --- values ----------------------------------------------------------------------------------- */

static void put(struct call *c, const char *text)
{
    assert_int_equal(body_add(c, text, strlen(text)), MHD_YES);
}

/* Parsed values replace the body's bytes, and count until the call ends. */
TEST_WITH(a_body_becomes_values, prepare, NULL)
{
    struct call c = begin();
    server.o.max_body_bytes = server.o.max_bodies_bytes = 1 << 20;
    put(&c, "{\"model\": \"m\", \"n\": ");
    put(&c, "3}");
    const struct json *v = call_body(&c, 0);
    int64_t n = 0;
    assert_non_null(v);
    assert_true(json_int_of(json_member(v, "n"), &n) && n == 3);
    assert_int_equal(c.body.n, 0);
    assert_true(c.json_bytes > 0);
    assert_int_equal(counted(), c.json_bytes);
    assert_ptr_equal(call_body(&c, 0), v); /* a second call parses nothing */
    assert_false(c.answered);
    assert_int_equal(counted(), c.json_bytes);
    end(&c);
    assert_int_equal(counted(), 0);
}

TEST_WITH(a_bad_body_is_answered_once, prepare, NULL)
{
    static const char *const bad[] = {"{", "", "{\"a\": 1,}", "nothing"};
    server.o.max_body_bytes = server.o.max_bodies_bytes = 1 << 20;
    for (int i = 0; i < 4; i++) {
        struct call c = begin();
        put(&c, bad[i]);
        assert_null(call_body(&c, 0));
        assert_true(c.has_bad_body && c.answered);
        assert_int_equal(c.status, 400);
        assert_non_null(strstr(c.out.p, "\"the request's body"));
        assert_ptr_equal(strstr(c.refused, "the request's body"), c.refused);
        assert_int_equal(c.body.n, 0);
        c.answered = false;
        assert_null(call_body(&c, 0));
        assert_false(c.answered);
        end(&c);
        assert_int_equal(counted(), 0);
    }
}

/* A large invalid text is refused by the scan, before memory for any value is used. */
TEST_WITH(a_large_bad_body_is_refused_by_the_scan, prepare, NULL)
{
    struct call c = begin();
    server.o.max_body_bytes = server.o.max_bodies_bytes = 1 << 20;
    size_t n = 100 << 10;
    char *text = xcalloc(1, n + 1);
    memset(text, ' ', n);
    text[0] = '{';
    put(&c, text);
    assert_null(call_body(&c, 0));
    assert_int_equal(c.status, 400);
    assert_int_equal(c.json_bytes, 0);
    end(&c);
    assert_int_equal(counted(), 0);
    free(text);
}

/* Many small values in a short text can take more memory than one request, or all requests
 * together, may use. Such a body is refused. */
TEST_WITH(values_have_a_bound, prepare, NULL)
{
    enum { N = 300000 };
    struct textbuf text = {0};
    textbuf_add(&text, "[", 1);
    for (int i = 0; i < N; i++)
        textbuf_add(&text, i == 0 ? "{}" : ",{}", i == 0 ? 2 : 3);
    textbuf_add(&text, "]", 1);
    struct call c = begin();
    server.o.max_body_bytes = 4 << 20;
    server.o.max_bodies_bytes = UINT64_C(1) << 40;
    put(&c, text.p);
    assert_null(call_body(&c, 0));
    assert_int_equal(c.status, 413);
    assert_non_null(strstr(c.out.p, "\"too_many_values\""));
    end(&c);
    assert_int_equal(counted(), 0);
    struct call other = begin();
    server.o.max_bodies_bytes = 300;
    put(&other, "[{},{},{},{}]");
    assert_null(call_body(&other, 0));
    assert_int_equal(other.status, 503);
    assert_int_equal(other.retry_after_s, 1);
    assert_int_equal(other.json_bytes, 0);
    end(&other);
    assert_int_equal(counted(), 0);
    textbuf_free(&text);
}
