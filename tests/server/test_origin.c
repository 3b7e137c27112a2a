/* test_origin.c - a web page's requests are accepted only if the server's rules allow the page. */
#include "tests/unit.h"

#include <string.h>

#include "server/origin.h"

static const char *const hosts[] = {"chat.example", "Proxy.Example."};
static const char *const origins[] = {"https://app.example", "http://127.0.0.1:3000",
                                      "tauri://localhost"};
static const struct origin_rules none,
    some = {.hosts = hosts, .n_hosts = 2, .origins = origins, .n_origins = 3};

struct header {
    const char *name, *value;
};

/* Returns 0 if the request is accepted, else the HTTP status. origin_check sets *allowed. */
static int status_of(const struct origin_rules *r, const struct header *h, bool is_page,
                     const char **allowed)
{
    struct origin_head head = {0};
    struct fault f = {0};
    for (; h->name != NULL; h++)
        origin_add(&head, h->name, h->value);
    return origin_check(r, &head, is_page, allowed, &f) == 0 ? 0 : f.status;
}

static int host_status(const struct origin_rules *r, const char *host)
{
    const char *allowed;
    const struct header h[] = {{"Host", host}, {0}};
    return status_of(r, h, false, &allowed);
}

/* Returns the status of a request with this Origin and this Host. */
static int origin_status(const struct origin_rules *r, const char *host, const char *origin)
{
    const char *allowed;
    const struct header h[] = {{"Host", host}, {"Origin", origin}, {0}};
    int status = status_of(r, h, false, &allowed);
    assert_true(status != 0 || allowed == NULL || strcmp(allowed, origin) == 0);
    return status;
}

TEST(a_name_of_others_is_refused)
{
    static const char *const good[] = {"127.0.0.1",
                                       "127.0.0.1:8080",
                                       "192.168.1.7:80",
                                       "[::1]",
                                       "[::1]:8080",
                                       "[0:0:0:0:0:0:0:1]:8080",
                                       "[fe80::1%eth0]:8080",
                                       "[::ffff:10.0.0.1]",
                                       "localhost",
                                       "LocalHost:8080",
                                       "localhost.",
                                       "localhost.:8080",
                                       "127.0.0.1.:8080",
                                       "localhost:",
                                       "127.0.0.1:",
                                       "a.localhost",
                                       "a.b.LocalHost.:80",
                                       "host.docker.internal:80",
                                       "Host.Containers.Internal"};
    static const char *const bad[] = {"",
                                      "evil.example",
                                      "evil.example:8080",
                                      "localhost.evil.example",
                                      "127.0.0.1.evil.example",
                                      "evil-localhost",
                                      ".localhost",
                                      "docker.internal",
                                      "a.host.docker.internal",
                                      "nas",
                                      "nas.local",
                                      "127.1",
                                      "2130706433",
                                      "0x7f000001",
                                      "localhost..",
                                      ".",
                                      ":8080",
                                      "localhost:80808080",
                                      "localhost:99999",
                                      "localhost:80a",
                                      "localhost:-1",
                                      "localhost, evil.example",
                                      "user@localhost",
                                      "http://localhost",
                                      "localhost/",
                                      "[::1",
                                      "[::1]x",
                                      "[]",
                                      "::1",
                                      "[evil.example]",
                                      "[::1]:8080:80",
                                      "loc\xc3\xa4lhost",
                                      "local host",
                                      "chat.example"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(host_status(&none, good[i]), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(host_status(&none, bad[i]), 403);
}

TEST(allowed_hosts_are_names_in_any_spelling)
{
    assert_int_equal(host_status(&some, "chat.example:8080"), 0);
    assert_int_equal(host_status(&some, "CHAT.example."), 0);
    assert_int_equal(host_status(&some, "proxy.example"), 0);
    assert_int_equal(host_status(&some, "xchat.example"), 403);
    assert_int_equal(host_status(&some, "chat.example.evil.example"), 403);
    assert_int_equal(host_status(&some, "a.chat.example"), 403);
}

/* With keys a page that rebinds a name cannot ask; without, only this machine's names are safe. */
TEST(every_name_is_allowed_where_a_key_is_needed)
{
    const struct origin_rules keys = {.any_host = true}, own = {.own_host = "Nas"},
                              unknown = {.own_host = ""};
    assert_int_equal(host_status(&keys, "evil.example:80"), 0);
    assert_int_equal(host_status(&keys, "nas"), 0);
    assert_int_equal(host_status(&keys, "a b"), 403);
    assert_int_equal(host_status(&own, "nas:8080"), 0);
    assert_int_equal(host_status(&own, "nas.local"), 403);
    assert_int_equal(host_status(&own, "nass"), 403);
    assert_int_equal(host_status(&unknown, ""), 403);
}

TEST(there_is_one_host)
{
    const char *allowed;
    const struct header two[] = {{"Host", "localhost"}, {"HOST", "localhost"}, {0}};
    const struct header no_host[] = {{"Accept", "*"}, {0}};
    const struct header page_without[] = {{"Origin", "http://localhost"}, {0}};
    assert_int_equal(status_of(&none, two, false, &allowed), 400);
    /* HTTP/1.0 needs no Host */
    assert_int_equal(status_of(&none, no_host, false, &allowed), 0);
    assert_int_equal(status_of(&none, page_without, false, &allowed), 403);
}

TEST(the_own_page_may_ask_and_no_other)
{
    static const struct {
        int status;
        const char *host, *origin;
    } cases[] = {
        {0, "127.0.0.1:8080", "http://127.0.0.1:8080"},
        {0, "LOCALHOST:8080", "http://localhost:8080"},
        {0, "localhost", "http://localhost"},
        {0, "localhost:80", "http://localhost"},
        {0, "localhost", "http://localhost:80"},
        {0, "[::1]:8080", "http://[0:0::1]:8080"},
        /* a proxy in front of the server ends TLS */
        {0, "chat.example", "https://chat.example"},
        {0, "chat.example:8443", "https://chat.example:8443"},
        {403, "127.0.0.1:8080", "http://127.0.0.1:8081"},
        {403, "127.0.0.1:8080", "http://127.0.0.1"},
        {403, "127.0.0.1:8080", "http://localhost:8080"},
        {403, "127.0.0.1:8080", "null"},
        {403, "127.0.0.1:8080", ""},
        {403, "127.0.0.1:8080", "127.0.0.1:8080"},
        {403, "127.0.0.1:8080", "ftp://127.0.0.1:8080"},
        {403, "127.0.0.1:8080", "http://127.0.0.1:8080/"},
        {403, "127.0.0.1:8080", "http://127.0.0.1:8080 http://evil.example"},
        {403, "127.0.0.1:8080", "http://evil.example"},
        {403, "127.0.0.1:8080", "http://127.0.0.1:8080@evil.example"},
        {403, "localhost:443", "http://localhost"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(origin_status(&some, cases[i].host, cases[i].origin),
                         cases[i].status);
}

TEST(an_allowed_origin_is_named_in_the_answer)
{
    static const char *const all[] = {"*"}, *const null[] = {"null"};
    const struct origin_rules any = {.origins = all, .n_origins = 1},
                              sandboxed = {.origins = null, .n_origins = 1};
    const char *allowed;
    const struct header app[] = {{"Host", "localhost"},
                                 {"Origin", "https://APP.example:443"},
                                 {"Sec-Fetch-Site", "cross-site"},
                                 {0}};
    const struct header own[] = {
        {"Host", "localhost"}, {"Origin", "http://localhost"}, {0}};
    assert_int_equal(status_of(&some, app, false, &allowed), 0);
    assert_string_equal(allowed, "https://APP.example:443");
    assert_int_equal(status_of(&none, app, false, &allowed), 403);
    assert_null(allowed);
    assert_int_equal(status_of(&some, own, false, &allowed), 0);
    assert_null(allowed);
    assert_int_equal(origin_status(&some, "localhost", "http://app.example"), 403);
    assert_int_equal(origin_status(&some, "localhost", "tauri://localhost"), 0);
    assert_int_equal(origin_status(&some, "localhost", "null"), 403);
    assert_int_equal(origin_status(&sandboxed, "localhost", "null"), 0);
    assert_int_equal(origin_status(&any, "localhost", "null"), 0);
    assert_int_equal(origin_status(&any, "localhost", "http://evil.example"), 0);
    assert_int_equal(origin_status(&any, "evil.example", "http://evil.example"), 403);
    const struct header twice[] = {{"Host", "localhost"},
                                   {"Origin", "https://app.example"},
                                   {"Origin", "https://app.example"},
                                   {0}};
    assert_int_equal(status_of(&some, twice, false, &allowed), 403);
}

/* Returns the status of a request without an Origin: for an image, a script, a frame, or from a
 * link. */
static int site_status(const char *site, const char *mode, const char *dest, bool is_page)
{
    const char *allowed;
    struct header h[] = {{"Host", "localhost"},
                         {"Sec-Fetch-Site", site},
                         {"Sec-Fetch-Mode", mode},
                         {"Sec-Fetch-Dest", dest},
                         {0}};
    return status_of(&some, h, is_page, &allowed);
}

TEST(other_sites_may_only_link_to_the_page)
{
    assert_int_equal(site_status("same-origin", "cors", "empty", false), 0);
    assert_int_equal(site_status("none", "navigate", "document", false), 0);
    assert_int_equal(site_status("cross-site", "no-cors", "image", false), 403);
    assert_int_equal(site_status("same-site", "no-cors", "script", false), 403);
    assert_int_equal(site_status("", "no-cors", "script", false), 403);
    assert_int_equal(site_status("cross-site", "navigate", "document", true), 0);
    assert_int_equal(site_status("cross-site", "navigate", "document", false), 403);
    assert_int_equal(site_status("cross-site", "navigate", "iframe", true), 403);
    assert_int_equal(site_status("cross-site", "no-cors", "document", true), 403);
}

/* Returns the status of a request with a body of this type whose other headers are valid. */
static int type_status(const char *page_header, const char *length, const char *type)
{
    const char *allowed,
        *value = strcmp(page_header, "Origin") == 0 ? "http://localhost" : "same-origin";
    const struct header h[] = {{"Host", "localhost"},
                               {page_header, value},
                               {"Content-Length", length},
                               {type != NULL ? "Content-Type" : "X", type},
                               {0}};
    return status_of(&none, h, false, &allowed);
}

TEST(a_page_sends_json)
{
    static const char *const json[] = {"application/json",
                                       "Application/JSON; charset=utf-8",
                                       "application/json ;x=y", "application/vnd.api+json"};
    static const char *const other[] = {"text/plain",
                                        "",
                                        NULL,
                                        "text/plain; application/json",
                                        "application/x-json",
                                        "application/pdf2",
                                        "application/jsonp",
                                        "application/+json",
                                        "multipart/form-data-2",
                                        "application/x-www-form-urlencoded",
                                        "text/json"};
    for (size_t i = 0; i < sizeof json / sizeof *json; i++) {
        assert_int_equal(type_status("Origin", "2", json[i]), 0);
        assert_int_equal(type_status("Sec-Fetch-Site", "2", json[i]), 0);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        assert_int_equal(type_status("Origin", "2", other[i]), 415);
        assert_int_equal(type_status("Sec-Fetch-Site", "2", other[i]), 415);
        assert_int_equal(type_status("Origin", "0", other[i]), 0); /* there is no body */
        /* the request does not come from a page */
        assert_int_equal(type_status("Accept", "2", other[i]), 0);
    }
    /* a page uploads files as a form: its own, not one that the browser does not name */
    static const char form[] = "multipart/form-data; boundary=json";
    assert_int_equal(type_status("Origin", "2", form), 0);
    assert_int_equal(type_status("Origin", "2", "application/pdf"), 0);
    assert_int_equal(type_status("Sec-Fetch-Site", "2", form), 0);
    const char *allowed;
    const struct header nameless[] = {{"Host", "localhost"},
                                      {"Sec-Fetch-Site", "none"},
                                      {"Content-Length", "2"},
                                      {"Content-Type", form},
                                      {0}};
    const struct header foreign[] = {{"Host", "localhost"},
                                     {"Origin", "http://localhost.example"},
                                     {"Content-Length", "2"},
                                     {"Content-Type", form},
                                     {0}};
    assert_int_equal(status_of(&none, nameless, false, &allowed), 415);
    assert_int_equal(status_of(&none, foreign, false, &allowed), 403);
    const struct header chunked[] = {{"Host", "localhost"},
                                     {"Origin", "http://localhost"},
                                     {"Transfer-Encoding", "chunked"},
                                     {0}};
    const struct header two[] = {{"Host", "localhost"},
                                 {"Origin", "http://localhost"},
                                 {"Content-Length", "2"},
                                 {"Content-Type", "text/plain"},
                                 {"Content-Type", "application/json"},
                                 {0}};
    assert_int_equal(status_of(&none, chunked, false, &allowed), 415);
    assert_int_equal(status_of(&none, two, false, &allowed), 415);
}

static int rules_of(const char *host, const char *origin)
{
    const struct origin_rules r = {.hosts = &host,
                                   .n_hosts = host != NULL,
                                   .origins = &origin,
                                   .n_origins = origin != NULL};
    struct err err = {0};
    int rc = origin_rules_check(&r, &err);
    assert_true(rc == 0 || strstr(err.msg, host != NULL ? host : origin) != NULL);
    return rc;
}

TEST(a_rule_that_can_never_match_is_an_error)
{
    static const char *const good[] = {
        "*", "null", "http://a", "https://a.example:8443", "http://[::1]:3000", "app://x"};
    static const char *const bad[] = {"",          "a.example",  "http://",
                                      "http://a/", "http://a:x", "https://a b",
                                      "app://",    "app://x/y",  "://x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(rules_of(NULL, good[i]), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(rules_of(NULL, bad[i]), ERR_USAGE);
    assert_int_equal(rules_of("hcache.example", NULL), 0);
    assert_int_equal(rules_of("hcache.example:8080", NULL), ERR_USAGE);
    assert_int_equal(rules_of("http://hcache.example", NULL), ERR_USAGE);
    assert_int_equal(rules_of("*", NULL), ERR_USAGE);
}
