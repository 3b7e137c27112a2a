/* prefix.h - which block holds which tokens: a tree of blocks; private to src/restore.
 *
 * A node is a block and has the block's number. Its parent holds the 64 tokens before; nodes
 * without a parent carry their root. Full nodes are found by a hash of parent and tokens, which
 * are then compared. Partial nodes are found in their parent's list of children.
 *
 *     root --> [64 tokens] --> [64 tokens] --> [17 tokens]
 *                        \---> [64 tokens]
 *
 * A node whose block has no user is *kept*. A user of a block also uses its parent, so the
 * children of a kept node are kept, too. Kept nodes without children may be evicted;
 * store/placement.h chooses among them.
 *
 * Each node has an id, a hash of all tokens up to its last. So waiting requests can name the
 * nodes that they need, present or not. No memory is allocated after creation.
 *
 * A full node may have a *name*, the number by which another module knows the same state. Each
 * name that is added or removed with its node is reported once (prefix_changes). */
#ifndef RESTORE_PREFIX_H
#define RESTORE_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "restore/kvcache.h"
#include "store/placement.h"
#include "tensor/ops.h"

enum { PREFIX_NONE = -1 };

struct prefix_node {
    struct sha256 root;
    uint64_t id;
    int32_t parent, first_child, next_sibling, prev_sibling;
    struct placement_item place; /* the node's place among the nodes that may be evicted */
    int32_t next_in_bucket;
    int n_tokens;        /* number of the block's tokens; 0: the block is no node */
    bool saved, is_kept; /* kept: no sequence uses the block */
    int32_t tokens[KV_BLOCK_TOKENS];
};

/* A block's name, and the name that prefix_changes has last reported for the block. 0: no name. */
struct prefix_name {
    uint64_t name, reported;
    bool is_listed; /* the block is in prefix.listed */
};

struct prefix {
    int n_nodes;
    int32_t top; /* head of the list of nodes without a parent */
    struct placement policy;
    struct placement_part leaves;   /* kept nodes without children */
    struct placement_learn *learn;  /* for the policy `ours`; else NULL */
    struct placement_window window; /* blocks that waiting requests need */
    struct placement_price price;
    int n_kept;
    uint64_t n_uses; /* how many times the last user of a block has left it */
    int32_t *buckets;
    uint64_t n_buckets, n_evicted; /* n_buckets is a power of two */
    struct prefix_node *node;      /* [n_nodes] */
    struct prefix_name *names;     /* [n_nodes] */
    int32_t *listed; /* [n_nodes], n_listed in use: blocks whose names have changed */
    int n_listed;
};

struct prefix *prefix_create(int n_blocks, enum placement_kind policy);
void prefix_destroy(struct prefix *x); /* NULL is allowed */

bool prefix_has(const struct prefix *x, int32_t block);
/* Returns the full node of tokens[64] under parent, or PREFIX_NONE. */
int32_t prefix_find(const struct prefix *x, const struct sha256 *root, int32_t parent,
                    const int32_t *tokens);
/* Compares the n tokens with the child of parent that agrees with them longest, of the newest 4,096
 * children. Returns the index of the first token that differs; -1: there is no child, or that child
 * ends first. */
int prefix_differs_at(const struct prefix *x, const struct sha256 *root, int32_t parent,
                      const int32_t *tokens, int n);
/* Returns how many tokens the block has if it is an unfinished child of parent and tokens[n] begin
 * with all of them; else 0. */
int prefix_continues(const struct prefix *x, int32_t block, const struct sha256 *root,
                     int32_t parent, const int32_t *tokens, int64_t n);
/* Returns the child of parent that agrees longest with the n tokens, in *n_same > 0 tokens, or
 * PREFIX_NONE. It looks at the newest 64 children alone: a miss costs less than a block. */
int32_t prefix_find_tail(const struct prefix *x, const struct sha256 *root, int32_t parent,
                         const int32_t *tokens, int n, int *n_same);
/* Makes the block a node, or extends its tokens. */
void prefix_put(struct prefix *x, int32_t block, const struct sha256 *root, int32_t parent,
                const int32_t *tokens, int n);
/* Notes that the last user has left the block. */
void prefix_leave(struct prefix *x, int32_t block, const struct kv_use *use);
/* Notes that a sequence uses a kept block again. */
void prefix_claim(struct prefix *x, int32_t block);
/* Notes that a waiting request of the given turn (placement_window.h) begins with these tokens;
 * prefix_expect_no_more withdraws the note. */
void prefix_expect(struct prefix *x, const struct sha256 *root, const int32_t *tokens,
                   int64_t n_tokens, uint64_t turn);
void prefix_expect_no_more(struct prefix *x, const struct sha256 *root,
                           const int32_t *tokens, int64_t n_tokens, uint64_t turn);
/* Forgets the kept leaf that store/placement.h chooses, and returns its block, which then belongs
 * to the caller. There must be a kept node. */
int32_t prefix_evict(struct prefix *x);
/* Forgets a leaf that is in use. */
void prefix_forget(struct prefix *x, int32_t block);
/* Gives a full node its name, a number other than 0. The name ends with the node. */
void prefix_set_name(struct prefix *x, int32_t block, uint64_t name);
/* Reports up to max changes of names (at least two). Returns how many. */
int prefix_changes(struct prefix *x, struct kv_change *out, int max);

/* Returns whether the tree, its counts and the kept nodes agree. For tests: takes O(nodes). */
bool prefix_audit(const struct prefix *x);

#endif
