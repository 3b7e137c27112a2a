/* test_chain.c - the names of a context follow from its tokens, its model and its salt only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "state/chain.h"

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

/* Extending by one token, by a chunk, or at once gives the same keys; only full chunks count. */
static void extends_in_any_steps(void **state)
{
    (void)state;
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

static void edges(void **state)
{
    (void)state;
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

/* A key hashes all that came before it. */
static void depends_on_the_past(void **state)
{
    (void)state;
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

static void salts_and_models_keep_apart(void **state)
{
    (void)state;
    int32_t t[N];
    make_tokens(t);
    struct chain c[] = {chain_of(t, 64, 1, NULL), chain_of(t, 64, 1, "a"),
                        chain_of(t, 64, 1, "b"), chain_of(t, 64, 2, NULL),
                        chain_of(t, 64, 2, "a")};
    struct chain none = chain_of(t, 64, 1, "");
    assert_true(same(&none.keys[0], &c[0].keys[0])); /* no salt is the empty one */
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            assert_false(same(&c[i].keys[0], &c[j].keys[0]));
    for (int i = 0; i < 5; i++)
        chain_deinit(&c[i]);
    chain_deinit(&none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extends_in_any_steps),
        cmocka_unit_test(edges),
        cmocka_unit_test(depends_on_the_past),
        cmocka_unit_test(salts_and_models_keep_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
