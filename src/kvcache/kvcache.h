/* kvcache.h - the paged KV cache: a pool of blocks of 64 tokens, and block tables.
 *
 * A block holds K and V of 64 consecutive positions for every layer; sequences name their blocks in
 * a block table, position p in entry p / 64.  Blocks are reference-counted, so that sequences with
 * equal prefixes can share them; a shared block is never written (full blocks only are shared).
 *
 * The pool's memory is reserved at creation and never grows.  Not thread-safe: it belongs to the
 * engine's thread; the blocks' contents may be filled by others. */
#ifndef KVCACHE_KVCACHE_H
#define KVCACHE_KVCACHE_H

#include "tensor/ops.h"
#include "tensor/tensor.h"

struct kv_pool;

struct kv_pool_opts {
    int n_layers, n_kv, d_head;
    enum dtype dtype;
    int n_blocks;
};

int kv_pool_create(struct device *d, const struct kv_pool_opts *o, struct kv_pool **out,
                   struct err *err);
void kv_pool_destroy(struct kv_pool *p);
size_t kv_pool_bytes(const struct kv_pool_opts *o);
int kv_pool_free_blocks(const struct kv_pool *p);

/* The view of one layer that operations take. Valid as long as the pool. */
struct kv_layer kv_pool_layer(const struct kv_pool *p, int layer);

/* A sequence's blocks. */
struct kv_table {
    int32_t *blocks; /* owned; grows with kv_table_reserve */
    int n_blocks, cap_blocks;
};

/* Makes room for positions [0, n_tokens): allocates blocks as needed; ERR_LIMIT, and the table
 * unchanged, where the pool has too few. */
int kv_table_reserve(struct kv_pool *p, struct kv_table *t, int64_t n_tokens,
                     struct err *err);
/* t (empty) shares the first n_blocks blocks of `from`. */
void kv_table_share(struct kv_pool *p, struct kv_table *t, const struct kv_table *from,
                    int n_blocks);
/* Drops every block from entry n_blocks on, returning those that nobody else shares. */
void kv_table_cut(struct kv_pool *p, struct kv_table *t, int n_blocks);
void kv_table_free(struct kv_pool *p, struct kv_table *t);

#endif
