/* test_context.c - look-ups, pins and erasures of a truncated context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "hcache.h"

enum { N = 703, HOUR = 3600 };

static int32_t ids[N];

/* Opens a handle that has stored a truncated context of 703 tokens in memory. Its last token has
 * cut 512, and sees chunks 0, 9 and the unfinished chunk 10. Chunks 8 and 9 belong to the previous
 * stair. */
static struct hcache *open_stored(struct hcache_context *c)
{
    struct hcache *h;
    struct hcache_err err = {0};
    struct hcache_result r;
    struct hcache_opts o = {.model = "synth:tiny-mha",
                            .dtype = "f32",
                            .threads = 1,
                            .max_context = 512,
                            .store_in_memory = true,
                            .no_reuse = true};
    for (int i = 0; i < N; i++)
        ids[i] = 3 + i * 37 % 450;
    *c = (struct hcache_context){
        .ids = ids, .n = N, .truncation = {.ratio = 0.5, .context = 256}};
    struct hcache_request q = {.prompt = ids,
                               .n_prompt = N,
                               .max_tokens = 1,
                               .ignore_eos = true,
                               .save = "kv",
                               .truncation = c->truncation};
    if (hcache_open(&o, &h, &err) != 0 || hcache_generate(h, &q, &r, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(r.truncated_tokens, 512);
    hcache_result_free(&r);
    hcache_cache_flush(h);
    return h;
}

static struct hcache_found look(struct hcache *h, const struct hcache_context *c)
{
    struct hcache_found found;
    struct hcache_err err = {0};
    if (hcache_cache_lookup(h, c, &found, &err) != 0)
        fail_msg("%s", err.msg);
    return found;
}

static void a_lookup_is_about_what_is_seen(void **state)
{
    (void)state;
    struct hcache_context c;
    struct hcache *h = open_stored(&c);
    struct hcache_found found = look(h, &c);
    assert_int_equal(found.truncated_tokens, 512);
    assert_int_equal(found.wanted_tokens, 128);
    assert_int_equal(found.stored_tokens, 128);
    c.truncation.ratio = 0;
    found = look(h, &c);
    assert_int_equal(found.truncated_tokens, 0);
    assert_int_equal(found.wanted_tokens, 640);
    /* another truncation with the same first stair finds that stair */
    assert_int_equal(found.stored_tokens, 256);
    hcache_close(h);
}

/* The pinned chunks stay when everything else is evicted. They are the chunk of kept tokens and
 * those of the stair in view. */
static void a_pin_keeps_what_is_seen(void **state)
{
    (void)state;
    struct hcache_context c;
    struct hcache_err err = {0};
    uint64_t n_evicted = 0;
    int n_tokens = 0;
    struct hcache *h = open_stored(&c);
    int64_t until = (int64_t)time(NULL) + HOUR;
    assert_int_equal(hcache_cache_pin_context(h, &c, until, &n_tokens, &err), 0);
    assert_int_equal(n_tokens, 128);
    assert_int_equal(hcache_cache_evict_idle(h, -HOUR, &n_evicted, &err), 0);
    assert_int_equal(n_evicted, 8); /* chunks 1 to 7, and the unfinished chunk */
    assert_int_equal(look(h, &c).stored_tokens, 128);
    assert_int_equal(hcache_cache_pin_context(h, &c, 0, &n_tokens, &err), 0);
    assert_int_equal(hcache_cache_evict_idle(h, -HOUR, &n_evicted, &err), 0);
    assert_int_equal(n_evicted, 3);
    hcache_close(h);
}

static void an_erasure_takes_all_stairs(void **state)
{
    (void)state;
    struct hcache_context c;
    struct hcache_err err = {0};
    struct hcache_erased gone;
    uint64_t n_left = 0;
    struct hcache *h = open_stored(&c);
    assert_int_equal(hcache_cache_erase_context(h, &c, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, 11);
    assert_int_equal(hcache_cache_evict_idle(h, -HOUR, &n_left, &err), 0);
    assert_int_equal(n_left, 0);
    c.truncation.keep = 192; /* keeps so many tokens that there is no room for a step */
    assert_int_equal(hcache_cache_erase_context(h, &c, &gone, &err), HCACHE_E_USAGE);
    hcache_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lookup_is_about_what_is_seen),
        cmocka_unit_test(a_pin_keeps_what_is_seen),
        cmocka_unit_test(an_erasure_takes_all_stairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
