/* kvcache.h - the paged KV cache: a pool of blocks of 64 tokens, block tables, and reuse of
 * prefixes.
 *
 * A block holds K and V of 64 consecutive positions for every layer. Sequences name their blocks
 * in a block table, position p in entry p / 64. Blocks are reference-counted, so that sequences
 * with equal prefixes share them. A shared block is never written: only full blocks are shared,
 * and a sequence that diverges inside a block gets a copy of it (kv_table_copy_tail).
 *
 *         take                      the last table drops it
 *   FREE ------> USED (refs >= 1) --------------+--- not known --------------> FREE
 *     ^            ^                            |
 *     |            | take, by its tokens        '--- known (kv_table_keep) --.
 *     |            |                                                         |
 *     '--------- KEPT (refs == 0) <------------------------------------------'
 *      evict, in the order of store/placement.h
 *
 * A computed block is *known* by the tokens before and in it. Known blocks stay when their last
 * sequence ends, until a block is wanted and none is free.
 *
 * In a recurrent layer a sequence has one state instead of blocks: a table that has blocks also
 * has a place among the pool's states. Places that no table needs keep states that stand at the
 * end of known blocks. A sequence continues known blocks up to such a state, with a copy of it.
 *
 * The pool's memory is reserved at creation and never grows. Not thread-safe: it belongs to the
 * engine's thread. Other threads may fill the blocks' contents. */
#ifndef RESTORE_KVCACHE_H
#define RESTORE_KVCACHE_H

#include "base/hash.h"
#include "base/layer_set.h"
#include "store/placement.h"
#include "store/placement_price.h"
#include "tensor/ops.h"
#include "tensor/tensor.h"

struct kv_pool;
struct kv_table;

enum { KV_POOL_CLASSES = 4 };

/* For a pool of numbers: another module owns the blocks' memory (places.h). Class c has n[c]
 * numbers, behind the numbers of the classes before it. */
struct kv_pool_numbers {
    int n[KV_POOL_CLASSES]; /* their sum is n_blocks */
    /* Returns [KV_POOL_CLASSES]: the classes to try for the next block of t, in this order. */
    const int *(*order)(void *arg, const struct kv_table *t);
    void *arg;
    int n_tails; /* places for unfinished blocks; at most this many tables hold blocks */
};

struct kv_pool_opts {
    int n_layers, n_kv, d_head;
    /* K/V heads of the layers in `local`, and their width; 0: those of the other layers */
    struct layer_set local;
    int local_n_kv, local_d_head;
    enum dtype dtype;
    int n_blocks;
    const struct kv_pool_numbers *numbers; /* NULL: the pool has memory for its blocks */
    /* The layers that have states, and the bytes of one; at most n_states tables hold blocks. */
    struct layer_set recurrent;
    size_t state_bytes; /* with the room behind it; 0: no layer is recurrent */
    int n_states;
    /* Blocks stay known by their tokens. If false, every block is free when it is dropped. */
    bool keep;
    enum placement_kind policy; /* which known block without a user is evicted first */
};

/* Returns the bytes of a pool with memory for its blocks, on all stages together. */
size_t kv_pool_bytes(const struct kv_pool_opts *o);
int kv_pool_create(struct device *d, const struct kv_pool_opts *o, struct kv_pool **out,
                   struct err *err);
void kv_pool_destroy(struct kv_pool *p);
/* Returns how many blocks can be taken: free ones, and kept ones. */
int kv_pool_free_blocks(const struct kv_pool *p);
int kv_pool_n_blocks(const struct kv_pool *p);
/* Returns how many blocks are kept: known, but without a user. */
int kv_pool_kept_blocks(const struct kv_pool *p);
uint64_t kv_pool_n_evicted(const struct kv_pool *p);
/* Returns whether each block is in exactly one state (used, kept, free), and all counts agree.
 * For tests: takes O(blocks). */
bool kv_pool_audit(const struct kv_pool *p);
/* Returns the number of noted pairs: a waiting request, and a block that it needs. */
uint32_t kv_pool_n_expected(const struct kv_pool *p);

/* Returns the views [n_layers] that operations take, each on its layer's stage. Valid as long as
 * the pool. NULL for a pool of numbers. */
const struct kv_layer *kv_pool_layers(const struct kv_pool *p);
struct kv_layer kv_pool_layer(const struct kv_pool *p, int layer);

/* A sequence's hints about the next use of the blocks that it leaves, for the policy `ours`.
 * They correspond to store_use for chunks. All 0: no hints. */
struct kv_use {
    /* Present time, in units of 1/KV_TIME_PER_S seconds since any fixed moment. */
    uint32_t time;
    /* A client's guess of the time until the next use, in the same unit; 0: no guess. */
    uint32_t reuse_in;
    uint8_t class; /* placement_class(); the pool adds whether a block is full */
    uint64_t lot;  /* a number that all blocks of one request share */
    /* Tokens that are computed for each token if the block is lost; 0 means 1. */
    double share;
};
enum { KV_TIME_PER_S = 16 };

/* The blocks of a sequence. */
struct kv_table {
    int32_t *blocks; /* owned; grows with kv_table_reserve */
    int n_blocks, cap_blocks;
    int n_known; /* the first n_known blocks are full, and known by their tokens */
    int n_saved; /* the first n_saved blocks are marked as saved */
    /* 1 + the table's place for an unfinished block, in a pool of numbers, or for its states
     * (kv_table_state); 0: it has no place. */
    int tail;
    int n_named; /* the first n_named blocks have names (kv_table_name) */
    /* Tokens behind which the newest saved snapshot of the states stands, 0: none. The caller sets
     * it. A kept state hands it on. */
    int64_t snapshot;
    /* hints for blocks that the sequence releases from now on; the caller sets it */
    struct kv_use use;
};

/* Reserves room for n_blocks entries, so that no memory is needed later. Returns false if there is
 * no memory. */
bool kv_table_try_prepare(struct kv_table *t, int n_blocks);
/* Makes room for positions [0, n_tokens): takes blocks as needed. Returns ERR_LIMIT, with the
 * table unchanged, if the pool has too few. */
int kv_table_reserve(struct kv_pool *p, struct kv_table *t, int64_t n_tokens,
                     struct err *err);
/* Drops every block from entry n_blocks on. */
void kv_table_cut(struct kv_pool *p, struct kv_table *t, int n_blocks);
void kv_table_free(struct kv_pool *p, struct kv_table *t);
/* Returns the number of blocks that no other table shares. Dropping the table would free them. */
int kv_table_own_blocks(const struct kv_pool *p, const struct kv_table *t);

/* Returns the number of t's state in recurrent layers (ops.h, ragged.states). t has blocks. */
static inline int32_t kv_table_state(const struct kv_table *t)
{
    return t->tail - 1;
}

/* --- reuse ----------------------------------------------------------------------------------
 *
 * root: identifies everything besides the tokens that a sequence's state depends on (model, salt).
 * Equal tokens under another root are another state. A sequence that is to be saved continues only
 * saved blocks (saved_only); otherwise the chunks of the unsaved blocks would be missing from its
 * chain for ever. In a pool that does not keep, all these functions do nothing. */

/* Returns how many full blocks of tokens[0..n_tokens) can be taken. These are the known ones; if
 * layers are recurrent, only those before the last kept state. *n_unused of them have no user. */
int kv_pool_find(const struct kv_pool *p, const struct sha256 *root, const int32_t *tokens,
                 int64_t n_tokens, bool saved_only, int *n_unused);
/* t, which is empty, takes the known full blocks of tokens[0..n_tokens). Returns how many. */
int kv_table_take(struct kv_pool *p, struct kv_table *t, const struct sha256 *root,
                  const int32_t *tokens, int64_t n_tokens, bool saved_only);
/* For recurrent layers: finds the longest kept state of tokens[0..n_tokens), and cuts t's blocks,
 * all of which are known, to the full ones before its end. Returns its end, and 0 if there is none.
 * *place is for kv_table_take_state, before the pool changes. */
int64_t kv_table_find_state(struct kv_pool *p, struct kv_table *t,
                            const struct sha256 *root, const int32_t *tokens,
                            int64_t n_tokens, int *place);
/* Gives t copies of that state and of the block in which it ends. ERR_LIMIT: there is no room. */
int kv_table_take_state(struct kv_pool *p, struct kv_table *t, struct stream *s,
                        int64_t end, int place);
/* Keeps a copy of t's state for the last of t's known blocks, at whose end it stands, if there is
 * a place that no table has. */
int kv_table_keep_state(struct kv_pool *p, const struct kv_table *t, struct stream *s);
/* Keeps t's state, which has seen n_done tokens, for the block that is known by the last of them.
 * Does nothing if there is no such block, or it has a state. The caller cuts t to nothing next. */
void kv_table_leave_state(struct kv_pool *p, struct kv_table *t, int64_t n_done);
/* Finds the known unfinished block that agrees longest with the tokens behind t's blocks, all of
 * which are known. Sets *block_tokens to its *n_block tokens, valid until the pool changes.
 * Returns how many agree; 0: there is no such block. */
int kv_table_find_tail(const struct kv_pool *p, const struct kv_table *t,
                       const struct sha256 *root, const int32_t *tokens, int64_t n_tokens,
                       const int32_t **block_tokens, int *n_block);
/* Adds a copy of a known block to t. All blocks of t are known, and hold the beginning of the
 * tokens. The copied block is the one that agrees longest with the tokens behind this beginning;
 * *n_copied is the number of tokens that agree. *n_copied is 0 if there is no such block, no room
 * for a copy, or the pool has only numbers. The caller overwrites the rest of the copy. */
int kv_table_copy_tail(struct kv_pool *p, struct kv_table *t, struct stream *s,
                       const struct sha256 *root, const int32_t *tokens, int64_t n_tokens,
                       int *n_copied);
/* Returns the position at which the tokens begin to differ from the nearest known history; -1: no
 * history is known, or the nearest one ends before it differs. The known blocks of t are the
 * beginning of the tokens. */
int kv_table_differs_at(const struct kv_pool *p, const struct kv_table *t,
                        const struct sha256 *root, const int32_t *tokens, int64_t n_tokens);
/* Makes t's blocks known: positions [0, n_done) are computed from these tokens. The last block
 * is known for as many tokens as it has. If a block with the same state is known already, t
 * shares that one from now on and drops its own. */
void kv_table_keep(struct kv_pool *p, struct kv_table *t, const struct sha256 *root,
                   const int32_t *tokens, int64_t n_done);
/* Marks those of t's first n_blocks blocks that are known as saved: their state is in the store, or
 * on its way there. */
void kv_table_mark_saved(struct kv_pool *p, struct kv_table *t, int n_blocks);
/* Gives t's next known block without a name (entry n_named) its name: a number other than 0 by
 * which the caller identifies the block's state. */
void kv_table_name(struct kv_pool *p, struct kv_table *t, uint64_t name);
/* A change of names: from now on the pool holds a block with this name, or holds none any more. */
struct kv_change {
    uint64_t name;
    bool is_held;
};
/* Reports up to max (at least two) changes since the last call, each once. Returns how many. If
 * two blocks have the same name, it is reported as added twice and as removed twice. */
int kv_pool_changes(struct kv_pool *p, struct kv_change *out, int max);
/* Call after saved state was erased: no known block counts as saved any more. */
void kv_pool_unmark_saved(struct kv_pool *p);
/* Sets the prices that determine the value of held blocks from now on. */
void kv_pool_set_price(struct kv_pool *p, const struct placement_price *price);
/* Sets the weight of shared need: each time that the number of waiting requests that need a block
 * doubles, the block counts as needed `turns` turns earlier (placement_window.h). */
void kv_pool_set_step(struct kv_pool *p, uint64_t turns);
/* Notes that a waiting request begins with these tokens. Requests of earlier turns are served
 * before it. kv_pool_expect_no_more withdraws the note. Policies that look ahead evict the
 * request's blocks after all blocks that no request needs. */
void kv_pool_expect(struct kv_pool *p, const struct sha256 *root, const int32_t *tokens,
                    int64_t n_tokens, uint64_t turn);
void kv_pool_expect_no_more(struct kv_pool *p, const struct sha256 *root,
                            const int32_t *tokens, int64_t n_tokens, uint64_t turn);

#endif
