/* test_head.c - which request heads (request line and headers) are refused. */
#include "tests/unit.h"

#include <string.h>

#include "server/head.h"

#define LENGTH   "Content-Length"
#define ENCODING "Transfer-Encoding"

struct header {
    const char *name, *value;
};

/* Returns 0 if the head is accepted, else the HTTP status. */
static int status_of(const struct header *h, int n)
{
    struct head head = {.uri_bytes = 10};
    struct fault f = {0};
    for (int i = 0; i < n; i++)
        head_add(&head, h[i].name, h[i].value);
    if (head_check(&head, 1000, &f) == 0)
        return 0;
    assert_true(strlen(f.message) > 10);
    return f.status;
}

TEST(lengths)
{
    static const struct {
        int status, n;
        struct header h[3];
    } cases[] = {
        {0, 0, {{0}}},
        {0, 1, {{LENGTH, "0"}}},
        {0, 2, {{LENGTH, "1000"}, {"Host", "x"}}},
        {0, 1, {{"content-length", "0000000000000007"}}},
        {0, 1, {{ENCODING, "Chunked"}}},
        {413, 1, {{LENGTH, "1001"}}},
        {413, 1, {{LENGTH, "999999999999999999"}}},
        {400, 1, {{LENGTH, "9999999999999999999"}}},
        {400, 1, {{LENGTH, ""}}},
        {400, 1, {{LENGTH, NULL}}},
        {400, 1, {{LENGTH, "+5"}}},
        {400, 1, {{LENGTH, " 5"}}},
        {400, 1, {{LENGTH, "0x5"}}},
        {400, 1, {{LENGTH, "5, 5"}}},
        {400, 2, {{LENGTH, "5"}, {"CONTENT-LENGTH", "5"}}},
        {400, 2, {{LENGTH, "5"}, {ENCODING, "chunked"}}},
        {400, 2, {{ENCODING, "chunked"}, {LENGTH, "5"}}},
        /* the HTTP library reports a folded header line under this name */
        {400, 1, {{LENGTH "16", ""}}},
        {400, 1, {{"content-length+16", ""}}},
        {400, 1, {{ENCODING "chunked", "x"}}},
        {400, 2, {{LENGTH, "5"}, {"XTransfer-Encoding: chunked", "y"}}},
        {400, 1, {{"X y", "1"}}},
        {400, 1, {{"", "1"}}},
        {400, 1, {{"X\xc3\xa4", "1"}}},
        {0, 3, {{"Host", "x"}, {"sec-fetch-site", "none"}, {"X-!#$%&'*+.^_`|~1", "y"}}},
        {501, 1, {{ENCODING, "gzip, chunked"}}},
        {501, 1, {{ENCODING, NULL}}},
        {501, 2, {{ENCODING, "chunked"}, {ENCODING, "chunked"}}},
        {501, 2, {{ENCODING, "gzip"}, {ENCODING, "chunked"}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(status_of(cases[i].h, cases[i].n), cases[i].status);
}

TEST(long_uri)
{
    struct fault f;
    struct head h = {.uri_bytes = HEAD_MAX_URI_BYTES};
    assert_int_equal(head_check(&h, 1000, &f), 0);
    h.uri_bytes++;
    assert_int_equal(head_check(&h, 1000, &f), -1);
    assert_int_equal(f.status, 414);
}

TEST(paths)
{
    assert_true(head_path_is("/", "/"));
    assert_false(head_path_is("/", "/x"));
    assert_true(head_path_is("/v1/models", "/v1/models"));
    assert_false(head_path_is("/v1/models", "/v1/models/"));
    assert_true(head_path_is("/v1/models/{*m}", "/v1/models/x/y"));
    assert_false(head_path_is("/v1/models/{*m}", "/v1/models/"));
    assert_false(head_path_is("/v1/models/{*m}", ""));
    static const struct {
        const char *path;
        bool is_item, is_one;
    } rows[] = {{"/c/1/items/2", true, false},
                {"/c/1/items/", false, false},
                {"/c/1/items", false, false},
                {"/c//items/2", false, false},
                {"/c/1/items/2/3", false, false},
                {"/c/1/items/2/", true, false},
                {"/c/1", false, true},
                {"/c/1/", false, true},
                {"/c/{id}", false, true},
                {"/c/", false, false},
                {"/x/1/items/2", false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(head_path_is("/c/{id}/items/{item_id}", rows[i].path),
                         rows[i].is_item);
        assert_int_equal(head_path_is("/c/{id}", rows[i].path), rows[i].is_one);
    }
}
