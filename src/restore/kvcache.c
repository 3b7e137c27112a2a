/* kvcache.c - see kvcache.h.
 *
 * A block's memory holds all layers that have blocks, one after the other:
 * [n_blocks][n_layers][block_bytes], so that an evicted block frees one stretch.  The states of
 * recurrent layers lie by layer: [n_layers][n_states][state_bytes]. Each stage of a device group
 * has its own layers. Free blocks form a stack: the block freed last, whose lines are most likely
 * still in a cache, is used first. A pool of numbers has a stack for each class.
 *
 * Invariants:
 * 1. refs[b] is the number of tables that name b. If it is 0, b is either on the free stack or,
 *    if it is known, among the kept nodes of the prefix tree.
 * 2. The known blocks of a table are a path of the tree from its root.
 * 3. A place for states is free, a table's, or that of one known block. A table that needs one
 *    takes it from the block whose state was used longest ago. */
#include "restore/kvcache.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "restore/prefix.h"
#include "tensor/group.h"

struct kv_pool {
    struct device *device;
    struct kv_pool_opts opts;
    struct stage_blocks {
        int first, n_layers;
        size_t block_bytes;
        struct buf mem;
    } stage[MAX_STAGES];
    struct buf states;       /* of all recurrent layers, on the one stage */
    struct kv_layer *layers; /* [n_layers] */
    struct kv_pool_numbers numbers;
    bool has_memory;
    /* Stack of a class's free blocks; the last one is used next. */
    struct free_stack {
        int32_t *blocks;
        int first, n;
    } free[KV_POOL_CLASSES];
    int32_t *free_blocks; /* [n_blocks] memory of the stacks */
    int32_t *refs;        /* [n_blocks] */
    int n_free;           /* free blocks of all classes */
    int *free_tails, n_free_tails;
    /* [n_states] States that no table has. Each stands at the end of a known block. NULL: none is
     * kept. */
    struct kept_state {
        int32_t block; /* PREFIX_NONE: the place is free, or a table's */
        int64_t snapshot;
        uint64_t last_use;
    } * kept;
    uint64_t n_state_uses;
    struct prefix *prefix; /* NULL: nothing is kept */
};

static bool is_local(const struct kv_pool_opts *o, int layer)
{
    return o->local_n_kv > 0 && layer_set_has(&o->local, layer);
}

/* Returns how many of the layers before `layer` are recurrent. */
static int n_recurrent(const struct kv_pool_opts *o, int layer)
{
    int n = 0;
    for (int l = 0; o->state_bytes > 0 && l < layer; l++)
        n += layer_set_has(&o->recurrent, l);
    return n;
}

static size_t states_bytes(const struct kv_pool_opts *o)
{
    return (size_t)n_recurrent(o, o->n_layers) * (size_t)o->n_states * o->state_bytes;
}

/* Returns the bytes of a block in layers [from, to). */
static size_t layers_bytes(const struct kv_pool_opts *o, int from, int to)
{
    size_t n = 0;
    for (int l = from; l < to; l++)
        if (is_local(o, l))
            n += kv_block_bytes(o->local_n_kv, o->local_d_head, o->dtype);
        else if (o->state_bytes == 0 || !layer_set_has(&o->recurrent, l))
            n += kv_block_bytes(o->n_kv, o->d_head, o->dtype);
    return n;
}

size_t kv_pool_bytes(const struct kv_pool_opts *o)
{
    return layers_bytes(o, 0, o->n_layers) * (size_t)o->n_blocks + states_bytes(o);
}

static int reserve_blocks(struct kv_pool *p, struct err *err)
{
    int n_stages = p->device->n_stages, rc = 0;
    CHECK(p->opts.state_bytes == 0 || n_stages * p->device->n_ranks == 1);
    if (states_bytes(&p->opts) > 0)
        rc = stage_alloc(p->device, 0, states_bytes(&p->opts), &p->states, err);
    for (int l = 0; l < p->opts.n_layers; l++) {
        if (p->opts.state_bytes > 0 && layer_set_has(&p->opts.recurrent, l))
            continue;
        struct stage_blocks *b = &p->stage[stage_of(l, p->opts.n_layers, n_stages)];
        b->first = b->n_layers++ == 0 ? l : b->first;
        b->block_bytes += layers_bytes(&p->opts, l, l + 1);
    }
    for (int k = 0; k < n_stages && rc == 0; k++) {
        struct stage_blocks *b = &p->stage[k];
        rc = stage_alloc(p->device, k, b->block_bytes * (size_t)p->opts.n_blocks, &b->mem,
                         err);
    }
    return rc;
}

static struct kv_layer layer_view(const struct kv_pool *p, int layer)
{
    int stage = stage_of(layer, p->opts.n_layers, p->device->n_stages);
    const struct stage_blocks *b = &p->stage[stage];
    int n_before = n_recurrent(&p->opts, layer);
    if (n_recurrent(&p->opts, layer + 1) > n_before)
        return (struct kv_layer){
            .blocks = (uint8_t *)p->states.ptr +
                      (size_t)n_before * (size_t)p->opts.n_states * p->opts.state_bytes,
            .block_stride = p->opts.state_bytes,
            .stage = stage,
            .dtype = DTYPE_F32,
        };
    bool local = is_local(&p->opts, layer);
    return (struct kv_layer){
        .blocks = (uint8_t *)b->mem.ptr + layers_bytes(&p->opts, b->first, layer),
        .block_stride = b->block_bytes,
        .stage = stage,
        .dtype = p->opts.dtype,
        .n_kv = local ? p->opts.local_n_kv : p->opts.n_kv,
        .d_head = local ? p->opts.local_d_head : p->opts.d_head,
    };
}

static void free_blocks(struct kv_pool *p)
{
    for (int k = 0; k < p->device->n_stages; k++)
        buf_free(p->device, &p->stage[k].mem);
    buf_free(p->device, &p->states);
}

static int reserve_layers(struct kv_pool *p, struct err *err)
{
    int rc = reserve_blocks(p, err);
    if (rc != 0) {
        free_blocks(p);
        return err_wrap(err, "KV pool of %d blocks", p->opts.n_blocks);
    }
    p->layers = xcalloc((size_t)p->opts.n_layers, sizeof *p->layers);
    for (int l = 0; l < p->opts.n_layers; l++)
        p->layers[l] = layer_view(p, l);
    return 0;
}

/* Makes all blocks free. The lowest number of a class is used first. */
static void fill_stacks(struct kv_pool *p)
{
    int first = 0, n_blocks = p->opts.n_blocks;
    p->free_blocks = xcalloc((size_t)n_blocks, sizeof *p->free_blocks);
    p->n_free = n_blocks;
    for (int c = 0; c < KV_POOL_CLASSES; c++) {
        struct free_stack *f = &p->free[c];
        *f = (struct free_stack){p->free_blocks + first, first, p->numbers.n[c]};
        for (int i = 0; i < f->n; i++)
            f->blocks[i] = first + f->n - 1 - i;
        first += f->n;
    }
    CHECK(first == n_blocks);
    if (p->opts.state_bytes > 0)
        p->numbers.n_tails = p->opts.n_states;
    p->n_free_tails = p->numbers.n_tails;
    p->free_tails = xcalloc((size_t)p->n_free_tails + 1, sizeof *p->free_tails);
    for (int i = 0; i < p->n_free_tails; i++)
        p->free_tails[i] = p->n_free_tails - 1 - i;
}

int kv_pool_create(struct device *d, const struct kv_pool_opts *o, struct kv_pool **out,
                   struct err *err)
{
    CHECK(o->n_layers > 0 && o->n_kv > 0 && o->d_head > 0 && o->n_blocks > 0);
    CHECK(o->state_bytes == 0 || (o->numbers == NULL && o->n_states > 0));
    struct kv_pool *p = xcalloc(1, sizeof *p);
    p->device = d;
    p->opts = *o;
    p->has_memory = o->numbers == NULL;
    p->opts.numbers = NULL;
    p->numbers.n[0] = o->n_blocks;
    if (o->numbers != NULL)
        p->numbers = *o->numbers;
    int rc = p->has_memory ? reserve_layers(p, err) : 0;
    if (rc != 0) {
        free(p);
        return rc;
    }
    p->refs = xcalloc((size_t)o->n_blocks, sizeof *p->refs);
    fill_stacks(p);
    if (o->keep)
        p->prefix = prefix_create(o->n_blocks, o->policy);
    if (o->keep && o->state_bytes > 0)
        p->kept = xcalloc((size_t)o->n_states, sizeof *p->kept);
    for (int i = 0; p->kept != NULL && i < o->n_states; i++)
        p->kept[i].block = PREFIX_NONE;
    *out = p;
    return 0;
}

void kv_pool_destroy(struct kv_pool *p)
{
    if (p == NULL)
        return;
    free_blocks(p);
    free(p->layers);
    free(p->refs);
    free(p->free_blocks);
    free(p->free_tails);
    free(p->kept);
    prefix_destroy(p->prefix);
    free(p);
}

static bool is_known(const struct kv_pool *p, int32_t b)
{
    return p->prefix != NULL && prefix_has(p->prefix, b);
}

int kv_pool_n_blocks(const struct kv_pool *p)
{
    return p->opts.n_blocks;
}

int kv_pool_kept_blocks(const struct kv_pool *p)
{
    return p->prefix != NULL ? p->prefix->n_kept : 0;
}

int kv_pool_free_blocks(const struct kv_pool *p)
{
    return p->n_free + kv_pool_kept_blocks(p);
}

uint64_t kv_pool_n_evicted(const struct kv_pool *p)
{
    return p->prefix != NULL ? p->prefix->n_evicted : 0;
}

uint32_t kv_pool_n_expected(const struct kv_pool *p)
{
    return p->prefix != NULL ? p->prefix->window.n_used : 0;
}

/* Returns the number of entries of the free stacks; -1 if a block is in the wrong stack, in use,
 * known, or free twice. */
static int audit_stacks(const struct kv_pool *p)
{
    uint8_t *is_free = xcalloc((size_t)p->opts.n_blocks, 1);
    int n = 0;
    for (int c = 0; c < KV_POOL_CLASSES; c++)
        for (int i = 0; i < p->free[c].n && n >= 0; i++) {
            int32_t b = p->free[c].blocks[i];
            bool is_good = b >= p->free[c].first &&
                           b < p->free[c].first + p->numbers.n[c] && p->refs[b] == 0 &&
                           !is_known(p, b) && !is_free[b];
            n = is_good ? n + 1 : -1;
            is_free[b] = 1;
        }
    free(is_free);
    return n;
}

bool kv_pool_audit(const struct kv_pool *p)
{
    int n_used = 0;
    for (int32_t b = 0; b < p->opts.n_blocks; b++) {
        bool is_used = p->refs[b] > 0;
        if (p->refs[b] < 0 || (is_known(p, b) && p->prefix->node[b].is_kept == is_used))
            return false;
        n_used += is_used;
    }
    for (int i = 0; p->kept != NULL && i < p->opts.n_states; i++)
        if (p->kept[i].block != PREFIX_NONE && !is_known(p, p->kept[i].block))
            return false;
    return audit_stacks(p) == p->n_free &&
           n_used + kv_pool_free_blocks(p) == p->opts.n_blocks &&
           (p->prefix == NULL || prefix_audit(p->prefix));
}

const struct kv_layer *kv_pool_layers(const struct kv_pool *p)
{
    return p->layers;
}

struct kv_layer kv_pool_layer(const struct kv_pool *p, int layer)
{
    CHECK(p->has_memory && layer >= 0 && layer < p->opts.n_layers);
    return p->layers[layer];
}

/* --- states of recurrent layers --------------------------------------------------------------- */

/* Returns the place of the state that stands at the end of a known block; -1: there is none. */
static int state_behind(const struct kv_pool *p, int32_t b)
{
    for (int i = 0; p->kept != NULL && b != PREFIX_NONE && i < p->opts.n_states; i++)
        if (p->kept[i].block == b)
            return i;
    return -1;
}

static void forget_state(struct kv_pool *p, int32_t b)
{
    int i = state_behind(p, b);
    if (i < 0)
        return;
    p->kept[i].block = PREFIX_NONE;
    p->free_tails[p->n_free_tails++] = i;
}

/* Takes a free place, else that of the kept state that was used longest ago. Returns -1 if tables
 * have all places. The old contents of the place stay until the caller writes. */
static int take_tail(struct kv_pool *p)
{
    int32_t oldest = PREFIX_NONE;
    uint64_t least = UINT64_MAX;
    for (int i = 0; p->n_free_tails == 0 && p->kept != NULL && i < p->opts.n_states; i++)
        if (p->kept[i].block != PREFIX_NONE && p->kept[i].last_use < least) {
            oldest = p->kept[i].block;
            least = p->kept[i].last_use;
        }
    forget_state(p, oldest);
    return p->n_free_tails > 0 ? p->free_tails[--p->n_free_tails] : -1;
}

static void keep_state(struct kv_pool *p, int place, int32_t b, const struct kv_table *t)
{
    p->kept[place] = (struct kept_state){b, t->snapshot, ++p->n_state_uses};
}

/* Returns whether all layers' states in a place have seen n tokens: a pass may have failed halfway.
 * Kept inputs may still be among these tokens. */
static bool stands_behind(const struct kv_pool *p, int place, int64_t n)
{
    bool all = true;
    for (int l = 0; l < p->opts.n_layers; l++) {
        uint8_t *state = p->layers[l].blocks + (size_t)place * p->opts.state_bytes;
        if (layer_set_has(&p->opts.recurrent, l))
            all = all && *delta_n_seen(state) <= n &&
                  *delta_n_seen(state) + *delta_n_kept(state) >= n;
    }
    return all;
}

static int copy_state(const struct kv_pool *p, struct stream *s, int to, int from)
{
    int rc = 0;
    for (int l = 0; to != from && rc == 0 && l < p->opts.n_layers; l++) {
        uint8_t *all = p->layers[l].blocks;
        if (layer_set_has(&p->opts.recurrent, l))
            rc = stream_copy(s, all + (size_t)to * p->opts.state_bytes,
                             all + (size_t)from * p->opts.state_bytes, p->opts.state_bytes);
    }
    return rc;
}

/* --- blocks ----------------------------------------------------------------------------------- */

static const int *order_of(const struct kv_pool *p, const struct kv_table *t)
{
    static const int in_order[KV_POOL_CLASSES] = {0, 1, 2, 3};
    return p->numbers.order != NULL ? p->numbers.order(p->numbers.arg, t) : in_order;
}

/* Takes a free block for the next entry of t. There must be one. */
static int32_t pop_free(struct kv_pool *p, const struct kv_table *t)
{
    const int *order = order_of(p, t);
    int i = 0;
    while (p->free[order[i]].n == 0)
        CHECK(++i < KV_POOL_CLASSES);
    struct free_stack *f = &p->free[order[i]];
    p->n_free--;
    return f->blocks[--f->n];
}

static void push_free(struct kv_pool *p, int32_t b)
{
    int c = 0;
    while (b >= p->free[c].first + p->numbers.n[c])
        c++;
    p->free[c].blocks[p->free[c].n++] = b;
    p->n_free++;
}

/* Takes a block for the next entry of t. */
static int32_t block_take(struct kv_pool *p, const struct kv_table *t)
{
    int32_t b = p->n_free > 0 ? pop_free(p, t) : prefix_evict(p->prefix);
    CHECK(p->refs[b] == 0);
    forget_state(p, b);
    p->refs[b] = 1;
    return b;
}

static void block_share(struct kv_pool *p, int32_t b)
{
    if (p->refs[b]++ == 0)
        prefix_claim(p->prefix, b);
}

/* Removes one user of the block. A block without users is kept if it is known, else free. */
static void block_drop(struct kv_pool *p, int32_t b, const struct kv_use *use)
{
    CHECK(b >= 0 && b < p->opts.n_blocks && p->refs[b] > 0);
    if (--p->refs[b] > 0)
        return;
    if (is_known(p, b))
        prefix_leave(p->prefix, b, use);
    else
        push_free(p, b);
}

/* --- block tables ----------------------------------------------------------------------------- */

static int grown_cap(const struct kv_table *t, int n_blocks)
{
    return MAX(t->cap_blocks * 2, n_blocks);
}

static void kv_table_prepare(struct kv_table *t, int n_blocks)
{
    if (n_blocks <= t->cap_blocks)
        return;
    t->cap_blocks = grown_cap(t, n_blocks);
    t->blocks = xrealloc(t->blocks, (size_t)t->cap_blocks * sizeof *t->blocks);
}

bool kv_table_try_prepare(struct kv_table *t, int n_blocks)
{
    if (n_blocks <= t->cap_blocks)
        return true;
    int cap = grown_cap(t, n_blocks);
    int32_t *blocks = mem_try_realloc(t->blocks, (size_t)cap * sizeof *blocks);
    if (blocks == NULL)
        return false;
    t->blocks = blocks;
    t->cap_blocks = cap;
    return true;
}

int kv_table_reserve(struct kv_pool *p, struct kv_table *t, int64_t n_tokens,
                     struct err *err)
{
    CHECK(n_tokens >= 0);
    int64_t want = (n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    if (want - t->n_blocks > kv_pool_free_blocks(p))
        return err_set(err, ERR_LIMIT,
                       "KV cache: %lld tokens need %lld more blocks, %d of %d are free",
                       (long long)n_tokens, (long long)(want - t->n_blocks),
                       kv_pool_free_blocks(p), p->opts.n_blocks);
    kv_table_prepare(t, (int)want);
    if (t->tail == 0 && (want > 0 || t->n_blocks > 0) && p->numbers.n_tails > 0) {
        t->tail = 1 + take_tail(p);
        CHECK(t->tail > 0);
    }
    while (t->n_blocks < want) {
        t->blocks[t->n_blocks] = block_take(p, t);
        t->n_blocks++;
    }
    return 0;
}

/* Drops blocks from the end, because a block may lose its last user only after its children have
 * (prefix.h). */
void kv_table_cut(struct kv_pool *p, struct kv_table *t, int n_blocks)
{
    CHECK(n_blocks >= 0);
    while (t->n_blocks > n_blocks)
        block_drop(p, t->blocks[--t->n_blocks], &t->use);
    if (n_blocks == 0 && t->tail != 0) {
        p->free_tails[p->n_free_tails++] = t->tail - 1;
        t->tail = 0;
    }
    t->n_known = MIN(t->n_known, t->n_blocks);
    t->n_saved = MIN(t->n_saved, t->n_blocks);
    t->n_named = MIN(t->n_named, t->n_blocks);
}

void kv_table_free(struct kv_pool *p, struct kv_table *t)
{
    kv_table_cut(p, t, 0);
    free(t->blocks);
    *t = (struct kv_table){0};
}

int kv_table_own_blocks(const struct kv_pool *p, const struct kv_table *t)
{
    int n = 0;
    for (int i = 0; i < t->n_blocks; i++)
        n += p->refs[t->blocks[i]] == 1;
    return n;
}

/* --- reuse ------------------------------------------------------------------------------------ */

/* Returns the known block that continues b, or PREFIX_NONE. With saved_only it must be saved. */
static int32_t next_known(const struct kv_pool *p, const struct sha256 *root, int32_t b,
                          const int32_t *tokens, bool saved_only)
{
    int32_t next = prefix_find(p->prefix, root, b, tokens);
    return next == PREFIX_NONE || (saved_only && !p->prefix->node[next].saved) ? PREFIX_NONE
                                                                               : next;
}

/* Finds the kept state that reaches furthest: at the end of the n full blocks that end with b, or
 * inside the block after them, within n_tokens tokens. Returns the number of tokens up to the
 * state, and sets *place to its index in p->kept. Returns 0 if there is none. */
static int64_t state_near(const struct kv_pool *p, const struct sha256 *root, int32_t b,
                          int n, const int32_t *tokens, int64_t n_tokens, int *place)
{
    int64_t end = 0, from = (int64_t)n * KV_BLOCK_TOKENS;
    for (int i = 0; p->kept != NULL && i < p->opts.n_states; i++) {
        int32_t kept = p->kept[i].block;
        if (kept == PREFIX_NONE)
            continue;
        int more = prefix_continues(p->prefix, kept, root, b, tokens + from,
                                    n_tokens - from);
        if ((kept == b || more > 0) && from + more > end) {
            end = from + more;
            *place = i;
        }
    }
    return end;
}

int kv_pool_find(const struct kv_pool *p, const struct sha256 *root, const int32_t *tokens,
                 int64_t n_tokens, bool saved_only, int *n_unused)
{
    int n_usable = 0, unused = 0, place;
    int32_t b = PREFIX_NONE;
    *n_unused = 0;
    for (int n = 0; p->prefix != NULL && n < n_tokens / KV_BLOCK_TOKENS; n++) {
        b = next_known(p, root, b, tokens + (int64_t)n * KV_BLOCK_TOKENS, saved_only);
        if (b == PREFIX_NONE)
            break;
        unused += p->refs[b] == 0;
        if (p->kept != NULL && state_near(p, root, b, n + 1, tokens, n_tokens, &place) == 0)
            continue;
        n_usable = n + 1;
        *n_unused = unused;
    }
    return n_usable;
}

static int32_t last_known(const struct kv_table *t)
{
    return t->n_known > 0 ? t->blocks[t->n_known - 1] : PREFIX_NONE;
}

int kv_table_take(struct kv_pool *p, struct kv_table *t, const struct sha256 *root,
                  const int32_t *tokens, int64_t n_tokens, bool saved_only)
{
    CHECK(t->n_blocks == 0);
    int n = p->prefix != NULL ? (int)(n_tokens / KV_BLOCK_TOKENS) : 0;
    kv_table_prepare(t, n);
    while (t->n_known < n) {
        int32_t b = next_known(p, root, last_known(t),
                               tokens + (int64_t)t->n_known * KV_BLOCK_TOKENS, saved_only);
        if (b == PREFIX_NONE)
            break;
        block_share(p, b);
        t->blocks[t->n_known++] = b;
        t->n_blocks = t->n_known;
    }
    return t->n_known;
}

static int copy_block(const struct kv_pool *p, struct stream *s, int32_t to, int32_t from)
{
    int rc = 0;
    for (int k = 0; k < p->device->n_stages && rc == 0; k++) {
        const struct stage_blocks *b = &p->stage[k];
        uint8_t *base = b->mem.ptr;
        rc = stream_copy(s, base + (size_t)to * b->block_bytes,
                         base + (size_t)from * b->block_bytes, b->block_bytes);
    }
    return rc;
}

/* Returns the block that begins with most of the tokens behind t's blocks, or PREFIX_NONE. */
static int32_t find_tail(const struct kv_pool *p, const struct kv_table *t,
                         const struct sha256 *root, const int32_t *tokens, int64_t n_tokens,
                         int *n_same)
{
    int64_t from = (int64_t)t->n_blocks * KV_BLOCK_TOKENS, left = n_tokens - from;
    CHECK(t->n_known == t->n_blocks && left >= 0);
    if (p->prefix == NULL || !p->has_memory)
        return PREFIX_NONE;
    return prefix_find_tail(p->prefix, root, last_known(t), tokens + from,
                            (int)MIN(left, KV_BLOCK_TOKENS), n_same);
}

int kv_table_find_tail(const struct kv_pool *p, const struct kv_table *t,
                       const struct sha256 *root, const int32_t *tokens, int64_t n_tokens,
                       const int32_t **block_tokens, int *n_block)
{
    int n_same;
    int32_t b = find_tail(p, t, root, tokens, n_tokens, &n_same);
    if (b == PREFIX_NONE || p->prefix->node[b].n_tokens == KV_BLOCK_TOKENS)
        return 0;
    *block_tokens = p->prefix->node[b].tokens;
    *n_block = p->prefix->node[b].n_tokens;
    return n_same;
}

int64_t kv_table_find_state(struct kv_pool *p, struct kv_table *t,
                            const struct sha256 *root, const int32_t *tokens,
                            int64_t n_tokens, int *place)
{
    for (int64_t end;; kv_table_cut(p, t, t->n_known - 1)) {
        end = state_near(p, root, last_known(t), t->n_known, tokens, n_tokens, place);
        if (end > 0 || t->n_known == 0)
            return end;
    }
}

int kv_table_take_state(struct kv_pool *p, struct kv_table *t, struct stream *s,
                        int64_t end, int place)
{
    int32_t b = p->kept[place].block;
    bool is_partial = end % KV_BLOCK_TOKENS != 0;
    t->snapshot = p->kept[place].snapshot;
    p->kept[place].last_use = ++p->n_state_uses; /* others go first if t needs a place */
    if (is_partial)
        block_share(p, b);
    int rc = kv_table_reserve(p, t, end, NULL);
    if (rc == 0 && is_partial)
        rc = copy_block(p, s, t->blocks[t->n_blocks - 1], b);
    if (rc == 0)
        rc = copy_state(p, s, kv_table_state(t), place);
    if (is_partial)
        block_drop(p, b, &t->use);
    return rc;
}

int kv_table_keep_state(struct kv_pool *p, const struct kv_table *t, struct stream *s)
{
    int32_t b = last_known(t);
    if (p->kept == NULL || b == PREFIX_NONE || state_behind(p, b) >= 0)
        return 0;
    int place = take_tail(p);
    if (place < 0)
        return 0;
    keep_state(p, place, b, t);
    return copy_state(p, s, place, kv_table_state(t));
}

void kv_table_leave_state(struct kv_pool *p, struct kv_table *t, int64_t n_done)
{
    int last = (int)((n_done - 1) / KV_BLOCK_TOKENS);
    if (p->kept == NULL || t->tail == 0 || n_done <= 0 || last >= t->n_blocks)
        return;
    int32_t b = t->blocks[last];
    if (p->prefix->node[b].n_tokens != (int)(n_done - (int64_t)last * KV_BLOCK_TOKENS) ||
        state_behind(p, b) >= 0 || !stands_behind(p, kv_table_state(t), n_done))
        return;
    keep_state(p, kv_table_state(t), b, t);
    t->tail = 0;
}

int kv_table_copy_tail(struct kv_pool *p, struct kv_table *t, struct stream *s,
                       const struct sha256 *root, const int32_t *tokens, int64_t n_tokens,
                       int *n_copied)
{
    int64_t from = (int64_t)t->n_blocks * KV_BLOCK_TOKENS;
    int n_same;
    int32_t b = find_tail(p, t, root, tokens, n_tokens, &n_same);
    *n_copied = 0;
    if (b == PREFIX_NONE)
        return 0;
    /* Keeps b in use. Otherwise b could be evicted to make room for its own copy. */
    block_share(p, b);
    /* If b is the last block that could be evicted, there is no room for its copy. Then b is
     * given up, and its rows are computed. Waiting for another block would never end. */
    bool has_room = kv_table_reserve(p, t, from + 1, NULL) == 0;
    int rc = has_room ? copy_block(p, s, t->blocks[t->n_blocks - 1], b) : 0;
    block_drop(p, b, &t->use);
    *n_copied = has_room && rc == 0 ? n_same : 0;
    return rc;
}

int kv_table_differs_at(const struct kv_pool *p, const struct kv_table *t,
                        const struct sha256 *root, const int32_t *tokens, int64_t n_tokens)
{
    int64_t from = (int64_t)t->n_known * KV_BLOCK_TOKENS, left = n_tokens - from;
    int n = (int)MIN(left, KV_BLOCK_TOKENS);
    if (p->prefix == NULL || n <= 0)
        return -1;
    int same = prefix_differs_at(p->prefix, root, last_known(t), tokens + from, n);
    return same < 0 ? -1 : (int)from + same;
}

/* Makes t's first unknown full block known, or replaces it by a known block with the same state. */
static void keep_full(struct kv_pool *p, struct kv_table *t, const struct sha256 *root,
                      const int32_t *tokens)
{
    int32_t own = t->blocks[t->n_known];
    int32_t known = prefix_find(p->prefix, root, last_known(t), tokens);
    if (known == PREFIX_NONE) {
        prefix_put(p->prefix, own, root, last_known(t), tokens, KV_BLOCK_TOKENS);
    } else if (known != own) {
        block_share(p, known);
        /* `own` may be known by the tokens that it held before it was full. */
        if (is_known(p, own))
            prefix_forget(p->prefix, own);
        forget_state(p, own);
        block_drop(p, own, &t->use);
        t->blocks[t->n_known] = known;
    }
    t->n_known++;
}

void kv_table_keep(struct kv_pool *p, struct kv_table *t, const struct sha256 *root,
                   const int32_t *tokens, int64_t n_done)
{
    if (p->prefix == NULL)
        return;
    CHECK(n_done <= (int64_t)t->n_blocks * KV_BLOCK_TOKENS);
    while ((int64_t)(t->n_known + 1) * KV_BLOCK_TOKENS <= n_done)
        keep_full(p, t, root, tokens + (int64_t)t->n_known * KV_BLOCK_TOKENS);
    int64_t from = (int64_t)t->n_known * KV_BLOCK_TOKENS;
    /* In a pool of numbers an unfinished block is not known: no code copies it. */
    if (n_done == from || !p->has_memory)
        return;
    int32_t own = t->blocks[t->n_known];
    if (p->prefix->node[own].n_tokens < (int)(n_done - from))
        prefix_put(p->prefix, own, root, last_known(t), tokens + from,
                   (int)(n_done - from));
}

void kv_table_mark_saved(struct kv_pool *p, struct kv_table *t, int n_blocks)
{
    n_blocks = MIN(n_blocks, t->n_known);
    for (; t->n_saved < n_blocks; t->n_saved++)
        p->prefix->node[t->blocks[t->n_saved]].saved = true;
}

void kv_table_name(struct kv_pool *p, struct kv_table *t, uint64_t name)
{
    CHECK(t->n_named < t->n_known);
    prefix_set_name(p->prefix, t->blocks[t->n_named++], name);
}

int kv_pool_changes(struct kv_pool *p, struct kv_change *out, int max)
{
    CHECK(max >= 2);
    return p->prefix != NULL ? prefix_changes(p->prefix, out, max) : 0;
}

void kv_pool_unmark_saved(struct kv_pool *p)
{
    for (int32_t b = 0; p->prefix != NULL && b < p->opts.n_blocks; b++)
        p->prefix->node[b].saved = false;
}

/* --- the value of blocks, and waiting requests ------------------------------------------------ */

void kv_pool_set_price(struct kv_pool *p, const struct placement_price *price)
{
    if (p->prefix != NULL)
        p->prefix->price = *price;
}

void kv_pool_set_step(struct kv_pool *p, uint64_t turns)
{
    if (p->prefix != NULL)
        p->prefix->window.step = turns;
}

void kv_pool_expect(struct kv_pool *p, const struct sha256 *root, const int32_t *tokens,
                    int64_t n_tokens, uint64_t turn)
{
    if (p->prefix != NULL)
        prefix_expect(p->prefix, root, tokens, n_tokens, turn);
}

void kv_pool_expect_no_more(struct kv_pool *p, const struct sha256 *root,
                            const int32_t *tokens, int64_t n_tokens, uint64_t turn)
{
    if (p->prefix != NULL)
        prefix_expect_no_more(p->prefix, root, tokens, n_tokens, turn);
}
