/* test_tenants.c - the counters of each API key. */

#include "tests/unit.h"

#include <string.h>

#include "server/tenants.h"

TEST(an_answer_is_counted_for_its_key_alone)
{
    struct tenants *t;
    struct tenant_counts c, none = {0};
    const struct hcache_result r = {.prompt_tokens = 300,
                                    .cached_tokens = 192,
                                    .device_tokens = 64,
                                    .n_tokens = 7,
                                    .restored_bytes = 4096};
    tenants_create(3, &t);
    tenants_request(t, 1);
    tenants_request(t, 1);
    tenants_begin(t, 1);
    tenants_begin(t, 1);
    tenants_end(t, 1, ANSWER_DONE, &r, true);
    tenants_read(t, 1, &c);
    assert_int_equal(c.n_http, 2);
    assert_int_equal(c.n_open, 1);
    assert_int_equal(c.n_ended[ANSWER_DONE], 1);
    assert_int_equal(c.device_tokens, 64);
    assert_int_equal(c.restored_tokens, 128);
    assert_int_equal(c.computed_tokens, 108);
    assert_int_equal(c.generated_tokens, 7);
    assert_int_equal(c.restored_bytes, 4096);
    assert_int_equal(c.n_restores, 1);
    assert_int_equal(c.n_misses, 1);
    for (int i = 0; i < 3; i += 2) {
        tenants_read(t, i, &c);
        assert_memory_equal(&c, &none, sizeof c);
    }
    tenants_destroy(t);
}

/* Tokens whose state is on the device are not restored. A request without a result counts only as
 * ended. */
TEST(only_restored_tokens_make_a_restore)
{
    struct tenants *t;
    struct tenant_counts c;
    const struct hcache_result r = {
        .prompt_tokens = 100, .cached_tokens = 64, .device_tokens = 64};
    tenants_create(0, &t); /* a server without keys has one tenant */
    for (int i = 0; i < 3; i++)
        tenants_begin(t, 0);
    tenants_end(t, 0, ANSWER_DONE, &r, false);
    tenants_end(t, 0, ANSWER_FAILED, NULL, true);
    tenants_end(t, 0, ANSWER_TIMEOUT, NULL, false);
    tenants_read(t, 0, &c);
    assert_int_equal(c.n_restores, 0);
    assert_int_equal(c.n_misses, 0);
    assert_int_equal(c.n_open, 0);
    assert_int_equal(c.n_ended[ANSWER_DONE], 1);
    assert_int_equal(c.n_ended[ANSWER_FAILED], 1);
    assert_int_equal(c.n_ended[ANSWER_TIMEOUT], 1);
    assert_int_equal(c.n_ended[ANSWER_CANCELLED], 0);
    assert_int_equal(c.computed_tokens, 36);
    tenants_destroy(t);
    tenants_destroy(NULL);
}
