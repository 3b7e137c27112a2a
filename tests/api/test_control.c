/* test_control.c - control of saved state through the public interface: the effect of each call on
 * chunks and counters. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "hcache.h"
#include "api/hcache_impl.h"
#include "tests/base/tempdir.h"
#include "sim/fake_redis.h"

enum { N = 200, FULL = 192, CHUNKS = 4, HOUR_S = 3600 };

/* Opens a model with a store in memory. */
static struct hcache *open_with(uint64_t cap_bytes)
{
    struct hcache *h = NULL;
    struct hcache_err err = {0};
    struct hcache_opts o = {.model = "synth:tiny-mha",
                            .dtype = "f32",
                            .threads = 1,
                            .max_context = 512,
                            .store_in_memory = cap_bytes > 0,
                            .store_cap_bytes = cap_bytes,
                            .no_reuse = true};
    if (hcache_open(&o, &h, &err) != 0)
        fail_msg("%s", err.msg);
    return h;
}

/* Makes N ids. The first 64 are the same for all seeds, the others depend on the seed. */
static void make_ids(int32_t ids[N], int seed)
{
    for (int i = 0; i < N; i++)
        ids[i] = 3 + (i * 37 + (i < 64 ? 0 : seed * 101)) % 450;
}

/* Saves the state of N tokens under a salt. */
static void save(struct hcache *h, int seed, const char *salt)
{
    int32_t ids[N];
    struct hcache_err err = {0};
    struct hcache_result r;
    struct hcache_request q = {
        .prompt = ids, .n_prompt = N, .max_tokens = 0, .save = "both", .salt = salt};
    make_ids(ids, seed);
    if (hcache_generate(h, &q, &r, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(r.committed_tokens, N);
    hcache_result_free(&r);
}

static int stored(struct hcache *h, int seed, const char *salt)
{
    int32_t ids[N];
    struct hcache_found f;
    struct hcache_err err = {0};
    struct hcache_context c = {.ids = ids, .n = N, .salt = salt};
    make_ids(ids, seed);
    assert_int_equal(hcache_cache_lookup(h, &c, &f, &err), 0);
    assert_int_equal(f.wanted_tokens, FULL);
    return f.stored_tokens;
}

static int keys_of(struct hcache *h, int seed, int n, const char *salt, uint8_t (*keys)[32])
{
    int32_t ids[N];
    make_ids(ids, seed);
    return hcache_chunk_keys(h, 0, 0, 0, ids, n, salt, keys);
}

static struct hcache_cache_stats stats_of(struct hcache *h, const char *salt)
{
    struct hcache_cache_stats s;
    hcache_cache_stats(h, salt, &s);
    return s;
}

static uint64_t count_of(const struct hcache_counts *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->at[i].name, name) == 0)
            return c->at[i].count;
    fail_msg("nothing is counted as %s", name);
    return 0;
}

/* A context has a key for each full chunk, and two keys for its tail: with the last token and
 * without it. */
TEST(keys_name_chunks_and_tails)
{
    struct hcache *h = open_with(64 << 20);
    uint8_t a[6][32], b[6][32];
    /* 127 tokens without the last one: the third key is the tail's */
    assert_int_equal(keys_of(h, 1, 128, NULL, a), 3);
    assert_int_equal(keys_of(h, 1, 129, NULL, b), 3); /* a tail of one token */
    assert_memory_equal(a, b, 2 * 32);
    assert_memory_not_equal(a[2], b[2], 32);
    /* the tail has two tokens: one key is for both, one for the first token alone */
    assert_int_equal(keys_of(h, 1, 130, NULL, a), 4);
    assert_memory_equal(a[3], b[2], 32);
    assert_int_equal(keys_of(h, 1, 0, NULL, a), 0);
    assert_int_equal(keys_of(h, 1, 1, NULL, a), 1);
    (void)keys_of(h, 1, 192, NULL, a);
    (void)keys_of(h, 2, 192, NULL, b);
    assert_memory_equal(a[0], b[0], 32); /* both contexts begin with the same chunk */
    assert_memory_not_equal(a[1], b[1], 32);
    (void)keys_of(h, 1, 192, "salt", b);
    assert_memory_not_equal(a[0], b[0], 32);
    hcache_close(h);
}

/* Erasing a context erases its tail, too. Chunks that another context continues stay, and are
 * counted as shared. */
TEST(erasing_takes_what_nobody_else_continues)
{
    struct hcache *h = open_with(64 << 20);
    struct hcache_err err = {0};
    struct hcache_erased gone;
    uint8_t keys[CHUNKS + 2][32];
    save(h, 1, NULL);
    save(h, 2, NULL);
    assert_int_equal(stats_of(h, NULL).n_chunks, 2 * CHUNKS - 1);
    int n = keys_of(h, 1, N, NULL, keys);
    assert_int_equal(n, CHUNKS + 1);
    assert_int_equal(hcache_cache_erase(h, keys, n, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, CHUNKS - 1);
    assert_int_equal(gone.n_shared, 1);
    assert_true(gone.n_bytes > 0 && gone.n_busy == 0 && gone.n_owed == 0);
    assert_int_equal(stored(h, 1, NULL), 64);
    assert_int_equal(stored(h, 2, NULL), FULL);
    /* all chunks are erased already */
    assert_int_equal(hcache_cache_erase(h, keys, n, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, 0);
    hcache_close(h);
}

/* Forgetting a text erases every chunk whose context begins with the whole text. Chunks before the
 * text's end stay. */
TEST(forgetting_takes_what_continues_a_text)
{
    char dir[TEMPDIR_BYTES];
    const char *dirs[] = {dir};
    struct hcache *h = NULL;
    struct hcache_err err = {0};
    struct hcache_erased gone;
    uint8_t keys[CHUNKS + 2][32];
    tempdir_make_on_disk(dir, "control");
    struct hcache_opts o = {.model = "synth:tiny-mha",
                            .dtype = "f32",
                            .threads = 1,
                            .max_context = 512,
                            .store = dirs,
                            .n_store = 1,
                            .no_reuse = true};
    if (hcache_open(&o, &h, &err) != 0)
        fail_msg("%s", err.msg);
    save(h, 1, NULL);
    int n = keys_of(h, 1, 100, NULL, keys);
    /* a full chunk, and the tail with its last token and without it */
    assert_int_equal(n, 3);
    assert_int_equal(hcache_cache_forget(h, keys, 1, &gone, &err), 0);
    /* a text that ends with a full chunk has no tail, so nothing continues it under a tail's key */
    assert_int_equal(gone.n_chunks, 0);
    assert_int_equal(hcache_cache_forget(h, keys, n, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, CHUNKS - 1);
    assert_int_equal(stored(h, 1, NULL), 64);
    hcache_close(h);
    tempdir_remove(dir);
}

TEST(clearing_takes_a_salts_chunks_alone)
{
    struct hcache *h = open_with(64 << 20);
    struct hcache_err err = {0};
    struct hcache_erased gone;
    save(h, 1, "a");
    save(h, 1, "b");
    struct hcache_cache_stats a = stats_of(h, "a");
    assert_int_equal(a.salt_chunks, CHUNKS);
    assert_int_equal(a.salt_bytes * 2, a.used_bytes);
    assert_int_equal(stats_of(h, "c").salt_chunks, 0);
    assert_int_equal(hcache_cache_clear(h, "a", &gone, &err), 0);
    assert_int_equal(gone.n_chunks, CHUNKS);
    assert_int_equal(stored(h, 1, "a"), 0);
    assert_int_equal(stored(h, 1, "b"), FULL);
    assert_int_equal(stats_of(h, "a").salt_bytes, 0);
    assert_int_equal(hcache_cache_settle(h, &err), 0);
    hcache_close(h);
}

/* A pin counts until its end. Setting an end in the past removes it. */
TEST(a_pin_lasts_until_its_time)
{
    struct hcache *h = open_with(64 << 20);
    struct hcache_err err = {0};
    struct hcache_context c = {.n = N};
    int32_t ids[N];
    uint8_t keys[CHUNKS + 2][32];
    uint64_t n_chunks = 99;
    int n_tokens = 0;
    int64_t later = clock_wall_s() + HOUR_S;
    make_ids(ids, 1);
    c.ids = ids;
    save(h, 1, NULL);
    save(h, 2, NULL);
    (void)keys_of(h, 1, N, NULL, keys);
    assert_int_equal(hcache_cache_pin(h, keys, 3, later, &err), 0);
    assert_int_equal(stats_of(h, NULL).n_pins, 3);
    assert_int_equal(hcache_cache_evict_idle(h, -HOUR_S, &n_chunks, &err), 0);
    assert_int_equal(n_chunks, 2 * CHUNKS - 1 - 3);
    assert_int_equal(stored(h, 1, NULL), FULL);
    assert_int_equal(stored(h, 2, NULL), 64);
    assert_int_equal(hcache_cache_pin(h, keys, 3, clock_wall_s(), &err), 0);
    assert_int_equal(stats_of(h, NULL).n_pins, 0);
    assert_int_equal(hcache_cache_pin_context(h, &c, later, &n_tokens, &err), 0);
    assert_int_equal(n_tokens, FULL);
    /* the pin on the last chunk also keeps the chunks before it */
    assert_int_equal(stats_of(h, NULL).n_pins, 1);
    assert_int_equal(hcache_cache_pin_context(h, &c, 0, &n_tokens, &err), 0);
    assert_int_equal(hcache_cache_evict_idle(h, HOUR_S, &n_chunks, &err), 0);
    assert_int_equal(n_chunks, 0); /* no chunk is that old */
    assert_int_equal(hcache_cache_evict_idle(h, -HOUR_S, &n_chunks, &err), 0);
    assert_int_equal(n_chunks, 3);
    hcache_close(h);
}

/* A guarantee counts for the store and for its salt. State that is not stored cannot be
 * guaranteed. */
TEST(a_guarantee_is_counted)
{
    struct hcache *h = open_with(64 << 20);
    struct hcache_err err = {0};
    struct hcache_guarantee g = {0};
    int32_t ids[N];
    struct hcache_context c = {.ids = ids, .n = N, .salt = "a"};
    make_ids(ids, 1);
    int64_t later = clock_wall_s() + HOUR_S;
    assert_int_equal(hcache_cache_guarantee(h, &c, later, &g, &err), HCACHE_E_NOT_FOUND);
    save(h, 1, "a");
    assert_int_equal(hcache_cache_guarantee(h, &c, later, &g, &err), 0);
    assert_int_equal(g.n_tokens, FULL);
    struct hcache_cache_stats s = stats_of(h, "a");
    assert_int_equal(s.n_guarantees, 1);
    assert_int_equal(s.guaranteed_bytes, g.n_bytes);
    assert_int_equal(s.salt_guaranteed_bytes, g.n_bytes);
    assert_int_equal(g.salt_bytes, g.n_bytes);
    assert_int_equal(stats_of(h, "b").salt_guaranteed_bytes, 0);
    hcache_close(h);
}

/* A salt's quota evicts state of that salt only, and a counter gives the reason. */
TEST(a_quota_bounds_one_salt)
{
    struct hcache *h = open_with(64 << 20);
    save(h, 1, "a");
    uint64_t one = stats_of(h, "a").salt_bytes;
    save(h, 1, "b");
    hcache_cache_quota(h, "a", one + one / 2);
    assert_int_equal(stats_of(h, "a").salt_quota_bytes, one + one / 2);
    save(h, 2, "a");
    struct hcache_cache_stats s = stats_of(h, "a");
    assert_true(s.salt_bytes <= one + one / 2);
    assert_true(s.n_evicted > 0 && count_of(&s.evictions, "quota") == s.n_evicted);
    assert_int_equal(stored(h, 1, "b"), FULL);
    hcache_close(h);
}

TEST(the_counters_say_what_happened)
{
    struct hcache *h = open_with(64 << 20);
    struct hcache_cache_stats s = stats_of(h, NULL);
    assert_string_equal(s.tier, "dram");
    assert_true(s.cap_bytes == 64 << 20 && s.n_chunks == 0 && s.appended_bytes == 0);
    save(h, 1, NULL);
    s = stats_of(h, NULL);
    assert_int_equal(s.n_chunks, CHUNKS);
    assert_true(s.used_bytes > 0 && s.used_bytes <= s.file_bytes);
    assert_true(s.appended_bytes > 0 && s.appended_bytes <= s.used_bytes);
    assert_true(s.saving_fault == 0 && s.saving_why[0] == 0 && s.dram.cap_bytes == 0);
    uint64_t misses = s.n_misses;
    /* state is restored, or found and not read because computing is faster */
    save(h, 1, NULL);
    s = stats_of(h, NULL);
    assert_int_equal(s.n_chunks, CHUNKS);
    assert_true(s.n_hits > 0 && s.n_misses == misses);
    hcache_close(h);
}

/* The advice has a row for each time, and all chunks were used a moment ago. */
TEST(the_advice_counts_recent_contexts)
{
    static const struct {
        const char *within;
        int64_t seconds;
    } rows[HCACHE_ADVICES] = {{"hour", 3600},
                              {"day", 86400},
                              {"week", 604800},
                              {"30 days", 2592000},
                              {"all time", 0}};
    struct hcache *h = open_with(64 << 20);
    struct hcache_advice a[HCACHE_ADVICES];
    struct hcache_err err = {0};
    save(h, 1, NULL);
    save(h, 2, NULL);
    assert_int_equal(hcache_cache_advise(h, a, &err), 0);
    for (int i = 0; i < HCACHE_ADVICES; i++) {
        assert_string_equal(a[i].within, rows[i].within);
        assert_int_equal(a[i].seconds, rows[i].seconds);
        assert_int_equal(a[i].contexts, 2);
        assert_int_equal(a[i].bytes, stats_of(h, NULL).used_bytes);
    }
    hcache_close(h);
    h = open_with(0);
    assert_int_equal(hcache_cache_advise(h, a, &err), HCACHE_E_UNSUPPORTED);
    hcache_close(h);
}

/* Eviction by age takes chunks whose last use is at least that long ago. */
TEST(idle_time_is_counted_back_from_now)
{
    struct hcache *h = open_with(64 << 20);
    struct hcache_err err = {0};
    uint64_t n_chunks = 99;
    save(h, 1, NULL);
    static const int64_t too_long[] = {HOUR_S, 60};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hcache_cache_evict_idle(h, too_long[i], &n_chunks, &err), 0);
        assert_int_equal(n_chunks, 0);
    }
    n_chunks = 99;
    assert_int_equal(hcache_cache_evict_expired(h, &n_chunks, &err), 0);
    assert_int_equal(n_chunks, 0);
    assert_int_equal(stored(h, 1, NULL), FULL);
    hcache_close(h);
}

/* The statistics name the policy, and a fault that keeps state from being saved. */
TEST(the_statistics_say_why_nothing_is_saved)
{
    struct hcache *h = open_with(64 << 20);
    struct hcache_cache_stats s = stats_of(h, NULL);
    assert_string_equal(s.policy, placement_names[PLACEMENT_DEFAULT]);
    assert_string_equal(s.remote.url, "");
    err_set(&h->k.store_err, -28, "no room for anything");
    s = stats_of(h, NULL);
    assert_int_equal(s.saving_fault, -28);
    assert_string_equal(s.saving_why, "no room for anything");
    h->k.store_err = (struct err){0};
    hcache_close(h);
}

/* --- with a remote ---------------------------------------------------------------------------- */

static struct hcache *open_beside(const char *url)
{
    struct hcache *h = NULL;
    struct hcache_err err = {0};
    struct hcache_opts o = {.model = "synth:tiny-mha",
                            .dtype = "f32",
                            .threads = 1,
                            .max_context = 512,
                            .store_in_memory = true,
                            .store_cap_bytes = 64 << 20,
                            .remote = url,
                            .remote_timeout_s = 600,
                            .no_reuse = true};
    if (hcache_open(&o, &h, &err) != 0)
        fail_msg("%s", err.msg);
    return h;
}

static void until_written(struct hcache *h, uint64_t n)
{
    for (struct hcache_cache_stats s = stats_of(h, NULL); s.remote.n_written < n;
         s = stats_of(h, NULL))
        clock_sleep_ns(1000000);
}

static void until_published(struct hcache *h, struct fake_redis *f, uint64_t n)
{
    while (fake_redis_n_added(f) < n || stats_of(h, NULL).remote.n_unpublished > 0)
        clock_sleep_ns(1000000);
    assert_int_equal(fake_redis_n_added(f), n);
}

/* State that one server has saved is fetched by another one, unless it was erased: each way of
 * erasing is published. */
TEST(erasures_reach_the_other_servers)
{
    struct fake_redis *f = fake_redis_start();
    struct hcache *a = open_beside(fake_redis_url(f)), *b = open_beside(fake_redis_url(f));
    struct hcache_err err = {0};
    struct hcache_erased gone;
    struct hcache_result r;
    int32_t ids[N];
    uint8_t keys[CHUNKS + 2][32];
    struct hcache_cache_stats s = stats_of(a, NULL);
    assert_non_null(strstr(s.remote.url, "127.0.0.1"));
    for (int seed = 1; seed <= 3; seed++)
        save(a, seed, seed == 3 ? "salt" : NULL);
    until_written(a, FULL / 64 + FULL / 64 - 1 + FULL / 64);
    make_ids(ids, 1);
    const struct hcache_request q = {
        .prompt = ids, .n_prompt = N, .save = "both", .plan = "kv"};
    assert_int_equal(hcache_generate(b, &q, &r, &err), 0);
    assert_int_equal(r.cached_tokens, FULL);
    assert_int_equal(r.remote_tokens, FULL);
    hcache_result_free(&r);
    int n = keys_of(a, 1, N, NULL, keys);
    assert_int_equal(hcache_cache_erase(a, keys, n, &gone, &err), 0);
    assert_int_equal(gone.n_shared, 1);
    until_published(a, f, 1);
    n = keys_of(a, 2, 100, NULL, keys);
    assert_int_equal(hcache_cache_forget(a, keys, n, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, CHUNKS - 1);
    until_published(a, f, 3); /* the text, and the chunks that continued it */
    assert_int_equal(hcache_cache_clear(a, "salt", &gone, &err), 0);
    assert_int_equal(gone.n_chunks, CHUNKS);
    until_published(a, f, 4);
    /* the other server has erased the chunks, too, but not the first, which is shared */
    while (stored(b, 1, NULL) > 64)
        clock_sleep_ns(1000000);
    assert_int_equal(stored(b, 1, NULL), 64);
    hcache_close(a);
    hcache_close(b);
    fake_redis_stop(f);
}

/* Without a store there is nothing to control, and each call says so. */
TEST(without_a_store)
{
    struct hcache *h = open_with(0);
    struct hcache_err err = {0};
    struct hcache_erased gone;
    uint8_t keys[CHUNKS + 2][32];
    uint64_t n_chunks = 99;
    int n = keys_of(h, 1, N, NULL, keys);
    assert_int_equal(n, CHUNKS + 1);
    assert_int_equal(hcache_cache_pin(h, keys, n, clock_wall_s() + HOUR_S, &err),
                     HCACHE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "--store"));
    assert_int_equal(hcache_cache_erase(h, keys, n, &gone, &err), HCACHE_E_UNSUPPORTED);
    assert_int_equal(hcache_cache_forget(h, keys, n, &gone, &err), HCACHE_E_UNSUPPORTED);
    assert_int_equal(hcache_cache_clear(h, NULL, &gone, &err), HCACHE_E_UNSUPPORTED);
    assert_int_equal(hcache_cache_evict_idle(h, 0, &n_chunks, &err), HCACHE_E_UNSUPPORTED);
    assert_int_equal(n_chunks, 0);
    assert_int_equal(hcache_cache_evict_expired(h, &n_chunks, &err), HCACHE_E_UNSUPPORTED);
    assert_int_equal(hcache_cache_settle(h, &err), 0);
    hcache_cache_flush(h);
    hcache_cache_quota(h, NULL, 1);
    assert_null(stats_of(h, NULL).tier);
    hcache_close(h);
}
