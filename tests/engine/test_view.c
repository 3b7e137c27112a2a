/* test_view.c - the tokens and chunks that a truncated sequence sees, compared with the definition
 * in store/truncation.h for each token. */
#include "tests/unit.h"

#include <string.h>

#include "base/rng.h"
#include "engine/view.h"

enum { MOST = 64 * 40, CHUNK = STORE_CHUNK_TOKENS };

static int32_t tokens[MOST];

/* Fills out with the tokens below n that the last token of a stair sees. Returns their number. */
static int seen(const struct truncation *t, int cut, int n, int32_t out[MOST])
{
    int n_out = 0;
    for (int p = 0; p < n; p++) {
        bool is_dropped = p >= t->keep && p < t->keep + cut;
        if (!is_dropped && (t->context == 0 || p < t->context + cut))
            out[n_out++] = p;
    }
    return n_out;
}

static void expect_view(const struct view *v, const struct chain *c, int cut, int n)
{
    static int32_t want[MOST];
    int n_seen = seen(&v->truncation, cut, n, want);
    assert_int_equal(v->n_tokens, n_seen);
    assert_int_equal(v->n_keys, n_seen / CHUNK);
    assert_int_equal(view_room(v, n), n_seen);
    for (int i = 0; i < n_seen; i++) {
        assert_int_equal(view_token(v, i), want[i]);
        assert_int_equal(v->tokens[i], tokens[want[i]]);
    }
    for (int i = 0; i < v->n_keys; i++) {
        assert_int_equal(view_chunk(v, i), want[i * CHUNK] / CHUNK);
        assert_memory_equal(&v->keys[i], &c->keys[want[i * CHUNK] / CHUNK],
                            sizeof *v->keys);
    }
    struct sha256 root = cut == 0 ? c->root : chain_view_root(c, cut);
    assert_memory_equal(&v->root, &root, sizeof root);
    assert_int_equal(view_moved(v),
                     cut == 0 ? 0 : v->truncation.context - v->truncation.step);
}

static void make_chain(struct chain *c, const struct truncation *t, int n)
{
    static const struct sha256 fingerprint;
    chain_init(c, &fingerprint, NULL);
    c->truncation = *t;
    chain_extend(c, tokens, n);
}

/* Checks every stair of a context of n tokens. The last stair may not be full yet. */
TEST(each_stair_sees_its_tokens)
{
    static const struct truncation cases[] = {
        {0, 0, 0}, {512, 64, 64}, {512, 256, 64}, {640, 128, 256}, {512, 320, 128}};
    struct rng r = {3};
    for (int i = 0; i < MOST; i++)
        tokens[i] = (int32_t)rng_below(&r, 30000);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int round = 0; round < 30; round++) {
            const struct truncation *t = &cases[k];
            int n = 1 + (int)rng_below(&r, MOST), cut = 0;
            struct chain c = {0};
            struct view v;
            make_chain(&c, t, n);
            view_init(&v, t);
            for (;;) {
                view_set(&v, &c, tokens, n, cut);
                assert_int_equal(v.cut, cut);
                expect_view(&v, &c, cut, n);
                cut += t->step;
                if (t->context == 0 || truncation_first(t, cut) >= n)
                    break;
            }
            view_deinit(&v);
            chain_deinit(&c);
        }
}

/* Adds tokens until the stair ends. A further token is ignored. */
TEST(a_view_grows_to_its_stairs_end)
{
    const struct truncation t = {512, 128, 64};
    for (int cut = 0; cut <= 256; cut += 128) {
        int n = (int)truncation_first(&t, cut) + 1;
        int32_t want[MOST];
        struct chain c = {0};
        struct view v;
        make_chain(&c, &t, n);
        view_init(&v, &t);
        view_set(&v, &c, tokens, n, cut);
        while (n < truncation_end(&t, cut) + 3) {
            view_add(&v, tokens[n++]);
            int n_seen = seen(&t, cut, n, want);
            assert_int_equal(v.n_tokens, n_seen);
            if (cut > 0)
                assert_int_equal(v.tokens[n_seen - 1], tokens[want[n_seen - 1]]);
        }
        assert_int_equal(v.n_tokens, t.context);
        assert_true(view_is_full(&v, t.context));
        assert_false(view_is_full(&v, t.context - 1));
        view_deinit(&v);
        chain_deinit(&c);
    }
    struct view whole;
    view_init(&whole, &(struct truncation){0});
    assert_false(view_is_full(&whole, 0));
    view_deinit(&whole);
}
