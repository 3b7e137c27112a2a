/* The block pool and block tables: counts, sharing, exhaustion, and a random walk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/rng.h"
#include "kvcache/kvcache.h"

static const struct kv_pool_opts opts = {
    .n_layers = 3, .n_kv = 2, .d_head = 8, .dtype = DTYPE_BF16, .n_blocks = 16};

static struct device *device;
static struct kv_pool *pool;

static int setup(void **state)
{
    (void)state;
    return device_open("ref", NULL, &device, NULL) ||
           kv_pool_create(device, &opts, &pool, NULL);
}

static int teardown(void **state)
{
    (void)state;
    kv_pool_destroy(pool);
    device_close(device);
    return 0;
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(kv_pool_bytes(&opts), 16 * 3 * 2 * 64 * 2 * 8 * 2);
    assert_int_equal(kv_pool_free_blocks(pool), 16);
    struct kv_layer a = kv_pool_layer(pool, 0), b = kv_pool_layer(pool, 2);
    assert_int_equal(b.blocks - a.blocks, 2 * 2 * 64 * 2 * 8 * 2);
    assert_int_equal(a.block_stride, 3 * 2 * 64 * 2 * 8 * 2);
    /* the last byte of the last block of the last layer is ours */
    b.blocks[15 * b.block_stride + kv_block_bytes(2, 8, DTYPE_BF16) - 1] = 1;
}

static void test_reserve_and_cut(void **state)
{
    (void)state;
    struct kv_table t = {0};
    assert_int_equal(kv_table_reserve(pool, &t, 0, NULL), 0);
    assert_int_equal(t.n_blocks, 0);
    assert_int_equal(kv_table_reserve(pool, &t, 65, NULL), 0);
    assert_int_equal(t.n_blocks, 2);
    assert_int_equal(kv_table_reserve(pool, &t, 64, NULL), 0); /* never shrinks */
    assert_int_equal(t.n_blocks, 2);
    struct err err;
    assert_int_equal(kv_table_reserve(pool, &t, 16 * 64 + 1, &err), ERR_LIMIT);
    assert_int_equal(t.n_blocks, 2);
    assert_int_equal(kv_pool_free_blocks(pool), 14);
    assert_int_equal(kv_table_reserve(pool, &t, 16 * 64, NULL), 0);
    assert_int_equal(kv_pool_free_blocks(pool), 0);
    kv_table_cut(pool, &t, 5);
    assert_int_equal(kv_pool_free_blocks(pool), 11);
    kv_table_free(pool, &t);
    assert_int_equal(kv_pool_free_blocks(pool), 16);
}

static void test_share(void **state)
{
    (void)state;
    struct kv_table a = {0}, b = {0};
    assert_int_equal(kv_table_reserve(pool, &a, 4 * 64, NULL), 0);
    kv_table_share(pool, &b, &a, 3);
    assert_int_equal(kv_pool_free_blocks(pool), 12);
    assert_memory_equal(a.blocks, b.blocks, 3 * sizeof a.blocks[0]);
    assert_int_equal(kv_table_reserve(pool, &b, 4 * 64, NULL), 0);
    assert_int_not_equal(a.blocks[3], b.blocks[3]);
    kv_table_free(pool, &a);
    assert_int_equal(kv_pool_free_blocks(pool), 12); /* b holds three shared and its own */
    kv_table_free(pool, &b);
    assert_int_equal(kv_pool_free_blocks(pool), 16);
}

/* Random reserve, share, cut: the number of distinct blocks in tables is what is not free. */
static void test_random_walk(void **state)
{
    (void)state;
    enum { N = 5 };
    struct kv_table t[N] = {{0}};
    struct rng rng = {7};
    for (int step = 0; step < 5000; step++) {
        struct kv_table *x = &t[rng_below(&rng, N)], *y = &t[rng_below(&rng, N)];
        if (rng_below(&rng, 3) == 0)
            kv_table_cut(pool, x, (int)rng_below(&rng, 4));
        else if (x->n_blocks == 0 && x != y)
            kv_table_share(pool, x, y, (int)rng_below(&rng, (uint64_t)y->n_blocks + 1));
        else
            (void)kv_table_reserve(pool, x, (int64_t)rng_below(&rng, 6 * 64), NULL);
        bool used[16] = {false};
        int n_used = 0;
        for (int i = 0; i < N; i++)
            for (int b = 0; b < t[i].n_blocks; b++)
                used[t[i].blocks[b]] = true;
        for (int b = 0; b < 16; b++)
            n_used += used[b];
        assert_int_equal(kv_pool_free_blocks(pool), 16 - n_used);
    }
    for (int i = 0; i < N; i++)
        kv_table_free(pool, &t[i]);
    assert_int_equal(kv_pool_free_blocks(pool), 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reserve_and_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(test_share, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_walk, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
