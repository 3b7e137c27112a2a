/* prefix.c - see prefix.h. */
#include "kvcache/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/* Children that are compared in search of the longest tail: a copy saves at most 63 tokens. */
enum { MAX_SCAN = 64 };

struct prefix *prefix_create(int n_blocks)
{
    struct prefix *x = xcalloc(1, sizeof *x);
    x->n_nodes = n_blocks;
    x->n_buckets = 1;
    while (x->n_buckets < 2 * (uint64_t)n_blocks)
        x->n_buckets *= 2;
    x->top = PREFIX_NONE;
    placement_set_slots(&x->unused, xcalloc((size_t)n_blocks, sizeof *x->unused.slot),
                        (uint32_t)n_blocks);
    x->node = xcalloc((size_t)n_blocks, sizeof *x->node);
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
    free(x->unused.slot);
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

int32_t prefix_find_tail(const struct prefix *x, const struct sha256 *root, int32_t parent,
                         const int32_t *tokens, int n, int *n_same)
{
    int32_t best = PREFIX_NONE;
    int32_t b = parent == PREFIX_NONE ? x->top : x->node[parent].first_child;
    *n_same = 0;
    for (int i = 0; b != PREFIX_NONE && i < MAX_SCAN; b = x->node[b].next_sibling, i++) {
        const struct prefix_node *c = &x->node[b];
        int k = 0;
        if (!is_child(c, root, parent))
            continue;
        while (k < n && k < c->n_tokens && c->tokens[k] == tokens[k])
            k++;
        if (k > *n_same) {
            *n_same = k;
            best = b;
        }
    }
    return best;
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
}

/* --- unused nodes ----------------------------------------------------------------------------- */

/* A sequence leaves its blocks from the last to the first, so what continues a block goes before
 * it. */
void prefix_leave(struct prefix *x, int32_t block)
{
    struct prefix_node *b = &x->node[block];
    CHECK(b->n_tokens > 0);
    placement_touch(&x->unused, &b->place, ++x->n_left);
    placement_insert(&x->unused, &b->place);
}

void prefix_claim(struct prefix *x, int32_t block)
{
    placement_remove(&x->unused, &x->node[block].place);
}

int32_t prefix_evict(struct prefix *x)
{
    struct placement_item *victim = placement_victim(&x->unused);
    CHECK(victim != NULL);
    size_t at = (size_t)((char *)victim - (char *)&x->node[0].place);
    int32_t block = (int32_t)(at / sizeof *x->node);
    prefix_claim(x, block);
    prefix_forget(x, block);
    x->n_evicted++;
    return block;
}
