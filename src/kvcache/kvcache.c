/* kvcache.c - see kvcache.h.
 *
 * A block's memory holds all layers, one after the other: [n_blocks][n_layers][block_bytes], so
 * that an evicted block frees one stretch.  Free blocks form a stack: the block freed last, whose
 * lines are most likely still in a cache, is used first.
 *
 * Invariants: 1. refs[b] is the number of tables that name b; 2. refs[b] == 0 exactly where b is on
 * the free stack. */
#include "kvcache/kvcache.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

struct kv_pool {
    struct device *device;
    struct kv_pool_opts opts;
    size_t layer_bytes, block_bytes;
    struct buf mem;
    int32_t *free_blocks; /* [n_free], the next to be used last */
    int32_t *refs;        /* [n_blocks] */
    int n_free;
};

static size_t layer_bytes(const struct kv_pool_opts *o)
{
    return kv_block_bytes(o->n_kv, o->d_head, o->dtype);
}

size_t kv_pool_bytes(const struct kv_pool_opts *o)
{
    return layer_bytes(o) * (size_t)o->n_layers * (size_t)o->n_blocks;
}

int kv_pool_create(struct device *d, const struct kv_pool_opts *o, struct kv_pool **out,
                   struct err *err)
{
    CHECK(o->n_layers > 0 && o->n_kv > 0 && o->d_head > 0 && o->n_blocks > 0);
    struct kv_pool *p = xcalloc(1, sizeof *p);
    p->device = d;
    p->opts = *o;
    p->layer_bytes = layer_bytes(o);
    p->block_bytes = p->layer_bytes * (size_t)o->n_layers;
    int rc = buf_alloc(d, MEM_DEVICE, kv_pool_bytes(o), &p->mem, err);
    if (rc != 0) {
        free(p);
        return err_wrap(err, "KV pool of %d blocks", o->n_blocks);
    }
    p->refs = xcalloc((size_t)o->n_blocks, sizeof *p->refs);
    p->free_blocks = xcalloc((size_t)o->n_blocks, sizeof *p->free_blocks);
    p->n_free = o->n_blocks;
    for (int i = 0; i < o->n_blocks; i++)
        p->free_blocks[i] = o->n_blocks - 1 - i;
    *out = p;
    return 0;
}

void kv_pool_destroy(struct kv_pool *p)
{
    if (p == NULL)
        return;
    buf_free(p->device, &p->mem);
    free(p->refs);
    free(p->free_blocks);
    free(p);
}

int kv_pool_free_blocks(const struct kv_pool *p)
{
    return p->n_free;
}

struct kv_layer kv_pool_layer(const struct kv_pool *p, int layer)
{
    CHECK(layer >= 0 && layer < p->opts.n_layers);
    return (struct kv_layer){
        .blocks = (uint8_t *)p->mem.ptr + (size_t)layer * p->layer_bytes,
        .block_stride = p->block_bytes,
        .dtype = p->opts.dtype,
        .n_kv = p->opts.n_kv,
        .d_head = p->opts.d_head,
    };
}

static int32_t block_take(struct kv_pool *p)
{
    CHECK(p->n_free > 0);
    int32_t b = p->free_blocks[--p->n_free];
    CHECK(p->refs[b] == 0);
    p->refs[b] = 1;
    return b;
}

static void block_drop(struct kv_pool *p, int32_t b)
{
    CHECK(b >= 0 && b < p->opts.n_blocks && p->refs[b] > 0);
    if (--p->refs[b] == 0)
        p->free_blocks[p->n_free++] = b;
}

static void table_grow(struct kv_table *t, int n_blocks)
{
    if (n_blocks <= t->cap_blocks)
        return;
    int cap = t->cap_blocks * 2 > n_blocks ? t->cap_blocks * 2 : n_blocks;
    t->blocks = xrealloc(t->blocks, (size_t)cap * sizeof *t->blocks);
    t->cap_blocks = cap;
}

int kv_table_reserve(struct kv_pool *p, struct kv_table *t, int64_t n_tokens,
                     struct err *err)
{
    CHECK(n_tokens >= 0);
    int64_t want = (n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    if (want - t->n_blocks > p->n_free)
        return err_set(err, ERR_LIMIT,
                       "KV cache: %lld tokens need %lld more blocks, %d of %d are free",
                       (long long)n_tokens, (long long)(want - t->n_blocks), p->n_free,
                       p->opts.n_blocks);
    table_grow(t, (int)want);
    while (t->n_blocks < want)
        t->blocks[t->n_blocks++] = block_take(p);
    return 0;
}

void kv_table_share(struct kv_pool *p, struct kv_table *t, const struct kv_table *from,
                    int n_blocks)
{
    CHECK(t->n_blocks == 0 && n_blocks >= 0 && n_blocks <= from->n_blocks);
    table_grow(t, n_blocks);
    for (int i = 0; i < n_blocks; i++) {
        t->blocks[i] = from->blocks[i];
        p->refs[t->blocks[i]]++;
    }
    t->n_blocks = n_blocks;
}

void kv_table_cut(struct kv_pool *p, struct kv_table *t, int n_blocks)
{
    CHECK(n_blocks >= 0);
    while (t->n_blocks > n_blocks)
        block_drop(p, t->blocks[--t->n_blocks]);
}

void kv_table_free(struct kv_pool *p, struct kv_table *t)
{
    kv_table_cut(p, t, 0);
    free(t->blocks);
    *t = (struct kv_table){0};
}
