/* test_prefix.c - the tree of blocks, compared with a plain list of all its nodes. After every
 * change each look-up equals a comparison with all nodes. The victim is the leaf that was used
 * least recently. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/rng.h"
#include "kvcache/prefix.h"

enum { N = 14, B = KV_BLOCK_TOKENS, ROOTS = 2 };

/* The expected node of a block. n_tokens is 0 if the block is not a node. */
struct model {
    int root, parent, n_tokens;
    int32_t tokens[B];
    bool kept;
    uint64_t left_at;
};

static struct model model[N];
static struct sha256 root[ROOTS];
static struct prefix *x;
static struct rng rng;
static uint64_t n_uses;

static int below(int n)
{
    return (int)rng_below(&rng, (uint64_t)n);
}

/* Draws tokens that differ from 0, 1, 2, ... in one place. So two draws often agree up to some
 * place. */
static void draw_tokens(int32_t *tokens)
{
    for (int i = 0; i < B; i++)
        tokens[i] = i;
    int at = below(3) == 0 ? below(B) : below(3);
    tokens[at] = 100 + below(2);
}

static bool is_child_of(int b, int r, int parent)
{
    return model[b].n_tokens > 0 && model[b].parent == parent && model[b].root == r;
}

static bool has_children(int b)
{
    for (int i = 0; i < N; i++)
        if (model[i].n_tokens > 0 && model[i].parent == b)
            return true;
    return false;
}

static int agreement(int b, const int32_t *tokens, int n)
{
    int k = 0;
    while (k < n && k < model[b].n_tokens && model[b].tokens[k] == tokens[k])
        k++;
    return k;
}

static int find(int r, int parent, const int32_t *tokens)
{
    for (int b = 0; b < N; b++)
        if (is_child_of(b, r, parent) && model[b].n_tokens == B &&
            agreement(b, tokens, B) == B)
            return b;
    return PREFIX_NONE;
}

/* --- comparing -------------------------------------------------------------------------------- */

static void compare_place(int r, int parent)
{
    int32_t tokens[B];
    int n = 1 + below(B), n_same, best = 0, differs = -1;
    draw_tokens(tokens);
    assert_int_equal(prefix_find(x, &root[r], parent, tokens), find(r, parent, tokens));
    for (int b = 0; b < N; b++) {
        if (!is_child_of(b, r, parent))
            continue;
        int k = agreement(b, tokens, n);
        bool leaves = k < n && k < model[b].n_tokens;
        if (k > best)
            differs = -1;
        best = k > best ? k : best;
        if (k == best && leaves)
            differs = k;
    }
    int tail = prefix_find_tail(x, &root[r], parent, tokens, n, &n_same);
    assert_int_equal(n_same, best);
    assert_int_equal(tail == PREFIX_NONE, best == 0);
    if (tail != PREFIX_NONE) {
        assert_true(is_child_of(tail, r, parent));
        assert_int_equal(agreement(tail, tokens, n), best);
    }
    assert_int_equal(prefix_differs_at(x, &root[r], parent, tokens, n), differs);
}

static void compare(void)
{
    int n_kept = 0;
    for (int b = 0; b < N; b++) {
        assert_int_equal(prefix_has(x, b), model[b].n_tokens > 0);
        n_kept += model[b].n_tokens > 0 && model[b].kept;
        if (model[b].n_tokens == B) {
            assert_int_equal(
                prefix_find(x, &root[model[b].root], model[b].parent, model[b].tokens), b);
            compare_place(model[b].root, b);
        }
    }
    for (int r = 0; r < ROOTS; r++)
        compare_place(r, PREFIX_NONE);
    assert_int_equal(x->n_kept, n_kept);
}

/* --- changing --------------------------------------------------------------------------------- */

static void put(int b)
{
    struct model *m = &model[b];
    int parent = below(N), r = below(ROOTS);
    bool is_new = m->n_tokens == 0;
    int32_t tokens[B];
    if (!is_new && (m->n_tokens == B || m->kept))
        return;
    memcpy(tokens, m->tokens, sizeof tokens);
    if (is_new) {
        draw_tokens(tokens);
        bool under = parent != b && model[parent].n_tokens == B && !model[parent].kept;
        *m = (struct model){.parent = under ? parent : PREFIX_NONE,
                            .root = under ? model[parent].root : r};
    }
    int n = m->n_tokens + 1 + below(B - m->n_tokens);
    n = below(2) == 0 ? B : n;
    if (n == B && find(m->root, m->parent, tokens) != PREFIX_NONE)
        return; /* a full node is never added twice */
    memcpy(m->tokens, tokens, sizeof tokens);
    m->n_tokens = n;
    prefix_put(x, b, &root[m->root], m->parent, m->tokens, n);
}

static bool children_are_kept(int b)
{
    for (int i = 0; i < N; i++)
        if (model[i].n_tokens > 0 && model[i].parent == b && !model[i].kept)
            return false;
    return true;
}

static void leave_or_claim(int b)
{
    struct model *m = &model[b];
    if (m->n_tokens == 0)
        return;
    if (!m->kept && children_are_kept(b)) {
        m->kept = true;
        m->left_at = ++n_uses;
        prefix_leave(x, b, &(struct kv_use){0});
    } else if (m->kept && (m->parent == PREFIX_NONE || !model[m->parent].kept)) {
        m->kept = false;
        prefix_claim(x, b);
    }
}

static void forget(int b)
{
    if (model[b].n_tokens == 0 || model[b].kept || has_children(b))
        return;
    prefix_forget(x, b);
    model[b] = (struct model){0};
}

static void evict(void)
{
    int oldest = -1;
    for (int b = 0; b < N; b++)
        if (model[b].n_tokens > 0 && model[b].kept && !has_children(b) &&
            (oldest < 0 || model[b].left_at < model[oldest].left_at))
            oldest = b;
    if (oldest < 0)
        return;
    uint64_t n_evicted = x->n_evicted;
    assert_int_equal(prefix_evict(x), oldest);
    assert_int_equal(x->n_evicted, n_evicted + 1);
    model[oldest] = (struct model){0};
}

static void a_random_life_agrees_with_a_list(void **state)
{
    (void)state;
    for (int i = 0; i < ROOTS; i++)
        memset(root[i].b, i + 1, sizeof root[i].b);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        rng = (struct rng){seed};
        memset(model, 0, sizeof model);
        n_uses = 0;
        x = prefix_create(N, PLACEMENT_LRU);
        for (int step = 0; step < 400; step++) {
            int what = below(8);
            if (what < 4)
                put(below(N));
            else if (what < 6)
                leave_or_claim(below(N));
            else if (what == 6)
                forget(below(N));
            else
                evict();
            compare();
        }
        prefix_destroy(x);
    }
    prefix_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_random_life_agrees_with_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
