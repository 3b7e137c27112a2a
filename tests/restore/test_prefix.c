/* test_prefix.c - the tree of blocks, compared with a plain list of all its nodes. After every
 * change each look-up equals a comparison with all nodes. The victim is the leaf that was used
 * least recently. */

#include "tests/unit.h"
#include <string.h>

#include "base/rng.h"
#include "restore/prefix.h"

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
    assert_true(prefix_audit(x));
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

TEST(a_random_life_agrees_with_a_list)
{
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

/* --- bounds of the searches ------------------------------------------------------------------- */

/* Makes a node of `tokens` under the root, followed by n_newer children that agree with it in no
 * token. */
static void make_siblings(const int32_t *tokens, int n_newer)
{
    x = prefix_create(5000, PLACEMENT_LRU);
    prefix_put(x, 0, &root[0], PREFIX_NONE, tokens, B);
    for (int32_t b = 1; b <= n_newer; b++) {
        int32_t other = 1000 + b;
        prefix_put(x, b, &root[0], PREFIX_NONE, &other, 1);
    }
}

/* A search looks at the newest 64 children for a tail, and at the newest 4096 for a difference. */
TEST(a_search_ends_after_a_number_of_children)
{
    int32_t tokens[B], asked[B];
    int n_same = -1;
    for (int i = 0; i < B; i++)
        tokens[i] = asked[i] = i;
    asked[B - 1] = 77;
    for (int beyond = 0; beyond < 2; beyond++) {
        make_siblings(tokens, 63 + beyond);
        int32_t found = prefix_find_tail(x, &root[0], PREFIX_NONE, asked, B, &n_same);
        assert_int_equal(found, beyond ? PREFIX_NONE : 0);
        assert_int_equal(n_same, beyond ? 0 : B - 1);
        prefix_destroy(x);
        make_siblings(tokens, 4095 + beyond);
        assert_int_equal(prefix_differs_at(x, &root[0], PREFIX_NONE, asked, B),
                         beyond ? 0 : B - 1);
        prefix_destroy(x);
    }
}

/* --- uses and names --------------------------------------------------------------------------- */

/* The last user's hints reach the policy. A block that is not full has the class of ends. */
TEST(a_use_is_noted)
{
    int32_t tokens[B] = {0};
    struct kv_use use = {
        .time = 1000, .reuse_in = 50, .class = placement_class(2, true, false)};
    x = prefix_create(N, PLACEMENT_OURS);
    for (int32_t b = 0; b < 4; b++) {
        tokens[0] = b;
        int n = b < 2 ? B - 1 : B;
        prefix_put(x, b, &root[0], PREFIX_NONE, tokens, n);
        use.reuse_in = b % 2 == 0 ? 50 : 0;
        prefix_leave(x, b, &use);
        const struct placement_item *p = &x->node[b].place;
        assert_true(x->node[b].is_kept && p->slot != 0);
        assert_int_equal(p->used_at, b + 1);
        assert_int_equal(p->used_time, 1000);
        assert_int_equal(p->due_time, b % 2 == 0 ? 1050 : 0);
        assert_int_equal(p->class, placement_class(2, true, n < B));
    }
    assert_int_equal(x->n_kept, 4);
    prefix_destroy(x);
}

static void must_change(int max, int n, const struct kv_change *want)
{
    struct kv_change got[8];
    memset(got, 0, sizeof got);
    assert_int_equal(prefix_changes(x, got, max), n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(got[i].name, want[i].name);
        assert_int_equal(got[i].is_held, want[i].is_held);
    }
}

/* A block whose name has changed is reported twice: without its old name, and with the new one.
 * Both fit into one call. */
TEST(changes_of_names_come_in_pairs)
{
    int32_t tokens[B] = {0};
    x = prefix_create(N, PLACEMENT_LRU);
    for (int32_t b = 0; b < 2; b++) {
        tokens[0] = b;
        prefix_put(x, b, &root[0], PREFIX_NONE, tokens, B);
        prefix_set_name(x, b, 10 + (uint64_t)b);
    }
    must_change(2, 1, (struct kv_change[]){{11, true}});
    must_change(2, 1, (struct kv_change[]){{10, true}});
    must_change(2, 0, NULL);
    for (int max = 2; max <= 5; max++) {
        uint64_t to = 10 * (uint64_t)max, from = max == 2 ? 10 : to - 10;
        prefix_set_name(x, 0, to);
        prefix_set_name(x, 1, to + 1);
        prefix_set_name(x, 1, to + 1);
        struct kv_change all[] = {
            {from + 1, false}, {to + 1, true}, {from, false}, {to, true}};
        must_change(max, max < 4 ? 2 : 4, all);
        if (max < 4)
            must_change(max, 2, all + 2);
        must_change(max, 0, NULL);
        assert_true(prefix_audit(x));
    }
    prefix_set_name(x, 0, 99); /* a name that comes and goes between two calls */
    prefix_set_name(x, 0, 50);
    must_change(2, 0, NULL);
    prefix_forget(x, 0);
    must_change(2, 1, (struct kv_change[]){{50, false}});
    prefix_destroy(x);
}

/* --- the audit -------------------------------------------------------------------------------- */

/* Changes one value and puts it back. The audit must see the change. */
#define BREAK(place, value)                                                                \
    do {                                                                                   \
        __typeof__(place) before = (place);                                                \
        (place) = (value);                                                                 \
        if (prefix_audit(x))                                                               \
            fail_msg("not seen: %s = %s", #place, #value);                                 \
        (place) = before;                                                                  \
        assert_true(prefix_audit(x));                                                      \
    } while (0)

/*   0 --> 1 --> 2 (17 tokens)     blocks 2, 3 and 5 are kept, block 4 has no tokens
 *    \--> 3    5 */
TEST(the_audit_sees_each_damage)
{
    int32_t tokens[B] = {0};
    x = prefix_create(N, PLACEMENT_LRU);
    prefix_put(x, 0, &root[0], PREFIX_NONE, tokens, B);
    prefix_put(x, 1, &root[0], 0, tokens, B);
    prefix_put(x, 2, &root[0], 1, tokens, 17);
    tokens[0] = 1;
    prefix_put(x, 3, &root[0], 0, tokens, B);
    prefix_put(x, 5, &root[0], PREFIX_NONE, tokens, B);
    for (int i = 0; i < 3; i++)
        prefix_leave(x, (int[]){2, 3, 5}[i], &(struct kv_use){0});
    assert_true(prefix_audit(x));
    struct prefix_node *n = x->node;
    BREAK(x->n_kept, 4);
    BREAK(x->n_kept, 2);
    BREAK(x->n_listed, 1);
    BREAK(n[3].id, n[3].id + 2);
    BREAK(n[3].place.id, 7);
    BREAK(n[3].tokens[5], 9);
    BREAK(n[2].tokens[16], 9);
    BREAK(n[0].root.b[0], (uint8_t)(n[0].root.b[0] ^ 1));
    BREAK(n[0].n_tokens, B - 1);
    BREAK(n[1].n_tokens, B - 1);
    BREAK(n[0].first_child, 1);  /* block 3 is not among its parent's children */
    BREAK(n[3].next_sibling, 2); /* block 1 is not */
    BREAK(n[1].prev_sibling, PREFIX_NONE);
    BREAK(x->top, 0);
    BREAK(n[2].first_child, 3); /* a child behind a block that is not full */
    BREAK(n[3].place.slot, 0);  /* a kept leaf that cannot be evicted */
    BREAK(n[2].place.slot, n[3].place.slot);
    BREAK(n[2].place.order, 100); /* the first in the heap is not the first to be evicted */
    for (uint64_t i = 0; i < x->n_buckets; i++)
        if (x->buckets[i] == 3 && n[3].next_in_bucket == PREFIX_NONE)
            BREAK(x->buckets[i], PREFIX_NONE);
    BREAK(x->names[1].name, 9); /* a change that is not listed */
    BREAK(x->names[1].is_listed, true);
    x->names[4] = (struct prefix_name){.name = 9,
                                       .reported = 9}; /* a name without a node */
    assert_false(prefix_audit(x));
    x->names[4] = (struct prefix_name){0};
    x->n_kept++; /* kept, but the block that continues it is in use */
    n[0].is_kept = true;
    assert_false(prefix_audit(x));
    n[0].is_kept = false;
    x->n_kept--;
    n[4].is_kept = true; /* says nothing: the block is no node */
    assert_true(prefix_audit(x));
    prefix_destroy(x);
}
