/* test_places.c - blocks with a type and a place: their addresses, and a pool of their numbers. */
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"
#include "restore/kvcache.h"
#include "engine/places.h"

enum {
    N_LAYERS = 3,
    D = 24,
    N_KV = 2,
    D_HEAD = 8,
    N_TAILS = 2,
    N_SCRATCH = 4,
    N_STAGING = 3
};

static const struct places_opts opts = {.n_layers = N_LAYERS,
                                        .n_kv = N_KV,
                                        .d_head = D_HEAD,
                                        .n_embd = D,
                                        .dtype = DTYPE_BF16,
                                        .n = {2, 3, 4, 5},
                                        .n_tails = N_TAILS,
                                        .n_scratch = N_SCRATCH,
                                        .n_staging = N_STAGING};

static struct device *device;
static struct places places;

static int setup(void **state)
{
    return device_open("ref", NULL, NULL, &device, NULL) ||
           places_init(&places, device, &opts, NULL);
}

static int teardown(void **state)
{
    places_deinit(&places);
    device_close(device);
    return 0;
}

struct span {
    uint8_t *begin, *end;
};

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Blocks of all layers, tails, scratch and staging do not overlap, and together have the counted
 * size. */
TEST_WITH(blocks_are_disjoint_and_counted, setup, teardown)
{
    enum { MOST = 200 };
    struct span s[MOST];
    int n = 0;
    size_t bytes = 0;
    const struct places *p = &places;
    for (int l = 0; l < N_LAYERS; l++) {
        for (int32_t b = 0; b < places_n_blocks(&opts); b++) {
            enum places_class c = places_class_of(p, b);
            uint8_t *at = c == PLACES_KV_DEVICE ? places_view(p, l, places_device(p, b))
                          : c == PLACES_KV_HOST ? places_kv_host(p, l, b)
                                                : places_act(p, l, b);
            bool is_kv = c == PLACES_KV_DEVICE || c == PLACES_KV_HOST;
            s[n++] = (struct span){at, at + (is_kv ? p->kv_bytes : p->act_bytes)};
        }
        for (int t = 0; t < N_TAILS; t++) {
            uint8_t *at = places_view(p, l, places_tail(p, t));
            s[n++] = (struct span){at, at + p->kv_bytes};
        }
    }
    for (int buffer = 0; buffer < 2; buffer++) {
        for (int i = 0; i < N_SCRATCH; i++) {
            uint8_t *at = places_view(p, 0, places_scratch(p, 0, buffer, i));
            /* a block has the same place in every layer */
            for (int l = 1; l < N_LAYERS; l++)
                assert_ptr_equal(places_view(p, l, places_scratch(p, l, buffer, i)), at);
            s[n++] = (struct span){at, at + p->kv_bytes};
        }
        for (int i = 0; i < N_STAGING; i++) {
            uint8_t *at = places_staging(p, buffer, i);
            s[n++] = (struct span){at, at + p->act_bytes};
        }
    }
    assert_true(n <= MOST);
    qsort(s, (size_t)n, sizeof s[0], by_begin);
    for (int i = 0; i < n; i++) {
        bytes += (size_t)(s[i].end - s[i].begin);
        assert_true(i == 0 || s[i - 1].end <= s[i].begin);
        /* the memory may be written */
        memset(s[i].begin, 1, (size_t)(s[i].end - s[i].begin));
    }
    assert_int_equal(bytes, places_device_bytes(&opts) + places_host_bytes(&opts));
    assert_int_equal(places.kv_bytes, kv_block_bytes(N_KV, D_HEAD, DTYPE_BF16));
    assert_int_equal(places.act_bytes, 64 * D * 2);
}

TEST_WITH(numbers_say_the_class, setup, teardown)
{
    static const enum places_class want[] = {0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3};
    assert_int_equal(places_n_blocks(&opts), 14);
    for (int32_t b = 0; b < 14; b++)
        assert_int_equal(places_class_of(&places, b), want[b]);
}

/* --- the pool of numbers ---------------------------------------------------------------------- */

/* Blocks with an even index in a table prefer class 3, those with an odd index class 1. If that
 * class has no free block, the other classes follow in order. */
static const int *even_odd(void *arg, const struct kv_table *t)
{
    static const int even[] = {3, 0, 1, 2, 4}, odd[] = {1, 0, 2, 3, 4};
    ++*(int *)arg;
    return t->n_blocks % 2 == 0 ? even : odd;
}

TEST_WITH(a_pool_of_numbers_takes_classes_in_order, setup, teardown)
{
    int n_asked = 0;
    struct kv_pool_numbers numbers = {
        .n = {2, 3, 0, 2}, .order = even_odd, .arg = &n_asked, .n_tails = 2};
    struct kv_pool_opts o = {.n_layers = 1,
                             .n_kv = 1,
                             .d_head = 8,
                             .n_blocks = 7,
                             .keep = true,
                             .numbers = &numbers};
    struct kv_pool *pool;
    struct kv_table a = {0}, b = {0}, c = {0};
    static const int32_t want[] = {5, 2, 6, 3, 0, 4};
    int32_t tokens[64 * 6];
    struct sha256 root = {0};
    int n_copied = -1;
    assert_int_equal(kv_pool_create(device, &o, &pool, NULL), 0);
    assert_null(kv_pool_layers(pool));
    assert_int_equal(kv_table_reserve(pool, &a, 6 * 64, NULL), 0);
    assert_memory_equal(a.blocks, want, sizeof want);
    assert_int_equal(n_asked, 6);
    assert_int_equal(kv_table_reserve(pool, &b, 64, NULL), 0);
    assert_int_equal(b.blocks[0], 1);
    assert_true(a.tail != 0 && b.tail != 0 && a.tail != b.tail);
    assert_int_equal(kv_table_reserve(pool, &c, 64, NULL), ERR_LIMIT);
    assert_int_equal(c.tail, 0);
    /* A full block becomes known and is shared. A partial block does not become known, so no tail
     * is copied. */
    for (int i = 0; i < 64 * 6; i++)
        tokens[i] = i;
    kv_table_keep(pool, &a, &root, tokens, 5 * 64 + 10);
    assert_int_equal(a.n_known, 5);
    kv_table_cut(pool, &b, 0);
    assert_int_equal(b.tail, 0);
    kv_table_cut(pool, &a, 0);
    assert_int_equal(kv_pool_kept_blocks(pool), 5);
    assert_int_equal(kv_table_take(pool, &b, &root, tokens, 5 * 64 + 10, false), 5);
    assert_int_equal(
        kv_table_copy_tail(pool, &b, NULL, &root, tokens, 5 * 64 + 10, &n_copied), 0);
    assert_int_equal(n_copied, 0);
    assert_int_equal(b.n_blocks, 5);
    kv_table_cut(pool, &b, 0);
    /* A freed number returns to its class. When nothing is free, known blocks are evicted. */
    assert_int_equal(kv_table_reserve(pool, &c, 7 * 64, NULL), 0);
    int seen[7] = {0};
    for (int i = 0; i < 7; i++)
        seen[c.blocks[i]]++;
    for (int i = 0; i < 7; i++)
        assert_int_equal(seen[i], 1);
    kv_table_free(pool, &a);
    kv_table_free(pool, &b);
    kv_table_free(pool, &c);
    kv_pool_destroy(pool);
}

/* A table has a place for an unfinished block from its first block on until it has none. */
TEST_WITH(a_table_with_blocks_has_one_tail, setup, teardown)
{
    struct kv_pool_numbers numbers = {.n = {8}, .n_tails = 2};
    struct kv_pool_opts o = {.n_layers = 1,
                             .n_kv = 1,
                             .d_head = 8,
                             .n_blocks = 8,
                             .keep = true,
                             .numbers = &numbers};
    struct kv_pool *pool;
    struct kv_table a = {0}, b = {0}, empty = {0};
    struct sha256 root = {0};
    int32_t tokens[64] = {0};
    assert_int_equal(kv_pool_create(device, &o, &pool, NULL), 0);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(kv_table_reserve(pool, &a, 0, NULL), 0);
        assert_int_equal(a.tail, 0);
        kv_table_cut(pool, &empty, 0);
        assert_int_equal(kv_table_reserve(pool, &a, 128, NULL), 0);
        int tail = a.tail;
        assert_int_equal(kv_table_reserve(pool, &a, 192, NULL), 0);
        kv_table_cut(pool, &a, 1);
        assert_int_equal(a.tail, tail);
        assert_int_equal(kv_table_reserve(pool, &b, 1, NULL), 0);
        assert_true(tail + b.tail == 3 && (tail == 1 || tail == 2));
        kv_table_keep(pool, &a, &root, tokens, 64);
        kv_table_cut(pool, round == 1 ? &b : &a, 0);
        kv_table_cut(pool, round == 1 ? &a : &b, 0);
        assert_int_equal(a.tail + b.tail, 0);
    }
    /* A table that has taken a known block gets its tail with the next reservation. */
    assert_int_equal(kv_table_take(pool, &a, &root, tokens, 64, false), 1);
    assert_int_equal(a.tail, 0);
    assert_int_equal(kv_table_reserve(pool, &a, 64, NULL), 0);
    assert_int_not_equal(a.tail, 0);
    kv_table_free(pool, &a);
    kv_table_free(pool, &b);
    kv_table_free(pool, &empty);
    kv_pool_destroy(pool);
}

/* Without ACT blocks and blocks on the host there is no memory for them. */
TEST_WITH(memory_that_no_block_needs_is_not_allocated, setup, teardown)
{
    struct places_opts o = opts;
    struct places p;
    memset(o.n, 0, sizeof o.n);
    o.n[PLACES_KV_DEVICE] = 2;
    o.n_staging = 0;
    size_t kv_bytes = kv_block_bytes(N_KV, D_HEAD, DTYPE_BF16);
    assert_int_equal(places_device_bytes(&o),
                     (N_LAYERS * (2 + N_TAILS) + 2 * N_SCRATCH) * kv_bytes);
    assert_int_equal(places_host_bytes(&o), 0);
    assert_int_equal(places_init(&p, device, &o, NULL), 0);
    assert_non_null(p.device_kv.ptr);
    assert_null(p.device_act.ptr);
    assert_null(p.host.ptr);
    places_deinit(&p);
    assert_null(p.layers);
    places_deinit(&p);
}
