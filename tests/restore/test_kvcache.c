/* The block pool and block tables: counts, reuse, exhaustion, and random walks. */
#include "tests/unit.h"

#include <string.h>

#include "base/rng.h"
#include "restore/kvcache.h"
#include "tensor/group.h"
#include "tests/tensor/peer_threads.h"

static const struct kv_pool_opts opts = {
    .n_layers = 3, .n_kv = 2, .d_head = 8, .dtype = DTYPE_BF16, .n_blocks = 16};

static struct device *device;
static struct kv_pool *pool;

static int setup(void **state)
{
    return device_open("ref", NULL, NULL, &device, NULL) ||
           kv_pool_create(device, &opts, &pool, NULL);
}

static int teardown(void **state)
{
    kv_pool_destroy(pool);
    device_close(device);
    return 0;
}

TEST_WITH(test_sizes, setup, teardown)
{
    assert_int_equal(kv_pool_free_blocks(pool), 16);
    struct kv_layer a = kv_pool_layer(pool, 0), b = kv_pool_layer(pool, 2);
    assert_int_equal(b.blocks - a.blocks, 2 * 2 * 64 * 2 * 8 * 2);
    assert_int_equal(a.block_stride, 3 * 2 * 64 * 2 * 8 * 2);
    /* The last byte of the last block of the last layer belongs to the pool. */
    b.blocks[15 * b.block_stride + kv_block_bytes(2, 8, DTYPE_BF16) - 1] = 1;
}

/* A pool beyond the address space is refused. */
TEST_WITH(test_no_memory, setup, teardown)
{
    struct kv_pool_opts o = opts;
    struct kv_pool *p = NULL;
    struct err err = {0};
    o.n_kv = 64;
    o.d_head = 1024;
    o.n_blocks = INT32_MAX;
    assert_int_not_equal(kv_pool_create(device, &o, &p, &err), 0);
    assert_non_null(strstr(err.msg, "KV pool of 2147483647 blocks: "));
    assert_null(p);
}

TEST_WITH(test_reserve_and_cut, setup, teardown)
{
    struct kv_table t = {0};
    assert_int_equal(kv_table_reserve(pool, &t, 0, NULL), 0);
    assert_int_equal(t.n_blocks, 0);
    assert_int_equal(kv_table_reserve(pool, &t, 65, NULL), 0);
    assert_int_equal(t.n_blocks, 2);
    assert_int_equal(kv_table_reserve(pool, &t, 64, NULL), 0); /* never shrinks */
    assert_int_equal(t.n_blocks, 2);
    struct err err;
    assert_int_equal(kv_table_reserve(pool, &t, 16 * 64 + 1, &err), ERR_LIMIT);
    assert_string_equal(err.msg,
                        "KV cache: 1025 tokens need 15 more blocks, 14 of 16 are free");
    assert_int_equal(t.n_blocks, 2);
    assert_int_equal(kv_pool_free_blocks(pool), 14);
    assert_int_equal(kv_table_reserve(pool, &t, 16 * 64, NULL), 0);
    assert_int_equal(kv_pool_free_blocks(pool), 0);
    kv_table_cut(pool, &t, 5);
    assert_int_equal(kv_pool_free_blocks(pool), 11);
    kv_table_free(pool, &t);
    assert_int_equal(kv_pool_free_blocks(pool), 16);
}

/* Cuts a table whose counts of known, saved and named blocks are random.  A count above the number
 * of blocks that are left becomes that number; the others do not change. */
static void cut_with_counts(struct kv_table *t, int n_blocks, struct rng *rng)
{
    int known = t->n_known = (int)rng_below(rng, (uint64_t)t->n_blocks + 1);
    int saved = t->n_saved = (int)rng_below(rng, (uint64_t)t->n_blocks + 1);
    int named = t->n_named = (int)rng_below(rng, (uint64_t)t->n_blocks + 1);
    int left = t->n_blocks < n_blocks ? t->n_blocks : n_blocks;
    kv_table_cut(pool, t, n_blocks);
    assert_int_equal(t->n_blocks, left);
    assert_int_equal(t->n_known, known < left ? known : left);
    assert_int_equal(t->n_saved, saved < left ? saved : left);
    assert_int_equal(t->n_named, named < left ? named : left);
    t->n_known = t->n_saved = t->n_named = 0;
}

/* Reserves and cuts tables at random. The blocks in tables are all distinct, and are exactly the
 * blocks that are not free. */
/* A table that has the room asked for keeps its memory. */
TEST_WITH(test_room_is_kept, setup, teardown)
{
    struct kv_table t = {0};
    assert_true(kv_table_try_prepare(&t, 3));
    assert_int_equal(t.cap_blocks, 3);
    assert_true(kv_table_try_prepare(&t, 3));
    assert_int_equal(t.cap_blocks, 3);
    assert_int_equal(kv_table_reserve(pool, &t, 3 * 64, NULL), 0);
    assert_int_equal(t.cap_blocks, 3);
    assert_int_equal(kv_table_reserve(pool, &t, 4 * 64, NULL), 0);
    assert_int_equal(t.cap_blocks, 6);
    kv_table_free(pool, &t);
}

TEST_WITH(test_random_walk, setup, teardown)
{
    enum { N = 5 };
    struct kv_table t[N] = {{0}};
    struct rng rng = {7};
    for (int step = 0; step < 5000; step++) {
        struct kv_table *x = &t[rng_below(&rng, N)];
        if (rng_below(&rng, 3) == 0)
            cut_with_counts(x, (int)rng_below(&rng, 4), &rng);
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
        assert_true(kv_pool_audit(pool));
    }
    for (int i = 0; i < N; i++)
        kv_table_free(pool, &t[i]);
    assert_int_equal(kv_pool_free_blocks(pool), 16);
}

/* --- reuse ------------------------------------------------------------------------------------ */

enum { N_SEQS = 6, MAX_SEQ = 5 * 64 };

/* A sequence, as the engine uses the pool. Its "state" at a position is a value that depends on all
 * tokens up to it. */
struct fake_seq {
    struct kv_table t;
    int root, n_tokens, n_done;
    int32_t tokens[MAX_SEQ];
};

static struct sha256 roots[2];
static struct stream *stream;
static struct kv_pool *keeping;

static uint64_t *cell(const struct fake_seq *s, int pos)
{
    struct kv_layer l = kv_pool_layer(keeping, 1);
    return (uint64_t *)(void *)(l.blocks + (size_t)s->t.blocks[pos / 64] * l.block_stride) +
           pos % 64;
}

static uint64_t value(const struct fake_seq *s, int pos)
{
    return checksum64(s->tokens, (size_t)(pos + 1) * sizeof s->tokens[0]) +
           (uint64_t)s->root;
}

/* The state of s in the recurrent layer: how many tokens it has seen, and which. NULL: the pool has
 * no such layer. */
static int64_t *state_of(const struct fake_seq *s)
{
    struct kv_layer l = kv_pool_layer(keeping, 2);
    return l.dtype != DTYPE_F32 || s->t.tail == 0
               ? NULL
               : (int64_t *)(void *)(l.blocks +
                                     (size_t)kv_table_state(&s->t) * l.block_stride);
}

static void check_content(const struct fake_seq *s)
{
    const int64_t *state = state_of(s);
    if (state != NULL && s->n_done > 0) {
        assert_int_equal(state[0] + state[1], s->n_done);
        assert_true(state[15] == (int64_t)value(s, s->n_done - 1));
    }
    for (int pos = 0; pos < s->n_done; pos++) {
        if (*cell(s, pos) != value(s, pos))
            fail_msg("position %d of %d has another state", pos, s->n_done);
    }
}

/* Begins a sequence of random tokens. There are few distinct tokens and roots, so prefixes are
 * often shared. Takes known blocks and copies a known tail. Returns the number of taken blocks. */
static int begin(struct fake_seq *s, struct rng *rng, int *n_copies)
{
    int n_unused, n_copied = 0;
    const struct sha256 *root = &roots[s->root = (int)rng_below(rng, 2)];
    s->n_tokens = 1 + (int)rng_below(rng, MAX_SEQ - 64);
    uint64_t kind = rng_below(rng, 3), other = rng_below(rng, MAX_SEQ);
    for (int i = 0; i < MAX_SEQ; i++)
        s->tokens[i] = kind == 0 ? 7 : (int32_t)(kind + ((uint64_t)i > other));
    bool saved_only = rng_below(rng, 2);
    int n_found = kv_pool_find(keeping, root, s->tokens, s->n_tokens, saved_only,
                               &n_unused);
    int n_all = kv_pool_find(keeping, root, s->tokens, s->n_tokens, false, &n_unused);
    int n_taken = kv_table_take(keeping, &s->t, root, s->tokens, s->n_tokens, saved_only);
    bool has_states = kv_pool_layer(keeping, 2).dtype == DTYPE_F32;
    if (has_states) {
        int place;
        s->n_done = (int)kv_table_find_state(keeping, &s->t, root, s->tokens, s->n_tokens,
                                             &place);
        n_taken = s->t.n_blocks;
        if (s->n_done > 0 &&
            kv_table_take_state(keeping, &s->t, stream, s->n_done, place) != 0) {
            kv_table_cut(keeping, &s->t, 0);
            s->n_done = 0;
        }
        n_copied = s->n_done % 64;
    } else {
        s->n_done = n_taken * 64;
    }
    assert_int_equal(n_taken, n_found);
    assert_true(n_found <= n_all);
    assert_true(n_unused <= n_all);
    if (!has_states && s->n_done < s->n_tokens &&
        kv_table_copy_tail(keeping, &s->t, stream, root, s->tokens, s->n_tokens,
                           &n_copied) == 0)
        s->n_done += n_copied;
    *n_copies += n_copied > 0;
    check_content(s);
    return n_taken;
}

static void compute(struct fake_seq *s, int n)
{
    n = n < s->n_tokens - s->n_done ? n : s->n_tokens - s->n_done;
    if (kv_table_reserve(keeping, &s->t, s->n_done + n, NULL) != 0)
        return;
    for (; n > 0; n--, s->n_done++)
        *cell(s, s->n_done) = value(s, s->n_done);
    int64_t *state = state_of(s);
    if (state != NULL && s->n_done > 0) {
        state[1] = s->n_done % 5; /* inputs that are kept behind it */
        state[0] = s->n_done - state[1];
        state[15] = (int64_t)value(s, s->n_done - 1);
    }
    kv_table_keep(keeping, &s->t, &roots[s->root], s->tokens, s->n_done);
    if (s->n_tokens % 4 != 0)
        kv_table_mark_saved(keeping, &s->t, s->n_done / 64);
    if (state != NULL && s->n_done % 64 == 0)
        assert_int_equal(kv_table_keep_state(keeping, &s->t, stream), 0);
    check_content(s);
}

/* Sequences begin, compute and end at random in a pool that is too small for all: taken blocks
 * and states equal computed ones, and none is in two places. */
static void walk(bool has_states)
{
    static struct fake_seq s[N_SEQS];
    struct rng rng = {11};
    struct kv_pool_opts o = opts;
    int64_t n_taken = 0;
    int n_copies = 0;
    o.keep = true;
    if (has_states) {
        layer_set_add(&o.recurrent, 2);
        o.state_bytes = 128;
        o.n_states = N_SEQS + 1;
    }
    roots[1].b[0] = 1;
    memset(s, 0, sizeof s);
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    assert_int_equal(stream_create(device, STREAM_INLINE, &stream, NULL), 0);
    for (int step = 0; step < 20000; step++) {
        struct fake_seq *x = &s[rng_below(&rng, N_SEQS)];
        if (x->n_tokens == 0) {
            n_taken += begin(x, &rng, &n_copies);
        } else if (x->n_done == x->n_tokens || rng_below(&rng, 20) == 0) {
            if (rng_below(&rng, 8) == 0 && state_of(x) != NULL)
                state_of(x)[0]--; /* a pass has failed halfway: this state is not kept */
            kv_table_leave_state(keeping, &x->t, x->n_done);
            kv_table_free(keeping, &x->t);
            x->n_tokens = x->n_done = 0;
        } else {
            compute(x, 1 + (int)rng_below(&rng, 100));
        }
        bool used[16] = {false};
        int n_used = 0;
        for (int i = 0; i < N_SEQS; i++)
            for (int b = 0; b < s[i].t.n_blocks; b++)
                used[s[i].t.blocks[b]] = true;
        for (int b = 0; b < 16; b++)
            n_used += used[b];
        assert_int_equal(kv_pool_free_blocks(keeping), 16 - n_used);
        if (step % 16 == 0)
            assert_true(kv_pool_audit(keeping));
    }
    assert_true(n_taken > (has_states ? 300 : 1000) && n_copies > 100 &&
                kv_pool_n_evicted(keeping) > 1000);
    for (int i = 0; i < N_SEQS; i++)
        kv_table_free(keeping, &s[i].t);
    assert_int_equal(kv_pool_free_blocks(keeping), 16);
    assert_true(kv_pool_kept_blocks(keeping) > 0);
    stream_destroy(stream);
    kv_pool_destroy(keeping);
}

TEST_WITH(test_reuse, setup, teardown)
{
    walk(false);
    walk(true);
}

/* Leaves a chain of 4 blocks, all of whose tokens are `token`, in the pool `keeping`. */
static void leave_chain(int token, int32_t tokens[4 * 64], struct kv_use use)
{
    struct kv_table t = {.use = use};
    for (int i = 0; i < 4 * 64; i++)
        tokens[i] = token;
    assert_int_equal(kv_table_reserve(keeping, &t, 4 * 64, NULL), 0);
    kv_table_keep(keeping, &t, &roots[0], tokens, 4 * 64);
    kv_table_free(keeping, &t);
}

/* The least recently used block is evicted first, and a chain's head not before its tail. */
TEST_WITH(test_eviction_order, setup, teardown)
{
    struct kv_pool_opts o = opts;
    int32_t tokens[2][4 * 64];
    struct kv_table t = {0};
    int n_unused;
    o.keep = true;
    o.n_blocks = 8;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    for (int k = 0; k < 2; k++)
        leave_chain(k, tokens[k], (struct kv_use){0});
    assert_int_equal(kv_table_take(keeping, &t, &roots[0], tokens[0], 256, false), 4);
    kv_table_free(keeping, &t); /* now the second chain is the least recently used */
    for (int want = 4; want >= 0; want--) {
        assert_int_equal(kv_pool_find(keeping, &roots[0], tokens[1], 256, false, &n_unused),
                         want);
        assert_int_equal(kv_pool_find(keeping, &roots[0], tokens[0], 256, false, &n_unused),
                         4);
        assert_int_equal(kv_pool_find(keeping, &roots[1], tokens[0], 256, false, &n_unused),
                         0);
        if (want > 0)
            assert_int_equal(kv_table_reserve(keeping, &t, (5 - want) * 64, NULL), 0);
    }
    assert_int_equal(kv_pool_n_evicted(keeping), 4);
    kv_table_free(keeping, &t);
    assert_int_equal(kv_pool_find(keeping, &roots[0], tokens[0], 256, true, &n_unused), 0);
    assert_int_equal(kv_table_take(keeping, &t, &roots[0], tokens[0], 256, false), 4);
    kv_table_mark_saved(keeping, &t, 3);
    assert_int_equal(kv_pool_find(keeping, &roots[0], tokens[0], 256, true, &n_unused), 3);
    kv_table_free(keeping, &t);
    kv_pool_destroy(keeping);
}

/* Fills a pool of 8 blocks with two chains of 4 blocks. A waiting request needs the first chain,
 * which is the least recently used. Then takes `n` blocks. Returns how many blocks of the first
 * chain are left, and stores the second chain's in *n_other. */
static int left_of_the_upcoming(enum placement_kind policy, int n, int *n_other)
{
    struct kv_pool_opts o = opts;
    int32_t tokens[2][4 * 64];
    struct kv_table t = {0};
    int n_unused;
    o.keep = true;
    o.n_blocks = 8;
    o.policy = policy;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    for (int k = 0; k < 2; k++) {
        if (k == 1) /* announced before the second chain is made */
            kv_pool_expect(keeping, &roots[0], tokens[0], 256, 1);
        leave_chain(k, tokens[k], (struct kv_use){0});
    }
    assert_int_equal(kv_pool_n_expected(keeping), 4);
    assert_int_equal(kv_table_reserve(keeping, &t, n * 64, NULL), 0);
    int left = kv_pool_find(keeping, &roots[0], tokens[0], 256, false, &n_unused);
    *n_other = kv_pool_find(keeping, &roots[0], tokens[1], 256, false, &n_unused);
    kv_table_free(keeping, &t);
    /* When the waiting request has ended, the first chain is no longer protected. */
    kv_pool_expect_no_more(keeping, &roots[0], tokens[0], 256, 1);
    assert_int_equal(kv_pool_n_expected(keeping), 0);
    kv_pool_destroy(keeping);
    return left;
}

/* After an erasure, no block counts as saved. Blocks that are saved again do. */
/* A block that no other request can find is not marked as saved. */
TEST_WITH(test_only_known_blocks_are_marked_saved, setup, teardown)
{
    struct kv_pool_opts o = opts;
    int32_t tokens[3 * 64];
    struct kv_table t = {0};
    o.keep = true;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    for (int i = 0; i < 3 * 64; i++)
        tokens[i] = i;
    assert_int_equal(kv_table_reserve(keeping, &t, 3 * 64, NULL), 0);
    kv_table_keep(keeping, &t, &roots[0], tokens, 2 * 64);
    assert_int_equal(t.n_known, 2);
    kv_table_mark_saved(keeping, &t, 3);
    assert_int_equal(t.n_saved, 2);
    kv_table_free(keeping, &t);
    kv_pool_destroy(keeping);
}

TEST_WITH(test_an_erasure_unmarks_saved_blocks, setup, teardown)
{
    struct kv_pool_opts o = opts;
    int32_t tokens[3 * 64];
    struct kv_table t = {0}, u = {0};
    int n_unused;
    o.keep = true;
    o.n_blocks = 8;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    assert_int_equal(kv_pool_n_blocks(keeping), 8);
    for (int i = 0; i < 3 * 64; i++)
        tokens[i] = i;
    assert_int_equal(kv_table_reserve(keeping, &t, 3 * 64, NULL), 0);
    kv_table_keep(keeping, &t, &roots[0], tokens, 3 * 64);
    kv_table_mark_saved(keeping, &t, 2);
    assert_int_equal(kv_pool_find(keeping, &roots[0], tokens, 3 * 64, true, &n_unused), 2);
    assert_int_equal(n_unused, 0);
    kv_pool_unmark_saved(keeping);
    assert_int_equal(kv_pool_find(keeping, &roots[0], tokens, 3 * 64, true, &n_unused), 0);
    assert_int_equal(kv_pool_find(keeping, &roots[0], tokens, 3 * 64, false, &n_unused), 3);
    kv_table_free(keeping, &t);
    assert_int_equal(kv_pool_find(keeping, &roots[0], tokens, 3 * 64, false, &n_unused), 3);
    assert_int_equal(n_unused, 3);
    assert_int_equal(kv_table_take(keeping, &u, &roots[0], tokens, 3 * 64, false), 3);
    kv_table_mark_saved(keeping, &u, 3);
    assert_int_equal(kv_pool_find(keeping, &roots[0], tokens, 3 * 64, true, &n_unused), 3);
    kv_table_free(keeping, &u);
    kv_pool_destroy(keeping);
}

TEST_WITH(test_a_waiting_request_keeps_its_blocks, setup, teardown)
{
    int other;
    assert_int_equal(left_of_the_upcoming(PLACEMENT_LRU, 3, &other), 1);
    assert_int_equal(other, 4);
    assert_int_equal(left_of_the_upcoming(PLACEMENT_ATTENTIONSTORE, 3, &other), 4);
    assert_int_equal(other, 1);
    assert_int_equal(left_of_the_upcoming(PLACEMENT_OURS, 3, &other), 4);
    assert_int_equal(other, 1);
    assert_int_equal(left_of_the_upcoming(PLACEMENT_OURS, 6, &other), 2);
    assert_int_equal(other, 0); /* only blocks of the waiting request were left to evict */
}

/* Fills a pool of 8 blocks with two chains of 4 blocks, the first of which has a hint of its next
 * use. Then takes 3 blocks. Returns how many blocks of the first chain are left. */
static int left_of_the_hinted(enum placement_kind policy, uint32_t reuse_in)
{
    struct kv_pool_opts o = opts;
    int32_t tokens[2][4 * 64];
    struct kv_table t = {0};
    int n_unused;
    o.keep = true;
    o.n_blocks = 8;
    o.policy = policy;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    for (int k = 0; k < 2; k++)
        leave_chain(k, tokens[k],
                    (struct kv_use){.time = 1000, .reuse_in = k == 0 ? reuse_in : 0});
    assert_int_equal(kv_table_reserve(keeping, &t, 3 * 64, NULL), 0);
    int left = kv_pool_find(keeping, &roots[0], tokens[0], 256, false, &n_unused);
    kv_table_free(keeping, &t);
    kv_pool_destroy(keeping);
    return left;
}

TEST_WITH(test_a_hint_keeps_blocks, setup, teardown)
{
    assert_int_equal(left_of_the_hinted(PLACEMENT_OURS, 0), 1);
    assert_int_equal(left_of_the_hinted(PLACEMENT_OURS, 3600 * KV_TIME_PER_S), 4);
    assert_int_equal(left_of_the_hinted(PLACEMENT_LRU, 3600 * KV_TIME_PER_S), 1);
}

/* Under every policy a chain loses its tail before its head, and all blocks can be taken. */
TEST_WITH(test_every_policy_evicts_leaves, setup, teardown)
{
    struct kv_pool_opts o = opts;
    o.keep = true;
    o.n_blocks = 16;
    for (int policy = 0; policy < PLACEMENT_BELADY; policy++) {
        struct rng r = {3};
        o.policy = (enum placement_kind)policy;
        assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
        for (int op = 0; op < 400; op++) {
            struct kv_table t = {0};
            int32_t tokens[6 * 64];
            int n = 1 + (int)rng_below(&r, 6), n_unused, own = (int)rng_below(&r, 4);
            for (int i = 0; i < n * 64; i++)
                tokens[i] = i < 2 * 64 ? 0 : own;
            int n_found = kv_pool_find(keeping, &roots[0], tokens, n * 64, false,
                                       &n_unused);
            assert_int_equal(n_unused, n_found); /* no block is in use here */
            assert_int_equal(kv_table_take(keeping, &t, &roots[0], tokens, n * 64, false),
                             n_found);
            assert_int_equal(kv_table_reserve(keeping, &t, n * 64, NULL), 0);
            kv_table_keep(keeping, &t, &roots[0], tokens, n * 64);
            kv_table_free(keeping, &t);
            assert_int_equal(kv_pool_free_blocks(keeping), 16);
        }
        struct kv_table all = {0};
        assert_int_equal(kv_table_reserve(keeping, &all, 16 * 64, NULL), 0);
        assert_int_equal(kv_pool_kept_blocks(keeping), 0);
        kv_table_free(keeping, &all);
        kv_pool_destroy(keeping);
    }
}

/* Returns how many tokens another sequence may copy from the partial block after n_full full
 * blocks. */
static int known_of_tail(const int32_t *tokens, int n_full)
{
    struct kv_table other = {0};
    int n_copied = 0, n = (n_full + 1) * 64;
    assert_int_equal(kv_table_take(keeping, &other, &roots[0], tokens, n, false), n_full);
    assert_int_equal(
        kv_table_copy_tail(keeping, &other, stream, &roots[0], tokens, n, &n_copied), 0);
    kv_table_free(keeping, &other);
    return n_copied;
}

/* Each time a partial block grows, it is known with its new number of tokens. That holds for a
 * sequence's first block and for a block after a full one. */
TEST_WITH(test_a_growing_block_is_known_anew, setup, teardown)
{
    struct kv_pool_opts o = opts;
    int32_t tokens[192];
    struct kv_table t = {0};
    o.keep = true;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    assert_int_equal(stream_create(device, STREAM_INLINE, &stream, NULL), 0);
    for (int i = 0; i < 192; i++)
        tokens[i] = i;
    assert_int_equal(kv_table_reserve(keeping, &t, 192, NULL), 0);
    for (int n_done = 1; n_done < 192; n_done += 20) {
        kv_table_keep(keeping, &t, &roots[0], tokens, n_done);
        assert_int_equal(t.n_known, n_done / 64);
        assert_int_equal(known_of_tail(tokens, n_done / 64), n_done % 64);
        /* a second call changes nothing */
        kv_table_keep(keeping, &t, &roots[0], tokens, n_done);
        kv_table_keep(keeping, &t, &roots[0], tokens, n_done - n_done % 64 / 2);
        assert_int_equal(known_of_tail(tokens, n_done / 64), n_done % 64);
    }
    kv_table_keep(keeping, &t, &roots[0], tokens, 192); /* no partial block is left */
    assert_int_equal(t.n_known, 3);
    kv_table_free(keeping, &t);
    stream_destroy(stream);
    kv_pool_destroy(keeping);
}

/* Tokens that leave a known history differ at a position counted from the beginning of the context,
 * whatever the table has taken of it. */
TEST_WITH(test_where_tokens_differ, setup, teardown)
{
    struct kv_pool_opts o = opts;
    int32_t known[4 * 64], tokens[4 * 64];
    struct kv_table t = {0}, u = {0};
    o.keep = true;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    for (int i = 0; i < 4 * 64; i++)
        known[i] = i;
    assert_int_equal(kv_table_reserve(keeping, &t, 4 * 64, NULL), 0);
    kv_table_keep(keeping, &t, &roots[0], known, 3 * 64 + 20);
    static const struct {
        int at, n_tokens, differs; /* at: the first token that is changed; -1: none */
    } cases[] = {
        {0, 256, 0},     {10, 256, 10},  {63, 256, 63}, {64, 256, 64},   {138, 256, 138},
        {138, 139, 138}, {138, 138, -1}, {-1, 256, -1}, {-1, 192, -1},   {192, 256, 192},
        {211, 256, 211}, {212, 256, -1}, {63, 63, -1},  {130, 131, 130}, {1, 1, -1},
        {64, 64, -1},    {-1, 0, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = cases[i].n_tokens;
        memcpy(tokens, known, sizeof tokens);
        for (int k = cases[i].at; k >= 0 && k < 256; k++)
            tokens[k] += 1000;
        int n_taken = kv_table_take(keeping, &u, &roots[0], tokens, n, false);
        int same = cases[i].at >= 0 && cases[i].at < n ? cases[i].at : n;
        assert_int_equal(n_taken, same / 64 < 3 ? same / 64 : 3);
        assert_int_equal(kv_table_differs_at(keeping, &u, &roots[0], tokens, n),
                         cases[i].differs);
        assert_int_equal(kv_table_differs_at(keeping, &u, &roots[1], tokens, n),
                         n_taken > 0 ? cases[i].differs : -1);
        kv_table_free(keeping, &u);
    }
    assert_int_equal(kv_table_differs_at(pool, &u, &roots[0], tokens, 256), -1);
    kv_table_free(keeping, &t);
    kv_pool_destroy(keeping);
}

/* Adds the pool's reported changes to count[name]: +1 if the name is now held, -1 if not. */
static void count_changes(int *count, int n_names)
{
    struct kv_change c[3];
    int n;
    while ((n = kv_pool_changes(keeping, c, 3)) > 0)
        for (int i = 0; i < n; i++) {
            assert_true(c[i].name > 0 && c[i].name < (uint64_t)n_names);
            count[c[i].name] += c[i].is_held ? 1 : -1;
        }
}

/* A name is reported when its block becomes known, and again when the block is reused. If both
 * happen between two reports, neither is reported. */
TEST_WITH(test_names_come_and_go_with_their_blocks, setup, teardown)
{
    struct kv_pool_opts o = opts;
    int32_t tokens[3][4 * 64];
    struct kv_table t = {0};
    int count[13] = {0};
    o.keep = true;
    o.n_blocks = 8;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 4 * 64; i++)
            tokens[k][i] = k;
        assert_int_equal(kv_table_reserve(keeping, &t, 4 * 64, NULL), 0);
        kv_table_keep(keeping, &t, &roots[0], tokens[k], 4 * 64);
        for (uint64_t i = 0; i < 4; i++)
            kv_table_name(keeping, &t, 4 * (uint64_t)k + i + 1);
        kv_table_free(keeping, &t);
        if (k == 0)
            count_changes(count, 13);
    }
    /* The third chain has taken the blocks of the first chain. */
    count_changes(count, 13);
    for (int i = 1; i < 13; i++)
        assert_int_equal(count[i], i > 4);
    /* A kept block is taken, gets its old name again, and is given back: it still has the name. */
    assert_int_equal(kv_table_take(keeping, &t, &roots[0], tokens[2], 256, false), 4);
    assert_int_equal(t.n_named, 0);
    kv_table_name(keeping, &t, 9);
    kv_table_cut(keeping, &t, 0);
    count_changes(count, 13);
    assert_int_equal(count[9], 1);
    assert_int_equal(kv_table_reserve(keeping, &t, 8 * 64, NULL), 0);
    count_changes(count, 13);
    for (int i = 1; i < 13; i++)
        assert_int_equal(count[i], 0);
    kv_table_free(keeping, &t);
    kv_pool_destroy(keeping);
}

/* Under `lfu` each eviction ages the blocks that stay: a block that was used four times goes when
 * four others have come and gone. */
TEST_WITH(test_uses_age, setup, teardown)
{
    struct kv_pool_opts o = opts;
    int32_t often[64], other[64];
    struct kv_table t = {0};
    int n_unused;
    o.keep = true;
    o.n_blocks = 2;
    o.policy = PLACEMENT_LFU;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    for (int i = 0; i < 64; i++)
        often[i] = 7;
    for (int k = 0; k < 4; k++) {
        assert_int_equal(kv_table_take(keeping, &t, &roots[0], often, 64, false), k > 0);
        assert_int_equal(kv_table_reserve(keeping, &t, 64, NULL), 0);
        kv_table_keep(keeping, &t, &roots[0], often, 64);
        kv_table_free(keeping, &t);
    }
    for (int k = 0; k < 6; k++) {
        for (int i = 0; i < 64; i++)
            other[i] = 100 + k;
        assert_int_equal(kv_table_reserve(keeping, &t, 64, NULL), 0);
        kv_table_keep(keeping, &t, &roots[0], other, 64);
        kv_table_free(keeping, &t);
        assert_int_equal(kv_pool_find(keeping, &roots[0], often, 64, false, &n_unused),
                         k < 4);
    }
    kv_pool_destroy(keeping);
}

/* Fills half a pool of 16 blocks with two chains of 4 blocks. Two waiting requests of turns 5 and 6
 * need the first chain, one of turn 4 needs the second chain. Then takes 11 blocks. Returns how
 * many blocks of the first chain are left, and stores the second chain's in *n_other. With
 * no_more, all three requests have ended before. */
static int left_of_the_shared(enum placement_kind policy, uint64_t step, bool no_more,
                              int *n_other)
{
    static const int chain[] = {0, 0, 1};
    static const uint64_t turn[] = {5, 6, 4};
    struct kv_pool_opts o = opts;
    int32_t tokens[2][4 * 64];
    struct kv_table t = {0};
    int n_unused;
    o.keep = true;
    o.policy = policy;
    assert_int_equal(kv_pool_create(device, &o, &keeping, NULL), 0);
    kv_pool_set_step(keeping, step);
    for (int k = 0; k < 2; k++)
        leave_chain(k, tokens[k], (struct kv_use){0});
    for (int i = 0; i < 3; i++)
        kv_pool_expect(keeping, &roots[0], tokens[chain[i]], 256, turn[i]);
    assert_int_equal(kv_pool_n_expected(keeping), 12);
    for (int i = 0; no_more && i < 3; i++)
        kv_pool_expect_no_more(keeping, &roots[0], tokens[chain[i]], 256, turn[i]);
    assert_int_equal(kv_pool_n_expected(keeping), no_more ? 0 : 12);
    assert_int_equal(kv_table_reserve(keeping, &t, 11 * 64, NULL), 0);
    int left = kv_pool_find(keeping, &roots[0], tokens[0], 256, false, &n_unused);
    *n_other = kv_pool_find(keeping, &roots[0], tokens[1], 256, false, &n_unused);
    kv_table_free(keeping, &t);
    for (int i = 0; !no_more && i < 3; i++)
        kv_pool_expect_no_more(keeping, &roots[0], tokens[chain[i]], 256, turn[i]);
    kv_pool_destroy(keeping);
    return left;
}

/* The block that is needed last goes first. Under `ours`, a block that two requests need counts as
 * needed `step` turns earlier. A request that has ended protects nothing. */
TEST_WITH(test_turns_decide, setup, teardown)
{
    int other;
    assert_int_equal(left_of_the_shared(PLACEMENT_OURS, 0, false, &other), 1);
    assert_int_equal(other, 4);
    assert_int_equal(left_of_the_shared(PLACEMENT_OURS, 2, false, &other), 4);
    assert_int_equal(other, 1);
    assert_int_equal(left_of_the_shared(PLACEMENT_ATTENTIONSTORE, 2, false, &other), 1);
    assert_int_equal(other, 4);
    assert_int_equal(left_of_the_shared(PLACEMENT_OURS, 2, true, &other), 1);
    assert_int_equal(other, 4);
    assert_int_equal(left_of_the_shared(PLACEMENT_ATTENTIONSTORE, 0, true, &other), 1);
    assert_int_equal(other, 4);
}

/* --- stages ----------------------------------------------------------------------------------- */

/* Copies a block of a layer from the pool, or to it. */
static void block_copy(struct stream *s, const struct kv_layer *l, int block, uint8_t *host,
                       bool to_pool)
{
    uint8_t *at = l->blocks + (size_t)block * l->block_stride;
    size_t n = kv_block_bytes(2, 8, DTYPE_BF16);
    assert_int_equal(to_pool ? stream_copy(s, at, host, n) : stream_copy(s, host, at, n),
                     0);
    assert_int_equal(stream_sync(s), 0);
}

/* Each layer's blocks lie on the layer's stage, apart from all other blocks. A copy of a block has
 * all layers. */
static void blocks_lie_on_their_stages(int n_stages)
{
    struct device *d;
    struct kv_pool *p;
    struct stream *s;
    struct kv_pool_opts o = opts;
    struct kv_table t = {0}, u = {0};
    int32_t tokens[64] = {0};
    int n_copied = 0;
    uint8_t host[4096], want[4096];
    o.keep = true;
    o.n_blocks = 4;
    assert_int_equal(kv_block_bytes(2, 8, DTYPE_BF16), sizeof host);
    peer_threads_use();
    assert_int_equal(group_open("cpu", NULL, 1, n_stages, NULL, &d, NULL), 0);
    assert_int_equal(kv_pool_create(d, &o, &p, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_INLINE, &s, NULL), 0);
    for (int l = 0; l < 3; l++) {
        struct kv_layer layer = kv_pool_layer(p, l);
        int n_here = 0;
        for (int i = 0; i < 3; i++)
            n_here += stage_of(i, 3, n_stages) == stage_of(l, 3, n_stages);
        assert_int_equal(layer.stage, stage_of(l, 3, n_stages));
        assert_int_equal(layer.block_stride, (size_t)n_here * sizeof host);
        assert_ptr_equal(kv_pool_layers(p)[l].blocks, layer.blocks);
        for (int b = 0; b < 4; b++) {
            memset(host, 1 + 4 * l + b, sizeof host);
            block_copy(s, &layer, b, host, true);
        }
    }
    assert_int_equal(kv_table_reserve(p, &t, 64, NULL), 0);
    kv_table_keep(p, &t, &roots[0], tokens, 40);
    assert_int_equal(kv_table_copy_tail(p, &u, s, &roots[0], tokens, 64, &n_copied), 0);
    assert_int_equal(n_copied, 40);
    assert_int_not_equal(u.blocks[0], t.blocks[0]);
    for (int l = 0; l < 3; l++) {
        for (int b = 0; b < 4; b++) {
            int from = b == u.blocks[0] ? t.blocks[0] : b;
            memset(want, 1 + 4 * l + from, sizeof want);
            block_copy(s, &kv_pool_layers(p)[l], b, host, false);
            assert_memory_equal(host, want, sizeof host);
        }
    }
    kv_table_free(p, &t);
    kv_table_free(p, &u);
    stream_destroy(s);
    kv_pool_destroy(p);
    device_close(d);
}

TEST(test_stages)
{
    for (int n_stages = 1; n_stages <= 3; n_stages++)
        blocks_lie_on_their_stages(n_stages);
}
