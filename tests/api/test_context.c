/* test_context.c - look-ups, pins and erasures of a truncated context. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit.h"
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

TEST(a_lookup_is_about_what_is_seen)
{
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
TEST(a_pin_keeps_what_is_seen)
{
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

TEST(an_erasure_takes_all_stairs)
{
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

/* Opens a handle and saves a plain context of n tokens; store: false for a handle without one. */
static struct hcache *open_plain(bool store, int n, const char *save, bool tokenizer)
{
    struct hcache *h;
    struct hcache_err err = {0};
    struct hcache_result r;
    struct hcache_opts o = {.model = tokenizer ? "models/demo" : "synth:tiny-mha",
                            .threads = 1,
                            .max_context = 512,
                            .store_in_memory = store,
                            .no_reuse = true};
    for (int i = 0; i < N; i++)
        ids[i] = 10 + i * 37 % 450;
    const struct hcache_request q = {.prompt = ids, .n_prompt = n, .save = save};
    if (hcache_open(&o, &h, &err) != 0 || hcache_generate(h, &q, &r, &err) != 0)
        fail_msg("%s", err.msg);
    hcache_result_free(&r);
    hcache_cache_flush(h);
    return h;
}

/* The last token is never restored, so it is not wanted. */
TEST(a_lookup_counts_full_chunks_before_the_last_token)
{
    static const struct {
        int n, wanted, stored;
    } rows[] = {{0, 0, 0},       {1, 0, 0},       {64, 0, 0},      {65, 64, 64},
                {128, 64, 64},   {129, 128, 128}, {193, 192, 192}, {256, 192, 192},
                {257, 256, 192}, {449, 448, 192}};
    struct hcache *h = open_plain(true, 200, "H-KB", false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hcache_context c = {.ids = ids, .n = rows[i].n};
        struct hcache_found f = look(h, &c);
        assert_int_equal(f.truncated_tokens, 0);
        assert_int_equal(f.wanted_tokens, rows[i].wanted);
        assert_int_equal(f.stored_tokens, rows[i].stored);
        assert_string_equal(f.tier, "dram");
        assert_string_equal(f.layers, rows[i].stored > 0 ? "H-KB" : "");
    }
    hcache_close(h);
    h = open_plain(false, 200, NULL, false);
    const struct hcache_context c = {.ids = ids, .n = 200};
    struct hcache_found f;
    struct hcache_erased gone;
    struct hcache_guarantee g;
    struct hcache_err err = {0};
    int n_tokens = 7;
    assert_int_equal(hcache_cache_lookup(h, &c, &f, &err), HCACHE_E_UNSUPPORTED);
    assert_string_equal(err.msg, "no state is stored (--store)");
    assert_null(f.tier);
    assert_int_equal(hcache_cache_pin_context(h, &c, 0, &n_tokens, &err),
                     HCACHE_E_UNSUPPORTED);
    assert_int_equal(n_tokens, 0);
    assert_int_equal(hcache_cache_erase_context(h, &c, &gone, &err), HCACHE_E_UNSUPPORTED);
    assert_int_equal(hcache_cache_guarantee(h, &c, 0, &g, &err), HCACHE_E_UNSUPPORTED);
    assert_int_equal(g.n_tokens, 0);
    hcache_close(h);
}

/* A look-up names the first token that differs from what is stored, and its text. */
TEST(a_lookup_says_where_a_prompt_differs)
{
    static const struct {
        int at;
        const char
            *where; /* NULL: the first token differs, so there is nothing to compare with */
    } rows[] = {{0, NULL}, {1, "at token 1"}, {70, "at token 70"}, {128, "at token 128"}};
    struct hcache *h = open_plain(true, 200, "kv", true);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int32_t other[200];
        memcpy(other, ids, sizeof other);
        other[rows[i].at]++;
        const struct hcache_context c = {.ids = other, .n = 200};
        struct hcache_found f = look(h, &c);
        assert_int_equal(f.stored_tokens, rows[i].at / 64 * 64);
        if (rows[i].where == NULL) {
            assert_null(strstr(f.why, "differs"));
            continue;
        }
        if (strstr(f.why, rows[i].where) == NULL || strchr(f.why, '"') == NULL)
            fail_msg("%s: %s", rows[i].where, f.why);
    }
    const struct hcache_context all = {.ids = ids, .n = 200};
    assert_null(strstr(look(h, &all).why, "differs"));
    hcache_close(h);
}

TEST(a_guarantee_has_its_sums)
{
    struct hcache *h;
    struct hcache_err err = {0};
    struct hcache_guarantee g[3];
    struct hcache_result r;
    struct hcache_opts o = {.model = "synth:tiny-mha",
                            .threads = 1,
                            .max_context = 512,
                            .store_in_memory = true,
                            .store_cap_bytes = 64 << 20,
                            .guarantee_bytes = 32 << 20,
                            .no_reuse = true};
    int64_t until = (int64_t)time(NULL) + HOUR;
    assert_int_equal(hcache_open(&o, &h, &err), 0);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < N; k++)
            ids[k] = 3 + (k * 37 + i * 100) % 450;
        const struct hcache_request q = {
            .prompt = ids, .n_prompt = 200 + 64 * i, .save = "kv", .salt = i ? "b" : "a"};
        assert_int_equal(hcache_generate(h, &q, &r, &err), 0);
        hcache_result_free(&r);
        hcache_cache_flush(h);
        const struct hcache_context c = {
            .ids = ids, .n = 200 + 64 * i, .salt = i ? "b" : "a"};
        assert_int_equal(hcache_cache_guarantee(h, &c, until, &g[i], &err), 0);
        assert_int_equal(g[i].n_tokens, 192 + 64 * i);
        assert_true(g[i].n_bytes > 0);
        assert_int_equal(g[i].salt_bytes, g[i].n_bytes);
        assert_int_equal(g[i].salt_limit_bytes, 32 << 20);
    }
    assert_int_equal(g[0].all_bytes, g[0].n_bytes);
    assert_int_equal(g[1].all_bytes, g[0].n_bytes + g[1].n_bytes);
    assert_true(g[1].limit_bytes >= g[1].all_bytes && g[1].limit_bytes <= 64 << 20);
    const struct hcache_context more = {.ids = ids, .n = 400, .salt = "b"};
    assert_int_equal(hcache_cache_guarantee(h, &more, until, &g[2], &err),
                     HCACHE_E_NOT_FOUND);
    assert_int_equal(g[2].n_tokens, 384); /* what would have been guaranteed */
    hcache_close(h);
}
