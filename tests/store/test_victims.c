/* test_victims.c - which chunks a store under a cap evicts: what policy/placement.h says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/storetest.h"

/* One record of one block: a chunk takes two blocks of 4 KiB. */
static const struct st_shape shape = {1, {4096, 0}};
enum { CHUNK_BYTES = 2 * STORE_ALIGN };

static struct store *open_store(enum placement_kind policy, int n_chunks)
{
    struct store_opts o = {.cap_bytes = (uint64_t)n_chunks * CHUNK_BYTES,
                           .segment_bytes = 1 << 20,
                           .policy = policy};
    struct store *s;
    struct err err = {0};
    if (store_open(&o, &s, &err) != 0)
        fail_msg("%s", err.msg);
    return s;
}

static struct st_ctx context(uint64_t own)
{
    return (struct st_ctx){.base = 1, .own = own, .model = 1};
}

static void save(struct store *s, uint64_t own, int n)
{
    struct st_ctx c = context(own);
    struct err err = {0};
    if (st_save(s, &shape, &c, n, ST_H, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Whether the store has a chunk; does not count as a use. */
static bool has(struct store *s, uint64_t own, int chunk)
{
    struct st_ctx c = context(own);
    struct sha256 keys[ST_MAX_CHUNKS];
    struct store_hit hit;
    st_keys(&c, chunk + 1, keys);
    bool found = store_pin(s, &keys[chunk], &hit);
    if (found)
        store_release(s, &hit, 1);
    return found;
}

/* Stores contexts 1 to 3 of a chunk each, a request waits for `wanted` (0: none), and context 4 comes.
 * Returns the one that went. */
static uint64_t gone_for_the_fourth(enum placement_kind policy, uint64_t wanted)
{
    struct store *s = open_store(policy, 3);
    struct sha256 key;
    uint64_t gone = 0;
    for (uint64_t own = 1; own <= 3; own++)
        save(s, own, 1);
    if (wanted != 0) {
        struct st_ctx c = context(wanted);
        st_keys(&c, 1, &key);
        store_expect_use(s, &key, 1, 7);
    }
    save(s, 4, 1);
    for (uint64_t own = 1; own <= 4; own++)
        if (!has(s, own, 0)) {
            assert_int_equal(gone, 0);
            gone = own;
        }
    if (wanted != 0) { /* served: the oldest goes, as without it */
        store_expect_use_no_more(s, &key, 1, 7);
        save(s, 5, 1);
        assert_false(has(s, wanted, 0));
    }
    store_close(s);
    return gone;
}

static void a_waiting_request_keeps_its_chunks(void **state)
{
    (void)state;
    assert_int_equal(gone_for_the_fourth(PLACEMENT_LRU, 0), 1);
    assert_int_equal(gone_for_the_fourth(PLACEMENT_LRU, 1), 1); /* does not look ahead */
    assert_int_equal(gone_for_the_fourth(PLACEMENT_ATTENTIONSTORE, 0), 1);
    assert_int_equal(gone_for_the_fourth(PLACEMENT_ATTENTIONSTORE, 1), 2);
    assert_int_equal(gone_for_the_fourth(PLACEMENT_OURS, 1), 2);
}

/* The window holds as many chunks as the store. */
static void the_window_is_bounded_by_the_cap(void **state)
{
    (void)state;
    struct store *s = open_store(PLACEMENT_ATTENTIONSTORE, 4);
    struct st_ctx c = context(1);
    struct sha256 keys[8];
    st_keys(&c, 8, keys);
    save(s, 1, 2);
    assert_int_equal(store_expect_use(s, keys, 3, 1), 3);
    assert_int_equal(store_expect_use(s, keys, 8, 2), 1);
    store_expect_use_no_more(s, keys, 3, 1);
    assert_int_equal(store_expect_use(s, keys + 1, 7, 2), 3);
    store_close(s);
}

/* A dropped chunk goes before all that were used earlier, unless it was used since. */
static void a_dropped_chunk_goes_first(void **state)
{
    (void)state;
    for (int used = 0; used < 2; used++) {
        struct store *s = open_store(PLACEMENT_LRU, 3);
        struct st_ctx c = context(3);
        struct sha256 key;
        for (uint64_t own = 1; own <= 3; own++)
            save(s, own, 1);
        st_keys(&c, 1, &key);
        store_drop(s, &key, 1);
        if (used) {
            struct store_hit hit;
            int n = 0;
            assert_int_equal(store_lookup(s, &key, 1, &hit, &n, NULL, 0, NULL), 0);
            assert_int_equal(n, 1);
            store_release(s, &hit, 1);
        }
        save(s, 4, 1);
        assert_int_equal(has(s, 3, 0), used);
        assert_int_equal(has(s, 1, 0), !used);
        store_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiting_request_keeps_its_chunks),
        cmocka_unit_test(the_window_is_bounded_by_the_cap),
        cmocka_unit_test(a_dropped_chunk_goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
