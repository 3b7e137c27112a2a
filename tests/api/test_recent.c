/* test_recent.c - what is known of the last requests: found by id, bounded, forgotten. */

#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "api/recent.h"

/* Adds a request whose restoration has a plan of n bytes, which lists leave out. */
static void add(struct recent *r, const char *tenant, const char *id, int64_t created_s,
                int n)
{
    struct json *told = json_new_object();
    char *plan = calloc(1, (size_t)n + 1);
    memset(plan, 'K', (size_t)n);
    json_put_int(told, "prompt_tokens", 100);
    json_put_int(told, "cached_tokens", 64);
    json_put_string(told, "miss", "evicted");
    json_put_string(told, "plan", plan);
    recent_add(r, tenant, &(struct recent_request){id, "agent/1", created_s, told});
    json_free(told);
    free(plan);
}

/* The tenant's ids, newest first. */
static void ids_are(struct recent *r, const char *tenant, int limit, const char *want)
{
    struct json *list = recent_list(r, tenant, limit);
    char got[256] = "";
    for (size_t i = 0; i < json_count(list); i++)
        strcat(got, json_string_of(json_member(json_at(list, i), "id"), NULL));
    assert_string_equal(got, want);
    json_free(list);
}

TEST(a_request_is_found_by_its_id)
{
    struct recent *r = recent_create(&(struct recent_opts){8, 1 << 20, 0});
    add(r, "", "a", 10, 5);
    add(r, "them", "b", 20, 5);
    struct json *one = recent_find(r, "", "a"), *list = recent_list(r, "", 5);
    char *text = json_text(one, 0), *listed = json_text(list, 0);
    assert_string_equal(
        text, "{\"id\": \"a\", \"object\": \"request\", \"created_at\": 10, "
              "\"agent\": \"agent/1\", \"restoration\": {\"prompt_tokens\": 100, "
              "\"cached_tokens\": 64, \"miss\": \"evicted\", \"plan\": \"KKKKK\"}}");
    assert_string_equal(
        listed, "[{\"id\": \"a\", \"object\": \"request\", \"created_at\": 10, \"agent\": "
                "\"agent/1\", \"restoration\": {\"prompt_tokens\": 100, "
                "\"cached_tokens\": 64, \"miss\": \"evicted\"}}]");
    assert_null(recent_find(r, "", "b")); /* another tenant's */
    assert_null(recent_find(r, "", "c"));
    free(text);
    free(listed);
    json_free(one);
    json_free(list);
    recent_destroy(r);
}

TEST(a_tenant_keeps_its_share)
{
    struct recent *r = recent_create(&(struct recent_opts){6, 1 << 20, 2});
    const char *ids[] = {"a", "b", "c", "d", "e"};
    add(r, "them", "x", 1, 5);
    for (int i = 0; i < 5; i++)
        add(r, "", ids[i], i, 5);
    ids_are(r, "", 9, "edc");
    ids_are(r, "", 2, "ed");
    ids_are(r, "them", 9, "x");
    /* Tenants beyond the number that the shares are for: the oldest goes. */
    add(r, "more", "y", 1, 5);
    add(r, "still", "z", 1, 5);
    add(r, "others", "w", 1, 5);
    ids_are(r, "them", 9, "");
    ids_are(r, "", 9, "edc");
    recent_destroy(r);
}

TEST(bytes_are_bounded)
{
    struct recent *r = recent_create(&(struct recent_opts){100, 2000, 1});
    add(r, "", "a", 1, 700);
    add(r, "", "b", 2, 700);
    ids_are(r, "", 9, "ba");
    add(r, "", "c", 3, 700);
    ids_are(r, "", 9, "cb");
    add(r, "", "d", 4, 1700);
    ids_are(r, "", 9, "d");
    recent_destroy(r);
}

TEST(what_is_forgotten_is_gone)
{
    struct recent *r = recent_create(&(struct recent_opts){8, 1 << 20, 0});
    add(r, "", "a", 1, 5);
    add(r, "them", "x", 2, 5);
    add(r, "", "b", 3, 5);
    add(r, "", "c", 4, 5);
    recent_forget(r, "", "b");
    ids_are(r, "", 9, "ca");
    recent_expire(r, 2);
    ids_are(r, "", 9, "c");
    ids_are(r, "them", 9, "x");
    recent_forget(r, "", NULL);
    ids_are(r, "", 9, "");
    ids_are(r, "them", 9, "x");
    recent_destroy(r);
}
