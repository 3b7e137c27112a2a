/* kvcache.h - the paged KV cache: a pool of blocks of 64 tokens, block tables, and
 * reuse of prefixes.
 *
 * A block holds K and V of 64 consecutive positions for every layer; sequences name their blocks in
 * a block table, position p in entry p / 64.  Blocks are reference-counted, so that sequences with
 * equal prefixes share them; a shared block is never written: full blocks only are shared, and a
 * sequence that diverges inside a block gets a copy of it (kv_table_copy_tail).
 *
 *        take                      drop, nobody else has it
 *   FREE ----> USED (refs >= 1) ---------------------------> FREE
 *     ^         |    ^                                          known (kv_table_keep):
 *     |         v    | take, by its tokens                      |
 *     +------- KEPT (refs == 0) <-------------------------------+
 *      evicted: in the order of policy/placement.h
 *
 * What a sequence has computed is *known* by the tokens before and in it.  Known blocks stay when
 * their last sequence ends, until a block is wanted and none is free.
 *
 * The pool's memory is reserved at creation and never grows.  Not thread-safe: it belongs to the
 * engine's thread; the blocks' contents may be filled by others. */
#ifndef KVCACHE_KVCACHE_H
#define KVCACHE_KVCACHE_H

#include "base/hash.h"
#include "policy/placement.h"
#include "policy/placement_price.h"
#include "tensor/ops.h"
#include "tensor/tensor.h"

struct kv_pool;
struct kv_table;

enum { KV_POOL_CLASSES = 5 };

/* For a pool of numbers: the blocks themselves are another's (places.h).  Class c has the n[c]
 * numbers behind those of the classes before it. */
struct kv_pool_numbers {
    int n[KV_POOL_CLASSES]; /* their sum is n_blocks */
    /* Returns [KV_POOL_CLASSES]: where the next block of t is looked for, first things first. */
    const int *(*order)(void *arg, const struct kv_table *t);
    void *arg;
    int n_tails; /* places for unfinished blocks; no more tables than that hold blocks */
};

struct kv_pool_opts {
    int n_layers, n_kv, d_head;
    enum dtype dtype;
    int n_blocks;
    const struct kv_pool_numbers *numbers; /* NULL: the pool has memory for its blocks */
    bool
        keep; /* blocks are known by their tokens; else every block is free when it is dropped */
    enum placement_kind policy; /* which of the known blocks that nobody uses goes first */
};

int kv_pool_create(struct device *d, const struct kv_pool_opts *o, struct kv_pool **out,
                   struct err *err);
void kv_pool_destroy(struct kv_pool *p);
/* Blocks that can be had: free, or kept for nobody. */
int kv_pool_free_blocks(const struct kv_pool *p);
int kv_pool_n_blocks(const struct kv_pool *p);
int kv_pool_kept_blocks(const struct kv_pool *p); /* kept for nobody */
uint64_t kv_pool_n_evicted(const struct kv_pool *p);

/* The views [n_layers] that operations take of the layers, each on its stage. Valid as long as
 * the pool. NULL of a pool of numbers. */
const struct kv_layer *kv_pool_layers(const struct kv_pool *p);
struct kv_layer kv_pool_layer(const struct kv_pool *p, int layer);

/* What a sequence says of the next use of the blocks that it leaves: as store_use does of
 * chunks, for the policy `ours`.  All 0: nothing. */
struct kv_use {
    uint32_t time; /* now, in 1/KV_TIME_PER_S seconds since any moment */
    uint32_t
        reuse_in;  /* likewise: a client's guess of the time until the next use; 0: none */
    uint8_t class; /* placement_class(); whether a block is full is added */
    uint64_t lot;  /* a number that all blocks of one request share */
};
enum { KV_TIME_PER_S = 16 };

/* A sequence's blocks. */
struct kv_table {
    int32_t *blocks; /* owned; grows with kv_table_reserve */
    int n_blocks, cap_blocks;
    int n_known; /* of them: full, and known by their tokens */
    int n_saved; /* of those: said to be saved */
    int tail;    /* of a pool of numbers: 1 + its place for an unfinished block; 0: none */
    int n_named; /* of the known ones: their names were given */
    struct kv_use use; /* of blocks that are left from now on; the caller sets it */
};

/* Room for that many blocks without asking for memory later. False where there is no memory. */
bool kv_table_try_prepare(struct kv_table *t, int n_blocks);
/* Makes room for positions [0, n_tokens): takes blocks as needed; ERR_LIMIT, and the table
 * unchanged, where the pool has too few. */
int kv_table_reserve(struct kv_pool *p, struct kv_table *t, int64_t n_tokens,
                     struct err *err);
/* Drops every block from entry n_blocks on. */
void kv_table_cut(struct kv_pool *p, struct kv_table *t, int n_blocks);
void kv_table_free(struct kv_pool *p, struct kv_table *t);
/* Blocks that nobody else shares: what dropping the table would make available. */
int kv_table_own_blocks(const struct kv_pool *p, const struct kv_table *t);

/* --- reuse ----------------------------------------------------------------------------------
 *
 * root: what a sequence's state depends on besides its tokens (model, salt): equal tokens under
 * another root are another state.  Whoever is to be saved continues saved blocks only
 * (saved_only), or what is before would be missing for ever.  All this does nothing
 * in a pool that does not keep. */

/* How many full blocks of tokens[0..n_tokens) are known; of those, *n_unused belong to nobody. */
int kv_pool_find(const struct kv_pool *p, const struct sha256 *root, const int32_t *tokens,
                 int64_t n_tokens, bool saved_only, int *n_unused);
/* t (empty) takes those blocks; returns how many. */
int kv_table_take(struct kv_pool *p, struct kv_table *t, const struct sha256 *root,
                  const int32_t *tokens, int64_t n_tokens, bool saved_only);
/* t's blocks are all known and are tokens' beginning.  Adds a copy of the known block
 * that agrees with the tokens after them the longest, *n_copied of them (0: there is
 * none, or no block for a copy can be had, or the pool has numbers alone).  The rest of
 * the copy is to be overwritten. */
int kv_table_copy_tail(struct kv_pool *p, struct kv_table *t, struct stream *s,
                       const struct sha256 *root, const int32_t *tokens, int64_t n_tokens,
                       int *n_copied);
/* The position at which tokens leave the known history that is nearest to them; -1: none is
 * known, or it ends first.  t's known blocks are the tokens' beginning. */
int kv_table_differs_at(const struct kv_pool *p, const struct kv_table *t,
                        const struct sha256 *root, const int32_t *tokens, int64_t n_tokens);
/* Positions [0, n_done) of t are computed, from these tokens: makes its blocks known, the last
 * one for as many tokens as it has.  Where a block with the same state is known already, t
 * shares that one from now on and drops its own. */
void kv_table_keep(struct kv_pool *p, struct kv_table *t, const struct sha256 *root,
                   const int32_t *tokens, int64_t n_done);
/* The first n_blocks of t are saved, or on their way: those that are known are marked as such. */
void kv_table_mark_saved(struct kv_pool *p, struct kv_table *t, int n_blocks);
/* The caller knows the state of t's next known block without a name (entry n_named)
 * by this one, not 0. */
void kv_table_name(struct kv_pool *p, struct kv_table *t, uint64_t name);
/* A name that the pool holds from now on, or no longer. */
struct kv_change {
    uint64_t name;
    bool is_held;
};
/* Reports up to max (at least two) changes since the last call, each once; returns how many.
 * Two blocks may have one name: then it comes twice and goes twice. */
int kv_pool_changes(struct kv_pool *p, struct kv_change *out, int max);
/* Saved state was erased: no known block counts as saved any more. */
void kv_pool_unmark_saved(struct kv_pool *p);
/* What it is worth to hold a block, from now on. */
void kv_pool_set_price(struct kv_pool *p, const struct placement_price *price);
/* An item that twice as many waiting requests need counts as needed so many turns earlier
 * (placement_window.h). */
void kv_pool_set_step(struct kv_pool *p, uint64_t turns);
/* A request that waits begins with these tokens; it is served before those of a later turn.  It
 * waits no longer.  Policies that look ahead evict its blocks after those that no request needs. */
void kv_pool_expect(struct kv_pool *p, const struct sha256 *root, const int32_t *tokens,
                    int64_t n_tokens, uint64_t turn);
void kv_pool_expect_no_more(struct kv_pool *p, const struct sha256 *root,
                            const int32_t *tokens, int64_t n_tokens, uint64_t turn);

#endif
