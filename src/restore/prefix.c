/* prefix.c - see prefix.h. */
#include "restore/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/* Most children compared in search of the longest tail: a copy saves at most 63 tokens. */
enum { MAX_SCAN = 64 };
/* Most children compared to find where a history differs: a few hundred microseconds. */
enum { MAX_DIFFER_SCAN = 4096 };

/* Makes the window of blocks that waiting requests need, as large as the pool. */
static void window_init(struct prefix *x)
{
    uint32_t n_waits = (uint32_t)x->n_nodes, n_places = 2;
    while (n_places < 2 * n_waits)
        n_places *= 2;
    placement_window_init(&x->window, xcalloc(n_places, sizeof *x->window.place), n_places,
                          xcalloc(n_waits, sizeof *x->window.wait), n_waits);
}

struct prefix *prefix_create(int n_blocks, enum placement_kind policy)
{
    struct prefix *x = xcalloc(1, sizeof *x);
    x->n_nodes = n_blocks;
    x->n_buckets = 1;
    while (x->n_buckets < 2 * (uint64_t)n_blocks)
        x->n_buckets *= 2;
    x->top = PREFIX_NONE;
    if (policy == PLACEMENT_OURS) {
        x->learn = xmalloc(sizeof *x->learn);
        placement_learn_init(x->learn);
    }
    window_init(x);
    placement_init(&x->policy, policy, &x->window, x->learn);
    placement_set_slots(&x->leaves, xcalloc((size_t)n_blocks, sizeof *x->leaves.slot),
                        (uint32_t)n_blocks);
    x->node = xcalloc((size_t)n_blocks, sizeof *x->node);
    x->names = xcalloc((size_t)n_blocks, sizeof *x->names);
    x->listed = xcalloc((size_t)n_blocks, sizeof *x->listed);
    x->buckets = xcalloc((size_t)x->n_buckets, sizeof *x->buckets);
    for (uint64_t i = 0; i < x->n_buckets; i++)
        x->buckets[i] = PREFIX_NONE;
    return x;
}

void prefix_destroy(struct prefix *x)
{
    if (x == NULL)
        return;
    free(x->node);
    free(x->names);
    free(x->listed);
    free(x->leaves.slot);
    free(x->learn);
    free(x->window.place);
    free(x->window.wait);
    free(x->buckets);
    free(x);
}

bool prefix_has(const struct prefix *x, int32_t block)
{
    return x->node[block].n_tokens > 0;
}

/* --- finding ---------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct prefix *x, const struct sha256 *root, int32_t parent,
                          const int32_t *tokens)
{
    uint64_t link[3] = {checksum64(tokens, KV_BLOCK_TOKENS * sizeof *tokens),
                        (uint64_t)(uint32_t)parent, 0};
    if (parent == PREFIX_NONE)
        memcpy(&link[2], root->b, sizeof link[2]);
    return &x->buckets[checksum64(link, sizeof link) & (x->n_buckets - 1)];
}

static bool is_child(const struct prefix_node *n, const struct sha256 *root, int32_t parent)
{
    return n->parent == parent &&
           (parent != PREFIX_NONE || memcmp(&n->root, root, sizeof *root) == 0);
}

/* Returns the id of a node of n tokens under `parent` (NULL: the root): a hash of these tokens and
 * all tokens before them; never 0. */
static uint64_t id_of(const struct sha256 *root, const struct prefix_node *parent,
                      const int32_t *tokens, int n)
{
    uint64_t link[2] = {checksum64(tokens, (size_t)n * sizeof *tokens), 0};
    if (parent != NULL)
        link[1] = parent->id;
    else
        memcpy(&link[1], root->b, sizeof link[1]);
    return checksum64(link, sizeof link) | 1;
}

int32_t prefix_find(const struct prefix *x, const struct sha256 *root, int32_t parent,
                    const int32_t *tokens)
{
    int32_t b = *bucket_of(x, root, parent, tokens);
    for (; b != PREFIX_NONE; b = x->node[b].next_in_bucket) {
        if (is_child(&x->node[b], root, parent) &&
            memcmp(x->node[b].tokens, tokens, sizeof x->node[b].tokens) == 0)
            return b;
    }
    return PREFIX_NONE;
}

/* Returns how many of the node's first tokens equal tokens[0, n). */
static int n_common(const struct prefix_node *c, const int32_t *tokens, int n)
{
    int k = 0;
    while (k < n && k < c->n_tokens && c->tokens[k] == tokens[k])
        k++;
    return k;
}

int prefix_continues(const struct prefix *x, int32_t block, const struct sha256 *root,
                     int32_t parent, const int32_t *tokens, int64_t n)
{
    const struct prefix_node *b = &x->node[block];
    bool fits = b->n_tokens < KV_BLOCK_TOKENS && b->n_tokens <= n;
    return fits && is_child(b, root, parent) &&
                   n_common(b, tokens, b->n_tokens) == b->n_tokens
               ? b->n_tokens
               : 0;
}

int32_t prefix_find_tail(const struct prefix *x, const struct sha256 *root, int32_t parent,
                         const int32_t *tokens, int n, int *n_same)
{
    int32_t best = PREFIX_NONE;
    int32_t b = parent == PREFIX_NONE ? x->top : x->node[parent].first_child;
    *n_same = 0;
    for (int i = 0; b != PREFIX_NONE && i < MAX_SCAN; b = x->node[b].next_sibling, i++) {
        const struct prefix_node *c = &x->node[b];
        if (!is_child(c, root, parent))
            continue;
        int k = n_common(c, tokens, n);
        if (k > *n_same) {
            *n_same = k;
            best = b;
        }
    }
    return best;
}

int prefix_differs_at(const struct prefix *x, const struct sha256 *root, int32_t parent,
                      const int32_t *tokens, int n)
{
    int best = 0, differs = -1;
    int32_t b = parent == PREFIX_NONE ? x->top : x->node[parent].first_child;
    for (int i = 0; b != PREFIX_NONE && i < MAX_DIFFER_SCAN;
         b = x->node[b].next_sibling, i++) {
        const struct prefix_node *c = &x->node[b];
        if (!is_child(c, root, parent))
            continue;
        int k = n_common(c, tokens, n);
        if (k < best || (k == best && differs >= 0))
            continue;
        best = k;
        differs = k < n && k < c->n_tokens ? k : -1;
    }
    return differs;
}

/* --- the tree --------------------------------------------------------------------------------- */

static int32_t *first_of(struct prefix *x, int32_t parent)
{
    return parent == PREFIX_NONE ? &x->top : &x->node[parent].first_child;
}

static void link_node(struct prefix *x, int32_t b)
{
    struct prefix_node *n = &x->node[b];
    int32_t *first = first_of(x, n->parent);
    n->prev_sibling = PREFIX_NONE;
    n->next_sibling = *first;
    if (*first != PREFIX_NONE)
        x->node[*first].prev_sibling = b;
    *first = b;
}

static void unlink_node(struct prefix *x, int32_t b)
{
    struct prefix_node *n = &x->node[b];
    if (n->next_sibling != PREFIX_NONE)
        x->node[n->next_sibling].prev_sibling = n->prev_sibling;
    if (n->prev_sibling != PREFIX_NONE)
        x->node[n->prev_sibling].next_sibling = n->next_sibling;
    else
        *first_of(x, n->parent) = n->next_sibling;
}

/* Gives the block a name; 0: none. Lists it for prefix_changes if that is news to the caller. */
static void rename_block(struct prefix *x, int32_t block, uint64_t to)
{
    struct prefix_name *n = &x->names[block];
    n->name = to;
    if (n->is_listed || n->name == n->reported)
        return;
    n->is_listed = true;
    x->listed[x->n_listed++] = block;
}

void prefix_set_name(struct prefix *x, int32_t block, uint64_t to)
{
    CHECK(to != 0 && x->node[block].n_tokens == KV_BLOCK_TOKENS);
    rename_block(x, block, to);
}

int prefix_changes(struct prefix *x, struct kv_change *out, int max)
{
    int n = 0;
    while (x->n_listed > 0 && n + 2 <= max) {
        struct prefix_name *b = &x->names[x->listed[--x->n_listed]];
        b->is_listed = false;
        if (b->name == b->reported)
            continue;
        if (b->reported != 0)
            out[n++] = (struct kv_change){b->reported, false};
        if (b->name != 0)
            out[n++] = (struct kv_change){b->name, true};
        b->reported = b->name;
    }
    return n;
}

void prefix_put(struct prefix *x, int32_t block, const struct sha256 *root, int32_t parent,
                const int32_t *tokens, int n)
{
    struct prefix_node *b = &x->node[block];
    CHECK(n > b->n_tokens && n <= KV_BLOCK_TOKENS && b->place.slot == 0);
    CHECK(parent == PREFIX_NONE || x->node[parent].n_tokens == KV_BLOCK_TOKENS);
    if (b->n_tokens == 0) {
        *b = (struct prefix_node){
            .root = *root, .parent = parent, .first_child = PREFIX_NONE};
        link_node(x, block);
    }
    b->id = id_of(root, parent == PREFIX_NONE ? NULL : &x->node[parent], tokens, n);
    b->place.id = b->id;
    CHECK(is_child(b, root, parent));
    memcpy(b->tokens, tokens, (size_t)n * sizeof *tokens);
    b->n_tokens = n;
    if (n == KV_BLOCK_TOKENS) {
        int32_t *bucket = bucket_of(x, root, parent, tokens);
        b->next_in_bucket = *bucket;
        *bucket = block;
    }
}

void prefix_forget(struct prefix *x, int32_t block)
{
    struct prefix_node *b = &x->node[block];
    CHECK(b->n_tokens > 0 && b->first_child == PREFIX_NONE && b->place.slot == 0);
    if (b->n_tokens == KV_BLOCK_TOKENS) {
        int32_t *at = bucket_of(x, &b->root, b->parent, b->tokens);
        while (*at != block)
            at = &x->node[*at].next_in_bucket;
        *at = b->next_in_bucket;
    }
    unlink_node(x, block);
    b->n_tokens = 0;
    rename_block(x, block, 0);
}

/* --- kept nodes ------------------------------------------------------------------------------- */

static void insert_leaf(struct prefix *x, struct prefix_node *b)
{
    if (b->is_kept && b->first_child == PREFIX_NONE)
        placement_insert(&x->policy, &x->leaves, &b->place);
}

void prefix_leave(struct prefix *x, int32_t block, const struct kv_use *said)
{
    struct prefix_node *b = &x->node[block];
    CHECK(b->n_tokens > 0 && !b->is_kept);
    bool is_partial = b->n_tokens < KV_BLOCK_TOKENS;
    struct placement_use use = {
        .at = ++x->n_uses,
        .time = said->time,
        .class = (uint8_t)(said->class | placement_class(0, false, is_partial)),
        .lot = said->lot,
        .reuse_in = said->reuse_in,
        .value = placement_price_held(&x->price, b->n_tokens, said->share, b->saved)};
    placement_touch(&x->policy, &x->leaves, &b->place, &use);
    b->is_kept = true;
    x->n_kept++;
    insert_leaf(x, b);
}

void prefix_claim(struct prefix *x, int32_t block)
{
    struct prefix_node *b = &x->node[block];
    CHECK(b->is_kept);
    if (b->place.slot != 0)
        placement_remove(&x->leaves, &b->place);
    b->is_kept = false;
    x->n_kept--;
}

int32_t prefix_evict(struct prefix *x)
{
    struct placement_item *victim = placement_victim(&x->leaves);
    CHECK(victim != NULL);
    size_t at = (size_t)((char *)victim - (char *)&x->node[0].place);
    int32_t block = (int32_t)(at / sizeof *x->node), parent = x->node[block].parent;
    placement_evicted(&x->policy, victim, (uint64_t)x->n_nodes);
    prefix_claim(x, block);
    prefix_forget(x, block);
    if (parent != PREFIX_NONE)
        insert_leaf(x, &x->node[parent]);
    x->n_evicted++;
    return block;
}

/* --- waiting requests ------------------------------------------------------------------------- */

/* Calls fn with the id of each full block of the tokens, until fn returns false. After each call
 * the policy reviews the block's place among the evictable nodes, if the block is present. */
static void each_id(struct prefix *x, const struct sha256 *root, const int32_t *tokens,
                    int64_t n_tokens, uint64_t turn,
                    bool (*fn)(struct placement_window *w, uint64_t id, uint64_t turn))
{
    /* stands for the block before: only its id is set, since that block may be absent */
    struct prefix_node behind = {0};
    int32_t b = PREFIX_NONE;
    for (int64_t i = 0; i < n_tokens / KV_BLOCK_TOKENS; i++) {
        const int32_t *t = tokens + i * KV_BLOCK_TOKENS;
        behind.id = id_of(root, i > 0 ? &behind : NULL, t, KV_BLOCK_TOKENS);
        if (!fn(&x->window, behind.id, turn))
            return;
        if (i == 0 || b != PREFIX_NONE)
            b = prefix_find(x, root, b, t);
        if (b != PREFIX_NONE)
            placement_review(&x->policy, &x->leaves, &x->node[b].place);
    }
}

void prefix_expect(struct prefix *x, const struct sha256 *root, const int32_t *tokens,
                   int64_t n_tokens, uint64_t turn)
{
    each_id(x, root, tokens, n_tokens, turn, placement_window_add);
}

void prefix_expect_no_more(struct prefix *x, const struct sha256 *root,
                           const int32_t *tokens, int64_t n_tokens, uint64_t turn)
{
    each_id(x, root, tokens, n_tokens, turn, placement_window_remove);
}

/* --- audit ------------------------------------------------------------------------------------ */

/* Returns whether the block is among the children of its parent, and its siblings' links agree. */
static bool is_linked(const struct prefix *x, int32_t b)
{
    const struct prefix_node *n = &x->node[b];
    int32_t first = n->parent == PREFIX_NONE ? x->top : x->node[n->parent].first_child;
    return n->prev_sibling == PREFIX_NONE ? first == b
                                          : x->node[n->prev_sibling].next_sibling == b;
}

static bool is_in_bucket(const struct prefix *x, int32_t block)
{
    const struct prefix_node *n = &x->node[block];
    int32_t b = *bucket_of(x, &n->root, n->parent, n->tokens);
    while (b != PREFIX_NONE && b != block)
        b = x->node[b].next_in_bucket;
    return b == block;
}

static bool node_audit(const struct prefix *x, int32_t b)
{
    const struct prefix_node *n = &x->node[b];
    const struct prefix_node *parent = n->parent == PREFIX_NONE ? NULL
                                                                : &x->node[n->parent];
    bool is_full = n->n_tokens == KV_BLOCK_TOKENS;
    return (parent == NULL ||
            (parent->n_tokens == KV_BLOCK_TOKENS && (n->is_kept || !parent->is_kept))) &&
           n->id == id_of(&n->root, parent, n->tokens, n->n_tokens) &&
           n->place.id == n->id && is_linked(x, b) &&
           (is_full ? is_in_bucket(x, b) : n->first_child == PREFIX_NONE) &&
           (n->place.slot != 0) == (n->is_kept && n->first_child == PREFIX_NONE) &&
           placement_audit(&x->leaves, &n->place);
}

bool prefix_audit(const struct prefix *x)
{
    int n_kept = 0, n_listed = 0;
    for (int32_t b = 0; b < x->n_nodes; b++) {
        const struct prefix_node *n = &x->node[b];
        const struct prefix_name *name = &x->names[b];
        if (n->n_tokens > 0 && !node_audit(x, b))
            return false;
        if ((n->n_tokens == 0 && name->name != 0) ||
            (name->name != name->reported && !name->is_listed))
            return false;
        n_kept += n->n_tokens > 0 && n->is_kept;
        n_listed += name->is_listed;
    }
    return n_kept == x->n_kept && n_listed == x->n_listed;
}
