/* test_chain.c - the keys of a context depend on its tokens, its model and its salt only. */
#include <string.h>

#include "tests/unit.h"
#include "store/chain.h"

enum { N = 64 * 5 + 17 };

static struct sha256 fingerprint(uint8_t x)
{
    struct sha256 f = {{0}};
    f.b[0] = x;
    return f;
}

static void make_tokens(int32_t *t)
{
    for (int i = 0; i < N; i++)
        t[i] = i * 31 % 1009;
}

static struct chain chain_of(const int32_t *t, int64_t n, uint8_t model, const char *salt)
{
    struct chain c;
    struct sha256 f = fingerprint(model);
    chain_init(&c, &f, salt);
    chain_extend(&c, t, n);
    return c;
}

static bool same(const struct sha256 *a, const struct sha256 *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

/* Extending a context by one token, by a chunk, or all at once gives the same keys. Only full
 * chunks get a key. */
TEST(extends_in_any_steps)
{
    static const int steps[] = {1, 7, 63, 64, 65, 128, N};
    int32_t t[N];
    make_tokens(t);
    struct chain all = chain_of(t, N, 1, NULL);
    assert_int_equal(all.n_chunks, 5);
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        struct chain c = chain_of(t, 0, 1, NULL);
        assert_int_equal(c.n_chunks, 0);
        for (int n = steps[s]; n < N; n += steps[s]) {
            chain_extend(&c, t, n);
            assert_int_equal(c.n_chunks, n / 64);
        }
        chain_extend(&c, t, N);
        assert_int_equal(c.n_chunks, 5);
        assert_memory_equal(c.keys, all.keys, 5 * sizeof c.keys[0]);
        chain_deinit(&c);
    }
    chain_deinit(&all);
}

TEST(edges)
{
    int32_t t[N];
    make_tokens(t);
    static const int n[] = {0, 1, 63, 64, 127, 128};
    static const int chunks[] = {0, 0, 0, 1, 1, 2};
    for (int i = 0; i < 6; i++) {
        struct chain c = chain_of(t, n[i], 1, "x");
        assert_int_equal(c.n_chunks, chunks[i]);
        chain_deinit(&c);
    }
}

/* A chunk's key depends on all tokens before it. */
TEST(depends_on_the_past)
{
    int32_t t[N], u[N];
    make_tokens(t);
    make_tokens(u);
    u[64] ^= 1; /* the first token of the second chunk */
    struct chain a = chain_of(t, N, 1, NULL), b = chain_of(u, N, 1, NULL);
    assert_true(same(&a.keys[0], &b.keys[0]));
    for (int i = 1; i < 5; i++)
        assert_false(same(&a.keys[i], &b.keys[i]));
    assert_true(same(chain_parent(&a, 0), &a.root));
    for (int i = 1; i <= 5; i++)
        assert_true(same(chain_parent(&a, i), &a.keys[i - 1]));
    chain_deinit(&a);
    chain_deinit(&b);
}

TEST(salts_and_models_keep_apart)
{
    int32_t t[N];
    make_tokens(t);
    struct chain c[] = {chain_of(t, 64, 1, NULL), chain_of(t, 64, 1, "a"),
                        chain_of(t, 64, 1, "b"), chain_of(t, 64, 2, NULL),
                        chain_of(t, 64, 2, "a")};
    struct chain none = chain_of(t, 64, 1, "");
    /* a missing salt counts as the empty salt */
    assert_true(same(&none.keys[0], &c[0].keys[0]));
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            assert_false(same(&c[i].keys[0], &c[j].keys[0]));
    for (int i = 0; i < 5; i++)
        chain_deinit(&c[i]);
    chain_deinit(&none);
}

/* Tokens of a truncated context: C = 256, S = 64 and K = 64, so stairs begin at 256, 320, ... */
enum { N_LONG = 64 * 8 };

static struct chain long_chain(const struct truncation *t)
{
    int32_t tokens[N_LONG];
    struct chain c;
    struct sha256 f = fingerprint(1);
    for (int i = 0; i < N_LONG; i++)
        tokens[i] = i * 31 % 1009;
    chain_init(&c, &f, NULL);
    c.truncation = *t;
    chain_extend(&c, tokens, N_LONG);
    return c;
}

/* The chunks of the first stair keep their keys; all others differ between truncations. */
TEST(a_truncation_renames_what_it_changes)
{
    struct chain none = long_chain(&(struct truncation){0});
    struct chain c[] = {long_chain(&(struct truncation){256, 64, 64}),
                        long_chain(&(struct truncation){256, 128, 64}),
                        long_chain(&(struct truncation){256, 64, 128}),
                        long_chain(&(struct truncation){320, 64, 64})};
    for (int i = 0; i < 4; i++) {
        int first = c[i].truncation.context / 64;
        for (int k = 0; k < 8; k++) {
            assert_int_equal(same(&c[i].keys[k], &none.keys[k]), k < first);
            for (int j = 0; j < i && k >= 5; j++)
                assert_false(same(&c[i].keys[k], &c[j].keys[k]));
        }
    }
    /* Only the first chunk of a stair is stored under another parent key than the one in its
     * chain. */
    for (int k = 1; k < 8; k++) {
        struct sha256 a = chain_stored_parent(&c[0], k), b = chain_stored_parent(&c[1], k);
        assert_int_equal(same(&a, chain_parent(&c[0], k)), k < 4);
        assert_int_equal(same(&b, chain_parent(&c[1], k)), k != 4 && k != 6);
        struct sha256 again = chain_stored_behind(&c[0].truncation, &c[0].keys[k - 1], k);
        assert_true(same(&again, &a));
    }
    for (int i = 0; i < 4; i++)
        chain_deinit(&c[i]);
    chain_deinit(&none);
}

/* Equal tokens in view have different keys if the dropped tokens or the cut differ. */
TEST(a_view_names_what_it_dropped)
{
    struct truncation t = {256, 64, 64};
    struct chain c = long_chain(&t), none = long_chain(&(struct truncation){0});
    struct sha256 r0 = c.root, r1 = chain_view_root(&c, 64);
    struct sha256 r2 = chain_view_root(&c, 128);
    assert_true(same(&r0, &none.root));
    assert_false(same(&r1, &r0) || same(&r2, &r0) || same(&r1, &r2));
    /* a cut within the same chunk is another view */
    struct sha256 near = chain_view_root(&c, 65), again = chain_view_root(&c, 64);
    assert_false(same(&near, &r1));
    assert_true(same(&again, &r1));
    c.keys[1].b[0] ^= 1; /* a change of the last chunk that a cut at 64 tokens drops */
    struct sha256 other = chain_view_root(&c, 64);
    assert_false(same(&other, &r1));
    c.keys[1].b[0] ^= 1;
    c.truncation.step = 128;
    other = chain_view_root(&c, 128);
    assert_false(same(&other, &r2));
    chain_deinit(&c);
    chain_deinit(&none);
}
